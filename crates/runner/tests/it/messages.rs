//! Every message of the crate's errors, in one list.

use std::sync::Arc;

use expect_test::expect_file;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, DecisionError, Divergence, FeedError, RunError, StartError};
use stepfold_runner::{RunnerError, RunnerErrorKind};
use stepfold_session_scopes::{InvocationId, SessionError, SessionId, SessionKey, Timestamp, WorkerId};

fn key() -> SessionKey {
    SessionKey::new("stalls", "ada", "s1").unwrap()
}

fn store_error() -> Arc<SessionError> {
    Arc::new(SessionError::NotFound { key: key().into() })
}

async fn run_error() -> Arc<RunError> {
    let agent = Agent::builder(Script::parse("").unwrap()).build().unwrap();
    Arc::new(agent.run("hello?").id("run-1").await.unwrap_err())
}

fn message() -> InvocationId {
    InvocationId::new("i2").unwrap()
}

fn of_stores() -> Vec<RunnerError> {
    let owner = || WorkerId::new("w1").unwrap();
    let expires = Timestamp::from_micros(1_000_000);
    let unrecorded = || vec!["c1".to_owned(), "c2".to_owned()];
    vec![
        RunnerError::new(&key(), RunnerErrorKind::Store { unrecorded: Vec::new(), source: store_error() }),
        RunnerError::new(&key(), RunnerErrorKind::Store { unrecorded: unrecorded(), source: store_error() }),
        RunnerError::new(
            &key(),
            RunnerErrorKind::Conflict { unrecorded: unrecorded(), source: store_error() },
        ),
        RunnerError::new(&key(), RunnerErrorKind::Claimed { owner: owner(), expires, is_accepted: false }),
        RunnerError::new(&key(), RunnerErrorKind::Claimed { owner: owner(), expires, is_accepted: true }),
        RunnerError::new(
            &key(),
            RunnerErrorKind::ClaimLost { unrecorded: Vec::new(), source: store_error() },
        ),
    ]
}

async fn of_runs() -> Vec<RunnerError> {
    let failed = |times, source| {
        let cause = "the model did not answer".to_owned();
        RunnerError::new(
            &key(),
            RunnerErrorKind::EarlierRunFailed { message: message(), times, cause, source },
        )
    };
    let begin = |is_accepted| {
        RunnerError::new(
            &key(),
            RunnerErrorKind::EarlierCannotBegin {
                earlier: message(),
                is_accepted,
                source: Arc::new(RunnerError::new(&key(), RunnerErrorKind::Panicked)),
            },
        )
    };
    let pending = |is_accepted| {
        let pending = vec!["c1".to_owned(), "c2".to_owned()];
        RunnerError::new(&key(), RunnerErrorKind::Pending { pending, is_accepted, outcome: None })
    };
    vec![
        failed(1, run_error().await),
        failed(3, run_error().await),
        begin(false),
        begin(true),
        RunnerError::new(&key(), RunnerErrorKind::Run { source: run_error().await }),
        RunnerError::new(&key(), RunnerErrorKind::Input { source: Arc::new(StartError::NoMessages) }),
        RunnerError::new(&key(), RunnerErrorKind::Busy { reason: "an invocation is running" }),
        RunnerError::new(&key(), RunnerErrorKind::Busy { reason: "too many messages are waiting" }),
        pending(false),
        pending(true),
        RunnerError::new(&key(), RunnerErrorKind::CannotWait),
        RunnerError::new(&key(), RunnerErrorKind::Withdrawn),
        RunnerError::new(&key(), RunnerErrorKind::NothingToResume),
        RunnerError::new(None, RunnerErrorKind::InvalidId { source: SessionId::new("").unwrap_err().into() }),
        RunnerError::new(&key(), RunnerErrorKind::ShutDown { is_accepted: false }),
        RunnerError::new(&key(), RunnerErrorKind::ShutDown { is_accepted: true }),
        RunnerError::new(&key(), RunnerErrorKind::Panicked),
    ]
}

fn of_records() -> Vec<RunnerError> {
    let decided = DecisionError::AlreadyDecided {
        id: "c1".to_owned(),
        decision: Box::new(Decision::Approve),
        by: Some("ada".to_owned()),
    };
    let broken = serde_json::from_str::<u8>("{").unwrap_err();
    let changes = vec!["limits changed".to_owned(), "tool pay is gone".to_owned()];
    let feed = FeedError::NotNeeded { event: "replied", need: "an approval".to_owned() };
    let diverged = Divergence::Schema { changes: vec!["key note is new".to_owned()] };
    vec![
        RunnerError::new(
            &key(),
            RunnerErrorKind::Decision { error: Box::new(decided), at: Some(Timestamp::from_micros(0)) },
        ),
        RunnerError::new(&key(), RunnerErrorKind::AgentChanged { changes }),
        RunnerError::new(&key(), RunnerErrorKind::Record { version: 3, source: Arc::new(broken) }),
        RunnerError::new(&key(), RunnerErrorKind::NewerRecord { version: 3, found: 9 }),
        RunnerError::new(&key(), RunnerErrorKind::Recover { version: 3, source: Arc::new(feed) }),
        RunnerError::new(
            &key(),
            RunnerErrorKind::Diverged { invocation: "i1".to_owned(), version: 3, source: Arc::new(diverged) },
        ),
    ]
}

#[tokio::test]
async fn every_error_message() {
    let errors = of_stores().into_iter().chain(of_runs().await).chain(of_records());
    let list: Vec<String> = errors.map(|error| error.to_string()).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
