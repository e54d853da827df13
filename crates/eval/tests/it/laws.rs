//! A candidate that does as the recorded agent did makes the same events, and nothing of the world is touched.

use std::sync::atomic::Ordering;

use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, Event};
use stepfold_eval::{
    Case, CaseStatus, Comparison, DEFAULT_SEED, DataSet, Experiment, Mode, Report, Verdict, exact_mcnemar,
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
        texts.push((stored, report.to_markdown(3), junit, report.to_string()));
    }
    assert_eq!(texts[0], texts[1]);
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
