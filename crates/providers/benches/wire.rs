//! What asking costs beside the network: bodies with history, and chunks through the stream path.
//! `cargo bench -p stepfold-providers --all-features`.
//!
//! `next_step` is what an agent does: ask with one step more than the last time. `afresh` is what writing
//! the whole body again costs, with the same code.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use futures_util::StreamExt;
use serde_json::json;
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::gemini::Gemini;
use stepfold_providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold_providers::probe::{self, ProbeResponse, anthropic_body, openai_body};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Message, ReplyStream, Role, ToolCall, ToolResult, ToolSpec, Transcript,
};

fn main() {
    divan::main();
}

const LENGTHS: [usize; 3] = [10, 100, 1_000];

/// A conversation of so many messages, of calls and results as an agent has them.
fn conversation(length: usize) -> Transcript {
    let mut messages = Transcript::new().with(Message::system("Be kind.")).with(Message::user("Which area?"));
    while messages.len() < length {
        step(&mut messages);
    }
    messages
}

fn step(messages: &mut Transcript) {
    let id = format!("call_{}", messages.len());
    let text =
        "I look it up in the \"register\" of all areas,\nthen I compare the counts of stalls. ".repeat(3);
    let call = ToolCall::new(id.clone(), "search", json!({"limit": 20, "query": "stalls by area and year"}));
    messages.push(Message::new(Role::Assistant).with_part(text.as_str()).with_part(call));
    let rows: Vec<_> =
        (0..8).map(|row| json!({"area": row, "name": "Grünmarkt", "stalls": row * 7})).collect();
    messages.push(Message::tool(ToolResult::value(id, "search", json!(rows))));
}

fn request(messages: Transcript) -> ChatRequest {
    let tools: Vec<ToolSpec> = Vec::new();
    ChatRequest::new(messages).with_tools(tools)
}

/// A request that was written, and the one with one step more.
fn two_steps(length: usize) -> (ChatRequest, ChatRequest) {
    let before = conversation(length);
    let mut after = before.clone();
    step(&mut after);
    (request(before), request(after))
}

#[divan::bench(args = LENGTHS)]
fn openai_next_step(bencher: Bencher<'_, '_>, length: usize) {
    let (before, after) = two_steps(length);
    bencher
        .with_inputs(|| {
            let write = openai_body(Preset::OPENAI);
            write(&before).expect("it can be written");
            write
        })
        .bench_refs(|write| black_box(write(&after)).expect("it can be written").len());
}

#[divan::bench(args = LENGTHS)]
fn openai_afresh(bencher: Bencher<'_, '_>, length: usize) {
    let (_, after) = two_steps(length);
    bencher
        .with_inputs(|| openai_body(Preset::OPENAI))
        .bench_refs(|write| black_box(write(&after)).expect("it can be written").len());
}

#[divan::bench(args = LENGTHS)]
fn anthropic_next_step(bencher: Bencher<'_, '_>, length: usize) {
    let (before, after) = two_steps(length);
    bencher
        .with_inputs(|| {
            let write = anthropic_body(false);
            write(&before).expect("it can be written");
            write
        })
        .bench_refs(|write| black_box(write(&after)).expect("it can be written").len());
}

#[divan::bench(args = LENGTHS)]
fn anthropic_afresh(bencher: Bencher<'_, '_>, length: usize) {
    let (_, after) = two_steps(length);
    bencher
        .with_inputs(|| anthropic_body(false))
        .bench_refs(|write| black_box(write(&after)).expect("it can be written").len());
}

/// Ten thousand chunks, from a server on loopback to a whole reply.
#[divan::bench(sample_count = 20)]
fn ten_thousand_chunks(bencher: Bencher<'_, '_>) {
    const COUNT: usize = 10_000;
    let chunk = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" stalls"},"logprobs":null,"finish_reason":null}]}"#;
    let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let url = serve(format!("{}{end}\n\ndata: [DONE]\n\n", format!("{chunk}\n\n").repeat(COUNT)));
    let model = OpenAi::at(url, "m").build().expect("a model");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    bencher.counter(ItemsCount::new(COUNT)).bench(|| {
        runtime.block_on(async {
            let mut stream = model.respond(request(conversation(2)));
            let mut count = 0;
            while let Some(chunk) = stream.next().await {
                chunk.expect("a good chunk");
                count += 1;
            }
            assert!(count > COUNT);
        });
    });
}

/// The bytes of a stream of a thousand chunks, from its pieces to a whole reply, in each dialect.
#[divan::bench(args = ["openai", "responses", "anthropic", "gemini"])]
fn bytes_parsed(bencher: Bencher<'_, '_>, dialect: &str) {
    let (chunk, end) = match dialect {
        "openai" => (
            r#"{"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" stalls"},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        ),
        "responses" => (
            r#"{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"content_index":0,"delta":" stalls"}"#,
            r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#,
        ),
        "anthropic" => (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" stalls"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
        ),
        _ => (
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":" stalls"}]},"index":0}],"modelVersion":"m","responseId":"r"}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[]},"finishReason":"STOP","index":0}]}"#,
        ),
    };
    let body = format!("{}data: {end}\n\n", format!("data: {chunk}\n\n").repeat(1_000));
    let pieces: Vec<Vec<u8>> = body.as_bytes().chunks(4_096).map(<[u8]>::to_vec).collect();
    let response =
        ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = |response: ProbeResponse| {
        runtime.block_on(read(dialect, response).into_reply()).expect("a good reply")
    };
    bencher.counter(BytesCount::new(body.len())).with_inputs(|| response.clone()).bench_values(reply);
}

/// The events of a reply of so many tool calls without ids, each in two pieces.
fn calls(dialect: &str, count: usize) -> String {
    let call = |index: usize| match dialect {
        "openai" => [
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": {"name": "search", "arguments": "{\"q\":"}}]}}]}),
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": {"arguments": "7}"}}]}}]}),
        ],
        "responses" => [
            json!({"type": "response.output_item.added", "output_index": index, "item": {"type": "function_call", "name": "search", "arguments": ""}}),
            json!({"type": "response.output_item.done", "output_index": index, "item": {"type": "function_call", "name": "search", "arguments": "{\"q\":7}"}}),
        ],
        "anthropic" => [
            json!({"type": "content_block_start", "index": index, "content_block": {"type": "tool_use", "name": "search", "input": {}}}),
            json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": "{\"q\":7}"}}),
        ],
        _ => [
            json!({"candidates": [{"content": {"parts": [{"functionCall": {"name": "search", "args": {"q": index}}}]}}]}),
            json!({"candidates": [{"content": {"parts": []}}]}),
        ],
    };
    let end = match dialect {
        "openai" => json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        "responses" => {
            json!({"type": "response.completed", "response": {"status": "completed", "output": []}})
        }
        "anthropic" => json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        _ => json!({"candidates": [{"finishReason": "STOP"}]}),
    };
    (0..count)
        .flat_map(call)
        .chain([end])
        .map(|event| format!("data: {event}\n\n"))
        .collect::<Vec<_>>()
        .concat()
}

/// A reply of 2,000 and one of 20,000 calls: the same number of calls a second, or reading them is not linear.
#[divan::bench(
    args = ["openai", "responses", "anthropic", "gemini"].iter().flat_map(|name| [(*name, 2_000), (*name, 20_000)]),
    sample_count = 20
)]
fn calls_in_one_reply(bencher: Bencher<'_, '_>, (dialect, count): (&str, usize)) {
    let body = calls(dialect, count);
    let pieces: Vec<Vec<u8>> = body.as_bytes().chunks(4_096).map(<[u8]>::to_vec).collect();
    let response =
        ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = |response: ProbeResponse| {
        let reply = runtime.block_on(read(dialect, response).into_reply()).expect("a good reply");
        assert_eq!(reply.message.tool_calls().count(), count);
    };
    bencher.counter(ItemsCount::new(count)).with_inputs(|| response.clone()).bench_values(reply);
}

/// The reply that this dialect makes of a response.
fn read(dialect: &str, response: ProbeResponse) -> ReplyStream {
    match dialect {
        "openai" => {
            probe::reply(&OpenAi::at("http://127.0.0.1:1/v1", "m").build().expect("a model"), response)
        }
        "responses" => probe::reply(&OpenAiResponses::new("m", "key").expect("a model"), response),
        "anthropic" => probe::reply(&Anthropic::new("m", "key").build().expect("a model"), response),
        _ => probe::reply(&Gemini::new("m", "key").build().expect("a model"), response),
    }
}

/// A server that answers each connection with this stream.
fn serve(events: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            // The request is small: it comes at once.
            let _ = socket.read(&mut [0; 8192]);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";
            let _ = write!(socket, "{head}content-length: {}\r\n\r\n{events}", events.len());
        }
    });
    url
}
