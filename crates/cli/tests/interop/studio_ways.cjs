// Forks that wait and forks that run, with suggested names; the ways between addresses; where shared values come from; words.
const { studio } = require('./studio_driver.cjs');

const CLERK = `
name = "clerk"
model = "script:clerk.script"

[state."user:name"]
type = "string"

[tools.rename]
description = "Names the user."
parameters = { properties = { name = { type = "string" } } }
effect = "pure"
outputs_to_state = { "user:name" = { source = "name" } }
command = { argv = ["cat"], output = "json" }
`;
const SCRIPT = `user: Ada.
assistant: > c1 rename(name="Ada")
assistant: You are Ada.
`;

studio(async (studio) => {
    const seen = {};
    const api = (method, path, body) => studio.api(method, `/apps/clerk/sessions${path}`, body);
    for (const id of ['one', 'two']) await api('POST', '', { id });
    await api('POST', '/one/run', { text: 'Ada.' });
    const page = await studio.open(await studio.context(), 'clerk/one');
    const button = (name) => page.getByRole('button', { name, exact: true });
    const entry = (key) => page.locator('.entry', { has: button(key) });
    const blame = () => entry('user:name').locator('.blame').innerText().then((text) => text.replace(/\s+/g, ' '));

    // The origin of a shared value is the call that wrote it; or it was changed elsewhere.
    await entry('user:name').getByRole('button', { name: /rename \(c1\)/ }).waitFor();
    seen.blame = [await blame()];
    await api('PATCH', '/two/state', { set: { 'user:name': 'Bob' }, expected: 0 });
    await page.reload();
    await entry('user:name').getByText('Bob').waitFor();
    await entry('user:name').getByRole('button', { name: /rename \(c1\)/ }).waitFor();
    seen.blame.push(await blame());

    // A fork waits, with changes too, and its name is one that is free; or it runs.
    seen.names = [];
    const status = (name) => page.locator(`header .status.${name}`).waitFor();
    const fork = async (how) => {
        await page.goto(`${studio.base}/#/clerk/one?v=2`);
        await page.getByText('at v2', { exact: true }).waitFor();
        await page.locator('body').press('f');
        seen.names.push(await page.getByLabel('Name', { exact: true }).inputValue());
        await page.getByLabel('State changes (JSON, optional)').fill('{"user:name": "Eve"}');
        await page.getByRole('dialog').getByRole('button', { name: how, exact: true }).click();
        await page.getByRole('heading', { name: seen.names.at(-1), exact: true }).waitFor();
    };
    await fork('Fork');
    await page.getByText(/Stopped before rename/).waitFor();
    await status('paused');
    await button('Resume').click();
    await status('idle');
    await fork('Fork and run');
    await page.getByRole('treeitem', { name: /You are Ada/ }).waitFor();
    // A run that ends while the page opens.
    await status('idle');

    // Back, on and again over all views: each shows its own, and a session can be created from each.
    const shows = async () => `${await page.locator('h1').first().innerText()} ${(await page.locator('.tabs [aria-selected=true]').allInnerTexts())[0] ?? 'no tab'} ${await page.getByRole('navigation', { name: 'Sessions' }).getByRole('listitem').count()}`;
    const places = ['#/', '#/clerk', '#/clerk/one', '#/clerk/one?view=conversation', '#/clerk/one?view=compare', '#/clerk/nobody', '', '#/nowhere', '#/'];
    seen.ways = [];
    for (const place of places) {
        await page.evaluate((hash) => { location.hash = hash; }, place);
        await page.waitForTimeout(300);
    }
    const walk = async (turn) => {
        await turn();
        await page.waitForTimeout(400);
        seen.ways.push(await shows());
    };
    for (let at = 0; at < places.length - 1; at += 1) await walk(() => page.goBack());
    for (let at = 0; at < 3; at += 1) await walk(() => page.goForward());
    await walk(() => page.reload());
    // The printed address in the same tab is that of the start.
    await page.evaluate((token) => { location.hash = `#token=${token}`; }, studio.token);
    await page.waitForURL(/#\/$/);
    await button('New session').waitFor();
    await walk(() => {});
    // The server is not reached: no agent is known, and nothing is created below one without a name.
    const posts = [];
    page.on('request', (request) => { if (request.method() === 'POST') posts.push(new URL(request.url()).pathname); });
    await page.route('**/api/v1/apps', (route) => route.abort());
    await page.goto(`${studio.base}/?again#/`);
    await page.locator('.empty h1').waitFor();
    seen.unreached = (await page.locator('.empty').innerText()).replace(/\s+/g, ' ');
    await page.locator('body').press('n');
    seen.dialogs = await page.getByRole('dialog').count();
    if (seen.dialogs) await button('Create').click();
    seen.posts = posts;
    await page.unroute('**/api/v1/apps');
    await button('Try again').click();
    await button('New session').waitFor();

    // The order of the rows for a screen reader is that of their versions, wherever the list is scrolled.
    await page.goto(`${studio.base}/#/clerk/one`);
    await page.getByRole('treeitem').first().waitFor();
    seen.order = await page.getByRole('tree', { name: 'Commits' }).evaluate((tree) => (tree.getAttribute('aria-owns') ?? '').split(' ')
        .map((id) => document.getElementById(id)?.querySelector('.version').textContent));
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT });
