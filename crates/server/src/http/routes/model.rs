//! The request that a model was sent at a step, and the cost of steps.

use std::collections::BTreeMap;

use axum::Json;
use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stepfold_agent_loop::state_core::chat::{
    ChatRequest, Cost, ModelError, ToolChoice, ToolSpec, Usage, WireRequest,
};
use stepfold_agent_loop::trim::{ApproximateTokens, Summary, TokenCounter as _};
use stepfold_agent_loop::{EventKind, Run, RunNeed};
use stepfold_runner::{CachedRequest, ModelStep};
use stepfold_session_scopes::Session;

use super::history::{event_at, head};
use crate::http::app::SessionTarget;
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::reserve_whole;
use crate::http::loading::write_index::{AtVersion, WriteIndex};
use crate::http::operation::request::ApiRequest;
use crate::http::rows::pricing::dollars;
use crate::http::rows::{ItemRow, OutputRow, UsageRow, json};

/// A step of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StepQuery {
    /// A version of the step; the newest by default.
    at: Option<u64>,
    /// The places of the items inside of which the model was asked, the outermost first, separated by dots; empty for the
    /// session's own run. By default those of the commit at the version.
    path: Option<String>,
    /// Whether the request is returned as the model's server reads it.
    #[serde(default)]
    wire: bool,
}

/// The request that a model was sent.
#[derive(Serialize, JsonSchema)]
pub(super) struct ModelRow {
    /// The version that was asked for.
    version: u64,
    /// The version with the reply; absent if the model has not replied, for what it would be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<u64>,
    /// The step of its run, from 1.
    step: u64,
    /// The items inside of which the model was asked, the outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    path: Vec<ItemRow>,
    agent: String,
    /// The model of the agent.
    model: String,
    /// The instructions, rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
    /// The messages of the request, in order.
    messages: Vec<ShownRow>,
    /// The number of messages of the whole conversation.
    conversation: usize,
    /// The messages of the conversation that were left out.
    left_out: Vec<LeftOutRow>,
    /// Why they were, in words.
    reasons: Vec<String>,
    /// The tools that it was offered.
    tools: Vec<OfferedRow>,
    /// `auto`, `none`, `required`, or the name of a tool.
    tool_choice: Value,
    /// The output that was requested, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<OutputRow>,
    /// The parameters of the model, such as its temperature.
    params: Value,
    /// An estimate of the tokens, by the counter of the policies that trim.
    tokens: TokensRow,
    /// The tokens that the provider has counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageRow>,
    /// Their cost in US dollars, exactly, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    /// The parts that are not in the record, each with the reason.
    unknown: Vec<UnknownRow>,
    /// The changes of the conversation that the model's server requires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<WireChangeRow>,
    /// The body of the request, as the model's server reads it; only on request, and only of a model with a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    wire: Option<Value>,
}

/// A difference between a conversation and the request to a model's server.
#[derive(Serialize, JsonSchema)]
struct WireChangeRow {
    /// The place of the message among those that were shown, from 0; absent for the request beside its messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<usize>,
    change: String,
}

/// A message that a model was shown.
#[derive(Serialize, JsonSchema)]
struct ShownRow {
    source: ShownSource,
    /// The place in the whole conversation, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    message: Value,
    /// An estimate.
    tokens: usize,
}

/// The source of a message.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ShownSource {
    Instructions,
    /// Of messages that were left out.
    Summary,
    Conversation,
}

/// Messages that a model was not shown.
#[derive(Serialize, JsonSchema)]
struct LeftOutRow {
    /// The place of the first one in the whole conversation, from 0.
    from: usize,
    /// The place after the last one.
    to: usize,
    /// Whether the summary stands for all of them.
    summarised: bool,
    messages: Vec<Value>,
}

/// A tool that a model was offered.
#[derive(Serialize, JsonSchema)]
struct OfferedRow {
    name: String,
    description: String,
    /// The JSON Schema of the arguments.
    parameters: Value,
    /// The SHA-256 of what the model was told of it.
    digest: String,
    /// An estimate.
    tokens: usize,
}

/// An estimate of tokens.
#[derive(Serialize, JsonSchema)]
struct TokensRow {
    instructions: usize,
    messages: usize,
    tools: usize,
    total: usize,
}

/// A part of what a model was shown that is not in the record.
#[derive(Serialize, JsonSchema)]
struct UnknownRow {
    part: ShownPart,
    why: String,
}

/// A part of what a model was shown.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ShownPart {
    /// The agent has changed.
    Agent,
    Messages,
    Tools,
}

pub(super) async fn shown(request: ApiRequest<SessionTarget, StepQuery>) -> Result<Json<ModelRow>, Problem> {
    let path = request.query.path.as_deref().map(places).transpose()?;
    let session = &request.target.session;
    let version = match request.query.at {
        Some(version) => version,
        None => head(&request.target, None).await?.version,
    };
    reserve_whole(&request.memory, request.target.runner(), session.key()).await?;
    // NOTE: Restored from the record, not stored for each step: a request is a pure function of the run, and a stored one
    // would repeat a long conversation (docs/decisions/server.md).
    let step = session.model_step(Some(version), path.as_deref()).await?;
    let step = step.ok_or_else(|| Problem::no_model_step(version))?;
    let told = event_at(
        &request.target,
        step.reply.as_ref().map_or(version, |(version, _)| *version),
        &request.memory,
    )
    .await?;
    let wired = step.run.agent().model().wire_request(&step.run.request());
    let mut row = row(version, step, told.map(|row| (row.path, row.cost)).unwrap_or_default());
    row.set_wire(wired, request.query.wire);
    Ok(Json(row))
}

/// The places of a path.
fn places(path: &str) -> Result<Vec<usize>, Problem> {
    let places = path.split('.').filter(|_| !path.is_empty()).map(str::parse).collect::<Result<_, _>>();
    places.map_err(|error| Problem::invalid("path", error))
}

fn row(version: u64, step: ModelStep, (mut path, cost): (Vec<ItemRow>, Option<String>)) -> ModelRow {
    let unknown = unknown(&step);
    let ModelStep { run, path: places, reply, .. } = step;
    // The commit may be one around the step.
    if path.len() != places.len() {
        path.truncate(places.len());
    }
    let request = run.request();
    let messages = messages(&run, &request);
    let tools: Vec<OfferedRow> = request.tools.iter().map(offered).collect();
    let of = |is_it: fn(&ShownSource) -> bool| {
        messages.iter().filter(|shown| is_it(&shown.source)).map(|shown| shown.tokens).sum::<usize>()
    };
    let tokens = TokensRow::new(
        of(|source| matches!(source, ShownSource::Instructions)),
        of(|source| !matches!(source, ShownSource::Instructions)),
        tools.iter().map(|tool| tool.tokens).sum(),
    );
    let usage = reply.as_ref().and_then(|(_, event)| match &event.kind {
        EventKind::Replied { usage, .. } => Some((*usage).into()),
        _ => None,
    });
    ModelRow {
        version,
        reply: reply.as_ref().map(|(version, _)| *version),
        step: run.steps() + 1,
        path,
        agent: run.agent().name().to_owned(),
        model: run.agent().model().id().to_owned(),
        instructions: run.instructions().map(str::to_owned),
        messages,
        conversation: run.transcript().len(),
        left_out: left_out(&run),
        reasons: run.view().reasons().iter().map(ToString::to_string).collect(),
        tools,
        tool_choice: match &request.tool_choice {
            ToolChoice::Auto => "auto".into(),
            ToolChoice::None => "none".into(),
            ToolChoice::Required => "required".into(),
            choice => json(choice),
        },
        output: OutputRow::of(run.agent()),
        params: json(&request.params),
        tokens,
        usage,
        cost: reply.and(cost),
        unknown,
        changes: Vec::new(),
        wire: None,
    }
}

impl ModelRow {
    /// Adds what is different on the wire. A request that the model refuses has no body, and says why.
    fn set_wire(&mut self, wired: Option<Result<WireRequest, ModelError>>, is_asked: bool) {
        match wired {
            None => {}
            Some(Err(error)) => {
                self.changes = vec![WireChangeRow { message: None, change: format!("refused: {error}") }];
            }
            Some(Ok(wired)) => {
                let rows = wired.changes.into_iter();
                let rows =
                    rows.map(|change| WireChangeRow { message: change.message, change: change.change });
                self.changes = rows.collect();
                self.wire = if is_asked { serde_json::from_str(&wired.body).ok() } else { None };
            }
        }
    }
}

impl TokensRow {
    fn new(instructions: usize, messages: usize, tools: usize) -> Self {
        TokensRow { instructions, messages, tools, total: instructions + messages + tools }
    }
}

/// The messages of a request, each with where it comes from: the instructions first, then the view of the conversation,
/// with the summary after its leading system messages.
fn messages(run: &Run, request: &ChatRequest) -> Vec<ShownRow> {
    let view = run.view();
    let mut kept = view.kept().indexes();
    let mut rows = Vec::with_capacity(request.messages.len());
    for (place, message) in request.messages.iter().enumerate() {
        let is_summary = view.summary().is_some_and(|summary| std::sync::Arc::ptr_eq(summary, message));
        let (source, index) = match () {
            () if place == 0 && run.instructions().is_some() => (ShownSource::Instructions, None),
            () if is_summary => (ShownSource::Summary, None),
            () => (ShownSource::Conversation, kept.next()),
        };
        rows.push(ShownRow {
            source,
            index,
            message: json(&**message),
            tokens: ApproximateTokens.count(message),
        });
    }
    rows
}

/// The ranges of the conversation that are not shown.
fn left_out(run: &Run) -> Vec<LeftOutRow> {
    let (view, log) = (run.view(), run.transcript());
    let summarised = run.summary().filter(|_| view.summary().is_some()).map_or(0, Summary::replaced);
    let mut rows = Vec::new();
    let mut from = 0;
    let end = log.len()..log.len();
    for kept in view.kept().ranges().iter().chain(std::iter::once(&end)) {
        if kept.start > from {
            let messages =
                (from..kept.start).filter_map(|index| log.get(index)).map(|message| json(&**message));
            let summarised = kept.start <= summarised;
            rows.push(LeftOutRow { from, to: kept.start, summarised, messages: messages.collect() });
        }
        from = kept.end;
    }
    rows
}

fn offered(spec: &ToolSpec) -> OfferedRow {
    OfferedRow {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: spec.parameters.clone(),
        digest: digest(spec),
        tokens: ApproximateTokens::of_tool(spec),
    }
}

/// The SHA-256 of a tool's definition, as it is sent to a model, in a form that does not depend on the order of fields.
pub(super) fn digest(spec: &ToolSpec) -> String {
    let mut told = json(spec);
    told.sort_all_objects();
    HEXLOWER.encode(&Sha256::digest(told.to_string()))
}

fn unknown(step: &ModelStep) -> Vec<UnknownRow> {
    let mut unknown = Vec::new();
    let mut add = |part, why: String| unknown.push(UnknownRow { part, why });
    if !step.changes.is_empty() {
        let why = "the agent has changed since the run began, and what is not recorded is as it is now";
        add(ShownPart::Agent, format!("{why}: {}", step.changes.join(", ")));
    }
    if step.run.tools().is_none() {
        let why = "the agent lists its tools at each step, and what it listed is not recorded";
        add(ShownPart::Tools, why.to_owned());
    }
    if step.run.is_pruned() {
        add(ShownPart::Messages, "retention has deleted the beginning of the conversation".to_owned());
    }
    let missing = match step.run.decide() {
        _ if step.reply.is_some() => None,
        RunNeed::Hook(_) => Some("a hook comes before the model, and may change the conversation"),
        RunNeed::Summary(_) => Some("a summary of the conversation is made before the model is asked"),
        _ => None,
    };
    if let Some(why) = missing {
        add(ShownPart::Messages, why.to_owned());
    }
    unknown
}

/// A version of a session, up to which tokens are added up.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    /// The version; the newest by default.
    at: Option<u64>,
}

/// The tokens of a session, and their cost.
#[derive(Serialize, JsonSchema)]
pub(super) struct TotalRow {
    version: u64,
    /// Always `USD`.
    currency: &'static str,
    /// The number of replies and summaries that reported their tokens.
    replies: u64,
    usage: UsageRow,
    /// The cost of those with a price, exactly, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    /// The same by model.
    models: Vec<OfModelRow>,
    /// The models without a price, which the cost is without.
    unpriced: Vec<String>,
}

/// The tokens of a model.
#[derive(Serialize, JsonSchema)]
struct OfModelRow {
    /// The name that the provider has reported, or the agent's.
    model: String,
    replies: u64,
    usage: UsageRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct UsageTotal {
    replies: u64,
    usage: Usage,
    cost: Option<Cost>,
    is_unpriced: bool,
}

impl UsageTotal {
    fn add(&mut self, replies: u64, usage: Usage, cost: Option<Cost>) {
        self.replies += replies;
        self.usage += usage;
        self.cost = match (self.cost, cost) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.is_unpriced |= cost.is_none();
    }
}

pub(super) async fn usage(request: ApiRequest<SessionTarget, UsageQuery>) -> Result<Json<TotalRow>, Problem> {
    let head = head(&request.target, request.query.at).await?;
    let models = request.shared.indexes.read(&request.target, &head, |index| by_model(index, &head)).await?;
    let mut all = UsageTotal::default();
    for of in models.values() {
        all.add(of.replies, of.usage, of.cost);
    }
    let unpriced = models.iter().filter(|(_, of)| of.is_unpriced).map(|(model, _)| model.clone()).collect();
    let row = |(model, of): (String, UsageTotal)| OfModelRow {
        model,
        replies: of.replies,
        usage: of.usage.into(),
        cost: of.cost.map(dollars),
    };
    Ok(Json(TotalRow {
        version: head.version,
        currency: "USD",
        replies: all.replies,
        usage: all.usage.into(),
        cost: all.cost.map(dollars),
        models: models.into_iter().map(row).collect(),
        unpriced,
    }))
}

/// The tokens of each model.
fn by_model(index: &WriteIndex, head: &Session) -> BTreeMap<String, UsageTotal> {
    let mut models: BTreeMap<String, UsageTotal> = BTreeMap::new();
    for AtVersion { what, .. } in index.reply_usage(head).iter() {
        match models.get_mut(&what.model) {
            Some(spent) => spent.add(1, what.usage, what.cost),
            None => models.entry(what.model.clone()).or_default().add(1, what.usage, what.cost),
        }
    }
    models
}

/// The requests to the model in a session.
#[derive(Serialize, JsonSchema)]
pub(super) struct PromptCacheRow {
    /// The requests of its own runs, oldest first.
    requests: Vec<CachedRequestRow>,
}

/// A request beside the one before it.
#[derive(Serialize, JsonSchema)]
pub(super) struct CachedRequestRow {
    /// The version of the reply.
    version: u64,
    /// The model, as the provider named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// An estimate of the tokens of its messages.
    tokens: usize,
    /// Of these, the tokens of the messages that are the same as in the request before.
    shared_tokens: usize,
    /// The tokens of the request before that are not shared.
    lost_tokens: usize,
    /// What broke the prefix, in words; absent if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_by: Option<String>,
    /// The input tokens, as the provider reported them.
    input_tokens: u64,
    /// Of these, the tokens that the provider read from its cache.
    cached_input_tokens: u64,
}

impl From<CachedRequest> for CachedRequestRow {
    fn from(request: CachedRequest) -> Self {
        CachedRequestRow {
            version: request.version,
            model: request.model,
            tokens: request.tokens,
            shared_tokens: request.shared_tokens,
            lost_tokens: request.lost_tokens,
            broken_by: request.broken_by.map(|broken| broken.to_string()),
            input_tokens: request.usage.input_tokens,
            cached_input_tokens: request.usage.cached_input_tokens,
        }
    }
}

pub(super) async fn cache(request: ApiRequest<SessionTarget>) -> Result<Json<PromptCacheRow>, Problem> {
    let session = &request.target.session;
    reserve_whole(&request.memory, request.target.runner(), session.key()).await?;
    let requests = session.prompt_cache().await?;
    Ok(Json(PromptCacheRow { requests: requests.into_iter().map(Into::into).collect() }))
}
