// A visit with the client of `examples/clients/typescript`, over connections that are cut.
import { Client, Refused } from "./stepfold_client.js";

declare const process: { env: Record<string, string>; exit(status: number): never };

const app = "clerk", session = "monday";
const client = new Client(process.env.SITE, process.env.TOKEN);

function assert(holds: unknown, why?: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(why));
}

async function problem(asked: Promise<unknown>, kind: string) {
  const error = await asked.then(() => undefined, (error) => error);
  assert(error instanceof Refused && error.problem.kind === kind, String(error));
}

async function visit() {
  await client.login();
  assert((await client.listApps()).apps[0].app === app);
  assert((await client.createSession(app, { id: session })).id === session);
  await problem(client.createSession(app, { id: session }), "exists");
  await client.send(app, session, { text: "pay the bill" }, "first");
  const versions: number[] = [];
  for await (const { event, data } of client.live(app, session, { after: 0 })) {
    if (event === "committed") versions.push(data.version);
    const requests = data.requests ?? data.pending ?? [];
    if (requests.length && versions.length < 4) {
      const decisions = Object.fromEntries(requests.map((request: { id: string }) => [request.id, "approve" as const]));
      await client.decide(app, session, { decisions }).catch((error) => {
        // A stream that was cut tells the requests again.
        assert(error instanceof Refused && ["decided", "not_pending"].includes(error.problem.kind), String(error));
      });
    }
    if (event === "ended") break;
  }
  assert(versions.length > 3 && versions.every((version, at) => version === at + 1), versions);
  assert((await client.readState(app, session)).values.spent === 5);
  assert((await client.listEvents(app, session, { limit: 2 })).next === 2);
  assert((await client.fork(app, session, { at: 1, id: "fork" })).parent?.id === session);
  assert((await client.compare(app, session, { with: "fork" })).common === 1);
  assert((await client.replay(app, session)).same);
  await problem(client.rewind(app, session, { to: 1, expected: 1 }), "conflict");
  console.log("done");
}

visit().catch((error) => {
  console.error(error);
  process.exit(1);
});
