//! What a recovery finds and cannot mend, counted for operators.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepfold_session_scopes::{SessionKey, Timestamp};
use tokio::time::Instant;

use crate::error::RunnerError;
use crate::runner::Load;

/// At least the time between two lines in the log about sessions that could not be recovered.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The numbers of the last look of a recovery, and of lost claims.
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

    /// A look has found so many sessions that wait, some of them in vain, the first since then.
    pub(crate) fn set_listed(&self, due: usize, blocked: usize, oldest: Option<Timestamp>) {
        let mut figures = self.figures();
        (figures.due, figures.blocked, figures.oldest) = (due, blocked, oldest);
    }

    pub(crate) fn lost_claim(&self) {
        self.figures().lost_claims += 1;
    }

    pub(crate) fn load(&self, now: Timestamp) -> Load {
        let BacklogFigures { due, blocked, oldest, lost_claims } = *self.figures();
        let waited = oldest.map_or(0, |oldest| now.as_micros().saturating_sub(oldest.as_micros()));
        let oldest = Duration::from_micros(u64::try_from(waited).unwrap_or(0));
        Load { lost_claims, due, blocked, oldest, ..Load::default() }
    }
}

/// Sessions that could not be recovered, until the log has a line about them.
#[derive(Debug, Default)]
pub(crate) struct BlockedLog {
    new: usize,
    last: Option<(SessionKey, String)>,
    logged: Option<Instant>,
}

impl BlockedLog {
    pub(crate) fn add(&mut self, key: &SessionKey, error: &RunnerError) {
        self.new += 1;
        self.last = Some((key.clone(), error.to_string()));
    }

    /// Says in one line what came since the last one, at once or after a while; or now, if this is the end.
    pub(crate) fn log(&mut self, is_end: bool) {
        let is_time = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
        if !(is_time || is_end) {
            return;
        }
        let Some((session, error)) = self.last.take() else { return };
        let sessions = std::mem::take(&mut self.new);
        self.logged = Some(Instant::now());
        tracing::warn!(sessions, %session, error, "sessions could not be recovered; this is the last of them");
    }
}
