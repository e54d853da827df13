//! The law of invocations: each accepted request is taken once or withdrawn by name, and each caller who asks for its outcome, however
//! often and wherever, is told that of the run that took it. Clients do what clients do, by two processes over one store that
//! die, freeze, have their clocks set, and are started again with changed agents; a checker knows who may be told what.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use serde_json::json;
use stepfold_runner::agent_loop::{Agent, AskReason, Decision, Exit, HookAction};
use stepfold_runner::session_scopes::{
    AnyStore, CommittedEvent, Event, EventRange, MemoryStore, ReadInbox, Session, SessionStore, SqliteStore,
    Timestamp,
};
use stepfold_runner::{
    Invocation, InvocationResult, RecoverOptions, Runner, RunnerError, RunnerErrorKind, SessionHandle,
    WallClock, WhenBusy, WhenClaimed, is_unfinished,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_tools::{Approval, Effect, RawArgs, Tool, ToolContext, ToolError};
use tokio::runtime::Runtime;

use crate::crash::server::server;

const CLAIM: Duration = Duration::from_millis(240);
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a store, unless `PROPTEST_CASES` says how many.
const USUAL: u32 = 256;

/// A model that says what users have said since it said something. It does first what their messages begin with: it pays,
/// has a form filled in, or looks four times.
struct Clerk(Arc<AtomicU64>);

impl ChatModel for Clerk {
    fn id(&self) -> &'static str {
        "test/clerk"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.0.fetch_add(1, Ordering::SeqCst);
        request.messages.check().unwrap();
        let (mut said, mut called) = (Vec::new(), Vec::new());
        for message in &request.messages {
            match message.role() {
                Role::User => said.push(message.text().into_owned()),
                Role::Assistant if message.has_tool_calls() => {
                    called.extend(message.tool_calls().map(|call| call.name.clone()));
                }
                Role::Assistant => (said, called) = (Vec::new(), Vec::new()),
                _ => {}
            }
        }
        let wants = |letter: char| said.iter().any(|text| text.starts_with(letter));
        let count = |name: &str| called.iter().filter(|called| *called == name).count();
        let call = [('p', "pay", 1), ('f', "form", 1), ('l', "look", 4)]
            .into_iter()
            .find(|(letter, name, times)| wants(*letter) && count(name) < *times);
        let id = format!("c{}", request.messages.len());
        let (message, finish) = match call {
            Some((_, name, _)) => {
                let message = Message::new(Role::Assistant).with_part(ToolCall::new(id, name, json!({})));
                (message, FinishReason::ToolCalls)
            }
            None => (Message::assistant(format!("re: {}", said.join(", "))), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

/// What all processes of a schedule share.
#[derive(Clone, Default)]
struct Counts {
    /// Requests to the model, and calls.
    asked: Arc<AtomicU64>,
    called: Arc<AtomicU64>,
}

impl Counts {
    fn get(&self) -> (u64, u64) {
        (self.asked.load(Ordering::SeqCst), self.called.load(Ordering::SeqCst))
    }

    fn tool(&self, name: &'static str) -> Tool {
        let called = Arc::clone(&self.called);
        let run = move |_: RawArgs, context: ToolContext| {
            let called = Arc::clone(&called);
            async move {
                if name == "form" {
                    return context.later("form").outcome();
                }
                called.fetch_add(1, Ordering::SeqCst);
                Ok::<_, ToolError>(json!(name))
            }
        };
        let effect = if name == "form" { Effect::Idempotent } else { Effect::AtMostOnce };
        let tool = Tool::new(name, "Does it.", run).parameters(json!({"type": "object"})).effect(effect);
        let tool = if name == "pay" { tool.approval(Approval::Always) } else { tool };
        tool.build().unwrap()
    }

    /// The agent, in one of its versions.
    fn agent(&self, version: usize, pause: u64) -> Agent {
        let slowly = move || async move {
            // tidy: allow sleep, because a run takes some time, or no client meets it.
            tokio::time::sleep(Duration::from_micros(pause)).await;
            Ok(HookAction::proceed())
        };
        let agent = Agent::builder(Clerk(Arc::clone(&self.asked)))
            .name("clerk")
            .tools(["pay", "form", "look"].map(|name| self.tool(name)))
            .before_model(move |_| slowly())
            .after_run(move |_| slowly());
        let agent = match version {
            0 => agent.max_steps(20),
            1 => agent.max_steps(2),
            _ => agent.max_steps(20).before_run(move |_| slowly()).instructions("Be brief."),
        };
        agent.build().unwrap()
    }
}

/// The clock of the host, which an administrator sets.
#[derive(Clone, Default)]
struct Watch(Arc<AtomicI64>);

impl Watch {
    fn step(&self, hours: i64) {
        self.0.fetch_add(hours * 3_600_000_000, Ordering::SeqCst);
    }
}

impl WallClock for Watch {
    #[expect(clippy::disallowed_methods, reason = "it goes on as that of the system does")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        Timestamp::from_micros(i64::try_from(since).unwrap() + self.0.load(Ordering::SeqCst))
    }
}

/// Where the sessions of a schedule are.
enum Place {
    Memory(Arc<MemoryStore>),
    File(tempfile::TempDir),
    Postgres(String),
}

impl Place {
    async fn open(&self) -> AnyStore {
        match self {
            Place::Memory(store) => AnyStore::new(Arc::clone(store)),
            Place::File(folder) => {
                AnyStore::new(SqliteStore::open(folder.path().join("sessions.db")).unwrap())
            }
            Place::Postgres(address) => crate::crash::store::open(address).await,
        }
    }
}

/// A process: when its runtime is gone, so is whatever it has begun.
struct Process {
    runtime: Option<Runtime>,
    session: SessionHandle,
    runner: Runner,
}

impl Process {
    fn start(place: &Place, name: &str, agent: Agent, watch: Watch) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (runner, session) = runtime.block_on(async {
            let runner = Runner::builder(agent, place.open().await).app("law").unwrap().worker(name).unwrap();
            let runner =
                runner.claim_for(CLAIM).when_claimed(WhenClaimed::Wait { at_most: PATIENCE }).max_waiting(4);
            let runner = runner.clock(watch).build();
            let session = runner.session("ada", "s1").await.unwrap();
            (runner, session)
        });
        Process { runtime: Some(runtime), session, runner }
    }

    fn does<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().unwrap();
        // On a thread of the runtime, as the requests of a server are.
        runtime
            .block_on(runtime.spawn(async { tokio::time::timeout(PATIENCE, future).await }))
            .unwrap()
            .expect("it hangs")
    }

    fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.as_ref().unwrap().spawn(future);
    }

    /// Does nothing for a time, on its only thread: neither a step nor a heartbeat.
    fn freezes(&self, time: Duration) {
        // tidy: allow sleep, because a process is frozen for as long as a test says.
        self.spawn(async move { std::thread::sleep(time) });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

/// What a client was told of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// That its run ended so, with this text.
    End(String, String),
    /// That it was withdrawn.
    Withdrawn,
    /// Anything else: that something comes first, has failed, or is to be asked elsewhere.
    NotYet(String),
}

impl Told {
    fn of(ended: &InvocationResult) -> Self {
        match ended {
            Ok(outcome) if !outcome.exit().is_resumable() => {
                Told::End(outcome.exit().to_string(), outcome.text().into_owned())
            }
            Ok(outcome) => Told::NotYet(outcome.exit().to_string()),
            Err(RunnerError { kind: RunnerErrorKind::Withdrawn, .. }) => Told::Withdrawn,
            Err(error) => Told::NotYet(error.to_string()),
        }
    }
}

/// A message that was sent, by its key, which is its text.
#[derive(Debug, Default)]
struct Sent {
    busy: WhenBusy,
    /// When it was first sent, and first known to be accepted, by the number of the action.
    first: usize,
    accepted: Option<usize>,
    /// Whether a client has cancelled or withdrawn it by its name.
    is_named: bool,
    /// Whether it was withdrawn for certain.
    is_withdrawn: bool,
    told: BTreeSet<Told>,
}

#[derive(Debug, Default)]
struct Ledger {
    sent: BTreeMap<String, Sent>,
    /// By the keys of decisions and completions: request or token, version of the receipt, and what was told of the run.
    decided: BTreeMap<String, Decided>,
    /// What may have cancelled a run.
    cancels: Vec<Cancel>,
    /// When a client was told that a run was cancelled.
    cancelled: Vec<usize>,
}

/// What may have cancelled a run, and which one.
#[derive(Debug)]
enum Cancel {
    /// That which takes the message with this key.
    Named(String),
    /// One whose first message was sent before this action.
    Before(usize),
}

#[derive(Debug, Default)]
struct Decided {
    /// The request, or the token.
    about: String,
    is_token: bool,
    versions: BTreeSet<u64>,
    told: BTreeSet<Told>,
}

type Book = Arc<Mutex<Ledger>>;

/// A schedule: what clients do, by chance.
struct Schedule {
    dice: Rng,
    place: Place,
    counts: Counts,
    processes: [Option<Process>; 2],
    watch: Watch,
    book: Book,
    forks: Vec<String>,
    action: usize,
}

const NAMES: [&str; 2] = ["one", "two"];
const POLICIES: [WhenBusy; 4] = [WhenBusy::Wait, WhenBusy::Steer, WhenBusy::Interrupt, WhenBusy::Refuse];

impl Schedule {
    fn new(seed: u64, place: Place) -> Self {
        let (dice, book, counts) = (Rng::with_seed(seed), Book::default(), Counts::default());
        let (processes, watch, forks) = ([None, None], Watch::default(), Vec::new());
        let mut schedule = Schedule { dice, place, counts, processes, watch, book, forks, action: 0 };
        (0..2).for_each(|at| schedule.restart(at));
        schedule
    }

    /// The process dies, and is started again with some version of the agent.
    fn restart(&mut self, at: usize) {
        self.processes[at] = None;
        let version = [0, 0, 0, 1, 2][self.dice.usize(..5)];
        let agent = self.counts.agent(version, self.dice.u64(..8_000));
        self.processes[at] = Some(Process::start(&self.place, NAMES[at], agent, self.watch.clone()));
    }

    fn process(&self, at: usize) -> &Process {
        self.processes[at].as_ref().unwrap()
    }

    fn act(&mut self) {
        self.action += 1;
        let at = self.dice.usize(..2);
        match self.dice.usize(..28) {
            0..=7 => self.send_new(at),
            8..=12 => self.send_again(at),
            13..=14 => self.cancel(at),
            15 => self.withdraw(at),
            16..=18 => self.decide(at),
            19..=20 => self.decide_again(at),
            21 => self.restart(at),
            22 if self.dice.bool() => self.create_again(at),
            23 => {
                let half_claims = self.dice.u32(1..5);
                self.process(at).freezes(CLAIM / 2 * half_claims);
            }
            24 => self.set_clock(),
            25 => self.fork(at),
            // tidy: allow sleep, because chance decides when the next client acts.
            _ => std::thread::sleep(Duration::from_millis(self.dice.u64(..30))),
        }
        // tidy: allow sleep, because chance decides when the next client acts.
        std::thread::sleep(Duration::from_micros(self.dice.u64(..4_000)));
    }

    fn send_new(&mut self, at: usize) {
        let letter = ['m', 'm', 'm', 'l', 'p', 'f'][self.dice.usize(..6)];
        let busy = POLICIES[self.dice.usize(..4)];
        let key = format!("{letter}{}", self.action);
        let sent = Sent { busy, first: self.action, ..Sent::default() };
        self.book.lock().unwrap().sent.insert(key.clone(), sent);
        let may_be_cancelled = self.dice.bool();
        self.send(at, &key, may_be_cancelled);
    }

    fn send_again(&mut self, at: usize) {
        let keys: Vec<String> = self.book.lock().unwrap().sent.keys().cloned().collect();
        if let Some(key) = self.dice.choice(keys) {
            self.send(at, &key, true);
        }
    }

    /// Sends a message under its key, and listens to what is told of it.
    fn send(&mut self, at: usize, key: &str, may_be_cancelled: bool) {
        let (busy, book, action) =
            (self.book.lock().unwrap().sent[key].busy, Arc::clone(&self.book), self.action);
        let is_new = self.book.lock().unwrap().sent[key].accepted.is_none();
        if busy == WhenBusy::Interrupt && is_new {
            self.book.lock().unwrap().cancels.push(Cancel::Before(action));
        }
        let (session, text) = (self.process(at).session.when_busy(busy), key.to_owned());
        let sent = self.process(at).does(async move { session.send_once(text.clone(), text).await });
        match sent {
            Ok(invocation) => {
                assert_eq!(invocation.id().as_str(), key);
                note(&book, key, |sent| sent.accepted = sent.accepted.or(Some(action)));
                self.listen(at, key, invocation, may_be_cancelled);
            }
            Err(error) => assert!(is_honest(&error), "{key}: {error:?}"),
        }
    }

    fn listen(&mut self, at: usize, key: &str, invocation: Invocation, may_be_cancelled: bool) {
        if may_be_cancelled && self.dice.usize(..8) == 0 {
            note(&self.book, key, |sent| sent.is_named = true);
            self.book.lock().unwrap().cancels.push(Cancel::Named(key.to_owned()));
            invocation.cancel();
        }
        let (book, key) = (Arc::clone(&self.book), key.to_owned());
        self.process(at).spawn(async move {
            let told = Told::of(&invocation.outcome().await);
            note(&book, &key, |sent| {
                sent.told.insert(told);
            });
        });
    }

    #[expect(clippy::disallowed_methods, reason = "what a client is told depends on how long it has waited")]
    fn cancel(&mut self, at: usize) {
        self.book.lock().unwrap().cancels.push(Cancel::Before(self.action));
        let (session, began) = (self.process(at).session.clone(), Instant::now());
        let cancelled = self.process(at).does(async move { session.cancel_everywhere().await });
        // After two heartbeats the request is only stored.
        let is_certain = began.elapsed() < CLAIM / 2;
        match cancelled {
            Ok(true) if is_certain => self.book.lock().unwrap().cancelled.push(self.action),
            Ok(_) => {}
            Err(error) => assert!(is_honest(&error), "{error:?}"),
        }
    }

    fn withdraw(&mut self, at: usize) {
        let session = self.process(at).session.clone();
        let waiting = self.process(at).does(async move { session.inbox().await });
        let Some(message) = waiting.ok().and_then(|waiting| self.dice.choice(waiting)) else { return };
        note(&self.book, message.id.as_str(), |sent| sent.is_named = true);
        let (session, id) = (self.process(at).session.clone(), message.id.clone());
        if self
            .process(at)
            .does(async move { session.withdraw(&id).await })
            .is_ok_and(|is_withdrawn| is_withdrawn)
        {
            note(&self.book, message.id.as_str(), |sent| sent.is_withdrawn = true);
        }
    }

    /// Decides about a request, or delivers what one waits for.
    fn decide(&mut self, at: usize) {
        let session = self.process(at).session.clone();
        let pending = self.process(at).does(async move { session.pending().await });
        let Some(request) = pending.ok().and_then(|pending| self.dice.choice(pending)) else { return };
        let is_token = request.reason == AskReason::Later;
        let about = if is_token { request.token.unwrap() } else { request.id };
        let key = if is_token { about.clone() } else { format!("d-{about}") };
        let decided = Decided { about, is_token, ..Decided::default() };
        self.book.lock().unwrap().decided.entry(key.clone()).or_insert(decided);
        self.deliver(at, &key);
    }

    fn decide_again(&mut self, at: usize) {
        let keys: Vec<String> = self.book.lock().unwrap().decided.keys().cloned().collect();
        if let Some(key) = self.dice.choice(keys) {
            self.deliver(at, &key);
        }
    }

    fn deliver(&mut self, at: usize, key: &str) {
        let book = self.book.lock().unwrap();
        let (about, is_token) = (book.decided[key].about.clone(), book.decided[key].is_token);
        drop(book);
        let (session, runner, book) =
            (self.process(at).session.clone(), self.process(at).runner.clone(), Arc::clone(&self.book));
        let key = key.to_owned();
        // A worker that is at work comes first: no client waits for that here.
        self.process(at).spawn(async move {
            let submitted = if is_token {
                runner.complete(&about, Ok(json!("filled in"))).await.map(|receipt| (receipt, None))
            } else {
                let resume = session.resume().decide(about, Decision::Approve).idempotency_key(key.clone());
                resume.submit().await.map(|(receipt, invocation)| (receipt, Some(invocation)))
            };
            let Ok((receipt, invocation)) = submitted else { return };
            let noted = |change: &mut dyn FnMut(&mut Decided)| {
                if let Some(decided) = book.lock().unwrap().decided.get_mut(&key) {
                    change(decided);
                }
            };
            noted(&mut |decided| {
                decided.versions.insert(receipt.version);
            });
            if let Some(invocation) = invocation {
                let told = Told::of(&invocation.outcome().await);
                noted(&mut |decided| {
                    decided.told.insert(told.clone());
                });
            }
        });
    }

    /// The clock is set by two hours, for good or for a while. A worker that dies before it has renewed its claim by the
    /// right clock again is not tried: such a claim is as long as the clock was ahead.
    fn set_clock(&mut self) {
        let hours = if self.dice.bool() { 2 } else { -2 };
        self.watch.step(hours);
        if hours < 0 || self.dice.bool() {
            // tidy: allow sleep, because the clock is wrong for a time.
            std::thread::sleep(Duration::from_millis(self.dice.u64(..300)));
            // None of them is frozen.
            (0..2).for_each(|at| self.process(at).does(async {}));
            self.watch.step(-hours);
            // tidy: allow sleep, because heartbeats come by the time of day that has passed.
            std::thread::sleep(CLAIM);
        }
    }

    /// A fork at some version.
    fn fork(&mut self, at: usize) {
        let (session, id, place) =
            (self.process(at).session.clone(), format!("fork-{}", self.action), self.dice.u64(..9));
        let forked = self.process(at).does(async move {
            let newest = session.read(EventRange::None).await?.version;
            let version = (newest * place).div_ceil(8).min(newest);
            session.fork(id, Some(version)).await
        });
        match forked {
            Ok(fork) => self.forks.push(fork.key().id.as_str().to_owned()),
            Err(error) => assert!(is_honest(&error), "{error:?}"),
        }
    }

    /// The session is deleted, and made again: what was sent to it is no more.
    fn create_again(&mut self, at: usize) {
        let (session, runner) = (self.process(at).session.clone(), self.process(at).runner.clone());
        let is_deleted = self.process(at).does(async move {
            let is_deleted = session.delete(false).await.is_ok();
            runner.session("ada", "s1").await.unwrap();
            is_deleted
        });
        if is_deleted {
            // What listens to it still has the old book.
            self.book = Book::default();
        }
    }
}

fn note(book: &Book, key: &str, change: impl FnOnce(&mut Sent)) {
    if let Some(sent) = book.lock().unwrap().sent.get_mut(key) {
        change(sent);
    }
}

/// Whether an error tells a client what to do.
fn is_honest(error: &RunnerError) -> bool {
    !matches!(
        error.kind,
        RunnerErrorKind::Panicked | RunnerErrorKind::Record { .. } | RunnerErrorKind::InvalidId { .. }
    )
}

async fn settle(runner: Runner, session: SessionHandle, book: Book) {
    for _ in 0..400 {
        // In this order: what is taken in between is a run that has not ended.
        let is_empty = session.inbox().await.unwrap().is_empty();
        let ended = match session.unfinished().await {
            Ok(None) if is_empty && session.running().is_none() => return,
            Ok(None) => session.resume().await,
            Ok(Some(run)) => {
                let decisions = run.pending().into_iter().map(|request| match request.is_later() {
                    true => (request.id, Decision::Complete { outcome: json!("filled in") }),
                    false => (request.id, Decision::Approve),
                });
                session.resume().decide_all(decisions.collect::<Vec<_>>()).with_changed_agent().await
            }
            Err(error) => Err(error),
        };
        match ended {
            // Another version of the agent began it.
            Err(RunnerError {
                kind: RunnerErrorKind::Recover { .. } | RunnerErrorKind::AgentChanged { .. },
                ..
            }) => {
                book.lock().unwrap().cancels.push(Cancel::Before(usize::MAX));
                session.abandon().await.unwrap();
            }
            Err(error) => assert!(is_honest(&error), "{error:?}"),
            Ok(_) => {}
        }
        if runner.recover(RecoverOptions::new().once()).await.is_err() {
            // tidy: allow sleep, because claims expire by the time of the store.
            tokio::time::sleep(CLAIM).await;
        }
    }
    panic!("what waits is not taken: {:?}", session.inbox().await);
}

impl Schedule {
    /// Until nothing waits any more: each request is decided, and each run has ended.
    fn quiesce(&mut self) {
        for at in 0..2 {
            self.processes[at] = None;
        }
        // Claims of the dead expire.
        // tidy: allow sleep, because claims expire by the time of the store.
        std::thread::sleep(CLAIM);
        let last = Process::start(&self.place, "last", self.counts.agent(0, 0), self.watch.clone());
        last.does(settle(last.runner.clone(), last.session.clone(), Arc::clone(&self.book)));
        self.processes[0] = Some(last);
    }

    fn read(&self) -> (Session, usize) {
        let (session, runner) = (self.process(0).session.clone(), self.process(0).runner.clone());
        self.process(0).does(async move {
            let left = runner.store().inbox(ReadInbox::new(session.key().clone())).await.unwrap().len();
            (session.read(EventRange::All).await.unwrap(), left)
        })
    }

    /// Checks what was told against the record, and that it is told again without anything being done.
    fn check(&mut self) {
        self.quiesce();
        let (session, left) = self.read();
        assert_eq!(left, 0, "something is left in the inbox");
        let runs = Run::all(&session);
        let newest = session.visible_events().last().map(|newest| is_unfinished(&newest.event));
        assert_ne!(newest, Some(true), "a run has not ended: {}", shown(&session));
        let book = Arc::clone(&self.book);
        for (key, sent) in &book.lock().unwrap().sent {
            check_sent(key, sent, &runs);
        }
        check_order(&book.lock().unwrap(), &runs);
        check_cancels(&book.lock().unwrap(), &runs);
        for decided in book.lock().unwrap().decided.values() {
            check_decided(decided, &runs);
        }
        let before = (session.version, self.counts.get());
        self.ask_again(&runs);
        let (session, left) = self.read();
        assert_eq!(
            (session.version, self.counts.get(), left),
            (before.0, before.1, 0),
            "something ran because it was asked again"
        );
        self.check_forks();
    }

    fn later(&self, version: usize) -> Process {
        Process::start(&self.place, "later", self.counts.agent(version, 0), self.watch.clone())
    }

    /// A fork tells whom it has from its origin the same, and runs nothing.
    fn check_forks(&mut self) {
        let book = Arc::clone(&self.book);
        for id in std::mem::take(&mut self.forks) {
            self.processes[0] = Some(self.later(0));
            let fork = self.process(0).runner.clone();
            let fork = self.process(0).does(async move { fork.session("ada", id).await.unwrap() });
            let read = fork.clone();
            let session = self.process(0).does(async move { read.read(EventRange::All).await.unwrap() });
            let mut runs = Run::all(&session);
            if session.visible_events().last().is_some_and(|newest| is_unfinished(&newest.event)) {
                runs.pop();
            }
            let before = (session.version, self.counts.get());
            for (run, key) in runs.iter().flat_map(|run| run.took.iter().map(move |key| (run, key))) {
                let Some(busy) = book.lock().unwrap().sent.get(key).map(|sent| sent.busy) else { continue };
                let (fork, text) = (fork.when_busy(busy), key.clone());
                let told = self.process(0).does(async move {
                    Told::of(&fork.send_once(text.clone(), text).await.unwrap().outcome().await)
                });
                assert_eq!(Some(told), run.end, "{key}, in a fork: {}", shown(&session));
            }
            let read = fork.clone();
            let after =
                self.process(0).does(async move { read.read(EventRange::None).await.unwrap().version });
            assert_eq!(
                (after, self.counts.get()),
                before,
                "something ran in a fork because it was asked again"
            );
            self.use_fork(fork, before.0);
        }
    }

    /// A fork has a life of its own: what waits in it is decided, what is sent to it is told, and what is cancelled ends,
    /// there and not in its origin.
    fn use_fork(&mut self, fork: SessionHandle, forked: u64) {
        let (origin, _) = self.read();
        let runner = self.process(0).runner.clone();
        let (session, before) = (fork.clone(), self.counts.get());
        let (told, waits, cancelled) = self.process(0).does(async move {
            settle(runner.clone(), session.clone(), Book::default()).await;
            // It answers as well what runs that were cancelled have left, with whatever that wants.
            let _ = session.send_once("m-first", "m-first").await.unwrap().outcome().await;
            settle(runner.clone(), session.clone(), Book::default()).await;
            let sent = session.send_once("m-fork", "m-fork").await.unwrap();
            let told = Told::of(&sent.outcome().await);
            let waiting = session.send_once("f-fork", "f-fork").await.unwrap();
            let waits = Told::of(&waiting.outcome().await);
            assert!(session.cancel_everywhere().await.unwrap());
            let cancelled = session.send_once("f-fork", "f-fork").await.unwrap();
            let again = session.send_once("m-fork", "m-fork").await.unwrap();
            assert_eq!(Told::of(&again.outcome().await), told);
            (told, waits, Told::of(&cancelled.outcome().await))
        });
        assert_eq!(told, Told::End(Exit::Text.to_string(), "re: m-fork".to_owned()));
        assert!(matches!(waits, Told::NotYet(_)), "{waits:?}");
        assert!(
            matches!(&cancelled, Told::End(exit, _) if *exit == Exit::Cancelled.to_string()),
            "{cancelled:?}"
        );
        let (after, left) = self.read();
        assert_eq!((after.version, left), (origin.version, 0), "a fork at {forked} has changed its origin");
        assert!(self.counts.get() > before);
    }

    /// Each caller is told the same, in a process that knows nothing, under each version of the agent.
    fn ask_again(&mut self, runs: &[Run]) {
        for version in 0..3 {
            self.processes[0] = None;
            self.processes[0] = Some(self.later(version));
            let sent: Vec<(String, WhenBusy)> = self
                .book
                .lock()
                .unwrap()
                .sent
                .iter()
                .filter(|(_, sent)| sent.accepted.is_some())
                .map(|(key, sent)| (key.clone(), sent.busy))
                .collect();
            for (key, busy) in sent {
                let (session, text) = (self.process(0).session.when_busy(busy), key.clone());
                let told = self.process(0).does(async move {
                    match session.send_once(text.clone(), text).await {
                        Ok(invocation) => Told::of(&invocation.outcome().await),
                        Err(error) => panic!("{error:?}"),
                    }
                });
                let run = runs.iter().find(|run| run.took.contains(&key));
                assert_eq!(
                    told,
                    run.map_or(Told::Withdrawn, |run| run.end.clone().unwrap()),
                    "{key}, by version {version}"
                );
            }
        }
    }
}

/// A run, by the record.
#[derive(Debug)]
struct Run {
    /// The messages of users that it took, which are their keys, in order.
    took: Vec<String>,
    end: Option<Told>,
    versions: Vec<u64>,
}

impl Run {
    fn all(session: &Session) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut current: Option<(String, String)> = None;
        for committed in session.visible_events() {
            let event: &Event = &committed.event;
            let id = event.invocation.as_str();
            if event.kind.as_str() == "began" {
                current = Some((id.to_owned(), String::new()));
                runs.push(Run { took: Vec::new(), end: None, versions: Vec::new() });
            }
            let (Some(run), Some((_, text))) =
                (runs.last_mut(), current.as_mut().filter(|(last, _)| last == id))
            else {
                continue;
            };
            run.versions.push(committed.version);
            for message in &event.messages {
                match message.role() {
                    Role::User => run.took.push(message.text().into_owned()),
                    Role::Assistant => *text = message.text().into_owned(),
                    _ => {}
                }
            }
            // One that another run follows before its end was abandoned.
            let exit = event.metadata.read::<Exit>("exit").unwrap_or(Exit::Cancelled);
            run.end = Some(Told::End(exit.to_string(), text.clone()));
        }
        runs
    }
}

/// The events of a session, a line each.
fn shown(session: &Session) -> String {
    let line = |it: &CommittedEvent| {
        let exit: Option<Exit> = it.event.metadata.read("exit");
        let said: Vec<String> = it
            .event
            .messages
            .iter()
            .map(|message| format!("{} {}", message.role(), message.text()))
            .collect();
        format!("{} {} {} {said:?} {exit:?}\n", it.version, it.event.kind, it.event.id)
    };
    session.visible_events().map(line).collect()
}

fn check_sent(key: &str, sent: &Sent, runs: &[Run]) {
    let took: Vec<&Run> = runs.iter().filter(|run| run.took.iter().any(|took| took == key)).collect();
    let times = runs.iter().flat_map(|run| &run.took).filter(|took| *took == key).count();
    assert!(times <= 1, "{key} was taken {times} times: {runs:#?}");
    let end = took.first().and_then(|run| run.end.clone());
    for told in &sent.told {
        match told {
            Told::End(..) => {
                assert_eq!(Some(told), end.as_ref(), "{key} was told of another run: {sent:#?} {runs:#?}");
            }
            Told::Withdrawn => {
                assert!(sent.is_named, "{key} was withdrawn by no client: {sent:#?}");
                assert!(took.is_empty(), "{key} was taken, and its sender told that it was not: {sent:#?}");
            }
            Told::NotYet(_) => {}
        }
    }
    match sent.accepted {
        Some(_) if took.is_empty() => {
            assert!(sent.is_named, "{key} was accepted, and is gone: {sent:#?} {runs:#?}");
        }
        _ if sent.is_withdrawn => assert!(took.is_empty(), "{key} was withdrawn and taken"),
        _ => {}
    }
}

/// Messages that begin turns are taken in the order of their acceptance, where that is certain.
fn check_order(ledger: &Ledger, runs: &[Run]) {
    let place = |key: &str| runs.iter().position(|run| run.took.iter().any(|took| took == key));
    let turns = ledger.sent.iter().filter(|(_, sent)| sent.busy != WhenBusy::Steer);
    let turns: Vec<(usize, usize, usize, &String)> =
        turns.filter_map(|(key, sent)| Some((sent.first, sent.accepted?, place(key)?, key))).collect();
    for (_, accepted, first, one) in &turns {
        for (sent, _, second, other) in &turns {
            assert!(accepted >= sent || first < second, "{other} was taken before {one}: {runs:#?}");
        }
    }
}

/// Each run that was cancelled has a cancellation of its own that may have reached it, and a cancellation that was told has
/// reached one.
fn check_cancels(ledger: &Ledger, runs: &[Run]) {
    let is_cancelled =
        |run: &&Run| matches!(&run.end, Some(Told::End(exit, _)) if *exit == Exit::Cancelled.to_string());
    let is_named = |run: &&Run| {
        let named = |cancel: &Cancel| matches!(cancel, Cancel::Named(key) if run.took.contains(key));
        ledger.cancels.iter().any(named)
    };
    // A run without messages repairs what an abandoned one has left.
    // Of one that this ledger does not know, nothing later can be said.
    let first =
        |run: &Run| run.took.first().and_then(|key| ledger.sent.get(key)).map_or(0, |sent| sent.first);
    let cancelled: Vec<&Run> = runs.iter().filter(is_cancelled).filter(|run| !run.took.is_empty()).collect();
    let others: Vec<usize> = cancelled.iter().filter(|run| !is_named(run)).map(|run| first(run)).collect();
    for least in &others {
        let count = others.iter().filter(|first| *first >= least).count();
        let reach = |cancel: &&Cancel| matches!(cancel, Cancel::Before(action) if action > least);
        let may_reach = ledger.cancels.iter().filter(reach).count();
        assert!(
            count <= may_reach,
            "{count} runs since {least} were cancelled by {may_reach}: {ledger:#?} {runs:#?}"
        );
    }
    for told in &ledger.cancelled {
        let is_reached = cancelled.iter().map(|run| first(run)).any(|first| first < *told);
        assert!(is_reached, "a cancellation was told at {told} that did not happen: {ledger:#?} {runs:#?}");
    }
}

fn check_decided(decided: &Decided, runs: &[Run]) {
    assert!(decided.versions.len() <= 1, "two receipts: {decided:#?}");
    let run = runs.iter().find(|run| run.versions.iter().any(|version| decided.versions.contains(version)));
    for told in decided.told.iter().filter(|told| matches!(told, Told::End(..))) {
        assert_eq!(Some(told), run.and_then(|run| run.end.as_ref()), "{decided:#?} {runs:#?}");
    }
}

/// Has schedules played, some at a time: most of one is waiting.
fn play(count: u32, at_once: usize, place: impl Fn(u64) -> Place + Sync) {
    #[expect(clippy::disallowed_methods, reason = "a seed that failed is played again by it")]
    let first: u64 = std::env::var("LAW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let next = AtomicUsize::new(0);
    let played = || {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= count as usize {
                return;
            }
            let seed = first + number as u64;
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let mut schedule = Schedule::new(seed, place(seed));
                let actions = schedule.dice.usize(6..30);
                (0..actions).for_each(|_| schedule.act());
                schedule.check();
            }));
            assert!(ended.is_ok(), "LAW_SEED={seed}");
        }
    };
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..at_once).map(|_| threads.spawn(played)).collect();
        for thread in all {
            thread.join().unwrap();
        }
    });
}

/// As many as `PROPTEST_CASES` says; usually one for so many.
fn case_count(usual: u32) -> u32 {
    (proptest::test_runner::Config::default().cases * usual).div_ceil(USUAL)
}

#[test]
fn each_request_is_told_the_outcome_of_its_own() {
    play(case_count(120), 16, |_| Place::Memory(Arc::default()));
}

#[test]
fn each_request_is_told_the_outcome_of_its_own_over_sqlite() {
    play(case_count(60), 8, |_| Place::File(tempfile::tempdir().unwrap()));
}

#[test]
fn each_request_is_told_the_outcome_of_its_own_over_postgresql() {
    let Some(server) = server() else { return };
    play(case_count(24), 4, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Place::Postgres(runtime.block_on(server.database(&format!("law_{seed}"))))
    });
}
