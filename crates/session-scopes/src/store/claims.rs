//! Claims: which worker works on a session, and how one that lost it is kept from writing.
//!
//! A claim has an owner, an expiry and a *fencing token*, a number that grows with each claim. A worker's
//! writes contain its token, and the store compares it in the transaction of the write; so a worker that was
//! suspended for long and wakes up changes nothing. The decisions are pure functions of stored data, the same
//! for every store.
//!
//! The claim of a session is in one of five states. *free*: no worker has it. *scheduled*: free, and
//! [due](ReleaseClaim::due) at a time. *held*: a worker has it. *expired*: its time has passed; it still belongs
//! to its holder until another worker takes over. *abandoned*: its holder [released](ReleaseClaim::unfinished) it
//! with work left; its token is no longer one, so that a renewal which is still on its way is late. Each operation
//! gives the next state, or an error and no change:
//!
//! | operation | free | scheduled | held | expired | abandoned |
//! |---|---|---|---|---|---|
//! | claim by another worker | held | held | `Claimed` | held | held |
//! | claim by the same worker | held | held | held | held | held |
//! | claim that takes over | held | held | held | held | held |
//! | renew with the current token | `ClaimLost` | `ClaimLost` | held | held | `ClaimLost` |
//! | renew with an earlier token | `ClaimLost` | `ClaimLost` | `ClaimLost` | `ClaimLost` | `ClaimLost` |
//! | release | free | scheduled | free | free | abandoned |
//! | release until a time | free | scheduled | scheduled | scheduled | abandoned |
//! | release with work left | free | scheduled | abandoned | abandoned | abandoned |
//! | release with an earlier token | free | scheduled | held | expired | abandoned |
//! | append without a claim | free | scheduled | held | expired | abandoned |
//! | append with `Take` | held | held | `Claimed` | held | held |
//! | append with `Once` | free | scheduled | `Claimed` | free | free |
//! | append with `Hold` | `ClaimLost` | `ClaimLost` | held | held | `ClaimLost` |
//! | append with `Release` | `ClaimLost` | `ClaimLost` | free | free | `ClaimLost` |
//! | delete | deleted | deleted | `Claimed` | deleted | deleted |

use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::requests::{AppendEvent, RewindSession};
use crate::error::SessionError;
use crate::ids::{SessionKey, WorkerId};
use crate::session::Claim;
use crate::time::Timestamp;

/// Whether an unexpired claim is taken from its holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeOver {
    /// Never: the request is rejected with [`SessionError::Claimed`].
    #[default]
    Never,
    /// If it is the claim with this token: that of a dead worker, for example. If another worker has claimed
    /// the session since, the request is rejected.
    Token(u64),
    /// Always.
    Always,
}

impl TakeOver {
    fn covers(self, token: u64) -> bool {
        match self {
            TakeOver::Never => false,
            TakeOver::Token(known) => known == token,
            TakeOver::Always => true,
        }
    }
}

/// A session to be claimed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimSession {
    /// The session.
    pub key: SessionKey,
    /// The worker.
    pub owner: WorkerId,
    /// The duration, unless it is renewed.
    pub duration: Duration,
    /// The time of the request. Stores with their own clock (PostgreSQL) use that one.
    pub at: Timestamp,
    /// Whether another worker's unexpired claim is taken over.
    pub take_over: TakeOver,
}

impl ClaimSession {
    /// A claim that is rejected while another worker holds one.
    pub fn new(key: SessionKey, owner: WorkerId, duration: Duration, at: Timestamp) -> Self {
        ClaimSession { key, owner, duration, at, take_over: TakeOver::Never }
    }

    /// Takes over another worker's claim.
    #[must_use]
    pub fn take_over(mut self) -> Self {
        self.take_over = TakeOver::Always;
        self
    }
}

/// A claim to be renewed: the heartbeat of a worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewClaim {
    /// The session.
    pub key: SessionKey,
    /// The token of the claim.
    pub token: u64,
    /// The duration from now on.
    pub duration: Duration,
    /// The time of the request. Stores with their own clock use that one.
    pub at: Timestamp,
}

impl RenewClaim {
    /// Renews the claim with this token.
    pub const fn new(key: SessionKey, token: u64, duration: Duration, at: Timestamp) -> Self {
        RenewClaim { key, token, duration, at }
    }
}

/// The result of a renewal: the claim, and whether entries wait in the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// The current claim.
    pub claim: Claim,
    /// The position of the newest waiting entry in the inbox; 0 if there is none.
    pub inbox: u64,
}

impl Renewed {
    /// The response of a store: the claim, and the position of the newest waiting entry in the inbox.
    pub const fn new(claim: Claim, inbox: u64) -> Self {
        Renewed { claim, inbox }
    }
}

/// The claims of a worker, to be renewed together: its heartbeat.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewClaims {
    /// The sessions with the tokens of the claims on them.
    pub claims: Vec<(SessionKey, u64)>,
    /// The duration from now on.
    pub duration: Duration,
    /// The time of the request. Stores with their own clock use that one.
    pub at: Timestamp,
}

impl RenewClaims {
    /// Renews the claims with these tokens.
    pub fn new(
        claims: impl IntoIterator<Item = (SessionKey, u64)>,
        duration: Duration,
        at: Timestamp,
    ) -> Self {
        RenewClaims { claims: claims.into_iter().collect(), duration, at }
    }

    /// The same as requests of one claim each, in order.
    pub fn each(&self) -> impl Iterator<Item = RenewClaim> + '_ {
        let renew =
            |(key, token): &(SessionKey, u64)| RenewClaim::new(key.clone(), *token, self.duration, self.at);
        self.claims.iter().map(renew)
    }
}

/// A claim to be released.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseClaim {
    /// The session.
    pub key: SessionKey,
    /// The token of the claim.
    pub token: u64,
    /// If work is left, the time of the request: the claim is not removed but expires now, so that any worker may take
    /// it, and [`unattended`](crate::SessionStore::unattended) lists the session. Stores with their own clock use that one.
    pub unfinished: Option<Timestamp>,
    /// When there is work again without a new request: from this time on
    /// [`unattended`](crate::SessionStore::unattended) lists the session. The next claim forgets it. By the clock of the
    /// workers on every store.
    pub due: Option<Timestamp>,
}

impl ReleaseClaim {
    /// Releases the claim with this token: its work is done.
    pub fn new(key: SessionKey, token: u64) -> Self {
        ReleaseClaim { key, token, unfinished: None, due: None }
    }

    /// Releases the claim with work left, at this time.
    #[must_use]
    pub fn unfinished(mut self, at: Timestamp) -> Self {
        self.unfinished = Some(at);
        self
    }

    /// Releases the claim until this time.
    #[must_use]
    pub fn due(mut self, at: Timestamp) -> Self {
        self.due = Some(at);
        self
    }
}

/// An append's action on the session's claim, in its own transaction.
///
/// Time is the event's, or the database's where it has a clock that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AppendClaim {
    /// Claims the session, as [`ClaimSession`] does.
    Take {
        /// The worker.
        owner: WorkerId,
        /// The duration, unless it is renewed.
        duration: Duration,
        /// Whether another worker's unexpired claim is taken over.
        take_over: TakeOver,
    },
    /// Writes while no worker is running in the session, and claims it for this write only: an unexpired
    /// claim rejects it, unless it is taken over; afterwards there is no claim.
    Once {
        /// Whether an unexpired claim is taken over.
        take_over: TakeOver,
    },
    /// Writes with a claim. It is renewed if less than half of the duration is left, so that most appends do
    /// not write it.
    Hold {
        /// The token of the claim.
        token: u64,
        /// The duration from now on.
        duration: Duration,
    },
    /// Writes with a claim, and releases it.
    Release {
        /// The token of the claim.
        token: u64,
    },
}

/// The claim and inbox part of an append or a rewind request.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest<'a> {
    pub(crate) key: &'a SessionKey,
    pub(crate) claim: Option<&'a AppendClaim>,
    pub(crate) taken: &'a [u64],
    #[cfg(feature = "sqlite")]
    pub(crate) at: Timestamp,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl<'a> From<&'a AppendEvent> for WorkRequest<'a> {
    fn from(append: &'a AppendEvent) -> Self {
        let AppendEvent { key, claim, taken, .. } = append;
        WorkRequest {
            key,
            claim: claim.as_ref(),
            taken,
            #[cfg(feature = "sqlite")]
            at: append.event.at,
        }
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl<'a> From<&'a RewindSession> for WorkRequest<'a> {
    fn from(rewind: &'a RewindSession) -> Self {
        let RewindSession { key, claim, taken, .. } = rewind;
        WorkRequest {
            key,
            claim: claim.as_ref(),
            taken,
            #[cfg(feature = "sqlite")]
            at: rewind.at,
        }
    }
}

/// The claim of a session as stores keep it: the newest token, and its holder if it was not released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimFence {
    pub(crate) token: u64,
    pub(crate) holder: Option<(WorkerId, Timestamp)>,
    /// The time until which it was released; `None` while a worker holds it.
    pub(crate) due: Option<Timestamp>,
}

impl ClaimFence {
    /// The number of tokens that one incarnation of a session may use: its first token follows its number times this.
    /// Numbers are never reused, so neither are tokens.
    pub(crate) const TOKENS: u64 = 1 << 24;

    /// The claim data of a new session, by its number in the store.
    pub(crate) fn for_new_session(number: i64) -> Self {
        ClaimFence { token: number.unsigned_abs().saturating_mul(Self::TOKENS), holder: None, due: None }
    }

    /// The claim data of the session with this number, from its columns: the number of its claims, the owner, the expiry.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn stored(
        number: i64,
        claims: i64,
        owner: Option<impl Into<std::sync::Arc<str>>>,
        expires: Option<i64>,
    ) -> Result<Self, SessionError> {
        let token = ClaimFence::for_new_session(number).token.saturating_add(claims.unsigned_abs());
        let expires = expires.map(Timestamp::from_micros);
        Ok(match owner {
            Some(owner) => {
                let holder = (WorkerId::new(owner)?, expires.unwrap_or(Timestamp::from_micros(0)));
                ClaimFence { token, holder: Some(holder), due: None }
            }
            None => ClaimFence { token, holder: None, due: expires },
        })
    }

    /// The columns of the claim: its owner, and when it expires, or is due without an owner.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn columns(&self) -> (Option<&str>, Option<i64>) {
        match &self.holder {
            Some((owner, expires)) => (Some(owner.as_str()), Some(expires.as_micros())),
            None => (None, self.due.map(Timestamp::as_micros)),
        }
    }

    /// The number of claims of the session with this number.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn claims(&self, number: i64) -> i64 {
        let claims = self.token.saturating_sub(ClaimFence::for_new_session(number).token);
        i64::try_from(claims).unwrap_or(i64::MAX)
    }

    /// The claim, whether or not it has expired.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let (owner, expires) = self.holder.clone()?;
        Some(Claim { owner, token: self.token, expires })
    }

    /// The claim that was just made.
    pub(crate) fn current_claim(&self, key: &SessionKey) -> Result<Claim, SessionError> {
        let lost = || SessionError::ClaimLost { key: Box::new(key.clone()), token: self.token, owner: None };
        self.claim().ok_or_else(lost)
    }

    /// The claim, if it has not expired.
    pub(crate) fn unexpired(&self, now: Timestamp) -> Option<Claim> {
        self.claim().filter(|claim| claim.expires > now)
    }

    /// The claim that a read returns.
    pub(crate) fn as_of(&self, now: Option<Timestamp>) -> Option<Claim> {
        now.map_or_else(|| self.claim(), |now| self.unexpired(now))
    }

    /// The claim, if it belongs to the requesting worker: for the receipt of a repeated append.
    pub(crate) fn claim_of_requester(&self, request: Option<&AppendClaim>) -> Option<Claim> {
        let claim = self.claim()?;
        let is_its = match request? {
            AppendClaim::Take { owner, .. } => claim.owner == *owner,
            AppendClaim::Hold { token, .. } => claim.token == *token,
            AppendClaim::Once { .. } | AppendClaim::Release { .. } => false,
        };
        is_its.then_some(claim)
    }

    /// The stored data after an append with this request.
    pub(crate) fn after(
        &self,
        key: &SessionKey,
        request: Option<&AppendClaim>,
        now: Timestamp,
    ) -> Result<Self, SessionError> {
        match request {
            None => Ok(self.clone()),
            Some(AppendClaim::Take { owner, duration, take_over }) => {
                self.claimed(key, owner, *duration, *take_over, now)
            }
            Some(AppendClaim::Once { take_over }) => {
                self.check_free(key, *take_over, Some(now))?;
                Ok(ClaimFence { holder: None, ..self.clone() })
            }
            Some(AppendClaim::Hold { token, duration }) => {
                // NOTE: renewed only when half of the duration has passed, so that most appends of a run do not write the
                // claim.
                let is_fresh = |expires: Timestamp| expires >= now.after(*duration / 2);
                match &self.holder {
                    Some((_, expires)) if self.token == *token && is_fresh(*expires) => Ok(self.clone()),
                    _ => self.renewed(key, *token, *duration, now),
                }
            }
            Some(AppendClaim::Release { token }) => self.released(key, *token),
        }
    }

    /// The stored data after the worker has claimed the session.
    pub(crate) fn claimed(
        &self,
        key: &SessionKey,
        owner: &WorkerId,
        duration: Duration,
        take_over: TakeOver,
        now: Timestamp,
    ) -> Result<Self, SessionError> {
        // NOTE: a worker with a stable name takes its own claim again immediately after a crash; it gets another token,
        // which fences off its former process (docs/decisions/sessions.md).
        let is_own = self.holder.as_ref().is_some_and(|(holder, _)| holder == owner);
        if !is_own {
            self.check_free(key, take_over, Some(now))?;
        }
        Ok(ClaimFence {
            token: self.token + 1,
            holder: Some((owner.clone(), now.after(duration))),
            due: None,
        })
    }

    /// Rejects operations that are not allowed while a worker holds the claim, unless it is taken over.
    /// Without a time, a claim counts until it is released.
    pub(crate) fn check_free(
        &self,
        key: &SessionKey,
        take_over: TakeOver,
        now: Option<Timestamp>,
    ) -> Result<(), SessionError> {
        match self.as_of(now) {
            Some(claim) if !take_over.covers(claim.token) => Err(SessionError::Claimed {
                key: Box::new(key.clone()),
                owner: claim.owner,
                expires: claim.expires,
            }),
            _ => Ok(()),
        }
    }

    /// The stored data after a renewal. A clock that is slightly behind does not shorten a claim. A claim that lasts more
    /// than a duration longer was made while the clock was ahead, and would outlive its worker by as much: it is shortened.
    pub(crate) fn renewed(
        &self,
        key: &SessionKey,
        token: u64,
        duration: Duration,
        now: Timestamp,
    ) -> Result<Self, SessionError> {
        let (owner, expires) = self.holder_of(key, token)?;
        let renewed = now.after(duration);
        // NOTE: clocks decide only when another worker may take over, never who may write, so a wrong clock costs time and
        // no data.
        let expires = if *expires > renewed.after(duration) { renewed } else { renewed.max(*expires) };
        Ok(ClaimFence { token, holder: Some((owner.clone(), expires)), due: None })
    }

    /// The stored data after a release.
    pub(crate) fn released(&self, key: &SessionKey, token: u64) -> Result<Self, SessionError> {
        self.holder_of(key, token)?;
        Ok(ClaimFence { token, holder: None, due: None })
    }

    /// The stored data after a release on request; `now` by the clock that counts.
    pub(crate) fn released_by(
        &self,
        request: &ReleaseClaim,
        now: Option<Timestamp>,
    ) -> Result<Self, SessionError> {
        let (key, token) = (&request.key, request.token);
        let Some(at) = request.unfinished else {
            return Ok(ClaimFence { due: request.due, ..self.released(key, token)? });
        };
        let (owner, expires) = self.holder_of(key, token)?;
        let holder = (owner.clone(), passed_expiry((*expires).min(now.unwrap_or(at))));
        // NOTE: the next token: a heartbeat of the former holder that arrives after this would make it wait for a dead claim.
        Ok(ClaimFence { token: token + 1, holder: Some(holder), due: None })
    }

    /// Rejects a token that is not the current one.
    pub(crate) fn check(&self, key: &SessionKey, token: u64) -> Result<(), SessionError> {
        self.holder_of(key, token).map(drop)
    }

    fn holder_of(&self, key: &SessionKey, token: u64) -> Result<&(WorkerId, Timestamp), SessionError> {
        match &self.holder {
            Some(holder) if self.token == token => Ok(holder),
            holder => {
                let owner = holder.as_ref().map(|(owner, _)| owner.clone());
                Err(SessionError::ClaimLost { key: Box::new(key.clone()), token, owner })
            }
        }
    }
}

/// The expiry of a claim that was released at this time with work left: it has passed by every clock, even one that is set
/// back.
fn passed_expiry(at: Timestamp) -> Timestamp {
    let at = at.as_micros();
    Timestamp::from_micros(if at < 0 { at } else { !at })
}

/// The time since which others may take a claim with this expiry.
pub(crate) fn free_since(expires: Timestamp) -> Timestamp {
    let expires = expires.as_micros();
    Timestamp::from_micros(if expires < 0 { !expires } else { expires })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::ids::{Author, EventId, InvocationId};
    use crate::memory::MemoryStore;
    use crate::schema::SessionSchema;
    use crate::store::{
        AppendEvent, CreateSession, DeleteSession, Expected, GetSession, ListUnattended, SessionStore,
    };
    use futures_util::FutureExt as _;
    use stepfold_state_core::state::Schema;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).unwrap()
    }

    fn key() -> SessionKey {
        SessionKey::new("app", "alice", "s").unwrap()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn held_by_a() -> ClaimFence {
        ClaimFence::for_new_session(7).claimed(&key(), &worker("a"), MINUTE, TakeOver::Never, at(0)).unwrap()
    }

    #[test]
    fn a_claim_is_taken_when_it_is_free_expired_or_to_be_taken_over() {
        let held = held_by_a();
        let refused = held.claimed(&key(), &worker("b"), MINUTE, TakeOver::Never, at(59)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "session app/alice/s is claimed by worker a until 1970-01-01T00:01:00.000000Z; wait until the claim is \
             released or expired, or take it over"
        );
        let released = held.released(&key(), held.token).unwrap();
        for (fence, owner, take_over, now) in [
            (&held, "a", TakeOver::Never, 1),
            (&held, "b", TakeOver::Always, 1),
            (&held, "b", TakeOver::Token(held.token), 1),
            (&held, "b", TakeOver::Never, 60),
            (&released, "b", TakeOver::Never, 1),
        ] {
            let taken = fence.claimed(&key(), &worker(owner), MINUTE, take_over, at(now)).unwrap();
            assert!(taken.token > fence.token);
            assert_eq!(taken.unexpired(at(now)).unwrap().owner, worker(owner));
        }
    }

    #[test]
    fn a_token_that_is_not_current_is_refused() {
        let first = held_by_a();
        let second = first.claimed(&key(), &worker("b"), MINUTE, TakeOver::Always, at(1)).unwrap();
        let released = second.released(&key(), second.token).unwrap();
        for (fence, token, said) in [
            (&second, first.token, "worker b holds it now, not token"),
            (&second, second.token + 1, "worker b holds it now, not token"),
            (&released, second.token, "no worker holds token"),
        ] {
            let hold = AppendClaim::Hold { token, duration: MINUTE };
            for request in [hold, AppendClaim::Release { token }] {
                let error = fence.after(&key(), Some(&request), at(2)).unwrap_err();
                assert!(matches!(error, SessionError::ClaimLost { .. }), "{error:?}");
                assert!(error.to_string().contains(said), "{error}");
            }
        }
    }

    #[test]
    fn holding_writes_nothing_before_half_of_the_duration_is_gone() {
        let first = held_by_a();
        let hold = AppendClaim::Hold { token: first.token, duration: MINUTE };
        assert_eq!(first.after(&key(), Some(&hold), at(30)).unwrap(), first);
        let renewed = first.after(&key(), Some(&hold), at(31)).unwrap();
        assert_eq!(renewed.claim().unwrap().expires, at(91));
        // No worker took it over, so it is not lost.
        let late = first.after(&key(), Some(&hold), at(100)).unwrap();
        assert_eq!(late.claim().unwrap().expires, at(160));
        // A clock that is somewhat behind makes no claim shorter; one that was hours ahead made none longer for good.
        assert_eq!(late.renewed(&key(), late.token, MINUTE, at(40)).unwrap(), late);
        let ahead = late.renewed(&key(), late.token, MINUTE, at(7_200)).unwrap();
        let set_back = ahead.renewed(&key(), late.token, MINUTE, at(100)).unwrap();
        assert_eq!(set_back.claim().unwrap().expires, at(160));
    }

    #[test]
    fn what_was_given_up_is_free_by_every_clock() {
        let held = held_by_a();
        let left = held.released_by(&ReleaseClaim::new(key(), held.token).unfinished(at(30)), None).unwrap();
        for now in [at(0), at(30), at(7_200)] {
            assert_eq!(left.unexpired(now), None);
            left.claimed(&key(), &worker("b"), MINUTE, TakeOver::Never, now).unwrap();
        }
        assert_eq!(free_since(left.claim().unwrap().expires), at(30));
        // Whatever the former holder sends late is too late.
        for late in [at(30), at(50)] {
            let lost = left.renewed(&key(), held.token, MINUTE, late).unwrap_err();
            assert!(matches!(lost, SessionError::ClaimLost { .. }), "{lost}");
            left.released_by(&ReleaseClaim::new(key(), held.token).unfinished(late), None).unwrap_err();
        }
    }

    #[test]
    fn tokens_of_another_life_are_others() {
        let (first, second) = (held_by_a(), ClaimFence::for_new_session(8));
        assert!(second.token > first.token);
        assert!(second.renewed(&key(), first.token, MINUTE, at(1)).is_err());
    }

    /// The store of a row of the table at the head of this file, with one session.
    struct TableStore(MemoryStore);

    /// The result of a request to a store in memory.
    fn ready<T>(response: impl Future<Output = T>) -> T {
        response.now_or_never().expect("a memory store never waits")
    }

    /// The time of an operation: half a minute after the claim, or after its expiry.
    fn time_in(state: &str) -> Timestamp {
        at(if state == "expired" { 90 } else { 30 })
    }

    impl TableStore {
        /// A session whose claim is in this state, with the token of the newest claim.
        fn in_state(state: &str) -> (Self, u64) {
            let store = TableStore(MemoryStore::new());
            let schema = SessionSchema::new(Schema::default());
            ready(store.0.create(CreateSession::with_key(key(), &schema, at(0)))).unwrap();
            let token =
                ready(store.0.claim(ClaimSession::new(key(), worker("a"), MINUTE, at(0)))).unwrap().token;
            let release = ReleaseClaim::new(key(), token);
            let released = match state {
                "free" => Some(release),
                "scheduled" => Some(release.due(at(200))),
                "abandoned" => Some(release.unfinished(at(20))),
                _ => None,
            };
            if let Some(released) = released {
                ready(store.0.release(released)).unwrap();
            }
            (store, token)
        }

        fn append(&self, claim: Option<AppendClaim>, now: Timestamp) -> Result<(), SessionError> {
            let schema = SessionSchema::new(Schema::default());
            let (id, invocation) = (EventId::new("e1").unwrap(), InvocationId::new("i1").unwrap());
            let event = Event::new(id, invocation, Author::new("user").unwrap(), now);
            let append = AppendEvent::new(key(), Expected::Any, event, &schema);
            ready(self.0.append(AppendEvent { claim, ..append })).map(drop)
        }

        /// Performs the operation of a row.
        fn perform(&self, operation: &str, token: u64, now: Timestamp) -> Result<(), SessionError> {
            let claim = |owner: &str| ClaimSession::new(key(), worker(owner), MINUTE, now);
            let renew = |token| RenewClaim::new(key(), token, MINUTE, now);
            let release = ReleaseClaim::new(key(), token);
            match operation {
                "claim by another worker" => ready(self.0.claim(claim("b"))).map(drop),
                "claim by the same worker" => ready(self.0.claim(claim("a"))).map(drop),
                "claim that takes over" => ready(self.0.claim(claim("b").take_over())).map(drop),
                "renew with the current token" => ready(self.0.renew(renew(token))).map(drop),
                "renew with an earlier token" => ready(self.0.renew(renew(token - 1))).map(drop),
                "release" => ready(self.0.release(release)),
                "release until a time" => ready(self.0.release(release.due(at(200)))),
                "release with work left" => ready(self.0.release(release.unfinished(now))),
                "release with an earlier token" => ready(self.0.release(ReleaseClaim::new(key(), token - 1))),
                "append without a claim" => self.append(None, now),
                "append with `Take`" => {
                    let (owner, duration, take_over) = (worker("b"), MINUTE, TakeOver::Never);
                    self.append(Some(AppendClaim::Take { owner, duration, take_over }), now)
                }
                "append with `Once`" => {
                    self.append(Some(AppendClaim::Once { take_over: TakeOver::Never }), now)
                }
                "append with `Hold`" => self.append(Some(AppendClaim::Hold { token, duration: MINUTE }), now),
                "append with `Release`" => self.append(Some(AppendClaim::Release { token }), now),
                "delete" => ready(self.0.delete(DeleteSession::new(key()).now(now))).map(drop),
                other => panic!("unknown operation: {other}"),
            }
        }

        fn state(&self, now: Timestamp) -> &'static str {
            let Ok(session) = ready(self.0.get(GetSession::new(key()))) else { return "deleted" };
            match session.claim {
                Some(claim) if claim.expires.as_micros() < 0 => "abandoned",
                Some(claim) if claim.expires > now => "held",
                Some(_) => "expired",
                None => {
                    let due = ready(self.0.unattended(ListUnattended::new(key().app, at(1_000)))).unwrap();
                    if due.iter().any(|session| session.is_due) { "scheduled" } else { "free" }
                }
            }
        }
    }

    #[test]
    fn operations_change_claims_as_the_table_says() {
        let rows = include_str!("claims.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
        let mut rows = rows.map(|row| row.trim_end_matches(" |").split(" | ").collect::<Vec<_>>());
        let states = rows.next().unwrap().split_off(1);
        assert_eq!(states.len(), 5);
        let mut count = 0;
        for row in rows {
            for (state, expected) in states.iter().zip(&row[1..]) {
                let (now, (store, token)) = (time_in(state), TableStore::in_state(state));
                assert_eq!(store.state(now), *state, "the state that an operation begins in");
                let found = match store.perform(row[0], token, now) {
                    Ok(()) => store.state(now),
                    Err(error) => {
                        assert_eq!(store.state(now), *state, "{}: an error changes nothing", row[0]);
                        match error {
                            SessionError::Claimed { .. } => "`Claimed`",
                            SessionError::ClaimLost { .. } => "`ClaimLost`",
                            other => panic!("{}: {other}", row[0]),
                        }
                    }
                };
                assert_eq!(found, *expected, "{} in the state {state}", row[0]);
                count += 1;
            }
        }
        assert_eq!(count, 15 * 5);
    }
}
