//! Sessions as virtual objects of Restate.
//!
//! The [Restate](https://restate.dev) server calls workers over HTTP, keeps requests in order, repeats those whose
//! worker died, and runs timers. This crate is the adapter: the record of a session is the only journal, and Restate
//! adds *liveness*.
//!
//! # The tour
//!
//! A [`RestateWorker`] serves the sessions of a runner: one virtual object `Session` for each, with the key
//! `app/user/session`. A [`RestateClient`] sends requests through the ingress of the server; any other HTTP client
//! works as well.
//!
//! ```no_run
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use stepfold_agent_loop::Agent;
//! use stepfold_agent_loop::test_kit::Script;
//! use stepfold_restate::{RestateClient, RestateWorker};
//! use stepfold_runner::Runner;
//! use stepfold_session_scopes::MemoryStore;
//! use tokio::net::TcpListener;
//!
//! # let agent = Agent::builder(Script::parse("assistant: area 3")?).name("clerk").build()?;
//! # let store = MemoryStore::new();
//! // On each machine, over one PostgreSQL; its address is registered with the server once:
//! // curl localhost:9070/deployments --json '{"uri": "http://localhost:9080"}'
//! let worker = RestateWorker::new(Runner::builder(agent, store).build());
//! let listener = TcpListener::bind("127.0.0.1:9080").await?;
//! tokio::spawn(worker.serve(listener, std::future::pending::<()>()));
//!
//! // Wherever requests come from; or:
//! // curl localhost:8080/restate/call/Session/clerk%2Fada%2Fs1/run \
//! //     --json '{"idempotency_key": "request-7", "input": "which area has most stalls?"}'
//! let session = RestateClient::connect("http://127.0.0.1:8080", "clerk")?.session("ada", "s1")?;
//! let report = session.run_as("request-7", "which area has most stalls?").await?;
//! println!("{}", report.text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! | handler | kind | what it does |
//! |---|---|---|
//! | `run` | exclusive | a turn, under an idempotency key; replies with a [report](RemoteReport) |
//! | `decide` | exclusive | decisions for a waiting run, which continues: `{"run": "request-7", "decisions": [["c1", "approve"]]}` |
//! | `resume` | exclusive | completes the unfinished work of the session |
//! | `pending` | shared | the [requests](PendingRequests) that the session waits for |
//! | `cancel` | shared | cancels the run, on whichever worker it is |
//!
//! # Guarantees
//!
//! - Each journaled call is a slice of a run: [`run_as`](stepfold_runner::SessionHandle::run_as), which any worker may
//!   repeat. Its value is the report. Nothing else is journaled, and there is no state and no awakeable in Restate, so
//!   a waiting session costs it nothing.
//! - A run that waits for decisions ends its invocation; `decide` is a new one. Messages that arrive in between are
//!   stored, and answered with status 409; after the decision they run in order, and their senders get the reports by
//!   repeating the request.
//! - The claim in the store is the fence: a worker that was frozen, and that Restate replaced, writes nothing when it
//!   wakes.
//! - A run of another version of the agent waits in a durable sleep, and is not retried. So does a run that needs a
//!   repair.
//! - A journaled call lasts a slice and half a minute at most, however long a tool takes.
//! - A request of more than 1 MiB is refused; a report leaves out its large parts and names them.
//!
//! # Options of the server
//!
//! A frozen worker is detected by its connection: set `RESTATE_WORKER__INVOKER__HTTP2_KEEP_ALIVE_INTERVAL=4s` and
//! `RESTATE_WORKER__INVOKER__HTTP2_KEEP_ALIVE_TIMEOUT=2s`, and [`claim_for`](stepfold_runner::RunnerBuilder::claim_for)
//! ten seconds. By default it takes a minute. A balancer in front of workers has to check their health: the system of a
//! frozen one still takes connections, and each attempt that ends there is lost until a timeout.
//!
//! The server is under the Business Source License 1.1, which is not an open source licence: it allows running your own
//! services on it, and forbids offering it to others as a managed service. Each release becomes Apache-2.0 after four
//! years. The SDK is MIT.
//!
//! # What is absent
//!
//! The server, its registration of workers, and its administration. Operations on sessions, such as forks, are those of
//! the runner over the same store.
#![doc = include_str!("../docs/limits.md")]

mod client;
mod error;
mod key;
mod limits;
mod object;
mod slice;
mod wire;
mod worker;

pub use crate::client::{RemoteSession, RestateClient};
pub use crate::error::RestateError;
pub use crate::limits::{MAX_PART_BYTES, MAX_REQUEST_BYTES, RemoteReport};
pub use crate::wire::PendingRequests;
pub use crate::worker::RestateWorker;
