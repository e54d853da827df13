//! A run that was recorded with one agent and continues with another: the record counts up to there, the new agent decides
//! from there on, and work that a change touches is named.

use proptest::prelude::*;
use serde_json::json;
use stepfold_agent_loop::tools::{Approval, Effect, RawArgs, Tool, ToolBuilder, ToolError};
use stepfold_agent_loop::{
    Agent, AgentBuilder, AskReason, Decision, Event, EventKind, Exit, HookAction, Recording, Run, RunEvent,
    RunLimits, RunNeed,
};

use super::kit::*;

const SCRIPT: &str = "\
assistant: Let me see. > c1 search(q=\"a\") > c2 fetch(id=3)
assistant: > c3 pay(euro=5)
assistant: > c4 submit(x=1)
assistant: area 3
assistant: so it is
assistant: it is
";

/// Searches, asks before it pays, submits, and answers.
fn clerk() -> AgentBuilder {
    agent(SCRIPT).tools(tools().into_iter().chain([pay().build().unwrap()]).collect::<Vec<_>>())
}

fn pay() -> ToolBuilder {
    pay_as("Pays it.")
}

fn pay_as(description: &str) -> ToolBuilder {
    Tool::new("pay", description, |RawArgs(_): RawArgs| async { Ok::<_, ToolError>("paid") })
        .parameters(json!({"additionalProperties": true, "properties": {}, "type": "object"}))
        .approval(Approval::Always)
}

/// A change of an agent, and whether it is ahead of every run of [`clerk`].
type Change = (&'static str, fn(AgentBuilder) -> AgentBuilder, bool);

fn with_pay(agent: AgentBuilder, pay: Option<ToolBuilder>) -> AgentBuilder {
    let pay = pay.map(|tool| tool.build().unwrap());
    agent.tools(tools().into_iter().chain(pay).collect::<Vec<_>>())
}

const CHANGES: [Change; 16] = [
    ("instructions", |agent| agent.instructions("Be brief."), true),
    ("fewer steps", |agent| agent.max_steps(1), true),
    ("more steps", |agent| agent.max_steps(50), true),
    ("a last answer at the limit", |agent| agent.max_steps(2).final_answer(), true),
    ("an exit tool", |agent| agent.exit_on(["fetch"]), true),
    ("no exit tool", |agent| agent.exit_on(Vec::<String>::new()), true),
    ("a hook before the model", |agent| agent.before_model(|_| async { Ok(HookAction::proceed()) }), true),
    ("a hook before the run", |agent| agent.before_run(|_| async { Ok(HookAction::proceed()) }), true),
    ("a hook before tools", |agent| agent.before_tool(|_| async { Ok(HookAction::proceed()) }), true),
    ("a hook on exit", |agent| agent.on_exit(|_| async { Ok(HookAction::proceed()) }), true),
    ("a hook after the run", |agent| agent.after_run(|_| async { Ok(HookAction::proceed()) }), true),
    ("trim", |agent| agent.trim(stepfold_trim::Trim::keep_last(3)), true),
    ("a leaner loop", |agent| agent.limits(RunLimits::default().with_tool_calls(2)), true),
    ("another description", |agent| with_pay(agent, Some(pay_as("Pays a bill."))), true),
    ("the tool is gone", |agent| with_pay(agent, None), false),
    ("another effect", |agent| with_pay(agent, Some(pay().effect(Effect::Idempotent))), false),
];

fn changed(agent: AgentBuilder, changes: &[usize]) -> Agent {
    changes.iter().fold(agent, |agent, change| CHANGES[*change].1(agent)).build().unwrap()
}

/// All commits of a run of the agent, whose payment is approved.
async fn recorded(agent: &Agent) -> (Run, Vec<Event>) {
    let start = Run::new(agent, "which area?", "run").unwrap();
    let (mut run, mut seen) = (start.clone(), Vec::<RunEvent>::new());
    for _ in 0..3 {
        if run.exit().is_some() {
            break;
        }
        let decisions = at_paths(&run, [("c3", Decision::Approve)]);
        let decisions = if run.pending().is_empty() { Vec::new().into() } else { decisions };
        run = go_on(run, |run| run.decide_all(decisions).observe(&mut seen)).await.unwrap().into_run();
    }
    (start, seen.iter().filter_map(RunEvent::committed).cloned().collect())
}

/// The run of these events as another agent finds it.
fn found(agent: &Agent, before: &Agent, events: &[Event]) -> Run {
    let mut run = Run::new(agent, "which area?", "run").unwrap();
    run.follow_other_agent();
    for event in events {
        run.follow(event).unwrap_or_else(|error| panic!("{} of {events:#?}: {error}", event.name()));
    }
    run.upgrade_from(before.fingerprint());
    run.take_over();
    run
}

/// Every commit of a record of one agent, continued by another: nothing of the record is lost, what is touched is named,
/// the upgrade is recorded once, and the new record replays against the new agent.
async fn continues(before: &[usize], after: &[usize]) {
    let (before, after) = (changed(clerk(), before), changed(clerk(), after));
    let (start, events) = recorded(&before).await;
    let mut old = start;
    for place in 1..=events.len() {
        old.follow(&events[place - 1]).unwrap();
        let events = &events[..place];
        let run = found(&after, &before, events);
        assert_eq!(run.transcript(), old.transcript());
        assert_eq!(run.state(), old.state());
        assert_eq!((run.steps(), run.usage(), run.events()), (old.steps(), old.usage(), old.events()));
        let is_changed = before.fingerprint() != after.fingerprint();
        let has_ended = run.exit().is_some();
        assert_eq!(matches!(run.decide(), RunNeed::Upgrade), is_changed && !has_ended, "{:?}", run.decide());
        // What is stored has the upgrade as well.
        let stored = Run::load(&after, &run.to_json()).unwrap();
        assert_eq!(stored.to_json(), run.to_json());
        if has_ended {
            continue;
        }
        check_touched(&run, &before);
        let mut record: Vec<Event> = events.to_vec();
        let mut run = run;
        for _ in 0..3 {
            let decisions: Vec<_> =
                run.pending().into_iter().map(|request| (request.id, Decision::Approve)).collect();
            let mut seen = Vec::<RunEvent>::new();
            let outcome = run.resume().decide_all(decisions).observe(&mut seen).await.unwrap();
            record.extend(seen.iter().filter_map(RunEvent::committed).cloned());
            run = outcome.into_run();
            if run.exit().is_some() {
                break;
            }
        }
        let upgrades = record.iter().filter(|event| event.name() == "upgraded").count();
        assert_eq!(upgrades, usize::from(is_changed));
        assert!(run.exit().is_some(), "{:?}", run.decide());
        let again = Run::new(&after, "which area?", "run").unwrap().replay(&record, |_| true);
        let names: Vec<&str> = record.iter().map(Event::name).collect();
        let again = again.unwrap_or_else(|error| panic!("{error}; {names:?} after {place}"));
        assert_eq!(again.digest(), run.digest());
    }
}

/// A change touches a run exactly where a call of its tool is open.
fn check_touched(run: &Run, before: &Agent) {
    let upgrade = run.check_upgrade(before.fingerprint(), |_| false);
    let is_open = run.open_calls().iter().any(|(_, call)| call.name == "pay");
    let is_touching = upgrade.changes.iter().any(|change| {
        change.part == "tool pay" && change.inside.first().is_none_or(|inside| inside != "description")
    });
    assert_eq!(!upgrade.is_ahead_only(), is_open && is_touching, "{upgrade:?}");
}

#[test]
fn any_change_at_any_commit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // Each against an agent without changes, in both directions.
    for (place, (_, _, is_ahead)) in CHANGES.iter().enumerate() {
        runtime.block_on(continues(&[], &[place]));
        // An agent that never pays is asked to.
        if *is_ahead {
            runtime.block_on(continues(&[place], &[]));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_changes_at_any_commit(
        before in prop::collection::vec(0..14_usize, 0..4),
        after in prop::collection::vec(0..CHANGES.len(), 0..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(continues(&before, &after));
    }
}

/// A run of the clerk that waits for the approval of its payment, as this agent finds it.
async fn waiting(after: &Agent) -> (Agent, Run) {
    let before = clerk().build().unwrap();
    let outcome = play(&before, "which area?", |run| run).await.unwrap();
    assert_eq!(paths(&outcome), ["c3"]);
    let (run, _) = Run::load_changed(after, &outcome.run().to_json()).unwrap();
    (before, run)
}

/// A decision approves what was shown: after a change of the tool there is another request.
#[tokio::test]
async fn a_request_of_a_changed_tool_is_asked_again() {
    for (change, is_asked_again) in [(13, true), (15, true), (0, false), (6, false)] {
        let after = changed(clerk(), &[change]);
        let (before, run) = waiting(&after).await;
        let old = play(&before, "which area?", |run| run).await.unwrap().pending()[0].id.clone();
        let new = run.pending()[0].id.clone();
        assert_eq!(old != new, is_asked_again, "{}", CHANGES[change].0);
        assert_eq!(run.pending()[0].reason, AskReason::Rule);
        if is_asked_again {
            let error = run.check_decisions(&[(old, Decision::Approve)].into()).unwrap_err();
            assert!(error.to_string().contains(&new), "{error}");
        }
        // Loaded at any time: before the upgrade is in the record, and after.
        assert_eq!(Run::load(&after, &run.to_json()).unwrap().pending()[0].id, new);
        let upgraded = go_on(run, |run| run).await.unwrap().into_run();
        assert_eq!(upgraded.pending()[0].id, new);
        let outcome = decide(upgraded, [("c3", Decision::Approve)]).await.unwrap();
        assert_eq!((outcome.exit(), &*outcome.text()), (&Exit::Text, "area 3"));
    }
}

/// The model is told the new instructions from the upgrade on.
#[tokio::test]
async fn new_instructions_hold_from_the_upgrade_on() {
    let model = Asked::new(script(SCRIPT));
    let after = Agent::builder(model.clone()).instructions("Be brief.");
    let after = after.tools(tools().into_iter().chain([pay().build().unwrap()]).collect::<Vec<_>>());
    let (_, run) = waiting(&after.build().unwrap()).await;
    let mut recording = Recording::of(&run);
    let outcome = run.resume().observe(&mut recording).await.unwrap();
    let EventKind::Upgraded { instructions, changes, asked, .. } = &recording.events()[0].kind else {
        panic!("{:?}", recording.events());
    };
    assert_eq!(instructions.as_deref(), Some("Be brief."));
    assert_eq!(changes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["instructions is new"]);
    assert!(asked.is_empty());
    decide(outcome.into_run(), [("c3", Decision::Approve)]).await.unwrap();
    let first = &model.requests()[0].messages;
    assert_eq!(first.first().unwrap().text(), "Be brief.");
}

/// An agent inside of a call: its changes are looked at with its own run, and its requests are asked again.
#[tokio::test]
async fn the_agent_of_an_open_call() {
    let outer = |payer: Agent| {
        let model = script("assistant: > c1 settle(task=\"the bill\")\nassistant: settled");
        Agent::builder(model).tool(payer.as_tool("settle", "Settles a bill.")).build().unwrap()
    };
    let payer = |tool: ToolBuilder| {
        let model = script("assistant: > p1 pay(euro=5)\nassistant: paid it");
        Agent::builder(model).name("payer").tools([tool.build().unwrap()])
    };
    let before = outer(payer(pay()).build().unwrap());
    let stored = play(&before, "settle it", |run| run).await.unwrap().run().to_json();

    let ahead = outer(payer(pay()).instructions("Be careful.").build().unwrap());
    let (run, changes) = Run::load_changed(&ahead, &stored).unwrap();
    assert!(changes.contains(&"tool settle: agent: instructions is new".to_owned()), "{changes:?}");
    assert!(run.check_upgrade(before.fingerprint(), |_| false).is_ahead_only());

    let touching = outer(payer(pay().effect(Effect::Pure)).build().unwrap());
    let (run, _) = Run::load_changed(&touching, &stored).unwrap();
    let upgrade = run.check_upgrade(before.fingerprint(), |_| false);
    let touched: Vec<String> = upgrade.touches.iter().map(ToString::to_string).collect();
    assert_eq!(touched, ["tool settle: agent: tool pay: effect changed, and call `c1/p1` is open"]);
    let old = Run::load(&before, &stored).unwrap().pending()[0].id.clone();
    let new = run.pending()[0].id.clone();
    assert_ne!(new, old);
    let upgraded = run.resume().await.unwrap().into_run();
    assert_eq!(upgraded.pending()[0].id, new);
    let outcome = upgraded.resume().decide(&*new, Decision::Approve).await.unwrap();
    assert_eq!(&*outcome.text(), "settled");
}
