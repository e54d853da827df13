// What waits for a person: exactly what runs if it is approved. No field is hidden; what is long is folded, and read before it is approved.
// @ts-check
import { allVisible, html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { Exact, isNested, typed, write } from "./json.js";
import { Invalid, isStopped, Stopped } from "./act.js";
import { nameOf } from "./rows.js";
import { know, decide as send, readValue, takeNote } from "./store.js";
import { count, editable, escaped, isolated, laid } from "./text.js";

/** A longer text is folded. */
const LONG = 400;
/** So much of it is shown. */
const BEGINNING = 160;
/** Of a longer list, the first items are shown. */
const MANY = 60;

/** What of a request is folded, and what has been opened. @typedef {{ folds: number, open: Set<string>, isUnread: boolean }} Reading */

/** A value in pieces: text, and what is folded in it. No field of an object is folded. @param {any} value
 * @returns {(string | { begins: string, whole: any, words: string })[]} */
export function pieces(value) {
  /** @type {{ begins: string, whole: any, words: string }[]} */
  const folds = [];
  // JSON has no control characters outside of escapes: this one marks a place, too long for a line with other fields.
  const fold = (/** @type {any} */ one) => new Exact(`\u0001${String(folds.push(one) - 1).padStart(60, "0")}\u0001`);
  /** @param {any} one @returns {any} */
  const folded = (one) => {
    if (typeof one === "string" && one.length > LONG) return fold({ begins: `${write(one.slice(0, BEGINNING)).slice(0, -1)}…`, whole: one, words: `${count(one.length)} characters` });
    if (!isNested(one)) return one;
    if (!Array.isArray(one)) return Object.fromEntries(Object.entries(one).map(([key, field]) => [key, folded(field)]));
    const rest = one.length > MANY ? one.slice(MANY / 3) : [];
    const shown = one.slice(0, one.length - rest.length).map(folded);
    return rest.length ? [...shown, fold({ begins: "…", whole: rest, words: `${count(rest.length)} more items, ${count(write(rest).length)} characters` })] : shown;
  };
  return laid(folded(value), "").split("\u0001").map((text, at) => (at % 2 ? folds[Number(text)] : text)).filter((piece) => piece !== "");
}

/** A value in which long parts are opened one by one. @param {{ value: any, name: string, reading: Reading, open: (fold: string) => void }} props */
function Folded({ value, name, reading, open }) {
  let at = 0;
  return html`<code class="value" dir="ltr">${pieces(value).map((piece) => {
    if (typeof piece === "string") return isolated(escaped(piece));
    const fold = `${name}${(at += 1)}`;
    return html`<${Fold} piece=${piece} isOpen=${reading.open.has(fold)} open=${() => open(fold)} />`;
  })}</code>`;
}

/** @param {{ piece: { begins: string, whole: any, words: string }, isOpen: boolean, open: () => void }} props */
function Fold({ piece, isOpen, open }) {
  const opened = useRef();
  // Where the button was that is gone.
  useLayoutEffect(() => opened.current?.focus({ preventScroll: true }), [isOpen]);
  return isOpen ? html`<span class="opened" dir="auto" tabindex="-1" ref=${opened}>${escaped(Array.isArray(piece.whole) ? laid(piece.whole, "").slice(1, -1) : write(piece.whole))}</span>`
  : html`<span class="folded" dir="auto">${escaped(piece.begins)}</span> <button type="button" class="link" onClick=${open}>Read all: ${piece.words}</button>`;
}

/** How much of a request is folded. @param {import("./types").Request} request */
const foldsOf = (request) => pieces(request.call.arguments).filter((piece) => typeof piece !== "string").length
  + (request.inputs_from_state ?? []).reduce((/** @type {number} */ sum, /** @type {any} */ input) => sum + (input.truncated ? 1 : pieces(input.value).filter((piece) => typeof piece !== "string").length), 0);

export function Requests() {
  const requests = (know.detail?.pending ?? []).filter((request) => request.reason !== "later");
  const later = (know.detail?.pending ?? []).length - requests.length;
  const [chosen, choose] = useState(/** @type {Record<string, any>} */ ({}));
  const [opened, setOpened] = useState(/** @type {Record<string, Set<string>>} */ ({}));
  const [unread, setUnread] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [fault, setFault] = useState("");
  const section = useRef();
  const isDeciding = useRef(false);
  // What had the focus is gone with its decision: the next open one has it, or the composer.
  useLayoutEffect(() => {
    if (!isDeciding.current || document.activeElement !== document.body) return;
    isDeciding.current = false;
    const next = section.current?.querySelector(".request form :is(textarea, input), .request:not(.all) .buttons button:enabled, .request:not(.all) button.link");
    (next ?? document.getElementById("composer"))?.focus();
  });
  if (know.detail?.invalid) return html`<${Invalid} why=${know.detail.invalid} />`;
  if (!requests.length && later) return html`<p class="banner">${later} result${later > 1 ? "s" : ""} will come from outside.</p>`;
  if (!requests.length) return isStopped() ? html`<p class="banner"><${Stopped} /></p>` : null;
  /** @param {Record<string, any>} decisions */
  const decide = async (decisions) => {
    const all = { ...chosen, ...decisions };
    isDeciding.current = true;
    choose(all);
    if (requests.every((request) => all[request.id] !== undefined)) {
      const done = await send(Object.fromEntries(requests.map((request) => [request.id, all[request.id]])));
      if (!done) {
        document.getElementById("composer")?.blur();
        isDeciding.current = true;
        choose({});
      }
      setFault(done ? "" : takeNote());
    }
  };
  /** @param {string} id @returns {Reading} */
  const reading = (id) => ({ folds: foldsOf(requests.find((one) => one.id === id) ?? requests[0]), open: opened[id] ?? new Set(), isUnread: !!unread[id] });
  return html`<section class="requests" ref=${section} aria-label="Waits for a decision">
    <h2>${requests.length === 1 ? "One call waits for your decision" : `${requests.length} calls wait for your decisions: they are sent together`}</h2>
    ${requests.map((request) => html`<${Request} key=${request.id} request=${request} chosen=${chosen[request.id]} isOne=${requests.length === 1} reading=${reading(request.id)}
      open=${(/** @type {string} */ fold) => setOpened((all) => ({ ...all, [request.id]: new Set([...(all[request.id] ?? []), fold]) }))}
      skip=${(/** @type {boolean} */ isUnread) => setUnread((all) => ({ ...all, [request.id]: isUnread }))} decide=${(/** @type {any} */ decision) => decide({ [request.id]: decision })} />`)}
    ${requests.length > 1 && html`<${All} requests=${requests.filter(({ id }) => chosen[id] === undefined)} isRest=${requests.some(({ id }) => chosen[id] !== undefined)}
      left=${requests.filter(({ id }) => chosen[id] === undefined && left(reading(id))).length} skip=${() => setUnread(Object.fromEntries(requests.map(({ id }) => [id, true])))}
      decide=${() => decide(Object.fromEntries(requests.map(({ id }) => [id, chosen[id] ?? "approve"])))} />`}
    ${fault && html`<p class="wrong" role="alert">${fault}</p>`}
  </section>`;
}

/** How much was not read. @param {Reading} reading */
const left = ({ folds, open, isUnread }) => (isUnread ? 0 : folds - open.size);

/** Approves all, of which each is named: what they do stands above. @param {{ requests: import("./types").Request[], isRest: boolean, left: number, skip: () => void, decide: () => void }} props */
function All({ requests, isRest, left, skip, decide }) {
  const names = [...new Set(requests.map(({ call }) => call.name))];
  const of = (/** @type {string} */ name) => requests.filter(({ call }) => call.name === name);
  return html`<div class="request all"><p><b>${isRest ? "The others" : "All"}</b>: ${names.map((name) => html`${of(name).length} × <b>${name}</b> <span class="quiet">(${of(name).map(({ id }) => nameOf(id)).join(", ")})</span> `)}</p>
    ${left > 0 && html`<${Skip} words=${`${left} of them ${left > 1 ? "have" : "has"} parts that were not opened.`} isUnread=${false} skip=${skip} />`}
    <div class="buttons"><button type="button" class="main" disabled=${left > 0} onClick=${decide}>Approve ${isRest ? "the others" : `all ${requests.length}`}</button></div></div>`;
}

/** @param {{ words: string, isUnread: boolean, skip: (isUnread: boolean) => void }} props */
const Skip = ({ words, isUnread, skip }) => html`<p class="skipped"><span>${words}</span> <label><input type="checkbox" checked=${isUnread} onChange=${(event) => skip(event.currentTarget.checked)} /> Approve unread</label></p>`;

const WHY = /** @type {Record<string, string>} */ ({
  rule: "the tool requires approval", may_have_happened: "it was started, and may have had its effect", node: "a node asks", input: "it asks for an input",
});

/** @param {{ request: import("./types").Request, chosen: any, isOne: boolean, reading: Reading, open: (fold: string) => void, skip: (isUnread: boolean) => void, decide: (decision: any) => void }} props */
function Request({ request, chosen, isOne, reading, open, skip, decide }) {
  const [mode, setMode] = useState("");
  const [text, setText] = useState("");
  const box = useRef();
  const before = useRef("");
  // Before the next key can be pressed. A form that is closed gives the focus back to the button that opened it.
  useLayoutEffect(() => {
    box.current?.querySelector(mode ? "form :is(textarea, input)" : `[data-opens="${before.current}"]`)?.focus();
    before.current = mode;
  }, [mode]);
  const why = typeof request.reason === "string" ? request.reason : Object.keys(request.reason ?? {})[0] ?? "";
  const { value, wrong } = mode === "change" ? typed(text) : { value: undefined, wrong: "" };
  const id = nameOf(request.id).replaceAll("/", " › ");
  // A node that asks is named once.
  const facts = [id.startsWith(`${request.call.name} › `) ? id.slice(request.call.name.length + 1) : id, WHY[why] ?? why.replaceAll("_", " "), request.times && `the reply makes this call ${request.times} times`, request.deadline && `until ${request.deadline}`];
  return html`<div class="request" ref=${box}>
    <p><b>${allVisible(request.call.name)}</b> <span class="quiet">${facts.filter(Boolean).join(" · ")}</span></p>
    ${request.message && html`<p class="asks" dir="auto">${request.message}</p>`}
    <${Folded} value=${request.call.arguments} name="a" reading=${reading} open=${open} />
    ${request.inputs_from_state?.map((/** @type {any} */ input) => html`<p class="quiet">From the state key <code>${input.key}</code>: <code>${input.parameter}</code> = <${Input} input=${input} reading=${reading} open=${open} /></p>`)}
    ${request.changed ? html`<p>This tool is not as it was approved:</p><pre class="value" dir="auto">${request.changed.split("\n").map(allVisible).join("\n")}</pre>`
    : request.asked_again && html`<p>It was asked about before, with other arguments or values, or as another tool.</p>`}
    ${request.warnings && html`<ul class="wrong">${request.warnings.map((warning) => html`<li>${warning}</li>`)}</ul>`}
    ${chosen !== undefined ? html`<p class="quiet">Chosen: ${typeof chosen === "string" ? chosen : Object.keys(chosen)[0]}</p>`
    : mode === "" ? html`${reading.folds > reading.open.size && html`<${Skip} words=${`${reading.folds - reading.open.size === 1 ? "One part was" : `${reading.folds - reading.open.size} parts were`} not opened.`} isUnread=${reading.isUnread} skip=${skip} />`}<div class="buttons">
      <button type="button" class=${isOne ? "main" : ""} disabled=${left(reading) > 0} onClick=${() => decide("approve")}>Approve</button>
      ${request.can_modify && html`<button type="button" data-opens="change" onClick=${() => { setText(editable(request.call.arguments)); setMode("change"); }}>Edit arguments…</button>`}
      <button type="button" data-opens="reject" onClick=${() => { setText(""); setMode("reject"); }}>Reject…</button></div>`
    : html`<form onKeyDown=${(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        setMode("");
      }} onSubmit=${(event) => {
        event.preventDefault();
        if (!wrong) decide(mode === "change" ? { modify: { arguments: value } } : { reject: { reason: text } });
      }}>
        <label>${mode === "change" ? "Arguments (JSON)" : "Reason (the model sees it)"}
          ${mode === "change" ? html`<textarea rows="5" class="code" dir="auto" spellcheck="false" value=${text} onInput=${(event) => setText(event.currentTarget.value)}></textarea>`
          : html`<input dir="auto" value=${text} onInput=${(event) => setText(event.currentTarget.value)} />`}</label>
        ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
        <div class="buttons"><button class=${mode === "change" ? "main" : "main danger"} disabled=${!!wrong}>${mode === "change" ? "Approve with changes" : "Reject"}</button>
          <button type="button" onClick=${() => setMode("")}>Cancel</button></div></form>`}
  </div>`;
}

/** A value that the state adds. Of a long one only the beginning is in the request: the whole is read when it is opened.
 * @param {{ input: any, reading: Reading, open: (fold: string) => void }} props */
function Input({ input, reading, open }) {
  const [whole, setWhole] = useState(/** @type {any} */ (undefined));
  const fold = `s ${input.parameter} `;
  const isOpen = reading.open.has(`${fold}1`);
  useEffect(() => void (isOpen && input.truncated && readValue(input.key).then(setWhole)), [isOpen, input]);
  if (input.hidden) return html`<span>a value that is never shown (SHA-256 ${input.hidden.sha256})</span>`;
  if (!input.truncated) return html`<${Folded} value=${input.value} name=${fold} reading=${reading} open=${open} />`;
  const { begins, bytes } = input.truncated;
  if (!isOpen) return html`<code class="value" dir="auto">${allVisible(begins)}…</code> <button type="button" class="link" onClick=${() => open(`${fold}1`)}>Read all: ${count(bytes)} bytes</button>`;
  return html`<code class="value" dir="auto">${whole === undefined ? "…" : escaped(laid(whole, ""))}</code>`;
}
