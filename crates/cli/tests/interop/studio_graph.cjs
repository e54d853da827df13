// A graph in the studio while it runs: its node is lit, and done when it has ended.
const { writeFileSync } = require('node:fs');
const { studio } = require('./studio_driver.cjs');

// A graph that runs until the file `go` is there.
const GATE = `
name = "gate"
edges = [{ from = "START", to = "wait" }, { from = "wait", to = "END" }]

[state.open]
type = "string"

[nodes.wait]
command = ["sh", "-c", "while [ ! -f go ]; do sleep 0.1; done; echo open"]
answers = "open"
`;

studio(async (studio) => {
    await studio.api('POST', '/apps/gate/sessions', { id: 'earlier' });
    const page = await studio.open(await studio.context());
    // A new session, in which one writes at once; its graph is lit while a node runs.
    await page.locator('body').press('n');
    await page.getByLabel('Name', { exact: true }).fill('live');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.locator('#composer:focus').waitFor();
    await page.keyboard.type('Open the gate.');
    await page.keyboard.press('Enter');
    await page.getByRole('treeitem', { name: /Open the gate/ }).waitFor();
    await page.getByRole('tab', { name: 'Graph' }).click();
    await page.locator('.node.lit', { hasText: 'wait' }).waitFor();
    writeFileSync('go', '');
    await page.getByRole('row', { name: /wait 1 0 v/ }).waitFor();
    await page.locator('.node.lit').waitFor({ state: 'detached' });
    return { state: (await studio.api('GET', '/apps/gate/sessions/live/state')).body.values.open };
}, { 'gate.toml': GATE });
