// The conversation at the version that is looked at: as the user has it, and as the model was shown it.
// @ts-check
import { html, useEffect, useState } from "./vendor/preact.js";
import { fill, know, lookedAt, readModel, step } from "./store.js";
import { args, calls, outcomes, text } from "./rows.js";
import { count, cut, Prose, short, Value } from "./text.js";

/** How many commits are shown at once. */
const PAGE = 60;

export function Conversation() {
  const [isModel, setModel] = useState(false);
  const [pages, setPages] = useState(1);
  const at = lookedAt();
  const rows = know.rows.filter((/** @type {any} */ row) => row.visible && row.version <= at && !row.path?.length);
  const shown = rows.slice(-PAGE * pages);
  useEffect(() => {
    if (shown.length) fill(know.rows.indexOf(shown[0]), know.rows.indexOf(shown.at(-1)) + 1);
  }, [at, pages, know.rows.length]);
  if (!rows.length) return html`<div class="empty"><h2>No messages yet</h2><p>Write one below.</p></div>`;
  return html`<div class="conversation" tabindex="0" role="region" aria-label="Conversation">
    <div class="switch" role="group" aria-label="Whose view">
      <button type="button" aria-pressed=${!isModel} onClick=${() => setModel(false)}>as the user has it</button>
      <button type="button" aria-pressed=${isModel} onClick=${() => setModel(true)}>as the model saw it</button>
    </div>
    ${isModel ? html`<${Seen} at=${at} />` : html`
      ${rows.length > shown.length && html`<button type="button" class="link" onClick=${() => setPages(pages + 1)}>Show earlier messages</button>`}
      ${shown.map((/** @type {any} */ row) => html`<${Said} key=${row.version} row=${row} />`)}
      ${know.view.at === undefined && know.unfinished.text && html`<article class="said assistant live"><h2>${know.app?.agent ?? "agent"}</h2><${Prose} text=${know.unfinished.text} /></article>`}`}
  </div>`;
}

/** @param {{ row: any }} props */
function Said({ row }) {
  const said = text(row);
  const used = [...calls(row).map((call) => `${call.name}(${args(call.arguments)})`), ...outcomes(row).map((outcome) => `${outcome.name} → ${short(outcome.error ?? outcome.result)}`)];
  if (!said && !used.length) return null;
  const isUser = row.author === "user";
  return html`<article class=${`said ${isUser ? "user" : "assistant"}`}>
    ${said && html`<h2>${isUser ? "user" : row.author} <button type="button" class="link quiet" onClick=${() => step(row.version)}>v${row.version}</button></h2><${Prose} text=${said} />`}
    ${used.map((one) => html`<p class="used"><button type="button" class="link quiet" onClick=${() => step(row.version)}>v${row.version}</button> <code>${cut(one, 400)}</code></p>`)}
  </article>`;
}

/** @param {{ at: number }} props */
function Seen({ at }) {
  useEffect(() => {
    if (know.model?.at !== at) readModel(at);
  }, [at]);
  const { model } = know;
  if (!model || model.at !== at || model.busy) return html`<p class="quiet">…</p>`;
  const seen = model.found;
  if (!seen) return html`<div class="empty"><h2>Not known here</h2><p>At this version the model is not asked, or this server does not tell what it would be shown.</p></div>`;
  const facts = [["model", seen.model], ["tokens, estimated", seen.estimated_tokens && count(seen.estimated_tokens)],
    ["left out", seen.trimmed?.dropped ? `${seen.trimmed.dropped} messages${seen.trimmed.why ? `: ${seen.trimmed.why}` : ""}` : undefined],
    ["tools", seen.tools?.map((/** @type {any} */ tool) => tool.name ?? tool).join(", ")]];
  return html`<dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    ${seen.instructions && html`<article class="said system"><h2>instructions</h2><${Prose} text=${short(seen.instructions)} /></article>`}
    ${(seen.messages ?? []).slice(-200).map((/** @type {any} */ message) => html`<article class=${`said ${message.role}`}><h2>${message.role}</h2>
      ${(message.parts ?? []).map((/** @type {any} */ part) => (typeof part.text === "string" ? html`<${Prose} text=${part.text} />` : html`<${Value} value=${part.tool_call ?? part.tool_result ?? part} />`))}</article>`)}`;
}
