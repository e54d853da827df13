// What the page knows: one object, changed here only, and shown anew after each change.
// @ts-check
import { ask, appPath, follow, get, optional, post, Refused, sessionPath } from "./api.js";
import { read, write } from "./router.js";

/** @typedef {import("./rows.js").Row} Row */

/** @type {any} */
export const know = {
  view: read(location.hash), ready: false, locked: null, me: null, apps: [], sessions: [], more: null, search: "",
  detail: null, app: null, shape: null, rows: [], oldest: 0, version: 0, loading: false,
  unfinished: { text: "", reasoning: "", calls: {}, tools: {}, nodes: {} }, link: "live", states: new Map(),
  note: null, dialog: null, replay: null, comparison: null, model: null, history: null, collapsed: new Set(),
};

/** @type {Set<() => void>} */
const watchers = new Set();
let isDue = false;

/** Shows what has changed, once a frame. */
export function changed() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    for (const watcher of watchers) watcher();
  });
}
/** @param {() => void} watcher */
export const watch = (watcher) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};

/** @param {any} error */
export function fail(error) {
  if (error?.name === "AbortError") return;
  if (error instanceof Refused && error.status === 401) know.locked ??= "This browser is not logged in, or the server was started again.";
  else know.note = { bad: true, text: error instanceof TypeError ? "The server cannot be reached. The page goes on when it is back." : error.message };
  changed();
}
/** @param {string} text */
export const say = (text) => {
  know.note = { bad: false, text };
  changed();
};

/** Changes the view, and with it the address. @param {Partial<import("./router.js").View>} part @param {boolean} [isStep] */
export function go(part, isStep = false) {
  const before = know.view;
  const isOther = ("session" in part && part.session !== before.session) || ("app" in part && part.app !== before.app);
  const view = isOther ? { tab: "timeline", panel: "state", ...part } : { ...before, ...part };
  if (isOther && !("app" in part)) view.app = before.app;
  history[isStep ? "replaceState" : "pushState"](null, "", write(/** @type {any} */ (view)));
  arrived(/** @type {any} */ (view));
}

/** @param {import("./router.js").View} view */
function arrived(view) {
  const before = know.view;
  know.view = view;
  if (view.app !== before.app) openApp();
  if (view.app !== before.app || view.session !== before.session) openSession();
  else look();
  changed();
}

const base = () => sessionPath(know.view.app, know.view.session);

/** Begins: logs in with the token of the address, if there is one. */
export async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", "/#/");
    know.view = read("");
    try {
      await ask("POST", "/login", { token });
    } catch (error) {
      know.locked = "The token is unknown: was the server started again?";
    }
  }
  addEventListener("popstate", () => arrived(read(location.hash)));
  document.addEventListener("visibilitychange", () => (document.hidden ? stopStream() : catchUp()));
  await enter();
  setInterval(() => document.hidden || know.locked || listSessions(), 4000);
}

/** @param {string} [token] */
export async function enter(token) {
  try {
    if (token) await ask("POST", "/login", { token });
    know.apps = (await get("/apps")).apps;
    know.me = await optional(get("/me"));
    know.locked = null;
    know.ready = true;
    if (!know.view.app && know.apps.length) know.view = { ...know.view, app: know.apps[0].app };
    await Promise.all([openApp(), openSession()]);
  } catch (error) {
    know.ready = true;
    fail(error);
  }
  changed();
}

async function openApp() {
  const { app } = know.view;
  know.app = know.apps.find((/** @type {any} */ one) => one.app === app) ?? null;
  know.shape = null;
  know.sessions = [];
  know.search = "";
  if (!app) return;
  await listSessions();
  try {
    const [full, shape] = await Promise.all([
      optional(get(appPath(app))), know.app?.has_graph ? optional(get(`${appPath(app)}/graph`)) : null,
    ]);
    if (know.view.app !== app) return;
    know.app = full ?? know.app;
    know.shape = shape;
  } catch (error) {
    fail(error);
  }
  changed();
}

let hasSearch = true;
/** @param {boolean} [isMore] */
export async function listSessions(isMore = false) {
  const { app } = know.view;
  if (!app || !know.ready) return;
  const query = { after: isMore ? know.more : undefined, q: hasSearch ? know.search : undefined };
  try {
    const page = await get(`${appPath(app)}/sessions`, query);
    if (know.view.app !== app) return;
    know.sessions = isMore ? [...know.sessions, ...page.sessions] : page.sessions;
    know.more = page.next ?? null;
    if (know.note?.lost) know.note = null;
  } catch (error) {
    if (error instanceof Refused && query.q && error.status !== 401) {
      hasSearch = false;
      return listSessions();
    }
    if (error instanceof TypeError) know.link = "lost";
    else fail(error);
  }
  changed();
}
/** @param {string} text */
export function search(text) {
  know.search = text;
  listSessions();
}

/** @type {null | (() => void)} */
let endStream = null;
function stopStream() {
  endStream?.();
  endStream = null;
}

async function openSession() {
  const { app, session, at } = know.view;
  stopStream();
  Object.assign(know, { detail: null, rows: [], oldest: 0, version: 0, replay: null, comparison: null, model: null, history: null, states: new Map(), collapsed: new Set() });
  forget();
  if (!app || !session) return changed();
  know.loading = true;
  changed();
  try {
    const [detail] = await Promise.all([get(base()), loadRows()]);
    if (know.view.session !== session) return;
    know.detail = detail;
    listen();
    look();
  } catch (error) {
    fail(error);
  }
  know.loading = false;
  changed();
}

let hasBrief = true;
/** Reads the timeline: brief rows if the server has them, whole ones otherwise. @param {number} [after] */
async function loadRows(after = 0) {
  const { app, session } = know.view;
  /** @type {Row[]} */
  let rows = know.rows.filter((/** @type {Row} */ row) => row.version <= after);
  for (let from = after; ;) {
    let page;
    if (hasBrief) {
      page = await optional(get(`${base()}/events`, { after: from, limit: 10_000, brief: true }));
      if (!page) hasBrief = false;
    }
    page ??= await get(`${base()}/events`, { after: from, limit: 1000 });
    if (know.view.session !== session || know.view.app !== app) return;
    if (hasBrief) for (const row of page.events) row.is_brief = true;
    rows = [...rows, ...page.events];
    Object.assign(know, { rows, version: page.version, oldest: page.oldest });
    changed();
    if (!page.next) break;
    from = page.next;
  }
}

/** @type {Set<number>} */
const asked = new Set();
/** Reads what brief rows lack, for those that are shown. @param {number} first @param {number} last */
export async function fill(first, last) {
  const { session } = know.view;
  const need = know.rows.slice(first, last).filter((/** @type {any} */ row) => row.is_brief && !asked.has(row.version));
  if (!need.length) return;
  for (const row of need) asked.add(row.version);
  try {
    const from = need[0].version - 1;
    const page = await get(`${base()}/events`, { after: from, limit: Math.min(1000, need.at(-1).version - from) });
    if (know.view.session === session) merge(page.events);
  } catch (error) {
    fail(error);
  } finally {
    for (const row of need) asked.delete(row.version);
  }
}

/** @param {Row[]} rows */
function merge(rows) {
  const places = new Map(know.rows.map((/** @type {Row} */ row, /** @type {number} */ index) => [row.version, index]));
  const merged = know.rows.slice();
  for (const row of rows) {
    const place = places.get(row.version);
    if (place === undefined) merged.push(row);
    else merged[place] = row;
  }
  know.rows = merged;
  know.version = Math.max(know.version, rows.at(-1)?.version ?? 0);
  changed();
}

/** All rows in full, for the conversation and exports. */
export async function fillAll() {
  for (let at = 0; at < know.rows.length; at += 500) await fill(at, at + 500);
}

function forget() {
  know.unfinished = { text: "", reasoning: "", calls: {}, tools: {}, nodes: {} };
}

function listen() {
  stopStream();
  if (document.hidden) return;
  const { app, session } = know.view;
  endStream = follow(
    () => `${sessionPath(app, session)}/live?after=${know.version}`,
    (name, data) => heard(name, data),
    (state) => {
      if (state === "lost" && know.link === "live") refused();
      know.link = state;
      changed();
    },
  );
}

/** A stream that ends does not say why: a request does. */
async function refused() {
  try {
    await get(base());
  } catch (error) {
    if (error instanceof Refused) fail(error);
  }
}

function catchUp() {
  if (know.locked || !know.view.session) return;
  readDetail();
  loadRows(know.version).then(listen, fail);
}

/** @param {string} name @param {any} data */
function heard(name, data) {
  const open = know.unfinished;
  switch (name) {
    case "hello":
      if (know.detail) Object.assign(know.detail, { running: data.running, pending: data.pending });
      break;
    case "committed":
      open.text = open.reasoning = "";
      open.calls = {};
      for (const outcome of data.outcomes ?? []) delete open.tools[outcome.call_id];
      if (data.kind === "answered") open.tools = {};
      if (data.kind === "rewind") loadRows().then(readDetail, fail);
      else if (data.version > know.version) merge([data]);
      if (know.detail) know.detail.version = know.version;
      know.model = null;
      look();
      break;
    case "text":
      if (!data.path?.length) open.text += data.delta ?? data.text ?? "";
      break;
    case "reasoning":
      if (!data.path?.length) open.reasoning += data.delta ?? data.text ?? "";
      break;
    case "call": {
      const key = JSON.stringify([data.path, data.index]);
      const call = (open.calls[key] ??= { arguments: "", depth: data.path?.length ?? 0 });
      if (data.tool) call.name = data.tool;
      call.arguments += data.delta ?? "";
      break;
    }
    case "tool_started":
      open.tools[data.call_id] = { name: data.tool, since: Date.now(), depth: data.path?.length ?? 0 };
      break;
    case "progress":
    case "tool_progress":
      if (open.tools[data.call_id]) open.tools[data.call_id].report = data.report;
      break;
    case "tool_finished":
      if (open.tools[data.call_id]) open.tools[data.call_id].status = data.status;
      break;
    case "node_started":
      (open.nodes[data.node] ??= { running: 0, done: 0, failed: 0 }).running += 1;
      break;
    case "node_finished": {
      const node = (open.nodes[data.node] ??= { running: 1, done: 0, failed: 0 });
      node.running = Math.max(0, node.running - 1);
      node[data.error ? "failed" : "done"] += 1;
      break;
    }
    case "running":
      if (know.detail) Object.assign(know.detail, { running: data.invocation, unfinished: true, pending: [], status: "running" });
      break;
    case "waiting":
      if (know.detail) Object.assign(know.detail, { running: null, unfinished: true, pending: data.requests ?? [] });
      readDetail();
      listSessions();
      break;
    case "ended": case "failed": case "paused":
      forget();
      readDetail();
      listSessions();
      break;
    case "reset":
      forget();
      break;
    case "gone":
      say("This session was deleted.");
      go({ session: undefined });
      break;
    default:
  }
  changed();
}

export async function readDetail() {
  const { app, session } = know.view;
  try {
    const detail = await get(base());
    if (know.view.session === session && know.view.app === app) know.detail = detail;
  } catch (error) {
    fail(error);
  }
  changed();
}

/** The version that is looked at. */
export const lookedAt = () => Math.min(know.view.at ?? know.version, know.version);

/** @type {AbortController | null} */
let looking = null;
let timer = 0;
/** Reads the state that the view shows, and the one before it, a moment after the last step. */
export function look() {
  clearTimeout(timer);
  timer = window.setTimeout(async () => {
    looking?.abort();
    looking = new AbortController();
    const { signal } = looking;
    const version = lookedAt();
    if (!know.view.session) return;
    try {
      await Promise.all([version, version - 1].filter((at) => at >= Math.max(0, know.oldest)).map(async (at) => {
        if (know.states.has(at)) return;
        const state = await get(`${base()}/state`, { at, origin: true }, signal);
        if (know.states.size > 300) know.states.clear();
        know.states.set(at, state);
      }));
    } catch (error) {
      if (!(error instanceof Refused)) fail(error);
      else know.states.set(version, { version, values: {}, error: error.message });
    }
    changed();
  }, 30);
}

/** Steps to another commit. @param {number} version */
export function step(version) {
  const bounded = Math.max(know.rows[0]?.version ?? know.oldest, Math.min(know.version, version));
  go({ at: bounded === know.version ? undefined : bounded }, true);
}
/** Steps to the question before or after. @param {number} by */
export function turn(by) {
  const at = lookedAt();
  const turns = know.rows.filter((/** @type {Row} */ row) => row.kind === "began" && !row.path?.length).map((/** @type {Row} */ row) => row.version);
  const found = by < 0 ? turns.filter((/** @type {number} */ version) => version < at).at(-1) : turns.find((/** @type {number} */ version) => version > at);
  step(found ?? (by < 0 ? 1 : know.version));
}

/** Does something, and says what came of it. @param {() => Promise<any>} what @param {string} [done] */
export async function act(what, done) {
  try {
    const value = await what();
    if (done) say(done);
    readDetail();
    listSessions();
    return value ?? true;
  } catch (error) {
    fail(error);
    return null;
  }
}

/** @param {string} text */
export const send = (text) => act(() => post(`${base()}/messages`, { text }, { key: crypto.randomUUID() }));
/** @param {Record<string, any>} decisions */
export const decide = (decisions) => act(() => post(`${base()}/decisions`, { decisions }));
export const cancel = () => act(() => post(`${base()}/cancel`), "Cancelled: the run ends with its next commit.");
export const resume = () => act(() => post(`${base()}/resume`, {}), "Resumed.");
export const abandon = () => act(() => post(`${base()}/abandon`), "The run has ended.");
/** @param {string} id @param {any} [values] */
export async function create(id, values) {
  const made = await act(() => post(`${appPath(know.view.app)}/sessions`, id ? { id, values } : { values }));
  if (made) go({ session: made.id });
  return made;
}
export const remove = async () => {
  if (await act(() => ask("DELETE", base()), "Deleted.")) go({ session: undefined });
};
/** @param {number} at @param {string} id @param {any} set @param {any} results */
export async function fork(at, id, set, results) {
  const body = { at, ...(id && { id }), ...(set && { set }), ...(results && { results }) };
  const made = await act(() => post(`${base()}/fork`, body), `Forked at v${at}. Finished calls are not run again.`);
  if (made) go({ session: made.id });
  return made;
}
/** @param {number} to */
export async function rewind(to) {
  const done = await act(() => post(`${base()}/rewind`, { to, expected: know.version }), `Back at v${to}. Nothing is deleted: what came after it stays in the timeline.`);
  if (done) {
    await loadRows().catch(fail);
    go({ at: undefined });
  }
  return done;
}
/** @param {any} set */
export const edit = (set) => act(() => ask("PATCH", `${base()}/state`, { body: { set, expected: know.version } }), "Written.");
/** @param {any} results */
export const editResults = (results) => act(() => ask("PATCH", `${base()}/results`, { body: { results, expected: know.version } }), "Written.");

export async function checkReplay() {
  know.replay = { busy: true };
  changed();
  const found = await act(() => post(`${base()}/replay`));
  know.replay = found;
  if (found?.version !== undefined && found?.version !== null && !found.same) step(found.version);
  changed();
}

/** @param {string} other */
export async function compareWith(other) {
  know.comparison = { with: other, busy: true };
  changed();
  const found = await act(() => get(`${base()}/compare`, { with: other }));
  know.comparison = { with: other, ...found };
  changed();
}

/** @param {number} at */
export async function readModel(at) {
  know.model = { at, busy: true };
  const found = await act(() => optional(get(`${base()}/model`, { at })));
  know.model = { at, found: found === true ? null : found };
  changed();
}

/** Every write of a key. @param {string} key @param {number} at */
export async function readHistory(key, at) {
  know.history = { key, at, busy: true };
  const found = await act(() => optional(get(`${base()}/blame`, { key, at })));
  know.history = { key, at, writes: found?.writes ?? (Array.isArray(found) ? found : null) };
  changed();
}

/** @param {"json" | "test"} as */
export async function download(as) {
  const { session } = know.view;
  await act(async () => {
    let value = await optional(get(`${base()}/export`, as === "test" ? { as: "test" } : {}));
    if (value === null && as === "test") throw new Error("This server does not export tests.");
    if (value === null) {
      await fillAll();
      value = { app: know.view.app, session, version: know.version, events: know.rows };
    }
    const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
    link.download = `${session}${as === "test" ? ".test.txt" : ".json"}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }, "Exported.");
}
