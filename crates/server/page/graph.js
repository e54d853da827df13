// The graph of an app, in layers, lit by what happened until the version that is looked at, and by what runs.
// @ts-check
import { html, useMemo } from "./html.js";
import { know, lookedAt, step } from "./store.js";
import { cut, short } from "./text.js";

const [HIGH, GAP_X, GAP_Y] = [46, 34, 46];
/** The width of a letter, and the most letters of a name in a box. */
const [LETTER, MOST] = [7.6, 32];

/** Layers by the longest way from the start that has no circle; within a layer, by the middle of what leads there. @param {import("./types").Shape} shape */
function layout(shape) {
  const named = (/** @type {string} */ name) => (name === "__start__" ? "START" : name === "__end__" ? "END" : name);
  const edges = shape.edges.map((edge) => ({ ...edge, from: named(edge.from), to: named(edge.to) }));
  const names = [...new Set(["START", ...shape.nodes.map((node) => node.name), "END"])];
  /** @type {Map<string, string[]>} */
  const next = new Map(names.map((name) => [name, []]));
  for (const edge of edges) next.get(edge.from)?.push(edge.to);
  /** @type {Map<string, number>} */
  const layer = new Map();
  const back = new Set();
  /** @param {string} name @param {Set<string>} above */
  const circles = (name, above) => {
    for (const to of next.get(name) ?? []) {
      if (above.has(to)) back.add(`${name}>${to}`);
      else if (!seen.has(to)) {
        seen.add(to);
        circles(to, new Set(above).add(to));
      }
    }
  };
  const seen = new Set(["START"]);
  circles("START", new Set(["START"]));
  for (const name of names) layer.set(name, 0);
  for (let turn = 0; turn < names.length; turn += 1) {
    let isStill = true;
    for (const { from, to } of edges) {
      if (back.has(`${from}>${to}`) || from === to) continue;
      const least = (layer.get(from) ?? 0) + 1;
      if (least > (layer.get(to) ?? 0) && least <= names.length) {
        layer.set(to, least);
        isStill = false;
      }
    }
    if (isStill) break;
  }
  layer.set("END", Math.max(...layer.values(), (layer.get("END") ?? 0)));
  /** @type {string[][]} */
  const layers = [];
  const used = [...new Set(layer.values())].sort((a, b) => a - b);
  for (const name of names) (layers[used.indexOf(layer.get(name) ?? 0)] ??= []).push(name);
  const most = Math.max(...layers.map((one) => one?.length ?? 0));
  const wide = Math.max(110, Math.min(MOST, Math.max(...names.map((name) => name.length))) * LETTER + 24);
  /** @type {Map<string, { x: number, y: number }>} */
  const places = new Map();
  layers.forEach((inside, depth) => {
    const middle = (/** @type {string} */ name) => {
      const from = edges.filter((edge) => edge.to === name && places.has(edge.from)).map((edge) => places.get(edge.from)?.x ?? 0);
      return from.length ? from.reduce((/** @type {number} */ sum, /** @type {number} */ x) => sum + x, 0) / from.length : 0;
    };
    [...(inside ?? [])].sort((a, b) => middle(a) - middle(b)).forEach((name, index, all) =>
      places.set(name, { x: 60 + ((most - all.length) / 2 + index) * (wide + GAP_X), y: 12 + depth * (HIGH + GAP_Y) }));
  });
  return { places, back, edges, wide, width: 120 + most * (wide + GAP_X), height: 24 + layers.length * (HIGH + GAP_Y) - GAP_Y };
}

/** How often each node was done until the version. */
function counts() {
  /** @type {Record<string, { done: number, failed: number, version: number }>} */
  const found = {};
  for (const row of know.rows) {
    if (row.version > lookedAt() || !row.visible) continue;
    if (!row.path?.length && (row.exit || row.kind === "began")) found[row.exit ? "END" : "START"] = { done: 0, failed: 0, version: row.version };
    for (const outcome of row.outcomes ?? []) {
      const node = (found[outcome.name] ??= { done: 0, failed: 0, version: 0 });
      node[outcome.status === "failed" ? "failed" : "done"] += 1;
      node.version = row.version;
    }
    for (const item of row.path ?? []) {
      if (item.kind === "node") (found[item.name] ??= { done: 0, failed: 0, version: 0 }).version = row.version;
    }
  }
  for (const [name, times] of Object.entries(know.states.get(lookedAt())?.values?.execution_counts ?? {})) {
    const node = (found[name] ??= { done: 0, failed: 0, version: 0 });
    node.done = Math.max(node.done, Number(times) - node.failed);
  }
  return found;
}

export function Graph() {
  const { shape } = know;
  const laid = useMemo(() => shape && layout(shape), [shape]);
  if (!shape || !laid) return html`<div class="empty"><h2>This agent is no graph</h2><p>An agent file with <code>nodes</code> and <code>edges</code> is drawn here, and lit while it runs.</p></div>`;
  const done = counts();
  const { tasks, overall_progress: progress } = know.states.get(lookedAt())?.values ?? {};
  return html`<div class="graph" tabindex="0" role="region" aria-label="Graph">
    <svg viewBox=${`0 0 ${laid.width} ${laid.height}`} style=${{ maxWidth: `${laid.width}px` }} role="img" aria-label=${`Graph ${shape.name}: ${shape.nodes.map((node) => node.name).join(", ")}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z" /></marker></defs>
      ${laid.edges.map((edge) => html`<${Edge} edge=${edge} laid=${laid} />`)}
      ${[...laid.places].map(([name, { x, y }]) => {
        const node = done[name];
        const live = know.unfinished.nodes[name];
        const isEnd = name === "START" || name === "END";
        const words = [live?.running ? `${live.running} running` : "", node?.done ? `${node.done} done` : "", node?.failed ? `${node.failed} failed` : ""].filter(Boolean).join(" · ");
        return html`<g class=${`node${live?.running ? " lit" : ""}${node ? " done" : ""}${node?.failed ? " failed" : ""}${isEnd ? " end" : ""}`} transform=${`translate(${x} ${y})`} onClick=${() => node?.version && step(node.version)}>
          <title>${name}</title><rect width=${laid.wide} height=${HIGH} rx="6" /><text x=${laid.wide / 2} y=${words ? 20 : 28}>${cut(name, MOST)}</text>${words && html`<text class="words" x=${laid.wide / 2} y="36">${words}</text>`}</g>`;
      })}
    </svg>
    <table><thead><tr><th>node</th><th>done</th><th>failed</th><th>last</th></tr></thead><tbody>
      ${shape.nodes.map((/** @type {any} */ { name }) => html`<tr><td>${name}</td><td>${done[name]?.done ?? 0}</td><td>${done[name]?.failed ?? 0}</td>
        <td>${done[name]?.version ? html`<button type="button" class="link" onClick=${() => step(done[name].version)}>v${done[name].version}</button>` : ""}</td></tr>`)}</tbody></table>
    ${Array.isArray(tasks) && tasks.length > 0 && html`<table><caption>Tasks${progress === undefined ? "" : `: ${progress} %`}</caption><tbody>
      ${tasks.map((task) => html`<tr><td>${short(task.title ?? task.id)}</td><td>${short(task.status ?? "pending")}</td></tr>`)}</tbody></table>`}
  </div>`;
}

/** @param {{ edge: any, laid: any }} props */
function Edge({ edge, laid }) {
  const [from, to] = [laid.places.get(edge.from), laid.places.get(edge.to)];
  if (!from || !to) return null;
  const isBack = laid.back.has(`${edge.from}>${edge.to}`) || edge.from === edge.to;
  const label = edge.kind === "each" ? `for each of ${edge.of ?? ""}` : edge.kind === "on_error" ? "on error" : edge.kind === "at_limit" ? "at the limit" : "";
  const [x1, y1] = isBack ? [from.x + laid.wide, from.y + HIGH / 2] : [from.x + laid.wide / 2, from.y + HIGH];
  const [x2, y2] = isBack ? [to.x + laid.wide, to.y + HIGH / 2] : [to.x + laid.wide / 2, to.y];
  const side = Math.max(x1, x2) + 76;
  const path = isBack ? `M${x1} ${y1}C${side} ${y1} ${side} ${y2} ${x2} ${y2}` : `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
  return html`<g class=${`edge ${edge.kind}`}><path d=${path} marker-end="url(#tip)" />${label && html`<text x=${(x1 + x2) / 2 + 6} y=${(y1 + y2) / 2 + 4}>${label}</text>`}</g>`;
}
