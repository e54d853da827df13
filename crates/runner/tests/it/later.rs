//! Outcomes that come later: delivered under a token from any process, once; deadlines that pass; durable timers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, AskReason, DecisionError, Exit, Pause};
use stepfold_runner::session_scopes::{ListSessions, ListUnattended, SessionStore, Timestamp, Unattended};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError};
use tokio::sync::Notify;

use crate::crash::server::server;
use crate::crash::store::open;
use crate::world::{Fault, ManualClock, Trace, World, each_store, process, recover, threads};

const PAUSED: Exit = Exit::Paused(Pause::Approval);
const MINUTE: Duration = Duration::from_secs(60);

const SCRIPT: &str = "assistant: > c1 taxi()\nassistant: done\nassistant: again";

/// Orders a taxi once, and notes what comes of it. Without a deadline if there are no minutes.
fn taxi(trace: &Trace, minutes: u32) -> Tool {
    let trace = trace.clone();
    let taxi = move |context: ToolContext| {
        let trace = trace.clone();
        async move {
            let mut taxi = context.later("taxi").message("a taxi");
            if minutes > 0 {
                taxi = taxi.within(MINUTE * minutes);
            }
            if taxi.is_new() {
                trace.note("ordered");
            }
            let outcome = taxi.outcome()?;
            trace.note(format!("came {outcome}"));
            Ok::<_, ToolError>(outcome)
        }
    };
    Tool::new("taxi", "Orders a taxi.", taxi).effect(Effect::Idempotent).build().unwrap()
}

fn agent(trace: &Trace, minutes: u32) -> AgentBuilder {
    Agent::builder(Script::parse(SCRIPT).unwrap()).tools([taxi(trace, minutes)])
}

fn runner(world: &World, worker: &str, agent: AgentBuilder, clock: &ManualClock) -> Runner {
    let runner = world.runner(agent.build().unwrap()).worker(worker).unwrap();
    runner.clock(clock.clone()).claim_for(Duration::from_secs(10)).build()
}

async fn waits(runner: &Runner) -> (SessionHandle, String) {
    let session = runner.session("ada", "s1").await.unwrap();
    assert_eq!(session.run("a taxi, please").await.unwrap().exit(), &PAUSED);
    let token = token(&session).await;
    (session, token)
}

async fn token(session: &SessionHandle) -> String {
    let request = session.pending().await.unwrap().remove(0);
    assert_eq!((request.reason, request.message.as_deref()), (AskReason::Later, Some("a taxi")));
    request.token.unwrap()
}

/// The messages of a session in which nothing runs any more.
async fn said(session: &SessionHandle) -> String {
    if let Some(going) = session.running() {
        // It may have failed: its decision came too late.
        let _ = going.outcome().await;
    }
    let said = session.last_run().await.unwrap().unwrap().transcript().to_string();
    said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

async fn unattended(runner: &Runner) -> Vec<Unattended> {
    let app = runner.key("ada", "s1").unwrap().app;
    let now = ListUnattended::new(app, Timestamp::from_micros(i64::MAX));
    runner.store().unattended(now).await.unwrap()
}

fn is_not_awaited(error: &RunnerError) -> bool {
    matches!(error.kind, RunnerErrorKind::NotAwaited { .. })
}

#[test]
fn an_outcome_is_delivered_from_another_process_once() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        let token = process(async { waits(&runner(world, "a", agent(&trace, 0), &clock)).await.1 });
        assert_eq!(trace.take(), ["ordered"]);
        process(async {
            let runner = runner(world, "b", agent(&trace, 0), &clock);
            // No worker has to poll it.
            assert_eq!(unattended(&runner).await, []);
            let receipt = runner.complete(&token, Ok(json!({"at": 9}))).await.unwrap();
            let session = runner.session("ada", "s1").await.unwrap();
            let said = said(&session).await;
            assert!(said.contains("tool c1: {\"at\": 9}") && said.ends_with("assistant: done\n"), "{said}");
            assert_eq!(runner.complete(&token, Ok(json!({"at": 9}))).await.unwrap(), receipt);
        });
        process(async {
            let runner = runner(world, "c", agent(&trace, 0), &clock);
            runner.complete(&token, Ok(json!({"at": 9}))).await.unwrap();
            let other = runner.complete(&token, Ok(json!({"at": 10}))).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = &other else {
                panic!("{other}")
            };
            assert!(matches!(**error, DecisionError::KeyReused { .. }), "{other}");
        });
        assert_eq!(trace.take(), ["came {\"at\":9}"]);
    });
}

#[test]
fn a_failure_is_for_the_model_and_an_outcome_has_to_fit() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        let wait =
            async |context: ToolContext| context.later("form").schema(json!({"type": "integer"})).outcome();
        let tool = Tool::new("taxi", "Waits.", wait).build().unwrap();
        let agent = Agent::builder(Script::parse(SCRIPT).unwrap()).tools([tool]);
        process(async {
            let runner = runner(world, "a", agent, &clock);
            let session = runner.session("ada", "s1").await.unwrap();
            session.run("go").await.unwrap();
            let token = session.pending().await.unwrap().remove(0).token.unwrap();
            let error = runner.complete(&token, Ok(json!("nine"))).await.unwrap_err();
            assert!(error.to_string().contains("integer"), "{error}");
            // It is not a question to a person.
            let id = session.pending().await.unwrap().remove(0).id;
            let approve = stepfold_runner::agent_loop::Decision::Approve;
            let error = session.resume().decide(id, approve).await.unwrap_err();
            assert!(error.to_string().contains("expected an outcome"), "{error}");
            runner.complete(&token, Err("no form came".to_owned())).await.unwrap();
            let said = said(&session).await;
            assert!(said.contains("tool c1!: no form came"), "{said}");
        });
        assert_eq!(trace.take(), Vec::<String>::new());
    });
}

#[test]
fn a_deadline_that_passes_is_an_outcome() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        let token = process(async { waits(&runner(world, "a", agent(&trace, 5), &clock)).await.1 });
        process(async {
            let runner = runner(world, "b", agent(&trace, 5), &clock);
            clock.advance(MINUTE * 4);
            recover(&runner).await;
            let session = runner.session("ada", "s1").await.unwrap();
            assert_eq!(session.pending().await.unwrap().len(), 1);
            clock.advance(MINUTE);
            // No worker has noticed yet, and the deadline has passed anyway.
            let late = runner.complete(&token, Ok(json!(9))).await.unwrap_err();
            let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = &late else {
                panic!("{late}")
            };
            assert!(matches!(**error, DecisionError::Expired { .. }), "{late}");
            // The worker that refused it has given the session back.
            while session.running().is_some() {
                tokio::task::yield_now().await;
            }
            recover(&runner).await;
            let said = said(&session).await;
            let expected = "tool c1!: no outcome of `taxi`: its deadline has passed";
            assert!(said.contains(expected) && said.ends_with("assistant: done\n"), "{said}");
            let late = runner.complete(&token, Ok(json!(9))).await.unwrap_err();
            assert!(is_not_awaited(&late), "{late}");
            assert_eq!(unattended(&runner).await, []);
        });
        assert_eq!(trace.take(), ["ordered"]);
    });
}

/// A message does not get past what a session waits for, until the deadline is over.
#[test]
fn a_message_after_the_deadline_continues_with_the_run() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        process(async {
            let runner = runner(world, "a", agent(&trace, 5), &clock);
            let (session, _) = waits(&runner).await;
            let error = session.run("hello?").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Pending { .. }), "{error}");
            clock.advance(MINUTE * 5);
            let outcome = session.run("hello?").await.unwrap();
            assert_eq!((outcome.text(), outcome.recovered().len()), ("again".into(), 1));
        });
    });
}

#[test]
fn a_timer_outlives_its_process() {
    each_store(|world| {
        let clock = ManualClock::new();
        let remind = async |context: ToolContext| {
            context.sleep_for("first", MINUTE)?;
            context.sleep_for("second", MINUTE * 60)?;
            Ok::<_, ToolError>("it is time")
        };
        let agent = || {
            let tool = Tool::new("taxi", "Waits.", remind).build().unwrap();
            Agent::builder(Script::parse(SCRIPT).unwrap()).tools([tool])
        };
        process(async {
            let session = runner(world, "a", agent(), &clock).session("ada", "s1").await.unwrap();
            assert_eq!(session.run("remind me").await.unwrap().exit(), &PAUSED);
        });
        for (passes, is_done) in
            [(MINUTE / 2, false), (MINUTE, false), (MINUTE * 30, false), (MINUTE * 30, true)]
        {
            clock.advance(passes);
            process(async {
                let runner = runner(world, "b", agent(), &clock);
                recover(&runner).await;
                let said = said(&runner.session("ada", "s1").await.unwrap()).await;
                assert_eq!(said.contains("it is time"), is_done, "{said}");
            });
        }
    });
}

/// Workers that deliver different outcomes, and one that looks after the deadline, at once: one of them counts, and each
/// is told which.
#[test]
fn of_several_outcomes_at_once_one_counts() {
    each_store(|world| threads(of_several(world)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_outcomes_at_once_one_counts_over_postgresql() {
    let Some(server) = server() else { return };
    let store = open(&server.database("later").await).await;
    of_several(&World::over_opened(store)).await;
}

async fn of_several(world: &World) {
    for round in 0..4 {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        {
            let workers: Vec<Runner> = ["a", "b", "c"]
                .map(|name| runner(world, &format!("{name}{round}"), agent(&trace, 5), &clock))
                .into();
            let first = workers[0].session("ada", &*format!("s{round}")).await.unwrap();
            assert_eq!(first.run("a taxi, please").await.unwrap().exit(), &PAUSED);
            let token = token(&first).await;
            // In half of the rounds, the deadline passes at the same moment.
            let passes = async {
                if round % 2 == 1 {
                    clock.advance(MINUTE * 5);
                    recover(&workers[2]).await;
                }
            };
            let deliver = |worker: &Runner, outcome: u64| {
                let (worker, token) = (worker.clone(), token.clone());
                async move { worker.complete(&token, Ok(json!(outcome))).await }
            };
            let (one, other, ()) = tokio::join!(
                tokio::spawn(deliver(&workers[0], 1)),
                tokio::spawn(deliver(&workers[1], 2)),
                passes
            );
            let delivered: Vec<Value> = [(1, one.unwrap()), (2, other.unwrap())]
                .into_iter()
                .filter_map(|(outcome, ended)| ended.is_ok().then(|| json!(outcome)))
                .collect();
            // What was delivered is brought to its end, if it is not by now.
            clock.advance(MINUTE * 10);
            let last = workers[2].session("ada", &*format!("s{round}")).await.unwrap();
            while last.last_run().await.unwrap().unwrap().exit().is_none() {
                recover(&workers[2]).await;
                // tidy: allow sleep, because another worker may be completing the run.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let said = said(&last).await;
            match &delivered[..] {
                [outcome] => assert!(said.contains(&format!("tool c1: {outcome}")), "{said}"),
                [] if round % 2 == 1 => assert!(said.contains("its deadline has passed"), "{said}"),
                all => panic!("{all:?} were accepted:\n{said}"),
            }
        }
    }
}

/// The outcome comes while the rest of the step still runs: after the call has handed out its token.
#[test]
fn an_outcome_that_comes_before_the_run_waits_is_not_lost() {
    each_store(|world| {
        let (trace, clock, go) = (Trace::default(), ManualClock::new(), Arc::new(Notify::new()));
        let slow = {
            let go = Arc::clone(&go);
            move || {
                let go = Arc::clone(&go);
                async move {
                    go.notified().await;
                    Ok::<_, ToolError>("slow")
                }
            }
        };
        let slow = Tool::new("slow", "Takes its time.", slow).effect(Effect::Pure).build().unwrap();
        let script = "assistant: > c1 taxi()   > c2 slow()\nassistant: done";
        let agent = Agent::builder(Script::parse(script).unwrap()).tools([taxi(&trace, 0), slow]);
        process(async {
            let runner = runner(world, "a", agent, &clock);
            let session = runner.session("ada", "s1").await.unwrap();
            let running = session.send("go").await.unwrap();
            let token = loop {
                match session.pending().await.unwrap().pop() {
                    Some(request) => break request.token.unwrap(),
                    // tidy: allow sleep, because a request is stored without notice of it.
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            };
            let deliver = {
                let runner = runner.clone();
                tokio::spawn(async move { runner.complete(&token, Ok(json!(9))).await })
            };
            // tidy: allow sleep, because the outcome should come while the step runs; if it comes later, the law holds as well.
            tokio::time::sleep(Duration::from_millis(200)).await;
            go.notify_one();
            deliver.await.unwrap().unwrap();
            assert_eq!(running.outcome().await.unwrap().exit(), &PAUSED);
            let said = said(&session).await;
            assert!(said.contains("tool c1: 9") && said.ends_with("assistant: done\n"), "{said}");
        });
    });
}

/// A process dies at each commit, before and after it, while it begins to wait, while an outcome is delivered, and while a
/// deadline passes. Others continue; what was ordered comes once.
#[test]
fn a_crash_at_any_commit_loses_no_outcome() {
    each_store(|world| {
        let mut session = 0;
        for passes in [false, true] {
            for fault in [Fault::DiesBefore, Fault::DiesAfter] {
                for at in [0, 1, 2, 3, 5] {
                    session += 1;
                    crash(world, &format!("s{session}"), passes, (at, fault));
                }
            }
        }
    });
}

fn crash(world: &World, id: &str, passes: bool, fault: (usize, Fault)) {
    let (trace, clock) = (Trace::default(), ManualClock::new());
    world.wire.faults([fault]);
    let wait = async |worker: &str| {
        let runner = runner(world, worker, agent(&trace, 5), &clock);
        let session = runner.session("ada", id).await.unwrap();
        let _ = session.run_as("k", "a taxi, please").await;
    };
    let end = async |worker: &str| {
        let runner = runner(world, worker, agent(&trace, 5), &clock);
        let session = runner.session("ada", id).await.unwrap();
        let token = session.pending().await.unwrap().pop().and_then(|request| request.token);
        match token {
            Some(token) if !passes => drop(runner.complete(&token, Ok(json!(9))).await.unwrap()),
            _ => {
                clock.advance(MINUTE * 5);
                recover(&runner).await;
            }
        }
        said(&session).await;
    };
    for round in 0..3 {
        world.wire.process(wait(&format!("a{round}")));
        clock.advance(Duration::from_secs(11));
    }
    for round in 0..3 {
        world.wire.process(end(&format!("b{round}")));
        clock.advance(Duration::from_secs(11));
    }
    world.wire.faults([]);
    process(async {
        let runner = runner(world, "last", agent(&trace, 5), &clock);
        recover(&runner).await;
        let said = said(&runner.session("ada", id).await.unwrap()).await;
        let expected = if passes { "its deadline has passed" } else { "tool c1: 9" };
        assert!(said.contains(expected) && said.contains("assistant: done"), "{passes} {fault:?}: {said}");
        assert_eq!(unattended(&runner).await, [], "{passes} {fault:?}");
    });
    let came = trace.take().into_iter().filter(|line| line.starts_with("came")).count();
    assert!(came <= 2 && (came == 0) == passes, "{passes} {fault:?}: came {came} times");
}

#[test]
fn a_fork_waits_by_itself_and_a_rewind_takes_the_wait_back() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        process(async {
            let runner = runner(world, "a", agent(&trace, 5), &clock);
            let (session, token) = waits(&runner).await;
            let fork = session.fork("fork", None).await.unwrap();
            runner.complete(&token, Ok(json!(9))).await.unwrap();
            assert!(said(&session).await.contains("tool c1: 9"));
            assert_eq!(fork.pending().await.unwrap().len(), 1);
            clock.advance(MINUTE * 5);
            recover(&runner).await;
            assert!(said(&fork).await.contains("its deadline has passed"));

            let other = runner.session("ada", "s2").await.unwrap();
            other.run("a taxi, please").await.unwrap();
            let token = self::token(&other).await;
            other.rewind(0).await.unwrap();
            let error = runner.complete(&token, Ok(json!(9))).await.unwrap_err();
            assert!(is_not_awaited(&error), "{error}");
            clock.advance(MINUTE * 5);
            recover(&runner).await;
            assert_eq!(unattended(&runner).await, []);
            // What the same call waits for in the next run is another outcome.
            other.run("a taxi, please").await.unwrap();
            assert_ne!(self::token(&other).await, token);
        });
    });
}

#[test]
fn a_token_that_is_none_is_refused() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        process(async {
            let runner = runner(world, "a", agent(&trace, 0), &clock);
            let (_, token) = waits(&runner).await;
            for wrong in ["", "x", "stalls/ada", &*token.replacen("stalls", "other", 1)] {
                let error = runner.complete(wrong, Ok(json!(1))).await.unwrap_err();
                assert!(matches!(error.kind, RunnerErrorKind::InvalidToken { .. }), "{wrong}: {error}");
            }
            let error = runner.complete(&format!("{token}x"), Ok(json!(1))).await.unwrap_err();
            assert!(is_not_awaited(&error), "{error}");
        });
    });
}

/// An agent in another session: the caller's run waits for it by timers, over crashes, and calls it once.
#[test]
fn a_remote_agent_is_called_once_and_waited_for() {
    each_store(|world| {
        let (trace, clock) = (Trace::default(), ManualClock::new());
        let mut token: Option<String> = None;
        for round in 0..6 {
            // In real time: the call has a timeout, and paused time passes while the store is at work.
            threads(async {
                let worker = format!("w{round}");
                let script = Script::parse("assistant: > c1 taxi()\nassistant: nine o'clock").unwrap();
                let called = Agent::builder(script).tools([taxi(&trace, 0)]).build().unwrap();
                let called = world.runner(called).worker(&*worker).unwrap().clock(clock.clone());
                let called = called.app("taxis").unwrap().claim_for(Duration::from_secs(10)).build();
                let book = called.as_remote_tool("book", "Books a taxi.").unwrap();
                let script = "assistant: > c1 book(request=\"a taxi\")\nassistant: done";
                let caller = Agent::builder(Script::parse(script).unwrap()).tools([book]);
                let caller = runner(world, &worker, caller, &clock);
                let session = caller.session("ada", "s1").await.unwrap();
                match round {
                    0 => {
                        let outcome = session.run("go").await.unwrap();
                        assert_eq!(outcome.exit(), &PAUSED, "{}", outcome.transcript());
                    }
                    _ => recover(&caller).await,
                }
                // It waits for something of its own, in its own session.
                if round == 3 {
                    called.complete(token.as_ref().unwrap(), Ok(json!(9))).await.unwrap();
                }
                let list = ListSessions::new("taxis", "ada").unwrap();
                let others = called.store().list(list).await.unwrap().sessions;
                assert_eq!(others.len(), 1);
                let other = called.session("ada", others[0].key.id.as_str()).await.unwrap();
                token =
                    other.pending().await.unwrap().pop().and_then(|request| request.token).or(token.take());
                assert_eq!(said(&session).await.contains("tool c1: nine o'clock"), round > 3);
            });
            clock.advance(MINUTE);
        }
        // A process may have ended between the outcome and its commit: the call is idempotent, and runs again.
        let mut trace = trace.take();
        trace.dedup();
        assert_eq!(trace, ["ordered", "came 9"]);
    });
}
