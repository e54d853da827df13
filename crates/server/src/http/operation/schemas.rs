//! The schemas of requests and answers, and how they are written in the OpenAPI document.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The schemas of what clients send and of what they are answered: a type whose field may be left out in one of them only
/// has two schemas.
pub(in crate::http) struct SchemaGenerators {
    pub(in crate::http) requests: SchemaGenerator,
    pub(in crate::http) answers: SchemaGenerator,
}

/// The path of the schemas of requests until they are merged with those of answers.
const REQUESTS: &str = "/components/requests";

const SCHEMAS: &str = "/components/schemas";

impl SchemaGenerators {
    pub(super) fn new() -> Self {
        let settings = |path: &str| {
            SchemaSettings::draft2020_12()
                .with(|settings| {
                    settings.definitions_path = path.to_owned().into();
                    settings.meta_schema = None;
                })
                .with_transform(RecursiveTransform(plain))
        };
        SchemaGenerators {
            requests: settings(REQUESTS).into_generator(),
            // NOTE: Two generators: a field that answers leave out when it is empty is never absent in the type, and may
            // have a default in requests (docs/decisions/server.md).
            answers: settings(SCHEMAS).for_serialize().into_generator(),
        }
    }

    /// All schemas by name, and for each of requests the name that it has among them: its own, unless an answer has another
    /// schema of this name.
    pub(super) fn merge(mut self) -> (Map<String, Value>, BTreeMap<String, String>) {
        let mut schemas = self.answers.take_definitions(true);
        let requests = self.requests.take_definitions(true);
        let mut names: BTreeMap<String, String> =
            requests.keys().map(|name| (name.clone(), name.clone())).collect();
        // One that refers to one with another name differs as well.
        loop {
            let differs = |(name, schema): &(&String, &Value)| {
                let found = schemas.get(*name).filter(|_| names[*name] == **name);
                found.is_some_and(|found| *found != renamed((*schema).clone(), &names))
            };
            let Some((name, _)) = requests.iter().find(differs) else { break };
            names.insert(name.clone(), format!("{name}Input"));
        }
        for (name, schema) in requests {
            schemas.insert(names[&name].clone(), renamed(schema, &names));
        }
        (schemas, names)
    }
}

/// A value whose references to schemas of requests lead to the names that these have.
pub(super) fn renamed(mut value: Value, names: &BTreeMap<String, String>) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                let name = value.as_str().filter(|_| key == "$ref");
                let name =
                    name.and_then(|text| text.strip_prefix('#')?.strip_prefix(REQUESTS)?.strip_prefix('/'));
                *value = match name {
                    Some(name) => {
                        let name = names.get(name).map_or(name, String::as_str);
                        json!(format!("#{SCHEMAS}/{name}"))
                    }
                    None => renamed(value.take(), names),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = renamed(item.take(), names)),
        _ => {}
    }
    value
}

/// Writes a schema as all generators of clients read it: without `true` and defaults, and with `enum` for constants.
pub(super) fn plain(schema: &mut Schema) {
    if schema.as_bool() == Some(true) {
        *schema = Schema::default();
    }
    let Some(fields) = schema.as_object_mut() else { return };
    // Some generators take a field that has one for a field that is always there.
    fields.remove("default");
    if let Some(constant) = fields.remove("const") {
        fields.insert("enum".to_owned(), json!([constant]));
    }
    let Some(constants) = fields.get("oneOf").and_then(constants) else { return };
    let (words, names): (Vec<String>, Vec<Value>) = constants.into_iter().unzip();
    let words =
        std::iter::once(fields.get("description").and_then(Value::as_str).unwrap_or_default().to_owned())
            .chain(words)
            .filter(|words| !words.is_empty());
    let words = words.collect::<Vec<_>>().join("\n");
    fields.remove("oneOf");
    fields.extend([("type".to_owned(), json!("string")), ("enum".to_owned(), Value::Array(names))]);
    fields.insert("description".to_owned(), words.into());
}

/// The alternatives, each with a line about it, if all are texts.
fn constants(alternatives: &Value) -> Option<Vec<(String, Value)>> {
    let constant = |of: &Value| {
        let names = match of.get("const") {
            Some(name) => vec![name.clone()],
            None => of.get("enum")?.as_array()?.clone(),
        };
        let words = of.get("description").and_then(Value::as_str);
        let line = |name: Value| {
            let text = name.as_str()?;
            Some((words.map_or_else(String::new, |words| format!("- `{text}`: {words}")), name))
        };
        (of["type"] == "string").then(|| names.into_iter().map(line).collect::<Option<Vec<_>>>())?
    };
    let all: Option<Vec<_>> = alternatives.as_array()?.iter().map(constant).collect();
    all.map(|all| all.into_iter().flatten().collect())
}
