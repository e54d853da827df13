//! The OpenAPI 3.1 document, from the operations and their types.

use http::Method;
use schemars::Schema;
use schemars::transform::{RecursiveTransform, Transform as _};
use serde_json::{Map, Value, json};

use super::schemas::{SchemaGenerators, plain, renamed};
use crate::http::guard::problem::{self, ProblemDocument};
use crate::http::operation::{ApiOperation, OperationSchemas};

/// The document.
pub(in crate::http) fn document(operations: &[ApiOperation]) -> Value {
    let mut generators = SchemaGenerators::new();
    let problem = generators.answers.subschema_for::<ProblemDocument>();
    let mut paths = Map::new();
    for operation in operations {
        let shapes = (operation.shapes)(&mut generators);
        let path = paths.entry(format!("{}{}", operation.base, operation.path)).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_lowercase()] = operation_json(operation, &shapes);
    }
    let (schemas, names) = generators.merge();
    let paths = renamed(Value::Object(paths), &names);
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
            "schemas": schemas,
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

fn operation_json(operation: &ApiOperation, shapes: &OperationSchemas) -> Value {
    let mut parameters: Vec<Value> = parameter_names(operation.path).map(path_parameter).collect();
    parameters.extend(query_parameters(&shapes.query));
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
        "responses": responses(operation, shapes),
    });
    if let Some(body) = &shapes.body {
        let content = json!({"application/json": {"schema": body}});
        described["requestBody"] = json!({"required": shapes.needs_body, "content": content});
    }
    described
}

fn tag(operation: &ApiOperation) -> &'static str {
    match operation.id {
        "live" | "send" | "run" | "decide" | "resume" | "abandon" | "cancel" | "withdraw" => "runs",
        _ if operation.base.is_empty() => "protocols",
        _ if operation.path.contains("/sessions") => "sessions",
        _ => "server",
    }
}

fn parameter_names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &str) -> Value {
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

fn query_parameters(schema: &Schema) -> Vec<Value> {
    let mut schema = schema.clone();
    RecursiveTransform(plain).transform(&mut schema);
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

fn responses(operation: &ApiOperation, shapes: &OperationSchemas) -> Value {
    let status = shapes.status;
    let mut good = json!({"description": status.canonical_reason().unwrap_or("Done")});
    for (media_type, schema) in &shapes.answers {
        // The generator transforms those with names only.
        let mut schema = schema.clone();
        RecursiveTransform(plain).transform(&mut schema);
        good["content"][*media_type] = json!({"schema": schema});
    }
    let mut responses = Map::new();
    responses.insert(status.as_str().to_owned(), good);
    if operation.may_be_empty {
        responses.insert("204".to_owned(), json!({"description": "No Content"}));
    }
    for (code, _) in problem::common().into_iter().filter(|(code, _)| may_answer(operation, *code)) {
        let reference = format!("#/components/responses/Problem{code}");
        responses.insert(code.to_string(), json!({"$ref": reference}));
    }
    Value::Object(responses)
}

/// Whether an operation may answer with a problem of this status.
fn may_answer(operation: &ApiOperation, code: u16) -> bool {
    // Those of other protocols name apps and sessions in their bodies.
    let is_of_session = operation.path.contains("{session}") || operation.base.is_empty();
    let has_body = operation.method != Method::GET;
    match code {
        404 if operation.id == "live_all" => true,
        // NOTE: 410 wherever content of a user may be read: its key may be gone.
        404 | 409 | 410 => operation.path.contains('{') || operation.base.is_empty(),
        408 | 415 => has_body,
        422 | 502 => has_body && is_of_session,
        501 => is_of_session || operation.id == "import",
        _ => true,
    }
}
