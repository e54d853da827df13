//! The printer. Ambiguous text is quoted or printed in its JSON form: the rules are stricter than the
//! parser's.

use std::collections::HashMap;
use std::fmt;
use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use super::is_token_char;
use crate::chat::{Content, Message, Part, Role, ToolCall, ToolContent, ToolResult, Transcript};

/// The column of bodies, and the indentation of continuation lines.
const INDENT: &str = "           ";

impl fmt::Display for Transcript {
    /// Prints the [notation](super), with a line break after each message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = HashMap::new();
        for message in self {
            writeln!(f, "{}", PrintedMessage { message, names: &names })?;
            names.extend(message.tool_calls().map(|call| (&*call.id, &*call.name)));
        }
        Ok(())
    }
}

impl fmt::Display for Message {
    /// Prints this message in the [notation](super), without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = HashMap::new();
        PrintedMessage { message: self, names: &names }.fmt(f)
    }
}

impl fmt::Display for ToolCall {
    /// Prints the call in the [notation](super), such as `> c1 count(area=3)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&call_segment(self))
    }
}

/// A message, and the tool named by each call so far.
struct PrintedMessage<'a> {
    message: &'a Message,
    names: &'a HashMap<&'a str, &'a str>,
}

impl fmt::Display for PrintedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message;
        let plain_result = (message.role() == Role::Tool && message.extras().is_empty())
            .then(|| plain_result(message.parts()))
            .flatten();
        let (header, body) = match plain_result {
            Some((result, body)) => (self.result_header(result), body),
            None => (format!("{}:", message.role()), body(message)),
        };
        if body.is_empty() {
            f.write_str(&header)
        } else {
            let body = body.replace('\n', &format!("\n{INDENT}"));
            write!(f, "{header:<10} {body}")
        }
    }
}

impl PrintedMessage<'_> {
    fn result_header(&self, result: &ToolResult) -> String {
        let called = self.names.get(result.call_id()).copied().unwrap_or("");
        let name = match result.name() {
            name if name == called => String::new(),
            name => format!(" {}", token(name)),
        };
        let mark = if result.is_error() { "!" } else { "" };
        format!("tool {}{name}{mark}:", token(result.call_id()))
    }
}

/// The only result of a tool message and its body, if a `tool ID:` line can hold it.
fn plain_result(parts: &[Part]) -> Option<(&ToolResult, String)> {
    let [Part { content: Content::ToolResult(result), extras }] = parts else {
        return None;
    };
    let body = match result.content() {
        ToolContent::Value(Value::String(text)) => {
            // NOTE: A text such as `12` or `null` would be parsed as a value, so it is quoted.
            let reads_as_json = || serde_json::from_str::<Value>(text).is_ok();
            if is_plain(text) && !reads_as_json() { text.clone() } else { json(text) }
        }
        ToolContent::Value(value) => json(value),
        // NOTE: The parser reads an error in quotes as a JSON string.
        ToolContent::Error(text) if is_plain(text) && !text.starts_with('"') => text.clone(),
        ToolContent::Error(text) => json(text),
        ToolContent::Parts(_) => return None,
    };
    extras.is_empty().then_some((result, body))
}

/// Plain text if the message is only that, otherwise segments.
fn body(message: &Message) -> String {
    let role = message.role();
    let parts = message.parts();
    let plain = match parts.first() {
        Some(Part { content: Content::Text(text), extras })
            if extras.is_empty() && is_plain_in(role, text) =>
        {
            Some(text)
        }
        _ => None,
    };
    if let (Some(text), [_], true) = (plain, parts, message.extras().is_empty()) {
        return text.clone();
    }
    let mut segments: Vec<String> = parts.iter().map(segment).collect();
    // Text before a call needs no quotes, in assistant messages only.
    if let (Role::Assistant, Some(text), Some(second)) = (role, plain, segments.get(1))
        && second.starts_with('>')
    {
        segments[0].clone_from(text);
    }
    if !message.extras().is_empty() {
        segments.push(format!("%{}", json(message.extras())));
    }
    segments.join("   ")
}

fn segment(part: &Part) -> String {
    match &part.content {
        Content::Text(text) if part.extras.is_empty() => json(text),
        Content::Reasoning(text) if part.extras.is_empty() => format!("~{}", json(text)),
        Content::ToolCall(call) if part.extras.is_empty() => call_segment(call),
        _ => format!("@{}", json(part)),
    }
}

fn call_segment(call: &ToolCall) -> String {
    let (id, name) = (token(&call.id), token(&call.name));
    match call.arguments.as_object() {
        Some(map) => {
            let arguments: Vec<_> =
                map.iter().map(|(key, value)| format!("{}={}", token(key), json(value))).collect();
            format!("> {id} {name}({})", arguments.join(", "))
        }
        None => format!("> {id} {name}!({})", json(&call.arguments.to_text())),
    }
}

/// Whether the text survives being written unquoted.
fn is_plain(text: &str) -> bool {
    // NOTE: The parser trims lines and skips empty ones.
    text.split('\n').all(|line| !line.is_empty() && line.trim() == line)
        && !text.chars().any(|c| c.is_control() && c != '\n')
}

/// Whether the unquoted text parses as text in a message of this role.
fn is_plain_in(role: Role, text: &str) -> bool {
    let starts_segment = ["\"", ">", "~\"", "@{", "%{"].iter().any(|mark| text.starts_with(mark));
    let may_call =
        || text.split('>').skip(1).any(|after| after.is_empty() || after.starts_with(char::is_whitespace));
    is_plain(text) && !starts_segment && !(role == Role::Assistant && may_call())
}

/// An id or a name, quoted if necessary.
fn token(name: &str) -> String {
    if !name.is_empty() && name.chars().all(is_token_char) { name.to_owned() } else { json(name) }
}

/// JSON on one line with a space after commas and colons.
fn json(value: &(impl Serialize + ?Sized)) -> String {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail, nor can serialising: every map here has string keys.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, SpacedFormatter));
    String::from_utf8_lossy(&bytes).into_owned()
}

struct SpacedFormatter;

impl Formatter for SpacedFormatter {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
