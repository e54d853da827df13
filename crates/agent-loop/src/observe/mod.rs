//! Watching a run: every event, in order, before anything else happens.
//!
//! An observer that fails stops the run. If an event was to be committed, it is not: that is how a store makes sure that
//! nothing happens which it did not record. If the observer was only told of something, what has happened is committed
//! and what is under way comes to its end before the run stops. Those that only look on never fail: nothing (`()`), a vector, a
//! channel, [traces](Traces). Tuples observe together, in their order.

mod traces;

use std::error::Error;
use std::future::Future;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use stepfold_state_core::chat::ChatRequest;
use stepfold_tools::Status;
use tokio::sync::mpsc;

pub use self::traces::Traces;
use crate::run::{Event, Exit, NodeStatus};

/// What an observer is told.
///
/// Only [`Committed`](RunEvent::Committed) changes anything; the others are for those who look on. As JSON,
/// the request of [`Asking`](RunEvent::Asking) is left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEvent {
    /// The model is asked.
    Asking {
        /// The step that begins, from 1.
        step: u64,
        /// The model.
        model: String,
        /// What it is asked.
        #[serde(skip)]
        request: Box<ChatRequest>,
    },
    /// More text of the reply.
    Text(String),
    /// More reasoning of the reply.
    Reasoning(String),
    /// A call starts.
    ToolStarted {
        /// The id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The arguments, as text.
        arguments: String,
    },
    /// The provider ran a tool of its own, as its reply tells.
    ServerToolUsed {
        /// The provider's id of the use, if it has one.
        call_id: Option<String>,
        /// The tool.
        tool: String,
        /// What it was used with, as JSON.
        arguments: String,
    },
    /// A tool reports progress.
    ToolProgress {
        /// The id of the call.
        call_id: String,
        /// What it reports.
        report: Value,
    },
    /// A call has its outcome; [`EventKind::Answered`](crate::EventKind::Answered) commits it.
    ToolFinished {
        /// The id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// How it ended.
        status: Status,
        /// What the model reads.
        text: String,
    },
    /// The model is shown less of the conversation than before: which messages, and why.
    Trimmed(String),
    /// A branch of a graph starts.
    NodeStarted {
        /// The node.
        node: String,
        /// The place of the branch in the superstep.
        branch: usize,
    },
    /// A branch of a graph has its outcome; [`EventKind::Answered`](crate::EventKind::Answered) commits it.
    NodeFinished {
        /// The node.
        node: String,
        /// The place of the branch in the superstep.
        branch: usize,
        /// How it ended.
        status: NodeStatus,
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// A node of a graph says something while it works, or has given an output that is appended to `outputs` at the
    /// end of the superstep.
    Output {
        /// The node.
        node: String,
        /// The place of the branch in the superstep.
        branch: usize,
        /// What kind of output it is, if it says so.
        kind: Option<String>,
        /// What it says.
        value: Value,
    },
    /// What happens in a run inside: of an agent that is a tool or a node. Its commits come as
    /// [`EventKind::Inner`](crate::EventKind::Inner).
    Inner {
        /// The tool or the node.
        name: String,
        /// The place of the call or branch in the step.
        place: usize,
        /// What happens.
        event: Box<RunEvent>,
    },
    /// An event is to be committed.
    Committed(Box<Event>),
    /// The run paused or ended.
    Ended(Exit),
}

impl RunEvent {
    /// The event that is to be committed, if this is one.
    pub const fn committed(&self) -> Option<&Event> {
        match self {
            RunEvent::Committed(event) => Some(event),
            _ => None,
        }
    }
}

/// Why an observer failed.
pub type ObserverError = Box<dyn Error + Send + Sync>;

/// Is told every event of a run, in order, by the driver, which waits for it.
///
/// Implemented by whoever records a run, or looks on; `()`, `Vec<RunEvent>`, a tokio channel, [`Traces`], and
/// tuples of observers are observers.
///
/// # Errors
/// An error stops the run. If the event was one to be [committed](RunEvent::Committed), it is not, and the run stops at
/// once, with [`RunFault::Commit`](crate::RunFault::Commit). Otherwise what has happened is committed and what is under
/// way comes to its end, and then the run stops with [`RunFault::Observer`](crate::RunFault::Observer). Beside an observer
/// that [records](crate::RunBuilder::record_with), all others are only told.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Observer, ObserverError, RunEvent};
///
/// /// Counts what is committed.
/// struct Count(usize);
///
/// impl Observer for Count {
///     async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
///         self.0 += usize::from(event.committed().is_some());
///         Ok(())
///     }
/// }
/// ```
pub trait Observer: Send {
    /// Takes note of an event.
    fn observe(&mut self, event: &RunEvent) -> impl Future<Output = Result<(), ObserverError>> + Send;
}

/// Looks away.
impl Observer for () {
    async fn observe(&mut self, _: &RunEvent) -> Result<(), ObserverError> {
        Ok(())
    }
}

/// Keeps everything.
impl Observer for Vec<RunEvent> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        self.push(event.clone());
        Ok(())
    }
}

/// Hands everything on, and waits while the channel is full. When nobody listens any more, the run goes on:
/// a disconnect is not a cancellation.
impl Observer for mpsc::Sender<RunEvent> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let _ = self.send(event.clone()).await;
        Ok(())
    }
}

impl<O: Observer + ?Sized> Observer for &mut O {
    fn observe(&mut self, event: &RunEvent) -> impl Future<Output = Result<(), ObserverError>> + Send {
        (**self).observe(event)
    }
}

macro_rules! tuple {
    ($($name:ident),+) => {
        /// Each in its turn; the first that fails is the last that is told.
        impl<$($name: Observer),+> Observer for ($($name,)+) {
            async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
                #[expect(non_snake_case, reason = "a type and its value share the letter")]
                let ($($name,)+) = self;
                $($name.observe(event).await?;)+
                Ok(())
            }
        }
    };
}

tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);

/// The erased twin of [`Observer`].
pub(crate) trait DynObserver: Send {
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>>;
}

impl<O: Observer> DynObserver for O {
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>> {
        Box::pin(self.observe(event))
    }
}
