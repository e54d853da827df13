//! The orderly end of a runner, and what is left by one that had none.

use std::sync::Arc;
use std::time::Duration;

use stepfold_runner::agent_loop::{Agent, AgentBuilder, Exit, HookAction};
use stepfold_runner::session_scopes::{EventRange, SessionError};
use stepfold_runner::{Runner, RunnerBuilder, RunnerError, RunnerErrorKind, SessionHandle, WhenClaimed};
use stepfold_state_core::chat::Role;
use tokio::sync::Semaphore;

use crate::claims::{is_claimed, payer, until_it_pays};
use crate::world::{Echo, Fault, World, each_store, process, schema, threads};

const LONG: Duration = Duration::from_secs(600);

/// An agent that says what it hears, each time when the gate lets it.
fn echo(gate: &Arc<Semaphore>) -> AgentBuilder {
    let gate = Arc::clone(gate);
    Agent::builder(Echo).name("payer").schema(schema()).before_model(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(HookAction::proceed())
        }
    })
}

fn worker(world: &World, agent: AgentBuilder, name: &str) -> RunnerBuilder {
    world.runner(agent.build().unwrap()).worker(name).unwrap()
}

async fn session(runner: &Runner) -> SessionHandle {
    runner.session("ada", "s1").await.unwrap()
}

async fn said(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap().transcript();
    let users = stored.iter().filter(|message| message.role() == Role::User);
    users.map(|message| message.text().into_owned()).collect()
}

/// A process pays, and is killed while it does.
fn killed(world: &World, gate: &Arc<Semaphore>, name: &str) {
    process(async {
        let runner = worker(world, payer(world, gate), name).build();
        let _run = session(&runner).await.send("pay").await.unwrap();
        until_it_pays(world).await;
    });
}

#[test]
fn to_shut_down_waits_for_what_is_at_work_and_begins_nothing_more() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let runner = worker(world, echo(&gate), "one").build();
            let one = session(&runner).await;
            let first = one.send("one").await.unwrap();
            let second = one.send("two").await.unwrap();
            let (whole, ()) = tokio::join!(runner.shutdown(LONG), async { gate.add_permits(9) });
            assert!(whole);
            assert_eq!(first.await.unwrap().text(), "re: one");
            let refused = second.await.unwrap_err();
            assert!(
                matches!(
                    refused,
                    RunnerError { kind: RunnerErrorKind::ShutDown { is_accepted: true, .. }, .. }
                ),
                "{refused:?}"
            );
            for refused in [one.run("three").await, one.resume().await, one.abandon().await] {
                let Err(RunnerError { kind: RunnerErrorKind::ShutDown { is_accepted, .. }, .. }) = refused
                else {
                    panic!("{refused:?}")
                };
                assert!(!is_accepted);
            }
            assert!(!is_claimed(&one).await);
            // The next worker takes the accepted messages.
            let two = session(&worker(world, echo(&gate), "two").build()).await;
            assert_eq!(two.resume().await.unwrap().text(), "re: two");
            assert_eq!(said(&two).await, ["one", "two"]);
        });
    });
}

/// A worker continues with what another process has left in the inbox, and must not leave it in the middle.
#[test]
fn a_shutdown_waits_for_a_run_that_another_process_accepted() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let runner = worker(world, echo(&gate), "one").build();
            let one = session(&runner).await;
            let first = one.send("one").await.unwrap();
            let left_behind = async {
                let runner = worker(world, echo(&gate), "two").build();
                session(&runner).await.send("two").await.unwrap();
            };
            std::thread::scope(|threads| threads.spawn(|| process(left_behind)).join().unwrap());
            gate.add_permits(1);
            first.await.unwrap();
            assert!(one.running().is_some());
            while said(&one).await.len() < 2 {
                tokio::task::yield_now().await;
            }
            let (whole, ()) = tokio::join!(runner.shutdown(LONG), async { gate.add_permits(1) });
            assert!(whole);
            // It was over when the runner was.
            let last = one.last_run().await.unwrap().unwrap();
            assert_eq!(
                (last.exit(), last.transcript().last().unwrap().text()),
                (Some(&Exit::Text), "re: two".into())
            );
            assert!(!is_claimed(&one).await);
        });
    });
}

#[test]
fn what_takes_too_long_is_stopped_and_others_continue_at_once() {
    each_store(|world| {
        let gate = Arc::new(Semaphore::new(0));
        process(async {
            let runner = worker(world, payer(world, &gate), "one").build();
            let first = session(&runner).await.send("pay").await.unwrap();
            until_it_pays(world).await;
            assert!(!runner.shutdown(Duration::ZERO).await);
            let stopped = first.await.unwrap_err();
            assert!(
                matches!(
                    stopped,
                    RunnerError { kind: RunnerErrorKind::ShutDown { is_accepted: true, .. }, .. }
                ),
                "{stopped:?}"
            );
        });
        process(async {
            let runner = worker(world, payer(world, &gate), "two").when_claimed(WhenClaimed::Refuse).build();
            let outcome = session(&runner).await.resume().await.unwrap();
            assert_eq!((outcome.exit(), outcome.unknown_calls().len()), (&Exit::Text, 1));
        });
    });
}

#[test]
fn a_wait_for_another_worker_does_not_block_a_shutdown() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = worker(world, echo(&gate), "one").build();
            let first = session(&one).await.send("one").await.unwrap();
            let two = worker(world, echo(&gate), "two").build();
            let second = session(&two).await.send("two").await.unwrap();
            assert!(two.shutdown(LONG).await);
            let refused = second.await.unwrap_err();
            assert!(
                matches!(
                    refused,
                    RunnerError { kind: RunnerErrorKind::ShutDown { is_accepted: true, .. }, .. }
                ),
                "{refused:?}"
            );
            gate.add_permits(9);
            first.await.unwrap();
            session(&one).await.run("three").await.unwrap();
            assert_eq!(said(&session(&one).await).await, ["one", "two", "three"]);
        });
    });
}

#[test]
fn a_session_of_a_dead_worker_is_taken_over_at_once() {
    each_store(|world| {
        let gate = Arc::new(Semaphore::new(0));
        killed(world, &gate, "one");
        process(async {
            let runner = |dead: &'static str| {
                let runner = worker(world, payer(world, &gate), "two").when_claimed(WhenClaimed::Refuse);
                runner.worker_is_dead(move |worker| worker.as_str() == dead).build()
            };
            let refused = session(&runner("three")).await.resume().await;
            assert!(
                matches!(refused, Err(RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. })),
                "{refused:?}"
            );
            let outcome = session(&runner("one")).await.resume().await.unwrap();
            assert_eq!((outcome.text(), outcome.unknown_calls().len()), ("it is paid".into(), 1));
        });
    });
}

#[test]
fn a_worker_of_a_process_that_is_alive_is_not_dead() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let runner = || {
                let runner = world.runner(echo(&gate).build().unwrap()).process_worker();
                runner.when_claimed(WhenClaimed::Refuse).build()
            };
            let _first = session(&runner()).await.send("one").await.unwrap();
            let refused = session(&runner()).await.run("two").await;
            assert!(
                matches!(refused, Err(RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. })),
                "{refused:?}"
            );
        });
    });
}

#[test]
fn a_session_at_work_is_deleted_only_by_taking_it_over() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = worker(world, echo(&gate), "one").build();
            let two = |when| worker(world, echo(&gate), "two").when_claimed(when).build();
            let first = session(&one).await.send("one").await.unwrap();
            assert!(matches!(
                session(&one).await.delete(false).await,
                Err(RunnerError { kind: RunnerErrorKind::Busy { .. }, .. })
            ));
            let refused = session(&two(WhenClaimed::Refuse)).await.delete(false).await;
            assert!(
                matches!(refused, Err(RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. })),
                "{refused:?}"
            );
            session(&two(WhenClaimed::TakeOver)).await.delete(false).await.unwrap();
            gate.add_permits(1);
            let Err(RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. }) = first.await else {
                panic!("it has an outcome")
            };
            assert!(matches!(*source, SessionError::NotFound { .. }), "{source:?}");

            // Callers that may wait, wait for its end.
            let first = session(&one).await.send("one").await.unwrap();
            let waits = two(WhenClaimed::Wait { at_most: LONG });
            let (deleted, ()) = tokio::join!(async { session(&waits).await.delete(false).await }, async {
                gate.add_permits(1);
            });
            assert!(deleted.unwrap().events > 1);
            assert_eq!(first.await.unwrap().text(), "re: one");
        });
    });
}

#[test]
fn a_session_at_work_is_rewound_only_by_taking_it_over() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = worker(world, echo(&gate), "one").build();
            let two = |when| worker(world, echo(&gate), "two").when_claimed(when).build();
            let first = session(&one).await.send("one").await.unwrap();
            session(&two(WhenClaimed::TakeOver)).await.rewind(0).await.unwrap();
            assert!(!is_claimed(&session(&one).await).await);
            gate.add_permits(1);
            let lost = first.await.unwrap_err();
            assert!(matches!(lost.kind, RunnerErrorKind::ClaimLost { .. }), "{lost:?}");
        });
    });
}

/// The last event of a run releases the claim; one that never reaches the store does not.
#[test]
fn a_runner_that_is_stopped_in_its_last_append_gives_the_claim_up() {
    each_store(|world| {
        process(async {
            let runner = worker(world, echo(&Arc::new(Semaphore::new(9))), "one").build();
            let session = session(&runner).await;
            world.wire.faults([(1, Fault::DiesBefore)]);
            let run = session.send("one").await.unwrap();
            while world.wire.appends() < 2 {
                tokio::task::yield_now().await;
            }
            assert!(is_claimed(&session).await);
            assert!(!runner.shutdown(Duration::ZERO).await);
            let error = run.await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::ShutDown { .. }), "{error:?}");
            assert!(!is_claimed(&session).await);
        });
    });
}
