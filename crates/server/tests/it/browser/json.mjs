// The JSON of the studio, in node: of each text of a list, what is read from it, and what becomes of it if a person has typed it.
// argv: the module. Standard input: the list. Both are printed as they are written again, in the same order.
import { readFileSync } from 'node:fs';

const { read, typed, write } = await import(`data:text/javascript;base64,${readFileSync(process.argv[2]).toString('base64')}`);
const seen = JSON.parse(readFileSync(0, 'utf8')).map((text) => {
    const { value, wrong } = typed(text);
    let answer = null;
    try {
        answer = write(read(text));
    } catch { /* It is no JSON. */ }
    return { read: answer, typed: wrong ? null : write(value), laid: wrong ? null : write(typed(write(value, '  ')).value), wrong };
});
process.stdout.write(JSON.stringify(seen));
