//! Checks whether a value fits a schema by the rules that most Rust types' schemas consist of: kinds, listed
//! values, bounds, items, properties, alternatives.
//!
//! Unknown rules of a schema are ignored: enough to tell alternatives apart. Without unknown rules,
//! [`KnownRules::is_exact`], a value that fits needs no further check.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::keywords::{is_required, literals};
use super::kinds::ValueKinds;

/// Checks whether a value fits a schema, by kinds, listed values, bounds of numbers, and properties.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::fits;
///
/// let circle = json!({"type": "object", "properties": {"kind": {"const": "circle"}}, "required": ["kind"]});
/// assert!(fits(&circle, &json!({"kind": "circle"})) && !fits(&circle, &json!({"kind": "square"})));
/// ```
pub fn fits(schema: &Value, value: &Value) -> bool {
    KnownRules::of(schema).accepts(value)
}

/// Whether null fits a schema.
pub fn allows_null(schema: &Value) -> bool {
    fits(schema, &Value::Null)
}

/// Below this, every integer is exact as `f64`.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// The known rules of a schema.
#[derive(Debug)]
pub(super) struct KnownRules {
    kinds: ValueKinds,
    literals: Option<Vec<Value>>,
    minimum: f64,
    maximum: f64,
    items: Option<Box<KnownRules>>,
    properties: BTreeMap<String, KnownRules>,
    required: Vec<String>,
    /// The rules of properties without rules of their own.
    others: Option<Box<KnownRules>>,
    all: Vec<KnownRules>,
    /// Of each list, at least one must fit.
    alternatives: Vec<Vec<KnownRules>>,
    is_exact: bool,
}

impl KnownRules {
    fn of_kinds(kinds: ValueKinds) -> Self {
        KnownRules {
            kinds,
            literals: None,
            minimum: f64::NEG_INFINITY,
            maximum: f64::INFINITY,
            items: None,
            properties: BTreeMap::new(),
            required: Vec::new(),
            others: None,
            all: Vec::new(),
            alternatives: Vec::new(),
            is_exact: true,
        }
    }

    pub(super) fn of(schema: &Value) -> Self {
        match schema {
            Value::Bool(false) => KnownRules::of_kinds(ValueKinds::NONE),
            Value::Bool(true) => KnownRules::of_kinds(ValueKinds::ALL),
            Value::Object(fields) => {
                let mut fit = KnownRules::of_kinds(ValueKinds::of_type(fields));
                fit.literals = literals(fields).map(<[Value]>::to_vec);
                // NOTE: `literals` reads only one of the two keywords.
                fit.is_exact = !(fields.contains_key("const") && fields.contains_key("enum"));
                for (keyword, rule) in fields {
                    let is_known = fit.read(keyword, rule).is_some();
                    fit.is_exact &= is_known;
                }
                fit
            }
            _ => KnownRules { is_exact: false, ..KnownRules::of_kinds(ValueKinds::ALL) },
        }
    }

    /// Reads one keyword; `None` if it is unknown or its value is not valid for JSON Schema.
    fn read(&mut self, keyword: &str, rule: &Value) -> Option<()> {
        match (keyword, rule) {
            ("type", names) => ValueKinds::are_types(names).then_some(())?,
            ("enum", Value::Array(values)) if !values.is_empty() => {}
            ("minimum", Value::Number(bound)) => self.minimum = exact(bound)?,
            ("maximum", Value::Number(bound)) => self.maximum = exact(bound)?,
            ("items", schema @ (Value::Object(_) | Value::Bool(_))) => {
                self.items = Some(Box::new(self.part(schema)));
            }
            ("additionalProperties", schema) => self.others = Some(Box::new(self.part(schema))),
            ("properties", Value::Object(properties)) => {
                let parts = properties.iter().map(|(name, schema)| (name.clone(), self.part(schema)));
                self.properties = parts.collect();
            }
            ("required", Value::Array(names)) => {
                self.required = names.iter().filter_map(Value::as_str).map(str::to_owned).collect();
                // NOTE: A duplicate name makes the schema invalid.
                let is_new = |(place, name): (usize, &String)| !self.required[..place].contains(name);
                let are_unique = self.required.iter().enumerate().all(is_new);
                (self.required.len() == names.len() && are_unique).then_some(())?;
            }
            ("allOf", Value::Array(schemas)) if !schemas.is_empty() => {
                self.all = schemas.iter().map(|schema| self.part(schema)).collect();
            }
            ("anyOf" | "oneOf", Value::Array(schemas)) if !schemas.is_empty() => {
                let parts = schemas.iter().map(|schema| self.part(schema)).collect();
                self.alternatives.push(parts);
                // NOTE: A value that fits two alternatives fails `oneOf`; where none can, `oneOf` is `anyOf`.
                (keyword == "anyOf" || exclude_one_another(schemas)).then_some(())?;
            }
            ("const" | "default", _)
            | ("title" | "description" | "format" | "$comment", Value::String(_))
            | ("deprecated" | "readOnly" | "writeOnly", Value::Bool(_))
            | ("examples", Value::Array(_)) => {}
            (extension, _) if extension.starts_with("x-") => {}
            _ => return None,
        }
        Some(())
    }

    fn part(&mut self, schema: &Value) -> KnownRules {
        let part = KnownRules::of(schema);
        self.is_exact &= part.is_exact;
        part
    }

    /// Whether all rules of the schema are known and valid.
    #[cfg(feature = "validation")]
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    pub(super) fn accepts(&self, value: &Value) -> bool {
        self.kinds.contains(ValueKinds::of_value(value))
            && self.literals.as_ref().is_none_or(|values| values.contains(value))
            && self.all.iter().all(|fit| fit.accepts(value))
            && self.alternatives.iter().all(|fits| fits.iter().any(|fit| fit.accepts(value)))
            && match value {
                Value::Number(number) => self.accepts_number(number),
                Value::Array(items) => {
                    self.items.as_ref().is_none_or(|fit| items.iter().all(|item| fit.accepts(item)))
                }
                Value::Object(properties) => self.accepts_object(properties),
                _ => true,
            }
    }

    fn accepts_number(&self, number: &Number) -> bool {
        // NOTE: Rounding keeps the order, and the bounds are exact.
        number.as_f64().is_some_and(|number| (self.minimum..=self.maximum).contains(&number))
    }

    fn accepts_object(&self, properties: &Map<String, Value>) -> bool {
        self.required.iter().all(|name| properties.contains_key(name))
            && properties.iter().all(|(name, value)| {
                match self.properties.get(name).or(self.others.as_deref()) {
                    Some(fit) => fit.accepts(value),
                    None => true,
                }
            })
    }
}

/// A bound that is comparable as `f64`.
fn exact(bound: &Number) -> Option<f64> {
    bound.as_f64().filter(|bound| bound.abs() < MAX_EXACT)
}

/// The maximum number of alternatives that are compared with each other.
const MAX_ALTERNATIVES: usize = 16;

fn exclude_one_another(schemas: &[Value]) -> bool {
    let pairs = || {
        schemas
            .iter()
            .enumerate()
            .flat_map(|(at, first)| schemas[at + 1..].iter().map(move |second| (first, second)))
    };
    schemas.len() <= MAX_ALTERNATIVES && pairs().all(|(first, second)| exclude_each_other(first, second))
}

/// Whether provably no value fits both schemas.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::exclude_each_other;
///
/// assert!(exclude_each_other(&json!({"type": "integer"}), &json!({"enum": ["a", "b"]})));
/// assert!(!exclude_each_other(&json!({"type": "integer"}), &json!({"type": "number"})));
/// ```
pub fn exclude_each_other(first: &Value, second: &Value) -> bool {
    let (Value::Object(one), Value::Object(other)) = (first, second) else {
        return *first == Value::Bool(false) || *second == Value::Bool(false);
    };
    match literals(one).or(literals(other)) {
        Some(values) => !values.iter().any(|value| fits(first, value) && fits(second, value)),
        None => {
            !ValueKinds::of_type(one).meets(ValueKinds::of_type(other)) || are_disjoint_objects(one, other)
        }
    }
}

/// Whether both are objects that differ in a property.
fn are_disjoint_objects(first: &Map<String, Value>, second: &Map<String, Value>) -> bool {
    let are_objects =
        [first, second].into_iter().all(|fields| ValueKinds::of_type(fields) == ValueKinds::OBJECT);
    are_objects
        && (requires_conflicting_property(first, second) || requires_conflicting_property(second, first))
}

/// Whether `first` requires a property that `second` does not allow, or only with other values.
fn requires_conflicting_property(first: &Map<String, Value>, second: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = first.get("properties") else { return false };
    properties.iter().filter(|(name, _)| is_required(first, name)).any(|(name, schema)| {
        match second.get("properties").and_then(|known| known.get(name)) {
            Some(other) => is_required(second, name) && exclude_each_other(schema, other),
            None => second.get("additionalProperties") == Some(&Value::Bool(false)),
        }
    })
}
