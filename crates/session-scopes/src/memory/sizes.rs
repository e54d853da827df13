//! The sizes of events in memory: about those that databases store, without making their text, which may be large.

use serde_json::Value;
use stepfold_state_core::chat::{Content, Part};

use crate::event::Event;

/// The bytes of an event besides its parts, and around each of them.
const REST: (usize, usize) = (256, 48);

pub(super) fn size_of(event: &Event) -> usize {
    let record = event.record.as_ref().map_or(0, |record| record.text().len());
    let messages = event.messages.iter().flat_map(|message| message.parts()).map(size_of_part);
    let writes = event.actions.delta.iter();
    let writes = writes.map(|write| write.key().len() + write.value().map_or(0, size_of_value) + REST.1);
    REST.0 + record + messages.sum::<usize>() + writes.sum::<usize>()
}

/// The number of values in what an event writes, at any depth.
pub(super) fn values_of(event: &Event) -> usize {
    event.actions.delta.iter().filter_map(|write| write.value()).map(values_in).sum()
}

fn values_in(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values_in).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(values_in).sum::<usize>(),
        _ => 1,
    }
}

fn size_of_part(part: &Part) -> usize {
    match &part.content {
        // NOTE: estimated and not serialized: the sizes exist to avoid making the text of large events.
        Content::Text(text) | Content::Reasoning(text) => text.len() + REST.1,
        _ => serde_json::to_vec(part).map_or(0, |text| text.len()),
    }
}

fn size_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 3,
        Value::Array(items) => 2 + items.iter().map(size_of_value).sum::<usize>(),
        Value::Object(fields) => {
            2 + fields.iter().map(|(name, value)| name.len() + 4 + size_of_value(value)).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}
