//! Builds an agent from its form. Faults of the library are mapped to lines of the file.

use std::path::Path;

use serde_json::{Value, json};
use stepfold::agent_loop::{AgentBuilder, OutputMode};
use stepfold::prelude::*;
use stepfold::state_core::chat::{ModelParams, ServerTool};
use stepfold::state_core::state::{Handlers, Issue, KeySchema, StateError, check_key};
use stepfold::tools::{CallLimits, recall_tools};

use super::{AgentModels, context};
use crate::form::agent::{
    AgentFileForm, ApprovalForm, McpForm, NamedValues, OutputModeForm, RecalledSessions, ServerToolForm,
    StateKeyForm, ValueConversion,
};
use crate::form::{FaultCollector, check_closed, nearest};
use crate::tool;

/// Builds the agent on a state of this schema, and of the keys that its graph shares with it. If that fails, the reasons
/// are among the faults.
pub(super) fn build(
    form: &AgentFileForm,
    faults: &mut FaultCollector,
    folder: &Path,
    name: &str,
    models: AgentModels,
    (schema, graph): (Schema, Option<&Schema>),
) -> Option<Agent> {
    let keys = graph.into_iter().flat_map(Schema::keys).map(KeySchema::name);
    let known = schema.with_keys_of(graph.unwrap_or(&schema), keys);
    let tools: Vec<(&str, Tool)> = form
        .tools
        .iter()
        .filter_map(|(name, form)| {
            let tool =
                faults.within(&["tools", name], |faults| tool::build(name, form, folder, &known, faults));
            Some((name, tool?))
        })
        .collect();
    let named: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
    let mut sets = vec![Toolset::from(tools.into_iter().map(|(_, tool)| tool).collect::<Vec<_>>())];
    let mut servers = Vec::new();
    for (name, server) in form.mcp.iter() {
        let built = faults.within(&["mcp", name], |faults| tool::mcp::toolset(name, server, folder, faults));
        if let Some(tools) = built {
            sets.push(tools);
            servers.push((name, server));
        }
    }
    if let Some(recall) = &form.recall {
        let across = (recall.sessions == RecalledSessions::User).then(|| models.recall.toolset());
        for tools in [Some(recall_tools()), across].into_iter().flatten() {
            match tools {
                Ok(tools) => sets.push(tools),
                Err(error) => faults.add(&["recall"], error.to_string()),
            }
        }
    }
    let exits = exits(form, &named, &servers, faults);
    let tools = match sets.len() {
        1 => sets.remove(0),
        _ => Toolset::merged("tools", sets),
    };
    let mut builder = Agent::builder(models.own)
        .name(name)
        .schema(schema)
        .tools(tools)
        .exit_on(exits)
        .limits(limits(form))
        .tool_limits(tool_limits(form))
        .params(params(form))
        .approval(form.approval.into())
        .trim(context::trim(form, faults));
    if let Some(graph) = graph {
        builder = builder.graph_schema(graph.clone());
    }
    if let Some(instructions) = &form.instructions {
        check_closed("instructions", instructions, faults);
        builder = builder.instructions(instructions);
    }
    if let Some(window) = context::window(form, faults) {
        builder = builder.window(window);
    }
    if let Some(summarize) = context::summarize(form, faults) {
        builder = builder.summarize(summarize);
    }
    if let Some(model) = models.summary {
        builder = builder.summary_model(model);
    }
    match flags(builder, form).build() {
        Ok(agent) => Some(agent),
        Err(error) => {
            for fault in &error.faults {
                let path = path_of_fault(fault);
                faults.add(&path, fault_text(fault));
            }
            None
        }
    }
}

fn flags(mut builder: AgentBuilder, form: &AgentFileForm) -> AgentBuilder {
    if let Some(output) = &form.output {
        let schema = Value::Object(output.schema.clone().into_iter().collect());
        let mode = match output.mode {
            OutputModeForm::Schema => OutputMode::Schema,
            OutputModeForm::Tool => OutputMode::Tool,
            OutputModeForm::Prompt => OutputMode::Prompt,
        };
        builder =
            builder.output_with(Output::schema(&output.name, schema).mode(mode).repairs(output.repairs));
    }
    if form.final_answer {
        builder = builder.final_answer();
    }
    if form.ask_when_uncertain {
        builder = builder.ask_when_uncertain();
    }
    if form.raise_on_failure {
        builder = builder.raise_on_failure();
    }
    if form.recover_leaked_calls {
        builder = builder.recover_leaked_calls();
    }
    builder
}

/// Builds the schema of the state. A key with a fault has any type, so that the fault is reported once. `more` are further
/// keys in their stored form, unless the file declares them.
pub(super) fn state_schema(
    state: &NamedValues<StateKeyForm>,
    is_open: bool,
    faults: &mut FaultCollector,
    more: serde_json::Map<String, Value>,
) -> Schema {
    let mut keys = serde_json::Map::new();
    for (name, key) in state.iter() {
        if let Err(error) = check_key(name) {
            faults.add(&["state", name], error.to_string());
            continue;
        }
        if key.migrate.contains(&ValueConversion::Default) && key.default.is_none() {
            let words = "conversion `default` requires a default: add `default` to the key";
            faults.add(&["state", name, "migrate"], words);
        }
        keys.insert(name.to_owned(), sound_key(name, key, faults));
    }
    for (name, key) in more {
        keys.entry(name).or_insert(key);
    }
    read_schema(is_open, &keys).unwrap_or_else(|error| {
        faults.add(&["state"], state_fault(&error));
        Schema::default()
    })
}

fn read_schema(open: bool, keys: &serde_json::Map<String, Value>) -> Result<Schema, StateError> {
    Schema::from_json(&json!({"version": 1, "open": open, "keys": keys}).to_string(), &Handlers::new())
}

/// A key in its stored form, without its faulty fields: each field is checked alone, so that all faults are found at once.
fn sound_key(name: &str, key: &StateKeyForm, faults: &mut FaultCollector) -> Value {
    let text = |text: &String| Value::String(text.clone());
    let fields = [
        ("type", Some(key.value_type.clone())),
        ("description", key.description.as_ref().map(text)),
        ("handler", key.handler.as_ref().map(text)),
        ("default", key.default.clone()),
    ];
    let mut without_faults = serde_json::Map::new();
    without_faults.insert("type".to_owned(), Value::Bool(true));
    for (field, value) in fields {
        let Some(value) = value else { continue };
        let before = without_faults.insert(field.to_owned(), value);
        let alone = [(name.to_owned(), Value::Object(without_faults.clone()))].into_iter().collect();
        if let Err(error) = read_schema(false, &alone) {
            faults.add(&["state", name, field], state_fault(&error));
            match before {
                Some(before) => drop(without_faults.insert(field.to_owned(), before)),
                None => drop(without_faults.shift_remove(field)),
            }
        }
    }
    Value::Object(without_faults)
}

fn state_fault(error: &StateError) -> String {
    match error {
        StateError::InvalidSchema { faults } => {
            faults.iter().map(|fault| fault.message.clone()).collect::<Vec<_>>().join("; ")
        }
        error => crate::error::chain(error),
    }
}

/// The exit tools that exist. Unknown ones are faults here, where their line is known; a tool that could not be built has
/// its fault already.
fn exits(
    form: &AgentFileForm,
    tools: &[&str],
    servers: &[(&str, &McpForm)],
    faults: &mut FaultCollector,
) -> Vec<String> {
    let all: Vec<(&str, &McpForm)> = form.mcp.iter().collect();
    for (place, name) in
        form.exit_on.iter().enumerate().filter(|(_, name)| !form.tools.has(name) && !is_of_server(&all, name))
    {
        let near = nearest(name, form.tools.names());
        faults.add(&["exit_on", &place.to_string()], format!("unknown tool `{name}`{near}"));
    }
    let built = |name: &&String| tools.contains(&name.as_str()) || is_of_server(servers, name);
    form.exit_on.iter().filter(built).cloned().collect()
}

/// Whether a name may be a tool of a server: only the server knows its tools.
fn is_of_server(servers: &[(&str, &McpForm)], name: &str) -> bool {
    servers.iter().any(|(server, form)| match &form.prefix {
        Some(prefix) => name.starts_with(prefix),
        None => name.strip_prefix(server).is_some_and(|rest| rest.starts_with('_')),
    })
}

fn limits(form: &AgentFileForm) -> RunLimits {
    let mut limits = RunLimits::default();
    limits.steps = form.limits.steps.unwrap_or(limits.steps);
    limits.calls_per_reply = form.limits.calls_per_reply.unwrap_or(limits.calls_per_reply);
    limits.tool_calls = form.limits.tool_calls;
    limits.tokens = form.limits.tokens;
    limits.reply_bytes = form.limits.reply_bytes.unwrap_or(limits.reply_bytes);
    limits.empty_replies = form.limits.empty_replies.unwrap_or(limits.empty_replies);
    limits.time = form.limits.time.map(|time| time.0);
    limits
}

fn tool_limits(form: &AgentFileForm) -> CallLimits {
    let mut limits = CallLimits::default();
    limits.concurrency = form.tool_limits.concurrency.unwrap_or(limits.concurrency);
    limits.timeout = form.tool_limits.timeout.map_or(limits.timeout, |time| time.0);
    limits.output_bytes = form.tool_limits.output_bytes.unwrap_or(limits.output_bytes);
    limits
}

fn params(form: &AgentFileForm) -> ModelParams {
    let form = &form.params;
    let mut params = ModelParams::default()
        .with_stop(&form.stop)
        .with_server_tools(form.server_tools.iter().map(server_tool));
    params.temperature = form.temperature;
    params.top_p = form.top_p;
    params.max_output_tokens = form.max_output_tokens;
    params.seed = form.seed;
    params
}

fn server_tool(form: &ServerToolForm) -> ServerTool {
    let fields = form.tool.iter().map(|(name, value)| (name.clone(), value.clone()));
    ServerTool::new(&form.dialect, fields.collect::<serde_json::Value>())
}

impl From<ApprovalForm> for Approval {
    fn from(approval: ApprovalForm) -> Self {
        match approval {
            ApprovalForm::Never => Approval::Never,
            ApprovalForm::Always => Approval::Always,
            ApprovalForm::Once => Approval::Once,
        }
    }
}

/// The path in the file of a fault from the agent's builder.
fn path_of_fault(fault: &Issue) -> Vec<String> {
    let path = |steps: &[&str]| steps.iter().map(|step| (*step).to_owned()).collect();
    if let Some(tool) = fault.path.strip_prefix("tool ") {
        return path(&["tools", tool]);
    }
    if let Some(limit) = fault.path.strip_prefix("limits.") {
        return path(&["limits", limit]);
    }
    if fault.path.starts_with("output ") {
        return path(&["output", "schema"]);
    }
    path(&[fault.path.as_str()])
}

fn fault_text(fault: &Issue) -> String {
    match fault.path.split_once(' ') {
        Some(("tool", name)) => format!("tool `{name}`: {}", fault.message),
        _ => format!("{}: {}", fault.path, fault.message),
    }
}
