// The page adk-web, in Chromium: chat, an approval, a rejection, state, a reload, the list of sessions; and text of a model that
// would have images fetched. Says what it saw as one line of JSON. argv: the program, the URL of the server, and the token.
const { chromium } = require(process.env.STEPFOLD_INTEROP_PLAYWRIGHT);

const [executablePath, url, token] = process.argv.slice(2);
(async () => {
    const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
    const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
    const seen = {};
    // The page of the server swaps its token for a cookie.
    const swapped = page.waitForResponse((response) => response.url().endsWith('/api/v1/login'));
    await page.goto(`${url}#token=${token}`);
    seen.login = (await swapped).status();
    await page.goto(`${url}dev-ui/?app=clerk`);
    const say = async (text) => {
        const box = page.locator('textarea').first();
        await box.fill(text);
        await box.press('Enter');
    };
    const told = (text) => page.getByText(text).first().waitFor();
    const decide = async (confirmed) => {
        const submit = page.getByRole('button', { name: 'Submit' });
        await submit.waitFor();
        if (confirmed) await page.locator('input[type=checkbox]').first().check();
        await submit.click();
    };

    await say('pay the bill');
    await decide(true);
    await told('It is paid.');
    await say('and once more');
    await told('Run pay with {"euro":6}?');
    await decide(false);
    await told('As you wish.');
    await page.getByText('State', { exact: true }).first().click();
    await told('displayName');
    seen.state = (await page.locator('body').innerText()).match(/paid\s*:\s*\d+/)?.[0].replace(/\s*:\s*/, ': ');

    await say('show me');
    await told('Look here.');
    // What would be fetched is in the page.
    seen.images = await page.locator('img[src*="leak"]').count();
    await page.reload();
    await told('Look here.');
    await told('It is paid.');
    seen.dialog = await page.getByText('Help Improve ADK').count();
    await page.getByText('pay the bill').first().click();
    seen.sessions = await page.evaluate(async () => {
        const sessions = await (await fetch('/apps/clerk/users/user/sessions')).json();
        return sessions.map((session) => session.state.__session_metadata__.displayName);
    });
    await browser.close();
    console.log(JSON.stringify(seen));
})().catch((error) => {
    console.error(error);
    process.exit(1);
});
