// Where the focus is after a decision, a dialog and a menu; and addresses that lead to nothing.
const { studio } = require('./studio_driver.cjs');

const CLERK = `
name = "clerk"
model = "script:clerk.script"

[tools.pay]
description = "Pays the bill."
approval = "always"
parameters = { properties = { euro = { type = "integer" } } }
command = ["cat"]
`;
const SCRIPT = `user: Three.
assistant: > c1 pay(euro=1)   > c2 pay(euro=2)   > c3 pay(euro=3)
assistant: All is paid.
user: One.
assistant: > c4 pay(euro=4)
assistant: One is paid.
`;

studio(async (studio) => {
    const seen = {};
    await studio.api('POST', '/apps/clerk/sessions', { id: 'one' });
    await studio.api('POST', '/apps/clerk/sessions/one/run', { text: 'Three.' });
    const page = await studio.open(await studio.context(), 'clerk/one');
    const button = (name) => page.getByRole('button', { name, exact: true });
    // What has the focus, in which request.
    const focus = () => page.evaluate(() => {
        const one = document.activeElement;
        const request = one.closest('.request')?.querySelector('.quiet').textContent.slice(0, 2);
        return [one.getAttribute('aria-label') ?? one.labels?.[0]?.firstChild.textContent ?? one.textContent.slice(0, 30), request].filter(Boolean).join(' of ');
    });
    const settled = async (what) => {
        for (let turn = 0; turn < 50 && (await focus()) !== what; turn += 1) await page.waitForTimeout(100);
        return focus();
    };

    // After a decision the next open one has the focus; after the last one, the composer.
    await button('Approve').first().waitFor();
    await button('Approve').first().focus();
    seen.decisions = [];
    for (const [key, next] of [['Enter', 'Approve of c2'], ['Enter', 'Approve of c3'], ['Enter', 'Message']]) {
        await page.keyboard.press(key);
        seen.decisions.push(await settled(next));
    }
    await page.getByRole('treeitem', { name: /All is paid/ }).waitFor();
    await page.keyboard.type('One.');
    await page.keyboard.press('Enter');
    // A form that is closed by Escape gives the focus back; a decision that is refused too.
    await button('Reject…').focus();
    seen.forms = [];
    for (const opener of ['Reject…', 'Edit arguments…']) {
        await button(opener).focus();
        await page.keyboard.press('Enter');
        await page.locator('.request form :is(input, textarea):focus').waitFor();
        await page.keyboard.press('Escape');
        seen.forms.push(await settled(`${opener} of c4`));
    }
    await page.keyboard.press('Enter');
    await page.getByLabel('Arguments (JSON)').fill('{"euro": "four"}');
    await button('Approve with changes').focus();
    await page.keyboard.press('Enter');
    await page.getByRole('alert').waitFor();
    seen.forms.push(await settled('Arguments (JSON) of c4'));

    // A dialog that is closed by Escape gives the focus back to what opened it: a button, the menu, a row of the timeline.
    seen.dialogs = [];
    const closes = async (what) => {
        await page.getByRole('dialog').waitFor();
        await page.keyboard.press('Escape');
        await page.getByRole('dialog').waitFor({ state: 'detached' });
        seen.dialogs.push(await settled(what));
    };
    await button('Fork here').focus();
    await page.keyboard.press('Enter');
    await closes('Fork here');
    await page.getByLabel('More actions').focus();
    await page.keyboard.press('Enter');
    await button('Name this version').focus();
    await page.keyboard.press('Enter');
    await closes('More actions');
    await page.getByLabel('More actions').focus();
    await page.keyboard.press('Enter');
    await button('Delete').focus();
    await page.keyboard.press('Escape');
    seen.dialogs.push(await settled('More actions'));
    await page.getByRole('tree', { name: 'Commits' }).focus();
    await page.keyboard.press('f');
    await closes('Commits');

    // An address that cannot be read, or leads to no session, says so; from there one comes back.
    seen.addresses = [];
    const other = await (await studio.context()).newPage();
    await other.goto(`${studio.base}/#token=${studio.token}`);
    await other.getByRole('link', { name: /^one / }).waitFor();
    for (const address of ['#/%', '#/clerk/%E0%A4%A', '#/clerk/nobody', '#/nowhere', '#/nowhere/one', '#/clerk/one?view=nothing']) {
        await other.goto('about:blank');
        await other.goto(`${studio.base}/${address}`);
        await other.locator('.empty[role=alert], .row').first().waitFor();
        seen.addresses.push((await other.locator('.empty[role=alert]').or(other.getByRole('tab', { selected: true }).first()).innerText()).replace(/\s+/g, ' '));
    }
    // Without a new page, too; and back.
    await other.evaluate(() => { location.hash = '#/%'; });
    await other.getByRole('heading', { name: 'Nothing here' }).waitFor();
    await other.getByRole('button', { name: 'All sessions' }).click();
    await other.getByRole('button', { name: 'New session' }).waitFor();
    await other.goBack();
    await other.getByRole('heading', { name: 'Nothing here' }).waitFor();
    await other.goBack();
    await other.getByRole('treeitem').first().waitFor();
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT });
