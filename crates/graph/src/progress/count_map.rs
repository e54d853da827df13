//! Counts by node, as the state has them: one map under one key.

use serde_json::{Map, Value};
use stepfold_state_core::state::State;

use super::error::ProgressError;

/// The purpose that errors about missing keys name.
pub(super) const COUNTING: &str = "counting executions";

/// The count of a node; none if it is absent or null, or the whole map is.
pub(super) fn count_in(state: &State, key: &str, node: &str) -> Result<Option<u64>, ProgressError> {
    let count = map_in(state, key)?.and_then(|counts| counts.get(node));
    let Some(count) = count.filter(|count| !count.is_null()) else { return Ok(None) };
    count.as_u64().map(Some).ok_or_else(|| ProgressError::NoCount {
        key: key.to_owned(),
        path: format!("$.{node}"),
        expected: "an integer, at least 0",
    })
}

/// The map under a key; none if it is absent or null.
pub(super) fn map_in<'a>(
    state: &'a State,
    key: &str,
) -> Result<Option<&'a Map<String, Value>>, ProgressError> {
    let Some(value) = state.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    value.as_json().and_then(Value::as_object).map(Some).ok_or_else(|| ProgressError::NoCount {
        key: key.to_owned(),
        path: "$".to_owned(),
        expected: "an object of counts by node",
    })
}
