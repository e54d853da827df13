// What a commit says, in the words of a row. Pure.
// @ts-check
import { isNested } from "./json.js";
import { cut, short } from "./text.js";

/** @typedef {import("./types").Row} Row */

const WORDS = /** @type {Record<string, string>} */ ({
  began: "question", replied: "reply", answered: "results", decided: "decision", asked: "asks", rewind: "rewind", hooked: "hook",
  started: "started", edited: "edit", state: "edit", planned: "plan", ended: "run ended", cancelled: "cancelled", summarized: "summary",
});

/** @param {Row} row */
export const kindWord = (row) => (row.kind === "replied" && row.calls?.length ? "calls" : wordOf(row.kind === "planned" && row.exit ? "ended" : row.kind));

/** @param {string} kind */
export const wordOf = (kind) => WORDS[kind] ?? kind.replaceAll("_", " ");

/** @param {Row} row */
export const text = (row) => (row.messages ?? []).flatMap((message) => message.parts ?? []).filter((part) => typeof part.text === "string").map((part) => part.text).join("\n");

/** @param {any} value */
export const args = (value) => {
  if (!isNested(value)) return value ? short(value) : "";
  return Object.entries(value).map(([name, given]) => `${name}: ${short(given)}`).join(", ");
};

/** A call, as in a program. @param {{ name: string, arguments: any }} call */
export const callText = (call) => `${call.name}(${args(call.arguments)})`;

/** The call of a request, with the branches that it is inside of: `research#0/c1`. @param {string} request */
export const nameOf = (request) => request.replace(/#[0-9a-f]{16}$/, "");

/** More than these are a group, which says how many they are. */
export const FEW = 4;
/** Parts of a line, with their number if they are many. @param {string[]} parts @param {string} what @param {string} [between] */
const counted = (parts, what, between = "   ") => `${parts.length > FEW ? `${parts.length} ${what}: ` : ""}${parts.join(between)}`;

/** Names, each once, with how often it is there. @param {string[]} names */
export function tally(names) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const name of names) found.set(name, (found.get(name) ?? 0) + 1);
  return [...found].map(([name, times]) => (times > 1 ? `${name} × ${times}` : name)).join(", ");
}

/** Why a run failed. The server begins with which run it is, and the page shows that elsewhere. @param {string} failure */
export const reason = (failure) => failure.replace(/^(?:run in session \S+ failed: )?run '[^']*' (?:failed|waits) after step \d+: /, "");

/** One line about a commit. @param {Row} row @param {(id: string) => any} [callOf] a call, as it runs */
export function line(row, callOf) {
  const { calls = [], outcomes = [], asked = [], decisions = [], planned = [], started = [], writes = [] } = row;
  const said = text(row).replace(/\s+/g, " ").replace(/\*\*|`/g, "");
  if (decisions.length) return `${counted(decisions.map((one) => decided(one, callOf)), "decisions", ", ")}${row.decided_by ? ` · by ${row.decided_by}` : ""}`;
  if (row.failure) return reason(row.failure);
  if (row.hook) return hookLine(row.hook);
  if (asked.length) return counted(asked.map((request) => callText(request.call)), "calls");
  if (outcomes.length) return counted(outcomes.map((one) => `${one.kind === "node" ? one.call_id : one.name} → ${short(one.error ?? one.result ?? one.status)}`), "results");
  if (calls.length) return `${said ? `${said}  ` : ""}${counted(calls.map(callText), "calls")}`;
  if (said) return said;
  const wrote = writes.map((write) => (write.handler ? `${write.key} ← ${short(write.value)}` : `${write.key} removed`));
  if (row.edited) return [...Object.entries(row.edited.arguments ?? {}).map(([id, given]) => `new arguments: ${callText({ name: callOf?.(id)?.name ?? id, arguments: given })}`), ...Object.entries(row.edited.results).map(([id, result]) => `result ${id} ← ${short(result)}`), ...wrote].join("   ");
  if (row.decided_by) return `by ${row.decided_by}`;
  if (started.length) return counted(started.map((mark) => callText(callOf?.(mark.call_id) ?? mark)), "calls");
  if (row.kind === "began") return "(no message)";
  if (planned.length) return counted(planned.map((branch) => branch.call_id), "branches", ", ");
  if (row.exit) return [row.kind, "end"].includes(exitWord(row.exit)) ? "" : exitWord(row.exit);
  return row.summary ?? wrote.join("   ");
}

/** @param {import("./types").Hook} hook */
const hookLine = ({ point, verdict, answers = [] }) => [point, ...answers.map((one) => `${one.name} → ${one.result}`), verdict?.stop && `the run ends: ${verdict.stop}`, verdict === "go_on" && "the run continues"].filter(Boolean).join(" · ");

/** A decision, with the call that runs by it. @param {{ request: string, decision: any }} one @param {(id: string) => any} [callOf] */
export function decided({ request, decision }, callOf) {
  const name = nameOf(request);
  const call = callOf?.(name);
  const id = name.replaceAll("/", " › ");
  const { modify, reject } = decision ?? {};
  if (modify) return `approved with changes ${call ? callText({ ...call, arguments: modify.arguments }) : id}`;
  if (reject) return `rejected ${call?.name ?? id}${reject.reason ? `: ${short(reject.reason)}` : ""}`;
  return `${decision === "approve" ? "approved" : wordOf(Object.keys(decision ?? {})[0] ?? "decided")} ${call ? callText(call) : id}`;
}

/** @param {any} exit as it is stored */
export const exitWord = (exit) => (typeof exit === "string" ? exit : Object.keys(exit ?? {})[0] ?? "").replaceAll("_", " ");

/** Whether a person should look at it. @param {Row} row */
export const isBad = (row) =>
  row.failure || (row.exit && !["text", "output", "done", "finished", "end"].includes(exitWord(row.exit))) || row.outcomes?.some((one) => ["failed", "unknown", "rejected"].includes(one.status));
