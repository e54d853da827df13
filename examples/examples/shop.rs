//! A shop assistant: a list that is the user's in all sessions, a payment that needs approval and never runs twice, a
//! delivery that must not run twice, sessions in SQLite, answers as they come, and a structured answer at the end.
//!
//! `cargo run -p stepfold-examples --example shop`
#![allow(clippy::unwrap_used, reason = "an example fails where it is wrong")]

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::providers::Scripted;
use stepfold::session_scopes::SqliteStore;
use stepfold::terminal::Printer;

/// The replies of the scripted model. For a real one: `stepfold::providers::model("openai:gpt-4.1")`.
const SCRIPT: &str = r#"
assistant: > c1 put(item="tea", grams=250)   > c2 put(item="rice", grams=1000)
assistant: > c3 pay(euro=12)   > c4 deliver(street="1 Quay Street")
assistant: {"items": ["tea", "rice"], "euro": 12}
"#;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Receipt {
    items: Vec<String>,
    euro: u64,
}

/// Puts something into the basket, which is the user's in all sessions.
#[tool(effect(Effect::Pure), writes(["user:basket"]))]
async fn put(item: String, grams: u64, state: StateWriter) -> Result<&'static str, ToolError> {
    state.set("user:basket", json!({item: grams}))?;
    Ok("it is in the basket")
}

/// Pays.
#[tool(approval(Approval::Always))]
async fn pay(euro: u64) -> String {
    format!("paid {euro} euro")
}

/// Orders a delivery. It must not run twice, which is the default: a crash leaves it as it is, and says so.
#[tool(effect(Effect::AtMostOnce))]
async fn deliver(street: String) -> String {
    format!("on the way to {street}")
}

/// A merge handler (reducer): amounts of the same item add up.
fn add_up(current: Option<&Value>, new: &Value) -> Value {
    let mut basket = current.and_then(Value::as_object).cloned().unwrap_or_default();
    for (item, grams) in new.as_object().into_iter().flatten() {
        let before = basket.get(item).and_then(Value::as_u64).unwrap_or(0);
        basket.insert(item.clone(), json!(before + grams.as_u64().unwrap_or(0)));
    }
    Value::Object(basket)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let handler = Handler::custom("add_up", |current, new| Ok(add_up(current, &new)));
    let basket = Schema::builder().key_schema("user:basket", json!("object")).handler(handler).build()?;
    let agent = Agent::builder(Scripted::conversation(SCRIPT)?)
        .name("shop")
        .instructions("You sell tea and rice. The basket so far: {user:basket?}")
        .schema(basket)
        .tools([put_tool(), pay_tool(), deliver_tool()])
        .output::<Receipt>()
        .build()?;
    let file = std::env::temp_dir().join(format!("shop-{}.sqlite", std::process::id()));
    let session = Runner::builder(agent, SqliteStore::open(&file)?).build().session("ada", "monday").await?;
    let mut screen = Printer::new();
    screen.follow(&session.send("tea and rice, please").await?).await?;
    let asked = session.pending().await?; // The run waits, is stored, and could go on in another process.
    let decided = asked.iter().map(|request| (request.id.clone(), Decision::Approve)).collect::<Vec<_>>();
    let outcome = screen.follow(&session.resume().decide_all(decided).start()?).await?;
    let receipt: Receipt = outcome.output()?;
    assert_eq!((receipt.items.len(), receipt.euro), (2, 12));
    assert_eq!(outcome.state().get("user:basket").unwrap(), json!({"tea": 250, "rice": 1000}));
    Ok(std::fs::remove_file(file)?)
}
