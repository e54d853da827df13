//! What running tools costs beside the tools themselves. `cargo bench -p stepfold-tools --all-features`.
//!
//! Times of single calls are those of whole invocations of one call: announced, checked, run, delivered.

#![allow(
    clippy::expect_used,
    clippy::unnecessary_wraps,
    clippy::redundant_closure_for_method_calls,
    reason = "a benchmark that cannot go on should stop, and a tool returns a `Result`"
)]

use std::time::{Duration, Instant};

use divan::{Bencher, black_box};
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Message, ToolCall};
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::{Schema, State};
#[cfg(feature = "search")]
use stepfold_tools::recall_tools;
use stepfold_tools::{Args, Invocation, InvokeOptions, RawArgs, Tool, ToolError, Tools};
use tokio::runtime::{Builder, Runtime};

fn main() {
    divan::main();
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime can be built")
}

fn snapshot() -> State {
    State::new(&Schema::builder().build().expect("an empty schema is valid")).clone()
}

fn calls(count: usize, tool: &str, arguments: &Value) -> Vec<ToolCall> {
    (0..count).map(|index| ToolCall::new(format!("c{index}"), tool, arguments.clone())).collect()
}

fn invoke(bencher: Bencher<'_, '_>, tool: Tool, count: usize, arguments: &Value) {
    let runtime = runtime();
    let name = tool.name().to_owned();
    let tools = Tools::of([tool]).expect("one tool does not clash");
    let state = snapshot();
    bencher.with_inputs(|| calls(count, &name, arguments)).bench_local_values(|calls| {
        let invocation = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default());
        let done = runtime.block_on(invocation.finish());
        assert!(done.outcomes.iter().all(|outcome| outcome.succeeded()));
        done
    });
}

async fn no_op() -> Result<(), ToolError> {
    Ok(())
}

fn blocking_no_op() -> Result<(), ToolError> {
    Ok(())
}

/// Goals: 2 us for one call, 0.2 ms for 64.
#[divan::bench(args = [1, 64], sample_size = 50)]
fn async_no_op(bencher: Bencher<'_, '_>, count: usize) {
    invoke(bencher, Tool::new("no_op", "Does nothing.", no_op).build().expect("valid"), count, &json!({}));
}

/// Goal: 10 us for one call.
#[divan::bench(args = [1, 64], sample_size = 50)]
fn blocking(bencher: Bencher<'_, '_>, count: usize) {
    let tool = Tool::blocking("no_op", "Does nothing.", blocking_no_op).build().expect("valid");
    invoke(bencher, tool, count, &json!({}));
}

/// Goal: 12 ms for 64 calls that wait 10 ms each.
#[divan::bench(sample_count = 20)]
fn async_10_ms_64(bencher: Bencher<'_, '_>) {
    async fn wait() -> Result<(), ToolError> {
        // tidy: allow sleep, because the time that 64 of them take is what is measured.
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(())
    }
    invoke(bencher, Tool::new("wait", "Waits.", wait).build().expect("valid"), 64, &json!({}));
}

/// Goal: at most 1.2 x 64 / cores ms for 64 calls that compute for 1 ms each.
#[divan::bench(sample_count = 20)]
fn blocking_1_ms_64(bencher: Bencher<'_, '_>) {
    fn compute() -> Result<(), ToolError> {
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        Ok(())
    }
    invoke(bencher, Tool::cpu("compute", "Computes.", compute).build().expect("valid"), 64, &json!({}));
}

/// An object of fields of several types, and its schema.
fn object(fields: usize) -> (Value, Value) {
    let mut properties = Map::new();
    let mut values = Map::new();
    for index in 0..fields {
        let (schema, value) = match index % 4 {
            0 => (json!({"type": "string", "minLength": 1}), json!("some text")),
            1 => (json!({"type": "integer", "minimum": 0}), json!(index)),
            2 => (json!({"type": "array", "items": {"type": "number"}}), json!([1.5, 2.5])),
            _ => (json!({"enum": ["red", "green", "blue"]}), json!("blue")),
        };
        properties.insert(format!("field_{index}"), schema);
        values.insert(format!("field_{index}"), value);
    }
    let required: Vec<String> = properties.keys().cloned().collect();
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    (schema, Value::Object(values))
}

/// The check of arguments by itself. Goal: 5 us for 20 fields.
#[divan::bench(args = [0, 20])]
fn validation(bencher: Bencher<'_, '_>, fields: usize) {
    let (schema, values) = object(fields);
    let arguments = ValueType::of_schema(schema).expect("valid");
    bencher.bench_local(|| arguments.check(black_box(&values)));
}

/// A whole call with arguments: checked, copied for the function, and copied again by `RawArgs`.
#[divan::bench(args = [0, 20], sample_size = 50)]
fn arguments(bencher: Bencher<'_, '_>, fields: usize) {
    let (schema, values) = object(fields);
    let take = |RawArgs(arguments): RawArgs| async move {
        black_box(arguments);
        Ok::<_, ToolError>(())
    };
    let tool = Tool::new("take", "Takes arguments.", take).parameters(schema).build().expect("valid");
    invoke(bencher, tool, 1, &values);
}

/// The same typed: read with serde.
#[divan::bench(sample_size = 50)]
fn typed_arguments(bencher: Bencher<'_, '_>) {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    #[expect(dead_code, reason = "read by serde only")]
    struct Query {
        text: String,
        limit: u32,
        areas: Vec<i64>,
    }
    async fn take(Args(query): Args<Query>) -> Result<(), ToolError> {
        black_box(query);
        Ok(())
    }
    let tool = Tool::new("take", "Takes a query.", take).build().expect("valid");
    invoke(bencher, tool, 1, &json!({"text": "stalls", "limit": 3, "areas": [1, 2]}));
}

/// An error of a tool that reads a list of so many items, none of which its text may show.
#[divan::bench(args = [10, 10_000, 1_000_000], sample_count = 20)]
fn error_of_a_reader(bencher: Bencher<'_, '_>, items: usize) {
    async fn fail() -> Result<(), ToolError> {
        Err(ToolError::new("no area is open today"))
    }
    let runtime = runtime();
    let tool = Tool::new("fail", "Fails.", fail).reads(["items"]).build().expect("valid");
    let tools = Tools::of([tool]).expect("one tool does not clash");
    let schema = Schema::builder().key::<Vec<String>>("items").build().expect("valid");
    let items: Vec<String> = (0..items).map(|item| format!("item {item}")).collect();
    let state = State::with_values(&schema, json!({"items": items})).expect("it fits").clone();
    bencher.with_inputs(|| calls(1, "fail", &json!({}))).bench_local_values(|calls| {
        let invocation = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default());
        runtime.block_on(invocation.finish())
    });
}

/// A search in a conversation of 10,000 messages of 1 kB that was searched before, beside ten others: of words in some
/// messages, and of one that all have. Goal: 5 ms.
#[cfg(feature = "search")]
#[divan::bench(args = [(10_000, "word77 of word4000"), (10_000, "order")])]
fn recall(bencher: Bencher<'_, '_>, (messages, query): (usize, &str)) {
    let recall = recall_tools().expect("the tools are valid");
    let tools = recall.static_tools().expect("the tools are static");
    let mut states = Vec::new();
    for session in 0..10 {
        let mut state = snapshot();
        for message in 0..messages {
            let words = (0..90).map(|word| format!("word{} ", (message * 31 + word * 17 + session) % 5_000));
            state.push_message(Message::user(format!("{}order {message}", words.collect::<String>())));
        }
        states.push(state);
    }
    let runtime = runtime();
    let search = |state: &State| {
        let calls = vec![ToolCall::new("c1", "recall_search", json!({"query": query}))];
        let done = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default());
        let done = runtime.block_on(done.finish());
        assert!(done.outcomes.iter().all(|outcome| outcome.succeeded()));
        done
    };
    // The first search of each indexes it.
    for state in &states {
        search(state);
    }
    bencher.bench_local(|| search(&states[3]));
}
