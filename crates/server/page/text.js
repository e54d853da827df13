// Words, numbers and values as nodes. Nothing that a model wrote becomes markup: links and images are shown as text.
// @ts-check
import { isNested, write } from "./json.js";
import { allVisible, html, useMemo, useState, visible } from "./html.js";

const number = new Intl.NumberFormat("en");

/** @param {number} value */
export const count = (value) => number.format(value);

/** @param {number | undefined} us */
export function duration(us) {
  if (us === undefined || us === null) return "";
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${+(us / 1000).toFixed(us < 1e4 ? 1 : 0)} ms`;
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
  const text = useMemo(() => (value === undefined ? "" : laid(value, "")), [value]);
  if (value === undefined) return html`<span class="quiet">unset</span>`;
  // A text has its own direction; of other values, the strings in them have.
  const isText = !isNested(value);
  const drawn = (/** @type {any} */ what) => html`<code class="value" dir=${isText ? "auto" : "ltr"}>${what}</code>`;
  const begin = escaped(cut(text, most));
  const first = drawn(isText ? begin : isolated(begin));
  return text.length <= most ? first : html`<${Fold} text=${text} begin=${first} whole=${() => drawn(html`<${Parts} text=${text} dir=${isText ? "auto" : "ltr"} draw=${escaped} />`)} />`;
}

/** What has only its beginning drawn, until all of it is wanted. @param {{ text: string, begin: any, whole: () => any }} props */
function Fold({ text, begin, whole }) {
  // Another text begins folded.
  const [open, setOpen] = useState(/** @type {string | null} */ (null));
  const isOpen = open === text;
  return html`${isOpen ? whole() : begin} <button type="button" class="link" aria-expanded=${isOpen} onClick=${() => setOpen(isOpen ? null : text)}>${isOpen ? "Show less" : `Show all: ${count(text.length)} characters`}</button>`;
}

/** So much of a long text is laid out at once. */
const PART = 10_000;

/** A long text in parts, of which the browser lays out those in sight. @param {{ text: string, dir?: string, draw?: (text: string) => string }} props */
function Parts({ text, dir = "auto", draw = visible }) {
  return useMemo(() => {
    const parts = [];
    for (let from = 0; from < text.length;) {
      const to = partEnd(text, from + PART);
      parts.push(html`<span class="chunk" dir=${dir}>${draw(text.slice(from, text[to - 1] === "\n" ? to - 1 : to))}</span>`);
      from = to;
    }
    return parts;
  }, [text]);
}

/** Where a part ends that has about this end: after a line, if there is one, and not within a character. @param {string} text @param {number} near */
function partEnd(text, near) {
  if (near >= text.length) return text.length;
  const line = text.lastIndexOf("\n", near) + 1;
  if (line > near - PART / 2) return line;
  return /[\udc00-\udfff]/.test(text[near]) ? near + 1 : near;
}

/** Letters of scripts that are written from right to left. */
const LEFTWARD = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]|[\ud802-\ud83b][\udc00-\udfff]/;

/** JSON in which a string that is written from right to left does not move what is around it. @param {string} json */
export const isolated = (json) => (LEFTWARD.test(json) ? json.split(/("(?:[^"\\]|\\.)*")/).map((part, at) => (at % 2 ? html`<bdi>${part}</bdi>` : part)) : json);

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

/** Of a longer text, the rest is shown when it is wanted, and as it was written. */
const PROSE = 20_000;

/** A subset of Markdown: paragraphs, headings, lists, tables, quotes, code, emphasis. @param {{ text: string }} props */
export function Prose({ text }) {
  const end = text.length > PROSE ? partEnd(text, PROSE) : text.length;
  const begin = useMemo(() => html`<div class="prose">${blocks(text.slice(0, end))}</div>`, [text]);
  if (end === text.length) return begin;
  return html`<${Fold} text=${text} begin=${begin} whole=${() => html`${begin}<div class="prose"><${Parts} text=${text.slice(end)} /></div>`} />`;
}

const FENCE = /^\s*(`{3,}|~{3,})/;
/** The marker of an item: its indent, and what it is. */
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const HEADING = /^#{1,6}\s/;
const RULE = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
/** The line below the heads of a table. */
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
/** Lists and quotes in one another are drawn up to this depth. */
const DEEPEST = 8;

/** @param {string} text @param {number} [depth] @returns {any[]} */
export function blocks(text, depth = 0) {
  const lines = text.split("\n");
  /** @type {any[]} */
  const found = [];
  /** @param {number} at */
  const isTable = (at) => lines[at].includes("|") && !!lines[at + 1]?.includes("-") && DASHES.test(lines[at + 1]) && cells(lines[at]).length === cells(lines[at + 1]).length;
  /** @param {number} at */
  const begins = (at) => FENCE.test(lines[at]) || HEADING.test(lines[at]) || lines[at].startsWith(">") || ITEM.test(lines[at]) || RULE.test(lines[at]) || isTable(at);
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const [, fence = ""] = FENCE.exec(line) ?? [];
    const from = at;
    if (fence) {
      do at += 1;
      while (at < lines.length && !(lines[at].trim().startsWith(fence) && !lines[at].trim().slice(fence.length).replaceAll(fence[0], "")));
      found.push(html`<pre><code>${lines.slice(from + 1, at).join("\n")}</code></pre>`);
      at += 1;
    } else if (HEADING.test(line)) {
      found.push(html`<p class="heading" dir="auto">${inline(line.replace(/^#+\s+/, ""))}</p>`);
      at += 1;
    } else if (RULE.test(line)) {
      found.push(html`<hr />`);
      at += 1;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      const { node, end } = list(lines, at, depth);
      found.push(node);
      at = end;
    } else if (line.startsWith(">") && depth < DEEPEST) {
      while (lines[at]?.startsWith(">")) at += 1;
      found.push(html`<blockquote dir="auto">${blocks(lines.slice(from, at).map((row) => row.replace(/^>\s?/, "")).join("\n"), depth + 1)}</blockquote>`);
    } else if (isTable(at)) {
      at += 2;
      while (lines[at]?.includes("|")) at += 1;
      found.push(table(lines.slice(from, at)));
    } else if (!line.trim()) {
      at += 1;
    } else {
      do at += 1;
      while (at < lines.length && lines[at].trim() && !begins(at));
      found.push(html`<p dir="auto">${inline(lines.slice(from, at).join("\n"))}</p>`);
    }
  }
  return found;
}

/** A list: items of one kind, and what is inside of each, which stands further to the right. @param {string[]} lines @param {number} from @param {number} depth */
function list(lines, from, depth) {
  const [, , first] = ITEM.exec(lines[from]) ?? [];
  const isNumbered = (/** @type {string} */ marker) => /\d/.test(marker);
  const items = [];
  let at = from;
  while (at < lines.length) {
    const [head, indent, marker] = ITEM.exec(lines[at]) ?? [];
    if (head === undefined || isNumbered(marker) !== isNumbered(first)) break;
    const inside = [lines[at].slice(head.length)];
    at += 1;
    for (; at < lines.length; at += 1) {
      const line = lines[at];
      const far = line.search(/\S/);
      // A line without an indent goes on with the paragraph before it.
      if (far >= 0 && far < indent.length + 2 && (!lines[at - 1].trim() || ITEM.test(line) || HEADING.test(line) || FENCE.test(line) || line.startsWith(">"))) break;
      inside.push(line.slice(Math.max(0, Math.min(far, head.length))));
    }
    const drawn = blocks(inside.join("\n"), depth + 1);
    // A line alone is no paragraph.
    items.push(html`<li>${drawn[0]?.type === "p" && !drawn[0].props.class ? [drawn[0].props.children, ...drawn.slice(1)] : drawn}</li>`);
  }
  return { node: isNumbered(first) ? html`<ol dir="auto" start=${parseInt(first, 10)}>${items}</ol>` : html`<ul dir="auto">${items}</ul>`, end: at };
}

/** The cells of a line of a table: an escaped bar divides nothing. @param {string} line */
const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

/** @param {string[]} lines the heads, the dashes, and the rows */
function table([heads, dashes, ...rows]) {
  const sides = cells(dashes).map((cell) => ({ textAlign: cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : undefined }));
  return html`<div class="wide"><table dir="auto"><thead><tr>${cells(heads).map((cell, at) => html`<th style=${sides[at]}>${inline(cell)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${sides.map((side, at) => html`<td dir="auto" style=${side}>${inline(cells(row)[at] ?? "")}</td>`)}</tr>`)}</tbody></table></div>`;
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
