//! Edits from outside of a run that is paused: what they change, what they refuse, and who looks again.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Schema, ValueRef};
use stepfold_agent_loop::tools::{Approval, Effect, ResultSource};
use stepfold_agent_loop::trim::{Summarize, Trim};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Breakpoint, Decision, Edit, EditError, Event, Exit, FeedError, HookAction,
    HookContext, Input, Outcome, Pause, RepeatGuard, Run, RunAnswer, RunEvent,
};
use stepfold_state_core::chat::ToolContent;

use super::kit::*;

fn schema() -> Schema {
    let schema = Schema::builder().key::<String>("account").key::<Vec<u64>>("seen").key::<u64>("count");
    schema.handler(Handler::sum()).key::<String>("temp:token").build().unwrap()
}

fn edit(run: &mut Run, edit: Edit) -> Result<Event, FeedError> {
    let event = run.feed(RunAnswer::Edit(edit), run.elapsed())?;
    run.commit(event.clone())?;
    Ok(event)
}

/// The words in which an edit is refused; the run stays as it was.
fn refused(run: &Run, edit: Edit) -> String {
    let before = run.to_json();
    let error = run.feed(RunAnswer::Edit(edit), run.elapsed()).unwrap_err();
    assert_eq!(run.to_json(), before);
    error.to_string()
}

/// A run that waits for a decision about `c2`, when `c1` of the step before has its result.
async fn waiting(notes: &Notes) -> (Agent, Outcome) {
    let pay = notes.tool("pay").approval(Approval::Always).input_from_state("account", "account");
    let pay = pay.parameters(json!({
        "properties": {"account": {"type": "string"}, "euro": {"type": "integer"}}, "type": "object",
    }));
    let look = notes.tool("look").output_to_state("count", ResultSource::from("n")).effect(Effect::Pure);
    let script = "assistant: > c1 look(n=1)\nassistant: > c2 pay(euro=3)  > c3 look(n=2)\nassistant: done";
    let agent = Agent::builder(self::script(script)).schema(schema());
    let agent = agent.tools([pay.build().unwrap(), look.build().unwrap()]).build().unwrap();
    let input = Input::from("go").with_values(json!({"account": "A-1"}));
    let outcome = play(&agent, input, |run| run).await.unwrap();
    (agent, outcome)
}

#[tokio::test]
async fn values_and_results_are_changed_at_once() {
    let (_, waiting) = waiting(&Notes::default()).await;
    let mut run = reloaded(&waiting);
    let edit = Edit::new().set("count", 7).merge("seen", json!([3])).merge("seen", 4).remove("account");
    let event = self::edit(&mut run, edit.result("c1", json!({"n": 5})).by("ada")).unwrap();
    assert_eq!(event.name(), "edited");
    assert_eq!(
        serde_json::to_value(&event.kind).unwrap(),
        json!({"edited": {
            "by": "ada", "results": [{"call_id": "c1", "name": "look", "value": {"n": 5}}],
        }})
    );
    assert!(event.rewrite.is_none() && event.messages.is_empty());
    let ended = decide(run, [("c2", Decision::reject("no"))]).await;
    expect![[r#"
        user:      go
        assistant: > c1 look(n=1)
        tool c1:   {"n": 5}
        assistant: > c2 pay(euro=3)   > c3 look(n=2)
        tool c2!:  tool 'pay' not run: the call was rejected: no
        tool c3:   {"n": 2}
        assistant: done
        --
        exit: the model answered
        steps: 3, calls: look 2
        state: {"count":9,"seen":[3,4]}
    "#]]
    .assert_eq(&shown(&ended));
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_its_name() {
    let (_, waiting) = waiting(&Notes::default()).await;
    let run = reloaded(&waiting);
    let refused = |edit: Edit| refused(&run, edit);
    let all = [
        refused(Edit::new()),
        refused(Edit::new().set("count", "many")),
        refused(Edit::new().set("seen", json!([1, "two"]))),
        refused(Edit::new().set("amount", 1)),
        refused(Edit::new().set("messages", json!([]))),
        refused(Edit::new().set("temp:token", "x")),
        refused(Edit::new().result("c9", 1)),
        refused(Edit::new().result("c2", 1)),
        refused(Edit::new().result("c3", 1)),
        refused(Edit::new().result("c1", 1).result("c1", 2)),
        // All or nothing.
        refused(Edit::new().set("count", 1).result("c9", 1)),
    ];
    expect![[r#"
        invalid edit: it changes nothing; set a value, a result or arguments
        invalid value for key "count": expected integer, found string at $
        invalid value for key "seen": expected integer, found string at $[1]
        unknown key "amount"; known keys: account, seen, count, temp:token, messages
        key "messages" cannot be written: it is the projection of message events; push a message instead
        invalid edit of `temp:token`: values of `temp:` keys are not stored; give them with the input of a run
        unknown call `c9`; calls with a result: c1
        invalid edit of the result of call `c2`: it waits for a decision; decide about it
        invalid edit of the result of call `c3`: it has not run yet; reject it, or let it run
        duplicate edit of call `c1`; expected one
        unknown call `c9`; calls with a result: c1"#]]
    .assert_eq(&all.join("\n"));

    let ended = decide(run, [("c2", Decision::reject("no"))]).await.unwrap().into_run();
    let error = ended.feed(RunAnswer::Edit(Edit::new().set("count", 1)), ended.elapsed()).unwrap_err();
    assert!(matches!(error, FeedError::NotNeeded { .. }), "{error}");
    let fresh = Run::new(ended.agent(), "go", "run-2").unwrap();
    assert!(matches!(
        fresh.feed(RunAnswer::Edit(Edit::new().set("count", 1)), fresh.elapsed()),
        Err(FeedError::NotNeeded { .. })
    ));
}

/// A run that has a rule for dear payments, where it is about to pay.
async fn about_to_pay(notes: &Notes) -> Run {
    let pay = notes.tool("pay").effect(Effect::AtMostOnce);
    let pay = pay.parameters(json!({"properties": {"euro": {"type": "integer"}}, "type": "object"}));
    let pay = pay.approval(Approval::when(|arguments| arguments["euro"].as_u64() > Some(9)));
    let look = notes.tool("look").effect(Effect::Pure);
    let script = "assistant: > c1 look()\nassistant: > c2 pay(euro=3)  > c3 look()\nassistant: done";
    let agent = Agent::builder(self::script(script)).schema(schema());
    let agent = agent.tools([pay.build().unwrap(), look.build().unwrap()]).build().unwrap();
    reloaded(&play(&agent, "go", |run| run.break_at(Breakpoint::tool("pay"))).await.unwrap())
}

#[tokio::test]
async fn a_call_that_has_not_begun_runs_with_other_arguments() {
    let mut run = about_to_pay(&Notes::default()).await;
    let event = edit(&mut run, Edit::new().arguments("c2", json!({"euro": 4})).by("ada")).unwrap();
    assert_eq!(
        serde_json::to_value(&event.kind).unwrap(),
        json!({"edited": {"arguments": [["c2", {"euro": 4}]], "by": "ada"}})
    );
    // A later edit replaces the arguments of the earlier one.
    edit(&mut run, Edit::new().arguments("c2", json!({"euro": 5}))).unwrap();
    expect![[r#"
        user:      go
        assistant: > c1 look()
        tool c1:   {}
        assistant: > c2 pay(euro=3)   > c3 look()
        tool:      @{"tool_result": {"call_id": "c2", "name": "pay", "parts": [{"text": "{\"euro\":5}"}, {"text": "\n[The arguments were changed before the call ran, to {\"euro\":5}]"}]}}
        tool c3:   {}
        assistant: done
        --
        exit: the model answered
        steps: 3, calls: look 2, pay 1
    "#]]
    .assert_eq(&shown(&go_on(run, |run| run).await));
}

#[tokio::test]
async fn changed_arguments_are_asked_about_by_the_rule_of_the_tool() {
    let notes = Notes::default();
    let mut run = about_to_pay(&notes).await;
    edit(&mut run, Edit::new().arguments("c2", json!({"euro": 40}))).unwrap();
    let asked = go_on(run, |run| run).await.unwrap();
    assert_eq!(asked.exit(), &Exit::Paused(Pause::Approval));
    assert_eq!(asked.pending()[0].call.arguments, json!({"euro": 40}).into());
    assert_eq!(notes.count("pay"), 0);
    let run = reloaded(&asked);
    expect![
        "invalid edit of the arguments of call `c2`: it waits for a decision; approve it with other arguments"
    ]
    .assert_eq(&refused(&run, Edit::new().arguments("c2", json!({"euro": 4}))));
    decide(run, [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!(notes.count("pay"), 1);
}

#[tokio::test]
async fn arguments_that_cannot_be_changed_are_refused() {
    let run = about_to_pay(&Notes::default()).await;
    let refused = |id: &str, arguments: Value| refused(&run, Edit::new().arguments(id, arguments));
    let twice = Edit::new().arguments("c2", json!({"euro": 1})).arguments("c2", json!({"euro": 2}));
    let all = [
        refused("c2", json!({"euro": "four"})),
        refused("c2", json!(4)),
        refused("c1", json!({})),
        refused("c9", json!({})),
        self::refused(&run, twice),
    ];
    expect![[r#"
        invalid arguments for call `c2`: expected integer, found string at $.euro
        invalid arguments for call `c2`: expected a JSON object
        unknown call `c1`; calls that have not begun: c2, c3
        unknown call `c9`; calls that have not begun: c2, c3
        duplicate edit of call `c2`; expected one"#]]
    .assert_eq(&all.join("\n"));
}

/// A call that has started has no result that could be changed; one beside it has, before the step is closed.
#[tokio::test]
async fn a_result_of_the_open_step_is_changed_and_one_that_is_not_there_is_not() {
    let notes = Notes::default();
    let tools = [notes.tool("look").effect(Effect::Pure), notes.tool("pay").effect(Effect::AtMostOnce)];
    let script = "assistant: > c1 look(n=1)  > c2 pay(n=2)\nassistant: done";
    let agent = Agent::builder(self::script(script)).schema(schema());
    let agent = agent.tools(tools.map(|tool| tool.build().unwrap())).build().unwrap();
    let mut seen = Vec::new();
    let whole = play(&agent, "go", |run| run.observe(&mut seen)).await.unwrap();
    drop(whole);
    let events: Vec<Event> = seen.iter().filter_map(RunEvent::committed).cloned().collect();
    let mut run = Run::new(&agent, "go", "run").unwrap();
    // As a process leaves it that dies while the second one is under way.
    for event in events.iter().take_while(|event| event.name() != "answered") {
        run.commit(event.clone()).unwrap();
    }
    let looked = run.feed(RunAnswer::outcome(0, outcome("c1", "look", 1)), run.elapsed()).unwrap();
    run.commit(looked).unwrap();
    expect![
        "invalid edit of the result of call `c2`: it was started, and has no result yet; wait for its outcome"
    ]
    .assert_eq(&refused(&run, Edit::new().result("c2", 1)));
    edit(&mut run, Edit::new().result("c1", "nobody was there")).unwrap();
    run.take_over();
    let ended = go_on(run, |run| run).await;
    expect![[r#"
        user:      go
        assistant: > c1 look(n=1)   > c2 pay(n=2)
        tool c1:   nobody was there
        tool c2!:  tool 'pay' had started when the process was interrupted: its outcome is unknown, and it was not run again
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 1
    "#]].assert_eq(&shown(&ended));
}

fn outcome(id: &str, tool: &str, value: impl Into<Value>) -> stepfold_agent_loop::tools::CallOutcome {
    let result = stepfold_state_core::chat::ToolResult::value(id, tool, value);
    stepfold_agent_loop::tools::CallOutcome::new(stepfold_agent_loop::tools::CallStatus::Succeeded, result)
}

/// An edit supplies the result of a call whose outcome was unknown.
#[tokio::test]
async fn an_unknown_outcome_is_known_after_an_edit() {
    let notes = Notes::default();
    let script = "assistant: > c1 pay()\nassistant: > c2 look()\nassistant: done";
    let agent = Agent::builder(self::script(script)).tools([
        notes.tool("pay").build().unwrap(),
        notes.tool("look").effect(Effect::Pure).build().unwrap(),
    ]);
    let agent = agent.build().unwrap();
    let mut seen = Vec::new();
    play(&agent, "go", |run| run.observe(&mut seen)).await.unwrap();
    let mut run = Run::new(&agent, "go", "run").unwrap();
    let events = seen.iter().filter_map(RunEvent::committed);
    for event in events.take_while(|event| event.name() != "answered") {
        run.commit(event.clone()).unwrap();
    }
    run.take_over();
    let paused = go_on(run, |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    assert_eq!(paused.unknown_calls().len(), 1);
    let mut run = reloaded(&paused);
    edit(&mut run, Edit::new().result("c1", "paid")).unwrap();
    assert!(run.unknown_calls().is_empty());
    // It stopped here already, and continues from here.
    let ended = go_on(run, |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    assert_eq!(ended.exit(), &Exit::Text);
}

#[tokio::test]
async fn an_approval_given_before_is_asked_about_again() {
    let notes = Notes::default();
    let (agent, waiting) = waiting(&notes).await;
    let approved = waiting.run().clone();
    let decided = at_paths(&approved, [("c2", Decision::Approve)]);
    let event = approved.feed(RunAnswer::Decisions(decided), approved.elapsed()).unwrap();
    let mut run = Run::load(&agent, &approved.to_json()).unwrap();
    run.commit(event).unwrap();
    notes.clear();
    edit(&mut run, Edit::new().set("account", "A-2")).unwrap();
    let asked = go_on(run, |run| run).await.unwrap();
    assert_eq!(asked.exit(), &Exit::Paused(Pause::Approval));
    let inputs = serde_json::to_value(&asked.pending()[0].inputs_from_state).unwrap();
    assert_eq!(inputs[0]["value"], "A-2");
    assert_eq!(notes.count("pay"), 0);
    let ended = decide(reloaded(&asked), [("c2", Decision::Approve)]).await.unwrap();
    assert_eq!((ended.exit(), notes.count("pay")), (&Exit::Text, 1));
}

/// Hooks before tools and before the model look again at what an edit may have changed; what they wrote for a call is
/// written once.
#[tokio::test]
async fn hooks_look_again() {
    let notes = Notes::default();
    let seen = notes.clone();
    let agent = agent_with_hooks(&notes).before_tool(move |context: HookContext| {
        let count = context.state.get("count").map_or(json!(0), ValueRef::to_json);
        seen.add(format!("before a tool at {count}"));
        async move {
            if count == json!(100) {
                return Ok(HookAction::proceed().with_answer("too many"));
            }
            HookAction::proceed().write(&context, "seen", 1)
        }
    });
    let agent = agent.build().unwrap();
    let paused = play(&agent, "go", |run| run.break_at(Breakpoint::tool("look"))).await.unwrap();
    let mut run = reloaded(&paused);
    edit(&mut run, Edit::new().set("count", 5)).unwrap();
    let paused = go_on(run, |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    assert_eq!(values(paused.state())["seen"], json!([1]));
    let mut run = reloaded(&paused);
    edit(&mut run, Edit::new().set("count", 100)).unwrap();
    let ended = go_on(run, |run| run).await;
    expect![[r#"
        user:      go
        assistant: > c1 look()
        tool c1:   {}
        assistant: > c2 look()
        tool c2!:  too many
        assistant: done
        --
        exit: the model answered
        steps: 3, calls: look 1
        state: {"count":100,"seen":[1]}
    "#]]
    .assert_eq(&shown(&ended));
    expect![[r#"
        before a tool at 0
        before a tool at 5
        look
        before a tool at 100
    "#]]
    .assert_eq(&notes.text());
}

fn agent_with_hooks(notes: &Notes) -> AgentBuilder {
    let script = "assistant: > c1 look()\nassistant: > c2 look()\nassistant: done";
    let look = notes.tool("look").effect(Effect::Pure).build().unwrap();
    Agent::builder(self::script(script)).schema(schema()).tools([look])
}

/// A summary that stands for a result is dropped when the result changes, and created again; another one stays.
#[tokio::test]
async fn a_summary_of_what_was_changed_is_made_again() {
    let history = "user: a\nassistant: > h1 look()\ntool h1: 3\nassistant: three\nuser: b\nassistant: > h2 look()\ntool h2: 4\nassistant: four\n";
    let agent = |script: &str| {
        let notes = Notes::default();
        let agent = Agent::builder(self::script(script)).tools([notes.tool("look").build().unwrap()]);
        agent.summarize(Summarize::beyond(Trim::keep_last(4))).build().unwrap()
    };
    let agent = agent("assistant: once there were three\nassistant: done\nassistant: done again");
    for (call, drops) in [("h1", true), ("h2", false)] {
        let input = Input::from(conversation(&format!("{history}user: c")));
        let paused = play(&agent, input, |run| run.break_at(Breakpoint::model())).await.unwrap();
        assert!(paused.summary().is_some());
        let mut run = reloaded(&paused);
        let event = edit(&mut run, Edit::new().result(call, 12)).unwrap();
        assert_eq!((run.summary().is_none(), event_drops(&event)), (drops, drops), "{call}");
        let shown = run.request().messages.to_string();
        assert!(shown.contains("12"), "{shown}");
    }
}

fn event_drops(event: &Event) -> bool {
    serde_json::to_value(&event.kind).unwrap()["edited"]["drops_summary"] == json!(true)
}

/// What the model repeats with another result before is not a repetition.
#[tokio::test]
async fn a_changed_result_ends_a_repetition() {
    let script = "assistant: > c1 look()\nassistant: > c2 look()\nassistant: > c3 look()\nassistant: done";
    let notes = Notes::default();
    let look = notes.tool("look").effect(Effect::Pure).build().unwrap();
    let guard = RepeatGuard::default().warn_at(2).stop_at(3);
    let agent = Agent::builder(self::script(script)).tools([look]).repeat_guard(Some(guard)).build().unwrap();
    let stopped = play(&agent, "go", |run| run).await.unwrap();
    assert_eq!(stopped.exit(), &Exit::RepeatedCalls);
    let paused = play(&agent, "go", |run| run.break_at(Breakpoint::model().visit(3))).await.unwrap();
    let mut run = reloaded(&paused);
    edit(&mut run, Edit::new().result_with("c2", ToolContent::Error("no area 7".to_owned()))).unwrap();
    assert_eq!(go_on(run, |run| run).await.unwrap().exit(), &Exit::Text);
}

/// An agent that is a tool has begun and waits: it gets the values that it shares, and what it wrote to them before does
/// not undo the edit.
#[tokio::test]
async fn an_agent_inside_gets_the_values_that_it_shares() {
    let notes = Notes::default();
    let note =
        tool("note", |arguments| Ok(arguments["to"].clone())).output_to_state("account", ResultSource::Whole);
    let seen = notes.clone();
    let pay = tool("pay", move |arguments| {
        seen.add(format!("pays from {}", arguments["account"]));
        Ok(json!("paid"))
    });
    let pay = pay
        .parameters(json!({"properties": {"account": {"type": "string"}}, "type": "object"}))
        .input_from_state("account", "account")
        .approval(Approval::Always);
    let clerk =
        Agent::builder(script("assistant: > i1 note(to=\"B-1\")\nassistant: > i2 pay()\nassistant: ok"));
    let clerk = clerk.schema(schema()).tools([note.build().unwrap(), pay.build().unwrap()]).build().unwrap();
    let clerk = clerk.as_tool("clerk", "Pays.").share(["account"]).build().unwrap();
    let agent = Agent::builder(script("assistant: > c1 clerk(task=\"pay\")\nassistant: done"));
    let agent = agent.schema(schema()).tools([clerk]).build().unwrap();
    let waiting = play(&agent, "go", |run| run).await.unwrap();
    let mut run = reloaded(&waiting);
    edit(&mut run, Edit::new().set("account", "C-9")).unwrap();
    let asked = decide(run, [("c1/i2", Decision::Approve)]).await.unwrap();
    let inputs = serde_json::to_value(&asked.pending()[0].inputs_from_state).unwrap();
    assert_eq!(inputs[0]["value"], "C-9");
    let ended = decide(reloaded(&asked), [("c1/i2", Decision::Approve)]).await.unwrap();
    assert_eq!(values(ended.state())["account"], "C-9");
    assert_eq!(notes.text(), "pays from \"C-9\"\n");
    // Its calls are not those of the run around it.
    assert!(matches!(
        waiting.run().feed(RunAnswer::Edit(Edit::new().result("i1", 1)), waiting.run().elapsed()),
        Err(FeedError::Edit(EditError::UnknownCall { .. }))
    ));
}
