//! The stored form of messages: what `Serialize`, `Deserialize` and `JsonSchema` say of them.
//!
//! Written by hand, because the derived forms of tagged and untagged enums copy every message into a
//! buffer before they look at it. A part is an object with one field, named after its kind, and perhaps
//! `extras`; on reading, a bare string stands for a text part. Fields that this version does not know are
//! ignored, a kind of part that it does not know is kept: neither an old nor a new record stops a reader.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    Arguments, Content, Extras, Media, MediaSource, Message, Part, Role, ToolCall, ToolContent, ToolResult,
    UnknownPart,
};
use crate::MAX_DEPTH;

// Writing first, then reading, then the schema.

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_extras = !self.extras().is_empty();
        let mut fields = serializer.serialize_struct("Message", 2 + usize::from(has_extras))?;
        fields.serialize_field("role", &self.role())?;
        fields.serialize_field("parts", self.parts())?;
        if has_extras {
            fields.serialize_field("extras", self.extras())?;
        }
        fields.end()
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        match &self.content {
            Content::Text(text) => fields.serialize_entry("text", text)?,
            Content::Reasoning(text) => fields.serialize_entry("reasoning", text)?,
            Content::Image(media) => fields.serialize_entry("image", media)?,
            Content::File(media) => fields.serialize_entry("file", media)?,
            Content::ToolCall(call) => fields.serialize_entry("tool_call", call)?,
            Content::ToolResult(result) => fields.serialize_entry("tool_result", result)?,
            Content::Unknown(part) => {
                for (name, value) in part.fields() {
                    fields.serialize_entry(name, value)?;
                }
            }
        }
        if !self.extras.is_empty() {
            fields.serialize_entry("extras", &self.extras)?;
        }
        fields.end()
    }
}

impl Serialize for Media {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        match &self.source {
            MediaSource::Url(url) => fields.serialize_entry("url", url)?,
            MediaSource::Base64(data) => fields.serialize_entry("base64", data)?,
        }
        if let Some(media_type) = &self.media_type {
            fields.serialize_entry("media_type", media_type)?;
        }
        if let Some(name) = &self.name {
            fields.serialize_entry("name", name)?;
        }
        fields.end()
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ToolCall", 3)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("name", &self.name)?;
        match (self.arguments.as_object(), self.arguments.malformed()) {
            (Some(map), _) => fields.serialize_field("arguments", map)?,
            (None, text) => {
                fields.serialize_field("arguments_text", text.map_or("", |(text, _)| text))?;
            }
        }
        fields.end()
    }
}

impl Serialize for ToolResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("ToolResult", 3)?;
        fields.serialize_field("call_id", self.call_id())?;
        fields.serialize_field("name", self.name())?;
        match self.content() {
            ToolContent::Value(value) => fields.serialize_field("value", value)?,
            ToolContent::Error(text) => fields.serialize_field("error", text)?,
            ToolContent::Parts(parts) => fields.serialize_field("parts", parts)?,
        }
        fields.end()
    }
}

impl Serialize for Extras {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_map() {
            Some(map) => map.serialize(serializer),
            None => serializer.serialize_map(Some(0))?.end(),
        }
    }
}

/// A fieldless enum that reads the name of an object's field without keeping the name.
macro_rules! field_names {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        #[derive(Clone, Copy)]
        enum $name { $($variant,)+ Ignored }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Name;

                impl Visitor<'_> for Name {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("the name of a field")
                    }

                    fn visit_str<E: Error>(self, name: &str) -> Result<$name, E> {
                        Ok(match name {
                            $($text => $name::$variant,)+
                            _ => $name::Ignored,
                        })
                    }
                }

                deserializer.deserialize_identifier(Name)
            }
        }
    };
}

field_names!(MessageField {
    Role = "role",
    Parts = "parts",
    Extras = "extras",
});
field_names!(MediaField {
    Url = "url",
    Base64 = "base64",
    MediaType = "media_type",
    Name = "name",
});
field_names!(CallField {
    Id = "id",
    Name = "name",
    Arguments = "arguments",
    ArgumentsText = "arguments_text",
});
field_names!(ResultField {
    CallId = "call_id",
    Name = "name",
    Value = "value",
    Error = "error",
    Parts = "parts",
});

/// Puts the next value of the object into `slot`, which is still empty or the object is faulty.
fn fill<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    slot: &mut Option<T>,
    name: &'static str,
    object: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    *slot = Some(object.next_value()?);
    Ok(())
}

/// Implements `Deserialize` for what is read by a [`Visitor`] of objects with these fields.
macro_rules! read_object {
    ($type:ty, $expected:literal, $object:ident => $body:block) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> Visitor<'de> for Object {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut $object: A) -> Result<Self::Value, A::Error> {
                        $body
                    }
                }

                deserializer.deserialize_map(Object)
            }
        }
    };
}

read_object!(Message, "a message: an object with `role` and `parts`", object => {
    let (mut role, mut parts, mut extras) = (None::<Role>, None::<Parts>, None::<Extras>);
    while let Some(field) = object.next_key()? {
        match field {
            MessageField::Role => fill(&mut role, "role", &mut object)?,
            MessageField::Parts => fill(&mut parts, "parts", &mut object)?,
            MessageField::Extras => fill(&mut extras, "extras", &mut object)?,
            MessageField::Ignored => drop(object.next_value::<IgnoredAny>()?),
        }
    }
    let role = role.ok_or_else(|| A::Error::missing_field("role"))?;
    let Parts(parts) = parts.ok_or_else(|| A::Error::missing_field("parts"))?;
    Ok(Message::from_parts(role, parts).with_extras(extras.unwrap_or_default()))
});

read_object!(Media, "an object with `url` or `base64`", object => {
    let (mut source, mut media_type, mut name) = (None, None, None);
    while let Some(field) = object.next_key()? {
        match field {
            MediaField::Url | MediaField::Base64 if source.is_some() => {
                return Err(A::Error::custom("expected one of `url` and `base64`, found both"));
            }
            MediaField::Url => source = Some(MediaSource::Url(object.next_value()?)),
            MediaField::Base64 => source = Some(MediaSource::Base64(object.next_value()?)),
            MediaField::MediaType => fill(&mut media_type, "media_type", &mut object)?,
            MediaField::Name => fill(&mut name, "name", &mut object)?,
            MediaField::Ignored => drop(object.next_value::<IgnoredAny>()?),
        }
    }
    Ok(Media {
        source: source.ok_or_else(|| A::Error::custom("missing field `url` or `base64`"))?,
        media_type: media_type.flatten(),
        name: name.flatten(),
    })
});

read_object!(ToolCall, "a tool call: an object with `id`, `name` and `arguments`", object => {
    let (mut id, mut name) = (None::<String>, None::<String>);
    let mut arguments: Option<Arguments> = None;
    while let Some(field) = object.next_key()? {
        match field {
            CallField::Id => fill(&mut id, "id", &mut object)?,
            CallField::Name => fill(&mut name, "name", &mut object)?,
            CallField::Arguments | CallField::ArgumentsText if arguments.is_some() => {
                return Err(A::Error::custom(
                    "expected one of `arguments` and `arguments_text`, found both",
                ));
            }
            CallField::Arguments => {
                arguments = Some(object.next_value::<Map<String, Value>>()?.into());
            }
            CallField::ArgumentsText => {
                arguments = Some(Arguments::parse(object.next_value::<String>()?));
            }
            CallField::Ignored => drop(object.next_value::<IgnoredAny>()?),
        }
    }
    Ok(ToolCall {
        id: id.ok_or_else(|| A::Error::missing_field("id"))?,
        name: name.ok_or_else(|| A::Error::missing_field("name"))?,
        arguments: arguments.ok_or_else(|| A::Error::missing_field("arguments"))?,
    })
});

read_object!(
    ToolResult,
    "a tool result: an object with `call_id`, `name`, and `value`, `error` or `parts`",
    object => {
        let (mut call_id, mut name) = (None::<String>, None::<String>);
        let mut content = None;
        while let Some(field) = object.next_key()? {
            match field {
                ResultField::CallId => fill(&mut call_id, "call_id", &mut object)?,
                ResultField::Name => fill(&mut name, "name", &mut object)?,
                ResultField::Value | ResultField::Error | ResultField::Parts
                    if content.is_some() =>
                {
                    return Err(A::Error::custom(
                        "expected one of `value`, `error` and `parts`, found several",
                    ));
                }
                ResultField::Value => content = Some(ToolContent::Value(object.next_value()?)),
                ResultField::Error => content = Some(ToolContent::Error(object.next_value()?)),
                ResultField::Parts => {
                    content = Some(ToolContent::Parts(object.next_value::<Parts>()?.0));
                }
                ResultField::Ignored => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        Ok(ToolResult::new(
            call_id.ok_or_else(|| A::Error::missing_field("call_id"))?,
            name.ok_or_else(|| A::Error::missing_field("name"))?,
            content
                .ok_or_else(|| A::Error::custom("missing field `value`, `error` or `parts`"))?,
        ))
    }
);

impl<'de> Deserialize<'de> for Extras {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Option::<Map<String, Value>>::deserialize(deserializer)?;
        Ok(map.map(Extras::from).unwrap_or_default())
    }
}

/// The parts of a message: a list, or a string for one text part.
struct Parts(Vec<Part>);

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Parts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of parts, or a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Parts, E> {
                self.visit_string(text.to_owned())
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Parts, E> {
                Ok(Parts(vec![Part::text(text)]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Parts, A::Error> {
                // Nearly every message has one part; `Vec` would begin with room for four.
                let mut parts = Vec::with_capacity(items.size_hint().unwrap_or(1).clamp(1, 64));
                while let Some(part) = items.next_element()? {
                    parts.push(part);
                }
                Ok(Parts(parts))
            }
        }

        deserializer.deserialize_any(List)
    }
}

/// The name of a field of a part: borrowed if it is known, kept if it is not.
struct PartField(Cow<'static, str>);

impl<'de> Deserialize<'de> for PartField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = PartField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<PartField, E> {
                let known = super::part::KNOWN_FIELDS.into_iter().find(|known| *known == name);
                Ok(PartField(known.map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed)))
            }
        }

        deserializer.deserialize_identifier(Name)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Part;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a part: a string, or an object with a field such as `text`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
                Ok(Part::text(text))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Part, E> {
                Ok(Part::text(text))
            }

            fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Part, A::Error> {
                read_part(object)
            }
        }

        deserializer.deserialize_any(Object)
    }
}

fn read_part<'de, A: MapAccess<'de>>(mut object: A) -> Result<Part, A::Error> {
    let mut content: Option<Content> = None;
    let mut extras = None;
    let mut unknown = Map::new();
    while let Some(PartField(name)) = object.next_key()? {
        let read = match &*name {
            "text" => Content::Text(object.next_value()?),
            "reasoning" => Content::Reasoning(object.next_value()?),
            "image" => Content::Image(object.next_value()?),
            "file" => Content::File(object.next_value()?),
            "tool_call" => Content::ToolCall(object.next_value()?),
            "tool_result" => Content::ToolResult(object.next_value()?),
            "extras" => {
                fill(&mut extras, "extras", &mut object)?;
                continue;
            }
            _ => {
                unknown.insert(name.into_owned(), object.next_value()?);
                continue;
            }
        };
        if let Some(first) = content.replace(read) {
            return Err(A::Error::custom(format_args!(
                "expected a part of one kind, found `{}` and `{name}`",
                first.kind()
            )));
        }
    }
    let content = match content {
        Some(content) => content,
        None if unknown.is_empty() => {
            return Err(A::Error::custom(
                "expected a part with a field such as `text` or `tool_call`, found none",
            ));
        }
        None => Content::Unknown(UnknownPart::new(unknown).ok_or_else(|| {
            A::Error::custom(format_args!(
                "expected a part that is not nested deeper than {MAX_DEPTH} levels"
            ))
        })?),
    };
    Ok(Part { content, extras: extras.unwrap_or_default() })
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
