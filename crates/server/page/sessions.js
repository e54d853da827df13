// The sessions of an app, and which app.
// @ts-check
import { html } from "./html.js";
import { go, know, listSessions, openFirst, search, statusOf } from "./store.js";
import { moment } from "./text.js";
import { open as openDialog } from "./act.js";

/** The status of a run of another version, in words. @param {import("./types").Upgrade["runs"][number]} run */
const fate = (run) => run.continues ? run.left ? "left to another version" : run.status === "touched" ? "touched, continued" : run.status : run.status === "compatible" ? "refused" : run.status;

/** The runs that another version of the agent began. */
function Upgrade() {
  const { upgrade, me, view } = know;
  if (!upgrade?.runs.length) return null;
  const { runs, refused, left } = upgrade;
  const many = `${runs.length}${upgrade.has_more ? "+" : ""} ${runs.length === 1 ? "run" : "runs"} of another version`;
  return html`<details class=${refused || left ? "upgrade bad" : "upgrade"}><summary class="link">${many}${refused ? `, ${refused} not continued` : ""}${left ? `, ${left} to be resumed` : ""}</summary>
    <ul>${runs.map((run) => html`<li key=${`${run.user}/${run.session}`}>${run.user === me?.user ? html`<a href=${`#/${encodeURIComponent(view.app ?? "")}/${encodeURIComponent(run.session)}`}>${run.session}</a>` : `${run.user}/${run.session}`} <span class=${run.continues && !run.left ? "status" : "status failed"}>${fate(run)}</span>
      <span class="under" dir="auto">${run.reasons.join("; ")}</span></li>`)}</ul></details>`;
}

export function Sessions() {
  const { sessions: found, view } = know;
  const open = (/** @type {string} */ session) => go({ session });
  return html`<nav class="sessions" aria-label="Sessions">
    <div class="top">
      ${know.apps.length > 1 ? html`<label class="quiet" for="app">Agent</label><select id="app" title="Open: sessions that wait, failed, or were interrupted" value=${view.app} onChange=${(event) => go({ app: event.currentTarget.value, session: undefined })}>${know.apps.map(({ app }) => html`<option value=${app}>${app}${know.stopped[app]?.length ? ` (${know.stopped[app].length} open)` : ""}</option>`)}</select>`
      : html`<b class="app">${view.app}</b>`}
    </div>
    <div class="top"><input id="search" type="search" dir="auto" aria-label="Search sessions" placeholder="Search" value=${know.search} onInput=${(event) => search(event.currentTarget.value)} onKeyDown=${(event) => event.key === "Enter" && openFirst()} />
      <button disabled=${!know.app} onClick=${() => openDialog("new")} title="n">New</button>
    </div>
    <${Upgrade} />
    ${!found.length && know.app && html`<p class="quiet">${know.search ? "No session fits." : "No session yet: make one with New."}</p>`}
    <ul>${found.map((row) => html`<li key=${row.id}><a href=${`#/${encodeURIComponent(view.app ?? "")}/${encodeURIComponent(row.id)}`} aria-current=${row.id === view.session ? "page" : undefined}
      onClick=${(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        open(row.id);
      }}>
      <span class="line"><span class="name" title=${`${row.id}, ${moment(row.updated)}`}>${row.id.length > 20 ? html`<span>${row.id.slice(0, -8)}</span><span>${row.id.slice(-8)}</span>` : html`<span>${row.id}</span>`}</span> <span class="under right">v${row.version}</span></span>
      <span class="line"><span class="under" dir="auto">${row.imported ? `imported by ${row.imported.by} · ` : ""}${row.parent ? `↳ ${row.parent.id} v${row.parent.version}` : row.title || moment(row.updated)}</span><span class=${`right status ${statusOf(row)}`}>${statusOf(row)}</span></span></a></li>`)}</ul>
    ${know.more && html`<button class="link" onClick=${() => listSessions(true)}>More</button>`}
  </nav>`;
}
