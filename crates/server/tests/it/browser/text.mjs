// The Markdown of the studio, in node: each text of a list as the elements that it becomes.
// argv: the folder of the page. Standard input: the list. The outlines are printed in the same order.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const { blocks } = await import(pathToFileURL(`${process.argv[2]}/text.js`));
const outline = (node) => {
    if (node === null || node === undefined || node === false) return '';
    if (Array.isArray(node)) return node.map(outline).join('');
    if (typeof node !== 'object') return String(node);
    const { start, children } = node.props;
    return `<${node.type}${start === undefined ? '' : ` ${start}`}>${outline(children)}</${node.type}>`;
};
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map((text) => outline(blocks(text)))));
