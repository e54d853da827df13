// What an approver sees in the studio: every field of hostile calls, which are also those of the other surfaces; nothing that
// hides; what is long is folded, and read before it is approved. With STEPFOLD_PICTURES, pictures are written there.
const { readFileSync } = require('node:fs');
const path = require('node:path');
const { studio } = require('./studio_driver.cjs');

const server = path.join(__dirname, '../../../server');
const CLERK = `
name = "clerk"
model = "script:clerk.script"

[tools.pay]
description = "Pays the bill."
approval = "always"
parameters = { additionalProperties = true }
command = { argv = ["sh", "-c", "tee -a paid; echo >> paid"] }
`;

(async () => {
    const module = readFileSync(path.join(server, 'page/json.js')).toString('base64');
    const { isNested, read, write } = await import(`data:text/javascript;base64,${module}`);
    const hostile = read(readFileSync(path.join(server, 'tests/it/http/hostile_calls.json'), 'utf8'));
    const call = ({ arguments: given }, place) => `> c${place} pay(${Object.entries(given).map(([name, value]) => `${JSON.stringify(name)}=${write(value)}`).join(', ')})`;
    // Each one alone, in a session of its own; then all at once, and again all.
    const scripts = [...hostile.map((one) => [one]), hostile, hostile];
    const agents = Object.fromEntries(scripts.flatMap((calls, at) => [
        [`clerk${at}.toml`, CLERK.replaceAll('clerk', `clerk${at}`)],
        [`clerk${at}.script`, `assistant: ${calls.map(call).join('   ')}\nassistant: Done.\n`],
    ]));

    // A call that is made twice, with a long value of the state and a short one that hides.
    agents['state.toml'] = `${CLERK.replaceAll('clerk', 'state').replace('"always"', '"once"').replace('additionalProperties = true', 'properties = { euro = {}, draft = { type = "string" }, to = { type = "string" } }')}inputs_from_state = { draft = "draft", to = "to" }

[state.draft]
type = "string"

[state.to]
type = "string"
`;
    agents['state.script'] = 'assistant: > c1 pay(euro=5)   > c2 pay(euro=5)\nassistant: Done.\n';

    await studio(async (studio) => {
        const seen = { wrong: [] };
        const ask = async (at) => {
            await studio.api('POST', `/apps/clerk${at}/sessions`, { id: 'one' });
            await studio.api('POST', `/apps/clerk${at}/sessions/one/run`, { text: 'go' });
        };
        for (let at = 0; at < scripts.length; at += 1) await ask(at);
        const page = await studio.open(await studio.context());
        const requests = page.locator('.request:not(.all)');
        const approve = (request) => request.getByRole('button', { name: 'Approve', exact: true });

        // Reads a request as a person: opens what is folded, and tells what is wrong.
        const check = async (request, one) => {
            const wrong = (what) => seen.wrong.push(`${one.name}: ${what}`);
            const value = request.locator('.value').first();
            const before = await value.innerText();
            // No field is folded away, at any depth.
            const names = (given) => (Array.isArray(given) || !isNested(given) ? [] : Object.entries(given).flatMap(([name, field]) => [name, ...names(field)]));
            for (const name of names(one.arguments)) {
                const shown = JSON.stringify(name).replace(/[\u200b\u{e0041}]/gu, (found) => found.split('').map((unit) => `\\u${unit.charCodeAt(0).toString(16)}`).join(''));
                if (!before.includes(`${shown}: `)) wrong(`no field ${shown}`);
            }
            const folds = request.getByRole('button', { name: /^Read all: / });
            const count = await folds.count();
            if (count !== (await approve(request).isDisabled() ? count || -1 : 0)) wrong('Approve is active before all was read, or not although it was');
            for (let left = count; left > 0; left -= 1) {
                if (!(await approve(request).isDisabled())) wrong(`Approve is active with ${left} folded`);
                await folds.first().click();
            }
            if (await approve(request).isDisabled()) wrong('Approve is not active after all was read');
            const text = await value.innerText();
            // eslint-disable-next-line no-control-regex
            if (/(?!\n)[\p{Cc}\p{Cf}]/u.test(await request.innerText())) wrong('something invisible');
            // An opened list continues the one that it is in.
            const whole = text.replace(/\u2026/g, '');
            if (write(read(whole)) !== write(one.arguments)) wrong(`other arguments: ${whole.slice(0, 300)}`);
            const warnings = await request.locator('ul.wrong').allInnerTexts();
            for (const warning of one.warns) if (!warnings.join().includes(warning)) wrong(`no warning ${warning} in ${warnings}`);
            return count;
        };

        seen.folds = [];
        for (const [at, one] of hostile.entries()) {
            await studio.show(page, `clerk${at}/one`);
            await requests.first().waitFor();
            await page.getByRole('heading', { name: 'One call waits for your decision' }).waitFor();
            seen.folds.push(await check(requests.first(), one));
            await approve(requests.first()).click();
            await page.getByRole('treeitem', { name: /Done\./ }).first().waitFor();
        }
        const paid = readFileSync('paid', 'utf8').trim().split('\n');
        seen.ran = hostile.every((one, at) => write(read(paid[at])) === write(one.arguments)) || paid;

        // All at once: nothing is approved together before all was read.
        await studio.show(page, `clerk${hostile.length}/one`);
        const all = page.locator('.request.all');
        await all.waitFor();
        seen.all = (await all.innerText()).replace(/\s+/g, ' ');
        for (const [at, one] of hostile.entries()) {
            const button = page.getByRole('button', { name: /^Approve all/ });
            if ((await page.getByRole('button', { name: /^Read all: / }).count()) > 0 && !(await button.isDisabled())) seen.wrong.push('all can be approved before all was read');
            await check(requests.nth(at), one);
        }
        // One is left out, the others are approved.
        await requests.nth(1).getByRole('button', { name: 'Reject…' }).click();
        await requests.nth(1).getByLabel('Reason (the model sees it)').fill('too dear');
        await requests.nth(1).getByRole('button', { name: 'Reject', exact: true }).click();
        await page.getByRole('button', { name: 'Approve the others' }).click();
        await page.getByRole('treeitem', { name: /Done\./ }).first().waitFor();
        // They run at once, so that lines are mixed; each call ends one.
        seen.together = readFileSync('paid', 'utf8').split('\n').length - 1 - paid.length;

        // Who does not read says so.
        await studio.show(page, `clerk${hostile.length + 1}/one`);
        await all.waitFor();
        await requests.first().getByLabel('Approve unread').check();
        seen.one_unread = [await approve(requests.first()).isDisabled(), await page.getByRole('button', { name: /^Approve all/ }).isDisabled()];
        await all.getByLabel('Approve unread').click();
        seen.all_unread = await page.getByRole('button', { name: /^Approve all/ }).isDisabled();
        seen.barriers = await studio.barriers(page);

        // Fields for editing have what hides as escapes, too.
        await requests.nth(1).getByRole('button', { name: 'Edit arguments…' }).click();
        seen.field = (await requests.nth(1).getByLabel('Arguments (JSON)').inputValue()).includes('refund \\u202epay euro 999\\u202c');
        await requests.nth(1).getByRole('button', { name: 'Cancel' }).click();
        // The timeline, the step and the conversation draw nothing that hides.
        for (const tab of ['Timeline', 'Conversation', 'Model’s view']) {
            await page.getByRole('tab', { name: tab }).click();
            // eslint-disable-next-line no-control-regex
            if (/(?![\n\t])[\p{Cc}\u202a-\u202e\u200b\u{e0041}]/u.test(await page.locator('body').innerText())) seen.wrong.push(`something invisible in ${tab}`);
        }

        // What the state adds is read from there.
        await studio.api('POST', '/apps/state/sessions', { id: 'one', values: { draft: 'All is well. '.repeat(400), to: 'ad\u202ea' } });
        await studio.api('POST', '/apps/state/sessions/one/run', { text: 'go' });
        await studio.show(page, 'state/one');
        await requests.first().waitFor();
        seen.of_state = (await requests.first().innerText()).replace(/\s+/g, ' ').replace(/(All is well\. )+/, '… ');
        seen.of_state_unread = await approve(requests.first()).isDisabled();
        await page.getByRole('button', { name: 'Read all: 5,202 bytes' }).click();
        await requests.first().getByText('All is well. '.repeat(399)).waitFor();
        seen.of_state_read = await approve(requests.first()).isEnabled();

        if (process.env.STEPFOLD_PICTURES) {
            for (const colorScheme of ['light', 'dark']) {
                for (const width of [400, 1280]) {
                    const other = await studio.open(await studio.context({ viewport: { width, height: 900 }, colorScheme }));
                    for (const view of [`clerk${hostile.length + 1}/one`]) {
                        await studio.show(other, view);
                        await other.locator('.request').first().waitFor();
                        await other.screenshot({ path: path.join(process.env.STEPFOLD_PICTURES, `all-${width}-${colorScheme}.png`), fullPage: true });
                        await other.locator('.request.all').scrollIntoViewIfNeeded();
                        await other.screenshot({ path: path.join(process.env.STEPFOLD_PICTURES, `end-${width}-${colorScheme}.png`) });
                    }
                    await other.close();
                }
            }
        }
        return seen;
    }, agents);
})();
