//! The OpenAPI document: complete, consistent, and of valid schemas.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Map, Value, json};

use super::site::Site;

/// The operations of the document: path, method, operation.
pub(crate) fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let each = |(path, methods): (&String, &Value)| {
        let methods: Map<String, Value> = methods.as_object().unwrap().clone();
        let path = path.clone();
        methods
            .into_iter()
            .map(move |(method, operation)| (path.clone(), method, operation))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(each).collect()
}

/// The references in a value.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                found.insert(reference.clone());
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_sound() {
    let site = Site::new("").await;
    let document = site.server.openapi();
    assert_eq!(document["openapi"], "3.1.0");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} is elsewhere"));
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(jsonschema::meta::is_valid(schema), "{name}");
        assert!(found.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
        assert!(schema["description"].is_string(), "{name} is not described");
    }
    let tags: Vec<&Value> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        let at = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{at}: id is not unique");
        assert!(operation["summary"].as_str().unwrap().ends_with('.'), "{at}");
        assert!(tags.contains(&&operation["tags"][0]), "{at}");
        assert!(
            ["read", "act", "raise_budgets", "administer"]
                .contains(&operation["x-stepfold-role"].as_str().unwrap()),
            "{at}"
        );
        let in_path: BTreeSet<String> = path
            .split('/')
            .filter_map(|part| Some(part.strip_prefix('{')?.strip_suffix('}')?.to_owned()))
            .collect();
        let parameters = operation["parameters"].as_array().unwrap();
        let declared: BTreeSet<String> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(in_path, declared, "{at}");
        for parameter in parameters {
            assert!(parameter["description"].is_string(), "{at}: {parameter}");
            assert!(jsonschema::meta::is_valid(&parameter["schema"]), "{at}: {parameter}");
        }
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{at}");
        for status in ["401", "403", "421", "429"] {
            assert!(responses.contains_key(status), "{at}: {status}");
        }
        let is_of_session = path.contains("{session}");
        for (status, is_declared) in [
            ("408", method != "get"),
            ("413", method != "get"),
            ("415", method != "get"),
            ("410", method != "get" && is_of_session),
            ("422", method != "get" && is_of_session),
            ("502", method != "get" && is_of_session),
            ("501", is_of_session || path.ends_with("/import")),
        ] {
            assert!(!is_declared || responses.contains_key(status), "{at}: {status}");
        }
        let described = |name: &str| {
            let parameter = parameters.iter().find(|parameter| parameter["name"] == name);
            parameter.map(|parameter| parameter["description"].as_str().unwrap().to_owned())
        };
        for (name, words) in [("label", "name of a version"), ("version", "version of a commit")] {
            assert!(described(name).is_none_or(|found| found.contains(words)), "{at}: {name}");
        }
        let is_resumed = ["live", "live_all"].iter().any(|id| operation["operationId"] == *id);
        assert_eq!(described("Last-Event-ID").is_some(), is_resumed, "{at}");
        // A body that changes something is described, and a question has none.
        assert!(method != "get" || operation.get("requestBody").is_none(), "{at}");
    }
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], json!("bearer"));
}

/// The operations that change something, with paths that exist, and whether they need a body.
fn changes(document: &Value) -> Vec<(Method, String, Option<bool>)> {
    let changes = operations(document).into_iter().filter(|(_, method, _)| method != "get");
    let named = |path: &str| {
        let names = [
            ("{app}", "clerk"),
            ("{session}", "s1"),
            ("{user}", "ada"),
            ("{label}", "l"),
            ("{message}", "m"),
        ];
        names.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value))
    };
    let change = |(path, method, operation): (String, String, Value)| {
        let body = operation.get("requestBody").map(|body| body["required"] == true);
        (method.to_uppercase().parse().unwrap(), named(&path), body)
    };
    changes.map(change).collect()
}

#[tokio::test]
async fn an_operation_without_a_body_needs_no_content_type() {
    let site = Site::new("").await;
    let bearer = site.bearer("root");
    let headers = [("authorization", bearer.as_str())];
    let mut seen = 0;
    for (method, path, needs_body) in changes(&site.server.openapi()) {
        site.post("root", "/sessions", json!({"id": "s1"})).await;
        let reply = site.raw(method.clone(), &path, &headers, "").await;
        assert_ne!(reply.status, 415, "{method} {path}");
        // What needs one says so.
        assert!(
            needs_body != Some(true) || !reply.status.is_success() || path.starts_with("/a2a"),
            "{method} {path}"
        );
        seen += usize::from(needs_body != Some(true));
        let form = [headers[0], ("content-type", "application/x-www-form-urlencoded")];
        assert_eq!(site.raw(method.clone(), &path, &form, "").await.status, 415, "{method} {path}");
        assert_eq!(site.raw(method.clone(), &path, &headers, "{}").await.status, 415, "{method} {path}");
    }
    assert!(seen > 10, "{seen}");
}

/// What serde reads as a struct is an object in every body, also where the fields of an array would fit.
#[tokio::test]
async fn an_array_is_no_object() {
    let site = Site::new("").await;
    let bearer = site.bearer("root");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for (method, path, body) in changes(&site.server.openapi()) {
        site.post("root", "/sessions", json!({"id": "s1"})).await;
        if body.is_none() || path.starts_with("/a2a") {
            continue;
        }
        for array in ["[]", "[null, {}]", "[\"hi\", [], {}, null]"] {
            let reply = site.raw(method.clone(), &path, &headers, array).await;
            assert_eq!(reply.problem(), (400, "invalid".to_owned()), "{method} {path} {array}");
        }
    }
    let nested = json!({"text": "hi", "files": [["image/png", "aGk=", "a.png"]]});
    assert_eq!(site.post("root", "/sessions/s1/messages", nested).await.problem().0, 400);
    let nested = json!({"decisions": {"c1": {"reject": ["no"]}}});
    assert_eq!(site.post("root", "/sessions/s1/decisions", nested).await.problem().0, 400);
    let call = json!([1, "ListTasks", {}]).to_string();
    let version = [headers[0], headers[1], ("a2a-version", "1.0")];
    assert!(site.raw(Method::POST, "/a2a/clerk", &version, &call).await.json()["error"].is_object());
}
