//! Messages as items of an input.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    CITATIONS, Content, Extras, ImageDetail, Media, MediaSource, Message, ModelError, Part, Role, ToolCall,
    ToolContent, UnknownPart,
};

use crate::rules::RequestRules;
use crate::wire;

/// The extra of a part with the item it came in, without the part's own content; and the field of an unknown
/// part with an item of another kind.
pub(super) const ITEM: &str = "openai";

/// Whether an item precedes the next one.
#[derive(Clone, Copy, Default)]
pub struct ResponsesWriteState {
    has_items: bool,
}

/// Appends the items of a message.
pub(super) fn write(
    system_role: &str,
    message: &Message,
    open: &mut ResponsesWriteState,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    wire::reject_name(message)?;
    match message.role() {
        Role::Assistant => {
            for part in message.parts() {
                if let Some(item) = reply_item(part)? {
                    push(&item, open, out);
                }
            }
        }
        Role::Tool => {
            if let Some(item) = output(message)? {
                push(&item, open, out);
            }
        }
        role => {
            let parts = message.parts().iter().filter(|part| !matches!(part.content, Content::Unknown(_)));
            let content =
                parts.map(|part| content_part(role, &part.content)).collect::<Result<Vec<_>, _>>()?;
            let role = if role == Role::System { system_role } else { role.as_str() };
            push(&json!({"type": "message", "role": role, "content": content}), open, out);
        }
    }
    Ok(())
}

fn push(item: &Value, open: &mut ResponsesWriteState, out: &mut Vec<u8>) {
    if std::mem::replace(&mut open.has_items, true) {
        out.push(b',');
    }
    wire::json(item, out);
}

/// A part of the assistant as an item; `None` if it is empty.
fn reply_item(part: &Part) -> Result<Option<Value>, ModelError> {
    let item = part.extras.get(ITEM).and_then(Value::as_object).cloned();
    Ok(match &part.content {
        Content::Text(text) if text.is_empty() && item.is_none() => None,
        Content::Text(text) => {
            let annotations = part.extras.get(CITATIONS).filter(|_| item.is_some()).cloned();
            let annotations = annotations.unwrap_or_else(|| json!([]));
            let content = json!([{"type": "output_text", "text": text, "annotations": annotations}]);
            let known = [("type", "message".into()), ("role", "assistant".into()), ("content", content)];
            Some(with(item, known))
        }
        // Reasoning of other models is omitted.
        Content::Reasoning(_) => item.map(Value::Object),
        Content::ToolCall(call) => Some(function_call(call, item)),
        Content::Unknown(unknown) => unknown.fields().get(ITEM).filter(|item| item.is_object()).cloned(),
        other => return Err(wire::unsupported_part(Role::Assistant, other)),
    })
}

fn function_call(call: &ToolCall, item: Option<Map<String, Value>>) -> Value {
    let arguments = call.arguments.to_text();
    with(
        item,
        [
            ("type", "function_call".into()),
            ("call_id", RequestRules::OPENAI_RESPONSES.call_ids.accepted(&call.id).into()),
            ("name", call.name.as_str().into()),
            ("arguments", arguments.as_ref().into()),
        ],
    )
}

/// An item with these fields.
fn with<const N: usize>(item: Option<Map<String, Value>>, fields: [(&str, Value); N]) -> Value {
    let mut item = item.unwrap_or_default();
    item.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(item)
}

/// The result of a call. It may contain images, so these need no separate message.
fn output(message: &Message) -> Result<Option<Value>, ModelError> {
    let Some(result) = message.tool_result() else {
        return Ok(None);
    };
    let output = match result.content() {
        ToolContent::Parts(parts) => {
            let parts = parts.iter().filter(|part| !matches!(part.content, Content::Unknown(_)));
            Value::Array(parts.map(|part| content_part(Role::Tool, &part.content)).collect::<Result<_, _>>()?)
        }
        _ => Value::String(result.text().into_owned()),
    };
    Ok(Some(
        json!({"type": "function_call_output", "call_id": RequestRules::OPENAI_RESPONSES.call_ids.accepted(result.call_id()), "output": output}),
    ))
}

/// A part that the model reads.
fn content_part(role: Role, content: &Content) -> Result<Value, ModelError> {
    match content {
        Content::Text(text) => Ok(json!({"type": "input_text", "text": text})),
        Content::Image(media) => image(media),
        Content::File(media) => file(media),
        other => Err(wire::unsupported_part(role, other)),
    }
}

fn image(media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    let detail = match media.detail {
        None => "auto",
        Some(detail @ (ImageDetail::Low | ImageDetail::High | ImageDetail::Original)) => detail.as_str(),
        Some(_) => return Err(wire::unsupported_detail(media, "low, high or original")),
    };
    Ok(match &media.source {
        MediaSource::FileId(id) => json!({"type": "input_image", "file_id": id, "detail": detail}),
        _ => json!({"type": "input_image", "image_url": wire::data_url(media), "detail": detail}),
    })
}

fn file(media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    wire::reject_file_detail(media)?;
    Ok(match &media.source {
        MediaSource::Url(url) => json!({"type": "input_file", "file_url": url}),
        MediaSource::FileId(id) => json!({"type": "input_file", "file_id": id}),
        _ => {
            let name = media.name.as_deref().unwrap_or("file");
            json!({"type": "input_file", "filename": name, "file_data": wire::data_url(media)})
        }
    })
}

/// The other fields of an item, as the extras of its part.
pub(super) fn rest(item: &Value, known: &[&str]) -> Extras {
    let fields = item.as_object().into_iter().flatten();
    let rest = fields.filter(|(name, _)| !known.contains(&name.as_str()));
    let rest: Map<String, Value> = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
    Extras::from_iter([(ITEM, Value::Object(rest))])
}

/// An item of a kind that is not ours, as a part.
pub(super) fn unknown(item: &Value) -> Option<Part> {
    let fields: Map<String, Value> = [(ITEM.to_owned(), item.clone())].into_iter().collect();
    UnknownPart::new(fields).map(|part| Content::Unknown(part).into())
}
