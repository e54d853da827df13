//! Notices of stores: followers and those who recover hear of commits of other workers without polls.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use stepfold_runner::agent_loop::Agent;
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::session_scopes::{SessionStore, StoreNotice, Timestamp, WatchStore};
use stepfold_runner::{RecoverOptions, Runner, SystemClock, WallClock};
use stepfold_state_core::chat::{ModelError, ModelErrorKind};

use crate::crash::server::server;
use crate::crash::store::open;

/// A clock that never wakes anybody.
pub(crate) struct Asleep;

impl WallClock for Asleep {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn sleep(&self, _: std::time::Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

fn agent(script: &str) -> Agent {
    Agent::builder(Script::parse(script).unwrap()).build().unwrap()
}

async fn hears_of_others(address: String) {
    let other = Runner::builder(agent("assistant: area 3"), open(&address).await).clock(Asleep).build();
    let worker = Runner::builder(agent("assistant: area 3"), open(&address).await).build();
    let session = worker.session("ada", "s1").await.unwrap();

    let mut commits = other.follow(session.key().clone(), 0);
    let first = tokio::spawn(async move { (commits.next().await.unwrap().unwrap(), commits) });
    session.run("which area?").await.unwrap();
    let (first, commits) = first.await.unwrap();
    assert_eq!(first.event.kind.as_str(), "began");
    let rest: Vec<_> = commits.take(1).map(|commit| commit.unwrap().event.kind.to_string()).collect().await;
    assert_eq!(rest, ["replied"]);

    // A run that was given up is heard of by those who recover.
    let mut ended = other.follow(worker.key("ada", "s2").unwrap(), 0);
    let recovery = tokio::spawn(other.recover(RecoverOptions::new()));
    let failing =
        Script::parse("").unwrap().then_fail(ModelError::new(ModelErrorKind::Transient, "no answer"));
    let failing = Agent::builder(failing).build().unwrap();
    let failing = Runner::builder(failing, open(&address).await).build();
    failing.session("ada", "s2").await.unwrap().run("which area?").await.unwrap_err();
    loop {
        match ended.next().await {
            Some(Ok(commit)) if commit.event.kind.as_str() == "replied" => break,
            Some(Ok(_)) => {}
            // It was not there yet.
            Some(Err(_)) | None => ended = other.follow(worker.key("ada", "s2").unwrap(), 0),
        }
    }
    recovery.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_over_one_file_hear_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    hears_of_others(folder.path().join("sessions.db").display().to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_over_one_server_hear_of_each_other() {
    let Some(server) = server() else { return };
    let address = server.database("notices").await;
    hears_of_others(address.clone()).await;

    // A notice names the session.
    let store = open(&address).await;
    let mut notices = store.notices(WatchStore::new()).await.unwrap();
    assert_eq!(notices.next().await, Some(StoreNotice::anything()));
    let worker = Runner::builder(agent("assistant: area 3"), open(&address).await).build();
    let session = worker.session("ada", "s3").await.unwrap();
    session.run("which area?").await.unwrap();
    loop {
        // Those of before may come late.
        let notice = notices.next().await.unwrap();
        assert!(!notice.may_concern(&worker.key("ada", "s4").unwrap()), "{notice:?}");
        if notice.may_concern(session.key()) {
            break;
        }
    }
}
