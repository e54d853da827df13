//! The order in which the items of a running step start. An [`Invocation`] runs the functions of tools; inner work,
//! which includes the functions of nodes, runs among the [attempts](super::attempts).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::Delta;
use stepfold_tools::{
    CallEvent, CallOutcome, CancellationToken, FatalError, Invocation, InvokeOptions, ToolError,
};

use super::call_answers::StartingCall;
use super::step_event::StepEvent;
use crate::agent::HookPoint;
use crate::run::{CallDisposition, Run};

/// The functions of a step. Inner work counts among those that run side by side, until it is
/// [held](StepFunctions::hold) or [complete](StepFunctions::complete).
pub(super) enum StepFunctions {
    Calls { invocation: Box<Invocation>, calls: Arc<[ToolCall]>, has_hooks: bool },
    Branches(BranchQueue),
}

impl StepFunctions {
    /// The functions of the open step. They stop when the run is cancelled, or at their own
    /// [token](StepFunctions::stop).
    pub(super) fn of(run: &Run, cancellation: &CancellationToken, answers_calls: bool) -> Self {
        if let Some(planner) = run.planner() {
            return StepFunctions::Branches(BranchQueue {
                queue: run.open_tasks().map(|task| task.place).collect(),
                running: BTreeSet::new(),
                max_parallel: planner.max_parallel(),
                stop: cancellation.child_token(),
            });
        }
        let hooks = &run.agent().config().hooks;
        let has_hooks = hooks.has(HookPoint::BeforeTool) || hooks.has(HookPoint::AfterTool);
        let calls: Arc<[ToolCall]> = run.calls_to_execute().into();
        let mut options = options(run, cancellation.clone());
        options.answers_calls = answers_calls;
        let invocation = Box::new(invocation(run, Arc::clone(&calls), options));
        StepFunctions::Calls { invocation, calls, has_hooks }
    }

    /// Stops what is under way in the step.
    pub(super) fn stop(&self) -> &CancellationToken {
        match self {
            StepFunctions::Calls { invocation, .. } => invocation.cancellation(),
            StepFunctions::Branches(nodes) => &nodes.stop,
        }
    }

    /// The next event; `None` when nothing is left to run, here or inside of items.
    pub(super) async fn next(&mut self) -> Option<StepEvent> {
        let (invocation, calls, has_hooks) = match self {
            StepFunctions::Branches(nodes) => return nodes.next().await,
            StepFunctions::Calls { invocation, calls, has_hooks } => (invocation, calls, *has_hooks),
        };
        loop {
            match invocation.next().await? {
                CallEvent::Starting { calls } => return Some(StepEvent::Starting(calls)),
                CallEvent::Progress { call, report } => {
                    return Some(StepEvent::Progress { call_id: calls[call].id.clone(), report });
                }
                CallEvent::InputRequired { call: place, requests } => {
                    return Some(StepEvent::Asks { place, requests });
                }
                CallEvent::Finished { call } => {
                    // A hook may take its time, in which nothing that has ended waits to be committed.
                    let others = if has_hooks { Vec::new() } else { invocation.also_finished() };
                    let places = std::iter::once(call).chain(others);
                    let outcomes =
                        places.filter_map(|place| Some((place, invocation.outcome(place)?.clone())));
                    return Some(StepEvent::CallsFinished(outcomes.collect()));
                }
                _ => {}
            }
        }
    }

    /// The calls, of these that are about to start, that would take other values from the state than those approved.
    pub(super) fn to_ask(&self, run: &Run, places: &[usize]) -> Vec<(usize, CallDisposition)> {
        let StepFunctions::Calls { invocation, .. } = self else { return Vec::new() };
        run.starting_to_ask(places, |place| invocation.state_seen_by(place))
    }

    /// Whether an outcome is amended when it is committed.
    pub(super) const fn amends(&self) -> bool {
        matches!(self, StepFunctions::Calls { has_hooks: true, .. })
    }

    /// Gives the writes of hooks with a call to the calls that wait for it.
    pub(super) fn amend(&mut self, run: &Run, place: usize) {
        if let StepFunctions::Calls { invocation, .. } = self
            && let Some(outcome) = run.finished_call(place)
        {
            invocation.amend(place, outcome);
        }
    }

    /// Releases an item whose inner work ended without an outcome here: it is waiting, or its outcome is already recorded.
    pub(super) fn hold(&mut self, place: usize) {
        match self {
            // Calls that read what it will have written wait with it.
            StepFunctions::Calls { invocation, .. } => invocation.hold(place),
            StepFunctions::Branches(nodes) => {
                nodes.running.remove(&place);
            }
        }
    }

    /// Completes a call whose inner work has its result, in the form of the tool.
    pub(super) fn complete(&mut self, place: usize, result: Result<(Value, Delta), ToolError>) {
        match self {
            StepFunctions::Calls { invocation, .. } => invocation.complete(place, result),
            StepFunctions::Branches(nodes) => {
                nodes.running.remove(&place);
            }
        }
    }

    /// A call that is about to start: its arguments, its tool, and the state that it sees.
    pub(super) fn starting_call(&self, run: &Run, place: usize) -> Option<StartingCall> {
        let StepFunctions::Calls { invocation, calls, .. } = self else { return None };
        let call = calls.get(place)?.clone();
        let tool = run.tools()?.get(&call.name)?.clone();
        Some(StartingCall {
            step: run.steps(),
            place,
            call,
            tool,
            state: invocation.state_seen_by(place),
            resources: run.agent().config().resources.clone(),
        })
    }

    /// Ends a call that was about to start with an outcome from elsewhere.
    pub(super) fn conclude(&mut self, place: usize, outcome: CallOutcome) {
        if let StepFunctions::Calls { invocation, .. } = self {
            invocation.conclude(place, outcome);
        }
    }

    /// Starts nothing more. Running functions complete.
    pub(super) fn drain(&mut self) {
        match self {
            StepFunctions::Calls { invocation, .. } => invocation.drain(),
            StepFunctions::Branches(nodes) => nodes.queue.clear(),
        }
    }

    /// These do not start, and no others do.
    pub(super) fn withdraw(&mut self, places: &[usize]) {
        match self {
            StepFunctions::Calls { invocation, .. } => invocation.withdraw(),
            StepFunctions::Branches(nodes) => {
                nodes.running.retain(|place| !places.contains(place));
            }
        }
        self.drain();
    }

    /// The ids of the calls that have ended and are not committed.
    pub(super) fn uncommitted_calls(&self, run: &Run) -> Vec<String> {
        let StepFunctions::Calls { invocation, .. } = self else { return Vec::new() };
        let has_ended = |place: usize| invocation.outcome(place).is_some_and(|outcome| outcome.tries > 0);
        let ended = run.open_calls().into_iter().filter(|(place, _)| has_ended(*place));
        ended.map(|(_, call)| call.id).collect()
    }

    /// The error of a call that is for the caller.
    pub(super) fn take_error(&mut self) -> Option<FatalError> {
        let StepFunctions::Calls { invocation, .. } = self else { return None };
        invocation.take_error()
    }
}

fn options(run: &Run, cancellation: CancellationToken) -> InvokeOptions {
    let config = run.agent().config();
    let mut options = InvokeOptions::new(cancellation, config.resources.clone())
        .with_limits(config.tool_limits.clone())
        .with_overflow(config.overflow.clone())
        .hosting_calls();
    options.key_scope = run.key_scope();
    options.shown = shown_messages(run);
    options.raise_on_failure = config.raise_on_failure;
    options
}

fn invocation(run: &Run, calls: Arc<[ToolCall]>, options: InvokeOptions) -> Invocation {
    let tools = run.tools().cloned().unwrap_or_default();
    let finished = if run.has_finished_calls() { run.finished_calls() } else { Vec::new() };
    let mut invocation = Invocation::resume(&tools, run.state().clone(), calls, finished, options);
    for (place, answered) in run.answered_calls() {
        invocation.answer(place, answered);
    }
    run.modified_calls().for_each(|place| invocation.mark_given(place));
    invocation
}

/// The messages that the model has been shown in full, and the reply that it has just made.
fn shown_messages(run: &Run) -> Arc<[Range<usize>]> {
    let view = run.view();
    if view.is_whole() {
        // The usual case: all of it, for one allocation.
        return std::iter::once(0..usize::MAX).collect();
    }
    let seen = view.kept().len() + view.dropped();
    view.shown_in_full().ranges().iter().cloned().chain(std::iter::once(seen..usize::MAX)).collect()
}

/// The branches of a step, which start in order, a limited number at a time.
pub(super) struct BranchQueue {
    queue: VecDeque<usize>,
    running: BTreeSet<usize>,
    max_parallel: usize,
    stop: CancellationToken,
}

impl BranchQueue {
    /// The branches that start next; `None` when all have ended. It is pending while all that may start are running.
    async fn next(&mut self) -> Option<StepEvent> {
        let free = self.max_parallel.saturating_sub(self.running.len()).min(self.queue.len());
        if free > 0 && !self.stop.is_cancelled() {
            let places: Vec<usize> = self.queue.drain(..free).collect();
            self.running.extend(&places);
            return Some(StepEvent::Starting(places));
        }
        if self.running.is_empty() {
            return None;
        }
        std::future::pending().await
    }
}
