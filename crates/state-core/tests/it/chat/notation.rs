//! The notation: how it reads, where it says that it is wrong, and that it parses what it prints.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::json;
use stepfold_state_core::chat::{Arguments, Message, Part, Role, ToolCall, ToolResult, Transcript};

use super::arbitrary;

/// Parses, and shows the stored form of each message, or the error.
fn check(notation: &str, expected: Expect) {
    let found = match notation.parse::<Transcript>() {
        Ok(transcript) => {
            let lines = transcript.iter().map(|message| serde_json::to_string(message).unwrap() + "\n");
            lines.collect()
        }
        Err(error) => format!("{error}\n"),
    };
    expected.assert_eq(&found);
}

/// Prints, and parses that again.
fn check_print(transcript: &Transcript, expected: Expect) {
    let printed = transcript.to_string();
    expected.assert_eq(&printed);
    assert_eq!(printed.parse::<Transcript>().as_ref(), Ok(transcript));
}

#[test]
fn reads_a_conversation() {
    let notation = "\
# What the readme shows.
user:      which area has most stalls?

assistant: > c1 search(q=\"stalls\")   > c2 fetch(id=7)
tool c1:   [3, 4]
tool c2!:  timed out
assistant: area 3
           or 4
";
    check(
        notation,
        expect![[r#"
        {"role":"user","parts":[{"text":"which area has most stalls?"}]}
        {"role":"assistant","parts":[{"tool_call":{"id":"c1","name":"search","arguments":{"q":"stalls"}}},{"tool_call":{"id":"c2","name":"fetch","arguments":{"id":7}}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":[3,4]}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c2","name":"fetch","error":"timed out"}}]}
        {"role":"assistant","parts":[{"text":"area 3\nor 4"}]}
    "#]],
    );
}

#[test]
fn reads_text_leniently() {
    check(
        "assistant: 3 > 2 and > is no call\n",
        expect![[r#"
        {"role":"assistant","parts":[{"text":"3 > 2 and > is no call"}]}
    "#]],
    );
    check(
        "assistant: I look. > c1 f()\n",
        expect![[r#"
        {"role":"assistant","parts":[{"text":"I look."},{"tool_call":{"id":"c1","name":"f","arguments":{}}}]}
    "#]],
    );
    check(
        "user: I look. > c1 f()\n",
        expect![[r#"
        {"role":"user","parts":[{"text":"I look. > c1 f()"}]}
    "#]],
    );
    check(
        "user: \"Go\" was all she said\n",
        expect![[r#"
        {"role":"user","parts":[{"text":"\"Go\" was all she said"}]}
    "#]],
    );
    check(
        "user:\r\nassistant:\r\n  hi\r\n\tyou\r\n",
        expect![[r#"
        {"role":"user","parts":[]}
        {"role":"assistant","parts":[{"text":"hi\nyou"}]}
    "#]],
    );
}

#[test]
fn reads_segments() {
    check(
        r#"assistant: ~"hm" "so" @{"image":{"url":"u"},"extras":{"a":1}} > "c 1" f!("{oops") %{"cache":true}"#,
        expect![[r#"
            {"role":"assistant","parts":[{"reasoning":"hm"},{"text":"so"},{"image":{"url":"u"},"extras":{"a":1}},{"tool_call":{"id":"c 1","name":"f","arguments_text":"{oops"}}],"extras":{"cache":true}}
        "#]],
    );
    check(
        "assistant: > c1 f(a=[1,\n  {\"b\": \")\"}],\n  c=2)\n",
        expect![[r#"
        {"role":"assistant","parts":[{"tool_call":{"id":"c1","name":"f","arguments":{"a":[1,{"b":")"}],"c":2}}}]}
    "#]],
    );
}

#[test]
fn reads_results() {
    let notation = "\
assistant: > c1 search()
tool c1: 12
tool c1: twelve
tool c1: \"12\"
tool c1:
tool c1 fetch: 12
tool c9: 12
tool c1!: \"a\\nb\"
";
    check(
        notation,
        expect![[r#"
        {"role":"assistant","parts":[{"tool_call":{"id":"c1","name":"search","arguments":{}}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":12}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":"twelve"}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":"12"}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":""}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"fetch","value":12}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c9","name":"","value":12}}]}
        {"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","error":"a\nb"}}]}
    "#]],
    );
}

#[test]
fn says_where_it_is_wrong() {
    check("hello\n", expect!["line 1, column 1: expected `system:`, `user:`, `assistant:` or `tool ID:`\n"]);
    check(
        "  hello\n",
        expect!["line 1, column 3: expected `system:`, `user:`, `assistant:` or `tool ID:`\n"],
    );
    check(
        "user: hi\nusers: hi\n",
        expect!["line 2, column 1: expected `system:`, `user:`, `assistant:` or `tool ID:`\n"],
    );
    check("tool c1 é: hi\n", expect!["line 1, column 9: expected a name or a string\n"]);
    check("tool c1 f?: hi\n", expect!["line 1, column 10: expected `:`\n"]);
    check("assistant: > c1 f(q=stalls)\n", expect!["line 1, column 21: expected value\n"]);
    check(
        "assistant: é > c1 f(q=1,\n           r=[1, oops])\n",
        expect!["line 2, column 18: expected value\n"],
    );
    check("assistant: > c1 f(q=1 r=2)\n", expect!["line 1, column 23: expected `,`\n"]);
    check("assistant: > c1 f(q=1, q=2)\n", expect!["line 1, column 24: duplicate argument `q`\n"]);
    check("assistant: > c1 f(q=1\n", expect!["line 1, column 22: expected `,`\n"]);
    check(
        "assistant: > c1 f() done\n",
        expect![
            "line 1, column 21: expected a call `> id name(..)`, a string, `~\"..\"`, `@{..}` or `%{..}`\n"
        ],
    );
    check(
        "user: @{\"text\": 5}\n",
        expect!["line 1, column 17: invalid type: integer `5`, expected a string\n"],
    );
}

#[test]
fn prints_a_conversation() {
    let transcript = Transcript::new()
        .with(Message::system("be brief"))
        .with(Message::user("first line\nsecond line"))
        .with(
            Message::assistant("I look.")
                .with_part(ToolCall::new("c1", "search", json!({"q": [1, {"a": null}]})))
                .with_part(ToolCall::new("c 2", "fetch", Arguments::parse("{id: 7}"))),
        )
        .with(Message::tool(ToolResult::value("c1", "search", json!([3, 4.0]))))
        .with(Message::tool(ToolResult::value("c 2", "search", "12")))
        .with(Message::tool(ToolResult::error("c3", "", "timed out\nagain")))
        .with(Message::assistant("> quoted").with_extra("cache", true))
        .with(Message::new(Role::Assistant).with_part(Part::reasoning("hm")))
        .with(Message::new(Role::Assistant));
    check_print(
        &transcript,
        expect![[r#"
        system:    be brief
        user:      first line
                   second line
        assistant: I look.   > c1 search(q=[1, {"a": null}])   > "c 2" fetch!("{id: 7}")
        tool c1:   [3, 4.0]
        tool "c 2" search: "12"
        tool c3!:  timed out
                   again
        assistant: "> quoted"   %{"cache": true}
        assistant: ~"hm"
        assistant:
    "#]],
    );
}

#[test]
fn one_message_prints_alone() {
    let message = Message::tool(ToolResult::value("c1", "search", 3));
    assert_eq!(message.to_string(), "tool c1 search: 3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn parses_what_it_prints(transcript in arbitrary::transcript()) {
        let printed = transcript.to_string();
        prop_assert_eq!(printed.parse::<Transcript>(), Ok(transcript), "{}", printed);
    }

    #[test]
    fn any_text_survives(text in arbitrary::text()) {
        let transcript = Transcript::new()
            .with(Message::user(text.clone()))
            .with(Message::assistant(text.clone()).with_part(ToolCall::new("c1", "f", json!({}))))
            .with(Message::tool(ToolResult::value("c1", "f", text.clone())))
            .with(Message::tool(ToolResult::error("c1", "f", text)));
        let printed = transcript.to_string();
        prop_assert_eq!(printed.parse::<Transcript>(), Ok(transcript), "{}", printed);
    }

    #[test]
    fn never_panics(text in "(user|assistant|tool c1|tool|system|)!?:? {0,2}(\\PC|\n |\"|> c1 f\\(|@\\{|%\\{|~\"|\\)|=|é){0,12}") {
        if let Ok(transcript) = text.parse::<Transcript>() {
            prop_assert_eq!(transcript.to_string().parse::<Transcript>(), Ok(transcript));
        }
    }
}
