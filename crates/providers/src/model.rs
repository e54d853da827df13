//! The HTTP model: a dialect, a key, a name, and the connection. A [`Dialect`] defines the wire format of a
//! provider; everything else is the same for all providers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Request, Response, Url};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, ModelError, ModelErrorKind, OmittedTool, ReplyStream, ToolSpec, WireRequest,
};

use crate::body::BodyWriter;
use crate::dialect::{Dialect, ModelAddress, ProviderInfo};
use crate::http::{
    ConnectOptions, ErrorContext, ReplyProgress, base_url, client, pieces, secrets_of, send, sensitive,
};
use crate::layer::{Timeout, with_timeout};
use crate::reply::ReplyReader;
use crate::reply::{RawFields, UnreadFields};
use crate::secret::Secret;
use crate::tools::{OfferCache, PreparedRequest, ReplyForm, RestoringDecoder, ToolOffer};

/// A model over HTTP. Cheap to clone; clones share their connections.
///
/// Replies are streamed. A stream that ends without a finish reason is an error, like every other fault of a
/// server; see [`ModelErrorKind`]. It never retries by itself: use the
/// layer [`Retry`](crate::layer::Retry).
///
/// The parameter is the wire format; each has its own alias, such as `openai::OpenAi` or
/// `anthropic::Anthropic`.
pub struct HttpModel<D: Dialect>(Arc<HttpModelInner<D>>);

struct HttpModelInner<D: Dialect> {
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
    offers: OfferCache,
    bodies: BodyWriter<D::WriteState>,
}

/// Provides the key for the next request.
#[derive(Clone)]
struct FreshKey(Arc<dyn Fn() -> BoxFuture<'static, Result<Secret, ModelError>> + Send + Sync>);

impl fmt::Debug for FreshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreshKey(..)")
    }
}

/// The multiple of the idle limit during which a server may send keep-alive data only.
// NOTE: Some models reason for minutes while their server sends pings only. Pings alone must not keep a dead reply
// alive for ever.
const KEEP_ALIVES: u32 = 5;

/// Builds an [`HttpModel`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct HttpModelBuilder<D> {
    pub(crate) dialect: D,
    model: String,
    /// A secret, since it may hold a password until `build` refuses it.
    base_url: Option<Secret>,
    key: Option<Secret>,
    fresh_key: Option<FreshKey>,
    headers: Vec<(String, Secret)>,
    connect: ConnectOptions,
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
            connect: ConnectOptions { timeout: Duration::from_secs(10), proxy: None, roots: Vec::new() },
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

    /// Keeps the unread fields of a reply, such as a tier of service or the details of a filter; by default
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
        Ok(HttpModel(Arc::new(HttpModelInner {
            id: format!("{}/{}", server.name, self.model),
            provider: server.name,
            server: server_name(&server, &base).into(),
            client,
            base,
            headers,
            idle: self.timeout.idle,
            // NOTE: The connection enforces the limit between any two pieces of data; this one is between two chunks.
            timeout: Timeout {
                idle: self.timeout.idle.map(|idle| idle.saturating_mul(KEEP_ALIVES)),
                ..self.timeout
            },
            secrets,
            fresh_key: self.fresh_key,
            raw: self.raw,
            offers: OfferCache::default(),
            bodies: BodyWriter::new(),
            dialect: self.dialect,
            model: self.model,
        })))
    }

    fn all_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // NOTE: The client has no decompression, which would also hide the size of a reply from its limits.
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
        let context = self.0.context(request);
        let to = ModelAddress { server: &self.0.server, model: &context.model };
        // NOTE: A fresh writer: the cache of earlier messages does not report their changes again.
        let written = self
            .0
            .prepare(request)
            .and_then(|prepared| BodyWriter::new().body(&self.0.dialect, to, &prepared));
        let wired = written.map(|(body, changes)| WireRequest::new(String::from_utf8_lossy(&body), changes));
        Some(wired.map_err(|error| context.label(error)))
    }
}

impl<D: Dialect> HttpModel<D> {
    /// Requests a reply from the server, or reads it from a given response.
    pub(crate) fn answer(&self, request: ChatRequest, given: Option<Response>) -> ReplyStream {
        let inner = Arc::clone(&self.0);
        let context = inner.context(&request);
        let named = context.clone();
        let progress = ReplyProgress::new(inner.idle);
        let watched = progress.clone();
        let reply = async move {
            inner.open(&request, given, context, progress).await.unwrap_or_else(ReplyStream::failed)
        };
        let reply = ReplyStream::new(reply.flatten_stream());
        let holding = watched.clone();
        with_timeout(
            reply,
            self.0.timeout,
            move || watched.is_whole(),
            move || holding.held(),
            move |error| named.label(error),
        )
    }

    /// The body of a request.
    #[cfg(all(feature = "anthropic", feature = "gemini", feature = "openai"))]
    pub(crate) fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, ModelError> {
        let to = ModelAddress { server: &self.0.server, model: &self.0.model };
        Ok(self.0.bodies.body(&self.0.dialect, to, &self.0.prepare(request)?)?.0)
    }
}

impl<D: Dialect> HttpModelInner<D> {
    fn context(&self, request: &ChatRequest) -> ErrorContext {
        ErrorContext {
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
        mut context: ErrorContext,
        progress: ReplyProgress,
    ) -> Result<ReplyStream, ModelError> {
        // NOTE: Prepared for a given response, too: the restoring decoder needs the names of its tools.
        let prepared = self.prepare(request).map_err(|error| context.label(error))?;
        let pieces = if let Some(response) = given {
            pieces(response, &progress, &mut context).await?
        } else {
            let post = self.post(&prepared, &mut context).await?;
            send(&self.client, post, &progress, &mut context).await?
        };
        let unread = UnreadFields::new(self.raw);
        let decoder =
            RestoringDecoder::new(self.dialect.decoder(&prepared.request), prepared.offer, prepared.form);
        let server = Arc::clone(&self.server);
        Ok(ReplyReader::new(pieces, decoder, unread, context, progress).with_server(server).into_stream())
    }

    /// Returns the tools in the form that the provider accepts.
    fn offer(&self, tools: &Arc<[ToolSpec]>) -> Arc<ToolOffer> {
        self.offers.of(self.dialect.rules(), tools)
    }

    /// The request with the tools and the format of the reply that the provider takes.
    fn prepare(&self, request: &ChatRequest) -> Result<PreparedRequest, ModelError> {
        let offer = self.offer(&request.tools);
        let (format, form) = ReplyForm::of(&self.dialect.rules().schemas, request.response_format.as_ref())?;
        let mut request = offer.wire_request(request)?;
        request.response_format = format;
        Ok(PreparedRequest { request, offer, form })
    }

    async fn post(
        &self,
        prepared: &PreparedRequest,
        context: &mut ErrorContext,
    ) -> Result<Request, ModelError> {
        let to = ModelAddress { server: &self.server, model: &context.model };
        prepared.offer.log_omitted();
        let body = self.bodies.body(&self.dialect, to, prepared);
        let (body, changes) = body.map_err(|error| context.label(error))?;
        for change in &changes {
            tracing::debug!(provider = self.provider, model = context.model, %change, "the request was changed for its server");
        }
        let url = Url::parse(&self.dialect.url(&self.base, &context.model));
        let url = url.map_err(|error| context.error(ModelErrorKind::InvalidRequest, error.to_string()))?;
        let mut post = Request::new(Method::POST, url);
        *post.headers_mut() = self.headers.clone();
        if let Some(FreshKey(key)) = &self.fresh_key {
            let key = key().await.map_err(|error| context.label(error))?;
            context.secrets.push(key.clone());
            // NOTE: Headers of the caller take precedence, as they do with a fixed key.
            let all = self.dialect.headers(Some(&key)).into_iter();
            for (name, value) in all.filter(|(name, _)| !self.headers.contains_key(*name)) {
                let value = sensitive("key", &value);
                let value = value.map_err(|error| context.error(ModelErrorKind::InvalidRequest, error))?;
                post.headers_mut().insert(name, value);
            }
        }
        *post.body_mut() = Some(body.into());
        Ok(post)
    }
}

/// The server at a base URL, as [extras](crate::conform::SERVER) name it: the preset's name at its own address, else
/// the origin. A gateway counts as one server.
fn server_name(server: &ProviderInfo, base: &str) -> String {
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
