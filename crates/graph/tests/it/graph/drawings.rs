//! A graph as a drawing: everything there can be in one, and names that would break the languages.

use expect_test::expect;
use stepfold_graph::{END, Graph, GraphShape, Node, RouteChoice, START};

use super::kit::{graph, note};

fn everything() -> Graph {
    graph()
        .node("plan", note)
        .node("search", Node::new(note).on_error("aid").at_limit("report").goes_to(["plan", END]))
        .node("aid", note)
        .node("check", note)
        .node("report", Node::new(note).deferred())
        .node("publish", note)
        .edge(START, "plan")
        .edge(START, "check")
        .fan_out("plan", "search", "items")
        .fan_out_with("aid", "search", |_| Vec::new())
        .route("check", ["plan", "report"], |_| "report")
        .route_to_many("report", ["publish", END], |_| RouteChoice::of(END))
        .join(["search", "check"], "report")
        .edge("publish", END)
        .build()
        .unwrap()
}

#[test]
fn mermaid() {
    expect![[r#"
        flowchart TD
            start([START])
            n0["plan"]
            n1["search"]
            n2["aid"]
            n3["check"]
            n4["report"]
            n5["publish"]
            end_([END])
            start --> n0
            start --> n3
            n0 -->|"each of items"| n1
            n1 -.-> n0
            n1 -.-> end_
            n1 -.->|"on error"| n2
            n1 -.->|"at its limit"| n4
            n2 -->|"each of items"| n1
            n3 -.-> n0
            n3 -.-> n4
            n4 -.-> n5
            n4 -.-> end_
            n5 --> end_
            n1 -->|"all"| n4
            n3 -->|"all"| n4
    "#]]
    .assert_eq(&everything().to_mermaid());
}

#[test]
fn dot() {
    expect![[r#"
        digraph "tested" {
            start [label="START", shape=oval];
            n0 [label="plan", shape=box];
            n1 [label="search", shape=box];
            n2 [label="aid", shape=box];
            n3 [label="check", shape=box];
            n4 [label="report", shape=box];
            n5 [label="publish", shape=box];
            end_ [label="END", shape=oval];
            start -> n0;
            start -> n3;
            n0 -> n1 [label="each of items"];
            n1 -> n0 [style=dashed];
            n1 -> end_ [style=dashed];
            n1 -> n2 [label="on error", style=dashed];
            n1 -> n4 [label="at its limit", style=dashed];
            n2 -> n1 [label="each of items"];
            n3 -> n0 [style=dashed];
            n3 -> n4 [style=dashed];
            n4 -> n5 [style=dashed];
            n4 -> end_ [style=dashed];
            n5 -> end_;
            n1 -> n4 [label="all"];
            n3 -> n4 [label="all"];
        }
    "#]]
    .assert_eq(&everything().to_dot());
}

/// Quotes, brackets, backslashes, markup, other scripts, and words of the languages themselves.
#[test]
fn names_that_need_care() {
    let graph = Graph::builder("a \"quoted\" \\ name")
        .node("say \"hi\"", note)
        .node("a <b & c; [x] {y} |z|", note)
        .node("back\\slash\\n", note)
        .node("end", note)
        .node("搜索", note)
        .node("`code` *bold*", note)
        .chain([
            START,
            "say \"hi\"",
            "a <b & c; [x] {y} |z|",
            "back\\slash\\n",
            "end",
            "搜索",
            "`code` *bold*",
        ])
        .fan_out_with("end", "搜索", |_| Vec::new())
        .build()
        .unwrap();
    expect![[r##"
        flowchart TD
            start([START])
            n0["say #34;hi#34;"]
            n1["a #60;b #38; c; [x] {y} |z|"]
            n2["back#92;slash#92;n"]
            n3["end"]
            n4["搜索"]
            n5["#96;code#96; *bold*"]
            start --> n0
            n0 --> n1
            n1 --> n2
            n2 --> n3
            n3 --> n4
            n3 -->|"each of items"| n4
            n4 --> n5
    "##]]
    .assert_eq(&graph.to_mermaid());
    expect![[r#"
        digraph "a \"quoted\" \\ name" {
            start [label="START", shape=oval];
            n0 [label="say \"hi\"", shape=box];
            n1 [label="a <b & c; [x] {y} |z|", shape=box];
            n2 [label="back\\slash\\n", shape=box];
            n3 [label="end", shape=box];
            n4 [label="搜索", shape=box];
            n5 [label="`code` *bold*", shape=box];
            start -> n0;
            n0 -> n1;
            n1 -> n2;
            n2 -> n3;
            n3 -> n4;
            n3 -> n4 [label="each of items"];
            n4 -> n5;
        }
    "#]]
    .assert_eq(&graph.to_dot());
}

/// Graphs that are nodes are one node.
#[test]
fn a_graph_inside() {
    let graph = graph().node("inner", everything()).edge(START, "inner").build().unwrap();
    expect![[r#"
        flowchart TD
            start([START])
            n0["inner"]
            start --> n0
    "#]]
    .assert_eq(&graph.to_mermaid());
}

#[test]
fn data() {
    let shape = everything().shape();
    let stored = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<GraphShape>(&stored).unwrap(), shape);
    let lines = shape.edges.iter().map(|edge| format!("{} -> {} {:?}\n", edge.from, edge.to, edge.kind));
    expect![[r#"
        __start__ -> plan Always
        __start__ -> check Always
        plan -> search Each { of: "items" }
        search -> plan Choice
        search -> __end__ Choice
        search -> aid OnError
        search -> report AtLimit
        aid -> search Each { of: "items" }
        check -> plan Choice
        check -> report Choice
        report -> publish Choice
        report -> __end__ Choice
        publish -> __end__ Always
        search -> report Join
        check -> report Join
    "#]]
    .assert_eq(&lines.collect::<String>());
    expect![[r#"{"name":"report","max_executions":3,"is_deferred":true,"is_tracked":false}"#]]
        .assert_eq(&serde_json::to_string(&shape.nodes[4]).unwrap());
    let inner = graph().node("all", everything()).chain([START, "all", END]).build().unwrap();
    assert_eq!(inner.shape().nodes[0].agent.as_deref(), Some(everything().name()));
}
