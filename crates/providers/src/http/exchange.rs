//! One request and its response. Every failure of the transport becomes an error with a kind here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Request, Response};
use stepfold_state_core::chat::{ModelError, ModelErrorKind, TimeoutKind};
use tokio::time::timeout;

use super::guard;
use super::server_error::{ErrorContext, classify, request_id};
use super::sse::{MAX_EVENT, SseEvent, SseFault, SseParser};

/// The limits on the bytes of the body of an error, and on the time to read it.
const MAX_ERROR: usize = 64 << 10;
const MAX_ERROR_TIME: Duration = Duration::from_secs(10);

/// The maximum bytes of a reply, including its protocol.
// NOTE: Counts comments and pings, too, so that endless keep-alive data is bounded as well.
const MAX_REPLY: usize = 64 << 20;

/// The progress of a reply, and its limit on idle time. Before the first chunk another limit applies.
#[derive(Clone, Debug)]
pub(crate) struct ReplyProgress {
    idle: Option<Duration>,
    has_begun: Arc<AtomicBool>,
    is_whole: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
}

impl ReplyProgress {
    pub(crate) fn new(idle: Option<Duration>) -> Self {
        ReplyProgress { idle, has_begun: Arc::default(), is_whole: Arc::default(), held: Arc::default() }
    }

    /// Marks the reply as begun.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Marks the reply as complete: later data does not matter.
    pub(crate) fn finish(&self) {
        self.is_whole.store(true, Ordering::Relaxed);
    }

    /// Sets the amount of the reply that is held back.
    pub(crate) fn hold(&self, held: usize) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// The amount of the reply that is held back.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the reply is complete.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }
}

/// A piece of a reply.
#[derive(Clone, Debug)]
pub enum ReplyPiece {
    /// An event of a stream.
    Event(SseEvent),
    /// All of it, as JSON: from a server that does not stream, or an error with status 200.
    Whole(String),
}

/// The pieces of a reply. An error is the last item; a stream without one ended between two events.
pub(crate) type PieceStream = BoxStream<'static, Result<ReplyPiece, ModelError>>;

/// The bytes of a body. An error is the last item.
type ByteStream = BoxStream<'static, Result<Bytes, ModelError>>;

/// Sends a request, and waits for the response.
pub(crate) async fn send(
    client: &Client,
    request: Request,
    progress: &ReplyProgress,
    context: &mut ErrorContext,
) -> Result<PieceStream, ModelError> {
    guard::check(request.url()).map_err(|error| context.label(error))?;
    let address = request.url().origin().ascii_serialization();
    let sent = client.execute(request).await;
    let response = sent.map_err(|error| not_sent(context, &address, error))?;
    pieces(response, progress, context).await
}

/// The pieces of a response. Notes the id that the server gave to the request.
pub(crate) async fn pieces(
    response: Response,
    progress: &ReplyProgress,
    context: &mut ErrorContext,
) -> Result<PieceStream, ModelError> {
    context.request_id = request_id(response.headers());
    let status = response.status();
    if !status.is_success() {
        let headers = response.headers().clone();
        // Uses the part of the body received so far.
        let mut body = Vec::new();
        let read = read(response.bytes_stream().boxed(), MAX_ERROR, &mut body);
        let _ = timeout(MAX_ERROR_TIME, read).await;
        let text = if encoding(&headers).is_some() { "".into() } else { String::from_utf8_lossy(&body) };
        return Err(classify(context, Some(status), &headers, &text));
    }
    if let Some(encoding) = encoding(response.headers()) {
        let message = format!("unsupported content encoding {encoding:?}: the request did not accept one");
        return Err(context.error(ModelErrorKind::Unsupported, message));
    }
    let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or("").to_lowercase();
    let content_type = content_type.split(';').next().unwrap_or("").trim();
    let bytes = response_bytes(response, progress, context);
    match content_type {
        "application/json" => whole(bytes, context).await,
        // Some servers send no content type, or a wrong one: an error as JSON, say, in place of a stream.
        "" | "text/event-stream" | "text/plain" | "application/octet-stream" => {
            detect_kind(bytes, content_type, context).await
        }
        other => Err(unexpected(bytes, other, context).await),
    }
}

/// Returns the encoding of a body, which the request did not accept.
fn encoding(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get("content-encoding").filter(|name| *name != "identity")
}

/// Detects the kind of a body by its first bytes, without a content type or with one that may be wrong.
async fn detect_kind(
    mut bytes: ByteStream,
    content_type: &str,
    context: &ErrorContext,
) -> Result<PieceStream, ModelError> {
    let is_stream = content_type == "text/event-stream";
    let least = if is_stream { 1 } else { 6 };
    let mut head = Vec::new();
    while start_of(&head).len() < least
        && let Some(more) = bytes.next().await
    {
        head.extend_from_slice(&more?);
        if start_of(&head).is_empty() && head.len() > BOM.len() {
            // NOTE: White space does not tell the kind, and endless white space must not fill the memory.
            head.clear();
        }
    }
    let start = start_of(&head);
    let fields: [&[u8]; 6] = [b"data", b"event:", b"id:", b"retry:", b"error:", b":"];
    let is_json = matches!(start.first(), Some(b'{' | b'['));
    let is_events = fields.iter().any(|field| start.starts_with(field))
        || (start.is_empty() && content_type.is_empty())
        || (is_stream && !is_json);
    let all = stream::iter([Ok(Bytes::from(head))]).chain(bytes).boxed();
    match (is_events, is_json) {
        (true, _) => Ok(events(all, context.clone())),
        (_, true) => whole(all, context).await,
        _ => {
            Err(unexpected(all, if content_type.is_empty() { "no type" } else { content_type }, context)
                .await)
        }
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Returns the start of a body after a byte order mark (or a part of one) and white space.
fn start_of(head: &[u8]) -> &[u8] {
    if BOM.starts_with(head) { &[] } else { head.strip_prefix(BOM).unwrap_or(head).trim_ascii_start() }
}

/// The error of a body that is not a reply.
async fn unexpected(bytes: ByteStream, content_type: &str, context: &ErrorContext) -> ModelError {
    let mut body = Vec::new();
    let _ = timeout(MAX_ERROR_TIME, read(bytes, MAX_ERROR, &mut body)).await;
    let body = String::from_utf8_lossy(&body);
    let message = format!("expected text/event-stream, found {content_type}: {body}");
    context.error(ModelErrorKind::Malformed, message)
}

/// A body in one piece.
async fn whole(mut bytes: ByteStream, context: &ErrorContext) -> Result<PieceStream, ModelError> {
    let mut body = Vec::new();
    while let Some(more) = bytes.next().await {
        body.extend_from_slice(&more?);
    }
    match String::from_utf8(body) {
        Ok(text) => {
            let text = text.trim_start_matches('\u{feff}').to_owned();
            Ok(stream::iter([Ok(ReplyPiece::Whole(text))]).boxed())
        }
        Err(_) => Err(context.error(ModelErrorKind::Malformed, "expected UTF-8 in the reply")),
    }
}

/// Reads a body until it ends, fails, or reaches the limit.
async fn read<E>(mut bytes: impl Stream<Item = Result<Bytes, E>> + Unpin, limit: usize, body: &mut Vec<u8>) {
    while let Some(Ok(more)) = bytes.next().await {
        body.extend_from_slice(&more[..more.len().min(limit - body.len())]);
        if body.len() == limit {
            return;
        }
    }
}

/// The events of a body.
fn events(bytes: ByteStream, context: ErrorContext) -> PieceStream {
    let (events, ready) = (SseParser::default(), VecDeque::new());
    let reader = EventReader { bytes, events, ready, context, end: None };
    let events = stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
    events.map(|event| event.map(ReplyPiece::Event)).boxed()
}

struct EventReader {
    bytes: ByteStream,
    events: SseParser,
    ready: VecDeque<SseEvent>,
    context: ErrorContext,
    /// The result at the end, once it is known. Buffered data comes first.
    end: Option<Result<(), ModelError>>,
}

impl EventReader {
    async fn next(&mut self) -> Option<Result<SseEvent, ModelError>> {
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
                None if self.events.is_within_event() => {
                    let message = "the stream ended in the middle of an event";
                    Some(Err(self.context.error(ModelErrorKind::Truncated, message)))
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
                SseFault::TooLarge => {
                    (ModelErrorKind::ReplyTooLarge { limit: MAX_EVENT }, "in one event of the stream")
                }
                SseFault::NotUtf8 => (ModelErrorKind::Malformed, "the stream is not UTF-8"),
            };
            self.context.error(kind, message)
        })
    }
}

/// The bytes of a response, limited in idle time and size.
fn response_bytes(response: Response, progress: &ReplyProgress, context: &ErrorContext) -> ByteStream {
    let bytes = response.bytes_stream().boxed();
    let incoming = LimitedBytes { bytes, progress: progress.clone(), context: context.clone(), count: 0 };
    stream::unfold(incoming, |mut incoming| async move { Some((incoming.next().await?, incoming)) })
        .fuse()
        .boxed()
}

struct LimitedBytes {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    progress: ReplyProgress,
    context: ErrorContext,
    /// The number of received bytes, comments and pings included.
    count: usize,
}

impl LimitedBytes {
    async fn next(&mut self) -> Option<Result<Bytes, ModelError>> {
        let next = loop {
            let Some(limit) = self.progress.idle else {
                break self.bytes.next().await;
            };
            match timeout(limit, self.bytes.next()).await {
                Ok(next) => break next,
                // NOTE: Before the first piece of the reply the limit for the first token applies.
                Err(_) if !self.progress.has_begun.load(Ordering::Relaxed) => {}
                Err(_) => {
                    let kind = ModelErrorKind::TimedOut(TimeoutKind::Idle);
                    return Some(Err(self.fail(kind, &format!("no data for {limit:?}"))));
                }
            }
        };
        let bytes = match next? {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("connection lost during the reply: {}", cause(&error));
                let failed = self.fail(ModelErrorKind::Truncated, &message);
                return Some(Err(failed.with_source(error.without_url())));
            }
        };
        self.count = self.count.saturating_add(bytes.len());
        if self.count > MAX_REPLY {
            return Some(Err(self.fail(ModelErrorKind::ReplyTooLarge { limit: MAX_REPLY }, "")));
        }
        Some(Ok(bytes))
    }

    /// The last error: the connection is released.
    fn fail(&mut self, kind: ModelErrorKind, message: &str) -> ModelError {
        self.bytes = stream::empty().boxed();
        self.context.error(kind, message)
    }
}

/// The error for a request that got no response.
fn not_sent(context: &ErrorContext, address: &str, error: reqwest::Error) -> ModelError {
    let (kind, what) = if error.is_builder() {
        (ModelErrorKind::InvalidRequest, "could not write a request to")
    } else if is_untrusted(&error) {
        // NOTE: A kind of its own: a retry does not help, and neither the key nor the request is wrong.
        (ModelErrorKind::Untrusted, "invalid certificate of")
    } else if error.is_connect() && error.is_timeout() {
        (ModelErrorKind::TimedOut(TimeoutKind::Connect), "could not connect to")
    } else if error.is_connect() {
        (ModelErrorKind::Transient, "could not connect to")
    } else {
        (ModelErrorKind::Transient, "no response from")
    };
    let message = format!("{what} {address}: {}", cause(&error));
    context.error(kind, message).with_source(error.without_url())
}

/// Whether the certificate of the server is invalid: a retry fails again.
fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    // NOTE: `io::Error::source` skips the wrapped error and returns that error's source, so `get_ref` is asked first.
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) =
            error.downcast_ref()
        {
            return true;
        }
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

/// The root cause of an error, which is more specific than the outer layers.
fn cause(error: &dyn std::error::Error) -> String {
    let mut bottom = error;
    while let Some(source) = bottom.source() {
        bottom = source;
    }
    bottom.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_trusted_is_found_below_errors_of_transport() {
        let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let other = rustls::Error::HandshakeNotComplete;
        for (error, expected) in [(bad.clone(), true), (other, false)] {
            let below = std::io::Error::other(std::io::Error::other(error));
            assert_eq!(is_untrusted(&below), expected, "{below:?}");
        }
        assert!(is_untrusted(&bad));
    }
}
