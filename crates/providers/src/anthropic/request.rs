//! Everything of a request but its messages. It stands before them, so that the body of one step is the
//! beginning of the body of the next.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    ChatRequest, ModelError, ModelErrorKind, ResponseFormat, ToolChoice, ToolSpec,
};

use super::message::{Open, Wire, system};
use crate::wire::{self, WireCache};

/// Writes bodies, and remembers what it wrote.
pub(super) struct BodyWriter {
    messages: WireCache<Open>,
    pub(super) max_output_tokens: u64,
    pub(super) marks_cache: bool,
}

/// Fields that are ours to write.
const RESERVED: &[&str] = &["messages", "model", "stream", "system", "tools"];

impl BodyWriter {
    pub(super) const fn new(max_output_tokens: u64, marks_cache: bool) -> Self {
        BodyWriter { messages: WireCache::new(), max_output_tokens, marks_cache }
    }

    /// The body of a request.
    pub(super) fn body(&self, model: &str, request: &ChatRequest) -> Result<Vec<u8>, ModelError> {
        let mut body = Vec::with_capacity(1024);
        wire::json(&self.head(model, request)?, &mut body);
        body.pop();
        body.extend_from_slice(b",\"messages\":[");
        let wire = Wire { marks_end: self.marks_cache };
        self.messages.write(&wire, &request.messages, &mut body).map_err(|(index, error)| {
            ModelError::new(error.kind().clone(), format!("message {index}: {}", error.message()))
        })?;
        body.extend_from_slice(b"]}");
        Ok(body)
    }

    fn head(&self, model: &str, request: &ChatRequest) -> Result<Map<String, Value>, ModelError> {
        let params = &request.params;
        let mut head = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                head.insert(name.to_owned(), value);
            }
        };
        add("model", Some(model.into()));
        add("stream", Some(true.into()));
        add("max_tokens", Some(params.max_output_tokens.unwrap_or(self.max_output_tokens).into()));
        add("temperature", params.temperature.map(Value::from));
        add("top_p", params.top_p.map(Value::from));
        add("stop_sequences", (!params.stop.is_empty()).then(|| json!(params.stop)));
        add("output_config", request.response_format.as_ref().map(output_config).transpose()?);
        if !request.tools.is_empty() {
            add("tool_choice", tool_choice(&request.tool_choice));
            add("tools", Some(request.tools.iter().map(tool).collect()));
        }
        let system = system(request.messages.iter().map(|message| &**message), self.marks_cache);
        add("system", (!system.is_empty()).then(|| system.into()));
        for (name, value) in params.extras.iter() {
            if RESERVED.contains(&name) {
                let message = format!("the parameter `{name}` cannot be set as an extra");
                return Err(ModelError::new(ModelErrorKind::InvalidRequest, message));
            }
            head.insert(name.to_owned(), value.clone());
        }
        Ok(head)
    }
}

fn tool(spec: &ToolSpec) -> Value {
    let mut tool = json!({
        "name": spec.name,
        "description": spec.description,
        "input_schema": spec.parameters,
    });
    if spec.strict {
        tool["strict"] = true.into();
    }
    tool
}

fn tool_choice(choice: &ToolChoice) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!({"type": "none"})),
        ToolChoice::Required => Some(json!({"type": "any"})),
        ToolChoice::Named(name) => Some(json!({"type": "tool", "name": name})),
    }
}

fn output_config(format: &ResponseFormat) -> Result<Value, ModelError> {
    match format {
        ResponseFormat::JsonSchema { schema, .. } => {
            Ok(json!({"format": {"type": "json_schema", "schema": schema}}))
        }
        _ => Err(ModelError::new(
            ModelErrorKind::Unsupported,
            "this provider knows no JSON without a schema; ask for a JSON Schema, or say it in words",
        )),
    }
}
