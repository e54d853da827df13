//! Marks of sessions that wait for a worker: what another worker leaves between a look and a claim stays listed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, Exit, Pause};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, FindEvent, FindTagged, ForkSession, GetSession, InboxEntry, ListSessions,
    ListUnattended, ListUsers, MemoryStore, PruneSession, Pruned, ReadInbox, Receipt, ReleaseClaim,
    RenewClaim, Renewed, RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage,
    SessionStore, Unattended, UserId, WorkerId, WriteScope,
};
use stepfold_runner::{Runner, RunnerErrorKind, WallClock, WhenChanged};
use stepfold_state_core::chat::{ModelError, ModelErrorKind};
use stepfold_tools::{Tool, ToolContext, ToolError};

use crate::world::{ManualClock, exit_of_last_run, hand_on, recover};

const MINUTE: Duration = Duration::from_secs(60);
const CLAIM: Duration = Duration::from_secs(10);

/// The number of a claim, and what another worker does before it.
type PlannedAction = (usize, BoxFuture<'static, ()>);

/// A store in which another worker acts just before a claim.
#[derive(Clone)]
struct Between {
    store: AnyStore,
    /// The claim before which it acts, counted from 0, and the action.
    action: Arc<Mutex<Option<PlannedAction>>>,
    claims: Arc<AtomicUsize>,
}

impl Between {
    fn new(store: AnyStore) -> Self {
        Between { store, action: Arc::default(), claims: Arc::default() }
    }

    /// Has this done before the claim with this number from now on.
    fn before_claim(&self, number: usize, action: impl Future<Output = ()> + Send + 'static) {
        let number = self.claims.load(Ordering::SeqCst) + number;
        *self.action.lock().unwrap() = Some((number, Box::pin(action)));
    }

    fn take_action(&self) -> Option<BoxFuture<'static, ()>> {
        let number = self.claims.fetch_add(1, Ordering::SeqCst);
        let mut action = self.action.lock().unwrap();
        let (_, action) = action.take_if(|(before, _)| *before == number)?;
        Some(action)
    }

    fn has_acted(&self) -> bool {
        self.action.lock().unwrap().is_none()
    }
}

impl SessionStore for Between {
    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        if let Some(action) = self.take_action() {
            action.await;
        }
        self.store.claim(request).await
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
        users: ListUsers => Vec<UserId>;
        unattended: ListUnattended => Vec<Unattended>;
        find_event: FindEvent => Option<u64>;
        find_tagged: FindTagged => Vec<Option<u64>>;
        renew: RenewClaim => Renewed;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
    }
}

/// Orders a taxi, for which it waits; then the model answers, or is overloaded.
fn agent(answers: bool) -> Agent {
    let taxi =
        async |context: ToolContext| Ok::<_, ToolError>(context.later("taxi").within(MINUTE * 5).outcome()?);
    let tool = Tool::new("taxi", "Orders a taxi.", taxi).build().unwrap();
    let script = if answers {
        Script::parse("assistant: > c1 taxi()\nassistant: done").unwrap()
    } else {
        let overloaded = ModelError::new(ModelErrorKind::Overloaded, "come back later");
        Script::parse("assistant: > c1 taxi()").unwrap().then_fail(overloaded)
    };
    Agent::builder(script).tools([tool]).build().unwrap()
}

fn runner<S: SessionStore + 'static>(worker: &str, agent: Agent, store: S, clock: &ManualClock) -> Runner {
    let runner = Runner::builder(agent, store).app("marks").unwrap().worker(worker).unwrap();
    // Each continues its own runs.
    runner.when_changed(WhenChanged::Refuse).clock(clock.clone()).claim_for(CLAIM).build()
}

/// Delivers what a session waits for, by a worker whose model then fails.
async fn leaves_unfinished(runner: Runner, id: &'static str) {
    let session = runner.session("ada", id).await.unwrap();
    let token = session.pending().await.unwrap().remove(0).token.unwrap();
    runner.complete(&token, Ok(json!(3))).await.unwrap();
    if let Some(running) = session.running() {
        running.outcome().await.unwrap_err();
    }
    assert_eq!(exit_of_last_run(&session).await, None);
}

#[tokio::test]
async fn a_fork_that_another_worker_left_unfinished_stays_listed() {
    let (clock, store) = (ManualClock::new(), AnyStore::new(MemoryStore::new()));
    let between = Between::new(store.clone());
    let first = runner("a", agent(true), between.clone(), &clock);
    let session = first.session("ada", "s1").await.unwrap();
    assert_eq!(session.run("a taxi, please").await.unwrap().exit(), &Exit::Paused(Pause::Approval));

    // The fork is claimed once, to note its deadline.
    let second = runner("b", agent(false), store.clone(), &clock);
    between.before_claim(0, leaves_unfinished(second, "fork"));
    let fork = session.fork("fork", None).await.unwrap();
    assert!(between.has_acted());

    let third = runner("c", agent(true), store, &clock);
    recover(&third).await;
    assert_eq!(exit_of_last_run(&third.session("ada", "fork").await.unwrap()).await, Some(Exit::Text));
    assert_eq!(exit_of_last_run(&fork).await, Some(Exit::Text));
}

/// A worker died with a claim on a session without work; one that clears the claim may come late, before any of its claims.
#[tokio::test]
async fn a_run_that_was_left_while_a_claim_is_cleared_stays_listed() {
    for number in 0..3 {
        let clock = ManualClock::new();
        let store = AnyStore::new(MemoryStore::new());
        let between = Between::new(store.clone());
        let first = runner("a", agent(true), between.clone(), &clock);
        let session = first.session("ada", "s1").await.unwrap();
        let dead = WorkerId::new("dead").unwrap();
        let claim = ClaimSession::new(session.key().clone(), dead, CLAIM, clock.now());
        store.claim(claim).await.unwrap();
        clock.advance(MINUTE);

        let overloaded = ModelError::new(ModelErrorKind::Overloaded, "come back later");
        let fails = Agent::builder(Script::parse("").unwrap().then_fail(overloaded)).build().unwrap();
        let second = runner("b", fails, store.clone(), &clock);
        between.before_claim(number, async move {
            let error = second.session("ada", "s1").await.unwrap().run("hello").await.unwrap_err();
            assert!(matches!(error.kind, RunnerErrorKind::Run { .. }), "{error}");
        });
        recover(&first).await;
        if !between.has_acted() {
            assert!(number > 0, "the claim is taken to be cleared");
            continue;
        }

        let answers = Agent::builder(Script::parse("assistant: hi").unwrap()).build().unwrap();
        let third = runner("c", answers, store, &clock);
        recover(&third).await;
        let session = third.session("ada", "s1").await.unwrap();
        assert_eq!(exit_of_last_run(&session).await, Some(Exit::Text), "before claim {number}");
    }
}
