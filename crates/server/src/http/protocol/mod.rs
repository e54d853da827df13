//! Protocols of others: the same sessions, runs and decisions, for clients that exist.
//!
//! A protocol is a route in the table below, which passes what every operation passes; a function that reads what its client
//! asks for (a message or decisions); and an encoder, which turns what happens into frames and knows nothing else.

mod agui;
mod ai;
mod happening;
mod openai;
#[cfg(test)]
mod tests;

use axum::body::Body;
use futures_util::StreamExt as _;
use http::{Method, Response, StatusCode};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stepfold_agent_loop::{Decision, Input};
use stepfold_runner::{Invocation, Runner, SessionHandle};

use self::happening::{Before, Happening, Reader};
use super::auth::{Principal, Role};
use super::limits::Place;
use super::operation::{Answer, Operation};
use super::problem::{Form, Problem};
use super::protocols::event_stream;
use super::server::Shared;

/// The operations of all protocols. Their paths are whole.
pub(super) fn operations() -> Vec<Operation> {
    let act = Role::Act;
    let mut operations = vec![
        Operation::new(
            Method::GET,
            "/v1/models",
            Role::Read,
            "openai_models",
            openai::MODELS,
            openai::models,
        ),
        Operation::new(Method::POST, "/v1/chat/completions", act, "openai_chat", openai::CHAT, openai::chat),
        Operation::new(Method::POST, "/agui/{app}", act, "agui_run", agui::RUN, agui::run),
        Operation::new(Method::POST, "/ai/{app}", act, "ai_chat", ai::CHAT, ai::chat),
        Operation::new(
            Method::GET,
            "/ai/{app}/{session}/stream",
            Role::Read,
            "ai_resume",
            ai::RESUME,
            ai::resume,
        ),
    ];
    for operation in &mut operations {
        operation.base = "";
        if operation.id.starts_with("openai") {
            operation.form = Form::OpenAi;
        }
        operation.takes_key = operation.id == "openai_chat";
    }
    operations
}

/// Turns what happens into frames: a pure state machine.
trait Encoder: Send + 'static {
    fn push(&mut self, happening: &Happening) -> Vec<Frame>;
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Frame {
    Json(Value),
    /// The end, as some protocols say it.
    Done,
}

impl Frame {
    fn text(&self) -> String {
        match self {
            Frame::Json(value) => format!("data: {value}\n\n"),
            Frame::Done => "data: [DONE]\n\n".to_owned(),
        }
    }
}

/// A response that a protocol has made itself.
struct Made(Response<Body>);

impl Answer for Made {
    const STATUS: StatusCode = StatusCode::OK;
    const MEDIA_TYPE: Option<&'static str> = Some("text/event-stream");

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        Some(schemars::json_schema!({"type": "string"}))
    }

    fn respond(self) -> Response<Body> {
        self.0
    }
}

/// What a client asks for.
enum Order {
    /// To run with this; once, if there is a key.
    Send(Box<Input>, Option<String>),
    /// To go on with these decisions, by the ids of their requests; once for the key.
    Decide(Vec<(String, Decision)>, String),
}

/// Accepts what a client asks for. The run goes on without the reader.
async fn accept(
    shared: &Shared,
    principal: &Principal,
    runner: &Runner,
    session: SessionHandle,
    order: Order,
) -> Result<Reader, Problem> {
    let place = shared.usage.run(principal.user(), &shared.limits)?;
    let before = Before::read(&session).await?;
    let invocation = match order {
        Order::Send(input, None) => session.send(*input).await?,
        Order::Send(input, Some(key)) => session.send_once(key, *input).await?,
        Order::Decide(decisions, key) => {
            let resume = session.resume().decide_all(decisions).by(principal.name()).idempotency_key(key);
            resume.submit().await?.1
        }
    };
    hold(invocation.clone(), place);
    Ok(Reader::new(runner, session, invocation, before))
}

/// The place of a run is taken until it ends or waits.
fn hold(invocation: Invocation, place: Place) {
    tokio::spawn(async move {
        if let Err(error) = invocation.outcome().await {
            tracing::info!(invocation = %invocation.id(), %error, "invocation failed");
        }
        drop(place);
    });
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

/// A response that streams what happens. It ends with its client, and stops nothing else.
fn stream(
    shared: &Shared,
    principal: &Principal,
    reader: Reader,
    mut encoder: impl Encoder,
) -> Result<Response<Body>, Problem> {
    let frames = reader
        .into_stream()
        .map(move |happening| encoder.push(&happening).iter().map(Frame::text).collect::<String>());
    event_stream(shared, principal, frames.filter(|text| std::future::ready(!text.is_empty())))
}
