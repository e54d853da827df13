//! What a state and a conversation cost, at several sizes: `cargo bench -p stepfold-state-core --all-features`.
//!
//! The figures are per operation: where one takes less than a microsecond, an iteration makes many and an
//! item counter tells how many (divan then prints operations per second beside the time of the iteration).

#![allow(
    clippy::unwrap_used,
    clippy::format_push_string,
    reason = "a benchmark that cannot go on should stop, and its set-up need not be fast"
)]

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Chunk, FinishReason, Message, ReplyBuilder, Role, ToolCall, ToolCallChunk, ToolResult, Transcript,
};
use stepfold_state_core::state::{Key, Schema, State, Template};

/// Operations in one iteration of the benchmarks of fast operations.
const MANY: usize = 100;
const LENGTHS: [usize; 3] = [10, 1_000, 100_000];

fn main() {
    divan::main();
}

/// One item more in a list, and a snapshot after each that is held until the next one.
#[divan::bench(args = LENGTHS, sample_count = 200, sample_size = 10)]
fn append_with_snapshot(bencher: Bencher<'_, '_>, length: usize) {
    let base = with_list(length);
    bencher.counter(ItemsCount::new(MANY)).with_inputs(|| (grown(&base), items())).bench_local_values(
        |(mut state, items)| {
            let mut held = state.clone();
            for item in items {
                state.set("list", item).unwrap();
                held = black_box(state.clone());
            }
            (state, held)
        },
    );
}

/// The same without snapshots.
#[divan::bench(args = LENGTHS, sample_count = 200, sample_size = 10)]
fn append(bencher: Bencher<'_, '_>, length: usize) {
    let base = with_list(length);
    bencher.counter(ItemsCount::new(MANY)).with_inputs(|| (grown(&base), items())).bench_local_values(
        |(mut state, items)| {
            for item in items {
                state.set("list", item).unwrap();
            }
            state
        },
    );
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Document {
    title: String,
    pages: u32,
}

/// One typed item more: turned into JSON, and checked against the schema of a struct.
#[divan::bench(args = LENGTHS, sample_count = 200, sample_size = 10)]
fn append_typed(bencher: Bencher<'_, '_>, length: usize) {
    const DOCUMENTS: Key<Vec<Document>> = Key::new("documents");
    let document = Document { title: "On stalls".to_owned(), pages: 12 };
    let schema = Schema::builder().key(DOCUMENTS).build().unwrap();
    let mut base = State::new(&schema);
    base.set(DOCUMENTS, vec![document.clone(); length]).unwrap();
    let input = || {
        let mut state = base.clone();
        state.append(DOCUMENTS, document.clone()).unwrap();
        (state, vec![document.clone(); MANY])
    };
    bencher.counter(ItemsCount::new(MANY)).with_inputs(input).bench_local_values(|(mut state, documents)| {
        for document in documents {
            state.append(DOCUMENTS, document).unwrap();
        }
        state
    });
}

/// Large items: 32 of them, of 10,000 characters each, one after the other into an empty list.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn append_large_items(bencher: Bencher<'_, '_>) {
    let base = with_list(0);
    let input = || (base.clone(), vec![json!(["x".repeat(10_000)]); 32]);
    bencher.counter(ItemsCount::new(32_usize)).with_inputs(input).bench_local_values(|(mut state, items)| {
        for item in items {
            state.set("list", item).unwrap();
        }
        state
    });
}

fn with_list(length: usize) -> State {
    let schema = Schema::builder().key::<Vec<Value>>("list").build().unwrap();
    State::with_values(&schema, json!({ "list": vec![1; length] })).unwrap()
}

/// A state whose list no longer shares its last chunk with the one that it came from.
fn grown(base: &State) -> State {
    let mut state = base.clone();
    state.set("list", json!([0])).unwrap();
    state
}

fn items() -> Vec<Value> {
    (0..MANY).map(|number| json!([number])).collect()
}

/// A scalar set in a state with so many keys, with a snapshot held of the version before.
#[divan::bench(args = [10, 100, 10_000], sample_count = 200, sample_size = 10)]
fn set_scalar_with_snapshot(bencher: Bencher<'_, '_>, keys: usize) {
    let names: Vec<String> = (0..keys).map(|key| format!("key_{key}")).collect();
    let schema = names.iter().fold(Schema::builder(), |builder, name| builder.key::<i64>(name.clone()));
    let mut base = State::new(&schema.build().unwrap());
    for name in &names {
        base.set(name, 1).unwrap();
    }
    let name = &names[keys / 2];
    bencher.counter(ItemsCount::new(MANY)).with_inputs(|| base.clone()).bench_local_values(|mut state| {
        let mut held = state.clone();
        for number in 0..MANY {
            state.set(name, number).unwrap();
            held = black_box(state.clone());
        }
        (state, held)
    });
}

#[divan::bench(sample_count = 200, sample_size = 10)]
fn snapshot(bencher: Bencher<'_, '_>) {
    let state = with_list(100_000);
    bencher.counter(ItemsCount::new(MANY)).bench_local(|| {
        for _ in 0..MANY {
            black_box(black_box(&state).clone());
        }
    });
}

/// One message more, and a clone after each that is held until the next one.
#[divan::bench(args = LENGTHS, sample_count = 200, sample_size = 10)]
fn transcript_push_with_snapshot(bencher: Bencher<'_, '_>, length: usize) {
    let base: Transcript = (0..length).map(|_| Message::user("hi")).collect();
    let input = || {
        let messages: Vec<Message> = (0..MANY).map(|_| Message::user("hi")).collect();
        (base.clone().with(Message::user("hi")), messages)
    };
    bencher.counter(ItemsCount::new(MANY)).with_inputs(input).bench_local_values(
        |(mut transcript, messages)| {
            let mut held = transcript.clone();
            for message in messages {
                transcript.push(message);
                held = black_box(transcript.clone());
            }
            (transcript, held)
        },
    );
}

/// 1,000 messages of 200 characters.
fn long_talk() -> State {
    let mut state = State::new(&Schema::builder().key::<String>("query").build().unwrap());
    for index in 0..1_000 {
        let text = "so it goes. ".chars().cycle().take(200).collect::<String>();
        state.push_message(if index % 2 == 0 { Message::user(text) } else { Message::assistant(text) });
    }
    state
}

#[divan::bench(sample_count = 200)]
fn state_to_json(bencher: Bencher<'_, '_>) {
    let state = long_talk();
    bencher.bench_local(|| serde_json::to_string(black_box(&state)).unwrap());
}

#[divan::bench(sample_count = 200)]
fn state_from_json(bencher: Bencher<'_, '_>) {
    let state = long_talk();
    let json = serde_json::to_string(&state).unwrap();
    bencher.bench_local(|| State::from_json(state.schema(), black_box(&json)).unwrap());
}

/// 10,000 messages: user, a reply with two calls, two results, a reply.
#[divan::bench(sample_count = 200)]
fn transcript_check(bencher: Bencher<'_, '_>) {
    let transcript: Transcript = (0..2_000_usize).flat_map(turn).collect();
    assert_eq!(transcript.len(), 10_000);
    bencher.bench_local(|| black_box(&transcript).check().unwrap());
}

fn turn(number: usize) -> [Message; 5] {
    let id = |which: usize| format!("call_{number:08}_{which}");
    let calls = Message::new(Role::Assistant)
        .with_part(ToolCall::new(id(0), "search", json!({"q": "stalls"})))
        .with_part(ToolCall::new(id(1), "fetch", json!({"id": 7})));
    [
        Message::user("which area has most stalls?"),
        calls,
        Message::tool(ToolResult::value(id(1), "fetch", 7)),
        Message::tool(ToolResult::value(id(0), "search", json!([3, 4]))),
        Message::assistant("area 3"),
    ]
}

/// A prompt with 20 keys, half of them strings.
#[divan::bench(sample_count = 200)]
fn template_with_20_keys(bencher: Bencher<'_, '_>) {
    let schema = Schema::builder().open().build().unwrap();
    let mut state = State::new(&schema);
    let mut text = "You are a careful assistant. ".to_owned();
    for key in 0..20 {
        let name = format!("user:key_{key}");
        match key % 2 {
            0 => state.set(&name, "a value of some length").unwrap(),
            _ => state.set(&name, key).unwrap(),
        }
        text += &format!("The value of number {key} is {{{name}}}, as you know.\n");
    }
    let template = Template::parse(text);
    bencher.bench_local(|| black_box(&template).render(&state).unwrap());
}

/// The calls of one reply as they are streamed, each in two pieces. Time per call, as its counter shows.
#[divan::bench(args = [1_000, 20_000], sample_count = 20)]
fn streamed_calls(bencher: Bencher<'_, '_>, calls: usize) {
    let piece = |index: usize, name: Option<&str>, arguments: &str| {
        let (id, name) = (name.map(|_| format!("c{index}")), name.map(str::to_owned));
        let mut chunk = ToolCallChunk::new(index, arguments);
        (chunk.id, chunk.name) = (id, name);
        Chunk::ToolCall(chunk)
    };
    let chunks = || -> Vec<Chunk> {
        let calls = 0..calls;
        calls.flat_map(|index| [piece(index, Some("look"), "{\"area\":"), piece(index, None, "3}")]).collect()
    };
    bencher.counter(ItemsCount::new(calls)).with_inputs(chunks).bench_local_values(|chunks| {
        let mut reply = ReplyBuilder::new();
        for chunk in chunks {
            reply.push(chunk);
        }
        reply.push(Chunk::Finished(FinishReason::ToolCalls));
        reply.finish().unwrap()
    });
}
