//! Every message of the crate's errors, in one list.

use std::fmt::Display;
use std::time::Duration;

use expect_test::expect_file;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{Arguments, ToolCall};
use stepfold_tools::state_core::state::{Handler, Issue, Issues, Schema, State};
use stepfold_tools::{
    BuildError, Effect, FatalError, RawArgs, Resources, Retry, Tool, ToolBuilder, ToolError, Tools, Toolset,
    ToolsetError, WriteError,
};

/// A list of messages under headings.
#[derive(Default)]
struct List(String);

impl List {
    fn part(&mut self, heading: &str, messages: impl IntoIterator<Item = impl Display>) {
        self.0.extend(["# ", heading, "\n"]);
        for message in messages {
            self.0.extend([message.to_string().as_str(), "\n"]);
        }
        self.0.push('\n');
    }
}

#[tokio::test]
async fn every_error_message() {
    let mut list = List::default();
    list.part("ToolError", tool_errors());
    list.part("WriteError", write_errors());
    list.part("BuildError::InvalidTool", invalid_tools().iter().flat_map(faults_of));
    list.part("BuildError", build_errors());
    list.part("ToolsetError", toolset_errors().await);
    list.part("FatalError", [FatalError::new("c1", "save", 0, std::io::Error::other("no disk"))]);
    list.part("refused calls", refused_calls());
    expect_file!["messages.txt"].assert_eq(&list.0);
}

/// What a failed `unwrap` prints, and a `main` that returns the error.
#[test]
fn debug_is_the_text() {
    for error in tool_errors() {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
    for error in build_errors() {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

fn faults() -> Issues {
    Issues::from(Issue::new(
        "state key \"visits\"",
        "not declared: add it to the agent's schema, or to that of the graph around it",
    ))
}

fn tool_errors() -> Vec<ToolError> {
    vec![
        ToolError::new("connection refused"),
        ToolError::permanent("the query is empty"),
        ToolError::fatal(std::io::Error::other("no disk")),
    ]
}

fn write_errors() -> Vec<WriteError> {
    let schema = Schema::builder().build().unwrap();
    vec![
        WriteError::Undeclared { tool: "save".to_owned(), key: "visits".to_owned() },
        WriteError::Ended { tool: "save".to_owned() },
        WriteError::State(State::new(&schema).set("visits", 1).unwrap_err()),
    ]
}

fn build_errors() -> Vec<BuildError> {
    vec![
        BuildError::InvalidTool { tool: "save".to_owned(), faults: faults() },
        BuildError::InvalidTools { faults: faults() },
    ]
}

fn echo(name: &str, parameters: Value) -> ToolBuilder {
    Tool::new(name, "Echoes.", async |RawArgs(value): RawArgs| Ok::<_, ToolError>(value))
        .parameters(parameters)
}

fn invalid_tools() -> Vec<BuildError> {
    let object = json!({"type": "object", "properties": {"query": {"type": "string"}}});
    let raw = |name: &str| Tool::new(name, "", async |RawArgs(value): RawArgs| Ok::<_, ToolError>(value));
    let builders = [
        raw("no such name"),
        echo("a", json!(5)),
        echo("a", json!({"type": "array"})),
        echo("a", json!({"type": "object", "anyOf": [{"type": "object"}]})),
        echo("a", json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/none"}}})),
        echo("a", json!({"type": "object", "properties": {"next": {"$ref": "#"}}})),
        echo("a", object.clone()).timeout(Duration::ZERO).retry(Retry::times(1)).effect(Effect::AtMostOnce),
        echo("a", object.clone())
            .input_from_state("key", "limit")
            .input_from_state("key", "query")
            .input_from_state("other", "query")
            .output_to_state("messages", "x")
            .output_to_state("usr:x", "x"),
    ];
    let mut errors: Vec<BuildError> = builders.into_iter().map(|tool| tool.build().unwrap_err()).collect();
    let schema = Schema::builder().key::<String>("name").build().unwrap();
    let bound = echo("a", object).reads(["typo"]).output_to_state_with("name", "x", Handler::sum());
    errors.push(bound.build().unwrap().check(&schema, &Resources::new()).unwrap_err());
    let ping = echo("ping", json!({"type": "object"})).build().unwrap();
    errors.push(Tools::of([ping.clone(), ping.clone()]).unwrap_err());
    let twice =
        Toolset::merged("all", [Toolset::new("a", [ping.clone()]), Toolset::new("b", [ping.clone()])]);
    errors.push(twice.check(&schema, &Resources::new()).unwrap_err());
    errors.push(Toolset::new("a", [ping]).only(["pong"]).check(&schema, &Resources::new()).unwrap_err());
    errors
}

fn faults_of(error: &BuildError) -> Vec<String> {
    let (BuildError::InvalidTool { faults, .. } | BuildError::InvalidTools { faults }) = error else {
        return vec![error.to_string()];
    };
    faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

async fn toolset_errors() -> Vec<ToolsetError> {
    let state = State::new(&Schema::builder().build().unwrap());
    let remote = Toolset::dynamic_with("remote", |_| async { Err("connection refused".into()) });
    let built = ToolsetError::Build(BuildError::InvalidTools { faults: faults() });
    vec![remote.resolve(&state).await.unwrap_err(), built]
}

fn refused_calls() -> Vec<String> {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let tools = Tools::of([echo("count", parameters).build().unwrap()]).unwrap();
    let calls = [
        ToolCall::new("c1", "cout", json!({})),
        ToolCall::new("c1", "count", Arguments::parse("{n: 1}")),
        ToolCall::new("c1", "count", Arguments::parse("[1]")),
        ToolCall::new("c1", "count", json!({"n": "one"})),
        ToolCall::new("c1", "count", json!({})),
    ];
    calls.iter().map(|call| tools.refusal(call).unwrap().result.text().into_owned()).collect()
}
