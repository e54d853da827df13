//! Rate limits that processes share: no minute has more than the limit, and a request that waits can be cancelled.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Exit, Outcome, RunFault};
use stepfold_runner::session_scopes::{
    AnyStore, AppId, ListSpend, MemoryStore, SessionStore, SpendRecord, Timestamp,
};
use stepfold_runner::{
    Budget, Runner, RunnerError, RunnerErrorKind, SharedRateLimit, SystemClock, WallClock,
};
use stepfold_state_core::chat::ModelParams;

use crate::crash::server::server;
use crate::crash::store::open;

const PART: &str = "STEPFOLD_RATE_PART";
const PROCESSES: usize = 4;
const RUNS: usize = 12;
const LIMIT: usize = 20;

/// A clock on which a minute is six seconds, from a beginning that processes have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FastClock(i64);

impl WallClock for FastClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0 + (SystemClock.now().as_micros() - self.0) * 10)
    }
}

fn agent(text: &str) -> Agent {
    let params = ModelParams::default().with_max_output_tokens(50);
    Agent::builder(Script::parse(text).unwrap()).params(params).build().unwrap()
}

fn runner(store: AnyStore, clock: impl WallClock + 'static, limit: SharedRateLimit) -> Runner {
    let builder = Runner::builder(agent(&"assistant: done\n".repeat(RUNS)), store).app("shop").unwrap();
    // NOTE: longer than the test on the fast clock.
    builder.process_worker().claim_for(Duration::from_secs(3_600)).clock(clock).rate_limit(limit).build()
}

async fn spend(store: &AnyStore) -> Vec<SpendRecord> {
    store.spend(ListSpend::new(AppId::new("shop").unwrap())).await.unwrap()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    address: String,
    clock: FastClock,
    number: usize,
}

impl Part {
    fn start(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rate_limits::child", "--nocapture", "--test-threads=1"])
            .env(PART, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// Does nothing, unless this process was started to play a part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(part) = std::env::var(PART) else { return };
    let part: Part = serde_json::from_str(&part).unwrap();
    let limit = SharedRateLimit::new("key").requests(LIMIT as u64);
    let runner = runner(open(&part.address).await, part.clock, limit);
    let runs = (0..RUNS).map(async |run| {
        let session = runner.session("ada", format!("s{}-{run}", part.number)).await.unwrap();
        session.run("hello").await.unwrap()
    });
    join_all(runs).await;
    runner.shutdown(Duration::ZERO).await;
}

/// The most requests that any 60 seconds have.
fn most_in_a_minute(spent: &[SpendRecord]) -> usize {
    let minute = 60_000_000;
    let from = |first: &SpendRecord| {
        let since = first.at.as_micros();
        spent.iter().filter(|record| (since..since + minute).contains(&record.at.as_micros())).count()
    };
    spent.iter().map(from).max().unwrap_or(0)
}

async fn holds(address: &str) {
    let clock = FastClock(SystemClock.now().as_micros());
    let part = |number| Part { address: address.to_owned(), clock, number };
    let store = open(address).await;
    let children: Vec<Child> = (0..PROCESSES).map(|number| part(number).start()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let spent = spend(&store).await;
    assert_eq!(spent.len(), PROCESSES * RUNS);
    let most = most_in_a_minute(&spent);
    assert!(most <= LIMIT, "{most} requests in a minute");
    assert!(most > LIMIT / 2, "the limit was never reached: {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_on_a_file_never_exceed_a_rate() {
    let folder = tempfile::tempdir().unwrap();
    holds(folder.path().join("sessions.db").to_str().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_on_postgres_never_exceed_a_rate() {
    let Some(server) = server() else { return };
    holds(&server.database("rate_limits").await).await;
}

/// A clock that stands still, unless it is set.
#[derive(Clone, Default)]
struct SetClock(Arc<std::sync::atomic::AtomicI64>);

impl SetClock {
    fn set(&self, seconds: i64) {
        self.0.store(seconds * 1_000_000, std::sync::atomic::Ordering::SeqCst);
    }
}

impl WallClock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }
}

fn store() -> AnyStore {
    AnyStore::new(MemoryStore::new())
}

async fn say(runner: &Runner, session: &str) -> Result<Arc<Outcome>, RunnerError> {
    runner.session("ada", session).await.unwrap().run("hello").await
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_fit_waits_for_a_minute_of_the_clock() {
    let (clock, store) = (SetClock::default(), store());
    clock.set(1_000_000);
    let runner = runner(store.clone(), clock.clone(), SharedRateLimit::new("key").requests(1));
    say(&runner, "s1").await.unwrap();
    let waits = tokio::spawn({
        let runner = runner.clone();
        async move { say(&runner, "s2").await.unwrap() }
    });
    for seconds in [1_000_030, 1_000_059] {
        clock.set(seconds);
        // tidy: allow sleep, because the time is paused, and the request asks the store again meanwhile.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(spend(&store).await.len(), 1, "it was sent after {seconds}");
    }
    clock.set(1_000_066);
    assert_eq!(waits.await.unwrap().text(), "done");
    // A step of the clock to before all requests: nothing that is after it counts.
    clock.set(900_000);
    say(&runner, "s3").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tokens_are_limited_by_their_estimates() {
    let (clock, store) = (SetClock::default(), store());
    clock.set(1_000_000);
    let limit = SharedRateLimit::new("key").tokens(100).max_wait(Duration::from_secs(30));
    let runner = runner(store.clone(), clock, limit);
    say(&runner, "s1").await.unwrap();
    let error = say(&runner, "s2").await.unwrap_err();
    let RunnerErrorKind::Run { source } = &error.kind else { panic!("{error}") };
    assert!(matches!(source.fault(), RunFault::Meter(_)), "{error}");
    let words = "rate limit `key` of 100 tokens per minute exceeded: no capacity in";
    assert!(format!("{error:#} {}", source.fault()).contains(words), "{error}: {}", source.fault());
    assert_eq!(spend(&store).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_whole_limit_is_refused_at_once() {
    let runner = runner(store(), SetClock::default(), SharedRateLimit::new("key").tokens(20));
    let error = say(&runner, "s1").await.unwrap_err();
    let RunnerErrorKind::Run { source } = &error.kind else { panic!("{error}") };
    let words = "20 tokens per minute are allowed; raise the limit, or lower the maximum of output tokens";
    assert!(source.fault().to_string().contains(words), "{}", source.fault());
}

/// The budget of one request is free while another waits for the rate limit, and a cancelled request leaves nothing.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_reserves_nothing_and_can_be_cancelled() {
    let (clock, store) = (SetClock::default(), store());
    clock.set(1_000_000);
    let limit = SharedRateLimit::new("key").of_model("script").requests(1);
    let builder = Runner::builder(agent(&"assistant: done\n".repeat(3)), store.clone()).app("shop").unwrap();
    let runner = builder.clock(clock).rate_limit(limit).budget(Budget::requests("all", 2)).build();
    say(&runner, "s1").await.unwrap();
    let session = runner.session("ada", "s2").await.unwrap();
    let invocation = session.send("hello").await.unwrap();
    // tidy: allow sleep, because the time is paused, and the request asks the store again meanwhile.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(spend(&store).await.len(), 1);
    session.cancel();
    assert!(matches!(invocation.outcome().await.unwrap().exit(), Exit::Cancelled));
    assert_eq!(spend(&store).await.len(), 1);
}

/// Each model has its own limit, and apps that name the same key share it.
#[tokio::test(start_paused = true)]
async fn a_limit_is_that_of_a_key_and_a_model() {
    let (clock, store) = (SetClock::default(), store());
    clock.set(1_000_000);
    let of = |app: &str, limit: SharedRateLimit| {
        let builder = Runner::builder(agent("assistant: done"), store.clone()).app(app).unwrap();
        builder.clock(clock.clone()).rate_limit(limit.requests(1).max_wait(Duration::from_secs(2))).build()
    };
    say(&of("one", SharedRateLimit::new("key")), "s1").await.unwrap();
    say(&of("two", SharedRateLimit::new("key")), "s1").await.unwrap_err();
    say(&of("two", SharedRateLimit::new("key").of_model("another")), "s2").await.unwrap();
    say(&of("two", SharedRateLimit::new("other key")), "s3").await.unwrap();
}

/// A limit for all models of a key beside a tighter one for this model: a request counts once, and the tighter one holds.
#[tokio::test(start_paused = true)]
async fn a_request_counts_once_in_limits_that_share_a_counter() {
    for tighter_first in [true, false] {
        let (clock, store) = (SetClock::default(), store());
        clock.set(1_000_000);
        let wait = Duration::from_secs(2);
        let tight = SharedRateLimit::new("key").of_model("script").requests(2).max_wait(wait);
        let wide = SharedRateLimit::new("key").requests(10).max_wait(wait);
        let limits = if tighter_first { [tight, wide] } else { [wide, tight] };
        let builder = Runner::builder(agent(&"assistant: done\n".repeat(3)), store.clone()).clock(clock);
        let runner = limits.into_iter().fold(builder, stepfold_runner::RunnerBuilder::rate_limit).build();
        say(&runner, "s1").await.unwrap();
        say(&runner, "s2").await.unwrap();
        say(&runner, "s3").await.unwrap_err();
    }
}
