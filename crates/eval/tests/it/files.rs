//! Data sets and results as files that several processes change. Locks are of open files: two of one process exclude each other
//! as two of different processes do.

use std::fs;
use std::path::Path;

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{
    Case, CaseResult, DataSet, DataSetFile, EvalError, Expectation, Experiment, FileLock, Report, ReportFile,
};

fn names(path: &Path) -> Vec<String> {
    let text = fs::read(path).expect("it is there");
    DataSet::from_json_lines(text.as_slice()).map(|case| case.expect("a case").name).collect()
}

#[test]
fn cases_are_added_once_and_by_one_process_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cases.jsonl");
    assert!(matches!(DataSetFile::try_open(&path, false), Err(EvalError::Io { .. })));
    // An editor has left out the line break.
    fs::write(&path, r#"{"name":"own","say":"hello"}"#).expect("written");
    let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
    let busy = DataSetFile::try_open(&path, true).expect_err("it is locked");
    assert!(matches!(busy, EvalError::BusyDataSet { .. }), "{busy}");
    file.read_each(|_| ()).expect("valid cases");
    let cases = ["own", "a", "b", "a"].map(|name| Case::new(name, "hello"));
    let error = file.append(&cases, 60).expect_err("too large");
    assert!(error.to_string().starts_with("the data set would have 83 bytes, of at most 60"), "{error}");
    assert_eq!(names(&path), ["own"]);
    assert_eq!(file.append(&cases, u64::MAX).expect("written"), 2);
    assert_eq!(file.append(&cases, u64::MAX).expect("written"), 0);
    assert_eq!(names(&path), ["own", "a", "b"]);
}

/// A process that waits for a data set that is replaced meanwhile has the new one: no case is lost.
#[test]
fn a_process_that_waited_adds_to_the_file_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cases.jsonl");
    for number in 0..50 {
        let held = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
                file.append(&[Case::new(format!("c{number}"), "hello")], u64::MAX).expect("written")
            }
        });
        // It may wait by now, or not: in any case the file that it would add to is replaced.
        std::thread::yield_now();
        let new = folder.path().join("new");
        fs::copy(&path, &new).expect("copied");
        fs::rename(&new, &path).expect("renamed");
        drop(held);
        assert_eq!(waiting.join().expect("no panic"), 1);
    }
    assert_eq!(names(&path).len(), 50);
}

/// A process that is stopped never lets go of its lock: the others end with an error that names the file.
#[test]
fn a_lock_that_is_held_for_ever_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cases.jsonl");
    let short = std::time::Duration::from_millis(40);
    let held = DataSetFile::open(&path, short).expect("opened");
    let error = DataSetFile::open(&path, short).expect_err("it is held");
    assert!(matches!(error, EvalError::Locked { .. }), "{error}");
    let words = format!("file {} could not be locked within 40ms: another process holds it", path.display());
    assert!(error.to_string().starts_with(&words), "{error}");
    drop(held);
    assert!(DataSetFile::open(&path, std::time::Duration::ZERO).is_ok());
}

/// An erasure replaces the results of a command that runs: the command has no report, and continues with those that are left.
#[tokio::test]
async fn results_that_were_replaced_are_not_written_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, partial) = (folder.path().join("own.report"), folder.path().join("own.report.partial"));
    let agent = Agent::builder(Script::parse("assistant: hello").expect("a script").whole());
    let agent = agent.build().expect("an agent");
    let cases = ["a", "b"].map(|name| Case::new(name, "hello").expect(Expectation::Answered));
    let report = Experiment::new(&agent).run(DataSet::of(cases)).await.expect("valid cases");
    let open = || ReportFile::open(&path, &partial);

    let mut file = open().expect("it is there");
    drop(file.begin(Experiment::new(&agent)).expect("it begins"));
    report.results.iter().for_each(|result| file.keep(result, false).expect("kept"));
    assert!(matches!(open(), Err(EvalError::Busy { .. })));
    let kept = fs::read_to_string(&partial).expect("results");
    let left: Vec<&str> = kept.lines().filter(|line| !line.contains(r#""case":"a""#)).collect();
    fs::write(folder.path().join("new"), left.join("\n") + "\n").expect("written");
    fs::rename(folder.path().join("new"), &partial).expect("renamed");

    let replaced = |error: Option<EvalError>| matches!(error, Some(EvalError::Replaced { .. }));
    assert!(replaced(file.keep(&CaseResult::default(), false).err()));
    assert!(replaced(file.write().err()));
    assert!(replaced(file.finish().err()));
    assert!(!path.exists(), "no report has the results");
    assert_eq!(fs::read_to_string(&partial).expect("results").lines().count(), 2);
    assert_eq!(open().expect("it continues").kept().passed, 1);
    assert!(Report::from_json_lines(fs::read(&partial).expect("results").as_slice()).is_ok());
}

/// A data set that has got no case leaves no file, and an experiment keeps its id over kills.
#[test]
fn a_file_without_a_case_is_not_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cases.jsonl");
    let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
    assert_eq!(file.append(&[], u64::MAX).expect("nothing to write"), 0);
    drop(file);
    assert!(!path.exists());
    // One that was there stays, whatever is in it.
    fs::write(&path, "").expect("written");
    drop(DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened"));
    assert!(path.exists());
    let mut file = DataSetFile::open(&path, FileLock::TIMEOUT).expect("opened");
    let (case, edited) = (Case::new("a", "hello"), Case::new("a", "goodbye"));
    assert_eq!(file.append(std::slice::from_ref(&case), u64::MAX).expect("written"), 1);
    assert!(!file.has_other(&case) && file.has_other(&edited));
}

#[tokio::test]
async fn an_experiment_keeps_its_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let (report, partial) = (folder.path().join("own.report"), folder.path().join("own.partial"));
    let agent = Agent::builder(Script::parse("assistant: hello").expect("a script").whole()).build();
    let experiment = Experiment::new(&agent.expect("an agent"));
    for new in ["first", "second"] {
        let mut file = ReportFile::open(&report, &partial).expect("opened");
        drop(file.begin(experiment.clone()).expect("the same experiment"));
        assert_eq!(file.id(|| new.to_owned()).expect("written"), "first");
    }
    let mut file = ReportFile::open(&report, &partial).expect("opened");
    let experiment = file.begin(experiment).expect("the same experiment");
    let cases = [Case::new("a", "hello").expect(Expectation::Answered)];
    let keep = |result: CaseResult, is_known| file.keep(&result, is_known);
    experiment.run_each_known(DataSet::of(cases), keep).await.expect("valid cases");
    file.finish().expect("written");
    let stored = fs::read_to_string(&report).expect("a report");
    assert_eq!(stored.lines().count(), 2, "no note is in a report: {stored}");
    // A second result of a case is refused.
    let last = stored.lines().last().expect("a result");
    let twice = format!("{stored}{last}\n");
    fs::write(&report, &twice).expect("written");
    for error in [
        Report::from_json_lines(twice.as_bytes()).map(drop),
        stepfold_eval::StoredReport::open(&report).map(drop),
    ] {
        let error = error.expect_err("two results of a case");
        assert!(matches!(&error, EvalError::DuplicateResult { case } if case == "a"), "{error}");
    }
}
