//! Decisions about calls: at once or later, in this process or in another one.

use expect_test::expect;
use serde_json::json;
use stepfold_runner::agent_loop::{AgentBuilder, Decision, Decisions, Exit, Pause};
use stepfold_runner::session_scopes::EventRange;
use stepfold_runner::{RunnerError, RunnerErrorKind};
use stepfold_tools::{Approval, Effect};

use crate::world::{World, each_store, id_at, paths, process, shown};

const SCRIPT: &str = "\
assistant: > c1 send(to=\"Bob\")  > c2 look()  > c3 send(to=\"Eve\")
assistant: > c4 send(to=\"Dan\")
assistant: done
assistant: you are welcome
";

fn agent(world: &World) -> AgentBuilder {
    let send = world.tool("send", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    let look = world.tool("look", Effect::Pure).build().unwrap();
    world.agent(SCRIPT).tools(vec![send, look])
}

/// A process that has asked, and is gone.
fn asked(world: &World) {
    process(async {
        let outcome = world.session(agent(world)).await.run("send letters").await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
        world.trace.take();
    });
}

#[test]
fn some_are_decided_now_and_some_later() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let pending = session.pending().await.unwrap();
            assert_eq!(paths(&pending), ["c1", "c3"]);
            assert_eq!(pending[1].call.arguments.to_text(), r#"{"to":"Eve"}"#);
            let id = &*pending[1].id;
            let outcome = session.resume().decide(id, Decision::reject("not to Eve")).await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
            assert!(world.trace.take().is_empty(), "no call runs before all decisions are there");
        });
        process(async {
            let session = world.session(agent(world)).await;
            assert_eq!(session.pending().await.unwrap().len(), 1);
            let changed = Decision::modify(json!({"to": "Rob"}));
            let outcome = session.resume().decide(id_at(&session, "c1").await, changed).await.unwrap();
            assert_eq!(paths(&outcome.pending()), ["c4"]);
            session.resume().decide(&*outcome.pending()[0].id, Decision::Approve).await.unwrap();
            expect![[r#"
                user:      send letters
                assistant: > c1 send(to="Bob")   > c2 look()   > c3 send(to="Eve")
                tool:      @{"tool_result": {"call_id": "c1", "name": "send", "parts": [{"text": "send is done"}, {"text": "\n[The arguments were changed before the call ran, to {\"to\":\"Rob\"}]"}]}}
                tool c2:   look is done
                tool c3!:  tool 'send' not run: the call was rejected: not to Eve
                assistant: > c4 send(to="Dan")
                tool c4:   send is done
                assistant: done
                app:n = 3
                log = ["send","look","send"]
                n = 3
                user:n = 3
            "#]].assert_eq(&shown(&session).await);
            expect![[r#"
                send{"to":"Rob"} stalls/ada/s1/i1/1/c1
                look stalls/ada/s1/i1/1/c2
                the model is asked
                send{"to":"Dan"} stalls/ada/s1/i1/2/c4
                the model is asked"#]]
            .assert_eq(&world.trace.take().join("\n"));
        });
    });
}

#[test]
fn all_decisions_are_one_commit() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let before = session.read(EventRange::None).await.unwrap().version;
            let pending = session.pending().await.unwrap();
            let both: Decisions = pending.into_iter().map(|asked| (asked.id, Decision::Approve)).collect();
            session.resume().decide_all(both).await.unwrap();
            let events = session.read(EventRange::AfterVersion(before)).await.unwrap().events;
            let kinds: Vec<_> = events.iter().map(|event| event.event.kind.as_str()).collect();
            assert_eq!(kinds, ["decided", "started", "answered", "answered", "answered", "replied"]);
            assert_eq!(events[1].event.actions.started, ["c1", "c3"]);
            assert_eq!(events[0].event.author.as_str(), "user");
        });
    });
}

#[test]
fn a_message_waits_until_all_is_decided() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let error = session.run("and thanks").await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Pending { pending, .. }, .. } = &error else {
                panic!("{error:?}")
            };
            let known: Vec<_> = session.pending().await.unwrap().into_iter().map(|asked| asked.id).collect();
            assert_eq!(pending, &known);
            let words = format!(
                "session stalls/ada/s1: the run waits for decisions about {}; decide with `resume()`, or cancel the run with \
                 `abandon()`",
                known.join(", "),
            );
            assert_eq!(error.to_string(), words);
            // To resume without a decision changes nothing.
            let version = session.read(EventRange::None).await.unwrap().version;
            let outcome = session.resume().await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
            assert_eq!(session.read(EventRange::None).await.unwrap().version, version);
        });
    });
}

#[test]
fn what_waits_can_be_abandoned() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let outcome = session.abandon().await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Cancelled);
            outcome.transcript().check().unwrap();
            assert!(session.pending().await.unwrap().is_empty());
            let nothing = session.abandon().await.unwrap_err();
            assert!(matches!(nothing.kind, RunnerErrorKind::NothingToResume), "{nothing:?}");
            assert!(matches!(
                session.resume().await,
                Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. })
            ));
            let outcome = session.run("then something else").await.unwrap();
            assert_eq!(paths(&outcome.pending()), ["c4"]);
            expect![[r#"
                user:      send letters
                assistant: > c1 send(to="Bob")   > c2 look()   > c3 send(to="Eve")
                tool c1!:  tool 'send' not started: the run was cancelled
                tool c2!:  tool 'look' not started: the run was cancelled
                tool c3!:  tool 'send' not started: the run was cancelled
                user:      then something else
                assistant: > c4 send(to="Dan")
            "#]]
            .assert_eq(&outcome.transcript().to_string());
            assert!(world.trace.take().iter().all(|line| !line.starts_with("send")));
        });
    });
}

/// A decision is about a call that is stored. It does not decide a later call of the model under a name
/// that was guessed, or known from another run.
#[test]
fn a_decision_is_about_a_stored_call() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let pending = session.pending().await.unwrap();
            let early = session
                .resume()
                .decide(&*pending[0].id, Decision::Approve)
                .decide(&*pending[1].id, Decision::Approve)
                .decide("c4", Decision::Approve)
                .await;
            let error = early.unwrap_err();
            let words = format!(
                "session stalls/ada/s1: invalid decision: no pending approval with id `c4`; pending: {}, {}",
                pending[0].id, pending[1].id,
            );
            assert_eq!(error.to_string(), words);
            assert!(world.trace.take().is_empty());
            assert_eq!(session.pending().await.unwrap(), pending);
        });
    });
}

#[test]
fn arguments_that_do_not_fit_are_refused_and_can_be_put_right() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let (first, second) = (id_at(&session, "c1").await, id_at(&session, "c3").await);
            let wrong = session.resume().decide(&*first, Decision::modify(json!([1]))).await.unwrap_err();
            assert!(matches!(wrong.kind, RunnerErrorKind::Decision { .. }), "{wrong:?}");
            assert_eq!(session.pending().await.unwrap().len(), 2);
            let right = session.resume().decide(first, Decision::Approve).decide(second, Decision::Approve);
            assert_eq!(paths(&right.await.unwrap().pending()), ["c4"]);
        });
    });
}
