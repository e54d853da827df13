// assistant-ui over AG-UI, bundled, in Chromium: text, a tool, the state, interrupts that are approved and rejected, and text of a
// model that would have images fetched. Its page comes from a small server of this script, which passes requests on with the
// token. Says what it saw as one line of JSON. argv: the program, the URL of the server, the token, the folder of the packages.
const http = require('node:http');
const path = require('node:path');
const [executablePath, url, token, modules] = process.argv.slice(2);
const { chromium } = require(process.env.STEPFOLD_INTEROP_PLAYWRIGHT);
const { buildSync } = require(path.join(modules, 'esbuild'));

const bundle = buildSync({
    entryPoints: [path.join(__dirname, 'react_ag_ui.jsx')],
    bundle: true, write: false, format: 'iife', jsx: 'automatic', logLevel: 'error',
    nodePaths: [modules], define: { 'process.env.NODE_ENV': '"production"' },
}).outputFiles[0].text;
const page = '<!doctype html><meta charset="utf-8"><title>chat</title><link rel="icon" href="data:,"><div id="root"></div><script src="/page.js"></script>';

const server = http.createServer((request, response) => {
    const file = { '/': ['text/html', page], '/page.js': ['text/javascript', bundle] }[request.url];
    if (file) {
        response.setHeader('content-type', file[0]);
        return response.end(file[1]);
    }
    const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json', accept: request.headers.accept };
    const passed = http.request(new URL(request.url, url), { method: request.method, headers }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
    });
    request.pipe(passed);
});

server.listen(0, '127.0.0.1', async () => {
    const base = `http://127.0.0.1:${server.address().port}/`;
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    const tab = await browser.newPage({ viewport: { width: 900, height: 700 } });
    const seen = { foreign: [], errors: [] };
    tab.on('request', (asked) => { if (!asked.url().startsWith(base) && !asked.url().startsWith('data:')) seen.foreign.push(asked.url()); });
    tab.on('pageerror', (error) => seen.errors.push(error.message));
    await tab.goto(base);
    const say = async (text) => {
        await tab.locator('textarea[name=input]').fill(text);
        await tab.getByRole('button', { name: 'Send' }).click();
    };
    const told = (text) => tab.getByText(text).first().waitFor({ timeout: 20000 });

    await say('pay the bill');
    await tab.getByRole('button', { name: 'Approve' }).waitFor({ timeout: 20000 });
    seen.asked = await tab.locator('.call').allInnerTexts();
    await tab.getByRole('button', { name: 'Approve' }).click();
    await told('It is paid.');
    seen.paid = await tab.locator('.call').allInnerTexts();
    seen.state = await tab.locator('#state').innerText();
    await say('and once more');
    await tab.getByRole('button', { name: 'Reject' }).click({ timeout: 20000 });
    await told('As you wish.');
    seen.rejected = (await tab.locator('.call').allInnerTexts()).at(-1);
    seen.interrupts = await tab.locator('.interrupt').count();
    await say('show me');
    await told('Look here.');
    seen.images = await tab.locator('img').count();
    seen.texts = (await tab.locator('.text').allInnerTexts()).map((text) => text.slice(0, 13));
    seen.title = await tab.title();
    if (process.env.SCREENSHOT) await tab.screenshot({ path: process.env.SCREENSHOT });
    await browser.close();
    server.close();
    console.log(JSON.stringify(seen));
}).on('error', (error) => { console.error(error); process.exit(1); });
process.on('unhandledRejection', (error) => { console.error(error); process.exit(1); });
