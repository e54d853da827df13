//! One attempt of a call: the function, its timeout, and panic handling.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time;

use super::threads::{panic_message, run_blocking, run_cpu_bound};
use crate::context::ToolContext;
use crate::error::ToolError;
use crate::function::{ErasedFunction, ThreadCall, ThreadKind};

/// The failure of an attempt.
pub(super) enum AttemptFailure {
    Error(ToolError),
    Panicked(String),
    TimedOut,
    /// No thread was available for this long.
    NoThread(Duration),
}

impl AttemptFailure {
    /// Whether a retry may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            AttemptFailure::Error(error) => error.is_retryable(),
            AttemptFailure::TimedOut => true,
            AttemptFailure::Panicked(_) | AttemptFailure::NoThread(_) => false,
        }
    }
}

/// The maximum wait for a thread. It is separate from the tool's timeout: otherwise whole batches of calls
/// would time out behind slow ones. But with tools that hang forever, the others must not wait forever.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(300);

/// Runs the function once.
pub(super) async fn attempt(
    function: &ErasedFunction,
    context: &ToolContext,
    timeout: Duration,
) -> Result<Value, AttemptFailure> {
    let own = context.clone();
    let result = match function {
        ErasedFunction::Async(function) => {
            // NOTE: The call is inside, too: a closure may panic before it returns a future.
            let work = AssertUnwindSafe(async move { function(own).await }).catch_unwind();
            time::timeout(timeout, work).await
        }
        ErasedFunction::Thread(kind, function) => {
            let answer = start_on_thread(*kind, Arc::clone(function), own).await?;
            time::timeout(timeout, answer)
                .await
                .map(|answer| answer.unwrap_or_else(|lost| Err(Box::new(lost.to_string()))))
        }
        ErasedFunction::Hosted(_) => {
            let text = "the tool has no function: only a host can run it, as a run does with an agent";
            return Err(AttemptFailure::Error(ToolError::permanent(text)));
        }
    };
    match result {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(AttemptFailure::Error(error)),
        Ok(Err(panic)) => Err(AttemptFailure::Panicked(panic_message(&*panic))),
        Err(_elapsed) => {
            // NOTE: An async tool was dropped by the timeout; a blocking one can only be asked to stop.
            context.cancellation().cancel();
            Err(AttemptFailure::TimedOut)
        }
    }
}

type ThreadResult = std::thread::Result<Result<Value, ToolError>>;

/// Waits until a thread has started the function; returns a receiver of its result.
async fn start_on_thread(
    kind: ThreadKind,
    function: Arc<ThreadCall>,
    context: ToolContext,
) -> Result<oneshot::Receiver<ThreadResult>, AttemptFailure> {
    // NOTE: Tells when the thread has started: the timeout of the tool does not include the queue.
    let (starts, started) = oneshot::channel();
    let (send, answer) = oneshot::channel();
    let job = Box::new(move || {
        // NOTE: The receiver is gone if the call was cancelled in the queue.
        if starts.send(()).is_ok() {
            let _ = send.send(catch_unwind(AssertUnwindSafe(|| function(context))));
        }
    });
    let submitted = match kind {
        ThreadKind::Blocking => run_blocking(job),
        ThreadKind::CpuBound => run_cpu_bound(job),
    };
    submitted.map_err(|error| AttemptFailure::Error(ToolError::fatal(error)))?;
    match time::timeout(MAX_QUEUE_TIME, started).await {
        Ok(_) => Ok(answer),
        Err(_elapsed) => Err(AttemptFailure::NoThread(MAX_QUEUE_TIME)),
    }
}
