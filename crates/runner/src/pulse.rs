//! The heartbeat of a worker: one request to the store renews all of its claims.
//!
//! It runs in a task of its own while any run has a claim, on the runtime of one of these runs; if that ends, another run
//! starts it again. A claim that the store could not renew with the others, since its row is locked for example, is renewed
//! alone, beside the next heartbeats.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stepfold_session_scopes::{
    ErrorKind, RenewClaim, RenewClaims, Renewed, SessionError, SessionKey, SessionStore, StoreNotice,
    StoreNotices, WatchStore,
};
use tokio::sync::{Notify, mpsc};

use crate::runner::Inner;
use crate::slot::Slot;

/// How many claims are renewed alone at once: each may take a connection that waits for a lock.
const MOST_ALONE: usize = 4;

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
    let running = Running {
        runner: Arc::clone(runner),
        has_ended: false,
        alone: FuturesUnordered::new(),
        are_alone: HashSet::new(),
    };
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
    /// The claims that are renewed alone, each with the number of its run.
    alone: FuturesUnordered<BoxFuture<'static, (u64, Beat)>>,
    are_alone: HashSet<u64>,
}

impl Running {
    async fn beat(mut self) {
        let runner = Arc::clone(&self.runner);
        let mut next = runner.clock.sleep(runner.claims.beat());
        // Where the store names the sessions in which something was accepted, such as a cancellation, it is not waited for.
        let mut notices = runner.store.notices(WatchStore::new().named()).await.ok();
        loop {
            let emptied = runner.pulse.empty.notified();
            if runner.pulse.ends() {
                self.has_ended = true;
                return;
            }
            tokio::select! {
                () = emptied => {}
                Some((number, beat)) = self.alone.next() => {
                    self.are_alone.remove(&number);
                    runner.pulse.tell(number, beat);
                }
                () = &mut next => {
                    next = runner.clock.sleep(runner.claims.beat());
                    self.renew(|_| true).await;
                }
                notice = noticed_work(&mut notices) => {
                    self.renew(|key| notice.names().is_some() && notice.may_concern(key)).await;
                }
            }
        }
    }

    /// Renews the claims on these sessions. A store that cannot be reached may be back before they expire.
    async fn renew(&mut self, is_wanted: impl Fn(&SessionKey) -> bool) {
        let runner = Arc::clone(&self.runner);
        let mut claims = runner.pulse.claims();
        claims.retain(|(_, key, _)| is_wanted(key));
        if claims.is_empty() {
            return;
        }
        let asked = claims.iter().map(|(_, key, token)| (key.clone(), *token));
        let request = RenewClaims::new(asked, runner.claims.duration, runner.clock.now());
        let Ok(results) = runner.store.renew_all(request).await else { return };
        for ((number, key, token), result) in claims.into_iter().zip(results) {
            match result {
                Err(error) if error.kind() == ErrorKind::Transient => self.renew_alone(number, key, token),
                result => runner.pulse.tell(number, Beat::Renewed { token, result }),
            }
        }
    }

    /// Renews a claim by itself, however long the store takes, unless that is under way. One for which there is no place now
    /// comes with the next heartbeat again.
    fn renew_alone(&mut self, number: u64, key: SessionKey, token: u64) {
        if self.alone.len() >= MOST_ALONE || !self.are_alone.insert(number) {
            return;
        }
        let runner = Arc::clone(&self.runner);
        let request = RenewClaim::new(key, token, runner.claims.duration, runner.clock.now());
        self.alone.push(Box::pin(async move {
            let result = runner.store.renew(request).await;
            (number, Beat::Renewed { token, result })
        }));
    }
}

/// The next notice of work that is left; never, if the store gives none.
async fn noticed_work(notices: &mut Option<StoreNotices>) -> StoreNotice {
    loop {
        match notices {
            Some(listening) => match listening.next().await {
                Some(notice) if notice.has_work() => return notice,
                Some(_) => {}
                None => *notices = None,
            },
            None => return std::future::pending().await,
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
