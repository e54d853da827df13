//! The state of a research: tracked nodes, progress, and the mode.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::State;
use stepfold_agent_loop::{Agent, Input};
use stepfold_graph::progress::keys::{EXECUTION_COUNTS, MODE, OVERALL_PROGRESS, TASKS};
use stepfold_graph::progress::{Mode, ResearchState, Task, TaskStatus};
use stepfold_graph::{
    AgentNode, END, Graph, GraphBuilder, Node, NodeContext, NodeError, RouteChoice, START, Update,
};

use super::kit::{sorted_text, values, walk};
use crate::loop_kit::{agent, outcome_of, script};

fn research() -> GraphBuilder {
    Graph::builder("research").schema(ResearchState::schema().unwrap())
}

/// These keys of the state, a line each.
fn kept(state: &State, keys: &[&str]) -> String {
    let line = |key: &&str| match state.get(*key) {
        Some(value) => format!("{key}: {}\n", sorted_text(value.to_json())),
        None => format!("{key}: -\n"),
    };
    keys.iter().map(line).collect()
}

const TRACKED: &[&str] = &[
    "tasks",
    "outputs",
    "errors",
    "overall_progress",
    "current_node",
    "current_task_id",
    "execution_counts",
];

/// Works at its task, or fails at task 2.
async fn search(node: NodeContext) -> Result<Update, NodeError> {
    let task: Task = node.item_as()?;
    match task.id {
        2 => Err(NodeError::new("the line is down")),
        3 => panic!("not this one"),
        id => Ok(Update::new().result(format!("found {id}"))),
    }
}

/// Completed with its output, failed with its error, whatever happens inside; the graph continues.
#[tokio::test]
async fn tracked() {
    let graph = research()
        .node("search", Node::new(search).tracked())
        .node("report", |node: NodeContext| async move {
            let progress = node.get(OVERALL_PROGRESS)?.unwrap_or_default();
            Ok::<_, NodeError>(Update::new().say(format!("{progress} %")))
        })
        .fan_out(START, "search", "tasks")
        .edge("search", "report")
        .build()
        .unwrap();
    let tasks = json!([{"id": 1}, {"id": 2, "title": "two"}, {"id": 3}, {"id": 4}]);
    let walked = walk(&graph, values(json!({"tasks": tasks}))).await;
    let outcome = outcome_of(&walked.ended);
    expect![[r#"
        1: search({"id":1}), search({"id":2,"title":"two"}), search({"id":3}), search({"id":4})
           1 Failed (1): the line is down
           2 Failed (1): node panicked: not this one
        2: report
        --
        assistant: 50 %
        tasks: [{"id":1,"status":"completed"},{"id":2,"status":"failed","title":"two"},{"id":3,"status":"failed"},{"id":4,"status":"completed"}]
        outputs: [{"content":"found 1","node":"search","task_id":1},{"content":"found 4","node":"search","task_id":4}]
        errors: [{"message":"the line is down","node":"search","task_id":2},{"message":"node panicked: not this one","node":"search","task_id":3}]
        overall_progress: 50
        current_node: "report"
        current_task_id: 4
        execution_counts: {"report":1,"search":1}
    "#]].assert_eq(&(walked.steps() + &outcome.transcript().to_string() + &kept(outcome.state(), TRACKED)));
}

/// The integer progress: 29 of 50 are 58.
#[tokio::test]
async fn fifty_tasks() {
    async fn work(node: NodeContext) -> Result<(), NodeError> {
        let task: Task = node.item_as()?;
        if task.id < 29 { Ok(()) } else { Err(NodeError::new("no")) }
    }
    let graph =
        research().node("work", Node::new(work).tracked()).fan_out(START, "work", "tasks").build().unwrap();
    let tasks: Vec<Value> = (0..50).map(|id| json!({"id": id})).collect();
    let walked = walk(&graph, values(json!({"tasks": tasks}))).await;
    let state = outcome_of(&walked.ended).state();
    assert_eq!(state.get(OVERALL_PROGRESS).unwrap(), Some(58));
    let tasks = state.get(TASKS).unwrap().unwrap();
    let completed = tasks.iter().filter(|task| task.status == Some(TaskStatus::Completed)).count();
    assert_eq!((completed, tasks.len()), (29, 50));
}

/// Two workers at a time write fields of their own to the tasks; nothing is lost.
#[tokio::test]
async fn parallel_workers_lose_nothing() {
    let writes = |field: &'static str| {
        move |_: NodeContext| async move {
            let all: Vec<Value> = (1..=3).map(|id| json!({"id": id, field: id * 10})).collect();
            Ok::<_, NodeError>(Update::new().set("tasks", Value::Array(all)))
        }
    };
    let graph = research()
        .node("left", writes("left"))
        .node("right", writes("right"))
        .edge(START, "left")
        .edge(START, "right")
        .build()
        .unwrap();
    let walked =
        walk(&graph, values(json!({"tasks": [{"id": 1, "title": "one"}, {"id": 2}, {"id": 3}]}))).await;
    expect![[r#"
        tasks: [{"id":1,"left":10,"right":10,"title":"one"},{"id":2,"left":20,"right":20},{"id":3,"left":30,"right":30}]
    "#]].assert_eq(&kept(outcome_of(&walked.ended).state(), &["tasks"]));
}

/// Without an item the current task is worked at; without one there is no task.
#[tokio::test]
async fn the_current_task() {
    let graph = research()
        .node(
            "work",
            Node::new(|_: NodeContext| async { Ok::<_, NodeError>(Update::new().output("note", "x")) })
                .tracked(),
        )
        .edge(START, "work")
        .build()
        .unwrap();
    let mut text = String::new();
    for input in [
        json!({"current_task_id": 2, "tasks": [{"id": 1}, {"id": 2}]}),
        json!({"tasks": [{"id": 1}]}),
        json!({}),
        json!({"current_task_id": 7, "tasks": [{"id": 1}]}),
    ] {
        let walked = walk(&graph, values(input)).await;
        if let Err(error) = &walked.ended {
            text.push_str(&crate::loop_kit::chain(error));
            text.push('\n');
        }
        text.push_str(&kept(outcome_of(&walked.ended).state(), &["tasks", "outputs", "overall_progress"]));
        text.push_str("--\n");
    }
    expect![[r#"
        tasks: [{"id":1},{"id":2,"status":"completed"}]
        outputs: [{"content":"x","kind":"note","node":"work","task_id":2}]
        overall_progress: 50
        --
        tasks: [{"id":1}]
        outputs: [{"content":"x","kind":"note","node":"work"}]
        overall_progress: 0
        --
        tasks: -
        outputs: [{"content":"x","kind":"note","node":"work"}]
        overall_progress: 0
        --
        run 'run' failed after step 0: run could not continue: tasks of the graph could not be tracked: unknown task 7 of node "work"; known tasks: 1
        tasks: [{"id":1}]
        outputs: []
        overall_progress: -
        --
    "#]].assert_eq(&text);
}

/// What a tracked node wrote does not merge: its task has failed.
#[tokio::test]
async fn a_tracked_node_that_does_not_merge() {
    let spoil = |_: NodeContext| async {
        Ok::<_, NodeError>(Update::new().set("tasks", json!([{"title": "no id"}])).result("never"))
    };
    let graph = research().node("spoil", Node::new(spoil).tracked()).edge(START, "spoil").build().unwrap();
    let walked = walk(&graph, values(json!({"current_task_id": 1, "tasks": [{"id": 1}]}))).await;
    expect![[r#"
        1: spoil
           0 Failed (1): handler upsert_by(id) failed for key "tasks": expected an object with field "id" for new item 0
        --
        tasks: [{"id":1,"status":"failed"}]
        outputs: []
        errors: [{"message":"handler upsert_by(id) failed for key \"tasks\": expected an object with field \"id\" for new item 0","node":"spoil","task_id":1}]
        overall_progress: 0
        current_node: "spoil"
        current_task_id: 1
        execution_counts: {"spoil":1}
    "#]].assert_eq(&(walked.steps() + &kept(outcome_of(&walked.ended).state(), TRACKED)));
}

/// Agents that work at tasks: the answer is the output of the task.
#[tokio::test]
async fn agents_at_tasks() {
    let finder = Agent::builder(script("assistant: found it")).build().unwrap();
    let node = Node::agent(AgentNode::new(finder).asks("look for {item.title}")).tracked();
    let graph = research().node("find", node).fan_out(START, "find", "tasks").build().unwrap();
    let tasks = json!([{"id": 1, "title": "x"}, {"id": 2, "title": "y"}]);
    let walked = walk(&graph, values(json!({"tasks": tasks}))).await;
    expect![[r#"
        tasks: [{"id":1,"status":"completed","title":"x"},{"id":2,"status":"completed","title":"y"}]
        outputs: [{"content":"found it","node":"find","task_id":1},{"content":"found it","node":"find","task_id":2}]
        errors: []
        overall_progress: 100
        current_node: "find"
        current_task_id: 2
        execution_counts: {"find":1}
    "#]].assert_eq(&kept(outcome_of(&walked.ended).state(), TRACKED));
}

/// `mode` chooses the deep graph or the plain loop.
#[tokio::test]
async fn the_mode() {
    let deep = research()
        .node("plan", |_: NodeContext| async {
            Ok::<_, NodeError>(Update::new().set("tasks", json!([{"id": 1}])))
        })
        .node("search", Node::new(search).tracked())
        .node("write", |node: NodeContext| async move {
            let tasks = node.get(TASKS)?.unwrap_or_default().len();
            Ok::<_, NodeError>(Update::new().say(format!("a report on {tasks} task")))
        })
        .edge(START, "plan")
        .fan_out("plan", "search", "tasks")
        .chain(["search", "write"])
        .build()
        .unwrap();
    let graph = research()
        .node("deep", deep)
        .node("react", agent("assistant: > c1 search(q=\"x\")\nassistant: area 3").build().unwrap())
        .route(START, ["deep", "react"], |state| match state.get(MODE) {
            Ok(Some(Mode::Deep)) => RouteChoice::of("deep").because("the mode is deep"),
            _ => RouteChoice::of("react"),
        })
        .edge("deep", END)
        .build()
        .unwrap();
    let mut text = String::new();
    for input in [json!({"mode": "deep"}), json!({"mode": "react"}), json!({})] {
        let walked = walk(&graph, Input::from("where?").with_values(input)).await;
        let outcome = outcome_of(&walked.ended);
        text.push_str(&walked.steps());
        text.push_str(&outcome.transcript().to_string());
        let keys = ["router_decision", "tasks", "outputs", "overall_progress", "execution_counts"];
        text.push_str(&kept(outcome.state(), &keys));
        text.push_str("==\n");
    }
    expect![[r#"
           __start__ -> deep, the mode is deep
        1: deep
        --
        user:      where?
        assistant: a report on 1 task
        router_decision: {"node":"__start__","reason":"the mode is deep","targets":["deep"]}
        tasks: [{"id":1,"status":"completed"}]
        outputs: [{"content":"found 1","node":"search","task_id":1}]
        overall_progress: 100
        execution_counts: {"deep":1}
        ==
           __start__ -> react
        1: react
        --
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
        assistant: area 3
        router_decision: {"node":"__start__","targets":["react"]}
        tasks: -
        outputs: []
        overall_progress: -
        execution_counts: {"react":1}
        ==
           __start__ -> react
        1: react
        --
        user:      where?
        assistant: > c1 search(q="x")
        tool c1:   [3, 4]
        assistant: area 3
        router_decision: {"node":"__start__","targets":["react"]}
        tasks: -
        outputs: []
        overall_progress: -
        execution_counts: {"react":1}
        ==
    "#]]
    .assert_eq(&text);
}

/// The counts are those of the run, and of no run before it.
#[tokio::test]
async fn counts_are_those_of_the_run() {
    async fn nothing(_: NodeContext) -> Result<(), NodeError> {
        Ok(())
    }
    let graph = research()
        .node("a", nothing)
        .node("b", nothing)
        .edge(START, "a")
        .edge(START, "b")
        .edge("a", "b")
        .build()
        .unwrap();
    let input = values(json!({"execution_counts": {"a": 7, "old": 3}}));
    let walked = walk(&graph, input).await;
    let state = outcome_of(&walked.ended).state();
    let counts = state.get(EXECUTION_COUNTS).unwrap().unwrap();
    assert_eq!(json!(counts), json!({"a": 1, "b": 2}));
}
