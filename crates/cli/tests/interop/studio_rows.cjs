// Rows of calls that were tried more than once: what the timeline, the tab Step and the model's view tell of them.
const { studio } = require('./studio_driver.cjs');

// The one tool works the second time, the other one never.
const PORTER = `
name = "porter"
model = "script:porter.script"

[state.opened]
type = "integer"
handler = "sum"

[tools.open]
description = "Opens a gate."
effect = "idempotent"
retries = 2
parameters = { properties = { gate = { type = "string" } }, required = ["gate"] }
outputs_to_state = { opened = { source = "opened" } }
command = { argv = ["sh", "-c", "if [ -f tried ]; then echo '{\\"opened\\": 1}'; else touch tried; echo 'the gate is stuck' >&2; exit 1; fi"], output = "json" }

[tools.ring]
description = "Rings the bell."
effect = "idempotent"
retries = 1
command = { argv = ["sh", "-c", "echo 'the bell is broken' >&2; exit 1"] }
`;
const SCRIPT = `user: Open the gate, and ring.
assistant: > c1 open(gate="north")
assistant: > c2 ring()
assistant: The gate is open; the bell is broken.
`;

studio(async (studio) => {
    const seen = {};
    const row = (name) => page.getByRole('treeitem', { name });
    const text = async (locator) => (await locator.innerText()).replace(/\s+/g, ' ').replace(/\d[\d.]* (µs|ms|s)\b/g, 'TIME').trim();
    await studio.api('POST', '/apps/porter/sessions', { id: 'gate' });
    const page = await studio.open(await studio.context());
    await page.goto(`${studio.base}/#/porter/gate`);
    await page.getByLabel('Message', { exact: true }).fill('Open the gate, and ring.');
    await page.keyboard.press('Enter');
    await row(/The gate is open/).waitFor();
    await page.locator('header .status.idle').waitFor();
    seen.rows = [];
    for (const name of [/^\d+ results open/, /^\d+ results ring/]) seen.rows.push(await text(row(name)), await row(name).evaluate((element) => element.classList.contains('bad')));

    // The attempts of a call, with how it ended, beside its arguments.
    await row(/^\d+ results open/).click();
    await page.getByRole('tab', { name: 'Step' }).click();
    const heading = page.getByRole('tabpanel', { name: 'Step' }).getByRole('heading', { level: 3 }).first();
    await page.getByRole('tabpanel', { name: 'Step' }).getByText(/2 attempts/).waitFor();
    seen.open = await text(heading);
    await row(/^\d+ results ring/).click();
    await page.getByRole('tabpanel', { name: 'Step' }).getByText(/the bell is broken/).waitFor();
    seen.ring = await text(heading);

    // The model is told of the last attempt only; its answer stands below.
    await row(/The gate is open/).click();
    await page.getByRole('tab', { name: 'Model’s view' }).click();
    const shown = page.getByRole('region', { name: 'What the model was shown' });
    await shown.getByRole('article').filter({ hasText: 'its answer, v6' }).getByText('The gate is open').waitFor();
    seen.model = await Promise.all((await shown.getByRole('article').all()).map(text));
    return seen;
}, { 'porter.toml': PORTER, 'porter.script': SCRIPT });
