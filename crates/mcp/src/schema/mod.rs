//! From the schema of a server's tool to one that a model can be told: written out, an object at the top, and never narrower
//! than what the server takes.
//!
//! Servers write JSON Schema of every draft, and invalid schemas. The server checks arguments itself: a rule that cannot be told is
//! left out here, and an object that the server left open stays open. Only what takes no object at all cannot be offered.

mod references;
mod rules;
mod top;
mod write;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use self::write::{InlineLimits, SchemaWriter};

/// The parts that a schema has at most with its references written out.
const MAX_PARTS: usize = 10_000;

/// The parts that a recursive schema has at most: what it repeats says nothing new.
const MAX_REPEATED: usize = 1_000;

/// How far references are written out, from the most to the least. A model that is told less may be told wrong, and one that
/// is told all of a schema that doubles with each level reads for ever.
const ATTEMPTS: [InlineLimits; 7] = [
    InlineLimits { repeats: 3, references: 64, parts: MAX_REPEATED },
    InlineLimits { repeats: 2, references: 64, parts: MAX_REPEATED },
    InlineLimits { repeats: 1, references: 64, parts: MAX_REPEATED },
    InlineLimits { repeats: 0, references: 64, parts: MAX_PARTS },
    InlineLimits { repeats: 0, references: 8, parts: MAX_PARTS },
    InlineLimits { repeats: 0, references: 4, parts: MAX_PARTS },
    InlineLimits { repeats: 0, references: 2, parts: MAX_PARTS },
];

/// The schema of a tool's arguments for a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OfferedParameters {
    /// The schema, an object's.
    pub(crate) schema: Value,
    /// What of the server's schema is not in it, and why.
    pub(crate) left_out: BTreeSet<String>,
}

/// The schema for a model of what a server lists as its `inputSchema`.
///
/// # Errors
/// Why there is none: no object fits, or it is too large.
pub(crate) fn parameters(schema: &Value) -> Result<OfferedParameters, String> {
    for limits in ATTEMPTS {
        let Some((written, mut left_out)) = SchemaWriter::new(schema, limits).whole() else { continue };
        let kind = written.get("type").cloned();
        let Some(mut fields) = top::merged(written, &mut left_out) else {
            let found = kind.map_or_else(|| "what no object fits".to_owned(), |kind| kind.to_string());
            return Err(format!("invalid inputSchema: expected type \"object\", found {found}"));
        };
        fields.insert("type".to_owned(), json!("object"));
        fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        return Ok(OfferedParameters { schema: Value::Object(fields), left_out });
    }
    Err(format!("inputSchema too large: more than {MAX_PARTS} parts with its references written out"))
}

#[cfg(test)]
mod tests;
