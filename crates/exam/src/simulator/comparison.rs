//! Runs that have ended: what holds for each, and what for two of which one was ended in the middle.

use std::collections::{BTreeMap, BTreeSet};

use stepfold_agent_loop::{Event, Outcome, Recording, Run};
use stepfold_state_core::state::State;
use stepfold_tools::Effect;

use super::effect_ledger::EffectLedger;
use super::inner_starts::beginnings;
use super::{json_of, same};
use crate::executions::ExecutionCount;

/// A part of a run: from its start or an interruption to its end or the next interruption.
pub(super) struct RunSegment {
    pub(super) outcome: Outcome,
    pub(super) fault: Option<String>,
    pub(super) is_raised: bool,
    pub(super) stored: Vec<Event>,
    /// The number of notices about work under way.
    pub(super) words: usize,
    pub(super) asked: BTreeMap<(String, u64), String>,
    pub(super) under_way: BTreeSet<String>,
}

/// A run, in one segment or several.
pub(super) struct SimulatedRun {
    pub(super) start: Run,
    pub(super) outcome: Outcome,
    pub(super) fault: Option<String>,
    /// Whether the fault is that of a call.
    pub(super) is_raised: bool,
    /// The events of all segments.
    pub(super) events: Vec<Event>,
    pub(super) words: usize,
    /// The last request to the model at each step of each run.
    pub(super) asked: BTreeMap<(String, u64), String>,
    /// The keys of work that was under way when a segment ended.
    pub(super) under_way: BTreeSet<String>,
    pub(super) executions: BTreeMap<String, ExecutionCount>,
    pub(super) account: EffectLedger,
}

impl SimulatedRun {
    pub(super) fn of(
        start: Run,
        segments: Vec<RunSegment>,
        executions: BTreeMap<String, ExecutionCount>,
    ) -> Self {
        let mut ended = SimulatedRun {
            outcome: Outcome::recorded(start.clone()),
            account: EffectLedger::new(start.agent()),
            start,
            fault: None,
            is_raised: false,
            events: Vec::new(),
            words: 0,
            asked: BTreeMap::new(),
            under_way: BTreeSet::new(),
            executions,
        };
        for segment in segments {
            ended.outcome = segment.outcome;
            ended.fault = segment.fault;
            ended.is_raised = segment.is_raised;
            ended.events.extend(segment.stored);
            ended.words += segment.words;
            ended.asked.extend(segment.asked);
            ended.under_way.extend(segment.under_way);
        }
        ended.account = EffectLedger::of(ended.start.agent(), &ended.events);
        ended
    }

    pub(super) fn state(&self) -> &State {
        self.outcome.state()
    }

    /// The exit and the fault, as text.
    pub(super) fn words(&self) -> String {
        let fault = self.fault.as_deref().unwrap_or_default();
        format!("{} {fault}", self.outcome.exit())
    }

    /// The effect of an execution: by the record; by the call itself, since the tools of a dynamic toolset inside
    /// of a call are in no record; or else by the tools of the whole run.
    fn effect(&self, key: &str, tool: &str) -> Effect {
        let of_call = || self.executions.get(key)?.effect;
        let by_name = || self.outcome.run().tools()?.get(tool).map(stepfold_tools::Tool::effect);
        self.account.effect(key).or_else(of_call).or_else(by_name).unwrap_or(Effect::AtMostOnce)
    }

    /// Checks that a failure of the observer alone lost nothing: no call runs again, and none has an unknown outcome. A
    /// node that failed is attempted again.
    pub(super) fn check_nothing_lost(&mut self) -> Result<(), String> {
        let account = &self.account;
        self.under_way.retain(|key| account.is_branch(key));
        same("the calls with an unknown outcome", &Vec::new(), &self.outcome.unknown_calls())
    }

    pub(super) fn was_interrupted(&self) -> bool {
        self.account.was_interrupted()
    }

    /// Checks the laws that hold for every run.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.outcome.exit().is_resumable() {
            self.outcome.transcript().check().map_err(|faults| format!("not well-formed: {faults}"))?;
        }
        let mut state = self.start.state().clone();
        for event in &self.events {
            event.fold(&mut state).map_err(|error| error.to_string())?;
        }
        same("the state that the events give", &json_of(self.state()), &json_of(&state))?;
        same("the number of events", &self.outcome.run().events(), &(self.events.len() as u64))?;
        let mut recording = Recording::of(&self.start);
        for event in &self.events {
            recording.push(event.clone());
        }
        let replayed = recording.replay(self.start.agent()).map_err(|error| format!("replay: {error}"))?;
        same("the digest of the replay", &self.outcome.run().digest(), &replayed.digest())?;
        same("the exit of the replay", &self.outcome.run().exit(), &replayed.exit())
    }

    /// The failure of a call that ends a run is reported, not recorded: a later process continues after it.
    fn agrees_until_raised(&self, whole: &SimulatedRun) -> Result<(), String> {
        let messages = |ended: &SimulatedRun| {
            let messages = ended.events.iter().flat_map(|event| event.messages.iter());
            messages.map(|message| json_of(&**message)).collect::<Vec<_>>()
        };
        let (expected, mut found) = (messages(whole), messages(self));
        found.truncate(expected.len());
        same("the conversation until the call failed", &expected, &found)
    }

    /// Up to the step in which something was interrupted, nothing differs. In that step, the requests of runs inside are
    /// the same, but for those that come behind an interruption in their own run, and for those of calls that [began with
    /// other values](Self::differing_inner_runs).
    fn agrees_until_interrupted(&self, whole: &SimulatedRun) -> Result<(), String> {
        let Some(step) = self.account.interrupted_at() else { return Ok(()) };
        let until = |ended: &SimulatedRun| {
            let events = ended.events.iter().take_while(|event| event.step <= step);
            let events = events.filter(|event| event.step_end.is_none() || event.step < step);
            let messages = events.clone().flat_map(|event| event.messages.iter());
            // Hooks write in that step also when it has ended.
            let writes = events.filter(|event| event.step < step).flat_map(|event| event.delta.iter());
            let messages = messages.map(|message| json_of(&**message)).collect::<Vec<_>>();
            (messages, writes.map(json_of).collect::<Vec<_>>())
        };
        same("the conversation and the writes before the interruption", &until(whole), &until(self))?;
        let others = self.differing_inner_runs(whole)?;
        let is_behind = |run: &str, step| {
            self.account.is_behind(run, step) || others.iter().any(|other| is_part_of(run, other))
        };
        let asked = |ended: &SimulatedRun| {
            let asked = ended.asked.iter().filter(|((run, step), _)| !is_behind(run, *step));
            asked.map(|(place, request)| (place.clone(), request.clone())).collect::<Vec<_>>()
        };
        same("the requests before the interruption", &asked(whole), &asked(self))
    }

    /// The runs inside of calls, in a step in which something was interrupted, that began with other values than those of
    /// the whole run. A call comes after the earlier ones of its reply that write what it reads, and sees their writes. A call whose
    /// outcome is unknown has none, and an agent that learns of such a call may write anything. Values are
    /// all that a call sees of the others: with the same ones it has to do the same. A run that began in one of the two
    /// only is not among them, and differs.
    fn differing_inner_runs(&self, whole: &SimulatedRun) -> Result<Vec<String>, String> {
        let whole = beginnings(&whole.start, &whole.events)?;
        let began = beginnings(&self.start, &self.events)?.into_iter();
        let others = began.filter(|(run, began)| {
            let is_other = whole.get(run).is_some_and(|whole| whole.values != began.values);
            is_other && self.account.is_interrupted(&began.outer)
        });
        Ok(others.map(|(run, _)| run).collect())
    }

    /// Whether this was under way when a segment ended: by itself, or inside of a call that was.
    fn was_under_way(&self, key: &str) -> bool {
        let is_inside =
            |call: &String| key.strip_prefix(call.as_str()).is_some_and(|inside| inside.starts_with("/run/"));
        self.under_way.contains(key) || self.under_way.iter().any(is_inside)
    }
}

/// Whether this is a run, or one inside of it.
fn is_part_of(run: &str, outer: &str) -> bool {
    run.strip_prefix(outer).is_some_and(|inside| inside.is_empty() || inside.starts_with('/'))
}

/// Compares an interrupted run with the uninterrupted one.
pub(super) fn compare(ended: &SimulatedRun, whole: &SimulatedRun) -> Result<(), String> {
    for (key, execution) in &ended.executions {
        let must_not_repeat = ended.effect(key, &execution.name) == Effect::AtMostOnce;
        // A node that asks begins again when it is answered.
        let most = 1 + ended.account.asked(key);
        if must_not_repeat && execution.times > most && !ended.account.is_allowed_again(key) {
            return Err(format!("{execution:?} with the key {key} must not run twice"));
        }
    }
    if ended.was_interrupted() {
        return ended.agrees_until_interrupted(whole);
    }
    if whole.is_raised {
        return ended.agrees_until_raised(whole);
    }
    same("the exit", &whole.words(), &ended.words())?;
    same("the run", &comparable(whole.outcome.run()), &comparable(ended.outcome.run()))?;
    same("the requests", &whole.asked, &ended.asked)?;
    compare_executions(ended, whole)
}

/// Compares the numbers of executions, except for work that was under way.
fn compare_executions(ended: &SimulatedRun, whole: &SimulatedRun) -> Result<(), String> {
    let keys: BTreeSet<&String> = whole.executions.keys().chain(ended.executions.keys()).collect();
    for key in keys {
        let times = |ended: &SimulatedRun| ended.executions.get(key).map_or(0, |execution| execution.times);
        let (expected, executed) = (times(whole), times(ended));
        let most = if ended.was_under_way(key) { expected * 2 } else { expected };
        if executed < expected || executed > most {
            return Err(format!("what has the key {key} was executed {executed} times, not {expected}"));
        }
    }
    Ok(())
}

/// The run but for the number of its events, and of those of its nodes' agents: calls that were marked one by one
/// may be marked together when the run continues, in one event.
fn comparable(run: &Run) -> String {
    let mut run = serde_json::to_value(run).unwrap_or_default();
    forget_events(&mut run);
    run.to_string()
}

fn forget_events(run: &mut serde_json::Value) {
    if let Some(tally) = run.get_mut("tally").and_then(serde_json::Value::as_object_mut) {
        tally.remove("events");
    }
    let items = run.pointer_mut("/phase/working/items").and_then(serde_json::Value::as_array_mut);
    for child in items.into_iter().flatten().filter_map(|item| item.pointer_mut("/child/run")) {
        forget_events(child);
    }
}
