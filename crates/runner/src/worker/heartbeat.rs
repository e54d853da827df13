//! The heartbeat of a worker: one request to the store renews all of its claims.
//!
//! It runs in a task of its own while any run has a claim, on the runtime of one of these runs; if that ends, another run
//! starts it again. A claim that the store could not renew with the others, since its row is locked for example, is
//! renewed alone, beside the next heartbeats.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stepfold_session_scopes::{
    ErrorKind, RenewClaim, RenewClaims, Renewed, SessionError, SessionKey, SessionStore, StoreNotice,
    StoreNotices, WatchStore,
};
use tokio::sync::mpsc;

use crate::core::heartbeat_registry::{HeartbeatNotice, RenewedRun};
use crate::core::runner_core::RunnerCore;
use crate::session::local_session::LocalSession;

/// The number of claims that are renewed alone at once: each may take a connection that waits for a lock.
const MAX_ALONE: usize = 4;

/// A run whose claim is renewed until this is dropped.
pub(crate) struct ClaimHeartbeat {
    runner: Arc<RunnerCore>,
    number: u64,
    receiver: mpsc::Receiver<HeartbeatNotice>,
}

impl ClaimHeartbeat {
    /// Has the claim of a session renewed.
    pub(crate) fn begin(runner: &Arc<RunnerCore>, local: &Arc<LocalSession>) -> Self {
        // A run that has not heard the last beat yet needs no second one.
        let (sender, receiver) = mpsc::channel(2);
        let mut renewed = runner.heartbeat.renewed();
        let number = renewed.next;
        renewed.next += 1;
        renewed.runs.insert(number, RenewedRun { local: Arc::clone(local), sender });
        drop(renewed);
        start(runner);
        ClaimHeartbeat { runner: Arc::clone(runner), number, receiver }
    }

    /// The next result for the claim of this run, with the token of that.
    pub(crate) async fn next(&mut self) -> (u64, Result<Renewed, SessionError>) {
        loop {
            let beat = self.receiver.recv().await;
            // Whatever it was: the runtime of the heartbeat may have ended.
            start(&self.runner);
            match beat {
                Some(HeartbeatNotice::Renewed { token, result }) => return (token, result),
                Some(HeartbeatNotice::Stopped) => {}
                // The sender is there until this is dropped.
                None => std::future::pending().await,
            }
        }
    }
}

impl Drop for ClaimHeartbeat {
    fn drop(&mut self) {
        let heartbeat = &self.runner.heartbeat;
        let mut renewed = heartbeat.renewed();
        renewed.runs.remove(&self.number);
        if renewed.runs.is_empty() {
            heartbeat.empty.notify_waiters();
        }
    }
}

/// Starts the heartbeat, unless it runs.
fn start(runner: &Arc<RunnerCore>) {
    if std::mem::replace(&mut runner.heartbeat.renewed().is_running, true) {
        return;
    }
    let task = HeartbeatTask {
        runner: Arc::clone(runner),
        has_ended: false,
        alone: FuturesUnordered::new(),
        alone_numbers: HashSet::new(),
    };
    let counted = runner.shutdown.enter();
    tokio::spawn(async move {
        task.run().await;
        // After this drop, nothing here uses the store.
        drop(counted);
    });
}

/// The task of the heartbeat.
struct HeartbeatTask {
    runner: Arc<RunnerCore>,
    /// Whether it ended since no run is left.
    has_ended: bool,
    /// The claims that are renewed alone, each with the number of its run.
    alone: FuturesUnordered<BoxFuture<'static, (u64, HeartbeatNotice)>>,
    alone_numbers: HashSet<u64>,
}

impl HeartbeatTask {
    async fn run(mut self) {
        let runner = Arc::clone(&self.runner);
        let mut next = runner.clock.sleep(runner.claims.heartbeat_interval());
        // Where the store names the sessions in which something was accepted, such as a cancellation, it is not waited for.
        let mut notices = runner.store.notices(WatchStore::new().named()).await.ok();
        loop {
            let emptied = runner.heartbeat.empty.notified();
            if runner.heartbeat.ends() {
                self.has_ended = true;
                return;
            }
            tokio::select! {
                () = emptied => {}
                Some((number, beat)) = self.alone.next() => {
                    self.alone_numbers.remove(&number);
                    runner.heartbeat.notify(number, beat);
                }
                () = &mut next => {
                    next = runner.clock.sleep(runner.claims.heartbeat_interval());
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
        let mut claims = runner.heartbeat.claims();
        claims.retain(|(_, key, _)| is_wanted(key));
        if claims.is_empty() {
            return;
        }
        let requested = claims.iter().map(|(_, key, token)| (key.clone(), *token));
        let request = RenewClaims::new(requested, runner.claims.duration, runner.clock.now());
        // NOTE: one request renews all claims, since a worker may hold thousands; a claim that fails must not concern
        // the others.
        let Ok(results) = runner.store.renew_all(request).await else { return };
        for ((number, key, token), result) in claims.into_iter().zip(results) {
            match result {
                Err(error) if error.kind() == ErrorKind::Transient => self.renew_alone(number, key, token),
                result => runner.heartbeat.notify(number, HeartbeatNotice::Renewed { token, result }),
            }
        }
    }

    /// Renews a claim by itself, however long the store takes, unless that is under way. One for which there is no
    /// place now comes with the next heartbeat again.
    fn renew_alone(&mut self, number: u64, key: SessionKey, token: u64) {
        if self.alone.len() >= MAX_ALONE || !self.alone_numbers.insert(number) {
            return;
        }
        let runner = Arc::clone(&self.runner);
        let request = RenewClaim::new(key, token, runner.claims.duration, runner.clock.now());
        self.alone.push(Box::pin(async move {
            let result = runner.store.renew(request).await;
            (number, HeartbeatNotice::Renewed { token, result })
        }));
    }
}

/// The next notice of work that is left; never, if the store gives none.
async fn noticed_work(notices: &mut Option<StoreNotices>) -> StoreNotice {
    loop {
        match notices {
            Some(listener) => match listener.next().await {
                Some(notice) if notice.has_work() => return notice,
                Some(_) => {}
                None => *notices = None,
            },
            None => return std::future::pending().await,
        }
    }
}

impl Drop for HeartbeatTask {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut renewed = self.runner.heartbeat.renewed();
        renewed.is_running = false;
        for run in renewed.runs.values() {
            // One that has not heard the last beats yet does so soon.
            let _ = run.sender.try_send(HeartbeatNotice::Stopped);
        }
    }
}
