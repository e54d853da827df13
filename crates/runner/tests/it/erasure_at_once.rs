//! The same erasure from several processes at once: each is answered, and what another writer adds meanwhile is not taken for
//! an erasure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Author, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, EraseData, ErasedData, ErasureId, ErasureRecord, Event, EventId, ForkInfo,
    ForkSession, GetSession, InboxEntry, InvocationId, ListErasures, ListForks, ListSessions, ListUnattended,
    PruneSession, Pruned, ReadInbox, Receipt, ReleaseClaim, RenewClaim, Renewed, RewindSession, ScopeKey,
    ScopeValues, Session, SessionError, SessionId, SessionPage, SessionSchema, SessionStore, Unattended,
    UserId, VerifySessions, WriteScope,
};
use stepfold_runner::{EraseRequest, ErasureReport, ErasureSubject, Runner, RunnerError};
use stepfold_state_core::state::Schema;

use crate::world::{hand_on, over_each_store};

/// What another process does before an erasure of this one rewinds the session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faster {
    /// The same: it erases the same events.
    Rewinds,
    /// A worker adds an event.
    Appends,
}

/// A store in which another process is faster, so often.
#[derive(Clone)]
struct Contended {
    store: AnyStore,
    faster: Faster,
    left: Arc<AtomicUsize>,
}

impl Contended {
    fn is_slower(&self) -> bool {
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

impl SessionStore for Contended {
    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        if self.is_slower() {
            let (event, run) =
                (EventId::new(format!("other {}", request.event))?, InvocationId::new("other")?);
            let (key, author) = (request.key.clone(), Author::new("admin")?);
            match self.faster {
                Faster::Rewinds => {
                    let rewind =
                        RewindSession::new(key, request.to, request.to, event, run, author, request.at);
                    self.store.rewind(rewind).await?;
                }
                Faster::Appends => {
                    let schema = SessionSchema::new(Schema::default());
                    let event = Event::new(event, run, author, request.at);
                    self.store.append(AppendEvent::new(key, request.to, event, &schema)).await?;
                }
            }
        }
        self.store.rewind(request).await
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        if self.is_slower() {
            self.store.erase(request.clone()).await?;
        }
        self.store.erase(request).await
    }

    hand_on! { store =>
        append: AppendEvent => Receipt;
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        forks: ListForks => Vec<ForkInfo>;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        unattended: ListUnattended => Vec<Unattended>;
        claim: ClaimSession => Claim;
        renew: RenewClaim => Renewed;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
        erasures: ListErasures => Vec<ErasureRecord>;
    }
}

fn runner(store: impl SessionStore) -> Runner {
    let script = Script::parse("assistant: noted\nassistant: again\n").unwrap();
    Runner::builder(Agent::builder(script).build().unwrap(), store).app("phone").unwrap().build()
}

fn contended(store: &AnyStore, faster: Faster, times: usize) -> Runner {
    let left = Arc::new(AtomicUsize::new(times));
    runner(Contended { store: store.clone(), faster, left })
}

/// The subjects in a session of a user.
fn subjects(user: &str) -> [(&'static str, ErasureSubject); 3] {
    let (user, session) = (UserId::new(user).unwrap(), SessionId::new("s").unwrap());
    let versions = [1].into();
    [
        ("events", ErasureSubject::Events { user: user.clone(), session: session.clone(), versions }),
        ("session", ErasureSubject::Session { user: user.clone(), session }),
        ("user", ErasureSubject::User(user)),
    ]
}

async fn erase(runner: &Runner, id: &str, subject: &ErasureSubject) -> Result<ErasureReport, RunnerError> {
    let request = EraseRequest::new(subject.clone(), Author::new("admin").unwrap(), "mail");
    runner.erase(request.with_id(ErasureId::new(id).unwrap())).await
}

/// Another process is faster with the same request: both are answered, and one erasure is recorded.
async fn the_slower_one_of_two_equal_requests_is_answered(store: AnyStore) {
    for (id, subject) in subjects("ada") {
        runner(store.clone()).session("ada", "s").await.unwrap().run("hello").await.unwrap();
        // One erases, and for events rewinds, in between; then the session is rewound some more times.
        for times in [1, 2, 9] {
            let erased = erase(&contended(&store, Faster::Rewinds, times), id, &subject).await;
            let erased = erased.unwrap_or_else(|error| panic!("{id}, {times}: {error}"));
            assert!(erased.events > 0, "{id}, {times}");
        }
    }
    let list = ListErasures::new(runner(store.clone()).key("ada", "s").unwrap().app);
    assert_eq!(store.erasures(list).await.unwrap().len(), 3);
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

/// What a worker has added may repeat the erased content, so the request fails, and finds it when it is repeated.
async fn what_a_worker_adds_before_the_rewind_is_looked_at_again(store: AnyStore) {
    let (id, subject) = subjects("ada")[0].clone();
    runner(store.clone()).session("ada", "s").await.unwrap().run("hello").await.unwrap();
    // The first is that of the store's erasure.
    let error = erase(&contended(&store, Faster::Appends, 2), id, &subject).await.unwrap_err();
    assert!(error.to_string().contains("load it again and retry"), "{error}");
    assert!(erase(&contended(&store, Faster::Appends, 0), id, &subject).await.is_ok());
}

/// Runners of processes of their own erase the same at once.
async fn equal_requests_at_once_converge(store: AnyStore) {
    for round in 0..6 {
        let user = format!("user {round}");
        for (kind, subject) in subjects(&user) {
            runner(store.clone()).session(user.as_str(), "s").await.unwrap().run("hello").await.unwrap();
            let id = format!("{kind} {round}");
            let runners = [(); 4].map(|()| runner(store.clone()));
            let erased = runners.map(|runner| {
                let (id, subject) = (id.clone(), subject.clone());
                tokio::spawn(async move { erase(&runner, &id, &subject).await.map(|report| report.events) })
            });
            for erased in erased {
                let events = erased.await.unwrap().unwrap_or_else(|error| panic!("{id}: {error}"));
                assert!(events > 0, "{id}");
            }
        }
    }
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
}

over_each_store!(one_is_faster: the_slower_one_of_two_equal_requests_is_answered);
over_each_store!(a_worker_is_faster: what_a_worker_adds_before_the_rewind_is_looked_at_again);
over_each_store!(all_at_once: equal_requests_at_once_converge);
