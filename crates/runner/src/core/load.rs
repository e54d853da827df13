//! The load of a runner, for metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepfold_session_scopes::{StoreConnections, Timestamp};

/// The current load of a runner: see [`Runner::load`](crate::Runner::load).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerLoad {
    /// Sessions with a running invocation.
    pub running: usize,
    /// Messages that wait in the queues of sessions for an invocation to end.
    pub waiting: usize,
    /// Claims on sessions that it holds.
    pub claims: usize,
    /// Claims that it has lost since it was built: another worker has taken the session.
    pub lost_claims: u64,
    /// Sessions in which work was left and no worker was at the last poll of a [recovery](crate::Runner::recover): at
    /// least so many.
    pub due: usize,
    /// Sessions among the due ones that could not be recovered: they wait for a deployment, a repair, or the end of a
    /// pause.
    pub blocked: usize,
    /// The longest time that one of them has waited.
    pub oldest: Duration,
    /// Sessions that [retention](crate::Runner::retain) has deleted since the runner was built.
    pub expired_sessions: u64,
    /// Events that retention has deleted, those of sessions included.
    pub expired_events: u64,
    /// Sessions that retention could not read or change.
    pub retention_failures: u64,
    /// Connections of the store to its database.
    pub connections: StoreConnections,
}

/// The figures of the last poll of a recovery, and the number of lost claims.
#[derive(Debug, Default)]
pub(crate) struct BacklogCounters(Mutex<BacklogFigures>);

#[derive(Clone, Copy, Debug, Default)]
struct BacklogFigures {
    due: usize,
    blocked: usize,
    oldest: Option<Timestamp>,
    lost_claims: u64,
}

impl BacklogCounters {
    fn figures(&self) -> MutexGuard<'_, BacklogFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the figures of a poll: the waiting sessions, the blocked ones among them, and the time since which the
    /// first waits.
    pub(crate) fn set_listed(&self, due: usize, blocked: usize, oldest: Option<Timestamp>) {
        let mut figures = self.figures();
        (figures.due, figures.blocked, figures.oldest) = (due, blocked, oldest);
    }

    pub(crate) fn lost_claim(&self) {
        self.figures().lost_claims += 1;
    }

    pub(crate) fn load(&self, now: Timestamp) -> RunnerLoad {
        let BacklogFigures { due, blocked, oldest, lost_claims } = *self.figures();
        let waited = oldest.map_or(0, |oldest| now.as_micros().saturating_sub(oldest.as_micros()));
        let oldest = Duration::from_micros(u64::try_from(waited).unwrap_or(0));
        RunnerLoad { lost_claims, due, blocked, oldest, ..RunnerLoad::default() }
    }
}
