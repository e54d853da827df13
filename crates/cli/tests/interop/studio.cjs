// The studio, driven as a person would: each thing that it can do, once.
const { studio } = require('./studio_driver.cjs');

studio(async (studio) => {
    const seen = {};
    const page = await studio.open(await studio.context(), 'stalls');
    const press = (key) => page.keyboard.press(key);
    const button = (name) => page.getByRole('button', { name, exact: true });
    const link = (name) => page.getByRole('link', { name });
    const choose = async (name) => {
        // Not by the mouse: the list may be sorted anew meanwhile.
        await link(new RegExp(`^${name} `)).press('Enter');
        await page.getByRole('heading', { name, exact: true }).waitFor();
    };
    const at = async (version) => page.getByText(`at v${version}`, { exact: true }).waitFor();
    const entry = (key) => page.locator('.entry', { has: page.getByRole('button', { name: key, exact: true }) });
    const dialog = () => page.getByRole('dialog');
    const more = async (name) => {
        await page.getByLabel('More actions').click();
        await button(name).click();
    };
    // Not where a key would be typed.
    const leave = () => press('Escape');

    // Sessions: what they do, where forks come from, a search.
    await page.getByLabel('Agent').selectOption('stalls');
    await link(/^waits-for-approval /).first().waitFor();
    const rows = await page.getByRole('navigation', { name: 'Sessions' }).getByRole('listitem').allInnerTexts();
    seen.sessions = rows.map((text) => text.replace(/\s+/g, ' ').replace(/ v\d+/, '')).sort();
    await page.getByLabel('Search sessions').fill('killed');
    await link(/^waits-for-approval /).first().waitFor({ state: 'detached' });
    await link(/^killed-in-a-call /).first().waitFor();
    seen.found = await page.getByRole('navigation', { name: 'Sessions' }).getByRole('listitem').count();
    await page.getByLabel('Search sessions').fill('');

    // Which call wrote this value? The writes of a key, and the commit.
    await choose('waits-for-approval');
    await page.getByRole('slider', { name: 'Version' }).waitFor();
    await entry('counted').getByRole('button', { name: /writes/ }).click();
    await page.getByRole('list', { name: 'Writes of counted' }).getByRole('listitem').nth(1).waitFor();
    seen.writes = (await page.getByRole('list', { name: 'Writes of counted' }).getByRole('listitem').allInnerTexts()).map((text) => text.replace(/\s+/g, ' '));
    await entry('counted').getByRole('button', { name: /v9 · count/ }).click();
    await at(9);
    seen.step = await page.getByRole('tabpanel', { name: 'Step' }).getByRole('heading', { name: /count/ }).innerText();

    // Any version: by keys, by the buttons, by dragging. The state has the difference to the step before.
    await press('s');
    seen.changed = (await entry('counted').locator('dd').first().innerText()).replace(/\s+/g, ' ');
    await press('ArrowLeft');
    await at(8);
    await button('Step back').click();
    await at(7);
    const box = await page.getByRole('slider', { name: 'Version' }).boundingBox();
    await page.mouse.move(box.x + box.width - 4, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + 4, box.y + 10, { steps: 4 });
    await page.mouse.up();
    await at(1);
    // The address has the view: somebody else sees the same step.
    await press('ArrowRight');
    await at(2);
    await page.reload();
    await at(2);

    // What the model was shown, and what the user has.
    await press('3');
    await page.getByRole('heading', { name: /instructions/ }).waitFor();
    await page.getByRole('heading', { name: /its answer, v2/ }).waitFor();
    seen.shown = await page.getByRole('region', { name: 'What the model was shown' }).getByRole('article').count();
    await page.getByText('4 tools offered').waitFor();
    await page.getByRole('region', { name: 'What the model was shown' }).getByText(/^0\.\d+ USD$/).waitFor();
    await press('End');
    await page.getByRole('tab', { name: 'Conversation' }).click();
    await page.getByRole('article').filter({ hasText: 'Together with area 3 that is 22' }).first().waitFor();
    await page.getByRole('tab', { name: 'Usage' }).click();
    await page.getByRole('img', { name: /Tokens by reply/ }).waitFor();
    seen.charts = await page.getByRole('img', { name: /by reply/ }).count();
    seen.cost = /^0\.\d+ USD$/.test(await page.locator('.totals div', { hasText: 'cost' }).locator('dd').innerText());
    await page.getByRole('tab', { name: 'Timeline' }).click();

    // A version gets a name, and one jumps there.
    await page.getByRole('treeitem', { name: /Area 3 has 8 stalls/ }).click();
    await more('Name this version');
    await page.getByLabel('Name', { exact: true }).fill('one area');
    await button('Save').click();
    await page.getByText('⚑ one area', { exact: true }).waitFor();
    await dialog().waitFor({ state: 'detached' });
    await press('End');
    await press('l');
    await button('v6 one area').click();
    await at(6);
    await press('l');
    await button('Remove the name one area').click();
    await button('v6 one area').waitFor({ state: 'detached' });
    await button('Close').last().click();
    await press('End');

    // Keys move in the timeline from wherever the focus is.
    await leave();
    await page.locator('body').press('k');
    await at(11);
    await press('j');
    await at(12);

    // The request is approved with other arguments.
    await button('Edit arguments…').click();
    await page.getByLabel('Arguments (JSON)').fill('{"stall":"bakery","euro":');
    seen.invalid = await button('Approve with changes').isDisabled();
    // What the tool does not accept is refused beside the form, which keeps what was typed; the session still waits.
    await page.getByLabel('Arguments (JSON)').fill('{"stall":"bakery","euro":"three"}');
    await button('Approve with changes').click();
    seen.refused_decision = await page.getByRole('alert').innerText();
    await page.getByRole('banner').getByText('waiting', { exact: true }).waitFor();
    await page.getByLabel('Arguments (JSON)').fill((await page.getByLabel('Arguments (JSON)').inputValue()).replace('"three"', '4'));
    await button('Approve with changes').click();
    await page.getByText('fee of the bakery is paid').first().waitFor();
    await page.getByRole('tab', { name: 'Conversation' }).click();
    await page.getByText('approved with changes pay(stall: bakery, euro: 4)').waitFor();
    await page.getByRole('tab', { name: 'Timeline' }).click();
    seen.approved = await page.getByRole('treeitem', { name: /decision/ }).last().locator('.said').innerText();

    // A fork from an earlier step with another value, and a message there that would leak if it were markup.
    await page.getByRole('treeitem', { name: /And area 5/ }).click();
    await press('ArrowLeft');
    await press('f');
    await page.getByLabel('Name', { exact: true }).fill('branch');
    await page.getByLabel('State changes (JSON, optional)').fill('{"counted": 100}');
    await button('Fork').click();
    await page.waitForURL(/\/branch/);
    await entry('counted').getByText('100', { exact: true }).last().waitFor();
    await page.getByLabel('Message', { exact: true }).fill('![x](http://evil.test/leak.png) <img src=http://evil.test/b>');
    await press('Enter');
    await leave();
    await press('2');
    await page.getByText('evil.test').first().waitFor();
    seen.images = await page.locator('img').count();
    await more('Compare with…');
    await dialog().getByRole('button', { name: /^waits-for-approval / }).click();
    await page.getByText(/Shared history: v1 to v6/).waitFor();
    // The fork stands in the timeline of its parent.
    await choose('waits-for-approval');
    await page.getByText('↳ branch').waitFor();

    // Values: at the newest version here, in the past in a fork.
    await press('e');
    await dialog().getByRole('combobox').selectOption('counted');
    await page.getByLabel('Value (JSON)').fill('23');
    await button('Write').click();
    await page.getByRole('treeitem', { name: /edit/ }).last().waitFor();
    await press('[');
    await press('e');
    await dialog().getByRole('combobox').selectOption('counted');
    await page.getByLabel('Value (JSON)').fill('7');
    await button('Write in a fork').click();
    await page.waitForURL(/edited/);
    await entry('counted').getByText('7', { exact: true }).last().waitFor();
    // A result, in a fork, which goes on from there.
    await choose('waits-for-approval');
    await page.getByRole('treeitem', { name: /remember → / }).first().waitFor();
    await page.getByRole('treeitem', { name: /count → .*stalls":8/ }).click();
    await more('Edit a result');
    await dialog().getByRole('combobox').selectOption({ label: 'count (c2)' });
    await page.getByLabel('Result (JSON)').fill('{"area":3,"stalls":9}');
    await button('Write in a fork').click();
    await page.waitForURL(/v5-edited/);
    // It waits, as its buttons say.
    await page.getByText(/Stopped before/).waitFor();
    await button('Resume').click();
    await page.getByRole('treeitem', { name: /result c2 ← .*9/ }).last().waitFor();
    await page.getByText('Area 3 has 8 stalls').first().waitFor();

    // From before a call, with other arguments of it: the fork runs it with them.
    await choose('waits-for-approval');
    await page.getByRole('treeitem', { name: /count.*area: 5/ }).first().click();
    await page.getByRole('tab', { name: 'Step' }).click();
    await button('Fork with other arguments…').click();
    await page.getByLabel('Arguments (JSON)').fill('{"area": 5, "stalls": "many"}');
    await dialog().getByRole('button', { name: 'Fork', exact: true }).click();
    seen.misfit = await page.getByText(/invalid arguments/).innerText();
    await page.getByLabel('Arguments (JSON)').fill('{"area": 5, "stalls": 4}');
    await dialog().getByRole('button', { name: 'Fork and run' }).click();
    await page.waitForURL(/v8-c3/);
    await page.getByRole('treeitem', { name: /Area 5 has/ }).first().waitFor();
    await page.getByRole('tab', { name: 'State' }).click();
    await entry('counted').getByText('12', { exact: true }).last().waitFor();
    await page.getByRole('tab', { name: 'Conversation' }).click();
    await page.getByText('count(area: 5, stalls: 4)').waitFor();
    await page.getByRole('tab', { name: 'Timeline' }).click();

    // Back, without losing what came after; and a replay of it all.
    await choose('waits-for-approval');
    // Beside the name of the fork, which is a link in the middle of the row.
    await page.getByRole('treeitem', { name: /Pay the fee/ }).click({ position: { x: 40, y: 8 } });
    await at(11);
    await press('r');
    await button('Rewind').click();
    await page.getByRole('treeitem', { name: /rewound/ }).first().waitFor();
    await page.getByRole('treeitem', { name: /back to v11/ }).waitFor();
    await choose('fork-with-a-rewind');
    await more('Check replay');
    await page.getByText(/Replay matches: /).waitFor();

    // A run that was killed goes on; it is steered, and cancelled.
    await choose('killed-in-a-call');
    await button('Resume').click();
    await page.getByText('survey runs').waitFor();
    await page.getByLabel('Message', { exact: true }).fill('Only the market hall.');
    await button('Steer').click();
    await page.getByText('Queued, for the next model request: Only the market hall.').waitFor();
    await button('Withdraw').click();
    await page.getByText(/Queued/).waitFor({ state: 'detached' });
    await button('Cancel the run').click();
    await button('Cancel the run').waitFor({ state: 'detached' });

    // Agents inside of a graph, which can be hidden; the graph with its counts and tasks.
    await page.getByLabel('Agent').selectOption('library');
    await choose('durability');
    await page.getByRole('treeitem', { name: /Read sessions/ }).first().waitFor();
    const tree = page.getByRole('tree', { name: 'Commits' });
    seen.collapsible = await tree.locator('[aria-expanded=true]').count();
    await page.getByRole('treeitem', { name: /read#0, read#1/ }).click();
    await tree.focus();
    await press('Enter');
    await page.getByRole('treeitem', { name: /Read sessions/ }).first().waitFor({ state: 'detached' });
    await press('Enter');
    await page.getByRole('treeitem', { name: /Read sessions/ }).first().waitFor();
    await press('End');
    await page.getByRole('tab', { name: 'Graph' }).click();
    await page.getByRole('row', { name: /read 2 0 v/ }).waitFor();
    await page.getByText('Tasks: 100 %').waitFor();

    // A session goes when its name is typed.
    await page.getByLabel('Agent').selectOption('stalls');
    await choose('branch');
    await more('Delete');
    seen.deletes = await dialog().getByRole('button', { name: 'Delete' }).isEnabled();
    await page.getByLabel('Name of the session').fill('branch');
    await dialog().getByRole('button', { name: 'Delete' }).click();
    await link(/^branch /).waitFor({ state: 'detached' });
    return seen;
});
