//! Turns of an invocation: begins them with its message, or with the next ones of the inbox.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_agent_loop::{Input, Outcome, Run};
use stepfold_session_scopes::{InvocationId, SessionError, TakeOver};

use crate::access::session_access::ReadSession;
use crate::access::unfinished_run::UnfinishedRun;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::record::cached_values::CachedValues;
use crate::record::history::run_prefix;
use crate::session::busy::WhenBusy;
use crate::session::cache::StoppedRun;
use crate::session::claim::ClaimHolder;
use crate::session::inbox::{InboxMessage, MessageKind};
use crate::session::invocation::InvocationResult;
use crate::worker::driver::InvocationDriver;
use crate::worker::next_action::InvocationGoal;

impl InvocationDriver<'_> {
    /// Puts the message into the inbox, since something comes before it.
    pub(super) async fn store(
        &mut self,
        (history, _): &ReadSession,
        holder: ClaimHolder,
    ) -> Result<(), RunnerError> {
        let input = self.input.take().unwrap_or_default();
        let id = self.ticket.current.invocation.id().clone();
        let kind = if holder == ClaimHolder::Other {
            MessageKind::of(&input, self.busy)
        } else {
            MessageKind::Message
        };
        self.access.enqueue(kind, id, input).await?;
        let at_work = history.last.as_ref().filter(|_| holder == ClaimHolder::Other && !history.has_ended());
        if let Some(run) = at_work.filter(|_| self.busy == WhenBusy::Interrupt) {
            self.access.interrupt_elsewhere(&run.invocation).await;
        }
        self.accept(Ok(()));
        Ok(())
    }

    /// Runs a turn that begins with the message; `None` if another worker was faster.
    pub(super) async fn begin(&mut self, read: ReadSession) -> Result<Option<Arc<Outcome>>, RunnerError> {
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
    pub(super) async fn take(
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
            Err(RunnerError { kind: RunnerErrorKind::Run { source }, .. }) if self.is_earlier() => {
                Err(self.earlier_failed(source))
            }
            ended => ended.map(Some),
        }
    }

    /// A message that cannot begin must not block later ones. Its own sender gets the error, and it is
    /// removed from the inbox; other callers get an error that names the message.
    pub(super) async fn cannot_begin(
        &self,
        error: RunnerError,
        entries: &[InboxMessage],
        goal: InvocationGoal,
    ) -> RunnerError {
        let own = entries.iter().find(|entry| entry.id == *self.ticket.current.invocation.id());
        match (own, entries.first()) {
            (Some(own), _) => {
                // If it could not be removed, the next caller finds it, and gets the error.
                let _ = self.access.dequeue(own).await;
                error
            }
            (None, Some(first)) => RunnerError::new(
                &self.access.local.key,
                RunnerErrorKind::EarlierCannotBegin {
                    earlier: first.id.clone(),
                    is_accepted: goal.is_in_inbox(),
                    source: Arc::new(error),
                },
            ),
            (None, None) => error,
        }
    }

    /// Whether a turn did not begin because another worker was faster, with these entries of the inbox or
    /// otherwise. Then the session is checked again.
    pub(super) async fn is_overtaken(&mut self, error: &RunnerError, entries: &[InboxMessage]) -> bool {
        match error {
            _ if self.has_stored => false,
            RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. } => true,
            // It is still running, or has ended.
            RunnerError { kind: RunnerErrorKind::Conflict { .. }, .. } => {
                match self.access.claim(TakeOver::Never).await {
                    Ok(()) => self.access.local.claim.token().is_some(),
                    Err(error) => matches!(error, SessionError::Claimed { .. }),
                }
            }
            // The invocation of this message has begun already.
            error if error.is_event_reused() => {
                let still_waits = |entry: &InboxMessage| self.access.local.inbox.entry(&entry.id).is_some();
                self.access.read_inbox().await.is_ok() && !entries.iter().any(still_waits)
            }
            _ => false,
        }
    }

    /// Runs a turn that begins with these entries of the inbox.
    pub(super) async fn take_entries(
        &mut self,
        read: ReadSession,
        entries: Vec<InboxMessage>,
    ) -> InvocationResult {
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
    pub(super) async fn run_turn(
        &mut self,
        read: ReadSession,
        input: Input,
        id: &InvocationId,
        entries: Vec<InboxMessage>,
    ) -> InvocationResult {
        let (history, session) = read;
        let state = history.state(&session, &self.access.runner.program.schema)?;
        // The run that produced the current conversation, if this process ran it.
        let from_run = self.cache.stopped.as_ref().map(StoppedRun::run);
        let input = input.on_state(state, from_run).with_summary(history.summary.clone());
        let key = &self.access.local.key;
        let program = Arc::clone(&self.access.runner.program);
        let prefix = run_prefix(key, Some(&session.life), id);
        let run = Run::new(&program.agent, input, prefix)
            .map_err(|error| RunnerError::new(key, RunnerErrorKind::Input { source: Arc::new(error) }))?;
        let seen = history.values.as_ref().map(CachedValues::seen);
        let (invocation, missing_temp) = (id.clone(), BTreeSet::new());
        let begins = Box::new(UnfinishedRun { run, program, invocation, place: 0, seen, missing_temp });
        drop((history, session));
        self.drive(begins, entries, false).await
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
    matches!(error.kind, RunnerErrorKind::Run { .. } | RunnerErrorKind::Input { .. })
        || error.is_event_reused()
}
