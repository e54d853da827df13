//! Why a helper could not read or write the state of a workflow. Nothing was changed then.

use stepfold_state_core::state::{KeySchema, Names, Schema, StateError};
use thiserror::Error;

/// Why the state of a workflow could not be read or written. Nothing was changed.
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
///     r#"the schema has no key "outputs", which reading the output of a node needs; declare it, or add `tracking_keys`; known keys: question, messages"#,
/// );
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgressError {
    /// The schema does not declare a key that is needed, and is not open.
    #[error(
        "the schema has no key \"{key}\", which {purpose} needs; declare it, or add `tracking_keys`; \
         known keys: {known}"
    )]
    MissingKey {
        /// The key that is missing.
        key: String,
        /// What needs it.
        purpose: &'static str,
        /// The keys that the schema declares.
        known: Names,
    },
    /// A node is to work on a task that is not there.
    #[error("node \"{node}\" is to work on task {task}, which is not among the tasks; known tasks: {known}")]
    NoSuchTask {
        /// The node.
        node: String,
        /// The id of the task.
        task: i64,
        /// The ids of the tasks that there are.
        known: Names,
    },
    /// A key of a schema of one's own holds what cannot be read as a count.
    #[error("key \"{key}\" cannot be read at {path}: expected {expected}")]
    NoCount {
        /// The key.
        key: String,
        /// Where in its value.
        path: String,
        /// What should be there.
        expected: &'static str,
    },
    /// The state does not take a write, or holds what is not of the type that it should have.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Makes sure that the schema lets the key in.
pub(super) fn require(schema: &Schema, key: &str, purpose: &'static str) -> Result<(), ProgressError> {
    if schema.is_open() || schema.key(key).is_some() {
        return Ok(());
    }
    let known = schema.keys().map(KeySchema::name).collect();
    Err(ProgressError::MissingKey { key: key.to_owned(), purpose, known })
}
