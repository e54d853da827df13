//! Layers that go around any model, and are models themselves.
//!
//! They are put on with the methods of [`ChatModelExt`], innermost first. A good order, from the inside:
//! [time-outs](ChatModelExt::with_timeouts), so that a request that hangs becomes an error;
//! [traces](ChatModelExt::traced), to see each attempt; limits of
//! [rate](ChatModelExt::with_rate_limit) and [concurrency](ChatModelExt::with_max_concurrency), so that
//! a retry counts as a request; [retry](ChatModelExt::with_retry); and outermost
//! [fallback](ChatModelExt::with_fallback), to another model when all that was of no use.
//!
//! No layer ever repeats a request of which something was handed on: whoever reads a stream would see the
//! beginning of the reply twice.

mod concurrency;
mod fallback;
mod opening;
mod rate_limit;
mod retry;
mod timeout;
mod trace;

use std::sync::Arc;

use stepfold_state_core::chat::ChatModel;

pub use self::concurrency::Limited;
pub use self::fallback::Fallback;
pub use self::rate_limit::{RateLimit, RateLimited};
pub use self::retry::{FailedAttempt, Retried, RetryPolicy};
#[cfg(feature = "http")]
pub(crate) use self::timeout::watch;
pub use self::timeout::{TimedOut, Timeouts};
pub use self::trace::{TraceContent, Traced};

/// Puts layers around a model.
///
/// Implemented for every model, and by nobody else.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use stepfold_providers::layer::{ChatModelExt, RetryPolicy, Timeouts};
/// use stepfold_providers::{Scripted, ScriptedReply};
/// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelErrorKind, Transcript};
///
/// let script = Scripted::new([ScriptedReply::from(ModelErrorKind::Overloaded), "area 3".into()]);
/// let model = script.clone().with_timeouts(Timeouts::default()).with_retry(RetryPolicy::default());
///
/// let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
/// let reply = model.respond(request).into_reply().await?;
/// assert_eq!(reply.message.text(), "area 3");
/// assert_eq!(script.requests().len(), 2);
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// # }).unwrap();
/// ```
pub trait ChatModelExt: ChatModel + Sized + 'static + sealed::Sealed {
    /// Asks again when an attempt failed in a way that may pass.
    fn with_retry(self, policy: RetryPolicy) -> Retried<Self> {
        Retried::new(self, policy)
    }

    /// Asks another model when this one cannot answer. To be repeated for a third one.
    fn with_fallback(self, other: impl ChatModel + 'static) -> Fallback {
        Fallback::new(self).or(other)
    }

    /// Waits before a request that would exceed this rate.
    fn with_rate_limit(self, limit: RateLimit) -> RateLimited<Self> {
        RateLimited::new(self, limit)
    }

    /// Lets at most so many requests run at once; the others wait, in order. Zero counts as one.
    fn with_max_concurrency(self, requests: usize) -> Limited<Self> {
        Limited::new(self, requests)
    }

    /// Gives up on a request that takes too long.
    fn with_timeouts(self, timeouts: Timeouts) -> TimedOut<Self> {
        TimedOut::new(self, timeouts)
    }

    /// Tells `tracing` of each request, under the names of OpenTelemetry, without what was said.
    fn traced(self) -> Traced<Self> {
        Traced::new(self, TraceContent::Omit)
    }

    /// Tells `tracing` of each request, and of all that was said if asked to.
    fn traced_with(self, content: TraceContent) -> Traced<Self> {
        Traced::new(self, content)
    }

    /// This model behind a pointer that can be shared and does not say what is in it.
    fn shared(self) -> Arc<dyn ChatModel> {
        Arc::new(self)
    }
}

impl<M: ChatModel + Sized + 'static> ChatModelExt for M {}

mod sealed {
    pub trait Sealed {}
    impl<M: super::ChatModel> Sealed for M {}
}
