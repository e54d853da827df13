//! Every message of the crate's errors, in one list. The faults of a graph that is built stand in full in `graph::build`.

use std::fmt::Display;

use expect_test::expect_file;
use stepfold_agent_loop::state_core::state::{Schema, State, StateError};
use stepfold_graph::progress::{NodeRun, ProgressError, TrackError, increment_execution_count, track};
use stepfold_graph::{Node, NodeError, START};

use crate::graph::kit::{graph, note};

/// A list of messages under headings.
#[derive(Default)]
struct List(String);

impl List {
    fn part(&mut self, heading: &str, messages: impl IntoIterator<Item = impl Display>) {
        self.0.extend(["# ", heading, "\n"]);
        for message in messages {
            self.0.extend([message.to_string().as_str(), "\n"]);
        }
        self.0.push('\n');
    }
}

#[tokio::test]
async fn every_error_message() {
    let mut list = List::default();
    list.part("ProgressError", progress_errors());
    list.part("TrackError", track_errors().await);
    list.part("NodeError", node_errors());
    list.part("AgentError of a graph", faults());
    expect_file!["messages.txt"].assert_eq(&list.0);
}

fn state(schema: stepfold_agent_loop::state_core::state::SchemaBuilder) -> State {
    State::new(&schema.build().unwrap())
}

fn progress_errors() -> Vec<ProgressError> {
    let mut untracked = state(Schema::builder().key::<String>("question"));
    let mut miscounted = state(Schema::builder().open());
    miscounted.set("execution_counts", serde_json::json!({"searcher": "two"})).unwrap();
    vec![
        increment_execution_count(&mut untracked, "searcher").unwrap_err(),
        increment_execution_count(&mut miscounted, "searcher").unwrap_err(),
        ProgressError::NoSuchTask {
            node: "searcher".to_owned(),
            task: 3,
            known: ["1", "2"].into_iter().collect(),
        },
        ProgressError::State(StateError::MessagesAreEvents),
    ]
}

async fn track_errors() -> Vec<TrackError> {
    let run = NodeRun::new("searcher");
    let mut untracked = state(Schema::builder().key::<String>("question"));
    let mut open = state(Schema::builder().open());
    let mut numbers = state(Schema::builder().key::<Vec<u64>>("outputs").open());
    vec![
        track(&mut untracked, &run, async { Ok::<_, TrackError>([run.output("x")]) }).await.unwrap_err(),
        track(&mut open, &run, async { Err::<[_; 0], _>("no such area") }).await.unwrap_err(),
        track(&mut open, &run, async { panics() }).await.unwrap_err(),
        track(&mut numbers, &run, async { Ok::<_, TrackError>([run.output("x")]) }).await.unwrap_err(),
    ]
}

fn panics() -> Result<[stepfold_graph::progress::NodeOutput; 0], TrackError> {
    panic!("index out of bounds")
}

fn node_errors() -> Vec<NodeError> {
    vec![
        NodeError::new("connection refused"),
        NodeError::permanent("the number is empty"),
        NodeError::from(std::io::Error::other("no disk")),
    ]
}

fn faults() -> Vec<String> {
    let graphs = [
        graph().node("a", note),
        graph().node("a", note).edge(START, "b"),
        graph().node("a", Node::new(note).max_executions(0)).edge(START, "a"),
        graph().node("a", note).node("b", note).edge(START, "a"),
        graph().node("a", note).fan_out(START, "a", "itmes"),
        graph().node("a", note).edge(START, "a").route("a", Vec::<String>::new(), |_| "a"),
    ];
    graphs.into_iter().map(|graph| graph.build().unwrap_err().to_string()).collect()
}
