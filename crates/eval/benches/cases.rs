//! Cases a second on one core, without a model: replays and rolls of a turn of ten steps, one call in each of nine.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]

use divan::Bencher;
use divan::counter::ItemsCount;
use serde_json::json;
use stepfold_agent_loop::{Agent, Event, EventKind};
use stepfold_eval::{Case, CaseStatus, Expectation, Experiment, Mode};
use stepfold_runner::Runner;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCallChunk,
};
use stepfold_tools::{Effect, RawArgs, Tool, ToolError};
use tokio::runtime::{Builder, Runtime};

/// The replies of a turn.
const STEPS: usize = 10;

/// The cases of an iteration.
const CASES: usize = 100;

fn main() {
    divan::main();
}

/// Calls a tool in every reply but the last.
struct Counter;

impl ChatModel for Counter {
    fn id(&self) -> &'static str {
        "bench/counter"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let step = request.messages.iter().filter(|message| message.role() == Role::Assistant).count();
        if step + 1 == STEPS {
            let mut chunks = Chunk::of(&Message::assistant("counted"));
            chunks.push(Chunk::Finished(FinishReason::Stop));
            return ReplyStream::from_chunks(chunks);
        }
        // Each call is another one: a run that repeats itself is stopped.
        let mut call = ToolCallChunk::new(0, format!("{{\"area\":{step}}}")).with_name("count");
        call.id = Some(format!("c{step}"));
        ReplyStream::from_chunks([Chunk::ToolCall(call), Chunk::Finished(FinishReason::ToolCalls)])
    }
}

async fn count(RawArgs(arguments): RawArgs) -> Result<u64, ToolError> {
    Ok(arguments["area"].as_u64().unwrap_or_default())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// An agent, and a recorded turn of it.
fn recorded(runtime: &Runtime) -> (Agent, Case) {
    let area = json!({"type": "object", "properties": {"area": {"type": "integer"}}, "required": ["area"]});
    let count = Tool::new("count", "Counts.", count).parameters(area).effect(Effect::Pure).build().unwrap();
    let agent = Agent::builder(Counter).tools([count]).build().unwrap();
    let case = runtime.block_on(async {
        let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("count").await.unwrap();
        let case = Case::taken_from(&session, None).await.unwrap();
        let events = &case.record.as_ref().unwrap().events;
        let is_reply = |event: &&Event| matches!(event.kind, EventKind::Replied { .. });
        assert_eq!(events.iter().filter(is_reply).count(), STEPS, "the turn is whole");
        case
    });
    (agent, case)
}

#[divan::bench(args = ["replay", "roll", "next", "recorded"])]
fn ten_steps(bencher: Bencher<'_, '_>, mode: &str) {
    let runtime = runtime();
    let (agent, case) = recorded(&runtime);
    let mode: Mode = mode.parse().unwrap();
    let case = match mode {
        // A record is not compared with itself.
        Mode::Recorded => case.expect(Expectation::Answered),
        _ => case,
    };
    let experiment = Experiment::new(&agent).mode(mode);
    bencher.counter(ItemsCount::new(CASES)).bench_local(|| {
        for _ in 0..CASES {
            // NOTE: A task starts with a fresh budget of the runtime, as the cases of an experiment do.
            let result = runtime.block_on(experiment.run_case(&case));
            assert!(matches!(result.status, CaseStatus::Passed), "{}", result.why());
        }
    });
}
