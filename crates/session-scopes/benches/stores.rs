//! What sessions cost. `cargo bench -p stepfold-session-scopes --all-features`.
//!
//! Memory and SQLite, whose commits here survive the process but are not flushed to the disk, so that what
//! is measured is our own work; the durable rate is printed beside. PostgreSQL is measured where the
//! environment variable `STEPFOLD_BENCH_POSTGRES` holds the address of an empty database.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::needless_pass_by_value,
    reason = "a benchmark that cannot go on should stop, and says what it found"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use futures_util::future::join_all;
use serde_json::json;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, CreateSession, Durability, Event, EventId, EventRange, ForkSession,
    GetSession, InvocationId, ListSessions, MemoryStore, PostgresStore, Session, SessionKey, SessionSchema,
    SessionStore, SqliteOptions, Timestamp,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
use stepfold_state_core::state::{Handler, Schema};
use tempfile::TempDir;
use tokio::runtime::Runtime;

fn main() {
    bytes_of_a_long_session();
    durable_rates();
    postgres_rates();
    divan::main();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

fn schema() -> SessionSchema {
    let builder = Schema::builder().key::<u64>("n").handler(Handler::sum()).key::<Vec<String>>("list");
    SessionSchema::new(builder.open().build().expect("the schema is valid"))
}

fn now() -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000)
}

fn key(id: impl ToString) -> SessionKey {
    SessionKey::new("app", "alice", id.to_string()).expect("the key is valid")
}

/// An event as a step has it, under an id that was not used before.
fn event() -> Event {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = EventId::new(format!("e{}", NEXT.fetch_add(1, Ordering::Relaxed))).expect("the id is valid");
    let invocation = InvocationId::new("i1").expect("the id is valid");
    Event::new(id, invocation, Author::new("agent").expect("the name is valid"), now())
        .with_message(Message::user("which area has most stalls?"))
}

fn writing(schema: &SessionSchema) -> Event {
    let writes = [
        schema.schema().write("n", 1).expect("it is declared"),
        schema.schema().write("list", json!(["one more"])).expect("it is declared"),
    ];
    event().with_delta(writes.into_iter().collect())
}

async fn create(store: &AnyStore, key: SessionKey, schema: &SessionSchema) -> Session {
    store.create(CreateSession::with_key(key, schema, now())).await.expect("the session is new")
}

async fn fill(store: &AnyStore, key: &SessionKey, schema: &SessionSchema, events: u64) {
    for version in 0..events {
        let append = AppendEvent::new(key.clone(), version, writing(schema), schema);
        store.append(append).await.expect("nobody else writes");
    }
}

/// A store, and the folder that it may need.
fn open(kind: &str) -> (AnyStore, Option<TempDir>) {
    if kind == "memory" {
        return (AnyStore::new(MemoryStore::new()), None);
    }
    let folder = tempfile::tempdir().expect("a folder can be made");
    let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(Durability::Process);
    (AnyStore::new(options.open().expect("the file is new")), Some(folder))
}

const STORES: [&str; 2] = ["memory", "sqlite"];
const EVENTS: [u64; 3] = [10, 1_000, 10_000];

/// One append with two writes, in a session that has so many events.
/// Goals: memory 0.5 us, flat; SQLite 60 us of CPU, flat.
#[divan::bench(args = EVENTS, consts = [0, 1], sample_count = 20, sample_size = 50)]
fn append<const STORE: usize>(bencher: Bencher<'_, '_>, events: u64) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    let key = key("s");
    runtime.block_on(create(&store, key.clone(), &schema));
    runtime.block_on(fill(&store, &key, &schema, events));
    let mut version = events;
    bencher
        .with_inputs(|| {
            version += 1;
            AppendEvent::new(key.clone(), version - 1, writing(&schema), &schema)
        })
        .bench_local_values(|append| runtime.block_on(store.append(append)).expect("nobody else writes"));
}

/// The same, in a session with 10,000 keys.
#[divan::bench(consts = [0, 1], sample_count = 20, sample_size = 50)]
fn append_with_10_000_keys<const STORE: usize>(bencher: Bencher<'_, '_>) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    let key = key("s");
    let values = (0..10_000).map(|number| (format!("key {number}"), json!(number))).collect();
    let mut request = CreateSession::with_key(key.clone(), &schema, now());
    request.values = values;
    runtime.block_on(store.create(request)).expect("the session is new");
    let mut version = 0;
    bencher
        .with_inputs(|| {
            version += 1;
            AppendEvent::new(key.clone(), version - 1, writing(&schema), &schema)
        })
        .bench_local_values(|append| runtime.block_on(store.append(append)).expect("nobody else writes"));
}

/// The same, beside 100,000 other sessions (10,000 over SQLite).
#[divan::bench(consts = [0, 1], sample_count = 20, sample_size = 50)]
fn append_beside_many_sessions<const STORE: usize>(bencher: Bencher<'_, '_>) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    let others = if STORE == 0 { 100_000 } else { 10_000 };
    runtime.block_on(async {
        for chunk in 0..others / 100 {
            join_all((0..100).map(|number| create(&store, key(chunk * 100 + number), &schema))).await;
        }
    });
    let key = key(7);
    let mut version = 0;
    bencher
        .with_inputs(|| {
            version += 1;
            AppendEvent::new(key.clone(), version - 1, writing(&schema), &schema)
        })
        .bench_local_values(|append| runtime.block_on(store.append(append)).expect("nobody else writes"));
}

/// The last 10 events. Goals at 10,000: memory 20 us, SQLite 0.1 ms.
#[divan::bench(args = EVENTS, consts = [0, 1], sample_count = 50, sample_size = 20)]
fn get_last_10<const STORE: usize>(bencher: Bencher<'_, '_>, events: u64) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    runtime.block_on(create(&store, key("s"), &schema));
    runtime.block_on(fill(&store, &key("s"), &schema, events));
    let get = GetSession::new(key("s")).events(EventRange::Last(10)).without_state();
    bencher.counter(ItemsCount::new(10_u32)).bench_local(|| {
        let session = runtime.block_on(store.get(get.clone())).expect("it is there");
        assert_eq!(session.events.len(), 10);
        black_box(session)
    });
}

/// A fork at the newest version. Goal: 1 ms.
#[divan::bench(args = EVENTS, consts = [0, 1], sample_count = 20, sample_size = 10)]
fn fork<const STORE: usize>(bencher: Bencher<'_, '_>, events: u64) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    runtime.block_on(create(&store, key("s"), &schema));
    runtime.block_on(fill(&store, &key("s"), &schema, events));
    bencher.bench_local(|| {
        let fork = ForkSession::new(key("s"), now()).at_version(events);
        runtime.block_on(store.fork(fork)).expect("the version is there")
    });
}

/// 1,000 sessions, metadata only.
#[divan::bench(consts = [0, 1], sample_count = 20, sample_size = 1)]
fn list_1_000<const STORE: usize>(bencher: Bencher<'_, '_>) {
    let (runtime, schema) = (runtime(), schema());
    let (store, _folder) = open(STORES[STORE]);
    runtime.block_on(async {
        for number in 0..1_000 {
            create(&store, key(number), &schema).await;
        }
    });
    let list = ListSessions::new("app", "alice").expect("the ids are valid").limit(1_000);
    bencher.counter(ItemsCount::new(1_000_u32)).bench_local(|| {
        let page = runtime.block_on(store.list(list.clone())).expect("the cursor is none");
        assert_eq!(page.sessions.len(), 1_000);
        black_box(page)
    });
}

/// Prints what a session of 500 steps takes in a SQLite file. Goal: under 0.5 MB, and linear.
fn bytes_of_a_long_session() {
    let (runtime, schema) = (runtime(), schema());
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("sessions.db");
    let store = AnyStore::new(SqliteOptions::new(&path).durability(Durability::Process).open().unwrap());
    let size = || {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        std::fs::metadata(&path).unwrap().len()
    };
    runtime.block_on(create(&store, key("s"), &schema));
    let empty = size();
    println!("bytes of a session in SQLite (each step: a call, its outcome, a list item, a counter)");
    println!("  steps     bytes   a step");
    for version in 0..500 {
        let id = format!("c{version}");
        let call = ToolCall::new(&id, "search", json!({"q": "stalls"}));
        let outcome = ToolResult::value(&id, "search", json!({"found": format!("document {version}")}));
        let event = writing(&schema)
            .with_message(Message::assistant("I look it up.").with_part(call))
            .with_message(Message::tool(outcome));
        runtime.block_on(store.append(AppendEvent::new(key("s"), version, event, &schema))).unwrap();
        if (version + 1) % 100 == 0 {
            let bytes = size() - empty;
            println!("  {:5} {bytes:9} {:8}", version + 1, bytes / (version + 1));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures the machine's time")]
fn start() -> Instant {
    Instant::now()
}

/// Appends by so many sessions at once, for about a second; how many a second there were.
fn rate(store: &AnyStore, sessions: u64) -> f64 {
    let (runtime, schema) = (runtime(), schema());
    let keys: Vec<_> = (0..sessions).map(|number| key(format!("{sessions}-{number}"))).collect();
    runtime.block_on(join_all(keys.iter().map(|key| create(store, key.clone(), &schema))));
    let start = start();
    let writers = keys.iter().map(|key| async {
        let mut version = 0;
        while start.elapsed() < Duration::from_secs(1) {
            let append = AppendEvent::new(key.clone(), version, writing(&schema), &schema);
            version = store.append(append).await.expect("nobody else writes").version;
        }
        version
    });
    let appends: u64 = runtime.block_on(join_all(writers)).into_iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let appends = appends as f64;
    appends / start.elapsed().as_secs_f64()
}

/// Prints how many durable appends SQLite makes. Goal: 64 sessions make 20 times what one makes.
fn durable_rates() {
    println!("durable appends a second in SQLite (synchronous=FULL)");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let store = AnyStore::new(SqliteOptions::new(folder.path().join("sessions.db")).open().unwrap());
    for sessions in [1, 8, 64] {
        println!("  {sessions:3} session(s) {:9.0}", rate(&store, sessions));
    }
}

#[expect(clippy::disallowed_methods, reason = "where the database is, is of the machine")]
fn postgres_rates() {
    let Ok(url) = std::env::var("STEPFOLD_BENCH_POSTGRES") else { return };
    // The driver's tasks live in the runtime that opened the store.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = AnyStore::new(runtime.block_on(PostgresStore::open(url)).unwrap());
    println!("appends a second in PostgreSQL");
    for sessions in [1, 8, 32] {
        println!("  {sessions:3} session(s) {:9.0}", rate(&store, sessions));
    }
}
