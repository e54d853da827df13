//! What an event stores of an outcome: what its messages and writes say is not stored again, and comes back.

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{FinishReason, Message, Usage};
use stepfold_agent_loop::state_core::state::{Handler, Schema};
use stepfold_agent_loop::tools::{Effect, ResultSource};
use stepfold_agent_loop::{Agent, AgentBuilder, Event, FeedError, HookAction, HookContext, Run, RunEvent};

use super::kit::*;

fn counting() -> AgentBuilder {
    let schema =
        Schema::builder().key::<i64>("n").handler(Handler::sum()).key::<i64>("temp:n").build().unwrap();
    let count =
        tool("count", |_| Ok(json!(1))).output_to_state("n", ResultSource::Whole).effect(Effect::Pure);
    let note =
        tool("note", |_| Ok(json!(2))).output_to_state("temp:n", ResultSource::Whole).effect(Effect::Pure);
    Agent::builder(script("assistant: > c1 count()   > c2 note()\nassistant: done"))
        .schema(schema)
        .tools([count.build().unwrap(), note.build().unwrap()])
}

/// A run before the first event of this name, and that event.
async fn at(agent: &Agent, name: &str) -> (Run, Event) {
    let mut seen = Vec::new();
    let mut run = Run::new(agent, "go", "run").unwrap();
    run.clone().resume().observe(&mut seen).await.unwrap();
    for event in seen.iter().filter_map(RunEvent::committed) {
        if event.name() == name {
            return (run, event.clone());
        }
        run.commit(event.clone()).unwrap();
    }
    panic!("{name}: no such event")
}

fn check(event: &Event, expected: Expect) {
    let mut kind = serde_json::to_value(&event.kind).unwrap();
    kind.sort_all_objects();
    expected.assert_eq(&kind.to_string());
    let again: Event = serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap();
    assert_eq!((&again, again.outcomes()), (event, event.outcomes()));
}

#[tokio::test]
async fn what_the_event_says_is_not_stored_again() {
    let (_, event) = at(&counting().build().unwrap(), "answered").await;
    check(
        &event,
        expect![[r#"{"answered":[{"outcome":{},"writes":[0,1]},{"outcome":{},"place":1,"writes":[1,1]}]}"#]],
    );
    let outcomes = event.outcomes();
    let texts = outcomes.iter().map(|item| item.outcome.call().unwrap().result.text());
    assert_eq!(texts.collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(outcomes[1].outcome.delta().iter().next().unwrap().key(), "temp:n");
}

#[tokio::test]
async fn writes_that_are_not_stored_are_of_no_outcome() {
    let (_, mut event) = at(&counting().build().unwrap(), "answered").await;
    event.retain_writes(|write| !write.key().starts_with("temp:"));
    check(&event, expect![[r#"{"answered":[{"outcome":{},"writes":[0,1]},{"outcome":{},"place":1}]}"#]]);
    let writes = event.outcomes().into_iter().map(|item| item.outcome.delta().len());
    assert_eq!(writes.collect::<Vec<_>>(), [1, 0]);
}

/// What hooks wrote before a call is not of its outcome.
#[tokio::test]
async fn what_others_add_is_not_of_the_outcome() {
    let agent = counting()
        .before_tool(|context: HookContext| async move { HookAction::proceed().write(&context, "n", 10) });
    let (_, event) = at(&agent.build().unwrap(), "answered").await;
    check(
        &event,
        expect![[
            r#"{"answered":[{"outcome":{"delta":[{"handler":"sum","key":"n","value":1}],"result":{"call_id":"c1","name":"count","value":1}}}]}"#
        ]],
    );
    assert_eq!(event.outcomes()[0].outcome.call().unwrap().result.text(), "1");
}

#[tokio::test]
async fn calls_that_do_not_run_are_answered_with_the_reply() {
    let cut = ending(script(""), "assistant: > c1 count()", FinishReason::Length, Usage::default());
    let agent =
        Agent::builder(cut).tools([tool("count", |_| Ok(json!(1))).build().unwrap()]).build().unwrap();
    let (_, event) = at(&agent, "replied").await;
    check(
        &event,
        expect![[
            r#"{"replied":{"fates":[[0,{"answer":{"status":{"failed":"not_run"},"tries":0}}]],"finish_reason":"length"}}"#
        ]],
    );
}

#[tokio::test]
async fn an_event_that_lacks_what_it_does_not_store_is_refused() {
    let (run, whole) = at(&counting().build().unwrap(), "answered").await;
    let (messages, delta) = whole.clone().take_content();
    let others: Vec<_> = messages.iter().map(|_| Message::user("what?").into()).collect();
    for (messages, delta) in [
        (Vec::new(), delta.clone()),
        (others, delta.clone()),
        (messages.clone(), delta.into_iter().take(1).collect()),
    ] {
        let lacking = whole.clone().with_content(messages, delta);
        assert_eq!(lacking.outcomes(), []);
        let error = run.clone().commit(lacking).unwrap_err();
        assert!(matches!(error, FeedError::Incomplete { event: "answered" }), "{error}");
    }
    run.clone().commit(whole).unwrap();
}
