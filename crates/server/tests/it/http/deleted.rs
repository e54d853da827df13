//! Lists of sessions, of which one is deleted while they are read: by a retention, by a person, or by another process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::{RecoverOptions, RetentionOptions, RetentionPolicy, Runner};
use stepfold_server::http::Limits;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, ForkInfo, ForkSession, GetSession, InboxEntry, Label, ListForks, ListSessions,
    ListUnattended, ListUsers, MemoryStore, OutlineSessions, PruneSession, Pruned, ReadInbox, ReadLabels,
    Receipt, ReleaseClaim, RewindSession, ScanSessions, ScannedPage, ScopeKey, ScopeValues, Session,
    SessionError, SessionKey, SessionOutline, SessionPage, SessionStore, Unattended, UserId, WriteScope,
};

use super::site::{Reply, Site, agent};

/// A store in which a session is deleted before one of the next reads.
#[derive(Clone)]
struct DeletingStore {
    store: AnyStore,
    key: SessionKey,
    /// The number of reads until then; 0 after it, and while nothing is to be deleted.
    reads: Arc<AtomicUsize>,
    /// Whether it was deleted so.
    is_gone: Arc<AtomicBool>,
}

impl DeletingStore {
    fn delete_before_read(&self, number: usize) {
        self.reads.store(number, Ordering::SeqCst);
    }

    /// Whether all reads before the deletion were made.
    fn has_deleted(&self) -> bool {
        self.reads.swap(0, Ordering::SeqCst) == 0
    }

    async fn count(&self) {
        let less = |reads: usize| reads.checked_sub(1);
        if self.reads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
            // A retention may have deleted it before, and the session of a worker is not deleted.
            let deleted = self.store.delete(DeleteSession::new(self.key.clone())).await;
            self.is_gone.store(deleted.is_ok(), Ordering::SeqCst);
        }
    }
}

macro_rules! counted {
    ($($method:ident: $request:ty => $answer:ty;)*) => {
        $(async fn $method(&self, request: $request) -> Result<$answer, SessionError> {
            self.count().await;
            self.store.$method(request).await
        })*
    };
}

impl SessionStore for DeletingStore {
    counted! {
        create: CreateSession => Session;
        get: GetSession => Session;
        outlines: OutlineSessions => Vec<Option<SessionOutline>>;
        list: ListSessions => SessionPage;
        scan: ScanSessions => ScannedPage;
        append: AppendEvent => Receipt;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        forks: ListForks => Vec<ForkInfo>;
        labels: ReadLabels => Vec<(Label, u64)>;
        users: ListUsers => Vec<UserId>;
        unattended: ListUnattended => Vec<Unattended>;
        claim: ClaimSession => Claim;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }
}

/// A server with three sessions whose runs wait for approval, before messages that wait as well.
struct Deleting {
    store: DeletingStore,
    runner: Runner,
    site: Site,
}

const SCRIPT: &str = "assistant: > c1 pay()\nassistant: > c1 pay()\nassistant: > c1 pay()\n";

impl Deleting {
    async fn new() -> Self {
        let store = DeletingStore {
            store: AnyStore::new(MemoryStore::new()),
            key: SessionKey::new("clerk", "ada", "s2").unwrap(),
            reads: Arc::default(),
            is_gone: Arc::default(),
        };
        let policy =
            RetentionPolicy::new().delete_idle_after(Duration::ZERO).keep_messages_for(Duration::ZERO);
        let policy = policy.include_waiting();
        let runner = Runner::builder(agent(SCRIPT, Vec::new()), store.clone()).retention(policy).build();
        for id in ["s1", "s2", "s3"] {
            let session = runner.session("ada", id).await.unwrap();
            session.run("pay").await.unwrap();
            // It is stored, and waits behind the decision.
            let _ = session.send_once("m1", "and then?").await;
            assert_eq!(session.inbox().await.unwrap().len(), 1);
        }
        let site = Site::over(runner.clone(), Limits::default()).await;
        Deleting { store, runner, site }
    }

    async fn ask(&self, path: &str) -> Reply {
        let bearer = self.site.bearer("ada");
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        if path != "/a2a/clerk" {
            return self.site.raw(Method::GET, path, &headers, "").await;
        }
        headers.push(("a2a-version", "1.0"));
        let list = json!({"jsonrpc": "2.0", "id": 7, "method": "ListTasks", "params": {}});
        self.site.raw(Method::POST, path, &headers, &list.to_string()).await
    }
}

/// The sessions that an answer names.
fn sessions_in(answer: &Value) -> Vec<&'static str> {
    let text = answer.to_string();
    ["s1", "s2", "s3"].into_iter().filter(|id| text.contains(&format!("\"{id}\""))).collect()
}

/// A law: wherever a session is deleted while sessions are listed, the other ones are told, and nothing fails.
#[tokio::test]
async fn a_list_has_the_others_wherever_one_is_deleted_meanwhile() {
    for path in [
        "/api/v1/apps/clerk/sessions",
        "/api/v1/apps/clerk/sessions?q=pay",
        "/api/v1/apps/clerk/sessions?stopped=true",
        "/api/v1/apps/clerk/upgrade",
        "/apps/clerk/users/user/sessions",
        "/a2a/clerk",
    ] {
        for number in 1.. {
            let deleting = Deleting::new().await;
            deleting.store.delete_before_read(number);
            let answer = deleting.ask(path).await;
            if !deleting.store.has_deleted() {
                assert!(number > 1, "{path} reads nothing");
                break;
            }
            assert_eq!(answer.status, 200, "{path}, read {number}: {}", answer.text);
            let answer = answer.json();
            assert!(answer["error"].is_null(), "{path}, read {number}: {answer}");
            // Unchanged runs are counted only.
            if !path.ends_with("/upgrade") {
                let told = sessions_in(&answer);
                assert!(told.contains(&"s1") && told.contains(&"s3"), "{path}, read {number}: {answer}");
            }
        }
    }
}

/// A law: a check of upgrades, a recovery and a retention do not fail for a session that is deleted meanwhile.
#[tokio::test]
async fn a_pass_over_all_sessions_does_not_fail_for_one_that_is_deleted_meanwhile() {
    for number in 1.. {
        let Deleting { store, runner, .. } = Deleting::new().await;
        store.delete_before_read(number);
        let (mut check, mut checked) = (runner.check_upgrade(), Vec::new());
        while let Some(run) = check.next().await.unwrap() {
            assert!(run.error.is_none(), "read {number}: {:?}", run.error);
            checked.push(run.key.id.to_string());
        }
        if !store.has_deleted() {
            break;
        }
        assert!(
            checked.contains(&"s1".to_owned()) && checked.contains(&"s3".to_owned()),
            "{number}: {checked:?}"
        );
    }
    for options in [RetentionOptions::new().dry_run(), RetentionOptions::new()] {
        for number in 1.. {
            let Deleting { store, runner, .. } = Deleting::new().await;
            store.delete_before_read(number);
            let report = runner.retain(options.clone()).await.unwrap();
            if !store.has_deleted() {
                break;
            }
            assert!(report.failed.is_empty(), "read {number}: {report:?}");
        }
    }
    for number in 1.. {
        let Deleting { store, runner, .. } = Deleting::new().await;
        store.delete_before_read(number);
        runner.recover(RecoverOptions::new().once()).await.unwrap();
        if !store.has_deleted() {
            break;
        }
        let found = runner.find_session("ada", "s2").await.unwrap();
        assert_eq!(found.is_none(), store.is_gone.load(Ordering::SeqCst), "read {number}: it is made again");
    }
}
