//! Experiments with stored sessions: each user's own, in files that another process shares.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{
    Case, CaseResult, CaseSource, DataSet, DataSetFile, EvalError, Expectation, Experiment, FileLock,
    ReportFile,
};
use stepfold_runner::{EraseRequest, ErasureReport, ErasureSubject, Runner};
use stepfold_server::http::{App, CandidateChange, Candidates, ExperimentFolder, Limits};
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, CreateSession, DeleteSession, Deleted, EraseData, ErasedData, ForkInfo,
    ForkSession, GetSession, ListForks, ListSessions, MemoryStore, PruneSession, Pruned, Receipt,
    RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage, SessionStore, WriteScope,
};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ReplyStream};
use tokio::sync::Notify;

use super::site::{Site, agent};

const SCRIPT: &str = "assistant: area 3\nassistant: area 4\nassistant: area 5\n";

/// Candidates with another script.
struct Scripts;

impl Candidates for Scripts {
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String> {
        match change.model.as_deref() {
            Some("worse") => Ok(agent("assistant: > p1 pay(euro=1)\nassistant: well\n", Vec::new())),
            other => Err(format!("unknown model {other:?}")),
        }
    }
}

/// Runs an experiment to its end; its row.
async fn run(site: &Site, name: &str, body: Value) -> Value {
    let accepted = site.post(name, "/experiments", body.clone()).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED, "{}", accepted.text);
    assert_eq!(accepted.json()["name"], body["name"]);
    ended(site, name, body["name"].as_str().unwrap()).await
}

/// The time until a test asks again.
async fn pause() {
    // tidy: allow sleep, because a client of the API learns of results by asking
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Waits for the end of an experiment; its row.
async fn ended(site: &Site, name: &str, experiment: &str) -> Value {
    for _ in 0..4_000 {
        let row = site.get(name, &format!("/experiments/{experiment}")).await.json()["experiment"].clone();
        match row["status"].as_str() {
            Some("waiting" | "running") => pause().await,
            _ => return row,
        }
    }
    panic!("{experiment} does not end");
}

/// A site of ada's session with two turns; and the folder of its experiments.
async fn site(folder: &std::path::Path) -> Site {
    let runner = Runner::builder(agent(SCRIPT, Vec::new()), MemoryStore::new()).app("clerk").unwrap().build();
    let app = App::from(runner).experiments(ExperimentFolder::new(folder).candidates(Scripts));
    let site = Site::of(app, Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    for text in ["which area?", "and then?"] {
        assert_eq!(site.post("ada", "/sessions/s1/run", json!({"text": text})).await.status, 200);
    }
    site
}

#[tokio::test]
async fn turns_become_cases_and_experiments_are_read_case_by_case() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    let empty = site.get("ada", "/experiments").await.json();
    assert_eq!(empty, json!({"data_sets": [], "experiments": [], "unreadable": []}));
    let cases = json!({"data_set": "mine", "session": "s1"});
    assert_eq!(site.post("ada", "/cases", cases.clone()).await.json(), json!({"added": 2, "unsuited": []}));
    assert_eq!(site.post("ada", "/cases", cases).await.json()["added"], 0);
    let at = json!({"data_set": "mine", "session": "s1", "at": 99});
    assert_eq!(site.post("ada", "/cases", at).await.problem().0, 400);

    let base = run(&site, "ada", json!({"name": "base", "data_set": "mine"})).await;
    assert_eq!((&base["status"], &base["expected"]), (&json!("done"), &json!(2)));
    assert_eq!((&base["passed"], &base["mode"]), (&json!(2), &json!("roll")), "{base}");
    let worse = json!({"name": "worse", "data_set": "mine", "model": "worse"});
    assert_eq!(
        site.post("ada", "/experiments", worse.clone()).await.problem(),
        (403, "forbidden".to_owned())
    );
    let brief = json!({"name": "brief", "data_set": "mine", "instructions": "Be brief.", "repeats": 2});
    let brief = run(&site, "ada", brief).await;
    assert_eq!((&brief["cases"], &brief["passed"]), (&json!(4), &json!(4)), "{brief}");

    let listed = site.get("reader", "/experiments").await.json();
    let rows = listed["experiments"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!((listed["data_sets"].clone(), names), (json!(["mine"]), vec!["base", "brief"]));
    let read = site.get("ada", "/experiments/brief?baseline=base").await.json();
    assert_eq!(read["comparison"]["verdict"], "no_difference", "{read}");
    assert_eq!(read["results"][1]["repeat"], 1);
    let unknown = (404, "unknown_experiment".to_owned());
    assert_eq!(site.get("ada", "/experiments/none").await.problem(), unknown);
    // An experiment that has ended is deleted, once.
    assert_eq!(delete(&site, "reader", "base").await, 403);
    assert_eq!(delete(&site, "ada", "base").await, 204);
    assert_eq!(delete(&site, "ada", "base").await, 404);
    assert_eq!(site.get("ada", "/experiments/base").await.problem(), unknown);
    // So is a data set.
    let delete = async |name, data_set: &str| {
        site.ask(name, Method::DELETE, &format!("/data-sets/{data_set}"), &[], "").await.status.as_u16()
    };
    assert_eq!(delete("reader", "mine").await, 403);
    assert_eq!(delete("ada", "..%2Fx").await, 400);
    assert_eq!(delete("ada", "none").await, 404);
    assert_eq!(delete("ada", "mine").await, 204);
    assert_eq!(delete("ada", "mine").await, 404);
    assert_eq!(site.get("ada", "/experiments").await.json()["data_sets"], json!([]));
}

async fn delete(site: &Site, name: &str, experiment: &str) -> u16 {
    let deleted = site.ask(name, Method::DELETE, &format!("/experiments/{experiment}"), &[], "").await;
    deleted.status.as_u16()
}

#[tokio::test]
async fn a_report_of_the_command_is_read_with_its_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    site.post("ada", "/cases", json!({"data_set": "mine", "session": "s1"})).await;
    // As `eval run --timelines --report` writes it, in the folder of the user.
    let text = std::fs::read(folder.path().join("ada/mine.jsonl")).unwrap();
    let cases: Vec<Case> = DataSet::from_json_lines(text.as_slice()).collect::<Result<_, _>>().unwrap();
    let cases = cases.into_iter().map(|case| case.expect(Expectation::RecordedText));
    let worse = Scripts.candidate(&change_of("worse")).unwrap();
    let report =
        Experiment::new(&worse).timelines().run(DataSet::of(cases.collect::<Vec<_>>())).await.unwrap();
    let mut lines = Vec::new();
    report.write_json_lines(&mut lines).unwrap();
    std::fs::write(folder.path().join("ada/worse.report"), lines).unwrap();
    std::fs::write(folder.path().join("ada/torn.report"), "{").unwrap();
    let listed = site.get("ada", "/experiments").await.json();
    assert_eq!(
        (listed["experiments"].as_array().unwrap().len(), &listed["unreadable"]),
        (1, &json!(["torn"]))
    );
    let first = &site.get("ada", "/experiments/worse").await.json()["results"][0];
    assert_eq!((&first["status"], &first["differs_at"]), (&json!("failed"), &json!(1)), "{first}");
    assert_eq!(first["recorded"][1], "assistant: area 3");
    assert_eq!(first["made"][1], r#"assistant: > pay({"euro":1})"#);
}

fn change_of(model: &str) -> CandidateChange {
    let mut change = CandidateChange::default();
    change.model = Some(model.to_owned());
    change
}

#[tokio::test]
async fn others_sessions_and_costly_modes_need_an_administrator() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    site.post("ada", "/cases", json!({"data_set": "mine", "session": "s1"})).await;
    let forbidden = (403, "forbidden".to_owned());
    // Bob has no such session, and may not name ada's.
    let own = json!({"data_set": "x", "session": "s1"});
    assert_eq!(site.post("bob", "/cases", own).await.problem(), (404, "unknown_session".to_owned()));
    let of_another = json!({"data_set": "x", "session": "s1", "user": "bob"});
    assert_eq!(site.post("ada", "/cases", of_another).await.problem(), forbidden);
    assert_eq!(site.get("ada", "/experiments?user=bob").await.problem(), forbidden);
    for body in [
        json!({"name": "x", "data_set": "mine", "mode": "live", "max_requests": 3}),
        json!({"name": "x", "data_set": "mine", "judge": true, "max_requests": 3}),
        json!({"name": "x", "data_set": "mine", "set": ["limits.steps=1"]}),
    ] {
        assert_eq!(site.post("ada", "/experiments", body).await.problem(), forbidden);
    }
    assert_eq!(
        site.post("reader", "/experiments", json!({"name": "x", "data_set": "mine"})).await.status,
        403
    );
    // An administrator adds a session of ada's to its own data set, and needs a limit.
    let of_ada = json!({"data_set": "hers", "session": "s1", "user": "ada"});
    assert_eq!(site.post("bob", "/cases", of_ada).await.json()["added"], 2);
    assert!(folder.path().join("bob/hers.jsonl").exists());
    let live =
        |limit: Value| json!({"name": "live", "data_set": "hers", "mode": "live", "max_requests": limit});
    let unbounded = site.post("bob", "/experiments", live(Value::Null)).await;
    assert!(unbounded.text.contains("mode `live` and judges need `max_requests`"), "{}", unbounded.text);
    let bounded = run(&site, "bob", live(json!(1))).await;
    assert_eq!((&bounded["cases"], &bounded["errors"]), (&json!(2), &json!(1)), "{bounded}");
    assert_eq!(site.get("bob", "/experiments?user=ada").await.json()["data_sets"], json!(["mine"]));
    // Names are not paths.
    for name in ["../x", "", ".x", "a/b", &"x".repeat(65)] {
        let named = json!({"name": name, "data_set": "mine"});
        assert_eq!(site.post("ada", "/experiments", named).await.status, 400, "{name}");
        let data_set = json!({"data_set": name, "session": "s1"});
        assert_eq!(site.post("ada", "/cases", data_set).await.status, 400, "{name}");
    }
    assert_eq!(site.get("ada", "/experiments/..%2Fx").await.status, 400);
}

/// A model that takes its time, and counts its replies.
struct Slow {
    script: Script,
    replies: Arc<AtomicU64>,
    time: Duration,
}

impl ChatModel for Slow {
    fn id(&self) -> &'static str {
        "test/slow"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.replies.fetch_add(1, Ordering::SeqCst);
        let (time, reply) = (self.time, self.script.respond(request));
        let late = stream::once(async move {
            // tidy: allow sleep, because the model is a slow one
            tokio::time::sleep(time).await;
            reply
        });
        ReplyStream::new(late.flatten())
    }
}

/// The candidates of a server, of which one is slow.
struct SlowCandidates {
    replies: Arc<AtomicU64>,
    time: Duration,
}

impl Candidates for SlowCandidates {
    fn candidate(&self, _: &CandidateChange) -> Result<Agent, String> {
        let script = Script::parse("assistant: area 3").unwrap().whole();
        let slow = Slow { script, replies: Arc::clone(&self.replies), time: self.time };
        agent("", Vec::new()).to_builder().model(slow).build().map_err(|error| error.to_string())
    }
}

/// Processes of a server, one after the other, over one store and one folder.
struct Processes {
    store: AnyStore,
    folder: tempfile::TempDir,
    replies: Arc<AtomicU64>,
}

impl Processes {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Processes { store: AnyStore::new(MemoryStore::new()), folder, replies: Arc::default() }
    }

    /// A process whose slow candidate needs this time for a case.
    async fn start(&self, time: Duration, limits: Limits) -> Site {
        let runner = Runner::builder(agent(SCRIPT, Vec::new()), self.store.clone());
        let candidates = SlowCandidates { replies: Arc::clone(&self.replies), time };
        let folder = ExperimentFolder::new(self.folder.path()).candidates(candidates);
        let app = App::from(runner.app("clerk").unwrap().build()).experiments(folder);
        Site::of(app, limits).await
    }

    /// Writes a data set of bob's.
    fn data_set(&self, name: &str, cases: usize) {
        let folder = self.folder.path().join("bob");
        std::fs::create_dir_all(&folder).unwrap();
        let mut lines = Vec::new();
        for number in 0..cases {
            let mut case = Case::new(format!("c{number:02}"), "which area?").expect(Expectation::Answered);
            case.source = source("carl", &format!("s{number:02}"));
            case.write_line(&mut lines).unwrap();
        }
        std::fs::write(folder.join(format!("{name}.jsonl")), lines).unwrap();
    }

    fn report(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("bob/{name}.report"))).unwrap()
    }

    /// The files of jobs. Those of a job that has ended are removed one after the other.
    async fn jobs(&self) -> usize {
        let count = || std::fs::read_dir(self.folder.path().join(".jobs")).map_or(0, Iterator::count);
        for _ in 0..400 {
            if count() == 0 {
                break;
            }
            pause().await;
        }
        count()
    }
}

/// The source of a case that was taken from the first turn of a session.
fn source(user: &str, session: &str) -> Option<CaseSource> {
    let source =
        json!({"app": "clerk", "user": user, "session": session, "first_version": 1, "last_version": 1});
    serde_json::from_value(source).unwrap()
}

/// A session that is erased, without its store.
fn erased_session(user: &str, session: &str) -> ErasureSubject {
    ErasureSubject::Session { user: user.parse().unwrap(), session: session.parse().unwrap() }
}

fn slow(name: &str) -> Value {
    json!({"name": name, "data_set": "mine", "model": "slow"})
}

/// Waits until an experiment has a number of results.
async fn has_results(site: &Site, experiment: &str, least: u64) {
    for _ in 0..4_000 {
        let listed = site.get("bob", "/experiments?under_way=true").await.json();
        let rows = listed["experiments"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == experiment).expect("it is under way");
        if row["status"] == "running" && row["cases"].as_u64().unwrap() >= least {
            assert_eq!(row["expected"], 30, "{row}");
            return;
        }
        pause().await;
    }
    panic!("{experiment} has too few results");
}

#[tokio::test]
async fn a_stopped_server_leaves_its_experiment_to_the_next_process() {
    let processes = Processes::new();
    processes.data_set("mine", 30);
    let quick = processes.start(Duration::ZERO, Limits::default()).await;
    run(&quick, "bob", slow("whole")).await;
    assert!(quick.stop().await);
    assert_eq!(processes.replies.swap(0, Ordering::SeqCst), 30);

    let first = processes.start(Duration::from_millis(20), Limits::default()).await;
    assert_eq!(first.post("bob", "/experiments", slow("twice")).await.status, 202);
    has_results(&first, "twice", 3).await;
    // It does not complete, and stops after the case at hand, long before its thirty cases are over.
    assert!(!first.stop().await);
    assert!(processes.replies.load(Ordering::SeqCst) < 30);
    // An experiment of the name before this one has failed, and says so too late.
    let jobs =
        std::fs::read_dir(processes.folder.path().join(".jobs")).unwrap().map(|file| file.unwrap().path());
    let job = jobs.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    std::fs::copy(job, processes.folder.path().join("bob/twice.failed")).unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "twice").await;
    assert_eq!((&row["status"], &row["passed"]), (&json!("done"), &json!(30)), "{row}");
    // No case was tried twice, and nothing is left.
    assert_eq!(processes.replies.load(Ordering::SeqCst), 30);
    assert_eq!(processes.report("twice"), processes.report("whole"));
    assert_eq!(processes.jobs().await, 0);
}

/// With no time to complete, the case at hand is dropped.
#[tokio::test]
async fn a_case_that_takes_longer_than_the_shutdown_is_tried_again() {
    let processes = Processes::new();
    processes.data_set("mine", 30);
    let mut limits = Limits::default();
    limits.drain = Duration::from_millis(50);
    let first = processes.start(Duration::from_secs(600), limits).await;
    assert_eq!(first.post("bob", "/experiments", slow("one")).await.status, 202);
    while processes.replies.load(Ordering::SeqCst) == 0 {
        pause().await;
    }
    assert!(!first.stop().await);
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    assert_eq!(ended(&second, "bob", "one").await["passed"], 30);
    assert_eq!(processes.replies.load(Ordering::SeqCst), 31);
}

#[tokio::test]
async fn experiments_wait_for_each_other_and_too_many_are_refused() {
    let processes = Processes::new();
    processes.data_set("mine", 30);
    let mut limits = Limits::default();
    (limits.running_experiments, limits.experiments_per_user, limits.experiments) = (1, 2, 3);
    let site = processes.start(Duration::from_secs(600), limits).await;
    let post = async |user: &'static str, body: Value| site.post(user, "/experiments", body).await;
    let too_many = (429, "too_many".to_owned());
    assert_eq!(post("bob", slow("a")).await.status, 202);
    has_results(&site, "a", 0).await;
    let waiting = post("bob", slow("b")).await.json();
    assert_eq!((&waiting["status"], &waiting["cases"]), (&json!("waiting"), &json!(0)), "{waiting}");
    let in_use = site.ask("bob", Method::DELETE, "/data-sets/mine", &[], "").await.problem();
    assert_eq!(in_use, (409, "data_set_in_use".to_owned()));
    assert_eq!(post("bob", slow("c")).await.problem(), too_many);
    // A repeated request is the same experiment, another one of its name is not.
    assert_eq!(post("bob", slow("b")).await.status, 202);
    let other = json!({"name": "b", "data_set": "mine", "model": "slow", "repeats": 2});
    assert_eq!(post("bob", other).await.problem(), (409, "exists".to_owned()));
    // Others have their own, up to the bound of the app.
    std::fs::create_dir_all(processes.folder.path().join("ada")).unwrap();
    let copied = ["bob", "ada"].map(|user| processes.folder.path().join(user).join("mine.jsonl"));
    std::fs::copy(&copied[0], &copied[1]).unwrap();
    assert_eq!(post("root", slow("c")).await.status, 202);
    assert_eq!(post("root", slow("d")).await.problem(), too_many);
    assert_eq!(site.get("ada", "/experiments/a").await.problem().0, 404);

    // One that runs is cancelled, and the next one begins; one that waits is cancelled too.
    let before = processes.replies.load(Ordering::SeqCst);
    assert_eq!(delete(&site, "bob", "a").await, 204);
    has_results(&site, "b", 0).await;
    while processes.replies.load(Ordering::SeqCst) == before {
        pause().await;
    }
    assert_eq!(delete(&site, "bob", "c?user=ada").await, 204);
    assert_eq!(delete(&site, "bob", "b").await, 204);
    let left = site.get("bob", "/experiments").await.json();
    assert_eq!((&left["experiments"], processes.jobs().await), (&json!([]), 0), "{left}");
}

#[tokio::test]
async fn an_experiment_that_cannot_be_run_says_why() {
    let processes = Processes::new();
    processes.data_set("mine", 2);
    let site = processes.start(Duration::ZERO, Limits::default()).await;
    let unknown = json!({"name": "x", "data_set": "none"});
    assert!(site.post("bob", "/experiments", unknown).await.text.contains("unknown data set `none`"));
    let misspelt = json!({"name": "x", "data_set": "mine", "allow": ["pray"]});
    let misspelt = site.post("bob", "/experiments", misspelt).await.text;
    assert!(misspelt.contains("unknown tool `pray` is allowed; available: pay"), "{misspelt}");
    let path = processes.folder.path().join("bob/mine.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    // A data set that cannot be read is refused at once.
    let first = text.lines().next().unwrap();
    for (damage, why) in [
        (format!("{text}{{\n"), "invalid case at line 3"),
        (format!("{text}{{\"name\": \"x\", \"say\": 1}}\n"), "invalid case at line 3"),
        (format!("{text}{first}\n"), "duplicate case `c00`"),
        ("\n".to_owned(), "has no cases"),
    ] {
        std::fs::write(&path, damage).unwrap();
        let refused = site.post("bob", "/experiments", slow("x")).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        assert!(refused.text.contains(why), "{}", refused.text);
    }
    assert_eq!(site.get("bob", "/experiments").await.json()["experiments"], json!([]));
    // Mended, it is run.
    std::fs::write(&path, text).unwrap();
    assert_eq!(run(&site, "bob", slow("x")).await["status"], "done");
    assert_eq!(delete(&site, "bob", "x").await, 204);
}

/// Candidates of which each is counted, and the first alone exists.
struct Counted(Arc<AtomicU64>);

impl Candidates for Counted {
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String> {
        if self.0.fetch_add(1, Ordering::SeqCst) > 0 {
            return Err("it is gone".to_owned());
        }
        let mut worse = change.clone();
        worse.model = Some("worse".to_owned());
        Scripts.candidate(&worse)
    }
}

/// An experiment that cannot be run, and whose failure cannot be written, is tried again later and not at once.
#[tokio::test]
async fn a_failure_that_cannot_be_written_is_no_endless_loop() {
    let (processes, tries) = (Processes::new(), Arc::<AtomicU64>::default());
    processes.data_set("mine", 1);
    let bob = processes.folder.path().join("bob");
    std::fs::create_dir(bob.join(format!("x.failed.{}.whole", std::process::id()))).unwrap();
    let runner = Runner::builder(agent(SCRIPT, Vec::new()), processes.store.clone());
    let folder = ExperimentFolder::new(processes.folder.path()).candidates(Counted(Arc::clone(&tries)));
    let app = App::from(runner.app("clerk").unwrap().build()).experiments(folder);
    let site = Site::of(app, Limits::default()).await;
    assert_eq!(site.post("bob", "/experiments", slow("x")).await.status, 202);
    // Once for the request, and once for the worker.
    while tries.load(Ordering::SeqCst) < 2 {
        pause().await;
    }
    for _ in 0..40 {
        pause().await;
    }
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

/// The first process leaves an experiment, and the files that it has of it.
async fn left(processes: &Processes, body: Value) -> Vec<std::path::PathBuf> {
    processes.data_set("mine", 30);
    let mut limits = Limits::default();
    limits.drain = Duration::from_millis(50);
    let first = processes.start(Duration::from_secs(600), limits).await;
    assert_eq!(first.post("bob", "/experiments", body).await.status, 202);
    while processes.replies.load(Ordering::SeqCst) == 0 {
        pause().await;
    }
    first.stop().await;
    let mut files: Vec<_> = std::fs::read_dir(processes.folder.path().join(".jobs"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|ending| ending == "json" || ending == "partial"))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn effects_are_not_repeated_and_damaged_results_are_no_endless_loop() {
    let processes = Processes::new();
    let mut live = slow("one");
    live["mode"] = json!("live");
    live["max_requests"] = json!(100);
    left(&processes, live).await;
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert_eq!((&row["status"], processes.jobs().await), (&json!("failed"), 0), "{row}");
    assert!(row["why"].as_str().unwrap().starts_with("interrupted"), "{row}");
    assert_eq!(processes.replies.load(Ordering::SeqCst), 1);

    let processes = Processes::new();
    let files = left(&processes, slow("two")).await;
    assert!(files[1].ends_with(files[0].with_extension("partial").file_name().unwrap()));
    std::fs::write(&files[1], "damaged\n").unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let job = async || second.get("bob", "/experiments?under_way=true").await.json()["experiments"].clone();
    while job().await != json!([]) {
        pause().await;
    }
    let row = ended(&second, "bob", "two").await;
    assert_eq!((&row["status"], processes.jobs().await), (&json!("failed"), 0), "{row}");
}

/// Of another agent, results of a process before are not taken.
#[tokio::test]
async fn an_experiment_does_not_continue_with_another_agent() {
    let processes = Processes::new();
    processes.data_set("mine", 30);
    let first = processes.start(Duration::from_millis(20), Limits::default()).await;
    let named = json!({"name": "one", "data_set": "mine", "model": "slow", "instructions": "Be brief."});
    assert_eq!(first.post("bob", "/experiments", named).await.status, 202);
    has_results(&first, "one", 1).await;
    first.stop().await;
    let jobs = processes.folder.path().join(".jobs");
    let job = std::fs::read_dir(&jobs).unwrap().map(|entry| entry.unwrap().path());
    let job = job.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, text.replace("Be brief.", "Be kind.")).unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert_eq!(row["status"], "failed");
    assert!(row["why"].as_str().unwrap().contains("instructions changed"), "{row}");
}

/// An erased user's turns go from everybody's data sets, reports, and experiments under way.
#[tokio::test]
async fn copies_of_erased_turns_are_erased_with_their_results() {
    let processes = Processes::new();
    let site = processes.start(Duration::from_secs(600), Limits::default()).await;
    for session in ["s1", "s2"] {
        site.post("ada", "/sessions", json!({"id": session})).await;
        let text = json!({"text": "my area is 555-0199"});
        assert_eq!(site.post("ada", &format!("/sessions/{session}/run"), text).await.status, 200);
        let cases = json!({"data_set": "mine", "session": session, "user": "ada"});
        assert_eq!(site.post("bob", "/cases", cases).await.json()["added"], 1);
        site.post("ada", "/cases", json!({"data_set": "own", "session": session})).await;
    }
    let replayed = json!({"name": "done", "data_set": "mine", "mode": "replay"});
    assert_eq!(run(&site, "bob", replayed).await["passed"], 2);
    assert_eq!(site.post("bob", "/experiments", slow("open")).await.status, 202);
    while processes.replies.load(Ordering::SeqCst) == 0 {
        pause().await;
    }
    let erase = |more: Value| {
        let mut body = json!({"user": "ada", "reason": "ticket 7"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        site.post("root", "/erasures", body)
    };
    // Files that a kill has left.
    for left in ["bob/mine.report.1.whole", ".jobs/aa.partial.whole", ".jobs/aa.json.1.whole"] {
        std::fs::write(processes.folder.path().join(left), "ada/s1/1").unwrap();
    }
    // A session: its cases alone.
    let of_s1 = json!([
        {"user": "ada", "data_set": "own", "case": "ada/s1/1"},
        {"user": "bob", "data_set": "mine", "case": "ada/s1/1"},
    ]);
    let dry = erase(json!({"session": "s1", "dry_run": true})).await.json();
    assert_eq!(dry["cases"], of_s1);
    assert!(contents(processes.folder.path()).contains("ada/s1/1"));
    // A write that fails is tried again, and its content found again: the session and the data set are last.
    let blocked = processes.folder.path().join(format!("bob/done.report.{}.whole", std::process::id()));
    std::fs::create_dir(&blocked).unwrap();
    assert_eq!(erase(json!({"session": "s1"})).await.status, 500);
    assert_eq!(site.get("ada", "/sessions/s1").await.status, 200);
    std::fs::remove_dir(blocked).unwrap();
    let of_bob = json!([{"user": "bob", "data_set": "mine", "case": "ada/s1/1"}]);
    assert_eq!(erase(json!({"session": "s1"})).await.json()["cases"], of_bob);
    let left = contents(processes.folder.path());
    assert!(!left.contains("ada/s1/1") && left.contains("ada/s2/1"), "{left}");
    assert_eq!(site.get("bob", "/experiments/done").await.json()["experiment"]["cases"], 1);
    // An event: the turns that have it.
    let later = json!({"session": "s2", "versions": [9], "dry_run": true});
    assert_eq!(erase(later).await.status, 404);
    let event = erase(json!({"session": "s2", "versions": [1], "dry_run": true})).await.json();
    assert_eq!(event["cases"].as_array().unwrap().len(), 2, "{event}");
    // The user: all of it, the own data sets too, as a dry run says.
    let of_s2 = json!([
        {"user": "ada", "data_set": "own", "case": "ada/s2/1"},
        {"user": "bob", "data_set": "mine", "case": "ada/s2/1"},
    ]);
    assert_eq!(erase(json!({"everything": true, "dry_run": true})).await.json()["cases"], of_s2);
    assert_eq!(erase(json!({"everything": true})).await.json()["cases"], of_s2);
    let left = contents(processes.folder.path());
    assert!(!left.contains("555-0199") && !left.contains("ada/s"), "{left}");
    assert!(!processes.folder.path().join("ada").exists());
    assert_eq!(site.get("bob", "/experiments/done").await.json()["experiment"]["cases"], 0);
    // The experiment under way ends, without cases.
    let row = ended(&site, "bob", "open").await;
    assert_eq!((&row["status"], &row["cases"]), (&json!("done"), &json!(0)), "{row}");
}

/// Copies outlive a session that is deleted; they are erased by its id.
#[tokio::test]
async fn copies_of_a_deleted_session_are_erased() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    site.post("ada", "/cases", json!({"data_set": "mine", "session": "s1"})).await;
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    let erase = || site.post("root", "/erasures", json!({"user": "ada", "session": "s1", "reason": "mail"}));
    assert_eq!(erase().await.json()["cases"].as_array().unwrap().len(), 2);
    assert!(!contents(folder.path()).contains("ada/s1"));
    assert_eq!(erase().await.problem(), (404, "unknown_session".to_owned()));
}

/// All text in a folder.
fn contents(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => text += &contents(&entry.path()),
            false => text += &String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()),
        }
    }
    text
}

#[cfg(unix)]
#[tokio::test]
async fn links_in_the_folder_are_not_followed() {
    let processes = Processes::new();
    processes.data_set("mine", 1);
    let (inside, outside) = (processes.folder.path().join("bob"), tempfile::tempdir().unwrap());
    for name in ["linked.jsonl", "linked.report"] {
        std::fs::write(outside.path().join(name), "secret\n").unwrap();
        std::os::unix::fs::symlink(outside.path().join(name), inside.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(outside.path(), processes.folder.path().join("ada")).unwrap();
    let site = processes.start(Duration::ZERO, Limits::default()).await;
    let listed = site.get("bob", "/experiments").await.json();
    assert_eq!(listed, json!({"data_sets": ["mine"], "experiments": [], "unreadable": []}));
    let refused = |reply: super::site::Reply| {
        assert_eq!(reply.problem(), (400, "invalid".to_owned()));
        assert!(
            reply.text.contains("links are not followed") && !reply.text.contains("secret"),
            "{}",
            reply.text
        );
    };
    refused(site.get("bob", "/experiments/linked").await);
    refused(site.get("ada", "/experiments").await);
    refused(site.post("bob", "/experiments", json!({"name": "x", "data_set": "linked"})).await);
    refused(site.post("bob", "/experiments", json!({"name": "linked", "data_set": "mine"})).await);
    site.post("bob", "/sessions", json!({"id": "s1"})).await;
    site.post("bob", "/sessions/s1/run", json!({"text": "hi"})).await;
    refused(site.post("bob", "/cases", json!({"data_set": "linked", "session": "s1"})).await);
    assert_eq!(contents(outside.path()), "secret\nsecret\n");
}

/// A data set that is changed under its experiment ends it; cases that are added are not of it.
#[tokio::test]
async fn a_data_set_that_changes_under_its_experiment_is_noticed() {
    type Change = fn(&str) -> String;
    let case = |name: &str, say: &str| {
        let mut line = Vec::new();
        Case::new(name, say).expect(Expectation::Answered).write_line(&mut line).unwrap();
        String::from_utf8(line).unwrap()
    };
    let changes: [(&str, Change, bool); 5] = [
        ("an edit", |text| text.replacen("which area?", "which place?", 1), true),
        ("an edit at the end", |text| text.replace("c29", "d29"), true),
        ("a line less", |text| text.split_once('\n').unwrap().1.to_owned(), true),
        ("no line", |_| String::new(), true),
        ("an addition", |text| text.to_owned(), false),
    ];
    for (change, changed, is_noticed) in changes {
        let processes = Processes::new();
        left(&processes, slow("one")).await;
        let path = processes.folder.path().join("bob/mine.jsonl");
        let mut text = changed(&std::fs::read_to_string(&path).unwrap());
        if !is_noticed {
            text += &case("added", "later");
        }
        std::fs::write(&path, text).unwrap();
        let second = processes.start(Duration::ZERO, Limits::default()).await;
        let row = ended(&second, "bob", "one").await;
        assert_eq!((row["status"] == "failed", processes.jobs().await), (is_noticed, 0), "{change}: {row}");
        if is_noticed {
            assert!(row["why"].as_str().unwrap().contains("was changed under the experiment"), "{row}");
            // It is noticed before a request is sent: the one is of the process before.
            assert_eq!(processes.replies.load(Ordering::SeqCst), 1, "{change}");
        } else {
            assert_eq!(row["passed"], 30, "{row}");
        }
    }
}

/// An edit while the cases are tried is noticed.
async fn edited_in_the_middle(changed: &str) {
    let processes = Processes::new();
    processes.data_set("mine", 2_000);
    let site = processes.start(Duration::from_millis(1), Limits::default()).await;
    assert_eq!(site.post("bob", "/experiments", slow("one")).await.status, 202);
    while processes.replies.load(Ordering::SeqCst) == 0 {
        pause().await;
    }
    // In the same file, as an editor may do.
    let path = processes.folder.path().join("bob/mine.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("which area?", changed)).unwrap();
    let row = ended(&site, "bob", "one").await;
    assert_eq!(row["status"], "failed", "{row}");
    assert!(row["why"].as_str().unwrap().contains("was changed under the experiment"), "{row}");
}

#[tokio::test]
async fn an_edit_of_the_same_length_in_the_middle_is_noticed() {
    edited_in_the_middle("which town?").await;
}

#[tokio::test]
async fn an_edit_of_another_length_in_the_middle_is_noticed() {
    edited_in_the_middle("which places").await;
}

/// Notes 15 requests that no result has counted, as those of a judge are.
fn note_spent(results: &Path) {
    let line = format!("{}\n", json!({"spent": {"requests": 15, "nanodollars": 0, "has_no_price": false}}));
    let mut file = std::fs::OpenOptions::new().append(true).open(results).unwrap();
    std::io::Write::write_all(&mut file, line.as_bytes()).unwrap();
}

/// The limit of requests holds over restarts, with those that no result has counted.
#[tokio::test]
async fn requests_of_processes_before_count() {
    let processes = Processes::new();
    let mut body = slow("one");
    body["max_requests"] = json!(20);
    left(&processes, body).await;
    let jobs = std::fs::read_dir(processes.folder.path().join(".jobs")).unwrap();
    let job = jobs
        .map(|file| file.unwrap().path())
        .find(|file| file.extension().is_some_and(|ending| ending == "json"));
    note_spent(&job.unwrap().with_extension("partial"));
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert_eq!((&row["passed"], &row["errors"]), (&json!(5), &json!(25)), "{row}");
}

/// A pipe or a socket in the place of a file blocks nothing, wherever it stands.
#[cfg(unix)]
#[tokio::test]
async fn pipes_and_sockets_in_the_folder_are_refused() {
    let processes = Processes::new();
    processes.data_set("mine", 1);
    let bob = processes.folder.path().join("bob");
    let jobs = processes.folder.path().join(".jobs");
    std::fs::create_dir_all(&jobs).unwrap();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    };
    for path in [
        bob.join("p.jsonl"),
        bob.join("p.report"),
        bob.join("q.failed"),
        jobs.join("aa.json"),
        jobs.join("bb.partial"),
    ] {
        pipe(&path);
    }
    let _socket = std::os::unix::net::UnixListener::bind(bob.join("s.jsonl")).unwrap();
    std::fs::create_dir(bob.join("d.jsonl")).unwrap();
    pipe(&processes.folder.path().join("ada"));
    let huge = std::fs::File::create(bob.join("h.report")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let site = processes.start(Duration::ZERO, Limits::default()).await;
    let listed = site.get("bob", "/experiments").await.json();
    assert_eq!(listed, json!({"data_sets": ["mine"], "experiments": [], "unreadable": ["h"]}));
    for data_set in ["p", "s", "d"] {
        let refused = site.post("bob", "/experiments", json!({"name": "x", "data_set": data_set})).await;
        assert_eq!(refused.problem(), (400, "invalid".to_owned()), "{data_set}");
        assert!(refused.text.contains("is neither a regular file"), "{}", refused.text);
        let deleted = site.ask("bob", Method::DELETE, &format!("/data-sets/{data_set}"), &[], "").await;
        assert_eq!(deleted.status, StatusCode::BAD_REQUEST, "{data_set}");
    }
    for experiment in ["p", "q"] {
        let read = site.get("bob", &format!("/experiments/{experiment}")).await;
        assert_eq!(read.problem(), (400, "invalid".to_owned()), "{experiment}");
    }
    assert_eq!(site.get("ada", "/experiments").await.problem(), (400, "invalid".to_owned()));
    assert_eq!(run(&site, "bob", slow("fine")).await["passed"], 1);
}

/// A store whose process is killed while it erases, before the content is gone or after.
#[derive(Clone)]
struct DyingStore {
    store: AnyStore,
    erases_first: bool,
    died: Arc<Notify>,
}

macro_rules! of_store {
    ($($method:ident: $request:ty => $answer:ty;)*) => {
        $(async fn $method(&self, request: $request) -> Result<$answer, SessionError> {
            self.store.$method(request).await
        })*
    };
}

impl SessionStore for DyingStore {
    of_store! {
        create: CreateSession => Session;
        get: GetSession => Session;
        list: ListSessions => SessionPage;
        append: AppendEvent => Receipt;
        delete: DeleteSession => Deleted;
        fork: ForkSession => Session;
        forks: ListForks => Vec<ForkInfo>;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
    }

    async fn erase(&self, request: EraseData) -> Result<ErasedData, SessionError> {
        let is_dry_run = request.is_dry_run;
        if is_dry_run || self.erases_first {
            let erased = self.store.erase(request).await;
            if is_dry_run {
                return erased;
            }
        }
        self.died.notify_one();
        std::future::pending().await
    }
}

/// A law: wherever an erasure is killed, the next one, of whatever subject, or a server erases its copies, also those of forks that
/// came after its first look.
#[tokio::test]
async fn copies_of_forks_are_erased_wherever_an_erasure_is_killed() {
    let clerk = || agent(SCRIPT, Vec::new());
    let user = || "ada".parse().unwrap();
    let session = || "s1".parse().unwrap();
    let subjects = [
        ErasureSubject::Session { user: user(), session: session() },
        ErasureSubject::Events { user: user(), session: session(), versions: [1].into() },
        ErasureSubject::User(user()),
    ];
    for (subject, erases_first, next) in subjects
        .iter()
        .flat_map(|subject| [true, false].map(|first| (subject, first)))
        .flat_map(|(subject, first)| ["same", "other", "server"].map(|next| (subject, first, next)))
    {
        let context = format!("{subject:?}, killed after the content {erases_first}, then the {next}");
        let folder = tempfile::tempdir().unwrap();
        let store = AnyStore::new(MemoryStore::new());
        let runner = |store: AnyStore| Runner::builder(clerk(), store).app("clerk").unwrap().build();
        let living = runner(store.clone());
        let origin = living.session("ada", "s1").await.unwrap();
        origin.run("which area?").await.unwrap();
        let fork = origin.fork("f1", Some(2)).await.unwrap();
        fork.run("and then?").await.unwrap();
        let copy = Case::taken_from(&fork, None).await.unwrap();
        living.session("carl", "s9").await.unwrap().run("which?").await.unwrap();
        std::fs::create_dir(folder.path().join("bob")).unwrap();
        let path = folder.path().join("bob/mine.jsonl");
        let add = |cases: &[Case]| {
            DataSetFile::open(&path, FileLock::TIMEOUT).unwrap().append(cases, u64::MAX).unwrap()
        };
        let mut kept = Case::new("kept", "hello");
        kept.source = source("carl", "s9");
        add(&[kept]);

        let request = |subject: &ErasureSubject| {
            EraseRequest::new(subject.clone(), Author::new("root").unwrap(), "mail")
        };
        let dying = DyingStore { store: store.clone(), erases_first, died: Arc::default() };
        let killed = runner(AnyStore::new(dying.clone()));
        let experiments = Arc::new(ExperimentFolder::new(folder.path()));
        tokio::select! {
            ended = experiments.erase_with_content(&killed, request(subject)) => panic!("{context}: {ended:?}"),
            () = dying.died.notified() => {}
        }
        // It had read the fork before.
        assert_eq!(add(&[copy]), 1);
        assert!(contents(folder.path()).contains("ada/f1/"), "{context}");

        let experiments = Arc::new(ExperimentFolder::new(folder.path()));
        match next {
            "same" => {
                let seen = experiments.erase_with_content(&living, request(subject).dry_run()).await.unwrap();
                let (_, copies) = experiments.erase_with_content(&living, request(subject)).await.unwrap();
                assert_eq!((copies.cases.len(), &seen.1), (1, &copies), "{context}");
            }
            "other" => {
                let other = ErasureSubject::Session { user: "eve".parse().unwrap(), session: session() };
                let (_, copies) = experiments.erase_with_content(&living, request(&other)).await.unwrap();
                assert_eq!(copies.cases.len(), 1, "{context}");
            }
            _ => {
                let app = App::from(living).experiments(ExperimentFolder::new(folder.path()));
                let site = Site::of(app, Limits::default()).await;
                for _ in 0..400 {
                    if std::fs::read_dir(folder.path().join(".erasures")).unwrap().count() == 0 {
                        break;
                    }
                    pause().await;
                }
                site.stop().await;
            }
        }
        assert!(!contents(folder.path()).contains("ada/f1/"), "{context}");
        assert!(contents(folder.path()).contains("kept"), "{context}");
        assert_eq!(std::fs::read_dir(folder.path().join(".erasures")).unwrap().count(), 0, "{context}");
    }
}

/// A law: a killed erasure of a user that is finished much later erases nothing that is new since, and all that was there.
#[tokio::test]
async fn a_killed_erasure_of_a_user_erases_nothing_that_is_new_since() {
    for (erases_first, next) in
        [true, false].iter().flat_map(|first| ["other", "server"].map(|next| (*first, next)))
    {
        let context = format!("killed after the content {erases_first}, then the {next}");
        let root = tempfile::tempdir().unwrap();
        let store = AnyStore::new(MemoryStore::new());
        let runner =
            |store: AnyStore| Runner::builder(agent(SCRIPT, Vec::new()), store).app("clerk").unwrap().build();
        let living = runner(store.clone());
        living.session("ada", "s1").await.unwrap().run("which area?").await.unwrap();
        let old = Case::taken_from(&living.session("ada", "s1").await.unwrap(), None).await.unwrap();
        for user in ["ada", "bob"] {
            std::fs::create_dir(root.path().join(user)).unwrap();
        }
        let add = |name: &str, cases: &[Case]| {
            let path = root.path().join(name);
            DataSetFile::open(&path, FileLock::TIMEOUT).unwrap().append(cases, u64::MAX).unwrap();
            path
        };
        let request = |subject| EraseRequest::new(subject, Author::new("root").unwrap(), "mail");
        let dying = DyingStore { store: store.clone(), erases_first, died: Arc::default() };
        let killed = runner(AnyStore::new(dying.clone()));
        let experiments = Arc::new(ExperimentFolder::new(root.path()));
        let user = ErasureSubject::User("ada".parse().unwrap());
        tokio::select! {
            ended = experiments.erase_with_content(&killed, request(user)) => panic!("{context}: {ended:?}"),
            () = dying.died.notified() => {}
        }
        let notes = || std::fs::read_dir(root.path().join(".erasures")).unwrap().map(Result::unwrap);
        let moment = notes().next().unwrap().metadata().unwrap().modified().unwrap();
        // Copies that were made at that time, and that are left.
        std::fs::create_dir_all(root.path().join("ada")).unwrap();
        let left = add("ada/left.jsonl", &[Case::new("left", "hello")]);
        std::fs::File::options().append(true).open(left).unwrap().set_modified(moment).unwrap();
        add("bob/mine.jsonl", std::slice::from_ref(&old));
        // Weeks later.
        living.session("ada", "s2").await.unwrap().run("which area?").await.unwrap();
        let new = Case::taken_from(&living.session("ada", "s2").await.unwrap(), None).await.unwrap();
        let later = moment + Duration::from_secs(1_000_000);
        for path in [
            add("bob/mine.jsonl", std::slice::from_ref(&new)),
            add("ada/new.jsonl", &[new, old, Case::new("own", "hello")]),
        ] {
            std::fs::File::options().append(true).open(path).unwrap().set_modified(later).unwrap();
        }

        if next == "other" {
            let other =
                ErasureSubject::Session { user: "eve".parse().unwrap(), session: "s1".parse().unwrap() };
            let experiments = Arc::new(ExperimentFolder::new(root.path()));
            let seen =
                experiments.erase_with_content(&living, request(other.clone()).dry_run()).await.unwrap();
            let (_, copies) = experiments.erase_with_content(&living, request(other)).await.unwrap();
            assert_eq!((copies.cases.len(), &copies), (3, &seen.1), "{context}");
        } else {
            let app = App::from(living).experiments(ExperimentFolder::new(root.path()));
            let site = Site::of(app, Limits::default()).await;
            for _ in 0..400 {
                if notes().count() == 0 {
                    break;
                }
                pause().await;
            }
            site.stop().await;
        }
        let names = |name: &str| -> Vec<String> {
            let text = std::fs::read(root.path().join(name)).unwrap();
            DataSet::from_json_lines(&*text).map(|case| case.unwrap().name).collect()
        };
        assert_eq!(names("bob/mine.jsonl"), ["ada/s2/1"], "{context}");
        assert_eq!(names("ada/new.jsonl"), ["ada/s2/1", "own"], "{context}");
        assert!(!root.path().join("ada/left.jsonl").exists(), "{context}");
        assert_eq!(notes().count(), 0, "{context}");
    }
}

/// Requests that wait for the same lock wait together, and not one after the other.
#[test]
fn waits_for_a_lock_do_not_add_up() {
    const EACH: Duration = Duration::from_millis(600);
    let root = tempfile::tempdir().unwrap();
    let folder = ExperimentFolder::new(root.path()).lock_timeout(EACH);
    let held = FileLock::wait(&root.path().join(".lock"), Duration::ZERO).unwrap();
    let erase = || folder.erase(&erased_session("ada", "s1"), &ErasureReport::default(), false);
    let before = tokio::time::Instant::now();
    std::thread::scope(|threads| {
        let waiting: Vec<_> = (0..4).map(|_| threads.spawn(erase)).collect();
        for waited in waiting {
            let error = waited.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("could not be locked within 600ms"), "{error}");
        }
    });
    assert!(before.elapsed() < 2 * EACH, "{:?}", before.elapsed());
    drop(held);
    assert!(erase().is_ok());
}

/// An experiment of an app that redacts: an unchanged agent passes, and neither its report nor a page has what the rules find.
#[tokio::test]
async fn experiments_of_an_app_are_redacted() {
    let root = tempfile::tempdir().unwrap();
    let script = "assistant: I write to ada@example.org\n";
    let store = AnyStore::new(MemoryStore::new());
    let runner = |redacts: bool| {
        let builder = Runner::builder(agent(script, Vec::new()), store.clone()).app("clerk").unwrap();
        let rules = stepfold_agent_loop::Redaction::all();
        if redacts {
            builder.redact(rules, stepfold_agent_loop::ModelView::Keep).build()
        } else {
            builder.build()
        }
    };
    // The first session is older than the rules.
    runner(false).session("ada", "s1").await.unwrap().run("mine is ada@example.org").await.unwrap();
    runner(true).session("ada", "s2").await.unwrap().run("mine is ada@example.org").await.unwrap();
    let app = App::from(runner(true)).experiments(ExperimentFolder::new(root.path()).candidates(Scripts));
    let site = Site::of(app, Limits::default()).await;
    for session in ["s1", "s2"] {
        let added = site.post("ada", "/cases", json!({"data_set": "mine", "session": session})).await;
        assert_eq!(added.json()["added"], 1, "{}", added.text);
    }
    // As written by hand.
    let path = root.path().join("ada/mine.jsonl");
    let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).unwrap();
    file.read_each(|_| ()).unwrap();
    file.append(&[Case::new("own", "hello").expect(Expectation::TextEquals("no".to_owned()))], u64::MAX)
        .unwrap();
    drop(file);
    let row = run(&site, "ada", json!({"name": "same", "data_set": "mine"})).await;
    assert_eq!((&row["passed"], &row["failed"]), (&json!(2), &json!(1)), "{row}");
    let page = site.get("ada", "/experiments/same").await.text;
    assert!(page.contains("expected `no`, found `I write to [email]`"), "{page}");
    assert!(
        !page.contains("ada@example.org") && !contents(root.path()).contains("ada@example.org"),
        "{page}"
    );
}

/// A stopped process that has locked the folder blocks no other one for ever.
#[tokio::test]
async fn a_lock_that_is_held_for_ever_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    let clerk = Runner::builder(agent(SCRIPT, Vec::new()), MemoryStore::new()).app("clerk").unwrap().build();
    let folder = || ExperimentFolder::new(root.path()).lock_timeout(Duration::from_millis(50));
    let site = Site::of(App::from(clerk).experiments(folder()), Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    assert_eq!(site.post("ada", "/sessions/s1/run", json!({"text": "which?"})).await.status, 200);
    let held = FileLock::wait(&root.path().join(".lock"), Duration::ZERO).unwrap();
    let why =
        "`.lock` of the folder of experiments could not be locked within 50ms: another process holds it";
    let cases = json!({"data_set": "mine", "session": "s1"});
    for body in [site.post("ada", "/cases", cases.clone()).await, {
        let body = json!({"user": "ada", "session": "s1", "reason": "mail"});
        site.post("root", "/erasures", body).await
    }] {
        assert!([503, 409].contains(&body.status.as_u16()) && body.text.contains(why), "{}", body.text);
        assert!(!body.text.contains(&*root.path().to_string_lossy()), "{}", body.text);
    }
    let error = folder().erase(&erased_session("ada", "s1"), &ErasureReport::default(), false).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
    drop(held);
    assert_eq!(site.post("ada", "/cases", cases).await.json()["added"], 1);
}

/// An experiment of many results is read page by page.
#[tokio::test]
async fn results_are_read_in_pages() {
    let processes = Processes::new();
    processes.data_set("mine", 903);
    let site = processes.start(Duration::ZERO, Limits::default()).await;
    let experiment = json!({"name": "one", "data_set": "mine", "model": "slow"});
    assert_eq!(site.post("bob", "/experiments", experiment).await.status, 202);
    assert_eq!(ended(&site, "bob", "one").await["passed"], 903);
    let (mut names, mut after, mut pages) = (Vec::new(), Some(0), Vec::new());
    while let Some(at) = after {
        let page = site.get("bob", &format!("/experiments/one?after={at}&baseline=one")).await.json();
        assert_eq!((&page["experiment"]["cases"], &page["comparison"]["ties"]), (&json!(903), &json!(903)));
        let results = page["results"].as_array().unwrap();
        pages.push(results.len());
        names.extend(results.iter().map(|result| result["case"].as_str().unwrap().to_owned()));
        after = page["next"].as_u64();
    }
    assert_eq!(pages, [500, 403]);
    let expected: Vec<String> = (0..903).map(|number| format!("c{number:02}")).collect();
    assert_eq!(names, expected);
}

/// Results so far of a command that was killed, and results whose data set has no such case, are erased by their names.
#[tokio::test]
async fn results_without_their_data_set_are_erased() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    site.post("ada", "/cases", json!({"data_set": "mine", "session": "s1"})).await;
    let recorded = json!({"name": "done", "data_set": "mine", "mode": "replay"});
    assert_eq!(run(&site, "ada", recorded).await["status"], "done");
    let path = |name: &str| folder.path().join("ada").join(name);
    let report = std::fs::read_to_string(path("done.report")).unwrap();
    assert_eq!(report.matches("ada/s1/").count(), 2, "{report}");
    let others = report.replace("ada/s1/", "ada/s1x/") + &report.replace("ada/s1/", "bob/s1/");
    let others: String = others.split_inclusive('\n').filter(|line| line.contains("\"case\"")).collect();
    for name in ["copy.report", "killed.report.partial"] {
        std::fs::write(path(name), format!("{report}{others}")).unwrap();
    }
    std::fs::remove_file(path("mine.jsonl")).unwrap();
    // A command that runs has them in memory: it writes them no more, and blocks no erasure.
    let mut writer = ReportFile::open(&path("killed.report"), &path("killed.report.partial")).unwrap();
    let erase = || site.post("root", "/erasures", json!({"user": "ada", "session": "s1", "reason": "mail"}));
    let erased = erase().await;
    assert_eq!((erased.status, &erased.json()["results"]), (StatusCode::OK, &json!(6)), "{}", erased.text);
    let kept = writer.keep(&CaseResult::default(), false);
    assert!(matches!(kept, Err(EvalError::Replaced { .. })), "{kept:?}");
    for name in ["done.report", "copy.report", "killed.report.partial"] {
        let left = std::fs::read_to_string(path(name)).unwrap();
        assert!(!left.contains("ada/s1/"), "{name}: {left}");
        assert!(
            name == "done.report" || left.contains("ada/s1x/") && left.contains("bob/s1/"),
            "{name}: {left}"
        );
    }
}

/// Results of a session that is gone, without a case in a data set, are erased and counted; then there are none.
#[tokio::test]
async fn results_of_a_session_that_is_gone_are_erased() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    site.post("ada", "/cases", json!({"data_set": "mine", "session": "s1"})).await;
    let recorded = json!({"name": "done", "data_set": "mine", "mode": "replay"});
    assert_eq!(run(&site, "ada", recorded).await["status"], "done");
    assert_eq!(site.ask("ada", Method::DELETE, "/data-sets/mine", &[], "").await.status, 204);
    assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
    let erase = |dry_run: bool| {
        let body = json!({"user": "ada", "session": "s1", "reason": "mail", "dry_run": dry_run});
        site.post("root", "/erasures", body)
    };
    for dry_run in [true, false] {
        assert!(contents(folder.path()).contains("ada/s1"));
        let erased = erase(dry_run).await;
        assert_eq!(erased.status, 200, "{}", erased.text);
        let erased = erased.json();
        assert_eq!((&erased["cases"], &erased["results"]), (&json!([]), &json!(2)), "{erased}");
    }
    assert!(!contents(folder.path()).contains("ada/s1"));
    assert_eq!(erase(false).await.problem(), (404, "unknown_session".to_owned()));
}

/// A law: of two erasures at once under one id, the one that is refused has erased nothing, and no copies either.
#[tokio::test]
async fn a_refused_erasure_leaves_its_copies() {
    for round in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let site = site(folder.path()).await;
        site.post("bob", "/sessions", json!({"id": "s1"})).await;
        assert_eq!(site.post("bob", "/sessions/s1/run", json!({"text": "which?"})).await.status, 200);
        for user in ["ada", "bob"] {
            let added = site.post(user, "/cases", json!({"data_set": "mine", "session": "s1"})).await;
            assert!(added.json()["added"].as_u64().unwrap() > 0, "{}", added.text);
        }
        let erase = |user: &'static str| {
            let body = match round % 2 {
                0 => json!({"user": user, "everything": true, "reason": "mail", "id": "T1"}),
                _ => json!({"user": user, "session": "s1", "reason": "mail", "id": "T1"}),
            };
            site.post("root", "/erasures", body)
        };
        let (ada, bob) = tokio::join!(erase("ada"), erase("bob"));
        let (refused, user) = if ada.status == 200 { (bob, "bob") } else { (ada, "ada") };
        assert_eq!(refused.problem(), (409, "key_reused".to_owned()), "{}", refused.text);
        assert_eq!(site.get(user, "/sessions/s1").await.status, 200);
        let left = contents(folder.path());
        assert!(left.contains(&format!("{user}/s1")), "{left}");
        assert_eq!(["ada/s1", "bob/s1"].iter().filter(|name| left.contains(*name)).count(), 1, "{left}");
    }
}

/// While a command adds cases, nothing is erased, and the caller is told to repeat the request.
#[tokio::test]
async fn a_data_set_that_a_command_changes_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let site = site(folder.path()).await;
    let cases = json!({"data_set": "mine", "session": "s1"});
    site.post("ada", "/cases", cases.clone()).await;
    let path = folder.path().join("ada/mine.jsonl");
    let busy = (409, "data_set_in_use".to_owned());
    for more in [json!({"session": "s1"}), json!({"everything": true})] {
        let command = DataSetFile::open(&path, FileLock::TIMEOUT).unwrap();
        let mut body = json!({"user": "ada", "reason": "mail"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = site.post("root", "/erasures", body).await;
        assert_eq!(refused.problem(), busy, "{}", refused.text);
        assert!(!refused.text.contains(&*folder.path().to_string_lossy()), "{}", refused.text);
        assert_eq!(site.get("ada", "/sessions/s1").await.status, 200);
        assert_eq!(site.post("ada", "/cases", cases.clone()).await.problem(), busy);
        assert_eq!(site.ask("ada", Method::DELETE, "/data-sets/mine", &[], "").await.problem(), busy);
        drop(command);
    }
    let body = json!({"user": "ada", "session": "s1", "reason": "mail"});
    assert_eq!(site.post("root", "/erasures", body).await.json()["cases"].as_array().unwrap().len(), 2);
}

/// A law: cases that commands add while others are erased are all there, each once.
#[test]
fn no_case_is_lost_by_an_erasure() {
    const CASES: usize = 120;
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bob/mine.jsonl");
    std::fs::create_dir(root.path().join("bob")).unwrap();
    let add = |command: usize| {
        for number in 0..CASES {
            let mut erased = Case::new(format!("erased {command} {number}"), "hello");
            erased.source = source("ada", "s1");
            let cases = [Case::new(format!("kept {command} {number}"), "hello"), erased];
            assert_eq!(
                DataSetFile::open(&path, FileLock::TIMEOUT).unwrap().append(&cases, u64::MAX).unwrap(),
                2
            );
        }
    };
    let erase = || {
        let folder = ExperimentFolder::new(root.path());
        folder.erase(&erased_session("ada", "s1"), &ErasureReport::default(), false)
    };
    std::thread::scope(|scope| {
        let commands = [0, 1].map(|command| scope.spawn(move || add(command)));
        while commands.iter().any(|command| !command.is_finished()) {
            match erase() {
                Err(error) if error.kind() != std::io::ErrorKind::ResourceBusy => panic!("{error}"),
                _ => {}
            }
        }
    });
    erase().unwrap();
    let text = std::fs::read(&path).unwrap();
    let names: Vec<String> =
        DataSet::from_json_lines(text.as_slice()).map(|case| case.unwrap().name).collect();
    assert_eq!(names.len(), 2 * CASES);
    assert!(names.iter().all(|name| name.starts_with("kept ")), "{names:?}");
}

/// An experiment that continues after an erasure has neither the erased case nor cases that were added since its acceptance, and
/// its limit of requests holds.
#[tokio::test]
async fn an_experiment_after_an_erasure_is_of_what_is_left_of_its_data_set() {
    let processes = Processes::new();
    let mut body = slow("one");
    body["max_requests"] = json!(35);
    left(&processes, body).await;
    let jobs = processes.folder.path().join(".jobs");
    let with = |ending: &str| {
        let files = std::fs::read_dir(&jobs).unwrap().map(|file| file.unwrap().path());
        files.into_iter().find(|file| file.extension().is_some_and(|found| found == ending))
    };
    note_spent(&with("partial").unwrap());
    let mut file =
        DataSetFile::open(&processes.folder.path().join("bob/mine.jsonl"), FileLock::TIMEOUT).unwrap();
    file.append(&[Case::new("added", "which area?").expect(Expectation::Answered)], u64::MAX).unwrap();
    drop(file);
    let folder = ExperimentFolder::new(processes.folder.path());
    let copies = folder.erase(&erased_session("carl", "s29"), &ErasureReport::default(), false).unwrap();
    assert_eq!((copies.cases.len(), copies.cases[0].case.as_str()), (1, "c29"));
    assert_eq!(with("data").unwrap().with_extension("json"), with("json").unwrap());
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert_eq!((&row["status"], &row["cases"]), (&json!("done"), &json!(29)), "{row}");
    assert_eq!((&row["passed"], &row["errors"]), (&json!(20), &json!(9)), "{row}");
    assert!(!processes.report("one").contains("added"));
    assert_eq!(processes.jobs().await, 0);
}

/// A data set that was edited before the erasure is noticed after it.
#[tokio::test]
async fn an_edit_before_an_erasure_is_noticed() {
    let processes = Processes::new();
    left(&processes, slow("one")).await;
    let path = processes.folder.path().join("bob/mine.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("which area?", "which town?", 1)).unwrap();
    let folder = ExperimentFolder::new(processes.folder.path());
    folder.erase(&erased_session("carl", "s29"), &ErasureReport::default(), false).unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert!(row["why"].as_str().is_some_and(|why| why.contains("was changed under")), "{row}");
}

/// A command that runs has read the cases: it ends, although no result of them is there yet.
#[test]
fn a_command_that_has_read_erased_cases_ends() {
    let processes = Processes::new();
    processes.data_set("mine", 3);
    let bob = processes.folder.path().join("bob");
    let mut command = ReportFile::open(&bob.join("own.report"), &bob.join("own.report.partial")).unwrap();
    let agent = Scripts.candidate(&change_of("worse")).unwrap();
    drop(command.begin(Experiment::new(&agent)).unwrap());
    let erase = |session: &str| {
        let folder = ExperimentFolder::new(processes.folder.path());
        folder.erase(&erased_session("carl", session), &ErasureReport::default(), false).unwrap()
    };
    assert!(erase("none").is_empty());
    command.keep(&CaseResult::default(), false).unwrap();
    assert_eq!(erase("s01").cases.len(), 1);
    assert!(matches!(command.keep(&CaseResult::default(), false), Err(EvalError::Replaced { .. })));
}

/// A file that cannot be read now is not a changed one: the experiment is tried again later.
#[tokio::test]
async fn an_error_of_the_disk_does_not_end_an_experiment() {
    let processes = Processes::new();
    left(&processes, slow("one")).await;
    // No file of this size is opened.
    let file =
        std::fs::File::options().write(true).open(processes.folder.path().join("bob/mine.jsonl")).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(2 << 30).unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    for _ in 0..40 {
        pause().await;
    }
    let row = second.get("bob", "/experiments/one").await.json()["experiment"].clone();
    assert_eq!(row["status"], "running", "{row}");
    second.stop().await;
    file.set_len(length).unwrap();
    let third = processes.start(Duration::ZERO, Limits::default()).await;
    assert_eq!(ended(&third, "bob", "one").await["passed"], 30);
}

/// Clients learn no path of the server.
#[tokio::test]
async fn a_file_in_the_place_of_a_report_is_told_by_its_name() {
    let processes = Processes::new();
    processes.data_set("mine", 1);
    std::fs::write(processes.folder.path().join("bob/x.report"), "my notes\n").unwrap();
    let site = processes.start(Duration::ZERO, Limits::default()).await;
    let row = run(&site, "bob", slow("x")).await;
    let why = row["why"].as_str().unwrap();
    assert!(why.contains("file `x.report` of the folder is not a report"), "{row}");
    assert!(!why.contains(&*processes.folder.path().to_string_lossy()), "{row}");
    assert_eq!(processes.report("x"), "my notes\n");
}

/// Results of one session are not those of another one whose ids have slashes elsewhere.
#[test]
fn results_of_ids_with_slashes_are_those_of_one_session() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bob")).unwrap();
    let names = [("ada", "x/s"), ("ada/x", "s"), ("ada%2Fx", "s")];
    let lines = names.map(|(user, session)| json!({"case": source(user, session).unwrap().case_name()}));
    let path = root.path().join("bob/own.report");
    let text = lines.map(|line| line.to_string()).join("\n") + "\n";
    let write = || std::fs::write(&path, &text).unwrap();
    for (user, session) in names {
        for subject in [erased_session(user, session), ErasureSubject::User(user.parse().unwrap())] {
            write();
            let folder = ExperimentFolder::new(root.path());
            let copies = folder.erase(&subject, &ErasureReport::default(), false).unwrap();
            assert_eq!(copies.results, 1, "{subject:?}");
            let left = std::fs::read_to_string(&path).unwrap();
            let own = source(user, session).unwrap().case_name();
            assert!(!left.contains(&format!("{own:?}")) && left.lines().count() == 2, "{left}");
        }
    }
}
