//! Turns a tool's result into an outcome: the writes to the state, and the content for the model.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{Content, Part, ToolContent};
use stepfold_state_core::state::{Delta, Schema, StateError};

use super::threads::panic_message;
use crate::binding::default_text;
use crate::options::Overflow;
use crate::tool::Tool;

/// The writes of a result by the tool's bindings, after those of the function itself.
pub(super) fn writes(
    tool: &Tool,
    schema: &Schema,
    mut delta: Delta,
    result: &Value,
) -> Result<Delta, StateError> {
    for output in tool.definition().outputs.iter() {
        let Some(value) = output.source.of(result) else { continue };
        let key = &*output.key;
        delta.push(match &output.handler {
            Some(handler) => schema.write_with(key, value.clone(), handler)?,
            None => schema.write(key, value.clone())?,
        });
    }
    Ok(delta)
}

/// The content of a result for the model, and the error if its formatter failed.
pub(super) fn content(tool: &Tool, result: Value) -> (ToolContent, Option<String>) {
    let Some(text) = &tool.definition().result_text else { return (ToolContent::Value(result), None) };
    // NOTE: The formatter is the author's: its panic must not lose the result.
    let formatted = catch_unwind(AssertUnwindSafe(|| text.apply(&result)))
        .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic)).into()));
    match formatted {
        Ok(content) => (content, None),
        Err(error) => (ToolContent::Value(text.unformatted(&result)), Some(ErrorChain(&*error).to_string())),
    }
}

/// Limits the bytes of the content.
pub(super) fn bounded(content: ToolContent, limit: usize, overflow: &Overflow, call_id: &str) -> ToolContent {
    match content {
        ToolContent::Value(Value::String(text)) if text.len() <= limit => {
            ToolContent::Value(Value::String(text))
        }
        ToolContent::Value(value) => {
            if !value.is_string() && json_bytes(&value) <= limit {
                return ToolContent::Value(value);
            }
            ToolContent::Value(Value::String(truncated(&default_text(&value), limit, overflow, call_id)))
        }
        ToolContent::Error(text) if text.len() > limit => {
            ToolContent::Error(truncated(&text, limit, &Overflow::Cut, call_id))
        }
        ToolContent::Parts(parts) => ToolContent::Parts(bounded_parts(parts, limit, overflow, call_id)),
        other => other,
    }
}

/// Media are never truncated. Above the providers' limit they are replaced by a note.
const MAX_MEDIA_BYTES: usize = 20 * 1024 * 1024;

fn bounded_parts(parts: Vec<Part>, limit: usize, overflow: &Overflow, call_id: &str) -> Vec<Part> {
    let parts: Vec<Part> = parts.into_iter().map(representable).collect();
    let text: String = parts.iter().filter_map(|part| text_of(part)).collect();
    // NOTE: The limit is on all texts together; media have their own.
    let mut text_left = if text.len() > limit { limit } else { usize::MAX };
    let mut media_left = MAX_MEDIA_BYTES;
    let mut bounded = Vec::with_capacity(parts.len());
    for mut part in parts {
        if let Some(text) = text_of(&part) {
            let shown = cut_position(text, text_left);
            if shown < text.len() {
                part.content = Content::Text(text[..shown].to_owned());
                text_left = 0;
            } else {
                text_left -= shown;
            }
            if shown == 0 {
                continue;
            }
        }
        bounded.push(within_media_limit(part, &mut media_left));
    }
    if text.len() > limit {
        bounded.push(Part::text(note(&text, limit, overflow, call_id)));
    }
    bounded
}

/// Calls and results, which a result cannot contain, as text.
fn representable(part: Part) -> Part {
    match part.content {
        Content::ToolCall(_) | Content::ToolResult(_) => {
            Part::text(serde_json::to_string(&part).unwrap_or_default())
        }
        Content::Reasoning(text) => Part::text(text).with_extras(part.extras),
        _ => part,
    }
}

fn text_of(part: &Part) -> Option<&str> {
    match &part.content {
        Content::Text(text) => Some(text),
        _ => None,
    }
}

/// The part, or a note in place of media above the limit.
fn within_media_limit(part: Part, media_left: &mut usize) -> Part {
    let bytes = match &part.content {
        Content::Image(media) | Content::File(media) => media.source.len(),
        Content::Unknown(part) => part.fields().values().map(json_bytes).sum(),
        _ => 0,
    };
    if bytes > *media_left {
        return Part::text(format!("[left out: {bytes} bytes of media are too many]"));
    }
    *media_left -= bytes;
    part
}

/// The last position up to `limit` where a text can be truncated.
fn cut_position(text: &str, limit: usize) -> usize {
    let limit = limit.min(text.len());
    (0..=limit).rfind(|position| text.is_char_boundary(*position)).unwrap_or_default()
}

/// The beginning of a text above the limit, and a note.
fn truncated(text: &str, limit: usize, overflow: &Overflow, call_id: &str) -> String {
    format!("{}\n{}", &text[..cut_position(text, limit)], note(text, limit, overflow, call_id))
}

/// The note on a truncated text: its size, and the location of the full text.
fn note(text: &str, limit: usize, overflow: &Overflow, call_id: &str) -> String {
    let sizes = format!("{} bytes in all, the first {} are shown", text.len(), cut_position(text, limit));
    let kept = match overflow {
        Overflow::Cut => return format!("[cut: {sizes}]"),
        // NOTE: The tool has run: a panic of the application's function must not lose its result.
        Overflow::Offload(offload) => catch_unwind(AssertUnwindSafe(|| offload.keep(call_id, text)))
            .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic)).into())),
    };
    match kept {
        Ok(location) => format!("[{sizes}; the whole is kept: {location}]"),
        Err(error) => {
            let reason = ErrorChain(&*error).to_string();
            tracing::warn!(call_id, reason, "failed to offload a long result; it is truncated");
            format!("[cut: {sizes}]")
        }
    }
}

/// The length of compact JSON, computed without building it.
fn json_bytes(value: &Value) -> usize {
    struct ByteCounter(usize);

    impl io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counter = ByteCounter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}
