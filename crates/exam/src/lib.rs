//! Exams for authors of session stores and of hosts, and a simulator for authors of agents.
//!
//! - [`StoreExam`] checks the laws of every session store, case by case.
//! - [`HostExam`] checks the laws of every host of runs, with workers in processes of their own that are killed.
//! - [`Simulator`] ends the run of an agent or a graph at every point, and compares the results; [`Executions`] counts
//!   what really ran.
//!
//! The crate is for tests:
//!
//! ```toml
//! [dev-dependencies]
//! stepfold-exam = "0.1"
//! ```
//!
//! # A custom store sits the exam
//!
//! A store that counts the appends of another one, and has no claims:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use stepfold_exam::StoreExam;
//! use stepfold_session_scopes::{
//!     AppendEvent, CreateSession, DeleteSession, Deleted, ForkInfo, ForkSession, GetSession, ListForks, ListSessions,
//!     ListUsers, MemoryStore, PruneSession, Pruned, Receipt, RewindSession, ScopeKey, ScopeValues, Session, SessionError,
//!     SessionPage, SessionStore, UserId, WriteScope,
//! };
//!
//! #[derive(Clone, Default)]
//! struct Counted {
//!     store: Arc<MemoryStore>,
//!     appends: Arc<AtomicU64>,
//! }
//!
//! impl SessionStore for Counted {
//!     async fn append(&self, request: AppendEvent) -> Result<Receipt, SessionError> {
//!         self.appends.fetch_add(1, Ordering::Relaxed);
//!         self.store.append(request).await
//!     }
//!
//!     async fn create(&self, request: CreateSession) -> Result<Session, SessionError> {
//!         self.store.create(request).await
//!     }
//!
//!     async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
//!         self.store.get(request).await
//!     }
//!
//!     async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
//!         self.store.list(request).await
//!     }
//!
//!     async fn delete(&self, request: DeleteSession) -> Result<Deleted, SessionError> {
//!         self.store.delete(request).await
//!     }
//!
//!     async fn fork(&self, request: ForkSession) -> Result<Session, SessionError> {
//!         self.store.fork(request).await
//!     }
//!
//!     async fn rewind(&self, request: RewindSession) -> Result<Receipt, SessionError> {
//!         self.store.rewind(request).await
//!     }
//!
//!     async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
//!         self.store.read_scope(scope).await
//!     }
//!
//!     async fn write_scope(&self, request: WriteScope) -> Result<ScopeValues, SessionError> {
//!         self.store.write_scope(request).await
//!     }
//!
//!     async fn forks(&self, request: ListForks) -> Result<Vec<ForkInfo>, SessionError> {
//!         self.store.forks(request).await
//!     }
//!
//!     async fn users(&self, request: ListUsers) -> Result<Vec<UserId>, SessionError> {
//!         self.store.users(request).await
//!     }
//!
//!     async fn prune(&self, request: PruneSession) -> Result<Pruned, SessionError> {
//!         self.store.prune(request).await
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let store = Counted::default();
//! let exam = StoreExam::new("counted", async || Ok(store.clone()));
//! let exam = exam.without_claims().without_branches().without_budgets().without_erasure();
//! let passed = exam.run().await.passed().unwrap();
//! assert!(passed.len() > 50 && store.appends.load(Ordering::Relaxed) > 50);
//! # });
//! ```
//!
//! # What is absent
//!
//! The crate is no part of a running program. It has no models but the [`Script`](agent_loop::test_kit::Script) of the loop, and
//! sees no private part of a store, a host or an agent.
#![doc = include_str!("../docs/limits.md")]

mod executions;
mod host;
mod simulator;
mod store;

pub use stepfold_agent_loop as agent_loop;
pub use stepfold_runner as runner;
pub use stepfold_session_scopes as session_scopes;

pub use crate::executions::Executions;
pub use crate::host::{ExamEffects, HostError, HostExam, HostExamReport, RunHost, WorkerReady, child};
pub use crate::simulator::{SimulationError, SimulationReport, Simulator};
pub use crate::store::{StoreExam, StoreExamReport};
