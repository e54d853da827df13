//! Reports: the results of an experiment, as data, as JSON lines, and as text for people and for other programs.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::Fingerprint;

use crate::case::Case;
use crate::data_set::{hash, read_line, without_mark};
use crate::error::EvalError;
use crate::expectation::Score;
use crate::mode::Mode;
use crate::report_text::{
    ReportResults, counted, percent, printable, write_json_lines, write_junit, write_markdown, write_table,
};
use crate::spending::NoteLine;
use crate::stored_report::DistinctResults;
use crate::timelines::Timelines;
use crate::trial::Trial;

/// The version of the stored form of a report.
pub const REPORT_FORMAT: u64 = 1;

/// Mode and candidate of an experiment: the first line of a stored report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReportHead {
    /// The version of the format.
    pub stepfold_eval_report: u64,
    /// The mode.
    pub mode: Mode,
    /// The name of the candidate.
    pub candidate: String,
    /// The fingerprint of the candidate.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, serde_json::Value>"))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
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

    /// The case in one line, with the number of the repeat after the first one.
    pub(crate) fn label(&self) -> String {
        let case = printable(&self.case);
        match self.repeat {
            0 => case,
            repeat => format!("{case} #{}", repeat + 1),
        }
    }

    /// Sets the numbers of a turn.
    pub(crate) const fn set_trial(&mut self, trial: &Trial) {
        (self.steps, self.tokens) = (trial.steps, trial.usage.total_tokens());
    }

    /// Sets the status by the scores, or by the error of an evaluator that could not evaluate: the scores before it stay.
    pub(crate) fn set_evaluated(&mut self, error: Option<String>) {
        self.status = match self.scores.iter().all(|score| score.passed) {
            _ if error.is_some() => CaseStatus::Error,
            _ if self.scores.is_empty() => CaseStatus::Skipped,
            true => CaseStatus::Passed,
            false => CaseStatus::Failed,
        };
        self.reason = error;
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
        printable(&reasons.join("; ").replace('\n', " "))
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
    /// The trials: each case, as often as it was tried. The counts after it are of trials. 0 in a stored summary that
    /// is older than the field.
    #[serde(default)]
    pub trials: u64,
    /// The trials that passed.
    pub passed: u64,
    /// The trials that failed.
    pub failed: u64,
    /// The trials that left the record.
    pub left_record: u64,
    /// The trials that could not be made.
    pub errors: u64,
    /// The trials of cases that do not suit the mode.
    pub skipped: u64,
    /// The replies of the model, in the trials that were evaluated.
    pub steps: u64,
    /// The tokens, in the trials that were evaluated.
    pub tokens: u64,
}

impl Summary {
    /// Adds a result.
    pub const fn add(&mut self, result: &CaseResult) {
        self.trials += 1;
        if result.repeat == 0 {
            self.cases += 1;
        }
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

    /// The part of the evaluated trials that passed; `None` without any.
    pub fn pass_rate(&self) -> Option<f64> {
        part(self.passed, self.evaluated())
    }

    /// The same, where a trial with an error has not passed: what could not be tried, beyond a limit of requests for example, meets no
    /// threshold. `None` without any.
    pub fn tried_pass_rate(&self) -> Option<f64> {
        part(self.passed, self.evaluated().saturating_add(self.errors))
    }

    /// The part of the suitable trials that passed, where one that could not be evaluated has not: a threshold of it holds whatever the
    /// others would have been. `None` without any.
    pub fn sure_pass_rate(&self) -> Option<f64> {
        part(self.passed, self.suitable())
    }

    /// The part of the suitable trials that could be evaluated; `None` without any.
    pub fn coverage(&self) -> Option<f64> {
        part(self.evaluated(), self.suitable())
    }

    const fn evaluated(&self) -> u64 {
        self.passed.saturating_add(self.failed)
    }

    /// NOTE: Not from the number of trials, which summaries of before that field do not have.
    const fn suitable(&self) -> u64 {
        self.evaluated().saturating_add(self.left_record).saturating_add(self.errors)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of cases are far below 2^52")]
fn part(count: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| count as f64 / of as f64)
}

/// The summary in one line.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { cases, trials, passed, failed, left_record, errors, skipped, steps, tokens } = self;
        f.write_str(&counted(*cases, "case", "cases"))?;
        // A summary of before that field has 0.
        if trials != cases && *trials > 0 {
            write!(f, ", {}", counted(*trials, "trial", "trials"))?;
        }
        write!(
            f,
            ": {passed} passed, {failed} failed, {left_record} left the record, {}, {skipped} skipped; \
             pass rate {}, coverage {}; {}, {}",
            counted(*errors, "error", "errors"),
            percent(self.pass_rate()),
            percent(self.coverage()),
            counted(*steps, "step", "steps"),
            counted(*tokens, "token", "tokens"),
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
        write_json_lines(self, writer)
    }

    /// Reads the stored form into memory; a [`StoredReport`](crate::StoredReport) reads it result by result.
    ///
    /// # Errors
    /// [`EvalError::Line`] for a line that cannot be read, or a newer format.
    pub fn from_json_lines(mut reader: impl BufRead) -> Result<Self, EvalError> {
        let (mut head, mut results, mut distinct) = (None, Vec::new(), DistinctResults::default());
        read_lines(&mut reader, false, |_, line| {
            match line {
                ReportLine::Head(found) => head = Some(*found),
                ReportLine::Result(result) => {
                    distinct.check(&result)?;
                    results.push(*result);
                }
                ReportLine::Note(_) => {}
            }
            Ok(())
        })?;
        Ok(Report { head: head.ok_or_else(missing_head)?, results })
    }

    /// Markdown, for a comment to a pull request. Long lists are shortened to `rows`.
    pub fn to_markdown(&self, rows: usize) -> String {
        text_of(|text| write_markdown(self, text, rows)).unwrap_or_default()
    }

    /// JUnit's XML: a test for each case. A case that left the record is skipped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn to_junit(&self) -> Result<String, EvalError> {
        text_of(|text| write_junit(self, text))
    }
}

/// The bytes that a function writes into memory.
fn text_of(write: impl FnOnce(&mut Vec<u8>) -> Result<(), EvalError>) -> Result<String, EvalError> {
    let mut text = Vec::new();
    write(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl ReportResults for Report {
    fn head(&self) -> &ReportHead {
        &self.head
    }

    fn summary(&self) -> Summary {
        Report::summary(self)
    }

    fn each(&self, visit: &mut dyn FnMut(&CaseResult) -> Result<(), EvalError>) -> Result<(), EvalError> {
        self.results.iter().try_for_each(visit)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text_of(|text| write_table(self, text)).map_err(|_| fmt::Error)?)
    }
}

/// A line of a stored report.
pub(crate) enum ReportLine {
    Head(Box<ReportHead>),
    Result(Box<CaseResult>),
    /// A note among the results of an experiment under way.
    Note(NoteLine),
}

/// The hash of a case with the number of its repeat.
pub(crate) fn result_key(case: &str, repeat: u64) -> u64 {
    hash(&format!("{repeat} {case}"))
}

/// Reads the lines of a stored report, each with the byte at which it begins. Returns the number of bytes that were read. A
/// last line without a line break is left out if it may be torn.
///
/// # Errors
/// [`EvalError::Line`] for a line that cannot be read, or a newer format, and those of `visit`.
pub(crate) fn read_lines(
    reader: &mut impl BufRead,
    may_be_torn: bool,
    mut visit: impl FnMut(u64, ReportLine) -> Result<(), EvalError>,
) -> Result<u64, EvalError> {
    let (mut line, mut number, mut place) = (Vec::new(), 0, 0);
    loop {
        number += 1;
        let bytes = read_line(reader, "report", number, &mut line)?;
        if bytes == 0 || may_be_torn && line.last() != Some(&b'\n') {
            return Ok(place);
        }
        visit(place, parsed(line.trim_ascii_end(), number)?)?;
        place += bytes;
    }
}

/// The content of a line, of which the first one is the head.
fn parsed(line: &[u8], number: usize) -> Result<ReportLine, EvalError> {
    let fault = |why: String| EvalError::Line { what: "report", line: number, column: None, why };
    let json = |error| EvalError::json("report", number, &error);
    let text = std::str::from_utf8(line).map_err(|_| fault("expected text in UTF-8".to_owned()))?;
    // NOTE: a result is no note from its first field on.
    if number > 1
        && let Ok(note) = serde_json::from_str(text)
    {
        return Ok(ReportLine::Note(note));
    }
    if number > 1 {
        return serde_json::from_str(text).map(ReportLine::Result).map_err(json);
    }
    let text = without_mark(text);
    let is_other = |fields: serde_json::Map<_, _>| !fields.contains_key("stepfold_eval_report");
    if serde_json::from_str(text).is_ok_and(is_other) {
        return Err(fault("expected the head of a report, as `eval run --report` writes it".to_owned()));
    }
    let head: Box<ReportHead> = serde_json::from_str(text).map_err(json)?;
    if head.stepfold_eval_report > REPORT_FORMAT {
        let found = head.stepfold_eval_report;
        return Err(fault(format!("expected format {REPORT_FORMAT} or older, found {found}")));
    }
    Ok(ReportLine::Head(head))
}

/// The error of a report without a line.
pub(crate) fn missing_head() -> EvalError {
    let why = "expected the head of a report".to_owned();
    EvalError::Line { what: "report", line: 1, column: None, why }
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};
    use serde_json::Value;

    use super::{CaseResult, ReportHead};

    /// A line of a report: the first is the head, and the others are results.
    #[derive(JsonSchema)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "it is there for its schema")]
    enum ReportLine {
        Head(ReportHead),
        Result(CaseResult),
    }

    /// Removes the links of rustdoc from descriptions.
    fn without_links(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    match field {
                        Value::String(text) if name == "description" => {
                            let link =
                                regex_lite::Regex::new(r"\[([^\]]*)\](\([^)]*\))?").expect("an expression");
                            *text = link.replace_all(text, "$1").into_owned();
                        }
                        field => without_links(field),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(without_links),
            _ => {}
        }
    }

    #[test]
    fn the_schema_of_reports_is_current() {
        let mut schema = serde_json::to_value(schema_for!(ReportLine)).expect("a schema");
        without_links(&mut schema);
        // The order of keys depends on a feature of `serde_json` that others may turn on.
        schema.sort_all_objects();
        expect_test::expect_file!["../docs/report.schema.json"].assert_eq(&format!("{schema:#}\n"));
    }
}
