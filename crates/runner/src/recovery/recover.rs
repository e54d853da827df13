//! Recovery: completes runs that no worker has, whichever worker began them.
//!
//! There is no queue. The claim on a session is the lease, and an expired one is the sign that work is left.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stepfold_agent_loop::{Exit, Pause};
use stepfold_session_scopes::{
    ErrorKind, ListUnattended, SessionCursor, SessionKey, SessionStore, StoreNotice, StoreNotices, TakeOver,
    Timestamp, Unattended, UserId, WatchStore,
};
use tokio::time::Instant;

use crate::access::session_access::SessionAccess;
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::feed::notices::next_matching;
use crate::recovery::blocked_log::BlockedLog;
use crate::recovery::raised::RaisedBudgets;
use crate::remedy::Remedy;
use crate::session::command::WorkerCommand;
use crate::session::invocation::InvocationResult;

/// The number of sessions that are listed at once.
const PAGE: usize = 100;

/// The number of due sessions that are listed for each that may be worked in at once.
const LISTED_AHEAD: usize = 4;

/// The most pages that a poll reads once it has found something.
const MAX_PAGES: usize = 10;

/// The pace of [`Runner::recover`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a recovery is started with them"]
pub struct RecoverOptions {
    parallel: usize,
    per_user: Option<usize>,
    poll: Option<Duration>,
    pauses: (Duration, Duration),
    is_once: bool,
}

impl Default for RecoverOptions {
    fn default() -> Self {
        let pauses = (Duration::from_secs(1), Duration::from_secs(300));
        RecoverOptions { parallel: 8, per_user: None, poll: None, pauses, is_once: false }
    }
}

impl RecoverOptions {
    /// The usual ones.
    pub fn new() -> Self {
        RecoverOptions::default()
    }

    /// Sets how many sessions are worked in at once; 8 by default, at least one.
    pub fn parallel(mut self, sessions: usize) -> Self {
        self.parallel = sessions.max(1);
        self
    }

    /// Sets in how many sessions of one user work is done at once; three quarters of
    /// [`parallel`](RecoverOptions::parallel) by default, and one less than it at most, so that others have a place.
    /// Users take turns: the sessions of those with the fewest running ones come first.
    pub fn per_user(mut self, sessions: usize) -> Self {
        self.per_user = Some(sessions.max(1));
        self
    }

    /// Sets how often the store is asked; a tenth of the [duration of a claim](crate::RunnerBuilder::claim_for) by
    /// default. A poll costs one statement, however many sessions are idle.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.poll = Some(interval);
        self
    }

    /// Sets the pause after a first failure of a session, which doubles with each further one, and the longest pause; one
    /// second and five minutes by default. A session that needs an action first (a deployment, a repair) is tried after the
    /// longest pause, which doubles as well, up to 64 times of it.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.pauses = (first, longest.max(first));
        self
    }

    /// Ends when nothing is left to do at once: for a job that is started now and then.
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    fn max_per_user(&self) -> usize {
        let of_others = (self.parallel / 4).max(1);
        self.per_user.unwrap_or_else(|| self.parallel.saturating_sub(of_others).max(1))
    }

    fn pause(&self, failures: u32) -> Duration {
        let (first, longest) = self.pauses;
        first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(longest)
    }
}

impl Runner {
    /// Recovers runs that no worker has: those that were interrupted (their worker died, was frozen or shut down, or
    /// the run failed or was suspended), and messages that were accepted and not taken. Users take turns, the session
    /// of each that has waited longest first, and [none takes all places](RecoverOptions::per_user). Runs until the
    /// runner is [shut down](Runner::shutdown); an application spawns it in each of its processes, and the claims on
    /// sessions share the work out.
    ///
    /// A run that waits for decisions is left alone, and so is one of another [agent](RunnerErrorKind::AgentChanged): of two
    /// versions of an agent on one store, each recovers its own runs. A run that fails again is tried again, after
    /// longer and longer pauses, unless a repetition [cannot mend it](RunnerErrorKind::LeftToPerson): then it waits until it is
    /// resumed or abandoned, or a message is sent.
    ///
    /// A process that was killed or frozen is replaced when its claim has expired: after the duration of a claim, and a
    /// tenth of it; at once by a process that begins to recover and [knows](crate::RunnerBuilder::process_worker) that
    /// it is dead. If a frozen one continues later, its writes are refused.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`] with [`Unsupported`](stepfold_session_scopes::SessionError::Unsupported) by a store
    /// without claims. While the store is unreachable, it is asked again.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{RecoverOptions, Runner};
    /// use stepfold_session_scopes::{AnyStore, MemoryStore};
    /// use stepfold_state_core::chat::{ModelError, ModelErrorKind};
    ///
    /// # let agent = |script| Agent::builder(Script::parse(script).unwrap()).build().unwrap();
    /// let store = AnyStore::new(MemoryStore::new());
    /// // The model does not answer, so the run stays unfinished.
    /// let silent = Script::parse("")?.then_fail(ModelError::new(ModelErrorKind::Overloaded, "come back later"));
    /// let silent = Agent::builder(silent).build()?;
    /// let session = Runner::builder(silent, store.clone()).build().session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await.unwrap_err();
    ///
    /// // Another process; a server would spawn it, without `once`.
    /// let runner = Runner::builder(agent("assistant: area 3"), store).build();
    /// runner.recover(RecoverOptions::new().once()).await?;
    /// let session = runner.session("ada", "s1").await?;
    /// assert_eq!(session.state().await?.messages().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn recover(
        &self,
        options: RecoverOptions,
    ) -> impl Future<Output = Result<(), RunnerError>> + Send + use<> {
        RecoveryTask::new(self.clone(), options).run()
    }
}

struct RecoveryTask {
    runner: Runner,
    options: RecoverOptions,
    /// The due sessions, the longest waiting first, with a bound for each user.
    due: VecDeque<Unattended>,
    running: FuturesUnordered<BoxFuture<'static, (StartedIn, InvocationResult)>>,
    running_in: HashSet<SessionKey>,
    /// The number of the last start of each user with due sessions, and of the next one.
    last_starts: HashMap<UserId, u64>,
    next_start: u64,
    attempts: HashMap<SessionKey, RecoveryAttempt>,
    /// The place where the next poll continues, if the last one did not reach the end of the list.
    next_cursor: Option<SessionCursor>,
    /// The sessions that were listed since the beginning of the list.
    listed: HashSet<SessionKey>,
    /// Since when the first listed session waits.
    oldest: Option<Timestamp>,
    /// Sessions that could not be recovered, and are not in the log yet.
    blocked: BlockedLog,
    /// Runs that wait for a budget whose limit has become higher.
    raised: RaisedBudgets,
    /// Notices of work that is left, if the store gives any.
    notices: Option<StoreNotices>,
}

/// The session of a start, as it was found.
enum StartedIn {
    /// It was listed as unattended.
    Listed(Unattended),
    /// Its run waited for a budget that has more now.
    Raised(SessionKey),
}

/// The result of the last attempt in a session that is still listed. Pauses go by a clock that is never set.
#[derive(Clone, Debug)]
struct RecoveryAttempt {
    failures: u32,
    not_before: Instant,
    /// The session as the attempt left it, if only a later change is worth an earlier attempt.
    waits: Option<SessionMark>,
}

/// A session as an attempt left it: what the attempt itself leaves in the store is no change.
#[derive(Clone, Debug)]
struct SessionMark {
    /// The end of the attempt, and the inbox before it.
    at: Timestamp,
    inbox: u64,
    /// The time since which it was listed at the first poll after the attempt: the clock may have been set since.
    since: Option<Timestamp>,
}

impl RecoveryAttempt {
    /// Whether it is time for another attempt in a session that is listed so.
    fn is_due(&mut self, session: &Unattended, now: Timestamp, elapsed: Instant) -> bool {
        let has_changed = self.waits.as_mut().is_some_and(|seen| seen.has_changed(session, now));
        has_changed || self.not_before <= elapsed
    }
}

impl SessionMark {
    fn has_changed(&mut self, session: &Unattended, now: Timestamp) -> bool {
        // What lies ahead of the clock was written before the clock was set back, and would be later for as long.
        let is_later = session.since > self.at && session.since <= now;
        let is_known = *self.since.get_or_insert(session.since) == session.since;
        is_later || !is_known || session.inbox != self.inbox
    }
}

impl RecoveryTask {
    fn new(runner: Runner, options: RecoverOptions) -> Self {
        let (due, running) = (VecDeque::new(), FuturesUnordered::new());
        RecoveryTask {
            runner,
            options,
            due,
            running,
            running_in: HashSet::new(),
            last_starts: HashMap::new(),
            next_start: 1,
            attempts: HashMap::new(),
            next_cursor: None,
            listed: HashSet::new(),
            oldest: None,
            blocked: BlockedLog::default(),
            raised: RaisedBudgets::new(),
            notices: None,
        }
    }

    async fn run(mut self) -> Result<(), RunnerError> {
        let core = std::sync::Arc::clone(&self.runner.0);
        let poll = self.options.poll.unwrap_or(core.claims.duration / 10).max(Duration::from_millis(10));
        if !self.options.is_once {
            self.notices = core.store.notices(WatchStore::new()).await.ok();
        }
        let mut is_first = true;
        loop {
            self.list().await?;
            if std::mem::take(&mut is_first) {
                self.list_dead_workers().await;
            }
            self.start();
            let is_end = self.options.is_once && self.running.is_empty() && self.raised.is_done();
            self.blocked.log(is_end);
            if is_end {
                return Ok(());
            }
            if self.options.is_once && self.running.is_empty() {
                continue;
            }
            // NOTE: the expiry of a claim sends no notice, so recovery polls even where the store sends notices.
            let mut next_look = core.clock.sleep(poll);
            loop {
                tokio::select! {
                    biased;
                    () = core.shutdown.closed() => return Ok(()),
                    Some((started, ended)) = self.running.next() => {
                        match started {
                            StartedIn::Listed(session) => self.has_ended(&session, ended).await,
                            // It waits again, or is listed if its run has stopped otherwise.
                            StartedIn::Raised(key) => self.raised_has_ended(&key, ended),
                        }
                        self.start();
                        // There may be others by now.
                        if self.running.is_empty() {
                            break;
                        }
                    }
                    () = &mut next_look => break,
                    () = next_matching(&mut self.notices, StoreNotice::has_work) => break,
                }
            }
        }
    }

    /// Lists due sessions until there are enough. The next poll continues from there, so that sessions after many others in
    /// the list are reached as well.
    async fn list(&mut self) -> Result<(), RunnerError> {
        self.list_due().await?;
        self.raised.poll(&self.runner).await;
        let blocked = self.attempts.values().filter(|attempt| attempt.failures > 0).count();
        self.runner.0.backlog.set_listed(self.listed.len(), blocked, self.oldest);
        Ok(())
    }

    async fn list_due(&mut self) -> Result<(), RunnerError> {
        let core = &self.runner.0;
        let (now, elapsed) = (core.clock.now(), Instant::now());
        let enough = self.options.parallel.saturating_mul(LISTED_AHEAD);
        let mut request = ListUnattended::new(core.app.clone(), now);
        (request.limit, request.after) = (PAGE, self.next_cursor.take());
        self.due.clear();
        if request.after.is_none() {
            self.listed.clear();
            self.oldest = None;
        }
        let mut pages = 0;
        let max_per_user = self.options.max_per_user().saturating_mul(LISTED_AHEAD);
        let mut of_users = HashMap::new();
        loop {
            let page = match core.store.unattended(request.clone()).await {
                Ok(page) => page,
                Err(error) if error.kind() == ErrorKind::Unsupported || self.options.is_once => {
                    return Err(self.runner.failed(error));
                }
                Err(error) => {
                    tracing::warn!(%error, "unattended sessions could not be listed");
                    return Ok(());
                }
            };
            let is_last = page.len() < PAGE;
            request.after = page.last().map(|session| session.cursor.clone());
            for session in page {
                self.listed.insert(session.key.clone());
                self.oldest.get_or_insert(session.since);
                let is_due = match self.attempts.get_mut(&session.key) {
                    Some(attempt) => attempt.is_due(&session, now, elapsed),
                    // The worker that has accepted the message is about to take it.
                    None if !session.is_claimed && !session.is_due && !self.options.is_once => {
                        let not_before = elapsed + core.claims.duration;
                        let attempt = RecoveryAttempt { failures: 0, not_before, waits: None };
                        self.attempts.insert(session.key.clone(), attempt);
                        false
                    }
                    None => true,
                };
                if is_due && !self.running_in.contains(&session.key) {
                    let of_user = of_users.entry(session.key.user.clone()).or_insert(0_usize);
                    // More of one user would hide those of others.
                    if *of_user < max_per_user {
                        *of_user += 1;
                        self.due.push_back(session);
                    }
                }
            }
            pages += 1;
            if is_last {
                // What is not listed any more is done.
                let in_use = || self.listed.iter().chain(&self.running_in);
                let users: HashSet<&UserId> = in_use().map(|key| &key.user).collect();
                self.last_starts.retain(|user, _| users.contains(user));
                self.attempts.retain(|key, _| self.listed.contains(key) || self.running_in.contains(key));
                return Ok(());
            }
            // One that recovers once ends when a poll from the beginning finds nothing.
            if self.options.is_once && self.due.len() < enough {
                continue;
            }
            if self.due.len() >= enough || pages >= MAX_PAGES && !self.due.is_empty() {
                self.next_cursor = request.after.filter(|_| !self.options.is_once);
                return Ok(());
            }
        }
    }

    /// Lists the sessions whose claims have not expired and whose workers are known to be dead: a process that was
    /// killed before this one began.
    async fn list_dead_workers(&mut self) {
        let core = &self.runner.0;
        let is_dead = &core.claims.is_dead;
        if !is_dead.is_known() {
            return;
        }
        let mut request = ListUnattended::new(core.app.clone(), core.clock.now()).with_claimed();
        request.limit = PAGE;
        for _ in 0..MAX_PAGES {
            // One that cannot be listed now is when its claim has expired.
            let Ok(page) = core.store.unattended(request.clone()).await else { return };
            let is_last = page.len() < PAGE;
            request.after = page.last().map(|session| session.cursor.clone());
            for session in page {
                let is_known = self.listed.contains(&session.key);
                if !is_known && session.owner.as_ref().is_some_and(|owner| is_dead.is_dead(owner)) {
                    self.due.push_back(session);
                }
            }
            if is_last {
                return;
            }
        }
    }

    /// The number of sessions of a user that are worked in.
    fn running_of(&self, user: &UserId) -> usize {
        self.running_in.iter().filter(|key| key.user == *user).count()
    }

    /// The session that comes next: the one that waits longest, of the user with the fewest running sessions whose last
    /// start is longest ago.
    fn next(&mut self) -> Option<Unattended> {
        let place = |session: &Unattended| {
            let user = &session.key.user;
            (self.running_of(user), self.last_starts.get(user).copied().unwrap_or(0))
        };
        let places = self.due.iter().map(place).enumerate();
        let may_start = places.filter(|(_, (running_in, _))| *running_in < self.options.max_per_user());
        let (next, _) = may_start.min_by_key(|(_, place)| *place)?;
        let session = self.due.remove(next)?;
        self.last_starts.insert(session.key.user.clone(), self.next_start);
        self.next_start += 1;
        Some(session)
    }

    /// The next session whose run waits for a budget that has more now. A user takes no more places than by others.
    fn next_raised(&mut self) -> Option<SessionKey> {
        let max_per_user = self.options.max_per_user();
        let (running_in, runner) = (&self.running_in, &self.runner);
        let running_of = |user: &UserId| running_in.iter().filter(|key| key.user == *user).count();
        loop {
            let key = self.raised.take(|key| running_of(&key.user) < max_per_user)?;
            // Its run continues already.
            if !running_in.contains(&key) && runner.handle(key.clone()).driving().is_none() {
                return Some(key);
            }
        }
    }

    /// Starts as many as may run.
    fn start(&mut self) {
        while self.running.len() < self.options.parallel
            && let Some(session) = self.next()
        {
            self.start_in(session.key.clone(), StartedIn::Listed(session));
        }
        // After these: a raise may continue thousands of runs.
        while self.running.len() < self.options.parallel
            && let Some(key) = self.next_raised()
        {
            self.start_in(key.clone(), StartedIn::Raised(key));
        }
    }

    fn start_in(&mut self, key: SessionKey, started: StartedIn) {
        let handle = self.runner.handle(key.clone());
        self.running_in.insert(key);
        self.running.push(Box::pin(async move {
            let ended = match handle.start_command(WorkerCommand::Recover) {
                Ok(invocation) => invocation.outcome().await,
                Err(error) => Err(error),
            };
            (started, ended)
        }));
    }

    /// A run whose budget was raised waits again, or is listed if it has stopped otherwise; or it could not begin.
    fn raised_has_ended(&mut self, key: &SessionKey, ended: InvocationResult) {
        self.running_in.remove(key);
        let Err(error) = ended else { return };
        match &error.kind {
            RunnerErrorKind::Store { .. } if error.remedy() == Remedy::Retry => self.raised.look_again(),
            _ if error.is_of_other_agent() => {
                self.blocked.add(key, self.runner.0.redacted_text(error.to_string()));
            }
            _ => {}
        }
    }

    async fn has_ended(&mut self, session: &Unattended, ended: InvocationResult) {
        self.running_in.remove(&session.key);
        let failures = self.attempts.remove(&session.key).map_or(0, |attempt| attempt.failures);
        let seen = SessionMark { at: self.runner.0.clock.now(), inbox: session.inbox, since: None };
        let (failures, waits) = match ended {
            // It waits for decisions, and messages wait behind it.
            Ok(outcome) if *outcome.exit() == Exit::Paused(Pause::Approval) => (0, Some(seen)),
            Err(RunnerError {
                kind: RunnerErrorKind::NothingToResume | RunnerErrorKind::Erased { .. },
                ..
            }) => {
                return self.runner.clear(&session.key).await;
            }
            // It was deleted since it was listed.
            Err(error) if error.is_session_not_found() => return,
            // It is done, or another worker does it.
            Ok(_)
            | Err(RunnerError {
                kind:
                    RunnerErrorKind::Claimed { .. }
                    | RunnerErrorKind::ClaimLost { .. }
                    | RunnerErrorKind::Conflict { .. }
                    | RunnerErrorKind::ShutDown { .. },
                ..
            }) => return,
            Err(error) => {
                let words = self.runner.0.redacted_text(error.to_string());
                tracing::debug!(session = %session.key, error = words, "session could not be recovered");
                // What fails again and again is said once.
                if failures == 0 {
                    self.blocked.add(&session.key, words);
                }
                match error.remedy() {
                    Remedy::Retry => (failures + 1, None),
                    // A deployment, a decision or a repair changes what is listed, or the agent of this process.
                    Remedy::Wait | Remedy::Never => (failures + 1, Some(seen)),
                }
            }
        };
        let pause = match waits {
            // It may be fixed from outside without a trace in the store, a key of a model for example.
            Some(_) => self.options.pauses.1.saturating_mul(1 << failures.saturating_sub(1).min(6)),
            None => self.options.pause(failures),
        };
        let not_before = Instant::now() + pause;
        self.attempts.insert(session.key.clone(), RecoveryAttempt { failures, not_before, waits });
    }
}

impl Runner {
    /// Removes the claim that a worker left on a session without work.
    async fn clear(&self, key: &SessionKey) {
        let local = self.0.sessions().get(key.clone());
        let access = SessionAccess::new(std::sync::Arc::clone(&self.0), local);
        // Not while this process works in it.
        let Ok(_cache) = access.local.cache.try_lock() else { return };
        if access.local.claim.token().is_none() && access.claim(TakeOver::Never).await.is_ok() {
            // Another worker may have begun and left a run since the session was found without one.
            access.release_as_found().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let options = RecoverOptions::new().pauses(Duration::from_secs(1), Duration::from_secs(10));
        let pauses = [1, 2, 3, 4, 5, 99].map(|failures| options.pause(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }
}
