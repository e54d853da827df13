//! What holds for all runs, beside what the simulator checks.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::{Executions, Script};
use stepfold_agent_loop::{
    Agent, Decision, Event, Observer, ObserverError, Outcome, Recording, Run, RunError, RunEvent,
};
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall};
use stepfold_state_core::state::ValueRef;
use stepfold_tools::{CancellationToken, Effect, RawArgs, Source, Tool, ToolContext, ToolError};

use super::scenarios::{self, Scenario};
use super::{agents, block_on, config};

/// Runs it once; gives what the observer saw, and what came of it.
fn run(scenario: &Scenario) -> (Vec<RunEvent>, Outcome) {
    let agent = agents::agent(scenario, &Executions::new());
    let mut seen = Vec::new();
    let luck = scenario.seed;
    let decide = move |requests: Vec<stepfold_agent_loop::ApprovalRequest>| async move {
        let decided = requests.into_iter().map(|request| {
            let decision = agents::decision(luck, &request);
            (request.id, decision)
        });
        decided.collect()
    };
    let run = agent.run(agents::input(scenario)).id("run-1").observe(&mut seen).approve_with(decide);
    let outcome = match block_on(run.into_future()) {
        Ok(outcome) => outcome,
        Err(error) => RunError::outcome(&error).clone(),
    };
    (seen, outcome)
}

/// A tool whose calls end when the scheduler lets them: by a clock that only moves while all wait.
fn scheduled(name: &str, reads: &[&str], writes: &[&str], effect: Effect, ends: &Arc<Vec<u64>>) -> Tool {
    let (ends, keys): (_, Vec<String>) =
        (Arc::clone(ends), reads.iter().map(|key| (*key).to_owned()).collect());
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        let (ends, keys) = (Arc::clone(&ends), keys.clone());
        async move {
            let number = arguments["n"].as_u64().unwrap_or_default();
            // tidy: allow sleep, because the clock is paused and moves on by itself.
            tokio::time::sleep(Duration::from_millis(ends[usize::try_from(number)?])).await;
            if number % 5 == 4 {
                return Err(ToolError::new("every fifth fails"));
            }
            let read = |key: &String| context.get(key.as_str()).map_or(json!("unset"), ValueRef::to_json);
            let seen: Vec<Value> = keys.iter().map(read).collect();
            Ok(json!({"count": number * 60, "n": number, "seen": seen}))
        }
    };
    let tool = Tool::new(name, "Ends when it may.", function)
        .parameters(json!({"properties": {"n": {"type": "integer"}}, "type": "object"}))
        .reads(reads.iter().copied())
        .effect(effect);
    let source = |key: &str| if key == "count" { Source::from("count") } else { Source::from("n") };
    writes.iter().fold(tool, |tool, key| tool.output_to_state(*key, source(key))).build().unwrap()
}

const TOOLS: [(&str, &[&str], &[&str], Effect); 6] = [
    ("append", &[], &["log"], Effect::AtMostOnce),
    ("bump", &[], &["count"], Effect::Idempotent),
    ("set", &[], &["last"], Effect::AtMostOnce),
    ("show", &["log", "count", "last"], &[], Effect::Pure),
    ("copy", &["last"], &["log"], Effect::AtMostOnce),
    ("mark", &["log"], &["last", "picky"], Effect::Pure),
];

/// Runs these calls, by their tools, in steps; each ends when it is its turn.
fn run_scheduled(steps: &[Vec<usize>], ends: Vec<u64>) -> Outcome {
    let ends = Arc::new(ends);
    let mut number = 0..;
    let replies = steps.iter().map(|calls| {
        calls.iter().fold(Message::new(Role::Assistant), |reply, tool| {
            let number: u64 = number.next().unwrap();
            let arguments = Arguments::from(json!({"n": number}));
            reply.with_part(ToolCall::new(format!("c{number}"), TOOLS[*tool].0, arguments))
        })
    });
    let replies: Vec<Message> = replies.chain([Message::assistant("done")]).collect();
    let tools = TOOLS.map(|(name, reads, writes, effect)| scheduled(name, reads, writes, effect, &ends));
    let agent = Agent::builder(Script::new(replies)).schema(agents::schema()).tools(tools).build().unwrap();
    block_on(agent.run("go").id("run-1").into_future()).unwrap()
}

fn steps() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<u64>, Vec<u64>)> {
    prop::collection::vec(prop::collection::vec(0..TOOLS.len(), 1..6), 1..4).prop_flat_map(|steps| {
        let calls: u64 = steps.iter().map(|step| step.len() as u64).sum();
        let turns: Vec<u64> = (0..calls).collect();
        (Just(steps), Just(turns.clone()).prop_shuffle(), Just(turns).prop_shuffle())
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_event_comes_back_from_its_rest(scenario in scenarios::scenario()) {
        let (seen, _) = run(&scenario);
        for event in seen.iter().filter_map(RunEvent::committed) {
            let (messages, delta) = (event.messages.clone(), event.delta.clone());
            let rest = event.to_rest().unwrap().to_string();
            let again = Event::from_rest(event.name(), serde_json::from_str(&rest).unwrap(), messages, delta);
            prop_assert_eq!(&again.unwrap(), event);
        }
    }

    #[test]
    fn calls_may_end_in_any_order((steps, one, other) in steps()) {
        let (one, other) = (run_scheduled(&steps, one), run_scheduled(&steps, other));
        prop_assert_eq!(one.transcript().to_string(), other.transcript().to_string());
        prop_assert_eq!(one.run().digest(), other.run().digest());
        prop_assert_eq!(one.exit(), other.exit());
    }

    #[test]
    fn what_was_asked_only_grows(mut scenario in scenarios::scenario()) {
        // Where nothing takes the conversation away from under the model.
        scenario.options.window = None;
        scenario.hooks.remove(&scenarios::Hook::BeforeModel);
        let (seen, _) = run(&scenario);
        let requests = seen.iter().filter_map(|event| match event {
            RunEvent::Asking { request, .. } => Some(request),
            _ => None,
        });
        let mut before = (String::new(), String::new());
        for request in requests {
            let messages = request.messages.iter().map(|message| serde_json::to_string(&**message).unwrap());
            let messages = messages.collect::<Vec<_>>().join("\n");
            let tools = format!("{:?}", request.tools);
            prop_assert!(messages.starts_with(&before.0), "{} is no beginning of {messages}", before.0);
            prop_assert!(before.1.is_empty() || before.1 == tools, "the tools change: {} to {tools}", before.1);
            before = (messages, tools);
        }
    }

    #[test]
    fn the_observer_is_told_everything_once_and_in_order(scenario in scenarios::scenario()) {
        let (seen, outcome) = run(&scenario);
        let events: Vec<_> = seen.iter().filter_map(RunEvent::committed).collect();
        prop_assert_eq!(events.len() as u64, outcome.run().events());
        prop_assert!(events.is_sorted_by_key(|event| event.step));
        let ended = seen.iter().filter(|event| matches!(event, RunEvent::Ended(_))).count();
        prop_assert_eq!((ended, seen.last()), (1, Some(&RunEvent::Ended(outcome.exit().clone()))));
        // A call starts before it ends, and each does so once.
        let mut under_way = std::collections::BTreeSet::new();
        for event in &seen {
            match event {
                RunEvent::ToolStarted { call_id, .. } => prop_assert!(under_way.insert(call_id.clone())),
                RunEvent::Committed(event) => {
                    if let stepfold_agent_loop::EventKind::Answered { outcome, .. } = &event.kind {
                        prop_assert_eq!(under_way.remove(outcome.call_id()), outcome.tries > 0);
                    }
                }
                _ => {}
            }
        }
        prop_assert!(under_way.is_empty(), "never answered: {under_way:?}");
    }

    /// Cancelled at any event, a run ends well-formed, with what is open answered.
    #[test]
    fn a_run_that_is_cancelled_anywhere_is_whole(scenario in scenarios::scenario(), at in 1..12_usize) {
        let agent = agents::agent(&scenario, &Executions::new());
        let run = Run::new(&agent, agents::input(&scenario), "run-1").unwrap();
        let token = CancellationToken::new();
        let mut watch = Cancels { recording: Recording::of(&run), at, token: token.clone() };
        let approve = |requests: Vec<stepfold_agent_loop::ApprovalRequest>| async move {
            requests.into_iter().map(|request| (request.id, Decision::Approve)).collect::<Vec<_>>()
        };
        let start = run.state().clone();
        let running = run.resume().observe(&mut watch).approve_with(approve).cancel_with(token);
        if let Ok(outcome) = block_on(running.into_future()) {
            let events = watch.recording.events();
            prop_assert!(outcome.run().exit().is_some(), "{}", outcome.exit());
            prop_assert_eq!(outcome.transcript().check(), Ok(()));
            let mut state = start;
            for event in events {
                event.fold(&mut state).unwrap();
            }
            prop_assert_eq!(&state, outcome.state());
            let replayed = watch.recording.replay(&agent).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(replayed.digest(), outcome.run().digest());
        }
    }
}

/// Cancels the run when it is told of an event.
struct Cancels {
    recording: Recording,
    at: usize,
    token: CancellationToken,
}

impl Observer for Cancels {
    async fn observe(&mut self, told: &RunEvent) -> Result<(), ObserverError> {
        self.recording.observe(told).await?;
        if self.recording.events().len() >= self.at {
            self.token.cancel();
        }
        Ok(())
    }
}
