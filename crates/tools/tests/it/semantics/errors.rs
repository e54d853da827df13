//! What goes wrong: what the model reads of it, what the caller gets, and what neither may see.

use expect_test::expect;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_tools::state_core::state::{Schema, State};
use stepfold_tools::{
    Args, CallFailure, CallStatus, FromState, RawArgs, Resource, ResultText, Tool, ToolContext, ToolError,
    state_key,
};

use super::{World, echo, fails, returns};

#[tokio::test]
async fn unknown_tool() {
    World::stateless()
        .tool(returns("b", json!(1)))
        .tool(returns("a", json!(2)))
        .check(
            "> c1 a() > c2 x() > c3 b()",
            expect![[r#"
            assistant: > c1 a()   > c2 x()   > c3 b()
            tool c1:   2
            tool c2!:  unknown tool 'x'; available: b, a
            tool c3:   1
        "#]],
        )
        .await;
    World::stateless()
        .check(
            "> c1 x()",
            expect![[r#"
        assistant: > c1 x()
        tool c1!:  unknown tool 'x'; available: none
    "#]],
        )
        .await;
}

#[tokio::test]
async fn unknown_tool_among_very_many() {
    let mut world = World::stateless();
    for n in 0..33 {
        world = world.tool(returns(&format!("t{n}"), json!(1)));
    }
    world.check("> c1 x()", expect![[r#"
        assistant: > c1 x()
        tool c1!:  unknown tool 'x'; available: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15, t16, t17, t18, t19, t20, t21, t22, t23, t24, t25, t26, t27, t28, t29, and 3 more
    "#]]).await;
}

#[cfg(feature = "validation")]
#[tokio::test]
async fn argument_validation_tells_all_faults_at_once_and_before_the_function_runs() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let runs = Arc::new(AtomicUsize::new(0));
    let tool = {
        let runs = Arc::clone(&runs);
        Tool::new("search", "Searches.", move |_: RawArgs| {
            runs.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, ToolError>(()) }
        })
    };
    let parameters = json!({
        "type": "object",
        "properties": {
            "filters": {"type": "array", "items": {"type": "object", "properties": {"year": {"type": "integer"}}}},
            "limit": {"type": "integer"},
            "query": {"type": "string", "minLength": 3},
        },
        "required": ["query", "limit"],
        "additionalProperties": false,
    });
    World::stateless()
        .tool(tool.parameters(parameters))
        .check(
            r#"> c1 search(filters=[{"year": 2024}, {"year": "s3cret"}], page=1, query="ab") > c2 search() > c3 search(limit=1, query="stalls")"#,
            expect![[r#"
                assistant: > c1 search(filters=[{"year": 2024}, {"year": "s3cret"}], page=1, query="ab")   > c2 search()   > c3 search(limit=1, query="stalls")
                tool c1!:  invalid arguments for tool 'search': "limit" is a required property at $; expected integer, found string at $.filters[1].year; value is shorter than 3 characters at $.query; Additional properties are not allowed ('page' was unexpected) at $
                tool c2!:  invalid arguments for tool 'search': "query" is a required property at $; "limit" is a required property at $
                tool c3:   null
            "#]],
        )
        .await;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn argument_validation_of_malformed_arguments() {
    World::stateless()
        .tool(echo("search", json!({"q": {"type": "string"}})))
        .check(
            r#"> c1 search!("{\"q\": stalls}") > c2 search!("[1]") > c3 search!("{\"q\": \"\\ud800\"}") > c4 search!("{")"#,
            expect![[r#"
                assistant: > c1 search!("{\"q\": stalls}")   > c2 search!("[1]")   > c3 search!("{\"q\": \"\\ud800\"}")   > c4 search!("{")
                tool c1!:  malformed arguments for tool 'search': expected value at line 1 column 7
                tool c2!:  malformed arguments for tool 'search': expected a JSON object, found list
                tool c3!:  malformed arguments for tool 'search': unexpected end of hex escape at line 1 column 14
                tool c4!:  malformed arguments for tool 'search': EOF while parsing an object at line 1 column 1
            "#]],
        )
        .await;
}

#[derive(Deserialize, JsonSchema)]
struct Point {
    x: i64,
    #[expect(dead_code, reason = "it is only read")]
    y: i64,
}

#[derive(Deserialize, JsonSchema)]
struct Login {
    #[expect(dead_code, reason = "it is only read")]
    user: String,
    token: Point,
}

async fn login(Args(login): Args<Login>) -> Result<i64, ToolError> {
    Ok(login.token.x)
}

#[tokio::test]
async fn error_text_of_what_the_state_fed_does_not_show_it() {
    let tool = Tool::new("login", "Logs in.", login).input_from_state("key", "token");
    for key in [json!("s3cret"), json!({"x": "abc", "y": 1}), json!({"x": 1}), json!(7), json!(true)] {
        let shown = key.to_string();
        let tool = tool_of(&tool);
        let world = World::new(Schema::builder().key::<Value>("key"), json!({"key": key})).tool(tool);
        let done = world.invocation(r#"> c1 login(user="Ada")"#).finish().await;
        let text = done.outcomes[0].result.text().into_owned();
        assert_eq!(done.outcomes[0].status, CallStatus::Failed(CallFailure::InvalidArguments));
        let start = "invalid arguments for tool 'login': invalid value in the state at $.token";
        assert!(text == start, "{shown}: {text}");
    }
}

/// The builder above cannot be cloned.
fn tool_of(_: &stepfold_tools::ToolBuilder) -> stepfold_tools::ToolBuilder {
    Tool::new("login", "Logs in.", login).input_from_state("key", "token")
}

#[tokio::test]
async fn error_text_of_a_key_that_is_not_set() {
    let tool = Tool::new("login", "Logs in.", login).input_from_state("key", "token");
    World::new(Schema::builder().key::<Value>("key"), json!({}))
        .tool(tool)
        .check(
            r#"> c1 login(user="Ada")"#,
            expect![[r#"
            assistant: > c1 login(user="Ada")
            tool c1!:  invalid arguments for tool 'login': missing state key "key" for argument `token`
        "#]],
        )
        .await;
}

state_key! {
    Secret: Value = "secret";
    Number: u8 = "secret";
}

fn secret_world() -> World {
    let schema = Schema::builder().key::<Value>("secret").key::<Value>("other");
    World::new(schema, json!({"secret": {"key": "s3cret's\n\"key\""}, "other": "open"}))
}

#[tokio::test]
async fn error_text_of_the_author_does_not_show_the_state() {
    // An author's own words, an error through `?`, a panic, a fatal one; fed, read by type, read by name. As it is, as
    // JSON, as debug output, and as a snapshot shows itself: JSON in debug output, which another one may show again.
    let words = |secret: &Value| {
        let schema = Schema::builder().key::<Value>("secret").build().unwrap();
        let state = State::with_values(&schema, json!({"secret": secret})).unwrap();
        let snapshot = format!("{:?}", state.clone());
        let key = secret["key"].as_str().unwrap();
        format!("{secret}, {:?}, {key}, {snapshot}", secret["key"])
    };
    let fed = Tool::new("fed", "Fails.", move |RawArgs(arguments): RawArgs| async move {
        Err::<(), _>(ToolError::new(words(&arguments["secret"])))
    });
    let typed = Tool::new("typed", "Fails.", move |FromState(secret): FromState<Secret>| async move {
        let error = std::io::Error::other(words(&secret.unwrap()));
        Err::<(), ToolError>(error.into())
    });
    let named = Tool::blocking("named", "Panics.", move |context: ToolContext| -> Result<(), ToolError> {
        panic!("{}", words(&context.state().get("secret").unwrap().to_json()))
    });
    let fatal =
        Tool::new("fatal", "Fails for good.", move |FromState(secret): FromState<Secret>| async move {
            Err::<(), _>(ToolError::fatal(words(&secret.unwrap())))
        });
    let parameters = json!({"type": "object", "properties": {"secret": {}}});
    let world = secret_world()
        .tool(fed.parameters(parameters).input_from_state("secret", "secret"))
        .tool(typed)
        .tool(named.reads(["secret"]))
        .tool(fatal);
    let done = world.invocation("> c1 fed() > c2 typed() > c3 named() > c4 fatal()").finish().await;
    for outcome in &done.outcomes {
        let text = outcome.result.text();
        assert!(!text.contains("s3cret") && text.contains("<secret>"), "{text}");
    }
    let error = done.error.unwrap();
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("s3cret") && shown.contains("<secret>"), "logs show no values: {shown}");
    assert!(error.cause().to_string().contains("s3cret"), "the caller may see it");
}

#[tokio::test]
async fn error_text_keeps_the_names_of_tools_that_are_like_values() {
    let tool = fails("secret-tool", || ToolError::new("no secret-tool today")).reads(["secret"]);
    World::new(Schema::builder().key::<Value>("secret"), json!({"secret": "tool"}))
        .tool(tool)
        .tool(
            Tool::new("tool", "Panics.", || async { panic!("tool down") as Result<(), ToolError> })
                .reads(["secret"]),
        )
        .check(
            "> c1 secret-tool() > c2 tool()",
            expect![[r#"
            assistant: > c1 secret-tool()   > c2 tool()
            tool c1!:  no secret-<secret> today
            tool c2!:  tool 'tool' panicked: <secret> down
            state: {"secret":"tool"}
        "#]],
        )
        .await;
}

#[tokio::test]
async fn error_text_of_a_state_value_of_another_type() {
    let tool = Tool::new("read", "Reads.", |FromState(number): FromState<Number>| async move {
        Ok::<_, ToolError>(number)
    });
    secret_world()
        .tool(tool)
        .check(
            "> c1 read()",
            expect![[r#"
        assistant: > c1 read()
        tool c1!:  tool 'read' failed: state key "secret" does not have the type that the tool reads
        error: tool 'read' failed in call 'c1': state key "secret" does not have the type that the tool reads
        state: {"other":"open","secret":{"key":"s3cret's\n\"key\""}}
    "#]],
        )
        .await;
}

#[tokio::test]
async fn panic_is_a_tool_message() {
    let in_async = Tool::new("in_async", "Panics.", || async {
        tokio::task::yield_now().await;
        panic!("in the future") as Result<(), ToolError>
    });
    let in_closure = Tool::new("in_closure", "Panics.", || {
        assert!(std::env::args().count() == usize::MAX, "in the closure");
        async { Ok::<_, ToolError>(()) }
    });
    let in_blocking = Tool::blocking("in_blocking", "Panics.", || -> Result<(), ToolError> {
        panic!("on the {}", "thread")
    });
    let with_value =
        Tool::new("with_value", "Panics.", || async { std::panic::panic_any(7_u8) as Result<(), ToolError> });
    World::stateless()
        .tool(in_async)
        .tool(in_closure)
        .tool(in_blocking)
        .tool(with_value)
        .tool(returns("fine", json!("still here")))
        .check("> c1 in_async() > c2 in_closure() > c3 in_blocking() > c4 with_value() > c5 fine()", expect![[r#"
            assistant: > c1 in_async()   > c2 in_closure()   > c3 in_blocking()   > c4 with_value()   > c5 fine()
            tool c1!:  tool 'in_async' panicked: in the future
            tool c2!:  tool 'in_closure' panicked: in the closure
            tool c3!:  tool 'in_blocking' panicked: on the thread
            tool c4!:  tool 'with_value' panicked: no message
            tool c5:   still here
        "#]])
        .await;
}

#[tokio::test]
async fn results_without_a_json_form() {
    struct Odd;

    impl serde::Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("odd"))
        }
    }

    World::stateless()
        .tool(Tool::new("odd", "Is odd.", || async { Ok::<_, ToolError>(Odd) }))
        .check(
            "> c1 odd()",
            expect![[r#"
            assistant: > c1 odd()
            tool c1!:  result cannot be serialised as JSON: odd
        "#]],
        )
        .await;
}

#[tokio::test]
async fn raise_on_failure() {
    let world = || {
        World::stateless()
            .tool(fails("bad", || ToolError::new("no luck")))
            .tool(fails("worse", || ToolError::fatal(std::io::Error::other("disk gone"))))
            .tool(returns("fine", json!("fine")))
    };
    // By default the model reads the failure.
    world()
        .check(
            "> c1 fine() > c2 bad()",
            expect![[r#"
        assistant: > c1 fine()   > c2 bad()
        tool c1:   fine
        tool c2!:  no luck
    "#]],
        )
        .await;
    // The first in call order ends the run, and the siblings' outcomes are kept.
    world()
        .options(|options| options.raise_on_failure = true)
        .check(
            "> c1 fine() > c2 bad() > c3 worse() > c4 fine() > c5 unknown()",
            expect![[r#"
            assistant: > c1 fine()   > c2 bad()   > c3 worse()   > c4 fine()   > c5 unknown()
            tool c1:   fine
            tool c2!:  no luck
            tool c3!:  tool 'worse' failed: disk gone
            tool c4:   fine
            tool c5!:  unknown tool 'unknown'; available: bad, worse, fine
            error: tool 'bad' failed in call 'c2': no luck
        "#]],
        )
        .await;
}

#[tokio::test]
async fn fatal_errors_keep_siblings() {
    World::stateless()
        .tool(fails("bad", || ToolError::new("no luck")))
        .tool(fails("worse", || ToolError::fatal(std::io::Error::other("disk gone"))))
        .tool(returns("fine", json!("fine")))
        .options(|options| options.limits.concurrency = 1)
        .check(
            "> c1 fine() > c2 bad() > c3 worse() > c4 worse() > c5 fine()",
            expect![[r#"
            assistant: > c1 fine()   > c2 bad()   > c3 worse()   > c4 worse()   > c5 fine()
            tool c1:   fine
            tool c2!:  no luck
            tool c3!:  tool 'worse' failed: disk gone
            tool c4!:  tool 'worse' failed: disk gone
            tool c5:   fine
            error: tool 'worse' failed in call 'c3': disk gone
        "#]],
        )
        .await;
}

#[tokio::test]
async fn resources_missing_are_for_the_caller() {
    let world = World::stateless();
    let tool =
        Tool::new("query", "Queries.", |_: Resource<u8>| async { Ok::<_, ToolError>(()) }).build().unwrap();
    // Not through `tool`, which checks as an agent does.
    World { tools: vec![tool], ..world }
        .check(
            "> c1 query()",
            expect![[r#"
        assistant: > c1 query()
        tool c1!:  tool 'query' failed: missing resource of type u8: add it to the run's resources
        error: tool 'query' failed in call 'c1': missing resource of type u8: add it to the run's resources
    "#]],
        )
        .await;
}

/// What is logged: the fields of each event, in one line.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write as _;

        write!(self.0.lock().unwrap(), "{field}: {value:?}; ").unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("stepfold_tools")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_formatters_reason_is_logged_without_values_of_the_state() {
    let quotes = |result: &Value| Err(format!("cannot format {result}, {:?}", result["key"]).into());
    let panics = |result: &Value| -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        panic!("odd: {result}")
    };
    let log = Log::default();
    let logged = tracing::subscriber::set_default(log.clone());
    for (name, text) in [
        ("quotes", ResultText::of("secret").formatted(quotes)),
        ("panics", ResultText::of("secret").formatted(panics)),
    ] {
        let tool = Tool::new(name, "Gives back what it was fed.", |RawArgs(arguments): RawArgs| async move {
            Ok::<_, ToolError>(arguments)
        });
        let parameters = json!({"type": "object", "properties": {"secret": {}}});
        let tool = tool.parameters(parameters).input_from_state("secret", "secret").output_to_string(text);
        let done = secret_world().tool(tool).invocation(&format!("> c1 {name}()")).finish().await;
        assert_eq!(done.outcomes[0].status, CallStatus::Succeeded);
    }
    drop(logged);
    let log = log.0.lock().unwrap();
    assert!(!log.contains("s3cret"), "{log}");
    for part in [
        "tool: \"quotes\"",
        r#"cannot format {\"key\":\"<secret>\"}, String(\"<secret>\")"#,
        "tool: \"panics\"",
        "panicked: odd: ",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}
