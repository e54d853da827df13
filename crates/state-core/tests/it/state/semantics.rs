//! State: one test per documented behaviour.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Handler, Key, RESERVED_KEYS, Schema, State};

use super::{json_of, report, run};

/// Runs a script on a state of these keys; see [`run`].
fn check(keys: Value, script: &str, expected: Expect) {
    expected.assert_eq(&run(&keys, script));
}

#[test]
fn default_handler() {
    check(
        json!({"list": {"type": "array"}, "text": {"type": "string"}, "map": {"type": "object"}, "any": {"type": true}}),
        r#"
        list = [1]
        list = [2]
        text = "a"
        text = "b"
        map = {"a": 1}
        map = {"b": 1}
        any = [1]
        any = [2]
        "#,
        expect![[r#"
            any: [2]
            list: [1,2]
            map: {"b":1}
            text: "b"
        "#]],
    );
}

#[test]
fn default_handler_of_a_fixed_length() {
    // A pair can never grow, so appending would be no default.
    let schema = Schema::builder().key::<(f64, f64)>("position").key::<[u8; 3]>("colour").build().unwrap();
    let mut state = State::new(&schema);
    for position in [(1.0, 2.0), (3.0, 4.0)] {
        state.set(Key::<(f64, f64)>::new("position"), position).unwrap();
    }
    assert_eq!(state.get("position").unwrap(), json!([3.0, 4.0]));
    assert_eq!(schema.key("colour").unwrap().handler(), &Handler::replace_values());
}

#[test]
fn optional_arrays() {
    const TAGS: Key<Option<Vec<String>>> = Key::new("tags");
    let mut state = State::new(&Schema::builder().key(TAGS).build().unwrap());
    state.set(TAGS, Some(vec!["a".to_owned()])).unwrap();
    state.set(TAGS, Some(vec!["b".to_owned()])).unwrap();
    assert_eq!(state.get("tags").unwrap(), json!(["a", "b"]));
    check(
        json!({"a": {"type": ["array", "null"]}, "b": {"type": {"anyOf": [{"type": "array"}, {"type": "null"}]}}}),
        "a = [1]
        a = [2]
        b = [1]
        b = [2]",
        expect![[r#"
            a: [1,2]
            b: [1,2]
        "#]],
    );
}

#[test]
fn merge_lists() {
    check(
        json!({"list": {"type": "array"}, "other": {"type": true}}),
        r#"
        list?
        list = []
        list?
        list = 1
        list = [[2, 3], [4]]
        list = {"a": 5}
        other = "bare"
        other = ["item"] by merge_lists
        "#,
        expect![[r#"
            list? -> unset
            list? -> []
            list: [1,[2,3],[4],{"a":5}]
            other: ["bare","item"]
        "#]],
    );
}

#[test]
fn null() {
    check(
        json!({
            "list": {"type": {"type": ["array", "null"], "items": {"type": "string"}}},
            "holes": {"type": {"type": "array", "items": {"type": ["string", "null"]}}},
            "maybe": {"type": ["string", "null"]},
            "text": {"type": "string"},
        }),
        r#"
        list = null by replace_values
        list?
        list = ["a"]
        list = null
        list = ["b", null]
        holes = null
        holes = ["a", null]
        maybe = null
        text = null
        "#,
        expect![[r#"
            list? -> null
            list = null ! invalid value for key "list": expected string, found null at $; write null with replace_values at $
            list = ["b", null] ! invalid value for key "list": expected string, found null at $[1]
            text = null ! invalid value for key "text": expected string, found null at $
            holes: [null,"a",null]
            list: ["a"]
            maybe: null
        "#]],
    );
}

#[test]
fn get_unknown_or_unset_key() {
    check(
        json!({"a": {"type": "string"}}),
        "a?
        b?
        has a
        has b",
        expect![[r#"
            a? -> unset
            b? -> unset
            has a -> false
            has b -> false
        "#]],
    );
}

/// Where the type has null, it is the new value of a list that is merged by a field; no object could be meant.
#[test]
fn null_by_upsert() {
    check(
        json!({
            "tasks": {"type": ["array", "null"], "handler": "upsert_by(id)"},
            "always": {"type": "array", "handler": "upsert_by(id)"},
        }),
        r#"
        tasks = [{"id": 1}]
        tasks = null
        tasks?
        tasks = {"id": 2}
        always = null
        "#,
        expect![[r#"
            tasks? -> null
            always = null ! handler upsert_by(id) failed for key "always": expected an object with field "id" for new item 0
            tasks: [{"id":2}]
        "#]],
    );
}

#[test]
fn stored_null() {
    check(
        json!({"a": {"type": ["string", "null"]}, "b": {"type": ["string", "null"], "default": null}}),
        "a = null
        a?
        has a
        has b
        b?",
        expect![[r#"
            a? -> null
            has a -> true
            has b -> true
            b? -> null
            a: null
            b: null
        "#]],
    );
}

#[test]
fn set_unknown_key() {
    check(
        json!({"a": {"type": "string"}, "b": {"type": "string"}}),
        "c = 1
        remove c
        c = 1 by sum",
        expect![[r#"
            c = 1 ! unknown key "c"; known keys: a, b, messages
            remove c ! unknown key "c"; known keys: a, b, messages
            c = 1 by sum ! unknown key "c"; known keys: a, b, messages
        "#]],
    );
    let schema = Schema::builder().key::<String>("a").open().build().unwrap();
    let mut state = State::new(&schema);
    state.set("c", 1).unwrap();
    let texts = ["usr:c", "", "a\nb", "steps", " a"].map(|key| report(&state.set(key, 1).unwrap_err()));
    expect![[r#"
        invalid key "usr:c": unknown prefix before ':'; available: app:, user:, temp:
        invalid key "": missing name
        invalid key "a\nb": contains characters that do not print
        invalid key "steps": the name is reserved for the outcome of a run
        invalid key " a": begins or ends with white space"#]]
    .assert_eq(&texts.join("\n"));
    assert_eq!(state.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["c", "messages"]);
}

#[test]
fn set_wrong_type() {
    check(
        json!({
            "integer": {"type": "integer"}, "number": {"type": "number"}, "text": {"type": "string"},
            "flag": {"type": "boolean"}, "list": {"type": "array"}, "map": {"type": "object"},
        }),
        r#"
        integer = 1.0
        integer = true
        integer = 18446744073709551616
        number = "secret"
        number = 1
        text = ["secret"]
        flag = 1
        list = "secret" by replace_values
        map = [1]
        "#,
        expect![[r#"
            integer = 1.0 ! invalid value for key "integer": expected integer, found fractional number at $
            integer = true ! invalid value for key "integer": expected integer, found boolean at $
            integer = 18446744073709551616 ! invalid value for key "integer": expected integer, found fractional number at $
            number = "secret" ! invalid value for key "number": expected number, found string at $
            text = ["secret"] ! invalid value for key "text": expected string, found list at $
            flag = 1 ! invalid value for key "flag": expected boolean, found integer at $
            list = "secret" by replace_values ! invalid value for key "list": expected list, found string at $
            map = [1] ! invalid value for key "map": expected object, found list at $
            number: 1
        "#]],
    );
    check(
        json!({"list": {"type": {"type": "array", "items": {"type": "string"}}}}),
        r#"
        list = ["a", 1, "b", {}]
        list = 1
        list = ["a", 1] by union
        list = ["a", 1] by keep_last(1)
        "#,
        expect![[r#"
            list = ["a", 1, "b", {}] ! invalid value for key "list": expected string, found integer at $[1]; expected string, found object at $[3]
            list = 1 ! invalid value for key "list": expected string, found integer at $
            list = ["a", 1] by union ! invalid value for key "list": expected string, found integer at $[1]
            list = ["a", 1] by keep_last(1) ! invalid value for key "list": expected string, found integer at $[1]
        "#]],
    );
}

#[test]
#[cfg(feature = "validation")]
fn set_wrong_type_deep_inside() {
    let documents = json!({
        "items": {
            "additionalProperties": false,
            "properties": {
                "kind": {"enum": ["a", "b"]},
                "odd name": {"items": {"type": "integer"}, "type": "array"},
                "pages": {"maximum": 9, "type": "integer"},
                "title": {"pattern": "^[a-z]+$", "type": "string"},
            },
            "required": ["title"],
            "title": "Document",
            "type": "object",
        },
        "type": "array",
    });
    check(
        json!({
            "documents": {"type": documents}, "few": {"type": {"type": "array", "maxItems": 2}},
            "names": {"type": {"type": "array", "uniqueItems": true}},
        }),
        r#"
        documents = [{"title": "a"}, {"kind": "secret", "pages": 77, "title": 1}]
        documents = {"pages": 1.0}
        documents = {"extra": "secret", "odd name": [1, "secret"], "title": "SECRET"}
        names = ["a"]
        names = ["a"]
        few = [1, 2]
        few = 3
        "#,
        expect![[r#"
            documents = [{"title": "a"}, {"kind": "secret", "pages": 77, "title": 1}] ! invalid value for key "documents": expected one of "a", "b" at $[1].kind; value is greater than the maximum of 9 at $[1].pages; expected string, found integer at $[1].title
            documents = {"pages": 1.0} ! invalid value for key "documents": expected integer, found fractional number at $.pages; "title" is a required property at $
            documents = {"extra": "secret", "odd name": [1, "secret"], "title": "SECRET"} ! invalid value for key "documents": expected integer, found string at $["odd name"][1]; value does not match "^[a-z]+$" at $.title; Additional properties are not allowed ('extra' was unexpected) at $
            names = ["a"] ! invalid value for key "names": value has non-unique elements at $
            few = 3 ! invalid value for key "few": value has more than 2 items at $
            few: [1,2]
            names: ["a"]
        "#]],
    );
}

/// Which fault is found first, and in which words, is `serde`'s affair or the JSON Schema library's.
#[test]
fn set_wrong_type_of_a_typed_key() {
    #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
    struct Document {
        title: String,
    }
    let schema = Schema::builder()
        .key::<Vec<Document>>("documents")
        .key::<u8>("small")
        .key::<Option<Document>>("best")
        .build()
        .unwrap();
    let mut state = State::new(&schema);
    let refused = [
        state.set("documents", json!([{"title": "secret"}, {"title": 4711}])),
        state.set("documents", json!({"titel": "secret"})),
        state.set("small", 4711),
        state.set("best", json!({"title": ["secret"]})),
    ];
    for error in refused.map(Result::unwrap_err) {
        let text = report(&error);
        assert!(text.starts_with("invalid value for key") && text.contains("at $"), "{text}");
        assert!(!text.contains("secret") && !text.contains("4711"), "{text}");
    }
    assert_eq!(json_of(&state), json_of(&State::new(&schema)));
}

#[test]
fn initial_data() {
    let schema = super::schema(&json!({
        "count": {"type": "integer", "handler": "sum", "default": 5},
        "numbers": {"type": {"type": "array", "items": {"type": "integer"}}},
    }))
    .unwrap();
    let start = |values: Value| match State::with_values(&schema, values) {
        Ok(state) => json_of(&state),
        Err(error) => report(&error),
    };
    let texts = [
        json!({"numbers": [1], "count": 1}),
        json!({"numbers": 1}),
        json!({"numbers": ["secret"]}),
        json!({"colour": "secret"}),
        json!({"messages": "secret"}),
        json!(["secret"]),
        json!({"messages": [{"role": "user", "parts": ["hi"]}]}),
    ]
    .map(start);
    expect![[r#"
        {"values":{"count":1,"messages":[],"numbers":[1]},"version":1}
        invalid value for key "numbers": expected list, found integer at $
        invalid value for key "numbers": expected integer, found string at $[0]
        unknown key "colour"; known keys: count, numbers, messages
        invalid initial values: expected a list, found string at $.messages
        invalid initial values: expected an object of values by key, found list at $
        {"values":{"count":5,"messages":[{"parts":[{"text":"hi"}],"role":"user"}]},"version":1}"#]]
    .assert_eq(&texts.join("\n"));
}

#[test]
fn failing_handler() {
    check(
        json!({"day": {"type": "string", "handler": "always_fails"}, "name": {"type": "string", "handler": "gives_a_number"}, "big": {"type": "integer", "handler": "sum"}}),
        r#"
        day = "secret"
        name = "secret"
        big = 18446744073709551615
        big = 1
        "#,
        expect![[r#"
            day = "secret" ! handler always_fails failed for key "day": expected a date
            name = "secret" ! invalid value for key "name": expected string, found integer at $
            big = 1 ! handler sum failed for key "big": the sum does not fit 64 bits
            big: 18446744073709551615
        "#]],
    );
}

#[test]
fn several_writes() {
    let schema = Schema::builder().key::<Vec<i64>>("numbers").key::<u64>("left").default(3).build().unwrap();
    let mut state = State::new(&schema);
    let mut delta: stepfold_state_core::state::Delta =
        [schema.write("numbers", vec![1]).unwrap(), schema.removal("left").unwrap()].into_iter().collect();
    state.apply(&delta).unwrap();
    delta.push(schema.write_with("left", -4, &Handler::sum()).unwrap());
    let before = json_of(&state);
    let error = state.apply(&delta).unwrap_err();
    assert!(error.to_string().starts_with("invalid value for key \"left\""), "{error}");
    assert_eq!(json_of(&state), before);
}

#[test]
fn handler_override() {
    check(
        json!({"list": {"type": "array"}, "name": {"type": "string"}, "count": {"type": "integer"}}),
        r#"
        list = [3, 1]
        list = [2] by sorted_merge
        list = [9] by keep_last(2)
        name = "Alice"
        name = "Bob" by concat_str
        count = 1
        count = 2 by sum
        count = 2 by nothing_of_the_sort
        count = 2 by keep_last(0)
        name = "x" by merge_lists
        "#,
        expect![[r#"
            count = 2 by nothing_of_the_sort ! unknown handler "nothing_of_the_sort"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins, always_fails, concat_str, gives_a_number, sorted_merge
            count = 2 by keep_last(0) ! handler keep_last(0) failed for key "count": the number of kept items must be at least 1
            name = "x" by merge_lists ! invalid value for key "name": expected string, found list at $
            count: 3
            list: [3,9]
            name: "Alice-Bob"
        "#]],
    );
    // By value, without being registered; but not in a delta, which could not be replayed.
    let schema = Schema::builder().key::<i64>("count").build().unwrap();
    let twice = Handler::custom("twice", |_, new| Ok(json!(new.as_i64().unwrap_or(0) * 2)));
    let mut state = State::new(&schema);
    state.set_with("count", 4, &twice).unwrap();
    assert_eq!(state.get("count").unwrap(), json!(8));
    assert!(
        report(&schema.write_with("count", 4, &twice).unwrap_err()).starts_with("unknown handler \"twice\"")
    );
}

#[test]
fn custom_handler() {
    check(
        json!({"a": {"type": "string", "handler": "unheard_of"}}),
        "",
        expect![[r#"
        no schema! unknown handler "unheard_of"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins, always_fails, concat_str, gives_a_number, sorted_merge
    "#]],
    );
    check(
        json!({"a": {"type": "array", "handler": "sorted_merge"}}),
        "a = [2]
        a = 1",
        expect![[r#"
            a: [1,2]
        "#]],
    );
}

#[test]
fn per_key_default() {
    check(
        json!({"count": {"type": "integer", "handler": "sum", "default": 5}, "list": {"type": "array", "default": [1]}}),
        "count?
        has list
        count = 1
        list = [2]
        count?
        list?
        remove count
        remove list",
        expect![[r#"
            count? -> 5
            has list -> true
            count? -> 6
            list? -> [1,2]
            count: 5
            list: [1]
        "#]],
    );
    check(
        json!({"count": {"type": "integer", "default": "secret"}}),
        "",
        expect![[r#"
        no schema! invalid schema: count: invalid default: invalid value for key "count": expected integer, found string at $
    "#]],
    );
}

#[test]
fn messages() {
    check(
        json!({}),
        r#"
        has messages
        messages?
        messages = {"role": "user", "parts": ["hi"]}
        messages = [{"role": "assistant", "parts": ["hello"]}]
        messages = [{"role": "user", "parts": ["hi"]}, {"role": "secret", "parts": []}]
        messages = "secret"
        messages = [] by sum
        remove messages
        messages = {"role": "user", "parts": ["again"]} by replace_values
        "#,
        expect![[r#"
            has messages -> true
            messages? -> []
            messages = [{"role": "user", "parts": ["hi"]}, {"role": "secret", "parts": []}] ! invalid value for key "messages": unknown variant, expected one of `system`, `user`, `assistant`, `tool` at $[1].role
            messages = "secret" ! invalid value for key "messages": expected a message: an object with `role` and `parts`, found string at $
            messages = [] by sum ! handler sum failed for key "messages": messages are appended (merge_lists) or replaced (replace_values)
            remove messages ! key "messages" cannot be written: it is the projection of message events; push a message instead
            messages: [{"parts":[{"text":"again"}],"role":"user"}]
        "#]],
    );
    // To declare it as what it is changes nothing.
    const MESSAGES: Key<Vec<Message>> = Key::new("messages");
    let mut state = State::new(&Schema::builder().key(MESSAGES).build().unwrap());
    state.append(MESSAGES, Message::user("hi")).unwrap();
    state.push_message(Message::assistant("hello"));
    assert_eq!(state.get(MESSAGES).unwrap().unwrap().len(), 2);
    let refuse = |builder: stepfold_state_core::state::SchemaBuilder| report(&builder.build().unwrap_err());
    expect![[r#"
        invalid schema: messages: "messages" is a list of messages and cannot be declared with another type
        invalid schema: messages: messages are always appended: the handler cannot be changed
        invalid schema: messages: a conversation begins empty: the default cannot be set"#]]
    .assert_eq(
        &[
            refuse(Schema::builder().key::<Vec<String>>("messages")),
            refuse(Schema::builder().key(MESSAGES).handler(Handler::keep_last(3))),
            refuse(Schema::builder().key(MESSAGES).default(vec![Message::user("hi")])),
        ]
        .join("\n"),
    );
}

#[test]
fn reserved_keys() {
    for key in RESERVED_KEYS.iter().filter(|key| **key != "messages") {
        let error = Schema::builder().key::<String>((*key).to_owned()).build().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("invalid schema: {key}: the name is reserved for the outcome of a run"),
        );
    }
}

#[test]
fn copies() {
    let mut state = State::new(&super::schema(&json!({"list": {"type": "array"}})).unwrap());
    state.set("list", json!([{"a": 1}])).unwrap();
    let first = std::ptr::from_ref(state.get("list").unwrap().item(0).unwrap());
    assert_eq!(first, std::ptr::from_ref(state.get("list").unwrap().item(0).unwrap()), "reading copied");
    let snapshot = state.clone();
    let mut taken_out = state.get("list").unwrap().to_json();
    taken_out[0]["a"] = json!(2);
    state.set("list", json!([{"b": 1}])).unwrap();
    assert_eq!(state.get("list").unwrap(), json!([{"a": 1}, {"b": 1}]));
    assert_eq!(snapshot.get("list").unwrap(), json!([{"a": 1}]));
    // Not by growing, nor by going on from an older version, are items copied.
    for number in 0..100 {
        state.set("list", number).unwrap();
        state.clone().set("list", number).unwrap();
    }
    assert_eq!(first, std::ptr::from_ref(state.get("list").unwrap().item(0).unwrap()), "writing copied");
}

#[test]
fn round_trip() {
    let schema = Schema::builder().open().build().unwrap();
    let values = json!({
        "mixed": [1, 1.0, true, null, "1", [[1], [[]]], {"a": [{}]}],
        "limits": [u64::MAX, i64::MIN, f64::MAX, f64::MIN_POSITIVE, 5e-324, -0.0, 0.1, 1e300],
        "user:ключ": "\u{0}\u{7f}\u{2028}😀 é e\u{301}",
    });
    let state = State::with_values(&schema, values).unwrap();
    let read = State::from_json(&schema, &serde_json::to_string(&state).unwrap()).unwrap();
    assert_eq!(json_of(&read), json_of(&state));
    assert_eq!(read, state);
    assert_ne!(
        State::with_values(&schema, json!({"a": 1})).unwrap(),
        State::with_values(&schema, json!({"a": 1.0})).unwrap(),
    );
}

#[test]
fn values_are_not_nested_too_deep_to_be_read_again() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let schema = Schema::builder().open().build().unwrap();
    let mut state = State::new(&schema);
    state.set("a", nested(100)).unwrap();
    state.set("b", json!({"a": {"b": nested(98)}})).unwrap();
    let error = state.set("a", nested(101)).unwrap_err();
    assert_eq!(error.to_string(), "value for key \"a\" nested too deeply: expected at most 100 levels");
    state.set_with("c", json!({"a": nested(99)}), &Handler::union()).unwrap_err();
    let json = serde_json::to_string(&state).unwrap();
    assert_eq!(json_of(&State::from_json(&schema, &json).unwrap()), json_of(&state));
}

#[test]
fn states_can_go_to_other_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<State>();
    is_shared::<Schema>();
    is_shared::<stepfold_state_core::state::StateError>();
    is_shared::<stepfold_state_core::state::Delta>();
}
