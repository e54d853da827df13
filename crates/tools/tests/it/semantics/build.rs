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
            r#"tool 'search' has faults: state key "typo_1": is read, but the schema does not declare it; state key "typo_3": unknown key "typo_3"; known keys: documents, messages; state key "documents": unknown handler "unknown"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins; state key "documents": handler sum failed for key "documents": handler sum requires a type that allows number, found list of string; state key "typo_2": unknown key "typo_2"; known keys: documents, messages"#
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
            r#"tool 'search' has faults: parameter "user_contxt": is fed from state, but the tool has no such parameter; it has: limit, query; parameter "query": is fed from two keys of the state"#
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
            r#"tool 'search' has faults: state key "usr:x": invalid key "usr:x": unknown prefix before ':'; available: app:, user:, temp:; state key "": invalid key "": missing name; state key "a\nb": invalid key "a\nb": contains characters that do not print"#
        ]],
    );
}

#[test]
fn targeting_messages() {
    check(
        returns("search", json!(1)).output_to_state("messages", "x").build(),
        expect!["tool 'search' has faults: messages: is the conversation and takes no writes from tools"],
    );
    check(
        returns("search", json!(1)).writes(["messages"]).build(),
        expect!["tool 'search' has faults: messages: is the conversation and takes no writes from tools"],
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
        expect![[
            r#"the tools have faults: search: is offered twice by toolset "tools"; rename one of the two"#
        ]],
    );
}

#[test]
fn everything_that_a_tool_can_get_wrong_at_once() {
    let function = |_: RawArgs, _: StateWriter| async { Ok::<_, ToolError>(()) };
    let tool = Tool::new("sear ch", " ", function).time_out(Duration::ZERO).retry(Retry::times(2));
    check(
        tool.build(),
        expect![
            "tool 'sear ch' has faults: name: is not of 1 to 64 letters, digits, '_' or '-', which is what models can call; description: is empty; say for the model what the tool does and when to use it; time_out: is zero; no call could ever finish; retry: is only for tools that are pure or idempotent; declare the effect, or leave the retry to the model; writes: the function takes a StateWriter; declare the keys that it writes; parameters: the function takes raw arguments; give their JSON Schema with `parameters`"
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
    assert!(error.starts_with("tool 'query' has faults: resource it::semantics::build::"), "{error}");
    assert!(error.ends_with("::Pool: is not among the resources of the run"), "{error}");
    check(tool.check(&schema, &Resources::new().with(Pool)), expect!["fine"]);
}
