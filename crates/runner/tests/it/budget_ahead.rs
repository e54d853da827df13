//! Reservations that ride in the append before a request: they cost no operation of their own, and whatever happens between
//! the append and the request, nothing is left open, and nothing counts that was not sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Exit, Pause};
use stepfold_runner::session_scopes::{
    AnyStore, AppId, AppendEvent, BudgetBalance, BudgetId, Claim, ClaimSession, CreateSession, DeleteSession,
    Deleted, DequeueInput, EnqueueInput, Enqueued, ForkSession, GetSession, InboxEntry, ListSessions,
    ListSpend, ListUnattended, MemoryStore, PruneSession, Pruned, ReadBudgets, ReadInbox, Receipt,
    ReleaseClaim, RenewClaim, Renewed, ReserveSpend, RewindSession, ScopeKey, ScopeValues, Session,
    SessionError, SessionPage, SessionStore, SettleOpen, SettleSpend, SpendRecord, SpendState, Unattended,
    WriteScope,
};
use stepfold_runner::{
    Budget, BudgetWindow, RecoverOptions, RunStatus, Runner, SessionHandle, SharedRateLimit, WhenBusy,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, ModelParams,
    ReplyStream, Role, ToolCall, Usage,
};
use stepfold_tools::{Tool, ToolError};
use stepfold_trim::token_counter;

use crate::world::{ManualClock, hand_on, over_each_store};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What happens after an append.
enum Next {
    Nothing,
    /// The answer is lost.
    Lost,
    /// The worker dies.
    Death,
}

type AfterAppend = Box<dyn Fn(&AppendEvent, &Receipt) -> Next + Send + Sync>;

/// A store with reservations in appends, that counts those of their own, and after each of whose appends something happens.
#[derive(Clone)]
struct Ahead {
    store: AnyStore,
    /// Operations on reservations beside appends.
    alone: Arc<AtomicU64>,
    after_append: Arc<OnceLock<AfterAppend>>,
    /// Whether it makes the reservations of appends.
    is_able: bool,
    /// Whether the process that has this handle of the store is dead: then nothing of it reaches the store.
    is_dead: Arc<AtomicBool>,
}

impl Ahead {
    fn over(store: AnyStore) -> Self {
        let (alone, after_append, is_dead) = (Arc::default(), Arc::default(), Arc::default());
        Ahead { store, alone, after_append, is_able: true, is_dead }
    }

    fn after_append(&self, then: impl Fn(&AppendEvent, &Receipt) -> Next + Send + Sync + 'static) {
        assert!(self.after_append.set(Box::new(then)).is_ok());
    }

    /// The same store, of another process.
    fn of_another_process(&self) -> Self {
        Ahead { is_dead: Arc::default(), ..self.clone() }
    }

    /// Waits for ever in a dead process.
    async fn check_alive(&self) {
        if self.is_dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    fn alone(&self) -> u64 {
        self.alone.load(Ordering::SeqCst)
    }

    async fn spend(&self) -> Vec<SpendRecord> {
        self.store.spend(ListSpend::new(AppId::new("shop").unwrap())).await.unwrap()
    }

    /// The sums of budget `all` in a window.
    async fn sums(&self, unit: &str, window: &str) -> (u64, u64) {
        let budget = BudgetId::new(format!(r#"[["app","shop"],"all","{unit}","{window}"]"#)).unwrap();
        let read = self.store.balances(ReadBudgets::new([budget])).await.unwrap();
        (read[0].settled, read[0].reserved)
    }
}

impl SessionStore for Ahead {
    async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
        self.check_alive().await;
        let receipt = self.store.append(request.clone()).await?;
        match self.after_append.get().map_or(Next::Nothing, |then| then(&request, &receipt)) {
            Next::Nothing => Ok(receipt),
            Next::Lost => Err(SessionError::Unavailable { what: "append", source: "it was lost".into() }),
            Next::Death => {
                self.is_dead.store(true, Ordering::SeqCst);
                std::future::pending().await
            }
        }
    }

    async fn reserve(&self, request: ReserveSpend) -> Result<Vec<BudgetBalance>, SessionError> {
        self.check_alive().await;
        self.alone.fetch_add(1, Ordering::SeqCst);
        self.store.reserve(request).await
    }

    async fn settle(&self, request: SettleSpend) -> Result<bool, SessionError> {
        self.check_alive().await;
        self.alone.fetch_add(1, Ordering::SeqCst);
        self.store.settle(request).await
    }

    async fn renew(&self, request: RenewClaim) -> Result<Renewed, SessionError> {
        self.check_alive().await;
        self.store.renew(request).await
    }

    fn reserves_with_appends(&self) -> bool {
        self.is_able
    }

    hand_on! { store =>
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        unattended: ListUnattended => Vec<Unattended>;
        claim: ClaimSession => Claim;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
        settle_open: SettleOpen => u64;
        balances: ReadBudgets => Vec<BudgetBalance>;
        spend: ListSpend => Vec<SpendRecord>;
    }
}

fn work() -> Tool {
    Tool::new("work", "Works.", async || Ok::<_, ToolError>("ok")).build().unwrap()
}

/// An agent that makes three steps of one call, and replies to a second message.
fn steps() -> Agent {
    let script = "assistant: > c1 work()\nassistant: > c2 work()\nassistant: > c3 work()\nassistant: done\n\
                  assistant: again";
    Agent::builder(Script::parse(script).unwrap()).tools([work()]).build().unwrap()
}

fn all() -> Budget {
    Budget::requests("all", 10)
}

/// The requests of a run take no operation of the store beside its appends, whatever budgets and limits it has.
async fn no_request_takes_an_operation_of_its_own(store: AnyStore) {
    let store = Ahead::over(store);
    let runner = Runner::builder(steps(), store.clone())
        .app("shop")
        .unwrap()
        .budget(all())
        .budget(Budget::tokens("day", 1_000_000).each(BudgetWindow::day("UTC").unwrap()))
        .budget(Budget::tokens("hours", 1_000_000).each(BudgetWindow::hours(12)))
        .rate_limit(SharedRateLimit::new("key").requests(1_000))
        // The part of a minute ends at no time that depends on this machine.
        .clock(ManualClock::new())
        .build();
    let session = runner.session("ada", "s1").await.unwrap();
    assert_eq!(session.run("hello").await.unwrap().text(), "done");
    let spent = store.spend().await;
    assert_eq!((store.alone(), spent.len()), (0, 4));
    assert!(spent.iter().all(|record| record.state != SpendState::Reserved), "{spent:?}");
    assert_eq!(store.sums("requests", "ever").await, (4, 0));
    // The next turn is another run of the session.
    assert_eq!(session.run("and now?").await.unwrap().text(), "again");
    assert_eq!((store.alone(), store.sums("requests", "ever").await), (0, (5, 0)));
}

over_each_store!(with_each_append: no_request_takes_an_operation_of_its_own);

#[tokio::test]
async fn a_store_that_does_not_reserve_with_appends_is_asked_before_each_request() {
    let mut store = Ahead::over(AnyStore::new(MemoryStore::new()));
    store.is_able = false;
    let runner = Runner::builder(steps(), store.clone()).app("shop").unwrap().budget(all()).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    assert_eq!((store.alone(), store.sums("requests", "ever").await), (4, (4, 0)));
}

/// A run that waits for a decision has reserved nothing.
#[tokio::test]
async fn a_step_that_ends_in_a_question_reserves_nothing() {
    let store = Ahead::over(AnyStore::new(MemoryStore::new()));
    let tool = Tool::new("work", "Works.", async || Ok::<_, ToolError>("ok"));
    let tool = tool.approval(stepfold_tools::Approval::Always).build().unwrap();
    let script = Script::parse("assistant: > c1 work()\nassistant: done").unwrap();
    let agent = Agent::builder(script).tools([tool]).build().unwrap();
    let runner = Runner::builder(agent, store.clone()).app("shop").unwrap().budget(all()).build();
    let session = runner.session("ada", "s1").await.unwrap();
    let outcome = session.run("hello").await.unwrap();
    assert!(matches!(outcome.exit(), Exit::Paused(Pause::Approval)), "{}", outcome.exit());
    assert_eq!((store.sums("requests", "ever").await, store.spend().await.len()), ((1, 0), 1));
}

/// A run that stops between an append and the request that it reserves for releases the reservation.
#[tokio::test]
async fn a_run_that_is_suspended_before_a_request_releases_what_was_reserved_for_it() {
    let store = Ahead::over(AnyStore::new(MemoryStore::new()));
    let runner = Runner::builder(steps(), store.clone()).app("shop").unwrap().budget(all()).build();
    let session = runner.session("ada", "s1").await.unwrap();
    for calls in 1..=3 {
        let report = session.run_as("k1", "hello").stop_after(Duration::ZERO).await.unwrap();
        assert_eq!(report.status, RunStatus::Suspended);
        assert_eq!(
            (store.sums("requests", "ever").await, store.spend().await.len()),
            ((calls, 0), usize::try_from(calls).unwrap())
        );
    }
    session.run_as("k1", "hello").await.unwrap();
    assert_eq!(store.sums("requests", "ever").await, (4, 0));
}

/// The window of a request is that in which it is sent, also if it was reserved before midnight.
#[tokio::test]
async fn what_was_reserved_before_midnight_is_not_used_after_it() {
    let (store, clock) = (Ahead::over(AnyStore::new(MemoryStore::new())), ManualClock::new());
    let midnight = clock.clone();
    let is_first = AtomicBool::new(true);
    store.after_append(move |request, _| {
        if request.reserved.is_some() && is_first.swap(false, Ordering::SeqCst) {
            midnight.advance(DAY);
        }
        Next::Nothing
    });
    let budget = all().each(BudgetWindow::day("UTC").unwrap());
    let runner = Runner::builder(steps(), store.clone()).app("shop").unwrap().budget(budget);
    let runner = runner.clock(clock.clone()).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    assert_eq!(store.sums("requests", "2023-11-14[UTC]").await, (0, 0));
    assert_eq!(store.sums("requests", "2023-11-15[UTC]").await, (4, 0));
    let spent = store.spend().await;
    assert!(spent.iter().all(|record| record.at.to_string().starts_with("2023-11-15")), "{spent:?}");
    // It was released, and reserved again: two operations of their own.
    assert_eq!(store.alone(), 2);
}

/// Another request than the one that was reserved for, since a message has joined the run: the next append replaces it.
#[tokio::test]
async fn a_message_that_joins_the_run_is_reserved_for_with_its_own_append() {
    let store = Ahead::over(AnyStore::new(MemoryStore::new()));
    let handle: Arc<OnceLock<SessionHandle>> = Arc::default();
    let joined = Arc::clone(&handle);
    let tool = Tool::new("work", "Works.", move || {
        let session = joined.get().unwrap().when_busy(WhenBusy::Steer);
        async move {
            session.send("a longer message than what was reserved").await.unwrap();
            Ok::<_, ToolError>("ok")
        }
    });
    let script = Script::parse("assistant: > c1 work()\nassistant: done").unwrap();
    let agent = Agent::builder(script).tools([tool.build().unwrap()]).build().unwrap();
    let budget = Budget::tokens("all", 1_000_000);
    let runner = Runner::builder(agent, store.clone()).app("shop").unwrap().budget(budget).build();
    let session = runner.session("ada", "s1").await.unwrap();
    assert!(handle.set(session.clone()).is_ok());
    let outcome = session.run("hello").await.unwrap();
    assert_eq!(outcome.transcript().iter().filter(|message| message.role() == Role::User).count(), 2);
    let spent = store.spend().await;
    assert_eq!((store.alone(), spent.len()), (0, 2));
    // The estimate is that of the whole request, since a script reports no usage.
    assert!(spent[1].amounts.input_tokens > spent[0].amounts.input_tokens + 8, "{spent:?}");
}

/// A model that takes its turns by chance: ten tokens of input a message, at most 50 of output.
#[derive(Clone)]
struct Chance {
    numbers: Arc<Mutex<fastrand::Rng>>,
    /// The requests for which its provider may charge.
    charged: Arc<AtomicU64>,
}

impl ChatModel for Chance {
    fn id(&self) -> &'static str {
        "test/chance"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let numbers = &mut *self.numbers.lock().unwrap();
        let messages = request.messages.iter().count();
        if numbers.u8(0..12) == 0 {
            return ReplyStream::failed(ModelError::new(ModelErrorKind::Overloaded, "not charged"));
        }
        self.charged.fetch_add(1, Ordering::SeqCst);
        if numbers.u8(0..12) == 0 {
            return ReplyStream::failed(ModelError::new(
                ModelErrorKind::Transient,
                "the connection was lost",
            ));
        }
        let call = || ToolCall::new(format!("c{messages}"), "work", serde_json::json!({}));
        let (message, finish) = if numbers.u8(0..4) == 0 {
            (Message::assistant("done"), FinishReason::Stop)
        } else {
            (Message::new(Role::Assistant).with_part(call()), FinishReason::ToolCalls)
        };
        let usage = Usage::new(10 * messages as u64, numbers.u64(10..50));
        let end = [Chunk::Usage(usage), Chunk::Finished(finish)];
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain(end))
    }
}

/// The days that a case may last.
const DAYS: i64 = 60;

/// The limit of a day in the generated cases: some requests fit.
const LIMIT: u64 = 700;

/// A generated case: runs whose answers are lost, whose workers die after an append, over which the clock jumps, and which
/// share their budget with other requests.
struct Case {
    store: Ahead,
    clock: ManualClock,
    charged: Arc<AtomicU64>,
    deaths: Arc<AtomicU64>,
    agent: Agent,
}

impl Case {
    fn new(seed: u64) -> Self {
        let (store, clock) = (Ahead::over(AnyStore::new(MemoryStore::new())), ManualClock::new());
        let [charged, deaths] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let numbers = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        let model = Chance { numbers: Arc::clone(&numbers), charged: Arc::clone(&charged) };
        let params = ModelParams::default().with_max_output_tokens(50);
        let agent = Agent::builder(model).params(params).tools([work()]).repeat_guard(None).build().unwrap();
        let (jumps, died) = (clock.clone(), Arc::clone(&deaths));
        store.after_append(move |_, _| match numbers.lock().unwrap().u8(0..40) {
            0..4 => Next::Lost,
            4 => {
                jumps.advance(DAY);
                Next::Nothing
            }
            5 => {
                // NOTE: the claim of the one that died expires.
                died.fetch_add(1, Ordering::SeqCst);
                jumps.advance(Duration::from_secs(60));
                Next::Death
            }
            _ => Next::Nothing,
        });
        Case { store, clock, charged, deaths, agent }
    }

    fn runner(&self) -> Runner {
        let budget = Budget::tokens("all", LIMIT).each(BudgetWindow::day("UTC").unwrap());
        let counter = token_counter("exact", |_: &Message| 10);
        Runner::builder(self.agent.clone(), self.store.of_another_process())
            .app("shop")
            .unwrap()
            .clock(self.clock.clone())
            .count_tokens_with(counter)
            .budget(budget)
            .build()
    }

    /// The sums of all days.
    async fn sums(&self) -> (u64, u64) {
        let (mut settled, mut reserved) = (0, 0);
        for day in 0..DAYS {
            let day = jiff::civil::date(2023, 11, 14).checked_add(jiff::Span::new().days(day)).unwrap();
            let (of_day, open) = self.store.sums("tokens", &format!("{day}[UTC]")).await;
            assert!(of_day + open <= LIMIT, "{day}: {of_day} + {open}");
            (settled, reserved) = (settled + of_day, reserved + open);
        }
        (settled, reserved)
    }

    /// Makes runs in two sessions until they have ended, each time in a process of its own.
    async fn play(&self) {
        let ids = ["s1", "s2"];
        let runner = self.runner();
        for id in ids {
            let session = runner.session("ada", id).await.unwrap();
            // NOTE: nothing answers for a worker that has died.
            drop(tokio::time::timeout(Duration::from_secs(20), session.run("hello")).await);
        }
        for _ in 0..40 {
            let runner = self.runner();
            let mut left = 0;
            for id in ids {
                let session = runner.session("ada", id).await.unwrap();
                let run = session.last_run().await.unwrap();
                if run.is_some_and(|run| run.exit().is_none()) {
                    left += 1;
                    drop(tokio::time::timeout(Duration::from_secs(20), session.resume()).await);
                }
            }
            self.sums().await;
            if left == 0 {
                return;
            }
            self.clock.advance(Duration::from_secs(8 * 3_600));
            let recovery = runner.recover(RecoverOptions::new().once());
            drop(tokio::time::timeout(Duration::from_secs(20), recovery).await);
        }
        panic!("the runs have not ended");
    }
}

/// The law: whatever happens after an append that reserves, nothing is left open, no limit is exceeded, and each request
/// counts once for which a provider may charge; beside them only requests of workers that died.
#[tokio::test(start_paused = true)]
async fn whatever_happens_after_an_append_each_request_counts_once() {
    let (mut dead, mut lost) = (0, 0);
    for seed in 0..60 {
        let case = Case::new(seed);
        case.play().await;
        let spent = case.store.spend().await;
        let of = |state| spent.iter().filter(move |record| record.state == state).count() as u64;
        assert_eq!(of(SpendState::Reserved), 0, "seed {seed}: {spent:#?}");
        let (charged, deaths) = (case.charged.load(Ordering::SeqCst), case.deaths.load(Ordering::SeqCst));
        let counted = spent.len() as u64;
        assert!((charged..=charged + deaths).contains(&counted), "seed {seed}: {charged} of {counted}");
        let tokens: u64 =
            spent.iter().map(|record| record.amounts.input_tokens + record.amounts.output_tokens).sum();
        let (settled, reserved) = case.sums().await;
        assert_eq!(reserved, 0, "seed {seed}");
        assert!(settled <= tokens, "seed {seed}: days that ended are forgotten, others are not made up");
        dead += deaths;
        lost += counted - charged;
    }
    assert!(dead > 20 && lost > 5, "{dead} workers died, {lost} requests were lost with them");
}
