//! Upgrades: a run that was recorded with one agent continues with another.
//!
//! A record counts, whatever the agent of today would have done: between two steps the phase is the recorded one, and the
//! new agent decides from the end of the record on.

use std::fmt;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::Role;
use stepfold_tools::Effect;

use super::event::EventKind;
use super::machine::{Run, RunPhase};
use super::step::{OpenStep, StepPlan};
use super::step_task::StepTask;
use crate::agent::{
    AGENT_PART, ATTEMPTS_PART, AgentChange, ChangeKind, DEPENDENCIES_PART, EFFECT_PART, Fingerprint,
    HookPoint, HookVerdict, TOOLS_PART,
};
use crate::approval::nested_path;
use crate::digest;
use crate::error::FeedError;
use crate::exit::Exit;

/// A change of an agent, beside the run that it would continue: see [`Run::check_upgrade`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentUpgrade {
    /// All changes of the agent.
    pub changes: Vec<AgentChange>,
    /// The changes that touch work of the run that is open.
    pub touches: Vec<TouchedWork>,
}

/// Open work of a run that a change of its agent touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TouchedWork {
    /// The change.
    pub change: AgentChange,
    /// The touched part of the run, in words: ``call `c1` is open``, ``key `docs` has a value``.
    pub work: String,
}

impl fmt::Display for TouchedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, and {}", self.change, self.work)
    }
}

impl AgentUpgrade {
    /// Whether the agent is the same.
    pub const fn is_unchanged(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether the run can continue as if it had this agent from here on: no change touches what is open.
    pub const fn is_ahead_only(&self) -> bool {
        self.touches.is_empty()
    }
}

/// An upgrade that is not in the record yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingUpgrade {
    from: String,
    changes: Vec<AgentChange>,
    /// The items that are asked about again, each by its path of places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    asked: Vec<Vec<usize>>,
    /// The items that may have begun while they were repeatable, and must not run twice now, each by its path of places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    interrupted: Vec<Vec<usize>>,
}

impl Run {
    /// The changes since `recorded`, the agent that the run was recorded with, and the open work that they touch.
    ///
    /// A change is ahead of a run if nothing that is open depends on it: instructions, model, limits, trim, hooks,
    /// descriptions, new tools and keys. It touches the run if a call of its tool is open and the tool is gone or has another
    /// schema, effect, rule of approval or binding, or the server is gone that listed it; if its state key has a value that is read as it was stored, which `has_value` says; if a branch of its graph is open; and if the agent has another name. The same holds in the
    /// agent of an open call or branch.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Run};
    /// use stepfold_tools::{Approval, Effect, Tool, ToolError};
    ///
    /// async fn pay() -> Result<&'static str, ToolError> {
    ///     Ok("paid")
    /// }
    /// let tool = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always);
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let agent = Agent::builder(model).tools([tool.build()?]).build()?;
    /// let waiting = agent.run("pay the bill").await?.into_run();
    ///
    /// let kinder = agent.to_builder().instructions("Be kind.").build()?;
    /// let (run, _) = Run::load_changed(&kinder, &waiting.to_json())?;
    /// assert!(run.check_upgrade(agent.fingerprint(), |_| false).is_ahead_only());
    ///
    /// let pay_again = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).effect(Effect::Idempotent);
    /// # let model = Script::parse("")?;
    /// let other = Agent::builder(model).tools([pay_again.build()?]).build()?;
    /// let (run, _) = Run::load_changed(&other, &waiting.to_json())?;
    /// let upgrade = run.check_upgrade(agent.fingerprint(), |_| false);
    /// assert_eq!(upgrade.touches[0].to_string(), "tool pay: effect changed, and call `c1` is open");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn check_upgrade(&self, recorded: &Fingerprint, has_value: impl Fn(&str) -> bool) -> AgentUpgrade {
        let changes = self.agent.changes_since(recorded);
        let touches = match changes.is_empty() {
            true => Vec::new(),
            false => self.touches(&changes, recorded, &has_value),
        };
        AgentUpgrade { changes, touches }
    }

    fn touches(
        &self,
        changes: &[AgentChange],
        recorded: &Fingerprint,
        has_value: &dyn Fn(&str) -> bool,
    ) -> Vec<TouchedWork> {
        let mut found = Vec::new();
        for change in changes {
            let works = self.work_touched_by(change, recorded, has_value);
            found.extend(works.into_iter().map(|work| TouchedWork { change: change.clone(), work }));
        }
        for (place, child) in self.children() {
            let Some(task) = self.task(place) else { continue };
            let Some(inside) = recorded.inside(&[&part_of(task), AGENT_PART]) else { continue };
            let changes = child.agent.changes_since(inside);
            // A node's agent has values of the graph, which the migrations of the graph convert.
            let is_of_graph = |key: &str| task.planned().is_some() && self.state.get(key).is_some();
            let has_value =
                |key: &str| child.state.get(key).is_some() && (!is_of_graph(key) || has_value(key));
            let inside = child.touches(&changes, inside, &has_value).into_iter();
            found.extend(inside.map(|touched| touched.within(task)));
        }
        found
    }

    fn work_touched_by(
        &self,
        change: &AgentChange,
        recorded: &Fingerprint,
        has_value: &dyn Fn(&str) -> bool,
    ) -> Vec<String> {
        let part = change.part.as_str();
        // The agent of an open item is looked at with its run; before it has begun, all of it is ahead.
        let is_ahead = |inside: &String| [AGENT_PART, ATTEMPTS_PART, DESCRIPTION].contains(&inside.as_str());
        if change.inside.first().is_some_and(is_ahead) {
            return Vec::new();
        }
        match part.split_once(' ') {
            None if part == DEPENDENCIES_PART && change.kind == ChangeKind::Removed => {
                self.open_work_of_dependency(change.inside.first().map(String::as_str))
            }
            Some(("tool", _)) => self.open_work(|task| task.planned().is_none() && part_of(task) == part),
            Some(("node", _)) => self.open_work(|task| task.planned().is_some() && part_of(task) == part),
            Some(("state", key)) => {
                let key = key.strip_prefix("key ").unwrap_or(key);
                let is_new = change.kind == ChangeKind::Added;
                let touches = !is_new && has_value(key);
                if touches { vec![format!("key `{key}` has a value")] } else { Vec::new() }
            }
            _ => match part {
                "name" => vec!["the run is that of another agent".to_owned()],
                "approval" => self.open_work(|task| task.planned().is_none()),
                // The other tools have parts of their own.
                TOOLS_PART => self.open_work(|task| {
                    task.planned().is_none() && recorded.inside(&[&part_of(task)]).is_none()
                }),
                "edges" => self.open_work(|task| task.planned().is_some()),
                _ => Vec::new(),
            },
        }
    }

    /// The open calls of tools that this dependency listed, or any, also of runs inside.
    fn open_work_of_dependency(&self, name: Option<&str>) -> Vec<String> {
        let is_its = |listed_by: &str| name.is_none_or(|name| listed_by == name);
        let mut works = self.open_work(|task| {
            let listed_by = self.item(task.place).and_then(|item| item.dependency.as_deref());
            listed_by.is_some_and(is_its)
        });
        for (place, child) in self.children() {
            let Some(task) = self.task(place) else { continue };
            let inside = child.open_work_of_dependency(name).into_iter();
            works.extend(inside.map(|work| work_within(&work, task)));
        }
        works
    }

    /// The items of the open step without an outcome, in words.
    fn open_work(&self, is_meant: impl Fn(StepTask<'_>) -> bool) -> Vec<String> {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        let open =
            items.iter().enumerate().filter(|(_, item)| !item.is_done() && item.hook_pending().is_none());
        let tasks = open.map(|(place, item)| StepTask::new(self, place, item));
        tasks.filter(|task| is_meant(*task)).map(words_of).collect()
    }

    /// Continues with its agent a run that was recorded with another: the run needs to
    /// [record](super::RunNeed::Upgrade) it first. Open approvals of tools that have changed are asked again, under other ids, so
    /// that no decision approves what was not shown. Nothing changes if the agent is the same.
    ///
    /// For a host that restores runs from a record; [`Run::load_changed`] does it as well.
    pub fn upgrade_from(&mut self, recorded: &Fingerprint) {
        if self.upgrade.is_some() {
            return;
        }
        self.set_other_agent(false);
        let changes = self.agent.changes_since(recorded);
        if changes.is_empty() || matches!(self.phase, RunPhase::Fresh(_) | RunPhase::Done(_)) {
            return;
        }
        let asked = self.asked_again(recorded);
        self.change_rounds(&asked, |round| round + 1);
        let interrupted = self.interrupted_by_upgrade(recorded);
        let pending = PendingUpgrade { from: recorded.digest(), changes, asked, interrupted };
        self.upgrade = Some(Box::new(pending));
    }

    /// Takes back an [upgrade](Run::upgrade_from) that is not recorded: the run is as its record has it. For a host that stores
    /// what is for the other agent.
    #[must_use]
    pub fn without_upgrade(mut self) -> Self {
        if let Some(pending) = self.upgrade.take() {
            self.change_rounds(&pending.asked, |round| round.saturating_sub(1));
            self.set_other_agent(true);
        }
        self
    }

    /// Whether what it has recorded last is of another agent: then only that one can tell whether it has ended.
    pub const fn follows_other_agent(&self) -> bool {
        self.is_of_other_agent
    }

    /// Says that the record has no end: where the rules of this agent would have ended the run after its last step, it continues
    /// to the model, within the limits of this agent. For a host that restores runs from a record, before
    /// [`upgrade_from`](Run::upgrade_from). A decision that was stored for another agent may have completed the step, and one end
    /// condition more or less is no end of the run. A run that has nothing to go on with ends with the record of the upgrade.
    pub fn continue_unended(&mut self) {
        let is_after_step = self.state.messages().last().is_some_and(|last| last.role() == Role::Tool);
        let is_other = self.is_of_other_agent;
        // An event says these, and no rule of an agent.
        let is_recorded = |exit: &Exit| matches!(exit, Exit::Cancelled | Exit::Hook(_));
        // A hook of the other agent may have to see the exit.
        let is_seen = |exit: &Exit| !is_other || matches!(exit, Exit::Tool(_) | Exit::Output);
        let phase = std::mem::replace(&mut self.phase, RunPhase::Opening);
        self.phase = match phase {
            RunPhase::Done(exit) if is_after_step && !is_recorded(&exit) => RunPhase::asking(),
            RunPhase::Leaving(exit) | RunPhase::Closing(exit)
                if is_after_step && !is_recorded(&exit) && !is_seen(&exit) =>
            {
                RunPhase::asking()
            }
            RunPhase::Done(exit) if is_other => RunPhase::Closing(exit),
            phase => phase,
        };
    }

    /// Says that the next events were recorded with another agent: where this one would have decided otherwise between two
    /// steps, the record counts. Until [`upgrade_from`](Run::upgrade_from), or an event of an upgrade to this agent.
    pub fn follow_other_agent(&mut self) {
        self.set_other_agent(true);
    }

    /// The next events are those of this agent.
    pub(crate) fn follow_own_agent(&mut self) {
        self.set_other_agent(false);
    }

    /// The open steps have replies of the agent before, inside as well.
    fn mark_upgraded_steps(&mut self) {
        if let RunPhase::Working(OpenStep { plan: StepPlan::Calls(calls), .. }) = &mut self.phase {
            calls.is_upgraded = true;
        }
        self.change_children(Run::mark_upgraded_steps);
    }

    fn change_children(&mut self, change: impl Fn(&mut Run)) {
        for place in self.places_of_children() {
            let Some(mut child) = self.take_child(place) else { continue };
            if let Some(run) = child.run_mut() {
                change(run);
            }
            self.put_child(place, child);
        }
    }

    fn set_other_agent(&mut self, is_other: bool) {
        self.is_of_other_agent = is_other;
        self.change_children(|run| run.set_other_agent(is_other));
    }

    /// The requests of calls and branches whose tool or node has changed.
    fn asked_again(&self, recorded: &Fingerprint) -> Vec<Vec<usize>> {
        let changes = self.agent.changes_since(recorded);
        let is_changed = |part: &str| {
            let of_part = changes.iter().filter(|change| change.part == part);
            let is_ahead = |inside: &String| [AGENT_PART, ATTEMPTS_PART].contains(&inside.as_str());
            of_part.into_iter().any(|change| !change.inside.first().is_some_and(is_ahead))
        };
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        let mut asked = Vec::new();
        for (place, item) in items.iter().enumerate() {
            let part = part_of(StepTask::new(self, place, item));
            if item.is_asking() && is_changed(&part) {
                asked.push(vec![place]);
            }
            if let (Some(child), Some(inside)) = (item.child(), recorded.inside(&[&part, AGENT_PART])) {
                // A decision that is stored for the run inside is about what was shown, as one that the run has taken.
                let decided = child.decided_items(&item.decisions);
                let is_open = |path: &Vec<usize>| path.first().is_some_and(|first| !decided.contains(first));
                let inside = child.asked_again(inside).into_iter().filter(is_open);
                asked.extend(inside.map(|path| std::iter::once(place).chain(path).collect()));
            }
        }
        asked
    }

    /// The items that may have begun under the other agent, where a tool or a node was repeatable that must not run twice now, or
    /// cannot run any more.
    fn interrupted_by_upgrade(&self, recorded: &Fingerprint) -> Vec<Vec<usize>> {
        let effect = |part: &str| recorded.inside(&[part]).and_then(|part| self.recorded_effect(part));
        let has_changed = |part: &str| recorded.inside(&[part]) != self.agent.fingerprint().inside(&[part]);
        let Some(step) = self.open_step() else { return Vec::new() };
        let mut interrupted = Vec::new();
        for (place, item) in step.items.iter().enumerate() {
            let part = part_of(StepTask::new(self, place, item));
            if let (Some(child), Some(inside)) = (item.child(), recorded.inside(&[&part, AGENT_PART])) {
                let inside = child.interrupted_by_upgrade(inside).into_iter();
                interrupted.extend(inside.map(|path| std::iter::once(place).chain(path).collect()));
            } else if step.was_runnable() && item.may_run() && has_changed(&part) {
                let effect = effect(&part);
                // Only the tools of the step tell whether a server lists it in place of the agent.
                let is_unknown = self.call_at(place).is_some_and(|call| self.tool(&call.name).is_none());
                if self.must_not_repeat(place, effect) || is_unknown && effect == Some(Effect::Idempotent) {
                    interrupted.push(vec![place]);
                }
            }
        }
        interrupted
    }

    /// The effect that a part of a fingerprint says, of a tool or a node.
    fn recorded_effect(&self, part: &Fingerprint) -> Option<Effect> {
        let part = serde_json::to_value(part).ok()?;
        match part.get(EFFECT_PART) {
            Some(effect) => Effect::deserialize(effect).ok(),
            None => self.planner()?.recorded_effect(&part),
        }
    }

    /// Says of the item at a path that it may have begun.
    fn interrupt_at(&mut self, path: &[usize]) {
        self.change_at(path, &|run, place| {
            run.is_lost = true;
            if let RunPhase::Working(step) = &mut run.phase {
                step.items.change(place, |item| item.listed_effect = Some(Effect::Idempotent));
            }
        });
    }

    /// Gives requests other ids: an id has the number of earlier requests about its item.
    fn change_rounds(&mut self, asked: &[Vec<usize>], change: fn(u32) -> u32) {
        for path in asked {
            self.change_at(path, &|run, place| run.change_round(place, change));
        }
    }

    fn change_round(&mut self, place: usize, change: fn(u32) -> u32) {
        let Some(task) = self.task(place) else { return };
        let round = change(task.item.round);
        let asked = task.requests_in_round(round);
        if let RunPhase::Working(step) = &mut self.phase {
            step.items.change(place, |item| (item.round, item.asked) = (round, asked));
        }
    }

    /// Changes the run with the item at a path: this one, or one inside.
    fn change_at(&mut self, path: &[usize], change: &dyn Fn(&mut Run, usize)) {
        match path {
            [] => {}
            [place] => change(self, *place),
            [place, inside @ ..] => {
                let Some(mut child) = self.take_child(*place) else { return };
                if let Some(run) = child.run_mut() {
                    run.change_at(inside, change);
                }
                self.put_child(*place, child);
            }
        }
    }

    /// The event of an upgrade, with the instructions rendered on the state, if they have changed.
    pub(super) fn upgraded(&self) -> Result<EventKind, FeedError> {
        let upgrade = self.upgrade.as_ref().ok_or_else(|| self.not_needed("upgraded"))?;
        let PendingUpgrade { from, changes, asked, interrupted } = (**upgrade).clone();
        let is_told = |change: &AgentChange| matches!(&*change.part, "instructions" | "output");
        let instructions = match changes.iter().any(is_told) {
            true => Some(self.instructions_on(|template| template.render(&self.state))?.unwrap_or_default()),
            false => None,
        };
        let to = self.agent.fingerprint().digest();
        Ok(EventKind::Upgraded { from, to, changes, instructions, asked, interrupted })
    }

    /// Folds the event of an upgrade. What it asks again may be asked already, where this process has found it.
    pub(super) fn note_upgrade(&mut self, kind: &EventKind) {
        let EventKind::Upgraded { to, instructions, asked, interrupted, .. } = kind else { return };
        match self.upgrade.take() {
            Some(pending) if pending.asked == *asked => {}
            _ => self.change_rounds(asked, |round| round + 1),
        }
        for path in interrupted {
            self.interrupt_at(path);
        }
        self.mark_upgraded_steps();
        if let Some(instructions) = instructions {
            self.prompt.set_instructions(Some(instructions.clone()).filter(|text| !text.is_empty()));
        }
        self.set_other_agent(self.agent.fingerprint().digest() != *to);
    }

    /// The phase in which a recorded event of another agent happened, if this agent would be in another between two steps.
    pub(super) fn recorded_phase(&self, kind: &EventKind) -> Option<RunPhase> {
        if matches!(self.phase, RunPhase::Fresh(_) | RunPhase::Working(_)) {
            return None;
        }
        let last = match &self.phase {
            RunPhase::Asking { last, .. } => last.clone(),
            _ => None,
        };
        match kind {
            EventKind::Replied { .. } | EventKind::Narrowed { .. } => {
                Some(RunPhase::Asking { is_hooked: true, last })
            }
            EventKind::Summarized { .. } => Some(RunPhase::condensing()),
            EventKind::Steered | EventKind::Edited { .. } | EventKind::Cancelled | EventKind::TimedOut => {
                Some(RunPhase::Asking { is_hooked: false, last })
            }
            EventKind::Hooked { point, verdict, .. } => match (point, verdict, self.pending_exit()) {
                (HookPoint::BeforeRun, ..) => Some(RunPhase::Opening),
                (HookPoint::BeforeModel, ..) => Some(RunPhase::Asking { is_hooked: false, last }),
                (HookPoint::OnExit, HookVerdict::GoOn, None) => Some(RunPhase::Leaving(Exit::Text)),
                (HookPoint::OnExit, _, Some(exit)) => Some(RunPhase::Leaving(exit.clone())),
                (HookPoint::AfterRun, _, Some(exit)) => Some(RunPhase::Closing(exit.clone())),
                (HookPoint::OnExit | HookPoint::AfterRun, _, None) => Some(self.phase.clone()),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The part of a tool that is only for the model.
const DESCRIPTION: &str = "description";

/// The part of a fingerprint for an item.
pub(super) fn part_of(task: StepTask<'_>) -> String {
    let kind = if task.planned().is_some() { "node" } else { "tool" };
    format!("{kind} {}", task.name())
}

fn words_of(task: StepTask<'_>) -> String {
    let kind = if task.planned().is_some() { "branch" } else { "call" };
    format!("{kind} `{}` is open", task.label())
}

impl TouchedWork {
    /// The same of a run inside.
    fn within(self, task: StepTask<'_>) -> Self {
        let TouchedWork { change, work } = self;
        let change = change.within(AGENT_PART).within(&part_of(task));
        TouchedWork { change, work: work_within(&work, task) }
    }
}

/// Work of a run inside, in words.
fn work_within(work: &str, task: StepTask<'_>) -> String {
    let label = task.label();
    match work.split_once('`') {
        Some((kind, rest)) if kind != "key " => format!("{kind}`{}", nested_path(&label, rest)),
        _ => format!("{work} in `{label}`"),
    }
}

impl Fingerprint {
    /// A digest of all parts.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    ///
    /// let agent = Agent::builder(Script::parse("")?).build()?;
    /// assert_eq!(agent.fingerprint().digest(), agent.to_builder().build()?.fingerprint().digest());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn digest(&self) -> String {
        digest::of(self)
    }
}
