// The studio for everybody: no barriers on any view, in light and dark, narrow and wide; by keys alone; over a slow link; with
// a session of many commits. And its structure, as assistive technology has it.
const { readFileSync } = require('node:fs');
const path = require('node:path');
const { studio } = require('./studio_driver.cjs');

const VIEWS = ['stalls', 'stalls/waits-for-approval', 'stalls/waits-for-approval?v=5&key=counted', 'stalls/waits-for-approval?view=conversation',
    'stalls/waits-for-approval?view=model', 'stalls/waits-for-approval?view=usage', 'stalls/fork-with-a-rewind?panel=step',
    'stalls/fork-with-a-rewind?view=compare&with=waits-for-approval', 'library/durability', 'library/durability?view=graph'];
const DIALOGS = { '?': 'Keyboard shortcuts', n: 'New session', f: 'Fork at v', e: 'Edit a value', l: 'Name v' };

// The structure, once it is the expected one: its parts come with answers of their own. What it stays at is told.
const treeOf = async (page) => {
    const expected = JSON.stringify(JSON.parse(readFileSync(path.join(__dirname, 'studio_access.json'))).tree);
    let tree;
    for (let times = 0; times < 100 && JSON.stringify(tree) !== expected; times += 1) {
        if (times) await page.waitForTimeout(200);
        const text = await page.locator('#root').ariaSnapshot();
        tree = text.replace(/\d[\d.]* (µs|ms|s)\b/g, 'TIME').replace(/\d\d:\d\d:\d\d/g, 'CLOCK').replace(/\d{4}-\d\d-\d\d /g, '').split('\n');
    }
    return tree;
};

studio(async (studio) => {
    const seen = { barriers: [] };
    for (const [colorScheme, width] of [['light', 1440], ['dark', 1440], ['light', 400], ['dark', 2560]]) {
        const context = await studio.context({ colorScheme, viewport: { width, height: 900 } });
        const page = await studio.open(context);
        const look = async (what) => {
            for (const found of await studio.barriers(page)) seen.barriers.push(`${colorScheme} ${width} ${what}: ${found}`);
            // Nothing is cut off on the right.
            const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
            if (over > 0) seen.barriers.push(`${colorScheme} ${width} ${what}: ${over} pixels too wide`);
        };
        for (const view of VIEWS) {
            await studio.show(page, view);
            await page.getByText('…', { exact: true }).first().waitFor({ state: 'detached' });
            await look(view);
        }
        await studio.show(page, 'stalls/waits-for-approval');
        await page.getByRole('treeitem').first().waitFor();
        for (const [key, name] of Object.entries(DIALOGS)) {
            await page.locator('body').press(key);
            await page.getByRole('dialog', { name }).waitFor();
            await look(`dialog ${key}`);
            // The next key comes at once: it opens its dialog, whatever the browser has still to tell of this one.
            await page.keyboard.press('Escape');
        }
        await page.getByRole('dialog').waitFor({ state: 'detached' });
        await context.close();
    }

    // What a screen reader is told, without times.
    const context = await studio.context();
    const page = await studio.open(context, 'stalls/waits-for-approval?v=5');
    seen.tree = await treeOf(page);

    // By keys alone: from the list of sessions to a fork, an approval, and a comparison.
    const keys = await studio.open(context, 'stalls');
    const press = async (...all) => {
        for (const key of all) await keys.keyboard.press(key);
    };
    // The focus goes there by the tab key, and nothing on the way holds it.
    const tabTo = async (locator) => {
        await locator.first().waitFor();
        for (let times = 0; times < 120; times += 1) {
            if (await locator.first().evaluate((element) => element === document.activeElement)) return;
            await press('Tab');
        }
        throw new Error(`the focus never comes to ${locator}`);
    };
    // Enter opens the first one that the search finds, however late it is answered, and the list is whole again.
    let answer;
    const isPressed = new Promise((resolve) => { answer = resolve; });
    await keys.route(/[?&]q=waits$/, (route) => isPressed.then(() => route.continue()));
    await press('/');
    const isAsked = keys.waitForRequest(/[?&]q=waits$/);
    await keys.keyboard.type('waits');
    await isAsked;
    await press('Enter');
    answer();
    await keys.getByRole('treeitem').first().waitFor();
    await keys.getByRole('link', { name: /killed/ }).waitFor();
    await press('a');
    await tabTo(keys.getByRole('button', { name: 'Reject…' }));
    await press('Enter');
    await keys.keyboard.type('too dear');
    await press('Enter');
    await keys.getByText(/Nothing was paid/).first().waitFor();
    await press('Escape');
    await tabTo(keys.getByRole('tree', { name: 'Commits' }));
    await press('Home', 'ArrowDown', 'ArrowDown', 'ArrowDown', 'ArrowDown');
    await keys.getByText('at v5', { exact: true }).waitFor();
    await tabTo(keys.getByRole('button', { name: /v5 · count/ }));
    await press('Enter');
    await keys.getByRole('tabpanel', { name: 'Step' }).waitFor();
    await tabTo(keys.getByRole('tab', { name: 'Step' }));
    await press('ArrowLeft', 'f');
    await keys.getByRole('dialog').waitFor();
    await press('Control+A');
    await keys.keyboard.type('by-keys');
    await press('Enter');
    await keys.waitForURL(/by-keys/);
    await tabTo(keys.getByLabel('More actions'));
    await press('Enter');
    await tabTo(keys.getByRole('button', { name: 'Compare with…' }));
    await press('Enter');
    await tabTo(keys.getByRole('dialog').getByRole('button', { name: /^waits-for-approval / }));
    await press('Enter');
    await keys.getByText(/Shared history: v1 to v5/).waitFor();
    seen.by_keys = true;

    // Over a slow link, something is there at once, and all of it in the end.
    const far = await (await studio.context()).newPage();
    const link = await far.context().newCDPSession(far);
    await link.send('Network.enable');
    await link.send('Network.emulateNetworkConditions', { offline: false, latency: 300, downloadThroughput: 50_000, uploadThroughput: 50_000 });
    // The modules come when that was seen, however slow the browser is itself.
    let seeIt;
    const isSeen = new Promise((resolve) => { seeIt = resolve; });
    await far.route(/app\.js$/, (route) => isSeen.then(() => route.continue()));
    await far.goto(`${studio.base}/#token=${studio.token}`, { waitUntil: 'commit' });
    await far.getByText(/Loading the studio/).waitFor();
    seeIt();
    // It opens at the agent with sessions that need a person.
    await far.getByRole('link', { name: /^waits-for-approval / }).first().click();
    await far.getByRole('treeitem', { name: /And area 5/ }).first().waitFor();
    seen.slow = true;

    // Of a thousand commits, those in sight are in the page, on the largest screen too.
    await studio.api('POST', '/apps/stalls/sessions', { id: 'long' });
    for (let expected = 0; expected < 1000; expected += 1) {
        await studio.api('PATCH', '/apps/stalls/sessions/long/state', { set: { counted: expected }, expected });
    }
    const wide = await studio.open(await studio.context({ viewport: { width: 2560, height: 1440 } }), 'stalls/long');
    await wide.getByRole('treeitem', { name: /1000/ }).waitFor();
    const counts = [await wide.getByRole('treeitem').count()];
    await wide.getByRole('tree', { name: 'Commits' }).focus();
    for (const key of ['Home', 'PageDown', 'End']) {
        await wide.keyboard.press(key);
        counts.push(await wide.getByRole('treeitem').count());
    }
    seen.most_rows = counts.every((count) => count > 20 && count <= 100);
    return seen;
});
