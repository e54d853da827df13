//! Rows of unfinished runs beside the agent of today.

use schemars::JsonSchema;
use serde::Serialize;
use stepfold_runner::{CheckedRun, UpgradeCounts, UpgradeStatus};

/// The unfinished runs of an app, beside its agent.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct UpgradeRows {
    /// The number of unfinished runs that were checked.
    checked: u64,
    /// Runs whose agent is the same.
    unchanged: u64,
    /// Runs that continue with the agent of today, though it has changed.
    compatible: u64,
    /// Runs that continue with the agent that they began with.
    pinned: u64,
    /// Runs that are not continued.
    refused: u64,
    /// Whether there are more than were checked.
    has_more: bool,
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
    pub(in crate::http) fn of(checked: &[CheckedRun], has_more: bool) -> Self {
        let mut counts = UpgradeCounts::default();
        for run in checked {
            counts.add(run);
        }
        let UpgradeCounts { unchanged, compatible, pinned, refused, .. } = counts;
        let runs = checked.iter().filter(|run| run.status() != UpgradeStatus::Unchanged).map(UpgradeRow::of);
        UpgradeRows {
            checked: counts.total(),
            unchanged,
            compatible,
            pinned,
            refused,
            has_more,
            runs: runs.collect(),
        }
    }
}

impl UpgradeRow {
    fn of(run: &CheckedRun) -> Self {
        UpgradeRow {
            user: run.key.user.to_string(),
            session: run.key.id.to_string(),
            version: run.version,
            status: run.status().to_string(),
            continues: run.continues(),
            reasons: run.reasons(),
        }
    }
}
