//! What clients of each protocol assemble of runs whose replies stream in pieces, over the wire.

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{Message, Part, Role, ToolCall};
use stepfold_tools::{Tool, ToolError};

use super::site::{Reply, Site, agent_of};

const TEXTS: [&str; 7] = [
    "hello world",
    "{\"areas\": [3, 7], \"why\": \"they are full\"}",
    "data: [DONE]\n\nevent: x\n",
    "\n\n",
    "  ängstlich 🦀 漢字\n",
    "a",
    "one\n\ntwo",
];

/// The replies of a run: some with reasoning and calls, the last one with words.
fn replies(random: &mut fastrand::Rng) -> Vec<Message> {
    let steps = random.usize(1..4);
    let reply = |step: usize, random: &mut fastrand::Rng| {
        let mut message = Message::new(Role::Assistant);
        if random.bool() {
            message = message.with_part(Part::reasoning("I have to think about it."));
        }
        let text = TEXTS[random.usize(0..TEXTS.len())];
        let is_last = step + 1 == steps;
        if is_last || random.bool() {
            let text = if is_last && text.trim().is_empty() { "done" } else { text };
            message = message.with_part(Part::text(text));
        }
        let calls = if is_last { 0 } else { random.usize(1..3) };
        (0..calls).fold(message, |message, place| {
            message.with_part(ToolCall::new(format!("c{step}{place}"), "free", json!({})))
        })
    };
    (0..steps).map(|step| reply(step, random)).collect()
}

async fn post(site: &Site, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let bearer = site.bearer("ada");
    let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    all.extend(headers);
    let reply = site.raw(Method::POST, path, &all, &body.to_string()).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply
}

/// The JSON of each event of a stream.
fn events(reply: &Reply) -> Vec<Value> {
    let data = reply.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

fn joined<'a>(texts: impl IntoIterator<Item = Option<&'a str>>) -> String {
    texts.into_iter().flatten().collect()
}

async fn openai(site: &Site, is_streamed: bool) -> String {
    let body =
        json!({"model": "clerk", "stream": is_streamed, "messages": [{"role": "user", "content": "go"}]});
    let reply = post(site, "/v1/chat/completions", &[], &body).await;
    if !is_streamed {
        return reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    }
    joined(events(&reply).iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()))
}

async fn agui(site: &Site) -> String {
    let body =
        json!({"threadId": "agui", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "go"}]});
    let told = events(&post(site, "/agui/clerk", &[], &body).await);
    let texts = told.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    joined(texts.map(|event| event["delta"].as_str()))
}

async fn ai(site: &Site) -> String {
    let message = json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": "go"}]});
    let told = events(&post(site, "/ai/clerk", &[], &json!({"id": "ai", "messages": [message]})).await);
    let texts = told.iter().filter(|part| part["type"] == "text-delta");
    joined(texts.map(|part| part["delta"].as_str()))
}

async fn adk(site: &Site, is_streamed: bool) -> String {
    let created = post(site, "/apps/clerk/users/user/sessions", &[], &json!({})).await.json();
    let body = json!({
        "appName": "clerk", "userId": "user", "sessionId": created["id"], "streaming": is_streamed,
        "newMessage": {"role": "user", "parts": [{"text": "go"}]},
    });
    let told = events(&post(site, "/run_sse", &[], &body).await);
    let whole: Vec<&Value> =
        told.iter().filter(|event| event["partial"] != true && event["content"]["role"] == "model").collect();
    let parts = whole.iter().filter_map(|event| event["content"]["parts"].as_array()).flatten();
    joined(parts.filter(|part| part["thought"] != true).map(|part| part["text"].as_str()))
}

async fn a2a(site: &Site, is_streamed: bool) -> String {
    let (id, method) = if is_streamed { ("a2a-s", "SendStreamingMessage") } else { ("a2a", "SendMessage") };
    let message = json!({"messageId": id, "role": "ROLE_USER", "contextId": id, "parts": [{"text": "go"}]});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}});
    let reply = post(site, "/a2a/clerk", &[("a2a-version", "1.0")], &body).await;
    let mut artifacts: Vec<(String, String)> = Vec::new();
    let mut take = |artifact: &Value, appends: bool| {
        let (id, text) =
            (artifact["artifactId"].as_str().unwrap(), artifact["parts"][0]["text"].as_str().unwrap());
        match artifacts.iter_mut().find(|(known, _)| known == id) {
            Some((_, known)) if appends => known.push_str(text),
            Some((_, known)) => text.clone_into(known),
            None => artifacts.push((id.to_owned(), text.to_owned())),
        }
    };
    if is_streamed {
        for event in events(&reply) {
            let update = &event["result"]["artifactUpdate"];
            if update.is_object() {
                take(&update["artifact"], update["append"] == true);
            }
        }
    } else {
        let task = &reply.json()["result"]["task"];
        task["artifacts"].as_array().into_iter().flatten().for_each(|artifact| take(artifact, false));
    }
    artifacts.into_iter().map(|(_, text)| text).collect()
}

async fn mcp(site: &Site) -> String {
    let headers = [
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "clerk"),
    ];
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    let params = json!({"name": "clerk", "arguments": {"message": "go", "session": "mcp"}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let reply = post(site, "/mcp", &headers, &body).await;
    let found = reply.text.lines().rev().find_map(|line| {
        let line = line.strip_prefix("data:").unwrap_or(line).trim();
        serde_json::from_str::<Value>(line).ok().filter(Value::is_object)
    });
    found.unwrap()["result"]["content"][0]["text"].as_str().unwrap().to_owned()
}

/// The text of the stream of our own. What is told of a reply before its commit is its beginning.
async fn live(site: &Site) -> String {
    site.post("ada", "/sessions", json!({"id": "live"})).await;
    let mut live = site.live("ada", "live", None).await;
    site.post("ada", "/sessions/live/messages", json!({"text": "go"})).await;
    let told = live.until("ended").await;
    let (mut whole, mut draft) = (String::new(), String::new());
    for told in &told {
        match told.event.as_str() {
            "asking" => draft.clear(),
            "text" => draft.push_str(told.data["delta"].as_str().unwrap()),
            "committed" => {
                let messages = told.data["messages"].as_array().into_iter().flatten();
                let replies = messages.filter(|message| message["role"] == "assistant");
                let parts = replies.filter_map(|message| message["parts"].as_array()).flatten();
                let text = joined(parts.map(|part| part["text"].as_str()));
                assert!(text.starts_with(&draft), "{draft:?} of {text:?}");
                draft.clear();
                whole.push_str(&text);
            }
            _ => {}
        }
    }
    whole
}

#[tokio::test]
async fn clients_put_together_what_was_said() {
    for seed in 0..40 {
        let replies = replies(&mut fastrand::Rng::with_seed(seed));
        let texts: Vec<String> = replies.iter().map(|reply| reply.text().into_owned()).collect();
        let words: Vec<&str> =
            texts.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
        let free = Tool::new("free", "Costs nothing.", async || Ok::<_, ToolError>("free")).build().unwrap();
        let agent = agent_of(Script::new(replies).with_seed(seed), vec![free]);
        let runner = Runner::builder(agent, MemoryStore::new()).build();
        let site = Site::over(runner, Limits::default()).await;
        let all = texts.concat();

        for is_streamed in [true, false] {
            let told = openai(&site, is_streamed).await;
            assert_eq!(told, words.join("\n\n"), "OpenAI, seed {seed}, {is_streamed}");
            assert_eq!(adk(&site, is_streamed).await, all, "ADK, seed {seed}, {is_streamed}");
            assert_eq!(a2a(&site, is_streamed).await, all, "A2A, seed {seed}, {is_streamed}");
        }
        assert_eq!(agui(&site).await, all, "AG-UI, seed {seed}");
        assert_eq!(ai(&site).await, all, "AI SDK, seed {seed}");
        assert_eq!(Some(&mcp(&site).await), texts.last(), "MCP, seed {seed}");
        assert_eq!(live(&site).await, all, "live, seed {seed}");
    }
}

/// What a run that ends with an exit tool tells those who see no calls: words beside the call, else what the exit tool
/// says, else nothing; never the result of another call.
#[tokio::test]
async fn the_last_words_are_those_of_the_exit_tool() {
    let answers = [
        (json!("42"), "42"),
        (json!({"area": 3}), "{\"area\":3}"),
        (json!(null), ""),
        (json!({}), ""),
        (json!(" "), ""),
    ];
    for (answer, expected) in answers {
        for (text, expected) in [("", expected), ("Done.", "Done.")] {
            let finish = answer.clone();
            let finish = move || std::future::ready(Ok::<_, ToolError>(finish.clone()));
            let finish = Tool::new("finish", "Ends.", finish).build().unwrap();
            let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>("a stall")).build().unwrap();
            let reply = Message::new(Role::Assistant);
            let reply = if text.is_empty() { reply } else { reply.with_part(Part::text(text)) };
            let calls = ["finish", "look"].map(|name| ToolCall::new(format!("c-{name}"), name, json!({})));
            let reply = calls.into_iter().fold(reply, Message::with_part);
            let agent =
                Agent::builder(Script::new([reply])).name("clerk").tools([finish, look]).exit_on(["finish"]);
            let runner = Runner::builder(agent.build().unwrap(), MemoryStore::new()).build();
            let site = Site::over(runner, Limits::default()).await;
            for is_streamed in [true, false] {
                assert_eq!(openai(&site, is_streamed).await, expected, "OpenAI, {answer}, {text}");
                assert_eq!(a2a(&site, is_streamed).await, expected, "A2A, {answer}, {text}");
            }
            assert_eq!(mcp(&site).await, expected, "MCP, {answer}, {text}");
            assert_eq!(
                (agui(&site).await.as_str(), ai(&site).await.as_str()),
                (text, text),
                "they show the call"
            );
        }
    }
}
