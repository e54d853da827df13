//! Tools, the choice among them, and schemas of replies.
//!
//! Schemas are checked by the draft of 2020-12, and by the known refusals of each server. Everything else is accepted.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{KnownServer, RuleFaults, is_name, items, text};

pub(super) fn check(server: KnownServer, body: &Value, faults: &mut RuleFaults) {
    let tools = offered(server, body);
    let mut names = HashSet::new();
    for tool in &tools {
        let name = tool.name;
        faults.require(is_tool_name(server, name), "tool-name", || format!("{}: `{name}`", tool.place));
        faults.require(names.insert(name), "tool-name", || format!("{}: a second tool `{name}`", tool.place));
        let place = format!("{} (`{name}`)", tool.place);
        root(server, tool.schema, &place, faults);
        let mut reader = SchemaChecker { server, is_strict: tool.is_strict, is_reply: false, faults };
        reader.schema(tool.schema, &place);
    }
    // The API references of OpenAI and DeepSeek: "A max of 128 functions are supported.";
    // platform.kimi.ai/docs/api/tool-use says the same.
    let most = match server {
        KnownServer::OpenAiChat
        | KnownServer::OpenAiResponses
        | KnownServer::DeepSeek
        | KnownServer::Kimi => 128,
        _ => usize::MAX,
    };
    faults
        .require(tools.len() <= most, "tools", || format!("tools: {} of them, at most {most}", tools.len()));
    if let Some(name) = chosen(server, body) {
        faults.require(names.contains(name), "tools", || {
            format!("the choice names the tool `{name}`: not offered")
        });
    }
    reply(server, body, faults);
}

/// A tool that the caller runs.
struct OfferedTool<'v> {
    place: String,
    name: &'v str,
    schema: &'v Value,
    is_strict: bool,
}

fn offered(server: KnownServer, body: &Value) -> Vec<OfferedTool<'_>> {
    let mut found = Vec::new();
    for (at, wired) in items(&body["tools"]).iter().enumerate() {
        let place = format!("tools[{at}]");
        match server {
            KnownServer::Gemini => {
                for (inner, function) in items(&wired["functionDeclarations"]).iter().enumerate() {
                    found.push(OfferedTool {
                        place: format!("{place}.functionDeclarations[{inner}]"),
                        name: text(function, "name"),
                        schema: &function["parametersJsonSchema"],
                        is_strict: false,
                    });
                }
            }
            KnownServer::Anthropic if wired.get("input_schema").is_some() => {
                let is_strict = wired["strict"] == true;
                found.push(OfferedTool {
                    place,
                    name: text(wired, "name"),
                    schema: &wired["input_schema"],
                    is_strict,
                });
            }
            KnownServer::OpenAiResponses if wired["type"] == "function" => {
                // Here a tool is strict unless it says otherwise.
                let is_strict = wired["strict"] != false;
                found.push(OfferedTool {
                    place,
                    name: text(wired, "name"),
                    schema: &wired["parameters"],
                    is_strict,
                });
            }
            _ if wired["function"].is_object() => {
                let function = &wired["function"];
                let is_strict = function["strict"] == true;
                found.push(OfferedTool {
                    place,
                    name: text(function, "name"),
                    schema: &function["parameters"],
                    is_strict,
                });
            }
            _ => {}
        }
    }
    found
}

/// The name that a choice of tools demands.
fn chosen(server: KnownServer, body: &Value) -> Option<&str> {
    match server {
        KnownServer::Gemini => {
            body.pointer("/toolConfig/functionCallingConfig/allowedFunctionNames/0")?.as_str()
        }
        KnownServer::Anthropic | KnownServer::OpenAiResponses => body["tool_choice"]["name"].as_str(),
        _ => body.pointer("/tool_choice/function/name")?.as_str(),
    }
}

pub(super) fn is_tool_name(server: KnownServer, name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match server {
        // platform.kimi.ai/docs/api/tool-use: ^[a-zA-Z_][a-zA-Z0-9-_]{2,63}$
        KnownServer::Kimi => begins && name.len() > 2 && is_name(name, "_-", 64),
        // github.com/cline/cline/issues/7339
        KnownServer::Gemini => begins && is_name(name, "_.:-", 64),
        // github.com/home-assistant/core/issues/147760
        KnownServer::Anthropic => is_name(name, "_-", 128),
        _ => is_name(name, "_-", 64),
    }
}

/// The keywords that make of an object something else.
const UNIONS: &[&str] = &["anyOf", "oneOf", "allOf", "not", "enum", "const"];

/// The root of parameters.
fn root(server: KnownServer, schema: &Value, place: &str, faults: &mut RuleFaults) {
    faults.require(schema["type"] == "object", "parameters", || format!("{place}: its root is no object"));
    let refused: &[&str] = match server {
        // github.com/langchain-ai/langchainjs/issues/9804, github.com/goruck/home-generative-agent/pull/545
        KnownServer::OpenAiChat | KnownServer::OpenAiResponses => UNIONS,
        // github.com/anthropics/claude-code/issues/5319
        KnownServer::Anthropic => &["anyOf", "oneOf", "allOf"],
        _ => &[],
    };
    for keyword in refused.iter().filter(|keyword| schema.get(**keyword).is_some()) {
        faults.add("parameters", format!("{place}: {keyword} at the root"));
    }
    if matches!(server, KnownServer::OpenAiChat | KnownServer::OpenAiResponses) {
        faults.require(schema["properties"].is_object(), "parameters", || {
            format!("{place}: object schema missing properties")
        });
    }
}

/// The schema of a reply.
fn reply(server: KnownServer, body: &Value, faults: &mut RuleFaults) {
    let (format, place) = match server {
        KnownServer::OpenAiResponses => (&body["text"]["format"], "text.format"),
        KnownServer::Anthropic => (&body["output_config"]["format"], "output_config.format"),
        KnownServer::Gemini => (&body["generationConfig"], "generationConfig"),
        _ => (&body["response_format"], "response_format"),
    };
    let (named, is_strict) = match server {
        KnownServer::OpenAiResponses | KnownServer::Anthropic => {
            (format, server == KnownServer::Anthropic || format["strict"] == true)
        }
        KnownServer::Gemini => (format, false),
        _ => (&format["json_schema"], format["json_schema"]["strict"] == true),
    };
    let schema =
        if server == KnownServer::Gemini { named.get("responseJsonSchema") } else { named.get("schema") };
    let Some(schema) = schema else { return };
    // api-docs.deepseek.com/guides/json_mode: JSON objects only.
    faults.require(server != KnownServer::DeepSeek, "reply-schema", || {
        format!("{place}: no schemas of replies")
    });
    if !matches!(server, KnownServer::Anthropic | KnownServer::Gemini) {
        let name = text(named, "name");
        faults.require(is_name(name, "_-", 64), "reply-schema", || format!("{place}: name `{name}`"));
    }
    // OpenAI's guide of structured outputs: "the root level object of a schema must be an object, and not use anyOf".
    if matches!(server, KnownServer::OpenAiChat | KnownServer::OpenAiResponses) {
        let is_plain =
            schema["type"] == "object" && UNIONS.iter().all(|keyword| schema.get(*keyword).is_none());
        faults.require(is_plain, "reply-schema", || format!("{place}: the root is no object"));
    }
    SchemaChecker { server, is_strict, is_reply: true, faults }.schema(schema, place);
}

/// The keywords of JSON Schema that Gemini takes.
//
// NOTE: Not shared with `SchemaRules::GEMINI`: a fault in the writer must not be a fault in its checker.
// pub.dev/documentation/googleapis, `responseJsonSchema`; `default` is ignored (hexdocs.pm/geminix, Schema).
const GEMINI_KEYWORDS: &[&str] = &[
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "default",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
    "propertyOrdering",
];

/// The keywords that no strict mode takes.
//
// OpenAI's guide of structured outputs, "Some type-specific keywords are not yet supported"; 'allOf' is not permitted:
// github.com/makenotion/notion-mcp-server/issues/102. Anthropic's guide of structured outputs has the same list.
const NOT_STRICT: &[&str] =
    &["allOf", "not", "dependentRequired", "dependentSchemas", "if", "then", "else", "patternProperties"];

struct SchemaChecker<'f> {
    server: KnownServer,
    is_strict: bool,
    is_reply: bool,
    faults: &'f mut RuleFaults,
}

impl SchemaChecker<'_> {
    fn fault(&mut self, place: &str, reason: impl std::fmt::Display) {
        let rule = if self.is_reply { "reply-schema" } else { "parameters" };
        self.faults.add(rule, format!("{place}: {reason}"));
    }

    fn schema(&mut self, schema: &Value, place: &str) {
        let Value::Object(fields) = schema else {
            // OpenAI: "True is not of type 'object'"; the draft takes booleans.
            if !schema.is_boolean()
                || matches!(self.server, KnownServer::OpenAiChat | KnownServer::OpenAiResponses)
            {
                self.fault(place, format!("expected a schema, found {schema}"));
            }
            return;
        };
        for (keyword, value) in fields {
            self.keyword(keyword, value, place);
        }
        self.list(fields, place);
        self.object(fields, place);
        match self.server {
            KnownServer::Gemini => self.gemini(fields, place),
            KnownServer::Kimi => self.kimi(fields, place),
            _ => {}
        }
        if self.is_strict {
            self.strict(fields, place);
        }
        self.inside(fields, place);
    }

    /// The form of a keyword, by json-schema.org/draft/2020-12/schema. Anthropic: "JSON schema is invalid. It must
    /// match JSON Schema draft 2020-12" (github.com/anthropics/claude-code/issues/63673).
    fn keyword(&mut self, keyword: &str, value: &Value, place: &str) {
        const TYPES: &[&str] = &["null", "boolean", "object", "array", "number", "string", "integer"];
        let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
        let are_names = |value: &Value| {
            let names = items(value);
            let distinct: HashSet<&str> = names.iter().filter_map(Value::as_str).collect();
            value.is_array() && distinct.len() == names.len()
        };
        let is_schema = |value: &Value| value.is_object() || value.is_boolean();
        let is_legal = match keyword {
            "type" => {
                is_type(value)
                    || (are_names(value) && !items(value).is_empty() && items(value).iter().all(is_type))
            }
            "required" => are_names(value),
            "enum" => !items(value).is_empty(),
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                !items(value).is_empty() && items(value).iter().all(is_schema)
            }
            "properties" | "patternProperties" | "$defs" | "dependentSchemas" => {
                value.as_object().is_some_and(|all| all.values().all(is_schema))
            }
            "dependentRequired" => value.as_object().is_some_and(|all| all.values().all(are_names)),
            "items"
            | "additionalProperties"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contains"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => is_schema(value),
            "title" | "description" | "pattern" | "format" | "$ref" | "$schema" | "$id" | "$comment" => {
                value.is_string()
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                value.as_f64().is_some_and(|count| count >= 0.0 && count.fract() == 0.0)
            }
            "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
            "examples" => value.is_array(),
            _ => true,
        };
        if !is_legal {
            self.fault(place, format!("{keyword}: {value}"));
        }
    }

    /// OpenAI: "array schema missing items" (github.com/sigoden/aichat/pull/1049); Gemini: "items: missing field"
    /// (github.com/cline/cline/issues/7339).
    fn list(&mut self, fields: &Map<String, Value>, place: &str) {
        let is_list = fields
            .get("type")
            .is_some_and(|kind| kind == "array" || items(kind).iter().any(|kind| kind == "array"));
        let is_strict_server = matches!(
            self.server,
            KnownServer::OpenAiChat | KnownServer::OpenAiResponses | KnownServer::Gemini
        );
        if is_list && is_strict_server && !fields.get("items").is_some_and(Value::is_object) {
            self.fault(place, "array schema missing items");
        }
    }

    /// Anthropic: "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    /// (github.com/ComposioHQ/composio/issues/3500).
    fn object(&mut self, fields: &Map<String, Value>, place: &str) {
        if self.server == KnownServer::Anthropic {
            let properties = fields.get("properties").and_then(Value::as_object);
            for name in properties.into_iter().flat_map(Map::keys).filter(|name| !is_name(name, "_.-", 64)) {
                self.faults.add("property-name", format!("{place}: property `{name}`"));
            }
        }
    }

    fn gemini(&mut self, fields: &Map<String, Value>, place: &str) {
        for keyword in fields.keys().filter(|keyword| !GEMINI_KEYWORDS.contains(&keyword.as_str())) {
            self.fault(place, format!("{keyword} is not supported"));
        }
        let is_word =
            |value: &Value| value.is_number() || value.as_str().is_some_and(|text| !text.is_empty());
        if fields.get("enum").is_some_and(|values| !items(values).iter().all(is_word)) {
            self.fault(place, "enum is for texts and numbers");
        }
        if fields.contains_key("$ref") && fields.keys().any(|keyword| !keyword.starts_with('$')) {
            self.fault(place, "fields beside $ref");
        }
    }

    /// The refusals of the validator of Moonshot, from github.com/vercel/ai/pull/18921.
    fn kimi(&mut self, fields: &Map<String, Value>, place: &str) {
        if fields.contains_key("anyOf") && fields.contains_key("type") {
            self.fault(
                place,
                "when using anyOf, type should be defined in anyOf items instead of the parent schema",
            );
        }
        if fields.get("items").is_some_and(|items| !items.is_object()) {
            self.fault(place, "items must be an object");
        }
        for name in fields.get("required").into_iter().flat_map(items).filter_map(Value::as_str) {
            if fields.get("properties").and_then(|all| all.get(name)).is_none() {
                self.fault(place, format!("required property '{name}' is not defined in properties"));
            }
        }
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            if !reference.starts_with("#/$defs/") {
                self.fault(place, "references must start with #/$defs/");
            }
            // github.com/MoonshotAI/kimi-cli/issues/2061
            if fields.contains_key("description") {
                self.fault(place, "conflicting keywords found after $ref expansion: description");
            }
        }
    }

    /// Objects are closed; at OpenAI all properties are required.
    fn strict(&mut self, fields: &Map<String, Value>, place: &str) {
        for keyword in NOT_STRICT.iter().filter(|keyword| fields.contains_key(**keyword)) {
            self.fault(place, format!("{keyword} is not permitted"));
        }
        let is_object = fields
            .get("type")
            .is_some_and(|kind| kind == "object" || items(kind).iter().any(|kind| kind == "object"));
        if !is_object {
            return;
        }
        // A map cannot be closed: Anthropic's error says so, and there is no other form of it.
        let is_map = self.server == KnownServer::Anthropic && !fields.contains_key("properties");
        if !is_map && fields.get("additionalProperties") != Some(&Value::Bool(false)) {
            self.fault(place, "additionalProperties is required to be false");
        }
        if self.server == KnownServer::Anthropic {
            return;
        }
        let required: HashSet<&str> =
            fields.get("required").into_iter().flat_map(items).filter_map(Value::as_str).collect();
        for name in fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if !required.contains(name.as_str()) {
                self.fault(
                    place,
                    format!("required has to include every key in properties: missing '{name}'"),
                );
            }
        }
    }

    fn inside(&mut self, fields: &Map<String, Value>, place: &str) {
        for (keyword, value) in fields {
            let place = format!("{place}.{keyword}");
            match (keyword.as_str(), value) {
                ("properties" | "patternProperties" | "dependentSchemas" | "$defs", Value::Object(all)) => {
                    for (name, schema) in all {
                        self.schema(schema, &format!("{place}.{name}"));
                    }
                }
                ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(all)) => {
                    for (at, schema) in all.iter().enumerate() {
                        self.schema(schema, &format!("{place}[{at}]"));
                    }
                }
                (
                    "items"
                    | "additionalProperties"
                    | "not"
                    | "if"
                    | "then"
                    | "else"
                    | "contains"
                    | "propertyNames"
                    | "unevaluatedItems"
                    | "unevaluatedProperties",
                    Value::Object(_),
                ) => self.schema(value, &place),
                _ => {}
            }
        }
    }
}
