//! Checks values against one schema, with or without a JSON Schema library.

#[cfg(feature = "validation")]
use std::sync::OnceLock;

use serde_json::Value;

#[cfg(feature = "validation")]
use super::fit::KnownRules;
use super::keywords::is_annotation;
use super::kinds::ValueKinds;
#[cfg(not(feature = "validation"))]
use super::value_type::array_branch;
#[cfg(feature = "validation")]
use crate::faults::NameList;
use crate::faults::{Issue, Issues};

/// The maximum number of collected faults of one value.
const MAX_FAULTS: usize = 32;

/// A check by the typed Rust reader, for keys declared with a Rust type.
pub(crate) type DecodeCheck = fn(&Value) -> Result<(), Issue>;

/// The origin of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaOrigin {
    /// A caller: it may be invalid.
    Caller,
    /// A type of this crate: it is valid.
    Internal,
}

/// Checks values against one schema: first their kind, then the schema's other rules, then whether the typed
/// reader can read them, if there is one: JSON Schema has no range of an `i64`.
pub(super) struct ValueChecker {
    kinds: ValueKinds,
    rules: Option<KeywordRules>,
    decode_check: Option<DecodeCheck>,
}

impl ValueChecker {
    pub(super) fn new(
        schema: &Value,
        kinds: ValueKinds,
        decode_check: Option<DecodeCheck>,
        origin: SchemaOrigin,
    ) -> Result<Self, String> {
        // NOTE: Most keys are declared by a plain type, which needs no compiled schema.
        if !has_rules_beyond_kinds(schema) {
            return Ok(ValueChecker::of_kinds(kinds));
        }
        Ok(ValueChecker { kinds, rules: Some(KeywordRules::new(schema, origin)?), decode_check })
    }

    pub(super) fn of_kinds(kinds: ValueKinds) -> Self {
        ValueChecker { kinds, rules: None, decode_check: None }
    }

    pub(super) fn check(&self, value: &Value) -> Result<(), Issues> {
        if !self.kinds.contains(ValueKinds::of_value(value)) {
            return Err(wrong_kind(self.kinds, value).into());
        }
        if let Some(rules) = &self.rules {
            rules.check(value)?;
        }
        match self.decode_check {
            Some(decode_check) => decode_check(value).map_err(Issues::from),
            None => Ok(()),
        }
    }
}

/// Without a JSON Schema library: the kinds of a list's items.
#[cfg(not(feature = "validation"))]
struct KeywordRules(ValueKinds);

#[cfg(not(feature = "validation"))]
impl KeywordRules {
    #[expect(clippy::unnecessary_wraps, reason = "the counterpart of a fallible function")]
    fn new(schema: &Value, _: SchemaOrigin) -> Result<Self, String> {
        let item = array_branch(schema).and_then(|array| array.get("items"));
        Ok(KeywordRules(item.map_or(ValueKinds::ALL, |item| ValueKinds::of(schema, item))))
    }

    fn check(&self, value: &Value) -> Result<(), Issues> {
        let faults: Issues = value
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, item)| !self.0.contains(ValueKinds::of_value(item)))
            .map(|(index, item)| Issue { path: format!("$[{index}]"), ..wrong_kind(self.0, item) })
            .take(MAX_FAULTS)
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// Whether a schema has rules beyond kinds.
fn has_rules_beyond_kinds(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(name, rule)| match name.as_str() {
            "type" => false,
            "items" | "additionalProperties" => {
                *rule != Value::Bool(true) && rule.as_object().is_none_or(|rule| !rule.is_empty())
            }
            name => !is_annotation(name),
        }),
        other => *other != Value::Bool(true),
    }
}

/// All rules of a schema.
#[cfg(feature = "validation")]
struct KeywordRules {
    schema: Value,
    /// Decides alone that a value fits, if it covers the whole schema: then the library, whose first use
    /// dominates the start of a small program, is only needed to describe faults.
    fit: Option<KnownRules>,
    validator: OnceLock<Option<jsonschema::Validator>>,
}

#[cfg(feature = "validation")]
impl KeywordRules {
    fn new(schema: &Value, origin: SchemaOrigin) -> Result<Self, String> {
        let fit = Some(KnownRules::of(schema)).filter(KnownRules::is_exact);
        let validator = match fit {
            // NOTE: Compiling the first schema, and the meta-schema for it, dominates the start of a small
            // program, so a schema of our own is compiled when a value does not fit it. A caller's may be
            // invalid, which must be an error now (docs/decisions/tools.md).
            None if origin == SchemaOrigin::Caller => OnceLock::from(Some(compile(schema)?)),
            _ => OnceLock::new(),
        };
        Ok(KeywordRules { schema: schema.clone(), fit, validator })
    }

    fn check(&self, value: &Value) -> Result<(), Issues> {
        if self.fit.as_ref().is_some_and(|fit| fit.accepts(value)) {
            return Ok(());
        }
        let Some(validator) = self.validator.get_or_init(|| compile(&self.schema).ok()) else {
            return Err(Issue::new("$", "value does not match the schema").into());
        };
        if validator.is_valid(value) {
            return Ok(());
        }
        let faults = validator.iter_errors(value).take(MAX_FAULTS);
        let message = |error: &jsonschema::ValidationError<'_>| match allowed_values(error) {
            Some(values) => format!("expected one of {values}"),
            // NOTE: `masked` keeps the value out of the message.
            None => error.masked().to_string(),
        };
        Err(faults.map(|error| Issue::new(json_path(error.instance_path()), message(&error))).collect())
    }
}

/// The values that a schema lists in place of the faulty one: by `enum`, by `const`, or by alternatives of both (the
/// schema of an enum whose variants have descriptions). `null` may be among them.
#[cfg(feature = "validation")]
fn allowed_values(error: &jsonschema::ValidationError<'_>) -> Option<NameList> {
    use jsonschema::error::ValidationErrorKind;

    fn collect(error: &jsonschema::ValidationError<'_>) -> Option<Vec<String>> {
        match error.kind() {
            ValidationErrorKind::Constant { expected_value } => Some(vec![expected_value.to_string()]),
            ValidationErrorKind::Enum { options } => {
                Some(options.as_array()?.iter().map(Value::to_string).collect())
            }
            ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
                let here =
                    |other: &&jsonschema::ValidationError<'_>| other.instance_path() == error.instance_path();
                let of_branch = |branch: &Vec<jsonschema::ValidationError<'_>>| {
                    branch.iter().filter(here).find_map(collect)
                };
                Some(context.iter().map(of_branch).collect::<Option<Vec<_>>>()?.concat())
            }
            // NOTE: The library keeps only the message of a custom keyword, so `StrictType` is recognised by its text.
            ValidationErrorKind::Custom { message, .. } if message.starts_with("expected null,") => {
                Some(vec!["null".to_owned()])
            }
            _ => None,
        }
    }

    let mut values = collect(error)?;
    values.dedup();
    Some(values.into_iter().collect())
}

#[cfg(feature = "validation")]
fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::options()
        // NOTE: JSON Schema accepts 1.0 as an integer, but a typed reader does not (docs/decisions/state.md).
        .with_keyword("type", |_, names, _| Ok(Box::new(StrictType(ValueKinds::of_type_keyword(names)))))
        .build(schema)
        .map_err(|error| error.to_string())
}

/// `/0/title` as `$[0].title`, the readable form.
#[cfg(feature = "validation")]
fn json_path(location: &jsonschema::paths::Location) -> String {
    use jsonschema::paths::LocationSegment;
    use std::fmt::Write as _;

    use crate::decode::push_field;

    let mut path = "$".to_owned();
    for segment in location {
        let _ = match segment {
            LocationSegment::Index(index) => write!(path, "[{index}]"),
            LocationSegment::Property(name) => push_field(&mut path, &name),
        };
    }
    path
}

/// The keyword `type`, by strict kinds: 1.0 is not an integer.
#[cfg(feature = "validation")]
struct StrictType(ValueKinds);

#[cfg(feature = "validation")]
impl<'i> jsonschema::Keyword<'i> for StrictType {
    fn validate(&self, value: &'i Value) -> Result<(), jsonschema::ValidationError<'i>> {
        if self.0.contains(ValueKinds::of_value(value)) {
            return Ok(());
        }
        Err(jsonschema::ValidationError::custom(wrong_kind(self.0, value).message))
    }

    fn is_valid(&self, value: &'i Value) -> bool {
        self.0.contains(ValueKinds::of_value(value))
    }
}

fn wrong_kind(expected: ValueKinds, found: &Value) -> Issue {
    Issue::new("$", format!("expected {expected}, found {}", ValueKinds::of_value(found)))
}

#[cfg(all(test, feature = "validation"))]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;
    use serde_json::json;

    use super::*;

    /// Values, some of which are schemas, names and bounds, valid and invalid.
    fn leaf() -> impl Strategy<Value = Value> {
        select(vec![
            json!(null),
            json!(true),
            json!(false),
            json!(0),
            json!(1),
            json!(1.0),
            json!(-2),
            json!(2.5),
            json!(9_007_199_254_740_993_u64),
            json!("a"),
            json!("b"),
            json!("integer"),
            json!([]),
            json!([1, "a"]),
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "b": "a"}),
        ])
    }

    fn schema() -> impl Strategy<Value = Value> {
        let kind = select(vec!["null", "boolean", "integer", "number", "string", "array", "object", "date"]);
        let types = prop_oneof![
            kind.clone().prop_map(Value::from),
            prop::collection::vec(kind, 0..3).prop_map(Value::from)
        ];
        let plain = prop_oneof![
            types.prop_map(|types| json!({"type": types})),
            prop::collection::vec(leaf(), 0..4).prop_map(|values| json!({"enum": values})),
            leaf().prop_map(|value| json!({"const": value})),
            (leaf(), leaf()).prop_map(|(least, most)| json!({"minimum": least, "maximum": most})),
            prop::collection::vec(leaf(), 0..3)
                .prop_map(|names| json!({"required": names, "type": "object"})),
            leaf().prop_map(|text| json!({"description": text})),
            leaf().prop_map(|rule| json!({"minLength": rule})),
            any::<bool>().prop_map(Value::from),
        ];
        plain.prop_recursive(3, 12, 3, |inner| {
            let some = prop::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
                (inner.clone(), inner.clone()).prop_map(|(a, others)| {
                    json!({"type": "object", "properties": {"a": a}, "additionalProperties": others})
                }),
                (select(vec!["anyOf", "oneOf", "allOf"]), some)
                    .prop_map(|(keyword, schemas)| json!({keyword: schemas})),
                (inner.clone(), inner).prop_map(|(first, second)| {
                    let fields = [first, second].into_iter().filter_map(|schema| schema.as_object().cloned());
                    Value::Object(fields.flatten().collect())
                }),
            ]
        })
    }

    proptest! {
        /// The library is skipped for values that fit an exact schema: it must agree about the schema and the
        /// value.
        #[test]
        fn what_fits_an_exact_schema_is_valid(schema in schema(), values in prop::collection::vec(leaf(), 12)) {
            let fit = KnownRules::of(&schema);
            if fit.is_exact() {
                let validator = compile(&schema);
                prop_assert!(validator.is_ok(), "{:?}", validator);
                for value in values.iter().filter(|value| fit.accepts(value)) {
                    prop_assert!(validator.as_ref().is_ok_and(|validator| validator.is_valid(value)), "{value}");
                }
            }
        }
    }
}
