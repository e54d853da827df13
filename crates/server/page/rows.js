// What a commit says, in the words of a row. Pure.
// @ts-check
import { cut, short } from "./text.js";

/**
 * @typedef {object} Row a commit, as the API has it; most fields are absent in brief rows
 * @property {number} version
 * @property {string} kind
 * @property {string} invocation
 * @property {string} author
 * @property {string} at
 * @property {number} [step]
 * @property {number} [elapsed_us]
 * @property {number} [latency_us]
 * @property {any} [usage]
 * @property {string} [model]
 * @property {any[]} [messages]
 * @property {any[]} [writes]
 * @property {any[]} [calls]
 * @property {any[]} [outcomes]
 * @property {any[]} [asked]
 * @property {any[]} [decisions]
 * @property {any[]} [started]
 * @property {any[]} [planned]
 * @property {any[]} [path]
 * @property {any} [edited]
 * @property {any} [summary]
 * @property {any} [hook]
 * @property {any} [exit]
 * @property {string} [decided_by]
 * @property {boolean} visible
 */

const WORDS = /** @type {Record<string, string>} */ ({
  began: "question", replied: "reply", answered: "results", decided: "decision", asked: "asks", rewind: "rewind",
  started: "started", edited: "edit", ended: "end", cancelled: "cancelled", summarised: "summary",
});

/** @param {Row} row */
export const kindWord = (row) => (row.kind === "replied" && calls(row).length ? "calls" : WORDS[row.kind] ?? row.kind.replaceAll("_", " "));

/** @param {Row} row @returns {any[]} */
const parts = (row) => (row.messages ?? []).flatMap((message) => message.parts ?? []);

/** @param {Row} row @returns {any[]} */
export function calls(row) {
  if (row.calls) return row.calls;
  return parts(row).filter((part) => part.tool_call).map((part) => ({
    id: part.tool_call.id, name: part.tool_call.name, arguments: part.tool_call.arguments ?? part.tool_call.arguments_text,
  }));
}

/** @param {Row} row @returns {any[]} */
export function outcomes(row) {
  if (row.outcomes) return row.outcomes;
  return parts(row).filter((part) => part.tool_result).map(({ tool_result: result }) => ({
    call_id: result.call_id, name: result.name, status: result.is_error || result.error ? "failed" : "done",
    result: result.value ?? result.text ?? result.error,
  }));
}

/** @param {Row} row */
export const text = (row) => parts(row).filter((part) => typeof part.text === "string").map((part) => part.text).join("\n");

/** @param {any} value */
export const args = (value) => {
  if (!value || typeof value !== "object") return short(value);
  return Object.entries(value).map(([name, given]) => `${name}: ${short(given)}`).join(", ");
};

/** One line about a commit. @param {Row} row */
export function line(row) {
  const called = calls(row);
  const answered = outcomes(row);
  const said = text(row);
  if (row.decisions?.length) {
    const by = row.decisions[0].by ?? row.decided_by;
    const words = row.decisions.map((decision) => `${word(decision.decision)} ${decision.call_id ?? ""}`.trim()).join(", ");
    return `${words}${by ? ` · by ${by}` : ""}`;
  }
  if (row.asked?.length) return row.asked.map((request) => `${request.call?.name}(${args(request.call?.arguments)})`).join("  ");
  if (answered.length) return cut(answered.map((outcome) => `${outcome.name} → ${short(outcome.error ?? outcome.result ?? outcome.status)}`).join("   "), 300);
  if (called.length) return cut(`${said ? `${said}  ` : ""}${called.map((call) => `${call.name}(${args(call.arguments)})`).join("   ")}`, 300);
  if (said) return cut(said.replace(/\s+/g, " "), 300);
  if (row.decided_by) return `by ${row.decided_by}`;
  if (row.started?.length) return row.started.map((mark) => `${mark.name ?? mark.call_id} started`).join(", ");
  if (row.edited) return `edited ${Object.keys({ ...row.edited.values, ...row.edited.results }).join(", ")}`;
  if (row.planned?.length) return cut(row.planned.map((branch) => branch.call_id).join(", "), 300);
  if (row.exit) return exitWord(row.exit);
  if (row.writes?.length) return row.writes.map((write) => `${write.key} ${write.handler ?? "removed"}`).join(", ");
  if (row.summary) return cut(short(row.summary), 300);
  return "";
}

/** @param {any} decision */
const word = (decision) => {
  const name = typeof decision === "string" ? decision : Object.keys(decision ?? {})[0] ?? "decided";
  return { approve: "approved", reject: "rejected", modify: "changed" }[name] ?? name;
};

/** @param {any} exit */
export const exitWord = (exit) => (typeof exit === "string" ? exit : Object.keys(exit ?? {})[0] ?? "").replaceAll("_", " ");

/** Whether a person should look at it. @param {Row} row */
export const isBad = (row) =>
  (row.exit && !["text", "output", "done", "finished", "end"].includes(exitWord(row.exit))) || outcomes(row).some((outcome) => ["failed", "unknown", "rejected"].includes(outcome.status));

/** The time that a commit took: since the one before it in its run. @param {Row[]} rows @param {number} index */
export function took(rows, index) {
  const row = rows[index];
  if (row.latency_us !== undefined) return row.latency_us;
  const before = rows[index - 1];
  if (!before || before.invocation !== row.invocation || row.elapsed_us === undefined || before.elapsed_us === undefined) return undefined;
  return Math.max(0, row.elapsed_us - before.elapsed_us);
}

/** The cost of a reply, by a table of prices per million tokens. @param {any} usage @param {any} price */
export function cost(usage, price) {
  if (!usage || !price) return undefined;
  const cached = usage.cached_input_tokens ?? 0;
  const fresh = Math.max(0, usage.input_tokens - cached);
  return (fresh * price.input + cached * (price.cached_input ?? price.input) + usage.output_tokens * price.output) / 1e6;
}

/** The call that a write belongs to, if it can be told. @param {Row | undefined} row @param {string} key */
export function writer(row, key) {
  if (!row) return undefined;
  const found = outcomes(row);
  return found.find((outcome) => outcome.wrote?.includes(key)) ?? (found.length === 1 ? found[0] : undefined);
}
