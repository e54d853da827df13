//! Comparisons of two reports, case by case: is a difference more than chance?

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use fastrand::Rng;
use serde::Serialize;

use crate::error::EvalError;
use crate::report::{CaseResult, Report, code, percent};

/// The seed of the bootstrap, if none is given.
pub const DEFAULT_SEED: u64 = 1;

/// Fewer pairs cannot have a verdict of McNemar's exact test at 95 %: 2 / 2^5 > 0.05.
const LEAST_PAIRS: u64 = 6;

/// A candidate beside a baseline. Only cases that both could be evaluated by are paired.
///
/// # Examples
/// ```
/// use stepfold_eval::exact_mcnemar;
///
/// // Nine cases became worse, one better: hardly chance.
/// assert!(exact_mcnemar(9, 1) < 0.05);
/// assert!(exact_mcnemar(3, 2) > 0.5);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The paired cases.
    pub pairs: u64,
    /// The pairs that only the candidate passed.
    pub wins: u64,
    /// The pairs that only the baseline passed.
    pub losses: u64,
    /// The pairs that both passed, or both failed.
    pub ties: u64,
    /// The cases of the baseline that say nothing about the candidate: it left the record, or could not be tried.
    pub unpaired: Vec<String>,
    /// The difference of the pass rates: above zero, the candidate is better.
    pub difference: f64,
    /// The 95 % interval of the difference, by the bootstrap over pairs.
    pub interval: (f64, f64),
    /// The seed of the bootstrap.
    pub seed: u64,
    /// The probability of at least such a difference by chance, by McNemar's exact test, two-sided.
    pub p_value: f64,
    /// The mean difference of the steps of a pair.
    pub steps: f64,
    /// The mean difference of the tokens of a pair.
    pub tokens: f64,
    /// The pairs that only the baseline passed, with the reason.
    pub lost: Vec<(String, String)>,
    /// The pairs that only the candidate passed.
    pub won: Vec<String>,
    /// The cases that passed in one repeat and failed in another one, of either agent. A case passes if more than half of
    /// its repeats do.
    pub flaky: Vec<String>,
    /// The changes of the candidate since the baseline, in words.
    pub changes: Vec<String>,
}

/// The verdict of a comparison at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// The candidate is better.
    Better,
    /// No difference that is more than chance.
    NoDifference,
    /// The candidate is worse: a regression.
    Worse,
    /// The unpaired cases would make the candidate worse if all of them were lost, or are more than the pairs; or a case is lost,
    /// and there are fewer than six pairs, which are never more than chance.
    Unknown,
}

impl Comparison {
    /// Compares a candidate with a baseline.
    ///
    /// # Errors
    /// [`EvalError::Compare`] when the modes differ, or no case is in both.
    pub fn of(baseline: &Report, candidate: &Report, seed: u64) -> Result<Self, EvalError> {
        if baseline.head.mode != candidate.head.mode {
            let (before, now) = (baseline.head.mode, candidate.head.mode);
            return Err(EvalError::Compare {
                why: format!("baseline in mode {before}, candidate in mode {now}"),
            });
        }
        let (before, found) = (TriedCase::all_of(baseline), TriedCase::all_of(candidate));
        if !before.keys().any(|case| found.contains_key(case)) {
            return Err(EvalError::Compare { why: "no case is in both".to_owned() });
        }
        let mut comparison = Comparison {
            pairs: 0,
            wins: 0,
            losses: 0,
            ties: 0,
            unpaired: Vec::new(),
            difference: 0.0,
            interval: (0.0, 0.0),
            seed,
            p_value: 1.0,
            steps: 0.0,
            tokens: 0.0,
            lost: Vec::new(),
            won: Vec::new(),
            flaky: Vec::new(),
            changes: baseline.head.fingerprint.changes(&candidate.head.fingerprint),
        };
        // In the order of the baseline.
        for result in baseline.results.iter().filter(|result| result.repeat == 0) {
            let case = result.case.as_str();
            if let Some(before) = before.get(case).filter(|before| before.passed().is_some()) {
                comparison.add(case, before, found.get(case));
            }
        }
        comparison.finish();
        Ok(comparison)
    }

    fn add(&mut self, case: &str, before: &TriedCase<'_>, now: Option<&TriedCase<'_>>) {
        let Some((now, passed)) = now.and_then(|now| Some((now, now.passed()?))) else {
            self.unpaired.push(case.to_owned());
            return;
        };
        self.pairs += 1;
        self.steps += now.mean(|result| result.steps) - before.mean(|result| result.steps);
        self.tokens += now.mean(|result| result.tokens) - before.mean(|result| result.tokens);
        if before.is_flaky() || now.is_flaky() {
            self.flaky.push(case.to_owned());
        }
        match (before.passed() == Some(true), passed) {
            (true, false) => {
                self.losses += 1;
                self.lost.push((case.to_owned(), now.why()));
            }
            (false, true) => {
                self.wins += 1;
                self.won.push(case.to_owned());
            }
            _ => self.ties += 1,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of cases are far below 2^52")]
    fn finish(&mut self) {
        let pairs = self.pairs.max(1) as f64;
        (self.steps, self.tokens) = (self.steps / pairs, self.tokens / pairs);
        self.difference = (self.wins as f64 - self.losses as f64) / pairs;
        self.interval = bootstrap(self.wins, self.losses, self.pairs, self.seed);
        self.p_value = exact_mcnemar(self.wins, self.losses);
    }

    /// The verdict.
    ///
    /// Worse and better need both the exact test and the interval, so that a handful of cases is not called a difference.
    pub fn verdict(&self) -> Verdict {
        let unpaired = u64::try_from(self.unpaired.len()).unwrap_or(u64::MAX);
        match self.p_value < 0.05 {
            true if self.interval.1 < 0.0 => Verdict::Worse,
            _ if unpaired > self.pairs => Verdict::Unknown,
            // Too few for a proof, and not without a loss.
            _ if self.losses > 0 && self.pairs < LEAST_PAIRS => Verdict::Unknown,
            true if self.interval.0 > 0.0 => Verdict::Better,
            // A candidate that leaves the record where it is worse must not look harmless.
            _ if self.losses + unpaired > self.wins
                && exact_mcnemar(self.wins, self.losses + unpaired) < 0.05 =>
            {
                Verdict::Unknown
            }
            _ => Verdict::NoDifference,
        }
    }

    /// Markdown, for a comment to a pull request.
    pub fn to_markdown(&self, rows: usize) -> String {
        let mut text = format!("### Candidate beside baseline\n\n{self}");
        if !self.lost.is_empty() {
            text.push_str("\n| lost case | why |\n|---|---|\n");
            for (case, why) in self.lost.iter().take(rows) {
                let _ = writeln!(text, "| {} | {} |", code(case), code(why));
            }
        }
        if self.lost.len() > rows {
            let _ = writeln!(text, "\nand {} more", self.lost.len() - rows);
        }
        text
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Better => "better",
            Verdict::NoDifference => "no difference that is more than chance",
            Verdict::Worse => "worse",
            Verdict::Unknown => {
                "unknown: too many cases left the record or could not be tried, or too few were compared"
            }
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { pairs, wins, losses, ties, p_value, seed, steps, tokens, .. } = self;
        writeln!(f, "verdict: {}", self.verdict())?;
        writeln!(
            f,
            "{pairs} pairs: {wins} wins, {losses} losses, {ties} ties; {} cases unpaired",
            self.unpaired.len()
        )?;
        let (low, high) = self.interval;
        writeln!(
            f,
            "pass rate: {} (95 % interval {} to {}, bootstrap with seed {seed}); exact McNemar p = {p_value:.4}",
            signed_percent(self.difference),
            signed_percent(low),
            signed_percent(high),
        )?;
        if *losses > 0 && *pairs < LEAST_PAIRS {
            writeln!(
                f,
                "note: fewer than {LEAST_PAIRS} pairs are never more than chance; more cases are needed"
            )?;
        }
        if self.verdict() == Verdict::Unknown && !self.unpaired.is_empty() {
            writeln!(
                f,
                "note: unpaired cases may be losses: the record has no answer to what the candidate did; mode `next` compares its calls"
            )?;
        }
        writeln!(f, "mean of a pair: {steps:+.2} steps, {tokens:+.1} tokens")?;
        if !self.flaky.is_empty() {
            writeln!(f, "flaky cases: {}", self.flaky.join(", "))?;
        }
        match self.changes.is_empty() {
            true => writeln!(f, "changes of the agent: none"),
            false => writeln!(f, "changes of the agent: {}", self.changes.join(", ")),
        }
    }
}

fn signed_percent(part: f64) -> String {
    let sign = if part < 0.0 { "-" } else { "+" };
    format!("{sign}{}", percent(Some(part.abs())))
}

/// The results of a case that say something, of all its repeats.
#[derive(Default)]
struct TriedCase<'a> {
    results: Vec<&'a CaseResult>,
    passed: usize,
}

impl<'a> TriedCase<'a> {
    fn all_of(report: &'a Report) -> BTreeMap<&'a str, TriedCase<'a>> {
        let mut cases: BTreeMap<&str, TriedCase<'_>> = BTreeMap::new();
        for result in &report.results {
            let case = cases.entry(result.case.as_str()).or_default();
            if let Some(passed) = result.passed() {
                case.passed += usize::from(passed);
                case.results.push(result);
            }
        }
        cases
    }

    /// Whether more than half of the repeats passed; `None` if none says anything.
    const fn passed(&self) -> Option<bool> {
        if self.results.is_empty() { None } else { Some(self.passed * 2 > self.results.len()) }
    }

    const fn is_flaky(&self) -> bool {
        self.passed > 0 && self.passed < self.results.len()
    }

    /// Why the first repeat that failed did.
    fn why(&self) -> String {
        let failed = self.results.iter().find(|result| result.passed() == Some(false));
        failed.map(|result| result.why()).unwrap_or_default()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of steps and tokens of a case are far below 2^52")]
    fn mean(&self, count: impl Fn(&CaseResult) -> u64) -> f64 {
        let sum: f64 = self.results.iter().map(|result| count(result) as f64).sum();
        sum / self.results.len().max(1) as f64
    }
}

/// The 95 % interval of the mean of pairs that are wins (+1), losses (-1) and ties (0): the percentiles of resampled means.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of cases are far below 2^52, and places are within the samples"
)]
fn bootstrap(wins: u64, losses: u64, pairs: u64, seed: u64) -> (f64, f64) {
    if pairs == 0 {
        return (0.0, 0.0);
    }
    let mut luck = Rng::with_seed(seed);
    // Fewer resamples of many pairs, so that the cost is bounded.
    let resamples = (20_000_000 / pairs).clamp(200, 2_000);
    let mut means: Vec<f64> = (0..resamples)
        .map(|_| {
            let drawn = (0..pairs).map(|_| match luck.u64(0..pairs) {
                pair if pair < wins => 1_i64,
                pair if pair < wins + losses => -1,
                _ => 0,
            });
            drawn.sum::<i64>() as f64 / pairs as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |part: f64| means[((means.len() - 1) as f64 * part).round() as usize];
    (at(0.025), at(0.975))
}

/// The probability of a division at least as uneven as this of the pairs that differ, by chance alone, two-sided.
#[expect(clippy::cast_precision_loss, reason = "counts of cases are far below 2^52")]
pub fn exact_mcnemar(wins: u64, losses: u64) -> f64 {
    let (fewer, all) = (wins.min(losses), wins + losses);
    // The logarithm of all! / (k! (all - k)!) / 2^all, for k from 0 to the smaller count.
    let mut log_term = -(all as f64) * std::f64::consts::LN_2;
    let mut sum = log_term.exp();
    for k in 0..fewer {
        log_term += ((all - k) as f64).ln() - ((k + 1) as f64).ln();
        sum += log_term.exp();
    }
    (2.0 * sum).min(1.0)
}
