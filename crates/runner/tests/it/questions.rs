//! Questions of tools to the user: stored with the session, answered in any process, in a fork, after a rewind; once each.

use serde_json::json;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, AskReason, Decision, DecisionError, Exit, Pause};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Effect, InputRequest, InputResponse, Tool, ToolContext, ToolError};

use super::world::{Trace, World, each_store, id_at, process};

const PAUSED: Exit = Exit::Paused(Pause::Approval);

/// Asks for a seat, and notes what it books, with its idempotency key.
fn agent(trace: &Trace, effect: Effect) -> AgentBuilder {
    let trace = trace.clone();
    let book = move |context: ToolContext| {
        let trace = trace.clone();
        async move {
            let schema =
                json!({"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]});
            let seat =
                InputRequest::new("seat", "Window or aisle?").schema(schema).state(json!({"held": "12A"}));
            let InputResponse::Accept(answer) = context.ask(seat)? else {
                return Err(ToolError::permanent("no seat"));
            };
            let held = context.answered()[0].request.state.clone().unwrap_or_default();
            trace.note(format!(
                "booked {} {} under {}",
                answer["seat"],
                held["held"],
                context.idempotency_key()
            ));
            Ok::<_, ToolError>("booked")
        }
    };
    let model = Script::parse("assistant: > c1 book()\nassistant: done\nassistant: again").unwrap();
    Agent::builder(model).tools([Tool::new("book", "Books.", book).effect(effect).build().unwrap()])
}

fn seat(seat: &str) -> Decision {
    Decision::modify(json!({"seat": seat}))
}

fn booked(trace: &Trace) -> Vec<String> {
    trace.take().into_iter().filter(|line| line.starts_with("booked")).collect()
}

async fn ask(world: &World, trace: &Trace) -> SessionHandle {
    let session = world.session(agent(trace, Effect::AtMostOnce)).await;
    assert_eq!(session.run("to Rome").await.unwrap().exit(), &PAUSED);
    session
}

#[test]
fn a_question_is_answered_after_a_restart_once() {
    each_store(|world| {
        let trace = Trace::default();
        process(async { drop(ask(world, &trace).await) });
        let id = process(async {
            let session = world.session(agent(&trace, Effect::AtMostOnce)).await;
            let request = session.pending().await.unwrap().remove(0);
            assert_eq!(
                (request.reason, request.message.as_deref()),
                (AskReason::Input, Some("Window or aisle?"))
            );
            // A message does not get past it.
            let error = session.run("hello?").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Pending { .. }), "{error}");
            let wrong = session.resume().decide(&*request.id, Decision::Approve).await.unwrap_err();
            assert!(wrong.to_string().contains("seat"), "{wrong}");
            request.id
        });
        process(async {
            let session = world.session(agent(&trace, Effect::AtMostOnce)).await;
            let outcome = session.resume().decide(&*id, seat("aisle")).by("ada").await.unwrap();
            assert_eq!(outcome.text(), "done");
            let recorded = session.decisions().await.unwrap().remove(0);
            assert_eq!((recorded.by.as_deref(), recorded.decision), (Some("ada"), seat("aisle")));
        });
        assert_eq!(booked(&trace).len(), 1);
    });
}

#[test]
fn a_fork_has_a_question_of_its_own() {
    each_store(|world| {
        let trace = Trace::default();
        process(async {
            let session = ask(world, &trace).await;
            let fork = session.fork("fork", None).await.unwrap();
            let (here, there) = (id_at(&session, "c1/seat").await, id_at(&fork, "c1/seat").await);
            assert_ne!(here, there);
            let error = fork.resume().decide(&*here, seat("aisle")).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = &error else {
                panic!("{error}")
            };
            assert!(matches!(**error, DecisionError::NotPending { .. }), "{error}");
            assert_eq!(session.resume().decide(here, seat("aisle")).await.unwrap().text(), "done");
            assert_eq!(fork.resume().decide(there, seat("window")).await.unwrap().text(), "done");
        });
        let booked = booked(&trace);
        let keys: Vec<&str> = booked.iter().filter_map(|line| line.split(" under ").nth(1)).collect();
        assert!(keys.len() == 2 && keys[0] != keys[1], "{booked:?}");
    });
}

/// A rewind ends the run that asked. What the same call asks in the next one is another question.
#[test]
fn after_a_rewind_an_old_answer_counts_for_nothing() {
    each_store(|world| {
        let trace = Trace::default();
        process(async {
            let session = ask(world, &trace).await;
            let old = id_at(&session, "c1/seat").await;
            session.rewind(0).await.unwrap();
            assert!(session.pending().await.unwrap().is_empty());
            assert_eq!(session.run("to Rome").await.unwrap().exit(), &PAUSED);
            let new = id_at(&session, "c1/seat").await;
            assert_ne!(old, new);
            let error = session.resume().decide(old, seat("aisle")).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Decision { .. }), "{error}");
            assert_eq!(session.resume().decide(new, seat("window")).await.unwrap().text(), "done");
        });
        let booked = booked(&trace);
        assert!(booked.len() == 1 && booked[0].starts_with("booked \"window\" \"12A\""), "{booked:?}");
    });
}

/// A recorded question replays, and a declined one is the tool's to take.
#[test]
fn a_declined_question_replays() {
    each_store(|world| {
        let trace = Trace::default();
        process(async {
            let session = ask(world, &trace).await;
            let id = id_at(&session, "c1/seat").await;
            let outcome = session.resume().decide(id, Decision::reject("I stand")).await.unwrap();
            assert!(outcome.transcript().to_string().contains("no seat"), "{}", outcome.transcript());
            let agent = agent(&trace, Effect::AtMostOnce).build().unwrap();
            assert_eq!(session.replay(&agent).await.unwrap(), 1);
        });
        assert_eq!(booked(&trace), Vec::<String>::new());
    });
}
