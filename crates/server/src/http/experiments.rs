//! Data sets of an app, and the reports of its experiments: files in a folder, for each user.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};
use stepfold_agent_loop::Agent;
use stepfold_eval::{Case, DataSet, EvalError, Judge, Report};
use tokio::sync::{Mutex, MutexGuard};

use crate::http::guard::problem::Problem;

/// The ending of a data set.
const CASES: &str = ".jsonl";

/// The ending of a report.
const REPORT: &str = ".report";

/// The most data sets, and the most reports, of a user.
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

/// A folder with the data sets of an app and the reports of its experiments, in a folder for each user.
///
/// `USER/NAME.jsonl` is a data set, and `USER/NAME.report` a report, as [`stepfold_eval`] has them; a user's folder has the
/// user's id in percent encoding, upper-case letters included; one of more than 200 bytes has a digest. So reports that a command or a build server writes there are seen in the studio. Other
/// processes with the folder see the same files; a report appears when it is whole.
pub struct ExperimentFolder {
    folder: PathBuf,
    candidates: Option<Box<dyn Candidates>>,
    judge: Option<Judge>,
    /// The experiment that runs.
    running: Mutex<()>,
    /// Held while cases are added: each is added once.
    adding: std::sync::Mutex<()>,
}

impl std::fmt::Debug for ExperimentFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExperimentFolder").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// The port for candidates that differ from the agent of an app by more than their instructions.
pub trait Candidates: Send + Sync {
    /// The agent of the app with a change.
    ///
    /// # Errors
    /// Why there is no such candidate, in words for the caller.
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String>;
}

/// The change of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CandidateChange {
    /// Another model, by its name.
    pub model: Option<String>,
    /// Settings of the agent file, as `limits.steps=4`.
    pub set: Vec<String>,
}

impl ExperimentFolder {
    /// A folder, which is created with the first file in it. Candidates differ by their instructions only.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let (running, adding) = (Mutex::default(), std::sync::Mutex::default());
        ExperimentFolder { folder: folder.into(), candidates: None, judge: None, running, adding }
    }

    /// Sets the port for other candidates.
    #[must_use]
    pub fn candidates(mut self, candidates: impl Candidates + 'static) -> Self {
        self.candidates = Some(Box::new(candidates));
        self
    }

    /// Sets the judge, for expectations with a rubric. Experiments with it need an administrator, and a limit of requests.
    #[must_use]
    pub fn judge(mut self, judge: Judge) -> Self {
        self.judge = Some(judge);
        self
    }

    pub(in crate::http) fn judge_of(&self) -> Option<&Judge> {
        self.judge.as_ref()
    }

    /// The candidate with a change of the agent.
    pub(in crate::http) fn candidate(
        &self,
        agent: &Agent,
        change: &CandidateChange,
    ) -> Result<Agent, Problem> {
        if *change == CandidateChange::default() {
            return Ok(agent.clone());
        }
        let fault = |why: String| Problem::invalid("candidate", why);
        let candidates = self.candidates.as_ref();
        let candidates =
            candidates.ok_or_else(|| fault("this server changes instructions only".to_owned()))?;
        candidates.candidate(change).map_err(fault)
    }

    /// The right to run an experiment: one at a time.
    pub(in crate::http) fn run(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        self.running.try_lock().map_err(|_| Problem::too_many("experiments of this app at once", 1))
    }

    fn path(&self, user: &str, name: &str, ending: &str) -> PathBuf {
        self.folder.join(folder_name(user)).join(format!("{name}{ending}"))
    }

    /// Removes all data sets and reports of a user. Returns whether there were any.
    pub(in crate::http) fn erase(&self, user: &str) -> Result<bool, Problem> {
        let folder = self.path(user, "", "");
        match fs::remove_dir_all(&folder) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unreadable(&folder, &error)),
        }
    }

    /// Rejects a new file beside too many.
    fn check_room(&self, user: &str, path: &Path) -> Result<(), Problem> {
        let is_full = || self.names(user).map(|names| names.iter().any(|names| names.len() >= MAX_FILES));
        if path.exists() || !is_full()? {
            return Ok(());
        }
        Err(Problem::invalid("name", format!("a user has at most {MAX_FILES} data sets and experiments")))
    }

    /// The names of the data sets and of the reports of a user, sorted.
    pub(in crate::http) fn names(&self, user: &str) -> Result<[Vec<String>; 2], Problem> {
        let folder = self.path(user, "", "");
        let mut names = [Vec::new(), Vec::new()];
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
            Err(error) => return Err(unreadable(&folder, &error)),
        };
        for entry in entries {
            let name = entry.map_err(|error| unreadable(&folder, &error))?.file_name();
            let Some(name) = name.to_str() else { continue };
            for (names, ending) in names.iter_mut().zip([CASES, REPORT]) {
                names.extend(
                    name.strip_suffix(ending).filter(|name| check_name(name).is_ok()).map(str::to_owned),
                );
            }
        }
        for names in &mut names {
            names.sort();
        }
        Ok(names)
    }

    /// Reads a data set.
    pub(in crate::http) fn data_set(&self, user: &str, name: &str) -> Result<DataSet<'static>, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES);
        match File::open(&path) {
            Ok(file) => Ok(DataSet::from_json_lines(BufReader::new(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Problem::invalid("data set", format!("unknown data set `{name}`: add cases to it first")))
            }
            Err(error) => Err(unreadable(&path, &error)),
        }
    }

    /// Appends the cases whose names are not in a data set, which is created. Returns the number of these.
    pub(in crate::http) fn append(&self, user: &str, name: &str, cases: &[Case]) -> Result<usize, Problem> {
        check_name(name)?;
        let path = self.path(user, name, CASES);
        let _adding = self.adding.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.check_room(user, &path)?;
        let known = match path.exists() {
            true => {
                self.data_set(user, name)?.map(|case| case.map(|case| case.name)).collect::<Result<_, _>>()
            }
            false => Ok(std::collections::HashSet::new()),
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
        let written = self.create(user).and_then(|()| {
            let mut file = File::options().create(true).append(true).open(&path)?;
            std::io::Write::write_all(&mut file, &lines)
        });
        written.map(|()| added).map_err(|error| unreadable(&path, &error))
    }

    /// Reads a report.
    pub(in crate::http) fn report(&self, user: &str, name: &str) -> Result<Report, Problem> {
        check_name(name)?;
        let path = self.path(user, name, REPORT);
        match File::open(&path) {
            Ok(file) => Report::from_json_lines(BufReader::new(file)).map_err(|error| of_eval(&error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Problem::unknown_experiment(name)),
            Err(error) => Err(unreadable(&path, &error)),
        }
    }

    /// Writes a report, which is whole or not there.
    pub(in crate::http) fn write(&self, user: &str, name: &str, report: &Report) -> Result<(), Problem> {
        let path = self.path(user, name, REPORT);
        self.check_room(user, &path)?;
        let mut text = Vec::new();
        report.write_json_lines(&mut text).map_err(|error| of_eval(&error))?;
        // NOTE: another server with the folder may write the same report.
        let whole = self.path(user, name, &format!(".{}.whole", std::process::id()));
        let written = self.create(user).and_then(|()| fs::write(&whole, text));
        let written = written.and_then(|()| fs::rename(&whole, &path));
        written.map_err(|error| unreadable(&path, &error))
    }

    fn create(&self, user: &str) -> std::io::Result<()> {
        fs::create_dir_all(self.path(user, "", ""))
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

/// A fault of a case is the caller's.
pub(in crate::http) fn of_eval(error: &EvalError) -> Problem {
    Problem::invalid("evaluation", error)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
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
    fn no_two_users_have_one_folder() {
        let users =
            ["ada", "Ada", "a/b", "..", ".", "%41da", &"é".repeat(60), &"é".repeat(61), &"x".repeat(256)];
        let names: BTreeSet<String> = users.iter().map(|user| folder_name(user).to_lowercase()).collect();
        assert_eq!(names.len(), users.len());
        assert!(names.iter().all(|name| name.len() < 255 && !name.contains(['/', '.'])), "{names:?}");
    }
}
