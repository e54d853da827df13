//! Raises at every moment of a run that is refused: a recovery that looks for runs after the raise continues it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Exit};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Author, BudgetBalance, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, ForkSession, GetSession, InboxEntry, ListSessions, MemoryStore,
    PruneSession, Pruned, RaiseBudgets, ReadBudgets, ReadInbox, Receipt, ReleaseClaim, RenewClaim, Renewed,
    ReserveSpend, RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage, SessionStore,
    SettleOpen, SettleSpend, WriteScope,
};
use stepfold_runner::{Budget, BudgetSpender, RecoverOptions, Runner};

use crate::world::exit_of_last_run;

/// The store of a process, before one of whose operations something else happens.
#[derive(Clone)]
struct Interrupted {
    store: AnyStore,
    operations: Arc<AtomicU64>,
    at: u64,
    meanwhile: Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl Interrupted {
    async fn interrupt(&self) {
        if self.operations.fetch_add(1, Ordering::SeqCst) == self.at {
            (self.meanwhile)().await;
        }
    }
}

macro_rules! interrupted {
    ($($method:ident: $request:ty => $answer:ty;)*) => {
        $(async fn $method(&self, request: $request) -> Result<$answer, SessionError> {
            self.interrupt().await;
            self.store.$method(request).await
        })*
    };
}

impl SessionStore for Interrupted {
    interrupted! {
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
        reserve: ReserveSpend => Vec<BudgetBalance>;
        settle: SettleSpend => bool;
        settle_open: SettleOpen => u64;
        balances: ReadBudgets => Vec<BudgetBalance>;
        raise_budgets: RaiseBudgets => ();
    }

    fn reserves_with_appends(&self) -> bool {
        self.store.reserves_with_appends()
    }
}

fn process(store: impl SessionStore) -> Runner {
    let agent = Agent::builder(Script::parse("assistant: done").unwrap()).build().unwrap();
    Runner::builder(agent, store).app("shop").unwrap().budget(Budget::requests("all", 0)).build()
}

/// A run that is refused, from its beginning or from its stored question on, while a budget is raised before an operation of
/// its worker, and another process looks for runs before the worker continues. Whether there was such an operation.
async fn is_continued(at: u64, is_resumed: bool) -> bool {
    let store = AnyStore::new(MemoryStore::new());
    let recovering = process(store.clone());
    if is_resumed {
        process(store.clone()).session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    }
    let recovery = tokio::spawn(recovering.recover(RecoverOptions::new().poll(Duration::from_secs(1))));
    // NOTE: its first scan is over, so that it looks again after the raise only.
    // tidy: allow sleep, because the clock of the test stands still otherwise.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let raising = recovering.clone();
    let raise = move || {
        let raising = raising.clone();
        async move {
            let carol = Author::new("carol").unwrap();
            raising.raise_budget(&BudgetSpender::new(), "all", 1, &carol).await.unwrap();
            // tidy: allow sleep, because the other process looks meanwhile.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        .boxed()
    };
    let operations = Arc::new(AtomicU64::new(0));
    let interrupted = Interrupted {
        store: store.clone(),
        operations: Arc::clone(&operations),
        at,
        meanwhile: Arc::new(raise),
    };
    let worker = process(interrupted);
    let session = worker.session("ada", "s1").await.unwrap();
    match is_resumed {
        true => drop(session.resume().await),
        false => drop(session.run("hello").await),
    }
    worker.shutdown(Duration::from_secs(10)).await;
    let was_raised = operations.load(Ordering::SeqCst) > at;
    if was_raised {
        // tidy: allow sleep, because the other process works meanwhile.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let session = recovering.session("ada", "s1").await.unwrap();
        assert_eq!(
            exit_of_last_run(&session).await,
            Some(Exit::Text),
            "raised before operation {at}, {is_resumed}"
        );
    }
    recovering.shutdown(Duration::from_secs(10)).await;
    recovery.await.unwrap().unwrap();
    was_raised
}

#[tokio::test(start_paused = true)]
async fn a_raise_at_any_moment_continues_the_run_that_it_has_room_for() {
    for is_resumed in [false, true] {
        let mut at = 0;
        while is_continued(at, is_resumed).await {
            at += 1;
        }
        assert!(at > 4, "{at} operations");
    }
}
