//! Errors of models: why there is no reply. Callers branch on the [kind](ModelErrorKind), never on the text; what the
//! provider's own library said rides inside as the source.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::PartialReply;
use crate::error_chain::push_causes;

/// Why a model did not answer, or did not answer to the end.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
///
/// let error = ModelError::new(ModelErrorKind::RateLimited, "too many requests")
///     .with_retry_after(Duration::from_secs(2))
///     .with_provider("openai")
///     .with_model("gpt-4.1")
///     .with_request_id("req_1");
/// assert!(error.is_retryable());
/// assert_eq!(
///     error.to_string(),
///     "rate limited, retry after 2s (openai, model gpt-4.1, request req_1): too many requests",
/// );
/// ```
#[derive(Clone, Debug)]
pub struct ModelError(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    kind: ModelErrorKind,
    message: String,
    provider: Option<String>,
    model: Option<String>,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
    partial: Option<PartialReply>,
}

/// What went wrong, for callers to branch on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The network or the server failed in a way that may pass.
    Transient,
    /// Too many requests or tokens in too short a time.
    RateLimited,
    /// The server has too much to do.
    Overloaded,
    /// The key is missing, wrong, or may not do this.
    Authentication,
    /// There is no such model or address.
    NotFound,
    /// The provider does not accept the request as it is.
    InvalidRequest,
    /// The conversation does not fit into the model's window.
    TooLong {
        /// The number of tokens that fit.
        limit: Option<u64>,
        /// The number of tokens that there were.
        used: Option<u64>,
    },
    /// The provider refused to process the request because of what it says.
    Refused,
    /// The reply cannot be understood.
    Malformed,
    /// The reply was interrupted: its stream ended before it was complete.
    CutOff,
    /// The reply is larger than the reader allows. Sent again, the request may bring the same.
    ReplyTooLarge {
        /// The number of bytes that are allowed.
        limit: usize,
    },
    /// A timeout was exceeded.
    TimedOut(TimeoutKind),
    /// A tool had to be called, and none was.
    ToolChoiceIgnored,
    /// The caller cancelled the request.
    Cancelled,
    /// This model or provider cannot do what was asked.
    Unsupported,
    /// The server could not show that it is the one at this address: its certificate is not trusted.
    Untrusted,
}

/// Which timeout was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeoutKind {
    /// Connecting to the server.
    Connect,
    /// Waiting for the first chunk of the reply.
    FirstToken,
    /// Waiting for the next chunk.
    Idle,
    /// The whole request.
    Total,
}

impl ModelErrorKind {
    /// Each kind, without what it carries.
    const ALL: [ModelErrorKind; 19] = [
        ModelErrorKind::Transient,
        ModelErrorKind::RateLimited,
        ModelErrorKind::Overloaded,
        ModelErrorKind::Authentication,
        ModelErrorKind::NotFound,
        ModelErrorKind::InvalidRequest,
        ModelErrorKind::TooLong { limit: None, used: None },
        ModelErrorKind::Refused,
        ModelErrorKind::Malformed,
        ModelErrorKind::CutOff,
        ModelErrorKind::ReplyTooLarge { limit: 0 },
        ModelErrorKind::TimedOut(TimeoutKind::Connect),
        ModelErrorKind::TimedOut(TimeoutKind::FirstToken),
        ModelErrorKind::TimedOut(TimeoutKind::Idle),
        ModelErrorKind::TimedOut(TimeoutKind::Total),
        ModelErrorKind::ToolChoiceIgnored,
        ModelErrorKind::Cancelled,
        ModelErrorKind::Unsupported,
        ModelErrorKind::Untrusted,
    ];

    /// The name of the kind, without what it carries: to count errors by, and to write them down.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::ModelErrorKind;
    ///
    /// assert_eq!(ModelErrorKind::RateLimited.name(), "rate_limited");
    /// ```
    pub const fn name(&self) -> &'static str {
        match self {
            ModelErrorKind::Transient => "transient",
            ModelErrorKind::RateLimited => "rate_limited",
            ModelErrorKind::Overloaded => "overloaded",
            ModelErrorKind::Authentication => "authentication",
            ModelErrorKind::NotFound => "not_found",
            ModelErrorKind::InvalidRequest => "invalid_request",
            ModelErrorKind::TooLong { .. } => "too_long",
            ModelErrorKind::Refused => "refused",
            ModelErrorKind::Malformed => "malformed",
            ModelErrorKind::CutOff => "cut_off",
            ModelErrorKind::ReplyTooLarge { .. } => "reply_too_large",
            ModelErrorKind::TimedOut(TimeoutKind::Connect) => "timed_out_connect",
            ModelErrorKind::TimedOut(TimeoutKind::FirstToken) => "timed_out_first_token",
            ModelErrorKind::TimedOut(TimeoutKind::Idle) => "timed_out_idle",
            ModelErrorKind::TimedOut(TimeoutKind::Total) => "timed_out",
            ModelErrorKind::ToolChoiceIgnored => "tool_choice_ignored",
            ModelErrorKind::Cancelled => "cancelled",
            ModelErrorKind::Unsupported => "unsupported",
            ModelErrorKind::Untrusted => "untrusted",
        }
    }

    /// The kind of this [name](ModelErrorKind::name), carrying nothing.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::ModelErrorKind;
    ///
    /// assert_eq!(ModelErrorKind::from_name("overloaded"), Some(ModelErrorKind::Overloaded));
    /// assert_eq!(ModelErrorKind::from_name("overload"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<Self> {
        ModelErrorKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What a person can do about it, as a sentence without its full stop.
    pub const fn advice(&self) -> &'static str {
        match self {
            ModelErrorKind::Transient => "try again",
            ModelErrorKind::RateLimited => "wait, then try again; send fewer requests",
            ModelErrorKind::Overloaded => "try again later, or fall back to another model",
            ModelErrorKind::Authentication => "check the API key and what it may be used for",
            ModelErrorKind::NotFound => "check the name of the model and the base URL",
            ModelErrorKind::InvalidRequest => "check the parameters and the tool schemas",
            ModelErrorKind::TooLong { .. } => "trim the conversation, or use a model with a larger window",
            ModelErrorKind::Refused => "change what is asked",
            ModelErrorKind::Malformed => "try again; check that the server speaks this protocol",
            ModelErrorKind::CutOff => "try again; what had come is in the error",
            ModelErrorKind::ReplyTooLarge { .. } => {
                "ask for less at once, or raise the limit on the bytes of a reply; what had come is in the error"
            }
            ModelErrorKind::TimedOut(TimeoutKind::Connect) => "check the base URL and the network",
            ModelErrorKind::TimedOut(_) => "try again, or allow more time",
            ModelErrorKind::ToolChoiceIgnored => "use a model that follows the tool choice",
            ModelErrorKind::Cancelled => "start again when ready",
            ModelErrorKind::Unsupported => "use a model or a provider that can do it",
            ModelErrorKind::Untrusted => "check the base URL, and the certificates that this machine trusts",
        }
    }

    /// Whether the same request may succeed when it is sent again.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            ModelErrorKind::Transient
                | ModelErrorKind::RateLimited
                | ModelErrorKind::Overloaded
                | ModelErrorKind::Malformed
                | ModelErrorKind::CutOff
                | ModelErrorKind::TimedOut(_)
        )
    }
}

impl fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ModelErrorKind::TooLong { limit: Some(limit), used: Some(used) } => {
                return write!(f, "conversation too long, {used} tokens of at most {limit}");
            }
            ModelErrorKind::TooLong { limit: Some(limit), used: None } => {
                return write!(f, "conversation too long, at most {limit} tokens");
            }
            ModelErrorKind::ReplyTooLarge { limit } => {
                return write!(f, "reply too large, more than {limit} bytes");
            }
            ModelErrorKind::Transient => "transient failure",
            ModelErrorKind::RateLimited => "rate limited",
            ModelErrorKind::Overloaded => "overloaded",
            ModelErrorKind::Authentication => "not authorized",
            ModelErrorKind::NotFound => "not found",
            ModelErrorKind::InvalidRequest => "invalid request",
            ModelErrorKind::TooLong { .. } => "conversation too long",
            ModelErrorKind::Refused => "refused",
            ModelErrorKind::Malformed => "malformed reply",
            ModelErrorKind::CutOff => "reply cut off",
            ModelErrorKind::TimedOut(TimeoutKind::Connect) => "timed out while connecting",
            ModelErrorKind::TimedOut(TimeoutKind::FirstToken) => "timed out before the reply began",
            ModelErrorKind::TimedOut(TimeoutKind::Idle) => "timed out while the reply stood still",
            ModelErrorKind::TimedOut(TimeoutKind::Total) => "timed out",
            ModelErrorKind::ToolChoiceIgnored => "tool choice ignored",
            ModelErrorKind::Cancelled => "cancelled",
            ModelErrorKind::Unsupported => "unsupported",
            ModelErrorKind::Untrusted => "server not trusted",
        };
        f.write_str(text)
    }
}

impl ModelError {
    /// An error of this kind. The message adds what the kind does not say; it may be empty.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        ModelError(Box::new(Details {
            kind,
            message: message.into(),
            provider: None,
            model: None,
            request_id: None,
            retry_after: None,
            source: None,
            partial: None,
        }))
    }

    /// The same error, with the provider it came from.
    #[must_use]
    pub fn with_provider(mut self, provider: impl Into<String>) -> Self {
        self.0.provider = Some(provider.into());
        self
    }

    /// The same error, with the model that was asked.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.0.model = Some(model.into());
        self
    }

    /// The same error, with the provider's id of the request.
    #[must_use]
    pub fn with_request_id(mut self, request_id: impl Into<String>) -> Self {
        self.0.request_id = Some(request_id.into());
        self
    }

    /// The same error, with how long the provider asks to wait. A server that is overloaded or starting may
    /// say so as well as one that counts requests.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
    ///
    /// let error = ModelError::new(ModelErrorKind::Overloaded, "loading model");
    /// assert_eq!(error.retry_after(), None);
    /// let wait = Duration::from_secs(5);
    /// assert_eq!(error.with_retry_after(wait).retry_after(), Some(wait));
    /// ```
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// The same error, with another message.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
    ///
    /// let error = ModelError::new(ModelErrorKind::Overloaded, "busy").with_provider("openai");
    /// let message = format!("{} (3 attempts)", error.message());
    /// assert_eq!(error.with_message(message).to_string(), "overloaded (openai): busy (3 attempts)");
    /// ```
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// The same error, with the one that caused it. Its text is shown after the message, unless the message ends with
    /// it.
    ///
    /// # Examples
    /// ```
    /// use std::io;
    /// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
    ///
    /// let error = ModelError::new(ModelErrorKind::Transient, "no response from localhost")
    ///     .with_source(io::Error::other("connection reset"));
    /// assert_eq!(error.to_string(), "transient failure: no response from localhost: connection reset");
    /// assert!(error.cause().is_some_and(|cause| cause.is::<io::Error>()));
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// The same error, with what had come of the reply.
    #[must_use]
    pub fn with_partial(mut self, partial: PartialReply) -> Self {
        self.0.partial = Some(partial);
        self
    }

    /// The error that caused this one, of the provider's own library.
    pub fn cause(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.0.source.as_ref()?;
        Some(&**source)
    }

    /// What went wrong.
    pub const fn kind(&self) -> &ModelErrorKind {
        &self.0.kind
    }

    /// Details that the kind does not have.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The provider it came from.
    pub fn provider(&self) -> Option<&str> {
        self.0.provider.as_deref()
    }

    /// The model that was asked.
    pub fn model(&self) -> Option<&str> {
        self.0.model.as_deref()
    }

    /// The provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// What had come of the reply.
    pub const fn partial(&self) -> Option<&PartialReply> {
        self.0.partial.as_ref()
    }

    /// What a person can do about it; see [`ModelErrorKind::advice`].
    pub const fn advice(&self) -> &'static str {
        self.0.kind.advice()
    }

    /// Whether the same request may succeed when it is sent again.
    pub const fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// How long the provider asks to wait before the next request.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.kind)?;
        if let Some(wait) = self.0.retry_after {
            write!(f, ", retry after {wait:?}")?;
        }
        let known = [("", self.provider()), ("model ", self.model()), ("request ", self.request_id())];
        let mut opening = " (";
        for (label, name) in known {
            if let Some(name) = name {
                write!(f, "{opening}{label}{name}")?;
                opening = ", ";
            }
        }
        if opening == ", " {
            f.write_str(")")?;
        }
        let mut message = String::new();
        if !self.message().is_empty() {
            message = format!(": {}", self.message());
        }
        push_causes(&mut message, self.cause());
        f.write_str(&message)
    }
}

/// The text shows the [cause](ModelError::cause), so there is no `source()`.
impl Error for ModelError {}
