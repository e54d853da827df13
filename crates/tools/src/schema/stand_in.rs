//! Removes the nulls that the strict form uses in place of omitted properties, so that the plain schema
//! applies and readers that expect absence work.

use serde_json::{Map, Value};
use stepfold_state_core::json_schema::{allows_null, alternatives, fits, is_required};

/// Drops nulls that the strict form uses in place of an omitted property. A null that the property allows is
/// kept.
pub(crate) fn drop_stand_in_nulls(schema: &Value, value: &mut Value) {
    // Most arguments have no nulls, and then nothing has to be checked.
    if has_null(value) {
        drop_nulls(schema, value);
    }
}

fn drop_nulls(schema: &Value, value: &mut Value) {
    let Value::Object(fields) = schema else { return };
    if let Some(branches) = alternatives(fields)
        && let Some(restored) = of_first_fitting(branches, value)
    {
        *value = restored;
    }
    match value {
        Value::Object(properties) => drop_of_object(fields, properties),
        Value::Array(items) => {
            if let Some(item_schema) = fields.get("items") {
                for item in items {
                    drop_nulls(item_schema, item);
                }
            }
        }
        _ => {}
    }
}

/// The value without stand-ins, by the first alternative that it then fits.
fn of_first_fitting(branches: &[Value], value: &Value) -> Option<Value> {
    if !matches!(value, Value::Object(_) | Value::Array(_)) {
        return None;
    }
    branches.iter().find_map(|branch| {
        let mut restored = value.clone();
        drop_nulls(branch, &mut restored);
        fits(branch, &restored).then_some(restored)
    })
}

fn drop_of_object(fields: &Map<String, Value>, properties: &mut Map<String, Value>) {
    let Some(Value::Object(known)) = fields.get("properties") else { return };
    properties.retain(|name, value| {
        let is_stand_in = value.is_null()
            && !is_required(fields, name)
            && known.get(name).is_some_and(|property| !allows_null(property));
        !is_stand_in
    });
    for (name, value) in properties {
        if let Some(property) = known.get(name) {
            drop_nulls(property, value);
        }
    }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}
