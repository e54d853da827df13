//! A candidate that does as the recorded agent did makes the same events, and nothing of the world is touched.

use std::sync::atomic::Ordering;

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, Event};
use stepfold_eval::{
    Case, CaseSource, CaseStatus, Comparison, DEFAULT_SEED, DataSet, Experiment, Mode, Report, StoredReport,
    Verdict, exact_mcnemar,
};
use stepfold_runner::Runner;
use stepfold_session_scopes::MemoryStore;
use stepfold_tools::{Effect, Tool, ToolError};

use crate::clerk::{Executions, Variation, cases, clerk, session};

/// The first difference between the recorded events and those of a roll.
fn first_difference(recorded: &[Event], rolled: &[Event]) -> Option<String> {
    let different = recorded
        .iter()
        .zip(rolled)
        .find_map(|(recorded, rolled)| Some(recorded.difference(rolled)?.between("recorded", "rolled")));
    let lengths = format!("{} and {} events", recorded.len(), rolled.len());
    different.or((recorded.len() != rolled.len()).then_some(lengths))
}

async fn rolls_alike(agent: &Agent, case: &Case) {
    let (result, events) = Experiment::new(agent).run_with_events(case).await;
    assert_eq!(result.status, CaseStatus::Passed, "{}", result.why());
    let recorded = &case.record.as_ref().expect("it was taken from a session").events;
    assert_eq!(first_difference(recorded, &events), None);
}

#[tokio::test]
async fn a_roll_of_the_same_agent_makes_the_same_events_and_runs_no_tool() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let session = session(&agent, "s1", "how many stalls has area 3").await;
    // The second turn begins with the notes and the conversation of the first.
    session.run("and how many has area 5").await.expect("the run ends");
    let all = Case::all_of(&session).await.expect("the session can be read");
    assert_eq!((all.len(), executions.load(Ordering::Relaxed)), (2, 4));
    for case in all {
        let case = case.expect("a turn that suits");
        rolls_alike(&agent, &case).await;
        // A case is self-contained: it survives its stored form.
        let stored = serde_json::to_string(&case).expect("it has a stored form");
        rolls_alike(&agent, &serde_json::from_str(&stored).expect("it can be read")).await;
    }
    assert_eq!(executions.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn inner_agents_are_answered_with_their_runs() {
    async fn search() -> Result<&'static str, ToolError> {
        Ok("area 3")
    }
    let search = Tool::new("search", "Searches.", search).effect(Effect::Pure).build().expect("a tool");
    let script = Script::parse("assistant: > i1 search()\nassistant: it is area 3").expect("a script");
    let expert = Agent::builder(script).name("expert").tools([search]).build().expect("an agent");
    let script =
        Script::parse("assistant: > c1 expert(task=\"find it\")\nassistant: area 3").expect("a script");
    let expert = expert.as_tool("expert", "Knows areas.");
    let agent = Agent::builder(script).tool(expert).build().expect("an agent");
    let session = session(&agent, "s1", "which area?").await;
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    let events = &case.record.as_ref().expect("a record").events;
    assert!(events.iter().any(|event| event.name() == "inner"), "the record has the inner run");
    rolls_alike(&agent, &case).await;
}

#[tokio::test]
async fn failed_calls_and_rejections_are_answered_as_recorded() {
    async fn pay() -> Result<&'static str, ToolError> {
        Err(ToolError::permanent("no money"))
    }
    let pay = |approval| {
        Tool::new("pay", "Pays.", pay).effect(Effect::AtMostOnce).approval(approval).build().expect("a tool")
    };
    let script = "assistant: > c1 pay()\nassistant: it failed";
    let build = |approval| {
        Agent::builder(Script::parse(script).expect("a script"))
            .tools([pay(approval)])
            .build()
            .expect("an agent")
    };
    let failing = build(stepfold_tools::Approval::Never);
    let session = session(&failing, "s1", "pay the bill").await;
    rolls_alike(&failing, &Case::taken_from(&session, None).await.expect("a turn that suits")).await;

    let asking = build(stepfold_tools::Approval::Always);
    for decision in [Decision::reject("not now"), Decision::Approve] {
        let runner = Runner::builder(asking.clone(), MemoryStore::new()).build();
        let session = runner.session("ada", "s2").await.expect("a new session");
        session.run("pay the bill").await.expect("it waits");
        // A turn that waits is a case as well: the candidate waits there, too.
        rolls_alike(&asking, &Case::taken_from(&session, None).await.expect("a turn that suits")).await;
        let request = session.pending().await.expect("it can be read").remove(0);
        session.resume().decide(request.id, decision).await.expect("the run ends");
        let case = Case::taken_from(&session, None).await.expect("a turn that suits");
        rolls_alike(&asking, &case).await;

        // Without the approval, the candidate has forgotten to ask.
        let result = Experiment::new(&failing).run_case(&case).await;
        assert_ne!(result.status, CaseStatus::Passed, "{}", result.why());
    }
}

#[tokio::test]
async fn a_call_that_the_record_does_not_have_is_coverage_and_no_failure() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 3).await;
    let before = executions.load(Ordering::Relaxed);
    let candidate = clerk(Variation::WrongArgument, &executions).build().expect("a valid agent");
    let report =
        Experiment::new(&candidate).run(DataSet::of(cases.clone())).await.expect("the cases are valid");
    let summary = report.summary();
    assert_eq!((summary.left_record, summary.failed, summary.coverage()), (3, 0, Some(0.0)));
    assert_eq!(report.results[0].reason.as_deref(), Some(r#"count({"area":2})"#));
    assert_eq!(executions.load(Ordering::Relaxed), before, "no tool ran");

    // A pure tool that is allowed by name runs; one with an effect never does.
    let allowed = Experiment::new(&candidate).allow_pure("count").allow_pure("note");
    let report = allowed.run(DataSet::of(cases)).await.expect("the cases are valid");
    assert_eq!((report.results[0].ran, report.summary().failed), (1, 3), "{report}");
    assert_eq!(executions.load(Ordering::Relaxed), before + 3);
}

#[tokio::test]
async fn replay_names_the_first_difference() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 2).await;
    let replay = |agent: &Agent| Experiment::new(agent).mode(Mode::Replay);
    let same = replay(&agent).run(DataSet::of(cases.clone())).await.expect("the cases are valid");
    assert_eq!(same.summary().passed, 2, "{same}");
    let other = agent.to_builder().instructions("Be brief.").build().expect("a valid agent");
    let report = replay(&other).run(DataSet::of(cases)).await.expect("the cases are valid");
    assert_eq!(report.summary().failed, 2);
    assert!(report.results[0].why().contains("instructions"), "{report}");
}

#[tokio::test]
async fn a_report_is_the_same_byte_by_byte() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 5).await;
    let candidate = clerk(Variation::MoreSteps, &executions).build().expect("a valid agent");
    let mut texts = Vec::new();
    for concurrency in [1, 4] {
        let experiment = Experiment::new(&candidate).concurrency(concurrency);
        let report = experiment.run(DataSet::of(cases.clone())).await.expect("the cases are valid");
        let mut stored = Vec::new();
        report.write_json_lines(&mut stored).expect("memory takes it");
        assert_eq!(Report::from_json_lines(&*stored).expect("it can be read"), report);
        let junit = report.to_junit().expect("it has a form");
        assert_eq!(texts_of(&stored), [report.to_string(), report.to_markdown(3), junit.clone()]);
        texts.push((stored, report.to_markdown(3), junit, report.to_string()));
    }
    assert_eq!(texts[0], texts[1]);
}

/// The texts of a stored report.
fn texts_of(stored: &[u8]) -> [String; 3] {
    let report = self::stored(stored);
    let mut texts = [Vec::new(), Vec::new(), Vec::new()];
    let [table, markdown, junit] = &mut texts;
    report.write_table(table).expect("memory takes it");
    report.write_markdown(markdown, 3).expect("memory takes it");
    report.write_junit(junit).expect("memory takes it");
    let mut lines = Vec::new();
    report.write_json_lines(&mut lines).expect("memory takes it");
    assert_eq!(lines, stored);
    texts.map(|text| String::from_utf8(text).expect("text"))
}

fn stored(lines: &[u8]) -> StoredReport {
    StoredReport::new(std::io::Cursor::new(lines.to_vec())).expect("a report")
}

#[tokio::test]
async fn comparisons_name_what_was_lost() {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases(&agent, 20).await;
    let run = async |variation| {
        let agent = clerk(variation, &executions).build().expect("a valid agent");
        Experiment::new(&agent).run(DataSet::of(cases.clone())).await.expect("the cases are valid")
    };
    let (baseline, worse) = (run(Variation::None).await, run(Variation::LostState).await);
    let lost = Comparison::of(&baseline, &worse, DEFAULT_SEED).expect("same mode");
    assert_eq!((lost.losses, lost.verdict()), (20, Verdict::Worse), "{lost}");
    assert_eq!((lost.difference, lost.interval), (-1.0, (-1.0, -1.0)));
    let won = Comparison::of(&worse, &baseline, DEFAULT_SEED).expect("same mode");
    assert_eq!(won.verdict(), Verdict::Better);
    let same = Comparison::of(&baseline, &baseline, DEFAULT_SEED).expect("same mode");
    assert_eq!((same.ties, same.verdict()), (20, Verdict::NoDifference));
    // The same of stored ones.
    let lines = |report: &Report| {
        let mut lines = Vec::new();
        report.write_json_lines(&mut lines).expect("memory takes it");
        stored(&lines)
    };
    let (before, now) = (lines(&baseline), lines(&worse));
    assert_eq!(Comparison::of_stored(&before, &now, DEFAULT_SEED).expect("same mode"), lost);
    assert_eq!(Comparison::of_stored(&now, &before, DEFAULT_SEED).expect("same mode"), won);

    // Of more cases the first ones are named, and all are counted.
    let many = |report: &Report, status| {
        let results = (0..2_500).map(|number| {
            let mut result = report.results[number % 20].clone();
            (result.case, result.status) = (format!("c{number}"), status);
            result
        });
        Report::new(report.head.clone(), results.collect())
    };
    let passed = many(&baseline, CaseStatus::Passed);
    let lost = Comparison::of(&passed, &many(&worse, CaseStatus::Failed), DEFAULT_SEED).expect("same mode");
    assert_eq!((lost.losses, lost.lost.len(), &*lost.lost[999].0), (2_500, Comparison::MOST_NAMED, "c999"));
    assert!(lost.lost.iter().all(|(_, why)| !why.is_empty()), "{:?}", lost.lost);
    assert!(lost.to_markdown(50).ends_with("\nand 2450 more\n"), "{}", lost.to_markdown(50));
    let left =
        Comparison::of(&passed, &many(&worse, CaseStatus::LeftRecord), DEFAULT_SEED).expect("same mode");
    assert_eq!((left.unpaired_count, left.unpaired.len(), left.pairs), (2_500, Comparison::MOST_NAMED, 0));
    assert_eq!(left.verdict(), Verdict::Unknown);
    let mut changed = passed.clone();
    changed.results.iter_mut().for_each(|result| result.digest = "other".to_owned());
    let changed = Comparison::of(&passed, &changed, DEFAULT_SEED).expect("same mode");
    assert_eq!((changed.changed_count, changed.changed.len()), (2_500, Comparison::MOST_NAMED));
    assert!(changed.to_string().contains("c19, and 2480 more"), "{changed}");
}

/// Against the sum of binomial coefficients.
#[test]
fn the_exact_test_is_exact() {
    for (wins, losses) in [(0, 0), (0, 1), (3, 2), (1, 9), (10, 10), (0, 20), (7, 25)] {
        let (fewer, all) = (u64::min(wins, losses), wins + losses);
        let choose = |k: u64| (0..k).fold(1.0, |product, i| product * (all - i) as f64 / (i + 1) as f64);
        let sum: f64 = (0..=fewer).map(choose).sum();
        let exact = (2.0 * sum / 2_f64.powi(i32::try_from(all).unwrap())).min(1.0);
        assert!((exact_mcnemar(wins, losses) - exact).abs() < 1e-9, "{wins} {losses}");
    }
}

/// A law: no two turns of an app have one name, whatever slashes their ids have, and a name has the ids.
#[tokio::test]
async fn names_of_cases_are_those_of_one_turn() {
    let agent = clerk(Variation::None, &Executions::default()).build().expect("a valid agent");
    let runner = Runner::builder(agent, MemoryStore::new()).build();
    let mut names = std::collections::BTreeSet::new();
    let ids = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a%2Fb", "c"),
        ("a%252Fb", "c"),
        ("a", "b%2Fc"),
        ("a%", "b"),
        ("a", "%/b"),
    ];
    for (user, id) in ids {
        let session = runner.session(user, id).await.expect("a new session");
        session.run("how many stalls has area 3").await.expect("the run ends");
        let case = Case::taken_from(&session, None).await.expect("a turn that suits");
        let parts = CaseSource::parse_case_name(&case.name);
        assert_eq!(parts, Some((user.to_owned(), id.to_owned(), 1)));
        assert!(names.insert(case.name.clone()), "{}", case.name);
    }
}
