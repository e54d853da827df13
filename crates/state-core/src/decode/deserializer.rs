//! A deserializer of JSON values that records the path of an error.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use super::fault::{DecodeFault, PathStep};

/// Reads one value.
pub(super) struct ValueDeserializer<'a>(pub(super) &'a Value);

impl<'de> Deserializer<'de> for ValueDeserializer<'de> {
    type Error = DecodeFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            // NOTE: Integers are given as `serde_json` gives them, so that a type that failed there fails here as well.
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, Some(number)) => visitor.visit_f64(number),
                _ => Err(DecodeFault::rejected()),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => read_items(items, visitor),
            Value::Object(fields) => read_fields(fields, visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        // NOTE: As in `serde_json`, a newtype has the form of its content.
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        match self.0 {
            Value::String(variant) => visitor.visit_enum(VariantDeserializer { variant, content: None }),
            Value::Object(fields) if fields.len() == 1 => match fields.iter().next() {
                Some((variant, content)) => {
                    visitor.visit_enum(VariantDeserializer { variant, content: Some(content) })
                }
                None => Err(DecodeFault::rejected()),
            },
            Value::Object(_) => {
                Err(DecodeFault::invalid_value(Unexpected::Map, &"an object with one field, the variant"))
            }
            other => Err(DecodeFault::invalid_type(unexpected(other), &"a variant: a string, or an object")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The kind of the value in `serde`'s terms; the contents of numbers are not shown.
fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) if number.is_f64() => Unexpected::Float(0.0),
        Value::Number(_) => Unexpected::Signed(0),
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

fn read_items<'de, V: Visitor<'de>>(items: &'de [Value], visitor: V) -> Result<V::Value, DecodeFault> {
    let mut read = ListAccess { items, next: 0 };
    let value = visitor.visit_seq(&mut read)?;
    // NOTE: As in `serde_json`, a type must read the whole list.
    match read.next == items.len() {
        true => Ok(value),
        false => Err(DecodeFault::invalid_length(items.len(), &"fewer items")),
    }
}

struct ListAccess<'a> {
    items: &'a [Value],
    next: usize,
}

impl<'de> SeqAccess<'de> for ListAccess<'de> {
    type Error = DecodeFault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeFault> {
        let Some(item) = self.items.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        seed.deserialize(ValueDeserializer(item))
            .map(Some)
            .map_err(|fault| fault.inside(PathStep::Index(index), item))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

fn read_fields<'de, V: Visitor<'de>>(
    fields: &'de Map<String, Value>,
    visitor: V,
) -> Result<V::Value, DecodeFault> {
    let mut read = ObjectAccess { fields: fields.iter(), current: None };
    let value = visitor.visit_map(&mut read)?;
    // NOTE: As in `serde_json`, a type must read the whole object.
    match read.fields.len() {
        0 => Ok(value),
        _ => Err(DecodeFault::invalid_length(fields.len(), &"fewer fields")),
    }
}

struct ObjectAccess<'a> {
    fields: serde_json::map::Iter<'a>,
    current: Option<(&'a String, &'a Value)>,
}

impl<'de> MapAccess<'de> for ObjectAccess<'de> {
    type Error = DecodeFault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeFault> {
        self.current = self.fields.next();
        let Some((name, _)) = self.current else { return Ok(None) };
        seed.deserialize(NameDeserializer(name))
            .map(Some)
            .map_err(|fault| fault.bound_to(&Value::from(name.as_str())))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, DecodeFault> {
        let Some((name, field)) = self.current.take() else { return Err(DecodeFault::rejected()) };
        seed.deserialize(ValueDeserializer(field))
            .map_err(|fault| fault.inside(PathStep::Field(name.clone()), field))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.fields.len())
    }
}

/// Reads the name of a field: as text, or as the number or boolean that it represents.
// NOTE: A Rust map may have numbers as keys, which JSON writes as text.
struct NameDeserializer<'a>(&'a str);

macro_rules! parse_names {
    ($($method:ident => $visit:ident: $type:ty),+ $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
            match self.0.parse::<$type>() {
                Ok(value) => visitor.$visit(value),
                Err(_) => self.deserialize_any(visitor),
            }
        }
    )+};
}

impl<'de> Deserializer<'de> for NameDeserializer<'de> {
    type Error = DecodeFault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        visitor.visit_borrowed_str(self.0)
    }

    parse_names! {
        deserialize_bool => visit_bool: bool,
        deserialize_i8 => visit_i8: i8,
        deserialize_i16 => visit_i16: i16,
        deserialize_i32 => visit_i32: i32,
        deserialize_i64 => visit_i64: i64,
        deserialize_i128 => visit_i128: i128,
        deserialize_u8 => visit_u8: u8,
        deserialize_u16 => visit_u16: u16,
        deserialize_u32 => visit_u32: u32,
        deserialize_u64 => visit_u64: u64,
        deserialize_u128 => visit_u128: u128,
        deserialize_f32 => visit_f32: f32,
        deserialize_f64 => visit_f64: f64,
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeFault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        let variant: StrDeserializer<'_, DecodeFault> = self.0.into_deserializer();
        variant.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Reads a variant of an enum, with its content.
struct VariantDeserializer<'a> {
    variant: &'a str,
    content: Option<&'a Value>,
}

impl<'a> VariantDeserializer<'a> {
    /// Reads the content with a visitor for a list or an object.
    fn read<T>(
        self,
        read: impl FnOnce(ValueDeserializer<'a>) -> Result<T, DecodeFault>,
        expected: &'static str,
    ) -> Result<T, DecodeFault> {
        let Some(content) = self.content else {
            return Err(DecodeFault::invalid_type(Unexpected::UnitVariant, &expected));
        };
        read(ValueDeserializer(content))
            .map_err(|fault| fault.inside(PathStep::Field(self.variant.to_owned()), content))
    }
}

impl<'de> EnumAccess<'de> for VariantDeserializer<'de> {
    type Error = DecodeFault;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), DecodeFault> {
        let read = seed.deserialize(NameDeserializer(self.variant));
        Ok((read.map_err(|fault| fault.bound_to(&Value::from(self.variant)))?, self))
    }
}

impl<'de> VariantAccess<'de> for VariantDeserializer<'de> {
    type Error = DecodeFault;

    fn unit_variant(self) -> Result<(), DecodeFault> {
        match self.content {
            None => Ok(()),
            // NOTE: As in `serde_json`, `{"variant": null}` is a variant without content.
            Some(_) => self.read(serde::Deserialize::deserialize, "a variant without content"),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, DecodeFault> {
        self.read(|content| seed.deserialize(content), "a variant with content")
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, DecodeFault> {
        self.read(|content| content.deserialize_tuple(length, visitor), "a variant with a list")
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeFault> {
        self.read(|content| content.deserialize_struct("", fields, visitor), "a variant with an object")
    }
}
