//! Internals for benchmarks and tests of request bodies, without a socket. Not part of the public interface.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use stepfold_state_core::chat::{ChatRequest, ModelError, ReplyStream};

use crate::anthropic::Anthropic;
use crate::dialect::Dialect;
use crate::gemini::Gemini;
use crate::model::HttpModel;
use crate::openai::{OpenAi, OpenAiResponses, Preset};

/// Returns a function that writes bodies of one model, with a cache of messages.
pub fn openai_body(preset: Preset) -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    body(OpenAi::preset(&preset, "m").base_url("http://127.0.0.1").key("key").build())
}

/// Returns a function that writes bodies of one model, with a cache of messages.
pub fn anthropic_body(marks_cache: bool) -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    body(Anthropic::new("m", "key").cache_prompts(marks_cache).build())
}

/// Returns a function that writes bodies of one model, with a cache of messages.
pub fn responses_body() -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    body(OpenAiResponses::new("m", "key"))
}

/// Returns a function that writes bodies of one model, with a cache of messages.
pub fn gemini_body() -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    body(Gemini::new("m", "key").build())
}

fn body<D: Dialect>(
    model: Result<HttpModel<D>, ModelError>,
) -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    move |request| model.as_ref().map_err(Clone::clone)?.body(request)
}

/// A response with its body in these pieces.
#[derive(Clone, Debug)]
pub struct ProbeResponse {
    /// Its status. One that does not exist is taken for 500.
    pub status: u16,
    /// The content type; none if empty.
    pub content_type: &'static str,
    /// The body, in pieces.
    pub pieces: Vec<Vec<u8>>,
    /// The pause of the server before each piece.
    pub pause: Duration,
}

/// Reads a response to a request as the model would after the socket.
pub fn reply_to<D: Dialect>(
    model: &HttpModel<D>,
    request: ChatRequest,
    response: ProbeResponse,
) -> ReplyStream {
    model.answer(request, Some(response.into()))
}

/// Reads a response as the model would after the socket.
pub fn reply<D: Dialect>(model: &HttpModel<D>, response: ProbeResponse) -> ReplyStream {
    model.answer(ChatRequest::default(), Some(response.into()))
}

impl From<ProbeResponse> for reqwest::Response {
    fn from(ProbeResponse { status, content_type, pieces, pause }: ProbeResponse) -> Self {
        let pieces = stream::iter(pieces).then(move |piece| async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Ok::<_, std::convert::Infallible>(piece)
        });
        let mut response = http::Response::new(reqwest::Body::wrap_stream(pieces));
        *response.status_mut() =
            http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        if !content_type.is_empty() {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        response.into()
    }
}
