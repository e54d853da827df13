//! The files of the folder: data sets and reports of users.

use std::collections::HashSet;
use std::fs::{self, DirEntry, File};
use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use stepfold_eval::{Case, DataSet, Report};

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

/// The most bytes of a data set.
const MAX_DATA_SET: u64 = 64 << 20;

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
        refuse_link(&folder)?;
        let path = folder.join(format!("{name}{ending}"));
        refuse_link(&path)?;
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
        refuse_link(&folder)?;
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

    /// Reads a data set, up to its end of now: the caller has cases added before or after it, for half a line is a fault.
    pub(in crate::http) fn data_set(&self, user: &str, name: &str) -> Result<DataSet<'static>, Problem> {
        let file = self.open_data_set(user, name)?;
        let length = file.metadata().map_err(|error| unreadable(Path::new(name), &error))?.len();
        Ok(DataSet::from_json_lines(BufReader::new(file.take(length))))
    }

    pub(super) fn open_data_set(&self, user: &str, name: &str) -> Result<File, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES)?;
        File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Problem::invalid("data set", format!("unknown data set `{name}`: add cases to it first"))
            }
            _ => unreadable(&path, &error),
        })
    }

    /// Appends the cases whose names are not in a data set, which is created. Returns the number of these.
    pub(in crate::http) fn append(&self, user: &str, name: &str, cases: &[Case]) -> Result<usize, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES)?;
        let _changing = self.change();
        self.check_room(user, &path)?;
        let known = match path.exists() {
            true => {
                self.data_set(user, name)?.map(|case| case.map(|case| case.name)).collect::<Result<_, _>>()
            }
            false => Ok(HashSet::new()),
        };
        let known = known.map_err(|error| of_eval(&error))?;
        let mut lines = Vec::new();
        let mut added = 0;
        for case in cases.iter().filter(|case| !known.contains(&case.name)) {
            case.write_line(&mut lines).map_err(|error| of_eval(&error))?;
            added += 1;
        }
        let bytes = fs::metadata(&path).map_or(0, |file| file.len()) + lines.len() as u64;
        if bytes > MAX_DATA_SET {
            let why = format!("`{name}` would have {bytes} bytes, of at most {MAX_DATA_SET}");
            return Err(Problem::invalid("data set", why));
        }
        let written = fs::create_dir_all(self.user_folder(user)).and_then(|()| {
            let mut file = File::options().create(true).append(true).open(&path)?;
            file.write_all(&lines)
        });
        written.map(|()| added).map_err(|error| unreadable(&path, &error))
    }

    /// Reads a report.
    pub(super) fn report(&self, user: &str, name: &str) -> Result<Report, Problem> {
        check_name(name)?;
        let path = self.path(user, name, REPORT)?;
        match File::open(&path) {
            Ok(file) => Report::from_json_lines(BufReader::new(file)).map_err(|error| of_eval(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Problem::unknown_experiment(name)),
            Err(error) => Err(unreadable(&path, &error)),
        }
    }
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
    file.lock()?;
    Ok(file)
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
    let mut whole = path.as_os_str().to_owned();
    // NOTE: another server with the folder may write the same file.
    whole.push(format!(".{}{WHOLE}", std::process::id()));
    let whole = PathBuf::from(whole);
    let _ = fs::remove_file(&whole);
    let mut file = create_locked(&whole)?;
    file.write_all(text)?;
    fs::rename(&whole, path)
}

/// Refuses a link: its target is outside of the folder, where the server writes for no one.
fn refuse_link(path: &Path) -> Result<(), Problem> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            let name = path.file_name().unwrap_or_default().display();
            Err(Problem::invalid(
                "experiment folder",
                format!("`{name}` is a link, and links are not followed"),
            ))
        }
        _ => Ok(()),
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
    fn half_a_line_that_is_added_meanwhile_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = ExperimentFolder::new(root.path());
        folder.append("ada", "mine", &[Case::new("one", "hello")]).unwrap();
        let data_set = folder.data_set("ada", "mine").unwrap();
        let path = folder.path("ada", "mine", CASES).unwrap();
        File::options().append(true).open(path).unwrap().write_all(b"{\"na").unwrap();
        let names: Result<Vec<String>, _> = data_set.map(|case| case.map(|case| case.name)).collect();
        assert_eq!(names.unwrap(), ["one"]);
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
