//! Bodies of requests of the Responses API and of Gemini, and that what came goes back as it was.

use std::path::Path;
use std::time::Duration;

use expect_test::expect_file;
use serde_json::{Value, json};
use stepfold_providers::Secret;
use stepfold_providers::check::{KnownServer as Checked, RULES};
use stepfold_providers::gemini::Gemini;
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::{OpenAiResponses, OpenAiResponsesBuilder, Preset};
use stepfold_providers::probe::{
    self, ProbeResponse, anthropic_body, gemini_body, openai_body, responses_body,
};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Content, ImageDetail, Media, Message, ModelError, ModelErrorKind, ModelParams,
    Part, ResponseFormat, Role, ServerTool, ToolCall, ToolChoice, ToolContent, ToolResult, ToolSpec,
    Transcript,
};

use crate::server::{Asked, Play, Server, check_any, check_gemini, of_server, pretty};
use crate::wires::WIRES;

/// Writes the body of a request.
type Write = Box<dyn Fn(&ChatRequest) -> Result<Vec<u8>, ModelError>>;

/// A conversation with all that can be said, by models of several providers.
fn conversation() -> Transcript {
    let image = || Part::from(Content::Image(Media::base64("aGk=", "image/png")));
    let item = json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"});
    let signed = Part::from(ToolCall::new("f1", "search", json!({"q": "stalls"})));
    let signed = signed.with_extra("thought_signature", "sig1").with_extra("function_call_id", "f1");
    let parts = ToolContent::Parts(vec![Part::text("a map"), image()]);
    [
        Message::system("Be kind."),
        Message::from_parts(Role::User, vec![Part::text("which area?"), image()]),
        Message::from_parts(
            Role::Assistant,
            vec![
                Part::reasoning("of another provider"),
                Part::reasoning("hm").with_extra("openai", item).with_extra("thought_signature", "sig0"),
                Part::text("I look."),
                signed,
                Part::from(ToolCall::new("c2", "map", json!({}))),
            ],
        ),
        Message::tool(ToolResult::value("f1", "search", json!([3, 4]))),
        Message::tool(ToolResult::new("c2", "map", parts)),
        Message::system("Be brief."),
        Message::user("so?"),
        Message::from_parts(
            Role::Assistant,
            vec![Part::from(ToolCall::new("f3", "search", json!({"q": "x"})))],
        ),
        Message::tool(ToolResult::error("f3", "search", "timed out")),
    ]
    .into_iter()
    .collect()
}

fn request() -> ChatRequest {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let tools = [
        ToolSpec::new("search", "Finds.", schema.clone()),
        ToolSpec::new(
            "map",
            "Draws.",
            json!({"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": false}),
        )
        .with_strict(true),
    ];
    let mut params = ModelParams::default().with_temperature(0.5).with_max_output_tokens(100);
    params.extras.insert("reasoning", json!({"effort": "low"}));
    params.extras.insert("generationConfig", json!({"thinkingConfig": {"includeThoughts": true}}));
    ChatRequest::new(conversation())
        .with_tools(tools)
        .with_tool_choice(ToolChoice::Named("search".to_owned()))
        .with_response_format(ResponseFormat::JsonSchema { name: "answer".to_owned(), schema, strict: true })
        .with_params(params)
}

/// Compares a body with a file.
fn check(name: &str, body: &[u8]) {
    let body: Value = serde_json::from_slice(body).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bodies").join(name);
    expect_file![path].assert_eq(&pretty(&body));
}

#[test]
fn all_that_can_be_said() {
    let of = |server| {
        let mut request = request();
        request.messages = of_server(&request.messages, server);
        request
    };
    check("responses.json", &responses_body()(&of("openai")).unwrap());
    check("gemini.json", &gemini_body()(&of("gemini")).unwrap());
}

#[test]
fn what_an_api_has_no_field_for_is_an_error() {
    for params in [ModelParams::default().with_seed(1), ModelParams::default().with_stop(["x"])] {
        let error = responses_body()(&ChatRequest::new(conversation()).with_params(params)).unwrap_err();
        assert_eq!(error.kind(), &ModelErrorKind::Unsupported, "{error}");
    }
}

/// What a request may hold, each with a request that holds little else, and the same one without it.
fn requests(dialect: &str) -> Vec<(&'static str, ChatRequest, ChatRequest)> {
    let of = |messages: Vec<Message>| ChatRequest::new(messages.into_iter().collect());
    let plain = || of(vec![Message::user("hi")]);
    let look = |parts: Vec<Part>| of(vec![Message::from_parts(Role::User, parts)]);
    let media = |name: &'static str, content: Content| {
        (name, look(vec![Part::text("look"), content.into()]), look(vec![Part::text("look")]))
    };
    let image = |media: Media| Content::Image(media);
    let text = || Media::text("12 stalls", "text/plain");
    let tool = || {
        let properties = json!({"q": {"type": "string"}});
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
        ToolSpec::new("search", "Finds.", schema)
    };
    let tools = |tool: ToolSpec| plain().with_tools([tool]);
    let choice = |choice: ToolChoice| tools(tool()).with_tool_choice(choice);
    let params = |params: ModelParams| plain().with_params(params);
    let schema = |strict| {
        let (name, mut schema) = ("answer".to_owned(), tool().parameters);
        // Without optional properties, which OpenAI's strict mode has no form for.
        schema["required"] = json!(["q"]);
        plain().with_response_format(ResponseFormat::JsonSchema { name, schema, strict })
    };
    let called = |result: ToolContent| {
        let call =
            Message::from_parts(Role::Assistant, vec![ToolCall::new("c1", "search", json!({})).into()]);
        of(vec![Message::user("hi"), call, Message::tool(ToolResult::new("c1", "search", result))])
    };
    let map = || Part::from(image(Media::base64("aGk=", "image/png")));
    let server_tools = vec![ServerTool::new(dialect, json!({"type": "web_search"}))];
    let marked = Part::text("look").with_extra("cache_control", json!({"type": "ephemeral"}));
    vec![
        media("an image", image(Media::base64("aGk=", "image/png"))),
        media("an image by its URL", image(Media::url("https://x.test/a.png"))),
        media("a PDF", Content::File(Media::base64("aGk=", "application/pdf"))),
        media("a file by its URL", Content::File(Media::url("https://x.test/a.pdf"))),
        media(
            "an image in less detail",
            image(Media::url("https://x.test/a.png").with_detail(ImageDetail::Low)),
        ),
        media("an image by an id of the provider", image(Media::file_id("file-1"))),
        media("a file by an id of the provider", Content::File(Media::file_id("file-1"))),
        media("a text document", Content::File(text())),
        media("a document to cite", Content::File(text().with_citations())),
        media("audio", Content::File(Media::base64("aGk=", "audio/mpeg"))),
        (
            "a tool's result with an image",
            called(ToolContent::Parts(vec![Part::text("a map"), map()])),
            called(ToolContent::Parts(vec![Part::text("a map")])),
        ),
        ("the name of a participant", of(vec![Message::user("hi").with_name("ada")]), plain()),
        (
            "a system message after others",
            of(vec![Message::user("hi"), Message::system("Be brief."), Message::user("so?")]),
            of(vec![Message::user("hi"), Message::user("so?")]),
        ),
        ("a cache marker", look(vec![marked]), look(vec![Part::text("look")])),
        ("a strict tool", tools(tool().with_strict(true)), tools(tool())),
        (
            "a tool that the provider runs",
            params(ModelParams::default().with_server_tools(server_tools)),
            plain(),
        ),
        ("no tool may be called", choice(ToolChoice::None), tools(tool())),
        ("a tool must be called", choice(ToolChoice::Required), tools(tool())),
        ("one tool must be called", choice(ToolChoice::Named("search".to_owned())), tools(tool())),
        ("a JSON object", plain().with_response_format(ResponseFormat::JsonObject), plain()),
        ("a JSON Schema", schema(false), plain()),
        ("a strict JSON Schema", schema(true), schema(false)),
        ("`temperature`", params(ModelParams::default().with_temperature(0.5)), plain()),
        ("`top_p`", params(ModelParams::default().with_top_p(0.5)), plain()),
        ("`max_output_tokens`", params(ModelParams::default().with_max_output_tokens(9)), plain()),
        ("`seed`", params(ModelParams::default().with_seed(1)), plain()),
        ("`logprobs`", params(ModelParams::default().with_logprobs(2)), plain()),
        ("`stop`", params(ModelParams::default().with_stop(["x"])), plain()),
    ]
}

const TABLE: &str = "# Feature support

A test of `stepfold-providers` generates this page: it builds each request with and without the feature of the row. \"no\" is an
error of kind `Unsupported`; \"ignored\" means that the request is the same without the feature: the reader of the reply enforces
a strict schema as well, and a cache marker only changes the price. \"chat completions\" are those of OpenAI; `strict` of a
JSON Schema makes no difference to Anthropic, which always enforces the schema.

";

/// The table in the documentation: what the model refuses to write, and what it leaves out.
#[test]
fn feature_support() {
    let writers: [(&str, &str, Write); 6] = [
        ("Responses", "openai", Box::new(responses_body())),
        ("chat completions", "openai-chat", Box::new(openai_body(Preset::OPENAI))),
        ("OpenRouter", "openai-chat", Box::new(openai_body(Preset::OPENROUTER))),
        ("DeepSeek", "openai-chat", Box::new(openai_body(Preset::DEEPSEEK))),
        ("Anthropic", "anthropic", Box::new(anthropic_body(false))),
        ("Gemini", "gemini", Box::new(gemini_body())),
    ];
    let answers = |(name, dialect, write): &(&str, &str, Write)| -> Vec<&str> {
        let requests = requests(dialect).into_iter();
        let answer = |(what, with, without)| match write(&with) {
            Ok(body) if body == write(&without).unwrap_or_default() => "ignored",
            Ok(_) => "yes",
            Err(error) if error.kind() == &ModelErrorKind::Unsupported => "no",
            Err(error) => panic!("{name}, {what}: {error}"),
        };
        requests.map(answer).collect()
    };
    let columns: Vec<Vec<&str>> = writers.iter().map(answers).collect();
    let row = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let head = row([""].into_iter().chain(writers.iter().map(|(name, ..)| *name)).collect());
    let line = format!("|{}\n", "---|".repeat(writers.len() + 1));
    let rows = requests("").into_iter().enumerate().map(|(at, (what, ..))| {
        row([what].into_iter().chain(columns.iter().map(|column| column[at])).collect())
    });
    let table = [TABLE.to_owned(), head, line].into_iter().chain(rows).chain([rules()]).collect::<String>();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/providers.md");
    expect_file![path].assert_eq(&table);
}

const RULES_OF_REQUESTS: &str = "
## Rules of requests

The table lists requests that servers refuse, and the form that a request has instead, for any conversation. The record keeps the conversation as it was;
`stepfold inspect --wire`, `/model` of the API and the studio's *model's view* show the changes, and a trace names them. The feature
`check` has the checkers (`providers::check`).

| rule | servers | they require | instead | source |
|---|---|---|---|---|
";

/// The rules of all servers, as a table.
fn rules() -> String {
    let rows = RULES.iter().map(|rule| {
        let names: Vec<&str> = rule.servers.iter().map(|server| server.name()).collect();
        let servers = if names.len() == Checked::ALL.len() { "all".to_owned() } else { names.join(", ") };
        format!("| {} | {servers} | {} | {} | {} |\n", rule.name, rule.requires, rule.instead, rule.source)
    });
    [RULES_OF_REQUESTS.to_owned()].into_iter().chain(rows).collect()
}

/// Without tools there are none to forbid; some APIs reject the field.
#[test]
fn no_tool_choice_is_sent_without_tools() {
    let request = ChatRequest::new(conversation()).with_tool_choice(ToolChoice::None);
    let writers: [Write; 4] = [
        Box::new(responses_body()),
        Box::new(openai_body(Preset::OPENAI)),
        Box::new(anthropic_body(false)),
        Box::new(gemini_body()),
    ];
    for write in writers {
        let body: Value = serde_json::from_slice(&write(&request).unwrap()).unwrap();
        assert_eq!((body.get("tool_choice"), body.get("toolConfig")), (None, None), "{body}");
    }
}

/// The messages of this body of the corpus, as a model reads it.
fn came(folder: &str, name: &str) -> (String, Transcript) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder).join(name);
    let body = std::fs::read_to_string(path).unwrap();
    let response = ProbeResponse {
        status: 200,
        content_type: "text/event-stream",
        pieces: vec![body.clone().into_bytes()],
        pause: Duration::ZERO,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = runtime.block_on(async {
        match folder {
            "gemini" => {
                probe::reply(&Gemini::new("m", "some-key").build().unwrap(), response).into_reply().await
            }
            _ => probe::reply(&OpenAiResponses::new("m", "some-key").unwrap(), response).into_reply().await,
        }
    });
    (body, [Message::user("which area?"), reply.unwrap().message].into_iter().collect())
}

#[test]
fn items_of_a_response_go_back_as_they_came() {
    let names = [
        "text.sse",
        "reasoning-and-calls.sse",
        "encrypted-reasoning-only.sse",
        "web-search.sse",
        "nothing-streamed.sse",
        "no-places.sse",
        "annotations.sse",
    ];
    for name in names {
        let (body, messages) = came("responses", name);
        let last = body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        let sent: Value =
            serde_json::from_slice(&responses_body()(&ChatRequest::new(messages)).unwrap()).unwrap();
        let sent: Value = sent["input"].as_array().unwrap()[1..].into();
        assert_eq!(pretty(&sent), pretty(&last["response"]["output"]), "{name}");
    }
}

#[test]
fn parts_of_gemini_go_back_as_they_came() {
    for name in [
        "thoughts-and-signed-calls.sse",
        "call-with-id.sse",
        "signature-at-the-end.sse",
        "code-execution.sse",
    ] {
        let (body, messages) = came("gemini", name);
        let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
        let parts: Vec<Value> = events
            .flat_map(|event| {
                event
                    .pointer("/candidates/0/content/parts")
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default()
            })
            // A thought without a signature is not wanted back, and an empty text says nothing.
            .filter(|part| {
                part["thought"] != true && part.as_object().unwrap().get("text") != Some(&json!(""))
                    || part.get("thoughtSignature").is_some()
            })
            .collect();
        let sent: Value =
            serde_json::from_slice(&gemini_body()(&ChatRequest::new(messages)).unwrap()).unwrap();
        let sent = sent.pointer("/contents/1/parts").unwrap().as_array().unwrap().clone();
        assert_eq!(pretty(&sent.into()), pretty(&parts.into()), "{name}");
    }
}

fn check_responses(asked: &Asked) -> Result<(), String> {
    check_any(asked)?;
    let body = &asked.body;
    let is_good = asked.path() == "/v1/responses"
        && asked.header("authorization").as_deref() == Some("Bearer some-key")
        && body["store"] == false
        && body["include"] == json!(["reasoning.encrypted_content"])
        && body["input"].is_array();
    if is_good { Ok(()) } else { Err(format!("{}: {}", asked.path(), asked.raw)) }
}

#[tokio::test]
async fn requests_go_where_they_should() {
    let whole = include_str!("../corpus/gemini/whole.json");
    let server = Server::start([Play::json(200, whole)], usize::MAX, check_gemini).await;
    let gemini =
        Gemini::new("gemini-3-flash", "some-key").base_url(format!("{}/v1beta", server.url)).build().unwrap();
    let reply = gemini.respond(ChatRequest::new(conversation())).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "area 3");

    let whole = include_str!("../corpus/responses/whole.json");
    let server = Server::start([Play::json(200, whole)], usize::MAX, check_responses).await;
    let model = OpenAiResponses::at(format!("{}/v1", server.url), "gpt-5.4").key("some-key").build().unwrap();
    let reply = model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "area 3");
}

/// OpenAI's models that do not think refuse to be asked for their thoughts.
#[tokio::test]
async fn thoughts_are_asked_for_where_there_are_some() {
    let whole = include_str!("../corpus/responses/whole.json");
    let server = Server::start([Play::json(200, whole)], usize::MAX, check_any).await;
    let models = ["o4-mini", "gpt-5.4", "gpt-4.1", "gpt-4o-mini", "gpt-5-chat-latest"];
    for model in models {
        let model = OpenAiResponses::at(format!("{}/v1", server.url), model).build().unwrap();
        model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap();
    }
    let asked = server.asked();
    let thoughts: Vec<bool> = asked.iter().map(|asked| asked.body["include"].is_array()).collect();
    assert_eq!(thoughts, [true, true, false, false, false]);
}

/// Keys that expire: each request carries the one that is good then, and no error shows it.
#[tokio::test]
async fn a_key_is_asked_for_before_each_request() {
    let echo = r#"{"error": {"message": "wrong key: some-key-1"}}"#;
    let whole = include_str!("../corpus/responses/whole.json");
    let plays = [Play::json(401, echo), Play::json(200, whole)];
    let server = Server::start(plays, usize::MAX, |_| Ok(())).await;
    let count = std::sync::atomic::AtomicUsize::new(0);
    let key = move || {
        let number = 1 + count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { Ok(Secret::new(format!("some-key-{number}"))) }
    };
    let model = OpenAiResponses::at(format!("{}/v1", server.url), "m").key_from(key).build().unwrap();
    let error = model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (&ModelErrorKind::Authentication, "status 401: wrong key: ***")
    );
    model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap();
    let keys: Vec<_> = server.asked().iter().map(|asked| asked.header("authorization").unwrap()).collect();
    assert_eq!(keys, ["Bearer some-key-1", "Bearer some-key-2"]);
}

#[tokio::test]
async fn a_proxy_is_asked_in_place_of_the_server() {
    let proxy =
        Server::start([Play::json(403, r#"{"error": {"message": "not through here"}}"#)], usize::MAX, |_| {
            Ok(())
        })
        .await;
    let model = OpenAiResponses::at("http://localhost:9/v1", "m").proxy(proxy.url.as_str()).build().unwrap();
    let error = model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap_err();
    assert_eq!(error.message(), "status 403: not through here");
    assert_eq!(proxy.asked()[0].path(), "http://localhost:9/v1/responses");
}

#[test]
fn what_cannot_be_used_to_connect_is_said_when_the_model_is_built() {
    let build = |builder: OpenAiResponsesBuilder| builder.build().unwrap_err().to_string();
    let at = || OpenAiResponses::at("https://x.test/v1", "m");
    let no_certificate = build(at().root_certificates("no PEM"));
    assert!(no_certificate.contains("invalid certificate"), "{no_certificate}");
    let no_proxy = build(at().proxy("http://[secret-password"));
    assert!(no_proxy.contains("proxy") && !no_proxy.contains("secret"), "{no_proxy}");
    let shown = format!(
        "{:?}",
        at().key("some-key")
            .proxy("http://me:secret-password@x.test")
            .key_from(|| async { Ok(Secret::new("k")) })
    );
    assert!(!shown.contains("some-key") && !shown.contains("password"), "{shown}");
}

#[test]
fn a_server_tool_is_offered_by_its_own_provider_and_refused_by_others() {
    let writers: [(&str, Write); 4] = [
        ("openai", Box::new(responses_body())),
        ("openai-chat", Box::new(openai_body(Preset::OPENAI))),
        ("anthropic", Box::new(anthropic_body(false))),
        ("gemini", Box::new(gemini_body())),
    ];
    for (dialect, write) in &writers {
        for own in ["openai", "openai-chat", "anthropic", "gemini"] {
            let tool = json!({"type": "web_search", "max_uses": 3});
            let server_tools = vec![ServerTool::new(own, tool.clone())];
            let params = ModelParams::default().with_server_tools(server_tools);
            let alone = ChatRequest::new(conversation()).with_params(params.clone());
            let beside =
                alone.clone().with_tools([ToolSpec::new("search", "Finds.", json!({"type": "object"}))]);
            for (request, count) in [(alone, 1), (beside, 2)] {
                match write(&request) {
                    Ok(body) => {
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let tools = body["tools"].as_array().unwrap();
                        assert_eq!(
                            (own, tools.len(), tools.last()),
                            (*dialect, count, Some(&tool)),
                            "{body}"
                        );
                    }
                    Err(error) => {
                        assert_ne!(own, *dialect, "{error}");
                        assert_eq!(error.kind(), &ModelErrorKind::Unsupported, "{error}");
                    }
                }
            }
        }
    }
}

/// A part that was not requested; a repeated request returns the same.
#[tokio::test]
async fn a_compressed_body_is_refused_for_good() {
    let headers = "content-type: text/event-stream\ncontent-encoding: gzip";
    let play = Play::new(200, headers, [0x1f, 0x8b, 0x08, 0x00]);
    let server = Server::start([play], usize::MAX, check_any).await;
    let model = OpenAiResponses::at(format!("{}/v1", server.url), "m").build().unwrap();
    let error = model.respond(ChatRequest::new(conversation())).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("gzip") && !error.is_retryable(), "{error}");
    assert_eq!(server.asked()[0].header("accept-encoding").as_deref(), Some("identity"));
}

/// A model that takes over in the middle of a turn is sent ids that it accepts, the same for a call and its result.
#[test]
fn ids_of_calls_have_the_form_that_a_server_accepts() {
    let long = format!("functions.{}:0", "s".repeat(64));
    let sent = |write: Write, id: &str| -> Value {
        let call = Message::from_parts(Role::Assistant, vec![ToolCall::new(id, "search", json!({})).into()]);
        let result = Message::tool(ToolResult::value(id, "search", json!(1)));
        let messages = [Message::user("which area?"), call, result];
        serde_json::from_slice(&write(&ChatRequest::new(messages.into_iter().collect())).unwrap()).unwrap()
    };
    let chat = |preset: Preset, id: &str| {
        let sent = sent(Box::new(openai_body(preset)), id);
        let id = sent["messages"][1]["tool_calls"][0]["id"].as_str().unwrap().to_owned();
        assert_eq!(sent["messages"][2]["tool_call_id"], *id);
        id
    };
    assert_eq!(chat(Preset::OPENAI, "call_1"), "call_1");
    assert!(chat(Preset::OPENAI, &long).len() <= 40);
    assert_eq!(chat(Preset::VLLM, &long), long);
    assert_eq!(chat(Preset::MISTRAL, "Abc123xyZ"), "Abc123xyZ");
    let ids =
        [chat(Preset::MISTRAL, "call_1"), chat(Preset::MISTRAL, "call_2"), chat(Preset::MISTRAL, &long)];
    assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())), "{ids:?}");
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] == chat(Preset::MISTRAL, "call_1"), "{ids:?}");

    let sent = sent(Box::new(responses_body()), &long);
    let id = sent["input"][1]["call_id"].as_str().unwrap();
    assert!(id.len() <= 64 && sent["input"][2]["call_id"] == *id, "{sent}");
}

/// A tool that the server runs is one to forbid.
#[test]
fn a_tool_of_the_server_can_be_forbidden() {
    let server_tools =
        vec![ServerTool::new("anthropic", json!({"type": "web_search", "name": "web_search"}))];
    let request = ChatRequest::new(conversation()).with_tool_choice(ToolChoice::None);
    let request = request.with_params(ModelParams::default().with_server_tools(server_tools));
    let body: Value = serde_json::from_slice(&anthropic_body(false)(&request).unwrap()).unwrap();
    assert_eq!(body["tool_choice"], json!({"type": "none"}));
}

/// Behind a message of which nothing is sent, a system message is not one of those at the beginning.
#[test]
fn no_system_message_is_lost() {
    let empty = Message::from_parts(Role::User, vec![Part::text("")]);
    let messages = [Message::system("Be kind."), empty, Message::system("Be brief."), Message::user("hi")];
    let request = ChatRequest::new(messages.into_iter().collect());
    let writes: [Write; 2] = [Box::new(anthropic_body(false)), Box::new(gemini_body())];
    for write in writes {
        let body = String::from_utf8(write(&request).unwrap()).unwrap();
        assert!(body.contains("Be kind.") && body.contains("Be brief."), "{body}");
    }
}

/// Each signature goes back in the part that it came in, and reasoning is not touched by a message without content.
#[test]
fn what_came_without_text_goes_back_as_a_part_of_its_own() {
    let back = |write: Write, reply: Message| -> Value {
        let messages = [Message::user("which area?"), reply, Message::user("so?")];
        serde_json::from_slice(&write(&ChatRequest::new(messages.into_iter().collect())).unwrap()).unwrap()
    };
    let reply = reply_to("anthropic", include_str!("../corpus/anthropic/thinking-without-text-twice.sse"));
    let sent = back(Box::new(anthropic_body(false)), reply);
    let signatures: Vec<&Value> =
        sent["messages"][1]["content"].as_array().unwrap().iter().map(|block| &block["signature"]).collect();
    assert_eq!(signatures, [&json!("sig1"), &json!("sig2"), &Value::Null]);

    let reply = reply_to("gemini", include_str!("../corpus/gemini/two-signatures.sse"));
    let sent = back(Box::new(gemini_body()), reply);
    let expected =
        json!([{"text": "area 3", "thoughtSignature": "sig1"}, {"text": "", "thoughtSignature": "sig2"}]);
    assert_eq!(sent["contents"][1]["parts"], expected);

    let reply = reply_to("responses", include_str!("../corpus/responses/message-without-content.sse"));
    let sent = back(Box::new(responses_body()), reply);
    // The server refuses reasoning that nothing follows.
    assert_eq!(sent["input"][1]["content"][0]["text"], "so?");
}

/// The reply in a dialect to a stream with this body.
fn reply_to(dialect: &str, body: &str) -> Message {
    let pieces = vec![body.as_bytes().to_vec()];
    let response =
        ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
    let wire = WIRES.iter().find(|wire| wire.name == dialect).unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on((wire.read)(Timeout::default(), response).into_reply()).unwrap().message
}
