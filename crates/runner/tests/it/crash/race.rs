//! Two workers that resume one run at the same moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, WallClock};
use stepfold_session_scopes::{AnyStore, AppendEvent, MemoryStore, SessionError, SessionStore, Timestamp};
use stepfold_tools::{Tool, ToolError};
use tokio::sync::Barrier;

use super::store::{Plain, Watch, Watched};

/// A store that breaks at the append of an event of this kind.
struct BreaksAt(&'static str);

impl Watch for BreaksAt {
    async fn before(&self, request: &AppendEvent) -> Result<(), SessionError> {
        match request.event.kind.as_str() == self.0 {
            true => Err(SessionError::Store { what: "append an event", source: "it broke".into() }),
            false => Ok(()),
        }
    }
}

/// No worker marks a call before both are about to.
struct Together(Arc<Barrier>);

impl Watch for Together {
    async fn before(&self, request: &AppendEvent) -> Result<(), SessionError> {
        if request.event.kind.as_str() == "started" {
            self.0.wait().await;
        }
        Ok(())
    }
}

/// Both clocks say the same, so that what the workers write is the same to the last bit.
struct Still;

impl WallClock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }
}

fn runner(agent: &Agent, store: impl SessionStore) -> Runner {
    Runner::builder(agent.clone(), store).clock(Still).build()
}

/// The marker belongs to one of them, also when both would write the same: the store knows a repeated append
/// by the id of the event, and would tell both that theirs was made.
#[tokio::test(start_paused = true)]
async fn only_one_of_two_workers_starts_a_call() {
    let paid = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&paid);
    let pay = move || {
        let count = Arc::clone(&count);
        async move { Ok::<_, ToolError>(count.fetch_add(1, Ordering::SeqCst)) }
    };
    let model = Script::parse("assistant: > c1 pay()\nassistant: done").unwrap();
    let pay = Tool::new("pay", "Pays.", pay).build().unwrap();
    let agent = Agent::builder(model).tools([pay]).build().unwrap();
    // With claims, only one of them would come so far.
    let store = AnyStore::new(Plain(AnyStore::new(MemoryStore::new())));
    let watched = Watched { store: store.clone(), watch: BreaksAt("started") };
    let broken = runner(&agent, watched).session("ada", "s1").await.unwrap();
    assert!(matches!(broken.run("pay").await, Err(RunnerError { kind: RunnerErrorKind::Store { .. }, .. })));

    let barrier = Arc::new(Barrier::new(2));
    let worker = || {
        let watched = Watched { store: store.clone(), watch: Together(Arc::clone(&barrier)) };
        let (runner, first) = (runner(&agent, watched), Arc::clone(&barrier));
        async move {
            let session = runner.session("ada", "s1").await.unwrap();
            first.wait().await;
            session.resume().await
        }
    };
    let (one, other) = tokio::join!(worker(), worker());
    assert_eq!(paid.load(Ordering::SeqCst), 1);
    let (winner, loser) = if one.is_ok() { (one, other) } else { (other, one) };
    assert_eq!(winner.unwrap().text(), "done");
    assert!(matches!(loser, Err(RunnerError { kind: RunnerErrorKind::Conflict { .. }, .. })), "{loser:?}");
}
