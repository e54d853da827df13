//! What the state adds to a call that needs approval: it is shown, and nothing else is approved.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::tools::{Approval, ResultSource, Tool, ToolError, Toolset};
use stepfold_agent_loop::{
    Agent, AgentBuilder, ApprovalRequest, AskReason, Breakpoint, Decision, Edit, Exit, Input, Observer,
    ObserverError, Outcome, Pause, Recording, Run, RunAnswer, RunEvent, StateValue,
};

use super::kit::*;

const PAUSED: Exit = Exit::Paused(Pause::Approval);

fn schema() -> Schema {
    let schema = Schema::builder().key::<String>("account").key::<String>("temp:token");
    schema.key::<Vec<u64>>("app:limits").key::<String>("other").build().unwrap()
}

/// `pay` takes an amount, an account from the state and a token; it notes what it was called with. `choose` writes the
/// account.
fn bank(notes: &Notes, script: &str, approval: Approval) -> AgentBuilder {
    bank_and(notes, script, approval, Vec::new())
}

fn bank_and(notes: &Notes, script: &str, approval: Approval, mut tools: Vec<Tool>) -> AgentBuilder {
    let seen = notes.clone();
    let pay = tool("pay", move |arguments| {
        let mut arguments = arguments.clone();
        arguments.sort_all_objects();
        seen.add(format!("pay {arguments}"));
        Ok(json!("paid"))
    });
    let pay = pay.parameters(parameters()).approval(approval);
    let pay = pay.input_from_state("account", "account").input_from_state("temp:token", "token");
    let pay = pay.default_from_state("app:limits", "limits").build().unwrap();
    let seen = notes.clone();
    let choose = tool("choose", move |arguments| {
        seen.add("choose");
        Ok(arguments["account"].clone())
    });
    let choose = choose.output_to_state("account", ResultSource::Whole).build().unwrap();
    tools.extend([pay, choose]);
    Agent::builder(self::script(script)).schema(schema()).tools(tools)
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "account": {"type": "string"},
            "amount": {"type": "integer"},
            "limits": {"type": "array"},
            "token": {"type": "string"},
        },
        "required": ["amount"],
    })
}

fn input(values: Value) -> Input {
    Input::from("pay!").with_values(values)
}

/// What is shown of the request at a path.
fn request(outcome: &Outcome, path: &str) -> ApprovalRequest {
    outcome.pending().into_iter().rfind(|request| path_of(&request.id) == path).unwrap()
}

fn inputs(outcome: &Outcome, path: &str) -> String {
    let mut inputs = serde_json::to_value(request(outcome, path).inputs_from_state).unwrap();
    inputs.sort_all_objects();
    inputs.to_string()
}

/// The run as a process reads it in which a key has another value by now.
fn elsewhere(outcome: &Outcome, key: &str, value: Value) -> Run {
    let mut stored: Value = serde_json::from_str(&outcome.run().to_json()).unwrap();
    let values = stored["state"]["values"].as_object_mut().unwrap();
    values.insert(key.to_owned(), value);
    Run::load(outcome.run().agent(), &stored.to_string()).unwrap()
}

/// The values are shown, count in the id, and are what the call runs with.
#[tokio::test]
async fn approval_shows_what_the_state_adds() {
    let notes = Notes::default();
    let agent = bank(&notes, "assistant: > c1 pay(amount=3)\nassistant: done", Approval::Always);
    let agent = agent.build().unwrap();
    let mut ids = Vec::new();
    for account in ["A-1", "A-2"] {
        let paused = play(&agent, input(json!({"account": account, "app:limits": [7]})), |run| run).await;
        let paused = paused.unwrap();
        let shown = r#"[{"key":"account","parameter":"account","value":"A-1"},{"key":"app:limits","parameter":"limits","value":[7]}]"#;
        assert_eq!(inputs(&paused, "c1"), shown.replace("A-1", account));
        ids.push(id_at(paused.run(), "c1"));
        let request = request(&paused, "c1");
        let stored = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<ApprovalRequest>(&stored).unwrap(), request);
        decide(reloaded(&paused), [("c1", Decision::Approve)]).await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);
    expect![[r#"
        pay {"account":"A-1","amount":3,"limits":[7]}
        pay {"account":"A-2","amount":3,"limits":[7]}
    "#]]
    .assert_eq(&notes.text());
}

/// A long value is shown by its beginning, and one that no record keeps not at all. Both count in the id.
#[tokio::test]
async fn approval_of_long_and_hidden_values() {
    let notes = Notes::default();
    let agent = bank(&notes, "assistant: > c1 pay(amount=3)\nassistant: done", Approval::Always);
    let agent = agent.build().unwrap();
    let long = |end: &str| "x".repeat(4_000) + end;
    let pending = |account: String, token: &'static str| {
        let values = json!({"account": account, "temp:token": token});
        async { play(&agent, input(values), |run| run).await.unwrap() }
    };
    let first = pending(long("a"), "secret-1").await;
    let [account, token] = &*request(&first, "c1").inputs_from_state else { panic!() };
    let StateValue::Truncated { begins, bytes, .. } = &account.value else { panic!("{account:?}") };
    assert_eq!((begins.as_str(), *bytes), (format!("\"{}", "x".repeat(399)).as_str(), 4_003));
    assert!(matches!(token.value, StateValue::Hidden { .. }), "{token:?}");
    assert!(!serde_json::to_string(&first.pending()).unwrap().contains("secret"));
    let mut ids = vec![id_at(first.run(), "c1")];
    for (end, token) in [("b", "secret-1"), ("a", "secret-2")] {
        ids.push(id_at(pending(long(end), token).await.run(), "c1"));
    }
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{ids:?}");
    assert_eq!(id_at(pending(long("a"), "secret-1").await.run(), "c1"), ids[0]);
    decide(reloaded(&first), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!(notes.text().lines().count(), 1);
}

/// A call of the same reply writes the value, which is known when it has run: the other is asked about again.
#[tokio::test]
async fn approval_after_a_sibling_wrote() {
    let notes = Notes::default();
    let script = "assistant: > c1 choose(account=\"A-2\")   > c2 pay(amount=3)   > c3 choose(account=\"A-2\")\n\
                  assistant: done";
    let agent = bank(&notes, script, Approval::Always).build().unwrap();
    let first = play(&agent, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    assert_eq!(inputs(&first, "c2"), r#"[{"key":"account","parameter":"account","value":"A-1"}]"#);
    let second = decide(reloaded(&first), [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), notes.text().as_str()), (&PAUSED, "choose\n"));
    assert_eq!(inputs(&second, "c2"), r#"[{"key":"account","parameter":"account","value":"A-2"}]"#);
    assert_ne!(id_at(first.run(), "c2"), id_at(second.run(), "c2"));
    // A decision on the first request does not count for the second.
    let late = go_on(reloaded(&second), |run| run.decide(id_at(first.run(), "c2"), Decision::Approve)).await;
    assert!(chain(&late.unwrap_err()).contains("already decided"));
    let ended = decide(reloaded(&second), [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count(r#"pay {"account":"A-2","amount":3}"#)), (&Exit::Text, 1));
    assert_eq!(notes.text().lines().count(), 3);
}

/// Running calls complete before an approver is asked: a run that waits for a decision does nothing.
#[tokio::test]
async fn approval_after_a_sibling_wrote_waits_for_the_others() {
    let notes = Notes::default();
    let script =
        "assistant: > c1 choose(account=\"A-2\")   > c2 pay(amount=3)   > c3 slow()\nassistant: done";
    let slow = Tool::new("slow", "Takes some time.", || async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        Ok::<_, ToolError>("at last")
    });
    let agent = bank_and(&notes, script, Approval::Always, vec![slow.build().unwrap()]).build().unwrap();
    let first = play(&agent, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    let mut seen = Vec::new();
    let approve = [("c2", Decision::Approve)];
    let decisions = at_paths(first.run(), approve);
    let second = go_on(reloaded(&first), |run| run.decide_all(decisions).observe(&mut seen)).await.unwrap();
    let names: Vec<_> =
        seen.iter().filter_map(RunEvent::committed).map(stepfold_agent_loop::Event::name).collect();
    assert_eq!(names, ["decided", "started", "answered", "answered", "asked"]);
    assert_eq!(second.exit(), &PAUSED);
}

/// The same in one process, where an approver is asked both times; and a record of it replays.
#[tokio::test]
async fn approval_by_an_approver_after_a_sibling_wrote() {
    let notes = Notes::default();
    let script = "assistant: > c1 choose(account=\"A-2\")   > c2 pay(amount=3)\nassistant: done";
    let agent = bank(&notes, script, Approval::Always).build().unwrap();
    let asked = notes.clone();
    let approve = move |requests: Vec<ApprovalRequest>| {
        for request in &requests {
            asked.add(format!("asked about {:?}", request.inputs_from_state[0].value));
        }
        async move { requests.into_iter().map(|request| (request.id, Decision::Approve)).collect() }
    };
    let run = Run::new(&agent, input(json!({"account": "A-1"})), "run").unwrap();
    let mut recording = Recording::of(&run);
    let ended = run.resume().approve_with(approve).observe(&mut recording).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    expect![[r#"
        asked about Value(String("A-1"))
        choose
        asked about Value(String("A-2"))
        pay {"account":"A-2","amount":3}
    "#]]
    .assert_eq(&notes.text());
    assert_eq!(recording.replay(&agent).unwrap().digest(), ended.run().digest());
    // With a tool that takes another key, the approver would have been shown another value.
    let pay = tool("pay", |_| Ok(json!("paid"))).parameters(parameters()).approval(Approval::Always);
    let pay = pay.input_from_state("other", "account").build().unwrap();
    let choose =
        tool("choose", |_| Ok(json!(1))).output_to_state("account", ResultSource::Whole).build().unwrap();
    let changed = Agent::builder(self::script(script)).schema(schema()).tools([pay, choose]).build().unwrap();
    let error = recording.replay(&changed).unwrap_err().to_string();
    assert!(
        error.starts_with("event 1 (replied, step 1) differs at $.kind.replied.fates[0][1].ask"),
        "{error}"
    );
}

/// Another session, or another process, has written the value between the question and the decision.
#[tokio::test]
async fn approval_after_another_session_wrote() {
    let notes = Notes::default();
    let script = "assistant: > c1 choose(account=\"A-1\")   > c2 pay(amount=3)\nassistant: done";
    let agent = bank(&notes, script, Approval::Always).build().unwrap();
    let first = play(&agent, input(json!({"app:limits": [1]})), |run| run).await.unwrap();
    let elsewhere = elsewhere(&first, "app:limits", json!([1, 2]));
    let second = decide(elsewhere, [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), second.run().finished_calls().len()), (&PAUSED, 2));
    assert!(notes.text().is_empty(), "nothing runs before all decisions are there: {}", notes.text());
    assert!(inputs(&second, "c2").contains("[1,2]"));
    let rejected = decide(reloaded(&second), [("c2", Decision::reject("too much"))]).await.unwrap();
    assert_eq!((rejected.exit(), notes.text().as_str()), (&Exit::Text, "choose\n"));
    let third = decide(reloaded(&second), [("c2", Decision::Approve)]).await.unwrap();
    // `choose` writes what it reads.
    assert_eq!((third.exit(), paths(&third)), (&PAUSED, vec!["c2".to_owned()]));
    let ended = decide(reloaded(&third), [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    assert_eq!(notes.count(r#"pay {"account":"A-1","amount":3,"limits":[1,2]}"#), 1);
}

/// An approval that holds for equal calls holds for equal values.
#[tokio::test]
async fn approval_once_is_for_the_same_values() {
    let notes = Notes::default();
    let script = r#"
assistant: > c1 pay(amount=3)   > c2 pay(amount=3)
assistant: > c3 pay(amount=3)
assistant: > c4 choose(account="A-2")   > c5 pay(amount=3)
assistant: > c6 pay(amount=3)
assistant: done
"#;
    let agent = bank(&notes, script, Approval::Once).build().unwrap();
    let first = play(&agent, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    assert_eq!((paths(&first), first.pending()[0].times), (vec!["c1".to_owned()], 2));
    let second = decide(reloaded(&first), [("c1", Decision::Approve)]).await.unwrap();
    // It was to run unasked, until the sibling wrote.
    assert_eq!((paths(&second), notes.count("choose")), (vec!["c5".to_owned()], 1));
    let ended = decide(reloaded(&second), [("c5", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    assert_eq!(notes.count(r#"pay {"account":"A-1","amount":3}"#), 3);
    assert_eq!(notes.count(r#"pay {"account":"A-2","amount":3}"#), 2);
}

/// A parameter that the approver gives is not filled from the state; one that they leave out is shown first.
#[tokio::test]
async fn approval_modify_of_a_parameter_from_the_state() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=3)   > c2 pay(amount=4,limits=[9])\nassistant: done";
    let agent = bank(&notes, script, Approval::Always).build().unwrap();
    let first = play(&agent, input(json!({"app:limits": [1]})), |run| run).await.unwrap();
    assert_eq!(inputs(&first, "c2"), "[]");
    let given = Decision::modify(json!({"amount": 3, "limits": [2]}));
    let left_out = Decision::modify(json!({"amount": 4}));
    let second = decide(reloaded(&first), [("c1", given), ("c2", left_out)]).await.unwrap();
    assert_eq!(paths(&second), ["c2"]);
    assert_eq!(inputs(&second, "c2"), r#"[{"key":"app:limits","parameter":"limits","value":[1]}]"#);
    assert_eq!(request(&second, "c2").call.arguments.to_text(), r#"{"amount":4}"#);
    let ended = decide(reloaded(&second), [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
    expect![[r#"
        pay {"amount":3,"limits":[2]}
        pay {"amount":4,"limits":[1]}
    "#]]
    .assert_eq(&notes.text());
}

/// Loses the outcome of a call.
struct Lost;

impl Observer for Lost {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event.committed().map(stepfold_agent_loop::Event::name) {
            Some("answered") => Err("the power is out".into()),
            _ => Ok(()),
        }
    }
}

/// To run a call again that may have happened, the values have to be those that were shown as well; and it stays one that
/// may have happened.
#[tokio::test]
async fn approval_of_what_may_have_happened_shows_what_the_state_adds() {
    let notes = Notes::default();
    let agent = bank(&notes, "assistant: > c1 pay(amount=3)\nassistant: done", Approval::Never);
    let agent = agent.ask_when_uncertain().build().unwrap();
    let lost = play(&agent, input(json!({"account": "A-1"})), |run| run.observe(Lost)).await.unwrap_err();
    let first = go_on(reloaded(lost.outcome()), |run| run).await.unwrap();
    assert_eq!(request(&first, "c1").reason, AskReason::MayHaveHappened);
    assert!(inputs(&first, "c1").contains("A-1"));
    notes.clear();
    let elsewhere = || elsewhere(&first, "account", json!("A-2"));
    let second = decide(elsewhere(), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), notes.text().as_str()), (&PAUSED, ""));
    assert_eq!(request(&second, "c1").reason, AskReason::MayHaveHappened);
    assert!(inputs(&second, "c1").contains("A-2"));
    let unknown = decide(reloaded(&second), [("c1", Decision::reject("no"))]).await.unwrap();
    assert_eq!((unknown.unknown_calls().len(), notes.text().as_str()), (1, ""));
    let ended = decide(reloaded(&second), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count(r#"pay {"account":"A-2","amount":3}"#)), (&Exit::Text, 1));
}

/// A run that was stored before values were shown keeps its request, and is asked about again.
#[tokio::test]
async fn approval_of_a_stored_run_of_before() {
    let notes = Notes::default();
    let agent = bank(&notes, "assistant: > c1 pay(amount=3)\nassistant: done", Approval::Always);
    let agent = agent.build().unwrap();
    let first = play(&agent, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    let mut stored: Value = serde_json::from_str(&first.run().to_json()).unwrap();
    let item = &mut stored["phase"]["working"]["items"][0];
    assert!(item.as_object_mut().unwrap().remove("inputs_from_state").is_some());
    let before = Run::load(&agent, &stored.to_string()).unwrap();
    assert!(before.pending()[0].inputs_from_state.is_empty());
    let second = decide(before, [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), notes.text().as_str()), (&PAUSED, ""));
    assert!(inputs(&second, "c1").contains("A-1"));
    let ended = decide(reloaded(&second), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.text().lines().count()), (&Exit::Text, 1));
}

/// A request from inside shows what the state inside adds.
#[tokio::test]
async fn approval_inside_shows_what_the_state_adds() {
    let notes = Notes::default();
    let inner = "assistant: > i1 choose(account=\"A-2\")   > i2 pay(amount=3)\nassistant: paid";
    let inner = bank(&notes, inner, Approval::Always).build().unwrap();
    let ask = inner.as_tool("ask", "Asks the bank.").share(["account"]).build().unwrap();
    let outer = script("assistant: > c1 ask(task=\"pay\")\nassistant: done");
    let outer = Agent::builder(outer).schema(schema()).tools([ask]).build().unwrap();
    let first = play(&outer, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    assert!(inputs(&first, "c1/i2").contains("A-1"));
    let second = decide(reloaded(&first), [("c1/i2", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), notes.text().as_str()), (&PAUSED, "choose\n"));
    assert!(inputs(&second, "c1/i2").contains("A-2"));
    let ended = decide(reloaded(&second), [("c1/i2", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count(r#"pay {"account":"A-2","amount":3}"#)), (&Exit::Text, 1));
}

/// A tool that is asked for at each step, and that takes something from the state by now.
#[tokio::test]
async fn approval_of_a_dynamic_tool_that_takes_from_the_state_by_now() {
    let notes = Notes::default();
    let dynamic = |takes: bool| {
        let seen = notes.clone();
        Toolset::dynamic_with("bank", move |_| {
            let seen = seen.clone();
            let pay = tool("pay", move |arguments| {
                seen.add(format!("pay {arguments}"));
                Ok(json!("paid"))
            });
            let pay = pay.parameters(parameters()).approval(Approval::Always);
            let pay = if takes { pay.input_from_state("account", "account") } else { pay };
            let pay = pay.build().unwrap();
            async move { Ok(vec![pay]) }
        })
    };
    let script = script("assistant: > c1 pay(amount=3)\nassistant: done");
    let before = Agent::builder(script).schema(schema()).tools(dynamic(false)).build().unwrap();
    let first = play(&before, input(json!({"account": "A-1"})), |run| run).await.unwrap();
    assert_eq!(inputs(&first, "c1"), "[]");
    let now = before.to_builder().tools(dynamic(true)).build().unwrap();
    let run = || Run::load(&now, &first.run().to_json()).unwrap();
    let second = decide(run(), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((second.exit(), notes.text().as_str()), (&PAUSED, ""));
    assert!(inputs(&second, "c1").contains("A-1"));
    let ended = decide(reloaded(&second), [("c1", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.text().lines().count()), (&Exit::Text, 1));
}

/// Arguments of a person for what only the state sets, alone and beside others, also null and the state's own value.
fn given() -> impl Iterator<Item = Value> {
    [
        json!({"amount": 3, "account": "B-2"}),
        json!({"amount": 3, "account": "A-1"}),
        json!({"amount": 3, "account": null}),
        json!({"amount": 3, "token": "other"}),
        json!({"amount": "much", "account": "B-2", "token": "other", "limits": [1]}),
    ]
    .into_iter()
}

/// What only the state sets cannot be given: it is refused to the decider, whose request stays, and nothing says that it
/// was changed.
#[tokio::test]
async fn approval_modify_of_what_only_the_state_sets_is_refused() {
    let notes = Notes::default();
    // Also of a call in which the model has named it, and inside of an agent.
    for script in [
        "assistant: > c1 pay(amount=3)\nassistant: done",
        "assistant: > c1 pay(amount=3,account=\"Z\")\nassistant: done",
    ] {
        let bank = bank(&notes, script, Approval::Always).build().unwrap();
        let inner = bank.as_tool("ask", "Asks the bank.").share(["account"]).build().unwrap();
        let outer = Agent::builder(self::script("assistant: > c0 ask(task=\"pay\")\nassistant: done"));
        let outer = outer.schema(schema()).tools([inner]).build().unwrap();
        for (agent, path) in [(&bank, "c1"), (&outer, "c0/c1")] {
            let first = play(agent, input(json!({"account": "A-1"})), |run| run).await.unwrap();
            for arguments in given() {
                let id = id_at(first.run(), path);
                let modify = Decision::modify(arguments.clone());
                let error = go_on(reloaded(&first), |run| run.decide(id.clone(), modify)).await.unwrap_err();
                assert!(
                    chain(&error).contains("only the state sets it")
                        && chain(&error).contains("stays pending"),
                    "{arguments}: {}",
                    chain(&error)
                );
                assert_eq!((error.outcome().pending()[0].id.as_str(), notes.text().as_str()), (&*id, ""));
            }
            let decided = [(path, Decision::modify(json!({"amount": 4})))];
            let ended = decide(reloaded(&first), decided).await.unwrap();
            assert_eq!(
                (ended.exit(), notes.text().as_str()),
                (&Exit::Text, "pay {\"account\":\"A-1\",\"amount\":4}\n")
            );
            notes.clear();
        }
    }
}

/// The same of an edit: before the call of the open step runs, and where the tool is known only when it runs.
#[tokio::test]
async fn edits_of_what_only_the_state_sets_are_refused() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay(amount=3)\nassistant: done";
    let bank = bank(&notes, script, Approval::Never).build().unwrap();
    let stop = Breakpoint::tool("pay");
    let values = || input(json!({"account": "A-1"}));
    let stopped = play(&bank, values(), |run| run.break_at(stop.clone())).await.unwrap();
    for arguments in given() {
        let edit = Edit::new().arguments("c1", arguments.clone());
        let error = stopped.run().feed(RunAnswer::Edit(edit), stopped.run().elapsed()).unwrap_err();
        assert!(error.to_string().contains("only the state sets it"), "{arguments}: {error}");
    }

    let tools: Vec<Tool> = bank.tools().unwrap().iter().cloned().collect();
    let dynamic = Toolset::dynamic_with("bank", move |_| {
        let tools = tools.clone();
        async move { Ok(tools) }
    });
    let bank = Agent::builder(self::script(script)).schema(schema()).tools(dynamic).build().unwrap();
    for arguments in given() {
        let stopped = play(&bank, values(), |run| run.break_at(stop.clone())).await.unwrap();
        let mut run = reloaded(&stopped);
        let edit = Edit::new().arguments("c1", arguments.clone());
        let edited = run.feed(RunAnswer::Edit(edit), run.elapsed()).unwrap();
        run.commit(edited).unwrap();
        let ended = go_on(run, |run| run).await.unwrap();
        let result =
            ended.transcript().iter().find_map(|message| message.tool_result()).unwrap().text().into_owned();
        assert!(result.contains("only the state sets it"), "{arguments}: {result}");
        assert_eq!(notes.text(), "");
    }
}
