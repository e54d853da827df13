//! Reports that are read result by result, and results of an interrupted experiment by their cases.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::EvalError;
use crate::locked::check_regular;
use crate::report::{
    CaseResult, CaseStatus, Report, ReportHead, ReportLine, Summary, missing_head, read_lines, result_key,
};
use crate::report_text::{ReportResults, write_json_lines, write_junit, write_markdown, write_table};
use crate::spending::{NoteLine, SpentNote};

/// A stored report, read result by result whenever its results are needed: memory does not grow with them.
///
/// It has the results that were there when it was opened.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Agent, test_kit::Script};
/// use stepfold_eval::{Case, DataSet, Expectation, Experiment, StoredReport};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let agent = Agent::builder(Script::parse("assistant: hello")?.whole()).build()?;
/// let cases = ["a", "b"].map(|name| Case::new(name, "hello").expect(Expectation::Answered));
/// let experiment = Experiment::new(&agent);
/// let mut file = tempfile::tempfile()?;
/// experiment.head().write_line(&mut file)?;
/// experiment.run_each(DataSet::of(cases), |result| result.write_line(&mut file)).await?;
///
/// let report = StoredReport::new(file)?;
/// assert_eq!(report.summary().passed, 2);
/// let mut table = Vec::new();
/// report.write_table(&mut table)?;
/// assert_eq!(String::from_utf8(table)?.lines().count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct StoredReport {
    head: ReportHead,
    summary: Summary,
    /// The bytes of it. What is written behind them later is not read.
    length: u64,
    source: SharedSource,
}

/// The results of a report so far, by their keys.
#[derive(Default)]
pub(crate) struct DistinctResults(HashSet<u64>);

impl DistinctResults {
    /// Refuses a second result of a case: counts, pairs and verdicts would depend on which of them is taken.
    pub(crate) fn check(&mut self, result: &CaseResult) -> Result<(), EvalError> {
        match self.0.insert(result_key(&result.case, result.repeat)) {
            true => Ok(()),
            false => Err(EvalError::DuplicateResult { case: result.case.clone() }),
        }
    }
}

/// A source that its readers and its writer move through one after the other.
pub(crate) type SharedSource = Arc<Mutex<dyn Source>>;

pub(crate) trait Source: Read + Seek + Send {}

impl<S: Read + Seek + Send> Source for S {}

impl fmt::Debug for StoredReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredReport").field("summary", &self.summary).finish_non_exhaustive()
    }
}

impl StoredReport {
    /// Opens the report in a file, and checks each line.
    ///
    /// # Errors
    /// [`EvalError::Io`], [`EvalError::Line`] for a line that cannot be read, or a newer format, and [`EvalError::DuplicateResult`].
    pub fn open(path: &Path) -> Result<Self, EvalError> {
        let opened = check_regular(path).and_then(|()| File::open(path));
        StoredReport::new(opened.map_err(EvalError::io("reading of the report"))?)
    }

    /// The same with another source, which is read from its beginning.
    ///
    /// # Errors
    /// As [`open`](StoredReport::open).
    pub fn new(source: impl Read + Seek + Send + 'static) -> Result<Self, EvalError> {
        StoredReport::read(Arc::new(Mutex::new(source)), false, |_, _| ())?.0.ok_or_else(missing_head)
    }

    /// The results so far of an experiment, whose last line a kill may have torn; `None` if there is no whole line.
    ///
    /// # Errors
    /// As [`open`](StoredReport::open).
    pub fn interrupted(source: impl Read + Seek + Send + 'static) -> Result<Option<Self>, EvalError> {
        Ok(StoredReport::read(Arc::new(Mutex::new(source)), true, |_, _| ())?.0)
    }

    /// Reads it once, with what stands in each line, and returns the number of its bytes too.
    fn read(
        source: SharedSource,
        may_be_torn: bool,
        mut visit: impl FnMut(u64, &ReportLine),
    ) -> Result<(Option<Self>, u64), EvalError> {
        let (mut head, mut summary) = (None, Summary::default());
        let length = {
            let source = &mut *source.lock().unwrap_or_else(PoisonError::into_inner);
            source.rewind().map_err(EvalError::io("reading of the report"))?;
            let mut results = DistinctResults::default();
            read_lines(&mut BufReader::new(source), may_be_torn, |place, line| {
                visit(place, &line);
                // Of an experiment under way the last result of a case counts.
                if let ReportLine::Result(result) = &line
                    && !may_be_torn
                {
                    results.check(result)?;
                }
                match line {
                    ReportLine::Head(found) => head = Some(*found),
                    ReportLine::Result(result) => summary.add(&result),
                    ReportLine::Note(_) => {}
                }
                Ok(())
            })?
        };
        Ok((head.map(|head| StoredReport { head, summary, length, source }), length))
    }

    /// Mode and candidate.
    pub const fn head(&self) -> &ReportHead {
        &self.head
    }

    /// Counts.
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    /// Calls `visit` with each result, in the order of the cases.
    ///
    /// # Errors
    /// When a result cannot be read, and those of `visit`.
    pub fn each(&self, mut visit: impl FnMut(&CaseResult) -> Result<(), EvalError>) -> Result<(), EvalError> {
        let source = &mut *self.source.lock().unwrap_or_else(PoisonError::into_inner);
        source.rewind().map_err(EvalError::io("reading of the report"))?;
        read_lines(&mut BufReader::new(source.take(self.length)), false, |_, line| match line {
            ReportLine::Head(_) | ReportLine::Note(_) => Ok(()),
            ReportLine::Result(result) => visit(&result),
        })
        .map(drop)
    }

    /// Writes a table for a terminal.
    ///
    /// # Errors
    /// When a result cannot be read, or the table not be written.
    pub fn write_table(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        write_table(self, writer)
    }

    /// Writes Markdown, for a comment to a pull request. Long lists are shortened to `rows`.
    ///
    /// # Errors
    /// As [`write_table`](StoredReport::write_table).
    pub fn write_markdown(&self, writer: &mut impl Write, rows: usize) -> Result<(), EvalError> {
        write_markdown(self, writer, rows)
    }

    /// Writes JUnit's XML: a test for each case. A case that left the record is skipped.
    ///
    /// # Errors
    /// As [`write_table`](StoredReport::write_table).
    pub fn write_junit(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        write_junit(self, writer)
    }

    /// Writes the stored form.
    ///
    /// # Errors
    /// As [`write_table`](StoredReport::write_table).
    pub fn write_json_lines(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        write_json_lines(self, writer)
    }
}

impl ReportResults for StoredReport {
    fn head(&self) -> &ReportHead {
        &self.head
    }

    fn summary(&self) -> Summary {
        self.summary
    }

    fn each(&self, visit: &mut dyn FnMut(&CaseResult) -> Result<(), EvalError>) -> Result<(), EvalError> {
        StoredReport::each(self, visit)
    }
}

/// Results of an interrupted experiment, found by their cases: 16 bytes of memory for each, and the room of the table.
#[derive(Debug)]
pub(crate) struct KnownResults {
    report: StoredReport,
    /// The counts without errors: those cases are tried again.
    counts: Summary,
    /// The bytes at which results begin, without errors. The last result of a case counts.
    places: HashMap<u64, u64>,
    /// The id of the experiment.
    id: Option<String>,
    /// The spending so far.
    spent: Option<SpentNote>,
    /// The keys of cases that are tried once only, and have begun.
    begun: HashSet<u64>,
}

impl KnownResults {
    /// Reads them, up to a line that a kill has torn. Returns the number of bytes as well; there may be none.
    pub(crate) fn read(source: SharedSource) -> Result<(Option<Self>, u64), EvalError> {
        let (mut counts, mut places) = (Summary::default(), HashMap::new());
        let (mut id, mut spent, mut begun) = (None, None, HashSet::new());
        let (report, length) = StoredReport::read(source, true, |place, line| match line {
            ReportLine::Result(result) if result.status != CaseStatus::Error => {
                counts.add(result);
                places.insert(result_key(&result.case, result.repeat), place);
            }
            ReportLine::Note(NoteLine::Id(noted)) => id = Some(noted.clone()),
            ReportLine::Note(NoteLine::Spent(noted)) => spent = Some(*noted),
            ReportLine::Note(NoteLine::Begun(key)) => drop(begun.insert(*key)),
            ReportLine::Head(_) | ReportLine::Result(_) => {}
        })?;
        Ok((report.map(|report| KnownResults { report, counts, places, id, spent, begun }), length))
    }

    /// The results of a report in memory.
    pub(crate) fn of(report: &Report) -> Result<Option<Self>, EvalError> {
        let mut lines = Vec::new();
        report.write_json_lines(&mut lines)?;
        Ok(KnownResults::read(Arc::new(Mutex::new(std::io::Cursor::new(lines))))?.0)
    }

    pub(crate) const fn head(&self) -> &ReportHead {
        &self.report.head
    }

    pub(crate) const fn counts(&self) -> Summary {
        self.counts
    }

    /// Whether a case that is tried once only has begun.
    pub(crate) fn has_begun(&self, case: &str, repeat: u64) -> bool {
        self.begun.contains(&result_key(case, repeat))
    }

    /// The id of the experiment, if it has one.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The spending so far.
    pub(crate) const fn spent(&self) -> Option<SpentNote> {
        self.spent
    }

    /// The byte at which a result begins.
    pub(crate) fn place(&self, case: &str, repeat: u64) -> Option<u64> {
        self.places.get(&result_key(case, repeat)).copied()
    }

    /// The result of a case, if it is there.
    pub(crate) fn find(&self, case: &str, repeat: u64) -> Result<Option<CaseResult>, EvalError> {
        let Some(place) = self.place(case, repeat) else { return Ok(None) };
        let fault = || EvalError::io("reading of the results");
        let source = &mut *self.report.source.lock().unwrap_or_else(PoisonError::into_inner);
        source.seek(SeekFrom::Start(place)).map_err(fault())?;
        let mut line = Vec::new();
        BufReader::new(source).read_until(b'\n', &mut line).map_err(fault())?;
        let result: CaseResult =
            serde_json::from_slice(&line).map_err(std::io::Error::from).map_err(fault())?;
        // NOTE: places are found by hashes.
        Ok(Some(result).filter(|result| result.case == case && result.repeat == repeat))
    }
}
