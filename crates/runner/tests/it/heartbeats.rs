//! The heartbeat of a worker: one request for all of its claims, and a lost claim stops its own run only.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, ForkSession, GetSession, InboxEntry, ListSessions, MemoryStore, PruneSession,
    Pruned, ReadInbox, Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed, RewindSession, ScopeKey,
    ScopeValues, Session, SessionError, SessionPage, SessionStore, Timestamp, WorkerId, WriteScope,
};
use stepfold_runner::{Runner, RunnerErrorKind};
use stepfold_tools::{Effect, Tool, ToolError};
use tokio::sync::Semaphore;

use crate::world::{hand_on, over_each_store};

/// A store that counts heartbeats.
#[derive(Clone)]
struct Counting {
    store: AnyStore,
    /// How many claims each request renewed.
    together: Arc<Mutex<Vec<usize>>>,
    alone: Arc<AtomicUsize>,
}

impl SessionStore for Counting {
    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.alone.fetch_add(1, Ordering::SeqCst);
        self.store.renew(request).await
    }

    async fn renew_all(
        &self,
        request: RenewClaims,
    ) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
        self.together.lock().unwrap().push(request.claims.len());
        self.store.renew_all(request).await
    }

    hand_on! { store =>
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        append: AppendEvent => Receipt;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        claim: ClaimSession => Claim;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
    }
}

const SESSIONS: usize = 20;

/// Short, so that a run in a call outlives it many times.
const CLAIM: Duration = Duration::from_millis(600);

/// Calls that wait until they are let go.
struct Gate {
    permits: Semaphore,
    waiting: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Gate { permits: Semaphore::new(0), waiting: AtomicUsize::new(0) })
    }
}

fn agent(gate: &Arc<Gate>) -> Agent {
    let gate = Arc::clone(gate);
    let wait = move || {
        let gate = Arc::clone(&gate);
        async move {
            gate.waiting.fetch_add(1, Ordering::SeqCst);
            gate.permits.acquire().await.map_err(ToolError::fatal)?.forget();
            Ok::<_, ToolError>("done")
        }
    };
    let tool = Tool::new("wait", "Waits.", wait).effect(Effect::AtMostOnce).build().unwrap();
    let script = Script::parse("assistant: > c1 wait()\nassistant: done").unwrap();
    Agent::builder(script).tools([tool]).build().unwrap()
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        // tidy: allow sleep, because the heartbeat has a pace of its own
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn heartbeats(store: AnyStore) {
    let store = Counting { store, together: Arc::default(), alone: Arc::default() };
    let gate = Gate::new();
    let runner = Runner::builder(agent(&gate), store.clone()).app("beats").unwrap().claim_for(CLAIM).build();
    let mut runs = Vec::new();
    for number in 0..SESSIONS {
        let session = runner.session("ada", format!("s{number}")).await.unwrap();
        let invocation = session.send("go").await.unwrap();
        runs.push(tokio::spawn(async move { invocation.outcome().await }));
    }
    // Until all wait in their calls, an append may hold a row, whose claim is then renewed alone: by the beat of then, at the
    // latest, which the second one after it follows.
    until(|| gate.waiting.load(Ordering::SeqCst) == SESSIONS).await;
    let beats = || store.together.lock().unwrap().len();
    let all_wait = beats();
    until(|| beats() >= all_wait + 2).await;
    let (begun, alone) = (beats(), store.alone.load(Ordering::SeqCst));
    let claims =
        || store.together.lock().unwrap()[begun..].iter().filter(|claims| **claims == SESSIONS).count();
    // Beyond the expiry of any claim that was not renewed.
    until(|| claims() >= 6).await;
    assert_eq!(store.alone.load(Ordering::SeqCst), alone);

    // Another worker takes one of them.
    let key = runner.key("ada", "s7").unwrap();
    let thief = WorkerId::new("thief").unwrap();
    let take = ClaimSession::new(key, thief, Duration::from_secs(600), Timestamp::from_micros(i64::MAX / 4));
    store.store.claim(take.take_over()).await.unwrap();
    let lost = runs.remove(7).await.unwrap().unwrap_err();
    assert!(matches!(lost.kind, RunnerErrorKind::ClaimLost { .. }), "{lost}");
    let rest = || store.together.lock().unwrap().last() == Some(&(SESSIONS - 1));
    until(rest).await;
    gate.permits.add_permits(SESSIONS);
    for run in runs {
        assert_eq!(run.await.unwrap().unwrap().text(), "done");
    }
    assert_eq!(runner.load().claims, 0);
    // It ends with the last run, and does not keep the runner at work.
    assert!(runner.shutdown(Duration::from_secs(60)).await);
}

over_each_store!(claims_are_renewed_by_one_request: heartbeats);

/// A runner that is used from two runtimes keeps the claims of one when the other ends.
#[test]
fn the_heartbeat_outlives_the_runtime_that_began_it() {
    let store = Counting {
        store: AnyStore::new(MemoryStore::new()),
        together: Arc::default(),
        alone: Arc::default(),
    };
    let gate = Gate::new();
    let runner = Runner::builder(agent(&gate), store.clone()).claim_for(CLAIM).build();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let start = |id: &str| {
        let (runner, id) = (runner.clone(), id.to_owned());
        async move { runner.session("ada", id).await.unwrap().send("go").await.unwrap() }
    };
    let beats = || store.together.lock().unwrap().len();
    let one = first.block_on(start("s1"));
    second.block_on(until(|| beats() >= 1));
    let two = second.block_on(start("s2"));
    drop(one);
    first.shutdown_background();
    let before = beats();
    second.block_on(async {
        until(|| beats() >= before + 6).await;
        gate.permits.add_permits(2);
        assert_eq!(two.outcome().await.unwrap().text(), "done");
    });
}
