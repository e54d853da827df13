//! Templates, rule by rule.

#![expect(clippy::unicode_not_nfc, reason = "keys of decomposed letters are part of what is tested")]

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_state_core::state::{NameList, Schema, State, Template, ValueRef};

use super::report;

/// Renders a template over one state that has a bit of everything.
fn check(template: &str, expected: Expect) {
    let schema = Schema::builder().open().build().unwrap();
    let values = json!({
        "name": "Ada", "user:name": "Bob", "app:name": "Demo", "temp:name": "Now", "empty": "", "nothing": null,
        "count": 3, "ratio": 1.0, "list": [1, {"title": "a b"}], "map": {"a": {"b": "deep"}, "list": ["zero"]},
        "user:preferences.theme": "dark", "user:preferences": {"theme": "shadowed", "size": 12},
        "имя": "Ада", "nom-propre_2": "é", "हिन्दी": "hindi", "e\u{301}te\u{301}": "summer",
        "evil": "{name} {{name}} }}", "9": "nine",
    });
    let state = State::with_values(&schema, values).unwrap();
    expected.assert_eq(&Template::parse(template).render(&state).unwrap_or_else(|error| report(&error)));
}

#[test]
fn keys_and_prefixes() {
    check("{name} {user:name} {app:name} {temp:name}", expect!["Ada Bob Demo Now"]);
    check("{имя} {nom-propre_2} {हिन्दी} {e\u{301}te\u{301}}", expect!["Ада é hindi summer"]);
    check("{name}{name}", expect!["AdaAda"]);
    check("", expect![""]);
}

#[test]
fn how_values_are_written() {
    check(
        r"{count} {ratio} {list} {map}",
        expect![[r#"3 1.0 [1,{"title":"a b"}] {"a":{"b":"deep"},"list":["zero"]}"#]],
    );
    check("[{empty}] [{nothing}] [{nothing?}] [{messages}]", expect!["[] [null] [] [[]]"]);
}

#[test]
fn optional() {
    check("[{absent?}] [{user:absent?}] [{map.a.c?}] [{name?}]", expect!["[] [] [] [Ada]"]);
}

#[test]
fn missing() {
    check(
        "Dear {name},\n\n  é {absent}!",
        expect![[
            r#"missing key "absent" for the template at line 3, column 5; write {absent?} if it is optional; known keys: 9, app:name, count, empty, evil, été, list, map, name, nom-propre_2, nothing, ratio, temp:name, user:name, user:preferences, user:preferences.theme, имя, हिन्दी, messages"#
        ]],
    );
}

#[test]
fn dotted_names() {
    check("{user:preferences.theme} {user:preferences.size}", expect!["dark 12"]);
    check("{map.a.b} {map.list.0} {list.1.title} {map.a}", expect![[r#"deep zero a b {"b":"deep"}"#]]);
    check("{map.a.b.c?}{list.7?}{list.-1?}{map..a?}{.name?}{name.?}", expect![""]);
}

#[test]
fn plain_braces() {
    for text in [
        r#"{"a": 1}"#,
        r#"{"a": {"b": {"c": 1}}}"#,
        "{ name }",
        "{name }",
        "{other:x}",
        "{user:}",
        "{user:a:b}",
        "{name??}",
        "{name!r}",
        "{}",
        "{?}",
        "{...}",
        "{-}",
        "{a b}",
        "{name",
        "name}",
        "{\nname}",
        "function f() { return {a: 1}; }",
        "}} {",
        "{",
        "}",
    ] {
        let state = State::new(&Schema::builder().build().unwrap());
        assert_eq!(Template::parse(text).render(&state).unwrap(), text);
    }
}

#[test]
fn doubled_braces() {
    check("{{name}}", expect!["{name}"]);
    check("{{{name}}}", expect!["{Ada}"]);
    check("{{{{name}}}}", expect!["{{name}}"]);
    check("{{}} {{ {name} }} {{", expect!["{} { Ada } {"]);
    check(r#"{{"a": {{"b": 1}}}} and {"a": {"b": 1}}"#, expect![[r#"{"a": {"b": 1}} and {"a": {"b": 1}}"#]]);
    check(r#"{"a": {"b": "{name}"}}"#, expect![[r#"{"a": {"b": "Ada"}}"#]]);
    check(r#"{"a": {"b": {count}}}"#, expect![[r#"{"a": {"b": 3}}"#]]);
    check("{{name}", expect!["{name}"]);
}

#[test]
fn values_are_never_expanded_again() {
    check("{evil}|{evil}", expect!["{name} {{name}} }}|{name} {{name}} }}"]);
}

#[test]
fn values_from_elsewhere() {
    let value = json!({"b": 1});
    let template = Template::parse("{a.b} {c?}");
    assert_eq!(template.placeholders().collect::<Vec<_>>(), [("a.b", false), ("c", true)]);
    let lookup = |key: &str| (key == "a").then(|| ValueRef::from(&value));
    assert_eq!(template.render_with(lookup, NameList::default).unwrap(), "1 ");
    let error = template.render_with(|_| None, NameList::default).unwrap_err();
    expect![[r#"missing key "a.b" for the template at line 1, column 1; write {a.b?} if it is optional; known keys: none"#]]
        .assert_eq(&report(&error));
}
