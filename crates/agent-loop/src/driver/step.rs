//! Runs the items of a step, side by side: the calls of a reply, or the branches of a superstep. Each is announced,
//! marked if it must not run twice, and committed when it has its outcome. Inner work runs beside the functions of
//! other items, and its commits are committed here before it continues.

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::Write;
use stepfold_tools::{
    CallFailure, CallOutcome, CallStatus, CancellationToken, FatalError, InputRequest, ToolError,
};

use super::RunDriver;
use super::attempts::AttemptPool;
use super::hooks::after_tool;
use super::model::sleep;
use super::step_event::{AttemptEnd, EndedAttempt, InnerNotice, StepEvent};
use super::step_failure::StepFailure;
use super::step_functions::StepFunctions;
use crate::agent::HookPoint;
use crate::exit::Exit;
use crate::observe::{EventRefused, ObserverError, RunEvent};
use crate::planned::NodeOutcome;
use crate::run::{CallDisposition, ItemOutcome, PendingHook, Run, RunAnswer, RunNeed};
use crate::run_error::RunFault;

/// A step whose items are under way.
pub(super) struct StepExecution<'a> {
    pub(super) functions: StepFunctions,
    attempts: AttemptPool<'a>,
    pub(super) failure: StepFailure,
    /// Calls that were about to start and need an approval, requested when the running ones have ended.
    to_ask: Vec<(usize, CallDisposition)>,
    /// The first branch, by its place, whose failure is the error of the run.
    failed: Option<(usize, RunFault)>,
}

impl RunDriver<'_> {
    pub(super) async fn run_step(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if run.is_cancelled_inside() {
            let answer = if self.is_time_up(run) { RunAnswer::TimedOut } else { RunAnswer::Cancelled };
            return self.end_early(run, answer).await;
        }
        if run.walk().is_none() && !self.are_calls_ready(run).await? {
            return Ok(());
        }
        let lost = run.lost_calls();
        if !lost.is_empty() {
            let mut failure = StepFailure::default();
            for outcome in lost.iter().filter_map(|item| item.outcome.call()) {
                failure.record(self.notify(|| finished(outcome)).await);
            }
            failure.record(self.commit_outcomes(run, lost).await);
            return failure.into_result();
        }
        let mut execution = StepExecution {
            functions: StepFunctions::of(
                run,
                &self.options.cancellation,
                self.options.call_answers.is_some(),
            ),
            attempts: AttemptPool::new(
                std::sync::Arc::clone(&self.clock),
                self.options.metering.clone(),
                self.options.redaction.clone(),
            ),
            failure: StepFailure::default(),
            to_ask: Vec::new(),
            failed: None,
        };
        let mut deadline = std::pin::pin!(sleep(self.time_left(run)));
        let mut is_timed_out = false;
        while !execution.failure.is_refusal() {
            let StepExecution { functions, attempts, .. } = &mut execution;
            let event = tokio::select! {
                biased;
                Some(event) = attempts.next() => event,
                event = functions.next() => match event {
                    Some(event) => event,
                    None => break,
                },
                () = &mut deadline, if !is_timed_out => {
                    is_timed_out = true;
                    functions.stop().cancel();
                    continue;
                }
            };
            self.handle_step_event(run, &mut execution, event).await;
            if execution.failure.has_failed() {
                execution.functions.drain();
            }
            // Calls that always have an event ready would starve the timeout.
            if !is_timed_out && run.walk().is_none() && self.is_time_up(run) {
                is_timed_out = true;
                execution.functions.stop().cancel();
            }
        }
        self.finish_step(run, &mut execution, is_timed_out).await
    }

    /// Whether the calls of the step can run: their tools are available, and no decision is required first.
    async fn are_calls_ready(&mut self, run: &mut Run) -> Result<bool, RunFault> {
        if run.tools().is_none() {
            self.offer_tools(run).await?;
            if self.is_cancelled() {
                return Ok(false);
            }
        }
        // A call that may have begun while it was repeatable must not run twice as its tool is listed now.
        if !matches!(run.decide(), RunNeed::Calls) {
            return Ok(false);
        }
        // The tools of a reply that another driver was given may want approval by now.
        let asked = match self.replied == Some(run.steps()) {
            true => Vec::new(),
            false => run.calls_to_ask(),
        };
        if !asked.is_empty() {
            self.commit(run, RunAnswer::Ask(asked)).await?;
            return Ok(false);
        }
        Ok(true)
    }

    async fn finish_step(
        &mut self,
        run: &mut Run,
        execution: &mut StepExecution<'_>,
        is_timed_out: bool,
    ) -> Result<(), RunFault> {
        let unread = std::iter::from_fn(|| execution.attempts.try_notice());
        execution.failure.add_unrecorded(unread.flat_map(|notice| notice.outcomes(run)));
        execution.failure.add_unrecorded(execution.functions.uncommitted_calls(run));
        std::mem::take(&mut execution.failure).into_result()?;
        if let Some(error) = execution.functions.take_error() {
            return Err(RunFault::Tool(error));
        }
        if !execution.to_ask.is_empty() && !is_timed_out && !self.is_cancelled() {
            return self.commit(run, RunAnswer::Ask(std::mem::take(&mut execution.to_ask))).await;
        }
        match execution.failed.take() {
            // NOTE: Calls were stopped and have outcomes that say so; branches have none, so the event of the timeout
            // gives them.
            _ if is_timed_out && run.walk().is_some() => self.end_early(run, RunAnswer::TimedOut).await,
            Some((_, fault)) if !self.is_cancelled() => Err(fault),
            _ => Ok(()),
        }
    }

    async fn handle_step_event(
        &mut self,
        run: &mut Run,
        execution: &mut StepExecution<'_>,
        event: StepEvent,
    ) {
        match event {
            StepEvent::Starting(places) => {
                execution.to_ask = execution.functions.to_ask(run, &places);
                match execution.to_ask.is_empty()
                    && self.mark_starting(run, &places, &mut execution.failure).await
                {
                    true if self.options.call_answers.is_some() => {
                        self.answer_calls(run, execution, &places).await;
                    }
                    true => execution.attempts.start(run, &places, execution.functions.stop()),
                    false => execution.functions.withdraw(&places),
                }
            }
            StepEvent::Progress { call_id, report } => {
                let notified = self.notify(|| RunEvent::ToolProgress { call_id, report });
                execution.failure.record(notified.await);
            }
            StepEvent::Asks { place, requests } => {
                execution.failure.record(self.commit_questions(run, place, requests).await);
            }
            StepEvent::CallsFinished(ended) => self.commit_ended_calls(run, execution, ended).await,
            StepEvent::Notice(notice) => self.handle_notice(run, notice, &mut execution.failure).await,
            StepEvent::AttemptsEnded(ended) => self.handle_ended_attempts(run, execution, ended).await,
        }
    }

    /// Commits the questions of a tool. Their ids are digests of what is stored of them.
    async fn commit_questions(
        &mut self,
        run: &mut Run,
        place: usize,
        asked: Vec<InputRequest>,
    ) -> Result<(), RunFault> {
        let now = self.clock.time_of_day();
        let stored = self.redacted_questions(asked.clone());
        let requests = run.task(place).map(|task| task.requests(stored, now)).unwrap_or_default();
        let as_asked = requests.iter().zip(asked).map(|(request, asked)| request.with_question(asked));
        self.commit(run, RunAnswer::Asks { place, requests: as_asked.collect() }).await
    }

    /// Items that must not run twice are marked in the record before they start. Whether the items may start: once they
    /// are marked, they do.
    async fn mark_starting(&mut self, run: &mut Run, places: &[usize], failure: &mut StepFailure) -> bool {
        for place in places {
            let notified = self.notify(|| started(run, *place)).await;
            if failure.record(notified).is_none() {
                return false;
            }
        }
        // NOTE: Marked before the start: if the process dies in between, the outcome counts as unknown, and nothing
        // runs twice.
        let marked: Vec<usize> = places.iter().copied().filter(|place| run.must_mark(*place)).collect();
        if !marked.is_empty() {
            failure.record(self.commit(run, RunAnswer::Started(marked)).await);
        }
        !failure.is_refusal()
    }

    /// Handles a notice of inner work. After a failure, it commits work under way and begins nothing more. If a commit
    /// is refused, the notice is never acknowledged.
    async fn handle_notice(&mut self, run: &mut Run, notice: InnerNotice, failure: &mut StepFailure) {
        let (place, event, acknowledge) = match notice {
            InnerNotice::Inner { place, event, acknowledge } => (place, event, acknowledge),
            InnerNotice::Output { place, kind, value } => {
                let node = name_of(run, place);
                let notified =
                    self.notify(|| RunEvent::Output { node, branch: place, kind: Some(kind), value });
                failure.record(notified.await);
                return;
            }
        };
        let may_proceed = match event {
            RunEvent::Committed(event) => {
                failure.record(self.commit(run, RunAnswer::Inner { place, event }).await);
                if failure.is_refusal() {
                    return;
                }
                true
            }
            event if failure.has_failed() && begins_work(&event) => false,
            event => {
                let task = run.task(place);
                let (name, id) = (name_of(run, place), task.map(|task| task.label()).unwrap_or_default());
                let is_node = task.is_some_and(|task| task.planned().is_some());
                let notified =
                    self.notify(|| RunEvent::Inner { name, id, is_node, place, event: Box::new(event) });
                failure.record(notified.await).is_some()
            }
        };
        // A run that was dropped does not wait any more.
        let _ = acknowledge.send(may_proceed);
    }

    /// Attempts that ended at the same moment: begins the next ones, and commits the outcomes of branches as one event,
    /// each request by itself. Notices of that moment come before the end.
    async fn handle_ended_attempts(
        &mut self,
        run: &mut Run,
        execution: &mut StepExecution<'_>,
        ended: Vec<EndedAttempt>,
    ) {
        while !execution.failure.is_refusal()
            && let Some(notice) = execution.attempts.try_notice()
        {
            self.handle_notice(run, notice, &mut execution.failure).await;
        }
        if execution.failure.is_refusal() {
            return;
        }
        let is_node = run.walk().is_some();
        let (mut outcomes, mut asked) = (Vec::new(), Vec::new());
        for EndedAttempt { place, tries, end } in ended {
            if let AttemptEnd::Failed(..) = end
                && let Some(pause) = run.attempts(place).pauses().nth(tries as usize - 1)
            {
                match execution.failure.has_failed() {
                    // It may be attempted again when the run is resumed.
                    true => execution.functions.hold(place),
                    false => {
                        execution.attempts.attempt(
                            run,
                            place,
                            (tries + 1, pause),
                            execution.functions.stop(),
                        );
                    }
                }
                continue;
            }
            // The run of an agent that has ended without having finished is over: to continue would give the same.
            let is_over = matches!(end, AttemptEnd::Ended);
            let outcome = match end {
                AttemptEnd::Outcome(outcome) => Some(NodeOutcome { tries, ..outcome }),
                AttemptEnd::Failed(status, error) => Some(NodeOutcome::failed(status, error, tries)),
                AttemptEnd::Ended if !is_node => {
                    execution.functions.complete(place, run.result_inside(place));
                    continue;
                }
                // The run around it is about to be cancelled, and keeps its messages and writes.
                AttemptEnd::Ended if is_cancelled(run, place, execution.functions.stop()) => None,
                AttemptEnd::Ended => run.outcome_inside(place),
                AttemptEnd::Asks(request) => {
                    asked.push((place, vec![*request]));
                    None
                }
                AttemptEnd::Waits => {
                    asked.extend(unknown_agent_requests(run, place).map(|requests| (place, requests)));
                    None
                }
                AttemptEnd::Stopped => None,
                AttemptEnd::Unmetered(fault) => {
                    execution.failure.record::<()>(Err(fault));
                    None
                }
            };
            match outcome {
                // NOTE: An inner run that failed to begin is the failure of its call, which the model reads.
                Some(outcome) if !is_node => {
                    let error = outcome.error.unwrap_or_default();
                    execution.functions.complete(place, Err(ToolError::permanent(error)));
                }
                Some(outcome) => {
                    execution.functions.hold(place);
                    outcomes.extend(self.report_ended_branch(run, execution, place, outcome, is_over).await);
                }
                None => execution.functions.hold(place),
            }
        }
        // NOTE: One event for all that ended in one poll: a commit costs a flush, and nothing happened between them
        // that a record would have to tell apart. See docs/decisions/runner.md.
        let outcomes = (!outcomes.is_empty()).then_some(RunAnswer::Outcomes(outcomes));
        let asked = asked.into_iter().map(|(place, requests)| RunAnswer::Asks { place, requests });
        for answer in outcomes.into_iter().chain(asked) {
            if !execution.failure.is_refusal() {
                execution.failure.record(self.commit(run, answer).await);
            }
        }
    }

    /// Commits the outcomes of calls that ended at the same moment, as one event, after their hooks.
    async fn commit_ended_calls(
        &mut self,
        run: &mut Run,
        execution: &mut StepExecution<'_>,
        ended: Vec<(usize, CallOutcome)>,
    ) {
        let amended = ended.iter().map(|(place, _)| *place).filter(|_| execution.functions.amends());
        let amended: Vec<usize> = amended.collect();
        let mut outcomes = Vec::with_capacity(ended.len());
        for (place, outcome) in ended {
            // NOTE: A call without an attempt, such as one with invalid arguments, has not happened: no hook counts or
            // changes it.
            let seen = match run.agent().config().hooks.has(HookPoint::AfterTool) && outcome.tries > 0 {
                true => after_tool(run, place, outcome, 0).await,
                false => (ItemOutcome::new(place, outcome), None),
            };
            outcomes.push(self.report_conclusion(seen, &mut execution.failure).await);
        }
        execution.failure.record(self.commit_outcomes(run, outcomes).await);
        for place in amended {
            execution.functions.amend(run, place);
        }
    }

    /// Reports the end of a branch, and returns the outcome to commit, unless the caller handles its failure.
    async fn report_ended_branch(
        &mut self,
        run: &Run,
        execution: &mut StepExecution<'_>,
        place: usize,
        outcome: NodeOutcome,
        is_over: bool,
    ) -> Option<ItemOutcome> {
        let node = name_of(run, place);
        let finished = || RunEvent::NodeFinished {
            node: node.clone(),
            branch: place,
            status: outcome.status,
            error: outcome.error.clone(),
        };
        let takes_failures = run.planner().is_some_and(|planner| planner.takes_failures(&node));
        if let Some(error) = &outcome.error
            && !is_over
            && !takes_failures
        {
            execution.failure.record(self.notify(finished).await);
            // NOTE: By place and not by time: the error of the run must not depend on which branch failed first.
            if execution.failed.as_ref().is_none_or(|(earlier, _)| place < *earlier) {
                let node = run.task(place).map_or(node, |task| task.label());
                execution.failed = Some((place, RunFault::Node { node, error: error.clone() }));
            }
            return None;
        }
        for output in &outcome.outputs {
            let kind = output.get("kind").and_then(|kind| kind.as_str().map(str::to_owned));
            let (node, value) = (node.clone(), output.get("content").cloned().unwrap_or_default());
            let notified = self.notify(|| RunEvent::Output { node, branch: place, kind, value }).await;
            execution.failure.record(notified);
        }
        execution.failure.record(self.notify(finished).await);
        Some(ItemOutcome::new(place, outcome))
    }

    /// Runs the hooks that a call still waits for, because one of them failed.
    pub(super) async fn run_pending_hook(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let Some(PendingHook { place, outcome, hook, .. }) = run.pending_hooks().into_iter().next() else {
            return Ok(());
        };
        match after_tool(run, place, outcome, hook).await {
            // There is nothing new to commit.
            (item, Some(fault)) if item.pending_hook == Some(hook) => Err(fault),
            seen => {
                let mut failure = StepFailure::default();
                let outcome = self.report_conclusion(seen, &mut failure).await;
                failure.record(self.commit_outcomes(run, vec![outcome]).await);
                failure.into_result()
            }
        }
    }

    /// An outcome as hooks have left it, which is committed even if they or the observers fail: it has happened. It is
    /// reported as finished when all hooks have seen it.
    async fn report_conclusion(
        &mut self,
        (item, fault): (ItemOutcome, Option<RunFault>),
        failure: &mut StepFailure,
    ) -> ItemOutcome {
        failure.record(fault.map_or(Ok(()), Err));
        if item.pending_hook.is_none()
            && let Some(outcome) = item.outcome.call()
        {
            let notified = self.notify(|| finished(outcome));
            failure.record(notified.await);
        }
        item
    }

    /// Commits outcomes of calls: as one event, but large ones by themselves, so that no other is refused with them.
    async fn commit_outcomes(&mut self, run: &mut Run, outcomes: Vec<ItemOutcome>) -> Result<(), RunFault> {
        if outcomes.len() == 1 || !outcomes.iter().any(is_large) {
            return self.commit_at_once(run, outcomes).await;
        }
        let (large, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_large);
        let mut ended = match others.is_empty() {
            true => Ok(()),
            false => self.commit_at_once(run, others).await,
        };
        for outcome in large {
            if matches!(ended, Err(RunFault::Commit { .. })) {
                break;
            }
            ended = ended.and(self.commit_at_once(run, vec![outcome]).await);
        }
        ended
    }

    /// Commits outcomes of calls as one event. If it can never be recorded, they failed: to run the tools again would
    /// give the same.
    async fn commit_at_once(&mut self, run: &mut Run, outcomes: Vec<ItemOutcome>) -> Result<(), RunFault> {
        let tries = |item: &ItemOutcome| (item.place, item.outcome.call().map_or(0, |outcome| outcome.tries));
        let places: Vec<(usize, u32)> = outcomes.iter().map(tries).collect();
        match self.commit_calls(run, outcomes).await {
            Err(RunFault::Commit { source, .. }) if source.is::<EventRefused>() => {
                let failed =
                    places.into_iter().map(|place| unrecordable_outcome(run, place, &source)).collect();
                self.commit_calls(run, failed).await
            }
            ended => ended,
        }
    }

    /// Commits outcomes of calls. The error of a write that cannot be merged is for the caller, if failures are.
    async fn commit_calls(&mut self, run: &mut Run, outcomes: Vec<ItemOutcome>) -> Result<(), RunFault> {
        let (event, kept) = self.event_of(run, RunAnswer::Outcomes(outcomes))?;
        let unmerged = event.step_end.as_ref().and_then(|end| end.unmerged.first().copied());
        let raised = unmerged.filter(|_| run.agent().config().raise_on_failure).and_then(|place| {
            let result = event.messages.get(place)?.tool_result()?;
            let source = result.text().into_owned();
            Some(FatalError::new(result.call_id(), result.name(), place, source))
        });
        self.commit_event(run, event, kept).await?;
        raised.map_or(Ok(()), |error| Err(RunFault::Tool(error)))
    }
}

/// The bytes of an outcome that is committed by itself.
const LARGE: usize = 1 << 20;

/// Whether the writes of a call are large. What the model reads of it is bounded.
fn is_large(item: &ItemOutcome) -> bool {
    let Some(outcome) = item.outcome.call() else { return false };
    let mut left = LARGE;
    outcome.delta.iter().filter_map(Write::value).any(|value| !fits_within(value, &mut left))
}

/// Takes about the bytes of a value from what is left; `false` if they are more.
fn fits_within(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        _ => size_of::<u64>(),
    };
    let Some(rest) = left.checked_sub(own) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| fits_within(item, left)),
        Value::Object(fields) => fields.values().all(|value| fits_within(value, left)),
        _ => true,
    }
}

/// The outcome of a call whose own one can never be recorded.
fn unrecordable_outcome(run: &Run, (place, tries): (usize, u32), source: &ObserverError) -> ItemOutcome {
    let words = format!("the tool ran, but its result cannot be recorded, and none of it was kept: {source}");
    let status = CallStatus::Failed(CallFailure::Merge);
    let mut failed = CallOutcome::without_result(&run.shown(place), status, words);
    failed.tries = tries;
    ItemOutcome::new(place, failed)
}

fn started(run: &Run, place: usize) -> RunEvent {
    let ToolCall { id, name, arguments, .. } = run.shown(place);
    match run.walk().is_some() {
        true => RunEvent::NodeStarted { node: name, branch: place },
        false => {
            RunEvent::ToolStarted { call_id: id, tool: name, arguments: arguments.to_text().into_owned() }
        }
    }
}

fn finished(outcome: &CallOutcome) -> RunEvent {
    RunEvent::ToolFinished {
        call_id: outcome.call_id().to_owned(),
        tool: outcome.tool().to_owned(),
        status: outcome.status,
        text: outcome.result.text().into_owned(),
    }
}

fn name_of(run: &Run, place: usize) -> String {
    run.task(place).map(|task| task.name().to_owned()).unwrap_or_default()
}

/// The requests of an inner run, if the record must contain them: its agent is unknown to readers of the
/// record that do not list the tools of the step.
fn unknown_agent_requests(run: &Run, place: usize) -> Option<Vec<crate::approval::ApprovalRequest>> {
    let task = run.task(place)?;
    let child = run.inside_of(place)?;
    (!run.knows_agent_inside(task)).then(|| child.pending())
}

/// Whether the run inside has ended since it was stopped.
fn is_cancelled(run: &Run, place: usize, stop: &CancellationToken) -> bool {
    let child = run.inside_of(place);
    stop.is_cancelled() && child.is_some_and(|child| child.exit() == Some(&Exit::Cancelled))
}

/// Whether the event of an inner run is about work that begins, rather than about work that is done.
fn begins_work(event: &RunEvent) -> bool {
    match event {
        RunEvent::Asking { .. } | RunEvent::ToolStarted { .. } | RunEvent::NodeStarted { .. } => true,
        RunEvent::Inner { event, .. } => begins_work(event),
        _ => false,
    }
}
