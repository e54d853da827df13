//! What a model is told of the schemas that servers write, by the corpus beside the integration tests and by
//! generated ones.

use expect_test::expect;

use super::*;

fn corpus() -> Vec<Value> {
    serde_json::from_str(include_str!("../../tests/schemas/corpus.json")).unwrap()
}

/// What a model is told of the schema of this name in the corpus, and what was left out of it.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "an expectation is written where it is checked")]
fn check(name: &str, expected: expect_test::Expect) {
    let entry = corpus().into_iter().find(|entry| entry["name"] == name).unwrap();
    expected.assert_eq(&told(&entry["input_schema"]));
}

fn told(schema: &Value) -> String {
    match parameters(schema) {
        Err(reason) => format!("refused: {reason}\n"),
        Ok(OfferedParameters { schema, omissions }) => {
            let omissions = omissions.iter().map(|what| format!("left out: {what}\n"));
            [format!("{schema}\n")].into_iter().chain(omissions).collect::<Vec<_>>().concat()
        }
    }
}

/// Whether something in a schema is no keyword of a schema that is written out.
fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.get("$ref").is_some_and(Value::is_string)
                || fields.iter().any(|(name, value)| name != "properties" && has_reference(value))
                || fields
                    .get("properties")
                    .and_then(Value::as_object)
                    .is_some_and(|properties| properties.values().any(has_reference))
        }
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}

#[test]
fn every_schema_of_the_corpus_is_offered_as_one_object_without_references() {
    let corpus = corpus();
    assert!(corpus.len() >= 60);
    for entry in &corpus {
        let name = &entry["name"];
        let OfferedParameters { schema, .. } = parameters(&entry["input_schema"]).unwrap();
        assert_eq!(schema["type"], "object", "{name}");
        assert!(schema["properties"].is_object() && !has_reference(&schema), "{name}: {schema}");
        for keyword in ["anyOf", "oneOf", "allOf", "not", "if", "enum", "const"] {
            assert!(schema.get(keyword).is_none(), "{name}: {schema}");
        }
    }
}

#[test]
fn what_the_server_leaves_open_stays_open() {
    check(
        "list_accounts",
        expect![[r#"
        {"properties":{},"type":"object"}
    "#]],
    );
    check(
        "whoami",
        expect![[r#"
        {"additionalProperties":false,"properties":{},"type":"object"}
    "#]],
    );
    check(
        "call_any",
        expect![[r#"
            {"required":["tool","args"],"properties":{"tool":{"type":"string"},"args":{"type":"object","properties":{}}},"type":"object"}
        "#]],
    );
    check(
        "schema_2019",
        expect![[r#"
        {"additionalProperties":false,"properties":{"q":{"type":"string"}},"required":["q"],"type":"object"}
    "#]],
    );
}

#[test]
fn recursion_is_written_out_to_a_depth() {
    check(
        "linked_list",
        expect![[r#"
            {"properties":{"list":{"type":["object","null"],"properties":{"value":{"type":"integer"},"next":{"type":["object","null"],"properties":{"value":{"type":"integer"},"next":{"type":["object","null"],"properties":{"value":{"type":"integer"},"next":{"type":["object","null"],"properties":{"value":{"type":"integer"},"next":{"description":"More of the same, nested deeper.","type":["object","null"]}},"required":["value"]}},"required":["value"]}},"required":["value"]}},"required":["value"]}},"type":"object"}
            left out: the recursion of `#/definitions/Node`, below 4 levels of it
        "#]],
    );
    check(
        "endless",
        expect![[r#"
            {"required":["name"],"properties":{"node":{"type":"object","properties":{"next":{"type":"object","properties":{"next":{"type":"object","properties":{"next":{"type":"object","properties":{"next":{"description":"More of the same, nested deeper.","type":"object"}},"required":["next"]}},"required":["next"]}},"required":["next"]}},"required":["next"]},"name":{"type":"string"}},"type":"object"}
            left out: the recursion of `#/$defs/Node`, below 4 levels of it
        "#]],
    );
    check(
        "self_ref",
        expect![[r#"
        {"properties":{"v":{"description":"More of the same, nested deeper."}},"type":"object"}
        left out: the recursion of `#/$defs/V`, below 4 levels of it
    "#]],
    );
    let size = |name: &str| {
        let entry = corpus().into_iter().find(|entry| entry["name"] == name).unwrap();
        parameters(&entry["input_schema"]).unwrap().schema.to_string().len()
    };
    assert!(size("filter_tree") < 4_000 && size("json_value") < 4_000 && size("doubling") < 200_000);
}

#[test]
fn references_lead_to_pointers_anchors_and_ids() {
    check(
        "ref_escaped",
        expect![[r#"
            {"required":["v"],"properties":{"v":{"type":"integer"}},"type":"object"}
        "#]],
    );
    check(
        "ref_anchor",
        expect![[r#"
            {"required":["v"],"properties":{"v":{"type":"number","minimum":0}},"type":"object"}
        "#]],
    );
    check(
        "ref_by_id",
        expect![[r#"
            {"required":["v"],"properties":{"v":{"type":"integer"}},"type":"object"}
        "#]],
    );
    check(
        "ref_remote",
        expect![[r#"
            {"required":["v"],"properties":{"v":{}},"type":"object"}
            left out: the reference `https://schemas.invalid/amount.json`, which leads out of this schema
        "#]],
    );
    check(
        "ref_dangling",
        expect![[r#"
        {"properties":{"v":{},"w":{"type":"integer"}},"type":"object"}
        left out: the reference `#/$defs/Missing`, which leads out of this schema
    "#]],
    );
    check(
        "dynamic_ref",
        expect![[r#"
            {"required":["name"],"properties":{"name":{"type":"string"},"children":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"description":"More of the same, nested deeper.","type":"object"}}},"required":["name"]}}},"required":["name"]}}},"required":["name"]}}},"type":"object"}
            left out: the recursion of `#node`, below 4 levels of it
        "#]],
    );
}

#[test]
fn alternatives_at_the_top_become_one_object() {
    check(
        "root_types",
        expect![[r#"
        {"properties":{"city":{"type":"string"}},"type":"object"}
    "#]],
    );
    check(
        "root_one_of",
        expect![[r#"
        {"properties":{"id":{"type":"integer"},"slug":{"type":"string"}},"type":"object"}
        left out: oneOf at the top, which providers refuse
    "#]],
    );
    check(
        "root_any_of_required",
        expect![[r#"
        {"properties":{"email":{"type":"string"},"phone":{"type":"string"}},"type":"object"}
        left out: anyOf at the top, which providers refuse
    "#]],
    );
    check(
        "root_all_of",
        expect![[r#"
        {"properties":{"name":{"type":"string"},"size":{"type":"integer"}},"required":["name"],"type":"object"}
    "#]],
    );
    check(
        "root_enum",
        expect![[r#"
            {"properties":{"mode":{"enum":["on","off"]}},"required":["mode"],"additionalProperties":false,"type":"object"}
            left out: enum at the top, which providers refuse
        "#]],
    );
    check(
        "root_if",
        expect![[r#"
        {"properties":{"kind":{"enum":["card","cash"]},"number":{"type":"string"}},"required":["kind"],"type":"object"}
        left out: else at the top, which providers refuse
        left out: if at the top, which providers refuse
        left out: then at the top, which providers refuse
    "#]],
    );
    check(
        "root_not",
        expect![[r#"
            {"properties":{"user":{"type":"string"},"group":{"type":"string"}},"type":"object"}
            left out: not at the top, which providers refuse
        "#]],
    );
}

#[test]
fn older_drafts_and_other_dialects_are_read() {
    check(
        "tuple_draft_7",
        expect![[r#"
            {"required":["range"],"properties":{"range":{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}},"type":"object"}
        "#]],
    );
    check(
        "dependencies_draft_7",
        expect![[r#"
        {"dependentRequired":{"card":["cvc"]},"properties":{"card":{"type":"string"},"cvc":{"type":"string"}},"type":"object"}
    "#]],
    );
    check(
        "bounds_draft_4",
        expect![[r#"
            {"required":["ratio"],"properties":{"ratio":{"type":"number","maximum":1,"exclusiveMinimum":0}},"type":"object"}
        "#]],
    );
    check(
        "nullable_openapi",
        expect![[r#"
            {"required":["nick"],"properties":{"nick":{"type":["string","null"]},"age":{"type":"integer"}},"type":"object"}
        "#]],
    );
    check(
        "type_python",
        expect![[r#"
            {"properties":{"names":{},"opts":{},"n":{},"s":{},"k":{"type":"string"}},"type":"object"}
            left out: type `"dict"`, which is invalid
            left out: type `"int"`, which is invalid
            left out: type `"list"`, which is invalid
            left out: type `"str"`, which is invalid
        "#]],
    );
    check(
        "type_upper",
        expect![[r#"
            {"properties":{"v":{"type":"string"},"k":{"type":"string"}},"type":"object"}
        "#]],
    );
    check(
        "pattern_broken",
        expect![[r#"
            {"required":["v"],"properties":{"v":{"type":"string"}},"type":"object"}
            left out: pattern `"([a-z"`, which is invalid
        "#]],
    );
    check(
        "properties_null",
        expect![[r#"
            {"type":"object","properties":{}}
            left out: properties `null`, which is invalid
            left out: required `null`, which is invalid
        "#]],
    );
}

#[test]
fn what_takes_no_object_is_refused() {
    let check = |schema: Value, expected: &str| assert_eq!(told(&schema), expected);
    check(
        json!({"type": "array"}),
        "refused: invalid inputSchema: expected type \"object\", found \"array\"\n",
    );
    check(
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
        "refused: invalid inputSchema: expected type \"object\", found what no object fits\n",
    );
    let wide: Map<String, Value> =
        (0..20_000).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
    check(
        json!({"type": "object", "properties": wide}),
        "refused: inputSchema too large: more than 10000 parts with its references written out\n",
    );
}

#[cfg(feature = "validation")]
mod laws {
    use proptest::prelude::*;
    use stepfold_state_core::json_schema::ValueType;

    use super::*;

    fn takes(schema: &Value, value: &Value) -> bool {
        ValueType::of_schema(schema.clone()).unwrap().check(value).is_ok()
    }

    #[test]
    fn every_valid_argument_of_the_corpus_is_taken() {
        let mut server_only = Vec::new();
        for entry in corpus() {
            let name = entry["name"].as_str().unwrap();
            let offered = parameters(&entry["input_schema"]).unwrap();
            for valid in entry["valid"].as_array().unwrap() {
                assert!(takes(&offered.schema, valid), "{name}: {valid} by {}", offered.schema);
            }
            let invalid = entry["invalid"].as_array().unwrap();
            if invalid.iter().any(|invalid| takes(&offered.schema, invalid)) {
                server_only.push(format!("{name}\n"));
                assert!(!offered.omissions.is_empty(), "{name} takes more, and nothing is said of it");
            }
        }
        // Their faults are told by the server alone.
        expect![[r#"
            root_one_of
            root_any_of_required
            root_not
            root_if
        "#]]
        .assert_eq(&server_only.concat());
    }

    struct Luck<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>);

    impl Luck<'_> {
        fn below(&mut self, limit: usize) -> usize {
            usize::from(*self.0.next().unwrap()) % limit
        }

        fn name(&mut self) -> &'static str {
            ["a", "b", "c"][self.below(3)]
        }
    }

    /// A schema of 2020-12 with all that is not monotonous. References stand below a property or an item only, where
    /// each step takes a part of the value.
    fn schema(luck: &mut Luck<'_>, depth: usize, is_below: bool) -> Value {
        if depth == 0 {
            return leaf(luck, is_below);
        }
        let inner = |luck: &mut Luck<'_>| schema(luck, depth - 1, is_below);
        match luck.below(11) {
            0 => json!({"anyOf": [inner(luck), inner(luck)]}),
            1 => json!({"oneOf": [inner(luck), inner(luck)]}),
            2 => json!({"allOf": [inner(luck), inner(luck)]}),
            3 => json!({"not": inner(luck)}),
            4 => json!({"if": inner(luck), "then": inner(luck), "else": inner(luck)}),
            5 => {
                let item = schema(luck, depth - 1, true);
                json!({"type": "array", "items": item, "maxItems": 3})
            }
            6 => {
                let contained = schema(luck, depth - 1, true);
                json!({"contains": contained, "maxContains": luck.below(2) + 1})
            }
            7..=9 => object(luck, depth),
            _ => leaf(luck, is_below),
        }
    }

    fn object(luck: &mut Luck<'_>, depth: usize) -> Value {
        let mut properties = Map::new();
        for _ in 0..=luck.below(2) {
            let name = luck.name();
            properties.insert(name.to_owned(), schema(luck, depth - 1, true));
        }
        let mut object = json!({"properties": properties});
        match luck.below(5) {
            0 => object["additionalProperties"] = json!(false),
            1 => object["additionalProperties"] = schema(luck, depth - 1, true),
            2 => object["unevaluatedProperties"] = json!(false),
            3 => object["required"] = json!([luck.name()]),
            _ => {}
        }
        if luck.below(4) == 0 {
            object["anyOf"] = json!([object.clone(), schema(luck, depth - 1, false)]);
        }
        object
    }

    fn leaf(luck: &mut Luck<'_>, is_below: bool) -> Value {
        match luck.below(if is_below { 9 } else { 6 }) {
            0 => json!({"type": "integer"}),
            1 => json!({"type": ["string", "null"]}),
            2 => json!(luck.below(4) != 0),
            3 => json!({"enum": [1, "x", null]}),
            4 => json!({"const": 1}),
            5 => json!({}),
            6 | 7 => json!({"$ref": "#/$defs/A"}),
            _ => json!({"$ref": "#/$defs/B", "description": "b"}),
        }
    }

    fn value(luck: &mut Luck<'_>, depth: usize) -> Value {
        match luck.below(if depth == 0 { 4 } else { 8 }) {
            0 => json!(1),
            1 => json!("x"),
            2 => json!(null),
            3 => json!(2),
            4 => (0..luck.below(3)).map(|_| value(luck, depth - 1)).collect(),
            _ => {
                let mut fields = Map::new();
                for _ in 0..luck.below(3) {
                    fields.insert(luck.name().to_owned(), value(luck, depth - 1));
                }
                Value::Object(fields)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Never narrower than the server's: whatever was truncated, and whatever stands around it.
        #[test]
        fn what_the_server_takes_is_taken(bytes in prop::collection::vec(any::<u8>(), 200)) {
            let luck = &mut Luck(bytes.iter().cycle());
            let whole = json!({
                "type": "object",
                "properties": {"v": schema(luck, 3, true)},
                "$defs": {"A": schema(luck, 2, false), "B": schema(luck, 2, false)},
            });
            let Ok(server) = ValueType::of_schema(whole.clone()) else { return Ok(()) };
            for limits in [ATTEMPTS[0], ATTEMPTS[3], ATTEMPTS[6], InlineLimits { repeats: 0, references: 0, parts: MAX_PARTS }] {
                let Some((written, _)) = SchemaWriter::new(&whole, limits).whole() else { continue };
                let offered = ValueType::of_schema(written.clone()).unwrap();
                for _ in 0..8 {
                    let value = json!({"v": value(luck, 4)});
                    if server.check(&value).is_ok() {
                        prop_assert!(offered.check(&value).is_ok(), "{value}\nby {whole}\nas {written}");
                    }
                }
            }
        }
    }
}
