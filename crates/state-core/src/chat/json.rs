//! The stored form of messages: their `Serialize`, `Deserialize` and `JsonSchema`.
//!
//! Each form is a struct, borrowed for writing and owned after reading. Tagged and untagged enums are
//! avoided: serde buffers their whole content first. A part is an object with one field, named after its
//! kind, and optional `extras`; on reading, a bare string is a text part. Unknown fields are ignored and
//! unknown kinds of parts are kept, so old and new records are readable.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    Arguments, Content, Extras, ImageDetail, Media, MediaSource, Message, Part, Role, ToolCall, ToolContent,
    ToolResult, UnknownPart,
};
use crate::MAX_DEPTH;
use crate::decode::object;

#[derive(Serialize, Deserialize)]
struct StoredMessage<'a> {
    role: Role,
    parts: StoredParts<'a>,
    #[serde(default, skip_serializing_if = "Extras::is_empty")]
    extras: Cow<'a, Extras>,
}

/// The parts of a message: a list, or a string for one text part.
#[derive(Serialize)]
#[serde(transparent)]
struct StoredParts<'a>(Cow<'a, [Part]>);

#[derive(Default, Serialize)]
struct StoredPart<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<Cow<'a, Media>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Cow<'a, Media>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call: Option<Cow<'a, ToolCall>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_result: Option<Cow<'a, ToolResult>>,
    #[serde(flatten)]
    unknown: Cow<'a, Map<String, Value>>,
    #[serde(skip_serializing_if = "Extras::is_empty")]
    extras: Cow<'a, Extras>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredMedia<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<ImageDetail>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    citations: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredCall<'a> {
    id: Cow<'a, str>,
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Cow<'a, Map<String, Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments_text: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
struct StoredResult<'a> {
    call_id: Cow<'a, str>,
    name: Cow<'a, str>,
    /// Null is a value, too.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<StoredParts<'a>>,
}

fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

// Writing first, then reading, then the schema.

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (parts, extras) = (StoredParts(self.parts().into()), Cow::Borrowed(self.extras()));
        StoredMessage { role: self.role(), parts, extras }.serialize(serializer)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut stored = StoredPart { extras: Cow::Borrowed(&self.extras), ..StoredPart::default() };
        match &self.content {
            Content::Text(text) => stored.text = Some(Cow::Borrowed(text)),
            Content::Reasoning(text) => stored.reasoning = Some(Cow::Borrowed(text)),
            Content::Image(media) => stored.image = Some(Cow::Borrowed(media)),
            Content::File(media) => stored.file = Some(Cow::Borrowed(media)),
            Content::ToolCall(call) => stored.tool_call = Some(Cow::Borrowed(call)),
            Content::ToolResult(result) => stored.tool_result = Some(Cow::Borrowed(result)),
            Content::Unknown(part) => stored.unknown = Cow::Borrowed(part.fields()),
        }
        stored.serialize(serializer)
    }
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut stored = StoredMedia {
            media_type: self.media_type.as_deref().map(Cow::Borrowed),
            name: self.name.as_deref().map(Cow::Borrowed),
            detail: self.detail,
            citations: self.has_citations,
            ..StoredMedia::default()
        };
        match &self.source {
            MediaSource::Url(url) => stored.url = Some(url.into()),
            MediaSource::Base64(data) => stored.base64 = Some(data.into()),
            MediaSource::Text(text) => stored.text = Some(text.into()),
            MediaSource::FileId(id) => stored.file_id = Some(id.into()),
        }
        stored.serialize(serializer)
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        StoredCall {
            id: self.id.as_str().into(),
            name: self.name.as_str().into(),
            arguments: self.arguments.as_object().map(Cow::Borrowed),
            arguments_text: self.arguments.malformed().map(|(text, _)| text.into()),
        }
        .serialize(serializer)
    }
}

impl Serialize for ToolResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (call_id, name) = (self.call_id().into(), self.name().into());
        let mut stored = StoredResult { call_id, name, value: None, error: None, parts: None };
        match self.content() {
            ToolContent::Value(value) => stored.value = Some(Cow::Borrowed(value)),
            ToolContent::Error(text) => stored.error = Some(Cow::Borrowed(text)),
            ToolContent::Parts(parts) => stored.parts = Some(StoredParts(parts.into())),
        }
        stored.serialize(serializer)
    }
}

impl Serialize for Extras {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Returns the only one of several fields.
fn exactly_one<T, E: Error>(given: impl IntoIterator<Item = Option<T>>, names: &str) -> Result<T, E> {
    let mut given = given.into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(E::custom(format_args!("missing field {names}"))),
        (Some(_), Some(_)) => {
            Err(E::custom(format_args!("expected only one of the fields {names}, found several")))
        }
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored: StoredMessage<'_> = object(deserializer, "a message: an object with `role` and `parts`")?;
        let parts = stored.parts.0.into_owned();
        Ok(Message::from_parts(stored.role, parts).with_extras(stored.extras.into_owned()))
    }
}

impl<'de> Deserialize<'de> for Media {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredMedia { url, base64, text, file_id, media_type, name, detail, citations } =
            object(deserializer, "an object with `url`, `base64`, `text` or `file_id`")?;
        let sources = [
            url.map(|url| MediaSource::Url(url.into_owned())),
            base64.map(|data| MediaSource::Base64(data.into_owned())),
            text.map(|text| MediaSource::Text(text.into_owned())),
            file_id.map(|id| MediaSource::FileId(id.into_owned())),
        ];
        Ok(Media {
            source: exactly_one(sources, "`url`, `base64`, `text` or `file_id`")?,
            media_type: media_type.map(Cow::into_owned),
            name: name.map(Cow::into_owned),
            detail,
            has_citations: citations,
        })
    }
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredCall { id, name, arguments, arguments_text } =
            object(deserializer, "a tool call: an object with `id`, `name` and `arguments`")?;
        let arguments = arguments.map(|fields| Arguments::from(fields.into_owned()));
        let text = arguments_text.map(Arguments::parse);
        Ok(ToolCall {
            id: id.into_owned(),
            name: name.into_owned(),
            arguments: exactly_one([arguments, text], "`arguments` or `arguments_text`")?,
        })
    }
}

impl<'de> Deserialize<'de> for ToolResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredResult { call_id, name, value, error, parts } = object(
            deserializer,
            "a tool result: an object with `call_id`, `name`, and `value`, `error` or `parts`",
        )?;
        let value = value.map(|value| ToolContent::Value(value.into_owned()));
        let error = error.map(|text| ToolContent::Error(text.into_owned()));
        let parts = parts.map(|parts| ToolContent::Parts(parts.0.into_owned()));
        Ok(ToolResult::new(call_id, name, exactly_one([value, error, parts], "`value`, `error` or `parts`")?))
    }
}

impl<'de> Deserialize<'de> for Extras {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Option::<Map<String, Value>>::deserialize(deserializer)?;
        Ok(map.map(Extras::from).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for StoredParts<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartListVisitor;

        impl<'de> Visitor<'de> for PartListVisitor {
            type Value = Vec<Part>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of parts, or a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Vec<Part>, E> {
                Ok(vec![Part::text(text)])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<Part>, A::Error> {
                // Most messages have one part; `Vec` would allocate four.
                let mut parts = Vec::with_capacity(items.size_hint().unwrap_or(1).clamp(1, 64));
                while let Some(part) = items.next_element()? {
                    parts.push(part);
                }
                Ok(parts)
            }
        }

        deserializer.deserialize_any(PartListVisitor).map(|parts| StoredParts(parts.into()))
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PartVisitor;

        impl<'de> Visitor<'de> for PartVisitor {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part: a string, or an object with a field such as `text`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
                Ok(Part::text(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Part, A::Error> {
                // NOTE: Read by hand: a flattened form would buffer every field first.
                let (mut part, mut seen) = (IncomingPart::default(), [false; FIELDS.len()]);
                while let Some(FieldName(name)) = object.next_key()? {
                    if let Some(place) = FIELDS.iter().position(|field| *field == name)
                        && std::mem::replace(&mut seen[place], true)
                    {
                        // NOTE: Derived readers reject duplicates, too: one of the two would be lost silently.
                        return Err(A::Error::duplicate_field(FIELDS[place]));
                    }
                    match &*name {
                        "text" => part.add(object.next_value::<Option<_>>()?.map(Content::Text)),
                        "reasoning" => part.add(object.next_value::<Option<_>>()?.map(Content::Reasoning)),
                        "image" => part.add(object.next_value::<Option<_>>()?.map(Content::Image)),
                        "file" => part.add(object.next_value::<Option<_>>()?.map(Content::File)),
                        "tool_call" => part.add(object.next_value::<Option<_>>()?.map(Content::ToolCall)),
                        "tool_result" => part.add(object.next_value::<Option<_>>()?.map(Content::ToolResult)),
                        "extras" => part.extras = object.next_value()?,
                        // NOTE: Kept, so that an older program writes a newer record back unchanged.
                        _ => _ = part.unknown.insert(name.into_owned(), object.next_value()?),
                    }
                }
                part.into_part()
            }
        }

        deserializer.deserialize_any(PartVisitor)
    }
}

/// The known fields of a part; each may occur once.
const FIELDS: [&str; 7] = ["text", "reasoning", "image", "file", "tool_call", "tool_result", "extras"];

/// The name of a field, borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

/// A part in progress of reading. A derived form would have a field for each kind, and would buffer unknown fields
/// before looking at them.
#[derive(Default)]
struct IncomingPart {
    content: Option<Content>,
    /// A second one, which is an error; kept, so that the error names both kinds.
    second: Option<Content>,
    extras: Extras,
    unknown: Map<String, Value>,
}

impl IncomingPart {
    fn add(&mut self, content: Option<Content>) {
        if self.content.is_some() {
            self.second = content.or(self.second.take());
        } else {
            self.content = content;
        }
    }

    fn into_part<E: Error>(self) -> Result<Part, E> {
        let content = match (self.content, self.second) {
            (Some(content), None) => content,
            (Some(first), Some(second)) => {
                let (first, second) = (first.kind(), second.kind());
                return Err(E::custom(format_args!(
                    "expected a part of one kind, found `{first}` and `{second}`"
                )));
            }
            (None, _) if self.unknown.is_empty() => {
                return Err(E::custom(
                    "expected a part with a field such as `text` or `tool_call`, found no field",
                ));
            }
            (None, _) => Content::Unknown(UnknownPart::new(self.unknown).ok_or_else(|| {
                E::custom(format_args!("expected a part that is not nested deeper than {MAX_DEPTH} levels"))
            })?),
        };
        Ok(Part { content, extras: self.extras })
    }
}

impl JsonSchema for Message {
    fn schema_name() -> Cow<'static, str> {
        "Message".into()
    }

    fn schema_id() -> Cow<'static, str> {
        concat!(module_path!(), "::Message").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let parts = |description: &str| {
            serde_json::json!({
                "description": description,
                "type": ["array", "string"],
                "items": { "type": ["object", "string"], "minProperties": 1 },
            })
        };
        json_schema!({
            "title": "Message",
            "description": "One message of a conversation.",
            "type": "object",
            "properties": {
                "role": { "type": "string", "enum": ["system", "user", "assistant", "tool"] },
                "parts": parts("What is said, in order. A string is a text part."),
                "extras": { "type": ["object", "null"] },
            },
            "required": ["role", "parts"],
        })
    }
}
