//! `examples/clients`: thin clients of the API, made of the OpenAPI document. `cargo xtask clients` writes them; so they
//! cannot differ from the server.

use std::fmt::Write as _;

use serde_json::Value;

use super::openapi::operations;
use super::site::Site;

/// An operation of the API that has one answer.
struct Call {
    id: String,
    method: String,
    path: String,
    summary: String,
    /// The names of the path.
    names: Vec<String>,
    /// The parameters of the query, each with its schema, and whether it is required.
    query: Vec<(String, Value, bool)>,
    /// The schema of the body, and whether it is required.
    body: Option<(Value, bool)>,
    takes_key: bool,
    answer: Option<Value>,
}

fn calls(document: &Value) -> Vec<Call> {
    let mut calls: Vec<Call> = operations(document)
        .into_iter()
        .filter(|(path, _, operation)| path.starts_with("/api/v1/") && !is_stream(operation))
        .map(|(path, method, operation)| call(path, &method, &operation))
        .collect();
    calls.sort_by(|a, b| (&a.path, &a.method).cmp(&(&b.path, &b.method)));
    calls
}

fn is_stream(operation: &Value) -> bool {
    !operation["responses"]["200"]["content"]["text/event-stream"].is_null()
}

fn call(path: String, method: &str, operation: &Value) -> Call {
    let parameters = operation["parameters"].as_array().unwrap();
    let of = |place: &'static str| parameters.iter().filter(move |parameter| parameter["in"] == place);
    let name = |parameter: &Value| parameter["name"].as_str().unwrap().to_owned();
    let mut query: Vec<_> = of("query")
        .map(|parameter| (name(parameter), parameter["schema"].clone(), parameter["required"] == true))
        .collect();
    query.sort_by_key(|(name, _, is_required)| (!is_required, name.clone()));
    let names =
        path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(str::to_owned);
    let body = operation.get("requestBody");
    let good = operation["responses"].as_object().unwrap().iter().find(|(status, _)| status.starts_with('2'));
    let content = &good.expect("an operation has an answer").1["content"];
    let answer = match content.as_object().map(serde_json::Map::len) {
        Some(1) => {
            content.get("application/json").map(|content| content["schema"].clone()).unwrap_or_default()
        }
        // A file, or text.
        Some(_) => Value::Null,
        None => Value::Bool(false),
    };
    Call {
        id: operation["operationId"].as_str().unwrap().to_owned(),
        method: method.to_uppercase(),
        summary: operation["summary"].as_str().unwrap().to_owned(),
        names: names.collect(),
        query,
        body: body
            .map(|body| (body["content"]["application/json"]["schema"].clone(), body["required"] == true)),
        takes_key: of("header").any(|parameter| parameter["name"] == "Idempotency-Key"),
        answer: (answer != Value::Bool(false)).then_some(answer),
        path,
    }
}

/// A language, as far as the clients need it.
struct Language {
    any: &'static str,
    text: &'static str,
    number: &'static str,
    bool: &'static str,
    null: &'static str,
    nothing: &'static str,
    array: fn(&str) -> String,
    map: fn(&str) -> String,
    /// An object without a name.
    object: fn(&[(String, String, bool)]) -> String,
    choice: fn(&[String]) -> String,
}

const PYTHON: Language = Language {
    any: "Any",
    text: "str",
    number: "int",
    bool: "bool",
    null: "None",
    nothing: "None",
    array: |of| format!("list[{of}]"),
    map: |of| format!("dict[str, {of}]"),
    object: |fields| {
        let kinds: Vec<&str> = fields.iter().map(|(_, kind, _)| kind.as_str()).collect();
        format!("dict[str, {}]", kinds.join(" | "))
    },
    choice: |names| format!("Literal[{}]", names.join(", ")),
};

const TYPESCRIPT: Language = Language {
    any: "any",
    text: "string",
    number: "number",
    bool: "boolean",
    null: "null",
    nothing: "void",
    array: |of| if of.contains(' ') { format!("({of})[]") } else { format!("{of}[]") },
    map: |of| format!("Record<string, {of}>"),
    object: |fields| {
        let field = |(name, kind, is_required): &(String, String, bool)| {
            format!("{name}{}: {kind}", if *is_required { "" } else { "?" })
        };
        format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join("; "))
    },
    choice: |names| names.join(" | "),
};

impl Language {
    /// A type.
    fn kind(&self, schema: &Value) -> String {
        if let Some(reference) = schema["$ref"].as_str() {
            return reference.rsplit('/').next().unwrap_or_default().to_owned();
        }
        for several in ["anyOf", "oneOf"] {
            if let Some(kinds) = schema[several].as_array() {
                return kinds.iter().map(|kind| self.kind(kind)).collect::<Vec<_>>().join(" | ");
            }
        }
        if let Some(names) = schema["enum"].as_array() {
            return (self.choice)(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        match &schema["type"] {
            Value::Array(kinds) => {
                let kind = |kind: &Value| {
                    let mut one = schema.clone();
                    one["type"] = kind.clone();
                    self.kind(&one)
                };
                kinds.iter().map(kind).collect::<Vec<_>>().join(" | ")
            }
            Value::String(name) => self.of_type(name, schema),
            _ => self.any.to_owned(),
        }
    }

    fn of_type(&self, name: &str, schema: &Value) -> String {
        match name {
            "string" => self.text.to_owned(),
            "integer" | "number" => self.number.to_owned(),
            "boolean" => self.bool.to_owned(),
            "null" => self.null.to_owned(),
            "array" => (self.array)(&self.kind(&schema["items"])),
            _ if schema["properties"].is_object() => (self.object)(&self.fields(schema)),
            _ => (self.map)(&self.kind(&schema["additionalProperties"])),
        }
    }

    /// The fields of an object: name, type, whether it is always there.
    fn fields(&self, schema: &Value) -> Vec<(String, String, bool)> {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut fields: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
        // Their order depends on features of the build.
        fields.sort_by_key(|(name, _)| *name);
        let field = |(name, schema): (&String, &Value)| {
            (name.clone(), self.kind(schema), required.iter().any(|known| known == name))
        };
        fields.into_iter().map(field).collect()
    }
}

/// The schemas that the calls name, and those that these name.
fn schemas<'a>(document: &'a Value, calls: &[Call]) -> Vec<(&'a String, &'a Value)> {
    let all = document["components"]["schemas"].as_object().unwrap();
    let mut open = vec!["Problem".to_owned()];
    for call in calls {
        let answer = call.answer.iter().chain(call.body.iter().map(|(body, _)| body));
        answer
            .chain(call.query.iter().map(|(_, schema, _)| schema))
            .for_each(|schema| named(schema, &mut open));
    }
    let mut found = std::collections::BTreeMap::new();
    while let Some(name) = open.pop() {
        let (name, schema) = all.get_key_value(&name).expect("a reference leads somewhere");
        if found.insert(name, schema).is_none() {
            named(schema, &mut open);
        }
    }
    found.into_iter().collect()
}

fn named(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                found.extend(reference.rsplit('/').next().map(str::to_owned));
            }
            fields.values().for_each(|value| named(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        _ => {}
    }
}

/// The first sentence of a description, on one line.
fn about(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name that is no keyword.
fn python_name(name: &str) -> String {
    let is_keyword = ["as", "from", "import", "with"].contains(&name);
    if is_keyword { format!("{name}_") } else { name.to_owned() }
}

fn python(document: &Value) -> String {
    let (calls, mut types, mut methods) = (calls(document), String::new(), String::new());
    // They name types, which stand before them.
    let mut aliases = String::new();
    for (name, schema) in schemas(document, &calls) {
        if !schema["properties"].is_object() {
            writeln!(aliases, "{name}: TypeAlias = {}", PYTHON.kind(schema)).unwrap();
            continue;
        }
        let fields = PYTHON.fields(schema);
        let kind = |(kind, is_required): (&str, bool)| match is_required {
            true => kind.to_owned(),
            false => format!("NotRequired[{kind}]"),
        };
        if fields.iter().any(|(name, ..)| python_name(name) != *name) {
            let fields = fields.iter().map(|(name, of, is)| format!("\"{name}\": {:?}", kind((of, *is))));
            let fields = fields.collect::<Vec<_>>().join(", ");
            writeln!(types, "\n{name} = TypedDict(\"{name}\", {{{fields}}})\n").unwrap();
            continue;
        }
        writeln!(types, "\nclass {name}(TypedDict):\n    \"\"\"{}\"\"\"\n", about(schema)).unwrap();
        for (name, of, is_required) in &fields {
            writeln!(types, "    {name}: {}", kind((of, *is_required))).unwrap();
        }
        types.push('\n');
    }
    for call in &calls {
        python_method(&mut methods, call);
    }
    let template = include_str!("../generated/templates/client.py");
    template
        .replace("#TYPES\n\n", &format!("{}\n{aliases}\n", types.trim_start_matches('\n')))
        .replace("#METHODS\n", &methods)
}

fn python_method(methods: &mut String, call: &Call) {
    let mut arguments = vec!["self".to_owned()];
    arguments.extend(
        call.names.iter().map(|name| format!("{name}: {}", if name == "version" { "int" } else { "str" })),
    );
    arguments.extend(call.body.iter().map(|(schema, is_required)| {
        let kind = PYTHON.kind(schema);
        if *is_required { format!("body: {kind}") } else { format!("body: {kind} | None = None") }
    }));
    let mut named = Vec::new();
    for (name, schema, is_required) in &call.query {
        let kind = PYTHON.kind(schema);
        let kind = kind.strip_suffix(" | None").unwrap_or(&kind);
        let name = python_name(name);
        named.push(if *is_required {
            format!("{name}: {kind}")
        } else {
            format!("{name}: {kind} | None = None")
        });
    }
    if call.takes_key {
        named.push("idempotency_key: str | None = None".to_owned());
    }
    if !named.is_empty() {
        arguments.push("*".to_owned());
        arguments.extend(named);
    }
    let answer = call.answer.as_ref().map_or_else(|| PYTHON.nothing.to_owned(), |answer| PYTHON.kind(answer));
    let path = call.names.iter().fold(call.path.clone(), |path, name| {
        path.replace(&format!("{{{name}}}"), &format!("{{_part({name})}}"))
    });
    let f = if call.names.is_empty() { "" } else { "f" };
    let query: Vec<String> =
        call.query.iter().map(|(name, ..)| format!("\"{name}\": {}", python_name(name))).collect();
    let mut rest = String::new();
    match (&call.body, call.takes_key) {
        (Some((_, true)), _) => rest.push_str(", body"),
        // It changes something, and says that it is JSON.
        (Some((_, false)), _) => rest.push_str(", body or {}"),
        (None, _) => {}
    }
    if call.takes_key {
        rest.push_str(", key=idempotency_key");
    }
    write!(
        methods,
        "\n    def {}({}) -> {answer}:\n        \"\"\"{}\"\"\"\n        return self._ask(\"{}\", {f}\"{path}\", {{{}}}{rest})\n",
        python_name(&call.id),
        arguments.join(", "),
        call.summary,
        call.method,
        query.join(", ")
    )
    .unwrap();
}

fn typescript(document: &Value) -> String {
    let (calls, mut types, mut methods) = (calls(document), String::new(), String::new());
    for (name, schema) in schemas(document, &calls) {
        writeln!(types, "/** {} */", about(schema)).unwrap();
        if !schema["properties"].is_object() {
            writeln!(types, "export type {name} = {};\n", TYPESCRIPT.kind(schema)).unwrap();
            continue;
        }
        writeln!(types, "export interface {name} {{").unwrap();
        for (field, kind, is_required) in TYPESCRIPT.fields(schema) {
            let words = about(&schema["properties"][&field]);
            if !words.is_empty() {
                writeln!(types, "  /** {words} */").unwrap();
            }
            writeln!(types, "  {field}{}: {kind};", if is_required { "" } else { "?" }).unwrap();
        }
        types.push_str("}\n\n");
    }
    for call in &calls {
        typescript_method(&mut methods, call);
    }
    let template = include_str!("../generated/templates/client.ts");
    template.replace("//TYPES\n\n", &types).replace("//METHODS\n", &methods)
}

fn typescript_method(methods: &mut String, call: &Call) {
    let mut words = call.id.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    let id = words.fold(first, |id, word| format!("{id}{}{}", word[..1].to_uppercase(), &word[1..]));
    let mut arguments: Vec<String> = call
        .names
        .iter()
        .map(|name| format!("{name}: {}", if name == "version" { "number" } else { "string" }))
        .collect();
    arguments.extend(call.body.iter().map(|(schema, is_required)| {
        format!("body: {}{}", TYPESCRIPT.kind(schema), if *is_required { "" } else { " = {}" })
    }));
    let mut sent = Vec::new();
    if !call.query.is_empty() {
        let fields = call.query.iter().map(|(name, schema, is_required)| {
            let kind = TYPESCRIPT.kind(schema);
            (name.clone(), kind.strip_suffix(" | null").unwrap_or(&kind).to_owned(), *is_required)
        });
        let fields: Vec<_> = fields.collect();
        let is_required = call.query.iter().any(|(_, _, is_required)| *is_required);
        let none = if is_required { "" } else { " = {}" };
        arguments.push(format!("query: {}{none}", (TYPESCRIPT.object)(&fields)));
        sent.push("query");
    }
    if call.body.is_some() {
        sent.push("body");
    }
    if call.takes_key {
        arguments.push("idempotencyKey?: string".to_owned());
        sent.push("headers: idempotencyKey === undefined ? {} : { \"idempotency-key\": idempotencyKey }");
    }
    let answer =
        call.answer.as_ref().map_or_else(|| TYPESCRIPT.nothing.to_owned(), |answer| TYPESCRIPT.kind(answer));
    let path = call.names.iter().fold(call.path.clone(), |path, name| {
        path.replace(&format!("{{{name}}}"), &format!("${{part({name})}}"))
    });
    let sent = if sent.is_empty() { String::new() } else { format!(", {{ {} }}", sent.join(", ")) };
    let (arguments, method) = (arguments.join(", "), &call.method);
    write!(
        methods,
        "\n  /** {} */\n  {id}({arguments}): Promise<{answer}> {{\n    return this.ask(\"{method}\", `{path}`{sent});\n  }}\n",
        call.summary
    )
    .unwrap();
}

#[tokio::test]
async fn the_clients_are_current() {
    let document = Site::new("").await.server.openapi();
    expect_test::expect_file!["../../../../../examples/clients/python/stepfold_client.py"]
        .assert_eq(&python(&document));
    expect_test::expect_file!["../../../../../examples/clients/typescript/stepfold_client.ts"]
        .assert_eq(&typescript(&document));
}
