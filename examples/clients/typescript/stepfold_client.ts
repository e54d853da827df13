// A client of `stepfold serve` without dependencies, for browsers and Node 20 and newer.
//
// `cargo xtask clients` makes it of the OpenAPI document of the server: change `crates/server/tests/it/generated/templates/client.ts` instead.

/** An accepted request. */
export interface Accepted {
  /** The invocation. With an idempotency key, the same for each repetition. */
  invocation: string;
}

/** The result of adding cases. */
export interface AddedCases {
  /** The cases that were added. One whose name is there is not added again. */
  added: number;
  /** The turns that cannot be cases, with the reasons. */
  unsuited: string[];
}

/** An app, with what its agent is made of. */
export interface AppDetail {
  /** The name of the agent. */
  agent: string;
  /** The agents inside, at all depths. */
  agents: InsideRow[];
  /** The name, as in paths. */
  app: string;
  /** Its purpose. */
  description: string | null;
  /** The nodes and edges, if it is a graph: as `/graph`. */
  graph?: any;
  /** Whether `/graph` has the shape of its graph. */
  has_graph: boolean;
  /** The template of its instructions. */
  instructions?: string | null;
  /** Whether its tools are listed at each step: then `tools` has none. */
  lists_tools: boolean;
  /** The model. */
  model: string;
  /** The models, each once: those of the agent, of its summaries, and of the agents inside. */
  models: ModelOfRow[];
  /** The output that its runs end with. */
  output?: OutputRow | null;
  /** The prices of the models. */
  prices?: PricesRow | null;
  /** The tools that the last list left out, such as those of an MCP server that no model can be offered. None before it. */
  refused_tools: RefusedToolRow[];
  /** The keys of its state: their JSON Schemas, merge handlers (reducers) and descriptions. */
  schema: any;
  /** The tools that it offers at every step. */
  tools: ToolRow[];
}

/** An app: an agent with its sessions. */
export interface AppRow {
  /** The name of the agent. */
  agent: string;
  /** The name, as in paths. */
  app: string;
  /** Its purpose. */
  description: string | null;
  /** Whether `/graph` has the shape of its graph. */
  has_graph: boolean;
  /** The model. */
  model: string;
  /** The keys of its state: their JSON Schemas, merge handlers (reducers) and descriptions. */
  schema: any;
}

/** The apps of a server. */
export interface Apps {
  apps: AppRow[];
}

/** The newest writes of a key, oldest first. */
export interface BlameRow {
  /** The number of all that do. */
  count: number;
  /** The version to read the earlier ones with, as `before`; absent if there are none. */
  earlier?: number | null;
  key: string;
  /** The visible writes, in the versions that are kept, up to the version that was asked for. */
  writes: BlamedWrite[];
}

/** A write of a key. */
export interface BlamedWrite {
  /** The value after it; absent if it is unset, or unknown. */
  after?: any;
  /** When it was stored (RFC 3339). */
  at: string;
  /** The value before it; absent if it was unset, or unknown, as of keys that other sessions write too. */
  before?: any;
  /** As in [`ItemRow`]. */
  call_id?: string;
  /** The merge handler (reducer); absent for a removal. */
  handler?: string | null;
  key: string;
  /** The kind of the commit. */
  kind: string;
  node?: string | null;
  tool?: string | null;
  /** The value that is merged; absent for a removal. */
  value?: any;
  version: number;
}

/** The budget that a run waits for: it continues in the next window, or is resumed under a higher limit, or abandoned. */
export interface BudgetQuestionRow {
  /** The limit. */
  limit: number;
  /** The name of the budget. */
  name: string;
  /** The amount that the request needs, by its estimate. */
  requested: number;
  /** The amount that is reserved for requests under way. */
  reserved: number;
  /** The sharers of the budget: a run, session, user, app or group. */
  scope: string;
  /** The spent amount. */
  spent: number;
  /** The question in words. */
  text: string;
  /** The unit of the amounts: `usd` for billionths of a dollar, `tokens` or `requests`. */
  unit: string;
  /** The end of the window (RFC 3339); absent if it has none. */
  until?: string | null;
}

/** A budget in its current window. */
export interface BudgetRow {
  /** The limit as it is declared, and holds in the next window. */
  declared: number;
  /** The limit that holds in this window. */
  limit: number;
  /** The name. */
  name: string;
  /** The amount that is reserved for requests under way. */
  reserved: number;
  /** The sharers of the counter: a run, session, user, principal, app or group. */
  scope: string;
  /** The spent amount. */
  spent: number;
  /** The unit of the amounts: `usd` for billionths of a dollar, `tokens` or `requests`. */
  unit: string;
  /** The end of the window (RFC 3339); absent if it has none. */
  until?: string | null;
  /** The window in words: `ever`, `day in Europe/Berlin`. */
  window: string;
}

/** Budgets. */
export interface BudgetRows {
  budgets: BudgetRow[];
}

/** A request beside the one before it. */
export interface CachedRequestRow {
  /** What broke the prefix, in words; absent if nothing did. */
  broken_by?: string | null;
  /** Of these, the tokens that the provider read from its cache. */
  cached_input_tokens: number;
  /** The input tokens, as the provider reported them. */
  input_tokens: number;
  /** The tokens of the request before that are not shared. */
  lost_tokens: number;
  /** The model, as the provider named it. */
  model?: string | null;
  /** Of these, the tokens of the messages that are the same as in the request before. */
  shared_tokens: number;
  /** An estimate of the tokens of its messages. */
  tokens: number;
  /** The version of the reply. */
  version: number;
}

/** A call of a tool. */
export interface CallRow {
  /** The arguments: an object, or text if the model sent no valid one. */
  arguments: any;
  id: string;
  /** The tool. */
  name: string;
}

/** Whether a run was cancelled. */
export interface CancelRow {
  /** Whether the run was cancelled: false if there was no unfinished run, or it had ended before. */
  cancelled: boolean;
}

/** A changed value. */
export interface ChangeRow {
  /** Absent if it is unset. */
  after?: any;
  /** Absent if it was unset. */
  before?: any;
  key: string;
}

/** A version after a change. */
export interface Changed {
  /** The version of the session after it. */
  version: number;
}

/** The differences of two sessions. */
export interface CompareRow {
  /** Both side by side: commits that say the same, whatever the ids of their calls, stand in one row. */
  aligned: PairRow[];
  /** The changes of the state from this session to the other one. */
  changed: ChangeRow[];
  /** The newest version that both have; 0 if they share no commit. */
  common: number;
  /** The first difference, in words. */
  first: string | null;
  /** The later commits of this session. */
  left: EventRow[];
  /** The later commits of the other one. */
  right: EventRow[];
}

/** The comparison of two experiments. */
export interface ComparisonRow {
  losses: number;
  /** The cases that only the baseline passed. */
  lost: string[];
  /** The verdict in words, with the interval and the test. */
  text: string;
  ties: number;
  /** The cases of the baseline that say nothing about the candidate. */
  unpaired: string[];
  /** The number of all unpaired cases. */
  unpaired_count: number;
  /** `better`, `no_difference`, `worse` or `unknown`; in mode `replay` `agrees` in place of better, and `differs` in place of worse. */
  verdict: string;
  wins: number;
  /** The cases that only the candidate passed: the first 1,000 of them, as in the following lists. */
  won: string[];
}

/** A stored outcome. */
export interface Completed {
  /** Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for `"with_changed_agent": true` in `POST …/resume`. Absent if it continues. */
  not_continued?: string[];
  /** The requests that it has answered. */
  requests: string[];
  /** The version of the session with it. */
  version: number;
}

/** Stored decisions. */
export interface Decided {
  /** The author that is recorded; of a repetition, the first one. */
  by: string | null;
  /** The invocation that began the run, the same for each repetition. */
  invocation: string;
  /** Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for `"with_changed_agent": true` in `POST …/resume`. Absent if it continues. */
  not_continued?: string[];
  /** The requests. */
  requests: string[];
  /** The version of the session with the decisions. */
  version: number;
}

/** A decision. */
export interface DecidedRow {
  /** `approve`, `reject` with its reason, `modify` with the arguments, and others. */
  decision: any;
  /** The id of the request. */
  request: string;
}

/** A decision about a request. */
export type DecisionRow = "approve" | { reject: Rejection } | { modify: Modification };

/** The changes between two versions. */
export interface DiffRow {
  /** The changed values. */
  changed: ChangeRow[];
  from: number;
  /** The messages that the second has and the first has not. */
  messages: any[];
  to: number;
}

/** The changes of an edit beside values, which are its writes. */
export interface EditedRow {
  /** The new arguments of calls that had not begun, by call. */
  arguments?: Record<string, any>;
  /** The new results, by call. */
  results: Record<string, any>;
}

/** The end of a run. */
export interface EndRow {
  /** The exit reason. */
  exit: any;
}

/** A case of a data set that was taken from erased content, or is an erased user's own. */
export interface ErasedCaseRow {
  case: string;
  data_set: string;
  /** The user with the data set. */
  user: string;
}

/** An event that was erased, or would be. */
export interface ErasedVersion {
  session: string;
  version: number;
}

/** Records of erasures, oldest first. */
export interface ErasurePage {
  erasures: ErasureRecordRow[];
  /** The beginning of the next page; none at the end. */
  next?: number | null;
}

/** The record of an erasure: it has neither content nor the id of a user. */
export interface ErasureRecordRow {
  /** The time (RFC 3339). */
  at: string;
  /** The administrator who erased. */
  by: string;
  /** The number of erased events. */
  events: number;
  id: string;
  /** `events`, `session` or `user`. */
  kind: string;
  reason: string;
  /** The number of sessions that were erased, or of which events were. */
  sessions: number;
}

/** The result of an erasure. */
export interface ErasureRow {
  /** The budgets of the user that are erased. */
  budgets: number;
  /** The erased cases of data sets that were taken from it, with their results, and all of an erased user's own data sets. */
  cases: ErasedCaseRow[];
  /** Whether nothing was erased. */
  dry_run: boolean;
  /** The number of erased events. */
  events: number;
  /** Whether there was anything to erase: not of an unknown user, nor of what was erased before. */
  found: boolean;
  /** The id of the erasure, for a repeat of the request after a vacuum that failed; none of a dry run. */
  id?: string | null;
  /** Whether the user had a key in the ring of the store, which is destroyed. */
  key: boolean;
  /** The number of the erased results of such cases. */
  results: number;
  /** The sessions that are erased, or of which events are. */
  sessions: string[];
  /** The records of spend that no longer name the user. */
  spend: number;
  /** The erased keys of `user:`. */
  user_keys: string[];
  /** Whether deleted bytes were removed from the files of the store. */
  vacuumed: boolean;
  /** The erased events, unless whole sessions are erased. */
  versions: ErasedVersion[];
}

/** A commit of a session. */
export interface EventRow {
  /** The calls about which a decision is requested. */
  asked?: QuestionRow[];
  /** When it was stored (RFC 3339). */
  at: string;
  author: string;
  /** The calls of a reply. */
  calls?: CallRow[];
  /** Their cost in US dollars, exactly, in decimal: absent without a price of the model. */
  cost?: string | null;
  /** The author of decisions, or of an edit. */
  decided_by?: string | null;
  /** The decisions. */
  decisions?: DecidedRow[];
  edited?: EditedRow | null;
  /** Microseconds of the run until then. */
  elapsed_us?: number | null;
  /** The exit reason of the run, at its last event. */
  exit?: any;
  /** Why the run failed, of a commit that says so: the run can be resumed. */
  failure?: string | null;
  /** The effects of the hooks of a point. */
  hook?: HookRow | null;
  /** The invocation that it belongs to. */
  invocation: string;
  /** Its kind: `began`, `replied`, `answered`, `decided`, `rewind`, and others. */
  kind: string;
  /** Microseconds since the commit before it in the same run. */
  latency_us?: number | null;
  /** The messages that it added to the conversation. */
  messages: any[];
  /** The model that replied. */
  model?: string | null;
  /** The outcomes of calls or branches. */
  outcomes?: OutcomeRow[];
  /** The items inside of which it happened, outermost first: an agent that is a tool or a node. `kind`, `calls`, `outcomes` and `messages` are then those of the run inside. */
  path?: ItemRow[];
  /** The branches of a superstep of a graph. */
  planned?: ItemRow[];
  /** The calls or branches that are marked as started, since they must not run twice; of `interrupted`, those whose outcome is unknown. */
  started?: ItemRow[];
  /** The step of the run, from 1; absent for an event of no run. */
  step?: number | null;
  /** A summary of the conversation, or why there is none. */
  summary?: string | null;
  /** Tokens of the model's reply, or of a summary. */
  usage?: UsageRow | null;
  /** The version of the session after it. */
  version: number;
  /** Whether it counts: events that were rewound do not. */
  visible: boolean;
  /** The writes to the state, in order, as they are merged by their handlers. */
  writes: WriteRow[];
}

/** A page of commits. */
export interface EventRows {
  /** The commits, in order. */
  events: EventRow[];
  /** The version to read on from, as `after`; absent on the last page. */
  next?: number | null;
  /** The oldest version that is kept. */
  oldest: number;
  /** The version of the session. */
  version: number;
}

/** Data sets and experiments. */
export interface ExperimentList {
  /** The names of the data sets. */
  data_sets: string[];
  /** The experiments. */
  experiments: ExperimentRow[];
  /** The names of reports that cannot be read. */
  unreadable: string[];
}

/** An experiment, with its counts. */
export interface ExperimentRow {
  /** The name of the candidate. */
  candidate: string;
  /** The results so far: one for each case and repeat. */
  cases: number;
  /** The part of the cases that could be evaluated. */
  coverage: number | null;
  /** Cases that could not be tried. */
  errors: number;
  /** The number of results that it has at its end. */
  expected: number;
  /** Cases of which an expectation does not hold. */
  failed: number;
  /** Cases that say nothing: the record has no answer to a call. */
  left_record: number;
  /** The mode: `replay`, `next`, `roll`, `live` or `recorded`. */
  mode: string;
  /** The name. */
  name: string;
  /** The part of the tried cases that passed: one with an error has not, one that says nothing does not count. */
  pass_rate: number | null;
  /** Cases of which every expectation holds. */
  passed: number;
  /** Cases that do not suit the mode. */
  skipped: number;
  /** `waiting`, `running`, `done` or `failed`. One that was interrupted is `running`: it is continued. */
  status: string;
  /** The replies of the model. */
  steps: number;
  /** The tokens, in and out. */
  tokens: number;
  /** Why it failed: it cannot be run. */
  why: string | null;
}

/** An experiment with its results. */
export interface ExperimentRows {
  /** The comparison with the baseline, if it has ended. */
  comparison: ComparisonRow | null;
  experiment: ExperimentRow;
  /** The beginning of the next page; none at the end. */
  next?: number | null;
  /** The results so far, in the order of the cases: at most 500 of them, or fewer with long timelines. */
  results: ResultRow[];
}

/** The form of an export. - `json`: All of it, which can be imported. - `test`: A scripted test, in Rust. */
export type ExportForm = "json" | "test";

/** A session as a file. */
export interface ExportRowInput {
  /** The app that it is of. */
  app: string;
  /** When it was created (RFC 3339). */
  created: string;
  /** All commits, those that were rewound as well. */
  events: StoredRow[];
  /** Its own values at the oldest version. */
  first: Record<string, any>;
  /** Always `stepfold.session`. */
  format: string;
  /** The version of the format: 1. */
  format_version: number;
  /** The id that it had. */
  id: string;
  /** The labels of its versions. */
  labels?: ExportedLabel[];
  /** The oldest version that it can go back to. One other than 0 cannot be imported. */
  oldest: number;
  /** The session that it was forked from. Its history up to there is in `events`. */
  parent?: ParentRow | null;
  /** The values that it shares with other sessions (`user:`, `app:`), for readers. They are not imported. */
  shared?: Record<string, any>;
  /** Its own values at the newest one: what the events add up to. */
  values: Record<string, any>;
  /** The number of its commits. */
  version: number;
}

/** A label of an exported session. */
export interface ExportedLabel {
  label: string;
  version: number;
}

/** A fork, with or without changes. A run that is open at the version waits in it until it is resumed, or continues at once. */
export interface Fork {
  /** Arguments of calls that have not begun at the version, by call: the fork runs these calls with them. */
  arguments?: Record<string, any>;
  /** The version; the newest by default. */
  at?: number | null;
  /** The id of the fork; a random one by default. */
  id?: string | null;
  /** Results of calls that are changed in the fork, by call. */
  results?: Record<string, any>;
  /** Continues the run that is open at the version at once, as `/resume` does; by default it waits. Without an effect if no run is open there, or if it waits for a decision. */
  run?: boolean;
  /** Values that are changed in the fork, instead of those at the version. */
  set?: Record<string, any>;
}

/** A fork. */
export interface ForkRow {
  /** When it was made (RFC 3339). */
  created: string;
  id: string;
  /** The version that it begins with. */
  version: number;
}

/** The forks of a session. */
export interface ForkRows {
  /** The existing forks, in the order in which they were made; not the forks of these. */
  forks: ForkRow[];
}

/** A session that was forked. */
export interface ForkedRow {
  /** Whether a worker has it, in any process. */
  claimed: boolean;
  /** When it was created (RFC 3339). */
  created: string;
  /** The number of sessions that were forked from it, and are there: absent in answers about changes. */
  forks?: number | null;
  /** The id. */
  id: string;
  /** The import of it, or of the session that it was forked from: absent for other sessions, and in answers about changes. */
  imported?: ImportedRow | null;
  /** Why this version of the agent does not continue the run of the fork, which is to run, in words: the run waits for a version that does, or for `"with_changed_agent": true` in `POST …/resume`. Absent if it continues. */
  not_continued?: string[];
  /** The oldest version that it can go back to. */
  oldest: number;
  /** The session that it was forked from. */
  parent: ParentRow | null;
  /** Its status; absent in answers about changes. */
  status?: Status | null;
  /** The beginning of its first message, in lists. */
  title?: string | null;
  /** When it was written last (RFC 3339). */
  updated: string;
  /** The number of its commits. */
  version: number;
}

/** A message that a search has found. */
export interface FoundMessageRow {
  /** The time of the commit (RFC 3339). */
  at: string;
  /** The part of its text with most of the words. */
  excerpt: string;
  /** Its place among the messages of the commit. */
  message: number;
  /** The role: `user`, `assistant` or `tool`. */
  role: string;
  session: string;
  /** The tool whose result it is. */
  tool: string | null;
  /** The version of its commit. */
  version: number;
}

/** A page of found messages. */
export interface FoundMessages {
  /** The messages, the best first. */
  found: FoundMessageRow[];
  /** `after` of the next page, if there may be more. */
  next: number | null;
}

/** The groups by which requests are added up. - `session`: By session, with its user: `ada/s1`. - `user`: By user. - `model`: By the model that answered. - `day`: By day, in UTC. */
export type GroupRow = "session" | "user" | "model" | "day";

/** A call that a hook has answered. */
export interface HookAnswerRow {
  /** The id of the call; of a branch the node, with `#` and its place if it is one of several. */
  call_id: string;
  kind: ItemKind;
  /** The tool or the node. */
  name: string;
  /** The place among those of its step, from 0. */
  place: number;
  /** The result for the model. */
  result: string;
}

/** The effects of the hooks of a point: the messages and the writes are those of the commit. */
export interface HookRow {
  /** Calls that do not run, and what the model is told instead. */
  answers?: HookAnswerRow[];
  /** The point, as in `before tool`. */
  point: string;
  /** `proceed`, `stop` with its reason, or `go_on`: the run continues instead of ending. */
  verdict: any;
  /** The keys of writes that are merged with those of a call, before them. */
  wrote?: string[];
}

/** The mark of an imported session. Its first commits are those of the file, with the authors and decisions that it names. */
export interface ImportedRow {
  /** When (RFC 3339). */
  at: string;
  /** The name of the principal. */
  by: string;
  /** The newest version that came with the file. */
  version: number;
}

/** An agent inside of another one. */
export interface InsideRow {
  /** The tools and nodes inside of which it is, the outermost first. */
  inside_of: string[];
  /** The template of its instructions. */
  instructions?: string | null;
  /** Whether its tools are listed at each step: then `tools` has none. */
  lists_tools: boolean;
  model: string;
  name: string;
  /** The output that its runs end with. */
  output?: OutputRow | null;
  /** The tools that the last list left out, such as those of an MCP server that no model can be offered. None before it. */
  refused_tools: RefusedToolRow[];
  /** The tools that it offers at every step. */
  tools: ToolRow[];
}

/** The kind of an item. */
export type ItemKind = "tool" | "node";

/** A call or a branch. */
export interface ItemRow {
  /** The id of the call; of a branch the node, with `#` and its place if it is one of several. */
  call_id: string;
  kind: ItemKind;
  /** The tool or the node. */
  name: string;
  /** The place among those of its step, from 0. */
  place: number;
}

/** A label: the name of a version. */
export interface LabelRow {
  label: string;
  version: number;
}

/** The labels of a session. */
export interface LabelRows {
  /** In the order of their versions. */
  labels: LabelRow[];
}

/** A label that was set. */
export interface LabelSet {
  /** The version that it named before; absent if there was none. */
  before?: number | null;
  label: string;
  version: number;
}

/** The version that a label names. */
export interface Labelled {
  version: number;
}

/** Messages that a model was not shown. */
export interface LeftOutRow {
  /** The place of the first one in the whole conversation, from 0. */
  from: number;
  messages: any[];
  /** Whether the summary stands for all of them. */
  summarised: boolean;
  /** The place after the last one. */
  to: number;
}

/** The caller. */
export interface MeRow {
  /** The name that decisions are recorded with. */
  name: string;
  /** `read`, `act` or `administer`. */
  role: string;
  user: string;
}

/** The name of a mode. - `replay`: Replays the recorded turns without a model. - `next`: Asks for each recorded reply once. - `roll`: Runs whole turns, whose calls the record answers. - `live`: Runs whole turns with real tools. - `recorded`: Evaluates the recorded turns themselves. */
export type ModeName = "replay" | "next" | "roll" | "live" | "recorded";

/** A model, and the agents that have it. */
export interface ModelOfRow {
  agents: string[];
  model: string;
}

/** The request that a model was sent. */
export interface ModelRow {
  agent: string;
  /** The changes of the conversation that the model's server requires. */
  changes?: WireChangeRow[];
  /** The number of messages of the whole conversation. */
  conversation: number;
  /** Their cost in US dollars, exactly, in decimal. */
  cost?: string | null;
  /** The instructions, rendered. */
  instructions?: string | null;
  /** The messages of the conversation that were left out. */
  left_out: LeftOutRow[];
  /** The messages of the request, in order. */
  messages: ShownRow[];
  /** The model of the agent. */
  model: string;
  /** The output that was requested, if one was. */
  output?: OutputRow | null;
  /** The parameters of the model, such as its temperature. */
  params: any;
  /** The items inside of which the model was asked, the outermost first. */
  path?: ItemRow[];
  /** Why they were, in words. */
  reasons: string[];
  /** The version with the reply; absent if the model has not replied, for what it would be shown. */
  reply?: number | null;
  /** The step of its run, from 1. */
  step: number;
  /** An estimate of the tokens, by the counter of the policies that trim. */
  tokens: TokensRow;
  /** `auto`, `none`, `required`, or the name of a tool. */
  tool_choice: any;
  /** The tools that it was offered. */
  tools: OfferedRow[];
  /** The parts that are not in the record, each with the reason. */
  unknown: UnknownRow[];
  /** The tokens that the provider has counted. */
  usage?: UsageRow | null;
  /** The version that was asked for. */
  version: number;
  /** The body of the request, as the model's server reads it; only on request, and only of a model with a server. */
  wire?: any;
}

/** With what a call runs. */
export interface Modification {
  /** The arguments, or the answer to the question of a tool. */
  arguments: any;
}

/** The turns to be added to a data set. */
export interface NewCases {
  /** The version of the turn; all turns by default. */
  at?: number | null;
  /** The data set, which is created. */
  data_set: string;
  /** The session. */
  session: string;
  /** The user of the session, for administrators. The data set is the principal's. */
  user?: string | null;
}

/** Decisions about requests. */
export interface NewDecisions {
  /** The decisions, by the ids of the requests. */
  decisions: Record<string, DecisionRow>;
  /** Continues the run even if the agent has changed since it began. */
  with_changed_agent?: boolean;
}

/** The content to be erased, and the reason. */
export interface NewErasure {
  /** A call of the session, with its arguments and its result. */
  call?: string | null;
  /** Lists what would be erased, and erases nothing. */
  dry_run?: boolean;
  /** Confirms that everything of the user is erased. */
  everything?: boolean;
  /** The id of the erasure; a new one by default. A repeated request with the same id, reason and administrator is recorded once, and has the answer of the first; one that would erase more is refused. */
  id?: string | null;
  /** The reason, which is recorded. It must not contain what is erased. */
  reason: string;
  /** The session; without it, everything of the user is erased, and `everything` must be true. */
  session?: string | null;
  /** The user whose content it is. */
  user: string;
  /** Also removes deleted bytes from the files of the store, which takes time, and makes writers wait. */
  vacuum?: boolean;
  /** The versions of events of the session; without them and `call`, the whole session is erased. */
  versions?: number[];
}

/** An experiment to be run. */
export interface NewExperiment {
  /** The pure tools that may run where the record has no answer; in mode `live`, the tools that may run at most once. */
  allow?: string[];
  /** The data set. */
  data_set: string;
  /** Other instructions. */
  instructions?: string | null;
  /** Whether expectations with a rubric are judged, which needs an administrator and `max_requests`. */
  judge?: boolean;
  /** The most requests to models: 1,000 by default, and at most so many without `administer`. */
  max_requests?: number | null;
  /** The mode: `roll` by default. `live` needs an administrator and `max_requests`. */
  mode?: ModeName;
  /** Another model, for administrators. */
  model?: string | null;
  /** The name. A report of the same name is replaced. */
  name: string;
  /** The number of times that each case is tried; once by default, at most 20. */
  repeats?: number | null;
  /** Settings of the agent file, as `limits.steps=4`, for administrators. */
  set?: string[];
}

/** An image or a file of a message. */
export interface NewFile {
  /** The content, in Base64. */
  data: string;
  /** The media type, such as `image/png` or `application/pdf`. An image is a PNG, JPEG, GIF or WebP. */
  media_type: string;
  /** The name of the file. */
  name?: string | null;
}

/** A raise of a budget's limit. */
export interface NewLimit {
  /** The name of the budget. */
  budget: string;
  /** The limit, in the budget's unit: billionths of a dollar, tokens or requests. */
  limit: number;
  /** The session whose budget it is, or whose run waits for it: the run continues then. */
  session?: string | null;
  /** The user whose budget it is; that of the principal by default. */
  user?: string | null;
}

/** A message of the user. */
export interface NewMessage {
  /** Images and files, after the text. */
  files?: NewFile[];
  /** The text; it may be empty if there are files. */
  text: string;
  /** Values to write to the state first, by key, merged by their handlers (reducers). */
  values?: Record<string, any>;
  /** The treatment of the message while a run is active in the session; by default that of the app. */
  when_busy?: WhenBusy | null;
}

/** An outcome that comes later. */
export interface NewOutcome {
  /** Why the call failed, instead of a result. */
  error?: string | null;
  /** The result, as the tool would have given it; null is a result. */
  result?: any;
  /** The token of the request. */
  token: string;
}

/** A new session. */
export interface NewSession {
  /** The id; a random one by default. */
  id?: string | null;
  /** Initial values of the state, by key. */
  values?: Record<string, any>;
}

/** The tokens of a model. */
export interface OfModelRow {
  cost?: string | null;
  /** The name that the provider has reported, or the agent's. */
  model: string;
  replies: number;
  usage: UsageRow;
}

/** A tool that a model was offered. */
export interface OfferedRow {
  description: string;
  /** The SHA-256 of what the model was told of it. */
  digest: string;
  name: string;
  /** The JSON Schema of the arguments. */
  parameters: any;
  /** An estimate. */
  tokens: number;
}

/** An error in the form of OpenAI. */
export interface OpenAiError {
  /** The kind of problem. */
  code: string;
  /** The failure, and the remedy. */
  message: string;
  /** Always null. */
  param: string | null;
  /** The type of the error: of the client, of its rights, of a limit, or of the server. */
  type: string;
}

/** The origin of a value. */
export interface OriginRow {
  /** As in [`ItemRow`]. */
  call_id?: string;
  /** The merge handler (reducer) of that write. */
  handler: string | null;
  /** The kind of the commit with the last write. */
  kind: string;
  node?: string | null;
  tool?: string | null;
  /** The version of the last write. */
  version: number;
  /** The number of writes. */
  writes: number;
}

/** The outcome of a call or a branch. */
export interface OutcomeRow {
  /** The number of attempts; 0 if it was not started. */
  attempts: number;
  /** As in [`ItemRow`]. */
  call_id: string;
  error?: string | null;
  kind: ItemKind;
  name: string;
  /** The result for the model; null for a branch, an error, or one that stands in a later message. */
  result?: any;
  status: OutcomeStatus;
  /** The keys that it wrote. */
  wrote?: string[];
}

/** The status of the outcome of a call or a branch. - `cancelled`: The run was cancelled before or while it ran. - `unknown`: Whether it happened is unknown. */
export type OutcomeStatus = "done" | "failed" | "rejected" | "cancelled" | "unknown";

/** A requested output. */
export interface OutputRow {
  /** The way it is requested: `schema` (by the response format), `tool`, or `prompt`. */
  mode: string;
  /** Its JSON Schema. */
  schema: any;
}

/** A row of two sessions side by side. */
export interface PairRow {
  /** The version in this session, if it has a commit here. */
  left?: number | null;
  /** The version in the other one. */
  right?: number | null;
  /** Whether both say the same. */
  same: boolean;
}

/** The origin of a fork. */
export interface ParentRow {
  id: string;
  version: number;
}

/** The prices of models. */
export interface PricesRow {
  /** Always `USD`. */
  currency: string;
  /** By model: `input`, `output`, and perhaps `cached_input` and `cache_write`, each for a million tokens. */
  models: any;
}

/** A problem document. */
export interface Problem {
  /** Whether the message of the request was stored nevertheless. */
  accepted?: boolean;
  /** The version of the session, of a conflict. */
  actual?: number | null;
  /** The failure, and the remedy. */
  detail: string;
  /** The same in the form of OpenAI, from its operations. */
  error?: OpenAiError | null;
  /** The version that the request expected, of a conflict. */
  expected?: number | null;
  /** The kind of problem: what programs branch on. */
  kind: string;
  /** The ids of the requests that wait for decisions. */
  pending?: string[];
  /** The remedy: `retry` the same request soon, `wait` until someone has acted, or `never`. */
  remedy: string;
  /** The status of the response. */
  status: number;
  /** The kind of problem, in words. */
  title: string;
  /** A URI of the kind of problem: `urn:stepfold:problem:` and the kind. */
  type: string;
}

/** The requests to the model in a session. */
export interface PromptCacheRow {
  /** The requests of its own runs, oldest first. */
  requests: CachedRequestRow[];
}

/** A call about which a decision is requested. What waits now is in the session's `pending`. */
export interface QuestionRow {
  call: CallRow;
  /** The question of a tool. */
  message?: string | null;
}

/** A raise of a budget's limit. */
export interface RaiseRow {
  /** The time (RFC 3339). */
  at: string;
  /** The name of the budget. */
  budget: string;
  /** The principal that raised it. */
  by: string;
  /** The limit before. */
  from: number;
  /** The sharers of the counter: a run, session, user, principal, app or group. */
  scope: string;
  /** The limit after. */
  to: number;
  /** The unit of the limits: `usd` for billionths of a dollar, `tokens` or `requests`. */
  unit: string;
  /** The user whose budget it is; absent for one that users share. */
  user?: string | null;
}

/** Raises of budgets. */
export interface RaiseRows {
  /** The raises, newest first; the newest 1,000. */
  raises: RaiseRow[];
}

/** A raised budget. */
export interface RaisedRow {
  /** Whether the run of the named session continues at once. Runs of other sessions that wait for the budget are continued by the recovery of `serve` or `work`, within seconds. */
  continues: boolean;
  /** The limit as it is declared, and holds in the next window. */
  declared: number;
  /** The limit that holds in this window. */
  limit: number;
  /** The name. */
  name: string;
  /** Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for `"with_changed_agent": true` in `POST …/resume`. Absent if it continues. */
  not_continued?: string[];
  /** The amount that is reserved for requests under way. */
  reserved: number;
  /** The sharers of the counter: a run, session, user, principal, app or group. */
  scope: string;
  /** The spent amount. */
  spent: number;
  /** The unit of the amounts: `usd` for billionths of a dollar, `tokens` or `requests`. */
  unit: string;
  /** The end of the window (RFC 3339); absent if it has none. */
  until?: string | null;
  /** The window in words: `ever`, `day in Europe/Berlin`. */
  window: string;
}

/** A tool that is not offered. */
export interface RefusedToolRow {
  /** Why it is not offered. */
  reason: string;
  /** The name of the tool there. */
  tool: string;
  /** The toolset, such as the name of the MCP server. */
  toolset: string;
}

/** Why a call does not run. */
export interface Rejection {
  /** The reason, for the model. */
  reason?: string;
}

/** The result of a replay. */
export interface ReplayRow {
  /** The first divergence, in words. */
  first_divergence: string | null;
  /** The invocation whose run diverges. */
  invocation: string | null;
  /** The number of replayed runs, if all are the same. */
  runs: number | null;
  /** Whether each run is as it was recorded. */
  same: boolean;
  /** The version of the commit that differs; the last one of the run if only its end does. */
  version: number | null;
}

/** A request that waits for a decision. */
export interface RequestRow {
  /** Whether the call was asked about before, under another id: with other arguments or values, or as another tool. */
  asked_again?: boolean;
  /** The call. */
  call: CallRow;
  /** Whether it can be approved with other arguments. */
  can_modify: boolean;
  /** The difference of the tool from the one that was approved before, line by line, where its server lists it. */
  changed?: string | null;
  /** When it is decided by time (RFC 3339). */
  deadline?: string | null;
  /** The id that a decision names. It has a digest of what is asked, so that it is used for nothing else. */
  id: string;
  /** The values that the state adds to the arguments, by parameter. */
  inputs_from_state?: any;
  /** The question of a tool. */
  message?: string | null;
  /** Why it is asked: `rule`, `may_have_happened`, `node`, `input`, or `later` (for no person: an outcome comes). */
  reason: any;
  /** The JSON Schema that modified arguments must fit, if it is known. */
  schema?: any;
  /** The request as text for a person: all of the arguments, what the state adds, and warnings. Nothing in it is invisible. */
  text: string;
  /** The number of equal calls of the reply that it is about, if more than one. */
  times?: number | null;
  /** The token with which an outcome is delivered that comes later. */
  token?: string | null;
  /** Warnings for the approver: field names that look like other names, characters that hide or reorder text. */
  warnings?: string[] | null;
}

/** Changes of calls. */
export interface ResultEdit {
  /** The new arguments of calls that have not begun, by call. */
  arguments?: Record<string, any>;
  /** The version that the session has, as the client knows it; another one is a conflict. */
  expected: number;
  /** The new results, by call. */
  results?: Record<string, any>;
}

/** The result of a case. */
export interface ResultRow {
  case: string;
  /** The index of the first line in which they differ. */
  differs_at: number | null;
  /** The turn of the candidate. */
  made: string[];
  /** The recorded turn, line by line, if the case has not passed. */
  recorded: string[];
  /** The number of the repeat, from 0. */
  repeat: number;
  /** `passed`, `failed`, `left_record`, `error` or `skipped`. */
  status: string;
  steps: number;
  tokens: number;
  /** Why it did not pass. */
  why: string;
}

/** A resumption. */
export interface Resumption {
  /** Continues the run even if the agent has changed since it began. */
  with_changed_agent?: boolean;
}

/** A rewind. */
export interface Rewind {
  /** The version that the session has, as the client knows it; another one is a conflict. */
  expected: number;
  /** The version to go back to. */
  to: number;
}

/** The result of a run. */
export interface RunRow {
  /** The budget that it waits for, if it does. */
  budget?: BudgetQuestionRow | null;
  /** The exit reason, if it has ended. */
  exit?: any;
  /** The invocation: the idempotency key, if there was one. */
  invocation: string;
  /** The requested output, if the agent has one. */
  output?: any;
  /** The requests that it waits for. */
  pending: RequestRow[];
  status: StatusRow;
  /** The text of the last reply. */
  text: string;
  usage: UsageRow;
  /** The version of the session after it. */
  version: number;
}

/** A session, and what it waits for. */
export interface SessionDetail {
  /** The budget that its last run waits for, if it does. */
  budget?: BudgetQuestionRow | null;
  /** Whether a worker has it, in any process. */
  claimed: boolean;
  /** When it was created (RFC 3339). */
  created: string;
  /** The number of sessions that were forked from it, and are there: absent in answers about changes. */
  forks?: number | null;
  /** The id. */
  id: string;
  /** The import of it, or of the session that it was forked from: absent for other sessions, and in answers about changes. */
  imported?: ImportedRow | null;
  /** The messages that were accepted and not taken. */
  inbox: WaitingRow[];
  /** Why its last run cannot be restored, with the status `invalid`. */
  invalid?: string | null;
  /** The oldest version that it can go back to. */
  oldest: number;
  /** The session that it was forked from. */
  parent: ParentRow | null;
  /** The requests that wait for decisions. */
  pending: RequestRow[];
  /** The invocation that runs in this process. */
  running: string | null;
  /** Its status; absent in answers about changes. */
  status?: Status | null;
  /** The beginning of its first message, in lists. */
  title?: string | null;
  /** Whether its last run has not ended: it runs, waits for decisions, was interrupted or failed. */
  unfinished: boolean;
  /** When it was written last (RFC 3339). */
  updated: string;
  /** The number of its commits. */
  version: number;
}

/** A session in a list. */
export interface SessionRow {
  /** Whether a worker has it, in any process. */
  claimed: boolean;
  /** When it was created (RFC 3339). */
  created: string;
  /** The number of sessions that were forked from it, and are there: absent in answers about changes. */
  forks?: number | null;
  /** The id. */
  id: string;
  /** The import of it, or of the session that it was forked from: absent for other sessions, and in answers about changes. */
  imported?: ImportedRow | null;
  /** The oldest version that it can go back to. */
  oldest: number;
  /** The session that it was forked from. */
  parent: ParentRow | null;
  /** Its status; absent in answers about changes. */
  status?: Status | null;
  /** The beginning of its first message, in lists. */
  title?: string | null;
  /** When it was written last (RFC 3339). */
  updated: string;
  /** The number of its commits. */
  version: number;
}

/** A page of sessions. */
export interface SessionRows {
  /** The cursor of the next page, as `after`; absent on the last one. */
  next?: string | null;
  /** The sessions, the one that was written last first. */
  sessions: SessionRow[];
}

/** A part of what a model was shown. - `agent`: The agent has changed. */
export type ShownPart = "messages" | "tools" | "agent";

/** A message that a model was shown. */
export interface ShownRow {
  /** The place in the whole conversation, from 0. */
  index?: number | null;
  message: any;
  source: ShownSource;
  /** An estimate. */
  tokens: number;
}

/** The source of a message. - `summary`: Of messages that were left out. */
export type ShownSource = "instructions" | "conversation" | "summary";

/** The spend of a group. */
export interface SpendRow {
  /** The cost in US dollars, exactly, in decimal, at the prices of then. */
  cost: string;
  /** Requests that count as their estimates: under way, lost, or without a reported usage. */
  estimated: number;
  /** The session, user, model or day. */
  group: string;
  /** Tokens of input. */
  input_tokens: number;
  /** Tokens of output. */
  output_tokens: number;
  /** Requests, those under way included. */
  requests: number;
  /** Requests whose price was unknown. */
  unpriced: number;
}

/** Spend on models. */
export interface SpendRows {
  by: GroupRow;
  /** The number of groups that are left out. */
  left_out: number;
  /** The groups, in the order of their names; the first 1,000. */
  spend: SpendRow[];
  /** The sums over all groups. */
  total: SumRow;
}

/** Changes of values. */
export interface StateEdit {
  /** The version that the session has, as the client knows it; another one is a conflict. */
  expected: number;
  /** The new values, which replace the current ones. */
  set?: Record<string, any>;
  /** The keys to remove. */
  unset?: string[];
}

/** The state of a session at a version. */
export interface StateRow {
  /** The last write of other keys of scopes that the session shares, whose value is not the result of the visible writes alone: another session has changed it, or a step that is later, was rewound, or is not kept. Also of a key that a visible step has merged more than 64 KiB into. */
  changed_elsewhere?: Record<string, OriginRow>;
  /** The last write of each key that the session itself has written, in the versions that are kept: the origin of its value. */
  origin?: Record<string, OriginRow> | null;
  /** The values of the session, and those of scopes that it shares (`user:`, `app:`), which are always the current ones. */
  values: Record<string, any>;
  version: number;
}

/** The status of a session. - `running`: A worker has it, in any process. - `waiting`: Its run waits for decisions, or for a budget. - `interrupted`: Its run was interrupted, and continues when it is resumed or recovered. - `failed`: Its run failed, and continues when it is resumed. - `idle`: Its last run has ended, or there was none. - `invalid`: Its last run cannot be restored by this agent and this version: abandon it, rewind to before it, or fork from there. - `sealed`: No worker has it, and the rest is sealed: the server was started without the key ring of its store, or the key was destroyed. - `deleted`: There is no such session any more. */
export type Status = "running" | "waiting" | "interrupted" | "failed" | "idle" | "invalid" | "sealed" | "deleted";

/** The status of a run. - `finished`: It has ended. - `waiting`: It waits for decisions. - `suspended`: It was suspended; send the same request again. */
export type StatusRow = "finished" | "waiting" | "suspended";

/** A commit as it is stored. */
export interface StoredRow {
  /** Microseconds since 1970. */
  at: number;
  /** The body, in the format of the stores. */
  body: any;
  id: string;
  version: number;
}

/** The sums of some requests to models. */
export interface SumRow {
  /** The cost in US dollars, exactly, in decimal, at the prices of then. */
  cost: string;
  /** Requests that count as their estimates: under way, lost, or without a reported usage. */
  estimated: number;
  /** Tokens of input. */
  input_tokens: number;
  /** Tokens of output. */
  output_tokens: number;
  /** Requests, those under way included. */
  requests: number;
  /** Requests whose price was unknown. */
  unpriced: number;
}

/** An estimate of tokens. */
export interface TokensRow {
  instructions: number;
  messages: number;
  tools: number;
  total: number;
}

/** A tool. */
export interface ToolRow {
  /** The agent that answers, if one does. */
  agent?: string | null;
  /** `never`, `always`, `once` (for the same arguments), or `when` (depends on the arguments). */
  approval: string;
  description: string;
  /** The SHA-256 of its definition, as it is sent to a model. */
  digest: string;
  /** `pure`, `idempotent` or `at_most_once`. */
  effect: any;
  name: string;
  /** The JSON Schema of the arguments that a model sends. */
  parameters: any;
}

/** The tokens of a session, and their cost. */
export interface TotalRow {
  /** The cost of those with a price, exactly, in decimal. */
  cost?: string | null;
  /** Always `USD`. */
  currency: string;
  /** The same by model. */
  models: OfModelRow[];
  /** The number of replies and summaries that reported their tokens. */
  replies: number;
  /** The models without a price, which the cost is without. */
  unpriced: string[];
  usage: UsageRow;
  version: number;
}

/** A part of what a model was shown that is not in the record. */
export interface UnknownRow {
  part: ShownPart;
  why: string;
}

/** An unfinished run whose agent has changed. */
export interface UpgradeRow {
  /** Whether the run is continued, under the policy of the app. */
  continues: boolean;
  /** Whether a recovery leaves it to another version of the agent: a resume continues it here. */
  left: boolean;
  /** The changes, the open work that they touch, or the error. */
  reasons: string[];
  session: string;
  /** `compatible`, `pinned`, `touched` or `cannot be read`. */
  status: string;
  user: string;
  /** The version of the session. */
  version: number;
}

/** The unfinished runs of an app, beside its agent. */
export interface UpgradeRows {
  /** The number of unfinished runs that were checked. */
  checked: number;
  /** Runs that continue with the agent of today, though it has changed: nothing that is open in them depends on it. */
  compatible: number;
  /** Runs that continue with the agent of today though a change touches open work, under the policy `always`. */
  forced: number;
  /** Whether there are more than were checked. */
  has_more: boolean;
  /** Runs that a recovery leaves to another version of the agent, which has taken them over: a resume continues them here. */
  left: number;
  /** Runs that continue with the agent that they began with. */
  pinned: number;
  /** Runs that are not continued. */
  refused: number;
  /** The runs whose agent has changed. */
  runs: UpgradeRow[];
  /** Runs whose agent is the same. */
  unchanged: number;
}

/** Token counts. */
export interface UsageRow {
  cached_input_tokens: number;
  input_tokens: number;
  output_tokens: number;
  reasoning_tokens: number;
}

/** A message in the inbox of a session. */
export interface WaitingRow {
  /** When it was accepted (RFC 3339). */
  at: string;
  /** The id of its invocation. */
  invocation: string;
  /** Whether it joins the current run, before the next request to the model. */
  joins: boolean;
  /** Its text. */
  text: string;
}

/** The treatment of a message while a run is active in its session. - `wait`: It waits until that run has ended. - `steer`: It joins that run, before the next request to the model. - `interrupt`: The active run is cancelled first. - `refuse`: It is refused: 409. */
export type WhenBusy = "wait" | "steer" | "interrupt" | "refuse";

/** A difference between a conversation and the request to a model's server. */
export interface WireChangeRow {
  change: string;
  /** The place of the message among those that were shown, from 0; absent for the request beside its messages. */
  message?: number | null;
}

/** A write to the state. */
export interface WriteRow {
  /** As in [`ItemRow`]. */
  call_id?: string;
  /** The merge handler (reducer); absent for a removal. */
  handler?: string | null;
  key: string;
  node?: string | null;
  tool?: string | null;
  /** The value that is merged; absent for a removal. */
  value?: any;
}

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

  /** Lists the apps. */
  listApps(): Promise<Apps> {
    return this.ask("GET", `/api/v1/apps`);
  }

  /** Reads an app. */
  readApp(app: string): Promise<AppDetail> {
    return this.ask("GET", `/api/v1/apps/${part(app)}`);
  }

  /** Lists budgets with their sums and limits: those of the principal's user; those that users share, and those of other users, for the role `raise_budgets`. */
  listBudgets(app: string, query: { session?: string; user?: string } = {}): Promise<BudgetRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/budgets`, { query });
  }

  /** Raises the limit of a budget for its current window, and continues a run that waits for it. */
  raiseBudget(app: string, body: NewLimit): Promise<RaisedRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/budgets`, { body });
  }

  /** Lists raises of budgets, newest first: who raised which limit, when, from what to what. Those of the principal's user; all for the role `raise_budgets`. */
  listRaises(app: string, query: { user?: string } = {}): Promise<RaiseRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/budgets/raises`, { query });
  }

  /** Adds turns of stored sessions to a data set: of the principal, or of another user for an administrator. */
  addCases(app: string, body: NewCases): Promise<AddedCases> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/cases`, { body });
  }

  /** Deletes a data set. Reports of its experiments stay; one that is under way keeps it. */
  deleteDataSet(app: string, data_set: string, query: { user?: string } = {}): Promise<void> {
    return this.ask("DELETE", `/api/v1/apps/${part(app)}/data-sets/${part(data_set)}`, { query });
  }

  /** Lists the records of erasures, oldest first: when, by whom and why, never of what. */
  listErasures(app: string, query: { after?: number } = {}): Promise<ErasurePage> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/erasures`, { query });
  }

  /** Erases content for good: events, a call, a session with its forks, or a user. */
  erase(app: string, body: NewErasure): Promise<ErasureRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/erasures`, { body });
  }

  /** Lists the data sets and experiments of the principal. */
  listExperiments(app: string, query: { under_way?: boolean; user?: string } = {}): Promise<ExperimentList> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/experiments`, { query });
  }

  /** Accepts an experiment, which confronts the agent, or a changed one, with a data set. It is run in the background, and continues after a restart. */
  runExperiment(app: string, body: NewExperiment): Promise<ExperimentRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/experiments`, { body });
  }

  /** Deletes an experiment. One that waits or runs is cancelled. */
  deleteExperiment(app: string, experiment: string, query: { user?: string } = {}): Promise<void> {
    return this.ask("DELETE", `/api/v1/apps/${part(app)}/experiments/${part(experiment)}`, { query });
  }

  /** Reads an experiment with its results so far, and compares them with those of another one. */
  readExperiment(app: string, experiment: string, query: { after?: number; baseline?: string; user?: string } = {}): Promise<ExperimentRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/experiments/${part(experiment)}`, { query });
  }

  /** Reads the nodes and edges of an app that is a graph. */
  readGraph(app: string): Promise<any> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/graph`);
  }

  /** Creates a session from an export. */
  import(app: string, body: ExportRowInput, query: { id?: string } = {}): Promise<SessionRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/import`, { query, body });
  }

  /** Finds messages by words, best first: in all sessions of the principal, or in one. */
  search(app: string, query: { query: string; after?: number; limit?: number; session?: string }): Promise<FoundMessages> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/search`, { query });
  }

  /** Lists sessions, the one that was written last first. */
  listSessions(app: string, query: { after?: string; limit?: number; q?: string; status?: Status; stopped?: boolean } = {}): Promise<SessionRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions`, { query });
  }

  /** Creates a session. */
  createSession(app: string, body: NewSession = {}): Promise<SessionRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions`, { body });
  }

  /** Deletes a session for good. */
  deleteSession(app: string, session: string, query: { user_state?: boolean } = {}): Promise<void> {
    return this.ask("DELETE", `/api/v1/apps/${part(app)}/sessions/${part(session)}`, { query });
  }

  /** Reads a session and what it waits for. */
  readSession(app: string, session: string): Promise<SessionDetail> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}`);
  }

  /** Ends a run that waits, was interrupted or failed. */
  abandon(app: string, session: string): Promise<EndRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/abandon`);
  }

  /** Lists the writes of a key. */
  blame(app: string, session: string, query: { key: string; at?: number; before?: number; limit?: number }): Promise<BlameRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/blame`, { query });
  }

  /** Lists the requests to the model: the prefix that each shares with the one before, and what broke it. */
  readPromptCache(app: string, session: string): Promise<PromptCacheRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/cache`);
  }

  /** Cancels the run, in any process. */
  cancel(app: string, session: string): Promise<CancelRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/cancel`);
  }

  /** Compares a session with another one, such as a fork. */
  compare(app: string, session: string, query: { with: string }): Promise<CompareRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/compare`, { query });
  }

  /** Delivers the outcome of a call that came later, under its token. */
  complete(app: string, session: string, body: NewOutcome): Promise<Completed> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/complete`, { body });
  }

  /** Decides about requests, in one commit, and continues the run. */
  decide(app: string, session: string, body: NewDecisions, idempotencyKey?: string): Promise<Decided> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/decisions`, { body, headers: idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey } });
  }

  /** Lists the changes between two versions. */
  diff(app: string, session: string, query: { from: number; to?: number }): Promise<DiffRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/diff`, { query });
  }

  /** Lists commits, in order. */
  listEvents(app: string, session: string, query: { after?: number; around?: number; brief?: boolean; limit?: number } = {}): Promise<EventRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/events`, { query });
  }

  /** Reads a commit. */
  readEvent(app: string, session: string, version: number): Promise<EventRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/events/${part(version)}`);
  }

  /** Exports a session: whole as JSON, or as a scripted test. */
  export(app: string, session: string, query: { as?: ExportForm } = {}): Promise<any> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/export`, { query });
  }

  /** Creates a session that shares the history up to a version. */
  fork(app: string, session: string, body: Fork = {}): Promise<ForkedRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/fork`, { body });
  }

  /** Lists the forks of a session. */
  listForks(app: string, session: string): Promise<ForkRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/forks`);
  }

  /** Lists the labels of versions. */
  listLabels(app: string, session: string): Promise<LabelRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/labels`);
  }

  /** Removes a label. */
  removeLabel(app: string, session: string, label: string): Promise<void> {
    return this.ask("DELETE", `/api/v1/apps/${part(app)}/sessions/${part(session)}/labels/${part(label)}`);
  }

  /** Labels a version. */
  setLabel(app: string, session: string, label: string, body: Labelled): Promise<LabelSet> {
    return this.ask("PUT", `/api/v1/apps/${part(app)}/sessions/${part(session)}/labels/${part(label)}`, { body });
  }

  /** Accepts a message, and starts a run. */
  send(app: string, session: string, body: NewMessage, idempotencyKey?: string): Promise<Accepted> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/messages`, { body, headers: idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey } });
  }

  /** Withdraws a message that was not taken yet. */
  withdraw(app: string, session: string, message: string): Promise<void> {
    return this.ask("DELETE", `/api/v1/apps/${part(app)}/sessions/${part(session)}/messages/${part(message)}`);
  }

  /** Reads what the model was shown at a step. */
  readModelStep(app: string, session: string, query: { at?: number; path?: string; wire?: boolean } = {}): Promise<ModelRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/model`, { query });
  }

  /** Replays every run without model and tools, and reports the first divergence. */
  replay(app: string, session: string): Promise<ReplayRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/replay`);
  }

  /** Changes recorded results, and arguments of calls that have not begun, of a run that is paused. */
  editResults(app: string, session: string, body: ResultEdit, idempotencyKey?: string): Promise<Changed> {
    return this.ask("PATCH", `/api/v1/apps/${part(app)}/sessions/${part(session)}/results`, { body, headers: idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey } });
  }

  /** Continues a run that was interrupted or failed. */
  resume(app: string, session: string, body: Resumption = {}): Promise<Accepted> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/resume`, { body });
  }

  /** Goes back to a version; nothing is deleted. */
  rewind(app: string, session: string, body: Rewind): Promise<Changed> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/rewind`, { body });
  }

  /** Accepts a message, and waits for the result of its run. */
  run(app: string, session: string, body: NewMessage, idempotencyKey?: string): Promise<RunRow> {
    return this.ask("POST", `/api/v1/apps/${part(app)}/sessions/${part(session)}/run`, { body, headers: idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey } });
  }

  /** Reads the state at a version. */
  readState(app: string, session: string, query: { at?: number; origin?: boolean } = {}): Promise<StateRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/state`, { query });
  }

  /** Changes values between runs, or of a run that is paused. */
  editState(app: string, session: string, body: StateEdit, idempotencyKey?: string): Promise<Changed> {
    return this.ask("PATCH", `/api/v1/apps/${part(app)}/sessions/${part(session)}/state`, { body, headers: idempotencyKey === undefined ? {} : { "idempotency-key": idempotencyKey } });
  }

  /** Reads the tokens of a session and their cost. */
  readUsage(app: string, session: string, query: { at?: number } = {}): Promise<TotalRow> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/sessions/${part(session)}/usage`, { query });
  }

  /** Adds up what was spent on models under budgets. */
  readSpend(app: string, query: { all_users?: boolean; by?: GroupRow; since_us?: number; until_us?: number } = {}): Promise<SpendRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/spend`, { query });
  }

  /** Checks the unfinished runs beside the agent of today: those of the principal, or of all users for an administrator. */
  checkUpgrade(app: string, query: { limit?: number } = {}): Promise<UpgradeRows> {
    return this.ask("GET", `/api/v1/apps/${part(app)}/upgrade`, { query });
  }

  /** Sets a cookie with the bearer token of this request. */
  login(): Promise<void> {
    return this.ask("POST", `/api/v1/login`);
  }

  /** Removes the cookie. */
  logout(): Promise<void> {
    return this.ask("POST", `/api/v1/logout`);
  }

  /** Reads the user and the role of the caller. */
  readPrincipal(): Promise<MeRow> {
    return this.ask("GET", `/api/v1/me`);
  }

  /** The metrics of this process, in the format of OpenMetrics. */
  metrics(): Promise<any> {
    return this.ask("GET", `/api/v1/metrics`);
  }

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
