//! What outlives a process and what does not, where it takes no process to show it: a runtime is stopped in
//! the middle of a call, and all that is left is the store.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, AskReason, Decision, Exit, Input, Pause};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{AnyStore, AppendEvent, EventRange, MemoryStore, SessionError};
use stepfold_state_core::state::{Schema, ValueRef};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};
use tokio::sync::Notify;

use super::store::{Watch, Watched};
use crate::world::id_at;

fn memory() -> AnyStore {
    AnyStore::new(MemoryStore::new())
}

/// Runs a turn until `reached`; then nothing of it continues.
fn dies(agent: &Agent, store: &AnyStore, reached: &Notify) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        session(agent, store).await.send("go").await.unwrap();
        reached.notified().await;
    });
}

async fn session(agent: &Agent, store: &AnyStore) -> SessionHandle {
    let runner = Runner::builder(agent.clone(), store.clone()).worker("worker").unwrap();
    runner.build().session("ada", "s1").await.unwrap()
}

/// A tool that never ends the first time, and the keys with which it was run.
struct Hangs {
    reached: Arc<Notify>,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Hangs {
    fn new() -> Self {
        Hangs { reached: Arc::default(), keys: Arc::default() }
    }

    fn tool(&self, effect: Effect) -> Tool {
        let (reached, keys) = (Arc::clone(&self.reached), Arc::clone(&self.keys));
        let function = move |context: ToolContext| {
            let (reached, keys) = (Arc::clone(&reached), Arc::clone(&keys));
            async move {
                let times = {
                    let mut keys = keys.lock().unwrap();
                    keys.push(context.idempotency_key().to_owned());
                    keys.len()
                };
                if times == 1 {
                    reached.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok::<_, ToolError>("paid")
            }
        };
        Tool::new("pay", "Pays.", function).effect(effect).build().unwrap()
    }

    fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }
}

fn script(text: &str) -> Script {
    Script::parse(text).unwrap()
}

async fn resumed(agent: &Agent, store: &AnyStore) -> String {
    session(agent, store).await.resume().await.unwrap().transcript().to_string()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

#[test]
fn an_idempotent_call_is_run_again_with_the_same_key() {
    let (hangs, store) = (Hangs::new(), memory());
    let model = script("assistant: > c1 pay()\nassistant: done");
    let agent = Agent::builder(model).tools([hangs.tool(Effect::Idempotent)]).build().unwrap();
    dies(&agent, &store, &hangs.reached);
    let transcript = block_on(resumed(&agent, &store));
    assert!(transcript.contains("tool c1:   paid"), "{transcript}");
    let keys = hangs.keys();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

/// An approver decides about a call that may have run, and may have it run with the same key.
#[test]
fn an_uncertain_call_is_put_to_a_human_if_the_agent_says_so() {
    let (hangs, store) = (Hangs::new(), memory());
    let model = script("assistant: > c1 pay()\nassistant: done");
    let agent = Agent::builder(model).tools([hangs.tool(Effect::AtMostOnce)]).ask_when_uncertain();
    let agent = agent.build().unwrap();
    dies(&agent, &store, &hangs.reached);
    block_on(async {
        let session = session(&agent, &store).await;
        let outcome = session.resume().await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
        assert_eq!(session.pending().await.unwrap()[0].reason, AskReason::MayHaveHappened);
        assert_eq!(hangs.keys().len(), 1);
        let outcome = session.resume().decide(id_at(&session, "c1").await, Decision::Approve).await.unwrap();
        assert_eq!(outcome.text(), "done");
    });
    let keys = hangs.keys();
    assert_eq!((keys.len(), &keys[0]), (2, &keys[1]));
}

/// What an agent that is a tool does is in the record as it happens: it continues where it was, and its own call is the one
/// whose outcome is unknown.
#[test]
fn an_agent_that_is_a_tool_continues_where_it_was() {
    let (hangs, store) = (Hangs::new(), memory());
    let inner = Agent::builder(script("assistant: > i1 pay()\nassistant: I do not know whether I paid"));
    let inner = inner.tools([hangs.tool(Effect::AtMostOnce)]).build().unwrap();
    let model = script("assistant: > c1 clerk(task=\"pay\")\nassistant: done");
    let clerk = inner.as_tool("clerk", "Pays bills.").build().unwrap();
    let agent = Agent::builder(model).tools([clerk]).build().unwrap();
    dies(&agent, &store, &hangs.reached);
    let transcript = block_on(resumed(&agent, &store));
    assert!(transcript.contains("tool c1:   I do not know whether I paid"), "{transcript}");
    let unknown = block_on(async { session(&agent, &store).await.last_run().await.unwrap().unwrap() });
    assert_eq!(unknown.unknown_calls().iter().map(|call| &*call.id).collect::<Vec<_>>(), ["c1/i1"]);
    assert_eq!(hangs.keys().len(), 1);
}

/// `temp:` lasts through a pause in one process. It is never stored, so another one continues without it.
#[tokio::test]
async fn temporary_values_are_lost_with_the_process() {
    for (same_process, expected) in [(true, json!("red")), (false, Value::Null)] {
        let seen = Arc::new(Mutex::new(None));
        let told = Arc::clone(&seen);
        let look = move |context: ToolContext| {
            *told.lock().unwrap() =
                Some(context.state().get("temp:ink").map_or(Value::Null, ValueRef::to_json));
            async { Ok::<_, ToolError>("seen") }
        };
        let look = Tool::new("look", "Looks.", look).reads(["temp:ink"]).approval(Approval::Always);
        let agent = Agent::builder(script("assistant: > c1 look()\nassistant: done"))
            .schema(Schema::builder().key::<String>("temp:ink").build().unwrap())
            .tools([look.build().unwrap()])
            .build()
            .unwrap();
        let store = memory();
        let first = session(&agent, &store).await;
        first.run(Input::from("go").with_values(json!({"temp:ink": "red"}))).await.unwrap();
        let next = if same_process { first.clone() } else { session(&agent, &store).await };
        next.resume().decide(id_at(&next, "c1").await, Decision::Approve).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), Some(expected));
        let stored = first.read(EventRange::All).await.unwrap();
        assert!(!serde_json::to_string(&stored.to_json()).unwrap().contains("red"));
    }
}

/// Is away for three appends of an outcome.
struct Away(AtomicU32);

impl Watch for Away {
    async fn before(&self, request: &AppendEvent) -> Result<(), SessionError> {
        if request.event.kind.as_str() == "answered" && self.0.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(SessionError::Unavailable { what: "append an event", source: "it is away".into() });
        }
        Ok(())
    }
}

/// An append that failed in passing is repeated, and a call that ran is not run again for it.
#[tokio::test(start_paused = true)]
async fn an_append_that_failed_in_passing_is_repeated() {
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let pay = move || {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>("paid") }
    };
    let pay = Tool::new("pay", "Pays.", pay).build().unwrap();
    let agent =
        Agent::builder(script("assistant: > c1 pay()\nassistant: done")).tools([pay]).build().unwrap();
    let store = Watched { store: memory(), watch: Away(AtomicU32::new(0)) };
    let session = Runner::builder(agent, store).build().session("ada", "s1").await.unwrap();
    assert_eq!(session.run("go").await.unwrap().text(), "done");
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}
