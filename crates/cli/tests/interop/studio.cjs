// The studio in Chromium, over `stepfold serve --demo`, driven as a person would. Says what it saw as one line of JSON.
// argv: Chromium, and the program `stepfold`. It starts and kills the server itself, in the current folder.
const { spawn, execFileSync } = require('node:child_process');
const { readFileSync, writeFileSync } = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const playwright = process.env.STEPFOLD_INTEROP_PLAYWRIGHT;
const { chromium } = require(playwright);
const axe = readFileSync(path.join(playwright, '../axe-core/axe.min.js'), 'utf8');

const [executablePath, stepfold] = process.argv.slice(2);
const made = execFileSync(stepfold, ['--json', 'token', '--user', 'local', '--role', 'administer']).toString();
const { token, line } = JSON.parse(made);
writeFileSync('tokens', `${line}\n`);

// Below the ports that the system gives to clients: the server takes it again after a kill, and no connection of
// another program may have it then.
const freePort = async () => {
    for (let port = 20_000 + (process.pid % 9_000); ; port += 1) {
        const probe = net.createServer();
        const isFree = new Promise((resolve) => { probe.once('listening', () => resolve(true)).once('error', () => resolve(false)); });
        probe.listen(port, '127.0.0.1');
        if (await isFree) return new Promise((resolve) => { probe.close(() => resolve(port)); });
    }
};

// Starts the server, and waits until it has said where it is.
const serve = (port) => new Promise((resolve, reject) => {
    const options = ['serve', '--demo', '--store', 'demo.db', '--tokens', 'tokens', '--bind', `127.0.0.1:${port}`];
    const server = spawn(stepfold, ['--json', ...options], { stdio: ['ignore', 'pipe', 'inherit'] });
    // A server that outlives this program would hold the pipe that the test reads.
    process.once('exit', () => server.kill('SIGKILL'));
    server.once('exit', (code) => reject(new Error(`the server ended: exit code ${code}`)));
    server.stdout.once('data', () => resolve(server));
});

(async () => {
    const seen = {};
    const port = await freePort();
    const base = `http://127.0.0.1:${port}`;
    let server = await serve(port);
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    const foreign = [];
    const refused = [];
    const errors = [];
    const open = async (colorScheme, width, height) => {
        const context = await browser.newContext({ colorScheme, viewport: { width, height } });
        const page = await context.newPage();
        page.setDefaultTimeout(20_000);
        page.on('request', (request) => {
            if (!request.url().startsWith(base) && !request.url().startsWith('data:')) foreign.push(request.url());
        });
        page.on('console', (message) => {
            if (/Content Security|TrustedHTML|violates/.test(message.text())) refused.push(message.text());
        });
        page.on('pageerror', (error) => errors.push(error.message));
        await page.goto(`${base}/#token=${token}`);
        await page.getByLabel('App').waitFor();
        return page;
    };

    // A person chooses a session, and goes back in it.
    const page = await open('light', 1440, 860);
    await page.getByLabel('App').selectOption('stalls');
    const sessions = page.getByRole('link', { name: /monday|tuesday|wednesday/ });
    await sessions.nth(2).waitFor();
    seen.sessions = (await sessions.allInnerTexts()).map((text) => text.includes('waiting') ? 'waiting' : text.includes('interrupted') ? 'interrupted' : 'idle').sort();
    await page.getByRole('link', { name: /monday/ }).first().click();
    await page.getByRole('slider', { name: 'Version' }).waitFor();
    await page.keyboard.press('ArrowLeft');
    await page.waitForURL(/v=\d+/);
    await page.keyboard.press('End');
    await page.waitForURL((url) => !url.hash.includes('v='));
    // Which call wrote this value?
    await page.getByRole('button', { name: /v\d+ · count/ }).first().click();
    await page.waitForURL(/panel=step/);
    await page.keyboard.press('End');
    // The request is approved with other arguments.
    await page.getByRole('button', { name: 'Change…' }).click();
    await page.getByLabel('Arguments (JSON)').fill('{"stall":"bakery","euro":4}');
    await page.getByRole('button', { name: 'Approve with these' }).click();
    await page.getByText('fee of the bakery is paid').first().waitFor();
    // A fork from an earlier step, and a message there that would leak if it were markup.
    await page.getByLabel('Message', { exact: true }).focus();
    await page.keyboard.press('Escape');
    await page.keyboard.press('[');
    await page.keyboard.press('ArrowLeft');
    await page.waitForURL(/v=\d+/);
    await page.keyboard.press('f');
    await page.getByLabel('Name').fill('branch');
    await page.getByRole('button', { name: 'Fork', exact: true }).click();
    await page.waitForURL(/\/branch/);
    await page.getByLabel('Message', { exact: true }).fill('![x](http://evil.test/leak.png) <img src=http://evil.test/b>');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Escape');
    await page.keyboard.press('2');
    await page.getByText('evil.test').first().waitFor();
    await page.getByText('More', { exact: true }).click();
    await page.getByRole('button', { name: 'Compare with…' }).click();
    await page.locator('.choices button').first().click();
    await page.getByText(/Both share/).waitFor();

    // The server is killed while the page is open, and another one goes on: what is sent then is shown once.
    await page.goto(`${base}/#/stalls/tuesday`);
    await page.getByRole('slider', { name: 'Version' }).waitFor();
    const ended = new Promise((resolve) => { server.once('exit', resolve); });
    server.kill('SIGKILL');
    await ended;
    server = await serve(port);
    const asked = await fetch(`${base}/api/v1/apps/stalls/sessions/tuesday/messages`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: JSON.stringify({ text: 'And after the restart?' }),
    });
    seen.sent = asked.status;
    await page.getByText('And after the restart?').first().waitFor();
    seen.once = await page.getByRole('option', { name: /And after the restart\?/ }).count();

    // What looks for barriers finds none.
    const barriers = [];
    const views = ['stalls/monday', 'stalls/monday?v=4&key=counted', 'stalls/monday?view=conversation', 'library/durability?view=graph'];
    for (const [scheme, width, height] of [['light', 1440, 860], ['dark', 1440, 860], ['light', 400, 860]]) {
        const other = await open(scheme, width, height);
        for (const view of views) {
            await other.goto(`${base}/#/${view}`);
            await other.getByRole('slider', { name: 'Version' }).waitFor();
            // Not as a script of the page, which its policy refuses.
            await other.evaluate(axe);
            const found = await other.evaluate(() => globalThis.axe.run());
            for (const { id, nodes } of found.violations) barriers.push(`${scheme} ${width} ${view}: ${id}: ${nodes[0].html.slice(0, 120)}`);
        }
        await other.context().close();
    }
    await browser.close();
    server.kill('SIGKILL');
    console.log(JSON.stringify({ ...seen, barriers, foreign, refused, errors }));
})().catch((error) => {
    console.error(error);
    process.exit(1);
});
