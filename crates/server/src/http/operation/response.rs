//! The headers of all responses, and bodies that keep what they hold until they are sent.

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt as _;

/// A response with what all responses have.
pub(in crate::http) fn finish(response: Response, foreign: Option<HeaderValue>) -> Response {
    with_origin(with_headers(response), foreign)
}

/// The bytes of a piece of a large response.
pub(in crate::http) const SLICE: usize = 64 << 10;

/// A response whose body is sent piece by piece: a connection takes no more of it than its client reads.
pub(in crate::http) fn in_slices(mut response: Response) -> Response {
    if let Some(bytes) = response.body().size_hint().exact() {
        // NOTE: A body of slices has no known length.
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    response.map(|body| {
        let slices = body.into_data_stream().flat_map(|data| match data {
            Ok(data) => {
                let starts = (0..data.len()).step_by(SLICE);
                let slices = starts.map(move |start| Ok(data.slice(start..data.len().min(start + SLICE))));
                futures_util::stream::iter(slices).left_stream()
            }
            Err(error) => futures_util::stream::iter([Err(error)]).right_stream(),
        });
        Body::from_stream(slices)
    })
}

/// A response that keeps something until its body has ended, or its client is gone.
pub(in crate::http) fn holding<B>(response: http::Response<B>, kept: impl Send + 'static) -> Response
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &kept;
            frame
        }))
    })
}

/// The headers of every response.
pub(in crate::http) fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let policy = "default-src 'none'; frame-ancestors 'none'";
    for (name, value) in [
        // NOTE: Answers are of one principal, whose token may be in a cookie: no cache may keep them.
        ("cache-control", "no-store"),
        ("content-security-policy", policy),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    ] {
        // NOTE: A page has a policy of its own, which stays.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// The headers that pages of an allowed origin may send.
const ALLOWED_HEADERS: &str = "a2a-version, authorization, content-type, idempotency-key, last-event-id, mcp-method, mcp-name, \
                               mcp-protocol-version, mcp-session-id, openai-organization, openai-project, user-agent, \
                               x-stepfold-session";

/// The prefix of the headers by which clients of OpenAI describe themselves: each version has others.
const CLIENT_HEADERS: &str = "x-stainless-";

/// The number of them that a page may send.
const MAX_CLIENT_HEADERS: usize = 32;

/// The allowed headers, with those of a preflight request that are headers of clients.
pub(in crate::http) fn allowed_headers(asked: &HeaderMap) -> HeaderValue {
    let asked = asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter();
    let names = asked.filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(','));
    let names = names.map(|name| name.trim().to_ascii_lowercase());
    let is_name = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let names = names.filter(|name| name.starts_with(CLIENT_HEADERS) && is_name(name));
    let allowed =
        names.take(MAX_CLIENT_HEADERS).fold(ALLOWED_HEADERS.to_owned(), |all, name| all + ", " + &name);
    HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static(ALLOWED_HEADERS))
}

/// Lets pages of an allowed origin read the response.
pub(in crate::http) fn with_origin(mut response: Response, foreign: Option<HeaderValue>) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let Some(origin) = foreign else { return response };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS),
        (
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            "location, mcp-session-id, retry-after, x-stepfold-session, x-vercel-ai-ui-message-stream",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
