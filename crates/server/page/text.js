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
  return html`<code class="value">${escaped(cut(text, most))}</code> <${All} text=${text} show=${() => setWhole(true)} />`;
}

/** What shows a text whole. @param {{ text: string, show: () => void }} props */
const All = ({ text, show }) => html`<button type="button" class="link" onClick=${show}>Show all: ${count(text.length)} characters</button>`;

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

/** A longer text is cut until it is wanted whole, and then shown as it is. */
const LONGEST = 100_000;

/** A subset of Markdown: paragraphs, headings, lists, tables, quotes, code, emphasis. @param {{ text: string }} props */
export function Prose({ text }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= LONGEST) return html`<div class="prose">${blocks(text)}</div>`;
  return isWhole ? html`<div class="prose"><p dir="auto">${text}</p></div>`
  : html`<div class="prose">${blocks(cut(text, LONGEST))}<p><${All} text=${text} show=${() => setWhole(true)} /></p></div>`;
}

/** The indent of an item of a list, its bullet, its number, and its text. */
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;

/** Whether two lines are items of one list. @param {string} line @param {string} first */
function isBeside(line, first) {
  const [one, other] = [ITEM.exec(line), ITEM.exec(first)];
  return one && other && one[1].length < other[1].length + 2 && !one[2] === !other[2];
}

/** A list, with what is inside of its items. @param {string[]} rows */
function list(rows) {
  const [, indent = "", number] = ITEM.exec(rows[0]) ?? [];
  /** @type {string[][]} */
  const items = [];
  for (const row of rows) {
    const found = isBeside(row, rows[0]) && ITEM.exec(row);
    if (found) items.push([found[3]]);
    else items.at(-1)?.push(row.slice(Math.min(row.search(/\S|$/), indent.length + 2)));
  }
  const drawn = items.map(([first, ...rest]) => html`<li dir="auto">${inline(first)}${rest.length > 0 && blocks(rest.join("\n"))}</li>`);
  return number ? html`<ol start=${Number(number)}>${drawn}</ol>` : html`<ul>${drawn}</ul>`;
}

/** The cells of a row of a table. @param {string} line */
const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** Whether a table begins here. @param {string[]} lines @param {number} at */
const isTable = (lines, at) => lines[at].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "") && cells(lines[at]).length === cells(lines[at + 1]).length;

/** @param {string[]} rows */
function table([head, , ...rows]) {
  const names = cells(head);
  return html`<div class="wide"><table><thead><tr>${names.map((name) => html`<th dir="auto">${inline(name)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${cells(row).slice(0, names.length).map((cell) => html`<td dir="auto">${inline(cell)}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** @param {string} text @returns {any[]} */
export function blocks(text) {
  const lines = text.split("\n");
  /** @type {any[]} */
  const found = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s*```/.test(line);
    if (fence) {
      const end = lines.findIndex((other, index) => index > at && /^\s*```\s*$/.test(other));
      const until = end < 0 ? lines.length : end;
      found.push(html`<pre><code>${lines.slice(at + 1, until).join("\n")}</code></pre>`);
      at = until + 1;
    } else if (/^#{1,6}\s/.test(line)) {
      found.push(html`<p class="heading" dir="auto">${inline(line.replace(/^#+\s+/, ""))}</p>`);
      at += 1;
    } else if (ITEM.test(line)) {
      const inside = new RegExp(`^\\s{${(ITEM.exec(line)?.[1].length ?? 0) + 2},}\\S`);
      const rows = take(lines, at, (other) => isBeside(other, line) || inside.test(other));
      found.push(list(rows));
      at += rows.length;
    } else if (isTable(lines, at)) {
      const rows = take(lines, at, (other) => other.includes("|"));
      found.push(table(rows));
      at += rows.length;
    } else if (/^>/.test(line)) {
      const rows = take(lines, at, (other) => other.startsWith(">"));
      found.push(html`<blockquote dir="auto">${inline(rows.map((row) => row.replace(/^>\s?/, "")).join("\n"))}</blockquote>`);
      at += rows.length;
    } else if (!line.trim()) {
      at += 1;
    } else {
      const rows = take(lines, at, (other, first) => first || (other.trim() !== "" && !/^(#{1,6}\s|>|\s*```)/.test(other) && !ITEM.test(other)));
      found.push(html`<p dir="auto">${inline(rows.join("\n"))}</p>`);
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
