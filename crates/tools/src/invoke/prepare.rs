//! From what the model sent to what the function gets: checked, with the parameters that the state sets.

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Names, State, ValueRef};

use super::outcome::{Failure, Outcome};
use crate::binding::InputBinding;
use crate::tool::Tool;
use crate::toolset::Tools;

/// A call that can be started.
pub(super) struct Prepared {
    /// The model's arguments and those fed from state.
    pub(super) arguments: Value,
    /// Which of the tool's inputs were fed from state.
    pub(super) fed: Vec<usize>,
}

/// The tool of a call, or the outcome that says what there is.
pub(super) fn find<'a>(tools: &'a Tools, call: &ToolCall) -> Result<&'a Tool, Box<Outcome>> {
    tools.get(&call.name).ok_or_else(|| {
        let available: Names = tools.names().collect();
        let text = format!("tool '{}' not found; available: {available}", call.name);
        Box::new(Outcome::failed(call, Failure::UnknownTool, text))
    })
}

/// The outcome of a call that cannot run, whatever the state holds.
pub(crate) fn refusal(tools: &Tools, call: &ToolCall) -> Option<Outcome> {
    find(tools, call).and_then(|tool| arguments_of(tool, call)).err().map(|outcome| *outcome)
}

/// Checks the arguments that the model sent (all faults at once, before anything from the state is near
/// them) and adds those that are fed from state.
pub(super) fn prepare(tool: &Tool, call: &ToolCall, state: &State) -> Result<Prepared, Box<Outcome>> {
    let mut arguments = arguments_of(tool, call)?;
    let inputs: Vec<_> = inputs_on(tool, &arguments, state).collect();
    let mut fed = Vec::with_capacity(inputs.len());
    if let Value::Object(arguments) = &mut arguments {
        for (index, input, value) in inputs {
            arguments.insert(input.parameter.clone(), value.to_json());
            fed.push(index);
        }
    }
    Ok(Prepared { arguments, fed })
}

/// What the state adds to arguments that were [accepted](Tool::accept): the bindings, each by its index, and the values.
pub(crate) fn inputs_on<'a>(
    tool: &'a Tool,
    arguments: &Value,
    state: &'a State,
) -> impl Iterator<Item = (usize, &'a InputBinding, ValueRef<'a>)> {
    let inputs = tool.inner().inputs.iter().enumerate();
    inputs.filter_map(|(index, input)| match arguments.get(&input.parameter) {
        Some(_) => None,
        None => Some((index, input, state.get(&*input.key)?)),
    })
}

/// The arguments that the model sent, or the outcome that says what is wrong with them.
fn arguments_of(tool: &Tool, call: &ToolCall) -> Result<Value, Box<Outcome>> {
    let Some(sent) = call.arguments.as_object() else {
        let error = call.arguments.malformed().map_or("", |(_, error)| error);
        let text = format!("the arguments of tool '{}' are not a JSON object: {error}", call.name);
        return Err(Box::new(Outcome::failed(call, Failure::MalformedArguments, text)));
    };
    tool.accept(sent).map_err(|faults| {
        let text = format!("the arguments of tool '{}' do not fit: {faults}", call.name);
        Box::new(Outcome::failed(call, Failure::InvalidArguments, text))
    })
}
