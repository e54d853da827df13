// Tokens, latency and cost of the replies, drawn by hand.
// @ts-check
import { html, useEffect, useMemo } from "./html.js";
import { know, lookedAt, money, readCache, step } from "./store.js";
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
  const current = bins.findLastIndex((bin) => bin.version <= lookedAt());
  /** @param {string} title @param {Record<string, (bin: Bin) => number>} of @param {(value: number) => string} words */
  const chart = (title, of, words) => html`<${Chart} title=${title} by="reply" bins=${bins} of=${of} words=${words} name=${(/** @type {Bin} */ bin) => `v${bin.version}`} current=${current} pick=${(/** @type {Bin} */ bin) => step(bin.version)} />`;
  return html`<div class="usage" tabindex="0" role="region" aria-label="Usage">
    <dl class="totals">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${chart("Tokens", { input: (bin) => bin.input, output: (bin) => bin.output }, count)}
    ${chart("Latency", { output: (bin) => bin.us }, duration)}
    ${isPriced && chart("Cost", { output: (bin) => bin.cost }, money)}
    <p class="quiet">Each bar is ${each > 1 ? `${each} model calls` : "a model call"}; click to go there. Rewound calls count: they were paid.</p>
    <${PromptCache} replies=${replies} />
  </div>`;
}

/** The most broken prefixes that are listed, the newest ones. */
const BREAKS = 50;

/** What the requests shared with those before, and what broke it. @param {{ replies: number }} props */
function PromptCache({ replies }) {
  useEffect(() => void readCache(replies), [know.view.session, replies]);
  const requests = know.cache?.requests;
  if (!requests?.length) return "";
  const breaks = requests.filter((request) => request.broken_by);
  const lost = breaks.reduce((sum, request) => sum + request.lost_tokens, 0);
  const priced = breaks.map(({ model, lost_tokens: tokens }) => ({ tokens, price: know.app?.prices?.models[model ?? ""] })).filter(({ price }) => price?.cached_input !== undefined);
  const paid = priced.reduce((sum, { tokens, price }) => sum + (tokens * (Number(price?.input) - Number(price?.cached_input))) / 1e6, 0);
  const share = (/** @type {import("./types").CachedRequest} */ request) => `${Math.round((request.shared_tokens / Math.max(request.tokens, 1)) * 100)} %`;
  return html`<section class="cache"><h2>Prompt cache</h2>
    <p class="quiet">${count(requests.length - breaks.length)} of ${count(requests.length)} requests begin as the one before, or are the first.${breaks.length > 0 && ` What broke the others left about ${count(lost)} tokens in the cache that were not used again${paid > 0 ? `: up to ${money(paid)} more than with a whole prefix` : ""}.`}</p>
    ${breaks.length > 0 && html`<div class="wide"><table><thead><tr><th>reply</th><th>broken by</th><th>shared</th><th>left unused</th><th>input</th><th>read from cache</th></tr></thead>
      <tbody>${breaks.slice(-BREAKS).reverse().map((request) => html`<tr><td><button class="link" onClick=${() => step(request.version)}>v${request.version}</button></td><td>${request.broken_by}</td><td>${share(request)}</td><td>${count(request.lost_tokens)}</td><td>${count(request.input_tokens)}</td><td>${count(request.cached_input_tokens)}</td></tr>`)}</tbody></table></div>`}
  </section>`;
}

/** Bars, each with its parts. @param {{ title: string, by: string, bins: any[], of: Record<string, (bin: any) => number>, words: (value: number) => string, name: (bin: any) => string, current?: number, pick?: (bin: any) => void, least?: number }} props */
export function Chart({ title, by, bins, of, words, name: nameOf, current, pick, least = 1 }) {
  const parts = Object.entries(of);
  const sum = (/** @type {any} */ bin) => parts.reduce((total, [, value]) => total + value(bin), 0);
  const most = bins.reduce((found, bin) => Math.max(found, sum(bin)), 0) || 1;
  const wide = WIDE / Math.max(bins.length, least);
  return html`<figure><figcaption>${title}<span class="quiet"> · max ${words(most)}</span>${parts.length > 1 && parts.map(([name]) => html` <svg class="legend" aria-hidden="true"><rect class=${name} width="9" height="9" /></svg> ${name}`)}</figcaption>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${`${title} by ${by}; max ${words(most)}`}>
      <path class="axis" d=${`M0 ${HIGH - 0.5}h${WIDE}`} />
      ${bins.map((bin, index) => {
        let y = HIGH - 1;
        return html`<g class=${index === current ? "current" : ""} onClick=${() => pick?.(bin)}><rect class="hit" x=${index * wide} y="0" width=${wide} height=${HIGH} />
          ${parts.map(([name, value]) => {
            const high = (value(bin) / most) * (HIGH - 8);
            y -= high;
            return html`<rect class=${name} x=${index * wide + wide * 0.12} y=${y} width=${wide * 0.76} height=${high} />`;
          })}<title>${nameOf(bin)}: ${words(sum(bin))}</title></g>`;
      })}</svg><p class="quiet ends"><span>${nameOf(bins[0])}</span><span>${nameOf(bins[bins.length - 1])}</span></p></figure>`;
}
