// Two runs side by side, from what they share.
// @ts-check
import { html, useEffect } from "./html.js";
import { callOf, compareWith, go, know, placeOf } from "./store.js";
import { kindWord, line } from "./rows.js";
import { cut, Value } from "./text.js";
import { open } from "./act.js";

export function Compare() {
  const other = know.view.compare ?? know.detail?.parent?.id;
  useEffect(() => {
    if (other && know.comparison?.with !== other) compareWith(other);
  }, [other, know.view.session]);
  if (!other) return html`<div class="empty"><h2>Compare two runs</h2><p>See two sessions side by side, from the version up to which they are the same.</p><button class="main" onClick=${() => open("compare")}>Choose a session</button></div>`;
  const found = know.comparison;
  if (!found || found.busy) return html`<p class="quiet">…</p>`;
  const { left, right, aligned } = found;
  if (!left || !right || !aligned) return html`<p class="quiet">It could not be compared.</p>`;
  const [here, there] = [left, right].map((rows) => new Map(rows.map((row) => [row.version, row])));
  // A call is named where it was made: after the shared history, or in it.
  const find = (/** @type {import("./types").Row[]} */ rows) => (/** @type {string} */ id) => rows.flatMap((row) => row.calls ?? []).findLast((call) => call.id === id) ?? callOf(id, placeOf(found.common ?? 0) + 1);
  const first = aligned.find((pair) => !pair.same);
  return html`<div class="compare" tabindex="0" role="region" aria-label="Comparison">
    <p>${found.common ? `Shared history: v1 to v${found.common}. ` : "No shared history. "}${first ? `First difference: ${[here.get(first.left ?? 0), there.get(first.right ?? 0)].map((row) => (row ? `v${row.version} ${kindWord(row)}` : "the end")).join(" here, ")} there.` : "There is no difference."}</p>
    <table><thead><tr><th>${know.view.session}</th><th><button class="link" onClick=${() => go({ session: other, tab: "timeline", compare: undefined })}>${other}</button> · <button class="link" onClick=${() => open("compare")}>choose another</button></th></tr></thead>
      <tbody>${aligned.slice(0, 400).map((pair) => html`<tr class=${pair.same ? "same" : "different"}><td><${Side} row=${here.get(pair.left ?? 0)} find=${find(left)} /></td><td><${Side} row=${there.get(pair.right ?? 0)} find=${find(right)} session=${other} /></td></tr>`)}</tbody></table>
    <h2>State</h2>
    ${found.changed?.length ? html`<table><thead><tr><th>key</th><th>${know.view.session}</th><th>${other}</th></tr></thead><tbody>
      ${found.changed.map((row) => html`<tr><td>${row.key}</td><td><${Value} value=${row.before} most=${500} /></td><td><${Value} value=${row.after} most=${500} /></td></tr>`)}</tbody></table>` : html`<p class="quiet">Both have the same values.</p>`}
  </div>`;
}

/** @param {{ row?: import("./types").Row, find: (id: string) => any, session?: string }} props */
function Side({ row, find, session }) {
  return row ? html`<button class="link" onClick=${() => go(session ? { session, at: row.version } : { at: row.version, tab: "timeline" })}>v${row.version}</button> <b>${kindWord(row)}</b> <bdi>${cut(line(row, find), 200)}</bdi>` : "";
}
