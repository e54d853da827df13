//! The outcome of a call. Every call has exactly one, and the model reads its result in any case: an error is
//! a message, too.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
use stepfold_state_core::state::Delta;

/// The outcome of one call: its result for the model, and its writes to the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallOutcome {
    /// The status of the call.
    pub status: CallStatus,
    /// The result for the model. It names the call and the tool.
    pub result: ToolResult,
    /// The writes to the state: empty unless the call succeeded.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub delta: Delta,
    /// The number of attempts; 0 if the tool was not started.
    #[serde(default)]
    pub tries: u32,
}

/// The status of a call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallStatus {
    /// The tool returned a result.
    Succeeded,
    /// The call failed.
    Failed(CallFailure),
    /// The run was cancelled while the tool ran; the effect may have happened.
    Cancelled,
    /// The run was cancelled before the tool was started.
    NotStarted,
    /// The process crashed after the tool was started, and the tool must not run twice, or the tool
    /// [says so](crate::ToolError::unknown); the effect may have happened.
    Unknown,
}

/// The cause of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallFailure {
    /// Unknown tool name.
    UnknownTool,
    /// The arguments are not JSON; the tool was not started.
    MalformedArguments,
    /// The arguments do not match the tool's schema; the tool did nothing.
    InvalidArguments,
    /// The tool returned an error.
    Error,
    /// The tool panicked.
    Panicked,
    /// The tool timed out.
    TimedOut,
    /// The tool ran, but its writes could not be merged into the state. None of them was.
    Merge,
    /// The tool returned an error that ends the run.
    Fatal,
    /// An approver rejected the call; the tool was not started.
    Rejected,
    /// The loop prevented the call: a limit was reached, the reply was truncated, or a hook decided so.
    NotRun,
}

impl CallOutcome {
    /// Creates the outcome of a call that ended at the first attempt, without writes.
    pub fn new(status: CallStatus, result: ToolResult) -> Self {
        CallOutcome { status, result, delta: Delta::new(), tries: 1 }
    }

    /// Creates the outcome of a call without a result: for hosts that answer calls without running them.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_tools::{CallFailure, CallOutcome, CallStatus};
    ///
    /// let call = ToolCall::new("c1", "pay", json!({}));
    /// let outcome = CallOutcome::without_result(&call, CallStatus::Failed(CallFailure::Rejected), "not now");
    /// assert_eq!((outcome.result.text(), outcome.tries), ("not now".into(), 0));
    /// ```
    pub fn without_result(call: &ToolCall, status: CallStatus, text: impl Into<String>) -> Self {
        CallOutcome {
            status,
            result: ToolResult::error(&call.id, &call.name, text),
            delta: Delta::new(),
            tries: 0,
        }
    }

    /// A failed outcome, with its text for the model.
    pub(crate) fn failed(call: &ToolCall, failure: CallFailure, text: impl Into<String>) -> Self {
        CallOutcome::without_result(call, CallStatus::Failed(failure), text)
    }

    /// The id of the call.
    pub fn call_id(&self) -> &str {
        self.result.call_id()
    }

    /// The tool's name.
    pub fn tool(&self) -> &str {
        self.result.name()
    }

    /// Whether the tool returned a result.
    pub fn succeeded(&self) -> bool {
        self.status == CallStatus::Succeeded
    }

    /// The tool message for the model.
    pub fn message(&self) -> Message {
        Message::tool(self.result.clone())
    }
}

/// The outcomes of all calls of a reply, in call order, and the error that ends the run, if any. The outcomes
/// of other calls are always kept.
#[derive(Debug)]
#[non_exhaustive]
pub struct CallOutcomes {
    /// One for each call, in call order, except calls that are [held](super::Invocation::hold) or wait for
    /// those.
    pub outcomes: Vec<CallOutcome>,
    /// The first call, in call order, whose failure ends the run: because the tool's error is fatal, or
    /// because [`raise_on_failure`](crate::InvokeOptions::raise_on_failure) is set.
    pub error: Option<FatalError>,
}

/// A failed call that ends the run.
///
/// Its text is that of the [cause](FatalError::cause) without values of the state, for logs and for models;
/// so is its debug output. The cause itself is unchanged.
#[non_exhaustive]
pub struct FatalError {
    /// The id of the call.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// The index of the call in the reply.
    pub index: usize,
    pub(crate) cause: FatalCause,
}

/// The cause of a fatal call: the error, and its redacted text.
pub(crate) struct FatalCause {
    pub(crate) shown: String,
    pub(crate) error: Box<dyn Error + Send + Sync>,
}

impl FatalError {
    /// Creates a failure that the host of the invocation raises.
    pub fn new(
        call_id: impl Into<String>,
        tool: impl Into<String>,
        index: usize,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        let error = source.into();
        let cause = FatalCause { shown: ErrorChain(&*error).to_string(), error };
        FatalError { call_id: call_id.into(), tool: tool.into(), index, cause }
    }

    /// The error that the tool passed to [`ToolError::fatal`](crate::ToolError::fatal). Its text may contain
    /// values of the state.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::FatalError;
    ///
    /// let error = FatalError::new("c1", "save", 0, std::io::Error::other("no disk"));
    /// assert!(error.cause().is::<std::io::Error>());
    /// assert_eq!(error.to_string(), "tool 'save' failed in call 'c1': no disk");
    /// ```
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.cause.error
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tool '{}' failed in call '{}': {}", self.tool, self.call_id, self.cause.shown)
    }
}

impl fmt::Debug for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FatalError")
            .field("call_id", &self.call_id)
            .field("tool", &self.tool)
            .field("index", &self.index)
            .field("cause", &self.cause.shown)
            .finish()
    }
}

/// The text shows the [cause](FatalError::cause), so there is no `source()`.
impl Error for FatalError {}
