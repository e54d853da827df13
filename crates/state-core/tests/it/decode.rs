//! Decoding: an error names the place and the kind of the fault, and never shows the value.

use std::collections::BTreeMap;

use expect_test::expect;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_state_core::{DecodeError, DecodeErrorKind, decode};

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    title: String,
    #[serde(default)]
    pages: u8,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    by_year: BTreeMap<u16, Vec<bool>>,
    point: Option<(i32, i32)>,
    #[serde(default)]
    even: Even,
    #[serde(default)]
    loose: Option<Loose>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Report,
    Table(u64),
    Pair(u64, String),
    Plot {
        title: String,
    },
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Loose {
    Number(i64),
    Words { words: String },
}

/// A type with a reason of its own, which may quote the value.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
struct Even(u64);

impl TryFrom<Value> for Even {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value.as_u64() {
            Some(number) if number % 2 == 0 => Ok(Even(number)),
            Some(number) => Err(format!("{number} is odd")),
            None => Err("an even number is expected".to_owned()),
        }
    }
}

fn refused(value: Value) -> DecodeError {
    decode::<Document>(&value).unwrap_err()
}

/// A document with another field.
fn with(name: &str, value: Value) -> String {
    let mut document = json!({"title": "t"});
    document[name] = value;
    let error = refused(document);
    format!("{:?} {error}\n", error.kind())
}

#[test]
fn errors_have_a_path_and_a_kind() {
    let texts = [
        with("title", json!(77)),
        with("pages", json!("s3cret")),
        with("pages", json!(300)),
        with("pages", json!(-1)),
        with("pages", json!(1.5)),
        with("kind", json!("s3cret")),
        with("kind", json!({"s3cret": 1})),
        with("kind", json!({"table": "s3cret"})),
        with("kind", json!("table")),
        with("kind", json!({"report": "s3cret"})),
        with("kind", json!({"pair": [1]})),
        with("kind", json!({"pair": [1, 2]})),
        with("kind", json!({"plot": {"title": null}})),
        with("kind", json!({"table": 1, "s3cret": 2})),
        with("kind", json!(true)),
        with("by_year", json!({"2026": [true, "s3cret"]})),
        with("by_year", json!({"s3cret": []})),
        with("by_year", json!([])),
        with("point", json!([1])),
        with("point", json!([1, 2, 3])),
        with("point", json!([1, {"x": "s3cret"}])),
        with("s3cret", json!(1)),
        with("even", json!(7)),
        with("even", json!("s3cret")),
        with("loose", json!("s3cret")),
        format!("{}\n", refused(json!({"pages": 1}))),
        format!("{}\n", refused(json!("s3cret"))),
        format!("{}\n", decode::<Vec<Document>>(&json!([{"title": "t"}, {"title": []}])).unwrap_err()),
        format!("{}\n", decode::<BTreeMap<String, u8>>(&json!({"odd name": "s3cret"})).unwrap_err()),
    ]
    .concat();
    assert!(!texts.contains("s3cret"), "{texts}");
    expect![[r#"
        InvalidType expected a string, found integer at $.title
        InvalidType expected u8, found string at $.pages
        InvalidValue expected u8, found an invalid integer at $.pages
        InvalidValue expected u8, found an invalid integer at $.pages
        InvalidType expected u8, found fractional number at $.pages
        UnknownVariant unknown variant, expected one of `report`, `table`, `pair`, `plot` at $.kind
        UnknownVariant unknown variant, expected one of `report`, `table`, `pair`, `plot` at $.kind
        InvalidType expected u64, found string at $.kind.table
        InvalidType expected a variant with content, found string at $.kind
        InvalidType expected unit, found string at $.kind.report
        InvalidLength invalid length 1, expected tuple variant Kind::Pair with 2 elements at $.kind.pair
        InvalidType expected a string, found integer at $.kind.pair[1]
        InvalidType expected a string, found null at $.kind.plot.title
        InvalidValue expected an object with one field, the variant, found an invalid object at $.kind
        InvalidType expected a variant: a string, or an object, found boolean at $.kind
        InvalidType expected a boolean, found string at $.by_year.2026[1]
        InvalidType expected u16, found string at $.by_year
        InvalidType expected a map, found list at $.by_year
        InvalidLength invalid length 1, expected a tuple of size 2 at $.point
        InvalidLength invalid length 3, expected fewer items at $.point
        InvalidType expected i32, found object at $.point[1]
        UnknownField unknown field, expected one of `title`, `pages`, `kind`, `by_year`, `point`, `even`, `loose` at $
        Custom invalid value for the type at $.even
        Custom an even number is expected at $.even
        Custom data did not match any variant of untagged enum Loose at $.loose
        missing field `title` at $
        expected struct Document, found string at $
        expected a string, found list at $[1].title
        expected u8, found string at $["odd name"]
    "#]].assert_eq(&texts);
}

#[test]
fn kinds_are_there_to_branch_on() {
    assert_eq!(refused(json!({})).kind(), DecodeErrorKind::MissingField);
    assert_eq!(refused(json!({"title": "t", "x": 1})).kind(), DecodeErrorKind::UnknownField);
    let error = refused(json!({"title": "t", "by_year": {"1": [0]}}));
    assert_eq!((error.path(), error.kind()), ("$.by_year.1[0]", DecodeErrorKind::InvalidType));
    assert_eq!(error.message(), "expected a boolean, found integer");
}

fn any_document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|value| json!(value)),
        any::<i64>().prop_map(|value| json!(value)),
        (0..300_i64).prop_map(|value| json!(value)),
        any::<f64>().prop_map(|value| json!(value)),
        "(s3cret|report|table|words)".prop_map(|value| json!(value)),
    ];
    let names = "(title|pages|kind|by_year|point|even|loose|table|plot|words|7|s3cret)";
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names, inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Errors of `serde_json` are explained with a kind (`Custom` only if the type gives the reason), and without the
    /// value. Accepted values are equal.
    #[test]
    fn agrees_with_serde_json(value in any_document(), title in any::<bool>()) {
        let mut value = value;
        if let (true, Some(fields)) = (title, value.as_object_mut()) {
            fields.insert("title".to_owned(), json!("t"));
        }
        match (decode::<Document>(&value), Document::deserialize(&value)) {
            (Ok(mine), Ok(theirs)) => prop_assert_eq!(mine, theirs),
            (Err(error), Err(theirs)) => {
                prop_assert!(!error.to_string().contains("s3cret"), "{}", error);
                let is_of_type = theirs.to_string().contains("odd")
                    || theirs.to_string().contains("even number")
                    || theirs.to_string().contains("untagged");
                prop_assert_eq!(error.kind() == DecodeErrorKind::Custom, is_of_type, "{} / {}", error, theirs);
            }
            (mine, theirs) => prop_assert!(false, "{:?} / {:?}", mine, theirs),
        }
    }
}
