//! Runs that are interrupted: by a crash, by the caller, by an error.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{ModelError, ModelErrorKind};
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::tools::{
    Approval, CancellationToken, Effect, ResultSource, Tool, ToolBuilder, ToolError, Toolset,
};
use stepfold_agent_loop::{
    Agent, AgentBuilder, ApprovalRequest, Breakpoint, Decision, Exit, HookAction, HookPoint, Observer,
    ObserverError, Run, RunAnswer, RunBuilder, RunEvent,
};
use tokio::sync::Notify;

use super::check;
use super::kit::*;

/// The process dies before this is committed: nothing that comes with it is.
struct DiesAt {
    event: &'static str,
    /// How many of them are committed before.
    after: usize,
}

impl DiesAt {
    fn first(event: &'static str) -> Self {
        DiesAt { event, after: 0 }
    }
}

impl Observer for DiesAt {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let is_it = event.committed().is_some_and(|event| event.name() == self.event);
        match (is_it, self.after) {
            (false, _) => Ok(()),
            (true, 0) => Err("the disk is full".into()),
            (true, _) => {
                self.after -= 1;
                Ok(())
            }
        }
    }
}

/// `pay` must not run twice, `look` may.
fn paying(notes: &Notes) -> AgentBuilder {
    let tools = [notes.tool("pay"), notes.later("look").effect(Effect::Pure)];
    Agent::builder(script("assistant: > c1 pay()   > c2 look()\nassistant: done"))
        .tools(tools.map(|tool| tool.build().unwrap()))
}

/// The run as the next process finds it, after one that died at this event.
async fn died(agent: &Agent, at: DiesAt) -> Run {
    let error = play(agent, "go", |run| run.observe(at)).await.unwrap_err();
    Run::load(agent, &error.into_run().to_json()).unwrap()
}

/// It had started and may have happened: the model is told, and it is not run again.
#[tokio::test]
async fn interrupted_call_that_must_not_run_twice() {
    let notes = Notes::default();
    let agent = paying(&notes).build().unwrap();
    let run = died(&agent, DiesAt::first("answered")).await;
    let ended = go_on(run, |run| run).await;
    expect![[r#"
        user:      go
        assistant: > c1 pay()   > c2 look()
        tool c1!:  tool 'pay' had started when the process was interrupted: its outcome is unknown, and it was not run again
        tool c2:   {}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 1
    "#]].assert_eq(&shown(&ended));
    assert_eq!((notes.count("pay"), notes.count("look")), (1, 1));
}

/// Who reads the outcome sees which calls have an unknown one, also after one more restart, and after a decision.
#[tokio::test]
async fn interrupted_calls_are_listed_in_the_outcome() {
    let listed = |outcome: &stepfold_agent_loop::Outcome| {
        let calls = outcome.unknown_calls().into_iter();
        calls
            .map(|call| format!("{} {}({})", call.id, call.tool, call.arguments.to_text()))
            .collect::<Vec<_>>()
    };
    let notes = Notes::default();
    let agent = paying(&notes).build().unwrap();
    let run = died(&agent, DiesAt::first("answered")).await;
    // Killed once more, when the step is over: the record says it still.
    let error = go_on(run, |run| run.observe(DiesAt::first("replied"))).await.unwrap_err();
    assert_eq!(listed(error.outcome()), ["c1 pay({})"]);
    let ended = go_on(reloaded(error.outcome()), |run| run).await.unwrap();
    assert_eq!(listed(&ended), ["c1 pay({})"]);

    let asking = paying(&notes).ask_when_uncertain().build().unwrap();
    let run = died(&asking, DiesAt::first("answered")).await;
    let paused = go_on(run, |run| run).await.unwrap();
    assert_eq!(listed(&paused), [""; 0], "an approver may know");
    let rejected = decide(reloaded(&paused), [("c1", Decision::reject("no idea"))]).await.unwrap();
    assert_eq!(listed(&rejected), ["c1 pay({})"]);
    let approved = decide(reloaded(&paused), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!(listed(&approved), [""; 0]);

    let run = died(&agent, DiesAt::first("answered")).await;
    let token = CancellationToken::new();
    token.cancel();
    let cancelled = go_on(run, |run| run.cancel_with(token)).await.unwrap();
    assert_eq!((cancelled.exit(), listed(&cancelled)), (&Exit::Cancelled, vec!["c1 pay({})".to_owned()]));
}

/// It was never started: it runs.
#[tokio::test]
async fn interrupted_call_that_was_not_started() {
    let notes = Notes::default();
    let agent = paying(&notes).build().unwrap();
    let run = died(&agent, DiesAt::first("started")).await;
    assert_eq!(notes.text(), "", "nothing runs before its marker is committed");
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
    assert_eq!((notes.count("pay"), notes.count("look")), (1, 1));
}

/// What ended at the same moment is one commit: lost together if that is refused, and never run again if it is not.
#[tokio::test]
async fn calls_that_end_at_the_same_moment() {
    let notes = Notes::default();
    let tools = [notes.tool("pay"), notes.tool("look").effect(Effect::Pure)];
    let agent = Agent::builder(script("assistant: > c1 pay()   > c2 look()\nassistant: done"))
        .tools(tools.map(|tool| tool.build().unwrap()));
    let plain = agent.build().unwrap();
    let refused = play(&plain, "go", |run| run.observe(DiesAt::first("answered"))).await.unwrap_err();
    assert_eq!(refused.unrecorded(), ["c1", "c2"]);
    let run = Run::load(&plain, &refused.into_run().to_json()).unwrap();
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
    assert_eq!((notes.count("pay"), notes.count("look")), (1, 2));

    notes.clear();
    let run = died(&plain, DiesAt { event: "replied", after: 1 }).await;
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
    assert_eq!((notes.count("pay"), notes.count("look")), (1, 1));

    // A hook may take its time: nothing that has ended waits for it.
    let hooked = plain.to_builder().after_tool(|_| async { Ok(stepfold_agent_loop::HookAction::proceed()) });
    for (agent, commits) in [(plain, 1), (hooked.build().unwrap(), 2)] {
        let mut seen = Vec::new();
        play(&agent, "go", |run| run.observe(&mut seen)).await.unwrap();
        let answered = committed(&seen).into_iter().filter(|name| *name == "answered");
        assert_eq!(answered.count(), commits);
    }
}

/// The tools of the program, or the same as a server lists them at each step.
fn offered(tools: Vec<Tool>, are_listed: bool) -> Toolset {
    if !are_listed {
        return tools.into_iter().collect();
    }
    Toolset::dynamic_with("bank", move |_| {
        let tools = tools.clone();
        async move { Ok(tools) }
    })
}

/// An agent with one call of `pay`.
fn payer(notes: &Notes, effect: Effect, approval: Approval, are_listed: bool) -> AgentBuilder {
    let pay = notes.tool("pay").effect(effect).approval(approval).build().unwrap();
    Agent::builder(script("assistant: > c1 pay()\nassistant: done")).tools(offered(vec![pay], are_listed))
}

/// The run as a program finds it in which the tool is another one by now: a server lists it so, or the change is forced.
fn with_other_tool(agent: &Agent, run: &Run, are_listed: bool) -> Run {
    match are_listed {
        true => Run::load(agent, &run.to_json()).unwrap(),
        false => Run::load_changed(agent, &run.to_json()).unwrap().0,
    }
}

/// It may have run while it was repeatable: it does not run again once it must not run twice.
#[tokio::test]
async fn interrupted_call_that_must_not_run_twice_by_now() {
    for (are_listed, asks, was) in [
        (false, false, Effect::Idempotent),
        (false, true, Effect::Pure),
        (true, false, Effect::Pure),
        (true, true, Effect::Idempotent),
    ] {
        let notes = Notes::default();
        let agent = |effect| {
            let agent = payer(&notes, effect, Approval::Never, are_listed);
            if asks { agent.ask_when_uncertain() } else { agent }.build().unwrap()
        };
        let lost = died(&agent(was), DiesAt::first("answered")).await;
        let run = with_other_tool(&agent(Effect::AtMostOnce), &lost, are_listed);
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!(notes.count("pay"), 1, "{was:?}, listed: {are_listed}, asks: {asks}");
        if !asks {
            assert_eq!(ended.unknown_calls().len(), 1);
            continue;
        }
        assert_eq!(format!("{:?}", ended.pending()[0].reason), "MayHaveHappened");
        let ended = decide(reloaded(&ended), [("c1", Decision::Approve)]).await.unwrap();
        assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 2), "a person may say so");
    }
}

/// It may have had its effect, and cannot run any more: the tool is gone, or takes other arguments. No one says that it has
/// not run.
#[tokio::test]
async fn interrupted_call_that_cannot_run_any_more() {
    for are_listed in [false, true] {
        for (was, is_unknown) in [(Effect::Idempotent, true), (Effect::Pure, false)] {
            for is_gone in [false, true] {
                let notes = Notes::default();
                let other = json!({"properties": {"euro": {}}, "required": ["euro"], "type": "object"});
                let now = notes.tool(if is_gone { "look" } else { "pay" }).parameters(other).effect(was);
                let now = Agent::builder(script("assistant: > c1 pay()\nassistant: done"))
                    .tools(offered(vec![now.build().unwrap()], are_listed));
                let before = payer(&notes, was, Approval::Never, are_listed).build().unwrap();
                let lost = died(&before, DiesAt::first("answered")).await;
                let run = with_other_tool(&now.build().unwrap(), &lost, are_listed);
                let ended = go_on(run, |run| run).await.unwrap();
                assert_eq!(
                    (ended.exit(), ended.unknown_calls().len(), notes.count("pay")),
                    (&Exit::Text, usize::from(is_unknown), 1),
                    "{was:?}, listed: {are_listed}, gone: {is_gone}: {}",
                    ended.transcript()
                );
            }
        }
    }
}

/// It is still repeatable, or was never: what has not begun runs.
#[tokio::test]
async fn interrupted_call_whose_tool_changes_otherwise() {
    let at = |event| DiesAt { event, after: 0 };
    for (are_listed, was, is, died_at, runs) in [
        (true, Effect::Pure, Effect::Idempotent, at("answered"), 2),
        (false, Effect::Pure, Effect::Idempotent, at("answered"), 2),
        (true, Effect::AtMostOnce, Effect::AtMostOnce, at("started"), 1),
        (false, Effect::AtMostOnce, Effect::Pure, at("started"), 1),
        (true, Effect::AtMostOnce, Effect::Pure, at("started"), 1),
    ] {
        let notes = Notes::default();
        let before = payer(&notes, was, Approval::Never, are_listed).build().unwrap();
        let lost = died(&before, died_at).await;
        let now = payer(&notes, is, Approval::Never, are_listed).instructions("Be brief.").build().unwrap();
        let (run, _) = Run::load_changed(&now, &lost.to_json()).unwrap();
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!(
            (ended.exit(), notes.count("pay"), ended.unknown_calls().len()),
            (&Exit::Text, runs, 0),
            "{was:?} to {is:?}, listed: {are_listed}"
        );
    }
}

/// An approval of a call that may have run is not taken for one that it may run again; one that waits has not begun.
#[tokio::test]
async fn interrupted_call_that_was_approved_and_must_not_run_twice_by_now() {
    let notes = Notes::default();
    let agent = |effect| payer(&notes, effect, Approval::Always, true).ask_when_uncertain().build().unwrap();
    let (before, now) = (agent(Effect::Idempotent), agent(Effect::AtMostOnce));
    let waiting = play(&before, "go", |run| run).await.unwrap();

    let id = id_at(waiting.run(), "c1");
    let decided =
        go_on(reloaded(&waiting), |run| run.decide(id, Decision::Approve).observe(DiesAt::first("answered")));
    let lost = decided.await.unwrap_err().into_run();
    let asked = go_on(with_other_tool(&now, &lost, true), |run| run).await.unwrap();
    assert_eq!(format!("{:?}", asked.pending()[0].reason), "MayHaveHappened");
    assert_eq!(notes.count("pay"), 1);

    notes.clear();
    let asked =
        decide(with_other_tool(&now, waiting.run(), true), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!(format!("{:?}", asked.pending()[0].reason), "Rule", "its tool is another one");
    let ended = decide(reloaded(&asked), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
}

/// Another host folds the record event by event, and a replay follows it: what was decided inside does not say that the call has
/// not begun.
#[tokio::test]
async fn interrupted_call_inside_that_was_approved_is_in_the_record() {
    let notes = Notes::default();
    let outer = |effect| {
        let payer = payer(&notes, effect, Approval::Always, true).name("payer").build().unwrap();
        let ask = payer.as_tool("ask", "Asks the payer.").build().unwrap();
        let model = script("assistant: > c0 ask(task=\"pay\")\nassistant: done");
        Agent::builder(model).tools([ask]).build().unwrap()
    };
    let (before, now) = (outer(Effect::Idempotent), outer(Effect::AtMostOnce));
    let inner = |event: &stepfold_agent_loop::Event| matches!(event.kind, stepfold_agent_loop::EventKind::Inner { ref event, .. } if event.name() == "answered");
    let mut seen = Vec::new();
    let waiting = play(&before, "go", |run| run.observe(&mut seen)).await.unwrap();
    let id = id_at(waiting.run(), "c0/c1");
    let decided = go_on(reloaded(&waiting), |run| {
        run.decide(id, Decision::Approve).observe(DiesWhen(inner)).observe(&mut seen)
    });
    decided.await.unwrap_err();
    assert_eq!(notes.count("pay"), 1);

    // As a store has it.
    let catching_up = |events: &[RunEvent]| {
        let mut run = Run::new(&now, "go", "run").unwrap();
        for event in events.iter().filter_map(RunEvent::committed) {
            run.follow_other_agent();
            run.catch_up(event.clone()).unwrap();
        }
        run
    };
    let mut run = catching_up(&seen);
    run.upgrade_from(before.fingerprint());
    let ended = run.resume().observe(&mut seen).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay"), ended.unknown_calls().len()), (&Exit::Text, 1, 1));
    assert_eq!(catching_up(&seen).events(), ended.run().events());
}

/// A replay of a record with an interruption gives the same run.
#[tokio::test]
async fn interruption_of_an_approved_call_is_replayed() {
    let notes = Notes::default();
    let agent = |effect| payer(&notes, effect, Approval::Always, true).ask_when_uncertain().build().unwrap();
    let (before, now) = (agent(Effect::Idempotent), agent(Effect::AtMostOnce));
    let mut seen = Vec::new();
    let waiting = play(&before, "go", |run| run.observe(&mut seen)).await.unwrap();
    let id = id_at(waiting.run(), "c1");
    let dies = DiesAt::first("answered");
    let lost =
        go_on(reloaded(&waiting), |run| run.decide(id, Decision::Approve).observe(dies).observe(&mut seen));
    let lost = lost.await.unwrap_err().into_run();
    let asked = go_on(with_other_tool(&now, &lost, true), |run| run.observe(&mut seen)).await.unwrap();
    assert_eq!(asked.pending().len(), 1);
    let events: Vec<_> = seen.iter().filter_map(RunEvent::committed).cloned().collect();
    assert!(events.iter().any(|event| event.name() == "interrupted"));
    // An effect is nothing that the model sees.
    for agent in [before, now] {
        let replayed = Run::new(&agent, "go", "run").unwrap().replay_with_tools(&events, |_| true).await;
        assert_eq!(replayed.unwrap().pending().len(), 1);
    }
}

/// A question about a call that may have happened does not say that nothing beside it has begun.
#[tokio::test]
async fn interrupted_call_beside_one_that_is_asked_about() {
    let notes = Notes::default();
    let agent = |effect| {
        let look = notes.tool("look").effect(effect).build().unwrap();
        let pay = notes.later("pay").effect(Effect::AtMostOnce).build().unwrap();
        Agent::builder(script("assistant: > c1 look()   > c2 pay()\nassistant: done"))
            .tools([look, pay])
            .ask_when_uncertain()
            .build()
            .unwrap()
    };
    let lost = died(&agent(Effect::Idempotent), DiesAt::first("answered")).await;
    let asked = go_on(lost, |run| run).await.unwrap();
    assert_eq!(paths(&asked), ["c2"]);
    let (run, _) = Run::load_changed(&agent(Effect::AtMostOnce), &asked.run().to_json()).unwrap();
    let both = decide(run, [("c2", Decision::reject("it happened"))]).await.unwrap();
    assert_eq!((paths(&both), notes.count("look")), (vec!["c1".to_owned()], 1));
}

/// A call that could not run is answered so, also after a stop: it was not begun.
#[tokio::test]
async fn call_that_could_never_run_is_no_interrupted_one() {
    for are_listed in [false, true] {
        let notes = Notes::default();
        let parameters = json!({"properties": {"euro": {}}, "required": ["euro"], "type": "object"});
        let agent = |words: &str| {
            let pay =
                notes.tool("pay").parameters(parameters.clone()).effect(Effect::Idempotent).build().unwrap();
            Agent::builder(script("assistant: > c1 pay()\nassistant: done"))
                .instructions(words)
                .tools(offered(vec![pay], are_listed))
                .build()
                .unwrap()
        };
        let stopped = play(&agent("Pay."), "go", |run| run.break_at(Breakpoint::tool("pay"))).await.unwrap();
        let (run, _) = Run::load_changed(&agent("Pay it."), &stopped.run().to_json()).unwrap();
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!((ended.exit(), ended.unknown_calls().len()), (&Exit::Text, 0), "listed: {are_listed}");
        assert!(ended.transcript().to_string().contains("invalid arguments"), "{}", ended.transcript());
    }
}

/// What stands beside a call that waits for its approval has not begun, whatever its tool was.
#[tokio::test]
async fn call_beside_one_that_waits_runs_though_it_must_not_run_twice_by_now() {
    for are_listed in [false, true] {
        let notes = Notes::default();
        let agent = |effect| {
            let look = notes.tool("look").effect(effect).build().unwrap();
            let pay = notes.tool("pay").approval(Approval::Always).build().unwrap();
            Agent::builder(script("assistant: > c1 look()   > c2 pay()\nassistant: done"))
                .tools(offered(vec![look, pay], are_listed))
                .build()
                .unwrap()
        };
        let waiting = play(&agent(Effect::Pure), "go", |run| run).await.unwrap();
        let run = with_other_tool(&agent(Effect::AtMostOnce), waiting.run(), are_listed);
        let ended = decide(run, [("c2", Decision::Approve)]).await.unwrap();
        assert_eq!((ended.exit(), ended.unknown_calls().len()), (&Exit::Text, 0), "listed: {are_listed}");
        assert_eq!((notes.count("look"), notes.count("pay")), (1, 1));
    }
}

/// The same inside of an agent that is a tool.
#[tokio::test]
async fn interrupted_call_inside_that_must_not_run_twice_by_now() {
    for are_listed in [false, true] {
        let notes = Notes::default();
        let outer = |effect| {
            let payer = payer(&notes, effect, Approval::Never, are_listed).name("payer").build().unwrap();
            let ask = payer.as_tool("ask", "Asks the payer.").build().unwrap();
            Agent::builder(script("assistant: > c0 ask(task=\"pay\")\nassistant: done"))
                .tools([ask])
                .build()
                .unwrap()
        };
        // After `began`, `hooked` or `replied`, it is the outcome of the call inside.
        let inner = |event: &stepfold_agent_loop::Event| matches!(event.kind, stepfold_agent_loop::EventKind::Inner { ref event, .. } if event.name() == "answered");
        let agent = outer(Effect::Idempotent);
        let error = play(&agent, "go", |run| run.observe(DiesWhen(inner))).await.unwrap_err();
        let now = outer(Effect::AtMostOnce);
        let (run, _) = Run::load_changed(&now, &error.into_run().to_json()).unwrap();
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!(notes.count("pay"), 1, "listed: {are_listed}");
        assert_eq!(ended.unknown_calls().len(), 1);
    }
}

/// The end of a run says of each call what the record says: it had started if it was marked, it may have if it could run and
/// nothing marks its start, and otherwise it has not. Each host says the same.
#[tokio::test]
async fn call_without_outcome_when_the_run_ends() {
    let had = ("had started when the process was interrupted: its outcome is unknown", Some(false));
    let may = ("may have started when the process was interrupted: its outcome is unknown", Some(true));
    let may_pure = ("may have started, and has no result: ", None);
    let not = ("not started: ", None);
    let at = DiesAt::first;
    for (effect, rule, asks, dies, expected) in [
        (Effect::AtMostOnce, Approval::Never, false, at("answered"), had),
        (Effect::AtMostOnce, Approval::Never, false, at("started"), not),
        (Effect::AtMostOnce, Approval::Never, true, at("answered"), had),
        (Effect::Idempotent, Approval::Never, false, at("answered"), may),
        (Effect::Idempotent, Approval::Always, false, at("answered"), not),
        (Effect::Pure, Approval::Never, false, at("answered"), may_pure),
    ] {
        for (are_listed, is_cancelled) in [(false, true), (true, true), (true, false)] {
            let notes = Notes::default();
            let agent = payer(&notes, effect, rule.clone(), are_listed);
            let agent = if asks { agent.ask_when_uncertain() } else { agent }.build().unwrap();
            let dies = DiesAt { event: dies.event, after: 0 };
            let mut recording = stepfold_agent_loop::Recording::of(&Run::new(&agent, "go", "run").unwrap());
            let live = match play(&agent, "go", |run| run.observe(dies).observe(&mut recording)).await {
                Ok(outcome) => outcome.into_run(),
                Err(error) => error.into_run(),
            };
            let mut run = Run::load(&agent, &live.to_json()).unwrap();
            // After the question of what may have happened as well.
            if asks {
                run = go_on(run, |run| run.observe(&mut recording)).await.unwrap().into_run();
                assert_eq!(run.pending().len(), 1);
                assert!(run.pending()[0].to_text().contains("It had started before"));
            }
            let mut read = Run::new(&agent, "go", "run").unwrap();
            recording.events().iter().for_each(|event| read.catch_up(event.clone()).unwrap());
            let answer = || if is_cancelled { RunAnswer::Cancelled } else { RunAnswer::TimedOut };
            let ends = |run: &Run| run.feed(answer(), Duration::ZERO).unwrap();
            let end = ends(&run);
            assert_eq!(serde_json::to_value(&end).unwrap(), serde_json::to_value(ends(&read)).unwrap());
            if !asks {
                assert_eq!(end, ends(&live));
            }
            let text = end.messages[0].tool_result().unwrap().text().into_owned();
            let case = format!("{effect:?}, {rule:?}, listed: {are_listed}: {text}");
            assert!(text.contains(expected.0), "{case}");
            run.commit(end).unwrap();
            let unknown = run.unknown_calls().first().map(|call| call.is_start_uncertain);
            assert_eq!(unknown, expected.1, "{case}");
        }
    }
}

/// A rejection of a call that only may have started does not say that it had.
#[tokio::test]
async fn rejection_of_a_call_that_only_may_have_started() {
    for are_listed in [false, true] {
        let notes = Notes::default();
        let agent =
            |effect| payer(&notes, effect, Approval::Never, are_listed).ask_when_uncertain().build().unwrap();
        let lost = died(&agent(Effect::Idempotent), DiesAt::first("answered")).await;
        let run = with_other_tool(&agent(Effect::AtMostOnce), &lost, are_listed);
        let asked = go_on(run, |run| run).await.unwrap();
        assert!(asked.pending()[0].to_text().contains("It may have started before"));
        let ended = decide(reloaded(&asked), [("c1", Decision::reject("it happened"))]).await.unwrap();
        let said = ended.transcript().to_string();
        assert!(said.contains("may have started") && !said.contains("had started"), "{said}");
        assert!(ended.unknown_calls()[0].is_start_uncertain);
        // Approved and lost once more, it had started: it was marked.
        let approved = at_paths(asked.run(), [("c1", Decision::Approve)]);
        let lost = go_on(reloaded(&asked), |run| run.decide_all(approved).observe(DiesAt::first("answered")));
        let asked = go_on(reloaded(lost.await.unwrap_err().outcome()), |run| run).await.unwrap();
        assert!(asked.pending()[0].to_text().contains("It had started before"));
        let ended = decide(reloaded(&asked), [("c1", Decision::reject("it happened"))]).await.unwrap();
        assert!(ended.transcript().to_string().contains("had started"), "{}", ended.transcript());
    }
}

/// The process dies before such an event is committed.
struct DiesWhen(fn(&stepfold_agent_loop::Event) -> bool);

impl Observer for DiesWhen {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event.committed().is_some_and(self.0) {
            true => Err("the disk is full".into()),
            false => Ok(()),
        }
    }
}

/// What has its outcome is not run again.
#[tokio::test]
async fn interrupted_call_beside_a_finished_one() {
    let notes = Notes::default();
    let agent = paying(&notes).build().unwrap();
    let run = died(&agent, DiesAt { event: "answered", after: 1 }).await;
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
    assert_eq!(notes.text().lines().count(), 3, "{}", notes.text());
}

/// An approver is asked, who may run it again or not.
#[tokio::test]
async fn interrupted_call_is_asked_about() {
    for (decision, paid, expected) in [
        (
            Decision::Approve,
            2,
            expect![[r#"
            user:      go
            assistant: > c1 pay()   > c2 look()
            tool c1:   {}
            tool c2:   {}
            assistant: done
            --
            exit: the model answered
            steps: 2, calls: look 1, pay 1
        "#]],
        ),
        (
            Decision::reject("it went through"),
            1,
            expect![[r#"
            user:      go
            assistant: > c1 pay()   > c2 look()
            tool c1!:  tool 'pay' had started when the process was interrupted: its outcome is unknown, and it was not run again
            tool c2:   {}
            assistant: done
            --
            exit: the model answered
            steps: 2, calls: look 1
        "#]],
        ),
    ] {
        let notes = Notes::default();
        let agent = paying(&notes).ask_when_uncertain().build().unwrap();
        let run = died(&agent, DiesAt::first("answered")).await;
        let paused = go_on(run, |run| run).await.unwrap();
        assert_eq!(format!("{:?}", paused.pending()[0].reason), "MayHaveHappened");
        let ended = decide(reloaded(&paused), [("c1", decision)]).await;
        expected.assert_eq(&shown(&ended));
        assert_eq!(notes.count("pay"), paid);
    }
}

/// The same key again: what may run twice can be made to count once.
#[tokio::test]
async fn interrupted_call_has_the_same_idempotency_key() {
    use stepfold_agent_loop::tools::ToolContext;

    let notes = Notes::default();
    let seen = notes.clone();
    let look = Tool::new("look", "Looks.", move |context: ToolContext| {
        seen.add(context.idempotency_key());
        async { Ok::<_, ToolError>(1) }
    });
    let look = look.effect(Effect::Idempotent).build().unwrap();
    let agent =
        Agent::builder(script("assistant: > c1 look()\nassistant: done")).tools([look]).build().unwrap();
    let run = died(&agent, DiesAt::first("answered")).await;
    go_on(run, |run| run).await.unwrap();
    assert_eq!(notes.text(), "run/1/c1\nrun/1/c1\n");
}

/// A call that waits for another one starts while a third is still under way: each has its marker.
#[tokio::test(start_paused = true)]
async fn interrupted_call_in_waves() {
    let schema = Schema::builder().key::<u64>("area").build().unwrap();
    let slow = |name: &'static str, seconds: u64| {
        Tool::new(name, "Takes its time.", move || async move {
            // tidy: allow sleep, because the clock is paused and moves on by itself.
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, ToolError>(seconds)
        })
    };
    let tools = [
        slow("find", 1).output_to_state("area", ResultSource::Whole),
        slow("slow", 60),
        tool("read", |_| Ok(json!("read"))).reads(["area"]),
    ];
    let agent = Agent::builder(script("assistant: > c1 find()   > c2 slow()   > c3 read()\nassistant: done"))
        .schema(schema)
        .tools(tools.map(|tool| tool.build().unwrap()));
    check(
        agent,
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 find()   > c2 slow()   > c3 read()
        tool c1:   1
        tool c2:   60
        tool c3:   read
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: find 1, read 1, slow 1
        state: {"area":1}
    "#]],
    )
    .await;
}

/// The event is not committed, nothing that follows happens, and the run continues from there.
#[tokio::test]
async fn error_of_an_observer() {
    for event in ["began", "replied", "started", "answered"] {
        let notes = Notes::default();
        let agent = paying(&notes).build().unwrap();
        let mut seen = Vec::new();
        let error =
            play(&agent, "go", |run| run.observe(DiesAt::first(event)).observe(&mut seen)).await.unwrap_err();
        let lost = if event == "answered" { "; unrecorded outcomes: `c1`" } else { "" };
        let why = format!("observer failed, so the event was not committed{lost}: the disk is full");
        assert!(chain(&error).ends_with(&why), "{}", chain(&error));
        // Those behind the one that failed are not told.
        assert!(!committed(&seen).contains(&event), "{seen:?}");
        assert_eq!(error.outcome().run().events(), committed(&seen).len() as u64);
        let run = Run::load(&agent, &error.into_run().to_json()).unwrap();
        assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
        assert_eq!(notes.count("pay"), 1, "{event}");
    }
}

#[tokio::test]
async fn error_of_the_model_in_step_2() {
    let failing =
        script("assistant: > c1 fetch(id=1)").then_fail(ModelError::new(ModelErrorKind::Overloaded, "busy"));
    let agent = Agent::builder(failing).tools(tools()).build().unwrap();
    let ended = play(&agent, "where?", |run| run).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        --
        error: run 'run' failed after step 1: model request failed: overloaded: busy
        steps: 1, calls: fetch 1
    "#]]
    .assert_eq(&shown(&ended));
    let error = ended.unwrap_err();
    assert_eq!(error.model_error().map(ModelError::kind), Some(&ModelErrorKind::Overloaded));
    let well = agent.to_builder().model(script("assistant: -\nassistant: area 1")).build().unwrap();
    let run = Run::load(&well, &error.into_run().to_json()).unwrap();
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fetch 1
    "#]]
    .assert_eq(&shown(&go_on(run, |run| run).await));
}

/// A stream that ends without saying that it has is not a reply, whatever had come.
#[tokio::test]
async fn error_of_a_reply_that_is_interrupted() {
    use stepfold_agent_loop::state_core::chat::{ChatModel, ChatRequest, Chunk, ReplyStream};

    struct Cut;
    impl ChatModel for Cut {
        fn id(&self) -> &'static str {
            "cut"
        }
        fn respond(&self, _: ChatRequest) -> ReplyStream {
            ReplyStream::from_chunks([Chunk::Text("area".to_owned())])
        }
    }
    let ended = play(&Agent::builder(Cut).build().unwrap(), "where?", |run| run).await;
    expect![[r#"
        user:      where?
        --
        error: run 'run' failed after step 0: model request failed: reply interrupted: the stream ended without a finish reason
        steps: 0
    "#]].assert_eq(&shown(&ended));
    let error = ended.unwrap_err();
    assert_eq!(error.model_error().map(ModelError::kind), Some(&ModelErrorKind::Truncated));
}

#[tokio::test]
async fn cancellation_before_it_begins() {
    let token = CancellationToken::new();
    token.cancel();
    let agent = agent("assistant: area 3").build().unwrap();
    let ended = play(&agent, "where?", |run| run.cancel_with(token)).await;
    expect![[r#"
        user:      where?
        --
        exit: the run was cancelled
        steps: 0
    "#]]
    .assert_eq(&shown(&ended));
}

/// Cancels when told, while the run waits.
async fn cancelled_while<'a>(agent: &Agent, say: impl FnOnce(RunBuilder<'a>) -> RunBuilder<'a>) -> Ended {
    let token = CancellationToken::new();
    let run = play(agent, "where?", |run| say(run.cancel_with(token.clone())));
    let cancel = async {
        // Everything else completes first: time is paused.
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(1)).await;
        token.cancel();
    };
    let (ended, ()) = tokio::join!(run, cancel);
    ended
}

#[tokio::test(start_paused = true)]
async fn cancellation_during_the_model() {
    let agent = Agent::builder(Silent).tools(tools()).build().unwrap();
    expect![[r#"
        user:      where?
        --
        exit: the run was cancelled
        steps: 0
    "#]]
    .assert_eq(&shown(&cancelled_while(&agent, |run| run).await));
}

/// What had come of the reply is not committed.
#[tokio::test(start_paused = true)]
async fn cancellation_during_the_stream() {
    use futures_util::StreamExt;
    use stepfold_agent_loop::state_core::chat::{ChatModel, ChatRequest, Chunk, ReplyStream};

    struct Stalls;
    impl ChatModel for Stalls {
        fn id(&self) -> &'static str {
            "stalls"
        }
        fn respond(&self, _: ChatRequest) -> ReplyStream {
            let begun = futures_util::stream::iter([Ok(Chunk::Text("area".to_owned()))]);
            ReplyStream::new(begun.chain(futures_util::stream::pending()))
        }
    }
    let agent = Agent::builder(Stalls).build().unwrap();
    let mut seen = Vec::new();
    let ended = cancelled_while(&agent, |run| run.observe(&mut seen)).await;
    expect![[r#"
        user:      where?
        --
        exit: the run was cancelled
        steps: 0
    "#]]
    .assert_eq(&shown(&ended));
    assert!(seen.contains(&RunEvent::Text("area".to_owned())));
}

/// What ran is kept, what was under way may have happened, what had not started is said to be so.
#[tokio::test(start_paused = true)]
async fn cancellation_during_the_tools() {
    let notes = Notes::default();
    let tools = [notes.tool("quick"), endless("wait")].map(|tool| tool.build().unwrap());
    let agent =
        Agent::builder(script("assistant: > c1 quick()   > c2 wait()   > c3 quick()\nassistant: never"))
            .tools(tools)
            .tool_limits(at_once(1))
            .build()
            .unwrap();
    let ended = cancelled_while(&agent, |run| run).await;
    expect![[r#"
        user:      where?
        assistant: > c1 quick()   > c2 wait()   > c3 quick()
        tool c1:   {}
        tool c2!:  tool 'wait' cancelled while it ran; the effect may have happened
        tool c3!:  tool 'quick' not started: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1, calls: quick 2, wait 1
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!(notes.count("quick"), 1);
    // The session is usable at once.
    let again = agent.to_builder().model(script("assistant: all right").after(1)).build().unwrap();
    let input = stepfold_agent_loop::Input::on(outcome_of(&ended).state().clone()).say("then let it be");
    assert_eq!(play(&again, input, |run| run).await.unwrap().exit(), &Exit::Text);
}

/// To be cancelled is not to fail.
#[tokio::test(start_paused = true)]
async fn cancellation_during_the_tools_when_failures_are_raised() {
    let agent = Agent::builder(script("assistant: > c1 wait()\nassistant: never"))
        .tools([endless("wait").build().unwrap()])
        .raise_on_failure()
        .build()
        .unwrap();
    assert_eq!(cancelled_while(&agent, |run| run).await.unwrap().exit(), &Exit::Cancelled);
}

/// The run ends; it does not wait for an answer that is no longer wanted.
#[tokio::test(start_paused = true)]
async fn cancellation_while_an_approver_thinks() {
    let agent = agent("assistant: > c1 fetch(id=1)   > c2 search(q=\"x\")\nassistant: never")
        .approval(Approval::when(|arguments| arguments.contains_key("id")))
        .build()
        .unwrap();
    let never = |_: Vec<ApprovalRequest>| std::future::pending();
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 search(q="x")
        tool c1!:  tool 'fetch' not started: the run was cancelled
        tool c2!:  tool 'search' not started: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1
    "#]]
    .assert_eq(&shown(&cancelled_while(&agent, |run| run.approve_with(never)).await));
}

/// A hook that waits is not waited for; the end of the run is, whatever its hooks do.
#[tokio::test(start_paused = true)]
async fn cancellation_while_a_hook_thinks() {
    for point in [HookPoint::BeforeRun, HookPoint::BeforeModel, HookPoint::BeforeTool, HookPoint::OnExit] {
        let agent = agent("assistant: > c1 fetch(id=1)\nassistant: area 1")
            .hook(point, |_| async {
                std::future::pending::<()>().await;
                Ok(HookAction::proceed())
            })
            .build()
            .unwrap();
        let outcome = cancelled_while(&agent, |run| run).await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Cancelled, "{point:?}");
    }
    let agent = agent("assistant: area 1")
        .after_run(|_| async {
            // tidy: allow sleep, because the clock is paused and moves on by itself.
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(HookAction::proceed().with_message(message("user: noted")))
        })
        .build()
        .unwrap();
    let outcome = cancelled_while(&agent, |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.transcript().len()), (&Exit::Text, 3));
}

/// A run that waits for a decision, in whatever process, can be cancelled instead.
#[tokio::test]
async fn cancellation_of_a_stored_run() {
    let agent = agent("assistant: > c1 fetch(id=1)").approval(Approval::Always).build().unwrap();
    let paused = play(&agent, "where?", |run| run).await.unwrap();
    let token = CancellationToken::new();
    token.cancel();
    let ended = go_on(reloaded(&paused), |run| run.cancel_with(token)).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1!:  tool 'fetch' not started: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// A run that has ended stays as it ended.
#[tokio::test]
async fn cancellation_after_the_end() {
    let agent = agent("assistant: area 3").build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    let token = CancellationToken::new();
    token.cancel();
    let again = go_on(outcome.into_run(), |run| run.cancel_with(token)).await.unwrap();
    assert_eq!(again.exit(), &Exit::Text);
}

/// To drop the future is to die: what was committed stays, and the run continues.
#[tokio::test]
async fn cancellation_by_dropping() {
    let begun = Arc::new(Notify::new());
    let told = Arc::clone(&begun);
    let wait = |tool: ToolBuilder| tool.effect(Effect::Pure).build().unwrap();
    let waits = Tool::new("wait", "Waits.", move || {
        let told = Arc::clone(&told);
        async move {
            told.notify_one();
            std::future::pending::<()>().await;
            Ok::<_, ToolError>(())
        }
    });
    let text = "assistant: > c1 wait()\nassistant: done";
    let agent = Agent::builder(script(text)).tools([wait(waits)]).build().unwrap();
    let mut recording = stepfold_agent_loop::Recording::of(&Run::new(&agent, "go", "run").unwrap());
    let run = Run::new(&agent, "go", "run").unwrap();
    tokio::select! {
        _ = run.resume().observe(&mut recording).into_future() => panic!("it never ends"),
        () = begun.notified() => {}
    }
    let run = recording.replay(&agent).unwrap();
    let quick = Tool::new("wait", "Waits.", || async { Ok::<_, ToolError>("waited") });
    let works = Agent::builder(script(text)).tools([wait(quick)]).build().unwrap();
    let run = Run::load(&works, &run.to_json()).unwrap();
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
}

/// Nor is a list of tools waited for.
#[tokio::test(start_paused = true)]
async fn cancellation_while_tools_are_listed() {
    let slow = Toolset::dynamic_with("slow", |_| std::future::pending());
    let agent = Agent::builder(script("assistant: never")).tools(slow).build().unwrap();
    assert_eq!(cancelled_while(&agent, |run| run).await.unwrap().exit(), &Exit::Cancelled);
    // Also where the calls are made already, in another process: none runs.
    let quick = Toolset::dynamic_with("slow", |_| async { Ok(tools()) });
    let quick = agent.to_builder().model(script("assistant: > c1 fetch(id=1)")).tools(quick).build().unwrap();
    let paused = play(&quick, "where?", |run| run.break_at(Breakpoint::tool("fetch"))).await.unwrap();
    let run = Run::load(&agent, &paused.run().to_json()).unwrap();
    let token = CancellationToken::new();
    let cancel = async {
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(1)).await;
        token.cancel();
    };
    let (ended, ()) = tokio::join!(go_on(run, |run| run.cancel_with(token.clone())), cancel);
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1!:  tool 'fetch' not started: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1
    "#]]
    .assert_eq(&shown(&ended));
}
