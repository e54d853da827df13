//! The error of the explaining deserializer: the reports of `serde`, as data.

use std::fmt::{self, Write as _};

use serde::de::{self, Expected, Unexpected};
use serde_json::Value;

use super::{DecodeError, DecodeErrorKind};

/// A decoding fault and its path.
#[derive(Debug)]
pub(super) struct DecodeFault {
    kind: DecodeErrorKind,
    message: String,
    /// The path from the value to the fault, innermost step first.
    steps: Vec<PathStep>,
    /// Whether the message of a type quotes the value; `None` before the check.
    quotes: Option<bool>,
}

#[derive(Debug)]
pub(super) enum PathStep {
    Index(usize),
    Field(String),
}

/// Replaces a message that quotes the value.
const REJECTED: &str = "invalid value for the type";

impl DecodeFault {
    fn new(kind: DecodeErrorKind, message: String) -> Self {
        DecodeFault { kind, message, steps: Vec::new(), quotes: None }
    }

    /// The fault of a type that gives no reason.
    pub(super) fn rejected() -> Self {
        DecodeFault::new(DecodeErrorKind::Custom, REJECTED.to_owned())
    }

    /// Binds the fault to `value` or a part of it.
    pub(super) fn bound_to(mut self, value: &Value) -> Self {
        if self.kind == DecodeErrorKind::Custom {
            // NOTE: The innermost value decides: the type that wrote the message has seen no other.
            self.quotes.get_or_insert_with(|| is_quoted(value, &self.message));
        }
        self
    }

    /// Adds the list or object that holds `value` to the path.
    pub(super) fn inside(self, step: PathStep, value: &Value) -> Self {
        let mut fault = self.bound_to(value);
        fault.steps.push(step);
        fault
    }

    /// The error, with the type's own message.
    pub(super) fn into_error(self) -> DecodeError {
        DecodeError { kind: self.kind, path: path_of(&self.steps), message: self.message }
    }

    /// The error, without a message that quotes the value.
    pub(super) fn into_unquoted_error(mut self) -> DecodeError {
        if self.quotes == Some(true) {
            REJECTED.clone_into(&mut self.message);
        }
        self.into_error()
    }
}

impl de::Error for DecodeFault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        DecodeFault::new(DecodeErrorKind::Custom, message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let message = format!("expected {expected}, found {}", name_of(found));
        DecodeFault::new(DecodeErrorKind::InvalidType, message)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let message = format!("expected {expected}, found an invalid {}", name_of(found));
        DecodeFault::new(DecodeErrorKind::InvalidValue, message)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        let message = format!("invalid length {length}, expected {expected}");
        DecodeFault::new(DecodeErrorKind::InvalidLength, message)
    }

    // NOTE: The ignored name is part of the value, which must not be shown.
    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        DecodeFault::new(DecodeErrorKind::UnknownVariant, unknown("variant", expected))
    }

    // NOTE: The ignored name may be part of the value.
    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        DecodeFault::new(DecodeErrorKind::UnknownField, unknown("field", expected))
    }

    fn missing_field(field: &'static str) -> Self {
        DecodeFault::new(DecodeErrorKind::MissingField, format!("missing field `{field}`"))
    }

    fn duplicate_field(field: &'static str) -> Self {
        DecodeFault::new(DecodeErrorKind::DuplicateField, format!("duplicate field `{field}`"))
    }
}

/// Required by the `serde` trait.
impl fmt::Display for DecodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DecodeFault {}

fn name_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "integer",
        Unexpected::Float(_) => "fractional number",
        Unexpected::Char(_) | Unexpected::Str(_) | Unexpected::Bytes(_) | Unexpected::UnitVariant => "string",
        Unexpected::Unit | Unexpected::Option => "null",
        Unexpected::Seq => "list",
        Unexpected::Map => "object",
        _ => "value",
    }
}

fn unknown(kind: &str, expected: &[&str]) -> String {
    let names: Vec<String> = expected.iter().map(|name| format!("`{name}`")).collect();
    match names.len() {
        0 => format!("unknown {kind}, expected no {kind}"),
        1 => format!("unknown {kind}, expected {}", names[0]),
        _ => format!("unknown {kind}, expected one of {}", names.join(", ")),
    }
}

/// Whether a text quotes a value or a part of it.
fn is_quoted(value: &Value, text: &str) -> bool {
    let has = |part: &str| !part.is_empty() && text.contains(part);
    match value {
        Value::Null => false,
        Value::Bool(value) => has(if *value { "true" } else { "false" }),
        Value::Number(number) => has(&number.to_string()),
        // NOTE: A type may print its value with `{:?}`, which escapes it.
        Value::String(string) => has(string) || has(&string.escape_debug().to_string()),
        Value::Array(items) => items.iter().any(|item| is_quoted(item, text)),
        Value::Object(fields) => {
            // NOTE: A plain name may be that of a struct's field, which a message may contain; any other one is data.
            fields.iter().any(|(name, field)| (!is_identifier(name) && has(name)) || is_quoted(field, text))
        }
    }
}

/// The path as people and models read it: `$[0].title`.
fn path_of(steps: &[PathStep]) -> String {
    let mut path = "$".to_owned();
    for step in steps.iter().rev() {
        // Writing to a string does not fail.
        let _ = match step {
            PathStep::Index(index) => write!(path, "[{index}]"),
            PathStep::Field(name) => push_field(&mut path, name),
        };
    }
    path
}

/// Adds a field to a JSON path.
pub(crate) fn push_field(path: &mut String, name: &str) -> fmt::Result {
    match is_identifier(name) {
        true => write!(path, ".{name}"),
        false => write!(path, "[{}]", Value::from(name)),
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|character| character.is_alphanumeric() || character == '_')
}
