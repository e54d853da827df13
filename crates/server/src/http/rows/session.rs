//! Rows of sessions, and of the messages that wait in them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_session_scopes::Session;

use super::budget::BudgetQuestionRow;
use super::import_mark::ImportedRow;
use super::request::RequestRow;
use super::session_status::Status;

/// A session in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct SessionRow {
    /// The id.
    pub(in crate::http) id: String,
    /// The number of its commits.
    pub(in crate::http) version: u64,
    /// The oldest version that it can go back to.
    pub(in crate::http) oldest: u64,
    /// When it was created (RFC 3339).
    pub(in crate::http) created: String,
    /// When it was written last (RFC 3339).
    pub(in crate::http) updated: String,
    /// Whether a worker has it, in any process.
    pub(in crate::http) claimed: bool,
    /// The session that it was forked from.
    pub(in crate::http) parent: Option<ParentRow>,
    /// Its status; absent in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) status: Option<Status>,
    /// The beginning of its first message, in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) title: Option<String>,
    /// The number of sessions that were forked from it, and are there: absent in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) forks: Option<usize>,
    /// The import of it, or of the session that it was forked from: absent for other sessions, and in answers about changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) imported: Option<ImportedRow>,
}

/// The origin of a fork.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(in crate::http) struct ParentRow {
    pub(in crate::http) id: String,
    pub(in crate::http) version: u64,
}

/// A page of sessions.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct SessionRows {
    /// The sessions, the one that was written last first.
    pub(in crate::http) sessions: Vec<SessionRow>,
    /// The cursor of the next page, as `after`; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) next: Option<String>,
}

/// A session, and what it waits for.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct SessionDetail {
    #[serde(flatten)]
    pub(in crate::http) session: SessionRow,
    /// The invocation that runs in this process.
    pub(in crate::http) running: Option<String>,
    /// Whether its last run has not ended: it runs, waits for decisions, was interrupted or failed.
    pub(in crate::http) unfinished: bool,
    /// The requests that wait for decisions.
    pub(in crate::http) pending: Vec<RequestRow>,
    /// The budget that its last run waits for, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) budget: Option<BudgetQuestionRow>,
    /// Why its last run cannot be restored, with the status `invalid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) invalid: Option<String>,
    /// The messages that were accepted and not taken.
    pub(in crate::http) inbox: Vec<WaitingRow>,
}

/// A message in the inbox of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct WaitingRow {
    /// The id of its invocation.
    pub(in crate::http) invocation: String,
    /// When it was accepted (RFC 3339).
    pub(in crate::http) at: String,
    /// Its text.
    pub(in crate::http) text: String,
    /// Whether it joins the current run, before the next request to the model.
    pub(in crate::http) joins: bool,
}

impl SessionRow {
    pub(in crate::http) fn of(session: &Session) -> Self {
        let parent = session.parent.as_ref();
        SessionRow {
            id: session.key.id.to_string(),
            version: session.version,
            oldest: session.oldest,
            created: session.created.to_string(),
            updated: session.updated.to_string(),
            claimed: session.claim.is_some(),
            parent: parent.map(|parent| ParentRow { id: parent.id.to_string(), version: parent.version }),
            status: None,
            title: None,
            forks: None,
            imported: None,
        }
    }
}
