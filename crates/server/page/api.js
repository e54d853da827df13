// The API of the server: requests, and the one stream that a page holds.
// @ts-check
import { read, write } from "./json.js";

export const ROOT = "/api/v1";

/** A refused request. */
export class Refused extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    const why = body?.detail ?? body?.error?.message ?? body?.message ?? body?.title ?? `the server answered ${status}`;
    // The page shows which session it is about, and the call of a request.
    super(why.replace(/^session \S+: (invalid decision: |run (failed|waits) after step \d+: )?/, "").replace(/#\w+`/g, "`"));
    this.status = status;
    this.body = body;
  }
}

/** A request that the server was not reached with, or whose answer was cut. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached. The page goes on when it is back.");
  }
}

/**
 * A body that is a text is JSON already.
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
  const body = more.body === undefined ? undefined : typeof more.body === "string" ? more.body : write(more.body);
  const { response, text } = await fetch(ROOT + path + query, { method, headers, body, signal: more.signal })
    .then(async (response) => ({ response, text: await response.text() }))
    .catch((error) => Promise.reject(error instanceof TypeError ? new Unreachable() : error));
  let value = null;
  try {
    value = text ? read(text) : null;
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

/** @param {string} [app] */
export const appPath = (app = "") => `/apps/${encodeURIComponent(app)}`;
/** @param {string} [app] @param {string} [session] */
export const sessionPath = (app, session = "") => `${appPath(app)}/sessions/${encodeURIComponent(session)}`;

/** A key with which a request that is sent twice counts once. Not `randomUUID`, which plain HTTP to other hosts has not. */
export const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");
