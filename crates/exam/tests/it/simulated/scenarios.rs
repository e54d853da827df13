//! Agents and scripts as they come: tools of all effects that write, fail and wait, parallel calls, calls of
//! what is not there, approvals, hooks, limits, output, histories that are trimmed and condensed.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use serde_json::Value;
use stepfold_agent_loop::OutputMode;
use stepfold_tools::Effect;

/// An agent, what its model says, and what the run begins with.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) tools: Vec<ToolPlan>,
    pub(super) replies: Vec<Reply>,
    pub(super) options: Options,
    pub(super) hooks: BTreeMap<Hook, u8>,
    /// Earlier turns, and whether the last one was interrupted.
    pub(super) history: (usize, bool),
}

#[derive(Clone, Debug)]
pub(super) struct ToolPlan {
    pub(super) behavior: Behavior,
    pub(super) effect: Effect,
    pub(super) asks: Asks,
    /// How often it lets others run before it ends.
    pub(super) pauses: u8,
    pub(super) is_exit: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Behavior {
    Constant,
    /// Fails for odd arguments.
    FailsIfOdd,
    Panics,
    /// Writes the argument to a list.
    Appends,
    /// Adds to a number that overflows.
    Sums,
    /// Replaces a value.
    Replaces,
    /// Writes with a handler that does not merge a seven.
    Refuses,
    /// Tells what it reads.
    Reads,
    /// Reads and writes.
    Copies,
    /// Ends the run with an error.
    Fatal,
    /// Asks the user, some twice.
    Inquires,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    Never,
    Always,
    Once,
    /// For arguments above this.
    Above(u8),
}

#[derive(Clone, Debug)]
pub(super) enum Reply {
    Text,
    Empty,
    /// Blank text.
    Blank,
    Calls {
        has_text: bool,
        calls: Vec<Call>,
    },
    /// Truncated at the limit of tokens, or by a filter.
    Cut {
        by_filter: bool,
        calls: Vec<Call>,
    },
    /// Valid for the output, or not.
    Output(bool),
    /// The request fails.
    Fails,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Beyond the tools, there is none of that name.
    pub(super) tool: usize,
    pub(super) argument: Argument,
    /// Whether the id is one that the model has used.
    pub(super) repeats_id: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Number(u8),
    /// Not of the schema's type.
    Wrong,
    /// Not JSON.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hook {
    BeforeRun,
    BeforeModel,
    BeforeTool,
    AfterTool,
    OnExit,
    AfterRun,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Options {
    pub(super) steps: u64,
    pub(super) tool_calls: Option<u64>,
    pub(super) calls_per_reply: Option<usize>,
    pub(super) tokens: Option<u64>,
    pub(super) concurrency: usize,
    pub(super) final_answer: bool,
    pub(super) raises: bool,
    pub(super) asks_when_uncertain: bool,
    /// Whether tools that inquire wait for outcomes that come later, too.
    pub(super) waits: bool,
    pub(super) repeats: Option<u32>,
    pub(super) output: Option<OutputMode>,
    pub(super) window: Option<usize>,
    pub(super) keeps_last: Option<usize>,
    pub(super) summarizes: Option<usize>,
    pub(super) is_dynamic: bool,
    pub(super) value: Option<Value>,
}

fn effect() -> impl Strategy<Value = Effect> {
    prop::sample::select(vec![Effect::Pure, Effect::Idempotent, Effect::AtMostOnce])
}

fn tool() -> impl Strategy<Value = ToolPlan> {
    use Behavior::{
        Appends, Constant, Copies, FailsIfOdd, Fatal, Inquires, Panics, Reads, Refuses, Replaces, Sums,
    };
    let behavior = prop::sample::select(vec![
        Constant, FailsIfOdd, Appends, Appends, Sums, Replaces, Refuses, Reads, Reads, Copies, Panics, Fatal,
        Inquires,
    ]);
    let asks = prop_oneof![
        6 => Just(Asks::Never),
        1 => Just(Asks::Always),
        1 => Just(Asks::Once),
        1 => (0..8_u8).prop_map(Asks::Above),
    ];
    (behavior, effect(), asks, 0..3_u8, prop::bool::weighted(0.1)).prop_map(
        |(behavior, effect, asks, pauses, is_exit)| ToolPlan { behavior, effect, asks, pauses, is_exit },
    )
}

fn call() -> impl Strategy<Value = Call> {
    let argument = prop_oneof![
        12 => (0..9_u8).prop_map(Argument::Number),
        1 => Just(Argument::Wrong),
        1 => Just(Argument::Malformed),
    ];
    (0..6_usize, argument, prop::bool::weighted(0.05)).prop_map(|(tool, argument, repeats_id)| Call {
        tool,
        argument,
        repeats_id,
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let calls = |most| vec(call(), 1..most);
    prop_oneof![
        24 => (any::<bool>(), calls(5)).prop_map(|(has_text, calls)| Reply::Calls { has_text, calls }),
        2 => Just(Reply::Empty),
        1 => Just(Reply::Text),
        1 => Just(Reply::Blank),
        1 => (any::<bool>(), vec(call(), 0..3)).prop_map(|(by_filter, calls)| Reply::Cut { by_filter, calls }),
        // More often valid than not: a valid one that ends a run is what few scenarios come to otherwise.
        4 => prop::bool::weighted(0.7).prop_map(Reply::Output),
        1 => Just(Reply::Fails),
    ]
}

fn hooks() -> impl Strategy<Value = BTreeMap<Hook, u8>> {
    let points = vec![
        Hook::BeforeRun,
        Hook::BeforeModel,
        Hook::BeforeTool,
        Hook::AfterTool,
        Hook::OnExit,
        Hook::AfterRun,
    ];
    prop_oneof![
        1 => Just(BTreeMap::new()),
        2 => prop::collection::btree_map(prop::sample::select(points), any::<u8>(), 1..5),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let mode = prop::sample::select(vec![OutputMode::Schema, OutputMode::Tool, OutputMode::Prompt]);
    let limits = (2..9_u64, weighted(0.2, 1..6_u64), weighted(0.2, 1..4_usize), weighted(0.1, 1..40_u64));
    let switches =
        (prop::bool::weighted(0.3), prop::bool::weighted(0.1), any::<bool>(), 1..5_usize, any::<bool>());
    let shown = (weighted(0.2, 2..9_usize), weighted(0.2, 1..6_usize), weighted(0.2, 2..6_usize));
    let rest = (
        weighted(0.3, 2..4_u32),
        weighted(0.2, mode),
        prop::bool::weighted(0.15),
        weighted(0.3, (0..9_u8).prop_map(Value::from)),
    );
    (limits, switches, shown, rest).prop_map(|(limits, switches, shown, rest)| Options {
        steps: limits.0,
        tool_calls: limits.1,
        calls_per_reply: limits.2,
        tokens: limits.3,
        final_answer: switches.0,
        raises: switches.1,
        asks_when_uncertain: switches.2,
        concurrency: switches.3,
        waits: switches.4,
        window: shown.0,
        keeps_last: shown.1,
        summarizes: shown.2,
        repeats: rest.0,
        output: rest.1,
        is_dynamic: rest.2,
        value: rest.3,
    })
}

/// Anything that can happen.
pub(super) fn scenario() -> impl Strategy<Value = Scenario> {
    let history = (0..4_usize, prop::bool::weighted(0.3));
    (any::<u64>(), vec(tool(), 0..5), vec(reply(), 0..6), options(), hooks(), history).prop_map(
        |(seed, tools, replies, options, hooks, history)| Scenario {
            seed,
            tools,
            replies,
            options,
            hooks,
            history,
        },
    )
}
