//! `build()` refuses whatever can be known to fail, all of it at once.

use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::tools::ResultSource;
use stepfold_agent_loop::{Agent, AgentBuilder, Output, OutputMode, RepeatGuard, RunLimits};

use super::kit::*;

fn refused(agent: AgentBuilder, expected: Expect) {
    let error = agent.build().unwrap_err();
    let mut text = format!("agent '{}'\n", error.agent);
    for fault in &error.faults {
        text += &format!("{}: {}\n", fault.path, fault.message);
    }
    expected.assert_eq(&text);
}

#[tokio::test]
async fn build_says_all_faults_at_once() {
    let bound =
        tool("store", |_| Ok(json!(1))).output_to_state("nowhere", ResultSource::Whole).build().unwrap();
    let limits = RunLimits::default()
        .with_steps(0)
        .with_calls_per_reply(0)
        .with_tool_calls(0)
        .with_tokens(0)
        .with_time(Duration::ZERO);
    let agent = Agent::builder(script(""))
        .name(" ")
        .schema(Schema::builder().key::<String>("name").build().unwrap())
        .instructions("You help {nme} and {name} and {other?}, {{literally}}.")
        .tools([bound])
        .exit_on(["stor", "store"])
        .limits(limits)
        .repeat_guard(RepeatGuard::default().warn_at(1))
        .output_with(Output::schema("area", json!({"type": "area"})));
    refused(
        agent,
        expect![[r#"
            agent ' '
            limits.steps: must be positive: the model could not be called
            limits.calls_per_reply: must be positive: no call could run
            limits.tool_calls: must be positive: no call could run; remove the tools instead
            limits.tokens: must be positive: the model could not be called
            limits.time: must be positive: nothing could run
            name: must not be empty: records and traces use it
            repeat_guard: must be at least 2: a single call is not a repetition
            instructions: unknown state key "nme": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
            instructions: unknown state key "other": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
            tool store: state key "nowhere": not declared: add it to the agent's schema, or to that of the graph around it
            output area: unknown type "area"; available: null, boolean, integer, number, string, array, object
            exit condition 'stor': unknown tool; available: store
        "#]],
    );
}

#[tokio::test]
async fn build_refuses_tools_of_one_name() {
    refused(
        agent("").tools([tools(), tools()].concat()),
        expect![[r#"
        agent 'agent'
        tool search: duplicate name in toolset "tools": rename one of the two
        tool fetch: duplicate name in toolset "tools": rename one of the two
        tool submit: duplicate name in toolset "tools": rename one of the two
        tool fails: duplicate name in toolset "tools": rename one of the two
    "#]],
    );
}

#[tokio::test]
async fn build_refuses_exits_without_tools() {
    refused(
        Agent::builder(script("")).exit_on(["submit"]).recover_leaked_calls(),
        expect![[r#"
        agent 'agent'
        exit condition 'submit': unknown tool: the agent has none
        recover_leaked_calls: requires a tool
    "#]],
    );
}

/// Runtime overrides leave no exit condition behind that names a tool which is not there.
#[tokio::test]
async fn build_refuses_exits_that_were_taken_away() {
    refused(
        agent("").exit_on(["submit"]).only_tools(["search"]),
        expect![[r#"
        agent 'agent'
        exit condition 'submit': unknown tool; available: search
    "#]],
    );
}

#[tokio::test]
async fn build_refuses_tools_to_choose_from_that_are_not_there() {
    refused(
        agent("").only_tools(["serch"]),
        expect![[r#"
        agent 'agent'
        tool serch: unknown tool of toolset "tools"; available: search, fetch, submit, fails
    "#]],
    );
}

#[tokio::test]
async fn build_refuses_two_tools_for_the_output() {
    let own = tool("submit_output", |_| Ok(json!(1))).build().unwrap();
    let output = Output::schema("area", json!({"type": "object"})).mode(OutputMode::Tool);
    refused(
        Agent::builder(script("")).tools([own]).output_with(output),
        expect![[r#"
        agent 'agent'
        submit_output: duplicate name: the output uses this tool; rename the other one
    "#]],
    );
}

/// The warnings of this crate.
#[derive(Clone, Default)]
struct Warnings(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}: {value:?}"));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.target().starts_with("stepfold_agent_loop")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// As spec/001 has it: where the agent is built, and once.
#[tokio::test]
async fn an_agent_without_tools_is_warned_about_once() {
    let warnings = Warnings::default();
    let guard = tracing::subscriber::set_default(warnings.clone());
    let plain = Agent::builder(script("assistant: area 3")).name("plain").build().unwrap();
    let said = ["message: the agent has no tools: each run is one request to the model", "agent: \"plain\""];
    assert_eq!(*warnings.0.lock().unwrap(), said);
    // Not again where the agent runs, and where it is changed for a run; not where there are tools, or need be none.
    plain.run("which area?").await.unwrap();
    plain.to_builder().name("changed").build().unwrap();
    agent("assistant: area 3").build().unwrap();
    let output = Output::schema("area", json!({"type": "integer"}));
    Agent::builder(script("")).output_with(output).build().unwrap();
    let graph = Schema::builder().key::<String>("notes").build().unwrap();
    Agent::builder(script("")).graph_schema(graph).build().unwrap();
    drop(guard);
    assert_eq!(*warnings.0.lock().unwrap(), said);
}
