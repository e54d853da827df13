//! The fence around async-openai.
//!
//! The library writes the request and reads the stream; what it would lose is kept here. It sees a service
//! of ours in place of an HTTP client: our body goes out in place of its own, an error of any kind is put
//! aside before it can be flattened, and the events that come in are whole, valid, and no more than its
//! reader can keep up with. How a stream ended is told by what was put aside, never by the library.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use async_openai::config::Config;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use async_openai::types::stream::StreamResponse;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use reqwest::header::HeaderMap;
use secrecy::SecretString;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use stepfold_state_core::chat::{ModelError, ModelErrorKind};
use tokio::sync::Notify;

use super::chunk::RawChunk;
use crate::http::{Answer, Idle, Target, event_stream, send};

/// Where requests go and how.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) client: reqwest::Client,
    pub(super) url: String,
    pub(super) headers: HeaderMap,
}

/// A reply that is coming in.
pub(super) struct Incoming {
    chunks: StreamResponse<RawChunk>,
    aside: Arc<Aside>,
}

/// What is kept where the library cannot lose it.
#[derive(Debug)]
struct Aside {
    target: Mutex<Target>,
    fault: Mutex<Option<ModelError>>,
    /// Bytes that were handed to the library and not read yet, as far as we know.
    ahead: AtomicUsize,
    was_read: Notify,
}

/// How far the library may be ahead of the reader: its own queue has no bound.
const MAX_AHEAD: usize = 256 << 10;

impl Endpoint {
    /// Sends a request and waits for its stream to open.
    pub(super) async fn open(
        &self,
        body: Vec<u8>,
        target: Target,
        idle: Idle,
    ) -> Result<Incoming, ModelError> {
        let aside = Arc::new(Aside::new(target));
        let service =
            Service { client: self.client.clone(), body: body.into(), idle, aside: Arc::clone(&aside) };
        self.open_by(service, aside).await
    }

    /// Reads a response that came, as if it were the answer to a request.
    #[cfg(feature = "anthropic")]
    pub(super) async fn open_given(
        &self,
        response: reqwest::Response,
        target: Target,
        idle: Idle,
    ) -> Result<Incoming, ModelError> {
        let aside = Arc::new(Aside::new(target));
        let response = Arc::new(Mutex::new(Some(response)));
        self.open_by(Given { response, idle, aside: Arc::clone(&aside) }, aside).await
    }

    /// Has the library ask this service.
    async fn open_by<S>(&self, service: S, aside: Arc<Aside>) -> Result<Incoming, ModelError>
    where
        S: tower_service::Service<
                HttpRequestFactory,
                Response = reqwest::Response,
                Error = OpenAIError,
                Future: Send + 'static,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let config =
            Fixed { url: self.url.clone(), headers: self.headers.clone(), key: SecretString::default() };
        let client = async_openai::Client::build(self.client.clone(), config).with_http_service(service);
        match client.chat().create_stream_byot::<_, RawChunk>(()).await {
            Ok(chunks) => Ok(Incoming { chunks, aside }),
            Err(error) => Err(aside
                .take_fault()
                .unwrap_or_else(|| aside.error(ModelErrorKind::InvalidRequest, &error.to_string()))),
        }
    }
}

impl Incoming {
    /// Its chunks. An end without an error looks like one; whether it is one the decoder knows.
    pub(super) fn into_stream(self) -> BoxStream<'static, Result<RawChunk, ModelError>> {
        stream::unfold(self, |mut incoming| async move { Some((incoming.next().await?, incoming)) }).boxed()
    }

    async fn next(&mut self) -> Option<Result<RawChunk, ModelError>> {
        let next = if let Some(next) = self.chunks.next().now_or_never() {
            next
        } else {
            self.aside.ahead.store(0, Ordering::SeqCst);
            self.aside.was_read.notify_one();
            self.chunks.next().await
        };
        match next {
            Some(Ok(chunk)) => Some(Ok(chunk)),
            // Events are checked before the library sees them; what it cannot read has another shape.
            // What was put aside may be about a later one.
            Some(Err(OpenAIError::JSONDeserialize(error, _))) => {
                let message = format!("a chunk has no shape that we know: {error}");
                Some(Err(self.aside.error(ModelErrorKind::Malformed, &message)))
            }
            Some(Err(error)) => Some(Err(self
                .aside
                .take_fault()
                .unwrap_or_else(|| self.aside.error(ModelErrorKind::Malformed, &error.to_string())))),
            None => self.aside.take_fault().map(Err),
        }
    }

    /// Whom the reply is from.
    pub(super) fn target(&self) -> Target {
        self.aside.target()
    }
}

impl Aside {
    fn new(target: Target) -> Self {
        Aside {
            target: Mutex::new(target),
            fault: Mutex::new(None),
            ahead: AtomicUsize::new(0),
            was_read: Notify::new(),
        }
    }

    fn target(&self) -> Target {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn error(&self, kind: ModelErrorKind, message: &str) -> ModelError {
        self.target().error(kind, message)
    }

    fn put(&self, error: ModelError) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    fn take_fault(&self) -> Option<ModelError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The library's settings, none of which it is to look up in the environment.
struct Fixed {
    url: String,
    headers: HeaderMap,
    /// Empty: the key is among the headers, marked as sensitive.
    key: SecretString,
}

impl Config for Fixed {
    fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn query(&self) -> Vec<(&str, &str)> {
        Vec::new()
    }

    fn api_base(&self) -> &str {
        &self.url
    }

    fn api_key(&self) -> &SecretString {
        &self.key
    }
}

/// What the library has in place of an HTTP client.
#[derive(Clone)]
struct Service {
    client: reqwest::Client,
    body: Bytes,
    idle: Idle,
    aside: Arc<Aside>,
}

impl tower_service::Service<HttpRequestFactory> for Service {
    type Response = reqwest::Response;
    type Error = OpenAIError;
    type Future = BoxFuture<'static, Result<reqwest::Response, OpenAIError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenAIError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, factory: HttpRequestFactory) -> Self::Future {
        let service = self.clone();
        async move {
            let mut request = factory.build().await?;
            *request.body_mut() = Some(service.body.into());
            let mut target = service.aside.target();
            let answer = send(&service.client, request, &service.idle, &mut target).await;
            answered(answer, target, &service.idle, service.aside)
        }
        .boxed()
    }
}

/// What the library has in place of a server: a response that came.
#[cfg(feature = "anthropic")]
#[derive(Clone)]
struct Given {
    response: Arc<Mutex<Option<reqwest::Response>>>,
    idle: Idle,
    aside: Arc<Aside>,
}

#[cfg(feature = "anthropic")]
impl tower_service::Service<HttpRequestFactory> for Given {
    type Response = reqwest::Response;
    type Error = OpenAIError;
    type Future = BoxFuture<'static, Result<reqwest::Response, OpenAIError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenAIError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: HttpRequestFactory) -> Self::Future {
        let Given { response, idle, aside } = self.clone();
        async move {
            let mut target = aside.target();
            let response = response.lock().unwrap_or_else(PoisonError::into_inner).take();
            let answer = match response {
                Some(response) => crate::http::answer(response, &idle, &mut target).await,
                None => Err(target.error(ModelErrorKind::InvalidRequest, "there was one response only")),
            };
            answered(answer, target, &idle, aside)
        }
        .boxed()
    }
}

/// What the library is told of an answer.
fn answered(
    answer: Result<Answer, ModelError>,
    target: Target,
    idle: &Idle,
    aside: Arc<Aside>,
) -> Result<reqwest::Response, OpenAIError> {
    *aside.target.lock().unwrap_or_else(PoisonError::into_inner) = target.clone();
    match answer {
        Ok(Answer::Events(response)) => Ok(again(stream_of(response, idle, target, aside))),
        Ok(Answer::Whole(text)) => Ok(again(stream::iter([whole(&text, &target, &aside)]))),
        Err(error) => {
            aside.put(error);
            Err(OpenAIError::InvalidArgument("the error was put aside".to_owned()))
        }
    }
}

/// The response that the library reads.
fn again(events: impl Stream<Item = Option<Bytes>> + Send + 'static) -> reqwest::Response {
    let bytes = events.take_while(|bytes| std::future::ready(bytes.is_some()));
    let body = bytes.filter_map(|bytes| std::future::ready(bytes.map(Ok::<_, std::convert::Infallible>)));
    http::Response::new(reqwest::Body::wrap_stream(body)).into()
}

/// The events of a response, each checked and in one piece; none behind the last good one.
fn stream_of(
    response: reqwest::Response,
    idle: &Idle,
    target: Target,
    aside: Arc<Aside>,
) -> impl Stream<Item = Option<Bytes>> + Send + 'static {
    event_stream(response, idle, target).then(move |event| {
        let aside = Arc::clone(&aside);
        async move {
            let data = match event {
                Ok(event) => event.data,
                Err(error) => {
                    aside.put(error);
                    return None;
                }
            };
            while aside.ahead.load(Ordering::SeqCst) > MAX_AHEAD {
                aside.was_read.notified().await;
            }
            aside.ahead.fetch_add(data.len(), Ordering::SeqCst);
            event_bytes(&data, &aside)
        }
    })
}

/// An event, if its data is JSON or says that all is done. What is empty keeps a connection alive.
fn event_bytes(data: &str, aside: &Aside) -> Option<Bytes> {
    let data = data.trim();
    if data.is_empty() {
        return Some(Bytes::from_static(b":\n\n"));
    }
    if data != "[DONE]"
        && let Err(error) = serde_json::from_str::<IgnoredAny>(data)
    {
        aside.put(aside.error(ModelErrorKind::Malformed, &format!("a chunk is not JSON: {error}")));
        return None;
    }
    // Data of several lines, as JSON may be, needs its field name on each.
    Some(format!("data: {}\n\n", data.replace('\n', "\ndata: ")).into())
}

/// A reply in one piece, as the one event of a stream.
fn whole(text: &str, target: &Target, aside: &Aside) -> Option<Bytes> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(value) => event_bytes(value.get(), aside),
        Err(error) => {
            let message = format!("the reply is neither a stream nor JSON: {error}");
            aside.put(target.error(ModelErrorKind::Malformed, message));
            None
        }
    }
}
