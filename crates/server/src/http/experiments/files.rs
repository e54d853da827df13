//! The files of the folder: data sets and reports of users.

use std::fs::{self, DirEntry, File, Metadata, TryLockError};
use std::io::{BufReader, Error, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stepfold_eval::{Case, DataSet, DataSetFile, EvalError, StoredReport};

use super::{ExperimentFolder, of_eval};
use crate::http::guard::problem::Problem;

/// The ending of a data set.
pub(super) const CASES: &str = ".jsonl";

/// The ending of a report.
pub(super) const REPORT: &str = ".report";

/// The ending of an experiment that could not be run.
pub(super) const FAILED: &str = ".failed";

/// The ending of a file that is not yet whole.
pub(super) const WHOLE: &str = ".whole";

/// The most data sets, and the most experiments, of a user.
const MAX_FILES: usize = 1_000;

/// The most bytes of a data set that grows over the API.
const MAX_DATA_SET: u64 = 64 << 20;

/// The most bytes of a data set, or a report, that is read: another process may have written it.
pub(super) const MAX_FILE: u64 = 1 << 30;

/// The longest name of a user's folder; a longer one is a digest.
const MAX_FOLDER_NAME: usize = 200;

/// Upper-case letters are encoded as well: some file systems ignore case, and tenants must not meet.
const ENCODED: AsciiSet = upper_case(NON_ALPHANUMERIC);

const fn upper_case(set: &AsciiSet) -> AsciiSet {
    let mut set = set.add(b'A');
    let mut letter = b'B';
    while letter <= b'Z' {
        set = set.add(letter);
        letter += 1;
    }
    set
}

impl ExperimentFolder {
    pub(super) fn user_folder(&self, user: &str) -> PathBuf {
        self.folder.join(folder_name(user))
    }

    /// The file of a user, which may be missing.
    pub(super) fn path(&self, user: &str, name: &str, ending: &str) -> Result<PathBuf, Problem> {
        let folder = self.user_folder(user);
        refuse_other(&folder, Metadata::is_dir)?;
        let path = folder.join(format!("{name}{ending}"));
        refuse_other(&path, Metadata::is_file)?;
        Ok(path)
    }

    /// Rejects a new file beside too many.
    pub(super) fn check_room(&self, user: &str, path: &Path) -> Result<(), Problem> {
        let is_full = || self.names(user).map(|names| names.iter().any(|names| names.len() >= MAX_FILES));
        if path.exists() || !is_full()? {
            return Ok(());
        }
        Err(Problem::invalid("name", format!("a user has at most {MAX_FILES} data sets and experiments")))
    }

    /// The names of the data sets, and of the experiments that have ended, of a user, sorted.
    pub(in crate::http) fn names(&self, user: &str) -> Result<[Vec<String>; 2], Problem> {
        let folder = self.user_folder(user);
        refuse_other(&folder, Metadata::is_dir)?;
        let mut names = [Vec::new(), Vec::new()];
        for name in regular_files(&folder).map_err(|error| unreadable(&folder, &error))? {
            for (place, ending) in [(0, CASES), (1, REPORT), (1, FAILED)] {
                let name = name.strip_suffix(ending).filter(|name| check_name(name).is_ok());
                names[place].extend(name.map(str::to_owned));
            }
        }
        for names in &mut names {
            names.sort();
            names.dedup();
        }
        Ok(names)
    }

    /// Reads a data set as it was at its acceptance; the bytes that are read go into the digest.
    pub(super) fn data_set_of<'a>(
        &self,
        (user, name): (&str, &str),
        version: &DataSetVersion,
        digest: &'a mut Sha256,
    ) -> Result<DataSet<'a>, Problem> {
        let reader = Digesting { reader: self.open_data_set(user, name)?.take(version.bytes), digest };
        Ok(DataSet::from_json_lines(BufReader::new(reader)))
    }

    /// The version of a data set, whose cases are all valid. The caller has cases added before or after it.
    pub(super) fn version_of(&self, user: &str, name: &str) -> Result<DataSetVersion, Problem> {
        let file = self.open_data_set(user, name)?;
        let bytes = file.metadata().map_err(|error| unreadable(Path::new(name), &error))?.len();
        let mut digest = Sha256::new();
        let reader = Digesting { reader: file.take(bytes), digest: &mut digest };
        let mut cases = 0_u64;
        for case in DataSet::from_json_lines(BufReader::new(reader)) {
            case.map_err(|error| Problem::invalid("data set", format!("`{name}`: {error}")))?;
            cases += 1;
        }
        Ok(DataSetVersion::new(cases, bytes, digest))
    }

    /// Deletes a data set. Returns whether there was one.
    pub(in crate::http) fn delete_data_set(&self, user: &str, name: &str) -> Result<bool, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES)?;
        let _changing = self.begin_change()?;
        if let Some(job) = self.jobs_of(user)?.iter().find(|job| job.request.data_set == name) {
            return Err(Problem::data_set_in_use(name, &job.request.name));
        }
        match path.exists().then(|| DataSetFile::try_open(&path, false)).transpose() {
            Ok(_locked) => remove_file(&path),
            Err(error) => Err(of_data_set(name, &error)),
        }
    }

    pub(super) fn open_data_set(&self, user: &str, name: &str) -> Result<File, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES)?;
        open_regular(&path, MAX_FILE).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Problem::invalid("data set", format!("unknown data set `{name}`: add cases to it first"))
            }
            _ => unreadable(&path, &error),
        })
    }

    /// Appends the cases whose names are not in a data set, which is created. Returns the number of these.
    pub(in crate::http) fn append(&self, user: &str, name: &str, cases: &[Case]) -> Result<u64, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES)?;
        let _changing = self.begin_change()?;
        self.check_room(user, &path)?;
        fs::create_dir_all(self.user_folder(user)).map_err(|error| unreadable(&path, &error))?;
        let appended = DataSetFile::try_open(&path, true).and_then(|mut file| {
            file.read_each(|_| ())?;
            file.append(cases, MAX_DATA_SET)
        });
        appended.map_err(|error| of_data_set(name, &error))
    }

    /// Opens a report.
    pub(super) fn report(&self, user: &str, name: &str) -> Result<StoredReport, Problem> {
        check_name(name)?;
        let path = self.path(user, name, REPORT)?;
        match open_regular(&path, MAX_FILE) {
            Ok(file) => StoredReport::new(file).map_err(|error| of_eval(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Problem::unknown_experiment(name)),
            Err(error) => Err(unreadable(&path, &error)),
        }
    }
}

/// A data set at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DataSetVersion {
    pub(super) cases: u64,
    /// The bytes: cases that are added later are not of it.
    pub(super) bytes: u64,
    digest: String,
    /// The version after an erasure, which writes the data set last: a kill may leave this one or the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) erased: Option<Box<DataSetVersion>>,
}

impl DataSetVersion {
    pub(super) fn new(cases: u64, bytes: u64, digest: Sha256) -> Self {
        DataSetVersion { cases, bytes, digest: HEXLOWER.encode(&digest.finalize()), erased: None }
    }

    /// Whether these bytes were read, and no others.
    pub(super) fn is(&self, digest: Sha256) -> bool {
        self.digest == HEXLOWER.encode(&digest.finalize())
    }
}

/// A reader whose bytes go into a digest.
struct Digesting<'a, R> {
    reader: R,
    digest: &'a mut Sha256,
}

impl<R: Read> Read for Digesting<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}

/// Opens a regular file of at most so many bytes: the opening of a pipe waits for its writer, and a device has no end.
pub(super) fn open_regular(path: &Path, most: u64) -> std::io::Result<File> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if found.len() > most {
        let why = format!("it has {} bytes, of at most {most}", found.len());
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    File::open(path)
}

/// Reads a [regular file](open_regular).
pub(super) fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_regular(path, MAX_FILE)?.read_to_end(&mut text)?;
    Ok(text)
}

/// The names of the regular files in a folder, which may be missing. Links are not followed.
pub(super) fn regular_files(folder: &Path) -> std::io::Result<Vec<String>> {
    entries(folder, |entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
}

/// The names of the entries of a folder that suit.
pub(super) fn entries(folder: &Path, suits: impl Fn(&DirEntry) -> bool) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        names.extend(suits(&entry).then(|| entry.file_name().into_string().ok()).flatten());
    }
    Ok(names)
}

/// Removes a file. Returns whether it was there.
pub(super) fn remove_file(path: &Path) -> Result<bool, Problem> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Creates a file, which is locked: no other process takes it for one that [a kill has left](remove_left). A link that stands in
/// its place is not followed.
pub(super) fn create_locked(path: &Path) -> std::io::Result<File> {
    let file = File::options().write(true).create_new(true).open(path)?;
    // NOTE: no wait: a process that has the lock looks whether a kill has left the file, and removes it.
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(error),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::ResourceBusy, "another process removes new files"))
        }
    }
}

/// Removes a file that a kill has left, unless a process has locked it.
pub(super) fn remove_left(path: &Path) -> std::io::Result<()> {
    let removed = File::open(path).and_then(|file| match file.try_lock() {
        Ok(()) => fs::remove_file(path),
        Err(_) => Ok(()),
    });
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file, which is whole or not there.
pub(super) fn write_whole(path: &Path, text: &[u8]) -> std::io::Result<()> {
    write_whole_with(path, |file| file.write_all(text))
}

/// The same with what a function writes.
pub(super) fn write_whole_with(
    path: &Path,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut whole = path.as_os_str().to_owned();
    // NOTE: another server with the folder may write the same file.
    whole.push(format!(".{}{WHOLE}", std::process::id()));
    let whole = PathBuf::from(whole);
    let _ = fs::remove_file(&whole);
    let mut file = create_locked(&whole)?;
    write(&mut file)?;
    fs::rename(&whole, path)
}

/// Refuses what is there and does not suit. The target of a link is outside of the folder, where the server writes for no one.
fn refuse_other(path: &Path, suits: fn(&Metadata) -> bool) -> Result<(), Problem> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let name = path.file_name().unwrap_or_default().display();
    let refused = |why: String| Err(Problem::invalid("experiment folder", why));
    match (found.is_symlink(), suits(&found)) {
        (true, _) => refused(format!("`{name}` is a link, and links are not followed")),
        (_, true) => Ok(()),
        _ => refused(format!("`{name}` is neither a regular file nor a user's folder")),
    }
}

/// The name of a user's folder: no two users have one, whether or not the file system knows case.
fn folder_name(user: &str) -> String {
    let name = utf8_percent_encode(user, &ENCODED).to_string();
    match name.len() > MAX_FOLDER_NAME {
        // NOTE: no encoded id begins so.
        true => format!("+{}", HEXLOWER.encode(&Sha256::digest(user))),
        false => name,
    }
}

/// Checks the name of a data set or an experiment, which is that of a file.
pub(in crate::http) fn check_name(name: &str) -> Result<(), Problem> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 64
        && name.chars().all(is_letter)
    {
        true => Ok(()),
        false => Err(Problem::invalid(
            "name",
            "expected at most 64 letters, digits, `-`, `_` and `.`, of which the first is a letter or a digit",
        )),
    }
}

/// The problem of a data set: a fault of its contents is the caller's.
fn of_data_set(name: &str, error: &EvalError) -> Problem {
    match error {
        EvalError::BusyDataSet { .. } => Problem::busy_data_set(name),
        EvalError::Io { source, .. } => unreadable(Path::new(name), source),
        error => Problem::invalid("data set", format!("`{name}`: {error}")),
    }
}

pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    tracing::error!(path = %path.display(), %error, "a file of experiments could not be read or written");
    Problem::failed_experiment(
        "a file of experiments could not be read or written; the log of the server has the cause",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn half_a_line_that_is_added_meanwhile_is_not_of_the_version() {
        let root = tempfile::tempdir().unwrap();
        let folder = ExperimentFolder::new(root.path());
        folder.append("ada", "mine", &[Case::new("one", "hello")]).unwrap();
        let version = folder.version_of("ada", "mine").unwrap();
        let path = folder.path("ada", "mine", CASES).unwrap();
        File::options().append(true).open(path).unwrap().write_all(b"{\"na").unwrap();
        let mut digest = Sha256::new();
        let cases = folder.data_set_of(("ada", "mine"), &version, &mut digest).unwrap();
        assert_eq!(cases.map(|case| case.unwrap().name).collect::<Vec<_>>(), ["one"]);
        assert!(version.is(digest));
    }

    #[test]
    fn no_two_users_have_one_folder() {
        let users =
            ["ada", "Ada", "a/b", "..", ".", "%41da", &"é".repeat(60), &"é".repeat(61), &"x".repeat(256)];
        let names: BTreeSet<String> = users.iter().map(|user| folder_name(user).to_lowercase()).collect();
        assert_eq!(names.len(), users.len());
        assert!(names.iter().all(|name| name.len() < 255 && !name.contains(['/', '.'])), "{names:?}");
    }
}
