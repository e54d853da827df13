//! A process dies at every commit, and another one continues.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use futures_util::StreamExt;
use stepfold_runner::agent_loop::{AgentBuilder, Exit, Outcome, Pause, RunEvent};
use stepfold_runner::{InvocationEvent, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Approval, Effect};

use crate::world::{Fault, World, each_store, process, shown};

const SCRIPT: &str = "\
assistant: > c1 look()  > c2 save()  > c3 pay()
assistant: > c4 pay()
assistant: done
assistant: you are welcome
";

/// Continues, wherever the session is.
async fn finish(session: &SessionHandle) {
    match session.last_run().await.unwrap() {
        None => session.run("pay the bills").await.unwrap(),
        Some(run) if run.exit().is_none() => session.resume().await.unwrap(),
        Some(_) => return,
    };
}

/// A line for each place where the process died: which calls ran how often, and what the model read of those
/// that must not run twice.
fn check(world: &World, agent: impl Fn() -> AgentBuilder, fault: Fault, expected: &Expect) {
    let mut lines = String::new();
    let whole = process(async {
        let runner = world.runner(agent().build().unwrap()).build();
        world.wire.faults([]);
        let session = runner.session("ada", "whole").await.unwrap();
        session.run("pay the bills").await.unwrap();
        shown(&session).await
    });
    let appends = world.wire.appends();
    world.trace.take();
    for place in 0..appends {
        let id = format!("{fault:?}{place}");
        world.wire.faults([(place, fault)]);
        let died = world.wire.process(async {
            let runner = world.runner(agent().build().unwrap()).build();
            runner.session("bob", &*id).await.unwrap().run("pay the bills").await
        });
        assert!(died.is_none(), "{died:?}");
        let text = process(async {
            let runner = world.runner(agent().build().unwrap()).build();
            let session = runner.session("bob", &*id).await.unwrap();
            finish(&session).await;
            shown(&session).await
        });
        // Whatever is counted by call, and everything by the key that it had.
        let ran = world.trace.take();
        let keys = ran.iter().filter_map(|line| line.split_once(' ')).filter(|(tool, _)| *tool != "the");
        let mut runs: Vec<(&str, &str, &str, usize)> = Vec::new();
        for (tool, key) in keys {
            let call = &key[key.rfind('/').unwrap() + 1..];
            match runs.iter_mut().find(|(known, ..)| *known == call) {
                None => runs.push((call, tool, key, 1)),
                Some((_, _, first, count)) => {
                    assert_eq!(*first, key, "the same key");
                    *count += 1;
                }
            }
        }
        runs.sort_unstable();
        let runs: String =
            runs.iter().map(|(call, tool, _, count)| format!(" {call} {tool} x{count}")).collect();
        let unknown: String = text
            .lines()
            .filter(|line| line.contains("unknown"))
            .filter_map(|line| Some(format!(", {} is unknown", line.split_once('!')?.0)))
            .collect();
        writeln!(lines, "{place}:{runs}{unknown}").unwrap();
        if unknown.is_empty() {
            // But for what the other session has added to what they share.
            let own = |text: &str| {
                text.lines().filter(|line| !line.contains(":n =")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(own(&text), own(&whole));
        }
    }
    expected.assert_eq(&lines);
}

#[test]
fn a_process_that_dies_after_a_commit() {
    each_store(|world| {
        check(
            world,
            || world.agent(SCRIPT),
            Fault::DiesAfter,
            &expect![[r#"
        0: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        1: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        2: c1 look x1 c2 save x1 c4 pay x1, tool c3 is unknown
        3: c1 look x1 c2 save x1 c4 pay x1, tool c3 is unknown
        4: c1 look x1 c2 save x1 c4 pay x1, tool c3 is unknown
        5: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        6: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        7: c1 look x1 c2 save x1 c3 pay x1, tool c4 is unknown
        8: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        9: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
    "#]],
        );
    });
}

#[test]
fn a_process_that_dies_before_a_commit() {
    each_store(|world| {
        check(
            world,
            || world.agent(SCRIPT),
            Fault::DiesBefore,
            &expect![[r#"
        0: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        1: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        2: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        3: c1 look x2 c2 save x1 c4 pay x1, tool c3 is unknown
        4: c1 look x1 c2 save x2 c4 pay x1, tool c3 is unknown
        5: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1, tool c3 is unknown
        6: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        7: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
        8: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1, tool c4 is unknown
        9: c1 look x1 c2 save x1 c3 pay x1 c4 pay x1
    "#]],
        );
    });
}

/// Dies after the marker of the call `c3`.
fn die_while_paying(world: &World, agent: impl Fn() -> AgentBuilder) {
    world.wire.faults([(4, Fault::DiesAfter)]);
    let died = world.wire.process(async { world.session(agent()).await.run("pay the bills").await });
    assert!(died.is_none());
    world.trace.take();
}

/// Dies after the marker of the first call.
fn die_after_marker(world: &World, agent: AgentBuilder) {
    world.wire.faults([(2, Fault::DiesAfter)]);
    let died = world.wire.process(async { world.session(agent).await.run("pay the bills").await });
    assert!(died.is_none());
}

#[test]
fn a_message_finishes_what_was_interrupted_first() {
    each_store(|world| {
        die_while_paying(world, || world.agent(SCRIPT));
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            session.run("thanks").await.unwrap();
            expect![[r#"
                user:      pay the bills
                assistant: > c1 look()   > c2 save()   > c3 pay()
                tool c1:   look is done
                tool c2:   save is done
                tool c3!:  tool 'pay' had started when the process was interrupted: its outcome is unknown, and it was not run again
                assistant: > c4 pay()
                tool c4:   pay is done
                assistant: done
                user:      thanks
                assistant: you are welcome
                app:n = 3
                log = ["look","save","pay"]
                n = 3
                user:n = 3
            "#]].assert_eq(&shown(&session).await);
        });
    });
}

fn unknown(outcome: &Outcome) -> Vec<&str> {
    outcome.unknown_calls().into_iter().map(|call| &*call.id).collect()
}

/// The interrupted run is not resumed explicitly: the outcome of the next message lists its unknown calls, even if that
/// message's run fails.
#[test]
fn the_next_message_tells_the_unknown_calls_of_the_run_that_it_recovers() {
    each_store(|world| {
        die_while_paying(world, || world.agent(SCRIPT));
        process(async {
            let session = world.session(world.agent(SCRIPT)).await;
            let invocation = session.send("thanks").await.unwrap();
            let outcome = invocation.outcome().await.unwrap();
            assert_eq!((&*outcome.text(), unknown(&outcome)), ("you are welcome", vec!["c3"]));
            let [recovered] = outcome.recovered() else { panic!("{:?}", outcome.recovered()) };
            assert_eq!((&*recovered.text(), unknown(recovered)), ("done", vec!["c3"]));
            assert_eq!(invocation.recovered().len(), 1);
            let events: Vec<InvocationEvent> = invocation.subscribe(0).collect().await;
            let said = |wanted: bool| {
                let texts = events.iter().filter_map(move |seen| match seen {
                    InvocationEvent::Event { event: RunEvent::Text(text), is_earlier, .. }
                        if *is_earlier == wanted =>
                    {
                        Some(text.as_str())
                    }
                    _ => None,
                });
                texts.collect::<String>()
            };
            assert_eq!((said(true).as_str(), said(false).as_str()), ("done", "you are welcome"));
            assert!(unknown(session.run("again").await.unwrap_err().outcome().unwrap()).is_empty());
        });
    });
}

#[test]
fn unknown_calls_of_a_recovered_run_are_reported_also_when_it_waits_or_the_message_fails() {
    each_store(|world| {
        // The message's own run fails: the script has no reply for it.
        let agent = || world.agent("assistant: > c1 pay()\nassistant: done");
        die_after_marker(world, agent());
        process(async {
            let error = world.session(agent()).await.run("thanks").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            assert_eq!(unknown(error.outcome().unwrap()), ["c1"]);
        });
    });
    each_store(|world| {
        // The recovered run asks for a decision.
        let tools = [
            world.tool("pay", Effect::AtMostOnce).build().unwrap(),
            world.tool("ask", Effect::Pure).approval(Approval::Always).build().unwrap(),
        ];
        let agent = || world.agent("assistant: > c1 pay()\nassistant: > c2 ask()").tools(tools.clone());
        die_after_marker(world, agent());
        process(async {
            let error = world.session(agent()).await.run("thanks").await.unwrap_err();
            assert!(
                matches!(error, RunnerError { kind: RunnerErrorKind::Pending { is_accepted: true, .. }, .. }),
                "{error:?}"
            );
            assert_eq!(unknown(error.outcome().unwrap()), ["c1"]);
        });
    });
}

#[test]
fn what_may_have_happened_can_be_asked_about() {
    each_store(|world| {
        let agent = || world.agent(SCRIPT).ask_when_uncertain();
        die_while_paying(world, agent);
        process(async {
            let session = world.session(agent()).await;
            let outcome = session.resume().await.unwrap();
            assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
            assert!(world.trace.take().is_empty());
        });
        process(async {
            let session = world.session(agent()).await;
            let error = session.run("thanks").await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Pending { pending, .. }, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(pending.len(), 1);
            let outcome = session
                .resume()
                .decide(&*pending[0], stepfold_runner::agent_loop::Decision::Approve)
                .await
                .unwrap();
            assert_eq!(outcome.text(), "done");
            expect![[r#"
                pay stalls/ada/s1/i1/1/c3
                the model is asked
                pay stalls/ada/s1/i1/2/c4
                the model is asked"#]]
            .assert_eq(&world.trace.take().join("\n"));
        });
    });
}

/// Longer than the time of a test, which continues while a store works in threads of its own.
const WAIT: stepfold_runner::WhenClaimed =
    stepfold_runner::WhenClaimed::Wait { at_most: std::time::Duration::from_secs(1_000_000) };

/// Two workers take the same run up. One of them continues with it, and nothing runs twice.
#[test]
fn two_workers_resume_one_run() {
    each_store(|world| {
        world.wire.faults([(1, Fault::DiesAfter)]);
        world.wire.process(async { world.session(world.agent(SCRIPT)).await.run("pay the bills").await });
        world.trace.take();
        world.wire.faults([]);
        process(async {
            let one = world.session(world.agent(SCRIPT)).await;
            let other = world
                .runner(world.agent(SCRIPT).build().unwrap())
                .worker("other")
                .unwrap()
                .when_claimed(WAIT)
                .build();
            let two = other.session("ada", "s1").await.unwrap();
            let (one, two) = tokio::join!(one.resume().into_future(), two.resume().into_future());
            let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
            assert_eq!(won.unwrap().text(), "done");
            let lost = lost.unwrap_err();
            // It waits for the claim of the first, and finds nothing left to do.
            assert!(matches!(lost.kind, RunnerErrorKind::NothingToResume), "{lost:?}");
            let mut ran = world.trace.take();
            ran.retain(|line| line.starts_with("pay"));
            assert_eq!(ran, ["pay stalls/ada/s1/i1/1/c3", "pay stalls/ada/s1/i1/2/c4"]);
        });
    });
}
