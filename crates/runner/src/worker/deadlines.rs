//! Deadlines of requests, and the clock of a run.

use std::time::SystemTime;

use stepfold_agent_loop::{Clock, Decision, DecisionError, Decisions, Run, TokioClock};
use stepfold_session_scopes::Timestamp;

use crate::ports::WallClock;

/// The expiries of requests of a run whose deadlines have passed, as decisions.
pub(crate) fn expired(run: &Run, now: Timestamp) -> Decisions {
    // NOTE: timers run by the clock of the worker on every store; that of the database decides about claims only.
    let due = run.pending().into_iter().filter(|request| request.is_later() && request.is_due(now.into()));
    due.map(|request| (request.id, Decision::Expire)).collect::<Vec<_>>().into()
}

/// Rejects decisions about requests whose deadlines have passed, even if no worker has noticed yet.
pub(crate) fn check_in_time(run: &Run, decisions: &Decisions, now: Timestamp) -> Result<(), DecisionError> {
    let is_decided = |id: &str| decisions.decisions.iter().any(|(decided, _)| decided == id);
    if decisions.is_empty() || run.next_deadline().is_none_or(|next| Timestamp::from(next) > now) {
        return Ok(());
    }
    let late =
        run.pending().into_iter().find(|request| is_decided(&request.id) && request.is_due(now.into()));
    late.map_or(Ok(()), |request| Err(DecisionError::Expired { id: request.id }))
}

/// The clock of a run: its time of day is that of the runner's port.
pub(crate) struct RunClock {
    elapsed: TokioClock,
    wall: std::sync::Arc<dyn WallClock>,
}

impl RunClock {
    pub(crate) fn new(wall: std::sync::Arc<dyn WallClock>) -> Self {
        RunClock { elapsed: TokioClock::start(), wall }
    }
}

impl Clock for RunClock {
    fn now(&self) -> std::time::Duration {
        self.elapsed.now()
    }

    fn time_of_day(&self) -> SystemTime {
        self.wall.now().into()
    }
}
