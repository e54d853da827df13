//! What an agent file may say. The documentation of these fields is the documentation of the file: editors
//! show it, by way of `stepfold schema`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stepfold::tools::Effect;

/// An agent for `stepfold run` and `stepfold chat`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "A stepfold agent")]
#[expect(clippy::struct_excessive_bools, reason = "each is a line of the file that a person writes")]
pub(crate) struct Form {
    /// What the agent is called, in records and as the first part of its sessions' keys; the file's name
    /// without its ending by default.
    pub(crate) name: Option<String>,
    /// The model: `PROVIDER:MODEL`, `URL#MODEL`, or `script:FILE` for a scripted one. `--model` overrides it;
    /// without both, `STEPFOLD_MODEL` names it.
    pub(crate) model: Option<String>,
    /// What the model is told first: a template over the state, as in `You help {user:name?}.`
    pub(crate) instructions: Option<String>,
    /// The keys of the state.
    pub(crate) state: Named<StateKey>,
    /// Whether keys that are not declared are let in.
    pub(crate) open_state: bool,
    /// What the model may do, by name.
    pub(crate) tools: Named<ToolForm>,
    /// Tools that end the run when they were called and did not fail.
    pub(crate) exit_on: Vec<String>,
    /// How much a run may take.
    pub(crate) limits: LimitsForm,
    /// Bounds on each call, for tools that do not say.
    pub(crate) tool_limits: ToolLimits,
    /// At a limit, ask the model once more, without tools, for the best answer it can give.
    pub(crate) final_answer: bool,
    /// Who has to agree before a call runs, whatever its tool says. The stricter of both holds.
    pub(crate) approval: Approvals,
    /// Ask a human about calls that must not run twice and had started before a crash; else the model is told
    /// that their outcome is unknown.
    pub(crate) ask_when_uncertain: bool,
    /// Make the first failed call of a step the error of the run; else the model reads the failure.
    pub(crate) raise_on_failure: bool,
    /// Take a reply that is nothing but a tool call written as JSON for that call.
    pub(crate) recover_leaked_calls: bool,
    /// What the model is shown of a long conversation when a turn begins.
    pub(crate) trim: TrimForm,
    /// The output that a run has to end with.
    pub(crate) output: Option<OutputForm>,
    /// How the model samples.
    pub(crate) params: Params,
}

/// Values by name, in the order in which they stand in the file.
#[derive(Clone, Debug)]
pub(crate) struct Named<T>(Vec<(String, T)>);

impl<T> Named<T> {
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

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Named<T>, A::Error> {
                let mut named = Named::default();
                while let Some(field) = fields.next_entry()? {
                    named.0.push(field);
                }
                Ok(named)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

/// A key of the state. The prefix of its name is its scope: `user:`, `app:`, `temp:`, or none for the session.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateKey {
    /// A JSON Schema, or the name of a type: `integer`, `string`, `array`, ...
    #[serde(default = "any_type", rename = "type")]
    pub(crate) value_type: Value,
    /// How writes are merged: `replace_values`, `merge_lists`, `merge_maps`, `sum`, `max`, `min`, `union`,
    /// `upsert_by(FIELD)`, `keep_last(N)`, `first_wins`. Lists are merged and all else is replaced by default.
    pub(crate) handler: Option<String>,
    /// What the key is for.
    pub(crate) description: Option<String>,
    /// The value before the first write.
    pub(crate) default: Option<Value>,
    /// What becomes of a value that was stored under another type and does not fit: the first of these conversions
    /// whose result fits. `text`, `number` (of text), `json` (text read as JSON), `list` (of this value), `first` (item
    /// of a list), `default`, `drop` (as if it had never been written).
    #[serde(default)]
    pub(crate) migrate: Vec<Conversion>,
}

/// What becomes of a stored value whose type has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Conversion {
    /// Text stays, all else becomes its JSON as text.
    Text,
    /// Text that is a number becomes it.
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

fn any_type() -> Value {
    Value::Bool(true)
}

/// A tool: one of `command`, `http` and `builtin`, and how it meets the state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolForm {
    /// What the tool does and when to use it, for the model. Built-in tools have their own.
    pub(crate) description: Option<String>,
    /// The JSON Schema of the arguments, an object; no arguments by default.
    pub(crate) parameters: Option<BTreeMap<String, Value>>,
    /// Runs a program.
    pub(crate) command: Option<CommandForm>,
    /// Asks a server.
    pub(crate) http: Option<HttpForm>,
    /// Does what is built in.
    pub(crate) builtin: Option<BuiltinForm>,
    /// What a call may do to the world, and so what is done about one that was cut off; `at_most_once` by
    /// default.
    pub(crate) effect: Option<Effects>,
    /// Who has to agree before a call runs.
    pub(crate) approval: Approvals,
    /// The time that a call may take, as in `30s`; that of `tool_limits` by default.
    pub(crate) time_out: Option<Time>,
    /// How often a call that failed is tried again; only for pure and idempotent tools.
    pub(crate) retries: usize,
    /// Parameters that are fed from the state, as in `{ "user:name" = "name" }`: key, then parameter. The
    /// model does not see them.
    pub(crate) inputs_from_state: BTreeMap<String, String>,
    /// Parameters that are fed from the state when the model leaves them out.
    pub(crate) defaults_from_state: BTreeMap<String, String>,
    /// Keys that are written from the result, as in `{ found = { source = "documents" } }`.
    pub(crate) outputs_to_state: BTreeMap<String, OutputBinding>,
    /// What the model reads of the result, instead of all of it.
    pub(crate) outputs_to_string: Option<StringBinding>,
}

/// What is written to a key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutputBinding {
    /// The field of the result; all of it by default.
    pub(crate) source: Option<String>,
    /// Another handler than the key's own.
    pub(crate) handler: Option<String>,
}

/// What the model reads.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StringBinding {
    /// The field of the result.
    pub(crate) source: String,
}

/// A program. It gets the arguments as JSON on its standard input and is run without a shell.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandForm {
    /// The program and its arguments. A program with a slash is found from the file's folder, others in PATH.
    #[schemars(length(min = 1))]
    pub(crate) argv: Vec<String>,
    /// What its standard output is: `text`, or `json`, which bindings need.
    #[serde(default)]
    pub(crate) output: Reads,
    /// The variables of the environment that it gets, besides PATH.
    #[serde(default)]
    pub(crate) environment: Vec<String>,
    /// Where it runs; the file's folder by default.
    #[serde(default)]
    pub(crate) folder: Option<String>,
    /// The bytes that it may write; more is an error. 64 KiB by default.
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
            output: Reads::default(),
            environment: Vec::new(),
            folder: None,
            output_bytes: output_bytes(),
        }
    }
}

/// What a program or a server gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reads {
    #[default]
    Text,
    Json,
}

/// A server. Arguments that the URL does not name are its query (`GET`, `DELETE`) or its JSON body.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HttpForm {
    /// The address, with arguments in braces, as in `https://api.example.org/areas/{id}`; or one argument
    /// alone, `{url}`, which has to be a URL of an allowed host then.
    pub(crate) url: String,
    /// The method; `GET` by default.
    #[serde(default)]
    pub(crate) method: Method,
    /// The hosts that may be asked, each as `NAME` or `NAME:PORT`. Redirects to others are refused too.
    #[schemars(length(min = 1))]
    pub(crate) hosts: Vec<String>,
    /// Headers of the request.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Headers whose values are in variables of the environment, such as keys.
    #[serde(default)]
    pub(crate) headers_from_environment: BTreeMap<String, String>,
    /// What the server gives: `text`, or `json`, which bindings need.
    #[serde(default)]
    pub(crate) output: Reads,
    /// The bytes that it may give; more is an error. 64 KiB by default.
    #[serde(default = "output_bytes")]
    pub(crate) output_bytes: usize,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Method {
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
    /// Which.
    pub(crate) name: Builtin,
    /// For `remember`: the keys that the model may write.
    #[serde(default)]
    pub(crate) keys: Vec<String>,
}

/// The tools that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Builtin {
    /// The date and the time, UTC.
    Clock,
    /// Writes a value to a key of the state.
    Remember,
}

/// What a call may do to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effects {
    /// Nothing: it can run again at will.
    Pure,
    /// The same whether it runs once or several times under one idempotency key.
    Idempotent,
    /// Something that must not be repeated.
    AtMostOnce,
}

impl From<Effects> for Effect {
    fn from(effect: Effects) -> Self {
        match effect {
            Effects::Pure => Effect::Pure,
            Effects::Idempotent => Effect::Idempotent,
            Effects::AtMostOnce => Effect::AtMostOnce,
        }
    }
}

/// Who has to agree before a call runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Approvals {
    /// Nobody.
    #[default]
    Never,
    /// A human, for every call.
    Always,
    /// A human, once in a run for the same arguments.
    Once,
}

/// How much a run may take.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsForm {
    /// Steps, which are model calls; 100 by default.
    pub(crate) steps: Option<u64>,
    /// Calls of one reply; 64 by default.
    pub(crate) calls_per_reply: Option<usize>,
    /// Bytes of one reply of the model; a longer one is an error. 32 MiB by default.
    pub(crate) reply_bytes: Option<usize>,
    /// Tool calls in all.
    pub(crate) tool_calls: Option<u64>,
    /// Tokens read and written.
    pub(crate) tokens: Option<u64>,
    /// Time, pauses left out, as in `2m`.
    pub(crate) time: Option<Time>,
}

/// Bounds on each call.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ToolLimits {
    /// Calls that run at the same time; 64 by default.
    pub(crate) concurrency: Option<usize>,
    /// The time of a call; `5m` by default.
    pub(crate) time_out: Option<Time>,
    /// The bytes of a result that the model reads; 64 KiB by default.
    pub(crate) output_bytes: Option<usize>,
}

/// What the model is shown. Several of these hold together.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TrimForm {
    /// The last messages, from the beginning of a turn on.
    pub(crate) keep_last: Option<usize>,
    /// Besides `keep_last`, of what is older: user messages and results of these tools.
    pub(crate) pins: Option<PinsForm>,
    /// The last turns that fit into so many tokens, the last one in any case.
    pub(crate) max_tokens: Option<usize>,
    /// A bound on messages that one huge turn cannot break.
    pub(crate) cap_messages: Option<usize>,
    /// A bound on tokens that one huge turn cannot break.
    pub(crate) cap_tokens: Option<usize>,
    /// The tokens that the conversation may come to within a turn.
    pub(crate) window: Option<usize>,
}

/// What is shown of what is older.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PinsForm {
    /// At most so many messages.
    pub(crate) messages: usize,
    /// Steps in which one of these tools answered.
    #[serde(default)]
    pub(crate) results_of: Vec<String>,
}

/// A value in place of free text.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputForm {
    /// What providers call it by.
    #[serde(default = "output_name")]
    pub(crate) name: String,
    /// Its JSON Schema.
    pub(crate) schema: BTreeMap<String, Value>,
    /// How the model is asked for it.
    #[serde(default)]
    pub(crate) mode: OutputModes,
    /// How often the model is told what is wrong and asked again; 2 by default.
    #[serde(default = "repairs")]
    pub(crate) repairs: u32,
}

fn output_name() -> String {
    "output".to_owned()
}

const fn repairs() -> u32 {
    2
}

/// How the model is asked for the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputModes {
    /// By the request's response format.
    #[default]
    Schema,
    /// By a tool.
    Tool,
    /// By words in the instructions.
    Prompt,
}

/// How the model samples.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Params {
    /// The higher, the more adventurous.
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
    pub(crate) server_tools: Vec<ServerTools>,
}

/// A tool that a provider runs itself. A model of another provider refuses it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerTools {
    /// Whose it is: `openai` (Responses), `openai-chat`, `anthropic` or `gemini`.
    pub(crate) dialect: String,
    /// The tool, as that API writes it.
    pub(crate) tool: BTreeMap<String, Value>,
}

/// A time with its unit: `500ms`, `30s`, `2m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The units, longest name first, in milliseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl Time {
    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
        let number: u64 = number.parse().ok()?;
        Some(Time(Duration::from_millis(number.checked_mul(*unit)?)))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Time::parse(&text)
            .ok_or_else(|| D::Error::custom("this is no time; write one such as 500ms, 30s or 2m"))
    }
}

impl JsonSchema for Time {
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
            assert_eq!(Time::parse(text).map(|time| time.0.as_millis()), millis, "{text}");
        }
    }
}
