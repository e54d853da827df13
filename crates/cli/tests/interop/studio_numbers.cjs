// Numbers that JavaScript changes, in the studio: shown, approved, edited, forked, written, imported, exported, each digit as it was;
// and those that nothing here can hold, refused where they are typed.
const { readFileSync, writeFileSync } = require('node:fs');
const { studio } = require('./studio_driver.cjs');

// The tool writes what it was given, byte for byte.
const CLERK = `
name = "clerk"
model = "script:clerk.script"

[state.kept]

[state.other]

[tools.pay]
description = "Pays the bill."
approval = "always"
parameters = { properties = {}, additionalProperties = true }
command = { argv = ["sh", "-c", "tee -a paid; echo >> paid"], output = "json" }
outputs_to_state = { kept = {} }
`;
const ALL = '{"account":2512292042121000001,"big":18446744073709551615,"least":-9223372036854775808,"list":[1.0,-0.0,1,0.1,5e-324,1e+21],"memo":"rent","one":1.0,"zero":-0.0}';
const SCRIPT = Array.from({ length: 4 }, (_, turn) => `assistant: > c${turn} pay(${Object.entries({
    account: '2512292042121000001', big: '18446744073709551615', least: '-9223372036854775808', list: '[1.0, -0.0, 1, 0.1, 5e-324, 1e+21]', memo: '"rent"', one: '1.0', zero: '-0.0',
}).map(([name, value]) => `${name}=${value}`).join(', ')})\nassistant: Paid.\n`).join('');

studio(async (studio) => {
    const seen = {};
    const path = '/apps/clerk/sessions';
    await studio.api('POST', path, { id: 'earlier' });
    const page = await studio.open(await studio.context());
    const button = (name) => page.getByRole('button', { name, exact: true });
    const dialog = page.getByRole('dialog');
    const more = async (name) => {
        await page.getByLabel('More actions').click();
        await button(name).click();
    };
    // The answer of the server as it is, without a reader that changes numbers.
    const raw = async (session, at = '') => (await fetch(`${studio.base}/api/v1${path}/${session}/state${at}`, { headers: { authorization: `Bearer ${studio.token}` } })).text();
    const paid = () => readFileSync('paid', 'utf8').trim().split('\n');
    const dense = (text) => text.replace(/(?<=[,:[{])\s+|\s+(?=[\]},])/g, '');

    // A new session, with values.
    await page.locator('body').press('n');
    await page.getByLabel('Name', { exact: true }).fill('one');
    await page.getByLabel('Initial state (JSON, optional)').fill('{"other":[1.0,18446744073709551615,-0.0]}');
    await button('Create').click();
    await page.locator('#composer:focus').waitFor();
    seen.created = (await raw('one')).includes('"other":[1.0,18446744073709551615,-0.0]');

    // What is approved is shown with each digit, also in the timeline; what runs is that.
    await page.keyboard.type('Pay.');
    await page.keyboard.press('Enter');
    await button('Approve').waitFor();
    seen.shown = dense(await page.locator('.request .value').allInnerTexts().then((all) => all.join(''))) === ALL || await page.locator('.request').innerText();
    seen.row = await page.getByRole('treeitem', { name: /calls .*account: 2512292042121000001.*list: \[1\.0,-0\.0,1,0\.1,5e-324,1e\+21\].*one: 1\.0, zero: -0\.0/ }).count() > 0;
    await button('Approve').click();
    await page.getByRole('treeitem', { name: /Paid\./ }).waitFor();
    seen.approved = paid()[0] === ALL || paid()[0];
    seen.value = (await raw('one')).includes(`"kept":${ALL}`);

    // Another field is edited: the rest stays. What cannot be held is refused at the field.
    await page.locator('#composer').fill('Again.');
    await page.locator('#composer').press('Enter');
    await button('Edit arguments…').click();
    const field = page.getByLabel('Arguments (JSON)');
    const text = await field.inputValue();
    seen.unheld = [];
    for (const wrong of ['0.123456789012345678901234567890', '1e400', '18446744073709551616', '-9223372036854775809', '-0', '"a", "memo": "b"']) {
        await field.fill(text.replace('"rent"', wrong));
        seen.unheld.push([await button('Approve with changes').isDisabled(), await page.locator('.request [role=alert]').innerText()]);
    }
    await field.fill(text.replace('"rent"', '"rent of May"'));
    await button('Approve with changes').click();
    await page.getByRole('treeitem', { name: /Paid\./ }).nth(1).waitFor();
    seen.edited = paid()[1] === ALL.replace('rent', 'rent of May') || paid()[1];

    // A value of the state is written, beside others.
    await more('Edit a value');
    await dialog.getByLabel('Key').selectOption('kept');
    seen.editor = dense(await dialog.getByLabel('Value (JSON)').inputValue()) === ALL.replace('rent', 'rent of May');
    await dialog.getByLabel('Value (JSON)').fill((await dialog.getByLabel('Value (JSON)').inputValue()).replace('rent of May', 'June'));
    await button('Write').click();
    await dialog.waitFor({ state: 'detached' });
    seen.written = (await raw('one')).includes(`"kept":${ALL.replace('rent', 'June')}`);

    // A fork with other values, one with other arguments, one with another result.
    await button('Fork here').click();
    await dialog.getByLabel('Name', { exact: true }).fill('two');
    await dialog.getByLabel('State changes (JSON, optional)').fill('{"other":{"a":9007199254740993,"b":100.0}}');
    await button('Fork').click();
    await page.getByRole('heading', { name: 'two', exact: true }).waitFor();
    seen.forked = (await raw('two')).includes('"other":{"a":9007199254740993,"b":100.0}') && (await raw('two')).includes(`"kept":${ALL.replace('rent', 'June')}`);
    // Of a call of the last run, before its reply.
    await studio.show(page, 'clerk/two?v=11');
    await more('Edit a result');
    const result = await dialog.getByLabel('Result (JSON)').inputValue();
    seen.result = dense(result) === ALL.replace('rent', 'rent of May') || result;
    await dialog.getByLabel('Result (JSON)').fill(result.replace('rent of May', 'July'));
    await button('Write in a fork').click();
    await page.waitForURL(/two-v11-edited/);
    const edited = 'two-v11-edited';
    const events = async (session) => (await fetch(`${studio.base}/api/v1${path}/${session}/events?limit=1000`, { headers: { authorization: `Bearer ${studio.token}` } })).text();
    seen.resulted = (await events(edited)).includes(ALL.replace('rent', 'July'));

    // Out as a file, and in again, also with numbers that cannot be held.
    const saved = page.waitForEvent('download');
    await studio.show(page, 'clerk/one');
    await more('Export as JSON');
    const file = readFileSync(await (await saved).path(), 'utf8');
    seen.exported = dense(file).split(ALL.replace('rent', 'June')).length > 1;
    const load = async (name, body) => {
        writeFileSync('one.json', body);
        await page.locator('body').press('n');
        await page.getByLabel('Name', { exact: true }).fill(name);
        await page.getByLabel('Import from an exported session').setInputFiles('one.json');
        await button('Create').click();
    };
    await load('three', file);
    await page.getByRole('heading', { name: 'three', exact: true }).waitFor();
    seen.imported = (await raw('three')).includes(`"kept":${ALL.replace('rent', 'June')}`);
    await load('four', file.replaceAll('2512292042121000001', '0.123456789012345678901234567890'));
    seen.not_imported = await dialog.getByRole('alert').innerText();
    await button('Cancel').click();

    // Two tabs: what one hears is passed to the other.
    const second = await studio.open(page.context(), 'clerk/one');
    await page.bringToFront();
    await studio.show(page, 'clerk/one');
    await page.locator('#composer').fill('Once more.');
    await page.locator('#composer').press('Enter');
    for (const tab of [page, second]) {
        await tab.getByRole('button', { name: 'Approve', exact: true }).waitFor();
        (seen.tabs ??= []).push(dense(await tab.locator('.request .value').allInnerTexts().then((all) => all.join(''))) === ALL);
    }
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT });
