//! Spans of what happens inside of a graph.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::{Agent, Input, Traces};
use stepfold_graph::{AgentNode, START};

use super::kit::*;
use crate::loop_kit::{agent, script};
use crate::loop_spans::Spans;

/// The spans, each with its name and what it is in.
fn tree(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("  ") {
            None => lines.push(line.to_owned()),
            Some(field) => {
                let shown = ["otel.name", "error.type", "gen_ai.usage.input_tokens", "stepfold.exit"];
                if shown.iter().any(|name| field.starts_with(name)) {
                    *lines.last_mut().unwrap() += &format!("; {field}");
                }
            }
        }
    }
    lines.join("\n") + "\n"
}

/// A node has a span, and so have the model's calls and the tools of an agent inside of it, and of one inside of that.
#[tokio::test]
async fn nodes_and_what_is_inside_have_spans() {
    let expert = agent("assistant: > c9 search(q=\"area\")\nassistant: 12").build().unwrap();
    let ask = expert.as_tool("ask", "Asks an expert.").build().unwrap();
    let clerk = Agent::builder(script("assistant: > c1 ask(task=\"how many?\")\nassistant: twelve"));
    let clerk = clerk.tools([ask]).build().unwrap();
    let graph = graph().node("clerk", AgentNode::new(clerk)).node("fail", failing("no such area"));
    let graph = graph.edge(START, "clerk").edge("clerk", "fail").build().unwrap();
    let run = graph.run(Input::from("how many?").with_values(json!({"next": "x"})));
    let text = Spans::of(run.observe(Traces::new("stalls"))).await;
    expect![[r#"
        1 invoke_agent; error.type = run_error; otel.name = invoke_agent stalls; stepfold.exit = the run failed
        2 execute_node in 1; otel.name = execute_node clerk
        3 invoke_agent in 2; otel.name = invoke_agent clerk
        4 chat in 3; gen_ai.usage.input_tokens = 0; otel.name = chat test-kit/script
        5 execute_tool in 3; otel.name = execute_tool ask
        6 invoke_agent in 5; otel.name = invoke_agent ask
        7 chat in 6; gen_ai.usage.input_tokens = 0; otel.name = chat test-kit/script
        8 execute_tool in 6; otel.name = execute_tool search
        9 chat in 6; gen_ai.usage.input_tokens = 0; otel.name = chat test-kit/script
        10 chat in 3; gen_ai.usage.input_tokens = 0; otel.name = chat test-kit/script
        11 execute_node in 1; error.type = Failed; otel.name = execute_node fail
    "#]].assert_eq(&tree(&text));
    assert!(!text.contains("still open"), "{text}");
}
