//! Reads the values of a file into a form. A value that does not fit is a fault at its place and is left out; then the
//! form is read again, so that all faults are found at once.
//!
//! NOTE: The deserializer of `toml` stops at the first misfit, and a check against a JSON Schema would describe the form a
//! second time: `docs/decisions/command.md`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize as _;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::de::DeValue;

use super::faults::{FaultCollector, ValuePath};
use super::nearest::nearest;

/// The place of the whole file, which cannot be left out.
const WHOLE: usize = usize::MAX;

/// Reads the form of a file; none if nothing of it can be read.
pub(crate) fn read<F: DeserializeOwned>(file: &DeValue<'_>, faults: &mut FaultCollector) -> Option<F> {
    let left_out = SkippedValues::default();
    let form = loop {
        let whole = FormDeserializer { start: WHOLE, value: file, left_out: &left_out };
        match F::deserialize(whole).map_err(|misfit| whole.leave_out(misfit)) {
            Ok(form) => break Some(form),
            Err(FormError { start: Some(start), message, is_told, .. }) if start != WHOLE => {
                if !is_told {
                    faults.add_at(start, message);
                }
            }
            Err(misfit) => {
                faults.add_at(0, misfit.message);
                break None;
            }
        }
    };
    note_places(file, &left_out.borrow(), &mut Vec::new(), faults);
    form
}

/// The places of the values that were left out.
type SkippedValues = RefCell<BTreeSet<usize>>;

/// Records the places of the form's values. Items are numbered as in the form: without the ones that were left out.
fn note_places(
    value: &DeValue<'_>,
    left_out: &BTreeSet<usize>,
    path: &mut ValuePath,
    faults: &mut FaultCollector,
) {
    let mut items = 0;
    for part in parts(value) {
        let is_left_out = left_out.contains(&part.start);
        path.push(part.name.map_or_else(|| items.to_string(), str::to_owned));
        faults.place(path, part.start, is_left_out);
        if !is_left_out {
            note_places(part.value, left_out, path, faults);
            items += 1;
        }
        path.pop();
    }
}

/// A field of a table, or an item of a list.
struct TomlPart<'a> {
    /// The name of the field.
    name: Option<&'a str>,
    /// The byte at which its key, or the item, begins: unique in the file.
    start: usize,
    value: &'a DeValue<'a>,
}

fn parts<'a>(value: &'a DeValue<'a>) -> Vec<TomlPart<'a>> {
    match value {
        DeValue::Table(fields) => fields
            .iter()
            .map(|(name, value)| TomlPart {
                name: Some(name.get_ref()),
                start: name.span().start,
                value: value.get_ref(),
            })
            .collect(),
        DeValue::Array(items) => items
            .iter()
            .map(|item| TomlPart { name: None, start: item.span().start, value: item.get_ref() })
            .collect(),
        _ => Vec::new(),
    }
}

/// Deserializes a value of the file, without the values that were left out.
#[derive(Clone, Copy)]
struct FormDeserializer<'a> {
    start: usize,
    value: &'a DeValue<'a>,
    left_out: &'a SkippedValues,
}

impl<'de> FormDeserializer<'de> {
    /// The fields, or the items, that were not left out.
    fn parts(self) -> PartAccess<'de> {
        let mut parts = parts(self.value);
        parts.retain(|part| !self.left_out.borrow().contains(&part.start));
        PartAccess { rest: parts.into_iter(), field: None, left_out: self.left_out }
    }

    /// Leaves out the misfit: this value, or an unknown field of it.
    fn leave_out(self, mut misfit: FormError) -> FormError {
        if misfit.start.is_some() {
            return misfit;
        }
        let mut parts = parts(self.value).into_iter();
        let named = misfit.field.as_deref().and_then(|field| parts.find(|part| part.name == Some(field)));
        // A field that is missing because it was left out has its fault already.
        misfit.is_told = misfit.is_missing && named.is_some();
        let start = named.filter(|_| !misfit.is_missing).map_or(self.start, |part| part.start);
        // NOTE: Each round must leave out something new, or reading would never end: a second misfit at one place gives up.
        let is_new = self.left_out.borrow_mut().insert(start);
        misfit.start = Some(if is_new { start } else { WHOLE });
        misfit
    }
}

impl<'de> Deserializer<'de> for FormDeserializer<'de> {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        match self.value {
            DeValue::String(text) => visitor.visit_borrowed_str(text),
            DeValue::Boolean(truth) => visitor.visit_bool(*truth),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => Err(FormError::custom("the number does not fit 64 bits")),
            },
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(number) if number.is_finite() => visitor.visit_f64(number),
                _ => Err(FormError::custom("invalid number: JSON has no infinite or NaN numbers")),
            },
            DeValue::Datetime(time) => visitor.visit_string(time.to_string()),
            DeValue::Array(_) => visitor.visit_seq(self.parts()),
            DeValue::Table(_) => visitor.visit_map(self.parts()),
            // The kinds of TOML values are all here.
            #[allow(unreachable_patterns, reason = "the library may mark the kinds as open")]
            _ => visitor.visit_unit(),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_some(self)
    }

    /// All enums of the forms are written as names.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        visitor.visit_enum(String::deserialize(self)?.into_deserializer())
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Gives access to the fields of a table, or the items of a list. A misfit may only be known when the whole value was
/// read: so the value is left out here.
struct PartAccess<'a> {
    rest: std::vec::IntoIter<TomlPart<'a>>,
    /// The value of the field whose name was read.
    field: Option<FormDeserializer<'a>>,
    left_out: &'a SkippedValues,
}

impl<'de> PartAccess<'de> {
    fn next(&mut self) -> Option<(&'de str, FormDeserializer<'de>)> {
        let TomlPart { name, start, value } = self.rest.next()?;
        Some((name.unwrap_or_default(), FormDeserializer { start, value, left_out: self.left_out }))
    }
}

impl<'de> SeqAccess<'de> for PartAccess<'de> {
    type Error = FormError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, FormError> {
        let Some((_, item)) = self.next() else { return Ok(None) };
        seed.deserialize(item).map(Some).map_err(|misfit| item.leave_out(misfit))
    }
}

impl<'de> MapAccess<'de> for PartAccess<'de> {
    type Error = FormError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, FormError> {
        let Some((name, field)) = self.next() else { return Ok(None) };
        self.field = Some(field);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, FormError> {
        let field = self.field.take().ok_or_else(|| FormError::custom("expected a value after its name"))?;
        seed.deserialize(field).map_err(|misfit| field.leave_out(misfit))
    }
}

/// The reason why a value does not fit.
#[derive(Debug)]
struct FormError {
    message: String,
    /// The field that is unknown or missing.
    field: Option<String>,
    is_missing: bool,
    /// Whether it follows from a fault that is recorded already.
    is_told: bool,
    /// The place of the value that was left out.
    start: Option<usize>,
}

impl FormError {
    fn of_field(field: &str, is_missing: bool, message: String) -> Self {
        FormError { field: Some(field.to_owned()), is_missing, ..FormError::custom(message) }
    }
}

impl Error for FormError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        FormError {
            message: message.to_string(),
            field: None,
            is_missing: false,
            is_told: false,
            start: None,
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        // NOTE: serde describes types in terms of Rust, which authors of files need not know.
        let expected = match expected.to_string().as_str() {
            "a string" => "string".to_owned(),
            "a boolean" => "boolean".to_owned(),
            "a sequence" => "list".to_owned(),
            "f64" => "number".to_owned(),
            "i64" | "u32" | "u64" | "usize" => "integer".to_owned(),
            text if text == "a map" || text.starts_with("struct ") => "object".to_owned(),
            text => text.to_owned(),
        };
        let found = match found {
            Unexpected::Bool(_) => "boolean",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) => "integer",
            Unexpected::Float(_) => "fractional number",
            Unexpected::Seq => "list",
            Unexpected::Map => "object",
            _ => "string",
        };
        FormError::custom(format!("expected {expected}, found {found}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let range = match expected.to_string().as_str() {
            "u32" => format!(", expected 0 to {}", u32::MAX),
            "u64" | "usize" => ", expected 0 or more".to_owned(),
            _ => String::new(),
        };
        FormError::custom(format!("invalid value: {found}{range}"))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        FormError::custom(format!("expected one of {}", expected.join(", ")))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let near = nearest(field, expected.iter().copied());
        FormError::of_field(field, false, format!("unknown field `{field}`{near}"))
    }

    fn missing_field(field: &'static str) -> Self {
        FormError::of_field(field, true, format!("missing `{field}`"))
    }
}

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FormError {}
