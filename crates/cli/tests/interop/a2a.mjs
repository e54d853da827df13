// A client that others wrote, of Agent2Agent 1.0. Says what it saw as one line of JSON. argv: the URL of the server, the token.
import { ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import { Message, TaskState } from '@a2a-js/sdk';

const [base, token] = process.argv.slice(2);
const fetchImpl = (url, init = {}) => fetch(url, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } });
const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
    transports: [new JsonRpcTransportFactory({ fetchImpl })],
    cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
});
const client = await new ClientFactory(options).createFromUrl(base, '/a2a/clerk/.well-known/agent-card.json');

const seen = {};
const state = (task) => TaskState[task.status.state];
let number = 0;
const say = (text, more = {}) => ({
    message: Message.fromJSON({ messageId: `m${++number}`, role: 'ROLE_USER', contextId: 'shop', parts: [{ text }], ...more }),
});
const stream = async (request) => {
    const told = [];
    for await (const event of client.sendMessageStream(request)) {
        const { $case: kind, value } = event.payload;
        if (kind === 'statusUpdate') told.push(`${kind} ${state(value)}`);
        else if (kind === 'artifactUpdate') {
            const text = value.artifact.parts.map((part) => part.content.value).join('');
            if (value.lastChunk) told.push(`${kind} ${text}`);
        } else told.push(kind);
    }
    return told;
};
const failure = async (run) => {
    try {
        await run();
        return 'nothing';
    } catch (error) {
        return error.name;
    }
};

seen.card = (await client.getAgentCard()).name;
const asked = await client.sendMessage(say('pay the bill'));
seen.asked = state(asked);
seen.again = (await client.sendMessage({ message: { ...say('pay the bill').message, messageId: 'm1' } })).id === asked.id;
const request = asked.status.message.parts.find((part) => part.content.$case === 'data').content.value.requests[0];
seen.question = request.call.name;
const decisions = [{ data: { decisions: { [request.id]: 'approve' } } }];
seen.approved = await stream(say('', { taskId: asked.id, parts: decisions }));
seen.thanks = await stream(say('and now?'));
const got = await client.getTask({ id: asked.id });
seen.got = [state(got), got.artifacts.map((artifact) => artifact.parts[0].content.value)];
seen.listed = (await client.listTasks({ contextId: 'shop' })).tasks.map(state);
seen.cancel = await failure(() => client.cancelTask({ id: asked.id }));
seen.unknown = await failure(() => client.getTask({ id: 'm1@nowhere' }));
seen.push = await failure(() => client.createTaskPushNotificationConfig({ taskId: asked.id, url: 'http://127.0.0.1:1/' }));
console.log(JSON.stringify(seen));
