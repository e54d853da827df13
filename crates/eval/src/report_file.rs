//! The report of an experiment on its way into a file: results are kept as they come, so that an experiment continues after a
//! kill.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::EvalError;
use crate::experiment::Experiment;
use crate::locked::{FileLock, is_at, lock, open_locked};
use crate::report::{CaseResult, ReportHead, Summary};
use crate::spending::NoteLine;
use crate::stored_report::{KnownResults, SharedSource};

/// The report of an experiment on its way into a file. Results so far are in a file of their own, which one process at a time
/// has: after a kill the experiment continues with these. In memory is the place of each result, eight bytes.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Agent, test_kit::Script};
/// use stepfold_eval::{Case, DataSet, Expectation, Experiment, ReportFile, StoredReport};
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
/// experiment.run_each_known(DataSet::of(cases), |result, is_known| file.keep(&result, is_known)).await?;
/// file.finish()?;
/// assert_eq!(StoredReport::open(&report)?.summary().passed, 2);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ReportFile {
    report: PathBuf,
    partial: PathBuf,
    file: Arc<Mutex<File>>,
    known: Option<Arc<KnownResults>>,
    head: Option<ReportHead>,
    /// The bytes at which the results of the report begin, in the order of the cases.
    places: Vec<u64>,
}

impl ReportFile {
    /// Opens the results so far, which may be missing. A line that a kill has torn is removed.
    ///
    /// Files that are there already must be reports, or the beginnings of reports: no other file is ever replaced.
    ///
    /// # Errors
    /// [`EvalError::NotAReport`] for another file in their place, [`EvalError::Busy`] while another process has them, [`EvalError::Line`] for a line that cannot be read, and
    /// [`EvalError::Io`].
    pub fn open(report: &Path, partial: &Path) -> Result<Self, EvalError> {
        ReportFile::check(report, partial)?;
        let opened = open_locked(File::options().create(true).read(true).append(true), partial);
        let opened = opened.map_err(EvalError::io("opening of the results"))?;
        let file = opened.ok_or_else(|| EvalError::Busy { report: report.display().to_string() })?;
        let file = Arc::new(Mutex::new(file));
        let source: SharedSource = Arc::<Mutex<File>>::clone(&file);
        let (known, length) = KnownResults::read(source)?;
        locked(&file).set_len(length).map_err(EvalError::io("writing of the results"))?;
        let (report, partial) = (report.to_owned(), partial.to_owned());
        let (known, head, places) = (known.map(Arc::new), None, Vec::new());
        Ok(ReportFile { report, partial, file, known, head, places })
    }

    /// Checks the files that are there already, as [`open`](ReportFile::open) does: before anything is spent.
    ///
    /// # Errors
    /// [`EvalError::NotAReport`] and [`EvalError::Io`].
    pub fn check(report: &Path, partial: &Path) -> Result<(), EvalError> {
        [report, partial, &whole_of(partial)].into_iter().try_for_each(check_replaceable)
    }

    /// The counts of the results so far, without errors: those cases are tried again.
    pub fn kept(&self) -> Summary {
        self.known.as_ref().map(|known| known.counts()).unwrap_or_default()
    }

    /// Begins the experiment, or has it [continue](Experiment::continuing) with the results so far, and with what was
    /// [spent](crate::Spending) for them. To be called after the other options.
    ///
    /// # Errors
    /// [`EvalError::Continue`] when these are of another experiment, and [`EvalError::Io`].
    pub fn begin(&mut self, experiment: Experiment) -> Result<Experiment, EvalError> {
        let head = self.head.insert(experiment.head()).clone();
        let experiment = match &self.known {
            Some(known) => experiment.knowing(Arc::clone(known))?,
            None => self.write_line(|line| head.write_line(line)).map(|_| experiment)?,
        };
        let spent = self.known.as_ref().and_then(|known| known.spent());
        Ok(experiment.spending_noted_in(Arc::clone(&self.file), spent))
    }

    /// The id of the experiment, which it keeps over kills: that among the results so far, or a new one, which is noted there. To be
    /// called after [`begin`](ReportFile::begin).
    ///
    /// # Errors
    /// [`EvalError::Io`].
    pub fn id(&self, new: impl FnOnce() -> String) -> Result<String, EvalError> {
        if let Some(id) = self.known.as_ref().and_then(|known| known.id()) {
            return Ok(id.to_owned());
        }
        let id = new();
        self.write_line(|line| {
            let note = NoteLine::Id(id.clone()).to_text().map_err(std::io::Error::from)?;
            line.extend(note.into_bytes());
            Ok(())
        })?;
        Ok(id)
    }

    /// Keeps a result as the next one of the report. One that was [known](Experiment::run_each_known) is kept already.
    ///
    /// # Errors
    /// [`EvalError::Replaced`] when another process has replaced the results so far, and [`EvalError::Io`].
    pub fn keep(&mut self, result: &CaseResult, is_known: bool) -> Result<(), EvalError> {
        let known = self.known.as_ref().filter(|_| is_known);
        let known = known.and_then(|known| known.place(&result.case, result.repeat));
        let place = if let Some(place) = known {
            place
        } else {
            let place = self.write_line(|line| result.write_line(line))?;
            self.check_own()?;
            place
        };
        self.places.push(place);
        Ok(())
    }

    /// Writes a line, and returns the byte at which it begins.
    fn write_line(
        &self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), EvalError>,
    ) -> Result<u64, EvalError> {
        let mut line = Vec::new();
        write(&mut line)?;
        let mut file = locked(&self.file);
        // NOTE: asked, since notes of what is spent stand between the results.
        let place = file.metadata().map(|found| found.len());
        // One write for each line, without a buffer: a kill tears at most one.
        place
            .and_then(|place| file.write_all(&line).map(|()| place))
            .map_err(EvalError::io("writing of the results"))
    }

    /// Checks that the results so far are those that this process has written.
    fn check_own(&self) -> Result<(), EvalError> {
        match is_at(&locked(&self.file), &self.partial).map_err(EvalError::io("reading of the results"))? {
            true => Ok(()),
            false => Err(EvalError::Replaced { report: self.report.display().to_string() }),
        }
    }

    /// Writes the report, and removes the results so far.
    ///
    /// # Errors
    /// As [`write`](ReportFile::write).
    pub fn finish(self) -> Result<(), EvalError> {
        self.write()?;
        // NOTE: Removed last: after a kill before it, all results are known, and the report is written again.
        remove(&self.partial).map_err(EvalError::io("writing of the report"))
    }

    /// Writes the report with the results that were [kept](ReportFile::keep), in their order. It is whole or not there. The results
    /// so far stay.
    ///
    /// # Errors
    /// [`EvalError::Replaced`] when another process has replaced the results so far: there is no report then.
    /// [`EvalError::Io`].
    pub fn write(&self) -> Result<(), EvalError> {
        self.check_own()?;
        let fault = || EvalError::io("writing of the report");
        replace(&whole_of(&self.partial), &self.report, |whole| self.copy(whole)).map_err(fault())?;
        // NOTE: An erasure replaces the results so far before it looks at reports: either it has seen this one, or it is seen here.
        self.check_own().or_else(|replaced| remove(&self.report).map_err(fault()).and(Err(replaced)))
    }

    /// Copies head and results.
    fn copy(&self, whole: &File) -> std::io::Result<()> {
        let mut whole = BufWriter::new(whole);
        if let Some(head) = &self.head {
            head.write_line(&mut whole).map_err(std::io::Error::other)?;
        }
        let file = &mut *locked(&self.file);
        let mut at = file.seek(SeekFrom::Start(0))?;
        let (mut lines, mut line) = (BufReader::new(file), Vec::new());
        for place in &self.places {
            // NOTE: relative to the last line, so that the buffer stays: most results stand in order.
            lines.seek_relative(place.cast_signed().wrapping_sub(at.cast_signed()))?;
            line.clear();
            at = place + lines.read_until(b'\n', &mut line)? as u64;
            whole.write_all(&line)?;
        }
        whole.flush()
    }
}

fn locked(file: &Mutex<File>) -> MutexGuard<'_, File> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report before it is whole.
fn whole_of(partial: &Path) -> PathBuf {
    let mut whole = partial.as_os_str().to_owned();
    whole.push(".whole");
    whole.into()
}

/// Refuses a file that is there and does not begin as a report does. A kill may have torn the beginning.
fn check_replaceable(path: &Path) -> Result<(), EvalError> {
    const BEGINNING: &[u8] = b"{\"stepfold_eval_report\":";
    let fault = EvalError::io("reading of the report");
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found,
    };
    let mut text = Vec::new();
    // NOTE: Only a regular file is opened: the opening of a pipe waits for its writer.
    let is_report = match found.map(|found| found.is_file()) {
        Ok(true) => File::open(path)
            .and_then(|file| file.take(BEGINNING.len() as u64).read_to_end(&mut text))
            .map(|_| BEGINNING.starts_with(&text)),
        found => found,
    };
    match is_report {
        Ok(true) => Ok(()),
        Ok(false) => Err(EvalError::NotAReport { file: path.display().to_string() }),
        Err(error) => Err(fault(error)),
    }
}

/// Writes a file, which is whole or not there.
fn replace(
    whole: &Path,
    path: &Path,
    write: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    remove(whole)?;
    // NOTE: A new file: a link that stands in its place is not followed. It is locked: no kill has left it.
    let file = File::options().write(true).create_new(true).open(whole)?;
    // Another process that looks whether a kill has left it has the lock for a moment.
    lock(&file, whole, FileLock::TIMEOUT).map_err(std::io::Error::other)?;
    write(&file)?;
    fs::rename(whole, path)
}

/// Removes a file, which may be missing.
fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
