//! What a model was shown at a step: found in a long history, which is read once.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, HookAction, HookContext};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, CreateSession, DeleteSession, Deleted, ForkSession, GetSession, ListSessions,
    MemoryStore, PruneSession, Pruned, Receipt, RewindSession, ScopeKey, ScopeValues, Session, SessionError,
    SessionPage, SessionStore, WriteScope,
};
use stepfold_runner::{Runner, SessionHandle};
use stepfold_tools::{Tool, ToolError};

use crate::world::hand_on;

/// A store that counts the events that are read from it.
struct Counting {
    store: AnyStore,
    events: Arc<AtomicUsize>,
}

impl SessionStore for Counting {
    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        let session = self.store.get(request).await?;
        self.events.fetch_add(session.events.len(), Ordering::SeqCst);
        Ok(session)
    }

    hand_on! { store =>
        create: CreateSession => Session;
        append: AppendEvent => Receipt;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }
}

/// The session of an agent with a script, and the count of what is read of it.
async fn session(script: &str) -> (SessionHandle, Arc<AtomicUsize>) {
    let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>("nothing")).build().unwrap();
    let agent = Agent::builder(Script::parse(script).unwrap())
        .tools([look])
        // Outcomes are then commits of their own, as far as they end one by one.
        .after_tool(async |_: HookContext| Ok(HookAction::proceed()))
        .build()
        .unwrap();
    let events = Arc::<AtomicUsize>::default();
    let store = Counting { store: AnyStore::new(MemoryStore::new()), events: Arc::clone(&events) };
    let runner = Runner::builder(agent, store).build();
    (runner.session("ada", "s1").await.unwrap(), events)
}

#[tokio::test]
async fn a_step_of_a_long_session_reads_its_history_once() {
    let turns = 200;
    let (session, read) = session(&"assistant: yes\n".repeat(turns)).await;
    for turn in 0..turns {
        session.run(format!("turn {turn}")).await.unwrap();
    }
    let events = 2 * turns;
    for (version, shown) in [(events, events - 1), (events / 2, events / 2 - 1), (1, 1)] {
        let before = read.load(Ordering::SeqCst);
        let step = session.model_step(Some(version as u64), None).await.unwrap().unwrap();
        // The conversation before the reply, to its first message.
        assert_eq!(step.run.request().messages.len(), shown);
        let read = read.load(Ordering::SeqCst) - before;
        assert!(read <= version + 64, "{read} events were read of {version}");
    }
}

#[tokio::test]
async fn a_reply_is_found_however_many_commits_its_step_has() {
    let calls = 100;
    let mut script = String::from("assistant:");
    for call in 0..calls {
        write!(script, " > c{call} look()  ").unwrap();
    }
    script.push_str("\nassistant: nothing\n");
    let (session, _) = session(&script).await;
    session.run("look everywhere").await.unwrap();
    let newest = session.read(stepfold_session_scopes::EventRange::None).await.unwrap().version;
    assert!(newest > 2 + 64, "it has {newest} commits");
    // Each commit of the step is one of the first reply, the last one of the second.
    for version in [2, 3, 65, 66, newest - 1] {
        let step = session.model_step(Some(version), None).await.unwrap().unwrap();
        let (reply, _) = step.reply.unwrap();
        assert_eq!((reply, step.run.steps(), step.run.request().messages.len()), (2, 0, 1), "{version}");
    }
    let last = session.model_step(None, None).await.unwrap().unwrap();
    assert_eq!(last.reply.map(|(version, _)| version), Some(newest));
    assert_eq!(last.run.steps(), 1);
    // The run began, and the model has not replied.
    let first = session.model_step(Some(1), None).await.unwrap().unwrap();
    assert!(first.reply.is_none() && first.run.steps() == 0);
}
