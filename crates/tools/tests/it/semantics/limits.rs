//! Concurrency, timeouts, retries, cancellation. Time is paused: hours pass at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_tools::state_core::state::Schema;
use stepfold_tools::{
    CallEvent, CallFailure, CallOutcome, CallStatus, Effect, MAX_BLOCKING_THREADS, Retry, Tool, ToolBuilder,
    ToolContext, ToolError,
};
use tokio::time::Instant;

use crate::pass;

use super::{World, events_of, returns};

/// A tool that takes its time.
fn slow(name: &str, time: Duration) -> ToolBuilder {
    Tool::new(name, "Takes its time.", move || async move {
        pass(time).await;
        Ok::<_, ToolError>("done")
    })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn limits_concurrency() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tool = {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        Tool::new("work", "Works.", move || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                pass(secs(1)).await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, ToolError>(())
            }
        })
    };
    let world = World::stateless().tool(tool);
    let reply: String = (0..200).map(|n| format!("> c{n} work() ")).collect();
    let started = Instant::now();
    world.invocation(&reply).finish().await;
    assert_eq!((most.swap(0, Ordering::Relaxed), started.elapsed()), (64, secs(4)), "64 unless said");

    let world = world.options(|options| options.limits.concurrency = 0);
    world.invocation("> c1 work() > c2 work()").finish().await;
    assert_eq!(most.load(Ordering::Relaxed), 1, "zero counts as one");
}

#[tokio::test(start_paused = true)]
async fn limits_timeout_per_tool() {
    World::stateless()
        .tool(slow("slow", secs(10)))
        .tool(slow("patient", secs(10)).timeout(secs(20)))
        .tool(slow("hasty", secs(10)).timeout(Duration::from_millis(1500)).effect(Effect::Pure))
        .options(|options| options.limits.timeout = secs(5))
        .check(
            "> c1 slow() > c2 patient() > c3 hasty()",
            expect![[r#"
            assistant: > c1 slow()   > c2 patient()   > c3 hasty()
            tool c1!:  tool 'slow' timed out after 5s; the effect may have happened
            tool c2:   done
            tool c3!:  tool 'hasty' timed out after 1.5s
        "#]],
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn limits_timeout_is_five_minutes_unless_said() {
    let started = Instant::now();
    let done = World::stateless().tool(slow("slow", secs(1_000))).invocation("> c1 slow()").finish().await;
    assert_eq!(
        (done.outcomes[0].status, started.elapsed()),
        (CallStatus::Failed(CallFailure::TimedOut), secs(300))
    );
}

#[tokio::test]
async fn limits_timeout_of_a_blocking_tool_that_continues() {
    // The tool continues until the test lets it, asked to stop and with nothing more to say.
    let (go, gate) = mpsc::channel::<()>();
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let gate = Mutex::new(gate);
    let tool = Tool::blocking("stuck", "Is stuck.", move |context: ToolContext| {
        context.writer().set("log", "early")?;
        let _ = gate.lock().unwrap().recv();
        let refused = context.writer().set("log", "late").unwrap_err();
        context.report("late");
        tell.send((context.cancellation().is_cancelled(), refused.to_string())).unwrap();
        Ok::<_, ToolError>("late")
    });
    let world = World::new(Schema::builder().key::<Vec<String>>("log"), json!({}))
        .tool(tool.writes(["log"]).timeout(Duration::from_millis(1)))
        .tool(Tool::new("wait", "Waits for the other.", {
            let told = Arc::new(tokio::sync::Mutex::new(told));
            move || {
                let (go, told) = (go.clone(), Arc::clone(&told));
                async move {
                    go.send(())?;
                    Ok::<_, ToolError>(told.lock().await.recv().await)
                }
            }
        }))
        .options(|options| options.limits.concurrency = 1);
    let reply = "> c1 stuck() > c2 wait()";
    let mut invocation = world.invocation(reply);
    let events = events_of(&mut invocation).await;
    expect![[r#"
        starting [0]
        finished 0
        starting [1]
        finished 1"#]]
    .assert_eq(&events.join("\n"));
    world
        .check_rest(
            invocation,
            reply,
            expect![[r#"
        assistant: > c1 stuck()   > c2 wait()
        tool c1!:  tool 'stuck' timed out after 1ms; the effect may have happened
        tool c2:   [true, "write of tool 'stuck' rejected: its call has ended"]
    "#]],
        )
        .await;
}

/// Fails so often, then works; notes when its runs were, without the timer's last digit.
fn flaky(
    failures: usize,
    error: impl Fn() -> ToolError + Send + Sync + 'static,
) -> (ToolBuilder, Arc<Mutex<Vec<u128>>>) {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let noted = Arc::clone(&runs);
    let tool = Tool::new("flaky", "Fails at first.", move |context: ToolContext| {
        let mut runs = noted.lock().unwrap();
        runs.push(start.elapsed().as_millis() / 10 * 10);
        let written = context.writer().set("log", format!("try {}", runs.len()));
        let result = if runs.len() > failures { Ok("done") } else { Err(error()) };
        async move {
            written?;
            result
        }
    });
    (tool.writes(["log"]), runs)
}

fn log_world() -> World {
    World::new(Schema::builder().key::<Vec<String>>("log"), json!({}))
}

#[tokio::test(start_paused = true)]
async fn limits_retries_with_pauses_that_double() {
    let (tool, runs) = flaky(3, || ToolError::new("busy"));
    let tool = tool.effect(Effect::Idempotent).retry(Retry::times(3).after(Duration::from_millis(100)));
    // Only what the last try wrote is kept.
    log_world()
        .tool(tool)
        .check(
            "> c1 flaky()",
            expect![[r#"
        assistant: > c1 flaky()
        tool c1:   done
        state: {"log":["try 4"]}
        delta c1: [{"key":"log","handler":"merge_lists","value":["try 4"]}]
    "#]],
        )
        .await;
    assert_eq!(*runs.lock().unwrap(), [0, 100, 300, 700]);
}

#[tokio::test(start_paused = true)]
async fn limits_retries_end_with_the_last_error() {
    let (tool, runs) = flaky(9, || ToolError::new("busy"));
    let world = log_world().tool(tool.effect(Effect::Pure).retry(Retry::times(2)));
    let done = world.invocation("> c1 flaky()").finish().await;
    assert_eq!((done.outcomes[0].tries, done.outcomes[0].result.text().as_ref()), (3, "busy"));
    assert_eq!(*runs.lock().unwrap(), [0, 200, 600]);
}

#[tokio::test(start_paused = true)]
async fn limits_retries_only_where_they_can_help() {
    let errors: [fn() -> ToolError; 3] =
        [|| ToolError::permanent("never"), || ToolError::fatal("broken"), || panic!("oh")];
    for error in errors {
        let (tool, runs) = flaky(9, error);
        let world = log_world().tool(tool.effect(Effect::Pure).retry(Retry::times(2)));
        world.invocation("> c1 flaky()").finish().await;
        assert_eq!(runs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn limits_retries_only_where_the_tool_asks_for_them() {
    let (tool, runs) = flaky(1, || ToolError::new("busy"));
    log_world()
        .tool(tool.effect(Effect::Pure))
        .check(
            "> c1 flaky()",
            expect![[r#"
        assistant: > c1 flaky()
        tool c1!:  busy
    "#]],
        )
        .await;
    assert_eq!(runs.lock().unwrap().len(), 1);

    let (tool, _) = flaky(1, || ToolError::new("busy"));
    let refused = tool.retry(Retry::times(1)).build().unwrap_err();
    expect!["invalid tool 'flaky': retry: requires a pure or idempotent tool: declare the effect, or leave retries to the model"].assert_eq(&refused.to_string());
}

#[tokio::test(start_paused = true)]
async fn limits_retries_after_a_timeout() {
    let runs = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&runs);
    let tool = Tool::new("slow", "Is slow at first.", move || {
        let run = noted.fetch_add(1, Ordering::Relaxed);
        async move {
            pass(if run == 0 { secs(9) } else { secs(1) }).await;
            Ok::<_, ToolError>("done")
        }
    });
    let retry = Retry::times(1).after(secs(1));
    let world = World::stateless().tool(tool.effect(Effect::Pure).timeout(secs(3)).retry(retry));
    let started = Instant::now();
    let done = world.invocation("> c1 slow()").finish().await;
    assert_eq!((done.outcomes[0].tries, started.elapsed()), (2, secs(5)));
    assert_eq!(done.outcomes[0].result.text(), "done");
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_before_the_start() {
    let world = World::stateless().tool(returns("fine", json!(1)));
    world.options.cancellation.cancel();
    world
        .check(
            "> c1 fine() > c2 unknown()",
            expect![[r#"
        assistant: > c1 fine()   > c2 unknown()
        tool c1!:  tool 'fine' not started: the run was cancelled
        tool c2!:  tool 'unknown' not started: the run was cancelled
    "#]],
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_between_announcement_and_start() {
    let world = World::stateless().tool(returns("fine", json!(1)));
    let mut invocation = world.invocation("> c1 fine()");
    assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0] }));
    world.options.cancellation.cancel();
    assert_eq!(invocation.next().await, Some(CallEvent::Finished { call: 0 }));
    assert_eq!(invocation.outcome(0).unwrap().status, CallStatus::NotStarted);
    assert_eq!(invocation.outcome(0).unwrap().tries, 0);
    assert_eq!(invocation.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_while_calls_run() {
    // One is done, two run, one waits for its turn. Nothing finished is lost.
    let dropped = Arc::new(AtomicBool::new(false));
    struct Guard(Arc<AtomicBool>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let guarded = {
        let dropped = Arc::clone(&dropped);
        Tool::new("guarded", "Holds something.", move || {
            let guard = Guard(Arc::clone(&dropped));
            async move {
                pass(secs(100)).await;
                drop(guard);
                Ok::<_, ToolError>(())
            }
        })
    };
    let world = World::new(Schema::builder().key::<i64>("result"), json!({}))
        .tool(returns("fine", json!({"result": 1})).output_to_state("result", "result"))
        .tool(guarded)
        .tool(slow("pure", secs(100)).effect(Effect::Pure))
        .options(|options| options.limits.concurrency = 2);
    let token = world.options.cancellation.clone();
    tokio::spawn(async move {
        pass(secs(1)).await;
        token.cancel();
    });
    let reply = "> c1 fine() > c2 guarded() > c3 pure() > c4 fine()";
    let mut invocation = world.invocation(reply);
    let events = events_of(&mut invocation).await;
    expect![[r#"
        starting [0, 1]
        finished 0
        starting [2]
        finished 1
        finished 3
        finished 2"#]]
    .assert_eq(&events.join("\n"));
    assert!(dropped.load(Ordering::Relaxed), "what can be stopped is");
    let tries: Vec<u32> = (0..4).map(|call| invocation.outcome(call).unwrap().tries).collect();
    assert_eq!(tries, [1, 1, 1, 0]);
    world
        .check_rest(
            invocation,
            reply,
            expect![[r#"
        assistant: > c1 fine()   > c2 guarded()   > c3 pure()   > c4 fine()
        tool c1:   {"result": 1}
        tool c2!:  tool 'guarded' cancelled while it ran; the effect may have happened
        tool c3!:  tool 'pure' cancelled while it ran
        tool c4!:  tool 'fine' not started: the run was cancelled
        state: {"result":1}
        delta c1: [{"key":"result","handler":"replace_values","value":1}]
    "#]],
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_that_a_tool_answers_to() {
    // A tool that looks at the token itself may still give what it has.
    let tool = Tool::new("polite", "Stops when it is asked to.", |context: ToolContext| async move {
        context.cancellation().cancelled().await;
        Ok::<_, ToolError>("half of it")
    });
    let world = World::stateless().tool(tool);
    let token = world.options.cancellation.clone();
    tokio::spawn(async move { token.cancel() });
    world
        .check(
            "> c1 polite()",
            expect![[r#"
        assistant: > c1 polite()
        tool c1:   half of it
    "#]],
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_during_the_pause_before_a_retry() {
    let (tool, runs) = flaky(9, || ToolError::new("busy"));
    let world = log_world().tool(tool.effect(Effect::Pure).retry(Retry::times(2).after(secs(50))));
    let token = world.options.cancellation.clone();
    tokio::spawn(async move {
        pass(secs(1)).await;
        token.cancel();
    });
    let done = world.invocation("> c1 flaky()").finish().await;
    assert_eq!((done.outcomes[0].status, done.outcomes[0].tries), (CallStatus::Cancelled, 1));
    assert_eq!(runs.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_after_the_end_changes_nothing() {
    let world = World::stateless().tool(returns("fine", json!("fine")));
    let mut invocation = world.invocation("> c1 fine()");
    while invocation.next().await.is_some() {}
    world.options.cancellation.cancel();
    assert!(invocation.next().await.is_none());
    assert!(invocation.finish().await.outcomes[0].succeeded());
}

#[tokio::test(start_paused = true)]
async fn limits_cancellation_of_the_run_does_not_come_from_its_calls() {
    // A timeout cancels its own call only; the end of an invocation cancels nothing above it.
    let world = World::stateless().tool(slow("slow", secs(9)).timeout(secs(1))).tool(slow("other", secs(3)));
    let done = world.invocation("> c1 slow() > c2 other()").finish().await;
    assert!(done.outcomes[1].succeeded());
    assert!(!world.options.cancellation.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_next_loses_nothing() {
    let tool = Tool::new("work", "Reports.", |context: ToolContext| async move {
        for n in 0..5 {
            context.report(n);
            pass(secs(1)).await;
        }
        Ok::<_, ToolError>("done")
    });
    let world = World::stateless().tool(tool);
    let mut invocation = world.invocation("> c1 work() > c2 unknown() > c3 work()");
    let mut events = Vec::new();
    loop {
        // Given up again and again, at other moments than the tools'.
        match tokio::time::timeout(Duration::from_millis(300), invocation.next()).await {
            Ok(Some(event)) => events.push(super::word_of(&event)),
            Ok(None) => break,
            Err(_) => {}
        }
    }
    assert_eq!(events.len(), 2 * 5 + 3 + 1, "{events:?}");
    assert_eq!(invocation.finish().await.outcomes.iter().filter(|outcome| outcome.succeeded()).count(), 2);
}

#[tokio::test]
async fn a_dropped_invocation_asks_blocking_tools_to_stop() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let tool = Tool::blocking("spin", "Spins.", move |context: ToolContext| {
        tell.send("started").unwrap();
        while !context.cancellation().is_cancelled() {
            std::thread::yield_now();
        }
        tell.send("stopped").unwrap();
        Ok::<_, ToolError>(())
    });
    let world = World::stateless().tool(tool);
    let mut invocation = world.invocation("> c1 spin()");
    invocation.next().await;
    tokio::select! {
        _ = invocation.next() => panic!("it does not end by itself"),
        word = told.recv() => assert_eq!(word, Some("started")),
    }
    drop(invocation);
    assert_eq!(told.recv().await, Some("stopped"));
}

#[tokio::test]
async fn limits_timeout_does_not_count_the_wait_for_a_thread() {
    // More calls than threads, each well within its time, and all together well beyond it.
    let timeout = Duration::from_millis(400);
    let tool = Tool::cpu("compute", "Computes.", || {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        Ok::<_, ToolError>(())
    });
    let world = World::stateless().tool(tool.timeout(timeout));
    let calls = 20 * std::thread::available_parallelism().unwrap().get();
    let reply: String = (0..calls).map(|n| format!("> c{n} compute() ")).collect();
    let done = world.options(|options| options.limits.concurrency = 1_000).invocation(&reply).finish().await;
    assert!(done.outcomes.iter().all(CallOutcome::succeeded));
}

/// Tools that wait need no core: far more of them than there are cores run at a time, up to the bound, and a tool that
/// computes runs beside them.
#[tokio::test]
async fn limits_blocking_tools_wait_on_threads_of_their_own() {
    // Each waits for all others of its round, so that a single one that is kept out stops everything.
    let (round, at_work) = (Arc::new(Barrier::new(MAX_BLOCKING_THREADS)), Arc::new(AtomicUsize::new(0)));
    let most = Arc::new(AtomicUsize::new(0));
    let (at_work_of_tool, most_of_tool) = (Arc::clone(&at_work), Arc::clone(&most));
    let meet = Tool::blocking("meet", "Meets the others.", move || {
        most_of_tool.fetch_max(1 + at_work_of_tool.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        round.wait();
        at_work_of_tool.fetch_sub(1, Ordering::SeqCst);
        Ok::<_, ToolError>(())
    });
    let compute = Tool::cpu("compute", "Computes.", || Ok::<_, ToolError>((1..=20_u64).product::<u64>()));
    let world = World::stateless().tool(meet.timeout(Duration::from_secs(60))).tool(compute);
    let calls = 2 * MAX_BLOCKING_THREADS;
    let reply: String =
        (0..calls).map(|n| format!("> c{n} meet() ")).chain(["> last compute()".to_owned()]).collect();
    let done = world.options(|options| options.limits.concurrency = 2_000).invocation(&reply).finish().await;
    assert_eq!(done.outcomes.iter().filter(|outcome| outcome.succeeded()).count(), calls + 1);
    assert!(most.load(Ordering::SeqCst) <= MAX_BLOCKING_THREADS);
    assert_eq!(at_work.load(Ordering::SeqCst), 0);
}
