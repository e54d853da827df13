// The sessions of an app, and which app.
// @ts-check
import { html } from "./vendor/preact.js";
import { go, know, listSessions, search } from "./store.js";
import { moment } from "./text.js";
import { open } from "./act.js";

/** @param {any} row */
export const status = (row) => row.status ?? (row.claimed ? "running" : "");

export function Sessions() {
  const { sessions: found, view } = know;
    return html`<nav class="sessions" aria-label="Sessions">
    <div class="top">
      ${know.apps.length > 1 ? html`<label class="hidden" for="app">App</label><select id="app" value=${view.app} onChange=${(event) => go({ app: event.currentTarget.value, session: undefined })}>${know.apps.map((app) => html`<option value=${app.app}>${app.app}</option>`)}</select>`
      : html`<b class="app">${view.app}</b>`}
      <button type="button" onClick=${() => open("new")} title="n">New</button>
    </div>
    <input id="search" type="search" aria-label="Search sessions" placeholder="Search" value=${know.search} onInput=${(event) => search(event.currentTarget.value)} />
    ${!found.length && know.ready && html`<p class="quiet">${know.search ? "No session fits." : "No session yet: make one with New."}</p>`}
    <ul>${found.map((row) => html`<li key=${row.id}><a href=${`#/${encodeURIComponent(view.app ?? "")}/${encodeURIComponent(row.id)}`} aria-current=${row.id === view.session ? "page" : undefined}
      onClick=${(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        go({ session: row.id });
      }}>
      <span class="name" title=${moment(row.updated)}>${row.id}</span><span class=${`status ${status(row)}`}>${status(row) === "idle" ? "" : status(row)}</span>
      <span class="under">${row.parent ? `↳ ${row.parent.id} v${row.parent.version}` : row.title || moment(row.updated)}</span><span class="under right">v${row.version}</span></a></li>`)}</ul>
    ${know.more && html`<button type="button" class="link" onClick=${() => listSessions(true)}>More</button>`}
  </nav>`;
}
