//! Laws of what is told of a session, over generated ones: writes of several keys and handlers, by several calls of a step.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Args, Effect, Tool, ToolError};

use super::site::Site;

#[derive(Deserialize, schemars::JsonSchema)]
struct Given {
    value: Value,
}

async fn echo(Args(given): Args<Given>) -> Result<Value, ToolError> {
    Ok(json!({"value": given.value}))
}

const KEYS: [&str; 4] = ["total", "last", "tags", "log"];

fn agent(script: &str) -> Agent {
    let schema = Schema::builder()
        .key::<i64>("total")
        .handler(Handler::sum())
        .key::<i64>("last")
        .key::<Vec<i64>>("tags")
        .handler(Handler::union())
        .key::<Vec<i64>>("log")
        .build()
        .unwrap();
    let tool = |key: &str| {
        let tool = Tool::new(format!("to_{key}"), "Writes.", echo).effect(Effect::Pure);
        tool.output_to_state(key, "value").build().unwrap()
    };
    let tools = KEYS.map(tool);
    Agent::builder(Script::parse(script).unwrap()).name("clerk").schema(schema).tools(tools).build().unwrap()
}

/// A run of random calls: its script, and the calls that write each key, in order.
fn generated(random: &mut fastrand::Rng) -> (String, BTreeMap<&'static str, Vec<String>>) {
    let (mut script, mut calls) = (String::new(), BTreeMap::<_, Vec<String>>::new());
    for step in 0..random.usize(1..5) {
        script.push_str("assistant:");
        for place in 0..random.usize(1..4) {
            let key = KEYS[random.usize(0..KEYS.len())];
            let number = random.i64(0..4);
            let value = if matches!(key, "tags" | "log") { json!([number]) } else { json!(number) };
            let id = format!("c{step}x{place}");
            write!(script, " > {id} to_{key}(value={value})").unwrap();
            calls.entry(key).or_default().push(id);
        }
        script.push('\n');
    }
    script.push_str("assistant: done\n");
    (script, calls)
}

/// What a write makes of a value, by the rule of its handler.
fn merged(before: Option<&Value>, handler: &str, value: &Value) -> Value {
    let items = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    match handler {
        "sum" => json!(before.and_then(Value::as_i64).unwrap_or(0) + value.as_i64().unwrap()),
        "merge_lists" => json!([items(before), items(Some(value))].concat()),
        "union" => {
            let mut all = items(before);
            for item in items(Some(value)) {
                if !all.contains(&item) {
                    all.push(item);
                }
            }
            json!(all)
        }
        "replace_values" => value.clone(),
        other => panic!("unknown handler {other}"),
    }
}

#[tokio::test]
async fn written_values_add_up_and_each_names_its_call() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (script, calls) = generated(&mut random);
        let runner = Runner::builder(agent(&script), MemoryStore::new()).build();
        let site = Site::of(App::from(runner), Limits::default()).await;
        site.post("ada", "/sessions", json!({"id": "s1"})).await;
        let run = site.post("ada", "/sessions/s1/run", json!({"text": "go"})).await;
        assert_eq!(
            (run.status.as_u16(), &run.json()["status"]),
            (200, &json!("finished")),
            "{script}{}",
            run.text
        );
        let page = site.get("reader", "/sessions/s1/events").await.json();
        let rows = page["events"].as_array().unwrap();
        let mut state: Map<String, Value> =
            site.get("reader", "/sessions/s1/state?at=0").await.json()["values"].as_object().unwrap().clone();
        let mut blamed: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for row in rows {
            for write in row["writes"].as_array().unwrap() {
                let (key, handler) = (write["key"].as_str().unwrap(), write["handler"].as_str().unwrap());
                let value = merged(state.get(key), handler, &write["value"]);
                state.insert(key.to_owned(), value);
                blamed.entry(key.to_owned()).or_default().push(write["call_id"].clone());
            }
            let version = &row["version"];
            let stored = site.get("reader", &format!("/sessions/s1/state?at={version}")).await.json();
            assert_eq!(stored["values"], Value::Object(state.clone()), "version {version} of\n{script}");
        }
        for (key, calls) in &calls {
            assert_eq!(json!(blamed[*key]), json!(calls), "{key} of\n{script}");
            let blame = site.get("reader", &format!("/sessions/s1/blame?key={key}")).await.json();
            let by: Vec<&Value> =
                blame["writes"].as_array().unwrap().iter().map(|write| &write["call_id"]).collect();
            assert_eq!(json!(by), json!(calls), "{blame}");
        }
        let origin = site.get("reader", "/sessions/s1/state?origin=true").await.json();
        for (key, of) in origin["origin"].as_object().unwrap() {
            let calls = &calls[key.as_str()];
            assert_eq!(
                (of["writes"].as_u64(), of["call_id"].as_str()),
                (Some(calls.len() as u64), calls.last().map(String::as_str))
            );
        }
    }
}
