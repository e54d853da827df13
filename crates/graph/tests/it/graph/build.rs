//! What is refused when a graph is built: each fault in full, as its author reads it.

use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::Schema;
use stepfold_agent_loop::{Agent, Output, RunLimits};
use stepfold_graph::{AgentNode, END, Graph, GraphBuilder, Node, RouteChoice, START};

use super::kit::{failing, graph, note};
use crate::loop_kit::script;

fn refused(graph: GraphBuilder, expected: Expect) {
    let error = graph.build().unwrap_err();
    expected.assert_eq(&error.to_string().replace("; ", "\n"));
}

#[test]
fn nothing_at_all() {
    refused(
        graph(),
        expect![[r#"
        invalid agent 'tested': START: missing edge: add one from it"#]],
    );
    refused(
        graph().node("a", note),
        expect![[r#"
        invalid agent 'tested': START: missing edge: add one from it"#]],
    );
}

#[test]
fn nodes_that_are_not_there() {
    let graph = graph()
        .node("a", Node::new(note).on_error("aid").at_limit("instead").goes_to(["elsewhere"]))
        .edge(START, "a")
        .edge(START, "b")
        .edge("c", "a")
        .fan_out("a", "d", "items")
        .route("a", ["e", "f"], |_| "e")
        .join(["a", "g"], "h");
    refused(
        graph,
        expect![[r#"
        invalid agent 'tested': node 'b': missing, but an edge from START leads to it
        add it
        node 'c': missing, but an edge comes from it
        add it
        node 'd': missing, but an edge from node 'a' leads to it
        add it
        node 'e': missing, but an edge from node 'a' leads to it
        add it
        node 'f': missing, but an edge from node 'a' leads to it
        add it
        node 'g': missing, but the join at 'h' waits for it
        add it
        node 'h': missing, but a join leads to it
        add it
        node 'elsewhere': missing, but node 'a' goes to it
        add it
        and 2 more"#]],
    );
}

#[test]
fn where_graphs_begin_and_end() {
    let nodes = || graph().node("a", note).node("b", note).chain([START, "a", "b"]);
    refused(
        nodes().edge("a", START),
        expect![[r#"
        invalid agent 'tested': START: not a target: the graph begins there"#]],
    );
    refused(
        nodes().edge(END, "a"),
        expect![[r#"
        invalid agent 'tested': END: not a node, but an edge comes from it
        use a node"#]],
    );
    refused(
        nodes().fan_out("a", END, "items"),
        expect![[r#"
        invalid agent 'tested': END: not a node, but an edge from node 'a' leads to it
        use a node"#]],
    );
    refused(
        nodes().fan_out("a", START, "items"),
        expect![[r#"
        invalid agent 'tested': START: not a node, but an edge from node 'a' leads to it
        use a node"#]],
    );
    refused(
        nodes().join([START, "a"], "b"),
        expect![[r#"
        invalid agent 'tested': START: not a node, but the join at 'b' waits for it
        use a node"#]],
    );
    refused(
        nodes().join(["a", END], "b"),
        expect![[r#"
        invalid agent 'tested': END: not a node, but the join at 'b' waits for it
        use a node"#]],
    );
    refused(
        nodes().join(["a", "b"], END),
        expect![[r#"
        invalid agent 'tested': END: not a node, but a join leads to it
        use a node"#]],
    );
    refused(
        nodes().join(["a", "b"], START),
        expect![[r#"
        invalid agent 'tested': START: not a node, but a join leads to it
        use a node"#]],
    );
    refused(
        nodes().route("a", ["b", START], |_| "b"),
        expect![[r#"
        invalid agent 'tested': START: not a target: the graph begins there"#]],
    );
}

#[test]
fn names() {
    let graph = graph()
        .node("a", note)
        .node("a", note)
        .node(START, note)
        .node(END, note)
        .node("", note)
        .node("a#b", note)
        .node("a > b", note)
        .node("a\nb", note)
        .edge(START, "a");
    refused(
        graph,
        expect![[r#"
        invalid agent 'tested': node 'a': duplicate name: use a unique name for each node
        node '__start__': invalid name: reserved by graphs
        node '__end__': invalid name: reserved by graphs
        node '': invalid name: must not be empty, nor contain '#', '>' or control characters
        node 'a#b': invalid name: must not be empty, nor contain '#', '>' or control characters
        node 'a > b': invalid name: must not be empty, nor contain '#', '>' or control characters
        node 'a\nb': invalid name: must not be empty, nor contain '#', '>' or control characters"#]],
    );
}

#[test]
fn nodes_that_cannot_be_reached() {
    let graph = graph().node("a", note).node("b", note).node("c", note).edge(START, "a").edge("b", "c");
    refused(
        graph,
        expect![[r#"
        invalid agent 'tested': node 'b': not reachable from START: add a route to it, or remove it
        node 'c': not reachable from START: add a route to it, or remove it"#]],
    );
}

/// An error node, a stand-in, and what a node goes to are reached by that.
#[test]
fn what_nodes_name_is_reached() {
    let graph = graph()
        .node("a", Node::new(failing("no")).on_error("aid").at_limit("instead").goes_to(["elsewhere"]))
        .node("aid", note)
        .node("instead", note)
        .node("elsewhere", note)
        .edge(START, "a");
    assert_eq!(graph.build().unwrap().nodes().count(), 4);
}

#[test]
fn joins_that_cannot_complete() {
    let nodes = || graph().node("a", note).node("b", note).node("both", note);
    refused(
        nodes().edge(START, "a").edge(START, "b").join(Vec::<String>::new(), "both"),
        expect!["invalid agent 'tested': join at 'both': missing nodes to wait for: name at least one"],
    );
    // Behind the join itself.
    refused(
        nodes().edge(START, "a").edge("both", "b").join(["a", "b"], "both"),
        expect![
            "invalid agent 'tested': join at 'both': cannot complete: node 'b' is only reachable after it"
        ],
    );
    refused(
        nodes().edge(START, "a").edge(START, "b").join(["a", "both"], "both"),
        expect![
            "invalid agent 'tested': join at 'both': cannot complete: node 'both' is only reachable after it"
        ],
    );
    // Only one of them is ever chosen.
    let chosen = nodes().node("r", note).edge(START, "r").route("r", ["a", "b"], |_| "a");
    refused(
        chosen.join(["a", "b"], "both"),
        expect![
            "invalid agent 'tested': join at 'both': cannot complete: node 'r' chooses between the nodes that it waits for"
        ],
    );
    refused(
        nodes().route(START, ["a", "b"], |_| "a").join(["a", "b"], "both"),
        expect![
            "invalid agent 'tested': join at 'both': cannot complete: START chooses between the nodes that it waits for"
        ],
    );
    let chosen = nodes().node("r", note).edge(START, "r").route("r", ["a", "b", END], |_| "a");
    refused(
        chosen.join(["a", "b"], "both"),
        expect![
            "invalid agent 'tested': join at 'both': cannot complete: node 'r' chooses between the nodes that it waits for"
        ],
    );
}

/// Where a router may choose several, or comes again, a join may complete.
#[test]
fn joins_that_may_complete() {
    let nodes =
        || graph().node("a", note).node("b", note).node("both", note).node("r", note).edge(START, "r");
    let many =
        nodes().route_to_many("r", ["a", "b"], |_| RouteChoice::all(["a", "b"])).join(["a", "b"], "both");
    many.build().unwrap();
    let again =
        nodes().route("r", ["a", "b"], |_| "a").edge("a", "r").edge("b", "r").join(["a", "b"], "both");
    again.build().unwrap();
    let beside = nodes().route("r", ["a", END], |_| "a").edge(START, "b").join(["a", "b"], "both");
    beside.build().unwrap();
}

#[test]
fn limits() {
    let nodes = || graph().node("a", Node::new(note)).edge(START, "a");
    refused(
        nodes().max_branches(0).max_parallel(0),
        expect![[r#"
        invalid agent 'tested': max_branches: must be positive: nothing could run
        max_parallel: must be positive: nothing could run"#]],
    );
    refused(
        nodes().max_steps(0),
        expect!["invalid agent 'tested': limits.steps: must be positive: the model could not be called"],
    );
    refused(
        nodes().max_time(Duration::ZERO),
        expect!["invalid agent 'tested': limits.time: must be positive: nothing could run"],
    );
    refused(
        nodes().limits(RunLimits::default().with_tokens(0)),
        expect!["invalid agent 'tested': limits.tokens: must be positive: the model could not be called"],
    );
    refused(
        graph().node("a", Node::new(note).max_executions(0)).edge(START, "a"),
        expect![[r#"
        invalid agent 'tested': node 'a': must be allowed to run: raise its limit, or remove it"#]],
    );
    refused(
        graph().node("a", Node::new(note).at_limit("a")).edge(START, "a"),
        expect!["invalid agent 'tested': node 'a': invalid fallback: it cannot replace itself at its limit"],
    );
    refused(
        graph().node("a", Node::new(note).timeout(Duration::ZERO)).edge(START, "a"),
        expect!["invalid agent 'tested': node 'a': invalid timeout of zero: no attempt could complete"],
    );
}

#[test]
fn routes_without_targets() {
    refused(
        graph().node("a", note).edge(START, "a").route("a", Vec::<String>::new(), |_| "a"),
        expect!["invalid agent 'tested': route from node 'a': missing targets: name at least one"],
    );
}

#[test]
fn keys() {
    refused(
        graph().node("a", note).fan_out(START, "a", "itmes"),
        expect![[r#"invalid agent 'tested': fan-out over "itmes": not declared by the schema"#]],
    );
    refused(
        graph().node("a", Node::new(note).tracked()).edge(START, "a"),
        expect![[r#"
        invalid agent 'tested': node 'a': cannot be tracked: missing key "current_node" for tracking a node: declare it, or add `tracking_keys`
        known keys: log, items, next, messages"#]],
    );
    let typed = |schema| Graph::builder("tested").schema(schema).node("a", note).edge(START, "a");
    refused(
        typed(Schema::builder().key::<String>("execution_counts").build().unwrap()),
        expect![[
            r#"invalid agent 'tested': state key "execution_counts": not writable by the graph: invalid value for key "execution_counts": expected string, found object at $"#
        ]],
    );
    refused(
        typed(Schema::builder().key::<u64>("current_node").key::<String>("router_decision").build().unwrap()),
        expect![[r#"
            invalid agent 'tested': state key "current_node": not writable by the graph: invalid value for key "current_node": expected integer, found string at $
            state key "router_decision": not writable by the graph: invalid value for key "router_decision": expected string, found object at $"#]],
    );
    let tracked = Schema::builder()
        .key::<String>("current_node")
        .key::<Vec<u64>>("outputs")
        .key::<Vec<u64>>("errors")
        .key::<Vec<u64>>("tasks")
        .key::<i64>("current_task_id")
        .key::<u8>("overall_progress");
    let graph = Graph::builder("tested")
        .schema(tracked.build().unwrap())
        .node("a", Node::new(note).tracked())
        .edge(START, "a");
    refused(
        graph,
        expect![[
            r#"invalid agent 'tested': node 'a': cannot be tracked: invalid value for key "errors": expected integer, found object at $[0]"#
        ]],
    );
}

#[test]
fn keys_of_agents() {
    let agent = Agent::builder(script(""))
        .schema(Schema::builder().key::<u64>("found").key::<u64>("own").build().unwrap())
        .build()
        .unwrap();
    let graph = |node: AgentNode| {
        Graph::builder("tested")
            .schema(Schema::builder().key::<String>("found").key::<u64>("other").build().unwrap())
            .node("a", node)
            .edge(START, "a")
    };
    let node = || AgentNode::new(agent.clone());
    refused(
        graph(node().shares(["found", "own", "nowhere"])),
        expect![[r#"
        invalid agent 'tested': node 'a': invalid shared key "found": both schemas must declare it equally
        node 'a': invalid shared key "own": both schemas must declare it equally
        node 'a': invalid shared key "nowhere": both schemas must declare it equally"#]],
    );
    refused(
        graph(node().answers("answer")),
        expect![[r#"
        invalid agent 'tested': node 'a': invalid key of the answer: unknown key "answer"
        known keys: found, other, messages"#]],
    );
    refused(
        graph(node().answers("messages")),
        expect![[r#"
        invalid agent 'tested': node 'a': invalid key of the answer: key "messages" cannot be written: it is the projection of message events
        push a message instead"#]],
    );
}

/// A graph over keys of several types, with one agent that has this output.
fn typed(node: impl FnOnce(AgentNode) -> AgentNode, output: Option<Output>) -> GraphBuilder {
    let agent = Agent::builder(script(""));
    let agent = output.into_iter().fold(agent, stepfold_agent_loop::AgentBuilder::output_with);
    let schema = Schema::builder()
        .key::<u64>("count")
        .key::<Option<String>>("note")
        .key::<Vec<String>>("notes")
        .key::<Vec<u64>>("counts")
        .key::<Value>("any")
        .key::<f64>("share");
    Graph::builder("tested")
        .schema(schema.build().unwrap())
        .node("a", node(AgentNode::new(agent)))
        .edge(START, "a")
}

#[test]
fn keys_of_requests() {
    refused(
        typed(|node| node.asks("{nots}, {notes}, {notes.0?}, {nots.0?}, {item}, {item.id}"), None),
        expect![[r#"
            invalid agent 'tested': node 'a': unknown state key "nots" in the request: declare it in the graph's schema, or double the braces if it is text
            node 'a': unknown state key "nots.0" in the request: declare it in the graph's schema, or double the braces if it is text"#]],
    );
}

#[test]
fn types_of_answers() {
    refused(
        typed(|node| node.answers("count").answers("counts"), None),
        expect![[r#"
            invalid agent 'tested': node 'a': invalid type of the answer for "count": expected integer, found the text of an agent without output: give the agent an output of that type
            node 'a': invalid type of the answer for "counts": expected array, found the text of an agent without output: give the agent an output of that type"#]],
    );
    for key in ["note", "notes", "any"] {
        typed(|node| node.answers(key), None).build().unwrap();
    }
    let plan = || {
        let fields = json!({"days": {"type": "integer"}, "why": {"type": "string"}, "rest": {}});
        Some(Output::schema("plan", json!({"type": "object", "properties": fields})))
    };
    refused(
        typed(|node| node.answers("notes"), plan()),
        expect![[
            r#"invalid agent 'tested': node 'a': invalid type of the answer for "notes": expected array, found object"#
        ]],
    );
    refused(
        typed(|node| node.answers_field("note", "days").answers_field("count", "why"), plan()),
        expect![[r#"
            invalid agent 'tested': node 'a': invalid type of the answer for "note": expected string or null, found integer
            node 'a': invalid type of the answer for "count": expected integer, found string"#]],
    );
    let fits = |node: AgentNode| {
        let node = node.answers("any").answers_field("share", "days").answers_field("counts", "days");
        node.answers_field("count", "rest").answers_field("count", "unknown")
    };
    typed(fits, plan()).build().unwrap();
}

#[test]
fn a_fan_out_over_a_key_that_is_not_a_list() {
    let graph = |key: &str| {
        let schema =
            Schema::builder().key::<u64>("count").key::<Option<Vec<u64>>>("some").key::<Value>("any");
        Graph::builder("tested").schema(schema.build().unwrap()).node("a", note).fan_out(START, "a", key)
    };
    refused(
        graph("count"),
        expect![[r#"invalid agent 'tested': fan-out over "count": expected a list, found integer"#]],
    );
    graph("some").build().unwrap();
    graph("any").build().unwrap();
}
