//! Schemas: how they are declared, what they refuse, and that all faults are told at once.

use expect_test::{Expect, expect};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, Handlers, Key, KeySchema, Schema, SchemaBuilder, State};

use super::report;

/// Each key with its handler, default and description; or why there is no schema.
fn check(builder: SchemaBuilder, expected: Expect) {
    let text = match builder.build() {
        Ok(schema) => table(&schema),
        Err(error) => report(&error),
    };
    expected.assert_eq(&text);
}

pub(super) fn table(schema: &Schema) -> String {
    let mut lines = String::new();
    for key in schema.keys() {
        lines += &format!("{}: {}", key.name(), key.handler());
        if let Some(default) = key.default() {
            lines += &format!(", default {default}");
        }
        if let Some(description) = key.description() {
            lines += &format!(" - {description}");
        }
        lines.push('\n');
    }
    lines
}

#[test]
fn all_faults_at_once() {
    check(
        Schema::builder()
            .description("of nothing")
            .key::<String>("usr:a")
            .key::<String>("steps")
            .key::<String>("twice")
            .key::<i64>("twice")
            .key::<String>("text")
            .handler(Handler::sum())
            .key_schema("typo", json!("strnig"))
            .key_schema("never", json!(false))
            .key_schema("shape", json!({"type": {"a": 1}}))
            .key::<u8>("small")
            .default(-1)
            .key::<String>("")
            .fields::<i64>(),
        // Which faults print is bounded; all are there.
        expect![[r#"
            invalid schema: description: must follow the declaration of a key; i64: expected a struct with named fields; usr:a: unknown prefix before ':'; available: app:, user:, temp:; steps: the name is reserved for the outcome of a run; twice: duplicate key; text: invalid handler sum: requires number, found string; typo: invalid JSON Schema: unknown type "strnig"; available: null, boolean, integer, number, string, array, object; never: invalid JSON Schema: no value matches it; and 3 more"#]],
    );
}

#[test]
fn of_a_struct() {
    #[derive(JsonSchema, Deserialize)]
    #[expect(dead_code, reason = "only its shape is read")]
    struct Research {
        /// The question.
        query: String,
        #[serde(rename = "user:name", default)]
        name: Option<String>,
        #[schemars(extend("x-handler" = "sum"))]
        #[serde(default)]
        visits: u64,
        #[serde(default)]
        notes: Vec<Note>,
        parent: Option<Box<Note>>,
        position: (f64, f64),
    }
    // schemars takes over a default only from a type that can be written.
    #[derive(JsonSchema, Serialize, Deserialize)]
    struct Note {
        text: String,
        replies: Vec<Note>,
    }
    // Fields are in their order only with the feature `preserve_order`.
    let schema = Schema::builder().fields::<Research>().key::<bool>("auto").build().unwrap();
    let table = table(&schema);
    let mut lines: Vec<&str> = table.lines().collect();
    lines.sort_unstable();
    expect![[r#"
        auto: replace_values
        messages: merge_lists - The conversation.
        notes: merge_lists, default []
        parent: replace_values
        position: replace_values
        query: replace_values - The question.
        user:name: replace_values, default null
        visits: sum, default 0"#]]
    .assert_eq(&lines.join("\n"));
    let mut state = stepfold_state_core::state::State::new(&schema);
    state.set("notes", json!({"text": "a", "replies": [{"text": "b", "replies": []}]})).unwrap();
    let wrong = state.set("notes", json!([{"text": "a", "replies": [{"text": 1, "replies": []}]}]));
    if cfg!(feature = "validation") {
        expect![[r#"invalid value for key "notes": expected string, found integer at $[0].replies[0].text"#]]
            .assert_eq(&report(&wrong.unwrap_err()));
    }
}

#[test]
fn of_a_struct_with_faults() {
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its shape is read")]
    struct Odd {
        #[schemars(extend("x-handler" = 5))]
        number: u64,
        #[schemars(extend("x-handler" = "keep last"))]
        spaces: Vec<u64>,
        #[schemars(extend("x-handler" = "merge_maps"))]
        list: Vec<u64>,
    }
    check(
        Schema::builder().fields::<Odd>(),
        expect![[
            r#"invalid schema: number: expected a handler's name, a string, for x-handler; spaces: unknown handler "keep last"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins; list: invalid handler merge_maps: requires object, found list of integer"#
        ]],
    );
}

#[test]
fn order_of_declaration_is_kept() {
    let names = ["b", "a", "ü", "user:c", "0"];
    let mut builder = Schema::builder();
    for name in names {
        builder = builder.key_schema(name, json!(["string", "null"]));
    }
    let schema = builder.build().unwrap();
    let json = serde_json::to_string(&schema).unwrap();
    let read = Schema::from_json(&json, &super::handlers()).unwrap();
    assert_eq!(read.declared_keys().map(KeySchema::name).collect::<Vec<_>>(), names);
    assert_eq!(read.keys().last().map(KeySchema::name), Some("messages"));
    assert_eq!(read, schema);
}

#[test]
#[cfg(feature = "validation")]
fn a_type_that_no_library_understands() {
    check(
        Schema::builder().key_schema("a", json!({"type": "string", "pattern": "("})),
        expect![[r#"invalid schema: a: invalid JSON Schema: "(" is not a "regex""#]],
    );
    check(
        Schema::builder().key_schema("a", json!({"type": "array", "items": {"$ref": "#/$defs/none"}})),
        expect!["invalid schema: a: invalid JSON Schema: Pointer '/$defs/none' does not exist"],
    );
    check(
        Schema::builder().key_schema("a", json!({"type": "array", "items": {"type": "strnig"}})),
        expect![[
            r#"invalid schema: a: invalid JSON Schema: "strnig" is not valid under any of the schemas listed in the 'anyOf' keyword"#
        ]],
    );
}

#[test]
fn alternatives_that_are_lists() {
    let either = json!({"anyOf": [
        {"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}},
    ]});
    let result: Value = json!({"a": {"type": either}});
    let last = if cfg!(feature = "validation") {
        "a = [\"x\"] ! invalid value for key \"a\": value is not valid under any of the \
         schemas listed in the 'anyOf' keyword at $\na: [1,2]\n"
    } else {
        "a: [1,2,\"x\"]\n"
    };
    assert_eq!(super::run(&result, "a = [1]\na = [2]\na = [\"x\"]"), last);
}

/// What refers to itself is checked at every depth, also where only new items are.
#[test]
fn types_that_refer_to_themselves() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Node {
        name: String,
        children: Vec<Node>,
    }

    let mut state = State::new(&Schema::of::<Node>().unwrap());
    state.set("children", json!([{"name": "a", "children": [{"name": "b", "children": []}]}])).unwrap();
    assert_eq!(state.get("children").unwrap().len(), Some(1));
    if cfg!(feature = "validation") {
        let broken = json!([{"name": "a", "children": [{"name": 1, "children": []}]}]);
        let error = state.set("children", broken).unwrap_err();
        expect![[
            r#"invalid value for key "children": expected string, found integer at $[0].children[0].name"#
        ]]
        .assert_eq(&error.to_string());
    }
}

/// A field may be called as a keyword of JSON Schema is.
#[test]
fn types_that_refer_to_themselves_by_a_field_named_like_a_keyword() {
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Branch {
        #[serde(rename = "default")]
        otherwise: Option<Box<Branch>>,
        children: Vec<Branch>,
    }

    let mut state = State::new(&Schema::of::<Branch>().unwrap());
    let leaf = json!({"default": null, "children": []});
    state.set("children", json!([{"default": leaf, "children": [leaf]}])).unwrap();
    state.set("default", json!({"default": leaf, "children": [leaf]})).unwrap();
    if cfg!(feature = "validation") {
        assert!(state.set("children", json!([{"default": {"children": 1}, "children": []}])).is_err());
    }
}

#[test]
fn references_to_the_root_lead_there_for_new_items_too() {
    let tree = json!({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]});
    let mut state = State::new(&Schema::builder().key_schema("tree", tree).build().unwrap());
    state.set("tree", json!([null, [null, []]])).unwrap();
    assert_eq!(state.get("tree").unwrap(), json!([null, [null, []]]));
    if cfg!(feature = "validation") {
        assert!(state.set("tree", json!([[1]])).is_err());
    }
}

/// JSON Schema does not know the range of an `i64` or the form of an address; the typed reader does.
#[test]
fn what_is_accepted_can_be_read_as_its_type() {
    const BIG: Key<i64> = Key::new("big");
    const ADDRESS: Key<std::net::Ipv4Addr> = Key::new("address");
    const NUMBERS: Key<Vec<i64>> = Key::new("numbers");
    const TOTAL: Key<i32> = Key::new("total");

    let schema = Schema::builder().key(BIG).key(ADDRESS).key(NUMBERS).key(TOTAL).handler(Handler::sum());
    let mut state = State::new(&schema.build().unwrap());
    assert!(state.set("big", u64::MAX).is_err());
    assert!(state.set("address", "nope").is_err());
    assert!(state.set("numbers", json!([1, u64::MAX])).is_err());
    state.set(TOTAL, i32::MAX).unwrap();
    assert!(state.set(TOTAL, 1).is_err());
    assert_eq!(state.get(TOTAL).unwrap(), Some(i32::MAX));
    assert!(!state.has("big") && !state.has("address") && !state.has("numbers"));
}

#[test]
fn only_functions_can_be_registered() {
    for handler in ["join".parse().unwrap(), Handler::sum()] {
        assert!(Handlers::new().with(handler).is_err());
    }
}
