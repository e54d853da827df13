// Templates in which no text hides: characters that are invisible or reorder a line are drawn as escapes, as the command draws them.
// @ts-check
import { html as template } from "./vendor/preact.js";
export * from "./vendor/preact.js";

// Tables of `stepfold_state_core::is_invisible`; a test compares them.
const ALL = /[\u{0}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{2800}\u{3164}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{13430}-\u{1345f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
const HIDING = /[\u{0}-\u{8}\u{b}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}\u{200e}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{2800}\u{3164}\u{fe00}-\u{fe0d}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{13430}-\u{1345f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** @param {string} text @param {RegExp} which */
const escape = (text, which) => text.replace(which, (found) => found.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));

/** Text without what hides: lines, tabs, and the joiners of scripts and emoji stay. @param {string} text */
export const visible = (text) => escape(text.replaceAll("\r\n", "\n"), HIDING);

/** Text in which nothing is invisible, in one line. JSON keeps its value. @param {string} text */
export const allVisible = (text) => escape(text, ALL);

/** @param {any} node @returns {any} */
const drawn = (node) => (typeof node === "string" ? visible(node) : Array.isArray(node) ? node.map(drawn) : node);

/** A template, whose texts, titles and labels are {@link visible}. What is in a field is what is sent: it stays as it is. */
export const html = /** @type {typeof template} */ ((strings, ...values) => template(strings, ...values.map((value, at) => (!strings[at].endsWith("=") || /(title|aria-\w+)=$/.test(strings[at]) ? drawn(value) : value))));
