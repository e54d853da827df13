//! From a plan to a graph. Everything in it is a function of what it is given.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_agent_loop::{Decision, Input};
use stepfold_exam::Executions;
use stepfold_graph::{
    AgentNode, END, Graph, GraphBuilder, Node, NodeContext, NodeError, RouteChoice, START, Update,
};
use stepfold_state_core::chat::{Message, ToolResult};
use stepfold_state_core::state::{Handler, Schema, State, ValueRef};

use super::agents;
use super::graph_plans::{Does, Failing, GraphPlan, NodePlan, Talk, Way, Work};

/// The keys of generated agents, what graphs write themselves, and what is fanned out over.
fn schema() -> Schema {
    agents::keys()
        .key::<Vec<Value>>("items")
        .default(json!([1, null, {"id": 3}]))
        .key::<Value>("execution_counts")
        .handler(Handler::replace_values())
        .build()
        .unwrap()
}

pub(super) fn input() -> Input {
    Input::new().say("go")
}

/// The graph; without its joins, if these cannot complete.
pub(super) fn graph(plan: &GraphPlan, executions: &Executions) -> Graph {
    let all = builder(plan, executions, true).build();
    all.unwrap_or_else(|_| builder(plan, executions, false).build().unwrap())
}

fn name(plan: &GraphPlan, number: usize) -> String {
    format!("n{}", number % plan.nodes.len())
}

fn builder(plan: &GraphPlan, executions: &Executions, has_joins: bool) -> GraphBuilder {
    let mut graph = Graph::builder("generated")
        .schema(schema())
        .max_steps(plan.steps)
        .max_parallel(plan.parallel)
        .edge(START, "n0");
    if plan.asks_when_uncertain {
        graph = graph.ask_when_uncertain();
    }
    for start in &plan.starts {
        graph = graph.edge(START, name(plan, *start));
    }
    for (number, node) in plan.nodes.iter().enumerate() {
        graph = graph.node(format!("n{number}"), planned(plan, number, node, executions));
        if number > 0 {
            graph = way(graph, format!("n{}", node.comes_from % number), format!("n{number}"), node.comes);
        }
        graph = match node.on {
            None => graph.edge(format!("n{number}"), END),
            Some((to, by)) => way(graph, format!("n{number}"), name(plan, to), by),
        };
    }
    for (from, to) in plan.joins.iter().filter(|_| has_joins) {
        graph = graph.join(from.iter().map(|from| name(plan, *from)), name(plan, *to));
    }
    graph
}

fn way(graph: GraphBuilder, from: String, to: String, by: Way) -> GraphBuilder {
    let is_odd =
        |state: &State| state.get("log").map_or(0, |log| log.to_json().as_array().unwrap().len()) % 2 == 1;
    match by {
        Way::Edge => graph.edge(from, to),
        Way::FanOut => graph.fan_out(from, to, "items"),
        Way::Route => {
            let node = to.clone();
            graph.route(from, [to, END.to_owned()], move |state| match is_odd(state) {
                true => RouteChoice::of(END).because("it is odd"),
                false => RouteChoice::of(node.clone()),
            })
        }
        Way::Maybe => {
            let node = to.clone();
            graph.route_to_many(from, [to], move |state| match is_odd(state) {
                true => RouteChoice::all([node.clone()]),
                false => RouteChoice::all(Vec::<String>::new()),
            })
        }
    }
}

fn planned(plan: &GraphPlan, number: usize, node: &NodePlan, executions: &Executions) -> Node {
    let mut planned = match &node.work {
        Work::Function { does, effect, asks, pauses } => {
            let made = function(plan, *does, *asks, *pauses, executions).effect(*effect);
            match does {
                Does::Stalls => made.timeout(Duration::from_millis(5)),
                Does::Goes(to) => made.goes_to([name(plan, *to)]),
                _ => made,
            }
        }
        Work::Agent { scenario, talk } => {
            let agent = AgentNode::new(agents::agent(scenario, executions));
            Node::agent(match talk {
                Talk::InConversation => agent,
                Talk::Asked => agent.asks("look at {item?} after {last?}"),
                Talk::Answers => agent.asks("look at {item?}").answers("last"),
            })
        }
        Work::Graph(inner) => Node::agent(AgentNode::new(graph(inner, executions))),
    };
    planned = planned.max_executions(node.max_executions);
    planned = match node.on_error {
        Failing::Fails => planned,
        Failing::GoesOn => planned.continue_after_error(),
        Failing::GoesTo(to) => planned.on_error(name(plan, to)),
    };
    if let Some(instead) = node.at_limit.filter(|instead| instead % plan.nodes.len() != number) {
        planned = planned.at_limit(name(plan, instead));
    }
    if node.is_deferred { planned.deferred() } else { planned }
}

fn function(plan: &GraphPlan, does: Does, asks: u8, pauses: u8, executions: &Executions) -> Node {
    let executions = executions.clone();
    let target = match does {
        Does::Goes(to) => name(plan, to),
        _ => "nowhere".to_owned(),
    };
    let target: Arc<str> = target.into();
    Node::new(move |node: NodeContext| {
        let target = Arc::clone(&target);
        executions.note_node(node.idempotency_key(), node.node());
        async move {
            let mut decided = Vec::new();
            for number in 0..asks {
                decided.push(match node.ask(&format!("q{number}"), json!({"n": number}))? {
                    Decision::Approve => json!("yes"),
                    Decision::Modify { arguments } => arguments,
                    _ => json!("no"),
                });
            }
            for _ in 0..pauses {
                node.emit("pause", node.execution()).await;
                tokio::task::yield_now().await;
            }
            let update = doing(does, &node, &target).await?;
            Ok::<_, NodeError>(if decided.is_empty() { update } else { update.set("log", json!(decided)) })
        }
    })
}

async fn doing(does: Does, node: &NodeContext, target: &str) -> Result<Update, NodeError> {
    let what = json!([node.node(), node.execution(), node.item()]);
    let update = Update::new();
    Ok(match does {
        Does::Nothing => update,
        Does::Appends => update.set("log", json!([what])),
        Does::Sums => update.set("count", 60),
        Does::Replaces => update.set("last", what),
        Does::Refuses => update.set("log", json!(["before"])).set("picky", 7),
        Does::Misfits => update.set("log", json!(["before"])).set("count", "many"),
        Does::FailsAtFirst if node.execution() == 1 => return Err(NodeError::new("it is the first time")),
        Does::FailsForItems if node.item().is_some_and(Value::is_object) => {
            return Err(NodeError::permanent("no objects"));
        }
        Does::FailsAtFirst | Does::FailsForItems => update.say(format!("{what} went well")),
        Does::Panics => panic!("a node panics"),
        Does::Stalls => std::future::pending().await,
        Does::Reads => {
            let read = |key: &str| node.state().get(key).map_or(json!("unset"), ValueRef::to_json);
            update.say(format!("{} {} {}", read("log"), read("count"), read("last")))
        }
        Does::Babbles => {
            update.message(Message::tool(ToolResult::value("c0", "t0", 1))).message(Message::user("what?"))
        }
        Does::Goes(_) if node.execution() > 1 => update.set("log", json!(["stays"])),
        Does::Goes(_) => update.goto_with(target, Value::Null).goto(target),
        Does::GoesAstray => update.goto(target),
    })
}
