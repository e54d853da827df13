//! When a decision comes changes nothing: calls that read what an earlier call writes wait for it, also while it waits
//! for an approver.

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Schema, ValueRef};
use stepfold_agent_loop::tools::{Approval, Effect, RawArgs, Tool, ToolContext, ToolError};
use stepfold_agent_loop::{Agent, Decision, Event, Exit, Outcome, Pause, Run, RunEvent};

use super::kit::*;

const KEYS: [&str; 3] = ["last", "list", "total"];

/// One call of the reply.
#[derive(Clone, Debug)]
enum Called {
    /// Gives what a key holds.
    Reads(usize),
    /// Writes a key.
    Writes(usize),
    /// Writes a key from what another holds.
    Copies(usize, usize),
    /// An agent that shares a key and writes it, after an approval.
    Agent(usize),
}

fn schema() -> Schema {
    let schema = Schema::builder().key::<i64>("last").key::<Vec<i64>>("list").key::<i64>("total");
    schema.handler(Handler::sum()).build().unwrap()
}

/// How many items, or what number, a key holds.
fn number(value: Option<Value>) -> i64 {
    match value {
        Some(Value::Array(items)) => i64::try_from(items.len()).unwrap(),
        Some(value) => value.as_i64().unwrap(),
        None => 0,
    }
}

fn tool_of(place: usize, called: &Called) -> Tool {
    let name = format!("t{place}");
    let own = 10 * i64::try_from(place + 1).unwrap();
    let (reads, writes) = match *called {
        Called::Reads(key) => (Some(KEYS[key]), None),
        Called::Writes(key) => (None, Some(KEYS[key])),
        Called::Copies(from, to) => (Some(KEYS[from]), Some(KEYS[to])),
        Called::Agent(key) => return agent_of(&name, KEYS[key], own),
    };
    working(&name, reads, writes, own).build().unwrap()
}

fn working(
    name: &str,
    reads: Option<&'static str>,
    writes: Option<&'static str>,
    own: i64,
) -> stepfold_agent_loop::tools::ToolBuilder {
    let function = move |RawArgs(_): RawArgs, context: ToolContext| async move {
        let read = reads.map_or(0, |key| number(context.state().get(key).map(ValueRef::to_json)));
        if let Some(key) = writes {
            let value = json!(own + read);
            context.writer().set(key, if key == "list" { json!([value]) } else { value })?;
        }
        Ok::<_, ToolError>(json!(read))
    };
    let tool = Tool::new(name, "Does it.", function).parameters(json!({"type": "object"}));
    tool.reads(reads).writes(writes).effect(Effect::Pure)
}

fn agent_of(name: &str, key: &'static str, own: i64) -> Tool {
    let put = working("put", Some(key), Some(key), own).approval(Approval::Always).build().unwrap();
    let inner = Agent::builder(script("assistant: > i1 put()\nassistant: put")).schema(schema()).tools([put]);
    inner.build().unwrap().as_tool(name, "Asks.").share([key]).build().unwrap()
}

fn agent(reply: &[Called]) -> Agent {
    let calls: Vec<String> = (reply.iter().enumerate())
        .map(|(place, called)| match called {
            Called::Agent(_) => format!("> c{place} t{place}(task=\"go\")"),
            _ => format!("> c{place} t{place}()"),
        })
        .collect();
    let lines = format!("assistant: {}\nassistant: done", calls.join("   "));
    let tools = reply.iter().enumerate().map(|(place, called)| tool_of(place, called));
    Agent::builder(script(&lines)).schema(schema()).tools(tools.collect::<Vec<_>>()).build().unwrap()
}

/// Continues to the end, deciding about some of what waits each time the run waits.
async fn to_the_end(mut run: Run, at_once: usize, events: &mut Vec<Event>) -> Outcome {
    loop {
        let pending = run.pending().into_iter().take(at_once);
        let decisions: Vec<_> = pending.map(|request| (request.id, Decision::Approve)).collect();
        let mut seen = Vec::new();
        let outcome = run.resume().decide_all(decisions).observe(&mut seen).await.unwrap();
        events.extend(seen.iter().filter_map(RunEvent::committed).cloned());
        match outcome.exit() {
            Exit::Paused(Pause::Approval) => run = outcome.into_run(),
            _ => return outcome,
        }
    }
}

/// The run as it is after so many of its events, in another process.
fn after(agent: &Agent, events: &[Event]) -> Run {
    let mut run = Run::new(agent, "go", "run").unwrap();
    for event in events {
        run.commit(event.clone()).unwrap();
    }
    Run::load(agent, &run.to_json()).unwrap()
}

async fn the_same_whenever_decided(reply: &[Called]) {
    let agent = agent(reply);
    let mut events = Vec::new();
    let all = to_the_end(Run::new(&agent, "go", "run").unwrap(), usize::MAX, &mut events).await;
    assert_eq!(all.exit(), &Exit::Text);
    // Decided before the others have gone on, and after that; one at a time, and together.
    for cut in 1..events.len() {
        for at_once in [1, usize::MAX] {
            let outcome = to_the_end(after(&agent, &events[..cut]), at_once, &mut Vec::new()).await;
            assert_eq!(outcome.transcript().to_string(), all.transcript().to_string(), "after {cut}");
            assert_eq!(outcome.run().digest(), all.run().digest(), "after {cut}");
        }
    }
}

#[tokio::test]
async fn a_reader_waits_for_a_suspended_writer() {
    let reply = [Called::Agent(2), Called::Reads(2)];
    let agent = agent(&reply);
    let mut events = Vec::new();
    let outcome = to_the_end(Run::new(&agent, "go", "run").unwrap(), 1, &mut events).await;
    let text = outcome.transcript().to_string();
    assert!(text.contains("tool c1:   10"), "it reads what was written: {text}");
    the_same_whenever_decided(&reply).await;
}

/// Not only readers of it directly: a call that waits for one that waits.
#[tokio::test]
async fn a_reader_waits_for_a_suspended_writer_through_others() {
    the_same_whenever_decided(&[Called::Reads(0), Called::Copies(2, 0), Called::Agent(2)]).await;
    the_same_whenever_decided(&[Called::Agent(1), Called::Agent(1), Called::Reads(1)]).await;
    the_same_whenever_decided(&[Called::Agent(0), Called::Writes(0), Called::Reads(0)]).await;
}

/// Calls that read nothing of it do not wait.
#[tokio::test]
async fn others_do_not_wait_for_a_suspended_writer() {
    let agent = agent(&[Called::Agent(2), Called::Reads(1), Called::Writes(0)]);
    let paused = Run::new(&agent, "go", "run").unwrap().resume().await.unwrap();
    let finished: Vec<bool> = paused.run().finished_calls().iter().map(Option::is_some).collect();
    assert_eq!(finished, [false, true, true]);
}

/// A run that is cancelled while a call waits answers those that wait for it, too.
#[tokio::test]
async fn a_reader_of_a_suspended_writer_is_answered_when_the_run_is_cancelled() {
    let agent = agent(&[Called::Agent(2), Called::Reads(2)]);
    let paused = play(&agent, "go", |run| run).await.unwrap();
    let token = stepfold_agent_loop::tools::CancellationToken::new();
    token.cancel();
    let ended = go_on(reloaded(&paused), |run| run.cancel_with(token)).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Cancelled);
    assert_eq!(ended.transcript().check(), Ok(()));
}

fn called() -> impl Strategy<Value = Called> {
    prop_oneof![
        (0..3_usize).prop_map(Called::Reads),
        (0..3_usize).prop_map(Called::Writes),
        (0..3_usize, 0..3_usize).prop_map(|(from, to)| Called::Copies(from, to)),
        (0..3_usize).prop_map(Called::Agent),
        (0..3_usize).prop_map(Called::Agent),
    ]
}

fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 16, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn when_a_decision_comes_changes_nothing(reply in prop::collection::vec(called(), 1..6)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(the_same_whenever_decided(&reply));
    }
}
