//! The state of a deep-research graph, declared by a struct: its handlers, some writes, its stored form.

use std::collections::HashMap;

use expect_test::expect;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Schema, State, StateError};

use super::schemas::table;
use super::{handlers, json_of, report};

type Object = Map<String, Value>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
struct DeepResearchState {
    // ========== The basics ==========
    /// The name of the agent.
    graph_type: String,
    /// What the user asked.
    query: Option<String>,
    session_id: Option<String>,
    user_id: Option<String>,
    /// The window of the conversation, compressed for this turn.
    messages: Option<Vec<Message>>,
    /// The whole conversation over all turns.
    #[serde(default)]
    history: Vec<Message>,

    // ========== The model ==========
    model_id: Option<String>,
    params: Option<Object>,

    // ========== Outputs ==========
    /// The outputs of all nodes.
    #[serde(default)]
    outputs: Vec<Object>,

    // ========== Tasks ==========
    #[schemars(extend("x-handler" = "upsert_by(id)"))]
    tasks: Option<Vec<Object>>,
    current_task_id: Option<i64>,
    /// From 0 to 100.
    #[schemars(range(max = 100))]
    overall_progress: Option<u8>,

    // ========== The flow ==========
    /// `deep` or `react`.
    mode: Option<String>,
    /// Whether tools run by themselves: copilot, or interactive.
    auto: Option<bool>,
    current_node: Option<String>,
    #[serde(default)]
    errors: Vec<Object>,

    // ========== Limits ==========
    execution_counts: Option<HashMap<String, u64>>,
    max_executions: Option<HashMap<String, u64>>,

    // ========== Routing ==========
    router_decision: Option<Object>,

    // ========== The user's choices ==========
    user_preferences: Option<Object>,
    output_format: Option<String>,
    research_depth: Option<String>,

    // ========== Extensions ==========
    custom_data: Option<Object>,
    stats: Option<Object>,
}

#[test]
fn handlers_of_the_fields() {
    expect![[r#"
        graph_type: replace_values - The name of the agent.
        query: replace_values - What the user asked.
        session_id: replace_values
        user_id: replace_values
        messages: merge_lists - The conversation.
        history: merge_lists, default [] - The whole conversation over all turns.
        model_id: replace_values
        params: replace_values
        outputs: merge_lists, default [] - The outputs of all nodes.
        tasks: upsert_by(id)
        current_task_id: replace_values
        overall_progress: replace_values - From 0 to 100.
        mode: replace_values - `deep` or `react`.
        auto: replace_values - Whether tools run by themselves: copilot, or interactive.
        current_node: replace_values
        errors: merge_lists, default []
        execution_counts: replace_values
        max_executions: replace_values
        router_decision: replace_values
        user_preferences: replace_values
        output_format: replace_values
        research_depth: replace_values
        custom_data: replace_values
        stats: replace_values
    "#]]
    .assert_eq(&sorted_as_declared(&Schema::of::<DeepResearchState>().unwrap()));
}

/// schemars gives fields in the order of the struct only with its feature `preserve_order`.
fn sorted_as_declared(schema: &Schema) -> String {
    let order: Vec<&str> = include_str!("deep_research.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.split_once(": ").map(|(name, _)| name))
        .collect();
    let table = table(schema);
    let mut lines: Vec<&str> = table.lines().collect();
    lines.sort_by_key(|line| {
        line.split_once(": ").map(|(name, _)| order.iter().position(|known| *known == name))
    });
    lines.join("\n") + "\n"
}

fn busy() -> Result<State, StateError> {
    let mut state = State::new(&Schema::of::<DeepResearchState>()?);
    state.set("graph_type", "deep_research")?;
    state.set("query", "Which area has most stalls?")?;
    state.set("history", json!({"role": "user", "parts": [{"text": "Which area has most stalls?"}]}))?;
    state.set("history", json!([{"role": "assistant", "parts": [{"text": "Area 3."}]}]))?;
    state.set("tasks", json!([{"id": 1, "status": "running"}, {"id": 2, "status": "pending"}]))?;
    state.set("tasks", json!({"id": 2, "status": "running"}))?;
    state.set("tasks", json!({"id": 1, "status": "completed"}))?;
    state.set("outputs", json!([{"node": "planner"}]))?;
    state.set("outputs", json!({"node": "searcher", "found": 3}))?;
    state.set("errors", json!({"node": "searcher", "error": "timed out"}))?;
    state.set("execution_counts", json!({"planner": 1}))?;
    state.set("execution_counts", json!({"searcher": 2}))?;
    state.set("auto", true)?;
    state.set("overall_progress", 50)?;
    state.push_message(Message::user("Which area has most stalls?"));
    Ok(state)
}

#[test]
fn writes_and_decoding() {
    let research: DeepResearchState = busy().unwrap().decode().unwrap();
    assert_eq!(research.tasks.as_ref().unwrap()[0]["status"], "completed");
    assert_eq!(research.tasks.as_ref().unwrap()[1]["status"], "running");
    assert_eq!(research.outputs.len(), 2);
    assert_eq!(research.history.len(), 2);
    assert_eq!(research.messages.as_ref().unwrap().len(), 1);
    assert_eq!(research.execution_counts.as_ref().unwrap().len(), 1);
    assert_eq!((research.overall_progress, research.mode.as_deref()), (Some(50), None));

    // And into a state again, without its nulls: those would be values.
    let Value::Object(mut fields) = serde_json::to_value(&research).unwrap() else { unreachable!() };
    fields.retain(|_, value| !value.is_null());
    let schema = Schema::of::<DeepResearchState>().unwrap();
    let again = State::with_values(&schema, Value::Object(fields)).unwrap();
    assert_eq!(again, busy().unwrap());
}

#[test]
fn refuses_what_does_not_fit() {
    let mut state = busy().unwrap();
    let before = json_of(&state);
    let report_of = |result: Result<(), StateError>| report(&result.unwrap_err());
    expect![[r#"
        invalid value for key "auto": expected boolean or null, found string at $
        handler upsert_by(id) failed for key "tasks": expected an object with field "id" for new item 0
        invalid value for key "outputs": expected object, found string at $"#]]
    .assert_eq(
        &[
            report_of(state.set("auto", "yes")),
            report_of(state.set("tasks", json!({"status": "done"}))),
            report_of(state.set("outputs", "text")),
        ]
        .join("\n"),
    );
    if cfg!(feature = "validation") {
        assert!(
            report_of(state.set("overall_progress", 101))
                .contains("value is greater than the maximum of 100 at $")
        );
        assert!(report_of(state.set("execution_counts", json!({"a": -1}))).ends_with("at $.a"));
    }
    assert_eq!(json_of(&state), before);

    let unset = State::new(state.schema()).decode::<DeepResearchState>().unwrap_err();
    let text = report(&unset);
    assert!(text.starts_with("key \"(the whole state)\" cannot be decoded as "), "{text}");
    assert!(text.ends_with("missing field `graph_type` at $"), "{text}");
}

#[test]
fn survives_json() {
    let state = busy().unwrap();
    let schema = Schema::from_json(&serde_json::to_string(state.schema()).unwrap(), &handlers()).unwrap();
    let read = State::from_json(&schema, &serde_json::to_string(&state).unwrap()).unwrap();
    assert_eq!(&schema, state.schema());
    assert_eq!(read, state);
    assert_eq!(json_of(&read), json_of(&state));
}
