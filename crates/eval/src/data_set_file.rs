//! A data set as a file that one process at a time changes.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::case::Case;
use crate::data_set::{DataSet, hash};
use crate::error::EvalError;
use crate::locked::{is_at, open_locked, open_waiting};

/// A data set as a file of JSON lines, locked: no other process adds cases, or replaces the file, until it is dropped.
///
/// Each program that changes data sets holds this lock, so that an erasure loses none of the cases that are added
/// meanwhile. It is on the file itself; a process that waited while the file was replaced has the new one.
///
/// # Examples
/// ```
/// use stepfold_eval::{Case, DataSetFile, FileLock};
///
/// # let folder = std::env::temp_dir().join(format!("stepfold-data-set-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let mut file = DataSetFile::open(&folder.join("cases.jsonl"), FileLock::TIMEOUT)?;
/// file.read_each(|_| ())?;
/// assert_eq!(file.append(&[Case::new("a", "hello")], 1_000)?, 1);
/// // A case of the name is there.
/// assert_eq!(file.append(&[Case::new("a", "hello")], 1_000)?, 0);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), stepfold_eval::EvalError>(())
/// ```
#[derive(Debug)]
pub struct DataSetFile {
    file: File,
    path: PathBuf,
    /// The cases that were read or added: hashes of their contents by those of their names.
    cases: HashMap<u64, u64>,
    /// Whether it was missing.
    was_missing: bool,
}

impl DataSetFile {
    /// Opens a data set, which is created if it is missing. Waits, and blocks the thread, while another process changes it, at
    /// most so long: [`FileLock::TIMEOUT`](crate::FileLock::TIMEOUT) suits a command.
    ///
    /// # Errors
    /// [`EvalError::Locked`] when the time is over, and [`EvalError::Io`].
    pub fn open(path: &Path, timeout: Duration) -> Result<Self, EvalError> {
        let was_missing = !path.exists();
        let opened = open_waiting(OpenOptions::new().create(true).read(true).append(true), path, timeout);
        Ok(DataSetFile::of(opened?, path, was_missing))
    }

    /// The same without waiting. `creates` says whether a missing one is created.
    ///
    /// # Errors
    /// [`EvalError::BusyDataSet`] while another process changes it, and [`EvalError::Io`].
    pub fn try_open(path: &Path, creates: bool) -> Result<Self, EvalError> {
        let was_missing = creates && !path.exists();
        let opened = open_locked(OpenOptions::new().create(creates).read(true).append(true), path);
        let opened = opened.map_err(EvalError::io("opening of the data set"))?;
        let busy = || EvalError::BusyDataSet { data_set: path.display().to_string() };
        opened.map(|file| DataSetFile::of(file, path, was_missing)).ok_or_else(busy)
    }

    fn of(file: File, path: &Path, was_missing: bool) -> Self {
        DataSetFile { file, path: path.to_owned(), cases: HashMap::new(), was_missing }
    }

    /// Reads the cases: [`append`](DataSetFile::append) adds none of their names afterwards.
    ///
    /// # Errors
    /// For a case that cannot be read.
    pub fn read_each(&mut self, mut each: impl FnMut(&Case)) -> Result<(), EvalError> {
        self.file.rewind().map_err(EvalError::io("reading of the data set"))?;
        for case in DataSet::from_json_lines(BufReader::new(&self.file)) {
            let case = case?;
            each(&case);
            self.cases.insert(hash(&case.name), content(&case));
        }
        Ok(())
    }

    /// Whether a case of this name was read or added that is another one: an edited one, or an earlier part of the same turn.
    pub fn has_other(&self, case: &Case) -> bool {
        self.cases.get(&hash(&case.name)).is_some_and(|known| *known != content(case))
    }

    /// Adds cases at the end with one write, but for those whose names were read or added before. Returns their number.
    ///
    /// # Errors
    /// [`EvalError::TooLarge`] if the file would have more than `most` bytes, [`EvalError::Case`] for a case that is longer than a line
    /// may be: none is added. [`EvalError::Io`].
    pub fn append(&mut self, cases: &[Case], most: u64) -> Result<u64, EvalError> {
        let fault = || EvalError::io("writing of the data set");
        let (mut lines, mut added) = (Vec::new(), HashMap::new());
        for case in cases {
            let name = hash(&case.name);
            if self.cases.contains_key(&name) || added.contains_key(&name) {
                continue;
            }
            added.insert(name, content(case));
            let before = lines.len();
            case.write_line(&mut lines)?;
            let bytes = (lines.len() - before) as u64;
            if bytes > DataSet::MAX_LINE {
                let why = format!("it has {bytes} bytes, of at most {} in a line", DataSet::MAX_LINE);
                return Err(EvalError::Case { name: case.name.clone(), why });
            }
        }
        if added.is_empty() {
            return Ok(0);
        }
        let text = [self.end().map_err(fault())?, &lines].concat();
        let bytes = self.file.metadata().map_err(fault())?.len().saturating_add(text.len() as u64);
        if bytes > most {
            return Err(EvalError::TooLarge { bytes, most });
        }
        // One write, without a buffer: a kill tears at most the last line.
        self.file.write_all(&text).map_err(fault())?;
        self.cases.extend(&added);
        Ok(added.len() as u64)
    }

    /// The line break that the last line does not have: an editor may have left it out.
    fn end(&mut self) -> std::io::Result<&'static [u8]> {
        let mut last = [b'\n'];
        if self.file.metadata()?.len() > 0 {
            self.file.seek(SeekFrom::End(-1))?;
            self.file.read_exact(&mut last)?;
        }
        Ok(if last == [b'\n'] { b"" } else { b"\n" })
    }
}

/// A file that has got no case is not left. Another process that waits for its lock opens a new one.
impl Drop for DataSetFile {
    fn drop(&mut self) {
        let is_empty = || self.file.metadata().is_ok_and(|found| found.len() == 0);
        if self.was_missing && is_empty() && is_at(&self.file, &self.path).unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The hash of what tells two cases of a name apart: of a turn the version of its end, since its values may be redacted in another way.
fn content(case: &Case) -> u64 {
    match &case.source {
        Some(source) => source.last_version,
        None => hash(&case.digest()),
    }
}
