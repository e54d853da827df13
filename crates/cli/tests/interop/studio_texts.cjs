// Texts of people and models: Markdown, scripts from right to left, what is very long, and a model's view of very many messages.
const { studio } = require('./studio_driver.cjs');

const CLERK = `
name = "clerk"
model = "script:clerk.script"

[state.note]
type = "string"

[state.people]
type = "object"

[tools.look]
description = "Looks."
effect = "pure"
command = ["cat"]
`;
const SCRIPT = `user: Look.
assistant: > c1 look()
assistant: I looked.
user: *
assistant: שלום עולם, this is a reply (1).
`;
const MARKDOWN = `Before:

- first
- second
  - inner
1. one
   \`\`\`sh
   ls
   \`\`\`
2. two

   more of two
- third
3. three

| stall | area | fee |
|:------|-----:|:---:|
| bakery | 3 | \`5\` |
| fish \\| chips | 10 | **7** |
| short |

---
After | no table
> quoted
> 1. item`;

studio(async (studio) => {
    const seen = {};
    const ask = (session, text) => studio.api('POST', `/apps/clerk/sessions/${session}/run`, { text });
    await studio.api('POST', '/apps/clerk/sessions', { id: 'one', values: { note: 'שלום, all (2)', people: { שם: 'עדה (3)', name: 'Ada' } } });
    await ask('one', MARKDOWN);
    await ask('one', 'Look.');
    const page = await studio.open(await studio.context(), 'clerk/one?view=conversation');

    // Lists of both kinds after one another and in one another, tables, rules.
    await page.getByRole('article').filter({ hasText: 'quoted' }).waitFor();
    seen.markdown = await page.getByRole('article').first().locator('.prose').evaluate((prose) => {
        const told = (node) => (node.nodeType === 3 ? node.textContent : `<${[node.localName, node.start > 1 ? node.start : '', node.style.textAlign].filter(Boolean).join(' ')}>${[...node.childNodes].map(told).join('')}</>`);
        return [...prose.childNodes].map(told);
    });

    // What is written from right to left is read so; what is around it stays.
    const direction = (locator) => locator.evaluate((one) => getComputedStyle(one).direction);
    const reply = page.getByText('שלום עולם').first();
    seen.directions = { reply: await direction(reply), question: await direction(page.getByText('Before:', { exact: true })) };
    await page.getByLabel('Message', { exact: true }).fill('שלום');
    seen.directions.message = await direction(page.getByLabel('Message', { exact: true }));
    await page.getByLabel('Message', { exact: true }).fill('');
    const entry = (key) => page.locator('.entry', { has: page.getByRole('button', { name: key, exact: true }) });
    seen.directions.value = await direction(entry('note').locator('.value').last());
    seen.directions.nested = [await direction(entry('people').locator('.value').last()), ...await entry('people').locator('.value bdi').allInnerTexts()];
    await page.getByRole('tab', { name: 'Timeline' }).click();
    seen.directions.row = await direction(page.getByRole('treeitem', { name: /reply.*שלום/ }).locator('.said'));

    // A text of a megabyte is folded, with its size; opened, it is all there, and only what is in sight is laid out.
    const long = Array.from({ length: 200_000 }, (_, at) => `w${at}`).join(' ').slice(0, 1_000_000);
    seen.long = [];
    const opens = async (box, what, whole) => {
        await box.getByRole('button', { name: /^Show all: 1,000,0/ }).click();
        await box.locator('.chunk').first().waitFor();
        const parts = await box.locator('.chunk').evaluateAll((all) => all.map((one) => ({ text: one.textContent, later: getComputedStyle(one).contentVisibility === 'auto' })));
        seen.long.push([what, (await box.evaluate((one) => one.textContent)).includes(whole), parts.length > 50 && parts.every(({ later, text }) => later && text.length < 20_000)]);
        await box.getByRole('button', { name: 'Show less' }).click();
        await box.locator('.chunk').first().waitFor({ state: 'detached' });
    };
    await studio.api('POST', '/apps/clerk/sessions', { id: 'long', values: { note: long } });
    await ask('long', long);
    await studio.show(page, 'clerk/long?view=conversation');
    await opens(page.getByRole('region', { name: 'Conversation' }), 'message', long.slice(-900_000));
    await opens(entry('note'), 'value', long);
    await studio.api('POST', '/apps/clerk/sessions/one/fork', { at: 5, id: 'result', results: { c1: long } });
    await studio.show(page, 'clerk/result?v=6&panel=step');
    await opens(page.getByRole('tabpanel', { name: 'Step' }), 'result', long);
    // Another value begins folded.
    await page.getByRole('tabpanel', { name: 'Step' }).getByRole('button', { name: /^Show all/ }).click();
    await page.getByRole('treeitem', { name: /^5 results/ }).click();
    await page.getByText('at v5', { exact: true }).waitFor();
    await page.getByRole('treeitem', { name: /^6 edit/ }).click();
    await page.getByRole('button', { name: /^Show all: 1,000,0/ }).waitFor();

    // Of very many messages the newest are in the page, and earlier ones when they are wanted; so are those that were left out.
    const message = (index) => ({ source: 'log', index, tokens: 3, message: { role: index % 2 ? 'assistant' : 'user', parts: [{ text: `Message ${index}.` }] } });
    const whole = (await studio.api('GET', '/apps/clerk/sessions/one/model?at=2')).body;
    await page.route(/\/model\?/, (route) => route.fulfill({ json: {
        ...whole, messages: Array.from({ length: 20_000 }, (_, at) => message(at + 20_000)), changes: Array.from({ length: 9000 }, (_, at) => ({ message: at, change: 'merged' })),
        left_out: [{ from: 0, to: 20_000, summarised: true, messages: Array.from({ length: 20_000 }, (_, at) => message(at).message) }, { from: 39_990, to: 39_995, summarised: false, messages: [] }],
    } }));
    await studio.show(page, 'clerk/one?view=model');
    const shown = page.getByRole('region', { name: 'What the model was shown' });
    await shown.getByText('Message 39999.').waitFor();
    const nodes = () => page.locator('*').count();
    seen.model = { few: (await nodes()) < 1500, newest: await shown.getByRole('article').filter({ hasText: /Message \d+\./ }).count() };
    await shown.getByRole('button', { name: /^Show earlier messages: 19,9\d\d more/ }).click();
    await shown.getByText('Message 39890.').waitFor();
    seen.model.earlier = await shown.getByRole('article').filter({ hasText: /Message \d+\./ }).count();
    // All the way up is a gap of many, which opens by pages as well.
    await page.route(/\/model\?/, (route) => route.fulfill({ json: { ...whole, messages: [message(20_000)], left_out: [{ from: 0, to: 20_000, summarised: true, messages: Array.from({ length: 20_000 }, (_, at) => message(at).message) }] } }));
    await studio.show(page, 'clerk/one?view=model&v=2');
    await shown.getByText('20,000 messages left out, in the summary').click();
    await shown.getByText('Message 59.').waitFor();
    seen.model.gap = await shown.locator('details.gap article').count();
    await shown.getByRole('button', { name: 'Show more: 19,940' }).click();
    await shown.getByText('Message 119.').waitFor();
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT });
