//! Every message of the crate's errors, in one list.

use expect_test::expect_file;
use stepfold_session_scopes::{
    EventId, IdempotencyKey, SessionError, SessionId, SessionKey, Timestamp, WorkerId,
};
use stepfold_state_core::state::{HandlerError, Issue, Issues, StateError};

fn key() -> SessionKey {
    SessionKey::new("stalls", "ada", "s1").unwrap()
}

fn source() -> Box<dyn std::error::Error + Send + Sync> {
    "connection refused".into()
}

fn ids() -> Vec<SessionError> {
    ["", &"s".repeat(300), " s", "a\u{200b}b"].map(|id| SessionId::new(id).unwrap_err()).into()
}

fn of_sessions() -> Vec<SessionError> {
    let owner = || WorkerId::new("w1").unwrap();
    vec![
        SessionError::NotFound { key: key().into() },
        SessionError::AlreadyExists { key: key().into() },
        SessionError::Conflict { key: key().into(), expected: 3, actual: 4 },
        SessionError::EventReused { key: key().into(), event: EventId::new("e1").unwrap() },
        SessionError::IdempotencyKeyReused {
            scope: "app stalls".to_owned(),
            idempotency_key: IdempotencyKey::new("o1").unwrap(),
        },
        SessionError::Claimed { key: key().into(), owner: owner(), expires: Timestamp::from_micros(0) },
        SessionError::ClaimLost { key: key().into(), token: 7, owner: None },
        SessionError::ClaimLost { key: key().into(), token: 7, owner: Some(owner()) },
        SessionError::NotWaiting { key: key().into(), position: 2 },
        SessionError::InboxFull { key: key().into(), limit: 1_000 },
        SessionError::TooManyLabels { key: key().into(), limit: 1_000 },
        SessionError::Unsupported { what: "claims on sessions" },
        SessionError::NoSuchVersion { key: key().into(), version: 9, oldest: 2, newest: 5 },
    ]
}

fn of_values() -> Vec<SessionError> {
    let visits = || "visits".to_owned();
    let faults = Issues::from(Issue::new("$", "expected integer, found string"));
    vec![
        SessionError::WrongScope { key: visits(), scope: "app:" },
        SessionError::State { what: "delta of event e1".to_owned(), source: StateError::MessagesAreEvents },
        SessionError::SchemaMismatch {
            key: visits(),
            stored: "string".to_owned(),
            opened: "integer".to_owned(),
            faults,
        },
        SessionError::OtherState { key: visits(), found: 1, expected: 3 },
        SessionError::Migration { key: visits(), source: HandlerError::new("expected a date") },
        SessionError::TooLarge { what: "event e1".to_owned(), bytes: 2_000, limit: 1_000 },
        SessionError::TooDeep { what: "delta of event e1".to_owned() },
        SessionError::InvalidCursor,
    ]
}

fn of_storage() -> Vec<SessionError> {
    let path = || "sessions.db".to_owned();
    let broken = serde_json::from_str::<u8>("{").unwrap_err();
    vec![
        SessionError::Stored { what: "event".to_owned(), source: broken },
        SessionError::NewerFormat { what: "event", found: 9, supported: 1 },
        SessionError::OlderFormat { what: "session tables", found: 7, current: 8 },
        SessionError::OtherLayout { what: "session tables", format: 1, missing: "table x".to_owned() },
        SessionError::ForeignTable { table: "stepfold_meta".to_owned() },
        SessionError::Unavailable { what: "read or write", source: source() },
        SessionError::Store { what: "open its file", source: source() },
        SessionError::Damaged { what: "event of version 3".to_owned(), why: "digest mismatch".to_owned() },
        SessionError::NoStore { path: path(), why: "file not found" },
        SessionError::EmptyFile { path: path() },
        SessionError::FileReplaced { path: path() },
        SessionError::LogMissing { path: path() },
        SessionError::ReadOnly,
        SessionError::Panicked,
    ]
}

#[test]
fn every_error_message() {
    let errors = ids().into_iter().chain(of_sessions()).chain(of_values()).chain(of_storage());
    let list: Vec<String> = errors.map(|error| error.to_string()).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
