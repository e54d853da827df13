//! Errors of models. Callers branch on the [kind](ModelErrorKind), never on the text; the error of the
//! provider's library is the source.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::PartialReply;
use crate::error_chain::push_causes;

/// An error of a model: no reply, or an incomplete one.
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
// NOTE: Boxed, so that a `Result` with this error stays small where nothing fails.
#[derive(Clone)]
pub struct ModelError(Box<ModelErrorDetails>);

#[derive(Clone)]
struct ModelErrorDetails {
    kind: ModelErrorKind,
    message: String,
    provider: Option<String>,
    model: Option<String>,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    // NOTE: Shared, because the error is cloned and `dyn Error` is not `Clone`.
    source: Option<Arc<dyn Error + Send + Sync>>,
    partial: Option<PartialReply>,
}

/// The kind of a [`ModelError`], for callers to branch on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The network or the server failed temporarily.
    Transient,
    /// Too many requests or tokens in too short a time.
    RateLimited,
    /// The server is overloaded.
    Overloaded,
    /// The API key is missing, invalid, or lacks a permission.
    Authentication,
    /// The quota or the balance of the account is exhausted. Waiting a moment does not help.
    QuotaExceeded,
    /// Unknown model or URL.
    NotFound,
    /// The provider rejects the request as invalid.
    InvalidRequest,
    /// The conversation exceeds the model's context window.
    TooLong {
        /// The maximum number of tokens.
        limit: Option<u64>,
        /// The number of tokens of the request.
        used: Option<u64>,
    },
    /// The provider refused the request because of its content.
    Refused,
    /// The reply cannot be parsed.
    Malformed,
    /// The reply was interrupted: its stream ended before it was complete.
    Truncated,
    /// The reply exceeds the reader's limit. A retry may give the same reply.
    ReplyTooLarge {
        /// The maximum number of bytes.
        limit: usize,
    },
    /// A timeout was exceeded.
    TimedOut(TimeoutKind),
    /// The request required a tool call, and the reply has none.
    ToolChoiceIgnored,
    /// The caller cancelled the request.
    Cancelled,
    /// The model or provider does not support the request.
    Unsupported,
    /// The server's certificate is not trusted.
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
    /// Each kind, without its fields.
    const ALL: [ModelErrorKind; 20] = [
        ModelErrorKind::Transient,
        ModelErrorKind::RateLimited,
        ModelErrorKind::Overloaded,
        ModelErrorKind::Authentication,
        ModelErrorKind::QuotaExceeded,
        ModelErrorKind::NotFound,
        ModelErrorKind::InvalidRequest,
        ModelErrorKind::TooLong { limit: None, used: None },
        ModelErrorKind::Refused,
        ModelErrorKind::Malformed,
        ModelErrorKind::Truncated,
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

    /// The name of the kind, without its fields: for metrics and records.
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
            ModelErrorKind::QuotaExceeded => "quota_exceeded",
            ModelErrorKind::NotFound => "not_found",
            ModelErrorKind::InvalidRequest => "invalid_request",
            ModelErrorKind::TooLong { .. } => "too_long",
            ModelErrorKind::Refused => "refused",
            ModelErrorKind::Malformed => "malformed",
            ModelErrorKind::Truncated => "truncated",
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

    /// The kind with this [name](ModelErrorKind::name), with empty fields.
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

    /// Advice for a person, as a sentence without a full stop.
    pub const fn advice(&self) -> &'static str {
        match self {
            ModelErrorKind::Transient => "retry",
            ModelErrorKind::RateLimited => "wait, then retry; send fewer requests",
            ModelErrorKind::Overloaded => "retry later, or fall back to another model",
            ModelErrorKind::Authentication => "check the API key and its permissions",
            ModelErrorKind::QuotaExceeded => "check the plan, the balance and the limits of the account",
            ModelErrorKind::NotFound => "check the name of the model and the base URL",
            ModelErrorKind::InvalidRequest => "check the parameters and the tool schemas",
            ModelErrorKind::TooLong { .. } => "trim the conversation, or use a model with a larger window",
            ModelErrorKind::Refused => "change the content of the request",
            ModelErrorKind::Malformed => "retry; check that the server speaks this protocol",
            ModelErrorKind::Truncated => "retry; the error has the partial reply",
            ModelErrorKind::ReplyTooLarge { .. } => {
                "request less at once, or raise the limit on the bytes of a reply; the error has the partial reply"
            }
            ModelErrorKind::TimedOut(TimeoutKind::Connect) => "check the base URL and the network",
            ModelErrorKind::TimedOut(_) => "retry, or raise the timeout",
            ModelErrorKind::ToolChoiceIgnored => "use a model that follows the tool choice",
            ModelErrorKind::Cancelled => "send the request again if it is still needed",
            ModelErrorKind::Unsupported => "use a model or a provider that supports it",
            ModelErrorKind::Untrusted => "check the base URL, and the trusted certificates of this machine",
        }
    }

    /// Whether a retry of the same request may succeed.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            ModelErrorKind::Transient
                | ModelErrorKind::RateLimited
                | ModelErrorKind::Overloaded
                | ModelErrorKind::Malformed
                | ModelErrorKind::Truncated
                | ModelErrorKind::TimedOut(_)
        )
    }

    /// Whether the same request always fails: the conversation, its options or the model must change. A missing key, an
    /// unknown address and an untrusted certificate do not count: they are repaired outside the request.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            ModelErrorKind::InvalidRequest
                | ModelErrorKind::TooLong { .. }
                | ModelErrorKind::Refused
                | ModelErrorKind::ReplyTooLarge { .. }
                | ModelErrorKind::ToolChoiceIgnored
                | ModelErrorKind::Unsupported
        )
    }
}

impl fmt::Display for ModelErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ModelErrorKind::TooLong { limit: Some(limit), used: Some(used) } => {
                return write!(f, "conversation too long: expected at most {limit} tokens, found {used}");
            }
            ModelErrorKind::TooLong { limit: Some(limit), used: None } => {
                return write!(f, "conversation too long: expected at most {limit} tokens");
            }
            ModelErrorKind::ReplyTooLarge { limit } => {
                return write!(f, "reply too large: expected at most {limit} bytes");
            }
            ModelErrorKind::Transient => "transient failure",
            ModelErrorKind::RateLimited => "rate limited",
            ModelErrorKind::Overloaded => "overloaded",
            ModelErrorKind::Authentication => "not authorized",
            ModelErrorKind::QuotaExceeded => "quota exhausted",
            ModelErrorKind::NotFound => "not found",
            ModelErrorKind::InvalidRequest => "invalid request",
            ModelErrorKind::TooLong { .. } => "conversation too long",
            ModelErrorKind::Refused => "refused",
            ModelErrorKind::Malformed => "malformed reply",
            ModelErrorKind::Truncated => "reply interrupted",
            ModelErrorKind::TimedOut(TimeoutKind::Connect) => "timed out while connecting",
            ModelErrorKind::TimedOut(TimeoutKind::FirstToken) => "timed out before the first chunk",
            ModelErrorKind::TimedOut(TimeoutKind::Idle) => "timed out between chunks",
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
    /// Creates an error of this kind. The message adds details to the kind; it may be empty.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        ModelError(Box::new(ModelErrorDetails {
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

    /// Sets the provider that returned the error.
    #[must_use]
    pub fn with_provider(mut self, provider: impl Into<String>) -> Self {
        self.0.provider = Some(provider.into());
        self
    }

    /// Sets the model that was called.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.0.model = Some(model.into());
        self
    }

    /// Sets the provider's id of the request.
    #[must_use]
    pub fn with_request_id(mut self, request_id: impl Into<String>) -> Self {
        self.0.request_id = Some(request_id.into());
        self
    }

    /// Sets the wait that the provider requests before a retry. Servers that are overloaded or starting may send
    /// one, too.
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

    /// Replaces the message.
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

    /// Sets the underlying error. Its text is shown after the message, unless the message ends with it.
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

    /// Sets the partial reply.
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

    /// The kind of the error.
    pub const fn kind(&self) -> &ModelErrorKind {
        &self.0.kind
    }

    /// Details beyond the kind.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The provider that returned the error.
    pub fn provider(&self) -> Option<&str> {
        self.0.provider.as_deref()
    }

    /// The model that was called.
    pub fn model(&self) -> Option<&str> {
        self.0.model.as_deref()
    }

    /// The provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// Whether the provider refused the request before it generated anything, and charges nothing for it. Of a lost
    /// connection or a timeout this is unknown, so that the request may cost something.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
    ///
    /// assert!(ModelError::new(ModelErrorKind::RateLimited, "slow down").is_free());
    /// assert!(!ModelError::new(ModelErrorKind::Transient, "the connection was lost").is_free());
    /// ```
    pub fn is_free(&self) -> bool {
        let has_nothing = |partial: &PartialReply| {
            partial.message.parts().is_empty() && partial.usage == super::Usage::default()
        };
        self.partial().is_none_or(has_nothing)
            && matches!(
                self.kind(),
                ModelErrorKind::RateLimited
                    | ModelErrorKind::Overloaded
                    | ModelErrorKind::Authentication
                    | ModelErrorKind::QuotaExceeded
                    | ModelErrorKind::NotFound
                    | ModelErrorKind::InvalidRequest
                    | ModelErrorKind::TooLong { .. }
                    | ModelErrorKind::Unsupported
                    | ModelErrorKind::Untrusted
                    | ModelErrorKind::TimedOut(TimeoutKind::Connect)
            )
    }

    /// The partial reply.
    pub const fn partial(&self) -> Option<&PartialReply> {
        self.0.partial.as_ref()
    }

    /// Advice for a person; see [`ModelErrorKind::advice`].
    pub const fn advice(&self) -> &'static str {
        self.0.kind.advice()
    }

    /// Whether a retry of the same request may succeed.
    pub const fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// The wait that the provider requests before a retry.
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

crate::debug_as_text!(ModelError);
