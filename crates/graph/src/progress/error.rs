//! Errors of reading and writing the state of a workflow. Nothing was changed.

use stepfold_state_core::state::{KeySchema, NameList, Schema, StateError};
use thiserror::Error;

/// An error of reading or writing the state of a workflow. Nothing was changed.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{ProgressError, node_output};
/// use stepfold_state_core::state::{Schema, State};
///
/// let state = State::new(&Schema::builder().key::<String>("question").build()?);
/// let error = node_output(&state, "planner").unwrap_err();
/// assert!(matches!(&error, ProgressError::MissingKey { key, .. } if key == "outputs"));
/// assert_eq!(
///     error.to_string(),
///     r#"missing key "outputs" for reading the output of a node: declare it, or add `tracking_keys`; known keys: question, messages"#,
/// );
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Error)]
#[non_exhaustive]
pub enum ProgressError {
    /// The schema does not declare a key that is needed, and is not open.
    #[error(
        "missing key \"{key}\" for {purpose}: declare it, or add `tracking_keys`; \
         known keys: {known}"
    )]
    MissingKey {
        /// The key that is missing.
        key: String,
        /// The purpose of the key.
        purpose: &'static str,
        /// The keys that the schema declares.
        known: NameList,
    },
    /// A node is to work on a task that is not there.
    #[error("unknown task {task} of node \"{node}\"; known tasks: {known}")]
    NoSuchTask {
        /// The node.
        node: String,
        /// The id of the task.
        task: i64,
        /// The ids of the known tasks.
        known: NameList,
    },
    /// A key of a custom schema has an invalid count.
    #[error("invalid value for key \"{key}\": expected {expected} at {path}")]
    NoCount {
        /// The key.
        key: String,
        /// The path in its value.
        path: String,
        /// The expectation.
        expected: &'static str,
    },
    /// The state rejects a write, or has a value of another type.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Checks that the schema has the key.
pub(super) fn require(schema: &Schema, key: &str, purpose: &'static str) -> Result<(), ProgressError> {
    if schema.is_open() || schema.key(key).is_some() {
        return Ok(());
    }
    let known = schema.keys().map(KeySchema::name).collect();
    Err(ProgressError::MissingKey { key: key.to_owned(), purpose, known })
}

stepfold_state_core::debug_as_text!(ProgressError);
