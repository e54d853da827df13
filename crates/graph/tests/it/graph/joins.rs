//! Joins: a node that waits for others, be it in different supersteps.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::state::State;
use stepfold_graph::{END, Node, RouteChoice, START, Update};

use super::check;
use super::kit::*;

fn log_len(state: &State) -> usize {
    state.get(LOG).unwrap().unwrap_or_default().len()
}

/// Two edges would run it twice; a join waits for the longer way.
#[tokio::test]
async fn ways_of_different_length() {
    let nodes = || {
        graph()
            .node("short", note)
            .node("long", note)
            .node("longer", note)
            .node("both", note)
            .edge(START, "short")
            .edge(START, "long")
            .edge("long", "longer")
    };
    check(
        nodes().edge("short", "both").edge("longer", "both"),
        "go",
        expect![[r#"
        1: short, long
        2: longer, both
        3: both
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["short","long","longer","both","both"]}
    "#]],
    )
    .await;
    check(
        nodes().join(["short", "longer"], "both"),
        "go",
        expect![[r#"
        1: short, long
        2: longer
           both waits, has short
        3: both
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["short","long","longer","both"]}
    "#]],
    )
    .await;
}

/// A fan-out is one source, with items or without.
#[tokio::test]
async fn a_fan_out_as_a_source() {
    let graph = || {
        graph()
            .node("each", note)
            .node("other", note)
            .node("both", note)
            .fan_out(START, "each", "items")
            .edge(START, "other")
            .join(["each", "other"], "both")
    };
    check(
        graph(),
        items(json!([1, 2])),
        expect![[r#"
        1: each(1), each(2), other
        2: both
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":[1,2],"log":["each(1)","each(2)","other","both"]}
    "#]],
    )
    .await;
    check(
        graph(),
        items(json!([])),
        expect![[r#"
        1: other
           both waits, has each
        2: both
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":[],"log":["other","both"]}
    "#]],
    )
    .await;
}

/// In a loop it waits again each time.
#[tokio::test]
async fn in_a_loop() {
    let graph = graph()
        .node("a", note)
        .node("b", note)
        .node("b2", note)
        .node("both", note)
        .edge(START, "a")
        .edge(START, "b")
        .edge("b", "b2")
        .join(["a", "b2"], "both")
        .route_to_many("both", ["a", "b", END], |state: &State| match log_len(state) {
            4 => RouteChoice::all(["a", "b"]),
            _ => RouteChoice::of(END),
        });
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b
        2: b2
           both waits, has a
        3: both
           both -> a, b
        4: a, b
        5: b2
           both waits, has a
        6: both
           both -> __end__
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 6
        state: {"log":["a","b","b2","both","a","b","b2","both"]}
    "#]],
    )
    .await;
}

/// A source that runs twice before the others has arrived once.
#[tokio::test]
async fn a_source_twice() {
    let graph = graph()
        .node("a", note)
        .node("slow1", note)
        .node("slow2", note)
        .node("slow3", note)
        .node("both", note)
        .edge(START, "a")
        .chain([START, "slow1", "slow2", "slow3"])
        .route("a", ["a", END], |state: &State| if log_len(state) < 4 { "a" } else { END })
        .join(["a", "slow3"], "both");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, slow1
           a -> a
        2: a, slow2
           both waits, has a
           a -> __end__
        3: slow3
           both waits, has a
        4: both
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 4
        state: {"log":["a","slow1","a","slow2","slow3","both"]}
    "#]],
    )
    .await;
}

/// Several joins, one behind the other, and one source of two.
#[tokio::test]
async fn several() {
    let graph = graph()
        .node("a", note)
        .node("b", note)
        .node("c", note)
        .node("ab", note)
        .node("bc", note)
        .node("all", note)
        .edge(START, "a")
        .edge(START, "b")
        .edge("a", "c")
        .join(["a", "b"], "ab")
        .join(["b", "c"], "bc")
        .join(["ab", "bc"], "all");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b
        2: c, ab
           bc waits, has b
        3: bc
           all waits, has ab
        4: all
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 4
        state: {"log":["a","b","c","ab","bc","all"]}
    "#]],
    )
    .await;
}

/// Two joins at one node, with a source in common: what one of them has used, it waits for again.
#[tokio::test]
async fn two_at_one_node() {
    let graph = graph()
        .node("a", note)
        .node("b", note)
        .node("first", note)
        .node("second", note)
        .node("c", note)
        .node("at", note)
        .edge(START, "a")
        .edge(START, "b")
        .chain([START, "first", "second", "c"])
        .edge("first", "b")
        .join(["a", "b"], "at")
        .join(["a", "c"], "at");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b, first
        2: b, second, at
           at waits, has a
        3: c
           at waits, has b
           at waits, has a
        4: at
           at waits, has b
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 4
        state: {"log":["a","b","first","b","second","at","c","at"]}
    "#]],
    )
    .await;
}

/// A source that fails and continues has finished; one that goes elsewhere has not.
#[tokio::test]
async fn a_source_that_fails() {
    let graph = |failure: fn(Node) -> Node| {
        graph()
            .node("a", note)
            .node("b", failure(Node::new(failing("no"))))
            .node("both", note)
            .node("aid", note)
            .edge(START, "a")
            .edge(START, "b")
            .edge(START, "aid")
            .join(["a", "b"], "both")
    };
    check(
        graph(Node::continue_after_error),
        "go",
        expect![[r#"
        1: a, b, aid
           1 Failed (1): no
        2: both
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","aid","both"]}
    "#]],
    )
    .await;
    check(
        graph(|node| node.on_error("aid")),
        "go",
        expect![[r#"
        1: a, b, aid
           1 Failed (1): no
        2: aid({"error":"no","node":"b"})
           both waits, has a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","aid","aid({\"error\":\"no\",\"node\":\"b\"})"]}
    "#]],
    )
    .await;
}

/// A source that chooses its way itself has left by no edge, and by no join.
#[tokio::test]
async fn a_source_that_chooses() {
    let graph = graph()
        .node("a", note)
        .node(
            "b",
            Node::new(|node| async move { Ok(noted(&node)).map(|update: Update| update.goto("c")) })
                .goes_to(["c"]),
        )
        .node("c", note)
        .node("both", note)
        .edge(START, "a")
        .edge(START, "b")
        .join(["a", "b"], "both");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b
        2: c
           both waits, has a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b","c"]}
    "#]],
    )
    .await;
}

/// Chosen ways that need not all be taken: the join waits, and the graph ends without it.
#[tokio::test]
async fn a_source_that_is_not_chosen() {
    let graph = graph()
        .node("a", note)
        .node("b", note)
        .node("both", note)
        .route_to_many(START, ["a", "b"], |_| RouteChoice::of("a"))
        .join(["a", "b"], "both");
    check(
        graph,
        "go",
        expect![[r#"
           __start__ -> a
        1: a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a"]}
    "#]],
    )
    .await;
}
