//! The calls, branches and effects of a run and of the runs of its nodes' agents, read off the events, by idempotency
//! keys.

use std::collections::{BTreeMap, BTreeSet};

use stepfold_agent_loop::{Agent, Decision, Event, EventKind, PlannedBranch};
use stepfold_tools::Effect;

use super::RUN_ID;

/// A ledger of the branches and calls of a run, as its events report them. Keys are those that nodes and tools are given;
/// runs are known by their ids, from that of the simulated one to those of the agents inside.
#[derive(Clone, Debug)]
pub(super) struct EffectLedger {
    agents: BTreeMap<String, Agent>,
    /// The current step of each run.
    steps: BTreeMap<String, u64>,
    /// The calls, or branches, of each run's open step.
    open: BTreeMap<String, Vec<LedgerItem>>,
    /// The run around each, and its superstep.
    outer: BTreeMap<String, (String, u64)>,
    /// The side effects of runs, as far as they are known.
    effects: BTreeMap<String, Effect>,
    /// The keys of all branches.
    branches: BTreeSet<String>,
    /// The number of requests of a branch's function, before its effect.
    asked: BTreeMap<String, u64>,
    /// Each interruption of work that must not run twice: the run, and its step.
    interrupted: Vec<(String, u64)>,
    /// Effects that may have happened, and were repeated by a decision.
    allowed: BTreeSet<String>,
}

/// A call or a branch of the open step.
#[derive(Clone, Debug)]
struct LedgerItem {
    /// The beginning of the ids of requests about it.
    id: String,
    key: String,
    node: Option<String>,
    tool: Option<String>,
    is_uncertain: bool,
}

impl EffectLedger {
    pub(super) fn new(agent: &Agent) -> Self {
        EffectLedger {
            agents: BTreeMap::from([(RUN_ID.to_owned(), agent.clone())]),
            steps: BTreeMap::new(),
            open: BTreeMap::new(),
            outer: BTreeMap::new(),
            effects: BTreeMap::new(),
            branches: BTreeSet::new(),
            asked: BTreeMap::new(),
            interrupted: Vec::new(),
            allowed: BTreeSet::new(),
        }
    }

    pub(super) fn of(agent: &Agent, events: &[Event]) -> Self {
        let mut account = EffectLedger::new(agent);
        for event in events {
            account.note(RUN_ID, event);
        }
        account
    }

    /// Takes note of an event of a run.
    pub(super) fn note(&mut self, run: &str, event: &Event) {
        self.steps.insert(run.to_owned(), event.step);
        match &event.kind {
            EventKind::Planned { branches, .. } => self.planned(run, branches),
            EventKind::Replied { .. } => self.replied(run, event),
            EventKind::Inner { place, event } => {
                let inner = self.inner(run, *place);
                self.register_inner_run(run, *place, &inner);
                self.note(&inner, event);
            }
            EventKind::Asks { place, .. } => {
                *self.asked.entry(self.key(run, *place)).or_default() += 1;
            }
            EventKind::Interrupted { places, .. } => {
                self.interrupted.push((run.to_owned(), event.step));
                for (place, open) in self.open.entry(run.to_owned()).or_default().iter_mut().enumerate() {
                    open.is_uncertain |= places.contains(&place);
                }
            }
            EventKind::Decided { decisions, .. } => self.decided(run, decisions),
            _ => {}
        }
    }

    /// The key of an item of a run's step.
    pub(super) fn key(&self, run: &str, place: usize) -> String {
        let open = self.open.get(run).and_then(|open| open.get(place));
        open.map_or_else(|| format!("{run}/{}/{place}", self.step(run)), |open| open.key.clone())
    }

    /// The id of the run inside of an item, and what its keys begin with.
    pub(super) fn inner(&self, run: &str, place: usize) -> String {
        let is_call =
            self.open.get(run).and_then(|open| open.get(place)).is_some_and(|open| open.tool.is_some());
        let key = self.key(run, place);
        if is_call { format!("{key}/run") } else { key }
    }

    /// The key of a call of a run's step.
    pub(super) fn call_key(&self, run: &str, call: &str) -> String {
        format!("{run}/{}/{}", self.step(run), call.replace('%', "%25").replace('/', "%2F"))
    }

    pub(super) fn step(&self, run: &str) -> u64 {
        self.steps.get(run).copied().unwrap_or(0)
    }

    pub(super) fn effect(&self, key: &str) -> Option<Effect> {
        self.effects.get(key).copied()
    }

    pub(super) fn asked(&self, key: &str) -> u64 {
        self.asked.get(key).copied().unwrap_or(0)
    }

    pub(super) fn is_allowed_again(&self, key: &str) -> bool {
        self.allowed.contains(key)
    }

    /// Whether this is the key of a branch that was planned.
    pub(super) fn is_branch(&self, key: &str) -> bool {
        self.branches.contains(key)
    }

    pub(super) fn was_interrupted(&self) -> bool {
        !self.interrupted.is_empty()
    }

    /// The step of the simulated run in which something was interrupted first, be it further inside.
    pub(super) fn interrupted_at(&self) -> Option<u64> {
        let steps = self.interruptions().into_iter().filter(|(run, _)| run == RUN_ID);
        steps.map(|(_, step)| step).min()
    }

    /// Whether something was interrupted in this step of a run, be it further inside.
    pub(super) fn is_interrupted(&self, place: &(String, u64)) -> bool {
        self.interruptions().contains(place)
    }

    /// Whether a step of a run comes after the step in which something was interrupted.
    pub(super) fn is_behind(&self, run: &str, step: u64) -> bool {
        self.interruptions().iter().any(|(interrupted, at)| {
            if run == interrupted {
                return step > *at;
            }
            let inside = run.strip_prefix(interrupted.as_str()).and_then(|inside| inside.strip_prefix('/'));
            let outer_step = inside.and_then(|inside| inside.split('/').next()?.parse::<u64>().ok());
            outer_step.is_some_and(|step| step > *at)
        })
    }

    /// The interrupted runs and steps, and the runs around them.
    fn interruptions(&self) -> BTreeSet<(String, u64)> {
        let mut all = BTreeSet::new();
        for (run, step) in &self.interrupted {
            let mut place = Some((run.clone(), *step));
            while let Some((run, step)) = place {
                place = self.outer.get(&run).cloned();
                all.insert((run, step));
            }
        }
        all
    }

    fn planned(&mut self, run: &str, branches: &[PlannedBranch]) {
        let mut open = Vec::new();
        for (place, planned) in branches.iter().enumerate() {
            let key = format!("{run}/{}/{place}", self.step(run));
            self.branches.insert(key.clone());
            let id = match planned.item {
                Some(_) => format!("{}#{place}", planned.node),
                None => planned.node.clone(),
            };
            let planner = self.agents.get(run).and_then(|agent| agent.planner());
            if let Some(effect) = planner.and_then(|planner| planner.effect(&planned.node)) {
                self.effects.insert(key.clone(), effect);
            }
            open.push(LedgerItem {
                id,
                key,
                node: Some(planned.node.clone()),
                tool: None,
                is_uncertain: false,
            });
        }
        self.open.insert(run.to_owned(), open);
    }

    fn replied(&mut self, run: &str, event: &Event) {
        let mut open = Vec::new();
        for call in event.messages.first().into_iter().flat_map(|reply| reply.tool_calls()) {
            let key = self.call_key(run, &call.id);
            let tools = self.agents.get(run).and_then(Agent::tools);
            let tool = tools.and_then(|tools| tools.get(&call.name));
            // What is inside of a call says itself what it does.
            let effect = tool.filter(|tool| !tool.is_hosted()).map(stepfold_tools::Tool::effect);
            if let Some(effect) = effect {
                self.effects.insert(key.clone(), effect);
            }
            open.push(LedgerItem {
                id: call.id.clone(),
                key,
                node: None,
                tool: Some(call.name.clone()),
                is_uncertain: false,
            });
        }
        self.open.insert(run.to_owned(), open);
    }

    /// Registers a run inside.
    fn register_inner_run(&mut self, run: &str, place: usize, inner: &str) {
        if self.agents.contains_key(inner) {
            return;
        }
        self.outer.insert(inner.to_owned(), (run.to_owned(), self.step(run)));
        let open = self.open.get(run).and_then(|open| open.get(place));
        let agent = self.agents.get(run);
        if let (Some(open), Some(agent)) = (open, agent) {
            let name = open.node.as_ref().or(open.tool.as_ref());
            if let Some(agent) = name.and_then(|name| agent.inside_of(name)).cloned() {
                self.agents.insert(inner.to_owned(), agent);
            }
        }
    }

    fn decided(&mut self, run: &str, decisions: &[(String, Decision)]) {
        let open = self.open.get(run).map(Vec::as_slice).unwrap_or_default();
        for open in open.iter().filter(|open| open.is_uncertain) {
            let allows = |(id, decision): &(String, Decision)| {
                let rest = id.strip_prefix(&open.id);
                rest.is_some_and(|rest| rest.starts_with(['#', '/']))
                    && !matches!(decision, Decision::Reject { .. })
            };
            if decisions.iter().any(allows) {
                self.allowed.insert(open.key.clone());
            }
        }
    }
}
