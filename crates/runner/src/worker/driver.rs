//! Drives one invocation: reads changes, completes an interrupted run, runs, and takes messages that arrived meanwhile.
//!
//! [`next_action`] decides the next action; its file has the table of transitions. The actions are in three more files:
//! `turns` begins turns, `answers` takes answers from the record, `run` drives a run.

use std::sync::Arc;

use stepfold_agent_loop::{Decisions, ExhaustedBudget, Exit, Input, Outcome, Pause, RunError};
use stepfold_session_scopes::{Claim, InvocationId, Session, SessionError, TakeOver, Timestamp};
use stepfold_tools::CancellationToken;
use tokio::sync::OwnedMutexGuard;

use crate::access::session_access::{ReadSession, SessionAccess};
use crate::access::unfinished_run::UnfinishedRun;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::history::{RunSelector, SessionHistory};
use crate::record::run_failure::RunFailure;
use crate::session::acceptance::AcceptanceReply;
use crate::session::busy::WhenBusy;
use crate::session::cache::SessionCache;
use crate::session::claim::{ClaimHolder, ClaimWait, WhenClaimed};
use crate::session::command::WorkerCommand;
use crate::session::decision_reply::DecisionReply;
use crate::session::inbox::{InboxMessage, MessageKind};
use crate::session::invocation::InvocationResult;
use crate::session::queue::InvocationTicket;
use crate::worker::next_action::{InvocationGoal, LastRunStatus, NextAction, SessionStatus, next_action};

/// Drives an invocation to its end.
#[expect(clippy::struct_excessive_bools, reason = "each says one thing of the invocation")]
pub(crate) struct InvocationDriver<'a> {
    pub(super) access: SessionAccess,
    pub(super) cache: OwnedMutexGuard<SessionCache>,
    pub(super) ticket: &'a InvocationTicket,
    pub(super) goal: InvocationGoal,
    /// A message that is not stored yet.
    pub(super) input: Option<Input>,
    /// The handling of that message if another worker holds the session.
    pub(super) busy: WhenBusy,
    pub(super) acceptance: Option<AcceptanceReply>,
    /// Whether the invocation is about a message.
    pub(super) has_message: bool,
    pub(super) decisions: Decisions,
    pub(crate) decision_reply: DecisionReply,
    /// Whether recovery has started it, and no caller.
    pub(super) is_recovery: bool,
    /// Asks for a pause between two steps.
    pub(super) suspension: CancellationToken,
    pub(super) when_claimed: WhenClaimed,
    /// The time waited for another worker.
    pub(super) waited: ClaimWait,
    /// Whether the message did not wait at the last read, and no run was seen to have taken it. It may be taken between the
    /// read of the session and that of the inbox, so it must be missing twice in a row.
    pub(super) is_missed: bool,
    /// Whether the last run has stored an event.
    pub(super) has_stored: bool,
    /// The failure of the last run, if any.
    pub(super) failed: Option<RunFailure>,
}

/// The session as the worker found it.
pub(super) struct FoundSession {
    read: ReadSession,
    stopped: Option<Box<UnfinishedRun>>,
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
            busy: WhenBusy::default(),
            acceptance: None,
            decisions: Decisions::new(),
            decision_reply: DecisionReply::default(),
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
                driver.decisions = options.decisions;
                driver.access = driver.access.with_changed_agent(options.with_changed_agent);
                driver.suspension = options.suspension;
                InvocationGoal::TakeInbox
            }
            WorkerCommand::Resume { decisions, with_changed_agent, decision_reply } => {
                driver.decisions = decisions;
                driver.access = driver.access.with_changed_agent(with_changed_agent);
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
    pub(crate) async fn run_to_end(&mut self) -> InvocationResult {
        // On the heap: it holds all the state of a run.
        let ended = Box::pin(self.run_all()).await;
        let recovered = self.ticket.current.invocation.recovered();
        match ended {
            Ok(outcome) if !recovered.is_empty() => {
                Ok(Arc::new(Outcome::clone(&outcome).with_recovered(recovered)))
            }
            ended => ended,
        }
    }

    /// The control flow of an invocation.
    pub(super) async fn run_all(&mut self) -> InvocationResult {
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
            if inspected.as_ref().is_err_and(RunnerError::is_of_other_agent) {
                // NOTE: answers are stored even if this agent may not continue the run: they may not be lost,
                // docs/decisions/runner.md.
                if !self.store_arrived_answers(&read).await? {
                    continue;
                }
            }
            let (stopped, seen) = inspected?;
            let found = FoundSession { read, stopped };
            let outcome = self.step(found, seen).await?;
            if let Some(outcome) = outcome
                && (self.goal == InvocationGoal::Nothing
                    || is_suspended(&outcome)
                    || exhausted_budget(&outcome).is_some())
            {
                return Ok(outcome);
            }
        }
    }

    /// Takes the next step; the outcome of a run, or of the invocation when nothing more is wanted.
    pub(super) async fn step(
        &mut self,
        found: FoundSession,
        seen: SessionStatus,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let goal = std::mem::replace(&mut self.goal, InvocationGoal::Nothing);
        let holder = seen.holder;
        let is_about = self.goal_for(goal, &seen, &found);
        let FoundSession { read, stopped } = found;
        match (next_action(is_about, seen, self.when_claimed), stopped) {
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
                answer.map(Some).ok_or_else(|| self.nothing_to_resume(&read.0))
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
                // NOTE: dropped, so that the cached history has one owner and is changed in place.
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
            (NextAction::NothingToResume, _) => Err(self.nothing_to_resume(&read.0)),
            // No caller waits for this outcome.
            (NextAction::End, _) => self.recorded_last(&read).map(Some),
            (action, None) => unreachable!("{action:?} needs a run"),
        }
    }

    /// Whether a run has taken the message.
    pub(super) fn is_taken(&self, (history, _): &ReadSession) -> bool {
        self.has_message && history.taker(self.ticket.current.invocation.id()).is_some()
    }

    /// The goal with regard to the last run: it is resumed with the decisions if it waits and took the message.
    pub(super) fn goal_for(
        &self,
        goal: InvocationGoal,
        seen: &SessionStatus,
        found: &FoundSession,
    ) -> InvocationGoal {
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

    /// Determines the status of the session.
    pub(super) async fn inspect(
        &mut self,
        read: &ReadSession,
        holder: ClaimHolder,
    ) -> Result<(Option<Box<UnfinishedRun>>, SessionStatus), RunnerError> {
        self.access.local.queue().set_elsewhere(holder == ClaimHolder::Other);
        let (stopped, last) = match holder {
            // Only this worker checks what another worker does.
            ClaimHolder::Other | ClaimHolder::Dead(_) => (None, LastRunStatus::Ended),
            ClaimHolder::Free | ClaimHolder::Us => self.inspect_last_run(read)?,
        };
        if last == LastRunStatus::Ended && matches!(holder, ClaimHolder::Free | ClaimHolder::Us) {
            // Requests to cancel that are left came too late.
            self.access.apply_cancellations(None).await;
        }
        Ok((stopped, SessionStatus { last, first: self.first(), holder }))
    }

    pub(super) fn inspect_last_run(
        &self,
        read: &ReadSession,
    ) -> Result<(Option<Box<UnfinishedRun>>, LastRunStatus), RunnerError> {
        let is_abandoned = self.goal == InvocationGoal::Abandon;
        let access = match is_abandoned {
            true => self.access.clone().with_changed_agent(true).leaving_out_misfits(),
            false => self.access.clone(),
        };
        match access.unfinished_run(&self.cache, read) {
            // This agent cannot read the record. A run that begins and is immediately cancelled follows, and
            // repairs what it left open.
            Err(RunnerError { kind: RunnerErrorKind::Recover { .. }, .. }) if is_abandoned => {
                Ok((None, LastRunStatus::Unreadable))
            }
            Err(error) => Err(error),
            Ok(None) => {
                self.access.local.claim.set_due(None);
                Ok((None, LastRunStatus::Ended))
            }
            Ok(Some(stopped)) => {
                let to_other = || self.is_recovery.then(|| self.access.left_to_other(&read.0)).flatten();
                if let Some(error) = self.left_to_person(&read.0).or_else(to_other) {
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
    pub(super) fn left_to_person(&self, history: &SessionHistory) -> Option<RunnerError> {
        let failed = history.last.as_ref()?.failed.as_ref().filter(|_| self.is_recovery)?;
        failed.left_to_person(&self.access.local.key)
    }

    pub(super) fn first(&self) -> Option<MessageKind> {
        self.access.local.inbox.first_kind()
    }

    /// The holder of the claim, as the session was read.
    pub(super) fn holder(&self, session: &Session) -> ClaimHolder {
        let held = &self.access.local.claim;
        let holder = self.access.runner.claims.holder(session.claim.as_ref(), held);
        if holder != ClaimHolder::Us {
            held.take();
        }
        // Without claims in the store, no other worker can hold one.
        if held.is_unsupported() { ClaimHolder::Us } else { holder }
    }

    pub(super) async fn claim(&mut self, take_over: TakeOver) -> Result<(), RunnerError> {
        match self.access.claim(take_over).await {
            // The next check shows who was faster.
            Ok(()) | Err(SessionError::Claimed { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Pauses for the worker that holds the claim.
    pub(super) async fn wait(&mut self, session: &Session) -> Result<(), RunnerError> {
        let runner = Arc::clone(&self.access.runner);
        let cancellation = self.ticket.current.cancellation.clone();
        tokio::select! {
            biased;
            () = runner.shutdown.closed() => Err(self.shut_down()),
            () = cancellation.cancelled() => Err(self.end_of_wait(session).await),
            () = self.suspension.cancelled() => Err(self.claimed(session, self.goal)),
            // A message came, or was withdrawn.
            () = self.access.local.inbox_changed.notified() => Ok(()),
            has_waited = self.waited.pause(&runner.claims, &*runner.clock) => match has_waited {
                true => Ok(()),
                false => Err(self.claimed(session, self.goal)),
            },
        }
    }

    /// The error after a cancellation while another worker is running: the message is withdrawn, unless that
    /// worker has taken it.
    pub(super) async fn end_of_wait(&self, session: &Session) -> RunnerError {
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
    pub(super) fn own_entry(&self) -> Option<InboxMessage> {
        self.access.local.inbox.entry(self.ticket.current.invocation.id())
    }

    pub(super) fn withdrawn(&self) -> RunnerError {
        self.error(RunnerErrorKind::Withdrawn)
    }

    fn error(&self, kind: RunnerErrorKind) -> RunnerError {
        RunnerError::new(&self.access.local.key, kind)
    }

    /// The error after a shutdown.
    pub(crate) fn shut_down(&self) -> RunnerError {
        let is_stored = self.acceptance.as_ref().is_none_or(AcceptanceReply::is_sent);
        self.ticket.current.invocation.cancel();
        if let Some(run) = self.access.local.queue().run() {
            run.cancel();
        }
        self.error(RunnerErrorKind::ShutDown { is_accepted: self.has_message && is_stored })
    }

    pub(super) fn new_invocation(&self) -> Result<InvocationId, RunnerError> {
        InvocationId::new(self.access.runner.ids.next()).map_err(|error| self.failed(error))
    }

    /// Replies to the sender of the message, if not done before.
    pub(crate) fn accept(&mut self, accepted: Result<(), RunnerError>) {
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.send(accepted);
        }
    }

    /// The error for a failed run before the message.
    pub(super) fn earlier_failed(&self, source: Arc<RunError>) -> RunnerError {
        let message = self.ticket.current.invocation.id().clone();
        let RunFailure { cause, times, .. } =
            self.failed.clone().unwrap_or_else(|| RunFailure::repeated(None, &source.to_string(), false));
        self.error(RunnerErrorKind::EarlierRunFailed { message, times, cause, source })
    }

    pub(super) fn nothing_to_resume(&self, history: &SessionHistory) -> RunnerError {
        self.error(match history.erased {
            Some(version) => RunnerErrorKind::Erased { version },
            None => RunnerErrorKind::NothingToResume,
        })
    }

    pub(super) fn pending(&self, pending: Vec<String>, goal: InvocationGoal) -> RunnerError {
        let outcome = self.ticket.current.invocation.recovered().pop();
        self.error(RunnerErrorKind::Pending { pending, is_accepted: goal.is_in_inbox(), outcome })
    }

    pub(super) fn claimed(&self, session: &Session, goal: InvocationGoal) -> RunnerError {
        self.error(match session.claim.clone() {
            Some(Claim { owner, expires, .. }) => {
                RunnerErrorKind::Claimed { owner, expires, is_accepted: goal.is_in_inbox() }
            }
            None => RunnerErrorKind::Busy { reason: "another worker is running" },
        })
    }

    pub(super) fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.access.local.key, error)
    }

    /// Reads the changes of the session and of its inbox.
    pub(super) async fn catch_up(&mut self) -> Result<ReadSession, RunnerError> {
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
}

/// The budget that a run waits for, if it does.
pub(super) fn exhausted_budget(outcome: &Outcome) -> Option<&ExhaustedBudget> {
    match outcome.exit() {
        Exit::Paused(Pause::Budget(budget)) => Some(budget),
        _ => None,
    }
}

/// Whether a run was suspended between two steps.
pub(super) fn is_suspended(outcome: &Arc<Outcome>) -> bool {
    *outcome.exit() == Exit::Paused(Pause::Suspended)
}
