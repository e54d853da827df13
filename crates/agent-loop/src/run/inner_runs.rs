//! Runs inside of items: an agent that is a tool, or a node. Each of their events is an event of the run around them
//! ([`EventKind::Inner`]), so that they continue after a crash where they were; what they write to shared keys reaches the
//! state around them at the end of the step, as what every item writes does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Write};
use stepfold_tools::ToolError;

use super::event::{Event, EventKind, FoldMode};
use super::input::Input;
use super::load_error::LoadError;
use super::machine::{Run, RunPhase};
use super::step::{InnerRun, InnerRunState, SpentBudget, StepItem, StepPlan};
use super::step_task::StepTask;
use super::unknown_calls::{UnknownCall, under_outer_path};
use super::upgrade::part_of;
use crate::agent::{BranchAgent, EndedAgent, HostedAgent, NotBegun, RunLimits, result_of_call};
use crate::error::FeedError;
use crate::exit::Exit;
use crate::planned::{AttemptPolicy, NodeOutcome};

/// Agents inside agents inside agents: no deeper than this.
const MAX_NESTING: usize = 16;

impl Run {
    /// An item of the open step.
    pub(crate) fn task(&self, place: usize) -> Option<StepTask<'_>> {
        Some(StepTask::new(self, place, self.item(place)?))
    }

    pub(crate) fn item(&self, place: usize) -> Option<&StepItem> {
        self.open_step()?.items.get(place)
    }

    /// The agent inside of an item, if it is known: dynamic toolsets are unknown before they are listed.
    pub(crate) fn inside(&self, task: StepTask<'_>) -> Option<&dyn BranchAgent> {
        match task.planned() {
            Some(planned) => self.planner()?.agent(&planned.node),
            None => self.tool(task.name())?.hosted_as::<HostedAgent>().map(|call| call as &dyn BranchAgent),
        }
    }

    /// The runs inside of items of the open step, whose agents are known.
    pub(crate) fn children(&self) -> impl Iterator<Item = (usize, &Run)> {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        items.iter().enumerate().filter_map(|(place, item)| Some((place, item.child()?)))
    }

    /// The inner run of an item, before its beginning. Its id consists of this run's id and its index, so
    /// that it is the same in every process; its keys are those of the process that continues.
    pub(crate) fn begin_inner_run(
        &self,
        task: StepTask<'_>,
        inside: &dyn BranchAgent,
    ) -> Result<Run, NotBegun> {
        let failed = |error: &dyn std::fmt::Display| NotBegun::Failed(error.to_string());
        if self.depth >= MAX_NESTING {
            return Err(failed(&format_args!("agents are nested deeper than {MAX_NESTING}")));
        }
        let agent = inside.agent_on(&self.state).map_err(NotBegun::Failed)?;
        let branch = task.branch();
        let mut input = Input::on(inside.state_on(&branch).map_err(|error| failed(&error))?);
        if let Some(prompt) = inside.prompt(&branch)? {
            input = input.say(prompt);
        }
        let run = Run::new(&agent, input, task.inner_id()).map_err(|error| failed(&error))?;
        Ok(self.as_inner_run(task, run))
    }

    /// The run inside of an item as it is, or as it would begin. None if its agent is not known.
    pub(crate) fn child_of(&self, place: usize) -> Result<Option<Run>, FeedError> {
        let task = self.task(place).ok_or(FeedError::NoSuchItem { place })?;
        if let Some(child) = task.item.child() {
            return Ok(Some(child.clone()));
        }
        let Some(inside) = self.inside(task) else { return Ok(None) };
        let begun = self.begin_inner_run(task, inside);
        begun.map(Some).map_err(|error| fault_of(task, error))
    }

    /// Whether the agent inside of an item is known whatever the tools of the step are.
    pub(crate) fn knows_agent_inside(&self, task: StepTask<'_>) -> bool {
        task.planned().is_some() || self.agent.static_tool(task.name()).is_some()
    }

    /// A run as part of this one.
    fn as_inner_run(&self, task: StepTask<'_>, mut run: Run) -> Run {
        run.is_of_other_agent = self.is_of_other_agent;
        run.depth = self.depth + 1;
        run.bounds = self.limits_of_inner_runs();
        run.with_key_prefix(task.key())
    }

    /// The remaining limits of this run, for the runs inside of a step of calls. A remainder of zero becomes one, so that
    /// the run inside ends after its first step. A plan has its own bounds, which it looks at between supersteps.
    fn limits_of_inner_runs(&self) -> Option<RunLimits> {
        // NOTE: A function of the record, so that every host finds the same. Work beside it in the step is not
        // subtracted: the limits of this run are checked when the step has ended.
        let StepPlan::Calls(calls) = &self.open_step()?.plan else { return None };
        let (limits, SpentBudget { calls, tokens, elapsed }) = (self.limits(), calls.spent);
        Some(RunLimits {
            steps: u64::MAX,
            calls_per_reply: usize::MAX,
            tool_calls: limits.tool_calls.map(|limit| limit.saturating_sub(calls).max(1)),
            tokens: limits.tokens.map(|limit| limit.saturating_sub(tokens).max(1)),
            time: limits.time.map(|limit| limit.saturating_sub(elapsed).max(Duration::from_millis(1))),
            reply_bytes: limits.reply_bytes,
            empty_replies: limits.empty_replies,
        })
    }

    /// Derives the keys and the limits of the runs inside from this run.
    pub(super) fn rebind_inner_runs(&mut self) {
        for place in self.places_of_children() {
            let Some(mut child) = self.take_child(place) else { continue };
            child.run = match (child.run, self.task(place)) {
                (InnerRunState::Run(run), Some(task)) => {
                    InnerRunState::Run(Box::new(self.as_inner_run(task, *run)))
                }
                (run, _) => run,
            };
            self.put_child(place, child);
        }
    }

    pub(super) fn places_of_children(&self) -> Vec<usize> {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default().iter().enumerate();
        items.filter(|(_, item)| item.child.is_some()).map(|(place, _)| place).collect()
    }

    pub(super) fn take_child(&mut self, place: usize) -> Option<Box<InnerRun>> {
        let RunPhase::Working(step) = &mut self.phase else { return None };
        step.items.change(place, |item| item.child.take())?
    }

    pub(super) fn put_child(&mut self, place: usize, child: Box<InnerRun>) {
        if let RunPhase::Working(step) = &mut self.phase {
            step.items.change(place, |item| item.child = Some(child));
        }
    }

    /// Folds an event of a run inside into that run, and its writes to shared keys into its item. All or nothing.
    /// Returns the calls that have an unknown outcome now.
    pub(super) fn commit_inner(
        &mut self,
        event: &Event,
        folding: FoldMode,
    ) -> Result<Vec<UnknownCall>, FeedError> {
        let EventKind::Inner { place, event: inner } = &event.kind else { return Ok(Vec::new()) };
        // NOTE: The commits of an inner run are commits of this one, so that after a crash only uncommitted work runs
        // again.
        let mut child = self.take_child(*place).unwrap_or_default();
        let committed = self.fold_inner(*place, &mut child, inner, folding);
        let has_begun = !matches!(child.run, InnerRunState::Unknown) || !child.events.is_empty();
        if has_begun {
            let pending = child.run().map(Run::pending);
            if let RunPhase::Working(step) = &mut self.phase {
                step.items.change(*place, |item| {
                    // What was asked before is decided: the run inside has gone on.
                    item.asked = Vec::new();
                    if let Some(pending) = pending {
                        item.decisions.retain(|(id, _)| pending.iter().any(|request| request.id == *id));
                    }
                });
            }
            self.put_child(*place, child);
        }
        committed
    }

    fn fold_inner(
        &self,
        place: usize,
        child: &mut InnerRun,
        event: &Event,
        folding: FoldMode,
    ) -> Result<Vec<UnknownCall>, FeedError> {
        let task = self.task(place).ok_or(FeedError::NoSuchItem { place })?;
        let Some(inside) = self.inside(task).filter(|_| !matches!(child.run, InnerRunState::Stored(_)))
        else {
            child.events.push(event.clone());
            return Ok(Vec::new());
        };
        if let (EventKind::Edited { .. }, InnerRunState::Run(_)) = (&event.kind, &child.run) {
            self.edit_child(place, child, event, folding);
            return Ok(Vec::new());
        }
        let mut run = match std::mem::take(&mut child.run) {
            InnerRunState::Run(run) => run,
            _ => Box::new(self.new_child(task, event, folding)?),
        };
        let known = run.unknown_calls().len();
        let committed = match run.follow(event) {
            // The values that it was made on have gone on; with what it wrote they may be too much.
            Err(FeedError::State(_)) if folding == FoldMode::CatchUp => run.catch_up(event.clone()),
            committed => committed,
        };
        run.is_taken_up = folding == FoldMode::CatchUp;
        if folding == FoldMode::CatchUp {
            run.take_over();
        }
        if let Err(error) = committed {
            if run.events() > 0 {
                child.run = InnerRunState::Run(run);
            }
            return Err(error);
        }
        let is_plan = matches!(event.kind, EventKind::Planned { .. });
        let own = run.planner().filter(|_| is_plan);
        let is_shared = |write: &&Write| {
            own.is_none_or(|planner| !planner.is_own(write))
                && inside.shares_write(self.state.schema(), write)
        };
        child.writes.extend(event.delta.iter().filter(is_shared).cloned());
        // What a run begins with was said by others.
        if !matches!(event.kind, EventKind::Began { .. }) {
            child.messages.extend(event.messages.iter().cloned());
        }
        let unknown = run.unknown_calls()[known..].to_vec();
        child.run = InnerRunState::Run(run);
        Ok(under_outer_path(&task.label(), unknown).collect())
    }

    /// The run inside of an item, before its first event.
    fn new_child(&self, task: StepTask<'_>, event: &Event, folding: FoldMode) -> Result<Run, FeedError> {
        let place = task.place;
        let EventKind::Began { id, .. } = &event.kind else { return Err(FeedError::NoSuchItem { place }) };
        let inside = self.inside(task).ok_or(FeedError::NoSuchItem { place })?;
        let agent = match inside.agent_on(&self.state) {
            Ok(agent) => agent,
            // NOTE: The agent is adjusted by values of then, and the state has those of now: that must not stop a run
            // from being read.
            Err(_) if folding == FoldMode::CatchUp => inside.agent().clone(),
            Err(error) => return Err(fault_of(task, NotBegun::Failed(error))),
        };
        let input = Input::recorded(inside.state_on(&task.branch())?, event);
        let run = Run::new(&agent, input, id.as_str());
        let run = run.map_err(|error| fault_of(task, NotBegun::Failed(error.to_string())))?;
        Ok(self.as_inner_run(task, run))
    }

    /// The next event of a run inside, as a record may have it that outlives the run.
    pub(super) fn lasting_inner_event(&self, place: usize, event: &Event) -> Option<Event> {
        let task = self.task(place)?;
        match task.item.child() {
            Some(child) => Some(child.lasting(event)),
            None => self.new_child(task, event, FoldMode::Live).ok().map(|child| child.lasting(event)),
        }
    }

    /// Attaches agents to the runs inside that wait for them: those that were loaded, and those whose agents are among
    /// tools that were not known. Returns the changes of these agents, each with the part that has the agent.
    pub(super) fn attach_agents(&mut self) -> Result<Vec<(String, String)>, LoadError> {
        let mut differences = Vec::new();
        for place in self.places_of_children() {
            let Some(mut child) = self.take_child(place) else { continue };
            let (is_kept, unknown) = self.attach_agent(place, &mut child, &mut differences)?;
            self.unknown.extend(unknown);
            if is_kept {
                self.put_child(place, child);
            }
        }
        Ok(differences)
    }

    fn attach_agent(
        &self,
        place: usize,
        child: &mut InnerRun,
        differences: &mut Vec<(String, String)>,
    ) -> Result<(bool, Vec<UnknownCall>), LoadError> {
        let Some(task) = self.task(place) else { return Ok((false, Vec::new())) };
        let what = if task.planned().is_some() { "node" } else { "tool" };
        let name = task.name();
        let Some(inside) = self.inside(task) else {
            // NOTE: Dynamic tools are unknown before they are listed; until then the events of such an agent wait with
            // the call.
            let may_come = task.planned().is_none() && self.tools().is_none();
            if !may_come {
                differences.push((part_of(task), format!("{what} '{name}' has lost its agent")));
            }
            return Ok((may_come, Vec::new()));
        };
        if let InnerRunState::Stored(stored) = &child.run {
            let Ok(agent) = inside.agent_on(&self.state) else {
                differences.push((part_of(task), format!("{what} '{name}' has lost its agent")));
                return Ok((false, Vec::new()));
            };
            let (run, _, changed) = Run::load_recorded(&agent, &stored.to_string())?;
            let changed = changed.into_iter().map(|change| format!("{what} '{name}': {change}"));
            differences.extend(changed.map(|change| (part_of(task), change)));
            child.run = InnerRunState::Run(Box::new(self.as_inner_run(task, run)));
        }
        let mut unknown = Vec::new();
        for event in std::mem::take(&mut child.events) {
            let folded = self.fold_inner(place, child, &event, FoldMode::CatchUp);
            unknown.extend(
                folded
                    .map_err(|error| LoadError::Inside { name: name.to_owned(), error: Box::new(error) })?,
            );
        }
        Ok((true, unknown))
    }

    /// The outcome of a branch whose agent has ended.
    pub(crate) fn outcome_inside(&self, place: usize) -> Option<NodeOutcome> {
        let item = self.item(place)?;
        let (planned, ended) = (item.planned.as_ref()?, item.ended_inside()?);
        Some(self.planner()?.outcome(&self.state, planned, &ended))
    }

    /// The result and the writes of a call whose agent has ended.
    pub(crate) fn result_inside(&self, place: usize) -> Result<(Value, Delta), ToolError> {
        match self.item(place).and_then(StepItem::ended_inside) {
            Some(ended) => result_of_call(&ended),
            None => Err(ToolError::permanent("the agent has not begun")),
        }
    }

    /// The limits of attempts of the work inside of an item. A call is attempted once, within the limits of its agent.
    pub(crate) fn attempts(&self, place: usize) -> AttemptPolicy {
        let planned = self.item(place).and_then(|item| item.planned.as_ref());
        let attempts = planned.zip(self.planner()).map(|(planned, planner)| planner.attempts(&planned.node));
        attempts.unwrap_or_default()
    }

    /// Replaces a run inside by one with tools that were offered to it.
    pub(crate) fn replace_inner_run(&mut self, place: usize, run: Run) {
        if let Some(mut child) = self.take_child(place) {
            child.run = InnerRunState::Run(Box::new(run));
            self.put_child(place, child);
        }
    }

    /// Whether a run inside of an open item has been cancelled: as part of this run, whose own end is not recorded.
    pub(crate) fn is_cancelled_inside(&self) -> bool {
        self.children().any(|(_, child)| child.exit() == Some(&Exit::Cancelled))
    }
}

/// The result of an agent inside.
impl StepItem {
    pub(crate) fn ended_inside(&self) -> Option<EndedAgent<'_>> {
        let child = self.child.as_ref()?;
        let answer = answer_of(child.run()?, &child.messages);
        Some(EndedAgent { answer, writes: &child.writes, said: &child.messages })
    }
}

/// The answer of a run: the output if there is one, else the last words. An error says why there is none.
fn answer_of(run: &Run, messages: &[Arc<Message>]) -> Result<Option<Value>, String> {
    let exit = run.exit().cloned().unwrap_or(Exit::Failed);
    if !is_end(&exit) && !has_final_answer(run, &exit) {
        return Err(format!("the agent did not finish: {exit}"));
    }
    Ok(run.output().cloned().or_else(|| exit.last_words_of(run.agent(), messages).map(Value::String)))
}

/// Whether an agent that ended so has done what it was asked.
const fn is_end(exit: &Exit) -> bool {
    matches!(exit, Exit::Text | Exit::Tool(_) | Exit::Output | Exit::NoTools | Exit::Hook(_) | Exit::End)
}

/// Whether the agent was asked at a limit for the best answer that it can give, and gave one.
fn has_final_answer(run: &Run, exit: &Exit) -> bool {
    let is_limit = matches!(exit, Exit::MaxSteps | Exit::MaxToolCalls | Exit::MaxTokens);
    let is_answer =
        |reply: &Arc<Message>| reply.tool_calls().next().is_none() && !reply.text().trim().is_empty();
    is_limit && run.agent().config().final_answer && run.reply().is_some_and(is_answer)
}

fn fault_of(task: StepTask<'_>, error: NotBegun) -> FeedError {
    let words = match error {
        NotBegun::Failed(words) => words,
        NotBegun::Asks(request) => format!("approval `{}` is pending", request.id),
    };
    FeedError::Inside { name: task.name().to_owned(), words }
}
