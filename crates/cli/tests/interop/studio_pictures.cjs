// The pictures of the studio in the docs: the analyst and the research of the examples. argv: Chromium, the program `studio`, the
// folder. Rows are found by what they say: calls that end at once are one commit or two, so that no version is certain.
const { spawn } = require('node:child_process');
const path = require('node:path');
const { chromium } = require(process.env.STEPFOLD_INTEROP_PLAYWRIGHT);

const [executablePath, program, folder] = process.argv.slice(2);

// Which call wrote the query that ran last, and what it was before.
const blame = async (page) => {
    await page.getByRole('treeitem', { name: /results run_sql.*Brazil/ }).last().click();
    await page.getByRole('button', { name: 'last_query', exact: true }).click();
    await page.getByRole('list', { name: 'Writes of last_query' }).getByRole('listitem').nth(1).waitFor();
    await page.getByRole('tree', { name: 'Commits' }).evaluate((element) => { element.scrollTop -= 120; });
    await page.getByRole('treeitem', { name: /no such column/ }).waitFor();
    await page.mouse.move(0, 0);
};
// What the model had of a long conversation, and what it answered.
const model = async (page) => {
    await page.getByRole('treeitem', { name: /calls run_sql.*z\.name, round/ }).click();
    await page.getByRole('tab', { name: 'Model’s view' }).click();
    const shown = page.getByRole('region', { name: 'What the model was shown' });
    await shown.getByText(/its answer/).waitFor();
    await shown.getByText('instructions, as rendered').evaluate((element) => { element.closest('.conversation').scrollTop = element.closest('article').offsetTop - 180; });
};
// A call that failed runs with other arguments in a fork, which is compared with its origin.
const compare = async (page) => {
    await page.getByRole('treeitem', { name: /calls validate_sql.*z\.lat < 0/ }).click();
    await page.getByRole('tab', { name: 'Step' }).click();
    await page.getByRole('button', { name: 'Fork with other arguments…' }).click();
    await page.getByLabel('Name', { exact: true }).fill('another-column');
    const written = page.getByLabel('Arguments (JSON)');
    await written.fill((await written.inputValue()).replace('z.lat ', 'z.latitude '));
    await page.getByRole('dialog').getByRole('button', { name: 'Fork' }).click();
    await page.waitForURL(/another-column/);
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('treeitem', { name: /South of the equator/ }).waitFor();
    await page.locator('header .status.idle').waitFor();
    await page.getByRole('tab', { name: 'Compare' }).click();
    await page.getByText(/Shared history/).waitFor();
    await page.locator('.note').waitFor({ state: 'detached' });
};
// After the plan, the calls of branches side by side wait.
const approval = async (page) => {
    await page.getByRole('button', { name: 'Approve', exact: true }).click();
    await page.getByText('research#2 › c2 · the tool requires approval').waitFor();
    await page.mouse.move(0, 0);
};
const PICTURES = [
    ['studio-light.png', 'light', 'analyst/a-wrong-query', blame],
    ['studio-dark.png', 'dark', 'analyst/a-wrong-query', blame],
    ['studio-model.png', 'light', 'analyst/a-wrong-query', model],
    ['studio-compare.png', 'light', 'analyst/a-wrong-query', compare],
    ['studio-approval.png', 'dark', 'deep_research/a-plan-to-approve', approval],
];
(async () => {
    const server = spawn(program, ['--bind', '127.0.0.1:0', '--delay', '0'], { stdio: ['ignore', 'pipe', 'inherit'] });
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    try {
        const url = await new Promise((resolve) => { server.stdout.once('data', (text) => resolve(String(text).trim())); });
        for (const [name, colorScheme, view, act] of PICTURES) {
            const context = await browser.newContext({ colorScheme, viewport: { width: 1280, height: 720 }, reducedMotion: 'reduce' });
            const page = await context.newPage();
            await page.goto(url);
            await page.getByRole('link', { name: /a-/ }).first().waitFor();
            await page.goto(`${url.split('#')[0]}#/${view}`);
            await page.getByRole('slider', { name: 'Version' }).waitFor();
            await page.locator('.entry').first().waitFor();
            await act(page);
            await page.getByText('…', { exact: true }).first().waitFor({ state: 'detached' });
            await page.screenshot({ path: path.join(folder, name) });
            await context.close();
        }
    } finally {
        await browser.close();
        server.kill();
    }
})().catch((error) => {
    console.error(error);
    process.exitCode = 1;
});
