//! The state of a workflow and the rules of its helpers, row by row, and what holds for all of them.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex};

use expect_test::expect;
use futures_util::FutureExt;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use stepfold_graph::progress::{
    DEFAULT_MAX_EXECUTIONS, Mode, NodeErrorRecord, NodeOutput, NodeRun, OutputFormat, Progress,
    ProgressError, ResearchDepth, ResearchState, RouterDecision, Task, TaskStatus, TrackError, TrackTarget,
    can_execute, executions, increment_execution_count, keys, max_executions, node_output, progress, track,
    tracking_keys, update_task, writes,
};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Handler, Handlers, Key, KeySchema, Schema, State, StateError};

/// A state of the whole schema with these values beside the name of the graph.
fn state(mut values: Value) -> State {
    values["graph_type"] = json!("research");
    State::with_values(&ResearchState::schema().unwrap(), values).unwrap()
}

/// The values of some keys, one a line.
fn show(state: &State, keys: &[&str]) -> String {
    let line = |key: &&str| match state.get(*key) {
        Some(value) => format!("{key}: {value}\n"),
        None => format!("{key}: unset\n"),
    };
    keys.iter().map(line).collect()
}

const TRACKED: [&str; 6] =
    ["tasks", "current_task_id", "current_node", "outputs", "errors", "overall_progress"];

fn show_tracked(state: &State) -> String {
    show(state, &TRACKED)
}

/// An error with its causes.
fn report(error: &dyn std::error::Error) -> String {
    assert!(error.source().is_none(), "the text shows all causes: {error}");
    error.to_string()
}

fn two_tasks() -> State {
    state(json!({"tasks": [{"id": 1, "title": "search"}, {"id": 2, "weight": 0.5}]}))
}

// ========== The typed state ==========

/// The fields of the template, in its order.
const TEMPLATE: [&str; 24] = [
    "graph_type",
    "query",
    "session_id",
    "user_id",
    "messages",
    "history",
    "model_id",
    "params",
    "outputs",
    "tasks",
    "current_task_id",
    "overall_progress",
    "mode",
    "auto",
    "current_node",
    "errors",
    "execution_counts",
    "max_executions",
    "router_decision",
    "user_preferences",
    "output_format",
    "research_depth",
    "custom_data",
    "stats",
];

#[test]
fn all_fields_of_the_template_and_no_other() {
    let schema = ResearchState::schema().unwrap();
    let mut names: Vec<&str> = schema.keys().map(KeySchema::name).collect();
    names.sort_unstable();
    let mut expected = TEMPLATE;
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn types_and_handlers_of_the_fields() {
    let schema = ResearchState::schema().unwrap();
    let described = format!("{schema:#?}");
    let of_key = |name: &&str| described.lines().find(|line| line.starts_with(&format!("    \"{name}\": ")));
    let table: String = TEMPLATE.iter().filter_map(of_key).map(|line| format!("{}\n", line.trim())).collect();
    expect![[r#"
        "graph_type": "string, replace_values",
        "query": "string or null, replace_values",
        "session_id": "string or null, replace_values",
        "user_id": "string or null, replace_values",
        "history": "list of Message, merge_lists",
        "model_id": "string or null, replace_values",
        "params": "object or null, replace_values",
        "outputs": "list of object, merge_lists",
        "tasks": "list of object or null, upsert_by(id)",
        "current_task_id": "integer or null, replace_values",
        "overall_progress": "integer or null, replace_values",
        "mode": "string or null, replace_values",
        "auto": "boolean or null, replace_values",
        "current_node": "string or null, replace_values",
        "errors": "list of object, merge_lists",
        "execution_counts": "object or null, replace_values",
        "max_executions": "object or null, replace_values",
        "router_decision": "object or null, replace_values",
        "user_preferences": "object or null, replace_values",
        "output_format": "string or null, replace_values",
        "research_depth": "string or null, replace_values",
        "custom_data": "object or null, replace_values",
        "stats": "object or null, replace_values",
    "#]]
    .assert_eq(&table);

    assert!(schema.keys().all(|key| key.description().is_some()));
    let with_default: Vec<_> = schema.keys().filter(|key| key.default().is_some()).collect();
    assert!(with_default.iter().all(|key| key.default() == Some(&json!([]))));
    assert_eq!(with_default.len(), 3);
}

#[test]
fn typed_keys_hold_what_the_fields_hold() {
    /// What a key declared by a constant and the field of the struct have in common but for null.
    fn check<T: schemars::JsonSchema + serde::de::DeserializeOwned>(key: Key<T>, value: Value) {
        let name = key.name().to_owned();
        let alone = Schema::builder().key(key.clone()).build().unwrap();
        State::with_values(&alone, json!({ (name.as_str()): value })).unwrap();
        let state = state(json!({ (name.as_str()): value }));
        assert!(state.get(&key).unwrap().is_some(), "{name}");
        assert!(state.get(name.as_str()).unwrap() == value, "{name}");
    }
    check(keys::QUERY, json!("which?"));
    check(keys::SESSION_ID, json!("s"));
    check(keys::USER_ID, json!("u"));
    check(keys::HISTORY, json!([{"parts": [{"text": "hi"}], "role": "user"}]));
    check(keys::MODEL_ID, json!("small"));
    check(keys::PARAMS, json!({"temperature": 0.5}));
    check(keys::OUTPUTS, json!([{"anything": [1], "node": "planner"}]));
    check(keys::TASKS, json!([{"anything": [1], "id": 1, "status": "failed"}]));
    check(keys::CURRENT_TASK_ID, json!(-1));
    check(keys::OVERALL_PROGRESS, json!(100));
    check(keys::MODE, json!("react"));
    check(keys::AUTO, json!(false));
    check(keys::CURRENT_NODE, json!("planner"));
    check(keys::ERRORS, json!([{"code": 7, "message": "no", "node": "planner"}]));
    check(keys::EXECUTION_COUNTS, json!({"planner": 1}));
    check(keys::MAX_EXECUTIONS, json!({"planner": 1}));
    check(keys::ROUTER_DECISION, json!({"node": "judge", "reason": "enough", "targets": ["writer"]}));
    check(keys::USER_PREFERENCES, json!({}));
    check(keys::OUTPUT_FORMAT, json!("pdf"));
    check(keys::RESEARCH_DEPTH, json!("shallow"));
    check(keys::CUSTOM_DATA, json!({"a": null}));
    check(keys::STATS, json!({"trimmed": 20}));
    assert_eq!(state(json!({})).get(keys::GRAPH_TYPE).unwrap().unwrap(), "research");
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut state = two_tasks();
    let before = state.clone();
    let mut refused = String::new();
    let rows = [
        ("mode", json!("fast")),
        ("output_format", json!("docx")),
        ("research_depth", json!("abyssal")),
        ("current_task_id", json!("one")),
        ("tasks", json!({"title": "without id"})),
        ("outputs", json!("text")),
        ("errors", json!([7])),
        ("router_decision", json!("writer")),
        ("execution_counts", json!({"planner": -1})),
        ("question", json!("it is called query")),
    ];
    for (key, value) in rows {
        let error = state.set(key, value.clone()).unwrap_err();
        let kind = match error {
            StateError::UnknownKey { .. } => "unknown key",
            StateError::WrongType { .. } => "wrong type",
            StateError::Merge { .. } => "merge",
            other => panic!("{}", report(&other)),
        };
        refused += &format!("{key} = {value}: {kind}\n");
    }
    expect![[r#"
        mode = "fast": wrong type
        output_format = "docx": wrong type
        research_depth = "abyssal": wrong type
        current_task_id = "one": wrong type
        tasks = {"title":"without id"}: merge
        outputs = "text": wrong type
        errors = [7]: wrong type
        router_decision = "writer": wrong type
        execution_counts = {"planner":-1}: wrong type
        question = "it is called query": unknown key
    "#]]
    .assert_eq(&refused);
    assert_eq!(state, before);
    assert!(state.set(keys::OVERALL_PROGRESS, 101).is_err());
}

/// The template says `Dict[str, Any]`, and `Optional` of the tasks: any such value is stored, read with its type, and
/// written back as it came.
#[test]
fn objects_of_any_form_are_kept_as_the_template_says() {
    let rows = [
        ("router_decision", json!({"next": "x"})),
        ("router_decision", json!({"node": 7, "reason": null, "targets": []})),
        ("errors", json!([{"error": "it is down"}])),
        ("errors", json!([{"message": "", "node": null, "task_id": "one"}])),
        ("outputs", json!([{"text": "without a node"}])),
        ("outputs", json!([{"content": null, "kind": 1, "node": ""}, {}])),
        ("tasks", json!([{"error": {"code": 7}, "id": 1, "status": "blocked", "title": null}])),
        ("tasks", json!(null)),
    ];
    for (key, value) in rows {
        let mut state = state(json!({}));
        state.set(key, value.clone()).unwrap();
        assert_eq!(state.get(key).unwrap().to_json(), value, "{key}");
        let read = state.decode::<ResearchState>().unwrap();
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again.get(key).unwrap_or(&Value::Null), &value, "{key}");
    }
    // A bare object is an item, and what is there stays.
    let mut state = two_tasks();
    state.set("outputs", json!({"text": "without a node"})).unwrap();
    state.set(keys::OUTPUTS, vec![NodeOutput::new("planner", "two")]).unwrap();
    let outputs = state.get(keys::OUTPUTS).unwrap().unwrap();
    assert_eq!((outputs[0].node.as_str(), &outputs[0].extras["text"]), ("", &json!("without a node")));
    assert_eq!(outputs[1], NodeOutput::new("planner", "two"));
    // No tasks any more; the next ones start over.
    state.set("tasks", json!(null)).unwrap();
    assert_eq!(Progress::of(&state).unwrap().tasks, []);
    state.set("tasks", json!({"id": 3})).unwrap();
    assert_eq!(state.get(keys::TASKS).unwrap(), Some(vec![Task::new(3)]));
}

#[test]
fn words_that_are_known() {
    let words = [
        ("mode", vec!["deep", "react"]),
        ("output_format", vec!["markdown", "pdf", "html"]),
        ("research_depth", vec!["shallow", "medium", "deep"]),
    ];
    for (key, words) in words {
        for word in words {
            let state = state(json!({ (key): word }));
            let research: ResearchState = state.decode().unwrap();
            assert_eq!(research.to_state().unwrap(), state, "{key} = {word}");
        }
    }
    for word in ["pending", "running", "completed", "failed"] {
        let state = state(json!({"tasks": [{"id": 1, "status": word}]}));
        assert_eq!(Progress::of(&state).unwrap().tasks[0].status.to_string(), word);
    }
}

#[test]
fn further_fields_of_tasks_outputs_and_errors_are_kept() {
    let json = json!({
        "errors": [{"code": 7, "message": "no", "node": "planner"}],
        "outputs": [{"node": "planner", "plan": {"steps": [1, 2.5]}}],
        "router_decision": {"confidence": 0.5, "node": "judge", "targets": ["writer"]},
        "tasks": [{"id": 1, "weight": 0.5}]
    });
    let research: ResearchState = state(json.clone()).decode().unwrap();
    assert_eq!(research.tasks.as_ref().unwrap()[0].extras["weight"], 0.5);
    let again = research.to_state().unwrap();
    for (key, value) in json.as_object().unwrap() {
        assert_eq!(&again.get(key.as_str()).unwrap().to_json(), value);
    }
}

#[test]
fn window_and_history_are_two_things() {
    let mut state = state(json!({}));
    state.push_message(Message::user("which area?"));
    state.set(keys::HISTORY, vec![Message::user("hello"), Message::assistant("hi")]).unwrap();
    state.set(keys::HISTORY, vec![Message::user("which area?")]).unwrap();
    assert_eq!((state.messages().len(), state.get("history").unwrap().len()), (1, Some(3)));

    // A shorter window leaves the history alone.
    state.replace_messages(stepfold_state_core::chat::Transcript::new());
    let research: ResearchState = state.decode().unwrap();
    assert_eq!((research.messages.len(), research.history.len()), (0, 3));
}

// ========== Outputs and counts ==========

#[test]
fn the_last_output_of_a_node() {
    let outputs = json!([
        {"node": "planner", "text": "first"},
        {"node": "searcher", "found": [1, 2]},
        {"more": {"deep": true}, "node": "planner", "text": "second"},
        {"node": "Planner", "text": "another node"},
    ]);
    let state = state(json!({"outputs": outputs}));
    let of = |node| node_output(&state, node).unwrap();
    assert_eq!(of("planner"), Some(&json!({"more": {"deep": true}, "node": "planner", "text": "second"})));
    assert_eq!(of("searcher"), Some(&json!({"found": [1, 2], "node": "searcher"})));
    assert_eq!(of("judge"), None);
    assert_eq!(of(""), None);
}

/// Outputs without a node, of no object, or none at all, in a schema of one's own.
#[test]
fn outputs_of_ones_own() {
    let schema = Schema::builder().key::<Option<Vec<Value>>>("outputs").build().unwrap();
    for (outputs, found) in [
        (json!({}), false),
        (json!({"outputs": null}), false),
        (json!({"outputs": []}), false),
        (json!({"outputs": ["planner", {"text": "without a node"}, {"node": 7}]}), false),
        (json!({"outputs": [{"node": "planner"}, null, 3]}), true),
    ] {
        let state = State::with_values(&schema, outputs.clone()).unwrap();
        assert_eq!(node_output(&state, "planner").unwrap().is_some(), found, "{outputs}");
    }
}

#[test]
fn counts_and_limits() {
    // counts, limits -> the count, the limit, may it run
    let rows = [
        (json!(null), json!(null), (0, 3, true)),
        (json!({}), json!({}), (0, 3, true)),
        (json!({"planner": 2}), json!({}), (2, 3, true)),
        (json!({"planner": 3}), json!({}), (3, 3, false)),
        (json!({"planner": 3}), json!({"searcher": 9}), (3, 3, false)),
        (json!({"planner": 3}), json!({"planner": 4}), (3, 4, true)),
        (json!({"planner": 5}), json!({"planner": 4}), (5, 4, false)),
        (json!({"searcher": 9}), json!({"planner": 0}), (0, 0, false)),
    ];
    for (counts, limits, expected) in rows {
        let state = state(json!({"execution_counts": counts, "max_executions": limits}));
        let found = (
            executions(&state, "planner").unwrap(),
            max_executions(&state, "planner").unwrap(),
            can_execute(&state, "planner").unwrap(),
        );
        assert_eq!(found, expected, "{counts} {limits}");
    }
    let unset = state(json!({}));
    assert!(can_execute(&unset, "planner").unwrap());
    assert_eq!(max_executions(&unset, "planner").unwrap(), DEFAULT_MAX_EXECUTIONS);
}

#[test]
fn counting() {
    for counts in [json!({}), json!({"execution_counts": null}), json!({"execution_counts": {}})] {
        let mut state = state(counts);
        increment_execution_count(&mut state, "planner").unwrap();
        increment_execution_count(&mut state, "searcher").unwrap();
        increment_execution_count(&mut state, "planner").unwrap();
        expect![[r#"
            execution_counts: {"planner":2,"searcher":1}
            current_node: "planner"
        "#]]
        .assert_eq(&show(&state, &["execution_counts", "current_node"]));
    }

    // The default lets a node run three times.
    let mut state = state(json!({}));
    let mut ran = 0;
    while can_execute(&state, "judge").unwrap() {
        increment_execution_count(&mut state, "judge").unwrap();
        ran += 1;
    }
    assert_eq!(ran, 3);
}

#[test]
fn nodes_side_by_side_are_counted_together() {
    let mut state = state(json!({"execution_counts": {"searcher": 1}}));
    let delta = writes::increment_execution_counts(&state, ["counter", "searcher", "searcher"]).unwrap();
    assert_eq!(delta.len(), 2);
    state.apply(&delta).unwrap();
    expect![[r#"
        execution_counts: {"counter":1,"searcher":3}
        current_node: "searcher"
    "#]]
    .assert_eq(&show_sorted(&state));
    assert!(writes::increment_execution_counts(&state, []).unwrap().is_empty());
}

/// A map that grew keeps its order with `preserve_order`, and has that of the alphabet without.
fn show_sorted(state: &State) -> String {
    let counts: BTreeMap<String, u64> = state.get(keys::EXECUTION_COUNTS).unwrap().unwrap();
    let counts = serde_json::to_string(&counts).unwrap();
    format!("execution_counts: {counts}\n{}", show(state, &["current_node"]))
}

// ========== Tasks ==========

fn tasks_of(completed: usize, total: usize) -> Vec<Task> {
    let status = |index| if index < completed { TaskStatus::Completed } else { TaskStatus::Running };
    (0..total).map(|index| Task::new(i64::try_from(index).unwrap()).status(status(index))).collect()
}

#[test]
fn progress_in_integers() {
    for (completed, total, expected) in [
        (0, 0, 0),
        (0, 3, 0),
        (1, 3, 33),
        (2, 3, 66),
        (3, 3, 100),
        (29, 50, 58),
        (57, 100, 57),
        (199, 200, 99),
    ] {
        assert_eq!(progress(&tasks_of(completed, total)), expected, "{completed} of {total}");
    }
    // What the template computes, as its language does.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is what is shown")]
    let as_the_template = |completed: f64, total: f64| ((completed / total) * 100.0) as u8;
    assert_eq!(as_the_template(29.0, 50.0), 57);
    // The template fails on a task without a status.
    assert_eq!(progress(&[Task::new(1), Task::new(2).status(TaskStatus::Completed)]), 50);
}

#[test]
fn one_task_changed() {
    let tasks = [Task::new(1).title("search"), Task::new(2).title("count")];
    let complete = |task: &mut Task| task.status = Some(TaskStatus::Completed);
    let changed = update_task(&tasks, 2, complete);
    assert_eq!(changed, [tasks[0].clone(), tasks[1].clone().status(TaskStatus::Completed)]);
    assert_eq!(tasks[1].status, None);
    assert_eq!(update_task(&tasks, 3, complete), tasks);
    assert_eq!(update_task(&[], 3, complete), []);
}

#[test]
fn one_task_of_a_state_changed() {
    let mut state = two_tasks();
    let delta =
        writes::update_task(&state, 2, [("status", json!("failed")), ("id", json!(1)), ("tries", json!(2))]);
    state.apply(&delta.unwrap()).unwrap();
    assert_eq!(
        state.get("tasks").unwrap(),
        json!([{"id": 1, "title": "search"}, {"id": 2, "status": "failed", "tries": 2, "weight": 0.5}]),
    );
    assert!(writes::update_task(&state, 3, [("status", "failed")]).unwrap().is_empty());

    // A word of the application's own is not a status that is known here, and stays what it is.
    state.apply(&writes::update_task(&state, 2, [("status", "done")]).unwrap()).unwrap();
    let task = state.get(keys::TASKS).unwrap().unwrap().remove(1);
    assert_eq!((task.status, &task.extras["status"]), (None, &json!("done")));
}

// ========== Tracking ==========

#[test]
fn a_run_from_start_to_end() {
    let mut state = two_tasks();
    let run = NodeRun::new("searcher").task(2);
    run.start(&mut state).unwrap();
    expect![[r#"
        tasks: [{"id":1,"title":"search"},{"id":2,"status":"running","weight":0.5}]
        current_task_id: 2
        current_node: "searcher"
        outputs: []
        errors: []
        overall_progress: 0
    "#]]
    .assert_eq(&show_tracked(&sorted(&state)));

    run.complete(&mut state, [run.output("area 3").kind("finding"), run.output(json!([3]))]).unwrap();
    expect![[r#"
        tasks: [{"id":1,"title":"search"},{"id":2,"status":"completed","weight":0.5}]
        current_task_id: 2
        current_node: "searcher"
        outputs: [{"content":"area 3","kind":"finding","node":"searcher","task_id":2},{"content":[3],"node":"searcher","task_id":2}]
        errors: []
        overall_progress: 50
    "#]].assert_eq(&show_tracked(&sorted(&state)));
}

#[test]
fn a_run_that_fails_and_another_that_does_not() {
    let mut state = two_tasks();
    let first = NodeRun::new("searcher").task(1);
    first.start(&mut state).unwrap();
    first.fail(&mut state, first.error("timed out")).unwrap();
    expect![[r#"
        tasks: [{"id":1,"status":"failed","title":"search"},{"id":2,"weight":0.5}]
        current_task_id: 1
        current_node: "searcher"
        outputs: []
        errors: [{"message":"timed out","node":"searcher","task_id":1}]
        overall_progress: 0
    "#]]
    .assert_eq(&show_tracked(&sorted(&state)));

    // Once more: running again, then completed. The error of before stays on record.
    first.start(&mut state).unwrap();
    assert_eq!(Progress::of(&state).unwrap().tasks[0].status, TaskStatus::Running);
    first.complete(&mut state, None).unwrap();
    let progress = Progress::of(&state).unwrap();
    assert_eq!((progress.percentage, progress.tasks[0].status), (50, TaskStatus::Completed));
    assert_eq!(state.get("errors").unwrap().len(), Some(1));
    assert_eq!(state.get("outputs").unwrap().len(), Some(0));
}

/// The same values with the fields of objects in one order, whatever serde_json's features.
fn sorted(state: &State) -> State {
    fn sort(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<String, Value> =
                    fields.into_iter().map(|(name, value)| (name, sort(value))).collect();
                Value::Object(fields.into_iter().collect())
            }
            Value::Array(items) => items.into_iter().map(sort).collect(),
            other => other,
        }
    }
    let values: Map<String, Value> =
        state.iter().map(|(key, value)| (key.to_owned(), sort(value.to_json()))).collect();
    State::with_values(state.schema(), Value::Object(values)).unwrap()
}

#[test]
fn a_run_without_a_task_needs_no_tasks() {
    let schema =
        Schema::builder().key(keys::CURRENT_NODE).key(keys::OUTPUTS).key(keys::ERRORS).build().unwrap();
    let run = NodeRun::new("planner");
    run.check(&schema).unwrap();
    let mut state = State::new(&schema);
    run.start(&mut state).unwrap();
    run.complete(&mut state, [run.output("a plan")]).unwrap();
    expect![[r#"
        current_node: "planner"
        outputs: [{"content":"a plan","node":"planner"}]
    "#]]
    .assert_eq(&show(&sorted(&state), &["current_node", "outputs"]));
}

#[test]
fn a_task_that_is_not_there() {
    let mut state = two_tasks();
    let before = state.clone();
    let run = NodeRun::new("searcher").task(7);
    let error = run.start(&mut state).unwrap_err();
    assert!(matches!(error, ProgressError::NoSuchTask { task: 7, .. }));
    expect![[r#"unknown task 7 of node "searcher"; known tasks: 1, 2"#]].assert_eq(&report(&error));
    assert_eq!(state, before);

    // If it went while the node worked, what the node gave is not lost.
    run.complete(&mut state, [run.output("done")]).unwrap();
    run.fail(&mut state, run.error("not done")).unwrap();
    assert_eq!(state.get("tasks"), before.get("tasks"));
    assert_eq!((state.get("outputs").unwrap().len(), state.get("errors").unwrap().len()), (Some(1), Some(1)));
}

#[test]
fn writes_that_do_not_fit_change_nothing() {
    let schema = tracking_keys(Schema::builder()).key::<i64>("other").build().unwrap();
    let strict = Schema::builder()
        .key(keys::CURRENT_NODE)
        .key(keys::CURRENT_TASK_ID)
        .key(keys::OVERALL_PROGRESS)
        .key(keys::TASKS)
        .key(keys::ERRORS)
        .key::<Vec<i64>>("outputs")
        .build()
        .unwrap();
    let tasks = json!({"tasks": [{"id": 1}]});
    let run = NodeRun::new("searcher").task(1);

    let mut state = State::with_values(&schema, tasks.clone()).unwrap();
    run.complete(&mut state, [run.output("fits")]).unwrap();

    let mut state = State::with_values(&strict, tasks).unwrap();
    let before = state.clone();
    assert!(matches!(run.complete(&mut state, [run.output("does not")]), Err(ProgressError::State(_))));
    assert_eq!(state, before);
}

#[test]
fn the_keys_that_are_needed() {
    fn missing<T: std::fmt::Debug>(result: Result<T, ProgressError>) -> String {
        match result.unwrap_err() {
            ProgressError::MissingKey { key, purpose, .. } => format!("{key} for {purpose}\n"),
            other => panic!("{}", report(&other)),
        }
    }
    let mut state = State::new(&Schema::builder().key::<String>("question").build().unwrap());
    let run = NodeRun::new("searcher").task(1);
    let mut found = String::new();
    found += &missing(node_output(&state, "planner"));
    found += &missing(can_execute(&state, "planner"));
    found += &missing(increment_execution_count(&mut state, "planner"));
    found += &missing(writes::update_task(&state, 1, [("status", "failed")]));
    found += &missing(writes::overall_progress(&state));
    found += &missing(Progress::of(&state));
    found += &missing(run.started(&state));
    found += &missing(NodeRun::new("planner").completed(&state, [run.output("x")]));
    found += &missing(run.failed(&state, run.error("x")));
    found += &missing(run.check(state.schema()));
    expect![[r#"
        outputs for reading the output of a node
        execution_counts for counting executions
        execution_counts for counting executions
        tasks for the progress of tasks
        tasks for the progress of tasks
        tasks for the progress of tasks
        current_node for tracking a node
        outputs for tracking a node
        errors for tracking a node
        current_node for tracking a node
    "#]]
    .assert_eq(&found);

    // Each key that tracking needs is found missing before anything runs.
    let needed = ["current_node", "outputs", "errors", "tasks", "current_task_id", "overall_progress"];
    for left_out in needed {
        let all = serde_json::to_value(tracking_keys(Schema::builder()).build().unwrap()).unwrap();
        let mut some = all;
        some["keys"].as_object_mut().unwrap().remove(left_out);
        let schema = Schema::from_json(&some.to_string(), &Handlers::new()).unwrap();
        assert_eq!(missing(run.check(&schema)), format!("{left_out} for tracking a node\n"));
    }
}

#[test]
fn tracking_keys_are_as_in_the_whole_state() {
    let whole = ResearchState::schema().unwrap();
    for key in tracking_keys(Schema::builder()).build().unwrap().keys() {
        let same = whole.key(key.name()).unwrap();
        assert_eq!((key.handler(), key.default()), (same.handler(), same.default()), "{}", key.name());
    }
    NodeRun::new("searcher").task(1).check(&whole).unwrap();
}

/// Counts that are none are errors, where a schema of one's own lets them in.
#[test]
fn counts_that_are_none() {
    let schema = Schema::builder().key::<Value>("execution_counts").key(keys::CURRENT_NODE).build().unwrap();
    for (counts, at) in [
        (json!({"planner": -1}), "$.planner"),
        (json!({"planner": 1.5}), "$.planner"),
        (json!({"planner": "1"}), "$.planner"),
        (json!("many"), "$"),
        (json!(3), "$"),
    ] {
        let mut state = State::with_values(&schema, json!({"execution_counts": counts})).unwrap();
        let before = state.clone();
        for error in [
            can_execute(&state, "planner").map(drop).unwrap_err(),
            increment_execution_count(&mut state, "planner").unwrap_err(),
        ] {
            assert!(
                matches!(&error, ProgressError::NoCount { path, .. } if path == at),
                "{}",
                report(&error)
            );
        }
        assert_eq!(state, before);
    }
    // A null beside a count is not an entry, and a list was never a map.
    let state = State::with_values(&schema, json!({"execution_counts": {"planner": null}})).unwrap();
    assert_eq!(executions(&state, "planner").unwrap(), 0);
    let list = State::with_values(&schema, json!({"execution_counts": [1]})).unwrap();
    assert!(executions(&list, "planner").is_err());
}

/// Whatever handlers a schema declares, or does not: tasks are merged by id, outputs are appended.
#[test]
fn handlers_of_ones_own() {
    let plain_lists = Schema::builder()
        .key::<Vec<Value>>("tasks")
        .key::<Vec<Value>>("outputs")
        .handler(Handler::replace_values())
        .key::<Vec<Value>>("errors")
        .handler(Handler::keep_last(1))
        .key(keys::CURRENT_NODE)
        .key(keys::CURRENT_TASK_ID)
        .key(keys::OVERALL_PROGRESS)
        .build()
        .unwrap();
    let open = Schema::builder().open().build().unwrap();
    for (schema, errors_kept) in [(plain_lists, 1), (open, 2)] {
        let mut state = State::with_values(&schema, json!({"tasks": [{"id": 1}, {"id": 2}]})).unwrap();
        for id in [1, 2] {
            let run = NodeRun::new("searcher").task(id);
            run.check(&schema).unwrap();
            run.fail(&mut state, run.error("not yet")).unwrap();
            run.start(&mut state).unwrap();
            run.complete(&mut state, [run.output(id)]).unwrap();
        }
        let completed = json!([{"id": 1, "status": "completed"}, {"id": 2, "status": "completed"}]);
        assert_eq!(state.get("tasks").unwrap(), completed);
        assert_eq!(state.get("overall_progress").unwrap(), 100);
        assert_eq!(state.get("outputs").unwrap().len(), Some(2));
        assert_eq!(state.get("errors").unwrap().len(), Some(errors_kept));
    }
}

#[test]
fn progress_for_people() {
    let mut state = two_tasks();
    state.set("tasks", json!({"id": 100, "status": "failed", "title": "ask"})).unwrap();
    let run = NodeRun::new("counter").task(2);
    run.start(&mut state).unwrap();
    run.complete(&mut state, None).unwrap();
    let progress = Progress::of(&state).unwrap();
    expect![[r#"
         33 % (1 of 3)
          1 pending   search
          2 completed
        100 failed    ask"#]]
    .assert_eq(&progress.to_string());
    assert_eq!((progress.current_task, progress.current_node.as_deref()), (Some(2), Some("counter")));
    let json = serde_json::to_string(&progress).unwrap();
    assert_eq!(serde_json::from_str::<Progress>(&json).unwrap(), progress);

    for none in [json!({}), json!({"tasks": null}), json!({"tasks": []})] {
        assert_eq!(Progress::of(&self::state(none)).unwrap().to_string(), "  0 % (0 of 0)");
    }
}

// ========== Futures ==========

/// The first poll only: what a timeout that strikes at once leaves behind.
fn drop_half_way(work: impl Future) {
    assert!(work.now_or_never().is_none());
}

fn statuses(state: &State) -> String {
    let progress = Progress::of(state).unwrap();
    let words: Vec<String> = progress.tasks.iter().map(|task| task.status.to_string()).collect();
    format!("{}, {} %", words.join(" "), progress.percentage)
}

#[tokio::test]
async fn tracked_work_that_ends_well() {
    let mut state = two_tasks();
    let run = NodeRun::new("searcher").task(1);
    let outputs = async {
        tokio::task::yield_now().await;
        Ok::<_, TrackError>(vec![run.output("one"), run.output("two")])
    };
    track(&mut state, &run, outputs).await.unwrap();
    assert_eq!(statuses(&state), "completed pending, 50 %");
    assert_eq!(state.get("overall_progress").unwrap(), 50);
    assert_eq!(state.get("outputs").unwrap().len(), Some(2));
}

#[tokio::test]
async fn tracked_work_that_does_not() {
    #[derive(Debug, thiserror::Error)]
    #[error("cannot search")]
    struct CannotSearch(#[source] std::io::Error);

    let mut state = two_tasks();
    let run = NodeRun::new("searcher").task(1);

    let refused = std::io::Error::other("connection refused");
    let failing = async { Err::<Option<NodeOutput>, _>(CannotSearch(refused)) };
    let error = track(&mut state, &run, failing).await.unwrap_err();
    assert!(matches!(&error, TrackError::Failed { source, .. } if source.is::<CannotSearch>()));
    assert_eq!(report(&error), r#"node "searcher" failed: cannot search: connection refused"#);

    let panicking = async {
        tokio::task::yield_now().await;
        assert!(run.task.is_none(), "the index is gone");
        Ok::<_, TrackError>(None)
    };
    let error = track(&mut state, &run, panicking).await.unwrap_err();
    assert!(matches!(&error, TrackError::Panicked { words, .. } if words == "the index is gone"));

    drop_half_way(track(&mut state, &run, pending::<Result<Option<NodeOutput>, TrackError>>()));

    assert_eq!(statuses(&state), "failed pending, 0 %");
    let messages: Vec<String> =
        state.get(keys::ERRORS).unwrap().unwrap().into_iter().map(|error| error.message).collect();
    expect![[r#"
        cannot search: connection refused
        panicked: the index is gone
        dropped before its end"#]]
    .assert_eq(&messages.join("\n"));
}

#[tokio::test]
async fn work_that_was_never_polled_was_never_begun() {
    let mut state = two_tasks();
    let before = state.clone();
    let run = NodeRun::new("searcher").task(1);
    drop(track(&mut state, &run, pending::<Result<Option<NodeOutput>, TrackError>>()));
    assert_eq!(state, before);
}

#[tokio::test]
async fn work_that_cannot_be_tracked_is_not_begun() {
    let mut begun = false;
    let mut state = State::new(&Schema::builder().key(keys::CURRENT_NODE).build().unwrap());
    let work = async {
        begun = true;
        Ok::<Option<NodeOutput>, TrackError>(None)
    };
    let error = track(&mut state, &NodeRun::new("searcher").task(1), work).await.unwrap_err();
    assert!(report(&error).starts_with(
        "node \"searcher\" not started: its run cannot be tracked: missing key \"outputs\"",
    ));
    assert!(
        matches!(error, TrackError::Untracked { source, .. } if matches!(*source, ProgressError::MissingKey { .. }))
    );
    assert!(!begun);
}

/// A place of one's own for the state, and a task of the runtime's for the work.
#[tokio::test]
async fn tracked_work_somewhere_else() {
    struct Published {
        state: State,
        seen: tokio::sync::mpsc::UnboundedSender<String>,
    }

    impl TrackTarget for Published {
        fn change(
            &mut self,
            change: &mut dyn FnMut(&mut State) -> Result<(), ProgressError>,
        ) -> Result<(), ProgressError> {
            change(&mut self.state)?;
            let _ = self.seen.send(statuses(&self.state));
            Ok(())
        }
    }

    let (seen, mut following) = tokio::sync::mpsc::unbounded_channel();
    let work = tokio::spawn(async move {
        let run = NodeRun::new("searcher").task(2);
        let target = Published { state: two_tasks(), seen };
        track(target, &run, async { Ok::<_, TrackError>([run.output("area 3")]) }).await
    });
    work.await.unwrap().unwrap();
    assert_eq!(following.recv().await.unwrap(), "pending running, 0 %");
    assert_eq!(following.recv().await.unwrap(), "pending completed, 50 %");
    assert!(following.recv().await.is_none());
}

/// Finished work is handed back when the state does not take it.
#[tokio::test]
async fn outputs_that_do_not_fit_come_back() {
    let schema = Schema::builder()
        .key(keys::CURRENT_NODE)
        .key(keys::CURRENT_TASK_ID)
        .key(keys::OVERALL_PROGRESS)
        .key(keys::TASKS)
        .key(keys::ERRORS)
        .key::<Vec<i64>>("outputs")
        .build()
        .unwrap();
    let mut state = State::with_values(&schema, json!({"tasks": [{"id": 1}]})).unwrap();
    let run = NodeRun::new("searcher").task(1);
    let work = async { Ok::<_, TrackError>([run.output("dear")]) };
    match track(&mut state, &run, work).await.unwrap_err() {
        TrackError::Unrecorded { outputs, .. } => assert_eq!(outputs, [run.output("dear")]),
        other => panic!("{}", report(&other)),
    }
    assert_eq!(statuses(&state), "failed, 0 %");
    let errors = state.get(keys::ERRORS).unwrap().unwrap();
    assert!(
        errors[0].message.starts_with("invalid outputs: invalid value for key \"outputs\""),
        "{errors:?}"
    );
}

/// A handler of one's own that panics takes neither the process nor the promise along: not when the work fails,
/// not when it is dropped, not while another panic is under way. A mutex that was poisoned by it is still good.
#[tokio::test]
async fn errors_that_cannot_be_noted() {
    fn shared_state() -> Arc<Mutex<State>> {
        let explode = Handler::custom("explode", |_, _| panic!("the handler has a fault"));
        let schema = Schema::builder()
            .key(keys::CURRENT_NODE)
            .key(keys::CURRENT_TASK_ID)
            .key(keys::OVERALL_PROGRESS)
            .key(keys::TASKS)
            .key(keys::OUTPUTS)
            .handler(explode.clone())
            .key(keys::ERRORS)
            .handler(explode)
            .build()
            .unwrap();
        let state = State::with_values(&schema, json!({"tasks": [{"id": 1}]})).unwrap();
        Arc::new(Mutex::new(state))
    }
    let left_behind =
        |shared: &Mutex<State>| statuses(&shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let run = NodeRun::new("searcher").task(1);

    let shared = shared_state();
    let failing = async { Err::<Option<NodeOutput>, _>("no luck") };
    let error = track(&*shared, &run, failing).await.unwrap_err();
    assert_eq!(report(&error), r#"node "searcher" failed: no luck"#);
    assert_eq!(left_behind(&shared), "failed, 0 %");

    let shared = shared_state();
    drop_half_way(track(&*shared, &run, pending::<Result<Option<NodeOutput>, TrackError>>()));
    assert_eq!(left_behind(&shared), "failed, 0 %");

    let shared = shared_state();
    let good = async { Ok::<_, TrackError>([run.output("dear")]) };
    let panic = std::panic::AssertUnwindSafe(track(&*shared, &run, good)).catch_unwind().await;
    assert!(panic.is_err(), "the handler's panic is its author's to see");
    assert_eq!(left_behind(&shared), "failed, 0 %");
}

/// Many at work on one state, each of which waits for all the others: none loses another's task.
#[test]
fn workers_that_share_a_state() {
    const WORKERS: i64 = 20;
    let tasks = Some((1..=WORKERS).map(Task::new).collect());
    let research = ResearchState { tasks, ..ResearchState::new("research") };
    let shared = Arc::new(Mutex::new(research.to_state().unwrap()));
    let all_run = tokio::sync::Barrier::new(usize::try_from(WORKERS).unwrap());
    let worker = &|id: i64| {
        let run = NodeRun::new(format!("searcher {id}")).task(id);
        let work = async {
            all_run.wait().await;
            if id % 4 == 0 { Err("no luck") } else { Ok([run.output(id)]) }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let result = runtime.block_on(track(Arc::clone(&shared), &run, work));
        assert_eq!(result.is_err(), id % 4 == 0);
    };
    std::thread::scope(|threads| {
        for id in 1..=WORKERS {
            threads.spawn(move || worker(id));
        }
    });
    let state = shared.lock().unwrap();
    let progress = Progress::of(&state).unwrap();
    assert_eq!((progress.percentage, progress.completed), (75, 15));
    assert_eq!(state.get("overall_progress").unwrap(), 75);
    assert_eq!(
        (state.get("outputs").unwrap().len(), state.get("errors").unwrap().len()),
        (Some(15), Some(5))
    );
    assert!(
        progress
            .tasks
            .iter()
            .all(|task| task.status
                == if task.id % 4 == 0 { TaskStatus::Failed } else { TaskStatus::Completed })
    );
}

// ========== What holds for all ==========

fn status() -> impl Strategy<Value = Option<TaskStatus>> {
    prop_oneof![
        Just(None),
        Just(Some(TaskStatus::Pending)),
        Just(Some(TaskStatus::Running)),
        Just(Some(TaskStatus::Completed)),
        Just(Some(TaskStatus::Failed)),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Fields that no declared one is called: theirs have a capital.
fn extras() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("[A-Z][a-z]{0,3}", json_value(), 0..3)
        .prop_map(|fields| fields.into_iter().collect())
}

/// Tasks with ids that differ.
fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let task = (prop::option::of(".{0,8}"), status(), prop::option::of(json_value()), extras());
    prop::collection::vec(task, 0..12).prop_map(|tasks| {
        let numbered = tasks.into_iter().zip(1..);
        let task =
            |((title, status, output, extras), id)| Task { id, title, status, output, error: None, extras };
        numbered.map(task).collect()
    })
}

fn outputs() -> impl Strategy<Value = Vec<NodeOutput>> {
    let output =
        ("[a-c]", prop::option::of("[a-z]{1,4}"), prop::option::of(any::<i64>()), json_value(), extras());
    prop::collection::vec(
        output.prop_map(|(node, kind, task_id, content, extras)| NodeOutput {
            node,
            kind,
            task_id,
            content,
            extras,
        }),
        0..4,
    )
}

fn counts() -> impl Strategy<Value = Option<BTreeMap<String, u64>>> {
    prop::option::of(prop::collection::btree_map("[a-c]", any::<u64>(), 0..3))
}

fn research() -> impl Strategy<Value = ResearchState> {
    let object = || prop::option::of(extras());
    let text = || prop::option::of(".{0,8}");
    let words = (text(), text(), text(), text(), text());
    let lists =
        (outputs(), prop::option::of(tasks()), prop::collection::vec(("[a-c]", ".{0,8}", extras()), 0..3));
    let figures = (prop::option::of(any::<i64>()), prop::option::of(0..=100_u8), counts(), counts());
    let choices = (
        any::<Option<bool>>(),
        0..3_usize,
        prop::option::of(("[a-c]", prop::collection::vec("[a-c]", 0..3))),
    );
    let objects = (object(), object(), object(), object());
    let talk = (prop::collection::vec(".{0,8}", 0..3), prop::collection::vec(".{0,8}", 0..3));
    (words, lists, figures, choices, objects, talk).prop_map(
        |(words, lists, figures, choices, objects, talk)| {
            let messages =
                |texts: Vec<String>| texts.iter().map(|text| Message::user(text.as_str())).collect();
            let error = |(node, message, extras)| NodeErrorRecord { node, message, task_id: None, extras };
            ResearchState {
                graph_type: "research".to_owned(),
                query: words.0,
                session_id: words.1,
                user_id: words.2,
                messages: messages(talk.0),
                history: messages(talk.1),
                model_id: words.3,
                params: objects.0,
                outputs: lists.0,
                tasks: lists.1,
                current_task_id: figures.0,
                overall_progress: figures.1,
                mode: [None, Some(Mode::Deep), Some(Mode::React)][choices.1],
                auto: choices.0,
                current_node: words.4,
                errors: lists.2.into_iter().map(error).collect(),
                execution_counts: figures.2,
                max_executions: figures.3,
                router_decision: choices
                    .2
                    .map(|(node, targets)| RouterDecision::new(node, targets).reason("so")),
                user_preferences: objects.1,
                output_format: [None, Some(OutputFormat::Pdf), Some(OutputFormat::Html)][choices.1],
                research_depth: [None, Some(ResearchDepth::Medium), Some(ResearchDepth::Deep)][choices.1],
                custom_data: objects.2,
                stats: objects.3,
            }
        },
    )
}

/// How a worker's run ends.
#[derive(Clone, Debug)]
enum End {
    Completed,
    Failed,
    Open,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Completed), Just(End::Failed), Just(End::Open)]
}

/// What a worker on its own task writes, as it sees the state that all began with.
fn delta_of(state: &State, id: i64, end: &End) -> Delta {
    let run = NodeRun::new(format!("worker {id}")).task(id);
    match end {
        End::Completed => run.completed(state, [run.output(id)]),
        End::Failed => run.failed(state, run.error(id)),
        End::Open => run.started(state),
    }
    .unwrap()
}

/// Folds the deltas in this order, then computes the percentage.
fn folded(state: &State, deltas: &[&Delta]) -> State {
    let mut state = state.clone();
    for delta in deltas {
        state.apply(delta).unwrap();
    }
    state.apply(&writes::overall_progress(&state).unwrap()).unwrap();
    state
}

/// The items of a list key, in an order that does not depend on that of the writes.
fn bag(state: &State, key: &str) -> Vec<String> {
    let mut items: Vec<String> = state.get(key).unwrap().items().map(Value::to_string).collect();
    items.sort_unstable();
    items
}

proptest! {
    /// One more completed task never takes the percentage down, and it stays within its bounds.
    #[test]
    fn progress_grows_with_what_is_completed(tasks in tasks(), pick in any::<prop::sample::Index>()) {
        let before = progress(&tasks);
        let completed = tasks.iter().filter(|task| task.status == Some(TaskStatus::Completed)).count();
        prop_assert!(before <= 100);
        prop_assert_eq!(before == 100, !tasks.is_empty() && completed == tasks.len());
        if !tasks.is_empty() {
            let id = tasks[pick.index(tasks.len())].id;
            let after = progress(&update_task(&tasks, id, |task| task.status = Some(TaskStatus::Completed)));
            prop_assert!(before <= after && after <= 100);
        }
    }

    /// The list, the view and the state say the same percentage.
    #[test]
    fn one_percentage(tasks in tasks()) {
        let research = ResearchState { tasks: Some(tasks.clone()), ..ResearchState::new("research") };
        let mut state = research.to_state().unwrap();
        state.apply(&writes::overall_progress(&state).unwrap()).unwrap();
        prop_assert_eq!(Progress::of(&state).unwrap().percentage, progress(&tasks));
        prop_assert_eq!(state.get(keys::OVERALL_PROGRESS).unwrap(), Some(progress(&tasks)));
    }

    #[test]
    fn an_unknown_task_changes_nothing(tasks in tasks(), id in 100_i64..) {
        prop_assert_eq!(&update_task(&tasks, id, |task| *task = Task::new(0)), &tasks);
        let research = ResearchState { tasks: Some(tasks), ..ResearchState::new("research") };
        let state = research.to_state().unwrap();
        prop_assert!(writes::update_task(&state, id, [("status", "failed")]).unwrap().is_empty());
    }

    /// What workers write to their own tasks, seen from the same state, folds to the same in any order, and to
    /// what each alone would have made of its own task.
    #[test]
    fn workers_in_any_order_lose_nothing(
        tasks in tasks().prop_filter("there are tasks", |tasks| !tasks.is_empty()),
        ends in prop::collection::vec(end(), 12),
        order in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let research = ResearchState { tasks: Some(tasks.clone()), ..ResearchState::new("research") };
        let state = research.to_state().unwrap();
        let deltas: Vec<Delta> =
            tasks.iter().zip(&ends).map(|(task, end)| delta_of(&state, task.id, end)).collect();
        let declared: Vec<&Delta> = deltas.iter().collect();
        let shuffled: Vec<&Delta> = order.iter().filter_map(|index| deltas.get(*index)).collect();
        let (one, other) = (folded(&state, &declared), folded(&state, &shuffled));

        for key in ["tasks", "overall_progress"] {
            prop_assert_eq!(one.get(key), other.get(key));
        }
        for key in ["outputs", "errors"] {
            prop_assert_eq!(bag(&one, key), bag(&other, key));
        }
        let result: ResearchState = one.decode().unwrap();
        for ((task, end), delta) in tasks.iter().zip(&ends).zip(&deltas) {
            let alone: ResearchState = folded(&state, &[delta]).decode().unwrap();
            let of = |research: &ResearchState| {
                research.tasks.iter().flatten().find(|known| known.id == task.id).cloned()
            };
            prop_assert_eq!(of(&result), of(&alone));
            let given = result.outputs.iter().filter(|output| output.task_id == Some(task.id)).count();
            let failed = result.errors.iter().filter(|error| error.task_id == Some(task.id)).count();
            let expected = match end {
                End::Completed => (1, 0),
                End::Failed => (0, 1),
                End::Open => (0, 0),
            };
            prop_assert_eq!((given, failed), expected);
        }
    }

    /// In place and by deltas is the same.
    #[test]
    fn two_forms_of_one_thing(tasks in tasks(), end in end()) {
        let research = ResearchState { tasks: Some(tasks.clone()), ..ResearchState::new("research") };
        let state = research.to_state().unwrap();
        for task in &tasks {
            let run = NodeRun::new(format!("worker {}", task.id)).task(task.id);
            let mut in_place = state.clone();
            match end {
                End::Completed => run.complete(&mut in_place, [run.output(task.id)]),
                End::Failed => run.fail(&mut in_place, run.error(task.id)),
                End::Open => run.start(&mut in_place),
            }
            .unwrap();
            prop_assert_eq!(in_place, folded(&state, &[&delta_of(&state, task.id, &end)]));
        }
    }

    #[test]
    fn the_state_survives_json(research in research()) {
        let state = research.to_state().unwrap();
        let json = serde_json::to_string(&state).unwrap();
        let read = State::from_json(&ResearchState::schema().unwrap(), &json).unwrap();
        prop_assert_eq!(&read, &state);
        prop_assert_eq!(read.decode::<ResearchState>().unwrap(), research);
    }
}

/// A value that is not among a few words is answered with all of them.
#[test]
fn a_wrong_word_is_answered_with_the_right_ones() {
    let mut state = State::new(&ResearchState::schema().unwrap());
    let mut check = |key: &str, value: Value, expected: &str| {
        let error = state.set(key, value).unwrap_err().to_string();
        assert!(error.contains(expected), "{key}: {error}");
    };
    check("mode", json!("deeep"), r#"expected one of "deep", "react", null at $"#);
    check("research_depth", json!("deeper"), r#"expected one of "shallow", "medium", "deep", null at $"#);
    check("output_format", json!("docx"), r#"expected one of "markdown", "pdf""#);
}
