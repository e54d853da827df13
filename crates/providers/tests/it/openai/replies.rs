//! Good replies, in all the forms in which servers send them.

use expect_test::{Expect, expect};

use super::{DONE, ask, delta, finish, request};
use crate::server::Play;

async fn check(events: &[String], expected: Expect) {
    expected.assert_eq(&ask(Play::events(events.concat() + DONE), request()).await);
}

fn calls(calls: &str) -> String {
    delta(&format!("{{\"tool_calls\":[{calls}]}}"))
}

#[tokio::test]
async fn text_reasoning_and_usage() {
    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":8},\"completion_tokens_details\":{\"reasoning_tokens\":3}}}\n\n";
    check(
        &[
            delta(r#"{"role":"assistant","content":null}"#),
            delta(r#"{"reasoning_content":"hm, "}"#),
            delta(r#"{"reasoning_content":"so","reasoning":"so"}"#),
            delta(r#"{"content":"area"}"#),
            delta(r#"{"content":" 3\n"}"#),
            finish("stop"),
            usage.to_owned(),
        ],
        expect![[r#"
            assistant: ~"hm, so"   "area 3\n"
            stop [12(8) + 5(3) tokens]
        "#]],
    )
    .await;
    check(
        &[delta(r#"{"reasoning":"hm"}"#), delta(r#"{"thinking":"!"}"#), finish("eos")],
        expect![[r#"
        assistant: ~"hm!"
        stop
    "#]],
    )
    .await;
    check(
        &[
            delta(r#"{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"ok"}]}"#),
            finish("stop"),
        ],
        expect![[r#"
            assistant: ~"hm"   "ok"
            stop
        "#]],
    )
    .await;
}

#[tokio::test]
async fn finish_reasons() {
    for (said, expected) in [
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("end_turn", "stop"),
        ("something new", "something new"),
    ] {
        let shown = ask(Play::events(delta(r#"{"content":"a"}"#) + &finish(said) + DONE), request()).await;
        assert_eq!(shown, format!("assistant: a\n{expected}\n"));
    }
    check(
        &[delta(r#"{"refusal":"I will not."}"#), finish("stop")],
        expect![[r#"
        assistant: I will not.
        refusal
    "#]],
    )
    .await;
}

#[tokio::test]
async fn calls_in_fragments_and_side_by_side() {
    check(
        &[
            calls(r#"{"index":0,"id":"c1","type":"function","function":{"name":"search","arguments":""}}"#),
            calls(r#"{"index":1,"id":"c2","function":{"name":"fetch","arguments":"{\"id\""}}"#),
            calls(r#"{"index":0,"function":{"arguments":"{\"q\": \"sta"}}"#),
            calls(r#"{"index":1,"function":{"arguments":": 7}"}},{"index":0,"function":{"arguments":"lls\"}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > c1 search(q="stalls")   > c2 fetch(id=7)
            tool_calls
        "#]],
    )
    .await;
    // At once, and `stop` behind it.
    check(
        &[
            calls(r#"{"index":0,"id":"c1","function":{"name":"search","arguments":"{\"q\": 1}"}}"#),
            finish("stop"),
        ],
        expect![[r#"
            assistant: > c1 search(q=1)
            tool_calls
        "#]],
    )
    .await;
}

#[tokio::test]
async fn arguments_of_every_form() {
    check(
        &[
            calls(r#"{"index":0,"id":"c1","function":{"name":"a","arguments":null}}"#),
            calls(r#"{"index":1,"id":"c2","function":{"name":"b"}}"#),
            calls(r#"{"index":2,"id":"c3","function":{"name":"c","arguments":""}}"#),
            calls(r#"{"index":3,"id":"c4","function":{"name":"d","arguments":{"q":1}}}"#),
            calls(r#"{"index":4,"id":"c5","function":{"name":"e","arguments":"{q: 1}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > c1 a()   > c2 b()   > c3 c()   > c4 d(q=1)   > c5 e!("{q: 1}")
            tool_calls
        "#]],
    )
    .await;
}

#[tokio::test]
async fn ids_and_indexes_that_are_missing_or_repeated() {
    // All at index 0, with ids.
    check(
        &[
            calls(r#"{"index":0,"id":"c1","function":{"name":"a","arguments":"{}"}}"#),
            calls(r#"{"index":0,"id":"c2","function":{"name":"a","arguments":"{}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > c1 a()   > c2 a()
            tool_calls
        "#]],
    )
    .await;
    // No indexes, and no ids.
    check(
        &[
            calls(r#"{"function":{"name":"a","arguments":"{\"x\": "}},{"function":{"arguments":"1}"}}"#),
            calls(r#"{"function":{"name":"a","arguments":"{}"}}"#),
            calls(r#"{"id":"","function":{"name":"b","arguments":"{}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > call-1 a(x=1)   > call-2 a()   > call-3 b()
            tool_calls
        "#]],
    )
    .await;
    // One id for all.
    check(
        &[
            calls(r#"{"index":0,"id":"call_1","function":{"name":"a","arguments":"{}"}}"#),
            calls(r#"{"index":1,"id":"call_1","function":{"name":"b","arguments":"{}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > call_1 a()   > call_1-2 b()
            tool_calls
        "#]],
    )
    .await;
    // Id and name said again with each fragment.
    check(
        &[
            calls(r#"{"index":0,"id":"c1","function":{"name":"a","arguments":"{\"x\":"}}"#),
            calls(r#"{"index":0,"id":"c1","function":{"name":"a","arguments":" 1}"}}"#),
            finish("tool_calls"),
        ],
        expect![[r#"
            assistant: > c1 a(x=1)
            tool_calls
        "#]],
    )
    .await;
    // The old form.
    check(
        &[
            delta(r#"{"function_call":{"name":"a","arguments":"{\"x\":"}}"#),
            delta(r#"{"function_call":{"arguments":" 1}"}}"#),
            finish("function_call"),
        ],
        expect![[r#"
            assistant: > call-1 a(x=1)
            tool_calls
        "#]],
    )
    .await;
}

#[tokio::test]
async fn unknown_fields_keep_alives_and_other_choices() {
    let odd = "event: keepalive\ndata: \n\n: comment\n\ndata:\n\ndata: {\"choices\":[],\"prompt_filter_results\":[]}\n\n";
    let other = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"other\"}}]}\n\n";
    let bare = "data: {\"choices\":[{\"delta\":{\"content\":\"b\",\"new\":{\"x\":1}},\"logprobs\":null}],\"service_tier\":\"odd\",\"usage\":null}\n\n";
    check(
        &[odd.to_owned(), delta(r#"{"content":"a"}"#), other.to_owned(), bare.to_owned(), finish("stop")],
        expect![[r#"
            assistant: ab
            stop
        "#]],
    )
    .await;
    // JSON over several lines, and lines that end like on Windows.
    let lines = "data: {\r\ndata: \"choices\": [{\"delta\": {\"content\": \"a\"},\r\ndata: \"finish_reason\": \"stop\"}]}\r\n\r\n";
    check(
        &[lines.to_owned()],
        expect![[r#"
        assistant: a
        stop
    "#]],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_stream() {
    let whole = r#"{"id": "r1", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c1", "type": "function",
            "function": {"name": "search", "arguments": "{\"q\":1}"}}]},
        "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}"#;
    expect![[r#"
        assistant: I look.   > c1 search(q=1)
        tool_calls [3(0) + 2(0) tokens]
    "#]]
    .assert_eq(&ask(Play::json(200, whole), request()).await);
}

#[tokio::test]
async fn a_huge_chunk() {
    let text = "stalls,".repeat(1 << 20);
    let play = Play::events(delta(&format!("{{\"content\":\"{text}\"}}")) + &finish("stop") + DONE);
    assert!(ask(play, request()).await == format!("assistant: {text}\nstop\n"));
}

#[tokio::test]
async fn what_the_reply_is_called() {
    use stepfold_state_core::chat::ChatModel;
    let play = Play::events(delta(r#"{"content":"a"}"#) + &finish("stop") + DONE);
    let server = crate::server::Server::start([play], 7, super::check).await;
    let reply = super::model(&server).respond(request()).into_reply().await.unwrap();
    assert_eq!((reply.id.as_deref(), reply.model.as_deref()), (Some("r1"), Some("some-model-2")));
}

/// Each costs the same: with the ids of all others looked through for each, this would not end.
#[tokio::test]
async fn twenty_thousand_streamed_calls_without_ids() {
    let one = |number: usize| {
        calls(&format!(r#"{{"index":{number},"function":{{"name":"a","arguments":"{{}}"}}}}"#))
    };
    let events: String = (0..20_000).map(one).chain([finish("tool_calls")]).collect();
    let shown = ask(Play::events(events + DONE), request()).await;
    assert_eq!(shown.matches("> call-").count(), 20_000);
}
