//! The result of a node: writes, messages, outputs, and routing.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Handler, Schema, StateError, WriteKey};

/// The result of a node: writes to the state, messages, outputs, and the next nodes, if the node chooses.
///
/// The writes are merged by the handlers of their keys when all branches of the superstep have an outcome, in
/// declaration order of the nodes. They are atomic: an invalid value is a failure of the node.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_graph::Update;
/// use stepfold_state_core::state::Key;
///
/// const NOTES: Key<Vec<String>> = Key::new("notes");
///
/// let update = Update::new()
///     .set(NOTES, vec!["area 3 has 12 stalls".to_owned()])
///     .set("depth", 2)
///     .output("summary", json!({"area": 3}))
///     .goto("report");
/// ```
#[must_use = "an update does nothing unless the node returns it"]
#[derive(Default)]
pub struct Update {
    writes: Vec<UncheckedWrite>,
    delta: Delta,
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) outputs: Vec<(Option<String>, Value)>,
    pub(crate) goto: Vec<(String, Option<Value>)>,
}

/// A write that is still to be checked.
struct UncheckedWrite {
    key: String,
    value: Result<Option<Value>, StateError>,
    handler: Option<Handler>,
}

impl Update {
    /// Creates an empty update.
    pub fn new() -> Self {
        Update::default()
    }

    /// Writes a value to a key, by the key's own handler.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a key is a string or a constant, given as to `State::set`"
    )]
    pub fn set<V, K: WriteKey<V>>(mut self, key: K, value: V) -> Self {
        let name = key.name().to_owned();
        self.writes.push(UncheckedWrite { key: name, value: key.encode(value).map(Some), handler: None });
        self
    }

    /// Writes a value to a key, by another handler.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a key is a string or a constant, given as to `State::set`"
    )]
    pub fn set_with<V, K: WriteKey<V>>(mut self, key: K, value: V, handler: Handler) -> Self {
        let name = key.name().to_owned();
        self.writes.push(UncheckedWrite {
            key: name,
            value: key.encode(value).map(Some),
            handler: Some(handler),
        });
        self
    }

    /// Removes a key.
    pub fn remove(mut self, key: impl Into<String>) -> Self {
        self.writes.push(UncheckedWrite { key: key.into(), value: Ok(None), handler: None });
        self
    }

    /// Adds writes that were checked elsewhere. They come first.
    pub fn with_delta(mut self, delta: Delta) -> Self {
        self.delta.extend(delta);
        self
    }

    /// Appends a message to the conversation.
    pub fn message(mut self, message: Message) -> Self {
        self.messages.push(message.into());
        self
    }

    /// Adds an assistant message to the conversation: the reply of the graph, in a conversation with a user.
    pub fn say(self, text: impl Into<String>) -> Self {
        self.message(Message::assistant(text))
    }

    /// Appends an output to `outputs`, under the node's name; observers see it as
    /// [`RunEvent::Output`](stepfold_agent_loop::RunEvent::Output). The schema must have that key: see
    /// [`progress`](super::progress).
    pub fn output(mut self, kind: impl Into<String>, value: impl Into<Value>) -> Self {
        self.outputs.push((Some(kind.into()), value.into()));
        self
    }

    /// Appends an output without a kind: the result of the node, such as the output of its
    /// [task](super::Node::tracked).
    pub fn result(mut self, value: impl Into<Value>) -> Self {
        self.outputs.push((None, value.into()));
        self
    }

    /// Continues at this node, instead of along the node's edges. It must be one of the node's
    /// [targets](super::Node::goes_to). May be called several times.
    #[doc(alias("Command"))]
    pub fn goto(mut self, node: impl Into<String>) -> Self {
        self.goto.push((node.into(), None));
        self
    }

    /// Continues at this node, with an item for that branch.
    pub fn goto_with(mut self, node: impl Into<String>, item: impl Into<Value>) -> Self {
        self.goto.push((node.into(), Some(item.into())));
        self
    }

    /// The writes, checked against a schema.
    pub(crate) fn delta(&mut self, schema: &Schema) -> Result<Delta, StateError> {
        let mut delta = std::mem::take(&mut self.delta);
        for UncheckedWrite { key, value, handler } in self.writes.drain(..) {
            delta.push(match (value?, handler) {
                (None, _) => schema.removal(&key)?,
                (Some(value), None) => schema.write(key.as_str(), value)?,
                (Some(value), Some(handler)) => schema.write_with(key.as_str(), value, &handler)?,
            });
        }
        Ok(delta)
    }
}

impl From<()> for Update {
    fn from((): ()) -> Self {
        Update::new()
    }
}

impl From<Delta> for Update {
    fn from(delta: Delta) -> Self {
        Update::new().with_delta(delta)
    }
}

impl fmt::Debug for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.writes.iter().map(|write| write.key.as_str()).collect();
        f.debug_struct("Update").field("writes", &keys).field("goto", &self.goto).finish_non_exhaustive()
    }
}
