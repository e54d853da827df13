//! The HTTP model: a dialect, a key, a name, and the connection. A [`Dialect`] defines a provider's wire
//! format; everything else is common, and here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Request, Response, Url};
use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Message, ModelError, ModelErrorKind, OmittedTool, ReplyStream, ToolSpec,
    WireRequest,
};

use crate::Secret;
use crate::conform::Changes;
use crate::http::{Connect, Progress, Target, base_url, client, pieces, secrets_of, send, sensitive};
use crate::layer::{Timeout, watch};
use crate::raw::{RawFields, Unread};
use crate::reading::{Decode, Reading};
use crate::rules::RequestRules;
use crate::tools::{Form, Offer, Offers, Restored, Wired};
use crate::wire::{Bodies, Destination, MessagePlan};

/// A provider's wire format: URLs, requests, and replies.
///
/// Sealed: implemented only by the dialects of this crate. All methods are pure; the model calls
/// [`server`](Self::server) and [`headers`](Self::headers) once when it is built, and for each request
/// [`url`](Self::url), [`head`](Self::head), [`tools`](Self::tools), [`write`](Self::write) for each new
/// message, [`close`](Self::close), and [`decoder`](Self::decoder).
pub trait Dialect: Send + Sync + 'static {
    /// Reads one reply.
    type Decoder: Decode;
    /// The state between two messages: elements to be closed by the next one, or by the end.
    type Open: Clone + Default + Send;

    /// The field of the conversation in the body.
    const MESSAGES: &'static str;
    /// Its name in [server tools](stepfold_state_core::chat::ServerTool).
    const NAME: &'static str;
    /// The fields that no extra parameter may set.
    const RESERVED: &'static [&'static str];
    /// The extra parameter that turns reasoning on, if a turn that another model began must be continued without.
    const REASONING: Option<&'static str> = None;
    /// The extra of a part that is its signature, if such a part goes back even if it is blank.
    const SIGNATURE: Option<&'static str> = None;
    /// The field of unknown parts that it knows.
    const UNKNOWN: Option<&'static str> = None;

    /// The provider, as far as every provider has it.
    fn server(&self) -> Server;

    /// The headers of the key, and those of every request of this dialect.
    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)>;

    /// What its server takes in a conversation.
    fn rules(&self) -> &RequestRules;

    /// What a request decides about the messages in it.
    fn plan(&self, _: Destination<'_>, _: &ChatRequest) -> MessagePlan {
        MessagePlan::default()
    }

    /// The URL of requests to this model. The base URL has no trailing slash.
    fn url(&self, base: &str, model: &str) -> String;

    /// The fields of the body before tools and messages.
    ///
    /// # Errors
    /// The provider does not support the request.
    fn head(&self, to: Destination<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError>;

    /// Sets an extra parameter: by default it replaces the field with that name.
    fn extra(&self, head: &mut Map<String, Value>, name: &str, value: &Value) {
        head.insert(name.to_owned(), value.clone());
    }

    /// The field of the body that offers the tools.
    fn tools(&self, tools: &[ToolSpec]) -> Value;

    /// Appends a message that [conforms](crate::conform) to the rules, and says what stands beside it to keep the order of
    /// roles.
    ///
    /// # Errors
    /// The provider does not support the content.
    fn write(
        &self,
        message: &Message,
        plan: &MessagePlan,
        open: &mut Self::Open,
        out: &mut Vec<u8>,
        changes: &mut Changes,
    ) -> Result<(), ModelError>;

    /// Closes the open elements at the end of the conversation.
    fn close(&self, open: &Self::Open, out: &mut Vec<u8>);

    /// The reader of the reply to this request.
    fn decoder(&self, request: &ChatRequest) -> Self::Decoder;
}

/// A provider, as far as every provider has it.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    /// Its name in ids and errors.
    pub name: &'static str,
    /// Its address.
    pub base_url: Option<&'static str>,
    /// Whether a request without a key is pointless.
    pub needs_key: bool,
    /// The environment variables that usually hold the key.
    pub key_variables: &'static [&'static str],
}

/// A model over HTTP. Cheap to clone; clones share their connections.
///
/// Replies are streamed. A stream that ends without a finish reason is an error, like every other fault of a
/// server; see [`ModelErrorKind`]. It never retries by itself: use the
/// layer [`Retry`](crate::layer::Retry).
///
/// The parameter is the wire format; each has its own alias, such as `openai::OpenAi` or
/// `anthropic::Anthropic`.
pub struct HttpModel<D: Dialect>(Arc<Inner<D>>);

struct Inner<D: Dialect> {
    id: String,
    provider: &'static str,
    /// The server, as [extras](crate::conform::SERVER) name it.
    server: Arc<str>,
    model: String,
    dialect: D,
    client: Client,
    base: String,
    headers: HeaderMap,
    idle: Option<Duration>,
    timeout: Timeout,
    secrets: Vec<Secret>,
    fresh_key: Option<FreshKey>,
    raw: RawFields,
    offers: Offers,
    bodies: Bodies<D::Open>,
}

/// Provides the key for the next request.
#[derive(Clone)]
struct FreshKey(Arc<dyn Fn() -> BoxFuture<'static, Result<Secret, ModelError>> + Send + Sync>);

impl fmt::Debug for FreshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreshKey(..)")
    }
}

/// How many times the idle limit a server may only keep the connection alive.
const KEEP_ALIVES: u32 = 5;

/// Builds an [`HttpModel`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct HttpModelBuilder<D> {
    pub(crate) dialect: D,
    model: String,
    /// It may hold a password, though that is refused.
    base_url: Option<Secret>,
    key: Option<Secret>,
    fresh_key: Option<FreshKey>,
    headers: Vec<(String, Secret)>,
    connect: Connect,
    timeout: Timeout,
    raw: RawFields,
}

impl<D: Dialect> HttpModelBuilder<D> {
    pub(crate) fn new(dialect: D, model: impl Into<String>) -> Self {
        HttpModelBuilder {
            dialect,
            model: model.into(),
            base_url: None,
            key: None,
            fresh_key: None,
            headers: Vec::new(),
            connect: Connect { timeout: Duration::from_secs(10), proxy: None, roots: Vec::new() },
            timeout: Timeout::default(),
            raw: RawFields::Drop,
        }
    }

    /// Sets the key.
    pub fn key(mut self, key: impl Into<Secret>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the base URL; by default that of the provider. It has no user, password, query or fragment.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = Some(Secret::from(base_url.into()));
        self
    }

    /// Adds a header, such as `anthropic-beta`; it replaces one of that name that the provider's API has. Its value is
    /// treated as a secret.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Limits the time to connect: ten seconds by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect.timeout = limit;
        self
    }

    /// Sets a function that returns the key before each request: for keys that expire. Cache a key as long as
    /// it is valid. It takes precedence over [`key`](Self::key).
    ///
    /// # Examples
    /// ```
    /// use stepfold_providers::openai::{OpenAi, Preset};
    /// use stepfold_providers::Secret;
    ///
    /// let model = OpenAi::preset(&Preset::OPENAI, "gpt-4.1").key_from(|| async { Ok(Secret::new("sk-fresh")) }).build()?;
    /// # let _ = model;
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// ```
    pub fn key_from<F>(mut self, key: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Secret, ModelError>> + Send + 'static,
    {
        self.fresh_key = Some(FreshKey(Arc::new(move || key().boxed())));
        self
    }

    /// Sends all requests through a proxy; by default the one that `HTTPS_PROXY` and the like name. Its address may
    /// hold a name and a password, and is treated as a secret.
    pub fn proxy(mut self, url: impl Into<Secret>) -> Self {
        self.connect.proxy = Some(url.into());
        self
    }

    /// Trusts the certificates of this PEM in addition to those of the system, such as those of a company's
    /// own authority.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.connect.roots.push(pem.into());
        self
    }

    /// Limits the time of a reply: by [`Timeout::default`] unless set. Between two chunks, any data from the server
    /// counts as a sign of life, even a comment; a server that sends only such data times out after five times the idle
    /// limit.
    pub fn timeout(mut self, timeout: Timeout) -> Self {
        self.timeout = timeout;
        self
    }

    /// Keeps the fields of a reply that nothing reads, such as a tier of service or the details of a filter; by default
    /// they are dropped. Each piece of a reply is parsed once more for them.
    ///
    /// # Examples
    /// ```
    /// use stepfold_providers::RawFields;
    /// use stepfold_providers::openai::{OpenAi, Preset};
    ///
    /// let model = OpenAi::preset(&Preset::OLLAMA, "qwen3").raw_fields(RawFields::Reply).build()?;
    /// # let _ = model;
    /// # Ok::<(), stepfold_state_core::chat::ModelError>(())
    /// ```
    pub fn raw_fields(mut self, raw: RawFields) -> Self {
        self.raw = raw;
        self
    }

    /// Builds the model.
    ///
    /// # Errors
    /// The base URL is missing or invalid, the key is missing, or a header cannot be sent.
    pub fn build(self) -> Result<HttpModel<D>, ModelError> {
        let server = self.dialect.server();
        let name = |error: ModelError| error.with_provider(server.name).with_model(&self.model);
        let wrong = |message: String| name(ModelError::new(ModelErrorKind::InvalidRequest, message));
        let base = base_url(self.base_url.as_ref().map(Secret::expose).or(server.base_url)).map_err(wrong)?;
        let has_key = self.key.as_ref().is_some_and(|key| !key.expose().is_empty());
        if server.needs_key && !has_key && self.fresh_key.is_none() {
            let message = match server.key_variables {
                [] => "missing key: set one".to_owned(),
                variables => format!("missing key: it is usually in {}", variables.join(" or ")),
            };
            return Err(name(ModelError::new(ModelErrorKind::Authentication, message)));
        }
        let headers = self.all_headers().map_err(wrong)?;
        let client = client(&self.connect).map_err(name)?;
        let secrets = self.key.iter().chain(self.headers.iter().map(|(_, value)| value)).cloned();
        let secrets = secrets.chain(self.connect.proxy.iter().flat_map(secrets_of)).collect();
        Ok(HttpModel(Arc::new(Inner {
            id: format!("{}/{}", server.name, self.model),
            provider: server.name,
            server: server_name(&server, &base).into(),
            client,
            base,
            headers,
            idle: self.timeout.idle,
            // The connection has the limit between any two pieces of data; this one is between two chunks.
            timeout: Timeout {
                idle: self.timeout.idle.map(|idle| idle.saturating_mul(KEEP_ALIVES)),
                ..self.timeout
            },
            secrets,
            fresh_key: self.fresh_key,
            raw: self.raw,
            offers: Offers::default(),
            bodies: Bodies::new(),
            dialect: self.dialect,
            model: self.model,
        })))
    }

    fn all_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let key = self.key.as_ref().filter(|_| self.fresh_key.is_none());
        for (name, value) in self.dialect.headers(key) {
            headers.insert(name, sensitive("key", &value)?);
        }
        for (name, value) in &self.headers {
            let header = HeaderName::try_from(name).map_err(|_| format!("invalid header name `{name}`"))?;
            headers.insert(header, sensitive(&format!("the header {name}"), value.expose())?);
        }
        Ok(headers)
    }
}

impl<D: Dialect> ChatModel for HttpModel<D> {
    fn id(&self) -> &str {
        &self.0.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.answer(request, None)
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.0.offer(tools).omitted().to_vec()
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        let target = self.0.target(request);
        let to = Destination { server: &self.0.server, model: &target.model };
        // What was written before would not say again what was changed in it.
        let written = self.0.wired(request).and_then(|wired| Bodies::new().body(&self.0.dialect, to, &wired));
        let wired = written.map(|(body, changes)| WireRequest::new(String::from_utf8_lossy(&body), changes));
        Some(wired.map_err(|error| target.name(error)))
    }
}

impl<D: Dialect> HttpModel<D> {
    /// The reply to a request: from the server, or from a given response.
    pub(crate) fn answer(&self, request: ChatRequest, given: Option<Response>) -> ReplyStream {
        let inner = Arc::clone(&self.0);
        let target = inner.target(&request);
        let named = target.clone();
        let progress = Progress::new(inner.idle);
        let watched = progress.clone();
        let reply = async move {
            inner.open(&request, given, target, progress).await.unwrap_or_else(ReplyStream::failed)
        };
        let reply = ReplyStream::new(reply.flatten_stream());
        let holding = watched.clone();
        watch(
            reply,
            self.0.timeout,
            move || watched.is_whole(),
            move || holding.held(),
            move |error| named.name(error),
        )
    }

    /// The body of a request.
    #[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
    pub(crate) fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, ModelError> {
        let to = Destination { server: &self.0.server, model: &self.0.model };
        Ok(self.0.bodies.body(&self.0.dialect, to, &self.0.wired(request)?)?.0)
    }
}

impl<D: Dialect> Inner<D> {
    fn target(&self, request: &ChatRequest) -> Target {
        Target {
            provider: self.provider.to_owned(),
            model: request.model.clone().unwrap_or_else(|| self.model.clone()),
            secrets: self.secrets.clone(),
            request_id: None,
        }
    }

    async fn open(
        &self,
        request: &ChatRequest,
        given: Option<Response>,
        mut target: Target,
        progress: Progress,
    ) -> Result<ReplyStream, ModelError> {
        let wired = self.wired(request).map_err(|error| target.name(error))?;
        let pieces = if let Some(response) = given {
            pieces(response, &progress, &mut target).await?
        } else {
            let post = self.post(&wired, &mut target).await?;
            send(&self.client, post, &progress, &mut target).await?
        };
        let unread = Unread::new(self.raw);
        let decoder = Restored::new(self.dialect.decoder(&wired.request), wired.offer, wired.form);
        let server = Arc::clone(&self.server);
        Ok(Reading::new(pieces, decoder, unread, target, progress).of_server(server).into_stream())
    }

    /// What the provider is offered of these tools.
    fn offer(&self, tools: &Arc<[ToolSpec]>) -> Arc<Offer> {
        self.offers.of(self.dialect.rules(), tools)
    }

    /// The request with the tools and the format of the reply that the provider takes.
    fn wired(&self, request: &ChatRequest) -> Result<Wired, ModelError> {
        let offer = self.offer(&request.tools);
        let (format, form) = Form::of(&self.dialect.rules().schemas, request.response_format.as_ref())?;
        let mut request = offer.wire_request(request)?;
        request.response_format = format;
        Ok(Wired { request, offer, form })
    }

    async fn post(&self, wired: &Wired, target: &mut Target) -> Result<Request, ModelError> {
        let to = Destination { server: &self.server, model: &target.model };
        wired.offer.tell();
        let body = self.bodies.body(&self.dialect, to, wired);
        let (body, changes) = body.map_err(|error| target.name(error))?;
        for change in &changes {
            tracing::debug!(provider = self.provider, model = target.model, %change, "the request was changed for its server");
        }
        let url = Url::parse(&self.dialect.url(&self.base, &target.model));
        let url = url.map_err(|error| target.error(ModelErrorKind::InvalidRequest, error.to_string()))?;
        let mut post = Request::new(Method::POST, url);
        *post.headers_mut() = self.headers.clone();
        if let Some(FreshKey(key)) = &self.fresh_key {
            let key = key().await.map_err(|error| target.name(error))?;
            target.secrets.push(key.clone());
            // Those of the caller stay, as they do with a fixed key.
            let all = self.dialect.headers(Some(&key)).into_iter();
            for (name, value) in all.filter(|(name, _)| !self.headers.contains_key(*name)) {
                let value = sensitive("key", &value);
                let value = value.map_err(|error| target.error(ModelErrorKind::InvalidRequest, error))?;
                post.headers_mut().insert(name, value);
            }
        }
        *post.body_mut() = Some(body.into());
        Ok(post)
    }
}

/// The server at a base URL, as [extras](crate::conform::SERVER) name it: the preset's name at its own address, else the origin. A gateway
/// counts as one server.
fn server_name(server: &Server, base: &str) -> String {
    let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin().ascii_serialization());
    if server.base_url.and_then(origin) == origin(base) {
        return server.name.to_owned();
    }
    origin(base).unwrap_or_else(|| base.to_owned())
}

impl<D: Dialect> Clone for HttpModel<D> {
    fn clone(&self) -> Self {
        HttpModel(Arc::clone(&self.0))
    }
}

impl<D: Dialect> fmt::Debug for HttpModel<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpModel")
            .field("id", &self.0.id)
            .field("timeout", &self.0.timeout)
            .finish_non_exhaustive()
    }
}
