//! Prepares a call: validates the model's arguments, and adds the parameters from the state.

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Issues, NameList, State};

use super::outcome::{CallFailure, CallOutcome};
use crate::tool::Tool;
use crate::toolset::Tools;

/// A call that is ready to start.
pub(super) struct PreparedCall {
    /// The model's arguments and those read from the state.
    pub(super) arguments: Value,
    /// The indexes of the tool's inputs that were read from the state.
    pub(super) bound: Vec<usize>,
}

/// The tool of a call, or an outcome that lists the available ones.
pub(super) fn find_tool<'a>(tools: &'a Tools, call: &ToolCall) -> Result<&'a Tool, Box<CallOutcome>> {
    tools.get(&call.name).ok_or_else(|| {
        let available: NameList = tools.names().collect();
        let text = format!("unknown tool '{}'; available: {available}", call.name);
        Box::new(CallOutcome::failed(call, CallFailure::UnknownTool, text))
    })
}

impl Tools {
    /// The outcome of a call that cannot run with these tools, because the tool is unknown or the arguments
    /// are invalid; `None` for a call that can. An [`Invocation`](crate::Invocation) gives the call the same
    /// outcome.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_state_core::chat::ToolCall;
    /// use stepfold_tools::{Tool, ToolError, Tools};
    ///
    /// async fn ping() -> Result<&'static str, ToolError> {
    ///     Ok("pong")
    /// }
    /// let tools = Tools::of([Tool::new("ping", "Answers.", ping).build()?])?;
    /// assert!(tools.refusal(&ToolCall::new("c1", "ping", json!({}))).is_none());
    /// let refusal = tools.refusal(&ToolCall::new("c2", "pong", json!({}))).expect("the tool is unknown");
    /// assert_eq!(refusal.result.text(), "unknown tool 'pong'; available: ping");
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn refusal(&self, call: &ToolCall) -> Option<CallOutcome> {
        find_tool(self, call).and_then(|tool| arguments_of(tool, call)).err().map(|outcome| *outcome)
    }
}

/// Validates the arguments (all faults at once, before values of the state are added) and adds those that are read from
/// the state. For a parameter that only the state sets, the model's argument is ignored and a person's is a fault.
pub(super) fn prepare(
    tool: &Tool,
    call: &ToolCall,
    is_given: bool,
    state: &State,
) -> Result<PreparedCall, Box<CallOutcome>> {
    // NOTE: A person must not believe that a value was set which the state replaces.
    if is_given && let Some(given) = call.arguments.as_object() {
        tool.check_given(given).map_err(|faults| Box::new(invalid(call, &faults)))?;
    }
    let mut arguments = arguments_of(tool, call)?;
    let inputs: Vec<_> = tool.bound_inputs(&arguments, state).collect();
    let mut bound = Vec::with_capacity(inputs.len());
    if let Value::Object(arguments) = &mut arguments {
        for (index, input, value) in inputs {
            arguments.insert(input.parameter.clone(), value.to_json());
            bound.push(index);
        }
    }
    Ok(PreparedCall { arguments, bound })
}

/// The model's arguments, or an outcome with their faults.
fn arguments_of(tool: &Tool, call: &ToolCall) -> Result<Value, Box<CallOutcome>> {
    let Some(sent) = call.arguments.as_object() else {
        let error = call.arguments.malformed().map_or("", |(_, error)| error);
        let text = format!("malformed arguments for tool '{}': {error}", call.name);
        return Err(Box::new(CallOutcome::failed(call, CallFailure::MalformedArguments, text)));
    };
    tool.accept(sent).map_err(|faults| Box::new(invalid(call, &faults)))
}

fn invalid(call: &ToolCall, faults: &Issues) -> CallOutcome {
    let text = format!("invalid arguments for tool '{}': {faults}", call.name);
    CallOutcome::failed(call, CallFailure::InvalidArguments, text)
}
