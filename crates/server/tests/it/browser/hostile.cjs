// A hostile page in the browser of somebody who is logged in. Prints what each attack could read, and which statuses the
// server answered it with.
const { chromium } = require(process.env.STEPFOLD_INTEROP_PLAYWRIGHT);

const { victim, token, hostile } = JSON.parse(process.argv[2]);
const port = new URL(victim).port;

// Runs in the hostile page: each attack ends with what it could read, or with null.
async function attack(target) {
  const sessions = `${target}/api/v1/apps/clerk/sessions`;
  const messages = `${sessions}/s1/messages`;
  const body = '{"text":"transfer everything"}';
  const read = async (url, options) => {
    try {
      const response = await fetch(url, { credentials: 'include', ...options });
      return response.type === 'opaque' ? null : { status: response.status, text: await response.text() };
    } catch {
      return null;
    }
  };
  const element = (name, attributes) => new Promise((resolve) => {
    const node = document.createElement(name);
    Object.assign(node, attributes);
    node.onload = () => resolve({ loaded: name });
    node.onerror = () => resolve(null);
    document.body.append(node);
    setTimeout(() => resolve(null), 3000);
  });
  const form = (enctype) => new Promise((resolve) => {
    const frame = document.createElement('iframe');
    frame.name = `frame-${enctype}`;
    const node = document.createElement('form');
    Object.assign(node, { method: 'POST', action: messages, target: frame.name, enctype });
    const input = document.createElement('input');
    // As text/plain, this is JSON.
    Object.assign(input, { name: '{"text":"transfer everything","x":"', value: '"}' });
    node.append(input);
    document.body.append(frame, node);
    frame.onload = () => {
      let text = null;
      try { text = frame.contentDocument?.body?.innerText || null; } catch { /* another origin */ }
      resolve(text && { text });
    };
    node.submit();
    setTimeout(() => resolve(null), 3000);
  });
  const frame = () => new Promise((resolve) => {
    const node = document.createElement('iframe');
    node.src = `${target}/`;
    node.name = 'framed';
    node.onload = () => {
      let text = null;
      try { text = node.contentDocument?.body?.innerText || null; } catch { /* another origin */ }
      resolve(text && { text });
    };
    document.body.append(node);
    setTimeout(() => resolve(null), 3000);
  });
  const events = () => new Promise((resolve) => {
    const source = new EventSource(`${sessions}/s1/live?after=0`, { withCredentials: true });
    for (const name of ['hello', 'committed', 'message']) {
      source.addEventListener(name, (event) => { source.close(); resolve({ text: event.data }); });
    }
    source.onerror = () => { source.close(); resolve(null); };
    setTimeout(() => { source.close(); resolve(null); }, 3000);
  });
  const socket = () => new Promise((resolve) => {
    let opened;
    try { opened = new WebSocket(`${sessions.replace('http', 'ws')}/s1/live`); } catch { resolve(null); return; }
    opened.onopen = () => resolve({ text: 'open' });
    opened.onerror = () => resolve(null);
    setTimeout(() => resolve(null), 3000);
  });
  // Another window has a handle to the page, which must tell nothing.
  const opened = async () => {
    const other = window.open(`${target}/`, 'opened');
    await new Promise((resolve) => setTimeout(resolve, 500));
    let text = null;
    try { text = other?.document?.body?.innerText || null; } catch { /* another origin */ }
    other?.close();
    return text && { text };
  };
  const json = { 'content-type': 'application/json' };
  const plain = { 'content-type': 'text/plain' };
  // A body that each protocol would take, as a page may send it without asking first.
  const simple = (path, value) => read(`${target}${path}`, { method: 'POST', mode: 'no-cors', headers: plain, body: JSON.stringify(value) });
  const said = { role: 'user', content: 'transfer everything' };
  return {
    'read by fetch': await read(sessions),
    'read by fetch without CORS': await read(sessions, { mode: 'no-cors' }),
    'post of text': await read(messages, { method: 'POST', mode: 'no-cors', headers: { 'content-type': 'text/plain' }, body }),
    'post of JSON': await read(messages, { method: 'POST', headers: json, body }),
    'post of JSON without a type': await read(messages, { method: 'POST', mode: 'no-cors', body: new Blob([body]) }),
    'change of the state': await read(`${sessions}/s1/state`, { method: 'PATCH', headers: json, body: '{"set":{"spent":9},"expected":0}' }),
    'label': await read(`${sessions}/s1/labels/evil`, { method: 'PUT', headers: json, body: '{"version":0}' }),
    'import': await simple('/api/v1/apps/clerk/import', { format: 1 }),
    'session': await simple('/api/v1/apps/clerk/sessions', { id: 'evil' }),
    'login': await simple('/api/v1/login', {}),
    'logout': await simple('/api/v1/logout', {}),
    'client of OpenAI': await simple('/v1/chat/completions', { model: 'clerk', messages: [said] }),
    'client of AG-UI': await simple('/agui/clerk', { threadId: 's1', runId: 'r1', messages: [{ id: 'u1', ...said }] }),
    'client of the AI SDK': await simple('/ai/clerk', { id: 's1', messages: [{ id: 'u1', role: 'user', parts: [{ type: 'text', text: 'hi' }] }] }),
    'client of ADK': await simple('/run', { appName: 'clerk', userId: 'user', sessionId: 's1', newMessage: { role: 'user', parts: [{ text: 'hi' }] } }),
    'client of A2A': await simple('/a2a/clerk', { jsonrpc: '2.0', id: 1, method: 'SendMessage', params: {} }),
    'client of MCP': await simple('/mcp/clerk', { jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} }),
    'socket': await socket(),
    'opened window': await opened(),
    'deletion': await read(`${sessions}/s1`, { method: 'DELETE', headers: json }),
    'beacon': navigator.sendBeacon(messages, new Blob([body], { type: 'text/plain' })) && null,
    'form': await form('application/x-www-form-urlencoded'),
    'form of text': await form('text/plain'),
    'form of parts': await form('multipart/form-data'),
    'event stream': await events(),
    'all live': await read(`${target}/api/v1/live`),
    'image': await element('img', { src: `${target}/api/v1/apps` }),
    'script': await element('script', { src: sessions }),
    'script of the page': await element('script', { src: `${target}/studio/app.js` }),
    'style': await element('link', { rel: 'stylesheet', href: sessions }),
    'frame': await frame(),
  };
}

async function main() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM,
    // The names of the attacker resolve to this host: so one of them is rebound. A protection that browsers differ in is off.
    args: [
      '--no-sandbox',
      '--host-resolver-rules=MAP evil.test 127.0.0.1',
      '--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests',
    ],
  });
  const context = await browser.newContext();
  const results = {};

  // Somebody logs in, and the page of the server can read.
  const own = await context.newPage();
  const login = own.waitForResponse((response) => response.url().endsWith('/api/v1/login'));
  await own.goto(`${victim}/#token=${token}`);
  results.login = (await login).status();
  results.own = await own.evaluate(async () => (await fetch('/api/v1/apps/clerk/sessions')).status);

  const run = async (name, url, target, html) => {
    const page = await context.newPage();
    const statuses = new Set();
    page.on('response', (response) => {
      const { port: to, pathname } = new URL(response.url());
      // The page at `/` is public, and so is its script.
      if (to === port && pathname.startsWith('/api/')) statuses.add(response.status());
    });
    if (html) await page.route(url, (route) => route.fulfill({ contentType: 'text/html', body: html }));
    await page.goto(url);
    const read = await page.evaluate(attack, target);
    const framed = page.frames().filter((frame) => frame.name() === 'framed').map((frame) => frame.url());
    results[name] = { read, statuses: [...statuses].sort(), framed };
    await page.close();
  };
  const hostilePort = new URL(hostile).port;
  await run('other port', `http://127.0.0.1:${hostilePort}/`, victim);
  await run('other name of this host', `http://localhost:${hostilePort}/`, victim);
  await run('other origin', `http://evil.test:${hostilePort}/`, victim);
  // The name was another address when the page was loaded.
  await run('rebound', `http://evil.test:${port}/attack.html`, `http://evil.test:${port}`, '<body>evil</body>');
  await browser.close();
  console.log(JSON.stringify(results));
}

main().catch((error) => { console.error(error); process.exit(1); });
