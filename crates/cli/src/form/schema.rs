//! The JSON Schemas of agent files and graph files, as `stepfold schema` prints them for editors.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The schema of a form, without references and without null, which TOML does not have.
pub(crate) fn json_schema<F: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_deserialize().with(|settings| {
        settings.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<F>().to_value();
    drop_null(&mut schema);
    schema
}

/// Drops null from a schema: an optional field is left out in TOML, never null.
fn drop_null(schema: &mut Value) {
    if let Value::Object(fields) = schema {
        if let Some(Value::Array(names)) = fields.get_mut("type") {
            names.retain(|name| name != "null");
            if let [name] = names.as_slice() {
                let name = name.clone();
                fields.insert("type".to_owned(), name);
            }
        }
        if let Some(Value::Array(values)) = fields.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
        let is_null = |branch: &Value| branch.get("type").is_some_and(|name| name == "null");
        if let Some(Value::Array(branches)) = fields.get_mut("anyOf") {
            branches.retain(|branch| !is_null(branch));
            if let [Value::Object(only)] = branches.as_mut_slice() {
                let only = std::mem::take(only);
                fields.shift_remove("anyOf");
                for (name, value) in only {
                    fields.entry(name).or_insert(value);
                }
            }
        }
        let is_no_value = |value: &Value| value.is_null();
        if fields.get("default").is_some_and(is_no_value) {
            fields.shift_remove("default");
        }
        fields.values_mut().for_each(drop_null);
    } else if let Value::Array(items) = schema {
        items.iter_mut().for_each(drop_null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::agent::AgentFileForm;
    use crate::form::graph::GraphForm;

    #[test]
    fn the_schema_is_one_and_has_neither_references_nor_null() {
        for schema in [json_schema::<AgentFileForm>(), json_schema::<GraphForm>()] {
            stepfold::state_core::json_schema::ValueType::of_schema(schema.clone()).unwrap();
            let text = schema.to_string();
            assert!(!text.contains("$ref") && !text.contains("\"null\""), "{text}");
        }
    }
}
