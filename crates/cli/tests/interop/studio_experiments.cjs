// Experiments of more cases than are shown at once: nothing is hidden in silence, and the rest comes with a click.
const { execFileSync } = require('node:child_process');
const { mkdirSync, writeFileSync } = require('node:fs');
const { studio } = require('./studio_driver.cjs');

const CLERK = 'name = "clerk"\nmodel = "script:clerk.script"\n';
const SCRIPT = 'assistant: hello\n';

// The names of the first experiment are half those of the second one.
const cases = (from, to) => Array.from({ length: to - from }, (_, at) => `${JSON.stringify({ name: `c${from + at}`, say: 'hello', expect: ['answered'] })}\n`).join('');

studio(async (studio) => {
    mkdirSync('experiments/clerk/local', { recursive: true });
    for (const [name, from, to] of [['base', 0, 700], ['next', 350, 1050]]) {
        writeFileSync(`${name}.jsonl`, cases(from, to));
        execFileSync(process.argv[3], ['eval', 'run', 'clerk.toml', `${name}.jsonl`, '--report', `experiments/clerk/local/${name}.report`]);
    }
    await studio.api('POST', '/apps/clerk/sessions', { id: 'one' });
    const page = await studio.open(await studio.context());
    await page.goto(`${studio.base}/#/clerk?experiment=`);
    const region = page.getByRole('region', { name: 'Experiments' });
    const more = region.getByRole('button', { name: 'Show more' });
    const rows = () => region.locator('tbody tr').count();
    const names = async () => new Set(await region.locator('tbody th').allInnerTexts()).size;
    const seen = { steps: [] };
    for (;;) {
        await region.locator('tbody tr').first().waitFor();
        const words = await more.isVisible() ? (await region.locator('p.quiet').innerText()).replace(/\s+/g, ' ').trim() : 'all';
        seen.steps.push(`${await rows()} rows: ${words}`);
        if (words === 'all' || seen.steps.length > 5) break;
        const before = await rows();
        await more.click();
        await page.waitForFunction((count) => document.querySelectorAll('.matrix tbody tr').length > count, before);
        // The next page of each experiment is read.
        await page.waitForTimeout(500);
    }
    seen.names = await names();
    return seen;
}, { 'clerk.toml': CLERK, 'clerk.script': SCRIPT }, ['--experiments', 'experiments']);
