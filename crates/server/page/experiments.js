// Experiments with stored sessions: cases × experiments, and the two turns of a case from their first difference.
// @ts-check
import { html, useEffect, useRef, useState } from "./html.js";
import { appPath, get } from "./api.js";
import { go, know } from "./store.js";

/** The experiments that are read at once. */
const MOST = 8;
const MARKS = /** @type {Record<string, [string, string]>} */ ({ passed: ["✓", "passed"], failed: ["✗", "failed"], left_record: ["?", "left the record"], error: ["!", "error"], skipped: ["–", "skipped"] });

/** The worst result of the repeats of a case. @param {any[]} results */
const worst = (results) => ["error", "failed", "left_record", "skipped", "passed"].map((status) => results.find((result) => result.status === status)).find(Boolean);

export function Experiments() {
  const { app, experiment } = know.view;
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const stop = new AbortController();
    setFound(null);
    setOpen(null);
    read(app ?? "", experiment, stop.signal).then(setFound, (error) => stop.signal.aborted || setFound({ error: error.message }));
    return () => stop.abort();
  }, [app, experiment]);
  if (!found) return html`<p class="quiet">…</p>`;
  if (found.error) return html`<div class="empty"><h1>Experiments</h1><p role="alert">${found.error}</p></div>`;
  if (!found.read.length) return html`<div class="empty"><h1>Experiments</h1><p>There is none yet. <code>stepfold eval</code> writes reports, and <code>stepfold serve --experiments FOLDER</code> shows those in the folder.</p></div>`;
  const cases = [...new Set(found.read.flatMap((/** @type {any} */ one) => one.results.map((/** @type {any} */ result) => result.case)))];
  const { comparison } = found.read.at(-1);
  return html`<div class="experiments" tabindex="0" role="region" aria-label="Experiments">
    <h1>Experiments</h1>
    ${found.names.length > 1 && html`<label>Candidate <select value=${found.candidate} onChange=${(event) => go({ experiment: event.currentTarget.value })}>${found.names.map((/** @type {string} */ name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
    ${comparison && html`<p class=${`verdict ${comparison.verdict}`}>${comparison.text.split("\n")[0]} · ${comparison.wins} won, ${comparison.losses} lost, ${comparison.ties} ties, beside ${found.baseline}</p>`}
    <div class="wide"><table class="matrix"><thead><tr><th scope="col">Case</th>${found.read.map((/** @type {any} */ { experiment: one }) => html`<th scope="col" title=${`${one.candidate}, ${one.mode}: ${one.cases} cases`}>${one.name}<span class="under">${one.pass_rate === null ? "–" : `${Math.round(one.pass_rate * 100)} %`} · ${one.steps} steps</span></th>`)}</tr></thead>
      <tbody>${cases.slice(0, 500).map((name) => html`<tr><th scope="row" dir="auto">${name}</th>${found.read.map((/** @type {any} */ one) => html`<td><${Cell} of=${one.experiment.name} results=${one.results.filter((/** @type {any} */ result) => result.case === name)} open=${setOpen} isOpen=${open?.name === one.experiment.name && open?.case === name} /></td>`)}</tr>`)}</tbody></table></div>
    ${cases.length > 500 && html`<p class="quiet">and ${cases.length - 500} more cases</p>`}
    ${open && html`<${Turns} result=${open} />`}
  </div>`;
}

/** The experiments of an app: the first is the baseline, the last the candidate. @param {string} app @param {string | undefined} chosen @param {AbortSignal} signal */
async function read(app, chosen, signal) {
  const { experiments } = await get(`${appPath(app)}/experiments`, {}, signal);
  const names = experiments.map((/** @type {any} */ one) => one.name);
  const baseline = names.find((/** @type {string} */ name) => /^base/.test(name)) ?? names[0];
  const candidate = names.includes(chosen) ? chosen : names.findLast((/** @type {string} */ name) => name !== baseline) ?? baseline;
  const shown = [baseline, ...names.filter((/** @type {string} */ name) => ![baseline, candidate].includes(name)).slice(0, MOST - 2), candidate].filter((name, at, all) => name && all.indexOf(name) === at);
  const path = (/** @type {string} */ name) => `${appPath(app)}/experiments/${encodeURIComponent(name)}`;
  const one = (/** @type {string} */ name) => {
    const bare = () => get(path(name), {}, signal);
    // Of another mode, they cannot be compared.
    return name === candidate && name !== baseline ? get(path(name), { baseline }, signal).catch(bare) : bare();
  };
  const read = [];
  // One after the other: a server reads few of them at once.
  for (const name of shown) read.push(await one(name));
  return { names, baseline, candidate, read };
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
