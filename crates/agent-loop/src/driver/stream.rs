//! A run as a stream of its events.

use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream};
use tokio::sync::mpsc;

use super::options::RunBuilder;
use crate::observe::RunEvent;
use crate::outcome::Outcome;
use crate::run_error::RunError;

/// Events that wait to be read. The run waits while there are more.
const QUEUE: usize = 64;

/// The events of a run as a stream; the run only makes progress while the stream or the outcome is polled.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use futures_util::StreamExt;
/// use stepfold_agent_loop::{Agent, RunEvent};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let mut stream = agent.run("which area has most stalls?").stream();
/// let mut text = String::new();
/// while let Some(event) = stream.next().await {
///     if let RunEvent::Text(more) = event {
///         text += &more;
///     }
/// }
/// assert_eq!(text, "area 3");
/// assert_eq!(stream.outcome().await?.text(), "area 3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct RunStream<'a> {
    run: BoxFuture<'a, Result<Outcome, RunError>>,
    events: mpsc::Receiver<RunEvent>,
    ended: Option<Result<Outcome, RunError>>,
}

impl<'a> RunBuilder<'a> {
    /// Runs as a stream of events.
    pub fn stream(self) -> RunStream<'a> {
        RunStream::new(self)
    }
}

impl<'a> RunStream<'a> {
    fn new(run: RunBuilder<'a>) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        RunStream { run: run.observe(sender).into_future(), events, ended: None }
    }

    /// Runs to the end; events that were not read are not waited for.
    ///
    /// # Errors
    /// As awaiting the run.
    pub async fn outcome(mut self) -> Result<Outcome, RunError> {
        self.events.close();
        match self.ended {
            Some(ended) => ended,
            None => self.run.await,
        }
    }
}

impl Stream for RunStream<'_> {
    type Item = RunEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RunEvent>> {
        loop {
            if let Poll::Ready(Some(event)) = self.events.poll_recv(cx) {
                return Poll::Ready(Some(event));
            }
            if self.ended.is_some() {
                return Poll::Ready(None);
            }
            match self.run.poll_unpin(cx) {
                Poll::Ready(ended) => self.ended = Some(ended),
                // It may have sent something before it returned pending.
                Poll::Pending => return self.events.poll_recv(cx),
            }
        }
    }
}

impl std::fmt::Debug for RunStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunStream").field("has_ended", &self.ended.is_some()).finish_non_exhaustive()
    }
}
