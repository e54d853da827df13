//! Who comes before whom: outcomes, merges, dependent calls, events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_tools::state_core::state::{Handler, Schema, ValueRef};
use stepfold_tools::{
    CallEvent, CallOutcome, FromState, ResultSource, Tool, ToolContext, ToolError, state_key,
};
use tokio::sync::{Barrier, Semaphore};

use super::{World, echo, events_of, returns};

state_key! {
    Log: Vec<String> = "log";
}

#[tokio::test]
async fn order_of_outcomes_and_merges_is_that_of_the_calls() {
    // The first call ends last.
    let gate = Arc::new(Semaphore::new(0));
    let slow = {
        let gate = Arc::clone(&gate);
        Tool::new("slow", "Waits.", move || {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                Ok::<_, ToolError>("slow")
            }
        })
    };
    let fast = Tool::new("fast", "Opens the gate.", move || {
        gate.add_permits(1);
        async { Ok::<_, ToolError>("fast") }
    });
    let schema = Schema::builder().key::<Vec<String>>("log");
    let world = World::new(schema, json!({}))
        .tool(slow.output_to_state("log", ResultSource::Whole))
        .tool(fast.output_to_state("log", ResultSource::Whole));
    let reply = "> c1 slow() > c2 nothing(x=1) > c3 fast()";
    let mut invocation = world.invocation(reply);
    let events = events_of(&mut invocation).await;
    expect![[r#"
        starting [0, 2]
        finished 1
        finished 2
        finished 0"#]]
    .assert_eq(&events.join("\n"));
    world
        .check_rest(
            invocation,
            reply,
            expect![[r#"
        assistant: > c1 slow()   > c2 nothing(x=1)   > c3 fast()
        tool c1:   slow
        tool c2!:  unknown tool 'nothing'; available: slow, fast
        tool c3:   fast
        state: {"log":["slow","fast"]}
        delta c1: [{"key":"log","handler":"merge_lists","value":["slow"]}]
        delta c3: [{"key":"log","handler":"merge_lists","value":["fast"]}]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn order_is_that_of_the_calls_also_for_values_that_are_replaced() {
    let schema = Schema::builder().key::<String>("last");
    let set = echo("set", json!({"to": {"type": "string"}})).output_to_state("last", "to");
    World::new(schema, json!({}))
        .tool(set)
        .check(
            r#"> c1 set(to="a") > c2 set(to="b") > c3 set(to="c")"#,
            expect![[r#"
            assistant: > c1 set(to="a")   > c2 set(to="b")   > c3 set(to="c")
            tool c1:   {"to": "a"}
            tool c2:   {"to": "b"}
            tool c3:   {"to": "c"}
            state: {"last":"c"}
            delta c1: [{"key":"last","handler":"replace_values","value":"a"}]
            delta c2: [{"key":"last","handler":"replace_values","value":"b"}]
            delta c3: [{"key":"last","handler":"replace_values","value":"c"}]
        "#]],
        )
        .await;
}

#[tokio::test]
async fn dependent_calls() {
    let add = echo("add", json!({"line": {"type": "string"}})).output_to_state("log", "line");
    let show = Tool::new("show", "Shows the log.", |FromState(log): FromState<Log>| async move {
        Ok::<_, ToolError>(log)
    });
    let clear = returns("clear", json!([])).output_to_state_with(
        "log",
        ResultSource::Whole,
        Handler::replace_values(),
    );
    let world = World::new(Schema::builder().key::<Vec<String>>("log"), json!({"log": ["old"]}))
        .tool(add)
        .tool(show)
        .tool(clear);
    // A reader sees the writes of the calls before it, and none of those after it.
    let reply = r#"> c1 show() > c2 add(line="a") > c3 add(line="b") > c4 show() > c5 clear() > c6 show() > c7 add(line="c")"#;
    let mut invocation = world.invocation(reply);
    let events = events_of(&mut invocation).await;
    expect![[r#"
        starting [0, 1, 2]
        finished 0
        finished 1
        finished 2
        starting [3, 4]
        finished 3
        finished 4
        starting [5, 6]
        finished 5
        finished 6"#]]
    .assert_eq(&events.join("\n"));
    world.check_rest(invocation, reply, expect![[r#"
        assistant: > c1 show()   > c2 add(line="a")   > c3 add(line="b")   > c4 show()   > c5 clear()   > c6 show()   > c7 add(line="c")
        tool c1:   ["old"]
        tool c2:   {"line": "a"}
        tool c3:   {"line": "b"}
        tool c4:   ["old", "a", "b"]
        tool c5:   []
        tool c6:   []
        tool c7:   {"line": "c"}
        state: {"log":["c"]}
        delta c2: [{"key":"log","handler":"merge_lists","value":["a"]}]
        delta c3: [{"key":"log","handler":"merge_lists","value":["b"]}]
        delta c5: [{"key":"log","handler":"replace_values","value":[]}]
        delta c7: [{"key":"log","handler":"merge_lists","value":["c"]}]
    "#]]).await;
}

#[tokio::test]
async fn dependent_calls_run_after_one_that_failed() {
    let fails = super::fails("add", || ToolError::new("no")).output_to_state("log", "line");
    let show = Tool::new("show", "Shows the log.", |FromState(log): FromState<Log>| async move {
        Ok::<_, ToolError>(log)
    });
    World::new(Schema::builder().key::<Vec<String>>("log"), json!({"log": ["old"]}))
        .tool(fails)
        .tool(show)
        .check(
            "> c1 add() > c2 show()",
            expect![[r#"
            assistant: > c1 add()   > c2 show()
            tool c1!:  no
            tool c2:   ["old"]
            state: {"log":["old"]}
        "#]],
        )
        .await;
}

#[tokio::test]
async fn independent_calls_run_together() {
    // They could not all get past the barrier otherwise, though they write the same list.
    let barrier = Arc::new(Barrier::new(40));
    let meet = Tool::new("meet", "Meets the others.", move || {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok::<_, ToolError>(json!({"count": 1}))
        }
    });
    let world = World::new(Schema::builder().key::<u64>("count").handler(Handler::sum()), json!({}))
        .tool(meet.output_to_state("count", "count"));
    let reply: String = (0..40).map(|n| format!("> c{n} meet() ")).collect();
    let mut done = world.invocation(&reply).finish().await;
    assert!(done.outcomes.iter().all(CallOutcome::succeeded));
    // Parallel read-modify-write: no update is lost, because no tool reads, adds and writes by itself.
    let mut state = world.state;
    stepfold_tools::settle(&mut state, &mut done.outcomes);
    assert_eq!(state.get("count").unwrap(), json!(40));
}

#[tokio::test]
async fn parallel_read_modify_write() {
    // The tools read the count, wait for each other, and write: with their own sum 1 would be left.
    let barrier = Arc::new(Barrier::new(40));
    let bump = Tool::new("bump", "Counts.", move |context: ToolContext| {
        let barrier = Arc::clone(&barrier);
        async move {
            let seen = context.state().get("count").map(ValueRef::to_json);
            barrier.wait().await;
            context.writer().set("count", 1)?;
            Ok::<_, ToolError>(seen)
        }
    });
    let schema = Schema::builder().key::<u64>("count").handler(Handler::sum()).default(2);
    let world = World::new(schema, json!({})).tool(bump.writes(["count"]));
    let reply: String = (0..40).map(|n| format!("> c{n} bump() ")).collect();
    let mut done = world.invocation(&reply).finish().await;
    assert!(
        done.outcomes.iter().all(|outcome| outcome.result.text() == "2"),
        "all saw the state before the step"
    );
    let mut state = world.state;
    stepfold_tools::settle(&mut state, &mut done.outcomes);
    assert_eq!(state.get("count").unwrap(), json!(42));
}

#[tokio::test]
async fn started_events_come_before_the_call_runs() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = {
        let runs = Arc::clone(&runs);
        Tool::new("count", "Counts its runs.", move || {
            runs.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, ToolError>(()) }
        })
    };
    let world = World::stateless().tool(count).options(|options| options.limits.concurrency = 2);
    let mut invocation = world.invocation("> c1 count() > c2 count() > c3 count()");
    assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![0, 1] }));
    assert_eq!(runs.load(Ordering::Relaxed), 0, "announced, and not running yet");
    assert!(matches!(invocation.next().await, Some(CallEvent::Finished { .. })));
    assert_eq!(invocation.next().await, Some(CallEvent::Starting { calls: vec![2] }));
    assert!(runs.load(Ordering::Relaxed) < 3);
    while invocation.next().await.is_some() {}
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    assert_eq!(invocation.next().await, None, "and none again");
}

#[tokio::test]
async fn progress_comes_in_order_and_before_the_end() {
    let tool = Tool::new("work", "Reports.", |context: ToolContext| async move {
        for percent in [10, 20] {
            context.report(json!({"percent": percent}));
            tokio::task::yield_now().await;
        }
        context.report("last");
        Ok::<_, ToolError>(())
    });
    let world = World::stateless().tool(tool);
    let events = events_of(&mut world.invocation("> c1 work()")).await;
    expect![[r#"
        starting [0]
        progress 0 {"percent":10}
        progress 0 {"percent":20}
        progress 0 "last"
        finished 0"#]]
    .assert_eq(&events.join("\n"));
}

#[tokio::test]
async fn progress_that_nobody_reads_is_dropped() {
    let tool = Tool::new("work", "Reports too much.", |context: ToolContext| async move {
        (0..10_000).for_each(|n| context.report(n));
        Ok::<_, ToolError>(())
    });
    let world = World::stateless().tool(tool);
    let events = events_of(&mut world.invocation("> c1 work()")).await;
    assert_eq!(events.len(), 1 + 256 + 1);
    assert_eq!(events[1], "progress 0 0");
}

#[tokio::test]
async fn progress_after_the_end_is_not_told() {
    let leaked = Arc::new(std::sync::Mutex::new(None));
    let leak = {
        let leaked = Arc::clone(&leaked);
        Tool::new("leak", "Leaves its context behind.", move |context: ToolContext| {
            *leaked.lock().unwrap() = Some(context);
            async { Ok::<_, ToolError>(()) }
        })
    };
    let writes = Tool::new("late", "Uses the context of the other.", move || {
        let context: ToolContext = leaked.lock().unwrap().take().unwrap();
        async move {
            context.report("late");
            tokio::task::yield_now().await;
            Err::<(), _>(ToolError::from(context.writer().set("log", "late").unwrap_err()))
        }
    });
    let world = World::new(Schema::builder().key::<Vec<String>>("log"), json!({}))
        .tool(leak.writes(["log"]))
        .tool(writes)
        .options(|options| options.limits.concurrency = 1);
    let reply = "> c1 leak() > c2 late()";
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
        assistant: > c1 leak()   > c2 late()
        tool c1:   null
        tool c2!:  write of tool 'leak' rejected: its call has ended
    "#]],
        )
        .await;
}

#[tokio::test]
async fn progress_without_a_pause_starves_nobody() {
    // Whenever the invocation looks, there is one more report, as from a thread that never rests.
    let handed_out = Arc::new(std::sync::Mutex::new(None));
    let chatter = {
        let handed_out = Arc::clone(&handed_out);
        Tool::new("chatter", "Reports without a pause.", move |context: ToolContext| {
            context.report("one thing");
            *handed_out.lock().unwrap() = Some(context);
            std::future::pending::<Result<(), ToolError>>()
        })
    };
    // A semaphore wants a share of the budget that tokio gives a task, and the reports must not eat all of it.
    let calm = Tool::new("calm", "Takes its turns.", || async {
        let semaphore = Semaphore::new(1);
        for _ in 0..5 {
            drop(semaphore.acquire().await?);
            tokio::task::yield_now().await;
        }
        Ok::<_, ToolError>("calm")
    });
    let world = World::stateless().tool(chatter).tool(calm);
    let mut invocation = world.invocation("> c1 chatter() > c2 calm()");
    let mut reports = 0;
    while invocation.outcome(1).is_none() {
        if let Some(context) = &*handed_out.lock().unwrap() {
            context.report("and another thing");
        }
        if let Some(CallEvent::Progress { .. }) = invocation.next().await {
            reports += 1;
        }
        assert!(reports < 10_000, "the calm one is never asked");
    }
    assert!(reports > 10, "there was something to tell all the time");
}

#[tokio::test]
async fn idempotency_keys_are_stable_and_unique() {
    let tool = Tool::new("key", "Tells its key.", |context: ToolContext| async move {
        Ok::<_, ToolError>(json!([context.idempotency_key(), context.key_for("mail")]))
    });
    let world = World::stateless()
        .tool(tool)
        .options(|options| options.key_scope = "session/invocation/2".to_owned());
    let reply = r#"> c1 key() > "c1/mail" key() > "c1%2Fmail" key()"#;
    let first = world.invocation(reply).finish().await.outcomes;
    assert_eq!(first, world.invocation(reply).finish().await.outcomes, "the same when the step runs again");
    world
        .check(
            reply,
            expect![[r#"
        assistant: > c1 key()   > c1/mail key()   > "c1%2Fmail" key()
        tool c1:   ["session/invocation/2/c1", "session/invocation/2/c1/mail"]
        tool c1/mail: ["session/invocation/2/c1%2Fmail", "session/invocation/2/c1%2Fmail/mail"]
        tool "c1%2Fmail": ["session/invocation/2/c1%252Fmail", "session/invocation/2/c1%252Fmail/mail"]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn idempotency_keys_are_those_of_the_call_at_each_try() {
    let keys = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let tool = {
        let keys = Arc::clone(&keys);
        Tool::new("pay", "Pays.", move |context: ToolContext| {
            keys.lock().unwrap().push(context.idempotency_key().to_owned());
            async { Err::<(), _>(ToolError::new("busy")) }
        })
    };
    let retry = stepfold_tools::Retry::times(2).after(std::time::Duration::ZERO);
    let world = World::stateless().tool(tool.effect(stepfold_tools::Effect::Idempotent).retry(retry));
    world.invocation("> c1 pay()").finish().await;
    assert_eq!(*keys.lock().unwrap(), ["/c1", "/c1", "/c1"]);
}

#[tokio::test]
async fn no_calls_have_no_outcomes() {
    let world = World::stateless();
    let mut invocation = world.invocation("");
    assert_eq!(invocation.next().await, None);
    assert!(invocation.finish().await.outcomes.is_empty());
}

#[tokio::test]
async fn hundreds_of_calls_in_a_row() {
    let set = echo("set", json!({"to": {}})).output_to_state("last", "to").input_from_state("last", "old");
    let set = set.parameters(json!({"type": "object", "properties": {"to": {}, "old": {}}}));
    let world = World::new(Schema::builder().key::<Value>("last"), json!({})).tool(set);
    let reply: String = (0..300).map(|n| format!("> c{n} set(to={n}) ")).collect();
    let done = world.invocation(&reply).finish().await;
    let last: Value = serde_json::from_str(&done.outcomes[299].result.text()).unwrap();
    assert_eq!(last, json!({"old": 298, "to": 299}));
}

#[test]
fn an_invocation_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let world = World::stateless();
    let mut invocation = world.invocation("");
    is_send(&invocation);
    is_send(&invocation.next());
    is_send(&invocation.finish());
}
