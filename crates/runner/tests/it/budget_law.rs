//! The law of budgets, by processes that are killed at random while a clock jumps over the ends of windows: what is settled
//! never exceeds the limit, each settled reply counts once, and nothing is reserved when all is quiet.
//!
//! `STEPFOLD_BUDGET_LAW=full` runs it with 16 processes of 64 runs each, one of which is killed every second.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::Agent;
use stepfold_runner::session_scopes::{
    AnyStore, AppId, BudgetBalance, BudgetId, CommittedEvent, EventRange, ListSpend, ReadBudgets,
    SessionStore, SpendRecord, SpendState, Timestamp,
};
use stepfold_runner::{Budget, BudgetWindow, RecoverOptions, Runner, SystemClock, WallClock};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelParams, ReplyStream, Role, Usage,
};
use stepfold_trim::token_counter;
use tokio::time::Instant;

use crate::crash::server::server;
use crate::crash::store::open;

const PART: &str = "STEPFOLD_BUDGET_PART";
const FULL: &str = "STEPFOLD_BUDGET_LAW";
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The tokens of input and output of each request, and the maximum output.
const INPUT: u64 = 10;
const OUTPUT: u64 = 40;
const MAX_OUTPUT: u64 = 50;

/// The runs at once in a process.
const AT_ONCE: usize = 4;

/// The amount of work.
#[derive(Clone, Copy)]
struct Size {
    processes: usize,
    runs: usize,
    /// The time between two kills.
    kills: Duration,
    /// The least kills between two jumps of the clock, which also waits until the window is exhausted.
    jumps: usize,
}

impl Size {
    fn chosen() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is how a person asks for the full form")]
        let is_full = std::env::var(FULL).is_ok_and(|form| form == "full");
        match is_full {
            true => Size { processes: 16, runs: 64, kills: Duration::from_secs(1), jumps: 3 },
            false => Size { processes: 4, runs: 12, kills: Duration::from_millis(250), jumps: 2 },
        }
    }

    /// The tokens of a day: less than a third of all that is needed.
    fn limit(self) -> u64 {
        (self.processes * self.runs) as u64 * (INPUT + OUTPUT) * 3 / 10
    }
}

/// A process's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    address: String,
    /// The file with the number of days that the clock is ahead.
    clock: PathBuf,
    number: usize,
    runs: usize,
    limit: u64,
}

impl Part {
    fn start(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "budget_law::child", "--nocapture", "--test-threads=1"])
            .env(PART, serde_json::to_string(self).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// The system's clock, so many days ahead as a file says.
#[derive(Clone)]
struct JumpingClock(PathBuf);

impl JumpingClock {
    fn jump(&self, days: u64) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, days.to_string()).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

impl WallClock for JumpingClock {
    fn now(&self) -> Timestamp {
        let days: u32 = std::fs::read_to_string(&self.0).unwrap().parse().unwrap();
        SystemClock.now().after(DAY * days)
    }
}

/// A model that takes some milliseconds, so that processes die while it works.
struct Slow;

impl ChatModel for Slow {
    fn id(&self) -> &'static str {
        "test/slow"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let input = INPUT * request.messages.iter().count() as u64;
        let pause = Duration::from_millis(fastrand::u64(2..20));
        ReplyStream::new(futures_util::stream::unfold(0, move |sent| async move {
            let chunk = match sent {
                0 => {
                    // tidy: allow sleep, because processes are to die while the model works.
                    tokio::time::sleep(pause).await;
                    Chunk::Text("done".to_owned())
                }
                1 => Chunk::Usage(Usage::new(input, OUTPUT)),
                2 => Chunk::Finished(FinishReason::Stop),
                _ => return None,
            };
            Some((Ok(chunk), sent + 1))
        }))
    }
}

fn runner(part: &Part, store: AnyStore) -> Runner {
    let params = ModelParams::default().with_max_output_tokens(MAX_OUTPUT);
    let agent = Agent::builder(Slow).params(params).build().unwrap();
    let counter = token_counter("exact", |_: &Message| usize::try_from(INPUT).unwrap());
    let budget = Budget::tokens("all", part.limit).each(BudgetWindow::day("UTC").unwrap());
    Runner::builder(agent, store)
        .app("shop")
        .unwrap()
        .process_worker()
        .clock(JumpingClock(part.clock.clone()))
        .count_tokens_with(counter)
        .budget(budget)
        .build()
}

/// Does nothing, unless this process was started to play a part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    #[expect(clippy::disallowed_methods, reason = "this is how a parent says what it wants")]
    let Ok(part) = std::env::var(PART) else { return };
    let part: Part = serde_json::from_str(&part).unwrap();
    let runner = runner(&part, open(&part.address).await);
    let own: Vec<String> = (0..part.runs).map(|run| format!("s{}-{run}", part.number)).collect();
    let mut left: BTreeSet<&String> = own.iter().collect();
    while !left.is_empty() {
        let ids: Vec<&String> = left.iter().take(AT_ONCE).copied().collect();
        let ended = join_all(ids.iter().map(|id| advance(&runner, id))).await;
        for (id, has_ended) in ids.into_iter().zip(ended) {
            if has_ended {
                left.remove(id);
            }
        }
        // Also runs of other processes: the one that continues a run settles what it finds.
        runner.recover(RecoverOptions::new().once()).await.unwrap();
        // tidy: allow sleep, because other processes are at work and the clock jumps meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    runner.shutdown(Duration::ZERO).await;
}

/// Begins the run of a session, under a key, or continues it; whether it has ended. A run that waits is left to recovery.
async fn advance(runner: &Runner, id: &str) -> bool {
    let session = runner.session("ada", id).await.unwrap();
    match session.last_run().await.unwrap() {
        // Another process may work in it; then a later look finds its end.
        None => drop(session.run_as("hello", "hello").await),
        Some(run) => return run.exit().is_some(),
    }
    false
}

/// The budgets of the days so far, and a day more on either side.
fn days(ahead: u64) -> Vec<BudgetId> {
    let now = jiff::Timestamp::from_microsecond(SystemClock.now().as_micros()).unwrap();
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let day = |days: i64| today.checked_add(jiff::Span::new().days(days)).unwrap();
    let name = |days: i64| format!(r#"[["app","shop"],"all","tokens","{}[UTC]"]"#, day(days));
    (-1..=i64::try_from(ahead).unwrap() + 1).map(|days| BudgetId::new(name(days)).unwrap()).collect()
}

async fn balances(store: &AnyStore, ahead: u64) -> Vec<BudgetBalance> {
    store.balances(ReadBudgets::new(days(ahead))).await.unwrap()
}

async fn spend(store: &AnyStore) -> Vec<SpendRecord> {
    let mut request = ListSpend::new(AppId::new("shop").unwrap());
    let mut all = Vec::new();
    loop {
        let page = store.spend(request.clone()).await.unwrap();
        let Some(last) = page.last() else { return all };
        request = request.after(last);
        all.extend(page);
    }
}

/// The token of the claim in the id of a reservation.
fn claim_of(record: &SpendRecord) -> &str {
    let id = record.id.as_str();
    id.rsplit_once('/').and_then(|(_, own)| own.split_once('.')).map(|(token, _)| token).unwrap()
}

const fn sum(balance: &BudgetBalance) -> u64 {
    balance.settled + balance.reserved
}

/// Kills processes until all runs have ended; the number of kills, and the days that passed.
async fn kill_until_all_end(store: &AnyStore, parts: &[Part], size: Size) -> (usize, u64) {
    let clock = JumpingClock(parts[0].clock.clone());
    let mut children: Vec<Option<Child>> = parts.iter().map(|part| Some(part.start())).collect();
    let (mut kills, mut kills_of_day, mut days, mut last_kill) = (0, 0, 0, Instant::now());
    while children.iter().any(Option::is_some) {
        // tidy: allow sleep, because it looks at the balances of other processes again and again.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let balances = balances(store, days).await;
        for balance in &balances {
            assert!(sum(balance) <= size.limit(), "{balance:?} exceeds {}", size.limit());
        }
        for child in &mut children {
            let ended = child.as_mut().and_then(|child| child.try_wait().unwrap());
            if let Some(status) = ended {
                assert!(status.success(), "{status}");
                *child = None;
            }
        }
        let alive: Vec<usize> = (0..children.len()).filter(|number| children[*number].is_some()).collect();
        if last_kill.elapsed() < size.kills || alive.is_empty() {
            continue;
        }
        let victim = alive[fastrand::usize(0..alive.len())];
        if let Some(mut child) = children[victim].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        children[victim] = Some(parts[victim].start());
        (kills, kills_of_day, last_kill) = (kills + 1, kills_of_day + 1, Instant::now());
        let is_exhausted =
            balances.iter().rev().nth(1).is_some_and(|today| sum(today) + INPUT + MAX_OUTPUT > size.limit());
        if kills_of_day >= size.jumps && is_exhausted {
            (days, kills_of_day) = (days + 1, 0);
            clock.jump(days);
        }
    }
    (kills, days)
}

async fn holds(address: &str, folder: &Path) {
    let size = Size::chosen();
    let clock = JumpingClock(folder.join("clock"));
    clock.jump(0);
    let store = open(address).await;
    let part = |number| {
        let (address, clock) = (address.to_owned(), clock.0.clone());
        Part { address, clock, number, runs: size.runs, limit: size.limit() }
    };
    let parts: Vec<Part> = (0..size.processes).map(part).collect();
    let (kills, ahead) = kill_until_all_end(&store, &parts, size).await;
    let spent = spend(&store).await;
    let of = |state| spent.iter().filter(move |record| record.state == state);
    // Nothing is reserved when all is quiet.
    assert_eq!(of(SpendState::Reserved).count(), 0);
    let sums = balances(&store, ahead).await;
    assert!(sums.iter().all(|balance| balance.reserved == 0), "{sums:?}");
    // Each reply is settled once, and each lost request was one of a process that was killed.
    let replies = replies(&store, &parts).await;
    assert_eq!(replies, size.processes * size.runs);
    let settled: Vec<&SpendRecord> = of(SpendState::Settled).collect();
    let sessions: BTreeSet<_> = settled.iter().map(|record| &record.key).collect();
    assert_eq!(sessions.len(), replies);
    // NOTE: a jump of the clock lets claims of living workers expire. The reply of one whose session another has taken was paid
    // for, and no event records it: it is settled as well, under a claim of its own.
    let claims: BTreeSet<_> = settled.iter().map(|record| (&record.key, claim_of(record))).collect();
    assert_eq!(claims.len(), settled.len(), "two replies under a claim: {settled:#?}");
    let lost = of(SpendState::Unsettled).count();
    assert!(lost <= kills * 2 * AT_ONCE, "{lost} lost requests after {kills} kills");
    // Each counter is the sum of its day's requests in the list, and none exceeds the limit. Those of days that ended long
    // ago are deleted.
    let mut by_day: BTreeMap<String, u64> = BTreeMap::new();
    for record in &spent {
        let tokens = record.amounts.input_tokens + record.amounts.output_tokens;
        *by_day.entry(record.at.to_string()[..10].to_owned()).or_default() += tokens;
    }
    assert!(by_day.values().all(|tokens| *tokens <= size.limit()), "{by_day:?}");
    let of_day = |day: &str| sums.iter().find(|sum| sum.budget.as_str().contains(day)).unwrap().settled;
    let (kept, ended): (Vec<_>, Vec<_>) = by_day.iter().partition(|(day, _)| of_day(day) > 0);
    assert!(kept.iter().all(|(day, tokens)| of_day(day) == **tokens), "{by_day:?}, {sums:?}");
    let newest_ended = ended.iter().map(|(day, _)| *day).max();
    assert!(kept.iter().all(|(day, _)| Some(*day) > newest_ended), "{by_day:?}, {sums:?}");
    let windows = by_day.len();
    assert!(windows > 1, "no window has ended: {sums:?}");
    assert!(by_day.values().any(|tokens| *tokens > size.limit() / 2), "no window was exhausted: {by_day:?}");
    let unrecorded = settled.len() - replies;
    println!("{unrecorded} replies of workers whose claims had expired");
    let (processes, limit, most) = (size.processes, size.limit(), by_day.values().max().unwrap());
    println!(
        "{replies} replies of {processes} processes in {windows} windows, {kills} kills, {lost} lost requests"
    );
    println!("most settled in a window: {most} of {limit} tokens");
}

/// The replies that sessions have: one each.
async fn replies(store: &AnyStore, parts: &[Part]) -> usize {
    let runner = runner(&parts[0], store.clone());
    let mut all = 0;
    for part in parts {
        for run in 0..part.runs {
            let id = format!("s{}-{run}", part.number);
            let session = runner.session("ada", id.as_str()).await.unwrap();
            let stored = session.read_events(EventRange::All).await.unwrap();
            let messages = stored.events.iter().flat_map(|committed| &committed.event.messages);
            let replies = messages.filter(|message| message.role() == Role::Assistant).count();
            let events = || -> Vec<String> {
                let event = |event: &CommittedEvent| format!("{:?}", event.event);
                stored.events.iter().map(event).collect()
            };
            assert_eq!(replies, 1, "session {id}: {:#?}", events());
            all += replies;
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    holds(folder.path().join("sessions.db").to_str().unwrap(), folder.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_law_holds_over_postgres() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    holds(&server.database("budget_law").await, folder.path()).await;
}
