//! The writes of the helpers, as deltas: for callers that fold them, as a graph does.
//!
//! Each looks at a state and changes nothing; apply the delta to that state, or to one that continued from it.

use serde::Serialize;
use serde_json::{Map, Value};
use stepfold_state_core::state::{Delta, Handler, Key, KeySchema, Schema, State, Write};

use super::count_map::{COUNTING, count_in, map_in};
use super::error::{ProgressError, require};
use super::keys;
use super::tasks::{id_of, progress_in, tasks_in};

pub(super) const TASK_PROGRESS: &str = "the progress of tasks";

/// One more execution of each of these nodes, in one write; the last one becomes the current node. A node that
/// is named twice ran twice. No nodes, no writes.
///
/// The counts are one map that is replaced, so two such deltas that were made from the same state undo
/// each other: count nodes that run side by side together.
///
/// # Errors
/// [`ProgressError::MissingKey`] without the keys `execution_counts` and `current_node`;
/// [`ProgressError::NoCount`] when a present value is not a count.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::{ResearchState, writes};
///
/// let mut state = ResearchState::new("market_research").to_state()?;
/// let delta = writes::increment_execution_counts(&state, ["searcher", "counter"])?;
/// state.apply(&delta)?;
/// assert_eq!(state.get("execution_counts").unwrap(), json!({"counter": 1, "searcher": 1}));
/// assert_eq!(state.get("current_node").unwrap(), "counter");
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn increment_execution_counts<'a>(
    state: &State,
    nodes: impl IntoIterator<Item = &'a str>,
) -> Result<Delta, ProgressError> {
    let (schema, key) = (state.schema(), keys::EXECUTION_COUNTS);
    require(schema, key.name(), COUNTING)?;
    require(schema, keys::CURRENT_NODE.name(), COUNTING)?;
    let mut counts = map_in(state, key.name())?.cloned().unwrap_or_default();
    let mut current = None;
    for node in nodes {
        let count = match counts.get(node).and_then(Value::as_u64) {
            Some(count) => count,
            None => count_in(state, key.name(), node)?.unwrap_or(0),
        };
        counts.insert(node.to_owned(), count.saturating_add(1).into());
        current = Some(node);
    }
    let Some(current) = current else { return Ok(Delta::new()) };
    let counts = schema.write_with(key.name(), Value::Object(counts), &Handler::replace_values())?;
    Ok([counts, schema.write(keys::CURRENT_NODE.name(), current)?].into_iter().collect())
}

/// Fields of one task, merged into it. Its other fields and the other tasks are not in the delta, so it undoes
/// nothing that others write meanwhile. An unknown id gives no writes; a task keeps its id, whatever `changes` say.
///
/// # Errors
/// [`ProgressError::MissingKey`] without the key `tasks`. Whether the fields fit is found out when the
/// delta is applied.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::{ResearchState, Task, writes};
///
/// let research = ResearchState { tasks: Some(vec![Task::new(1), Task::new(2)]), ..ResearchState::new("market_research") };
/// let mut state = research.to_state()?;
/// state.apply(&writes::update_task(&state, 2, [("status", "running")])?)?;
/// assert_eq!(state.get("tasks").unwrap(), json!([{"id": 1}, {"id": 2, "status": "running"}]));
/// assert!(writes::update_task(&state, 3, [("status", "running")])?.is_empty());
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn update_task<K: Into<String>, V: Into<Value>>(
    state: &State,
    id: i64,
    changes: impl IntoIterator<Item = (K, V)>,
) -> Result<Delta, ProgressError> {
    require(state.schema(), keys::TASKS.name(), TASK_PROGRESS)?;
    if !tasks_in(state).any(|task| id_of(task) == Some(id)) {
        return Ok(Delta::new());
    }
    let mut task: Map<String, Value> =
        changes.into_iter().map(|(field, value)| (field.into(), value.into())).collect();
    task.insert("id".to_owned(), id.into());
    // By name, whatever the schema says: with another handler the fields would stand beside the task,
    // or in place of all tasks.
    let handler = Handler::upsert_by("id");
    Ok([state.schema().write_with(keys::TASKS.name(), Value::Array(vec![task.into()]), &handler)?]
        .into_iter()
        .collect())
}

/// A write of the percentage of this state's tasks, if it differs from the stored one.
///
/// It depends on all tasks, so it is computed from the state that comes of a fold, not beside it.
///
/// # Errors
/// [`ProgressError::MissingKey`] without the keys `tasks` and `overall_progress`.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{ResearchState, Task, TaskStatus, keys, writes};
///
/// let done = Task::new(1).status(TaskStatus::Completed);
/// let research = ResearchState { tasks: Some(vec![done, Task::new(2)]), ..ResearchState::new("market_research") };
/// let mut state = research.to_state()?;
/// state.apply(&writes::overall_progress(&state)?)?;
/// assert_eq!(state.get(keys::OVERALL_PROGRESS)?, Some(50));
/// assert!(writes::overall_progress(&state)?.is_empty());
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn overall_progress(state: &State) -> Result<Delta, ProgressError> {
    let (schema, key) = (state.schema(), keys::OVERALL_PROGRESS);
    require(schema, keys::TASKS.name(), TASK_PROGRESS)?;
    require(schema, key.name(), TASK_PROGRESS)?;
    // NOTE: Never part of a node's delta: it depends on all tasks, and side by side each would overwrite the other's.
    let progress = progress_in(state);
    if state.get(key.name()).is_some_and(|current| current == u32::from(progress)) {
        return Ok(Delta::new());
    }
    Ok([schema.write(key.name(), progress)?].into_iter().collect())
}

/// Appends items to a list: by the key's own handler, unless that would replace the list.
pub(super) fn appended<T: Serialize>(
    schema: &Schema,
    key: Key<Vec<T>>,
    items: Vec<T>,
) -> Result<Write, ProgressError> {
    let appends =
        |handler: &&Handler| **handler != Handler::replace_values() && **handler != Handler::first_wins();
    let own = schema.key(key.name()).map(KeySchema::handler).filter(appends).cloned();
    Ok(schema.write_with(key, items, &own.unwrap_or_else(Handler::merge_lists))?)
}
