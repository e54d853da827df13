//! The faults that `check` finds, and their positions.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stepfold_state_core::chat::{Message, Role, ToolCall, ToolResult, Transcript};

use super::arbitrary;

fn check(notation: &str, expected: Expect) {
    let transcript: Transcript = notation.parse().unwrap();
    let found = match transcript.check() {
        Ok(()) => "well-formed".to_owned(),
        Err(faults) => {
            let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
            lines.join("\n")
        }
    };
    expected.assert_eq(&found);
}

#[test]
fn well_formed() {
    let fine = || expect!["well-formed"];
    check("", fine());
    check("assistant: hello", fine());
    check("assistant: > c1 f()   > c2 g()\ntool c2: 1\ntool c1!: oops", fine());
    // Ids may repeat in another step.
    check("assistant: > c1 f()\ntool c1: 1\nassistant: > c1 g()\ntool c1: 2", fine());
    check(
        "assistant: > c1 f()\ntool: @{\"tool_result\": {\"call_id\": \"c1\", \"name\": \"f\", \"value\": 1}}   @{\"new\": 1}",
        fine(),
    );
}

#[test]
fn unanswered_calls() {
    check("assistant: > c1 f()   > c2 g()\ntool c2: 1", expect!["message 0, call `c1`: missing result"]);
    check(
        "assistant: > c1 f()\nuser: hello?\ntool c1: 1",
        expect![[r#"
        message 0, call `c1`: missing result
        message 2, call `c1`: result without a call"#]],
    );
    check("assistant: > c1 f()\nassistant: hello", expect!["message 0, call `c1`: missing result"]);
}

#[test]
fn results_that_answer_nothing() {
    check("user: hi\ntool c1: 1", expect!["message 1, call `c1`: result without a call"]);
    check("assistant: > c1 f()\ntool c1: 1\ntool c1: 2", expect!["message 2, call `c1`: duplicate result"]);
    check(
        "assistant: > c1 f()\ntool c1 g: 1",
        expect!["message 1, call `c1`: expected a result of `f`, found one of `g`"],
    );
}

#[test]
fn ids() {
    check(
        "assistant: > c1 f()   > c1 f()\ntool c1: 1\ntool c1: 2",
        expect!["message 0, call `c1`: duplicate call id"],
    );
    check("assistant: > \"\" f()\ntool \"\": 1", expect!["message 0, call ``: empty call id"]);
}

#[test]
fn misplaced_parts() {
    check("user: > c1 f()", expect!["message 0: invalid `tool_call` part in a user message"]);
    check(
        "tool: hello",
        expect![[r#"
        message 0: invalid `text` part in a tool message
        message 0: tool message without a result"#]],
    );
    let result = |id: &str| ToolResult::value(id, "f", 1);
    let transcript = Transcript::new()
        .with(Message::user("hi").with_part(result("c1")))
        .with(
            Message::new(Role::Assistant)
                .with_part(ToolCall::new("c1", "f", serde_json::Map::new()))
                .with_part(ToolCall::new("c2", "f", serde_json::Map::new())),
        )
        .with(Message::tool(result("c1")).with_part(result("c2")));
    let faults = transcript.check().unwrap_err();
    expect!["message 0: invalid `tool_result` part in a user message; message 2: tool message with several results"]
        .assert_eq(&faults.to_string());
}

#[test]
fn the_list_of_faults_is_bounded() {
    let transcript: Transcript =
        (0..14).map(|index| Message::tool(ToolResult::value(format!("c{index}"), "f", 1))).collect();
    let faults = transcript.check().unwrap_err();
    assert_eq!(faults.iter().len(), 14);
    assert!(faults.to_string().ends_with("; message 9, call `c9`: result without a call; and 4 more"));
}

proptest! {
    /// Many calls are looked up in another way than few; here are many, and few of them at a time.
    #[test]
    fn many_calls_are_checked_as_few_are(transcript in arbitrary::crowd()) {
        let all = transcript.first().unwrap();
        let mut ids: Vec<&str> = all.tool_calls().map(|call| call.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        let one_id_at_a_time: usize = ids
            .iter()
            .map(|id| {
                let calls = all.tool_calls().filter(|call| call.id == *id).cloned();
                let calls = Message::from_parts(Role::Assistant, calls.map(Into::into).collect());
                let results = transcript.iter_from(1).filter(|message| {
                    message.tool_result().unwrap().call_id() == *id
                });
                let part = Transcript::new().with(calls);
                let part = results.fold(part, |part, result| part.with(result.clone()));
                part.check().map_or_else(|faults| faults.iter().len(), |()| 0)
            })
            .sum();
        let orphans = transcript
            .iter_from(1)
            .filter(|message| !ids.contains(&message.tool_result().unwrap().call_id()))
            .count();
        let found = transcript.check().map_or_else(|faults| faults.iter().len(), |()| 0);
        prop_assert_eq!(found, one_id_at_a_time + orphans);
    }
}
