//! Experiments that wait or run, as files: they survive the process.
//!
//! Beside them is `.jobs/ID.data`, the version of the data set that was accepted, less what was erased since.
//!
//! | state | `.jobs/ID.json` | `.jobs/ID.partial` | files of the user |
//! |---|---|---|---|
//! | waiting | the request | missing | |
//! | running, in the one process that has locked the results so far | the request | results so far | |
//! | interrupted: any process continues it, but one of mode `live` has failed | the request | results so far, not locked | |
//! | done | missing | missing | `NAME.report` |
//! | failed: it cannot be run | missing | missing | `NAME.failed`: the request, and why |
//!
//! A job that is cancelled, erased or replaced loses its file: who runs it sees that after the case at hand, and leaves.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use stepfold_eval::{EvalError, ReportFile, StoredReport, Summary};

use super::erasure::for_each_line;
use super::files::{
    CASES, DataSetVersion, FAILED, MAX_FILE, REPORT, open_regular, read_regular, regular_files, remove_file,
    remove_left, unreadable, write_whole,
};
use super::{ExperimentFolder, FolderChange, NewExperiment, of_eval};
use crate::http::guard::limits::Limits;
use crate::http::guard::problem::Problem;

/// The folder of jobs. No user's folder begins with a dot.
const JOBS: &str = ".jobs";

pub(super) const JOB: &str = ".json";
pub(super) const PARTIAL: &str = ".partial";
pub(super) const DATA: &str = ".data";

/// The most bytes of the file of a job.
const MAX_JOB: u64 = 1 << 20;

/// An experiment that waits, runs, or could not be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::http) struct ExperimentJob {
    /// Tells the job from others of its name: the name of its files.
    #[serde(skip)]
    pub(super) id: String,
    pub(super) user: String,
    pub(super) request: NewExperiment,
    /// The number of results that it will have.
    pub(in crate::http) expected: u64,
    /// Why it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::http) why: Option<String>,
}

impl ExperimentJob {
    pub(in crate::http) fn request(&self) -> &NewExperiment {
        &self.request
    }
}

/// An experiment as it is found in the folder.
pub(in crate::http) enum StoredExperiment {
    Done(StoredReport),
    /// It waits or runs, with its results so far.
    UnderWay(ExperimentJob, Option<StoredReport>),
    Failed(ExperimentJob),
}

impl ExperimentFolder {
    pub(super) fn job_path(&self, id: &str, ending: &str) -> PathBuf {
        self.folder.join(JOBS).join(format!("{id}{ending}"))
    }

    /// The jobs of all users, oldest first.
    pub(super) fn jobs(&self) -> Result<Vec<ExperimentJob>, Problem> {
        let folder = self.folder.join(JOBS);
        let mut jobs: Vec<(SystemTime, ExperimentJob)> = Vec::new();
        for name in regular_files(&folder).map_err(|error| unreadable(&folder, &error))? {
            let Some(id) = name.strip_suffix(JOB) else { continue };
            match read_job(&self.job_path(id, JOB)) {
                Ok((since, job)) => jobs.push((since, ExperimentJob { id: id.to_owned(), ..job })),
                // It has ended meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(id, %error, "an experiment cannot be read, and is left out"),
            }
        }
        jobs.sort_by(|(one, a), (other, b)| (one, &a.id).cmp(&(other, &b.id)));
        Ok(jobs.into_iter().map(|(_, job)| job).collect())
    }

    /// Files without a job: those that a kill has left, and those of a job that is being accepted or erased, unless the caller
    /// changes the folder.
    pub(super) fn leftovers(&self) -> std::io::Result<Vec<PathBuf>> {
        let folder = self.folder.join(JOBS);
        let has_no_job = |(id, _): (&str, &str)| !id.is_empty() && !self.job_path(id, JOB).exists();
        let names = regular_files(&folder)?.into_iter();
        Ok(names
            .filter(|name| name.split_once('.').is_some_and(has_no_job))
            .map(|name| folder.join(name))
            .collect())
    }

    /// Removes files without a job, which a kill has left: results, and files that are not whole.
    pub(super) fn remove_leftovers(&self, _: &FolderChange<'_>) -> std::io::Result<()> {
        self.leftovers()?.iter().try_for_each(|path| remove_left(path))
    }

    /// The jobs of a user.
    pub(in crate::http) fn jobs_of(&self, user: &str) -> Result<Vec<ExperimentJob>, Problem> {
        let jobs = self.jobs()?;
        Ok(jobs.into_iter().filter(|job| job.user == user).collect())
    }

    /// Accepts an experiment, to be run as soon as there is room. A request that is repeated while its experiment is under way
    /// is answered with that.
    pub(in crate::http) fn accept(
        &self,
        user: &str,
        request: NewExperiment,
        limits: &Limits,
    ) -> Result<ExperimentJob, Problem> {
        let path = self.path(user, &request.name, REPORT)?;
        let _changing = self.begin_change()?;
        let jobs = self.jobs()?;
        if let Some(same) = jobs.iter().find(|job| job.user == user && job.request.name == request.name) {
            let is_same = same.request == request;
            return is_same.then(|| same.clone()).ok_or_else(|| Problem::experiment_under_way(&request.name));
        }
        let own = jobs.iter().filter(|job| job.user == user).count();
        for (count, limit, whose) in
            [(own, limits.experiments_per_user, "of a user"), (jobs.len(), limits.experiments, "of an app")]
        {
            if count >= limit {
                return Err(Problem::too_many(&format!("experiments {whose} under way"), limit));
            }
        }
        self.check_room(user, &path)?;
        let version = self.version_of(user, &request.data_set)?;
        if version.cases == 0 {
            return Err(Problem::invalid("data set", format!("`{}` has no cases", request.data_set)));
        }
        let expected = version.cases.saturating_mul(request.repeats());
        let job = ExperimentJob { id: random_id()?, user: user.to_owned(), request, expected, why: None };
        fs::create_dir_all(self.folder.join(JOBS)).map_err(|error| unreadable(&path, &error))?;
        self.store(&job.id, DATA, &version)?;
        self.store(&job.id, JOB, &job)?;
        remove_file(&self.path(user, &job.request.name, FAILED)?)?;
        Ok(job)
    }

    pub(super) fn store(&self, id: &str, ending: &str, content: &impl Serialize) -> Result<(), Problem> {
        let path = self.job_path(id, ending);
        let written = write_whole(&path, &serde_json::to_vec(content).unwrap_or_default());
        written.map_err(|error| unreadable(&path, &error))
    }

    /// The version of the data set that a job is of: that of its acceptance, or the one after an erasure if that is there.
    pub(super) fn version(&self, job: &ExperimentJob) -> std::io::Result<DataSetVersion> {
        let stored: DataSetVersion = serde_json::from_slice(&read_regular(&self.job_path(&job.id, DATA))?)?;
        Ok(match stored.erased.as_deref() {
            Some(erased) if self.has_version(job, erased)? => erased.clone(),
            _ => stored,
        })
    }

    /// Whether the data set of a job begins with the bytes of a version.
    fn has_version(&self, job: &ExperimentJob, version: &DataSetVersion) -> std::io::Result<bool> {
        let path = self.user_folder(&job.user).join(format!("{}{CASES}", job.request.data_set));
        let file = match open_regular(&path, MAX_FILE) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        let mut digest = Sha256::new();
        for_each_line(file.take(version.bytes), |line| {
            digest.update(line);
            Ok(())
        })?;
        Ok(version.is(digest))
    }

    /// Whether a job is still to be run.
    pub(super) fn is_current(&self, job: &ExperimentJob) -> bool {
        self.job_path(&job.id, JOB).exists()
    }

    /// Takes a job for this process; `None` if it is another one's, or has ended.
    pub(super) fn take(&self, job: &ExperimentJob) -> Result<Option<ReportFile>, EvalError> {
        let report = self.user_folder(&job.user).join(format!("{}{REPORT}", job.request.name));
        let partial = self.job_path(&job.id, PARTIAL);
        match ReportFile::open(&report, &partial) {
            Ok(_) if !self.is_current(job) => {
                let _ = fs::remove_file(partial);
                Ok(None)
            }
            Ok(file) => Ok(Some(file)),
            Err(EvalError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a job with its report. Returns whether it was still to be run.
    pub(super) fn finish(&self, job: &ExperimentJob, file: &ReportFile) -> Result<bool, EvalError> {
        let _changing = self.change()?;
        if !self.is_current(job) {
            return Ok(false);
        }
        file.write()?;
        // An earlier experiment of the name may have failed since this one was accepted.
        let _ = self.path(&job.user, &job.request.name, FAILED).and_then(|path| remove_file(&path));
        // NOTE: The results so far are removed last: after a kill before it, no case is tried again.
        let _ = self.remove_job(job);
        Ok(true)
    }

    /// Ends a job that cannot be run.
    pub(super) fn fail(&self, job: &ExperimentJob, why: String) -> Result<(), Problem> {
        let _changing = self.begin_change()?;
        if !self.is_current(job) {
            return Ok(());
        }
        let failed = ExperimentJob { why: Some(why), ..job.clone() };
        let path = self.path(&job.user, &job.request.name, FAILED)?;
        let written = write_whole(&path, &serde_json::to_vec(&failed).unwrap_or_default());
        written.map_err(|error| unreadable(&path, &error))?;
        self.remove_job(job)
    }

    pub(super) fn remove_job(&self, job: &ExperimentJob) -> Result<(), Problem> {
        // The job first: who runs it leaves.
        for ending in [JOB, PARTIAL, DATA] {
            remove_file(&self.job_path(&job.id, ending))?;
        }
        self.running.leave(&job.id);
        Ok(())
    }

    /// Deletes an experiment, whether it waits, runs or has ended. Returns whether there was one.
    pub(in crate::http) fn delete(&self, user: &str, name: &str) -> Result<bool, Problem> {
        super::check_name(name)?;
        let _changing = self.begin_change()?;
        let mut is_found = false;
        for job in self.jobs_of(user)?.iter().filter(|job| job.request.name == name) {
            self.remove_job(job)?;
            is_found = true;
        }
        for ending in [FAILED, REPORT] {
            is_found |= remove_file(&self.path(user, name, ending)?)?;
        }
        Ok(is_found)
    }

    /// Reads an experiment.
    pub(in crate::http) fn experiment(&self, user: &str, name: &str) -> Result<StoredExperiment, Problem> {
        super::check_name(name)?;
        if let Some(job) = self.jobs_of(user)?.into_iter().find(|job| job.request.name == name) {
            let results = self.results_so_far(&job).map_err(|error| of_eval(&error))?;
            return Ok(StoredExperiment::UnderWay(job, results));
        }
        self.ended(user, name)
    }

    /// Reads an experiment that has ended.
    pub(in crate::http) fn ended(&self, user: &str, name: &str) -> Result<StoredExperiment, Problem> {
        match read_job(&self.path(user, name, FAILED)?) {
            Ok((_, job)) => Ok(StoredExperiment::Failed(job)),
            Err(_) => self.report(user, name).map(StoredExperiment::Done),
        }
    }

    /// The counts of a job so far, and whether it has begun: from memory if it runs here.
    pub(in crate::http) fn progress(&self, job: &ExperimentJob) -> (Summary, bool) {
        if let Some(counts) = self.running.counts(&job.id) {
            return (counts, true);
        }
        let results = self.results_so_far(job).unwrap_or_default();
        (results.as_ref().map(StoredReport::summary).unwrap_or_default(), results.is_some())
    }

    /// The results of a job so far, if it has begun.
    fn results_so_far(&self, job: &ExperimentJob) -> Result<Option<StoredReport>, EvalError> {
        match open_regular(&self.job_path(&job.id, PARTIAL), MAX_FILE) {
            Ok(file) => StoredReport::interrupted(file),
            Err(_) => Ok(None),
        }
    }
}

/// Whether a file is missing or has other content, and will have later.
pub(super) fn is_damaged(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};

    matches!(error.kind(), NotFound | InvalidData | UnexpectedEof)
}

fn read_job(path: &std::path::Path) -> std::io::Result<(SystemTime, ExperimentJob)> {
    let file = open_regular(path, MAX_JOB)?;
    let since = file.metadata()?.modified()?;
    let mut text = Vec::new();
    (&file).take(MAX_JOB).read_to_end(&mut text)?;
    Ok((since, serde_json::from_slice(&text)?))
}

#[expect(
    clippy::disallowed_methods,
    reason = "ids of two processes must not meet, and no run depends on them"
)]
pub(super) fn random_id() -> Result<String, Problem> {
    let mut bytes = [0_u8; 16];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|_| Problem::unavailable("the system has no random numbers"))?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;
    use stepfold_eval::Case;

    use super::*;

    /// A law: a server removes no file of a job that another one accepts, erases or ends at that moment.
    #[test]
    fn servers_leave_each_other_the_files_of_jobs() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (ExperimentFolder::new(root.path()), ExperimentFolder::new(root.path()));
        one.append("ada", "mine", &[Case::new("one", "hello")]).unwrap();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::SeqCst) {
                    super::super::worker::remove_leftovers(&other);
                }
            });
            for number in 0..400 {
                let request = json!({"name": format!("x{number}"), "data_set": "mine"});
                let request = serde_json::from_value(request).unwrap();
                let job = one.accept("ada", request, &Limits::default()).unwrap();
                let version = one.version(&job);
                has_ended.fetch_or(version.is_err() || number == 399, Ordering::SeqCst);
                assert_eq!(version.unwrap().cases, 1, "experiment {number}");
                assert!(one.delete("ada", &format!("x{number}")).unwrap());
            }
        });
    }
}
