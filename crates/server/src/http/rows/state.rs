//! Rows of the state: its values, where they come from, and how they differ.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::event::{WriteRow, WriterRow};

/// The state of a session at a version.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct StateRow {
    pub(in crate::http) version: u64,
    /// The values of the session, and those of scopes that it shares (`user:`, `app:`), which are always the current ones.
    pub(in crate::http) values: BTreeMap<String, Value>,
    /// The last write of each key that the session itself has written, in the versions that are kept: the origin of its
    /// value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) origin: Option<BTreeMap<String, OriginRow>>,
    /// The last write of other keys of scopes that the session shares, whose value is not the result of the visible writes
    /// alone: another session has changed it, or a step that is later, was rewound, or is not kept. Also of a key that a
    /// visible step has merged more than 64 KiB into.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(in crate::http) changed_elsewhere: BTreeMap<String, OriginRow>,
}

/// The origin of a value.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct OriginRow {
    /// The version of the last write.
    pub(in crate::http) version: u64,
    /// The merge handler (reducer) of that write.
    pub(in crate::http) handler: Option<String>,
    /// The number of writes.
    pub(in crate::http) writes: u64,
    #[serde(flatten)]
    pub(in crate::http) by: Option<WriterRow>,
    /// The kind of the commit with the last write.
    pub(in crate::http) kind: String,
}

/// The newest writes of a key, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct BlameRow {
    pub(in crate::http) key: String,
    /// The visible writes, in the versions that are kept, up to the version that was asked for.
    pub(in crate::http) writes: Vec<BlamedWrite>,
    /// The number of all that do.
    pub(in crate::http) count: usize,
    /// The version to read the earlier ones with, as `before`; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) earlier: Option<u64>,
}

/// A write of a key.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct BlamedWrite {
    pub(in crate::http) version: u64,
    /// The kind of the commit.
    pub(in crate::http) kind: String,
    /// When it was stored (RFC 3339).
    pub(in crate::http) at: String,
    #[serde(flatten)]
    pub(in crate::http) write: WriteRow,
    /// The value before it; absent if it was unset, or unknown, as of keys that other sessions write too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) before: Option<Value>,
    /// The value after it; absent if it is unset, or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) after: Option<Value>,
}

/// The changes between two versions.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct DiffRow {
    pub(in crate::http) from: u64,
    pub(in crate::http) to: u64,
    /// The changed values.
    pub(in crate::http) changed: Vec<ChangeRow>,
    /// The messages that the second has and the first has not.
    pub(in crate::http) messages: Vec<Value>,
}

/// A changed value.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct ChangeRow {
    pub(in crate::http) key: String,
    /// Absent if it was unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) before: Option<Value>,
    /// Absent if it is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) after: Option<Value>,
}
