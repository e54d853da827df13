//! The exits and pauses of a run.

use std::fmt;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::FinishReason;

use crate::meter::ExhaustedBudget;

/// The reason why a run ended. Every [`Outcome`](crate::Outcome) has one.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::Exit;
///
/// assert_eq!(Exit::Tool("submit".to_owned()).to_string(), "tool 'submit' was called");
/// assert_eq!(serde_json::to_string(&Exit::MaxSteps)?, r#""max_steps""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Exit {
    /// The model answered with text and called no tool.
    Text,
    /// The model returned the requested output, and it is valid.
    Output,
    /// This tool, an exit condition, was called, and no exit tool of the reply failed.
    Tool(String),
    /// The agent has no tools, so there is one model call.
    NoTools,
    /// The limit of steps was reached.
    MaxSteps,
    /// The limit of tool calls was reached.
    MaxToolCalls,
    /// The limit of tokens was reached.
    MaxTokens,
    /// The limit of time was reached.
    MaxTime,
    /// The reply was cut at its limit of tokens. Calls in it did not run.
    Length,
    /// Stopped by the provider's content filter. Calls in the reply did not run.
    ContentFilter,
    /// The model refused to answer.
    Refusal,
    /// The model made the same calls again and again, with the same results.
    RepeatedCalls,
    /// The model replied again and again without text and without calls, the last time with this finish reason of the
    /// provider: see [`RunLimits::empty_replies`](crate::RunLimits::empty_replies).
    EmptyReply(String),
    /// The model returned no valid output, after all repairs.
    InvalidOutput,
    /// The graph has reached its end.
    End,
    /// This node has reached its limit, without a fallback node.
    NodeLimit(String),
    /// This node failed, without an error route.
    NodeFailed {
        /// The node.
        node: String,
        /// The reason.
        error: String,
    },
    /// A hook ended the run, for this reason.
    Hook(String),
    /// The run was cancelled.
    Cancelled,
    /// The run waits and can be resumed: this is not an end. See
    /// [`Outcome::into_run`](crate::Outcome::into_run).
    Paused(Pause),
    /// The run failed and can be resumed: the partial outcome of a [`RunError`](crate::RunError).
    Failed,
}

/// The reason of a pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Pause {
    /// Decisions about calls are required: [`Outcome::pending`](crate::Outcome::pending).
    Approval,
    /// A breakpoint was reached.
    Breakpoint(Breakpoint),
    /// The host asked for a pause between two steps: [`suspend_with`](crate::RunBuilder::suspend_with).
    Suspended,
    /// A budget has too little left for the next request, which was not sent. The run continues with that request when it is
    /// resumed.
    Budget(Box<ExhaustedBudget>),
}

/// A point where a run pauses (interrupt before).
///
/// Visits are counted over the whole run, from 1. A run that is resumed after a breakpoint continues from
/// there; with [every visit](Breakpoint::every) as its breakpoint, it runs step by step.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::Breakpoint;
///
/// assert_eq!(Breakpoint::model().visit(3).to_string(), "before the model, visit 3");
/// assert_eq!(Breakpoint::tool("search").every().to_string(), "before tool 'search', every visit");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakpoint {
    /// The tool; `None` for the model or a node.
    pub(crate) tool: Option<String>,
    /// The node of a graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The number of the visit; `None` for every visit.
    pub(crate) visit: Option<u64>,
}

impl Breakpoint {
    /// Before the first request to the model.
    pub const fn model() -> Self {
        Breakpoint { tool: None, node: None, visit: Some(1) }
    }

    /// Before this tool is called for the first time. No call of that reply has run then.
    pub fn tool(name: impl Into<String>) -> Self {
        Breakpoint { tool: Some(name.into()), node: None, visit: Some(1) }
    }

    /// Before this node of a graph runs for the first time. No branch of that superstep has run then.
    #[doc(alias("interrupt_before"))]
    pub fn node(name: impl Into<String>) -> Self {
        Breakpoint { tool: None, node: Some(name.into()), visit: Some(1) }
    }

    /// Sets the visit at which the run pauses, from 1.
    #[must_use]
    pub const fn visit(mut self, visit: u64) -> Self {
        self.visit = Some(visit);
        self
    }

    /// Pauses at every visit.
    #[must_use]
    pub const fn every(mut self) -> Self {
        self.visit = None;
        self
    }

    /// Whether this is the visit, or every visit is.
    pub(crate) fn is_visit(&self, visits: std::ops::RangeInclusive<u64>) -> bool {
        self.visit.is_none_or(|visit| visits.contains(&visit))
    }
}

impl fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tool, &self.node) {
            (_, Some(node)) => write!(f, "before node '{node}'")?,
            (None, None) => f.write_str("before the model")?,
            (Some(tool), None) => write!(f, "before tool '{tool}'")?,
        }
        match self.visit {
            None => f.write_str(", every visit"),
            Some(visit) => write!(f, ", visit {visit}"),
        }
    }
}

impl Exit {
    /// Whether the run can be resumed.
    pub const fn is_resumable(&self) -> bool {
        matches!(self, Exit::Paused(_) | Exit::Failed)
    }

    /// Whether the run ended with what was asked for, if it said something.
    pub(crate) const fn is_answer(&self) -> bool {
        matches!(self, Exit::Text | Exit::Output | Exit::Tool(_) | Exit::NoTools | Exit::End)
    }

    /// Whether a limit ended the run.
    pub const fn is_limit(&self) -> bool {
        matches!(
            self,
            Exit::MaxSteps | Exit::MaxToolCalls | Exit::MaxTokens | Exit::MaxTime | Exit::NodeLimit(_)
        )
    }

    /// The exit that a reply forces by the way it ended, if it does.
    pub(crate) fn of_finish(reason: &FinishReason) -> Option<Exit> {
        match reason {
            FinishReason::Length => Some(Exit::Length),
            FinishReason::ContentFilter => Some(Exit::ContentFilter),
            FinishReason::Refusal => Some(Exit::Refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exit::Text => "the model answered",
            Exit::Output => "the model gave valid output",
            Exit::Tool(name) => return write!(f, "tool '{name}' was called"),
            Exit::NoTools => "the agent has no tools, so there is one request",
            Exit::MaxSteps => "the limit of steps was reached",
            Exit::MaxToolCalls => "the limit of tool calls was reached",
            Exit::MaxTokens => "the limit of tokens was reached",
            Exit::MaxTime => "the limit of time was reached",
            Exit::Length => "the reply was truncated at its limit of tokens",
            Exit::ContentFilter => "stopped by the provider's content filter",
            Exit::Refusal => "the model refused to answer",
            Exit::RepeatedCalls => "the model repeated the same calls with the same results",
            Exit::EmptyReply(reason) => {
                return write!(f, "the model returned only empty replies, with finish reason `{reason}`");
            }
            Exit::InvalidOutput => "the model returned no valid output",
            Exit::End => "the graph reached its end",
            Exit::NodeLimit(node) => return write!(f, "node '{node}' reached its limit of executions"),
            Exit::NodeFailed { node, error } => return write!(f, "node '{node}' failed: {error}"),
            Exit::Hook(reason) => return write!(f, "a hook ended the run: {reason}"),
            Exit::Cancelled => "the run was cancelled",
            Exit::Paused(Pause::Approval) => "the run waits for decisions",
            Exit::Paused(Pause::Breakpoint(breakpoint)) => return write!(f, "the run stopped {breakpoint}"),
            Exit::Paused(Pause::Suspended) => "the run was suspended between two steps",
            Exit::Paused(Pause::Budget(exhausted)) => return write!(f, "the run waits: {exhausted}"),
            Exit::Failed => "the run failed",
        })
    }
}
