//! What a run begins with and what comes of it.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{Message, ModelParams, Role, Usage};
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{RawArgs, ResultSource, Tool, ToolError};
use stepfold_agent_loop::{Agent, Breakpoint, Exit, HookAction, Input, RunFault, RunLimits, StartError};

use super::check;
use super::kit::*;

fn schema() -> Schema {
    let schema = Schema::builder().key::<Vec<i64>>("found").key::<String>("name");
    schema.key::<i64>("visits").handler(Handler::sum()).build().unwrap()
}

#[tokio::test]
async fn outcome() {
    let model = costing(script(""), "assistant: > c1 find()   > c2 find()", 10, 5);
    let model = costing(model, "assistant: area 3", 20, 1);
    let find = tool("find", |_| Ok(json!({"found": [3], "visits": 1})))
        .output_to_state("found", "found")
        .output_to_state("visits", "visits");
    let agent = Agent::builder(model).schema(schema()).tools([find.build().unwrap()]);
    let input = Input::from("where?").with_values(json!({"found": [1], "visits": 40}));
    check(
        agent,
        input,
        expect![[r#"
        user:      where?
        assistant: > c1 find()   > c2 find()
        tool c1:   {"found": [3], "visits": 1}
        tool c2:   {"found": [3], "visits": 1}
        assistant: area 3
        --
        exit: the model answered
        steps: 2, calls: find 2, tokens: 30 + 6
        state: {"found":[1,3,3],"visits":42}
    "#]],
    )
    .await;
}

/// What there is until then is in the error, and the run continues from there.
#[tokio::test]
async fn outcome_of_an_error() {
    let agent = agent("assistant: > c1 search(q=\"stalls\")").build().unwrap();
    let ended = play(&agent, "where?", |run| run).await;
    expect![[r#"
        user:      where?
        assistant: > c1 search(q="stalls")
        tool c1:   [3, 4]
        --
        error: run 'run' failed after step 1: model request failed: invalid request: the script has 1 replies, and is asked for one more
        steps: 1, calls: search 1
    "#]].assert_eq(&shown(&ended));
    let error = ended.unwrap_err();
    assert_eq!(error.outcome().reply().unwrap().tool_calls().count(), 1);
    let richer = agent.to_builder().model(script("assistant: -\nassistant: area 3")).build().unwrap();
    let (run, changes) =
        stepfold_agent_loop::Run::load_changed(&richer, &error.into_run().to_json()).unwrap();
    assert_eq!(changes, Vec::<String>::new());
    expect![[r#"
        user:      where?
        assistant: > c1 search(q="stalls")
        tool c1:   [3, 4]
        assistant: area 3
        --
        exit: the model answered
        steps: 2, calls: search 1
    "#]]
    .assert_eq(&shown(&go_on(run, |run| run).await));
}

#[tokio::test]
async fn outcome_of_the_reply() {
    let agent = agent("assistant: area 3").build().unwrap();
    let first = play(&agent, "where?", |run| run).await.unwrap();
    // A turn that does not come to a reply does not show the reply of the one before.
    let silent = agent.to_builder().model(script("")).build().unwrap();
    let error = play(&silent, Input::on(first.state().clone()).say("and now?"), |run| run).await.unwrap_err();
    assert_eq!((error.outcome().reply(), error.outcome().text()), (None, "".into()));
    assert_eq!((first.text(), first.steps(), first.usage()), ("area 3".into(), 1, Usage::default()));
}

#[tokio::test]
async fn instructions() {
    let model = Asked::new(script("assistant: hello"));
    let agent = Agent::builder(model.clone())
        .schema(schema())
        .instructions("You help {name}. {{literal}} {found?}|{\"a\": 1}");
    let input = Input::from("hi").with_values(json!({"name": "Ada"}));
    check(
        agent,
        input,
        expect![[r#"
        user:      hi
        assistant: hello
        --
        exit: the model answered
        steps: 1
        state: {"name":"Ada"}
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    You help Ada. {literal} |{"a": 1}
        user:      hi
    "#]]
    .assert_eq(&model.shown());
}

/// The caller's own system message comes after them.
#[tokio::test]
async fn instructions_and_a_system_message() {
    let model = Asked::new(script("assistant: hello"));
    let agent = Agent::builder(model.clone()).instructions("Be brief.");
    check(
        agent,
        conversation("system: Speak French.\nuser: hi"),
        expect![[r#"
        system:    Speak French.
        user:      hi
        assistant: hello
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    Be brief.
        system:    Speak French.
        user:      hi
    "#]]
    .assert_eq(&model.shown());
}

/// Rendered at each run, not at each step: what the model is shown first does not change within a turn.
#[tokio::test]
async fn instructions_are_rendered_at_each_run() {
    let model = Asked::new(script("assistant: > c1 visit()\nassistant: once\nassistant: twice"));
    let visit =
        tool("visit", |_| Ok(json!(1))).output_to_state("visits", ResultSource::Whole).build().unwrap();
    let agent = Agent::builder(model.clone())
        .schema(schema())
        .tools([visit])
        .instructions("{visits?} visits")
        .build()
        .unwrap();
    let input = Input::from("one").with_values(json!({"visits": 0}));
    let first = play(&agent, input, |run| run).await.unwrap();
    play(&agent, Input::on(first.state().clone()).say("two"), |run| run).await.unwrap();
    expect![[r#"
        --
        system:    0 visits
        user:      one
        --
        system:    0 visits
        user:      one
        assistant: > c1 visit()
        tool c1:   1
        --
        system:    1 visits
        user:      one
        assistant: > c1 visit()
        tool c1:   1
        assistant: once
        user:      two
    "#]]
    .assert_eq(&model.shown());
}

#[tokio::test]
async fn instructions_that_need_an_unset_key() {
    let agent = agent("assistant: hello").schema(schema()).instructions("You help {name}.");
    check(agent, "hi", expect![[r#"
        --
        error: run 'run' failed after step 0: run could not continue: missing key "name" for the template at line 1, column 10; write {name?} if it is optional; known keys: messages
        steps: 0
    "#]]).await;
}

/// Each for one run: the agent stays as it was.
#[tokio::test]
async fn runtime_overrides() {
    let model = Asked::new(script("assistant: > c1 fetch(id=3)\nassistant: area 3"));
    let agent = Agent::builder(model.clone()).tools(tools()).instructions("Be kind.").build().unwrap();
    let ended = play(&agent, "where?", |run| {
        run.with(|agent| {
            agent
                .instructions("Be brief.")
                .only_tools(["search"])
                .limits(RunLimits::default().with_steps(1))
                .params(ModelParams::default().with_temperature(0.5))
                .model_name("small")
        })
    })
    .await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=3)
        tool c1!:  unknown tool 'fetch'; available: search
        --
        exit: the limit of steps was reached
        steps: 1, calls: fetch 1
    "#]]
    .assert_eq(&shown(&ended));
    let request = &model.requests()[0];
    assert_eq!(request.params.temperature, Some(0.5));
    assert_eq!(request.model.as_deref(), Some("small"));
    assert_eq!(request.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["search"]);
    assert_eq!(request.messages.first().unwrap().text(), "Be brief.");
    assert_eq!(play(&agent, "where?", |run| run).await.unwrap().exit(), &Exit::Text);
}

#[tokio::test]
async fn runtime_overrides_of_tools() {
    let other = tool("fetch", |_| Ok(json!("another area"))).build().unwrap();
    let agent = agent("assistant: > c1 fetch(id=3)\nassistant: so be it").build().unwrap();
    let ended = play(&agent, "where?", |run| run.with(|agent| agent.tools([other]))).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=3)
        tool c1:   another area
        assistant: so be it
        --
        exit: the model answered
        steps: 2, calls: fetch 1
    "#]]
    .assert_eq(&shown(&ended));
}

#[tokio::test]
async fn runtime_overrides_that_are_wrong() {
    let agent = agent("assistant: area 3").build().unwrap();
    let error = agent.run("where?").with(|agent| agent.max_steps(0).exit_on(["leave"])).await.unwrap_err();
    expect!["run 'ID' failed after step 0: agent could not be adjusted for the run: invalid agent 'agent': limits.steps: must be positive: the model could not be called; exit condition 'leave': unknown tool; available: search, fetch, submit, fails"].assert_eq(&chain(&error).replace(error.outcome().run().id(), "ID"));
}

#[tokio::test]
async fn tool_failure() {
    let script = r#"
assistant: > c1 fails()   > c2 search()   > c3 nowhere()   > c4 search!("{\"q\": sta")   > c5 fetch(id=3)
assistant: area 3
"#;
    check(agent(script), "where?", expect![[r#"
        user:      where?
        assistant: > c1 fails()   > c2 search()   > c3 nowhere()   > c4 search!("{\"q\": sta")   > c5 fetch(id=3)
        tool c1!:  no such area
        tool c2!:  invalid arguments for tool 'search': "q" is a required property at $
        tool c3!:  unknown tool 'nowhere'; available: search, fetch, submit, fails
        tool c4!:  malformed arguments for tool 'search': expected value at line 1 column 7
        tool c5:   area 3
        assistant: area 3
        --
        exit: the model answered
        steps: 2, calls: fails 1, fetch 1, nowhere 1, search 2
    "#]]).await;
}

/// The first in call order is the error of the run; the other outcomes are kept, and the run continues behind
/// them.
#[tokio::test]
async fn raise_on_failure() {
    let script =
        "assistant: > c1 fetch(id=1)   > c2 fails()   > c3 fails()   > c4 fetch(id=4)\nassistant: so be it";
    let agent = agent(script).raise_on_failure().build().unwrap();
    let ended = play(&agent, "where?", |run| run).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()   > c3 fails()   > c4 fetch(id=4)
        tool c1:   area 1
        tool c2!:  no such area
        tool c3!:  no such area
        tool c4:   area 4
        --
        error: run 'run' failed after step 1: tool call failed: tool 'fails' failed in call 'c2': no such area
        steps: 1, calls: fails 2, fetch 2
    "#]]
    .assert_eq(&shown(&ended));
    expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()   > c3 fails()   > c4 fetch(id=4)
        tool c1:   area 1
        tool c2!:  no such area
        tool c3!:  no such area
        tool c4:   area 4
        assistant: so be it
        --
        exit: the model answered
        steps: 2, calls: fails 2, fetch 2
    "#]]
    .assert_eq(&shown(&go_on(ended.unwrap_err().into_run(), |run| run).await));
}

/// A rejected call is not an error.
#[tokio::test]
async fn raise_on_failure_of_a_rejected_call() {
    use stepfold_agent_loop::Decision;
    use stepfold_agent_loop::tools::Approval;

    let fetch = tool("fetch", |_| Ok(json!("an area"))).approval(Approval::Always).build().unwrap();
    let look = tool("look", |_| Ok(json!("looked"))).build().unwrap();
    let script = "assistant: > c1 fetch()   > c2 look()\nassistant: so be it";
    let agent = Agent::builder(self::script(script)).tools([fetch, look]).raise_on_failure().build().unwrap();
    let paused = play(&agent, "where?", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1", Decision::reject("no"))]).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch()   > c2 look()
        tool c1!:  tool 'fetch' not run: the call was rejected: no
        tool c2:   looked
        assistant: so be it
        --
        exit: the model answered
        steps: 2, calls: look 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// A rejected call does not hide the failure of another one.
#[tokio::test]
async fn raise_on_failure_beside_a_rejected_call() {
    use stepfold_agent_loop::Decision;
    use stepfold_agent_loop::tools::Approval;

    let fetch = tool("fetch", |_| Ok(json!("an area"))).approval(Approval::Always).build().unwrap();
    let fails = tool("fails", |_| Err(ToolError::permanent("no such area"))).build().unwrap();
    let script = "assistant: > c1 fetch()   > c2 fails()\nassistant: so be it";
    let agent =
        Agent::builder(self::script(script)).tools([fetch, fails]).raise_on_failure().build().unwrap();
    let paused = play(&agent, "where?", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1", Decision::reject("no"))]).await;
    expect![[r#"
        user:      where?
        assistant: > c1 fetch()   > c2 fails()
        tool c1!:  tool 'fetch' not run: the call was rejected: no
        tool c2!:  no such area
        --
        error: run 'run' failed after step 1: tool call failed: tool 'fails' failed in call 'c2': no such area
        steps: 1, calls: fails 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// What a tool calls fatal ends the run in any case.
#[tokio::test]
async fn raise_on_failure_by_the_tool() {
    let fatal = tool("fatal", |_| Err(ToolError::fatal("the disk is full"))).build().unwrap();
    let script = "assistant: > c1 fatal()\nassistant: so be it";
    check(Agent::builder(self::script(script)).tools([fatal]), "where?", expect![[r#"
        user:      where?
        assistant: > c1 fatal()
        tool c1!:  tool 'fatal' failed: the disk is full
        --
        error: run 'run' failed after step 1: tool call failed: tool 'fatal' failed in call 'c1': the disk is full
        steps: 1, calls: fatal 1
    "#]]).await;
}

/// A write that cannot be merged is that call's failure alone.
#[tokio::test]
async fn raise_on_failure_of_a_merge() {
    let schema = Schema::builder().key::<u64>("visits").handler(Handler::sum()).build().unwrap();
    let visit =
        tool("visit", |arguments| Ok(arguments["n"].clone())).output_to_state("visits", ResultSource::Whole);
    let script = format!("assistant: > c1 visit(n={})   > c2 visit(n=5)\nassistant: so be it", u64::MAX);
    let agent = Agent::builder(self::script(&script)).schema(schema).tools([visit.build().unwrap()]);
    check(agent.clone(), "where?", expect![[r#"
        user:      where?
        assistant: > c1 visit(n=18446744073709551615)   > c2 visit(n=5)
        tool c1:   18446744073709551615
        tool c2!:  tool 'visit' ran, but its writes to the state failed and none was applied: handler sum failed for key "visits": the sum does not fit 64 bits
        assistant: so be it
        --
        exit: the model answered
        steps: 2, calls: visit 2
        state: {"visits":18446744073709551615}
    "#]]).await;
    check(agent.raise_on_failure(), "where?", expect![[r#"
        user:      where?
        assistant: > c1 visit(n=18446744073709551615)   > c2 visit(n=5)
        tool c1:   18446744073709551615
        tool c2!:  tool 'visit' ran, but its writes to the state failed and none was applied: handler sum failed for key "visits": the sum does not fit 64 bits
        --
        error: run 'run' failed after step 1: tool call failed: tool 'visit' failed in call 'c2': tool 'visit' ran, but its writes to the state failed and none was applied: handler sum failed for key "visits": the sum does not fit 64 bits
        steps: 1, calls: visit 2
        state: {"visits":18446744073709551615}
    "#]]).await;
}

/// Whatever order the calls finish in, their results and writes come in call order.
#[tokio::test(start_paused = true)]
async fn order_of_calls() {
    let schema = Schema::builder().key::<Vec<u64>>("found").key::<u64>("last").build().unwrap();
    let wait = Tool::new("wait", "Waits.", |RawArgs(arguments): RawArgs| async move {
        let seconds = arguments["seconds"].as_u64().unwrap();
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok::<_, ToolError>(json!({"found": [seconds]}))
    });
    let wait = wait
        .parameters(json!({"properties": {"seconds": {"type": "integer"}}, "type": "object"}))
        .output_to_state("found", "found")
        .build()
        .unwrap();
    let script =
        "assistant: > c1 wait(seconds=3)   > c2 wait(seconds=1)   > c3 wait(seconds=2)\nassistant: done";
    check(
        Agent::builder(self::script(script)).schema(schema).tools([wait]),
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 wait(seconds=3)   > c2 wait(seconds=1)   > c3 wait(seconds=2)
        tool c1:   {"found": [3]}
        tool c2:   {"found": [1]}
        tool c3:   {"found": [2]}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: wait 3
        state: {"found":[3,1,2]}
    "#]],
    )
    .await;
}

/// A run that continues may do so within other limits.
#[tokio::test]
async fn runtime_overrides_of_a_resumed_run() {
    let agent =
        agent("assistant: > c1 fetch(id=1)\nassistant: > c2 fetch(id=2)\nassistant: done").build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    let outcome = go_on(reloaded(&paused), |run| run.with(|agent| agent.max_steps(2))).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::MaxSteps, 2));
}

/// A request without any message is an error of every provider: the run says what is missing, before it asks.
#[tokio::test]
async fn a_run_without_any_message_fails_before_the_model_is_asked() {
    let model = Asked::new(script("assistant: never said"));
    let bare = Agent::builder(model.clone()).tools(tools()).build().unwrap();
    let error = bare.run(Input::new()).await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Start(StartError::NoMessages)), "{error}");
    assert!(error.to_string().ends_with(
        "run could not begin: missing message: the conversation is empty, and the agent has no instructions; add a message to the input"
    ), "{error}");
    assert!(model.requests().is_empty());
    // Instructions are a message, and so is what a hook says.
    let instructed = agent("assistant: area 3").instructions("Name an area.").build().unwrap();
    assert_eq!(instructed.run(Input::new()).await.unwrap().text(), "area 3");
    let hooked = agent("assistant: area 7")
        .before_run(|_| async { Ok(HookAction::proceed().with_message(Message::user("which area?"))) })
        .build()
        .unwrap();
    assert_eq!(hooked.run(Input::new()).await.unwrap().text(), "area 7");
}

#[tokio::test]
async fn a_message_without_parts_is_refused_in_the_input_and_kept_in_history() {
    let agent = agent("assistant: area 3").build().unwrap();
    for role in [Role::User, Role::System] {
        let input = Input::from("which area?").with_message(Message::new(role));
        let error = agent.run(input).await.unwrap_err();
        assert!(matches!(error.fault(), RunFault::Start(StartError::NoParts { index: 1 })), "{error}");
        assert!(
            error.to_string().ends_with(
                "invalid message 1 of the input: it has no parts; add a text, or remove the message"
            )
        );
    }
    // A model may have replied with nothing.
    let agent = Agent::builder(Counting::new("assistant: area 3")).build().unwrap();
    let history = vec![Message::user("hello?"), Message::new(Role::Assistant), Message::user("which area?")];
    assert_eq!(agent.run(history).await.unwrap().text(), "area 3");
}
