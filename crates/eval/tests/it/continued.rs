//! Experiments that were interrupted continue, and cases are tried more than once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stepfold_agent_loop::Agent;
use stepfold_eval::{
    Case, CaseResult, Comparison, DEFAULT_SEED, DataSet, EvalError, Expectation, Experiment, Report,
    ReportFile, Score, Spending, Trial, Verdict,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ModelParams, Price, Prices, ReplyStream, Usage,
};

use crate::clerk::{Executions, Variation, cases, clerk};

fn stored(report: &Report) -> Vec<u8> {
    let mut stored = Vec::new();
    report.write_json_lines(&mut stored).expect("memory takes it");
    stored
}

/// Cut at each byte, the results so far are taken, and the report is the same.
#[tokio::test]
async fn an_experiment_that_was_cut_at_any_byte_has_the_same_report() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 4).await;
    let (tried, taken_in_all) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let of_evaluator = Arc::clone(&tried);
    let evaluator = move |_: &Case, _: &Trial| {
        of_evaluator.fetch_add(1, Ordering::Relaxed);
        Score::passed("own")
    };
    let experiment = Experiment::new(&agent).repeats(2).evaluator(evaluator);
    let whole = stored(&experiment.run(DataSet::of(cases.clone())).await.expect("valid cases"));
    let folder = tempfile::tempdir().expect("a folder");
    let (path, partial) = (folder.path().join("own.report"), folder.path().join("own.partial"));
    for cut in (0..whole.len()).step_by(97).chain([whole.len()]) {
        std::fs::write(&partial, &whole[..cut]).expect("written");
        let mut file = ReportFile::open(&path, &partial).expect("whole lines can be read");
        let known = file.kept().trials;
        let lines = String::from_utf8_lossy(&whole[..cut]).matches('\n').count() as u64;
        assert_eq!(known, lines.saturating_sub(1));
        let continued = file.begin(experiment.clone()).expect("the same experiment");
        let before = tried.load(Ordering::Relaxed);
        let mut taken = 0;
        let keep = |result: CaseResult, is_known| {
            taken += u64::from(is_known);
            file.keep(&result, is_known)
        };
        continued.run_each_known(DataSet::of(cases.clone()), keep).await.expect("valid cases");
        assert_eq!((taken, tried.load(Ordering::Relaxed) - before), (known, 8 - known));
        file.finish().expect("written");
        assert_eq!(std::fs::read(&path).expect("a report"), whole);
        taken_in_all.fetch_add(known, Ordering::Relaxed);
    }
    assert!(taken_in_all.load(Ordering::Relaxed) > 8, "results were taken");
}

/// A model that has the results so far as they were at each of its requests: a kill at that moment leaves them.
struct Asked {
    partial: PathBuf,
    moments: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ChatModel for Asked {
    fn id(&self) -> &'static str {
        "test/asked"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        self.moments.lock().expect("whole").push(std::fs::read(&self.partial).expect("results so far"));
        ReplyStream::from_chunks([
            Chunk::Text("area 3".to_owned()),
            Chunk::Usage(Usage::new(10, 1)),
            Chunk::Finished(FinishReason::Stop),
        ])
    }
}

/// A law: the bounds on requests and costs hold over kills. Killed at a request, or at any byte of a line, the experiment continues with
/// what it has spent: a request without a reply has cost its estimate.
#[tokio::test]
async fn the_bounds_of_an_experiment_hold_over_kills() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, partial) = (folder.path().join("own.report"), folder.path().join("own.partial"));
    let moments = Arc::new(Mutex::new(Vec::new()));
    let asked = Asked { partial: partial.clone(), moments: Arc::clone(&moments) };
    let params = ModelParams::default().with_max_output_tokens(1);
    let agent = Agent::builder(asked).params(params).build().expect("an agent");
    let cases = || (0..8).map(|n| Case::new(format!("c{n}"), "which area?").expect(Expectation::Answered));
    let run = async |spending: Spending| {
        let mut file = ReportFile::open(&path, &partial).expect("whole lines can be read");
        // One at a time, since the bound on costs is checked before each request.
        let experiment = file.begin(Experiment::new(&agent).concurrency(1).spending(spending));
        let keep = |result: CaseResult, is_known| file.keep(&result, is_known);
        let experiment = experiment.expect("the same experiment");
        experiment.run_each_known(DataSet::of(cases()), keep).await.expect("valid cases");
        let left = std::fs::read(&partial).expect("results so far");
        file.finish().expect("written");
        (left, std::mem::take(&mut *moments.lock().expect("whole")))
    };
    // Each reply costs 11 millionths of a dollar.
    let prices = Prices::new().with("test/asked", Price::new(1.0, 1.0));
    for (name, of_one) in [("requests", 1_u64), ("nanodollars", 11_000)] {
        let spending = || match of_one {
            1 => Spending::new().max_requests(5),
            _ => Spending::new().max_nanodollars(55_000, prices.clone()),
        };
        let (whole, asked) = run(spending()).await;
        assert_eq!(asked.len(), 5, "{name}");
        for (number, killed) in asked.iter().enumerate() {
            let sent = noted(killed, "requests");
            assert_eq!(sent, number as u64 + 1, "a request is noted before it is sent");
            let estimate = noted(killed, "nanodollars") - number as u64 * u64::from(of_one > 1) * 11_000;
            assert_eq!(estimate > 0, of_one > 1, "and so is its estimate: {estimate}");
        }
        let cuts = (0..whole.len()).step_by(13).map(|cut| whole[..cut].to_vec());
        for killed in asked.into_iter().chain(cuts) {
            std::fs::write(&partial, &killed).expect("written");
            let (_, asked) = run(spending()).await;
            let left = (5 * of_one).saturating_sub(noted(&killed, name)).div_ceil(of_one);
            assert_eq!(asked.len() as u64, left, "{name}: {}", String::from_utf8_lossy(&killed));
        }
    }
}

/// What is noted as spent in results so far.
fn noted(results: &[u8], name: &str) -> u64 {
    let text = String::from_utf8_lossy(results).into_owned();
    let mut lines =
        text.split_inclusive('\n').filter(|line| line.starts_with(r#"{"spent""#) && line.ends_with('\n'));
    let last = lines.next_back().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    last.map_or(0, |last| last["spent"][name].as_u64().expect("a number"))
}

#[tokio::test]
async fn results_of_another_case_or_candidate_are_not_taken() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let mut cases = cases(&agent, 2).await;
    let report = Experiment::new(&agent).run(DataSet::of(cases.clone())).await.expect("valid cases");
    let other = agent.to_builder().instructions("Be brief.").build().expect("a valid agent");
    let error = Experiment::new(&other).continuing(&report).expect_err("another candidate");
    assert_eq!(
        error.to_string(),
        "experiment cannot be continued: its results are of another one: instructions is new"
    );
    let error = Experiment::new(&agent).allow_pure("count").continuing(&report).expect_err("more is allowed");
    assert!(
        matches!(&error, EvalError::Continue { differences } if *differences == ["option `allow` changed"]),
        "{error}"
    );

    // A case that has changed is tried again.
    cases[1] = cases[1].clone().expect(stepfold_eval::Expectation::TextEquals("other".to_owned()));
    let continued = Experiment::new(&agent).continuing(&report).expect("the same experiment");
    let mut known = Vec::new();
    let keep = |result: CaseResult, is_known| {
        known.push((is_known, result.passed()));
        Ok(())
    };
    continued.run_each_known(DataSet::of(cases), keep).await.expect("valid cases");
    assert_eq!(known, [(true, Some(true)), (false, Some(false))]);
}

/// Results that were lost from the middle, or stand in another order, come at their places: the report has the order of the cases.
#[tokio::test]
async fn known_results_in_any_order_have_their_places_in_the_report() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 6).await;
    let experiment = Experiment::new(&agent);
    let report = experiment.run(DataSet::of(cases.clone())).await.expect("valid cases");
    let whole = String::from_utf8(stored(&report)).expect("text");
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let folder = tempfile::tempdir().expect("a folder");
    let (path, partial) = (folder.path().join("own.report"), folder.path().join("own.partial"));
    // An error is tried again, and of two results of a case the last one counts.
    let error = lines[2].replace(r#""status":"passed""#, r#""status":"error""#);
    let older = lines[4].replace(r#""steps":"#, r#""steps":9"#);
    let kept = [lines[0], lines[6], &older, &error, lines[1], lines[4]].concat();
    std::fs::write(&partial, kept).expect("written");
    let mut file = ReportFile::open(&path, &partial).expect("whole lines can be read");
    let continued = file.begin(experiment).expect("the same experiment");
    let mut known = Vec::new();
    let keep = |result: CaseResult, is_known| {
        known.push(is_known);
        file.keep(&result, is_known)
    };
    continued.run_each_known(DataSet::of(cases), keep).await.expect("valid cases");
    assert_eq!(known, [true, false, false, true, false, true]);
    file.finish().expect("written");
    assert_eq!(std::fs::read_to_string(&path).expect("a report"), whole);
}

#[tokio::test]
async fn flaky_cases_are_named_and_decided_by_most_repeats() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 3).await;
    let run = async |bad: &[u64]| {
        let (count, bad) = (AtomicU64::new(0), bad.to_vec());
        let evaluator = move |_: &Case, _: &Trial| match bad.contains(&count.fetch_add(1, Ordering::Relaxed))
        {
            true => Score::failed("own", "bad luck"),
            false => Score::passed("own"),
        };
        let experiment = Experiment::new(&agent).repeats(3).evaluator(evaluator);
        experiment.run(DataSet::of(cases.clone())).await.expect("valid cases")
    };
    // Of three repeats: one bad, two bad, none bad.
    let (baseline, luck) = (run(&[]).await, run(&[1, 3, 5]).await);
    let comparison = Comparison::of(&baseline, &luck, DEFAULT_SEED).expect("same mode");
    assert_eq!((comparison.pairs, comparison.losses, comparison.ties), (3, 1, 2), "{comparison}");
    assert_eq!(comparison.flaky, [cases[0].name.clone(), cases[1].name.clone()]);
    assert_eq!(comparison.lost, [(cases[1].name.clone(), "own: bad luck".to_owned())]);
    // A loss, and too few pairs for a proof.
    assert_eq!(comparison.verdict(), Verdict::Unknown);
    assert!(luck.to_string().contains(&format!("{} #2", cases[0].name)), "{luck}");
}
