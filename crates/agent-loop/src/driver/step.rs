//! Running the items of a step, side by side: the calls of a reply, or the branches of a superstep. Each is announced,
//! marked if it must not run twice, and committed when it has its outcome. What is inside of one is driven beside the
//! functions of the others, and what it commits is committed here before it continues.

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::Write;
use stepfold_tools::{CallFailure, CallOutcome, CallStatus, CancellationToken, FatalError, ToolError};

use super::RunDriver;
use super::attempts::{AttemptEnd, AttemptPool, EndedAttempt, InnerNotice};
use super::hooks::after_tool;
use super::model::sleep;
use super::step_failure::StepFailure;
use super::step_functions::{StepEvent, StepFunctions};
use crate::agent::HookPoint;
use crate::exit::Exit;
use crate::observe::{EventRefused, ObserverError, RunEvent};
use crate::planned::NodeOutcome;
use crate::run::{Answer, Fate, ItemOutcome, PendingHook, Run};
use crate::run_error::RunFault;

/// A step whose items are under way.
struct StepExecution<'a> {
    functions: StepFunctions,
    children: AttemptPool<'a>,
    trouble: StepFailure,
    /// Calls that were about to start and need an approval, requested when the running ones have ended.
    to_ask: Vec<(usize, Fate)>,
    /// The first branch, by its place, whose failure is the error of the run.
    failed: Option<(usize, RunFault)>,
}

impl RunDriver<'_> {
    pub(super) async fn run_work(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if run.is_cancelled_inside() {
            let answer = if self.is_time_up(run) { Answer::TimedOut } else { Answer::Cancelled };
            return self.break_off(run, answer).await;
        }
        if run.walk().is_none() && !self.are_calls_ready(run).await? {
            return Ok(());
        }
        let mut work = StepExecution {
            functions: StepFunctions::of(run, &self.given.cancellation),
            children: AttemptPool::new(std::sync::Arc::clone(&self.clock)),
            trouble: StepFailure::default(),
            to_ask: Vec::new(),
            failed: None,
        };
        let mut up = std::pin::pin!(sleep(self.time_left(run)));
        let mut is_up = false;
        while !work.trouble.is_refusal() {
            let StepExecution { functions, children, .. } = &mut work;
            let happened = tokio::select! {
                biased;
                Some(happened) = children.next() => happened,
                happened = functions.next() => match happened {
                    Some(happened) => happened,
                    None => break,
                },
                () = &mut up, if !is_up => {
                    is_up = true;
                    functions.stop().cancel();
                    continue;
                }
            };
            self.happened(run, &mut work, happened).await;
            if work.trouble.is_there() {
                work.functions.drain();
            }
            // Calls that always have something to tell would not let the timeout be looked at.
            if !is_up && run.walk().is_none() && self.is_time_up(run) {
                is_up = true;
                work.functions.stop().cancel();
            }
        }
        self.work_ended(run, &mut work, is_up).await
    }

    /// Whether the calls of the step can run: their tools are available, and no decision is required first.
    async fn are_calls_ready(&mut self, run: &mut Run) -> Result<bool, RunFault> {
        if run.tools().is_none() {
            self.offer_tools(run).await?;
            if self.is_cancelled() {
                return Ok(false);
            }
        }
        // The tools of a reply that another driver was given may want approval by now.
        let asked = match self.replied == Some(run.steps()) {
            true => Vec::new(),
            false => run.calls_to_ask(),
        };
        if !asked.is_empty() {
            self.commit(run, Answer::Ask(asked)).await?;
            return Ok(false);
        }
        Ok(true)
    }

    async fn work_ended(
        &mut self,
        run: &mut Run,
        work: &mut StepExecution<'_>,
        is_up: bool,
    ) -> Result<(), RunFault> {
        let unread = std::iter::from_fn(|| work.children.try_told());
        work.trouble.also_lost(unread.flat_map(|told| told.outcomes(run)));
        work.trouble.also_lost(work.functions.ended(run));
        std::mem::take(&mut work.trouble).end()?;
        if let Some(error) = work.functions.take_error() {
            return Err(RunFault::Tool(error));
        }
        if !work.to_ask.is_empty() && !is_up && !self.is_cancelled() {
            return self.commit(run, Answer::Ask(std::mem::take(&mut work.to_ask))).await;
        }
        match work.failed.take() {
            _ if is_up && run.walk().is_some() => self.break_off(run, Answer::TimedOut).await,
            Some((_, fault)) if !self.is_cancelled() => Err(fault),
            _ => Ok(()),
        }
    }

    async fn happened(&mut self, run: &mut Run, work: &mut StepExecution<'_>, happened: StepEvent) {
        match happened {
            StepEvent::Starting(places) => {
                work.to_ask = work.functions.to_ask(run, &places);
                match work.to_ask.is_empty() && self.starting(run, &places, &mut work.trouble).await {
                    true => work.children.start(run, &places, work.functions.stop()),
                    false => work.functions.withdraw(&places),
                }
            }
            StepEvent::Progress { call_id, report } => {
                let told = self.tell(|| RunEvent::ToolProgress { call_id, report });
                work.trouble.note(told.await);
            }
            StepEvent::Asks { place, requests } => {
                let now = self.clock.time_of_day();
                let requests = run.task(place).map(|task| task.requests(requests, now)).unwrap_or_default();
                work.trouble.note(self.commit(run, Answer::Asks { place, requests }).await);
            }
            StepEvent::Finished(ended) => self.calls_ended(run, work, ended).await,
            StepEvent::Notice(told) => self.told(run, told, &mut work.trouble).await,
            StepEvent::Ended(ended) => self.attempts_ended(run, work, ended).await,
        }
    }

    /// Items that must not run twice are marked in the record before they start. Whether the items may start: once they
    /// are marked, they do.
    async fn starting(&mut self, run: &mut Run, places: &[usize], trouble: &mut StepFailure) -> bool {
        for place in places {
            let told = self.tell(|| started(run, *place)).await;
            if trouble.note(told).is_none() {
                return false;
            }
        }
        let marked: Vec<usize> = places.iter().copied().filter(|place| run.must_mark(*place)).collect();
        if !marked.is_empty() {
            trouble.note(self.commit(run, Answer::Started(marked)).await);
        }
        !trouble.is_refusal()
    }

    /// Takes note of what the inside of an item does. When something has failed, it commits what is under way, and begins nothing
    /// more. If its commit is refused, it is never answered.
    async fn told(&mut self, run: &mut Run, told: InnerNotice, trouble: &mut StepFailure) {
        let (place, event, goes_on) = match told {
            InnerNotice::Inner { place, event, goes_on } => (place, event, goes_on),
            InnerNotice::Output { place, kind, value } => {
                let node = name_of(run, place);
                let said = self.tell(|| RunEvent::Output { node, branch: place, kind: Some(kind), value });
                trouble.note(said.await);
                return;
            }
        };
        let is_heard = match event {
            RunEvent::Committed(event) => {
                trouble.note(self.commit(run, Answer::Inner { place, event }).await);
                if trouble.is_refusal() {
                    return;
                }
                true
            }
            event if trouble.is_there() && begins_something(&event) => false,
            event => {
                let task = run.task(place);
                let (name, id) = (name_of(run, place), task.map(|task| task.label()).unwrap_or_default());
                let is_node = task.is_some_and(|task| task.planned().is_some());
                let told = self.tell(|| RunEvent::Inner { name, id, is_node, place, event: Box::new(event) });
                trouble.note(told.await).is_some()
            }
        };
        // A run that was dropped does not wait any more.
        let _ = goes_on.send(is_heard);
    }

    /// Attempts that ended at the same moment: begins the next ones, and commits the outcomes of branches as one event, each
    /// request by itself. What was told in that moment comes before the end.
    async fn attempts_ended(
        &mut self,
        run: &mut Run,
        work: &mut StepExecution<'_>,
        ended: Vec<EndedAttempt>,
    ) {
        while !work.trouble.is_refusal()
            && let Some(told) = work.children.try_told()
        {
            self.told(run, told, &mut work.trouble).await;
        }
        if work.trouble.is_refusal() {
            return;
        }
        let is_node = run.walk().is_some();
        let (mut outcomes, mut asked) = (Vec::new(), Vec::new());
        for EndedAttempt { place, tries, end } in ended {
            if let AttemptEnd::Failed(..) = end
                && let Some(pause) = run.attempts(place).pauses().nth(tries as usize - 1)
            {
                match work.trouble.is_there() {
                    // It may be attempted again when the run is resumed.
                    true => work.functions.hold(place),
                    false => work.children.attempt(run, place, (tries + 1, pause), work.functions.stop()),
                }
                continue;
            }
            // The run of an agent that has ended without having finished is over: to continue would give the same.
            let is_over = matches!(end, AttemptEnd::Ended);
            let outcome = match end {
                AttemptEnd::Outcome(outcome) => Some(NodeOutcome { tries, ..outcome }),
                AttemptEnd::Failed(status, error) => Some(NodeOutcome::failed(status, error, tries)),
                AttemptEnd::Ended if !is_node => {
                    work.functions.complete(place, run.result_inside(place));
                    continue;
                }
                // The run around it is about to be cancelled, and keeps its messages and writes.
                AttemptEnd::Ended if is_cancelled(run, place, work.functions.stop()) => None,
                AttemptEnd::Ended => run.outcome_inside(place),
                AttemptEnd::Asks(request) => {
                    asked.push((place, vec![*request]));
                    None
                }
                AttemptEnd::Waits => {
                    asked.extend(requests_to_record(run, place).map(|requests| (place, requests)));
                    None
                }
                AttemptEnd::Stopped => None,
            };
            match outcome {
                Some(outcome) if !is_node => {
                    let error = outcome.error.unwrap_or_default();
                    work.functions.complete(place, Err(ToolError::permanent(error)));
                }
                Some(outcome) => {
                    work.functions.hold(place);
                    outcomes.extend(self.node_ended(run, work, place, outcome, is_over).await);
                }
                None => work.functions.hold(place),
            }
        }
        let outcomes = (!outcomes.is_empty()).then_some(Answer::Outcomes(outcomes));
        let asked = asked.into_iter().map(|(place, requests)| Answer::Asks { place, requests });
        for answer in outcomes.into_iter().chain(asked) {
            if !work.trouble.is_refusal() {
                work.trouble.note(self.commit(run, answer).await);
            }
        }
    }

    /// Commits the outcomes of calls that ended at the same moment, as one event, after their hooks.
    async fn calls_ended(
        &mut self,
        run: &mut Run,
        work: &mut StepExecution<'_>,
        ended: Vec<(usize, CallOutcome)>,
    ) {
        let amended = ended.iter().map(|(place, _)| *place).filter(|_| work.functions.amends());
        let amended: Vec<usize> = amended.collect();
        let mut outcomes = Vec::with_capacity(ended.len());
        for (place, outcome) in ended {
            let seen = match run.agent().config().hooks.has(HookPoint::AfterTool) && outcome.tries > 0 {
                true => after_tool(run, place, outcome, 0).await,
                false => (ItemOutcome::new(place, outcome), None),
            };
            outcomes.push(self.concluded(seen, &mut work.trouble).await);
        }
        work.trouble.note(self.commit_outcomes(run, outcomes).await);
        for place in amended {
            work.functions.amend(run, place);
        }
    }

    /// Reports the end of a branch, and returns the outcome to commit, unless the caller handles its failure.
    async fn node_ended(
        &mut self,
        run: &Run,
        work: &mut StepExecution<'_>,
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
            work.trouble.note(self.tell(finished).await);
            if work.failed.as_ref().is_none_or(|(earlier, _)| place < *earlier) {
                let node = run.task(place).map_or(node, |task| task.label());
                work.failed = Some((place, RunFault::Node { node, error: error.clone() }));
            }
            return None;
        }
        for output in &outcome.outputs {
            let kind = output.get("kind").and_then(|kind| kind.as_str().map(str::to_owned));
            let (node, value) = (node.clone(), output.get("content").cloned().unwrap_or_default());
            let told = self.tell(|| RunEvent::Output { node, branch: place, kind, value }).await;
            work.trouble.note(told);
        }
        work.trouble.note(self.tell(finished).await);
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
                let mut trouble = StepFailure::default();
                let outcome = self.concluded(seen, &mut trouble).await;
                trouble.note(self.commit_outcomes(run, vec![outcome]).await);
                trouble.end()
            }
        }
    }

    /// An outcome as hooks have left it, which is committed whatever they and the observers say: it has happened. It is
    /// told as finished when all of them have seen it.
    async fn concluded(
        &mut self,
        (item, fault): (ItemOutcome, Option<RunFault>),
        trouble: &mut StepFailure,
    ) -> ItemOutcome {
        trouble.note(fault.map_or(Ok(()), Err));
        if item.pending_hook.is_none()
            && let Some(outcome) = item.outcome.call()
        {
            let told = self.tell(|| finished(outcome));
            trouble.note(told.await);
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
                let failed = places.into_iter().map(|place| refused(run, place, &source)).collect();
                self.commit_calls(run, failed).await
            }
            ended => ended,
        }
    }

    /// Commits outcomes of calls. The error of a write that cannot be merged is for the caller, if failures are.
    async fn commit_calls(&mut self, run: &mut Run, outcomes: Vec<ItemOutcome>) -> Result<(), RunFault> {
        let event = Box::new(run.feed(Answer::Outcomes(outcomes), self.elapsed()).map_err(RunFault::from)?);
        let unmerged = event.step_end.as_ref().and_then(|end| end.unmerged.first().copied());
        let raised = unmerged.filter(|_| run.agent().config().raise_on_failure).and_then(|place| {
            let result = event.messages.get(place)?.tool_result()?;
            let source = result.text().into_owned();
            Some(FatalError::new(result.call_id(), result.name(), place, source))
        });
        self.commit_event(run, event).await?;
        raised.map_or(Ok(()), |error| Err(RunFault::Tool(error)))
    }
}

/// The bytes of an outcome that is committed by itself.
const LARGE: usize = 1 << 20;

/// Whether the writes of a call are large. What the model reads of it is bounded.
fn is_large(item: &ItemOutcome) -> bool {
    let Some(outcome) = item.outcome.call() else { return false };
    let mut left = LARGE;
    outcome.delta.iter().filter_map(Write::value).any(|value| !takes(value, &mut left))
}

/// Takes about the bytes of a value from what is left; `false` if they are more.
fn takes(value: &Value, left: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        _ => size_of::<u64>(),
    };
    let Some(rest) = left.checked_sub(own) else { return false };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| takes(item, left)),
        Value::Object(fields) => fields.values().all(|value| takes(value, left)),
        _ => true,
    }
}

/// The outcome of a call whose own one can never be recorded.
fn refused(run: &Run, (place, tries): (usize, u32), source: &ObserverError) -> ItemOutcome {
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
fn requests_to_record(run: &Run, place: usize) -> Option<Vec<crate::approval::ApprovalRequest>> {
    let task = run.task(place)?;
    let child = run.inside_of(place)?;
    (!run.is_known_inside(task)).then(|| child.pending())
}

/// Whether the run inside has ended since it was stopped.
fn is_cancelled(run: &Run, place: usize, stop: &CancellationToken) -> bool {
    let child = run.inside_of(place);
    stop.is_cancelled() && child.is_some_and(|child| child.exit() == Some(&Exit::Cancelled))
}

/// Whether a run inside is about to begin something, rather than to tell of what it has done.
fn begins_something(event: &RunEvent) -> bool {
    match event {
        RunEvent::Asking { .. } | RunEvent::ToolStarted { .. } | RunEvent::NodeStarted { .. } => true,
        RunEvent::Inner { event, .. } => begins_something(event),
        _ => false,
    }
}
