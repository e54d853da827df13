//! Messages for a session that is busy: refused with an error, or taken; never lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use expect_test::expect;
use futures_util::future::join_all;
use proptest::prelude::*;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Exit, HookAction, Input};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, CreateSession, DeleteSession, Deleted, EventRange, ForkSession, GetSession,
    ListSessions, MemoryStore, PruneSession, Pruned, Receipt, RewindSession, ScopeKey, ScopeValues, Session,
    SessionError, SessionPage, SessionStore, WriteScope,
};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle, WhenBusy};
use stepfold_state_core::chat::Role;
use stepfold_tools::{Tool, ToolContext, ToolError};
use tokio::sync::Semaphore;

use crate::world::{Echo, Fault, World, each_store, hand_on, process, schema, threads};

/// An agent that says what it hears, each time when the gate lets it.
fn gated(gate: &Arc<Semaphore>) -> AgentBuilder {
    let gate = Arc::clone(gate);
    Agent::builder(Echo).name("clerk").schema(schema()).before_model(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(HookAction::proceed())
        }
    })
}

async fn session(world: &World, busy: WhenBusy, agent: AgentBuilder) -> SessionHandle {
    let runner = world.runner(agent.build().unwrap()).when_busy(busy).max_waiting(2).build();
    runner.session("ada", "s1").await.unwrap()
}

async fn conversation(session: &SessionHandle) -> String {
    session.read(EventRange::All).await.unwrap().transcript().to_string()
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn refuse() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Refuse, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            // Also before the first one has done anything at all.
            let error = session.send("two").await.unwrap_err();
            expect!["session stalls/ada/s1: busy: an invocation is running"].assert_eq(&error.to_string());
            settle().await;
            assert!(matches!(
                session.send("three").await,
                Err(RunnerError { kind: RunnerErrorKind::Busy { .. }, .. })
            ));
            gate.add_permits(1);
            assert_eq!(first.await.unwrap().text(), "re: one");
            gate.add_permits(1);
            assert_eq!(session.run("four").await.unwrap().text(), "re: four");
        });
    });
}

#[test]
fn wait() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Wait, gated(&gate)).await;
            let mut runs = Vec::new();
            for text in ["one", "two", "three"] {
                runs.push(session.send(text).await.unwrap());
            }
            settle().await;
            // One is at work, two wait: that is all that may.
            let error = session.send("four").await.unwrap_err();
            expect!["session stalls/ada/s1: busy: too many messages are waiting"]
                .assert_eq(&error.to_string());
            gate.add_permits(1);
            assert_eq!(runs[0].outcome().await.unwrap().text(), "re: one");
            settle().await;
            let last = session.send("five").await.unwrap();
            gate.add_permits(9);
            last.await.unwrap();
            expect![[r#"
                user:      one
                assistant: re: one
                user:      two
                assistant: re: two
                user:      three
                assistant: re: three
                user:      five
                assistant: re: five
            "#]]
            .assert_eq(&conversation(&session).await);
        });
    });
}

#[test]
fn steer() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Steer, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            settle().await;
            let second = session.send("two").await.unwrap();
            assert_ne!(first.id(), second.id());
            session.send("three").await.unwrap();
            gate.add_permits(9);
            assert_eq!(second.await.unwrap().text(), "re: one, two, three");
            expect![[r#"
                user:      one
                user:      two
                user:      three
                assistant: re: one, two, three
            "#]]
            .assert_eq(&conversation(&session).await);
        });
    });
}

/// A message with a key is handled as one without, and sent again it changes nothing.
#[test]
fn a_key_does_not_change_what_a_busy_session_does() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Refuse, gated(&gate)).await;
            let (steer, wait) = (session.when_busy(WhenBusy::Steer), session.when_busy(WhenBusy::Wait));
            let first = session.send_once("k1", "one").await.unwrap();
            settle().await;
            assert!(matches!(
                session.send_once("k2", "two").await,
                Err(RunnerError { kind: RunnerErrorKind::Busy { .. }, .. })
            ));
            assert_eq!(session.send_once("k1", "one").await.unwrap().id(), first.id());
            for _ in 0..2 {
                assert_eq!(steer.send_once("k3", "three").await.unwrap().id().as_str(), "k3");
            }
            gate.add_permits(2);
            assert_eq!(first.outcome().await.unwrap().text(), "re: one, three");

            // Late, while another run is at work: it does not join that one.
            let other = wait.send("four").await.unwrap();
            settle().await;
            let late = steer.send_once("k3", "three").await.unwrap();
            gate.add_permits(1);
            assert_eq!(late.await.unwrap().text(), "re: one, three");
            assert_eq!(other.await.unwrap().text(), "re: four");

            // In an idle session it begins a turn. As another kind of message the key is refused.
            gate.add_permits(1);
            assert_eq!(steer.send_once("k5", "five").await.unwrap().await.unwrap().text(), "re: five");
            let error = wait.send_once("k5", "five").await.unwrap_err();
            assert!(error.to_string().contains("k5"), "{error}");
        });
    });
}

/// The retry of a request must not cancel the run that the request began.
#[test]
fn a_message_that_interrupts_and_is_sent_again_does_not_interrupt_itself() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Wait, gated(&gate)).await.when_busy(WhenBusy::Interrupt);
            let first = session.send_once("k1", "one").await.unwrap();
            settle().await;
            let second = session.send_once("k2", "two").await.unwrap();
            assert_eq!(first.await.unwrap().exit(), &Exit::Cancelled);
            let again = session.send_once("k2", "two").await.unwrap();
            settle().await;
            gate.add_permits(9);
            for invocation in [second, again] {
                let outcome = invocation.await.unwrap();
                assert_eq!((outcome.exit(), &*outcome.text()), (&Exit::Text, "re: one, two"));
            }
        });
    });
}

#[test]
fn interrupt() {
    each_store(|world| {
        threads(async {
            let trace = world.trace.clone();
            let wait = move |context: ToolContext| {
                let trace = trace.clone();
                async move {
                    trace.note(format!("{} waits", context.call_id()));
                    std::future::pending::<Result<&'static str, ToolError>>().await
                }
            };
            let wait = Tool::new("wait", "Waits.", wait).build().unwrap();
            let script = "assistant: > c1 wait()  > c2 look()\nassistant: something else";
            // Has ended when the other one is interrupted.
            let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>("look is done"));
            let look = look.effect(stepfold_tools::Effect::Pure).build().unwrap();
            let agent = world.agent(script).tools(vec![wait, look]);
            let session = session(world, WhenBusy::Interrupt, agent).await;
            let first = session.send("wait").await.unwrap();
            while world.trace.take().iter().all(|line| line != "c1 waits") {
                tokio::task::yield_now().await;
            }
            let second = session.send("no, do something else").await.unwrap();
            assert_eq!(first.outcome().await.unwrap().exit(), &Exit::Cancelled);
            assert_eq!(second.await.unwrap().text(), "something else");
            expect![[r#"
                user:      wait
                assistant: > c1 wait()   > c2 look()
                tool c1!:  tool 'wait' cancelled while it ran; the effect may have happened
                tool c2:   look is done
                user:      no, do something else
                assistant: something else
            "#]]
            .assert_eq(&conversation(&session).await);
        });
    });
}

/// A later message interrupts what runs. What was accepted and waits for another worker stays.
#[test]
fn an_interruption_withdraws_nothing_that_waits_for_another_worker() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let open = async |name: &str| {
                let runner = world.runner(gated(&gate).build().unwrap()).worker(name).unwrap();
                runner.when_busy(WhenBusy::Interrupt).build().session("ada", "s1").await.unwrap()
            };
            let (one, two) = (open("one").await, open("two").await);
            let first = one.send("one").await.unwrap();
            let second = two.send("two").await.unwrap();
            let third = two.send("three").await.unwrap();
            gate.add_permits(9);
            first.await.unwrap();
            second.await.unwrap();
            assert!(third.await.unwrap().text().ends_with("three"));
            assert_eq!(said(&one).await, ["one", "two", "three"]);
        });
    });
}

/// To cancel is to have the session back at once; it holds also for what has not begun yet.
#[test]
fn cancel() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(9));
            let session = session(world, WhenBusy::Wait, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            session.cancel();
            assert!(session.running().is_some());
            assert_eq!(first.await.unwrap().exit(), &Exit::Cancelled);
            assert!(session.running().is_none());
            assert_eq!(session.run("two").await.unwrap().text(), "re: one, two");
        });
    });
}

/// A message after a cancellation is answered.
#[test]
fn what_is_said_after_a_cancellation_is_answered() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Steer, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            settle().await;
            first.cancel();
            let second = session.send("two").await.unwrap();
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().exit(), &Exit::Cancelled);
            assert_eq!(second.await.unwrap().text(), "re: one, two");
        });
    });
}

#[test]
fn a_dropped_handle_cancels_nothing() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Wait, gated(&gate)).await;
            let run = session.send("one").await.unwrap();
            let watching = run.subscribe(0);
            drop(run);
            let (all, ()) = tokio::join!(futures_util::StreamExt::collect::<Vec<_>>(watching), async {
                gate.add_permits(9);
            });
            assert!(!all.is_empty());
            expect![[r#"
                user:      one
                assistant: re: one
            "#]]
            .assert_eq(&conversation(&session).await);
        });
    });
}

/// A message joins the run, and the store refuses to take it: the next run has it.
#[test]
fn what_could_not_be_stored_is_said_by_the_next_run() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Steer, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            while world.wire.appends() == 0 {
                tokio::task::yield_now().await;
            }
            // What the hook said is stored, and then what the user said is not.
            world.wire.faults([(1, Fault::Broken)]);
            let second = session.send("two").await.unwrap();
            gate.add_permits(9);
            assert!(matches!(first.await, Err(RunnerError { kind: RunnerErrorKind::Store { .. }, .. })));
            assert!(second.await.unwrap().text().ends_with("two"));
        });
    });
}

/// A message joins a run that panics: the next run has it.
#[test]
fn messages_to_a_run_that_panicked_are_answered_by_the_next_one() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let is_first = std::sync::atomic::AtomicBool::new(true);
            let agent = gated(&gate).before_model(move |_| {
                assert!(!is_first.swap(false, std::sync::atomic::Ordering::SeqCst), "a fault of the hook");
                async { Ok(HookAction::proceed()) }
            });
            let session = session(world, WhenBusy::Steer, agent).await;
            let first = session.send("one").await.unwrap();
            settle().await;
            let second = session.send("two").await.unwrap();
            gate.add_permits(9);
            assert!(matches!(first.await, Err(RunnerError { kind: RunnerErrorKind::Panicked, .. })));
            assert_eq!(second.await.unwrap().text(), "re: one, two");
            assert!(session.running().is_none());
        });
    });
}

/// A message that steers a resumed run which is about to end is still answered.
#[test]
fn what_is_said_at_the_end_of_a_resumed_run_is_answered() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let hold = Arc::new(Semaphore::new(0));
            let (held, trace) = (Arc::clone(&hold), world.trace.clone());
            let agent = gated(&gate).after_run(move |_| {
                let held = Arc::clone(&held);
                trace.note("it ends");
                async move {
                    held.acquire().await.unwrap().forget();
                    Ok(HookAction::proceed())
                }
            });
            world.wire.faults([(1, Fault::Broken)]);
            let session = session(world, WhenBusy::Steer, agent).await;
            gate.add_permits(9);
            session.run("one").await.unwrap_err();
            let resumed = session.resume().start().unwrap();
            while world.trace.take().is_empty() {
                tokio::task::yield_now().await;
            }
            let late = session.send("two").await.unwrap();
            hold.add_permits(9);
            assert_eq!(resumed.await.unwrap().text(), "re: one");
            assert_eq!(late.await.unwrap().text(), "re: two");
            expect![[r#"
                user:      one
                assistant: re: one
                user:      two
                assistant: re: two
            "#]]
            .assert_eq(&conversation(&session).await);
        });
    });
}

#[test]
fn sixteen_at_once() {
    each_store(|world| {
        threads(async {
            let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
            let session = world.runner(agent).build().session("ada", "s1").await.unwrap();
            let runs = (0..16).map(|number| {
                let session = session.clone();
                tokio::spawn(async move { session.run(format!("m{number}")).await.unwrap() })
            });
            for outcome in join_all(runs).await {
                outcome.unwrap();
            }
            let stored = session.read(EventRange::All).await.unwrap();
            assert_eq!(stored.transcript().len(), 32);
            let mut said: Vec<_> = (stored.transcript().iter())
                .filter(|message| message.role() == Role::User)
                .map(|message| message.text().into_owned())
                .collect();
            said.sort_unstable();
            said.dedup();
            assert_eq!(said.len(), 16);
        });
    });
}

/// What users said, in the order in which it was taken.
async fn said(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap().transcript();
    let users = stored.iter().filter(|message| message.role() == Role::User);
    users.map(|message| message.text().into_owned()).collect()
}

/// The place in the queue belongs to `send`, not to the moment at which a task is first polled.
#[test]
fn messages_are_taken_in_the_order_in_which_send_returned() {
    for busy in [WhenBusy::Wait, WhenBusy::Steer] {
        each_store(|world| {
            threads(async {
                let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
                let runner = world.runner(agent).when_busy(busy).build();
                for number in 0..200 {
                    let session = runner.session("ada", format!("s{number}")).await.unwrap();
                    let mut runs = Vec::new();
                    for text in ["1", "2", "3", "4"] {
                        // Each is sent by a task of its own, on any of the threads.
                        let session = session.clone();
                        let sent = tokio::spawn(async move { session.send(text).await.unwrap() });
                        runs.push(sent.await.unwrap());
                    }
                    for run in runs {
                        run.await.unwrap();
                    }
                    assert_eq!(said(&session).await, ["1", "2", "3", "4"]);
                }
            });
        });
    }
}

/// Those that are sent at once return in some order, and are taken in that one.
#[test]
fn messages_that_are_sent_at_once_are_taken_in_the_order_in_which_send_returned() {
    each_store(|world| {
        process(async {
            let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
            let session = world.runner(agent).build().session("ada", "s1").await.unwrap();
            let returned = std::cell::RefCell::new(Vec::new());
            let sent = (0..12).map(|number| {
                let (session, returned) = (session.clone(), &returned);
                async move {
                    let text = number.to_string();
                    let run = session.send(text.as_str()).await.unwrap();
                    returned.borrow_mut().push(text);
                    run
                }
            });
            for run in join_all(sent).await {
                run.await.unwrap();
            }
            assert_eq!(said(&session).await, returned.into_inner());
        });
    });
}

/// An input with a state of its own cannot be stored, so it cannot wait.
#[test]
fn an_input_that_cannot_be_stored_is_refused_when_it_would_have_to_wait() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session(world, WhenBusy::Wait, gated(&gate)).await;
            let first = session.send("one").await.unwrap();
            let state = stepfold_state_core::state::State::new(&schema());
            let refused = session.send(Input::on(state.clone()).say("two")).await.unwrap_err();
            assert!(matches!(refused.kind, RunnerErrorKind::CannotWait), "{refused:?}");
            gate.add_permits(9);
            first.await.unwrap();
            session.run(Input::on(state).say("three")).await.unwrap();
            assert_eq!(said(&session).await, ["one", "three"]);
        });
    });
}

/// Two workers write to one session, and try again when the other one was faster.
#[test]
fn two_workers() {
    each_store(|world| {
        threads(async {
            let work = |name: &'static str| {
                let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
                let runner = world.runner(agent).worker(name).unwrap().build();
                async move {
                    let session = runner.session("ada", "s1").await.unwrap();
                    for number in 0..10 {
                        let text = format!("{name}{number}");
                        // It is sent again only if it was not accepted. What was accepted is taken in the end.
                        let run = loop {
                            match session.send(text.as_str()).await {
                                Ok(run) => break run,
                                Err(RunnerError { kind: RunnerErrorKind::Conflict { .. }, .. }) => {}
                                Err(error) => panic!("{error:?}"),
                            }
                        };
                        let mut ended = run.outcome().await;
                        while matches!(ended, Err(RunnerError { kind: RunnerErrorKind::Conflict { .. }, .. }))
                            && !said(&session).await.contains(&text)
                        {
                            ended = session.resume().await;
                        }
                    }
                }
            };
            let (a, b) = tokio::join!(tokio::spawn(work("a")), tokio::spawn(work("b")));
            a.unwrap();
            b.unwrap();
            let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
            let session = world.runner(agent).build().session("ada", "s1").await.unwrap();
            session.run("end").await.unwrap();
            let stored = session.read(EventRange::All).await.unwrap();
            let mut said: Vec<_> = (stored.transcript().iter())
                .filter(|message| message.role() == Role::User)
                .map(|message| message.text().into_owned())
                .collect();
            said.sort_unstable();
            let expected: Vec<_> = (["a", "b"].iter())
                .flat_map(|name| (0..10).map(move |number| format!("{name}{number}")))
                .chain(["end".to_owned()])
                .collect();
            assert_eq!(said, expected);
            assert_eq!(stored.transcript().last().unwrap().text(), "re: end");
            stored.transcript().check().unwrap();
        });
    });
}

/// Says messages at all moments of runs, and looks whether each is in the conversation once, and answered.
///
/// Another worker may be at work in the session first. Then each of both takes what it comes upon.
fn check_race(busy: WhenBusy, pauses: &[Vec<u8>], other: Option<u8>) {
    each_store(|world| {
        threads(async {
            let agent = || {
                Agent::builder(Echo).name("clerk").schema(schema()).before_model(|_| async {
                    tokio::task::yield_now().await;
                    Ok(HookAction::proceed())
                })
            };
            let runner =
                |agent: AgentBuilder| world.runner(agent.build().unwrap()).when_busy(busy).max_waiting(64);
            let first = other.map(|pause| {
                let gate = Arc::new(Semaphore::new(0));
                (pause, runner(gated(&gate)).worker("other").unwrap().build(), gate)
            });
            let mut taken = Vec::new();
            let mut opened = None;
            if let Some((pause, runner, gate)) = first {
                let run = runner.session("ada", "s1").await.unwrap().send("first").await.unwrap();
                taken.push("first".to_owned());
                opened = Some(tokio::spawn(async move {
                    for _ in 0..pause {
                        tokio::task::yield_now().await;
                    }
                    gate.add_permits(Semaphore::MAX_PERMITS);
                    run.await.unwrap();
                }));
            }
            let session = runner(agent()).build().session("ada", "s1").await.unwrap();
            let talkers = pauses.iter().enumerate().map(|(talker, pauses)| {
                let (session, pauses) = (session.clone(), pauses.clone());
                tokio::spawn(talk(session, talker, pauses))
            });
            taken.extend(join_all(talkers).await.into_iter().flat_map(Result::unwrap));
            if let Some(opened) = opened {
                opened.await.unwrap();
            }
            assert!(session.running().is_none());
            let stored = session.read(EventRange::All).await.unwrap();
            let mut said = said(&session).await;
            said.sort_unstable();
            taken.sort_unstable();
            assert_eq!(said, taken);
            assert!(session.inbox().await.unwrap().is_empty());
            if busy != WhenBusy::Interrupt && !stored.transcript().is_empty() {
                assert_eq!(stored.transcript().last().unwrap().role(), Role::Assistant);
            }
        });
    });
}

/// Sends messages with pauses between them; gives those that were accepted, once all have their outcome.
async fn talk(session: SessionHandle, talker: usize, pauses: Vec<u8>) -> Vec<String> {
    let (mut taken, mut runs) = (Vec::new(), Vec::new());
    for (number, pause) in pauses.into_iter().enumerate() {
        for _ in 0..pause {
            tokio::task::yield_now().await;
        }
        let text = format!("{talker}.{number}");
        match session.send(text.as_str()).await {
            Ok(run) => {
                taken.push(text);
                runs.push(run);
            }
            Err(RunnerError { kind: RunnerErrorKind::Busy { .. }, .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        // Some wait for the answer, so that there are ends of runs.
        if pause % 3 == 0
            && let Some(run) = runs.last()
        {
            run.outcome().await.unwrap();
        }
    }
    for run in runs {
        run.await.unwrap();
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_message_is_lost(
        busy in prop::sample::select(vec![WhenBusy::Refuse, WhenBusy::Wait, WhenBusy::Interrupt, WhenBusy::Steer]),
        pauses in prop::collection::vec(prop::collection::vec(0u8..40, 1..8), 1..6),
        other in prop::option::of(0u8..100),
    ) {
        check_race(busy, &pauses, other);
    }
}

/// A store that holds one read back, until it is let go.
#[derive(Clone)]
struct Holding {
    store: AnyStore,
    holds: Arc<AtomicBool>,
    arrived: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl SessionStore for Holding {
    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        if self.holds.swap(false, Ordering::SeqCst) {
            self.arrived.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
        }
        self.store.get(request).await
    }

    hand_on! { store =>
        create: CreateSession => Session;
        append: AppendEvent => Receipt;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }
}

/// A rewind and a deletion wait for a caller that reads the session meanwhile: nothing runs in it, so it is not busy.
#[tokio::test]
async fn a_reader_makes_no_session_busy() {
    let store = Holding {
        store: AnyStore::new(MemoryStore::new()),
        holds: Arc::default(),
        arrived: Arc::new(Semaphore::new(0)),
        gate: Arc::new(Semaphore::new(0)),
    };
    let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
    let session = Runner::builder(agent, store.clone()).build().session("ada", "s1").await.unwrap();
    for deletes in [false, true] {
        // Then its history is cached, which a reader continues.
        session.run("one").await.unwrap();
        store.holds.store(true, Ordering::SeqCst);
        let (reader, changer) = (session.clone(), session.clone());
        let read = tokio::spawn(async move { reader.unfinished().await });
        store.arrived.acquire().await.unwrap().forget();
        let change = tokio::spawn(async move {
            if deletes { changer.delete(false).await.map(drop) } else { changer.rewind(0).await.map(drop) }
        });
        settle().await;
        assert!(!change.is_finished());
        store.gate.add_permits(1);
        assert!(read.await.unwrap().unwrap().is_none());
        change.await.unwrap().unwrap();
    }
    assert!(matches!(session.read(EventRange::All).await, Err(error) if error.to_string().contains("s1")));
}
