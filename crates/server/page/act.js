// What a person does: write, and the dialogs of what changes a session.
// @ts-check
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import * as store from "./store.js";
import { typed } from "./json.js";
import { know, lookedAt } from "./store.js";
import { callText, reason } from "./rows.js";
import { Raise } from "./spend.js";
import { cut, editable } from "./text.js";

/** Whether the run is unfinished and requires no decision. */
export const isStopped = () => know.detail?.unfinished && !know.detail.running && !know.detail.pending?.length && !know.detail.invalid;

/** Why a run cannot be restored, and the ways on. @param {{ why: string }} props */
export function Invalid({ why }) {
  const [, version, reason = why] = /cannot be restored at version (\d+): (.*)/s.exec(why) ?? [];
  const before = Number(version ?? 0) - 1;
  return html`<div class="banner"><p><span class="wrong">The last run cannot continue: ${version && `v${version} does not fit, `}${cut(reason, 300)}.</span></p>
    <p>${before > 0 && html`<button type="button" class="link" onClick=${() => store.step(before)}>Go to v${before}</button> to fork or rewind there, or `}<button type="button" class="link" onClick=${() => open("abandon")}>${before > 0 ? "end" : "End"} the run…</button></p></div>`;
}

/** Where a run stopped, and what Resume does. */
export function Stopped() {
  const open = store.openCalls();
  const [first] = open;
  useEffect(() => void (first && store.fill(store.placeOf(first.version), know.rows.length)), [first?.version, know.rows.length]);
  const last = know.rows.at(-1);
  // A brief row has its beginning only.
  useEffect(() => void (last?.failure && store.fill(know.rows.length - 1, know.rows.length)), [last]);
  const { budget } = know.detail ?? {};
  if (budget) return html`The run waits: <span dir="auto">${budget.text}</span>. Resume tries again. <${Raise} budget=${budget} session=${know.view.session} done=${store.readDetail} />`;
  if (last?.failure) return html`The run failed: <span class="wrong" dir="auto">${cut(reason(last.failure), 300)}</span> Resume tries again.`;
  const calls = cut(open.map(callText).join(", "), 120);
  const before = html`<code>${calls}</code>${calls.endsWith("…") ? "" : "."}`;
  if (!open.length) return "Stopped before a model request. Resume sends it.";
  const isPaused = know.detail && store.statusOf({ ...know.detail, version: know.version }) === "paused";
  if (isPaused || ["rewind", "edited"].includes(know.rows.at(-1)?.kind ?? "")) return html`Stopped before ${before} Resume runs ${open.length > 1 ? "them" : "it"}.`;
  const effects = [...new Set(open.map((call) => store.effectOf(call.name)))];
  return html`Interrupted during ${before} ${effects.includes("at_most_once") ? "Resume asks what happened if a call was started." : `Resume runs ${open.length > 1 ? "them" : "it"} again${effects.every((effect) => effect === "pure") ? " (read-only)" : ""}.`}`;
}

/** The session that was just created: its composer has the focus once the dialog is closed, which gives the focus back. */
let created = "";

/** Where a message is written. With a run at work, it steers it. */
export function Composer() {
  const [text, setText] = useState("");
  const box = useRef();
  useEffect(() => {
    if (!created || created !== know.view.session || know.dialog) return;
    created = "";
    box.current.focus();
  });
  const isRunning = !!know.detail?.running;
  const isWaiting = (know.detail?.pending ?? []).length > 0;
  const isPast = know.view.at !== undefined;
  const send = async () => {
    if (!text.trim()) return;
    const said = text;
    setText("");
    store.go({ at: undefined }, true);
    if (!(await store.send(said))) setText(said);
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <textarea id="composer" dir="auto" ref=${box} rows="1" aria-label="Message" placeholder=${isPast ? `Viewing v${lookedAt()}. A message goes to v${know.version}; fork to continue from here` : know.detail?.invalid ? "Message (after the run is ended, or rewound)" : isWaiting ? "Message (queued until the call is decided)" : isRunning ? "Steer the run…" : isStopped() ? "Message (after the open run, which is resumed)" : "Message"} value=${text}
      onInput=${(event) => setText(event.currentTarget.value)}
      onKeyDown=${(event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          send();
        }
      }}></textarea>
    ${isRunning && html`<button type="button" onClick=${store.cancel}>Cancel the run</button>`}
    <button class="main" disabled=${!text.trim()}>${isRunning ? "Steer" : "Send"}</button>
    ${know.detail?.inbox.map((one) => html`<p class="quiet hint">Queued, ${one.joins && isRunning ? "for the next model request" : "for the next run"}: <bdi>${cut(one.text, 80)}</bdi> <button type="button" class="link" onClick=${() => store.withdraw(one.invocation)}>Withdraw</button></p>`)}
  </form>`;
}

/** Opens a dialog. @param {string} name @param {import("./types").Know["about"]} [about] */
export const open = (name, about) => {
  if (name === "new" && !know.app) return;
  Object.assign(know, { dialog: name, about });
  store.changed();
};
const close = () => open("");

/** Whether the person may do more than read. */
const mayAct = () => !!know.me && know.me.role !== "read";

/** What can be done with the session at the version that is looked at. */
export function Actions() {
  const { detail } = know;
  const menu = useRef();
  /** @param {() => void} what */
  const pick = (what) => () => {
    fold();
    what();
  };
  // The focus stays with what is still there: a dialog gives it back to it.
  const fold = () => {
    menu.current?.removeAttribute("open");
    menu.current?.firstElementChild.focus();
  };
  return html`<div class="actions">
    ${isStopped() && html`<button type="button" class="main" onClick=${store.resume}>Resume</button>`}
    <button type="button" onClick=${() => open("fork")} title="f">Fork here</button>
    <button type="button" onClick=${() => open("rewind")} title="r" disabled=${lookedAt() === know.version}>Rewind here</button>
    <details class="menu" ref=${menu} onKeyDown=${(event) => event.key === "Escape" && menu.current?.open && fold()}><summary aria-label="More actions">More</summary><div>
      <button type="button" onClick=${pick(() => open("name"))}>Name this version</button>
      <button type="button" onClick=${pick(() => open("edit"))}>Edit a value</button>
      <button type="button" onClick=${pick(() => open("results"))}>Edit a result</button>
      <button type="button" onClick=${pick(() => open("compare"))}>Compare with…</button>
      <button type="button" onClick=${pick(store.checkReplay)}>Check replay</button>
      <button type="button" onClick=${pick(() => store.download("json"))}>Export as JSON</button>
      <button type="button" onClick=${pick(() => store.download("test"))}>Export as a test</button>
      ${mayAct() && html`<button type="button" onClick=${pick(() => open("case"))}>Add to a data set</button>`}
      ${detail?.unfinished && !detail.running && html`<button type="button" onClick=${pick(() => open("abandon"))}>End the run</button>`}
      <button type="button" class="danger" onClick=${pick(() => open("delete"))}>Delete</button>
    </div></details>
  </div>`;
}

/** @param {{ title: string, children?: any }} props */
function Dialog({ title, children }) {
  const box = useRef();
  useLayoutEffect(() => {
    const element = box.current;
    element.showModal();
    return () => element.close();
  }, []);
  // Not by the dialog's own `close` event: it comes later, when the next dialog may be open.
  const cancel = (/** @type {Event} */ event) => {
    event.preventDefault();
    close();
  };
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onCancel=${cancel} onKeyDown=${(event) => event.key === "Escape" && cancel(event)}>
    <h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

/** A form of a dialog, which may have a second button that does it in another way. @param {{ title: string, word: string, other?: string, submit: (isOther: boolean) => Promise<any>, wrong?: string, isDanger?: boolean, cancel?: string, children?: any }} props */
function Ask({ title, word, other, submit, wrong, isDanger, cancel = "Cancel", children }) {
  const [fault, setFault] = useState("");
  return html`<${Dialog} title=${title}><form onSubmit=${async (event) => {
    event.preventDefault();
    const dialog = know.dialog;
    if (wrong) return;
    const done = await submit(event.submitter?.name === "other");
    if (know.dialog !== dialog) return;
    if (done) close();
    else setFault(store.takeNote());
  }}>${children}
    ${(wrong?.trim() || fault) && html`<p class="wrong" role="alert">${wrong?.trim() || fault}</p>`}
    <div class="buttons"><button class=${isDanger ? "main danger" : "main"} disabled=${!!wrong}>${word}</button>${other && html`<button name="other" disabled=${!!wrong}>${other}</button>`}<button type="button" onClick=${close}>${cancel}</button></div></form><//>`;
}

export function Dialogs() {
  switch (know.dialog) {
    case "fork": return html`<${Fork} />`;
    case "rewind": return html`<${Ask} title=${`Rewind to v${lookedAt()}`} word="Rewind" submit=${() => store.rewind(lookedAt())}>
      <p>The session continues from there. Later versions stay in the timeline, marked as rewound.${store.rowAt()?.exit ? "" : ` The run that is open at v${lookedAt()} is not continued: fork to continue it.`}</p><//>`;
    case "abandon": return html`<${Ask} title="End the run" word="End it" submit=${store.abandon}><p>Calls that wait are not made. The session stays, and takes messages.</p><//>`;
    case "name": return html`<${Names} />`;
    case "new": return html`<${Fresh} />`;
    case "delete": return html`<${Delete} />`;
    case "edit": return html`<${Edit} />`;
    case "results": return html`<${EditResult} />`;
    case "arguments": return html`<${OtherArguments} />`;
    case "compare": return html`<${Choose} />`;
    case "case": return html`<${AddCase} />`;
    case "help": return html`<${Help} />`;
    default: return null;
  }
}

/** @param {{ label: string, value: string, set: (value: string) => void, hint?: string, rows?: number }} props */
function Field({ label, value, set, hint, rows }) {
  const onInput = (/** @type {any} */ event) => set(event.currentTarget.value);
  const id = hint && `hint-${label.split(" ")[0]}`;
  return html`<div class="field"><label>${label}${rows ? html`<textarea class="code" dir="auto" rows=${rows} spellcheck="false" aria-describedby=${id} value=${value} onInput=${onInput}></textarea>` : html`<input dir="auto" value=${value} aria-describedby=${id} onInput=${onInput} spellcheck="false" />`}</label>
    ${hint && html`<span class="quiet" id=${id}>${hint}</span>`}</div>`;
}

function Fork() {
  const at = lookedAt();
  const isOpen = at > 0 && (at === know.version ? know.detail?.unfinished : !store.rowAt(at)?.exit);
  const [id, setId] = useState(() => store.forkName(at));
  const [set, setSet] = useState("");
  const { value, wrong } = set.trim() ? typed(set) : { value: undefined, wrong: "" };
  return html`<${Ask} title=${`Fork at v${at}`} word="Fork" other=${isOpen && "Fork and run"} wrong=${wrong} submit=${(run) => store.fork(at, id, { set: value, run })}>
    <p>A new session that shares the history up to v${at}. Finished calls are not run again.${isOpen && " Its open run waits for Resume, or runs at once."}</p>
    <${Field} label="Name" value=${id} set=${setId} />
    <${Field} label="State changes (JSON, optional)" rows=${3} value=${set} set=${setSet} hint='For example {"counted": 10}' /><//>`;
}

/** A fork in which a call runs with other arguments. */
function OtherArguments() {
  const { version = 0, call = { id: "", name: "", arguments: {} } } = know.about ?? {};
  const [id, setId] = useState(() => store.forkName(version, `-${call.id}`));
  const [text, setText] = useState(editable(call.arguments));
  const { value, wrong } = typed(text);
  return html`<${Ask} title=${`Fork with other arguments of ${call.name}`} word="Fork" other="Fork and run" wrong=${wrong} submit=${(run) => store.fork(version, id, { arguments: { [call.id]: value }, run })}>
    <p>A new session at v${version}, before the call ran. Resume, or <b>Fork and run</b>, runs it with these arguments; the model is told that they were changed.</p>
    <${Field} label="Name" value=${id} set=${setId} />
    <${Field} label="Arguments (JSON)" rows=${5} value=${text} set=${setText} /><//>`;
}

/** The names of versions. */
function Names() {
  const at = lookedAt();
  const [label, setLabel] = useState("");
  return html`<${Ask} title=${`Name v${at}`} word="Save" cancel="Close" wrong=${label.trim() ? "" : " "} submit=${() => store.nameVersion(label.trim(), at)}>
    <${Field} label="Name" value=${label} set=${setLabel} hint=${`For example: before the payment. An existing name is moved to v${at}.`} />
    ${know.labels.length > 0 && html`<ul class="names">${know.labels.map((one) => html`<li><button type="button" class="link" onClick=${() => { close(); store.step(one.version); }}>v${one.version} ${one.label}</button>
      <button type="button" class="link danger" aria-label=${`Remove the name ${one.label}`} onClick=${() => store.removeName(one.label)}>Remove</button></li>`)}</ul>`}<//>`;
}

function Fresh() {
  const [id, setId] = useState("");
  const [file, setFile] = useState(/** @type {File | undefined} */ (undefined));
  const [values, setValues] = useState("");
  const { value, wrong } = values.trim() ? typed(values) : { value: undefined, wrong: "" };
  return html`<${Ask} title="New session" word="Create" wrong=${wrong} submit=${async () => {
    const made = await (file ? store.importFile(file, id.trim()) : store.create(id.trim(), value));
    if (made && !file) created = made.id;
    return made;
  }}>
    <${Field} label="Name" value=${id} set=${setId} hint="Random if empty" />
    <${Field} label="Initial state (JSON, optional)" rows=${2} value=${values} set=${setValues} />
    <label>Import from an exported session<input type="file" accept=".json,application/json" onChange=${(event) => setFile(event.currentTarget.files[0])} /></label><//>`;
}

function Delete() {
  const [name, setName] = useState("");
  const wrong = name === know.view.session ? "" : " ";
  return html`<${Ask} title="Delete the session" word="Delete" isDanger wrong=${wrong} submit=${async () => { await store.remove(); return true; }}>
    <p>The session <b>${know.view.session}</b> and its ${know.version} commits are deleted for good.</p>
    <${Field} label="Name of the session" value=${name} set=${setName} hint="Type the name to delete it." /><//>`;
}

/** A value: here if nothing was done after it, in a fork otherwise. */
function Edit() {
  const at = lookedAt();
  const values = know.states.get(at)?.values ?? {};
  const [key, setKey] = useState(know.view.key ?? Object.keys(values)[0] ?? "");
  const [text, setText] = useState(editable(values[key] ?? null));
  const { value, wrong } = typed(text);
  const isHere = at === know.version && !know.detail?.running;
  const [name] = useState(() => store.forkName(at, "-edited"));
  return html`<${Ask} title="Edit a value" word=${isHere ? "Write" : "Write in a fork"} wrong=${wrong}
    submit=${() => (isHere ? store.edit({ [key]: value }) : store.fork(at, name, { set: { [key]: value } }))}>
    <p>${isHere ? "The write is a commit of its own." : `v${at} is not the newest version: the fork ${name} gets the value.`}</p>
    <label>Key<select value=${key} onChange=${(event) => {
      setKey(event.currentTarget.value);
      setText(editable(values[event.currentTarget.value] ?? null));
    }}>${Object.keys(values).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
    <${Field} label="Value (JSON)" rows=${5} value=${text} set=${setText} /><//>`;
}

function EditResult() {
  const at = lookedAt();
  const rows = know.rows.filter((row) => row.version <= at && row.visible);
  const results = rows.flatMap((row) => (row.outcomes ?? []).filter((one) => one.kind === "tool").map((one) => ({ ...one, row }))).reverse();
  const [call, setCall] = useState(results[0]?.call_id ?? "");
  const found = results.find((one) => one.call_id === call);
  // What was typed, and before that the result: of a brief row it is read first.
  const [changed, setChanged] = useState(/** @type {string | null} */ (null));
  const isRead = !found?.row.is_brief;
  useEffect(() => {
    const place = store.placeOf(found?.row.version ?? 0);
    if (!isRead) store.fill(place, place + 1);
  }, [call, isRead]);
  const text = changed ?? editable(found?.result ?? "");
  const { value, wrong } = isRead ? typed(text) : { value: undefined, wrong: " " };
  const isHere = at === know.version && know.detail?.unfinished && !know.detail?.running;
  const [name] = useState(() => store.forkName(at, "-edited"));
  return html`<${Ask} title="Edit a recorded result" word=${isHere ? "Write" : "Write in a fork"} wrong=${call ? wrong : "No call has a result yet."}
    submit=${() => (isHere ? store.editResults({ [call]: value }) : store.fork(at, name, { results: { [call]: value } }))}>
    <p>The model reads the new result from then on; the call is not made again.</p>
    <label>Call<select value=${call} onChange=${(event) => {
      setCall(event.currentTarget.value);
      setChanged(null);
    }}>${results.slice(0, 200).map((one) => html`<option value=${one.call_id}>${one.name} (${one.call_id})</option>`)}</select></label>
    ${isRead ? html`<${Field} label="Result (JSON)" rows=${5} value=${text} set=${setChanged} />` : html`<p class="quiet">…</p>`}<//>`;
}

/** The data set that was added to last. */
let lastDataSet = "";

/** The turn as a case of experiments. */
function AddCase() {
  const at = lookedAt();
  const [name, setName] = useState(lastDataSet);
  const dataSet = name.trim();
  return html`<${Ask} title="Add to a data set" word="Add" wrong=${dataSet ? "" : " "} submit=${async () => {
    const isAdded = await store.addCase(dataSet, at);
    if (isAdded) lastDataSet = dataSet;
    return isAdded;
  }}>
    <p>The turn at v${at} becomes a case, with its messages, calls and values. Experiments try changed agents with it.</p>
    <${Field} label="Data set" value=${name} set=${setName} hint="Yours; created if it is new. Letters, digits, - _ and ." /><//>`;
}

function Choose() {
  const others = know.sessions.filter((one) => one.id !== know.view.session);
  const kin = (/** @type {import("./types").SessionRow} */ one) => (one.id === know.detail?.parent?.id ? 2 : Number(one.parent && [know.view.session, know.detail?.parent?.id].includes(one.parent.id)));
  return html`<${Dialog} title="Compare with"><p class="quiet">Sessions with a shared history come first.</p>
    <div class="choices">${[...others].sort((a, b) => kin(b) - kin(a)).slice(0, 50).map((one) => html`<button type="button" onClick=${() => {
      close();
      store.go({ tab: "compare", compare: one.id });
    }}>${one.id} <span class="quiet">v${one.version} · ${one.parent ? `fork of ${one.parent.id}` : one.title}</span></button>`)}</div>
    ${!others.length && html`<p>There is no other session: fork this one first.</p>`}
    <div class="buttons"><button type="button" onClick=${close}>Close</button></div><//>`;
}

const KEYS = [["← →", "previous and next step"], ["[ ]", "previous and next question"], ["↑ ↓ j k", "move in the timeline"], ["End", "newest version (live)"],
  ["Enter", "expand or collapse a step"], ["1 – 6", "switch views"], ["s", "toggle State and Step"], ["f", "fork here"], ["r", "rewind here"], ["e", "edit a value"], ["l", "name this version"],
  ["c", "write a message"], ["a", "go to pending approvals"], ["/", "search sessions"], ["n", "new session"], ["?", "this help"]];

function Help() {
  return html`<${Dialog} title="Keyboard shortcuts"><dl class="facts keys">${KEYS.map(([keys, words]) => html`<dt><kbd>${keys}</kbd></dt><dd>${words}</dd>`)}</dl>
    <div class="buttons"><button type="button" class="main" onClick=${close}>Close</button></div><//>`;
}
