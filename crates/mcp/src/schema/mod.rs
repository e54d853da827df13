//! From the schema of a server's tool to one for a model: references inlined, an object at the top, and never narrower
//! than the original.
//!
//! Servers use JSON Schema of every draft, and invalid schemas. The server checks arguments itself: a rule that cannot be
//! expressed is omitted here, and an open object stays open. Only a schema that accepts no object cannot be offered.

mod references;
mod rules;
mod top;
mod write;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use self::write::{InlineLimits, SchemaWriter};

/// The limit on the parts of a schema with its references inlined.
const MAX_PARTS: usize = 10_000;

/// The limit on the parts of a recursive schema: repetitions have no new information.
const MAX_REPEATED: usize = 1_000;

/// The limits on inlined references, from the widest to the narrowest. A schema with less detail may mislead a model,
/// and a schema that doubles with each level may become endless.
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
    /// The omitted parts of the server's schema, with the reasons.
    pub(crate) omissions: BTreeSet<String>,
}

/// Converts the `inputSchema` of a server to the schema for a model.
///
/// # Errors
/// No object fits, or the schema is too large.
pub(crate) fn parameters(schema: &Value) -> Result<OfferedParameters, String> {
    for limits in ATTEMPTS {
        let Some((written, mut omissions)) = SchemaWriter::new(schema, limits).whole() else { continue };
        let kind = written.get("type").cloned();
        let Some(mut fields) = top::merged(written, &mut omissions) else {
            let found = kind.map_or_else(|| "what no object fits".to_owned(), |kind| kind.to_string());
            return Err(format!("invalid inputSchema: expected type \"object\", found {found}"));
        };
        fields.insert("type".to_owned(), json!("object"));
        fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        return Ok(OfferedParameters { schema: Value::Object(fields), omissions });
    }
    Err(format!("inputSchema too large: more than {MAX_PARTS} parts with its references written out"))
}

#[cfg(test)]
mod tests;
