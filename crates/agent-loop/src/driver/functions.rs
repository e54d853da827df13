//! The functions of a step at work: those of tools, which an [`Invocation`] runs, or those of nodes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::Delta;
use stepfold_tools::{
    CallEvent, CallOutcome, CancellationToken, FatalError, InputRequest, Invocation, InvokeOptions, ToolError,
};
use tokio::sync::mpsc;

use super::children::{ChildEnd, Told};
use crate::agent::{BranchEnd, Emitter, HookPoint, NodeFunctions, Planner};
use crate::run::{Fate, Run};

/// What nodes say until the driver takes it. They wait while there is more.
const QUEUE: usize = 64;

/// What a node says while it works.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) place: usize,
    pub(super) kind: String,
    pub(super) value: Value,
}

/// What happens while the items of a step are under way.
pub(super) enum Happened {
    /// These start when the functions are asked what happens next.
    Starting(Vec<usize>),
    /// A tool reports progress.
    Progress { call_id: String, report: Value },
    /// A node says something.
    Said(Said),
    /// A call asks the user.
    Asks { place: usize, requests: Vec<InputRequest> },
    /// Calls have their outcomes, which ended at the same moment.
    Finished(Vec<(usize, CallOutcome)>),
    /// The functions of branches ended at the same moment.
    Called(Vec<(usize, BranchEnd)>),
    /// A run inside tells of what it does.
    Told(Told),
    /// A run inside has come to its end.
    Inside(usize, ChildEnd),
}

/// The functions of a step. They count what is inside of items among the items that run side by side, until that
/// is [held](Functions::hold) or [complete](Functions::complete).
pub(super) enum Functions {
    Calls { invocation: Box<Invocation>, calls: Arc<[ToolCall]>, has_hooks: bool },
    Nodes(Box<Nodes>),
}

impl Functions {
    /// They stop when the run is cancelled, or at their own [token](Functions::stop).
    pub(super) fn of(run: &Run, cancellation: &CancellationToken) -> Self {
        if let Some(planner) = run.planner() {
            return Functions::Nodes(Box::new(Nodes::of(run, planner, cancellation.child_token())));
        }
        let hooks = &run.agent().config().hooks;
        let has_hooks = hooks.has(HookPoint::BeforeTool) || hooks.has(HookPoint::AfterTool);
        let calls: Arc<[ToolCall]> = run.calls_as_run().into();
        let invocation = Box::new(invocation(run, Arc::clone(&calls), cancellation.clone()));
        Functions::Calls { invocation, calls, has_hooks }
    }

    /// Stops what is under way in the step.
    pub(super) fn stop(&self) -> &CancellationToken {
        match self {
            Functions::Calls { invocation, .. } => invocation.cancellation(),
            Functions::Nodes(nodes) => &nodes.stop,
        }
    }

    /// What happens next; none when nothing is left to run, here or inside of items.
    pub(super) async fn next(&mut self, run: &Run) -> Option<Happened> {
        let (invocation, calls, has_hooks) = match self {
            Functions::Nodes(nodes) => return nodes.next(run).await,
            Functions::Calls { invocation, calls, has_hooks } => (invocation, calls, *has_hooks),
        };
        loop {
            match invocation.next().await? {
                CallEvent::Starting { calls } => return Some(Happened::Starting(calls)),
                CallEvent::Progress { call, report } => {
                    return Some(Happened::Progress { call_id: calls[call].id.clone(), report });
                }
                CallEvent::InputRequired { call: place, requests } => {
                    return Some(Happened::Asks { place, requests });
                }
                CallEvent::Finished { call } => {
                    // A hook may take its time, in which nothing that has ended waits to be committed.
                    let others = if has_hooks { Vec::new() } else { invocation.also_finished() };
                    let places = std::iter::once(call).chain(others);
                    let outcomes =
                        places.filter_map(|place| Some((place, invocation.outcome(place)?.clone())));
                    return Some(Happened::Finished(outcomes.collect()));
                }
                _ => {}
            }
        }
    }

    /// The calls, of these that are about to start, that would take other values from the state than those approved.
    pub(super) fn to_ask(&self, run: &Run, places: &[usize]) -> Vec<(usize, Fate)> {
        let Functions::Calls { invocation, .. } = self else { return Vec::new() };
        run.starting_to_ask(places, |place| invocation.state_seen_by(place))
    }

    /// Whether an outcome is amended when it is committed.
    pub(super) const fn amends(&self) -> bool {
        matches!(self, Functions::Calls { has_hooks: true, .. })
    }

    /// What hooks wrote with a call is read by those that wait for it.
    pub(super) fn amend(&mut self, run: &Run, place: usize) {
        if let Functions::Calls { invocation, .. } = self
            && let Some(outcome) = run.finished_call(place)
        {
            invocation.amend(place, outcome);
        }
    }

    /// What is inside of an item has come to its end without an outcome here: it waits, or has one already.
    pub(super) fn hold(&mut self, place: usize) {
        match self {
            // Calls that read what it will have written wait with it.
            Functions::Calls { invocation, .. } => invocation.hold(place),
            Functions::Nodes(nodes) => {
                nodes.inside.remove(&place);
            }
        }
    }

    /// What is inside of a call has its result, whose form is that of the tool.
    pub(super) fn complete(&mut self, place: usize, result: Result<(Value, Delta), ToolError>) {
        match self {
            Functions::Calls { invocation, .. } => invocation.complete(place, result),
            Functions::Nodes(nodes) => {
                nodes.inside.remove(&place);
            }
        }
    }

    /// Starts nothing more. Running functions complete.
    pub(super) fn drain(&mut self) {
        match self {
            Functions::Calls { invocation, .. } => invocation.drain(),
            Functions::Nodes(nodes) => nodes.queue.clear(),
        }
    }

    /// These do not start, and no others do.
    pub(super) fn withdraw(&mut self, places: &[usize]) {
        match self {
            Functions::Calls { invocation, .. } => invocation.withdraw(),
            Functions::Nodes(nodes) => {
                nodes.announced.clear();
                nodes.inside.retain(|place| !places.contains(place));
            }
        }
        self.drain();
    }

    /// The ids of the calls that came to an end which is not committed.
    pub(super) fn ended(&self, run: &Run) -> Vec<String> {
        let Functions::Calls { invocation, .. } = self else { return Vec::new() };
        let has_ended = |place: usize| invocation.outcome(place).is_some_and(|outcome| outcome.tries > 0);
        let ended = run.open_calls().into_iter().filter(|(place, _)| has_ended(*place));
        ended.map(|(_, call)| call.id).collect()
    }

    /// The error of a call that is for the caller.
    pub(super) fn take_error(&mut self) -> Option<FatalError> {
        let Functions::Calls { invocation, .. } = self else { return None };
        invocation.take_error()
    }
}

fn invocation(run: &Run, calls: Arc<[ToolCall]>, cancellation: CancellationToken) -> Invocation {
    let config = run.agent().config();
    let mut options = InvokeOptions::new(cancellation, config.resources.clone())
        .with_limits(config.tool_limits.clone())
        .with_overflow(config.overflow.clone())
        .hosting_calls();
    options.key_scope = run.key_scope();
    options.raise_on_failure = config.raise_on_failure;
    let tools = run.tools().cloned().unwrap_or_default();
    let finished = if run.has_finished_calls() { run.finished_calls() } else { Vec::new() };
    let mut invocation = Invocation::resume(&tools, run.state().clone(), calls, finished, options);
    for (place, answered) in run.answered_calls() {
        invocation.answer(place, answered);
    }
    invocation
}

/// The functions of nodes, as an [`Invocation`] is those of tools.
pub(super) struct Nodes {
    functions: Arc<dyn NodeFunctions>,
    queue: VecDeque<usize>,
    announced: Vec<usize>,
    running: FuturesUnordered<BoxFuture<'static, (usize, BranchEnd)>>,
    /// Branches that have an agent inside, under way.
    inside: BTreeSet<usize>,
    ended: VecDeque<(usize, BranchEnd)>,
    speaker: mpsc::Sender<Said>,
    said: mpsc::Receiver<Said>,
    stop: CancellationToken,
}

impl Nodes {
    fn of(run: &Run, planner: &Arc<dyn Planner>, stop: CancellationToken) -> Self {
        let (speaker, said) = mpsc::channel(QUEUE);
        Nodes {
            functions: Arc::clone(planner).functions(),
            queue: run.open_tasks().map(|task| task.place).collect(),
            announced: Vec::new(),
            running: FuturesUnordered::new(),
            inside: BTreeSet::new(),
            ended: VecDeque::new(),
            speaker,
            said,
            stop,
        }
    }

    /// Cancel-safe: a dropped future loses nothing.
    async fn next(&mut self, run: &Run) -> Option<Happened> {
        self.launch(run);
        loop {
            // What a branch said in the moment in which it ended comes before its end.
            if let Ok(said) = self.said.try_recv() {
                return Some(Happened::Said(said));
            }
            let called = self.also_called();
            if !called.is_empty() {
                return Some(Happened::Called(called));
            }
            let free = self.functions.max_parallel().saturating_sub(self.running.len() + self.inside.len());
            if free > 0 && !self.stop.is_cancelled() && !self.queue.is_empty() {
                return Some(Happened::Starting(self.announce(run, free)));
            }
            if self.running.is_empty() && self.inside.is_empty() {
                return None;
            }
            tokio::select! {
                biased;
                Some(said) = self.said.recv() => return Some(Happened::Said(said)),
                Some(ended) = self.running.next() => self.ended.push_back(ended),
            }
        }
    }

    /// The branches that have ended by now. The output of a branch comes before its end.
    fn also_called(&mut self) -> Vec<(usize, BranchEnd)> {
        let mut called = Vec::new();
        while !self.ended.is_empty() && self.said.is_empty() {
            called.extend(self.ended.pop_front());
            self.ended.extend(self.running.next().now_or_never().flatten());
        }
        called
    }

    fn announce(&mut self, run: &Run, most: usize) -> Vec<usize> {
        let places: Vec<usize> = self.queue.drain(..most.min(self.queue.len())).collect();
        let is_inside = |place: &usize| run.task(*place).is_some_and(|task| run.inside(task).is_some());
        let (inside, functions): (Vec<usize>, Vec<usize>) = places.iter().copied().partition(is_inside);
        self.inside.extend(inside);
        self.announced = functions;
        places
    }

    fn emitter(&self, place: usize) -> Emitter {
        let speaker = self.speaker.clone();
        Emitter::new(move |kind, value| {
            let speaker = speaker.clone();
            Box::pin(async move {
                // The receiver may be gone when the run is torn down.
                let _ = speaker.send(Said { place, kind, value }).await;
            })
        })
    }

    /// Starts what was announced.
    fn launch(&mut self, run: &Run) {
        for place in std::mem::take(&mut self.announced) {
            let Some(branch) = run.task(place).and_then(|task| task.branch()) else { continue };
            let called = Arc::clone(&self.functions).call(branch, self.stop.clone(), self.emitter(place));
            self.running.push(Box::pin(async move { (place, called.await) }));
        }
    }
}
