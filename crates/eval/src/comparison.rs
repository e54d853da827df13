//! Comparisons of two reports, case by case: is a difference more than chance?

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use fastrand::Rng;
use serde::Serialize;

use crate::data_set::hash;
use crate::error::EvalError;
use crate::mode::Mode;
use crate::report::Report;
use crate::report_text::{ReportResults, code, counted, percent, printable};
use crate::stored_report::StoredReport;

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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The mode of both.
    pub mode: Mode,
    /// The paired cases.
    pub pairs: u64,
    /// The pairs that only the candidate passed; in [`Mode::Replay`] those in which only it agrees with the record.
    pub wins: u64,
    /// The pairs that only the baseline passed.
    pub losses: u64,
    /// The pairs that both passed, or both failed.
    pub ties: u64,
    /// The cases of the baseline that say nothing about the candidate: it left the record, could not be tried, or has tried
    /// another case of the name. Of these and of the following lists the first [`MOST_NAMED`](Comparison::MOST_NAMED).
    pub unpaired: Vec<String>,
    /// The number of all of them.
    pub unpaired_count: u64,
    /// The number of those that the baseline passed: nothing shows that the candidate has not lost them.
    pub unpaired_passed: u64,
    /// The cases of the candidate that the baseline does not have, or could not try.
    pub untried: Vec<String>,
    /// The number of all of them.
    pub untried_count: u64,
    /// The number of those that the candidate failed.
    pub untried_failed: u64,
    /// The unpaired cases whose content differs: the data set was changed between the reports.
    pub changed: Vec<String>,
    /// The number of all of them.
    pub changed_count: u64,
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
    /// The pairs that only the baseline passed, with the reason; their number is that of the losses.
    pub lost: Vec<(String, String)>,
    /// The pairs that only the candidate passed; their number is that of the wins.
    pub won: Vec<String>,
    /// The cases that passed in one repeat and failed in another one, of either agent. A case passes if more than half of
    /// its repeats do.
    pub flaky: Vec<String>,
    /// The number of all of them.
    pub flaky_count: u64,
    /// The changes of the candidate since the baseline, in words.
    pub changes: Vec<String>,
}

/// The verdict of a comparison at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// The candidate is better, even if all cases that it could not answer were lost.
    Better,
    /// No difference that is more than chance.
    NoDifference,
    /// The candidate is worse: a regression.
    Worse,
    /// In [`Mode::Replay`]: the candidate differs from the record in more cases than the baseline. Whether it is worse, the mode does not
    /// say.
    Differs,
    /// In [`Mode::Replay`]: the candidate agrees with the record in more cases than the baseline.
    Agrees,
    /// The unpaired cases that the baseline passed, and the failed ones that the baseline has not tried, would make the candidate worse if
    /// all of them were lost; or unpaired and untried cases are more than the pairs; or a case is lost, and there are fewer than six pairs, which are never
    /// more than chance.
    Unknown,
}

impl Comparison {
    /// The most cases of a list: memory does not grow with the others.
    pub const MOST_NAMED: usize = 1_000;

    /// Compares a candidate with a baseline.
    ///
    /// # Errors
    /// [`EvalError::Compare`] when the modes differ, or no case is in both.
    pub fn of(baseline: &Report, candidate: &Report, seed: u64) -> Result<Self, EvalError> {
        Comparison::of_results(baseline, candidate, seed)
    }

    /// The same with stored reports, of which some numbers of each case are in memory: at most a hundred bytes, in both together
    /// two hundred.
    ///
    /// # Errors
    /// As [`of`](Comparison::of), and when a result cannot be read.
    pub fn of_stored(
        baseline: &StoredReport,
        candidate: &StoredReport,
        seed: u64,
    ) -> Result<Self, EvalError> {
        Comparison::of_results(baseline, candidate, seed)
    }

    fn of_results(
        baseline: &dyn ReportResults,
        candidate: &dyn ReportResults,
        seed: u64,
    ) -> Result<Self, EvalError> {
        if baseline.head().mode != candidate.head().mode {
            let (before, now) = (baseline.head().mode, candidate.head().mode);
            return Err(EvalError::Compare {
                why: format!("baseline in mode {before}, candidate in mode {now}; make both in one mode"),
            });
        }
        let (before, found) = (TriedCase::all_of(baseline)?, TriedCase::all_of(candidate)?);
        if !before.keys().any(|case| found.contains_key(case)) {
            return Err(EvalError::Compare { why: "no case is in both".to_owned() });
        }
        let changes = baseline.head().fingerprint.changes(&candidate.head().fingerprint);
        let mode = candidate.head().mode;
        let mut comparison = Comparison { mode, seed, changes, p_value: 1.0, ..Comparison::default() };
        // In the order of the baseline.
        baseline.each(&mut |result| {
            let key = hash(&result.case);
            if result.repeat == 0
                && let Some(before) = before.get(&key).filter(|before| before.passed().is_some())
            {
                comparison.add(&result.case, before, found.get(&key));
            }
            Ok(())
        })?;
        let is_untried = |key: &u64| before.get(key).is_none_or(|before| before.passed().is_none());
        let untried = found.iter().filter(|(key, _)| is_untried(key));
        comparison.read_names(candidate, &untried.map(|(key, now)| (*key, now.passed())).collect())?;
        comparison.finish();
        Ok(comparison)
    }

    fn add(&mut self, case: &str, before: &TriedCase, now: Option<&TriedCase>) {
        let is_changed = |now: &TriedCase| !now.is_same_case(before);
        let is_changed = now.is_some_and(is_changed);
        if is_changed {
            count(&mut self.changed_count, &mut self.changed, case.to_owned());
        }
        let pair = now.filter(|_| !is_changed).and_then(|now| Some((now, now.passed()?)));
        let Some((now, passed)) = pair else {
            count(&mut self.unpaired_count, &mut self.unpaired, case.to_owned());
            self.unpaired_passed += u64::from(before.passed() == Some(true));
            return;
        };
        self.pairs += 1;
        self.steps += now.mean(now.steps) - before.mean(before.steps);
        self.tokens += now.mean(now.tokens) - before.mean(before.tokens);
        if before.is_flaky() || now.is_flaky() {
            count(&mut self.flaky_count, &mut self.flaky, case.to_owned());
        }
        match (before.passed() == Some(true), passed) {
            (true, false) => count(&mut self.losses, &mut self.lost, (case.to_owned(), String::new())),
            (false, true) => count(&mut self.wins, &mut self.won, case.to_owned()),
            _ => self.ties += 1,
        }
    }

    /// Reads the names of the cases that the baseline has not tried, and why the first repeat that failed did, of the cases that are
    /// named as lost.
    fn read_names(
        &mut self,
        candidate: &dyn ReportResults,
        untried: &HashMap<u64, Option<bool>>,
    ) -> Result<(), EvalError> {
        let lost = self.lost.iter().enumerate();
        let mut open: HashMap<u64, usize> = lost.map(|(at, (case, _))| (hash(case), at)).collect();
        if open.is_empty() && untried.is_empty() {
            return Ok(());
        }
        candidate.each(&mut |result| {
            let key = hash(&result.case);
            if let Some(passed) = untried.get(&key).filter(|_| result.repeat == 0) {
                count(&mut self.untried_count, &mut self.untried, result.case.clone());
                self.untried_failed += u64::from(*passed == Some(false));
            }
            if result.passed() == Some(false)
                && let Some(at) = open.remove(&key)
            {
                self.lost[at].1 = result.why();
            }
            Ok(())
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of cases are far below 2^52")]
    fn finish(&mut self) {
        let pairs = self.pairs.max(1) as f64;
        (self.steps, self.tokens) = (self.steps / pairs, self.tokens / pairs);
        self.difference = (self.wins as f64 - self.losses as f64) / pairs;
        self.interval = bootstrap(self.wins, self.losses, self.pairs, self.seed);
        self.p_value = exact_mcnemar(self.wins, self.losses);
    }

    /// The most cases that can be lost: the losses, and the cases of which nothing shows that they are not. Those are cases that the
    /// baseline passed and the candidate could not answer, and cases that the candidate failed and the baseline has not tried.
    ///
    /// A limit on losses is a limit on this number: a candidate that leaves the record has not shown that it loses nothing.
    ///
    /// # Examples
    /// ```
    /// use stepfold_eval::Comparison;
    ///
    /// let mut comparison = Comparison::default();
    /// (comparison.pairs, comparison.losses, comparison.unpaired_count) = (20, 1, 3);
    /// comparison.unpaired_passed = 2;
    /// assert_eq!(comparison.possible_losses(), 3);
    /// ```
    pub const fn possible_losses(&self) -> u64 {
        self.losses + self.unpaired_passed + self.untried_failed
    }

    /// The verdict.
    ///
    /// Worse and better need both the exact test and the interval, so that a handful of cases is not called a difference.
    pub fn verdict(&self) -> Verdict {
        match (self.mode, self.verdict_of_pairs()) {
            (Mode::Replay, Verdict::Worse) => Verdict::Differs,
            (Mode::Replay, Verdict::Better) => Verdict::Agrees,
            (_, verdict) => verdict,
        }
    }

    fn verdict_of_pairs(&self) -> Verdict {
        let possible = self.possible_losses();
        match self.p_value < 0.05 {
            true if self.interval.1 < 0.0 => Verdict::Worse,
            _ if self.unpaired_count + self.untried_count > self.pairs => Verdict::Unknown,
            // Too few for a proof, and not without a loss.
            _ if self.losses > 0 && self.pairs < LEAST_PAIRS => Verdict::Unknown,
            // A candidate that leaves the record where it is worse must look neither harmless nor better.
            _ if possible > self.wins && exact_mcnemar(self.wins, possible) < 0.05 => Verdict::Unknown,
            // Better than chance also if all of those were lost.
            true if self.interval.0 > 0.0
                && self.wins > possible
                && exact_mcnemar(self.wins, possible) < 0.05 =>
            {
                Verdict::Better
            }
            _ => Verdict::NoDifference,
        }
    }

    /// Markdown, for a comment to a pull request.
    pub fn to_markdown(&self, rows: usize) -> String {
        let mut text = "### Candidate beside baseline\n\n".to_owned();
        // Memory takes it.
        let _ = self.write_text(&mut text, code);
        if !self.lost.is_empty() {
            let word = if self.mode == Mode::Replay { "case that differs" } else { "lost case" };
            let _ = write!(text, "\n| {word} | why |\n|---|---|\n");
            for (case, why) in self.lost.iter().take(rows) {
                let _ = writeln!(text, "| {} | {} |", code(case), code(why));
            }
        }
        let left = self.losses - self.lost.len().min(rows) as u64;
        if left > 0 {
            let _ = writeln!(text, "\nand {left} more");
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
            Verdict::Differs => {
                "differs: more cases than of the baseline are not as recorded; whether they are worse, modes `roll` and `next` say"
            }
            Verdict::Agrees => "agrees: more cases than of the baseline are as recorded",
            Verdict::Unknown => {
                "unknown: too many cases left the record or could not be tried, or too few were compared"
            }
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_text(f, printable)
    }
}

impl Comparison {
    /// Writes the numbers in words, with names in this form.
    fn write_text(&self, f: &mut dyn fmt::Write, quoted: fn(&str) -> String) -> fmt::Result {
        let Comparison { pairs, wins, losses, ties, p_value, seed, steps, tokens, .. } = self;
        writeln!(f, "verdict: {}", self.verdict())?;
        let (of_pairs, rate) = if self.mode == Mode::Replay {
            let words =
                format!("{wins} as recorded again, {losses} not as recorded any more, {ties} as before");
            (words, "rate as recorded")
        } else {
            let (wins, losses) = (counted(*wins, "win", "wins"), counted(*losses, "loss", "losses"));
            (format!("{wins}, {losses}, {}", counted(*ties, "tie", "ties")), "pass rate")
        };
        let (pairs_text, unpaired) =
            (counted(*pairs, "pair", "pairs"), counted(self.unpaired_count, "case", "cases"));
        writeln!(f, "{pairs_text}: {of_pairs}; {unpaired} unpaired")?;
        let (low, high) = self.interval;
        writeln!(
            f,
            "{rate}: {} (95 % interval {} to {}, bootstrap with seed {seed}); exact McNemar {}",
            signed_percent(self.difference),
            signed_percent(low),
            signed_percent(high),
            match *p_value {
                p if p < 0.0001 => "p < 0.0001".to_owned(),
                p => format!("p = {p:.4}"),
            },
        )?;
        if !self.changed.is_empty() {
            writeln!(
                f,
                "note: the content of cases has changed since the baseline: {}",
                names(&self.changed, self.changed_count, quoted)
            )?;
        }
        if *losses > 0 && *pairs < LEAST_PAIRS {
            writeln!(
                f,
                "note: fewer than {LEAST_PAIRS} pairs are never more than chance; more cases are needed"
            )?;
        }
        if !self.unpaired.is_empty() {
            writeln!(
                f,
                "note: unpaired cases may be losses, and the baseline passed {} of them{}: {}",
                self.unpaired_passed,
                match self.mode {
                    Mode::Roll => "; mode `next` compares the calls of those that left the record",
                    _ => "",
                },
                names(&self.unpaired, self.unpaired_count, quoted)
            )?;
        }
        if !self.untried.is_empty() {
            writeln!(
                f,
                "note: the baseline has not tried {} of the candidate, of which {} failed; make it again with the same data set: {}",
                counted(self.untried_count, "case", "cases"),
                self.untried_failed,
                names(&self.untried, self.untried_count, quoted)
            )?;
        }
        writeln!(f, "mean of a pair: {steps:+.2} steps, {tokens:+.1} tokens")?;
        if !self.flaky.is_empty() {
            writeln!(f, "flaky cases: {}", names(&self.flaky, self.flaky_count, quoted))?;
        }
        if self.changes.is_empty() {
            return writeln!(f, "changes of the agent: none");
        }
        let changes: Vec<String> = self.changes.iter().map(|change| quoted(change)).collect();
        writeln!(f, "changes of the agent: {}", changes.join(", "))
    }
}

/// Counts an item, which is kept if there is room.
fn count<T>(count: &mut u64, items: &mut Vec<T>, item: T) {
    *count += 1;
    if items.len() < Comparison::MOST_NAMED {
        items.push(item);
    }
}

/// Names in one line, of which there may be many.
fn names(names: &[String], count: u64, quoted: fn(&str) -> String) -> String {
    const MOST: usize = 20;
    let mut shown: Vec<String> = names.iter().take(MOST).map(|name| quoted(name)).collect();
    let left = count - shown.len() as u64;
    shown.extend((left > 0).then(|| format!("and {left} more")));
    shown.join(", ")
}

fn signed_percent(part: f64) -> String {
    let sign = if part < 0.0 { "-" } else { "+" };
    format!("{sign}{}", percent(Some(part.abs())))
}

/// Numbers of the results of a case that say something, of all its repeats.
#[derive(Default)]
struct TriedCase {
    /// The hash of the case's digest; 0 in a report that has none.
    digest: u64,
    steps: u64,
    tokens: u64,
    tried: u32,
    passed: u32,
    /// The repeats that say nothing: they left the record, for example.
    unanswered: u32,
}

impl TriedCase {
    /// The cases of a report, by the hashes of their names.
    fn all_of(report: &dyn ReportResults) -> Result<HashMap<u64, TriedCase>, EvalError> {
        let mut cases: HashMap<u64, TriedCase> = HashMap::new();
        report.each(&mut |result| {
            let case = cases.entry(hash(&result.case)).or_default();
            case.digest = if result.digest.is_empty() { 0 } else { hash(&result.digest) };
            let Some(passed) = result.passed() else {
                case.unanswered += 1;
                return Ok(());
            };
            case.tried += 1;
            case.passed += u32::from(passed);
            case.steps = case.steps.saturating_add(result.steps);
            case.tokens = case.tokens.saturating_add(result.tokens);
            Ok(())
        })?;
        Ok(cases)
    }

    /// Whether more than half of the repeats passed; `None` if that depends on repeats that say nothing.
    fn passed(&self) -> Option<bool> {
        let [passed, tried, unanswered] = [self.passed, self.tried, self.unanswered].map(u64::from);
        let is_most = |passed: u64| passed * 2 > tried + unanswered;
        (is_most(passed) == is_most(passed + unanswered)).then(|| is_most(passed))
    }

    const fn is_same_case(&self, other: &TriedCase) -> bool {
        self.digest == other.digest || self.digest == 0 || other.digest == 0
    }

    const fn is_flaky(&self) -> bool {
        self.passed > 0 && self.passed < self.tried
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of steps and tokens of a case are far below 2^52")]
    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / f64::from(self.tried.max(1))
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
