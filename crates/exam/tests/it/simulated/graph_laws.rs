//! Generated graphs, ended everywhere; and what holds for all graphs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{
    Agent, ApprovalRequest, Decision, EventKind, Exit, Input, Outcome, Recording, Run, RunError, RunEvent,
};
use stepfold_exam::{Executions, SimulationReport, Simulator};
use stepfold_graph::progress::{ResearchState, Task, TaskStatus, keys};
use stepfold_graph::{AgentNode, END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::CancellationToken;
use tokio::sync::oneshot;

use super::graph_plans::{self, GraphPlan};
use super::laws::Cancels;
use super::{agents, block_on, config, edited, graphs, kind};

fn simulate(plan: &GraphPlan) -> Result<SimulationReport, String> {
    let executions = Executions::new();
    let graph = graphs::graph(plan, &executions);
    let seed = plan.seed;
    let simulator = Simulator::new(graph.agent())
        .counting(&executions)
        .deciding(move |request| agents::decision(seed, request))
        .seed(seed);
    block_on(simulator.check(graphs::input())).map_err(|error| error.to_string())
}

/// Each case is hundreds of runs: fewer of them by default.
fn cases(share: u32) -> Config {
    let cases = (config().cases / share).max(1);
    Config { cases, max_shrink_iters: 60, ..config() }
}

#[test]
fn a_graph_that_is_ended_anywhere_has_the_same_result() {
    let seen = RefCell::new(BTreeMap::<String, usize>::new());
    let cases = cases(32);
    let enough = cases.cases;
    let mut runner = TestRunner::new(cases);
    let result = runner.run(&graph_plans::graph(), |plan| {
        let simulated = simulate(&plan).map_err(TestCaseError::fail)?;
        let mut seen = seen.borrow_mut();
        let mut count = |what: String, times| *seen.entry(what).or_default() += times;
        count(format!("exit: {}", kind(&format!("{:?}", simulated.outcome().exit()))), 1);
        count("runs".to_owned(), simulated.runs());
        count("interrupted".to_owned(), simulated.interrupted());
        for node in &plan.nodes {
            count(format!("work: {}", kind(&format!("{:?}", node.work))), 1);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    if enough >= 256 {
        let missing: Vec<&str> = SEEN.iter().copied().filter(|what| !seen.contains_key(*what)).collect();
        assert!(missing.is_empty(), "never generated: {missing:?}; of {enough} graphs: {seen:#?}");
        assert!(seen["interrupted"] > 0);
    }
}

/// Values are edited while nodes wait or have begun, also with agents and graphs inside of them.
#[test]
fn a_graph_that_is_edited_anywhere_is_folded_stored_and_replayed() {
    let values = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(cases(4));
    let result = runner.run(&(graph_plans::graph(), edited::pauses()), |(plan, pauses)| {
        let graph = graphs::graph(&plan, &Executions::new());
        let seed = plan.seed;
        let decide = move |request: &ApprovalRequest| agents::decision(seed, request);
        let made = block_on(edited::check(graph.agent(), graphs::input(), decide, &pauses));
        values.set(values.get() + made.map_err(TestCaseError::fail)?.values);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(values.get() > 5);
}

const SEEN: [&str; 8] = [
    "exit: End",
    "exit: Failed",
    "exit: MaxSteps",
    "exit: NodeFailed",
    "exit: NodeLimit",
    "work: Agent",
    "work: Function",
    "work: Graph",
];

/// Branches that end when the test lets them.
#[derive(Clone, Default)]
struct Gates(Arc<Mutex<BTreeMap<String, oneshot::Sender<()>>>>);

impl Gates {
    async fn pass(&self, branch: String) {
        let (open, opened) = oneshot::channel();
        self.0.lock().unwrap().insert(branch, open);
        let _ = opened.await;
    }

    fn waiting(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn open(&self, place: usize) {
        let mut gates = self.0.lock().unwrap();
        let branch = gates.keys().nth(place % gates.len()).unwrap().clone();
        gates.remove(&branch).unwrap().send(()).unwrap();
    }
}

/// Three kinds of branches side by side: functions, a fan-out that fails for some items, and agents in the
/// conversation of the graph; then a join of branches of different length, and a node that tells what it sees.
fn gated(gates: &Gates) -> Graph {
    let schema = Schema::builder()
        .key::<Vec<Value>>("log")
        .key::<Value>("last")
        .key::<u64>("count")
        .handler(Handler::sum())
        .key::<Vec<Value>>("items")
        .default(json!([0, 1, 2, 3]))
        .build()
        .unwrap();
    let work = |gates: &Gates| {
        let gates = gates.clone();
        move |node: NodeContext| {
            let gates = gates.clone();
            async move {
                let what = format!("{} {} {}", node.node(), node.execution(), json!(node.item()));
                gates.pass(what.clone()).await;
                if node.item() == Some(&json!(2)) {
                    return Err(NodeError::permanent("no twos"));
                }
                let update =
                    Update::new().set("log", json!([what])).set("last", what.clone()).set("count", 1);
                Ok(update.say(what))
            }
        }
    };
    let agent = |name: &'static str| {
        let gates = gates.clone();
        let agent = Agent::builder(Script::parse("assistant: > c1 none()\nassistant: said").unwrap())
            .name(name)
            .max_steps(2)
            .before_model(move |context| {
                let gates = gates.clone();
                async move {
                    gates.pass(format!("{name} {}", context.steps)).await;
                    Ok(stepfold_agent_loop::HookAction::proceed())
                }
            })
            .exit_on(Vec::<String>::new());
        Node::agent(AgentNode::new(agent.build().unwrap())).continue_after_error()
    };
    Graph::builder("gated")
        .schema(schema)
        .node("one", work(gates))
        .node("each", Node::new(work(gates)).continue_after_error())
        .node("two", work(gates))
        .node("first", agent("first"))
        .node("second", agent("second"))
        .node("end", |node: NodeContext| async move {
            Ok::<_, NodeError>(Update::new().say(node.state().get("log").unwrap().to_string()))
        })
        .edge(START, "one")
        .edge(START, "first")
        .edge(START, "second")
        .fan_out(START, "each", "items")
        .edge("one", "two")
        .join(["two", "each", "first"], "end")
        .edge("end", END)
        .build()
        .unwrap()
}

/// Runs it; whenever all wait, the gate that the turn names opens.
fn run_gated(turns: &[usize]) -> (Vec<RunEvent>, Outcome) {
    let gates = Gates::default();
    let graph = gated(&gates);
    let mut seen = Vec::new();
    let outcome = block_on(async {
        let mut running = graph.run("go").id("run-1").observe(&mut seen).into_future();
        let mut turns = turns.iter().cycle();
        loop {
            // It continues until nothing is left but to wait for a gate.
            tokio::select! {
                biased;
                outcome = &mut running => break outcome.unwrap(),
                () = tokio::task::yield_now() => {}
            }
            if gates.waiting() > 0 {
                gates.open(*turns.next().unwrap());
            }
        }
    });
    (seen, outcome)
}

/// The events, those of a superstep in an order of their own, and the outcomes one by one: which ended at the same moment
/// is a matter of time.
fn sorted_events(seen: &[RunEvent]) -> Vec<String> {
    let mut events: Vec<String> = seen
        .iter()
        .filter_map(RunEvent::committed)
        .flat_map(|event| {
            if let EventKind::Answered(_) = &event.kind {
                let outcomes = event.outcomes();
                return outcomes.iter().map(|it| format!("{:04} {it:?}", event.step)).collect();
            }
            let mut event = event.clone();
            // The event that comes last ends the superstep.
            if event.step_end.take().is_some() {
                event.messages.clear();
                event.delta = stepfold_state_core::state::Delta::new();
            }
            event.elapsed = std::time::Duration::ZERO;
            vec![format!("{:04} {}", event.step, serde_json::to_string(&event).unwrap())]
        })
        .collect();
    events.sort();
    events
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn branches_may_end_in_any_order(
        one in prop::collection::vec(0..9_usize, 24),
        other in prop::collection::vec(0..9_usize, 24),
    ) {
        let ((seen_one, one), (seen_other, other)) = (run_gated(&one), run_gated(&other));
        prop_assert_eq!(one.exit(), &Exit::End);
        prop_assert_eq!(one.exit(), other.exit());
        prop_assert_eq!(one.transcript().to_string(), other.transcript().to_string());
        prop_assert_eq!(serde_json::to_string(one.state()).unwrap(), serde_json::to_string(other.state()).unwrap());
        prop_assert_eq!(sorted_events(&seen_one), sorted_events(&seen_other));
    }

    /// Cancelled at any event, a graph ends whole: what is open is answered, what was done is kept.
    #[test]
    fn a_graph_that_is_cancelled_anywhere_is_whole(plan in graph_plans::graph(), at in 1..24_usize) {
        let graph = graphs::graph(&plan, &Executions::new());
        let run = Run::new(graph.agent(), graphs::input(), "run-1").unwrap();
        let token = CancellationToken::new();
        let mut watch = Cancels { recording: Recording::of(&run), at, token: token.clone() };
        let seed = plan.seed;
        let decide = move |requests: Vec<ApprovalRequest>| async move {
            let decided = requests.into_iter().map(|request| {
                let decision = agents::decision(seed, &request);
                (request.id, decision)
            });
            decided.collect::<Vec<(String, Decision)>>()
        };
        let start = run.state().clone();
        let running = run.resume().observe(&mut watch).approve_with(decide).cancel_with(token);
        let outcome = match block_on(running.into_future()) {
            Ok(outcome) => outcome,
            Err(error) => RunError::outcome(&error).clone(),
        };
        let recording = watch.recording;
        if !outcome.exit().is_resumable() {
            prop_assert_eq!(outcome.transcript().check(), Ok(()));
        }
        let mut state = start;
        for event in recording.events() {
            event.fold(&mut state).unwrap();
        }
        prop_assert_eq!(&state, outcome.state());
        let replayed = recording.replay(graph.agent()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(replayed.digest(), outcome.run().digest());
        prop_assert_eq!(replayed.usage(), outcome.usage());
    }

    /// A runner that has merged all writes already catches up with the events alone.
    #[test]
    fn a_record_is_caught_up_with(plan in graph_plans::graph(), at in 1..40_usize) {
        let graph = graphs::graph(&plan, &Executions::new());
        let seed = plan.seed;
        let mut seen = Vec::new();
        let decide = move |requests: Vec<ApprovalRequest>| async move {
            let decided = requests.into_iter().map(|request| {
                let decision = agents::decision(seed, &request);
                (request.id, decision)
            });
            decided.collect::<Vec<(String, Decision)>>()
        };
        let run = Run::new(graph.agent(), graphs::input(), "run-1").unwrap();
        let _ = block_on(run.clone().resume().observe(&mut seen).approve_with(decide).into_future());
        let events: Vec<_> = seen.iter().filter_map(RunEvent::committed).take(at).cloned().collect();
        let mut live = run.clone();
        for event in &events {
            live.commit(event.clone()).unwrap();
        }
        let mut state = live.state().clone();
        state.replace_messages(run.state().messages().clone());
        let mut caught_up = Run::new(graph.agent(), Input::on(state), "run-1").unwrap();
        for event in &events {
            let caught = caught_up.catch_up(event.clone());
            prop_assert!(caught.is_ok(), "{} {caught:?}", event.name());
        }
        prop_assert_eq!(caught_up.digest(), live.digest());
        // A reader of the record finds nothing under way.
        live.take_over();
        prop_assert_eq!(format!("{:?}", caught_up.decide()), format!("{:?}", live.decide()));
        prop_assert_eq!(caught_up.pending().len(), live.pending().len());
    }
}

/// Workers that run side by side lose no update of each other, in whatever order they end.
#[test]
fn parallel_workers_lose_no_task() {
    let run = |is_reversed: bool| {
        let gates = Gates::default();
        let worker = gates.clone();
        let work = move |node: NodeContext| {
            let gates = worker.clone();
            async move {
                let task: Task = node.item_as()?;
                gates.pass(format!("{:02}", task.id)).await;
                match task.id {
                    4 => Err(NodeError::permanent("there is no area 4")),
                    // A worker may find out what another one does not know of.
                    id => Ok(Update::new()
                        .set("tasks", json!([{"id": id, "summary": format!("found {id}")}]))
                        .result(id)),
                }
            }
        };
        let graph = Graph::builder("research")
            .schema(ResearchState::schema().unwrap())
            .node("worker", Node::new(work).tracked())
            .fan_out(START, "worker", "tasks")
            .edge("worker", END)
            .build()
            .unwrap();
        let tasks = (1..=8).map(Task::new).collect();
        let research = ResearchState { tasks: Some(tasks), ..ResearchState::new("research") };
        let input = Input::on(research.to_state().unwrap());
        let outcome = block_on(async {
            let mut running = graph.run(input).id("run-1").into_future();
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut running => break outcome.unwrap(),
                    () = tokio::task::yield_now() => {}
                }
                if gates.waiting() > 0 {
                    gates.open(if is_reversed { gates.waiting() - 1 } else { 0 });
                }
            }
        });
        assert_eq!(outcome.exit(), &Exit::End);
        outcome
    };
    let (one, other) = (run(false), run(true));
    assert_eq!(one.run().digest(), other.run().digest());
    let state = one.state();
    let tasks = state.get("tasks").unwrap().to_json();
    let tasks = tasks.as_array().unwrap();
    assert_eq!(tasks.len(), 8);
    for task in tasks {
        let id = task["id"].as_i64().unwrap();
        let (status, summary) = match id {
            4 => (TaskStatus::Failed, Value::Null),
            _ => (TaskStatus::Completed, json!(format!("found {id}"))),
        };
        assert_eq!((&task["status"], &task["summary"]), (&json!(status.as_str()), &summary), "{task}");
    }
    assert_eq!(state.get(keys::OUTPUTS).unwrap().unwrap().len(), 7);
    assert_eq!(state.get(keys::ERRORS).unwrap().unwrap().len(), 1);
    assert_eq!(state.get(keys::OVERALL_PROGRESS).unwrap(), Some(87));
}

/// A graph that notes more executions of a node than it may have is found out.
#[test]
fn a_second_execution_of_a_node_is_found() {
    let executions = Executions::new();
    let counter = executions.clone();
    let twice = move |node: NodeContext| {
        counter.note_node(node.idempotency_key(), node.node());
        counter.note_node(node.idempotency_key(), node.node());
        async { Ok::<_, NodeError>(()) }
    };
    let node = Node::new(twice).effect(stepfold_tools::Effect::AtMostOnce);
    let graph = Graph::builder("g").node("twice", node).chain([START, "twice", END]).build().unwrap();
    let simulator = Simulator::new(graph.agent()).counting(&executions);
    let error = block_on(simulator.check("go")).unwrap_err().to_string();
    assert!(error.ends_with("must not run twice"), "{error}");
}

/// A router that does not depend on the state alone is found out.
#[test]
fn a_router_with_a_memory_is_found() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let nothing = |_: NodeContext| async { Ok::<_, NodeError>(()) };
    let graph = Graph::builder("g")
        .node("a", nothing)
        .node("b", |_: NodeContext| async { Ok::<_, NodeError>(Update::new().message(Message::user("b"))) })
        .edge(START, "a")
        .route("a", ["b", END], move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
            0 => "b",
            _ => END,
        })
        .edge("b", END)
        .build()
        .unwrap();
    let error = block_on(Simulator::new(graph.agent()).check("go")).unwrap_err().to_string();
    assert!(error.contains("differs"), "{error}");
}
