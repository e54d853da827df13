//! Messages as the Messages API writes them.
//!
//! Note two things. The results of a step are blocks of *one* user message, together with directly following
//! user messages: a message stays open until the role changes. And the last block stays open as well, so that
//! a cache mark can still be added.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{
    CITATIONS, Content, Extras, Media, MediaSource, Message, ModelError, Part, Role, ToolContent, Transcript,
    UnknownPart,
};

use crate::conform::{MessageChanges, RecipientProfile, SERVER, conform};
use crate::rules::{self, RequestRules, is_blank};
use crate::wire;

/// The open elements between two messages.
#[derive(Clone, Copy, Default)]
pub struct AnthropicWriteState {
    /// The role of the open message; `None` before the first one.
    speaker: Option<&'static str>,
    /// Whether a message other than a system message was written: the system messages before it are fields of the request.
    has_begun: bool,
    /// Whether the last block may be marked for the cache, and is not yet.
    can_be_marked: bool,
}

/// The field of an unknown part with a block of an unknown kind.
pub(super) const BLOCK: &str = "anthropic";

/// The extra of a call that names its caller: code that the server runs, for example.
pub(super) const CALLER: &str = "caller";

/// The extra of a message that holds the container in which the server ran code.
pub(super) const CONTAINER: &str = "container";

/// Appends a message.
pub(super) fn write(
    message: &Message,
    keeps_system: bool,
    open: &mut AnthropicWriteState,
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
        // NOTE: Leading system messages are fields of the request.
        Role::System if !open.has_begun => Ok(()),
        Role::System if keeps_system && open.speaker == Some("user") => {
            write_parts(message, open, "system", out)
        }
        // NOTE: Most models refuse later ones; tags in a text of the user are the convention.
        Role::System => {
            changes.add("a later system message is a text of the user");
            let text = rules::tagged(&message.text());
            block(open, "user", json!({"type": "text", "text": text}), &Extras::new(), out);
            Ok(())
        }
        Role::User => write_parts(message, open, "user", out),
        Role::Assistant => write_parts(message, open, "assistant", out),
        Role::Tool => tool(message, open, out),
        other => Err(wire::unsupported_role(other)),
    }
}

/// Appends the end of the message that is open, with a mark for the cache or not. A conversation has a message.
pub(super) fn close(open: &AnthropicWriteState, is_marked: bool, out: &mut Vec<u8>) {
    let mut open = *open;
    if open.speaker.is_none() {
        stand_in(&mut open, out);
    }
    // NOTE: The mark moves with the end of the conversation, so it is added at the end, and never part of the cached
    // bytes.
    if is_marked && open.can_be_marked {
        out.extend_from_slice(br#","cache_control":{"type":"ephemeral"}"#);
    }
    out.extend_from_slice(b"}]}");
}

/// Appends a message of the user with a stand-in text.
fn stand_in(open: &mut AnthropicWriteState, out: &mut Vec<u8>) {
    block(open, "user", json!({"type": "text", "text": rules::STAND_IN}), &Extras::new(), out);
}

/// Returns the start of the current turn if it cannot be continued with reasoning: the API requires the reasoning that the
/// turn began with, signed by its server.
pub(super) fn unsigned_turn(to: &RecipientProfile<'_>, messages: &Transcript) -> Option<usize> {
    let start = turn_start(to, messages);
    let is_reply = |message: &&Arc<Message>| message.role() == Role::Assistant && is_sent(to, message);
    let mut replies = messages.iter_from(start).filter(is_reply);
    let is_signed = |message: &Message| {
        let first = message
            .parts()
            .iter()
            .find(|part| !matches!(&part.content, Content::Text(text) if is_blank(text)));
        first.is_some_and(|part| {
            matches!(&part.content, Content::Reasoning(text) if thinking(text, &part.extras).is_some())
        })
    };
    let first = replies.next()?;
    // Later replies of a turn have no thinking of their own, unless it is interleaved; those of other servers look
    // the same.
    let is_whole = to.has_extras_of(first) && is_signed(first);
    (!is_whole).then_some(start)
}

/// Returns the start of the current turn as the API sees it: a message of the user directly after results is one message
/// with them, and begins no turn.
fn turn_start(to: &RecipientProfile<'_>, messages: &Transcript) -> usize {
    let mut start = messages.len();
    let mut has_input = false;
    for (from_end, message) in messages.iter().rev().enumerate() {
        match message.role() {
            Role::User | Role::System if !has_input && is_sent(to, message) => {
                has_input = true;
                start = messages.len() - from_end;
            }
            Role::Tool => has_input = false,
            Role::Assistant if has_input && is_sent(to, message) => return start,
            _ => {}
        }
    }
    if has_input { start } else { 0 }
}

/// Whether a message is sent to the server at all.
fn is_sent(to: &RecipientProfile<'_>, message: &Message) -> bool {
    conform(message, to, true, &mut MessageChanges::default()).is_some()
}

/// The id of the container in which the server runs code, as long as the turn continues: the API requires it with the
/// results of calls that the code waits for.
pub(super) fn container(server: &str, messages: &Transcript) -> Option<Value> {
    let before = |message: &&Message| message.role() == Role::Tool;
    let last = messages.iter().rev().map(|message| &**message).find(|message| !before(message))?;
    let is_own = last.extras().get(SERVER).is_some_and(|name| name == server);
    last.extras().get(CONTAINER).filter(|_| is_own)?.get("id").cloned()
}

/// The text of the system messages that the conversation begins with, as blocks.
pub(super) fn system<'a>(messages: impl Iterator<Item = &'a Message>, is_marked: bool) -> Vec<Value> {
    let leading = messages.take_while(|message| message.role() == Role::System);
    let texts = leading.flat_map(Message::parts).filter_map(|part| match &part.content {
        Content::Text(text) if !is_blank(text) => {
            let mut block = json!({"type": "text", "text": text});
            mark(&mut block, &part.extras);
            Some(block)
        }
        _ => None,
    });
    let mut blocks: Vec<Value> = texts.collect();
    if let Some(last) = blocks.last_mut().filter(|_| is_marked) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    blocks
}

fn write_parts(
    message: &Message,
    open: &mut AnthropicWriteState,
    speaker: &'static str,
    out: &mut Vec<u8>,
) -> Result<(), ModelError> {
    for part in message.parts() {
        if let Some(wired) = part_block(message.role(), part)? {
            block(open, speaker, wired, &part.extras, out);
        }
    }
    Ok(())
}

/// Appends a block without its closing brace.
fn block(
    open: &mut AnthropicWriteState,
    speaker: &'static str,
    mut wired: Value,
    extras: &Extras,
    out: &mut Vec<u8>,
) {
    mark(&mut wired, extras);
    match open.speaker {
        Some(last) if last == speaker => out.extend_from_slice(b"},"),
        last => {
            out.extend_from_slice(if last.is_some() { b"}]}," } else { b"" });
            out.extend_from_slice(format!(r#"{{"role":"{speaker}","content":["#).as_bytes());
        }
    }
    let can_be_marked = wired.get("cache_control").is_none()
        // NOTE: The API refuses marks on thinking blocks.
        && wired["type"] != "thinking"
        && wired["type"] != "redacted_thinking";
    wire::json(&wired, out);
    out.pop();
    *open = AnthropicWriteState { speaker: Some(speaker), can_be_marked, ..*open };
}

fn mark(block: &mut Value, extras: &Extras) {
    if let Some(mark) = extras.get("cache_control") {
        block["cache_control"] = mark.clone();
    }
}

/// A part as a block; `None` if it is empty.
fn part_block(role: Role, part: &Part) -> Result<Option<Value>, ModelError> {
    Ok(Some(match &part.content {
        Content::Text(text) => {
            let mut wired = json!({"type": "text", "text": text});
            // NOTE: Citations of other providers have another form.
            let is_own =
                |citation: &Value| citation["type"].as_str().is_some_and(|kind| kind.ends_with("_location"));
            if let Some(Value::Array(citations)) = part.extras.get(CITATIONS)
                && citations.iter().all(is_own)
            {
                wired["citations"] = citations.as_slice().into();
            }
            wired
        }
        Content::Reasoning(text) => return Ok(thinking(text, &part.extras)),
        Content::ToolCall(call) => {
            let input = wire::argument_object(&call.arguments);
            let id = accepted_id(&call.id);
            let mut wired = json!({"type": "tool_use", "id": id, "name": call.name, "input": input});
            if let Some(caller) = part.extras.get(CALLER) {
                wired["caller"] = caller.clone();
            }
            wired
        }
        Content::Image(media) => image(media)?,
        Content::File(media) => document(media, &part.extras)?,
        Content::Unknown(unknown) => match unknown.fields().get(BLOCK) {
            // An empty block cannot be marked.
            Some(block) if block.as_object().is_some_and(|fields| !fields.is_empty()) => block.clone(),
            _ => return Ok(None),
        },
        other => return Err(wire::unsupported_part(role, other)),
    }))
}

/// The model's reasoning, if it is signed; reasoning of other models is omitted.
fn thinking(text: &str, extras: &Extras) -> Option<Value> {
    if let Some(data) = extras.get("redacted_thinking") {
        return Some(json!({"type": "redacted_thinking", "data": data}));
    }
    let signature = extras.get("signature")?;
    Some(json!({"type": "thinking", "thinking": text, "signature": signature}))
}

fn tool(message: &Message, open: &mut AnthropicWriteState, out: &mut Vec<u8>) -> Result<(), ModelError> {
    let Some(result) = message.tool_result() else {
        return Ok(());
    };
    let content = match result.content() {
        ToolContent::Parts(parts) => {
            let blocks = parts.iter().map(|part| part_block(Role::Tool, part)).filter_map(Result::transpose);
            Value::Array(blocks.collect::<Result<_, _>>()?)
        }
        _ => Value::String(result.text().into_owned()),
    };
    let mut wired =
        json!({"type": "tool_result", "tool_use_id": accepted_id(result.call_id()), "content": content});
    if result.is_error() {
        wired["is_error"] = true.into();
    }
    let extras = message.parts().first().map(|part| part.extras.clone()).unwrap_or_default();
    block(open, "user", wired, &extras, out);
    Ok(())
}

fn accepted_id(id: &str) -> Cow<'_, str> {
    RequestRules::ANTHROPIC.call_ids.accepted(id)
}

fn image(media: &Media) -> Result<Value, ModelError> {
    wire::reject_citations(media)?;
    if media.detail.is_some() {
        return Err(wire::unsupported_detail(media, "none, since this API decides it by the size"));
    }
    Ok(json!({"type": "image", "source": source(media, "image/png")}))
}

/// The location of a document, or its content.
fn source(media: &Media, media_type: &str) -> Value {
    match &media.source {
        MediaSource::Url(url) => json!({"type": "url", "url": url}),
        MediaSource::FileId(id) => json!({"type": "file", "file_id": id}),
        _ => {
            let media_type = media.media_type.as_deref().unwrap_or(media_type);
            json!({"type": "base64", "media_type": media_type, "data": wire::base64(media)})
        }
    }
}

/// A PDF, a text, or a file at a URL or at the provider.
fn document(media: &Media, extras: &Extras) -> Result<Value, ModelError> {
    wire::reject_file_detail(media)?;
    let is_here = wire::base64(media).is_some();
    let source = match wire::text(media) {
        Some(text) => json!({"type": "text", "media_type": "text/plain", "data": text}),
        None if is_here && media.media_type.as_deref() != Some("application/pdf") => {
            let kind = media.media_type.as_deref().unwrap_or("unknown");
            let reason = "expected a PDF, a text, a URL or an id";
            return Err(wire::unsupported(format!("unsupported file of type {kind}: {reason}")));
        }
        None => source(media, "application/pdf"),
    };
    let mut block = json!({"type": "document", "source": source});
    if let Some(name) = &media.name {
        block["title"] = name.as_str().into();
    }
    if media.has_citations {
        block["citations"] = json!({"enabled": true});
    }
    // NOTE: Context for the model, which it does not cite.
    if let Some(context) = extras.get("context") {
        block["context"] = context.clone();
    }
    Ok(block)
}

/// Keeps a block of an unknown kind as a part.
pub(super) fn unknown(block: Value) -> Option<Part> {
    let fields: Map<String, Value> = [(BLOCK.to_owned(), block)].into_iter().collect();
    UnknownPart::new(fields).map(|part| Content::Unknown(part).into())
}
