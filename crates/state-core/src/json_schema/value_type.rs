//! Declared types: a JSON Schema, prepared so that a check costs in proportion to the new value.
//!
//! JSON Schema accepts `1.0` as an integer. Here it is rejected: a typed reader must be able to read a
//! declared integer, and 1 and 1.0 are different values elsewhere in a state.

use std::fmt;

use serde_json::{Map, Value, json};

use super::check::{DecodeCheck, SchemaOrigin, ValueChecker};
use super::keywords::has_only_rules;
use super::kinds::ValueKinds;
use super::references::{resolve, standalone};
use crate::depth;
use crate::faults::Issues;

/// An error of a JSON Schema: it is invalid, nested too deeply, or matches no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSchema(String);

/// A JSON Schema, prepared once so that checks are cheap: the declared type of a key, or the arguments of a
/// tool.
///
/// Integers are strict: `1.0` is rejected. With the feature `validation` the whole schema is checked,
/// otherwise only the kinds of values.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::json_schema::ValueType;
///
/// let numbers = ValueType::of_schema(json!({"type": "array", "items": {"type": "integer"}}))?;
/// assert!(numbers.check(&json!([1, 2])).is_ok());
/// assert_eq!(numbers.check(&json!("1")).unwrap_err().to_string(), "expected list, found string at $");
/// # Ok::<(), stepfold_state_core::json_schema::InvalidSchema>(())
/// ```
pub struct ValueType {
    schema: Value,
    shape: SchemaShape,
    /// Checks a whole value.
    whole: ValueChecker,
    /// For arrays: checks an array of new items, independent of the current ones.
    items: Option<ValueChecker>,
}

impl ValueType {
    /// Prepares `schema`. Values that fit it are then passed to `decode_check`, too.
    pub(crate) fn new(schema: Value, decode_check: Option<DecodeCheck>) -> Result<Self, String> {
        ValueType::of_origin(schema, decode_check, SchemaOrigin::Caller)
    }

    /// Prepares the schema of a type of this crate: it is compiled when the first value is checked.
    pub(crate) fn of_internal(schema: Value, decode_check: DecodeCheck) -> Result<Self, String> {
        ValueType::of_origin(schema, Some(decode_check), SchemaOrigin::Internal)
    }

    fn of_origin(
        schema: Value,
        decode_check: Option<DecodeCheck>,
        origin: SchemaOrigin,
    ) -> Result<Self, String> {
        if let Some(fault) = fault_of(&schema) {
            return Err(fault);
        }
        let shape = SchemaShape::of(&schema);
        if shape.kinds == ValueKinds::NONE {
            return Err("no value matches it".to_owned());
        }
        let whole = ValueChecker::new(&schema, shape.kinds, decode_check, origin)?;
        let items = match shape.item_schema(&schema) {
            Some(items) => Some(ValueChecker::new(&items, ValueKinds::ARRAY, decode_check, origin)?),
            None => None,
        };
        Ok(ValueType { schema, shape, whole, items })
    }

    /// Prepares a JSON Schema (draft 2020-12).
    ///
    /// # Errors
    /// [`InvalidSchema`].
    pub fn of_schema(schema: Value) -> Result<Self, InvalidSchema> {
        ValueType::new(schema, None).map_err(InvalidSchema)
    }

    /// A type that accepts every value.
    pub fn anything() -> Self {
        let schema = Value::Bool(true);
        let shape = SchemaShape::of(&schema);
        let whole = ValueChecker::of_kinds(shape.kinds);
        let items = Some(ValueChecker::of_kinds(ValueKinds::ARRAY));
        ValueType { schema, shape, whole, items }
    }

    /// The JSON Schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    pub(crate) fn kinds(&self) -> ValueKinds {
        self.shape.kinds
    }

    /// Whether the type is an array, or an array or null, that can grow.
    pub(crate) fn is_growable_list(&self) -> bool {
        self.shape.kinds.without(ValueKinds::NULL) == ValueKinds::ARRAY && !self.shape.is_fixed_length
    }

    /// Whether an array of this many items may be invalid although each item was checked: its length is not
    /// allowed, or the type has rules such as unique items.
    pub(crate) fn may_reject_list_of(&self, length: usize) -> bool {
        let (min, max) = self.shape.lengths;
        self.shape.has_list_rules || !u64::try_from(length).is_ok_and(|length| (min..=max).contains(&length))
    }

    /// Whether any array of this many valid items is valid.
    pub(crate) fn accepts_list_of(&self, length: usize) -> bool {
        self.items.is_some() && self.kinds().contains(ValueKinds::ARRAY) && !self.may_reject_list_of(length)
    }

    /// Whether checking the new fields of an object is enough to check the merged object.
    pub(crate) fn is_open_map(&self) -> bool {
        self.shape.is_open_map
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Each fault, with its JSON path.
    pub fn check(&self, value: &Value) -> Result<(), Issues> {
        self.whole.check(value)
    }

    /// Checks new items (an array) of an array of this type.
    pub(crate) fn check_items(&self, items: &Value) -> Result<(), Issues> {
        match &self.items {
            Some(checker) => checker.check(items),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ValueType").field(&self.schema).finish()
    }
}

/// A short description of the type: its title, or its kinds, with "list of" before the item type.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_description(f, &self.schema, self.shape.kinds)
    }
}

fn write_description(f: &mut fmt::Formatter<'_>, schema: &Value, kinds: ValueKinds) -> fmt::Result {
    let item = schema.get("items").filter(|_| kinds.without(ValueKinds::NULL) == ValueKinds::ARRAY);
    match (item, schema.get("title").and_then(Value::as_str)) {
        (Some(item), _) => {
            f.write_str("list of ")?;
            write_description(f, item, ValueKinds::of(item, item))?;
            if kinds.contains(ValueKinds::NULL) { f.write_str(" or null") } else { Ok(()) }
        }
        (None, Some(title)) => f.write_str(title),
        (None, None) => {
            match schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
                Some(name) if has_only_rules(schema, &["$ref"]) && name != "#" => f.write_str(name),
                _ => write!(f, "{kinds}"),
            }
        }
    }
}

/// Returns a fault that is detected without the JSON Schema library.
fn fault_of(schema: &Value) -> Option<String> {
    if depth::exceeds(schema, depth::MAX_DEPTH) {
        return Some(format!("nested deeper than {} levels", depth::MAX_DEPTH));
    }
    let Value::Object(fields) = schema else {
        return (!schema.is_boolean()).then(|| "expected an object or a boolean".to_owned());
    };
    match fields.get("type")? {
        Value::String(name) => fault_of_type_name(name),
        Value::Array(names) => {
            names.iter().find_map(|name| fault_of_type_name(name.as_str().unwrap_or_default()))
        }
        _ => Some("expected a name or a list of names for `type`".to_owned()),
    }
}

fn fault_of_type_name(name: &str) -> Option<String> {
    (ValueKinds::named(name) == ValueKinds::NONE).then(|| {
        format!("unknown type \"{name}\"; available: null, boolean, integer, number, string, array, object")
    })
}

/// Properties of a schema that are known without a value.
struct SchemaShape {
    kinds: ValueKinds,
    has_list_rules: bool,
    /// The minimum and maximum length of an array.
    lengths: (u64, u64),
    is_fixed_length: bool,
    is_open_map: bool,
}

impl SchemaShape {
    fn of(schema: &Value) -> Self {
        let array = array_branch(schema);
        let get = |name: &str| array.and_then(|array| array.get(name));
        let bound = |name: &str, default: u64| get(name).map_or(Some(default), Value::as_u64);
        let lengths = bound("minItems", 0).zip(bound("maxItems", u64::MAX));
        let rules = ["type", "items", "minItems", "maxItems"];
        SchemaShape {
            kinds: ValueKinds::of(schema, schema),
            // NOTE: Odd bounds, and rules that this module does not read, are left to a check of the whole
            // array.
            has_list_rules: lengths.is_none() || array.is_none_or(|array| !has_only_rules(array, &rules)),
            lengths: lengths.unwrap_or((0, u64::MAX)),
            // NOTE: A tuple or an array of fixed length cannot grow, so its default handler replaces it.
            is_fixed_length: get("prefixItems").is_some() || lengths.is_some_and(|(min, max)| min == max),
            is_open_map: has_only_rules(resolve(schema, schema), &["type", "additionalProperties"]),
        }
    }

    /// The schema of an array of new items, for types that can be arrays with items of one type.
    fn item_schema(&self, schema: &Value) -> Option<Value> {
        let array = array_branch(schema)?;
        if !self.kinds.contains(ValueKinds::ARRAY) || self.is_fixed_length {
            return None;
        }
        let mut items = Map::new();
        items.insert("type".to_owned(), json!("array"));
        if let Some(item) = array.get("items") {
            items.insert("items".to_owned(), item.clone());
        }
        Some(standalone(Value::Object(items), schema))
    }
}

/// The schema of arrays: the type itself, or its only alternative that can be an array. `None` in less simple
/// cases; then only the whole value can be checked.
pub(super) fn array_branch(root: &Value) -> Option<&Value> {
    let schema = resolve(root, root);
    let Some(keyword) = ["anyOf", "oneOf"].into_iter().find(|keyword| schema.get(keyword).is_some()) else {
        return Some(schema);
    };
    let kinds = |branch: &Value| ValueKinds::of(root, branch);
    let branches = schema.get(keyword)?.as_array()?;
    let mut arrays = branches.iter().filter(|branch| kinds(branch).meets(ValueKinds::ARRAY));
    let array = resolve(root, arrays.next()?);
    // NOTE: Rules next to the alternatives would apply to the array, too.
    (arrays.next().is_none() && has_only_rules(schema, &[keyword])).then_some(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, words: &str, is_list: bool) {
        let value_type = ValueType::of_schema(schema).unwrap();
        assert_eq!(value_type.to_string(), words);
        assert_eq!(value_type.is_growable_list(), is_list, "{words}");
    }

    #[test]
    fn reads_the_shape_off_a_schema() {
        check(json!(true), "any value", false);
        check(json!({"type": "integer"}), "integer", false);
        check(json!({"type": ["string", "null"]}), "string or null", false);
        check(json!({"type": "array"}), "list", true);
        check(
            json!({"type": ["array", "null"], "items": {"type": "string"}}),
            "list of string or null",
            true,
        );
        check(
            json!({"anyOf": [{"type": "array", "items": {"title": "Document"}}, {"type": "null"}]}),
            "list or null",
            true,
        );
        check(
            json!({"type": "array", "items": {"type": "object", "title": "Document"}}),
            "list of Document",
            true,
        );
        check(json!({"$ref": "#/$defs/list", "$defs": {"list": {"type": "array"}}}), "list", true);
        check(json!({"type": ["array", "string"]}), "string or list", false);
        check(json!({"enum": ["a", "b"]}), "string", false);
        check(json!({"type": "number"}), "number", false);
        check(json!({"type": "array", "prefixItems": [{}, {}]}), "list", false);
        check(
            json!({"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}),
            "list of number",
            false,
        );
    }

    #[test]
    fn knows_which_rules_need_the_whole_list() {
        let has_rules = |schema| ValueType::of_schema(schema).unwrap().may_reject_list_of(3);
        assert!(!has_rules(json!({"type": "array", "items": {"type": "string"}, "description": "d"})));
        assert!(has_rules(json!({"type": "array", "uniqueItems": true})));
        assert!(!has_rules(json!({"type": "array", "minItems": 1, "maxItems": 3})));
        assert!(has_rules(json!({"type": "array", "minItems": 4})));
        assert!(has_rules(json!({"anyOf": [{"type": "array", "maxItems": 2}, {"type": "null"}]})));
        assert!(has_rules(json!({"anyOf": [{"type": "array"}, {"type": "null"}], "maxItems": 9})));
        assert!(has_rules(json!({"$ref": "#/$defs/l", "maxItems": 3, "$defs": {"l": {"type": "array"}}})));
        // The items alone do not determine which alternative holds.
        assert!(has_rules(
            json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array"}]})
        ));
        assert!(!has_rules(json!({"$ref": "#/definitions/l", "definitions": {"l": {"type": "array"}}})));
    }

    #[test]
    fn refuses_what_is_no_schema() {
        let fault = |schema| ValueType::of_schema(schema).unwrap_err().to_string();
        assert_eq!(fault(json!(null)), "expected an object or a boolean");
        assert!(fault(json!({"type": "strnig"})).starts_with("unknown type \"strnig\"; available: null"));
        assert_eq!(fault(json!({"type": 5})), "expected a name or a list of names for `type`");
        assert_eq!(fault(json!(false)), "no value matches it");
        assert_eq!(fault(json!({"type": "string", "enum": [1]})), "no value matches it");
        let deep = (0..200).fold(json!({}), |schema, _| json!({"items": schema}));
        assert_eq!(fault(deep), "nested deeper than 100 levels");
    }

    #[test]
    fn a_type_that_refers_to_itself_alone_ends() {
        let looped = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(SchemaShape::of(&looped).kinds, ValueKinds::ALL);
        let branches = vec![json!({"$ref": "#/$defs/a"}); 20];
        let wide = json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": branches}}});
        assert_eq!(SchemaShape::of(&wide).kinds, ValueKinds::ALL);
    }
}
