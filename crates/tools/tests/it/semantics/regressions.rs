//! What reviews found, so that it stays found.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_tools::state_core::state::Schema;
use stepfold_tools::{Args, CallFailure, CallStatus, RawArgs, Tool, ToolError};

use super::World;

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only read")]
struct Call {
    query: String,
    book: Map<String, Value>,
}

/// Keys of an object come from the state as its values do.
#[tokio::test]
async fn error_text_does_not_show_the_keys_of_what_the_state_fed() {
    async fn call(Args(call): Args<Call>) -> Result<(), ToolError> {
        Err(ToolError::new(format!("cannot call {:?}", call.book)))
    }
    let tool = Tool::new("call", "Calls.", call).input_from_state("book", "book");
    let world = World::new(
        Schema::builder().key::<Map<String, Value>>("book"),
        json!({"book": {"alice@example.com": "555-0100"}}),
    );
    let done = world.tool(tool).invocation(r#"> c1 call(query="x")"#).finish().await;
    assert_eq!(done.outcomes[0].result.text(), r#"cannot call {"<book>": String("<book>")}"#);
}

/// Names of fields tell nothing, and what is wrong cannot be said without them.
#[tokio::test]
async fn error_text_shows_the_names_of_fields() {
    async fn call(RawArgs(arguments): RawArgs) -> Result<(), ToolError> {
        Err(ToolError::new(format!("wrong type of profile: {}", arguments["profile"]["type"])))
    }
    let tool = Tool::new("call", "Calls.", call)
        .parameters(json!({"type": "object", "properties": {"profile": {}}}))
        .input_from_state("profile", "profile");
    let world =
        World::new(Schema::builder().key::<Value>("profile"), json!({"profile": {"type": "premium"}}));
    let done = world.tool(tool).invocation("> c1 call()").finish().await;
    assert_eq!(done.outcomes[0].result.text(), r#"wrong type of profile: "<profile>""#);
}

/// What a text may show is looked for within a bound, whatever the tool reads. Otherwise the text is kept back, and
/// not half of what it must not show.
#[tokio::test]
async fn error_text_of_a_tool_that_reads_more_than_can_be_looked_through() {
    let tool = |key: &str| {
        Tool::new("call", "Calls.", || async { Err::<(), _>(ToolError::new("no item-7 today")) }).reads([key])
    };
    let text = async |items: usize| {
        let items: Vec<String> = (0..items).map(|item| format!("item-{item}")).collect();
        let world = World::new(Schema::builder().key::<Vec<Value>>("items"), json!({"items": items}));
        let done = world.tool(tool("items")).invocation("> c1 call()").finish().await;
        done.outcomes[0].result.text().into_owned()
    };
    assert_eq!(text(1_000).await, "no <items> today");
    let withheld = text(300_000).await;
    assert!(withheld.starts_with("[the text is withheld: ") && !withheld.contains("item-7"), "{withheld}");
}

/// In strict mode null is the only way to leave a parameter out.
#[tokio::test]
async fn visible_and_injected_in_strict_mode() {
    #[derive(Deserialize, JsonSchema)]
    struct Greeting {
        name: Option<String>,
    }
    async fn greet(Args(greeting): Args<Greeting>) -> Result<Option<String>, ToolError> {
        Ok(greeting.name)
    }
    let tool = Tool::new("greet", "Greets.", greet).strict().default_from_state("user_name", "name");
    let world = World::new(Schema::builder().key::<String>("user_name"), json!({"user_name": "Ada"}));
    let done = world.tool(tool).invocation("> c1 greet(name=null) > c2 greet(name=\"Bo\")").finish().await;
    assert_eq!(done.outcomes[0].result.text(), "Ada");
    assert_eq!(done.outcomes[1].result.text(), "Bo");
}

/// A tool that panics when it is dropped does not affect other calls.
#[tokio::test(start_paused = true)]
async fn panic_at_the_end_of_a_timeout() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let hang = || async {
        let bomb = Bomb;
        crate::pass(Duration::from_secs(100)).await;
        std::mem::forget(bomb);
        Ok::<_, ToolError>(())
    };
    let tool = Tool::new("hang", "Hangs.", hang).timeout(Duration::from_secs(1));
    let fine = Tool::new("fine", "Is fine.", || async { Ok::<_, ToolError>("fine") });
    let done = World::stateless().tool(tool).tool(fine).invocation("> c1 hang() > c2 fine()").finish().await;
    assert_eq!(done.outcomes[0].status, CallStatus::Failed(CallFailure::Panicked));
    assert_eq!(done.outcomes[1].result.text(), "fine");
}

/// The stack of the process is not the tool's to use up.
#[tokio::test]
async fn results_that_nest_without_end() {
    let deep = || async {
        let nested = (0..1_500).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        Ok::<_, ToolError>(nested)
    };
    let done =
        World::stateless().tool(Tool::new("deep", "Digs.", deep)).invocation("> c1 deep()").finish().await;
    assert_eq!(
        done.outcomes[0].result.text(),
        "result cannot be serialised as JSON: nested deeper than 500 levels"
    );
}

#[test]
fn arguments_of_any_type_need_a_schema() {
    async fn anything(Args(_): Args<Value>) -> Result<(), ToolError> {
        Ok(())
    }
    let error = Tool::new("anything", "Takes anything.", anything).build().unwrap_err();
    assert!(error.to_string().contains("use `RawArgs` and `parameters`"), "{error}");
}
