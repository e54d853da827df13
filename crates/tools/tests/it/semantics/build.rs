//! What is refused before anything runs, with the whole text of each refusal.

use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_tools::state_core::state::{Handler, Schema};
use stepfold_tools::{BuildError, RawArgs, Resource, Resources, Retry, StateWriter, Tool, ToolError, Tools};

use super::{echo, returns};

fn check<T>(result: Result<T, BuildError>, expected: Expect) {
    let text = match result {
        Ok(_) => "fine".to_owned(),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&text);
}

#[test]
fn bindings_against_the_schema() {
    let tool = returns("search", json!(1))
        .reads(["typo_1"])
        .writes(["typo_2"])
        .output_to_state("typo_3", "x")
        .output_to_state_with("documents", "x", Handler::custom("unknown", |_, new| Ok(new)))
        .output_to_state_with("documents", "x", Handler::sum())
        .build()
        .unwrap();
    let schema = Schema::builder().key::<Vec<String>>("documents").build().unwrap();
    check(
        tool.check(&schema, &Resources::new()),
        expect![[
            r#"invalid tool 'search': state key "typo_1": not declared: add it to the agent's schema, or to that of the graph around it; state key "typo_3": not declared: add it to the agent's schema, or to that of the graph around it; state key "documents": unknown handler "unknown"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins; state key "documents": handler sum failed for key "documents": requires number, found list of string; state key "typo_2": not declared: add it to the agent's schema, or to that of the graph around it"#
        ]],
    );
}

#[test]
fn bindings_against_an_open_schema() {
    let tool = returns("search", json!(1)).reads(["a"]).output_to_state("b", "x").build().unwrap();
    check(tool.check(&Schema::builder().open().build().unwrap(), &Resources::new()), expect!["fine"]);
}

#[test]
fn bindings_to_an_unknown_parameter() {
    let tool = echo("search", json!({"limit": {"type": "integer"}, "query": {"type": "string"}}))
        .input_from_state("user_name", "user_contxt")
        .input_from_state("user_name", "query")
        .input_from_state("other", "query");
    check(
        tool.build(),
        expect![[
            r#"invalid tool 'search': parameter "user_contxt": unknown parameter, read from the state; available: limit, query; parameter "query": read from two keys of the state"#
        ]],
    );
}

#[test]
fn bindings_with_impossible_keys() {
    let tool =
        returns("search", json!(1)).output_to_state("usr:x", "x").output_to_state("", "x").writes(["a\nb"]);
    check(
        tool.build(),
        expect![[
            r#"invalid tool 'search': state key "usr:x": invalid key "usr:x": unknown prefix before ':'; available: app:, user:, temp:; state key "": invalid key "": missing name; state key "a\nb": invalid key "a\nb": contains characters that do not print"#
        ]],
    );
}

#[test]
fn targeting_messages() {
    check(
        returns("search", json!(1)).output_to_state("messages", "x").build(),
        expect!["invalid tool 'search': messages: must not be written by tools: it is the conversation"],
    );
    check(
        returns("search", json!(1)).writes(["messages"]).build(),
        expect!["invalid tool 'search': messages: must not be written by tools: it is the conversation"],
    );
}

#[test]
fn reading_messages_is_fine() {
    let tool = returns("search", json!(1)).reads(["messages"]).build().unwrap();
    check(tool.check(&Schema::builder().build().unwrap(), &Resources::new()), expect!["fine"]);
}

#[test]
fn duplicate_tool_names() {
    let tool = || returns("search", json!(1)).build().unwrap();
    check(
        Tools::of([tool(), tool()]),
        expect![[r#"invalid tools: search: duplicate name in toolset "tools": rename one of the two"#]],
    );
}

#[test]
fn everything_that_a_tool_can_get_wrong_at_once() {
    let function = |_: RawArgs, _: StateWriter| async { Ok::<_, ToolError>(()) };
    let tool = Tool::new("sear ch", " ", function).timeout(Duration::ZERO).retry(Retry::times(2));
    check(
        tool.build(),
        expect![
            "invalid tool 'sear ch': name: expected 1 to 64 letters, digits, '_' or '-'; description: must not be empty: describe for the model what the tool does and when to use it; timeout: must be positive: no call could finish; retry: requires a pure or idempotent tool: declare the effect, or leave retries to the model; writes: missing: the function takes a StateWriter, so declare the keys that it writes; parameters: missing JSON Schema: set it with `parameters`, since the function takes raw arguments"
        ],
    );
}

#[test]
fn resources_missing() {
    struct Pool;
    let tool =
        Tool::new("query", "Queries.", |_: Resource<Pool>| async { Ok::<_, ToolError>(()) }).build().unwrap();
    let schema = Schema::builder().build().unwrap();
    let error = tool.check(&schema, &Resources::new()).unwrap_err().to_string();
    assert!(error.starts_with("invalid tool 'query': resource it::semantics::build::"), "{error}");
    assert!(error.ends_with("::Pool: missing from the resources of the run"), "{error}");
    check(tool.check(&schema, &Resources::new().with(Pool)), expect!["fine"]);
}
