//! Twelve planted regressions are all found, and none of twelve harmless changes is called one, at 95 %.

use stepfold_agent_loop::Agent;
use stepfold_eval::{
    Case, Comparison, DEFAULT_SEED, DataSet, Expectation, Experiment, Mode, Report, Verdict,
};

use crate::clerk::{Executions, Variation, approved_cases, careful};

/// The turns of twenty sessions, with the number that the answer needs, and a bound on tokens.
async fn cases_with_answers(agent: &Agent) -> Vec<Case> {
    let cases = approved_cases(agent, 20).await.into_iter().zip(1_u64..);
    cases
        .map(|(case, area)| {
            let own = Expectation::of_record().into_iter().fold(case, Case::expect);
            own.expect(Expectation::TextContains(vec![(area * 4).to_string()]))
                .expect(Expectation::NoFailedCalls)
                .expect(Expectation::MaxTokens(1_000))
        })
        .collect()
}

async fn report(agent: &Agent, mode: Mode, cases: &[Case]) -> Report {
    let experiment = Experiment::new(agent).mode(mode).concurrency(3);
    experiment.run(DataSet::of(cases.to_vec())).await.expect("the cases are valid")
}

/// The verdicts about a candidate: of whole turns, and of each next reply.
async fn verdicts(variation: Variation) -> [Verdict; 2] {
    let executions = Executions::default();
    let agent = careful(Variation::None, &executions).build().expect("a valid agent");
    let cases = cases_with_answers(&agent).await;
    let candidate = careful(variation, &executions).build().expect("a valid agent");
    let mut verdicts = [Verdict::NoDifference; 2];
    for (mode, verdict) in [Mode::Roll, Mode::Next].into_iter().zip(&mut verdicts) {
        let (before, now) = (report(&agent, mode, &cases).await, report(&candidate, mode, &cases).await);
        assert_eq!(before.summary().passed, 20, "{before}");
        let comparison = Comparison::of(&before, &now, DEFAULT_SEED).expect("same mode");
        *verdict = comparison.verdict();
    }
    verdicts
}

#[tokio::test]
async fn each_regression_is_found() {
    use Variation::{
        AtLimit, CalledTwice, Costly, FailedCall, ForgottenApproval, LostState, MoreSteps, NoCall,
        SometimesLost, WorseText, WrongArgument, WrongTool,
    };
    use Verdict::{NoDifference, Unknown, Worse};
    let planted = [
        // These leave the record at once: a roll says that it cannot know, and the next reply says that it is wrong.
        (WrongTool, [Unknown, Worse]),
        (WrongArgument, [Unknown, Worse]),
        (CalledTwice, [Unknown, Worse]),
        (LostState, [Worse, Worse]),
        (SometimesLost, [Worse, Worse]),
        (MoreSteps, [Worse, Worse]),
        (WorseText, [Worse, Worse]),
        (FailedCall, [Worse, Worse]),
        (NoCall, [Worse, Worse]),
        // These are no matter of a single reply.
        (ForgottenApproval, [Worse, NoDifference]),
        (Costly, [Worse, NoDifference]),
        (AtLimit, [Worse, Unknown]),
    ];
    for (variation, expected) in planted {
        let found = verdicts(variation).await;
        assert_eq!(found, expected, "{variation:?}");
        assert!(found.contains(&Worse), "{variation:?} is not found");
    }
}

#[tokio::test]
async fn no_harmless_change_is_called_a_regression() {
    use Variation::{
        LongerText, MoreKeys, MoreTools, OneBadCase, OtherIds, OtherInstructions, OtherLimits, OtherName,
        OtherOrder, OtherParams, OtherWords, Polite, WithText,
    };
    let harmless = [
        OtherOrder,
        OtherWords,
        OtherIds,
        LongerText,
        Polite,
        WithText,
        OtherInstructions,
        OtherName,
        OtherParams,
        MoreTools,
        OtherLimits,
        MoreKeys,
        // One loss in twenty cases is no more than chance.
        OneBadCase,
    ];
    for variation in harmless {
        assert_eq!(verdicts(variation).await, [Verdict::NoDifference; 2], "{variation:?}");
    }
}

#[tokio::test]
async fn a_forgotten_approval_is_named() {
    let executions = Executions::default();
    let agent = careful(Variation::None, &executions).build().expect("a valid agent");
    let cases = approved_cases(&agent, 2).await;
    let forgetful = careful(Variation::ForgottenApproval, &executions).build().expect("a valid agent");
    let now = report(&forgetful, Mode::Roll, &cases).await;
    assert_eq!(
        now.results[0].why(),
        "recorded_approvals: no approval was requested for note({\"text\":\"area 1\"})"
    );
}
