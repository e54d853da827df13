//! Rules about lists of tasks: the percentage, and one task changed.

use serde_json::Value;
use stepfold_state_core::state::{State, ValueRef};

use super::keys;
use super::research::{Task, TaskStatus};

/// The completed part of tasks in percent, from 0 to 100: `100 * completed / total` in integers, 0 without tasks.
/// A task without a status is not completed.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{Task, TaskStatus, progress};
///
/// let task = |id| Task::new(id).status(if id <= 29 { TaskStatus::Completed } else { TaskStatus::Pending });
/// let tasks: Vec<Task> = (1..=50).map(task).collect();
/// assert_eq!(progress(&tasks), 58); // in floating point, 29 / 50 * 100 is a little less
/// assert_eq!(progress(&[]), 0);
/// ```
pub fn progress(tasks: &[Task]) -> u8 {
    let completed = tasks.iter().filter(|task| task.status == Some(TaskStatus::Completed)).count();
    percentage(completed, tasks.len())
}

/// The same tasks, with the one of this id changed. An unknown id changes nothing.
///
/// For the tasks of a [`State`], use [`writes::update_task`](super::writes::update_task).
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{Task, TaskStatus, update_task};
///
/// let tasks = [Task::new(1), Task::new(2)];
/// let changed = update_task(&tasks, 2, |task| task.status = Some(TaskStatus::Running));
/// assert_eq!(changed, [Task::new(1), Task::new(2).status(TaskStatus::Running)]);
/// assert_eq!(update_task(&tasks, 3, |task| task.status = None), tasks);
/// ```
pub fn update_task(tasks: &[Task], id: i64, mut change: impl FnMut(&mut Task)) -> Vec<Task> {
    let mut changed = tasks.to_vec();
    changed.iter_mut().filter(|task| task.id == id).for_each(&mut change);
    changed
}

/// Never above 100, since no more tasks are completed than there are.
pub(super) fn percentage(completed: usize, total: usize) -> u8 {
    let (completed, total) = (completed as u128, total as u128);
    u8::try_from((100 * completed).checked_div(total).unwrap_or(0)).unwrap_or(100)
}

/// The tasks of a state as they are stored, whatever else they hold; none if they are absent or null.
pub(super) fn tasks_in(state: &State) -> impl Iterator<Item = &Value> {
    state.get(keys::TASKS.name()).into_iter().flat_map(ValueRef::items)
}

/// The id of a stored task.
pub(super) fn id_of(task: &Value) -> Option<i64> {
    task.get("id").and_then(Value::as_i64)
}

/// The percentage of the tasks of a state.
pub(super) fn progress_in(state: &State) -> u8 {
    let is_completed = |task: &Value| task.get("status").and_then(Value::as_str) == Some("completed");
    let (completed, total) = tasks_in(state)
        .fold((0, 0), |(completed, total), task| (completed + usize::from(is_completed(task)), total + 1));
    percentage(completed, total)
}
