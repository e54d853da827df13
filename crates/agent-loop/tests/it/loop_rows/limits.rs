//! How much a run may take.

use std::time::Duration;

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::ToolCall;
use stepfold_agent_loop::{Agent, Exit, RepeatGuard, RunLimits};

use super::check;
use super::kit::*;

/// Calls beyond the limit are answered and do not run.
#[tokio::test]
async fn limit_of_calls() {
    let script =
        "assistant: > c1 fetch(id=1)\nassistant: > c2 fetch(id=2)   > c3 fetch(id=3)\nassistant: never";
    check(
        agent(script).limits(RunLimits::default().with_tool_calls(2)),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: > c2 fetch(id=2)   > c3 fetch(id=3)
        tool c2:   area 2
        tool c3!:  tool 'fetch' was not run: the run may make 2 calls, and has
        --
        exit: the limit of tool calls was reached
        steps: 2, calls: fetch 2
    "#]],
    )
    .await;
}

#[tokio::test]
async fn limit_of_calls_with_a_final_answer() {
    let script = "assistant: > c1 fetch(id=1)   > c2 fetch(id=2)\nassistant: area 1, I think";
    let agent = agent(script).limits(RunLimits::default().with_tool_calls(1)).final_answer();
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fetch(id=2)
        tool c1:   area 1
        tool c2!:  tool 'fetch' was not run: the run may make 1 calls, and has
        assistant: area 1, I think
        --
        exit: the limit of tool calls was reached
        steps: 2, calls: fetch 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn limit_of_tokens() {
    let model = costing(script(""), "assistant: > c1 fetch(id=1)", 30, 10);
    let model = costing(model, "assistant: > c2 fetch(id=2)", 50, 10);
    let agent = Agent::builder(model).tools(tools()).limits(RunLimits::default().with_tokens(100));
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: > c2 fetch(id=2)
        tool c2:   area 2
        --
        exit: the limit of tokens was reached
        steps: 2, calls: fetch 2, tokens: 80 + 20
    "#]],
    )
    .await;
}

/// A model that does not answer is not waited for.
#[tokio::test(start_paused = true)]
async fn limit_of_time_at_the_model() {
    let agent = Agent::builder(Silent)
        .tools(tools())
        .max_time(Duration::from_secs(120))
        .final_answer()
        .build()
        .unwrap();
    let ended = play(&agent, "where?", |run| run).await;
    expect![[r#"
        user:      where?
        --
        exit: the limit of time was reached
        steps: 0
    "#]]
    .assert_eq(&shown(&ended));
    assert_eq!(ended.unwrap().elapsed(), Duration::from_secs(120));
}

/// Tools are stopped; what they might have done is said, and so is what never started.
#[tokio::test(start_paused = true)]
async fn limit_of_time_at_the_tools() {
    let tools = [endless("wait").build().unwrap(), tool("quick", |_| Ok(json!(1))).build().unwrap()];
    let agent = Agent::builder(script("assistant: > c1 quick()   > c2 wait()\nassistant: never"))
        .tools(tools)
        .tool_limits(at_once(1))
        .max_time(Duration::from_secs(60));
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 quick()   > c2 wait()
        tool c1:   1
        tool c2!:  tool 'wait' cancelled while it ran; the effect may have happened
        --
        exit: the limit of time was reached
        steps: 1, calls: quick 1, wait 1
    "#]],
    )
    .await;
}

/// Time is counted over pauses, and pauses are left out.
#[tokio::test(start_paused = true)]
async fn limit_of_time_leaves_pauses_out() {
    use stepfold_agent_loop::Breakpoint;

    let slow = stepfold_agent_loop::tools::Tool::new("slow", "Takes a minute.", || async {
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok::<_, stepfold_agent_loop::tools::ToolError>("done")
    });
    let agent = Agent::builder(script("assistant: > c1 slow()\nassistant: > c2 slow()\nassistant: done"))
        .tools([slow.build().unwrap()])
        .max_time(Duration::from_secs(150))
        .build()
        .unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(2))).await.unwrap();
    assert_eq!(paused.elapsed(), Duration::from_secs(60));
    tokio::time::advance(Duration::from_secs(86_400)).await;
    let outcome = go_on(reloaded(&paused), |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.elapsed()), (&Exit::Text, Duration::from_secs(120)));
}

/// Who has to agree may take as long as it takes, in the same process or in another.
#[tokio::test(start_paused = true)]
async fn limit_of_time_leaves_approvals_out() {
    use stepfold_agent_loop::tools::Approval;
    use stepfold_agent_loop::{ApprovalRequest, Decision};

    let agent = agent("assistant: > c1 fetch(id=1)\nassistant: area 1")
        .approval(Approval::Always)
        .max_time(Duration::from_secs(60))
        .build()
        .unwrap();
    let thinks = |requests: Vec<ApprovalRequest>| async move {
        // tidy: allow sleep, because the clock is paused and moves on by itself.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        requests.into_iter().map(|request| (request.id, Decision::Approve)).collect()
    };
    let outcome = play(&agent, "where?", |run| run.approve_with(thinks)).await.unwrap();
    assert_eq!((outcome.exit(), outcome.elapsed()), (&Exit::Text, Duration::ZERO));
}

#[tokio::test]
async fn bound_on_calls_per_reply() {
    let script = "assistant: > c1 fetch(id=1)   > c2 fetch(id=2)   > c3 fetch(id=3)\nassistant: enough";
    check(
        agent(script).limits(RunLimits::default().with_calls_per_reply(2)),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fetch(id=2)   > c3 fetch(id=3)
        tool c1:   area 1
        tool c2:   area 2
        tool c3!:  tool 'fetch' was not run: a reply may make 2 calls, and this is number 3
        assistant: enough
        --
        exit: the model answered
        steps: 2, calls: fetch 2
    "#]],
    )
    .await;
}

#[tokio::test]
async fn bound_on_calls_per_reply_is_64() {
    use stepfold_agent_loop::state_core::chat::{Message, Part};

    let calls = (0..100).map(|n| Part::from(ToolCall::new(format!("c{n}"), "fetch", json!({"id": n}))));
    let many = Message::from_parts(stepfold_agent_loop::state_core::chat::Role::Assistant, calls.collect());
    let model = stepfold_agent_loop::test_kit::Script::new([many, Message::assistant("enough")]);
    let agent = Agent::builder(model).tools(tools()).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!(outcome.calls_by_tool().collect::<Vec<_>>(), [("fetch", 64)]);
    assert_eq!((outcome.exit(), outcome.transcript().len()), (&Exit::Text, 103));
}

fn repeating(times: usize) -> String {
    (0..times).map(|n| format!("assistant: > c{n} fetch(id=1)\n")).collect()
}

#[tokio::test]
async fn repeated_calls() {
    let guard = RepeatGuard::default().warn_at(2).stop_at(4);
    check(agent(&repeating(9)).repeat_guard(guard), "where?", expect![[r#"
        user:      where?
        assistant: > c0 fetch(id=1)
        tool c0:   area 1
        assistant: > c1 fetch(id=1)
        tool:      @{"tool_result": {"call_id": "c1", "name": "fetch", "parts": [{"text": "area 1"}, {"text": "\n[You have made exactly these calls several times in a row, with exactly these results. Calling them again will not help: change the arguments, try something else, or answer.]"}]}}
        assistant: > c2 fetch(id=1)
        tool:      @{"tool_result": {"call_id": "c2", "name": "fetch", "parts": [{"text": "area 1"}, {"text": "\n[You have made exactly these calls several times in a row, with exactly these results. Calling them again will not help: change the arguments, try something else, or answer.]"}]}}
        assistant: > c3 fetch(id=1)
        tool:      @{"tool_result": {"call_id": "c3", "name": "fetch", "parts": [{"text": "area 1"}, {"text": "\n[You have made exactly these calls several times in a row, with exactly these results. Calling them again will not help: change the arguments, try something else, or answer.]"}]}}
        --
        exit: the model repeated the same calls with the same results
        steps: 4, calls: fetch 4
    "#]]).await;
}

#[tokio::test]
async fn repeated_calls_by_default() {
    let agent = agent(&repeating(20)).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::RepeatedCalls, 8));
    let warned = outcome.transcript().iter().filter_map(|message| message.tool_result());
    let warned: Vec<bool> = warned.map(|result| result.text().contains("several times in a row")).collect();
    assert_eq!(warned, [false, false, false, true, true, true, true, true]);
}

/// A tool that is polled until something changes is not stopped while it changes.
#[tokio::test]
async fn repeated_calls_with_other_results() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let polled = Arc::new(AtomicU64::new(0));
    let poll = tool("fetch", move |_| Ok(json!(polled.fetch_add(1, Ordering::SeqCst)))).build().unwrap();
    let agent = Agent::builder(script(&(repeating(20) + "assistant: done"))).tools([poll]).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::Text, 21));
}

/// Other arguments, other tools, another order, or another number of calls: not the same.
#[tokio::test]
async fn repeated_calls_that_differ() {
    let script = r#"
assistant: > c1 fetch(id=1)
assistant: > c2 fetch(id=2)
assistant: > c3 fetch(id=2)   > c4 fetch(id=1)
assistant: > c5 fetch(id=1)   > c6 fetch(id=2)
assistant: > c7 fetch(id=1)
assistant: done
"#;
    let guard = RepeatGuard::default().warn_at(2).stop_at(2);
    let agent = agent(script).repeat_guard(guard).build().unwrap();
    assert_eq!(play(&agent, "where?", |run| run).await.unwrap().exit(), &Exit::Text);
}

#[tokio::test]
async fn repeated_calls_without_a_guard() {
    let agent = agent(&(repeating(30) + "assistant: done")).repeat_guard(None).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::Text, 31));
    assert!(!outcome.transcript().to_string().contains("several times"));
}

/// The count survives a pause.
#[tokio::test]
async fn repeated_calls_over_a_pause() {
    use stepfold_agent_loop::Breakpoint;

    let guard = RepeatGuard::default().warn_at(2).stop_at(3);
    let agent = agent(&repeating(9)).repeat_guard(guard).build().unwrap();
    let paused = play(&agent, "where?", |run| run.break_at(Breakpoint::model().visit(3))).await.unwrap();
    let outcome = go_on(reloaded(&paused), |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::RepeatedCalls, 3));
}
