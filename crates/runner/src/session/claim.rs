//! The claim of this process on a session: held during a run, so that no other worker continues it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepfold_session_scopes::{AppendClaim, Claim, Session, TakeOver, Timestamp, WorkerId};

use crate::ports::WallClock;

/// The first pause while another worker holds the claim, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);

pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The reaction to another worker's claim on a session: that of another running process, or of one that died
/// less than the duration of a claim ago.
///
/// In any case, the session is taken over immediately when the claim has expired or was released, or the
/// worker is [known to be dead](crate::RunnerBuilder::process_worker).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenClaimed {
    /// Stores a message; that worker takes it or, after the claim has ended, this one. A caller that awaits
    /// the outcome waits for it, and gets [`Claimed`](crate::RunnerErrorKind::Claimed) after this time.
    Wait {
        /// The maximum wait.
        at_most: Duration,
    },
    /// Refuses it with [`Claimed`](crate::RunnerErrorKind::Claimed). [`WhenBusy`](crate::WhenBusy) applies to work of
    /// this runner.
    Refuse,
    /// Takes the session from the other worker. Its next commit fails, and its run stops with
    /// [`ClaimLost`](crate::RunnerErrorKind::ClaimLost); a call in progress that must not run twice gets the
    /// outcome "unknown".
    TakeOver,
}

impl Default for WhenClaimed {
    /// Waits, at most two minutes.
    fn default() -> Self {
        // NOTE: waiting is the default, since the holder of the claim, or the next one, takes a stored message anyway.
        WhenClaimed::Wait { at_most: Duration::from_secs(120) }
    }
}

/// The claim settings of a runner.
#[derive(Clone, Debug)]
pub(crate) struct ClaimSettings {
    pub(crate) worker: WorkerId,
    /// Detects dead workers.
    pub(crate) is_dead: DeathCheck,
    pub(crate) duration: Duration,
    pub(crate) when_claimed: WhenClaimed,
    /// Whether inbox entries of other workers are left to them.
    pub(crate) leaves_inbox: bool,
}

impl ClaimSettings {
    /// The interval of heartbeats.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        (self.duration / 3).max(Duration::from_millis(10))
    }

    /// The claim request of an append. The last append of a run releases the claim, unless messages wait.
    pub(crate) fn for_append(&self, held: &HeldClaim, releases_claim: bool) -> AppendClaim {
        let duration = self.duration;
        match held.token() {
            None => AppendClaim::Take { owner: self.worker.clone(), duration, take_over: TakeOver::Never },
            Some(token) if releases_claim => AppendClaim::Release { token },
            Some(token) => AppendClaim::Hold { token, duration },
        }
    }

    /// The claim of another worker, unless it is known to be dead.
    pub(crate) fn other_worker<'a>(&self, session: &'a Session) -> Option<&'a Claim> {
        let is_other = |claim: &&Claim| claim.owner != self.worker && !self.is_dead.is_dead(&claim.owner);
        session.claim.as_ref().filter(is_other)
    }

    /// The holder of the claim that a session was read with.
    pub(crate) fn holder(&self, stored: Option<&Claim>, held: &HeldClaim) -> ClaimHolder {
        match stored {
            Some(claim) if Some(claim.token) == held.token() => ClaimHolder::Us,
            Some(claim) if claim.owner == self.worker => ClaimHolder::Free,
            Some(claim) if self.is_dead.is_dead(&claim.owner) => ClaimHolder::Dead(claim.token),
            Some(_) => ClaimHolder::Other,
            None => ClaimHolder::Free,
        }
    }
}

/// The holder of the claim on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimHolder {
    /// No worker, or this worker before its restart.
    Free,
    /// This process.
    Us,
    /// Another worker that is known to be dead, with its token.
    Dead(u64),
    /// Another worker.
    Other,
}

type DynDeathCheck = dyn Fn(&WorkerId) -> bool + Send + Sync;

/// Detects whether a worker is dead.
#[derive(Clone, Default)]
pub(crate) struct DeathCheck(Option<Arc<DynDeathCheck>>);

impl DeathCheck {
    pub(crate) fn new(is_dead: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        DeathCheck(Some(Arc::new(is_dead)))
    }

    /// Whether any worker can be known to be dead.
    pub(crate) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_dead(&self, worker: &WorkerId) -> bool {
        self.0.as_ref().is_some_and(|is_dead| is_dead(worker))
    }
}

impl fmt::Debug for DeathCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsDead").field("is_known", &self.is_known()).finish()
    }
}

/// The time waited for another worker.
#[derive(Debug, Default)]
pub(crate) struct ClaimWait(Duration);

impl ClaimWait {
    /// Waits for a pause; returns false if the maximum is reached.
    pub(crate) async fn pause(&mut self, claims: &ClaimSettings, clock: &dyn WallClock) -> bool {
        let WhenClaimed::Wait { at_most } = claims.when_claimed else { return false };
        if self.0 >= at_most {
            return false;
        }
        let pause = self.0.clamp(FIRST_PAUSE, LONGEST_PAUSE).min(at_most.saturating_sub(self.0));
        clock.sleep(pause).await;
        self.0 += pause;
        true
    }
}

/// The token of the claim that this process holds on a session, if any.
#[derive(Debug, Default)]
pub(crate) struct HeldClaim {
    token: Mutex<Option<u64>>,
    /// When the session is due once the claim is released: the first deadline of what the last run waits for.
    due: Mutex<Option<Timestamp>>,
    /// Whether the store does not support claims.
    is_unsupported: AtomicBool,
}

impl HeldClaim {
    fn token_slot(&self) -> MutexGuard<'_, Option<u64>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store does not support claims: none has to be held.
    pub(crate) fn set_unsupported(&self) {
        self.is_unsupported.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_unsupported(&self) -> bool {
        self.is_unsupported.load(Ordering::SeqCst)
    }

    pub(crate) fn set_due(&self, due: Option<Timestamp>) {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner) = due;
    }

    pub(crate) fn due(&self) -> Option<Timestamp> {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn token(&self) -> Option<u64> {
        *self.token_slot()
    }

    pub(crate) fn set(&self, claim: Option<&Claim>) {
        *self.token_slot() = claim.map(|claim| claim.token);
    }

    /// The claim is released by an append: it is not held meanwhile, and held again if the append fails or is
    /// dropped.
    pub(crate) fn begin_release(&self) -> PendingRelease<'_> {
        PendingRelease { claim: self, token: self.take() }
    }

    /// Takes the token, for releasing the claim.
    pub(crate) fn take(&self) -> Option<u64> {
        self.token_slot().take()
    }
}

/// A claim that is being released.
#[derive(Debug)]
pub(crate) struct PendingRelease<'a> {
    claim: &'a HeldClaim,
    token: Option<u64>,
}

impl PendingRelease<'_> {
    /// The store has released it.
    pub(crate) fn confirm(mut self) {
        self.token = None;
    }
}

impl Drop for PendingRelease<'_> {
    fn drop(&mut self) {
        if self.token.is_some() {
            *self.claim.token_slot() = self.token;
        }
    }
}
