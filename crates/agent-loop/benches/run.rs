//! What the loop adds to a step: a scripted model that answers at once, one call of a tool that does nothing,
//! no store.
//!
//! `steps` divides by the number of steps, as its counter shows; `tenth` compares the first tenth of a long run
//! with the last one.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::sync::atomic::{AtomicUsize, Ordering};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, ToolCallChunk, Transcript,
};
use stepfold_agent_loop::tools::{Effect, Tool, ToolError};
use stepfold_agent_loop::{Agent, Answer, Breakpoint, Exit, Input, Run};
use tokio::runtime::Runtime;

fn main() {
    divan::main();
}

/// Calls a tool in every reply.
#[derive(Default)]
struct Restless(AtomicUsize);

impl ChatModel for Restless {
    fn id(&self) -> &'static str {
        "bench/restless"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        black_box(request.messages.last());
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        ReplyStream::from_chunks([
            Chunk::ToolCall(ToolCallChunk {
                index: 0,
                id: Some(format!("call-{number}")),
                name: Some("nothing".to_owned()),
                arguments: "{}".to_owned(),
            }),
            Chunk::Finished(FinishReason::ToolCalls),
        ])
    }
}

async fn nothing() -> Result<&'static str, ToolError> {
    Ok("nothing")
}

/// An agent that ends after this many steps.
fn agent(steps: u64) -> Agent {
    let tool = Tool::new("nothing", "Does nothing.", nothing).effect(Effect::Pure).build().unwrap();
    // A model that does nothing but repeat itself is the very thing that the guard stops.
    let builder = Agent::builder(Restless::default()).tools([tool]).max_steps(steps).repeat_guard(None);
    builder.build().unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn finish(runtime: &Runtime, run: Run) -> Run {
    let outcome = runtime.block_on(async { run.resume().await }).unwrap();
    assert_eq!(outcome.exit(), &Exit::MaxSteps);
    outcome.into_run()
}

fn history(messages: usize) -> Transcript {
    (0..messages / 2)
        .flat_map(|turn| {
            [Message::user(format!("question {turn}")), Message::assistant(format!("answer {turn}"))]
        })
        .collect()
}

/// A run after this many steps, with `more` to go.
fn run_after(runtime: &Runtime, steps: u64, more: u64) -> Run {
    let run = Run::new(&agent(steps + more), "go", "bench").unwrap();
    let here = Breakpoint::model().visit(steps + 1);
    let outcome = runtime.block_on(async { run.resume().break_at(here).await }).unwrap();
    assert_eq!(outcome.steps(), steps);
    outcome.into_run()
}

#[divan::bench(args = [1, 10, 100, 500, 10_000])]
fn steps(bencher: Bencher<'_, '_>, steps: u64) {
    let (runtime, agent) = (runtime(), agent(steps));
    bencher
        .counter(ItemsCount::new(steps))
        .with_inputs(|| Run::new(&agent, "go", "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run));
}

#[divan::bench(args = [1, 10, 100, 500, 10_000])]
fn steps_on_10_000_messages(bencher: Bencher<'_, '_>, steps: u64) {
    let (runtime, agent) = (runtime(), agent(steps));
    let input = Input::from(history(10_000)).say("go");
    bencher
        .counter(ItemsCount::new(steps))
        .with_inputs(|| Run::new(&agent, input.clone(), "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run));
}

/// One step of a turn that goes on where a run has ended, on as many messages.
#[divan::bench(args = [10, 1_000, 10_000])]
fn turn_after(bencher: Bencher<'_, '_>, messages: usize) {
    let (runtime, agent) = (runtime(), agent(1));
    let run = finish(&runtime, Run::new(&agent, Input::from(history(messages)).say("go"), "bench").unwrap());
    bencher
        .with_inputs(|| Input::after(run.clone()).say("go on"))
        .bench_local_values(|input| finish(&runtime, Run::new(&agent, input, "next").unwrap()));
}

#[divan::bench(args = ["first", "last"])]
fn tenth_of_10_000_steps(bencher: Bencher<'_, '_>, which: &str) {
    let runtime = runtime();
    let run = run_after(&runtime, if which == "first" { 0 } else { 9_000 }, 1_000);
    bencher
        .counter(ItemsCount::new(1_000_usize))
        .with_inputs(|| run.clone())
        .bench_local_values(|run| finish(&runtime, run));
}

#[divan::bench]
fn snapshot_of_1_000_messages(bencher: Bencher<'_, '_>) {
    let run = thousand();
    bencher.bench_local(|| run.to_json().len());
}

#[divan::bench]
fn load_1_000_messages(bencher: Bencher<'_, '_>) {
    let run = thousand();
    let json = run.to_json();
    bencher.bench_local(|| Run::load(run.agent(), &json).unwrap());
}

/// A run that has begun on a thousand messages of 200 characters.
fn thousand() -> Run {
    let text = "x".repeat(200);
    let log: Transcript =
        (0..500).flat_map(|_| [Message::user(text.as_str()), Message::assistant(text.as_str())]).collect();
    let mut run = Run::new(&agent(5), Input::from(log).say("go"), "bench").unwrap();
    let event = run.feed(Answer::Begin, std::time::Duration::ZERO).unwrap();
    run.commit(event).unwrap();
    assert_eq!(run.transcript().len(), 1_001);
    run
}
