//! Drives a run: every commit is stored before anything else happens.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{
    EventRefused, ExhaustedBudget, Exit, Outcome, RequestMeter, Run, RunBuilder, RunError, RunFault,
};
use stepfold_session_scopes::{
    AppendEvent, CommittedEvent, InvocationId, SeenVersions, SessionError, SessionStore, TakeOver, Timestamp,
};
use stepfold_state_core::chat::Message;

use crate::access::unfinished_run::UnfinishedRun;
use crate::budget::RunMeter;
use crate::core::observers::OnceStored;
use crate::core::programs::AgentProgram;
use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::events::{failed_event, waiting_event};
use crate::record::run_failure::RunFailure;
use crate::remedy::waits_for_person;
use crate::session::cache::StoppedRun;
use crate::session::inbox::InboxMessage;
use crate::session::invocation::InvocationResult;
use crate::upgrade::WhenChanged;
use crate::worker::claim_guard::ClaimGuard;
use crate::worker::deadlines::RunClock;
use crate::worker::driver::{InvocationDriver, exhausted_budget, is_suspended};
use crate::worker::journal::RunJournal;
use crate::worker::next_action::InvocationGoal;
use crate::worker::publisher::HubPublisher;

/// The time after which a run is continued that found only the reservations of others in its way.
const RESERVATIONS_END: Duration = Duration::from_secs(5);

/// The time at which a recovery continues a run that waits for a budget: in its next window, or soon.
fn due_again(budget: &ExhaustedBudget, now: Timestamp) -> Option<Timestamp> {
    let until = budget.until.map(Timestamp::from);
    match budget.waits_for_reservations() {
        true => until.into_iter().chain([now.after(RESERVATIONS_END)]).min(),
        false => until,
    }
}

impl InvocationDriver<'_> {
    /// Completes an interrupted run, or abandons it after too many failures; `None` if the session has to be
    /// checked again.
    pub(super) async fn recover(
        &mut self,
        stopped: Box<UnfinishedRun>,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let invocation = stopped.invocation.clone();
        let is_own = invocation == *self.ticket.current.invocation.id();
        let abandons = self.has_failed_enough(&invocation);
        let others = match is_own {
            true => self.validate_decisions(&stopped.run).await.map(|_| None)?,
            // Those of this invocation are not about an earlier run.
            false => Some(std::mem::take(&mut self.decisions)),
        };
        let ended = self.drive(stopped, Vec::new(), abandons).await;
        if let Some(others) = others {
            self.decisions = others;
        }
        match ended {
            Err(RunnerError { kind: RunnerErrorKind::Run { .. }, .. })
                if !abandons && self.has_failed_enough(&invocation) =>
            {
                Ok(None)
            }
            Err(RunnerError { kind: RunnerErrorKind::Run { source }, .. }) if !is_own => {
                Err(self.earlier_failed(source))
            }
            ended => {
                let outcome = ended?;
                if is_suspended(&outcome) {
                    return Ok(Some(outcome));
                }
                self.ticket.current.invocation.add_recovered(Arc::clone(&outcome));
                if let Some(budget) = exhausted_budget(&outcome).filter(|_| self.has_message && !is_own) {
                    return Err(self.pending(vec![format!("budget `{}`", budget.budget)], self.goal));
                }
                Ok(Some(outcome))
            }
        }
    }

    pub(super) fn has_failed_enough(&self, invocation: &InvocationId) -> bool {
        let last = self.cache.history.as_ref().and_then(|history| history.last.as_ref());
        let recorded =
            last.filter(|last| last.invocation == *invocation).and_then(|last| last.failed.as_ref());
        let mut failed = recorded.into_iter().chain(&self.failed);
        self.access.runner.abandon_after.is_some_and(|limit| failed.any(|failed| failed.times >= limit))
    }

    /// Drives a run as long as the claim is held; every commit is stored before anything else happens. The future is on the
    /// heap, since it would otherwise be part of each caller's.
    pub(super) fn drive(
        &mut self,
        from: Box<UnfinishedRun>,
        entries: Vec<InboxMessage>,
        is_abandoned: bool,
    ) -> BoxFuture<'_, InvocationResult> {
        Box::pin(self.drive_run(from, entries, is_abandoned))
    }

    pub(super) async fn drive_run(
        &mut self,
        from: Box<UnfinishedRun>,
        entries: Vec<InboxMessage>,
        is_abandoned: bool,
    ) -> InvocationResult {
        let UnfinishedRun { run, program, invocation, place, seen, missing_temp } = *from;
        let (core, local) = (Arc::clone(&self.access.runner), Arc::clone(&self.access.local));
        // Failures of another run do not count for this one.
        self.failed = None;
        local.inbox.rewind_reader();
        let active = local.queue().start_run();
        let cancellation =
            active.token(self.is_own_run(&invocation).then_some(&self.ticket.current.invocation));
        if is_abandoned {
            cancellation.cancel();
        }
        if place > 0 {
            // NOTE: watchers are notified now, since the next event of a resumed run may take long.
            let version = self.cache.history.as_ref().map_or(0, |history| history.version);
            core.changes.notify(&local.key, version, true);
        }
        // Cancellation requests do not apply to a run that begins only now.
        self.access.apply_cancellations((place > 0).then_some((&invocation, &cancellation))).await;
        let history = self.cache.history.as_ref();
        let life = history.and_then(|history| history.life.clone());
        let taken = history.map(|history| history.taken()).unwrap_or_default();
        let meter = RunMeter::of(&core, &local, &invocation);
        if let Some(meter) = meter.as_ref().filter(|_| place > 0) {
            self.settle_abandoned(meter).await?;
        }
        let mut journal = self.journal(invocation, (program, &run), (place, seen), entries);
        let shared_version = Arc::clone(&journal.shared_version);
        let decisions = self.decisions_about(&run);
        journal.meter.clone_from(&meter);
        let mut guard =
            ClaimGuard::start(self.access.clone(), journal.invocation.clone(), cancellation.clone());
        let is_taken = |id: &InvocationId| taken.contains_key(id);
        let mut messages = Vec::new().into_iter();
        let publish = HubPublisher {
            hub: Arc::clone(&self.ticket.hub),
            local: Arc::clone(&local),
            is_earlier: self.is_earlier(),
            version: shared_version,
        };
        let is_stored = place > 0;
        let run = run
            .resume()
            .record_with(&mut journal)
            .observe(OnceStored { observer: publish, is_stored })
            .cancel_with(cancellation.clone())
            .suspend_with(self.suspension.clone())
            .inbox_with(|| {
                next_message(&mut messages, || {
                    let cancelled = local.queue().cancelled();
                    local.inbox.read_joining(&cancellation, &cancelled, is_taken)
                })
            })
            .clock(RunClock::new(Arc::clone(&core.clock)))
            .decide_all(decisions);
        let run = match &meter {
            Some(meter) => run.meter_with(Arc::clone(meter) as Arc<dyn RequestMeter>),
            None => run,
        };
        let run = core.redacting(self.recording_upgrades(run));
        let observers = core.observers.of(&local.key);
        let run = match observers.is_empty() {
            true => run,
            false => run.observe(OnceStored { observer: observers, is_stored }),
        };
        let ended = tokio::select! {
            biased;
            ended = run => ended.map_err(|error| self.run_failed(error)),
            lost = guard.lost() => Err(self.failed(lost)),
        };
        let ended = ended.map(|outcome| Arc::new(outcome.with_missing_temp(missing_temp)));
        if let Some(meter) = &meter {
            meter.finish().await;
        }
        self.has_stored = journal.place > place;
        let RunJournal { mut version, seen, invocation, mut written, place: stored, ahead, .. } = journal;
        if let Some(budget) = ended.as_ref().ok().and_then(|outcome| exhausted_budget(outcome))
            && let Some(stored) = self.record_wait(&invocation, version, budget).await
        {
            version = stored.version;
            written.push(stored);
        }
        self.cache.follow(&local.key, &written);
        self.ticket.current.invocation.set_version(version);
        self.end_joined(&ended, version);
        match ended {
            Ok(outcome) => {
                self.cache.stopped = Some(StoppedRun::new(Arc::clone(&outcome), version, life, seen));
                self.keep_while_it_waits(&outcome);
                if let Some(budget) = exhausted_budget(&outcome) {
                    local.claim.set_due(self.due_again(&invocation, budget).await);
                }
                Ok(outcome)
            }
            Err(error) => {
                // Stops the current run.
                cancellation.cancel();
                // After its end a run cannot fail; only an observer can, and there is nothing to resume.
                let can_fail = stored > 0 && ahead.exit().is_none();
                self.has_failed(&error, invocation, version, can_fail).await;
                Err(error)
            }
        }
    }

    /// A change that is forced once, or always, is recorded at once: it would be refused otherwise the next time. A compatible one is
    /// recorded by what continues the run.
    fn recording_upgrades<'r>(&self, run: RunBuilder<'r>) -> RunBuilder<'r> {
        match self.access.when_changed {
            WhenChanged::Compatible => run.upgrade_when_continued(),
            _ => run,
        }
    }

    /// The time at which a recovery continues a run that waits for a budget. Immediately after a raise between the refusal and
    /// the stored question: a recovery that has looked for runs since the raise has not found this one.
    async fn due_again(&self, invocation: &InvocationId, budget: &ExhaustedBudget) -> Option<Timestamp> {
        let (core, local) = (&self.access.runner, &self.access.local);
        let runner = Runner(Arc::clone(core));
        match runner.has_higher_limit(budget, &local.key, invocation).await {
            true => Some(core.clock.now()),
            false => due_again(budget, core.clock.now()),
        }
    }

    /// Settles the requests that a dead worker of the session has left, under the claim.
    async fn settle_abandoned(&mut self, meter: &RunMeter) -> Result<(), RunnerError> {
        if self.access.local.claim.token().is_none() {
            self.claim(TakeOver::Never).await?;
        }
        // Without the claim another worker may have requests under way.
        if self.access.local.claim.token().is_some() {
            meter.settle_abandoned().await.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// The journal for the next events of a run, of which `place` are stored.
    pub(super) fn journal(
        &self,
        invocation: InvocationId,
        (program, run): (Arc<AgentProgram>, &Run),
        (place, seen): (u64, Option<SeenVersions>),
        begins_with: Vec<InboxMessage>,
    ) -> RunJournal {
        let core = &self.access.runner;
        let version = self.cache.history.as_ref().map_or(0, |history| history.version);
        // NOTE: several workers may resume one invocation. If they created equal events, the store would treat the
        // second as a retry of the first, and both would start the call.
        let attempt = (place > 0).then(|| core.ids.next());
        RunJournal {
            shared_version: Arc::new(AtomicU64::new(version)),
            runner: Arc::clone(core),
            program,
            local: Arc::clone(&self.access.local),
            invocation,
            version,
            seen,
            place,
            written: Vec::new(),
            attempt,
            ahead: run.clone(),
            meter: None,
            begins_with,
            decision_reply: self.decision_reply.clone(),
            acceptance: self.acceptance.clone(),
        }
    }

    /// Ends the invocations whose messages the run has taken, with its outcome.
    pub(super) fn end_joined(&self, ended: &InvocationResult, version: u64) {
        let is_cancelled = ended.as_ref().is_ok_and(|outcome| *outcome.exit() == Exit::Cancelled);
        for joined in self.access.local.queue().run_has_ended(is_cancelled) {
            joined.current.invocation.set_version(version);
            joined.end(Some(ended.clone()));
        }
    }

    /// A waiting run is kept in memory for its `temp:` values, and for originals of replaced content, which exist only here.
    pub(super) fn keep_while_it_waits(&mut self, outcome: &Outcome) {
        let local = &self.access.local;
        let has_temp = || outcome.state().iter().any(|(key, _)| key.starts_with("temp:"));
        let is_kept = outcome.exit().is_resumable() && (has_temp() || outcome.run().has_originals());
        if is_kept {
            self.access.runner.sessions().pause(local);
        } else if self.cache.is_kept {
            self.access.runner.sessions().unpause(local);
        }
        self.cache.is_kept = is_kept;
    }

    pub(super) async fn has_failed(
        &mut self,
        error: &RunnerError,
        invocation: InvocationId,
        version: u64,
        can_fail: bool,
    ) {
        self.cache.stopped = None;
        if let RunnerErrorKind::ClaimLost { .. } = error.kind {
            self.access.runner.backlog.lost_claim();
        }
        match &error.kind {
            // Nothing of it is stored, so there is no run; or it has ended.
            RunnerErrorKind::Run { .. } if !can_fail => {}
            RunnerErrorKind::Run { source } => {
                let waits = waits_for_person(source.fault());
                self.record_failure(invocation, version, &source.to_string(), waits).await;
            }
            RunnerErrorKind::ClaimLost { .. }
            | RunnerErrorKind::Claimed { .. }
            | RunnerErrorKind::Conflict { .. } => {
                self.cache.history = None;
                self.access.local.claim.take();
                self.access.local.inbox.clear();
            }
            _ => {}
        }
    }

    /// Stores the question of a run that waits for a budget, unless it is the one that is stored already.
    async fn record_wait(
        &self,
        invocation: &InvocationId,
        version: u64,
        budget: &ExhaustedBudget,
    ) -> Option<CommittedEvent> {
        let (core, local) = (&self.access.runner, &self.access.local);
        let last = self.cache.history.as_ref().and_then(|history| history.last.as_ref());
        let known = last.filter(|last| last.invocation == *invocation && !self.has_stored);
        if known.and_then(|last| last.budget.as_ref()).is_some_and(|known| is_same_question(known, budget)) {
            return None;
        }
        let event =
            waiting_event(invocation, version, core.program.agent.name(), budget, core.clock.now()).ok()?;
        let request = AppendEvent::new(local.key.clone(), version, event, &core.program.schema)
            .with_claim(core.claims.for_append(&local.claim, false));
        // The run waits in any case; a question that could not be stored is asked again by the next worker.
        let receipt = core.store.append(request.clone()).await.ok()?;
        local.claim.set(receipt.claim.as_ref());
        local.inbox.note_newest(receipt.inbox);
        Some(CommittedEvent::new(receipt.version, request.event))
    }

    /// Stores a failure of a run with its cause, so that each process knows the number of failures.
    pub(super) async fn record_failure(
        &mut self,
        invocation: InvocationId,
        version: u64,
        cause: &str,
        is_left_to_person: bool,
    ) {
        let (core, local) = (&self.access.runner, &self.access.local);
        let last = self.cache.history.as_ref().and_then(|history| history.last.as_ref());
        let before = last.filter(|last| last.invocation == invocation && !self.has_stored);
        let before = before.and_then(|last| last.failed.as_ref());
        let cause = core.redacted_text(cause.to_owned());
        let failed = RunFailure::repeated(before, &cause, is_left_to_person);
        let event = failed_event(&invocation, version, core.program.agent.name(), &failed, core.clock.now());
        self.failed = Some(failed);
        let Ok(event) = event else { return };
        let request = AppendEvent::new(local.key.clone(), version, event, &core.program.schema)
            .with_claim(core.claims.for_append(&local.claim, false));
        // A failure that could not be stored is not counted by others; the run's commits are stored.
        if let Ok(receipt) = core.store.append(request).await {
            local.claim.set(receipt.claim.as_ref());
            local.inbox.note_newest(receipt.inbox);
        }
    }

    /// Converts the error of a run; a rejected commit becomes the error of the store.
    pub(super) fn run_failed(&self, error: RunError) -> RunnerError {
        let key = &self.access.local.key;
        match error.fault() {
            RunFault::Commit { .. } => match error.into_fault() {
                RunFault::Commit { unrecorded, source } => {
                    let what = "append an event";
                    let source =
                        source.downcast::<EventRefused>().map_or_else(|source| source, |it| it.into_source());
                    let source = source.downcast::<SessionError>();
                    let source =
                        source.map_or_else(|source| SessionError::Store { what, source }, |source| *source);
                    RunnerError::not_stored(key, source, unrecorded)
                }
                fault => unreachable!("unexpected fault {fault}"),
            },
            RunFault::Decision(refused) => RunnerError::decision(key, refused.clone()),
            _ => {
                let source = Arc::new(error.with_recovered(self.ticket.current.invocation.recovered()));
                RunnerError::new(key, RunnerErrorKind::Run { source })
            }
        }
    }

    /// Whether the current run comes before the one of this invocation.
    pub(super) fn is_earlier(&self) -> bool {
        self.goal != InvocationGoal::Nothing
    }

    /// Whether the current run has taken the message of this invocation, or is to take it; otherwise it comes before.
    pub(super) fn is_own_run(&self, run: &InvocationId) -> bool {
        let id = self.ticket.current.invocation.id();
        let has_taken = || self.cache.history.as_ref().is_some_and(|history| history.taker(id).is_some());
        !self.is_earlier() || run == id || has_taken()
    }
}

/// Whether the answer to both is the same. Others change the spent and reserved amounts while the run waits, which only
/// matters if the run now waits for a person, or no longer does.
fn is_same_question(known: &ExhaustedBudget, budget: &ExhaustedBudget) -> bool {
    let of = |it: &ExhaustedBudget| (it.limit, it.until, it.pauses, it.waits_for_reservations());
    known.budget == budget.budget && known.scope == budget.scope && of(known) == of(budget)
}

/// The next message that was read; without one, more are read.
fn next_message(
    messages: &mut std::vec::IntoIter<Message>,
    mut read: impl FnMut() -> Option<Vec<Message>>,
) -> Option<Message> {
    loop {
        match messages.next() {
            Some(message) => return Some(message),
            None => *messages = read()?.into_iter(),
        }
    }
}
