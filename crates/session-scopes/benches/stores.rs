//! What sessions cost. `cargo bench -p stepfold-session-scopes --all-features`.
//!
//! Memory and SQLite, whose commits here survive the process but are not flushed to the disk, so that what
//! is measured is our own work; the durable rate is printed beside, and what SQLite alone takes on this
//! machine for the same. PostgreSQL is measured at the address of an empty database in the environment
//! variable `STEPFOLD_BENCH_POSTGRES`, or else with a server of the benchmark's own, where one is installed.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::needless_pass_by_value,
    reason = "a benchmark that cannot go on should stop, and says what it found"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;
use stepfold_session_scopes::{
    AppendEvent, Author, CreateSession, Durability, Event, EventId, EventRange, ForkSession, GetSession,
    InvocationId, ListSessions, MemoryStore, PostgresStore, Session, SessionKey, SessionSchema, SessionStore,
    SqliteOptions, SqliteStore, Timestamp,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
use stepfold_state_core::state::{Handler, Schema, SchemaBuilder, Write};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[path = "parts/past.rs"]
mod past;
#[path = "parts/sealed.rs"]
mod sealed;
#[path = "parts/search.rs"]
mod search;
#[path = "../tests/it/server.rs"]
mod server;

fn main() {
    // `--count WHAT TIMES`, for a tool that counts instructions.
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, count, what, times] = &arguments[..]
        && count == "--count"
    {
        let times = times.parse().expect("a number of times");
        return match what.as_str() {
            "list" => listed::<Memory>(times),
            _ if what.contains('-') => sealed::counted(what, times),
            _ => search::counted(what, times),
        };
    }
    if std::env::args().any(|argument| argument == "past") {
        return past::ratios();
    }
    if std::env::args().any(|argument| argument == "sealed") {
        return sealed::ratios();
    }
    if std::env::args().any(|argument| argument == "search") {
        return search::figures();
    }
    // Who names a benchmark wants no more than that.
    if std::env::args().skip(1).all(|argument| argument.starts_with('-')) {
        bytes_of_a_long_session();
        past::ratios();
        sealed::ratios();
        search::figures();
        durable_rates();
        tasks_at_once();
        floor_of_sqlite();
        cpu_of_sqlite();
        postgres_rates();
    }
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

/// An event as a step has it, under an id that was not used before and later than those before.
fn event() -> Event {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = EventId::new(format!("e{number}")).expect("the id is valid");
    let at = Timestamp::from_micros(now().as_micros() + i64::try_from(number).expect("they are few"));
    let invocation = InvocationId::new("i1").expect("the id is valid");
    Event::new(id, invocation, Author::new("agent").expect("the name is valid"), at)
        .with_message(Message::user("which area has most stalls?"))
}

/// An event with so many writes: none, a number, or a number and an item for a list.
fn writing(schema: &SessionSchema, writes: usize) -> Event {
    let number = || schema.schema().write("n", 1).expect("it is declared");
    let item = || schema.schema().write("list", json!(["one more"])).expect("it is declared");
    let all: [&dyn Fn() -> Write; 2] = [&number, &item];
    event().with_delta(all[..writes].iter().map(|write| write()).collect())
}

/// The requests of a writer that appends to a session, one after the other.
struct Writer {
    key: SessionKey,
    schema: SessionSchema,
    writes: usize,
    version: u64,
}

impl Writer {
    fn new(key: SessionKey, schema: &SessionSchema) -> Self {
        Writer { key, schema: schema.clone(), writes: 2, version: 0 }
    }

    fn next(&mut self) -> AppendEvent {
        let event = writing(&self.schema, self.writes);
        self.version += 1;
        AppendEvent::new(self.key.clone(), self.version - 1, event, &self.schema)
    }

    async fn append(&mut self, store: &impl SessionStore, events: u64) {
        for _ in 0..events {
            store.append(self.next()).await.expect("nobody else writes");
        }
    }
}

async fn create(store: &impl SessionStore, key: SessionKey, schema: &SessionSchema) -> Session {
    store.create(CreateSession::with_key(key, schema, now())).await.expect("the session is new")
}

/// A store as its users have it, with nothing around it, and how its answers are waited for.
trait Bench: Sized {
    type Store: SessionStore;
    /// How many sessions are many.
    const MANY: u64;

    fn open() -> Self;
    fn store(&self) -> &Self::Store;
    fn wait<F: Future>(&self, answer: F) -> F::Output;

    /// A session with so many events, and its writer.
    fn session(&self, events: u64) -> Writer {
        let mut writer = Writer::new(key("s"), &schema());
        self.wait(create(self.store(), key("s"), &writer.schema));
        self.wait(writer.append(self.store(), events));
        writer
    }

    /// Measures appends, without the making of the events.
    fn measure_append(&self, bencher: Bencher<'_, '_>, mut writer: Writer) {
        bencher
            .with_inputs(|| writer.next())
            .bench_local_values(|append| self.wait(self.store().append(append)).expect("nobody else writes"));
    }
}

struct Memory(MemoryStore);

impl Bench for Memory {
    type Store = MemoryStore;
    const MANY: u64 = 100_000;

    fn open() -> Self {
        Memory(MemoryStore::new())
    }

    fn store(&self) -> &MemoryStore {
        &self.0
    }

    fn wait<F: Future>(&self, answer: F) -> F::Output {
        answer.now_or_never().expect("memory never waits")
    }
}

struct Sqlite {
    store: SqliteStore,
    runtime: Runtime,
    folder: TempDir,
}

impl Sqlite {
    fn with(durability: Durability) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let options = SqliteOptions::new(folder.path().join("sessions.db")).durability(durability);
        Sqlite { store: options.open().expect("the file is new"), runtime: runtime(), folder }
    }
}

impl Bench for Sqlite {
    type Store = SqliteStore;
    const MANY: u64 = 10_000;

    fn open() -> Self {
        Sqlite::with(Durability::Process)
    }

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    fn wait<F: Future>(&self, answer: F) -> F::Output {
        self.runtime.block_on(answer)
    }
}

const EVENTS: [u64; 3] = [10, 1_000, 10_000];

/// One append with so many writes (the second adds to a list), in a session that has so many events.
/// Goals: memory 0.5 us, flat; SQLite see `cpu_of_sqlite`.
#[divan::bench(types = [Memory, Sqlite], consts = [0, 1, 2], args = EVENTS, sample_count = 20, sample_size = 50)]
fn append<B: Bench, const WRITES: usize>(bencher: Bencher<'_, '_>, events: u64) {
    let bench = B::open();
    let writer = Writer { writes: WRITES, ..bench.session(events) };
    bench.measure_append(bencher, writer);
}

/// Two writes in a session with 10,000 keys.
#[divan::bench(types = [Memory, Sqlite], sample_count = 20, sample_size = 50)]
fn append_with_10_000_keys<B: Bench>(bencher: Bencher<'_, '_>) {
    let bench = B::open();
    let writer = bench.wait(with_10_000_keys(bench.store()));
    bench.measure_append(bencher, writer);
}

async fn with_10_000_keys(store: &impl SessionStore) -> Writer {
    let writer = Writer::new(key("s"), &schema());
    let mut request = CreateSession::with_key(key("s"), &writer.schema, now());
    request.values = (0..10_000).map(|number| (format!("key {number}"), json!(number))).collect();
    store.create(request).await.expect("the session is new");
    writer
}

/// Two writes beside 100,000 other sessions of the user (10,000 over SQLite).
#[divan::bench(types = [Memory, Sqlite], sample_count = 20, sample_size = 50)]
fn append_beside_many_sessions<B: Bench>(bencher: Bencher<'_, '_>) {
    let bench = B::open();
    let writer = Writer::new(key(7), &schema());
    bench.wait(async {
        for chunk in 0..B::MANY / 100 {
            let ids = chunk * 100..(chunk + 1) * 100;
            join_all(ids.map(|id| create(bench.store(), key(id), &writer.schema))).await;
        }
    });
    bench.measure_append(bencher, writer);
}

/// The last 10 events. Goals at 10,000: memory 20 us, SQLite 0.1 ms.
#[divan::bench(types = [Memory, Sqlite], args = EVENTS, sample_count = 50, sample_size = 20)]
fn get_last_10<B: Bench>(bencher: Bencher<'_, '_>, events: u64) {
    let bench = B::open();
    bench.session(events);
    let get = GetSession::new(key("s")).events(EventRange::Last(10)).without_state();
    bencher.counter(ItemsCount::new(10_u32)).bench_local(|| {
        let session = bench.wait(bench.store().get(get.clone())).expect("it is there");
        assert_eq!(session.events.len(), 10);
        black_box(session)
    });
}

/// A fork at the newest version. Goal: 1 ms.
#[divan::bench(types = [Memory, Sqlite], args = EVENTS, sample_count = 20, sample_size = 10)]
fn fork<B: Bench>(bencher: Bencher<'_, '_>, events: u64) {
    let bench = B::open();
    bench.session(events);
    bencher.bench_local(|| {
        let fork = ForkSession::new(key("s"), now()).at_version(events);
        bench.wait(bench.store().fork(fork)).expect("the version is there")
    });
}

/// A fork of 10,000 events at an earlier version. Goal: 1 ms, the same at each.
#[divan::bench(types = [Memory, Sqlite], args = [10, 5_000, 9_990], sample_count = 10, sample_size = 10)]
fn fork_far_back<B: Bench>(bencher: Bencher<'_, '_>, version: u64) {
    let bench = B::open();
    bench.session(10_000);
    bencher.bench_local(|| {
        let fork = ForkSession::new(key("s"), now()).at_version(version);
        bench.wait(bench.store().fork(fork)).expect("the version is there")
    });
}

/// The state of 1,000 keys that were written under so many other schemas, one after the other. The price of another schema
/// is to read it once.
#[divan::bench(args = [0, 1, 2, 4], sample_count = 20, sample_size = 1)]
fn state_under_a_changed_schema(bencher: Bencher<'_, '_>, others: usize) {
    // The same keys, and one that is of this schema alone.
    let opened = |name: &str| -> SessionSchema {
        let keys = (0..1_000).map(|number| format!("key {number}")).chain([name.to_owned()]);
        let builder = keys.fold(Schema::builder(), SchemaBuilder::key::<u64>);
        builder.build().expect("the schema is valid").into()
    };
    let newest = opened("newest");
    let mut schemas: Vec<SessionSchema> =
        (0..others).map(|other| opened(&format!("other {other}"))).collect();
    if schemas.is_empty() {
        schemas.push(newest.clone());
    }
    let bench = Memory::open();
    bench.wait(create(bench.store(), key("s"), &newest));
    for (version, schema) in schemas.iter().enumerate() {
        let keys = (version..1_000).step_by(schemas.len());
        let write = |number| schema.schema().write(&format!("key {number}"), 7).expect("it is declared");
        let event = event().with_delta(keys.map(write).collect());
        let append = AppendEvent::new(key("s"), version as u64, event, schema);
        bench.wait(bench.store().append(append)).expect("nobody else writes");
    }
    let session = bench.wait(bench.store().get(GetSession::new(key("s")))).expect("it is there");
    bencher.counter(ItemsCount::new(1_000_u32)).bench_local(|| session.state(&newest).expect("all keys fit"));
}

/// A store with so many sessions of a user.
fn with_sessions<B: Bench>(count: u32) -> B {
    let (bench, schema) = (B::open(), schema());
    bench.wait(async {
        for number in 0..count {
            create(bench.store(), key(number), &schema).await;
        }
    });
    bench
}

/// Lists 1,000 sessions so often.
fn listed<B: Bench>(times: usize) {
    let bench = with_sessions::<B>(1_000);
    let list = ListSessions::new("app", "alice").expect("the ids are valid").limit(1_000);
    for _ in 0..times {
        black_box(bench.wait(bench.store().list(list.clone())).expect("the cursor is none"));
    }
}

/// 1,000 sessions, metadata only.
#[divan::bench(types = [Memory, Sqlite], sample_count = 20, sample_size = 1)]
fn list_1_000<B: Bench>(bencher: Bencher<'_, '_>) {
    let bench = with_sessions::<B>(1_000);
    let list = ListSessions::new("app", "alice").expect("the ids are valid").limit(1_000);
    bencher.counter(ItemsCount::new(1_000_u32)).bench_local(|| {
        let page = bench.wait(bench.store().list(list.clone())).expect("the cursor is none");
        assert_eq!(page.sessions.len(), 1_000);
        black_box(page)
    });
}

/// A text that no session has, and runs of which none is unfinished, among 100,000 sessions: the whole list is looked at.
#[divan::bench(types = [Memory, Sqlite], sample_count = 10, sample_size = 1)]
fn find_among_100_000<B: Bench>(bencher: Bencher<'_, '_>) {
    let bench = with_sessions::<B>(100_000);
    let list = || ListSessions::new("app", "alice").expect("the ids are valid");
    bencher.bench_local(|| {
        for list in [list().containing("no such text"), list().unfinished()] {
            let page = bench.wait(bench.store().list(list)).expect("the cursor is none");
            assert_eq!(page.sessions.len(), 0);
        }
    });
}

/// Prints what a session of 500 steps takes in a SQLite file. Goal: under 0.5 MB, and linear.
fn bytes_of_a_long_session() {
    let (bench, schema) = (Sqlite::open(), schema());
    let path = bench.folder.path().join("sessions.db");
    let size = || {
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        std::fs::metadata(&path).unwrap().len()
    };
    bench.wait(create(bench.store(), key("s"), &schema));
    let empty = size();
    println!("bytes of a session in SQLite (each step: a call, its outcome, a list item, a counter)");
    println!("  steps     bytes   a step");
    for version in 0..500 {
        let id = format!("c{version}");
        let call = ToolCall::new(&id, "search", json!({"q": "stalls"}));
        let outcome = ToolResult::value(&id, "search", json!({"found": format!("document {version}")}));
        let event = writing(&schema, 2)
            .with_message(Message::assistant("I look it up.").with_part(call))
            .with_message(Message::tool(outcome));
        bench.wait(bench.store().append(AppendEvent::new(key("s"), version, event, &schema))).unwrap();
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

#[cfg(not(target_os = "linux"))]
fn cpu_time() -> Duration {
    Duration::ZERO
}

/// The CPU time of all threads of this process, in user and in system mode.
#[cfg(target_os = "linux")]
fn cpu_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux tells");
    let nanos = |path| {
        // A thread may have ended meanwhile.
        let times = std::fs::read_to_string(path).ok()?;
        times.split(' ').next()?.parse::<u64>().ok()
    };
    let threads = threads.map(|thread| thread.expect("Linux tells").path().join("schedstat"));
    Duration::from_nanos(threads.filter_map(nanos).sum())
}

/// A file of so many tables, without anything of ours, and its transactions: a row for each table.
struct Bare {
    connection: rusqlite::Connection,
    inserts: Vec<String>,
    _folder: TempDir,
}

impl Bare {
    fn new(tables: usize, synchronous: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = rusqlite::Connection::open(folder.path().join("bare.db")).unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        connection.pragma_update(None, "synchronous", synchronous).unwrap();
        for table in 0..tables {
            let create = format!("CREATE TABLE t{table} (number INTEGER PRIMARY KEY, body TEXT)");
            connection.execute_batch(&create).unwrap();
        }
        let inserts = (0..tables).map(|table| format!("INSERT INTO t{table} (body) VALUES (?1)")).collect();
        Bare { connection, inserts, _folder: folder }
    }

    fn run(&self, statement: &str) {
        self.connection.prepare_cached(statement).unwrap().execute([]).unwrap();
    }

    fn transaction(&self, rows: usize) {
        let body = "x".repeat(250);
        self.run("BEGIN IMMEDIATE");
        for _ in 0..rows {
            for insert in &self.inserts {
                self.connection.prepare_cached(insert).unwrap().execute([&body]).unwrap();
            }
        }
        self.run("COMMIT");
    }

    /// Durable transactions a second.
    fn rate(&self, rows: usize) -> f64 {
        let (start, mut count) = (start(), 0.0);
        while start.elapsed() < Duration::from_secs(1) {
            self.transaction(rows);
            count += 1.0;
        }
        count / start.elapsed().as_secs_f64()
    }
}

/// Prints what SQLite takes for less than an append is, so that it can be told what is ours.
#[cfg(target_os = "linux")]
fn floor_of_sqlite() {
    println!("CPU time of a transaction of SQLite alone (no flush; rows of 250 bytes)");
    for (tables, what) in [(1, "a row"), (4, "a row in each of 4 tables")] {
        let bare = Bare::new(tables, "NORMAL");
        // A thread that never sleeps learns what it took at the next tick only, so these batches are longer.
        print_cpu(what, 10 * BATCH, || {
            let cpu = cpu_time();
            (0..10 * BATCH).for_each(|_| bare.transaction(1));
            cpu_time().saturating_sub(cpu)
        });
    }
    print_cpu("to ask a thread and to be answered", BATCH, || handed_over(BATCH));
    let bare = Bare::new(1, "FULL");
    let (one, many) = (bare.rate(1), bare.rate(64) * 64.0);
    println!("durable rows a second in SQLite alone: {one:.0} one by one, {many:.0} by 64");
}

#[cfg(not(target_os = "linux"))]
fn floor_of_sqlite() {}

/// How many operations are measured together.
#[cfg(target_os = "linux")]
const BATCH: usize = 300;

/// Prints the CPU time of an operation in the cheapest and in the middle one of eleven batches of so many:
/// whatever else the machine does makes a batch dearer, and none cheaper.
#[cfg(target_os = "linux")]
fn print_cpu(what: &str, count: usize, mut batch: impl FnMut() -> Duration) {
    #[expect(clippy::cast_precision_loss, reason = "it is small")]
    let mut micros: Vec<f64> = (0..11).map(|_| batch().as_secs_f64() * 1e6 / count as f64).collect();
    micros.sort_by(f64::total_cmp);
    println!("  {what:38} {:6.1} us at least, {:6.1} us at the median", micros[0], micros[5]);
}

/// Asks a thread that does nothing, so many times, one after the other; the CPU time that it took.
#[cfg(target_os = "linux")]
fn handed_over(times: usize) -> Duration {
    let cpu = cpu_time();
    let (jobs, mut queue) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>(64);
    let thread = std::thread::spawn(move || {
        while let Some(answer) = queue.blocking_recv() {
            answer.send(()).expect("it is waited for");
        }
    });
    runtime().block_on(async {
        for _ in 0..times {
            let (answer, answered) = tokio::sync::oneshot::channel();
            jobs.send(answer).await.expect("the thread is there");
            answered.await.expect("it answers");
        }
    });
    let cpu = cpu_time().saturating_sub(cpu);
    drop(jobs);
    thread.join().unwrap();
    cpu
}

/// Prints the CPU time of an append over SQLite: two writes, no flush, one append after the other.
/// Goal: 60 us, flat.
#[cfg(target_os = "linux")]
fn cpu_of_sqlite() {
    println!("CPU time of an append over SQLite (two writes; user and system, all threads)");
    let print = |what: &str, bench: &Sqlite, mut writer: Writer| {
        print_cpu(what, BATCH, || {
            let appends: Vec<_> = std::iter::repeat_with(|| writer.next()).take(BATCH).collect();
            let cpu = cpu_time();
            bench.wait(async {
                for append in appends {
                    bench.store().append(append).await.expect("nobody else writes");
                }
            });
            cpu_time().saturating_sub(cpu)
        });
    };
    for events in [10, 10_000] {
        let bench = Sqlite::open();
        let writer = bench.session(events);
        print(&format!("after {events} events"), &bench, writer);
    }
    let bench = Sqlite::open();
    bench.wait(fill(bench.store(), 300, 1_000));
    let writer = bench.session(10);
    print("beside 300,000 events of 300 sessions", &bench, writer);
    let bench = Sqlite::open();
    let writer = bench.wait(with_10_000_keys(bench.store()));
    print("with 10,000 keys", &bench, writer);
}

/// Sessions with so many events each.
#[cfg(target_os = "linux")]
async fn fill(store: &SqliteStore, sessions: u64, events: u64) {
    let schema = schema();
    let writers = (0..sessions).map(|id| Writer::new(key(id), &schema));
    let sessions = writers.map(|mut writer| async move {
        create(store, writer.key.clone(), &writer.schema).await;
        writer.append(store, events).await;
    });
    join_all(sessions).await;
}

#[cfg(not(target_os = "linux"))]
fn cpu_of_sqlite() {}

/// Appends by so many sessions at once, for about a second; how many a second there were.
async fn rate(store: &impl SessionStore, sessions: u64) -> f64 {
    let schema = schema();
    let start = start();
    let writers = (0..sessions).map(|number| Writer::new(key(format!("{sessions}-{number}")), &schema));
    let writers = writers.map(|mut writer| async move {
        create(store, writer.key.clone(), &writer.schema).await;
        while start.elapsed() < Duration::from_secs(1) {
            writer.append(store, 1).await;
        }
        writer.version
    });
    let appends: u64 = join_all(writers).await.into_iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let appends = appends as f64;
    appends / start.elapsed().as_secs_f64()
}

/// Prints how many durable appends SQLite makes. Goal: 64 sessions make 20 times what one makes.
fn durable_rates() {
    println!("durable appends a second in SQLite (synchronous=FULL)");
    let bench = Sqlite::with(Durability::Full);
    let mut one = None;
    for sessions in [1, 8, 64] {
        let (cpu, start) = (cpu_time(), start());
        let rate = bench.wait(rate(bench.store(), sessions));
        let cpu = cpu_time().saturating_sub(cpu).as_secs_f64() * 1e6 / (rate * start.elapsed().as_secs_f64());
        let times = rate / *one.get_or_insert(rate);
        println!(
            "  {sessions:3} session(s) {rate:9.0}, {times:5.1} times those of one, {cpu:6.1} us of CPU each"
        );
    }
}

/// Prints what tasks on several threads do to each other. Goal: no error.
fn tasks_at_once() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let store = SqliteOptions::new(folder.path().join("sessions.db")).open().expect("the file is new");
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).build().unwrap();
    let start = start();
    let errors: usize = runtime.block_on(async {
        let task = |number: u64| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let schema = schema();
                create(&store, key(number), &schema).await;
                let mut writer = Writer::new(key(number), &schema);
                let mut errors = 0;
                for _ in 0..1_000 {
                    errors += usize::from(store.append(writer.next()).await.is_err());
                }
                errors
            })
        };
        let tasks = join_all((0..8).map(task)).await;
        tasks.into_iter().map(|task| task.expect("no task panics")).sum()
    });
    println!("8 tasks, 1,000 durable appends each, over SQLite: {errors} errors, {:.1?}", start.elapsed());
}

#[expect(clippy::disallowed_methods, reason = "where the database is, is of the machine")]
fn postgres_rates() {
    // The driver's tasks live in the runtime that opened the store.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, which) = if let Ok(url) = std::env::var("STEPFOLD_BENCH_POSTGRES") {
        (url, "the server of STEPFOLD_BENCH_POSTGRES")
    } else {
        let Some(server) = server::server() else { return };
        (runtime.block_on(server.database("bench")), "a server of our own that does not flush")
    };
    let store = runtime.block_on(PostgresStore::open(url)).unwrap();
    println!("appends a second in PostgreSQL, two writes each, {which}");
    for sessions in [1, 8, 32] {
        println!("  {sessions:3} session(s) {:9.0}", runtime.block_on(rate(&store, sessions)));
    }
}
