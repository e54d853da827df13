//! What schemars makes of Rust types, what providers get of it, and that nothing is lost in between.

#![expect(dead_code, reason = "of the types here only the schemas are looked at")]

use std::collections::{BTreeMap, HashMap};

use expect_test::{Expect, expect};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::*;
use stepfold_state_core::json_schema::json_schema_of;

fn closed(schema: Value) -> Result<Map<String, Value>, String> {
    for_model(schema, UnlistedProperties::Rejected)
}

/// The plain form of a type's properties, one property a line.
#[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
fn check<T: JsonSchema>(expected: Expect) {
    expected.assert_eq(&forms_of(json_schema_of::<T>()));
}

#[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
fn check_raw(schema: Value, expected: Expect) {
    expected.assert_eq(&forms_of(schema));
}

fn forms_of(schema: Value) -> String {
    let plain = match closed(schema) {
        Ok(plain) => Value::Object(plain),
        Err(error) => return format!("refused: {error}\n"),
    };
    lines("plain", &plain)
}

fn lines(form: &str, schema: &Value) -> String {
    let mut rest = schema.clone();
    let properties = rest["properties"].take();
    rest.as_object_mut().unwrap().remove("properties");
    let mut text = format!("{form}: {}\n", sorted(&rest));
    let properties: BTreeMap<&String, &Value> = properties.as_object().unwrap().iter().collect();
    text.extend(properties.iter().map(|(name, property)| format!("  {name}: {}\n", sorted(property))));
    text
}

/// With keywords and names in one order, whatever features the build has.
fn sorted(value: &Value) -> String {
    fn sort(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut names: Vec<_> = fields.keys().collect();
                names.sort();
                let sorted = |name: &String| match &fields[name] {
                    Value::Array(required) if name == "required" => {
                        let mut required = required.clone();
                        required.sort_by_key(Value::to_string);
                        Value::Array(required)
                    }
                    value => sort(value),
                };
                names.into_iter().map(|name| (name.clone(), sorted(name))).collect()
            }
            Value::Array(items) => items.iter().map(sort).collect(),
            other => other.clone(),
        }
    }
    sort(value).to_string()
}

#[derive(Deserialize, JsonSchema)]
enum Unit {
    Low,
    High,
}

#[derive(Deserialize, JsonSchema)]
enum Documented {
    /// The first.
    First,
    Second,
    Third,
}

#[derive(Deserialize, JsonSchema)]
#[serde(tag = "kind")]
enum Tagged {
    Circle { radius: f64, colour: Option<String> },
    Point,
}

#[derive(Deserialize, JsonSchema)]
enum External {
    Id(u32),
    Named { name: String },
    Nothing,
}

/// A place.
#[derive(Deserialize, JsonSchema)]
struct Place {
    /// Degrees north.
    latitude: f64,
    #[serde(default)]
    height: i32,
}

#[test]
fn enums() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        unit: Unit,
        maybe_unit: Option<Unit>,
        documented: Documented,
        maybe_documented: Option<Documented>,
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"required":["documented","unit"],"type":"object"}
          documented: {"oneOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]}
          maybe_documented: {"anyOf":[{"oneOf":[{"enum":["Second","Third"],"type":"string"},{"const":"First","description":"The first.","type":"string"}]},{"type":"null"}]}
          maybe_unit: {"enum":["Low","High",null],"type":["string","null"]}
          unit: {"enum":["Low","High"],"type":"string"}
    "#]]);
}

#[test]
fn enums_with_fields() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        tagged: Tagged,
        external: Option<External>,
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"required":["tagged"],"type":"object"}
          external: {"anyOf":[{"oneOf":[{"enum":["Nothing"],"type":"string"},{"additionalProperties":false,"properties":{"Id":{"minimum":0,"type":"integer"}},"required":["Id"],"type":"object"},{"additionalProperties":false,"properties":{"Named":{"additionalProperties":false,"properties":{"name":{"type":"string"}},"required":["name"],"type":"object"}},"required":["Named"],"type":"object"}]},{"type":"null"}]}
          tagged: {"oneOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"radius":{"type":"number"}},"required":["kind","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"}},"required":["kind"],"type":"object"}]}
    "#]]);
}

#[test]
fn structs_and_lists() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        /// Where it is.
        place: Place,
        /// Where it was, if known.
        earlier: Option<Place>,
        #[serde(default)]
        places: Vec<Place>,
        holes: Vec<Option<u64>>,
        pair: [i32; 2],
        #[serde(default)]
        count: u8,
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"required":["holes","pair","place"],"type":"object"}
          count: {"default":0,"maximum":255,"minimum":0,"type":"integer"}
          earlier: {"additionalProperties":false,"description":"Where it was, if known.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":["object","null"]}
          holes: {"items":{"minimum":0,"type":["integer","null"]},"type":"array"}
          pair: {"items":{"type":"integer"},"maxItems":2,"minItems":2,"type":"array"}
          place: {"additionalProperties":false,"description":"Where it is.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":"object"}
          places: {"items":{"additionalProperties":false,"description":"A place.","properties":{"height":{"default":0,"type":"integer"},"latitude":{"description":"Degrees north.","type":"number"}},"required":["latitude"],"type":"object"},"type":"array"}
    "#]]);
}

#[test]
fn what_strict_modes_cannot_say_is_kept() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        map: HashMap<String, i32>,
        tuple: (i32, String),
        any: Value,
        anything: Vec<Value>,
        character: char,
        #[serde(default = "five")]
        defaulted: Option<i32>,
        objects: serde_json::Map<String, Value>,
    }
    #[expect(clippy::unnecessary_wraps, reason = "the default of an option is one")]
    fn five() -> Option<i32> {
        Some(5)
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"required":["any","anything","character","map","objects","tuple"],"type":"object"}
          any: {}
          anything: {"items":{},"type":"array"}
          character: {"maxLength":1,"minLength":1,"type":"string"}
          defaulted: {"default":5,"type":["integer","null"]}
          map: {"additionalProperties":{"type":"integer"},"type":"object"}
          objects: {"additionalProperties":true,"type":"object"}
          tuple: {"maxItems":2,"minItems":2,"prefixItems":[{"type":"integer"},{"type":"string"}],"type":"array"}
    "#]]);
}

#[test]
fn flattened_structs_are_closed() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        query: String,
        #[serde(flatten)]
        place: Place,
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"description":"A place.","required":["latitude","query"],"type":"object"}
          height: {"default":0,"type":"integer"}
          latitude: {"description":"Degrees north.","type":"number"}
          query: {"type":"string"}
    "#]]);
}

#[test]
fn flattened_enums_are_closed_by_alternative() {
    #[derive(Deserialize, JsonSchema)]
    struct Shape {
        name: String,
        #[serde(flatten)]
        tagged: Tagged,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        shape: Shape,
    }
    check::<Parameters>(expect![[r#"
        plain: {"additionalProperties":false,"required":["shape"],"type":"object"}
          shape: {"oneOf":[{"additionalProperties":false,"properties":{"colour":{"type":["string","null"]},"kind":{"const":"Circle","type":"string"},"name":{"type":"string"},"radius":{"type":"number"}},"required":["kind","name","radius"],"type":"object"},{"additionalProperties":false,"properties":{"kind":{"const":"Point","type":"string"},"name":{"type":"string"}},"required":["kind","name"],"type":"object"}]}
    "#]]);
    check::<Shape>(expect![[r#"
        refused: unsupported oneOf at the top of the parameters: providers reject it; move it into a property (for an enum, remove `#[serde(flatten)]`)
    "#]]);
}

#[test]
fn two_flattened_enums_stay_open() {
    #[derive(Deserialize, JsonSchema)]
    struct Both {
        name: String,
        #[serde(flatten)]
        tagged: Tagged,
        #[serde(flatten)]
        external: External,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        both: Both,
    }
    let text = forms_of(json_schema_of::<Parameters>());
    assert!(!text.contains("\"additionalProperties\":false,\"allOf\""), "{text}");
    #[cfg(feature = "validation")]
    {
        let plain = Value::Object(closed(json_schema_of::<Parameters>()).unwrap());
        let value_type = stepfold_state_core::json_schema::ValueType::of_schema(plain).unwrap();
        let both = json!({"both": {"name": "x", "kind": "Circle", "radius": 1.5, "Id": 7}});
        value_type.check(&both).unwrap();
    }
}

#[test]
fn types_that_contain_themselves_are_refused() {
    #[derive(Deserialize, JsonSchema)]
    struct Tree {
        value: i32,
        branches: Vec<Tree>,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        tree: Option<Box<Tree>>,
    }
    check::<Tree>(expect![[r#"
        refused: recursive type (#): providers reject references; limit the recursion, or use a JSON value instead
    "#]]);
    check::<Parameters>(expect![[r#"
        refused: recursive type (#/$defs/Tree): providers reject references; limit the recursion, or use a JSON value instead
    "#]]);
}

#[test]
fn other_tops_are_refused() {
    check::<Tagged>(expect![[r#"
        refused: unsupported oneOf at the top of the parameters: providers reject it; move it into a property (for an enum, remove `#[serde(flatten)]`)
    "#]]);
    check::<Vec<i32>>(expect![[r#"
        refused: invalid parameters: expected type "object", found "array"
    "#]]);
    check::<Option<Place>>(expect![[r#"
        refused: invalid parameters: expected type "object", found ["object","null"]
    "#]]);
    check_raw(
        json!("text"),
        expect![[r#"
        refused: invalid parameters: expected a JSON Schema object
    "#]],
    );
}

#[test]
fn references_of_raw_schemas_are_followed() {
    check_raw(
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "from": {"$ref": "#/$defs/Day", "description": "The first day."},
                "to": {"allOf": [{"$ref": "#/definitions/Day"}], "description": "The last day."},
                "deep": {"$ref": "#/$defs/Deep", "properties": {"more": {"type": "string"}}, "required": ["more"]},
            },
            "required": ["from"],
            "$defs": {
                "Day": {"type": "string", "format": "date"},
                "Deep": {"type": "object", "properties": {"day": {"$ref": "#/$defs/Day"}}},
            },
            "definitions": {"Day": {"type": "string", "format": "date"}},
        }),
        expect![[r#"
            plain: {"additionalProperties":false,"required":["from"],"type":"object"}
              deep: {"additionalProperties":false,"properties":{"day":{"format":"date","type":"string"},"more":{"type":"string"}},"required":["more"],"type":"object"}
              from: {"description":"The first day.","format":"date","type":"string"}
              to: {"description":"The last day.","format":"date","type":"string"}
        "#]],
    );
    check_raw(
        json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/Nope"}}}),
        expect![[r#"
        refused: unknown reference #/$defs/Nope in this schema
    "#]],
    );
}

#[test]
fn parameters_may_be_called_like_keywords() {
    let kind = json!({"type": "string"});
    let names = [
        "$ref",
        "$defs",
        "definitions",
        "default",
        "enum",
        "const",
        "examples",
        "title",
        "properties",
        "type",
        "format",
    ];
    let properties: Map<String, Value> =
        names.into_iter().map(|name| (name.to_owned(), kind.clone())).collect();
    let plain =
        closed(json!({"type": "object", "properties": properties.clone(), "required": names})).unwrap();
    assert_eq!(plain["properties"], Value::Object(properties));
}

#[test]
fn definitions_that_stand_for_billions_are_refused() {
    let mut definitions = Map::new();
    for level in 0..30 {
        let next = json!({"$ref": format!("#/$defs/L{}", level + 1)});
        definitions
            .insert(format!("L{level}"), json!({"type": "object", "properties": {"a": next, "b": next}}));
    }
    definitions.insert("L30".to_owned(), json!({"type": "string"}));
    let schema = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/L0"}}, "$defs": definitions});
    check_raw(
        schema,
        expect![[r#"
        refused: schema too large: more than 10000 parts after inlining its references
    "#]],
    );

    let mut deep = json!({"type": "string"});
    for _ in 0..500 {
        deep = json!({"type": "array", "items": deep});
    }
    let error = closed(json!({"type": "object", "properties": {"x": deep}})).unwrap_err();
    assert_eq!(error, "schema nested deeper than 96 levels");
}

#[test]
fn alternatives_and_rules() {
    check_raw(
        json!({
            "type": "object",
            "properties": {
                "level": {"enum": [1, 2, "max"]},
                "mode": {"const": "fast"},
                "overlap": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
                "apart": {"oneOf": [{"type": "integer"}, {"type": "string"}], "type": ["integer", "string"]},
                "short": {"type": "string", "minLength": 3},
                "link": {"type": "string", "format": "uri"},
                "day": {"type": "string", "format": "date", "examples": ["2024-02-29"]},
                "either": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "open": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true},
                "nothing": false,
            },
        }),
        expect![[r#"
            plain: {"additionalProperties":false,"type":"object"}
              apart: {"oneOf":[{"type":"integer"},{"type":"string"}],"type":["integer","string"]}
              day: {"examples":["2024-02-29"],"format":"date","type":"string"}
              either: {"anyOf":[{"additionalProperties":false,"properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a"],"type":"object"},{"additionalProperties":false,"properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["b"],"type":"object"}]}
              level: {"enum":[1,2,"max"]}
              link: {"format":"uri","type":"string"}
              mode: {"const":"fast"}
              nothing: false
              open: {"additionalProperties":true,"properties":{"a":{"type":"string"}},"type":"object"}
              overlap: {"oneOf":[{"type":"integer"},{"type":"number"}]}
              short: {"minLength":3,"type":"string"}
        "#]],
    );
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
fn check_drop(schema: Value, mut value: Value, expected: Value) {
    let schema = Value::Object(closed(schema).unwrap());
    drop_stand_in_nulls(&schema, &mut value);
    assert_eq!(value, expected);
}

#[test]
fn stand_in_nulls_are_dropped_and_others_kept() {
    #[derive(Deserialize, JsonSchema)]
    struct Parameters {
        shape: Tagged,
        earlier: Option<Place>,
        places: Vec<Place>,
        #[serde(default)]
        count: i32,
        note: Option<String>,
        #[serde(default)]
        any: Value,
    }
    let place = json!({"latitude": 1.5, "height": null});
    check_drop(
        json_schema_of::<Parameters>(),
        json!({
            "shape": {"kind": "Circle", "radius": 1.5, "colour": null}, "earlier": place, "places": [place, place],
            "count": null, "note": null, "any": {"x": null},
        }),
        json!({
            "shape": {"kind": "Circle", "radius": 1.5, "colour": null}, "earlier": {"latitude": 1.5},
            "places": [{"latitude": 1.5}, {"latitude": 1.5}], "note": null, "any": {"x": null},
        }),
    );
    // In alternatives, too: the property that tells them apart says which.
    let branch = |kind: &str, extra: &str| {
        json!({
            "type": "object",
            "properties": {"kind": {"type": "string", "const": kind}, extra: {"type": "integer"}},
            "required": ["kind"],
        })
    };
    let schema =
        json!({"type": "object", "properties": {"x": {"oneOf": [branch("a", "n"), branch("b", "m")]}}});
    check_drop(schema.clone(), json!({"x": {"kind": "b", "m": null}}), json!({"x": {"kind": "b"}}));
    // What fits nothing is left for the check to say.
    check_drop(schema, json!({"x": {"kind": "c", "m": null}}), json!({"x": {"kind": "c", "m": null}}));
}

#[cfg(feature = "validation")]
mod laws {
    use proptest::prelude::*;
    use stepfold_state_core::json_schema::ValueType;

    use super::*;

    /// A schema as authors write them.
    #[derive(Clone, Debug)]
    enum Node {
        Integer,
        Number,
        Text,
        Flag,
        OneOf(Vec<&'static str>),
        Fixed(&'static str),
        List(Box<Node>),
        /// Properties, each required or not.
        Record(Vec<(Node, bool)>),
        /// Or null: as a type where that can be said, else as an alternative.
        Nullable(Box<Node>),
        /// Records told apart by a tag; as `oneOf`, beside common properties or not.
        Tagged {
            branches: Vec<Vec<(Node, bool)>>,
            common: Vec<(Node, bool)>,
        },
        /// Kinds that differ.
        Either(Box<Node>),
    }

    fn node() -> impl Strategy<Value = Node> {
        let leaf = prop_oneof![
            Just(Node::Integer),
            Just(Node::Number),
            Just(Node::Text),
            Just(Node::Flag),
            Just(Node::OneOf(vec!["x", "y"])),
            Just(Node::Fixed("x")),
        ];
        leaf.prop_recursive(4, 24, 3, |inner| {
            let record = prop::collection::vec((inner.clone(), any::<bool>()), 0..4);
            prop_oneof![
                2 => inner.clone().prop_map(|node| Node::List(Box::new(node))),
                3 => record.clone().prop_map(Node::Record),
                2 => inner.clone().prop_map(|node| Node::Nullable(Box::new(node))),
                2 => (prop::collection::vec(record.clone(), 1..3), record)
                    .prop_map(|(branches, common)| Node::Tagged { branches, common }),
                1 => inner.prop_map(|node| Node::Either(Box::new(node))),
            ]
        })
    }

    fn schema_of_record(properties: &[(Node, bool)], prefix: &str) -> Value {
        let named = properties.iter().enumerate().map(|(at, property)| (format!("{prefix}{at}"), property));
        let required: Vec<_> =
            named.clone().filter(|(_, (_, required))| *required).map(|(name, _)| name).collect();
        let properties: Map<String, Value> = named.map(|(name, (node, _))| (name, schema_of(node))).collect();
        json!({"type": "object", "properties": properties, "required": required})
    }

    fn schema_of(node: &Node) -> Value {
        match node {
            Node::Integer => json!({"type": "integer", "format": "int64", "description": "a number"}),
            Node::Number => json!({"type": "number", "minimum": -1.0e9}),
            Node::Text => json!({"type": "string"}),
            Node::Flag => json!({"type": "boolean", "default": false}),
            Node::OneOf(values) => json!({"type": "string", "enum": values}),
            Node::Fixed(value) => json!({"const": value, "description": "always this"}),
            Node::List(item) => json!({"type": "array", "items": schema_of(item)}),
            Node::Record(properties) => schema_of_record(properties, "p"),
            Node::Nullable(inner) => {
                let mut schema = schema_of(inner);
                // Null beside a default that is not null is reported, see above.
                schema.as_object_mut().unwrap().remove("default");
                match schema.get("type").cloned() {
                    Some(Value::String(kind))
                        if !["enum", "oneOf"].iter().any(|name| schema.get(name).is_some()) =>
                    {
                        schema["type"] = json!([kind, "null"]);
                        schema
                    }
                    _ => json!({"anyOf": [schema, {"type": "null"}], "description": "or nothing"}),
                }
            }
            Node::Tagged { branches, common } => {
                let branches: Vec<Value> = branches
                    .iter()
                    .enumerate()
                    .map(|(at, properties)| {
                        let mut branch = schema_of_record(properties, "b");
                        branch["properties"]["tag"] = json!({"type": "string", "const": format!("t{at}")});
                        branch["required"].as_array_mut().unwrap().push(json!("tag"));
                        branch
                    })
                    .collect();
                if common.is_empty() {
                    return json!({"oneOf": branches});
                }
                let mut schema = schema_of_record(common, "c");
                schema["oneOf"] = json!(branches);
                schema
            }
            Node::Either(inner) => {
                json!({"anyOf": [{"type": "array", "items": schema_of(inner)}, {"type": "integer"}]})
            }
        }
    }

    fn allows_null(node: &Node) -> bool {
        matches!(node, Node::Nullable(_))
    }

    /// A value in three forms: under the plain schema, as strict mode has it, and as it comes back.
    struct Forms {
        plain: Value,
        strict: Value,
        back: Value,
    }

    impl Forms {
        fn same(value: Value) -> Self {
            Forms { plain: value.clone(), strict: value.clone(), back: value }
        }
    }

    struct Luck<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>);

    impl Luck<'_> {
        fn below(&mut self, limit: usize) -> usize {
            usize::from(*self.0.next().unwrap()) % limit
        }
    }

    fn record(
        properties: &[(Node, bool)],
        prefix: &str,
        luck: &mut Luck<'_>,
        into: &mut [Map<String, Value>; 3],
    ) {
        for (at, (node, required)) in properties.iter().enumerate() {
            let name = format!("{prefix}{at}");
            if *required || luck.below(2) == 0 {
                let forms = value(node, luck);
                into[0].insert(name.clone(), forms.plain);
                into[1].insert(name.clone(), forms.strict);
                into[2].insert(name, forms.back);
            } else {
                into[1].insert(name.clone(), Value::Null);
                if allows_null(node) {
                    into[2].insert(name, Value::Null);
                }
            }
        }
    }

    fn of_maps([plain, strict, back]: [Map<String, Value>; 3]) -> Forms {
        Forms { plain: Value::Object(plain), strict: Value::Object(strict), back: Value::Object(back) }
    }

    fn value(node: &Node, luck: &mut Luck<'_>) -> Forms {
        match node {
            Node::Integer => Forms::same(json!(luck.below(9))),
            Node::Number => Forms::same(json!(0.5)),
            Node::Text => Forms::same(json!("text")),
            Node::Flag => Forms::same(json!(luck.below(2) == 0)),
            Node::OneOf(values) => Forms::same(json!(values[luck.below(values.len())])),
            Node::Fixed(value) => Forms::same(json!(value)),
            Node::Nullable(_) if luck.below(3) == 0 => Forms::same(Value::Null),
            Node::Nullable(inner) => value(inner, luck),
            Node::Either(_) if luck.below(2) == 0 => Forms::same(json!(7)),
            Node::List(item) | Node::Either(item) => {
                let items: Vec<Forms> = (0..luck.below(3)).map(|_| value(item, luck)).collect();
                Forms {
                    plain: items.iter().map(|forms| forms.plain.clone()).collect(),
                    strict: items.iter().map(|forms| forms.strict.clone()).collect(),
                    back: items.into_iter().map(|forms| forms.back).collect(),
                }
            }
            Node::Record(properties) => {
                let mut maps = [Map::new(), Map::new(), Map::new()];
                record(properties, "p", luck, &mut maps);
                of_maps(maps)
            }
            Node::Tagged { branches, common } => {
                let mut maps = [Map::new(), Map::new(), Map::new()];
                let at = luck.below(branches.len());
                record(common, "c", luck, &mut maps);
                record(&branches[at], "b", luck, &mut maps);
                for map in &mut maps {
                    map.insert("tag".to_owned(), json!(format!("t{at}")));
                }
                of_maps(maps)
            }
        }
    }

    fn assert_plain(schema: &Value) {
        match schema {
            Value::Object(fields) => {
                assert!(!fields.contains_key("$ref"));
                assert!(
                    !fields.contains_key("properties") || fields.contains_key("additionalProperties"),
                    "{schema}"
                );
                fields
                    .iter()
                    .filter(|(name, _)| *name != "properties")
                    .for_each(|(_, value)| assert_plain(value));
                if let Some(Value::Object(properties)) = fields.get("properties") {
                    properties.values().for_each(assert_plain);
                }
            }
            Value::Array(items) => items.iter().for_each(assert_plain),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn what_comes_in_a_strict_form_is_what_the_plain_one_takes(
            properties in prop::collection::vec((node(), any::<bool>()), 0..4),
            luck in prop::collection::vec(any::<u8>(), 32),
        ) {
            let top = Node::Record(properties);
            let plain = Value::Object(closed(schema_of(&top)).unwrap());
            assert_plain(&plain);
            let Forms { plain: sent, strict: filled, back } = value(&top, &mut Luck(luck.iter().cycle()));

            // The plain form accepts what the schema as written accepts.
            ValueType::of_schema(schema_of(&top)).unwrap().check(&sent).unwrap();
            let plain_type = ValueType::of_schema(plain.clone()).unwrap();
            plain_type.check(&sent).unwrap();

            let mut restored = filled;
            drop_stand_in_nulls(&plain, &mut restored);
            prop_assert_eq!(&restored, &back);
            plain_type.check(&restored).unwrap();

            // What has no stand-ins stays as it is.
            let mut untouched = sent.clone();
            drop_stand_in_nulls(&plain, &mut untouched);
            prop_assert_eq!(untouched, sent);
        }
    }
}
