// The graph of an app, in layers, lit by what happened until the version that is looked at, and by what runs.
// @ts-check
import { html, useMemo, visible } from "./html.js";
import { know, lookedAt, step } from "./store.js";
import { short } from "./text.js";

const [HIGH, GAP_X, GAP_Y] = [46, 34, 40];
/** A box is as wide as its name, within these bounds: a longer name is cut, and its title has the whole. */
const [LEAST, MOST] = [96, 260];
/** Room at the sides of the text in a box. */
const INSET = 12;

/** @type {CanvasRenderingContext2D | null | undefined} */
let pen;
/** How wide a text is drawn. @param {string} text @param {number} size */
function widthOf(text, size) {
  pen ??= document.createElement("canvas").getContext("2d");
  if (!pen) return text.length * size * 0.65;
  pen.font = `${size}px ${getComputedStyle(document.documentElement).fontFamily}`;
  return pen.measureText(text).width;
}

/** The text, or as much of its beginning as has room. @param {string} text @param {number} size @param {number} room */
function fit(text, size, room) {
  if (widthOf(text, size) <= room) return text;
  const letters = [...text];
  while (letters.length && widthOf(`${letters.join("")}…`, size) > room) letters.pop();
  return `${letters.join("")}…`;
}

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
  const widths = new Map(names.map((name) => [name, Math.max(LEAST, Math.min(MOST, Math.ceil(widthOf(visible(name), 14)) + 2 * INSET))]));
  const widthIn = (/** @type {string[]} */ inside) => inside.reduce((sum, name) => sum + (widths.get(name) ?? 0) + GAP_X, -GAP_X);
  const most = Math.max(...layers.map(widthIn));
  /** @type {Map<string, { x: number, y: number, width: number }>} */
  const places = new Map();
  const centre = (/** @type {string} */ name) => (places.get(name)?.x ?? 0) + (places.get(name)?.width ?? 0) / 2;
  layers.forEach((inside, depth) => {
    const middle = (/** @type {string} */ name) => {
      const from = edges.filter((edge) => edge.to === name && places.has(edge.from)).map((edge) => centre(edge.from));
      return from.length ? from.reduce((/** @type {number} */ sum, /** @type {number} */ x) => sum + x, 0) / from.length : 0;
    };
    let x = 4 + (most - widthIn(inside)) / 2;
    for (const name of [...inside].sort((a, b) => middle(a) - middle(b))) {
      const width = widths.get(name) ?? 0;
      places.set(name, { x, y: 4 + depth * (HIGH + GAP_Y), width });
      x += width + GAP_X;
    }
  });
  // Edges that lead back stand on the right of boxes and of the words beside other edges.
  const right = Math.max(8 + most, ...edges.filter(labelOf).map((edge) => (centre(edge.from) + centre(edge.to)) / 2 + 14 + widthOf(labelOf(edge), 12)));
  const side = edges.some((edge) => isBack(edge, back)) ? right + SIDE : 0;
  return { places, back, edges, side, width: Math.max(right, side + 4), height: 8 + layers.length * (HIGH + GAP_Y) - GAP_Y };
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
    <svg viewBox=${`0 0 ${laid.width} ${laid.height}`} style=${{ width: `${laid.width}px`, minWidth: `${Math.round(laid.width * 0.75)}px` }} role="img" aria-label=${`Graph ${shape.name}: ${shape.nodes.map((node) => node.name).join(", ")}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z" /></marker></defs>
      ${laid.edges.map((edge) => html`<${Edge} edge=${edge} laid=${laid} />`)}
      ${[...laid.places].map(([name, { x, y, width }]) => {
        const node = done[name];
        const live = know.unfinished.nodes[name];
        const isEnd = name === "START" || name === "END";
        const told = [live?.running ? `${live.running} running` : "", node?.done ? `${node.done} done` : "", node?.failed ? `${node.failed} failed` : ""].filter(Boolean).join(" · ");
        const [title, words] = [fit(visible(name), 14, width - 2 * INSET + 1), fit(told, 11.5, width - 8)];
        return html`<g class=${`node${live?.running ? " lit" : ""}${node ? " done" : ""}${node?.failed ? " failed" : ""}${isEnd ? " end" : ""}`} transform=${`translate(${x} ${y})`} onClick=${() => node?.version && step(node.version)}>
          <title>${told ? `${name}: ${told}` : name}</title><rect width=${width} height=${HIGH} rx="6" /><text x=${width / 2} y=${words ? 20 : 28}>${title}</text>${words && html`<text class="words" x=${width / 2} y="36">${words}</text>`}</g>`;
      })}
    </svg>
    <div class="tables"><table><thead><tr><th>node</th><th>done</th><th>failed</th><th>last</th></tr></thead><tbody>
      ${shape.nodes.map((/** @type {any} */ { name }) => html`<tr><td>${name}</td><td>${done[name]?.done ?? 0}</td><td>${done[name]?.failed ?? 0}</td>
        <td>${done[name]?.version ? html`<button class="link" onClick=${() => step(done[name].version)}>v${done[name].version}</button>` : ""}</td></tr>`)}</tbody></table>
    ${Array.isArray(tasks) && tasks.length > 0 && html`<table><caption>Tasks${progress === undefined ? "" : `: ${progress} %`}</caption><tbody>
      ${tasks.map((task) => html`<tr><td dir="auto">${short(task.title ?? task.id)}</td><td>${short(task.status ?? "pending")}</td></tr>`)}</tbody></table>`}</div>
  </div>`;
}

/** How far an edge that leads back stands out. */
const SIDE = 24;
/** @param {any} edge @param {Set<string>} back */
const isBack = (edge, back) => back.has(`${edge.from}>${edge.to}`) || edge.from === edge.to;
/** @param {any} edge */
const labelOf = (edge) => (edge.kind === "each" ? `for each of ${edge.of ?? ""}` : edge.kind === "on_error" ? "on error" : edge.kind === "at_limit" ? "at the limit" : "");

/** @param {{ edge: any, laid: any }} props */
function Edge({ edge, laid }) {
  const [from, to] = [laid.places.get(edge.from), laid.places.get(edge.to)];
  if (!from || !to) return null;
  const leadsBack = isBack(edge, laid.back);
  const label = labelOf(edge);
  const [x1, y1] = leadsBack ? [from.x + from.width, from.y + HIGH / 2] : [from.x + from.width / 2, from.y + HIGH];
  const [x2, y2] = leadsBack ? [to.x + to.width, to.y + HIGH / 2] : [to.x + to.width / 2, to.y];
  // A curve reaches three quarters of the way to its handles.
  const side = (laid.side - (x1 + x2) / 8) / 0.75;
  const path = leadsBack ? `M${x1} ${y1}C${side} ${y1} ${side} ${y2} ${x2} ${y2}` : `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`;
  return html`<g class=${`edge ${edge.kind}`}><path d=${path} marker-end="url(#tip)" />${label && html`<text x=${(x1 + x2) / 2 + 6} y=${(y1 + y2) / 2 + 4}>${label}</text>`}</g>`;
}
