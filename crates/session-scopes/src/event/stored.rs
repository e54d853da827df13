//! The JSON that events are stored as, with its version number.
//!
//! A field that this version does not know is ignored; a newer version number is an error. The files under
//! `tests/golden` hold samples of every version that was ever written.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Delta;

use super::types::{Actions, Event, EventKind, Record};
use crate::error::SessionError;
use crate::ids::{Author, EventId, InvocationId};
use crate::time::Timestamp;

/// The format that this version writes.
const EVENT_FORMAT: u64 = 1;

#[derive(Serialize)]
struct EventOut<'a> {
    v: u64,
    id: &'a EventId,
    invocation: &'a InvocationId,
    author: &'a Author,
    at: Timestamp,
    #[serde(skip_serializing_if = "is_message")]
    kind: &'a EventKind,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    messages: &'a [Arc<Message>],
    #[serde(skip_serializing_if = "Delta::is_empty")]
    delta: &'a Delta,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    started: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    rewound_to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<&'a Record>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    metadata: &'a Map<String, Value>,
}

fn is_message(kind: &EventKind) -> bool {
    *kind == EventKind::MESSAGE
}

/// Format 1.
#[derive(Deserialize)]
struct EventIn {
    v: u64,
    id: EventId,
    invocation: InvocationId,
    author: Author,
    at: Timestamp,
    #[serde(default)]
    kind: EventKind,
    #[serde(default)]
    messages: Vec<Arc<Message>>,
    #[serde(default)]
    delta: Delta,
    #[serde(default)]
    started: Vec<String>,
    #[serde(default)]
    rewound_to: Option<u64>,
    #[serde(default)]
    record: Option<Record>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

impl Event {
    /// The JSON to store, of the newest format. The same event always gives the same text.
    ///
    /// # Errors
    /// [`SessionError::Stored`] should a part have no JSON form; none of ours is like that.
    pub fn to_stored(&self) -> Result<String, SessionError> {
        let out = EventOut {
            v: EVENT_FORMAT,
            id: &self.id,
            invocation: &self.invocation,
            author: &self.author,
            at: self.at,
            kind: &self.kind,
            messages: &self.messages,
            delta: &self.actions.delta,
            started: &self.actions.started,
            rewound_to: self.actions.rewound_to,
            record: self.record.as_ref(),
            metadata: &self.metadata,
        };
        serde_json::to_string(&out)
            .map_err(|source| SessionError::Stored { what: format!("event {}", self.id), source })
    }

    /// Reads an event back, of any format that was ever written.
    ///
    /// # Errors
    /// [`SessionError::NewerFormat`], or [`SessionError::Stored`] when the text is no event.
    pub fn from_stored(text: &str) -> Result<Self, SessionError> {
        let stored = match serde_json::from_str::<EventIn>(text) {
            Ok(stored) if stored.v <= EVENT_FORMAT => stored,
            other => return Err(fault_of(text, other.err())),
        };
        Ok(Event {
            id: stored.id,
            invocation: stored.invocation,
            author: stored.author,
            at: stored.at,
            kind: stored.kind,
            messages: stored.messages,
            actions: Actions { delta: stored.delta, started: stored.started, rewound_to: stored.rewound_to },
            record: stored.record,
            metadata: stored.metadata,
        })
    }
}

/// Why a text is no event: of a newer format, or broken.
fn fault_of(text: &str, error: Option<serde_json::Error>) -> SessionError {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }

    let version = serde_json::from_str::<Version>(text);
    match (version, error) {
        (Ok(Version { v: found }), _) if found > EVENT_FORMAT => {
            SessionError::NewerFormat { what: "event", found, supported: EVENT_FORMAT }
        }
        (_, Some(source)) | (Err(source), None) => SessionError::Stored { what: "event".to_owned(), source },
        (Ok(_), None) => SessionError::Stored {
            what: "event".to_owned(),
            source: serde::de::Error::custom("it has no format that was ever written"),
        },
    }
}
