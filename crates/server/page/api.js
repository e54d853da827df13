// The API of the server: requests, and the one stream that a page holds.
// @ts-check

const ROOT = "/api/v1";

/** A refused request. */
export class Refused extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    super(body?.detail ?? body?.error?.message ?? body?.message ?? body?.title ?? `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

/**
 * @param {string} method
 * @param {string} path
 * @param {{ body?: any, query?: Record<string, any>, signal?: AbortSignal, key?: string, token?: string }} [more]
 * @returns {Promise<any>}
 */
export async function ask(method, path, more = {}) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (method !== "GET") headers["content-type"] = "application/json";
  if (more.key) headers["idempotency-key"] = more.key;
  if (more.token) headers.authorization = `Bearer ${more.token}`;
  const given = Object.entries(more.query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const query = given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
  const body = more.body === undefined ? undefined : JSON.stringify(more.body);
  const response = await fetch(ROOT + path + query, { method, headers, body, signal: more.signal });
  const text = await response.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = text;
  }
  if (!response.ok) throw new Refused(response.status, value);
  return value;
}

/** @param {string} path @param {Record<string, any>} [query] @param {AbortSignal} [signal] */
export const get = (path, query, signal) => ask("GET", path, { query, signal });
/** @param {string} path @param {any} [body] @param {{ key?: string }} [more] */
export const post = (path, body, more) => ask("POST", path, { body, ...more });

/** @param {string} app */
export const appPath = (app) => `/apps/${encodeURIComponent(app)}`;
/** @param {string} app @param {string} session */
export const sessionPath = (app, session) => `${appPath(app)}/sessions/${encodeURIComponent(session)}`;

/** What the server does not have is null: older servers have less. @param {Promise<any>} asked */
export async function optional(asked) {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof Refused && [400, 404, 405, 422].includes(error.status)) return null;
    throw error;
  }
}

const EVENTS = ["hello", "committed", "text", "reasoning", "call", "tool_started", "progress", "tool_progress",
  "tool_finished", "node_started", "node_finished", "output", "asking", "running", "paused", "waiting", "ended",
  "failed", "reset", "bye", "gone", "session", "inner"];

/**
 * Follows a stream. The browser connects again by itself, and what was missed comes first; after a refusal it is asked
 * anew, from the version that is known then.
 * @param {() => string} path
 * @param {(name: string, data: any) => void} heard
 * @param {(state: "live" | "lost") => void} changed
 * @returns {() => void} ends it
 */
export function follow(path, heard, changed) {
  /** @type {EventSource | null} */
  let source = null;
  let timer = 0;
  let wait = 500;
  const open = () => {
    source = new EventSource(ROOT + path());
    source.onopen = () => {
      wait = 500;
      changed("live");
    };
    source.onerror = () => {
      changed("lost");
      if (source?.readyState !== EventSource.CLOSED) return;
      timer = window.setTimeout(open, wait);
      wait = Math.min(wait * 2, 8000);
    };
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => heard(name, JSON.parse(/** @type {MessageEvent} */ (event).data)));
    }
  };
  open();
  return () => {
    clearTimeout(timer);
    source?.close();
  };
}
