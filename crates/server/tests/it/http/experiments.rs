//! Experiments with stored sessions: each user's own, in files that another process shares.

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_eval::{Case, DataSet, Expectation, Experiment};
use stepfold_runner::Runner;
use stepfold_server::http::{App, CandidateChange, Candidates, ExperimentFolder, Limits};
use stepfold_session_scopes::MemoryStore;

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

    let base = site.post("ada", "/experiments", json!({"name": "base", "data_set": "mine"})).await.json();
    assert_eq!((&base["passed"], &base["mode"]), (&json!(2), &json!("roll")), "{base}");
    let worse = json!({"name": "worse", "data_set": "mine", "model": "worse"});
    assert_eq!(
        site.post("ada", "/experiments", worse.clone()).await.problem(),
        (403, "forbidden".to_owned())
    );
    let brief = json!({"name": "brief", "data_set": "mine", "instructions": "Be brief.", "repeats": 2});
    let brief = site.post("ada", "/experiments", brief).await.json();
    assert_eq!((&brief["cases"], &brief["passed"]), (&json!(4), &json!(4)), "{brief}");

    let listed = site.get("reader", "/experiments").await.json();
    let rows = listed["experiments"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!((listed["data_sets"].clone(), names), (json!(["mine"]), vec!["base", "brief"]));
    let read = site.get("ada", "/experiments/brief?baseline=base").await.json();
    assert_eq!(read["comparison"]["verdict"], "no_difference", "{read}");
    assert_eq!(read["results"][1]["repeat"], 1);
    assert_eq!(site.get("ada", "/experiments/none").await.problem(), (404, "unknown_experiment".to_owned()));
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
    let bounded = site.post("bob", "/experiments", live(json!(1))).await.json();
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
