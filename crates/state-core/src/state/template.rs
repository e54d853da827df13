//! Templates: text with `{key}` placeholders, filled from a state in one pass.
//!
//! Braces without a key are plain text, so JSON in a prompt needs no escaping. Inserted values are not
//! parsed: a user's text cannot inject a placeholder.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::error::StateError;
use super::key::SCOPE_PREFIXES;
use super::state::State;
use super::value::ValueRef;
use crate::faults::NameList;

/// A text with placeholders, parsed once.
///
/// - `{key}`, `{user:key}`, `{app:key}`, `{temp:key}` are replaced by the value of the key: a string
///   unchanged, any other value as compact JSON.
/// - `{key?}` is optional: absent or null gives empty text. A required null gives `null`; a required key that
///   is absent is an error.
/// - A dotted name is looked up as a whole key first, then as a path into an object or a list:
///   `{profile.name}`, `{documents.0.title}`.
/// - A name consists of letters of any script, digits, `_`, `-` and dots, with nothing else between the
///   braces. Other braces are plain text: `{"a": 1}`, `{ name }`, `{other:x}`.
/// - `{{` and `}}` are literal braces: `{{name}}` gives `{name}`. Two closing braces are one literal brace
///   only after two opening ones, so `{"a": {"b": 1}}` is unchanged.
///
/// (As instruction templates of adk-rust 2.3, where `{{name}}` gave the value in braces.)
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::{Schema, State, Template};
///
/// let schema = Schema::builder().key::<String>("user:name").key::<serde_json::Value>("topic").build()?;
/// let state = State::with_values(&schema, json!({"user:name": "Ada", "topic": {"id": 7, "title": "engines"}}))?;
///
/// let template = Template::parse(r#"You help {user:name} with {topic.title}{mood?}. Reply as {"a": {"b": 1}}."#);
/// assert_eq!(template.render(&state)?, r#"You help Ada with engines. Reply as {"a": {"b": 1}}."#);
///
/// let error = Template::parse("Hello {name}").render(&state).unwrap_err();
/// assert!(error.to_string().starts_with("missing key \"name\" for the template at line 1, column 7"));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    pieces: Vec<TemplatePiece>,
}

/// A piece of the text, by byte offsets.
#[derive(Clone, PartialEq, Eq)]
enum TemplatePiece {
    Literal { start: usize, end: usize },
    Placeholder { start: usize, end: usize, is_optional: bool },
}

impl Template {
    /// Parses a text. Every text is valid: everything except placeholders is plain text.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        let pieces = TemplateParser::new(&text).pieces();
        Template { text, pieces }
    }

    /// The original text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of the placeholders, in order, each with whether it is optional.
    pub fn placeholders(&self) -> impl Iterator<Item = (&str, bool)> {
        self.pieces.iter().filter_map(|piece| match *piece {
            TemplatePiece::Placeholder { start, end, is_optional } => {
                Some((&self.text[start..end], is_optional))
            }
            TemplatePiece::Literal { .. } => None,
        })
    }

    /// Renders the template with values of the state.
    ///
    /// # Errors
    /// [`StateError::MissingTemplateKey`] for the first required key that has no value, with its position in
    /// the template and the known keys.
    pub fn render(&self, state: &State) -> Result<String, StateError> {
        let known = || state.iter().map(|(key, _)| key).collect();
        self.render_with(|key| state.get(key), known)
    }

    /// Renders the template with values from a function of the key. `known` lists the available keys, for the
    /// error.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub fn render_with<'v>(
        &self,
        lookup: impl Fn(&str) -> Option<ValueRef<'v>>,
        known: impl FnOnce() -> NameList,
    ) -> Result<String, StateError> {
        let mut output = String::with_capacity(self.text.len() * 2);
        for piece in &self.pieces {
            match *piece {
                TemplatePiece::Literal { start, end } => output.push_str(&self.text[start..end]),
                TemplatePiece::Placeholder { start, end, is_optional } => {
                    let name = &self.text[start..end];
                    match find(&lookup, name) {
                        Some(value) => write_value(&mut output, value, is_optional),
                        None if is_optional => {}
                        None => return Err(self.missing(start, end, known())),
                    }
                }
            }
        }
        Ok(output)
    }

    fn missing(&self, start: usize, end: usize, known: NameList) -> StateError {
        let before = &self.text[..start - 1];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        StateError::MissingTemplateKey {
            key: self.text[start..end].to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            known,
        }
    }
}

impl From<&str> for Template {
    fn from(text: &str) -> Self {
        Template::parse(text)
    }
}

impl From<String> for Template {
    fn from(text: String) -> Self {
        Template::parse(text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.text).finish()
    }
}

/// The value of a whole key, otherwise a path into the value of the longest key that is a prefix of the
/// dotted name.
fn find<'v>(lookup: impl Fn(&str) -> Option<ValueRef<'v>>, name: &str) -> Option<ValueRef<'v>> {
    if let Some(value) = lookup(name) {
        return Some(value);
    }
    let dots = name.char_indices().rev().filter(|(_, character)| *character == '.');
    dots.into_iter().find_map(|(dot, _)| follow(lookup(&name[..dot])?, &name[dot + 1..]).map(ValueRef::from))
}

fn follow<'v>(value: ValueRef<'v>, path: &str) -> Option<&'v Value> {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let found = value.field(first).or_else(|| value.item(first.parse().ok()?))?;
    match rest {
        Some(rest) => follow(ValueRef::from(found), rest),
        None => Some(found),
    }
}

fn write_value(output: &mut String, value: ValueRef<'_>, is_optional: bool) {
    match value.as_str() {
        Some(text) => output.push_str(text),
        None if is_optional && value.is_null() => {}
        None => {
            let _ = write!(output, "{value}");
        }
    }
}

/// Splits a text into pieces in one pass.
struct TemplateParser<'a> {
    text: &'a str,
    pieces: Vec<TemplatePiece>,
    literal_start: usize,
    /// The open braces: true for a doubled one.
    open: Vec<bool>,
}

impl<'a> TemplateParser<'a> {
    fn new(text: &'a str) -> Self {
        TemplateParser { text, pieces: Vec::new(), literal_start: 0, open: Vec::new() }
    }

    fn pieces(mut self) -> Vec<TemplatePiece> {
        let bytes = self.text.as_bytes();
        let mut position = 0;
        while position < bytes.len() {
            let is_double = bytes.get(position + 1) == Some(&bytes[position]);
            position = match bytes[position] {
                b'{' if is_double => {
                    self.open.push(true);
                    self.drop_byte(position)
                }
                b'{' => self.open_brace(position),
                // NOTE: Only after `{{`: nested JSON such as `{"a": {"b": 1}}` ends with `}}`, too.
                b'}' if is_double && self.open.last() == Some(&true) => {
                    self.open.pop();
                    self.drop_byte(position)
                }
                b'}' => {
                    if self.open.last() == Some(&false) {
                        self.open.pop();
                    }
                    position + 1
                }
                _ => position + 1,
            };
        }
        self.end_literal(bytes.len());
        self.pieces
    }

    /// A single brace: the start of a placeholder, or plain text.
    fn open_brace(&mut self, position: usize) -> usize {
        let Some((length, is_optional)) = placeholder(&self.text[position + 1..]) else {
            self.open.push(false);
            return position + 1;
        };
        self.end_literal(position);
        let (start, end) = (position + 1, position + 1 + length);
        self.pieces.push(TemplatePiece::Placeholder { start, end, is_optional });
        self.literal_start = end + usize::from(is_optional) + 1;
        self.literal_start
    }

    /// Keeps only the second brace of a doubled one as plain text.
    fn drop_byte(&mut self, position: usize) -> usize {
        self.end_literal(position);
        self.literal_start = position + 1;
        position + 2
    }

    fn end_literal(&mut self, end: usize) {
        if self.literal_start < end {
            self.pieces.push(TemplatePiece::Literal { start: self.literal_start, end });
        }
    }
}

/// The length of the name and whether a `?` follows, if `text` starts with a placeholder's content.
fn placeholder(text: &str) -> Option<(usize, bool)> {
    let prefix =
        SCOPE_PREFIXES.iter().find(|prefix| text.starts_with(**prefix)).map_or(0, |prefix| prefix.len());
    let name = &text[prefix..];
    let is_part = |character: char| {
        character.is_alphanumeric() || matches!(character, '_' | '-' | '.') || is_mark(character)
    };
    let length = name.find(|character| !is_part(character)).unwrap_or(name.len());
    // NOTE: Dots and dashes alone are not a name: `{...}` is common in prose.
    if !name[..length].contains(|character: char| character.is_alphanumeric() || character == '_') {
        return None;
    }
    match &name.as_bytes()[length..] {
        [b'}', ..] => Some((prefix + length, false)),
        [b'?', b'}', ..] => Some((prefix + length, true)),
        _ => None,
    }
}

/// Combining marks that Rust does not count as letters: accents of decomposed text, and the vowel signs of
/// Hindi, Thai and related scripts.
fn is_mark(character: char) -> bool {
    matches!(character,
        '\u{300}'..='\u{36F}' | '\u{591}'..='\u{5BD}' | '\u{64B}'..='\u{65F}' | '\u{93C}' | '\u{94D}'
        | '\u{9BC}' | '\u{9CD}' | '\u{A3C}' | '\u{A4D}' | '\u{ABC}' | '\u{ACD}' | '\u{B3C}' | '\u{B4D}'
        | '\u{BCD}' | '\u{C4D}' | '\u{CBC}' | '\u{CCD}' | '\u{D4D}' | '\u{DCA}' | '\u{E3A}'
        | '\u{E47}'..='\u{E4E}' | '\u{EBA}' | '\u{EC8}'..='\u{ECD}' | '\u{F39}' | '\u{F84}' | '\u{1037}'
        | '\u{1039}' | '\u{103A}' | '\u{17D2}' | '\u{1DC0}'..='\u{1DFF}' | '\u{3099}' | '\u{309A}')
}
