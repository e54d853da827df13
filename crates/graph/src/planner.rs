//! A graph as a plan of the loop: the next branches, their writes, and the calls of their functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;
use stepfold_agent_loop::plan::{
    AttemptPolicy, BranchAgent, BranchEnd, Emitter, EndedAgent, EndedBranch, NextSuperstep, OpenBranch,
    PlanError, PlanPosition, Planner,
};
use stepfold_agent_loop::{FeedError, NodeOutcome, NodeStatus, PlannedBranch};
use stepfold_state_core::state::{Delta, Handler, Issue, Schema, State, StateError, Write};
use stepfold_tools::{CancellationToken, Effect};

use super::check::own_keys;
use super::context::{NodeContext, NodeError, NodeErrorKind};
use super::definition::{GraphDefinition, name_list};
use super::node::{Node, NodeWork, OnError};
use super::progress::{NodeOutput, NodeRun, RouterDecision, keys, writes};
use super::update::Update;

impl Planner for GraphDefinition {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn parts(&self) -> Vec<(String, Value)> {
        GraphDefinition::parts(self, Node::parts)
    }

    fn first_parts(&self) -> Vec<(String, Value)> {
        GraphDefinition::parts(self, Node::first_parts)
    }

    fn faults(&self, schema: &Schema) -> Vec<Issue> {
        own_keys(schema)
    }

    fn next(
        &self,
        position: PlanPosition<'_>,
        ended: &[EndedBranch<'_>],
        state: &State,
    ) -> Result<NextSuperstep, FeedError> {
        GraphDefinition::next(self, position, ended, state)
    }

    /// Writes to those of the keys that the schema has.
    fn writes(
        &self,
        position: PlanPosition<'_>,
        next: &NextSuperstep,
        state: &State,
    ) -> Result<Delta, PlanError> {
        let schema = state.schema();
        let has = |key: &str| schema.key(key).is_some();
        let mut delta = Delta::new();
        if has(keys::EXECUTION_COUNTS.name()) && !next.branches.is_empty() {
            delta.push(write_of_counts(position, &next.branches, schema)?);
        }
        if has(keys::CURRENT_NODE.name())
            && let Some(last) = next.branches.last()
        {
            delta.push(schema.write(keys::CURRENT_NODE, &last.node)?);
        }
        if has(keys::ROUTER_DECISION.name())
            && let Some(route) = next.routes.last()
        {
            let mut decision = RouterDecision::new(&route.from, route.to.clone());
            decision.reason.clone_from(&route.reason);
            delta.push(schema.write(keys::ROUTER_DECISION, decision)?);
        }
        // NOTE: These writes ride on the event of the plan, so that a reader of the session sees what is under way.
        let mut is_tracked = false;
        for planned in next.branches.iter().filter(|planned| self.is_tracked(&planned.node)) {
            is_tracked = true;
            delta.extend(tracked_run(state, planned).started(state)?);
        }
        if is_tracked {
            let mut state = state.clone();
            state.apply(&delta)?;
            delta.extend(writes::overall_progress(&state)?);
        }
        Ok(delta)
    }

    /// A graph inside counts its own nodes.
    fn is_own(&self, write: &Write) -> bool {
        write.key() == keys::EXECUTION_COUNTS.name()
    }

    /// The counts, and the tasks where it tracks any.
    fn keeps(&self, key: &str) -> bool {
        let is_of_counts = key == keys::EXECUTION_COUNTS.name()
            || key == keys::CURRENT_NODE.name()
            || key == keys::ROUTER_DECISION.name();
        let is_of_tasks = key == keys::TASKS.name() || key == keys::OVERALL_PROGRESS.name();
        is_of_counts || (is_of_tasks && self.nodes.iter().any(|node| node.is_tracked))
    }

    fn merged(
        &self,
        before: &State,
        state: &mut State,
        planned: &PlannedBranch,
        outcome: &NodeOutcome,
    ) -> Result<Delta, PlanError> {
        let mut delta = outcome.delta.clone();
        let run = || tracked_run(before, planned);
        match (&outcome.error, self.is_tracked(&planned.node)) {
            (None, true) => {
                let outputs: Result<Vec<NodeOutput>, _> =
                    outcome.outputs.iter().cloned().map(serde_json::from_value).collect();
                delta.extend(run().completed(state, outputs?)?);
            }
            (Some(error), true) => delta.extend(run().failed(state, run().error(error))?),
            (None, false) if !outcome.outputs.is_empty() => {
                delta.push(state.schema().write(keys::OUTPUTS.name(), Value::from(outcome.outputs.clone()))?);
            }
            _ => {}
        }
        if !delta.is_empty() {
            state.apply(&delta)?;
        }
        Ok(delta)
    }

    fn closed(&self, state: &State, branches: &[&PlannedBranch]) -> Result<Delta, PlanError> {
        // NOTE: From the merged state: each of two branches side by side would write 50 where both are completed.
        match branches.iter().any(|planned| self.is_tracked(&planned.node)) {
            true => Ok(writes::overall_progress(state)?.into_iter().collect()),
            false => Ok(Delta::new()),
        }
    }

    fn effect(&self, node: &str) -> Option<Effect> {
        let node = self.node(node)?;
        matches!(node.work, NodeWork::Function(_)).then_some(node.effect)
    }

    fn recorded_effect(&self, part: &Value) -> Option<Effect> {
        Node::effect_of_parts(part)
    }

    fn agent(&self, node: &str) -> Option<&dyn BranchAgent> {
        match &self.node(node)?.work {
            NodeWork::Agent(agent) => Some(&**agent),
            NodeWork::Function(_) => None,
        }
    }

    fn attempts(&self, node: &str) -> AttemptPolicy {
        self.node(node).map(Node::attempts).unwrap_or_default()
    }

    fn outcome(&self, before: &State, planned: &PlannedBranch, ended: &EndedAgent<'_>) -> NodeOutcome {
        let Some(Node { work: NodeWork::Agent(node), is_tracked, .. }) = self.node(&planned.node) else {
            let error = format!("missing agent of node '{}': the graph has changed", planned.node);
            return NodeOutcome::failed(NodeStatus::Failed, error, 1);
        };
        let is_output = node.kind.is_some() || *is_tracked;
        let output =
            |answer| NodeOutput { kind: node.kind.clone(), ..tracked_run(before, planned).output(answer) };
        let answer = ended.answer.clone();
        let answered =
            answer.and_then(|answer| Ok((node.writes_of(answer.as_ref(), before.schema())?, answer)));
        let (writes, answer) = match answered {
            Ok(answered) => answered,
            Err(error) => return NodeOutcome::failed(NodeStatus::Failed, error, 1),
        };
        let mut outcome = NodeOutcome::succeeded();
        outcome.delta = ended.writes.iter().cloned().chain(writes).collect();
        outcome.outputs = as_values(answer.filter(|_| is_output).map(output).into_iter());
        if node.shares_messages(planned) {
            outcome.messages = ended.said.to_vec();
        }
        outcome
    }

    fn takes_failures(&self, node: &str) -> bool {
        // NOTE: A node that must not run twice cannot be attempted again by a resumed run, so its failure is committed.
        let takes = |node: &Node| node.on_error != OnError::Fail || node.effect == Effect::AtMostOnce;
        self.node(node).is_some_and(takes)
    }

    fn max_parallel(&self) -> usize {
        self.max_parallel
    }

    fn call(
        self: Arc<Self>,
        branch: OpenBranch,
        stop: CancellationToken,
        emitter: Emitter,
    ) -> BoxFuture<'static, BranchEnd> {
        let context = NodeContext::of(branch, stop, Some(emitter));
        Box::pin(async move { call(&self, &context).await })
    }
}

impl GraphDefinition {
    fn is_tracked(&self, node: &str) -> bool {
        self.node(node).is_some_and(|node| node.is_tracked)
    }
}

/// The counts of the nodes of a superstep. Those of the others stay, so that the write is no larger in a large
/// graph; only the first superstep replaces what an earlier run has left.
fn write_of_counts(
    position: PlanPosition<'_>,
    branches: &[PlannedBranch],
    schema: &Schema,
) -> Result<Write, StateError> {
    let mut counts = BTreeMap::new();
    for planned in branches {
        let ran = position.executions.get(&planned.node).copied().unwrap_or(0);
        counts.entry(planned.node.as_str()).or_insert(ran + 1);
    }
    let handler = if position.has_begun { Handler::merge_maps() } else { Handler::replace_values() };
    let key = keys::EXECUTION_COUNTS;
    let counts = serde_json::to_value(counts)
        .map_err(|source| StateError::Encode { key: key.name().to_owned(), source })?;
    schema.write_with(key.name(), counts, &handler)
}

/// Which task a branch works at: the id of its item, or the current one.
pub(super) fn tracked_run(state: &State, planned: &PlannedBranch) -> NodeRun {
    let own = planned.item.as_ref().and_then(|item| item.get("id")?.as_i64());
    let current = || state.get(keys::CURRENT_TASK_ID).ok().flatten();
    let task = if planned.item.is_some() { own } else { own.or_else(current) };
    let run = NodeRun::new(&planned.node);
    match task {
        Some(task) => run.task(task),
        None => run,
    }
}

/// Outputs in their recorded form, JSON objects.
fn as_values(outputs: impl Iterator<Item = NodeOutput>) -> Vec<Value> {
    outputs.map(|output| serde_json::to_value(output).unwrap_or_default()).collect()
}

async fn call(shape: &GraphDefinition, context: &NodeContext) -> BranchEnd {
    let failed = |error: String| NodeOutcome::failed(NodeStatus::Failed, error, 1);
    let Some(Node { work: NodeWork::Function(function), goes_to, .. }) = shape.node(context.node()) else {
        return BranchEnd::Outcome(failed("removed from the graph".to_owned()));
    };
    match function(context.clone()).await {
        Ok(update) => BranchEnd::Outcome(checked_outcome(goes_to, context, update).unwrap_or_else(failed)),
        Err(NodeError(NodeErrorKind::Asks(request))) => BranchEnd::Asks(request),
        // NOTE: As an outcome, since only failures are attempted again.
        Err(NodeError(NodeErrorKind::Failed { message, is_permanent: true })) => {
            BranchEnd::Outcome(failed(message))
        }
        Err(error) => BranchEnd::Failed(error.to_string()),
    }
}

/// The result of a function, checked against the schema and the graph.
fn checked_outcome(
    goes_to: &[String],
    context: &NodeContext,
    mut update: Update,
) -> Result<NodeOutcome, String> {
    let schema = context.state().schema();
    let delta = update.delta(schema).map_err(|error| NodeError::from(error).to_string())?;
    if !update.outputs.is_empty() {
        let checked = schema.check_write_to(keys::OUTPUTS.name(), None);
        checked.map_err(|error| format!("invalid outputs: {error}"))?;
    }
    if let Some((target, _)) = update.goto.iter().find(|(target, _)| !goes_to.contains(target)) {
        let known = match goes_to {
            [] => "none".to_owned(),
            known => name_list(known.iter().map(String::as_str)),
        };
        return Err(format!("undeclared target \"{target}\"; declared: {known}; see `goes_to`"));
    }
    let run =
        tracked_run(context.state(), &PlannedBranch::new(context.node().to_owned(), context.item().cloned()));
    let outputs =
        update.outputs.into_iter().map(|(kind, content)| NodeOutput { kind, ..run.output(content) });
    let mut outcome = NodeOutcome::succeeded();
    outcome.delta = delta;
    outcome.messages = update.messages;
    outcome.outputs = as_values(outputs);
    outcome.goto = update.goto.into_iter().map(|(node, item)| PlannedBranch::new(node, item)).collect();
    Ok(outcome)
}
