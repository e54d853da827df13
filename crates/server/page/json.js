// JSON without loss: numbers come back as they were written, which JavaScript's own do not (`2512292042121000001`, `1.0`, `-0.0`).
// @ts-check

/** A number that JavaScript would write otherwise: its text. */
export class Exact {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }
  toString() {
    return this.text;
  }
}

/** Whether a value has values in it. @param {any} value */
export const isNested = (value) => typeof value === "object" && value !== null && !(value instanceof Exact);

/** The server reads no JSON that is nested deeper. */
const DEEPEST = 127;
/** Text that may have a number which JavaScript would write otherwise. */
const UNSAFE = /(?:^|[[:,\s])-?(?:\d{16}|(?:(?<=-)0|\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+))\s*(?:[,\]}]|$))/;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?/y;
const STRING = /"[^"\\\u0000-\u001f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\u0000-\u001f]*)*"/y;
const WORDS = /** @type {[string, any][]} */ ([["true", true], ["false", false], ["null", null]]);

/** The value of an answer of the server. @param {string} text @returns {any} */
export const read = (text) => (UNSAFE.test(text) ? new Reader(text, false).whole() : JSON.parse(text));

/** The value of what a person has typed; or what is wrong with it, also if the server would read something else. @param {string} text */
export function typed(text) {
  try {
    return { value: new Reader(text, true).whole(), wrong: "" };
  } catch (error) {
    return { value: undefined, wrong: /** @type {Error} */ (error).message };
  }
}

/** JSON, in one line or with an indent. @param {any} value @param {string} [step] @param {string} [indent] @returns {string} */
export function write(value, step = "", indent = "\n") {
  if (value instanceof Exact) return value.text;
  if (Object.is(value, -0)) return "-0.0";
  if (!isNested(value)) return JSON.stringify(value) ?? "null";
  const isList = Array.isArray(value);
  const inside = step && indent + step;
  const fields = isList ? value : Object.keys(value).filter((key) => value[key] !== undefined);
  const parts = fields.map((field) => (isList ? "" : `${JSON.stringify(field)}:${step && " "}`) + write(isList ? field : value[field], step, inside));
  const [open, close] = isList ? "[]" : "{}";
  return parts.length ? `${open}${inside}${parts.join(`,${inside}`)}${step && indent}${close}` : open + close;
}

class Reader {
  /** @param {string} text @param {boolean} isTyped whether it is refused if the server would read something else */
  constructor(text, isTyped) {
    this.text = text;
    this.at = 0;
    this.isTyped = isTyped;
  }

  whole() {
    const value = this.value(0);
    this.blank();
    if (this.at < this.text.length) this.fail("expected the end");
    return value;
  }

  /** @param {string} why @param {number} [at] @param {string} [what] @returns {never} */
  fail(why, at = this.at, what = "Invalid JSON") {
    const lines = this.text.slice(0, at).split("\n");
    throw new SyntaxError(`${what} at line ${lines.length}, column ${(lines.at(-1)?.length ?? 0) + 1}: ${why}`);
  }

  blank() {
    while (" \n\r\t".includes(this.text[this.at] || "-")) this.at += 1;
  }

  /** What matches here, which is then behind. @param {RegExp} what */
  take(what) {
    what.lastIndex = this.at;
    const found = what.exec(this.text)?.[0] ?? "";
    this.at += found.length;
    return found;
  }

  /** Whether this character is next, which is then behind. @param {string} character */
  has(character) {
    this.blank();
    if (this.text[this.at] !== character) return false;
    this.at += 1;
    return true;
  }

  /** @param {number} depth @returns {any} */
  value(depth) {
    this.blank();
    const next = this.text[this.at];
    if (next === "{" || next === "[") {
      if (this.isTyped && depth >= DEEPEST) this.fail(`nested more than ${DEEPEST} levels deep`);
      this.at += 1;
      return next === "{" ? this.fields(depth + 1) : this.items(depth + 1);
    }
    if (next === '"') return this.string();
    const at = this.at;
    const number = this.take(NUMBER);
    if (number) {
      const why = this.isTyped && unheld(number);
      if (why) this.fail(why, at, "Cannot be stored,");
      return String(Number(number)) === number ? Number(number) : new Exact(number);
    }
    const word = WORDS.find(([word]) => this.text.startsWith(word, at));
    if (!word) this.fail(next === undefined ? "expected a value, found the end" : "expected a value");
    this.at += word[0].length;
    return word[1];
  }

  string() {
    const at = this.at;
    const found = this.take(STRING);
    if (!found) this.fail(this.text[at] === '"' ? "a text that does not end, or has a line break or an invalid escape in it" : "expected a key in quotes");
    const text = JSON.parse(found);
    if (this.isTyped && /\p{Surrogate}/u.test(text)) this.fail("half of a character (a lone surrogate)", at, "Cannot be stored,");
    return text;
  }

  /** @param {number} depth */
  items(depth) {
    /** @type {any[]} */
    const items = [];
    if (this.has("]")) return items;
    do items.push(this.value(depth));
    while (this.has(","));
    if (!this.has("]")) this.fail("expected `,` or `]`");
    return items;
  }

  /** @param {number} depth */
  fields(depth) {
    /** @type {[string, any][]} */
    const fields = [];
    const known = new Set();
    if (this.has("}")) return {};
    do {
      this.blank();
      const at = this.at;
      const key = this.string();
      if (this.isTyped && known.has(key)) this.fail(`the key ${JSON.stringify(key)} stands twice`, at);
      known.add(key);
      if (!this.has(":")) this.fail("expected `:`");
      fields.push([key, this.value(depth)]);
    } while (this.has(","));
    if (!this.has("}")) this.fail("expected `,` or `}`");
    // Also of a key `__proto__`.
    return Object.fromEntries(fields);
  }
}

/** Why the server would read another number; empty if it reads this one. It has 64 bits: for integers, with or without a sign, and for decimals. @param {string} text */
function unheld(text) {
  const told = text.length > 60 ? `${text.slice(0, 40)}… (${text.length} characters)` : text;
  if (text === "-0") return "-0 is not an integer: write 0, or -0.0";
  if (!/[.eE]/.test(text)) {
    const isHeld = text.length <= 20 && BigInt.asIntN(65, BigInt(text)) === BigInt(text) && BigInt(text) >= -(2n ** 63n);
    return isHeld ? "" : `the integer ${told} is out of range (-9223372036854775808 to 18446744073709551615): write it as a text, in quotes`;
  }
  const number = Number(text);
  if (!Number.isFinite(number)) return `the number ${told} is out of range (up to 1.8e308)`;
  // The shortest digits, and others up to 17 that are its own, name one number.
  const digits = decimal(text).replace(/^-|e.*$/g, "").length;
  const names = [String(number), rounded(number, Math.min(digits - 1, 16))].map(decimal);
  return names.includes(decimal(text)) ? "" : `the number ${told} has more digits than can be stored: it would become ${number}. Write it as a text, in quotes`;
}

/** A number with this many digits after the first. Of two that are as near it is the even one, as the server has it, and not the larger one. @param {number} number @param {number} places */
function rounded(number, places) {
  const [, kept, power] = new RegExp(`^(-?\\d\\.\\d{${places}})50*(e.*)$`).exec(number.toExponential(100)) ?? [];
  return kept && /[02468]\.?$/.test(kept) ? kept + power : number.toExponential(places);
}

/** A decimal, each written in one way. @param {string} text */
function decimal(text) {
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)\.?(\d*)(?:[eE]([-+]?\d+))?$/.exec(text) ?? [];
  const digits = (whole + part).replace(/0+$/, "");
  const significant = digits.replace(/^0+/, "");
  return significant ? `${sign}${significant}e${Number(power) + whole.length - digits.length}` : "0";
}
