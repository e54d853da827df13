// What is drawn fits: the boxes of a graph and their texts; runs inside of runs; many calls at once; why a run failed; a phone.
const { studio } = require('./studio_driver.cjs');

const LONG = ['read_the_whole_catalogue', 'check_every_entry_of_it_against_the_index_of_the_library', 'a', 'summarise_the_differences'];
const ways = (names) => names.slice(1).map((to, at) => `{ from = "${names[at]}", to = "${to}" }`).join(', ');
const CHAIN = `
name = "chain"
edges = [${ways(['START', ...LONG, 'END'])}]
${LONG.map((name) => `[nodes.${name}]\nsays = "done"`).join('\n')}
`;

const LOOP = `
name = "loop"
edges = [{ from = "START", to = "pick" }, { from = "pick", to = "read", each = "items" }, { from = "read", to = "pick" }, { from = "read", to = "END" }]
[state.items]
type = "array"
default = [1, 2]
[nodes.pick]
says = "done"
[nodes.read]
says = "done"
`;

// Six graphs, one in another, and an agent in the last one.
const nest = (at) => (at < 6 ? `
name = "nest${at}"
model = "script:nest.script"
edges = [{ from = "START", to = "inner" }, { from = "inner", to = "END" }]
[nodes.inner]
agent = "nest${at + 1}.toml"
` : `
name = "nest6"
model = "script:nest.script"
[tools.look]
description = "Looks."
command = ["cat"]
`);
const NESTS = Object.fromEntries([1, 2, 3, 4, 5, 6].map((at) => [`nest${at}.toml`, nest(at)]));
NESTS['nest.script'] = 'assistant: > c1 look()\nassistant: All is well.\n';

const MANY = `
name = "many"
model = "script:many.script"
[tools.look]
description = "Looks."
effect = "pure"
parameters = { properties = { at = { type = "integer" } } }
command = { argv = ["cat"], output = "json" }
[tools.list]
description = "Lists."
effect = "pure"
command = { argv = ["cat"], output = "json" }
`;
const CALLS = [...Array.from({ length: 63 }, (_, at) => `> c${at} look(at=${at})`), '> c63 list()'].join('   ');

const FAILS = `
name = "fails"
edges = [{ from = "START", to = "stop" }, { from = "stop", to = "END" }]
[nodes.stop]
command = ["sh", "-c", "echo 'the archive is closed on Mondays' >&2; exit 1"]
`;

studio(async (studio) => {
    const seen = {};
    const run = async (app) => {
        await studio.api('POST', `/apps/${app}/sessions`, { id: 'one' });
        await studio.api('POST', `/apps/${app}/sessions/one/run`, { text: 'go' });
    };
    await run('chain');
    const page = await studio.open(await studio.context({ viewport: { width: 1280, height: 800 } }));

    // No name is wider than its box: one that is too long is cut, and its title has the whole. The table stands beside the chain.
    await studio.show(page, 'chain/one?view=graph');
    await page.getByRole('row', { name: /summarise_the_differences 1 0 v/ }).waitFor();
    seen.boxes = await page.locator('.node').evaluateAll((nodes) => nodes.map((node) => {
        const box = node.querySelector('rect').getBoundingClientRect();
        const isIn = [...node.querySelectorAll('text')].every((text) => {
            const { left, right } = text.getBoundingClientRect();
            return left > box.left && right < box.right;
        });
        return [node.querySelector('text').textContent.replace(/…$/, ' (cut)').replace(/\w+ \(cut\)/, 'cut'), node.querySelector('title')?.textContent, isIn];
    }));
    const [graph, table] = [await page.getByRole('img', { name: /^Graph chain/ }).boundingBox(), await page.getByRole('table').first().boundingBox()];
    seen.table_is_beside = table.x >= graph.x + graph.width && table.y < graph.y + 40;
    // An edge that leads back passes by the words of the others.
    await run('loop');
    await studio.show(page, 'loop/one?view=graph');
    await page.getByText('for each of items').waitFor();
    seen.edge_is_beside_words = await page.evaluate(() => {
        const words = document.querySelector('.edge.each text').getBBox();
        const back = [...document.querySelectorAll('.edge path')].find((path) => path.getPointAtLength(0).y > path.getPointAtLength(path.getTotalLength()).y);
        const points = Array.from({ length: 101 }, (_, at) => back.getPointAtLength((back.getTotalLength() * at) / 100));
        const svg = document.querySelector('.graph svg').viewBox.baseVal;
        return points.every(({ x, y }) => x < svg.width && (y < words.y || y > words.y + words.height || x > words.x + words.width));
    });

    // The kind of a commit is read at any depth, on a small screen too, and what it says has room beside it.
    await run('nest1');
    seen.kinds = [];
    for (const width of [1280, 400]) {
        const small = await studio.open(await studio.context({ viewport: { width, height: 800 } }), 'nest1/one');
        await small.getByRole('treeitem', { name: /reply.*All is well/ }).waitFor();
        seen.kinds.push(await small.getByRole('treeitem').evaluateAll((rows) => rows.map((row) => {
            const [kind, said] = [row.querySelector('.kind'), row.querySelector('.said')];
            const isCut = kind.scrollWidth > kind.clientWidth || said.clientWidth - parseFloat(getComputedStyle(said).paddingLeft) < 60;
            return isCut ? `${row.innerText} is cut` : '';
        }).filter(Boolean)));
        const left = (name) => small.getByRole('treeitem', { name }).locator('.said').evaluate((said) => parseFloat(getComputedStyle(said).paddingLeft));
        seen.kinds.push((await left(/reply.*All is well/)) > 0);
    }

    // Many calls say how many they are: in the timeline, in the conversation, where they are opened, and in the step.
    await run('many');
    await studio.show(page, 'many/one?v=2&panel=step');
    seen.many = [(await page.getByRole('treeitem', { name: /^2 calls/ }).innerText()).replace(/\s+/g, ' ').slice(0, 17)];
    await page.getByText('64: look × 63, list').waitFor();
    await page.getByRole('tab', { name: 'Conversation' }).click();
    const group = page.getByRole('button', { name: '64 calls: look × 63, list' });
    seen.many.push(await page.locator('.used').count());
    await group.click();
    seen.many.push(await page.locator('.used').count(), await group.getAttribute('aria-expanded'));

    // The reason of a failure comes first, wherever it is told.
    await run('fails');
    await studio.show(page, 'fails/one?panel=step');
    for (const one of ['.row .said', '.banner .wrong', '.step .wrong']) await page.locator(one, { hasText: 'Mondays' }).first().waitFor();
    const why = 'node \'stop\' failed: the program failed (exit status: 1): the archive is closed on Mondays';
    const told = [page.getByRole('treeitem', { name: /failed/ }).first().locator('.said'), page.locator('.banner .wrong'), page.locator('.step .wrong')];
    seen.reason_first = await Promise.all(told.map(async (one) => (await one.innerText()).startsWith(why) || one.innerText()));

    // A phone shows a word without an end, and a session with a long name, in its width: in the banner, and in two lines above it.
    const long = 'a-session-with-a-name-that-is-longer-than-a-phone-is-wide';
    await studio.api('POST', '/apps/endless/sessions', { id: long });
    await studio.api('POST', `/apps/endless/sessions/${long}/run`, { text: 'go' });
    const phone = await studio.open(await studio.context({ viewport: { width: 400, height: 800 } }), `endless/${long}`);
    await phone.locator('.banner .wrong', { hasText: 'zzz' }).waitFor();
    seen.phone = await phone.evaluate(() => {
        const over = [...document.querySelectorAll('header > *, .banner, .banner *')].filter((one) => one.getBoundingClientRect().right > innerWidth);
        return { over: over.map((one) => one.outerHTML.slice(0, 60)), wider: document.documentElement.scrollWidth - innerWidth, two_lines: document.querySelector('header').clientHeight < 96 };
    });
    // The chosen view is in sight, before the fading end of the list.
    await studio.show(phone, `endless/${long}?view=compare`);
    await phone.getByRole('tab', { name: 'Compare', selected: true }).waitFor();
    seen.phone.tab = await phone.getByRole('tab', { name: 'Compare' }).evaluate((tab) => {
        const { left, right } = tab.getBoundingClientRect();
        return left > 0 && right < innerWidth - 27;
    });
    return seen;
}, { 'loop.toml': LOOP, 'chain.toml': CHAIN, ...NESTS, 'many.toml': MANY, 'many.script': `assistant: ${CALLS}\nassistant: Done.\n`, 'fails.toml': FAILS, 'endless.toml': FAILS.replace('fails', 'endless').replace('the archive is closed on Mondays', 'z'.repeat(200)) });
