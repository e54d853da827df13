//! Replaces the sensitive parts of content: of texts, JSON values, messages, results and writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    Arguments, Content, Extras, Media, MediaSource, Message, Part, ToolCall, ToolContent, ToolResult,
    Transcript,
};
use stepfold_state_core::state::{Delta, Write};

use super::{Redact, replacement};
use crate::state_input::TEMPORARY;

/// Replaces the sensitive parts of content, and counts them.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::{ContentRedactor, Redaction};
///
/// let rules = Redaction::all();
/// let mut redactor = ContentRedactor::new(&rules);
/// let mut value = json!({"to": ["ada@example.org"], "card": 4111111111111111u64});
/// assert!(redactor.value(&mut value));
/// assert_eq!(value, json!({"to": ["[email]"], "card": 0}));
/// assert_eq!(redactor.into_counts().values().sum::<u64>(), 2);
/// ```
pub struct ContentRedactor<'a> {
    redact: &'a dyn Redact,
    counts: BTreeMap<String, u64>,
}

impl<'a> ContentRedactor<'a> {
    /// With these rules.
    pub fn new(redact: &'a dyn Redact) -> Self {
        ContentRedactor { redact, counts: BTreeMap::new() }
    }

    /// The number of replaced parts by rule.
    pub fn into_counts(self) -> BTreeMap<String, u64> {
        self.counts
    }

    /// Replaces parts of a text, and returns whether there were any. A text that is a JSON object or list stays one: its
    /// strings are looked at without their escapes.
    pub fn string(&mut self, text: &mut String) -> bool {
        let is_json = text.trim_start().starts_with(['{', '[']);
        if is_json
            && let Ok(mut value) = serde_json::from_str::<Value>(text)
            && self.value(&mut value)
        {
            *text = value.to_string();
            return true;
        }
        // Also where nothing was found: of fields with one name the value has the last.
        self.plain(text)
    }

    fn plain(&mut self, text: &mut String) -> bool {
        let parts = self.redact.find(text);
        let (mut shown, mut after) = (String::new(), 0);
        for part in &parts {
            shown.push_str(&text[after..part.range.start]);
            shown.push_str(&replacement(&part.rule));
            after = part.range.end;
            *self.counts.entry(part.rule.clone()).or_default() += 1;
        }
        if !parts.is_empty() {
            shown.push_str(&text[after..]);
            *text = shown;
        }
        !parts.is_empty()
    }

    /// Replaces parts of the strings and of the field names in a value. A whole number in digits that a rule finds becomes 0.
    pub fn value(&mut self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(items) => items.iter_mut().fold(false, |changed, item| self.value(item) | changed),
            Value::Object(fields) => self.fields(fields),
            Value::Number(number) => {
                let whole = |number: f64| {
                    (number.fract() == 0.0 && number.abs() < 1e19).then(|| format!("{number:.0}"))
                };
                let text =
                    if number.is_f64() { number.as_f64().and_then(whole) } else { Some(number.to_string()) };
                let is_changed = text.is_some_and(|mut text| text.len() > 7 && self.plain(&mut text));
                if is_changed {
                    *value = 0.into();
                }
                is_changed
            }
            Value::Bool(_) | Value::Null => false,
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>) -> bool {
        let mut is_changed = fields.values_mut().fold(false, |changed, field| self.value(field) | changed);
        if fields.keys().any(|name| !self.redact.find(name).is_empty()) {
            is_changed = true;
            // The last number that each name was given.
            let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
            for (mut name, field) in std::mem::take(fields) {
                self.plain(&mut name);
                let mut free = name.clone();
                let number = numbers.entry(name.clone()).or_insert(1);
                while fields.contains_key(&free) {
                    *number += 1;
                    free = format!("{name} {number}");
                }
                fields.insert(free, field);
            }
        }
        is_changed
    }

    /// Replaces parts of an optional text.
    pub(crate) fn optional(&mut self, text: &mut Option<String>) -> bool {
        text.as_mut().is_some_and(|text| self.string(text))
    }

    /// Replaces parts of the arguments of a call.
    pub fn arguments(&mut self, arguments: &mut Arguments) -> bool {
        let replaced = if let Some(object) = arguments.as_object() {
            let mut object = object.clone();
            self.fields(&mut object).then(|| Arguments::from(object))
        } else {
            let mut text = arguments.to_text().into_owned();
            self.string(&mut text).then(|| Arguments::parse(text))
        };
        replaced.map(|replaced| *arguments = replaced).is_some()
    }

    /// Replaces parts of a message: its texts, arguments, results, and the data of its provider. Reasoning loses its
    /// signature with a replaced part, since it is not the signed one any more.
    pub fn message(&mut self, message: &mut Arc<Message>) -> bool {
        let mut parts = message.parts().to_vec();
        let mut is_changed = parts.iter_mut().fold(false, |changed, part| self.part(part) | changed);
        let mut extras = message.extras().clone();
        is_changed |= self.extras(&mut extras);
        if is_changed {
            *message = Arc::new(Message::from_parts(message.role(), parts).with_extras(extras));
        }
        is_changed
    }

    /// Replaces parts of each message.
    pub fn messages(&mut self, messages: &mut [Arc<Message>]) -> bool {
        messages.iter_mut().fold(false, |changed, message| self.message(message) | changed)
    }

    pub(crate) fn transcript(&mut self, transcript: &mut Transcript) -> bool {
        let mut messages: Vec<Arc<Message>> = transcript.iter().cloned().collect();
        let is_changed = self.messages(&mut messages);
        if is_changed {
            *transcript = messages.into_iter().collect();
        }
        is_changed
    }

    fn part(&mut self, part: &mut Part) -> bool {
        let is_changed = match &mut part.content {
            Content::Text(text) => self.string(text),
            Content::Reasoning(text) => {
                let is_changed = self.string(text);
                if is_changed {
                    part.extras = Extras::new();
                }
                is_changed
            }
            Content::Image(media) | Content::File(media) => self.media(media),
            Content::ToolCall(ToolCall { arguments, .. }) => self.arguments(arguments),
            Content::ToolResult(result) => self.result(result),
            // Parts of providers and of later versions.
            _ => return self.unknown(part),
        };
        self.extras(&mut part.extras) | is_changed
    }

    fn media(&mut self, media: &mut Media) -> bool {
        let source = match &mut media.source {
            MediaSource::Url(text) | MediaSource::Text(text) => self.string(text),
            _ => false,
        };
        self.optional(&mut media.name) | source
    }

    fn unknown(&mut self, part: &mut Part) -> bool {
        let Ok(mut value) = serde_json::to_value(&*part) else { return false };
        let is_changed = self.value(&mut value);
        if is_changed {
            let replaced = serde_json::from_value(value);
            *part = replaced.unwrap_or_else(|_| Part::text("[redacted]"));
        }
        is_changed
    }

    fn extras(&mut self, extras: &mut Extras) -> bool {
        if extras.is_empty() {
            return false;
        }
        let mut is_changed = false;
        let replaced = extras.iter().map(|(name, value)| {
            let mut value = value.clone();
            is_changed |= self.value(&mut value);
            (name.to_owned(), value)
        });
        let replaced: Extras = replaced.collect();
        if is_changed {
            *extras = replaced;
        }
        is_changed
    }

    /// Replaces parts of the result of a call.
    pub fn result(&mut self, result: &mut ToolResult) -> bool {
        let mut content = result.content().clone();
        let is_changed = self.content(&mut content);
        if is_changed {
            *result = ToolResult::new(result.call_id(), result.name(), content);
        }
        is_changed
    }

    pub(crate) fn content(&mut self, content: &mut ToolContent) -> bool {
        match content {
            ToolContent::Value(value) => self.value(value),
            ToolContent::Error(text) => self.string(text),
            ToolContent::Parts(parts) => {
                parts.iter_mut().fold(false, |changed, part| self.part(part) | changed)
            }
            // Of a later version.
            _ => false,
        }
    }

    /// Replaces parts of the written values, except those of `temp:` keys, which are never stored.
    pub fn delta(&mut self, delta: &mut Delta) -> bool {
        let mut is_changed = false;
        let writes: Delta = delta.iter().map(|write| self.write(write, &mut is_changed)).collect();
        if is_changed {
            *delta = writes;
        }
        is_changed
    }

    fn write(&mut self, write: &Write, is_changed: &mut bool) -> Write {
        let value = write.value().filter(|_| !write.key().starts_with(TEMPORARY));
        let Some(mut value) = value.cloned() else { return write.clone() };
        match self.value(&mut value) {
            true => {
                *is_changed = true;
                write.clone().with_value(value)
            }
            false => write.clone(),
        }
    }
}
