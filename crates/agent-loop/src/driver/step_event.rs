//! Events of a step under way: from the functions of its calls and nodes, and from the runs inside of its items.

use serde_json::Value;
use stepfold_tools::{CallOutcome, InputRequest};
use tokio::sync::oneshot;

use super::step_failure::outcomes_inside;
use crate::approval::ApprovalRequest;
use crate::observe::RunEvent;
use crate::planned::{NodeOutcome, NodeStatus};
use crate::run::Run;
use crate::run_error::RunFault;

/// An event while the items of a step are under way.
pub(super) enum StepEvent {
    /// Items are about to start: calls when the functions are polled next, inner work by itself.
    Starting(Vec<usize>),
    /// A tool reports progress.
    Progress { call_id: String, report: Value },
    /// A call asks the user.
    Asks { place: usize, requests: Vec<InputRequest> },
    /// Calls have their outcomes, which ended at the same moment.
    CallsFinished(Vec<(usize, CallOutcome)>),
    /// The work inside of an item reports.
    Notice(InnerNotice),
    /// Attempts of inner work ended at the same moment.
    AttemptsEnded(Vec<EndedAttempt>),
}

/// An attempt that has ended.
pub(super) struct EndedAttempt {
    pub(super) place: usize,
    /// The number of attempts, with this one.
    pub(super) tries: u32,
    pub(super) end: AttemptEnd,
}

/// The end of an attempt.
pub(super) enum AttemptEnd {
    /// The function has an outcome.
    Outcome(NodeOutcome),
    /// The run inside has ended.
    Ended,
    /// The run inside waits for decisions.
    Waits,
    /// It requires a decision before it continues.
    Asks(Box<ApprovalRequest>),
    /// It was stopped, or the run around it failed beside it.
    Stopped,
    /// A request of the run inside was not admitted, and the run around it stops.
    Unmetered(RunFault),
    /// It failed, or its time was up.
    Failed(NodeStatus, String),
}

impl AttemptEnd {
    /// Whether it is of a run inside, whose end is a commit of its own.
    pub(super) const fn is_of_run(&self) -> bool {
        matches!(self, AttemptEnd::Ended | AttemptEnd::Waits)
    }
}

/// An event of a node's function or of an inner run, for the driver.
pub(super) enum InnerNotice {
    /// An event of an inner run. The driver acknowledges it when it is handled: whether the inner run continues.
    Inner { place: usize, event: RunEvent, acknowledge: oneshot::Sender<bool> },
    /// An output of a node's function.
    Output { place: usize, kind: String, value: Value },
}

impl InnerNotice {
    /// The calls or branches that an inner run has finished with this notice.
    pub(super) fn outcomes(&self, run: &Run) -> Vec<String> {
        match self {
            InnerNotice::Inner { place, event, .. } => {
                event.committed().map(|event| outcomes_inside(run, *place, event)).unwrap_or_default()
            }
            InnerNotice::Output { .. } => Vec::new(),
        }
    }
}
