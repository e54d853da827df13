//! The worker of an app's experiments: it takes jobs, oldest first, some at a time, and continues those that were interrupted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepfold_eval::{CaseResult, EvalError, Mode, Report, ReportFile, Summary};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::files::REPORT;
use super::{ExperimentFolder, ExperimentJob};
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
        JobEnd::Invalid(problem.detail().to_owned())
    }
}

impl From<EvalError> for JobEnd {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Stopped => JobEnd::Left,
            EvalError::Io { .. } => JobEnd::Io(error),
            EvalError::Continue { .. } => JobEnd::Invalid(format!(
                "{error}: the agent of this server is another one than at its begin; run it again"
            )),
            error => JobEnd::Invalid(error.to_string()),
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
    remove_leftovers(folder);
    let jobs = folder.jobs().unwrap_or_default();
    let room = most.saturating_sub(folder.running.jobs().len());
    let jobs = jobs.into_iter().filter(|job| !folder.running.jobs().contains_key(&job.id));
    jobs.filter_map(|job| taken_one(folder, job)).take(room).collect()
}

fn remove_leftovers(folder: &ExperimentFolder) {
    let _changing = folder.change();
    if let Err(error) = folder.remove_leftovers() {
        tracing::warn!(%error, "files of experiments that a kill has left cannot be removed");
    }
}

/// A job, unless it is another process's, has ended, or cannot be continued.
fn taken_one(folder: &ExperimentFolder, job: ExperimentJob) -> Option<(ExperimentJob, ReportFile)> {
    // NOTE: The effects of the case at hand are unknown.
    let has_effects = job.request.mode() == Mode::Live && folder.progress(&job).1;
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
            has_failed(folder, &job, error.to_string());
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
            tokio::select! {
                biased;
                () = leave.notified() => Ok(Err(JobEnd::Left)),
                ended = run(&folder, &app, &job, file, &counts) => Ok(ended),
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

async fn run(
    folder: &ExperimentFolder,
    app: &App,
    job: &ExperimentJob,
    mut file: ReportFile,
    counts: &Mutex<Summary>,
) -> Result<(), JobEnd> {
    folder.path(&job.user, &job.request.name, REPORT)?;
    // NOTE: The limit holds over restarts: a reply was a request. Those of cases that were under way, and of a judge, are not counted.
    let experiment = job.request.experiment(app, folder, file.kept().steps)?;
    let experiment = file.begin(experiment)?;
    let cases = {
        // Cases that are added after this are not of the experiment.
        let _changing = folder.change();
        folder.data_set(&job.user, &job.request.data_set)?
    };
    let mut results = Vec::new();
    let keep = |result: CaseResult, is_known: bool| {
        if !folder.is_current(job) {
            return Err(EvalError::Stopped);
        }
        if !is_known {
            file.keep(&result)?;
            counts.lock().unwrap_or_else(PoisonError::into_inner).add(&result);
        }
        results.push(result);
        match folder.running.is_stopping.load(Ordering::SeqCst) {
            true => Err(EvalError::Stopped),
            false => Ok(()),
        }
    };
    experiment.run_each_known(cases, keep).await?;
    folder.finish(job, &file, &Report::new(experiment.head(), results))?;
    Ok(())
}
