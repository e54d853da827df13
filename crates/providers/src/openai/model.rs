//! The model: a preset, a key, a name, and what ties the pieces together.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};

use super::decode::Decoder;
use super::request::BodyWriter;
use super::transport::{Endpoint, Incoming};
use super::{Auth, Preset};
use crate::Secret;
use crate::http::{Idle, Target, base_url, client, sensitive};
use crate::layer::{Timeouts, watch};
use crate::reading::Reading;

/// A model behind a server that speaks chat completions. Cheap to clone; clones share their connections.
///
/// Replies are streamed. A stream that ends without a finish reason is an error, as is everything else that
/// a server can do wrong; see [`ModelErrorKind`]. It never asks twice by itself:
/// [`with_retry`](crate::layer::ChatModelExt::with_retry) does.
///
/// # Examples
/// ```
/// use stepfold_providers::openai::{OpenAi, Preset};
/// use stepfold_state_core::chat::ChatModel;
///
/// let remote = OpenAi::new("gpt-4.1", "sk-...")?;
/// let local = OpenAi::preset(&Preset::OLLAMA, "qwen3").build()?;
/// let other = OpenAi::at("http://10.0.0.7:9000/v1/", "our-model").key("k-123").build()?;
/// assert_eq!(remote.id(), "openai/gpt-4.1");
/// assert_eq!(local.id(), "ollama/qwen3");
/// # let _ = other;
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone)]
pub struct OpenAi(Arc<Inner>);

struct Inner {
    id: String,
    model: String,
    preset: Preset,
    endpoint: Endpoint,
    idle: Option<Duration>,
    timeouts: Timeouts,
    secrets: Vec<Secret>,
    writer: BodyWriter,
}

/// Makes an [`OpenAi`] model.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct OpenAiBuilder {
    preset: Preset,
    model: String,
    base_url: Option<String>,
    key: Option<Secret>,
    headers: Vec<(String, Secret)>,
    connect_timeout: Duration,
    timeouts: Timeouts,
}

impl OpenAi {
    /// A model of OpenAI.
    ///
    /// # Errors
    /// As [`OpenAiBuilder::build`].
    pub fn new(model: impl Into<String>, key: impl Into<Secret>) -> Result<Self, ModelError> {
        OpenAi::preset(&Preset::OPENAI, model).key(key).build()
    }

    /// A model of a server that is known.
    pub fn preset(preset: &Preset, model: impl Into<String>) -> OpenAiBuilder {
        OpenAiBuilder {
            preset: *preset,
            model: model.into(),
            base_url: None,
            key: None,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            timeouts: Timeouts::default(),
        }
    }

    /// A model of a server at this base URL, which usually ends with `/v1`.
    pub fn at(base_url: impl Into<String>, model: impl Into<String>) -> OpenAiBuilder {
        OpenAi::preset(&Preset::COMPATIBLE, model).base_url(base_url)
    }
}

impl OpenAiBuilder {
    /// With this key.
    pub fn key(mut self, key: impl Into<Secret>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// At another place than the preset says.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = Some(base_url.into());
        self
    }

    /// With one more header. Its value is treated as a secret.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
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
    /// There is no base URL or it is none, the key is missing, or a header cannot be sent.
    pub fn build(self) -> Result<OpenAi, ModelError> {
        let provider = self.preset.name;
        let name = |error: ModelError| error.with_provider(provider).with_model(&self.model);
        let wrong = |message: String| name(ModelError::new(ModelErrorKind::InvalidRequest, message));
        let url = base_url(self.base_url.as_deref().or(self.preset.base_url)).map_err(wrong)?;
        if self.preset.needs_key && self.key.is_none() {
            let message = format!("no key; it is usually in {}", self.preset.key_variables.join(" or "));
            return Err(name(ModelError::new(ModelErrorKind::Authentication, message)));
        }
        let headers = self.all_headers().map_err(wrong)?;
        let client = client(self.connect_timeout).map_err(name)?;
        let idle = self.timeouts.idle;
        let secrets = self.key.iter().chain(self.headers.iter().map(|(_, value)| value)).cloned().collect();
        Ok(OpenAi(Arc::new(Inner {
            id: format!("{provider}/{}", self.model),
            endpoint: Endpoint { client, url, headers },
            idle,
            // What the connection itself watches is not watched again.
            timeouts: Timeouts { idle: None, ..self.timeouts },
            preset: self.preset,
            secrets,
            writer: BodyWriter::new(),
            model: self.model,
        })))
    }

    fn all_headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            let (name, value) = match self.preset.auth {
                Auth::Bearer => (AUTHORIZATION, format!("Bearer {}", key.expose())),
                Auth::Header(name) => (HeaderName::from_static(name), key.expose().to_owned()),
            };
            headers.insert(name, sensitive("the key", &value)?);
        }
        for (name, value) in &self.headers {
            let header =
                HeaderName::try_from(name).map_err(|_| format!("`{name}` is no name of a header"))?;
            headers.insert(header, sensitive(&format!("the header {name}"), value.expose())?);
        }
        Ok(headers)
    }
}

impl ChatModel for OpenAi {
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
            provider: self.preset.name.to_owned(),
            model: request.model.clone().unwrap_or_else(|| self.model.clone()),
            secrets: self.secrets.clone(),
            request_id: None,
        }
    }

    async fn open(&self, request: ChatRequest, target: Target) -> Result<Reading<Decoder>, ModelError> {
        let body = self.writer.body(&self.preset, &target.model, &request);
        let body = body.map_err(|error| target.name(error))?;
        let idle = Idle::new(self.idle);
        let incoming = self.endpoint.open(body, target, idle.clone()).await?;
        Ok(reading(incoming, &request, idle))
    }
}

fn reading(incoming: Incoming, request: &ChatRequest, idle: Idle) -> Reading<Decoder> {
    Reading {
        target: incoming.target(),
        items: incoming.into_stream(),
        decoder: Decoder::new(request),
        idle,
        ready: VecDeque::new(),
        waited: Duration::ZERO,
        end: None,
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi")
            .field("id", &self.0.id)
            .field("timeouts", &self.0.timeouts)
            .finish_non_exhaustive()
    }
}

/// For benchmarks and tests.
#[cfg(feature = "anthropic")]
pub(crate) fn body_writer(preset: Preset) -> impl Fn(&ChatRequest) -> Result<Vec<u8>, ModelError> {
    let writer = BodyWriter::new();
    move |request| writer.body(&preset, "m", request)
}

/// For tests: what a model makes of a response to an empty request.
#[cfg(feature = "anthropic")]
pub(crate) fn read(model: &OpenAi, response: reqwest::Response) -> ReplyStream {
    let inner = Arc::clone(&model.0);
    let reply = async move {
        let request = ChatRequest::default();
        let idle = Idle::new(inner.idle);
        let opened = inner.endpoint.open_given(response, inner.target(&request), idle.clone()).await;
        match opened {
            Ok(incoming) => reading(incoming, &request, idle).into_stream(),
            Err(error) => ReplyStream::failed(error),
        }
    };
    ReplyStream::new(reply.flatten_stream())
}
