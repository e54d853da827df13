//! The error of the crate.

use std::sync::Arc;

use stepfold_runner::RunnerError;
use thiserror::Error;

/// An error of data sets, reports and experiments. What fails in one case is the [status](crate::CaseStatus) of the case.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A line of a data set or a report could not be read.
    #[error("invalid {what} at line {line}: {why}")]
    Line {
        /// The kind of the file.
        what: &'static str,
        /// The line, from 1.
        line: usize,
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
    /// Another process writes the report.
    #[error("report {report} is being written by another process")]
    Busy {
        /// The report.
        report: String,
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

impl EvalError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| EvalError::Io { what, source: Arc::new(source) }
    }
}
