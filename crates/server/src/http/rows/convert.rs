//! Conversions that several rows share.

use serde::Serialize;
use serde_json::Value;
use stepfold_agent_loop::Exit;

/// The number of bytes of a text that stands for others.
const SHORT: usize = 200;

/// The beginning of a text, for a title.
pub(in crate::http) fn short(text: &str) -> String {
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= SHORT);
    end.map_or_else(|| text.to_owned(), |end| format!("{}…", &text[..end]))
}

/// An exit reason, as it is stored.
pub(in crate::http) fn exit(exit: &Exit) -> Value {
    json(exit)
}

/// The JSON of a value that serialises without errors: maps have text keys.
pub(in crate::http) fn json<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
