//! The worker of an app's experiments: it takes jobs, oldest first, some at a time, and continues those that were interrupted.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stepfold_eval::{Case, CaseResult, EvalError, Experiment, Mode, ReportFile, Summary};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::files::{DataSetVersion, REPORT};
use super::jobs::is_damaged;
use super::{ExperimentFolder, ExperimentJob, without_path};
use crate::http::app::App;
use crate::http::guard::limits::Limits;
use crate::http::guard::own_thread::on_own_thread;
use crate::http::guard::problem::Problem;
use crate::http::phase::ServerPhase;

/// The time after which jobs are looked for that another process has left.
const LOOK: Duration = Duration::from_secs(60);

/// The time that experiments have to leave the case at hand.
const LAST: Duration = Duration::from_secs(5);

/// The experiments that run in this process.
#[derive(Default)]
pub(super) struct RunningJobs {
    jobs: Mutex<HashMap<String, RunningJob>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// Notified when a job is accepted, or has ended.
    changed: Notify,
    is_stopping: AtomicBool,
    /// Whether the stopping process has left an experiment under way.
    has_left: AtomicBool,
}

struct RunningJob {
    counts: Arc<Mutex<Summary>>,
    /// Notified when it must leave at once, with the case at hand.
    leave: Arc<Notify>,
}

impl RunningJobs {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, RunningJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a job, which is no longer to be run.
    pub(super) fn leave(&self, id: &str) {
        if let Some(job) = self.jobs().get(id) {
            job.leave.notify_one();
        }
    }

    /// Has the worker look for jobs.
    pub(super) fn look(&self) {
        self.changed.notify_one();
    }

    pub(super) fn counts(&self, id: &str) -> Option<Summary> {
        let counts = Arc::clone(&self.jobs().get(id)?.counts);
        let counts = *counts.lock().unwrap_or_else(PoisonError::into_inner);
        Some(counts)
    }

    /// Waits until no experiment runs, in a worker that starts none.
    async fn ended(&self) {
        while !self.jobs().is_empty() {
            self.changed.notified().await;
        }
    }
}

/// Why a job ends without a report.
enum JobEnd {
    /// It can never be run.
    Invalid(String),
    /// A file could not be read or written: it is tried again later.
    Io(EvalError),
    /// The process stops, or the job is no longer to be run.
    Left,
}

impl From<Problem> for JobEnd {
    fn from(problem: Problem) -> Self {
        let why = problem.detail().to_owned();
        match problem.status().is_server_error() {
            true => std::io::Error::other(why).into(),
            false => JobEnd::Invalid(why),
        }
    }
}

impl From<std::io::Error> for JobEnd {
    fn from(error: std::io::Error) -> Self {
        JobEnd::Io(error.into())
    }
}

impl From<EvalError> for JobEnd {
    fn from(error: EvalError) -> Self {
        match error {
            // Results are replaced with their job.
            EvalError::Stopped | EvalError::Replaced { .. } => JobEnd::Left,
            EvalError::Io { .. } => JobEnd::Io(error),
            EvalError::Continue { .. } => JobEnd::Invalid(format!(
                "{error}: the agent of this server is another one than at its begin; run it again"
            )),
            error => JobEnd::Invalid(without_path(&error)),
        }
    }
}

impl ExperimentFolder {
    /// Starts the worker, unless it runs, or has it look for the job that was accepted.
    pub(in crate::http) fn work(
        self: &Arc<Self>,
        app: &Arc<App>,
        limits: &Limits,
        phase: watch::Receiver<ServerPhase>,
    ) {
        let mut worker = self.running.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.as_ref().is_none_or(JoinHandle::is_finished) && *phase.borrow() < ServerPhase::Stopping {
            self.running.is_stopping.store(false, Ordering::SeqCst);
            let work = work(Arc::clone(self), Arc::clone(app), limits.clone(), phase);
            *worker = Some(tokio::spawn(work));
        }
        self.running.changed.notify_one();
    }

    /// Waits until the worker of a stopping server has ended. Returns whether it has left no experiment under way.
    pub(in crate::http) async fn ended_work(&self) -> bool {
        let worker = self.running.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(worker) = worker else { return true };
        let _ = worker.await;
        !self.running.has_left.load(Ordering::SeqCst)
    }
}

/// Works until the server stops.
async fn work(
    folder: Arc<ExperimentFolder>,
    app: Arc<App>,
    limits: Limits,
    mut phase: watch::Receiver<ServerPhase>,
) {
    loop {
        fill(&folder, &app, limits.running_experiments).await;
        tokio::select! {
            () = folder.running.changed.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
            // A server that is gone has no phase any more.
            _ = phase.wait_for(|phase| *phase >= ServerPhase::Stopping) => break,
        }
    }
    // Each ends after the case at hand.
    folder.running.is_stopping.store(true, Ordering::SeqCst);
    if tokio::time::timeout(limits.drain, folder.running.ended()).await.is_err() {
        folder.running.jobs().values().for_each(|job| job.leave.notify_one());
        if tokio::time::timeout(LAST, folder.running.ended()).await.is_err() {
            tracing::warn!("an experiment does not stop");
        }
    }
}

/// Starts jobs while there is room.
async fn fill(folder: &Arc<ExperimentFolder>, app: &Arc<App>, most: usize) {
    let looking = Arc::clone(folder);
    let taken = tokio::task::spawn_blocking(move || taken(&looking, most)).await;
    for (job, file) in taken.unwrap_or_default() {
        start(folder, app, job, file);
    }
}

/// The jobs that this process takes.
fn taken(folder: &ExperimentFolder, most: usize) -> Vec<(ExperimentJob, ReportFile)> {
    if let Err(error) = folder.finish_erasures() {
        tracing::warn!(%error, "copies that a killed erasure has left cannot be erased");
    }
    remove_leftovers(folder);
    let jobs = folder.jobs().unwrap_or_default();
    let room = most.saturating_sub(folder.running.jobs().len());
    let jobs = jobs.into_iter().filter(|job| !folder.running.jobs().contains_key(&job.id));
    jobs.filter_map(|job| taken_one(folder, job)).take(room).collect()
}

pub(super) fn remove_leftovers(folder: &ExperimentFolder) {
    let removed = || match folder.leftovers()?.is_empty() {
        true => Ok(()),
        false => folder.remove_leftovers(&folder.change()?),
    };
    if let Err(error) = removed() {
        tracing::warn!(%error, "files of experiments that a kill has left cannot be removed");
    }
}

/// A job, unless it is another process's, has ended, or cannot be continued.
fn taken_one(folder: &ExperimentFolder, job: ExperimentJob) -> Option<(ExperimentJob, ReportFile)> {
    // NOTE: The effects of the case at hand are unknown.
    let (kept, has_begun) = folder.progress(&job);
    let has_effects = job.request.mode() == Mode::Live && has_begun && kept.trials < job.expected;
    match folder.take(&job) {
        Ok(Some(_)) if has_effects => {
            let why =
                "interrupted, and tools of mode `live` may have run; look at their effects, and run it again";
            has_failed(folder, &job, why.to_owned());
            None
        }
        Ok(file) => Some((job, file?)),
        Err(error @ EvalError::Io { .. }) => {
            tracing::warn!(experiment = job.request.name, %error, "an experiment is tried again later");
            None
        }
        Err(error) => {
            has_failed(folder, &job, without_path(&error));
            None
        }
    }
}

/// Ends a job that cannot be run. Returns whether it has ended: otherwise it is tried again later.
fn has_failed(folder: &ExperimentFolder, job: &ExperimentJob, why: String) -> bool {
    tracing::warn!(experiment = job.request.name, why, "an experiment cannot be run");
    // The folder says why if this cannot be written either.
    folder.fail(job, why).is_ok()
}

fn start(folder: &Arc<ExperimentFolder>, app: &Arc<App>, job: ExperimentJob, file: ReportFile) {
    // Cases with a result are not counted again.
    let counts = Arc::new(Mutex::new(file.kept()));
    let leave = Arc::<Notify>::default();
    let ended = {
        let (folder, app, job) = (Arc::clone(folder), Arc::clone(app), job.clone());
        let (counts, leave) = (Arc::clone(&counts), Arc::clone(&leave));
        async move {
            let begun = OnceLock::new();
            let mut running = std::pin::pin!(run(&folder, &app, &job, file, (&counts, &begun)));
            tokio::select! {
                biased;
                () = leave.notified() => {
                    // While its cases still wait for them: a judgement that is stopped is continued, and one that is dropped is cancelled.
                    if let Some(experiment) = begun.get() {
                        Experiment::shutdown(experiment).await;
                    }
                    Ok(Err(JobEnd::Left))
                }
                ended = &mut running => Ok(ended),
            }
        }
    };
    folder.running.jobs().insert(job.id.clone(), RunningJob { counts, leave });
    let folder = Arc::clone(folder);
    tokio::spawn(async move {
        let end = match on_own_thread(ended, None).await {
            Ok(Ok(())) => None,
            Ok(Err(end)) => Some(end),
            Err(_) => Some(JobEnd::Invalid("it panicked; the log of the server has the cause".to_owned())),
        };
        let ending = Arc::clone(&folder);
        let id = job.id.clone();
        let noted = tokio::task::spawn_blocking(move || note_end(&ending, &job, end));
        let is_tried_later = noted.await.unwrap_or(true);
        folder.running.jobs().remove(&id);
        // NOTE: a full disk is not asked again at once.
        if !is_tried_later || folder.running.is_stopping.load(Ordering::SeqCst) {
            folder.running.changed.notify_one();
        }
    });
}

/// Notes the end of a job. Returns whether it is tried again later.
fn note_end(folder: &ExperimentFolder, job: &ExperimentJob, end: Option<JobEnd>) -> bool {
    match end {
        None => false,
        Some(JobEnd::Left) => {
            let is_stopping = folder.running.is_stopping.load(Ordering::SeqCst);
            folder.running.has_left.fetch_or(is_stopping, Ordering::SeqCst);
            false
        }
        Some(JobEnd::Io(error)) => {
            let name = &job.request.name;
            tracing::warn!(experiment = name, %error, "an experiment was interrupted, and is tried again");
            true
        }
        Some(JobEnd::Invalid(why)) => !has_failed(folder, job, why),
    }
}

/// Ends a job whose data set is no longer that of its acceptance: half of its results would be of another one.
fn check_version(job: &ExperimentJob, version: &DataSetVersion, digest: Sha256) -> Result<(), JobEnd> {
    match version.is(digest) {
        true => Ok(()),
        false => Err(changed(job)),
    }
}

/// Reads all cases.
fn check_cases(
    job: &ExperimentJob,
    mut cases: impl Iterator<Item = Result<Case, EvalError>>,
) -> Result<(), JobEnd> {
    cases.try_for_each(|case| case.map(drop)).map_err(|error| end_of(job, error))
}

/// The end of a job whose data set had valid cases: an invalid one is a change of it.
fn end_of(job: &ExperimentJob, error: EvalError) -> JobEnd {
    match error {
        EvalError::Line { .. } | EvalError::Case { .. } | EvalError::Duplicate { .. } => changed(job),
        error => error.into(),
    }
}

fn changed(job: &ExperimentJob) -> JobEnd {
    let data_set = &job.request.data_set;
    JobEnd::Invalid(format!("data set `{data_set}` was changed under the experiment; run it again"))
}

/// An experiment whose requests count in the budgets of an app, as those of a user. Each counts in a session of its own: what one
/// has left open is settled when it is continued, and not by another one.
async fn with_budgets(experiment: Experiment, app: &App, job: &ExperimentJob) -> Result<Experiment, JobEnd> {
    if !app.runner().has_spend_limits() {
        return Ok(experiment);
    }
    let session = format!("experiment-{}", job.id);
    let requests = async { app.runner().session(&*job.user, session).await?.outside_requests().await };
    match requests.await {
        Ok(requests) => Ok(requests.into_iter().fold(experiment, Experiment::budgets)),
        Err(error) => Err(std::io::Error::other(error).into()),
    }
}

async fn run(
    folder: &ExperimentFolder,
    app: &App,
    job: &ExperimentJob,
    mut file: ReportFile,
    (counts, begun): (&Mutex<Summary>, &OnceLock<Experiment>),
) -> Result<(), JobEnd> {
    folder.path(&job.user, &job.request.name, REPORT)?;
    let experiment = job.request.experiment(app, folder)?;
    // Before it is begun: a store that fails has run no tool.
    let experiment = match job.request.mode() {
        Mode::Live => with_budgets(experiment, app, job).await?,
        _ => experiment,
    };
    let experiment = file.begin(experiment)?;
    let experiment = begun.get_or_init(|| experiment);
    let named = (job.user.as_str(), job.request.data_set.as_str());
    let version = folder.version(job).map_err(|error| match is_damaged(&error) {
        true => JobEnd::Invalid(format!("the version of its data set cannot be read: {error}; run it again")),
        false => error.into(),
    })?;
    // Before anything is spent, and again as it is read.
    let mut digest = Sha256::new();
    check_cases(job, folder.data_set_of(named, &version, &mut digest)?)?;
    check_version(job, &version, digest)?;
    let mut digest = Sha256::new();
    let cases = folder.data_set_of(named, &version, &mut digest)?;
    let keep = |result: CaseResult, is_known: bool| {
        if !folder.is_current(job) {
            return Err(EvalError::Stopped);
        }
        file.keep(&result, is_known)?;
        if !is_known {
            counts.lock().unwrap_or_else(PoisonError::into_inner).add(&result);
        }
        match folder.running.is_stopping.load(Ordering::SeqCst) {
            true => Err(EvalError::Stopped),
            false => Ok(()),
        }
    };
    experiment.run_each_known(cases, keep).await.map_err(|error| end_of(job, error))?;
    check_version(job, &version, digest)?;
    finish(folder, job, &file)?;
    Ok(())
}

/// Ends a job with its report. While another process has locked the folder it waits, unless the server stops: all is paid.
fn finish(folder: &ExperimentFolder, job: &ExperimentJob, file: &ReportFile) -> Result<bool, EvalError> {
    loop {
        match folder.finish(job, file) {
            Err(EvalError::Io { source, .. })
                if source.kind() == ErrorKind::ResourceBusy
                    && !folder.running.is_stopping.load(Ordering::SeqCst) => {}
            finished => return finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A disk that fails is not a data set that was changed.
    #[test]
    fn errors_of_the_disk_and_changes_are_told_apart() {
        let job = json!({"user": "ada", "request": {"name": "x", "data_set": "mine"}, "expected": 1});
        let job: ExperimentJob = serde_json::from_value(job).unwrap();
        let end = |error: EvalError| check_cases(&job, [Err(error)].into_iter());
        assert!(matches!(end(std::io::Error::other("disk").into()), Err(JobEnd::Io(_))));
        let duplicate = EvalError::Duplicate { name: "a".to_owned() };
        assert!(matches!(end(duplicate), Err(JobEnd::Invalid(why)) if why.contains("was changed under")));
    }
}
