//! What a model was shown at each step, and what the steps cost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::Method;
use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::trim::{ApproximateTokens, Summarize, TokenCounter as _, Trim};
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, Price, Prices, ReplyStream, Role, Transcript, Usage,
};
use stepfold_state_core::state::Schema;

use super::site::Site;

/// A model that keeps what it is sent, and gives these replies in order; summaries are written by themselves.
#[derive(Clone)]
struct Told {
    id: &'static str,
    requests: Arc<Mutex<Vec<(&'static str, ChatRequest)>>>,
    replies: Arc<Mutex<VecDeque<Message>>>,
}

impl Told {
    fn new(script: &str) -> Self {
        let script: Transcript = script.parse().unwrap();
        let replies = script.iter().filter(|message| message.role() == Role::Assistant);
        let replies = replies.map(|message| (**message).clone()).collect();
        Told { id: "acme/large", requests: Arc::default(), replies: Arc::new(Mutex::new(replies)) }
    }

    fn named(&self, id: &'static str) -> Self {
        Told { id, ..self.clone() }
    }
}

impl ChatModel for Told {
    fn id(&self) -> &str {
        self.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let message = match self.id {
            "acme/summary" => Message::assistant("All of it in short."),
            _ => self.replies.lock().unwrap().pop_front().expect("a reply"),
        };
        self.requests.lock().unwrap().push((self.id, request));
        let reason = if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
        let mut chunks = Chunk::of(&message);
        chunks.push(Chunk::Usage(Usage::new(1_000, 10).with_cached_input_tokens(400)));
        chunks.push(Chunk::Finished(reason));
        ReplyStream::from_chunks(chunks)
    }
}

const SCRIPT: &str = "\
assistant: Good day.
assistant: > c1 settle(task=\"the bill\")
assistant: The bill is settled.
assistant: Settled.
assistant: Once more?
";

fn agent(model: &Told) -> Agent {
    let schema = || Schema::builder().key::<String>("user:name").build().unwrap();
    let payer = Agent::builder(model.named("acme/small"))
        .name("payer")
        .instructions("You pay bills.")
        .build()
        .unwrap();
    Agent::builder(model.clone())
        .name("clerk")
        .schema(schema())
        .instructions("You serve {user:name?}.")
        .tool(payer.as_tool("settle", "Settles a bill."))
        .summarize(Summarize::beyond(Trim::keep_last(2)).once(Trim::keep_last(3)))
        .summary_model(model.named("acme/summary"))
        .build()
        .unwrap()
}

async fn site(model: &Told, prices: Prices) -> Site {
    let app = App::from(Runner::builder(agent(model), MemoryStore::new()).build()).prices(prices);
    let site = Site::of(app, Limits::default()).await;
    site.post("ada", "/sessions", json!({"id": "s1", "values": {"user:name": "Ada"}})).await;
    for text in ["Hello", "Settle the bill", "And now?"] {
        let run = site.post("ada", "/sessions/s1/run", json!({"text": text})).await;
        assert_eq!((run.status.as_u16(), &run.json()["status"]), (200, &json!("finished")), "{}", run.text);
    }
    site
}

async fn rows(site: &Site) -> Vec<Value> {
    site.get("reader", "/sessions/s1/events").await.json()["events"].as_array().unwrap().clone()
}

async fn shown(site: &Site, at: u64, more: &str) -> Value {
    let reply = site.get("reader", &format!("/sessions/s1/model?at={at}{more}")).await;
    assert_eq!(reply.status, 200, "{at}: {}", reply.text);
    reply.json()
}

/// The law: what is told of a step is what the model was sent, for each request of each agent.
#[tokio::test]
async fn what_is_reported_is_what_the_model_was_sent() {
    let model = Told::new(SCRIPT);
    let site = site(&model, Prices::new()).await;
    let sent: Vec<_> =
        model.requests.lock().unwrap().iter().filter(|(id, _)| *id != "acme/summary").cloned().collect();
    let all = rows(&site).await;
    let replies: Vec<&Value> = all.iter().filter(|row| row["kind"] == "replied").collect();
    assert_eq!((sent.len(), replies.len()), (5, 5));
    let mut has_summary = false;
    for ((id, request), row) in sent.iter().zip(&replies) {
        let version = row["version"].as_u64().unwrap();
        let told = shown(&site, version, "").await;
        assert_eq!((&told["reply"], &told["model"]), (&row["version"], &json!(id)), "{told}");
        assert_eq!(told["path"].as_array().map_or(0, Vec::len), row["path"].as_array().map_or(0, Vec::len));
        let messages: Vec<&Value> =
            told["messages"].as_array().unwrap().iter().map(|shown| &shown["message"]).collect();
        let expected: Vec<Value> =
            request.messages.iter().map(|message| serde_json::to_value(&**message).unwrap()).collect();
        assert_eq!(messages, expected.iter().collect::<Vec<_>>(), "{row}");
        let tools: Vec<&Value> = told["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
        let expected: Vec<Value> = request.tools.iter().map(|tool| json!(tool.name)).collect();
        assert_eq!(tools, expected.iter().collect::<Vec<_>>());
        assert_eq!(told["unknown"], json!([]), "{told}");
        // What is shown and what is left out is the whole conversation.
        let source = |source: &'static str| {
            told["messages"].as_array().unwrap().iter().filter(move |shown| shown["source"] == source)
        };
        let mut indexes: Vec<u64> =
            source("conversation").map(|shown| shown["index"].as_u64().unwrap()).collect();
        for left in told["left_out"].as_array().unwrap() {
            let (from, to) = (left["from"].as_u64().unwrap(), left["to"].as_u64().unwrap());
            assert_eq!(left["messages"].as_array().unwrap().len() as u64, to - from);
            assert_eq!(left["summarised"], true, "{told}");
            indexes.extend(from..to);
        }
        indexes.sort_unstable();
        assert_eq!(indexes, (0..told["conversation"].as_u64().unwrap()).collect::<Vec<_>>());
        has_summary |= source("summary").count() == 1;
        let tokens = &told["tokens"];
        let parts = ["instructions", "messages", "tools"].map(|part| tokens[part].as_u64().unwrap());
        assert_eq!(tokens["total"].as_u64(), Some(parts.iter().sum()));
        assert_eq!(told["usage"]["input_tokens"], 1_000);
    }
    assert!(has_summary, "the summary is shown to a later run");
    let first = shown(&site, replies[0]["version"].as_u64().unwrap(), "").await;
    assert_eq!(first["instructions"], "You serve Ada.");
}

#[tokio::test]
async fn each_commit_belongs_to_a_step_and_a_path_leads_inside() {
    let model = Told::new(SCRIPT);
    let site = site(&model, Prices::new()).await;
    let all = rows(&site).await;
    let inside = all.iter().find(|row| row["kind"] == "replied" && row["path"].is_array()).unwrap();
    let version = inside["version"].as_u64().unwrap();
    let told = shown(&site, version, "").await;
    assert_eq!((&told["agent"], &told["path"][0]["name"]), (&json!("payer"), &json!("settle")), "{told}");
    // The step around it, and back inside.
    let around = shown(&site, version, "&path=").await;
    assert_eq!((&around["agent"], &around["step"]), (&json!("clerk"), &json!(1)), "{around}");
    assert_eq!(shown(&site, version, "&path=0").await["reply"], version);
    // At its beginning, the run has not asked yet: it is told what it would ask.
    let began = all.iter().find(|row| row["kind"] == "began").unwrap()["version"].as_u64().unwrap();
    let next = shown(&site, began, "").await;
    assert!(next.get("reply").is_none() && next["messages"].as_array().unwrap().len() == 2, "{next}");
    for (query, problem) in [
        ("at=0", (409, "no_model_step")),
        ("at=99", (404, "unknown_version")),
        ("path=7", (409, "no_model_step")),
        ("path=a.b", (400, "invalid")),
    ] {
        let reply = site.get("reader", &format!("/sessions/s1/model?{query}")).await;
        assert_eq!(reply.problem(), (problem.0, problem.1.to_owned()), "{query}");
    }
}

/// The law: what is told of the cache is what a provider would find that keeps the last request and compares bytes.
#[tokio::test]
async fn what_each_request_shares_is_what_was_sent() {
    let model = Told::new(SCRIPT);
    let site = site(&model, Prices::new()).await;
    let sent: Vec<ChatRequest> = {
        let requests = model.requests.lock().unwrap();
        requests.iter().filter(|(id, _)| *id == "acme/large").map(|(_, request)| request.clone()).collect()
    };
    let bytes = |message: &Message| serde_json::to_string(message).unwrap();
    let tokens = |request: &ChatRequest, messages: usize| -> usize {
        request.messages.iter().take(messages).map(|message| ApproximateTokens.count(message)).sum()
    };
    let mut expected = vec![(tokens(&sent[0], usize::MAX), 0, 0)];
    for (before, now) in sent.iter().zip(&sent[1..]) {
        let both = before.messages.iter().zip(now.messages.iter());
        let shared = both.take_while(|(before, now)| bytes(before) == bytes(now)).count();
        let lost = tokens(before, usize::MAX) - tokens(before, shared);
        expected.push((tokens(now, usize::MAX), tokens(now, shared), lost));
    }
    let told = site.get("reader", "/sessions/s1/cache").await.json();
    let told = told["requests"].as_array().unwrap();
    let number = |row: &Value, name: &str| usize::try_from(row[name].as_u64().unwrap()).unwrap();
    let sizes: Vec<_> = told
        .iter()
        .map(|row| (number(row, "tokens"), number(row, "shared_tokens"), number(row, "lost_tokens")))
        .collect();
    assert_eq!(sizes, expected, "{told:?}");
    let broken: Vec<&Value> = told.iter().map(|row| &row["broken_by"]).collect();
    assert_eq!(broken, [&Value::Null, &Value::Null, &Value::Null, &json!("a summary")], "{told:?}");
    assert!(told.iter().all(|row| row["cached_input_tokens"] == 400 && row["input_tokens"] == 1_000));
}

#[tokio::test]
async fn what_a_session_costs_is_the_sum_of_its_rows() {
    let model = Told::new(SCRIPT);
    let prices = Prices::new()
        .with("acme/large", Price::new(2.0, 8.0).with_cached_input(0.5))
        .with("acme/small", Price::new(0.25, 2.0));
    let site = site(&model, prices).await;
    let all = rows(&site).await;
    let mut costs = all.iter().filter_map(|row| row["cost"].as_str()).collect::<Vec<_>>();
    costs.sort_unstable();
    // 600 new, 400 cached and 10 output tokens; without a price for cached ones, they cost what others do. A summary is
    // counted as of the agent's model.
    assert_eq!(costs.first(), Some(&"0.00027"), "{all:?}");
    assert_eq!(costs.last(), Some(&"0.00148"));
    let total = site.get("reader", "/sessions/s1/usage").await.json();
    let nano = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        format!("{whole}{part:0<9}").parse::<u64>().unwrap()
    };
    let sum: u64 = costs.iter().map(|cost| nano(cost)).sum();
    assert_eq!(nano(total["cost"].as_str().unwrap()), sum, "{total}");
    assert_eq!((&total["unpriced"], &total["currency"]), (&json!([]), &json!("USD")));
    assert_eq!(total["replies"].as_u64(), Some(costs.len() as u64));
    assert_eq!(total["models"][1]["model"], "acme/small", "{total}");
    let brief = site.get("reader", "/sessions/s1/events?brief=true").await.json();
    let brief: Vec<&Value> = brief["events"].as_array().unwrap().iter().map(|row| &row["cost"]).collect();
    assert_eq!(brief, all.iter().map(|row| &row["cost"]).collect::<Vec<_>>());
    // What was rewound does not count.
    let version = all.last().unwrap()["version"].as_u64().unwrap();
    site.post("ada", "/sessions/s1/rewind", json!({"to": 2, "expected": version})).await;
    let rewound = site.get("reader", "/sessions/s1/usage").await.json();
    assert_eq!((&rewound["replies"], &rewound["cost"]), (&json!(1), &json!("0.00148")), "{rewound}");
}

#[tokio::test]
async fn a_model_without_a_price_is_named() {
    let model = Told::new(SCRIPT);
    let site = site(&model, Prices::new().with("acme/small", Price::new(1.0, 1.0))).await;
    let total = site.get("reader", "/sessions/s1/usage").await.json();
    assert_eq!((&total["unpriced"], &total["cost"]), (&json!(["acme/large"]), &json!("0.00101")), "{total}");
}

#[tokio::test]
async fn an_app_says_what_it_is_made_of() {
    let model = Told::new(SCRIPT);
    let prices = Prices::new().with("acme/large", Price::new(2.0, 8.0));
    let site = site(&model, prices).await;
    let app = site.get("reader", "").await.json();
    assert_eq!(app["instructions"], "You serve {user:name?}.");
    assert_eq!(
        app["prices"],
        json!({"currency": "USD", "models": {"acme/large": {"input": 2.0, "output": 8.0}}})
    );
    let tool = &app["tools"][0];
    assert_eq!(
        (&tool["name"], &tool["agent"], &tool["approval"]),
        (&json!("settle"), &json!("payer"), &json!("never"))
    );
    assert_eq!(tool["digest"].as_str().unwrap().len(), 64);
    assert_eq!((&app["refused_tools"], &app["agents"][0]["refused_tools"]), (&json!([]), &json!([])));
    assert_eq!(
        (&app["agents"][0]["name"], &app["agents"][0]["inside_of"]),
        (&json!("payer"), &json!(["settle"]))
    );
    let models: Vec<&Value> = app["models"].as_array().unwrap().iter().map(|of| &of["model"]).collect();
    assert_eq!(models, [&json!("acme/large"), &json!("acme/summary"), &json!("acme/small")], "{app}");
    // The digest is of what the model is told.
    let newest = site.get("reader", "/sessions/s1").await.json()["version"].as_u64().unwrap();
    assert_eq!(shown(&site, newest, "").await["tools"][0]["digest"], tool["digest"]);
    let bearer = site.bearer("reader");
    let apps = site.raw(Method::GET, "/api/v1/apps", &[("authorization", &bearer)], "").await.json();
    assert!(apps["apps"][0].get("tools").is_none(), "{apps}");
}
