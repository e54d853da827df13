//! Answers of an invocation by the record: outcomes and decisions that are stored already.

use std::sync::Arc;

use stepfold_agent_loop::{Decision, DecisionError, Decisions, FeedError, Outcome, Run, RunAnswer};
use stepfold_session_scopes::ErrorKind;

use crate::access::session_access::ReadSession;
use crate::access::unfinished_run::UnfinishedRun;
use crate::error::RunnerError;
use crate::record::history::RunSelector;
use crate::session::claim::ClaimHolder;
use crate::session::invocation::{InvocationResult, StoredOutcome};
use crate::worker::deadlines::{check_in_time, expired};
use crate::worker::driver::InvocationDriver;
use crate::worker::next_action::InvocationGoal;

impl InvocationDriver<'_> {
    /// The outcome, if the record has it: an answered request gets the same answer again, whatever the session does now.
    pub(super) async fn recorded_answer(
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
                Err(self.access.missing_message(&id).await)
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

    /// Validates the decisions before the run continues. Those that it already has are not applied again; then the version
    /// with them is returned.
    pub(super) async fn validate_decisions(&mut self, run: &Run) -> Result<Option<u64>, RunnerError> {
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
        let is_new =
            met.is_none() && !run.has_decided(&self.access.runner.redacted_decisions(&self.decisions));
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

    /// The outcome of the run whose decisions are stored already. The caller gets the receipt, whatever that run
    /// does now; `None` if they are not stored, or their run has not ended.
    pub(super) async fn answer_decided(
        &mut self,
        read: &ReadSession,
    ) -> Result<Option<Arc<Outcome>>, RunnerError> {
        let Some(met) = self.access.find_decisions(&self.decisions).await? else { return Ok(None) };
        let receipt = met?;
        self.decision_reply.send(Ok(receipt.clone()));
        let recorded = self.access.recorded(read, RunSelector::Version(receipt.version)).await?;
        Ok(recorded
            .filter(|recorded| !recorded.outcome.exit().is_resumable())
            .map(|recorded| self.answer(recorded)))
    }

    /// Stores answers that have arrived for a run that this agent may not continue: decisions, outcomes, or passed
    /// deadlines. Returns false if another process was faster: the session is to be read again.
    pub(super) async fn store_arrived_answers(&mut self, read: &ReadSession) -> Result<bool, RunnerError> {
        if self.goal != InvocationGoal::Resume {
            return Ok(true);
        }
        // A record that this agent cannot read waits for another version of the agent.
        let access = self.access.clone().with_changed_agent(true).leaving_out_misfits();
        let Ok(Some(stopped)) = access.unfinished_run(&self.cache, read) else { return Ok(true) };
        let UnfinishedRun { run, program, invocation, place, seen, .. } = *stopped;
        let run = run.without_upgrade();
        // The arguments are those of the other agent's tool, which cannot be checked here.
        if self.decisions.decisions.iter().any(|(_, decision)| matches!(decision, Decision::Modify { .. })) {
            return Ok(true);
        }
        self.validate_decisions(&run).await?;
        let given = self.decisions.clone();
        let decisions = self.decisions_about(&run);
        if decisions.is_empty() {
            return Ok(true);
        }
        let event = match self.access.runner.feed(&run, RunAnswer::Decisions(decisions)) {
            Ok(event) => event,
            Err(FeedError::Decision(refused)) => {
                return Err(RunnerError::decision(&self.access.local.key, refused));
            }
            // Only the driver of an agent that may continue it can take them.
            Err(_) => return Ok(true),
        };
        let mut journal = self.journal(invocation, (program, &run), (place, seen), Vec::new());
        let stored = journal.append(&event).await;
        self.cache.stopped = None;
        match stored {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Claimed | ErrorKind::ClaimLost | ErrorKind::Conflict
                ) =>
            {
                self.decisions = given;
                Ok(false)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The given decisions; without any, the expiries of requests whose deadlines have passed.
    pub(super) fn decisions_about(&mut self, run: &Run) -> Decisions {
        match self.decisions.is_empty() {
            true => expired(run, self.access.runner.clock.now()),
            false => std::mem::take(&mut self.decisions),
        }
    }

    /// The outcome of a run as the record has it: nothing is run.
    pub(super) async fn recorded(&self, read: &ReadSession, run: RunSelector<'_>) -> InvocationResult {
        let recorded = self.access.recorded(read, run).await?;
        recorded.map(|recorded| self.answer(recorded)).ok_or_else(|| self.withdrawn())
    }

    pub(super) fn recorded_last(&self, read: &ReadSession) -> InvocationResult {
        let recorded = self.access.recorded_last(read)?;
        recorded.map(|recorded| self.answer(recorded)).ok_or_else(|| self.nothing_to_resume(&read.0))
    }

    pub(super) fn answer(&self, recorded: StoredOutcome) -> Arc<Outcome> {
        self.ticket.current.invocation.set_version(recorded.version);
        recorded.outcome
    }
}
