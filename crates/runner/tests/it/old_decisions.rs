//! Keys of decisions and edits, however many events ago they were used.

use schemars::JsonSchema;
use serde::Deserialize;
use stepfold_agent_loop::{Agent, Decision, DecisionError, Edit, EditError};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Author, Event, EventId, EventKind, Expected, InvocationId, SessionKey,
    SessionSchema, SessionStore, SqliteStore, Timestamp, VerifySessions,
};
use stepfold_runner::{DecisionReceipt, ResumeRun, Runner, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Args, Effect, Tool, ToolError};

use crate::world::over_each_store;

/// Sends a letter, and is done.
struct Sender;

impl ChatModel for Sender {
    fn id(&self) -> &'static str {
        "sender"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let is_sent = request.messages.last().is_some_and(|message| message.role() == Role::Tool);
        let (message, finish) = if is_sent {
            (Message::assistant("done"), FinishReason::Stop)
        } else {
            let call = ToolCall::new("c1", "send", serde_json::json!({"to": "Bob"}));
            (Message::new(Role::Assistant).with_part(call), FinishReason::ToolCalls)
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Letter {
    to: String,
}

/// A session, in a process of its own.
async fn session(store: &AnyStore, id: &str) -> SessionHandle {
    let send =
        |Args(letter): Args<Letter>| async move { Ok::<_, ToolError>(format!("sent to {}", letter.to)) };
    let send = Tool::new("send", "Sends a letter.", send).effect(Effect::Pure).approval(Approval::Always);
    let schema = Schema::builder().key::<String>("topic").build().unwrap();
    let agent = Agent::builder(Sender).schema(schema).tools([send.build().unwrap()]).build().unwrap();
    let runner = Runner::builder(agent, store.clone()).app("old").unwrap().build();
    runner.session("ada", id).await.unwrap()
}

async fn asked(session: &SessionHandle) -> String {
    session.run("send it").await.unwrap().pending()[0].id.clone()
}

/// Has it decided, and waits for what comes of it.
async fn settled(resume: ResumeRun) -> Result<DecisionReceipt, RunnerError> {
    let (receipt, invocation) = resume.submit().await?;
    invocation.await?;
    Ok(receipt)
}

/// Two runs with a decision in each, an edit between them and one in the second. Gives the id of the first request.
/// The databases in `before` were written by this, before events had tags.
async fn used(store: &AnyStore) -> String {
    let session = session(store, "s1").await;
    let first = asked(&session).await;
    let approve = |id: &str| session.resume().decide(id, Decision::Approve).by("ada");
    settled(approve(&first).idempotency_key("click-1")).await.unwrap();
    session.edit(rows()).await.unwrap();
    let second = asked(&session).await;
    session.edit(stalls()).await.unwrap();
    settled(approve(&second)).await.unwrap();
    first
}

fn rows() -> Edit {
    Edit::new().set("topic", "rows").with_idempotency_key("edit-1")
}

fn stalls() -> Edit {
    Edit::new().set("topic", "stalls").with_idempotency_key("edit-2")
}

/// More events than are looked through one by one.
async fn add_events(store: &AnyStore) {
    let key = SessionKey::new("old", "ada", "s1").unwrap();
    let schema = SessionSchema::new(Schema::default());
    for number in 0..4_200 {
        let (id, invocation) = (format!("note-{number}"), InvocationId::new("notes").unwrap());
        let event = Event::new(
            EventId::new(id).unwrap(),
            invocation,
            Author::new("user").unwrap(),
            Timestamp::from_micros(number),
        );
        let event = event.with_kind(EventKind::new("note"));
        store.append(AppendEvent::new(key.clone(), Expected::Any, event, &schema)).await.unwrap();
    }
}

/// The receipt of decisions that are sent.
async fn sent(resume: ResumeRun) -> Result<DecisionReceipt, RunnerError> {
    resume.submit().await.map(|(receipt, _)| receipt)
}

/// Processes that know nothing of the session hear of the first use of each key.
async fn check_known(store: &AnyStore, id: &str, first: &str) {
    let decide = async |decision| session(store, id).await.resume().decide(first, decision).by("ada");
    let receipt = sent(decide(Decision::Approve).await.idempotency_key("click-1")).await.unwrap();
    assert_eq!((receipt.version, &receipt.requests[..]), (3, &[first.to_owned()][..]));
    let other = Decision::modify(serde_json::json!({"to": "Eve"}));
    let with_key = decide(other.clone()).await.idempotency_key("click-1");
    for (resume, is_reused) in
        [(with_key, true), (decide(other).await, false), (decide(Decision::Approve).await, false)]
    {
        let error = sent(resume).await.unwrap_err();
        let RunnerError { kind: RunnerErrorKind::Decision { error, .. }, .. } = error else {
            panic!("{error:?}")
        };
        match &*error {
            DecisionError::KeyReused { idempotency_key } => {
                assert!(is_reused && idempotency_key == "click-1");
            }
            DecisionError::AlreadyDecided { id, .. } => assert!(!is_reused && id == first),
            error => panic!("{error:?}"),
        }
    }
    let session = session(store, id).await;
    for (edit, version, is_of_run) in [(rows(), 6, false), (stalls(), 9, true)] {
        let receipt = session.edit(edit.clone()).await.unwrap();
        assert_eq!((receipt.version, receipt.is_of_run), (version, is_of_run));
        let error = session.edit(edit.set("topic", "other")).await.unwrap_err();
        let RunnerError { kind: RunnerErrorKind::Edit { error, .. }, .. } = error else {
            panic!("{error:?}")
        };
        assert!(matches!(&*error, EditError::KeyReused { .. }), "{error:?}");
    }
}

async fn known_for_ever(store: AnyStore) {
    let first = used(&store).await;
    check_known(&store, "s1", &first).await;
    add_events(&store).await;
    check_known(&store, "s1", &first).await;
    session(&store, "s1").await.fork("fork", None).await.unwrap();
    check_known(&store, "fork", &first).await;

    // A rewind to before their use frees the keys that were used behind it, and no others.
    session(&store, "s1").await.rewind(5).await.unwrap();
    let rewound = session(&store, "s1").await;
    let approve = rewound.resume().decide(&*first, Decision::Approve).by("ada");
    assert_eq!(sent(approve.idempotency_key("click-1")).await.unwrap().version, 3);
    let rewound = session(&store, "s1").await;
    let receipt = rewound.edit(rows()).await.unwrap();
    assert!(receipt.version > 4_200, "{receipt:?}");
    assert_eq!(rewound.edit(rows()).await.unwrap(), receipt);
    check_known(&store, "fork", &first).await;
}

over_each_store!(keys_are_known_however_many_events_came_since: known_for_ever);

/// Those that were stored before there was an index are in it once the tables have been upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_file_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch(include_str!("before/sqlite-v1.sql")).unwrap();
    let store = AnyStore::new(SqliteStore::open(&path).unwrap());
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    add_events(&store).await;
    check_known(&store, "s1", "c1#341b1d4a97858e95").await;
    // Another process finds the tables as they are now.
    drop(store);
    let store = AnyStore::new(SqliteStore::open(&path).unwrap());
    check_known(&store, "s1", "c1#341b1d4a97858e95").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_database_of_before() {
    let Some(server) = crate::crash::server::server() else { return };
    let url = server.database("of_before").await;
    server.run("of_before", include_str!("before/postgres-v1.sql")).await;
    let store = crate::crash::store::open(&url).await;
    assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    add_events(&store).await;
    let other = crate::crash::store::open(&url).await;
    check_known(&other, "s1", "c1#2883649049cd1e9e").await;
}
