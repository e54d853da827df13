//! What `repair` does, and its laws.

use std::sync::Arc;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stepfold_state_core::chat::{Content, Message, Part, Role, Transcript};

use super::arbitrary;

/// Repairs, and shows the conversation and what was done.
fn check(notation: &str, expected: Expect) {
    let broken: Transcript = notation.parse().unwrap();
    let repaired = broken.repair();
    assert_eq!(repaired.transcript.check(), Ok(()));
    let repairs: Vec<_> = repaired.repairs.iter().map(|repair| format!("- {repair}\n")).collect();
    expected.assert_eq(&format!("{}{}", repaired.transcript, repairs.concat()));
}

#[test]
fn answers_open_calls_in_call_order() {
    check(
        "assistant: > c1 f()   > c2 g()   > c3 h()\ntool c2: 1",
        expect![[r"
        assistant: > c1 f()   > c2 g()   > c3 h()
        tool c2:   1
        tool c1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        tool c3!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        - message 0, call `c1`: answered as interrupted
        - message 0, call `c3`: answered as interrupted
    "]],
    );
}

#[test]
fn moves_late_results_back() {
    check(
        "assistant: > c1 f()\nuser: hello?\nassistant: wait\ntool c1: 1",
        expect![[r"
        assistant: > c1 f()
        tool c1:   1
        user:      hello?
        assistant: wait
        - message 3, call `c1`: moved the late result after its call
    "]],
    );
}

#[test]
fn drops_answers_to_nothing() {
    check(
        "tool c1: 1\nassistant: > c2 f()\ntool c2: 2\ntool c2: 3\ntool c3: 4",
        expect![[r"
        assistant: > c2 f()
        tool c2:   2
        - message 0, call `c1`: dropped a result without a call
        - message 3, call `c2`: dropped a second result
        - message 4, call `c3`: dropped a result without a call
    "]],
    );
}

#[test]
fn a_second_answer_does_not_answer_an_older_call() {
    check(
        "assistant: > c1 pay()\nassistant: > c1 look()\ntool c1: 1\ntool c1: 2",
        expect![[r"
        assistant: > c1 pay()
        tool c1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        assistant: > c1 look()
        tool c1:   1
        - message 0, call `c1`: answered as interrupted
        - message 3, call `c1`: dropped a second result
    "]],
    );
}

#[test]
fn tells_calls_apart() {
    check(
        "assistant: > c1 f()   > c1 f()   > \"\" g()   > c1-2 g()\ntool c1: 1\ntool c1: 2\ntool \"\": 3\ntool c1-2: 4",
        expect![[r"
        assistant: > c1 f()   > c1-3 f()   > call-3 g()   > c1-2 g()
        tool c1:   1
        tool c1-3: 2
        tool call-3: 3
        tool c1-2: 4
        - message 0, call `c1`: set the call id to `c1-3`
        - message 0, call ``: set the call id to `call-3`
        - message 2, call `c1`: set the call id to `c1-3`
        - message 3, call ``: set the call id to `call-3`
    "]],
    );
}

#[test]
fn names_the_tool_that_was_called() {
    check(
        "assistant: > c1 f()\ntool c1 g: 1",
        expect![[r"
        assistant: > c1 f()
        tool c1:   1
        - message 1, call `c1`: set the tool name to `f`
    "]],
    );
}

#[test]
fn drops_misplaced_parts() {
    check(
        "user: \"look\"   > c1 f()\nuser: > c2 f()\ntool: hello\nassistant: hi",
        expect![[r"
        user:      look
        assistant: hi
        - message 0: dropped a misplaced `tool_call` part
        - message 1: dropped a misplaced `tool_call` part
        - message 1: dropped an empty message
        - message 2: dropped a misplaced `text` part
        - message 2: dropped an empty message
    "]],
    );
}

#[test]
fn finds_results_in_messages_of_others() {
    let result =
        |id: &str| format!("@{{\"tool_result\": {{\"call_id\": \"{id}\", \"name\": \"f\", \"value\": 1}}}}");
    let notation = format!(
        "assistant: > c1 f()\nuser: {} {} \"go on\"\nassistant: > c2 f() {}",
        result("c1"),
        result("c9"),
        result("c2"),
    );
    check(
        &notation,
        expect![[r#"
            assistant: > c1 f()
            tool c1:   1
            user:      go on
            assistant: > c2 f()
            tool c2:   1
            - message 1, call `c1`: moved a misplaced result into a tool message
            - message 1, call `c9`: moved a misplaced result into a tool message
            - message 1, call `c9`: dropped a result without a call
            - message 2, call `c2`: moved a misplaced result into a tool message
        "#]],
    );
}

#[test]
fn splits_results() {
    let result =
        |id: &str| format!("@{{\"tool_result\": {{\"call_id\": \"{id}\", \"name\": \"f\", \"value\": 1}}}}");
    let notation = format!("assistant: > c1 f()   > c2 f()\ntool: {} {}", result("c1"), result("c2"));
    check(
        &notation,
        expect![[r"
        assistant: > c1 f()   > c2 f()
        tool c1:   1
        tool c2:   1
        - message 1: split a tool message with several results
    "]],
    );
}

#[test]
fn shares_what_is_well_formed() {
    let broken: Transcript =
        "user: hi\nassistant: > c1 f()\ntool c1: 1\nassistant: > c2 f()".parse().unwrap();
    let repaired = broken.repair().transcript;
    for index in 0..broken.len() {
        assert!(Arc::ptr_eq(broken.get(index).unwrap(), repaired.get(index).unwrap()));
    }
}

/// The parts that must be preserved: all except those of tools, calls and misplaced parts.
fn said(transcript: &Transcript) -> Vec<(Role, Vec<Part>)> {
    let is_said = |part: &&Part| !matches!(part.content, Content::ToolCall(_) | Content::ToolResult(_));
    transcript
        .iter()
        .filter(|message| message.role() != Role::Tool)
        .map(|message| {
            let parts = message.parts().iter().filter(is_said).cloned().collect::<Vec<_>>();
            (message.role(), parts)
        })
        .filter(|(_, parts)| !parts.is_empty())
        .collect()
}

/// The calls of assistant messages, without their ids.
fn called(transcript: &Transcript) -> Vec<(String, String)> {
    transcript
        .iter()
        .filter(|message| message.role() == Role::Assistant)
        .flat_map(|message| message.tool_calls())
        .map(|call| (call.name.clone(), call.arguments.to_text().into_owned()))
        .collect()
}

fn laws(broken: &Transcript) -> Result<(), TestCaseError> {
    let repaired = broken.repair();
    prop_assert_eq!(repaired.transcript.check(), Ok(()));
    prop_assert_eq!(broken.check().is_ok(), repaired.repairs.is_empty());
    if repaired.repairs.is_empty() {
        prop_assert!(repaired.transcript.ptr_eq(broken));
    }
    let again = repaired.transcript.repair();
    prop_assert!(again.repairs.is_empty());
    prop_assert!(again.transcript.ptr_eq(&repaired.transcript));
    prop_assert_eq!(said(&repaired.transcript), said(broken));
    prop_assert_eq!(called(&repaired.transcript), called(broken));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn repair_keeps_its_laws(broken in arbitrary::transcript()) {
        laws(&broken)?;
    }

    #[test]
    fn repair_keeps_its_laws_in_a_crowd(broken in arbitrary::crowd()) {
        laws(&broken)?;
    }

    /// Truncating a well-formed conversation anywhere: all parts are preserved, and only calls that lost their result
    /// are marked as interrupted.
    #[test]
    fn a_cut_conversation_keeps_what_it_had(broken in arbitrary::transcript(), cut in 0..12_usize) {
        let whole = broken.repair().transcript;
        let cut: Transcript = whole.iter().take(cut).cloned().collect();
        let repaired = cut.repair().transcript;
        prop_assert!(repaired.starts_with(&cut));
        let added = repaired.iter_from(cut.len());
        prop_assert!(added.clone().all(|message: &Arc<Message>| message.tool_result().unwrap().is_error()));
    }
}
