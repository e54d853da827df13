//! What is held while the store is away, and clocks that are set meanwhile.

use std::time::Duration;

use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, ApprovalRequest, Decision, Exit, Pause};
use stepfold_runner::{RecoverOptions, Runner, RunnerError, RunnerErrorKind, WhenChanged};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::world::{Fault, ManualClock, World, each_store, process, recover, threads};

const SCRIPT: &str = "assistant: > c1 pay()\nassistant: done";

/// The store is away from any commit of a run on, for longer than a heartbeat: what has happened is held. Only the message
/// that begins the run is refused, which its sender may repeat.
#[test]
fn results_are_held_while_the_store_is_away() {
    for from in 0..8 {
        each_store(|world| {
            world.wire.faults((from..from + 30).map(|append| (append, Fault::Busy)));
            process(async {
                let session = world.session(world.agent(SCRIPT)).await;
                let ended = session.run("pay").await;
                let paid = world.trace.take().iter().filter(|it| it.starts_with("pay")).count();
                if from == 0 {
                    assert!(
                        matches!(ended, Err(RunnerError { kind: RunnerErrorKind::Store { .. }, .. })),
                        "{ended:?}"
                    );
                    return assert_eq!(paid, 0);
                }
                let outcome = ended.unwrap();
                assert_eq!((&*outcome.text(), paid), ("done", 1), "from {from}");
                assert!(!outcome.transcript().to_string().contains("unknown"), "{}", outcome.transcript());
            });
        });
    }
}

/// A worker that is told to stop holds nothing any more.
#[test]
fn a_shutdown_ends_what_is_held() {
    each_store(|world| {
        world.wire.faults((2..100_000).map(|append| (append, Fault::Busy)));
        process(async {
            let runner = world.runner(world.agent(SCRIPT).build().unwrap()).build();
            let session = runner.session("ada", "s1").await.unwrap();
            let invocation = session.send("pay").await.unwrap();
            // tidy: allow sleep, because the clock is paused, and the store is away for this time.
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!runner.shutdown(Duration::from_secs(1)).await);
            assert!(matches!(
                invocation.outcome().await,
                Err(RunnerError { kind: RunnerErrorKind::ShutDown { .. }, .. })
            ));
        });
    });
}

/// A model that fails, and tells when it was asked.
struct Failing(UnboundedSender<Instant>);

impl ChatModel for Failing {
    fn id(&self) -> &'static str {
        "test/failing"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let _ = self.0.send(Instant::now());
        ReplyStream::failed(ModelError::new(ModelErrorKind::Overloaded, "it fails"))
    }
}

/// A run is tried again and again, and the clock is set after the first attempts. No pause is shorter than it has to be, and
/// each is longer by less than this time.
async fn check_pauses(world: &World, hours: i64, late: Duration) {
    const PAUSE: Duration = Duration::from_millis(100);
    let (clock, (asked, mut attempts)) = (ManualClock::new(), unbounded_channel());
    let agent = Agent::builder(Failing(asked)).name("clerk").build().unwrap();
    let runner = world.runner(agent).clock(clock.clone()).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap_err();
    attempts.recv().await.unwrap();
    let options = RecoverOptions::new().pauses(PAUSE, PAUSE * 4).poll(PAUSE / 10);
    let recovery = tokio::spawn(runner.recover(options));
    let mut before = None;
    for pause in [0, 1, 2, 4, 4, 4] {
        let least = PAUSE * pause;
        let next = tokio::time::timeout(least + late, attempts.recv());
        let now = next.await.unwrap_or_else(|_| panic!("{hours} hours: it is not tried again"));
        let passed = before.map(|before| now.unwrap().duration_since(before));
        assert!(passed.is_none_or(|passed| passed >= least), "{hours} hours: {passed:?}");
        before = now;
        if pause == 1 {
            clock.step(hours * 3_600);
        }
    }
    assert!(runner.shutdown(Duration::from_secs(10)).await);
    recovery.await.unwrap().unwrap();
}

/// The clock is set by two hours, back or forth: the pauses stay what they are, by the paused clock of a process in memory to
/// a look and what timers are late by; over each store as far as a machine allows.
#[test]
fn a_clock_that_is_set_does_not_change_the_pauses_of_recovery() {
    for hours in [-2, 2] {
        process(check_pauses(&World::in_memory(), hours, Duration::from_millis(20)));
        each_store(|world| threads(check_pauses(world, hours, Duration::from_secs(60))));
    }
}

fn taxi(world: &World) -> Tool {
    let trace = world.trace.clone();
    let taxi = move |context: ToolContext| {
        let trace = trace.clone();
        async move {
            let taxi = context.later("taxi").within(Duration::from_secs(600));
            if taxi.is_new() {
                trace.note("ordered");
            }
            taxi.outcome()
        }
    };
    Tool::new("taxi", "Orders a taxi.", taxi).effect(Effect::Idempotent).build().unwrap()
}

fn pay(world: &World) -> Tool {
    let trace = world.trace.clone();
    let pay = move || {
        let trace = trace.clone();
        async move {
            trace.note("paid");
            Ok::<_, ToolError>("paid")
        }
    };
    Tool::new("pay", "Pays.", pay).approval(Approval::Always).effect(Effect::AtMostOnce).build().unwrap()
}

/// A worker whose agent calls this tool, with these instructions: with others, its agent has changed.
fn worker(world: &World, name: &str, tool: &str, instructions: &str, clock: &ManualClock) -> Runner {
    let script = Script::parse(&format!("assistant: > c1 {tool}()\nassistant: done")).unwrap();
    let agent = Agent::builder(script).name("clerk").instructions(instructions);
    let agent = agent.tools([taxi(world), pay(world)]).build().unwrap();
    let runner = world.runner(agent).when_changed(WhenChanged::Refuse);
    runner.worker(name).unwrap().clock(clock.clone()).build()
}

/// A run that waits, and the session of it in a process of the old version.
fn waits(world: &World, tool: &str, clock: &ManualClock) -> ApprovalRequest {
    let request = process(async {
        let session = worker(world, "old", tool, "Be brief.", clock).session("ada", "s1").await.unwrap();
        assert_eq!(session.run("go").await.unwrap().exit(), &Exit::Paused(Pause::Approval));
        session.pending().await.unwrap().remove(0)
    });
    world.trace.take();
    request
}

/// The outcome of the run in a process of the old version: its transcript, and what was done.
fn finished(world: &World, tool: &str, clock: &ManualClock) -> (String, Vec<String>) {
    // Nothing was continued by the new version.
    assert_eq!(world.trace.take(), [""; 0]);
    let said = process(async {
        let runner = worker(world, "old-2", tool, "Be brief.", clock);
        recover(&runner).await;
        let session = runner.session("ada", "s1").await.unwrap();
        session.last_run().await.unwrap().unwrap().transcript().to_string()
    });
    (said, world.trace.take())
}

/// While a run waits, a new version of its agent is deployed. Its workers store what comes, and do not continue the run; a
/// worker of the old version does.
#[test]
fn an_outcome_is_stored_whatever_agent_is_there() {
    each_store(|world| {
        let clock = ManualClock::new();
        let token = waits(world, "taxi", &clock).token.unwrap();
        process(async {
            let runner = worker(world, "new", "taxi", "Be polite.", &clock);
            let receipt = runner.complete(&token, Ok("nine".into())).await.unwrap();
            assert_eq!(runner.complete(&token, Ok("nine".into())).await.unwrap(), receipt);
            runner.complete(&token, Ok("ten".into())).await.unwrap_err();
        });
        let (said, _) = finished(world, "taxi", &clock);
        assert!(said.contains("nine") && said.ends_with("assistant: done\n"), "{said}");
    });
}

#[test]
fn a_decision_is_stored_whatever_agent_is_there() {
    each_store(|world| {
        let clock = ManualClock::new();
        let id = waits(world, "pay", &clock).id;
        process(async {
            let runner = worker(world, "new", "pay", "Be polite.", &clock);
            let session = runner.session("ada", "s1").await.unwrap();
            let approve = || session.resume().decide(&*id, Decision::Approve).by("ada").idempotency_key("k");
            let (receipt, resumed) = approve().submit().await.unwrap();
            let refused = resumed.outcome().await.unwrap_err();
            assert!(matches!(refused.kind, RunnerErrorKind::AgentChanged { .. }), "{refused:?}");
            assert_eq!(approve().submit().await.unwrap().0, receipt);
            let second = session.resume().decide(&*id, Decision::reject("no")).submit().await.unwrap_err();
            assert!(matches!(second.kind, RunnerErrorKind::Decision { .. }), "{second:?}");
        });
        let (said, done) = finished(world, "pay", &clock);
        assert!(said.ends_with("assistant: done\n"), "{said}");
        assert_eq!(done, ["paid"]);
    });
}

#[test]
fn a_deadline_that_passes_is_stored_whatever_agent_is_there() {
    each_store(|world| {
        let clock = ManualClock::new();
        let token = waits(world, "taxi", &clock).token.unwrap();
        clock.advance(Duration::from_secs(601));
        process(async {
            let runner = worker(world, "new", "taxi", "Be polite.", &clock);
            recover(&runner).await;
            let session = runner.session("ada", "s1").await.unwrap();
            assert_eq!(session.decisions().await.unwrap().len(), 1);
            runner.complete(&token, Ok("nine".into())).await.unwrap_err();
        });
        let (said, _) = finished(world, "taxi", &clock);
        assert!(!said.contains("nine") && said.ends_with("assistant: done\n"), "{said}");
    });
}
