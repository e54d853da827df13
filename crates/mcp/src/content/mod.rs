//! From the result of a server to the content for the model: text, images, sounds, resources, structured content.
//!
//! A call that has run is never repeated for the form of its result: everything readable is shown, and deviations from the
//! protocol are logged.

mod block;
mod deviations;
mod media;
#[cfg(test)]
mod tests;
mod text;

use std::error::Error;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Content, Media, Part, ToolContent};
use stepfold_state_core::json_schema::ValueType;
use stepfold_tools::ToolError;

pub(crate) use self::block::{read, resource};
use self::deviations::MAX_DEVIATIONS;
pub(crate) use self::deviations::ProtocolDeviations;

/// The field of a result with the blocks, if they are not only text.
// NOTE: With a colon, so that structured content is unlikely to have such a field.
const BLOCKS: &str = "mcp:content";

/// The field beside it, if there is structured content as well.
const STRUCTURED: &str = "structuredContent";

/// The value of a result: its structured content, or its text, or an object that [`to_tool_content`] knows.
///
/// # Errors
/// The message of the server if the tool failed.
pub(crate) fn value(
    result: Value,
    output: Option<&ValueType>,
    deviations: &mut ProtocolDeviations,
) -> Result<Value, ToolError> {
    let NormalizedResult { has_failed, blocks, structured } = NormalizedResult::of(result, deviations);
    if has_failed {
        return Err(ToolError::new(failure(&blocks, structured.as_ref())));
    }
    if let Some(output) = output {
        check(structured.as_ref(), output, deviations);
    }
    let texts = texts_of(&blocks);
    Ok(match (texts, structured) {
        (Some(texts), None) => Value::String(texts.join("\n")),
        // NOTE: Servers repeat structured content as text, for older clients.
        (Some(texts), Some(structured))
            if repeats(&texts, &structured) && structured.get(BLOCKS).is_none() =>
        {
            structured
        }
        (_, structured) => {
            let mut value = json!({ BLOCKS: blocks });
            if let Some(structured) = structured {
                value[STRUCTURED] = structured;
            }
            value
        }
    })
}

/// Converts the value of a result to the content for the model.
#[expect(clippy::unnecessary_wraps, reason = "a formatter of results may fail")]
pub(crate) fn to_tool_content(value: &Value) -> Result<ToolContent, Box<dyn Error + Send + Sync>> {
    let Some(Value::Array(blocks)) = value.get(BLOCKS) else { return Ok(ToolContent::Value(value.clone())) };
    let parts = parts(blocks, value.get(STRUCTURED));
    let texts: Option<Vec<&str>> = parts.iter().map(text_of).collect();
    Ok(match texts {
        Some(texts) => ToolContent::Value(Value::String(texts.join("\n"))),
        None => ToolContent::Parts(parts),
    })
}

fn text_of(part: &Part) -> Option<&str> {
    match &part.content {
        Content::Text(text) => Some(text),
        _ => None,
    }
}

/// Converts the blocks, and the structured content unless a block repeats it.
fn parts(blocks: &[Value], structured: Option<&Value>) -> Vec<Part> {
    let mut parts: Vec<Part> = blocks.iter().map(block::part).collect();
    if let Some(structured) = structured {
        let texts: Vec<&str> = blocks.iter().filter_map(text::text_of).collect();
        let is_said = texts.iter().any(|text| expresses(text, structured))
            || !texts.is_empty() && repeats(&texts, structured);
        if !is_said {
            parts.push(Part::text(structured.to_string()));
        }
    }
    parts
}

/// The message of a failure. It cannot contain media: they are named.
fn failure(blocks: &[Value], structured: Option<&Value>) -> String {
    let words = parts(blocks, structured).into_iter().map(|part| match part.content {
        Content::Text(text) => text,
        Content::Image(Media { media_type, .. }) | Content::File(Media { media_type, .. }) => {
            format!("[{}, not shown]", media_type.as_deref().unwrap_or("a file"))
        }
        _ => String::new(),
    });
    let text = words.collect::<Vec<_>>().join("\n");
    if text.trim().is_empty() { "the tool failed and does not say why".to_owned() } else { text }
}

/// Reports a result that violates the schema of the server. The result is used anyway.
fn check(structured: Option<&Value>, output: &ValueType, deviations: &mut ProtocolDeviations) {
    match structured {
        None => deviations.add("the tool has an outputSchema and gave no structuredContent"),
        Some(structured) => {
            if let Err(faults) = output.check(structured) {
                deviations.add(format!("the structuredContent does not fit the outputSchema: {faults}"));
            }
        }
    }
}

/// A result in the form of the protocol.
struct NormalizedResult {
    has_failed: bool,
    /// Each as [`block::normalized`] leaves it.
    blocks: Vec<Value>,
    structured: Option<Value>,
}

impl NormalizedResult {
    fn of(result: Value, deviations: &mut ProtocolDeviations) -> Self {
        let mut fields = match result {
            Value::Object(fields) => fields,
            Value::Null => Map::new(),
            other => {
                deviations.add("a result that is no object");
                return NormalizedResult { has_failed: false, blocks: Vec::new(), structured: Some(other) };
            }
        };
        let mut blocks = blocks(fields.remove("content"), deviations);
        let has_failed = has_failed(fields.remove("isError"), &mut blocks, deviations);
        let mut structured = fields.remove(STRUCTURED);
        // NOTE: Beside other content, null has no information.
        structured.take_if(|structured| structured.is_null() && !blocks.is_empty());
        fields.retain(|name, _| !matches!(name.as_str(), "_meta" | "resultType"));
        if !fields.is_empty() {
            let names: Vec<&str> = fields.keys().take(MAX_DEVIATIONS).map(String::as_str).collect();
            deviations.add(format!("a result with other fields: {}", names.join(", ")));
            if blocks.is_empty() && structured.is_none() {
                structured = Some(Value::Object(fields));
            }
        }
        NormalizedResult { has_failed, blocks, structured }
    }
}

/// Whether the tool failed according to the server: true, or another value of that meaning. An unknown value becomes a
/// block.
fn has_failed(is_error: Option<Value>, blocks: &mut Vec<Value>, deviations: &mut ProtocolDeviations) -> bool {
    let expresses = match is_error {
        None | Some(Value::Null) => return false,
        Some(Value::Bool(has_failed)) => return has_failed,
        Some(other) => other,
    };
    deviations.add(format!("isError is {}", text::kind(&expresses)));
    match expresses {
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(word) => match word.trim().to_lowercase().as_str() {
            "" | "0" | "false" | "no" | "null" => false,
            "1" | "true" | "yes" => true,
            _ => {
                blocks.push(text::text_block(word));
                true
            }
        },
        empty if empty == json!([]) || empty == json!({}) => false,
        other => {
            blocks.push(text::text_block(other.to_string()));
            true
        }
    }
}

fn blocks(content: Option<Value>, deviations: &mut ProtocolDeviations) -> Vec<Value> {
    match content {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(blocks)) => {
            blocks.into_iter().map(|block| block::normalized(block, deviations)).collect()
        }
        Some(other) => {
            deviations.add(format!("content is {}, not a list", text::kind(&other)));
            vec![block::normalized(other, deviations)]
        }
    }
}

/// Returns the texts of the blocks, if all are text.
fn texts_of(blocks: &[Value]) -> Option<Vec<&str>> {
    blocks.iter().map(text::text_of).collect()
}

/// Whether texts repeat the structured content and nothing else: they are its JSON, or that of the only field in it
/// (servers wrap a result that is no object, as `result`, `content`), as one text or as one for each item.
fn repeats(texts: &[&str], structured: &Value) -> bool {
    let all = texts.join("\n");
    if all.trim().is_empty() || expresses(&all, structured) {
        return true;
    }
    let of_items = |value: &Value| {
        value.as_array().is_some_and(|items| {
            items.len() == texts.len() && texts.iter().zip(items).all(|(text, item)| expresses(text, item))
        })
    };
    let wrapped = structured.as_object().filter(|fields| fields.len() == 1);
    let wrapped = wrapped.and_then(|fields| fields.values().next());
    of_items(structured) || wrapped.is_some_and(|value| expresses(&all, value) || of_items(value))
}

/// Whether a text is a value: itself, or as JSON.
fn expresses(text: &str, value: &Value) -> bool {
    match value {
        Value::String(word) if word.trim() == text.trim() => true,
        _ => serde_json::from_str(text).is_ok_and(|read: Value| is_same(&read, value)),
    }
}

/// Whether two values are equal for a reader: 1 equals 1.0, and null equals a missing field.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let fits = |from: &Map<String, Value>, into: &Map<String, Value>| {
                from.iter().all(|(name, value)| is_same(value, into.get(name).unwrap_or(&Value::Null)))
            };
            fits(one, other) && fits(other, one)
        }
        (one, other) => one == other,
    }
}
