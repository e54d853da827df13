//! One block of content: normalized to the form of the protocol, then converted to a part of a message.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Content, Media, Part};

use super::deviations::ProtocolDeviations;
use super::media;
use super::text::{kind, readable, text_block, text_of};

/// Normalizes a block: text, an image, a sound or a resource with the required fields. Other blocks become text as far as
/// they are readable.
pub(super) fn normalized(block: Value, deviations: &mut ProtocolDeviations) -> Value {
    let mut fields = match block {
        Value::Object(fields) => fields,
        Value::String(words) => {
            deviations.add("content that is a string");
            return text_block(words);
        }
        other => {
            deviations.add(format!("content that is {}", kind(&other)));
            return text_block(other.to_string());
        }
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => text_block(words(fields.remove("text"), "text", deviations)),
        Some(type_name @ ("image" | "audio")) => {
            let type_name = type_name.to_owned();
            media::normalized(&type_name, fields, deviations)
        }
        Some("resource") => {
            let contents = fields.remove("resource").or_else(|| {
                deviations.add("a resource without `resource`");
                // NOTE: Some servers put its fields beside the type.
                fields.remove("type");
                Some(Value::Object(std::mem::take(&mut fields)))
            });
            normalized_resource(contents.unwrap_or_default(), deviations)
        }
        Some("resource_link") => text_block(link(&fields, deviations)),
        None if fields.get("text").is_some_and(Value::is_string) => {
            deviations.add("content without a type");
            text_block(words(fields.remove("text"), "text", deviations))
        }
        _ => unknown(fields, deviations),
    }
}

/// Normalizes the contents of a resource, as a block.
fn normalized_resource(contents: Value, deviations: &mut ProtocolDeviations) -> Value {
    let mut fields = match contents {
        Value::Object(fields) => fields,
        other => {
            deviations.add(format!("a resource that is {}", kind(&other)));
            return text_block(words(Some(other), "resource", deviations));
        }
    };
    let uri = if let Some(Value::String(uri)) = fields.remove("uri") {
        uri
    } else {
        deviations.add("a resource without a uri");
        String::new()
    };
    if let Some(words_of) = fields.remove("text").filter(|text| !text.is_null()) {
        let words = words(Some(words_of), "text of a resource", deviations);
        return json!({"type": "resource", "resource": {"uri": uri, "text": words}});
    }
    if fields.get("blob").is_some_and(Value::is_string) {
        return media::normalized_blob(&uri, fields, deviations);
    }
    deviations.add("a resource with neither `text` nor `blob`");
    text_block(format!("[resource{}] {}", after(" ", &uri), readable(&Value::Object(fields))))
}

/// Converts a normalized block to a part of a message.
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
pub(crate) fn read(block: Value, deviations: &mut ProtocolDeviations) -> Part {
    part(&normalized(block, deviations))
}

/// The contents of a resource as a part of a message.
pub(crate) fn resource(contents: Value, deviations: &mut ProtocolDeviations) -> Part {
    part(&normalized_resource(contents, deviations))
}

/// Returns the text of a field that should be a text.
fn words(value: Option<Value>, what: &str, deviations: &mut ProtocolDeviations) -> String {
    match value {
        Some(Value::String(words)) => words,
        None | Some(Value::Null) => {
            deviations.add(format!("{what} is missing"));
            String::new()
        }
        Some(other) => {
            deviations.add(format!("{what} is {}", kind(&other)));
            readable(&other)
        }
    }
}

fn link(fields: &Map<String, Value>, deviations: &mut ProtocolDeviations) -> String {
    let field = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    if field("uri").is_empty() {
        deviations.add("a resource_link without a uri");
    }
    let name =
        [field("name"), field("title")].into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| {
            deviations.add("a resource_link without a name");
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

/// Converts content of an unknown type to text.
fn unknown(mut fields: Map<String, Value>, deviations: &mut ProtocolDeviations) -> Value {
    let type_name = match fields.remove("type") {
        Some(Value::String(name)) => format!("of unknown type `{}`", shortened(&name, 64)),
        Some(other) => format!("whose type is {}", kind(&other)),
        None => "without a type".to_owned(),
    };
    deviations.add(format!("content {type_name}"));
    fields.remove("_meta");
    fields.remove("annotations");
    match fields.remove("text") {
        Some(Value::String(words)) => text_block(format!("[content {type_name}]\n{words}")),
        other => {
            if let Some(other) = other {
                fields.insert("text".to_owned(), other);
            }
            text_block(format!("[content {type_name}] {}", readable(&Value::Object(fields))))
        }
    }
}

fn shortened(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}

/// A text after what separates it, if there is one.
fn after(separator: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{separator}{text}") }
}
