// The shapes of the API that the page reads, and what the page keeps. Not served: `tsc` reads it. That the first part fits
// the OpenAPI document is checked in `crates/cli/tests/interop/page.ts`.

/** Any JSON. */
export type Json = any;

export interface App { app: string; agent: string; description?: string | null; model: string; schema: Json; has_graph: boolean; prices?: Prices; tools?: Tool[]; refused_tools?: RefusedTool[]; agents?: { name: string; tools: Tool[]; refused_tools?: RefusedTool[] }[] }
export interface RefusedTool { toolset: string; tool: string; reason: string }
export interface Parent { id: string; version: number }
export type Status = "running" | "waiting" | "interrupted" | "failed" | "idle" | "invalid" | "sealed" | "deleted";
export interface SessionRow { id: string; version: number; oldest: number; created: string; updated: string; claimed: boolean; parent?: Parent | null; status?: Status; title?: string; forks?: number; imported?: { by: string; at: string; version: number } }
/** A session that changed, as the live stream of all of them has it. */
export interface Changed { app: string; id: string; version: number; status: Status }
export interface Call { id: string; name: string; arguments: Json }
export interface Request { id: string; call: Call; reason: Json; message?: string; inputs_from_state?: Json; times?: number; warnings?: string[]; changed?: string; asked_again?: boolean; schema?: Json; can_modify: boolean; token?: string; deadline?: string }
export interface Detail extends SessionRow { running?: string | null; unfinished: boolean; invalid?: string; budget?: { name: string; scope: string; unit: string; spent: number; reserved: number; limit: number; text: string }; pending: Request[]; inbox: { invocation: string; at: string; text: string; joins: boolean }[] }
export interface Item { call_id: string; name: string; kind: "tool" | "node"; place: number }
export interface Usage { input_tokens: number; output_tokens: number; cached_input_tokens: number; reasoning_tokens: number }
export interface CachedRequest { version: number; model?: string; tokens: number; shared_tokens: number; lost_tokens: number; broken_by?: string; input_tokens: number; cached_input_tokens: number }
export interface Outcome { call_id: string; name: string; kind: "tool" | "node"; status: string; result?: Json; error?: string; attempts: number; wrote?: string[]; elapsed_us?: number }
export interface Write { key: string; handler?: string; value?: Json; call_id?: string; tool?: string; node?: string }
export interface Row {
  version: number; kind: string; invocation: string; author: string; at: string; step?: number; elapsed_us?: number; latency_us?: number;
  usage?: Usage; cost?: string; messages: Json[]; writes: Write[]; exit?: Json; decided_by?: string; path?: Item[]; calls?: Call[]; planned?: Item[];
  asked?: { call: Call; message?: string }[]; decisions?: { request: string; decision: Json }[]; started?: Item[]; outcomes?: Outcome[];
  edited?: { results: Record<string, Json>; arguments?: Record<string, Json> }; hook?: Hook; failure?: string; summary?: string; model?: string; visible: boolean;
  /** Set by the page: what may be long was left out. */
  is_brief?: boolean;
}
/** What the hooks of a point did. */
export interface Hook { point: string; verdict: Json; answers?: (Item & { result: string })[]; wrote?: string[] }
export interface Origin { version: number; handler?: string | null; writes: number; call_id?: string; tool?: string; node?: string; kind: string }
export interface State { version: number; values: Record<string, Json>; origin?: Record<string, Origin>; changed_elsewhere?: Record<string, Origin>; error?: string }
export interface BlamedWrite extends Write { version: number; kind: string; at: string; before?: Json; after?: Json }
export interface Comparison { common: number; left: Row[]; right: Row[]; aligned: { left?: number; right?: number; same: boolean }[]; first?: string | null; changed: { key: string; before?: Json; after?: Json }[] }
export interface Shape { name: string; nodes: { name: string; agent?: string; is_tracked: boolean }[]; edges: { from: string; to: string; kind: string; of?: string }[] }
export interface Me { user: string; name: string; role: "read" | "act" | "raise_budgets" | "administer" }

/** The unfinished runs that an earlier version of the agent began. */
export interface Upgrade { refused: number; left: number; has_more: boolean; runs: { user: string; session: string; status: string; continues: boolean; left: boolean; reasons: string[] }[] }

export interface Note { text: string; bad: boolean; isOfLink?: boolean }

/** What the page knows. */
export interface Know extends OfSession {
  view: import("./router.js").View;
  ready: boolean;
  /** Why a token is asked for. */
  locked: string | null;
  me: Me | null;
  apps: App[];
  app: App | null;
  shape: Shape | null;
  sessions: SessionRow[];
  /** The cursor of more sessions. */
  more: string | null;
  search: string;
  upgrade: Upgrade | null;
  /** The sessions of each app that need a person. */
  stopped: Record<string, SessionRow[]>;
  /** What the dialog is about. */
  about?: { version: number; call: Call };
  link: "live" | "lost";
  /** What came of what the person did last. */
  note: Note | null;
  /** What the page could not read by itself. */
  trouble: Note | null;
  dialog: string | null;
}
/** What it knows of the session in view. */
export interface OfSession {
  detail: Detail | null;
  /** Whether there is no such session. */
  isAbsent: boolean;
  rows: Row[];
  oldest: number;
  version: number;
  loading: boolean;
  labels: Label[];
  forks: Fork[];
  /** What runs and is not stored yet. */
  unfinished: Unfinished;
  /** States that were read, by version. */
  states: Map<number, State>;
  /** The version at which a replay differs. */
  replay: number | null;
  comparison: ({ with: string; busy?: boolean } & Partial<Comparison>) | null;
  cache: { session: string | undefined; replies: number; requests: CachedRequest[] } | null;
  model: { at: number; busy?: boolean; found?: Seen | { error: string } } | null;
  history: { key: string; at: number; writes?: BlamedWrite[] } | null;
  /** The commits after which those inside are hidden. */
  collapsed: Set<number>;
}
export interface Unfinished {
  text: string;
  reasoning: string;
  calls: Record<string, { name?: string; arguments: string }>;
  tools: Record<string, { name: string; since: number; report?: Json; status?: string }>;
  nodes: Record<string, { running: number }>;
}
export interface Label { label: string; version: number }
export interface Fork { id: string; version: number; created: string }
/** What the model was shown. */
export interface Seen {
  version: number; reply?: number; step: number; path?: Item[]; agent: string; model: string; instructions?: string;
  messages: { source: string; index?: number; message: Message; tokens: number }[]; conversation: number; left_out: Gap[]; reasons: string[]; changes?: { message?: number; change: string }[];
  tools: { name: string; description: string; parameters: Json; tokens: number }[]; tool_choice: Json; output?: { mode: string; schema?: Json }; params: Json;
  tokens: { instructions: number; messages: number; tools: number; total: number }; usage?: Usage; cost?: string; unknown: { part: string; why: string }[];
}
export interface Message { role: string; parts: Json[] }
export interface Gap { from: number; to: number; summarised: boolean; messages: Message[] }
export interface Prices { currency: string; models: Record<string, { input: string; cached_input: string; output: string }> }
export interface Tool { name: string; effect: string; approval: string }
