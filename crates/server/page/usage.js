// Tokens, latency and cost of the replies, drawn by hand.
// @ts-check
import { html, useMemo } from "./html.js";
import { know, lookedAt, money, step } from "./store.js";
import { count, duration } from "./text.js";

/** @typedef {{ version: number, input: number, output: number, us: number, cost: number }} Bin */

const [WIDE, HIGH] = [800, 150];
/** The most columns of a chart. */
const MOST = 160;

/** Sums of the replies, in at most so many bins. @param {import("./types").Row[]} rows */
function sums(rows) {
  const replies = rows.filter((row) => row.usage);
  const each = Math.max(1, Math.ceil(replies.length / MOST));
  /** @type {Bin[]} */
  const bins = [];
  const total = { version: 0, input: 0, output: 0, us: 0, cost: 0, cached: 0 };
  replies.forEach(({ version, usage, latency_us: us = 0, cost = "0" }, index) => {
    if (index % each === 0) bins.push({ version, input: 0, output: 0, us: 0, cost: 0 });
    for (const sum of [bins[bins.length - 1], total]) {
      sum.input += usage?.input_tokens ?? 0;
      sum.output += usage?.output_tokens ?? 0;
      sum.us += us;
      sum.cost += Number(cost);
    }
    total.cached += usage?.cached_input_tokens ?? 0;
  });
  return { bins, total, each, replies: replies.length, isPriced: replies.some((row) => row.cost !== undefined) };
}

export function Usage() {
  const { bins, total, each, replies, isPriced } = useMemo(() => sums(know.rows), [know.rows]);
  if (!bins.length) return html`<div class="empty"><h2>No model calls yet</h2><p>Tokens, latency and cost of each model call are drawn here.</p></div>`;
  const facts = [["model calls", count(replies)], ["input tokens", count(total.input)], ["output tokens", count(total.output)], ["cached input", count(total.cached)],
    ["model time", duration(total.us)], ["cost", isPriced ? money(total.cost) : "unknown: the server has no prices"]];
  return html`<div class="usage" tabindex="0" role="region" aria-label="Usage">
    <dl class="totals">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Chart} title="Tokens" bins=${bins} of=${{ input: (/** @type {Bin} */ bin) => bin.input, output: (/** @type {Bin} */ bin) => bin.output }} words=${count} />
    <${Chart} title="Latency" bins=${bins} of=${{ output: (/** @type {Bin} */ bin) => bin.us }} words=${duration} />
    ${isPriced && html`<${Chart} title="Cost" bins=${bins} of=${{ output: (/** @type {Bin} */ bin) => bin.cost }} words=${money} />`}
    <p class="quiet">Each bar is ${each > 1 ? `${each} model calls` : "a model call"}; click to go there. Rewound calls count: they were paid.</p>
  </div>`;
}

/** @param {{ title: string, bins: Bin[], of: Record<string, (bin: Bin) => number>, words: (value: number) => string }} props */
function Chart({ title, bins, of, words }) {
  const parts = Object.entries(of);
  const sum = (/** @type {Bin} */ bin) => parts.reduce((total, [, value]) => total + value(bin), 0);
  const most = bins.reduce((found, bin) => Math.max(found, sum(bin)), 0) || 1;
  const wide = WIDE / Math.max(bins.length, 1);
  const current = bins.findLastIndex((bin) => bin.version <= lookedAt());
  return html`<figure><figcaption>${title}<span class="quiet"> · max ${words(most)}</span>${parts.length > 1 && parts.map(([name]) => html` <svg class="legend" aria-hidden="true"><rect class=${name} width="9" height="9" /></svg> ${name}`)}</figcaption>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${`${title} by reply; max ${words(most)}`}>
      <path class="axis" d=${`M0 ${HIGH - 0.5}h${WIDE}`} />
      ${bins.map((bin, index) => {
        let y = HIGH - 1;
        return html`<g class=${index === current ? "current" : ""} onClick=${() => step(bin.version)}><rect class="hit" x=${index * wide} y="0" width=${wide} height=${HIGH} />
          ${parts.map(([name, value]) => {
            const high = (value(bin) / most) * (HIGH - 8);
            y -= high;
            return html`<rect class=${name} x=${index * wide + wide * 0.12} y=${y} width=${wide * 0.76} height=${high} />`;
          })}<title>v${bin.version}: ${words(sum(bin))}</title></g>`;
      })}</svg><p class="quiet ends"><span>v${bins[0].version}</span><span>v${bins[bins.length - 1].version}</span></p></figure>`;
}
