//! Every message of the crate's errors, in one list.

use std::fmt::Display;
use std::time::Duration;

use expect_test::expect_file;
use serde_json::{Value, json};
use stepfold_state_core::chat::{
    Arguments, Message, ModelError, ModelErrorKind, Role, TimeoutKind, ToolResult, Transcript,
    TranscriptFaultKind,
};
use stepfold_state_core::decode;
use stepfold_state_core::json_schema::{InvalidSchema, ValueType};
use stepfold_state_core::state::{
    Handler, HandlerError, Handlers, Issue, Issues, Schema, State, StateError, Template, check_key,
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

#[test]
fn every_error_message() {
    let mut list = List::default();
    list.part("StateError", state_errors());
    list.part("StateError::InvalidKey", invalid_keys());
    list.part("StateError::InvalidSchema", [invalid_schema()]);
    list.part("HandlerError", [HandlerError::new("expected a date")]);
    list.part("DecodeError", decode_errors());
    list.part("ValueType::of_schema", schemas());
    list.part("TranscriptFault", transcript_faults());
    list.part("RepairKind", repairs());
    list.part("NotationError", notation_errors());
    list.part("Arguments::malformed", malformed());
    list.part("ModelError: advice", model_errors());
    expect_file!["messages.txt"].assert_eq(&list.0);
}

fn schema() -> Schema {
    Schema::builder().key::<u64>("visits").key::<Vec<String>>("notes").build().unwrap()
}

fn state_errors() -> Vec<StateError> {
    let schema = schema();
    let mut state = State::new(&schema);
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let open = Schema::builder().open().build().unwrap();
    let decoded = State::with_values(&open, json!({"visits": "one"})).unwrap();
    let broken = serde_json::from_str::<Value>("{").unwrap_err();
    vec![
        state.set("colour", 1).unwrap_err(),
        check_key("").unwrap_err(),
        state.set("visits", "one").unwrap_err(),
        state.set("notes", json!(["a", 1, null])).unwrap_err(),
        state.set_with("visits", "one", &Handler::sum()).unwrap_err(),
        schema.check_write_to("notes", Some(&Handler::sum())).unwrap_err(),
        schema.check_write_to("notes", Some(&"join".parse().unwrap())).unwrap_err(),
        StateError::InvalidSchema { faults: Issues::from(Issue::new("visits", "duplicate key")) },
        decoded.get(stepfold_state_core::state::Key::<u64>::new("visits")).unwrap_err(),
        StateError::Encode { key: "visits".to_owned(), source: broken },
        State::new(&open).set("deep", deep).unwrap_err(),
        schema.removal("messages").unwrap_err(),
        State::from_json(&schema, "[]").unwrap_err(),
        State::from_json(&schema, r#"{"version": 9}"#).unwrap_err(),
        Template::parse("Hello {name}.").render(&state).unwrap_err(),
    ]
}

fn invalid_keys() -> Vec<StateError> {
    let long = "k".repeat(300);
    ["", "usr:a", "app:", " a", "a\u{200b}b", &long].map(|key| check_key(key).unwrap_err()).into()
}

fn invalid_schema() -> String {
    let builder = Schema::builder()
        .description("first")
        .key::<String>("steps")
        .key::<i64>("twice")
        .key::<i64>("twice")
        .key::<String>("text")
        .handler(Handler::sum())
        .key_schema("typo", json!("strnig"))
        .key::<u8>("small")
        .default(-1)
        .key::<Vec<u8>>("last")
        .handler(Handler::keep_last(0))
        .key::<Vec<u8>>("messages");
    let StateError::InvalidSchema { faults } = builder.build().unwrap_err() else { panic!("faults") };
    let handler = Handlers::new().with(Handler::custom("1st", |_, new| Ok(new))).unwrap_err();
    let same = |name: &'static str| Handler::custom(name, |_, new| Ok(new));
    let twice = Handlers::new().with(same("join")).and_then(|known| {
        known.with(Handler::custom("join", |current, _| Ok(current.cloned().unwrap_or_default())))
    });
    let lines = faults.iter().map(|fault| format!("{}: {}\n", fault.path, fault.message));
    format!("{}{handler}\n{}", lines.collect::<String>(), twice.unwrap_err())
}

fn decode_errors() -> Vec<String> {
    let number = decode::<Vec<u8>>(&json!([1, "2"])).unwrap_err();
    let range = decode::<Vec<u8>>(&json!([1, 999])).unwrap_err();
    let point = decode::<(u8, u8)>(&json!([1])).unwrap_err();
    let role = decode::<Role>(&json!("robot")).unwrap_err();
    let message = decode::<Message>(&json!({"role": "user"})).unwrap_err();
    let part = decode::<Message>(&json!({"role": "user", "parts": [{}]})).unwrap_err();
    [number, range, point, role, message, part].iter().map(ToString::to_string).collect()
}

fn schemas() -> Vec<InvalidSchema> {
    let deep = (0..200).fold(json!({}), |inner, _| json!({"items": inner}));
    [json!(null), json!({"type": "strnig"}), json!({"type": 5}), json!(false), deep]
        .map(|schema| ValueType::of_schema(schema).unwrap_err())
        .into()
}

fn transcript_faults() -> Vec<String> {
    let kinds = [
        TranscriptFaultKind::Unanswered,
        TranscriptFaultKind::Orphan,
        TranscriptFaultKind::AnsweredTwice,
        TranscriptFaultKind::DuplicateCallId,
        TranscriptFaultKind::EmptyCallId,
        TranscriptFaultKind::WrongName { called: "search".to_owned(), answered: "fetch".to_owned() },
        TranscriptFaultKind::Misplaced { part: "tool_call".to_owned(), role: Role::User },
        TranscriptFaultKind::NoResult,
        TranscriptFaultKind::SeveralResults,
    ];
    let broken: Transcript = "user: go\nassistant: > c1 a()   > c2 b()".parse().unwrap();
    let mut messages: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    messages.push(broken.check().unwrap_err().to_string());
    messages
}

fn repairs() -> Vec<String> {
    let orphan = Message::tool(ToolResult::value("c9", "a", 1));
    let broken = Transcript::new()
        .with(Message::user("go"))
        .with(
            "assistant: > c1 a()   > c2 b()".parse::<Transcript>().unwrap().first().unwrap().as_ref().clone(),
        )
        .with(Message::user("wait"))
        .with(Message::tool(ToolResult::value("c1", "a", 1)))
        .with(Message::tool(ToolResult::value("c1", "a", 2)))
        .with(orphan);
    broken.repair().repairs.iter().map(ToString::to_string).collect()
}

fn notation_errors() -> Vec<String> {
    ["robot: hi", "tool c1", "assistant: > c1 a(x=1, x=2)", "user: @{}", "assistant: > c1 a(x=)", "  go"]
        .map(|text| text.parse::<Transcript>().unwrap_err().to_string())
        .into()
}

fn malformed() -> Vec<String> {
    let deep = format!("{{\"a\": {}1{}}}", "[".repeat(120), "]".repeat(120));
    ["{\"q\": stalls}", "[1]", &deep]
        .map(|text| Arguments::parse(text).malformed().unwrap().1.to_owned())
        .into()
}

fn model_errors() -> Vec<String> {
    let kinds = [
        ModelErrorKind::Transient,
        ModelErrorKind::RateLimited,
        ModelErrorKind::Overloaded,
        ModelErrorKind::Authentication,
        ModelErrorKind::NotFound,
        ModelErrorKind::InvalidRequest,
        ModelErrorKind::TooLong { limit: None, used: None },
        ModelErrorKind::TooLong { limit: Some(8_000), used: None },
        ModelErrorKind::TooLong { limit: Some(8_000), used: Some(9_000) },
        ModelErrorKind::Refused,
        ModelErrorKind::Malformed,
        ModelErrorKind::Truncated,
        ModelErrorKind::ReplyTooLarge { limit: 1_000 },
        ModelErrorKind::TimedOut(TimeoutKind::Connect),
        ModelErrorKind::TimedOut(TimeoutKind::FirstToken),
        ModelErrorKind::TimedOut(TimeoutKind::Idle),
        ModelErrorKind::TimedOut(TimeoutKind::Total),
        ModelErrorKind::ToolChoiceIgnored,
        ModelErrorKind::Cancelled,
        ModelErrorKind::Unsupported,
        ModelErrorKind::Untrusted,
    ];
    let full = ModelError::new(ModelErrorKind::RateLimited, "too many requests")
        .with_provider("openai")
        .with_model("gpt-4.1")
        .with_request_id("req_1")
        .with_retry_after(Duration::from_secs(2))
        .with_source(std::io::Error::other("status 429"));
    let lines = kinds.into_iter().map(|kind| {
        let advice = kind.advice();
        format!("{}: {advice}", ModelError::new(kind, ""))
    });
    lines.chain([full.to_string()]).collect()
}
