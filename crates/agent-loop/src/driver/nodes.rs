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
use crate::approval::{ApprovalRequest, Decision};
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
    /// It was stopped.
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

/// What an agent that is a node tells the driver, which answers when it has taken note of it.
struct Told {
    place: usize,
    event: RunEvent,
    taken: oneshot::Sender<()>,
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
        loop {
            let free = shape.max_parallel - work.len();
            if free > 0 && !stop.is_cancelled() {
                let next: Vec<OpenBranch> = queue.by_ref().take(free).collect();
                self.start_nodes(run, &next).await?;
                work.extend(next.into_iter().map(|branch| bench.start(run, &shape, branch)));
            }
            let ended = tokio::select! {
                biased;
                Some(said) = said.recv() => {
                    self.said(run, said).await?;
                    continue;
                }
                Some(told) = told.recv() => {
                    self.told(run, told).await?;
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
            self.hear_out(run, &mut said, &mut told).await?;
            if let Ended::TimedOut(tries) = ended
                && let Some(again) = bench.again(run, &shape, place, tries)
            {
                work.push(again);
                continue;
            }
            if let Some(fault) = self.node_ended(run, &shape, place, ended).await?
                && failed.as_ref().is_none_or(|(earlier, _)| place < *earlier)
            {
                failed = Some((place, fault));
            }
        }
        match failed {
            _ if is_up => self.break_off(run, Answer::TimedOut).await,
            Some((_, fault)) if !self.is_cancelled() => Err(fault),
            _ => Ok(()),
        }
    }

    /// Branches that must not run twice are marked in the record before they start.
    async fn start_nodes(&mut self, run: &mut Run, branches: &[OpenBranch]) -> Result<(), RunFault> {
        for OpenBranch { place, planned, .. } in branches {
            self.tell(|| RunEvent::NodeStarted { node: planned.node.clone(), branch: *place }).await?;
        }
        let marked = branches.iter().filter(|open| run.must_mark_node(&open.planned.node));
        let marked: Vec<usize> = marked.map(|open| open.place).collect();
        match marked.is_empty() {
            true => Ok(()),
            false => self.commit(run, Answer::Started(marked)).await,
        }
    }

    /// What a branch said, and what its agent committed, in the moment in which it ended comes before its end.
    async fn hear_out(
        &mut self,
        run: &mut Run,
        said: &mut mpsc::Receiver<Said>,
        told: &mut mpsc::Receiver<Told>,
    ) -> Result<(), RunFault> {
        while let Ok(said) = said.try_recv() {
            self.said(run, said).await?;
        }
        while let Ok(told) = told.try_recv() {
            self.told(run, told).await?;
        }
        Ok(())
    }

    async fn said(&mut self, run: &Run, said: Said) -> Result<(), RunFault> {
        let node = name_of(run, said.place);
        let Said { place, kind, value } = said;
        self.tell(|| RunEvent::Output { node, branch: place, kind: Some(kind), value }).await
    }

    /// Takes note of what an agent does. If that fails, the agent is never answered, and goes no further.
    async fn told(&mut self, run: &mut Run, told: Told) -> Result<(), RunFault> {
        let Told { place, event, taken } = told;
        match event {
            RunEvent::Committed(event) => {
                self.commit(run, Answer::Inner { branch: place, event }).await?;
            }
            event => {
                let node = name_of(run, place);
                self.tell(|| RunEvent::Inner { node, branch: place, event: Box::new(event) }).await?;
            }
        }
        // An agent that was dropped does not wait any more.
        let _ = taken.send(());
        Ok(())
    }

    /// Commits what a branch has come to. Gives its failure, if that is for the caller.
    async fn node_ended(
        &mut self,
        run: &mut Run,
        shape: &Shape,
        place: usize,
        ended: Ended,
    ) -> Result<Option<RunFault>, RunFault> {
        // The run of an agent that has ended without having finished is over: to go on would give the same.
        let is_over = matches!(ended, Ended::Agent);
        let outcome = match ended {
            Ended::Waits | Ended::Stopped => return Ok(None),
            Ended::TimedOut(tries) => {
                let node = run.branch(place).and_then(|branch| shape.node(&branch.planned.node));
                timed_out(node.and_then(|node| node.time_out), tries)
            }
            Ended::Asks(request) => {
                let requests = vec![*request];
                self.commit(run, Answer::NodeAsks { branch: place, requests }).await?;
                return Ok(None);
            }
            Ended::Outcome(outcome) => outcome,
            Ended::Failed { error, tries } => NodeOutcome::failed(NodeStatus::Failed, error, tries),
            Ended::Agent => match run.outcome_of_agent(place) {
                Some(ended) => ended,
                None => return Ok(None),
            },
        };
        let node = name_of(run, place);
        if let Some(error) = &outcome.error
            && !is_over
            && !takes_failures(shape, &node)
        {
            self.tell_finished(&node, place, &outcome).await?;
            let node = run.branch(place).map_or(node, |branch| branch.label(place));
            return Ok(Some(RunFault::Node { node, error: error.clone() }));
        }
        for output in &outcome.outputs {
            let (node, kind, value) = (node.clone(), output.kind.clone(), output.content.clone());
            self.tell(|| RunEvent::Output { node, branch: place, kind, value }).await?;
        }
        self.tell_finished(&node, place, &outcome).await?;
        // What its agent has used was counted as it was committed.
        self.commit(run, Answer::Node { branch: place, outcome, usage: Usage::default() }).await?;
        Ok(None)
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
        let (taken, answer) = oneshot::channel();
        let told = Told { place: self.place, event: event.clone(), taken };
        self.teller.send(told).await?;
        Ok(answer.await?)
    }
}
