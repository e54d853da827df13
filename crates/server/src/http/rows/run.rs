//! Rows of runs: accepted, decided, and their results.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stepfold_runner::{RunReport, RunStatus};

use super::budget::BudgetQuestionRow;
use super::convert::exit;
use super::event::UsageRow;
use super::request::RequestRow;

/// An accepted request.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct Accepted {
    /// The invocation. With an idempotency key, the same for each repetition.
    pub(in crate::http) invocation: String,
}

/// Stored decisions.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct Decided {
    /// The invocation that began the run, the same for each repetition.
    pub(in crate::http) invocation: String,
    /// The version of the session with the decisions.
    pub(in crate::http) version: u64,
    /// The requests.
    pub(in crate::http) requests: Vec<String>,
    /// The author that is recorded; of a repetition, the first one.
    pub(in crate::http) by: Option<String>,
    /// Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for
    /// `"with_changed_agent": true` in `POST …/resume`. Absent if it continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::http) not_continued: Vec<String>,
}

/// The result of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct RunRow {
    /// The invocation: the idempotency key, if there was one.
    pub(in crate::http) invocation: String,
    pub(in crate::http) status: StatusRow,
    /// The text of the last reply.
    pub(in crate::http) text: String,
    /// The requested output, if the agent has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) output: Option<Value>,
    /// The exit reason, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) exit: Option<Value>,
    /// The requests that it waits for.
    pub(in crate::http) pending: Vec<RequestRow>,
    /// The budget that it waits for, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) budget: Option<BudgetQuestionRow>,
    /// The version of the session after it.
    pub(in crate::http) version: u64,
    pub(in crate::http) usage: UsageRow,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::http) enum StatusRow {
    /// It has ended.
    Finished,
    /// It waits for decisions.
    Waiting,
    /// It was suspended; send the same request again.
    Suspended,
}

impl RunRow {
    pub(in crate::http) fn of(report: RunReport) -> Self {
        let (status, ended, pending) = match &report.status {
            RunStatus::Finished(reason) => (StatusRow::Finished, Some(exit(reason)), Vec::new()),
            RunStatus::Waiting(requests) => {
                (StatusRow::Waiting, None, requests.iter().map(RequestRow::of).collect())
            }
            _ => (StatusRow::Suspended, None, Vec::new()),
        };
        RunRow {
            invocation: report.idempotency_key.to_string(),
            status,
            text: report.text,
            output: report.output,
            exit: ended,
            pending,
            budget: report.budget.as_deref().map(BudgetQuestionRow::of),
            version: report.version,
            usage: report.usage.into(),
        }
    }
}
