//! The outcome of a slice of a run: decided here, as data; the object acts on it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::ApprovalRequest;
use stepfold_runner::{Remedy, RunReport, RunStatus, RunnerError, RunnerErrorKind};

use crate::limits::RemoteReport;

/// The value that Restate journals for a slice: nothing else of a run is journaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SliceEnd {
    /// The run has ended or waits for decisions.
    Done {
        report: Box<RemoteReport>,
        /// Whether messages wait that nothing blocks any more.
        has_more: bool,
        /// The time at which the session is due without a decision: its first deadline.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due: Option<SystemTime>,
    },
    /// The session has nothing left to do that needs no decision.
    AtRest,
    /// As `AtRest`, until the first deadline of what it waits for.
    AtRestUntil(SystemTime),
    /// The run continues in another slice.
    GoesOn,
    /// Something has to happen first; nothing is tried before a pause.
    Blocked { reason: String },
}

impl SliceEnd {
    /// The end of a slice with this report.
    pub(crate) fn of_report(report: RunReport, has_more: bool) -> Self {
        if matches!(report.status, RunStatus::Suspended) {
            return SliceEnd::GoesOn;
        }
        // The requests may be too large for the reply.
        let due = requests(&report.status).iter().filter_map(|request| request.deadline).min();
        SliceEnd::Done { report: Box::new(report.into()), has_more, due }
    }

    /// The end of a slice in which the session came to rest.
    pub(crate) fn at_rest(due: Option<SystemTime>) -> Self {
        due.map_or(SliceEnd::AtRest, SliceEnd::AtRestUntil)
    }
}

fn requests(status: &RunStatus) -> &[ApprovalRequest] {
    match status {
        RunStatus::Waiting(requests) => requests,
        _ => &[],
    }
}

/// The reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorReaction {
    /// Restate repeats the slice, here or on another worker.
    Repeat,
    /// The object sleeps, and repeats the slice.
    Sleep,
    /// The caller gets the error, with this status.
    Refuse(u16),
}

/// Decides the reaction to an error.
pub(crate) fn reaction(error: &RunnerError) -> ErrorReaction {
    match error {
        // Its decision comes through the same object, which therefore has to be free.
        RunnerError { kind: RunnerErrorKind::Pending { .. }, .. } => ErrorReaction::Refuse(409),
        RunnerError { kind: RunnerErrorKind::Withdrawn, .. } => ErrorReaction::Refuse(410),
        error => match error.remedy() {
            Remedy::Retry => ErrorReaction::Repeat,
            Remedy::Wait => ErrorReaction::Sleep,
            Remedy::Never => ErrorReaction::Refuse(400),
        },
    }
}
