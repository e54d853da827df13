//! Messages as chat completions write them.
//!
//! Note that a tool message can only hold text. Images that a tool returned follow in a user message after
//! the results of the step, so that nothing separates a call from its result.

use std::borrow::Cow;

use async_openai::types::chat::{
    ChatCompletionMessageToolCall, ChatCompletionMessageToolCalls,
    ChatCompletionRequestMessageContentPartFile, ChatCompletionRequestMessageContentPartImage,
    ChatCompletionRequestMessageContentPartText, ChatCompletionRequestUserMessageContentPart as UserPart,
    FileObject, FunctionCall, ImageDetail as WiredDetail, ImageUrl,
};
use serde::Serialize;
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Content, Extras, ImageDetail, Media, MediaSource, Message, ModelError, Part, Role, ToolCall, ToolContent,
};

use super::{Preset, ReasoningBack};
use crate::conform::MessageChanges;
use crate::rules::names::{NameRules, wire_name};
use crate::rules::{self, ArgumentForm, RoleOrder, SystemPlace};
use crate::wire;

/// The open elements between two messages.
#[derive(Clone, Default)]
pub struct ChatWriteState {
    has_messages: bool,
    /// The role of the last message that is not of the system.
    last: Option<Role>,
    /// The text of leading system messages, which become one, and its parts.
    system: (String, Vec<Value>),
    /// Images of tool results that are still to be shown, as JSON parts.
    images: Vec<u8>,
}

/// A message of the assistant. Its content is null next to calls, which the library's type omits and some
/// servers require.
#[derive(Serialize)]
struct ChatAssistantMessage<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    content: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

/// Appends a message.
pub(super) fn write(
    preset: &Preset,
    message: &Message,
    open: &mut ChatWriteState,
    out: &mut Vec<u8>,
    changes: &mut MessageChanges,
) -> Result<(), ModelError> {
    if !preset.rules.names || message.role() == Role::Tool {
        wire::reject_name(message)?;
    }
    if let Some(name) = message.name()
        && !NameRules::OPENAI.accepts(name)
    {
        changes.add(format!("the participant's name `{name}` has a form that the server takes"));
    }
    let is_one_system = message.role() == Role::System && preset.rules.system != SystemPlace::Anywhere;
    if is_one_system && open.last.is_none() {
        return collect_system(preset, message, open, changes);
    }
    write_system(preset, open, out);
    if message.role() != Role::Tool {
        show_images(preset, open, out, changes);
    }
    if is_one_system {
        write_bridge(preset, Role::User, open, out, changes);
        changes.add("a later system message is a text of the user");
        let text = rules::tagged(&message.text());
        push(&json!({"role": "user", "content": text}), open, out);
        return Ok(());
    }
    if message.role() != Role::System {
        write_bridge(preset, message.role(), open, out, changes);
    }
    match message.role() {
        Role::Tool => tool(preset, message, open, out),
        Role::Assistant => assistant(preset, message, open, out),
        _ => input_message(preset, message, open, out),
    }
}

/// Returns the name of the participant in the form of the API: letters, digits, `_` and `-`.
fn participant(message: &Message) -> Option<Cow<'_, str>> {
    message.name().map(|name| wire_name(&NameRules::OPENAI, name))
}

/// Appends the open elements at the end of the conversation.
pub(super) fn close(preset: &Preset, open: &ChatWriteState, out: &mut Vec<u8>) {
    let mut open = open.clone();
    let mut changes = MessageChanges::default();
    write_system(preset, &mut open, out);
    show_images(preset, &mut open, out, &mut changes);
    if open.last.is_none() && preset.rules.order != RoleOrder::Any {
        push(&json!({"role": "user", "content": rules::STAND_IN}), &mut open, out);
    }
}

/// Keeps the text of a leading system message, which is written with the others.
fn collect_system(
    preset: &Preset,
    message: &Message,
    open: &mut ChatWriteState,
    changes: &mut MessageChanges,
) -> Result<(), ModelError> {
    let (text, parts) = &mut open.system;
    if !parts.is_empty() {
        changes.add("it is joined to the system message before");
        text.push_str("\n\n");
    }
    text.push_str(&message.text());
    for part in message.parts().iter().filter(|part| !matches!(part.content, Content::Unknown(_))) {
        let Content::Text(text) = &part.content else {
            return Err(wire::unsupported_part(Role::System, &part.content));
        };
        parts.push(marked(preset, part, json!(text_part(text.clone()))));
    }
    Ok(())
}

/// Appends the leading system message.
fn write_system(preset: &Preset, open: &mut ChatWriteState, out: &mut Vec<u8>) {
    let (text, parts) = std::mem::take(&mut open.system);
    if parts.is_empty() {
        return;
    }
    let is_marked = parts.iter().any(|part| part.get("cache_control").is_some());
    let content = if is_marked { Value::Array(parts) } else { text.into() };
    push(&json!({"role": preset.system_role, "content": content}), open, out);
}

/// Appends the message that the server requires between the last message and one of this role.
fn write_bridge(
    preset: &Preset,
    role: Role,
    open: &mut ChatWriteState,
    out: &mut Vec<u8>,
    changes: &mut MessageChanges,
) {
    let order = preset.rules.order;
    let between = match (open.last, role) {
        _ if order == RoleOrder::Any => None,
        (None, Role::Assistant | Role::Tool) => Some((Role::User, rules::STAND_IN)),
        (Some(Role::Tool), Role::User) if order != RoleOrder::UserFirst => {
            Some((Role::Assistant, rules::BRIDGE))
        }
        (Some(Role::User), Role::User) if order == RoleOrder::Alternating => {
            Some((Role::Assistant, rules::BRIDGE))
        }
        (Some(Role::Assistant), Role::Assistant) if order == RoleOrder::Alternating => {
            Some((Role::User, rules::BRIDGE))
        }
        _ => None,
    };
    if let Some((other, text)) = between {
        changes.add(format!("a message of the {other}, `{text}`, stands before it: the server requires one"));
        let mut wired = json!({"role": other.as_str(), "content": text});
        if let (Some(ReasoningBack::Field(field)), Role::Assistant, true) =
            (preset.reasoning_back, other, preset.rules.needs_reasoning)
        {
            wired[field] = "".into();
        }
        push(&wired, open, out);
    }
    open.last = Some(role);
}

fn push<T: Serialize>(message: &T, open: &mut ChatWriteState, out: &mut Vec<u8>) {
    if std::mem::replace(&mut open.has_messages, true) {
        out.push(b',');
    }
    wire::json(message, out);
}

/// Returns the cache mark of a part, for servers that support it.
fn mark<'a>(preset: &Preset, part: &'a Part) -> Option<&'a Value> {
    part.extras.get("cache_control").filter(|_| preset.cache_control)
}

/// The text of some parts: a list if one of them is marked for the cache.
fn text_of(preset: &Preset, parts: &[Part], text: Cow<'_, str>) -> Value {
    if !parts.iter().any(|part| mark(preset, part).is_some()) {
        return Value::String(text.into_owned());
    }
    let texts = parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) if !text.is_empty() => Some(marked(preset, part, json!(text_part(text.clone())))),
        _ => None,
    });
    texts.collect()
}

fn marked(preset: &Preset, part: &Part, mut wired: Value) -> Value {
    if let Some(mark) = mark(preset, part) {
        wired["cache_control"] = mark.clone();
    }
    wired
}

fn assistant(
    preset: &Preset,
    message: &Message,
    open: &mut ChatWriteState,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    let mut reasoning = String::new();
    let mut tool_calls = Vec::new();
    for part in message.parts() {
        match &part.content {
            Content::Text(_) | Content::Unknown(_) => {}
            Content::Reasoning(text) => reasoning.push_str(text),
            Content::ToolCall(call) => tool_calls.push(tool_call(preset, call, &part.extras)),
            other => return Err(wire::unsupported_part(Role::Assistant, other)),
        }
    }
    let text = message.text();
    let content = match preset.reasoning_back {
        Some(ReasoningBack::Part) if !reasoning.is_empty() => {
            let thought = json!({"type": "thinking", "thinking": [text_part(reasoning.clone())]});
            let text = (!text.is_empty()).then(|| json!(text_part(text.into_owned())));
            Value::Array([thought].into_iter().chain(text).collect())
        }
        _ if text.is_empty() && !tool_calls.is_empty() => Value::Null,
        _ => text_of(preset, message.parts(), text),
    };
    let name = participant(message);
    push(&ChatAssistantMessage { role: "assistant", name: name.as_deref(), content, tool_calls }, open, out);
    if let Some(ReasoningBack::Field(field)) = preset.reasoning_back {
        if !reasoning.is_empty() || preset.rules.needs_reasoning {
            add_field(field, &Value::String(reasoning), out);
        }
        if let Some(details) = message.extras().get("reasoning_details") {
            add_field("reasoning_details", details, out);
        }
    }
    Ok(())
}

fn tool_call(preset: &Preset, call: &ToolCall, extras: &Extras) -> Value {
    let arguments = match preset.rules.arguments {
        ArgumentForm::Text => call.arguments.to_text().into_owned(),
        _ => match call.arguments.malformed() {
            Some(_) => Value::Object(wire::argument_object(&call.arguments)).to_string(),
            None => call.arguments.to_text().into_owned(),
        },
    };
    let function = FunctionCall { name: call.name.clone(), arguments };
    let id = preset.rules.call_ids.accepted(&call.id).into_owned();
    let call = ChatCompletionMessageToolCall { id, function };
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
fn input_message(
    preset: &Preset,
    message: &Message,
    open: &mut ChatWriteState,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    let is_text = |part: &Part| matches!(part.content, Content::Text(_) | Content::Unknown(_));
    let content = if message.parts().iter().all(is_text) {
        text_of(preset, message.parts(), message.text())
    } else {
        let parts = message.parts().iter().filter(|part| !matches!(part.content, Content::Unknown(_)));
        let parts = parts.map(|part| {
            content_part(preset, message.role(), &part.content).map(|wired| marked(preset, part, wired))
        });
        Value::Array(parts.collect::<Result<_, _>>()?)
    };
    let role = if message.role() == Role::System { preset.system_role } else { message.role().as_str() };
    let fields = [
        ("role", Some(role.into())),
        ("name", participant(message).map(Value::from)),
        ("content", Some(content)),
    ];
    push(&wire::fields(fields), open, out);
    Ok(())
}

fn tool(
    preset: &Preset,
    message: &Message,
    open: &mut ChatWriteState,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    // NOTE: A well-formed conversation has one result in each tool message.
    let Some(result) = message.tool_result() else {
        return Ok(());
    };
    let call_id = preset.rules.call_ids.accepted(result.call_id());
    if let ToolContent::Parts(parts) = result.content() {
        for part in parts {
            if matches!(part.content, Content::Text(_) | Content::Unknown(_)) {
                continue;
            }
            let wired = content_part(preset, Role::Tool, &part.content)?;
            open.images.extend_from_slice(if open.images.is_empty() { b"" } else { b"," });
            wire::json(&text_part(format!("From tool call {call_id}:")), &mut open.images);
            open.images.push(b',');
            wire::json(&wired, &mut open.images);
        }
    }
    let text = match result.text() {
        text if rules::is_blank(&text) && !preset.rules.empty_results => Cow::Borrowed(rules::MEDIA_FOLLOW),
        text => text,
    };
    let mark = message.parts().first().filter(|part| mark(preset, part).is_some());
    let content = match (mark, result.content()) {
        (Some(part), _) => json!([marked(preset, part, json!(text_part(text.into_owned())))]),
        (None, ToolContent::Parts(parts)) => text_of(preset, parts, text),
        (None, _) => Value::String(text.into_owned()),
    };
    push(&json!({"role": "tool", "content": content, "tool_call_id": call_id}), open, out);
    Ok(())
}

/// Appends a user message with the tools' media, which tool messages cannot hold.
fn show_images(preset: &Preset, open: &mut ChatWriteState, out: &mut Vec<u8>, changes: &mut MessageChanges) {
    let images = std::mem::take(&mut open.images);
    if images.is_empty() {
        return;
    }
    write_bridge(preset, Role::User, open, out, changes);
    open.has_messages = true;
    out.extend_from_slice(br#",{"role":"user","content":["#);
    out.extend_from_slice(&images);
    out.extend_from_slice(b"]}");
}

/// Writes a text, an image or a file.
fn content_part(preset: &Preset, role: Role, content: &Content) -> Result<Value, ModelError> {
    match content {
        Content::Text(text) => Ok(json!(text_part(text.clone()))),
        Content::Image(media) => image(media),
        Content::File(media) => file(preset, media),
        other => Err(wire::unsupported_part(role, other)),
    }
}

fn text_part(text: String) -> UserPart {
    UserPart::Text(ChatCompletionRequestMessageContentPartText { text, ..Default::default() })
}

fn image(media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    let url = wire::data_url(media);
    let url =
        url.ok_or_else(|| wire::unsupported("unsupported image by an id: send its content or its URL"))?;
    let detail = match media.detail {
        None => None,
        Some(ImageDetail::Low) => Some(WiredDetail::Low),
        Some(ImageDetail::High) => Some(WiredDetail::High),
        Some(ImageDetail::Original) => Some(WiredDetail::Original),
        Some(_) => return Err(wire::unsupported_detail(media, "low, high or original")),
    };
    let image_url = ImageUrl { url: url.into_owned(), detail };
    Ok(json!(UserPart::ImageUrl(ChatCompletionRequestMessageContentPartImage {
        image_url,
        ..Default::default()
    })))
}

fn file(preset: &Preset, media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    wire::reject_file_detail(media)?;
    let media_type = media.media_type.as_deref().unwrap_or("");
    if let (Some(format), Some(data)) = (media_type.strip_prefix("audio/"), wire::base64(media)) {
        // NOTE: The type of async-openai has two formats only; servers accept more.
        let format = if format == "mpeg" { "mp3" } else { format.trim_start_matches("x-") };
        return Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    let file = match &media.source {
        MediaSource::FileId(id) => FileObject { file_id: Some(id.clone()), ..FileObject::default() },
        MediaSource::Url(_) if !preset.file_urls => {
            return Err(wire::unsupported("unsupported file by its URL: send its content"));
        }
        _ => FileObject {
            file_data: wire::data_url(media).map(Cow::into_owned),
            file_id: None,
            filename: Some(media.name.clone().unwrap_or_else(|| "file".to_owned())),
        },
    };
    Ok(json!(UserPart::File(ChatCompletionRequestMessageContentPartFile { file, ..Default::default() })))
}
