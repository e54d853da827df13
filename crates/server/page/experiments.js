// Experiments with stored sessions: cases × experiments, and the two turns of a case from their first difference.
// @ts-check
import { html, useEffect, useRef, useState } from "./html.js";
import { appPath, ask, get } from "./api.js";
import { go, know } from "./store.js";

/** The experiments that are read at once. */
const MOST = 8;
/** The cases that are shown at once, and more of them with each click. */
const ROWS = 500;
const MARKS = /** @type {Record<string, [string, string]>} */ ({ passed: ["✓", "passed"], failed: ["✗", "failed"], left_record: ["?", "left the record"], error: ["!", "error"], skipped: ["–", "skipped"] });

/** The worst result of the repeats of a case. @param {any[]} results */
const worst = (results) => ["error", "failed", "left_record", "skipped", "passed"].map((status) => results.find((result) => result.status === status)).find(Boolean);

/** @typedef {{ error?: string, names: string[], baseline: string, candidate: string, read: { experiment: any, comparison: any, results: any[], next?: number }[], failed: any[], underWay: any[] }} Found */

/** @param {any} error @returns {any} */
const wrong = (error) => ({ error: error.message });

export function Experiments() {
  const { app, experiment } = know.view;
  const [found, setFound] = useState(/** @type {Found | null} */ (null));
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const [times, setTimes] = useState(0);
  const [rows, setRows] = useState(ROWS);
  const path = `${appPath(app)}/experiments`;
  useEffect(() => {
    const stop = new AbortController();
    setOpen(null);
    setRows(ROWS);
    read(path, experiment, stop.signal).then(setFound, (error) => stop.signal.aborted || setFound(wrong(error)));
    return () => stop.abort();
  }, [app, experiment, times]);
  useEffect(() => {
    if (!found?.underWay?.length) return;
    const timer = setTimeout(async () => {
      const rows = await get(path, { under_way: true }).then(({ experiments }) => experiments, () => found.underWay);
      // One has ended.
      if (rows.length < found.underWay.length) setTimes(times + 1);
      else setFound({ ...found, underWay: rows });
    }, 2000);
    return () => clearTimeout(timer);
  }, [found]);
  /** @param {string} name */
  const remove = (name) => ask("DELETE", `${path}/${encodeURIComponent(name)}`).then(() => setTimes(times + 1), (error) => setFound(wrong(error)));
  if (!found) return html`<p class="quiet">…</p>`;
  if (found.error) return html`<div class="empty"><h1>Experiments</h1><p role="alert">${found.error}</p></div>`;
  const others = [...found.underWay, ...found.failed];
  const jobs = others.length > 0 && html`<ul class="jobs">${others.map((one) => html`<li><b dir="auto">${one.name}</b> ${one.status === "failed" ? html`<span class="mark failed" dir="auto">${one.why}</span>` : html`<progress value=${one.cases} max=${one.expected} aria-label="Results"></progress> ${one.cases} of ${one.expected}, ${one.status}`} <button type="button" onClick=${() => remove(one.name)}>${one.status === "failed" ? "Delete" : "Cancel"}</button></li>`)}</ul>`;
  if (!found.read.length) return html`<div class=${jobs ? "experiments" : "empty"}><h1>Experiments</h1>${jobs || html`<p>There is none yet. <code>stepfold eval run --report</code> writes one into the folder of <code>serve --experiments</code>.</p>`}</div>`;
  const cases = [...new Set(found.read.flatMap((one) => one.results.map((result) => result.case)))];
  const comparison = found.read.at(-1)?.comparison;
  const hidden = Math.max(cases.length - rows, 0);
  // A page of the API has some of the results.
  const unread = found.read.reduce((sum, { experiment: one, results }) => sum + Math.max(one.cases - results.length, 0), 0);
  const showMore = async () => {
    setRows(rows + ROWS);
    if (hidden < ROWS && unread > 0) setFound({ ...found, read: await readOn(path, found.read) });
  };
  return html`<div class="experiments" tabindex="0" role="region" aria-label="Experiments">
    <h1>Experiments</h1>${jobs}
    ${found.names.length > 1 && html`<label>Candidate <select value=${found.candidate} onChange=${(event) => go({ experiment: event.currentTarget.value })}>${found.names.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
    ${comparison && html`<p class=${`verdict ${comparison.verdict}`}>${comparison.text.split("\n")[0]} · ${comparison.wins} won, ${comparison.losses} lost, ${comparison.ties} ties, beside ${found.baseline}</p>`}
    <div class="wide"><table class="matrix"><thead><tr><th scope="col">Case</th>${found.read.map(({ experiment: one }) => html`<th scope="col" title=${`${one.candidate}, ${one.mode}: ${one.cases} cases`}>${one.name}<span class="under">${one.pass_rate === null ? "–" : `${Math.round(one.pass_rate * 100)} %`} · ${one.steps} steps</span></th>`)}</tr></thead>
      <tbody>${cases.slice(0, rows).map((name) => html`<tr><th scope="row" dir="auto">${name}</th>${found.read.map((one) => html`<td><${Cell} of=${one.experiment.name} results=${one.results.filter((result) => result.case === name)} open=${setOpen} isOpen=${open?.name === one.experiment.name && open?.case === name} /></td>`)}</tr>`)}</tbody></table></div>
    ${hidden + unread > 0 && html`<p class="quiet">${hidden > 0 && `${hidden} more cases. `}${unread > 0 && `${unread} more results, of cases that are not read yet. `}<button type="button" onClick=${() => showMore().catch((error) => setFound(wrong(error)))}>Show more</button></p>`}
    ${open && html`<${Turns} result=${open} />`}
  </div>`;
}

/** The experiments of an app: the first is the baseline, the last the candidate. @param {string} path @param {string | undefined} chosen @param {AbortSignal} signal */
async function read(path, chosen, signal) {
  /** @type {{ experiments: any[] }} */
  const { experiments } = await get(path, {}, signal);
  const [done, failed, underWay] = ["done", "failed", "waiting running"].map((states) => experiments.filter(({ status }) => states.includes(status)));
  const names = done.map(({ name }) => name);
  const baseline = names.find((name) => /^base/.test(name)) ?? names[0];
  const candidate = names.includes(chosen) ? chosen : names.findLast((name) => name !== baseline) ?? baseline;
  const shown = [baseline, ...names.filter((name) => ![baseline, candidate].includes(name)).slice(0, MOST - 2), candidate].filter((name, at, all) => name && all.indexOf(name) === at);
  const one = (/** @type {string} */ name) => {
    const own = `${path}/${encodeURIComponent(name)}`;
    const bare = () => get(own, {}, signal);
    // Of another mode, they cannot be compared.
    return name === candidate && name !== baseline ? get(own, { baseline }, signal).catch(bare) : bare();
  };
  const read = [];
  // One after the other: a server reads few of them at once.
  for (const name of shown) read.push(await one(name));
  return { names, baseline, candidate, read, failed, underWay };
}

/** The experiments with one more page of each. @param {string} path @param {Found["read"]} read */
async function readOn(path, read) {
  const longer = [];
  for (const one of read) {
    if (one.next === undefined) {
      longer.push(one);
      continue;
    }
    const page = await get(`${path}/${encodeURIComponent(one.experiment.name)}`, { after: one.next });
    longer.push({ ...one, results: [...one.results, ...page.results], next: page.next });
  }
  return longer;
}

/** @param {{ of: string, results: any[], open: (result: any) => void, isOpen: boolean }} props */
function Cell({ of, results, open, isOpen }) {
  const result = worst(results);
  if (!result) return "";
  const [mark, word] = MARKS[result.status];
  const passed = results.filter(({ status }) => status === "passed").length;
  return html`<button class=${`mark ${result.status}`} aria-expanded=${isOpen} title=${result.why || word} onClick=${() => open(isOpen ? null : { ...result, name: of })}>${mark} <span>${results.length > 1 ? `${passed}/${results.length}` : word}</span></button>`;
}

/** The recorded turn beside the candidate’s. @param {{ result: any }} props */
function Turns({ result }) {
  const at = useRef(/** @type {any} */ (null));
  useEffect(() => at.current?.scrollIntoView({ block: "center" }), [result]);
  const { recorded, made, differs_at: differs } = result;
  const many = Math.max(recorded.length, made.length);
  return html`<section aria-label=${`Case ${result.case}`}><h2 dir="auto">${result.case} <span class="under">in ${result.name}</span></h2>
    <p dir="auto">${result.why || "Every expectation holds."} <${Source} name=${result.case} /></p>
    ${many > 0 && html`<table class="turns"><thead><tr><th scope="col">Recorded</th><th scope="col">Candidate</th></tr></thead>
      <tbody>${Array.from({ length: many }, (_, line) => html`<tr ref=${line === differs ? at : undefined} class=${line === differs ? "first different" : recorded[line] === made[line] ? "same" : "different"}><td dir="auto">${recorded[line] ?? ""}</td><td dir="auto">${made[line] ?? ""}</td></tr>`)}</tbody></table>`}</section>`;
}

/** The session that a case was taken from, by its name. @param {{ name: string }} props */
function Source({ name }) {
  const [, user, session, version] = name.match(/^(.+?)\/(.+)\/(\d+)$/) ?? [];
  return user === know.me?.user && html`<button class="link" onClick=${() => go({ experiment: undefined, session, at: Number(version) })}>Open the session</button>`;
}
