//! Chat completions in the form of OpenAI: an app is a model.

use axum::body::Body;
use futures_util::StreamExt as _;
use http::{HeaderValue, Response, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_agent_loop::{Exit, Ids as _, Input, RandomIds};
use stepfold_runner::{RunnerError, SessionHandle};
use stepfold_session_scopes::{Event, EventRange, InvocationId};
use stepfold_state_core::chat::{Message, Usage};
use tokio::sync::oneshot;

use super::happening::{End, Happening, Reader};
use super::{Encoder, Frame, Made, Order, accept, key_of, place, stream, with_words};
use crate::http::live::Opening;
use crate::http::operation::{Asked, Found, Json, Whole, json_response};
use crate::http::problem::Problem;
use crate::http::rows::{RequestRow, exit};

pub(super) const MODELS: &str = "Lists the apps as models, in the form of OpenAI.";
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

pub(super) async fn models(asked: Asked<Whole>) -> Result<Found<Models>, Problem> {
    let model = |name: &String| Model { id: name.clone(), object: "model", created: 0, owned_by: "stepfold" };
    Ok(Found(Models { object: "list", data: asked.shared.apps.keys().map(model).collect() }))
}

/// A request for a chat completion. What it says of sampling is ignored: the app has its own settings.
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
    tools: Option<Vec<Value>>,
    /// Only 1.
    #[serde(default)]
    n: Option<u32>,
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

    fn message(&self) -> Result<Message, Problem> {
        let text = self.text()?;
        match self.role.as_str() {
            "system" | "developer" => Ok(Message::system(text)),
            "user" => Ok(Message::user(with_words("messages", text)?)),
            "assistant" => Ok(Message::assistant(text)),
            role => Err(Problem::invalid(
                "messages",
                format_args!("a message of role `{role}`: tools are run by the app, not by its clients"),
            )),
        }
    }
}

impl ChatCompletion {
    fn check(&self) -> Result<(), Problem> {
        if self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(Problem::invalid(
                "tools",
                "tools are not supported: the app runs its own tools; send none",
            ));
        }
        if self.n.is_some_and(|n| n != 1) {
            return Err(Problem::invalid("n", "only 1 is supported"));
        }
        match self.messages.last() {
            Some(last) if last.role == "user" => Ok(()),
            _ => Err(Problem::invalid("messages", "the last one must be of the user")),
        }
    }

    /// The whole conversation; or only the last message, for a session that has the others.
    fn input(&self, is_whole: bool) -> Result<Input, Problem> {
        let first = if is_whole { 0 } else { self.messages.len().saturating_sub(1) };
        let messages = self.messages.iter().skip(first).map(ChatMessage::message);
        messages.into_iter().try_fold(Input::new(), |input, message| Ok(input.with_message(message?)))
    }
}

pub(super) async fn chat(asked: Asked<Whole, (), Json<ChatCompletion>>) -> Result<Made, Problem> {
    let key = asked.idempotency_key()?;
    let Json(request) = &asked.body;
    request.check()?;
    let app = asked.shared.apps.get(&request.model).ok_or_else(|| Problem::unknown_app(&request.model))?;
    let session = match asked.headers.get(SESSION) {
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
    let input = request.input(is_temporary)?;
    if let Some(key) = &key {
        // It becomes the id of the invocation: an invalid one leaves no session behind.
        InvocationId::new(key.as_str())?;
    }
    let runner = app.runner();
    let place = place(&asked.shared, &asked.principal)?;
    let opening = match request.stream {
        Some(true) => Some(Opening::take(&asked.shared, &asked.principal)?),
        _ => None,
    };
    let session = runner.session(asked.principal.user().as_str(), id.as_str()).await?;
    let created = created(&session).await?;
    // A session knows its keys: the same request later, or at the same time, has the same answer.
    let is_deleted = is_temporary && key.is_none();
    let order = Order::Send(Box::new(input), key);
    let reader = accept::<Problem>(place, &asked.principal, runner, session.clone(), order).await?;
    let reading =
        reader.invocation().filter(|_| is_deleted).map(|invocation| delete_after(session, invocation));
    let reader = reader.without_state().keeping(reading);
    let with_usage = request.stream_options.as_ref().is_some_and(|options| options.include_usage);
    let encoder = Chunks::new(app.name(), &id, created, with_usage);
    let mut response = match opening {
        Some(opening) => stream(opening, reader, encoder),
        None => whole(reader, encoder).await?,
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(SESSION, id);
    }
    Ok(Made(response))
}

/// Seconds since 1970.
async fn created(session: &SessionHandle) -> Result<u64, Problem> {
    let at = session.read(EventRange::None).await?.updated;
    Ok(u64::try_from(at.as_micros() / 1_000_000).unwrap_or_default())
}

/// Deletes the session of a request without a key when its run has ended and it has no reader any more. What waits or failed is kept: its
/// user can continue with it. So is one that has become more than the answer to its request.
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
    let stored = session.read(EventRange::All).await?;
    let is_of_run = |event: &Event| {
        event.invocation == *id && !["decided", "edited", "steered"].contains(&event.kind.as_str())
    };
    let is_alone = stored.events.iter().all(|committed| is_of_run(&committed.event));
    Ok(is_alone && session.inbox().await?.is_empty())
}

/// The completion of a request without a stream.
async fn whole(reader: Reader, encoder: Chunks) -> Result<Response<Body>, Problem> {
    let mut happenings = reader.into_stream().boxed();
    let mut whole = Completion { chunks: encoder, text: String::new() };
    while let Some(happening) = happenings.next().await {
        if let Happening::Ended { end: End::Failed(problem), .. } = happening {
            return Err(problem);
        }
        if let Some(completion) = whole.push(&happening) {
            return Ok(json_response(StatusCode::OK, &completion));
        }
    }
    Err(Problem::unavailable("the run was stopped"))
}

/// Makes chunks of a completion.
pub(super) struct Chunks {
    model: String,
    session: String,
    created: u64,
    with_usage: bool,
    id: String,
    has_text: bool,
    /// Texts of several replies are paragraphs.
    is_new_reply: bool,
}

impl Chunks {
    pub(super) fn new(model: &str, session: &str, created: u64, with_usage: bool) -> Self {
        let (model, session) = (model.to_owned(), session.to_owned());
        Chunks {
            model,
            session,
            created,
            with_usage,
            id: String::new(),
            has_text: false,
            is_new_reply: false,
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

    fn delta(&self, delta: &Value) -> Frame {
        Frame::Json(self.chunk(&json!([{"index": 0, "delta": delta, "finish_reason": null}])))
    }

    /// A text, as it follows what was said before.
    fn said(&mut self, text: &str) -> String {
        let is_paragraph = self.has_text && std::mem::take(&mut self.is_new_reply);
        self.has_text = true;
        if is_paragraph { format!("\n\n{text}") } else { text.to_owned() }
    }

    fn end(&self, end: &End, usage: Usage, version: u64) -> Vec<Frame> {
        if let End::Failed(problem) = end {
            return vec![Frame::Json(json!({"error": problem.in_form_of_openai()}))];
        }
        let mut last = self.chunk(&json!([{"index": 0, "delta": {}, "finish_reason": finish_reason(end)}]));
        last["stepfold"] = self.ours(end, version);
        let mut frames = vec![Frame::Json(last)];
        if self.with_usage {
            let mut chunk = self.chunk(&json!([]));
            chunk["usage"] = usage_row(usage);
            frames.push(Frame::Json(chunk));
        }
        frames.push(Frame::Done);
        frames
    }

    /// What the protocol has no words for.
    fn ours(&self, end: &End, version: u64) -> Value {
        let mut ours = json!({"session": self.session, "version": version});
        match end {
            End::Finished(reason) => ours["exit"] = exit(reason),
            End::Waiting(requests) => {
                ours["waiting"] =
                    crate::http::rows::json(&requests.iter().map(RequestRow::of).collect::<Vec<_>>());
            }
            End::Suspended => ours["exit"] = json!("suspended"),
            End::Failed(_) => {}
        }
        ours
    }
}

impl Encoder for Chunks {
    fn push(&mut self, happening: &Happening) -> Vec<Frame> {
        match happening {
            Happening::Began { invocation, .. } => {
                self.id = format!("chatcmpl-{invocation}");
                vec![self.delta(&json!({"role": "assistant", "content": ""}))]
            }
            Happening::Step(_) | Happening::Restarted => {
                self.is_new_reply = true;
                Vec::new()
            }
            Happening::Text(text) | Happening::Repeated(text) => {
                let text = self.said(text);
                vec![self.delta(&json!({"content": text}))]
            }
            Happening::Ended { end, usage, version } => self.end(end, *usage, *version),
            _ => Vec::new(),
        }
    }
}

/// Makes one completion.
struct Completion {
    chunks: Chunks,
    text: String,
}

impl Completion {
    fn push(&mut self, happening: &Happening) -> Option<Value> {
        let Happening::Ended { end, usage, version } = happening else {
            // A reply that was begun again has not been sent: only its text counts.
            match happening {
                Happening::Began { invocation, .. } => self.chunks.id = format!("chatcmpl-{invocation}"),
                Happening::Step(_) => self.chunks.is_new_reply = true,
                Happening::Text(text) | Happening::Repeated(text) => {
                    self.text.push_str(&self.chunks.said(text));
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
            "stepfold": self.chunks.ours(end, *version),
        }))
    }
}

const fn finish_reason(end: &End) -> &'static str {
    match end {
        End::Finished(Exit::Length | Exit::MaxTokens) => "length",
        End::Finished(Exit::ContentFilter | Exit::Refusal) => "content_filter",
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
