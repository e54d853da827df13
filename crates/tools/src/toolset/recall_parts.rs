//! The common parts of all tools for recall: the parameters of a search, excerpts, and texts that are read in parts.

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::Message;
use stepfold_state_core::{search_excerpt, searched_text};

use crate::error::ToolError;

const DEFAULT_FOUND: usize = 5;
const MAX_FOUND: usize = 20;
/// The characters that one call reads by default, and at most.
const DEFAULT_READ: usize = 4_000;
const MAX_READ: usize = 16_000;

/// The parameters of a tool that searches: `query`, and `limit`, as [`found_limit`] reads it.
pub fn search_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "A few words of what is sought: names, numbers, terms."},
            "limit": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": format!("How many messages to find; {DEFAULT_FOUND} by default, at most {MAX_FOUND}."),
            },
        },
        "required": ["query"],
    })
}

/// The number of messages that a search finds: 5 by default, at most 20.
pub fn found_limit(requested: Option<usize>) -> usize {
    requested.unwrap_or(DEFAULT_FOUND).clamp(1, MAX_FOUND)
}

/// The error for a query without words.
pub fn no_words() -> ToolError {
    ToolError::permanent(
        "the query has no words to search for; name what is sought: a person, a number, a term",
    )
}

/// The parameters of a tool that reads a message in parts: those that say which one, then `from` and `characters`, as
/// [`read_part`] takes them.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::recall::read_parameters;
///
/// let parameters = read_parameters(&[("page", json!({"type": "integer"}))], &["page"]);
/// assert_eq!(parameters["required"], json!(["page"]));
/// assert!(parameters["properties"]["characters"].is_object());
/// ```
pub fn read_parameters(place: &[(&str, Value)], required: &[&str]) -> Value {
    let of_part = [
        (
            "from",
            json!({"type": "integer", "minimum": 0, "description": "The first character to read; 0 by default."}),
        ),
        (
            "characters",
            json!({
                "type": ["integer", "null"],
                "minimum": 1,
                "description": format!("How many characters to read; {DEFAULT_READ} by default, at most {MAX_READ}."),
            }),
        ),
    ];
    let all = place.iter().chain(&of_part).map(|(name, schema)| ((*name).to_owned(), schema.clone()));
    let mut parameters = json!({"type": "object", "properties": all.collect::<Map<String, Value>>()});
    if !required.is_empty() {
        parameters["required"] = required.into();
    }
    parameters
}

/// Adds to the place of a found message whose it is, its length, and the part with most of the words, of so many characters.
pub fn describe_found(
    mut place: Map<String, Value>,
    message: &Message,
    words: &[String],
    excerpt: usize,
) -> Value {
    let text = searched_text(message);
    place.insert("of".to_owned(), message.role().as_str().into());
    if let Some(result) = message.tool_result() {
        place.insert("tool".to_owned(), result.name().into());
    }
    place.insert("characters".to_owned(), text.chars().count().into());
    place.insert("excerpt".to_owned(), search_excerpt(&text, words, excerpt).into());
    place.into()
}

/// A part of a message: 4,000 characters by default, at most 16,000; with `next` if there is more. `name` is that of the
/// message in errors.
///
/// # Errors
/// A permanent one if the message ends before the first character, unless that is 0.
pub fn read_part(
    mut place: Map<String, Value>,
    (name, message): (&str, &Message),
    from: usize,
    characters: Option<usize>,
) -> Result<Value, ToolError> {
    let text = searched_text(message);
    let all = text.chars().count();
    if from > 0 && from >= all {
        let why = format!("nothing to read from character {from}: {name} has {all}");
        return Err(ToolError::permanent(why));
    }
    let length = characters.unwrap_or(DEFAULT_READ).clamp(1, MAX_READ);
    let part: String = text.chars().skip(from).take(length).collect();
    place.insert("of".to_owned(), message.role().as_str().into());
    place.insert("characters".to_owned(), all.into());
    place.insert("text".to_owned(), part.into());
    let next = from.saturating_add(length);
    if next < all {
        place.insert("next".to_owned(), next.into());
    }
    Ok(place.into())
}
