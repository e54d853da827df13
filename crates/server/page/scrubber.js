// Any version of the session, by dragging or by keys: a column for each commit, as high as it took long.
// @ts-check
import { html, useMemo, useRef } from "./html.js";
import { know, lookedAt, placeOf, step, turn } from "./store.js";
import { kindWord } from "./rows.js";
import { cut, duration, moment } from "./text.js";

const COLUMNS = 400;
/** A short session does not fill the width. */
const LEAST = 30;

/** The columns; above them a mark for each write of the key, and below for names and forks. @param {import("./types").Row[]} rows @param {string} [key] */
function draw(rows, key) {
  const each = Math.max(1, rows.length / COLUMNS);
  const columns = Math.ceil(rows.length / each);
  const paths = /** @type {Record<string, string>} */ ({ replied: "", answered: "", other: "", rewound: "", wrote: "", named: "" });
  const named = new Set([...know.labels, ...know.forks].map((one) => one.version));
  let turns = "";
  for (let column = 0; column < columns; column += 1) {
    const [from, to] = [Math.floor(column * each), Math.max(Math.floor(column * each) + 1, Math.floor((column + 1) * each))];
    let longest = 0;
    const bin = rows.slice(from, to);
    for (const one of bin) longest = Math.max(longest, one.latency_us ?? 0);
    if (key && bin.some((one) => one.writes.some((write) => write.key === key))) paths.wrote += `M${column + 0.3} 0h0.4v4h-0.4z`;
    if (bin.some((one) => named.has(one.version))) paths.named += `M${column + 0.15} 29h0.7v3h-0.7z`;
    const row = rows[from];
    const height = 3 + Math.min(21, Math.log10(1 + longest / 200) * 5);
    const kind = !row.visible ? "rewound" : row.kind === "answered" ? row.kind : row.usage || row.kind === "replied" ? "replied" : "other";
    paths[kind] += `M${column + 0.15} 28v-${height.toFixed(1)}h0.7v${height.toFixed(1)}z`;
    if (row.kind === "began" && each === 1 && !row.path?.length) turns += `M${column + 0.1} 0v28`;
  }
  return { columns: Math.max(columns, LEAST), paths, turns };
}

export function Scrubber() {
  const track = useRef();
  const { rows } = know;
  const drawn = useMemo(() => draw(rows, know.view.key), [rows, know.view.key, know.labels, know.forks]);
  const at = lookedAt();
  if (rows.length < 1) return null;
  const index = Math.max(0, placeOf(at));
  const row = rows[index];
  const wide = Math.max(rows.length, LEAST);
  /** @param {PointerEvent} event */
  const drag = (event) => {
    const element = track.current;
    if (!element) return;
    const box = element.getBoundingClientRect();
    const under = rows[Math.max(0, Math.min(rows.length - 1, Math.floor(((event.clientX - box.left) / box.width) * wide)))];
    element.title = `v${under.version} · ${kindWord(under)} · ${duration(under.latency_us) || moment(under.at)}`;
    if (event.type === "pointerdown") element.setPointerCapture(event.pointerId);
    else if (!event.buttons) return;
    step(under.version);
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const to = /** @type {Record<string, () => void>} */ ({
      ArrowLeft: () => step(at - 1), ArrowRight: () => step(at + 1), ArrowDown: () => step(at - 1), ArrowUp: () => step(at + 1),
      PageUp: () => turn(1), PageDown: () => turn(-1), Home: () => step(0), End: () => step(know.version),
    })[event.key];
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    to();
  };
  return html`<div class="scrubber">
    <button class="plain" aria-label="Step back" onClick=${() => step(at - 1)} disabled=${index === 0}>‹</button>
    <div class="track" ref=${track} role="slider" tabindex="0" aria-label="Version" aria-valuemin=${rows[0].version} aria-valuemax=${know.version}
      aria-valuenow=${at} aria-valuetext=${`version ${at} of ${know.version}: ${kindWord(row)}`} onPointerDown=${drag} onPointerMove=${drag} onKeyDown=${pressed}>
      <svg viewBox=${`0 0 ${drawn.columns} 32`} preserveAspectRatio="none" aria-hidden="true">
        <path class="turns" d=${drawn.turns} />
        ${Object.entries(drawn.paths).map(([kind, path]) => html`<path class=${`c-${kind}`} d=${path} />`)}
      </svg>
      <i class="after" style=${{ left: `${((index + 1) / wide) * 100}%` }}></i>
      <i class="thumb" style=${{ left: `${((index + 0.5) / wide) * 100}%` }}></i>
    </div>
    <button class="plain" aria-label="Step on" onClick=${() => step(at + 1)} disabled=${at >= know.version}>›</button>
    <p class="where"><b>v${at}</b> of ${know.version}<span class="quiet"> · ${kindWord(row)} · ${moment(row.at)}</span>
      ${know.view.at !== undefined && html` <button class="link" onClick=${() => step(know.version)}>to the newest</button>`}
      <span class="legends" aria-hidden="true">${[["replied", "model"], ["answered", "tools"], ["other", "other"]].map(([kind, word]) => html`<span class=${know.view.key ? "aside" : ""}><svg class="legend"><rect class=${`c-${kind}`} width="9" height="9" /></svg> ${word} </span>`)}${know.view.key ? html`<svg class="legend"><rect class="c-wrote" width="9" height="9" /></svg> writes of ${cut(know.view.key, 24)}` : html`<span class="aside">· height: duration</span>`}</span></p>
  </div>`;
}
