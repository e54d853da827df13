// The commits of a session: rows of one height, of which only those in sight are in the page.
// @ts-check
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { fill, know, lookedAt, step } from "./store.js";
import { isBad, kindWord, line, outcomes, took } from "./rows.js";
import { count, cut, duration } from "./text.js";

const HEIGHT = 30;
/** No screen shows more rows than this. */
const MOST = 80;

/** The rows without those inside of what is collapsed. @param {any[]} rows @param {Set<string>} collapsed */
function shown(rows, collapsed) {
  if (!collapsed.size) return rows;
  return rows.filter((row) => !(row.path ?? []).some((/** @type {any} */ item) => collapsed.has(item.call_id)));
}

export function Timeline() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [follows, setFollows] = useState(true);
  const rows = useMemo(() => shown(know.rows, know.collapsed), [know.rows, know.collapsed]);
  const at = lookedAt();
  const slowest = useMemo(() => Math.max(1, ...rows.slice(-500).map((_, index) => took(rows, Math.max(0, rows.length - 500) + index) ?? 0)), [rows]);
  const selected = place(rows, at);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measured = new ResizeObserver(() => setHeight(element.clientHeight));
    measured.observe(element);
    return () => measured.disconnect();
  }, []);
  // The step that is looked at is in sight; the newest one, while it is live.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || selected < 0) return;
    if (know.view.at === undefined && follows) element.scrollTop = element.scrollHeight;
    else if (know.view.at !== undefined) {
      const y = selected * HEIGHT;
      if (y < element.scrollTop + HEIGHT) element.scrollTop = y - HEIGHT;
      else if (y > element.scrollTop + element.clientHeight - 2 * HEIGHT) element.scrollTop = y - element.clientHeight + 2 * HEIGHT;
    }
  }, [selected, rows.length, know.view.at]);

  const first = Math.max(0, Math.floor(top / HEIGHT) - 8);
  const last = Math.min(rows.length, first + Math.min(MOST, Math.ceil(height / HEIGHT) + 16));
  useEffect(() => {
    fill(Math.max(0, know.rows.indexOf(rows[first])), know.rows.indexOf(rows[last - 1]) + 1);
  }, [first, last, rows]);

  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const page = Math.floor(height / HEIGHT) - 1;
    const by = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length })[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = rows[Math.max(0, Math.min(rows.length - 1, selected + by))];
    if (next) step(next.version);
  };
  if (!know.loading && !rows.length) {
    return html`<div class="empty"><h2>Nothing has happened yet</h2><p>Write a message below: each step of its run becomes a row here.</p></div>`;
  }
  return html`<div class="timeline">
    <div class="rows" ref=${box} role="listbox" aria-label="Commits" tabindex="0" onKeyDown=${pressed}
      aria-activedescendant=${selected >= first && selected < last ? `row-${at}` : undefined}
      onScroll=${(/** @type {any} */ event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        setTop(scrollTop);
        setFollows(scrollHeight - scrollTop - clientHeight < 2 * HEIGHT);
      }}>
      <div role="presentation" style=${{ height: `${rows.length * HEIGHT}px` }}>
        ${rows.slice(first, last).map((row, index) => html`<${Row} key=${row.version} row=${row} y=${(first + index) * HEIGHT}
          us=${took(rows, first + index)} slowest=${slowest} size=${rows.length} place=${first + index + 1} isSelected=${row.version === at} />`)}
      </div>
    </div>
    <${Unfinished} />
  </div>`;
}

/** @param {any[]} rows @param {number} version */
function place(rows, version) {
  let low = 0;
  let high = rows.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (rows[middle].version <= version) low = middle;
    else high = middle - 1;
  }
  return rows.length ? low : -1;
}

/** @param {any} props */
function Row({ row, y, us, slowest, size, place, isSelected }) {
  const depth = row.path?.length ?? 0;
  const said = line(row);
  const isOpened = know.rows[place]?.path?.length > depth;
  const inner = know.rows[place]?.path?.[depth]?.call_id;
  const classes = ["row", `k-${row.kind}`, isSelected && "selected", !row.visible && "rewound", isBad(row) && "bad", row.version > lookedAt() && "later"];
  const effects = [...new Set((row.calls ?? []).map((/** @type {any} */ call) => call.effect).filter((/** @type {any} */ effect) => effect && effect !== "pure"))];
  const attempts = Math.max(0, ...outcomes(row).map((outcome) => outcome.attempts ?? 0));
  return html`<div id=${`row-${row.version}`} role="option" aria-selected=${isSelected} aria-setsize=${size} aria-posinset=${place}
    class=${classes.filter(Boolean).join(" ")} style=${{ transform: `translateY(${y}px)` }} onClick=${() => step(row.version)}>
    <span class="version">${row.version}</span>
    <span class="kind" style=${{ paddingLeft: `${depth * 14}px` }}>${kindWord(row)}</span>
    <span class="said" title=${said}>${isOpened && depth < 6 ? html`<span class="fold" onClick=${(/** @type {Event} */ event) => fold(event, inner)}>▾ </span>` : ""}${cut(said, 240)}</span>
    <span class="tags">${!row.visible ? "rewound" : [...effects.map((effect) => String(effect).replaceAll("_", "-")), attempts > 1 ? `${attempts} attempts` : ""].filter(Boolean).join(" · ")}</span>
    <span class="tokens">${row.usage && row.usage.input_tokens + row.usage.output_tokens > 0 ? `${count(row.usage.input_tokens)} → ${count(row.usage.output_tokens)}` : ""}</span>
    <span class="took">${duration(us)}<i style=${{ width: `${Math.round(((us ?? 0) / slowest) * 36)}px` }}></i></span>
  </div>`;
}

/** @param {Event} event @param {string} call */
function fold(event, call) {
  event.stopPropagation();
  know.collapsed = new Set(know.collapsed).add(call);
  step(lookedAt());
}

/** What runs and is not stored yet. */
function Unfinished() {
  const { text, reasoning, calls, tools } = know.unfinished;
  if (!know.detail?.running || know.view.at !== undefined) return null;
  const open = [...Object.values(calls).map((/** @type {any} */ call) => `${call.name ?? ""}(${call.arguments}`),
    ...Object.values(tools).map((/** @type {any} */ tool) => `${tool.name} ${tool.status ?? "runs"}${tool.report ? ` · ${JSON.stringify(tool.report)}` : ""}`)];
  const said = open.join("   ") || text || (reasoning ? `thinks: ${reasoning}` : "waits for the model");
  return html`<p class="unfinished"><span class="pulse" aria-hidden="true"></span>${said.slice(-240)}</p>`;
}
