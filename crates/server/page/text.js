// Words, numbers and values as nodes. Nothing that a model wrote becomes markup: links and images are shown as text.
// @ts-check
import { isNested, write } from "./json.js";
import { allVisible, html, useState } from "./html.js";

const number = new Intl.NumberFormat("en");

/** @param {number} value */
export const count = (value) => number.format(value);

/** @param {number | undefined} us */
export function duration(us) {
  if (us === undefined || us === null) return "";
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1000).toPrecision(us < 1e5 ? 2 : 3).replace(/\.0$/, "")} ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(1)} s`;
  return `${Math.floor(us / 6e7)} min ${Math.round((us % 6e7) / 1e6)} s`;
}

/** @param {string} at */
export function moment(at) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return isToday ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

/** A name of the API, as words. @param {string} name */
export const words = (name) => name.replaceAll("_", "-");

/** @param {any} value */
export const short = (value) => (typeof value === "string" ? value : value === undefined ? "" : write(value));

/** @param {string} text @param {number} most */
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** @param {any} left @param {any} right */
export function same(left, right) {
  return left === right || stable(left) === stable(right);
}

/** @param {any} value @returns {string} */
function stable(value) {
  if (Array.isArray(value)) return `[${value.map(stable).join()}]`;
  if (isNested(value)) return `{${Object.keys(value).sort().map((key) => JSON.stringify(key) + stable(value[key])).join()}}`;
  return value === undefined ? "undefined" : write(value);
}

/** JSON of several lines, without what hides in it. @param {string} text */
export const escaped = (text) => text.split("\n").map(allVisible).join("\n");

/** A value as it is edited. @param {any} value */
export const editable = (value) => escaped(write(value, "  "));

/** A value. A long one is cut until it is wanted whole. @param {{ value: any, most?: number }} props */
export function Value({ value, most = 4000 }) {
  const [isWhole, setWhole] = useState(false);
  if (value === undefined) return html`<span class="quiet">unset</span>`;
  const text = laid(value, "");
  if (isWhole || text.length <= most) return html`<code class="value">${escaped(text)}</code>`;
  return html`<code class="value">${escaped(cut(text, most))}</code> <button type="button" class="link" onClick=${() => setWhole(true)}>Show all: ${count(text.length)} characters</button>`;
}

/** JSON, with what fits into a line in one. @param {any} value @param {string} indent @param {number} [used] @returns {string} */
export function laid(value, indent, used = 0) {
  const dense = write(value);
  if (!isNested(value)) return dense;
  const parts = Object.values(value);
  const room = 48 - indent.length - used;
  const isOne = parts.length === 1 && !isNested(parts[0]);
  if (isOne || dense.length < room) {
    const line = write(value, " ").replace(/([[{])\n\s*/g, "$1").replace(/\n\s*([\]}])/g, "$1").replace(/\n\s*/g, " ");
    if (isOne || line.length < room) return line;
  }
  const inside = `${indent}  `;
  const names = Array.isArray(value) ? parts.map(() => "") : Object.keys(value).map((name) => `${JSON.stringify(name)}: `);
  return `${dense[0]}\n${parts.map((part, place) => inside + names[place] + laid(part, inside, names[place].length)).join(",\n")}\n${indent}${dense.at(-1)}`;
}

/** A subset of Markdown: paragraphs, headings, lists, quotes, code, emphasis. @param {{ text: string }} props */
export function Prose({ text }) {
  return html`<div class="prose">${blocks(cut(text, 100_000))}</div>`;
}

/** @param {string} text @returns {any[]} */
function blocks(text) {
  const lines = text.split("\n");
  /** @type {any[]} */
  const found = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s*```/.test(line);
    const item = /^\s*([-*+]|\d+[.)])\s+/;
    if (fence) {
      const end = lines.findIndex((other, index) => index > at && /^\s*```\s*$/.test(other));
      const until = end < 0 ? lines.length : end;
      found.push(html`<pre><code>${lines.slice(at + 1, until).join("\n")}</code></pre>`);
      at = until + 1;
    } else if (/^#{1,6}\s/.test(line)) {
      found.push(html`<p class="heading">${inline(line.replace(/^#+\s+/, ""))}</p>`);
      at += 1;
    } else if (item.test(line)) {
      const rows = take(lines, at, (other) => item.test(other) || /^\s{2,}\S/.test(other));
      const items = rows.map((row) => html`<li>${inline(row.replace(item, ""))}</li>`);
      found.push(/^\s*\d/.test(line) ? html`<ol>${items}</ol>` : html`<ul>${items}</ul>`);
      at += rows.length;
    } else if (/^>/.test(line)) {
      const rows = take(lines, at, (other) => other.startsWith(">"));
      found.push(html`<blockquote>${inline(rows.map((row) => row.replace(/^>\s?/, "")).join("\n"))}</blockquote>`);
      at += rows.length;
    } else if (!line.trim()) {
      at += 1;
    } else {
      const rows = take(lines, at, (other, first) => first || (other.trim() !== "" && !/^(#{1,6}\s|>|\s*```)/.test(other) && !item.test(other)));
      found.push(html`<p>${inline(rows.join("\n"))}</p>`);
      at += rows.length;
    }
  }
  return found;
}

/** @param {string[]} lines @param {number} at @param {(line: string, first: boolean) => boolean} goesOn */
function take(lines, at, goesOn) {
  let end = at;
  while (end < lines.length && goesOn(lines[end], end === at)) end += 1;
  return lines.slice(at, Math.max(end, at + 1));
}

/** @param {string} text @returns {any[]} */
function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/).map((part) => {
    if (/^`.+`$/.test(part)) return html`<code>${part.slice(1, -1)}</code>`;
    if (/^\*\*.+\*\*$/.test(part)) return html`<strong>${part.slice(2, -2)}</strong>`;
    if (/^\*.+\*$/.test(part)) return html`<em>${part.slice(1, -1)}</em>`;
    return part;
  });
}
