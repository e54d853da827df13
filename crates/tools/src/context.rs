//! The context of a call: a state snapshot, a write buffer, an idempotency key, a cancellation token.
//!
//! A context is owned and cheap to clone, so no signature needs a lifetime. Writes are buffered and merged at
//! the end of the step, in call order, by the handlers of the schema. So parallel tools cannot lose each
//! other's updates.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;
use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::{Delta, Handler, State, StateError, Write, WriteKey};
use tokio_util::sync::CancellationToken;

use crate::binding::KeyAccess;
use crate::error::ToolError;
use crate::input::{AnsweredRequest, InputRequest, InputResponse};
use crate::options::InvokeOptions;
use crate::policy::Effect;
use crate::progress::ProgressQueue;

/// The context of one call, passed to the tool.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::{Tool, ToolContext, ToolError};
///
/// async fn pay(context: ToolContext) -> Result<String, ToolError> {
///     // Unchanged when the call runs again after a crash, so the payment service can detect repeats.
///     let key = context.idempotency_key();
///     context.report(json!({"percent": 50}));
///     Ok(format!("paid under {key}"))
/// }
/// let tool = Tool::new("pay", "Pays the open bill.", pay).build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone)]
pub struct ToolContext(Arc<AttemptContext>);

struct AttemptContext {
    call: Arc<CallContext>,
    /// Specific to this attempt. Created on demand: most tools do not use it.
    cancellation: OnceLock<CancellationToken>,
    idempotency_key: OnceLock<String>,
    /// `None` after this attempt has ended.
    writes: Mutex<Option<Delta>>,
}

/// The context of a call, shared by all its attempts.
pub(crate) struct CallContext {
    // NOTE: Parts of the tool, and not the tool: its functions take a context, and the two modules would import
    // each other.
    pub(crate) tool_name: Arc<str>,
    pub(crate) effect: Effect,
    pub(crate) access: Arc<KeyAccess>,
    /// All calls of the reply, shared because arguments may be large.
    pub(crate) calls: Arc<[ToolCall]>,
    pub(crate) index: usize,
    /// The model's arguments and those read from the state.
    pub(crate) arguments: Value,
    /// The indexes of the tool's inputs that were read from the state.
    pub(crate) bound: Vec<usize>,
    pub(crate) state: State,
    /// The answers to earlier questions of the call.
    pub(crate) answered: Vec<AnsweredRequest>,
    pub(crate) invocation: Arc<InvocationContext>,
}

/// The context shared by all calls of a reply.
pub(crate) struct InvocationContext {
    pub(crate) options: InvokeOptions,
    /// Cancelled with the run, and when the invocation is dropped.
    pub(crate) cancellation: CancellationToken,
    pub(crate) progress: ProgressQueue,
}

impl CallContext {
    pub(crate) fn call(&self) -> &ToolCall {
        &self.calls[self.index]
    }

    fn idempotency_key(&self) -> String {
        key_of_call(&self.invocation.options.key_scope, &self.call().id)
    }
}

/// The idempotency key of a call, in the scope of its step.
///
/// # Examples
/// ```
/// assert_eq!(stepfold_tools::key_of_call("session-7/1", "c1"), "session-7/1/c1");
/// // A slash in an id must not make the key look like one of several effects of another call.
/// assert_eq!(stepfold_tools::key_of_call("session-7/1", "c/1"), "session-7/1/c%2F1");
/// ```
pub fn key_of_call(scope: &str, call_id: &str) -> String {
    format!("{scope}/{}", encode_key_part(call_id))
}

/// Encodes a part of a key, so that a slash in it does not look like the end of the part.
///
/// # Examples
/// ```
/// use stepfold_tools::{decode_key_part, encode_key_part};
///
/// assert_eq!(encode_key_part("a/b%"), "a%2Fb%25");
/// assert_eq!(decode_key_part("a%2Fb%25"), "a/b%");
/// ```
pub fn encode_key_part(part: &str) -> String {
    if !part.contains(['%', '/']) {
        return part.to_owned();
    }
    // NOTE: `%` first: otherwise the escapes of slashes would be escaped again.
    part.replace('%', "%25").replace('/', "%2F")
}

/// Decodes a part of a key that [`encode_key_part`] has made.
pub fn decode_key_part(part: &str) -> String {
    // NOTE: In this order: `%252F` is an escaped `%2F`, and must not become a slash.
    part.replace("%2F", "/").replace("%25", "%")
}

impl ToolContext {
    /// Creates the context of one attempt of a call.
    pub(crate) fn new(call: Arc<CallContext>) -> Self {
        ToolContext(Arc::new(AttemptContext {
            call,
            cancellation: OnceLock::new(),
            idempotency_key: OnceLock::new(),
            writes: Mutex::new(Some(Delta::new())),
        }))
    }

    /// The tool's name, as the model called it.
    pub fn tool_name(&self) -> &str {
        &self.0.call.tool_name
    }

    /// The declared effect of the tool.
    pub fn effect(&self) -> Effect {
        self.0.call.effect
    }

    /// The id of the call.
    pub fn call_id(&self) -> &str {
        &self.0.call.call().id
    }

    /// The arguments, including those read from the state, as a JSON object.
    pub fn arguments(&self) -> &Value {
        &self.0.call.arguments
    }

    /// The state before the step, with the writes of those calls of the reply that this call waited for. A
    /// snapshot; it never changes.
    pub fn state(&self) -> &State {
        &self.0.call.state
    }

    /// Whether the model is shown the message of the conversation with this index, and in full: it was not trimmed, and no
    /// line stands for it. Nothing is shown where the host does not say what is.
    pub fn is_shown(&self, index: usize) -> bool {
        let shown = &self.0.call.invocation.options.shown;
        let before = shown.partition_point(|range| range.start <= index);
        before.checked_sub(1).is_some_and(|place| shown[place].contains(&index))
    }

    /// Writes to the state. A function with a [`StateWriter`] parameter thereby declares that it writes.
    pub fn writer(&self) -> StateWriter {
        StateWriter(self.clone())
    }

    /// An idempotency key for the effect of this call: it stays the same when the step runs again after a
    /// crash, and differs from every other call's. Pass it to services that support idempotency keys.
    pub fn idempotency_key(&self) -> &str {
        self.0.idempotency_key.get_or_init(|| self.0.call.idempotency_key())
    }

    /// The idempotency key of one of several effects of this call.
    pub fn key_for(&self, label: &str) -> String {
        format!("{}/{label}", self.idempotency_key())
    }

    /// Cancelled with the run, and at the call's timeout. An async tool is then dropped; a blocking one
    /// should check the token regularly.
    pub fn cancellation(&self) -> &CancellationToken {
        self.0.cancellation.get_or_init(|| self.0.call.invocation.cancellation.child_token())
    }

    /// Reports progress to the observers of the run. Never waits: if the observers are too slow, the report
    /// is dropped.
    pub fn report(&self, progress: impl Into<Value>) {
        self.0.call.invocation.progress.push((self.0.call.index, progress.into()));
    }

    /// A resource of the application: a pool, a client, a configuration.
    pub fn resource<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.call.invocation.options.resources.get()
    }

    /// Asks the user. The first time this returns an error, which the tool passes on with `?`: the attempt ends without
    /// a result, and the run stores the question and waits, as for an approval. After the answer, perhaps days later and
    /// in another process, the tool runs again from its beginning and gets the answer here. So ask before anything that
    /// costs or has an effect: only the attempt with the last answer continues after the question, once.
    ///
    /// An answer belongs to the question that was shown: another question under the same label is a new one. If the host
    /// does not support questions (an [`Invocation`](crate::Invocation) alone), the call fails.
    ///
    /// # Errors
    /// Until there is an answer: an error that makes the run wait.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_tools::{InputRequest, InputResponse, Tool, ToolContext, ToolError};
    ///
    /// async fn book(context: ToolContext) -> Result<String, ToolError> {
    ///     let properties = json!({"seat": {"type": "string"}});
    ///     let schema = json!({"type": "object", "properties": properties, "required": ["seat"]});
    ///     match context.ask(InputRequest::new("seat", "Window or aisle?").schema(schema))? {
    ///         InputResponse::Accept(answer) => Ok(format!("booked: {}", answer["seat"])),
    ///         _ => Err(ToolError::permanent("the user does not want to choose a seat")),
    ///     }
    /// }
    /// let tool = Tool::new("book", "Books a flight.", book).build()?;
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn ask(&self, request: InputRequest) -> Result<InputResponse, ToolError> {
        let answered = self.answered().iter().rfind(|answered| answered.request.is_same(&request));
        match answered {
            Some(answered) => Ok(answered.response.clone()),
            None => Err(ToolError::input_required([request])),
        }
    }

    /// The questions of earlier attempts of this call that were answered, the last ones last, each with its
    /// [state](InputRequest::state).
    pub fn answered(&self) -> &[AnsweredRequest] {
        &self.0.call.answered
    }

    /// Takes the buffered writes. Later writes are rejected.
    pub(crate) fn take_writes(&self) -> Delta {
        // NOTE: A panic under the lock leaves whole writes: one is pushed at a time.
        self.0.writes.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("tool", &self.tool_name())
            .field("call_id", &self.call_id())
            .finish_non_exhaustive()
    }
}

/// Buffers writes to the state. They are merged at the end of the step, in call order, by the handlers of the schema.
///
/// # Examples
/// ```
/// use stepfold_tools::{StateWriter, Tool, ToolError};
///
/// async fn remember(state: StateWriter) -> Result<&'static str, ToolError> {
///     state.set("visits", 1)?;
///     Ok("noted")
/// }
/// let tool = Tool::new("remember", "Counts a visit.", remember).writes(["visits"]).build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StateWriter(ToolContext);

impl StateWriter {
    /// Buffers a write with the key's own handler. The tool must have declared the key with
    /// [`writes`](crate::ToolBuilder::writes).
    ///
    /// # Errors
    /// When the key is not declared, the value is invalid, or the call has ended (after the timeout of a
    /// blocking tool, for example). Nothing is buffered then.
    pub fn set<V, K: WriteKey<V>>(&self, key: K, value: V) -> Result<(), WriteError> {
        self.check_declared(key.name())?;
        let write = self.0.state().schema().write(key, value)?;
        self.buffer(write)
    }

    /// Buffers a write with another handler.
    ///
    /// # Errors
    /// As [`set`](StateWriter::set).
    pub fn set_with<V, K: WriteKey<V>>(&self, key: K, value: V, handler: &Handler) -> Result<(), WriteError> {
        self.check_declared(key.name())?;
        let write = self.0.state().schema().write_with(key, value, handler)?;
        self.buffer(write)
    }

    fn check_declared(&self, key: &str) -> Result<(), WriteError> {
        if self.0.0.call.access.may_write(key) {
            return Ok(());
        }
        Err(WriteError::Undeclared { tool: self.0.tool_name().to_owned(), key: key.to_owned() })
    }

    fn buffer(&self, write: Write) -> Result<(), WriteError> {
        match &mut *self.0.0.writes.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(writes) => {
                writes.push(write);
                Ok(())
            }
            None => Err(WriteError::Ended { tool: self.0.tool_name().to_owned() }),
        }
    }
}

/// Errors of buffering a write.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The tool does not declare the key, so calls could not be ordered by it.
    #[error("undeclared write of tool '{tool}' to key \"{key}\": add `.writes([\"{key}\"])` to the tool")]
    Undeclared {
        /// The tool's name.
        tool: String,
        /// The key.
        key: String,
    },
    /// The call has ended, and its writes were taken: the tool timed out, or left a task running.
    #[error("write of tool '{tool}' rejected: its call has ended")]
    Ended {
        /// The tool's name.
        tool: String,
    },
    /// The schema rejects the write.
    #[error(transparent)]
    State(#[from] StateError),
}

stepfold_state_core::debug_as_text!(WriteError);
