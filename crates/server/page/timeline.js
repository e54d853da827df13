// The commits of a session: rows of one height, of which only those in sight are in the page.
// @ts-check
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { callOf, changed, effectOf, fill, go, know, lookedAt, placeOf, step } from "./store.js";
import { isBad, kindWord, line, nameOf } from "./rows.js";
import { count, cut, duration, short, words } from "./text.js";

/** @typedef {import("./types").Row} Row */

const HEIGHT = 30;
/** When rows were filled last. */
let filled = 0;
/** No screen shows more rows than this. */
const MOST = 80;

/** @param {Row | undefined} row */
const depthOf = (row) => row?.path?.length ?? 0;

/** The rows without those inside of what is collapsed. @param {Row[]} rows @param {Set<number>} collapsed */
function unfolded(rows, collapsed) {
  let hidden = Infinity;
  return rows.filter((row) => {
    if (depthOf(row) > hidden) return false;
    hidden = collapsed.has(row.version) ? depthOf(row) : Infinity;
    return true;
  });
}

/** Shows or hides the commits inside of the next one. @param {Row} row */
function fold(row) {
  const collapsed = new Set(know.collapsed);
  if (!collapsed.delete(row.version)) collapsed.add(row.version);
  know.collapsed = collapsed;
  changed();
}

/** What was done with versions: names, and sessions that begin there. @returns {Map<number, { text: string, fork?: string }[]>} */
function marks() {
  const found = new Map();
  const add = (/** @type {number} */ version, /** @type {any} */ mark) => found.set(version, [...(found.get(version) ?? []), mark]);
  for (const { label, version } of know.labels) add(version, { text: `⚑ ${label}` });
  for (const { id, version } of know.forks) add(version, { text: `↳ ${id}`, fork: id });
  if (know.replay) add(know.replay, { text: "≠ replay differs" });
  return found;
}

export function Timeline() {
  const box = useRef();
  // The first row in sight; not each pixel, nor each row, is drawn anew.
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [follows, setFollows] = useState(true);
  const scrolled = useRef(0);
  const rows = useMemo(() => unfolded(know.rows, know.collapsed), [know.rows, know.collapsed]);
  const marked = useMemo(marks, [know.labels, know.forks, know.replay]);
  const slowest = useMemo(() => know.rows.slice(-500).reduce((most, row) => Math.max(most, row.latency_us ?? 0), 1), [know.rows]);
  const at = lookedAt();
  const selected = placeOf(at, rows);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measured = new ResizeObserver(() => setHeight(element.clientHeight));
    measured.observe(element);
    return () => measured.disconnect();
  }, [!rows.length]);
  // The step that is looked at is in sight; the newest one, while it is live.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || selected < 0) return;
    const y = selected * HEIGHT;
    if (know.view.at === undefined) element.scrollTop = follows ? element.scrollHeight : element.scrollTop;
    else if (y < element.scrollTop + HEIGHT) element.scrollTop = y - HEIGHT;
    else if (y > element.scrollTop + element.clientHeight - 2 * HEIGHT) element.scrollTop = y - element.clientHeight + 2 * HEIGHT;
  }, [selected, rows.length, know.view.at]);

  // Also when something above it takes or leaves room.
  useLayoutEffect(() => {
    if (box.current && follows && know.view.at === undefined) box.current.scrollTop = box.current.scrollHeight;
  }, [height]);

  const most = Math.min(MOST, Math.ceil(height / HEIGHT) + 10);
  const first = Math.max(0, top - 4);
  const last = Math.min(rows.length, first + most);
  useEffect(() => {
    if (!rows[first]) return;
    // At once, and where it is scrolled, now and then and when it stands.
    const timer = setTimeout(() => {
      filled = performance.now();
      fill(placeOf(rows[first].version), placeOf(rows[last - 1].version) + 1);
    }, Math.min(120, filled + 400 - performance.now()));
    return () => clearTimeout(timer);
  }, [first, last, rows]);

  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const page = Math.floor(height / HEIGHT) - 1;
    const by = /** @type {Record<string, number>} */ ({ ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length })[event.key];
    if (event.key === "Enter" || event.key === " ") fold(rows[selected]);
    else if (by === undefined) return;
    else step(rows[Math.max(0, Math.min(rows.length - 1, placeOf(lookedAt(), rows) + by))].version);
    event.preventDefault();
    event.stopPropagation();
  };
  if (!rows.length) {
    return know.loading ? html`<p class="quiet">…</p>`
      : html`<div class="empty"><h2>No steps yet</h2><p>Send a message: each step of the run is listed here.</p></div>`;
  }
  return html`<div class="timeline">
    <div class="rows" ref=${box} role="tree" aria-label="Commits" tabindex="0" onKeyDown=${pressed}
      aria-owns=${rows.slice(first, last).map((row) => `row-${row.version}`).join(" ")} aria-activedescendant=${selected >= first && selected < last ? `row-${rows[selected].version}` : undefined}
      onScroll=${(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        setTop(Math.floor(scrollTop / HEIGHT / 4) * 4);
        // It is left by scrolling up only: the end may move away by itself.
        const isUp = scrollTop < scrolled.current;
        scrolled.current = scrollTop;
        setFollows((was) => scrollHeight - scrollTop - clientHeight < 2 * HEIGHT || (was && !isUp));
      }}>
      <div role="presentation" style=${{ height: `${rows.length * HEIGHT}px` }}>
        ${rows.slice(first, last).map((row, index) => html`<${Commit} key=${(first + index) % most} row=${row} place=${first + index} size=${rows.length}
          slowest=${slowest} marks=${marked.get(row.version)} isSelected=${first + index === selected} isLater=${row.version > at} />`).sort((a, b) => a.key - b.key)}
      </div>
    </div>
    <${Unfinished} />
  </div>`;
}

/** @param {{ row: Row, place: number, size: number, slowest: number, marks?: { text: string, fork?: string }[], isSelected: boolean, isLater: boolean }} props */
function Commit({ row, place, size, slowest, marks, isSelected, isLater }) {
  const depth = depthOf(row);
  const at = placeOf(row.version);
  const isOpen = depthOf(know.rows[at + 1]) > depth ? !know.collapsed.has(row.version) : undefined;
  // What a decision is about may be filled later.
  const of = (row.decisions && nameOf(row.decisions[0].request)) ?? row.started?.[0].call_id ?? Object.keys(row.edited?.arguments ?? {})[0];
  const about = of && callOf(of, at)?.arguments;
  return useMemo(() => drawn(), [row, row.is_brief, place, size, slowest, marks, isSelected, isLater, isOpen, about, know.app]);

  function drawn() {
    const inside = depth ? `${row.path?.[depth - 1].call_id} ` : "";
    const said = row.kind === "rewind" ? `back to v${know.rows.slice(0, at).findLast((one) => one.visible)?.version ?? 0}` : line(row, (id) => callOf(id, at));
    const us = row.latency_us;
    const classes = ["row", `k-${row.kind}`, depth && "inner", isSelected && "selected", !row.visible && "rewound", isBad(row) && "bad", isLater && "later"];
    return html`<div id=${`row-${row.version}`} role="treeitem" aria-level=${depth + 1} aria-expanded=${isOpen} aria-selected=${isSelected} aria-setsize=${size} aria-posinset=${place + 1}
      class=${classes.filter(Boolean).join(" ")} style=${{ transform: `translateY(${place * HEIGHT}px)` }} onClick=${() => step(row.version)}>
      <span class="version">${row.version}</span>
      <span class="kind" title=${kindWord(row)}>${kindWord(row)}</span>
      <span class="said" dir="auto" style=${{ paddingInlineStart: `min(${depth * 12}px, 24%)` }} title=${cut(said, 1000)}>${isOpen !== undefined && html`<button class="fold" dir="ltr" tabindex="-1" aria-hidden="true" onClick=${(event) => { event.stopPropagation(); fold(row); }}>${isOpen ? "▾" : "▸"}</button>`}${inside && html`<span class="quiet" dir="ltr">${inside}</span>`}${cut(said, 240)}</span>
      <span class="tags">${marks?.map((mark) => html`<b class="mark" dir="auto" title=${mark.text} onClick=${(event) => { if (mark.fork) { event.stopPropagation(); go({ session: mark.fork }); } }}>${mark.text}</b> `)}<span class="wrote">${tags(row)}</span></span>
      <span class="tokens" title=${row.usage && "tokens: input → output"}>${row.usage && row.usage.input_tokens + row.usage.output_tokens > 0 ? `${count(row.usage.input_tokens)} → ${count(row.usage.output_tokens)}` : ""}</span>
      <span class="took">${us ? duration(us) : ""}<i style=${{ width: `${Math.round(((us ?? 0) / slowest) * 36)}px` }}></i></span>
    </div>`;
  }
}

/** What is worth to know of the calls of a commit. @param {Row} row */
function tags(row) {
  if (!row.visible) return "rewound";
  const effects = new Set((row.calls ?? []).map((call) => effectOf(call.name)).filter((effect) => effect && effect !== "pure"));
  const wrote = new Set([...row.writes.map((write) => write.key), ...(row.hook?.wrote ?? [])]);
  const attempts = Math.max(0, ...(row.outcomes ?? []).map((one) => one.attempts));
  const bad = new Set((row.outcomes ?? []).map((one) => one.status).filter((status) => status !== "done"));
  return [...[...effects].map((effect) => words(effect ?? "")), ...bad, attempts > 1 && `${attempts} attempts`, wrote.size && `✎ ${[...wrote].join(", ")}`].filter(Boolean).join(" · ");
}

/** What runs and is not stored yet. */
function Unfinished() {
  const { text, reasoning, calls, tools } = know.unfinished;
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(tick, 1000, Date.now);
    return () => clearInterval(timer);
  }, []);
  if (!know.detail?.running || know.view.at !== undefined) return null;
  const open = [...Object.values(calls).map((call) => `${call.name ?? ""}(${call.arguments}`),
    ...Object.values(tools).map((tool) => `${tool.name} ${tool.status ?? "runs"} · ${Math.floor((Date.now() - tool.since) / 1000)} s${tool.report ? ` · ${short(tool.report)}` : ""}`)];
  const said = open.join("   ") || text || (reasoning ? `thinks: ${reasoning}` : "waits for the model");
  return html`<p class="unfinished"><span class="pulse" aria-hidden="true"></span><bdi>${said.slice(-240)}</bdi></p>`;
}
