//! The ways between nodes: static, by choice, one branch for each item, chosen by the node itself, deferred.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::state::{Handler, Key, Schema, State};
use stepfold_graph::{END, Graph, Node, NodeContext, NodeError, RouteChoice, START, Update};

use super::check;
use super::kit::*;

#[tokio::test]
async fn a_chain() {
    let graph = graph().node("a", note).node("b", note).chain([START, "a", "b", END]);
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: b
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","b"]}
    "#]],
    )
    .await;
}

/// A node without a route ends the graph as well.
#[tokio::test]
async fn an_end_without_an_edge() {
    check(
        graph().node("a", note).edge(START, "a"),
        "go",
        expect![[r#"
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

/// Branches side by side are merged in the order in which nodes were declared, not in that of the edges.
#[tokio::test]
async fn side_by_side() {
    let graph = graph()
        .node("a", note)
        .node("c", note)
        .node("b", note)
        .node("d", note)
        .edge(START, "a")
        .edge("a", "b")
        .edge("a", "c")
        .edge("b", "d")
        .edge("c", "d")
        .edge("a", "b");
    check(
        graph,
        "go",
        expect![[r#"
        1: a
        2: c, b
        3: d
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["a","c","b","d"]}
    "#]],
    )
    .await;
}

/// Both see the state as it was when the superstep began.
#[tokio::test]
async fn branches_do_not_see_each_other() {
    async fn look(node: NodeContext) -> Result<Update, NodeError> {
        let seen = node.get(LOG)?.unwrap_or_default().len();
        Ok(Update::new().set(LOG, vec![format!("{} sees {seen}", node.node())]))
    }
    let graph = graph().node("a", look).node("b", look).edge(START, "a").edge(START, "b").edge("a", "b");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b
        2: b
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a sees 0","b sees 0","b sees 2"]}
    "#]],
    )
    .await;
}

/// Each key by its own handler, the later node last; one write by another handler.
#[tokio::test]
async fn merged_by_handlers() {
    const SUM: Key<i64> = Key::new("sum");
    const LAST: Key<String> = Key::new("last");
    const BEST: Key<i64> = Key::new("best");
    let schema = Schema::builder()
        .key(SUM)
        .handler(Handler::sum())
        .key(LAST)
        .key(BEST)
        .handler(Handler::max())
        .build()
        .unwrap();
    let node = |number: i64| {
        move |node: NodeContext| async move {
            let update = Update::new().set(SUM, number).set(LAST, node.node().to_owned()).set(BEST, number);
            Ok::<_, NodeError>(match number {
                3 => update.set_with(BEST, 1, Handler::replace_values()),
                _ => update,
            })
        }
    };
    let graph = Graph::builder("tested")
        .schema(schema)
        .node("a", node(7))
        .node("b", node(2))
        .node("c", node(3))
        .edge(START, "c")
        .edge(START, "b")
        .edge(START, "a");
    check(
        graph,
        "go",
        expect![[r#"
        1: a, b, c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"best":1,"last":"c","sum":12}
    "#]],
    )
    .await;
}

fn by_next(state: &State) -> RouteChoice {
    let next = state.get(NEXT).unwrap().unwrap_or_else(|| END.to_owned());
    RouteChoice::of(next).because("the state says so")
}

#[tokio::test]
async fn a_choice() {
    let graph = || {
        graph().node("a", note).node("b", note).node("c", note).edge(START, "a").route(
            "a",
            ["b", "c", END],
            by_next,
        )
    };
    check(
        graph(),
        values(json!({"next": "c"})),
        expect![[r#"
        1: a
           a -> c, the state says so
        2: c
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","c"],"next":"c"}
    "#]],
    )
    .await;
    check(
        graph(),
        "go",
        expect![[r#"
        1: a
           a -> __end__, the state says so
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a"]}
    "#]],
    )
    .await;
    check(graph(), values(json!({"next": "a"})), expect![[r#"
        1: a
        --
        --
        error: run 'run' failed after step 1: run could not continue: route after node 'a' failed: unknown target "a"; declared: b, c, END
        steps: 1
        state: {"log":["a"],"next":"a"}
    "#]]).await;
}

#[tokio::test]
async fn a_choice_at_the_start() {
    let graph = graph().node("a", note).node("b", note).route(START, ["a", "b"], |_| "b");
    check(
        graph,
        "go",
        expect![[r#"
           __start__ -> b
        1: b
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["b"]}
    "#]],
    )
    .await;
}

/// One of one only, even if it is a list.
#[tokio::test]
async fn one_choice_is_one() {
    let graph =
        graph().node("a", note).node("b", note).route(START, ["a", "b"], |_| RouteChoice::all(["a", "b"]));
    check(graph, "go", expect![[r#"
        --
        user:      go
        --
        error: run 'run' failed after step 0: run could not continue: route after START failed: expected one target, found 2; use `route_to_many` for several
        steps: 0
    "#]]).await;
}

#[tokio::test]
async fn a_choice_of_many() {
    let graph = |chosen: &'static [&'static str]| {
        graph().node("a", note).node("b", note).node("c", note).route_to_many(
            START,
            ["a", "b", "c", END],
            move |_| RouteChoice::all(chosen.iter().copied()),
        )
    };
    check(
        graph(&["c", "a"]),
        "go",
        expect![[r#"
           __start__ -> c, a
        1: a, c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["a","c"]}
    "#]],
    )
    .await;
    check(
        graph(&["c", END, "c"]),
        "go",
        expect![[r#"
           __start__ -> c, __end__, c
        1: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["c"]}
    "#]],
    )
    .await;
    check(
        graph(&[]),
        "go",
        expect![[r#"
               __start__ -> nowhere
            --
            user:      go
            --
            exit: the graph reached its end
            steps: 0
        "#]],
    )
    .await;
}

/// The last choice of a superstep is in `router_decision`, where the schema has that key.
#[tokio::test]
async fn choices_are_recorded() {
    use stepfold_graph::progress::keys::{CURRENT_NODE, EXECUTION_COUNTS, ROUTER_DECISION};
    let schema = Schema::builder()
        .key(LOG)
        .key(NEXT)
        .key(ROUTER_DECISION)
        .key(EXECUTION_COUNTS)
        .key(CURRENT_NODE)
        .build()
        .unwrap();
    let graph = Graph::builder("tested")
        .schema(schema)
        .node("a", note)
        .node("b", note)
        .edge(START, "a")
        .route("a", ["b", "a"], |state: &State| {
            let ran = state.get(LOG).unwrap().unwrap_or_default().len();
            match ran {
                1 => RouteChoice::of("a").because("once is not enough"),
                _ => RouteChoice::of("b"),
            }
        });
    check(graph, "go", expect![[r#"
        1: a
           a -> a, once is not enough
        2: a
           a -> b
        3: b
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"current_node":"b","execution_counts":{"a":2,"b":1},"log":["a","a","b"],"router_decision":{"node":"a","targets":["b"]}}
    "#]]).await;
}

fn fan() -> stepfold_graph::GraphBuilder {
    graph()
        .node("a", note)
        .node("each", note)
        .node("behind", note)
        .edge(START, "a")
        .fan_out("a", "each", "items")
        .edge("each", "behind")
}

#[tokio::test]
async fn a_branch_for_each_item() {
    check(
        fan(),
        items(json!([2, {"x": 1}, "text"])),
        expect![[r#"
        1: a
        2: each(2), each({"x":1}), each("text")
        3: behind
        --
        --
        exit: the graph reached its end
        steps: 3
        state: {"items":[2,{"x":1},"text"],"log":["a","each(2)","each({\"x\":1})","each(\"text\")","behind"]}
    "#]],
    )
    .await;
}

/// No items: on behind the node, at once.
#[tokio::test]
async fn no_items() {
    check(
        fan(),
        items(json!([])),
        expect![[r#"
        1: a
        2: behind
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":[],"log":["a","behind"]}
    "#]],
    )
    .await;
    check(
        fan(),
        "go",
        expect![[r#"
        1: a
        2: behind
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","behind"]}
    "#]],
    )
    .await;
}

/// A null in the list is an item.
#[tokio::test]
async fn null_is_an_item() {
    check(
        fan(),
        items(json!([null, 1])),
        expect![[r#"
        1: a
        2: each(null), each(1)
        3: behind
        --
        --
        exit: the graph reached its end
        steps: 3
        state: {"items":[null,1],"log":["a","each(null)","each(1)","behind"]}
    "#]],
    )
    .await;
}

/// What is not a list is an error; a null is not an item.
#[tokio::test]
async fn items_that_are_no_list() {
    let graph = || {
        Graph::builder("tested")
            .schema(Schema::builder().key(LOG).key::<Option<Value>>("items").build().unwrap())
            .node("each", note)
            .node("behind", note)
            .fan_out(START, "each", "items")
            .edge("each", "behind")
    };
    check(
        graph(),
        items(json!({"x": 1})),
        expect![[r#"
            --
            --
            error: run 'run' failed after step 0: run could not continue: route after START failed: its fan-out over "items": expected a list, found {"x":1}
            steps: 0
            state: {"items":{"x":1}}
        "#]],
    )
    .await;
    check(
        graph(),
        items(json!(null)),
        expect![[r#"
        1: behind
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":null,"log":["behind"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn a_thousand_items() {
    let graph = fan().build().unwrap();
    let walked = walk(&graph, items((0..1_000).collect())).await;
    expect![[r#"
        1: a
        2: 1000 branches
        3: behind
        --
    "#]]
    .assert_eq(&walked.steps());
    let log = walked.log();
    let each: Vec<String> = (0..1_000).map(|item| format!("each({item})")).collect();
    assert_eq!((&log[0][..], &log[1..1_001], &log[1_001][..]), ("a", &each[..], "behind"));
}

/// Those that finish last are merged where they stand.
#[tokio::test(start_paused = true)]
async fn the_order_of_finishing_changes_nothing() {
    async fn slow(node: NodeContext) -> Result<Update, NodeError> {
        let item: u64 = node.item_as()?;
        // tidy: allow sleep, because time is paused.
        tokio::time::sleep(std::time::Duration::from_secs(10 - item)).await;
        Ok(noted(&node))
    }
    let graph = graph().node("each", slow).fan_out(START, "each", "items").max_parallel(3);
    check(
        graph,
        items((0..6).collect()),
        expect![[r#"
        1: each(0), each(1), each(2), each(3), each(4), each(5)
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[0,1,2,3,4,5],"log":["each(0)","each(1)","each(2)","each(3)","each(4)","each(5)"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn items_of_a_function() {
    let graph = graph()
        .node("each", note)
        .fan_out_with(START, "each", |state| vec![state.messages().len().into(), "two".into()]);
    check(
        graph,
        "go",
        expect![[r#"
        1: each(1), each("two")
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["each(1)","each(\"two\")"]}
    "#]],
    )
    .await;
}

#[tokio::test]
async fn more_branches_than_allowed() {
    check(fan().max_branches(3), items(json!([1, 2, 3, 4])), expect![[r#"
        1: a
        --
        --
        error: run 'run' failed after step 1: run could not continue: too many branches in the next superstep: expected at most 3, found 4; see `max_branches`
        steps: 1
        state: {"items":[1,2,3,4],"log":["a"]}
    "#]]).await;
}

/// Two ways to one node: its items side by side, and once without one.
#[tokio::test]
async fn items_and_an_edge() {
    let graph = graph()
        .node("each", note)
        .fan_out(START, "each", "items")
        .fan_out(START, "each", "items")
        .edge(START, "each")
        .edge(START, "each");
    check(
        graph,
        items(json!([1, 2])),
        expect![[r#"
        1: each(1), each(2), each(1), each(2), each
        --
        --
        exit: the graph reached its end
        steps: 1
        state: {"items":[1,2],"log":["each(1)","each(2)","each(1)","each(2)","each"]}
    "#]],
    )
    .await;
}

/// The node itself says where to go, in place of its edges.
#[tokio::test]
async fn chosen_by_the_node() {
    let graph = |goto: fn() -> Update| {
        graph()
            .node("a", Node::new(move |_| async move { Ok(goto()) }).goes_to(["b", "c", END]))
            .node("b", note)
            .node("c", note)
            .node("edge", note)
            .edge(START, "a")
            .edge("a", "edge")
            .edge("b", END)
    };
    check(
        graph(Update::new),
        "go",
        expect![[r#"
        1: a
        2: edge
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["edge"]}
    "#]],
    )
    .await;
    check(
        graph(|| Update::new().goto("c")),
        "go",
        expect![[r#"
        1: a
        2: c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["c"]}
    "#]],
    )
    .await;
    check(
        graph(|| Update::new().goto("c").goto("b").goto("c")),
        "go",
        expect![[r#"
        1: a
        2: b, c
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["b","c"]}
    "#]],
    )
    .await;
    check(
        graph(|| Update::new().goto(END)),
        "go",
        expect![[r#"
        1: a
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 1
    "#]],
    )
    .await;
    check(
        graph(|| Update::new().goto_with("c", 1).goto_with("c", json!({"x": 2})).goto_with("b", Value::Null)),
        "go",
        expect![[r#"
            1: a
            2: b(null), c(1), c({"x":2})
            --
            user:      go
            --
            exit: the graph reached its end
            steps: 2
            state: {"log":["b(null)","c(1)","c({\"x\":2})"]}
        "#]],
    )
    .await;
    check(graph(|| Update::new().goto("edge")), "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: undeclared target "edge"; declared: b, c, END; see `goes_to`
        steps: 1
    "#]]).await;
}

#[tokio::test]
async fn chosen_by_a_node_that_declares_nothing() {
    let graph = graph()
        .node("a", |_: NodeContext| async { Ok::<_, NodeError>(Update::new().goto("b")) })
        .node("b", note)
        .edge(START, "a")
        .edge("a", "b");
    check(graph, "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: undeclared target "b"; declared: none; see `goes_to`
        steps: 1
    "#]]).await;
}

/// Some branches choose, the others follow the edges.
#[tokio::test]
async fn some_branches_choose() {
    async fn odd(node: NodeContext) -> Result<Update, NodeError> {
        let item: u64 = node.item_as()?;
        Ok(if item % 2 == 1 { noted(&node).goto_with("again", item * 10) } else { noted(&node) })
    }
    let graph = graph()
        .node("each", Node::new(odd).goes_to(["again"]))
        .node("again", note)
        .node("behind", note)
        .fan_out(START, "each", "items")
        .edge("each", "behind");
    check(
        graph,
        items(json!([1, 2, 3])),
        expect![[r#"
        1: each(1), each(2), each(3)
        2: again(10), again(30), behind
        --
        --
        exit: the graph reached its end
        steps: 2
        state: {"items":[1,2,3],"log":["each(1)","each(2)","each(3)","again(10)","again(30)","behind"]}
    "#]],
    )
    .await;
}

/// A deferred node runs when nothing else is left, once, whatever led there and when.
#[tokio::test]
async fn deferred() {
    let graph = graph()
        .node("short", note)
        .node("long", note)
        .node("longer", note)
        .node("last", Node::new(note).deferred())
        .edge(START, "short")
        .edge(START, "long")
        .edge("long", "longer")
        .edge("short", "last")
        .edge("longer", "last");
    check(
        graph,
        "go",
        expect![[r#"
        1: short, long
        2: longer
           deferred: last
        3: last
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 3
        state: {"log":["short","long","longer","last"]}
    "#]],
    )
    .await;
}

/// Two that are deferred run side by side; items wait with their nodes.
#[tokio::test]
async fn deferred_items() {
    let graph = graph()
        .node("a", note)
        .node("each", Node::new(note).deferred())
        .node("b", note)
        .node("last", Node::new(note).deferred())
        .edge(START, "a")
        .fan_out(START, "each", "items")
        .edge("a", "b")
        .edge("a", "last");
    check(
        graph,
        items(json!([1, 2])),
        expect![[r#"
        1: a
           deferred: each(1), each(2)
        2: b
           deferred: each(1), each(2), last
        3: each(1), each(2), last
        --
        --
        exit: the graph reached its end
        steps: 3
        state: {"items":[1,2],"log":["a","b","each(1)","each(2)","last"]}
    "#]],
    )
    .await;
}

/// A snapshot, the item, the execution, the resources.
#[tokio::test]
async fn what_a_node_is_given() {
    use stepfold_agent_loop::tools::Resources;
    async fn look(node: NodeContext) -> Result<Update, NodeError> {
        let line = format!(
            "{} {} {:?} {} {} {:?}",
            node.node(),
            node.execution(),
            node.item(),
            node.idempotency_key(),
            node.key_for("mail"),
            node.resource::<String>(),
        );
        Ok(Update::new().set(LOG, vec![line]))
    }
    let graph = graph()
        .resources(Resources::new().with("shared".to_owned()))
        .node("a", look)
        .node("each", look)
        .edge(START, "a")
        .fan_out("a", "each", "items")
        .route("each", ["a", END], |state: &State| match state.get(LOG).unwrap().unwrap_or_default().len() {
            3 => "a",
            _ => END,
        });
    check(graph, items(json!([5, 6])), expect![[r#"
        1: a
        2: each(5), each(6)
           each -> a
        3: a
        4: each(5), each(6)
           each -> __end__
        --
        --
        exit: the graph reached its end
        steps: 4
        state: {"items":[5,6],"log":["a 1 None run/1/0 run/1/0/mail Some(\"shared\")","each 1 Some(Number(5)) run/2/0 run/2/0/mail Some(\"shared\")","each 1 Some(Number(6)) run/2/1 run/2/1/mail Some(\"shared\")","a 2 None run/3/0 run/3/0/mail Some(\"shared\")","each 2 Some(Number(5)) run/4/0 run/4/0/mail Some(\"shared\")","each 2 Some(Number(6)) run/4/1 run/4/1/mail Some(\"shared\")"]}
    "#]]).await;
}

/// Branches of different kinds of answers: nothing, a delta, an update.
#[tokio::test]
async fn what_a_node_gives() {
    let schema = Schema::builder().key(LOG).key(ITEMS).key(NEXT).build().unwrap();
    let graph = graph()
        .node("nothing", |_: NodeContext| async { Ok::<(), NodeError>(()) })
        .node("delta", move |_: NodeContext| {
            let write = schema.write(LOG, vec!["delta".to_owned()]);
            async move {
                Ok::<_, NodeError>(
                    [write?].into_iter().collect::<stepfold_agent_loop::state_core::state::Delta>(),
                )
            }
        })
        .node("removal", |_: NodeContext| async {
            Ok::<_, NodeError>(
                Update::new()
                    .remove("next")
                    .say("removed")
                    .message(stepfold_agent_loop::state_core::chat::Message::assistant("and said so")),
            )
        })
        .edge(START, "nothing")
        .edge(START, "delta")
        .edge(START, "removal");
    check(
        graph,
        values(json!({"next": "x"})),
        expect![[r#"
        1: nothing, delta, removal
        --
        assistant: removed
        assistant: and said so
        --
        exit: the graph reached its end
        steps: 1
        state: {"log":["delta"]}
    "#]],
    )
    .await;
}

/// A write that does not fit is the failure of the node, and nothing of it is written.
#[tokio::test]
async fn writes_that_do_not_fit() {
    let graph = |update: fn() -> Update| {
        graph().node("a", move |_: NodeContext| async move { Ok::<_, NodeError>(update()) }).edge(START, "a")
    };
    check(graph(|| Update::new().set(LOG, vec![String::new()]).set("next", 3)), "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: invalid value for key "next": expected string, found integer at $
        steps: 1
    "#]]).await;
    check(graph(|| Update::new().set("nxet", "b")), "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: unknown key "nxet"; known keys: log, items, next, messages
        steps: 1
    "#]]).await;
    check(graph(|| Update::new().set("messages", json!([]))), "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: key "messages" cannot be written: it is the projection of message events; push a message instead
        steps: 1
    "#]]).await;
    check(graph(|| Update::new().output("x", 1)), "go", expect![[r#"
        1: a
        --
        user:      go
        --
        error: run 'run' failed after step 1: node 'a' failed: invalid outputs: unknown key "outputs"; known keys: log, items, next, messages
        steps: 1
    "#]]).await;
}

/// What cannot be merged is not, as a whole; the others' writes are.
#[tokio::test]
async fn writes_that_do_not_merge() {
    const SUM: Key<i64> = Key::new("sum");
    let schema = Schema::builder().key(LOG).key(SUM).handler(Handler::sum()).build().unwrap();
    let graph = |unmerged: fn(Node) -> Node| {
        let too_much = Node::new(|node: NodeContext| async move {
            Ok::<_, NodeError>(noted(&node).set(SUM, i64::MAX).say("never said"))
        });
        Graph::builder("tested")
            .schema(schema.clone())
            .node("a", |node: NodeContext| async move { Ok::<_, NodeError>(noted(&node).set(SUM, 1)) })
            .node("b", unmerged(too_much))
            .node("c", note)
            .node("behind", note)
            .edge(START, "a")
            .edge(START, "b")
            .edge(START, "c")
            .edge("b", "behind")
    };
    check(graph(|node| node), "go", expect![[r#"
        1: a, b, c
           what it wrote cannot be merged: invalid value for key "sum": expected i64, found an invalid integer at $
        --
        user:      go
        --
        exit: node 'b' failed: what it wrote cannot be merged: invalid value for key "sum": expected i64, found an invalid integer at $
        steps: 1
        state: {"log":["a","c"],"sum":1}
    "#]]).await;
    check(graph(Node::continue_after_error), "go", expect![[r#"
        1: a, b, c
           what it wrote cannot be merged: invalid value for key "sum": expected i64, found an invalid integer at $
        2: behind
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","c","behind"],"sum":1}
    "#]]).await;
    check(graph(|node| node.on_error("behind")), "go", expect![[r#"
        1: a, b, c
           what it wrote cannot be merged: invalid value for key "sum": expected i64, found an invalid integer at $
        2: behind({"error":"what it wrote cannot be merged: invalid value for key \"sum\": expected i64, found an invalid integer at $","node":"b"})
        --
        user:      go
        --
        exit: the graph reached its end
        steps: 2
        state: {"log":["a","c","behind({\"error\":\"what it wrote cannot be merged: invalid value for key \\\"sum\\\": expected i64, found an invalid integer at $\",\"node\":\"b\"})"],"sum":1}
    "#]]).await;
}
