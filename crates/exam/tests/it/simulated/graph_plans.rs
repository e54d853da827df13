//! Graphs as they come: chains, branches, loops, fan-outs, joins, routers, nodes of all effects that write, fail, ask
//! and choose, agents and graphs as nodes.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use stepfold_tools::Effect;

use super::scenarios::{self, Behavior, Scenario};

/// A graph, and what its run begins with.
#[derive(Clone, Debug)]
pub(super) struct GraphPlan {
    pub(super) seed: u64,
    pub(super) nodes: Vec<NodePlan>,
    /// Those that are begun with; the first one always is.
    pub(super) starts: Vec<usize>,
    /// The nodes that are waited for, and the one that waits.
    pub(super) joins: Vec<(Vec<usize>, usize)>,
    pub(super) steps: u64,
    pub(super) parallel: usize,
    pub(super) asks_when_uncertain: bool,
}

#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) work: Work,
    /// From which earlier node it can be reached, by its number modulo theirs.
    pub(super) comes_from: usize,
    pub(super) comes: Way,
    /// Where it leads beside.
    pub(super) on: Option<(usize, Way)>,
    pub(super) on_error: Failing,
    pub(super) at_limit: Option<usize>,
    pub(super) max_executions: u64,
    pub(super) is_deferred: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Edge,
    /// To one of the node and the end, by the state.
    Route,
    /// To the node, or to nothing, by the state.
    Maybe,
    FanOut,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Failing {
    Fails,
    GoesOn,
    GoesTo(usize),
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Function { does: Does, effect: Effect, asks: u8, pauses: u8 },
    Agent { scenario: Box<Scenario>, talk: Talk },
    Graph(Box<GraphPlan>),
}

/// What an agent is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Talk {
    /// It continues with the conversation of the graph.
    InConversation,
    Asked,
    /// And its answer is written to a key.
    Answers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Nothing,
    Appends,
    /// Adds to a number that overflows.
    Sums,
    Replaces,
    /// Writes with a handler that does not merge a seven.
    Refuses,
    /// Writes what is not of the key's type.
    Misfits,
    FailsAtFirst,
    FailsForItems,
    Panics,
    /// Takes longer than it may.
    Stalls,
    /// Tells what it reads.
    Reads,
    /// Says what breaks a conversation.
    Babbles,
    /// Chooses where to go.
    Goes(usize),
    GoesAstray,
}

fn does() -> impl Strategy<Value = Does> {
    use Does::{
        Appends, Babbles, FailsAtFirst, FailsForItems, Goes, GoesAstray, Misfits, Nothing, Panics, Reads,
        Refuses, Replaces, Stalls, Sums,
    };
    let mostly = vec![Nothing, Appends, Appends, Sums, Replaces, Reads, Reads, FailsForItems];
    let seldom = vec![Refuses, Misfits, FailsAtFirst, Panics, Stalls, Babbles, GoesAstray];
    prop_oneof![
        8 => prop::sample::select(mostly),
        3 => prop::sample::select(seldom),
        2 => (0..6_usize).prop_map(Goes),
    ]
}

fn function() -> impl Strategy<Value = Work> {
    let effect = prop::sample::select(vec![Effect::Pure, Effect::Idempotent, Effect::AtMostOnce]);
    let asks = prop_oneof![5 => Just(0_u8), 1 => 1..3_u8];
    (does(), effect, asks, 0..3_u8).prop_map(|(does, effect, asks, pauses)| Work::Function {
        does,
        effect,
        asks,
        pauses,
    })
}

/// Agents whose calls do not end the run: that would be told, and not recorded.
fn agent() -> impl Strategy<Value = Work> {
    let talk =
        prop::sample::select(vec![Talk::InConversation, Talk::InConversation, Talk::Asked, Talk::Answers]);
    (scenarios::scenario(), talk).prop_map(|(mut scenario, talk)| {
        scenario.options.raises = false;
        scenario.options.steps = scenario.options.steps.min(4);
        scenario.replies.truncate(3);
        for tool in &mut scenario.tools {
            if let Behavior::Fatal = tool.behavior {
                tool.behavior = Behavior::Constant;
            }
        }
        // What such tools do to the world cannot be read off a record.
        scenario.options.is_dynamic = false;
        Work::Agent { scenario: Box::new(scenario), talk }
    })
}

fn node(work: impl Strategy<Value = Work>) -> impl Strategy<Value = NodePlan> {
    let way = || prop_oneof![4 => Just(Way::Edge), 2 => Just(Way::Route), 1 => Just(Way::Maybe), 2 => Just(Way::FanOut)];
    let on_error = prop_oneof![
        2 => Just(Failing::Fails),
        2 => Just(Failing::GoesOn),
        2 => (0..6_usize).prop_map(Failing::GoesTo),
    ];
    let limits = (weighted(0.2, 0..6_usize), 1..4_u64, prop::bool::weighted(0.15));
    (work, 0..6_usize, way(), weighted(0.5, (0..6_usize, way())), on_error, limits).prop_map(
        |(work, comes_from, comes, on, on_error, (at_limit, max_executions, is_deferred))| NodePlan {
            work,
            comes_from,
            comes,
            on,
            on_error,
            at_limit,
            max_executions,
            is_deferred,
        },
    )
}

fn plan(work: impl Strategy<Value = Work>, most: usize) -> impl Strategy<Value = GraphPlan> {
    let joins = vec((vec(0..6_usize, 1..4), 0..6_usize), 0..3);
    let limits = (2..7_u64, 1..4_usize, prop::bool::weighted(0.3));
    (any::<u64>(), vec(node(work), 1..most), vec(0..6_usize, 0..2), joins, limits).prop_map(
        |(seed, nodes, starts, joins, (steps, parallel, asks_when_uncertain))| GraphPlan {
            seed,
            nodes,
            starts,
            joins,
            steps,
            parallel,
            asks_when_uncertain,
        },
    )
}

/// Anything that can happen.
pub(super) fn graph() -> impl Strategy<Value = GraphPlan> {
    let inner =
        plan(prop_oneof![3 => function(), 1 => agent()], 3).prop_map(|plan| Work::Graph(Box::new(plan)));
    plan(prop_oneof![8 => function(), 3 => agent(), 1 => inner], 6)
}
