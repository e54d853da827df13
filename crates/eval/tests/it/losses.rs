//! Laws of comparisons, by generated reports: a candidate that could not answer has not shown that it loses nothing.

use fastrand::Rng;
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{CaseResult, CaseStatus, Comparison, DEFAULT_SEED, Experiment, Mode, Report, Verdict};

/// The results of a case, one for each repeat.
type Statuses = Vec<CaseStatus>;

fn report(cases: &[Option<Statuses>], mode: Mode) -> Report {
    let agent = Agent::builder(Script::parse("assistant: x").expect("a script")).build().expect("an agent");
    let results = cases.iter().enumerate().flat_map(|(number, statuses)| {
        let repeats = statuses.iter().flatten().zip(0..);
        repeats.map(move |(status, repeat)| {
            let mut result = CaseResult::default();
            (result.case, result.repeat, result.status) = (format!("c{number}"), repeat, *status);
            result
        })
    });
    Report::new(Experiment::new(&agent).mode(mode).head(), results.collect())
}

fn compared(baseline: &[Option<Statuses>], candidate: &[Option<Statuses>], mode: Mode) -> Option<Comparison> {
    Comparison::of(&report(baseline, mode), &report(candidate, mode), DEFAULT_SEED).ok()
}

/// Cases of which some are missing, with some repeats each.
fn cases(rng: &mut Rng, count: usize, repeats: usize, failing: f64) -> Vec<Option<Statuses>> {
    let status = |rng: &mut Rng| match rng.f64() {
        part if part < 0.15 => {
            [CaseStatus::LeftRecord, CaseStatus::Error, CaseStatus::Skipped][rng.usize(..3)]
        }
        part if part < 0.15 + failing => CaseStatus::Failed,
        _ => CaseStatus::Passed,
    };
    (0..count).map(|_| (rng.usize(..10) > 0).then(|| (0..repeats).map(|_| status(rng)).collect())).collect()
}

const fn says_something(status: CaseStatus) -> bool {
    matches!(status, CaseStatus::Passed | CaseStatus::Failed)
}

/// The cases in which each result that says nothing is another one.
fn filled(cases: &[Option<Statuses>], by: CaseStatus) -> Vec<Option<Statuses>> {
    let filled = |status: &CaseStatus| if says_something(*status) { *status } else { by };
    cases.iter().map(|case| case.as_ref().map(|statuses| statuses.iter().map(filled).collect())).collect()
}

fn passes(statuses: &Statuses) -> bool {
    2 * statuses.iter().filter(|status| **status == CaseStatus::Passed).count() > statuses.len()
}

/// Whether the results of a case say something, whatever the others would have been.
fn solved(case: Option<&Statuses>) -> Option<bool> {
    let with = |by| {
        let filled = filled(&[case.cloned()], by).remove(0)?;
        Some(passes(&filled))
    };
    let (worst, best) = (with(CaseStatus::Failed)?, with(CaseStatus::Passed)?);
    (worst == best).then_some(worst)
}

/// A law: a limit on losses that is kept is kept by each completion of the results: those of cases that the candidate could not answer,
/// and those that the baseline has not tried.
#[test]
fn no_completion_of_the_results_has_more_losses_than_are_possible() {
    let mut unanswered = 0;
    for seed in 0..3_000 {
        let mut rng = Rng::with_seed(seed);
        let (count, repeats) = (rng.usize(1..30), [1, 1, 2, 3][rng.usize(..4)]);
        let (before, now) = (cases(&mut rng, count, repeats, 0.1), cases(&mut rng, count, repeats, 0.3));
        let Some(comparison) = compared(&before, &now, Mode::Roll) else { continue };
        let pairs = before.iter().zip(&now).map(|(before, now)| (before.as_ref(), now.as_ref()));
        // A case that is missing could have had any result.
        let worst = pairs.filter(|(before, now)| match (solved(*before), solved(*now)) {
            (Some(true), now) => now != Some(true),
            (None, now) => now == Some(false),
            (Some(false), _) => false,
        });
        assert_eq!(comparison.possible_losses(), worst.count() as u64, "{seed}: {comparison:?}");
        assert!(comparison.losses <= comparison.possible_losses());
        unanswered += u64::from(comparison.losses < comparison.possible_losses());

        // The completion itself, with the cases that are there.
        let is_there =
            |(before, now): &(&Option<Statuses>, &Option<Statuses>)| before.is_some() && now.is_some();
        let (kept_before, kept_now): (Vec<_>, Vec<_>) = before
            .iter()
            .zip(&now)
            .filter(is_there)
            .map(|(before, now)| (before.clone(), now.clone()))
            .unzip();
        let completed = compared(&kept_before, &filled(&kept_now, CaseStatus::Failed), Mode::Roll);
        let losses = completed.map_or(0, |completed| completed.losses);
        assert!(losses <= comparison.possible_losses(), "{seed}: {losses}, {comparison:?}");
    }
    assert!(unanswered > 1_000, "{unanswered}");
}

/// A law: a candidate that leaves the record in place of failing has neither fewer possible losses nor a better verdict.
#[test]
fn leaving_the_record_never_looks_better_than_failing() {
    let is_bad = |verdict| matches!(verdict, Verdict::Worse | Verdict::Unknown);
    let mut bad = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(6..60);
        let failing = rng.f64() * 0.8;
        let (before, now) = (cases(&mut rng, count, 1, 0.1), cases(&mut rng, count, 1, failing));
        let leaving = now.iter().map(|case| {
            let left = |status: &CaseStatus| match *status {
                CaseStatus::Failed if rng.bool() => CaseStatus::LeftRecord,
                status => status,
            };
            case.as_ref().map(|statuses| statuses.iter().map(left).collect::<Statuses>())
        });
        let leaving: Vec<Option<Statuses>> = leaving.collect();
        let (Some(failed), Some(left)) =
            (compared(&before, &now, Mode::Roll), compared(&before, &leaving, Mode::Roll))
        else {
            continue;
        };
        let untried = failed.untried_failed - left.untried_failed;
        assert_eq!(failed.possible_losses(), left.possible_losses() + untried, "{seed}");
        if failed.verdict() == Verdict::Worse {
            bad += 1;
            assert!(is_bad(left.verdict()), "{seed}: {failed:?} {left:?}");
        }
        assert!(
            left.verdict() != Verdict::Better || failed.verdict() == Verdict::Better,
            "{seed}: {failed:?} {left:?}"
        );
    }
    assert!(bad > 300, "{bad}");
}

/// A replay that is not as recorded is different, and not worse.
#[test]
fn a_replay_differs_and_is_not_worse() {
    let all = |status| vec![Some(vec![status]); 20];
    let (passed, failed) = (all(CaseStatus::Passed), all(CaseStatus::Failed));
    for (before, now, replay, roll) in [
        (&passed, &failed, Verdict::Differs, Verdict::Worse),
        (&failed, &passed, Verdict::Agrees, Verdict::Better),
        (&passed, &passed, Verdict::NoDifference, Verdict::NoDifference),
    ] {
        for (mode, expected) in [(Mode::Replay, replay), (Mode::Roll, roll), (Mode::Next, roll)] {
            let comparison = compared(before, now, mode).expect("same mode");
            assert_eq!(comparison.verdict(), expected, "{mode}");
            let texts = format!("{comparison}{}", comparison.to_markdown(50));
            let words = ["worse\n", "better\n", "lost", "loss", "win"].map(|word| texts.contains(word));
            assert_eq!(words.contains(&true), mode != Mode::Replay, "{mode}: {texts}");
        }
    }
}

/// The counts of a JUnit report are those of its tests.
#[test]
fn counts_of_junit_are_those_of_its_tests() {
    let mut rng = Rng::with_seed(7);
    for _ in 0..50 {
        let report = report(&cases(&mut rng, 20, 2, 0.3), Mode::Roll);
        let junit = report.to_junit().expect("it has a form");
        let suite = junit.lines().find(|line| line.trim_start().starts_with("<testsuite ")).expect("a suite");
        for (name, element) in
            [("tests", "<testcase"), ("failures", "<failure"), ("errors", "<error"), ("skipped", "<skipped")]
        {
            let count = junit.matches(&format!("{element} ")).count();
            assert!(suite.contains(&format!(" {name}=\"{count}\"")), "{name} {count}: {junit}");
        }
        assert!(!junit.contains("disabled"), "{junit}");
    }
}
