// A client of `stepfold serve` without dependencies, for browsers and Node 20 and newer.
//
// `cargo xtask clients` makes it of the OpenAPI document of the server: change `crates/server/tests/it/generated/templates/client.ts` instead.

//TYPES

/** A request that was refused. Programs branch on `problem.kind`; `problem.remedy` says whether to send it again. */
export class Refused extends Error {
  constructor(readonly problem: Problem, readonly retryAfter?: number) {
    super(`${problem.status} ${problem.kind}: ${problem.detail}`);
  }
}

/** An event of a live stream. */
export interface LiveEvent {
  id?: string;
  event: string;
  data: any;
}

interface Sent {
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** The operations of a server, with the token of a principal; without one in a page of the server itself, which has a cookie. */
export class Client {
  constructor(private readonly url: string, private readonly token?: string) {}

  /**
   * Follows a session: all that happens after a version, or after the id of an event; from now on by default. It connects again
   * where it ended, so that each commit comes once, until the session is deleted or the signal is given.
   */
  async *live(app: string, session: string, { after, signal }: { after?: number | string; signal?: AbortSignal } = {}): AsyncGenerator<LiveEvent> {
    const path = `/api/v1/apps/${part(app)}/sessions/${part(session)}/live`;
    let last: string | undefined, pause = 1_000;
    while (!signal?.aborted) {
      try {
        const response = await this.open("GET", path, { query: { after }, headers: last === undefined ? {} : { "last-event-id": last }, signal });
        for await (const event of events(response)) {
          [last, pause] = [event.id ?? last, 1_000];
          if (event.event === "bye" && event.data.reason !== "deleted") break;
          yield event;
          if (event.event === "bye") return;
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (error instanceof Refused) {
          if (error.problem.remedy !== "retry") throw error;
          pause = (error.retryAfter ?? 1) * 1_000;
        } else if (error instanceof TypeError) {
          // It is not there, or the connection was cut.
          pause = Math.min(pause * 2, 30_000);
        } else throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
//METHODS

  private async ask(method: string, path: string, sent: Sent = {}): Promise<any> {
    const response = await this.open(method, path, sent);
    const text = await response.text();
    return response.headers.get("content-type") === "application/json" ? JSON.parse(text) : text || undefined;
  }

  private async open(method: string, path: string, { query = {}, body, headers = {}, signal }: Sent): Promise<Response> {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const search = given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
    const all: Record<string, string> = { ...headers };
    if (this.token !== undefined) all.authorization = `Bearer ${this.token}`;
    if (body !== undefined) all["content-type"] = "application/json";
    const text = body === undefined ? undefined : JSON.stringify(body);
    const response = await fetch(this.url.replace(/\/$/, "") + path + search, { method, headers: all, body: text, signal });
    if (response.ok) return response;
    const retryAfter = response.headers.get("retry-after");
    throw new Refused(await response.json(), retryAfter === null ? undefined : Number(retryAfter));
  }
}

function part(name: unknown): string {
  return encodeURIComponent(String(name));
}

async function* events(response: Response): AsyncGenerator<LiveEvent> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split("\n\n");
      text = blocks.pop() ?? "";
      for (const block of blocks) {
        const fields = new Map(block.split("\n").map((line): [string, string] => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
        const event = fields.get("event");
        if (event) yield { id: fields.get("id"), event, data: JSON.parse(fields.get("data") ?? "null") };
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
