//! How the calls of a reply are run: bounds, what becomes of long results, what the application gives.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::resources::Resources;

/// Bounds on what the calls of one reply may take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Limits the calls that run at the same time; 64 by default. Zero counts as one.
    pub concurrency: usize,
    /// The timeout of one attempt of a call, for tools without one of their own; 5 minutes by default.
    pub time_out: Duration,
    /// Limits the bytes of a result that the model reads; 64 KiB by default.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { concurrency: 64, time_out: Duration::from_secs(300), output_bytes: 64 * 1024 }
    }
}

/// How the calls of a reply are run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InvokeOptions {
    /// Bounds.
    pub limits: Limits,
    /// What happens to results that are too long.
    pub overflow: Overflow,
    /// Stops what can be stopped.
    pub cancellation: CancellationToken,
    /// What the application gives to its tools.
    pub resources: Resources,
    /// What the idempotency keys of the calls begin with: the session, invocation and step, so that the key
    /// of a call is the same when the step runs again, and no other call has it.
    pub key_scope: String,
    /// Whether a failed call ends the run. By default the model reads the failure and goes on.
    pub raise_on_failure: bool,
    /// Whether the caller runs [hosted](crate::Tool::hosted) tools and [completes](crate::Invocation::complete) their calls.
    /// By default these fail.
    pub hosts_calls: bool,
}

impl Limits {
    /// The same with another number of calls that run at the same time.
    #[must_use]
    pub fn with_concurrency(mut self, calls: usize) -> Self {
        self.concurrency = calls;
        self
    }

    /// The same with another timeout of one attempt of a call.
    #[must_use]
    pub fn with_time_out(mut self, time_out: Duration) -> Self {
        self.time_out = time_out;
        self
    }

    /// The same with another bound on the bytes of a result.
    #[must_use]
    pub fn with_output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes = bytes;
        self
    }
}

impl InvokeOptions {
    /// Options for calls whose idempotency keys begin with `key_scope`; see
    /// [`key_scope`](InvokeOptions::key_scope). The default has an empty one, for calls without effects.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_tools::{InvokeOptions, Limits};
    ///
    /// let options = InvokeOptions::scoped("session-7/invocation-3/step-1")
    ///     .with_limits(Limits::default().with_time_out(Duration::from_secs(10)));
    /// assert_eq!(options.limits.concurrency, 64);
    /// ```
    pub fn scoped(key_scope: impl Into<String>) -> Self {
        InvokeOptions { key_scope: key_scope.into(), ..InvokeOptions::default() }
    }

    /// The same with other bounds.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same with another fate of results that are too long.
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// The same, stopped by this token.
    #[must_use]
    pub fn with_cancellation(mut self, cancellation: CancellationToken) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// The same with what the application gives to its tools.
    #[must_use]
    pub fn with_resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    /// The same, where a failed call ends the run.
    #[must_use]
    pub fn raising_on_failure(mut self) -> Self {
        self.raise_on_failure = true;
        self
    }

    /// The same, where the caller [completes](crate::Invocation::complete) the calls of [hosted](crate::Tool::hosted)
    /// tools.
    #[must_use]
    pub fn hosting_calls(mut self) -> Self {
        self.hosts_calls = true;
        self
    }
}

/// What happens to a result that is longer than the limit of output bytes.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// The model reads the beginning, and a note of how much there was.
    #[default]
    Cut,
    /// The whole is kept elsewhere; the model reads the beginning and where the rest is.
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

/// Keeps results that are too long for a model: in a file, a bucket, a table. Implemented by the
/// application; called by the engine once for each such result, while the step runs.
pub trait Offload: Send + Sync {
    /// Keeps `text` and says where, in words that a tool of yours can follow.
    ///
    /// # Errors
    /// Any error. It is traced, and the model reads the beginning only.
    fn keep(&self, call_id: &str, text: &str) -> Result<String, Box<dyn Error + Send + Sync>>;
}
