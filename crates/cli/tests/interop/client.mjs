// A client that others wrote asks an agent: tools, a call with progress, an approval, resources, a cancelled call.
// Says what it saw as one line of JSON. argv: `v1` or `v2`, and the command of the server; or its URL and a token.
const [version, command, ...args] = process.argv.slice(2);
const isUrl = command.startsWith('http');
const withToken = { requestInit: { headers: { Authorization: `Bearer ${args[0]}` } } };

let client, transport;
const answer = async () => ({ action: 'accept', content: { decision: 'approve' } });
const info = { name: 'interop', version: '1' };
if (version === 'v1') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js');
    client = new Client(info, { capabilities: { elicitation: {} } });
    client.setRequestHandler(ElicitRequestSchema, answer);
    transport = isUrl
        ? new StreamableHTTPClientTransport(new URL(command), withToken)
        : new StdioClientTransport({ command, args, env: process.env });
} else {
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    client = new Client(info, { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: 'auto' } });
    client.setRequestHandler('elicitation/create', answer);
    transport = isUrl
        ? new StreamableHTTPClientTransport(new URL(command), withToken)
        : new StdioClientTransport({ command, args, env: process.env });
}
await client.connect(transport);

const seen = { progress: [] };
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);
const onprogress = (progress) => seen.progress.push(progress.message);
const call = async (params) =>
    version === 'v1' ? client.callTool(params, undefined, { onprogress }) : client.callTool(params, { onprogress });
const paid = await call({ name: 'clerk', arguments: { message: 'pay the bill', session: 'shop' } });
seen.text = paid.structuredContent.text;
const again = await call({ name: 'clerk', arguments: { message: 'and now?', session: 'shop' } });
seen.again = again.structuredContent.text;
const resources = (await client.listResources()).resources.map((resource) => resource.uri);
const transcript = resources.find((uri) => uri.endsWith('/shop/transcript'));
seen.transcript = (await client.readResource({ uri: transcript })).contents[0].text;
try {
    await client.callTool({ name: 'nobody', arguments: {} });
} catch (error) {
    seen.unknown = error.message;
}
await client.close();
console.log(JSON.stringify(seen));
