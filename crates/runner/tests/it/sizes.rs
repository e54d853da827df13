//! What a run takes in a store.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use stepfold_runner::Runner;
use stepfold_runner::agent_loop::Agent;
use stepfold_runner::session_scopes::{EventRange, MemoryStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Effect, Tool, ToolError};

use crate::world::process;

const STEPS: u32 = 500;

/// Makes a call in each of so many replies.
#[derive(Default)]
struct Restless(AtomicU32);

impl ChatModel for Restless {
    fn id(&self) -> &'static str {
        "test/restless"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let made = self.0.fetch_add(1, Ordering::Relaxed);
        let (message, finish) = if made < STEPS {
            let call = ToolCall::new(format!("c{made}"), "nothing", json!({}));
            (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls)
        } else {
            (Message::assistant("done"), FinishReason::Stop)
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

#[test]
fn five_hundred_marked_steps_take_half_a_megabyte() {
    let nothing = Tool::new("nothing", "Does nothing.", async || Ok::<_, ToolError>("ok"));
    let agent = Agent::builder(Restless::default())
        .instructions("You do what has to be done.")
        .tools([nothing.effect(Effect::AtMostOnce).build().unwrap()])
        .max_steps(u64::from(STEPS) + 1)
        .repeat_guard(None)
        .build()
        .unwrap();
    let stored = process(async {
        let runner = Runner::builder(agent, MemoryStore::new()).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("go").await.unwrap();
        session.read(EventRange::All).await.unwrap().events
    });
    assert_eq!(stored.len(), 1_502);
    let bytes: usize = stored.iter().map(|committed| committed.event.to_stored().unwrap().len()).sum();
    assert!(bytes < 550_000, "{bytes} bytes");
    println!("{bytes} bytes");
}
