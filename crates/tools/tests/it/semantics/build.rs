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
            r#"tool 'search' has faults: at state key "typo_1": is read, but the schema does not declare it; at state key "typo_3": the schema declares no key "typo_3"; known keys: documents, messages; at state key "documents": no handler is named "unknown"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins; at state key "documents": handler sum cannot merge into key "documents": handler sum needs a type that allows number, and this one is list of string; at state key "typo_2": the schema declares no key "typo_2"; known keys: documents, messages"#
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
            r#"tool 'search' has faults: at parameter "user_contxt": is fed from state, but the tool has no such parameter; it has: limit, query; at parameter "query": is fed from two keys of the state"#
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
            r#"tool 'search' has faults: at state key "usr:x": "usr:x" is not a valid key: the prefix before ':' is none of app:, user:, temp:; at state key "": "" is not a valid key: it has no name; at state key "a\nb": "a\nb" is not a valid key: it has characters that do not print"#
        ]],
    );
}

#[test]
fn targeting_messages() {
    check(
        returns("search", json!(1)).output_to_state("messages", "x").build(),
        expect!["tool 'search' has faults: at messages: is the conversation and takes no writes from tools"],
    );
    check(
        returns("search", json!(1)).writes(["messages"]).build(),
        expect!["tool 'search' has faults: at messages: is the conversation and takes no writes from tools"],
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
            r#"the tools have faults: at search: is offered twice by toolset "tools"; rename one of the two"#
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
            "tool 'sear ch' has faults: at name: is not of 1 to 64 letters, digits, '_' or '-', which is what models can call; at description: is empty; say for the model what the tool does and when to use it; at time_out: is zero; no call could ever finish; at retry: is only for tools that are pure or idempotent; declare the effect, or leave the retry to the model; at writes: the function takes a StateWriter; declare the keys that it writes; at parameters: the function takes raw arguments; give their JSON Schema with `parameters`"
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
    assert!(error.starts_with("tool 'query' has faults: at resource it::semantics::build::"), "{error}");
    assert!(error.ends_with("::Pool: is not among the resources of the run"), "{error}");
    check(tool.check(&schema, &Resources::new().with(Pool)), expect!["fine"]);
}
