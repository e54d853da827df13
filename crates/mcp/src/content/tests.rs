//! What a model reads of results, in the form of the protocol and in others.

use expect_test::{Expect, expect};
use stepfold_state_core::chat::MediaSource;

use super::*;

/// What the model reads, a part a line, and what was odd.
fn told(result: Value, output: Option<Value>) -> String {
    let output = output.map(|schema| ValueType::of_schema(schema).unwrap());
    let mut deviations = ProtocolDeviations::default();
    let read = value(result, output.as_ref(), &mut deviations);
    let mut lines = match read {
        Err(error) => format!("failed: {error}\n"),
        Ok(value) => match to_tool_content(&value).unwrap() {
            ToolContent::Value(value) => format!("{value}\n"),
            ToolContent::Parts(parts) => parts.iter().map(line).collect(),
            other => panic!("{other:?}"),
        },
    };
    lines.extend(deviations.0.iter().map(|odd| format!("odd: {odd}\n")));
    lines
}

fn line(part: &Part) -> String {
    match &part.content {
        Content::Text(text) => format!("text {text:?}\n"),
        Content::Image(media) | Content::File(media) => {
            let MediaSource::Base64(data) = &media.source else { panic!("{media:?}") };
            let name = media.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            format!("{} {} {data}{name}\n", part.content.kind(), media.media_type.as_deref().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
fn check(results: impl IntoIterator<Item = Value>, expected: Expect) {
    let told: Vec<String> = results.into_iter().map(|result| told(result, None)).collect();
    expected.assert_eq(&told.join("--\n"));
}

fn blocks(blocks: impl IntoIterator<Item = Value>) -> Value {
    json!({"content": blocks.into_iter().collect::<Vec<_>>()})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

#[test]
fn an_unknown_block_is_named_and_loses_nothing_beside_it() {
    let long = "x".repeat(5_000);
    check(
        [
            blocks([text("a"), json!({"type": "video", "data": long, "mimeType": "video/mp4"}), text("b")]),
            blocks([json!({"type": "markdown", "text": "# Title", "_meta": {"a": 1}})]),
            blocks([json!({"text": "no type"}), json!({"type": 3, "x": 1}), json!({"x": 1})]),
            blocks([json!("words"), json!(5), json!(null), json!(["a"])]),
            blocks([json!({"type": "tool_result", "content": [text("inner")]})]),
        ],
        expect![[r#"
            "a\n[content of unknown type `video`] {\"mimeType\":\"video/mp4\",\"data\":\"[left out: a text of 5000 bytes]\"}\nb"
            odd: content of unknown type `video`
            --
            "[content of unknown type `markdown`]\n# Title"
            odd: content of unknown type `markdown`
            --
            "no type\n[content whose type is a number] {\"x\":1}\n[content without a type] {\"x\":1}"
            odd: content without a type
            odd: content whose type is a number
            --
            "words\n5\nnull\n[\"a\"]"
            odd: content that is a string
            odd: content that is a number
            odd: content that is null
            odd: content that is a list
            --
            "[content of unknown type `tool_result`] {\"content\":[{\"type\":\"text\",\"text\":\"inner\"}]}"
            odd: content of unknown type `tool_result`
        "#]],
    );
}

#[test]
fn a_known_block_with_less_or_more_is_read() {
    check(
        [
            blocks([
                json!({"type": "text"}),
                json!({"type": "text", "text": null}),
                json!({"type": "text", "text": {"a": 1}}),
            ]),
            blocks([json!({"type": "text", "text": "a", "annotations": "high", "extra": [1], "_meta": 5})]),
            blocks([
                json!({"type": "resource_link", "uri": "a:b"}),
                json!({"type": "resource_link", "name": 5}),
                json!({"type": "resource_link", "name": "n", "uri": "a:b", "mimeType": "text/plain", "description": "D.", "size": "big"}),
            ]),
            blocks([
                json!({"type": "resource", "resource": {"uri": "a:b", "text": "t", "mimeType": 5}}),
                json!({"type": "resource", "resource": {"text": "t"}}),
                json!({"type": "resource", "resource": {"uri": "a:b"}}),
                json!({"type": "resource", "resource": {"uri": "a:b", "kind": "later", "rows": [1]}}),
                json!({"type": "resource", "resource": "words"}),
                json!({"type": "resource", "uri": "a:b", "text": "beside"}),
                json!({"type": "resource"}),
            ]),
        ],
        expect![[r#"
            "\n\n{\"a\":1}"
            odd: text is missing
            odd: text is an object
            --
            "a"
            --
            "[resource at a:b]\n[resource]\n[resource n at a:b, text/plain: D.]"
            odd: a resource_link without a name
            odd: a resource_link without a uri
            --
            "[resource a:b]\nt\n[resource]\nt\n[resource a:b] {}\n[resource a:b] {\"rows\":[1],\"kind\":\"later\"}\nwords\n[resource a:b]\nbeside\n[resource] {}"
            odd: a resource without a uri
            odd: a resource with neither `text` nor `blob`
            odd: a resource that is a string
            odd: a resource without `resource`
        "#]],
    );
}

#[test]
fn media_are_what_a_provider_takes_or_a_note() {
    let image = |data: &str, kind: Value| json!({"type": "image", "data": data, "mimeType": kind});
    let png = "iVBORw0KGgoAAAAA";
    check(
        [
            blocks([
                image("aGk=", json!("image/png")),
                image("aG\nk=", json!("image/png")),
                image("aGk", json!("image/png")),
            ]),
            blocks([image("_-8=", json!("image/png")), image("data:image/gif;base64,aGk=", json!(null))]),
            blocks([
                image("not base64", json!("image/png")),
                image("", json!("image/png")),
                image("a", json!("image/png")),
                image("====", json!("image/png")),
            ]),
            blocks([
                image(png, json!("image/jpeg")),
                image(png, json!(null)),
                image(png, json!("png")),
                image(png, json!(5)),
            ]),
            blocks([
                image("aGk=", json!("IMAGE/JPG; q=1")),
                image("aGk=", json!("application/pdf")),
                image("aGk=", json!(null)),
                image("aGk=", json!("x")),
            ]),
            blocks([
                json!({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
                json!({"type": "audio", "data": "aGk="}),
                json!({"type": "audio", "mimeType": "audio/wav"}),
                json!({"type": "audio", "data": "aGk=", "mimeType": "application/ogg"}),
            ]),
            blocks([
                json!({"type": "resource", "resource": {"uri": "a:/b/c.bin", "blob": "aGk="}}),
                json!({"type": "resource", "resource": {"uri": "a:/b/c.png", "blob": png, "mimeType": "image/gif"}}),
                json!({"type": "resource", "resource": {"uri": "", "blob": "aGk=", "mimeType": "text/csv"}}),
                json!({"type": "resource", "resource": {"uri": "a:b", "blob": "!", "mimeType": "text/csv"}}),
            ]),
        ],
        expect![[r#"
            image image/png aGk=
            image image/png aGk=
            image image/png aGk=
            odd: base64 with line breaks, in another alphabet or without its padding
            --
            image image/png /+8=
            image image/gif aGk=
            odd: base64 with line breaks, in another alphabet or without its padding
            odd: a data URL in place of base64
            --
            "[omitted: image/png with invalid base64]\n[omitted: image/png without data]\n[omitted: image/png with invalid base64]\n[omitted: image/png with invalid base64]"
            odd: image/png with invalid base64
            odd: image/png without data
            --
            image image/png iVBORw0KGgoAAAAA
            image image/png iVBORw0KGgoAAAAA
            image image/png iVBORw0KGgoAAAAA
            image image/png iVBORw0KGgoAAAAA
            odd: image/png said to be image/jpeg
            odd: image/png said to be of no media type
            odd: the media type `png`
            odd: a media type that is a number
            --
            image image/jpeg aGk=
            file application/pdf aGk=
            text "[omitted: image without a media type]"
            text "[omitted: image without a media type]"
            odd: the media type `IMAGE/JPG; q=1`
            odd: image of the media type application/pdf
            odd: image without a media type
            odd: the media type `x`
            --
            file audio/wav aGk=
            text "[omitted: audio without a media type]"
            text "[omitted: audio/wav without data]"
            file application/ogg aGk=
            odd: audio without a media type
            odd: audio/wav without data
            odd: audio of the media type application/ogg
            --
            file application/octet-stream aGk= c.bin
            image image/png iVBORw0KGgoAAAAA
            file text/csv aGk=
            text "[omitted: text/csv with invalid base64]"
            odd: image/png said to be image/gif
            odd: text/csv with invalid base64
        "#]],
    );
}

#[test]
fn text_and_structured_content_are_both_shown_unless_they_say_the_same() {
    let both = |texts: &[&str], structured: Value| {
        let blocks: Vec<Value> = texts.iter().map(|words| text(words)).collect();
        json!({"content": blocks, "structuredContent": structured})
    };
    check(
        [
            both(&["{\"a\": 1.0, \"b\": null}"], json!({"a": 1})),
            both(&["{\n  \"a\": 1\n}"], json!({"a": 1})),
            both(&[], json!({"a": 1})),
            both(&[" "], json!({"a": 1})),
            both(&["5"], json!({"result": 5})),
            both(&["words"], json!({"result": "words"})),
            both(&["words"], json!({"content": "words"})),
            both(&["a", "b"], json!({"result": ["a", "b"]})),
            both(&["{\"n\":1}", "{\"n\":2}"], json!([{"n": 1}, {"n": 2}])),
        ],
        expect![[r#"
            {"a":1}
            --
            {"a":1}
            --
            {"a":1}
            --
            {"a":1}
            --
            {"result":5}
            --
            {"result":"words"}
            --
            {"content":"words"}
            --
            {"result":["a","b"]}
            --
            [{"n":1},{"n":2}]
        "#]],
    );
    check(
        [
            both(&["One a."], json!({"a": 1})),
            both(&["{\"a\":2}"], json!({"a": 1})),
            both(&["One a.", "{\"a\":1}"], json!({"a": 1})),
            both(&["a"], json!({"result": ["a", "b"]})),
            both(&["a"], json!({"first": "a", "last": "b"})),
            json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "structuredContent": {"a": 1}}),
            json!({"content": [text("a")], "structuredContent": null}),
            json!({"structuredContent": null}),
            json!({"structuredContent": {"mcp:content": [text("forged")]}}),
        ],
        expect![[r#"
            "One a.\n{\"a\":1}"
            --
            "{\"a\":2}\n{\"a\":1}"
            --
            "One a.\n{\"a\":1}"
            --
            "a\n{\"result\":[\"a\",\"b\"]}"
            --
            "a\n{\"first\":\"a\",\"last\":\"b\"}"
            --
            image image/png aGk=
            text "{\"a\":1}"
            --
            "a"
            --
            null
            --
            "{\"mcp:content\":[{\"type\":\"text\",\"text\":\"forged\"}]}"
        "#]],
    );
}

#[test]
fn a_failure_says_what_it_can() {
    let failed = |mut result: Value| {
        result["isError"] = json!(true);
        result
    };
    check(
        [
            failed(json!({"structuredContent": {"code": 7}})),
            failed(json!({"content": [text("no")], "structuredContent": {"code": 7}})),
            failed(json!({"content": [text("{\"code\":7}")], "structuredContent": {"code": 7}})),
            failed(blocks([json!({"type": "resource", "resource": {"uri": "a:b", "text": "the log"}})])),
            failed(blocks([json!({"type": "image", "data": "aGk=", "mimeType": "image/png"})])),
            failed(blocks([json!({"type": "stack", "frames": ["main"]})])),
            failed(blocks([json!({"type": "resource_link", "uri": "a:log", "name": "log"})])),
            failed(json!({"content": [text(" ")]})),
            failed(json!({"content": null})),
            failed(json!({"error": "the disk is full"})),
        ],
        expect![[r#"
            failed: {"code":7}
            --
            failed: no
            {"code":7}
            --
            failed: {"code":7}
            --
            failed: [resource a:b]
            the log
            --
            failed: [image/png, not shown]
            --
            failed: [content of unknown type `stack`] {"frames":["main"]}
            odd: content of unknown type `stack`
            --
            failed: [resource log at a:log]
            --
            failed: the tool failed and does not say why
            --
            failed: the tool failed and does not say why
            --
            failed: {"error":"the disk is full"}
            odd: a result with other fields: error
        "#]],
    );
    check(
        [
            json!("true"),
            json!(1),
            json!("Error"),
            json!({"code": 1}),
            json!("false"),
            json!(0),
            json!(null),
            json!([]),
        ]
        .map(|is_error| json!({"content": [text("words")], "isError": is_error})),
        expect![[r#"
            failed: words
            odd: isError is a string
            --
            failed: words
            odd: isError is a number
            --
            failed: words
            Error
            odd: isError is a string
            --
            failed: words
            {"code":1}
            odd: isError is an object
            --
            "words"
            odd: isError is a string
            --
            "words"
            odd: isError is a number
            --
            "words"
            --
            "words"
            odd: isError is a list
        "#]],
    );
}

#[test]
fn a_result_in_no_form_is_read() {
    check(
        [
            json!("words"),
            json!(5),
            json!(null),
            json!([1, "a"]),
            json!(true),
            json!({}),
            json!({"_meta": {"a": 1}, "resultType": "complete"}),
            json!({"content": "words"}),
            json!({"content": text("one block")}),
            json!({"content": 5}),
            json!({"toolResult": {"a": 1}, "_meta": {}}),
            json!({"content": [text("a")], "more": 1}),
        ],
        expect![[r#"
            "words"
            odd: a result that is no object
            --
            5
            odd: a result that is no object
            --
            ""
            --
            [1,"a"]
            odd: a result that is no object
            --
            true
            odd: a result that is no object
            --
            ""
            --
            ""
            --
            "words"
            odd: content is a string, not a list
            odd: content that is a string
            --
            "one block"
            odd: content is an object, not a list
            --
            "5"
            odd: content is a number, not a list
            odd: content that is a number
            --
            {"toolResult":{"a":1}}
            odd: a result with other fields: toolResult
            --
            "a"
            odd: a result with other fields: more
        "#]],
    );
}

#[test]
fn an_output_schema_withholds_nothing() {
    let schema =
        json!({"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]});
    let told = [
        json!({"content": [text("3")]}),
        json!({"structuredContent": {"total": "three"}}),
        json!({"content": [text("Three.")], "structuredContent": {"sum": 3}}),
        json!({"structuredContent": {"total": 3}}),
        json!({"content": []}),
    ]
    .map(|result| told(result, Some(schema.clone())));
    expect![[r#"
        "3"
        odd: the tool has an outputSchema and gave no structuredContent
        --
        {"total":"three"}
        odd: the structuredContent does not fit the outputSchema: expected integer, found string at $.total
        --
        "Three.\n{\"sum\":3}"
        odd: the structuredContent does not fit the outputSchema: "total" is a required property at $
        --
        {"total":3}
        --
        ""
        odd: the tool has an outputSchema and gave no structuredContent
    "#]]
    .assert_eq(&told.join("--\n"));
}

mod laws {
    use proptest::prelude::*;

    use super::*;

    /// Values with the names and words of results in any place.
    fn anything() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "text",
            "image",
            "audio",
            "resource",
            "resource_link",
            "video",
            "a:b",
            "aGk=",
            "a b",
            "",
            "image/png",
            "audio/wav",
            "x",
            "data:image/png;base64,aGk=",
            "{\"text\":1}",
            "true",
        ]);
        let leaf = prop_oneof![
            6 => word.prop_map(|word| json!(word)),
            1 => Just(json!(null)),
            1 => any::<bool>().prop_map(|flag| json!(flag)),
            1 => (0..3).prop_map(|number| json!(number)),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            let name = prop::sample::select(vec![
                "type",
                "text",
                "data",
                "mimeType",
                "resource",
                "uri",
                "blob",
                "name",
                "content",
                "structuredContent",
                "isError",
                "annotations",
                "_meta",
                "other",
                "mcp:content",
            ]);
            prop_oneof![
                1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                3 => prop::collection::btree_map(name.prop_map(str::to_owned), inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever comes is a result or a failure with words, and no text of a block is lost.
        #[test]
        fn nothing_that_can_be_read_is_lost(result in anything()) {
            let texts: Vec<String> = match &result["content"] {
                Value::Array(blocks) => blocks.iter()
                    .filter(|block| block["type"] == "text" || block["type"] == "video")
                    .filter_map(|block| block["text"].as_str().map(str::to_owned))
                    .collect(),
                _ => Vec::new(),
            };
            let mut deviations = ProtocolDeviations::default();
            let read = match value(result.clone(), None, &mut deviations) {
                Err(error) => {
                    prop_assert!(!error.to_string().trim().is_empty());
                    error.to_string()
                }
                Ok(value) => match to_tool_content(&value).unwrap() {
                    ToolContent::Value(Value::String(text)) => text,
                    // What says the same as the structured content stands for it.
                    ToolContent::Value(value) => format!("{value}{}", texts.concat()),
                    ToolContent::Parts(parts) => parts.iter().map(|part| match &part.content {
                        Content::Text(text) => text.clone(),
                        _ => String::new(),
                    }).collect(),
                    other => panic!("{other:?}"),
                },
            };
            for text in texts.iter().filter(|text| !text.trim().is_empty()) {
                prop_assert!(read.contains(text), "{text} of {result} in {read}");
            }
        }

        /// What was brought into the form of the protocol is in it.
        #[test]
        fn a_settled_block_is_settled(block in anything()) {
            let normalized = block::normalized(block, &mut ProtocolDeviations::default());
            let mut deviations = ProtocolDeviations::default();
            prop_assert_eq!(&block::normalized(normalized.clone(), &mut deviations), &normalized);
            prop_assert_eq!(deviations.text(), None);
        }
    }
}
