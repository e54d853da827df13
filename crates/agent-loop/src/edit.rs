//! Edits: changes of a paused run from outside, and why it may be refused.
//!
//! An edit is an input of the run, as a decision is, which may surprise. It is an event of the run's record, and a
//! replay makes it again.

use serde_json::Value;
use stepfold_state_core::chat::{ToolContent, ToolResult};
use stepfold_state_core::state::{Delta, Handler, NameList, Schema, StateError};
use thiserror::Error;

use crate::state_input::TEMPORARY;

/// Changes of a paused run from outside: values of its state, results of its calls, and arguments of calls that have not
/// begun. All of them are made or none.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use serde_json::json;
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, RunAnswer, Breakpoint, Edit};
/// use stepfold_state_core::state::Schema;
/// use stepfold_tools::{Tool, ToolError};
///
/// # async fn count() -> Result<u32, ToolError> { Ok(3) }
/// # let count = Tool::new("count", "Counts stalls.", count).build()?;
/// # let model = Script::parse("assistant: > c1 count()\nassistant: 12 stalls")?;
/// let schema = Schema::builder().key::<String>("area").build()?;
/// let agent = Agent::builder(model).schema(schema).tools([count]).build()?;
/// let paused = agent.run("how many?").break_at(Breakpoint::model().visit(2)).await?;
///
/// let mut run = paused.into_run();
/// let edit = Edit::new().set("area", "market").result("c1", 12).by("ada");
/// let edited = run.feed(RunAnswer::Edit(edit), run.elapsed())?;
/// run.commit(edited)?;
/// assert_eq!(run.state().get("area").unwrap(), json!("market"));
/// let outcome = run.resume().await?;
/// assert_eq!(outcome.transcript().get(2).unwrap().tool_result().unwrap().text(), "12");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Edit {
    /// The changes of values, in order.
    pub values: Vec<ValueEdit>,
    /// The new results, each with the id of its call.
    pub results: Vec<(String, ToolContent)>,
    /// The new arguments, each with the id of its call.
    pub arguments: Vec<(String, Value)>,
    /// The author of the edit, for the record.
    pub by: Option<String>,
    /// The key under which the same edit may be sent again.
    pub idempotency_key: Option<String>,
}

/// A change of a value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ValueEdit {
    /// The key has this value.
    Set(String, Value),
    /// This value is merged by the handler of the key.
    Merge(String, Value),
    /// The key is unset, or has its default.
    Remove(String),
}

impl ValueEdit {
    /// The key.
    pub fn key(&self) -> &str {
        match self {
            ValueEdit::Set(key, _) | ValueEdit::Merge(key, _) | ValueEdit::Remove(key) => key,
        }
    }
}

impl Edit {
    /// An edit that changes nothing.
    pub fn new() -> Self {
        Edit::default()
    }

    /// Replaces the value of a key, independent of its handler.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.values.push(ValueEdit::Set(key.into(), value.into()));
        self
    }

    /// Merges a value into a key, by the handler of the key.
    #[must_use]
    pub fn merge(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.values.push(ValueEdit::Merge(key.into(), value.into()));
        self
    }

    /// Removes the value of a key: it is unset, or has its default.
    #[must_use]
    pub fn remove(mut self, key: impl Into<String>) -> Self {
        self.values.push(ValueEdit::Remove(key.into()));
        self
    }

    /// Replaces the result of a call that has one.
    #[must_use]
    pub fn result(self, call_id: impl Into<String>, value: impl Into<Value>) -> Self {
        self.result_with(call_id, ToolContent::Value(value.into()))
    }

    /// Replaces the result of a call by a value, an error or parts.
    #[must_use]
    pub fn result_with(mut self, call_id: impl Into<String>, content: ToolContent) -> Self {
        self.results.push((call_id.into(), content));
        self
    }

    /// Replaces the arguments of a call that has not begun. The conversation keeps the call as the model made it; the model
    /// is told of the change with the result. Rules and hooks see the new arguments: a rule may require an approval of
    /// them.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use serde_json::json;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, RunAnswer, Breakpoint, Edit};
    /// use stepfold_tools::{Args, Tool, ToolError};
    ///
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// # struct Area { area: u32 }
    /// # async fn count(Args(area): Args<Area>) -> Result<u32, ToolError> { Ok(area.area * 2) }
    /// # let count = Tool::new("count", "Counts stalls.", count).build()?;
    /// # let model = Script::parse("assistant: > c1 count(area=3)\nassistant: done")?;
    /// let agent = Agent::builder(model).tools([count]).build()?;
    /// let paused = agent.run("how many?").break_at(Breakpoint::tool("count")).await?;
    ///
    /// let mut run = paused.into_run();
    /// let edit = Edit::new().arguments("c1", json!({"area": 5}));
    /// run.commit(run.feed(RunAnswer::Edit(edit), run.elapsed())?)?;
    /// let outcome = run.resume().await?;
    /// assert!(outcome.transcript().get(2).unwrap().tool_result().unwrap().text().starts_with("10"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn arguments(mut self, call_id: impl Into<String>, arguments: impl Into<Value>) -> Self {
        self.arguments.push((call_id.into(), arguments.into()));
        self
    }

    /// Records who makes the edit.
    #[must_use]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = Some(name.into());
        self
    }

    /// Has a host take the same edit under the same key as a repeat. Another edit under the key is refused.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.results.is_empty() && self.arguments.is_empty()
    }

    /// The writes of the values.
    ///
    /// # Errors
    /// [`EditError::Value`] when one does not fit the schema; [`EditError::Temporary`] for one of the scope `temp:`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::Edit;
    /// use stepfold_agent_loop::state_core::state::{Handler, Schema};
    ///
    /// let schema = Schema::builder().key::<u64>("count").handler(Handler::sum()).build()?;
    /// let delta = Edit::new().set("count", 3).delta(&schema)?;
    /// assert_eq!(delta.iter().next().unwrap().handler(), Some(&Handler::replace_values()));
    /// let error = Edit::new().set("count", "many").delta(&schema).unwrap_err();
    /// assert_eq!(error.to_string(), r#"invalid value for key "count": expected integer, found string at $"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delta(&self, schema: &Schema) -> Result<Delta, EditError> {
        let write = |value: &ValueEdit| {
            if value.key().starts_with(TEMPORARY) {
                return Err(EditError::Temporary { key: value.key().to_owned() });
            }
            Ok(match value {
                ValueEdit::Set(key, value) => {
                    // NOTE: By its own handler a sum or a list could not be given the value that a person wants.
                    schema.write_with(key.as_str(), value.clone(), &Handler::replace_values())?
                }
                ValueEdit::Merge(key, value) => schema.write(key.as_str(), value.clone())?,
                ValueEdit::Remove(key) => schema.removal(key)?,
            })
        };
        self.values.iter().map(write).collect()
    }

    /// The edit of values that makes these writes, which are those of an edit.
    #[must_use]
    pub fn of_writes(delta: &Delta) -> Self {
        let values = delta.iter().map(|write| {
            let key = write.key().to_owned();
            match (write.value().cloned(), write.handler()) {
                (None, _) => ValueEdit::Remove(key),
                (Some(value), Some(handler)) if replaces(handler) => ValueEdit::Set(key, value),
                (Some(value), _) => ValueEdit::Merge(key, value),
            }
        });
        Edit { values: values.collect(), ..Edit::default() }
    }

    /// Whether another edit makes the same changes, in a state of this schema. Authors and keys are not compared.
    pub fn is_same(&self, other: &Edit, schema: &Schema) -> bool {
        let result =
            |(id, content): &(String, ToolContent)| ToolResult::new(id, String::new(), content.clone());
        let are_same_results = || {
            self.results.iter().map(result).collect::<Vec<_>>()
                == other.results.iter().map(result).collect::<Vec<_>>()
        };
        match (self.delta(schema), other.delta(schema)) {
            (Ok(delta), Ok(others)) => {
                delta == others && self.arguments == other.arguments && are_same_results()
            }
            _ => false,
        }
    }
}

/// An error of an edit. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EditError {
    /// It changes nothing.
    #[error("invalid edit: it changes nothing; set a value, a result or arguments")]
    Empty,
    /// A value does not fit the schema.
    #[error(transparent)]
    Value(#[from] StateError),
    /// The key is of the scope `temp:`, whose values are never stored.
    #[error(
        "invalid edit of `{key}`: values of `temp:` keys are not stored; give them with the input of a run"
    )]
    Temporary {
        /// The key.
        key: String,
    },
    /// The plan of the run keeps the key, as a graph does its counts.
    #[error("invalid edit of `{key}`: only the graph writes it; edit another key")]
    Reserved {
        /// The key.
        key: String,
    },
    /// No call of the conversation has the id.
    #[error("unknown call `{id}`; calls with a result: {known}")]
    UnknownCall {
        /// The id.
        id: String,
        /// The ids of the calls of this run that have a result.
        known: NameList,
    },
    /// The call has no result yet.
    #[error("invalid edit of the result of call `{id}`: {why}")]
    NotAnswered {
        /// The id.
        id: String,
        /// The next step for the call.
        why: &'static str,
    },
    /// Several edits of one call.
    #[error("duplicate edit of call `{id}`; expected one")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// No call of the open step has the id.
    #[error("unknown call `{id}`; calls that have not begun: {known}")]
    NoOpenCall {
        /// The id.
        id: String,
        /// The ids of the calls whose arguments can be changed.
        known: NameList,
    },
    /// The arguments of the call are final, or to be changed by a decision.
    #[error("invalid edit of the arguments of call `{id}`: {why}")]
    Begun {
        /// The id.
        id: String,
        /// The progress of the call, and the way to change it anyway.
        why: &'static str,
    },
    /// The tool does not accept the arguments.
    #[error("invalid arguments for call `{id}`: {faults}")]
    InvalidArguments {
        /// The id.
        id: String,
        /// The faults of the arguments.
        faults: String,
    },
    /// The run has ended, or there is none: its calls are final.
    #[error("invalid edit of call `{id}`: no run is open; fork the session at a version within the run")]
    NoOpenRun {
        /// The id.
        id: String,
    },
    /// The run is at its end.
    #[error("invalid edit: the run is about to end; resume it first")]
    Ending,
    /// The idempotency key belongs to another edit.
    #[error("idempotency key `{idempotency_key}` was used for another edit; use a new key")]
    KeyReused {
        /// The key.
        idempotency_key: String,
    },
}

/// Whether writes by a handler replace the value that is there.
pub(crate) fn replaces(handler: &Handler) -> bool {
    *handler == Handler::replace_values()
}
