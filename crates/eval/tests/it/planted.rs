//! Planted regressions are all found, and harmless changes are not called one.

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::Decision;
use stepfold_eval::{
    Case, Comparison, DEFAULT_SEED, DataSet, Expectation, Experiment, Mode, Report, Verdict,
};
use stepfold_runner::Runner;
use stepfold_session_scopes::MemoryStore;

use crate::clerk::{Executions, Variation, careful, cases, clerk};

/// The cases, with the number that the answer needs.
async fn cases_with_answers(agent: &Agent) -> Vec<Case> {
    let cases = cases(agent, 20).await.into_iter().zip(1_u64..);
    cases
        .map(|(case, area)| {
            let own = Expectation::of_record().into_iter().fold(case, Case::expect);
            own.expect(Expectation::TextContains(vec![(area * 4).to_string()]))
                .expect(Expectation::NoFailedCalls)
        })
        .collect()
}

async fn report(agent: &Agent, mode: Mode, cases: &[Case]) -> Report {
    let experiment = Experiment::new(agent).mode(mode).concurrency(3);
    experiment.run(DataSet::of(cases.to_vec())).await.expect("the cases are valid")
}

async fn check(variation: Variation, mode: Mode, verdict: Verdict) {
    let executions = Executions::default();
    let agent = clerk(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases_with_answers(&agent).await;
    let candidate = clerk(variation, &executions).build().expect("a valid agent");
    let (before, now) = (report(&agent, mode, &cases).await, report(&candidate, mode, &cases).await);
    assert_eq!(before.summary().passed, 20, "{before}");
    let comparison = Comparison::of(&before, &now, DEFAULT_SEED).expect("same mode");
    assert_eq!(comparison.verdict(), verdict, "{variation:?} in mode {mode}: {comparison:?}");
}

#[tokio::test]
async fn each_regression_is_found() {
    use Variation::{FailedCall, LostState, MoreSteps, WorseText, WrongArgument, WrongTool};
    for variation in [LostState, MoreSteps, WorseText, FailedCall] {
        check(variation, Mode::Roll, Verdict::Worse).await;
    }
    // These leave the record at once: a roll says that it cannot know, and the next reply says that it is wrong.
    for variation in [WrongTool, WrongArgument] {
        check(variation, Mode::Roll, Verdict::Unknown).await;
        check(variation, Mode::Next, Verdict::Worse).await;
    }
    for variation in [LostState, MoreSteps, WorseText, FailedCall] {
        check(variation, Mode::Next, Verdict::Worse).await;
    }
}

#[tokio::test]
async fn no_harmless_change_is_called_a_regression() {
    use Variation::{LongerText, None, OtherIds, OtherOrder, OtherWords, Polite, WithText};
    for variation in [None, OtherOrder, OtherWords, OtherIds, LongerText, Polite, WithText] {
        for mode in [Mode::Roll, Mode::Next] {
            check(variation, mode, Verdict::NoDifference).await;
        }
    }
}

#[tokio::test]
async fn a_forgotten_approval_is_found() {
    let executions = Executions::default();
    let agent = careful(&executions).build().expect("a valid agent");
    let mut cases = Vec::new();
    for area in 1..=20 {
        let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
        let session = runner.session("ada", format!("s{area}")).await.expect("a new session");
        session.run(format!("how many stalls has area {area}")).await.expect("it waits");
        let request = session.pending().await.expect("it can be read").remove(0);
        session.resume().decide(request.id, Decision::Approve).await.expect("the run ends");
        cases.push(Case::taken_from(&session, None).await.expect("a turn that suits"));
    }
    let before = report(&agent, Mode::Roll, &cases).await;
    let forgetful = clerk(Variation::None, &executions).build().expect("a valid agent");
    let now = report(&forgetful, Mode::Roll, &cases).await;
    let comparison = Comparison::of(&before, &now, DEFAULT_SEED).expect("same mode");
    assert_eq!(comparison.verdict(), Verdict::Worse, "{comparison}");
    assert_eq!(
        comparison.lost[0].1,
        "recorded_approvals: no approval was requested for note({\"text\":\"area 1\"})"
    );
}
