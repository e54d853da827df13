//! The OpenAPI 3.1 document, from the operations and their types.

use http::{Method, StatusCode};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::operation::{Operation, Shapes};
use super::problem::{self, Document};

/// The document.
pub(super) fn document(operations: &[Operation]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<Document>();
    let mut paths = Map::new();
    for operation in operations {
        let shapes = (operation.shapes)(&mut generator);
        let path = paths.entry(format!("{}{}", operation.base, operation.path)).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_lowercase()] = described(operation, shapes);
    }
    let responses: Map<String, Value> = problem::common()
        .into_iter()
        .map(|(status, words)| {
            let content = json!({(problem::MEDIA_TYPE): {"schema": problem}});
            (format!("Problem{status}"), json!({"description": words, "content": content}))
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "stepfold",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Agents in sessions: messages, decisions, history, and a live stream of each session. A path that is known \
                            answers other methods than its own with 405, and all problems are documents of RFC 9457.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"cookie": []}],
        "tags": [
            {"name": "server", "description": "Apps, login and metrics."},
            {"name": "sessions", "description": "Sessions, their history and their state."},
            {"name": "runs", "description": "Messages, decisions, and the live stream."},
            {"name": "protocols", "description": "The same for clients of OpenAI, AG-UI, the AI SDK, ADK and Agent2Agent."},
        ],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "responses": responses,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "stepfold_PORT",
                    "description": "Set by `login`; PORT is that of the server.",
                },
            },
        },
    })
}

fn described(operation: &Operation, shapes: Shapes) -> Value {
    let mut parameters: Vec<Value> = names(operation.path).map(of_path).collect();
    parameters.extend(of_query(shapes.query));
    if operation.takes_key {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "description": "The same request again under the same key is a repetition, in any process: it changes nothing and \
                            has the same answer.",
            "schema": {"type": "string"},
        }));
    }
    if matches!(operation.id, "live" | "live_all") {
        parameters.push(json!({
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The id of the last event that the client has, when it connects again.",
            "schema": {"type": "string"},
        }));
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [tag(operation)],
        "x-stepfold-role": operation.needs.as_str(),
        "parameters": parameters,
        "responses": responses(operation, shapes.status, shapes.media_type, shapes.answer),
    });
    if let Some(body) = shapes.body {
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": body}}});
    }
    described
}

fn tag(operation: &Operation) -> &'static str {
    match operation.id {
        "live" | "send" | "run" | "decide" | "resume" | "abandon" | "cancel" | "withdraw" => "runs",
        _ if operation.base.is_empty() => "protocols",
        _ if operation.path.contains("/sessions") => "sessions",
        _ => "server",
    }
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn of_path(name: &str) -> Value {
    let words = match name {
        "app" => "The name of an app.",
        "session" => "The id of a session of the principal's user.",
        "user" => "Any name: it means the principal's user.",
        "label" => "The name of a version.",
        "version" => "The version of a commit.",
        _ => "The id of a message: that of its invocation.",
    };
    json!({"name": name, "in": "path", "required": true, "description": words, "schema": {"type": "string"}})
}

fn of_query(schema: Schema) -> Vec<Value> {
    let mut schema = schema.to_value();
    let required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].take();
    let properties = properties.as_object().cloned().unwrap_or_default();
    let parameter = |(name, mut schema): (String, Value)| {
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        let is_required = required.contains(&json!(name));
        let mut parameter = json!({"name": name, "in": "query", "required": is_required, "schema": schema});
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameter
    };
    properties.into_iter().map(parameter).collect()
}

/// A schema as an object: generators do not read `true`, which says the same as `{}`.
fn as_object(schema: Schema) -> Value {
    let schema = schema.to_value();
    if schema == Value::Bool(true) { json!({}) } else { schema }
}

fn responses(
    operation: &Operation,
    status: StatusCode,
    media_type: Option<&str>,
    answer: Option<Schema>,
) -> Value {
    let mut good = json!({"description": status.canonical_reason().unwrap_or("Done")});
    if let (Some(media_type), Some(schema)) = (media_type, answer) {
        good["content"] = json!({media_type: {"schema": as_object(schema)}});
    }
    let mut responses = Map::new();
    responses.insert(status.as_str().to_owned(), good);
    for (code, _) in problem::common().into_iter().filter(|(code, _)| may_answer(operation, *code)) {
        let reference = format!("#/components/responses/Problem{code}");
        responses.insert(code.to_string(), json!({"$ref": reference}));
    }
    Value::Object(responses)
}

/// Whether an operation may answer with a problem of this status.
fn may_answer(operation: &Operation, code: u16) -> bool {
    // Those of other protocols name apps and sessions in their bodies.
    let is_of_session = operation.path.contains("{session}") || operation.base.is_empty();
    let has_body = operation.method != Method::GET;
    match code {
        404 if operation.id == "live_all" => true,
        404 | 409 => operation.path.contains('{') || operation.base.is_empty(),
        408 | 413 | 415 => has_body,
        410 | 422 | 502 => has_body && is_of_session,
        501 => is_of_session || operation.id == "import",
        _ => true,
    }
}
