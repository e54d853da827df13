//! The keys of [`ResearchState`](super::ResearchState), each with its type.
//!
//! A null that is stored under an optional key is a value, and none of the key's type: reading it with one of
//! these is an error, where the helpers of this module take it for absent. `messages` has no constant: it is
//! [`State::messages`](stepfold_state_core::state::State::messages).
//!
//! ```
//! use stepfold_graph::progress::{Mode, ResearchState, keys};
//!
//! let mut state = ResearchState::new("market_research").to_state()?;
//! state.set(keys::MODE, Mode::Deep)?;
//! assert_eq!(state.get(keys::MODE)?, Some(Mode::Deep));
//! assert!(state.set("mode", "depe").is_err());
//! # Ok::<(), stepfold_state_core::state::StateError>(())
//! ```

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Handler, Key, SchemaBuilder};

use super::research::{Mode, NodeErrorRecord, NodeOutput, OutputFormat, ResearchDepth, RouterDecision, Task};

/// The name of the agent.
pub const GRAPH_TYPE: Key<String> = Key::new("graph_type");
/// The user's question.
pub const QUERY: Key<String> = Key::new("query");
/// The session.
pub const SESSION_ID: Key<String> = Key::new("session_id");
/// The user.
pub const USER_ID: Key<String> = Key::new("user_id");
/// The whole conversation over all turns. Writes append.
pub const HISTORY: Key<Vec<Message>> = Key::new("history");

/// The model to use.
pub const MODEL_ID: Key<String> = Key::new("model_id");
/// Parameters for the model.
pub const PARAMS: Key<Map<String, Value>> = Key::new("params");

/// The outputs of the nodes. Writes append.
pub const OUTPUTS: Key<Vec<NodeOutput>> = Key::new("outputs");

/// The tasks. Writes are merged by id.
pub const TASKS: Key<Vec<Task>> = Key::new("tasks");
/// The task that was started last.
pub const CURRENT_TASK_ID: Key<i64> = Key::new("current_task_id");
/// The completed part of all tasks in percent, from 0 to 100.
pub const OVERALL_PROGRESS: Key<u8> = Key::new("overall_progress");

/// The deep graph or the plain loop.
pub const MODE: Key<Mode> = Key::new("mode");
/// Whether tools run without approval.
pub const AUTO: Key<bool> = Key::new("auto");
/// The node that was started last.
pub const CURRENT_NODE: Key<String> = Key::new("current_node");
/// The errors of the nodes. Writes append.
pub const ERRORS: Key<Vec<NodeErrorRecord>> = Key::new("errors");

/// The number of executions of each node.
pub const EXECUTION_COUNTS: Key<BTreeMap<String, u64>> = Key::new("execution_counts");
/// The maximum number of executions of each node.
pub const MAX_EXECUTIONS: Key<BTreeMap<String, u64>> = Key::new("max_executions");

/// The last decision of a router, with its reason.
pub const ROUTER_DECISION: Key<RouterDecision> = Key::new("router_decision");

/// The user's preferences.
pub const USER_PREFERENCES: Key<Map<String, Value>> = Key::new("user_preferences");
/// The form of the report.
pub const OUTPUT_FORMAT: Key<OutputFormat> = Key::new("output_format");
/// The thoroughness of the research.
pub const RESEARCH_DEPTH: Key<ResearchDepth> = Key::new("research_depth");

/// Whatever an application adds.
pub const CUSTOM_DATA: Key<Map<String, Value>> = Key::new("custom_data");
/// Figures about the run.
pub const STATS: Key<Map<String, Value>> = Key::new("stats");

/// Declares the keys that tracking, counting and `node_output` need, and no others: `tasks`,
/// `current_task_id`, `overall_progress`, `current_node`, `outputs`, `errors`, `execution_counts` and
/// `max_executions`.
///
/// # Examples
/// ```
/// use stepfold_graph::progress::{NodeRun, tracking_keys};
/// use stepfold_state_core::state::Schema;
///
/// let schema = tracking_keys(Schema::builder()).key::<String>("question").build()?;
/// assert!(NodeRun::new("searcher").task(1).check(&schema).is_ok());
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
pub fn tracking_keys(builder: SchemaBuilder) -> SchemaBuilder {
    builder
        .key(OUTPUTS)
        .default(Value::Array(Vec::new()))
        .key(TASKS)
        .handler(Handler::upsert_by("id"))
        .key(CURRENT_TASK_ID)
        .key(OVERALL_PROGRESS)
        .key(CURRENT_NODE)
        .key(ERRORS)
        .default(Value::Array(Vec::new()))
        .key(EXECUTION_COUNTS)
        .key(MAX_EXECUTIONS)
}
