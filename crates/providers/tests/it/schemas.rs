//! Tools and replies of odd schemas: each is offered to each server, called, and comes back as it is, or is left out alone.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::check::{KnownServer, faults};
use stepfold_providers::gemini::Gemini;
use stepfold_providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold_providers::probe::{self, ProbeResponse};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, Message, ModelErrorKind, Reply, ReplyStream, ResponseFormat, ToolCall,
    ToolChoice, ToolResult, ToolSpec, Transcript,
};
use stepfold_state_core::json_schema::ValueType;

use futures_util::StreamExt;

/// A tool of a public server, in its odd shape, written again by hand.
#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    about: String,
    input_schema: Value,
    valid: Vec<Map<String, Value>>,
}

static CORPUS: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let text = include_str!("../../../mcp/tests/schemas/corpus.json");
    serde_json::from_str(text).unwrap()
});

type Read = Box<dyn Fn(ChatRequest, ProbeResponse) -> ReplyStream + Send + Sync>;

struct Served {
    server: KnownServer,
    model: Box<dyn ChatModel>,
    read: Read,
}

macro_rules! served {
    ($server:expr, $model:expr) => {{
        let model = $model;
        let reader = model.clone();
        let read: Read = Box::new(move |request, response| probe::reply_to(&reader, request, response));
        Served { server: $server, model: Box::new(model), read }
    }};
}

static MODELS: LazyLock<Vec<Served>> = LazyLock::new(|| {
    let chat = |preset: Preset| OpenAi::preset(&preset, "m").key("k").build().unwrap();
    vec![
        served!(KnownServer::OpenAiChat, chat(Preset::OPENAI)),
        served!(KnownServer::OpenAiResponses, OpenAiResponses::new("m", "k").unwrap()),
        served!(KnownServer::Anthropic, Anthropic::new("m", "k").build().unwrap()),
        served!(KnownServer::Gemini, Gemini::new("gemini-2.5-flash", "k").build().unwrap()),
        served!(KnownServer::Mistral, chat(Preset::MISTRAL)),
        served!(KnownServer::Kimi, chat(Preset::MOONSHOT)),
        served!(KnownServer::DeepSeek, chat(Preset::DEEPSEEK)),
        served!(KnownServer::QwenTemplate, chat(Preset::VLLM)),
        // Gateways: what they send on goes anywhere.
        served!(KnownServer::OpenAiChat, chat(Preset::OPENROUTER)),
    ]
});

/// The body of a request; it has no faults.
fn body(served: &Served, request: &ChatRequest, about: &str) -> Value {
    let wired = served.model.wire_request(request).unwrap();
    let wired = wired.unwrap_or_else(|error| panic!("{about} to {}: {error}", served.server.name()));
    let body: Value = serde_json::from_str(&wired.body).unwrap();
    let faults = faults(served.server, &body);
    assert!(faults.is_empty(), "{about} to {}: {faults:#?}\n{body:#}", served.server.name());
    body
}

/// The names of the tools in a body, with their schemas.
fn tools(server: KnownServer, body: &Value) -> Vec<(String, Value)> {
    let tool = |tool: &Value, schema: &str| (tool["name"].as_str().unwrap().to_owned(), tool[schema].clone());
    let all = body["tools"].as_array().cloned().unwrap_or_default();
    match server {
        KnownServer::Anthropic => all.iter().map(|wired| tool(wired, "input_schema")).collect(),
        KnownServer::OpenAiResponses => all.iter().map(|wired| tool(wired, "parameters")).collect(),
        KnownServer::Gemini => {
            let all = body
                .pointer("/tools/0/functionDeclarations")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            all.iter().map(|wired| tool(wired, "parametersJsonSchema")).collect()
        }
        _ => all.iter().map(|wired| tool(&wired["function"], "parameters")).collect(),
    }
}

/// The name and the arguments of the call in a conversation.
fn said_call(server: KnownServer, body: &Value) -> (String, Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let parsed = |value: &Value| serde_json::from_str(value.as_str().unwrap()).unwrap();
    match server {
        KnownServer::Anthropic => {
            let call = &body["messages"][1]["content"][0];
            (text(&call["name"]), call["input"].clone())
        }
        KnownServer::OpenAiResponses => {
            (text(&body["input"][1]["name"]), parsed(&body["input"][1]["arguments"]))
        }
        KnownServer::Gemini => {
            let call = &body["contents"][1]["parts"][0]["functionCall"];
            (text(&call["name"]), call["args"].clone())
        }
        _ => {
            let call = &body["messages"][1]["tool_calls"][0]["function"];
            (text(&call["name"]), parsed(&call["arguments"]))
        }
    }
}

fn whole(body: &Value) -> ProbeResponse {
    let pieces = vec![body.to_string().into_bytes()];
    ProbeResponse { status: 200, content_type: "application/json", pieces, pause: Duration::ZERO }
}

/// The server's reply with a call.
fn calls(server: KnownServer, name: &str, arguments: &Value) -> ProbeResponse {
    let text = arguments.to_string();
    whole(&match server {
        KnownServer::Anthropic => json!({"type": "message", "role": "assistant", "stop_reason": "tool_use",
            "content": [{"type": "tool_use", "id": "c1", "name": name, "input": arguments}]}),
        KnownServer::OpenAiResponses => json!({"status": "completed", "output": [
            {"type": "function_call", "call_id": "c1", "name": name, "arguments": text}]}),
        KnownServer::Gemini => json!({"candidates": [{"finishReason": "STOP", "content": {"parts": [
            {"functionCall": {"id": "c1", "name": name, "args": arguments}}]}}]}),
        _ => json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": name, "arguments": text}}]}}]}),
    })
}

/// The server's reply with a text.
fn says(server: KnownServer, text: &str) -> ProbeResponse {
    whole(&match server {
        KnownServer::Anthropic => json!({"type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}]}),
        KnownServer::OpenAiResponses => {
            json!({"status": "completed", "output": [{"type": "message", "id": "m1",
            "content": [{"type": "output_text", "text": text}]}]})
        }
        KnownServer::Gemini => {
            json!({"candidates": [{"finishReason": "STOP", "content": {"parts": [{"text": text}]}}]})
        }
        _ => {
            json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]})
        }
    })
}

fn reply(served: &Served, request: &ChatRequest, response: ProbeResponse) -> Reply {
    block_on((served.read)(request.clone(), response).into_reply()).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

fn asked(tools: impl Into<Arc<[ToolSpec]>>) -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("do it"))).with_tools(tools)
}

/// Offers a tool, beside one that every server takes, and calls it with these arguments.
fn offer_and_call(served: &Served, spec: &ToolSpec, arguments: &[Map<String, Value>], about: &str) {
    let plain = ToolSpec::new("plain", "Nothing odd.", json!({"type": "object", "properties": {}}));
    let specs: Arc<[ToolSpec]> = [plain, spec.clone()].into();
    let offered = tools(served.server, &body(served, &asked(Arc::clone(&specs)), about));
    let omitted = served.model.omitted_tools(&specs);
    assert_eq!(offered.len() + omitted.len(), 2, "{about}");
    assert_eq!(offered[0].0, "plain", "{about}");
    let Some((name, schema)) = offered.get(1) else {
        assert!(omitted[0].name == spec.name && !omitted[0].reason.is_empty());
        return;
    };
    let takes =
        ValueType::of_schema(schema.clone()).unwrap_or_else(|error| panic!("{about}: {error}\n{schema:#}"));
    let own = ValueType::of_schema(spec.parameters.clone()).ok();
    for arguments in arguments {
        let call = ToolCall::new("c1", &spec.name, arguments.clone());
        let history = Transcript::new()
            .with(Message::user("do it"))
            .with(Message::assistant("").with_part(call))
            .with(Message::tool(ToolResult::value("c1", &spec.name, json!({"ok": true}))));
        let request = ChatRequest::new(history).with_tools(Arc::clone(&specs));
        let (called, wired) = said_call(served.server, &body(served, &request, about));
        assert_eq!(called, *name, "{about}: the same name in the offer and in the conversation");
        let own_takes = own.as_ref().is_none_or(|own| own.check(&Value::Object(arguments.clone())).is_ok());
        if own_takes && spec.parameters.is_object() {
            let result = takes.check(&wired);
            assert!(
                result.is_ok(),
                "{about} to {}: {} {wired}\n{schema:#}",
                served.server.name(),
                result.unwrap_err()
            );
        }
        let reply = reply(served, &request, calls(served.server, name, &wired));
        let calls: Vec<&ToolCall> = reply.message.tool_calls().collect();
        assert_eq!(calls.len(), 1, "{about}");
        assert_eq!(calls[0].name, spec.name, "{about}");
        assert_eq!(calls[0].arguments.as_object(), Some(arguments), "{about} by {}", served.server.name());
    }
}

#[test]
fn tools_of_public_servers_are_offered_called_and_mapped_back() {
    assert!(CORPUS.len() >= 60);
    for case in CORPUS.iter() {
        let spec = ToolSpec::new(&case.name, &case.about, case.input_schema.clone());
        for served in MODELS.iter() {
            offer_and_call(served, &spec, &case.valid, &case.name);
        }
    }
}

/// A definition is used wherever a schema may stand.
#[test]
fn a_reference_in_any_place_names_a_definition_that_is_sent() {
    let of_properties = ["properties", "patternProperties", "dependentSchemas", "dependencies"];
    let lists = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
    let single = [
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "contentSchema",
        "not",
        "if",
        "then",
        "else",
    ];
    let reference = json!({"$ref": "#/$defs/odd~1name"});
    let named = of_properties.map(|keyword| json!({keyword: {"a": reference.clone()}}));
    let listed = lists.map(|keyword| json!({keyword: [reference.clone()]}));
    let alone = single.map(|keyword| json!({keyword: reference.clone()}));
    for place in named.into_iter().chain(listed).chain(alone) {
        let definitions = json!({"odd/name": {"type": "string", "maxLength": 9}});
        let schema = json!({"type": "object", "properties": {"x": place}, "$defs": definitions});
        for served in MODELS.iter() {
            let request = asked([ToolSpec::new("odd", "", schema.clone())]);
            let (_, sent) = tools(served.server, &body(served, &request, &place.to_string())).remove(0);
            let text = sent.to_string();
            let is_found = !text.contains("$ref") || sent.pointer("/$defs/odd~1name").is_some();
            assert!(is_found, "{place} to {}: {text}", served.server.name());
        }
    }
}

/// Only what no server could take is left out.
#[test]
fn tools_that_cannot_be_said_are_left_out_alone() {
    let list = json!({"type": "array", "items": {"type": "string"}});
    let cases = [
        (json!(false), "its schema allows no arguments"),
        (list, "its arguments are no object"),
        (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "its arguments are no object"),
        (json!("object"), "its schema is no JSON Schema: expected an object, found string"),
    ];
    for served in MODELS.iter() {
        for case in CORPUS.iter() {
            let specs: Arc<[ToolSpec]> = [ToolSpec::new(&case.name, "", case.input_schema.clone())].into();
            assert_eq!(served.model.omitted_tools(&specs), [], "{}", case.name);
        }
        for (schema, reason) in &cases {
            let good = ToolSpec::new("good", "", json!({"type": "object"}));
            let specs: Arc<[ToolSpec]> = [ToolSpec::new("bad", "", schema.clone()), good].into();
            let request = asked(Arc::clone(&specs));
            let offered = tools(served.server, &body(served, &request, reason));
            assert_eq!(offered.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["good"]);
            let omitted = served.model.omitted_tools(&specs);
            assert_eq!((omitted[0].name.as_str(), omitted[0].reason.as_str()), ("bad", *reason));
            let wired = served.model.wire_request(&request).unwrap().unwrap();
            assert!(wired.changes.iter().any(|change| change.change.contains(reason)), "{:?}", wired.changes);
            // A choice that demands it is an error that says why.
            let demanded = request.with_tool_choice(ToolChoice::Named("bad".to_owned()));
            let error = served.model.wire_request(&demanded).unwrap().unwrap_err();
            assert_eq!(error.kind(), &ModelErrorKind::Unsupported);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
}

#[test]
fn at_most_as_many_tools_are_offered_as_the_server_takes() {
    let specs: Vec<ToolSpec> =
        (0..200).map(|at| ToolSpec::new(format!("tool_{at}"), "", json!({"type": "object"}))).collect();
    let specs: Arc<[ToolSpec]> = specs.into();
    // A gateway sends them on to servers of all sorts: the last one is left out here.
    for served in MODELS.iter().take(KnownServer::ALL.len()) {
        let offered = tools(served.server, &body(served, &asked(Arc::clone(&specs)), "many"));
        let limited =
            [KnownServer::OpenAiChat, KnownServer::OpenAiResponses, KnownServer::DeepSeek, KnownServer::Kimi];
        assert_eq!(offered.len(), if limited.contains(&served.server) { 128 } else { 200 });
        let omitted = served.model.omitted_tools(&specs);
        assert_eq!(omitted.len(), 200 - offered.len());
        assert!(omitted.iter().all(|tool| tool.reason == "this provider takes at most 128 tools"));
    }
}

/// Names: two tools, one of which has the very name that the other one gets.
#[test]
fn names_stay_apart_and_a_choice_is_followed() {
    for served in MODELS.iter() {
        let schema = json!({"type": "object"});
        let odd = [ToolSpec::new("21st magic", "", schema.clone())];
        let wired = tools(served.server, &body(served, &asked(odd.clone()), "odd"))[0].0.clone();
        let specs = [odd[0].clone(), ToolSpec::new(&wired, "", schema)];
        let request = asked(specs).with_tool_choice(ToolChoice::Named("21st magic".to_owned()));
        let names = tools(served.server, &body(served, &request, "odd"));
        assert_eq!(names.len(), 2);
        let response = calls(served.server, &names[1].0, &json!({}));
        let error = block_on((served.read)(request.clone(), response).into_reply()).unwrap_err();
        assert_eq!(error.kind(), &ModelErrorKind::ToolChoiceIgnored, "{error}");
        assert!(error.to_string().contains("`21st magic`"), "{error}");
        for (at, own) in ["21st magic", &wired].into_iter().enumerate() {
            let free = request.clone().with_tool_choice(ToolChoice::Auto);
            let reply = reply(served, &free, calls(served.server, &names[at].0, &json!({})));
            assert_eq!(reply.message.tool_calls().next().unwrap().name, own);
        }
    }
}

/// A value that is not an object is wrapped where the server demands one, and comes back bare.
#[test]
fn replies_of_any_schema_come_back_bare() {
    let person = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        "additionalProperties": false});
    let odd = json!({"type": "object", "properties": {"$top": {"type": "integer"}}, "required": ["$top"],
        "additionalProperties": false});
    let cases = [
        (json!({"type": "array", "items": {"type": "string"}}), json!(["a", "b"])),
        (json!({"type": "string"}), json!("a \"quoted\" text")),
        (json!({"type": "integer", "minimum": 0}), json!(4)),
        (json!({"anyOf": [person.clone(), {"type": "null"}]}), Value::Null),
        (json!({"type": "array", "items": odd.clone()}), json!([{"$top": 3}])),
        (person.clone(), json!({"name": "Ann"})),
        (odd, json!({"$top": 3})),
    ];
    for served in MODELS.iter().filter(|served| served.server != KnownServer::DeepSeek) {
        for (schema, value) in &cases {
            let format = ResponseFormat::JsonSchema {
                name: "the reply".to_owned(),
                schema: schema.clone(),
                strict: false,
            };
            let request = asked([]).with_response_format(format);
            let body = body(served, &request, &schema.to_string());
            let wired = [
                "/response_format/json_schema/schema",
                "/text/format/schema",
                "/output_config/format/schema",
                "/generationConfig/responseJsonSchema",
            ];
            let wired = wired.iter().find_map(|place| body.pointer(place)).unwrap();
            let is_object = wired["properties"]["value"].is_object();
            let key = |name: &str| -> String {
                let properties = wired
                    .pointer("/properties/value/items/properties")
                    .or_else(|| wired.pointer("/items/properties"));
                let properties = properties.unwrap_or(&wired["properties"]).as_object().unwrap();
                let known = |key: &&String| *key == name || key.starts_with("top_");
                properties.keys().find(known).cloned().unwrap_or_else(|| name.to_owned())
            };
            let mut said = value.to_string();
            if said.contains("$top") {
                said = said.replace("$top", &key("$top"));
            }
            let said = if is_object { format!("{{\n  \"value\": {said}\n}}\n") } else { said };
            let reply = reply(served, &request, says(served.server, &said));
            assert_eq!(reply.message.text(), value.to_string(), "{schema} by {}", served.server.name());
        }
    }
}

/// No server held the model to the schema: it says what it likes.
#[test]
fn replies_of_another_form_stay_as_they_are() {
    let format = ResponseFormat::JsonSchema {
        name: "list".to_owned(),
        schema: json!({"type": "array", "items": {"type": "string"}}),
        strict: false,
    };
    let request = asked([]).with_response_format(format);
    for text in [
        "[\"a\"]",
        "{\"value\": [1], \"more\": 2}",
        "{\"values\": []}",
        "{\"value\": [",
        "Sorry.",
        "{\"value\": 1} x",
    ] {
        for served in MODELS.iter().filter(|served| served.server != KnownServer::DeepSeek) {
            let reply = reply(served, &request, says(served.server, text));
            assert_eq!(reply.message.text(), text, "{}", served.server.name());
        }
    }
}

/// Numbers come back byte for byte, whatever fragments they came in; other calls stream.
#[test]
fn arguments_in_fragments_are_mapped_once_they_are_whole() {
    let odd = ToolSpec::new("odd", "", json!({"type": "object", "properties": {"$top": {}, "big": {}}}));
    let plain = ToolSpec::new("plain", "", json!({"type": "object", "properties": {"a": {}}}));
    let served = MODELS.iter().find(|served| served.server == KnownServer::Anthropic).unwrap();
    let request = asked([odd, plain]);
    let (_, schema) = &tools(served.server, &body(served, &request, "odd"))[0];
    let key = schema["properties"].as_object().unwrap().keys().find(|key| key.starts_with("top_")).unwrap();
    let event = |value: Value| format!("data: {value}\n\n");
    let arguments = format!("{{\"{key}\": 1.0, \"big\": 18446744073709551615}}");
    let mut text = event(json!({"type": "message_start", "message": {"id": "m1"}}));
    text += &event(json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "tool_use", "id": "c1", "name": "odd", "input": {}}}));
    for fragment in arguments.as_bytes().chunks(5) {
        let fragment = String::from_utf8(fragment.to_vec()).unwrap();
        text += &event(json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": fragment}}));
    }
    text += &event(json!({"type": "content_block_stop", "index": 0}));
    text += &event(json!({"type": "content_block_start", "index": 1,
        "content_block": {"type": "tool_use", "id": "c2", "name": "plain", "input": {}}}));
    for fragment in ["{\"a\"", ": 1}"] {
        text += &event(json!({"type": "content_block_delta", "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": fragment}}));
    }
    text += &event(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}));
    text += &event(json!({"type": "message_stop"}));
    let response = || ProbeResponse {
        status: 200,
        content_type: "text/event-stream",
        pieces: vec![text.clone().into_bytes()],
        pause: Duration::ZERO,
    };
    let chunks: Vec<Chunk> =
        block_on((served.read)(request.clone(), response()).map(Result::unwrap).collect());
    let fragments = |index: usize| -> Vec<String> {
        let of_call = |chunk: &Chunk| match chunk {
            Chunk::ToolCall(call) if call.index == index && !call.arguments.is_empty() => {
                Some(call.arguments.clone())
            }
            _ => None,
        };
        chunks.iter().filter_map(of_call).collect()
    };
    assert_eq!(fragments(0), [r#"{"$top":1.0,"big":18446744073709551615}"#]);
    assert_eq!(fragments(1), ["{\"a\"", ": 1}"]);
    let reply = reply(served, &request, response());
    let arguments = reply.message.tool_calls().next().unwrap().arguments.to_text().into_owned();
    assert_eq!(arguments, r#"{"$top":1.0,"big":18446744073709551615}"#);
    // What breaks off is not lost.
    let half = text.split_once("content_block_stop").unwrap().0.rsplit_once("data:").unwrap().0;
    let cut = ProbeResponse { pieces: vec![half.as_bytes().to_vec()], ..response() };
    let error = block_on((served.read)(request, cut).into_reply()).unwrap_err();
    let partial = error.partial().unwrap();
    assert!(partial.message.tool_calls().next().unwrap().arguments.to_text().contains("$top"));
}

/// A schema, and a value of it.
fn schema_and_value() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        Just((json!({"type": "integer"}), json!(7))),
        Just((json!({"type": ["string", "null"]}), Value::Null)),
        Just((json!({"enum": [1, "a", null, true]}), json!(true))),
        Just((json!({"const": {"$top": 1}}), json!({"$top": 1}))),
        Just((json!(true), json!([{"$top": 1}]))),
        Just((json!({}), json!({"filter[name]": 0.5}))),
        Just((json!({"type": "array"}), json!([1, "a"]))),
        Just((json!({"type": "string", "minLength": 1, "pattern": "^a"}), json!("a"))),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            object(inner.clone()),
            (inner.clone(), 0..3_usize).prop_map(|((schema, value), count)| {
                (json!({"type": "array", "items": schema}), vec![value; count].into())
            }),
            (inner.clone(), inner.clone()).prop_map(|((one, first), (two, second))| {
                (json!({"type": "array", "prefixItems": [one, two]}), json!([first, second]))
            }),
            (inner.clone(), inner.clone(), any::<bool>()).prop_map(|((one, value), (two, _), is_any)| {
                let keyword = if is_any { "anyOf" } else { "allOf" };
                let other = if is_any { two } else { json!({}) };
                (json!({keyword: [one, other]}), value)
            }),
            inner.clone().prop_map(|(schema, value)| {
                (json!({"type": "object", "additionalProperties": schema}), json!({"$free[key]": value}))
            }),
            inner.clone().prop_map(|(schema, value)| {
                (json!({"type": "object", "patternProperties": {"^x-": schema}, "additionalProperties": false}),
                    json!({"x-a": value}))
            }),
        ]
    })
}

/// An object whose properties have odd names.
fn object(inner: impl Strategy<Value = (Value, Value)>) -> impl Strategy<Value = (Value, Value)> {
    let names = ["$top", "filter[name]", "a b", "a_b", "", "名前", "required", "$ref", "items", "x.y"];
    let name = prop_oneof![
        prop::sample::select(names.to_vec()).prop_map(str::to_owned),
        Just("n".repeat(70)),
        "[a-c$]{1,3}"
    ];
    let properties = prop::collection::btree_map(name, (inner, any::<bool>(), any::<bool>()), 0..5);
    (properties, any::<bool>()).prop_map(|(properties, is_closed)| {
        let (mut schemas, mut required, mut value) = (Map::new(), Vec::new(), Map::new());
        for (name, ((schema, inside), is_required, is_there)) in properties {
            schemas.insert(name.clone(), schema);
            if is_required {
                required.push(json!(name));
            }
            if is_required || is_there {
                value.insert(name, inside);
            }
        }
        let mut schema = json!({"type": "object", "properties": schemas, "required": required});
        if is_closed {
            schema["additionalProperties"] = json!(false);
        }
        (schema, value.into())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn generated_tools_are_offered_called_and_mapped_back(
        (schema, value) in object(schema_and_value()),
        name in "\\PC{0,12}|[a-z_]{1,70}|[0-9-][a-z ]{0,5}",
    ) {
        prop_assume!(name != "plain");
        let spec = ToolSpec::new(name, "A tool.", schema);
        let Value::Object(arguments) = value else { unreachable!("objects only") };
        for served in MODELS.iter() {
            offer_and_call(served, &spec, std::slice::from_ref(&arguments), &spec.parameters.to_string());
        }
    }
}
