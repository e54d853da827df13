//! Rows of unfinished runs beside the agent of today.

use schemars::JsonSchema;
use serde::Serialize;
use stepfold_runner::{CheckedRun, SessionHandle, UpgradeCounts, UpgradeStatus};

use crate::http::guard::problem::in_routes;

/// The unfinished runs of an app, beside its agent.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct UpgradeRows {
    /// The number of unfinished runs that were checked.
    checked: u64,
    /// Runs whose agent is the same.
    unchanged: u64,
    /// Runs that continue with the agent of today, though it has changed: nothing that is open in them depends on it.
    compatible: u64,
    /// Runs that continue with the agent of today though a change touches open work, under the policy `always`.
    forced: u64,
    /// Runs that continue with the agent that they began with.
    pinned: u64,
    /// Runs that a recovery leaves to another version of the agent, which has taken them over: a resume continues them here.
    left: u64,
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
    /// Whether a recovery leaves it to another version of the agent: a resume continues it here.
    left: bool,
    /// The changes, the open work that they touch, or the error.
    reasons: Vec<String>,
}

impl UpgradeRows {
    pub(in crate::http) fn of(checked: &[CheckedRun], has_more: bool) -> Self {
        let mut counts = UpgradeCounts::default();
        for run in checked {
            counts.add(run);
        }
        let UpgradeCounts { unchanged, compatible, forced, pinned, left, refused, .. } = counts;
        let runs = checked.iter().filter(|run| run.status() != UpgradeStatus::Unchanged).map(UpgradeRow::of);
        UpgradeRows {
            checked: counts.total(),
            unchanged,
            compatible,
            forced,
            pinned,
            left,
            refused,
            has_more,
            runs: runs.collect(),
        }
    }
}

/// Why this version of the agent does not continue the last run of a session, in words; empty if it does, as it does also where
/// only `with_changed_agent` continues it and that is requested.
pub(in crate::http) async fn not_continued(session: &SessionHandle, with_changed_agent: bool) -> Vec<String> {
    reasons(session, with_changed_agent, |_| true).await
}

/// The same for an answer that was stored at a version: a later run is another one.
pub(in crate::http) async fn not_continued_at(
    session: &SessionHandle,
    version: u64,
    with_changed_agent: bool,
) -> Vec<String> {
    reasons(session, with_changed_agent, |run| run.version == version).await
}

async fn reasons(
    session: &SessionHandle,
    with_changed_agent: bool,
    is_meant: impl Fn(&CheckedRun) -> bool,
) -> Vec<String> {
    let is_forced = |run: &CheckedRun| with_changed_agent && run.status() != UpgradeStatus::Unreadable;
    // NOTE: for an answer about what is stored, which a failure here does not change.
    match session.check_upgrade().await {
        Ok(Some(run)) if is_meant(&run) && !run.continues() && !is_forced(&run) => {
            UpgradeRow::of(&run).reasons
        }
        _ => Vec::new(),
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
            left: run.is_left,
            reasons: run.reasons().iter().map(|words| in_routes(words)).collect(),
        }
    }
}
