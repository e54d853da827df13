//! The error of the crate.

use std::sync::Arc;
use std::time::Duration;

use stepfold_runner::RunnerError;
use thiserror::Error;

/// An error of data sets, reports and experiments. What fails in one case is the [status](crate::CaseStatus) of the case.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A line of a data set or a report could not be read.
    #[error("invalid {what} at line {line}{}: {why}", column.map(|column| format!(", column {column}")).unwrap_or_default())]
    Line {
        /// The kind of the file.
        what: &'static str,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, where it is known.
        column: Option<usize>,
        /// The reason.
        why: String,
    },
    /// A case is invalid.
    #[error("invalid case `{name}`: {why}")]
    Case {
        /// The case.
        name: String,
        /// The reason.
        why: String,
    },
    /// A recorded turn cannot be a case.
    #[error("turn `{name}` cannot be a case: {why}")]
    Unsuited {
        /// The name that the case would have.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A part of a recorded turn was erased: it cannot be made again.
    #[error("turn `{name}` cannot be a case: version {version} of its conversation was erased")]
    Erased {
        /// The name that the case would have.
        name: String,
        /// The erased version.
        version: u64,
    },
    /// A session has no turn at the version.
    #[error("session `{session}` has no turn{}", version.map(|at| format!(" at version {at}")).unwrap_or_default())]
    NoTurn {
        /// The session.
        session: String,
        /// The version, if one was named.
        version: Option<u64>,
    },
    /// Two cases of a data set have one name: results are paired by name.
    #[error("duplicate case `{name}`; names must be unique in a data set")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A report has two results of one case.
    #[error("duplicate result of case `{case}`; a report has one for each case and repeat")]
    DuplicateResult {
        /// The case.
        case: String,
    },
    /// A rule of redaction is invalid, or cannot be applied.
    #[error("invalid redaction `{rule}`: {why}")]
    Redaction {
        /// The rule, or the case that it cannot be applied to.
        rule: String,
        /// The reason.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{what} failed: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: Arc<std::io::Error>,
    },
    /// A stored session could not be read.
    #[error("session could not be read: {0}")]
    Session(Arc<RunnerError>),
    /// An agent cannot be a judge.
    #[error("agent cannot be a judge: {why}")]
    Judge {
        /// The reason.
        why: String,
    },
    /// An interrupted experiment is another one.
    #[error("experiment cannot be continued: its results are of another one: {}", differences.join(", "))]
    Continue {
        /// The differences, in words.
        differences: Vec<String>,
    },
    /// A tool is allowed that the candidate does not have.
    #[error("unknown tool `{tool}` is allowed; available: {}", available.join(", "))]
    UnknownTool {
        /// The tool.
        tool: String,
        /// The tools of the candidate.
        available: Vec<String>,
    },
    /// A tool is allowed where only a pure one may run.
    #[error(
        "tool `{tool}` cannot be allowed: only a pure tool may run beside a record; mode live runs others"
    )]
    ImpureTool {
        /// The tool.
        tool: String,
    },
    /// Another process writes the report.
    #[error("report {report} is being written by another process")]
    Busy {
        /// The report.
        report: String,
    },
    /// Another process changes the data set.
    #[error("data set {data_set} is being changed by another process; try again after its end")]
    BusyDataSet {
        /// The data set.
        data_set: String,
    },
    /// Another process has locked a file for longer than this one waits.
    #[error(
        "file {file} could not be locked within {timeout:?}: another process holds it, which may be stopped; let it end, and try \
         again"
    )]
    Locked {
        /// The file.
        file: String,
        /// The time that this process has waited.
        timeout: Duration,
    },
    /// A data set would become too large.
    #[error("the data set would have {bytes} bytes, of at most {most}; add to another one")]
    TooLarge {
        /// The bytes that it would have.
        bytes: u64,
        /// The most bytes.
        most: u64,
    },
    /// Another process has replaced the results of the experiment so far, as an erasure does.
    #[error(
        "results of report {report} were changed by another process, an erasure for example; run the experiment again: it \
         continues with the results that are left"
    )]
    Replaced {
        /// The report.
        report: String,
    },
    /// The file of a report is another one, which the report would replace.
    #[error("file {file} is not a report: it would be replaced; name another file, or delete it")]
    NotAReport {
        /// The file.
        file: String,
    },
    /// The receiver of the results has ended the experiment.
    #[error("experiment was stopped")]
    Stopped,
    /// Two reports cannot be compared.
    #[error("reports cannot be compared: {why}")]
    Compare {
        /// The reason.
        why: String,
    },
}

impl From<RunnerError> for EvalError {
    fn from(error: RunnerError) -> Self {
        EvalError::Session(Arc::new(error))
    }
}

impl From<std::io::Error> for EvalError {
    fn from(error: std::io::Error) -> Self {
        EvalError::io("access to a file")(error)
    }
}

impl EvalError {
    /// A fault in the JSON of a line.
    pub(crate) fn json(what: &'static str, line: usize, error: &serde_json::Error) -> Self {
        let text = error.to_string();
        // The position of the file stands in front, and not that in the line behind as well.
        let position = format!(" at line {} column {}", error.line(), error.column());
        let why = text.strip_suffix(&position).unwrap_or(&text).to_owned();
        EvalError::Line { what, line, column: Some(error.column()).filter(|column| *column > 0), why }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| EvalError::Io { what, source: Arc::new(source) }
    }
}
