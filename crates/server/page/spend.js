// What was spent on models: by day as a chart, by group as a table; how the budgets stand, and raises of their limits.
// @ts-check
import { html, useEffect, useState } from "./html.js";
import { appPath, get, post } from "./api.js";
import { fail, go, know } from "./store.js";
import { count, moment } from "./text.js";
import { Chart } from "./usage.js";

/** The days of the chart, the newest ones. */
const DAYS = 92;
/** The most rows of the table. */
const ROWS = 200;
/** The most raises that are listed, the newest ones. */
const RAISES = 20;
const GROUPS = ["session", "user", "model", "day"];

/** @typedef {{ group: string, requests: number, estimated: number, input_tokens: number, output_tokens: number, cost: string, unpriced: number }} Sum */
/** @typedef {{ at: string, by: string, budget: string, scope: string, unit: string, from: number, to: number, user?: string }} RaiseRow */
/** @typedef {{ name: string, scope: string, unit: string, window?: string, spent: number, reserved: number, limit: number, declared?: number, until?: string }} Budget */

const dollars = (/** @type {number} */ value) => `$${value.toFixed(value && value < 0.1 ? 5 : 2)}`;
/** @param {string} unit @param {number} value */
const amount = (unit, value) => (unit === "usd" ? dollars(value / 1e9) : count(value));
const mayRaise = () => ["raise_budgets", "administer"].includes(know.me?.role ?? "");

export function Spend() {
  const { app = "", spend = "" } = know.view;
  const by = GROUPS.find((group) => group === spend) ?? "session";
  const [isOfAll, setOfAll] = useState(false);
  const [user, setUser] = useState("");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [times, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    read(app, by, isOfAll, user, stop.signal).then(setFound, (error) => stop.signal.aborted || setFound({ error: error.message }));
    return () => stop.abort();
  }, [app, by, isOfAll, user, times]);
  if (!found) return html`<p class="quiet">…</p>`;
  const { error, days, sums, budgets, raises } = found;
  const left = sums?.spend.length + sums?.left_out - ROWS;
  return html`<div class="experiments usage" tabindex="0" role="region" aria-label="Spend">
    <h1>Spend</h1>
    ${error && html`<p role="alert" class="wrong">${error}</p>`}
    ${mayRaise() && html`<label>Budgets of user <input type="search" placeholder=${know.me?.user} value=${user} onChange=${(event) => setUser(event.currentTarget.value.trim())} /></label>`}
    ${budgets?.map((/** @type {Budget} */ budget) => html`<${Meter} key=${budget.name} budget=${budget} user=${user || undefined} done=${() => again(times + 1)} />`)}
    ${raises?.length > 0 && html`<details><summary>${raises.length > RAISES ? `The newest ${RAISES} of ${raises.length} raises` : `${raises.length} raise${raises.length > 1 ? "s" : ""}`}</summary>
      <div class="wide"><table class="matrix sums"><thead><tr>${["budget", "of", "from", "to", "by", "at"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${raises.slice(0, RAISES).map(Raised)}</tbody></table></div></details>`}
    ${know.me?.role === "administer" && html`<p class="skipped"><label><input type="checkbox" checked=${isOfAll} onChange=${(event) => setOfAll(event.currentTarget.checked)} /> All users</label></p>`}
    ${sums && (sums.total.requests ? html`<${Days} days=${days} />
      <label>By <select onChange=${(event) => go({ spend: event.currentTarget.value })}>${GROUPS.map((group) => html`<option selected=${group === by}>${group}</option>`)}</select></label>
      <div class="wide"><table class="matrix sums"><thead><tr>${[by, "requests", "estimated", "input", "output", "cost"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${sums.spend.slice(0, ROWS).map(SumRow)}${SumRow({ ...sums.total, group: "all" })}</tbody></table></div>
      ${left > 0 && html`<p class="quiet">and ${left} more</p>`}
      ${sums.total.unpriced > 0 && html`<p class="quiet">${count(sums.total.unpriced)} requests have no price.</p>`}`
    : html`<p class="quiet">Requests are listed here once the agent has <code>[[budgets]]</code>.</p>`)}
  </div>`;
}

/** @param {Sum} sum */
const SumRow = (sum) => html`<tr><th scope="row">${sum.group}</th>${[sum.requests, sum.estimated, sum.input_tokens, sum.output_tokens].map((value) => html`<td>${count(value)}</td>`)}<td>${dollars(Number(sum.cost))}</td></tr>`;

/** Who has raised a limit. @param {RaiseRow} raise */
const Raised = ({ budget, scope, user, unit, from, to, by, at }) => html`<tr><th scope="row" dir="auto">${budget}</th><td><bdi>${user ?? scope}</bdi></td><td>${amount(unit, from)}</td><td>${amount(unit, to)}</td><td><bdi>${by}</bdi></td><td>${moment(at)}</td></tr>`;

/** @param {string} app @param {string} by @param {boolean} isOfAll @param {string} user @param {AbortSignal} signal */
async function read(app, by, isOfAll, user, signal) {
  // One after the other: a server adds up few at once.
  const { spend: days } = await get(`${appPath(app)}/spend`, { by: "day", all_users: isOfAll }, signal);
  const sums = await get(`${appPath(app)}/spend`, { by, all_users: isOfAll }, signal);
  const { budgets } = await get(`${appPath(app)}/budgets`, { user }, signal);
  const { raises } = await get(`${appPath(app)}/budgets/raises`, {}, signal);
  return { days, sums, budgets, raises };
}

/** A budget: what is settled, what is reserved, and its limit. @param {{ budget: Budget, user?: string, done: () => void }} props */
function Meter({ budget, user, done }) {
  const { name, scope, unit, window, spent, reserved, limit, declared, until } = budget;
  const share = (/** @type {number} */ value) => `${Math.min(100, (value / Math.max(limit, spent + reserved, 1)) * 100)}%`;
  const words = `${amount(unit, spent)} spent${reserved ? `, ${amount(unit, reserved)} reserved` : ""} of ${amount(unit, limit)}${unit === "usd" ? "" : ` ${unit}`}`;
  return html`<figure class="meter"><figcaption><b dir="auto">${name}</b> <span class="quiet"><bdi>${scope}</bdi> · ${window}${until ? ` · ends ${moment(until)}` : ""}</span></figcaption>
    <svg role="img" aria-label=${words}><rect class="input" width=${share(spent + reserved)} height="100%" /><rect class=${spent >= limit ? "full" : "output"} width=${share(spent)} height="100%" /></svg>
    <p>${words}${declared !== limit && ` (raised; ${amount(unit, declared ?? limit)} is declared)`} <${Raise} budget=${budget} user=${user} done=${done} /></p></figure>`;
}

/** Raises a limit; with a session, its run continues. @param {{ budget: Budget, user?: string, session?: string, done: () => void }} props */
export function Raise({ budget, user, session, done }) {
  const [to, setTo] = useState(/** @type {string | null} */ (null));
  const { name, unit, limit } = budget;
  if (!mayRaise()) return session ? "A raise needs the role raise_budgets." : "";
  if (to === null) return html`<button class="link" onClick=${() => setTo(String(unit === "usd" ? limit / 1e9 : limit))}>Raise the limit</button>`;
  const raise = async () => {
    try {
      await post(`${appPath(know.view.app)}/budgets`, { budget: name, limit: Math.round(Number(to) * (unit === "usd" ? 1e9 : 1)), user, session });
      setTo(null);
      done();
    } catch (error) {
      fail(error, "note");
    }
  };
  return html`<span class="raise"><input type="number" min="0" step="any" aria-label=${`New limit of ${name}, in ${unit === "usd" ? "dollars" : unit}`} value=${to} onInput=${(event) => setTo(event.currentTarget.value)} /> <button class="main" onClick=${raise}>Raise</button></span>`;
}

/** The cost of each day, or its tokens if nothing has a price. @param {{ days: Sum[] }} props */
function Days({ days }) {
  const isPriced = days.some((day) => Number(day.cost) > 0);
  const of = (/** @type {Sum | undefined} */ day) => (day ? (isPriced ? Number(day.cost) : day.input_tokens + day.output_tokens) : 0);
  const words = (/** @type {number} */ value) => (isPriced ? dollars(value) : `${count(value)} tokens`);
  const last = Date.parse(days[days.length - 1].group);
  const many = Math.min(DAYS, Math.round((last - Date.parse(days[0].group)) / 864e5) + 1);
  const known = new Map(days.map((day) => [day.group, day]));
  const shown = Array.from({ length: many }, (_, at) => new Date(last - (many - 1 - at) * 864e5).toISOString().slice(0, 10));
  return html`<${Chart} title=${isPriced ? "Cost" : "Tokens"} by="day" bins=${shown} least=${7} of=${{ output: (/** @type {string} */ day) => of(known.get(day)) }} words=${words} name=${String} />`;
}
