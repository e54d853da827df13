//! Good replies, in the forms in which servers send them.

use expect_test::{Expect, expect};

use stepfold_state_core::chat::{ChatModel as _, ChatRequest, Message};

use super::{ask, block, builder, delta, end, end_block, json, request, said, start, stop, text};
use crate::server::{Play, Server};

async fn check(events: &[String], expected: Expect) {
    expected.assert_eq(&ask(Play::events(events.concat()), request()).await);
}

#[tokio::test]
async fn text_and_usage() {
    check(
        &[said(), stop("end_turn"), end()],
        expect![[r#"
        assistant: area 3
        stop [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
    check(
        &[said(), stop("max_tokens"), end()],
        expect![[r#"
        assistant: area 3
        length [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
    check(
        &[said(), stop("refusal"), end()],
        expect![[r#"
        assistant: area 3
        refusal [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
    check(
        &[said(), stop("pause_turn"), end()],
        expect![[r#"
        assistant: area 3
        pause_turn [12(8) + 7(0) tokens] [1 written to the cache]
    "#]],
    )
    .await;
}

#[tokio::test]
async fn thoughts_keep_their_signatures() {
    check(
        &[
            start(),
            block(r#"{"type":"thinking","thinking":"","signature":""}"#),
            delta(r#"{"type":"thinking_delta","thinking":"hm"}"#),
            delta(r#"{"type":"signature_delta","signature":"Eq"}"#),
            delta(r#"{"type":"signature_delta","signature":"QB"}"#),
            end_block(),
            block(r#"{"type":"redacted_thinking","data":"x9"}"#),
            end_block(),
            // Thought in silence: signed, but not shown.
            block(r#"{"type":"thinking","thinking":""}"#),
            delta(r#"{"type":"signature_delta","signature":"ZZ"}"#),
            end_block(),
            block(r#"{"type":"text","text":"a"}"#),
            text("rea 3"),
            end_block(),
            stop("end_turn"),
            end(),
        ],
        expect![[r#"
            assistant: @{"reasoning": "hm", "extras": {"signature": "EqQB"}}   @{"reasoning": "", "extras": {"redacted_thinking": "x9"}}   @{"reasoning": "", "extras": {"signature": "ZZ"}}   "area 3"   %{"server": "http://server"}
            stop [12(8) + 7(0) tokens] [1 written to the cache]
        "#]],
    )
    .await;
}

#[tokio::test]
async fn calls_side_by_side() {
    check(
        &[
            start(),
            block(r#"{"type":"tool_use","id":"t1","name":"search","input":{}}"#),
            json(""),
            json("{\"q\": \"sta"),
            json("lls\"}"),
            end_block(),
            block(r#"{"type":"tool_use","id":"t2","name":"list","input":{}}"#),
            end_block(),
            block(r#"{"type":"tool_use","id":"t1","name":"fetch","input":{"id":7}}"#),
            end_block(),
            block(r#"{"type":"tool_use","id":"t4","name":"odd","input":{}}"#),
            json("{q: 1}"),
            end_block(),
            stop("tool_use"),
            end(),
        ],
        expect![[r#"
            assistant: > t1 search(q="stalls")   > t2 list()   > t1-3 fetch(id=7)   > t4 odd!("{q: 1}")
            tool_calls [12(8) + 7(0) tokens] [1 written to the cache]
        "#]],
    )
    .await;
}

#[tokio::test]
async fn calls_whose_pieces_are_interleaved() {
    let second = |event: String| event.replace("\"index\":0", "\"index\":1");
    check(
        &[
            start(),
            block(r#"{"type":"tool_use","id":"t1","name":"search","input":{}}"#),
            second(block(r#"{"type":"tool_use","id":"t2","name":"fetch","input":{}}"#)),
            json("{\"q\":"),
            second(json("{\"id\"")),
            json("1}"),
            second(json(": 7}")),
            end_block(),
            second(end_block()),
            stop("tool_use"),
            end(),
        ],
        expect![[r#"
            assistant: > t1 search(q=1)   > t2 fetch(id=7)
            tool_calls [12(8) + 7(0) tokens] [1 written to the cache]
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_huge_event() {
    let long = "stalls,".repeat(1 << 18);
    let play = start() + &text(&long) + &stop("end_turn") + &end();
    assert!(ask(Play::events(play), request()).await.contains(&long));
}

#[tokio::test]
async fn unknown_blocks_and_events_are_kept_or_ignored() {
    check(
        &[
            start(),
            "event: ping\ndata: {\"type\": \"ping\"}\n\n: comment\n\nevent: new\ndata: {\"type\":\"new\",\"x\":1}\n\n".to_owned(),
            block(r#"{"id":"s1","input":{},"name":"web_search","type":"server_tool_use"}"#),
            json("{\"query\":"),
            json("\"x\"}"),
            end_block(),
            block(r#"{"type":"text","text":"ok","citations":null}"#),
            delta(r#"{"type":"citations_delta","citation":{}}"#),
            end_block(),
            stop("end_turn"),
            end(),
        ],
        expect![[r#"
            assistant: @{"anthropic": {"id": "s1", "input": {"query": "x"}, "name": "web_search", "type": "server_tool_use"}}   @{"text": "ok", "extras": {"citations": [{}]}}   %{"unanswered": ["s1"], "server": "http://server"}
            stop [12(8) + 7(0) tokens] [1 written to the cache]
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_stream() {
    let whole = r#"{"type": "message", "id": "msg_1", "model": "claude-4", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "EqQB"}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": 1}}],
        "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 2}}"#;
    expect![[r#"
        assistant: @{"reasoning": "hm", "extras": {"signature": "EqQB"}}   "I look."   > t1 search(q=1)   %{"server": "http://server"}
        tool_calls [3(0) + 2(0) tokens]
    "#]]
    .assert_eq(&ask(Play::json(200, whole), request()).await);
}

/// Each costs the same, also when the server ends none of them before it begins the next.
#[tokio::test]
async fn twenty_thousand_streamed_calls_without_ids() {
    let one = |number: usize| {
        let block = r#"{"type":"tool_use","name":"a","input":{}}"#;
        format!("data: {{\"type\":\"content_block_start\",\"index\":{number},\"content_block\":{block}}}\n\n")
    };
    let events: String =
        [start()].into_iter().chain((0..20_000).map(one)).chain([stop("tool_use"), end()]).collect();
    let shown = ask(Play::events(events), request()).await;
    assert_eq!(shown.matches("> call-").count(), 20_000);
}

/// The results of what the server runs itself follow in the same turn, or never. The checker refuses a request
/// without them.
#[tokio::test]
async fn a_call_that_the_server_itself_did_not_end_is_left_out_of_later_requests() {
    let call = || {
        let begun = block(r#"{"id":"s1","input":{},"name":"web_search","type":"server_tool_use"}"#);
        begun + &json("{\"query\":\"x\"}") + &end_block()
    };
    for (reason, is_left_out) in
        [("max_tokens", true), ("refusal", true), ("end_turn", true), ("pause_turn", false)]
    {
        for first in [String::new(), text("I look.") + &end_block()] {
            let is_alone = first.is_empty();
            let cut = start() + &first + &call() + &stop(reason) + &end();
            let whole = start() + &text("ok") + &end_block() + &stop("end_turn") + &end();
            let server =
                Server::start([Play::events(cut), Play::events(whole)], usize::MAX, super::check).await;
            let model = builder(&server).build().unwrap();
            let reply = model.respond(request()).into_reply().await.unwrap();
            let next = request().messages.with(reply.message);
            let next = if is_left_out { next.with(Message::user("more")) } else { next };
            model.respond(ChatRequest::new(next)).into_reply().await.unwrap();
            let sent = server.asked()[1].body["messages"].to_string();
            assert_eq!(sent.contains("server_tool_use"), !is_left_out, "{reason}: {sent}");
            assert_eq!(sent.contains("I look."), !is_alone, "{reason}: {sent}");
        }
    }
}
