//! JSON values, schemas and writes as no sane program would make them.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use stepfold_state_core::state::{Handler, Schema, State, StateError, Write};

use super::handlers;

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(vec!["", "a", "b", "id", "1", "null", "é", "e\u{301}", "\u{0}", "\u{2028}", "😀", "\"\\", "{a}"])
            .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn number() -> impl Strategy<Value = Value> {
    let hard = [
        json!(0),
        json!(0.0),
        json!(-0.0),
        json!(1),
        json!(1.0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(5e-324),
        json!(f64::MAX),
        json!(f64::MIN_POSITIVE),
        json!(0.1),
        json!(1e16),
        json!(9_007_199_254_740_993_u64),
        json!(9_007_199_254_740_992.0),
        json!(1.844_674_407_370_955_2e19),
    ];
    prop_oneof![
        3 => select(hard.to_vec()),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        2 => (-3..4_i64).prop_map(Value::from),
    ]
}

fn integer() -> impl Strategy<Value = Value> {
    prop_oneof![4 => (-3..4_i64).prop_map(Value::from), 1 => any::<i64>().prop_map(Value::from)]
}

/// Any JSON value, nested a few levels deep.
pub(super) fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        3 => number(),
        2 => text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![list(inner.clone()), map(inner).prop_map(Value::Object)]
    })
}

fn list(item: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::vec(item, 0..4).prop_map(Value::from)
}

fn map(item: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec((text(), item), 0..4).prop_map(|fields| fields.into_iter().collect())
}

/// Objects with few different ids, for `upsert_by(id)`.
fn task() -> impl Strategy<Value = Value> {
    (select(vec![json!(1), json!(1.0), json!("1"), json!(null)]), map(value())).prop_map(
        |(id, mut fields)| {
            fields.insert("id".to_owned(), id);
            Value::Object(fields)
        },
    )
}

/// A declared key: its JSON Schema, and the kind of value that mostly fits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Integer,
    Number,
    Text,
    Flag,
    Map,
    Counts,
    List,
    Texts,
    MaybeList,
    Tasks,
    Set,
    MaybeText,
    Anything,
}

const KINDS: [Kind; 13] = [
    Kind::Integer,
    Kind::Number,
    Kind::Text,
    Kind::Flag,
    Kind::Map,
    Kind::Counts,
    Kind::List,
    Kind::Texts,
    Kind::MaybeList,
    Kind::Tasks,
    Kind::Set,
    Kind::MaybeText,
    Kind::Anything,
];

impl Kind {
    fn schema(self) -> Value {
        match self {
            Kind::Integer => json!({"type": "integer"}),
            Kind::Number => json!({"type": "number"}),
            Kind::Text => json!({"type": "string"}),
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Map => json!({"type": "object"}),
            Kind::Counts => json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            Kind::List => json!({"type": "array"}),
            Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Kind::MaybeList => {
                json!({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]})
            }
            Kind::Tasks => json!({"type": "array", "items": {"type": "object", "required": ["id"]}}),
            Kind::Set => json!({"type": "array", "maxItems": 5}),
            Kind::MaybeText => json!({"type": ["string", "null"]}),
            Kind::Anything => json!(true),
        }
    }

    fn value(self) -> BoxedStrategy<Value> {
        let fitting = match self {
            Kind::Integer => integer().boxed(),
            Kind::Number => number().boxed(),
            Kind::Text | Kind::MaybeText => text().prop_map(Value::from).boxed(),
            Kind::Flag => any::<bool>().prop_map(Value::from).boxed(),
            Kind::Map => map(value()).prop_map(Value::Object).boxed(),
            Kind::Counts => map(integer()).prop_map(Value::Object).boxed(),
            Kind::List | Kind::Set => list(value()).boxed(),
            Kind::Texts => list(text().prop_map(Value::from)).boxed(),
            Kind::MaybeList => list(integer()).boxed(),
            Kind::Tasks => list(task()).boxed(),
            Kind::Anything => value().boxed(),
        };
        prop_oneof![5 => fitting, 1 => value(), 1 => task()].boxed()
    }
}

pub(super) const HANDLERS: [&str; 13] = [
    "replace_values",
    "merge_lists",
    "union",
    "upsert_by(id)",
    "keep_last(3)",
    "merge_maps",
    "sum",
    "max",
    "min",
    "first_wins",
    "concat_str",
    "always_fails",
    "gives_a_number",
];

fn handler() -> impl Strategy<Value = Handler> {
    select(HANDLERS.to_vec()).prop_map(|name| name.parse().unwrap())
}

/// What is done to one key.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Set(String, Value),
    SetWith(String, Value, Handler),
    Remove(String),
}

impl Operation {
    /// The checked write.
    pub(super) fn write(&self, schema: &Schema) -> Result<Write, StateError> {
        match self {
            Operation::Set(key, value) => schema.write(key, value.clone()),
            Operation::SetWith(key, value, handler) => schema.write_with(key, value.clone(), handler),
            Operation::Remove(key) => schema.removal(key),
        }
    }

    /// The same, at once.
    pub(super) fn perform(&self, state: &mut State) -> Result<(), StateError> {
        match self {
            Operation::Set(key, value) => state.set(key, value.clone()),
            Operation::SetWith(key, value, handler) => state.set_with(key, value.clone(), handler),
            Operation::Remove(key) => state.remove(key),
        }
    }
}

/// A schema over all kinds and handlers that go together, and operations on it.
pub(super) fn world(operations: std::ops::Range<usize>) -> impl Strategy<Value = (Schema, Vec<Operation>)> {
    let key = (select(KINDS.to_vec()), prop::option::of(handler()), any::<bool>());
    prop::collection::vec(key, 1..7).prop_flat_map(move |declared| {
        let schema = schema_of(&declared);
        let keys: Vec<(String, Kind)> =
            declared.iter().enumerate().map(|(index, (kind, _, _))| (name(index), *kind)).collect();
        (Just(schema), prop::collection::vec(operation(keys), operations.clone()))
    })
}

fn name(index: usize) -> String {
    format!("{}key{index}", ["", "user:", "app:", "temp:"][index % 4])
}

/// A handler that does not go with its type is left out; some keys have a default.
fn schema_of(declared: &[(Kind, Option<Handler>, bool)]) -> Schema {
    declared
        .iter()
        .enumerate()
        .fold(Schema::builder(), |builder, (index, (kind, handler, has_default))| {
            let mut key = Schema::builder().handlers(&handlers()).key_schema(name(index), kind.schema());
            let mut builder = builder.key_schema(name(index), kind.schema());
            if let Some(handler) = handler {
                key = key.handler(handler.clone());
                if key.build().is_ok() {
                    builder = builder.handler(handler.clone());
                }
            }
            if *has_default && *kind == Kind::List { builder.default(json!([1, "a"])) } else { builder }
        })
        .handlers(&handlers())
        .build()
        .unwrap()
}

fn operation(keys: Vec<(String, Kind)>) -> impl Strategy<Value = Operation> {
    select(keys).prop_flat_map(|(key, kind)| {
        let (set, set_with) = (key.clone(), key.clone());
        prop_oneof![
            8 => kind.value().prop_map(move |value| Operation::Set(set.clone(), value)),
            4 => (kind.value(), handler())
                .prop_map(move |(value, handler)| Operation::SetWith(set_with.clone(), value, handler)),
            1 => Just(Operation::Remove(key)),
        ]
    })
}
