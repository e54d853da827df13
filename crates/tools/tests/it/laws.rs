//! What holds for all replies, whatever their tools do and in whatever order they end.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{
    Arguments, Message, Part, Role, ToolCall, Transcript, with_unique_call_ids,
};
use stepfold_tools::state_core::state::{Handler, Schema, State, ValueRef};
use stepfold_tools::{
    CallEvent, CallOutcome, CallOutcomes, CallStatus, Effect, Invocation, InvokeOptions, RawArgs,
    ResultSource, ResultText, Retry, Tool, ToolContext, ToolError, Tools, settle,
};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

/// Runs in a runtime of its own, whose time passes only while all wait for it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(future)
}

fn state() -> State {
    let schema = Schema::builder()
        .key::<Vec<Value>>("log")
        .key::<Vec<Value>>("recent")
        .handler(Handler::keep_last(2))
        .key::<u8>("count")
        .handler(Handler::sum())
        .key::<Value>("last")
        .build()
        .unwrap();
    State::with_values(&schema, json!({"log": ["first"], "count": 1})).unwrap()
}

/// The keys that the tools of the first law read and write, by the name of the tool.
const KINDS: [(&str, &[&str], &[&str]); 7] = [
    ("append", &[], &["log"]),
    ("bump", &[], &["count"]),
    ("set", &[], &["last"]),
    ("note", &[], &["recent"]),
    ("show", &["log", "recent", "count", "last"], &[]),
    ("copy", &["last"], &["log", "recent"]),
    ("mark", &["log"], &["last", "count"]),
];

/// A tool that waits for the gate of its call, and tells what it sees.
fn gated(kind: (&str, &[&str], &[&str]), gates: &Arc<Vec<Semaphore>>) -> Tool {
    let (name, reads, writes) = kind;
    let (gates, keys): (_, Vec<String>) =
        (Arc::clone(gates), reads.iter().map(|key| (*key).to_owned()).collect());
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        let (gates, keys) = (Arc::clone(&gates), keys.clone());
        async move {
            let number = arguments["n"].as_u64().unwrap();
            gates[usize::try_from(number)?].acquire().await?.forget();
            let seen: Vec<Value> = keys
                .iter()
                .map(|key| context.state().get(key.as_str()).map_or(json!("unset"), ValueRef::to_json))
                .collect();
            // Some of the sums overflow when they are settled.
            Ok::<_, ToolError>(json!({"n": number, "count": number * 40, "seen": seen}))
        }
    };
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let tool = Tool::new(name, "Waits.", function).parameters(parameters).reads(reads.iter().copied());
    writes
        .iter()
        .fold(tool, |tool, key| tool.output_to_state(*key, if *key == "count" { "count" } else { "n" }))
        .build()
        .unwrap()
}

/// Runs calls and lets them end in this order, as far as they run at the same time.
fn run_in_order(calls: &[ToolCall], order: &[usize], concurrency: usize) -> (Vec<CallOutcome>, Vec<Value>) {
    let gates: Arc<Vec<Semaphore>> = Arc::new(calls.iter().map(|_| Semaphore::new(0)).collect());
    let tools = Tools::of(KINDS.map(|kind| gated(kind, &gates))).unwrap();
    let mut state = state();
    let mut options = InvokeOptions::default();
    options.limits.concurrency = concurrency;
    block_on(async {
        let mut invocation = Invocation::new(&tools, state.clone(), calls.to_vec(), options);
        for call in order {
            while let Some(Some(_)) = invocation.next().now_or_never() {}
            gates[*call].add_permits(1);
            tokio::task::yield_now().await;
        }
        let mut outcomes = invocation.finish().await.outcomes;
        settle(&mut state, &mut outcomes);
        let values = state.iter().map(|(key, value)| json!([key, value.to_json()])).collect();
        (outcomes, values)
    })
}

fn calls_and_orders() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    vec(0..KINDS.len(), 1..12).prop_flat_map(|kinds| {
        let order: Vec<usize> = (0..kinds.len()).collect();
        (Just(kinds), Just(order).prop_shuffle())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Neither the order in which calls end nor how many run at once changes outcomes, deltas or state.
    #[test]
    fn completion_order_changes_nothing((kinds, order) in calls_and_orders(), concurrency in 1..20_usize) {
        let calls: Vec<ToolCall> = kinds
            .iter()
            .enumerate()
            .map(|(n, kind)| ToolCall::new(format!("c{n}"), KINDS[*kind].0, json!({"n": n})))
            .collect();
        let in_call_order: Vec<usize> = (0..calls.len()).collect();
        let (expected, expected_state) = run_in_order(&calls, &in_call_order, 64);
        let (outcomes, state) = run_in_order(&calls, &order, concurrency);
        prop_assert_eq!(outcomes, expected);
        prop_assert_eq!(state, expected_state);
    }
}

/// What a call of the second law does.
#[derive(Clone, Debug)]
enum Deed {
    Returns(Value),
    ReturnsNan,
    ReturnsDeep(usize),
    ReturnsHuge(usize),
    Parts(usize),
    Fails,
    FailsForGood,
    Panics,
    Hangs,
    Sleeps(u64),
    Reports(u8),
    Blocks,
    Unknown,
    Malformed(String),
    Odd(Value),
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => json_value().prop_map(Deed::Returns),
        1 => Just(Deed::ReturnsNan),
        1 => (0..400_usize).prop_map(Deed::ReturnsDeep),
        1 => (0..5_000_usize).prop_map(Deed::ReturnsHuge),
        1 => (0..40_usize).prop_map(Deed::Parts),
        1 => Just(Deed::Fails),
        1 => Just(Deed::FailsForGood),
        1 => Just(Deed::Panics),
        1 => Just(Deed::Hangs),
        2 => (0..20_u64).prop_map(Deed::Sleeps),
        1 => any::<u8>().prop_map(Deed::Reports),
        1 => Just(Deed::Blocks),
        1 => Just(Deed::Unknown),
        1 => prop_oneof![Just("{\"x\": \"\\ud800\"}".to_owned()), Just("{\"x\": NaN}".to_owned()), any::<String>()]
            .prop_map(Deed::Malformed),
        1 => json_value().prop_map(Deed::Odd),
    ]
}

/// The tool for one place of the reply, which does the deed whatever its arguments are.
fn tool_of(place: usize, deed: &Deed) -> Tool {
    let name = format!("t{place}");
    let builder = if let Deed::Blocks = deed {
        Tool::blocking(name, "Blocks.", |context: ToolContext| {
            context.report("blocking");
            Ok::<_, ToolError>(json!({"x": 1}))
        })
    } else {
        let deed = deed.clone();
        Tool::new(name, "Does it.", move |_: RawArgs, context: ToolContext| act(deed.clone(), context))
            .parameters(json!({"type": "object", "properties": {"x": {"type": "integer"}}}))
    };
    let parts = ResultText::parts("parts", |parts| {
        let words = parts.as_array().ok_or("no parts")?.iter().map(|word| Part::text(word.to_string()));
        Ok(words.collect())
    });
    let builder = builder
        .output_to_state("count", "count")
        .output_to_state("log", "x")
        .output_to_state("last", ResultSource::Whole)
        .output_to_string(parts)
        .timeout(Duration::from_millis(15));
    if place.is_multiple_of(2) {
        builder.effect(Effect::Idempotent).retry(Retry::times(1)).build().unwrap()
    } else {
        builder.build().unwrap()
    }
}

async fn act(deed: Deed, context: ToolContext) -> Result<Value, ToolError> {
    match deed {
        Deed::Returns(value) => Ok(value),
        Deed::ReturnsNan => Ok(json!({"x": f64::NAN, "count": f64::INFINITY})),
        Deed::ReturnsDeep(depth) => Ok((0..depth).fold(json!(1), |value, _| json!({"x": [value]}))),
        Deed::ReturnsHuge(size) => Ok(json!({"x": "ä".repeat(size), "count": 200})),
        Deed::Parts(count) => Ok(json!({"parts": vec!["word"; count]})),
        Deed::Fails => Err(ToolError::new("no luck")),
        Deed::FailsForGood => Err(ToolError::fatal("broken")),
        Deed::Panics => panic!("oh"),
        Deed::Hangs => std::future::pending().await,
        Deed::Sleeps(millis) => {
            crate::pass(Duration::from_millis(millis)).await;
            Ok(json!({"count": 100}))
        }
        Deed::Reports(count) => {
            for n in 0..count {
                context.report(n);
                tokio::task::yield_now().await;
            }
            Ok(Value::Null)
        }
        Deed::Blocks | Deed::Unknown | Deed::Malformed(_) | Deed::Odd(_) => Ok(json!("odd")),
    }
}

fn reply_of(deeds: &[(Deed, String)]) -> Message {
    let calls = deeds.iter().enumerate().map(|(place, (deed, id))| {
        let arguments = match deed {
            Deed::Malformed(text) => Arguments::parse(text.clone()),
            Deed::Odd(value) => Arguments::from(json!({"x": value})),
            _ => Arguments::default(),
        };
        let name = if let Deed::Unknown = deed { "nothing".to_owned() } else { format!("t{place}") };
        Part::from(ToolCall::new(id.as_str(), name, arguments))
    });
    with_unique_call_ids(Message::from_parts(Role::Assistant, calls.collect()), 0, |_| false)
}

/// Runs a reply, cancelled after so many events, and notes what was told.
async fn run(
    invocation: &mut Invocation,
    options: &InvokeOptions,
    cancel_after: Option<usize>,
) -> Vec<CallEvent> {
    let mut events = Vec::new();
    loop {
        if cancel_after == Some(events.len()) {
            options.cancellation.cancel();
        }
        match invocation.next().await {
            Some(event) => events.push(event),
            None => return events,
        }
    }
}

/// Each call is told to start at most once, to end once, and says nothing after that.
fn check_events(events: &[CallEvent], calls: usize) -> Result<(), String> {
    let (mut started, mut finished) = (BTreeSet::new(), BTreeSet::new());
    for event in events {
        let is_fine = match event {
            CallEvent::Starting { calls } => {
                calls.iter().all(|call| started.insert(*call) && !finished.contains(call))
                    && calls.is_sorted()
            }
            CallEvent::Progress { call, .. } => started.contains(call) && !finished.contains(call),
            CallEvent::Finished { call } => finished.insert(*call),
            _ => false,
        };
        if !is_fine {
            return Err(format!("{event:?} among {events:?}"));
        }
    }
    if finished.len() == calls { Ok(()) } else { Err(format!("not all ended: {events:?}")) }
}

/// One outcome for each call in call order, of which the model and the store can read all.
fn check_outcomes(reply: &Message, done: &CallOutcomes, limit: usize) -> Result<(), String> {
    let called: Vec<(&str, &str)> =
        reply.tool_calls().map(|call| (call.id.as_str(), call.name.as_str())).collect();
    let answered: Vec<(&str, &str)> =
        done.outcomes.iter().map(|outcome| (outcome.call_id(), outcome.tool())).collect();
    let mut faults = String::new();
    if called != answered {
        writeln!(faults, "{called:?} was answered by {answered:?}").unwrap();
    }
    let transcript: Transcript =
        std::iter::once(reply.clone()).chain(done.outcomes.iter().map(CallOutcome::message)).collect();
    if let Err(error) = transcript.check() {
        writeln!(faults, "{error}").unwrap();
    }
    let stored = serde_json::to_string(&done.outcomes).unwrap();
    if serde_json::from_str::<Vec<CallOutcome>>(&stored).unwrap() != done.outcomes {
        writeln!(faults, "changed by JSON: {stored}").unwrap();
    }
    for outcome in &done.outcomes {
        let is_silent = outcome.delta.is_empty() && outcome.result.is_error();
        if !outcome.succeeded() && !is_silent {
            writeln!(faults, "failed and wrote or said something: {outcome:?}").unwrap();
        }
        if outcome.result.text().len() > limit + 200 {
            writeln!(faults, "too long: {outcome:?}").unwrap();
        }
        if outcome.status == CallStatus::NotStarted && outcome.tries != 0 {
            writeln!(faults, "not started and yet tried: {outcome:?}").unwrap();
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever tools do, every call has exactly one outcome, and the conversation continues.
    #[test]
    fn every_call_has_exactly_one_outcome(
        deeds in vec((deed(), prop_oneof![Just(String::new()), "c[0-3]", any::<String>()]), 0..12),
        cancel_after in proptest::option::of(0..20_usize),
        concurrency in 1..8_usize,
        raise_on_failure: bool,
    ) {
        let reply = reply_of(&deeds);
        let tools: Vec<Tool> = deeds.iter().enumerate().map(|(place, (deed, _))| tool_of(place, deed)).collect();
        let tools = Tools::of(tools).unwrap();
        let mut options = InvokeOptions::default();
        options.limits.concurrency = concurrency;
        options.limits.output_bytes = 1_000;
        options.raise_on_failure = raise_on_failure;
        let mut state = state();
        let calls: Vec<ToolCall> = reply.tool_calls().cloned().collect();
        let (events, mut done) = block_on(async {
            let mut invocation = Invocation::new(&tools, state.clone(), calls.clone(), options.clone());
            (run(&mut invocation, &options, cancel_after).await, invocation.finish().await)
        });
        prop_assert_eq!(check_events(&events, calls.len()), Ok(()));
        prop_assert_eq!(check_outcomes(&reply, &done, 1_000), Ok(()));
        let is_fatal = |outcome: &CallOutcome| outcome.status == CallStatus::Failed(stepfold_tools::CallFailure::Fatal);
        let is_failed = |outcome: &CallOutcome| raise_on_failure && matches!(outcome.status, CallStatus::Failed(_));
        let first = done.outcomes.iter().position(|outcome| is_fatal(outcome) || is_failed(outcome));
        prop_assert_eq!(done.error.as_ref().map(|error| error.index), first);

        // The state takes what was written, and folding the deltas that are left gives it again.
        let before = state.clone();
        settle(&mut state, &mut done.outcomes);
        prop_assert_eq!(check_outcomes(&reply, &done, 1_000), Ok(()));
        let mut again = before;
        for outcome in &done.outcomes {
            again.apply(&outcome.delta).unwrap();
        }
        prop_assert_eq!(&again, &state);
    }

    /// Ids differ, those that can stay do, and doing it twice does nothing more.
    #[test]
    fn call_ids_are_unique(ids in vec(prop_oneof![Just(String::new()), "c[0-3](-[0-4])?", "call-[0-4]"], 0..12), taken in vec("c[0-3](-[0-4])?", 0..4), earlier in 0..3_usize) {
        let calls = ids.iter().map(|id| Part::from(ToolCall::new(id.as_str(), "t", json!({}))));
        let reply = Message::from_parts(Role::Assistant, calls.collect());
        let is_taken = |id: &str| taken.iter().any(|known| known == id);
        let made = with_unique_call_ids(reply, earlier, is_taken);
        let unique: BTreeSet<&str> = made.tool_calls().map(|call| call.id.as_str()).collect();
        prop_assert_eq!(unique.len(), ids.len());
        prop_assert!(unique.iter().all(|id| !id.is_empty() && !is_taken(id)));
        for (place, (call, id)) in made.tool_calls().zip(&ids).enumerate() {
            let can_stay = !id.is_empty() && !is_taken(id) && !ids[..place].contains(id);
            prop_assert_eq!(can_stay, call.id == *id);
        }
        prop_assert_eq!(with_unique_call_ids(made.clone(), earlier, is_taken), made);
    }
}
