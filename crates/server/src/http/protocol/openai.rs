//! Chat completions in the form of OpenAI: an app is a model.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::HeaderValue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_agent_loop::{Exit, Ids as _, Input, RandomIds};
use stepfold_runner::{RunnerError, SessionHandle};
use stepfold_session_scopes::{Event, EventRange, InvocationId};
use stepfold_state_core::chat::{Message, Usage};
use tokio::sync::oneshot;

use super::run_updates::{RunReader, RunUpdate, StreamEnd};
use crate::http::guard::problem::Problem;

use crate::http::operation::request::{ApiRequest, AppTarget, JsonBody, WholeServer};
use crate::http::protocol::{
    ClientRequest, ProtocolFrame, UpdateEncoder, accept, key_of, run_permit, stream, with_words,
};
use crate::http::rows::{RequestRow, exit};

pub(super) const MODELS: &str = "Lists the apps as models, in the form of OpenAI.";

pub(super) const MODEL: &str = "Describes an app as a model, in the form of OpenAI.";

pub(super) const CHAT: &str =
    "Sends a message to an app, and answers with a chat completion, in the form of OpenAI.";

/// The header with the id of a session.
const SESSION: &str = "x-stepfold-session";

/// Models.
#[derive(Serialize, JsonSchema)]
pub(super) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

/// A model: an app.
#[derive(Serialize, JsonSchema)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

impl Model {
    fn of(app: &str) -> Self {
        Model { id: app.to_owned(), object: "model", created: 0, owned_by: "stepfold" }
    }
}

pub(super) async fn models(request: ApiRequest<WholeServer>) -> Result<Json<Models>, Problem> {
    let data = request.shared.apps.keys().map(|name| Model::of(name)).collect();
    Ok(Json(Models { object: "list", data }))
}

pub(super) async fn model(request: ApiRequest<AppTarget>) -> Result<Json<Model>, Problem> {
    Ok(Json(Model::of(request.target.0.name())))
}

/// A request for a chat completion. What it says of sampling is ignored, since the app has its own settings; what would
/// give the reply another meaning is refused.
#[derive(Deserialize, JsonSchema)]
pub(super) struct ChatCompletion {
    /// The app.
    model: String,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    /// None: tools are those of the app.
    #[serde(default)]
    tools: Option<Value>,
    /// None, or `auto`.
    #[serde(default)]
    tool_choice: Option<Value>,
    /// None: tools are those of the app.
    #[serde(default)]
    functions: Option<Value>,
    /// None, or `auto`.
    #[serde(default)]
    function_call: Option<Value>,
    /// None.
    #[serde(default)]
    web_search_options: Option<Value>,
    /// None, or of type `text`.
    #[serde(default)]
    response_format: Option<Value>,
    /// Only 1.
    #[serde(default)]
    n: Option<Value>,
    /// None.
    #[serde(default)]
    stop: Option<Value>,
    /// None, or false.
    #[serde(default)]
    logprobs: Option<Value>,
    /// None.
    #[serde(default)]
    top_logprobs: Option<Value>,
    /// None.
    #[serde(default)]
    logit_bias: Option<Value>,
    /// None, or `text`.
    #[serde(default)]
    modalities: Option<Value>,
    /// None.
    #[serde(default)]
    audio: Option<Value>,
}

/// Options of a stream.
#[derive(Deserialize, JsonSchema)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// A message of a chat.
#[derive(Deserialize, JsonSchema)]
struct ChatMessage {
    /// `system`, `developer`, `user` or `assistant`.
    role: String,
    #[serde(default)]
    content: Option<ChatContent>,
    /// None: tools are those of the app.
    #[serde(default)]
    tool_calls: Option<Value>,
}

/// The text of a message.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum ChatContent {
    Text(String),
    Parts(Vec<TextPart>),
}

/// A part of a message.
#[derive(Deserialize, JsonSchema)]
struct TextPart {
    /// Only `text`.
    r#type: String,
    #[serde(default)]
    text: String,
}

impl ChatMessage {
    fn text(&self) -> Result<String, Problem> {
        match &self.content {
            None => Ok(String::new()),
            Some(ChatContent::Text(text)) => Ok(text.clone()),
            Some(ChatContent::Parts(parts)) => match parts.iter().find(|part| part.r#type != "text") {
                None => Ok(parts.iter().map(|part| part.text.as_str()).collect()),
                Some(part) => Err(Problem::invalid(
                    "messages",
                    format_args!("a part of type `{}`: only `text` is read", part.r#type),
                )),
            },
        }
    }

    /// The message; none of an assistant that said nothing.
    fn message(&self) -> Result<Option<Message>, Problem> {
        let text = self.text()?;
        if self.tool_calls.as_ref().is_some_and(|calls| !is_nothing(calls)) {
            let why = "a message with `tool_calls`: tools are run by the app, not by its clients";
            return Err(Problem::invalid("messages", why));
        }
        match self.role.as_str() {
            "system" | "developer" => Ok(Some(Message::system(text))),
            "user" => Ok(Some(Message::user(with_words("messages", text)?))),
            "assistant" => Ok((!text.trim().is_empty()).then(|| Message::assistant(text))),
            role => Err(Problem::invalid(
                "messages",
                format_args!("a message of role `{role}`: tools are run by the app, not by its clients"),
            )),
        }
    }
}

impl ChatCompletion {
    /// Refuses what the reply would have to obey, and does not: it would be taken for one that does.
    fn check(&self) -> Result<(), Problem> {
        const TOOLS: &str = "tools are not supported: the app runs its own tools; send none";
        const PLAIN: &str = "only plain text is supported: the app sets the form of its replies; send none";
        let refused = [
            ("tools", &self.tools, Value::Null, TOOLS),
            ("tool_choice", &self.tool_choice, json!("auto"), TOOLS),
            ("functions", &self.functions, Value::Null, TOOLS),
            ("function_call", &self.function_call, json!("auto"), TOOLS),
            ("web_search_options", &self.web_search_options, Value::Null, TOOLS),
            ("response_format", &self.response_format, json!({"type": "text"}), PLAIN),
            ("modalities", &self.modalities, json!(["text"]), PLAIN),
            ("audio", &self.audio, Value::Null, PLAIN),
            ("n", &self.n, json!(1), "only 1 is supported"),
            ("stop", &self.stop, Value::Null, "stop sequences are not supported: send none"),
            ("logprobs", &self.logprobs, Value::Null, "log probabilities are not supported: send none"),
            ("top_logprobs", &self.top_logprobs, json!(0), "log probabilities are not supported: send none"),
            ("logit_bias", &self.logit_bias, Value::Null, "biases are not supported: send none"),
        ];
        for (field, value, allowed, why) in refused {
            if value.as_ref().is_some_and(|value| *value != allowed && !is_nothing(value)) {
                return Err(Problem::invalid(field, why));
            }
        }
        match self.messages.last() {
            Some(last) if last.role == "user" => Ok(()),
            _ => Err(Problem::invalid("messages", "the last one must be of the user")),
        }
    }

    /// The whole conversation; or only the last message, for a session that has the others.
    fn input(&self, is_whole: bool) -> Result<Input, Problem> {
        let first = if is_whole { 0 } else { self.messages.len().saturating_sub(1) };
        let messages = self.messages.iter().skip(first).filter_map(|message| message.message().transpose());
        messages.into_iter().try_fold(Input::new(), |input, message| Ok(input.with_message(message?)))
    }
}

/// Whether a field says as little as if it were absent.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

pub(super) async fn chat(
    request: ApiRequest<WholeServer, (), JsonBody<ChatCompletion>>,
) -> Result<Response, Problem> {
    let key = request.idempotency_key()?;
    let JsonBody(completion) = &request.body;
    completion.check()?;
    let app =
        request.shared.apps.get(&completion.model).ok_or_else(|| Problem::unknown_app(&completion.model))?;
    let session = match request.headers.get(SESSION) {
        None => None,
        Some(id) => {
            Some(id.to_str().map_err(|_| Problem::invalid(SESSION, "must be ASCII text"))?.to_owned())
        }
    };
    let is_temporary = session.is_none();
    let id = session.unwrap_or_else(|| match &key {
        // A repetition finds the session of the first request.
        Some(key) => format!("chat-{}", key_of(&[key])),
        None => format!("chat-{}", RandomIds.next()),
    });
    let input = completion.input(is_temporary)?;
    if let Some(key) = &key {
        // It becomes the id of the invocation: an invalid one leaves no session behind.
        InvocationId::new(key.as_str())?;
    }
    let runner = app.runner();
    let permit = run_permit(&request.shared, &request.principal)?;
    let stream_permit = match completion.stream {
        Some(true) => Some(request.shared.stream_permit(&request.principal)?),
        _ => None,
    };
    let session = runner.session(request.principal.user().as_str(), id.as_str()).await?;
    let created = created(&session).await?;
    // A session knows its keys: the same request later, or at the same time, has the same answer.
    let is_deleted = is_temporary && key.is_none();
    let order = ClientRequest::Send(Box::new(input), key);
    let reader = accept::<Problem>(permit, &request.principal, runner, session.clone(), order).await?;
    let reading =
        reader.invocation().filter(|_| is_deleted).map(|invocation| delete_after(session, invocation));
    let reader = reader.without_state().signal_when_dropped(reading);
    let with_usage = completion.stream_options.as_ref().is_some_and(|options| options.include_usage);
    let encoder = ChunkEncoder::new(app.name(), &id, created, with_usage);
    let mut response = match stream_permit {
        Some(stream_permit) => stream(stream_permit, reader, encoder),
        None => complete(reader, encoder).await?,
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(SESSION, id);
    }
    Ok(response)
}

/// Seconds since 1970.
async fn created(session: &SessionHandle) -> Result<u64, Problem> {
    let at = session.read_events(EventRange::None).await?.updated;
    Ok(u64::try_from(at.as_micros() / 1_000_000).unwrap_or_default())
}

/// Deletes the session of a request without a key when its run has ended and it has no reader any more. What waits or
/// failed is kept: its user can continue with it. So is one that has become more than the answer to its request.
fn delete_after(session: SessionHandle, invocation: stepfold_runner::Invocation) -> oneshot::Sender<()> {
    let (reading, mut read) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let id = invocation.id().clone();
        let ended = invocation.outcome().await;
        let _ = (&mut read).await;
        if !ended.is_ok_and(|outcome| !matches!(outcome.exit(), Exit::Paused(_) | Exit::Failed)) {
            return;
        }
        let deleted = match is_only_of(&session, &id).await {
            Ok(true) => session.delete(false).await.map(drop),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            tracing::warn!(%error, "a temporary session could not be deleted");
        }
    });
    reading
}

/// Whether a session has nothing but the commits of this run, none of which a person made in it.
async fn is_only_of(session: &SessionHandle, id: &InvocationId) -> Result<bool, RunnerError> {
    let stored = session.read_events(EventRange::All).await?;
    let is_of_run = |event: &Event| {
        // NOTE: Decisions, edits and messages that joined are of persons: what these did is deleted by administrators only
        // (docs/decisions/server.md).
        event.invocation == *id && !["decided", "edited", "steered"].contains(&event.kind.as_str())
    };
    let is_alone = stored.events.iter().all(|committed| is_of_run(&committed.event));
    Ok(is_alone && session.inbox().await?.is_empty())
}

/// The completion of a request without a stream.
async fn complete(reader: RunReader, encoder: ChunkEncoder) -> Result<Response, Problem> {
    let mut updates = reader.into_stream().boxed();
    let mut whole = CompletionBuilder::new(encoder);
    while let Some(update) = updates.next().await {
        if let RunUpdate::Ended { end: StreamEnd::Failed(problem), .. } = update {
            return Err(problem);
        }
        if let Some(completion) = whole.push(&update) {
            return Ok(Json(completion).into_response());
        }
    }
    Err(Problem::unavailable("the run was stopped"))
}

/// Makes chunks of a completion.
pub(super) struct ChunkEncoder {
    model: String,
    session: String,
    created: u64,
    with_usage: bool,
    id: String,
    /// Whether a reply has said something.
    has_text: bool,
    /// Whether this reply has said something. Texts of several replies are paragraphs.
    is_in_reply: bool,
    /// White space that this reply began with, until something follows.
    blank: String,
}

impl ChunkEncoder {
    pub(super) fn new(model: &str, session: &str, created: u64, with_usage: bool) -> Self {
        let (model, session) = (model.to_owned(), session.to_owned());
        ChunkEncoder {
            model,
            session,
            created,
            with_usage,
            id: String::new(),
            has_text: false,
            is_in_reply: false,
            blank: String::new(),
        }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, delta: &Value) -> ProtocolFrame {
        ProtocolFrame::Json(self.chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}])))
    }

    /// A reply begins.
    fn begin_reply(&mut self) {
        self.is_in_reply = false;
        self.blank.clear();
    }

    /// A text, as it follows what was said before. A reply of white space alone does not count.
    fn as_paragraph(&mut self, text: &str) -> Option<String> {
        if self.is_in_reply {
            return (!text.is_empty()).then(|| text.to_owned());
        }
        self.blank.push_str(text);
        if text.trim().is_empty() {
            return None;
        }
        let text = std::mem::take(&mut self.blank);
        self.is_in_reply = true;
        let is_paragraph = std::mem::replace(&mut self.has_text, true);
        Some(if is_paragraph { format!("\n\n{text}") } else { text })
    }

    fn end(&self, end: &StreamEnd, usage: Usage, version: u64) -> Vec<ProtocolFrame> {
        if let StreamEnd::Failed(problem) = end {
            return vec![ProtocolFrame::Json(json!({"error": problem.in_form_of_openai()}))];
        }
        let mut last = self.chunk(&json!([{"index": 0, "delta": {}, "finish_reason": finish_reason(end)}]));
        last["stepfold"] = self.extension(end, version);
        let mut frames = vec![ProtocolFrame::Json(last)];
        if self.with_usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = usage_row(usage);
            frames.push(ProtocolFrame::Json(chunk));
        }
        frames.push(ProtocolFrame::Done);
        frames
    }

    /// The field `stepfold`, for facts that the protocol has no field for.
    fn extension(&self, end: &StreamEnd, version: u64) -> Value {
        let mut extension = json!({"session": self.session, "version": version});
        match end {
            StreamEnd::Finished(reason) => extension["exit"] = exit(reason),
            StreamEnd::Waiting(requests) => {
                extension["waiting"] =
                    crate::http::rows::json(&requests.iter().map(RequestRow::of).collect::<Vec<_>>());
            }
            StreamEnd::Suspended => extension["exit"] = json!("suspended"),
            StreamEnd::Failed(_) => {}
        }
        extension
    }
}

impl UpdateEncoder for ChunkEncoder {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame> {
        match update {
            RunUpdate::Began { invocation, .. } => {
                self.id = format!("chatcmpl-{invocation}");
                vec![self.delta(&json!({"role": "assistant", "content": ""}))]
            }
            RunUpdate::Step(_) | RunUpdate::Restarted => {
                self.begin_reply();
                Vec::new()
            }
            RunUpdate::LastWords(text) => {
                self.begin_reply();
                self.push(&RunUpdate::Text(text.clone()))
            }
            RunUpdate::Text(text) | RunUpdate::Repeated(text) => {
                let text = self.as_paragraph(text);
                text.map(|text| self.delta(&json!({"content": text}))).into_iter().collect()
            }
            RunUpdate::Ended { end, usage, version } => self.end(end, *usage, *version),
            _ => Vec::new(),
        }
    }
}

/// Makes one completion.
pub(super) struct CompletionBuilder {
    chunks: ChunkEncoder,
    text: String,
    /// The offset of the reply in the text.
    reply: usize,
}

impl CompletionBuilder {
    pub(super) fn new(chunks: ChunkEncoder) -> Self {
        CompletionBuilder { chunks, text: String::new(), reply: 0 }
    }

    pub(super) fn push(&mut self, update: &RunUpdate) -> Option<Value> {
        let RunUpdate::Ended { end, usage, version } = update else {
            match update {
                RunUpdate::Began { invocation, .. } => self.chunks.id = format!("chatcmpl-{invocation}"),
                RunUpdate::Step(_) => {
                    self.reply = self.text.len();
                    self.chunks.begin_reply();
                }
                // Nothing of the reply has been sent.
                RunUpdate::Restarted => {
                    self.text.truncate(self.reply);
                    self.chunks.has_text = !self.text.is_empty();
                    self.chunks.begin_reply();
                }
                RunUpdate::Text(text) | RunUpdate::Repeated(text) | RunUpdate::LastWords(text) => {
                    if let RunUpdate::LastWords(_) = update {
                        self.chunks.begin_reply();
                    }
                    self.text.push_str(&self.chunks.as_paragraph(text).unwrap_or_default());
                }
                _ => {}
            }
            return None;
        };
        let message = json!({"role": "assistant", "content": self.text, "refusal": null});
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(end)});
        Some(json!({
            "id": self.chunks.id,
            "object": "chat.completion",
            "created": self.chunks.created,
            "model": self.chunks.model,
            "choices": [choice],
            "usage": usage_row(*usage),
            "stepfold": self.chunks.extension(end, *version),
        }))
    }
}

const fn finish_reason(end: &StreamEnd) -> &'static str {
    match end {
        StreamEnd::Finished(Exit::Length | Exit::MaxTokens) => "length",
        StreamEnd::Finished(Exit::ContentFilter | Exit::Refusal) => "content_filter",
        _ => "stop",
    }
}

fn usage_row(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}
