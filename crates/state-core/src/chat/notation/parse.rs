//! The parser. Lines are first grouped into messages; a body keeps the source position of each of its lines,
//! so that a fault in the arguments of a call has a line and a column.

use std::collections::HashMap;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::is_token_char;
use crate::chat::{
    Arguments, Content, Extras, Message, Part, Role, ToolCall, ToolContent, ToolResult, Transcript,
};

/// A syntax error in the [notation](super).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
#[non_exhaustive]
pub struct NotationError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
    /// The expected syntax, or the fault.
    pub message: String,
}

crate::debug_as_text!(NotationError);

impl FromStr for Transcript {
    type Err = NotationError;

    /// Parses the [notation](super).
    ///
    /// # Errors
    /// A line that is neither a message nor continues one; a fault inside a segment.
    fn from_str(text: &str) -> Result<Self, NotationError> {
        let mut parser = TranscriptParser::default();
        for (number, line) in (1..).zip(text.split('\n')) {
            let line = line.trim_end();
            if !line.is_empty() && !line.starts_with('#') {
                parser.line(number, line)?;
            }
        }
        parser.close()?;
        Ok(parser.transcript)
    }
}

/// The messages parsed so far.
#[derive(Default)]
struct TranscriptParser {
    transcript: Transcript,
    /// The tool named by the last call of each id.
    names: HashMap<String, String>,
    open: Option<(MessageHeader, MessageBody)>,
}

/// The part of a line before the colon.
enum MessageHeader {
    Role(Role),
    Result { call_id: String, name: Option<String>, is_error: bool },
}

impl TranscriptParser {
    fn line(&mut self, number: usize, line: &str) -> Result<(), NotationError> {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if indent == 0 {
            self.close()?;
            let mut cursor = TextCursor { text: line, at: 0 };
            let header = header(&mut cursor).map_err(|fault| fault.at(number, column(line, fault.offset)))?;
            cursor.skip_whitespace();
            let mut body = MessageBody::default();
            body.push(cursor.rest(), number, column(line, cursor.at));
            self.open = Some((header, body));
            return Ok(());
        }
        let column = column(line, indent);
        match &mut self.open {
            Some((_, body)) => body.push(text, number, column),
            None => return Err(SyntaxFault::new(0, EXPECTED_MESSAGE).at(number, column)),
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), NotationError> {
        let Some((header, body)) = self.open.take() else {
            return Ok(());
        };
        let message = match header {
            MessageHeader::Role(role) => message(role, &body.text).map_err(|fault| body.locate(&fault))?,
            MessageHeader::Result { call_id, name, is_error } => {
                let name = name.or_else(|| self.names.get(&call_id).cloned()).unwrap_or_default();
                Message::tool(ToolResult::new(call_id, name, content(body.text, is_error)))
            }
        };
        for call in message.tool_calls() {
            self.names.insert(call.id.clone(), call.name.clone());
        }
        self.transcript.push(message);
        Ok(())
    }
}

/// The lines of a message, joined.
#[derive(Default)]
struct MessageBody {
    text: String,
    /// For each line: its start in `text`, and its start in the source.
    origins: Vec<(usize, usize, usize)>,
}

impl MessageBody {
    fn push(&mut self, text: &str, line: usize, column: usize) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.origins.push((self.text.len(), line, column));
        self.text.push_str(text);
    }

    fn locate(&self, fault: &SyntaxFault) -> NotationError {
        let after = self.origins.partition_point(|(start, ..)| *start <= fault.offset);
        let (start, line, column_of_start) =
            after.checked_sub(1).map_or((0, 1, 1), |index| self.origins[index]);
        let column = column(&self.text[start..], fault.offset - start);
        fault.at(line, column_of_start + column - 1)
    }
}

/// The column of the character at a byte offset.
fn column(line: &str, offset: usize) -> usize {
    line.char_indices().take_while(|(at, _)| *at < offset).count() + 1
}

/// An error at a byte offset.
struct SyntaxFault {
    offset: usize,
    message: String,
}

impl SyntaxFault {
    fn new(offset: usize, message: impl Into<String>) -> Self {
        SyntaxFault { offset, message: message.into() }
    }

    fn at(&self, line: usize, column: usize) -> NotationError {
        NotationError { line, column, message: self.message.clone() }
    }
}

const EXPECTED_MESSAGE: &str = "expected `system:`, `user:`, `assistant:` or `tool ID:`";
const EXPECTED_SEGMENT: &str = "expected a call `> id name(..)`, a string, `~\"..\"`, `@{..}` or `%{..}`";

fn header(cursor: &mut TextCursor<'_>) -> Result<MessageHeader, SyntaxFault> {
    let role = [Role::System, Role::User, Role::Assistant, Role::Tool]
        .into_iter()
        .find(|role| cursor.consume(role.as_str()))
        .ok_or_else(|| SyntaxFault::new(0, EXPECTED_MESSAGE))?;
    if cursor.consume(":") {
        return Ok(MessageHeader::Role(role));
    }
    if role != Role::Tool || !cursor.skip_whitespace() {
        return Err(SyntaxFault::new(0, EXPECTED_MESSAGE));
    }
    let call_id = cursor.token()?;
    let has_name = cursor.skip_whitespace() && !cursor.rest().starts_with(['!', ':']);
    let name = if has_name { Some(cursor.token()?) } else { None };
    let is_error = cursor.consume("!");
    cursor.expect(":")?;
    Ok(MessageHeader::Result { call_id, name, is_error })
}

/// The body of a `tool ID:` line.
fn content(text: String, is_error: bool) -> ToolContent {
    if is_error {
        ToolContent::Error(serde_json::from_str(&text).unwrap_or(text))
    } else {
        ToolContent::Value(serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

/// A message in `role` with this body.
fn message(role: Role, body: &str) -> Result<Message, SyntaxFault> {
    if body.is_empty() {
        return Ok(Message::new(role));
    }
    let is_quoted = body.starts_with('"');
    let is_marked = ["~\"", "@{", "%{"].iter().any(|mark| body.starts_with(mark));
    if is_quoted || is_marked || starts_call(body, 0) {
        match segments(Message::new(role), body, 0) {
            // Text may begin with a quotation mark.
            Err(_) if is_quoted => {}
            message_or_fault => return message_or_fault,
        }
    }
    let first_call = match role {
        Role::Assistant => body.match_indices('>').map(|(at, _)| at).find(|at| starts_call(body, *at)),
        _ => None,
    };
    let text = body[..first_call.unwrap_or(body.len())].trim_end();
    let message = Message::new(role).with_part(text);
    match first_call {
        Some(at) => segments(message, body, at),
        None => Ok(message),
    }
}

/// Whether a call begins at `at`: `> id name(`, at the start or after white space.
fn starts_call(text: &str, at: usize) -> bool {
    // NOTE: Up to the bracket: prose such as `a > b c` stays text.
    let mut cursor = TextCursor { text, at };
    (at == 0 || text[..at].ends_with(char::is_whitespace))
        && cursor.consume(">")
        && cursor.skip_whitespace()
        && cursor.token().is_ok()
        && cursor.skip_whitespace()
        && cursor.token().is_ok()
        && (cursor.consume("(") || cursor.consume("!("))
}

/// Appends the segments from `at` on to the message.
fn segments(mut message: Message, text: &str, at: usize) -> Result<Message, SyntaxFault> {
    let mut cursor = TextCursor { text, at };
    let mut extras = Extras::new();
    loop {
        cursor.skip_whitespace();
        let rest = cursor.rest();
        if rest.is_empty() {
            return Ok(message.with_extras(extras));
        }
        message = if rest.starts_with('"') {
            message.with_part(cursor.string()?)
        } else if rest.starts_with("~\"") {
            cursor.at += 1;
            message.with_part(Part::reasoning(cursor.string()?))
        } else if rest.starts_with("@{") {
            cursor.at += 1;
            message.with_part(cursor.json::<Part>()?)
        } else if rest.starts_with("%{") {
            cursor.at += 1;
            extras.extend(cursor.json::<Map<String, Value>>()?);
            message
        } else if rest.starts_with('>') {
            message.with_part(Content::ToolCall(call(&mut cursor)?))
        } else {
            return Err(SyntaxFault::new(cursor.at, EXPECTED_SEGMENT));
        };
    }
}

fn call(cursor: &mut TextCursor<'_>) -> Result<ToolCall, SyntaxFault> {
    cursor.expect(">")?;
    cursor.skip_whitespace();
    let id = cursor.token()?;
    cursor.skip_whitespace();
    let name = cursor.token()?;
    let is_malformed = cursor.consume("!");
    cursor.expect("(")?;
    cursor.skip_whitespace();
    let arguments = if is_malformed {
        let text = cursor.string()?;
        cursor.skip_whitespace();
        cursor.expect(")")?;
        Arguments::parse(text)
    } else {
        arguments(cursor)?.into()
    };
    Ok(ToolCall { id, name, arguments })
}

/// `key=json, key=json)`.
fn arguments(cursor: &mut TextCursor<'_>) -> Result<Map<String, Value>, SyntaxFault> {
    let mut arguments = Map::new();
    while !cursor.consume(")") {
        if !arguments.is_empty() {
            cursor.expect(",")?;
            cursor.skip_whitespace();
        }
        let start = cursor.at;
        let key = cursor.token()?;
        cursor.skip_whitespace();
        cursor.expect("=")?;
        cursor.skip_whitespace();
        let is_missing = cursor.rest().is_empty() || cursor.rest().starts_with([',', ')']);
        if is_missing {
            return Err(SyntaxFault::new(
                cursor.at,
                format!("missing value of argument `{key}`: expected JSON"),
            ));
        }
        let value = cursor.json()?;
        cursor.skip_whitespace();
        if arguments.contains_key(&key) {
            return Err(SyntaxFault::new(start, format!("duplicate argument `{key}`")));
        }
        arguments.insert(key, value);
    }
    Ok(arguments)
}

/// A position in a text.
struct TextCursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> TextCursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn consume(&mut self, mark: &str) -> bool {
        let is_there = self.rest().starts_with(mark);
        if is_there {
            self.at += mark.len();
        }
        is_there
    }

    fn expect(&mut self, mark: &str) -> Result<(), SyntaxFault> {
        if self.consume(mark) { Ok(()) } else { Err(SyntaxFault::new(self.at, format!("expected `{mark}`"))) }
    }

    /// Returns whether any white space was skipped.
    fn skip_whitespace(&mut self) -> bool {
        let before = self.at;
        self.at = self.text.len() - self.rest().trim_start().len();
        self.at > before
    }

    /// An id or a name, quoted or unquoted.
    fn token(&mut self) -> Result<String, SyntaxFault> {
        let rest = self.rest();
        if rest.starts_with('"') {
            return self.string();
        }
        let length = rest.find(|c| !is_token_char(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(SyntaxFault::new(self.at, "expected a name or a string"));
        }
        self.at += length;
        Ok(rest[..length].to_owned())
    }

    fn string(&mut self) -> Result<String, SyntaxFault> {
        self.json()
    }

    /// One JSON value.
    fn json<T: DeserializeOwned>(&mut self) -> Result<T, SyntaxFault> {
        let json = &self.rest()[..json_length(self.rest())];
        let value = serde_json::from_str(json).map_err(|error| {
            // NOTE: `serde_json` counts positions within the value; the fault has the position in the source.
            let place = format!(" at line {} column {}", error.line(), error.column());
            let message = error.to_string();
            let message = message.strip_suffix(&place).unwrap_or(&message);
            SyntaxFault::new(self.at + offset(json, &error), message)
        })?;
        self.at += json.len();
        Ok(value)
    }
}

/// The offset of the error in `json`.
fn offset(json: &str, error: &serde_json::Error) -> usize {
    let line_start: usize =
        json.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    (line_start + error.column().saturating_sub(1)).min(json.len())
}

/// The length of the JSON value at the start of `text`, by brackets and quotes.
fn json_length(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if in_string {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            if in_string || depth > 0 {
                continue;
            }
            return at + 1;
        }
        match c {
            '"' => in_string = true,
            '[' | '{' => depth += 1,
            ']' | '}' if depth > 1 => depth -= 1,
            ']' | '}' => return at + usize::from(depth == 1),
            ',' | ')' if depth == 0 => return at,
            c if depth == 0 && c.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}
