//! Messages as contents.
//!
//! Note two things. The results of a step are parts of *one* content, together with directly following user
//! messages: a content stays open until the role changes. And a call has an id only if the server set it: a
//! generated one is not sent, with the call or with its result.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    Content, Extras, ImageDetail, Media, MediaSource, Message, ModelError, Part, Role, ToolContent,
    ToolResult, UnknownPart,
};

use crate::conform::MessageChanges;
use crate::rules::{self, is_blank};
use crate::wire;

/// The extra of a part that holds its signature.
pub(super) const SIGNATURE: &str = "thought_signature";

/// The extra of a call that holds the id that the server gave it.
pub(super) const CALL_ID: &str = "function_call_id";

/// The documented stand-in for the signature of a call by another model ("Thought signatures", FAQ).
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The field of an unknown part with a part of an unknown kind.
pub(super) const PART: &str = "gemini";

/// The open elements between two messages.
#[derive(Clone, Default)]
pub struct GeminiWriteState {
    /// The role of the open content; `None` before the first one.
    speaker: Option<&'static str>,
    /// Whether a message other than a system message was written: the system messages before it are a field of the request.
    has_begun: bool,
    /// The ids of the last calls, each with the id that the server gave it.
    given: Arc<[(String, Value)]>,
}

/// Appends a message.
pub(super) fn write(
    message: &Message,
    signs_calls: bool,
    open: &mut GeminiWriteState,
    out: &mut Vec<u8>,
    changes: &mut MessageChanges,
) -> Result<(), ModelError> {
    wire::reject_name(message)?;
    open.has_begun |= message.role() != Role::System;
    if message.role() == Role::Assistant && open.speaker.is_none() {
        changes.add(format!("a message of the user, `{}`, stands before it", rules::STAND_IN));
        stand_in(open, out);
    }
    match message.role() {
        // NOTE: Leading system messages are a field of the request.
        Role::System if !open.has_begun => {}
        // Later system messages are not supported.
        Role::System => {
            changes.add("a later system message is a text of the user");
            push("user", &json!({"text": rules::tagged(&message.text())}), open, out);
        }
        Role::User => write_parts(message, "user", false, open, out, changes)?,
        Role::Assistant => {
            let given = message.parts().iter().filter_map(|part| match &part.content {
                Content::ToolCall(call) => Some((call.id.clone(), part.extras.get(CALL_ID)?.clone())),
                _ => None,
            });
            open.given = given.collect();
            write_parts(message, "model", signs_calls, open, out, changes)?;
        }
        Role::Tool => {
            if let Some(result) = message.tool_result() {
                answer(result, open, out)?;
            }
        }
        other => return Err(wire::unsupported_role(other)),
    }
    Ok(())
}

/// Appends the end of the content that is open. A conversation has a content.
pub(super) fn close(open: &GeminiWriteState, out: &mut Vec<u8>) {
    if open.speaker.is_none() {
        stand_in(&mut open.clone(), out);
    }
    out.extend_from_slice(b"]}");
}

/// Appends a content of the user with a stand-in text.
fn stand_in(open: &mut GeminiWriteState, out: &mut Vec<u8>) {
    push("user", &json!({"text": rules::STAND_IN}), open, out);
}

/// The text of the system messages that the conversation begins with, as parts.
pub(super) fn system<'a>(messages: impl Iterator<Item = &'a Message>) -> Vec<Value> {
    let leading = messages.take_while(|message| message.role() == Role::System);
    let texts = leading.flat_map(Message::parts).filter_map(|part| match &part.content {
        Content::Text(text) if !is_blank(text) => Some(json!({"text": text})),
        _ => None,
    });
    texts.collect()
}

fn write_parts(
    message: &Message,
    speaker: &'static str,
    signs_calls: bool,
    open: &mut GeminiWriteState,
    out: &mut Vec<u8>,
    changes: &mut MessageChanges,
) -> Result<(), ModelError> {
    // NOTE: Of parallel calls only the first one is signed.
    let mut is_unsigned = signs_calls;
    for part in message.parts() {
        let Some(mut wired) = wired(message.role(), part)? else {
            continue;
        };
        let is_first_call = is_unsigned && matches!(part.content, Content::ToolCall(_));
        is_unsigned &= !is_first_call;
        if let Some(signature) = part.extras.get(SIGNATURE) {
            wired["thoughtSignature"] = signature.clone();
        } else if is_first_call {
            changes.add("a call without a signature has the documented stand-in of one");
            wired["thoughtSignature"] = NO_SIGNATURE.into();
        }
        push(speaker, &wired, open, out);
    }
    Ok(())
}

/// Appends a part.
fn push(speaker: &'static str, part: &Value, open: &mut GeminiWriteState, out: &mut Vec<u8>) {
    match open.speaker {
        Some(last) if last == speaker => out.push(b','),
        last => {
            out.extend_from_slice(if last.is_some() { b"]}," } else { b"" });
            out.extend_from_slice(format!(r#"{{"role":"{speaker}","parts":["#).as_bytes());
        }
    }
    open.speaker = Some(speaker);
    wire::json(part, out);
}

/// A part in the API's form; `None` if it is empty.
fn wired(role: Role, part: &Part) -> Result<Option<Value>, ModelError> {
    Ok(Some(match &part.content {
        Content::Text(text) => json!({"text": text}),
        // Reasoning of other models is omitted.
        Content::Reasoning(_) if part.extras.get(SIGNATURE).is_none() => return Ok(None),
        Content::Reasoning(text) => json!({"text": text, "thought": true}),
        Content::ToolCall(call) => {
            let args = wire::argument_object(&call.arguments);
            json!({"functionCall": with_id(part.extras.get(CALL_ID), json!({"name": call.name, "args": args}))})
        }
        Content::Image(media) | Content::File(media) => data(media)?,
        Content::Unknown(unknown) => match unknown.fields().get(PART) {
            Some(part) if part.is_object() => part.clone(),
            _ => return Ok(None),
        },
        other => return Err(wire::unsupported_part(role, other)),
    }))
}

fn with_id(id: Option<&Value>, mut call: Value) -> Value {
    if let Some(id) = id {
        call["id"] = id.clone();
    }
    call
}

/// The result of a call, and its media.
fn answer(result: &ToolResult, open: &mut GeminiWriteState, out: &mut Vec<u8>) -> Result<(), ModelError> {
    let text = result.text();
    let response = match result.content() {
        ToolContent::Value(Value::Object(fields)) => Value::Object(fields.clone()),
        ToolContent::Value(value) => json!({"result": value}),
        _ if result.is_error() => json!({"error": text}),
        _ => json!({"result": text}),
    };
    // NOTE: A generated id is unknown to the server, which matches results by name and order then.
    let id = open.given.iter().find(|(id, _)| id == result.call_id()).map(|(_, given)| given);
    let response = with_id(id, json!({"name": result.name(), "response": response}));
    push("user", &json!({"functionResponse": response}), open, out);
    if let ToolContent::Parts(parts) = result.content() {
        for part in parts {
            match &part.content {
                Content::Text(_) | Content::Unknown(_) => {}
                Content::Image(media) | Content::File(media) => push("user", &data(media)?, open, out),
                other => return Err(wire::unsupported_part(Role::Tool, other)),
            }
        }
    }
    Ok(())
}

fn data(media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    let media_type = media.media_type.as_deref();
    let mut part = match &media.source {
        // A file that was uploaded is known by its address as well.
        MediaSource::Url(uri) | MediaSource::FileId(uri) => {
            let mut file = json!({"fileUri": uri});
            if let Some(media_type) = media_type {
                file["mimeType"] = media_type.into();
            }
            json!({"fileData": file})
        }
        _ => {
            let (media_type, data) = (media_type.unwrap_or("application/octet-stream"), wire::base64(media));
            json!({"inlineData": {"mimeType": media_type, "data": data}})
        }
    };
    let level = match media.detail {
        None => return Ok(part),
        Some(ImageDetail::Low) => "MEDIA_RESOLUTION_LOW",
        Some(ImageDetail::Medium) => "MEDIA_RESOLUTION_MEDIUM",
        Some(ImageDetail::High) => "MEDIA_RESOLUTION_HIGH",
        Some(_) => return Err(wire::unsupported_detail(media, "low, medium or high")),
    };
    part["mediaResolution"] = json!({"level": level});
    Ok(part)
}

/// The signature of a part, as extras.
pub(super) fn signature(part: &Value) -> Option<Extras> {
    let signature = part.get("thoughtSignature").filter(|signature| !signature.is_null())?;
    Some(Extras::from_iter([(SIGNATURE, signature.clone())]))
}

/// Keeps a part of an unknown kind.
pub(super) fn unknown(part: &Value) -> Option<Part> {
    let fields: Map<String, Value> = [(PART.to_owned(), part.clone())].into_iter().collect();
    UnknownPart::new(fields).map(|part| Content::Unknown(part).into())
}
