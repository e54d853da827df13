//! Claims: several workers and one session.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Exit, HookAction, Input, RunEvent};
use stepfold_runner::session_scopes::{
    EnqueueInput, EventRange, GetSession, IdempotencyKey, InboxKind, SessionStore, Timestamp,
};
use stepfold_runner::{
    InvocationEvent, RunnerBuilder, RunnerError, RunnerErrorKind, SessionHandle, WallClock, WhenBusy,
    WhenClaimed,
};
use stepfold_state_core::chat::Role;
use stepfold_tools::{Approval, Effect, Tool, ToolError};
use tokio::sync::Semaphore;

use crate::world::{Echo, World, each_store, process, schema, threads};

/// Seconds that go by when they are told to.
#[derive(Clone, Default)]
struct Seconds(Arc<AtomicI64>);

impl WallClock for Seconds {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros((1_700_000_000 + self.0.load(Ordering::SeqCst)) * 1_000_000)
    }
}

const WAIT: WhenClaimed = WhenClaimed::Wait { at_most: Duration::from_secs(60) };

/// An agent whose tool waits for the gate, and says so.
pub(crate) fn payer(world: &World, gate: &Arc<Semaphore>) -> AgentBuilder {
    let (gate, trace) = (Arc::clone(gate), world.trace.clone());
    let pay = move || {
        let (gate, trace) = (Arc::clone(&gate), trace.clone());
        async move {
            trace.note("paying");
            gate.acquire().await.map_err(ToolError::fatal)?.forget();
            Ok::<_, ToolError>("paid")
        }
    };
    let pay = Tool::new("pay", "Pays.", pay).effect(Effect::AtMostOnce).build().unwrap();
    let script = "assistant: > c1 pay()\nassistant: it is paid\nassistant: you are welcome";
    Agent::builder(Script::parse(script).unwrap()).name("payer").tools([pay])
}

fn worker(world: &World, agent: AgentBuilder, name: &str) -> RunnerBuilder {
    world.runner(agent.name("payer").build().unwrap()).worker(name).unwrap()
}

async fn session(runner: RunnerBuilder) -> SessionHandle {
    runner.build().session("ada", "s1").await.unwrap()
}

pub(crate) async fn until_it_pays(world: &World) {
    while !world.trace.take().contains(&"paying".to_owned()) {
        tokio::task::yield_now().await;
    }
}

fn echo() -> AgentBuilder {
    Agent::builder(Echo).name("payer").schema(schema())
}

pub(crate) async fn is_claimed(session: &SessionHandle) -> bool {
    session.read(EventRange::None).await.unwrap().claim.is_some()
}

/// An agent that says what it hears, each time when the gate lets it.
fn gated_echo(gate: &Arc<Semaphore>) -> AgentBuilder {
    let gate = Arc::clone(gate);
    echo().before_model(move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(stepfold_runner::agent_loop::HookAction::proceed())
        }
    })
}

async fn said(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap().transcript();
    let users = stored.iter().filter(|message| message.role() == Role::User);
    users.map(|message| message.text().into_owned()).collect()
}

async fn until_it_is_claimed(session: &SessionHandle) {
    while !is_claimed(session).await {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_message_for_a_session_of_another_worker_is_stored_and_taken_by_it() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one")).await;
            let two = session(worker(world, gated_echo(&gate), "two").when_claimed(WAIT)).await;
            let first = one.send("one").await.unwrap();
            let second = two.send("two").await.unwrap();
            assert_eq!(said(&one).await, ["one"]);
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().text(), "re: one");
            assert_eq!(second.await.unwrap().text(), "re: two");
            assert_eq!(said(&one).await, ["one", "two"]);
            assert!(!is_claimed(&one).await);
        });
    });
}

/// A process that ends after its own invocation must not begin with what others have stored.
#[test]
fn a_worker_that_leaves_the_inbox_takes_no_message_of_another_one() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one").leave_inbox()).await;
            let first = one.send("one").await.unwrap();
            let send_and_go = async {
                let two = session(worker(world, gated_echo(&gate), "two").when_claimed(WAIT)).await;
                two.send("two").await.unwrap();
            };
            std::thread::scope(|threads| threads.spawn(|| process(send_and_go)).join().unwrap());
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().text(), "re: one");
            assert!(one.running().is_none());
            assert_eq!((said(&one).await, is_claimed(&one).await), (vec!["one".to_owned()], false));
            // It comes first when something is sent.
            assert_eq!(one.run("three").await.unwrap().text(), "re: three");
            assert_eq!(said(&one).await, ["one", "two", "three"]);
        });
    });
}

#[test]
fn a_session_of_another_worker_is_refused() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one")).await;
            let two = session(worker(world, echo(), "two").when_claimed(WhenClaimed::Refuse)).await;
            let first = one.send("one").await.unwrap();
            for refused in [two.run("two").await, two.resume().await, two.abandon().await] {
                let Err(RunnerError { kind: RunnerErrorKind::Claimed { owner, is_accepted, .. }, .. }) =
                    refused
                else {
                    panic!("{refused:?}")
                };
                assert_eq!((owner.as_str(), is_accepted), ("one", false));
            }
            assert!(matches!(
                two.rewind(0).await,
                Err(RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. })
            ));
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().text(), "re: one");
            assert_eq!(two.run("two").await.unwrap().text(), "re: two");
        });
    });
}

#[test]
fn waiting_for_another_worker_ends() {
    each_store(|world| {
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one")).await;
            let two = session(worker(world, echo(), "two").when_claimed(WAIT)).await;
            let first = one.send("one").await.unwrap();
            let error = two.run("two").await.unwrap_err();
            assert!(
                matches!(error, RunnerError { kind: RunnerErrorKind::Claimed { is_accepted: true, .. }, .. }),
                "{error:?}"
            );
            // It was accepted, so it is taken.
            gate.add_permits(9);
            first.await.unwrap();
            one.run("three").await.unwrap();
            assert_eq!(said(&one).await, ["one", "two", "three"]);
        });
    });
}

#[test]
fn a_worker_that_loses_its_claim_stops_and_says_so() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let often = Duration::from_millis(60);
            let one = session(worker(world, payer(world, &gate), "one").claim_for(often)).await;
            let first = one.send("pay").await.unwrap();
            until_it_pays(world).await;
            let runner = worker(world, payer(world, &gate), "two").when_claimed(WhenClaimed::TakeOver);
            let two = session(runner).await;
            // The call was running: the worker that takes over reports its outcome as unknown.
            let outcome = two.resume().await.unwrap();
            assert_eq!(outcome.text(), "it is paid");
            assert!(outcome.transcript().to_string().contains("unknown"), "{}", outcome.transcript());
            let lost = first.await.unwrap_err();
            assert!(matches!(lost.kind, RunnerErrorKind::ClaimLost { .. }), "{lost:?}");
            // The first one sees what the other did.
            assert_eq!(one.run("thanks").await.unwrap().text(), "you are welcome");
        });
    });
}

#[test]
fn an_expired_claim_is_taken_over_at_once() {
    each_store(|world| {
        let clock = Seconds::default();
        let gate = Arc::new(Semaphore::new(0));
        // The first process dies at work.
        process(async {
            let runner = worker(world, payer(world, &gate), "one").clock(clock.clone());
            let one = session(runner).await;
            let _run = one.send("pay").await.unwrap();
            until_it_pays(world).await;
        });
        process(async {
            let runner = || worker(world, payer(world, &gate), "two").clock(clock.clone());
            let refused = session(runner().when_claimed(WhenClaimed::Refuse)).await.resume().await;
            assert!(
                matches!(refused, Err(RunnerError { kind: RunnerErrorKind::Claimed { .. }, .. })),
                "{refused:?}"
            );
            clock.0.fetch_add(31, Ordering::SeqCst);
            let two = session(runner().when_claimed(WhenClaimed::Refuse)).await;
            assert_eq!(two.resume().await.unwrap().text(), "it is paid");
            assert!(!is_claimed(&two).await);
        });
    });
}

#[test]
fn a_worker_that_is_started_again_continues_at_once() {
    each_store(|world| {
        let gate = Arc::new(Semaphore::new(0));
        process(async {
            let one = session(worker(world, payer(world, &gate), "one")).await;
            let _run = one.send("pay").await.unwrap();
            until_it_pays(world).await;
        });
        process(async {
            let runner = worker(world, payer(world, &gate), "one").when_claimed(WhenClaimed::Refuse);
            assert_eq!(session(runner).await.resume().await.unwrap().text(), "it is paid");
        });
    });
}

#[test]
fn a_claim_is_kept_for_as_long_as_the_run_is_at_work() {
    each_store(|world| {
        // With a store in threads of its own, the time of the test would continue while that works.
        if !world.is_in_memory() {
            return;
        }
        let clock = Seconds::default();
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one").clock(clock.clone())).await;
            let first = one.send("one").await.unwrap();
            let claim = || async {
                let get = GetSession::new(one.key().clone()).now(clock.now());
                world.store().get(get).await.unwrap().claim
            };
            let token = claim().await.unwrap().token;
            for _ in 0..20 {
                clock.0.fetch_add(10, Ordering::SeqCst);
                // The heartbeat comes each ten seconds of tokio's time, which goes by when all wait.
                // tidy: allow sleep, because tokio's clock is paused: it jumps when all wait.
                tokio::time::sleep(Duration::from_secs(11)).await;
                assert_eq!(claim().await.unwrap().token, token);
            }
            gate.add_permits(9);
            first.await.unwrap();
            assert_eq!(claim().await, None);
        });
    });
}

#[test]
fn a_run_that_waits_for_a_decision_holds_no_claim() {
    each_store(|world| {
        process(async {
            let pay = world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap();
            let agent = || world.agent("assistant: > c1 ask()\nassistant: done").tools([pay.clone()]);
            let one = session(worker(world, agent(), "one")).await;
            one.run("ask").await.unwrap();
            assert!(!is_claimed(&one).await);
            // Anybody may decide.
            let two = session(worker(world, agent(), "two").when_claimed(WhenClaimed::Refuse)).await;
            let id = two.pending().await.unwrap()[0].id.clone();
            let approve = stepfold_runner::agent_loop::Decision::Approve;
            assert_eq!(two.resume().decide(id, approve).await.unwrap().text(), "done");
            assert!(!is_claimed(&one).await);
        });
    });
}

#[test]
fn a_message_joins_a_run_of_another_process() {
    each_store(|world| {
        // With a store in threads of its own, the time of the test would continue while that works.
        if !world.is_in_memory() {
            return;
        }
        process(async {
            let gate = Arc::new(Semaphore::new(0));
            let steer = |name| worker(world, gated_echo(&gate), name).when_busy(WhenBusy::Steer);
            let (one, two) = (session(steer("one")).await, session(steer("two")).await);
            let first = one.send("one").await.unwrap();
            until_it_is_claimed(&one).await;
            let second = two.send("two").await.unwrap();
            // The first worker hears of it by its heartbeat.
            // tidy: allow sleep, because tokio's clock is paused: it jumps when all wait.
            tokio::time::sleep(Duration::from_secs(11)).await;
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().text(), "re: one, two");
            assert_eq!(second.await.unwrap().text(), "re: one, two");
        });
    });
}

#[test]
fn a_run_of_another_process_is_cancelled() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one =
                session(worker(world, payer(world, &gate), "one").claim_for(Duration::from_millis(60))).await;
            let two = session(worker(world, payer(world, &gate), "two")).await;
            assert!(!two.cancel_everywhere().await.unwrap());
            let first = one.send("pay").await.unwrap();
            until_it_pays(world).await;
            assert!(two.cancel_everywhere().await.unwrap());
            let outcome = first.await.unwrap();
            assert_eq!(outcome.exit(), &stepfold_runner::agent_loop::Exit::Cancelled);
            assert_eq!(two.read(EventRange::None).await.unwrap().inbox, 0);
        });
    });
}

/// A steered message that was accepted does not go with the process.
#[test]
fn what_was_accepted_outlives_the_process() {
    each_store(|world| {
        for busy in [WhenBusy::Steer, WhenBusy::Wait] {
            let before = process(async {
                let gate = Arc::new(Semaphore::new(0));
                let one = session(worker(world, gated_echo(&gate), "one").when_busy(busy)).await;
                let before = said(&one).await.len();
                one.send("one").await.unwrap();
                one.send("two").await.unwrap();
                one.send("three").await.unwrap();
                before
            });
            process(async {
                let gate = Arc::new(Semaphore::new(9));
                let one = session(worker(world, gated_echo(&gate), "one")).await;
                one.run("four").await.unwrap();
                assert_eq!(said(&one).await[before..], ["one", "two", "three", "four"]);
                assert_eq!(one.read(EventRange::None).await.unwrap().inbox, 0);
            });
        }
    });
}

#[test]
fn a_message_that_is_sent_again_under_its_key_is_taken_once() {
    each_store(|world| {
        process(async {
            let one = session(worker(world, echo(), "one")).await;
            let first = one.send_once("m1", "hello").await.unwrap();
            let again = one.send_once("m1", "hello").await.unwrap();
            assert_eq!(first.await.unwrap().text(), "re: hello");
            assert_eq!(again.await.unwrap().text(), "re: hello");
            one.run("more").await.unwrap();
        });
        process(async {
            let two = session(worker(world, echo(), "two")).await;
            let again = two.send_once("m1", "hello").await.unwrap();
            assert_eq!(again.await.unwrap().text(), "re: hello");
            assert!(matches!(
                two.send_once("m1", "other").await,
                Err(RunnerError { kind: RunnerErrorKind::Store { .. }, .. })
            ));
            assert_eq!(said(&two).await, ["hello", "more"]);
        });
    });
}

#[test]
fn to_cancel_or_to_withdraw_ends_the_wait_for_another_worker() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session(worker(world, gated_echo(&gate), "one")).await;
            let two = session(worker(world, gated_echo(&gate), "two")).await;
            let first = one.send("one").await.unwrap();
            until_it_is_claimed(&one).await;

            let cancelled = two.send("two").await.unwrap();
            cancelled.cancel();
            let error = cancelled.await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Withdrawn), "{error:?}");

            let withdrawn = two.send("three").await.unwrap();
            assert!(two.withdraw(withdrawn.id()).await.unwrap());
            let error = withdrawn.await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Withdrawn), "{error:?}");

            let resumed = two.resume().start().unwrap();
            resumed.cancel();
            let error = resumed.await.unwrap_err();
            assert!(
                matches!(
                    error,
                    RunnerError { kind: RunnerErrorKind::Claimed { is_accepted: false, .. }, .. }
                ),
                "{error:?}"
            );

            // The entries after them belong to no other worker.
            let last = two.send("four").await.unwrap();
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().text(), "re: one");
            assert_eq!(last.await.unwrap().text(), "re: four");
            assert_eq!(said(&one).await, ["one", "four"]);
        });
    });
}

#[test]
fn a_panic_gives_the_claim_up() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let mended = Arc::clone(&is_mended);
            let agent = echo().before_model(move |_| {
                let is_mended = mended.load(Ordering::SeqCst);
                async move {
                    assert!(is_mended, "a hook panics");
                    Ok(HookAction::proceed())
                }
            });
            let one = session(worker(world, agent, "one")).await;
            let error = one.run("one").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Panicked), "{error:?}");
            assert!(!is_claimed(&one).await);
            is_mended.store(true, Ordering::SeqCst);
            assert_eq!(one.resume().await.unwrap().text(), "re: one");
        });
    });
}

#[test]
fn a_claim_is_kept_while_a_call_waits_for_a_decision_and_another_one_runs() {
    each_store(|world| {
        // In real time: over SQLite, a paused clock runs while a thread reads, until the call times out.
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let ask = world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap();
            let model = Script::parse("assistant: > c1 ask()\nassistant: asked").unwrap();
            let clerk = Agent::builder(model).name("clerk").schema(schema()).tools([ask]).build().unwrap();
            let clerk = clerk.as_tool("clerk", "Asks.").build().unwrap();
            let opened = Arc::clone(&gate);
            let slow = move || {
                let gate = Arc::clone(&opened);
                async move {
                    gate.acquire().await.map_err(ToolError::fatal)?.forget();
                    Ok::<_, ToolError>("slow")
                }
            };
            let slow = Tool::new("slow", "Is slow.", slow).effect(Effect::Pure).build().unwrap();
            let script = "assistant: > c1 clerk(task=\"ask\")  > c2 slow()\nassistant: done";
            let agent = Agent::builder(Script::parse(script).unwrap()).schema(schema()).tools([clerk, slow]);
            let one = session(worker(world, agent, "one")).await;
            let first = one.send("go").await.unwrap();
            // It began, and has its reply.
            let waits = async || {
                let stored = one.read(EventRange::All).await.unwrap();
                stored.events.iter().filter(|event| event.event.kind.as_str() == "inner").count() == 2
            };
            while !waits().await {
                tokio::task::yield_now().await;
            }
            assert!(is_claimed(&one).await);
            gate.add_permits(1);
            first.await.unwrap();
            assert!(!is_claimed(&one).await);
        });
    });
}

/// Two workers, the second of which has the session and what stands in its inbox read when the first one begins with it.
async fn two_workers(world: &World, agent: impl Fn() -> AgentBuilder) -> (SessionHandle, SessionHandle) {
    world.wire.listen();
    let one = session(worker(world, agent(), "one").when_claimed(WAIT)).await;
    (one, session(worker(world, agent(), "two").when_claimed(WAIT)).await)
}

/// Has the test continue once the store has refused a run its beginning.
async fn until_one_is_refused(world: &World) {
    while !world.trace.take().iter().any(|line| line.starts_with("refused: began")) {
        tokio::task::yield_now().await;
    }
}

/// A message that another worker has taken is not withdrawn.
#[test]
fn to_resume_what_another_worker_has_taken_just_now_finds_nothing_to_resume() {
    for (kind, is_at_work) in
        [InboxKind::Steer, InboxKind::Message].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        each_store(|world| {
            threads(async {
                let gate = Arc::new(Semaphore::new(if is_at_work { 0 } else { 9 }));
                let (one, two) = two_workers(world, || gated_echo(&gate)).await;
                let stored = EnqueueInput::new(
                    one.key().clone(),
                    kind,
                    IdempotencyKey::new("m1").unwrap(),
                    Input::new().say("hello").to_json().unwrap(),
                    Seconds::default().now(),
                );
                world.store().enqueue(stored).await.unwrap();
                let faster = one.clone();
                world.wire.before(0, async move {
                    let taken = faster.resume().start().unwrap();
                    match is_at_work {
                        true => until_it_is_claimed(&faster).await,
                        false => assert_eq!(taken.await.unwrap().text(), "re: hello"),
                    }
                });
                let (resumed, ()) = tokio::join!(two.resume(), async {
                    until_one_is_refused(world).await;
                    gate.add_permits(9);
                });
                let error = resumed.unwrap_err();
                assert!(matches!(error.kind, RunnerErrorKind::NothingToResume), "{error:?}");
                assert_eq!(said(&two).await, ["hello"]);
            });
        });
    }
}

/// It is one message: the slower sender gets the invocation and the outcome of the faster one.
#[test]
fn a_message_that_two_workers_send_once_at_the_same_time_is_taken_once() {
    for is_at_work in [false, true] {
        each_store(|world| {
            threads(async {
                let gate = Arc::new(Semaphore::new(if is_at_work { 0 } else { 9 }));
                let (one, two) = two_workers(world, || gated_echo(&gate)).await;
                let faster = one.clone();
                world.wire.before(0, async move {
                    let sent = faster.send_once("m1", "hello").await.unwrap();
                    match is_at_work {
                        true => until_it_is_claimed(&faster).await,
                        false => assert_eq!(sent.await.unwrap().text(), "re: hello"),
                    }
                });
                let sent = two.send_once("m1", "hello").await.unwrap();
                let (outcome, ()) = tokio::join!(sent.outcome(), async {
                    until_one_is_refused(world).await;
                    gate.add_permits(9);
                });
                assert_eq!((sent.id().as_str(), &*outcome.unwrap().text()), ("m1", "re: hello"));
                // Of the run of the other one it has seen nothing, and of its own there is nothing.
                assert_eq!(sent.subscribe(0).count().await, 0);
                assert_eq!(said(&two).await, ["hello"]);
            });
        });
    }
}

/// A run that did not begin is not seen.
#[test]
fn who_begins_after_a_faster_worker_sees_one_run() {
    each_store(|world| {
        process(async {
            let (one, two) = two_workers(world, echo).await;
            world.wire.before(0, async move {
                assert_eq!(one.run("one").await.unwrap().text(), "re: one");
            });
            let sent = two.send("two").await.unwrap();
            assert_eq!(sent.outcome().await.unwrap().text(), "re: two");
            until_one_is_refused(world).await;
            let seen = sent.subscribe(0).filter_map(|seen| match seen {
                InvocationEvent::Event { event: RunEvent::Ended(exit), .. } => ready(Some(exit)),
                _ => ready(None),
            });
            assert_eq!(seen.collect::<Vec<_>>().await, [Exit::Text]);
            assert_eq!(said(&two).await, ["one", "two"]);
        });
    });
}

/// The store remembers the keys of the last 1,000 messages. A later repeat is answered by the record, and blocks no other
/// message.
#[test]
fn a_message_that_is_sent_again_after_its_key_was_forgotten_stops_nothing() {
    let (world, clock) = (World::in_memory(), Seconds::default());
    process(async {
        let one = session(worker(&world, echo(), "one").clock(clock.clone())).await;
        for number in 0..=1_000 {
            one.send_once(format!("m{number}"), "hello").await.unwrap().await.unwrap();
        }
        clock.0.fetch_add(1, Ordering::SeqCst);
        assert_eq!(one.send_once("m0", "hello").await.unwrap().await.unwrap().text(), "re: hello");
        assert_eq!(said(&one).await.len(), 1_001);
        assert_eq!(one.run("more").await.unwrap().text(), "re: more");
    });
}
