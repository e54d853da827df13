//! The exam of hosts, taken over Restate: workers in processes of their own, which are killed, frozen and thawed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_agent_loop::{Agent, Decision, Decisions};
use stepfold_exam::{ExamEffects, HostError, HostExam, RunHost, WorkerReady};
use stepfold_restate::{RemoteSession, RestateClient, RestateWorker};
use stepfold_runner::{Runner, RunnerBuilder};
use stepfold_session_scopes::{AnyStore, PostgresStore, SessionKey, SqliteStore};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

use crate::balancer::Balancer;
use crate::host_graph;
use crate::postgres;
use crate::server::Server;

/// Workers behind one address, over one store.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Restate {
    ingress: String,
    /// Where workers write down their addresses.
    workers: PathBuf,
    /// A file, or the address of a database of PostgreSQL.
    sessions: String,
    /// Opened once in each process: the exam reads it every few milliseconds.
    #[serde(skip)]
    store: OnceCell<AnyStore>,
}

impl Restate {
    async fn open(&self) -> Result<AnyStore, HostError> {
        let open = async || {
            Ok::<_, HostError>(match self.sessions.starts_with("postgres") {
                true => AnyStore::new(PostgresStore::open(self.sessions.clone()).await?),
                false => AnyStore::new(SqliteStore::open(&self.sessions)?),
            })
        };
        Ok(self.store.get_or_try_init(open).await?.clone())
    }

    async fn runner(&self, agent: &Agent) -> Result<RunnerBuilder, HostError> {
        Ok(Runner::builder(agent.clone(), self.open().await?).app("exam")?)
    }

    fn remote(&self, session: &SessionKey) -> Result<RemoteSession, HostError> {
        let client = RestateClient::connect(&self.ingress, session.app.as_str())?;
        Ok(client.session(session.user.as_str(), session.id.as_str())?)
    }

    async fn listen(&self) -> Result<(TcpListener, SocketAddr), HostError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        std::fs::write(self.workers.join(address.to_string()), "")?;
        Ok((listener, address))
    }

    /// Tells a server what workers serve, by one that lives no longer than that.
    async fn register(&self, server: &Server, agent: &Agent) -> Result<(), HostError> {
        let balancer = Balancer::of_folder(&self.workers).await;
        let (listener, address) = self.listen().await?;
        let runner = self.runner(agent).await?.build();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let first = tokio::spawn(RestateWorker::new(runner).serve(listener, stopped));
        server.register(balancer.address).await;
        std::fs::remove_file(self.workers.join(address.to_string()))?;
        drop(stop);
        Ok(first.await?)
    }
}

impl RunHost for Restate {
    async fn work(&self, agent: Agent, claim: Duration, ready: WorkerReady) -> Result<(), HostError> {
        let runner = self.runner(&agent).await?.claim_for(claim).build();
        let pause = Duration::from_millis(200);
        let worker = RestateWorker::new(runner).pauses(pause, pause);
        let (listener, _) = self.listen().await?;
        ready.now();
        worker.serve(listener, std::future::pending::<()>()).await;
        Ok(())
    }

    async fn submit(
        &self,
        agent: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        input: &str,
    ) -> Result<(), HostError> {
        // The exam reads the session before a worker has made it.
        self.runner(agent).await?.build().session(session.user.as_str(), session.id.as_str()).await?;
        self.remote(session)?.send(idempotency_key, input).await?;
        Ok(())
    }

    async fn decide(
        &self,
        _: &Agent,
        session: &SessionKey,
        idempotency_key: &str,
        decisions: Vec<(String, Decision)>,
    ) -> Result<(), HostError> {
        let decisions = Decisions::from(decisions);
        Ok(self.remote(session)?.send_decisions(idempotency_key, decisions).await?)
    }

    async fn cancel(&self, _: &Agent, session: &SessionKey) -> Result<(), HostError> {
        match self.remote(session)?.cancel().await? {
            true => Ok(()),
            false => Err("nothing is running".into()),
        }
    }

    async fn store(&self) -> Result<AnyStore, HostError> {
        self.open().await
    }

    fn graph(&self, effects: ExamEffects) -> Option<Agent> {
        Some(host_graph::graph(effects))
    }
}

/// Does nothing, unless the exam has started this process.
#[test]
fn child() {
    stepfold_exam::child(async |address: String| serde_json::from_str::<Restate>(&address).unwrap());
}

async fn examined(server: &Server, folder: &Path, sessions: String, count: usize) {
    let workers = folder.join("workers");
    std::fs::create_dir(&workers).unwrap();
    let host = Restate { ingress: server.ingress_url(""), workers, sessions, store: OnceCell::new() };
    // Any agent: what is served does not depend on it.
    let agent = Agent::builder(stepfold_agent_loop::test_kit::Script::parse("").unwrap()).build().unwrap();
    host.register(server, &agent).await.unwrap();
    let address = serde_json::to_string(&host).unwrap();
    let report = HostExam::new(host, address, "interop_exam::child").sessions(count).run().await;
    println!("{report}");
    report.passed().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restate_passes_the_exam_of_hosts() {
    let Some(server) = Server::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let sessions = folder.path().join("sessions.db").display().to_string();
    examined(&server, folder.path(), sessions, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restate_over_postgresql_passes_the_exam_of_hosts() {
    let (Some(server), Some(postgres)) = (Server::start().await, postgres::server()) else { return };
    let folder = tempfile::tempdir().unwrap();
    examined(&server, folder.path(), postgres.database("restate_exam").await, 24).await;
}
