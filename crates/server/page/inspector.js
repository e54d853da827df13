// The state at the version that is looked at: what the step changed, and which call gave each value. And the step itself.
// @ts-check
import { html, useEffect } from "./vendor/preact.js";
import { fill, go, know, lookedAt, readHistory, step } from "./store.js";
import { args, calls, exitWord, kindWord, outcomes, text, took, writer } from "./rows.js";
import { count, duration, moment, Prose, same, Value } from "./text.js";

export function Inspector() {
  const { panel } = know.view;
  return html`<section class="inspector" aria-label="Inspector">
    <div class="tabs" role="tablist" aria-label="What is inspected">
      ${[["state", "State"], ["step", "Step"]].map(([name, word]) => html`<button type="button" role="tab" id=${`tab-${name}`} aria-controls="inspected"
        aria-selected=${panel === name} tabindex=${panel === name ? 0 : -1} onClick=${() => go({ panel: name }, true)} onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
          if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
            event.stopPropagation();
            go({ panel: panel === "state" ? "step" : "state" }, true);
            /** @type {any} */ (event.currentTarget)?.parentElement.querySelector('[tabindex="-1"]')?.focus();
          }
        }}>${word}</button>`)}
      <span class="quiet right">at v${lookedAt()}</span>
    </div>
    <div role="tabpanel" id="inspected" aria-labelledby=${`tab-${panel}`} tabindex="0" class="inspected">
      ${panel === "step" ? html`<${Step} />` : html`<${State} />`}
    </div>
  </section>`;
}

/** @param {string} key @param {any} row */
const scopeOf = (key, row) => row?.scope ?? (key.startsWith("user:") ? "user" : key.startsWith("app:") ? "app" : key.startsWith("temp:") ? "temp" : "session");

function State() {
  const at = lookedAt();
  const now = know.states.get(at);
  const before = know.states.get(at - 1);
  if (!now) return html`<p class="quiet">…</p>`;
  if (now.error) return html`<p class="quiet">${now.error}</p>`;
  const keys = [...new Set([...Object.keys(now.values), ...Object.keys(before?.values ?? {})])].sort();
  if (!keys.length) return html`<div class="empty"><h2>No values yet</h2><p>Tools and graphs write values here. Each one names the call that wrote it.</p></div>`;
  return html`<dl class="state">${keys.map((key) => html`<${Entry} key=${key} name=${key} now=${now} before=${before} />`)}</dl>`;
}

/** @param {{ name: string, now: any, before: any }} props */
function Entry({ name, now, before }) {
  const value = now.values[name];
  const origin = now.origin?.[name];
  const scope = scopeOf(name, origin);
  const isShared = scope === "user" || scope === "app";
  const isChanged = before && !before.error && (isShared ? origin?.version === now.version : !same(value, before.values[name]));
  const isOpen = know.view.key === name;
  const handler = origin?.handler ?? know.app?.schema?.keys?.[name]?.handler;
  return html`<div class=${`entry${isChanged ? " changed" : ""}`}>
    <dt><button type="button" class="key" aria-expanded=${isOpen} title=${know.app?.schema?.keys?.[name]?.description ?? ""}
      onClick=${() => go({ key: isOpen ? undefined : name }, true)}>${name}</button>
      ${isShared && html`<span class="tag" title="Shared with other sessions: the value of today, not of this version">${scope === "user" ? "of the user" : "of the app"} · today’s</span>`}</dt>
    <dd>${isChanged && !isShared && html`<span class="before"><${Value} value=${before.values[name]} most=${600} /></span><span aria-label="becomes" class="arrow"> → </span>`}<${Value} value=${value} /></dd>
    <dd class="blame">${origin ? html`<${Blame} origin=${origin} name=${name} />` : html`<span>${isShared ? "written elsewhere" : "its default"}${handler && html` · merged by ${name0(handler)}`}</span>`}</dd>
    ${isOpen && html`<dd><${History} name=${name} /></dd>`}
  </div>`;
}

/** @param {any} handler */
const name0 = (handler) => (typeof handler === "string" ? handler : Object.keys(handler ?? {})[0] ?? "").replaceAll("_", " ");

/** @param {{ origin: any, name: string }} props */
function Blame({ origin, name }) {
  const row = know.rows.find((/** @type {any} */ one) => one.version === origin.version);
  const found = writer(row, name);
  const tool = origin.tool ?? origin.node ?? found?.name;
  const several = [...new Set(row ? outcomes(row).map((outcome) => outcome.name) : [])].join(" or ");
  const by = tool ? `${tool}${(origin.call_id ?? found?.call_id) ? ` (${origin.call_id ?? found?.call_id})` : ""}` : several || (row ? kindWord(row) : "");
  useEffect(() => {
    if (row?.is_brief) fill(know.rows.indexOf(row), know.rows.indexOf(row) + 1);
  }, [row]);
  return html`<button type="button" class="link" onClick=${() => { step(origin.version); go({ panel: "step" }, true); }}>v${origin.version}${by && ` · ${by}`}</button>
    <span> · ${name0(origin.handler) || "removed"}${origin.writes > 1 ? ` · ${origin.writes} writes` : ""}</span>`;
}

/** Every write of a key until the version. @param {{ name: string }} props */
function History({ name }) {
  const at = lookedAt();
  useEffect(() => {
    readHistory(name, at);
  }, [name, at, know.version]);
  const told = know.history?.key === name && know.history.writes;
  const writes = told || know.rows.filter((/** @type {any} */ row) => row.visible && row.version <= at).flatMap((/** @type {any} */ row) =>
    (row.writes ?? []).filter((/** @type {any} */ write) => write.key === name).map((/** @type {any} */ write) => ({ ...write, version: row.version, tool: writer(row, name)?.name })));
  if (!writes.length) return html`<p class="quiet">No write in the versions that are kept.</p>`;
  return html`<ol class="history" aria-label=${`Writes of ${name}`}>${writes.slice(-200).reverse().map((/** @type {any} */ write) => html`<li>
    <button type="button" class="link" onClick=${() => step(write.version)}>v${write.version}</button>
    <span class="quiet"> ${write.tool ?? write.node ?? ""} ${name0(write.handler)} </span><${Value} value=${write.value} most=${300} /></li>`)}</ol>`;
}

function Step() {
  const at = lookedAt();
  const index = know.rows.findIndex((/** @type {any} */ one) => one.version === at);
  const row = know.rows[index];
  useEffect(() => {
    if (row?.is_brief) fill(index, index + 1);
  }, [row]);
  if (!row) return html`<p class="quiet">This version has no commit of its own.</p>`;
  const said = text(row);
  const us = took(know.rows, index);
  const facts = [["kind", row.kind], ["by", row.author], ["when", moment(row.at)], ["took", duration(us)], ["in the run for", duration(row.elapsed_us)],
    ["model", row.model], ["tokens", row.usage && `${count(row.usage.input_tokens)} in, ${count(row.usage.output_tokens)} out${row.usage.cached_input_tokens ? `, ${count(row.usage.cached_input_tokens)} cached` : ""}`],
    ["decided by", row.decided_by], ["exit", row.exit && exitWord(row.exit)], ["inside of", row.path?.map((/** @type {any} */ item) => item.name).join(" › ")], ["run", row.invocation]];
  return html`<div class="step">
    <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    ${said && html`<${Prose} text=${said} />`}
    ${calls(row).map((call) => html`<${Call} call=${call} />`)}
    ${outcomes(row).map((outcome) => html`<${Outcome} outcome=${outcome} />`)}
    ${(row.decisions ?? []).map((/** @type {any} */ decision) => html`<div class="call"><h3>decision ${decision.call_id}</h3><${Value} value=${decision.decision} /></div>`)}
    ${(row.writes ?? []).length > 0 && html`<h3>Writes</h3><ul class="writes">${row.writes.map((/** @type {any} */ write) => html`<li>
      <button type="button" class="link" onClick=${() => go({ panel: "state", key: write.key }, true)}>${write.key}</button><span class="quiet"> ${name0(write.handler) || "removed"} </span><${Value} value=${write.value} most=${600} /></li>`)}</ul>`}
  </div>`;
}

/** @param {{ call: any }} props */
function Call({ call }) {
  return html`<div class="call"><h3><b>${call.name}</b> <span class="quiet">${call.id}${call.effect ? ` · ${call.effect.replaceAll("_", "-")}` : ""}${call.needs_approval ? " · asks first" : ""}</span></h3>
    <${Value} value=${call.arguments} /></div>`;
}

/** @param {{ outcome: any }} props */
function Outcome({ outcome }) {
  const more = [outcome.call_id, outcome.status !== "done" && outcome.status, duration(outcome.elapsed_us), outcome.attempts > 1 && `${outcome.attempts} attempts`];
  return html`<div class=${`call ${outcome.status}`}><h3><b>${outcome.name}</b> <span class="quiet">${more.filter(Boolean).join(" · ")}</span></h3>
    <${Value} value=${outcome.error ?? outcome.result} /></div>`;
}
export { args };
