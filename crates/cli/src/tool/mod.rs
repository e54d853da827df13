//! The tools of an agent file: programs, HTTP servers, MCP servers, and built-in ones.

mod builtin;
pub(crate) mod command;
mod http;
pub(crate) mod mcp;

use std::path::Path;

use serde_json::{Map, Value, json};
use stepfold::prelude::*;
use stepfold::state_core::state::Handlers;
use stepfold::tools::{BuildError, ResultSource, ResultText, Retry};

pub(crate) use self::command::ExternalProgram;
use crate::form::agent::{OutputBindingForm, ToolForm, ToolOutputFormat};
use crate::form::{FaultCollector, unknown_key};

/// Builds the tool of a table; none if it has faults.
pub(crate) fn build(
    name: &str,
    form: &ToolForm,
    folder: &Path,
    schema: &Schema,
    faults: &mut FaultCollector,
) -> Option<Tool> {
    let before = faults.count();
    unknown_keys(form, schema, faults);
    let parameters = parameters(form);
    let description = form.description.clone().unwrap_or_default();
    let built = match (&form.command, &form.http, &form.builtin) {
        (Some(command), None, None) => {
            command::builder(name, description, &command.command(), folder, faults)
        }
        (None, Some(http), None) => http::builder(name, description, http, &parameters, faults),
        (None, None, Some(builtin)) => {
            builtin::builder(name, form.description.as_deref(), builtin, schema, faults)
        }
        (None, None, None) => {
            faults.add_to_whole("invalid tool: expected one of `command`, `http` and `builtin`");
            None
        }
        _ => {
            faults
                .add_to_whole("invalid tool: expected one of `command`, `http` and `builtin`, found several");
            None
        }
    };
    let mut builder = built?;
    match (&form.builtin, &form.parameters) {
        (None, _) => builder = builder.parameters(parameters),
        (Some(_), Some(_)) => {
            faults.add(&["parameters"], "unsupported parameters: a built-in tool has its own");
        }
        (Some(_), None) => {}
    }
    builder = bind(builder, form, faults);
    if let Some(effect) = form.effect {
        builder = builder.effect(effect.into());
    }
    if let Some(time) = form.timeout {
        builder = builder.timeout(time.0);
    }
    if form.retries > 0 {
        builder = builder.retry(Retry::times(form.retries));
    }
    match builder.approval(form.approval.into()).build() {
        Ok(tool) => (faults.count() == before).then_some(tool),
        Err(BuildError::InvalidTool { faults: found, .. } | BuildError::InvalidTools { faults: found }) => {
            for fault in &found {
                faults.add_to_whole(format!("tool `{name}`: {}: {}", fault.path, fault.message));
            }
            None
        }
        Err(error) => {
            faults.add_to_whole(format!("tool `{name}`: {error}"));
            None
        }
    }
}

/// Reports bindings to keys that the state does not declare.
fn unknown_keys(form: &ToolForm, schema: &Schema, faults: &mut FaultCollector) {
    let tables = [
        ("inputs_from_state", form.inputs_from_state.keys().collect::<Vec<_>>()),
        ("defaults_from_state", form.defaults_from_state.keys().collect()),
        ("outputs_to_state", form.outputs_to_state.keys().collect()),
        ("builtin", form.builtin.iter().flat_map(|builtin| &builtin.keys).collect()),
    ];
    for (table, key) in tables.iter().flat_map(|(table, keys)| keys.iter().map(move |key| (table, key))) {
        if let Some(words) = unknown_key(key, schema) {
            faults.add(&[*table, key.as_str()], words);
        }
    }
}

/// The schema of the arguments; without one, an object without fields.
fn parameters(form: &ToolForm) -> Value {
    let mut fields: Map<String, Value> = form.parameters.clone().unwrap_or_default().into_iter().collect();
    fields.entry("type").or_insert_with(|| json!("object"));
    fields.entry("properties").or_insert_with(|| json!({}));
    Value::Object(fields)
}

fn bind(
    mut builder: stepfold::tools::ToolBuilder,
    form: &ToolForm,
    faults: &mut FaultCollector,
) -> stepfold::tools::ToolBuilder {
    for (key, parameter) in &form.inputs_from_state {
        builder = builder.input_from_state(key.as_str(), parameter);
    }
    for (key, parameter) in &form.defaults_from_state {
        builder = builder.default_from_state(key.as_str(), parameter);
    }
    let reads = form.command.as_ref().map(|command| command.command().output);
    let is_text = reads.or(form.http.as_ref().map(|http| http.output)) == Some(ToolOutputFormat::Text);
    for (key, OutputBindingForm { source, handler }) in &form.outputs_to_state {
        if source.is_some() && is_text {
            let words = "a field requires JSON output: add `output = \"json\"` to the command or the server";
            faults.add(&["outputs_to_state"], words);
        }
        let source = source.clone().map_or(ResultSource::Whole, ResultSource::Field);
        let Some(handler) = handler else {
            builder = builder.output_to_state(key.as_str(), source);
            continue;
        };
        match handler_of(handler) {
            Ok(handler) => builder = builder.output_to_state_with(key.as_str(), source, handler),
            Err(message) => faults.add(&["outputs_to_state"], message),
        }
    }
    if let Some(binding) = &form.outputs_to_string {
        if is_text {
            let words = "a field requires JSON output: add `output = \"json\"` to the command or the server";
            faults.add(&["outputs_to_string"], words);
        }
        builder = builder.output_to_string(ResultText::of(binding.source.as_str()));
    }
    builder
}

/// Parses the name of a handler, as schemas do.
fn handler_of(name: &str) -> Result<Handler, String> {
    let stored = json!({"version": 1, "keys": {"x": {"type": true, "handler": name}}}).to_string();
    let schema = Schema::from_json(&stored, &Handlers::new()).map_err(|error| crate::error::chain(&error))?;
    let key = schema.key("x").map(|key| key.handler().clone());
    key.ok_or_else(|| format!("unknown handler \"{name}\""))
}

/// Reads the output of a program or a server in the format of the file.
fn read_output(reads: ToolOutputFormat, text: &str) -> Result<Value, ToolError> {
    match reads {
        ToolOutputFormat::Text => Ok(Value::String(text.trim_end_matches(['\r', '\n']).to_owned())),
        ToolOutputFormat::Json => serde_json::from_str(text)
            .map_err(|error| ToolError::permanent(format!("invalid JSON in the output: {error}"))),
    }
}
