// Figures of the studio, of a session of many commits on the real server: lines of text. They depend on the machine; nothing
// is asserted. argv: Chromium, and the program `stepfold`, built for release.
const { studio } = require('./studio_driver.cjs');

const median = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)];
const part = (all, share) => [...all].sort((a, b) => a - b)[Math.min(all.length - 1, Math.floor(all.length * share))];
const told = (what, value) => console.error(`${what}: ${value}`);

// What the main thread does in a frame, by the names that the trace has for it.
const SHARES = {
    script: ['FunctionCall', 'EventDispatch', 'FireAnimationFrame', 'RunMicrotasks', 'TimerFire', 'MinorGC', 'MajorGC', 'V8.GC_SCAVENGER', 'XHRReadyStateChange'],
    layout: ['UpdateLayoutTree', 'Layout', 'PrePaint', 'HitTest', 'IntersectionObserverController::computeIntersections'],
    paint: ['Paint', 'Layerize', 'Commit', 'UpdateLayer', 'CompositeLayers'],
};

// The costs of 300 frames, with as many turns of the wheel.
async function scrolled(browser, page, selector, what) {
    const categories = ['devtools.timeline', 'disabled-by-default-devtools.timeline', 'devtools.timeline.frame', 'disabled-by-default-devtools.timeline.frame', 'v8'];
    const box = await page.locator(selector).boundingBox();
    for (const [how, by] of [['a turn of the wheel, 3 rows', 100], ['a jump of 33 rows', 977]]) {
        await page.evaluate((selector) => { document.querySelector(selector).scrollTop = 0; }, selector);
        await page.mouse.move(box.x + 200, box.y + 200);
        await page.waitForTimeout(300);
        await browser.startTracing(page, { categories });
        await page.evaluate(async ([selector, by]) => {
            const rows = document.querySelector(selector);
            for (let turn = 0; turn < 300; turn += 1) {
                await new Promise((resolve) => { requestAnimationFrame(resolve); });
                rows.scrollTop = (turn * by) % (rows.scrollHeight - rows.clientHeight);
            }
        }, [selector, by]);
        const { traceEvents } = JSON.parse(await browser.stopTracing());
        const frames = costs(traceEvents, 'dur');
        const ofThread = costs(traceEvents, 'tdur').map((frame) => frame.all);
        const line = (share) => { const all = frames.map((frame) => frame[share]); return `${part(all, 0.5).toFixed(1)} / ${part(all, 0.95).toFixed(1)}`; };
        // What the thread itself took, without the times at which other programs had the core.
        told(`${what}, ${how}: ms of the main thread per frame, p50 / p95`,
            `CPU ${part(ofThread, 0.5).toFixed(1)} / ${part(ofThread, 0.95).toFixed(1)}, by the clock ${line('all')} (script ${line('script')}, style and layout ${line('layout')}, paint and commit ${line('paint')}; ${frames.length} frames, p50 / p95 between two ${line('between')})`);
    }
}

// For each frame, the milliseconds of the main thread that the page took, by kind; what one event contains counts once. By the
// clock (`dur`), or of CPU (`tdur`).
function costs(events, length) {
    const kindOf = new Map(Object.entries(SHARES).flatMap(([kind, names]) => names.map((name) => [name, kind])));
    const main = events.find((event) => event.name === 'FireAnimationFrame');
    const own = (event) => event.pid === main.pid && event.tid === main.tid;
    const starts = events.filter((event) => own(event) && event.name === 'BeginMainThreadFrame').map((event) => event.ts).sort((a, b) => a - b);
    const spans = events.filter((event) => own(event) && event.ph === 'X' && kindOf.has(event.name)).sort((a, b) => a.ts - b.ts || b.dur - a.dur);
    const frames = starts.slice(1).map((ts, index) => ({ script: 0, layout: 0, paint: 0, all: 0, between: (ts - starts[index]) / 1000 }));
    // Time is given to the innermost event: those around it lose it.
    const open = [];
    const give = (ts, kind, us) => {
        let [low, high] = [0, starts.length];
        while (low < high) {
            const middle = (low + high) >> 1;
            if (starts[middle] <= ts) low = middle + 1;
            else high = middle;
        }
        const frame = frames[low - 1];
        if (frame) { frame[kind] += us / 1000; frame.all += us / 1000; }
    };
    for (const span of spans) {
        while (open.length && open[open.length - 1].end <= span.ts) open.pop();
        const around = open[open.length - 1];
        const kind = kindOf.get(span.name);
        give(span.ts, kind, span[length] ?? 0);
        if (around) give(span.ts, around.kind, -(span[length] ?? 0));
        open.push({ end: span.ts + span.dur, kind });
    }
    return frames;
}

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

    // Scrolling: what each frame costs the main thread, from a trace, apart from what draws the pixels. A machine without a
    // graphics card draws them on its cores, which is why the floor is measured beside: plain rows in an empty page.
    const { page } = await open();
    await scrolled(studio.browser, page, '.rows', 'scrolling 10,000 commits');
    told('rows in the page', await page.getByRole('treeitem').count());
    const plain = await (await studio.context()).newPage();
    await plain.setContent(`<style>body { margin: 0 } .rows { height: 700px; overflow-y: auto } p { margin: 0; height: 30px }</style>
        <div class="rows">${'<p>a plain row</p>'.repeat(10_000)}</div>`);
    await scrolled(studio.browser, plain, '.rows', 'the floor: scrolling 10,000 plain rows');

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
