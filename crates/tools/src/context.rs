//! What a tool sees of the run that calls it: a read snapshot, a buffer for writes, a key, a way to stop.
//!
//! A context is owned and cheap to clone, so no signature needs a lifetime. Writes are only buffered: they
//! are merged at the end of the step, in call order, by the handlers of the schema. That is why parallel
//! tools cannot lose each other's updates.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use stepfold_state_core::state::{Delta, Handler, ReadKey, Snapshot, StateError, Write, WriteKey};
use tokio_util::sync::CancellationToken;

use crate::progress::Progress;
use crate::tool::Access;

/// The surroundings of one call, handed to the tool.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::{Tool, ToolContext, ToolError};
///
/// async fn pay(context: ToolContext) -> Result<String, ToolError> {
///     // Equal when the call runs again after a crash: the payment service knows it by this key.
///     let key = context.idempotency_key();
///     context.report(json!({"percent": 50}));
///     Ok(format!("paid under {key}"))
/// }
/// let tool = Tool::new("pay", "Pays the open bill.", pay).build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone)]
pub struct ToolContext(Arc<Inner>);

struct Inner {
    tool: Arc<str>,
    call: CallContext,
    access: Arc<Access>,
    arguments: Arc<Value>,
    state: Snapshot,
    /// None once the call, or this try of it, has ended.
    writes: Mutex<Option<Delta>>,
}

/// What stays the same for all tries of a call.
#[derive(Clone)]
pub(crate) struct CallContext {
    pub(crate) index: usize,
    pub(crate) call_id: Arc<str>,
    pub(crate) idempotency_key: Arc<str>,
    pub(crate) cancellation: CancellationToken,
    pub(crate) resources: Resources,
    pub(crate) progress: Progress,
}

impl ToolContext {
    pub(crate) fn new(
        tool: Arc<str>,
        access: Arc<Access>,
        call: CallContext,
        arguments: Arc<Value>,
        state: Snapshot,
    ) -> Self {
        ToolContext(Arc::new(Inner {
            tool,
            call,
            access,
            arguments,
            state,
            writes: Mutex::new(Some(Delta::new())),
        }))
    }

    /// The name of the tool as the model called it.
    pub fn tool_name(&self) -> &str {
        &self.0.tool
    }

    /// The id of the call.
    pub fn call_id(&self) -> &str {
        &self.0.call.call_id
    }

    /// The arguments, those fed from state included, as a JSON object.
    pub fn arguments(&self) -> &Value {
        &self.0.arguments
    }

    /// The state as it was before the step, with the writes of those calls of the reply that this
    /// call was ordered behind. It never changes.
    pub fn state(&self) -> &Snapshot {
        &self.0.state
    }

    /// Reads a key of [`state`](ToolContext::state).
    ///
    /// # Errors
    /// With a typed key, when the value is not of its type.
    pub fn get<K: ReadKey>(&self, key: K) -> K::Output<'_> {
        self.0.state.get(key)
    }

    /// Buffers a write with the key's own handler. The tool must have declared the key with
    /// [`writes`](crate::ToolBuilder::writes).
    ///
    /// # Errors
    /// When the key was not declared, the value does not fit it, or the call has ended (of a blocking tool
    /// whose time was out, for instance); nothing is buffered then.
    pub fn set<V, K: WriteKey<V>>(&self, key: K, value: V) -> Result<(), WriteError> {
        self.check_declared(key.name())?;
        let write = self.0.state.schema().write(key, value)?;
        self.buffer(write)
    }

    /// Buffers a write with another handler.
    ///
    /// # Errors
    /// As [`set`](ToolContext::set).
    pub fn set_with<V, K: WriteKey<V>>(&self, key: K, value: V, handler: &Handler) -> Result<(), WriteError> {
        self.check_declared(key.name())?;
        let write = self.0.state.schema().write_with(key, value, handler)?;
        self.buffer(write)
    }

    /// A key for the effect of this call that stays the same when the step runs again after a crash, and
    /// differs for every other call. Hand it to services that know idempotency keys.
    pub fn idempotency_key(&self) -> &str {
        &self.0.call.idempotency_key
    }

    /// The same for one of several effects of this call.
    pub fn key_for(&self, label: &str) -> String {
        format!("{}/{label}", self.0.call.idempotency_key)
    }

    /// Is cancelled when the run is, and when the call's time is out. An async tool is dropped then; a
    /// blocking one should look here from time to time.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.call.cancellation
    }

    /// Reports progress to whoever watches the run. Never waits: when nobody keeps up, the report is
    /// dropped.
    pub fn report(&self, progress: impl Into<Value>) {
        self.0.call.progress.push((self.0.call.index, progress.into()));
    }

    /// A resource of the application: a pool, a client, a configuration.
    pub fn resource<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.call.resources.get()
    }

    /// The writes buffered so far. No more are taken.
    pub(crate) fn end(&self) -> Delta {
        self.0.writes.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    fn check_declared(&self, key: &str) -> Result<(), WriteError> {
        if self.0.access.may_write(key) {
            return Ok(());
        }
        Err(WriteError::Undeclared { tool: self.tool_name().to_owned(), key: key.to_owned() })
    }

    fn buffer(&self, write: Write) -> Result<(), WriteError> {
        match &mut *self.0.writes.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(writes) => {
                writes.push(write);
                Ok(())
            }
            None => Err(WriteError::Ended { tool: self.tool_name().to_owned() }),
        }
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

/// Why a write of a tool was not buffered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The tool did not say that it writes the key, so calls could not be ordered by it.
    #[error("tool '{tool}' does not declare that it writes key \"{key}\"; add `.writes([\"{key}\"])` to it")]
    Undeclared {
        /// The tool.
        tool: String,
        /// The key.
        key: String,
    },
    /// The call has ended, and what it wrote is taken: the tool's time was out, or something that it left
    /// behind goes on.
    #[error("the call of tool '{tool}' has ended and writes nothing more")]
    Ended {
        /// The tool.
        tool: String,
    },
    /// The schema refuses the write.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The application's own things that tools ask for by type.
///
/// # Examples
/// ```
/// use stepfold_tools::Resources;
///
/// struct Clock(u64);
///
/// let resources = Resources::new().with(Clock(7));
/// assert_eq!(resources.get::<Clock>().unwrap().0, 7);
/// assert!(resources.get::<String>().is_none());
/// ```
#[derive(Clone, Default)]
pub struct Resources(Arc<HashMap<TypeId, Named>>);

/// A resource with the name of its type.
type Named = (&'static str, Arc<dyn Any + Send + Sync>);

impl Resources {
    /// No resources.
    pub fn new() -> Self {
        Resources::default()
    }

    /// These and `resource`, in place of one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, resource: T) -> Self {
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), (type_name::<T>(), Arc::new(resource)));
        self
    }

    /// The resource of a type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let (_, resource) = self.0.get(&TypeId::of::<T>())?;
        Arc::clone(resource).downcast().ok()
    }

    pub(crate) fn has(&self, id: TypeId) -> bool {
        self.0.contains_key(&id)
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.values().map(|(name, _)| name)).finish()
    }
}
