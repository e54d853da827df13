//! A commit wakes the watchers of its session, and no others.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::{Stream, StreamExt};
use stepfold_runner::agent_loop::Agent;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, ForkSession,
    GetSession, ListSessions, MemoryStore, PruneSession, Pruned, Receipt, ReleaseClaim, RenewClaim, Renewed,
    RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage, SessionStore, WriteScope,
};
use stepfold_runner::{Runner, SessionChange};

use crate::notices::Asleep;
use crate::world::{hand_on, process};

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A watcher that waits for the next item of a stream.
struct Waiting<S> {
    stream: S,
    wakes: Arc<Wakes>,
}

impl<S: Stream + Unpin> Waiting<S> {
    fn new(stream: S) -> Self {
        let mut waiting = Waiting { stream, wakes: Arc::default() };
        assert_eq!(waiting.drain(), 0);
        waiting.wakes.0.store(0, Ordering::SeqCst);
        waiting
    }

    /// Reads what is there; the number of items.
    fn drain(&mut self) -> usize {
        let waker = Waker::from(Arc::clone(&self.wakes));
        let mut context = Context::from_waker(&waker);
        let mut items = 0;
        while let Poll::Ready(Some(_)) = Pin::new(&mut self.stream).poll_next(&mut context) {
            items += 1;
        }
        items
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_commit_wakes_those_who_watch_its_session() {
    process(async {
        let agent = Agent::builder(Script::parse("assistant: one\nassistant: two").unwrap()).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).clock(Asleep).build();
        let (mut followers, mut watchers, mut users) = (Vec::new(), Vec::new(), Vec::new());
        let mut sessions = Vec::new();
        for number in 0..100 {
            let session = runner.session(format!("u{number}"), "s1").await.unwrap();
            followers.push(Waiting::new(runner.follow(session.key().clone(), 0)));
            watchers.push(Waiting::new(runner.watch(session.key()).await));
            users.push(Waiting::new(runner.watch(&session.key().user).await));
            sessions.push(session);
        }
        sessions[7].run("hello").await.unwrap();
        for number in 0..100 {
            let is_own = usize::from(number == 7);
            // Once each: what comes before it has looked does not wake it again.
            assert_eq!(followers[number].wakes(), is_own, "follower {number}");
            assert_eq!(watchers[number].wakes(), is_own, "watcher {number}");
            assert_eq!(users[number].wakes(), is_own, "watcher of the user {number}");
        }
        assert_eq!(followers[7].drain(), 2, "commits");
        assert_eq!(watchers[7].drain(), 1, "the newest change");
        assert_eq!(users[7].drain(), 3, "two commits, and the end of the invocation");
        // All of them again, when there are no others.
        for number in (0..100).filter(|number| *number != 7) {
            assert_eq!(followers[number].drain() + watchers[number].drain() + users[number].drain(), 0);
        }
    });
}

/// A watcher that comes late is told of what happens after it came.
#[test]
fn a_late_watcher_is_told_what_follows() {
    process(async {
        let agent = Agent::builder(Script::parse("assistant: one\nassistant: two").unwrap()).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).clock(Asleep).build();
        let session = runner.session("ada", "s1").await.unwrap();
        let mut first = runner.watch(session.key()).await;
        session.run("hello").await.unwrap();
        let mut late = Waiting::new(runner.watch(session.key()).await);
        session.run("again").await.unwrap();
        assert_eq!(late.drain(), 1);
        let newest = SessionChange::Changed { key: session.key().clone(), version: 4, is_running: false };
        assert_eq!(first.next().await, Some(newest));
    });
}

/// A store in which others run before a claim is given back.
#[derive(Clone)]
struct SlowRelease {
    store: AnyStore,
}

impl SessionStore for SlowRelease {
    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.store.release(request).await
    }

    hand_on! { store =>
        get: GetSession => Session;
        create: CreateSession => Session;
        append: AppendEvent => Receipt;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        claim: ClaimSession => Claim;
        renew: RenewClaim => Renewed;
    }
}

/// A watcher that is told that nothing runs finds nothing running, although a failed run gives its claim back.
#[test]
fn a_watcher_is_told_of_the_end_after_it() {
    process(async {
        let agent = Agent::builder(Script::parse("").unwrap()).build().unwrap();
        let store = SlowRelease { store: AnyStore::new(MemoryStore::new()) };
        let runner = Runner::builder(agent, store).clock(Asleep).build();
        let session = runner.session("ada", "s1").await.unwrap();
        let mut changes = runner.watch(session.key()).await;
        let invocation = session.send("hello").await.unwrap();
        loop {
            if let Some(SessionChange::Changed { is_running: false, .. }) = changes.next().await {
                assert!(session.running().is_none(), "told of its end, and running");
                break;
            }
        }
        invocation.outcome().await.unwrap_err();
    });
}
