//! The model: a key, a name, and what ties the pieces together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};

use super::decode::Decoder;
use super::request::BodyWriter;
use crate::Secret;
use crate::http::{Answer, Idle, Target, base_url, client, event_stream, send, sensitive};
use crate::layer::{Timeouts, watch};
use crate::reading::Reading;

/// What models are of, in ids and errors.
const PROVIDER: &str = "anthropic";

/// A model of Anthropic. Cheap to clone; clones share their connections.
///
/// Replies are streamed. A stream that ends without a stop reason is an error, as is everything else that a
/// server can do wrong; see [`ModelErrorKind`]. It never asks twice by itself:
/// [`with_retry`](crate::layer::ChatModelExt::with_retry) does.
///
/// What a model thought goes back to it with its signature. Thoughts that have none, of another provider's
/// model, are left out. Settings that only this provider has (`thinking`, say) are
/// [extras of the parameters](stepfold_state_core::chat::ModelParams::extras).
///
/// # Examples
/// ```
/// use stepfold_providers::anthropic::Anthropic;
/// use stepfold_state_core::chat::ChatModel;
///
/// let model = Anthropic::new("claude-sonnet-4-5", "sk-ant-...").cache_prompts(true).build()?;
/// assert_eq!(model.id(), "anthropic/claude-sonnet-4-5");
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone)]
pub struct Anthropic(Arc<Inner>);

struct Inner {
    id: String,
    model: String,
    client: reqwest::Client,
    url: reqwest::Url,
    headers: HeaderMap,
    idle: Option<Duration>,
    timeouts: Timeouts,
    secrets: Vec<Secret>,
    writer: BodyWriter,
}

/// Makes an [`Anthropic`] model.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct AnthropicBuilder {
    model: String,
    key: Secret,
    base_url: Option<String>,
    headers: Vec<(String, Secret)>,
    max_output_tokens: u64,
    caches: bool,
    connect_timeout: Duration,
    timeouts: Timeouts,
}

impl Anthropic {
    /// A model by its name, and the key to ask it with.
    #[expect(clippy::new_ret_no_self, reason = "there is more to say before it is built")]
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> AnthropicBuilder {
        AnthropicBuilder {
            model: model.into(),
            key: key.into(),
            base_url: None,
            headers: Vec::new(),
            max_output_tokens: 8_192,
            caches: false,
            connect_timeout: Duration::from_secs(10),
            timeouts: Timeouts::default(),
        }
    }
}

impl AnthropicBuilder {
    /// At another place than `https://api.anthropic.com`.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = Some(base_url.into());
        self
    }

    /// With one more header, such as `anthropic-beta`. Its value is treated as a secret.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The limit of tokens of a reply, which this API demands, for requests that do not say one: 8,192 by
    /// default.
    pub const fn max_output_tokens(mut self, tokens: u64) -> Self {
        self.max_output_tokens = tokens;
        self
    }

    /// Whether instructions, tools and the conversation so far are marked for the provider's cache: not by
    /// default. Marks of your own, extras of parts named `cache_control`, are sent either way.
    pub const fn cache_prompts(mut self, caches: bool) -> Self {
        self.caches = caches;
        self
    }

    /// How long it may take to connect: ten seconds by default.
    pub const fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long replies may take. Between two pieces, anything that the server sends counts as a sign of
    /// life.
    pub const fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The model.
    ///
    /// # Errors
    /// The base URL is none, the key is empty, or a header cannot be sent.
    pub fn build(self) -> Result<Anthropic, ModelError> {
        let name = |error: ModelError| error.with_provider(PROVIDER).with_model(&self.model);
        let wrong = |message: String| name(ModelError::new(ModelErrorKind::InvalidRequest, message));
        if self.key.expose().is_empty() {
            let message = "no key; it is usually in ANTHROPIC_API_KEY";
            return Err(name(ModelError::new(ModelErrorKind::Authentication, message)));
        }
        let base = self.base_url.as_deref().unwrap_or("https://api.anthropic.com");
        // With and without the version, as people write it.
        let base = base_url(Some(base)).map_err(wrong)?;
        let url = format!("{}/v1/messages", base.trim_end_matches("/v1"));
        let url = reqwest::Url::parse(&url).map_err(|error| wrong(error.to_string()))?;
        let headers = self.all_headers().map_err(wrong)?;
        let client = client(self.connect_timeout).map_err(name)?;
        let secrets =
            [&self.key].into_iter().chain(self.headers.iter().map(|(_, value)| value)).cloned().collect();
        Ok(Anthropic(Arc::new(Inner {
            id: format!("{PROVIDER}/{}", self.model),
            client,
            url,
            headers,
            idle: self.timeouts.idle,
            // What the connection itself watches is not watched again.
            timeouts: Timeouts { idle: None, ..self.timeouts },
            secrets,
            writer: BodyWriter::new(self.max_output_tokens, self.caches),
            model: self.model,
        })))
    }

    fn all_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        headers.insert("x-api-key", sensitive("the key", self.key.expose())?);
        for (name, value) in &self.headers {
            let header =
                HeaderName::try_from(name).map_err(|_| format!("`{name}` is no name of a header"))?;
            headers.insert(header, sensitive(&format!("the header {name}"), value.expose())?);
        }
        Ok(headers)
    }
}

impl ChatModel for Anthropic {
    fn id(&self) -> &str {
        &self.0.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let inner = Arc::clone(&self.0);
        let target = inner.target(&request);
        let timeouts = inner.timeouts;
        let named = target.clone();
        let reply = async move {
            match inner.open(request, target).await {
                Ok(reading) => reading.into_stream(),
                Err(error) => ReplyStream::failed(error),
            }
        };
        watch(ReplyStream::new(reply.flatten_stream()), timeouts, move |error| named.name(error))
    }
}

impl Inner {
    fn target(&self, request: &ChatRequest) -> Target {
        Target {
            provider: PROVIDER.to_owned(),
            model: request.model.clone().unwrap_or_else(|| self.model.clone()),
            secrets: self.secrets.clone(),
            request_id: None,
        }
    }

    async fn open(&self, request: ChatRequest, mut target: Target) -> Result<Reading<Decoder>, ModelError> {
        let body = self.writer.body(&target.model, &request).map_err(|error| target.name(error))?;
        let mut post = reqwest::Request::new(reqwest::Method::POST, self.url.clone());
        *post.headers_mut() = self.headers.clone();
        *post.body_mut() = Some(body.into());
        let idle = Idle::new(self.idle);
        let answer = send(&self.client, post, &idle, &mut target).await?;
        reading(answer, &request, target, idle)
    }
}

fn reading(
    answer: Answer,
    request: &ChatRequest,
    target: Target,
    idle: Idle,
) -> Result<Reading<Decoder>, ModelError> {
    let mut decoder = Decoder::new(request);
    let mut ready = Vec::new();
    let items = match answer {
        Answer::Events(response) => event_stream(response, &idle, target.clone()).boxed(),
        Answer::Whole(text) => {
            decoder.whole(&text, &mut ready).map_err(|bad| bad.into_error(&target))?;
            stream::empty().boxed()
        }
    };
    Ok(Reading { items, decoder, target, idle, ready: ready.into(), waited: Duration::ZERO, end: None })
}

impl fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anthropic")
            .field("id", &self.0.id)
            .field("timeouts", &self.0.timeouts)
            .finish_non_exhaustive()
    }
}

/// For benchmarks and tests.
#[cfg(feature = "openai")]
pub(crate) fn body_writer(marks_cache: bool) -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    let writer = BodyWriter::new(1_024, marks_cache);
    move |request| writer.body("m", request)
}

/// For tests: what a model makes of a response to an empty request.
#[cfg(feature = "openai")]
pub(crate) fn read(model: &Anthropic, response: reqwest::Response) -> ReplyStream {
    let inner = Arc::clone(&model.0);
    let reply = async move {
        let request = ChatRequest::default();
        let idle = Idle::new(inner.idle);
        let mut target = inner.target(&request);
        let read = crate::http::answer(response, &idle, &mut target).await;
        match read.and_then(|answer| reading(answer, &request, target, idle)) {
            Ok(reading) => reading.into_stream(),
            Err(error) => ReplyStream::failed(error),
        }
    };
    ReplyStream::new(reply.flatten_stream())
}
