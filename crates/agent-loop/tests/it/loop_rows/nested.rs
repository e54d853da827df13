//! An agent as a tool of another one.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::ChatRequest;
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{Approval, CancellationToken, ResultSource, Toolset};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Decision, DecisionError, Exit, HookAction, Input, Run, RunEvent, RunFault, RunLimits,
};

use super::check;
use super::kit::*;

fn schema() -> Schema {
    let schema = Schema::builder().key::<Vec<u64>>("found").key::<String>("own");
    schema.key::<i64>("visits").handler(Handler::sum()).build().unwrap()
}

/// An outer agent that calls `inner` once, as `ask`.
fn around(inner: AgentBuilder, shared: &[&str]) -> AgentBuilder {
    let inner = inner.build().unwrap().as_tool("ask", "Asks an expert.").share(shared.iter().copied());
    let script = script("assistant: > c1 ask(task=\"area 3?\")\nassistant: done");
    Agent::builder(script).schema(schema()).tools([inner.build().unwrap()])
}

/// Shared keys begin with the outer values, and what is written to them is written outside by the same
/// handlers; the others stay inside.
#[tokio::test]
async fn nested_agent_shares_keys() {
    let find = tool("find", |_| Ok(json!({"found": [3], "own": "mine", "visits": 1})))
        .output_to_state("found", "found")
        .output_to_state("own", "own")
        .output_to_state("visits", "visits");
    let model = Asked::new(script("assistant: > i1 find()   > i2 find()\nassistant: found"));
    let inner = Agent::builder(model.clone())
        .schema(schema())
        .instructions("Found so far: {found?}. {own?}")
        .tools([find.build().unwrap()]);
    let input = Input::from("go").with_values(json!({"found": [1], "own": "theirs", "visits": 40}));
    check(
        around(inner, &["found", "visits"]),
        input,
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1:   found
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1
        state: {"found":[1,3,3],"own":"theirs","visits":42}
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    "Found so far: [1]. "
        user:      area 3?
        --
        system:    "Found so far: [1]. "
        user:      area 3?
        assistant: > i1 find()   > i2 find()
        tool i1:   {"found": [3], "own": "mine", "visits": 1}
        tool i2:   {"found": [3], "own": "mine", "visits": 1}
    "#]]
    .assert_eq(&model.shown());
}

#[tokio::test]
async fn nested_agent_without_shared_keys() {
    let find = tool("find", |_| Ok(json!(1))).output_to_state("visits", ResultSource::Whole).build().unwrap();
    let inner =
        Agent::builder(script("assistant: > i1 find()\nassistant: 12 stalls")).schema(schema()).tools([find]);
    check(
        around(inner, &[]),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1:   12 stalls
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn nested_agent_that_shares_an_unknown_key() {
    let inner = Agent::builder(script("")).build().unwrap();
    let error = inner.as_tool("ask", "Asks.").share(["found"]).build().unwrap_err();
    expect![[r#"invalid tool 'ask': state key "found": is shared, but agent 'agent' does not declare it"#]]
        .assert_eq(&chain(&error));
    let inner = Agent::builder(script("")).schema(schema()).build().unwrap();
    let ask = inner.as_tool("ask", "Asks.").share(["found"]).build().unwrap();
    expect![[r#"invalid agent 'agent': tool ask: state key "found": not declared: add it to the agent's schema, or to that of the graph around it"#]].assert_eq(&Agent::builder(script("")).tools([ask]).build().unwrap_err().to_string());
}

#[tokio::test]
async fn nested_usage_adds_up() {
    let inner = Agent::builder(costing(script(""), "assistant: 12 stalls", 100, 10));
    let model = costing(script(""), "assistant: > c1 ask(task=\"a\")   > c2 ask(task=\"b\")", 5, 1);
    let agent = around(inner, &[]).model(costing(model, "assistant: done", 6, 1));
    check(
        agent,
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="a")   > c2 ask(task="b")
        tool c1:   12 stalls
        tool c2:   12 stalls
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 2, tokens: 211 + 22
    "#]],
    )
    .await;
}

#[tokio::test]
async fn nested_limits_pass_through() {
    let turning = || {
        let model = costing(script(""), "assistant: > i1 fetch(id=1)", 60, 0);
        Agent::builder(costing(model, "assistant: > i2 fetch(id=2)", 60, 0)).tools(tools())
    };
    check(
        around(turning(), &[]).limits(RunLimits::default().with_tokens(100)),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the limit of tokens was reached. Its last call was of 'fetch': area 2
        --
        exit: the limit of tokens was reached
        steps: 1, calls: ask 1, tokens: 120 + 0
    "#]],
    )
    .await;
    check(
        around(turning(), &[]).limits(RunLimits::default().with_tool_calls(2)),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the limit of tool calls was reached. Its last call was of 'fetch': area 2
        --
        exit: the limit of tool calls was reached
        steps: 1, calls: ask 1, tokens: 120 + 0
    "#]],
    )
    .await;
    check(
        around(turning().max_steps(1), &[]),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the limit of steps was reached. Its last call was of 'fetch': area 1
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1, tokens: 60 + 0
    "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn nested_time_limit_passes_through() {
    check(
        around(Agent::builder(Silent), &[]).max_time(Duration::from_secs(60)),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the limit of time was reached
        --
        exit: the limit of time was reached
        steps: 1, calls: ask 1
    "#]],
    )
    .await;
}

/// The outer run pauses; the decisions reach the inner one, each in another process.
#[tokio::test]
async fn nested_approval_passes_through() {
    let notes = Notes::default();
    let inner_script =
        "assistant: > i1 pay(amount=1)   > i2 pay(amount=2)\nassistant: > i3 pay(amount=3)\nassistant: paid";
    let inner = Agent::builder(script(inner_script)).tools([notes
        .tool("pay")
        .approval(Approval::Always)
        .build()
        .unwrap()]);
    let outer_script = "assistant: > c1 ask(task=\"pay\")   > c2 look()\nassistant: done";
    let ask = inner.build().unwrap().as_tool("ask", "Pays.").build().unwrap();
    let agent = Agent::builder(script(outer_script))
        .tools([ask, notes.tool("look").build().unwrap()])
        .build()
        .unwrap();
    let first = play(&agent, "go", |run| run).await;
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="pay")   > c2 look()
        --
        exit: the run waits for decisions
        steps: 1, calls: look 1
        pending c1/i1#464da18ec69e9df6: pay({"amount":1}), Rule
        pending c1/i2#ff03b73de036023b: pay({"amount":2}), Rule
    "#]]
    .assert_eq(&shown(&first));
    let second = decide(reloaded(outcome_of(&first)), [("c1/i2", Decision::reject("no"))]).await;
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="pay")   > c2 look()
        --
        exit: the run waits for decisions
        steps: 1, calls: look 1
        pending c1/i1#464da18ec69e9df6: pay({"amount":1}), Rule
    "#]]
    .assert_eq(&shown(&second));
    let modified = Decision::modify(json!({"amount": 10}));
    let third = decide(reloaded(outcome_of(&second)), [("c1/i1", modified)]).await;
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="pay")   > c2 look()
        --
        exit: the run waits for decisions
        steps: 1, calls: look 1
        pending c1/i3#7c97a7bf62d29eef: pay({"amount":3}), Rule
    "#]]
    .assert_eq(&shown(&third));
    let ended = decide(reloaded(outcome_of(&third)), [("c1/i3", Decision::Approve)]).await;
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="pay")   > c2 look()
        tool c1:   paid
        tool c2:   {}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1, look 1
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!((notes.count("pay"), notes.count("look")), (2, 1));
}

/// Arguments that the inner tool does not take are refused to the approver, wherever the inner tools come from, and
/// however deep they are.
#[tokio::test]
async fn nested_approval_of_arguments_that_do_not_fit() {
    let notes = Notes::default();
    let pay = |notes: &Notes| {
        let amount =
            json!({"properties": {"amount": {"type": "integer"}}, "required": ["amount"], "type": "object"});
        notes.tool("pay").parameters(amount).approval(Approval::Always).build().unwrap()
    };
    let script = |text: &str| Agent::builder(script(text));
    let paying = || script("assistant: > i1 pay(amount=1)\nassistant: paid");
    let (ran, inside) = (notes.clone(), |inner: Agent| inner.as_tool("ask", "Pays.").build().unwrap());
    let dynamic = Toolset::dynamic_with("remote", move |_| {
        let tools = vec![pay(&ran)];
        async move { Ok(tools) }
    });
    let deep = script("assistant: > d1 ask(task=\"pay\")\nassistant: asked");
    let deep = deep.tools([inside(paying().tools([pay(&notes)]).build().unwrap())]);
    for (inner, path) in [
        (paying().tools([pay(&notes)]).build().unwrap(), "c1/i1"),
        (paying().tools(dynamic).build().unwrap(), "c1/i1"),
        (deep.build().unwrap(), "c1/d1/i1"),
    ] {
        let agent = script("assistant: > c1 ask(task=\"pay\")\nassistant: done").tools([inside(inner)]);
        let paused = play(&agent.build().unwrap(), "go", |run| run).await.unwrap();
        for arguments in [json!({"amount": "much"}), json!({}), json!(3)] {
            let ended = decide(reloaded(&paused), [(path, Decision::modify(arguments))]).await;
            let error = ended.unwrap_err();
            let fault = error.fault();
            assert!(
                matches!(fault, RunFault::Decision(DecisionError::InvalidArguments { id, .. }) if path_of(id) == path),
                "{fault:?}"
            );
            assert_eq!(error.into_run().pending(), paused.pending());
        }
        assert_eq!(notes.text(), "");
        let right = Decision::modify(json!({"amount": 3}));
        let ended = decide(reloaded(&paused), [(path, right)]).await.unwrap();
        assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
        notes.clear();
    }
}

/// Two that wait side by side, one after the other, with calls between them that get on.
#[tokio::test]
async fn nested_approval_of_several() {
    for calls in [1, 64] {
        let notes = Notes::default();
        let pay = notes.tool("pay").approval(Approval::Always).build().unwrap();
        let inner =
            Agent::builder(script("assistant: > i1 pay()\nassistant: paid")).tools([pay]).build().unwrap();
        let ask = inner.as_tool("ask", "Pays.").build().unwrap();
        let text = "assistant: > c1 ask(task=\"a\")   > c2 look()   > c3 ask(task=\"b\")\nassistant: done";
        let agent = Agent::builder(script(text))
            .tools([ask, notes.tool("look").build().unwrap()])
            .tool_limits(at_once(calls))
            .build()
            .unwrap();
        let paused = play(&agent, "go", |run| run).await.unwrap();
        assert_eq!(paths(&paused), ["c1/i1", "c3/i1"]);
        let outcome = decide(reloaded(&paused), [("c3/i1", Decision::Approve), ("c1/i1", Decision::Approve)])
            .await
            .unwrap();
        assert_eq!((outcome.exit(), notes.count("pay"), notes.count("look")), (&Exit::Text, 2, 1));
    }
}

/// Shared writes made before and after a pause are written once, all of them.
#[tokio::test]
async fn nested_approval_keeps_shared_writes() {
    let find = tool("find", |_| Ok(json!(1))).output_to_state("visits", ResultSource::Whole);
    let pay = tool("pay", |_| Ok(json!(10)))
        .output_to_state("visits", ResultSource::Whole)
        .approval(Approval::Always);
    let inner = Agent::builder(script("assistant: > i1 find()\nassistant: > i2 pay()\nassistant: paid"))
        .schema(schema())
        .tools([find.build().unwrap(), pay.build().unwrap()]);
    let agent = around(inner, &["visits"]).build().unwrap();
    let input = Input::from("go").with_values(json!({"visits": 100}));
    let paused = play(&agent, input, |run| run).await.unwrap();
    assert_eq!(paused.state().get("visits").unwrap(), json!(100));
    let ended = decide(reloaded(&paused), [("c1/i2", Decision::Approve)]).await;
    assert_eq!(ended.unwrap().state().get("visits").unwrap(), json!(111));
}

/// What the inner run asks is not an error, also where errors are raised.
#[tokio::test]
async fn nested_approval_when_failures_are_raised() {
    let pay = tool("pay", |_| Ok(json!(10))).approval(Approval::Always).build().unwrap();
    let inner = Agent::builder(script("assistant: > i1 pay()\nassistant: paid")).tools([pay]);
    let agent = around(inner, &[]).raise_on_failure().build().unwrap();
    let paused = play(&agent, "go", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1/i1", Decision::Approve)]).await;
    assert_eq!(ended.unwrap().exit(), &Exit::Text);
}

#[tokio::test(start_paused = true)]
async fn nested_cancellation() {
    let inner = Agent::builder(script("assistant: > i1 wait()")).tools([endless("wait").build().unwrap()]);
    let agent = around(inner, &[]).build().unwrap();
    let token = CancellationToken::new();
    let cancel = async {
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(1)).await;
        token.cancel();
    };
    let (ended, ()) = tokio::join!(play(&agent, "go", |run| run.cancel_with(token.clone())), cancel);
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the run was cancelled. Its last call was of 'wait': tool 'wait' cancelled while it ran; the effect may have happened
        --
        exit: the run was cancelled
        steps: 1, calls: ask 1
    "#]].assert_eq(&shown(&ended));
}

/// One that waits for a decision is stopped as well.
#[tokio::test]
async fn nested_cancellation_while_it_waits() {
    let pay = tool("pay", |_| Ok(json!(10))).approval(Approval::Always).build().unwrap();
    let agent = around(Agent::builder(script("assistant: > i1 pay()")).tools([pay]), &[]).build().unwrap();
    let paused = play(&agent, "go", |run| run).await.unwrap();
    let token = CancellationToken::new();
    token.cancel();
    let ended = go_on(reloaded(&paused), |run| run.cancel_with(token)).await;
    expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  tool 'ask' was stopped while it waited: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// The model reads why; the outer run continues.
#[tokio::test]
async fn nested_errors() {
    check(around(Agent::builder(script("")), &[]), "go", expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  run 'run/1/c1/run' failed after step 0: model request failed: invalid request: the script has 0 replies, and is asked for one more
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1
    "#]]).await;
    check(
        around(Agent::builder(script("assistant:")).tools(tools()).max_steps(1), &[]),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 ask(task="area 3?")
        tool c1!:  the agent did not finish: the limit of steps was reached
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: ask 1
    "#]],
    )
    .await;
}

/// An agent that calls itself through others ends.
#[tokio::test]
async fn nested_too_deep() {
    let mut agent = Agent::builder(script("assistant: the bottom")).build().unwrap();
    for _ in 0..20 {
        let ask = agent.as_tool("ask", "Asks.").build().unwrap();
        agent = Agent::builder(script("assistant: > c1 ask(task=\"x\")\nassistant: so"))
            .tools([ask])
            .build()
            .unwrap();
    }
    let outcome = Run::new(&agent, "go", "run").unwrap().resume().await.unwrap();
    assert_eq!(outcome.text(), "so");
}

/// An agent whose tool must not run twice and is asked about, as a tool of another one.
fn paying_inside(notes: &Notes, instructions: &str) -> Agent {
    let pay = notes.tool("pay").approval(Approval::Always).build().unwrap();
    let inner = Agent::builder(script("assistant: > i1 pay()\nassistant: paid")).instructions(instructions);
    let ask = inner.tools([pay]).build().unwrap().as_tool("ask", "Pays.").build().unwrap();
    let script = script("assistant: > c1 ask(task=\"pay\")\nassistant: done");
    Agent::builder(script).tools([ask]).build().unwrap()
}

/// What the next process finds when one dies before the event of this number after the approval is stored.
async fn died_after_approval(agent: &Agent, events: usize) -> Run {
    let waiting = play(agent, "go", |run| run).await.unwrap();
    let decisions = at_paths(waiting.run(), [("c1/i1", Decision::Approve)]);
    let mut stored = Vec::new();
    let mut run = reloaded(&waiting);
    run.clone().resume().decide_all(decisions).record_with(&mut stored).await.unwrap();
    for committed in stored.iter().filter_map(RunEvent::committed).take(events) {
        run.commit(committed.clone()).unwrap();
    }
    Run::load(agent, &run.to_json()).unwrap()
}

/// The decision is stored, outside and inside: the agent continues from where it waited, and makes the payment once.
#[tokio::test]
async fn nested_approval_holds_after_a_crash() {
    for events in [1, 2] {
        let notes = Notes::default();
        let agent = paying_inside(&notes, "Pay.");
        let run = died_after_approval(&agent, events).await;
        notes.clear();
        let ended = go_on(run, |run| run).await.unwrap();
        assert_eq!((ended.exit(), ended.unknown_calls().len(), notes.count("pay")), (&Exit::Text, 0, 1));
    }
}

/// The payment inside was under way: its own outcome is unknown, listed by its path, and it is not made again. The agent
/// inside continues, and so does the one around it.
#[tokio::test]
async fn nested_call_that_was_under_way_is_unknown_by_its_path() {
    let notes = Notes::default();
    let agent = paying_inside(&notes, "Pay.");
    // Decided outside, decided inside, started inside.
    let run = died_after_approval(&agent, 3).await;
    notes.clear();
    let ended = go_on(run, |run| run).await.unwrap();
    let unknown: Vec<&str> = ended.unknown_calls().iter().map(|call| &*call.id).collect();
    assert_eq!((ended.exit(), unknown, notes.count("pay")), (&Exit::Text, vec!["c1/i1"], 0));
    assert!(ended.transcript().to_string().contains("tool c1:   paid"), "{}", ended.transcript());
}

/// What has an outcome inside is not run again.
#[tokio::test]
async fn nested_call_with_an_outcome_is_not_repeated() {
    let notes = Notes::default();
    let agent = paying_inside(&notes, "Pay.");
    let run = died_after_approval(&agent, 4).await;
    notes.clear();
    let ended = go_on(run, |run| run).await.unwrap();
    assert_eq!((ended.exit(), ended.unknown_calls().len(), notes.count("pay")), (&Exit::Text, 0, 0));
}

/// The payment of the first call was under way: nothing is written for it, neither what it would have written nor what a
/// hook has for it. The second call comes after the first one, since it reads what that one writes, and begins without
/// it.
#[tokio::test]
async fn nested_call_after_one_that_was_interrupted() {
    let notes = Notes::default();
    let model = Asked::new(script("assistant: > i1 pay()\nassistant: seen to"));
    let inner = Agent::builder(model.clone())
        .schema(schema())
        .instructions("Visits: {visits?}.")
        .before_tool(|context| async move { HookAction::proceed().write(&context, "visits", 1) })
        .tools([notes.tool("pay").build().unwrap()]);
    let inner = inner.build().unwrap().as_tool("ask", "Pays.").share(["visits"]).build().unwrap();
    let outer = script("assistant: > c1 ask(task=\"a\")   > c2 ask(task=\"b\")\nassistant: done");
    let agent = Agent::builder(outer).schema(schema()).tools([inner]).build().unwrap();
    let mut stored = Vec::new();
    let run = Run::new(&agent, "go", "run").unwrap();
    let whole = run.clone().resume().record_with(&mut stored).await.unwrap();
    assert_eq!(values(whole.state())["visits"], 2);
    let second = |requests: &[ChatRequest]| {
        let texts = requests.iter().map(|request| request.messages.to_string());
        texts.filter(|text| text.contains("b\n")).collect::<Vec<_>>()
    };
    assert!(second(&model.requests()).iter().all(|text| text.contains("Visits: 1.")));
    let asked_before = model.requests().len();

    // Asked, begun inside, asked inside, the hook, the marker of the payment.
    let mut died = run;
    for committed in stored.iter().filter_map(RunEvent::committed).take(6) {
        died.commit(committed.clone()).unwrap();
    }
    notes.clear();
    let ended = go_on(Run::load(&agent, &died.to_json()).unwrap(), |run| run).await.unwrap();
    let unknown: Vec<&str> = ended.unknown_calls().iter().map(|call| &*call.id).collect();
    assert_eq!((unknown, notes.count("pay")), (vec!["c1/i1"], 1));
    assert_eq!(values(ended.state())["visits"], 1);
    let second = second(&model.requests()[asked_before..]);
    assert!(second.len() == 2 && second.iter().all(|text| text.contains("Visits: .")), "{second:?}");
}

/// A run does not load with another agent inside, and the error says what has changed, as that of the outer agent does.
#[tokio::test]
async fn nested_fingerprint_is_checked() {
    let notes = Notes::default();
    let agent = paying_inside(&notes, "Pay.");
    let waiting = play(&agent, "go", |run| run).await.unwrap();
    let changed = paying_inside(&notes, "Pay twice.");
    let error = Run::load(&changed, &waiting.run().to_json()).unwrap_err();
    expect!["agent changed since the run was stored: tool ask: agent: instructions changed; force it with `load_changed`"]
    .assert_eq(&error.to_string());
    let (run, _) = Run::load_changed(&changed, &waiting.run().to_json()).unwrap();
    let ended = decide(run, [("c1/i1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
}

/// The calls of the agent inside count for the limits outside, from step to step.
#[tokio::test]
async fn nested_calls_count_outside() {
    let inner = Agent::builder(script("assistant: > i1 fetch(id=1)   > i2 fetch(id=2)\nassistant: fetched"));
    let ask = inner.tools(tools()).build().unwrap().as_tool("ask", "Asks an expert.").build().unwrap();
    let model = script("assistant: > c1 ask(task=\"a\")\nassistant: > c2 ask(task=\"b\")\nassistant: done");
    let agent = Agent::builder(model).tools([ask]).limits(RunLimits::default().with_tool_calls(4));
    check(agent, "go", expect![[r#"
        user:      go
        assistant: > c1 ask(task="a")
        tool c1:   fetched
        assistant: > c2 ask(task="b")
        tool c2!:  the agent did not finish: the limit of tool calls was reached. Its last call was of 'fetch': tool 'fetch' was not run: the run may make 1 calls, and has
        --
        exit: the limit of tool calls was reached
        steps: 2, calls: ask 2
    "#]]).await;
}

/// An agent among tools that are asked for at each step, beside one whose tools never change: the run waits, is stored,
/// folded from its events, and continues anyway.
#[tokio::test]
async fn nested_agent_of_a_dynamic_toolset() {
    let notes = Notes::default();
    let pay = notes.tool("pay").approval(Approval::Always).build().unwrap();
    let inner = Agent::builder(script("assistant: > i1 pay()\nassistant: paid")).tools([pay]);
    let ask = inner.build().unwrap().as_tool("ask", "Pays.").build().unwrap();
    let dynamic = Toolset::dynamic_with("remote", move |_| {
        let tools = vec![ask.clone()];
        async move { Ok(tools) }
    });
    let model = script("assistant: > c1 ask(task=\"pay\")\nassistant: done");
    let agent = Agent::builder(model).tools(dynamic).build().unwrap();
    let mut seen = Vec::new();
    let waiting = play(&agent, "go", |run| run.observe(&mut seen)).await.unwrap();
    let mut folded = Run::new(&agent, "go", "run").unwrap();
    for event in seen.iter().filter_map(RunEvent::committed) {
        folded.commit(event.clone()).unwrap();
    }
    for run in [reloaded(&waiting), Run::load(&agent, &folded.to_json()).unwrap(), folded] {
        notes.clear();
        assert_eq!(run.pending(), waiting.pending());
        let ended = decide(run, [("c1/i1", Decision::Approve)]).await.unwrap();
        assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
    }
}
