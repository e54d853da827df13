//! What few APIs have a form for: each request of a kind goes to a local server in each dialect, and what the server saw,
//! or why nothing was sent, is one line.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_providers::RawFields;
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::gemini::Gemini;
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::{OpenAi, OpenAiResponses, Preset};
use stepfold_providers::probe::{self, ProbeResponse};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Content, ImageDetail, Media, Message, ModelError, ModelErrorKind, ModelParams,
    Part, Reply, Role, ToolCall, ToolResult, ToolSpec, Transcript,
};

use crate::server::{Asked, Check, Play, Server, check_any, check_gemini, pretty};
use crate::wires::{KEY, WIRES, events};

type WriteBody = dyn Fn(&ChatRequest) -> Result<Vec<u8>, ModelError>;

/// What each dialect sends: what `shown` picks of the body, or the error. Nothing is sent when there is one.
async fn check(request: ChatRequest, shown: fn(&Value) -> Value, expected: Expect) {
    let mut lines = String::new();
    let openrouter = |url: &str| -> Arc<dyn ChatModel> {
        Arc::new(OpenAi::preset(&Preset::OPENROUTER, "m").base_url(url).key(KEY).build().unwrap())
    };
    for index in 0..=WIRES.len() {
        let name = WIRES.get(index).map_or("openrouter", |wire| wire.name);
        let wire = &WIRES[index % WIRES.len()];
        let check: Check = if name == "gemini" { check_gemini } else { check_any };
        let play = Play::events(format!("{}{}", wire.begin, wire.finish));
        let server = Server::start([play], usize::MAX, check).await;
        let model = match WIRES.get(index) {
            Some(wire) => (wire.model)(&server.url, Timeout::default()),
            None => openrouter(&server.url),
        };
        let line = match model.respond(request.clone()).into_reply().await {
            Ok(_) => shown(&server.asked()[0].body).to_string(),
            Err(error) => {
                assert_eq!(error.kind(), &ModelErrorKind::Unsupported, "{name}: {error}");
                assert!(server.asked().is_empty(), "{name}: {error}");
                error.message().to_owned()
            }
        };
        writeln!(lines, "{name}: {line}").unwrap();
    }
    expected.assert_eq(&lines);
}

fn of(messages: impl IntoIterator<Item = Message>) -> ChatRequest {
    ChatRequest::new(messages.into_iter().collect())
}

fn user(part: impl Into<Part>) -> ChatRequest {
    of([Message::from_parts(Role::User, vec![Part::text("look"), part.into()])])
}

/// The last part of the first message, and of the last message of chat completions.
fn last_part(body: &Value) -> Value {
    let messages = ["messages", "input", "contents"].iter().find_map(|name| body[*name].as_array()).unwrap();
    let parts = messages[0].get("content").or_else(|| messages[0].get("parts")).unwrap();
    parts.as_array().unwrap().last().unwrap().clone()
}

#[tokio::test]
async fn files_of_each_kind() {
    let image = |media: Media| user(Content::Image(media));
    let file = |media: Media| user(Content::File(media));
    check(image(Media::url("https://x.test/a.png").with_detail(ImageDetail::Low)), last_part, expect![[r#"
        openai: {"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":"low"}}
        responses: {"type":"input_image","image_url":"https://x.test/a.png","detail":"low"}
        anthropic: message 0: unsupported image detail `low`: expected none, since this API decides it by the size
        gemini: {"fileData":{"fileUri":"https://x.test/a.png"},"mediaResolution":{"level":"MEDIA_RESOLUTION_LOW"}}
        openrouter: {"type":"image_url","image_url":{"url":"https://x.test/a.png","detail":"low"}}
    "#]])
        .await;
    check(
        image(Media::url("https://x.test/a.png").with_detail(ImageDetail::Medium)),
        last_part,
        expect![[r#"
            openai: message 0: unsupported image detail `medium`: expected low, high or original
            responses: message 0: unsupported image detail `medium`: expected low, high or original
            anthropic: message 0: unsupported image detail `medium`: expected none, since this API decides it by the size
            gemini: {"fileData":{"fileUri":"https://x.test/a.png"},"mediaResolution":{"level":"MEDIA_RESOLUTION_MEDIUM"}}
            openrouter: message 0: unsupported image detail `medium`: expected low, high or original
        "#]],
    )
    .await;
    check(
        image(Media::file_id("file-1")),
        last_part,
        expect![[r#"
        openai: message 0: unsupported image by an id: send its content or its URL
        responses: {"type":"input_image","file_id":"file-1","detail":"auto"}
        anthropic: {"type":"image","source":{"type":"file","file_id":"file-1"}}
        gemini: {"fileData":{"fileUri":"file-1"}}
        openrouter: message 0: unsupported image by an id: send its content or its URL
    "#]],
    )
    .await;
    check(
        file(Media::file_id("file-1")),
        last_part,
        expect![[r#"
        openai: {"type":"file","file":{"file_id":"file-1"}}
        responses: {"type":"input_file","file_id":"file-1"}
        anthropic: {"type":"document","source":{"type":"file","file_id":"file-1"}}
        gemini: {"fileData":{"fileUri":"file-1"}}
        openrouter: {"type":"file","file":{"file_id":"file-1"}}
    "#]],
    )
    .await;
    check(
        file(Media::url("https://x.test/a.pdf")),
        last_part,
        expect![[r#"
        openai: message 0: unsupported file by its URL: send its content
        responses: {"type":"input_file","file_url":"https://x.test/a.pdf"}
        anthropic: {"type":"document","source":{"type":"url","url":"https://x.test/a.pdf"}}
        gemini: {"fileData":{"fileUri":"https://x.test/a.pdf"}}
        openrouter: {"type":"file","file":{"file_data":"https://x.test/a.pdf","filename":"file"}}
    "#]],
    )
    .await;
    check(file(Media::text("12 stalls", "text/plain").named("a.txt")), last_part, expect![[r#"
        openai: {"type":"file","file":{"file_data":"data:text/plain;base64,MTIgc3RhbGxz","filename":"a.txt"}}
        responses: {"type":"input_file","filename":"a.txt","file_data":"data:text/plain;base64,MTIgc3RhbGxz"}
        anthropic: {"type":"document","source":{"type":"text","media_type":"text/plain","data":"12 stalls"},"title":"a.txt"}
        gemini: {"inlineData":{"mimeType":"text/plain","data":"MTIgc3RhbGxz"}}
        openrouter: {"type":"file","file":{"file_data":"data:text/plain;base64,MTIgc3RhbGxz","filename":"a.txt"}}
    "#]]).await;
    check(
        file(Media::base64("MTIgc3RhbGxz", "text/csv")),
        last_part,
        expect![[r#"
        openai: {"type":"file","file":{"file_data":"data:text/csv;base64,MTIgc3RhbGxz","filename":"file"}}
        responses: {"type":"input_file","filename":"file","file_data":"data:text/csv;base64,MTIgc3RhbGxz"}
        anthropic: {"type":"document","source":{"type":"text","media_type":"text/plain","data":"12 stalls"}}
        gemini: {"inlineData":{"mimeType":"text/csv","data":"MTIgc3RhbGxz"}}
        openrouter: {"type":"file","file":{"file_data":"data:text/csv;base64,MTIgc3RhbGxz","filename":"file"}}
    "#]],
    )
    .await;
    check(file(Media::text("12 stalls", "text/plain").with_citations()), last_part, expect![[r#"
        openai: message 0: unsupported citations of a document: this API has none; ask for them in words
        responses: message 0: unsupported citations of a document: this API has none; ask for them in words
        anthropic: {"type":"document","source":{"type":"text","media_type":"text/plain","data":"12 stalls"},"citations":{"enabled":true}}
        gemini: message 0: unsupported citations of a document: this API has none; ask for them in words
        openrouter: message 0: unsupported citations of a document: this API has none; ask for them in words
    "#]]).await;
    check(
        file(Media::file_id("file-1").with_detail(ImageDetail::High)),
        last_part,
        expect![[r#"
        openai: message 0: unsupported image detail `high`: expected none, since it is not an image
        responses: message 0: unsupported image detail `high`: expected none, since it is not an image
        anthropic: message 0: unsupported image detail `high`: expected none, since it is not an image
        gemini: {"fileData":{"fileUri":"file-1"},"mediaResolution":{"level":"MEDIA_RESOLUTION_HIGH"}}
        openrouter: message 0: unsupported image detail `high`: expected none, since it is not an image
    "#]],
    )
    .await;
    let document =
        Part::from(Content::File(Media::text("12", "text/plain"))).with_extra("context", "of 2026");
    check(user(document), last_part, expect![[r#"
        openai: {"type":"file","file":{"file_data":"data:text/plain;base64,MTI=","filename":"file"}}
        responses: {"type":"input_file","filename":"file","file_data":"data:text/plain;base64,MTI="}
        anthropic: {"type":"document","source":{"type":"text","media_type":"text/plain","data":"12"},"context":"of 2026"}
        gemini: {"inlineData":{"mimeType":"text/plain","data":"MTI="}}
        openrouter: {"type":"file","file":{"file_data":"data:text/plain;base64,MTI=","filename":"file"}}
    "#]]).await;
}

#[tokio::test]
async fn names_logprobs_and_fields_of_tools() {
    let first = |body: &Value| {
        let messages = ["messages", "input", "contents"].iter().find_map(|name| body[*name].as_array());
        messages.unwrap()[0].clone()
    };
    check(
        of([Message::user("hi").with_name("ada")]),
        first,
        expect![[r#"
        openai: {"role":"user","name":"ada","content":"hi"}
        responses: message 0: unsupported `name` of a message: this API has none; say it in the text
        anthropic: message 0: unsupported `name` of a message: this API has none; say it in the text
        gemini: message 0: unsupported `name` of a message: this API has none; say it in the text
        openrouter: {"role":"user","name":"ada","content":"hi"}
    "#]],
    )
    .await;
    let asks = |count| of([Message::user("hi")]).with_params(ModelParams::default().with_logprobs(count));
    let logprobs = |body: &Value| {
        let names = ["logprobs", "top_logprobs", "include", "generationConfig"];
        names.iter().filter_map(|name| Some((*name, body.get(*name)?.clone()))).collect()
    };
    check(
        asks(2),
        logprobs,
        expect![[r#"
        openai: {"logprobs":true,"top_logprobs":2}
        responses: {"top_logprobs":2,"include":["reasoning.encrypted_content","message.output_text.logprobs"]}
        anthropic: unsupported parameter `logprobs`: the Messages API does not have it; omit it
        gemini: {"generationConfig":{"responseLogprobs":true,"logprobs":2}}
        openrouter: {"logprobs":true,"top_logprobs":2}
    "#]],
    )
    .await;
    check(
        asks(0),
        logprobs,
        expect![[r#"
        openai: {"logprobs":true}
        responses: {"include":["reasoning.encrypted_content","message.output_text.logprobs"]}
        anthropic: unsupported parameter `logprobs`: the Messages API does not have it; omit it
        gemini: {"generationConfig":{"responseLogprobs":true}}
        openrouter: {"logprobs":true}
    "#]],
    )
    .await;
    let tool = ToolSpec::new("search", "Finds.", json!({"type": "object"}))
        .with_extra("anthropic", json!({"cache_control": {"type": "ephemeral"}, "defer_loading": true}))
        .with_extra("openai", json!({"defer_loading": true}));
    let tools = |body: &Value| body["tools"][0].clone();
    check(of([Message::user("hi")]).with_tools([tool]), tools, expect![[r#"
        openai: {"type":"function","function":{"name":"search","description":"Finds.","parameters":{"type":"object","properties":{}}}}
        responses: {"type":"function","name":"search","description":"Finds.","parameters":{"type":"object","properties":{}},"strict":false,"defer_loading":true}
        anthropic: {"name":"search","description":"Finds.","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"},"defer_loading":true}
        gemini: {"functionDeclarations":[{"name":"search","description":"Finds.","parametersJsonSchema":{"type":"object"}}]}
        openrouter: {"type":"function","function":{"name":"search","description":"Finds.","parameters":{"type":"object","properties":{}}}}
    "#]]).await;
}

#[tokio::test]
async fn marks_for_the_cache_and_the_role_of_the_developer() {
    let mark = json!({"type": "ephemeral"});
    let marked = |text: &str| Part::text(text).with_extra("cache_control", mark.clone());
    let result =
        Part::from(ToolResult::value("c1", "search", json!(12))).with_extra("cache_control", mark.clone());
    let messages = [
        Message::from_parts(Role::System, vec![Part::text("Be kind."), marked("Long rules.")]),
        Message::from_parts(Role::User, vec![marked("which area?")]),
        Message::from_parts(
            Role::Assistant,
            vec![marked("I look."), ToolCall::new("c1", "search", json!({})).into()],
        ),
        Message::from_parts(Role::Tool, vec![result]),
    ];
    let all = |body: &Value| {
        ["messages", "input"].iter().find_map(|name| body.get(*name)).cloned().unwrap_or_default()
    };
    check(of(messages), all, expect![[r#"
        openai: [{"role":"system","content":"Be kind.Long rules."},{"role":"user","content":"which area?"},{"role":"assistant","content":"I look.","tool_calls":[{"type":"function","id":"c1","function":{"name":"search","arguments":"{}"}}]},{"role":"tool","content":"12","tool_call_id":"c1"}]
        responses: [{"type":"message","role":"system","content":[{"type":"input_text","text":"Be kind."},{"type":"input_text","text":"Long rules."}]},{"type":"message","role":"user","content":[{"type":"input_text","text":"which area?"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look.","annotations":[]}]},{"type":"function_call","call_id":"c1","name":"search","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"12"}]
        anthropic: [{"role":"user","content":[{"type":"text","text":"which area?","cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":[{"type":"text","text":"I look.","cache_control":{"type":"ephemeral"}},{"type":"tool_use","id":"c1","name":"search","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"12","cache_control":{"type":"ephemeral"}}]}]
        gemini: null
        openrouter: [{"role":"system","content":[{"type":"text","text":"Be kind."},{"type":"text","text":"Long rules.","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":[{"type":"text","text":"which area?","cache_control":{"type":"ephemeral"}}]},{"role":"assistant","content":[{"type":"text","text":"I look.","cache_control":{"type":"ephemeral"}}],"tool_calls":[{"type":"function","id":"c1","function":{"name":"search","arguments":"{}"}}]},{"role":"tool","content":[{"type":"text","text":"12","cache_control":{"type":"ephemeral"}}],"tool_call_id":"c1"}]
    "#]]).await;

    let request = of([Message::system("Be kind."), Message::user("hi")]);
    let server = Server::start([Play::json(200, "{}")], usize::MAX, check_any).await;
    let base = format!("{}/v1", server.url);
    let chat = OpenAi::at(&base, "m").developer_messages().build().unwrap();
    let responses = OpenAiResponses::at(&base, "m").developer_messages().build().unwrap();
    chat.respond(request.clone()).into_reply().await.unwrap_err();
    responses.respond(request).into_reply().await.unwrap_err();
    let roles: Vec<Value> = server
        .asked()
        .iter()
        .map(|asked| asked.body.get("messages").unwrap_or(&asked.body["input"])[0]["role"].clone())
        .collect();
    assert_eq!(roles, ["developer", "developer"]);
}

/// Azure's older interface: the model stands in the path, and its version behind it.
#[tokio::test]
async fn a_deployment_of_azure_is_asked_at_its_own_address() {
    fn check(asked: &Asked) -> Result<(), String> {
        check_any(asked)?;
        let is_good =
            asked.header("api-key").as_deref() == Some(KEY) && asked.header("authorization").is_none();
        if is_good { Ok(()) } else { Err(format!("its head is {}", asked.head)) }
    }
    let server =
        Server::start([Play::events(format!("{}{}", WIRES[0].begin, WIRES[0].finish))], usize::MAX, check)
            .await;
    for base in [server.url.clone(), format!("{}/openai/v1", server.url)] {
        let model =
            OpenAi::preset(&Preset::AZURE, "our-gpt").base_url(base).api_version("2024-10-21").key(KEY);
        let model = model.build().unwrap();
        model.respond(of([Message::user("hi")])).into_reply().await.unwrap();
        model.respond(of([Message::user("hi")]).with_model("other")).into_reply().await.unwrap();
    }
    let settings = |name: &str| match name {
        "AZURE_OPENAI_ENDPOINT" => Some(server.url.clone()),
        "AZURE_OPENAI_API_KEY" => Some(KEY.to_owned()),
        "OPENAI_API_VERSION" => Some("2024-10-21".to_owned()),
        _ => None,
    };
    let named = stepfold_providers::model_with("azure:our-gpt", settings).unwrap();
    named.respond(of([Message::user("hi")])).into_reply().await.unwrap();
    let paths: Vec<String> = server.asked().iter().map(|asked| asked.path().to_owned()).collect();
    let path = |name: &str| format!("/openai/deployments/{name}/chat/completions?api-version=2024-10-21");
    assert_eq!(paths, [path("our-gpt"), path("other"), path("our-gpt"), path("other"), path("our-gpt")]);
}

async fn read(body: &str) -> Reply {
    let pieces = vec![body.as_bytes().to_vec()];
    let response =
        ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause: Duration::ZERO };
    probe::reply(&Anthropic::new("m", KEY).build().unwrap(), response).into_reply().await.unwrap()
}

/// What called a tool, and the container in which that runs, go back while the turn continues, and not after it.
#[tokio::test]
async fn a_call_by_code_goes_back_with_its_caller_and_its_container() {
    let reply = read(include_str!("../corpus/anthropic/caller-and-container.sse")).await;
    let asked = Message::user("which area?");
    let found = Message::tool(ToolResult::value("toolu_1", "search", json!(12)));
    let turn: Transcript = [asked, reply.message, found].into_iter().collect();
    let next = turn.clone().with(Message::assistant("area 3")).with(Message::user("and now?"));
    let write = probe::anthropic_body(false);
    let body = |messages: Transcript| -> Value {
        serde_json::from_slice(&write(&ChatRequest::new(messages)).unwrap()).unwrap()
    };
    let sent = body(turn.clone());
    assert_eq!(sent["container"], "container_1");
    let call = &sent["messages"][1]["content"][1];
    assert_eq!(call["caller"], json!({"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}));
    assert_eq!(sent["messages"][1]["content"][0]["input"], json!({"code": "await search('stalls')"}));
    assert_eq!(body(next)["container"], Value::Null);
    // The caller's own choice is what counts.
    let params = ModelParams::default().with_extra("container", "container_9");
    let own = write(&ChatRequest::new(turn).with_params(params)).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&own).unwrap()["container"], "container_9");
}

/// A reply with fields that nothing reads, one of them too large.
fn with_unread(dialect: &str) -> String {
    let large = "x".repeat(20_000);
    match dialect {
        "openai" => events([
            json!({"id": "c", "system_fingerprint": "fp", "choices": [{"index": 0, "delta": {"content": "a"}}]}),
            json!({"id": "c", "large": large, "choices": [{"delta": {}, "finish_reason": "stop", "native_finish_reason": "eos"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 1, "audio_tokens": 2}}),
        ]),
        "responses" => events([
            json!({"type": "response.created", "response": {"id": "r", "service_tier": "auto"}}),
            json!({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [],
                "service_tier": "flex", "large": large, "tools": [{"type": "web_search"}]}}),
        ]),
        "anthropic" => events([
            json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1, "service_tier": "standard"}}}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a", "odd": 1}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
                "usage": {"output_tokens": 2, "server_tool_use": {"web_search_requests": 1}}, "large": large}),
        ]),
        _ => events([
            json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "safetyRatings": [{"category": "X"}]}]}),
            json!({"candidates": [{"finishReason": "STOP"}], "createTime": "now", "large": large}),
        ]),
    }
}

#[tokio::test]
async fn fields_that_nothing_reads_are_kept_where_it_is_asked_for() {
    let mut lines = String::new();
    for wire in &WIRES {
        for kept in [RawFields::Drop, RawFields::Reply, RawFields::Message] {
            let pieces = vec![with_unread(wire.name).into_bytes()];
            let response = ProbeResponse {
                status: 200,
                content_type: "text/event-stream",
                pieces,
                pause: Duration::ZERO,
            };
            let at = "http://127.0.0.1:1/v1";
            let reply = match wire.name {
                "openai" => probe::reply(&OpenAi::at(at, "m").raw_fields(kept).build().unwrap(), response),
                "responses" => {
                    probe::reply(&OpenAiResponses::at(at, "m").raw_fields(kept).build().unwrap(), response)
                }
                "anthropic" => {
                    probe::reply(&Anthropic::new("m", KEY).raw_fields(kept).build().unwrap(), response)
                }
                _ => probe::reply(&Gemini::new("m", KEY).raw_fields(kept).build().unwrap(), response),
            };
            let reply = reply.into_reply().await.unwrap();
            let raw: Value = reply.raw.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
            let of_message = reply.message.extras().get("raw").cloned().unwrap_or_else(|| json!({}));
            assert_eq!(raw == json!({}), kept != RawFields::Reply, "{}", wire.name);
            assert_eq!(of_message == json!({}), kept != RawFields::Message, "{}", wire.name);
            // Not stored with the reply; with the message, where that was asked for.
            let stored = serde_json::to_string(&reply).unwrap();
            assert_eq!(stored.contains("\"raw\""), kept == RawFields::Message, "{stored}");
            match kept {
                RawFields::Reply => writeln!(lines, "{}: {}", wire.name, pretty(&raw).trim_end()).unwrap(),
                RawFields::Message => {
                    let messages = [Message::user("hi"), reply.message, Message::user("so?")];
                    let write: Box<WriteBody> = match wire.name {
                        "openai" => Box::new(probe::openai_body(Preset::OPENAI)),
                        "responses" => Box::new(probe::responses_body()),
                        "anthropic" => Box::new(probe::anthropic_body(false)),
                        _ => Box::new(probe::gemini_body()),
                    };
                    let body = String::from_utf8(write(&of(messages)).unwrap()).unwrap();
                    assert!(!body.contains("raw") && !body.contains("tier"), "{body}");
                }
                _ => {}
            }
        }
    }
    expect![[r#"
        openai: {
          "native_finish_reason": "eos",
          "system_fingerprint": "fp",
          "usage": {
            "audio_tokens": 2,
            "prompt_tokens": 1
          }
        }
        responses: {
          "service_tier": "flex"
        }
        anthropic: {
          "stop_sequence": "END",
          "usage": {
            "input_tokens": 1,
            "output_tokens": 2,
            "server_tool_use": {
              "web_search_requests": 1
            },
            "service_tier": "standard"
          }
        }
        gemini: {
          "createTime": "now",
          "safetyRatings": [
            {
              "category": "X"
            }
          ]
        }
    "#]]
    .assert_eq(&lines);
}

/// Nothing is stored at the provider by default; who wants to continue from a stored response says so.
#[test]
fn a_stored_response_is_gone_on_from_where_that_is_asked_for() {
    let write = probe::responses_body();
    let body = |request: &ChatRequest| serde_json::from_slice::<Value>(&write(request).unwrap()).unwrap();
    let plain = of([Message::user("and now?")]);
    assert_eq!((&body(&plain)["store"], body(&plain).get("previous_response_id")), (&json!(false), None));
    let params =
        ModelParams::default().with_extra("store", true).with_extra("previous_response_id", "resp_1");
    let sent = body(&plain.with_params(params));
    assert_eq!((&sent["store"], &sent["previous_response_id"]), (&json!(true), &json!("resp_1")));
    assert_eq!(sent["input"].as_array().unwrap().len(), 1);
}
