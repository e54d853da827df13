//! Rows of unfinished runs beside the agent of today.

use schemars::JsonSchema;
use serde::Serialize;
use stepfold_runner::{CheckedRun, UpgradeStatus};

/// The unfinished runs of an app, beside its agent.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in crate::http) struct UpgradeRows {
    /// The number of unfinished runs that were checked.
    pub(in crate::http) checked: u64,
    /// Those whose agent is the same.
    unchanged: u64,
    /// Those that continue with the agent of today, though it has changed.
    compatible: u64,
    /// Those that continue with the agent that they began with.
    pinned: u64,
    /// Those that are not continued.
    refused: u64,
    /// Whether there are more than were checked.
    pub(in crate::http) has_more: bool,
    /// The runs whose agent has changed.
    runs: Vec<UpgradeRow>,
}

/// An unfinished run whose agent has changed.
#[derive(Debug, Serialize, JsonSchema)]
struct UpgradeRow {
    user: String,
    session: String,
    /// The version of the session.
    version: u64,
    /// `compatible`, `pinned`, `touched` or `cannot be read`.
    status: String,
    /// Whether the run is continued, under the policy of the app.
    continues: bool,
    /// The changes, the open work that they touch, or the error.
    reasons: Vec<String>,
}

impl UpgradeRows {
    pub(in crate::http) fn add(&mut self, run: &CheckedRun) {
        self.checked += 1;
        let status = run.status();
        *match status {
            _ if !run.continues() => &mut self.refused,
            UpgradeStatus::Unchanged => &mut self.unchanged,
            UpgradeStatus::Pinned => &mut self.pinned,
            _ => &mut self.compatible,
        } += 1;
        if status != UpgradeStatus::Unchanged {
            self.runs.push(UpgradeRow {
                user: run.key.user.to_string(),
                session: run.key.id.to_string(),
                version: run.version,
                status: status.to_string(),
                continues: run.continues(),
                reasons: run.reasons(),
            });
        }
    }
}
