//! The cost of a run, over all models that it asked.

use stepfold::agent_loop::Run;
use stepfold::prelude::*;
use stepfold::providers::layer::{ChatModelExt, Fallback, Retry};
use stepfold::providers::{Scripted, ScriptedReply};
use stepfold::state_core::chat::{ModelErrorKind, Price, Prices, Usage};

fn reply(text: &str) -> ScriptedReply {
    ScriptedReply::from(text).with_usage(Usage::new(1_000, 0))
}

#[tokio::test]
async fn every_model_has_its_own_price() {
    let inner = Scripted::new([reply("12 stalls")]).named("a/small");
    let count = Agent::builder(inner).build().unwrap().as_tool("count", "Counts stalls.");
    let first = Scripted::new([reply("> c1 count(task=\"area 3\")"), ModelErrorKind::Overloaded.into()]);
    let second = Scripted::new([reply("Area 3 has 12 stalls.")]).named("b/other");
    let model = first.named("a/large").layer(Retry::attempts(1)).layer(Fallback::to(second));
    let agent = Agent::builder(model).tool(count).build().unwrap();

    let outcome = agent.run("how many stalls has area 3?").await.unwrap();

    let by_model: Vec<_> =
        outcome.usage_by_model().map(|(model, usage)| (model, usage.input_tokens)).collect();
    assert_eq!(by_model, [("a/large", 1_000), ("a/small", 1_000), ("b/other", 1_000)]);
    let prices = Prices::new().with("large", Price::new(10.0, 0.0)).with("a/small", Price::new(1.0, 0.0));
    assert_eq!(outcome.cost(&prices), None, "other has no price");
    let prices = prices.with("b/other", Price::new(5.0, 0.0));
    assert_eq!(outcome.cost(&prices).unwrap().to_string(), "$0.016000");
    let stored = serde_json::to_string(outcome.run()).unwrap();
    let loaded = Run::load(&agent, &stored).unwrap();
    assert!(loaded.usage_by_model().eq(outcome.usage_by_model()));
}
