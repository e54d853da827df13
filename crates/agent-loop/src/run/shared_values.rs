//! Values of shared keys that a run reads: recorded where it begins, so that a replay need not guess.
//!
//! A value that is too large to be recorded costs nothing here, however large it is, which may surprise. It is
//! looked at no further than the bound.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::state::{Handler, State, ValueRef};
use stepfold_tools::{Tool, Tools};

use super::event::Event;
use super::machine::Run;
use crate::state_input::is_shared;

/// The longest value that is recorded, in bytes of its JSON, roughly.
const MAX_BYTES: usize = 4 * 1024;

/// The value of a key of the scopes `app:` and `user:` when a run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SharedValue {
    /// This value.
    Is(Value),
    /// None.
    Unset,
    /// One that is longer than is recorded: some 4 KiB of JSON.
    Large,
}

impl SharedValue {
    fn of(value: Option<ValueRef<'_>>) -> Self {
        let Some(value) = value else { return SharedValue::Unset };
        // NOTE: A digest in place of a large value would cost the whole value in every turn; this costs no more than
        // the bound.
        let mut left = MAX_BYTES;
        let is_small = match value {
            ValueRef::Json(value) => fits(value, &mut left),
            ValueRef::List(items) => items.iter().all(|item| fits(item, &mut left)),
            _ => false,
        };
        match is_small {
            true => SharedValue::Is(value.to_json()),
            false => SharedValue::Large,
        }
    }
}

/// Takes what the JSON of a value needs from what is left; stops where nothing is.
fn fits(value: &Value, left: &mut usize) -> bool {
    let mut take = |bytes: usize| match left.checked_sub(bytes) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    };
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => take(8),
        Value::String(text) => take(text.len() + 2),
        Value::Array(items) => take(2) && items.iter().all(|item| fits(item, left)),
        Value::Object(fields) => {
            take(2)
                && fields.iter().all(|(name, value)| {
                    let key = left.checked_sub(name.len() + 3);
                    *left = key.unwrap_or(0);
                    key.is_some() && fits(value, left)
                })
        }
    }
}

impl Event {
    /// Restores the values of shared scopes that the run found when it began, or continued in another process, as far
    /// as the event has them. For a host that folds a record again.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use serde_json::json;
    /// use stepfold_agent_loop::{Agent, Event, Input, RunEvent};
    /// use stepfold_state_core::state::{Schema, State};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: 12 stalls")?)
    ///     .schema(Schema::builder().key::<String>("app:motto").build()?)
    ///     .instructions("Be {app:motto}.")
    ///     .build()?;
    /// let mut state = State::new(agent.schema());
    /// state.set("app:motto", "brief")?;
    /// let mut seen = Vec::new();
    /// agent.run(Input::on(state).say("how many?")).observe(&mut seen).await?;
    ///
    /// // Next year the motto is another one.
    /// let mut state = State::new(agent.schema());
    /// state.set("app:motto", "kind")?;
    /// let began: &Event = seen.iter().find_map(RunEvent::committed).expect("it began");
    /// began.restore_shared(&mut state);
    /// assert_eq!(state.get("app:motto").unwrap(), json!("brief"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn restore_shared(&self, state: &mut State) {
        for (key, value) in &self.shared {
            // A key that the schema does not have any more, or whose values have another type: the schema changed,
            // which is a divergence of its own.
            let _ = match value {
                SharedValue::Is(value) => {
                    state.set_with(key.as_str(), value.clone(), &Handler::replace_values())
                }
                SharedValue::Unset if state.has(key.as_str()) => state.remove(key),
                SharedValue::Unset | SharedValue::Large => Ok(()),
            };
        }
    }
}

impl Run {
    /// The values of shared scopes that the run reads. All of them, each time: the run before may be in another process,
    /// or pruned.
    pub(super) fn shared_values(&self) -> BTreeMap<String, SharedValue> {
        // NOTE: A run that recorded only changed values would depend on the run before it, which may be pruned.
        let schema = self.state.schema();
        let is_known = |key: &&String| schema.key(key).is_some() || self.state.has(key.as_str());
        let keys = self.agent.shared_keys().iter().filter(is_known);
        keys.map(|key| (key.clone(), SharedValue::of(self.state.get(key.as_str())))).collect()
    }

    /// The values of shared scopes that a run reads when it continues: in a replay, routers must choose the same again,
    /// and an approver must be shown the same.
    pub(super) fn shared_values_now(&self) -> BTreeMap<String, SharedValue> {
        let has_inputs = || {
            let tools = self.tools().into_iter().flat_map(Tools::iter);
            tools.flat_map(Tool::input_keys).any(is_shared)
        };
        match self.is_taken_up && (self.agent.config().planner.is_some() || has_inputs()) {
            true => self.shared_values(),
            false => BTreeMap::new(),
        }
    }

    /// A run on the values on which a record of it says that it began, or continued.
    pub(crate) fn restore_shared(&mut self, next: &Event) {
        next.restore_shared(&mut self.state);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_recorded_up_to_a_bound() {
        let small = |value: &Value| SharedValue::of(Some(ValueRef::Json(value))) != SharedValue::Large;
        for value in [json!(null), json!("x".repeat(4000)), json!([1, 2]), json!({"a": {"b": [true]}})] {
            assert!(small(&value), "{value}");
        }
        let text = "x".repeat(5000);
        for value in [json!(text), json!([1, [text]]), json!({ text: 1 }), json!(vec![1; 600])] {
            assert!(!small(&value));
        }
    }
}
