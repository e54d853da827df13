//! Observers of a run: they receive every event, in order, before anything else happens.
//!
//! A failing observer stops the run. An event that was to be committed then is not: so a store ensures that
//! nothing happens without a record. Otherwise, past events are committed and running calls complete before
//! the run stops. Passive observers never fail: nothing (`()`), a vector, a channel, [traces](Traces). Tuples
//! observe together, in order.

mod traces;

use std::error::Error;
use std::future::Future;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use stepfold_state_core::chat::ChatRequest;
use stepfold_tools::CallStatus;
use tokio::sync::mpsc;

pub use self::traces::Traces;
use crate::exit::Exit;
use crate::planned::NodeStatus;
use crate::run::Event;

/// An event for observers.
///
/// Only [`Committed`](RunEvent::Committed) changes the run; the others are informational. As JSON, the
/// request of [`Asking`](RunEvent::Asking) is omitted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEvent {
    /// A request to the model begins.
    Asking {
        /// The step that begins, from 1.
        step: u64,
        /// The model.
        model: String,
        /// The request.
        #[serde(skip)]
        request: Box<ChatRequest>,
    },
    /// More text of the reply.
    Text(String),
    /// More reasoning of the reply.
    Reasoning(String),
    /// More of a call in the reply, which has not started.
    ToolCallDelta {
        /// The index of the call in the reply. Another id at the same index begins another call.
        index: usize,
        /// The id of the call, if this fragment has it.
        call_id: Option<String>,
        /// The tool, if this fragment has it.
        tool: Option<String>,
        /// A fragment of the arguments' text.
        arguments: String,
    },
    /// A call starts.
    ToolStarted {
        /// The id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The arguments, as text.
        arguments: String,
    },
    /// The provider ran a tool of its own, as its reply reports.
    ServerToolUsed {
        /// The provider's id of the use, if it has one.
        call_id: Option<String>,
        /// The tool.
        tool: String,
        /// The arguments, as JSON.
        arguments: String,
    },
    /// A tool reports progress.
    ToolProgress {
        /// The id of the call.
        call_id: String,
        /// The report.
        report: Value,
    },
    /// A call has its outcome; [`EventKind::Answered`](crate::EventKind::Answered) commits it.
    ToolFinished {
        /// The id of the call.
        call_id: String,
        /// The tool.
        tool: String,
        /// The status: success, or the kind of failure.
        status: CallStatus,
        /// The text for the model.
        text: String,
    },
    /// The model is shown less of the conversation than before: which messages, and why.
    Trimmed(String),
    /// A branch of a graph starts.
    NodeStarted {
        /// The node.
        node: String,
        /// The index of the branch in the superstep.
        branch: usize,
    },
    /// A branch of a graph has its outcome; [`EventKind::Answered`](crate::EventKind::Answered) commits it.
    NodeFinished {
        /// The node.
        node: String,
        /// The index of the branch in the superstep.
        branch: usize,
        /// The status: success, or the kind of failure.
        status: NodeStatus,
        /// The reason, if it failed.
        error: Option<String>,
    },
    /// Output of a running node of a graph, or an output that is appended to `outputs` at the end of the
    /// superstep.
    Output {
        /// The node.
        node: String,
        /// The index of the branch in the superstep.
        branch: usize,
        /// The kind of output, if set.
        kind: Option<String>,
        /// The value.
        value: Value,
    },
    /// An event of an inner run: of an agent that is a tool or a node. Its commits are
    /// [`EventKind::Inner`](crate::EventKind::Inner).
    Inner {
        /// The tool or the node.
        name: String,
        /// The id of the call; of a branch, the node, with `#` and its index if it has an item.
        id: String,
        /// Whether it is a branch of a graph.
        is_node: bool,
        /// The index of the call or branch in the step.
        place: usize,
        /// The event.
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

/// An error of an observer.
pub type ObserverError = Box<dyn Error + Send + Sync>;

/// The error of an observer about an event that it can never record, one that is too large for example: nothing of it was
/// recorded. If the event has the outcome of a call, the loop commits instead that the call failed, so that its tool does
/// not run again for that.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{EventRefused, Observer, ObserverError, RunEvent};
///
/// /// Records lines of 1,000 bytes.
/// struct Lines(Vec<String>);
///
/// impl Observer for Lines {
///     async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
///         let Some(event) = event.committed() else { return Ok(()) };
///         let line = serde_json::to_string(event)?;
///         if line.len() > 1_000 {
///             return Err(EventRefused::new(format!("{} bytes are more than 1,000", line.len())).into());
///         }
///         self.0.push(line);
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("event refused: {0}")]
pub struct EventRefused(#[source] ObserverError);

impl EventRefused {
    /// Creates an error with the recorder's own error as its source.
    pub fn new(source: impl Into<ObserverError>) -> Self {
        EventRefused(source.into())
    }

    /// The recorder's own error.
    pub fn into_source(self) -> ObserverError {
        self.0
    }
}

/// Receives every event of a run, in order, from the driver, which waits for it.
///
/// Implemented by recorders and passive observers; `()`, `Vec<RunEvent>`, a tokio channel, [`Traces`], and
/// tuples of observers are observers.
///
/// # Errors
/// An error stops the run. An event that was to be [committed](RunEvent::Committed) is not, and the run stops
/// immediately, with [`RunFault::Commit`](crate::RunFault::Commit). Otherwise past events are committed and
/// running calls complete, and then the run stops with [`RunFault::Observer`](crate::RunFault::Observer).
/// With an observer that [records](crate::RunBuilder::record_with), all others are passive.
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

/// Ignores every event.
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

/// Sends every event, and waits while the channel is full. If the receiver is dropped, the run continues: a
/// disconnect is not a cancellation.
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

/// Each in order; stops at the first failure.
impl Observer for Vec<Box<dyn DynObserver + '_>> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        for observer in self {
            observer.observe_boxed(event).await?;
        }
        Ok(())
    }
}

macro_rules! tuple {
    ($($name:ident),+) => {
        /// Each in order; stops at the first failure.
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

/// The type-erased twin of [`Observer`], for hosts that keep observers of any type. Implemented for each observer; a
/// vector of boxed ones is an observer that notifies each in order, and stops at the first failure.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, DynObserver, RunEvent, Traces};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let mut seen: Vec<RunEvent> = Vec::new();
/// let observers: Vec<Box<dyn DynObserver + '_>> = vec![Box::new(&mut seen), Box::new(Traces::new("clerk"))];
/// agent.run("which area?").observe(observers).await?;
/// assert_eq!(seen.iter().filter_map(RunEvent::committed).count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub trait DynObserver: Send {
    /// Takes note of an event.
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>>;
}

impl<O: Observer> DynObserver for O {
    fn observe_boxed<'a>(&'a mut self, event: &'a RunEvent) -> BoxFuture<'a, Result<(), ObserverError>> {
        Box::pin(self.observe(event))
    }
}
