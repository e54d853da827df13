//! Every message of the crate's errors, in one list.

use std::sync::Arc;

use expect_test::expect_file;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Decision, DecisionError, Divergence, FeedError, RunError, StartError};
use stepfold_runner::RunnerError;
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
        RunnerError::Store { key: key().into(), unrecorded: Vec::new(), source: store_error() },
        RunnerError::Store { key: key().into(), unrecorded: unrecorded(), source: store_error() },
        RunnerError::Conflict { key: key().into(), unrecorded: unrecorded(), source: store_error() },
        RunnerError::Claimed { key: key().into(), owner: owner(), expires, is_accepted: false },
        RunnerError::Claimed { key: key().into(), owner: owner(), expires, is_accepted: true },
        RunnerError::ClaimLost { key: key().into(), unrecorded: Vec::new(), source: store_error() },
    ]
}

async fn of_runs() -> Vec<RunnerError> {
    let failed = |times, source| {
        let cause = "the model did not answer".to_owned();
        RunnerError::EarlierRunFailed { key: key().into(), message: message(), times, cause, source }
    };
    let begin = |is_accepted| RunnerError::EarlierCannotBegin {
        key: key().into(),
        earlier: message(),
        is_accepted,
        source: Arc::new(RunnerError::Panicked { key: key().into() }),
    };
    let pending = |is_accepted| {
        let pending = vec!["c1".to_owned(), "c2".to_owned()];
        RunnerError::Pending { key: key().into(), pending, is_accepted, outcome: None }
    };
    vec![
        failed(1, run_error().await),
        failed(3, run_error().await),
        begin(false),
        begin(true),
        RunnerError::Run { key: key().into(), source: run_error().await },
        RunnerError::Input { key: key().into(), source: Arc::new(StartError::NoMessages) },
        RunnerError::Busy { key: key().into(), reason: "an invocation is running" },
        RunnerError::Busy { key: key().into(), reason: "too many messages are waiting" },
        pending(false),
        pending(true),
        RunnerError::CannotWait { key: key().into() },
        RunnerError::Withdrawn { key: key().into() },
        RunnerError::NothingToResume { key: key().into() },
        RunnerError::InvalidId { source: SessionId::new("").unwrap_err().into() },
        RunnerError::ShutDown { key: key().into(), is_accepted: false },
        RunnerError::ShutDown { key: key().into(), is_accepted: true },
        RunnerError::Panicked { key: key().into() },
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
        RunnerError::Decision {
            key: key().into(),
            error: Box::new(decided),
            at: Some(Timestamp::from_micros(0)),
        },
        RunnerError::AgentChanged { key: key().into(), changes },
        RunnerError::Record { key: key().into(), version: 3, source: Arc::new(broken) },
        RunnerError::NewerRecord { key: key().into(), version: 3, found: 9 },
        RunnerError::Recover { key: key().into(), version: 3, source: Arc::new(feed) },
        RunnerError::Diverged {
            key: key().into(),
            invocation: "i1".to_owned(),
            version: 3,
            source: Arc::new(diverged),
        },
    ]
}

#[tokio::test]
async fn every_error_message() {
    let errors = of_stores().into_iter().chain(of_runs().await).chain(of_records());
    let list: Vec<String> = errors.map(|error| error.to_string()).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
