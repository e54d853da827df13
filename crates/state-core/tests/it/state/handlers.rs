//! Edge cases of the built-in handlers.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_state_core::state::{Handler, HandlerError, Handlers, Key, Schema, State, StateError};

use super::{report, run};

fn check(keys: Value, script: &str, expected: Expect) {
    expected.assert_eq(&run(&keys, script));
}

#[test]
fn union() {
    check(
        json!({"set": {"type": "array", "handler": "union"}}),
        r#"
        set = [1, 1, 1.0, true, "1", {"a": [1], "b": 2}]
        set = {"b": 2, "a": [1]}
        set = [1.0, 2, {"a": [1.0], "b": 2}]
        set = null
        set = null
        "#,
        expect![[r#"
            set: [1,1.0,true,"1",{"a":[1],"b":2},2,{"a":[1.0],"b":2},null]
        "#]],
    );
}

#[test]
fn upsert_by() {
    check(
        json!({"tasks": {"type": "array", "handler": "upsert_by(id)"}}),
        r#"
        tasks = [{"id": 1, "a": 1}, {"id": "1", "a": 1}, {"id": 1, "b": 1}]
        tasks = {"id": 1.0, "c": 1}
        tasks = [{"id": "1", "a": 2}, {"id": 3}, {"id": 3, "d": 1}]
        tasks = [{"id": 1, "a": 3}, {"no": "secret"}]
        tasks = "secret"
        "#,
        expect![[r#"
            tasks = [{"id": 1, "a": 3}, {"no": "secret"}] ! handler upsert_by(id) failed for key "tasks": expected an object with field "id" for new item 1
            tasks = "secret" ! handler upsert_by(id) failed for key "tasks": expected an object with field "id" for new item 0
            tasks: [{"a":1,"b":1,"id":1},{"a":2,"id":"1"},{"c":1,"id":1.0},{"d":1,"id":3}]
        "#]],
    );
}

/// A partial item is valid: the merged item is checked.
#[test]
#[cfg(feature = "validation")]
fn upsert_by_of_partial_items() {
    let task = json!({
        "type": "object", "required": ["id", "title"],
        "properties": {"id": {"type": "integer"}, "title": {"type": "string"}, "done": {"type": "boolean"}},
    });
    check(
        json!({"tasks": {"type": {"type": "array", "items": task}, "handler": "upsert_by(id)"}}),
        r#"
        tasks = [{"id": 1, "title": "a"}]
        tasks = [{"id": 1, "done": true}]
        tasks = [{"id": 1, "title": "b"}, {"id": 2, "done": true}]
        tasks = [{"id": 1, "done": "secret"}]
        "#,
        expect![[r#"
            tasks = [{"id": 1, "title": "b"}, {"id": 2, "done": true}] ! invalid value for key "tasks": "title" is a required property at $[1]
            tasks = [{"id": 1, "done": "secret"}] ! invalid value for key "tasks": expected boolean, found string at $[0].done
            tasks: [{"done":true,"id":1,"title":"a"}]
        "#]],
    );
}

#[test]
fn keep_last() {
    check(
        json!({"recent": {"type": "array", "handler": "keep_last(3)"}}),
        "recent = [1, 2]
        recent = [3, 4, 5, 6]
        recent = 7
        recent = []",
        expect![[r#"
            recent: [5,6,7]
        "#]],
    );
}

#[test]
fn merge_maps() {
    check(
        json!({
            "map": {"type": "object", "handler": "merge_maps"},
            "maybe": {"type": ["object", "null"], "handler": "merge_maps", "default": null},
            "any": {"type": true, "handler": "merge_maps"},
        }),
        r#"
        map = {"a": {"x": 1}, "b": 1}
        map = {"a": {"y": 1}}
        map = ["secret"]
        maybe = {"a": 1}
        any = "secret" by replace_values
        any = {}
        "#,
        expect![[r#"
            map = ["secret"] ! handler merge_maps failed for key "map": expected an object, found list
            any = {} ! handler merge_maps failed for key "any": expected an object as the current value, found string
            any: "secret"
            map: {"a":{"y":1},"b":1}
            maybe: {"a":1}
        "#]],
    );
}

#[test]
#[cfg(feature = "validation")]
fn merge_maps_checks_what_comes_in_or_the_whole() {
    let fixed = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
    let small = json!({"anyOf": [{"type": "object", "maxProperties": 1}, {"type": "array"}]});
    check(
        json!({
            "counts": {"type": {"type": "object", "additionalProperties": {"type": "integer"}}, "handler": "merge_maps"},
            "fixed": {"type": fixed, "handler": "merge_maps"},
            "small": {"type": small, "handler": "merge_maps"},
        }),
        r#"
        counts = {"a": 1}
        counts = {"b": 1.5}
        fixed = {"b": "x"}
        fixed = {"a": 1}
        fixed = {"b": "x"}
        small = {"a": 1}
        small = {"b": 1}
        "#,
        expect![[r#"
            counts = {"b": 1.5} ! invalid value for key "counts": expected integer, found fractional number at $.b
            fixed = {"b": "x"} ! invalid value for key "fixed": "a" is a required property at $
            small = {"b": 1} ! invalid value for key "small": value is not valid under any of the schemas listed in the 'anyOf' keyword at $
            counts: {"a":1}
            fixed: {"a":1,"b":"x"}
            small: {"a":1}
        "#]],
    );
}

#[test]
fn sum() {
    check(
        json!({
            "count": {"type": "integer", "handler": "sum"}, "ratio": {"type": "number", "handler": "sum"},
            "maybe": {"type": ["integer", "null"], "handler": "sum", "default": null}, "any": {"type": true, "handler": "sum"},
        }),
        r#"
        count = 9223372036854775807
        count = 1
        count = -9223372036854775808
        count = 1.5
        ratio = 1
        ratio?
        ratio = 0.5
        ratio = 1e308
        ratio = 1.7e308
        maybe = 3
        maybe = null
        any = true
        "#,
        expect![[r#"
            count = 1.5 ! invalid value for key "count": expected integer, found fractional number at $
            ratio? -> 1
            ratio = 1.7e308 ! handler sum failed for key "ratio": the sum does not fit 64 bits
            maybe = null ! handler sum failed for key "maybe": expected a number, found null; write null with replace_values
            any = true ! handler sum failed for key "any": expected a number, found boolean
            count: 0
            maybe: 3
            ratio: 1e+308
        "#]],
    );
}

#[test]
fn max_and_min() {
    check(
        json!({
            "high": {"type": "number", "handler": "max"}, "low": {"type": "number", "handler": "min"},
            "last": {"type": "string", "handler": "max"}, "any": {"type": true, "handler": "max"},
        }),
        r#"
        high = 9007199254740993
        high = 9007199254740992.0
        low = 9007199254740993
        low = 9007199254740992.0
        high?
        low?
        low = -1.5
        low = -1
        high = 18446744073709551615
        high = 18446744073709551616
        high = 1.8446744073709550e19
        last = "b"
        last = "a"
        any = true
        any = "a"
        any = 1
        "#,
        expect![[r#"
            high? -> 9007199254740993
            low? -> 9007199254740992.0
            any = true ! handler max failed for key "any": expected two numbers or two strings, found boolean and the current null
            any = 1 ! handler max failed for key "any": expected two numbers or two strings, found integer and the current string
            any: "a"
            high: 1.8446744073709552e+19
            last: "b"
            low: -1.5
        "#]],
    );
}

#[test]
fn first_wins() {
    check(
        json!({"a": {"type": ["string", "null"], "handler": "first_wins"}}),
        r#"
        a = null
        a = "first"
        a = "second"
        a = 3
        "#,
        expect![[r#"
            a = 3 ! invalid value for key "a": expected string or null, found integer at $
            a: "first"
        "#]],
    );
}

#[test]
fn append() {
    const LIST: Key<Vec<i64>> = Key::new("list");
    let appended = |handler: Handler| {
        let mut state = State::new(&Schema::builder().key(LIST).handler(handler).build().unwrap());
        for item in [1, 1, 2] {
            state.append(LIST, item).unwrap();
        }
        state.get("list").unwrap().to_string()
    };
    assert_eq!(appended(Handler::merge_lists()), "[1,1,2]");
    assert_eq!(appended(Handler::union()), "[1,2]");
    assert_eq!(appended(Handler::keep_last(2)), "[1,2]");
    // An item is added, whatever a whole value would do.
    assert_eq!(appended(Handler::replace_values()), "[1,1,2]");
    assert_eq!(appended(Handler::first_wins()), "[1,1,2]");
}

#[test]
fn handlers_that_a_schema_refuses() {
    let refuse = |key: Value| run(&json!({"a": key}), "");
    let texts = [
        json!({"type": "string", "handler": "merge_lists"}),
        json!({"type": "string", "handler": "sum"}),
        json!({"type": "array", "handler": "max"}),
        json!({"type": "array", "handler": "merge_maps"}),
        json!({"type": "array", "handler": "keep_last(0)"}),
    ];
    expect![[r#"
        no schema! invalid schema: a: invalid handler merge_lists: requires list, found string
        no schema! invalid schema: a: invalid handler sum: requires number, found string
        no schema! invalid schema: a: invalid handler max: requires number or string, found list
        no schema! invalid schema: a: invalid handler merge_maps: requires object, found list
        no schema! invalid schema: a: invalid handler keep_last(0): the number of kept items must be at least 1
    "#]]
    .assert_eq(&texts.map(refuse).concat());
    // It could be written down, but not read again.
    let nameless = Schema::builder().key::<Vec<Value>>("a").handler(Handler::upsert_by("")).build();
    expect!["invalid schema: a: invalid handler upsert_by(): missing field name"]
        .assert_eq(&report(&nameless.unwrap_err()));
}

#[test]
fn names() {
    for name in
        ["replace_values", "upsert_by(the id)", "upsert_by(a)b)", "keep_last(12)", "mine-2.0", "слить"]
    {
        let handler: Handler = name.parse().unwrap();
        assert_eq!(handler.name(), name);
        assert_eq!(
            serde_json::from_str::<Handler>(&serde_json::to_string(&handler).unwrap()).unwrap(),
            handler
        );
    }
    for name in
        ["", "2a", "a b", "upsert_by()", "keep_last(-1)", "keep_last(x)", "keep_last", "upsert_by", "a(b)"]
    {
        assert!(name.parse::<Handler>().is_err() || Handlers::new().with(custom(name)).is_err(), "{name}");
    }
    assert!(Handlers::new().with(custom("sum")).is_err());
    let twice = Handlers::new().with(custom("mine")).unwrap().with(custom("mine"));
    assert_eq!(
        report(&twice.unwrap_err()),
        "invalid schema: handler mine: duplicate handler \"mine\": two functions have this name",
    );
}

fn custom(name: &str) -> Handler {
    Handler::custom(name, |_, new| Ok(new))
}

#[test]
fn typed() -> Result<(), StateError> {
    #[derive(serde::Deserialize, serde::Serialize)]
    struct Ticket {
        id: u32,
    }
    let newest_first = Handler::of::<Vec<Ticket>>("newest_first", |current, mut new| {
        if new.is_empty() {
            return Err("no ticket".into());
        }
        new.extend(current.unwrap_or_default());
        Ok(new)
    });
    let schema = Schema::builder().key::<Value>("tickets").handler(newest_first).build()?;
    let mut state = State::new(&schema);
    // A null that is stored counts as no current value.
    state.set_with("tickets", Value::Null, &Handler::replace_values())?;
    for id in [1, 2] {
        state.set("tickets", json!([{"id": id}]))?;
    }
    assert_eq!(state.get("tickets").unwrap(), json!([{"id": 2}, {"id": 1}]));
    // The errors show no value, and nothing changes.
    let mut failed = |new| report(&state.set("tickets", new).unwrap_err());
    expect![[
        r#"handler newest_first failed for key "tickets": invalid new value: expected u32, found string"#
    ]]
    .assert_eq(&failed(json!([{"id": "s3cret"}])));
    expect![[r#"handler newest_first failed for key "tickets": no ticket"#]].assert_eq(&failed(json!([])));
    assert_eq!(state.get("tickets").unwrap(), json!([{"id": 2}, {"id": 1}]));
    state.set_with("tickets", json!(["s3cret"]), &Handler::replace_values())?;
    let error = report(&state.set("tickets", json!([{"id": 3}])).unwrap_err());
    expect![[r#"handler newest_first failed for key "tickets": invalid current value: expected struct Ticket, found string"#]].assert_eq(&error);
    Ok(())
}

#[test]
fn errors_of_serde_json_become_errors_of_a_handler_without_their_values() {
    let error = serde_json::from_value::<u32>(json!("s3cret")).unwrap_err();
    assert_eq!(HandlerError::from(error).to_string(), "value does not fit the type");
    let error = serde_json::from_str::<Value>("{").unwrap_err();
    assert_eq!(HandlerError::from(error).to_string(), "value cannot be written or read as JSON");
}

/// The current value may be that of another user: neither a key of it nor a message of its type about a part of it is shown.
#[test]
fn typed_handlers_show_nothing_of_a_value() -> Result<(), StateError> {
    struct Account;

    impl<'de> serde::Deserialize<'de> for Account {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            match text.as_str() {
                "ok" => Ok(Account),
                _ => Err(serde::de::Error::custom(format!("no account is named {}", text.to_uppercase()))),
            }
        }
    }

    impl serde::Serialize for Account {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str("ok")
        }
    }

    let accounts = Handler::of::<Account>("accounts", |_, new| Ok(new));
    let counts = Handler::of::<std::collections::BTreeMap<String, u8>>("counts", |_, new| Ok(new));
    let schema =
        Schema::builder().key::<Value>("account").handler(accounts).key::<Value>("counts").handler(counts);
    let mut state = State::new(&schema.build()?);
    let replace = Handler::replace_values();
    state.set_with("account", json!("s3cret-name"), &replace)?;
    state.set_with("counts", json!({"s3cret-name": "x"}), &replace)?;
    let mut failed = |key, new| report(&state.set(key, new).unwrap_err());
    expect![[
        r#"handler accounts failed for key "account": invalid current value: invalid value for the type"#
    ]]
    .assert_eq(&failed("account", json!("ok")));
    expect![[r#"handler counts failed for key "counts": invalid current value: expected u8, found string"#]]
        .assert_eq(&failed("counts", json!({"a": 1})));
    state.set_with("account", json!("ok"), &replace)?;
    let error = report(&state.set("account", json!("s3cret-name")).unwrap_err());
    expect![[r#"handler accounts failed for key "account": invalid new value: invalid value for the type"#]]
        .assert_eq(&error);
    Ok(())
}
