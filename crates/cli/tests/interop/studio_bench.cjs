// Figures of the studio, of a session of many commits on the real server: lines of text. They depend on the machine; nothing
// is asserted. argv: Chromium, and the program `stepfold`, built for release.
const { studio } = require('./studio_driver.cjs');

const median = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)];
const part = (all, share) => [...all].sort((a, b) => a - b)[Math.min(all.length - 1, Math.floor(all.length * share))];
const told = (what, value) => console.error(`${what}: ${value}`);

studio(async (studio) => {
    const path = '/apps/stalls/sessions/many';
    await studio.api('POST', '/apps/stalls/sessions', { id: 'many' });
    const grow = async (from, to) => {
        for (let expected = from; expected < to; expected += 1) await studio.api('PATCH', `${path}/state`, { set: { counted: expected }, expected });
    };
    const open = async () => {
        const context = await studio.context();
        const page = await studio.open(context, 'stalls');
        const began = Date.now();
        await page.evaluate(() => { location.hash = '#/stalls/many'; });
        await page.getByRole('treeitem', { name: /counted/ }).last().waitFor();
        return { page, context, ms: Date.now() - began };
    };
    for (const [from, size] of [[0, 3000], [3000, 10_000]]) {
        await grow(from, size);
        const times = [];
        for (let turn = 0; turn < 5; turn += 1) {
            const { context, ms } = await open();
            times.push(ms);
            await context.close();
        }
        told(`${size} commits open until the last row shows, median of 5`, `${median(times)} ms`);
    }

    // First paint, of a page that the browser has not seen.
    const paints = [];
    for (let turn = 0; turn < 7; turn += 1) {
        const context = await studio.context();
        const page = await context.newPage();
        await page.goto(`${studio.base}/#token=${studio.token}`);
        await page.getByRole('link').first().waitFor();
        paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime));
        await context.close();
    }
    told('first paint, median of 7', `${Math.round(median(paints))} ms`);

    // Scrolling: what a frame costs on the main thread, script, style and layout.
    const { page } = await open();
    const frames = await page.evaluate(async () => {
        const rows = document.querySelector('.rows');
        const costs = [];
        rows.scrollTop = 0;
        for (let turn = 0; turn < 300; turn += 1) {
            await new Promise((resolve) => { requestAnimationFrame(resolve); });
            rows.scrollTop = (turn * 977) % (rows.scrollHeight - rows.clientHeight);
            // The page draws in the next frame; then its layout is made, here.
            await new Promise((resolve) => {
                requestAnimationFrame(() => {
                    const began = performance.now();
                    setTimeout(() => resolve(costs.push(performance.now() - began)), 0);
                });
            });
        }
        return costs;
    });
    told('a frame of scrolling 10,000 commits, p50', `${part(frames, 0.5).toFixed(1)} ms`);
    told('a frame of scrolling 10,000 commits, p95', `${part(frames, 0.95).toFixed(1)} ms`);
    told('rows in the page', await page.getByRole('treeitem').count());

    // The server alone.
    for (const query of ['', '&origin=true']) {
        const times = [];
        for (let turn = 0; turn < 60; turn += 1) {
            const began = performance.now();
            await studio.api('GET', `${path}/state?at=${1 + (turn * 163) % 9999}${query}`);
            times.push(performance.now() - began);
        }
        told(`state at a version of 10,000${query && ', with origins'}, median`, `${median(times).toFixed(2)} ms`);
    }
    return {};
});
