//! Protocols of others: the same sessions, runs and decisions, for clients that exist.
//!
//! A protocol is a route in the table below, which passes what every operation passes; a function that reads what its
//! client requests (a message or decisions); and an encoder, which turns updates of a run into frames and knows nothing
//! else.

mod a2a;
mod adk;
mod agui;
mod ai;
mod openai;
mod run_updates;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stepfold_agent_loop::{Decision, Input};
use stepfold_runner::{Invocation, Runner, RunnerError, SessionHandle};
use tokio::sync::watch;

pub(super) use self::a2a::mount_cards;
use self::run_updates::{RunReader, RunStart, RunUpdate};
use crate::http::app::App;
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::limits::LimitPermit;
use crate::http::guard::problem::{Problem, ProblemForm};
use crate::http::operation::ApiOperation;
use crate::http::operation::reply::{ApiReply, EventStream, MediaSchemas, text_schema};
use crate::http::operation::request::find_session;
use crate::http::phase::{ServerPhase, reaches};
use crate::http::state::ServerState;
use crate::http::streams::permit::StreamPermit;
use crate::http::streams::sse::KEEP_ALIVE;

/// The time that a stream has to send the last events of runs that have ended with the server.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// The operations of all protocols. Their paths are whole.
pub(super) fn operations() -> Vec<ApiOperation> {
    let act = Role::Act;
    let mut operations = vec![
        ApiOperation::new(
            Method::GET,
            "/v1/models",
            Role::Read,
            "openai_models",
            openai::MODELS,
            openai::models,
        ),
        ApiOperation::new(
            Method::GET,
            "/v1/models/{app}",
            Role::Read,
            "openai_model",
            openai::MODEL,
            openai::model,
        ),
        ApiOperation::new(
            Method::POST,
            "/v1/chat/completions",
            act,
            "openai_chat",
            openai::CHAT,
            openai::chat,
        ),
        ApiOperation::new(Method::POST, "/agui/{app}", act, "agui_run", agui::RUN, agui::run),
        ApiOperation::new(Method::POST, "/ai/{app}", act, "ai_chat", ai::CHAT, ai::chat),
        ApiOperation::new(
            Method::GET,
            "/ai/{app}/{session}/stream",
            Role::Read,
            "ai_resume",
            ai::RESUME,
            ai::resume,
        ),
        ApiOperation::new(Method::POST, "/a2a/{app}", Role::Read, "a2a", a2a::CALL, a2a::call),
    ];
    // NOTE: All are served by default: they reach nothing that the API does not, and pass the same table and its tests
    // (docs/decisions/server.md).
    operations.extend(adk::operations());
    for operation in &mut operations {
        operation.base = "";
        if operation.id.starts_with("openai") {
            operation.form = ProblemForm::OpenAi;
        }
        operation.takes_key = operation.id == "openai_chat";
        operation.may_be_empty = operation.id == "ai_resume";
    }
    operations
}

/// Turns updates of a run into frames: a pure state machine.
// NOTE: Encoders get updates, not events of a run: missed, repeated and restarted text is handled once, below them
// (docs/decisions/server.md).
trait UpdateEncoder: Send + 'static {
    fn push(&mut self, update: &RunUpdate) -> Vec<ProtocolFrame>;
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProtocolFrame {
    Json(Value),
    /// The end, as some protocols say it.
    Done,
}

impl ProtocolFrame {
    fn text(&self) -> String {
        match self {
            ProtocolFrame::Json(value) => format!("data: {value}\n\n"),
            ProtocolFrame::Done => "data: [DONE]\n\n".to_owned(),
        }
    }

    fn into_json(self) -> Option<Value> {
        match self {
            ProtocolFrame::Json(value) => Some(value),
            ProtocolFrame::Done => None,
        }
    }
}

/// A query of which nothing is read: clients of others send what they like.
#[derive(Deserialize, JsonSchema)]
struct AnyQuery {}

/// A response that a protocol has made itself.
impl ApiReply for Response {
    fn shapes(_: &mut SchemaGenerator) -> MediaSchemas {
        vec![("text/event-stream", text_schema()), ("application/json", Schema::default())]
    }
}

/// A request of a client: a message or decisions.
enum ClientRequest {
    /// To run with this; once, if there is a key.
    Send(Box<Input>, Option<String>),
    /// To continue with these decisions, by the ids of their requests; once, if there is a key.
    Decide(Vec<(String, Decision)>, Option<String>),
}

/// The session that a client names. A message creates one; decisions are about one that exists.
async fn session_of(
    app: &App,
    principal: &Principal,
    id: &str,
    order: &ClientRequest,
) -> Result<SessionHandle, Problem> {
    match order {
        ClientRequest::Send(..) => Ok(app.runner().session(principal.user().as_str(), id).await?),
        ClientRequest::Decide(..) => find_session(app, principal, id).await,
    }
}

/// Takes a permit for a run, before anything is stored for it: a client beyond its limit leaves nothing behind.
fn run_permit(shared: &ServerState, principal: &Principal) -> Result<LimitPermit, Problem> {
    shared.usage.run_permit(principal.user(), &shared.limits)
}

/// Accepts what a client asks for. The run continues without the reader.
async fn accept<E: From<Problem> + From<RunnerError>>(
    permit: LimitPermit,
    principal: &Principal,
    runner: &Runner,
    session: SessionHandle,
    order: ClientRequest,
) -> Result<RunReader, E> {
    // NOTE: Before the message is accepted: the stream begins with the session as it was.
    let before = RunStart::read(runner, &session).await?;
    let (invocation, taken) = match order {
        ClientRequest::Send(input, None) => (session.send(*input).await?, None),
        ClientRequest::Send(input, Some(key)) => {
            let invocation = session.send_once(key, *input).await?;
            let taken = session.taken_at(invocation.id()).await?;
            (invocation, taken)
        }
        ClientRequest::Decide(decisions, key) => {
            let resume = session.resume().decide_all(decisions).by(principal.name());
            let resume = match key {
                Some(key) => resume.idempotency_key(key),
                None => resume,
            };
            let (receipt, invocation) = resume.submit().await?;
            (invocation, Some(receipt.version))
        }
    };
    hold_permit(invocation.clone(), permit);
    let before = before.or_earlier(runner, &session, taken).await?;
    Ok(RunReader::new(runner, session, invocation, before))
}

/// Holds the permit of a run until it ends or waits.
fn hold_permit(invocation: Invocation, permit: LimitPermit) {
    tokio::spawn(async move {
        // The runner logs a failure.
        let _ = invocation.outcome().await;
        drop(permit);
    });
}

/// The text of a message, which must have some: providers refuse one without, and the session would keep it.
fn with_words(field: &'static str, text: String) -> Result<String, Problem> {
    match text.trim().is_empty() {
        true => Err(Problem::invalid(field, "expected text, found none")),
        false => Ok(text),
    }
}

/// A key of what the client itself gives names to: the same request again has the same one.
fn key_of(parts: &[&str]) -> String {
    use base64::Engine as _;
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_le_bytes());
        digest.update(part.as_bytes());
    }
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&digest.finalize()[..18])
}

/// A response that streams the updates of a run. It ends with its client, and stops nothing else.
fn stream(stream_permit: StreamPermit, reader: RunReader, mut encoder: impl UpdateEncoder) -> Response {
    let frames = reader
        .into_stream()
        .map(move |update| encoder.push(&update).iter().map(ProtocolFrame::text).collect::<String>());
    event_stream(stream_permit, frames.filter(|text| std::future::ready(!text.is_empty())))
}

/// A response of server-sent events.
fn event_stream(
    stream_permit: StreamPermit,
    events: impl Stream<Item = String> + Send + 'static,
) -> Response {
    let StreamPermit { keep_alive, phase, permit, .. } = stream_permit;
    let events = events.take_until(stopped(phase)).boxed();
    let chunks = futures_util::stream::unfold((events, permit), move |(mut events, permit)| async move {
        let chunk = next_chunk(&mut events, keep_alive).await?;
        Some((Ok::<_, Infallible>(chunk), (events, permit)))
    });
    EventStream(Body::from_stream(chunks)).into_response()
}

/// Waits until the server has stopped and the last events of its runs are sent: what a stream still follows then is a run
/// of another process.
async fn stopped(mut phase: watch::Receiver<ServerPhase>) {
    reaches(&mut phase, ServerPhase::Stopped).await;
    tokio::time::sleep(LAST_EVENTS).await;
}

/// The next event, or a comment that keeps proxies from closing the connection.
async fn next_chunk(events: &mut BoxStream<'static, String>, keep_alive: Duration) -> Option<Bytes> {
    match tokio::time::timeout(keep_alive, events.next()).await {
        Ok(event) => event.map(Bytes::from),
        Err(_) => Some(KEEP_ALIVE),
    }
}
