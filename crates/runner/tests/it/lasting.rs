//! What was committed stays: over processes, over a store that fails, in the order in which it happened.

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_runner::agent_loop::Exit;
use stepfold_runner::session_scopes::{EventRange, SessionError};
use stepfold_runner::{InvocationResult, RunnerError, RunnerErrorKind};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError};

use crate::world::{Fault, World, each_store, process, shown};

const LOOK_AND_PAY: &str = "\
assistant: > c1 look()  > c2 pay()
assistant: done
assistant: you are welcome
";

#[test]
fn another_process_continues() {
    each_store(|world| {
        process(async {
            let runner = world.runner(world.agent(LOOK_AND_PAY).build().unwrap()).build();
            let session = runner.create("ada", "s1", json!({"app:n": 10, "topic": "stalls"})).await.unwrap();
            session.run("pay the bill").await.unwrap();
            let again = runner.create("ada", "s1", json!({})).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. } = &again else {
                panic!("{again:?}")
            };
            assert!(matches!(**source, SessionError::AlreadyExists { .. }), "{source:?}");
        });
        process(async {
            let session = world.session(world.agent(LOOK_AND_PAY)).await;
            let outcome = session.run("thanks").await.unwrap();
            assert_eq!((outcome.exit(), outcome.steps()), (&Exit::Text, 1));
            expect![[r#"
                user:      pay the bill
                assistant: > c1 look()   > c2 pay()
                tool c1:   look is done
                tool c2:   pay is done
                assistant: done
                user:      thanks
                assistant: you are welcome
                app:n = 12
                log = ["look","pay"]
                n = 2
                topic = "stalls"
                user:n = 2
            "#]]
            .assert_eq(&shown(&session).await);
            assert_eq!(outcome.state().get("app:n").unwrap(), json!(12));
        });
    });
}

#[test]
fn every_commit_is_stored_before_anything_else_happens() {
    each_store(|world| {
        world.wire.listen();
        process(async {
            let session = world.session(world.agent(LOOK_AND_PAY)).await;
            session.run("pay the bill").await.unwrap();
            session.run("thanks").await.unwrap();
            assert_eq!(session.read(EventRange::None).await.unwrap().claim, None);
        });
        // The session is claimed, and given up, by no commits of their own. With a store in threads of its own, the time of
        // the test continues while that works, and with it the heartbeat.
        let mut commits = world.wire.take_commits();
        commits.retain(|commit| world.is_in_memory() || *commit != "renew");
        assert!(commits.is_empty(), "{commits:?}");
        expect![[r#"
            stored: began i1.0 at 1
            the model is asked
            stored: replied i1.1 at 2
            stored: started i1.2 at 3
            look stalls/ada/s1/i1/1/c1
            stored: answered i1.3 at 4
            pay stalls/ada/s1/i1/1/c2
            stored: answered i1.4 at 5
            the model is asked
            stored: replied i1.5 at 6
            stored: began i2.0 at 7
            the model is asked
            stored: replied i2.1 at 8"#]]
        .assert_eq(&world.trace.take().join("\n"));
    });
}

/// Runs a turn over a store that fails, and then what is left of it, in another process.
fn check_faults(faults: &[(usize, Fault)], first: Expect, second: Expect) {
    each_store(|world: &World| {
        world.wire.listen();
        world.wire.faults(faults.iter().copied());
        let ended = |ended: InvocationResult| match ended {
            Ok(outcome) => outcome.exit().to_string(),
            Err(error) => error.to_string(),
        };
        process(async {
            let session = world.session(world.agent(LOOK_AND_PAY)).await;
            world.trace.note(ended(session.run("pay the bill").await));
        });
        first.assert_eq(&world.trace.take().join("\n"));
        process(async {
            let session = world.session(world.agent(LOOK_AND_PAY)).await;
            world.trace.note(ended(session.resume().await));
            let stored = session.read(EventRange::All).await.unwrap();
            assert_eq!(stored.version, stored.events.len() as u64);
        });
        second.assert_eq(&world.trace.take().join("\n"));
    });
}

#[test]
fn a_store_that_breaks_stops_the_run_which_can_be_resumed() {
    // The reply is lost, so the model is asked again; no tool had run.
    check_faults(
        &[(1, Fault::Broken)],
        expect![[r#"
            stored: began i1.0 at 1
            the model is asked
            the store breaks: replied i1.1
            session stalls/ada/s1: the store failed: the store could not append an event: it is broken"#]],
        expect![[r#"
            the model is asked
            stored: replied i1.1.i3 at 2
            stored: started i1.2.i3 at 3
            look stalls/ada/s1/i1/1/c1
            stored: answered i1.3.i3 at 4
            pay stalls/ada/s1/i1/1/c2
            stored: answered i1.4.i3 at 5
            the model is asked
            stored: replied i1.5.i3 at 6
            the model answered"#]],
    );
    // The marker is lost, so the tool did not run.
    check_faults(
        &[(3, Fault::Broken)],
        expect![[r#"
            stored: began i1.0 at 1
            the model is asked
            stored: replied i1.1 at 2
            stored: started i1.2 at 3
            look stalls/ada/s1/i1/1/c1
            the store breaks: answered i1.3
            session stalls/ada/s1: the store failed; unrecorded outcomes: `c1`: the store could not append an event: it is broken"#]],
        expect![[r#"
            stored: interrupted i1.3.i3 at 4
            look stalls/ada/s1/i1/1/c1
            stored: answered i1.4.i3 at 5
            the model is asked
            stored: replied i1.5.i3 at 6
            the model answered"#]],
    );
    // The outcome is lost: the result of the call is unknown.
    check_faults(
        &[(4, Fault::Broken)],
        expect![[r#"
            stored: began i1.0 at 1
            the model is asked
            stored: replied i1.1 at 2
            stored: started i1.2 at 3
            look stalls/ada/s1/i1/1/c1
            stored: answered i1.3 at 4
            pay stalls/ada/s1/i1/1/c2
            the store breaks: answered i1.4
            session stalls/ada/s1: the store failed; unrecorded outcomes: `c2`: the store could not append an event: it is broken"#]],
        expect![[r#"
            stored: interrupted i1.4.i3 at 5
            the model is asked
            stored: replied i1.5.i3 at 6
            the model answered"#]],
    );
}

#[test]
fn a_store_that_is_busy_is_asked_again_and_no_tool_runs_again() {
    check_faults(
        &[(0, Fault::Busy), (4, Fault::Busy), (5, Fault::Busy), (7, Fault::Busy)],
        expect![[r#"
            the store is busy: began i1.0
            stored: began i1.0 at 1
            the model is asked
            stored: replied i1.1 at 2
            stored: started i1.2 at 3
            look stalls/ada/s1/i1/1/c1
            the store is busy: answered i1.3
            the store is busy: answered i1.3
            stored: answered i1.3 at 4
            pay stalls/ada/s1/i1/1/c2
            the store is busy: answered i1.4
            stored: answered i1.4 at 5
            the model is asked
            stored: replied i1.5 at 6
            the model answered"#]],
        expect!["session stalls/ada/s1: nothing to resume: no run is interrupted or paused"],
    );
}

#[test]
fn what_was_made_and_not_heard_of_is_made_once() {
    check_faults(
        &[(0, Fault::Lost), (2, Fault::Lost), (4, Fault::Lost), (6, Fault::Lost), (8, Fault::Lost)],
        expect![[r#"
            stored: began i1.0 at 1
            stored: began i1.0 at 1
            the model is asked
            stored: replied i1.1 at 2
            stored: replied i1.1 at 2
            stored: started i1.2 at 3
            stored: started i1.2 at 3
            look stalls/ada/s1/i1/1/c1
            stored: answered i1.3 at 4
            stored: answered i1.3 at 4
            pay stalls/ada/s1/i1/1/c2
            stored: answered i1.4 at 5
            stored: answered i1.4 at 5
            the model is asked
            stored: replied i1.5 at 6
            the model answered"#]],
        expect!["session stalls/ada/s1: nothing to resume: no run is interrupted or paused"],
    );
}

#[test]
fn a_worker_holds_a_result_until_its_store_takes_it() {
    let for_long: Vec<_> = (4..100).map(|append| (append, Fault::Busy)).collect();
    each_store(|world| {
        world.wire.faults(for_long.clone());
        process(async {
            let session = world.session(world.agent(LOOK_AND_PAY)).await;
            let outcome = session.run("pay the bill").await.unwrap();
            assert_eq!(outcome.text(), "done");
            assert!(!outcome.transcript().to_string().contains("its outcome is unknown"));
        });
    });
}

/// Five hundred steps: what is stored grows with them and not with their square, and a turn reads what is new.
#[test]
fn five_hundred_steps() {
    each_store(|world| {
        let script = |steps: usize| {
            let lines = (0..steps).map(|step| format!("assistant: > c{step} look(place={step})\n"));
            lines.collect::<String>() + &"assistant: done\n".repeat(4)
        };
        let stored = |user: &str, steps: usize| {
            process(async {
                let look = async |context: ToolContext| {
                    context.writer().set("log", json!([context.call_id()]))?;
                    Ok::<_, ToolError>("nothing to see here")
                };
                let look = Tool::new("look", "Looks.", look)
                    .parameters(json!({"type": "object"}))
                    .writes(["log"])
                    .effect(Effect::Pure)
                    .build()
                    .unwrap();
                let agent = world.agent(&script(steps)).tools(vec![look]).max_steps(1_000).build().unwrap();
                let runner = world.runner(agent).build();
                let session = runner.session(user, "s1").await.unwrap();
                let outcome = session.run("look everywhere").await.unwrap();
                assert_eq!(outcome.steps(), steps as u64 + 1);
                let appended = 2 + 2 * steps;
                world.wire.take_reads();
                session.run("thanks").await.unwrap();
                let (_, events) = world.wire.take_reads();
                assert!(events <= appended, "{events} of {appended}");
                session.run("thanks again").await.unwrap();
                let (reads, events) = world.wire.take_reads();
                assert!(reads <= 2 && events == 0, "what it wrote itself: {events} events in {reads} reads");
                let events = session.read(EventRange::All).await.unwrap().events;
                events.iter().map(|event| event.event.to_stored().unwrap().len()).sum::<usize>()
            })
        };
        let (half, whole) = (stored("ada", 250), stored("bob", 500));
        assert!(whole < half * 21 / 10, "{half} bytes for 250 steps, {whole} for 500");
        // A thousand commits of somewhat more than five hundred bytes each.
        assert!(whole < 560_000, "{whole} bytes");
    });
}
