//! A decision that comes twice: from two tasks, from two processes, after a retry, late, and elsewhere.

use serde_json::json;
use stepfold_runner::agent_loop::{AgentBuilder, Decision, DecisionError};
use stepfold_runner::session_scopes::{DeleteSession, SessionStore};
use stepfold_runner::{DecisionReceipt, ResumeRun, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Approval, Effect};

use crate::world::{Fault, World, each_store, id_at, process, threads};

const SCRIPT: &str = "\
assistant: > c1 pay(euro=5)
assistant: > c2 pay(euro=7)
assistant: done
assistant: you are welcome
";

fn agent(world: &World) -> AgentBuilder {
    let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    world.agent(SCRIPT).tools(vec![pay])
}

/// The same agent, which asks once more in the run after that.
fn again(world: &World) -> AgentBuilder {
    let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
    world
        .agent(&SCRIPT.replace("assistant: you are welcome", "assistant: > c3 pay(euro=9)\nassistant: done"))
        .tools(vec![pay])
}

/// The session of a worker with a name of its own.
async fn session_of(world: &World, worker: &str) -> SessionHandle {
    let runner = world.runner(agent(world).build().unwrap()).worker(worker).unwrap().build();
    runner.session("ada", "s1").await.unwrap()
}

/// A process that has asked, and is gone. Gives the id of the request.
fn asked(world: &World) -> String {
    process(async {
        let session = world.session(agent(world)).await;
        session.run("pay").await.unwrap();
        id_at(&session, "c1").await
    })
}

/// The payments since the last look.
fn paid(world: &World) -> Vec<String> {
    world.trace.take().into_iter().filter(|line| line.starts_with("pay")).collect()
}

const FIRST: &str = r#"pay{"euro":5} stalls/ada/s1/i1/1/c1"#;

fn approve(session: &SessionHandle, id: &str, by: &str) -> ResumeRun {
    session.resume().decide(id, Decision::Approve).by(by)
}

/// Has it decided, and waits for what comes of it.
async fn settled(resume: ResumeRun) -> Result<DecisionReceipt, RunnerError> {
    let (receipt, invocation) = resume.submit().await?;
    invocation.await?;
    Ok(receipt)
}

#[track_caller]
fn assert_already(error: &RunnerError, by_whom: &str) {
    let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
        panic!("{error:?}")
    };
    let DecisionError::AlreadyDecided { by, decision, .. } = &**error else { panic!("{error:?}") };
    assert_eq!((by.as_deref(), &**decision), (Some(by_whom), &Decision::Approve));
}

/// One of two decisions counts, and the other one hears who made it.
#[track_caller]
fn assert_one_of(left: Result<DecisionReceipt, RunnerError>, right: Result<DecisionReceipt, RunnerError>) {
    match (left, right) {
        (Ok(receipt), Err(error)) => {
            assert_eq!(receipt.by.as_deref(), Some("left"));
            assert_already(&error, "left");
        }
        (Err(error), Ok(receipt)) => {
            assert_eq!(receipt.by.as_deref(), Some("right"));
            assert_already(&error, "right");
        }
        both => panic!("{both:?}"),
    }
}

#[test]
fn from_two_tasks_at_the_same_time() {
    each_store(|world| {
        let id = asked(world);
        threads(async {
            let session = world.session(agent(world)).await;
            let left = tokio::spawn(settled(approve(&session, &id, "left")));
            let right = tokio::spawn(settled(approve(&session, &id, "right")));
            assert_one_of(left.await.unwrap(), right.await.unwrap());
            assert_eq!(paid(world), [FIRST]);
        });
    });
}

#[test]
fn from_two_runners_at_the_same_time() {
    each_store(|world| {
        let id = asked(world);
        threads(async {
            let left = approve(&session_of(world, "worker-left").await, &id, "left");
            let right = approve(&session_of(world, "worker-right").await, &id, "right");
            let (left, right) = (tokio::spawn(settled(left)), tokio::spawn(settled(right)));
            assert_one_of(left.await.unwrap(), right.await.unwrap());
            assert_eq!(paid(world), [FIRST]);
        });
    });
}

/// The same key and content give the first receipt: while the run waits for something else, and after it has ended, in
/// whatever process. Nothing runs again.
#[test]
fn a_retry_gets_the_first_receipt() {
    each_store(|world| {
        let id = asked(world);
        let click = |session: &SessionHandle| approve(session, &id, "ada").idempotency_key("click-1");
        let first = process(async { settled(click(&world.session(agent(world)).await)).await.unwrap() });
        assert_eq!((&first.requests[..], first.by.as_deref()), (&[id.clone()][..], Some("ada")));
        assert_eq!(paid(world), [FIRST]);
        process(async {
            let session = world.session(agent(world)).await;
            assert_eq!(settled(click(&session)).await.unwrap(), first, "while it waits for c2");
            let second = id_at(&session, "c2").await;
            settled(approve(&session, &second, "ada")).await.unwrap();
            assert_eq!(paid(world), [r#"pay{"euro":7} stalls/ada/s1/i1/2/c2"#]);
            assert_eq!(settled(click(&session)).await.unwrap(), first, "after the end");
        });
        process(async {
            let session = world.session(agent(world)).await;
            session.run("thanks").await.unwrap();
            assert_eq!(settled(click(&session)).await.unwrap(), first, "after a later run");
            assert!(paid(world).is_empty());
        });
    });
}

/// Whatever else is decided about the same request is refused, by an error that says who decided what.
#[test]
fn with_other_content() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            settled(approve(&session, &id, "ada").idempotency_key("click-1")).await.unwrap();
            for is_ended in [false, true] {
                let other = Decision::modify(json!({"euro": 5000}));
                let other = || session.resume().decide(&*id, other.clone()).by("bob");
                let error = settled(other()).await.unwrap_err();
                assert_already(&error, "ada");
                let words = format!(
                    "session stalls/ada/s1: invalid decision: approval `{id}` is already decided by ada: \
                     approved, at 2023-11-14T22:13:20.000000Z"
                );
                assert_eq!(error.to_string(), words);
                let error = settled(other().idempotency_key("click-2")).await.unwrap_err();
                assert_already(&error, "ada");
                let error = settled(other().idempotency_key("click-1")).await.unwrap_err();
                let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                    panic!("{error:?}")
                };
                assert!(matches!(*error, DecisionError::KeyReused { .. }), "{error:?}");
                if !is_ended {
                    let second = id_at(&session, "c2").await;
                    settled(session.resume().decide(second, Decision::reject("no")).by("eve")).await.unwrap();
                }
            }
            assert_eq!(paid(world), [FIRST]);
        });
    });
}

/// A key is one click in the whole session: it decides nothing else in a later run, and its retry gets its own receipt.
#[test]
fn a_key_holds_over_runs() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            settled(approve(&session, &id, "ada").idempotency_key("click-1")).await.unwrap();
            let second = id_at(&session, "c2").await;
            settled(approve(&session, &second, "ada")).await.unwrap();

            session.rewind(0).await.unwrap();
            session.run("pay").await.unwrap();
            let third = id_at(&session, "c1").await;
            // What was rewound is not a decision of this history: the key is free.
            settled(approve(&session, &third, "ada").idempotency_key("click-1")).await.unwrap();
            let fourth = id_at(&session, "c2").await;
            settled(approve(&session, &fourth, "ada").idempotency_key("click-2")).await.unwrap();
        });
        process(async {
            let session = world.session(again(world)).await;
            session.run("and once more").await.unwrap();
            let later = session.pending().await.unwrap()[0].id.clone();
            paid(world);
            let error =
                settled(approve(&session, &later, "ada").idempotency_key("click-2")).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, at, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(*error, DecisionError::KeyReused { .. }) && at.is_some(), "{error:?}");
            assert!(paid(world).is_empty());
            assert_eq!(session.pending().await.unwrap()[0].id, later, "the request still waits");

            let made = session.decisions().await.unwrap();
            let of_key = made.iter().find(|made| made.idempotency_key.as_deref() == Some("click-2")).unwrap();
            let retry = approve(&session, &of_key.request, "ada").idempotency_key("click-2");
            let receipt = settled(retry).await.unwrap();
            assert_eq!((receipt.version, &receipt.requests), (of_key.version, &vec![of_key.request.clone()]));
            settled(approve(&session, &later, "ada").idempotency_key("click-3")).await.unwrap();
            assert_eq!(paid(world).len(), 1);
        });
    });
}

/// Who decided is told by the receipt, and is not part of what a key stands for.
#[test]
fn a_repeat_by_somebody_else_gets_the_receipt_that_names_the_first() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let first = settled(approve(&session, &id, "ada").idempotency_key("click-1")).await.unwrap();
            let repeat = approve(&session, &id, "bob").idempotency_key("click-1").start().unwrap();
            repeat.outcome().await.unwrap();
            assert_eq!(repeat.receipt(), Some(first));
            assert_eq!(repeat.receipt().unwrap().by.as_deref(), Some("ada"));
        });
    });
}

/// A rewind ends the run that asked. What is asked after that is something else, though its call has the same id.
#[test]
fn after_a_rewind() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let click = || approve(&session, &id, "ada").idempotency_key("click-1");
            settled(click()).await.unwrap();
            assert_eq!(paid(world), [FIRST]);
            session.rewind(0).await.unwrap();
            let error = settled(click()).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::NothingToResume), "{error:?}");

            session.run("pay").await.unwrap();
            let anew = id_at(&session, "c1").await;
            assert_ne!(anew, id);
            let error = settled(click()).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(*error, DecisionError::NotPending { .. }), "{error:?}");
            assert_eq!(id_at(&session, "c1").await, anew, "the request still waits");
            assert!(paid(world).is_empty());
        });
    });
}

/// A fork knows what was decided before it, and decides by itself about what waited then.
#[test]
fn in_a_fork() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let before = session.fork("before", None).await.unwrap();
            let click = |session| approve(session, &id, "ada").idempotency_key("click-1");
            let first = settled(click(&session)).await.unwrap();
            assert_eq!(paid(world), [FIRST]);

            let after = session.fork("after", None).await.unwrap();
            assert_eq!(settled(click(&after)).await.unwrap(), first);
            assert_already(&settled(approve(&after, &id, "bob")).await.unwrap_err(), "ada");
            assert!(paid(world).is_empty());

            // A decision for the original does not apply to the fork.
            let error = settled(click(&before)).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(*error, DecisionError::NotPending { .. }), "{error:?}");
            let own = id_at(&before, "c1").await;
            settled(approve(&before, &own, "ada")).await.unwrap();
            assert_eq!(paid(world), [r#"pay{"euro":5} stalls/ada/before/i1/1/c1"#]);
            assert_already(&settled(approve(&before, &own, "bob")).await.unwrap_err(), "ada");
            assert!(paid(world).is_empty());
        });
    });
}

/// A session that was made again has the same name, and none of the requests.
#[test]
fn after_the_session_was_made_again() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let click = |session| approve(session, &id, "ada").idempotency_key("click-1");
            settled(click(&session)).await.unwrap();
            world.store().delete(DeleteSession::new(session.key().clone())).await.unwrap();
            let made = world.session(agent(world)).await;
            for session in [&session, &made] {
                let error = settled(click(session)).await.unwrap_err();
                assert!(matches!(error.kind, RunnerErrorKind::NothingToResume), "{error:?}");
            }
            paid(world);
            made.run("pay").await.unwrap();
            assert_ne!(id_at(&made, "c1").await, id);
            for session in [&session, &made] {
                let error = settled(click(session)).await.unwrap_err();
                let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                    panic!("{error:?}")
                };
                assert!(matches!(*error, DecisionError::NotPending { .. }), "{error:?}");
            }
            assert!(paid(world).is_empty());
        });
    });
}

/// A fork that was made again under the id of a deleted one asks again, though it has the same call.
#[test]
fn in_a_fork_that_was_made_again() {
    each_store(|world| {
        asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let fork = session.fork("fork", None).await.unwrap();
            let id = id_at(&fork, "c1").await;
            world.store().delete(DeleteSession::new(fork.key().clone())).await.unwrap();
            let again = session.fork("fork", None).await.unwrap();
            assert_ne!(id_at(&again, "c1").await, id);
            let error = settled(approve(&again, &id, "ada")).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
                panic!("{error:?}")
            };
            assert!(matches!(*error, DecisionError::NotPending { .. }), "{error:?}");
            assert!(paid(world).is_empty());
        });
    });
}

/// What was approved before a fork and has not run yet runs in the original and in the fork, under keys of their own: once
/// in each life. Both records replay.
#[test]
fn a_fork_made_after_a_decision_has_it() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            // The decision is stored, and then the store breaks.
            world.wire.faults([(1, Fault::Broken)]);
            approve(&session, &id, "ada").await.unwrap_err();
            paid(world);
            world.wire.faults([]);
            let fork = session.fork("fork", None).await.unwrap();
            for (session, key) in [(&session, FIRST), (&fork, &*FIRST.replace("s1", "fork"))] {
                assert!(session.pending().await.unwrap().is_empty());
                session.resume().await.unwrap();
                assert_eq!(paid(world), [key]);
                let second = id_at(session, "c2").await;
                settled(session.resume().decide(second, Decision::reject("no"))).await.unwrap();
                session.replay(&agent(world).build().unwrap()).await.unwrap();
            }
        });
    });
}

/// A run that is cancelled before it takes the decisions ends without them, and their caller gets an error.
#[test]
fn while_the_run_is_cancelled() {
    each_store(|world| {
        let id = asked(world);
        process(async {
            let session = world.session(agent(world)).await;
            let (decided, ()) = tokio::join!(approve(&session, &id, "left").submit(), async {
                session.running().expect("it is submitted").cancel();
            });
            let error = decided.map(|(receipt, _)| receipt).unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::NothingToResume), "{error:?}");
            assert!(session.pending().await.unwrap().is_empty(), "the run is cancelled");
            assert!(paid(world).is_empty());
        });
    });
}
