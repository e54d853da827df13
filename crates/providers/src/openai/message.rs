//! Messages as chat completions write them.
//!
//! One thing surprises: a tool message can hold text only. Images that a tool returned follow in a user
//! message behind the results of the step, so that nothing comes between a call and its result.

use serde::Serialize;
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Content, Media, MediaSource, Message, ModelError, ModelErrorKind, Part, Role, ToolContent,
};

use super::Preset;
use crate::wire::{self, Dialect};

/// How a preset writes messages.
pub(super) struct Wire<'a>(pub(super) &'a Preset);

/// Images of tool results that are still to be shown, as JSON parts.
#[derive(Clone, Default)]
pub(super) struct Open {
    is_behind_message: bool,
    images: Vec<u8>,
}

#[derive(Serialize)]
struct Wired<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl Dialect for Wire<'_> {
    type Open = Open;

    fn write(&self, message: &Message, open: &mut Open, out: &mut Vec<u8>) -> Result<(), ModelError> {
        if message.role() == Role::Tool {
            return tool(message, open, out);
        }
        show_images(open, out);
        open.images.clear();
        if message.role() == Role::Assistant {
            self.assistant(message, open, out)
        } else {
            said(message, open, out)
        }
    }

    fn close(&self, open: &Open, out: &mut Vec<u8>) {
        show_images(open, out);
    }
}

impl Wire<'_> {
    fn assistant(&self, message: &Message, open: &mut Open, out: &mut Vec<u8>) -> Result<(), ModelError> {
        let mut reasoning = String::new();
        let mut calls = Vec::new();
        for part in message.parts() {
            match &part.content {
                Content::Text(_) | Content::Unknown(_) => {}
                Content::Reasoning(text) => reasoning.push_str(text),
                Content::ToolCall(call) => {
                    let mut wired = json!({
                        "id": call.id,
                        "type": "function",
                        "function": { "name": call.name, "arguments": call.arguments.to_text() },
                    });
                    // What some providers sign their calls with.
                    if let Some(extra) = part.extras.get("extra_content") {
                        wired["extra_content"] = extra.clone();
                    }
                    calls.push(wired);
                }
                other => return Err(cannot("say", Role::Assistant, other)),
            }
        }
        let text = message.text();
        let has_text = !text.is_empty() || calls.is_empty();
        let wired = Wired {
            role: "assistant",
            content: Some(if has_text { Value::String(text.into_owned()) } else { Value::Null }),
            tool_calls: calls,
            tool_call_id: None,
        };
        separate(open, out);
        wire::json(&wired, out);
        if let Some(field) = self.0.reasoning_back {
            if !reasoning.is_empty() {
                add_field(field, &Value::String(reasoning), out);
            }
            if let Some(details) = message.extras().get("reasoning_details") {
                add_field("reasoning_details", details, out);
            }
        }
        Ok(())
    }
}

/// Adds a field to the object that ends here.
fn add_field(name: &str, value: &Value, out: &mut Vec<u8>) {
    out.pop();
    out.push(b',');
    wire::json(name, out);
    out.push(b':');
    wire::json(value, out);
    out.push(b'}');
}

/// A system or a user message.
fn said(message: &Message, open: &mut Open, out: &mut Vec<u8>) -> Result<(), ModelError> {
    let is_text = |part: &Part| matches!(part.content, Content::Text(_) | Content::Unknown(_));
    let content = if message.parts().iter().all(is_text) {
        Value::String(message.text().into_owned())
    } else {
        let parts = message.parts().iter().filter(|part| !matches!(part.content, Content::Unknown(_)));
        Value::Array(parts.map(|part| shown(message.role(), &part.content)).collect::<Result<_, _>>()?)
    };
    let wired = Wired {
        role: message.role().as_str(),
        content: Some(content),
        tool_calls: Vec::new(),
        tool_call_id: None,
    };
    separate(open, out);
    wire::json(&wired, out);
    Ok(())
}

fn tool(message: &Message, open: &mut Open, out: &mut Vec<u8>) -> Result<(), ModelError> {
    // A well-formed conversation has one result in each tool message.
    let Some(result) = message.tool_result() else {
        return Ok(());
    };
    if let ToolContent::Parts(parts) = result.content() {
        for part in parts {
            if matches!(part.content, Content::Text(_) | Content::Unknown(_)) {
                continue;
            }
            let shown = shown(Role::Tool, &part.content)?;
            open.images.extend_from_slice(if open.images.is_empty() { b"" } else { b"," });
            wire::json(
                &json!({"type": "text", "text": format!("From tool call {}:", result.call_id())}),
                &mut open.images,
            );
            open.images.push(b',');
            wire::json(&shown, &mut open.images);
        }
    }
    let wired = Wired {
        role: "tool",
        content: Some(Value::String(result.text().into_owned())),
        tool_calls: Vec::new(),
        tool_call_id: Some(result.call_id()),
    };
    separate(open, out);
    wire::json(&wired, out);
    Ok(())
}

/// The user message that shows what tools returned and their messages cannot hold.
fn show_images(open: &Open, out: &mut Vec<u8>) {
    if !open.images.is_empty() {
        out.extend_from_slice(br#",{"role":"user","content":["#);
        out.extend_from_slice(&open.images);
        out.extend_from_slice(b"]}");
    }
}

fn separate(open: &mut Open, out: &mut Vec<u8>) {
    if std::mem::replace(&mut open.is_behind_message, true) {
        out.push(b',');
    }
}

/// A part that a person could see or hear.
fn shown(role: Role, content: &Content) -> Result<Value, ModelError> {
    match content {
        Content::Text(text) => Ok(json!({"type": "text", "text": text})),
        Content::Image(media) => Ok(json!({"type": "image_url", "image_url": {"url": data_url(media)}})),
        Content::File(media) => file(media).ok_or_else(|| cannot("read by URL", role, content)),
        other => Err(cannot("say", role, other)),
    }
}

/// A file, which has to be here.
fn file(media: &Media) -> Option<Value> {
    let MediaSource::Base64(data) = &media.source else {
        return None;
    };
    let media_type = media.media_type.as_deref().unwrap_or("");
    if let Some(format) = media_type.strip_prefix("audio/") {
        let format = if format == "mpeg" { "mp3" } else { format.trim_start_matches("x-") };
        return Some(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    let name = media.name.as_deref().unwrap_or("file");
    Some(json!({"type": "file", "file": {"filename": name, "file_data": data_url(media)}}))
}

fn data_url(media: &Media) -> String {
    match &media.source {
        MediaSource::Url(url) => url.clone(),
        MediaSource::Base64(data) => {
            format!(
                "data:{};base64,{data}",
                media.media_type.as_deref().unwrap_or("application/octet-stream")
            )
        }
    }
}

fn cannot(what: &str, role: Role, content: &Content) -> ModelError {
    let message =
        format!("this protocol cannot {what} a part of kind {} in a message of the {role}", content.kind());
    ModelError::new(ModelErrorKind::Unsupported, message)
}
