// A turn of a session becomes a case of a data set: once, by its name, and not for who may only read.
const { execFileSync } = require('node:child_process');
const { appendFileSync, existsSync, readFileSync } = require('node:fs');
const { studio } = require('./studio_driver.cjs');

const CLERK = 'name = "clerk"\nmodel = "script:clerk.script"\n';
const SCRIPT = 'assistant: hello\nassistant: hello again\n';

studio(async (studio) => {
    await studio.api('POST', '/apps/clerk/sessions', { id: 'one' });
    const page = await studio.open(await studio.context());
    await page.goto(`${studio.base}/#/clerk/one`);
    for (const [text, reply] of [['first', 'hello'], ['second', 'hello again']]) {
        await page.getByLabel('Message').fill(text);
        await page.getByRole('button', { name: 'Send' }).click();
        await page.getByRole('treeitem', { name: new RegExp(reply) }).first().waitFor();
    }
    const menu = page.getByLabel('More actions');
    const dialog = page.getByRole('dialog', { name: 'Add to a data set' });
    const add = async (name) => {
        await menu.click();
        await page.getByRole('button', { name: 'Add to a data set' }).click();
        await dialog.waitFor();
        const filled = await dialog.getByLabel('Data set', { exact: true }).inputValue();
        if (name !== undefined) await dialog.getByLabel('Data set', { exact: true }).fill(name);
        return filled;
    };
    const press = () => dialog.getByRole('button', { name: 'Add', exact: true }).click();
    const note = async (text) => {
        const note = page.locator('.note', { hasText: text });
        await note.waitFor();
        await note.getByRole('button', { name: 'Close' }).click();
        await dialog.waitFor({ state: 'detached' });
    };
    const seen = { empty: await add(), button_without_name: await dialog.getByRole('button', { name: 'Add', exact: true }).isDisabled() };
    seen.barriers = await studio.barriers(page);
    if (process.env.STEPFOLD_INTEROP_PICTURE) await page.screenshot({ path: process.env.STEPFOLD_INTEROP_PICTURE });
    // A name that is none is told in the dialog, which stays.
    await dialog.getByLabel('Data set', { exact: true }).fill('../cases');
    await press();
    seen.no_name = await dialog.getByRole('alert').innerText();
    await dialog.getByLabel('Data set', { exact: true }).fill('cases');
    await press();
    await note('Added to cases.');
    // The name is known, and the turn is added once.
    seen.known = await add();
    await press();
    await note('Its turn is in cases already.');
    // The turn that is looked at.
    await page.goto(`${studio.base}/#/clerk/one?v=1`);
    await page.getByText('at v1', { exact: true }).waitFor();
    await add('cases');
    await press();
    await note('Added to cases.');
    await page.goto(`${studio.base}/#/clerk/one?v=0`);
    await page.getByText('at v0', { exact: true }).waitFor();
    await add('cases');
    await press();
    seen.no_turn = await dialog.getByRole('alert').innerText();
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    const file = 'experiments/clerk/local/cases.jsonl';
    seen.cases = existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n').map((line) => JSON.parse(line).name) : 'no file';
    // Who may only read has no such button.
    const made = JSON.parse(execFileSync(process.argv[3], ['--json', 'token', '--user', 'local', '--role', 'read']).toString());
    appendFileSync('tokens', `${made.line}\n`);
    await studio.kill();
    await studio.start();
    studio.token = made.token;
    const reading = await studio.open(await studio.context(), 'clerk/one');
    await reading.getByLabel('More actions').click();
    await reading.getByRole('button', { name: 'Export as JSON' }).waitFor();
    seen.buttons_of_readers = await reading.getByRole('button', { name: 'Add to a data set' }).count();
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT }, ['--experiments', 'experiments']);
