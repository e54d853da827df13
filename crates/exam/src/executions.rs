//! Real executions of tools and nodes: counted by themselves, where no outcome can be lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stepfold_tools::{Effect, ToolContext};

/// Counts the executions of calls and of nodes, by their idempotency keys. Clones count together.
///
/// A tool that is to be counted notes each execution when it begins, and so does the function of a
/// [node](Executions::note_node):
/// ```
/// use stepfold_exam::Executions;
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
pub struct Executions(Arc<Mutex<BTreeMap<String, ExecutionCount>>>);

/// The executions under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutionCount {
    /// The tool, or the node.
    pub(crate) name: String,
    /// The effect of the tool, as the call saw it; of a node it is not known here.
    pub(crate) effect: Option<Effect>,
    pub(crate) times: u64,
}

impl Executions {
    /// Creates empty counts.
    pub fn new() -> Self {
        Executions::default()
    }

    /// Counts an execution of the call of this context.
    pub fn note(&self, context: &ToolContext) {
        self.note_key(context.idempotency_key(), context.tool_name(), Some(context.effect()));
    }

    /// Counts an execution of this node's function, under its idempotency key.
    ///
    /// # Examples
    /// ```
    /// use stepfold_exam::Executions;
    ///
    /// let executions = Executions::new();
    /// executions.note_node("run-1/1/0", "pay");
    /// assert_eq!(executions.times("run-1/1/0"), 1);
    /// ```
    pub fn note_node(&self, key: &str, node: &str) {
        self.note_key(key, node, None);
    }

    fn note_key(&self, key: &str, name: &str, effect: Option<Effect>) {
        let mut executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let execution = executions.entry(key.to_owned());
        execution.or_insert_with(|| ExecutionCount { name: name.to_owned(), effect, times: 0 }).times += 1;
    }

    /// The number of executions of the call or the node with this key.
    pub fn times(&self, key: &str) -> u64 {
        let executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        executions.get(key).map_or(0, |execution| execution.times)
    }

    /// All executions of all calls and nodes.
    pub fn total(&self) -> u64 {
        let executions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        executions.values().map(|execution| execution.times).sum()
    }

    /// Takes the counts; counting starts over.
    pub(crate) fn take(&self) -> BTreeMap<String, ExecutionCount> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
