// The state of the view, as the address has it: a link shows a colleague the same step.
// @ts-check

/**
 * @typedef {object} View
 * @property {string} [app]
 * @property {string} [session]
 * @property {number} [at] the version that is looked at; the newest one if absent
 * @property {string} tab
 * @property {string} panel
 * @property {string} [key] the key whose writes are listed
 * @property {string} [compare] the session that is compared with
 * @property {string} [experiment] the experiment that is looked at; empty for the newest one
 * @property {string} [spend] the groups of the spend that is looked at; empty for sessions
 * @property {string} [invalid] the address, if it cannot be read
 */

/** What there is to see of a session. */
const TABS = ["timeline", "conversation", "model", "graph", "usage", "compare"];

/** The parts of a path; none if one of them is no text in percent encoding. @param {string} path */
function partsOf(path) {
  try {
    return path.split("/").map(decodeURIComponent);
  } catch {
    return null;
  }
}

/** @param {string} hash @returns {View} */
export function read(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = partsOf(path);
  const [app, session] = parts ?? [];
  const found = new URLSearchParams(query);
  const at = found.get("v");
  return {
    app: app || undefined,
    session: session || undefined,
    at: at && /^\d+$/.test(at) ? Number(at) : undefined,
    tab: TABS.find((tab) => tab === found.get("view")) ?? "timeline",
    panel: found.get("panel") === "step" ? "step" : "state",
    key: found.get("key") ?? undefined,
    compare: found.get("with") ?? undefined,
    experiment: found.get("experiment") ?? undefined,
    spend: found.get("spend") ?? undefined,
    invalid: parts ? undefined : hash,
  };
}

/** @param {View} view */
export function write(view) {
  const query = new URLSearchParams();
  if (view.at !== undefined) query.set("v", String(view.at));
  if (view.tab !== "timeline") query.set("view", view.tab);
  if (view.panel !== "state") query.set("panel", view.panel);
  if (view.key) query.set("key", view.key);
  if (view.compare) query.set("with", view.compare);
  if (view.experiment !== undefined) query.set("experiment", view.experiment);
  if (view.spend !== undefined) query.set("spend", view.spend);
  const path = [view.app, view.session].filter(Boolean).map((part) => encodeURIComponent(part ?? "")).join("/");
  const text = query.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}
