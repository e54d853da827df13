//! From what a server returns to what the model reads: text, images, sounds, resources, structured content.

use std::error::Error;

use rmcp::model::{self as wire, ContentBlock, ResourceContents};
use serde_json::{Value, json};
use stepfold_state_core::chat::{Content, Media, Part, ToolContent};
use stepfold_state_core::json_schema::ValueType;
use stepfold_tools::ToolError;

/// The field of a result that holds blocks which are more than text.
const BLOCKS: &str = "mcp:content";

/// The value of a result: its structured content, or its text, or an object that [`shown`] knows.
///
/// # Errors
/// What the server says where the tool failed; or the faults of structured content that does not fit the tool's schema.
pub(crate) fn value(result: wire::CallToolResult, output: Option<&ValueType>) -> Result<Value, ToolError> {
    if result.is_error == Some(true) {
        let text = text_of(&result.content);
        let text = if text.is_empty() { "the tool failed and does not say why".to_owned() } else { text };
        return Err(ToolError::new(text));
    }
    if let Some(output) = output {
        check(result.structured_content.as_ref(), output)?;
    }
    let is_text = result.content.iter().all(|block| matches!(block, ContentBlock::Text(_)));
    match result.structured_content {
        // Servers repeat structured content as text, for older clients.
        Some(structured) if is_text => Ok(structured),
        None if is_text => Ok(Value::String(text_of(&result.content))),
        structured => {
            let blocks = serde_json::to_value(result.content)
                .map_err(|error| ToolError::permanent(error.to_string()))?;
            let mut value = json!({ BLOCKS: blocks });
            if let Some(structured) = structured {
                value["structuredContent"] = structured;
            }
            Ok(value)
        }
    }
}

fn check(structured: Option<&Value>, output: &ValueType) -> Result<(), ToolError> {
    let told = "the call has run, but its result cannot be used";
    let Some(structured) = structured else {
        let words = format!("{told}: the tool has an outputSchema and gave no structuredContent");
        return Err(ToolError::permanent(words));
    };
    output.check(structured).map_err(|faults| {
        ToolError::permanent(format!("{told}: its structuredContent does not fit the outputSchema: {faults}"))
    })
}

/// What the model reads of such a value.
pub(crate) fn shown(value: &Value) -> Result<ToolContent, Box<dyn Error + Send + Sync>> {
    let Some(blocks) = value.get(BLOCKS) else { return Ok(ToolContent::Value(value.clone())) };
    let blocks: Vec<ContentBlock> = serde_json::from_value(blocks.clone())?;
    Ok(ToolContent::Parts(blocks.into_iter().map(part).collect()))
}

fn text_of(blocks: &[ContentBlock]) -> String {
    let texts = blocks.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// A block as a part of a message.
pub(crate) fn part(block: ContentBlock) -> Part {
    match block {
        ContentBlock::Text(text) => Part::text(text.text),
        ContentBlock::Image(image) => match media(image.data, image.mime_type) {
            Ok(media) => Content::Image(media).into(),
            Err(note) => Part::text(note),
        },
        ContentBlock::Audio(audio) => match media(audio.data, audio.mime_type) {
            Ok(media) => Content::File(media).into(),
            Err(note) => Part::text(note),
        },
        ContentBlock::Resource(embedded) => resource(embedded.resource),
        ContentBlock::ResourceLink(link) => {
            let kind = link.mime_type.map(|kind| format!(", {kind}")).unwrap_or_default();
            let about = link.description.map(|about| format!(": {about}")).unwrap_or_default();
            Part::text(format!("[resource {} at {}{kind}{about}]", link.name, link.uri))
        }
        _ => Part::text("[content of a kind that this version does not know]"),
    }
}

/// The contents of a resource as a part of a message.
pub(crate) fn resource(contents: ResourceContents) -> Part {
    match contents {
        ResourceContents::TextResourceContents { uri, text, .. } => {
            Part::text(format!("[resource {uri}]\n{text}"))
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let kind = mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
            let is_image = kind.starts_with("image/");
            match media(blob, kind) {
                Ok(media) if is_image => Content::Image(media).into(),
                Ok(media) => {
                    let name =
                        uri.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(&uri).to_owned();
                    Content::File(media.named(name)).into()
                }
                Err(note) => Part::text(note),
            }
        }
        _ => Part::text("[a resource of a kind that this version does not know]"),
    }
}

/// Bytes that a provider will take; a note in place of what is not base64.
fn media(data: String, kind: String) -> Result<Media, String> {
    let is_base64 = data.len().is_multiple_of(4)
        && data
            .trim_end_matches('=')
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
    if is_base64 {
        Ok(Media::base64(data, kind))
    } else {
        Err(format!("[omitted: {kind} with invalid base64]"))
    }
}
