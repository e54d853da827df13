//! Chunks as servers really send them. Every field is optional, and fields of several types are kept raw: the
//! decoder decides.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// One event of a stream, or a whole reply of a server that does not stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawChunk {
    pub(super) id: Value,
    pub(super) model: Value,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) choices: Vec<RawChoice>,
    pub(super) usage: Value,
    pub(super) x_groq: Value,
    pub(super) error: Value,
    /// Some servers put an error here, with `object` or `type` saying so.
    pub(super) object: Value,
    #[serde(rename = "type")]
    pub(super) kind: Value,
    pub(super) message: Value,
    pub(super) code: Value,
    pub(super) detail: Value,
    /// Sources, of the whole reply: addresses alone, or more of each.
    pub(super) citations: Value,
    pub(super) search_results: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawChoice {
    pub(super) index: Value,
    pub(super) delta: Option<RawDelta>,
    /// The message of a whole reply. Some servers repeat the text so far here, in addition to a delta.
    pub(super) message: Option<RawDelta>,
    pub(super) finish_reason: Value,
    pub(super) logprobs: Value,
    pub(super) usage: Value,
    pub(super) error: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawDelta {
    pub(super) content: Value,
    pub(super) reasoning_content: Value,
    pub(super) reasoning: Value,
    pub(super) thinking: Value,
    pub(super) reasoning_details: Value,
    pub(super) refusal: Value,
    pub(super) annotations: Value,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) tool_calls: Vec<RawCall>,
    /// The predecessor of `tool_calls`.
    pub(super) function_call: Option<RawFunction>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawCall {
    pub(super) index: Value,
    pub(super) id: Value,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) function: RawFunction,
    pub(super) extra_content: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawFunction {
    pub(super) name: Value,
    pub(super) arguments: Value,
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}
