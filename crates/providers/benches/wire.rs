//! What asking costs beside the network: bodies with history, and chunks through the stream path.
//! `cargo bench -p stepfold-providers --all-features`.
//!
//! `next_step` is what an agent does: ask with one step more than the last time. `afresh` is what writing
//! the whole body again costs, with the same code.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::TcpListener;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use futures_util::StreamExt;
use serde_json::json;
use stepfold_providers::openai::{OpenAi, Preset};
use stepfold_providers::probe::{anthropic_body, openai_body};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Message, Role, ToolCall, ToolResult, ToolSpec, Transcript,
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
