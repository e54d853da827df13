//! Declared types: a JSON Schema, prepared so that a check costs what comes in costs.
//!
//! JSON Schema calls `1.0` an integer. Here it is none: a state that says integer must give back
//! what a typed reader can read as one, and 1 is not 1.0 anywhere else in a state either.

use std::fmt;

use serde_json::{Map, Value, json};

use super::error::{Fault, Faults};
use crate::depth;

/// At most this many faults of one value are collected.
const MAX_FAULTS: usize = 32;
/// How many `$ref`s in a row are followed when the shape of a type is read.
const MAX_REFS: usize = 16;
/// How many schemas are looked at to find the kinds of a type. Types that refer to themselves have no end.
const MAX_VISITS: usize = 256;

/// A JSON Schema, prepared once so that checking values against it is cheap: the declared type of a key,
/// or the arguments of a tool.
///
/// Integers are strict: `1.0` is none. With the feature `validation` the whole schema is checked, else the
/// kinds of values.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::state::ValueType;
///
/// let numbers = ValueType::of_schema(json!({"type": "array", "items": {"type": "integer"}}))?;
/// assert!(numbers.check(&json!([1, 2])).is_ok());
/// assert_eq!(numbers.check(&json!("1")).unwrap_err().to_string(), "at $: expected list, found string");
/// # Ok::<(), String>(())
/// ```
pub struct ValueType {
    schema: Value,
    shape: Shape,
    /// Checks a whole value.
    whole: Checker,
    /// For arrays: checks an array of new items, whatever is there already.
    items: Option<Checker>,
}

/// A check by the typed Rust reader, where a key was declared with one.
pub(crate) type DecodeCheck = fn(&Value) -> Result<(), Fault>;

impl ValueType {
    /// Prepares `schema`. What fits it is then shown to `decodes`, too.
    pub(crate) fn new(schema: Value, decodes: Option<DecodeCheck>) -> Result<Self, String> {
        if let Some(fault) = fault_of(&schema) {
            return Err(fault);
        }
        let shape = Shape::of(&schema);
        if shape.kinds == Kinds::NONE {
            return Err("no value fits it".to_owned());
        }
        let whole = Checker::new(&schema, shape.kinds, decodes)?;
        let items = match shape.item_schema(&schema) {
            Some(items) => Some(Checker::new(&items, Kinds::ARRAY, decodes)?),
            None => None,
        };
        Ok(ValueType { schema, shape, whole, items })
    }

    /// Prepares a JSON Schema (draft 2020-12).
    ///
    /// # Errors
    /// What is wrong with the schema.
    pub fn of_schema(schema: Value) -> Result<Self, String> {
        ValueType::new(schema, None)
    }

    /// A type that every value fits.
    pub fn anything() -> Self {
        let schema = Value::Bool(true);
        let shape = Shape::of(&schema);
        let whole = Checker::of_kinds(shape.kinds);
        let items = Some(Checker::of_kinds(Kinds::ARRAY));
        ValueType { schema, shape, whole, items }
    }

    /// The JSON Schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    pub(crate) fn kinds(&self) -> Kinds {
        self.shape.kinds
    }

    /// Whether the type is an array, or an array or null, that items can be added to.
    pub(crate) fn is_growing_list(&self) -> bool {
        self.shape.kinds.without(Kinds::NULL) == Kinds::ARRAY && !self.shape.is_fixed_length
    }

    /// Whether an array of so many items, each of which was checked, may still not fit as a whole: it has
    /// another length than is allowed, or the type has rules such as unique items.
    pub(crate) fn doubts_list_of(&self, length: usize) -> bool {
        let (min, max) = self.shape.lengths;
        self.shape.has_list_rules || !u64::try_from(length).is_ok_and(|length| (min..=max).contains(&length))
    }

    /// Whether any array of so many items fits, as long as each item does.
    pub(crate) fn takes_list_of(&self, length: usize) -> bool {
        self.items.is_some() && self.kinds().contains(Kinds::ARRAY) && !self.doubts_list_of(length)
    }

    /// Whether a part of an object, checked by itself, tells all about the whole object.
    pub(crate) fn is_open_map(&self) -> bool {
        self.shape.is_open_map
    }

    /// Checks a value.
    ///
    /// # Errors
    /// Each place where it does not fit, with its JSON path.
    pub fn check(&self, value: &Value) -> Result<(), Faults> {
        self.whole.check(value)
    }

    /// Checks new items (an array) for an array of this type.
    pub(crate) fn check_items(&self, items: &Value) -> Result<(), Faults> {
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

/// The type in a few words: its title, or its kinds, with "list of" before that of its items.
impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_words(f, &self.schema, self.shape.kinds)
    }
}

fn write_words(f: &mut fmt::Formatter<'_>, schema: &Value, kinds: Kinds) -> fmt::Result {
    let item = schema.get("items").filter(|_| kinds.without(Kinds::NULL) == Kinds::ARRAY);
    match (item, schema.get("title").and_then(Value::as_str)) {
        (Some(item), _) => {
            f.write_str("list of ")?;
            write_words(f, item, Kinds::of(item, item, &mut { MAX_VISITS }))?;
            if kinds.contains(Kinds::NULL) { f.write_str(" or null") } else { Ok(()) }
        }
        (None, Some(title)) => f.write_str(title),
        (None, None) => {
            match schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
                Some(name) if says_only(schema, &["$ref"]) && name != "#" => f.write_str(name),
                _ => write!(f, "{kinds}"),
            }
        }
    }
}

/// What is wrong with a schema before any library has looked at it.
fn fault_of(schema: &Value) -> Option<String> {
    if depth::exceeds(schema, depth::MAX_DEPTH) {
        return Some(format!("it nests deeper than {} levels", depth::MAX_DEPTH));
    }
    let Value::Object(fields) = schema else {
        return (!schema.is_boolean()).then(|| "it is neither an object nor a boolean".to_owned());
    };
    match fields.get("type")? {
        Value::String(name) => fault_of_type_name(name),
        Value::Array(names) => {
            names.iter().find_map(|name| fault_of_type_name(name.as_str().unwrap_or_default()))
        }
        _ => Some("its `type` is neither a name nor a list of names".to_owned()),
    }
}

fn fault_of_type_name(name: &str) -> Option<String> {
    (Kinds::named(name) == Kinds::NONE).then(|| {
        format!("\"{name}\" is no type; the types are null, boolean, integer, number, string, array, object")
    })
}

/// What can be read off a schema without looking at a value.
struct Shape {
    kinds: Kinds,
    has_list_rules: bool,
    /// The least and the greatest length of an array.
    lengths: (u64, u64),
    is_fixed_length: bool,
    is_open_map: bool,
}

impl Shape {
    fn of(schema: &Value) -> Self {
        let array = array_branch(schema);
        let get = |name: &str| array.and_then(|array| array.get(name));
        let bound = |name: &str, default: u64| get(name).map_or(Some(default), Value::as_u64);
        let lengths = bound("minItems", 0).zip(bound("maxItems", u64::MAX));
        let rules = ["type", "items", "minItems", "maxItems"];
        Shape {
            kinds: Kinds::of(schema, schema, &mut { MAX_VISITS }),
            has_list_rules: lengths.is_none() || array.is_none_or(|array| !says_only(array, &rules)),
            lengths: lengths.unwrap_or((0, u64::MAX)),
            is_fixed_length: get("prefixItems").is_some() || lengths.is_some_and(|(min, max)| min == max),
            is_open_map: says_only(resolve(schema, schema), &["type", "additionalProperties"]),
        }
    }

    /// The schema of an array of new items, for types that can be arrays and whose items are all alike.
    fn item_schema(&self, schema: &Value) -> Option<Value> {
        let array = array_branch(schema)?;
        if !self.kinds.contains(Kinds::ARRAY) || self.is_fixed_length {
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

/// A part of a schema as a schema of its own: its references into the whole lead to a copy of that.
pub(crate) fn standalone(mut part: Value, whole: &Value) -> Value {
    if redirect(&mut part) {
        let mut copy = whole.clone();
        redirect(&mut copy);
        if let Some(fields) = part.as_object_mut() {
            fields.insert("$defs".to_owned(), json!({ "whole": copy }));
        }
    }
    part
}

/// Leads all references to the root to `$defs/whole`. Whether there are any.
fn redirect(schema: &mut Value) -> bool {
    let mut found = false;
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                found |= match (name.as_str(), value) {
                    ("$ref", Value::String(target)) if target == "#" || target.starts_with("#/") => {
                        target.insert_str(1, "/$defs/whole");
                        true
                    }
                    // These hold values, not schemas.
                    ("default" | "const" | "enum" | "examples", _) => false,
                    // The names in these are the user's: one may be called `default`.
                    ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                        named.values_mut().fold(false, |found, schema| redirect(schema) | found)
                    }
                    (_, value) => redirect(value),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| found |= redirect(item)),
        _ => {}
    }
    found
}

/// Keywords that say something to people, not to a check.
const ANNOTATIONS: [&str; 11] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$defs",
    "definitions",
    "$comment",
];

fn is_annotation(name: &str) -> bool {
    ANNOTATIONS.contains(&name) || name.starts_with("x-")
}

/// Whether a schema has no other rules than these.
fn says_only(schema: &Value, rules: &[&str]) -> bool {
    schema
        .as_object()
        .is_none_or(|fields| fields.keys().all(|name| rules.contains(&name.as_str()) || is_annotation(name)))
}

/// Follows local references as long as nothing but a reference stands there.
fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..MAX_REFS {
        match referred(root, schema) {
            Some(found) if says_only(schema, &["$ref"]) => schema = found,
            _ => break,
        }
    }
    schema
}

/// What a local reference refers to.
fn referred<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// The schema of arrays: the type itself, or its only alternative that can be an array. None where
/// that is not so plain; then only a check of the whole value tells.
fn array_branch(root: &Value) -> Option<&Value> {
    let schema = resolve(root, root);
    let Some(keyword) = ["anyOf", "oneOf"].into_iter().find(|keyword| schema.get(keyword).is_some()) else {
        return Some(schema);
    };
    let kinds = |branch: &Value| Kinds::of(root, branch, &mut { MAX_VISITS });
    let branches = schema.get(keyword)?.as_array()?;
    let mut arrays = branches.iter().filter(|branch| kinds(branch).meets(Kinds::ARRAY));
    let array = resolve(root, arrays.next()?);
    (arrays.next().is_none() && says_only(schema, &[keyword])).then_some(array)
}

/// A set of JSON kinds. Integers and other numbers are two kinds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NULL: Kinds = Kinds(1);
    pub(crate) const BOOLEAN: Kinds = Kinds(2);
    pub(crate) const INTEGER: Kinds = Kinds(4);
    pub(crate) const FLOAT: Kinds = Kinds(8);
    pub(crate) const NUMBER: Kinds = Kinds(4 | 8);
    pub(crate) const STRING: Kinds = Kinds(16);
    pub(crate) const ARRAY: Kinds = Kinds(32);
    pub(crate) const OBJECT: Kinds = Kinds(64);
    const NONE: Kinds = Kinds(0);
    pub(crate) const ALL: Kinds = Kinds(127);

    pub(crate) fn contains(self, other: Kinds) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn without(self, other: Kinds) -> Kinds {
        Kinds(self.0 & !other.0)
    }

    pub(crate) const fn union(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub(crate) fn of_value(value: &Value) -> Kinds {
        match value {
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOLEAN,
            Value::Number(number) if number.is_f64() => Kinds::FLOAT,
            Value::Number(_) => Kinds::INTEGER,
            Value::String(_) => Kinds::STRING,
            Value::Array(_) => Kinds::ARRAY,
            Value::Object(_) => Kinds::OBJECT,
        }
    }

    fn named(name: &str) -> Kinds {
        match name {
            "null" => Kinds::NULL,
            "boolean" => Kinds::BOOLEAN,
            "integer" => Kinds::INTEGER,
            "number" => Kinds::NUMBER,
            "string" => Kinds::STRING,
            "array" => Kinds::ARRAY,
            "object" => Kinds::OBJECT,
            _ => Kinds::NONE,
        }
    }

    /// The kinds that the value of a `type` keyword allows.
    pub(crate) fn of_type_keyword(names: &Value) -> Kinds {
        match names {
            Value::String(name) => Kinds::named(name),
            Value::Array(names) => union_of(names.iter().filter_map(Value::as_str).map(Kinds::named)),
            _ => Kinds::ALL,
        }
    }

    /// The kinds that a value of this schema can have; all, once `visits` are used up.
    fn of(root: &Value, schema: &Value, visits: &mut usize) -> Kinds {
        let fields = match schema {
            Value::Bool(false) => return Kinds::NONE,
            Value::Object(fields) if *visits > 0 => fields,
            _ => return Kinds::ALL,
        };
        *visits -= 1;
        let mut kinds = fields.get("type").map_or(Kinds::ALL, Kinds::of_type_keyword);
        let mut narrow = |other: Kinds| kinds = Kinds(kinds.0 & other.0);
        if let Some(target) = referred(root, schema) {
            narrow(Kinds::of(root, target, visits));
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            narrow(union_of(values.iter().map(Kinds::of_value)));
        }
        if let Some(value) = fields.get("const") {
            narrow(Kinds::of_value(value));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = fields.get(keyword) {
                narrow(union_of(branches.iter().map(|branch| Kinds::of(root, branch, visits))));
            }
        }
        if let Some(Value::Array(branches)) = fields.get("allOf") {
            for branch in branches {
                narrow(Kinds::of(root, branch, visits));
            }
        }
        kinds
    }
}

fn union_of(kinds: impl Iterator<Item = Kinds>) -> Kinds {
    kinds.fold(Kinds::NONE, Kinds::union)
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Kinds::BOOLEAN, "boolean"),
            (if self.contains(Kinds::NUMBER) { Kinds::NUMBER } else { Kinds::INTEGER }, "integer"),
            (Kinds::STRING, "string"),
            (Kinds::ARRAY, "list"),
            (Kinds::OBJECT, "object"),
            (Kinds::NULL, "null"),
        ];
        if *self == Kinds::ALL {
            return f.write_str("any value");
        }
        let mut separator = "";
        for (kind, name) in names {
            if self.contains(kind) {
                let name = if kind == Kinds::NUMBER { "number" } else { name };
                write!(f, "{separator}{name}")?;
                separator = " or ";
            } else if name == "integer" && self.contains(Kinds::FLOAT) {
                write!(f, "{separator}fractional number")?;
                separator = " or ";
            }
        }
        if separator.is_empty() { f.write_str("no value") } else { Ok(()) }
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kinds({self})")
    }
}

fn wrong_kind(expected: Kinds, found: &Value) -> Fault {
    Fault::new("$", format!("expected {expected}, found {}", Kinds::of_value(found)))
}

/// Checks values against one schema: first their kind, then whatever else the schema says, then whether the
/// typed reader can read them, where there is one: JSON Schema does not know the range of an `i64`.
struct Checker {
    kinds: Kinds,
    rules: Option<Rules>,
    decodes: Option<DecodeCheck>,
}

#[cfg(feature = "validation")]
type Rules = jsonschema::Validator;
/// Without a JSON Schema library: the kinds of the items of a list.
#[cfg(not(feature = "validation"))]
type Rules = Kinds;

impl Checker {
    fn new(schema: &Value, kinds: Kinds, decodes: Option<DecodeCheck>) -> Result<Self, String> {
        if !says_more_than_kinds(schema) {
            return Ok(Checker::of_kinds(kinds));
        }
        Ok(Checker { kinds, rules: Some(compile(schema)?), decodes })
    }

    fn of_kinds(kinds: Kinds) -> Self {
        Checker { kinds, rules: None, decodes: None }
    }

    fn check(&self, value: &Value) -> Result<(), Faults> {
        if !self.kinds.contains(Kinds::of_value(value)) {
            return Err(wrong_kind(self.kinds, value).into());
        }
        if let Some(rules) = &self.rules {
            check_rules(rules, value)?;
        }
        match self.decodes {
            Some(decodes) => decodes(value).map_err(Faults::from),
            None => Ok(()),
        }
    }
}

#[cfg(not(feature = "validation"))]
#[expect(clippy::unnecessary_wraps, reason = "the twin of a function that can fail")]
fn compile(schema: &Value) -> Result<Rules, String> {
    let item = array_branch(schema).and_then(|array| array.get("items"));
    Ok(item.map_or(Kinds::ALL, |item| Kinds::of(schema, item, &mut { MAX_VISITS })))
}

#[cfg(not(feature = "validation"))]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the twin of a function that takes a validator")]
fn check_rules(items: &Kinds, value: &Value) -> Result<(), Faults> {
    let faults: Faults = value
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, item)| !items.contains(Kinds::of_value(item)))
        .map(|(index, item)| Fault { path: format!("$[{index}]"), ..wrong_kind(*items, item) })
        .take(MAX_FAULTS)
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Whether a schema has any rule that the kind check leaves open.
fn says_more_than_kinds(schema: &Value) -> bool {
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

#[cfg(feature = "validation")]
fn compile(schema: &Value) -> Result<Rules, String> {
    jsonschema::options()
        .with_keyword("type", |_, names, _| Ok(Box::new(StrictType(Kinds::of_type_keyword(names)))))
        .build(schema)
        .map_err(|error| error.to_string())
}

#[cfg(feature = "validation")]
fn check_rules(rules: &jsonschema::Validator, value: &Value) -> Result<(), Faults> {
    if rules.is_valid(value) {
        return Ok(());
    }
    let faults = rules.iter_errors(value).take(MAX_FAULTS);
    Err(faults
        .map(|error| Fault::new(json_path(error.instance_path()), error.masked().to_string()))
        .collect())
}

/// `/0/title` as `$[0].title`, the form that people and models read with ease.
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

/// The keyword `type`, by our kinds: 1.0 is no integer.
#[cfg(feature = "validation")]
struct StrictType(Kinds);

#[cfg(feature = "validation")]
impl<'i> jsonschema::Keyword<'i> for StrictType {
    fn validate(&self, value: &'i Value) -> Result<(), jsonschema::ValidationError<'i>> {
        if self.0.contains(Kinds::of_value(value)) {
            return Ok(());
        }
        Err(jsonschema::ValidationError::custom(wrong_kind(self.0, value).message))
    }

    fn is_valid(&self, value: &'i Value) -> bool {
        self.0.contains(Kinds::of_value(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, words: &str, is_list: bool) {
        let value_type = ValueType::new(schema, None).unwrap();
        assert_eq!(value_type.to_string(), words);
        assert_eq!(value_type.is_growing_list(), is_list, "{words}");
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
        let has_rules = |schema| ValueType::new(schema, None).unwrap().doubts_list_of(3);
        assert!(!has_rules(json!({"type": "array", "items": {"type": "string"}, "description": "d"})));
        assert!(has_rules(json!({"type": "array", "uniqueItems": true})));
        assert!(!has_rules(json!({"type": "array", "minItems": 1, "maxItems": 3})));
        assert!(has_rules(json!({"type": "array", "minItems": 4})));
        assert!(has_rules(json!({"anyOf": [{"type": "array", "maxItems": 2}, {"type": "null"}]})));
        assert!(has_rules(json!({"anyOf": [{"type": "array"}, {"type": "null"}], "maxItems": 9})));
        assert!(has_rules(json!({"$ref": "#/$defs/l", "maxItems": 3, "$defs": {"l": {"type": "array"}}})));
        // Which of two alternatives holds, the items alone do not tell.
        assert!(has_rules(
            json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array"}]})
        ));
        assert!(!has_rules(json!({"$ref": "#/definitions/l", "definitions": {"l": {"type": "array"}}})));
    }

    #[test]
    fn refuses_what_is_no_schema() {
        let fault = |schema| ValueType::new(schema, None).unwrap_err();
        assert_eq!(fault(json!(null)), "it is neither an object nor a boolean");
        assert!(fault(json!({"type": "strnig"})).starts_with("\"strnig\" is no type; the types are null"));
        assert_eq!(fault(json!({"type": 5})), "its `type` is neither a name nor a list of names");
        assert_eq!(fault(json!(false)), "no value fits it");
        assert_eq!(fault(json!({"type": "string", "enum": [1]})), "no value fits it");
        let deep = (0..200).fold(json!({}), |schema, _| json!({"items": schema}));
        assert_eq!(fault(deep), "it nests deeper than 100 levels");
    }

    #[test]
    fn a_type_that_refers_to_itself_alone_ends() {
        let looped = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(Shape::of(&looped).kinds, Kinds::ALL);
        let branches = vec![json!({"$ref": "#/$defs/a"}); 20];
        let wide = json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": branches}}});
        assert_eq!(Shape::of(&wide).kinds, Kinds::ALL);
    }
}
