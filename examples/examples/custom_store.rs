//! A store of your own: one that keeps an audit trail beside any other, and passes the exam of all stores.
//!
//! `cargo run -p stepfold-examples --example custom_store`

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use stepfold::exam::StoreExam;
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::{
    AppendEvent, BudgetBalance, BudgetRaise, Claim, ClaimSession, CreateSession, DeleteSession, Deleted,
    DequeueInput, EnqueueInput, Enqueued, EraseData, ErasedData, ErasureRecord, EventSizes, ForkInfo,
    ForkSession, GetSession, InboxEntry, Label, LabelVersion, ListErasures, ListForks, ListRaises,
    ListSessions, ListSpend, ListUnattended, ListUsers, MemoryStore, PruneSession, Pruned, RaiseBudgets,
    ReadBudgets, ReadInbox, ReadLabels, Receipt, ReleaseClaim, RenewClaim, Renewed, ReserveSpend,
    RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionKey, SessionPage, SessionStore,
    SettleOpen, SettleSpend, SpendRecord, Unattended, UserId, VacuumStore, Verified, VerifySessions,
    WriteScope,
};
use stepfold_examples::say;

/// Notes who wrote which keys of which session, once it is committed.
struct Audited<S> {
    inner: S,
    trail: Trail,
}

/// The audit trail; a real one is a file or a queue.
#[derive(Clone, Default)]
struct Trail(Arc<Mutex<Vec<String>>>);

impl Trail {
    fn note(&self, key: &SessionKey, what: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{key}: {what}"));
    }
}

impl<S: SessionStore> SessionStore for Audited<S> {
    async fn create(&self, request: CreateSession) -> Result<Session, SessionError> {
        let session = self.inner.create(request).await?;
        self.trail.note(&session.key, "created");
        Ok(session)
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        self.inner.get(request).await
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.inner.list(request).await
    }

    async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
        let key = request.key.clone();
        let deleted = self.inner.delete(request).await?;
        self.trail.note(&key, "deleted");
        Ok(deleted)
    }

    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let (key, author) = (request.key.clone(), request.event.author.clone());
        let writes = request.event.actions.delta.iter();
        let written: Vec<String> = writes.map(|write| write.key().to_owned()).collect();
        let receipt = self.inner.append(request).await?;
        self.trail.note(&key, &format!("version {} by {author}, wrote {written:?}", receipt.version));
        Ok(receipt)
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        let forked = self.inner.fork(request).await?;
        self.trail.note(&forked.key, "forked");
        Ok(forked)
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        let key = request.key.clone();
        let receipt = self.inner.rewind(request).await?;
        self.trail.note(&key, "rewound");
        Ok(receipt)
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
        self.inner.read_scope(scope).await
    }

    async fn write_scope(&self, request: WriteScope) -> Result<ScopeValues, SessionError> {
        self.inner.write_scope(request).await
    }

    async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
        self.inner.prune(request).await
    }

    async fn verify(&self, request: VerifySessions) -> Result<Verified, SessionError> {
        self.inner.verify(request).await
    }

    async fn event_sizes(&self, request: EventSizes) -> Result<Vec<(u64, u64)>, SessionError> {
        self.inner.event_sizes(request).await
    }

    async fn forks(&self, request: ListForks) -> Result<Vec<ForkInfo>, SessionError> {
        self.inner.forks(request).await
    }

    async fn users(&self, request: ListUsers) -> Result<Vec<UserId>, SessionError> {
        self.inner.users(request).await
    }

    async fn unattended(&self, request: ListUnattended) -> Result<Vec<Unattended>, SessionError> {
        self.inner.unattended(request).await
    }

    async fn set_label(&self, request: LabelVersion) -> Result<Option<u64>, SessionError> {
        self.inner.set_label(request).await
    }

    async fn labels(&self, request: ReadLabels) -> Result<Vec<(Label, u64)>, SessionError> {
        self.inner.labels(request).await
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        self.inner.claim(request).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.inner.renew(request).await
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        self.inner.release(request).await
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        self.inner.enqueue(request).await
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        self.inner.inbox(request).await
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        self.inner.dequeue(request).await
    }

    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        self.inner.reserve(request).await
    }

    async fn settle(&self, request: SettleSpend) -> Result<bool, SessionError> {
        self.inner.settle(request).await
    }

    async fn settle_open(&self, request: SettleOpen) -> Result<u64, SessionError> {
        self.inner.settle_open(request).await
    }

    async fn balances(&self, request: ReadBudgets) -> Result<Vec<BudgetBalance>, SessionError> {
        self.inner.balances(request).await
    }

    async fn raise_budgets(&self, request: RaiseBudgets) -> Result<(), SessionError> {
        self.inner.raise_budgets(request).await
    }

    async fn raises(&self, request: ListRaises) -> Result<Vec<BudgetRaise>, SessionError> {
        self.inner.raises(request).await
    }

    async fn spend(&self, request: ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
        self.inner.spend(request).await
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        self.inner.erase(request).await
    }

    async fn erasures(&self, request: ListErasures) -> Result<Vec<ErasureRecord>, SessionError> {
        self.inner.erasures(request).await
    }

    async fn vacuum(&self, request: VacuumStore) -> Result<(), SessionError> {
        self.inner.vacuum(request).await
    }
}

/// Counts a visit.
#[tool(writes(["app:visits"]))]
async fn visit(state: StateWriter) -> Result<&'static str, ToolError> {
    state.set("app:visits", 1)?;
    Ok("counted")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let exam = StoreExam::new("audited", async || {
        Ok(Audited { inner: MemoryStore::new(), trail: Trail::default() })
    });
    let passed = exam.run().await.passed().map_err(|report| report.to_string())?;
    say(format_args!("the store passes all {} cases", passed.len()));

    let trail = Trail::default();
    let store = Audited { inner: MemoryStore::new(), trail: trail.clone() };
    let model = Scripted::conversation("assistant: > c1 visit()\nassistant: welcome")?;
    let agent = Agent::builder(model)
        .schema(Schema::builder().key::<u64>("app:visits").handler(Handler::sum()).build()?)
        .tool(visit_tool())
        .build()?;
    let runner = Runner::builder(agent, store).app("shop")?.build();
    runner.session("ada", "monday").await?.run("hello").await?;
    let trail = trail.0.lock().unwrap_or_else(PoisonError::into_inner);
    say(trail.join("\n"));
    assert!(trail.iter().any(|line| line.ends_with(r#"wrote ["app:visits"]"#)));
    Ok(())
}
