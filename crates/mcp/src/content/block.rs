//! One block of content: brought into the form that the protocol gives it, then a part of a message.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Content, Media, Part};

use super::Odd;
use super::media;

/// The characters of an unknown value that are shown for one of its texts.
const MAX_TEXT: usize = 4 * 1024;

/// A block in the form of the protocol: text, an image, a sound or a resource, each with what it needs. Of anything else what
/// can be read, as text.
pub(super) fn settled(block: Value, odd: &mut Odd) -> Value {
    let mut fields = match block {
        Value::Object(fields) => fields,
        Value::String(words) => {
            odd.add("content that is a string");
            return text(words);
        }
        other => {
            odd.add(format!("content that is {}", kind(&other)));
            return text(other.to_string());
        }
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => text(words(fields.remove("text"), "text", odd)),
        Some(type_name @ ("image" | "audio")) => {
            let type_name = type_name.to_owned();
            media::settled(&type_name, fields, odd)
        }
        Some("resource") => {
            let contents = fields.remove("resource").or_else(|| {
                odd.add("a resource without `resource`");
                // Some put its fields beside the type.
                fields.remove("type");
                Some(Value::Object(std::mem::take(&mut fields)))
            });
            settled_resource(contents.unwrap_or_default(), odd)
        }
        Some("resource_link") => text(link(&fields, odd)),
        None if fields.get("text").is_some_and(Value::is_string) => {
            odd.add("content without a type");
            text(words(fields.remove("text"), "text", odd))
        }
        _ => unknown(fields, odd),
    }
}

/// The contents of a resource in the form of the protocol, as a block.
fn settled_resource(contents: Value, odd: &mut Odd) -> Value {
    let mut fields = match contents {
        Value::Object(fields) => fields,
        other => {
            odd.add(format!("a resource that is {}", kind(&other)));
            return text(words(Some(other), "resource", odd));
        }
    };
    let uri = if let Some(Value::String(uri)) = fields.remove("uri") {
        uri
    } else {
        odd.add("a resource without a uri");
        String::new()
    };
    if let Some(words_of) = fields.remove("text").filter(|text| !text.is_null()) {
        let words = words(Some(words_of), "text of a resource", odd);
        return json!({"type": "resource", "resource": {"uri": uri, "text": words}});
    }
    if fields.get("blob").is_some_and(Value::is_string) {
        return media::settled_blob(&uri, fields, odd);
    }
    odd.add("a resource with neither `text` nor `blob`");
    text(format!("[resource{}] {}", after(" ", &uri), readable(&Value::Object(fields))))
}

/// A block that is settled, as a part of a message.
pub(super) fn part(block: &Value) -> Part {
    let of = |fields: &Value, name: &str| fields[name].as_str().unwrap_or_default().to_owned();
    match block["type"].as_str() {
        Some("image") => Content::Image(Media::base64(of(block, "data"), of(block, "mimeType"))).into(),
        Some("audio") => Content::File(Media::base64(of(block, "data"), of(block, "mimeType"))).into(),
        Some("resource") => {
            let contents = &block["resource"];
            let uri = of(contents, "uri");
            if let Some(text) = contents["text"].as_str() {
                return Part::text(format!("[resource{}]\n{text}", after(" ", &uri)));
            }
            let media_type = of(contents, "mimeType");
            let is_image = media_type.starts_with("image/");
            let media = Media::base64(of(contents, "blob"), media_type);
            if is_image {
                return Content::Image(media).into();
            }
            let name = uri.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&uri);
            let is_named = !name.is_empty();
            Content::File(if is_named { media.named(name) } else { media }).into()
        }
        _ => Part::text(text_of(block).map_or_else(|| readable(block), str::to_owned)),
    }
}

/// A block of a server as a part of a message.
pub(crate) fn read(block: Value, odd: &mut Odd) -> Part {
    part(&settled(block, odd))
}

/// The contents of a resource as a part of a message.
pub(crate) fn resource(contents: Value, odd: &mut Odd) -> Part {
    part(&settled_resource(contents, odd))
}

/// The text of a block that is nothing else.
pub(super) fn text_of(block: &Value) -> Option<&str> {
    if block["type"] == "text" { block["text"].as_str() } else { None }
}

pub(super) fn text(words: impl Into<String>) -> Value {
    json!({"type": "text", "text": words.into()})
}

/// A value where text is expected.
fn words(value: Option<Value>, what: &str, odd: &mut Odd) -> String {
    match value {
        Some(Value::String(words)) => words,
        None | Some(Value::Null) => {
            odd.add(format!("{what} is missing"));
            String::new()
        }
        Some(other) => {
            odd.add(format!("{what} is {}", kind(&other)));
            readable(&other)
        }
    }
}

fn link(fields: &Map<String, Value>, odd: &mut Odd) -> String {
    let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("uri").is_empty() {
        odd.add("a resource_link without a uri");
    }
    let name =
        [field("name"), field("title")].into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| {
            odd.add("a resource_link without a name");
            ""
        });
    let address = after(" at ", field("uri"));
    format!(
        "[resource{}{address}{}{}]",
        after(" ", name),
        after(", ", field("mimeType")),
        after(": ", field("description"))
    )
}

/// Content of a kind that the protocol did not have when this was written, or that is no content.
fn unknown(mut fields: Map<String, Value>, odd: &mut Odd) -> Value {
    let type_name = match fields.remove("type") {
        Some(Value::String(name)) => format!("of unknown type `{}`", shortened(&name, 64)),
        Some(other) => format!("whose type is {}", kind(&other)),
        None => "without a type".to_owned(),
    };
    odd.add(format!("content {type_name}"));
    fields.remove("_meta");
    fields.remove("annotations");
    match fields.remove("text") {
        Some(Value::String(words)) => text(format!("[content {type_name}]\n{words}")),
        other => {
            if let Some(other) = other {
                fields.insert("text".to_owned(), other);
            }
            text(format!("[content {type_name}] {}", readable(&Value::Object(fields))))
        }
    }
}

/// A value as JSON, without long texts, which are bytes of media more often than not.
fn readable(value: &Value) -> String {
    match value {
        Value::String(words) => words.clone(),
        other => without_long_texts(other.clone()).to_string(),
    }
}

fn without_long_texts(mut value: Value) -> Value {
    match &mut value {
        Value::String(words) if words.len() > MAX_TEXT => {
            *words = format!("[left out: a text of {} bytes]", words.len());
        }
        Value::Array(items) => {
            for item in items {
                *item = without_long_texts(item.take());
            }
        }
        Value::Object(fields) => {
            fields.values_mut().for_each(|field| *field = without_long_texts(field.take()));
        }
        _ => {}
    }
    value
}

fn shortened(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}

/// A text after what separates it, if there is one.
fn after(separator: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{separator}{text}") }
}

/// The kind of a value, for a person.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
