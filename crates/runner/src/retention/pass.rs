//! A pass of retention: a scan of an application's sessions, and the deletions that its policy requires.

use std::sync::{Mutex, PoisonError};

use stepfold_session_scopes::{
    DeleteSession, DequeueInput, ErrorKind, EventRange, GetSession, InboxEntry, InboxKind, PruneSession,
    ReadInbox, ReadLabels, ScanSessions, ScannedSession, Session, SessionCursor, SessionError, SessionKey,
    SessionStore, Timestamp,
};

use super::lease::RetentionLease;
use super::policy::RetentionPolicy;
use crate::core::runner_core::Runner;
use crate::error::RunnerError;

/// The number of sessions that are scanned at once.
const PAGE: usize = 1_000;

/// A pass of retention: see [`Runner::retain`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a pass is made with them"]
pub struct RetentionOptions {
    is_dry_run: bool,
    max_changed: usize,
    max_scanned: usize,
    after: Option<SessionCursor>,
    from_first: bool,
    if_due: bool,
}

impl Default for RetentionOptions {
    fn default() -> Self {
        let (max_changed, max_scanned) = (1_000, 200_000);
        let (is_dry_run, from_first, if_due) = (false, false, false);
        RetentionOptions { is_dry_run, max_changed, max_scanned, after: None, from_first, if_due }
    }
}

impl RetentionOptions {
    /// A pass that ends after 1,000 changed or 200,000 scanned sessions.
    pub fn new() -> Self {
        RetentionOptions::default()
    }

    /// Computes the report, and changes nothing: it needs no lease, and begins at the first session.
    pub fn dry_run(mut self) -> Self {
        self.is_dry_run = true;
        self
    }

    /// Sets the number of changed sessions after which a pass ends; at least one. It is checked after each page, which has at
    /// most this many sessions and at most 1,000: so a pass changes less than twice as many.
    pub fn max_changed(mut self, sessions: usize) -> Self {
        self.max_changed = sessions.max(1);
        self
    }

    /// Sets the number of scanned sessions after which a pass ends, which is checked after each page; at least one.
    pub fn max_scanned(mut self, sessions: usize) -> Self {
        self.max_scanned = sessions.max(1);
        self
    }

    /// Makes the pass only if an [interval](RetentionPolicy::every) has passed since the last one, or that has not reached
    /// the end.
    pub(super) fn if_due(mut self) -> Self {
        self.if_due = true;
        self
    }

    /// Begins at the first session, and not where the last pass stopped.
    pub fn from_first(mut self) -> Self {
        self.from_first = true;
        self
    }

    /// Begins at the [end](RetentionReport::next) of another pass.
    pub fn after(mut self, cursor: SessionCursor) -> Self {
        self.after = Some(cursor);
        self
    }
}

/// The result of a pass of retention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionReport {
    /// The number of scanned sessions.
    pub scanned: u64,
    /// The deleted sessions, each with the number of its events.
    pub deleted: Vec<(SessionKey, u64)>,
    /// The sessions of which events were deleted, each with their number.
    pub pruned: Vec<(SessionKey, u64)>,
    /// The sessions in whose inbox messages were withdrawn, each with their number.
    pub withdrawn: Vec<(SessionKey, u64)>,
    /// Sessions of which something would have gone, but that were kept: a worker or a message has come, or versions have
    /// labels.
    pub kept: u64,
    /// Sessions that could not be read or changed, each with the error. They do not end a pass.
    pub failed: Vec<(SessionKey, String)>,
    /// The place where the next pass continues; `None` if this one has reached the last session.
    pub next: Option<SessionCursor>,
    /// Whether no pass was made, since another worker makes one.
    pub is_elsewhere: bool,
}

impl RetentionReport {
    /// The number of sessions that were changed, or could not be.
    fn changed(&self) -> usize {
        self.deleted.len() + self.pruned.len() + self.withdrawn.len() + self.failed.len()
    }

    /// The number of deleted events, those of deleted sessions included.
    pub fn events(&self) -> u64 {
        self.deleted.iter().chain(&self.pruned).map(|(_, events)| events).sum()
    }

    fn elsewhere() -> Self {
        RetentionReport { is_elsewhere: true, ..RetentionReport::default() }
    }
}

/// Deletions and failures of retention since the runner was built, for metrics.
#[derive(Debug, Default)]
pub(crate) struct RetentionCounters(Mutex<(u64, u64, u64)>);

impl RetentionCounters {
    fn add(&self, report: &RetentionReport) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 += report.deleted.len() as u64;
        counts.1 += report.events();
        counts.2 += report.failed.len() as u64;
    }

    /// The deleted sessions, the deleted events, and the failures.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner {
    /// Makes a pass of retention: deletes sessions, events and waiting messages of the application as its
    /// [policy](crate::RunnerBuilder::retention) says. Without a policy, or while another worker makes a pass, it does
    /// nothing. It begins where the last pass stopped, if that did not reach the end, unless it is to begin
    /// [at the first session](RetentionOptions::from_first).
    ///
    /// Each deletion is a transaction of its own that checks what the decision was made from: a session that was written
    /// to, claimed or labelled in between is kept. So a pass that ends half-way, or two passes at once, delete nothing else
    /// than one would. Deleted bytes stay in the files of a database until a
    /// [vacuum](stepfold_session_scopes::SessionStore::vacuum).
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) when the store fails, or has no claims.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    ///
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{RetentionOptions, RetentionPolicy, Runner};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new());
    /// let runner = runner.retention(RetentionPolicy::new().keep_events(2)).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// session.run("and fewest?").await?;
    ///
    /// let planned = runner.retain(RetentionOptions::new().dry_run()).await?;
    /// let report = runner.retain(RetentionOptions::new()).await?;
    /// assert_eq!((report.pruned.len(), report.events()), (1, 2));
    /// assert_eq!(planned.pruned, report.pruned);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn retain(&self, options: RetentionOptions) -> Result<RetentionReport, RunnerError> {
        let Some(policy) = self.0.retention.as_ref().filter(|policy| !policy.is_empty()) else {
            return Ok(RetentionReport::default());
        };
        let failed = |error| self.failed(error);
        if options.is_dry_run {
            let mut pass = RetentionPass::new(self, policy, &options, options.after.clone());
            pass.run(None).await.map_err(failed)?;
            return Ok(pass.report);
        }
        let taken = RetentionLease::take(&self.0).await.map_err(failed)?;
        let Some(mut lease) = taken else { return Ok(RetentionReport::elsewhere()) };
        if options.if_due && !is_due(&lease, policy, self.0.clock.now()) {
            lease.release().await;
            return Ok(RetentionReport::elsewhere());
        }
        let left_by_last = || lease.cursor.clone().filter(|_| !options.from_first);
        let after = options.after.clone().or_else(left_by_last);
        let mut pass = RetentionPass::new(self, policy, &options, after);
        let ended = pass.run(Some(&mut lease)).await;
        let report = pass.report;
        self.0.retained.add(&report);
        match ended {
            Ok(true) => {
                if let Err(error) = lease.end(report.next.as_ref()).await {
                    let error = self.0.redacted_text(error.to_string());
                    tracing::warn!(error, "the end of a pass of retention was not recorded");
                }
            }
            // The rest is that of the next pass, which begins where this one has begun.
            Ok(false) => lease.release().await,
            Err(error) => {
                lease.release().await;
                return Err(failed(error));
            }
        }
        Ok(report)
    }

    /// The policy of retention.
    pub fn retention(&self) -> Option<&RetentionPolicy> {
        self.0.retention.as_ref()
    }
}

/// Whether it is time for another pass. A clock that was set back does not stop retention.
fn is_due(lease: &RetentionLease, policy: &RetentionPolicy, now: Timestamp) -> bool {
    let is_recent = |last: Timestamp| last <= now && last > now.before(policy.interval());
    lease.cursor.is_some() || !lease.last.is_some_and(is_recent)
}

/// A pass under way.
struct RetentionPass<'a> {
    runner: &'a Runner,
    policy: &'a RetentionPolicy,
    options: &'a RetentionOptions,
    /// The time of the pass.
    now: Timestamp,
    request: ScanSessions,
    report: RetentionReport,
}

/// The result of a deletion that checks what it was decided from.
enum Kept<T> {
    Done(T),
    /// The session was kept.
    InUse,
    /// It is gone.
    Gone,
}

impl<T> Kept<T> {
    fn of(result: Result<T, SessionError>) -> Result<Self, SessionError> {
        match result {
            Ok(done) => Ok(Kept::Done(done)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Kept::Gone),
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Claimed) => Ok(Kept::InUse),
            Err(error) => Err(error),
        }
    }
}

impl<'a> RetentionPass<'a> {
    fn new(
        runner: &'a Runner,
        policy: &'a RetentionPolicy,
        options: &'a RetentionOptions,
        after: Option<SessionCursor>,
    ) -> Self {
        let mut request = ScanSessions::of(runner.0.app.clone());
        (request.limit, request.after) = (PAGE.min(options.max_scanned).min(options.max_changed), after);
        request.with_first_event = policy.needs_first_event();
        let (now, report) = (runner.0.clock.now(), RetentionReport::default());
        RetentionPass { runner, policy, options, now, request, report }
    }

    /// Scans until the end, or until the pass has done enough; returns whether it was not stopped by a shutdown.
    async fn run(&mut self, mut lease: Option<&mut RetentionLease>) -> Result<bool, SessionError> {
        loop {
            if let Some(lease) = &mut lease {
                lease.keep().await?;
            }
            let page = self.runner.0.store.scan(self.request.clone()).await?;
            self.report.scanned += page.sessions.len() as u64;
            let (policy, now) = (self.policy, self.now);
            for session in page.sessions.iter().filter(|session| policy.concerns(session, now)) {
                if self.runner.0.shutdown.is_closed() {
                    return Ok(false);
                }
                if let Some(lease) = &mut lease {
                    lease.keep().await?;
                }
                self.apply(&session.key).await;
            }
            self.request.after = page.next;
            if self.request.after.is_none() || self.has_done_enough() {
                self.report.next.clone_from(&self.request.after);
                return Ok(true);
            }
        }
    }

    fn has_done_enough(&self) -> bool {
        self.report.changed() >= self.options.max_changed
            || self.report.scanned >= self.options.max_scanned as u64
    }

    /// Applies the policy to a session. Its errors are those of the session.
    async fn apply(&mut self, key: &SessionKey) {
        match self.try_apply(key).await {
            // It may have been deleted since it was found.
            Ok(()) | Err(SessionError::NotFound { .. }) => {}
            Err(error) => {
                let words = self.runner.0.redacted_text(error.to_string());
                tracing::warn!(session = %key, error = words, "retention failed in a session");
                self.report.failed.push((key.clone(), words));
            }
        }
    }

    async fn try_apply(&mut self, key: &SessionKey) -> Result<(), SessionError> {
        let get = GetSession::new(key.clone()).events(EventRange::Last(1)).without_state().now(self.now);
        let read = self.runner.0.store.get(get).await?;
        if read.claim.is_some() {
            self.report.kept += 1;
            return Ok(());
        }
        let mut session = ScannedSession::of(&read);
        if !self.policy.may_touch(&session) {
            return Ok(());
        }
        session.inbox = self.withdraw(&session).await?;
        match self.policy.is_idle(&session, self.now) && self.delete(&read, &session).await? {
            true => Ok(()),
            false => self.prune(&session).await,
        }
    }

    /// Withdraws messages that wait for too long; returns the newest entry that is left. Requests to cancel are left: they
    /// are for a run, and tell its worker to stop.
    async fn withdraw(&mut self, session: &ScannedSession) -> Result<u64, SessionError> {
        let Some(before) = self.policy.messages_before(self.now).filter(|_| session.inbox > 0) else {
            return Ok(session.inbox);
        };
        let store = &self.runner.0.store;
        let waiting = store.inbox(ReadInbox::new(session.key.clone()).without_bodies_over(0)).await?;
        let is_old = |entry: &InboxEntry| entry.at < before && entry.kind != InboxKind::Cancel;
        let (old, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_old);
        if !old.is_empty() {
            let positions = old.iter().map(|entry| entry.position);
            let dequeue = DequeueInput::new(session.key.clone(), positions);
            let count = match self.options.is_dry_run {
                true => old.len(),
                false => store.dequeue(dequeue).await?.len(),
            };
            self.report.withdrawn.push((session.key.clone(), count as u64));
        }
        Ok(left.last().map_or(0, |entry| entry.position))
    }

    /// Deletes a session, unless something keeps it; returns whether it is gone.
    async fn delete(&mut self, read: &Session, session: &ScannedSession) -> Result<bool, SessionError> {
        let (core, key) = (&self.runner.0, &session.key);
        let events = match self.options.is_dry_run {
            true if session.inbox > 0 || self.has_labels(key).await? => Kept::InUse,
            true => Kept::Done(read.version - read.oldest),
            false => {
                let delete = DeleteSession::new(key.clone()).now(self.now).if_unused_at(session.version);
                Kept::of(core.store.delete(delete).await.map(|deleted| deleted.events))?
            }
        };
        match events {
            Kept::Done(events) => {
                if !self.options.is_dry_run {
                    core.forget(key);
                    core.changes.notify_deleted(key);
                }
                self.report.deleted.push((key.clone(), events));
                Ok(true)
            }
            Kept::Gone => Ok(true),
            Kept::InUse => {
                self.report.kept += 1;
                Ok(false)
            }
        }
    }

    async fn has_labels(&self, key: &SessionKey) -> Result<bool, SessionError> {
        match self.runner.0.store.labels(ReadLabels::new(key.clone())).await {
            Ok(labels) => Ok(!labels.is_empty()),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes old events of a session.
    async fn prune(&mut self, session: &ScannedSession) -> Result<(), SessionError> {
        let Some(bound) = self.policy.bound(session, self.now) else { return Ok(()) };
        let prune =
            PruneSession::new(session.key.clone(), bound).if_unchanged_at(session.version).now(self.now);
        let prune = if self.options.is_dry_run { prune.dry_run() } else { prune };
        match Kept::of(self.runner.0.store.prune(prune).await)? {
            Kept::Done(pruned) if pruned.events > 0 => {
                self.report.pruned.push((session.key.clone(), pruned.events));
            }
            Kept::InUse => self.report.kept += 1,
            Kept::Done(_) | Kept::Gone => {}
        }
        Ok(())
    }
}
