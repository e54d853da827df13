//! A run that fails each time it is driven, and paused runs among many sessions.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use stepfold_runner::agent_loop::{
    Agent, AgentBuilder, Decision, Exit, HookAction, Ids, Input, Observer, ObserverError, Outcome, RunEvent,
};
use stepfold_runner::session_scopes::{EnqueueInput, EventRange, IdempotencyKey, InboxKind, SessionStore};
use stepfold_runner::{RunnerError, RunnerErrorKind, SessionHandle, WallClock, failure};
use stepfold_state_core::chat::Role;
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

use crate::world::{Echo, Still, World, each_store, process, schema};

/// An agent that fails before it asks its model, until it is mended.
fn failing(is_mended: &Arc<AtomicBool>) -> AgentBuilder {
    let is_mended = Arc::clone(is_mended);
    Agent::builder(Echo).name("clerk").schema(schema()).before_model(move |_| {
        let is_mended = is_mended.load(Ordering::SeqCst);
        async move {
            match is_mended {
                true => Ok(HookAction::proceed()),
                false => Err(std::io::Error::other("the licence has run out").into()),
            }
        }
    })
}

async fn said(session: &SessionHandle) -> String {
    session.read(EventRange::All).await.unwrap().transcript().to_string()
}

#[test]
fn after_the_same_failure_twice_the_error_says_how_to_continue() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let session = world.session(failing(&is_mended)).await;
            assert!(matches!(
                session.run("one").await,
                Err(RunnerError { kind: RunnerErrorKind::Run { .. }, .. })
            ));
            for times in 2..4 {
                let error = session.run(format!("number {times}")).await.unwrap_err();
                let RunnerError {
                    kind: RunnerErrorKind::EarlierRunFailed { times: counted, cause, .. }, ..
                } = &error
                else {
                    panic!("{error:?}")
                };
                assert_eq!(*counted, times);
                assert!(cause.contains("the licence has run out"), "{cause}");
                let text = error.to_string();
                assert!(text.contains("`resume()`") && text.contains("`abandon()`"), "{text}");
            }
            // What was accepted meanwhile is taken once the cause is gone.
            is_mended.store(true, Ordering::SeqCst);
            assert_eq!(session.run("four").await.unwrap().text(), "re: four");
            let said = said(&session).await;
            let users: Vec<&str> = said.lines().filter(|line| line.starts_with("user")).collect();
            assert_eq!(
                users,
                ["user:      one", "user:      number 2", "user:      number 3", "user:      four"]
            );
        });
    });
}

/// Each command is a process: failures are counted in the record, and each message is said to be stored.
#[test]
fn failures_are_counted_over_processes_and_messages_can_be_withdrawn() {
    each_store(|world| {
        let is_mended = Arc::new(AtomicBool::new(false));
        let in_process = |text: &'static str| {
            process(async { world.session(failing(&is_mended)).await.run(text).await.unwrap_err() })
        };
        assert!(matches!(in_process("one"), RunnerError { kind: RunnerErrorKind::Run { .. }, .. }));
        let mut messages = Vec::new();
        for times in 2..5 {
            let error = in_process("more");
            let RunnerError {
                kind: RunnerErrorKind::EarlierRunFailed { times: counted, message, .. }, ..
            } = &error
            else {
                panic!("{error:?}")
            };
            assert_eq!(*counted, times);
            let text = error.to_string();
            assert!(text.contains("the message is stored") && text.contains("`withdraw()`"), "{text}");
            messages.push(message.clone());
        }
        process(async {
            let session = world.session(failing(&is_mended)).await;
            let waiting = session.inbox().await.unwrap();
            assert_eq!(waiting.iter().map(|message| message.id.clone()).collect::<Vec<_>>(), messages);
            assert_eq!(waiting[0].input.only_messages().unwrap()[0].text(), "more");
            assert!(session.withdraw(&messages[1]).await.unwrap());
            assert!(!session.withdraw(&messages[1]).await.unwrap(), "it is gone");
            is_mended.store(true, Ordering::SeqCst);
            session.run("last").await.unwrap();
            assert!(session.inbox().await.unwrap().is_empty());
            let said = said(&session).await;
            let users: Vec<&str> = said.lines().filter(|line| line.starts_with("user")).collect();
            assert_eq!(users, ["user:      one", "user:      more", "user:      more", "user:      last"]);
        });
    });
}

#[test]
fn a_run_that_failed_too_often_is_abandoned_by_the_next_process() {
    each_store(|world| {
        let is_mended = Arc::new(AtomicBool::new(false));
        let runner = || world.runner(failing(&is_mended).build().unwrap()).abandon_after(2).build();
        process(async { runner().session("ada", "s1").await.unwrap().run("one").await.unwrap_err() });
        process(async {
            let session = runner().session("ada", "s1").await.unwrap();
            // The second failure is enough: the run of the first message is abandoned, and that of the second begins.
            let error = session.run("two").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            let session = session.read(EventRange::All).await.unwrap();
            let causes: Vec<String> =
                session.events.iter().filter_map(|event| failure(&event.event)).collect();
            assert_eq!(causes.len(), 3);
            assert!(causes.iter().all(|cause| cause.contains("the licence has run out")), "{causes:?}");
        });
    });
}

/// A run that gets on and fails again has not failed again.
#[test]
fn progress_ends_a_row_of_failures() {
    each_store(|world| {
        let script = "assistant: > c1 look()\nassistant: > c2 look()\nassistant: done";
        let agent = |fails_at: u64| {
            world.agent(script).before_model(move |context| {
                let fails = context.steps >= fails_at;
                async move {
                    match fails {
                        true => Err(std::io::Error::other("no more").into()),
                        false => Ok(HookAction::proceed()),
                    }
                }
            })
        };
        process(async { world.session(agent(0)).await.run("one").await.unwrap_err() });
        for (fails_at, times) in [(0, 2), (1, 1), (1, 2), (1, 3)] {
            let error =
                process(async { world.session(agent(fails_at)).await.run("more").await.unwrap_err() });
            let RunnerError { kind: RunnerErrorKind::EarlierRunFailed { times: counted, .. }, .. } = &error
            else {
                panic!("{error:?}")
            };
            assert_eq!(*counted, times, "fails at {fails_at}");
        }
    });
}

/// A failure on the way is no end of the record: what came after it is replayed too.
#[test]
fn a_run_that_failed_on_the_way_replays_whole() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let mended = Arc::clone(&is_mended);
            let agent = world
                .agent("assistant: > c1 look()\nassistant: > c2 save()\nassistant: done")
                .before_model(move |context| {
                    let fails = context.steps > 0 && !mended.load(Ordering::SeqCst);
                    async move {
                        match fails {
                            true => Err(std::io::Error::other("no more").into()),
                            false => Ok(HookAction::proceed()),
                        }
                    }
                })
                .build()
                .unwrap();
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            session.run("go").await.unwrap_err();
            is_mended.store(true, Ordering::SeqCst);
            assert_eq!(session.resume().await.unwrap().text(), "done");
            assert_eq!(session.replay(&agent).await.unwrap(), 1);
            let look = world.tool("look", Effect::Pure).build().unwrap();
            let without_save =
                Agent::builder(Echo).name("clerk").schema(schema()).tools([look]).build().unwrap();
            let error = session.replay(&without_save).await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Diverged { .. }), "{error:?}");
        });
    });
}

/// A caller that waits for a withdrawn message is notified.
#[test]
fn a_withdrawn_message_is_no_run() {
    each_store(|world| {
        process(async {
            let ask = world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap();
            let agent = || world.agent("assistant: > c1 ask()\nassistant: done").tools([ask.clone()]);
            let session = world.session(agent()).await;
            session.run("ask").await.unwrap();
            let click =
                session.resume().decide(session.pending().await.unwrap()[0].id.clone(), Decision::Approve);
            // Something is at work, so that the message waits.
            let at_work = click.start().unwrap();
            let waits = session.send("too much").await.unwrap();
            assert!(session.withdraw(waits.id()).await.unwrap());
            at_work.await.unwrap();
            let error = waits.await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Withdrawn), "{error:?}");
            assert!(!said(&session).await.contains("too much"));
        });
    });
}

#[test]
fn a_run_that_failed_too_often_is_abandoned_automatically() {
    each_store(|world| {
        process(async {
            let is_mended = Arc::new(AtomicBool::new(false));
            let (mended, agent) = (Arc::clone(&is_mended), failing(&is_mended).build().unwrap());
            let runner = world.runner(agent).abandon_after(2).build();
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("one").await.unwrap_err();
            // The run of the first message is abandoned; that of the second fails independently.
            let error = session.run("two").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            mended.store(true, Ordering::SeqCst);
            session.run("three").await.unwrap();
            let said = said(&session).await;
            assert!(said.contains("user:      one\nuser:      two\nassistant: re: "), "{said}");
        });
    });
}

/// A paused run's `temp:` values are nowhere but in memory: other sessions do not push them out.
#[test]
fn temp_values_of_a_paused_run_stay_whatever_other_sessions_do() {
    each_store(|world| {
        process(async {
            let runner = world.runner(notes_and_reads(world)).build();
            {
                let session = runner.session("ada", "s1").await.unwrap();
                session.run("note, then read").await.unwrap();
            }
            for number in 0..300 {
                runner.session("ada", format!("other{number}")).await.unwrap();
            }
            let session = runner.session("ada", "s1").await.unwrap();
            let outcome = approve(&session).await;
            assert!(outcome.missing_temp().is_empty());
            let said = said(&session).await;
            assert!(said.contains("kept"), "{said}");
        });
    });
}

/// The memory for values is bounded. A resumed run reports which of its values are lost.
#[test]
fn temp_values_that_are_gone_when_a_run_is_resumed_are_reported() {
    each_store(|world| {
        let runner = || world.runner(notes_and_reads(world)).max_paused(2).build();
        process(async {
            let runner = runner();
            for number in 0..4 {
                let session = runner.session("ada", format!("s{number}")).await.unwrap();
                session.run("note, then read").await.unwrap();
            }
            // The process drops the values that were used least recently.
            for number in 0..300 {
                runner.session("ada", format!("other{number}")).await.unwrap();
            }
            for (number, expected) in [(0, "gone"), (3, "kept")] {
                let session = runner.session("ada", format!("s{number}")).await.unwrap();
                let outcome = approve(&session).await;
                assert_eq!(outcome.missing_temp().is_empty(), expected == "kept");
                let said = said(&session).await;
                assert!(said.contains(expected), "{said}");
            }
        });
        process(async {
            let session = runner().session("ada", "s2").await.unwrap();
            assert_eq!(approve(&session).await.missing_temp(), ["temp:note"]);
        });
    });
}

async fn approve(session: &SessionHandle) -> Arc<Outcome> {
    let id = session.pending().await.unwrap()[0].id.clone();
    session.resume().decide(id, Decision::Approve).await.unwrap()
}

/// An agent that leaves a note for itself before it waits for a decision.
fn notes_and_reads(world: &World) -> Agent {
    let note = |context: ToolContext| async move {
        context.writer().set("temp:note", "kept")?;
        Ok::<_, ToolError>("noted")
    };
    let read = |context: ToolContext| async move {
        let note = context.state().get("temp:note").map(|note| note.to_string());
        Ok::<_, ToolError>(note.unwrap_or_else(|| "gone".to_owned()))
    };
    let tools = [
        Tool::new("note", "Notes.", note).writes(["temp:note"]).effect(Effect::Pure).build().unwrap(),
        Tool::new("read", "Reads.", read).approval(Approval::Always).build().unwrap(),
    ];
    paused(world).tools(tools).build().unwrap()
}

fn paused(world: &World) -> AgentBuilder {
    world.agent("assistant: > c1 note()\nassistant: > c2 read()\nassistant: done")
}

/// The pending requests of a long session are found without reading all of it.
#[test]
fn what_is_pending_is_reported_without_reading_the_whole_session_or_its_values() {
    each_store(|world| {
        let script = format!("{}assistant: > c1 ask()\nassistant: done", "assistant: hello\n".repeat(200));
        let ask = world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap();
        let agent = || world.agent(&script).tools([ask.clone()]);
        let id = process(async {
            let session = world.session(agent()).await;
            for number in 0..=200 {
                session
                    .run(Input::new().say(format!("{number}")).with_values(json!({"topic": "engines"})))
                    .await
                    .unwrap();
            }
            world.wire.take_reads();
            world.wire.take_values();
            let id = session.pending().await.unwrap()[0].id.clone();
            // What this process knows is not read again.
            let (reads, events) = world.wire.take_reads();
            assert!(reads <= 1 && events <= 4, "{reads} reads, {events} events");
            assert!(session.state().await.unwrap().get("topic").is_some());
            assert!(world.wire.take_values().is_empty());
            id
        });
        process(async {
            let session = world.session(agent()).await;
            world.wire.take_reads();
            assert_eq!(session.pending().await.unwrap()[0].id, id);
            assert!(session.unfinished().await.unwrap().unwrap().exit().is_none());
            let (_, events) = world.wire.take_reads();
            assert!(events <= 128, "{events} events");
            assert!(world.wire.take_values().is_empty(), "nobody needs them");
        });
    });
}

#[test]
fn an_error_shows_its_causes_in_one_line() {
    each_store(|world| {
        process(async {
            let session = world.session(failing(&Arc::default())).await;
            let error = session.run("one").await.unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("session {}: run failed after", session.key())), "{text}");
            assert!(
                text.ends_with("failed after step 0: hook before the model failed: the licence has run out"),
                "{text}"
            );
            // What the text shows is not shown again by those who follow the sources.
            assert!(std::error::Error::source(&error).is_none(), "{text}");
        });
    });
}

/// An agent whose instructions need a value.
fn of_topic(world: &World) -> AgentBuilder {
    world.agent("assistant: done").instructions("Look at {topic}.")
}

fn about_rows(text: &str) -> Input {
    Input::new().say(text).with_values(json!({"topic": "rows"}))
}

/// Messages whose runs fail before anything of them is stored: a value is missing, and one is of another type.
fn that_cannot_begin() -> [Input; 2] {
    [Input::new().say("one"), Input::new().say("one").with_values(json!({"topic": 5}))]
}

/// A message that was stored by a process which died before its run began.
/// Contents of messages stay in the store while they wait, and are read when they are taken: alone, together, and by a run at
/// work.
#[test]
fn large_messages_are_taken_whole() {
    each_store(|world| {
        let text = |number: usize| format!("message {number} {}", "word ".repeat(20_000));
        process(async {
            let runner = world.runner(Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap());
            let runner = runner.build();
            let session = runner.session("ada", "s1").await.unwrap();
            let kinds = [InboxKind::Message, InboxKind::Message, InboxKind::Steer, InboxKind::Steer];
            for (number, kind) in kinds.into_iter().enumerate() {
                let id = IdempotencyKey::new(format!("m{number}")).unwrap();
                let body = Input::from(text(number)).to_json().unwrap();
                let stored = EnqueueInput::new(session.key().clone(), kind, id, body, Still.now());
                world.store().enqueue(stored).await.unwrap();
            }
            // It waits behind them.
            assert_eq!(session.run(text(4)).await.unwrap().text(), format!("re: {}", text(4)));
            let said = session.state().await.unwrap().messages().clone();
            let users = said.iter().filter(|message| message.role() == Role::User);
            let users: Vec<String> = users.map(|message| message.text().into_owned()).collect();
            assert_eq!(users, (0..5).map(text).collect::<Vec<_>>());
            assert!(session.inbox().await.unwrap().is_empty());
        });
    });
}

async fn left_by_a_dead_process(world: &World, session: &SessionHandle, input: &Input) {
    let stored = EnqueueInput::new(
        session.key().clone(),
        InboxKind::Message,
        IdempotencyKey::new("m1").unwrap(),
        input.to_json().unwrap(),
        Still.now(),
    );
    world.store().enqueue(stored).await.unwrap();
}

#[test]
fn a_message_that_cannot_begin_is_reported_to_its_sender_and_blocks_no_other() {
    for input in that_cannot_begin() {
        each_store(|world| {
            process(async {
                let session = world.session(of_topic(world)).await;
                let error = session.send_once("m1", input.clone()).await.unwrap().await.unwrap_err();
                let is_told =
                    matches!(error.kind, RunnerErrorKind::Run { .. } | RunnerErrorKind::Input { .. });
                assert!(is_told, "{error:?}");
                assert!(session.inbox().await.unwrap().is_empty());
                assert_eq!(session.run(about_rows("two")).await.unwrap().text(), "done");
            });
        });
    }
}

#[test]
fn a_message_of_another_sender_that_cannot_begin_is_named_to_the_next_sender() {
    for input in that_cannot_begin() {
        each_store(|world| {
            process(async {
                let session = world.session(of_topic(world)).await;
                left_by_a_dead_process(world, &session, &input).await;
                for (ended, accepted) in
                    [(session.resume().await, false), (session.run(about_rows("two")).await, true)]
                {
                    let Err(RunnerError {
                        kind: RunnerErrorKind::EarlierCannotBegin { earlier, is_accepted, .. },
                        ..
                    }) = &ended
                    else {
                        panic!("{ended:?}")
                    };
                    assert_eq!((earlier.as_str(), *is_accepted), ("m1", accepted));
                    let text = ended.unwrap_err().to_string();
                    assert!(text.contains("`m1`") && text.contains("`withdraw()`"), "{text}");
                }
                let waiting = session.inbox().await.unwrap();
                assert_eq!((waiting.len(), waiting[0].id.as_str()), (2, "m1"));
                assert!(session.withdraw(&waiting[0].id).await.unwrap());
                assert_eq!(session.resume().await.unwrap().text(), "done");
                assert!(said(&session).await.starts_with("user:      two\n"));
            });
        });
    }
}

/// Fails when it hears that a run has ended like this.
struct FailsAtEnd(Exit);

impl Observer for FailsAtEnd {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event {
            RunEvent::Ended(exit) if *exit == self.0 => Err("the disk is full".into()),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_run_that_has_ended_has_not_failed_whatever_its_observer_does() {
    each_store(|world| {
        process(async {
            let agent = Agent::builder(Echo).name("clerk").schema(schema()).build().unwrap();
            let runner = world.runner(agent).observe(|_| FailsAtEnd(Exit::Text)).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let error = session.run("one").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            let stored = session.read(EventRange::All).await.unwrap();
            assert!(stored.events.iter().all(|event| failure(&event.event).is_none()));
            assert!(!stepfold_runner::is_unfinished(&stored.events.last().unwrap().event));
            assert!(stored.claim.is_none());
        });
    });
}

/// How a run failed that was given up says nothing about the one after it.
#[test]
fn the_failure_of_a_run_that_was_abandoned_is_not_reported_for_another() {
    each_store(|world| {
        process(async {
            let failures = Arc::new(AtomicUsize::new(0));
            let agent = Agent::builder(Echo).name("clerk").schema(schema()).before_model(move |_| {
                let fails = failures.fetch_add(1, Ordering::SeqCst) < 2;
                async move {
                    match fails {
                        true => Err(std::io::Error::other("the licence has run out").into()),
                        false => Ok(HookAction::proceed()),
                    }
                }
            });
            let runner =
                world.runner(agent.build().unwrap()).abandon_after(2).observe(|_| FailsAtEnd(Exit::Text));
            let session = runner.build().session("ada", "s1").await.unwrap();
            session.run("one").await.unwrap_err();
            left_by_a_dead_process(world, &session, &Input::new().say("two")).await;
            let error = session.run("three").await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::EarlierRunFailed { cause, times, .. }, .. } = &error
            else {
                panic!("{error:?}")
            };
            assert!(cause.contains("the disk is full") && *times == 1, "{times} times: {cause}");
        });
    });
}

/// Names runs and attempts by their number alone.
#[derive(Clone, Default)]
struct Numbers(Arc<AtomicUsize>);

impl Ids for Numbers {
    fn next(&self) -> String {
        self.0.fetch_add(1, Ordering::SeqCst).to_string()
    }
}

/// No two events of a session share an id, though each is made of an idempotency key, which is free: an equal one would
/// pass for a repetition, and its message would be lost.
#[test]
fn keys_that_look_like_ids_of_events_are_told_of_their_own_runs() {
    let ends = [
        "",
        ".0",
        ".1",
        ".2",
        ".failed",
        ".1.failed",
        ".2.failed",
        ".3.failed",
        ".1.0",
        ".2.0",
        ".r0",
        ".1.r0",
    ];
    for seed in 0..8 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut keys = ends.map(|end| (format!("a{end}"), dice.bool()));
        // The first attempt has a number that is a place as well.
        keys[0].1 = true;
        dice.shuffle(&mut keys[1..]);
        each_store(|world| {
            let is_mended = Arc::new(AtomicBool::new(false));
            let session = async || {
                let runner = world.runner(failing(&is_mended).build().unwrap()).ids(Numbers::default());
                runner.build().session("ada", "s1").await.unwrap()
            };
            process(async {
                let session = session().await;
                for (key, fails_first) in &keys {
                    is_mended.store(!fails_first, Ordering::SeqCst);
                    let mut told = session.send_once(key.as_str(), key.as_str()).await.unwrap().await;
                    if *fails_first {
                        assert!(told.is_err(), "{key}: {told:?}");
                        is_mended.store(true, Ordering::SeqCst);
                        told = session.resume().await;
                    }
                    assert_eq!(told.unwrap().text(), format!("re: {key}"));
                }
            });
            process(async {
                let session = session().await;
                for (key, _) in &keys {
                    let told = session.send_once(key.as_str(), key.as_str()).await.unwrap().await;
                    assert_eq!(told.unwrap().text(), format!("re: {key}"));
                }
                let events = session.read(EventRange::All).await.unwrap().events;
                let ids: HashSet<&str> = events.iter().map(|it| it.event.id.as_str()).collect();
                assert_eq!(ids.len(), events.len());
            });
        });
    }
}
