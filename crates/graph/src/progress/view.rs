//! Progress as people see it: plain data for bars, pages and lines.

use std::fmt;

use serde::{Deserialize, Serialize};
use stepfold_state_core::state::{State, ValueRef};

use super::error::{ProgressError, require};
use super::research::{Task, TaskStatus};
use super::{keys, progress, writes};

/// The tasks with their status, and the percentage of all.
///
/// It prints as a line of its own and one for each task.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{Progress, ResearchState, Task, TaskStatus};
///
/// let tasks = vec![Task::new(1).title("search").status(TaskStatus::Completed), Task::new(2)];
/// let state = ResearchState { tasks: Some(tasks), ..ResearchState::new("market_research") }.to_state()?;
/// let progress = Progress::of(&state)?;
/// assert_eq!((progress.percentage, progress.completed), (50, 1));
/// assert_eq!(progress.tasks[1].status, TaskStatus::Pending);
/// assert_eq!(progress.to_string(), " 50 % (1 of 2)\n1 completed search\n2 pending");
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// The completed part of all tasks in percent, from 0 to 100.
    pub percentage: u8,
    /// The number of completed tasks.
    pub completed: usize,
    /// The task that was started last, if the state says.
    pub current_task: Option<i64>,
    /// The node that was started last, if the state says.
    pub current_node: Option<String>,
    /// The tasks, in their order.
    pub tasks: Vec<TaskProgress>,
}

/// One task as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskProgress {
    /// Its id.
    pub id: i64,
    /// The title.
    pub title: Option<String>,
    /// The status; by default pending.
    pub status: TaskStatus,
}

impl Progress {
    /// The progress of a state, computed from its tasks, independent of its `overall_progress`.
    ///
    /// # Errors
    /// [`ProgressError::MissingKey`] without the key `tasks`; [`ProgressError::State`] when what a schema of
    /// one's own holds there cannot be read as [`Task`]s. Then make them yourself, for
    /// [`Progress::of_tasks`].
    pub fn of(state: &State) -> Result<Self, ProgressError> {
        require(state.schema(), keys::TASKS.name(), writes::TASK_PROGRESS)?;
        let tasks = match state.get(keys::TASKS.name()) {
            Some(stored) if !stored.is_null() => state.get(keys::TASKS)?.unwrap_or_default(),
            _ => Vec::new(),
        };
        let current_task = state.get(keys::CURRENT_TASK_ID.name()).and_then(|id| id.as_json()?.as_i64());
        let current_node = state.get(keys::CURRENT_NODE.name()).and_then(ValueRef::as_str).map(str::to_owned);
        Ok(Progress { current_task, current_node, ..Progress::of_tasks(&tasks) })
    }

    /// The progress of these tasks.
    pub fn of_tasks(tasks: &[Task]) -> Self {
        let seen: Vec<TaskProgress> = tasks.iter().map(TaskProgress::of).collect();
        Progress {
            percentage: progress(tasks),
            completed: seen.iter().filter(|task| task.status == TaskStatus::Completed).count(),
            current_task: None,
            current_node: None,
            tasks: seen,
        }
    }
}

impl TaskProgress {
    fn of(task: &Task) -> Self {
        let status = task.status.unwrap_or(TaskStatus::Pending);
        TaskProgress { id: task.id, title: task.title.clone(), status }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3} % ({} of {})", self.percentage, self.completed, self.tasks.len())?;
        let width = self.tasks.iter().map(|task| task.id.to_string().len()).max().unwrap_or_default();
        for TaskProgress { id, title, status } in &self.tasks {
            match title {
                Some(title) => write!(f, "\n{id:>width$} {status:<9} {title}")?,
                None => write!(f, "\n{id:>width$} {status}")?,
            }
        }
        Ok(())
    }
}
