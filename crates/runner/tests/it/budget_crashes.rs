//! Reservations after lost answers, dropped runs and dead workers: none is left open, and none counts that was not sent.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, RunFault};
use stepfold_graph::{END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_runner::session_scopes::{
    AnyStore, AppId, AppendEvent, BudgetAmount, BudgetBalance, BudgetId, Claim, ClaimSession, CreateSession,
    DeleteSession, Deleted, DequeueInput, EnqueueInput, Enqueued, ForkSession, GetSession, InboxEntry,
    ListSessions, ListSpend, MemoryStore, PruneSession, Pruned, ReadBudgets, ReadInbox, Receipt,
    ReleaseClaim, RenewClaim, Renewed, ReservationId, ReserveSpend, RewindSession, ScopeKey, ScopeValues,
    Session, SessionError, SessionKey, SessionPage, SessionStore, SettleOpen, SettleSpend, SpendAmounts,
    SpendRecord, SpendState, Timestamp, WriteScope,
};
use stepfold_runner::{Budget, Runner, RunnerErrorKind};

use crate::world::hand_on;

/// A store whose answers to reservations are lost.
#[derive(Clone)]
struct Losing {
    store: AnyStore,
    reservations: Arc<AtomicU64>,
    /// From this reservation on, counted from 0, answers are lost.
    lost_from: u64,
    /// Whether an answer never comes, rather than being an error.
    hangs: bool,
}

impl Losing {
    fn from(lost_from: u64, hangs: bool) -> Self {
        let store = AnyStore::new(MemoryStore::new());
        Losing { store, reservations: Arc::default(), lost_from, hangs }
    }

    async fn open(&self) -> usize {
        spend(&self.store).await.iter().filter(|record| record.state == SpendState::Reserved).count()
    }

    async fn sums(&self) -> (u64, u64) {
        let budget = BudgetId::new(r#"[["app","shop"],"all","requests","ever"]"#).unwrap();
        let read = self.store.balances(ReadBudgets::new([budget])).await.unwrap();
        (read[0].settled, read[0].reserved)
    }
}

impl SessionStore for Losing {
    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        let number = self.reservations.fetch_add(1, Ordering::SeqCst);
        let reserved = self.store.reserve(request).await;
        match number < self.lost_from {
            true => reserved,
            false if self.hangs && number == self.lost_from => pending().await,
            false if self.hangs => reserved,
            false => Err(SessionError::Unavailable { what: "reserve", source: "it was lost".into() }),
        }
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
        renew: RenewClaim => Renewed;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
        settle: SettleSpend => bool;
        settle_open: SettleOpen => u64;
        balances: ReadBudgets => Vec<BudgetBalance>;
        spend: ListSpend => Vec<SpendRecord>;
    }
}

async fn spend(store: &AnyStore) -> Vec<SpendRecord> {
    store.spend(ListSpend::new(AppId::new("shop").unwrap())).await.unwrap()
}

fn script(text: &str) -> Agent {
    Agent::builder(Script::parse(text).unwrap()).build().unwrap()
}

fn runner(agent: Agent, store: impl SessionStore + 'static) -> Runner {
    Runner::builder(agent, store).app("shop").unwrap().budget(Budget::requests("all", 10)).build()
}

/// The store has reserved, and its answers are lost: the request is not sent, and must not count.
#[tokio::test(start_paused = true)]
async fn a_reservation_whose_answer_is_lost_is_released() {
    let store = Losing::from(0, false);
    let session = runner(script("assistant: done"), store.clone()).session("ada", "s1").await.unwrap();
    let error = session.run("hello").await.unwrap_err();
    let RunnerErrorKind::Run { source } = &error.kind else { panic!("{error}") };
    assert!(matches!(source.fault(), RunFault::Meter(_)), "{error}");
    assert_eq!((store.sums().await, spend(&store.store).await.len()), ((0, 0), 0));
}

/// A run inside is dropped by its timeout while the store reserves: its request was not sent.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_while_it_reserves_leaves_nothing() {
    let store = Losing::from(0, true);
    let rest = async |_: NodeContext| Ok::<_, NodeError>(Update::new().say("done without"));
    let graph = Graph::builder("clerk")
        .node(
            "slow",
            Node::agent(script("assistant: never")).timeout(Duration::from_secs(5)).on_error("rest"),
        )
        .node("rest", Node::new(rest))
        .chain([START, "slow", END])
        .edge("rest", END)
        .build()
        .unwrap();
    let session = runner(graph.into(), store.clone()).session("ada", "s1").await.unwrap();
    session.run("hello").await.unwrap();
    assert_eq!((store.open().await, store.sums().await, spend(&store.store).await.len()), (0, (0, 0), 0));
}

/// A reservation of a worker that died is settled by the next run of the session as well, not only by a resumed one: the run
/// may have been rewound meanwhile.
#[tokio::test]
async fn the_next_run_settles_what_a_dead_worker_has_left() {
    let store = AnyStore::new(MemoryStore::new());
    let runner = runner(script("assistant: one\nassistant: two"), store.clone());
    let session = runner.session("ada", "s1").await.unwrap();
    session.run("hello").await.unwrap();
    let key = SessionKey::new("shop", "ada", "s1").unwrap();
    let (id, at) = (ReservationId::new("of the dead").unwrap(), Timestamp::from_micros(0));
    let budget = BudgetId::new(r#"[["app","shop"],"all","requests","ever"]"#).unwrap();
    let left = ReserveSpend::new(id, key, "m", SpendAmounts::default(), at);
    store.reserve(left.with([BudgetAmount::new(budget, 1, 10)])).await.unwrap();
    session.run("again").await.unwrap();
    let states: Vec<SpendState> = spend(&store).await.iter().map(|record| record.state).collect();
    assert!(!states.contains(&SpendState::Reserved), "{states:?}");
    assert_eq!(states.len(), 3);
}
