//! `inputs_from_state` and `outputs_to_state`.

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_tools::state_core::canonical_json;
use stepfold_tools::state_core::state::{Handler, HandlerError, Schema, SchemaBuilder};
use stepfold_tools::{ResultSource, StateWriter, Tool, ToolBuilder, ToolError};

use super::{World, echo, returns};

/// The key `user_name` and the tool `search(query, user_context)` that is fed from it.
fn user_world(values: Value) -> World {
    World::new(Schema::builder().key::<Option<String>>("user_name"), values)
}

fn search() -> ToolBuilder {
    echo("search", json!({"query": {"type": "string"}, "user_context": {"type": ["string", "null"]}}))
}

#[test]
fn canonical_bindings_are_those_of_the_tool() {
    let fed = search().input_from_state("user_name", "user_context");
    let tools = [search(), fed, search().reads(["user_name"]), search().writes(["user_name"])];
    for tool in tools.map(|tool| tool.build().unwrap()) {
        assert_eq!(tool.canonical_bindings(), canonical_json(&tool.bindings()));
    }
}

#[tokio::test]
async fn inputs_from_state_injects_what_is_set() {
    let world = user_world(json!({"user_name": "Alice"}))
        .tool(search().input_from_state("user_name", "user_context"));
    world
        .check(
            r#"> c1 search(query="stalls")"#,
            expect![[r#"
                assistant: > c1 search(query="stalls")
                tool c1:   {"query": "stalls", "user_context": "Alice"}
                state: {"user_name":"Alice"}
            "#]],
        )
        .await;
}

#[tokio::test]
async fn inputs_from_state_injects_a_stored_null() {
    let world =
        user_world(json!({"user_name": null})).tool(search().input_from_state("user_name", "user_context"));
    world
        .check(
            r#"> c1 search(query="stalls")"#,
            expect![[r#"
        assistant: > c1 search(query="stalls")
        tool c1:   {"query": "stalls", "user_context": null}
        state: {"user_name":null}
    "#]],
        )
        .await;
}

#[tokio::test]
async fn inputs_from_state_leaves_an_unset_key_out() {
    let world = user_world(json!({})).tool(search().input_from_state("user_name", "user_context"));
    world
        .check(
            r#"> c1 search(query="stalls")"#,
            expect![[r#"
        assistant: > c1 search(query="stalls")
        tool c1:   {"query": "stalls"}
    "#]],
        )
        .await;
}

#[tokio::test]
async fn precedence_only_state_sets_what_is_fed() {
    let world = user_world(json!({"user_name": "Alice"}))
        .tool(search().input_from_state("user_name", "user_context"));
    let properties = &world.tools[0].spec().parameters["properties"];
    assert_eq!(*properties, json!({"query": {"type": "string"}}), "the model does not see it");
    // Ignored, whatever its type: the fault would be the model's only way to learn of the parameter.
    world
        .check(
            r#"> c1 search(query="stalls", user_context=7)"#,
            expect![[r#"
        assistant: > c1 search(query="stalls", user_context=7)
        tool c1:   {"query": "stalls", "user_context": "Alice"}
        state: {"user_name":"Alice"}
    "#]],
        )
        .await;
}

#[tokio::test]
async fn precedence_the_models_argument_is_ignored_also_where_the_key_is_unset() {
    let world = user_world(json!({})).tool(search().input_from_state("user_name", "user_context"));
    world
        .check(
            r#"> c1 search(query="stalls", user_context="Mallory")"#,
            expect![[r#"
        assistant: > c1 search(query="stalls", user_context="Mallory")
        tool c1:   {"query": "stalls"}
    "#]],
        )
        .await;
}

#[tokio::test]
async fn visible_and_injected() {
    let world = user_world(json!({"user_name": "Alice"}))
        .tool(search().default_from_state("user_name", "user_context"));
    let properties = &world.tools[0].spec().parameters["properties"];
    assert!(properties.get("user_context").is_some(), "the model sees it");
    world
        .check(
            r#"> c1 search() > c2 search(user_context="Bob") > c3 search(user_context=null)"#,
            expect![[r#"
                assistant: > c1 search()   > c2 search(user_context="Bob")   > c3 search(user_context=null)
                tool c1:   {"user_context": "Alice"}
                tool c2:   {"user_context": "Bob"}
                tool c3:   {"user_context": null}
                state: {"user_name":"Alice"}
            "#]],
        )
        .await;
}

fn found_schema() -> SchemaBuilder {
    Schema::builder()
        .key::<Vec<Value>>("documents")
        .key::<i64>("count")
        .handler(Handler::sum())
        .key::<Value>("last")
}

#[tokio::test]
async fn outputs_to_state_in_declared_order() {
    let tool = returns("retrieve", json!({"count": 2, "documents": ["a", "b"]}))
        .output_to_state("count", "count")
        .output_to_state("documents", "documents")
        .output_to_state("last", "count")
        .output_to_state("last", "documents");
    World::new(found_schema(), json!({"count": 40})).tool(tool).check("> c1 retrieve()", expect![[r#"
        assistant: > c1 retrieve()
        tool c1:   {"count": 2, "documents": ["a", "b"]}
        state: {"count":42,"documents":["a","b"],"last":["a","b"]}
        delta c1: [{"key":"count","handler":"sum","value":2},{"key":"documents","handler":"merge_lists","value":["a","b"]},{"key":"last","handler":"replace_values","value":2},{"key":"last","handler":"replace_values","value":["a","b"]}]
    "#]]).await;
}

#[tokio::test]
async fn outputs_to_state_skips_a_missing_source() {
    let tool = returns("retrieve", json!({"count": 2}))
        .output_to_state("documents", "documents")
        .output_to_state("count", "count");
    World::new(found_schema(), json!({}))
        .tool(tool)
        .check(
            "> c1 retrieve()",
            expect![[r#"
        assistant: > c1 retrieve()
        tool c1:   {"count": 2}
        state: {"count":2}
        delta c1: [{"key":"count","handler":"sum","value":2}]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_state_stores_a_null_source() {
    let tool = returns("retrieve", json!({"last": null})).output_to_state("last", "last");
    World::new(found_schema(), json!({"last": 1}))
        .tool(tool)
        .check(
            "> c1 retrieve()",
            expect![[r#"
        assistant: > c1 retrieve()
        tool c1:   {"last": null}
        state: {"last":null}
        delta c1: [{"key":"last","handler":"replace_values","value":null}]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_state_whole_result_of_any_type() {
    let mut world = World::new(found_schema(), json!({}));
    let results = [json!({"a": 1}), json!([1, [2]]), json!("text"), json!(0.5), json!(true), json!(null)];
    for (index, result) in results.into_iter().enumerate() {
        let tool = returns(&format!("get_{index}"), result)
            .output_to_state_with("documents", ResultSource::Whole, Handler::merge_lists())
            .output_to_state("last", ResultSource::Whole);
        world = world.tool(tool);
    }
    let reply = "> c0 get_0() > c1 get_1() > c2 get_2() > c3 get_3() > c4 get_4() > c5 get_5()";
    world.check(reply, expect![[r#"
        assistant: > c0 get_0()   > c1 get_1()   > c2 get_2()   > c3 get_3()   > c4 get_4()   > c5 get_5()
        tool c0:   {"a": 1}
        tool c1:   [1, [2]]
        tool c2:   text
        tool c3:   0.5
        tool c4:   true
        tool c5:   null
        state: {"documents":[{"a":1},1,[2],"text",0.5,true,null],"last":null}
        delta c0: [{"key":"documents","handler":"merge_lists","value":[{"a":1}]},{"key":"last","handler":"replace_values","value":{"a":1}}]
        delta c1: [{"key":"documents","handler":"merge_lists","value":[1,[2]]},{"key":"last","handler":"replace_values","value":[1,[2]]}]
        delta c2: [{"key":"documents","handler":"merge_lists","value":["text"]},{"key":"last","handler":"replace_values","value":"text"}]
        delta c3: [{"key":"documents","handler":"merge_lists","value":[0.5]},{"key":"last","handler":"replace_values","value":0.5}]
        delta c4: [{"key":"documents","handler":"merge_lists","value":[true]},{"key":"last","handler":"replace_values","value":true}]
        delta c5: [{"key":"documents","handler":"merge_lists","value":[null]},{"key":"last","handler":"replace_values","value":null}]
    "#]]).await;
}

#[tokio::test]
async fn outputs_to_state_of_a_result_without_fields() {
    let tool = returns("retrieve", json!("text")).output_to_state("last", "field");
    World::new(found_schema(), json!({}))
        .tool(tool)
        .check(
            "> c1 retrieve()",
            expect![[r#"
        assistant: > c1 retrieve()
        tool c1:   text
    "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_state_by_another_handler() {
    let sorted = Handler::custom("sorted", |current, new| {
        let mut items: Vec<i64> = Vec::new();
        for value in [current.cloned().unwrap_or_default(), new] {
            items.extend(value.as_array().into_iter().flatten().filter_map(Value::as_i64));
        }
        items.sort_unstable();
        Ok::<_, HandlerError>(json!(items))
    });
    let schema = Schema::builder().key::<Vec<i64>>("numbers").register(sorted.clone());
    let tool = returns("draw", json!([3, 1])).output_to_state_with("numbers", ResultSource::Whole, sorted);
    World::new(schema, json!({"numbers": [2]}))
        .tool(tool)
        .check(
            "> c1 draw()",
            expect![[r#"
        assistant: > c1 draw()
        tool c1:   [3, 1]
        state: {"numbers":[1,2,3]}
        delta c1: [{"key":"numbers","handler":"sorted","value":[3,1]}]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_state_after_the_functions_own_writes() {
    let tool = Tool::new("visit", "Counts.", |state: StateWriter| async move {
        state.set("count", 1)?;
        state.set_with("last", "own", &Handler::replace_values())?;
        Ok::<_, ToolError>(json!({"last": "bound"}))
    })
    .writes(["count", "last"])
    .output_to_state("last", "last");
    World::new(found_schema(), json!({})).tool(tool).check("> c1 visit()", expect![[r#"
        assistant: > c1 visit()
        tool c1:   {"last": "bound"}
        state: {"count":1,"last":"bound"}
        delta c1: [{"key":"count","handler":"sum","value":1},{"key":"last","handler":"replace_values","value":"own"},{"key":"last","handler":"replace_values","value":"bound"}]
    "#]]).await;
}

#[tokio::test]
async fn merge_fails_after_a_tool_ran() {
    // The first write of the call is rolled back with the second, and the sibling's is kept.
    let bad = returns("bad", json!({"count": 1, "documents": 7}))
        .output_to_state("count", "count")
        .output_to_state("documents", "documents");
    let good = returns("good", json!({"count": 1})).output_to_state("count", "count");
    let schema =
        Schema::builder().key::<i64>("count").handler(Handler::sum()).key::<Vec<String>>("documents");
    World::new(schema, json!({})).tool(bad).tool(good).check("> c1 bad() > c2 good()", expect![[r#"
        assistant: > c1 bad()   > c2 good()
        tool c1!:  tool 'bad' ran, but its writes to the state failed and none was applied: invalid value for key "documents": expected string, found integer at $
        tool c2:   {"count": 1}
        state: {"count":1}
        delta c2: [{"key":"count","handler":"sum","value":1}]
    "#]]).await;
}

#[tokio::test]
async fn merge_fails_when_the_step_is_settled() {
    // Each write is fine in itself; the second sum overflows. Only that call's writes are rolled back.
    let add = echo("add", json!({"count": {"type": "integer"}, "note": {"type": "string"}}))
        .output_to_state_with("notes", "note", Handler::merge_lists())
        .output_to_state("count", "count");
    let schema = Schema::builder().key::<u64>("count").handler(Handler::sum()).key::<Vec<String>>("notes");
    World::new(schema, json!({}))
        .tool(add)
        .check(
            r#"> c1 add(count=18446744073709551000, note="a") > c2 add(count=1000, note="b") > c3 add(count=600, note="c")"#,
            expect![[r#"
                assistant: > c1 add(count=18446744073709551000, note="a")   > c2 add(count=1000, note="b")   > c3 add(count=600, note="c")
                tool c1:   {"count": 18446744073709551000, "note": "a"}
                tool c2!:  tool 'add' ran, but its writes to the state failed and none was applied: handler sum failed for key "count": the sum does not fit 64 bits
                tool c3:   {"count": 600, "note": "c"}
                state: {"count":18446744073709551600,"notes":["a","c"]}
                delta c1: [{"key":"notes","handler":"merge_lists","value":["a"]},{"key":"count","handler":"sum","value":18446744073709551000}]
                delta c3: [{"key":"notes","handler":"merge_lists","value":["c"]},{"key":"count","handler":"sum","value":600}]
            "#]],
        )
        .await;
}

#[tokio::test]
async fn merge_fails_with_a_handler_that_panics_or_shows_values() {
    let panics = Handler::custom("panics", |_, _| panic!("no such luck"));
    let tells = Handler::custom("tells", |current, _| Err(format!("cannot add to {current:?}").into()));
    let schema = Schema::builder().key::<Value>("a").handler(panics).key::<Value>("b").handler(tells);
    let tool = |name: &str, key: &str| returns(name, json!(1)).output_to_state(key, ResultSource::Whole);
    // A reader behind the failed writes sees the state without them.
    let read = echo("read", json!({"a": {}})).input_from_state("a", "a");
    World::new(schema, json!({"b": "s3cret"}))
        .tool(tool("a", "a"))
        .tool(tool("b", "b"))
        .tool(read)
        .check("> c1 a() > c2 b() > c3 read()", expect![[r#"
            assistant: > c1 a()   > c2 b()   > c3 read()
            tool c1!:  tool 'a' ran, but its writes to the state failed and none was applied: a handler panicked: no such luck
            tool c2!:  tool 'b' ran, but its writes to the state failed and none was applied: handler tells failed for key "b": cannot add to Some(String("<b>"))
            tool c3:   {}
            state: {"b":"s3cret"}
        "#]])
        .await;
}
