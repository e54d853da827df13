//! Tracking outside of graphs: a future whose task is completed or failed in the end, whatever happens inside.

use std::error::Error;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::State;
use stepfold_tools::panic_message;
use thiserror::Error as ThisError;

use super::error::ProgressError;
use super::node_run::NodeRun;
use super::research::NodeOutput;

/// Runs the work of a node, and tracks its progress in a state: the task is running before the work begins, and
/// completed or failed after it, with its outputs or its error appended.
///
/// Work that returns an error, panics, or is dropped, for instance by a timeout, has failed; the error says which. What
/// the work began elsewhere is not undone. If the outputs do not fit the state, the task has failed as well, and the error
/// returns them.
///
/// Take a `&mut State`, or an `Arc<Mutex<State>>` where several are at work at once. The mutex is held while
/// the state changes, never while the work waits.
///
/// # Errors
/// [`TrackError`]. If the run cannot be tracked on this state, the work is not begun.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_graph::progress::{NodeRun, Progress, ResearchState, Task, TrackError, track};
///
/// let research = ResearchState { tasks: Some(vec![Task::new(1), Task::new(2)]), ..ResearchState::new("market_research") };
/// let mut state = research.to_state()?;
///
/// let run = NodeRun::new("searcher").task(1);
/// track(&mut state, &run, async { Ok::<_, TrackError>([run.output("area 3")]) }).await?;
///
/// let run = NodeRun::new("counter").task(2);
/// let error = track(&mut state, &run, async { Err::<[_; 0], _>("no such area") }).await.unwrap_err();
/// assert!(matches!(error, TrackError::Failed { .. }));
///
/// assert_eq!(Progress::of(&state)?.to_string(), " 50 % (1 of 2)\n1 completed\n2 failed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub async fn track<O, E>(
    target: impl TrackTarget,
    run: &NodeRun,
    work: impl Future<Output = Result<O, E>>,
) -> Result<(), TrackError>
where
    O: IntoIterator<Item = NodeOutput>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let node = run.node.clone();
    let mut open = match TrackedRun::start(target, run) {
        Ok(open) => open,
        Err(error) => return Err(TrackError::Untracked { node, source: Box::new(error) }),
    };
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(outputs)) => open.complete(outputs.into_iter().collect()),
        Ok(Err(error)) => {
            let source = error.into();
            open.fail(&ErrorChain(&*source).to_string());
            Err(TrackError::Failed { node, source })
        }
        Err(panic) => {
            let words = panic_message(&*panic);
            // The panic may be made of what panics when it is dropped.
            mem::forget(panic);
            open.fail(&format!("panicked: {words}"));
            Err(TrackError::Panicked { node, words })
        }
    }
}

/// An error of tracked work.
#[derive(ThisError)]
#[non_exhaustive]
pub enum TrackError {
    /// The run cannot be tracked on this state. The work was not begun.
    #[error("node \"{node}\" not started: its run cannot be tracked: {source}")]
    Untracked {
        /// The node.
        node: String,
        /// The cause.
        r#source: Box<ProgressError>,
    },
    /// The work gave an error.
    #[error("node \"{node}\" failed: {}", ErrorChain(&**source))]
    Failed {
        /// The node.
        node: String,
        /// The error.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// The work panicked.
    #[error("node \"{node}\" panicked: {words}")]
    Panicked {
        /// The node.
        node: String,
        /// The panic's message.
        words: String,
    },
    /// The work is done, but its outputs do not fit the state. Here they are.
    #[error("node \"{node}\" completed with invalid outputs: {source}")]
    Unrecorded {
        /// The node.
        node: String,
        /// The outputs.
        outputs: Vec<NodeOutput>,
        /// The fault.
        r#source: Box<ProgressError>,
    },
}

/// A state that [`track()`] can change: implemented here for a `&mut State`, and for mutexes, which several can share.
/// Implemented for states that are kept elsewhere; [`track()`] calls it once before the work and at least once after it.
pub trait TrackTarget {
    /// Calls `change` with the state, once, and gives what it gave. A `change` that fails changes nothing.
    ///
    /// # Errors
    /// Those of `change`.
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
    ) -> Result<(), ProgressError>;
}

impl TrackTarget for State {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
    ) -> Result<(), ProgressError> {
        change(self)
    }
}

impl TrackTarget for &Mutex<State> {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
    ) -> Result<(), ProgressError> {
        // Changes are all or nothing, so a panic has left a state that is whole.
        change(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TrackTarget for Arc<Mutex<State>> {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
    ) -> Result<(), ProgressError> {
        (&**self).change(change)
    }
}

impl<T: TrackTarget + ?Sized> TrackTarget for &mut T {
    fn change(
        &mut self,
        change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
    ) -> Result<(), ProgressError> {
        (**self).change(change)
    }
}

/// A run that has begun and is to end: dropped before that, it has failed.
struct TrackedRun<'a, T: TrackTarget> {
    target: T,
    run: &'a NodeRun,
    is_over: bool,
}

impl<'a, T: TrackTarget> TrackedRun<'a, T> {
    fn start(mut target: T, run: &'a NodeRun) -> Result<Self, ProgressError> {
        target.change(&mut |state| {
            run.check(state.schema())?;
            run.start(state)
        })?;
        Ok(TrackedRun { target, run, is_over: false })
    }

    fn complete(&mut self, outputs: Vec<NodeOutput>) -> Result<(), TrackError> {
        let run = self.run;
        match self.target.change(&mut |state| run.complete(state, outputs.iter().cloned())) {
            Ok(()) => {
                self.is_over = true;
                Ok(())
            }
            Err(source) => {
                self.fail(&format!("invalid outputs: {source}"));
                Err(TrackError::Unrecorded { node: run.node.clone(), outputs, source: Box::new(source) })
            }
        }
    }

    fn fail(&mut self, message: &str) {
        self.is_over = true;
        let run = self.run;
        if !self.attempt(|state| run.fail(state, run.error(message))) {
            // The status alone, then, so that no one waits for the task. The caller gets the error of the work.
            let is_marked = self.attempt(|state| run.fail_without_error(state));
            tracing::warn!(
                node = run.node,
                task = run.task,
                is_marked,
                "failed to record the error of a node"
            );
        }
    }

    /// Changes the state if that can be done. Handlers of one's own run inside, and this may run while a panic
    /// is under way already, when a second one would end the process.
    fn attempt(&mut self, mut change: impl FnMut(&mut State) -> Result<(), ProgressError>) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.target.change(&mut change))) {
            Ok(result) => result.is_ok(),
            Err(panic) => {
                // The panic may be made of what panics when it is dropped.
                mem::forget(panic);
                false
            }
        }
    }
}

impl<T: TrackTarget> Drop for TrackedRun<'_, T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.fail("dropped before its end");
        }
    }
}

stepfold_state_core::debug_as_text!(TrackError);
