// The studio while things go wrong: seven tabs, no network, a server that is killed.
const { studio } = require('./studio_driver.cjs');

/** A promise and the function that resolves it. */
const signal = () => {
    const one = {};
    one.came = new Promise((now) => { one.now = now; });
    return one;
};

studio(async (studio) => {
    const seen = {};
    const said = (page, text) => page.getByRole('treeitem', { name: text }).first().waitFor();
    const send = (session, text) => studio.api('POST', `/apps/stalls/sessions/${session}/messages`, { text });

    // Two tabs have one stream, and so have seven: all of them are live.
    const context = await studio.context();
    const tabs = [];
    const ids = ['one', 'two', 'three'];
    for (const id of ids) await studio.api('POST', '/apps/stalls/sessions', { id });
    const open = async (id) => {
        tabs.push({ id, page: await studio.open(context) });
        await tabs[tabs.length - 1].page.goto(`${studio.base}/#/stalls/${id}`);
        await tabs[tabs.length - 1].page.getByLabel('Message', { exact: true }).waitFor();
    };
    await open('one');
    await open('two');
    await send('one', 'And area 5?');
    await send('two', 'And area 6?');
    for (const { id, page } of tabs) await said(page, id === 'one' ? /Area 5 has/ : /Area 6 has/);
    seen.streams_of_two = studio.lives.size;
    for (const id of ['three', 'one', 'two', 'three', 'one']) await open(id);
    await send('three', 'And area 5?');
    await send('one', 'And area 6?');
    for (const { id, page } of tabs) await said(page, id === 'three' ? /Area 5 has/ : /Area 6 has/);
    seen.streams_of_seven = studio.lives.size;

    // The tab with the stream is closed: another one has it.
    await tabs.shift().page.close();
    await send('two', 'And area 5?');
    for (const { page } of tabs.filter((tab) => tab.id === 'two')) await said(page, /Area 5 has/);
    seen.streams_of_six = studio.lives.size;

    // No network: the page says so. What happened meanwhile comes after, once.
    const { page } = tabs.find((tab) => tab.id === 'three');
    await context.setOffline(true);
    await Promise.all(tabs.map((tab) => tab.page.evaluate(() => globalThis.dispatchEvent(new Event('offline')))));
    await send('three', 'And area 6?');
    await context.setOffline(false);
    await said(page, /Area 6 has/);
    seen.questions = await page.getByRole('treeitem', { name: /question/ }).count();
    // An answer that is older than what was heard since takes nothing back.
    const [early, late] = [signal(), signal()];
    await page.route(/\/sessions\/three\/events\?/, async (route) => {
      const response = await route.fetch();
      early.now();
      await late.came;
      await route.fulfill({ response });
    }, { times: 1 });
    await page.evaluate(() => globalThis.dispatchEvent(new Event('online')));
    await early.came;
    await send('three', 'And area 5?');
    await page.getByRole('treeitem', { name: /Area 5 has/ }).nth(1).waitFor();
    const answered = page.waitForResponse(/\/sessions\/three\/events\?/);
    late.now();
    await (await answered).finished();
    await page.evaluate(() => new Promise((shown) => { requestAnimationFrame(() => requestAnimationFrame(shown)); }));
    seen.questions_then = await page.getByRole('treeitem', { name: /question/ }).count();
    for (const tab of tabs) await tab.page.close();

    // A session that somebody else makes, works in and deletes is in the list by itself, and live, whatever it is called.
    const list = await studio.open(context, 'stalls');
    const odd = list.getByRole('link', { name: /^a,b%2C / });
    await studio.api('POST', '/apps/stalls/sessions', { id: 'a,b%2C' });
    await odd.click();
    await list.getByRole('heading', { name: 'a,b%2C', exact: true }).waitFor();
    await send(encodeURIComponent('a,b%2C'), 'And area 6?');
    await said(list, /Area 6 has/);
    await list.getByRole('link', { name: /^a,b%2C .*And area 6/ }).waitFor();
    await list.locator('header .status.idle').waitFor();
    // Its deletion comes while the list is read, whose answer still has it.
    const [read, answer] = [signal(), signal()];
    await list.route(/\/apps\/stalls\/sessions(\?|$)/, async (route) => {
      const response = await route.fetch();
      read.now();
      await answer.came;
      await route.fulfill({ response });
    });
    await list.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
    await read.came;
    seen.deleted = (await studio.api('DELETE', `/apps/stalls/sessions/${encodeURIComponent('a,b%2C')}`)).status;
    await odd.waitFor({ state: 'detached' });
    const listed = list.waitForResponse(/\/apps\/stalls\/sessions(\?|$)/);
    answer.now();
    await (await listed).finished();
    seen.is_back = await odd.waitFor({ state: 'attached', timeout: 1000 }).then(() => true, () => false);
    await list.close();

    // The server is killed in the middle of a call while the page is open. A new one goes on, and the page with it.
    const watching = await studio.open(context, 'stalls/killed-in-a-call');
    await watching.getByRole('button', { name: 'Resume' }).click();
    await watching.getByText('survey runs').waitFor();
    await studio.kill();
    await watching.getByText('reconnecting…').waitFor();
    await studio.start();
    // What was written before is there once, and so is what comes now.
    await watching.getByRole('button', { name: 'Resume' }).waitFor();
    await watching.getByRole('button', { name: 'Resume' }).click();
    await watching.getByText('survey runs').waitFor();
    await watching.getByText('reconnecting…').waitFor({ state: 'detached' });
    await watching.getByRole('button', { name: 'Cancel the run' }).click();
    await watching.getByRole('button', { name: 'Cancel the run' }).waitFor({ state: 'detached' });
    await send('killed-in-a-call', 'And area 6?');
    await said(watching, /Area 6 has/);
    const rows = await watching.getByRole('treeitem').evaluateAll((rows) => rows.map((row) => row.querySelector('.version').textContent));
    const { body } = await studio.api('GET', '/apps/stalls/sessions/killed-in-a-call');
    seen.rows_are_all = rows.length === body.version && rows.every((version, index) => Number(version) === index + 1);
    return seen;
});
