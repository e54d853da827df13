//! Built-in tools: the clock, and a tool that remembers values.

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::runner::{SystemClock, WallClock as _};
use stepfold::tools::ToolBuilder;

use crate::form::FaultCollector;
use crate::form::agent::{BuiltinForm, BuiltinTool};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct RememberArgs {
    /// The key to write to.
    key: String,
    /// The value, of the key's type.
    value: Value,
}

pub(super) fn builder(
    name: &str,
    description: Option<&str>,
    form: &BuiltinForm,
    schema: &Schema,
    faults: &mut FaultCollector,
) -> Option<ToolBuilder> {
    match form.name {
        BuiltinTool::Clock => {
            if !form.keys.is_empty() {
                faults.add(&["builtin", "keys"], "unsupported keys: the clock writes none");
            }
            let words = description.unwrap_or("Tells the date and the time, UTC.");
            let clock = async || Ok::<_, ToolError>(json!({"utc": SystemClock.now().to_string()}));
            Some(Tool::new(name, words, clock).effect(Effect::Pure))
        }
        BuiltinTool::Remember => remember(name, description, form, schema, faults),
    }
}

fn remember(
    name: &str,
    description: Option<&str>,
    form: &BuiltinForm,
    schema: &Schema,
    faults: &mut FaultCollector,
) -> Option<ToolBuilder> {
    if form.keys.is_empty() {
        faults.add(&["builtin"], "missing `keys` of `remember`: the keys that the model may write");
        return None;
    }
    let described = form.keys.iter().map(|key| {
        let words = schema.key(key).and_then(|key| key.description());
        words.map_or_else(|| key.clone(), |words| format!("{key} ({words})"))
    });
    let words =
        format!("Remembers a value under a key. The keys: {}.", described.collect::<Vec<_>>().join(", "));
    let parameters = json!({
        "type": "object",
        "properties": {
            "key": {"type": "string", "enum": form.keys},
            "value": {"description": "The value, of the key's type."},
        },
        "required": ["key", "value"],
    });
    let write = async |Args(RememberArgs { key, value }): Args<RememberArgs>, state: StateWriter| {
        state.set(key.as_str(), value)?;
        Ok::<_, ToolError>(format!("{key} is written"))
    };
    let tool = Tool::new(name, description.unwrap_or(&words), write);
    // NOTE: Pure, since a write to the state is not an effect outside the process: an interrupted call can run again.
    Some(tool.parameters(parameters).writes(form.keys.clone()).effect(Effect::Pure))
}
