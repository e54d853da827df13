//! An approved call runs with the values of the state that were shown, wherever and whenever the decision comes.

use serde_json::json;
use stepfold_runner::agent_loop::{AgentBuilder, Decision, DecisionError, Exit, Input, Pause};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Approval, Effect};

use crate::world::{World, each_store, id_at, process};

const SCRIPT: &str = "assistant: > c1 pay(euro=5)\nassistant: done";

/// `pay` is fed with how many payments there were in all sessions, and with a note that is never stored.
fn agent(world: &World) -> AgentBuilder {
    let properties = json!({
        "euro": {"type": "integer"},
        "payments": {"type": "integer"},
        "note": {"type": "string"},
    });
    let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always);
    let pay = pay.parameters(json!({"type": "object", "properties": properties}));
    let pay = pay.input_from_state("app:n", "payments").input_from_state("temp:note", "note");
    world.agent(SCRIPT).tools(vec![pay.build().unwrap()])
}

/// Another session makes so many payments.
async fn others_pay(world: &World, session: &str) {
    let look = world.agent("assistant: > c1 save()\nassistant: done");
    let runner = world.runner(look.build().unwrap()).build();
    runner.session("bob", session).await.unwrap().run("save").await.unwrap();
}

/// What is shown of the pending request.
async fn shown(session: &SessionHandle) -> String {
    let pending = session.pending().await.unwrap();
    let mut shown = serde_json::to_value(&pending[0].inputs_from_state).unwrap();
    shown.sort_all_objects();
    shown.to_string()
}

fn payments(number: u64) -> String {
    format!(r#"[{{"key":"app:n","parameter":"payments","value":{number}}}]"#)
}

fn paid(world: &World) -> Vec<String> {
    world.trace.take().into_iter().filter(|line| line.starts_with("pay")).collect()
}

const PAUSED: Exit = Exit::Paused(Pause::Approval);

/// Another session changes a shared value between the question and the decision, again and again.
#[test]
fn after_another_session_wrote() {
    each_store(|world| {
        process(async {
            others_pay(world, "b1").await;
            world.session(agent(world)).await.run("pay").await.unwrap();
        });
        let mut ids = Vec::new();
        for number in [1, 2, 3] {
            process(async {
                let session = world.session(agent(world)).await;
                assert_eq!(shown(&session).await, payments(number));
                let id = id_at(&session, "c1").await;
                others_pay(world, &format!("b{}", number + 1)).await;
                let outcome = world.session(agent(world)).await;
                let outcome = outcome.resume().decide(&*id, Decision::Approve).await.unwrap();
                assert_eq!(outcome.exit(), &PAUSED);
                ids.push(id);
            });
        }
        assert!(paid(world).is_empty());
        process(async {
            let session = world.session(agent(world)).await;
            assert_eq!(shown(&session).await, payments(4));
            // An earlier decision was about what was shown then.
            let error = session.resume().decide(&*ids[0], Decision::Approve).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(*error, DecisionError::AlreadyDecided { .. }), "{error:?}");
            let id = id_at(&session, "c1").await;
            let outcome = session.resume().decide(id, Decision::Approve).await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Text);
            assert_eq!(paid(world), [r#"pay{"euro":5,"payments":4} stalls/ada/s1/i2/1/c1"#]);
            session.replay(&agent(world).build().unwrap()).await.unwrap();
        });
    });
}

/// In the process that has asked, too.
#[test]
fn after_another_session_wrote_in_the_same_process() {
    each_store(|world| {
        process(async {
            let session = world.session(agent(world)).await;
            others_pay(world, "b1").await;
            session.run("pay").await.unwrap();
            let before = shown(&session).await;
            others_pay(world, "b2").await;
            let id = id_at(&session, "c1").await;
            session.resume().decide(id, Decision::Approve).await.unwrap();
            // The process has the values that it has shown.
            assert_eq!(before, payments(1));
            assert_eq!(paid(world), [r#"pay{"euro":5,"payments":1} stalls/ada/s1/i2/1/c1"#]);
            session.replay(&agent(world).build().unwrap()).await.unwrap();
        });
    });
}

/// A value that is never stored is gone after a restart: the call without it is not approved.
#[test]
fn after_a_restart_without_what_is_not_stored() {
    each_store(|world| {
        let id = process(async {
            let session = world.session(agent(world)).await;
            let input = Input::new().say("pay").with_values(json!({"temp:note": "the-secret"}));
            session.run(input).await.unwrap();
            let shown = shown(&session).await;
            assert!(shown.contains("hidden") && !shown.contains("the-secret"), "{shown}");
            id_at(&session, "c1").await
        });
        process(async {
            let session = world.session(agent(world)).await;
            let outcome = session.resume().decide(&*id, Decision::Approve).await.unwrap();
            assert_eq!((outcome.exit(), paid(world).len()), (&PAUSED, 0));
            assert_eq!(shown(&session).await, "[]");
            let id = id_at(&session, "c1").await;
            session.resume().decide(id, Decision::Approve).await.unwrap();
            assert_eq!(paid(world), [r#"pay{"euro":5} stalls/ada/s1/i1/1/c1"#]);
            session.replay(&agent(world).build().unwrap()).await.unwrap();
        });
    });
}

/// A fork and a rewound session ask for themselves, with the values that they have.
#[test]
fn after_a_fork_and_after_a_rewind() {
    each_store(|world| {
        process(async {
            others_pay(world, "b1").await;
            let session = world.session(agent(world)).await;
            session.run("pay").await.unwrap();
            let id = id_at(&session, "c1").await;
            let fork = session.fork("fork", None).await.unwrap();
            others_pay(world, "b2").await;
            let of_fork = id_at(&fork, "c1").await;
            let outcome = fork.resume().decide(of_fork, Decision::Approve).await.unwrap();
            assert_eq!((outcome.exit(), paid(world).len()), (&PAUSED, 0));
            assert_eq!(shown(&fork).await, payments(2));
            let again = id_at(&fork, "c1").await;
            fork.resume().decide(again, Decision::Approve).await.unwrap();
            assert_eq!(paid(world), [r#"pay{"euro":5,"payments":2} stalls/ada/fork/i2/1/c1"#]);
            session.rewind(0).await.unwrap();
            session.run("pay").await.unwrap();
            assert_eq!(shown(&session).await, payments(3));
            let error = session.resume().decide(&*id, Decision::Approve).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Decision { .. }), "{error:?}");
            for session in [&session, &fork] {
                session.replay(&agent(world).build().unwrap()).await.unwrap();
            }
        });
    });
}
