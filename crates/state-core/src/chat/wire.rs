//! A request as a provider's server reads it, and the changes that were made for that server.

use std::fmt;

/// The body of a request, and the parts of the conversation that were omitted, replaced or renamed for its server.
///
/// The record keeps the conversation as it was; this is a view of it. Made by
/// [`ChatModel::wire_request`](super::ChatModel::wire_request).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireRequest {
    /// The body, as JSON text.
    pub body: String,
    /// The changes, in order.
    pub changes: Vec<WireChange>,
}

impl WireRequest {
    /// A body, and the changes in it.
    pub fn new(body: impl Into<String>, changes: Vec<WireChange>) -> Self {
        WireRequest { body: body.into(), changes }
    }
}

/// A difference between a request and its wire form.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WireChange {
    /// The index of the message, if the change concerns one.
    pub message: Option<usize>,
    /// The change, such as `blank text is left out`.
    pub change: String,
}

impl WireChange {
    /// A change of the message at this index.
    pub fn of_message(index: usize, change: impl Into<String>) -> Self {
        WireChange { message: Some(index), change: change.into() }
    }

    /// A change of the request outside its messages.
    pub fn of_request(change: impl Into<String>) -> Self {
        WireChange { message: None, change: change.into() }
    }
}

impl fmt::Display for WireChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message {
            Some(index) => write!(f, "message {index}: {}", self.change),
            None => f.write_str(&self.change),
        }
    }
}
