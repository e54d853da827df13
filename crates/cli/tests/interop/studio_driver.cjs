// What the scripts of the studio share: the server, which they start and kill in the current folder, and pages of a browser.
// argv: Chromium, and the program: `stepfold`, or the studio of the examples. A script says what it saw as one line of JSON.
const { spawn, execFileSync } = require('node:child_process');
const { readFileSync, writeFileSync } = require('node:fs');
const net = require('node:net');
const path = require('node:path');

const playwright = process.env.STEPFOLD_INTEROP_PLAYWRIGHT;
const { chromium } = require(playwright);
const axe = readFileSync(path.join(playwright, '../axe-core/axe.min.js'), 'utf8');
const [executablePath, program] = process.argv.slice(2);

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

class Studio {
    constructor(port, options, token) {
        Object.assign(this, { port, options, token, base: `http://127.0.0.1:${port}`, foreign: [], refused: [], errors: [], failed: [], lives: new Set() });
    }

    // Starts the server, and waits until it has said where it is.
    async start() {
        this.server = spawn(program, [...this.options, '--bind', `127.0.0.1:${this.port}`], { stdio: ['ignore', 'pipe', 'ignore'] });
        const said = await new Promise((resolve, reject) => {
            this.server.stdout.once('data', resolve);
            this.server.once('exit', () => reject(new Error('the server has ended')));
        });
        this.server.removeAllListeners('exit');
        this.token ??= /#token=(\S+)/.exec(said)[1];
    }

    async kill() {
        const ended = new Promise((resolve) => { this.server.once('exit', resolve); });
        this.server.kill('SIGKILL');
        await ended;
    }

    // A browser of its own, with what it did that it must not.
    async context(options = {}) {
        const context = await this.browser.newContext({ viewport: { width: 1440, height: 860 }, reducedMotion: 'reduce', ...options });
        context.setDefaultTimeout(60_000);
        context.on('page', (page) => {
            page.on('request', (request) => {
                if (!request.url().startsWith(this.base) && !/^(data|blob):/.test(request.url())) this.foreign.push(request.url());
                if (/\/live(\?|$)/.test(request.url())) this.lives.add(request);
            });
            page.on('close', () => {
                for (const request of this.lives) if (request.frame().page() === page) this.lives.delete(request);
            });
            page.on('response', (response) => { if (response.status() >= 400) this.failed.push(`${response.status()} ${response.url()}`); });
            page.on('requestfailed', (request) => this.failed.push(`${request.failure()?.errorText} ${request.url()}`));
            for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => this.lives.delete(request));
            page.on('console', (message) => {
                if (/Content Security|TrustedHTML|violates/.test(message.text())) this.refused.push(message.text());
            });
            page.on('pageerror', (error) => this.errors.push(error.message));
        });
        return context;
    }

    // A page that is logged in.
    async open(context, view = '') {
        const page = await context.newPage();
        await page.goto(`${this.base}/#token=${this.token}`);
        await page.getByRole('navigation', { name: 'Sessions' }).getByRole('link').first().waitFor();
        if (view) await this.show(page, view);
        return page;
    }

    // A view: of an app, or of a session in it.
    async show(page, view) {
        await page.goto(`${this.base}/#/${view}`);
        if (view.includes('/')) await page.getByRole('slider', { name: 'Version' }).waitFor();
        else await page.getByRole('button', { name: 'New session' }).waitFor();
    }

    async api(method, path, body) {
        const response = await fetch(`${this.base}/api/v1${path}`, {
            method,
            headers: { authorization: `Bearer ${this.token}`, 'content-type': 'application/json' },
            body: body && JSON.stringify(body),
        });
        return { status: response.status, body: await response.json().catch(() => null) };
    }

    // What looks for barriers, not as a script of the page, which its policy refuses.
    async barriers(page) {
        await page.evaluate(axe);
        const found = await page.evaluate(() => globalThis.axe.run());
        return found.violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 120)}`);
    }
}

// Runs a script with what `stepfold serve` serves: the agents of these files, or those of the demo; with more options.
exports.studio = (script, agents = {}, options = []) => run(script, (port) => {
    const made = execFileSync(program, ['--json', 'token', '--user', 'local', '--role', 'administer']).toString();
    const { token, line } = JSON.parse(made);
    writeFileSync('tokens', `${line}\n`);
    for (const [name, text] of Object.entries(agents)) writeFileSync(name, text);
    const files = Object.keys(agents).filter((name) => name.endsWith('.toml'));
    return new Studio(port, ['--json', 'serve', ...(files.length ? files : ['--demo']), '--store', 'demo.db', '--tokens', 'tokens', ...options], token);
});

// Runs a script with the studio of the examples, which prints the address with its token. Replies come at once.
exports.example = (script) => run(script, (port) => new Studio(port, ['--delay', '0']));

// Runs a script, and ends what it has started, however it ends.
const run = async (script, make) => {
    let studio;
    try {
        studio = make(await freePort());
        await studio.start();
        studio.browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
        const seen = await script(studio);
        const { foreign, refused, errors } = studio;
        const all = Object.entries({ ...seen, foreign, refused, errors });
        console.log(JSON.stringify(Object.fromEntries(all.sort(([left], [right]) => (left < right ? -1 : 1)))));
    } catch (error) {
        console.error(error);
        // What the pages show, and which requests failed, tells why.
        for (const page of studio?.browser?.contexts().flatMap((context) => context.pages()) ?? []) {
            console.error(page.url(), await page.locator('body').innerText().catch(String));
        }
        console.error(studio?.failed.join('\n'));
        process.exitCode = 1;
    } finally {
        await studio?.browser?.close();
        studio?.server?.kill('SIGKILL');
    }
};
