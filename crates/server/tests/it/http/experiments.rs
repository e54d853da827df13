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
use stepfold_eval::{Case, DataSet, Expectation, Experiment};
use stepfold_runner::Runner;
use stepfold_server::http::{App, CandidateChange, Candidates, ExperimentFolder, Limits};
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ReplyStream};

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
            let case = Case::new(format!("c{number:02}"), "which area?").expect(Expectation::Answered);
            case.write_line(&mut lines).unwrap();
        }
        std::fs::write(folder.join(format!("{name}.jsonl")), lines).unwrap();
    }

    fn report(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("bob/{name}.report"))).unwrap()
    }

    fn jobs(&self) -> usize {
        std::fs::read_dir(self.folder.path().join(".jobs")).map_or(0, Iterator::count)
    }
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
    assert_eq!(processes.jobs(), 0);
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
    assert_eq!((&left["experiments"], processes.jobs()), (&json!([]), 0), "{left}");
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
    std::fs::write(&path, format!("{text}{{\n")).unwrap();
    let row = run(&site, "bob", slow("x")).await;
    assert_eq!(row["status"], "failed", "{row}");
    assert!(row["why"].as_str().unwrap().contains("invalid case at line 3"), "{row}");
    assert_eq!(site.get("bob", "/experiments").await.json()["experiments"][0]["status"], "failed");
    // Mended, it is run again.
    std::fs::write(&path, text).unwrap();
    assert_eq!(run(&site, "bob", slow("x")).await["status"], "done");
    assert_eq!(delete(&site, "bob", "x").await, 204);
}

/// Candidates of which each is counted.
struct Counted(Arc<AtomicU64>);

impl Candidates for Counted {
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
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
    std::fs::write(bob.join("mine.jsonl"), "{\n").unwrap();
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
    assert_eq!((&row["status"], processes.jobs()), (&json!("failed"), 0), "{row}");
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
    assert_eq!((&row["status"], processes.jobs()), (&json!("failed"), 0), "{row}");
}

/// Of another agent, results of a process before are not taken.
#[tokio::test]
async fn an_experiment_does_not_continue_with_another_agent() {
    let processes = Processes::new();
    processes.data_set("mine", 30);
    let first = processes.start(Duration::from_millis(20), Limits::default()).await;
    let named = json!({"name": "one", "data_set": "mine", "model": "slow", "allow": ["pay"]});
    assert_eq!(first.post("bob", "/experiments", named).await.status, 202);
    has_results(&first, "one", 1).await;
    first.stop().await;
    let jobs = processes.folder.path().join(".jobs");
    let job = std::fs::read_dir(&jobs).unwrap().map(|entry| entry.unwrap().path());
    let job = job.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "json")).unwrap();
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(&job, text.replace(r#"["pay"]"#, "[]")).unwrap();
    let second = processes.start(Duration::ZERO, Limits::default()).await;
    let row = ended(&second, "bob", "one").await;
    assert_eq!(row["status"], "failed");
    assert!(row["why"].as_str().unwrap().contains("option `allow` changed"), "{row}");
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
    let replayed = json!({"name": "done", "data_set": "mine", "mode": "recorded"});
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
    // The user: all of it.
    let erased = erase(json!({"everything": true})).await.json();
    assert_eq!(erased["cases"], json!([{"user": "bob", "data_set": "mine", "case": "ada/s2/1"}]));
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
