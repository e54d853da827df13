// The state at the version that is looked at: what the step changed, and which call gave each value. And the step itself.
// @ts-check
import { html, useEffect } from "./html.js";
import { callOf, effectOf, fill, go, know, lookedAt, placeOf, readHistory, rowAt, step } from "./store.js";
import { decided, exitWord, kindWord, line, nameOf, reason, tally, text, wordOf } from "./rows.js";
import { open } from "./act.js";
import { count, duration, moment, Prose, same, Value, words } from "./text.js";

export function Inspector() {
  const { panel } = know.view;
  return html`<section class="inspector" aria-label="Inspector">
    <div class="tabs" role="tablist" aria-label="What is inspected">
      ${[["state", "State"], ["step", "Step"]].map(([name, word]) => html`<button role="tab" id=${`tab-${name}`} aria-controls="inspected"
        aria-selected=${panel === name} tabindex=${panel === name ? 0 : -1} onClick=${() => go({ panel: name }, true)} onKeyDown=${(event) => {
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
  const elsewhere = now.changed_elsewhere?.[name];
  const last = origin ?? elsewhere;
  const scope = scopeOf(name, last);
  const isShared = scope === "user" || scope === "app";
  const isChanged = before && !before.error && (isShared ? last?.version === now.version : !same(value, before.values[name]));
  const isOpen = know.view.key === name;
  const toggle = () => go({ key: isOpen ? undefined : name }, true);
  const handler = last?.handler ?? know.app?.schema?.keys?.[name]?.handler;
  return html`<div class=${`entry${isChanged ? " changed" : ""}`}>
    <dt><button class="key" aria-expanded=${isOpen} title=${know.app?.schema?.keys?.[name]?.description ?? ""}
      onClick=${toggle}>${name}</button>
      ${isShared && html`<span class="tag" title="Shared with other sessions: the value as it is now, not at this version">${scope} scope · current value</span>`}</dt>
    <dd>${isChanged && !isShared && html`<span class="before"><${Value} value=${before.values[name]} most=${600} /></span><span aria-label="becomes" class="arrow"> → </span>`}<${Value} value=${value} most=${isOpen ? 20_000 : 600} /></dd>
    <dd class="blame">${last ? html`${elsewhere && html`<span title="By another session, or a step that is later or was rewound">changed elsewhere too · last here: </span>`}<${Blame} origin=${last} open=${toggle} />` : html`<span>${isShared ? `not written by a step up to v${now.version}` : "default value"}${handler && ` · merged by ${handlerWord(handler)}`}</span>`}</dd>
    ${isOpen && html`<dd><${History} name=${name} /></dd>`}
  </div>`;
}

/** @param {any} handler */
const handlerWord = (handler) => words(typeof handler === "string" ? handler : Object.keys(handler ?? {})[0] ?? "");

/** The call or branch that wrote. @param {import("./types").Write | import("./types").Origin} write */
const by = (write) => {
  const name = write.tool ?? write.node;
  return name && `${name}${write.call_id && !write.call_id.startsWith(name) ? ` (${write.call_id})` : ""}`;
};

/** @param {{ origin: import("./types").Origin, open: () => void }} props */
const Blame = ({ origin, open }) => html`<button class="link" onClick=${() => { step(origin.version); go({ panel: "step" }, true); }}>v${origin.version} · ${by(origin) ?? wordOf(origin.kind)}</button>
  <span> · ${origin.handler ? words(origin.handler) : "removed"}${origin.writes > 1 && html` · <button class="link" onClick=${open}>${origin.writes} writes</button>`}</span>`;

/** Every write of a key until the version. @param {{ name: string }} props */
function History({ name }) {
  const at = lookedAt();
  useEffect(() => void readHistory(name, at), [name, at]);
  const { history } = know;
  if (history?.key !== name || !history.writes) return html`<p class="quiet">…</p>`;
  if (!history.writes.length) return html`<p class="quiet">No write in the versions that are kept.</p>`;
  return html`<ol class="history" aria-label=${`Writes of ${name}`}>${history.writes.slice(-200).reverse().map((write) => html`<li>
    <button class="link" onClick=${() => step(write.version)}>v${write.version}</button>
    <span class="quiet"> ${by(write) ?? wordOf(write.kind)} · ${write.handler ? words(write.handler) : "removed"} </span>
    ${"after" in write ? html`<span class="before"><${Value} value=${write.before} most=${200} /> → </span><${Value} value=${write.after} most=${300} />` : html`<${Value} value=${write.value} most=${300} />`}</li>`)}</ol>`;
}

function Step() {
  const at = lookedAt();
  const row = rowAt(at);
  useEffect(() => {
    if (row?.is_brief) fill(placeOf(at), placeOf(at) + 1);
  }, [row]);
  if (!row) return html`<p class="quiet">This version has no commit of its own.</p>`;
  const said = text(row);
  const { usage } = row;
  const find = (/** @type {string} */ id) => callOf(id, placeOf(at));
  const group = (/** @type {string} */ what, /** @type {{ name: string }[] | undefined} */ all) => [what, all && all.length > 1 && `${all.length}: ${tally(all.map((one) => one.name))}`];
  const facts = [["kind", kindWord(row) === row.kind ? row.kind : `${kindWord(row)} (API: ${row.kind})`], ["by", row.decided_by ?? row.author], ["when", moment(row.at)], ["duration", duration(row.latency_us)], ["since run start", duration(row.elapsed_us)],
    ["model", row.model], ["tokens", usage && `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out${usage.cached_input_tokens ? `, ${count(usage.cached_input_tokens)} cached` : ""}`],
    ["hook", row.hook && line(row)], group("calls", row.calls), group("results", row.outcomes), group("branches", row.planned), ["run ended by", row.exit && exitWord(row.exit)], ["inside of", row.path?.map((item) => item.name).join(" › ")], ["run", row.invocation]];
  return html`<div class="step">
    <dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd dir="auto">${value}</dd>`)}</dl>
    ${row.failure && html`<p class="wrong" dir="auto">${reason(row.failure)}</p>`}
    ${said && html`<${Prose} text=${said} />`}
    ${row.summary && html`<div class="call"><h3><b>summary</b></h3><${Prose} text=${row.summary} /></div>`}
    ${row.asked?.map(({ call, message }) => html`<${Call} call=${call} of=${row} />${message && html`<p dir="auto">${message}</p>`}`)}
    ${row.calls?.filter((call) => !row.asked?.some((request) => request.call.id === call.id)).map((call) => html`<${Call} call=${call} of=${row} />`)}
    ${row.outcomes?.map((outcome) => html`<${Outcome} outcome=${outcome} />`)}
    ${row.outcomes?.some((one) => one.kind === "tool") && html`<button class="link" onClick=${() => open("results")}>Edit a result…</button>`}
    ${row.decisions?.map((one) => html`<div class="call"><h3><b>decision</b> <span class="quiet">${nameOf(one.request).replaceAll("/", " › ")}</span></h3><p dir="auto">${decided(one, find)}</p></div>`)}
    ${Object.entries(row.edited?.arguments ?? {}).map(([call, given]) => html`<div class="call"><h3><b>${find(call)?.name}</b> <span class="quiet">${call} · new arguments</span></h3><${Value} value=${given} /></div>`)}
    ${Object.entries(row.edited?.results ?? {}).map(([call, result]) => html`<div class="call"><h3><b>new result</b> <span class="quiet">${call}</span></h3><${Value} value=${result} /></div>`)}
    ${row.writes?.length > 0 && html`<h3>Writes</h3><ul class="writes">${row.writes.map((write) => html`<li>
      <button class="link" onClick=${() => go({ panel: "state", key: write.key }, true)}>${write.key}</button><span class="quiet"> ${write.handler ? words(write.handler) : "removed"} </span><${Value} value=${write.value} most=${600} /></li>`)}</ul>`}
  </div>`;
}

/** @param {{ call: import("./types").Call, of: import("./types").Row }} props */
function Call({ call, of }) {
  const isAsked = of.asked?.some((request) => request.call.id === call.id);
  return html`<div class="call"><h3><b>${call.name}</b> <span class="quiet">${[call.id, effectOf(call.name) && words(effectOf(call.name) ?? ""), isAsked && "requires approval"].filter(Boolean).join(" · ")}</span></h3>
    <p class="quiet">arguments</p><${Value} value=${call.arguments} /><${Again} call=${call} of=${of} /></div>`;
}

/** Leads to a fork from before a call: with other arguments, or where it is decided about. @param {{ call: import("./types").Call, of: import("./types").Row }} props */
function Again({ call, of }) {
  if (of.path?.length) return null;
  const isAsked = of.asked?.some((request) => request.call.id === call.id);
  return html`<p><button class="link" onClick=${() => (isAsked ? [step(of.version), open("fork")] : open("arguments", { version: of.version, call }))}>${isAsked ? "Fork to decide again…" : "Fork with other arguments…"}</button></p>`;
}

/** @param {{ outcome: import("./types").Outcome }} props */
function Outcome({ outcome }) {
  const call = callOf(outcome.call_id, placeOf(lookedAt()));
  const more = [outcome.call_id, outcome.status !== "done" && outcome.status, duration(outcome.elapsed_us), outcome.attempts > 1 && `${outcome.attempts} attempts`];
  return html`<div class=${`call ${outcome.status}`}><h3><b>${outcome.name}</b> <span class="quiet">${more.filter(Boolean).join(" · ")}</span></h3>
    ${call && html`<p class="quiet">arguments</p><${Value} value=${call.arguments} /><${Again} call=${call} of=${call.row} />`}
    <p class="quiet">result</p><${Value} value=${outcome.error ?? outcome.result} /></div>`;
}
