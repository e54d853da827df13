// A visit with openapi-fetch and the types that openapi-typescript makes of the document.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

declare const process: { env: Record<string, string>; exit(status: number): never };

const app = "clerk", session = "monday";
const client = createClient<paths>({ baseUrl: process.env.SITE, headers: { authorization: `Bearer ${process.env.TOKEN}` } });
const path = { app, session };

function assert(holds: unknown, why?: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(why));
}

/** What was answered with 2xx. */
function good<T>({ data, error, response }: { data?: T; error?: components["schemas"]["Problem"]; response: Response }): T {
  if (error || !response.ok) throw new Error(JSON.stringify(error));
  return data as T;
}

function problem({ error, response }: { error?: components["schemas"]["Problem"]; response: Response }, status: number, kind: string) {
  assert(response.status === status && error?.kind === kind && error.status === status, [response.status, error]);
}

/** The events of the live stream from the beginning up to the first of this name. */
async function follow(last: string): Promise<string[]> {
  const stop = new AbortController();
  const { data } = await client.GET("/api/v1/apps/{app}/sessions/{session}/live", {
    params: { path, query: { after: "0" } }, parseAs: "stream", signal: stop.signal,
  });
  const events: string[] = [];
  let text = "";
  assert(data);
  const reader = (data as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    assert(!done, events);
    text += decoder.decode(value, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) events.push(line.slice(7));
        // What waits already is in the first event.
        if (line.startsWith("data: ") && JSON.parse(line.slice(6)).pending?.length) events.push("waiting");
      }
    }
    if (events.includes(last)) {
      stop.abort();
      return events;
    }
  }
}

async function visit() {
  const SESSIONS = "/api/v1/apps/{app}/sessions", SESSION = "/api/v1/apps/{app}/sessions/{session}";
  assert(good(await client.GET("/api/v1/apps")).apps[0].app === app);
  assert(good(await client.GET("/api/v1/me")).user === "ada");
  assert((await client.POST("/api/v1/login")).response.status === 204);
  const create = () => client.POST(SESSIONS, { params: { path: { app } }, body: { id: session } });
  assert(good(await create()).id === session);
  problem(await create(), 409, "exists");
  problem(await client.GET(SESSION, { params: { path: { app, session: "never" } } }), 404, "unknown_session");

  const send = () => client.POST(`${SESSION}/messages`, { params: { path, header: { "Idempotency-Key": "first" } }, body: { text: "pay the bill" } });
  assert(good(await send()).invocation === good(await send()).invocation);
  assert((await follow("waiting")).includes("waiting"));
  const detail = good(await client.GET(SESSION, { params: { path } }));
  const [request] = detail.pending;
  assert(request.call.name === "pay" && detail.status === "waiting", detail);
  const stopped = good(await client.GET(SESSIONS, { params: { path: { app }, query: { stopped: true } } }));
  assert(stopped.sessions[0].id === session);

  const decide = () => client.POST(`${SESSION}/decisions`, { params: { path }, body: { decisions: { [request.id]: "approve" } } });
  assert(good(await decide()).requests[0] === request.id);
  assert((await follow("ended")).includes("ended"));
  problem(await decide(), 409, "decided");
  problem(await client.POST(`${SESSION}/resume`, { params: { path } }), 409, "nothing_to_resume");

  const page = good(await client.GET(`${SESSION}/events`, { params: { path, query: { limit: 2 } } }));
  assert(page.events.map((row) => row.version).join() === "1,2" && page.next === 2, page);
  assert(good(await client.GET(`${SESSION}/state`, { params: { path } })).values.spent === 5);
  const forked = good(await client.POST(`${SESSION}/fork`, { params: { path }, body: { at: 1, id: "fork" } }));
  assert(forked.parent?.id === session);
  assert(good(await client.GET(`${SESSION}/compare`, { params: { path, query: { with: "fork" } } })).common === 1);
  assert(good(await client.POST(`${SESSION}/replay`, { params: { path } })).same);
  assert(good(await client.POST(`${SESSION}/cancel`, { params: { path } })).cancelled === false);
  problem(await client.POST(`${SESSION}/rewind`, { params: { path }, body: { to: 1, expected: 1 } }), 409, "conflict");
  problem(await client.DELETE(SESSION, { params: { path } }), 403, "forbidden");
  console.log("done");
}

visit().catch((error) => {
  console.error(error);
  process.exit(1);
});
