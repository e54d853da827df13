// The page: what is where, and the keys.
// @ts-check
import { html, render, useEffect, useState } from "./html.js";
import * as store from "./store.js";
import { know } from "./store.js";
import { Actions, Composer, Dialogs, open } from "./act.js";
import { Compare } from "./compare.js";
import { Conversation, Seen } from "./conversation.js";
import { Experiments } from "./experiments.js";
import { Graph } from "./graph.js";
import { Inspector } from "./inspector.js";
import { Requests } from "./requests.js";
import { Scrubber } from "./scrubber.js";
import { Sessions } from "./sessions.js";
import { Spend } from "./spend.js";
import { Timeline } from "./timeline.js";
import { Usage } from "./usage.js";

/** @type {[string, string, () => any][]} */
const TABS = [["timeline", "Timeline", Timeline], ["conversation", "Conversation", Conversation], ["model", "Model’s view", Seen], ["graph", "Graph", Graph], ["usage", "Usage", Usage], ["compare", "Compare", Compare]];

/** Those of the app. */
const tabs = () => TABS.filter(([name]) => name !== "graph" || know.app?.has_graph);

const status = () => {
  const { detail } = know;
  if (!detail) return "";
  if (detail.running) return "running";
  if (detail.pending?.length || detail.budget) return "waiting";
  if (detail.status === "invalid") return "invalid";
  const kind = know.rows.at(-1)?.kind ?? "";
  if (!detail.unfinished) return "idle";
  return ["rewind", "edited"].includes(kind) ? "paused" : store.statusOf({ ...detail, status: detail.status === "failed" ? "failed" : "interrupted" });
};

function App() {
  const [, show] = useState(0);
  useEffect(() => store.watch(() => show((times) => times + 1)), []);
  const { view } = know;
  useEffect(() => document.getElementById(`tab-${view.tab}`)?.scrollIntoView({ block: "nearest" }), [view.tab]);
  const why = lost();
  const session = why ? undefined : view.session;
  document.title = session ? `${session} · stepfold studio` : "stepfold studio";
  if (know.locked) return html`<${Locked} />`;
  return html`<div class=${session ? "page with-session" : "page"}>
    ${session && html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); focus(".body [tabindex='0']"); }}>Skip to the session</a>`}
    <header>
      <a class="brand" href="#/" onClick=${(event) => { event.preventDefault(); store.go({ session: undefined }); }}><b>stepfold</b><span class="back">‹ Sessions</span><span class="hidden"> studio: all sessions</span></a>
      ${session && html`<h1 dir="auto">${session}</h1><span class=${`status ${status()}`} role="status">${know.link === "lost" ? "reconnecting…" : status()}</span>${know.detail?.imported && html`<span class="quiet" title=${`Steps up to v${know.detail.imported.version} are what a file says, also of authors and decisions.`}>imported by ${know.detail.imported.by}</span>`}<${Actions} />`}
      <button class="plain help" aria-label="Keyboard shortcuts" onClick=${() => open("help")}>?</button>
    </header>
    <${Sessions} />
    <main>
      ${why ? html`<${Nowhere} why=${why} />` : !session ? (view.spend !== undefined ? html`<${Spend} />` : view.experiment === undefined ? html`<${Welcome} />` : html`<${Experiments} />`)
      : html`<${Scrubber} /><${Requests} />
        <div class="tabs" role="tablist" aria-label="Views">${tabs().map(([name, word]) => html`<button role="tab" id=${`tab-${name}`} aria-controls="main" aria-selected=${view.tab === name} tabindex=${view.tab === name ? 0 : -1}
          onClick=${() => store.go({ tab: name })} onKeyDown=${sideways}>${word}</button>`)}</div>
        <div class="body" role="tabpanel" id="main" aria-labelledby=${`tab-${view.tab}`}>${TABS.map(([name, , View]) => view.tab === name && html`<${View} key=${session} />`)}</div>
        <${Composer} key=${session} />`}
    </main>
    ${session && html`<${Inspector} />`}
    <div class="notes" role="status">${/** @type {const} */ (["trouble", "note"]).map((which) => know[which] && html`<p class=${know[which].bad ? "note bad" : "note"}><span dir="auto">${know[which].text}</span> <button class="link" onClick=${() => { know[which] = null; store.changed(); }}>Close</button></p>`)}</div>
    <${Dialogs} key=${know.dialog} />
  </div>`;
}

const STOPPED = /** @type {Record<string, string>} */ ({
  waiting: "waits for a decision", interrupted: "was interrupted, and can be resumed", paused: "is paused, and can be resumed", failed: "has failed, and can be resumed", invalid: "has an invalid record",
});

/** Why the address leads to nothing. */
function lost() {
  const { view } = know;
  if (view.invalid) return html`The address <code>${view.invalid}</code> is invalid: each <code>%</code> must begin a character in percent encoding.`;
  if (know.ready && view.app && !know.app) return html`There is no agent <code>${view.app}</code>.`;
  return know.isAbsent && html`The session <code>${view.session}</code> of ${view.app} is unknown: it was deleted, has another name, or belongs to another user. Choose one in the list, or create one with New.`;
}

/** @param {{ why: any }} props */
const Nowhere = ({ why }) => html`<div class="empty" role="alert"><h1>Nothing here</h1><p>${why}</p>
  <button class="main" onClick=${() => store.go({ app: know.app?.app ?? know.apps[0]?.app, session: undefined })}>All sessions</button></div>`;

/** Without a session: what there is to do. Without an agent, nothing can be created. */
function Welcome() {
  if (!know.app) return know.ready && html`<div class="empty"><h1>No agent</h1><p>${know.trouble ? "The agents could not be read." : "The server has none for you."}</p><button class="main" onClick=${() => store.enter()}>Try again</button></div>`;
  const stopped = know.apps.flatMap(({ app }) => (know.stopped[app] ?? []).slice(0, 5).map((row) => ({ ...row, app })));
  return html`<div class="empty"><h1>${know.view.app}</h1><${About} />
    <p>A session is a sequence of steps, and every step is kept. Open one and drag the bar above its steps to go back. Each value of the state names the call that wrote it. <b>Fork here</b> continues from any step without repeating finished calls.</p>
    ${stopped.length > 0 && html`<p>${stopped.map((row) => html`<button class="link" onClick=${() => store.go({ app: row.app, session: row.id })}>${row.id}</button>${row.app === know.view.app ? "" : ` of ${row.app}`} ${STOPPED[store.statusOf(row)]}<br />`)}</p>`}
    <button class="main" onClick=${() => open("new")}>New session</button> <button onClick=${() => store.go({ experiment: "" })}>Experiments</button> <button onClick=${() => store.go({ spend: "" })}>Spend</button></div>`;
}

/** What the agent is, and what it works with. */
export function About() {
  const { app } = know;
  const tools = [...(app?.tools ?? []), ...(app?.agents ?? []).flatMap((agent) => agent.tools)];
  const refused = [...(app?.refused_tools ?? []), ...(app?.agents ?? []).flatMap((agent) => agent.refused_tools ?? [])];
  return html`${app?.description && html`<p dir="auto">${app.description}</p>`}<p class="quiet">${[app?.model && `Model: ${app.model}`, tools.length && `Tools: ${[...new Set(tools.map((tool) => tool.name))].join(", ")}`].filter(Boolean).join(" · ")}</p>${refused.map((one) => html`<p class="quiet">Not offered: <b>${one.tool}</b> of ${one.toolset}: ${one.reason}</p>`)}`;
}

/** @param {string} where */
const focus = (where) => /** @type {HTMLElement | null} */ (document.querySelector(where))?.focus();

/** Moves in the timeline, which knows what is hidden. @param {string} key @param {number} by */
function move(key, by) {
  const rows = document.querySelector(".rows");
  if (!rows) return store.step(store.lookedAt() + by);
  focus(".rows");
  rows.dispatchEvent(new KeyboardEvent("keydown", { key }));
}

/** @param {KeyboardEvent} event */
function sideways(event) {
  const by = event.key === "ArrowRight" ? "nextElementSibling" : event.key === "ArrowLeft" ? "previousElementSibling" : null;
  if (!by) return;
  event.stopPropagation();
  const next = /** @type {any} */ (event.currentTarget)[by];
  next?.focus();
  next?.click();
}

function Locked() {
  const [token, setToken] = useState("");
  return html`<main class="empty locked"><h1>stepfold</h1><p>${know.locked}</p><p>Open the address that <code>stepfold serve</code> prints, or paste its token.</p>
    <form onSubmit=${(event) => { event.preventDefault(); know.locked = null; store.enter(token.trim()); }}>
      <label>Token<input type="password" autocomplete="off" value=${token} onInput=${(event) => setToken(event.currentTarget.value)} /></label><button class="main">Log in</button></form></main>`;
}

addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || know.dialog) return;
  if (target.closest("input, textarea, select") && !(event.key === "/" && target.localName === "select")) {
    if (event.key === "Escape") {
      target.blur();
      focus(".body [tabindex='0']");
    }
    return;
  }
  const at = store.lookedAt();
  const inSession = /** @type {Record<string, () => void>} */ ({
    ArrowLeft: () => store.step(at - 1), ArrowRight: () => store.step(at + 1), "[": () => store.turn(-1), "]": () => store.turn(1), End: () => store.step(know.version),
    j: () => move("j", 1), k: () => move("k", -1), f: () => open("fork"), r: () => at < know.version && open("rewind"), e: () => open("edit"), l: () => open("name"), c: () => focus("#composer"), a: () => focus(".requests button"),
    s: () => store.go({ panel: know.view.panel === "state" ? "step" : "state" }, true),
    ...Object.fromEntries(tabs().map(([tab], index) => [index + 1, () => store.go({ tab })])),
  });
  const anywhere = /** @type {Record<string, () => void>} */ ({ "/": () => focus("#search"), n: () => open("new"), "?": () => open("help") });
  const does = anywhere[event.key] ?? (know.view.session ? inSession[event.key] : undefined);
  if (!does) return;
  event.preventDefault();
  does();
});

const root = document.getElementById("root");
if (root) {
  root.textContent = "";
  render(html`<${App} />`, root);
}
store.start();
