//! The world of a test: a store that outlives processes, tools and models that leave a trace, and a wire to
//! the store that can be cut.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use proptest::prelude::ProptestConfig;
use serde_json::{Value, json};
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, AgentBuilder, ApprovalRequest, Exit, HookAction, HookContext, Ids};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, EventRange, FindEvent, FindTagged, ForkSession, GetSession, InboxEntry,
    ListSessions, ListUnattended, ListUsers, MemoryStore, PruneSession, Pruned, ReadInbox, Receipt,
    ReleaseClaim, RenewClaim, Renewed, RewindSession, ScopeKey, ScopeValues, Session, SessionError,
    SessionPage, SessionStore, SqliteStore, Timestamp, Unattended, UserId, WriteScope,
};
use stepfold_runner::{RecoverOptions, Runner, RunnerBuilder, SessionHandle, WallClock};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ModelError, ModelErrorKind, ReplyStream, Role,
};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Effect, RawArgs, Tool, ToolBuilder, ToolContext, ToolError};
use tempfile::TempDir;
use tokio::sync::Notify;

/// What happened, in order, over all processes.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub(crate) fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    /// What happened since the last look.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A store that outlives the processes of a test.
pub(crate) struct World {
    store: Kind,
    pub(crate) folder: TempDir,
    pub(crate) wire: Arc<Wire>,
    pub(crate) trace: Trace,
    names: Names,
}

/// The store of a world.
enum Kind {
    Memory(Arc<MemoryStore>),
    /// In a file of the world's folder.
    Sqlite,
    /// One that was opened by the only process of the world.
    Opened(AnyStore),
}

/// Has a test done in a world of each kind of store.
pub(crate) fn each_store(test: impl Fn(&World)) {
    for world in [World::in_memory(), World::over_sqlite()] {
        println!("over {}", if world.is_in_memory() { "memory" } else { "SQLite" });
        test(&world);
    }
}

/// Properties whose cases are dozens of turns: one for so many of those that there usually are.
pub(crate) fn one_of(usual: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.div_ceil(usual), failure_persistence: None, ..config }
}

/// The id of the request that waits at a path, such as `c1`; the path itself if none does.
pub(crate) async fn id_at(session: &SessionHandle, path: &str) -> String {
    let ids = session.pending().await.unwrap().into_iter().map(|request| request.id);
    ids.into_iter().find(|id| path_of(id) == path).unwrap_or_else(|| path.to_owned())
}

/// Where something is asked: the id of its request without the digest.
pub(crate) fn path_of(id: &str) -> &str {
    id.rsplit_once('#').map_or(id, |(path, _)| path)
}

/// Where something waits for a decision.
pub(crate) fn paths(pending: &[ApprovalRequest]) -> Vec<&str> {
    pending.iter().map(|request| path_of(&request.id)).collect()
}

/// A process: when its future is done, whatever it has started is gone.
pub(crate) fn process<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

/// A process with threads.
pub(crate) fn threads<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

impl World {
    pub(crate) fn in_memory() -> Self {
        World::over(Kind::Memory(Arc::default()))
    }

    pub(crate) fn over_sqlite() -> Self {
        World::over(Kind::Sqlite)
    }

    /// One whose processes are one, which has opened the store.
    pub(crate) fn over_opened(store: AnyStore) -> Self {
        World::over(Kind::Opened(store))
    }

    fn over(store: Kind) -> Self {
        let trace = Trace::default();
        let wire = Arc::new(Wire { trace: trace.clone(), ..Wire::default() });
        World { store, folder: tempfile::tempdir().unwrap(), wire, trace, names: Names(Arc::default()) }
    }

    /// The store, as a process opens it.
    pub(crate) fn store(&self) -> Watched {
        let store = match &self.store {
            Kind::Memory(memory) => AnyStore::new(Arc::clone(memory)),
            Kind::Sqlite => AnyStore::new(SqliteStore::open(self.folder.path().join("sessions.db")).unwrap()),
            Kind::Opened(store) => store.clone(),
        };
        Watched { store, wire: Arc::clone(&self.wire) }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.store, Kind::Memory(_))
    }

    /// A runner of a process of its own.
    pub(crate) fn runner(&self, agent: Agent) -> RunnerBuilder {
        Runner::builder(agent, self.store())
            .app("stalls")
            .unwrap()
            .worker("worker")
            .unwrap()
            .ids(self.names.clone())
            .clock(Still)
    }

    /// The session of all tests that need but one, as this agent has it in a process of its own.
    pub(crate) async fn session(&self, agent: AgentBuilder) -> SessionHandle {
        self.runner(agent.build().unwrap()).build().session("ada", "s1").await.unwrap()
    }

    /// An agent that says these lines, and has a tool of each effect. With a hook after tools, so that each outcome is a
    /// commit of its own, also of calls that end at the same moment.
    pub(crate) fn agent(&self, script: &str) -> AgentBuilder {
        self.agent_of(Script::parse(script).unwrap())
    }

    /// The same whose model is overloaded.
    pub(crate) fn overloaded(&self) -> AgentBuilder {
        let error = ModelError::new(ModelErrorKind::Overloaded, "come back later");
        self.agent_of(Script::parse("").unwrap().then_fail(error))
    }

    fn agent_of(&self, model: Script) -> AgentBuilder {
        let model = Loud { model, trace: self.trace.clone() };
        let tools = [
            self.tool("look", Effect::Pure),
            self.tool("save", Effect::Idempotent),
            self.tool("pay", Effect::AtMostOnce),
        ];
        Agent::builder(model)
            .name("clerk")
            .schema(schema())
            .tools(tools.map(|tool| tool.build().unwrap()).to_vec())
            .after_tool(async |_: HookContext| Ok(HookAction::proceed()))
    }

    /// A tool that leaves its idempotency key in the trace, and its name in the state.
    pub(crate) fn tool(&self, name: &str, effect: Effect) -> ToolBuilder {
        let (trace, word) = (self.trace.clone(), name.to_owned());
        let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let (trace, word) = (trace.clone(), word.clone());
            async move {
                let arguments = match arguments.as_object().is_some_and(serde_json::Map::is_empty) {
                    true => String::new(),
                    false => arguments.to_string(),
                };
                trace.note(format!("{word}{arguments} {}", without_life(context.idempotency_key())));
                for (key, value) in [("log", json!([word])), ("n", json!(1)), ("app:n", json!(1))] {
                    context.writer().set(key, value)?;
                }
                context.writer().set("user:n", json!(1))?;
                Ok::<_, ToolError>(json!(format!("{word} is done")))
            }
        };
        Tool::new(name, "Does what its name says.", function)
            .parameters(json!({"additionalProperties": true, "type": "object"}))
            .writes(["log", "n", "app:n", "user:n"])
            .effect(effect)
    }

    /// Everything that is stored, as bytes.
    pub(crate) fn stored_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for file in std::fs::read_dir(self.folder.path()).unwrap() {
            // The log of a database goes away when its last connection closes.
            bytes.extend(std::fs::read(file.unwrap().path()).unwrap_or_default());
        }
        bytes
    }
}

/// Ids of requests without their digests, which name the life of the session.
pub(crate) fn without_digests(text: &str) -> String {
    const DIGITS: usize = 16;
    let mut parts = text.split('#');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_digest =
            part.len() >= DIGITS && part.bytes().take(DIGITS).all(|byte| byte.is_ascii_hexdigit());
        plain.push('#');
        plain.push_str(if is_digest { &part[DIGITS..] } else { part });
    }
    plain
}

/// Keys, and what runs are called, without what is another for each life of a session.
pub(crate) fn without_life(text: &str) -> String {
    let mut parts = text.split('@');
    let mut stable = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('/') {
            Some((life, rest)) if life.chars().all(char::is_alphanumeric) => {
                stable.push('/');
                stable.push_str(rest);
            }
            _ => {
                stable.push('@');
                stable.push_str(part);
            }
        }
    }
    stable
}

pub(crate) fn schema() -> Schema {
    Schema::builder()
        .key::<u64>("app:n")
        .handler(Handler::sum())
        .key::<Vec<String>>("log")
        .key::<u64>("n")
        .handler(Handler::sum())
        .key::<String>("temp:note")
        .key::<String>("topic")
        .key::<u64>("user:n")
        .handler(Handler::sum())
        .build()
        .unwrap()
}

/// The conversation and the values of a session, as they are stored.
pub(crate) async fn shown(session: &SessionHandle) -> String {
    let stored = session.read(EventRange::All).await.unwrap();
    let mut text = session.last_run().await.unwrap().unwrap().transcript().to_string();
    let Value::Object(values) = stored.to_json() else { unreachable!() };
    for (key, value) in values.into_iter().collect::<BTreeMap<_, _>>() {
        writeln!(text, "{key} = {value}").unwrap();
    }
    text
}

/// Time stands still: whatever two processes do has the same time-stamps.
#[derive(Clone, Copy)]
pub(crate) struct Still;

impl WallClock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000)
    }
}

/// A clock that a test advances. All its clones show the same time.
#[derive(Clone)]
pub(crate) struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        ManualClock(Arc::new(AtomicI64::new(1_700_000_000_000_000)))
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.0.fetch_add(i64::try_from(time.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Steps by so many seconds, also backwards, as the clock of a system may.
    pub(crate) fn step(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl WallClock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// Recovers until nothing is left to do.
pub(crate) async fn recover(runner: &Runner) {
    runner.recover(RecoverOptions::new().once()).await.unwrap();
}

/// How the last run of a session has ended, if it has.
pub(crate) async fn exit_of_last_run(session: &SessionHandle) -> Option<Exit> {
    session.last_run().await.unwrap().and_then(|run| run.exit().cloned())
}

/// i1, i2, i3, over all processes.
#[derive(Clone)]
struct Names(Arc<AtomicU64>);

impl Ids for Names {
    fn next(&self) -> String {
        format!("i{}", self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// A model that notes that it is asked.
struct Loud<M> {
    model: M,
    trace: Trace,
}

impl<M: ChatModel> ChatModel for Loud<M> {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.trace.note("the model is asked");
        self.model.respond(request)
    }
}

/// A model that says what users have said since it said something.
pub(crate) struct Echo;

impl ChatModel for Echo {
    fn id(&self) -> &'static str {
        "test/echo"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        request.messages.check().unwrap();
        let mut said = Vec::new();
        for message in &request.messages {
            match message.role() {
                Role::User => said.push(message.text().into_owned()),
                _ => said.clear(),
            }
        }
        let chunks = [Chunk::Text(format!("re: {}", said.join(", "))), Chunk::Finished(FinishReason::Stop)];
        ReplyStream::from_chunks(chunks)
    }
}

/// A fault of an append.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// It is not made, and never will be.
    Broken,
    /// It is not made, this time.
    Busy,
    /// It is made, and its acknowledgement is lost.
    Lost,
    /// The process dies before it is made.
    DiesBefore,
    /// The process dies after it was made.
    DiesAfter,
}

/// The wire to the store: what goes over it, and what happens to it.
#[derive(Default)]
pub(crate) struct Wire {
    trace: Trace,
    faults: Mutex<BTreeMap<usize, Fault>>,
    appends: AtomicUsize,
    /// What another worker does before the append with this number is made.
    meanwhile: Mutex<Option<(usize, BoxFuture<'static, ()>)>>,
    /// What another worker does before the read with this number is made.
    meanwhile_read: Mutex<Option<(usize, BoxFuture<'static, ()>)>>,
    /// What another worker does before an inbox is read.
    meanwhile_inbox: Mutex<Option<BoxFuture<'static, ()>>>,
    /// What was committed that is not an append.
    commits: Mutex<Vec<&'static str>>,
    is_loud: AtomicBool,
    died: Notify,
    /// How often a session was read, and how many events were returned.
    reads: AtomicUsize,
    events: AtomicUsize,
    /// The keys whose values were read; of lists of which new items were read, with their number.
    values: Mutex<Vec<String>>,
}

impl Wire {
    /// From now on the appends, forks and rewinds are counted from 0, and this happens to some.
    pub(crate) fn faults(&self, faults: impl IntoIterator<Item = (usize, Fault)>) {
        *self.faults.lock().unwrap() = faults.into_iter().collect();
        self.appends.store(0, Ordering::SeqCst);
    }

    /// Their number since.
    pub(crate) fn appends(&self) -> usize {
        self.appends.load(Ordering::SeqCst)
    }

    /// From now on the appends, forks and rewinds are counted from 0, and this happens before one of them is made.
    pub(crate) fn before(&self, append: usize, happens: impl Future<Output = ()> + Send + 'static) {
        self.faults([]);
        *self.meanwhile.lock().unwrap() = Some((append, Box::pin(happens)));
    }

    fn take_meanwhile(&self, append: usize) -> Option<BoxFuture<'static, ()>> {
        self.meanwhile.lock().unwrap().take_if(|(number, _)| *number == append).map(|(_, happens)| happens)
    }

    /// From now on the reads of sessions are counted from 0, and this happens before one of them is made.
    pub(crate) fn before_read(&self, read: usize, happens: impl Future<Output = ()> + Send + 'static) {
        self.take_reads();
        *self.meanwhile_read.lock().unwrap() = Some((read, Box::pin(happens)));
    }

    fn take_meanwhile_read(&self) -> Option<BoxFuture<'static, ()>> {
        let read = self.reads.load(Ordering::SeqCst);
        self.meanwhile_read.lock().unwrap().take_if(|(number, _)| *number == read).map(|(_, happens)| happens)
    }

    /// This happens before the next read of an inbox is made.
    pub(crate) fn before_inbox(&self, happens: impl Future<Output = ()> + Send + 'static) {
        *self.meanwhile_inbox.lock().unwrap() = Some(Box::pin(happens));
    }

    fn take_meanwhile_inbox(&self) -> Option<BoxFuture<'static, ()>> {
        self.meanwhile_inbox.lock().unwrap().take()
    }

    /// From now on what goes over it is noted in the trace.
    pub(crate) fn listen(&self) {
        self.is_loud.store(true, Ordering::SeqCst);
    }

    /// Reads and events read since the last look.
    pub(crate) fn take_reads(&self) -> (usize, usize) {
        (self.reads.swap(0, Ordering::SeqCst), self.events.swap(0, Ordering::SeqCst))
    }

    /// The keys of the values that were read since the last look.
    pub(crate) fn take_values(&self) -> Vec<String> {
        std::mem::take(&mut self.values.lock().unwrap())
    }

    /// What was committed since the last look beside appends, forks and rewinds.
    pub(crate) fn take_commits(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.commits.lock().unwrap())
    }

    fn commits(&self, what: &'static str) {
        self.commits.lock().unwrap().push(what);
    }

    /// A process that may die before it is done.
    pub(crate) fn process<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        process(self.until_it_dies(future))
    }

    /// What a process does until it dies, if it does; another one continues.
    pub(crate) async fn until_it_dies<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.died.notified() => None,
            done = future => Some(done),
        }
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.is_loud.load(Ordering::SeqCst) {
            self.trace.note(what());
        }
    }

    async fn die<T>(&self) -> T {
        self.died.notify_one();
        std::future::pending().await
    }
}

/// Methods of a store that another one does.
macro_rules! hand_on {
    ($store:tt => $($method:ident: $request:ty => $answer:ty;)*) => {
        $(async fn $method(&self, request: $request) -> Result<$answer, SessionError> {
            self.$store.$method(request).await
        })*
    };
}

pub(crate) use hand_on;

/// A module with one test for each of the three stores, which pass an empty store to a function. The test with PostgreSQL is
/// skipped where there is no server.
macro_rules! over_each_store {
    ($name:ident: $check:ident) => {
        mod $name {
            use stepfold_runner::session_scopes::{AnyStore, MemoryStore, SqliteStore};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_memory() {
                super::$check(AnyStore::new(MemoryStore::new())).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn over_sqlite() {
                let folder = tempfile::tempdir().unwrap();
                super::$check(AnyStore::new(SqliteStore::open(folder.path().join("sessions.db")).unwrap()))
                    .await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn over_postgresql() {
                let Some(server) = crate::crash::server::server() else { return };
                let store = crate::crash::store::open(&server.database(stringify!($check)).await).await;
                super::$check(store).await;
            }
        }
    };
}

pub(crate) use over_each_store;

/// A store at the end of a wire.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) store: AnyStore,
    wire: Arc<Wire>,
}

impl Watched {
    /// Has something written, unless what is to happen to it is something else.
    async fn write<T>(
        &self,
        what: &'static str,
        name: String,
        write: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        let number = self.wire.appends.fetch_add(1, Ordering::SeqCst);
        if let Some(meanwhile) = self.wire.take_meanwhile(number) {
            meanwhile.await;
        }
        let fault = self.wire.faults.lock().unwrap().get(&number).copied();
        let lost = || SessionError::Unavailable { what, source: "it was lost".into() };
        match fault {
            Some(Fault::Broken) => {
                self.wire.note(|| format!("the store breaks: {name}"));
                return Err(SessionError::Store { what, source: "it is broken".into() });
            }
            Some(Fault::Busy) => {
                self.wire.note(|| format!("the store is busy: {name}"));
                return Err(lost());
            }
            Some(Fault::DiesBefore) => return self.wire.die().await,
            None | Some(Fault::Lost | Fault::DiesAfter) => {}
        }
        // Others have their turn in between, also where the store is quick.
        tokio::task::yield_now().await;
        let written = write.await?;
        match fault {
            Some(Fault::Lost) => Err(lost()),
            Some(Fault::DiesAfter) => self.wire.die().await,
            _ => Ok(written),
        }
    }
}

impl SessionStore for Watched {
    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        let name = format!("{} {}", request.event.kind, request.event.id);
        let append = async {
            let appended = self.store.append(request).await;
            self.wire.note(|| match &appended {
                Ok(receipt) => format!("stored: {name} at {}", receipt.version),
                Err(_) => format!("refused: {name}"),
            });
            appended
        };
        self.write("append an event", name.clone(), append).await
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        if let Some(meanwhile) = self.wire.take_meanwhile_read() {
            meanwhile.await;
        }
        tokio::task::yield_now().await;
        let session = self.store.get(request).await?;
        self.wire.reads.fetch_add(1, Ordering::SeqCst);
        self.wire.events.fetch_add(session.events.len(), Ordering::SeqCst);
        if let Some(values) = &session.values {
            let scopes = [&values.app, &values.user, &values.session];
            let whole = scopes.into_iter().flat_map(|values| values.iter().map(|(key, _)| key.to_owned()));
            let appended = scopes.into_iter().flat_map(ScopeValues::appended);
            let appended = appended.map(|(key, list)| format!("{key} +{}", list.items.len()));
            let mut keys: Vec<String> = whole.chain(appended).collect();
            keys.sort();
            self.wire.values.lock().unwrap().extend(keys);
        }
        Ok(session)
    }

    async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
        self.write("fork a session", "fork".to_owned(), self.store.fork(request)).await
    }

    async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
        self.write("rewind a session", "rewind".to_owned(), self.store.rewind(request)).await
    }

    hand_on! { store =>
        create: CreateSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        users: ListUsers => Vec<UserId>;
        unattended: ListUnattended => Vec<Unattended>;
        find_event: FindEvent => Option<u64>;
        find_tagged: FindTagged => Vec<Option<u64>>;
    }

    async fn inbox(&self, request: ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        if let Some(meanwhile) = self.wire.take_meanwhile_inbox() {
            meanwhile.await;
        }
        self.store.inbox(request).await
    }

    async fn claim(&self, request: ClaimSession) -> Result<Claim, SessionError> {
        self.wire.commits("claim");
        self.store.claim(request).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.wire.commits("renew");
        self.store.renew(request).await
    }

    async fn release(&self, request: ReleaseClaim) -> Result<(), SessionError> {
        self.wire.commits("release");
        self.store.release(request).await
    }

    async fn enqueue(&self, request: EnqueueInput) -> Result<Enqueued, SessionError> {
        self.wire.commits("enqueue");
        self.store.enqueue(request).await
    }

    async fn dequeue(&self, request: DequeueInput) -> Result<Vec<u64>, SessionError> {
        self.wire.commits("dequeue");
        self.store.dequeue(request).await
    }
}
