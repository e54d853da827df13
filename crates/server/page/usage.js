// Tokens, latency and cost of the replies, drawn by hand.
// @ts-check
import { html, useMemo } from "./vendor/preact.js";
import { know, lookedAt, step } from "./store.js";
import { cost, took } from "./rows.js";
import { count, duration } from "./text.js";

const WIDE = 800;
const HIGH = 150;
const MOST = 160;

/** @param {any[]} rows */
function replies(rows) {
  const found = rows.map((row, index) => ({ version: row.version, usage: row.usage, us: took(rows, index), model: row.model })).filter((one) => one.usage);
  const each = Math.max(1, Math.ceil(found.length / MOST));
  const bins = [];
  for (let at = 0; at < found.length; at += each) {
    const bin = found.slice(at, at + each);
    const sum = (/** @type {(one: any) => number} */ of) => bin.reduce((total, one) => total + (of(one) ?? 0), 0);
    bins.push({ version: bin[0].version, input: sum((one) => one.usage.input_tokens), output: sum((one) => one.usage.output_tokens), us: sum((one) => one.us) });
  }
  return { found, bins, each };
}

export function Usage() {
  const { found, bins, each } = useMemo(() => replies(know.rows), [know.rows]);
  if (!found.length) return html`<div class="empty"><h2>No replies yet</h2><p>Tokens and times of each reply of the model are drawn here.</p></div>`;
  const total = (/** @type {(one: any) => number | undefined} */ of) => found.reduce((sum, one) => sum + (of(one) ?? 0), 0);
  const model = know.app?.model;
  const price = know.app?.prices?.[model];
  const spent = price && total((one) => cost(one.usage, know.app.prices[one.model] ?? price));
  const facts = [["replies", count(found.length)], ["input tokens", count(total((one) => one.usage.input_tokens))], ["output tokens", count(total((one) => one.usage.output_tokens))],
    ["cached", count(total((one) => one.usage.cached_input_tokens))], ["time of the model", duration(total((one) => one.us))],
    ["cost", price ? `${spent.toFixed(4)} ${price.currency ?? ""}` : "unknown: no table of prices"]];
  return html`<div class="usage" tabindex="0" role="region" aria-label="Usage">
    <dl class="totals">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Chart} title="Tokens" bins=${bins} of=${[["in", (/** @type {any} */ bin) => bin.input], ["out", (/** @type {any} */ bin) => bin.output]]} words=${count} />
    <${Chart} title="Latency" bins=${bins} of=${[["out", (/** @type {any} */ bin) => bin.us]]} words=${duration} />
    ${each > 1 && html`<p class="quiet">Each column is ${each} replies.</p>`}
  </div>`;
}

/** @param {any} props */
function Chart({ title, bins, of, words }) {
  const sum = (/** @type {any} */ bin) => of.reduce((/** @type {number} */ total, /** @type {any} */ [, value]) => total + value(bin), 0);
  const most = Math.max(1, ...bins.map(sum));
  const wide = WIDE / Math.max(bins.length, 12);
  const at = lookedAt();
  const current = bins.findLastIndex((/** @type {any} */ bin) => bin.version <= at);
  return html`<figure><figcaption>${title}<span class="quiet"> · at most ${words(most)}${of.length > 1 ? " · input below, output above" : ""}</span></figcaption>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${`${title} by reply; at most ${words(most)}`}>
      <path class="axis" d=${`M0 ${HIGH - 0.5}h${WIDE}`} />
      ${bins.map((/** @type {any} */ bin, /** @type {number} */ index) => {
        let y = HIGH - 1;
        return html`<g class=${index === current ? "current" : ""} onClick=${() => step(bin.version)}><rect class="hit" x=${index * wide} y="0" width=${wide} height=${HIGH} />
          ${of.map((/** @type {any} */ [name, value]) => {
            const high = (value(bin) / most) * (HIGH - 8);
            y -= high;
            return html`<rect class=${name} x=${index * wide + wide * 0.12} y=${y} width=${wide * 0.76} height=${high} />`;
          })}<title>v${bin.version}: ${words(sum(bin))}</title></g>`;
      })}</svg></figure>`;
}
