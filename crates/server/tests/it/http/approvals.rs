//! What an approver sees, by each protocol: every field of a hostile call, whole, and nothing that hides. The studio and
//! the command show the same calls in tests of their own (`studio_approvals.cjs` and `approvals.rs` of the command).

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{Message, ToolCall};
use stepfold_state_core::is_invisible;
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Tool, ToolError};

use super::clients::{ALL, events, request};
use super::site::Site;

/// The calls that all surfaces show.
const HOSTILE: &str = include_str!("hostile_calls.json");

/// Calls of one reply, each of which needs an approval.
fn agent(calls: &[Value]) -> Agent {
    let pay = async || Ok::<_, ToolError>(json!("paid"));
    let parameters =
        json!({"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": true});
    let pay = Tool::new("pay", "Pays.", pay).parameters(parameters).input_from_state("note", "note");
    let pay = pay.approval(Approval::Always).build().unwrap();
    let calls = calls
        .iter()
        .enumerate()
        .map(|(place, call)| ToolCall::new(format!("c{place}"), "pay", call["arguments"].clone()));
    let asks = calls.fold(Message::assistant(""), Message::with_part);
    let schema = Schema::builder().key::<String>("note").default("from \u{200d}the state").build().unwrap();
    let script = Script::new([asks, Message::assistant("Done.")]);
    Agent::builder(script).name("clerk").schema(schema).tools([pay]).build().unwrap()
}

async fn site(calls: &[Value]) -> Site {
    let runner = Runner::builder(agent(calls), MemoryStore::new()).build();
    Site::over(runner, Limits::default()).await
}

/// The answer of a protocol to a message after which calls wait.
async fn asked(site: &Site, protocol: &str) -> Vec<Value> {
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    let (path, headers, mut body) = request(protocol, "pay");
    if protocol == "mcp" {
        body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
            json!({"elicitation": {"form": {}}});
    }
    let bearer = site.bearer("ada");
    let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    all.extend(headers);
    let reply = site.raw(Method::POST, path, &all, &body.to_string()).await;
    assert!(reply.status.is_success(), "{protocol}: {}", reply.text);
    events(&reply)
}

/// What a person is told by words about each request, by the protocol's own means; and the arguments as data beside it.
fn shown(protocol: &str, told: &[Value]) -> Vec<(String, Option<Value>)> {
    let find = |pointer: &str| told.iter().find_map(|event| event.pointer(pointer).cloned());
    let rows = |rows: Value| -> Vec<(String, Option<Value>)> {
        let of =
            |row: &Value| (row["text"].as_str().unwrap().to_owned(), Some(row["call"]["arguments"].clone()));
        rows.as_array().unwrap().iter().map(of).collect()
    };
    match protocol {
        "api" => rows(find("/pending").unwrap()),
        "openai" => rows(find("/stepfold/waiting").unwrap()),
        "agui" => {
            let interrupts = find("/outcome/interrupts").unwrap();
            let text = |one: &Value| (one["message"].as_str().unwrap().to_owned(), None);
            interrupts.as_array().unwrap().iter().map(text).collect()
        }
        "ai" => {
            let asks = told.iter().filter(|part| part["type"] == "data-approval").map(|part| &part["data"]);
            rows(asks.map(|data| data["request"].clone()).collect())
        }
        "adk" => {
            let parts = told.iter().filter_map(|event| event.pointer("/content/parts")?.as_array()).flatten();
            let calls = parts
                .map(|part| &part["functionCall"])
                .filter(|call| call["name"] == "adk_request_confirmation");
            let of = |call: &Value| {
                let args = &call["args"];
                let hint = args["toolConfirmation"]["hint"].as_str().unwrap().to_owned();
                (hint, Some(args["originalFunctionCall"]["args"].clone()))
            };
            calls.map(of).collect()
        }
        "a2a" => {
            let find = |pointer: &str| {
                told.iter().rev().find_map(|event| {
                    event.pointer(&format!("/result/statusUpdate/status/message/parts{pointer}")).cloned()
                })
            };
            let of_data = rows(find("/1/data/requests").unwrap());
            // All are one text.
            let text = find("/0/text").unwrap().as_str().unwrap().to_owned();
            let all: Vec<String> = of_data.iter().map(|(text, _)| text.clone()).collect();
            assert_eq!(text, all.join("\n\n"));
            of_data
        }
        "mcp" => {
            let requests = find("/result/inputRequests").unwrap();
            let of = |one: &Value| (one["params"]["message"].as_str().unwrap().to_owned(), None);
            requests.as_object().unwrap().values().map(of).collect()
        }
        unknown => panic!("{unknown}"),
    }
}

/// Whether a text has each field and each value of the arguments, as JSON, with escapes for what is invisible.
fn check_text(text: &str, call: &Value) {
    let name = &call["name"];
    assert!(!text.chars().any(|one| one != '\n' && is_invisible(one)), "{name}: {text:?}");
    let begin = text.find('{').unwrap();
    let mut reader = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let read = reader.next().unwrap().unwrap();
    assert_eq!(read.to_string(), call["arguments"].to_string(), "{name}");
    // What follows is not of the model.
    let rest = &text[begin + reader.byte_offset()..];
    assert!(
        rest.starts_with("?\nnote = \"from \\u200dthe state\", from the state key note."),
        "{name}: {rest}"
    );
    for warning in call["warns"].as_array().unwrap() {
        assert!(rest.contains(warning.as_str().unwrap()), "{name}: {warning} in {rest}");
    }
}

#[tokio::test]
async fn an_approver_sees_by_each_protocol_what_will_run() {
    let calls: Vec<Value> = serde_json::from_str(HOSTILE).unwrap();
    for protocol in ALL {
        // One by one, and all at once.
        let groups = calls.chunks(1).chain([&calls[..]]);
        for group in groups {
            let site = site(group).await;
            let told = asked(&site, protocol).await;
            let shown = shown(protocol, &told);
            assert_eq!(shown.len(), group.len(), "{protocol}: {told:?}");
            for call in group {
                let arguments = call["arguments"].to_string();
                let found = shown.iter().find(|(text, _)| {
                    let begin = text.find('{').unwrap();
                    let read = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>().next();
                    // As text: numbers are compared digit for digit.
                    read.is_some_and(|read| read.is_ok_and(|read| format!("{read}") == arguments))
                });
                let (text, data) = found.unwrap_or_else(|| panic!("{protocol} shows no {}", call["name"]));
                check_text(text, call);
                if let Some(data) = data {
                    assert_eq!(data.to_string(), call["arguments"].to_string(), "{protocol}");
                }
            }
        }
    }
}
