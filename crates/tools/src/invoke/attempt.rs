//! One attempt of a call: the function, its timeout, and panic handling.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time;

use super::threads::{compute_on_thread, panic_message, wait_on_thread};
use crate::context::ToolContext;
use crate::error::ToolError;
use crate::function::{Function, ThreadCall, Work};

/// The failure of an attempt.
pub(super) enum Fault {
    Error(ToolError),
    Panicked(String),
    TimedOut,
    /// No thread was available for this long.
    NoThread(Duration),
}

impl Fault {
    /// Whether a retry may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Fault::Error(error) => error.is_retryable(),
            Fault::TimedOut => true,
            Fault::Panicked(_) | Fault::NoThread(_) => false,
        }
    }
}

/// The maximum wait for a thread. It is separate from the tool's timeout: otherwise whole batches of calls
/// would time out behind slow ones. But with tools that hang forever, the others must not wait forever.
const LONGEST_QUEUE: Duration = Duration::from_secs(300);

/// Runs the function once.
pub(super) async fn attempt(
    function: &Function,
    context: &ToolContext,
    timeout: Duration,
) -> Result<Value, Fault> {
    let own = context.clone();
    let result = match function {
        Function::Async(function) => {
            // Includes the call itself: a closure may panic before it returns a future.
            let work = AssertUnwindSafe(async move { function(own).await }).catch_unwind();
            time::timeout(timeout, work).await
        }
        Function::Thread(work, function) => {
            let answer = start_on_thread(*work, Arc::clone(function), own).await?;
            time::timeout(timeout, answer)
                .await
                .map(|answer| answer.unwrap_or_else(|lost| Err(Box::new(lost.to_string()))))
        }
        Function::Hosted(_) => {
            let words = "the tool has no function: only a host can run it, as a run does with an agent";
            return Err(Fault::Error(ToolError::permanent(words)));
        }
    };
    match result {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(Fault::Error(error)),
        Ok(Err(panic)) => Err(Fault::Panicked(panic_message(&*panic))),
        Err(_elapsed) => {
            context.cancellation().cancel();
            Err(Fault::TimedOut)
        }
    }
}

type Answer = std::thread::Result<Result<Value, ToolError>>;

/// Waits until a thread has started the function; returns a receiver of its result.
async fn start_on_thread(
    work: Work,
    function: Arc<ThreadCall>,
    context: ToolContext,
) -> Result<oneshot::Receiver<Answer>, Fault> {
    let (starts, started) = oneshot::channel();
    let (send, answer) = oneshot::channel();
    let job = Box::new(move || {
        // The receiver is gone if the call was cancelled in the queue.
        if starts.send(()).is_ok() {
            let _ = send.send(catch_unwind(AssertUnwindSafe(|| function(context))));
        }
    });
    let submitted = match work {
        Work::Waits => wait_on_thread(job),
        Work::Computes => compute_on_thread(job),
    };
    submitted.map_err(|error| Fault::Error(ToolError::fatal(error)))?;
    match time::timeout(LONGEST_QUEUE, started).await {
        Ok(_) => Ok(answer),
        Err(_elapsed) => Err(Fault::NoThread(LONGEST_QUEUE)),
    }
}
