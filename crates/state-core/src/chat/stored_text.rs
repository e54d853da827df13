//! The text of a stored message, read without the rest of it: for indexes, which read every message.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Role;

/// The role and the [searched text](crate::searched_text) of a stored message.
///
/// It is read several times as fast as the message, from JSON text only, and borrows from it where it can. It accepts each
/// stored message, and some texts that are none.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Role, StoredText};
///
/// let stored = r#"{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"search","value":[3, 4]}}]}"#;
/// let read: StoredText<'_> = serde_json::from_str(stored)?;
/// assert_eq!((read.role, &*read.text), (Role::Tool, "[3,4]"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredText<'a> {
    /// The author.
    pub role: Role,
    /// The text, or that of the result.
    pub text: Cow<'a, str>,
}

impl<'de: 'a, 'a> Deserialize<'de> for StoredText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Stored<'a> {
            role: Role,
            #[serde(borrow)]
            parts: PartTexts<'a>,
        }

        let Stored { role, parts } = Stored::deserialize(deserializer)?;
        Ok(StoredText { role, text: parts.result.unwrap_or(parts.text) })
    }
}

/// The texts of the parts of a message.
#[derive(Default)]
struct PartTexts<'a> {
    text: Cow<'a, str>,
    /// The text of the first result.
    result: Option<Cow<'a, str>>,
}

impl<'a> PartTexts<'a> {
    fn add(&mut self, part: PartText<'a>) {
        match part {
            PartText::Text(text) if self.text.is_empty() => self.text = text,
            PartText::Text(text) => self.text.to_mut().push_str(&text),
            PartText::Result(text) => _ = self.result.get_or_insert(text),
            PartText::None => {}
        }
    }
}

/// The text of a part.
enum PartText<'a> {
    Text(Cow<'a, str>),
    Result(Cow<'a, str>),
    None,
}

/// Reads a `T` from a string, a list or an object, borrowed from the JSON.
struct TextVisitor<T>(PhantomData<T>);

impl<'de: 'a, 'a> Deserialize<'de> for PartTexts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData::<PartTexts<'a>>))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<PartTexts<'a>> {
    type Value = PartTexts<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts, or a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<PartTexts<'a>, E> {
        Ok(PartTexts { text: text.into(), result: None })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PartTexts<'a>, E> {
        Ok(PartTexts { text: text.to_owned().into(), result: None })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PartTexts<'a>, A::Error> {
        let mut parts = PartTexts::default();
        while let Some(part) = items.next_element()? {
            parts.add(part);
        }
        Ok(parts)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for PartText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData::<PartText<'a>>))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<PartText<'a>> {
    type Value = PartText<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part: a string or an object")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<PartText<'a>, E> {
        Ok(PartText::Text(text.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PartText<'a>, E> {
        Ok(PartText::Text(text.to_owned().into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<PartText<'a>, A::Error> {
        let mut part = PartText::None;
        while let Some(BorrowedText(name)) = object.next_key()? {
            match &*name {
                "text" => {
                    if let Some(BorrowedText(text)) = object.next_value()? {
                        part = PartText::Text(text);
                    }
                }
                "tool_result" => {
                    if let Some(result) = object.next_value::<Option<ResultText<'_>>>()? {
                        part = PartText::Result(result.text());
                    }
                }
                _ => _ = object.next_value::<IgnoredAny>()?,
            }
        }
        Ok(part)
    }
}

/// A string, borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The content of a result.
#[derive(Deserialize)]
struct ResultText<'a> {
    #[serde(borrow, default)]
    value: ValueText<'a>,
    #[serde(borrow, default)]
    error: Option<BorrowedText<'a>>,
    #[serde(borrow, default)]
    parts: Option<PartTexts<'a>>,
}

impl<'a> ResultText<'a> {
    /// As [`ToolResult::text`](super::ToolResult::text).
    fn text(self) -> Cow<'a, str> {
        match (self.parts, self.error) {
            (Some(parts), _) => parts.text,
            (None, Some(BorrowedText(error))) => error,
            (None, None) => self.value.0,
        }
    }
}

/// A value as the text of a result.
struct ValueText<'a>(Cow<'a, str>);

impl ValueText<'_> {
    // NOTE: As a value it is written as its result writes it, whatever was stored.
    fn of(value: impl Into<Value>) -> Self {
        ValueText(value.into().to_string().into())
    }
}

impl Default for ValueText<'_> {
    fn default() -> Self {
        ValueText::of(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ValueText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData::<ValueText<'a>>))
    }
}

impl<'de: 'a, 'a> Visitor<'de> for TextVisitor<ValueText<'a>> {
    type Value = ValueText<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<ValueText<'a>, E> {
        Ok(ValueText(text.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ValueText<'a>, E> {
        Ok(ValueText(text.to_owned().into()))
    }

    fn visit_unit<E: Error>(self) -> Result<ValueText<'a>, E> {
        Ok(ValueText::default())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<ValueText<'a>, E> {
        Ok(ValueText::of(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<ValueText<'a>, E> {
        Ok(ValueText::of(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<ValueText<'a>, E> {
        Ok(ValueText::of(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<ValueText<'a>, E> {
        Ok(ValueText::of(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<ValueText<'a>, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(items)).map(ValueText::of)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<ValueText<'a>, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(object)).map(ValueText::of)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{Message, Part, ToolCall, ToolContent, ToolResult};
    use crate::searched_text;

    fn check(message: &Message) {
        let stored = serde_json::to_string(message).unwrap();
        let read: StoredText<'_> = serde_json::from_str(&stored).unwrap();
        assert_eq!((read.role, &*read.text), (message.role(), &*searched_text(message)), "{stored}");
    }

    #[test]
    fn texts_are_those_of_the_messages() {
        for text in ["", "plain", "a \"quote\"\n and \u{1F980}", "搜索"] {
            check(&Message::system(text));
            check(&Message::user(text).with_extra("name", json!({"text": "no"})));
            check(
                &Message::assistant(text)
                    .with_part(ToolCall::new("c", "t", json!({"text": "no"})))
                    .with_part(Part::text(text)),
            );
            let results = [
                ToolContent::Value(text.into()),
                ToolContent::Error(text.into()),
                ToolContent::Parts(vec![Part::text(text), Part::text("more")]),
                ToolContent::Value(json!(null)),
                ToolContent::Value(json!({"z": [1.50, 1e3, text], "a": 12_345_678_901_234_567_890_u64})),
            ];
            for result in results {
                check(&Message::tool(ToolResult::new("c", "t", result)));
            }
        }
    }

    #[test]
    fn other_stored_forms_are_read() {
        for (stored, text) in [
            (r#"{"parts":"plain","role":"user"}"#, "plain"),
            (r#"{"role":"user","parts":"with\nescape"}"#, "with\nescape"),
            (
                r#"{"role":"user","parts":["a",{"text":null,"newer":{"text":"no"}},{"text":"b","extras":{}}]}"#,
                "ab",
            ),
            (
                r#"{"role":"tool","parts":["a",{"tool_result":{"call_id":"c","name":"n","value":[1.50, 2]}}]}"#,
                "[1.5,2]",
            ),
        ] {
            let message: Message = serde_json::from_str(stored).unwrap();
            let read: StoredText<'_> = serde_json::from_str(stored).unwrap();
            assert_eq!((&*read.text, &*searched_text(&message)), (text, text));
        }
    }

    #[test]
    fn a_text_without_escapes_is_borrowed() {
        let read: StoredText<'_> =
            serde_json::from_str(r#"{"role":"user","parts":[{"text":"plain"}]}"#).unwrap();
        assert!(matches!(read.text, Cow::Borrowed("plain")));
    }
}
