//! What happened in a run and in the runs of its nodes' agents, read off the events, by idempotency keys.

use std::collections::{BTreeMap, BTreeSet};

use stepfold_tools::Effect;

use super::RUN_ID;
use crate::agent::Agent;
use crate::approval::Decision;
use crate::graph::{NodeWork, Planned};
use crate::run::{Event, EventKind};

/// What the events of a run say about its branches and calls. Keys are those that nodes and tools are given; runs
/// are known by their ids, from that of the simulated one to those of the agents inside.
#[derive(Clone, Debug)]
pub(super) struct Account {
    agents: BTreeMap<String, Agent>,
    /// The step that each run is at.
    steps: BTreeMap<String, u64>,
    /// The calls, or branches, of each run's open step.
    open: BTreeMap<String, Vec<Open>>,
    /// The run that each is part of, and its superstep.
    outer: BTreeMap<String, (String, u64)>,
    /// What runs do to the world; those of whom that is known.
    effects: BTreeMap<String, Effect>,
    /// The keys of all branches.
    branches: BTreeSet<String>,
    /// How often the function of a branch has asked somebody, before it did anything.
    asked: BTreeMap<String, u64>,
    /// Where something was under way that must not run twice: the run, and its step.
    interrupted: Vec<(String, u64)>,
    /// What may have happened, and somebody had run again.
    allowed: BTreeSet<String>,
}

/// A call or a branch of the open step.
#[derive(Clone, Debug)]
struct Open {
    /// What the ids of requests about it begin with.
    id: String,
    key: String,
    node: Option<String>,
    is_uncertain: bool,
}

impl Account {
    pub(super) fn new(agent: &Agent) -> Self {
        Account {
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
        let mut account = Account::new(agent);
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
            EventKind::Inner { branch, event } => {
                let inner = self.key(run, *branch);
                self.enter(run, *branch, &inner);
                self.note(&inner, event);
            }
            EventKind::NodeAsked { branch, .. } => {
                *self.asked.entry(self.key(run, *branch)).or_default() += 1;
            }
            EventKind::Interrupted { calls, .. } => {
                self.interrupted.push((run.to_owned(), event.step));
                for (place, open) in self.open.entry(run.to_owned()).or_default().iter_mut().enumerate() {
                    open.is_uncertain |= calls.contains(&place);
                }
            }
            EventKind::Decided { decisions, .. } => self.decided(run, decisions),
            _ => {}
        }
    }

    /// The key of a branch of a run's superstep, and the id of its agent's run.
    pub(super) fn key(&self, run: &str, branch: usize) -> String {
        format!("{run}/{}/{branch}", self.step(run))
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

    /// Whether a step of a run comes behind something that was interrupted.
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

    /// What was interrupted, and the runs that this is inside of.
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

    fn planned(&mut self, run: &str, branches: &[Planned]) {
        let mut open = Vec::new();
        for (place, planned) in branches.iter().enumerate() {
            let key = self.key(run, place);
            self.branches.insert(key.clone());
            let id = match planned.item {
                Some(_) => format!("{}#{place}", planned.node),
                None => planned.node.clone(),
            };
            let shape = self.agents.get(run).and_then(|agent| agent.config().graph.clone());
            if let Some(node) = shape.as_ref().and_then(|shape| shape.node(&planned.node))
                && let NodeWork::Function(_) = node.work
            {
                self.effects.insert(key.clone(), node.effect);
            }
            open.push(Open { id, key, node: Some(planned.node.clone()), is_uncertain: false });
        }
        self.open.insert(run.to_owned(), open);
    }

    fn replied(&mut self, run: &str, event: &Event) {
        let mut open = Vec::new();
        for call in event.messages.first().into_iter().flat_map(|reply| reply.tool_calls()) {
            let key = self.call_key(run, &call.id);
            let offer = self.agents.get(run).and_then(Agent::static_offer);
            let effect = offer.and_then(|offer| Some(offer.tools.get(&call.name)?.effect()));
            if let Some(effect) = effect {
                self.effects.insert(key.clone(), effect);
            }
            open.push(Open { id: call.id.clone(), key, node: None, is_uncertain: false });
        }
        self.open.insert(run.to_owned(), open);
    }

    /// Makes the run of a node's agent known.
    fn enter(&mut self, run: &str, branch: usize, inner: &str) {
        if self.agents.contains_key(inner) {
            return;
        }
        self.outer.insert(inner.to_owned(), (run.to_owned(), self.step(run)));
        let node = self.open.get(run).and_then(|open| open.get(branch)?.node.as_deref());
        let shape = self.agents.get(run).and_then(|agent| agent.config().graph.as_ref());
        if let (Some(node), Some(shape)) = (node, shape)
            && let Some(NodeWork::Agent(agent)) = shape.node(node).map(|node| &node.work)
        {
            let agent = agent.agent().clone();
            self.agents.insert(inner.to_owned(), agent);
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
