//! What goes out.

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_providers::openai::{OpenAi, PRESETS, Preset};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Content, Media, Message, ModelParams, Part, ResponseFormat, Role, ToolCall,
    ToolChoice, ToolContent, ToolResult, ToolSpec, Transcript,
};

use super::{DONE, KEY, delta, finish, request};
use crate::server::{Asked, Play, Server, pretty};

/// What a model sends for these requests.
async fn sent(preset: &Preset, requests: Vec<ChatRequest>) -> Vec<Asked> {
    let play = Play::events(delta(r#"{"content":"ok"}"#) + &finish("stop") + DONE);
    let server = Server::start([play], usize::MAX, super::check).await;
    let model = OpenAi::preset(preset, "m").base_url(format!("{}/v1", server.url)).key(KEY).build().unwrap();
    for request in requests {
        model.respond(request).into_reply().await.unwrap();
    }
    server.asked()
}

async fn check(preset: &Preset, request: ChatRequest, expected: Expect) {
    let asked = sent(preset, vec![request]).await;
    expected.assert_eq(&pretty(&asked[0].body));
}

#[tokio::test]
async fn every_kind_of_message() {
    let messages: Transcript = r#"
system:    be kind
user:      which area?
assistant: ~"hm" "I look." > c1 search(q="stalls") > c2 fetch!("{\"id\": ")
tool c1:   [3, 4]
tool c2!:  arguments are no JSON
assistant: area 3
"#
    .parse()
    .unwrap();
    let image = Content::Image(Media::url("https://example.test/a.png"));
    let bytes = Content::Image(Media::base64("aGk=", "image/png"));
    let file = Content::File(Media::base64("aGk=", "application/pdf").named("a.pdf"));
    let messages = messages.with(
        Message::user("and this?")
            .with_part(Part::from(image))
            .with_part(Part::from(bytes))
            .with_part(Part::from(file)),
    );
    check(
        &Preset::COMPATIBLE,
        ChatRequest::new(messages),
        expect![[r#"
            {
              "messages": [
                {
                  "content": "be kind",
                  "role": "system"
                },
                {
                  "content": "which area?",
                  "role": "user"
                },
                {
                  "content": "I look.",
                  "role": "assistant",
                  "tool_calls": [
                    {
                      "function": {
                        "arguments": "{\"q\":\"stalls\"}",
                        "name": "search"
                      },
                      "id": "c1",
                      "type": "function"
                    },
                    {
                      "function": {
                        "arguments": "{\"malformed_arguments\":\"{\\\"id\\\": \"}",
                        "name": "fetch"
                      },
                      "id": "c2",
                      "type": "function"
                    }
                  ]
                },
                {
                  "content": "[3,4]",
                  "role": "tool",
                  "tool_call_id": "c1"
                },
                {
                  "content": "arguments are no JSON",
                  "role": "tool",
                  "tool_call_id": "c2"
                },
                {
                  "content": "area 3",
                  "role": "assistant"
                },
                {
                  "content": [
                    {
                      "text": "and this?",
                      "type": "text"
                    },
                    {
                      "image_url": {
                        "url": "https://example.test/a.png"
                      },
                      "type": "image_url"
                    },
                    {
                      "image_url": {
                        "url": "data:image/png;base64,aGk="
                      },
                      "type": "image_url"
                    },
                    {
                      "file": {
                        "file_data": "data:application/pdf;base64,aGk=",
                        "filename": "a.pdf"
                      },
                      "type": "file"
                    }
                  ],
                  "role": "user"
                }
              ],
              "model": "m",
              "stream": true,
              "stream_options": {
                "include_usage": true
              }
            }
        "#]],
    )
    .await;
}

#[tokio::test]
async fn everything_else() {
    let tool = ToolSpec::new(
        "search",
        "Finds stalls.",
        json!({"type": "object", "properties": {"q": {"type": "string"}}, "additionalProperties": false}),
    )
    .with_strict(true);
    let params = ModelParams::default()
        .with_temperature(0.5)
        .with_max_output_tokens(100)
        .with_seed(7)
        .with_stop(["END"])
        .with_extra("parallel_tool_calls", false);
    let format = ResponseFormat::JsonSchema {
        name: "area".to_owned(),
        schema: json!({"type": "object"}),
        strict: true,
    };
    let full = || {
        request()
            .with_tools([tool.clone()])
            .with_params(params.clone())
            .with_response_format(format.clone())
            .with_model("other")
    };
    check(
        &Preset::OPENAI,
        full(),
        expect![[r#"
            {
              "max_completion_tokens": 100,
              "messages": [
                {
                  "content": "which area?",
                  "role": "user"
                }
              ],
              "model": "other",
              "parallel_tool_calls": false,
              "response_format": {
                "json_schema": {
                  "name": "area",
                  "schema": {
                    "type": "object"
                  },
                  "strict": false
                },
                "type": "json_schema"
              },
              "seed": 7,
              "stop": [
                "END"
              ],
              "stream": true,
              "stream_options": {
                "include_usage": true
              },
              "temperature": 0.5,
              "tools": [
                {
                  "function": {
                    "description": "Finds stalls.",
                    "name": "search",
                    "parameters": {
                      "additionalProperties": false,
                      "properties": {
                        "q": {
                          "type": [
                            "string",
                            "null"
                          ]
                        }
                      },
                      "required": [
                        "q"
                      ],
                      "type": "object"
                    },
                    "strict": true
                  },
                  "type": "function"
                }
              ]
            }
        "#]],
    )
    .await;
    check(
        &Preset::MISTRAL,
        full().with_tool_choice(ToolChoice::None),
        expect![[r#"
            {
              "max_tokens": 100,
              "messages": [
                {
                  "content": "which area?",
                  "role": "user"
                }
              ],
              "model": "other",
              "parallel_tool_calls": false,
              "random_seed": 7,
              "response_format": {
                "json_schema": {
                  "name": "area",
                  "schema": {
                    "type": "object"
                  },
                  "strict": false
                },
                "type": "json_schema"
              },
              "stop": [
                "END"
              ],
              "stream": true,
              "temperature": 0.5,
              "tool_choice": "none",
              "tools": [
                {
                  "function": {
                    "description": "Finds stalls.",
                    "name": "search",
                    "parameters": {
                      "additionalProperties": false,
                      "properties": {
                        "q": {
                          "type": "string"
                        }
                      },
                      "type": "object"
                    }
                  },
                  "type": "function"
                }
              ]
            }
        "#]],
    )
    .await;
}

#[tokio::test]
async fn images_that_tools_return_follow_after_the_step() {
    let image = Content::Image(Media::base64("aGk=", "image/png")).into();
    let parts = ToolContent::Parts(vec![Part::text("a picture"), image]);
    let messages = Transcript::new()
        .with(Message::user("look"))
        .with(
            Message::new(Role::Assistant)
                .with_part(ToolCall::new("c1", "camera", json!({})))
                .with_part(ToolCall::new("c2", "camera", json!({}))),
        )
        .with(Message::tool(ToolResult::new("c1", "camera", parts)))
        .with(Message::tool(ToolResult::value("c2", "camera", "none")));
    let longer = messages.clone().with(Message::assistant("a cat"));
    let asked = sent(&Preset::COMPATIBLE, vec![ChatRequest::new(messages), ChatRequest::new(longer)]).await;
    expect![[r#"
        [
          {
            "content": "look",
            "role": "user"
          },
          {
            "content": null,
            "role": "assistant",
            "tool_calls": [
              {
                "function": {
                  "arguments": "{}",
                  "name": "camera"
                },
                "id": "c1",
                "type": "function"
              },
              {
                "function": {
                  "arguments": "{}",
                  "name": "camera"
                },
                "id": "c2",
                "type": "function"
              }
            ]
          },
          {
            "content": "a picture",
            "role": "tool",
            "tool_call_id": "c1"
          },
          {
            "content": "none",
            "role": "tool",
            "tool_call_id": "c2"
          },
          {
            "content": "(continued)",
            "role": "assistant"
          },
          {
            "content": [
              {
                "text": "From tool call c1:",
                "type": "text"
              },
              {
                "image_url": {
                  "url": "data:image/png;base64,aGk="
                },
                "type": "image_url"
              }
            ],
            "role": "user"
          }
        ]
    "#]]
    .assert_eq(&pretty(&asked[0].body["messages"]));
    assert!(asked[1].raw.starts_with(asked[0].raw.strip_suffix("]}").unwrap()));
}

#[tokio::test]
async fn reasoning_goes_back_only_where_it_is_wanted() {
    let messages: Transcript = "user: a\nassistant: ~\"hm\" > c1 f()\ntool c1: 1".parse().unwrap();
    let asked = |preset: &'static Preset| {
        let messages = messages.clone();
        async move { sent(preset, vec![ChatRequest::new(messages)]).await[0].body["messages"][1].clone() }
    };
    assert_eq!(asked(&Preset::DEEPSEEK).await["reasoning_content"], "hm");
    assert_eq!(asked(&Preset::OPENROUTER).await["reasoning"], "hm");
    assert_eq!(asked(&Preset::GROQ).await.as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn the_body_of_a_step_begins_with_the_body_of_the_step_before() {
    let tools = [ToolSpec::new("search", "", json!({"type": "object"}))];
    let mut messages: Transcript = "system: be kind\nuser: \"äöü\\n\\\"\"".parse().unwrap();
    let mut requests = Vec::new();
    for step in 0..20 {
        requests.push(ChatRequest::new(messages.clone()).with_tools(tools.clone()));
        let call = ToolCall::new(format!("c{step}"), "search", json!({"q": step}));
        messages.push(Message::new(Role::Assistant).with_part(call));
        messages.push(Message::tool(ToolResult::value(format!("c{step}"), "search", json!([step, "é"]))));
    }
    let asked = sent(&Preset::OPENAI, requests.clone()).await;
    for pair in asked.windows(2) {
        let beginning = pair[0].raw.strip_suffix("]}").unwrap();
        assert!(pair[1].raw.starts_with(beginning), "{}\n{}", pair[0].raw, pair[1].raw);
    }
    // Written afresh, by a model that knows nothing of it, it is the same.
    for (index, request) in requests.into_iter().enumerate() {
        assert_eq!(sent(&Preset::OPENAI, vec![request]).await[0].raw, asked[index].raw);
    }
}

#[tokio::test]
async fn forks_views_and_equal_beginnings_are_written_right() {
    let base: Transcript = "user: a\nassistant: b\nuser: c".parse().unwrap();
    let left = base.clone().with(Message::assistant("left"));
    let right = base.clone().with(Message::assistant("right"));
    let view: Transcript = base.iter().skip(2).cloned().collect();
    let order = [&base, &left, &right, &base, &view, &left, &right];
    let requests = order.map(|messages| ChatRequest::new(messages.clone())).to_vec();
    let asked = sent(&Preset::COMPATIBLE, requests.clone()).await;
    for (index, request) in requests.into_iter().enumerate() {
        assert_eq!(sent(&Preset::COMPATIBLE, vec![request]).await[0].raw, asked[index].raw);
    }
}

#[tokio::test]
async fn what_cannot_be_said_is_an_error_and_breaks_nothing() {
    let good: Transcript = "user: a".parse().unwrap();
    let bad = good.clone().with(Message::new(Role::User).with_part(Content::Image(Media::file_id("x"))));
    let server = Server::start([Play::events(finish("stop"))], usize::MAX, super::check).await;
    let model = super::model(&server);
    for _ in 0..2 {
        let error = model.respond(ChatRequest::new(bad.clone())).into_reply().await.unwrap_err();
        expect!["unsupported (openai-compatible, model some-model): message 1: unsupported image by an id: send its content or its URL"].assert_eq(&error.to_string());
        model.respond(ChatRequest::new(good.clone())).into_reply().await.unwrap();
    }
    let params = ModelParams::default().with_extra("stream", false);
    let error = model.respond(request().with_params(params)).into_reply().await.unwrap_err();
    expect!["invalid request (openai-compatible, model some-model): invalid extra parameter `stream`: the request sets this field itself"].assert_eq(&error.to_string());
    let schema = ResponseFormat::JsonSchema { name: "x".to_owned(), schema: json!({}), strict: false };
    let model = OpenAi::preset(&Preset::DEEPSEEK, "m").key("k").base_url(&server.url).build().unwrap();
    let error = model.respond(request().with_response_format(schema)).into_reply().await.unwrap_err();
    expect!["unsupported (deepseek, model m): unsupported response format: this provider has no JSON Schema; request a JSON object, and describe the schema in the prompt"].assert_eq(&error.to_string());
}

#[test]
fn presets_are_complete() {
    for preset in PRESETS {
        assert_eq!(Preset::named(preset.name), Some(preset));
        assert!(preset.base_url.is_some() || !preset.base_url_variables.is_empty(), "{}", preset.name);
        assert!(!preset.needs_key || !preset.key_variables.is_empty(), "{}", preset.name);
    }
}

#[tokio::test]
async fn azure_has_its_own_header() {
    fn check(asked: &Asked) -> Result<(), String> {
        let is_there =
            asked.header("api-key").as_deref() == Some(KEY) && asked.header("authorization").is_none();
        if is_there && asked.path() == "/openai/v1/chat/completions" {
            Ok(())
        } else {
            Err(asked.head.clone())
        }
    }
    let server = Server::start([Play::events(finish("stop"))], usize::MAX, check).await;
    let url = format!("{}/openai/v1", server.url);
    let model = OpenAi::preset(&Preset::AZURE, "deployment").base_url(url).key(KEY).build().unwrap();
    assert!(model.respond(request()).into_reply().await.is_ok());
    assert!(!format!("{model:?}").contains(KEY));
}
