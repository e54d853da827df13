// Checks the types of the studio's modules, and that its shapes of the API fit the document of the server. Says what is wrong
// as one line of JSON. argv: the packages, the folder of the page, this folder, the address and the token of a server.
const { execFileSync, spawnSync } = require('node:child_process');
const { cpSync, mkdirSync, writeFileSync } = require('node:fs');
const path = require('node:path');

const [packages, page, here, url, token] = process.argv.slice(2);
const program = (name, ...rest) => [process.execPath, [path.join(packages, name), ...rest]];
(async () => {
    const document = await fetch(`${url}api/v1/openapi.json`, { headers: { authorization: `Bearer ${token}` } });
    writeFileSync('openapi.json', await document.text());
    execFileSync(...program('openapi-typescript/bin/cli.js', 'openapi.json', '-o', 'schema.d.ts'), { stdio: ['ignore', 'ignore', 'inherit'] });
    mkdirSync('page', { recursive: true });
    cpSync(page, 'page', { recursive: true });
    cpSync(path.join(here, 'studio_types.ts'), 'studio_types.ts');
    const compilerOptions = { strict: true, checkJs: true, noEmit: true, target: 'es2023', module: 'esnext', moduleResolution: 'bundler', lib: ['es2023', 'dom', 'dom.iterable'], types: [] };
    writeFileSync('tsconfig.json', JSON.stringify({ compilerOptions, include: ['page/*.js', 'page/**/*.d.ts', '*.ts'] }));
    const checked = spawnSync(...program('typescript/bin/tsc', '--pretty', 'false'), { encoding: 'utf8' });
    console.log(JSON.stringify({ wrong: checked.stdout.split('\n').filter(Boolean) }));
})().catch((error) => {
    console.error(error);
    process.exitCode = 1;
});
