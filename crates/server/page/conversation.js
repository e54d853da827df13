// The conversation at the version that is looked at: as the user has it, and as the model was shown it.
// @ts-check
import { html, useEffect, useState } from "./html.js";
import { callOf, fill, know, lookedAt, money, placeOf, readModel, rowAt, step } from "./store.js";
import { callText, line, text } from "./rows.js";
import { count, cut, Prose, short, Value } from "./text.js";

/** @typedef {import("./types").Row} Row */
/** @typedef {import("./types").Message} Message */

/** How many commits are shown at once. */
const PAGE = 60;

export function Conversation() {
  const [pages, setPages] = useState(1);
  const at = lookedAt();
  const rows = know.rows.filter((row) => row.visible && row.version <= at && !row.path?.length);
  const shown = rows.slice(-PAGE * pages);
  useEffect(() => {
    if (shown.length) fill(placeOf(shown[0].version), placeOf(shown[shown.length - 1].version) + 1);
  }, [at, pages, know.rows.length]);
  if (!rows.length) return html`<div class="empty"><h2>No messages yet</h2><p>Write one below.</p></div>`;
  return html`<div class="conversation" tabindex="0" role="region" aria-label="Conversation">
    <${Earlier} more=${rows.length - shown.length} show=${() => setPages(pages + 1)} />
    ${shown.map((row) => html`<${Said} key=${row.version} row=${row} />`)}
    ${know.view.at === undefined && know.unfinished.text && html`<article class="said assistant live"><h2>${know.app?.agent ?? "agent"}</h2><${Prose} text=${know.unfinished.text} /></article>`}
  </div>`;
}

/** What leads to earlier messages, if there are any. @param {{ more: number, show: () => void }} props */
const Earlier = ({ more, show }) => more > 0 && html`<button type="button" class="link" onClick=${show}>Show earlier messages</button>`;

/** @param {{ row: Row }} props */
function Said({ row }) {
  const said = text(row);
  const used = [...(row.calls ?? []).map(callText), ...(row.outcomes ?? []).map((outcome) => `${outcome.name} → ${short(outcome.error ?? outcome.result)}`),
    ...(row.decisions || row.edited || row.failure ? [line(row, (id) => callOf(id, placeOf(row.version)))] : [])];
  const version = html`<button type="button" class="link quiet" onClick=${() => step(row.version)}>v${row.version}</button>`;
  return html`${said && html`<article class=${`said ${row.author === "user" ? "user" : "assistant"}`}><h2>${row.author} ${version}</h2><${Prose} text=${said} /></article>`}
    ${used.map((one) => html`<p class="used">${version} <code>${cut(one, 400)}</code></p>`)}`;
}

/** What the model was shown at the step: nothing more, and nothing less. */
export function Seen() {
  const [pages, setPages] = useState(1);
  const at = lookedAt();
  useEffect(() => void readModel(at), [at]);
  const { model } = know;
  if (!model || model.at !== at || model.busy || !model.found) return html`<p class="quiet">…</p>`;
  const { found } = model;
  if ("error" in found) return html`<${NotAsked} why=${found.error} at=${at} />`;
  const { tokens, usage, instructions } = found;
  const facts = [["step", html`${found.step} of its run, ${found.reply ? html`answered at <button class="link" onClick=${() => step(found.reply ?? 0)}>v${found.reply}</button>` : "not answered yet: what would be asked"}`], ["model", found.model],
    ["tokens", usage && `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out, as reported`],
    ["estimated", `${count(tokens.total)} in: ${count(tokens.instructions)} instructions, ${count(tokens.messages)} messages, ${count(tokens.tools)} tools`], ["cost", found.cost && money(Number(found.cost))],
    ["left out", found.reasons.join("; ")], ["must call", found.tool_choice !== "auto" && short(found.tool_choice)], ["output", found.output && `${found.output.mode}: ${short(found.output.schema)}`],
    ["settings", Object.keys(found.params).length > 0 && short(found.params)], ...found.unknown.map((one) => ["not known", `${one.part}: ${one.why}`]),
    ...(found.changes ?? []).map((one) => ["for its server", one.message === undefined ? one.change : `message ${one.message}: ${one.change}`])];
  const all = found.messages.filter((one) => one.source !== "instructions");
  const messages = all.slice(-PAGE * pages);
  const from = messages.length < all.length ? messages[0].index ?? 0 : 0;
  let gaps = found.left_out.filter((gap) => gap.to > from);
  return html`<div class="conversation" tabindex="0" role="region" aria-label="What the model was shown">
    <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <details class="offered"><summary class="link">${found.tools.length} tools offered</summary>${found.tools.map((tool) => html`<div class="call"><h3><b>${tool.name}</b> <span class="quiet">${count(tool.tokens)} tokens</span></h3><p>${tool.description}</p><${Value} value=${tool.parameters} /></div>`)}</details>
    ${instructions && html`<article class="said system"><h2>instructions, as rendered</h2><${Prose} text=${instructions} /></article>`}
    <${Earlier} more=${all.length - messages.length} show=${() => setPages(pages + 1)} />
    ${messages.map((one) => {
      const before = gaps.filter((gap) => gap.to <= (one.index ?? 0));
      gaps = gaps.filter((gap) => !before.includes(gap));
      return html`${before.map((gap) => html`<${Gap} gap=${gap} />`)}<${Shown} message=${one.message} kind=${one.source === "summary" ? "summary" : one.message.role} more=${`${one.source === "summary" ? "the summary · " : ""}${count(one.tokens)} tokens`} />`;
    })}
    ${gaps.map((gap) => html`<${Gap} gap=${gap} />`)}
    ${found.reply && html`<${Answer} at=${found.reply} />`}
  </div>`;
}

/** What the model answered. @param {{ at: number }} props */
function Answer({ at }) {
  const row = rowAt(at);
  useEffect(() => void (row?.is_brief && fill(placeOf(at), placeOf(at) + 1)), [row]);
  return row?.messages.map((message) => html`<${Shown} message=${message} more=${`its answer, v${at}`} />`);
}

/** @param {{ why: string, at: number }} props */
function NotAsked({ why, at }) {
  const reply = know.rows.findLast((row) => row.kind === "replied" && row.version <= at) ?? know.rows.find((row) => row.kind === "replied");
  return html`<div class="empty"><h2>No model was asked for this commit</h2><p>${why}</p>
    ${reply && reply !== rowAt(at) && html`<button type="button" class="main" onClick=${() => step(reply.version)}>Go to v${reply.version}, a reply</button>`}</div>`;
}

/** @param {{ gap: import("./types").Gap }} props */
const Gap = ({ gap }) => html`<details class="gap"><summary class="link">${gap.to - gap.from} message${gap.to - gap.from > 1 ? "s" : ""} left out${gap.summarised ? ", in the summary" : ""}</summary>
  <${LeftOut} messages=${gap.messages} /></details>`;

/** @param {{ messages: Message[] }} props */
function LeftOut({ messages }) {
  const [pages, setPages] = useState(1);
  const shown = messages.slice(-PAGE * pages);
  return html`<${Earlier} more=${messages.length - shown.length} show=${() => setPages(pages + 1)} />
    ${shown.map((message) => html`<${Shown} message=${message} more="not shown" />`)}`;
}

/** @param {{ message: Message, more: string, kind?: string }} props */
const Shown = ({ message, more, kind = message.role }) => html`<article class=${`said ${kind}`}><h2>${[message.role, more].join(" · ")}</h2>
  ${message.parts.map((part) => html`<${Part} part=${part} />`)}</article>`;

/** @param {{ part: any }} props */
function Part({ part }) {
  const { text, tool_call: call, tool_result: result } = part;
  if (typeof text === "string") return html`<${Prose} text=${text} />`;
  const { id = result?.call_id, name } = call ?? result ?? {};
  if (!name) return html`<${Value} value=${part} />`;
  return html`<p class="part"><b>${name}</b> <span class="quiet">${id}</span></p><${Value} value=${call ? call.arguments : result.error ?? result.value ?? result} />`;
}
