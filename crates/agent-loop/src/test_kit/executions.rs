//! How often tools really ran: counted by the tools themselves, where no outcome can be lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stepfold_tools::ToolContext;

/// Counts the executions of calls, by their idempotency keys. Clones count together.
///
/// A tool that is to be counted notes each execution when it begins:
/// ```
/// use stepfold_agent_loop::test_kit::Executions;
/// use stepfold_tools::{Tool, ToolContext, ToolError};
///
/// let executions = Executions::new();
/// let counter = executions.clone();
/// let pay = Tool::new("pay", "Pays the open bill.", move |context: ToolContext| {
///     counter.note(&context);
///     async move { Ok::<_, ToolError>("paid") }
/// });
/// # pay.build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Executions(Arc<Mutex<BTreeMap<String, Execution>>>);

/// The executions under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Execution {
    pub(super) tool: String,
    pub(super) call: String,
    pub(super) times: u64,
}

impl Executions {
    /// Nothing has run.
    pub fn new() -> Self {
        Executions::default()
    }

    /// The call of this context is executed.
    pub fn note(&self, context: &ToolContext) {
        let mut executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let execution = executions.entry(context.idempotency_key().to_owned());
        let execution = execution.or_insert_with(|| Execution {
            tool: context.tool_name().to_owned(),
            call: context.call_id().to_owned(),
            times: 0,
        });
        execution.times += 1;
    }

    /// How often the call with this key was executed.
    pub fn times(&self, key: &str) -> u64 {
        let executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        executions.get(key).map_or(0, |execution| execution.times)
    }

    /// All executions of all calls.
    pub fn total(&self) -> u64 {
        let executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        executions.values().map(|execution| execution.times).sum()
    }

    /// What was counted; counting begins anew.
    pub(super) fn take(&self) -> BTreeMap<String, Execution> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
