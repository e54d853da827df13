//! The work of one invocation: read changes, complete an interrupted run, run, and take messages that arrived
//! meanwhile. [`next`] decides the next action.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{
    Answer, DecisionError, Decisions, EventRefused, Exit, FeedError, Input, Outcome, Pause, Run, RunError,
    RunFault,
};
use stepfold_session_scopes::{
    AppendEvent, InvocationId, Seen as SeenVersions, Session, SessionError, SessionKey, SessionStore,
    TakeOver, Timestamp,
};
use stepfold_state_core::chat::Message;
use stepfold_tools::CancellationToken;
use tokio::sync::OwnedMutexGuard;

use crate::accept::AcceptanceReply;
use crate::attend::ClaimGuard;
use crate::claim::{ClaimHolder, ClaimWait, WhenClaimed};
use crate::complete::{RunClock, check_in_time, expired};
use crate::decided::DecisionReply;
use crate::error::RunnerError;
use crate::history::{RunFailure, RunSelector, SessionHistory, run_prefix};
use crate::hub::HubPublisher;
use crate::inbox::{InboxMessage, MessageKind};
use crate::invocation::Ended;
use crate::journal::RunJournal;
use crate::kept::CachedValues;
use crate::next::{InvocationGoal, LastRunStatus, NextAction, SessionStatus, next};
use crate::observers::OnceStored;
use crate::record::{failed_event, temp_keys_of};
use crate::remedy::waits_for_person;
use crate::runner::Busy;
use crate::slot::{InvocationTicket, SessionCache, StoppedRun};
use crate::taken::StoredOutcome;
use crate::turn::{ReadSession, SessionAccess, WorkerCommand};

/// A working invocation.
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the invocation")]
pub(crate) struct InvocationDriver<'a> {
    access: SessionAccess,
    cache: OwnedMutexGuard<SessionCache>,
    ticket: &'a InvocationTicket,
    goal: InvocationGoal,
    /// A message that is not stored yet.
    input: Option<Input>,
    /// The handling of that message if another worker holds the session.
    busy: Busy,
    acceptance: Option<AcceptanceReply>,
    /// Whether the invocation is about a message.
    has_message: bool,
    decisions: Decisions,
    pub(crate) decision_reply: DecisionReply,
    with_changed_agent: bool,
    /// No caller has asked for it.
    is_recovery: bool,
    /// Asks for a pause between two steps.
    suspension: CancellationToken,
    when_claimed: WhenClaimed,
    /// The time waited for another worker.
    waited: ClaimWait,
    /// Whether the message did not wait at the last look, and no run was seen to have taken it. It may be taken between the
    /// read of the session and that of the inbox, so it must be missing twice in a row.
    is_missed: bool,
    /// Whether the last run has stored an event.
    has_stored: bool,
    /// The failure of the last run, if any.
    failed: Option<RunFailure>,
}

/// The session as the worker found it.
struct FoundSession {
    read: ReadSession,
    stopped: Option<Box<UnfinishedRun>>,
}

/// A run that has not ended, its invocation, and the number of its stored events.
pub(crate) struct UnfinishedRun {
    pub(crate) run: Run,
    pub(crate) invocation: InvocationId,
    pub(crate) place: u64,
    /// The versions of the run's values, if known.
    seen: Option<SeenVersions>,
    /// The `temp:` keys that it has written and whose values are lost.
    missing_temp: BTreeSet<String>,
}

impl<'a> InvocationDriver<'a> {
    pub(crate) fn new(
        access: SessionAccess,
        cache: OwnedMutexGuard<SessionCache>,
        ticket: &'a InvocationTicket,
        command: WorkerCommand,
    ) -> Self {
        let when_claimed = access.runner.claims.when_claimed;
        let mut driver = InvocationDriver {
            access,
            cache,
            ticket,
            goal: InvocationGoal::Nothing,
            input: None,
            busy: Busy::default(),
            acceptance: None,
            decisions: Decisions::new(),
            decision_reply: DecisionReply::default(),
            with_changed_agent: false,
            is_recovery: false,
            waited: ClaimWait::default(),
            has_message: matches!(
                command,
                WorkerCommand::Begin { .. } | WorkerCommand::TakeInbox | WorkerCommand::RunAs(_)
            ),
            suspension: CancellationToken::new(),
            when_claimed,
            is_missed: false,
            has_stored: false,
            failed: None,
        };
        driver.goal = match command {
            WorkerCommand::Begin { input, busy, acceptance } => {
                (driver.input, driver.busy, driver.acceptance) = (Some(*input), busy, Some(acceptance));
                InvocationGoal::Begin
            }
            WorkerCommand::TakeInbox => InvocationGoal::TakeInbox,
            WorkerCommand::TakeLeft => InvocationGoal::TakeLeft,
            WorkerCommand::RunAs(options) => {
                (driver.decisions, driver.with_changed_agent) =
                    (options.decisions, options.with_changed_agent);
                driver.suspension = options.suspension;
                InvocationGoal::TakeInbox
            }
            WorkerCommand::Resume { decisions, with_changed_agent, decision_reply } => {
                (driver.decisions, driver.with_changed_agent) = (decisions, with_changed_agent);
                driver.decision_reply = decision_reply;
                InvocationGoal::Resume
            }
            WorkerCommand::Recover => {
                (driver.when_claimed, driver.is_recovery) = (WhenClaimed::Refuse, true);
                InvocationGoal::Resume
            }
            WorkerCommand::Abandon => InvocationGoal::Abandon,
        };
        driver
    }

    /// Runs the invocation; the result includes the outcomes of recovered runs.
    pub(crate) async fn run_to_end(&mut self) -> Ended {
        // On the heap: it holds all the state of a run.
        let ended = Box::pin(self.run_all()).await;
        let version = self.ticket.current.invocation.version();
        self.access.runner.changes.notify(&self.access.local.key, version, false);
        let recovered = self.ticket.current.invocation.recovered();
        match ended {
            Ok(outcome) if !recovered.is_empty() => {
                Ok(Arc::new(Outcome::clone(&outcome).with_recovered(recovered)))
            }
            ended => ended,
        }
    }

    /// The control flow of an invocation.
    async fn run_all(&mut self) -> Ended {
        loop {
            let read = self.catch_up().await?;
            let holder = self.holder(&read.1);
            if let Some(answer) = self.recorded_answer(&read, holder).await? {
                return Ok(answer);
            }
            if self.is_missed {
                continue;
            }
            let inspected = self.inspect(&read, holder).await;
            if let Err(RunnerError::AgentChanged { .. }) = inspected {
                // What comes is stored first. Who may continue the run is another question.
                self.store_arrived_answers(&read).await?;
            }
            let (stopped, seen) = inspected?;
            let found = FoundSession { read, stopped };
            let outcome = self.step(found, seen).await?;
            if let Some(outcome) = outcome
                && (self.goal == InvocationGoal::Nothing || is_suspended(&outcome))
            {
                return Ok(outcome);
            }
        }
    }

    /// Takes the next step; the outcome of a run, or of the invocation when nothing more is wanted.
    async fn step(
        &mut self,
        found: FoundSession,
        seen: SessionStatus,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let goal = std::mem::replace(&mut self.goal, InvocationGoal::Nothing);
        let holder = seen.holder;
        let is_about = self.goal_for(goal, &seen, &found);
        let FoundSession { read, stopped } = found;
        match (next(is_about, seen, self.when_claimed), stopped) {
            (NextAction::Begin, _) => self.begin(read).await,
            (NextAction::Store, _) => {
                self.store(&read, holder).await?;
                self.goal = InvocationGoal::TakeInbox;
                Ok(None)
            }
            // Decisions must not apply to requests of the next run.
            (NextAction::Take | NextAction::NothingToResume, _)
                if goal == InvocationGoal::Resume && !self.decisions.is_empty() =>
            {
                let answer = self.answer_decided(&read).await?;
                answer.map(Some).ok_or_else(|| self.nothing_to_resume())
            }
            // On the heap: it is more than half of all that is kept here, and most messages are not in the inbox.
            (NextAction::Take, _) => Box::pin(self.take(read, goal)).await,
            (NextAction::Claim { take_over }, _) => {
                self.goal = goal;
                self.claim(take_over).await?;
                Ok(None)
            }
            (NextAction::Wait, _) => {
                self.goal = goal;
                self.wait(&read.1).await?;
                Ok(None)
            }
            (NextAction::Recover, Some(stopped)) => {
                self.goal = goal;
                // So that what is known is followed in place.
                drop(read);
                self.recover(stopped).await
            }
            (NextAction::Resume | NextAction::Abandon, Some(stopped)) => {
                match self.validate_decisions(&stopped.run).await? {
                    // A repeat is about the run that it was decided in.
                    Some(version) if !read.0.last_is(RunSelector::Version(version)) => {
                        self.recorded(&read, RunSelector::Version(version)).await.map(Some)
                    }
                    _ => {
                        drop(read);
                        self.drive(stopped, Vec::new(), goal == InvocationGoal::Abandon).await.map(Some)
                    }
                }
            }
            (NextAction::Repair, _) => {
                self.ticket.current.invocation.cancel();
                let id = self.new_invocation()?;
                self.run_turn(read, Input::new(), &id, Vec::new()).await.map(Some)
            }
            (NextAction::LookAgain, _) => {
                self.goal = goal;
                Ok(None)
            }
            (NextAction::Refuse(_), _) if self.is_taken(&read) => self
                .recorded(&read, RunSelector::Message(self.ticket.current.invocation.id()))
                .await
                .map(Some),
            (NextAction::Refuse(pending), _) => Err(self.pending(pending, goal)),
            (NextAction::RefuseClaimed, _) => Err(self.claimed(&read.1, goal)),
            (NextAction::NothingToResume, _) => Err(self.nothing_to_resume()),
            // No caller waits for this outcome.
            (NextAction::End, _) => self.recorded_last(&read).map(Some),
            (next, None) => unreachable!("{next:?} needs a run"),
        }
    }

    /// The outcome, if the record has it: a request that was answered is answered again, whatever the session does now.
    async fn recorded_answer(
        &mut self,
        read: &ReadSession,
        holder: ClaimHolder,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let id = self.ticket.current.invocation.id().clone();
        let was_missed = std::mem::replace(&mut self.is_missed, false);
        match (self.goal, read.0.taker(&id)) {
            (InvocationGoal::TakeInbox, Some((_, true))) => {
                self.access.check_decided(&self.decisions).await?;
                self.recorded(read, RunSelector::Message(&id)).await.map(Some)
            }
            (InvocationGoal::TakeInbox, None) if self.own_entry().is_none() && was_missed => {
                Err(self.withdrawn())
            }
            (InvocationGoal::TakeInbox, None) if self.own_entry().is_none() => {
                self.is_missed = true;
                Ok(None)
            }
            (InvocationGoal::Resume, _) if holder == ClaimHolder::Other && !self.decisions.is_empty() => {
                self.answer_decided(read).await
            }
            _ => Ok(None),
        }
    }

    /// Whether a run has taken the message.
    fn is_taken(&self, (history, _): &ReadSession) -> bool {
        self.has_message && history.taker(self.ticket.current.invocation.id()).is_some()
    }

    /// What is wanted of the last run: to continue it with decisions, if it waits and took the message.
    fn goal_for(&self, goal: InvocationGoal, seen: &SessionStatus, found: &FoundSession) -> InvocationGoal {
        let id = self.ticket.current.invocation.id();
        let is_own = || found.read.0.last_is(RunSelector::Message(id));
        match seen.last {
            LastRunStatus::Waits(_)
                if goal == InvocationGoal::TakeInbox && !self.decisions.is_empty() && is_own() =>
            {
                InvocationGoal::Resume
            }
            _ => goal,
        }
    }

    /// The status of the session.
    async fn inspect(
        &mut self,
        read: &ReadSession,
        holder: ClaimHolder,
    ) -> Result<(Option<Box<UnfinishedRun>>, SessionStatus), RunnerError> {
        self.access.local.queue().set_elsewhere(holder == ClaimHolder::Other);
        let (stopped, last) = match holder {
            // Only this worker checks what another worker does.
            ClaimHolder::Other | ClaimHolder::Dead(_) => (None, LastRunStatus::Ended),
            ClaimHolder::Nobody | ClaimHolder::Us => self.inspect_last_run(read)?,
        };
        if last == LastRunStatus::Ended && matches!(holder, ClaimHolder::Nobody | ClaimHolder::Us) {
            // They came too late.
            self.access.apply_cancellations(None).await;
        }
        Ok((stopped, SessionStatus { last, first: self.first(), holder }))
    }

    fn inspect_last_run(
        &self,
        read: &ReadSession,
    ) -> Result<(Option<Box<UnfinishedRun>>, LastRunStatus), RunnerError> {
        let with_changed_agent = self.with_changed_agent || self.goal == InvocationGoal::Abandon;
        match self.access.last_run(&self.cache, read, with_changed_agent) {
            // This agent cannot read the record. A run that begins and is immediately cancelled follows, and
            // repairs what it left open.
            Err(RunnerError::Recover { .. }) if self.goal == InvocationGoal::Abandon => {
                Ok((None, LastRunStatus::Unreadable))
            }
            Err(error) => Err(error),
            Ok(None) => {
                self.access.local.claim.set_due(None);
                Ok((None, LastRunStatus::Ended))
            }
            Ok(Some(stopped)) => {
                if let Some(error) = self.left_to_person(&read.0) {
                    return Err(error);
                }
                let pending: Vec<String> =
                    stopped.run.pending().into_iter().map(|request| request.id).collect();
                let due: Option<Timestamp> = stopped.run.next_deadline().map(Into::into);
                self.access.local.claim.set_due(due);
                // A deadline that has passed is an outcome: the run continues with it.
                let is_due = due.is_some_and(|due| due <= self.access.runner.clock.now());
                let last = if pending.is_empty() || is_due {
                    LastRunStatus::Interrupted
                } else {
                    LastRunStatus::Waits(pending)
                };
                Ok((Some(stopped), last))
            }
        }
    }

    /// Why the last run is not continued without a caller, if it is left to a person.
    fn left_to_person(&self, history: &SessionHistory) -> Option<RunnerError> {
        let failed = history.last.as_ref()?.failed.as_ref().filter(|_| self.is_recovery)?;
        failed.left_to_person(&self.access.local.key)
    }

    /// Whether the current run comes before the one of this invocation.
    fn is_earlier(&self) -> bool {
        self.goal != InvocationGoal::Nothing
    }

    /// Whether the current run has taken the message of this invocation, or is to take it; otherwise it comes before.
    fn is_own_run(&self, run: &InvocationId) -> bool {
        let id = self.ticket.current.invocation.id();
        let has_taken = || self.cache.history.as_ref().is_some_and(|history| history.taker(id).is_some());
        !self.is_earlier() || run == id || has_taken()
    }

    fn first(&self) -> Option<MessageKind> {
        self.access.local.inbox.first_kind()
    }

    /// The holder of the claim, as the session was read.
    fn holder(&self, session: &Session) -> ClaimHolder {
        let held = &self.access.local.claim;
        let holder = self.access.runner.claims.holder(session.claim.as_ref(), held);
        if holder != ClaimHolder::Us {
            held.take();
        }
        // Without claims in the store, no other worker can hold one.
        if held.is_unsupported() { ClaimHolder::Us } else { holder }
    }

    async fn claim(&mut self, take_over: TakeOver) -> Result<(), RunnerError> {
        match self.access.claim(take_over).await {
            // The next check shows who was faster.
            Ok(()) | Err(SessionError::Claimed { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Waits a while for the worker that holds the claim.
    async fn wait(&mut self, session: &Session) -> Result<(), RunnerError> {
        let runner = Arc::clone(&self.access.runner);
        let cancellation = self.ticket.current.cancellation.clone();
        tokio::select! {
            biased;
            () = runner.shutdown.closed() => Err(self.shut_down()),
            () = cancellation.cancelled() => Err(self.end_of_wait(session).await),
            () = self.suspension.cancelled() => Err(self.claimed(session, self.goal)),
            // A message came, or was withdrawn.
            () = self.access.local.inbox_changed.notified() => Ok(()),
            has_waited = self.waited.pause(&runner) => match has_waited {
                true => Ok(()),
                false => Err(self.claimed(session, self.goal)),
            },
        }
    }

    /// The error after a cancellation while another worker is running: the message is withdrawn, unless that
    /// worker has taken it.
    async fn end_of_wait(&self, session: &Session) -> RunnerError {
        let dropped = match self.own_entry() {
            Some(own) => self.access.dequeue(&own).await,
            None => Ok(false),
        };
        match dropped {
            Ok(true) => self.withdrawn(),
            Ok(false) => self.claimed(session, self.goal),
            Err(error) => self.failed(error),
        }
    }

    /// The message of this invocation, if it is in the inbox.
    fn own_entry(&self) -> Option<InboxMessage> {
        self.access.local.inbox.entry(self.ticket.current.invocation.id())
    }

    fn withdrawn(&self) -> RunnerError {
        RunnerError::Withdrawn { key: Box::new(self.access.local.key.clone()) }
    }

    /// The error after a shutdown.
    pub(crate) fn shut_down(&self) -> RunnerError {
        let is_stored = self.acceptance.as_ref().is_none_or(AcceptanceReply::is_sent);
        let key = Box::new(self.access.local.key.clone());
        self.ticket.current.invocation.cancel();
        if let Some(run) = self.access.local.queue().run() {
            run.cancel();
        }
        RunnerError::ShutDown { key, is_accepted: self.has_message && is_stored }
    }

    fn new_invocation(&self) -> Result<InvocationId, RunnerError> {
        InvocationId::new(self.access.runner.ids.next()).map_err(|error| self.failed(error))
    }

    /// Tells the sender of the message, if not done before.
    pub(crate) fn accept(&mut self, accepted: Result<(), RunnerError>) {
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.send(accepted);
        }
    }

    /// Puts the message into the inbox, since something comes before it.
    async fn store(&mut self, (history, _): &ReadSession, holder: ClaimHolder) -> Result<(), RunnerError> {
        let input = self.input.take().unwrap_or_default();
        let id = self.ticket.current.invocation.id().clone();
        let kind = if holder == ClaimHolder::Other {
            MessageKind::of(&input, self.busy)
        } else {
            MessageKind::Message
        };
        self.access.enqueue(kind, id, input).await?;
        let at_work = history.last.as_ref().filter(|_| holder == ClaimHolder::Other && !history.has_ended());
        if let Some(run) = at_work.filter(|_| self.busy == Busy::Interrupt) {
            self.access.interrupt_elsewhere(&run.invocation).await;
        }
        self.accept(Ok(()));
        Ok(())
    }

    /// Runs a turn that begins with the message; `None` if another worker was faster.
    async fn begin(&mut self, read: ReadSession) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let input = self.input.clone().unwrap_or_default();
        let id = self.ticket.current.invocation.id().clone();
        match self.run_turn(read, input, &id, Vec::new()).await {
            Err(error) if self.is_overtaken(&error, &[]).await => {
                self.goal = InvocationGoal::Begin;
                Ok(None)
            }
            ended => {
                self.input = None;
                ended.map(Some)
            }
        }
    }

    /// Runs a turn that begins with the first entry of the inbox; `None` if another worker was faster.
    async fn take(
        &mut self,
        read: ReadSession,
        goal: InvocationGoal,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let cancelled = self.access.local.queue().cancelled();
        let entries = self.access.local.inbox.next_batch(&cancelled);
        let is_own = entries.iter().any(|entry| entry.id == *self.ticket.current.invocation.id());
        self.goal = if goal == InvocationGoal::TakeInbox && !is_own { goal } else { InvocationGoal::Nothing };
        self.has_stored = false;
        match self.take_entries(read, entries.clone()).await {
            Err(error) if self.is_overtaken(&error, &entries).await => {
                self.goal = goal;
                Ok(None)
            }
            Err(error) if !self.has_stored && cannot_begin(&error) => {
                Err(self.cannot_begin(error, &entries, goal).await)
            }
            Err(RunnerError::Run { key, source }) if self.is_earlier() => {
                Err(self.earlier_failed(key, source))
            }
            ended => ended.map(Some),
        }
    }

    /// A message that cannot begin must not block later ones. Its own sender gets the error, and it is
    /// removed from the inbox; other callers are told which message it is.
    async fn cannot_begin(
        &self,
        error: RunnerError,
        entries: &[InboxMessage],
        goal: InvocationGoal,
    ) -> RunnerError {
        let own = entries.iter().find(|entry| entry.id == *self.ticket.current.invocation.id());
        match (own, entries.first()) {
            (Some(own), _) => {
                // The next caller meets one that could not be removed, and gets the error.
                let _ = self.access.dequeue(own).await;
                error
            }
            (None, Some(first)) => RunnerError::EarlierCannotBegin {
                key: Box::new(self.access.local.key.clone()),
                earlier: first.id.clone(),
                is_accepted: goal.is_in_inbox(),
                source: Arc::new(error),
            },
            (None, None) => error,
        }
    }

    /// Whether a turn did not begin because another worker was faster, with these entries of the inbox or
    /// otherwise. Then the session is checked again.
    async fn is_overtaken(&mut self, error: &RunnerError, entries: &[InboxMessage]) -> bool {
        match error {
            _ if self.has_stored => false,
            RunnerError::Claimed { .. } => true,
            // It is still running, or has ended.
            RunnerError::Conflict { .. } => match self.access.claim(TakeOver::Never).await {
                Ok(()) => self.access.local.claim.token().is_some(),
                Err(error) => matches!(error, SessionError::Claimed { .. }),
            },
            // The invocation of this message has begun already.
            error if is_event_reused(error) => {
                let still_waits = |entry: &InboxMessage| self.access.local.inbox.entry(&entry.id).is_some();
                self.access.read_inbox().await.is_ok() && !entries.iter().any(still_waits)
            }
            _ => false,
        }
    }

    /// Runs a turn that begins with these entries of the inbox.
    async fn take_entries(&mut self, read: ReadSession, entries: Vec<InboxMessage>) -> Ended {
        let id = match entries.as_slice() {
            [entry] if entry.kind == MessageKind::Message => entry.id.clone(),
            _ => self.new_invocation()?,
        };
        let entries = self.access.with_inputs(entries).await.map_err(|error| {
            // One of them is not there any more.
            self.access.local.inbox.clear();
            self.failed(error)
        })?;
        let input = joined(&entries);
        self.run_turn(read, input, &id, entries).await
    }

    /// Runs a turn that begins with this input, which was in these entries of the inbox.
    async fn run_turn(
        &mut self,
        read: ReadSession,
        input: Input,
        id: &InvocationId,
        entries: Vec<InboxMessage>,
    ) -> Ended {
        let (history, session) = read;
        let state = history.state(&session, &self.access.runner.schema)?;
        // The run that left the conversation in its current state, if it was one of this process.
        let from_run = self.cache.stopped.as_ref().map(StoppedRun::run);
        let input = input.on_state(state, from_run).with_summary(history.summary.clone());
        let key = &self.access.local.key;
        let prefix = run_prefix(key, Some(&session.life), id);
        let run = Run::new(&self.access.runner.agent, input, prefix)
            .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
        let seen = history.values.as_ref().map(CachedValues::seen);
        let (invocation, missing_temp) = (id.clone(), BTreeSet::new());
        let begins = Box::new(UnfinishedRun { run, invocation, place: 0, seen, missing_temp });
        drop((history, session));
        self.drive(begins, entries, false).await
    }

    /// Completes an interrupted run, or abandons it after too many failures; `None` if the session has to be
    /// checked again.
    async fn recover(&mut self, stopped: Box<UnfinishedRun>) -> Result<Option<Arc<Outcome>>, RunnerError> {
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
            Err(RunnerError::Run { .. }) if !abandons && self.has_failed_enough(&invocation) => Ok(None),
            Err(RunnerError::Run { key, source }) if !is_own => Err(self.earlier_failed(key, source)),
            ended => {
                let outcome = ended?;
                if is_suspended(&outcome) {
                    return Ok(Some(outcome));
                }
                self.ticket.current.invocation.add_recovered(Arc::clone(&outcome));
                Ok(Some(outcome))
            }
        }
    }

    fn has_failed_enough(&self, invocation: &InvocationId) -> bool {
        let last = self.cache.history.as_ref().and_then(|history| history.last.as_ref());
        let recorded =
            last.filter(|last| last.invocation == *invocation).and_then(|last| last.failed.as_ref());
        let mut failed = recorded.into_iter().chain(&self.failed);
        self.access.runner.abandon_after.is_some_and(|limit| failed.any(|failed| failed.times >= limit))
    }

    /// The error for a failed run before the message.
    fn earlier_failed(&self, key: Box<SessionKey>, source: Arc<RunError>) -> RunnerError {
        let message = self.ticket.current.invocation.id().clone();
        let RunFailure { cause, times, .. } =
            self.failed.clone().unwrap_or_else(|| RunFailure::repeated(None, &source.to_string(), false));
        RunnerError::EarlierRunFailed { key, message, times, cause, source }
    }

    fn nothing_to_resume(&self) -> RunnerError {
        RunnerError::NothingToResume { key: Box::new(self.access.local.key.clone()) }
    }

    /// Validates the decisions before the run continues. Those that it already has are not applied again; then the version
    /// with them is returned.
    async fn validate_decisions(&mut self, run: &Run) -> Result<Option<u64>, RunnerError> {
        if self.decisions.is_empty() {
            return Ok(None);
        }
        let checked = run.check_decisions(&self.decisions);
        let needs_record = match &checked {
            // A key may have been used in any run of the session.
            Ok(()) => self.decisions.idempotency_key.is_some(),
            Err(DecisionError::InvalidArguments { .. } | DecisionError::Duplicate { .. }) => false,
            // The record has the conflicting decision and its time.
            Err(_) => true,
        };
        let met = if needs_record { self.access.find_decisions(&self.decisions).await? } else { None };
        let is_new = met.is_none() && !run.has_decided(&self.decisions);
        if is_new {
            check_in_time(run, &self.decisions, self.access.runner.clock.now())
                .map_err(|error| RunnerError::decision(&self.access.local.key, error))?;
        }
        let receipt = met.transpose()?;
        match &receipt {
            Some(receipt) => self.decision_reply.send(Ok(receipt.clone())),
            None => checked.map_err(|error| RunnerError::decision(&self.access.local.key, error))?,
        }
        if !is_new {
            self.decisions = Decisions::new();
        }
        Ok(receipt.map(|receipt| receipt.version))
    }

    /// The outcome of the run that decisions are about which are stored already. The receipt is told, whatever that run does
    /// now; `None` if they are not stored, or their run has not ended.
    async fn answer_decided(&mut self, read: &ReadSession) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let Some(met) = self.access.find_decisions(&self.decisions).await? else { return Ok(None) };
        let receipt = met?;
        self.decision_reply.send(Ok(receipt.clone()));
        let recorded = self.access.recorded(read, RunSelector::Version(receipt.version)).await?;
        Ok(recorded
            .filter(|recorded| !recorded.outcome.exit().is_resumable())
            .map(|recorded| self.answer(recorded)))
    }

    /// Stores what has come for a run that this agent may not continue: decisions, outcomes, or that a deadline has passed.
    async fn store_arrived_answers(&mut self, read: &ReadSession) -> Result<(), RunnerError> {
        if self.goal != InvocationGoal::Resume {
            return Ok(());
        }
        // What this agent cannot read at all waits for one that can.
        let Ok(Some(stopped)) = self.access.last_run(&self.cache, read, true) else { return Ok(()) };
        self.validate_decisions(&stopped.run).await?;
        let decisions = self.decisions_about(&stopped.run);
        if decisions.is_empty() {
            return Ok(());
        }
        let UnfinishedRun { run, invocation, place, seen, .. } = *stopped;
        let event = match run.feed(Answer::Decisions(decisions), run.elapsed()) {
            Ok(event) => event,
            Err(FeedError::Decision(refused)) => {
                return Err(RunnerError::decision(&self.access.local.key, refused));
            }
            // Only the driver of an agent that may continue it can take them.
            Err(_) => return Ok(()),
        };
        let mut journal = self.journal(invocation, &run, (place, seen), Vec::new());
        let stored = journal.append(&event).await;
        self.cache.stopped = None;
        stored.map_err(|error| self.failed(error))
    }

    /// The decisions that were given; without any, those that time has made.
    fn decisions_about(&mut self, run: &Run) -> Decisions {
        match self.decisions.is_empty() {
            true => expired(run, self.access.runner.clock.now()),
            false => std::mem::take(&mut self.decisions),
        }
    }

    /// What stores the next events of a run, of which `place` are stored.
    fn journal(
        &self,
        invocation: InvocationId,
        run: &Run,
        (place, seen): (u64, Option<SeenVersions>),
        begins_with: Vec<InboxMessage>,
    ) -> RunJournal {
        let core = &self.access.runner;
        let version = self.cache.history.as_ref().map_or(0, |history| history.version);
        // Several workers may resume one invocation. If they created equal events, the store would treat the
        // second as a retry of the first, and both would start the call.
        let attempt = (place > 0).then(|| core.ids.next());
        RunJournal {
            shared_version: Arc::new(AtomicU64::new(version)),
            runner: Arc::clone(core),
            local: Arc::clone(&self.access.local),
            invocation,
            version,
            seen,
            place,
            written: Vec::new(),
            attempt,
            ahead: run.clone(),
            begins_with,
            decision_reply: self.decision_reply.clone(),
            acceptance: self.acceptance.clone(),
        }
    }

    fn pending(&self, pending: Vec<String>, goal: InvocationGoal) -> RunnerError {
        let key = Box::new(self.access.local.key.clone());
        let outcome = self.ticket.current.invocation.recovered().pop();
        RunnerError::Pending { key, pending, is_accepted: goal.is_in_inbox(), outcome }
    }

    fn claimed(&self, session: &Session, goal: InvocationGoal) -> RunnerError {
        let key = Box::new(self.access.local.key.clone());
        match session.claim.clone() {
            Some(claim) => {
                let is_accepted = goal.is_in_inbox();
                RunnerError::Claimed { key, owner: claim.owner, expires: claim.expires, is_accepted }
            }
            None => RunnerError::Busy { key, reason: "another worker is running" },
        }
    }

    fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.access.local.key, error)
    }

    /// Reads the changes of the session and of its inbox.
    async fn catch_up(&mut self) -> Result<ReadSession, RunnerError> {
        let inbox = &self.access.local.inbox;
        let mark = inbox.mark();
        let (history, session) = self.access.read_cached(&mut self.cache).await?;
        let mark = inbox.enter_life(&session.life, mark);
        match session.inbox {
            0 => inbox.is_empty_up_to(mark),
            newest => {
                inbox.note_newest(newest);
                // The holder of the claim knows which entries are taken.
                if inbox.is_stale() || self.access.local.claim.token().is_none() {
                    self.access.read_inbox().await.map_err(|error| self.failed(error))?;
                }
            }
        }
        // A key that the store had forgotten: the message was taken long ago, and its run answers it.
        for entry in inbox.found_in_record(|id| history.taker(id).is_some()) {
            self.access.dequeue(&entry).await.map_err(|error| self.failed(error))?;
        }
        Ok((history, session))
    }

    /// The outcome of a run as the record has it: nothing is run.
    async fn recorded(&self, read: &ReadSession, run: RunSelector<'_>) -> Ended {
        let recorded = self.access.recorded(read, run).await?;
        recorded.map(|recorded| self.answer(recorded)).ok_or_else(|| self.withdrawn())
    }

    fn recorded_last(&self, read: &ReadSession) -> Ended {
        let recorded = self.access.recorded_last(read)?;
        recorded.map(|recorded| self.answer(recorded)).ok_or_else(|| self.nothing_to_resume())
    }

    fn answer(&self, recorded: StoredOutcome) -> Arc<Outcome> {
        self.ticket.current.invocation.set_version(recorded.version);
        recorded.outcome
    }

    /// Runs, with every commit stored before anything else happens, as long as the claim is held. On the heap: its future
    /// would otherwise be part of each caller's.
    fn drive(
        &mut self,
        from: Box<UnfinishedRun>,
        entries: Vec<InboxMessage>,
        is_abandoned: bool,
    ) -> BoxFuture<'_, Ended> {
        Box::pin(self.drive_run(from, entries, is_abandoned))
    }

    async fn drive_run(
        &mut self,
        from: Box<UnfinishedRun>,
        entries: Vec<InboxMessage>,
        is_abandoned: bool,
    ) -> Ended {
        let UnfinishedRun { run, invocation, place, seen, missing_temp } = *from;
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
            // It continues, and its next event may be long in coming.
            let version = self.cache.history.as_ref().map_or(0, |history| history.version);
            core.changes.notify(&local.key, version, true);
        }
        // Cancellation requests do not apply to a run that begins only now.
        self.access.apply_cancellations((place > 0).then_some((&invocation, &cancellation))).await;
        let history = self.cache.history.as_ref();
        let life = history.and_then(|history| history.life.clone());
        let taken = history.map(|history| history.taken()).unwrap_or_default();
        let mut journal = self.journal(invocation, &run, (place, seen), entries);
        let shared_version = Arc::clone(&journal.shared_version);
        let decisions = self.decisions_about(&run);
        let mut guard =
            ClaimGuard::start(self.access.clone(), journal.invocation.clone(), cancellation.clone());
        let is_taken = |id: &InvocationId| taken.contains_key(id);
        let mut messages = Vec::new().into_iter();
        let hub = Arc::clone(&self.ticket.hub);
        let publisher_local = Arc::clone(&local);
        let publish = HubPublisher {
            hub,
            local: publisher_local,
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
        self.has_stored = journal.place > place;
        let (version, seen, invocation) = (journal.version, journal.seen, journal.invocation);
        self.cache.follow(&local.key, &journal.written);
        self.ticket.current.invocation.set_version(version);
        self.end_joined(&ended, version);
        match ended {
            Ok(outcome) => {
                self.cache.stopped = Some(StoppedRun::new(Arc::clone(&outcome), version, life, seen));
                self.keep_while_it_waits(&outcome);
                Ok(outcome)
            }
            Err(error) => {
                // Stops the current run.
                cancellation.cancel();
                // After its end a run cannot fail; only an observer can, and there is nothing to resume.
                let can_fail = journal.place > 0 && journal.ahead.exit().is_none();
                self.has_failed(&error, invocation, version, can_fail).await;
                Err(error)
            }
        }
    }

    /// Tells the invocations whose messages the run has taken: its outcome is theirs.
    fn end_joined(&self, ended: &Ended, version: u64) {
        let is_cancelled = ended.as_ref().is_ok_and(|outcome| *outcome.exit() == Exit::Cancelled);
        for joined in self.access.local.queue().run_has_ended(is_cancelled) {
            joined.current.invocation.set_version(version);
            joined.end(Some(ended.clone()));
        }
    }

    /// A waiting run is kept in memory for its `temp:` values, which exist only here.
    fn keep_while_it_waits(&mut self, outcome: &Outcome) {
        let local = &self.access.local;
        let has_temp = || outcome.state().iter().any(|(key, _)| key.starts_with("temp:"));
        let is_kept = outcome.exit().is_resumable() && has_temp();
        if is_kept {
            self.access.runner.sessions().pause(local);
        } else if self.cache.is_kept {
            self.access.runner.sessions().unpause(local);
        }
        self.cache.is_kept = is_kept;
    }

    async fn has_failed(
        &mut self,
        error: &RunnerError,
        invocation: InvocationId,
        version: u64,
        can_fail: bool,
    ) {
        self.cache.stopped = None;
        if let RunnerError::ClaimLost { .. } = error {
            self.access.runner.backlog.lost_claim();
        }
        match error {
            // Nothing of it is stored, so there is no run; or it has ended.
            RunnerError::Run { .. } if !can_fail => {}
            RunnerError::Run { source, .. } => {
                let waits = waits_for_person(source.fault());
                self.record_failure(invocation, version, &source.to_string(), waits).await;
            }
            RunnerError::ClaimLost { .. } | RunnerError::Claimed { .. } | RunnerError::Conflict { .. } => {
                self.cache.history = None;
                self.access.local.claim.take();
                self.access.local.inbox.clear();
            }
            _ => {}
        }
    }

    /// Stores a failure of a run with its cause, so that each process knows the number of failures.
    async fn record_failure(
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
        let failed = RunFailure::repeated(before, cause, is_left_to_person);
        let event = failed_event(&invocation, version, core.agent.name(), &failed, core.clock.now());
        self.failed = Some(failed);
        let Ok(event) = event else { return };
        let request = AppendEvent::new(local.key.clone(), version, event, &core.schema)
            .with_claim(core.claims.for_append(&local.claim, false));
        // A failure that could not be stored is not counted by others; the run's commits are stored.
        if let Ok(receipt) = core.store.append(request).await {
            local.claim.set(receipt.claim.as_ref());
            local.inbox.note_newest(receipt.inbox);
        }
    }

    /// A commit is rejected by the store.
    fn run_failed(&self, error: RunError) -> RunnerError {
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
                RunnerError::Run { key: Box::new(key.clone()), source }
            }
        }
    }
}

impl SessionAccess {
    /// The last run, if it has not ended.
    pub(crate) fn last_run(
        &self,
        cache: &SessionCache,
        (history, session): &ReadSession,
        with_changed_agent: bool,
    ) -> Result<Option<Box<UnfinishedRun>>, RunnerError> {
        let Some(last) = history.last.as_ref().filter(|_| !history.has_ended()) else { return Ok(None) };
        if !with_changed_agent {
            history.check_agent(&self.local.key, &self.runner.agent)?;
        }
        // It stays cached: a refused caller must not cost the next one its `temp:` values.
        let (run, seen, missing_temp) = if let Some(left) = &cache.stopped {
            // Other sessions may have written to shared scopes since.
            let seen =
                left.seen.filter(|seen| history.values.as_ref().map(CachedValues::seen) == Some(*seen));
            (Some(left.run().clone()), seen, BTreeSet::new())
        } else {
            let (agent, key) = (&self.runner.agent, &self.local.key);
            let state = history.state(session, &self.runner.schema)?;
            (history.last_run(agent, state, key)?, None, temp_keys_of(&last.events))
        };
        let run = run.filter(|run| run.exit().is_none());
        let (invocation, place) = (last.invocation.clone(), last.events.len() as u64);
        Ok(run.map(|run| Box::new(UnfinishedRun { run, invocation, place, seen, missing_temp })))
    }
}

/// Whether a run was suspended between two steps.
fn is_suspended(outcome: &Arc<Outcome>) -> bool {
    *outcome.exit() == Exit::Paused(Pause::Suspended)
}

/// The next message that was read, or that is read then.
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

/// The input of a turn with these entries: of one message, or of all that would have joined a run.
fn joined(entries: &[InboxMessage]) -> Input {
    let mut entries = entries.iter().filter_map(|entry| entry.input.clone());
    let first = entries.next().unwrap_or_default();
    let others = entries.flat_map(|input| input.only_messages().unwrap_or_default().to_vec());
    others.fold(first, |input, message| input.with_message((*message).clone()))
}

/// Whether a message cannot begin a run, independent of retries.
fn cannot_begin(error: &RunnerError) -> bool {
    // A message that was sent again after the store had dropped its key.
    matches!(error, RunnerError::Run { .. } | RunnerError::Input { .. }) || is_event_reused(error)
}

fn is_event_reused(error: &RunnerError) -> bool {
    matches!(error, RunnerError::Store { source, .. } if matches!(**source, SessionError::EventReused { .. }))
}
