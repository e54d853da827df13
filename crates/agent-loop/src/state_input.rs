//! Values that the state adds to a call, as shown to an approver.
//!
//! The tool names the parameters ([`Tool::inputs_on`]). An approval is for the values that were shown; the digest stands
//! for a long value, of which only the beginning is shown, and for one that is never recorded.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::canonical_json;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::State;
use stepfold_tools::Tool;

use crate::digest;

/// The prefix of keys whose values are never recorded.
pub(crate) const TEMPORARY: &str = "temp:";

/// The prefixes of keys that other sessions write, too.
const SHARED: [&str; 2] = ["app:", "user:"];

/// The maximum size of a value that is shown in full, in bytes of JSON.
const MAX_BYTES: usize = 2_000;

/// The number of characters that are shown of a longer value.
const BEGINNING: usize = 400;

/// A parameter that the state fills when a call runs: bound with
/// [`input_from_state`](stepfold_tools::ToolBuilder::input_from_state), or with
/// [`default_from_state`](stepfold_tools::ToolBuilder::default_from_state) where the model left it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StateInput {
    /// The parameter.
    pub parameter: String,
    /// The key of the state.
    pub key: String,
    /// The value of the key.
    #[serde(flatten)]
    pub value: StateValue,
}

/// A value of the state as shown to an approver. Two are equal if and only if the values are.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::StateValue;
///
/// assert_eq!(StateValue::of(&json!([3, 7])), StateValue::Value(json!([3, 7])));
/// let StateValue::Truncated { begins, bytes, .. } = StateValue::of(&json!("x".repeat(5_000))) else { panic!() };
/// assert_eq!((begins.len(), bytes), (400, 5_002));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateValue {
    /// The whole value.
    Value(Value),
    /// The beginning of a value of more than 2,000 bytes.
    Truncated {
        /// The first 400 characters of its JSON.
        begins: String,
        /// The bytes of its JSON.
        bytes: usize,
        /// The SHA-256 of its JSON, with the keys of objects in alphabetical order.
        sha256: String,
    },
    /// The value of a `temp:` key, which is never recorded.
    Hidden {
        /// The SHA-256 of its JSON.
        sha256: String,
    },
}

impl StateValue {
    /// A value as shown to an approver.
    pub fn of(value: &Value) -> Self {
        let text = canonical_json(value);
        if text.len() <= MAX_BYTES {
            return StateValue::Value(value.clone());
        }
        let begins = text.chars().take(BEGINNING).collect();
        // NOTE: The digest is over the whole value, and this form is a variant of its own: no value can be made to look
        // like a truncated one.
        StateValue::Truncated { begins, bytes: text.len(), sha256: digest::sha256(&text) }
    }

    fn of_key(key: &str, value: &Value) -> Self {
        match key.starts_with(TEMPORARY) {
            true => StateValue::Hidden { sha256: digest::sha256(&canonical_json(value)) },
            false => StateValue::of(value),
        }
    }
}

pub(crate) fn is_shared(key: &str) -> bool {
    SHARED.iter().any(|prefix| key.starts_with(prefix))
}

/// The values that a state adds to a call of a tool.
pub(crate) fn state_inputs(tool: &Tool, call: &ToolCall, state: &State) -> Vec<StateInput> {
    let Some(arguments) = call.arguments.as_object() else { return Vec::new() };
    let inputs = tool.inputs_on(arguments, state).into_iter().map(|input| StateInput {
        parameter: input.parameter.to_owned(),
        key: input.key.to_owned(),
        value: StateValue::of_key(input.key, &input.value.to_json()),
    });
    inputs.collect()
}

/// The inputs as text that equal ones share; empty if there are none.
pub(crate) fn canonical_inputs(inputs: &[StateInput]) -> String {
    match inputs.is_empty() {
        true => String::new(),
        false => canonical_json(&serde_json::to_value(inputs).unwrap_or_default()),
    }
}

/// Keeps the inputs that modified arguments leave open; null counts as missing.
pub(crate) fn retain_open(inputs: &mut Vec<StateInput>, arguments: &Value) {
    let none = Map::new();
    let arguments = arguments.as_object().unwrap_or(&none);
    inputs.retain(|input| arguments.get(&input.parameter).is_none_or(Value::is_null));
}

/// Whether two inputs are equal, as far as they are recorded.
pub(crate) fn are_recorded_alike(one: &[StateInput], other: &[StateInput]) -> bool {
    let recorded = |input: &&StateInput| input.is_recorded();
    one.iter().filter(recorded).eq(other.iter().filter(recorded))
}

/// Whether all these values are recorded.
pub(crate) fn are_recorded(inputs: &[StateInput]) -> bool {
    inputs.iter().all(StateInput::is_recorded)
}

impl StateInput {
    /// Whether the value is recorded: those of `temp:` keys are not, nor long ones of keys that other sessions write.
    fn is_recorded(&self) -> bool {
        match &self.value {
            StateValue::Value(_) => true,
            StateValue::Truncated { .. } => !is_shared(&self.key),
            StateValue::Hidden { .. } => false,
        }
    }
}
