//! Erasure: cases that were taken from erased content, in the data sets of all users, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::Path;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use stepfold_eval::CaseSource;
use stepfold_runner::{ErasureReport, ErasureSubject};

use super::files::{CASES, REPORT, WHOLE, create_locked, entries, regular_files, remove_left, write_whole};
use super::jobs::{JOB, PARTIAL, random_id};
use super::{ExperimentFolder, ExperimentJob};
use crate::http::guard::problem::Problem;

/// A case that was taken from erased content.
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

/// The content that is erased: which cases were taken from it.
struct Erased<'a> {
    subject: &'a ErasureSubject,
    sessions: BTreeSet<&'a str>,
    /// The first version, unless whole sessions are erased: later turns have it in their conversation.
    first: Option<u64>,
}

impl<'a> Erased<'a> {
    fn of(subject: &'a ErasureSubject, report: &'a ErasureReport) -> Self {
        let named = report.sessions.iter().chain(&report.related).map(|key| key.id.as_str());
        let mut sessions: BTreeSet<&str> = named.collect();
        let mut versions: BTreeSet<u64> = report.versions.iter().map(|(_, version)| *version).collect();
        match subject {
            ErasureSubject::Events { session, versions: named, .. } => {
                sessions.insert(session.as_str());
                versions.extend(named);
            }
            ErasureSubject::Session { session, .. } | ErasureSubject::Call { session, .. } => {
                sessions.insert(session.as_str());
            }
            _ => {}
        }
        Erased { subject, sessions, first: versions.first().copied() }
    }

    fn has(&self, source: &CaseSource) -> bool {
        let user = match self.subject {
            ErasureSubject::User(user) => return source.user == user.as_str(),
            ErasureSubject::Events { user, .. }
            | ErasureSubject::Call { user, .. }
            | ErasureSubject::Session { user, .. } => user.as_str(),
            _ => return false,
        };
        source.user == user
            && self.sessions.contains(source.session.as_str())
            && self.first.is_none_or(|first| source.last_version >= first)
    }
}

impl ExperimentFolder {
    /// Erases the cases that were taken from erased content, in the data sets of all users, with their results, also those of
    /// experiments under way; of an erased user all data sets and experiments. Returns the cases of others, and of a dry run all
    /// that would be erased.
    ///
    /// Cases are found by their [source](CaseSource), which a redaction may have replaced. What a judge has written about
    /// them is in the judge's store.
    ///
    /// # Errors
    /// When a file cannot be read or written; a repeated call erases the rest.
    pub fn erase(
        &self,
        subject: &ErasureSubject,
        report: &ErasureReport,
        is_dry_run: bool,
    ) -> std::io::Result<Vec<ErasedCase>> {
        let _changing = self.change();
        let erased = Erased::of(subject, report);
        if let (ErasureSubject::User(user), false) = (subject, is_dry_run) {
            self.erase_user(user.as_str())?;
        }
        let mut cases = Vec::new();
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let mut folders = entries(&self.folder, is_folder)?;
        folders.sort();
        for name in folders.iter().filter(|name| !name.starts_with('.')) {
            let user = percent_decode_str(name).decode_utf8_lossy().into_owned();
            let folder = self.folder.join(name);
            let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for data_set in names_with(&folder, CASES)? {
                let of = cases_of(&folder.join(format!("{data_set}{CASES}")), &erased)?;
                cases.extend(of.iter().map(|case| ErasedCase {
                    user: user.clone(),
                    data_set: data_set.clone(),
                    case: case.clone(),
                }));
                if !of.is_empty() {
                    found.insert(data_set, of);
                }
            }
            if is_dry_run {
                continue;
            }
            if !found.is_empty() {
                self.erase_cases(&folder, &found)?;
            }
            for name in names_with(&folder, WHOLE)? {
                remove_left(&folder.join(format!("{name}{WHOLE}")))?;
            }
        }
        if !is_dry_run {
            self.remove_leftovers()?;
        }
        Ok(cases)
    }

    /// Erases all that a user has.
    fn erase_user(&self, user: &str) -> std::io::Result<()> {
        let jobs = self.jobs_of(user).map_err(failed)?;
        jobs.iter().try_for_each(|job| self.remove_job(job)).map_err(failed)?;
        let folder = self.user_folder(user);
        match fs::symlink_metadata(&folder) {
            Ok(found) if found.is_symlink() => fs::remove_file(&folder),
            Ok(_) => fs::remove_dir_all(&folder),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Erases cases of a user's data sets, and their results. The data sets are last: a repeated call finds by them what a kill
    /// has left.
    fn erase_cases(&self, folder: &Path, found: &BTreeMap<String, BTreeSet<String>>) -> std::io::Result<()> {
        let cases: BTreeSet<&String> = found.values().flatten().collect();
        let is_result = |line: &[u8]| {
            serde_json::from_slice::<ResultLine>(line).is_ok_and(|line| cases.contains(&line.case))
        };
        let is_concerned = |job: &ExperimentJob| {
            self.user_folder(&job.user) == folder && found.contains_key(&job.request.data_set)
        };
        let mut held = Vec::new();
        for job in self.jobs().map_err(failed)?.into_iter().filter(is_concerned) {
            held.push(self.erase_results(&job, is_result)?);
        }
        for name in names_with(folder, REPORT)? {
            remove_lines(&folder.join(format!("{name}{REPORT}")), is_result)?;
        }
        for (data_set, cases) in found {
            remove_lines(&folder.join(format!("{data_set}{CASES}")), |line| {
                serde_json::from_slice::<CaseLine>(line).is_ok_and(|line| cases.contains(&line.name))
            })?;
        }
        drop(held);
        self.running.look();
        Ok(())
    }

    /// Erases results of an experiment under way. Its results so far are locked until the returned file is dropped: meanwhile no
    /// process continues it.
    fn erase_results(&self, job: &ExperimentJob, is_result: impl Fn(&[u8]) -> bool) -> std::io::Result<File> {
        // NOTE: Who runs an experiment has its results in memory: it leaves, and another one continues without them.
        let id = random_id().map_err(failed)?;
        let (old, new) = (self.job_path(&job.id, PARTIAL), self.job_path(&id, PARTIAL));
        self.running.leave(&job.id);
        let text = match fs::read(&old) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let mut file = create_locked(&new)?;
        file.write_all(&lines_left(&text, is_result))?;
        // In this order a kill leaves the old job, and the new results without one.
        match fs::rename(self.job_path(&job.id, JOB), self.job_path(&id, JOB)) {
            // It has ended meanwhile: its results are in its report.
            Err(error) if error.kind() == ErrorKind::NotFound => fs::remove_file(new)?,
            renamed => renamed?,
        }
        match fs::remove_file(old) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(file),
        }
    }
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

/// The names of the cases of a data set that were taken from erased content.
fn cases_of(path: &Path, erased: &Erased<'_>) -> std::io::Result<BTreeSet<String>> {
    let mut cases = BTreeSet::new();
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        let Ok(case) = serde_json::from_slice::<CaseLine>(&line?) else { continue };
        if case.source.is_some_and(|source| erased.has(&source)) {
            cases.insert(case.name);
        }
    }
    Ok(cases)
}

/// Removes lines of a file.
fn remove_lines(path: &Path, is_removed: impl Fn(&[u8]) -> bool) -> std::io::Result<()> {
    let text = fs::read(path)?;
    let left = lines_left(&text, is_removed);
    match left.len() == text.len() {
        true => Ok(()),
        false => write_whole(path, &left),
    }
}

fn lines_left(text: &[u8], is_removed: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| !is_removed(line)).flatten().copied().collect()
}
