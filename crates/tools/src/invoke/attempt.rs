//! One attempt of a call: the function, its timeout, and a net under its panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time;

use super::threads::{compute_on_thread, wait_on_thread, words_of_panic};
use crate::context::ToolContext;
use crate::error::ToolError;
use crate::function::{Function, ThreadCall, Work};

/// Why an attempt gave no value.
pub(super) enum Fault {
    Error(ToolError),
    Panicked(String),
    TimedOut,
    /// For so long, other tools had all threads.
    NoThread(Duration),
}

impl Fault {
    /// Whether another attempt may help.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Fault::Error(error) => error.is_retryable(),
            Fault::TimedOut => true,
            Fault::Panicked(_) | Fault::NoThread(_) => false,
        }
    }
}

/// How long a tool waits for a thread. That is not its own time: it ran out for whole batches of
/// calls behind slow ones. But where tools hang for ever, the others must not wait for ever.
const LONGEST_QUEUE: Duration = Duration::from_secs(300);

/// Runs the function once.
pub(super) async fn attempt(
    function: &Function,
    context: &ToolContext,
    time_out: Duration,
) -> Result<Value, Fault> {
    let own = context.clone();
    let result = match function {
        Function::Async(function) => {
            // The call itself is inside the net, too: a closure may panic before it gives a future.
            let work = AssertUnwindSafe(async move { function(own).await }).catch_unwind();
            time::timeout(time_out, work).await
        }
        Function::Thread(work, function) => {
            let answer = start_on_thread(*work, Arc::clone(function), own).await?;
            time::timeout(time_out, answer)
                .await
                .map(|answer| answer.unwrap_or_else(|lost| Err(Box::new(lost.to_string()))))
        }
        Function::Hosted(_) => {
            let words =
                "the tool has no function: it runs only where its host runs it, as a run does with an agent";
            return Err(Fault::Error(ToolError::permanent(words)));
        }
    };
    match result {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(Fault::Error(error)),
        Ok(Err(panic)) => Err(Fault::Panicked(words_of_panic(&*panic))),
        Err(_elapsed) => {
            context.cancellation().cancel();
            Err(Fault::TimedOut)
        }
    }
}

type Answer = std::thread::Result<Result<Value, ToolError>>;

/// Waits until a thread has the function; what it gives comes later.
async fn start_on_thread(
    work: Work,
    function: Arc<ThreadCall>,
    context: ToolContext,
) -> Result<oneshot::Receiver<Answer>, Fault> {
    let (starts, started) = oneshot::channel();
    let (send, answer) = oneshot::channel();
    let job = Box::new(move || {
        // Nobody waits any more if the call was cancelled in the queue.
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
