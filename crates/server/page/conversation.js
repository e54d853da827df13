// The conversation at the version that is looked at: as the user has it, and as the model was shown it.
// @ts-check
import { html, useEffect, useState } from "./html.js";
import { callOf, fill, know, lookedAt, money, placeOf, readModel, rowAt, step } from "./store.js";
import { callText, FEW, line, tally, text } from "./rows.js";
import { count, cut, Prose, short, Value } from "./text.js";

/** @typedef {import("./types").Row} Row */
/** @typedef {import("./types").Message} Message */

/** How many commits or messages are shown at once. */
const PAGE = 60;
/** So many notes of one kind are shown. */
const NOTES = 20;

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
    ${rows.length > shown.length && html`<button class="link" onClick=${() => setPages(pages + 1)}>Show earlier messages</button>`}
    ${shown.map((row) => html`<${Said} key=${row.version} row=${row} />`)}
    ${know.view.at === undefined && know.unfinished.text && html`<article class="said assistant live"><h2>${know.app?.agent ?? "agent"}</h2><${Prose} text=${know.unfinished.text} /></article>`}
  </div>`;
}

/** @param {{ row: Row }} props */
function Said({ row }) {
  const said = text(row);
  const { calls = [], outcomes = [] } = row;
  const used = [...(row.decisions || row.edited || row.failure ? [line(row, (id) => callOf(id, placeOf(row.version)))] : [])];
  const version = html`<button class="link quiet" onClick=${() => step(row.version)}>v${row.version}</button>`;
  return html`${said && html`<article class=${`said ${row.author === "user" ? "user" : "assistant"}`}><h2>${row.author} ${version}</h2><${Prose} text=${said} /></article>`}
    <${Used} version=${version} what="calls" names=${calls.map((call) => call.name)} lines=${calls.map((call) => () => callText(call))} />
    <${Used} version=${version} what="results" names=${outcomes.map((one) => one.name)} lines=${outcomes.map((one) => () => `${one.name} → ${short(one.error ?? one.result)}`)} />
    ${used.map((one) => html`<p class="used">${version} <code dir="auto">${cut(one, 400)}</code></p>`)}`;
}

/** The lines of the calls or results of one commit; many are shown when they are wanted. @param {{ version: any, what: string, names: string[], lines: (() => string)[] }} props */
function Used({ version, what, names, lines }) {
  const [isOpen, setOpen] = useState(false);
  const isGroup = lines.length > FEW;
  return html`${isGroup && html`<p class="used">${version} <button class="link" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"} ${lines.length} ${what}: ${tally(names)}</button></p>`}
    ${(isOpen || !isGroup) && lines.map((line) => html`<p class="used">${isGroup ? html`<span></span>` : version} <code dir="auto">${cut(line(), 400)}</code></p>`)}`;
}

/** What the model was shown at the step: nothing more, and nothing less. */
export function Seen() {
  const at = lookedAt();
  const [pages, setPages] = useState({ at, count: 1 });
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
    ["settings", Object.keys(found.params).length > 0 && short(found.params)], ...some("not known", found.unknown.map((one) => `${one.part}: ${one.why}`)),
    ...some("for its server", (found.changes ?? []).map((one) => (one.message === undefined ? one.change : `message ${one.message}: ${one.change}`)))];
  // What was left out stands where it was, and the newest is last.
  const all = inPlace(found.messages.filter((one) => one.source !== "instructions"), found.left_out);
  const isAt = pages.at === at;
  const shown = all.slice(-PAGE * (isAt ? pages.count : 1));
  return html`<div class="conversation" tabindex="0" role="region" aria-label="What the model was shown">
    <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <details class="offered"><summary class="link">${found.tools.length} tools offered</summary>${found.tools.map((tool) => html`<div class="call"><h3><b>${tool.name}</b> <span class="quiet">${count(tool.tokens)} tokens</span></h3><p dir="auto">${tool.description}</p><${Value} value=${tool.parameters} /></div>`)}</details>
    ${instructions && html`<article class="said system"><h2>instructions, as rendered</h2><${Prose} text=${instructions} /></article>`}
    ${all.length > shown.length && html`<p class="gap"><button class="link" onClick=${() => setPages({ at, count: (isAt ? pages.count : 1) + 1 })}>Show earlier messages: ${count(all.length - shown.length)} more</button></p>`}
    ${shown.map((one, index) => ("from" in one ? html`<${Gap} key=${all.length - shown.length + index} gap=${one} />`
    : html`<${Shown} key=${all.length - shown.length + index} message=${one.message} kind=${one.source === "summary" ? "summary" : one.message.role} more=${`${one.source === "summary" ? "the summary · " : ""}${count(one.tokens)} tokens`} />`))}
    ${found.reply && html`<${Answer} at=${found.reply} />`}
  </div>`;
}

/** The first of many notes, and how many more there are. @param {string} name @param {string[]} notes */
const some = (name, notes) => [...notes.slice(0, NOTES), ...(notes.length > NOTES ? [`and ${count(notes.length - NOTES)} more`] : [])].map((note) => [name, note]);

/** Messages, with what was left out between them. @param {import("./types").Seen["messages"]} messages @param {import("./types").Gap[]} gaps */
function inPlace(messages, gaps) {
  const found = [];
  let next = 0;
  for (const one of messages) {
    while (next < gaps.length && gaps[next].to <= (one.index ?? 0)) found.push(gaps[next++]);
    found.push(one);
  }
  return [...found, ...gaps.slice(next)];
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
    ${reply && reply !== rowAt(at) && html`<button class="main" onClick=${() => step(reply.version)}>Go to v${reply.version}, a reply</button>`}</div>`;
}

/** Messages that were left out: they are in the page when they are wanted. @param {{ gap: import("./types").Gap }} props */
function Gap({ gap }) {
  const [pages, setPages] = useState(0);
  const many = gap.to - gap.from;
  return html`<details class="gap" onToggle=${(event) => setPages(event.currentTarget.open ? Math.max(pages, 1) : 0)}><summary class="link">${count(many)} message${many > 1 ? "s" : ""} left out${gap.summarised ? ", in the summary" : ""}</summary>
    ${gap.messages.slice(0, PAGE * pages).map((message) => html`<${Shown} message=${message} more="not shown" />`)}
    ${pages > 0 && gap.messages.length > PAGE * pages && html`<button class="link" onClick=${() => setPages(pages + 1)}>Show more: ${count(gap.messages.length - PAGE * pages)}</button>`}</details>`;
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
