//! Per-run settings in the state: the model, its parameters, and the approval of calls.

use std::sync::Arc;

use serde_json::{Map, Value};
use stepfold_agent_loop::AgentBuilder;
use stepfold_state_core::chat::{ChatModel, ModelParams};
use stepfold_state_core::decode;
use stepfold_state_core::state::{State, ValueRef};
use stepfold_tools::Approval;

use super::context::NodeError;
use super::progress::keys;

/// Follows the state's `model_id`, `params` and `auto`, for [`AgentNode::adjust`](super::AgentNode::adjust).
///
/// `model_id` names one of the models that `models` knows; with another name the node fails. `params` are the
/// [parameters](ModelParams) of the model by their names; others are passed to the provider
/// unchanged. If `auto` is false, every call of a tool needs approval. Keys without a value change nothing.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use std::sync::Arc;
/// use serde_json::json;
/// use stepfold_graph::{AgentNode, Graph, START, per_run, progress::ResearchState};
/// use stepfold_agent_loop::{Agent, Input};
/// use stepfold_state_core::chat::ChatModel;
///
/// let small: Arc<dyn ChatModel> = Arc::new(Script::parse("assistant: in short")?);
/// let large: Arc<dyn ChatModel> = Arc::new(Script::parse("assistant: at length")?);
/// let agent = Agent::builder(Arc::clone(&small)).build()?;
/// let models = move |id: &str| match id {
///     "small" => Some(Arc::clone(&small)),
///     "large" => Some(Arc::clone(&large)),
///     _ => None,
/// };
///
/// let graph = Graph::builder("write")
///     .schema(ResearchState::schema()?)
///     .node("write", AgentNode::new(agent).adjust(per_run(models)))
///     .edge(START, "write")
///     .build()?;
/// let input = Input::from("what is a stall?").with_values(json!({"model_id": "large"}));
/// assert_eq!(graph.run(input).await?.text(), "at length");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn per_run<M>(
    models: M,
) -> impl Fn(&State, AgentBuilder) -> Result<AgentBuilder, NodeError> + Send + Sync + 'static
where
    M: Fn(&str) -> Option<Arc<dyn ChatModel>> + Send + Sync + 'static,
{
    move |state, mut agent| {
        if let Some(id) = state.get(keys::MODEL_ID.name()).and_then(|id| id.as_str().map(str::to_owned)) {
            let unknown = || NodeError::permanent(format!("unknown model \"{id}\" in the state"));
            agent = agent.model(models(&id).ok_or_else(unknown)?);
        }
        if let Some(Value::Object(params)) = state.get(keys::PARAMS.name()).map(ValueRef::to_json) {
            agent = agent.params_over_own(params_of(params)?);
        }
        let is_interactive = state.get(keys::AUTO.name()).is_some_and(|auto| auto == false);
        Ok(if is_interactive { agent.approval(Approval::Always) } else { agent })
    }
}

/// The parameters by their names; all others are the provider's.
fn params_of(mut params: Map<String, Value>) -> Result<ModelParams, NodeError> {
    let mut known = Map::new();
    for name in ["temperature", "top_p", "max_output_tokens", "seed", "stop", "logprobs"] {
        if let Some(value) = params.remove(name) {
            known.insert(name.to_owned(), value);
        }
    }
    let read: Result<ModelParams, _> = decode(&Value::Object(known));
    let mut read =
        read.map_err(|error| NodeError::permanent(format!("invalid params in the state: {error}")))?;
    read.extras = params.into_iter().collect();
    Ok(read)
}
