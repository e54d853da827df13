//! The graph of the exam of hosts.

use stepfold_agent_loop::Agent;
use stepfold_exam::ExamEffects;
use stepfold_graph::{END, Graph, Node, NodeContext, NodeError, START, Update};
use stepfold_tools::Effect;

/// Pays three times side by side, and then says so, whatever the outcomes were.
pub(crate) fn graph(effects: ExamEffects) -> Agent {
    let mut graph = Graph::builder("clerk");
    for name in ["first", "second", "third"] {
        let effects = effects.clone();
        let pay = move |node: NodeContext| {
            let effects = effects.clone();
            async move {
                let had = effects.have(name, node.idempotency_key()).await;
                had.map(|()| Update::new()).map_err(|error| NodeError::new(error.to_string()))
            }
        };
        let pay = Node::new(pay).effect(Effect::AtMostOnce).on_error("report");
        graph = graph.node(name, pay).edge(START, name).edge(name, "report");
    }
    let report = |_: NodeContext| async { Ok::<_, NodeError>(Update::new().say("reported")) };
    graph.node("report", report).edge("report", END).build().unwrap().into()
}
