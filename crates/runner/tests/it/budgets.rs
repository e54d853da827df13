//! Budgets hold: over concurrent runs, crashes, windows, runs inside, forks, rewinds and replays.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use stepfold_agent_loop::{Agent, BudgetUnit, ExhaustedBudget, Exit, Outcome, Pause, RunFault};
use stepfold_runner::{
    Budget, BudgetScope, BudgetSpender, BudgetWindow, EraseRequest, ErasureSubject, RecoverOptions, Remedy,
    RunReport, RunStatus, Runner, RunnerBuilder, RunnerErrorKind, WallClock, WhenExhausted, exhausted_budget,
};
use stepfold_session_scopes::{
    AnyStore, AppId, Author, BudgetAmount, EventRange, ListSpend, MemoryStore, ReservationId, ReserveSpend,
    SessionKey, SessionStore, SpendAmounts, SpendRecord, SpendState, SqliteStore, Timestamp, UserId,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, ModelParams, Price,
    Prices, ReplyStream, Usage,
};
use stepfold_trim::token_counter;

use crate::world::{ManualClock, recover};

/// The tokens of each message, by the counter of the tests and by the model's provider.
const PER_MESSAGE: u64 = 10;

/// A model with a usage: ten tokens for each message of the request, and as many for its reply as it is told.
#[derive(Clone)]
struct Metered {
    output: u64,
    asked: Arc<AtomicU64>,
    fails: Option<ModelErrorKind>,
}

impl Metered {
    fn new(output: u64) -> Self {
        Metered { output, asked: Arc::default(), fails: None }
    }

    fn failing(kind: ModelErrorKind) -> Self {
        Metered { fails: Some(kind), ..Metered::new(0) }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl ChatModel for Metered {
    fn id(&self) -> &'static str {
        "test/metered"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(kind) = &self.fails {
            return ReplyStream::failed(ModelError::new(kind.clone(), "as the test wants"));
        }
        let input = PER_MESSAGE * request.messages.iter().count() as u64;
        ReplyStream::from_chunks([
            Chunk::Text("done".to_owned()),
            Chunk::Usage(Usage::new(input, self.output)),
            Chunk::Finished(FinishReason::Stop),
        ])
    }
}

fn agent(model: Metered) -> Agent {
    let params = ModelParams::default().with_max_output_tokens(50);
    Agent::builder(model).params(params).build().unwrap()
}

fn runner(agent: Agent, store: &AnyStore) -> RunnerBuilder {
    let counter = token_counter("exact", |_: &Message| usize::try_from(PER_MESSAGE).unwrap());
    Runner::builder(agent, store.clone()).app("shop").unwrap().count_tokens_with(counter)
}

/// Runs a test over a store in memory, and over one in a file.
async fn over_stores(test: impl AsyncFn(AnyStore)) {
    test(AnyStore::new(MemoryStore::new())).await;
    let folder = tempfile::tempdir().unwrap();
    test(AnyStore::new(SqliteStore::open(folder.path().join("sessions.db")).unwrap())).await;
}

async fn spend(store: &AnyStore) -> Vec<SpendRecord> {
    store.spend(ListSpend::new(AppId::new("shop").unwrap())).await.unwrap()
}

async fn states(store: &AnyStore) -> Vec<SpendState> {
    spend(store).await.iter().map(|record| record.state).collect()
}

fn carol() -> Author {
    Author::new("carol").unwrap()
}

fn exhausted(outcome: &Outcome) -> &ExhaustedBudget {
    match outcome.exit() {
        Exit::Paused(Pause::Budget(exhausted)) => exhausted,
        other => panic!("the run has not paused for a budget: {other}"),
    }
}

/// The law: with an exact counter and a maximum of output, what is settled never exceeds the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_runs_never_spend_more_than_their_budget() {
    over_stores(async |store| {
        let model = Metered::new(40);
        // A request reserves 10 + 50 tokens, and settles 10 + 40. Runs of two processes share the budget.
        let budget = || Budget::tokens("all", 1_000).when_exhausted(WhenExhausted::Fail);
        let runners = [(); 2].map(|()| runner(agent(model.clone()), &store).budget(budget()).build());
        let run = async |number: usize| {
            let session = runners[number % 2].session("ada", format!("s{number}")).await.unwrap();
            session.run("hello").await
        };
        let ended = join_all((0..64).map(run)).await;
        let answered = ended.iter().filter(|ended| ended.is_ok()).count() as u64;
        let refused = ended.iter().filter_map(|ended| ended.as_ref().err());
        for error in refused {
            assert_eq!(error.remedy(), Remedy::Wait);
            let RunnerErrorKind::Run { source } = &error.kind else { panic!("{error}") };
            let RunFault::Budget(exhausted) = source.fault() else { panic!("{error}") };
            assert_eq!((exhausted.unit, exhausted.limit), (BudgetUnit::Tokens, 1_000));
            assert!(exhausted.spent + exhausted.reserved + exhausted.requested > 1_000, "{exhausted}");
        }
        // Whatever the order, there is room for 16 at once, and for no more than 20 in all.
        assert!((16..=20).contains(&answered), "{answered}");
        assert_eq!(model.asked(), answered);
        let spent = spend(&store).await;
        assert_eq!(spent.len() as u64, answered, "each settled reply is counted once");
        assert!(spent.iter().all(|record| record.state == SpendState::Settled), "{spent:?}");
        let tokens: u64 =
            spent.iter().map(|record| record.amounts.input_tokens + record.amounts.output_tokens).sum();
        assert_eq!(tokens, 50 * answered);
        assert!(tokens <= 1_000);
    })
    .await;
}

#[tokio::test]
async fn an_exhausted_run_pauses_before_the_request_and_continues_under_a_higher_limit() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let of_user = |limit| Budget::tokens("trial", limit).of(BudgetScope::User);
        let few = runner(agent(model.clone()), &store).budget(of_user(100)).build();
        few.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
        let session = few.session("ada", "s2").await.unwrap();
        let outcome = session.run("hello").await.unwrap();
        let question = exhausted(&outcome);
        assert_eq!((&*question.scope, question.spent, question.reserved), ("user ada", 50, 0));
        assert_eq!((question.requested, question.until), (60, None));
        assert_eq!(model.asked(), 1);
        // A message for it waits for the decision; the user's other sessions and other users are told, or served.
        let error = session.run("are you there?").await.unwrap_err();
        assert!(matches!(error.kind, RunnerErrorKind::Pending { is_accepted: true, .. }), "{error}");
        // The record has the question, once: other processes see who waits for how much. No claim is held.
        let stored = session.read_events(EventRange::All).await.unwrap();
        assert!(stored.claim.is_none(), "{:?}", stored.claim);
        let asked: Vec<_> =
            stored.events.iter().filter_map(|committed| exhausted_budget(&committed.event)).collect();
        assert_eq!(asked, std::slice::from_ref(question));
        few.session("bob", "s1").await.unwrap().run("hello").await.unwrap();
        // It is raised in another process; the run continues with the very request.
        let more = runner(agent(model.clone()), &store).budget(of_user(1_000)).build();
        let outcome = more.session("ada", "s2").await.unwrap().resume().await.unwrap();
        assert_eq!((outcome.exit(), outcome.text().as_ref()), (&Exit::Text, "done"));
        assert_eq!(outcome.transcript().to_string(), "user:      hello\nassistant: done\n");
        // The message that came meanwhile has waited in the inbox, and is answered next.
        more.shutdown(Duration::from_secs(10)).await;
        let later = runner(agent(model), &store).budget(of_user(1_000)).build();
        recover(&later).await;
        let last = later.session("ada", "s2").await.unwrap().last_run().await.unwrap().unwrap();
        let transcript = last.transcript().to_string();
        assert!(transcript.ends_with("user:      are you there?\nassistant: done\n"), "{transcript}");
    })
    .await;
}

/// The raise is in the store: it holds in all processes, for this window, and is no part of a session's history.
#[tokio::test]
async fn a_raise_holds_in_every_process_until_the_window_ends() {
    over_stores(async |store| {
        let (model, clock) = (Metered::new(40), ManualClock::new());
        let day = |limit| {
            Budget::requests("daily", limit).of(BudgetScope::User).each(BudgetWindow::day("UTC").unwrap())
        };
        let process = || runner(agent(model.clone()), &store).budget(day(1)).clock(clock.clone()).build();
        let (one, other) = (process(), process());
        one.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
        let session = one.session("ada", "s2").await.unwrap();
        assert_eq!(exhausted(&session.run("hello").await.unwrap()).limit, 1);
        let of_ada = BudgetSpender::new().user(UserId::new("ada").unwrap());
        let error = other.raise_budget(&BudgetSpender::new(), "daily", 5, &carol()).await.unwrap_err();
        assert!(error.to_string().starts_with("unknown budget `daily`; there is none"), "{error}");
        assert_eq!(other.raise_budget(&of_ada, "daily", 3, &carol()).await.unwrap().limit, 3);
        let error = other.raise_budget(&of_ada, "daily", 2, &carol()).await.unwrap_err();
        assert!(error.to_string().contains("not raised to 2 requests: its limit is 3 requests"), "{error}");
        // The waiting run continues at its request, and a rewind or a fork does not take the raise back.
        assert_eq!(session.resume().await.unwrap().exit(), &Exit::Text);
        session.rewind(0).await.unwrap();
        let fork = session.fork("fork", None).await.unwrap();
        assert_eq!(fork.run("hello").await.unwrap().exit(), &Exit::Text);
        let outcome = one.session("ada", "s3").await.unwrap().run("hello").await.unwrap();
        assert_eq!((exhausted(&outcome).spent, exhausted(&outcome).limit), (3, 3));
        assert_eq!(one.refused_requests().get("daily"), Some(&2));
        // Others have the declared limit, and so has the next day.
        one.session("bob", "s1").await.unwrap().run("hello").await.unwrap();
        let outcome = one.session("bob", "s2").await.unwrap().run("hello").await.unwrap();
        assert_eq!(exhausted(&outcome).limit, 1);
        clock.advance(Duration::from_secs(24 * 3_600));
        assert_eq!(other.budgets(&of_ada).await.unwrap()[0].limit, 1);
    })
    .await;
}

/// A raise through one app wakes all runs that wait for the budget, in all apps, by whichever process recovers: as many as the
/// limit has room for, each once. Budgets of others are not raised. A limit that is declared higher is as good as a raise.
#[tokio::test]
async fn a_raise_continues_all_runs_that_wait_for_the_budget() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let process = |app: &str, limit| {
            let budget = Budget::requests("each", limit).of(BudgetScope::Principal);
            runner(agent(model.clone()), &store).app(app).unwrap().budget(budget).build()
        };
        let (shop, desk) = (process("shop", 1), process("desk", 1));
        for (runner, user, ids) in [(&shop, "ada", 0..3), (&desk, "ada", 0..2), (&shop, "bob", 0..2)] {
            for id in ids {
                runner.session(user, format!("s{id}")).await.unwrap().run("hello").await.unwrap();
            }
        }
        assert_eq!(model.asked(), 2, "one for each user; five runs wait");
        for runner in [&shop, &desk] {
            recover(runner).await;
        }
        assert_eq!(model.asked(), 2);
        let of_ada = BudgetSpender::new().user(UserId::new("ada").unwrap());
        for _ in 0..2 {
            shop.raise_budget(&of_ada, "each", 4, &carol()).await.unwrap();
        }
        // Processes that began before the raise, and after it.
        let (later_shop, later_desk) = (process("shop", 1), process("desk", 1));
        for runner in [&later_desk, &later_shop, &shop, &desk] {
            recover(runner).await;
        }
        assert_eq!(model.asked(), 5, "three of Ada's four waiting runs fit");
        // The raise is recorded once, by the app through which it was made; a raise after it has its limit as the one before.
        shop.raise_budget(&of_ada, "each", 5, &Author::new("dave").unwrap()).await.unwrap();
        let raises = shop.budget_raises(Some(&UserId::new("ada").unwrap())).await.unwrap();
        let told: Vec<_> = (raises.iter())
            .map(|raise| (raise.by.as_str(), &*raise.budget, &*raise.shared_by, raise.from, raise.to))
            .collect();
        let expected = [("dave", "each", "principal ada", 4, 5), ("carol", "each", "principal ada", 1, 4)];
        let of_dave_first = told.first().is_some_and(|first| first.0 == "dave");
        let expected = if of_dave_first { expected } else { [expected[1], expected[0]] };
        assert_eq!(told, expected);
        assert!(desk.budget_raises(None).await.unwrap().is_empty());
        assert!(shop.budget_raises(Some(&UserId::new("bob").unwrap())).await.unwrap().is_empty());
        for runner in [&desk, &shop, &desk, &shop] {
            recover(runner).await;
        }
        assert_eq!(model.asked(), 6);
        // Bob's declared limit is higher in another process.
        recover(&process("shop", 2)).await;
        assert_eq!(model.asked(), 7);
        // An erasure of the user takes the record of its raises with it.
        let subject = ErasureSubject::User(UserId::new("ada").unwrap());
        shop.erase(EraseRequest::new(subject, carol(), "as the test wants")).await.unwrap();
        assert!(shop.budget_raises(None).await.unwrap().is_empty());
    })
    .await;
}

/// A recovery that began before the raise finds it at its next poll.
#[tokio::test]
async fn a_recovery_under_way_continues_runs_after_a_raise() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let process = || runner(agent(model.clone()), &store).budget(Budget::requests("all", 0)).build();
        let (one, other) = (process(), process());
        let session = one.session("ada", "s1").await.unwrap();
        assert_eq!(exhausted(&session.run("hello").await.unwrap()).limit, 0);
        let recovery = tokio::spawn(other.recover(RecoverOptions::new().poll(Duration::from_millis(10))));
        tokio::task::yield_now().await;
        one.raise_budget(&BudgetSpender::new(), "all", 1, &carol()).await.unwrap();
        let ends = async {
            while session.last_run().await.unwrap().and_then(|run| run.exit().cloned()) != Some(Exit::Text) {
                // tidy: allow sleep, because another process of this test works meanwhile.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ends).await.expect("the run continues");
        assert_eq!(model.asked(), 1);
        other.shutdown(Duration::from_secs(10)).await;
        recovery.await.unwrap().unwrap();
    })
    .await;
}

/// A rolling window has no end: its raise holds for as long as the window is.
#[tokio::test]
async fn a_raise_of_a_rolling_window_ends_after_its_hours() {
    over_stores(async |store| {
        let (model, clock) = (Metered::new(40), ManualClock::new());
        let budget = Budget::requests("rolling", 1).each(BudgetWindow::hours(12));
        let runner = runner(agent(model.clone()), &store).budget(budget).clock(clock.clone()).build();
        let say = async |id: &str| runner.session("ada", id).await.unwrap().run("hello").await.unwrap();
        say("s1").await;
        assert_eq!(exhausted(say("s2").await.as_ref()).limit, 1);
        runner.raise_budget(&BudgetSpender::new(), "rolling", 2, &carol()).await.unwrap();
        assert_eq!(say("s3").await.exit(), &Exit::Text);
        clock.advance(Duration::from_secs(10 * 3_600));
        let outcome = say("s4").await;
        assert_eq!((exhausted(&outcome).spent, exhausted(&outcome).limit), (2, 2));
        // The spent amount and the raise have left the window.
        clock.advance(Duration::from_secs(4 * 3_600));
        assert_eq!(say("s5").await.exit(), &Exit::Text);
        assert_eq!(exhausted(say("s6").await.as_ref()).limit, 1);
    })
    .await;
}

#[tokio::test]
async fn a_principal_has_one_budget_in_all_apps() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let app = |name: &str| {
            let budget = Budget::requests("each", 2).of(BudgetScope::Principal);
            runner(agent(model.clone()), &store).app(name).unwrap().budget(budget).build()
        };
        let (shop, desk) = (app("shop"), app("desk"));
        for runner in [&shop, &desk] {
            assert_eq!(
                runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap().exit(),
                &Exit::Text
            );
        }
        let outcome = desk.session("ada", "s2").await.unwrap().run("hello").await.unwrap();
        let question = exhausted(&outcome);
        assert_eq!((question.scope.as_str(), question.spent, question.limit), ("principal ada", 2, 2));
        desk.session("bob", "s1").await.unwrap().run("hello").await.unwrap();
        // Raised through one app, it is raised in the other one.
        let of_ada = BudgetSpender::new().user(UserId::new("ada").unwrap());
        shop.raise_budget(&of_ada, "each", 3, &carol()).await.unwrap();
        assert_eq!(desk.session("ada", "s2").await.unwrap().resume().await.unwrap().exit(), &Exit::Text);
        assert_eq!(shop.budgets(&of_ada).await.unwrap()[0].spent, 3);
        // An erasure of the user takes its name out of the counters.
        let author = Author::new("admin").unwrap();
        let subject = ErasureSubject::User(UserId::new("ada").unwrap());
        shop.erase(EraseRequest::new(subject, author, "as the test wants")).await.unwrap();
        assert_eq!(shop.budgets(&of_ada).await.unwrap()[0].spent, 0);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_run_continues_by_itself_in_the_next_window() {
    over_stores(async |store| {
        let (model, clock) = (Metered::new(40), ManualClock::new());
        // 2023-11-14T22:13:20Z is 23:13 in Berlin.
        let day = BudgetWindow::day("Europe/Berlin").unwrap();
        let budget = Budget::requests("daily", 1).each(day);
        let runner = runner(agent(model.clone()), &store).budget(budget).clock(clock.clone()).build();
        runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
        let session = runner.session("ada", "s2").await.unwrap();
        let outcome = session.run("hello").await.unwrap();
        let midnight = exhausted(&outcome).until.unwrap();
        assert_eq!(midnight, (clock.now().after(Duration::from_secs(46 * 60 + 40))).into());
        recover(&runner).await;
        assert_eq!(model.asked(), 1);
        clock.advance(Duration::from_secs(47 * 60));
        recover(&runner).await;
        assert_eq!(model.asked(), 2);
        assert_eq!(session.last_run().await.unwrap().unwrap().exit(), Some(&Exit::Text));
        // The new day's request is spent by it.
        let outcome = runner.session("ada", "s3").await.unwrap().run("hello").await.unwrap();
        assert_eq!(exhausted(&outcome).spent, 1);
    })
    .await;
}

/// A resumed run continues with what it has left; the next message has a budget of its own.
/// On 31 March 2024 clocks go forward in Berlin: the day has 23 hours, and ends at 22:00 UTC.
#[tokio::test]
async fn a_waiting_run_continues_at_the_midnight_of_a_day_on_which_clocks_change() {
    over_stores(async |store| {
        let (model, clock) = (Metered::new(40), ManualClock::new());
        let noon = Timestamp::from_micros(1_711_886_400_000_000);
        let ahead = noon.as_micros() - clock.now().as_micros();
        clock.advance(Duration::from_micros(u64::try_from(ahead).unwrap()));
        let budget = Budget::requests("daily", 1).each(BudgetWindow::day("Europe/Berlin").unwrap());
        let runner = runner(agent(model.clone()), &store).budget(budget).clock(clock.clone()).build();
        runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
        let outcome = runner.session("ada", "s2").await.unwrap().run("hello").await.unwrap();
        assert_eq!(exhausted(&outcome).until, Some(noon.after(Duration::from_secs(10 * 3_600)).into()));
        clock.advance(Duration::from_secs(10 * 3_600 - 1));
        recover(&runner).await;
        assert_eq!(model.asked(), 1);
        clock.advance(Duration::from_secs(2));
        recover(&runner).await;
        assert_eq!(model.asked(), 2);
    })
    .await;
}

#[tokio::test]
async fn each_run_has_its_own_budget() {
    use stepfold_agent_loop::test_kit::Script;
    over_stores(async |store| {
        let inner = agent(Metered::new(40));
        let script = "assistant: > c1 helper(task=\"a\")\nassistant: done\nassistant: again";
        let tool = inner.as_tool("helper", "Helps.").build().unwrap();
        let outer = Agent::builder(Script::parse(script).unwrap()).tools([tool]).build().unwrap();
        let budget = |limit| Budget::requests("each", limit).of(BudgetScope::Run);
        let few = runner(outer.clone(), &store).budget(budget(2)).build();
        let session = few.session("ada", "s1").await.unwrap();
        let outcome = session.run("hello").await.unwrap();
        assert_eq!((exhausted(&outcome).spent, exhausted(&outcome).limit), (2, 2));
        assert!(exhausted(&outcome).scope.starts_with("run "), "{}", exhausted(&outcome).scope);
        let more = runner(outer, &store).budget(budget(3)).build();
        let session = more.session("ada", "s1").await.unwrap();
        assert_eq!(session.resume().await.unwrap().text(), "done");
        assert_eq!(session.run("and now?").await.unwrap().text(), "again");
        assert_eq!(spend(&store).await.len(), 4);
    })
    .await;
}

/// Others spend while a run waits: the question is the same, and a run that waits for long adds no events.
#[tokio::test]
async fn a_run_that_waits_asks_once_whatever_others_spend() {
    over_stores(async |store| {
        let budget = Budget::tokens("all", 115);
        let runner = runner(agent(Metered::new(40)), &store).budget(budget).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("hello").await.unwrap();
        assert_eq!(exhausted(&session.run("and now?").await.unwrap()).spent, 50);
        runner.session("bob", "s1").await.unwrap().run("hello").await.unwrap();
        assert_eq!(exhausted(&session.resume().await.unwrap()).spent, 100);
        let stored = session.read_events(EventRange::All).await.unwrap();
        let asked = stored.events.iter().filter(|event| exhausted_budget(&event.event).is_some());
        assert_eq!(asked.count(), 1);
    })
    .await;
}

/// To wait is no failure: a run is not abandoned because it waited often.
#[tokio::test]
async fn a_run_that_waits_again_and_again_is_not_abandoned() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let few = runner(agent(model.clone()), &store).abandon_after(2);
        let few = few.budget(Budget::requests("none", 0)).build();
        let session = few.session("ada", "s1").await.unwrap();
        exhausted(&session.run("hello").await.unwrap());
        for _ in 0..4 {
            exhausted(&session.resume().await.unwrap());
        }
        let more = runner(agent(model), &store).budget(Budget::requests("none", 1)).build();
        let outcome = more.session("ada", "s1").await.unwrap().resume().await.unwrap();
        assert_eq!(outcome.text(), "done");
    })
    .await;
}

/// The report for hosts has the question as well.
#[tokio::test]
async fn the_report_of_a_run_that_waits_names_its_budget() {
    let store = AnyStore::new(MemoryStore::new());
    let runner = runner(agent(Metered::new(40)), &store).budget(Budget::requests("none", 0)).build();
    let report = runner.session("ada", "s1").await.unwrap().run_as("request-7", "hello").await.unwrap();
    assert_eq!(report.status, RunStatus::Suspended);
    let stored = serde_json::to_string(&report).unwrap();
    let read: RunReport = serde_json::from_str(&stored).unwrap();
    assert_eq!(read.budget.map(|budget| budget.budget), Some("none".to_owned()));
}

/// Five hours are spent when five hours have passed, whatever the clock says.
#[tokio::test]
async fn a_rolling_window_has_no_beginning() {
    over_stores(async |store| {
        let (model, clock) = (Metered::new(40), ManualClock::new());
        let budget = Budget::requests("rolling", 2).each(BudgetWindow::hours(5));
        let runner = runner(agent(model.clone()), &store).budget(budget).clock(clock.clone()).build();
        let run = async |id: &str| runner.session("ada", id).await.unwrap().run("hello").await.unwrap();
        run("s1").await;
        clock.advance(Duration::from_secs(4 * 3_600));
        run("s2").await;
        let outcome = run("s3").await;
        assert_eq!((exhausted(&outcome).spent, exhausted(&outcome).limit), (2, 2));
        // The first has left, the second has not.
        clock.advance(Duration::from_secs(2 * 3_600));
        recover(&runner).await;
        assert_eq!(model.asked(), 3);
        let outcome = run("s4").await;
        assert_eq!(exhausted(&outcome).spent, 2);
        clock.advance(Duration::from_secs(4 * 3_600));
        recover(&runner).await;
        assert_eq!(model.asked(), 4);
    })
    .await;
}

#[tokio::test]
async fn a_paused_run_can_be_abandoned() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let runner = runner(agent(model.clone()), &store).budget(Budget::requests("none", 0)).build();
        let session = runner.session("ada", "s1").await.unwrap();
        exhausted(&session.run("hello").await.unwrap());
        let outcome = session.abandon().await.unwrap();
        assert_eq!(outcome.exit(), &Exit::Cancelled);
        assert_eq!((model.asked(), spend(&store).await.len()), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn the_strictest_of_several_budgets_decides_and_the_others_are_unchanged() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let budgets = |builder: RunnerBuilder| {
            let builder = builder.budget(Budget::tokens("app", 100_000));
            let builder = builder.budget(Budget::requests("session", 1).of(BudgetScope::Session));
            builder.budget(Budget::usd("team", 1.0).of(BudgetScope::Group("team-x".to_owned())))
        };
        let prices = Prices::new().with("test/metered", Price::new(100.0, 1_000.0));
        let runner = budgets(runner(agent(model.clone()), &store)).prices(prices).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("hello").await.unwrap();
        let outcome = session.run("again").await.unwrap();
        let question = exhausted(&outcome);
        assert_eq!((&*question.budget, &*question.scope), ("session", "session s1"));
        // 10 tokens at $100 and 40 at $1000 a million.
        let spent = spend(&store).await;
        assert_eq!(spent.len(), 1);
        assert_eq!(spent[0].amounts, SpendAmounts::new(10, 40, Some(41_000_000)));
        // The group is one over apps.
        let other = budgets(Runner::builder(agent(model), store.clone()).app("other").unwrap());
        let prices = Prices::new().with("test/metered", Price::new(100.0, 100_000.0));
        let other = other.prices(prices).build();
        let outcome = other.session("bob", "s1").await.unwrap().run("hello").await.unwrap();
        let question = exhausted(&outcome);
        assert_eq!((&*question.scope, question.spent), ("group team-x", 41_000_000));
    })
    .await;
}

#[tokio::test]
async fn a_model_without_a_price_is_refused_unless_the_budget_has_one() {
    let store = AnyStore::new(MemoryStore::new());
    let model = Metered::new(40);
    let budget = Budget::usd("all", 1.0);
    let strict = runner(agent(model.clone()), &store).budget(budget.clone()).build();
    let error = strict.session("ada", "s1").await.unwrap().run("hello").await.unwrap_err();
    assert!(error.to_string().contains("unknown price of model `test/metered`"), "{error}");
    assert_eq!(model.asked(), 0);
    let lenient = budget.unknown_price(Price::new(100.0, 1_000.0));
    let lenient = runner(agent(model), &store).budget(lenient).build();
    lenient.session("ada", "s2").await.unwrap().run("hello").await.unwrap();
    assert_eq!(spend(&store).await[0].amounts.nanodollars, Some(41_000_000));
}

#[tokio::test]
async fn a_refused_request_costs_nothing_and_a_lost_one_its_estimate() {
    over_stores(async |store| {
        let budget = || Budget::tokens("all", 1_000);
        let rejected = runner(agent(Metered::failing(ModelErrorKind::RateLimited)), &store);
        let rejected = rejected.budget(budget()).build();
        rejected.session("ada", "s1").await.unwrap().run("hello").await.unwrap_err();
        assert!(spend(&store).await.is_empty());
        let lost = runner(agent(Metered::failing(ModelErrorKind::Transient)), &store);
        let lost = lost.budget(budget()).build();
        lost.session("ada", "s2").await.unwrap().run("hello").await.unwrap_err();
        let spent = spend(&store).await;
        assert_eq!((spent.len(), spent[0].state), (1, SpendState::Unsettled));
        assert_eq!(spent[0].amounts, SpendAmounts::new(10, 50, None));
    })
    .await;
}

/// A reply without usage counts as its estimate, and is marked.
#[tokio::test]
async fn a_reply_without_usage_counts_as_its_estimate() {
    use stepfold_agent_loop::test_kit::Script;
    let store = AnyStore::new(MemoryStore::new());
    let params = ModelParams::default().with_max_output_tokens(50);
    let silent = Agent::builder(Script::parse("assistant: done").unwrap()).params(params).build().unwrap();
    let runner = runner(silent, &store).budget(Budget::tokens("all", 1_000)).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    assert_eq!(states(&store).await, [SpendState::Unsettled]);
}

#[tokio::test]
async fn who_resumes_a_run_settles_what_a_dead_worker_had_reserved() {
    over_stores(async |store| {
        let budget = || Budget::tokens("all", 1_000);
        let failing = agent(Metered::failing(ModelErrorKind::Overloaded));
        let first = runner(failing, &store).budget(budget()).build();
        first.session("ada", "s1").await.unwrap().run("hello").await.unwrap_err();
        // As a worker leaves it that dies while the model works.
        let key = SessionKey::new("shop", "ada", "s1").unwrap();
        let id = ReservationId::new("of the dead").unwrap();
        let spent = SpendAmounts::new(10, 50, None);
        let at = stepfold_runner::SystemClock.now();
        let budget_id = store_budget();
        let left = ReserveSpend::new(id, key, "test/metered", spent, at);
        store.reserve(left.with([BudgetAmount::new(budget_id, 60, 1_000)])).await.unwrap();
        assert_eq!(states(&store).await, [SpendState::Reserved]);
        let second = runner(agent(Metered::new(40)), &store).budget(budget()).build();
        let resumed = second.session("ada", "s1").await.unwrap().resume().with_changed_agent().await;
        assert_eq!(resumed.unwrap().text(), "done");
        assert_eq!(states(&store).await, [SpendState::Unsettled, SpendState::Settled]);
    })
    .await;
}

fn store_budget() -> stepfold_session_scopes::BudgetId {
    stepfold_session_scopes::BudgetId::new(r#"[["app","shop"],"all","tokens","ever"]"#).unwrap()
}

/// The name of a budget's counter is stored: it must not change.
#[tokio::test]
async fn the_counter_of_a_budget_keeps_its_name() {
    let store = AnyStore::new(MemoryStore::new());
    let runner = runner(agent(Metered::new(40)), &store).budget(Budget::tokens("all", 1_000)).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    let read = stepfold_session_scopes::ReadBudgets::new([store_budget()]);
    assert_eq!(store.balances(read).await.unwrap()[0].settled, 50);
}

#[tokio::test]
async fn requests_of_agents_inside_spend_from_the_same_budget() {
    use stepfold_agent_loop::test_kit::Script;
    over_stores(async |store| {
        let inner = agent(Metered::new(40));
        let outer = |limit: u64| {
            let script = "assistant: > c1 helper(task=\"a\")   > c2 helper(task=\"b\")\nassistant: both done";
            let outer = Agent::builder(Script::parse(script).unwrap());
            let tool = inner.as_tool("helper", "Helps.").build().unwrap();
            let outer = outer.tools([tool]).build().unwrap();
            runner(outer, &store).budget(Budget::requests("all", limit)).build()
        };
        // Its own request and one inside fit: the whole run waits, beside the finished call.
        let outcome = outer(2).session("ada", "s1").await.unwrap().run("hello").await.unwrap();
        assert_eq!(exhausted(&outcome).spent + exhausted(&outcome).reserved, 2);
        assert_eq!(spend(&store).await.len(), 2);
        let outcome = outer(4).session("ada", "s1").await.unwrap().resume().await.unwrap();
        assert_eq!((outcome.exit(), outcome.text().as_ref()), (&Exit::Text, "both done"));
        let spent = spend(&store).await;
        assert_eq!(spent.len(), 4, "each request is counted once: {spent:?}");
        assert!(spent.iter().all(|record| record.state != SpendState::Reserved));
    })
    .await;
}

#[tokio::test]
async fn a_replay_spends_nothing_and_a_fork_and_a_rewind_change_no_spend() {
    over_stores(async |store| {
        let model = Metered::new(40);
        let runner = runner(agent(model.clone()), &store).budget(Budget::requests("all", 2)).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("hello").await.unwrap();
        let before = spend(&store).await;
        session.replay(runner.agent()).await.unwrap();
        let fork = session.fork("fork", None).await.unwrap();
        session.rewind(0).await.unwrap();
        assert_eq!(spend(&store).await, before);
        assert_eq!(model.asked(), 1);
        // A fork's requests are its own.
        fork.run("and then?").await.unwrap();
        let outcome = session.run("hello").await.unwrap();
        assert_eq!(exhausted(&outcome).spent, 2);
    })
    .await;
}
