//! The heartbeat of a worker: one request to the store renews all of its claims.
//!
//! It runs in a task of its own while any run has a claim, on the runtime of one of these runs; if that ends, another run
//! starts it again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_session_scopes::{RenewClaims, Renewed, SessionError, SessionKey, SessionStore};
use tokio::sync::{Notify, mpsc};

use crate::runner::Inner;
use crate::slot::Slot;

/// The claims of a worker that are renewed.
#[derive(Default)]
pub(crate) struct Pulse {
    beating: Mutex<Beating>,
    /// Notified when the last run is gone.
    empty: Notify,
}

#[derive(Default)]
struct Beating {
    next: u64,
    runs: HashMap<u64, Run>,
    is_running: bool,
}

struct Run {
    slot: Arc<Slot>,
    told: mpsc::Sender<Beat>,
}

/// What a run hears of the heartbeat.
#[derive(Debug)]
pub(crate) enum Beat {
    /// The result for the claim with this token.
    Renewed { token: u64, result: Result<Renewed, SessionError> },
    /// The heartbeat has stopped with its runtime.
    Stopped,
}

/// A run whose claim is renewed until this is dropped.
pub(crate) struct Beats {
    runner: Arc<Inner>,
    number: u64,
    heard: mpsc::Receiver<Beat>,
}

impl Beats {
    /// Has the claim of a session renewed.
    pub(crate) fn begin(runner: &Arc<Inner>, slot: &Arc<Slot>) -> Self {
        // A run that has not heard the last beat yet needs no second one.
        let (told, heard) = mpsc::channel(2);
        let mut beating = runner.pulse.beating();
        let number = beating.next;
        beating.next += 1;
        beating.runs.insert(number, Run { slot: Arc::clone(slot), told });
        drop(beating);
        start(runner);
        Beats { runner: Arc::clone(runner), number, heard }
    }

    /// The next result for the claim of this run, with the token of that.
    pub(crate) async fn next(&mut self) -> (u64, Result<Renewed, SessionError>) {
        loop {
            let beat = self.heard.recv().await;
            // Whatever it was: the runtime of the heartbeat may have ended.
            start(&self.runner);
            match beat {
                Some(Beat::Renewed { token, result }) => return (token, result),
                Some(Beat::Stopped) => {}
                // The sender is there until this is dropped.
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        let pulse = &self.runner.pulse;
        let mut beating = pulse.beating();
        beating.runs.remove(&self.number);
        if beating.runs.is_empty() {
            pulse.empty.notify_waiters();
        }
    }
}

impl Pulse {
    fn beating(&self) -> MutexGuard<'_, Beating> {
        self.beating.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims that are held now.
    fn claims(&self) -> Vec<(u64, SessionKey, u64)> {
        let beating = self.beating();
        let held = beating
            .runs
            .iter()
            .filter_map(|(number, run)| Some((*number, run.slot.key.clone(), run.slot.held.token()?)));
        held.collect()
    }

    fn tell(&self, number: u64, beat: Beat) {
        if let Some(run) = self.beating().runs.get(&number) {
            // One that is behind hears the next one.
            let _ = run.told.try_send(beat);
        }
    }

    /// Whether no run is left; the heartbeat ends then.
    fn ends(&self) -> bool {
        let mut beating = self.beating();
        beating.is_running = !beating.runs.is_empty();
        !beating.is_running
    }
}

/// Starts the heartbeat, unless it runs.
fn start(runner: &Arc<Inner>) {
    if std::mem::replace(&mut runner.pulse.beating().is_running, true) {
        return;
    }
    let running = Running { runner: Arc::clone(runner), has_ended: false };
    let at_work = runner.closing.enter();
    tokio::spawn(async move {
        running.beat().await;
        // After this drop, nothing here uses the store.
        drop(at_work);
    });
}

/// The task of the heartbeat.
struct Running {
    runner: Arc<Inner>,
    /// Whether it ended since no run is left.
    has_ended: bool,
}

impl Running {
    async fn beat(mut self) {
        let runner = Arc::clone(&self.runner);
        let mut next = runner.clock.sleep(runner.claims.beat());
        loop {
            let emptied = runner.pulse.empty.notified();
            if runner.pulse.ends() {
                self.has_ended = true;
                return;
            }
            tokio::select! {
                () = emptied => {}
                () = &mut next => {
                    next = runner.clock.sleep(runner.claims.beat());
                    self.renew().await;
                }
            }
        }
    }

    /// Renews all claims. A store that cannot be reached may be back before they expire.
    async fn renew(&self) {
        let (runner, claims) = (&self.runner, self.runner.pulse.claims());
        if claims.is_empty() {
            return;
        }
        let asked = claims.iter().map(|(_, key, token)| (key.clone(), *token));
        let request = RenewClaims::new(asked, runner.claims.duration, runner.clock.now());
        let Ok(results) = runner.store.renew_all(request).await else { return };
        for ((number, _, token), result) in claims.into_iter().zip(results) {
            runner.pulse.tell(number, Beat::Renewed { token, result });
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut beating = self.runner.pulse.beating();
        beating.is_running = false;
        for run in beating.runs.values() {
            // One that has not heard the last beats yet does so soon.
            let _ = run.told.try_send(Beat::Stopped);
        }
    }
}
