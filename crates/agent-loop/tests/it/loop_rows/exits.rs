//! When a run ends.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{FinishReason, Message, Role, Usage};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::tools::Approval;
use stepfold_agent_loop::{Agent, Decision, Exit, Output, Recording, Run, RunEvent, RunLimits};

use super::check;
use super::kit::*;

#[tokio::test]
async fn text_exit() {
    check(
        agent("assistant: area 3\nassistant: never asked for"),
        "where?",
        expect![[r#"
        user:      where?
        assistant: area 3
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
}

/// Asked again, until there is text.
#[tokio::test]
async fn empty_reply() {
    check(
        agent("assistant:\nassistant: ~\"thinking\"\nassistant: area 3"),
        "where?",
        expect![[r#"
        user:      where?
        assistant:
        assistant: ~"thinking"
        assistant: area 3
        --
        exit: the model answered
        steps: 3
    "#]],
    )
    .await;
}

#[tokio::test]
async fn empty_reply_is_bounded_by_the_step_limit() {
    check(
        agent(&"assistant:\n".repeat(9)).max_steps(3),
        "where?",
        expect![[r#"
        user:      where?
        assistant:
        assistant:
        assistant:
        --
        exit: the limit of steps was reached
        steps: 3
    "#]],
    )
    .await;
}

/// So many replies without text and calls, which end with this word of the provider.
fn empty(replies: usize, word: &str) -> Script {
    let reply = || Message::new(Role::Assistant);
    (0..replies).fold(script(""), |script, _| script.then(reply(), word.into(), Usage::default()))
}

/// Asked again three times in a row, or as often as is set; then the exit has the provider's word. A record of it replays.
#[tokio::test]
async fn empty_replies_in_a_row_are_bounded() {
    let default = RunLimits::default();
    for (word, limits, steps) in [
        ("MODEL_ARMOR", default.clone(), 4),
        ("stop", default.clone(), 4),
        ("OTHER", default.clone().with_empty_replies(0), 1),
        ("stop", default.with_empty_replies(6), 7),
    ] {
        let agent = Agent::builder(empty(9, word)).tools(tools()).limits(limits).build().unwrap();
        let run = Run::new(&agent, "where?", "run").unwrap();
        let mut recording = Recording::of(&run);
        let outcome = go_on(run, |run| run.observe(&mut recording)).await.unwrap();
        assert_eq!((outcome.exit(), outcome.steps()), (&Exit::EmptyReply(word.to_owned()), steps));
        assert!(outcome.exit().to_string().contains(word));
        assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
    }
}

/// A reply with calls or text begins anew, and an answer that is asked for at a limit is the last one.
#[tokio::test]
async fn empty_replies_in_a_row_are_those_without_another_between() {
    let empty = "assistant:\n".repeat(3);
    let script = format!("{empty}assistant: > c1 fetch(id=3)\n{empty}assistant: area 3");
    let outcome = play(&agent(&script).build().unwrap(), "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::Text, 8));
    // Where an output is due, white space is as empty.
    let output = Output::schema("area", json!({"type": "object"}));
    let model = self::script(&"assistant: \" \"\n".repeat(9));
    let outcome =
        play(&Agent::builder(model).output_with(output).build().unwrap(), "where?", |run| run).await;
    assert_eq!(outcome.unwrap().exit(), &Exit::EmptyReply("stop".to_owned()));
}

/// A run of before, which went on, is the same run.
#[tokio::test]
async fn empty_replies_that_were_recorded_before_do_not_end_the_run() {
    let script = format!("{}assistant: area 3", "assistant:\n".repeat(6));
    let before = agent(&script).limits(RunLimits::default().with_empty_replies(99)).build().unwrap();
    let mut seen = Vec::new();
    let outcome = play(&before, "where?", |run| run.observe(&mut seen)).await.unwrap();
    let now = agent(&script).build().unwrap();
    let mut run = Run::new(&now, "where?", "run").unwrap();
    for event in seen.iter().filter_map(RunEvent::committed) {
        run.commit(event.clone()).unwrap();
    }
    assert_eq!((run.exit(), run.digest()), (Some(&Exit::Text), outcome.run().digest()));
}

/// Words beside the call, else what the exit tool says, else nothing; never the result of another call.
#[tokio::test]
async fn last_words() {
    let calls = r#"> c1 submit(answer=ANSWER)   > c2 fetch(id=3)"#;
    let swapped = r#"> c1 fetch(id=3)   > c2 submit(answer=ANSWER)"#;
    for (answer, expected) in [
        ("\"42\"", Some("42")),
        ("{\"n\": 42}", Some("{\"n\":42}")),
        ("0", Some("0")),
        ("false", Some("false")),
    ]
    .into_iter()
    .chain(["null", "\"\"", "\" \"", "{}", "[]"].map(|silent| (silent, None)))
    {
        for (calls, text) in [(calls, ""), (swapped, ""), (calls, "Done."), (calls, " ")] {
            let text = if text.is_empty() { String::new() } else { format!("{text:?}   ") };
            let expected = if text.contains("Done") { Some("Done.") } else { expected };
            let script = format!("assistant: {text}{}", calls.replace("ANSWER", answer));
            let submit = tool("submit", |arguments| Ok(arguments["answer"].clone())).build().unwrap();
            let fetch = tool("fetch", |_| Ok(json!("area 3"))).build().unwrap();
            let inner = Agent::builder(self::script(&script)).tools([submit, fetch]).exit_on(["submit"]);
            let inner = inner.build().unwrap();
            let outcome = play(&inner, "where?", |run| run).await.unwrap();
            assert_eq!(outcome.last_words().as_deref(), expected, "{script}");
            // The result of an agent that is a tool.
            let outer = Agent::builder(self::script("assistant: > c1 ask(task=\"x\")\nassistant: done"));
            let outer = outer.tool(inner.as_tool("ask", "Asks.")).build().unwrap();
            let outcome = play(&outer, "where?", |run| run).await.unwrap();
            let result = outcome.transcript().iter().find_map(|message| message.tool_result()).unwrap();
            assert_eq!(result.text(), expected.unwrap_or_default(), "{script}");
        }
    }
}

/// A note for the model beside the result is none of the exit tool's words.
#[tokio::test]
async fn last_words_after_a_modification() {
    for (answer, expected) in [(json!(null), None), (json!("42"), Some("42"))] {
        let submit = tool("submit", |arguments| Ok(arguments["answer"].clone())).approval(Approval::Always);
        let agent =
            Agent::builder(script("assistant: > c1 submit(answer=\"7\")")).tool(submit).exit_on(["submit"]);
        let paused = play(&agent.build().unwrap(), "where?", |run| run).await.unwrap();
        let modified = [("c1", Decision::modify(json!({"answer": answer})))];
        let outcome = decide(reloaded(&paused), modified).await.unwrap();
        assert_eq!(outcome.last_words().as_deref(), expected);
    }
}

/// What failed tells what the agent said, and does not take for that what a tool said.
#[tokio::test]
async fn last_words_of_a_failure() {
    for (text, expected) in [
        ("", "steps was reached. Its last call was of 'fetch': area 3"),
        ("I look.   ", "steps was reached. Its last words: I look."),
    ] {
        let inner = agent(&format!("assistant: {text}> c1 fetch(id=3)\nassistant: never"))
            .max_steps(1)
            .build()
            .unwrap();
        let outer = Agent::builder(script("assistant: > c1 ask(task=\"x\")\nassistant: done"));
        let outer = outer.tool(inner.as_tool("ask", "Asks.")).build().unwrap();
        let outcome = play(&outer, "where?", |run| run).await.unwrap();
        let result = outcome.transcript().iter().find_map(|message| message.tool_result()).unwrap();
        assert!(result.text().ends_with(expected), "{}", result.text());
    }
}

#[tokio::test]
async fn empty_reply_that_was_cut_or_filtered() {
    for (reason, exit) in [
        (FinishReason::Length, Exit::Length),
        (FinishReason::ContentFilter, Exit::ContentFilter),
        (FinishReason::Refusal, Exit::Refusal),
    ] {
        let model = ending(script(""), "assistant:", reason.clone(), Usage::default());
        let agent = Agent::builder(model).tools(tools()).build().unwrap();
        let outcome = play(&agent, "where?", |run| run).await.unwrap();
        assert_eq!((outcome.exit(), outcome.finish_reason()), (&exit, Some(&reason)));
    }
}

/// The text is kept, and so are the calls.
#[tokio::test]
async fn reply_with_text_and_calls() {
    let script = r#"
assistant: I look it up.   > c1 search(q="stalls")
assistant: "First"   > c2 fetch(id=3)   "then"   > c3 fetch(id=4)
assistant: area 3
"#;
    check(
        agent(script),
        "where?",
        expect![[r#"
        user:      where?
        assistant: I look it up.   > c1 search(q="stalls")
        tool c1:   [3, 4]
        assistant: First   > c2 fetch(id=3)   "then"   > c3 fetch(id=4)
        tool c2:   area 3
        tool c3:   area 4
        assistant: area 3
        --
        exit: the model answered
        steps: 3, calls: fetch 2, search 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn exit_tools() {
    let script = "assistant: > c1 submit(area=3)\nassistant: never asked for";
    check(
        agent(script).exit_on(["submit"]),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 submit(area=3)
        tool c1:   submitted
        --
        exit: tool 'submit' was called
        steps: 1, calls: submit 1
    "#]],
    )
    .await;
}

/// The order of parallel calls does not matter.
#[tokio::test]
async fn exit_tools_beside_other_calls() {
    for calls in ["> c1 submit()   > c2 search(q=\"stalls\")", "> c1 search(q=\"stalls\")   > c2 submit()"] {
        let agent = agent(&format!("assistant: {calls}")).exit_on(["submit"]).build().unwrap();
        let outcome = play(&agent, "where?", |run| run).await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Tool("submit".to_owned()));
        assert_eq!(outcome.transcript().len(), 4);
    }
}

/// A failed sibling that is not an exit condition does not matter; a failed exit tool does, whatever the other did.
#[tokio::test]
async fn exit_tools_that_failed() {
    let script = r#"
assistant: > c1 submit(bad=true)
assistant: > c2 submit()   > c3 submit(bad=true)
assistant: > c4 submit()   > c5 fails()
"#;
    check(
        agent(script).exit_on(["submit"]),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 submit(bad=true)
        tool c1!:  not acceptable
        assistant: > c2 submit()   > c3 submit(bad=true)
        tool c2:   submitted
        tool c3!:  not acceptable
        assistant: > c4 submit()   > c5 fails()
        tool c4:   submitted
        tool c5!:  no such area
        --
        exit: tool 'submit' was called
        steps: 3, calls: fails 1, submit 4
    "#]],
    )
    .await;
}

#[tokio::test]
async fn exit_tools_may_be_several() {
    let script = "assistant: > c1 fetch(id=3)   > c2 submit()";
    check(
        agent(script).exit_on(["submit", "fetch"]),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=3)   > c2 submit()
        tool c1:   area 3
        tool c2:   submitted
        --
        exit: tool 'fetch' was called
        steps: 1, calls: fetch 1, submit 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn rejected_exit_tool() {
    let script = "assistant: > c1 submit()\nassistant: then I say it: area 3";
    let agent = agent(script).exit_on(["submit"]).approval(Approval::Always).build().unwrap();
    let paused = play(&agent, "where?", |run| run).await.unwrap();
    let ended = decide(reloaded(&paused), [("c1", Decision::reject("not yet"))]).await;
    expect![[r#"
        user:      where?
        assistant: > c1 submit()
        tool c1!:  tool 'submit' not run: the call was rejected: not yet
        assistant: then I say it: area 3
        --
        exit: the model answered
        steps: 2
    "#]]
    .assert_eq(&shown(&ended));
}

#[tokio::test]
async fn no_tools() {
    let script = "assistant: > c1 search(q=\"stalls\")\nassistant: never asked for";
    check(
        Agent::builder(self::script(script)),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 search(q="stalls")
        tool c1!:  unknown tool 'search'; available: none
        --
        exit: the agent has no tools, so there is one request
        steps: 1, calls: search 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn no_tools_and_an_empty_reply() {
    check(
        Agent::builder(script("assistant:\nassistant: never asked for")),
        "where?",
        expect![[r#"
        user:      where?
        assistant:
        --
        exit: the agent has no tools, so there is one request
        steps: 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn step_limit() {
    let script = "assistant: > c1 fetch(id=1)\nassistant: > c2 fetch(id=2)\nassistant: never asked for";
    check(
        agent(script).max_steps(2),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: > c2 fetch(id=2)
        tool c2:   area 2
        --
        exit: the limit of steps was reached
        steps: 2, calls: fetch 2
    "#]],
    )
    .await;
}

#[tokio::test]
async fn step_limit_is_100() {
    let script: String = (0..101).map(|n| format!("assistant: > c{n} fetch(id={n})\n")).collect();
    let agent = agent(&script).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.steps()), (&Exit::MaxSteps, 100));
}

/// An answer in the last step that is allowed is an answer.
#[tokio::test]
async fn step_limit_that_is_just_enough() {
    check(
        agent("assistant: > c1 fetch(id=1)\nassistant: area 1").max_steps(2),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fetch 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn final_answer() {
    let model = Asked::new(script("assistant: > c1 fetch(id=1)\nassistant: probably area 1"));
    let agent = Agent::builder(model.clone()).tools(tools()).max_steps(1).final_answer();
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: probably area 1
        --
        exit: the limit of steps was reached
        steps: 2, calls: fetch 1
    "#]],
    )
    .await;
    let choices: Vec<_> = model.requests().into_iter().map(|request| request.tool_choice).collect();
    expect![[r#"
        [
            Auto,
            None,
        ]
    "#]]
    .assert_debug_eq(&choices);
}

/// The model calls a tool anyway: it does not run, and there is no other attempt.
#[tokio::test]
async fn final_answer_that_is_none() {
    let script = "assistant: > c1 fetch(id=1)\nassistant: but   > c2 fetch(id=2)\nassistant: never asked for";
    check(
        agent(script).max_steps(1).final_answer(),
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)
        tool c1:   area 1
        assistant: but   > c2 fetch(id=2)
        tool c2!:  tool 'fetch' was not run: no tool is available any more; answer with what you have
        --
        exit: the limit of steps was reached
        steps: 2, calls: fetch 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn cut_replies() {
    let script = script("assistant: > c1 fetch(id=1)");
    let reply = "assistant: I order   > c2 submit(area=3)";
    for reason in [FinishReason::Length, FinishReason::ContentFilter, FinishReason::Refusal] {
        let model = ending(script.clone(), reply, reason.clone(), Usage::default());
        let expected = match reason {
            FinishReason::Length => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)
                tool c1:   area 1
                assistant: I order   > c2 submit(area=3)
                tool c2!:  tool 'submit' was not run: the reply was truncated at its limit of tokens, so the call may be cut as well
                --
                exit: the reply was truncated at its limit of tokens
                steps: 2, calls: fetch 1
            "#]],
            FinishReason::ContentFilter => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)
                tool c1:   area 1
                assistant: I order   > c2 submit(area=3)
                tool c2!:  tool 'submit' was not run: stopped by the provider's content filter, so the call may be cut as well
                --
                exit: stopped by the provider's content filter
                steps: 2, calls: fetch 1
            "#]],
            _ => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)
                tool c1:   area 1
                assistant: I order   > c2 submit(area=3)
                tool c2!:  tool 'submit' was not run: the model refused to answer, so the call may be cut as well
                --
                exit: the model refused to answer
                steps: 2, calls: fetch 1
            "#]],
        };
        check(Agent::builder(model).tools(tools()).exit_on(["submit"]), "where?", expected).await;
    }
}

/// Text that was cut is not an answer like another.
#[tokio::test]
async fn cut_replies_of_text() {
    let model = ending(script(""), "assistant: the area with most", FinishReason::Length, Usage::default());
    check(
        Agent::builder(model),
        "where?",
        expect![[r#"
        user:      where?
        assistant: the area with most
        --
        exit: the reply was truncated at its limit of tokens
        steps: 1
    "#]],
    )
    .await;
}

/// A reason that this version does not know ends a reply as any other.
#[tokio::test]
async fn cut_replies_for_an_unknown_reason() {
    let model = ending(script(""), "assistant: area 3", FinishReason::Other("eos".into()), Usage::default());
    let agent = Agent::builder(model).build().unwrap();
    let outcome = play(&agent, "where?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.finish_reason().unwrap().as_str()), (&Exit::Text, "eos"));
}

#[tokio::test]
async fn exit_is_stored_by_name() {
    let exits = [Exit::Text, Exit::Tool("submit".into()), Exit::Hook("enough".into()), Exit::Cancelled];
    assert_eq!(
        serde_json::to_value(exits).unwrap(),
        json!(["text", {"tool": "submit"}, {"hook": "enough"}, "cancelled"]),
    );
}
