//! Graphs at the boundary of the crate: each test is named after what it shows.
//!
//! Nodes and edges and an input go in; out come the supersteps, what failed, the conversation, why the run ended, the
//! state and what is open. On the way holds what holds of every run: the state is a fold over the record, the
//! record replays, and what is stored is read back as it was. Nothing here sleeps: time is paused.

pub(crate) mod kit;

mod joins;
mod ways;

mod failures;
mod limits;

mod agents;
mod asks;
mod finished_work;
mod interruptions;
mod nested;

mod outputs;
mod replay;
mod research;
mod traces;
mod turns;

mod build;
mod drawings;
mod golden;

use expect_test::Expect;
use stepfold_agent_loop::Input;
use stepfold_graph::GraphBuilder;

use self::kit::walk;

/// Runs a graph on an input and compares the complete result.
async fn check(graph: GraphBuilder, input: impl Into<Input>, expected: Expect) {
    let graph = graph.build().unwrap();
    expected.assert_eq(&walk(&graph, input).await.text());
}
