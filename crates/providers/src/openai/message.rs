//! Messages as chat completions write them.
//!
//! Note that a tool message can only hold text. Images that a tool returned follow in a user message after
//! the results of the step, so that nothing separates a call from its result.

use async_openai::types::chat::{
    ChatCompletionMessageToolCall, ChatCompletionMessageToolCalls, ChatCompletionRequestMessage,
    ChatCompletionRequestMessageContentPartFile, ChatCompletionRequestMessageContentPartImage,
    ChatCompletionRequestMessageContentPartText, ChatCompletionRequestToolMessage,
    ChatCompletionRequestToolMessageContent, ChatCompletionRequestUserMessageContentPart as UserPart,
    FileObject, FunctionCall, ImageUrl,
};
use serde::Serialize;
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Content, Extras, Media, MediaSource, Message, ModelError, ModelErrorKind, Part, Role, ToolCall,
    ToolContent,
};

use super::{Preset, ReasoningBack};
use crate::wire;

/// Images of tool results that are still to be shown, as JSON parts.
#[derive(Clone, Default)]
pub struct Open {
    is_behind_message: bool,
    images: Vec<u8>,
}

/// A message of the assistant. Its content is null next to calls, which the library's type omits and some
/// servers require.
#[derive(Serialize)]
struct Assistant<'a> {
    role: &'a str,
    content: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

/// Appends a message.
pub(super) fn write(
    preset: &Preset,
    message: &Message,
    open: &mut Open,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    if message.role() == Role::Tool {
        return tool(message, open, out);
    }
    close(open, out);
    open.images.clear();
    if message.role() == Role::Assistant {
        assistant(preset, message, open, out)
    } else {
        said(message, open, out)
    }
}

fn assistant(
    preset: &Preset,
    message: &Message,
    open: &mut Open,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    let mut reasoning = String::new();
    let mut tool_calls = Vec::new();
    for part in message.parts() {
        match &part.content {
            Content::Text(_) | Content::Unknown(_) => {}
            Content::Reasoning(text) => reasoning.push_str(text),
            Content::ToolCall(call) => tool_calls.push(tool_call(call, &part.extras)),
            other => return Err(cannot("say", Role::Assistant, other)),
        }
    }
    let text = message.text();
    let content = match preset.reasoning_back {
        Some(ReasoningBack::Part) if !reasoning.is_empty() => {
            let thought = json!({"type": "thinking", "thinking": [text_part(reasoning.clone())]});
            let said = (!text.is_empty()).then(|| json!(text_part(text.into_owned())));
            Value::Array([thought].into_iter().chain(said).collect())
        }
        _ if text.is_empty() && !tool_calls.is_empty() => Value::Null,
        _ => Value::String(text.into_owned()),
    };
    separate(open, out);
    wire::json(&Assistant { role: "assistant", content, tool_calls }, out);
    if let Some(ReasoningBack::Field(field)) = preset.reasoning_back {
        if !reasoning.is_empty() {
            add_field(field, &Value::String(reasoning), out);
        }
        if let Some(details) = message.extras().get("reasoning_details") {
            add_field("reasoning_details", details, out);
        }
    }
    Ok(())
}

fn tool_call(call: &ToolCall, extras: &Extras) -> Value {
    let function = FunctionCall { name: call.name.clone(), arguments: call.arguments.to_text().into_owned() };
    let call = ChatCompletionMessageToolCall { id: call.id.clone(), function };
    let mut wired = json!(ChatCompletionMessageToolCalls::Function(call));
    // The signature that some providers add to calls.
    if let Some(extra) = extras.get("extra_content") {
        wired["extra_content"] = extra.clone();
    }
    wired
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
    separate(open, out);
    wire::json(&json!({"role": message.role().as_str(), "content": content}), out);
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
            wire::json(&text_part(format!("From tool call {}:", result.call_id())), &mut open.images);
            open.images.push(b',');
            wire::json(&shown, &mut open.images);
        }
    }
    let content = ChatCompletionRequestToolMessageContent::Text(result.text().into_owned());
    let tool_call_id = result.call_id().to_owned();
    let wired = ChatCompletionRequestToolMessage { content, tool_call_id };
    separate(open, out);
    wire::json(&ChatCompletionRequestMessage::Tool(wired), out);
    Ok(())
}

/// Appends a user message with the tools' media, which tool messages cannot hold.
pub(super) fn close(open: &Open, out: &mut Vec<u8>) {
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
        Content::Text(text) => Ok(json!(text_part(text.clone()))),
        Content::Image(media) => {
            let image_url = ImageUrl { url: data_url(media), detail: None };
            let image = ChatCompletionRequestMessageContentPartImage { image_url, ..Default::default() };
            Ok(json!(UserPart::ImageUrl(image)))
        }
        Content::File(media) => file(media).ok_or_else(|| cannot("read by URL", role, content)),
        other => Err(cannot("say", role, other)),
    }
}

fn text_part(text: String) -> UserPart {
    UserPart::Text(ChatCompletionRequestMessageContentPartText { text, ..Default::default() })
}

/// A file with inline data.
fn file(media: &Media) -> Option<Value> {
    let MediaSource::Base64(data) = &media.source else {
        return None;
    };
    let media_type = media.media_type.as_deref().unwrap_or("");
    if let Some(format) = media_type.strip_prefix("audio/") {
        // The library knows two formats; servers know more.
        let format = if format == "mpeg" { "mp3" } else { format.trim_start_matches("x-") };
        return Some(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    let filename = Some(media.name.clone().unwrap_or_else(|| "file".to_owned()));
    let file = FileObject { file_data: Some(data_url(media)), file_id: None, filename };
    let file = ChatCompletionRequestMessageContentPartFile { file, ..Default::default() };
    Some(json!(UserPart::File(file)))
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
