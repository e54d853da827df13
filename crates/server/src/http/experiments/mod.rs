//! Experiments of an app: data sets, reports and jobs, as files in a folder, and the worker that runs the jobs.

mod erasure;
mod files;
mod jobs;
mod request;
mod worker;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Agent;
use stepfold_eval::{EvalError, Judge};

pub use self::erasure::ErasedCase;
pub(in crate::http) use self::files::check_name;
pub(in crate::http) use self::jobs::{ExperimentJob, StoredExperiment};
pub(in crate::http) use self::request::NewExperiment;
use self::worker::RunningJobs;
use crate::http::guard::problem::Problem;

/// A folder with the data sets of an app, and its experiments, in a folder for each user.
///
/// `USER/NAME.jsonl` is a data set, and `USER/NAME.report` a report, as [`stepfold_eval`] has them; a user's folder has the
/// user's id in percent encoding, upper-case letters included; one of more than 200 bytes has a digest. So reports that a
/// command or a build server writes there are seen in the studio. Other processes with the folder see the same files; a report
/// appears when it is whole. Links are not followed.
///
/// `.jobs` has the experiments that wait or run, with their results so far. A server runs them in the background, and continues
/// those of a process that was killed, its own or another one: within a minute, each by one process at a time. One of mode `live`
/// that had begun is not continued, since its tools may have run for the case at hand: it has failed.
pub struct ExperimentFolder {
    folder: PathBuf,
    candidates: Option<Box<dyn Candidates>>,
    judge: Option<Judge>,
    /// Held while files are changed by what was read before.
    changing: Mutex<()>,
    running: RunningJobs,
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
        ExperimentFolder {
            folder: folder.into(),
            candidates: None,
            judge: None,
            changing: Mutex::default(),
            running: RunningJobs::default(),
        }
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

    /// The candidate with a change of the agent.
    fn candidate(&self, agent: &Agent, change: &CandidateChange) -> Result<Agent, Problem> {
        if *change == CandidateChange::default() {
            return Ok(agent.clone());
        }
        let fault = |why: String| Problem::invalid("candidate", why);
        let candidates = self.candidates.as_ref();
        let candidates =
            candidates.ok_or_else(|| fault("this server changes instructions only".to_owned()))?;
        candidates.candidate(change).map_err(fault)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fault of a case is the caller's.
pub(in crate::http) fn of_eval(error: &EvalError) -> Problem {
    Problem::invalid("evaluation", error)
}
