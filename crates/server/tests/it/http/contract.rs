//! Every answer that a test gets fits the OpenAPI document: its status, its media type and its body. So does every request
//! that is accepted.
//!
//! A schema says which fields there are, so that one that it does not describe is refused here as well.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use http::{HeaderMap, Method, StatusCode};
use jsonschema::Validator;
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::{Server, Tokens};
use stepfold_session_scopes::MemoryStore;

use super::site::agent_of;

/// The document, which is that of every server.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let agent = agent_of(Script::parse("").unwrap(), Vec::new());
    let app = Runner::builder(agent, MemoryStore::new()).build();
    Server::builder().app(app).auth(Tokens::new()).build().unwrap().openapi()
});

/// The schemas of answers: closed.
static CLOSED: LazyLock<Value> = LazyLock::new(|| {
    let mut schemas = DOCUMENT["components"]["schemas"].clone();
    for schema in schemas.as_object_mut().unwrap().values_mut() {
        if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
            schema["additionalProperties"] = json!(false);
        }
    }
    schemas
});

/// The validators, by their schemas.
static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

fn validator(schema: &Value, schemas: &Value) -> Arc<Validator> {
    let mut known = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let schema = json!({"allOf": [schema], "components": {"schemas": schemas}});
        Arc::new(jsonschema::validator_for(&schema).expect("a valid schema"))
    };
    let is_closed = std::ptr::eq(schemas, &raw const *CLOSED);
    Arc::clone(known.entry(format!("{schema} {is_closed}")).or_insert_with(make))
}

/// Why a text is no JSON of this schema.
fn misfit(schema: &Value, schemas: &Value, text: &str) -> Option<String> {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return Some(format!("no JSON: {text}")) };
    let validator = validator(schema, schemas);
    let errors: Vec<String> = validator
        .iter_errors(&value)
        .map(|error| format!("{error} at `{}`", error.instance_path()))
        .collect();
    (!errors.is_empty()).then(|| format!("{}\n{text}", errors.join("\n")))
}

/// The operation of a request, if the document has it.
fn operation(method: &Method, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next()?;
    let fits = |template: &str| {
        let (named, given): (Vec<&str>, Vec<&str>) =
            (template.split('/').collect(), path.split('/').collect());
        let same =
            |(named, given): (&&str, &&str)| named == given || (named.starts_with('{') && !given.is_empty());
        named.len() == given.len() && named.iter().zip(&given).all(same)
    };
    let paths = DOCUMENT["paths"].as_object()?;
    // One without parameters comes first.
    let mut found: Vec<_> = paths.iter().filter(|(template, _)| fits(template)).collect();
    found.sort_by_key(|(template, _)| template.matches('{').count());
    found.iter().find_map(|(_, methods)| methods.get(method.as_str().to_lowercase()))
}

fn resolved(value: &'static Value) -> &'static Value {
    let reference = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.map_or(value, |pointer| DOCUMENT.pointer(pointer).expect("a reference leads somewhere"))
}

/// The content of a response that the document has for this status, if the operation is in the document.
fn documented(method: &Method, path: &str, status: StatusCode) -> Option<&'static Value> {
    let responses = &operation(method, path)?["responses"];
    let response = responses.get(status.as_str());
    Some(
        &resolved(response.unwrap_or_else(|| panic!("{method} {path}: undocumented status {status}")))["content"],
    )
}

fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get("content-type").map_or("", |value| value.to_str().unwrap());
    value.split(';').next().unwrap_or_default()
}

/// Checks the head of a response.
pub(crate) fn check_head(method: &Method, path: &str, status: StatusCode, headers: &HeaderMap) {
    let Some(content) = documented(method, path, status) else { return };
    let found = media_type(headers);
    let is_documented = if found.is_empty() { content.is_null() } else { content.get(found).is_some() };
    assert!(is_documented, "{method} {path}: {status} with undocumented `{found}`");
}

/// Checks a whole response, and the request that was answered with it.
pub(crate) fn check(
    method: &Method,
    path: &str,
    request: &str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &str,
) {
    let Some(content) = documented(method, path, status) else { return };
    match &content[media_type(headers)] {
        Value::Null => assert_eq!(body, "", "{method} {path}: {status} has no content"),
        content if media_type(headers).ends_with("json") => {
            let misfit = misfit(&content["schema"], &CLOSED, body);
            assert!(
                misfit.is_none(),
                "{method} {path}: {status} differs from the document: {}",
                misfit.unwrap()
            );
        }
        _ => {}
    }
    // Clients of others send more than is read, and what a server passes over may be too deep for a tree of values.
    let is_checked =
        status.is_success() && path.starts_with("/api/v1/") && serde_json::from_str::<Value>(request).is_ok();
    let schema = operation(method, path)
        .map(|operation| &operation["requestBody"]["content"]["application/json"]["schema"]);
    if let Some(schema) = schema.filter(|schema| !schema.is_null() && is_checked) {
        let misfit = misfit(schema, &DOCUMENT["components"]["schemas"], request);
        assert!(
            misfit.is_none(),
            "{method} {path}: accepted another request than documented: {}",
            misfit.unwrap()
        );
    }
}

#[test]
fn a_response_that_differs_is_seen() {
    let problem = r#"{"type": "urn:stepfold:problem:x", "title": "X", "status": 404, "detail": "x", "kind": "x", "remedy": "never"}"#;
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    assert_eq!(misfit(&schema, &CLOSED, problem), None);
    for other in [
        problem.replace("\"status\": 404, ", ""),
        problem.replace("\"X\"", "1"),
        problem.replace("detail", "details"),
    ] {
        assert!(misfit(&schema, &CLOSED, &other).is_some(), "{other}");
    }
    let (get, path) = (Method::GET, "/api/v1/apps/clerk/sessions/s1");
    assert!(std::panic::catch_unwind(|| documented(&get, path, StatusCode::CREATED)).is_err());
    assert!(documented(&get, path, StatusCode::OK).is_some());
    assert!(documented(&get, "/healthz", StatusCode::OK).is_none());
}
