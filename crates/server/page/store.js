// What the page knows: one object, changed here only, and shown anew after each change.
// @ts-check
import { appPath, ask, get, newKey, post, Refused, sessionPath, Unreachable } from "./api.js";
import * as json from "./json.js";
import { follow, unfollow } from "./live.js";
import { read, write } from "./router.js";
import { nameOf } from "./rows.js";

/** @typedef {import("./types").Row} Row */
/** @typedef {import("./router.js").View} View */

/** @type {import("./types").Know} */
export const know = {
  view: read(location.hash), ready: false, stopped: {}, locked: null, me: null, apps: [], app: null, shape: null, sessions: [], more: null, search: "", upgrade: null,
  link: "live", note: null, trouble: null, dialog: null, ...ofSession(),
};

/** What a session does that needs a person. */
const STOPPED = ["waiting", "interrupted", "failed", "invalid"];

/** The status of a session, as a word. A fork whose run is open has not been interrupted. @param {import("./types").SessionRow} row */
export function statusOf(row) {
  const status = row.status ?? (row.claimed ? "running" : "");
  if (status === "interrupted" && row.parent && row.version <= row.parent.version + 1) return "paused";
  return status;
}

/** What is known of a session before it is read. @returns {import("./types").OfSession} */
function ofSession() {
  return {
    detail: null, isAbsent: false, rows: [], oldest: 0, version: 0, loading: false, labels: [], forks: [], unfinished: nothing(), states: new Map(),
    replay: null, comparison: null, cache: null, model: null, history: null, collapsed: new Set(),
  };
}
/** What is unfinished when nothing runs. */
function nothing() {
  return { text: "", reasoning: "", calls: {}, tools: {}, nodes: {} };
}

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
  return () => void watchers.delete(watcher);
};

/** Shows what a person did in vain, or what the page could not read by itself: it does not take the place of what a person waits for.
 * @param {any} error @param {"note" | "trouble"} [where] */
export function fail(error, where = "trouble") {
  if (error?.name === "AbortError") return;
  if (error instanceof Refused && error.status === 401) know.locked ??= "This browser is not logged in, or the server was started again.";
  else know[where] = { bad: true, isOfLink: error instanceof Unreachable, text: error.message };
  changed();
}
/** @param {string} text */
export const say = (text) => {
  const note = (know.note = { bad: false, text });
  setTimeout(() => {
    if (know.note !== note) return;
    know.note = null;
    changed();
  }, 6000);
  changed();
};

/** The error that is shown, which is then shown where it arose. */
export function takeNote() {
  const text = know.note?.text ?? "";
  know.note = null;
  return text;
}

/** Changes the view, and with it the address. @param {Partial<View>} part @param {boolean} [isStep] whether the browser goes back over it */
export function go(part, isStep = false) {
  const before = know.view;
  const isOther = ("session" in part && part.session !== before.session) || ("app" in part && part.app !== before.app);
  if (isOther) know.note = know.trouble = null;
  const view = isOther ? { ...read(""), app: before.app, ...part } : { ...before, invalid: undefined, ...part };
  history[isStep ? "replaceState" : "pushState"](null, "", write(view));
  arrived(view);
}

/** The view of an address: one without an app is that of the app in view, or else of the first one with a session that needs a person. @param {View} view @returns {View} */
function whole(view) {
  const first = know.apps.find(({ app }) => know.stopped[app]?.length) ?? know.apps[0];
  return view.app ? view : { ...view, app: know.app?.app ?? first?.app };
}

/** @param {View} view */
function arrived(view) {
  const before = know.view;
  know.view = view = whole(view);
  if (view.app !== before.app) openApp();
  if (view.app !== before.app || view.session !== before.session) openSession();
  else look();
  changed();
}

const base = () => sessionPath(know.view.app, know.view.session);
/** Tells whether the session is still the one in view. */
const still = () => {
  const { app, session } = know.view;
  return () => know.view.session === session && know.view.app === app;
};

/** Logs in with the token of the address, if there is one, which is then that of the start. */
async function logIn() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  know.view = whole(read(""));
  history.replaceState(null, "", write(read("")));
  try {
    await ask("POST", "/login", { token });
  } catch {
    know.locked = "The token is unknown: was the server started again?";
  }
  return true;
}

/** Begins. */
export async function start() {
  await logIn();
  // The printed address may be opened in the tab of the page.
  addEventListener("popstate", async () => ((await logIn()) ? enter() : arrived(read(location.hash))));
  document.addEventListener("visibilitychange", () => (document.hidden ? unfollow() : catchUp()));
  addEventListener("online", () => catchUp());
  await enter();
}

/** @param {string} [token] */
export async function enter(token) {
  try {
    if (token) await ask("POST", "/login", { token });
    [{ apps: know.apps }, know.me] = await Promise.all([get("/apps"), get("/me")]);
    know.locked = null;
    know.ready = true;
    const finding = findStopped();
    if (!know.view.app) await finding;
    know.view = whole(know.view);
    await Promise.all([openApp(), openSession()]);
  } catch (error) {
    know.ready = true;
    fail(error);
  }
  changed();
}

async function openApp() {
  const { app } = know.view;
  Object.assign(know, { app: know.apps.find((one) => one.app === app) ?? null, shape: null, sessions: [], search: "", upgrade: null });
  if (!know.app || !app) return;
  const reading = Promise.all([get(appPath(app)), know.app?.has_graph ? get(`${appPath(app)}/graph`) : null]);
  try {
    const [[whole, shape]] = await Promise.all([reading, listSessions()]);
    if (know.view.app === app) Object.assign(know, { app: whole, shape });
    checkUpgrade(app);
  } catch (error) {
    fail(error);
  }
  changed();
}

/** Compares the agent with the unfinished runs. @param {string} app */
async function checkUpgrade(app) {
  try {
    const upgrade = await get(`${appPath(app)}/upgrade`);
    if (know.view.app === app) know.upgrade = upgrade;
  } catch {
    // The list says what matters without it.
  }
  changed();
}

/** For each list that is being read, the changes that came meanwhile. @type {Set<Map<string, import("./types").Changed>>} */
const reading = new Set();

/** Reads the sessions: those after the known ones, or the newest. @param {boolean} [isMore] */
export async function listSessions(isMore = false) {
  const { app } = know.view;
  const { search } = know;
  if (!app || !know.ready) return;
  /** @type {Map<string, import("./types").Changed>} */
  const changes = new Map();
  reading.add(changes);
  try {
    let page = await get(`${appPath(app)}/sessions`, { after: isMore ? know.more : undefined, q: search });
    // The server looks at some thousands at once: what is sought may be older.
    while (search && !page.sessions.length && page.next && know.view.app === app && know.search === search) {
      page = await get(`${appPath(app)}/sessions`, { after: page.next, q: search });
    }
    if (know.view.app !== app || know.search !== search) return;
    // The list may be older than a change: a session that was deleted meanwhile would come back.
    for (const one of page.sessions) Object.assign(one, changes.get(one.id));
    page.sessions = page.sessions.filter((/** @type {any} */ one) => one.status !== "deleted");
    // What was read with "More" stays, below.
    const older = know.sessions.length > 100 && !search ? know.sessions.slice(100) : [];
    const [first, second] = isMore ? [know.sessions, page.sessions] : [page.sessions, older];
    const ids = new Set(first.map((/** @type {any} */ one) => one.id));
    know.sessions = [...first, ...second.filter((/** @type {any} */ one) => !ids.has(one.id))];
    if (isMore || !older.length) know.more = page.next ?? null;
  } catch (error) {
    fail(error);
  } finally {
    reading.delete(changes);
  }
  changed();
}

/** Finds the newest sessions of each app that need a person, however old they are. */
const findStopped = () => Promise.all(know.apps.slice(0, 16).map(async ({ app }) => {
  const found = [];
  let after;
  do {
    const page = await get(`${appPath(app)}/sessions`, { after, stopped: true });
    found.push(...page.sessions);
    after = page.next;
  } while (after && found.length < 100);
  know.stopped[app] = found;
  changed();
})).catch(fail);

let [listing, finding] = [0, 0];
/** A session of the user has changed: in its row, or, if it is new, in the list. @param {import("./types").Changed} row */
function listed({ app, id, version, status }) {
  if (STOPPED.includes(status) || know.stopped[app]?.some((one) => one.id === id)) {
    clearTimeout(finding);
    finding = setTimeout(findStopped, 500);
  }
  if (app !== know.view.app) return;
  // A run that has told its end is still known as running for a moment: a session that was read then says so.
  if (id === know.view.session && status !== "running" && status !== "deleted" && (know.detail?.running || newestRead)) readDetail();
  for (const changes of reading) changes.set(id, { app, id, version, status });
  const known = know.sessions.find((one) => one.id === id);
  if (status === "deleted") know.sessions = know.sessions.filter((one) => one !== known);
  else if (known) Object.assign(known, { version, status });
  if (status !== "deleted" && (!known || (!known.title && !known.parent && version))) {
    clearTimeout(listing);
    listing = setTimeout(listSessions, 200);
  }
  changed();
}
/** The newest search, answered or not. */
let searching = Promise.resolve();
/** @param {string} text */
export function search(text) {
  know.search = text;
  know.sessions = [];
  searching = listSessions();
}

/** Opens the first session that the search finds, which may not be answered yet. */
export async function openFirst() {
  const text = know.search;
  await searching;
  const [first] = know.sessions;
  if (!first || know.search !== text) return;
  go({ session: first.id });
  search("");
}

async function openSession() {
  const { app, session } = know.view;
  const isStill = still();
  Object.assign(know, ofSession());
  listen();
  if (!know.app || !app || !session) return changed();
  know.loading = true;
  changed();
  try {
    const [detail] = await Promise.all([get(base()), loadRows(), readMarks()]);
    if (!isStill()) return;
    know.detail = detail;
    listen();
    look();
  } catch (error) {
    if (error instanceof Refused && error.status === 404 && isStill()) know.isAbsent = true;
    else fail(error);
  }
  know.loading = false;
  changed();
}

/** The number of times that another session took the name of the one in view. */
let resets = 0;
/** Reads the timeline after a version: brief rows, which are filled when they are in sight. An answer may be older than what was heard since, which stays. */
async function loadRows(after = 0) {
  const [isStill, life] = [still(), resets];
  let rows = know.rows.filter((row) => row.version <= after);
  for (let from = after; ;) {
    const page = await get(`${base()}/events`, { after: from, limit: 10_000, brief: true });
    if (!isStill() || life !== resets) return;
    for (const row of page.events) row.is_brief = true;
    rows = [...rows, ...page.events];
    const newer = know.rows.filter((row) => row.version > page.version);
    Object.assign(know, { rows: [...rows, ...newer], version: Math.max(know.version, page.version), oldest: page.oldest });
    changed();
    if (!page.next) break;
    from = page.next;
  }
}

/** @type {Set<Row>} */
const asked = new Set();
/** Reads what brief rows lack, for those that are shown. @param {number} first @param {number} last */
export async function fill(first, last) {
  const isStill = still();
  const need = know.rows.slice(first, last).filter((row) => row.is_brief && !asked.has(row));
  if (!need.length) return;
  for (const row of need) asked.add(row);
  try {
    const from = need[0].version - 1;
    const page = await get(`${base()}/events`, { after: from, limit: Math.min(1000, need[need.length - 1].version - from) });
    if (isStill()) merge(page.events);
  } catch (error) {
    fail(error);
  } finally {
    for (const row of need) asked.delete(row);
  }
}

/** The place of the last row up to a version. @param {number} version @param {Row[]} [rows] */
export function placeOf(version, rows = know.rows) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].version <= version) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The call of this name that was made last before a place, with the arguments that it runs with; and where it was made. Names are
 * those in the branch of the commit at the place: parallel branches have the same ids. @param {string} name @param {number} at
 * @returns {(import("./types").Call & { row: Row }) | undefined} */
export function callOf(name, at) {
  const inside = (/** @type {Row | undefined} */ row) => (row?.path ?? []).map((item) => `${item.call_id}/`).join("");
  const whole = inside(know.rows[at]) + name;
  let given;
  for (let place = at - 1; place >= Math.max(0, at - 200); place -= 1) {
    const row = know.rows[place];
    if (!row.calls && !row.decisions && !row.edited) continue;
    const branch = inside(row);
    given ??= row.edited?.arguments?.[whole] ?? row.decisions?.find((one) => branch + nameOf(one.request) === whole)?.decision?.modify?.arguments;
    const call = row.calls?.find((one) => branch + one.id === whole);
    if (call) return { ...call, arguments: given ?? call.arguments, row };
  }
}

/** The calls and branches of the open step that have no result yet. */
export function openCalls() {
  const rows = know.rows.filter((row) => row.visible && !row.path?.length);
  const done = new Set();
  for (let place = rows.length - 1; place >= Math.max(0, rows.length - 200); place -= 1) {
    const { version, kind, outcomes, calls, planned } = rows[place];
    for (const one of outcomes ?? []) done.add(one.call_id);
    const open = (calls ?? []).map((call) => callOf(call.id, know.rows.length) ?? call);
    const branches = (planned ?? []).map((one) => ({ id: one.call_id, name: one.call_id, arguments: {} }));
    if (calls || planned || kind === "began") return [...open, ...branches].filter((one) => !done.has(one.id)).map((one) => ({ ...one, version }));
  }
  return [];
}

/** Fills rows, which stay the same objects: what is drawn of all rows stays too. And adds those that are new. @param {Row[]} rows */
function merge(rows) {
  const added = [];
  for (const row of rows) {
    const known = know.rows[placeOf(row.version)];
    if (known?.version === row.version) Object.assign(known, row, { is_brief: false });
    else if (row.version > know.version) added.push(row);
  }
  if (added.length) know.rows = [...know.rows, ...added];
  know.version = Math.max(know.version, rows.at(-1)?.version ?? 0);
  changed();
}

function listen() {
  const { app, session } = know.view;
  if (document.hidden || !know.me) return;
  follow(know.detail ? `${app}/${session}` : "", () => know.version, {
    heard,
    listed,
    link: (link) => {
      if (link === "live" && know.note?.isOfLink) know.note = null;
      if (link === "live" && know.trouble?.isOfLink) know.trouble = null;
      know.link = link;
      changed();
    },
    missed: () => {
      listSessions();
      findStopped();
    },
    refused: () => get(know.detail ? base() : "/me").catch(fail),
  });
}

/** A tab that was hidden gave up its stream. */
function catchUp() {
  if (know.locked || document.hidden) return;
  if (!know.me) return void enter();
  listSessions();
  if (!know.detail) return listen();
  readDetail();
  loadRows(know.version).then(listen, fail);
}

/** @param {string} name @param {any} data */
function heard(name, data) {
  const open = know.unfinished;
  const isInner = data.path?.length > 0;
  const { detail } = know;
  switch (name) {
    case "hello":
      know.unfinished = nothing();
      // A run may have ended after the session was read, and before its stream began.
      readDetail();
      break;
    case "committed":
      committed(data);
      break;
    case "text": case "reasoning":
      if (!isInner) open[name] += data.delta;
      break;
    case "call": {
      const call = (open.calls[json.write([data.path, data.index])] ??= { arguments: "" });
      if (data.tool) call.name = data.tool;
      call.arguments += data.delta ?? "";
      break;
    }
    case "tool_started":
      open.tools[data.call_id] = { name: data.tool, since: Date.now() };
      break;
    case "progress":
      if (open.tools[data.call_id]) open.tools[data.call_id].report = data.report;
      break;
    case "tool_finished":
      if (open.tools[data.call_id]) open.tools[data.call_id].status = data.status;
      break;
    case "node_started":
      (open.nodes[data.node] ??= { running: 0 }).running += 1;
      break;
    case "node_finished":
      if (open.nodes[data.node]?.running) open.nodes[data.node].running -= 1;
      break;
    case "running":
      // What waits stays until it is decided: a decision may be refused.
      if (detail) Object.assign(detail, { running: data.invocation, unfinished: true });
      if (newestRead) readDetail();
      break;
    case "waiting":
      if (detail) Object.assign(detail, { running: null, unfinished: true, pending: data.requests ?? [] });
      renew();
      break;
    // After a reset the run may have another process, or none.
    case "ended": case "failed": case "paused": case "reset":
      know.unfinished = nothing();
      // Another session has the name by now, or this one has fewer commits.
      if (name === "reset" && data.after_version < know.version) {
        resets += 1;
        Object.assign(know, { rows: [], version: data.after_version });
        loadRows().then(renew, fail);
      } else renew();
      break;
    case "gone":
      say(data.reason === "deleted" ? "This session was deleted." : "This session cannot be read.");
      go({ session: undefined });
      break;
    default:
  }
  changed();
}

/** @param {Row} row */
function committed(row) {
  const open = know.unfinished;
  Object.assign(open, { text: "", reasoning: "", calls: {} });
  for (const outcome of row.outcomes ?? []) delete open.tools[outcome.call_id];
  const decided = row.decisions?.map((one) => one.request) ?? [];
  if (know.detail && decided.length) know.detail.pending = know.detail.pending?.filter((request) => !decided.includes(request.id));
  if (row.kind === "rewind") loadRows().then(readDetail, fail);
  else if (row.version === know.version + 1) merge([row]);
  else if (row.version > know.version) loadRows(know.version).catch(fail);
  if (know.detail) know.detail.version = know.version;
  look();
}

function renew() {
  readDetail();
  listSessions();
}

/** The newest read of the session that has no answer yet. @type {object | null} */
let newestRead = null;
/** Reads the session. The answer to an older read is not shown. */
export async function readDetail() {
  const isStill = still();
  const read = (newestRead = {});
  try {
    const detail = await get(base());
    if (!isStill() || newestRead !== read) return;
    know.detail = detail;
    newestRead = null;
  } catch (error) {
    fail(error);
  }
  changed();
}

/** Reads the labels of versions, and the forks. */
async function readMarks() {
  const isStill = still();
  const [{ labels }, { forks }] = await Promise.all([get(`${base()}/labels`), get(`${base()}/forks`)]);
  if (isStill()) Object.assign(know, { labels, forks });
  changed();
}

/** What a tool does to the world. @param {string} name */
export const effectOf = (name) => [...(know.app?.tools ?? []), ...(know.app?.agents ?? []).flatMap((agent) => agent.tools)].find((tool) => tool.name === name)?.effect;
/** An amount, in the currency of the prices. @param {number} value */
export const money = (value) => `${value.toFixed(value && value < 0.1 ? 5 : 2)} ${know.app?.prices?.currency ?? ""}`;

/** The version that is looked at. */
export const lookedAt = () => Math.min(know.view.at ?? know.version, know.version);
/** The commit that is looked at. @returns {Row | undefined} */
export const rowAt = (version = lookedAt()) => know.rows[placeOf(version)];

/** @type {AbortController | null} */
let looking = null;
let timer = 0;
/** Reads the state that the view shows, and the one before it, a moment after the last step. */
export function look() {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    looking?.abort();
    looking = new AbortController();
    const { signal } = looking;
    const isStill = still();
    const version = lookedAt();
    if (!know.view.session) return;
    try {
      // Both at once: a value is not shown without the one before it. Where values come from is read for the one in view: it takes the whole history.
      const isMissing = (/** @type {number} */ at) => at >= Math.max(0, know.oldest) && !(at === version ? know.states.get(at)?.origin ?? know.states.get(at)?.error : know.states.has(at));
      const states = await Promise.all([version, version - 1].filter(isMissing).map((at) => get(`${base()}/state`, { at, origin: at === version }, signal)));
      if (!isStill()) return;
      if (know.states.size > 300) know.states.clear();
      for (const state of states) know.states.set(state.version, state);
    } catch (error) {
      if (error instanceof Refused) know.states.set(version, { version, values: {}, error: error.message });
      else fail(error);
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
  const turns = know.rows.filter((row) => row.kind === "began" && !row.path?.length).map((row) => row.version);
  const found = by < 0 ? turns.filter((version) => version < at).at(-1) : turns.find((version) => version > at);
  step(found ?? (by < 0 ? 1 : know.version));
}

/** The result, or null after an error that is shown. @param {() => Promise<any>} what */
async function attempt(what) {
  try {
    return (await what()) ?? true;
  } catch (error) {
    fail(error, "note");
    return null;
  }
}
/** Changes something, and says so. @param {() => Promise<any>} what @param {string} [done] */
async function act(what, done) {
  const value = await attempt(what);
  if (value === null) return null;
  if (done) say(done);
  if (know.view.session) readDetail();
  listSessions();
  return value;
}

/** @param {string} text */
export const send = (text) => act(() => post(`${base()}/messages`, { text, ...(know.detail?.running && { when_busy: "steer" }) }, { key: newKey() }));
/** @param {Record<string, any>} decisions */
export const decide = (decisions) => act(() => post(`${base()}/decisions`, { decisions }));
export const cancel = () => act(() => post(`${base()}/cancel`));
export const resume = () => act(() => post(`${base()}/resume`, {}));
/** Takes a message back that waits. @param {string} message */
export const withdraw = (message) => act(() => ask("DELETE", `${base()}/messages/${encodeURIComponent(message)}`));
export const abandon = () => act(() => post(`${base()}/abandon`), "The run has ended.");

/** Makes a session, and shows it. @param {() => Promise<any>} how @param {string} [done] */
async function make(how, done) {
  const made = await act(how, done);
  if (made) {
    go({ session: made.id });
    if (done) say(done);
  }
  return made;
}
/** @param {string} id @param {any} [values] */
export const create = (id, values) => make(() => post(`${appPath(know.view.app)}/sessions`, { ...(id && { id }), values }));
/** @param {number} at @param {string} id @param {{ set?: any, results?: any, arguments?: any, run?: boolean }} changes */
export const fork = (at, id, changes) => make(() => post(`${base()}/fork`, { at, ...(id && { id }), ...changes }), `Forked at v${at}. Finished calls are not run again.`);
/** A name for a fork that no known session has. @param {number} at @param {string} [what] */
export function forkName(at, what = "") {
  const name = `${know.view.session}-v${at}${what}`;
  const taken = new Set([...know.sessions, ...know.forks].map((one) => one.id));
  let free = name;
  for (let number = 2; taken.has(free); number += 1) free = `${name}-${number}`;
  return free;
}
export async function remove() {
  const path = base();
  const id = know.view.session;
  if (!(await act(() => ask("DELETE", path)))) return;
  know.sessions = know.sessions.filter((one) => one.id !== id);
  go({ session: undefined });
  say("Deleted.");
}
/** Names a version. @param {string} label @param {number} version */
export const nameVersion = (label, version) => mark(() => ask("PUT", `${base()}/labels/${encodeURIComponent(label)}`, { body: { version } }), `v${version} is named ${label}.`);
/** @param {string} label */
export const removeName = (label) => mark(() => ask("DELETE", `${base()}/labels/${encodeURIComponent(label)}`), `The name ${label} is removed.`);
/** @param {() => Promise<any>} what @param {string} done */
async function mark(what, done) {
  const value = await act(what, done);
  if (value) await attempt(readMarks);
  return value;
}
/** Makes a session from an exported one. @param {File} file @param {string} id */
export const importFile = (file, id) => make(async () => {
  // As it is: what the file says is not read here.
  return ask("POST", `${appPath(know.view.app)}/import`, { query: { id }, body: await file.text() });
}, "Imported.");
/** @param {number} to */
export async function rewind(to) {
  const done = await act(() => post(`${base()}/rewind`, { to, expected: know.version }), `Rewound to v${to}. Later versions are kept.`);
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

/** Adds the turn at a version to a data set. @param {string} name @param {number} at */
export async function addCase(name, at) {
  const found = await attempt(async () => {
    const found = await post(`${appPath(know.view.app)}/cases`, { data_set: name, session: know.view.session, at });
    const [why] = found.unsuited;
    if (why) throw new Error(why);
    return found;
  });
  if (found) say(found.added ? `Added to ${name}.` : `Its turn is in ${name} already.`);
  return found;
}

/** Replays all runs; the first divergence is marked in the timeline. */
export async function checkReplay() {
  const isStill = still();
  say("Replaying…");
  const found = await attempt(() => post(`${base()}/replay`));
  if (!found || !isStill()) return;
  know.replay = found.version ?? null;
  if (found.same) return say(`Replay matches: ${found.runs} run${found.runs === 1 ? "" : "s"}. No model or tool was called.`);
  know.collapsed = new Set();
  know.note = { bad: true, text: `Replay differs at v${found.version}: ${found.first_divergence}` };
  go({ tab: "timeline", at: found.version < know.version ? found.version : undefined });
}

/** @param {string} other */
export async function compareWith(other) {
  know.comparison = { with: other, busy: true };
  const isStill = still();
  const found = await attempt(() => get(`${base()}/compare`, { with: other }));
  if (isStill()) know.comparison = { with: other, ...found };
  changed();
}

/** What each request shared with the one before. @param {number} replies */
export async function readCache(replies) {
  const { session } = know.view;
  if (know.cache && know.cache.session === session && know.cache.replies === replies) return;
  const isStill = still();
  // A page without it is whole: an old session may be too large to be replayed.
  const found = await get(`${base()}/cache`).catch(() => ({ requests: [] }));
  if (isStill()) know.cache = { session, replies, requests: found.requests };
  changed();
}

/** What the model was shown at a version. @param {number} at */
export async function readModel(at) {
  know.model = { at, busy: true };
  const isStill = still();
  /** @type {any} */
  let found = null;
  try {
    found = await get(`${base()}/model`, { at });
  } catch (error) {
    found = { error: /** @type {Error} */ (error).message };
  }
  if (isStill() && know.model?.at === at) know.model = { at, found };
  changed();
}

/** A value as it is now, whole. @param {string} key */
export const readValue = async (key) => (await attempt(() => get(`${base()}/state`)))?.values?.[key];

/** Every write of a key. @param {string} key @param {number} at */
export async function readHistory(key, at) {
  const found = await attempt(() => get(`${base()}/blame`, { key, at }));
  know.history = { key, at, writes: found?.writes };
  changed();
}

/** Saves the session as a file. @param {"json" | "test"} as */
export const download = (as) => attempt(async () => {
  const name = `${know.view.session}${as === "test" ? "_test.rs" : ".json"}`;
  const value = await get(`${base()}/export`, { as: as === "test" ? as : undefined });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([typeof value === "string" ? value : json.write(value, "  ")], { type: "application/octet-stream" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  say(`Saved as ${name}.`);
});
