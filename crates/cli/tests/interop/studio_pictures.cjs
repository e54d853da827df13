// The pictures of the studio in the docs: the analyst of the examples. argv: Chromium, the program `studio`, the folder.
const { spawn } = require('node:child_process');
const path = require('node:path');
const { chromium } = require(process.env.STEPFOLD_INTEROP_PLAYWRIGHT);

const [executablePath, program, folder] = process.argv.slice(2);
const PICTURES = [
    ['studio-light.png', 'light', 1160, 600, 'analyst/a-wrong-query?v=23&key=last_query'],
    ['studio-dark.png', 'dark', 1160, 600, 'analyst/a-wrong-query?v=23&key=last_query'],
    ['studio-approval.png', 'light', 1160, 560, 'deep_research/a-plan-to-approve'],
    ['studio-model.png', 'light', 1160, 600, 'analyst/a-wrong-query?v=24&view=model'],
];
(async () => {
    const server = spawn(program, ['--bind', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'inherit'] });
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    try {
        const url = await new Promise((resolve) => { server.stdout.once('data', (text) => resolve(String(text).trim())); });
        for (const [name, colorScheme, width, height, view] of PICTURES) {
            const context = await browser.newContext({ colorScheme, viewport: { width, height }, reducedMotion: 'reduce' });
            const page = await context.newPage();
            await page.goto(url);
            await page.getByRole('link', { name: /a-/ }).first().waitFor();
            await page.goto(`${url.split('#')[0]}#/${view}`);
            await page.getByRole('slider', { name: 'Version' }).waitFor();
            await page.locator('.entry').first().waitFor();
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
