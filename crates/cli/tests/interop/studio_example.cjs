// The studio of the examples, as somebody meets it who has read nothing: the analyst and the deep research, with sessions that
// ran, one that was killed, and one that waits for an approval. Calls that end at once are one commit or two: no version is certain.
const { example } = require('./studio_driver.cjs');

example(async (studio) => {
    const seen = {};
    const page = await studio.open(await studio.context());
    const button = (name) => page.getByRole('button', { name, exact: true });
    const row = (name) => page.getByRole('treeitem', { name });
    const step = page.getByRole('tabpanel', { name: 'Step' });
    const sessions = () => page.getByRole('navigation', { name: 'Sessions' }).getByRole('listitem').allInnerTexts()
        .then((all) => all.map((text) => text.replace(/\s+/g, ' ').replace(/ v\d+/g, '').trim()));
    // The list may be sorted anew meanwhile.
    const choose = async (name) => {
        await page.getByRole('link', { name: new RegExp(`^${name} `) }).press('Enter');
        await page.getByRole('heading', { name, exact: true }).waitFor();
        await row(/./).first().waitFor();
    };
    const versions = () => page.getByRole('treeitem').evaluateAll((rows) => rows.map((one) => one.querySelector('.version').textContent));
    const said = () => page.getByRole('treeitem').evaluateAll((rows) => rows.map((one) => one.querySelector('.said').textContent));

    // The first page tells what the agent is, and which sessions need a person, of both agents.
    await page.getByText("Answers from a database of the world's time zones.").waitFor();
    await page.getByText(/killed-in-an-answer was interrupted, and can be resumed/).waitFor();
    await page.getByText(/a-plan-to-approve of deep_research waits for a decision/).waitFor();
    seen.agents = await page.getByLabel('Agent').getByRole('option').allInnerTexts();
    seen.analyst = await sessions();

    // Which call wrote this value? One click to the session, one to the call.
    await choose('a-wrong-query');
    await page.getByRole('button', { name: /^v\d+ · run_sql \(c11\)$/ }).first().click();
    await step.getByText('Asia/Tokyo').first().waitFor();
    seen.wrote = (await step.getByRole('heading', { level: 3 }).first().innerText()).replace(/\s+/g, ' ');

    // Why did it fail? The call, what the model had seen, and what it answered.
    await row(/no such column: z.lat/).click();
    await step.getByText(/no such column: z\.lat/).first().waitFor();
    await page.getByRole('tab', { name: 'Model’s view' }).click();
    const shown = page.getByRole('region', { name: 'What the model was shown' });
    await shown.getByText(/its answer, v\d+/).waitFor();
    seen.knew_zones = (await shown.getByText(/Tables that you know/).innerText()).includes('latitude');
    // In the fourth question, it saw a summary of the others.
    await page.getByRole('tab', { name: 'Timeline' }).click();
    // The timeline scrolls to the commit that is looked at, one frame later.
    await page.evaluate(() => new Promise((shown) => { requestAnimationFrame(() => requestAnimationFrame(shown)); }));
    await row(/summary The user asked which country/).click();
    await step.getByRole('heading', { name: 'summary' }).waitFor();
    await row(/calls run_sql.*z\.name, round/).click();
    await page.getByRole('tab', { name: 'Model’s view' }).click();
    await shown.getByText('25 messages left out, in the summary').waitFor();
    seen.summary = (await shown.getByRole('article').filter({ hasText: 'the summary' }).first().innerText()).split('\n')[0].replace(/\d+ tokens/, 'N tokens');
    await page.getByRole('tab', { name: 'Timeline' }).click();

    // A fork within two clicks: from before the call that was wrong.
    await row(/calls validate_sql.*z\.lat < 0/).click();
    await button('Fork here').click();
    await page.getByRole('dialog').getByRole('button', { name: 'Fork', exact: true }).click();
    await page.waitForURL(/a-wrong-query-v\d+/);
    await page.getByText(/Stopped before validate_sql/).waitFor();
    await button('Resume').click();
    await page.locator('header .status.idle').waitFor();
    await row(/South of the equator Brazil/).waitFor();
    // And beside its origin.
    await page.getByRole('tab', { name: 'Compare' }).click();
    await page.getByText(/Shared history: v1 to v\d+/).waitFor();

    // The run that was killed goes on: what it had done stays, and the rest follows.
    await choose('killed-in-an-answer');
    for (const shown of [/question Change the WHERE/, /calls validate_sql/, /no such column/, /calls The column has/, /describe_table →/]) await row(shown).waitFor();
    const before = await said();
    await button('Resume').click();
    await row(/South of the equator Brazil/).waitFor();
    await page.locator('header .status.idle').waitFor();
    const after = await said();
    seen.both_parts = before.length === 5 && after.length > 5 && before.every((text, place) => text === after[place]);
    seen.versions = (await versions()).every((version, place) => Number(version) === place + 1);

    // The plan is approved, and the research comes to its end, in the graph too.
    await page.getByLabel('Agent').selectOption('deep_research');
    await page.getByRole('link', { name: /^a-plan-to-approve .*waiting$/ }).waitFor();
    seen.research = await sessions();
    await choose('a-plan-to-approve');
    await page.getByText('› plan · a node asks').waitFor();
    await button('Approve').click();
    // The searches of the branches side by side, which have the same ids, each with its branch; and what comes after them.
    await page.getByText('research#2 › c2 · the tool requires approval').waitFor();
    await page.getByRole('tab', { name: 'Timeline' }).click();
    const done = row(/run ended/);
    const approve = page.getByRole('region', { name: 'Waits for a decision' }).getByRole('button', { name: /^Approve( all)?$/ }).first();
    while (!(await done.isVisible())) {
        await approve.or(done).first().waitFor();
        // It may be gone by the decision before.
        if (await approve.isVisible()) await approve.click({ timeout: 2_000 }).catch(() => {});
    }
    // What asked is gone from above the rows, which moves them.
    await page.locator('header .status.idle').waitFor();
    // A result stands beside the call of its own branch.
    const tree = page.getByRole('tree', { name: 'Commits' });
    await tree.press('Home');
    // Rows are drawn again while the list scrolls: the click counts that has selected its row.
    const result = row(/results research#0 search →/).first();
    while ((await result.getAttribute('aria-selected')) !== 'true') await result.click({ timeout: 2_000 }).catch(() => {});
    await page.getByRole('tab', { name: 'Step' }).click();
    await step.getByRole('heading', { name: /^search c1/ }).waitFor();
    seen.branch = (await step.locator('.value').first().innerText()).replace(/\s+/g, ' ');
    await tree.press('Home');
    await row(/^\d+ decision approved search/).first().waitFor();
    seen.decided = (await row(/^\d+ decision approved search/).first().locator('.said').innerText()).slice(0, 120);
    await tree.press('End');
    await page.getByRole('tab', { name: 'Graph' }).click();
    await page.getByRole('row', { name: /^publish 1 0 v/ }).waitFor();
    await page.locator('header .status.idle').waitFor();
    await page.getByText('Tasks: 100 %').waitFor();
    await page.getByRole('link', { name: /^a-plan-to-approve .*idle$/ }).waitFor();

    // A question that was not written beforehand is no failure.
    await page.getByLabel('Agent').selectOption('analyst');
    await page.getByRole('link', { name: /^a-wrong-query / }).first().waitFor();
    await page.locator('body').press('n');
    await page.getByLabel('Name', { exact: true }).fill('mine');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.locator('#composer:focus').waitFor();
    await page.keyboard.type('What time is it?');
    await page.keyboard.press('Enter');
    await row(/My replies are written beforehand/).waitFor();
    return seen;
});
