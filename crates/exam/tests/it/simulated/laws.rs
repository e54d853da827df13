//! What holds for all runs, beside what the simulator checks.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{
    Agent, Decision, Event, EventKind, Observer, ObserverError, Outcome, Recording, Run, RunError, RunEvent,
    RunFault,
};
use stepfold_exam::Executions;
use stepfold_state_core::chat::{Arguments, Message, Role, ToolCall};
use stepfold_state_core::state::ValueRef;
use stepfold_tools::{CancellationToken, Effect, RawArgs, ResultSource, Tool, ToolContext, ToolError};

use super::agents::Hiccups;
use super::scenarios::{self, Scenario};
use super::{agents, block_on, config};

/// The same without waiting for what comes later: such a run does not come to its end by itself.
fn at_once(scenario: &Scenario) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.options.waits = false;
    scenario
}

/// Runs it once; returns what the observer saw, and the result.
fn run(scenario: &Scenario) -> (Vec<RunEvent>, Outcome) {
    let agent = agents::agent(&at_once(scenario), &Executions::new());
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
            let read =
                |key: &String| context.state().get(key.as_str()).map_or(json!("unset"), ValueRef::to_json);
            let seen: Vec<Value> = keys.iter().map(read).collect();
            Ok(json!({"count": number * 60, "n": number, "seen": seen}))
        }
    };
    let tool = Tool::new(name, "Ends when it may.", function)
        .parameters(json!({"properties": {"n": {"type": "integer"}}, "type": "object"}))
        .reads(reads.iter().copied())
        .effect(effect);
    let source =
        |key: &str| if key == "count" { ResultSource::from("count") } else { ResultSource::from("n") };
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
    fn every_event_comes_back_as_it_was(scenario in scenarios::scenario()) {
        let (seen, _) = run(&scenario);
        for event in seen.iter().filter_map(RunEvent::committed) {
            let mut rest = event.clone();
            let (messages, delta) = rest.take_content();
            let again: Event = serde_json::from_str(&serde_json::to_string(&rest).unwrap()).unwrap();
            prop_assert_eq!(&again.with_content(messages, delta), event);
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
        // A call starts before it ends, and each does so once; one that asked starts again with the answer.
        let mut under_way = std::collections::BTreeSet::new();
        let (mut calls, mut asked) = (Vec::new(), std::collections::BTreeSet::new());
        for event in &seen {
            match event {
                RunEvent::ToolStarted { call_id, .. } => {
                    prop_assert!(under_way.insert(call_id.clone()) || asked.remove(call_id));
                }
                RunEvent::Committed(event) => match &event.kind {
                    EventKind::Replied { .. } => {
                        let reply = event.messages.iter().find(|message| message.role() == Role::Assistant);
                        let ids = reply.into_iter().flat_map(|reply| reply.tool_calls());
                        calls = ids.map(|call| call.id.clone()).collect();
                        asked.clear();
                    }
                    EventKind::Asks { place, .. } => asked.extend(calls.get(*place).cloned()),
                    EventKind::Answered(_) => {
                        for outcome in event.outcomes().iter().filter_map(|item| item.outcome.call()) {
                            prop_assert_eq!(under_way.remove(outcome.call_id()), outcome.tries > 0);
                        }
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        // A call that waits for an answer does so after the end of a run that another call has failed.
        under_way.retain(|call| !asked.contains(call));
        prop_assert!(under_way.is_empty(), "never answered: {under_way:?}");
    }

    /// Cancelled at any event, a run ends well-formed, with what is open answered.
    #[test]
    fn a_run_that_is_cancelled_anywhere_is_whole(scenario in scenarios::scenario(), at in 1..12_usize) {
        let agent = agents::agent(&at_once(&scenario), &Executions::new());
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

/// Runs it, each time in another process, until no hook after a tool fails any more. How it ended, and how often tools ran.
fn run_with_hiccups(scenario: &Scenario, hiccups: &Hiccups) -> (Result<Outcome, RunError>, u64) {
    let executions = Executions::new();
    let agent = agents::agent_with(&at_once(scenario), &executions, hiccups);
    let mut run = Run::new(&agent, agents::input(scenario), "run-1").unwrap();
    loop {
        let seed = scenario.seed;
        let decide = move |requests: Vec<stepfold_agent_loop::ApprovalRequest>| async move {
            let decided = requests.into_iter().map(|request| {
                let decision = agents::decision(seed, &request);
                (request.id, decision)
            });
            decided.collect::<Vec<_>>()
        };
        match block_on(run.resume().approve_with(decide).into_future()) {
            Err(error) if matches!(error.fault(), RunFault::Hook { .. }) => {
                run = Run::load(&agent, &error.into_run().to_json()).unwrap();
            }
            ended => return (ended, executions.total()),
        }
    }
}

/// The result of a run: its exit, and its complete state.
fn ended(ended: &Result<Outcome, RunError>) -> (String, String) {
    match ended {
        Ok(outcome) => (outcome.exit().to_string(), outcome.run().digest()),
        Err(error) => (error.fault().to_string(), error.outcome().run().digest()),
    }
}

#[test]
fn hooks_after_tools_that_fail_anywhere_lose_nothing() {
    let failed = std::cell::Cell::new(0_usize);
    let cases = (config().cases / 4).max(1);
    let mut runner = TestRunner::new(Config { cases, ..config() });
    let result = runner.run(&(scenarios::scenario(), any::<u8>()), |(mut scenario, kind)| {
        scenario.hooks.entry(scenarios::Hook::AfterTool).or_insert(kind);
        let none = Hiccups::default();
        let (whole, executed) = run_with_hiccups(&scenario, &none);
        // The failure of a raised call is reported once; a run that is resumed after it continues.
        prop_assume!(!matches!(&whole, Err(error) if matches!(error.fault(), RunFault::Tool(_))));
        let calls = none.calls();
        let ones = (1..=calls).map(|call| vec![call]);
        let twos = (1..calls).map(|call| vec![call, call + 1]);
        for at in ones.chain(twos).chain([(1..=calls).collect()]) {
            let (again, executions) = run_with_hiccups(&scenario, &Hiccups::at(at.clone()));
            failed.set(failed.get() + at.len());
            prop_assert_eq!(ended(&again), ended(&whole), "hooks failed at {:?}", at);
            prop_assert_eq!(executions, executed, "hooks failed at {:?}", at);
            let outcome = again.as_ref().unwrap_or_else(RunError::outcome);
            prop_assert!(outcome.unknown_calls().is_empty());
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(failed.get() > 0);
}

/// Cancels the run when it is told of an event.
pub(super) struct Cancels {
    pub(super) recording: Recording,
    pub(super) at: usize,
    pub(super) token: CancellationToken,
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
