//! The exam of hosts, taken by recovery over SQLite and PostgreSQL.

use std::time::Duration;

use stepfold_agent_loop::{Agent, Decision, Decisions};
use stepfold_exam::{ExamEffects, HostError, HostExam, RunHost, WorkerReady};
use stepfold_runner::session_scopes::{
    AnyStore, EnqueueInput, IdempotencyKey, InboxKind, PostgresStore, SessionKey, SessionStore, SqliteStore,
    Timestamp,
};
use stepfold_runner::{RecoverOptions, Runner, RunnerBuilder, SessionHandle};

use crate::host_graph;
use crate::server::server;

/// Opens a store by its address: one of PostgreSQL, or the path of a file.
async fn open(address: &str) -> AnyStore {
    match address.starts_with("postgres://") {
        true => AnyStore::new(PostgresStore::open(address).await.unwrap()),
        false => AnyStore::new(SqliteStore::open(address).unwrap()),
    }
}

/// Workers that recover, over a store.
struct Recovers(AnyStore);

impl Recovers {
    async fn open(address: String) -> Self {
        Recovers(open(&address).await)
    }

    fn runner(&self, agent: &Agent) -> Result<RunnerBuilder, HostError> {
        Ok(Runner::builder(agent.clone(), self.0.clone()).app("exam")?)
    }

    /// A client has a runner, which leaves what it begins to the workers.
    async fn client(&self, agent: &Agent, key: &SessionKey) -> Result<(Runner, SessionHandle), HostError> {
        let runner = self.runner(agent)?.leave_inbox().build();
        let session = runner.session(key.user.as_str(), key.id.as_str()).await?;
        Ok((runner, session))
    }
}

impl RunHost for Recovers {
    async fn work(&self, agent: Agent, claim: Duration, ready: WorkerReady) -> Result<(), HostError> {
        let recovery = self.runner(&agent)?.claim_for(claim).build().recover(RecoverOptions::new());
        ready.now();
        Ok(recovery.await?)
    }

    async fn submit(
        &self,
        agent: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        input: &str,
    ) -> Result<(), HostError> {
        self.client(agent, session).await?;
        let body = stepfold_agent_loop::Input::from(input).to_json().ok_or("an input that cannot wait")?;
        let named = IdempotencyKey::new(idempotency_key)?;
        let message =
            EnqueueInput::new(session.clone(), InboxKind::Message, named, body, Timestamp::from_micros(0));
        self.0.enqueue(message).await?;
        Ok(())
    }

    async fn decide(
        &self,
        agent: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        decisions: Vec<(String, Decision)>,
    ) -> Result<(), HostError> {
        let (runner, session) = self.client(agent, session).await?;
        let decisions = Decisions::from(decisions).with_idempotency_key(idempotency_key);
        session.resume().decide_all(decisions).submit().await?;
        runner.shutdown(Duration::ZERO).await;
        Ok(())
    }

    async fn cancel(&self, agent: &Agent, session: &SessionKey) -> Result<(), HostError> {
        let (_runner, session) = self.client(agent, session).await?;
        match session.cancel_everywhere().await? {
            true => Ok(()),
            false => Err("nothing is running".into()),
        }
    }

    async fn store(&self) -> Result<AnyStore, HostError> {
        Ok(self.0.clone())
    }

    fn graph(&self, effects: ExamEffects) -> Option<Agent> {
        Some(host_graph::graph(effects))
    }
}

/// Does nothing, unless the exam has started this process.
#[test]
fn child() {
    stepfold_exam::child(Recovers::open);
}

async fn examined(address: String) {
    let host = Recovers::open(address.clone()).await;
    let report = HostExam::new(host, address, "hosts::child").run().await;
    println!("{report}");
    report.passed().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_over_sqlite_passes_the_exam_and_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    examined(folder.path().join("sessions.db").display().to_string()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_over_postgresql_passes_the_exam_and_is_killed() {
    let Some(server) = server() else { return };
    examined(server.database("host_exam").await).await;
}
