//! JSON Schema: schemas of Rust types, validation, and schemas as data.
//!
//! In order: [`json_schema_of`] derives the schema of a Rust type; a [`ValueType`] is a schema prepared for
//! validation; [`ValueKinds`] are the kinds of values that a schema allows; [`fits`] and [`exclude_each_other`]
//! tell alternatives apart. The other functions read single keywords, for code that transforms schemas.

mod check;
mod fit;
mod keywords;
mod kinds;
mod references;
mod value_type;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

pub(crate) use self::check::DecodeCheck;
pub use self::fit::{allows_null, exclude_each_other, fits};
pub use self::keywords::{alternatives, is_annotation, is_required, literals, subschemas_mut};
pub use self::kinds::ValueKinds;
pub(crate) use self::references::standalone;
pub use self::references::{check_bounded, target};
pub use self::value_type::{InvalidSchema, ValueType};

/// The JSON Schema of a type (draft 2020-12), with everything inlined except recursive types.
///
/// # Examples
/// ```
/// use stepfold_state_core::json_schema::json_schema_of;
///
/// assert_eq!(json_schema_of::<Vec<String>>()["items"]["type"], "string");
/// ```
pub fn json_schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.into_generator().into_root_schema_for::<T>().to_value()
}
