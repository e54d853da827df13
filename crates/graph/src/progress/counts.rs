//! Executions of nodes, and their limits.

use stepfold_state_core::state::State;

use super::count_map::{COUNTING, count_in};
use super::error::{ProgressError, require};
use super::{keys, writes};

/// The default limit of a node without a value in `max_executions`.
pub const DEFAULT_MAX_EXECUTIONS: u64 = 3;

/// Counts one more execution of a node, and makes it the current one.
///
/// For nodes that run side by side, use [`writes::increment_execution_counts`].
///
/// # Errors
/// [`ProgressError::MissingKey`] without the keys `execution_counts` and `current_node`;
/// [`ProgressError::NoCount`] when the present value is not a count. Nothing is changed then.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{ResearchState, executions, increment_execution_count, keys};
///
/// let mut state = ResearchState::new("market_research").to_state()?;
/// increment_execution_count(&mut state, "planner")?;
/// increment_execution_count(&mut state, "planner")?;
/// assert_eq!(executions(&state, "planner")?, 2);
/// assert_eq!(state.get(keys::CURRENT_NODE)?.as_deref(), Some("planner"));
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn increment_execution_count(state: &mut State, node: &str) -> Result<(), ProgressError> {
    let delta = writes::increment_execution_counts(state, [node])?;
    Ok(state.apply(&delta)?)
}

/// Whether a node may run once more: it ran less often than it may.
///
/// # Errors
/// As [`executions`] and [`max_executions`].
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::{ResearchState, can_execute};
///
/// let mut state = ResearchState::new("market_research").to_state()?;
/// state.set("execution_counts", json!({"planner": 2, "searcher": 3}))?;
/// assert!(can_execute(&state, "planner")? && !can_execute(&state, "searcher")?);
/// state.set("max_executions", json!({"searcher": 10}))?;
/// assert!(can_execute(&state, "searcher")?);
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn can_execute(state: &State, node: &str) -> Result<bool, ProgressError> {
    Ok(executions(state, node)? < max_executions(state, node)?)
}

/// The executions of a node; 0 if they are not counted.
///
/// # Errors
/// [`ProgressError::MissingKey`] without the key `execution_counts`: a limit without a count would
/// never be reached. [`ProgressError::NoCount`] when the value is not a count.
pub fn executions(state: &State, node: &str) -> Result<u64, ProgressError> {
    require(state.schema(), keys::EXECUTION_COUNTS.name(), COUNTING)?;
    Ok(count_in(state, keys::EXECUTION_COUNTS.name(), node)?.unwrap_or(0))
}

/// The maximum number of executions of a node; [`DEFAULT_MAX_EXECUTIONS`] if not set, even if the schema does
/// not have the key `max_executions`.
///
/// # Errors
/// [`ProgressError::NoCount`] when the value is not a count.
pub fn max_executions(state: &State, node: &str) -> Result<u64, ProgressError> {
    Ok(count_in(state, keys::MAX_EXECUTIONS.name(), node)?.unwrap_or(DEFAULT_MAX_EXECUTIONS))
}
