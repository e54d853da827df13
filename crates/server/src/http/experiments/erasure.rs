//! Erasure: cases that were taken from erased content, in the data sets of all users, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{BufRead as _, BufReader, BufWriter, Error, ErrorKind, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stepfold_eval::{CaseSource, DataSetFile, EvalError};
use stepfold_runner::{EraseRequest, ErasureReport, ErasureSubject, Runner, RunnerError, RunnerErrorKind};

use super::files::{
    CASES, DataSetVersion, MAX_FILE, REPORT, WHOLE, create_locked, entries, open_regular, regular_files,
    remove_file, remove_left, write_whole_with,
};
use super::jobs::{DATA, JOB, PARTIAL, is_damaged, random_id};
use super::{ExperimentFolder, ExperimentJob, LockWait};
use crate::http::guard::problem::Problem;

/// A case that was taken from erased content, or is in a data set of an erased user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErasedCase {
    /// The user with the data set; of an id that is too long for a folder, the folder.
    pub user: String,
    /// The data set.
    pub data_set: String,
    /// The name of the case.
    pub case: String,
}

/// The copies of erased content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErasedCopies {
    /// The cases of data sets.
    pub cases: Vec<ErasedCase>,
    /// The number of the results of such cases, in reports and in experiments under way. Those of an erased user's own
    /// experiments are not counted.
    pub results: u64,
}

impl ErasedCopies {
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.cases.is_empty() && self.results == 0
    }

    /// Adds others.
    pub fn extend(&mut self, other: ErasedCopies) {
        self.cases.extend(other.cases);
        self.results += other.results;
    }
}

/// A line of a data set, as far as an erasure reads it.
#[derive(Deserialize)]
struct CaseLine {
    name: String,
    #[serde(default)]
    source: Option<CaseSource>,
}

/// A line of a report.
#[derive(Deserialize)]
struct ResultLine {
    case: String,
}

/// The content of an erasure: which cases were taken from it.
#[derive(Serialize, Deserialize)]
struct ErasedContent {
    user: String,
    /// The sessions; `None` for everything of the user.
    sessions: Option<BTreeSet<String>>,
    /// The first version, unless whole sessions are erased: later turns have it in their conversation.
    first: Option<u64>,
    /// Whether the user's own data sets and experiments are erased too.
    #[serde(default)]
    is_user: bool,
    /// The moment of an erasure whose process was killed: what the user has made since is not of it.
    #[serde(skip)]
    until: Option<SystemTime>,
}

impl ErasedContent {
    /// `None` for a subject of another kind.
    fn of(subject: &ErasureSubject, report: &ErasureReport) -> Option<Self> {
        let (user, session, named) = match subject {
            ErasureSubject::User(user) => {
                return Some(ErasedContent {
                    user: user.to_string(),
                    sessions: None,
                    first: None,
                    is_user: true,
                    until: None,
                });
            }
            ErasureSubject::Events { user, session, versions } => (user, session, Some(versions)),
            ErasureSubject::Call { user, session, .. } | ErasureSubject::Session { user, session } => {
                (user, session, None)
            }
            _ => return None,
        };
        let found = report.sessions.iter().chain(&report.related).map(|key| key.id.to_string());
        let versions = report.versions.iter().map(|(_, version)| version);
        let first = versions.chain(named.into_iter().flatten()).min().copied();
        let sessions = Some(found.chain([session.to_string()]).collect());
        Some(ErasedContent { user: user.to_string(), sessions, first, is_user: false, until: None })
    }

    /// The same for the file of an erasure, which a later process may read: with the sessions of now, and without those to come.
    fn noted(self, report: &ErasureReport) -> Self {
        let now = || report.sessions.iter().map(|key| key.id.to_string()).collect();
        ErasedContent { sessions: Some(self.sessions.unwrap_or_else(now)), ..self }
    }

    /// The content in the file of a killed erasure.
    fn of_killed(text: &[u8], moment: SystemTime) -> Option<Self> {
        let content: Self = serde_json::from_slice(text).ok()?;
        let is_user = content.is_user || content.sessions.is_none();
        Some(ErasedContent { is_user, until: Some(moment), ..content })
    }

    /// Whether a file of the user is of the erasure.
    fn has_file(&self, path: &Path) -> std::io::Result<bool> {
        let Some(until) = self.until else { return Ok(true) };
        match fs::symlink_metadata(path).and_then(|found| found.modified()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            modified => Ok(modified? <= until),
        }
    }

    fn has_session(&self, session: &str, version: u64) -> bool {
        self.sessions.as_ref().is_none_or(|sessions| sessions.contains(session))
            && self.first.is_none_or(|first| version >= first)
    }

    fn has(&self, source: &CaseSource) -> bool {
        source.user == self.user && self.has_session(&source.session, source.last_version)
    }

    /// Whether a case was taken from it, by its name: for results whose data set has the case no more, or never had it.
    fn names(&self, case: &str) -> bool {
        if let Some((of, session, version)) = CaseSource::parse_case_name(case) {
            return of == self.user && self.has_session(&session, version);
        }
        // NOTE: An earlier name, in which the slash of an id stands as it is, may be of another user: all of a user are found by
        // their sources.
        let of_user = case.strip_prefix(&self.user).and_then(|rest| rest.strip_prefix('/'));
        let of_session = of_user.and_then(|rest| rest.rsplit_once('/'));
        let version = of_session.and_then(|(_, version)| version.parse::<u64>().ok());
        self.sessions.is_some()
            && of_session
                .zip(version)
                .is_some_and(|((session, _), version)| self.has_session(session, version))
    }
}

/// The contents of erasures that are erased at once.
#[derive(Default)]
struct ErasedContents(Vec<ErasedContent>);

impl ErasedContents {
    /// Those by which a user's own data sets and experiments are erased.
    fn of_users(&self) -> impl Iterator<Item = &ErasedContent> {
        self.0.iter().filter(|content| content.is_user)
    }

    fn has(&self, source: &CaseSource) -> bool {
        self.0.iter().any(|content| content.has(source))
    }

    fn names(&self, case: &str) -> bool {
        self.0.iter().any(|content| content.names(case))
    }
}

/// An erasure under way, as a file that is locked until its process has ended. A process that erases, and a server that runs, finish
/// those whose process was killed: after the sessions are gone, only the file knows their forks.
struct OpenErasure {
    path: PathBuf,
    /// Locked.
    _file: File,
}

/// The folder of erasures under way. No user's folder begins with a dot.
const ERASURES: &str = ".erasures";

/// The error of an erasure with its copies.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErasureError {
    /// The content could not be erased.
    Content(RunnerError),
    /// Its copies could not be erased. A repeated erasure erases the rest.
    Copies(std::io::Error),
}

impl fmt::Display for ErasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErasureError::Content(error) => error.fmt(f),
            ErasureError::Copies(error) => write!(f, "copies in data sets could not be erased: {error}"),
        }
    }
}

impl std::error::Error for ErasureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ErasureError::Content(error) => error.source(),
            ErasureError::Copies(error) => Some(error),
        }
    }
}

impl From<RunnerError> for ErasureError {
    fn from(error: RunnerError) -> Self {
        ErasureError::Content(error)
    }
}

impl From<std::io::Error> for ErasureError {
    fn from(error: std::io::Error) -> Self {
        ErasureError::Copies(error)
    }
}

impl ExperimentFolder {
    /// Erases content from a runner's store, with its [copies](ExperimentFolder::erase) in the folder. Copies of a session that is
    /// gone are erased as well.
    ///
    /// The copies are erased first, by what a dry run finds, and once more afterwards, since a case may be added meanwhile. From the
    /// erasure of the content on, its sessions are in a file: if the process is killed before the end, the next erasure, or a server,
    /// erases the copies that were left, those of forks included.
    ///
    /// # Errors
    /// [`ErasureError`]. A repeated call erases the rest.
    pub async fn erase_with_content(
        self: &Arc<Self>,
        runner: &Runner,
        request: EraseRequest,
    ) -> Result<(ErasureReport, ErasedCopies), ErasureError> {
        let (subject, is_dry_run) = (request.subject.clone(), request.is_dry_run);
        // One for the whole request.
        let wait = self.lock_wait();
        // NOTE: One erasure at a time: a request whose id another one has taken is refused before its copies are erased.
        let (folder, waiting) = (Arc::clone(self), wait.clone());
        let lock = move || if is_dry_run { Ok(None) } else { folder.lock_erasures(&waiting) };
        let _erasing = tokio::task::spawn_blocking(lock).await.map_err(Error::other)??;
        let (found, gone) = match runner.erase(request.clone().dry_run()).await {
            Ok(found) => (found, None),
            // Copies outlive their session.
            Err(error) if error.is_session_not_found() => (ErasureReport::default(), Some(error)),
            Err(error) => return Err(error.into()),
        };
        let erase = move |folder: &Self, subject: &_, report: &_| {
            let contents = ErasedContent::of(subject, report).into_iter().collect();
            folder.erase_contents(contents, is_dry_run, &wait)
        };
        let mut copies = self.blocking(&subject, &found, erase.clone()).await?;
        match gone {
            // The session may have been erased under the id of this request.
            Some(_) if !is_dry_run => {
                return match runner.erase(request).await {
                    Err(error) if copies.is_empty() || !error.is_session_not_found() => Err(error.into()),
                    erased => Ok((erased.unwrap_or_default(), copies)),
                };
            }
            Some(error) if copies.is_empty() => return Err(error.into()),
            None if !is_dry_run => {}
            _ => return Ok((found, copies)),
        }
        let open = self.blocking(&subject, &found, Self::begin_erasure).await?;
        let erased = runner.erase(request).await;
        let is_whole = matches!(subject, ErasureSubject::User(_) | ErasureSubject::Session { .. });
        if let Err(error) = &erased
            && (is_whole || matches!(error.kind, RunnerErrorKind::Claimed { .. }))
        {
            // Nothing is erased: it is no erasure under way. One that was finished much later would erase what is new since.
            open.iter().try_for_each(OpenErasure::remove)?;
        }
        let report = erased?;
        copies.extend(self.blocking(&subject, &report, erase).await?);
        open.iter().try_for_each(OpenErasure::remove)?;
        Ok((report, copies))
    }

    /// Calls a function that blocks, on a thread of its own.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        subject: &ErasureSubject,
        report: &ErasureReport,
        call: impl FnOnce(&Self, &ErasureSubject, &ErasureReport) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let (folder, subject, report) = (Arc::clone(self), subject.clone(), report.clone());
        let called = tokio::task::spawn_blocking(move || call(&folder, &subject, &report));
        called.await.map_err(Error::other)?
    }

    /// Notes an erasure that is begun, if there is a folder.
    fn begin_erasure(
        &self,
        subject: &ErasureSubject,
        report: &ErasureReport,
    ) -> std::io::Result<Option<OpenErasure>> {
        let Some(content) = ErasedContent::of(subject, report) else { return Ok(None) };
        let content = content.noted(report);
        if !self.folder.try_exists()? {
            return Ok(None);
        }
        let folder = self.folder.join(ERASURES);
        fs::create_dir_all(&folder)?;
        let path = folder.join(random_id().map_err(failed)?);
        let mut file = create_locked(&path)?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        Ok(Some(OpenErasure { path, _file: file }))
    }

    /// The erasures under way whose processes were killed. One that a kill has torn has not erased anything.
    fn killed_erasures(&self) -> std::io::Result<Vec<(OpenErasure, Option<ErasedContent>)>> {
        let folder = self.folder.join(ERASURES);
        let mut killed = Vec::new();
        for name in regular_files(&folder)? {
            let path = folder.join(name);
            let mut file = match open_regular(&path, MAX_FILE) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if file.try_lock().is_ok() {
                let mut text = Vec::new();
                file.read_to_end(&mut text)?;
                let content = ErasedContent::of_killed(&text, file.metadata()?.modified()?);
                killed.push((OpenErasure { path, _file: file }, content));
            }
        }
        Ok(killed)
    }

    /// Finishes erasures whose processes were killed.
    pub(super) fn finish_erasures(&self) -> std::io::Result<()> {
        // NOTE: they are unlocked again, since another process may be about to finish them.
        let has_killed = !self.killed_erasures()?.is_empty();
        if has_killed { self.erase_contents(Vec::new(), false, &self.lock_wait()).map(drop) } else { Ok(()) }
    }

    /// Erases the cases that were taken from erased content, in the data sets of all users, with their results, also those of
    /// experiments under way; of an erased user all data sets and experiments. Returns these copies, and a dry run the same; those
    /// that an erasure has left whose process was killed are among them.
    ///
    /// Cases are found by their [source](CaseSource), which a redaction keeps, and results also by the name that a case of such a
    /// source has. A command that has such results and runs ends with an error, and continues without them. What a judge
    /// has written about them is in the judge's store.
    ///
    /// # Errors
    /// When a file cannot be read or written; a repeated call erases the rest. [`ErrorKind::ResourceBusy`] while a command adds
    /// cases to such a data set, or when another process has locked the folder for too long.
    pub fn erase(
        &self,
        subject: &ErasureSubject,
        report: &ErasureReport,
        is_dry_run: bool,
    ) -> std::io::Result<ErasedCopies> {
        let contents = ErasedContent::of(subject, report).into_iter().collect();
        self.erase_contents(contents, is_dry_run, &self.lock_wait())
    }

    /// Erases copies of contents, and of those whose erasure was killed.
    fn erase_contents(
        &self,
        mut contents: Vec<ErasedContent>,
        is_dry_run: bool,
        wait: &LockWait,
    ) -> std::io::Result<ErasedCopies> {
        let mut copies = ErasedCopies::default();
        if !self.folder.try_exists()? {
            return Ok(copies);
        }
        let changing = (!is_dry_run).then(|| self.change_within(wait)).transpose()?;
        let mut killed = Vec::new();
        for (open, content) in self.killed_erasures()? {
            killed.push(open);
            contents.extend(content);
        }
        let erased = ErasedContents(contents);
        for content in erased.of_users() {
            copies.cases.extend(self.cases_of_user(content)?);
            if !is_dry_run {
                self.erase_user(content)?;
            }
        }
        // Other files of a user are those of after a killed erasure.
        let is_whole = |content: &&ErasedContent| content.until.is_none();
        let whole = erased.of_users().filter(is_whole);
        let own: BTreeSet<PathBuf> = whole.map(|content| self.user_folder(&content.user)).collect();
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut folders = entries(&self.folder, is_folder)?;
        folders.sort();
        for name in folders.iter().filter(|name| !name.starts_with('.')) {
            let folder = self.folder.join(name);
            if !own.contains(&folder) {
                copies.extend(self.erase_in(&folder, name, &erased, is_dry_run)?);
            }
        }
        if let Some(changing) = changing {
            self.remove_leftovers(&changing)?;
            killed.iter().try_for_each(OpenErasure::remove)?;
        }
        Ok(copies)
    }

    /// Erases the copies in the folder of a user.
    fn erase_in(
        &self,
        folder: &Path,
        name: &str,
        erased: &ErasedContents,
        is_dry_run: bool,
    ) -> std::io::Result<ErasedCopies> {
        let user = percent_decode_str(name).decode_utf8_lossy().into_owned();
        let mut copies = ErasedCopies::default();
        let mut found: ErasedNames = BTreeMap::new();
        for data_set in names_with(folder, CASES)? {
            let of = cases_of(&folder.join(format!("{data_set}{CASES}")), |case| {
                case.source.as_ref().is_some_and(|source| erased.has(source))
            })?;
            let case = |case| ErasedCase { user: user.clone(), data_set: data_set.clone(), case };
            copies.cases.extend(of.iter().cloned().map(case));
            if !of.is_empty() {
                found.insert(data_set, of);
            }
        }
        copies.results = self.erase_cases(folder, &found, erased, is_dry_run)?;
        for name in names_with(folder, WHOLE)?.iter().filter(|_| !is_dry_run) {
            remove_left(&folder.join(format!("{name}{WHOLE}")))?;
        }
        Ok(copies)
    }

    /// The cases of a user's own data sets.
    fn cases_of_user(&self, erased: &ErasedContent) -> std::io::Result<Vec<ErasedCase>> {
        let user = &erased.user;
        let folder = self.user_folder(user);
        let mut cases = Vec::new();
        if !fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir()) {
            return Ok(cases);
        }
        for data_set in names_with(&folder, CASES)? {
            let path = folder.join(format!("{data_set}{CASES}"));
            if !erased.has_file(&path)? {
                continue;
            }
            let of = cases_of(&path, |_| true)?;
            let case = |case| ErasedCase { user: user.clone(), data_set: data_set.clone(), case };
            cases.extend(of.into_iter().map(case));
        }
        Ok(cases)
    }

    /// Erases the data sets and the experiments of a user: those of before a killed erasure, or all.
    fn erase_user(&self, erased: &ErasedContent) -> std::io::Result<()> {
        let folder = self.user_folder(&erased.user);
        let found = match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let mut locked = Vec::new();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) {
            for data_set in names_with(&folder, CASES)? {
                locked.push(lock_data_set(&folder, &data_set)?);
            }
        }
        for job in self.jobs_of(&erased.user).map_err(failed)? {
            if erased.has_file(&self.job_path(&job.id, JOB))? {
                self.remove_job(&job).map_err(failed)?;
            }
        }
        match found {
            Some(found) if found.is_symlink() => fs::remove_file(&folder),
            Some(_) if erased.until.is_some() => {
                for name in regular_files(&folder)? {
                    let path = folder.join(name);
                    if erased.has_file(&path)? {
                        remove_file(&path).map_err(failed)?;
                    }
                }
                Ok(())
            }
            Some(_) => fs::remove_dir_all(&folder),
            None => Ok(()),
        }
    }

    /// Erases cases of a user's data sets, and their results, whose number it returns. The data sets are last: a repeated call
    /// finds by them what a kill has left.
    fn erase_cases(
        &self,
        folder: &Path,
        found: &ErasedNames,
        erased: &ErasedContents,
        is_dry_run: bool,
    ) -> std::io::Result<u64> {
        let cases: BTreeSet<&String> = found.values().flatten().collect();
        let is_erased = |case: &String| cases.contains(case) || erased.names(case);
        let is_result =
            |line: &[u8]| serde_json::from_slice::<ResultLine>(line).is_ok_and(|line| is_erased(&line.case));
        let mut locked = Vec::new();
        for data_set in found.keys().filter(|_| !is_dry_run) {
            locked.push((data_set, lock_data_set(folder, data_set)?));
        }
        let (mut results, mut held) = (0, Vec::new());
        let jobs = self.jobs().map_err(failed)?;
        for job in jobs.iter().filter(|job| self.user_folder(&job.user) == folder) {
            let of_job = self.results_of(job, is_result)?;
            results += of_job;
            if !is_dry_run && (of_job > 0 || found.contains_key(&job.request.data_set)) {
                held.push(self.erase_results(job, is_result, found.get(&job.request.data_set))?);
            }
        }
        // Also results of a command that was killed, or runs: first those so far, which it looks at after its report.
        let partial = format!("{REPORT}{PARTIAL}");
        for (ending, of_command) in [(partial.as_str(), !found.is_empty()), (REPORT, false)] {
            for name in names_with(folder, ending)? {
                let path = folder.join(format!("{name}{ending}"));
                results += remove_lines(&path, is_result, is_dry_run)?;
                if of_command && !is_dry_run {
                    stop_command(&path)?;
                }
            }
        }
        for (data_set, _locked) in &locked {
            let is_case =
                |line: &[u8]| case_in(line).is_some_and(|line| found[*data_set].contains(&line.name));
            remove_lines(&folder.join(format!("{data_set}{CASES}")), is_case, false)?;
        }
        drop(held);
        self.running.look();
        Ok(results)
    }

    /// The number of such results of an experiment under way.
    fn results_of(&self, job: &ExperimentJob, is_result: impl Fn(&[u8]) -> bool) -> std::io::Result<u64> {
        match remove_lines(&self.job_path(&job.id, PARTIAL), is_result, true) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            counted => counted,
        }
    }

    /// Erases results of an experiment under way. Its results so far are locked until the returned file is dropped: meanwhile no
    /// process continues it.
    fn erase_results(
        &self,
        job: &ExperimentJob,
        is_result: impl Fn(&[u8]) -> bool,
        cases: Option<&BTreeSet<String>>,
    ) -> std::io::Result<File> {
        // NOTE: The process that runs an experiment knows where its results are: it leaves, and another one continues without them.
        let id = random_id().map_err(failed)?;
        self.running.leave(&job.id);
        let file = create_locked(&self.job_path(&id, PARTIAL))?;
        let mut left = BufWriter::new(&file);
        match open_regular(&self.job_path(&job.id, PARTIAL), MAX_FILE) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => {
                for_each_line(opened?, |line| if is_result(line) { Ok(()) } else { left.write_all(line) })?;
            }
        }
        left.flush()?;
        drop(left);
        if let Some(version) = self.version_without(job, cases)? {
            self.store(&id, DATA, &version).map_err(failed)?;
        }
        // In this order a kill leaves the old job with all its files, or the new one; those of the other are without a job.
        fs::rename(self.job_path(&job.id, JOB), self.job_path(&id, JOB))?;
        for ending in [PARTIAL, DATA] {
            remove_file(&self.job_path(&job.id, ending)).map_err(failed)?;
        }
        Ok(file)
    }

    /// The version of a job's data set, with that after these cases are erased, and without what was added since. After another
    /// change it is that of before, which the data set no longer has.
    fn version_without(
        &self,
        job: &ExperimentJob,
        cases: Option<&BTreeSet<String>>,
    ) -> std::io::Result<Option<DataSetVersion>> {
        let mut before = match self.version(job) {
            // It cannot be run, and says so.
            Err(error) if is_damaged(&error) => return Ok(None),
            read => read?,
        };
        let data_set = format!("{}{CASES}", job.request.data_set);
        let file = match open_regular(&self.user_folder(&job.user).join(data_set), u64::MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(before)),
            opened => opened?,
        };
        let (mut whole, mut left) = (Sha256::new(), Sha256::new());
        let (mut count, mut bytes) = (before.cases, before.bytes);
        for_each_line(file.take(before.bytes), |line| {
            whole.update(line);
            match case_in(line).is_some_and(|case| cases.is_some_and(|cases| cases.contains(&case.name))) {
                true => {
                    count = count.saturating_sub(1);
                    bytes = bytes.saturating_sub(line.len() as u64);
                }
                false => left.update(line),
            }
            Ok(())
        })?;
        if before.is(whole) {
            before.erased = Some(Box::new(DataSetVersion::new(count, bytes, left)));
        }
        Ok(Some(before))
    }
}

impl OpenErasure {
    /// Ends it.
    fn remove(&self) -> std::io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The names of erased cases, by data set.
type ErasedNames = BTreeMap<String, BTreeSet<String>>;

/// Locks a data set: no command adds cases to it, which could be lost.
fn lock_data_set(folder: &Path, data_set: &str) -> std::io::Result<DataSetFile> {
    DataSetFile::try_open(&folder.join(format!("{data_set}{CASES}")), false).map_err(|error| match error {
        EvalError::BusyDataSet { .. } => {
            let why =
                format!("data set `{data_set}` is being changed by another process, a command for example");
            Error::new(ErrorKind::ResourceBusy, why)
        }
        EvalError::Io { source, .. } => Error::new(source.kind(), source),
        error => Error::other(error),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(problem: Problem) -> std::io::Error {
    std::io::Error::other(problem.detail().to_owned())
}

/// The files of a folder with an ending, by their names without it.
fn names_with(folder: &Path, ending: &str) -> std::io::Result<Vec<String>> {
    let names = regular_files(folder)?;
    let mut names: Vec<String> =
        names.iter().filter_map(|name| name.strip_suffix(ending)).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// The names of those cases of a data set.
fn cases_of(path: &Path, is_one: impl Fn(&CaseLine) -> bool) -> std::io::Result<BTreeSet<String>> {
    let mut cases = BTreeSet::new();
    for line in BufReader::new(open_regular(path, u64::MAX)?).split(b'\n') {
        let Some(case) = case_in(&line?) else { continue };
        if is_one(&case) {
            cases.insert(case.name);
        }
    }
    Ok(cases)
}

/// The case in a line, of which the first of a file may begin with a byte order mark.
fn case_in(line: &[u8]) -> Option<CaseLine> {
    serde_json::from_slice(line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)).ok()
}

/// Removes lines of a file, of any size, or counts them in a dry run. Returns their number.
fn remove_lines(path: &Path, is_removed: impl Fn(&[u8]) -> bool, is_dry_run: bool) -> std::io::Result<u64> {
    let file = open_regular(path, u64::MAX)?;
    let mut removed = 0;
    for_each_line(&file, |line| {
        removed += u64::from(is_removed(line));
        Ok(())
    })?;
    if removed == 0 || is_dry_run {
        return Ok(removed);
    }
    (&file).rewind()?;
    write_whole_with(path, |left| {
        let mut left = BufWriter::new(left);
        for_each_line(&file, |line| if is_removed(line) { Ok(()) } else { left.write_all(line) })?;
        left.flush()
    })?;
    Ok(removed)
}

/// Stops the command that runs an experiment, if one does: it may have read the cases, and looks at its results so far.
fn stop_command(results: &Path) -> std::io::Result<()> {
    let mut file = open_regular(results, u64::MAX)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            write_whole_with(results, |left| std::io::copy(&mut file, left).map(drop))
        }
        Err(TryLockError::Error(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// The most bytes of a line that is read: a longer one cannot be of a data set or a report, and is given in parts.
const MAX_LINE: u64 = 256 << 20;

/// Calls `each` with the lines of a file.
pub(super) fn for_each_line(
    file: impl Read,
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        each(&line)?;
        line.clear();
    }
    Ok(())
}
