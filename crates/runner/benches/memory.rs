//! What sessions take in memory. `cargo bench -p stepfold-runner --bench memory`: the bytes of "max alloc" are those of all
//! [`SESSIONS`]. Goal: 9 kB for a session after a turn with one call, as it is in the store.

#![allow(clippy::expect_used, reason = "a benchmark stops when it cannot go on")]

use divan::{AllocProfiler, Bencher};
use stepfold_agent_loop::Agent;
use stepfold_runner::Runner;
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Tool, ToolError};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

/// As many as a runner keeps, and not more.
const SESSIONS: usize = 200;

fn main() {
    divan::main();
}

/// Calls the tool once in each turn.
struct Model;

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "bench"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let begins = request.messages.last().is_some_and(|message| message.role() == Role::User);
        let call = || ToolCall::new("c1", "nothing", serde_json::json!({}));
        let (message, finish) = match begins {
            true => (Message::new(Role::Assistant).with_part(call()), FinishReason::ToolCalls),
            false => (Message::assistant("done"), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

fn runner(store: &AnyStore) -> Runner {
    let nothing = Tool::new("nothing", "Does nothing.", async || Ok::<_, ToolError>("ok"));
    let agent = Agent::builder(Model).tools([nothing.build().expect("the tool is valid")]).build();
    Runner::builder(agent.expect("the agent is valid"), store.clone()).build()
}

/// Sessions of one turn: in the store alone, or also kept by the runner.
#[divan::bench(consts = [false, true], sample_count = 1, sample_size = 1)]
fn sessions<const KEPT: bool>(bencher: Bencher<'_, '_>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    bencher.bench_local(|| {
        let store = AnyStore::new(MemoryStore::new());
        let mut kept = runner(&store);
        for id in 0..SESSIONS {
            if !KEPT {
                kept = runner(&store);
            }
            let session = runtime.block_on(kept.session("ada", id.to_string())).expect("the id is valid");
            runtime.block_on(session.run("go")).expect("the script says what is asked for");
        }
        (store, kept)
    });
}
