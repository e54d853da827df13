//! Options of an invocation: limits, long results, resources.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::resources::Resources;

/// Limits on the calls of one reply.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallLimits {
    /// Limits the calls that run at the same time; 64 by default. Zero counts as one.
    pub concurrency: usize,
    /// The timeout of one attempt of a call, for tools without one of their own; 5 minutes by default.
    pub timeout: Duration,
    /// Limits the bytes of a result that the model reads; 64 KiB by default.
    pub output_bytes: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        CallLimits { concurrency: 64, timeout: Duration::from_secs(300), output_bytes: 64 * 1024 }
    }
}

/// Options of an invocation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InvokeOptions {
    /// The limits.
    pub limits: CallLimits,
    /// The handling of results above the limit.
    pub overflow: Overflow,
    /// Cancels the calls.
    pub cancellation: CancellationToken,
    /// The resources of the application.
    pub resources: Resources,
    /// The prefix of the calls' idempotency keys: the session, invocation and step, so that the key of a call
    /// is the same when the step runs again, and unique otherwise.
    pub key_scope: String,
    /// The messages of the conversation in the state that the model is shown in full; see
    /// [`ToolContext::is_shown`](crate::ToolContext::is_shown). None by default.
    pub shown: Arc<[Range<usize>]>,
    /// Whether a failed call ends the run. By default the model reads the failure and the run continues.
    pub raise_on_failure: bool,
    /// Whether the caller runs [hosted](crate::Tool::hosted) tools, [completes](crate::Invocation::complete) their calls,
    /// and handles the [questions](crate::CallEvent::InputRequired) of calls. By default these calls fail.
    pub hosts_calls: bool,
    /// Whether the caller gives every call its [outcome](crate::Invocation::conclude): no function of a tool starts. False
    /// by default.
    pub answers_calls: bool,
}

impl CallLimits {
    /// Sets the maximum number of concurrent calls.
    #[must_use]
    pub fn with_concurrency(mut self, calls: usize) -> Self {
        self.concurrency = calls;
        self
    }

    /// Sets the timeout of one attempt of a call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum bytes of a result.
    #[must_use]
    pub fn with_output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes = bytes;
        self
    }
}

impl InvokeOptions {
    /// Options with the prefix `key_scope` for idempotency keys; see [`key_scope`](InvokeOptions::key_scope).
    /// The default is empty, for calls without effects.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_tools::{InvokeOptions, CallLimits};
    ///
    /// let options = InvokeOptions::scoped("session-7/invocation-3/step-1")
    ///     .with_limits(CallLimits::default().with_timeout(Duration::from_secs(10)));
    /// assert_eq!(options.limits.concurrency, 64);
    /// ```
    pub fn scoped(key_scope: impl Into<String>) -> Self {
        InvokeOptions { key_scope: key_scope.into(), ..InvokeOptions::default() }
    }

    /// Options with this cancellation token and these resources, and the defaults of the others.
    pub fn new(cancellation: CancellationToken, resources: Resources) -> Self {
        InvokeOptions {
            limits: CallLimits::default(),
            overflow: Overflow::default(),
            cancellation,
            resources,
            key_scope: String::new(),
            shown: Arc::default(),
            raise_on_failure: false,
            hosts_calls: false,
            answers_calls: false,
        }
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: CallLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the handling of results above the limit.
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Sets the cancellation token.
    #[must_use]
    pub fn with_cancellation(mut self, cancellation: CancellationToken) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Sets the resources of the application.
    #[must_use]
    pub fn with_resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    /// Makes a failed call end the run.
    #[must_use]
    pub fn raising_on_failure(mut self) -> Self {
        self.raise_on_failure = true;
        self
    }

    /// Makes the caller [complete](crate::Invocation::complete) the calls of [hosted](crate::Tool::hosted)
    /// tools, and take the [questions](crate::CallEvent::InputRequired) of calls.
    #[must_use]
    pub fn hosting_calls(mut self) -> Self {
        self.hosts_calls = true;
        self
    }

    /// Makes the caller [conclude](crate::Invocation::conclude) every call, hosted or not: no function of a tool starts.
    /// For a host that answers calls from a record.
    #[must_use]
    pub fn answering_calls(mut self) -> Self {
        self.hosts_calls = true;
        self.answers_calls = true;
        self
    }
}

/// The handling of a result above the limit of output bytes.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// Truncates: the model reads the beginning, and a note of the full size.
    #[default]
    Cut,
    /// Stores the full text elsewhere: the model reads the beginning and the location of the full text.
    Offload(Arc<dyn Offload>),
}

impl std::fmt::Debug for Overflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Overflow::Cut => "Cut",
            Overflow::Offload(_) => "Offload",
        })
    }
}

/// Stores results that are too long for a model: in a file, a bucket, a table. Implemented by the
/// application; called once for each such result, while the step runs.
pub trait Offload: Send + Sync {
    /// Stores `text` and returns its location, in words that one of your tools can follow.
    ///
    /// # Errors
    /// Any error. It is traced, and the model reads the beginning only.
    fn keep(&self, call_id: &str, text: &str) -> Result<String, Box<dyn Error + Send + Sync>>;
}
