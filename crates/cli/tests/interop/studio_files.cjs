// A session goes out of the studio as a file and as a test, and comes in again under another name.
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
    const [one, other] = await Promise.all(['fork-with-a-rewind', 'imported'].map((id) => studio.api('GET', `/apps/stalls/sessions/${id}`)));
    return { test: /fn \w+\(/.test(test), same_version: one.body.version === other.body.version };
});
