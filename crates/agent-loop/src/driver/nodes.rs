//! Running the branches of a superstep, side by side: each is announced, marked if it must not run twice, and
//! committed when it has its outcome. An agent that is a node is driven by the driver of agents; what it commits
//! is committed here, before it goes on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stepfold_state_core::chat::Usage;
use stepfold_tools::CancellationToken;
use tokio::sync::{mpsc, oneshot};

use super::Host;
use super::model::sleep;
use super::trouble::{Trouble, outcome_in};
use crate::approval::{ApprovalRequest, Decision, nested_path};
use crate::error::{RunError, RunFault};
use crate::graph::progress::keys;
use crate::graph::{
    Node, NodeContext, NodeError, NodeErrorKind, NodeWork, Planned, Said, Shape, Update, listed,
};
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::ports::Clock;
use crate::run::{Answer, Exit, NodeOutcome, NodeStatus, OpenBranch, Pause, Run, takes_failures};

/// What nodes say, and what their agents commit, until the driver takes it. They wait while there is more.
const QUEUE: usize = 64;

/// What a branch came to.
enum Ended {
    Outcome(NodeOutcome),
    /// It could not be run to its end.
    Failed {
        error: String,
        tries: u32,
    },
    /// Its function asks somebody to decide.
    Asks(Box<ApprovalRequest>),
    /// Its agent waits, or was stopped: its run says so.
    Waits,
    /// It was stopped, or the run of the graph failed beside it.
    Stopped,
    /// Its agent has ended.
    Agent,
    /// The time of its agent's try was up, after so many tries.
    TimedOut(u32),
}

impl Ended {
    fn failed(error: impl Into<String>) -> Self {
        Ended::Failed { error: error.into(), tries: 1 }
    }
}

/// What an agent that is a node tells the driver, which answers when it has taken note of it: whether the agent goes on.
struct Told {
    place: usize,
    event: RunEvent,
    goes_on: oneshot::Sender<bool>,
}

type Work<'a> = BoxFuture<'a, (usize, Ended)>;

impl Host<'_> {
    pub(super) async fn run_nodes(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let Some(shape) = run.shape().cloned() else { return Ok(()) };
        if run.is_cancelled_inside() {
            let is_up = self.time_left(run).is_some_and(|left| left.is_zero());
            return self.break_off(run, if is_up { Answer::TimedOut } else { Answer::Cancelled }).await;
        }
        let mut queue = run.open_branches().into_iter();
        let stop = self.cancellation.child_token();
        let (speaker, mut said) = mpsc::channel(QUEUE);
        let (teller, mut told) = mpsc::channel(QUEUE);
        let bench = Bench { speaker, teller, stop: stop.clone(), clock: Arc::clone(&self.clock) };
        let mut work = FuturesUnordered::new();
        let mut up = std::pin::pin!(sleep(self.time_left(run)));
        let (mut is_up, mut failed) = (false, None::<(usize, RunFault)>);
        let mut trouble = Trouble::default();
        while !trouble.is_refusal() {
            let free = shape.max_parallel - work.len();
            if free > 0 && !stop.is_cancelled() && !trouble.is_there() {
                let next: Vec<OpenBranch> = queue.by_ref().take(free).collect();
                if self.start_nodes(run, &next, &mut trouble).await {
                    work.extend(next.into_iter().map(|branch| bench.start(run, &shape, branch)));
                }
            }
            let ended = tokio::select! {
                biased;
                Some(said) = said.recv() => {
                    trouble.note(self.said(run, said).await);
                    continue;
                }
                Some(told) = told.recv() => {
                    self.told(run, told, &mut trouble).await;
                    continue;
                }
                ended = work.next() => ended,
                () = &mut up, if !is_up => {
                    is_up = true;
                    stop.cancel();
                    continue;
                }
            };
            let Some((place, ended)) = ended else { break };
            self.hear_out(run, &mut said, &mut told, &mut trouble).await;
            let ended = match ended {
                // It may be tried again when the run is resumed.
                Ended::TimedOut(_) if trouble.is_there() => Ended::Stopped,
                Ended::TimedOut(tries) => match bench.again(run, &shape, place, tries) {
                    Some(again) => {
                        work.push(again);
                        continue;
                    }
                    None => Ended::TimedOut(tries),
                },
                ended => ended,
            };
            if let Some(fault) = self.node_ended(run, &shape, place, ended, &mut trouble).await
                && failed.as_ref().is_none_or(|(earlier, _)| place < *earlier)
            {
                failed = Some((place, fault));
            }
        }
        let unread = std::iter::from_fn(|| told.try_recv().ok());
        trouble.also_lost(unread.filter_map(|told| told.outcome(run)));
        trouble.end()?;
        match failed {
            _ if is_up => self.break_off(run, Answer::TimedOut).await,
            Some((_, fault)) if !self.is_cancelled() => Err(fault),
            _ => Ok(()),
        }
    }

    /// Branches that must not run twice are marked in the record before they start. Whether the branches may start: once
    /// they are marked, they do.
    async fn start_nodes(&mut self, run: &mut Run, branches: &[OpenBranch], trouble: &mut Trouble) -> bool {
        for OpenBranch { place, planned, .. } in branches {
            let told = self.tell(|| RunEvent::NodeStarted { node: planned.node.clone(), branch: *place });
            if trouble.note(told.await).is_none() {
                return false;
            }
        }
        let marked = branches.iter().filter(|open| run.must_mark_node(&open.planned.node));
        let marked: Vec<usize> = marked.map(|open| open.place).collect();
        if !marked.is_empty() {
            trouble.note(self.commit(run, Answer::Started(marked)).await);
        }
        !trouble.is_refusal()
    }

    /// What a branch said, and what its agent committed, in the moment in which it ended comes before its end.
    async fn hear_out(
        &mut self,
        run: &mut Run,
        said: &mut mpsc::Receiver<Said>,
        told: &mut mpsc::Receiver<Told>,
        trouble: &mut Trouble,
    ) {
        while let Ok(said) = said.try_recv() {
            trouble.note(self.said(run, said).await);
        }
        while !trouble.is_refusal()
            && let Ok(told) = told.try_recv()
        {
            self.told(run, told, trouble).await;
        }
    }

    async fn said(&mut self, run: &Run, said: Said) -> Result<(), RunFault> {
        let node = name_of(run, said.place);
        let Said { place, kind, value } = said;
        self.tell(|| RunEvent::Output { node, branch: place, kind: Some(kind), value }).await
    }

    /// Takes note of what an agent does. When something has failed, it commits what is under way, and begins nothing
    /// more. If its commit is refused, it is never answered.
    async fn told(&mut self, run: &mut Run, told: Told, trouble: &mut Trouble) {
        let Told { place, event, goes_on } = told;
        let is_heard = match event {
            RunEvent::Committed(event) => {
                trouble.note(self.commit(run, Answer::Inner { branch: place, event }).await);
                if trouble.is_refusal() {
                    return;
                }
                true
            }
            event if trouble.is_there() && begins_something(&event) => false,
            event => {
                let node = name_of(run, place);
                let told = self.tell(|| RunEvent::Inner { node, branch: place, event: Box::new(event) });
                trouble.note(told.await).is_some()
            }
        };
        // An agent that was dropped does not wait any more.
        let _ = goes_on.send(is_heard);
    }

    /// Commits what a branch has come to. Gives its failure, if that is for the caller.
    async fn node_ended(
        &mut self,
        run: &mut Run,
        shape: &Shape,
        place: usize,
        ended: Ended,
        trouble: &mut Trouble,
    ) -> Option<RunFault> {
        // The run of an agent that has ended without having finished is over: to go on would give the same.
        let is_over = matches!(ended, Ended::Agent);
        let outcome = match ended {
            _ if trouble.is_refusal() => return None,
            Ended::Waits | Ended::Stopped => return None,
            Ended::TimedOut(tries) => {
                let node = run.branch(place).and_then(|branch| shape.node(&branch.planned.node));
                timed_out(node.and_then(|node| node.time_out), tries)
            }
            Ended::Asks(request) => {
                let requests = vec![*request];
                trouble.note(self.commit(run, Answer::NodeAsks { branch: place, requests }).await);
                return None;
            }
            Ended::Outcome(outcome) => outcome,
            Ended::Failed { error, tries } => NodeOutcome::failed(NodeStatus::Failed, error, tries),
            Ended::Agent => run.outcome_of_agent(place)?,
        };
        let node = name_of(run, place);
        if let Some(error) = &outcome.error
            && !is_over
            && !takes_failures(shape, &node)
        {
            trouble.note(self.tell_finished(&node, place, &outcome).await);
            let node = run.branch(place).map_or(node, |branch| branch.label(place));
            return Some(RunFault::Node { node, error: error.clone() });
        }
        for output in &outcome.outputs {
            let (node, kind, value) = (node.clone(), output.kind.clone(), output.content.clone());
            trouble.note(self.tell(|| RunEvent::Output { node, branch: place, kind, value }).await);
        }
        trouble.note(self.tell_finished(&node, place, &outcome).await);
        // What its agent has used was counted as it was committed.
        trouble
            .note(self.commit(run, Answer::Node { branch: place, outcome, usage: Usage::default() }).await);
        None
    }

    async fn tell_finished(
        &mut self,
        node: &str,
        place: usize,
        outcome: &NodeOutcome,
    ) -> Result<(), RunFault> {
        self.tell(|| RunEvent::NodeFinished {
            node: node.to_owned(),
            branch: place,
            status: outcome.status,
            error: outcome.error.clone(),
        })
        .await
    }
}

impl Told {
    /// The call or branch that came to an end, if that is what it tells.
    fn outcome(&self, run: &Run) -> Option<String> {
        let branch = run.branch(self.place)?;
        let inner = outcome_in(branch.child()?, self.event.committed()?)?;
        Some(nested_path(&branch.label(self.place), &inner))
    }
}

/// Whether an agent is about to begin something, rather than to tell of what it has done.
fn begins_something(event: &RunEvent) -> bool {
    match event {
        RunEvent::Asking { .. } | RunEvent::ToolStarted { .. } | RunEvent::NodeStarted { .. } => true,
        RunEvent::Inner { event, .. } => begins_something(event),
        _ => false,
    }
}

fn name_of(run: &Run, place: usize) -> String {
    run.branch(place).map(|branch| branch.planned.node.clone()).unwrap_or_default()
}

/// What the branches of a superstep have in common.
struct Bench<'a> {
    speaker: mpsc::Sender<Said>,
    teller: mpsc::Sender<Told>,
    stop: CancellationToken,
    clock: Arc<dyn Clock + 'a>,
}

impl<'a> Bench<'a> {
    fn start(&self, run: &Run, shape: &Arc<Shape>, open: OpenBranch) -> Work<'a> {
        let OpenBranch { place, planned, .. } = open;
        let context = NodeContext::of(run, place, self.stop.clone(), Some(self.speaker.clone()));
        let Some(node) = shape.place(&planned.node) else {
            return Box::pin(async move { (place, Ended::failed("it is no node of the graph any more")) });
        };
        match &shape.nodes[node].work {
            NodeWork::Function(_) => {
                let (shape, stop) = (Arc::clone(shape), self.stop.clone());
                Box::pin(async move {
                    let ended = tokio::select! {
                        biased;
                        () = stop.cancelled() => Ended::Stopped,
                        ended = call(&shape, node, &context) => ended,
                    };
                    (place, ended)
                })
            }
            NodeWork::Agent(agent) => {
                let known = run.branch(place).and_then(|branch| branch.child().cloned());
                let child = match known {
                    Some(child) => Ok(child),
                    None => run.child_on(agent, place, &context),
                };
                match child {
                    Ok(child) => self.start_agent(run, shape, place, child, 1, Duration::ZERO),
                    Err(NodeError(NodeErrorKind::Asks(request))) => {
                        Box::pin(async move { (place, Ended::Asks(request)) })
                    }
                    Err(error) => Box::pin(async move { (place, Ended::failed(error.to_string())) }),
                }
            }
        }
    }

    /// Once more after a time-out, from where the agent's run is by now, unless it was tried as often as it may.
    fn again(&self, run: &Run, shape: &Arc<Shape>, place: usize, tries: u32) -> Option<Work<'a>> {
        let branch = run.branch(place)?;
        let pause = pauses(shape.node(&branch.planned.node)?).nth(tries as usize - 1)?;
        let child = branch.child()?.clone();
        Some(self.start_agent(run, shape, place, child, tries + 1, pause))
    }

    /// Drives the agent of a branch after a pause.
    fn start_agent(
        &self,
        run: &Run,
        shape: &Arc<Shape>,
        place: usize,
        child: Run,
        tries: u32,
        pause: Duration,
    ) -> Work<'a> {
        let branch = run.branch(place);
        // What was decided about its prompt is none of the agent's own.
        let pending = child.pending();
        let is_own = |id: &str| pending.iter().any(|request| request.id == id);
        let decided = branch.map(|branch| branch.decisions.as_slice()).unwrap_or_default();
        let decisions = decided.iter().filter(|(id, _)| is_own(id)).cloned().collect();
        let node = branch.and_then(|branch| shape.node(&branch.planned.node)).cloned();
        let teller = Teller { place, teller: self.teller.clone() };
        let (stop, clock) = (self.stop.clone(), Arc::clone(&self.clock));
        Box::pin(async move {
            let Some(node) = node else { return (place, Ended::Stopped) };
            if !pause.is_zero() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return (place, Ended::Stopped),
                    () = tokio::time::sleep(pause) => {}
                }
            }
            (place, drive_agent(&node, child, decisions, &teller, &stop, &clock, tries).await)
        })
    }
}

/// Calls the function of a node, as often as it is to be tried.
async fn call(shape: &Shape, place: usize, context: &NodeContext) -> Ended {
    let (name, node) = (&shape.names[place], &shape.nodes[place]);
    let NodeWork::Function(function) = &node.work else { return Ended::Stopped };
    let mut pauses = pauses(node);
    let mut tries = 1;
    loop {
        let result = match node.time_out {
            None => Ok(function(context.clone()).await),
            Some(time_out) => tokio::time::timeout(time_out, function(context.clone())).await,
        };
        let (status, error) = match result {
            Ok(Ok(update)) => return settled(shape, name, context, update, tries),
            Ok(Err(NodeError(NodeErrorKind::Asks(request)))) => return Ended::Asks(request),
            Ok(Err(NodeError(NodeErrorKind::Failed { message, is_permanent: true }))) => {
                return failed(NodeStatus::Failed, message, tries);
            }
            Ok(Err(error)) => (NodeStatus::Failed, error.to_string()),
            Err(_) => (NodeStatus::TimedOut, too_long(node.time_out)),
        };
        let Some(pause) = pauses.next() else { return failed(status, error, tries) };
        tokio::time::sleep(pause).await;
        tries += 1;
    }
}

fn timed_out(time_out: Option<Duration>, tries: u32) -> NodeOutcome {
    NodeOutcome::failed(NodeStatus::TimedOut, too_long(time_out), tries)
}

fn too_long(time_out: Option<Duration>) -> String {
    format!("it took longer than {:?}", time_out.unwrap_or_default())
}

fn failed(status: NodeStatus, error: impl Into<String>, tries: u32) -> Ended {
    Ended::Outcome(NodeOutcome::failed(status, error, tries))
}

/// What a function returned, checked against the schema and the graph.
fn settled(shape: &Shape, name: &str, context: &NodeContext, mut update: Update, tries: u32) -> Ended {
    let delta = match update.delta(context.state().schema()) {
        Ok(delta) => delta,
        Err(error) => return failed(NodeStatus::Failed, NodeError::from(error).to_string(), tries),
    };
    if !update.outputs.is_empty()
        && let Err(error) = context.state().schema().check_write_to(keys::OUTPUTS.name(), None)
    {
        return failed(NodeStatus::Failed, format!("it gives outputs: {error}"), tries);
    }
    let known = shape.node(name).map(|node| node.goes_to.as_slice()).unwrap_or_default();
    if let Some((target, _)) = update.goto.iter().find(|(target, _)| !known.contains(target)) {
        let known = match known.is_empty() {
            true => "nowhere".to_owned(),
            false => listed(known.iter().map(String::as_str)),
        };
        let error = format!("it chose to go to \"{target}\", and declares to go to: {known}; see `goes_to`");
        return failed(NodeStatus::Failed, error, tries);
    }
    let outputs = update.outputs.into_iter().map(|(kind, content)| {
        let output = context.track().output(content);
        match kind {
            Some(kind) => output.kind(kind),
            None => output,
        }
    });
    let outcome = NodeOutcome {
        delta,
        messages: update.messages,
        outputs: outputs.collect(),
        goto: update.goto.into_iter().map(|(node, item)| Planned { node, item }).collect(),
        tries,
        ..NodeOutcome::default()
    };
    Ended::Outcome(outcome)
}

/// The pauses before each further try.
fn pauses(node: &Node) -> impl Iterator<Item = Duration> {
    node.retry.into_iter().flat_map(|retry| retry.pauses())
}

/// Drives the agent of a node until it ends, waits, has failed as often as it may, or its time is up.
async fn drive_agent(
    node: &Node,
    child: Run,
    decisions: Vec<(String, Decision)>,
    teller: &Teller,
    stop: &CancellationToken,
    clock: &Arc<dyn Clock + '_>,
    mut tries: u32,
) -> Ended {
    let mut pauses = pauses(node).skip(tries as usize - 1);
    let (mut child, mut decisions) = (child, decisions);
    loop {
        let running = child
            .resume()
            .clock(Arc::clone(clock))
            .observe(teller.clone())
            .cancel_with(stop.clone())
            .decide_all(std::mem::take(&mut decisions))
            .into_future();
        let ended = match node.time_out {
            None => running.await,
            Some(time_out) => match tokio::time::timeout(time_out, running).await {
                Ok(ended) => ended,
                // How far it has come only the run of the graph knows.
                Err(_) => return Ended::TimedOut(tries),
            },
        };
        let error: RunError = match ended {
            Ok(outcome) if matches!(outcome.exit(), Exit::Paused(Pause::Approval)) => return Ended::Waits,
            Ok(outcome) if *outcome.exit() == Exit::Cancelled && stop.is_cancelled() => {
                return Ended::Stopped;
            }
            Ok(_) => return Ended::Agent,
            // The run of the graph has failed, which knows why.
            Err(error) if matches!(error.fault(), RunFault::Observer(_) | RunFault::Commit { .. }) => {
                return Ended::Stopped;
            }
            Err(error) => error,
        };
        let Some(pause) = pauses.next() else {
            return Ended::Failed { error: NodeError::from(error).to_string(), tries };
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ended::Stopped,
            () = tokio::time::sleep(pause) => {}
        }
        child = error.into_run();
        tries += 1;
    }
}

/// Tells the driver of the graph what an agent does, and waits until it has taken note of it.
#[derive(Clone)]
struct Teller {
    place: usize,
    teller: mpsc::Sender<Told>,
}

impl Observer for Teller {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let RunEvent::Ended(_) = event {
            return Ok(());
        }
        let (goes_on, answer) = oneshot::channel();
        let told = Told { place: self.place, event: event.clone(), goes_on };
        self.teller.send(told).await?;
        match answer.await? {
            true => Ok(()),
            false => Err("the run of the graph has failed".into()),
        }
    }
}
