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

/// The most steps of an agent with these changes, and the last answers beyond.
fn most_steps(changes: &[usize]) -> (u64, u64) {
    let steps = changes.iter().fold(RunLimits::default().steps, |steps, change| match CHANGES[*change].0 {
        "fewer steps" => 1,
        "more steps" => 50,
        "a last answer at the limit" => 2,
        "a leaner loop" => RunLimits::default().steps,
        _ => steps,
    });
    (steps, u64::from(changes.iter().any(|change| CHANGES[*change].0.starts_with("a last answer"))))
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

/// The unended run of these events as another agent finds it.
fn found(agent: &Agent, before: &Agent, events: &[Event]) -> Run {
    let mut run = Run::new(agent, "which area?", "run").unwrap();
    if before.fingerprint() != agent.fingerprint() {
        run.follow_other_agent();
    }
    for event in events {
        run.follow(event).unwrap_or_else(|error| panic!("{} of {events:#?}: {error}", event.name()));
    }
    run.continue_unended();
    run.upgrade_from(before.fingerprint());
    run.take_over();
    run
}

/// The unended run of these events, the last of which are of the agent that finds it.
fn found_again(agent: &Agent, events: &[Event], is_changed: bool) -> Run {
    let mut run = Run::new(agent, "which area?", "run").unwrap();
    if is_changed {
        run.follow_other_agent();
    }
    for event in events {
        run.follow(event).unwrap_or_else(|error| panic!("{} of {events:#?}: {error}", event.name()));
    }
    assert!(!run.follows_other_agent());
    run.continue_unended();
    run
}

/// Every commit of a record of one agent, continued by another: nothing of the record is lost, what is touched is named,
/// the upgrade is recorded once, and the new record replays against the new agent.
async fn continues(before: &[usize], after: &[usize]) {
    let (most, last_answers) = most_steps(after);
    let (before, after) = (changed(clerk(), before), changed(clerk(), after));
    let (start, events) = recorded(&before).await;
    let mut old = start;
    for place in 1..=events.len() {
        old.follow(&events[place - 1]).unwrap();
        if old.exit().is_some() {
            break;
        }
        let events = &events[..place];
        let run = found(&after, &before, events);
        assert_eq!(run.transcript(), old.transcript());
        assert_eq!(run.state(), old.state());
        assert_eq!((run.steps(), run.usage(), run.events()), (old.steps(), old.usage(), old.events()));
        let is_changed = before.fingerprint() != after.fingerprint();
        // Whatever the other agent would have ended here, the record has no end.
        assert_eq!(run.exit(), None, "after {place}");
        assert_eq!(matches!(run.decide(), RunNeed::Upgrade), is_changed, "{:?}", run.decide());
        // What is stored has the upgrade as well.
        let stored = Run::load(&after, &run.to_json()).unwrap();
        assert_eq!(stored.to_json(), run.to_json());
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
        // No step is beyond the limits of the agent that makes it.
        assert!(
            run.steps() <= old.steps().max(most) + last_answers,
            "{} steps after {}",
            run.steps(),
            old.steps()
        );
        for end in place + 1..record.len() {
            let mut run = found_again(&after, &record[..end], is_changed);
            run.take_over();
            assert_eq!(
                run.exit(),
                None,
                "after {end} of {:?}",
                record.iter().map(Event::name).collect::<Vec<_>>()
            );
        }
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

/// A server that is gone takes its tools along: a run continues without it unless a call of one of them is open, also inside.
#[test]
fn a_server_that_is_gone_touches_open_calls_of_its_tools() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let listed = |server: &'static str| {
        let listing = stepfold_agent_loop::tools::ToolListing::new("1").from_dependency(server);
        let tool = pay().listing(listing).build().unwrap();
        stepfold_agent_loop::tools::Toolset::dynamic_with("servers", move |_| {
            let tools = vec![tool.clone()];
            async move { Ok(tools) }
        })
    };
    let on = |agent: AgentBuilder, servers: &[&str]| {
        agent.dependencies(servers.iter().map(|server| (*server, "1"))).build().unwrap()
    };
    let agent = |servers: &[&str]| {
        on(agent("assistant: > c1 pay()\nassistant: done").tools(listed("mcp bank")), servers)
    };
    let around = |servers: &[&str]| {
        let inner = super::kit::agent("assistant: > c1 pay()\nassistant: done").tools(listed("mcp bank"));
        let inner = inner.name("payer").build().unwrap().as_tool("ask", "Asks.").build().unwrap();
        on(super::kit::agent("assistant: > c0 ask(task=\"x\")\nassistant: done").tools([inner]), servers)
    };
    let both = ["mcp bank", "mcp shop"];
    for (before, now, gone, touched) in [
        (agent(&both), agent(&["mcp shop"]), "dependencies: mcp bank", "c1"),
        (agent(&both), agent(&[]), "dependencies: mcp bank", "c1"),
        (agent(&both), agent(&["mcp bank"]), "dependencies: mcp shop", ""),
        (around(&both), around(&["mcp shop"]), "dependencies: mcp bank", "c0/c1"),
        (around(&both), around(&["mcp bank"]), "dependencies: mcp shop", ""),
    ] {
        let waiting = runtime.block_on(play(&before, "go", |run| run)).unwrap();
        assert_eq!(waiting.pending().len(), 1);
        let (run, _) = Run::load_changed(&now, &waiting.run().to_json()).unwrap();
        let upgrade = run.check_upgrade(before.fingerprint(), |_| false);
        let said: Vec<String> = upgrade.touches.iter().map(ToString::to_string).collect();
        let expected = (!touched.is_empty()).then(|| format!("{gone} is gone, and call `{touched}` is open"));
        assert_eq!(said, expected.into_iter().collect::<Vec<_>>());
        assert!(upgrade.changes.iter().any(|change| change.to_string() == format!("{gone} is gone")));
    }
}

/// Tools that a server lists at each step do not hide those beside them.
#[test]
fn tools_beside_listed_ones_are_compared() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let listed = || stepfold_agent_loop::tools::Toolset::dynamic_with("none", |_| async { Ok(Vec::new()) });
    let agent = |pay: Option<ToolBuilder>, is_listing: bool| {
        let own: stepfold_agent_loop::tools::Toolset = pay.into_iter().collect();
        let both = stepfold_agent_loop::tools::Toolset::merged("all", [own.clone(), listed()]);
        let agent = agent("assistant: > c1 pay()\nassistant: done");
        agent.tools(if is_listing { both } else { own }).build().unwrap()
    };
    let idempotent = || pay().effect(Effect::Idempotent);
    for (before, now, expected) in [
        (agent(Some(pay()), true), agent(None, true), vec!["tool pay is gone, and call `c1` is open"]),
        (
            agent(Some(pay()), true),
            agent(Some(idempotent()), true),
            vec!["tool pay: effect changed, and call `c1` is open"],
        ),
        (agent(Some(pay()), true), agent(Some(pay_as("Pays a bill.")), true), vec![]),
        // Tools that are listed from now on, or no longer, do not touch a call of another one.
        (agent(Some(pay()), false), agent(Some(pay()), true), vec![]),
        (agent(Some(pay()), true), agent(Some(pay()), false), vec![]),
        (agent(Some(pay()), false), agent(None, true), vec!["tool pay is gone, and call `c1` is open"]),
    ] {
        let waiting = runtime.block_on(play(&before, "go", |run| run)).unwrap();
        let (run, _) = Run::load_changed(&now, &waiting.run().to_json()).unwrap();
        let upgrade = run.check_upgrade(before.fingerprint(), |_| false);
        let said: Vec<String> = upgrade.touches.iter().map(ToString::to_string).collect();
        assert_eq!(
            (said, upgrade.is_unchanged()),
            (expected.into_iter().map(str::to_owned).collect(), false)
        );
    }
    // Earlier versions recorded such an agent without them: that is no change.
    let now = agent(Some(pay()), true);
    let mut recorded = serde_json::to_value(now.fingerprint()).unwrap();
    recorded.as_object_mut().unwrap().remove("tool pay").unwrap();
    recorded["tools"] = json!("asked at each step");
    let recorded = serde_json::from_value(recorded).unwrap();
    assert_eq!(now.changes_since(&recorded), []);
    assert_eq!(agent(None, false).changes_since(&recorded).len(), 1);
}

/// An approval of a tool beside listed ones is asked again once after a change, as that of any other.
#[tokio::test]
async fn approval_of_a_tool_beside_listed_ones_is_asked_again_once() {
    let agent = |description| {
        let listed = stepfold_agent_loop::tools::Toolset::dynamic_with("none", |_| async { Ok(Vec::new()) });
        let all = listed.with_tool(pay_as(description).build().unwrap());
        agent("assistant: > c1 pay()\nassistant: done").tools(all).build().unwrap()
    };
    let waiting = play(&agent("Pays it."), "go", |run| run).await.unwrap();
    let id = waiting.pending()[0].id.clone();
    let (run, _) = Run::load_changed(&agent("Pays a bill."), &waiting.run().to_json()).unwrap();
    let asked = go_on(run, |run| run).await.unwrap();
    assert_ne!(asked.pending()[0].id, id);
    let ended = decide(reloaded(&asked), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
}
