//! The claims of a worker that are renewed by its heartbeat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_session_scopes::{Renewed, SessionError, SessionKey};
use tokio::sync::{Notify, mpsc};

use crate::session::local_session::LocalSession;

/// The claims of a worker that are renewed.
#[derive(Default)]
pub(crate) struct HeartbeatRegistry {
    pub(crate) renewed: Mutex<RenewedRuns>,
    /// Notified when the last run is gone.
    pub(crate) empty: Notify,
}

#[derive(Default)]
pub(crate) struct RenewedRuns {
    pub(crate) next: u64,
    pub(crate) runs: HashMap<u64, RenewedRun>,
    pub(crate) is_running: bool,
}

pub(crate) struct RenewedRun {
    pub(crate) local: Arc<LocalSession>,
    pub(crate) sender: mpsc::Sender<HeartbeatNotice>,
}

/// A notice of the heartbeat to a run.
#[derive(Debug)]
pub(crate) enum HeartbeatNotice {
    /// The result for the claim with this token.
    Renewed { token: u64, result: Result<Renewed, SessionError> },
    /// The heartbeat has stopped with its runtime.
    Stopped,
}

impl HeartbeatRegistry {
    pub(crate) fn renewed(&self) -> MutexGuard<'_, RenewedRuns> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims that are held now.
    pub(crate) fn claims(&self) -> Vec<(u64, SessionKey, u64)> {
        let renewed = self.renewed();
        let held = renewed
            .runs
            .iter()
            .filter_map(|(number, run)| Some((*number, run.local.key.clone(), run.local.claim.token()?)));
        held.collect()
    }

    pub(crate) fn notify(&self, number: u64, beat: HeartbeatNotice) {
        if let Some(run) = self.renewed().runs.get(&number) {
            // A run that lags gets the next notice.
            let _ = run.sender.try_send(beat);
        }
    }

    /// Whether no run is left; the heartbeat ends then.
    pub(crate) fn ends(&self) -> bool {
        let mut renewed = self.renewed();
        renewed.is_running = !renewed.runs.is_empty();
        !renewed.is_running
    }
}
