//! Bounds: of the time of a case with all that evaluates it, and of what is read.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde_json::Value;
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{
    Case, CaseStatus, DataSet, DataSetFile, EvalError, Expectation, Experiment, FileLock, Judge, Mode,
    ProgramRunner, ReportFile, Rubric, Score, Spending, StoredReport, Trial,
};
use stepfold_runner::Runner;
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ModelError, Price, Prices, ReplyStream, Usage,
};

/// Counts what was dropped.
#[derive(Clone, Default)]
struct Dropped(Arc<AtomicU64>);

struct Guard(Dropped);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Dropped {
    fn guard(&self) -> Guard {
        Guard(self.clone())
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A program that does not end.
struct Endless(Dropped);

impl ProgramRunner for Endless {
    fn run<'a>(&'a self, _: &'a [String], _: Value) -> BoxFuture<'a, Result<Value, String>> {
        Box::pin(async {
            let _guard = self.0.guard();
            std::future::pending().await
        })
    }
}

/// A model that does not answer.
struct Silent(Dropped);

impl ChatModel for Silent {
    fn id(&self) -> &'static str {
        "test/silent"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let guard = self.0.guard();
        ReplyStream::new(futures_util::stream::once(async move {
            let _guard = guard;
            std::future::pending::<Result<Chunk, ModelError>>().await
        }))
    }
}

fn agent() -> Agent {
    Agent::builder(Script::parse("assistant: area 3").expect("a script").whole()).build().expect("an agent")
}

fn with_program(case: Case) -> Case {
    let program = serde_json::json!({"program": {"command": ["grade"]}});
    case.expect(serde_json::from_value(program).expect("a form"))
}

/// A law: no part of a case takes longer than its timeout, whether it is the candidate, a program or a judge, and each is ended then.
#[tokio::test(start_paused = true)]
async fn a_timeout_bounds_all_that_a_case_needs() {
    let case = Case::new("a", "which area?").expect(Expectation::Answered);
    let dropped = Dropped::default();
    let silent = || Agent::builder(Silent(dropped.clone())).build().expect("an agent");
    let store = AnyStore::new(MemoryStore::new());
    let judge = || Judge::new(&silent(), store.clone()).expect("it can judge");
    let judged = case.clone().expect(Expectation::Judge(Rubric::new("One area.")));
    let candidates = [
        (Experiment::new(&silent()), case.clone(), 0),
        (Experiment::new(&agent()).programs(Endless(dropped.clone())), with_program(case.clone()), 1),
        (Experiment::new(&agent()).judge(judge()), judged.clone(), 1),
    ];
    for (number, (experiment, case, scores)) in (1..).zip(candidates) {
        let experiment = experiment.timeout(Duration::from_secs(5));
        let before = tokio::time::Instant::now();
        let result = experiment.run_case(&case).await;
        assert_eq!(before.elapsed().as_secs(), 5);
        assert_eq!((result.status, result.scores.len()), (CaseStatus::Error, scores), "{}", result.why());
        let why = if scores == 0 { "timeout after 5s" } else { "timeout after 5s, before all was evaluated" };
        assert_eq!(result.why(), why);
        // The judge's run ends in a task of its own.
        for _ in 0..100 {
            if dropped.count() < number {
                // tidy: allow sleep, because the clock of the test is paused, and other tasks get their turn.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(dropped.count(), number, "{}", result.why());
    }
    // The session of the judge is not under way any more, and the next experiment judges again.
    let runner = Runner::builder(silent(), store.clone()).build();
    let list = stepfold_session_scopes::ListSessions::new(
        runner.key("judge", "-").expect("ids").app.as_str(),
        "judge",
    )
    .expect("ids");
    let listed = stepfold_session_scopes::SessionStore::list(&store, list).await.expect("a list").sessions;
    let session = runner.session("judge", listed[0].key.id.as_str()).await.expect("it is there");
    assert!(session.unfinished().await.expect("it can be read").is_none());
    let good = r#"assistant: {"reason": "One.", "score": 1.0, "passed": true}"#;
    let answering =
        Agent::builder(ScriptOf(Script::parse(good).expect("a script").whole())).build().expect("an agent");
    let judge = Judge::new(&answering, store.clone()).expect("it can judge");
    let result = Experiment::new(&agent()).judge(judge).run_case(&judged).await;
    assert_eq!(result.status, CaseStatus::Passed, "{}", result.why());
}

/// A script with the id of the silent model, so that it is the same judge.
struct ScriptOf<M>(M);

impl<M: ChatModel> ChatModel for ScriptOf<M> {
    fn id(&self) -> &'static str {
        "test/silent"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.0.respond(request)
    }
}

/// Nothing is spent for a case that cannot be evaluated.
#[tokio::test]
async fn a_missing_port_is_found_before_the_candidate_is_asked() {
    let dropped = Dropped::default();
    let agent = Agent::builder(Silent(dropped.clone())).build().expect("an agent");
    let case = Case::new("a", "which area?");
    for case in [with_program(case.clone()), case.expect(Expectation::Judge(Rubric::new("One area.")))] {
        let result = Experiment::new(&agent).run_case(&case).await;
        assert_eq!((result.status, dropped.count()), (CaseStatus::Error, 0), "{}", result.why());
    }
}

/// A line without an end is read up to its bound, and what is no regular file is not opened.
#[test]
fn lines_and_files_without_an_end_are_refused() {
    let endless = DataSet::from_json_lines(BufReader::new(std::io::repeat(b'x')));
    let error = endless.check().expect_err("it has no end");
    assert_eq!(error.to_string(), "invalid case at line 1: a line has at most 64 MiB");
    let folder = tempfile::tempdir().expect("a folder");
    let mut others = vec![folder.path().to_owned()];
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
        others.extend([pipe, Path::new("/dev/zero").to_owned()]);
    }
    for path in others {
        let partial = folder.path().join("x.partial");
        for error in [
            StoredReport::open(&path).map(drop),
            DataSetFile::open(&path, FileLock::TIMEOUT).map(drop),
            DataSetFile::try_open(&path, false).map(drop),
            FileLock::wait(&path, Duration::ZERO).map(drop),
            ReportFile::open(&partial, &path).map(drop),
        ] {
            let error = error.expect_err("it is not a regular file");
            let is_named = matches!(&error, EvalError::NotAReport { .. })
                || error.to_string().contains("not a regular file");
            assert!(is_named, "{}: {error}", path.display());
        }
    }
}

/// All cases are checked before the first is tried, whatever their number, and the fault names its line.
#[test]
fn a_fault_at_the_end_is_found_by_a_check() {
    let lines = |bad: &str| {
        let good =
            |number| format!("{{\"name\":\"c{number}\",\"say\":\"hello\",\"expect\":[\"answered\"]}}\n");
        (1..900).map(good).collect::<String>() + bad
    };
    assert_eq!(DataSet::from_json_lines(lines("").as_bytes()).check().expect("valid cases"), 899);
    for (bad, why) in [
        ("{", "invalid case at line 900"),
        ("{\"name\":\"c1\",\"say\":\"hello\"}", "duplicate case `c1`"),
        ("{\"name\":\"x\",\"say\":\"hello\",\"expect\":[{\"max_steps\":0}]}", "invalid case `x`"),
    ] {
        let error =
            DataSet::from_json_lines(lines(bad).as_bytes()).check().expect_err("its last case is invalid");
        assert!(error.to_string().starts_with(why), "{error}");
    }
}

/// A bound on the time of a run is one that a trial can meet and can miss, and its reason is the same at each try.
#[tokio::test]
async fn the_time_of_a_run_can_be_expected() {
    let session = Runner::builder(agent(), MemoryStore::new()).build().session("ada", "s1").await;
    let session = session.expect("a new session");
    session.run("which area?").await.expect("it ends");
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    for mode in [Mode::Roll, Mode::Recorded, Mode::Live] {
        for (most, status, why) in [
            (1e6, CaseStatus::Passed, ""),
            (1e-9, CaseStatus::Failed, "max_seconds: it took longer than 0.000000001 s"),
        ] {
            let case = case.clone().expect(Expectation::MaxSeconds(most));
            let result = Experiment::new(&agent()).mode(mode).run_case(&case).await;
            assert_eq!((result.status, &*result.why()), (status, why), "{mode}");
        }
    }
    for most in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Case::new("a", "b").expect(Expectation::MaxSeconds(most)).check().expect_err("no bound");
        assert!(error.to_string().contains("invalid `max_seconds`"), "{error}");
    }
}

/// A case that could not be read again is not written.
#[test]
fn a_case_that_is_longer_than_a_line_is_not_added() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cases.jsonl");
    let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
    let most = usize::try_from(DataSet::MAX_LINE).expect("it fits");
    let error = file.append(&[Case::new("long", "x".repeat(most))], u64::MAX).expect_err("too long");
    assert!(error.to_string().starts_with("invalid case `long`: it has 67108"), "{error}");
    assert_eq!(file.append(&[Case::new("short", "x".repeat(most - 1_000))], u64::MAX).expect("added"), 1);
    file.read_each(|_| ()).expect("it can be read");
}

/// A judge that tells its usage, and gives a judgement after a time.
#[derive(Clone)]
struct Slow {
    seconds: u64,
    requests: Arc<AtomicU64>,
}

impl ChatModel for Slow {
    fn id(&self) -> &'static str {
        "test/slow"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        use futures_util::StreamExt as _;

        self.requests.fetch_add(1, Ordering::SeqCst);
        let text = r#"{"reason": "One.", "score": 1.0, "passed": true}"#.to_owned();
        let begun = [Chunk::Text(text), Chunk::Usage(Usage::new(1_000_000, 1_000_000))];
        let seconds = self.seconds;
        let end = futures_util::stream::once(async move {
            // tidy: allow sleep, because the clock of the test is paused: the model takes its time.
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, ModelError>(Chunk::Finished(FinishReason::Stop))
        });
        ReplyStream::new(futures_util::stream::iter(begun.map(Ok)).chain(end))
    }
}

impl Slow {
    fn of(seconds: u64) -> Self {
        Slow { seconds, requests: Arc::default() }
    }

    fn judge(&self) -> Judge {
        let judge = Agent::builder(self.clone()).build().expect("an agent");
        Judge::new(&judge, MemoryStore::new()).expect("it can judge")
    }
}

/// A judge whose case runs out of time has spent what it has used.
#[tokio::test(start_paused = true)]
async fn the_cost_of_a_judge_counts_if_its_case_runs_out_of_time() {
    let prices = Prices::new()
        .with("test/slow", Price::new(1.0, 1.0))
        .with(agent().model().id(), Price::new(0.0, 0.0));
    for (seconds, status) in [(60, CaseStatus::Error), (1, CaseStatus::Passed)] {
        let slow = Slow::of(seconds);
        let spending = Spending::new().max_nanodollars(1_000_000_000, prices.clone());
        let experiment =
            Experiment::new(&agent()).judge(slow.judge()).spending(spending).timeout(Duration::from_secs(5));
        let case = |name: &str| {
            Case::new(name, format!("which area, {name}?")).expect(Expectation::Judge(Rubric::new(name)))
        };
        let result = experiment.run_case(&case("a")).await;
        assert_eq!(result.status, status, "{}", result.why());
        // tidy: allow sleep, because the clock of the test is paused, and the run of the judge gets its turn to end.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let result = experiment.run_case(&case("b")).await;
        assert_eq!(result.status, CaseStatus::Error);
        assert!(result.why().contains("the limit of costs is reached"), "{}", result.why());
        assert_eq!(slow.requests.load(Ordering::SeqCst), 1);
    }
}

/// A model that never replies.
struct Mute;

impl ChatModel for Mute {
    fn id(&self) -> &'static str {
        "test/mute"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::new(futures_util::stream::pending())
    }
}

/// A request whose reply never came costs its estimate, of a candidate and of a judge.
#[tokio::test(start_paused = true)]
async fn a_request_without_a_reply_counts() {
    let mute = Agent::builder(Mute).build().expect("an agent");
    let prices = Prices::new()
        .with("test/mute", Price::new(1.0, 1.0))
        .with(agent().model().id(), Price::new(0.0, 0.0));
    for is_judge in [false, true] {
        let spending = Spending::new().max_nanodollars(1_000_000, prices.clone());
        let judge = || Judge::new(&mute, MemoryStore::new()).expect("it can judge");
        let (experiment, expected) = match is_judge {
            true => (Experiment::new(&agent()).judge(judge()), Expectation::Judge(Rubric::new("One."))),
            false => (Experiment::new(&mute), Expectation::Answered),
        };
        let experiment = experiment.spending(spending).timeout(Duration::from_secs(5));
        let run = async |name: &str| {
            let result = experiment.run_case(&Case::new(name, name).expect(expected.clone())).await;
            // tidy: allow sleep, because the clock of the test is paused, and the run of the judge gets its turn to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            result.why()
        };
        assert!(run("a").await.starts_with("timeout after 5s"), "judge: {is_judge}");
        let why = run("b").await;
        assert!(why.contains("the limit of costs is reached"), "judge: {is_judge}: {why}");
    }
}

/// Trials with one answer wait for one judgement, and the end of one of them, first or last, takes it from no other.
#[tokio::test(start_paused = true)]
async fn a_trial_that_runs_out_of_time_leaves_the_judgement_to_others() {
    let case = Case::new("a", "which area?").expect(Expectation::Judge(Rubric::new("One area.")));
    for (seconds, statuses) in [
        ([5, 60], [CaseStatus::Error, CaseStatus::Passed]),
        ([60, 5], [CaseStatus::Passed, CaseStatus::Error]),
        ([60, 60], [CaseStatus::Passed, CaseStatus::Passed]),
    ] {
        let slow = Slow::of(8);
        let experiment = Experiment::new(&agent()).judge(slow.judge());
        let [first, second] = seconds.map(|seconds| experiment.clone().timeout(Duration::from_secs(seconds)));
        let second = async {
            // tidy: allow sleep, because the clock of the test is paused, and the first one is to begin.
            tokio::time::sleep(Duration::from_secs(1)).await;
            second.run_case(&case).await
        };
        let (first, second) = tokio::join!(first.run_case(&case), second);
        let whys = (first.why(), second.why());
        assert_eq!([first.status, second.status], statuses, "{seconds:?}: {whys:?}");
        assert_eq!(slow.requests.load(Ordering::SeqCst), 1, "{seconds:?}");
    }
}

/// A model that replies with many letters.
struct Long(usize);

impl ChatModel for Long {
    fn id(&self) -> &'static str {
        "test/long"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::from_chunks([Chunk::Text("a".repeat(self.0)), Chunk::Finished(FinishReason::Stop)])
    }
}

/// A law: what computes ends with the timeout of its case as well: an expression with many states, a long list of texts, an evaluator in
/// code.
#[test]
#[expect(clippy::disallowed_methods, reason = "it measures how long a timeout of the machine's clock takes")]
fn a_timeout_bounds_what_computes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let agent = Agent::builder(Long(1 << 20)).build().expect("an agent");
    let ways: Vec<String> = (1..40).map(|number| format!("(a{{{number}}}b|c)")).collect();
    let texts: Vec<String> = (0..200_000).map(|number| format!("b{number}")).collect();
    let costly = [Expectation::TextMatches(ways.join("|")), Expectation::TextLacks(texts)];
    let (ended, waits) = std::sync::mpsc::channel::<()>();
    let waits = std::sync::Mutex::new(waits);
    let evaluator = move |_: &Case, _: &Trial| {
        let _ = waits.lock().expect("one waits").recv_timeout(Duration::from_secs(20));
        Score::passed("own")
    };
    let experiment = Experiment::new(&agent).timeout(Duration::from_millis(50));
    let cases = costly.map(|expectation| (experiment.clone(), Case::new("a", "hello").expect(expectation)));
    let in_code = (experiment.evaluator(evaluator), Case::new("a", "hello"));
    for (experiment, case) in cases.into_iter().chain([in_code]) {
        let begun = Instant::now();
        let result = runtime.block_on(experiment.run_case(&case));
        let elapsed = begun.elapsed();
        assert_eq!(result.status, CaseStatus::Error, "{}", result.why());
        assert!(result.why().starts_with("timeout after 50ms"), "{}", result.why());
        assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
    }
    drop(ended);
    // It would wait for the threads.
    runtime.shutdown_background();
}

/// A text that is too long for an expression, and an expression that is too large, are told.
#[tokio::test]
async fn an_expression_is_bounded() {
    let matches =
        |pattern: &str| Case::new("a", "hello").expect(Expectation::TextMatches(pattern.to_owned()));
    let agent = Agent::builder(Long((1 << 20) + 1)).build().expect("an agent");
    let result = Experiment::new(&agent).run_case(&matches("a$")).await;
    let words = "text of 1048577 bytes is not searched by `text_matches`: at most 1048576";
    assert_eq!((&*result.why(), result.status), (words, CaseStatus::Error));
    let agent = Agent::builder(Long(1 << 20)).build().expect("an agent");
    let result = Experiment::new(&agent).run_case(&matches("aa$")).await;
    assert_eq!(result.status, CaseStatus::Passed, "{}", result.why());
    let error = matches("(a{100}){1000}").check().expect_err("it is too large").to_string();
    assert!(error.starts_with("invalid case `a`: invalid regular expression `(a{100}){1000}`: "), "{error}");
}
