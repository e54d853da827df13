//! Running the branches of a superstep, side by side: each is announced, marked if it must not run twice, and
//! committed when it has its outcome. An agent that is a node is driven by the driver of agents; what it commits
//! is committed here, before it goes on.

use std::sync::Arc;

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
use crate::graph::{NodeContext, NodeError, NodeErrorKind, NodeWork, Planned, Said, Shape, Update};
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::ports::Clock;
use crate::run::{Answer, Exit, NodeOutcome, NodeStatus, OpenBranch, Pause, Run, takes_failures};

/// What nodes say, and what their agents commit, until the driver takes it. They wait while there is more.
const QUEUE: usize = 64;

/// What a branch came to.
enum Ended {
    Outcome {
        outcome: NodeOutcome,
        usage: Usage,
    },
    /// It could not be run to its end.
    Failed {
        error: String,
        tries: u32,
    },
    /// Its agent took too long.
    TimedOut {
        error: String,
    },
    /// Its function asks somebody to decide.
    Asks(Box<ApprovalRequest>),
    /// Its agent waits, or was stopped: its run says so.
    Waits,
    /// It was stopped.
    Stopped,
    /// Its agent has ended.
    Agent,
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
            // What it said, and what its agent did, came before its end.
            while let Ok(said) = said.try_recv() {
                self.said(run, said).await?;
            }
            while let Ok(told) = told.try_recv() {
                self.told(run, told).await?;
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
        let has_ended = matches!(ended, Ended::Agent);
        let (outcome, usage) = match ended {
            Ended::Waits | Ended::Stopped => return Ok(None),
            Ended::Asks(request) => {
                let requests = vec![*request];
                self.commit(run, Answer::NodeAsks { branch: place, requests }).await?;
                return Ok(None);
            }
            Ended::Outcome { outcome, usage } => (outcome, usage),
            Ended::Failed { error, tries } => {
                (NodeOutcome::failed(NodeStatus::Failed, error, tries), run.usage_of_agent(place))
            }
            Ended::TimedOut { error } => {
                (NodeOutcome::failed(NodeStatus::TimedOut, error, 1), run.usage_of_agent(place))
            }
            Ended::Agent => match run.outcome_of_agent(place) {
                Some(ended) => ended,
                None => return Ok(None),
            },
        };
        let node = name_of(run, place);
        // The run of an agent that has ended gives the same whenever it is looked at, so that is an outcome.
        if let Some(error) = &outcome.error
            && !takes_failures(shape, &node)
            && !has_ended
        {
            self.tell_finished(&node, place, &outcome).await?;
            return Ok(Some(RunFault::Node { node, error: error.clone() }));
        }
        for output in &outcome.outputs {
            let (node, kind, value) = (node.clone(), output.kind.clone(), output.content.clone());
            self.tell(|| RunEvent::Output { node, branch: place, kind, value }).await?;
        }
        self.tell_finished(&node, place, &outcome).await?;
        self.commit(run, Answer::Node { branch: place, outcome, usage }).await?;
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
            return Box::pin(async move { (place, Ended::failed("there is no such node")) });
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
                let decisions = run.branch(place).map(|branch| branch.decisions.clone()).unwrap_or_default();
                let child = match known {
                    Some(child) => Ok(child),
                    None => agent.run(run.state(), &context, run.branch_key(place)),
                };
                let teller = Teller { place, teller: self.teller.clone() };
                let (stop, clock) = (self.stop.clone(), Arc::clone(&self.clock));
                let shape = Arc::clone(shape);
                Box::pin(async move {
                    let ended = match child {
                        Err(error) => Ended::failed(error.to_string()),
                        Ok(child) => {
                            drive_agent(&shape, node, child, decisions, &teller, &stop, &clock).await
                        }
                    };
                    (place, ended)
                })
            }
        }
    }
}

/// Calls the function of a node, as often as it is to be tried.
async fn call(shape: &Shape, place: usize, context: &NodeContext) -> Ended {
    let (name, node) = (&shape.names[place], &shape.nodes[place]);
    let NodeWork::Function(function) = &node.work else { return Ended::Stopped };
    let mut pauses = node.retry.iter().flat_map(stepfold_tools::Retry::pauses);
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
            Err(_) => {
                let time_out = node.time_out.unwrap_or_default();
                (NodeStatus::TimedOut, format!("it took longer than {time_out:?}"))
            }
        };
        let Some(pause) = pauses.next() else { return failed(status, error, tries) };
        tokio::time::sleep(pause).await;
        tries += 1;
    }
}

fn failed(status: NodeStatus, error: impl Into<String>, tries: u32) -> Ended {
    Ended::Outcome { outcome: NodeOutcome::failed(status, error, tries), usage: Usage::default() }
}

/// What a function returned, checked against the schema and the graph.
fn settled(shape: &Shape, name: &str, context: &NodeContext, mut update: Update, tries: u32) -> Ended {
    let delta = match update.delta(context.state().schema()) {
        Ok(delta) => delta,
        Err(error) => return failed(NodeStatus::Failed, error.to_string(), tries),
    };
    let known = shape.node(name).map(|node| node.goes_to.as_slice()).unwrap_or_default();
    if let Some((target, _)) = update.goto.iter().find(|(target, _)| !known.contains(target)) {
        let known = if known.is_empty() { "nowhere".to_owned() } else { known.join(", ") };
        let error = format!("it chose to go to \"{target}\", and declares to go to: {known}");
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
    Ended::Outcome { outcome, usage: Usage::default() }
}

/// Drives the agent of a node until it ends, waits, or has failed as often as it may.
async fn drive_agent(
    shape: &Shape,
    place: usize,
    child: Run,
    decisions: Vec<(String, Decision)>,
    teller: &Teller,
    stop: &CancellationToken,
    clock: &Arc<dyn Clock + '_>,
) -> Ended {
    let node = &shape.nodes[place];
    let mut pauses = node.retry.iter().flat_map(stepfold_tools::Retry::pauses);
    let (mut child, mut decisions, mut tries) = (child, decisions, 1);
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
                Err(_) => return Ended::TimedOut { error: format!("it took longer than {time_out:?}") },
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
            return Ended::Failed { error: crate::graph::chain(&error), tries };
        };
        tries += 1;
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ended::Stopped,
            () = tokio::time::sleep(pause) => {}
        }
        child = error.into_run();
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
