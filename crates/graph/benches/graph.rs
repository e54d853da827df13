//! What a graph adds to its nodes: nodes that do nothing, one after the other and side by side, no store.
//!
//! `chain` and `fan_out` divide by the number of nodes and of branches, as their counter shows. Before the
//! measurements, the bytes of the events of single supersteps are printed: they do not grow.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop")]
#![allow(clippy::print_stdout, reason = "the bytes are printed beside the times")]

use divan::Bencher;
use divan::counter::ItemsCount;
use serde_json::json;
use stepfold_agent_loop::state_core::state::{Schema, SchemaBuilder};
use stepfold_agent_loop::{Event, Exit, Input, Run, RunEvent};
use stepfold_graph::progress::keys::EXECUTION_COUNTS;
use stepfold_graph::{Graph, GraphBuilder, Node, NodeContext, NodeError, START};
use tokio::runtime::Runtime;

fn main() {
    print_bytes();
    divan::main();
}

async fn nothing(_: NodeContext) -> Result<(), NodeError> {
    Ok(())
}

fn graph(schema: SchemaBuilder) -> GraphBuilder {
    Graph::builder("bench").schema(schema.build().unwrap()).max_steps(u64::MAX)
}

/// So many nodes, one after the other.
fn chain(schema: SchemaBuilder, nodes: usize) -> Graph {
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number}")).collect();
    let graph = names.iter().fold(graph(schema), |graph, name| graph.node(name, nothing));
    let way: Vec<&str> = std::iter::once(START).chain(names.iter().map(String::as_str)).collect();
    graph.chain(way).build().unwrap()
}

/// One node, over and over again.
fn circle(schema: SchemaBuilder, times: u64) -> Graph {
    let node = Node::new(nothing).max_executions(times);
    graph(schema).node("node", node).edge(START, "node").edge("node", "node").build().unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn finish(runtime: &Runtime, run: Run, steps: u64) -> Run {
    let outcome = runtime.block_on(async { run.resume().await }).unwrap();
    assert_eq!((outcome.exit().is_limit() || *outcome.exit() == Exit::End, outcome.steps()), (true, steps));
    outcome.into_run()
}

#[divan::bench(args = [1, 10, 100, 1_000])]
fn nodes_in_a_chain(bencher: Bencher<'_, '_>, nodes: usize) {
    let (runtime, graph) = (runtime(), chain(Schema::builder(), nodes));
    bencher
        .counter(ItemsCount::new(nodes))
        .with_inputs(|| Run::new(graph.agent(), "go", "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run, nodes as u64));
}

#[divan::bench(args = [100, 1_000])]
fn nodes_in_a_chain_that_are_counted(bencher: Bencher<'_, '_>, nodes: usize) {
    let (runtime, graph) = (runtime(), chain(Schema::builder().key(EXECUTION_COUNTS), nodes));
    bencher
        .counter(ItemsCount::new(nodes))
        .with_inputs(|| Run::new(graph.agent(), "go", "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run, nodes as u64));
}

#[divan::bench(args = [100, 10_000])]
fn supersteps_of_one_node(bencher: Bencher<'_, '_>, times: u64) {
    let (runtime, graph) = (runtime(), circle(Schema::builder(), times));
    bencher
        .counter(ItemsCount::new(times))
        .with_inputs(|| Run::new(graph.agent(), "go", "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run, times));
}

#[divan::bench(args = [10, 100, 1_000, 4_000])]
fn branches_of_a_fan_out(bencher: Bencher<'_, '_>, branches: usize) {
    let runtime = runtime();
    let graph = graph(Schema::builder().key::<Vec<u64>>("items"))
        .node("each", nothing)
        .fan_out(START, "each", "items")
        .build()
        .unwrap();
    let items: Vec<u64> = (0..branches as u64).collect();
    let input = Input::new().with_values(json!({"items": items}));
    bencher
        .counter(ItemsCount::new(branches))
        .with_inputs(|| Run::new(graph.agent(), input.clone(), "bench").unwrap())
        .bench_local_values(|run| finish(&runtime, run, 1));
}

/// The bytes of the events of these supersteps, as a store gets them, for nodes with names of one length.
fn print_bytes() {
    const STEPS: [u64; 3] = [1, 10, 100];
    let counted = || Schema::builder().key(EXECUTION_COUNTS);
    println!("bytes of the events of a superstep | 1 | 10 | 100");
    let graphs = [
        ("a chain of 100 nodes", chain(Schema::builder(), 100)),
        ("the same, with execution_counts", chain(counted(), 100)),
        ("one node 100 times", circle(Schema::builder(), 100)),
        ("the same, with execution_counts", circle(counted(), 100)),
    ];
    for (name, graph) in graphs {
        let mut seen: Vec<RunEvent> = Vec::new();
        let run = Run::new(graph.agent(), "go", "bench").unwrap();
        runtime().block_on(async { run.resume().observe(&mut seen).await }).unwrap();
        let events: Vec<&Event> = seen.iter().filter_map(RunEvent::committed).collect();
        // When it happened takes as many bytes as the number has digits.
        let bytes = |event: &Event| {
            let mut event = event.clone();
            event.elapsed = std::time::Duration::ZERO;
            serde_json::to_string(&event).unwrap().len()
        };
        let of_step = |step: u64| {
            let events = events.iter().filter(|event| event.step == step && event.name() != "began");
            events.filter(|event| !is_end(event)).map(|event| bytes(event)).sum::<usize>()
        };
        println!("{name} | {}", STEPS.map(|step| of_step(step).to_string()).join(" | "));
    }
}

fn is_end(event: &Event) -> bool {
    matches!(&event.kind, stepfold_agent_loop::EventKind::Planned { exit: Some(_), .. })
}
