//! Who is told what: each request has one invocation, which tells the outcome of its own request, from the record alone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{
    Agent, AgentBuilder, Decision, DecisionError, Exit, HookAction, HookContext, Input, Pause,
};
use stepfold_runner::session_scopes::{
    AppendEvent, Author, Event, EventId, EventRange, InvocationId, MAX_ID_BYTES, ReadInbox, SessionError,
    SessionSchema, SessionStore,
};
use stepfold_runner::{
    Invocation, RecoverOptions, Remedy, ResumeRun, RunStatus, Runner, RunnerError, RunnerErrorKind,
    SessionHandle, WallClock, WhenBusy, WhenClaimed,
};
use stepfold_state_core::chat::Message;
use stepfold_tools::{Approval, Effect, Tool, ToolContext};
use tokio::sync::Semaphore;

use crate::world::{Echo, Still, World, each_store, id_at, process, schema, threads};

const WAIT: WhenClaimed = WhenClaimed::Wait { at_most: Duration::from_secs(60) };

/// A third of it passes until a worker hears of another one.
const CLAIM: Duration = Duration::from_millis(150);

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

/// An agent that says what it hears, and is held up by the gate once it has said it.
fn gated_after(gate: &Arc<Semaphore>) -> AgentBuilder {
    let gate = Arc::clone(gate);
    Agent::builder(Echo).name("clerk").schema(schema()).after_run(move |_: HookContext| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(HookAction::proceed())
        }
    })
}

fn runner(world: &World, worker: &str, agent: AgentBuilder) -> Runner {
    world.runner(agent.build().unwrap()).worker(worker).unwrap().when_claimed(WAIT).claim_for(CLAIM).build()
}

async fn session_of(world: &World, worker: &str, agent: AgentBuilder) -> SessionHandle {
    runner(world, worker, agent).session("ada", "s1").await.unwrap()
}

/// Until another task has had its turn with the store.
async fn settle() {
    // tidy: allow sleep, because nothing tells that something does not happen.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn text_of(invocation: &Invocation) -> String {
    invocation.outcome().await.unwrap().text().into_owned()
}

async fn version_of(session: &SessionHandle) -> u64 {
    session.read(EventRange::None).await.unwrap().version
}

async fn left_in_inbox(session: &SessionHandle, world: &World) -> usize {
    world.store().inbox(ReadInbox::new(session.key().clone())).await.unwrap().len()
}

const LIMITED: &str = "\
assistant: > c1 pay(euro=5)
assistant: > c2 pay(euro=7)
assistant: done
";

#[test]
fn an_ended_run_is_not_continued_by_a_repeat_under_a_later_version_of_the_agent() {
    let limited = |world: &World, steps| world.agent(LIMITED).max_steps(steps);
    let hooked = |world: &World| {
        let proceed = async |_: HookContext| Ok(HookAction::proceed());
        limited(world, 10).before_run(proceed).before_model(proceed)
    };
    let graph_of_other_tools = |_: &World| Agent::builder(Echo).name("clerk").schema(schema());
    let later: [&dyn Fn(&World) -> AgentBuilder; 4] =
        [&|world| limited(world, 10), &|world| limited(world, 1), &hooked, &graph_of_other_tools];
    each_store(|world| {
        let ended = process(async {
            let session = world.session(limited(world, 1)).await;
            let outcome = session.send_once("order-7", "pay").await.unwrap().await.unwrap();
            assert_eq!(outcome.exit(), &Exit::MaxSteps);
            (version_of(&session).await, outcome.transcript().to_string())
        });
        world.trace.take();
        for agent in later {
            process(async {
                let session = world.session(agent(world)).await;
                for _ in 0..2 {
                    let again = session.send_once("order-7", "pay").await.unwrap().await.unwrap();
                    assert_eq!(again.exit(), &Exit::MaxSteps);
                    assert_eq!(again.transcript().to_string(), ended.1);
                    let report = session.run_as("order-7", "pay").await.unwrap();
                    assert_eq!(report.status, RunStatus::Finished(Exit::MaxSteps));
                }
                assert_eq!(version_of(&session).await, ended.0);
            });
            assert_eq!(world.trace.take(), [""; 0], "something ran again");
        }
    });
}

#[test]
fn a_repeated_decision_is_told_the_end_of_its_own_run() {
    let agent = |world: &World, steps| {
        let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
        world
            .agent(&LIMITED.replace("> c2 pay(euro=7)", "one\nassistant: > c3 pay(euro=9)"))
            .tools(vec![pay])
            .max_steps(steps)
    };
    each_store(|world| {
        let click = |session: &SessionHandle, id: &str| -> ResumeRun {
            session.resume().decide(id, Decision::Approve).idempotency_key("click-1")
        };
        let id = process(async {
            let session = world.session(agent(world, 1)).await;
            session.run("pay").await.unwrap();
            let id = id_at(&session, "c1").await;
            assert_eq!(click(&session, &id).await.unwrap().exit(), &Exit::MaxSteps);
            id
        });
        let is_answered = async |session: &SessionHandle| {
            world.trace.take();
            let before = version_of(session).await;
            let outcome = click(session, &id).await.unwrap();
            assert_eq!((outcome.exit(), outcome.steps()), (&Exit::MaxSteps, 1));
            let (receipt, invocation) = click(session, &id).submit().await.unwrap();
            assert_eq!(receipt.requests, std::slice::from_ref(&id));
            assert_eq!(invocation.await.unwrap().exit(), &Exit::MaxSteps);
            assert_eq!((version_of(session).await, world.trace.take()), (before, Vec::new()));
        };
        process(async {
            let session = world.session(agent(world, 10)).await;
            is_answered(&session).await;
            // After a later run, and while one waits.
            assert_eq!(session.run("and now?").await.unwrap().text(), "one");
            is_answered(&session).await;
            let waits = session.run("pay").await.unwrap();
            assert_eq!(waits.exit(), &Exit::Paused(Pause::Approval));
            is_answered(&session).await;
        });
    });
}

#[test]
fn stop_cancels_the_run_of_another_process_and_withdraws_no_message() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let (one, two) =
                (session_of(world, "one", gated(&gate)).await, session_of(world, "two", gated(&gate)).await);
            let first = one.send("one").await.unwrap();
            let second = two.send("two").await.unwrap();
            assert!(two.cancel_everywhere().await.unwrap());
            assert_eq!(first.await.unwrap().exit(), &Exit::Cancelled);
            gate.add_permits(9);
            assert!(text_of(&second).await.ends_with("two"));
            assert_eq!(left_in_inbox(&one, world).await, 0);
        });
    });
}

#[test]
fn a_handle_is_cancelled_where_its_run_is() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let (one, two) =
                (session_of(world, "one", gated(&gate)).await, session_of(world, "two", gated(&gate)).await);
            let first = one.send("one").await.unwrap();
            let second = two.send_once("k2", "two").await.unwrap();
            settle().await;
            // Nothing of this process is at work.
            two.cancel();
            gate.add_permits(9);
            assert_eq!(text_of(&first).await, "re: one");
            assert_eq!(text_of(&second).await, "re: two");
            assert!(!one.cancel_everywhere().await.unwrap());
        });
    });
}

#[test]
fn a_repeat_and_a_steering_message_are_told_their_own_answers() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(1));
            let session = session_of(world, "one", gated(&gate)).await;
            let answered = session.send_once("m1", "one").await.unwrap();
            assert_eq!(text_of(&answered).await, "re: one");
            let run = session.send("two").await.unwrap();
            settle().await;
            // It does not even wait.
            assert_eq!(text_of(&session.send_once("m1", "one").await.unwrap()).await, "re: one");
            let steers = session.when_busy(WhenBusy::Steer);
            let steering = steers.send("three").await.unwrap();
            let keyed = steers.send_once("m4", "four").await.unwrap();
            assert_ne!((steering.id(), steering.id()), (run.id(), keyed.id()));
            gate.add_permits(9);
            for told in [&run, &steering, &keyed, &steers.send_once("m4", "four").await.unwrap()] {
                assert_eq!(text_of(told).await, "re: two, three, four");
            }
            assert_eq!(text_of(&answered).await, "re: one");
        });
    });
}

/// The events of the run from then on, not those before.
#[test]
fn a_steering_message_hears_of_the_run_that_took_it() {
    use futures_util::StreamExt;
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session_of(world, "one", gated(&gate)).await;
            let run = session.send("one").await.unwrap();
            settle().await;
            let steering = session.when_busy(WhenBusy::Steer).send("two").await.unwrap();
            gate.add_permits(9);
            let names = |seen: Vec<stepfold_runner::InvocationEvent>| -> Vec<String> {
                let name = |seen: &stepfold_runner::InvocationEvent| match seen {
                    stepfold_runner::InvocationEvent::Event { event, is_earlier: false, .. } => {
                        event.committed().map(|event| event.name().to_owned())
                    }
                    other => panic!("{other:?}"),
                };
                seen.iter().filter_map(name).collect()
            };
            let heard = names(steering.subscribe(0).collect().await);
            assert_eq!(heard.first().map(String::as_str), Some("steered"));
            assert!(names(run.subscribe(0).collect().await).ends_with(&heard));
        });
    });
}

#[test]
fn a_steering_message_that_comes_too_late_has_an_answer_of_its_own() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session_of(world, "one", gated_after(&gate)).await;
            let first = session.send_once("m1", "one").await.unwrap();
            settle().await;
            let late = session.when_busy(WhenBusy::Steer).send_once("m2", "two").await.unwrap();
            gate.add_permits(9);
            assert_eq!(text_of(&first).await, "re: one");
            assert_eq!(text_of(&late).await, "re: two");
            for _ in 0..2 {
                assert_eq!(text_of(&session.send_once("m1", "one").await.unwrap()).await, "re: one");
                let again = session.when_busy(WhenBusy::Steer).send_once("m2", "two").await.unwrap();
                assert_eq!(text_of(&again).await, "re: two");
            }
        });
    });
}

/// After a restart, while recovery continues the run: the repeat of its own message, and that of one answered long ago.
#[test]
fn a_repeat_neither_interrupts_nor_steers() {
    for busy in [WhenBusy::Interrupt, WhenBusy::Steer, WhenBusy::Refuse, WhenBusy::Wait] {
        each_store(|world| {
            let sent_as = if busy == WhenBusy::Steer { WhenBusy::Steer } else { WhenBusy::Wait };
            let gate = Arc::new(Semaphore::new(1));
            process(async {
                let session = session_of(world, "one", gated(&gate)).await.when_busy(sent_as);
                assert_eq!(text_of(&session.send_once("m0", "zero").await.unwrap()).await, "re: zero");
                session.send_once("m1", "one").await.unwrap();
                while version_of(&session).await < 3 {
                    tokio::task::yield_now().await;
                }
            });
            threads(async {
                let session = session_of(world, "one", gated(&gate)).await;
                session.resume().start().unwrap();
                settle().await;
                let session = session.when_busy(busy);
                let old = session.send_once("m0", "zero").await.unwrap();
                assert_eq!(text_of(&old).await, "re: zero", "{busy:?}");
                let own = session.send_once("m1", "one").await.unwrap();
                gate.add_permits(9);
                let outcome = own.await.unwrap();
                assert_eq!((outcome.exit(), &*outcome.text()), (&Exit::Text, "re: one"), "{busy:?}");
                assert_eq!(left_in_inbox(&session, world).await, 0);
            });
        });
    }
}

#[test]
fn a_session_created_again_elsewhere_takes_its_messages_in_order() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(99));
            let one = session_of(world, "one", gated(&gate)).await;
            for number in 0..3 {
                one.send_once(format!("old-{number}"), "old").await.unwrap().await.unwrap();
            }
            // What it has read of the inbox is of another life, also once it knows nothing of the events.
            one.rewind(0).await.unwrap();
            let elsewhere = runner(world, "two", gated(&gate));
            elsewhere.session("ada", "s1").await.unwrap().delete(false).await.unwrap();
            let two = elsewhere.session("ada", "s1").await.unwrap();
            let blocker = Arc::new(Semaphore::new(0));
            drop(two);
            let two = session_of(world, "two", gated(&blocker)).await;
            let first = two.send("first").await.unwrap();
            let mut sent = Vec::new();
            for text in ["a", "b", "c"] {
                sent.push(one.send_once(text, text).await.unwrap());
            }
            blocker.add_permits(99);
            assert_eq!(text_of(&first).await, "re: first");
            for (invocation, text) in sent.iter().zip(["a", "b", "c"]) {
                assert_eq!(text_of(invocation).await, format!("re: {text}"));
            }
            assert_eq!(left_in_inbox(&one, world).await, 0);
            let said = one.read(EventRange::All).await.unwrap().transcript().to_string();
            let order: Vec<usize> = ["first", "a\n", "b\n", "c\n"]
                .map(|text| said.find(&format!(": {text}")).or(said.find(&format!("      {text}"))).unwrap())
                .to_vec();
            assert!(order.is_sorted(), "{said}");
        });
    });
}

#[test]
fn a_cancellation_that_comes_too_late_says_so_and_leaves_nothing() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let one = session_of(world, "one", gated_after(&gate)).await;
            // Of a longer claim, so that it waits for the other one.
            let two = world.runner(gated_after(&gate).build().unwrap()).worker("two").unwrap();
            let two = two.claim_for(Duration::from_secs(30)).build().session("ada", "s1").await.unwrap();
            let first = one.send("one").await.unwrap();
            while version_of(&one).await < 2 {
                settle().await;
            }
            // The request is stored just before the last event of the run.
            let stop = two.clone();
            let (told, answer) = tokio::sync::oneshot::channel();
            world.wire.before(0, async move {
                tokio::spawn(async move { told.send(stop.cancel_everywhere().await) });
                // tidy: allow sleep, because nothing tells that something does not happen.
                tokio::time::sleep(Duration::from_millis(200)).await;
            });
            gate.add_permits(9);
            assert_eq!(first.await.unwrap().exit(), &Exit::Text);
            assert!(!answer.await.unwrap().unwrap());
            assert_eq!(left_in_inbox(&one, world).await, 0);
            // Here as well.
            assert!(!one.cancel_everywhere().await.unwrap());
            assert!(!two.cancel_everywhere().await.unwrap());
            tokio::time::timeout(Duration::from_secs(20), two_recovers(world, &gate)).await.unwrap();
        });
    });
}

async fn two_recovers(world: &World, gate: &Arc<Semaphore>) {
    runner(world, "three", gated_after(gate)).recover(RecoverOptions::new().once()).await.unwrap();
}

/// As a worker leaves it that dies between the last event of a run and its next look.
#[test]
fn a_cancellation_of_a_run_that_has_ended_is_removed_by_recovery() {
    each_store(|world| {
        threads(async {
            use stepfold_runner::session_scopes::{EnqueueInput, IdempotencyKey, InboxKind};
            let gate = Arc::new(Semaphore::new(9));
            let session = session_of(world, "one", gated(&gate)).await;
            session.run("one").await.unwrap();
            for (key, body) in [("old", json!(null)), ("new", json!({"run": "i1"}))] {
                let key = IdempotencyKey::new(key).unwrap();
                let cancel =
                    EnqueueInput::new(session.key().clone(), InboxKind::Cancel, key, body, Still.now());
                world.store().enqueue(cancel).await.unwrap();
            }
            tokio::time::timeout(Duration::from_secs(20), two_recovers(world, &gate)).await.unwrap();
            assert_eq!(left_in_inbox(&session, world).await, 0);
            // The next run is another one.
            assert_eq!(session.run("two").await.unwrap().text(), "re: two");
        });
    });
}

#[test]
fn a_refused_message_interrupts_nothing() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let agent = gated(&gate).build().unwrap();
            let runner = world.runner(agent).max_waiting(1).when_busy(WhenBusy::Interrupt).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let first = session.send("one").await.unwrap();
            let waits = session.when_busy(WhenBusy::Wait).send("two").await.unwrap();
            settle().await;
            let full = session.send("three").await.unwrap_err();
            assert!(matches!(full.kind, RunnerErrorKind::Busy { .. }), "{full}");
            let full = session.send_once("k3", "three").await.unwrap_err();
            assert!(matches!(full.kind, RunnerErrorKind::Busy { .. }), "{full}");
            // One that cannot be stored.
            let state = stepfold_state_core::state::State::new(&schema());
            gate.add_permits(9);
            assert_eq!(first.outcome().await.unwrap().exit(), &Exit::Text);
            assert_eq!(text_of(&waits).await, "re: two");
            let gate = Arc::new(Semaphore::new(0));
            let session = session_of(world, "other", gated(&gate)).await.when_busy(WhenBusy::Interrupt);
            let run = session.send("four").await.unwrap();
            settle().await;
            let refused = session.send(Input::on(state)).await.unwrap_err();
            assert!(matches!(refused.kind, RunnerErrorKind::CannotWait), "{refused}");
            gate.add_permits(9);
            assert_eq!(text_of(&run).await, "re: four");
        });
    });
}

#[test]
fn an_interrupting_message_cancels_the_run_at_work_and_not_the_messages_before_it() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let (one, two) =
                (session_of(world, "one", gated(&gate)).await, session_of(world, "two", gated(&gate)).await);
            let first = one.send("one").await.unwrap();
            let second = two.send("two").await.unwrap();
            settle().await;
            let third = two.when_busy(WhenBusy::Interrupt).send_once("m3", "three").await.unwrap();
            assert_eq!(first.await.unwrap().exit(), &Exit::Cancelled);
            gate.add_permits(9);
            for (invocation, text) in [(&second, "two"), (&third, "three")] {
                let outcome = invocation.outcome().await.unwrap();
                assert_eq!(outcome.exit(), &Exit::Text);
                assert!(outcome.text().ends_with(text));
            }
        });
    });
}

#[test]
fn a_used_key_with_another_input_is_refused() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(99));
            let session = session_of(world, "one", gated(&gate)).await;
            let input = || Input::from("one").with_values(json!({"topic": "stalls", "temp:note": "n"}));
            let report = session.run_as("r1", input()).await.unwrap();
            let steering = session.when_busy(WhenBusy::Steer).send_once("s1", "two").await.unwrap();
            assert_eq!(text_of(&steering).await, "re: two");
            let steered = session.run_as("s1", "two").await.unwrap();
            let fork = session.fork("fork", None).await.unwrap();
            let cold = session_of(world, "two", gated(&gate)).await;
            for session in [&session, &fork, &cold] {
                assert_eq!(session.run_as("r1", input()).await.unwrap(), report);
                assert_eq!(session.run_as("s1", "two").await.unwrap(), steered);
                let others = [
                    ("r1", Input::from("other")),
                    ("r1", Input::from("one")),
                    ("r1", Input::from("one").with_values(json!({"topic": "areas"}))),
                    ("r1", input().with_message(Message::user("more"))),
                    ("s1", Input::from("other")),
                ];
                for (key, other) in others {
                    let error = session.run_as(key, other).await.unwrap_err();
                    let RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. } = &error else {
                        panic!("{error:?}")
                    };
                    assert!(matches!(**source, SessionError::IdempotencyKeyReused { .. }), "{error}");
                    assert_eq!(error.remedy(), Remedy::Never);
                }
            }
        });
    });
}

/// A tool that waits for an outcome, and an agent that calls it.
fn waiter() -> AgentBuilder {
    let form = async |context: ToolContext| context.later("form").outcome();
    let form = Tool::new("form", "Waits.", form).effect(Effect::Idempotent).build().unwrap();
    let script = "assistant: > c1 form()\nassistant: done\nassistant: again";
    Agent::builder(Script::parse(script).unwrap()).name("clerk").tools([form])
}

async fn append_others(session: &SessionHandle, world: &World, events: u64) {
    let from = version_of(session).await;
    for version in from..from + events {
        let id = EventId::new(format!("other-{version}")).unwrap();
        let event =
            Event::new(id, InvocationId::new("other").unwrap(), Author::new("user").unwrap(), Still.now());
        let schema = SessionSchema::new(schema());
        world
            .store()
            .store
            .append(AppendEvent::new(session.key().clone(), version, event, &schema))
            .await
            .unwrap();
    }
}

#[test]
fn a_completion_is_known_however_long_ago() {
    // Enough for one page more than is looked through; SQLite would take minutes.
    let world = World::in_memory();
    threads(async {
        let runner = runner(&world, "one", waiter());
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("go").await.unwrap();
        let token = session.pending().await.unwrap().remove(0).token.unwrap();
        let receipt = runner.complete(&token, Ok(json!(1))).await.unwrap();
        if let Some(going) = session.running() {
            going.await.unwrap();
        }
        append_others(&session, &world, 4_200).await;
        assert_eq!(runner.complete(&token, Ok(json!(1))).await.unwrap(), receipt);
        let error = runner.complete(&token, Ok(json!(2))).await.unwrap_err();
        let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(matches!(**error, DecisionError::KeyReused { .. }), "{error}");
    });
}

#[test]
fn a_fork_waits_under_a_token_of_its_own() {
    each_store(|world| {
        threads(async {
            let runner = runner(world, "one", waiter());
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("go").await.unwrap();
            let fork = session.fork("fork", None).await.unwrap();
            let of_fork = fork.fork("fork of fork", None).await.unwrap();
            let token_of =
                async |session: &SessionHandle| session.pending().await.unwrap().remove(0).token.unwrap();
            let all = [&of_fork, &session, &fork];
            for (number, session) in all.into_iter().enumerate() {
                let token = token_of(session).await;
                assert_eq!(runner.session_of_token(&token).unwrap(), *session.key());
                let receipt = runner.complete(&token, Ok(json!(number))).await.unwrap();
                assert_eq!(runner.complete(&token, Ok(json!(number))).await.unwrap(), receipt);
                if let Some(going) = session.running() {
                    going.await.unwrap();
                }
            }
            for (number, session) in all.into_iter().enumerate() {
                let said = session.last_run().await.unwrap().unwrap().transcript().to_string();
                assert!(said.contains(&format!("c1:   {number}")), "{said}");
            }
        });
    });
}

#[test]
fn a_key_may_be_as_long_as_an_id() {
    let agent = |world: &World| {
        let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
        // It fails once its lines are all said.
        world.agent("assistant: > c1 pay(euro=5)").tools(vec![pay])
    };
    for length in [230, 238, 247, 254, 255, MAX_ID_BYTES] {
        each_store(|world| {
            process(async {
                let session = world.session(agent(world)).await;
                let key = "k".repeat(length);
                let waits = session.send_once(&*key, "pay").await.unwrap().await.unwrap();
                assert_eq!(waits.exit(), &Exit::Paused(Pause::Approval));
                let id = id_at(&session, "c1").await;
                let failed = session.resume().decide(id, Decision::Approve).await.unwrap_err();
                assert!(matches!(failed.kind, RunnerErrorKind::Run { .. }), "{failed:?}");
            });
            process(async {
                let session = world.session(agent(world)).await;
                assert_eq!(session.abandon().await.unwrap().exit(), &Exit::Cancelled);
                let key = "k".repeat(length);
                let again = session.send_once(&*key, "pay").await.unwrap().await.unwrap();
                assert_eq!(again.exit(), &Exit::Cancelled);
                assert_eq!(
                    session.run_as(&*key, "pay").await.unwrap().status,
                    RunStatus::Finished(Exit::Cancelled)
                );
            });
        });
    }
}

#[test]
fn remote_agents_call_remote_agents_as_deep_as_they_like() {
    // A level that takes a second is waited for by a timer.
    let world = World::in_memory();
    threads(async {
        let leaf =
            Agent::builder(Script::parse("assistant: the leaf").unwrap()).name("leaf").build().unwrap();
        let mut runner = world.runner(leaf).app("level-0").unwrap().worker("w0").unwrap().build();
        for level in 1..8 {
            let tool = runner.as_remote_tool("ask", "Asks.").unwrap();
            let script = format!("assistant: > c1 ask(request=\"go\")\nassistant: level {level}");
            let agent =
                Agent::builder(Script::parse(&script).unwrap()).name("asker").tools([tool]).build().unwrap();
            let worker = format!("w{level}");
            runner =
                world.runner(agent).app(format!("level-{level}")).unwrap().worker(worker).unwrap().build();
        }
        let session = runner.session("ada", "s1").await.unwrap();
        let outcome = session.run("go").await.unwrap();
        assert_eq!((outcome.exit(), &*outcome.text()), (&Exit::Text, "level 7"));
        assert!(outcome.transcript().to_string().contains("level 6"), "{}", outcome.transcript());
    });
}

#[test]
fn sending_outside_of_a_runtime_panics_and_leaves_the_session_usable() {
    let world = World::in_memory();
    let gate = Arc::new(Semaphore::new(99));
    let session = threads(session_of(&world, "one", gated(&gate)));
    let panics = |future: &mut dyn FnMut()| {
        assert!(std::panic::catch_unwind(AssertUnwindSafe(future)).is_err(), "outside of a runtime");
    };
    panics(&mut || drop(session.send("one").now_or_never()));
    panics(&mut || drop(session.send_once("k", "one").now_or_never()));
    panics(&mut || drop(session.resume().start()));
    // A runtime that ends before the worker was polled first.
    let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    {
        let _entered = rt.enter();
        drop(session.resume().start().unwrap());
    }
    drop(rt);
    threads(async {
        let run = tokio::time::timeout(Duration::from_secs(10), session.run("two"));
        assert!(run.await.expect("it hangs").unwrap().text().ends_with("two"));
    });
}

/// The key of a message is known as long as the record has it, also once the store's inbox has forgotten it.
#[test]
fn a_key_that_the_inbox_has_forgotten_is_answered_by_the_record() {
    for busy in [WhenBusy::Wait, WhenBusy::Steer, WhenBusy::Interrupt] {
        let world = World::in_memory();
        threads(async {
            let gate = Arc::new(Semaphore::new(9_999));
            let session = session_of(&world, "one", gated(&gate)).await.when_busy(busy);
            assert_eq!(text_of(&session.send_once("m1", "one").await.unwrap()).await, "re: one");
            for number in 0..1_001 {
                let other = session.send_once(format!("o{number}"), "other").await.unwrap();
                other.await.unwrap();
            }
            // While another run is at work, which hears nothing of it.
            gate.forget_permits(99_999);
            let run = session.send("work").await.unwrap();
            settle().await;
            let again = session.send_once("m1", "one").await.unwrap();
            gate.add_permits(999);
            assert_eq!(text_of(&run).await, "re: work", "{busy:?}");
            assert_eq!(text_of(&again).await, "re: one");
            let before = version_of(&session).await;
            assert_eq!(text_of(&session.send_once("m1", "one").await.unwrap()).await, "re: one");
            let cold = session_of(&world, "two", gated(&gate)).await.when_busy(busy);
            assert_eq!(text_of(&cold.send_once("m1", "one").await.unwrap()).await, "re: one");
            assert_eq!((version_of(&session).await, left_in_inbox(&session, &world).await), (before, 0));
        });
    }
}

/// What is at work under a key is one invocation, however often it is asked for.
#[test]
fn a_failed_run_is_not_run_again_by_the_messages_that_it_took() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let (trace, wait) = (world.trace.clone(), Arc::clone(&gate));
            let agent = world.agent("").before_model(move |_| {
                let (trace, wait) = (trace.clone(), Arc::clone(&wait));
                async move {
                    trace.note("a step");
                    wait.acquire().await.unwrap().forget();
                    Ok(HookAction::proceed())
                }
            });
            let session = world.session(agent).await;
            let run = session.send("one").await.unwrap();
            settle().await;
            let steering = session.when_busy(WhenBusy::Steer).send("two").await.unwrap();
            gate.add_permits(9);
            assert!(matches!(run.await, Err(RunnerError { kind: RunnerErrorKind::Run { .. }, .. })));
            assert!(matches!(steering.await, Err(RunnerError { kind: RunnerErrorKind::Run { .. }, .. })));
            settle().await;
            let asked = world.trace.take().iter().filter(|line| *line == "the model is asked").count();
            assert_eq!(asked, 1);
        });
    });
}

#[test]
fn to_cancel_a_steering_message_cancels_the_run_that_took_it() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session_of(world, "one", gated(&gate)).await;
            let run = session.send("one").await.unwrap();
            settle().await;
            let steering = session.when_busy(WhenBusy::Steer).send("two").await.unwrap();
            // The hook runs again once the message has come.
            gate.add_permits(1);
            while !session.read(EventRange::All).await.unwrap().transcript().to_string().contains("two") {
                settle().await;
            }
            steering.cancel();
            assert_eq!(steering.await.unwrap().exit(), &Exit::Cancelled);
            assert_eq!(run.await.unwrap().exit(), &Exit::Cancelled);
        });
    });
}

/// The process of another sender has died in its run; the message that comes next has it completed first.
#[test]
fn to_cancel_a_message_that_waits_cancels_no_run_before_it() {
    each_store(|world| {
        let gate = Arc::new(Semaphore::new(0));
        process(async {
            let session = session_of(world, "one", gated(&gate)).await;
            session.send_once("m1", "one").await.unwrap();
            while version_of(&session).await < 1 {
                tokio::task::yield_now().await;
            }
        });
        threads(async {
            let session = session_of(world, "one", gated(&gate)).await;
            let own = session.send_once("m2", "two").await.unwrap();
            settle().await;
            let third = session.send_once("m3", "three").await.unwrap();
            own.cancel();
            gate.add_permits(9);
            assert_eq!(*own.await.unwrap().exit(), Exit::Cancelled);
            assert_eq!(text_of(&third).await, "re: two, three");
            assert_eq!(text_of(&session.send_once("m1", "one").await.unwrap()).await, "re: one");
            assert_eq!(left_in_inbox(&session, world).await, 0);
        });
    });
}

#[test]
fn a_steering_message_that_was_cancelled_before_joins_nobody() {
    each_store(|world| {
        threads(async {
            let gate = Arc::new(Semaphore::new(0));
            let session = session_of(world, "one", gated(&gate)).await;
            let run = session.send("one").await.unwrap();
            settle().await;
            let steers = session.clone().when_busy(WhenBusy::Steer);
            let own = steers.send("two").await.unwrap();
            let third = steers.send("three").await.unwrap();
            own.cancel();
            gate.add_permits(9);
            assert_eq!(text_of(&run).await, "re: one");
            assert_eq!(*own.await.unwrap().exit(), Exit::Cancelled);
            assert_eq!(text_of(&third).await, "re: two, three");
            assert_eq!(left_in_inbox(&session, world).await, 0);
        });
    });
}

#[test]
fn a_run_that_waits_is_cancelled_by_each_process() {
    each_store(|world| {
        threads(async {
            let one = session_of(world, "one", waiter()).await;
            let run = one.send_once("m1", "one").await.unwrap();
            assert_eq!(*run.await.unwrap().exit(), Exit::Paused(Pause::Approval));
            let two = session_of(world, "two", waiter()).await;
            assert!(two.cancel_everywhere().await.unwrap());
            assert!(one.unfinished().await.unwrap().is_none());
            for session in [&one, &two] {
                assert!(!session.cancel_everywhere().await.unwrap());
                let told = session.send_once("m1", "one").await.unwrap().await.unwrap();
                assert_eq!(*told.exit(), Exit::Cancelled);
            }
            let nobody = runner(world, "one", waiter()).session("ada", "s2").await.unwrap();
            assert!(!nobody.cancel_everywhere().await.unwrap());
        });
    });
}

/// The worker of a run leaves it in the moment in which another one cancels it: it waits for a decision then, and the one
/// that was asked ends it, and waits for no heartbeat.
#[test]
fn a_run_that_its_worker_leaves_meanwhile_is_cancelled_all_the_same() {
    each_store(|world| {
        threads(async {
            let of = |worker: &str| {
                let pay = world.tool("pay", Effect::AtMostOnce).approval(Approval::Always).build().unwrap();
                let agent = world.agent("assistant: > c1 pay()\nassistant: paid").tools(vec![pay]);
                let runner = world.runner(agent.build().unwrap()).worker(worker).unwrap();
                runner.when_claimed(WAIT).claim_for(Duration::from_secs(3_600)).build()
            };
            let (one, two) = (of("one"), of("two"));
            let session = one.session("ada", "s1").await.unwrap();
            let cancelling = Arc::new(std::sync::Mutex::new(None));
            let (started, key) = (Arc::clone(&cancelling), session.key().clone());
            // The append of the reply gives up the claim.
            world.wire.before(1, async move {
                let other = two.session("ada", "s1").await.unwrap();
                let asked = tokio::spawn(async move { other.cancel_everywhere().await });
                *started.lock().unwrap() = Some(asked);
                while two.store().inbox(ReadInbox::new(key.clone())).await.unwrap().is_empty() {
                    tokio::task::yield_now().await;
                }
            });
            let outcome = session.run("pay").await.unwrap();
            assert_eq!(*outcome.exit(), Exit::Paused(Pause::Approval));
            let cancelling = cancelling.lock().unwrap().take().unwrap();
            let cancelled = tokio::time::timeout(Duration::from_secs(60), cancelling).await;
            assert!(cancelled.expect("it waits for heartbeats").unwrap().unwrap());
            let newest = session.read(EventRange::Last(1)).await.unwrap().events.remove(0);
            assert_eq!(newest.event.metadata.read::<Exit>("exit"), Some(Exit::Cancelled));
            assert!(one.store().inbox(ReadInbox::new(session.key().clone())).await.unwrap().is_empty());
        });
    });
}
