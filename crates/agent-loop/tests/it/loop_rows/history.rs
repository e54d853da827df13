//! What a run makes of the conversation it begins with, and what the model is shown of it.

use std::sync::Arc;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{
    ChatRequest, FinishReason, Message, ModelError, ModelErrorKind, Usage,
};
use stepfold_agent_loop::state_core::state::{Schema, State};
use stepfold_agent_loop::tools::{ResultSource, Toolset};
use stepfold_agent_loop::{Agent, Breakpoint, EventKind, Exit, Input, Recording, Run, RunEvent};
use stepfold_trim::{Summarize, Trim, Window};

use super::check;
use super::kit::*;

/// A history from elsewhere is repaired before the first request, and the repair is reported.
#[tokio::test]
async fn repair_on_entry() {
    let broken = "\
user: where?
assistant: > c1 search(q=\"x\")   > c2 fetch(id=1)
tool c2: area 1
user: hello?
tool c9 fetch: nothing
";
    let mut state = State::new(&Schema::default());
    state.replace_messages(conversation(broken));
    let model = Asked::new(script("assistant: sorry").after(1));
    let agent = Agent::builder(model.clone()).build().unwrap();
    let mut seen = Vec::new();
    let ended = play(&agent, Input::on(state).say("go on"), |run| run.observe(&mut seen)).await;
    expect![[r#"
        user:      where?
        assistant: > c1 search(q="x")   > c2 fetch(id=1)
        tool c2:   area 1
        tool c1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        user:      hello?
        user:      go on
        assistant: sorry
        --
        exit: the model answered
        steps: 1
    "#]]
    .assert_eq(&shown(&ended));
    let began = seen.iter().find_map(RunEvent::committed).unwrap();
    let EventKind::Began { repairs, .. } = &began.kind else { panic!("{began:?}") };
    expect![[r#"
        message 1, call `c1`: answered as interrupted
        message 4, call `c9`: dropped a result without a call"#]]
    .assert_eq(&repairs.join("\n"));
}

#[tokio::test]
async fn repair_of_what_is_well() {
    let agent = Agent::builder(script("assistant: area 3").after(1)).build().unwrap();
    let mut seen = Vec::new();
    let input = conversation("user: a\nassistant: b\nuser: c");
    play(&agent, input, |run| run.observe(&mut seen)).await.unwrap();
    let began = seen.iter().find_map(RunEvent::committed).unwrap();
    assert!(began.rewrite.is_none(), "{began:?}");
    assert!(matches!(&began.kind, EventKind::Began { repairs, .. } if repairs.is_empty()));
}

const LONG: &str = "\
user: one
assistant: 1
user: two
assistant: > x1 fetch(id=2)
tool x1: area 2
assistant: 2
";

/// A view for the model, once, before the turn; the log is untouched.
#[tokio::test]
async fn trim() {
    let model = Asked::new(script("assistant: > c1 fetch(id=3)\nassistant: 3").after(0));
    let agent =
        Agent::builder(model.clone()).tools(tools()).instructions("Be brief.").trim(Trim::keep_last(1));
    let mut input = conversation(LONG);
    input.push(message("user: three"));
    check(
        agent,
        input,
        expect![[r#"
        user:      one
        assistant: 1
        user:      two
        assistant: > x1 fetch(id=2)
        tool x1:   area 2
        assistant: 2
        user:      three
        assistant: > c1 fetch(id=3)
        tool c1:   area 3
        assistant: 3
        --
        exit: the model answered
        steps: 2, calls: fetch 1
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    Be brief.
        user:      three
        --
        system:    Be brief.
        user:      three
        assistant: > c1 fetch(id=3)
        tool c1:   area 3
    "#]]
    .assert_eq(&model.shown());
}

/// A run that is resumed shows what it showed.
#[tokio::test]
async fn trim_over_a_pause() {
    let model = Asked::new(script("assistant: > c1 fetch(id=3)\nassistant: 3"));
    let agent = Agent::builder(model.clone()).tools(tools()).trim(Trim::keep_last(1)).build().unwrap();
    let mut input = conversation(LONG);
    input.push(message("user: three"));
    let paused = play(&agent, input, |run| run.break_at(Breakpoint::tool("fetch"))).await.unwrap();
    go_on(reloaded(&paused), |run| run).await.unwrap();
    let requests = model.requests();
    assert!(requests[1].messages.to_string().starts_with(&requests[0].messages.to_string()));
    assert_eq!(requests[1].messages.len(), 3);
}

/// Within a turn the oldest steps leave the view when the window would overflow: seldom, and then well below.
#[tokio::test]
async fn window() {
    let steps = 40;
    let text: String = (0..steps)
        .map(|n| format!("assistant: > c{n} fetch(id={n}, note=\"{}\")\n", "x".repeat(200)))
        .collect();
    // The script reads off the conversation how far it is, and the window hides that: a model that counts.
    let model = Asked::new(Arc::new(Counting::new(&(text + "assistant: done"))));
    let agent = Agent::builder(model.clone()).tools(tools()).window(Window::new(1_000)).build().unwrap();
    let mut seen = Vec::new();
    let outcome = play(&agent, "where?", |run| run.observe(&mut seen)).await.unwrap();
    assert_eq!((outcome.exit(), outcome.transcript().len()), (&Exit::Text, 2 * steps + 2));
    let requests = model.requests();
    let grows = |pair: &&[ChatRequest]| pair[1].messages.starts_with(&pair[0].messages);
    let shrunk = requests.windows(2).filter(|pair| !grows(pair)).count();
    let told = seen.iter().filter(|event| matches!(event, RunEvent::Trimmed(_))).count();
    assert_eq!(shrunk, told);
    assert!((1..=10).contains(&shrunk), "{shrunk}");
    for request in requests {
        assert_eq!(request.messages.check(), Ok(()));
        assert_eq!(request.messages.first().unwrap().text(), "where?");
    }
}

/// The prefix of the request stays as it is, byte for byte, from step to step.
#[tokio::test]
async fn prefix_is_stable() {
    let script_text = r#"
assistant: ~"hm"   > c1 fetch(id=1)   > c2 fails()
assistant:
assistant: Now   > c3 search(q="x")
assistant: done
"#;
    let model = Asked::new(script(script_text));
    let agent = agent("").model(model.clone()).instructions("Be brief.").build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(3))).await.unwrap();
    go_on(reloaded(&paused), |run| run).await.unwrap();
    let requests = model.requests();
    assert_eq!(requests.len(), 4);
    for pair in requests.windows(2) {
        let [before, after] = [0, 1].map(|index| serde_json::to_string(&pair[index].messages).unwrap());
        assert!(after.starts_with(before.trim_end_matches(']')), "{before}\n{after}");
        assert_eq!(pair[0].tools, pair[1].tools);
    }
}

#[tokio::test]
async fn summary_by_a_model() {
    let model = Asked::new(script("assistant: > c1 fetch(id=3)\nassistant: three"));
    let condenses = Asked::new(costing(script(""), "assistant: One is 1, two is 2.", 100, 10));
    let agent = Agent::builder(model.clone())
        .tools(tools())
        .summary_model(condenses.clone())
        .summarize(Summarize::beyond(Trim::keep_last(1)))
        .build()
        .unwrap();
    let mut input = conversation(LONG);
    input.push(message("user: three"));
    let mut seen = Vec::new();
    let ended = play(&agent, input, |run| run.observe(&mut seen)).await;
    expect![[r#"
        user:      one
        assistant: 1
        user:      two
        assistant: > x1 fetch(id=2)
        tool x1:   area 2
        assistant: 2
        user:      three
        assistant: > c1 fetch(id=3)
        tool c1:   area 3
        assistant: three
        --
        exit: the model answered
        steps: 2, calls: fetch 1, tokens: 100 + 10
    "#]]
    .assert_eq(&shown(&ended));
    expect![[r#"
        --
        user:      [Summary of 6 earlier messages, written by a model. They are not shown any more.]
                   One is 1, two is 2.
                   [End of the summary. The conversation goes on.]
        user:      three
        --
        user:      [Summary of 6 earlier messages, written by a model. They are not shown any more.]
                   One is 1, two is 2.
                   [End of the summary. The conversation goes on.]
        user:      three
        assistant: > c1 fetch(id=3)
        tool c1:   area 3
    "#]]
    .assert_eq(&model.shown());
    assert_eq!(committed(&seen), ["began", "summarized", "replied", "started", "answered", "replied"]);
    assert_eq!(condenses.requests().len(), 1);
    // The next turn begins with it, and replaces it by another.
    let outcome = ended.unwrap();
    let again = Asked::new(script("assistant: four"));
    let more = Asked::new(script("assistant: One to three are 1 to 3."));
    let agent = agent.to_builder().model(again.clone()).summary_model(more.clone()).build().unwrap();
    let input = Input::on(outcome.state().clone()).with_summary(outcome.summary().cloned()).say("four");
    play(&agent, input, |run| run).await.unwrap();
    expect![[r#"
        --
        user:      [Summary of 10 earlier messages, written by a model. They are not shown any more.]
                   One to three are 1 to 3.
                   [End of the summary. The conversation goes on.]
        user:      four
    "#]]
    .assert_eq(&again.shown());
    assert!(more.requests()[0].messages.last().unwrap().text().contains("One is 1, two is 2."));
}

/// Then the trim decides.
#[tokio::test]
async fn summary_that_fails() {
    let busy = || ModelError::new(ModelErrorKind::Overloaded, "busy");
    let ended = |text: &str, reason| script("").then(Message::assistant(text), reason, Usage::new(7, 3));
    let text = "One is 1, two is 2.";
    for (condenses, tokens, why) in [
        (script("").then_fail(busy()), 0, "busy"),
        (script("assistant: \" \""), 0, "the reply is blank"),
        (ended("", FinishReason::Stop), 10, "the reply is blank"),
        (ended(text, FinishReason::Length), 10, "truncated at its limit of tokens"),
        (ended(text, FinishReason::ContentFilter), 10, "content filter"),
        (ended(text, FinishReason::Refusal), 10, "refused"),
        (ended("I can\u{2019}t help with that.", FinishReason::Stop), 10, "refused"),
        (
            ended(&"One is 1. ".repeat(40_000), FinishReason::Stop),
            10,
            "at most 40000 characters, found 399999",
        ),
    ] {
        let model = Asked::new(script("assistant: three"));
        let agent = Agent::builder(model.clone())
            .summary_model(condenses)
            .summarize(Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(3)))
            .trim(Trim::keep_last(1))
            .build()
            .unwrap();
        let mut input = conversation(LONG);
        input.push(message("user: three"));
        let mut seen = Vec::new();
        let run = Run::new(&agent, input, "run").unwrap();
        let mut recording = Recording::of(&run);
        let outcome = go_on(run, |run| run.observe(&mut seen).observe(&mut recording)).await.unwrap();
        assert_eq!((outcome.exit(), outcome.summary()), (&Exit::Text, None));
        assert_eq!(outcome.usage().total_tokens(), tokens, "{why}");
        assert_eq!(model.shown(), "--\nuser:      three\n");
        assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
        let error = seen.iter().filter_map(RunEvent::committed).find_map(|event| match &event.kind {
            EventKind::Summarized { error, .. } => error.clone(),
            _ => None,
        });
        assert!(error.as_ref().is_some_and(|error| error.contains(why)), "{why}: {error:?}");
    }
}

/// A short conversation needs none.
#[tokio::test]
async fn summary_that_is_not_needed() {
    let condenses = Asked::new(script(""));
    let agent = Agent::builder(script("assistant: area 3"))
        .summary_model(condenses.clone())
        .summarize(Summarize::beyond(Trim::keep_last(10)));
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: area 3
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
    assert_eq!(condenses.requests().len(), 0);
}

/// Missing, repeated within a reply, or used before: each call has an id of its own, in the whole conversation.
#[tokio::test]
async fn unique_call_ids() {
    let script = r#"
assistant: > c1 fetch(id=1)   > c1 fetch(id=2)   > "" fetch(id=3)
assistant: > c1 fetch(id=4)
assistant: done
"#;
    let model = self::script(script).after(1);
    let agent = Agent::builder(model).tools(tools()).build().unwrap();
    let input = conversation("user: a\nassistant: > c1 fetch(id=0)\ntool c1: area 0\nuser: where?");
    let ended = play(&agent, input, |run| run).await;
    expect![[r#"
        user:      a
        assistant: > c1 fetch(id=0)
        tool c1:   area 0
        user:      where?
        assistant: > c1-2 fetch(id=1)   > c1-3 fetch(id=2)   > call-4 fetch(id=3)
        tool c1-2: area 1
        tool c1-3: area 2
        tool call-4: area 3
        assistant: > c1-5 fetch(id=4)
        tool c1-5: area 4
        assistant: done
        --
        exit: the model answered
        steps: 3, calls: fetch 4
    "#]]
    .assert_eq(&shown(&ended));
}

/// A dynamic toolset is asked again before each step.
#[tokio::test]
async fn dynamic_toolset() {
    let schema = Schema::builder().key::<bool>("is_open").build().unwrap();
    let set = Toolset::dynamic_with("doors", |state| async move {
        let open = tool("open", |_| Ok(json!(true)))
            .output_to_state("is_open", ResultSource::Whole)
            .build()
            .unwrap();
        let enter = tool("enter", |_| Ok(json!("inside"))).build().unwrap();
        Ok(if state.has("is_open") { vec![enter] } else { vec![open] })
    });
    let model =
        Asked::new(script("assistant: > c1 enter()   > c2 open()\nassistant: > c3 enter()\nassistant: in"));
    let agent = Agent::builder(model.clone()).schema(schema).tools(set);
    check(
        agent,
        "go",
        expect![[r#"
        user:      go
        assistant: > c1 enter()   > c2 open()
        tool c1!:  unknown tool 'enter'; available: open
        tool c2:   true
        assistant: > c3 enter()
        tool c3:   inside
        assistant: in
        --
        exit: the model answered
        steps: 3, calls: enter 2, open 1
        state: {"is_open":true}
    "#]],
    )
    .await;
    let offered: Vec<Vec<String>> = model
        .requests()
        .iter()
        .map(|request| request.tools.iter().map(|tool| tool.name.clone()).collect())
        .collect();
    assert_eq!(offered, [["open"], ["enter"], ["enter"]]);
}

/// An error of the run, which continues from there.
#[tokio::test]
async fn dynamic_toolset_that_fails() {
    let set = |works: bool| {
        Toolset::dynamic_with("remote", move |_| async move {
            if works { Ok(tools()) } else { Err("no route to host".into()) }
        })
    };
    let agent = Agent::builder(script("assistant: > c1 fetch(id=1)\nassistant: done"));
    let ended = play(&agent.clone().tools(set(false)).build().unwrap(), "go", |run| run).await;
    expect![[r#"
        user:      go
        --
        error: run 'run' failed after step 0: tools of the step could not be listed: toolset "remote" failed to list its tools: no route to host
        steps: 0
    "#]].assert_eq(&shown(&ended));
    let works = agent.tools(set(true)).build().unwrap();
    let run = stepfold_agent_loop::Run::load(&works, &ended.unwrap_err().into_run().to_json()).unwrap();
    let outcome = go_on(run, |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.usage()), (&Exit::Text, Usage::default()));
}
