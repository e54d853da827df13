//! Everything of a request but its messages. It stands before them, so that the body of one step is the
//! beginning of the body of the next.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    ChatRequest, ModelError, ModelErrorKind, ResponseFormat, ToolChoice, ToolSpec,
};

use super::Preset;
use super::message::{Open, Wire};
use crate::wire::{self, WireCache};

/// Writes bodies, and remembers what it wrote.
pub(super) struct BodyWriter {
    messages: WireCache<Open>,
    tools: Mutex<Option<WiredTools>>,
}

/// The tools that were written last, and what was written.
struct WiredTools {
    specs: Arc<[ToolSpec]>,
    wired: Arc<[u8]>,
}

impl BodyWriter {
    pub(super) const fn new() -> Self {
        BodyWriter { messages: WireCache::new(), tools: Mutex::new(None) }
    }

    /// The body of a request.
    pub(super) fn body(
        &self,
        preset: &Preset,
        model: &str,
        request: &ChatRequest,
    ) -> Result<Vec<u8>, ModelError> {
        let mut head = head(preset, model, request)?;
        let extras = std::mem::take(&mut head.extras);
        let mut body = Vec::with_capacity(1024);
        wire::json(&head.fields, &mut body);
        body.pop();
        if !request.tools.is_empty() {
            body.extend_from_slice(b",\"tools\":");
            body.extend_from_slice(&self.tools(preset, &request.tools));
        }
        for (name, value) in extras {
            body.push(b',');
            wire::json(&name, &mut body);
            body.push(b':');
            wire::json(&value, &mut body);
        }
        body.extend_from_slice(b",\"messages\":[");
        self.messages.write(&Wire(preset), &request.messages, &mut body).map_err(|(index, error)| {
            ModelError::new(error.kind().clone(), format!("message {index}: {}", error.message()))
        })?;
        body.extend_from_slice(b"]}");
        Ok(body)
    }

    /// The tools as JSON, written once as long as they are the same.
    fn tools(&self, preset: &Preset, tools: &Arc<[ToolSpec]>) -> Arc<[u8]> {
        let mut kept = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref().filter(|known| Arc::ptr_eq(&known.specs, tools)) {
            return Arc::clone(&known.wired);
        }
        let mut wired = Vec::new();
        wire::json(&tools.iter().map(|spec| tool(preset, spec)).collect::<Vec<_>>(), &mut wired);
        let wired: Arc<[u8]> = wired.into();
        *kept = Some(WiredTools { specs: Arc::clone(tools), wired: Arc::clone(&wired) });
        wired
    }
}

struct Head {
    fields: Map<String, Value>,
    extras: Map<String, Value>,
}

/// Fields that are ours to write.
const RESERVED: &[&str] = &["messages", "model", "stream", "tools"];

fn head(preset: &Preset, model: &str, request: &ChatRequest) -> Result<Head, ModelError> {
    let mut fields = Map::new();
    fields.insert("model".to_owned(), model.into());
    fields.insert("stream".to_owned(), true.into());
    if preset.asks_for_usage {
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if !request.tools.is_empty() || request.tool_choice != ToolChoice::Auto {
        fields.extend(tool_choice(preset, &request.tool_choice));
    }
    if let Some(format) = &request.response_format {
        fields.insert("response_format".to_owned(), response_format(preset, format)?);
    }
    let params = &request.params;
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    add("temperature", params.temperature.map(Value::from));
    add("top_p", params.top_p.map(Value::from));
    add(preset.max_tokens_field, params.max_output_tokens.map(Value::from));
    add(preset.seed_field, params.seed.map(Value::from));
    add("stop", (!params.stop.is_empty()).then(|| json!(params.stop)));
    let mut extras = Map::new();
    for (name, value) in params.extras.iter() {
        if RESERVED.contains(&name) {
            let message = format!("the parameter `{name}` cannot be set as an extra");
            return Err(ModelError::new(ModelErrorKind::InvalidRequest, message));
        }
        fields.remove(name);
        extras.insert(name.to_owned(), value.clone());
    }
    Ok(Head { fields, extras })
}

fn tool_choice(preset: &Preset, choice: &ToolChoice) -> Option<(String, Value)> {
    let value = match choice {
        // It is the default everywhere.
        ToolChoice::Auto => return None,
        ToolChoice::None => "none".into(),
        ToolChoice::Required => preset.required.into(),
        ToolChoice::Named(name) => json!({"type": "function", "function": {"name": name}}),
    };
    Some(("tool_choice".to_owned(), value))
}

fn response_format(preset: &Preset, format: &ResponseFormat) -> Result<Value, ModelError> {
    match format {
        ResponseFormat::JsonObject => Ok(json!({"type": "json_object"})),
        ResponseFormat::JsonSchema { name, schema, strict } if preset.json_schema => Ok(json!({
            "type": "json_schema",
            "json_schema": { "name": name, "schema": schema, "strict": strict },
        })),
        _ => Err(ModelError::new(
            ModelErrorKind::Unsupported,
            "this provider cannot hold a reply to a JSON Schema; ask for a JSON object, and say the schema in words",
        )),
    }
}

fn tool(preset: &Preset, spec: &ToolSpec) -> Value {
    let mut function = json!({
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
    });
    if spec.strict && preset.strict_tools {
        function["strict"] = true.into();
    }
    json!({"type": "function", "function": function})
}
