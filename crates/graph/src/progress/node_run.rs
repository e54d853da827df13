//! The writes at the start and at the end of a node's run.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::state::{Delta, Handler, Schema, State};

use super::error::{ProgressError, require};
use super::research::{NodeErrorRecord, NodeOutput, TaskStatus};
use super::tasks::{id_of, tasks_in};
use super::{keys, writes};

const TRACKING: &str = "tracking a node";

/// One run of a node, and the task that it works on, if any.
///
/// `start`, `complete` and `fail` change a state, all of it or nothing, and compute `overall_progress` again.
/// `started`, `completed` and `failed` give the writes instead, without the percentage: that is
/// [`writes::overall_progress`], once all deltas are folded.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::{NodeRun, ResearchState, Task, keys};
///
/// let research = ResearchState { tasks: Some(vec![Task::new(1)]), ..ResearchState::new("market_research") };
/// let mut state = research.to_state()?;
///
/// let run = NodeRun::new("searcher").task(1);
/// run.start(&mut state)?;
/// assert_eq!(state.get("tasks").unwrap(), json!([{"id": 1, "status": "running"}]));
/// run.fail(&mut state, run.error("timed out"))?;
/// assert_eq!(state.get("tasks").unwrap(), json!([{"id": 1, "status": "failed"}]));
/// assert_eq!(state.get("errors").unwrap(), json!([{"message": "timed out", "node": "searcher", "task_id": 1}]));
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeRun {
    /// The node.
    pub node: String,
    /// The id of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<i64>,
}

impl NodeRun {
    /// A run of this node that works on no task.
    pub fn new(node: impl Into<String>) -> Self {
        NodeRun { node: node.into(), task: None }
    }

    /// Works on this task.
    #[must_use]
    pub fn task(mut self, id: i64) -> Self {
        self.task = Some(id);
        self
    }

    /// An output of this run: text or any other value.
    pub fn output(&self, content: impl Into<Value>) -> NodeOutput {
        NodeOutput { task_id: self.task, ..NodeOutput::new(&self.node, content) }
    }

    /// An error of this run.
    pub fn error(&self, message: impl fmt::Display) -> NodeErrorRecord {
        NodeErrorRecord { task_id: self.task, ..NodeErrorRecord::new(&self.node, message.to_string()) }
    }

    /// Checks that a schema has all keys that tracking this run may write.
    ///
    /// # Errors
    /// [`ProgressError::MissingKey`] for the first key that is missing; [`ProgressError::State`] for one
    /// whose type takes no such value. Fields of tasks and outputs are not known yet.
    pub fn check(&self, schema: &Schema) -> Result<(), ProgressError> {
        for key in [keys::CURRENT_NODE.name(), keys::OUTPUTS.name(), keys::ERRORS.name()] {
            require(schema, key, TRACKING)?;
        }
        schema.check_write_to(keys::OUTPUTS.name(), Some(&Handler::merge_lists()))?;
        schema.write(keys::CURRENT_NODE, &self.node)?;
        writes::appended(schema, keys::ERRORS, vec![self.error("")])?;
        let Some(task) = self.task else { return Ok(()) };
        for key in [keys::TASKS.name(), keys::CURRENT_TASK_ID.name(), keys::OVERALL_PROGRESS.name()] {
            require(schema, key, TRACKING)?;
        }
        schema.check_write_to(keys::TASKS.name(), Some(&Handler::upsert_by("id")))?;
        schema.write(keys::CURRENT_TASK_ID, task)?;
        schema.write(keys::OVERALL_PROGRESS, 0)?;
        Ok(())
    }

    /// The writes of the start: the task is running, and it and the node are the current ones.
    ///
    /// # Errors
    /// [`ProgressError::MissingKey`]; [`ProgressError::NoSuchTask`], since a run for a task that is not there
    /// would never show in the percentage.
    pub fn started(&self, state: &State) -> Result<Delta, ProgressError> {
        let schema = state.schema();
        require(schema, keys::CURRENT_NODE.name(), TRACKING)?;
        let mut delta = Delta::new();
        if let Some(task) = self.task {
            require(schema, keys::CURRENT_TASK_ID.name(), TRACKING)?;
            delta.extend(self.status(state, TaskStatus::Running)?);
            // NOTE: A run for a missing task would never show, so that is reported before it works.
            if delta.is_empty() {
                let known = tasks_in(state).filter_map(id_of).map(|id| id.to_string()).collect();
                return Err(ProgressError::NoSuchTask { node: self.node.clone(), task, known });
            }
            delta.push(schema.write(keys::CURRENT_TASK_ID, task)?);
        }
        delta.push(schema.write(keys::CURRENT_NODE, &self.node)?);
        Ok(delta)
    }

    /// The writes of the end: the task is completed, and the outputs are appended to `outputs`, if the node gave
    /// something. If the task is gone by now, only the outputs are written.
    ///
    /// # Errors
    /// [`ProgressError::MissingKey`]; [`ProgressError::State`] for outputs that do not fit the key.
    pub fn completed(
        &self,
        state: &State,
        outputs: impl IntoIterator<Item = NodeOutput>,
    ) -> Result<Delta, ProgressError> {
        let outputs: Vec<NodeOutput> = outputs.into_iter().collect();
        // NOTE: A missing task is no error here: the work is done, and its outputs are worth more than the status.
        let mut delta = self.status(state, TaskStatus::Completed)?;
        if !outputs.is_empty() {
            require(state.schema(), keys::OUTPUTS.name(), TRACKING)?;
            delta.push(writes::appended(state.schema(), keys::OUTPUTS, outputs)?);
        }
        Ok(delta)
    }

    /// The writes of a failure: the task is failed, and the error is appended to `errors`. If the task is gone by
    /// now, only the error is written.
    ///
    /// # Errors
    /// [`ProgressError::MissingKey`]; [`ProgressError::State`] for an error that does not fit the key.
    pub fn failed(&self, state: &State, error: NodeErrorRecord) -> Result<Delta, ProgressError> {
        require(state.schema(), keys::ERRORS.name(), TRACKING)?;
        let mut delta = self.status(state, TaskStatus::Failed)?;
        delta.push(writes::appended(state.schema(), keys::ERRORS, vec![error])?);
        Ok(delta)
    }

    /// Starts, in place.
    ///
    /// # Errors
    /// As [`NodeRun::started`] and [`writes::overall_progress`]. Nothing is changed then.
    pub fn start(&self, state: &mut State) -> Result<(), ProgressError> {
        let delta = self.started(state)?;
        self.fold(state, &delta)
    }

    /// Completes, in place.
    ///
    /// # Errors
    /// As [`NodeRun::completed`] and [`writes::overall_progress`]. Nothing is changed then.
    pub fn complete(
        &self,
        state: &mut State,
        outputs: impl IntoIterator<Item = NodeOutput>,
    ) -> Result<(), ProgressError> {
        let delta = self.completed(state, outputs)?;
        self.fold(state, &delta)
    }

    /// Fails, in place.
    ///
    /// # Errors
    /// As [`NodeRun::failed`] and [`writes::overall_progress`]. Nothing is changed then.
    pub fn fail(&self, state: &mut State, error: NodeErrorRecord) -> Result<(), ProgressError> {
        let delta = self.failed(state, error)?;
        self.fold(state, &delta)
    }

    /// Fails without an error, in place: only the status is written.
    pub(super) fn fail_without_error(&self, state: &mut State) -> Result<(), ProgressError> {
        let delta = self.status(state, TaskStatus::Failed)?;
        self.fold(state, &delta)
    }

    fn status(&self, state: &State, status: TaskStatus) -> Result<Delta, ProgressError> {
        match self.task {
            Some(task) => writes::update_task(state, task, [("status", status.as_str())]),
            None => Ok(Delta::new()),
        }
    }

    fn fold(&self, state: &mut State, delta: &Delta) -> Result<(), ProgressError> {
        let mut next = state.clone();
        next.apply(delta)?;
        if self.task.is_some() {
            next.apply(&writes::overall_progress(&next)?)?;
        }
        *state = next;
        Ok(())
    }
}
