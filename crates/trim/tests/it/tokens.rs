//! The approximation against recorded counts of OpenAI's encoder `o200k_base`.

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_state_core::chat::{Content, Media, Message, Role, ToolCall, ToolContent, ToolResult};
use stepfold_trim::{ApproximateTokens, TokenCounter};

#[test]
fn a_message_costs_what_it_says_and_a_little() {
    let text = "which area has most stalls?";
    let of_text = ApproximateTokens::of_text(text);
    assert_eq!(ApproximateTokens.count(&Message::user(text)), of_text + ApproximateTokens::PER_MESSAGE);
    assert_eq!(ApproximateTokens.count(&Message::new(Role::User)), ApproximateTokens::PER_MESSAGE);
    assert_eq!(ApproximateTokens::of_text(""), 0);
}

/// Texts, and their token counts by `o200k_base`.
const RECORDED: [(&str, usize); 6] = [
    (
        r#"Each event is one atomic commit of message, state delta and version. A process may die at any instant; the next one goes on from the last commit."#,
        32,
    ),
    (
        r#"fn block_start(self, end: usize, floor: usize) -> usize {
    (floor..end).rev().find(is_head).unwrap_or(floor)
}"#,
        34,
    ),
    (
        r#"{"area":3,"name":"service area 3","stalls":[{"id":17,"open":true},{"id":18,"open":false}],"note":null}"#,
        37,
    ),
    (r#"请问系统中哪个服务区档口最多?在处理前裁剪,而不是处理后。"#, 22),
    (
        r#"SELECT area, count(*) AS stalls FROM stalls WHERE closed_at IS NULL GROUP BY area ORDER BY 2 DESC LIMIT 10;"#,
        26,
    ),
    (r#"which area has most stalls?"#, 6),
];

/// Short texts have larger errors than the figures at [`ApproximateTokens`], which are of longer texts.
#[test]
fn near_the_counts_of_an_encoder() {
    for (text, tokens) in RECORDED {
        let approximate = ApproximateTokens::of_text(text);
        assert!(approximate.abs_diff(tokens) * 10 <= tokens * 3, "{approximate}, not {tokens}: {text}");
    }
}

#[test]
fn an_image_is_a_constant() {
    let parts = |data: &str| vec![Content::Image(Media::base64(data, "image/png")).into()];
    let of = |data: &str| ApproximateTokens.count(&Message::from_parts(Role::User, parts(data)));
    let expected = ApproximateTokens::PER_MEDIA + ApproximateTokens::PER_MESSAGE;
    assert_eq!([of("AAAA"), of(&"A".repeat(100_000))], [expected, expected]);
    // Also in the result of a tool.
    let result = ToolResult::new("c1", "draw", ToolContent::Parts(parts("AAAA")));
    assert_eq!(ApproximateTokens.count(&Message::tool(result)), expected);
}

#[test]
fn calls_and_results_are_counted_as_their_json() {
    let arguments = json!({"q": "stalls in \"area 3\"", "limits": [1, 20, 300], "deep": {"a": null}});
    let text = arguments.to_string();
    let call = Message::new(Role::Assistant).with_part(ToolCall::new("c1", "search", arguments.clone()));
    let expected = ApproximateTokens::of_text("search") + ApproximateTokens::of_text(&text);
    let overhead = ApproximateTokens::PER_MESSAGE + ApproximateTokens::PER_CALL;
    assert!(ApproximateTokens.count(&call).abs_diff(expected + overhead) <= 1, "rounded up once");
    let result = Message::tool(ToolResult::value("c1", "search", arguments));
    assert_eq!(
        ApproximateTokens.count(&result),
        ApproximateTokens::of_text(&text) + ApproximateTokens::PER_MESSAGE,
    );
}

proptest! {
    /// JSON reaches the counter in pieces, text at once.
    #[test]
    fn pieces_do_not_matter(text in any::<String>(), number in any::<f64>(), key in "[a-zA-Z ]{0,9}") {
        let value: Value = json!({ key: [text, number, {"nested": [true, null]}] });
        let result = Message::tool(ToolResult::value("c1", "f", value.clone()));
        let expected = ApproximateTokens::of_text(&value.to_string()) + ApproximateTokens::PER_MESSAGE;
        prop_assert_eq!(ApproximateTokens.count(&result), expected);
    }

    #[test]
    fn a_text_costs_no_more_than_its_bytes_twice(text in any::<String>()) {
        prop_assert!(ApproximateTokens::of_text(&text) <= 2 * text.len());
    }
}
