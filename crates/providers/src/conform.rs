//! Makes messages conform to a server: pure functions from a stored message to one that follows the server's
//! [rules](crate::rules). The log keeps the original; each change is reported.
//!
//! A reply of *another* server loses all extras. Signatures and encrypted reasoning are valid
//! only where they were made, so each reply that has extras carries the [server](SERVER) that sent them.

use std::borrow::Cow;

use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    Content, Extras, Message, Part, Role, ToolCall, ToolContent, ToolResult, UnknownPart,
};

use crate::rules::names::wire_name;
use crate::rules::{RequestRules, SILENT_FAILURE, STAND_IN, is_blank};

/// The extra of a message that names the server whose extras the message and its parts hold: a preset's name, or the
/// origin of a base URL. Extras without it are of an unknown server.
// NOTE: By server, not by dialect or model: OpenAI refuses encrypted reasoning of Azure, though both speak Responses.
// Extras without a server are left out: that loses the reasoning of a turn, where the other choice may lose the
// session. See docs/decisions/providers.md.
pub(crate) const SERVER: &str = "server";

/// The extra of a reply with the ids of calls of tools that the server runs, whose results did not come before it ended.
pub(crate) const UNANSWERED: &str = "unanswered";

/// The extra of a part that the caller sets, for servers that know marks for their caches.
const CACHE_CONTROL: &str = "cache_control";

/// The properties of a server that messages to it depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecipientProfile<'a> {
    /// Its name in [`SERVER`].
    pub(crate) server: &'a str,
    pub(crate) rules: &'a RequestRules,
    /// The extra with the signature of a part: a signed part is sent back even if it is blank.
    pub(crate) signature: Option<&'static str>,
    /// The field of the unknown parts that belong to its dialect, if there are some.
    pub(crate) unknown: Option<&'static str>,
}

impl RecipientProfile<'_> {
    /// Whether the extras of a message are of this server.
    pub(crate) fn has_extras_of(&self, message: &Message) -> bool {
        message.extras().get(SERVER).and_then(|server| server.as_str()) == Some(self.server)
    }
}

/// The changes of messages for a server, in words.
#[derive(Clone, Debug, Default)]
pub struct MessageChanges(Vec<String>);

impl MessageChanges {
    pub(crate) fn add(&mut self, change: impl Into<String>) {
        self.0.push(change.into());
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn truncate(&mut self, count: usize) {
        self.0.truncate(count);
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }
}

/// Makes a message conform to the rules of its recipient; `None` if nothing of it is left. `keeps_extras` is whether
/// a reply goes back with the extras that the server added to it.
pub(crate) fn conform<'m>(
    message: &'m Message,
    to: &RecipientProfile<'_>,
    keeps_extras: bool,
    changes: &mut MessageChanges,
) -> Option<Cow<'m, Message>> {
    match message.role() {
        Role::Assistant => reply_message(message, to, keeps_extras && to.has_extras_of(message), changes),
        Role::Tool => Some(result_message(message, to, changes)),
        _ => input_message(message, to, changes),
    }
}

/// Whether an unknown part belongs to the dialect of this server: it is sent unchanged.
fn is_of_dialect(part: &Part, to: &RecipientProfile<'_>) -> bool {
    match &part.content {
        Content::Unknown(unknown) => to.unknown.is_some_and(|name| unknown.fields().contains_key(name)),
        _ => false,
    }
}

/// A message of the system or the user.
fn input_message<'m>(
    message: &'m Message,
    to: &RecipientProfile<'_>,
    changes: &mut MessageChanges,
) -> Option<Cow<'m, Message>> {
    let is_left = |part: &Part| !matches!(&part.content, Content::Text(text) if is_blank(text));
    let is_shown = |part: &&Part| {
        is_left(part) && (!matches!(part.content, Content::Unknown(_)) || is_of_dialect(part, to))
    };
    let count = message.parts().iter().filter(is_shown).count();
    // NOTE: A blank system message has no meaning, while a blank turn of the user must remain a turn.
    if count == 0 && message.role() == Role::System {
        changes.add("a blank system message is left out");
        return None;
    }
    if count == 0 {
        changes.add(format!("a message without text says `{STAND_IN}`"));
        return Some(Cow::Owned(with_parts(message, vec![Part::text(STAND_IN)])));
    }
    if message.parts().iter().all(is_left) {
        return Some(Cow::Borrowed(message));
    }
    changes.add("blank text is left out");
    let parts = message.parts().iter().filter(|part| is_left(part)).cloned().collect();
    Some(Cow::Owned(with_parts(message, parts)))
}

/// A message of the assistant.
fn reply_message<'m>(
    message: &'m Message,
    to: &RecipientProfile<'_>,
    is_own: bool,
    changes: &mut MessageChanges,
) -> Option<Cow<'m, Message>> {
    let mut reply_changes = MessageChanges::default();
    let mut parts: Vec<Cow<'m, Part>> = Vec::with_capacity(message.parts().len());
    let unanswered = message.extras().get(UNANSWERED).filter(|_| is_own);
    for (at, part) in message.parts().iter().enumerate() {
        if is_unanswered(part, to, unanswered) {
            reply_changes.add("a call of the server's own tool without its result is left out");
            continue;
        }
        let follows_reasoning = at > 0 && matches!(message.parts()[at - 1].content, Content::Reasoning(_));
        let Some(part) = reply_part(part, to, is_own, &mut reply_changes) else {
            if is_own && to.rules.pairs_reasoning && follows_reasoning {
                // NOTE: The reasoning belongs to this part: the reply is sent as one of another server, without reasoning.
                return reply_message(message, to, false, changes);
            }
            continue;
        };
        if is_own
            && to.rules.pairs_reasoning
            && is_reasoning(&part)
            && parts.last().is_some_and(|part| is_reasoning(part))
        {
            reply_changes.add("reasoning that no text or call follows is left out");
            parts.pop();
        }
        parts.push(part);
    }
    // NOTE: Servers refuse reasoning without the text or the call that it was for.
    while !to.rules.ends_with_reasoning && parts.last().is_some_and(|part| is_reasoning(part)) {
        parts.pop();
        reply_changes.add("reasoning that no text or call follows is left out");
    }
    if parts.iter().all(|part| is_reasoning(part)) {
        changes.add("a reply without text or calls is left out");
        return None;
    }
    let extras = if is_own { message.extras().clone() } else { own_extras(message.extras(), &["name"]) };
    if !is_own && message.extras().get("reasoning_details").is_some() {
        reply_changes.add("reasoning details of another server are left out");
    }
    let reply_changes = reply_changes.take();
    if reply_changes.is_empty() && extras == *message.extras() {
        return Some(Cow::Borrowed(message));
    }
    changes.0.extend(reply_changes);
    let parts = parts.into_iter().map(Cow::into_owned).collect();
    Some(Cow::Owned(Message::from_parts(Role::Assistant, parts).with_extras(extras)))
}

/// Whether a part is a call of the server's own tool whose result did not come before the reply ended.
fn is_unanswered(part: &Part, to: &RecipientProfile<'_>, unanswered: Option<&Value>) -> bool {
    let (Some(Value::Array(unanswered)), Content::Unknown(unknown)) = (unanswered, &part.content) else {
        return false;
    };
    let fields = to.unknown.and_then(|name| unknown.fields().get(name));
    fields.is_some_and(|fields| fields["tool_use_id"].is_null() && unanswered.contains(&fields["id"]))
}

fn is_reasoning(part: &Part) -> bool {
    matches!(part.content, Content::Reasoning(_))
}

/// A part of a reply; `None` if it is left out.
fn reply_part<'p>(
    part: &'p Part,
    to: &RecipientProfile<'_>,
    is_own: bool,
    changes: &mut MessageChanges,
) -> Option<Cow<'p, Part>> {
    let is_signed = is_own && to.signature.is_some_and(|name| part.extras.get(name).is_some());
    match &part.content {
        Content::Text(text) if is_blank(text) && !is_signed => {
            changes.add("blank text is left out");
            return None;
        }
        Content::Reasoning(text) if is_blank(text) && !is_own => {
            changes.add("reasoning of another server is left out");
            return None;
        }
        Content::Unknown(unknown) => {
            let fields = to.unknown.filter(|_| is_own).and_then(|name| unknown.fields().get(name));
            // NOTE: An empty block could not be marked for the cache.
            if fields.and_then(Value::as_object).is_none_or(Map::is_empty) {
                changes.add(format!("{} of another server is left out", kind_of(unknown)));
                return None;
            }
        }
        _ => {}
    }
    let part = if is_own { Cow::Borrowed(part) } else { without_extras(part, changes) };
    let Content::ToolCall(call) = &part.content else {
        return Some(part);
    };
    match wire_name(&to.rules.tool_names, &call.name) {
        Cow::Borrowed(_) => Some(part),
        Cow::Owned(name) => {
            changes.add(format!("the tool name `{}` is `{name}`", call.name));
            let call = ToolCall::new(call.id.clone(), name, call.arguments.clone());
            Some(Cow::Owned(Part::from(call).with_extras(part.extras.clone())))
        }
    }
}

/// A part of another server's reply.
fn without_extras<'p>(part: &'p Part, changes: &mut MessageChanges) -> Cow<'p, Part> {
    let extras = own_extras(&part.extras, &[CACHE_CONTROL]);
    if extras == part.extras {
        return Cow::Borrowed(part);
    }
    changes.add(format!("extras of another server are left out of a part of kind {}", part.content.kind()));
    Cow::Owned(Part::from(part.content.clone()).with_extras(extras))
}

/// Selects the extras that callers set.
fn own_extras(extras: &Extras, names: &[&str]) -> Extras {
    let kept = extras.iter().filter(|(name, _)| names.contains(name));
    kept.map(|(name, value)| (name, value.clone())).collect()
}

/// Returns the name of an unknown part, for a person.
fn kind_of(unknown: &UnknownPart) -> String {
    let kind = unknown.fields().values().find_map(|fields| fields.get("type")?.as_str());
    kind.map_or_else(|| "a part of an unknown kind".to_owned(), |kind| format!("`{kind}`"))
}

/// A message of a tool.
fn result_message<'m>(
    message: &'m Message,
    to: &RecipientProfile<'_>,
    changes: &mut MessageChanges,
) -> Cow<'m, Message> {
    let Some(result) = message.tool_result() else {
        return Cow::Borrowed(message);
    };
    let name = wire_name(&to.rules.tool_names, result.name());
    let content = result_content(result, to, changes);
    if matches!((&name, &content), (Cow::Borrowed(_), Cow::Borrowed(_))) {
        return Cow::Borrowed(message);
    }
    let result = ToolResult::new(result.call_id(), name, content.into_owned());
    let extras = message.parts().first().map(|part| part.extras.clone()).unwrap_or_default();
    Cow::Owned(Message::from_parts(Role::Tool, vec![Part::from(result).with_extras(extras)]))
}

fn result_content<'r>(
    result: &'r ToolResult,
    to: &RecipientProfile<'_>,
    changes: &mut MessageChanges,
) -> Cow<'r, ToolContent> {
    let content = result.content();
    match content {
        ToolContent::Error(text) if is_blank(text) => {
            changes.add(format!("a failure without words says `{SILENT_FAILURE}`"));
            Cow::Owned(ToolContent::Error(SILENT_FAILURE.to_owned()))
        }
        ToolContent::Parts(parts) => {
            let is_left = |part: &&Part| !matches!(&part.content, Content::Text(text) if is_blank(text));
            let is_shown =
                |part: &Part| !matches!(part.content, Content::Unknown(_)) || is_of_dialect(part, to);
            let left: Vec<Part> = parts.iter().filter(is_left).cloned().collect();
            if !left.iter().any(is_shown) && !to.rules.empty_results {
                changes.add(format!("an empty result says `{STAND_IN}`"));
                return Cow::Owned(ToolContent::Parts(vec![Part::text(STAND_IN)]));
            }
            if left.len() == parts.len() {
                return Cow::Borrowed(content);
            }
            changes.add("blank text is left out of a result");
            Cow::Owned(ToolContent::Parts(left))
        }
        ToolContent::Value(_) if !to.rules.empty_results && is_blank(&result.text()) => {
            changes.add(format!("an empty result says `{STAND_IN}`"));
            Cow::Owned(ToolContent::Value(STAND_IN.into()))
        }
        _ => Cow::Borrowed(content),
    }
}

/// The message with other parts.
pub(crate) fn with_parts(message: &Message, parts: Vec<Part>) -> Message {
    Message::from_parts(message.role(), parts).with_extras(message.extras().clone())
}
