//! Completed work is kept: whatever hooks and observers return after a call, its outcome is recorded, concurrent calls
//! complete, and only then the run fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::ToolContent;
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::tools::{
    CallOutcome, CallStatus, CancellationToken, Effect, Tool, ToolContext, ToolError,
};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Breakpoint, Event, EventRefused, Exit, HookAction, HookContext, HookError,
    HookPoint, HookResult, ItemOutcome, Observer, ObserverError, Run, RunAnswer, RunError, RunEvent,
    RunFault, RunNeed,
};
use tokio::sync::Notify;

use super::kit::*;

/// Fails at the events that `is_it` picks, so many times; then the shipment continues.
struct Fails<F> {
    is_it: F,
    times: usize,
    go: Arc<Notify>,
}

impl<F: Fn(&RunEvent) -> bool + Send> Observer for Fails<F> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if self.times == 0 || !(self.is_it)(event) {
            return Ok(());
        }
        self.times -= 1;
        self.go.notify_one();
        Err("the screen is gone".into())
    }
}

fn fails<F: Fn(&RunEvent) -> bool + Send>(go: &Arc<Notify>, times: usize, is_it: F) -> Fails<F> {
    Fails { is_it, times, go: Arc::clone(go) }
}

/// `pay` ends at once, `ship` when it may, `look` starts when there is room; the first two must not run twice.
fn shop(notes: &Notes, go: &Arc<Notify>) -> AgentBuilder {
    let (shipping, go) = (notes.clone(), Arc::clone(go));
    let ship = Tool::new("ship", "Ships.", move |context: ToolContext| {
        let (notes, go) = (shipping.clone(), Arc::clone(&go));
        async move {
            context.report(json!("packed"));
            go.notified().await;
            notes.add("ship");
            Ok::<_, ToolError>("shipped")
        }
    });
    let paying = notes.clone();
    let pay = tool("pay", move |_| {
        paying.add("pay");
        Ok(json!("paid by card 4711"))
    });
    let look = notes.tool("look").effect(Effect::Pure);
    let tools = [pay, ship, look].map(|tool| tool.build().unwrap());
    Agent::builder(script("assistant: > c1 pay()   > c2 ship()   > c3 look()\nassistant: done"))
        .tools(tools)
        .tool_limits(at_once(2))
}

fn told(name: &'static str) -> impl Fn(&RunEvent) -> bool + Send + Copy {
    move |event| match event {
        RunEvent::ToolStarted { call_id, .. } => name == "started" && call_id == "c3",
        RunEvent::ToolFinished { .. } => name == "finished",
        RunEvent::ToolProgress { .. } => name == "progress",
        _ => false,
    }
}

fn is_committed(name: &'static str) -> impl Fn(&RunEvent) -> bool + Send + Copy {
    move |event| event.committed().is_some_and(|event| event.name() == name)
}

/// The run as the next process finds it.
fn again(agent: &Agent, error: RunError) -> Run {
    Run::load(agent, &error.into_run().to_json()).unwrap()
}

/// Nothing ran twice, and nothing is unknown.
async fn comes_to_the_same(run: Run, notes: &Notes) {
    let ended = go_on(run, |run| run).await;
    assert!(outcome_of(&ended).unknown_calls().is_empty(), "{}", shown(&ended));
    expect![[r#"
        user:      go
        assistant: > c1 pay()   > c2 ship()   > c3 look()
        tool c1:   paid by card 4711
        tool c2:   shipped
        tool c3:   {}
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 1, pay 1, ship 1
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!(["pay", "ship", "look"].map(|tool| notes.count(tool)), [1, 1, 1], "{}", notes.text());
}

/// What hooks after tools were shown, and how often they fail before they work.
#[derive(Clone, Default)]
struct Hook {
    failures: Arc<AtomicUsize>,
    seen: Notes,
    go: Arc<Notify>,
}

impl Hook {
    fn failing(times: usize, go: &Arc<Notify>) -> Self {
        Hook { failures: AtomicUsize::new(times).into(), seen: Notes::default(), go: Arc::clone(go) }
    }

    /// Notes what it is shown; fails, or does this.
    fn run(
        &self,
        context: &HookContext,
        work: impl FnOnce(&HookContext) -> HookAction,
    ) -> std::future::Ready<HookResult> {
        let outcome = context.outcome.as_ref().unwrap();
        self.seen.add(format!("{}: {}", outcome.call_id(), outcome.result.text()));
        let fewer =
            self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if fewer.is_ok() || outcome.call_id() == "c1" {
            self.go.notify_one();
        }
        std::future::ready(match fewer {
            Ok(_) => Err(HookError::new("no connection")),
            Err(_) => Ok(work(context)),
        })
    }

    fn on(&self, agent: AgentBuilder, work: fn(&HookContext) -> HookAction) -> AgentBuilder {
        let hook = self.clone();
        agent.hook(HookPoint::AfterTool, move |context| hook.run(&context, work))
    }
}

/// Puts another text in place of what is secret.
fn redacting(context: &HookContext) -> HookAction {
    let text = context.outcome.as_ref().unwrap().result.text().replace("4711", "****");
    HookAction::proceed().with_result(ToolContent::Value(text.into()))
}

#[tokio::test]
async fn a_hook_that_fails_once_loses_neither_the_payment_nor_its_sibling() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let hook = Hook::failing(1, &go);
    let agent = hook.on(shop(&notes, &go), |_| HookAction::proceed()).build().unwrap();
    let error = play(&agent, "go", |run| run).await.unwrap_err();
    expect!["run 'run' failed after step 1: hook after a tool failed: no connection"]
        .assert_eq(&chain(&error));
    // Nothing more starts.
    assert_eq!((notes.text().as_str(), error.unrecorded()), ("pay\nship\n", &[][..]));
    comes_to_the_same(again(&agent, error), &notes).await;
    // It is shown what it has not seen, and nothing twice.
    assert_eq!(hook.seen.text(), "c1: paid by card 4711\nc2: shipped\nc1: paid by card 4711\nc3: {}\n");
}

#[tokio::test]
async fn hooks_that_fail_for_several_calls_and_again_when_the_run_continues() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    // For both calls, and then once more for each.
    let hook = Hook::failing(4, &go);
    let agent = hook.on(shop(&notes, &go), |_| HookAction::proceed()).build().unwrap();
    let mut run = Run::new(&agent, "go", "run").unwrap();
    for failures in [2, 1, 0] {
        let error = go_on(run, |run| run).await.unwrap_err();
        assert!(matches!(error.fault(), RunFault::Hook { point: HookPoint::AfterTool, .. }), "{error}");
        assert_eq!(hook.failures.load(Ordering::SeqCst), failures);
        assert_eq!(error.outcome().run().pending_hooks().len(), 2);
        run = again(&agent, error);
    }
    comes_to_the_same(run, &notes).await;
}

/// What a host of one's own answers with "outcome unknown" is one call whose outcome is unknown, however often a hook
/// after it fails.
#[tokio::test]
async fn an_unknown_outcome_that_a_hook_has_still_to_see_is_counted_once() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let agent = Hook::failing(0, &go).on(shop(&notes, &go), |_| HookAction::proceed()).build().unwrap();
    let stopped = play(&agent, "go", |run| run.break_at(Breakpoint::tool("pay"))).await.unwrap();
    let mut run = reloaded(&stopped);
    let (place, call) = run.open_calls().remove(0);
    for pending_hook in [Some(0), Some(0), None] {
        let outcome = CallOutcome::without_result(&call, CallStatus::Unknown, "the bank says nothing");
        let mut item = ItemOutcome::new(place, outcome);
        item.pending_hook = pending_hook;
        run.commit(run.feed(RunAnswer::Outcomes(vec![item]), run.elapsed()).unwrap()).unwrap();
        let unknown: Vec<&str> = run.unknown_calls().iter().map(|call| &*call.id).collect();
        assert_eq!(unknown, ["c1"], "{pending_hook:?}");
    }
    assert_eq!(run.pending_hooks(), []);
}

/// The hooks before the one that failed have seen the outcome, and those behind it have not.
#[tokio::test]
async fn hooks_around_one_that_fails_are_each_asked_once() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let [before, failing, behind] = [0, 1, 0].map(|times| Hook::failing(times, &go));
    let agent = before.on(shop(&notes, &go), redacting);
    let agent = behind.on(failing.on(agent, |_| HookAction::proceed()), |_| HookAction::stop("seen"));
    let agent = agent.build().unwrap();
    let error = play(&agent, "go", |run| run).await.unwrap_err();
    let ended = go_on(again(&agent, error), |run| run).await;
    assert_eq!(outcome_of(&ended).exit(), &Exit::Hook("seen".to_owned()), "{}", shown(&ended));
    let of_payment = |hook: &Hook| hook.seen.text().lines().filter(|line| line.starts_with("c1")).count();
    assert_eq!([&before, &failing, &behind].map(of_payment), [1, 2, 1]);
    // What an earlier hook took out is in the record no more.
    assert!(!failing.seen.text().contains("4711"), "{}", failing.seen.text());
}

/// A hook that redacts never lets anything through to the model or to those who look on, however often it fails. The
/// record has the outcome, since otherwise it would be lost.
#[tokio::test]
async fn a_redacting_hook_does_not_fail_open() {
    for failures in 1..4 {
        let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
        let hook = Hook::failing(failures, &go);
        let model = Asked::new(script("assistant: > c1 pay()\nassistant: done"));
        let agent = hook.on(shop(&notes, &go).model(model.clone()), redacting).build().unwrap();
        let mut run = Run::new(&agent, "go", "run").unwrap();
        let mut seen = Vec::new();
        for _ in 0..failures {
            let error = go_on(run, |run| run.observe(&mut seen)).await.unwrap_err();
            assert!(!error.outcome().transcript().to_string().contains("4711"));
            run = again(&agent, error);
            assert!(run.to_json().contains("4711"));
        }
        let ended = go_on(run, |run| run.observe(&mut seen)).await;
        assert!(shown(&ended).contains("tool c1:   paid by card ****\n"), "{}", shown(&ended));
        assert!(!model.shown().contains("4711"), "{}", model.shown());
        let finished: Vec<&str> = seen
            .iter()
            .filter_map(|event| match event {
                RunEvent::ToolFinished { text, .. } => Some(&**text),
                _ => None,
            })
            .collect();
        assert_eq!((finished, notes.count("pay")), (vec!["paid by card ****"], 1));
    }
}

#[tokio::test]
async fn an_observer_that_fails_once_loses_nothing() {
    for name in ["finished", "progress", "started"] {
        let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
        let agent = shop(&notes, &go).build().unwrap();
        let error = play(&agent, "go", |run| run.observe(fails(&go, 1, told(name)))).await.unwrap_err();
        assert_eq!(
            chain(&error),
            "run 'run' failed after step 1: observer failed: the screen is gone",
            "{name}"
        );
        // What was under way came to its end.
        assert_eq!((notes.count("pay"), notes.count("ship")), (1, 1), "{name}");
        comes_to_the_same(again(&agent, error), &notes).await;
    }
}

#[tokio::test]
async fn hooks_and_observers_that_fail_together_lose_nothing() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let hook = Hook::failing(1, &go);
    let agent = hook.on(shop(&notes, &go), |_| HookAction::proceed()).build().unwrap();
    let observer = fails(&go, usize::MAX, |event| event.committed().is_none());
    // The first request is told as well.
    let error = play(&agent, "go", |run| run.observe(observer)).await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Observer(_)), "{error}");
    let observer = fails(&go, usize::MAX, told("finished"));
    let error = go_on(again(&agent, error), |run| run.observe(observer)).await.unwrap_err();
    // The first fault is told.
    assert!(matches!(error.fault(), RunFault::Hook { .. }), "{error}");
    comes_to_the_same(again(&agent, error), &notes).await;
}

/// Beside one that records, an observer cannot keep an event out of the record, only stop the run behind it.
#[tokio::test]
async fn an_observer_beside_the_record_loses_nothing() {
    for name in ["began", "replied", "started", "answered"] {
        let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
        let agent = shop(&notes, &go).build().unwrap();
        let start = Run::new(&agent, "go", "run").unwrap();
        let mut stored = Vec::<RunEvent>::new();
        let observer = fails(&go, 1, is_committed(name));
        let running = start.clone().resume().record_with(&mut stored).observe(observer);
        let error = running.await.unwrap_err();
        assert!(matches!(error.fault(), RunFault::Observer(_)), "{name}: {error}");
        assert_eq!(error.outcome().run().events(), stored.len() as u64);
        // A reader of the record finds what the process had.
        let mut run = start;
        for event in stored.iter().filter_map(RunEvent::committed) {
            run.commit(event.clone()).unwrap();
        }
        assert_eq!(run.to_json(), error.into_run().to_json());
        // What had not started does now.
        go.notify_one();
        comes_to_the_same(run, &notes).await;
    }
}

/// A store that fails may have stored the event or not. So nothing more is committed, what runs is stopped, and the error
/// says what is lost.
#[tokio::test]
async fn a_refused_commit_stops_at_once_and_names_what_is_lost() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let agent = shop(&notes, &go).build().unwrap();
    let mut seen = Vec::new();
    let refuses = fails(&Arc::default(), 1, is_committed("answered"));
    let running = play(&agent, "go", |run| run.record_with(refuses).observe(&mut seen));
    let error = running.await.unwrap_err();
    expect!["run 'run' failed after step 1: observer failed, so the event was not committed; unrecorded outcomes: `c1`: the screen is gone"]
        .assert_eq(&chain(&error));
    assert_eq!((error.unrecorded(), notes.text().as_str()), (&["c1".to_owned()][..], "pay\n"));
    assert_eq!(committed(&seen), ["began", "replied", "started"]);
    let ended = go_on(again(&agent, error), |run| run).await.unwrap();
    let unknown: Vec<&str> = ended.unknown_calls().iter().map(|call| &*call.id).collect();
    assert_eq!((unknown, notes.text().as_str()), (vec!["c1", "c2"], "pay\nlook\n"));
}

/// Records events of so many bytes at most.
struct Bounded {
    most: usize,
    events: Vec<Event>,
    refused: usize,
}

impl Observer for Bounded {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let Some(event) = event.committed() else { return Ok(()) };
        let bytes = serde_json::to_string(event)?.len();
        if bytes > self.most {
            self.refused += 1;
            return Err(EventRefused::new(format!("{bytes} bytes are more than {}", self.most)).into());
        }
        self.events.push(event.clone());
        Ok(())
    }
}

/// A result that can never be recorded is a failure of its call, once: its tool does not run again, and calls that ended
/// at the same moment keep theirs.
#[tokio::test]
async fn a_result_that_cannot_be_recorded_is_a_failure_of_its_call() {
    for (script, most) in [
        ("assistant: > c1 small()   > c2 big()   > c3 small()\nassistant: done", 100_000),
        ("assistant: > c1 big()\nassistant: > c2 small()\nassistant: done", 100_000),
    ] {
        let (notes, running) = (Notes::default(), Notes::default());
        let started = running.clone();
        let big = Tool::new("big", "Reads a book.", move |context: ToolContext| {
            let started = started.clone();
            async move {
                started.add("big");
                context.writer().set("page", json!("word ".repeat(400_000)))?;
                Ok::<_, ToolError>("read")
            }
        });
        let big = big.writes(["page"]).effect(Effect::AtMostOnce).build().unwrap();
        let small = notes.tool("small").effect(Effect::AtMostOnce).build().unwrap();
        let schema = Schema::builder().key::<String>("page").build().unwrap();
        let agent = Agent::builder(self::script(script)).schema(schema).tools([big, small]);
        let agent = agent.tool_limits(at_once(3)).build().unwrap();
        let mut recorder = Bounded { most, events: Vec::new(), refused: 0 };
        let ended = play(&agent, "go", |run| run.record_with(&mut recorder)).await.unwrap();
        assert_eq!(ended.exit(), &Exit::Text);
        assert_eq!((recorder.refused, running.text().as_str()), (1, "big\n"), "{script}");
        let transcript = ended.transcript().to_string();
        assert!(transcript.contains("its result cannot be recorded"), "{transcript}");
        assert_eq!(notes.text().lines().count(), script.matches("small()").count(), "{transcript}");
        assert!(ended.unknown_calls().is_empty() && ended.state().get("page").is_none());
        assert_eq!(ended.transcript().check(), Ok(()));
        assert_eq!(recorder.events.last().unwrap().name(), "replied", "all else was recorded");
    }
}

/// Calls that ended in the moment of the refusal are lost as well.
#[tokio::test]
async fn a_refused_commit_names_all_that_had_ended() {
    let notes = Notes::default();
    let tools = ["one", "two"].map(|name| notes.tool(name).build().unwrap());
    let agent = Agent::builder(script("assistant: > c1 one()   > c2 two()\nassistant: done"));
    let agent = agent.tools(tools).tool_limits(at_once(2)).build().unwrap();
    let refuses = fails(&Arc::default(), 1, is_committed("answered"));
    let error = play(&agent, "go", |run| run.observe(refuses)).await.unwrap_err();
    let executed = notes.text().lines().count();
    assert_eq!(error.unrecorded().len(), executed, "{:?} {}", error.unrecorded(), notes.text());
}

/// A cancelled run hears of what has happened first, and not before the hooks have seen it.
#[tokio::test]
async fn a_hook_that_fails_while_the_run_is_cancelled() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let (hook, token) = (Hook::failing(1, &go), CancellationToken::new());
    let agent = hook.on(shop(&notes, &go), redacting).build().unwrap();
    let cancels = token.clone();
    let observer = move |event: &RunEvent| {
        if let RunEvent::ToolProgress { .. } = event {
            cancels.cancel();
        }
        false
    };
    let observer = fails(&go, 1, observer);
    let running = play(&agent, "go", |run| run.observe(observer).cancel_with(token.clone()));
    let error = running.await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Hook { .. }), "{error}");
    let run = again(&agent, error);

    // The machine by itself keeps what has not been seen from the model.
    let mut bare = run.clone();
    assert!(matches!(bare.decide(), RunNeed::Hook(HookPoint::AfterTool)));
    let event = bare.feed(RunAnswer::Cancelled, bare.elapsed()).unwrap();
    bare.commit(event).unwrap();
    assert_eq!(bare.unknown_calls(), []);
    let log = bare.transcript().to_string();
    assert!(log.contains("tool 'pay' ran, and its result is withheld") && !log.contains("4711"), "{log}");

    let ended = go_on(run, |run| run.cancel_with(token)).await;
    assert_eq!(outcome_of(&ended).exit(), &Exit::Cancelled, "{}", shown(&ended));
    assert!(shown(&ended).contains("tool c1:   paid by card ****\n"), "{}", shown(&ended));
    assert_eq!((notes.count("pay"), outcome_of(&ended).unknown_calls().len()), (1, 0));
}

/// A hook that always fails keeps no run from ending: what it has not seen is withheld.
#[tokio::test]
async fn a_hook_that_fails_again_when_the_run_is_cancelled() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let hook = Hook::failing(usize::MAX, &go);
    let agent = hook.on(shop(&notes, &go), redacting).build().unwrap();
    let error = play(&agent, "go", |run| run).await.unwrap_err();
    let token = CancellationToken::new();
    token.cancel();
    let ended = go_on(again(&agent, error), |run| run.cancel_with(token)).await;
    expect![[r#"
        user:      go
        assistant: > c1 pay()   > c2 ship()   > c3 look()
        tool c1!:  tool 'pay' ran, and its result is withheld: the run ended before a hook had seen it
        tool c2!:  tool 'ship' ran, and its result is withheld: the run ended before a hook had seen it
        tool c3!:  tool 'look' may have started, and has no result: the run was cancelled
        --
        exit: the run was cancelled
        steps: 1, calls: pay 1, ship 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// The process died while the sibling of a call was under way whose hook had failed.
#[tokio::test]
async fn a_hook_that_had_failed_when_the_process_died() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let hook = Hook::failing(1, &go);
    let agent = hook.on(shop(&notes, &go), redacting).build().unwrap();
    let (start, mut stored) = (Run::new(&agent, "go", "run").unwrap(), Vec::<RunEvent>::new());
    let running = start.clone().resume().record_with(&mut stored);
    running.await.unwrap_err();
    let mut run = start;
    let events: Vec<&Event> = stored.iter().filter_map(RunEvent::committed).collect();
    let is_pending = |event: &&Event| event.outcomes().iter().any(|item| item.pending_hook == Some(0));
    let last = events.iter().position(is_pending).unwrap();
    for event in &events[..=last] {
        run.commit((*event).clone()).unwrap();
    }
    let ended = go_on(run, |run| run).await;
    expect![[r#"
        user:      go
        assistant: > c1 pay()   > c2 ship()   > c3 look()
        tool c1:   paid by card ****
        tool c2!:  tool 'ship' had started when the process was interrupted: its outcome is unknown, and it was not run again
        tool c3:   "{}"
        assistant: done
        --
        exit: the model answered
        steps: 2, calls: look 1, pay 1
    "#]]
    .assert_eq(&shown(&ended));
}

/// A hook that wants what it may not is one that fails.
#[tokio::test]
async fn a_hook_that_appends_a_message_after_a_call_keeps_its_outcome() {
    let (notes, go) = (Notes::default(), Arc::new(Notify::new()));
    let appends = |_: &HookContext| {
        HookAction::proceed().with_message(stepfold_agent_loop::state_core::chat::Message::user("by the way"))
    };
    let agent = Hook::failing(0, &go).on(shop(&notes, &go), appends).build().unwrap();
    let error = play(&agent, "go", |run| run).await.unwrap_err();
    assert!(matches!(error.fault(), RunFault::Feed(_)), "{error}");
    // The hook was mended.
    let mended = Hook::failing(0, &go).on(shop(&notes, &go), |_| HookAction::proceed()).build().unwrap();
    comes_to_the_same(again(&mended, error), &notes).await;
}
