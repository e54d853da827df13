//! The report of an experiment on its way into a file: results are kept as they come, so that an experiment continues after a
//! kill.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use stepfold::eval::{CaseResult, Experiment, Report};

use crate::error::UsageError;
use crate::show::{self, counted};

/// Results so far, in a file beside the report: `FILE.partial`. One process at a time has it.
pub(super) struct ReportFile {
    report: PathBuf,
    partial: PathBuf,
    file: File,
}

impl ReportFile {
    /// Begins the results of an experiment, or continues those of an interrupted one.
    pub(super) fn open(report: &Path, experiment: Experiment) -> anyhow::Result<(Self, Experiment)> {
        let partial = beside(report, "partial");
        let words = || format!("results {} could not be opened", partial.display());
        let mut file =
            File::options().create(true).read(true).append(true).open(&partial).with_context(words)?;
        if file.try_lock().is_err() {
            let words = format!("report {} is being written by another process", report.display());
            return Err(UsageError(words).into());
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).with_context(words)?;
        let (interrupted, whole) = Report::from_interrupted(&text)?;
        // A line that was torn by the kill is tried again.
        file.set_len(u64::try_from(whole).unwrap_or(u64::MAX)).with_context(words)?;
        file.seek(SeekFrom::End(0)).with_context(words)?;
        let experiment = match interrupted {
            None => {
                experiment.head().write_line(&mut file)?;
                experiment
            }
            Some(interrupted) => continued(experiment, interrupted, &partial)?,
        };
        Ok((ReportFile { report: report.to_owned(), partial, file }, experiment))
    }

    /// Keeps a result.
    pub(super) fn keep(&mut self, result: &CaseResult) -> Result<(), stepfold::eval::EvalError> {
        let mut line = Vec::new();
        result.write_line(&mut line)?;
        // One write for each line, without a buffer: a kill tears at most one.
        let written = self.file.write_all(&line);
        written.map_err(|error| stepfold::eval::EvalError::Io {
            what: "writing of the results",
            source: std::sync::Arc::new(error),
        })
    }

    /// Writes the report, which is whole or not there.
    pub(super) fn finish(self, report: &Report) -> anyhow::Result<()> {
        let words = || format!("report {} could not be written", self.report.display());
        let mut text = Vec::new();
        report.write_json_lines(&mut text)?;
        let whole = beside(&self.report, "whole");
        fs::write(&whole, text).with_context(words)?;
        fs::rename(&whole, &self.report).with_context(words)?;
        fs::remove_file(&self.partial).with_context(words)
    }
}

fn continued(experiment: Experiment, interrupted: Report, partial: &Path) -> anyhow::Result<Experiment> {
    let count = u64::try_from(interrupted.results.len()).unwrap_or(u64::MAX);
    let experiment = experiment.continuing(interrupted).map_err(|error| {
        UsageError(format!("{error}; delete {} to begin again, or name another report", partial.display()))
    })?;
    if count > 0 {
        show::note(format!("continues after {}", counted(count, "result")));
    }
    Ok(experiment)
}

fn beside(report: &Path, ending: &str) -> PathBuf {
    let mut name = report.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}
