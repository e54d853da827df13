//! Reads JSON as its schema has it: a struct is an object. What serde derives accepts an array of its fields as well.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

/// Reads a value.
pub(in crate::http) fn from_slice<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(StrictPart(&mut json))?;
    json.end()?;
    Ok(value)
}

/// A part of serde's protocol whose inner parts are strict as well.
// NOTE: An array of the fields of a struct is refused: no document names their order, and it changes with the struct
// (docs/decisions/server.md).
struct StrictPart<T>(T);

/// The visitor of a struct: of no array.
struct ObjectVisitor<V>(V);

macro_rules! deserialize {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(fn $name<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name($($argument,)* StrictPart(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for StrictPart<D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, ObjectVisitor(visitor))
    }
}

macro_rules! visit {
    ($($name:ident($kind:ty);)*) => {
        $(fn $name<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.0.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StrictPart<V> {
    type Value = V::Value;

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_i128(i128);
        visit_u64(u64);
        visit_u128(u128);
        visit_f64(f64);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, of: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(StrictPart(of))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, of: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(StrictPart(of))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(StrictPart(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(StrictPart(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(StrictPart(variant))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(StrictPart(fields))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for StrictPart<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, of: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(StrictPart(of))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for StrictPart<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(StrictPart(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StrictPart<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(StrictPart(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(StrictPart(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for StrictPart<A> {
    type Error = A::Error;
    type Variant = StrictPart<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(StrictPart(seed))?;
        Ok((value, StrictPart(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for StrictPart<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(StrictPart(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, StrictPart(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, ObjectVisitor(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "they are shown, to be compared")]
    struct Row {
        number: u64,
        #[serde(default)]
        of: Option<Box<Row>>,
        #[serde(default)]
        rows: Vec<Row>,
        #[serde(default)]
        by_name: BTreeMap<String, Row>,
        #[serde(default)]
        choice: Option<Choice>,
        any: Option<Value>,
        raw: Option<Box<RawValue>>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "they are shown, to be compared")]
    enum Choice {
        Nothing,
        One { row: Box<Row> },
        Other(Box<Row>),
        Pair(u8, f64),
    }

    fn read(value: &Value) -> Result<Row, serde_json::Error> {
        from_slice(value.to_string().as_bytes())
    }

    /// Wherever an object stands that a struct is read from, an array of the fields is refused.
    #[test]
    fn an_array_is_no_struct() {
        let around: [fn(Value) -> Value; 7] = [
            |row| row,
            |row| json!({"number": 1, "of": row}),
            |row| json!({"number": 1, "rows": [{"number": 2}, row]}),
            |row| json!({"number": 1, "by_name": {"a": row}}),
            |row| json!({"number": 1, "choice": {"One": {"row": row}}}),
            |row| json!({"number": 1, "choice": {"Other": row}}),
            |row| json!({"number": 1, "of": {"number": 2, "rows": [row]}}),
        ];
        for around in around {
            let object = around(json!({"number": 7}));
            assert!(read(&object).is_ok(), "{object}");
            let array = around(json!([7, null, [], {}, null, null, null]));
            let error = read(&array).unwrap_err().to_string();
            assert!(error.starts_with("invalid type: sequence, expected an object"), "{array}: {error}");
            assert!(serde_json::from_value::<Value>(array).is_ok());
        }
        assert!(read(&json!({"number": 1, "choice": {"One": [{"number": 2}]}})).is_err());
    }

    #[test]
    fn all_else_is_read_as_it_is() {
        let text = r#"{"number": 1, "choice": {"Pair": [1, 2.5]}, "any": [1e400, "a\u0301", null, {"x": -1}], "raw": {"a":  1.50}}"#;
        let text = text.replace("1e400", "12345678901234567890123.5");
        let row: Row = from_slice(text.as_bytes()).unwrap();
        let plain: Row = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{row:?}"), format!("{plain:?}"));
        assert_eq!(row.raw.unwrap().get(), r#"{"a":  1.50}"#);
        assert!(matches!(
            read(&json!({"number": 1, "choice": "Nothing"})).unwrap().choice,
            Some(Choice::Nothing)
        ));
        for invalid in ["{\"number\": 1} x", "{\"number\": 1, \"other\": 2}", "{\"number\": \"1\"}", "{", ""]
        {
            let error = |error: serde_json::Error| error.to_string();
            let strict = from_slice::<Row>(invalid.as_bytes()).map_err(error).unwrap_err();
            assert_eq!(strict, serde_json::from_str::<Row>(invalid).map_err(error).unwrap_err());
        }
    }
}
