//! `docs/api.md`: the OpenAPI document for readers. It is made here, so that it cannot differ from the server.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::openapi::operations;
use super::site::Site;

/// The page of a document.
fn page(document: &Value) -> String {
    let mut page = "\
# The API of the server

Made from the OpenAPI document (`GET /api/v1/openapi.json`) by the test `the_reference_is_current`; with `UPDATE_EXPECT=1` it writes this
file. The guide of the server explains how to use the operations; other protocols are in [protocols](protocols.md).

Each request has `Authorization: Bearer TOKEN`, or the cookie of `login`. A request that changes something has the content type
`application/json`. Errors are problem documents (RFC 9457): programs branch on `kind`, and `remedy` says whether to send it again.
"
    .to_owned();
    // The order of objects depends on features of the build.
    let mut operations = operations(document);
    operations.sort_by_key(|(path, method, _)| (path.clone(), method.clone()));
    for tag in document["tags"].as_array().unwrap() {
        let (name, about) = (tag["name"].as_str().unwrap(), tag["description"].as_str().unwrap());
        writeln!(page, "\n## {}{}\n\n{about}", name[..1].to_uppercase(), &name[1..]).unwrap();
        for (path, method, operation) in
            operations.iter().filter(|(.., operation)| operation["tags"][0] == *name)
        {
            describe(&mut page, path, method, operation);
        }
    }
    page.push_str("\n## Schemas\n");
    for (name, schema) in sorted(&document["components"]["schemas"]) {
        writeln!(page, "\n### `{name}`\n\n{}", text(&schema["description"])).unwrap();
        fields(&mut page, schema);
    }
    page
}

fn describe(page: &mut String, path: &str, method: &str, operation: &Value) {
    let (method, summary) = (method.to_uppercase(), text(&operation["summary"]));
    writeln!(
        page,
        "\n### `{method} {path}`\n\n{summary} Needs the role `{}`.",
        text(&operation["x-stepfold-role"])
    )
    .unwrap();
    let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut parameters: Vec<&Value> =
        parameters.iter().filter(|parameter| parameter["in"] != "path").collect();
    parameters.sort_by_key(|parameter| text(&parameter["name"]));
    if !parameters.is_empty() {
        page.push_str("\n| parameter | type | |\n|---|---|---|\n");
    }
    for parameter in parameters {
        let about = match text(&parameter["description"]) {
            about if about.is_empty() => text(&parameter["schema"]["description"]),
            about => about,
        };
        let name = text(&parameter["name"]);
        writeln!(
            page,
            "| `{name}` ({}) | {} | {about} |",
            text(&parameter["in"]),
            kind(&parameter["schema"])
        )
        .unwrap();
    }
    let content = |value: &Value| {
        sorted(&value["content"])
            .into_iter()
            .map(|(media, content)| format!("{} (`{media}`)", kind(&content["schema"])))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let body = content(&operation["requestBody"]);
    if !body.is_empty() {
        writeln!(page, "\nBody: {body}.").unwrap();
    }
    for (status, response) in sorted(&operation["responses"]) {
        if status.starts_with('2') {
            let answer = content(response);
            let answer = if answer.is_empty() { "nothing".to_owned() } else { answer };
            writeln!(page, "\nAnswers {status}: {answer}.").unwrap();
        }
    }
}

/// The fields of an object, or the values of an enumeration.
fn fields(page: &mut String, schema: &Value) {
    if schema["properties"].is_object() {
        page.push_str("\n| field | type | |\n|---|---|---|\n");
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in sorted(&schema["properties"]) {
            let optional = if required.iter().any(|known| known == name) { "" } else { "?" };
            writeln!(
                page,
                "| `{name}`{optional} | {} | {} |",
                kind(property),
                text(&property["description"])
            )
            .unwrap();
        }
    } else if !schema["description"].is_null() {
        writeln!(page, "\n{}", kind(schema)).unwrap();
    }
}

fn sorted(object: &Value) -> BTreeMap<&String, &Value> {
    object.as_object().into_iter().flatten().collect()
}

/// A type in words.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[`{name}`](#{})", name.to_lowercase());
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(kinds) = schema[several].as_array() {
            let kinds: Vec<String> = kinds.iter().map(kind).filter(|kind| kind != "null").collect();
            return kinds.join(" or ");
        }
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    let name = match &schema["type"] {
        Value::String(name) => name.clone(),
        Value::Array(names) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_owned(),
    };
    match name.as_str() {
        "array" => format!("array of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of {}", kind(&schema["additionalProperties"]))
        }
        _ => name,
    }
}

/// A text on one line, as it may stand in a table.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[tokio::test]
async fn the_reference_is_current() {
    let site = Site::new("").await;
    let page = page(&site.server.openapi());
    expect_test::expect_file!["../../../../../docs/api.md"].assert_eq(&page);
}
