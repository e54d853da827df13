//! The kinds of JSON values, and the kinds that a schema allows.

use std::fmt;

use serde_json::{Map, Value};

use super::references::reference_target;

/// The limit on visited schemas when the kinds of a type are computed. Recursive types are endless.
const MAX_VISITS: usize = 256;

/// A set of kinds of JSON values. Integers and other numbers are different kinds: 1.0 is not an integer.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::ValueKinds;
///
/// let kinds = ValueKinds::of_type_keyword(&json!(["integer", "null"]));
/// assert!(kinds.contains(ValueKinds::of_value(&json!(3))) && !kinds.contains(ValueKinds::of_value(&json!(3.0))));
/// assert_eq!(kinds.to_string(), "integer or null");
/// assert_eq!(kinds.type_names(), ["integer", "null"]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ValueKinds(u8);

impl ValueKinds {
    /// Null.
    pub const NULL: ValueKinds = ValueKinds(1);
    /// True and false.
    pub const BOOLEAN: ValueKinds = ValueKinds(2);
    /// Numbers without a fraction.
    pub const INTEGER: ValueKinds = ValueKinds(4);
    /// Numbers with a fraction, including 1.0.
    pub const FLOAT: ValueKinds = ValueKinds(8);
    /// All numbers.
    pub const NUMBER: ValueKinds = ValueKinds(4 | 8);
    /// Strings.
    pub const STRING: ValueKinds = ValueKinds(16);
    /// Arrays.
    pub const ARRAY: ValueKinds = ValueKinds(32);
    /// Objects.
    pub const OBJECT: ValueKinds = ValueKinds(64);
    /// No value.
    pub const NONE: ValueKinds = ValueKinds(0);
    /// Every value.
    pub const ALL: ValueKinds = ValueKinds(127);

    /// Whether this set contains all of `other`.
    pub fn contains(self, other: ValueKinds) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the sets intersect.
    pub fn meets(self, other: ValueKinds) -> bool {
        self.0 & other.0 != 0
    }

    /// The difference of the sets.
    pub fn without(self, other: ValueKinds) -> ValueKinds {
        ValueKinds(self.0 & !other.0)
    }

    /// The union of the sets.
    pub const fn union(self, other: ValueKinds) -> ValueKinds {
        ValueKinds(self.0 | other.0)
    }

    /// The kind of a value.
    pub fn of_value(value: &Value) -> ValueKinds {
        match value {
            Value::Null => ValueKinds::NULL,
            Value::Bool(_) => ValueKinds::BOOLEAN,
            // NOTE: `serde_json` reads `1.0` as a float, so the two kinds stay apart.
            Value::Number(number) if number.is_f64() => ValueKinds::FLOAT,
            Value::Number(_) => ValueKinds::INTEGER,
            Value::String(_) => ValueKinds::STRING,
            Value::Array(_) => ValueKinds::ARRAY,
            Value::Object(_) => ValueKinds::OBJECT,
        }
    }

    /// The kinds of a JSON Schema type name; empty for an unknown one.
    pub(super) fn named(name: &str) -> ValueKinds {
        match name {
            "null" => ValueKinds::NULL,
            "boolean" => ValueKinds::BOOLEAN,
            "integer" => ValueKinds::INTEGER,
            "number" => ValueKinds::NUMBER,
            "string" => ValueKinds::STRING,
            "array" => ValueKinds::ARRAY,
            "object" => ValueKinds::OBJECT,
            _ => ValueKinds::NONE,
        }
    }

    /// The kinds that the value of a `type` keyword allows.
    pub fn of_type_keyword(names: &Value) -> ValueKinds {
        match names {
            Value::String(name) => ValueKinds::named(name),
            Value::Array(names) => union_of(names.iter().filter_map(Value::as_str).map(ValueKinds::named)),
            _ => ValueKinds::ALL,
        }
    }

    /// Whether the value of a `type` keyword is one or several JSON Schema types.
    pub(super) fn are_types(names: &Value) -> bool {
        let is_type =
            |name: &Value| name.as_str().is_some_and(|name| ValueKinds::named(name) != ValueKinds::NONE);
        match names {
            Value::Array(names) => {
                // NOTE: Duplicate types make a schema invalid.
                let is_first = |at: usize| !names[..at].contains(&names[at]);
                !names.is_empty() && names.iter().all(is_type) && (0..names.len()).all(is_first)
            }
            name => is_type(name),
        }
    }

    /// The JSON Schema type names of these kinds. Fractional numbers alone have no name: `number` is the next
    /// wider one.
    pub fn type_names(self) -> Vec<&'static str> {
        let number = if self.contains(ValueKinds::FLOAT) { "number" } else { "integer" };
        let names = [
            (ValueKinds::BOOLEAN, "boolean"),
            (ValueKinds::NUMBER, number),
            (ValueKinds::STRING, "string"),
            (ValueKinds::ARRAY, "array"),
            (ValueKinds::OBJECT, "object"),
            (ValueKinds::NULL, "null"),
        ];
        names.into_iter().filter(|(kind, _)| self.meets(*kind)).map(|(_, name)| name).collect()
    }

    /// The kinds that the `type` of a schema allows; all without a `type`.
    pub fn of_type(schema: &Map<String, Value>) -> ValueKinds {
        schema.get("type").map_or(ValueKinds::ALL, ValueKinds::of_type_keyword)
    }

    /// The kinds that a value of this schema can have, conservatively.
    pub(super) fn of(root: &Value, schema: &Value) -> ValueKinds {
        ValueKinds::of_visited(root, schema, &mut { MAX_VISITS })
    }

    /// All kinds, once `visits` is used up.
    fn of_visited(root: &Value, schema: &Value, visits: &mut usize) -> ValueKinds {
        let fields = match schema {
            Value::Bool(false) => return ValueKinds::NONE,
            Value::Object(fields) if *visits > 0 => fields,
            // NOTE: An unread schema must not exclude a value.
            _ => return ValueKinds::ALL,
        };
        *visits -= 1;
        let mut kinds = ValueKinds::of_type(fields);
        let mut narrow = |other: ValueKinds| kinds = ValueKinds(kinds.0 & other.0);
        if let Some(target) = reference_target(root, schema) {
            narrow(ValueKinds::of_visited(root, target, visits));
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            narrow(union_of(values.iter().map(ValueKinds::of_value)));
        }
        if let Some(value) = fields.get("const") {
            narrow(ValueKinds::of_value(value));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = fields.get(keyword) {
                narrow(union_of(branches.iter().map(|branch| ValueKinds::of_visited(root, branch, visits))));
            }
        }
        if let Some(Value::Array(branches)) = fields.get("allOf") {
            for branch in branches {
                narrow(ValueKinds::of_visited(root, branch, visits));
            }
        }
        kinds
    }
}

fn union_of(kinds: impl Iterator<Item = ValueKinds>) -> ValueKinds {
    kinds.fold(ValueKinds::NONE, ValueKinds::union)
}

impl fmt::Display for ValueKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (ValueKinds::BOOLEAN, "boolean"),
            (
                if self.contains(ValueKinds::NUMBER) { ValueKinds::NUMBER } else { ValueKinds::INTEGER },
                "integer",
            ),
            (ValueKinds::STRING, "string"),
            (ValueKinds::ARRAY, "list"),
            (ValueKinds::OBJECT, "object"),
            (ValueKinds::NULL, "null"),
        ];
        if *self == ValueKinds::ALL {
            return f.write_str("any value");
        }
        let mut separator = "";
        for (kind, name) in names {
            if self.contains(kind) {
                let name = if kind == ValueKinds::NUMBER { "number" } else { name };
                write!(f, "{separator}{name}")?;
                separator = " or ";
            } else if name == "integer" && self.contains(ValueKinds::FLOAT) {
                write!(f, "{separator}fractional number")?;
                separator = " or ";
            }
        }
        if separator.is_empty() { f.write_str("no value") } else { Ok(()) }
    }
}

impl fmt::Debug for ValueKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kinds({self})")
    }
}
