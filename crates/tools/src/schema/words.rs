//! The words of a JSON Schema, which are for people and models, apart from what it requires.

use serde_json::{Map, Value};

/// The members of a schema that require nothing of a value.
const WORDS: [&str; 5] = ["$comment", "description", "examples", "title", "deprecated"];

/// The members whose values are schemas by name.
const NAMED_SCHEMAS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// The members whose values are data: no part of them is a schema.
const DATA: [&str; 3] = ["const", "default", "enum"];

/// The schema without its words, which are added to `words` under their JSON pointers.
pub(crate) fn without_words(schema: &Value, at: &str, words: &mut Map<String, Value>) -> Value {
    match schema {
        Value::Object(members) => Value::Object(of_members(members, at, words)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(place, item)| without_words(item, &format!("{at}/{place}"), words)).collect()
        }
        other => other.clone(),
    }
}

fn of_members(members: &Map<String, Value>, at: &str, words: &mut Map<String, Value>) -> Map<String, Value> {
    let mut kept = Map::new();
    for (name, value) in members {
        let (member, inside) = (name.as_str(), format!("{at}/{name}"));
        if WORDS.contains(&member) {
            words.insert(inside, value.clone());
            continue;
        }
        let value = match value {
            Value::Object(schemas) if NAMED_SCHEMAS.contains(&member) => {
                let schemas = schemas.iter();
                let schemas = schemas.map(|(name, schema)| {
                    (name.clone(), without_words(schema, &format!("{inside}/{name}"), words))
                });
                Value::Object(schemas.collect())
            }
            value if DATA.contains(&member) => value.clone(),
            value => without_words(value, &inside, words),
        };
        kept.insert(name.clone(), value);
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::without_words;

    #[test]
    fn words_are_told_from_names_and_data() {
        let schema = json!({
            "type": "object",
            "title": "Bill",
            "properties": {
                "description": {"type": "string", "description": "What it is for."},
                "title": {"enum": ["title", "description"], "default": {"title": "x"}},
                "lines": {"type": "array", "items": {"$ref": "#/$defs/Line", "description": "A line."}},
            },
            "$defs": {"Line": {"type": "integer", "description": "Cents."}},
        });
        let mut words = Map::new();
        let signature = without_words(&schema, "", &mut words);
        assert_eq!(
            signature,
            json!({
                "type": "object",
                "properties": {
                    "description": {"type": "string"},
                    "title": {"enum": ["title", "description"], "default": {"title": "x"}},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
                },
                "$defs": {"Line": {"type": "integer"}},
            })
        );
        let expected = json!({
            "/title": "Bill",
            "/properties/description/description": "What it is for.",
            "/properties/lines/items/description": "A line.",
            "/$defs/Line/description": "Cents.",
        });
        assert_eq!(json!(words), expected);
    }
}
