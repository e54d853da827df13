//! Work that was done is stored: a hook or an observer that fails after a tool ran stops the run, and nothing runs twice or
//! becomes unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stepfold_runner::agent_loop::{
    AgentBuilder, Exit, HookAction, HookContext, HookError, Observer, ObserverError, RunEvent,
};
use stepfold_runner::session_scopes::{EventRange, SessionKey};
use stepfold_runner::{RunnerErrorKind, SessionHandle};
use stepfold_state_core::chat::ToolContent;
use stepfold_tools::{Effect, Tool, ToolError};
use tokio::sync::Notify;

use crate::world::{Fault, World, each_store, process};

/// An agent that pays and ships side by side; the shipment ends when it may, and `look` starts after one of them.
fn shop(world: &World, go: &Arc<Notify>) -> AgentBuilder {
    let (go, trace) = (Arc::clone(go), world.trace.clone());
    let ship = Tool::new("ship", "Ships.", move || {
        let (go, trace) = (Arc::clone(&go), trace.clone());
        async move {
            go.notified().await;
            trace.note("ship");
            Ok::<_, ToolError>("shipped")
        }
    });
    let mut limits = stepfold_tools::CallLimits::default();
    limits.concurrency = 2;
    world
        .agent("assistant: > c1 pay()   > c2 ship()   > c3 look()\nassistant: done")
        .tools(
            [ship, world.tool("pay", Effect::AtMostOnce), world.tool("look", Effect::Pure)]
                .map(|tool| tool.build().unwrap()),
        )
        .tool_limits(limits)
}

/// The same with a hook after tools that redacts, and fails so often before; then it lets the shipment continue.
fn with_hook(agent: AgentBuilder, failures: usize, go: &Arc<Notify>) -> AgentBuilder {
    let (left, go) = (Arc::new(AtomicUsize::new(failures)), Arc::clone(go));
    agent.after_tool(move |context: HookContext| {
        let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        go.notify_one();
        async move {
            if fails {
                return Err(HookError::new("no connection"));
            }
            let text = context.outcome.unwrap().result.text().to_uppercase();
            Ok(HookAction::proceed().with_result(ToolContent::Value(text.into())))
        }
    })
}

/// How often each tool ran.
fn executed(world: &World) -> [usize; 3] {
    let trace = world.trace.take();
    ["pay", "ship", "look"].map(|tool| trace.iter().filter(|line| line.starts_with(tool)).count())
}

async fn kinds(session: &SessionHandle) -> Vec<String> {
    let stored = session.read(EventRange::All).await.unwrap();
    stored.events.iter().map(|event| event.event.kind.to_string()).collect()
}

/// Each time in another process, until it has failed as often as it is to.
#[test]
fn a_hook_that_fails_after_a_payment() {
    each_store(|world| {
        let go = Arc::new(Notify::new());
        let agent = with_hook(shop(world, &go), 3, &go).build().unwrap();
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            let error = session.run("go").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            assert_eq!(error.outcome().unwrap().run().pending_hooks().len(), 2);
        });
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            session.resume().await.unwrap_err();
        });
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            let outcome = session.resume().await.unwrap();
            assert!(outcome.unknown_calls().is_empty());
            let said = outcome.transcript().to_string();
            assert!(said.contains("tool c1:   PAY IS DONE\ntool c2:   SHIPPED\ntool c3:   LOOK"), "{said}");
            // Each of the two was answered when it ran, and once more when the hook had seen it.
            let answered = kinds(&session).await.iter().filter(|kind| *kind == "answered").count();
            assert_eq!(answered, 5);
        });
        assert_eq!(executed(world), [1, 1, 1]);
    });
}

/// A hook that always fails does not block its session for ever.
#[test]
fn a_run_whose_hook_always_fails_can_be_abandoned() {
    each_store(|world| {
        let go = Arc::new(Notify::new());
        let agent = with_hook(shop(world, &go), usize::MAX, &go).build().unwrap();
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            session.run("go").await.unwrap_err();
            let outcome = session.abandon().await.unwrap();
            assert_eq!((outcome.exit(), outcome.unknown_calls().len()), (&Exit::Cancelled, 0));
            let said = outcome.transcript().to_string();
            assert!(said.contains("tool 'pay' ran, and its result is withheld"), "{said}");
        });
        assert_eq!(executed(world), [1, 1, 0]);
    });
}

/// Fails once, at what it picks, and lets the shipment continue.
struct FailsOnce(fn(&RunEvent) -> bool, bool, Arc<Notify>);

impl Observer for FailsOnce {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if self.1 || !(self.0)(event) {
            return Ok(());
        }
        self.1 = true;
        self.2.notify_one();
        Err("the screen is gone".into())
    }
}

/// What an observer is told of is stored: it stops the run, and keeps nothing out of the session.
#[test]
fn an_observer_that_fails_after_a_payment() {
    let picks: [fn(&RunEvent) -> bool; 3] = [
        |event| matches!(event, RunEvent::ToolFinished { .. }),
        |event| event.committed().is_some_and(|event| event.name() == "answered"),
        |event| event.committed().is_some_and(|event| event.name() == "started"),
    ];
    for is_it in picks {
        each_store(|world| {
            let go = Arc::new(Notify::new());
            let agent = shop(world, &go).build().unwrap();
            process(async {
                let observer_go = Arc::clone(&go);
                let observer = move |_: &SessionKey| FailsOnce(is_it, false, Arc::clone(&observer_go));
                let runner = world.runner(agent.clone()).observe(observer).build();
                let error = runner.session("ada", "s1").await.unwrap().run("go").await.unwrap_err();
                assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error:?}");
            });
            process(async {
                let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
                let outcome = session.resume().await.unwrap();
                assert_eq!((&*outcome.text(), outcome.unknown_calls().len()), ("done", 0));
            });
            assert_eq!(executed(world), [1, 1, 1]);
        });
    }
}

/// A store that does not take an outcome: the error says whose, and the next process says so too.
#[test]
fn an_outcome_that_the_store_did_not_take() {
    each_store(|world| {
        let agent = world.agent("assistant: > c1 pay()\nassistant: done").build().unwrap();
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            // Begun, replied, started, and then it breaks.
            world.wire.faults([(3, Fault::Broken)]);
            let error = session.run("go").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Store { .. }), "{error:?}");
            assert_eq!(error.unrecorded(), ["c1"]);
            let text = error.to_string();
            assert!(text.contains("; unrecorded outcomes: `c1`"), "{text}");
            world.wire.faults([]);
        });
        process(async {
            let session = world.runner(agent.clone()).build().session("ada", "s1").await.unwrap();
            let outcome = session.resume().await.unwrap();
            let unknown: Vec<&str> = outcome.unknown_calls().iter().map(|call| &*call.id).collect();
            assert_eq!(unknown, ["c1"]);
        });
        assert_eq!(executed(world)[0], 1);
    });
}
