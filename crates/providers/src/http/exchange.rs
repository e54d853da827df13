//! One request and its answer. Whatever goes wrong on the way has become an error of a kind here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use reqwest::{Client, Request, Response};
use stepfold_state_core::chat::{ModelError, ModelErrorKind, TimeoutKind};
use tokio::time::timeout;

use super::events::{BadEvent, Event, Events, MAX_EVENT};
use super::fault::{Target, classify, request_id};
use super::guard;

/// The most bytes that are read of a body that should be an error, and how long that may take.
const MAX_ERROR: usize = 64 << 10;
const MAX_ERROR_TIME: Duration = Duration::from_secs(10);

/// The most bytes of a reply that comes in one piece.
const MAX_WHOLE: usize = 64 << 20;

/// How long nothing may come, once a reply has begun. Until then another limit holds.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    limit: Option<Duration>,
    has_begun: Arc<AtomicBool>,
}

impl Idle {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Idle { limit, has_begun: Arc::new(AtomicBool::new(false)) }
    }

    /// Says that the reply has begun.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }
}

/// A piece of a reply.
#[derive(Clone, Debug)]
pub enum Piece {
    /// An event of a stream.
    Event(Event),
    /// All of it, as JSON: from a server that does not stream, or an error with status 200.
    Whole(String),
}

/// The pieces of a reply. An error is the last item; a stream without one ended between two events.
pub(crate) type Pieces = BoxStream<'static, Result<Piece, ModelError>>;

/// Sends a request, and waits for what is answered.
pub(crate) async fn send(
    client: &Client,
    request: Request,
    idle: &Idle,
    target: &mut Target,
) -> Result<Pieces, ModelError> {
    guard::check(request.url()).map_err(|error| target.name(error))?;
    let address = request.url().origin().ascii_serialization();
    let sent = client.execute(request).await;
    let response = sent.map_err(|error| not_sent(target, &address, error))?;
    pieces(response, idle, target).await
}

/// The pieces of a response. Notes the id that the server gave to the request.
pub(crate) async fn pieces(
    response: Response,
    idle: &Idle,
    target: &mut Target,
) -> Result<Pieces, ModelError> {
    target.request_id = request_id(response.headers());
    let status = response.status();
    if !status.is_success() {
        let headers = response.headers().clone();
        // What came of the body until then has to do.
        let mut body = Vec::new();
        let read = read(response, MAX_ERROR, &mut body);
        let _ = timeout(MAX_ERROR_TIME, read).await;
        return Err(classify(target, Some(status), &headers, &String::from_utf8_lossy(&body)));
    }
    let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or("").to_lowercase();
    match content_type.split(';').next().unwrap_or("").trim() {
        // Some servers do not say what they send.
        "text/event-stream" | "" => Ok(events(response, idle, target.clone())),
        "application/json" => {
            let whole = whole(response, idle, target).await?;
            Ok(stream::iter([Ok(Piece::Whole(whole))]).boxed())
        }
        other => {
            let mut body = Vec::new();
            let _ = timeout(MAX_ERROR_TIME, read(response, MAX_ERROR, &mut body)).await;
            let body = String::from_utf8_lossy(&body);
            let message = format!("expected text/event-stream, found {other}: {body}");
            Err(target.error(ModelErrorKind::Malformed, message))
        }
    }
}

/// A body in one piece.
async fn whole(response: Response, idle: &Idle, target: &Target) -> Result<String, ModelError> {
    let mut bytes = response_bytes(response, idle, target);
    let mut body = Vec::new();
    while let Some(more) = bytes.next().await {
        body.extend_from_slice(&more?);
        if body.len() > MAX_WHOLE {
            return Err(target.error(ModelErrorKind::ReplyTooLarge { limit: MAX_WHOLE }, ""));
        }
    }
    String::from_utf8(body).map_err(|_| target.error(ModelErrorKind::Malformed, "the reply is not UTF-8"))
}

/// Reads a body until it ends, fails, or is larger than that.
async fn read(response: Response, limit: usize, body: &mut Vec<u8>) {
    let mut bytes = response.bytes_stream();
    while let Some(Ok(more)) = bytes.next().await {
        body.extend_from_slice(&more[..more.len().min(limit - body.len())]);
        if body.len() == limit {
            return;
        }
    }
}

/// The events of a response.
fn events(response: Response, idle: &Idle, target: Target) -> Pieces {
    let reader = Reader {
        bytes: response_bytes(response, idle, &target),
        events: Events::default(),
        ready: VecDeque::new(),
        target,
        end: None,
    };
    let events = stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
    events.map(|event| event.map(Piece::Event)).boxed()
}

struct Reader {
    bytes: BoxStream<'static, Result<Bytes, ModelError>>,
    events: Events,
    ready: VecDeque<Event>,
    target: Target,
    /// How it ends, once that is known. What is ready comes first.
    end: Option<Result<(), ModelError>>,
}

impl Reader {
    async fn next(&mut self) -> Option<Result<Event, ModelError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(end) = self.end.replace(Ok(())) {
                return end.err().map(Err);
            }
            self.end = match self.bytes.next().await {
                Some(Ok(bytes)) => self.read(&bytes).err().map(Err),
                Some(Err(error)) => Some(Err(error)),
                None if self.events.is_in_the_middle() => {
                    let message = "the stream ended in the middle of an event";
                    Some(Err(self.target.error(ModelErrorKind::CutOff, message)))
                }
                None => Some(Ok(())),
            };
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), ModelError> {
        let mut events = Vec::new();
        let read = self.events.push(bytes, &mut events);
        self.ready.extend(events);
        read.map_err(|fault| {
            let (kind, message) = match fault {
                BadEvent::TooLarge => {
                    (ModelErrorKind::ReplyTooLarge { limit: MAX_EVENT }, "in one event of the stream")
                }
                BadEvent::NotUtf8 => (ModelErrorKind::Malformed, "the stream is not UTF-8"),
            };
            self.target.error(kind, message)
        })
    }
}

/// The bytes of a response, given up on when none come for so long.
fn response_bytes(
    response: Response,
    idle: &Idle,
    target: &Target,
) -> BoxStream<'static, Result<Bytes, ModelError>> {
    let (idle, target) = (idle.clone(), target.clone());
    let bytes = response.bytes_stream().boxed();
    stream::unfold((bytes, idle, target), move |(mut bytes, idle, target)| async move {
        let next = loop {
            let Some(limit) = idle.limit else {
                break bytes.next().await;
            };
            match timeout(limit, bytes.next()).await {
                Ok(next) => break next,
                Err(_) if !idle.has_begun.load(Ordering::Relaxed) => {}
                Err(_) => {
                    let kind = ModelErrorKind::TimedOut(TimeoutKind::Idle);
                    let error = target.error(kind, format!("nothing came for {limit:?}"));
                    return Some((Err(error), (stream::empty().boxed(), idle, target)));
                }
            }
        };
        let item = next?.map_err(|error| {
            let message = format!("the connection broke while the reply came: {}", cause(&error));
            target.error(ModelErrorKind::CutOff, message).with_source(error.without_url())
        });
        Some((item, (bytes, idle, target)))
    })
    .boxed()
}

/// The error for a request that got no response.
fn not_sent(target: &Target, address: &str, error: reqwest::Error) -> ModelError {
    let (kind, what) = if error.is_builder() {
        (ModelErrorKind::InvalidRequest, "could not write a request to")
    } else if error.is_connect() && error.is_timeout() {
        (ModelErrorKind::TimedOut(TimeoutKind::Connect), "could not connect to")
    } else if error.is_connect() {
        (ModelErrorKind::Transient, "could not connect to")
    } else {
        (ModelErrorKind::Transient, "no response from")
    };
    let message = format!("{what} {address}: {}", cause(&error));
    target.error(kind, message).with_source(error.without_url())
}

/// What is at the bottom of an error; the layers above say less.
fn cause(error: &dyn std::error::Error) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}
