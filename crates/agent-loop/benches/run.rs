//! What the loop adds to a step: a scripted model that answers at once, one call of a tool that does nothing,
//! no store.
//!
//! `steps` divides by the number of steps, as its counter shows; `tenth` compares the first tenth of a long run
//! with the last one. `--count STEPS` makes one run of so many steps and nothing else, for a program that counts
//! instructions.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use std::sync::atomic::{AtomicUsize, Ordering};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, ToolCallChunk, Transcript,
};
use stepfold_agent_loop::tools::{Effect, Tool, ToolError};
use stepfold_agent_loop::{
    Agent, Breakpoint, Exit, Input, Observer, ObserverError, Run, RunAnswer, RunEvent, RunLimits,
};
use tokio::runtime::Runtime;

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--count");
    match arguments.nth(1) {
        Some(steps) => {
            let agent = agent(steps.parse().unwrap());
            finish(&runtime(), Run::new(&agent, "go", "bench").unwrap());
        }
        None => divan::main(),
    }
}

/// Calls a tool in every reply.
#[derive(Default)]
struct Restless {
    replies: AtomicUsize,
    ids: Ids,
    /// Calls of one reply beside the first.
    more: usize,
}

/// What a server calls its calls.
#[derive(Clone, Copy, Debug, Default)]
enum Ids {
    #[default]
    Own,
    Missing,
    Same,
}

impl ChatModel for Restless {
    fn id(&self) -> &'static str {
        "bench/restless"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        black_box(request.messages.last());
        let number = self.replies.fetch_add(1, Ordering::Relaxed);
        let ids = self.ids;
        let calls = (0..=self.more).map(move |index| {
            let id = match ids {
                Ids::Own => Some(format!("call-{number}-{index}")),
                Ids::Missing => None,
                Ids::Same => Some("call".to_owned()),
            };
            let mut chunk = ToolCallChunk::new(index, "{}").with_name("nothing");
            chunk.id = id;
            Chunk::ToolCall(chunk)
        });
        ReplyStream::from_chunks(calls.chain([Chunk::Finished(FinishReason::ToolCalls)]))
    }
}

async fn nothing() -> Result<&'static str, ToolError> {
    Ok("nothing")
}

/// An agent that ends after this many steps.
fn agent(steps: u64) -> Agent {
    agent_of(Restless::default(), Effect::Pure, RunLimits::default().with_steps(steps))
}

fn agent_of(model: Restless, effect: Effect, limits: RunLimits) -> Agent {
    let tool = Tool::new("nothing", "Does nothing.", nothing).effect(effect).build().unwrap();
    // A model that does nothing but repeat itself is the very thing that the guard stops.
    Agent::builder(model).tools([tool]).limits(limits).repeat_guard(None).build().unwrap()
}

fn calling_them(ids: Ids, steps: u64) -> Agent {
    let model = Restless { ids, ..Restless::default() };
    agent_of(model, Effect::Pure, RunLimits::default().with_steps(steps))
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
    run_of(runtime, &agent(steps + more), steps)
}

fn run_of(runtime: &Runtime, agent: &Agent, steps: u64) -> Run {
    let run = Run::new(agent, "go", "bench").unwrap();
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

/// One step of a turn that continues where a run has ended, on as many messages.
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

/// With a server that sends no ids, or the same one for ever: the last tenth costs what the first one does.
#[divan::bench(args = [(Ids::Missing, "first"), (Ids::Missing, "last"), (Ids::Same, "first"), (Ids::Same, "last")])]
fn tenth_of_5_000_steps_of_ids(bencher: Bencher<'_, '_>, (ids, which): (Ids, &str)) {
    let runtime = runtime();
    let steps = if which == "first" { 0 } else { 4_500 };
    let run = run_of(&runtime, &calling_them(ids, steps + 500), steps);
    bencher
        .counter(ItemsCount::new(500_usize))
        .with_inputs(|| run.clone())
        .bench_local_values(|run| finish(&runtime, run));
}

/// The same for turns of one call each, the first and the four thousandth.
#[divan::bench(args = [(Ids::Missing, 1), (Ids::Missing, 4_000), (Ids::Same, 1), (Ids::Same, 4_000)])]
fn turn_of_ids(bencher: Bencher<'_, '_>, (ids, number): (Ids, usize)) {
    let (runtime, agent) = (runtime(), calling_them(ids, 1));
    let mut run = finish(&runtime, Run::new(&agent, "go", "bench").unwrap());
    for turn in 1..number {
        let input = Input::after(run).say("go on");
        run = finish(&runtime, Run::new(&agent, input, format!("turn-{turn}")).unwrap());
    }
    bencher
        .with_inputs(|| Input::after(run.clone()).say("go on"))
        .bench_local_values(|input| finish(&runtime, Run::new(&agent, input, "next").unwrap()));
}

/// What a host does that stores each commit: it follows the run, and asks what an event starts.
struct Follower(Run);

impl Observer for Follower {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        if let Some(event) = event.committed() {
            black_box(self.0.starts(event));
            self.0.follow(event)?;
        }
        Ok(())
    }
}

/// Calls of one reply that must not run twice, each marked and committed. Time per call, as its counter shows.
#[divan::bench(args = [500, 4_000], sample_count = 20)]
fn marked_calls_in_one_reply(bencher: Bencher<'_, '_>, calls: usize) {
    let runtime = runtime();
    let limits = RunLimits::default().with_steps(1).with_calls_per_reply(calls);
    let model = Restless { more: calls - 1, ..Restless::default() };
    let agent = agent_of(model, Effect::AtMostOnce, limits);
    bencher
        .counter(ItemsCount::new(calls))
        .with_inputs(|| Run::new(&agent, "go", "bench").unwrap())
        .bench_local_values(|run| {
            let follower = Follower(run.clone());
            runtime.block_on(async { run.resume().observe(follower).await }).unwrap()
        });
}

/// A step whose reply has many calls that end at once.
#[divan::bench(args = [64, 1_000])]
fn calls_at_once(bencher: Bencher<'_, '_>, calls: usize) {
    let runtime = runtime();
    let limits = RunLimits::default().with_steps(1).with_calls_per_reply(calls);
    let agent = agent_of(Restless { more: calls - 1, ..Restless::default() }, Effect::Pure, limits);
    bencher
        .with_inputs(|| Run::new(&agent, "go", "bench").unwrap())
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
    let event = run.feed(RunAnswer::Begin, std::time::Duration::ZERO).unwrap();
    run.commit(event).unwrap();
    assert_eq!(run.transcript().len(), 1_001);
    run
}
