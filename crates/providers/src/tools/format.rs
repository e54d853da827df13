//! The schema of a reply in the form that a server accepts, and back to the requested form.

use serde_json::value::RawValue;
use serde_json::{Value, json};
use stepfold_state_core::chat::{ModelError, ResponseFormat};

use super::keys::rename;
use super::{RenamedKeys, schema};
use crate::rules::names::{NameRules, wire_name};
use crate::rules::schemas::SchemaRules;
use crate::wire;

/// The property of a reply that is wrapped into an object.
// NOTE: OpenAI accepts only objects as replies with a schema. See docs/decisions/providers.md.
const WRAPPED: &str = "value";

/// The differences between the text of a reply on the wire and the requested form.
#[derive(Debug, Default)]
pub(crate) struct ReplyForm {
    /// Whether the value is in an object.
    is_wrapped: bool,
    /// The properties that are renamed on the wire.
    keys: RenamedKeys,
}

impl ReplyForm {
    /// The format on the wire, and the form of the reply.
    ///
    /// # Errors
    /// The server has no form for the schema.
    pub(crate) fn of(
        rules: &SchemaRules,
        format: Option<&ResponseFormat>,
    ) -> Result<(Option<ResponseFormat>, Self), ModelError> {
        let Some(ResponseFormat::JsonSchema { name, schema, strict }) = format else {
            return Ok((format.cloned(), ReplyForm::default()));
        };
        let mut wired = schema::reply(rules, schema)
            .map_err(|reason| wire::unsupported(format!("unsupported schema of the reply: {reason}")))?;
        let keys = rules.keys.map(|rules| rename(&rules, &mut wired)).unwrap_or_default();
        let is_wrapped = rules.object_replies && !is_object(&wired);
        if is_wrapped {
            wired = json!({
                "type": "object",
                "properties": { WRAPPED: wired },
                "required": [WRAPPED],
                "additionalProperties": false,
            });
        }
        let name = wire_name(&NameRules::OPENAI, name).into_owned();
        let format = ResponseFormat::JsonSchema { name, schema: wired, strict: *strict };
        Ok((Some(format), ReplyForm { is_wrapped, keys }))
    }

    /// Whether the reply has the same form on the wire.
    pub(crate) fn is_plain(&self) -> bool {
        !self.is_wrapped && self.keys.is_plain()
    }

    /// Restores the requested form. A text of another form stays unchanged: without strict mode, models may deviate.
    pub(crate) fn restored(&self, text: &str) -> Option<String> {
        let value = if self.is_wrapped { unwrapped(text)? } else { text };
        self.keys.restored(value)
    }
}

/// Whether a schema is a plain object, without alternatives.
fn is_object(schema: &Value) -> bool {
    let refused = ["anyOf", "oneOf", "allOf", "not", "enum", "const"];
    schema["type"] == "object" && refused.iter().all(|name| schema.get(name).is_none())
}

/// Unwraps the value of an object that has no other field.
fn unwrapped(text: &str) -> Option<&str> {
    // NOTE: Raw values, so that numbers and spaces of the reply stay as the model wrote them.
    let fields: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let value = fields.get(WRAPPED).filter(|_| fields.len() == 1)?;
    Some(value.get())
}
