//! The stored form of messages: golden texts, leniency, errors, and the round trip.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Arguments, Content, Media, Message, Part, Role, ToolCall, ToolContent, ToolResult, Transcript,
    UnknownPart,
};

use super::arbitrary;

/// Writes, compares, and reads back.
fn check(message: &Message, expected: Expect) {
    let json = serde_json::to_string(message).unwrap();
    expected.assert_eq(&json);
    assert_eq!(&serde_json::from_str::<Message>(&json).unwrap(), message);
}

/// Reads, and shows how it would be written, or the error.
fn check_read(json: &str, expected: Expect) {
    let found = match serde_json::from_str::<Message>(json) {
        Ok(message) => serde_json::to_string(&message).unwrap(),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&found);
}

#[test]
fn golden_texts() {
    check(&Message::user("hi"), expect![[r#"{"role":"user","parts":[{"text":"hi"}]}"#]]);
    check(&Message::new(Role::System), expect![[r#"{"role":"system","parts":[]}"#]]);
    check(
        &Message::new(Role::Assistant)
            .with_part(Part::reasoning("hm").with_extra("signature", "EqQB"))
            .with_part("I look.")
            .with_part(ToolCall::new("c1", "search", json!({"q": "stalls"})))
            .with_part(ToolCall::new("c2", "fetch", Arguments::parse("{\"id\": ")))
            .with_extra("cache", true),
        expect![[
            r#"{"role":"assistant","parts":[{"reasoning":"hm","extras":{"signature":"EqQB"}},{"text":"I look."},{"tool_call":{"id":"c1","name":"search","arguments":{"q":"stalls"}}},{"tool_call":{"id":"c2","name":"fetch","arguments_text":"{\"id\": "}}],"extras":{"cache":true}}"#
        ]],
    );
    check(
        &Message::tool(ToolResult::value("c1", "search", json!([3, 4]))),
        expect![[
            r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":[3,4]}}]}"#
        ]],
    );
    check(
        &Message::tool(ToolResult::error("c1", "search", "timed out")),
        expect![[
            r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","error":"timed out"}}]}"#
        ]],
    );
    let image = Part::from(Content::Image(Media::base64("iVBO", "image/png")));
    check(
        &Message::tool(ToolResult::new("c1", "draw", ToolContent::Parts(vec![image]))),
        expect![[
            r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"draw","parts":[{"image":{"base64":"iVBO","media_type":"image/png"}}]}}]}"#
        ]],
    );
    check(
        &Message::new(Role::User).with_part(Content::File(Media::url("https://a.example/b").named("b"))),
        expect![[r#"{"role":"user","parts":[{"file":{"url":"https://a.example/b","name":"b"}}]}"#]],
    );
}

#[test]
fn reads_what_others_write() {
    check_read(r#"{"parts":"hi","role":"user"}"#, expect![[r#"{"role":"user","parts":[{"text":"hi"}]}"#]]);
    check_read(
        r#"{"role":"user","parts":["a",{"text":"b"}],"extras":null}"#,
        expect![[r#"{"role":"user","parts":[{"text":"a"},{"text":"b"}]}"#]],
    );
    // Fields of a newer version are ignored, a kind of part of a newer version is kept.
    check_read(
        r#"{"id":[1],"role":"user","parts":[{"lang":"en","text":"a"},{"video":{"url":"u"},"width":3,"extras":{"a":1}}]}"#,
        expect![[
            r#"{"role":"user","parts":[{"text":"a"},{"video":{"url":"u"},"width":3,"extras":{"a":1}}]}"#
        ]],
    );
    check_read(
        r#"{"role":"assistant","parts":[{"tool_call":{"id":"","name":"f","arguments_text":"null","kind":"x"}}]}"#,
        expect![[r#"{"role":"assistant","parts":[{"tool_call":{"id":"","name":"f","arguments":{}}}]}"#]],
    );
}

#[test]
fn errors_say_what_was_expected() {
    check_read(
        "[]",
        expect![
            "invalid type: sequence, expected a message: an object with `role` and `parts` at line 1 column 0"
        ],
    );
    check_read(r#"{"role":"user","content":"hi"}"#, expect!["missing field `parts` at line 1 column 30"]);
    check_read(r#"{"parts":[]}"#, expect!["missing field `role` at line 1 column 12"]);
    check_read(
        r#"{"role":"robot","parts":[]}"#,
        expect![
            "unknown variant `robot`, expected one of `system`, `user`, `assistant`, `tool` at line 1 column 15"
        ],
    );
    check_read(
        r#"{"role":"user","parts":5}"#,
        expect!["invalid type: integer `5`, expected a list of parts, or a string at line 1 column 24"],
    );
    check_read(
        r#"{"role":"user","parts":[5]}"#,
        expect![
            "invalid type: integer `5`, expected a part: a string, or an object with a field such as `text` at line 1 column 25"
        ],
    );
    check_read(
        r#"{"role":"user","parts":[{}]}"#,
        expect![
            "expected a part with a field such as `text` or `tool_call`, found no field at line 1 column 26"
        ],
    );
    check_read(
        r#"{"role":"user","parts":[{"text":"a","image":{"url":"u"}}]}"#,
        expect!["expected a part of one kind, found `text` and `image` at line 1 column 56"],
    );
    for twice in
        [r#""text":null,"text":"a""#, r#""text":"a","text":null"#, r#""text":"a","extras":{},"extras":{}"#]
    {
        let read = serde_json::from_str::<Message>(&format!(r#"{{"role":"user","parts":[{{{twice}}}]}}"#));
        assert!(read.unwrap_err().to_string().starts_with("duplicate field `"), "{twice}");
    }
    check_read(
        r#"{"role":"user","parts":[{"image":{}}]}"#,
        expect!["missing field `url`, `base64`, `text` or `file_id` at line 1 column 36"],
    );
    check_read(
        r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"f"}}]}"#,
        expect!["missing field `value`, `error` or `parts` at line 1 column 67"],
    );
    check_read(
        r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"f","value":1,"error":"e"}}]}"#,
        expect![
            "expected only one of the fields `value`, `error` or `parts`, found several at line 1 column 89"
        ],
    );
}

#[test]
fn arguments_are_never_dropped() {
    let malformed = |text: &str| {
        let arguments = Arguments::parse(text);
        let (kept, error) = arguments.malformed().expect("malformed");
        assert_eq!(kept, text);
        error.to_owned()
    };
    assert_eq!(malformed("[1]"), "expected a JSON object, found list");
    assert_eq!(malformed("\"{}\""), "expected a JSON object, found string");
    assert_eq!(malformed("{\"q\": sta"), "expected value at line 1 column 7");
    assert_eq!(malformed("{\"q\": 1} {}"), "trailing characters at line 1 column 10");
    assert_eq!(malformed(r#"{"q": "\ud800"}"#), "unexpected end of hex escape at line 1 column 14");
    for empty in ["", " \n", "null", " null ", "{}"] {
        assert_eq!(Arguments::parse(empty), Arguments::default());
    }
}

/// `levels` arrays around nothing.
fn nested(levels: usize) -> Value {
    (1..levels).fold(json!([]), |value, _| json!([value]))
}

#[test]
fn depth_is_bounded_and_nothing_is_lost() {
    for levels in [99, 100, 101, 127, 128, 200] {
        let message = Message::new(Role::Tool)
            .with_part(ToolCall::new("c1", "f", json!({"q": nested(levels)})))
            .with_part(ToolResult::value("c1", "f", nested(levels)))
            .with_extra("deep", nested(levels));
        let is_kept = levels <= 100;
        let call = message.tool_calls().next().unwrap();
        assert_eq!(call.arguments.as_object().is_some(), levels < 100, "{levels}");
        assert_eq!(call.arguments.to_text(), json!({"q": nested(levels)}).to_string());
        assert_eq!(message.tool_result().unwrap().text(), nested(levels).to_string());
        assert_eq!(message.extras().get("deep").unwrap().is_array(), is_kept);
        // It can still be read when it is stored some levels further down.
        let stored = json!({"state": {"messages": [message]}}).to_string();
        let read: Value = serde_json::from_str(&stored).unwrap();
        let read: Message = serde_json::from_value(read["state"]["messages"][0].clone()).unwrap();
        assert_eq!(read, message);
    }
    let too_deep = json!({"video": nested(101)}).as_object().unwrap().clone();
    assert_eq!(UnknownPart::new(too_deep), None);
}

#[test]
fn unknown_parts_are_unknown() {
    let fields = |value: Value| value.as_object().unwrap().clone();
    assert!(UnknownPart::new(fields(json!({"video": 1}))).is_some());
    for known in [json!({}), json!({"text": "a"}), json!({"video": 1, "extras": {}})] {
        assert_eq!(UnknownPart::new(fields(known)), None);
    }
}

#[test]
fn results_do_not_nest() {
    let inner = ToolResult::value("c2", "g", 1);
    let result = ToolResult::new("c1", "f", ToolContent::Parts(vec![inner.into()]));
    assert_eq!(result.text(), r#"{"tool_result":{"call_id":"c2","name":"g","value":1}}"#);
}

#[test]
fn the_schema() {
    assert!(Message::inline_schema());
    let schema = schemars::schema_for!(Vec<Message>);
    let expected = json!({
        "title": "Message",
        "description": "One message of a conversation.",
        "type": "object",
        "properties": {
            "role": { "type": "string", "enum": ["system", "user", "assistant", "tool"] },
            "parts": {
                "description": "What is said, in order. A string is a text part.",
                "type": ["array", "string"],
                "items": { "type": ["object", "string"], "minProperties": 1 },
            },
            "extras": { "type": ["object", "null"] },
        },
        "required": ["role", "parts"],
    });
    assert_eq!(schema.as_value()["items"], expected);
}

proptest! {
    #[test]
    fn transcripts_survive_json(transcript in arbitrary::transcript()) {
        let json = serde_json::to_string(&transcript).unwrap();
        prop_assert_eq!(serde_json::from_str::<Transcript>(&json).unwrap(), transcript.clone());
        let value = serde_json::to_value(&transcript).unwrap();
        prop_assert_eq!(serde_json::from_value::<Transcript>(value).unwrap(), transcript);
    }
}
