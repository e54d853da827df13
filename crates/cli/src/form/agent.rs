//! The form of an agent file. The documentation of these fields is that of the file: editors show it, by
//! `stepfold schema`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stepfold::runner::WhenChanged;
use stepfold::state_core::chat::Price;
use stepfold::tools::Effect;

use super::budget::BudgetForm;
use super::by_type::by_type;
use super::rate_limit::RateLimitForm;
use super::redact::RedactForm;
use super::retention::RetentionForm;

/// An agent for `stepfold run` and `stepfold chat`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "A stepfold agent")]
#[expect(clippy::struct_excessive_bools, reason = "each is a line of the file that a person writes")]
pub(crate) struct AgentFileForm {
    /// The agent's name, in records and as the first part of its sessions' keys; the file's name without its
    /// extension by default.
    pub(crate) name: Option<String>,
    /// The model: `PROVIDER:MODEL`, `URL#MODEL`, or `script:FILE` for a scripted one. `--model` overrides it;
    /// without both, `STEPFOLD_MODEL` names it.
    pub(crate) model: Option<String>,
    /// The system prompt: a template over the state, as in `You help {user:name?}.`
    pub(crate) instructions: Option<String>,
    /// The keys of the state.
    pub(crate) state: NamedValues<StateKeyForm>,
    /// Whether undeclared keys are accepted.
    pub(crate) open_state: bool,
    /// The tools, by name.
    pub(crate) tools: NamedValues<ToolForm>,
    /// Servers that speak the Model Context Protocol, by name. Their tools are called by the server's name, `_`, and their
    /// own name.
    pub(crate) mcp: NamedValues<McpForm>,
    /// Tools that end the run when they were called and did not fail.
    pub(crate) exit_on: Vec<String>,
    /// Limits of a run.
    pub(crate) limits: LimitsForm,
    /// Limits of each call, for tools without their own.
    pub(crate) tool_limits: ToolLimitsForm,
    /// At a limit, ask the model once more, without tools, for the best answer it can give.
    pub(crate) final_answer: bool,
    /// The approval rule of calls, whatever the tool's own rule. The stricter one applies.
    pub(crate) approval: ApprovalForm,
    /// Asks a person about calls that must not run twice and had started before a crash; otherwise the model
    /// is told that their outcome is unknown.
    pub(crate) ask_when_uncertain: bool,
    /// Make the first failed call of a step the error of the run; else the model reads the failure.
    pub(crate) raise_on_failure: bool,
    /// Take a reply that is nothing but a tool call written as JSON for that call.
    pub(crate) recover_leaked_calls: bool,
    /// The view of a long conversation when a turn begins.
    pub(crate) trim: TrimForm,
    /// Old results of tools that are shown as one line each, when a turn begins, and within it where there is a `window`.
    pub(crate) clear_results: Option<ClearResultsForm>,
    /// The maximum tokens of the conversation within a turn.
    pub(crate) window: Option<WindowForm>,
    /// Condenses what is no longer shown into a summary, when a turn begins.
    pub(crate) summarize: Option<SummarizeForm>,
    /// Gives the model two tools with which it finds and reads what it is no longer shown: `recall_search` and
    /// `recall_read`.
    pub(crate) recall: Option<RecallForm>,
    /// The required output of a run.
    pub(crate) output: Option<OutputForm>,
    /// The sampling parameters of the model.
    pub(crate) params: ParamsForm,
    /// The prices of models, by name: the server computes the costs of steps from them, and budgets in dollars need them.
    pub(crate) prices: NamedValues<PriceForm>,
    /// Limits on what runs spend on models, over all sessions and processes. A request counts in each of them.
    pub(crate) budgets: Vec<BudgetForm>,
    /// Limits on requests and tokens per minute, that all processes on the store share.
    pub(crate) rate_limits: Vec<RateLimitForm>,
    /// Replaces sensitive parts of messages, arguments, results and values before they are stored.
    pub(crate) redact: Option<RedactForm>,
    /// Removes sessions, events and waiting messages by their age.
    pub(crate) retention: Option<RetentionForm>,
    /// The handling of unfinished runs of this file after a change of it.
    pub(crate) when_changed: ChangedForm,
    /// For `when_changed = "pinned"`: programs and addresses that stored versions of this file may still use though this one
    /// does not, as in `["./pay.sh", "https://bank.example"]`.
    pub(crate) former_programs: Vec<String>,
}

/// The handling of an unfinished run whose agent has changed since.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChangedForm {
    /// Refuse every change.
    Refuse,
    /// Continue where nothing that is open in the run depends on the change, else refuse and say why.
    #[default]
    Compatible,
    /// Continue, whatever has changed.
    Always,
    /// Continue with the version of the file that the run began with, which is stored with the sessions.
    Pinned,
}

impl From<ChangedForm> for WhenChanged {
    fn from(form: ChangedForm) -> Self {
        match form {
            ChangedForm::Refuse => WhenChanged::Refuse,
            ChangedForm::Compatible => WhenChanged::Compatible,
            ChangedForm::Always => WhenChanged::Always,
            ChangedForm::Pinned => WhenChanged::Pinned,
        }
    }
}

/// Values by name, in the order of the file.
#[derive(Clone, Debug)]
// NOTE: A map would lose the order: the last matching rule applies, and nodes merge their writes in it.
pub(crate) struct NamedValues<T>(Vec<(String, T)>);

impl<T> NamedValues<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }
}

impl<T> Default for NamedValues<T> {
    fn default() -> Self {
        NamedValues(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for NamedValues<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamedValuesVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedValuesVisitor<T> {
            type Value = NamedValues<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<NamedValues<T>, A::Error> {
                let mut named = NamedValues::default();
                while let Some(field) = fields.next_entry()? {
                    named.0.push(field);
                }
                Ok(named)
            }
        }

        deserializer.deserialize_map(NamedValuesVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for NamedValues<T> {
    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

/// A key of the state. The prefix of its name is its scope: `user:`, `app:`, `temp:`, or the session without
/// one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateKeyForm {
    /// A JSON Schema, or the name of a type: `integer`, `string`, `array`, ...
    #[serde(default = "any_type", rename = "type")]
    pub(crate) value_type: Value,
    /// The merge handler of writes: `replace_values`, `merge_lists`, `merge_maps`, `sum`, `max`, `min`, `union`,
    /// `upsert_by(FIELD)`, `keep_last(N)`, `first_wins`. Lists are merged and all else is replaced by default.
    pub(crate) handler: Option<String>,
    /// The description of the key.
    pub(crate) description: Option<String>,
    /// The value before the first write.
    pub(crate) default: Option<Value>,
    /// Conversions of a value that was stored with another type and does not fit: the first one with a
    /// fitting result applies. `text`, `number` (of text), `json` (text parsed as JSON), `list` (of this
    /// value), `first` (item of a list), `default`, `drop` (the key is unset).
    #[serde(default)]
    pub(crate) migrate: Vec<ValueConversion>,
}

/// A conversion of a stored value whose type has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ValueConversion {
    /// Text stays, all else becomes its JSON as text.
    Text,
    /// Text that is a number becomes that number.
    Number,
    /// Text is read as JSON.
    Json,
    /// The value becomes the only item of a list.
    List,
    /// A list becomes its first item.
    First,
    /// The default of the key.
    Default,
    /// As if the key had never been written.
    Drop,
}

/// The conversions of a key, in the order in which they are tried.
pub(crate) type KeyMigration = (String, Vec<ValueConversion>);

fn any_type() -> Value {
    Value::Bool(true)
}

/// A tool: one of `command`, `http` and `builtin`, with its bindings to the state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolForm {
    /// The purpose of the tool and when to use it, for the model. Built-in tools have their own.
    pub(crate) description: Option<String>,
    /// The JSON Schema of the arguments, an object; no arguments by default.
    pub(crate) parameters: Option<BTreeMap<String, Value>>,
    /// Runs a program.
    pub(crate) command: Option<ProgramForm>,
    /// Sends a request to an HTTP server.
    pub(crate) http: Option<HttpForm>,
    /// A built-in tool.
    pub(crate) builtin: Option<BuiltinForm>,
    /// The effect of a call outside the process, which determines how an interrupted one is resumed;
    /// `at_most_once` by default.
    pub(crate) effect: Option<EffectForm>,
    /// The approval rule: never, always, or once.
    pub(crate) approval: ApprovalForm,
    /// The time that a call may take, as in `30s`; that of `tool_limits` by default.
    pub(crate) timeout: Option<TimeSpan>,
    /// The number of retries of a failed call; only for pure and idempotent tools.
    pub(crate) retries: usize,
    /// Parameters whose values come from the state, as in `{ "user:name" = "name" }`: key, then parameter. The
    /// model does not see them.
    pub(crate) inputs_from_state: BTreeMap<String, String>,
    /// Parameters whose values come from the state if the model omits them.
    pub(crate) defaults_from_state: BTreeMap<String, String>,
    /// Keys that are written from the result, as in `{ found = { source = "documents" } }`.
    pub(crate) outputs_to_state: BTreeMap<String, OutputBindingForm>,
    /// The text of the result for the model, instead of the whole result.
    pub(crate) outputs_to_string: Option<StringBindingForm>,
}

/// The binding of a result to a key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutputBindingForm {
    /// The field of the result; all of it by default.
    pub(crate) source: Option<String>,
    /// Another handler than the key's own.
    pub(crate) handler: Option<String>,
}

/// The text of a result for the model.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StringBindingForm {
    /// The field of the result.
    pub(crate) source: String,
}

/// A program: alone, or with its bounds.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum ProgramForm {
    /// The program and its arguments.
    Argv(Vec<String>),
    /// With its bounds.
    Full(CommandForm),
}

by_type!(ProgramForm, "list or object", list => ProgramForm::Argv, table => ProgramForm::Full);

impl ProgramForm {
    pub(crate) fn command(&self) -> CommandForm {
        match self {
            ProgramForm::Full(form) => form.clone(),
            ProgramForm::Argv(argv) => CommandForm { argv: argv.clone(), ..CommandForm::default() },
        }
    }
}

/// A program. It gets the arguments as JSON on its standard input and is run without a shell.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandForm {
    /// The program and its arguments. A program with a slash is found from the file's folder, others in PATH.
    #[schemars(length(min = 1))]
    pub(crate) argv: Vec<String>,
    /// The type of its standard output: `text`, or `json`, which bindings require.
    #[serde(default)]
    pub(crate) output: ToolOutputFormat,
    /// The environment variables that it receives, in addition to PATH.
    #[serde(default)]
    pub(crate) environment: Vec<String>,
    /// Its working directory; the file's folder by default.
    #[serde(default)]
    pub(crate) folder: Option<String>,
    /// The maximum bytes of its output; more is an error. 64 KiB by default.
    #[serde(default = "output_bytes")]
    pub(crate) output_bytes: usize,
}

const fn output_bytes() -> usize {
    64 * 1024
}

impl Default for CommandForm {
    fn default() -> Self {
        CommandForm {
            argv: Vec::new(),
            output: ToolOutputFormat::default(),
            environment: Vec::new(),
            folder: None,
            output_bytes: output_bytes(),
        }
    }
}

/// The output of a program or a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolOutputFormat {
    #[default]
    Text,
    Json,
}

/// A server. Arguments that the URL does not name are its query (`GET`, `DELETE`) or its JSON body.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpForm {
    /// The address, with arguments in braces, as in `https://api.example.org/areas/{id}`; or one argument
    /// alone, `{url}`, which must then be a URL of an allowed host.
    pub(crate) url: String,
    /// The method; `GET` by default.
    #[serde(default)]
    pub(crate) method: HttpMethod,
    /// The allowed hosts, each as `NAME` or `NAME:PORT`. Redirects to others are rejected too.
    #[schemars(length(min = 1))]
    pub(crate) hosts: Vec<String>,
    /// Headers of the request.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Headers whose values are in variables of the environment, such as keys.
    #[serde(default)]
    pub(crate) headers_from_environment: BTreeMap<String, String>,
    /// The type of the server's response: `text`, or `json`, which bindings require.
    #[serde(default)]
    pub(crate) output: ToolOutputFormat,
    /// The maximum bytes of the response; more is an error. 64 KiB by default.
    #[serde(default = "output_bytes")]
    pub(crate) output_bytes: usize,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum HttpMethod {
    #[default]
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

/// A tool that is built in.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuiltinForm {
    /// The name of the tool.
    pub(crate) name: BuiltinTool,
    /// For `remember`: the keys that the model may write.
    #[serde(default)]
    pub(crate) keys: Vec<String>,
}

/// The tools that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BuiltinTool {
    /// The date and the time, UTC.
    Clock,
    /// Writes a value to a key of the state.
    Remember,
}

/// A server that speaks the Model Context Protocol: a `command`, or one at a `url`. It is started when its tools are first
/// needed, and ended with the command.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct McpForm {
    /// The program, which speaks on its standard input and output.
    pub(crate) command: Option<McpProgramForm>,
    /// The address of a server that speaks streamable HTTP.
    pub(crate) url: Option<String>,
    /// For a `url`: headers of each request.
    pub(crate) headers: BTreeMap<String, String>,
    /// For a `url`: headers whose values are in variables of the environment.
    pub(crate) headers_from_environment: BTreeMap<String, String>,
    /// For a `url`: the variable of the environment that has the bearer token.
    pub(crate) token_from_environment: Option<String>,
    /// For a `url`: the user signs in by OAuth, with `stepfold login`.
    pub(crate) oauth: Option<OAuthForm>,
    /// The prefix of the tools' names; the server's name and `_` by default.
    pub(crate) prefix: Option<String>,
    /// The tools that are offered, by the server's own names; `*` stands for any characters. All by default.
    pub(crate) allow: Vec<String>,
    /// Tools that are not offered, even if they are allowed.
    pub(crate) deny: Vec<String>,
    /// The effect of a call of any tool outside the process; `at_most_once` by default.
    pub(crate) effect: Option<EffectForm>,
    /// Effects by tool name, as in `{ "read_*" = "pure" }`. The last match applies.
    pub(crate) effects: NamedValues<EffectForm>,
    /// Trust the server's hints about effects: `readOnlyHint` for pure, `idempotentHint` for idempotent.
    pub(crate) trust_hints: bool,
    /// The approval rule for calls of any tool.
    pub(crate) approval: ApprovalForm,
    /// Approval rules by tool name, as in `{ "write_*" = "always" }`. The last match applies.
    pub(crate) approvals: NamedValues<ApprovalForm>,
    /// The file of the approved tool definitions, written when the tools are first listed. A tool whose definition has
    /// changed since needs an approval. Without the file, the definitions at the start of the command count as approved.
    pub(crate) approved: Option<String>,
    /// The time that a call may take, as in `30s`; `1m` by default.
    pub(crate) timeout: Option<TimeSpan>,
    /// The time that the server may take to start and to list its tools; by default `1m`, and `10s` for a `url`.
    pub(crate) start_timeout: Option<TimeSpan>,
}

/// The user's sign-in to a server by OAuth. An empty table is enough for most servers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OAuthForm {
    /// The scopes to ask for; by default those that the server names.
    pub(crate) scopes: Vec<String>,
    /// The id of a client that is registered at the authorization server; by default the command registers itself.
    pub(crate) client_id: Option<String>,
    /// The variable of the environment that has the secret of this client.
    pub(crate) client_secret_from_environment: Option<String>,
    /// The URL of a document that describes the client, for authorization servers that take one as its id.
    pub(crate) client_metadata_url: Option<String>,
    /// The local port that the browser is redirected to; any by default.
    pub(crate) port: Option<u16>,
}

/// A program that is a server: alone, or with its environment.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum McpProgramForm {
    /// The program and its arguments.
    Argv(Vec<String>),
    /// With its environment.
    Full(McpCommandForm),
}

by_type!(McpProgramForm, "list or object", list => McpProgramForm::Argv, table => McpProgramForm::Full);

impl McpProgramForm {
    pub(crate) fn command(&self) -> McpCommandForm {
        match self {
            McpProgramForm::Full(form) => form.clone(),
            McpProgramForm::Argv(argv) => McpCommandForm { argv: argv.clone(), ..McpCommandForm::default() },
        }
    }
}

/// A program that is a server.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpCommandForm {
    /// The program and its arguments. A program with a slash is found from the file's folder, others in PATH.
    #[schemars(length(min = 1))]
    pub(crate) argv: Vec<String>,
    /// Variables of its environment.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// The environment variables that it receives, in addition to PATH, HOME and a few others.
    #[serde(default)]
    pub(crate) environment: Vec<String>,
    /// Its working directory; the file's folder by default.
    #[serde(default)]
    pub(crate) folder: Option<String>,
}

/// The effect of a call outside the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EffectForm {
    /// Nothing: it can run again at will.
    Pure,
    /// Repeatable: running several times with one idempotency key has the effect of one run.
    Idempotent,
    /// Something that must not be repeated.
    AtMostOnce,
}

impl From<EffectForm> for Effect {
    fn from(effect: EffectForm) -> Self {
        match effect {
            EffectForm::Pure => Effect::Pure,
            EffectForm::Idempotent => Effect::Idempotent,
            EffectForm::AtMostOnce => Effect::AtMostOnce,
        }
    }
}

/// The approval rule of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalForm {
    /// No approval.
    #[default]
    Never,
    /// A human, for every call.
    Always,
    /// A human, once in a run for the same arguments.
    Once,
}

/// Limits of a run.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsForm {
    /// Steps, which are model calls; 100 by default.
    pub(crate) steps: Option<u64>,
    /// Calls of one reply; 64 by default.
    pub(crate) calls_per_reply: Option<usize>,
    /// Bytes of one reply of the model; a longer one is an error. 32 MiB by default.
    pub(crate) reply_bytes: Option<usize>,
    /// Consecutive new requests to the model after replies without text and calls; 3 by default.
    pub(crate) empty_replies: Option<u32>,
    /// Tool calls in all.
    pub(crate) tool_calls: Option<u64>,
    /// Tokens read and written.
    pub(crate) tokens: Option<u64>,
    /// Time, pauses left out, as in `2m`.
    pub(crate) time: Option<TimeSpan>,
}

/// Bounds on each call.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolLimitsForm {
    /// Calls that run at the same time; 64 by default.
    pub(crate) concurrency: Option<usize>,
    /// The time of a call; `5m` by default.
    pub(crate) timeout: Option<TimeSpan>,
    /// The bytes of a result that the model reads; 64 KiB by default.
    pub(crate) output_bytes: Option<usize>,
}

/// The view of the conversation. Several of these apply together.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrimForm {
    /// The last messages, from the beginning of a turn on.
    pub(crate) keep_last: Option<usize>,
    /// Only of a conversation with more messages than this, with `keep_last`.
    pub(crate) when_over: Option<usize>,
    /// Also shows, of older messages, user messages and results of these tools, with `keep_last`.
    pub(crate) pins: Option<PinsForm>,
    /// The last turns that fit into this many tokens, always including the last one.
    pub(crate) max_tokens: Option<usize>,
    /// A bound on messages that one huge turn cannot break.
    pub(crate) cap_messages: Option<usize>,
    /// A bound on tokens that one huge turn cannot break.
    pub(crate) cap_tokens: Option<usize>,
    /// The maximum tokens of the conversation within a turn: the short form of `[window]` with `tokens`.
    pub(crate) window: Option<usize>,
}

/// Results that become one line each: the calls stay, with their arguments.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClearResultsForm {
    /// The newest steps with calls whose results stay; 3 by default.
    pub(crate) newest_steps: usize,
    /// Smaller results stay, when a turn begins; 200 by default.
    pub(crate) above_tokens: usize,
    /// Results of these tools stay.
    pub(crate) except: Vec<String>,
}

impl Default for ClearResultsForm {
    fn default() -> Self {
        ClearResultsForm { newest_steps: 3, above_tokens: 200, except: Vec::new() }
    }
}

/// The window of a model, less what else is in a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowForm {
    /// The maximum tokens of the conversation within a turn.
    pub(crate) tokens: usize,
    /// The share of them that is shown after an overflow, in percent; 70 by default.
    pub(crate) shrink_to_percent: Option<u8>,
}

/// Summaries by a model.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SummarizeForm {
    /// The last messages, which stay as they are.
    pub(crate) keep_last: usize,
    /// Only once the conversation has more messages than this.
    pub(crate) when_over: Option<usize>,
    /// Only once the conversation has more tokens than this.
    pub(crate) when_over_tokens: Option<usize>,
    /// The model that writes them; that of the agent by default.
    pub(crate) model: Option<String>,
    /// The instructions for that model, in place of the built-in ones.
    pub(crate) instructions: Option<String>,
}

/// Recall.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecallForm {
    /// The sessions in which is searched: the own one, or also the others of its user, by `recall_sessions` and
    /// `recall_session_read`.
    #[serde(default)]
    pub(crate) sessions: RecalledSessions,
}

/// The sessions in which a model searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecalledSessions {
    /// The session of the run.
    #[default]
    Own,
    /// All sessions of its user in the store of the command.
    User,
}

/// The older messages that are shown.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PinsForm {
    /// The maximum number of messages.
    pub(crate) messages: usize,
    /// The messages that this number counts: all that are shown, or only user messages and results of the named tools,
    /// without their calls.
    #[serde(default)]
    pub(crate) counts: PinCount,
    /// Steps in which one of these tools answered.
    #[serde(default)]
    pub(crate) results_of: Vec<String>,
}

/// The messages that the number of pins counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PinCount {
    /// All messages that are shown.
    #[default]
    Shown,
    /// User messages and results of the named tools.
    Pinned,
}

/// A structured output instead of free text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputForm {
    /// The name for providers.
    #[serde(default = "output_name")]
    pub(crate) name: String,
    /// Its JSON Schema.
    pub(crate) schema: BTreeMap<String, Value>,
    /// The way in which the output is requested.
    #[serde(default)]
    pub(crate) mode: OutputModeForm,
    /// The number of repairs: the model is told the fault and called again; 2 by default.
    #[serde(default = "repairs")]
    pub(crate) repairs: u32,
}

fn output_name() -> String {
    "output".to_owned()
}

const fn repairs() -> u32 {
    2
}

/// The way in which the output is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputModeForm {
    /// By the request's response format.
    #[default]
    Schema,
    /// By a tool.
    Tool,
    /// By words in the instructions.
    Prompt,
}

/// The sampling parameters of the model.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ParamsForm {
    /// The sampling temperature: higher values give more varied replies.
    pub(crate) temperature: Option<f64>,
    /// The share of probability to sample from.
    pub(crate) top_p: Option<f64>,
    /// The number of tokens after which a reply is cut.
    pub(crate) max_output_tokens: Option<u64>,
    /// A seed, for providers that can repeat themselves.
    pub(crate) seed: Option<i64>,
    /// Texts before which a reply ends.
    pub(crate) stop: Vec<String>,
    /// Tools that the provider runs itself, such as a web search.
    pub(crate) server_tools: Vec<ServerToolForm>,
}

/// A tool that a provider runs itself. A model of another provider refuses it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerToolForm {
    /// The API of the tool: `openai` (Responses), `openai-chat`, `anthropic` or `gemini`.
    pub(crate) dialect: String,
    /// The tool, as that API writes it.
    pub(crate) tool: BTreeMap<String, Value>,
}

/// The prices of a model, in US dollars for a million tokens.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PriceForm {
    /// The price of input.
    pub(crate) input: f64,
    /// The price of output, reasoning included.
    pub(crate) output: f64,
    /// The price of input read from the provider's cache; that of other input by default.
    pub(crate) cached_input: Option<f64>,
    /// The price of input written to the cache; that of other input by default.
    pub(crate) cache_write: Option<f64>,
}

impl PriceForm {
    /// The fields that are not valid prices.
    pub(crate) fn faults(self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("input", Some(self.input)),
            ("output", Some(self.output)),
            ("cached_input", self.cached_input),
            ("cache_write", self.cache_write),
        ];
        let is_price = |price: f64| price.is_finite() && price >= 0.0;
        fields.into_iter().filter(move |(_, price)| !price.is_none_or(is_price)).map(|(name, _)| name)
    }
}

impl From<PriceForm> for Price {
    fn from(form: PriceForm) -> Self {
        let mut price = Price::new(form.input, form.output);
        (price.cached_input, price.cache_write) = (form.cached_input, form.cache_write);
        price
    }
}

/// A time with its unit: `500ms`, `30s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan(pub(crate) Duration);

/// The units, longest name first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl TimeSpan {
    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
        let number: u64 = number.parse().ok()?;
        Some(TimeSpan(Duration::from_millis(number.checked_mul(*unit)?)))
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        TimeSpan::parse(&text)
            .ok_or_else(|| D::Error::custom("invalid duration: expected one such as 500ms, 30s or 2m"))
    }
}

impl JsonSchema for TimeSpan {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^[0-9]{1,9}(ms|s|m|h)$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit() {
        for (text, millis) in
            [("500ms", Some(500)), ("30s", Some(30_000)), ("2m", Some(120_000)), ("5", None)]
        {
            assert_eq!(TimeSpan::parse(text).map(|time| time.0.as_millis()), millis, "{text}");
        }
    }
}
