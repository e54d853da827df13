// One live stream for all tabs of a browser: HTTP/1.1 has six connections to a host, and a stream takes one.
// Visible tabs say which session they show. One of them leads: it holds a lock, has the stream of all these sessions, and
// tells the others what it hears, and what changes in the list of sessions. A tab that is hidden or closed gives the lock up, and the next one leads.
// @ts-check
import { ROOT } from "./api.js";
import { read } from "./json.js";

const EVENTS = ["hello", "committed", "text", "reasoning", "call", "tool_started", "progress", "tool_finished", "node_started",
  "node_finished", "running", "paused", "waiting", "ended", "failed", "reset", "gone"];
/** The server has no more sessions in a stream. */
const MOST = 32;

/**
 * @typedef {object} Ears
 * @property {(name: string, data: any) => void} heard an event of the session
 * @property {(row: import("./types").Changed) => void} listed a session of the user changed
 * @property {() => void} missed sessions of the user may have changed while nobody listened
 * @property {(link: "live" | "lost") => void} link
 * @property {() => void} refused the stream was refused: a request tells why
 */

// Browsers have locks in secure contexts only: elsewhere each tab has its own stream.
const channel = navigator.locks && new BroadcastChannel("stepfold");
const me = crypto.getRandomValues(new Uint32Array(2)).join("-");
/** What this tab follows; its place is the id of the newest event, which names the life of the session as well.
 * @type {{ name: string, after: () => number, place?: string, ears: Ears } | null} */
let mine = null;
/** @type {ReturnType<typeof lead> | null} */
let leader = null;
/** @type {null | (() => void)} */
let stepDown = null;

/** Tells all tabs, and this one. @param {any} message */
function tell(message) {
  channel?.postMessage(message);
  took(message);
}
if (channel) channel.onmessage = (event) => took(event.data);

/** @param {any} message */
function took(message) {
  if (message.kind === "want") leader?.want(message);
  else if (message.kind === "who") want();
  else if (message.kind === "link") mine?.ears.link(message.link);
  else if (message.kind === "refused") mine?.ears.refused();
  else if (message.kind === "missed") mine?.ears.missed();
  else if (message.kind === "session") mine?.ears.listed(read(message.text));
  else if (mine && message.of === mine.name) {
    mine.place = message.place ?? mine.place;
    mine.ears.heard(message.name, read(message.text));
  }
}

/** @param {string} place a version, or the id of an event */
const versionOf = (place) => Number(`${place}`.split(".")[0]);

const want = () => tell({ kind: "want", tab: me, name: mine?.name || undefined, after: mine?.place ?? `${mine?.after() ?? 0}` });

/** Follows the list of sessions, and one of them, and no other one from now on. @param {string} name APP/SESSION, or nothing @param {() => number} after the version that is known @param {Ears} ears */
export function follow(name, after, ears) {
  mine = { name, after, place: mine?.name === name ? mine.place : undefined, ears };
  if (stepDown) return want();
  let isOver = false;
  const held = new Promise((resolve) => {
    stepDown = () => {
      isOver = true;
      resolve(null);
    };
  });
  const take = async () => {
    if (isOver) return;
    leader = lead();
    tell({ kind: "who" });
    await held;
    leader.close();
    leader = null;
  };
  if (channel) navigator.locks.request("stepfold", take);
  else take();
  want();
}

/** Follows nothing: another tab may lead. */
export function unfollow() {
  if (!mine) return;
  mine = null;
  want();
  stepDown?.();
  stepDown = null;
}
addEventListener("pagehide", unfollow);

function lead() {
  /** @type {Map<string, string>} the session of each tab */
  const tabs = new Map();
  /** @type {Map<string, string>} the place in each session that all its tabs have: a version, or the id of an event */
  const known = new Map();
  /** @type {EventSource | null} */
  let source = null;
  let [timer, wait] = [0, 500];

  const open = () => {
    source?.close();
    const names = [...new Set(tabs.values())].slice(-MOST);
    if (!names.length) return;
    // A list of names, in which those with a comma are written without.
    const query = new URLSearchParams({ sessions: names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(), after: names.map((name) => known.get(name)).join() });
    const opened = (source = new EventSource(`${ROOT}/live?${query}`));
    opened.onopen = () => {
      wait = 500;
      tell({ kind: "link", link: "live" });
    };
    // The browser connects again by itself, and what was missed comes first; but not after a refusal.
    opened.onerror = () => {
      tell({ kind: "link", link: "lost" });
      if (opened.readyState !== EventSource.CLOSED) return;
      tell({ kind: "refused" });
      soon(wait);
      wait = Math.min(wait * 2, 8000);
    };
    for (const name of EVENTS) {
      opened.addEventListener(name, (event) => {
        const { app, session } = read(event.data);
        const of = `${app}/${session}`;
        // An event without an id keeps that of the one before, which is the place in all sessions.
        const place = name === "gone" ? undefined : event.lastEventId.split("~")[names.indexOf(of)] || undefined;
        if (place) known.set(of, place);
        // As text: a number that is kept exactly does not pass between tabs as one.
        tell({ of, name, text: event.data, place });
      });
    }
  };
  /** @param {number} ms */
  const soon = (ms) => {
    clearTimeout(timer);
    timer = setTimeout(open, ms);
  };
  /** @type {EventSource} */
  let all;
  let again = 0;
  // One who led before has told of nothing since it stopped.
  let isLost = true;
  const list = () => {
    all = new EventSource(`${ROOT}/live`);
    all.addEventListener("session", (event) => tell({ kind: "session", text: event.data }));
    // What changed meanwhile is not told again.
    all.onopen = () => {
      if (isLost) tell({ kind: "missed" });
      isLost = false;
    };
    all.onerror = () => {
      isLost = true;
      if (all.readyState !== EventSource.CLOSED) return;
      tell({ kind: "refused" });
      again = setTimeout(list, 8000);
    };
  };
  list();
  return {
    /** @param {{ tab: string, name?: string, after: string }} wanted */
    want({ tab, name, after }) {
      const has = name && known.get(name);
      // At the same version, a tab without a place has no unfinished text.
      const isBehind = !has || versionOf(after) < versionOf(has) || (versionOf(after) === versionOf(has) && !`${after}`.includes("."));
      const isSame = tabs.get(tab) === name && (!name || !isBehind);
      tabs.delete(tab);
      if (name) {
        tabs.set(tab, name);
        if (isBehind) known.set(name, after);
      }
      if (!isSame || source?.readyState === EventSource.CLOSED) soon(30);
    },
    close() {
      clearTimeout(timer);
      clearTimeout(again);
      source?.close();
      all.close();
    },
  };
}
