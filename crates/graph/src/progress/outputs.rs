//! Finding what a node gave.

use serde_json::Value;
use stepfold_state_core::state::{State, ValueRef};

use super::error::{ProgressError, require};
use super::keys;

/// The last output of a node, the whole object; none if it gave nothing yet.
///
/// # Errors
/// [`ProgressError::MissingKey`] without the key `outputs`.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::progress::{ResearchState, node_output};
///
/// let mut state = ResearchState::new("market_research").to_state()?;
/// state.set("outputs", json!([{"node": "planner", "tasks": 1}, {"node": "planner", "tasks": 2}]))?;
/// assert_eq!(node_output(&state, "planner")?, Some(&json!({"node": "planner", "tasks": 2})));
/// assert_eq!(node_output(&state, "judge")?, None);
/// # Ok::<(), stepfold_graph::progress::ProgressError>(())
/// ```
pub fn node_output<'a>(state: &'a State, node: &str) -> Result<Option<&'a Value>, ProgressError> {
    require(state.schema(), keys::OUTPUTS.name(), "reading the output of a node")?;
    let mut outputs = state.get(keys::OUTPUTS.name()).into_iter().flat_map(ValueRef::items).rev();
    Ok(outputs.find(|output| output.get("node").and_then(Value::as_str) == Some(node)))
}
