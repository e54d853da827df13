// A session goes out of the studio as a file and as a test, and comes in again under another name; and one whose record was
// changed, which has what sessions of the demo have not: a hook, a failure, and a replay that differs.
const { readFileSync, writeFileSync } = require('node:fs');
const { studio } = require('./studio_driver.cjs');

studio(async (studio) => {
    const page = await studio.open(await studio.context(), 'stalls/fork-with-a-rewind');
    const save = async (name) => {
        const saved = page.waitForEvent('download');
        await page.getByLabel('More actions').click();
        await page.getByRole('button', { name }).click();
        return readFileSync(await (await saved).path(), 'utf8');
    };
    const file = await save('Export as JSON');
    const test = await save('Export as a test');
    writeFileSync('session.json', file);
    await page.locator('body').press('n');
    await page.getByLabel('Name', { exact: true }).fill('imported');
    await page.getByLabel('Import from an exported session').setInputFiles('session.json');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.waitForURL(/\/imported/);
    await page.getByRole('treeitem', { name: /Together with area 3/ }).first().waitFor();
    // Another call is recorded, and the run that follows has a hook, and failed.
    const changed = JSON.parse(file);
    const last = changed.events[changed.events.length - 1];
    changed.events[3].body.messages[0].parts[0].tool_call.name = 'recount';
    const add = (kind, more) => {
        changed.version += 1;
        changed.events.push({ version: changed.version, id: `${last.id.split('.')[0]}.${kind}`, at: last.at, body: { v: 1, author: 'stalls', kind, ...more } });
    };
    const hooked = { point: 'before_run', verdict: { stop: 'no budget is left' } };
    add('hooked', { record: ['stepfold.run', 1, { kind: { hooked } }] });
    add('failed', { metadata: { failed: 'the model cannot be reached' } });
    writeFileSync('session.json', JSON.stringify(changed));
    await page.locator('body').press('n');
    await page.getByLabel('Name', { exact: true }).fill('changed');
    await page.getByLabel('Import from an exported session').setInputFiles('session.json');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.waitForURL(/\/changed/);
    await page.getByRole('treeitem', { name: /hook before the run · the run ends: no budget is left/ }).waitFor();
    await page.getByRole('treeitem', { name: /failed the model cannot be reached/ }).waitFor();
    // No run has a hook there: it is told with the ways on, and hides no other session.
    await page.getByText(/The last run cannot continue: v16 does not fit, unexpected event "hooked"/).waitFor();
    await page.getByRole('button', { name: 'Go to v15' }).click();
    await page.getByText('at v15', { exact: true }).waitFor();
    await page.getByRole('link', { name: /^changed .*invalid$/ }).waitFor();
    await page.getByRole('link', { name: /^waits-for-approval .*waiting$/ }).waitFor();
    await page.getByRole('tab', { name: 'Conversation' }).click();
    await page.getByLabel('More actions').click();
    await page.getByRole('button', { name: 'Check replay' }).click();
    // The commit that differs is chosen, marked, and in sight.
    const row = page.getByRole('treeitem', { name: /≠ replay differs/ });
    await row.waitFor();
    const replay = `${await row.getAttribute('id')} ${await row.getAttribute('aria-selected')}`;
    await page.getByText(/Replay differs at v5: /).waitFor();
    // What the page could not read stands beside it, and each goes by itself.
    await page.route(/\/sessions\?q=/, (route) => route.abort());
    await page.getByLabel('Search sessions').fill('changed');
    const notes = page.locator('.note');
    await notes.filter({ hasText: 'The server cannot be reached.' }).waitFor();
    const barriers = await studio.barriers(page);
    await notes.filter({ hasText: 'Replay differs' }).getByRole('button', { name: 'Close' }).click();
    await notes.filter({ hasText: 'Replay differs' }).waitFor({ state: 'detached' });
    await notes.getByRole('button', { name: 'Close' }).click();
    await notes.waitFor({ state: 'detached' });
    await page.unroute(/\/sessions\?q=/);
    await page.getByLabel('Search sessions').fill('');
    await page.getByRole('link', { name: /^changed .*invalid$/ }).waitFor();
    // The run is ended, and the session takes messages again.
    await page.getByRole('button', { name: 'end the run…' }).click();
    await page.getByRole('button', { name: 'End it' }).click();
    await page.getByText(/The last run cannot continue/).waitFor({ state: 'detached' });
    await page.getByRole('link', { name: /^changed .*idle$/ }).waitFor();
    const [one, other] = await Promise.all(['fork-with-a-rewind', 'imported'].map((id) => studio.api('GET', `/apps/stalls/sessions/${id}`)));
    return { test: /fn \w+\(/.test(test), replay, barriers, same_version: one.body.version === other.body.version };
});
