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
 */

/** @param {string} hash @returns {View} */
export function read(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [app, session] = path.split("/").map(decoded);
  const found = new URLSearchParams(query);
  const at = found.get("v");
  return {
    app: app || undefined,
    session: session || undefined,
    at: at && /^\d+$/.test(at) ? Number(at) : undefined,
    tab: found.get("view") ?? "timeline",
    panel: found.get("panel") ?? "state",
    key: found.get("key") ?? undefined,
    compare: found.get("with") ?? undefined,
  };
}

/** A part of an address; as it is, if it is invalid: then there is no such app or session. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {View} view */
export function write(view) {
  const query = new URLSearchParams();
  if (view.at !== undefined) query.set("v", String(view.at));
  if (view.tab !== "timeline") query.set("view", view.tab);
  if (view.panel !== "state") query.set("panel", view.panel);
  if (view.key) query.set("key", view.key);
  if (view.compare) query.set("with", view.compare);
  const path = [view.app, view.session].filter(Boolean).map((part) => encodeURIComponent(part ?? "")).join("/");
  const text = query.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}
