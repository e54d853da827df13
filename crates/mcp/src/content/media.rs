//! Bytes that a provider accepts, or a note in place of them: base64 in the standard alphabet, and a media type.

use serde_json::{Map, Value, json};

use super::deviations::ProtocolDeviations;
use super::text::{kind, text_block};

/// The media type of unknown bytes.
const UNKNOWN: &str = "application/octet-stream";

/// Normalizes an image or a sound; invalid data becomes a note.
pub(super) fn normalized(
    block_type: &str,
    mut fields: Map<String, Value>,
    deviations: &mut ProtocolDeviations,
) -> Value {
    let data = match fields.remove("data") {
        Some(Value::String(data)) => data,
        _ => String::new(),
    };
    let (stated, data) = parsed(fields.remove("mimeType"), data, deviations);
    let data = match base64(data, deviations) {
        Ok(data) => data,
        Err(fault) => return omitted(stated.as_deref().unwrap_or(block_type), fault, deviations),
    };
    match detected_type(stated, block_type == "image", &data, deviations) {
        Some(media_type) if media_type.starts_with(&format!("{block_type}/")) => {
            json!({"type": block_type, "data": data, "mimeType": media_type})
        }
        // NOTE: A file of its stated media type.
        Some(media_type) if media_type != UNKNOWN => {
            deviations.add(format!("{block_type} of the media type {media_type}"));
            json!({"type": "resource", "resource": {"uri": "", "blob": data, "mimeType": media_type}})
        }
        _ => omitted(block_type, "without a media type", deviations),
    }
}

/// Normalizes the bytes of a resource; invalid data becomes a note.
pub(super) fn normalized_blob(
    uri: &str,
    mut fields: Map<String, Value>,
    deviations: &mut ProtocolDeviations,
) -> Value {
    let blob = match fields.remove("blob") {
        Some(Value::String(blob)) => blob,
        _ => String::new(),
    };
    let (stated, blob) = parsed(fields.remove("mimeType"), blob, deviations);
    match base64(blob, deviations) {
        Ok(blob) => {
            let is_image = stated.as_ref().is_some_and(|stated| stated.starts_with("image/"));
            let media_type =
                detected_type(stated, is_image, &blob, deviations).unwrap_or_else(|| UNKNOWN.to_owned());
            json!({"type": "resource", "resource": {"uri": uri, "blob": blob, "mimeType": media_type}})
        }
        Err(fault) => omitted(stated.as_deref().unwrap_or(UNKNOWN), fault, deviations),
    }
}

fn omitted(media_type: &str, fault: &str, deviations: &mut ProtocolDeviations) -> Value {
    deviations.add(format!("{media_type} {fault}"));
    text_block(format!("[omitted: {media_type} {fault}]"))
}

/// The media type and the data, which may be a data URL with a type of its own.
fn parsed(
    stated: Option<Value>,
    data: String,
    deviations: &mut ProtocolDeviations,
) -> (Option<String>, String) {
    let stated = match stated {
        None | Some(Value::Null) => None,
        Some(Value::String(stated)) => {
            let found = media_type(&stated);
            if found.as_deref() != Some(stated.as_str()) {
                deviations.add(format!("the media type `{}`", stated.chars().take(64).collect::<String>()));
            }
            found
        }
        Some(other) => {
            deviations.add(format!("a media type that is {}", kind(&other)));
            None
        }
    };
    let Some((head, rest)) = data.strip_prefix("data:").and_then(|url| url.split_once(',')) else {
        return (stated, data);
    };
    deviations.add("a data URL in place of base64");
    let of_url = media_type(head);
    (stated.or(of_url), rest.to_owned())
}

/// Normalizes a media type for providers: lower case, without parameters, under its registered name.
fn media_type(stated: &str) -> Option<String> {
    let essence = stated.split(';').next().unwrap_or_default().trim().to_lowercase();
    let (family, name) = essence.split_once('/')?;
    let is_token = |word: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !word.is_empty() && word.bytes().all(is_of_token)
    };
    if !is_token(family) || !is_token(name) {
        return None;
    }
    Some(match essence.as_str() {
        "image/jpg" | "image/pjpeg" => "image/jpeg".to_owned(),
        "image/x-png" => "image/png".to_owned(),
        _ => essence,
    })
}

/// Returns the media type. For an image it is that of its first bytes: providers compare both.
fn detected_type(
    stated: Option<String>,
    is_image: bool,
    data: &str,
    deviations: &mut ProtocolDeviations,
) -> Option<String> {
    // NOTE: Providers compare both and refuse a conversation with a wrong type, in each later request. See
    // docs/decisions/mcp.md.
    let Some(found) = sniffed(data).filter(|_| is_image) else { return stated };
    if stated.as_deref() != Some(found) {
        deviations.add(format!("{found} said to be {}", stated.as_deref().unwrap_or("of no media type")));
    }
    Some(found.to_owned())
}

/// The type of an image by its first bytes.
fn sniffed(base64: &str) -> Option<&'static str> {
    let known = [("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif")];
    let by_first = known.into_iter().find(|(first, _)| base64.starts_with(first)).map(|(_, found)| found);
    // `RIFF`, the length, then `WEBP`, of which the last three bytes are four characters of their own.
    let is_webp = base64.starts_with("UklGR") && base64.get(12..16) == Some("RUJQ");
    by_first.or(is_webp.then_some("image/webp"))
}

/// Base64 in the standard alphabet, with its padding and without line breaks.
fn base64(data: String, deviations: &mut ProtocolDeviations) -> Result<String, &'static str> {
    if data.is_empty() {
        return Err("without data");
    }
    if is_base64(&data) {
        return Ok(data);
    }
    let standard = |byte: char| match byte {
        '-' => '+',
        '_' => '/',
        other => other,
    };
    let mut repaired: String =
        data.chars().filter(|byte| !byte.is_ascii_whitespace()).map(standard).collect();
    repaired.truncate(repaired.trim_end_matches('=').len());
    while !repaired.len().is_multiple_of(4) {
        repaired.push('=');
    }
    if is_base64(&repaired) {
        deviations.add("base64 with line breaks, in another alphabet or without its padding");
        Ok(repaired)
    } else {
        Err("with invalid base64")
    }
}

fn is_base64(data: &str) -> bool {
    let digits = data.trim_end_matches('=');
    !digits.is_empty()
        && data.len().is_multiple_of(4)
        && data.len() - digits.len() <= 2
        && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}
