//! What goes out.

use expect_test::expect;
use serde_json::json;
use stepfold_providers::anthropic::AnthropicBuilder;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Content, Media, Message, ModelParams, Part, ResponseFormat, Role, ToolCall,
    ToolChoice, ToolContent, ToolResult, ToolSpec, Transcript,
};

use super::{builder, check, end, request, said, stop};
use crate::server::{Asked, Play, Server, of_server, pretty};

/// What a model sends for these requests.
async fn sent(build: fn(AnthropicBuilder) -> AnthropicBuilder, requests: Vec<ChatRequest>) -> Vec<Asked> {
    let play = Play::events(said() + &stop("end_turn") + &end());
    let server = Server::start([play], usize::MAX, check).await;
    let model = build(builder(&server)).build().unwrap();
    for mut request in requests {
        request.messages = of_server(&request.messages, &server.url);
        model.respond(request).into_reply().await.unwrap();
    }
    server.asked()
}

#[tokio::test]
async fn every_kind_of_message() {
    let messages: Transcript = r#"
system:    be kind
system:    be brief
user:      which area?
assistant: @{"reasoning": "hm", "extras": {"signature": "EqQB"}} @{"reasoning": "", "extras": {"redacted_thinking": "x9"}} ~"unsigned" "I look." > c:1 search(q="stalls") > c2 fetch!("{\"id\": ")
tool c:1:  [3, 4]
tool c2!:  arguments are no JSON
user:      hurry up
system:    the user is in a hurry
assistant: @{"anthropic": {"type": "server_tool_use", "id": "s1"}} @{"anthropic": {"type": "web_search_tool_result", "tool_use_id": "s1"}} "area 3"
"#
    .replace("tool c:1:", "tool \"c:1\":")
    .replace("> c:1 ", "> \"c:1\" ")
    .parse()
    .unwrap();
    let messages = messages.with(
        Message::user("and this?")
            .with_part(Content::Image(Media::url("https://example.test/a.png")))
            .with_part(Content::Image(Media::base64("aGk=", "image/png")))
            .with_part(Content::File(Media::base64("aGk=", "application/pdf").named("a.pdf")))
            .with_part(Part::text("cached").with_extra("cache_control", json!({"type": "ephemeral"}))),
    );
    let asked = sent(|builder| builder, vec![ChatRequest::new(messages)]).await;
    expect![[r#"
        {
          "max_tokens": 8192,
          "messages": [
            {
              "content": [
                {
                  "text": "which area?",
                  "type": "text"
                }
              ],
              "role": "user"
            },
            {
              "content": [
                {
                  "signature": "EqQB",
                  "thinking": "hm",
                  "type": "thinking"
                },
                {
                  "data": "x9",
                  "type": "redacted_thinking"
                },
                {
                  "text": "I look.",
                  "type": "text"
                },
                {
                  "id": "p9ak3j6vjmnoid9mamc6b67m",
                  "input": {
                    "q": "stalls"
                  },
                  "name": "search",
                  "type": "tool_use"
                },
                {
                  "id": "c2",
                  "input": {
                    "malformed_arguments": "{\"id\": "
                  },
                  "name": "fetch",
                  "type": "tool_use"
                }
              ],
              "role": "assistant"
            },
            {
              "content": [
                {
                  "content": "[3,4]",
                  "tool_use_id": "p9ak3j6vjmnoid9mamc6b67m",
                  "type": "tool_result"
                },
                {
                  "content": "arguments are no JSON",
                  "is_error": true,
                  "tool_use_id": "c2",
                  "type": "tool_result"
                },
                {
                  "text": "hurry up",
                  "type": "text"
                },
                {
                  "text": "<system>\nthe user is in a hurry\n</system>",
                  "type": "text"
                }
              ],
              "role": "user"
            },
            {
              "content": [
                {
                  "id": "s1",
                  "type": "server_tool_use"
                },
                {
                  "tool_use_id": "s1",
                  "type": "web_search_tool_result"
                },
                {
                  "text": "area 3",
                  "type": "text"
                }
              ],
              "role": "assistant"
            },
            {
              "content": [
                {
                  "text": "and this?",
                  "type": "text"
                },
                {
                  "source": {
                    "type": "url",
                    "url": "https://example.test/a.png"
                  },
                  "type": "image"
                },
                {
                  "source": {
                    "data": "aGk=",
                    "media_type": "image/png",
                    "type": "base64"
                  },
                  "type": "image"
                },
                {
                  "source": {
                    "data": "aGk=",
                    "media_type": "application/pdf",
                    "type": "base64"
                  },
                  "title": "a.pdf",
                  "type": "document"
                },
                {
                  "cache_control": {
                    "type": "ephemeral"
                  },
                  "text": "cached",
                  "type": "text"
                }
              ],
              "role": "user"
            }
          ],
          "model": "claude",
          "stream": true,
          "system": [
            {
              "text": "be kind",
              "type": "text"
            },
            {
              "text": "be brief",
              "type": "text"
            }
          ]
        }
    "#]]
    .assert_eq(&pretty(&asked[0].body));
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
        .with_stop(["END"])
        .with_extra("thinking", json!({"type": "enabled", "budget_tokens": 1024}));
    let format = ResponseFormat::JsonSchema {
        name: "area".to_owned(),
        schema: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        strict: true,
    };
    let full = request()
        .with_tools([tool])
        .with_tool_choice(ToolChoice::None)
        .with_params(params)
        .with_response_format(format)
        .with_model("other");
    let asked = sent(|builder| builder, vec![full]).await;
    expect![[r#"
        {
          "max_tokens": 100,
          "messages": [
            {
              "content": [
                {
                  "text": "which area?",
                  "type": "text"
                }
              ],
              "role": "user"
            }
          ],
          "model": "other",
          "output_config": {
            "format": {
              "schema": {
                "additionalProperties": false,
                "properties": {},
                "type": "object"
              },
              "type": "json_schema"
            }
          },
          "stop_sequences": [
            "END"
          ],
          "stream": true,
          "temperature": 0.5,
          "thinking": {
            "budget_tokens": 1024,
            "type": "enabled"
          },
          "tool_choice": {
            "type": "none"
          },
          "tools": [
            {
              "description": "Finds stalls.",
              "input_schema": {
                "additionalProperties": false,
                "properties": {
                  "q": {
                    "type": "string"
                  }
                },
                "type": "object"
              },
              "name": "search",
              "strict": true
            }
          ]
        }
    "#]]
    .assert_eq(&pretty(&asked[0].body));
}

#[tokio::test]
async fn the_body_of_a_step_begins_with_the_body_of_the_step_before() {
    let tools = [ToolSpec::new("search", "", json!({"type": "object"}))];
    let mut messages: Transcript = "system: be kind\nuser: hi".parse().unwrap();
    let mut requests = Vec::new();
    for step in 0..20 {
        requests.push(ChatRequest::new(messages.clone()).with_tools(tools.clone()));
        let call = |name: &str| ToolCall::new(format!("{name}{step}"), "search", json!({"q": step}));
        messages.push(Message::new(Role::Assistant).with_part(call("a")).with_part(call("b")));
        let image = Content::Image(Media::base64("aGk=", "image/png")).into();
        messages.push(Message::tool(ToolResult::new(
            format!("a{step}"),
            "search",
            ToolContent::Parts(vec![image]),
        )));
        messages.push(Message::tool(ToolResult::error(format!("b{step}"), "search", "é")));
    }
    let asked = sent(|builder| builder, requests.clone()).await;
    for pair in asked.windows(2) {
        assert!(
            pair[1].raw.starts_with(pair[0].raw.strip_suffix("}]}]}").unwrap()),
            "{}\n{}",
            pair[0].raw,
            pair[1].raw
        );
    }
    // With marks, it is the same but for the mark at the end.
    let marked = sent(|builder| builder.cache_prompts(true), requests.clone()).await;
    let end = r#","cache_control":{"type":"ephemeral"}}]}]}"#;
    for pair in marked.windows(2) {
        assert!(pair[1].raw.starts_with(pair[0].raw.strip_suffix(end).unwrap()));
        assert_eq!(pair[0].raw.matches("cache_control").count(), 2);
    }
    // Written afresh, by a model that knows nothing of it, it is the same.
    for (index, request) in requests.into_iter().enumerate() {
        assert_eq!(sent(|builder| builder, vec![request]).await[0].raw, asked[index].raw);
    }
}

#[tokio::test]
async fn what_cannot_be_said_is_an_error() {
    let server = Server::start([Play::events(said())], usize::MAX, check).await;
    let model = builder(&server).build().unwrap();
    let bad = Transcript::new()
        .with(Message::user("listen").with_part(Content::File(Media::base64("aGk=", "audio/mpeg"))));
    let error = model.respond(ChatRequest::new(bad)).into_reply().await.unwrap_err();
    expect![[r#"
        unsupported (anthropic, model claude): message 0: unsupported file of type audio/mpeg: expected a PDF, a text, a URL or an id
    "#]].assert_eq(&(error.to_string() + "\n"));
    let error = model.respond(request().with_response_format(ResponseFormat::JsonObject)).into_reply().await;
    expect![[r#"
        unsupported (anthropic, model claude): unsupported response format: this provider requires a JSON Schema for JSON; add one, or describe the format in the prompt
    "#]].assert_eq(&(error.unwrap_err().to_string() + "\n"));
}
