//! Reports: the results of an experiment, as data, as JSON lines, and as text for people and for other programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{BufRead, Write};

use quick_junit::{NonSuccessKind, Report as JunitReport, TestCase, TestCaseStatus, TestSuite};
use serde::{Deserialize, Serialize};
use stepfold_agent_loop::Fingerprint;

use crate::case::Case;
use crate::error::EvalError;
use crate::expectation::Score;
use crate::mode::Mode;
use crate::timelines::Timelines;
use crate::trial::Trial;

/// The version of the stored form of a report.
pub const REPORT_FORMAT: u64 = 1;

/// Mode and candidate of an experiment: the first line of a stored report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportHead {
    /// The version of the format.
    pub stepfold_eval_report: u64,
    /// The mode.
    pub mode: Mode,
    /// The name of the candidate.
    pub candidate: String,
    /// The fingerprint of the candidate.
    pub fingerprint: Fingerprint,
    /// The options that results depend on, apart from defaults: allowed tools, for example.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

impl ReportHead {
    pub(crate) fn new(mode: Mode, candidate: &str, fingerprint: Fingerprint) -> Self {
        ReportHead {
            stepfold_eval_report: REPORT_FORMAT,
            mode,
            candidate: candidate.to_owned(),
            fingerprint,
            options: BTreeMap::new(),
        }
    }

    /// The differences from another head, in words.
    pub(crate) fn differences(&self, other: &ReportHead) -> Vec<String> {
        let mut found = self.fingerprint.changes(&other.fingerprint);
        if self.mode != other.mode {
            found.push(format!("mode {} is now {}", self.mode, other.mode));
        }
        if self.candidate != other.candidate {
            found.push(format!("name `{}` is now `{}`", self.candidate, other.candidate));
        }
        let keys = self.options.keys().chain(other.options.keys());
        let changed = keys.filter(|key| self.options.get(*key) != other.options.get(*key));
        found.extend(changed.map(|key| format!("option `{key}` changed")));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Writes the head as a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_line(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        write_line(self, writer)
    }
}

/// The status of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CaseStatus {
    /// Every expectation holds.
    Passed,
    /// An expectation does not hold.
    Failed,
    /// The candidate made a call, or needed a decision, that the record does not have: the case says nothing. It counts
    /// as coverage, never as a failure.
    LeftRecord,
    /// The candidate could not be tried: its model failed, for example.
    Error,
    /// The case does not suit the mode, or expects nothing.
    #[default]
    Skipped,
}

impl CaseStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            CaseStatus::Passed => "passed",
            CaseStatus::Failed => "failed",
            CaseStatus::LeftRecord => "left the record",
            CaseStatus::Error => "error",
            CaseStatus::Skipped => "skipped",
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    pub case: String,
    /// The repeat, from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeat: u64,
    /// The digest of the case.
    #[serde(default)]
    pub digest: String,
    /// The status.
    pub status: CaseStatus,
    /// The call at which the record was left, or the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The results of the evaluators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<Score>,
    /// The replies of the model.
    pub steps: u64,
    /// The tokens, in and out.
    pub tokens: u64,
    /// The calls, or in [`Mode::Next`] the replies, that the record answered.
    pub answered: u64,
    /// The calls of pure tools that ran.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ran: u64,
    /// Times and costs, which differ from one time to the next, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// The recorded turn beside the candidate's, if timelines were [asked for](crate::Experiment::timelines) and the case has
    /// not passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timelines: Option<Timelines>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The time and the cost of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measured {
    /// The duration of the run in microseconds.
    pub elapsed_us: u64,
    /// The cost in billionths of a dollar, if all prices are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_nanodollars: Option<u64>,
}

impl CaseResult {
    pub(crate) fn new(case: &Case) -> Self {
        CaseResult { case: case.name.clone(), digest: case.digest(), ..CaseResult::default() }
    }

    /// The case, with the number of the repeat after the first one.
    pub(crate) fn label(&self) -> String {
        match self.repeat {
            0 => self.case.clone(),
            repeat => format!("{} #{}", self.case, repeat + 1),
        }
    }

    fn set_scores(&mut self, scores: Vec<Score>, trial: &Trial) {
        self.status = match scores.iter().all(|score| score.passed) {
            _ if scores.is_empty() => CaseStatus::Skipped,
            true => CaseStatus::Passed,
            false => CaseStatus::Failed,
        };
        (self.steps, self.tokens) = (trial.steps, trial.usage.total_tokens());
        self.scores = scores;
    }

    /// Sets the scores, or the error of an evaluator that could not evaluate.
    pub(crate) fn set_evaluated(&mut self, scores: Result<Vec<Score>, String>, trial: &Trial) {
        match scores {
            Ok(scores) => self.set_scores(scores, trial),
            Err(error) => (self.status, self.reason) = (CaseStatus::Error, Some(error)),
        }
    }

    /// Whether the case passed; `None` if it says nothing.
    pub const fn passed(&self) -> Option<bool> {
        match self.status {
            CaseStatus::Passed => Some(true),
            CaseStatus::Failed => Some(false),
            _ => None,
        }
    }

    /// Why the case did not pass, in one line.
    pub fn why(&self) -> String {
        let failed = self.scores.iter().filter(|score| !score.passed);
        let mut reasons: Vec<String> = failed
            .map(|score| match &score.reason {
                Some(reason) => format!("{}: {reason}", score.evaluator),
                None => score.evaluator.clone(),
            })
            .collect();
        reasons.extend(self.reason.clone());
        reasons.join("; ").replace('\n', " ")
    }

    /// Writes the result as a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_line(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        write_line(self, writer)
    }
}

fn write_line(value: &impl Serialize, writer: &mut impl Write) -> Result<(), EvalError> {
    let line = serde_json::to_string(value).map_err(std::io::Error::from);
    line.and_then(|line| writeln!(writer, "{line}")).map_err(EvalError::io("writing of the report"))
}

/// Counts of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The cases.
    pub cases: u64,
    /// Passed cases.
    pub passed: u64,
    /// Failed cases.
    pub failed: u64,
    /// Cases that left the record.
    pub left_record: u64,
    /// Cases that could not be tried.
    pub errors: u64,
    /// Cases that do not suit the mode.
    pub skipped: u64,
    /// The replies of the model, in the cases that were evaluated.
    pub steps: u64,
    /// The tokens, in the cases that were evaluated.
    pub tokens: u64,
}

impl Summary {
    /// Adds a result.
    pub const fn add(&mut self, result: &CaseResult) {
        self.cases += 1;
        match result.status {
            CaseStatus::Passed => self.passed += 1,
            CaseStatus::Failed => self.failed += 1,
            CaseStatus::LeftRecord => self.left_record += 1,
            CaseStatus::Error => self.errors += 1,
            CaseStatus::Skipped => self.skipped += 1,
        }
        self.steps = self.steps.saturating_add(result.steps);
        self.tokens = self.tokens.saturating_add(result.tokens);
    }

    /// The part of the evaluated cases that passed; `None` without any.
    pub fn pass_rate(&self) -> Option<f64> {
        part(self.passed, self.passed + self.failed)
    }

    /// The part of the suitable cases that could be evaluated; `None` without any.
    pub fn coverage(&self) -> Option<f64> {
        part(self.passed + self.failed, self.cases - self.skipped)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of cases are far below 2^52")]
fn part(count: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| count as f64 / of as f64)
}

pub(crate) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0))
}

/// The summary in one line.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { cases, passed, failed, left_record, errors, skipped, steps, tokens } = self;
        write!(
            f,
            "{cases} cases: {passed} passed, {failed} failed, {left_record} left the record, {errors} errors, \
             {skipped} skipped; pass rate {}, coverage {}; {steps} steps, {tokens} tokens",
            percent(self.pass_rate()),
            percent(self.coverage()),
        )
    }
}

/// The results of an experiment, in the order of the cases. Displayed, it is a table for a terminal.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Mode and candidate.
    pub head: ReportHead,
    /// The results.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// A report of these results: where they were [given away](crate::Experiment::run_each).
    pub const fn new(head: ReportHead, results: Vec<CaseResult>) -> Self {
        Report { head, results }
    }

    /// Counts.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        self.results.iter().for_each(|result| summary.add(result));
        summary
    }

    /// The stored form: a line for the head, and one for each result.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_json_lines(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        self.head.write_line(writer)?;
        self.results.iter().try_for_each(|result| result.write_line(writer))
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`EvalError::Line`] for a line that cannot be read, or a newer format.
    pub fn from_json_lines(reader: impl BufRead) -> Result<Self, EvalError> {
        let fault = |line: usize, why: String| EvalError::Line { what: "report", line, why };
        let mut lines = reader.lines().enumerate();
        let first = lines.next().ok_or_else(|| fault(1, "expected the head of a report".to_owned()))?;
        let first = first.1.map_err(EvalError::io("reading of the report"))?;
        let head: ReportHead = serde_json::from_str(&first).map_err(|error| fault(1, error.to_string()))?;
        if head.stepfold_eval_report > REPORT_FORMAT {
            let why =
                format!("expected format {REPORT_FORMAT} or older, found {}", head.stepfold_eval_report);
            return Err(fault(1, why));
        }
        let results = lines.map(|(index, line)| {
            let line = line.map_err(EvalError::io("reading of the report"))?;
            serde_json::from_str(&line).map_err(|error| fault(index + 1, error.to_string()))
        });
        Ok(Report { head, results: results.collect::<Result<_, _>>()? })
    }

    /// Reads the results of an interrupted experiment: a report whose last line may be torn. The number is that of the bytes
    /// that are whole; the head may be missing if there are none.
    ///
    /// # Errors
    /// [`EvalError::Line`] for another line that cannot be read, or a newer format.
    pub fn from_interrupted(text: &[u8]) -> Result<(Option<Self>, usize), EvalError> {
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let report = (whole > 0).then(|| Report::from_json_lines(&text[..whole])).transpose()?;
        Ok((report, whole))
    }

    /// Markdown, for a comment to a pull request. Long lists are shortened to `rows`.
    pub fn to_markdown(&self, rows: usize) -> String {
        let mut text = format!(
            "### Evaluation of `{}` ({})\n\n{}\n",
            self.head.candidate,
            self.head.mode,
            self.summary()
        );
        let open: Vec<&CaseResult> =
            self.results.iter().filter(|result| result.status != CaseStatus::Passed).collect();
        if open.is_empty() {
            return text;
        }
        text.push_str("\n| case | status | why |\n|---|---|---|\n");
        for result in open.iter().take(rows) {
            let (case, why) = (code(&result.label()), code(&result.why()));
            let _ = writeln!(text, "| {case} | {} | {why} |", result.status.name());
        }
        if open.len() > rows {
            let _ = writeln!(text, "\nand {} more", open.len() - rows);
        }
        text
    }

    /// JUnit's XML: a test for each case. A case that left the record is skipped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn to_junit(&self) -> Result<String, EvalError> {
        let mut suite = TestSuite::new(self.head.candidate.as_str());
        for result in &self.results {
            let non_success = |kind| {
                let mut status = TestCaseStatus::non_success(kind);
                status.set_message(result.why());
                status
            };
            let status = match result.status {
                CaseStatus::Passed => TestCaseStatus::success(),
                CaseStatus::Failed => non_success(NonSuccessKind::Failure),
                CaseStatus::Error => non_success(NonSuccessKind::Error),
                CaseStatus::LeftRecord | CaseStatus::Skipped => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(format!("{}: {}", result.status.name(), result.why()));
                    status
                }
            };
            suite.add_test_case(TestCase::new(result.label(), status));
        }
        let mut report = JunitReport::new(format!("stepfold eval {}", self.head.mode));
        report.add_test_suite(suite);
        let text = report.to_string().map_err(std::io::Error::other);
        text.map_err(EvalError::io("writing of the report"))
    }
}

/// A text in a cell of a table in Markdown, literally: texts of models and names of users must not become links, mentions or
/// cells.
pub(crate) fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ").replace('|', "\\|");
    if text.trim().is_empty() {
        return String::new();
    }
    let runs = text.split(|letter| letter != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            self.results.iter().map(|result| result.label().chars().count()).max().unwrap_or(0).clamp(4, 60);
        writeln!(f, "{:<width$}  {:<15}  {:>5}  {:>8}  why", "case", "status", "steps", "tokens")?;
        for result in &self.results {
            let CaseResult { status, steps, tokens, .. } = result;
            let case = result.label();
            let row =
                format!("{case:<width$}  {:<15}  {steps:>5}  {tokens:>8}  {}", status.name(), result.why());
            writeln!(f, "{}", row.trim_end())?;
        }
        writeln!(f, "{}", self.summary())
    }
}
