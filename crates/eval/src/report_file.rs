//! The report of an experiment on its way into a file: results are kept as they come, so that an experiment continues after a
//! kill.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::error::EvalError;
use crate::experiment::Experiment;
use crate::report::{CaseResult, CaseStatus, Report, Summary};

/// The report of an experiment on its way into a file. Results so far are in a file of their own, which one process at a time
/// has: after a kill the experiment continues with these.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Agent, test_kit::Script};
/// use stepfold_eval::{Case, DataSet, Expectation, Experiment, Report, ReportFile};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # let folder = std::env::temp_dir().join(format!("stepfold-report-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let agent = Agent::builder(Script::parse("assistant: hello")?.whole()).build()?;
/// let cases = ["a", "b"].map(|name| Case::new(name, "hello").expect(Expectation::Answered));
/// let report = folder.join("base.report");
///
/// let mut file = ReportFile::open(&report, &folder.join("base.report.partial"))?;
/// let experiment = file.begin(Experiment::new(&agent))?;
/// let mut results = Vec::new();
/// experiment
///     .run_each_known(DataSet::of(cases), |result, is_known| {
///         if !is_known {
///             file.keep(&result)?;
///         }
///         results.push(result);
///         Ok(())
///     })
///     .await?;
/// file.finish(&Report::new(experiment.head(), results))?;
/// assert_eq!(Report::from_json_lines(std::fs::read(&report)?.as_slice())?.summary().passed, 2);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ReportFile {
    report: PathBuf,
    partial: PathBuf,
    file: File,
    kept: Option<Report>,
}

impl ReportFile {
    /// Opens the results so far, which may be missing. A line that a kill has torn is removed.
    ///
    /// # Errors
    /// [`EvalError::Busy`] while another process has them, [`EvalError::Line`] for a line that cannot be read, and
    /// [`EvalError::Io`].
    pub fn open(report: &Path, partial: &Path) -> Result<Self, EvalError> {
        let opened = File::options().create(true).read(true).append(true).open(partial);
        let mut file = opened.map_err(EvalError::io("opening of the results"))?;
        if file.try_lock().is_err() {
            return Err(EvalError::Busy { report: report.display().to_string() });
        }
        let read = |file: &mut File| {
            let mut text = Vec::new();
            file.read_to_end(&mut text).map(|_| text)
        };
        let text = read(&mut file).map_err(EvalError::io("reading of the results"))?;
        let (kept, whole) = Report::from_interrupted(&text)?;
        let cut = file.set_len(u64::try_from(whole).unwrap_or(u64::MAX));
        let cut = cut.and_then(|()| file.seek(SeekFrom::End(0)));
        cut.map_err(EvalError::io("writing of the results"))?;
        Ok(ReportFile { report: report.to_owned(), partial: partial.to_owned(), file, kept })
    }

    /// The counts of the results so far, without errors: those cases are tried again.
    pub fn kept(&self) -> Summary {
        let results = self.kept.iter().flat_map(|report| &report.results);
        let mut summary = Summary::default();
        results.filter(|result| result.status != CaseStatus::Error).for_each(|result| summary.add(result));
        summary
    }

    /// Begins the experiment, or has it [continue](Experiment::continuing) with the results so far.
    ///
    /// # Errors
    /// [`EvalError::Continue`] when these are of another experiment, and [`EvalError::Io`].
    pub fn begin(&mut self, experiment: Experiment) -> Result<Experiment, EvalError> {
        match self.kept.take() {
            Some(kept) => experiment.continuing(kept),
            None => experiment.head().write_line(&mut self.file).map(|()| experiment),
        }
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// [`EvalError::Io`].
    pub fn keep(&mut self, result: &CaseResult) -> Result<(), EvalError> {
        let mut line = Vec::new();
        result.write_line(&mut line)?;
        // One write for each line, without a buffer: a kill tears at most one.
        self.file.write_all(&line).map_err(EvalError::io("writing of the results"))
    }

    /// Writes the report, and removes the results so far.
    ///
    /// # Errors
    /// [`EvalError::Io`].
    pub fn finish(self, report: &Report) -> Result<(), EvalError> {
        self.write(report)?;
        // NOTE: Removed last: after a kill before it, all results are known, and the report is written again.
        remove(&self.partial).map_err(EvalError::io("writing of the report"))
    }

    /// Writes the report, which is whole or not there. The results so far stay.
    ///
    /// # Errors
    /// [`EvalError::Io`].
    pub fn write(&self, report: &Report) -> Result<(), EvalError> {
        let mut text = Vec::new();
        report.write_json_lines(&mut text)?;
        let mut whole = self.partial.clone().into_os_string();
        whole.push(".whole");
        replace(Path::new(&whole), &self.report, &text).map_err(EvalError::io("writing of the report"))
    }
}

/// Writes a file, which is whole or not there.
fn replace(whole: &Path, path: &Path, text: &[u8]) -> std::io::Result<()> {
    remove(whole)?;
    // NOTE: A new file: a link that stands in its place is not followed. It is locked: no kill has left it.
    let mut file = File::options().write(true).create_new(true).open(whole)?;
    file.lock()?;
    file.write_all(text)?;
    fs::rename(whole, path)
}

/// Removes a file, which may be missing.
fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
