//! An agent in a session: load, run, commit each event, resume.
//!
//! In the facade: `stepfold::runner`. A program that depends on `stepfold` writes this path where the examples here have
//! `stepfold_runner`.
//!
//! # The tour
//!
//! A [`Runner`] combines one [`Agent`](agent_loop::Agent) with one [store](session_scopes::SessionStore), for
//! any number of sessions. [`Runner::session`] returns a [`SessionHandle`]; [`SessionHandle::run`] runs a
//! turn in it, and [`SessionHandle::send`] starts one in its own task: an [`Invocation`], which can be
//! awaited, cancelled, and observed by any number of subscribers, each from its own position. Dropping it
//! stops nothing: a disconnect is not a cancellation.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold_runner::agent_loop::test_kit::Script;
//! use serde_json::json;
//! use stepfold_runner::Runner;
//! use stepfold_runner::agent_loop::tools::{Approval, Tool, ToolError};
//! use stepfold_runner::agent_loop::{Agent, Decision, Exit, Pause};
//! use stepfold_runner::session_scopes::{AnyStore, MemoryStore};
//! use stepfold_state_core::state::{Handler, Schema};
//!
//! async fn pay() -> Result<serde_json::Value, ToolError> {
//!     Ok(json!({"euro": 5}))
//! }
//!
//! # let model = Script::parse("\
//! # assistant: > c1 pay()
//! # assistant: paid
//! # assistant: five euro
//! # ")?;
//! let agent = Agent::builder(model)
//!     .schema(Schema::builder().key::<u64>("user:spent").handler(Handler::sum()).build()?)
//!     .tools([Tool::new("pay", "Pays the open bill.", pay)
//!         .output_to_state("user:spent", "euro")
//!         .approval(Approval::Always)
//!         .build()?])
//!     .build()?;
//! let store = AnyStore::new(MemoryStore::new());    // or SQLite, PostgreSQL, a custom one
//!
//! // Each commit is stored before anything else happens; here the run waits for an approval.
//! let session = Runner::builder(agent.clone(), store.clone()).build().session("ada", "s1").await?;
//! let outcome = session.run("pay the bill").await?;
//! assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
//!
//! // Next week, in another process: only the store is needed.
//! let session = Runner::builder(agent, store).build().session("ada", "s1").await?;
//! let request = &session.pending().await?[0];
//! let outcome = session.resume().decide(&request.id, Decision::Approve).await?;
//! assert_eq!(outcome.text(), "paid");
//!
//! // The next turn continues the conversation and the state; all sessions of Ada share `user:`.
//! let outcome = session.run("how much was it?").await?;
//! assert_eq!(outcome.state().get("user:spent").unwrap(), json!(5));
//! assert_eq!(outcome.transcript().to_string(), r#"user:      pay the bill
//! assistant: > c1 pay()
//! tool c1:   {"euro": 5}
//! assistant: paid
//! user:      how much was it?
//! assistant: five euro
//! "#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! A host of many machines uses [`SessionHandle::run_as`]: a function that any worker may repeat, with a
//! [`RunReport`] that can be stored, and [`RunnerError::remedy`] for what to do after an error.
//!
//! Further topics: [`WhenBusy`] decides about a message for a busy session; [`SessionHandle::resume`] continues a
//! run that waits, was interrupted or failed, and [`abandon`](SessionHandle::abandon) cancels it;
//! [`fork`](SessionHandle::fork) and [`rewind`](SessionHandle::rewind) try alternatives;
//! [`replay`](SessionHandle::replay) shows before a deployment where stored sessions would diverge.
//!
//! # Guarantees
//!
//! - A commit is one atomic event of the session: messages, writes in all scopes, version.
//! - A process may die at any instant. The next one loses nothing that was acknowledged, and runs only calls
//!   without an outcome. [`guarantees`] lists the guarantee for each kind of effect, store and moment, with
//!   its test.
//! - A call that must not run twice runs once, even if several workers resume its run at the same moment.
//! - A call has one idempotency key, however often it runs; no two calls share a key, even in a fork.
//! - One invocation runs in a session at a time: its worker holds the [claim](WhenClaimed) on it, and a
//!   worker that lost the claim writes nothing. No message is lost: it is taken, or refused with an error.
//! - A session that is kept open reads only new data.
//!
//! # What is absent
//!
//! The loop decides and the store stores; this crate does neither. Nothing is resumed automatically when a
//! process starts: the application spawns [`Runner::recover`], or resumes sessions itself. `temp:` values are never
//! stored.
//!
//! # Prior art
//!
//! Scopes, sessions and their turns are those of adk-rust 2.3 ("State management"); commits, effects and
//! recovery are stepfold's own. `docs/compare.md` lists the differences, `docs/decisions/runner.md` the reasons.
#![doc = include_str!("../docs/limits.md")]

mod access;
mod budget;
mod builder;
mod core;
mod error;
mod feed;
mod handle;
pub mod log;
mod ports;
mod record;
mod recovery;
mod remedy;
mod remote_tool;
mod retention;
mod runner;
mod session;
mod session_recall;
mod upgrade;
mod worker;

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

pub use stepfold_agent_loop as agent_loop;
pub use stepfold_session_scopes as session_scopes;

pub use crate::access::decision_lookup::RecordedDecision;
pub use crate::access::unfinished_run::RunInEvents;
pub use crate::budget::{
    Budget, BudgetError, BudgetScope, BudgetSpender, BudgetStatus, BudgetWindow, OutsideRequests,
    SharedRateLimit, SpendGroup, SpendQuery, SpendReport, SpendSum, WhenExhausted, estimated_cost,
};
pub use crate::builder::RunnerBuilder;
pub use crate::core::load::RunnerLoad;
pub use crate::core::runner_core::Runner;
pub use crate::core::watchers::SessionChange;
pub use crate::error::{RunnerError, RunnerErrorKind};
pub use crate::feed::follow::FollowedSession;
pub use crate::feed::watch::WatchScope;
pub use crate::handle::complete::CompleteCall;
pub use crate::handle::edits::{EditReceipt, EditSession, ForkWithEdit, RecordedEdit};
pub use crate::handle::erase::{EraseRequest, ErasureReport, ErasureSubject};
pub use crate::handle::find_call::FoundCall;
pub use crate::handle::model_step::ModelStep;
pub use crate::handle::prompt_cache::{CachedRequest, PrefixBreak};
pub use crate::handle::recorded_runs::RecordedRun;
pub use crate::handle::resume::ResumeRun;
pub use crate::handle::run_as::RunAs;
pub use crate::handle::session_handle::SessionHandle;
pub use crate::log::compare::{Comparison, FirstDifference, compare};
pub use crate::ports::{AgentArchive, ArchiveError, EarlierAgent, ShortIds, SystemClock, WallClock};
pub use crate::record::events::{
    RECORD_FORMAT, exhausted_budget, exit_of, failure, is_left_to_person, is_unfinished,
};
pub use crate::record::report::{REPORT_FORMAT, RunReport, RunStatus};
pub use crate::recovery::recover::RecoverOptions;
pub use crate::recovery::unattended::UnattendedSession;
pub use crate::remedy::Remedy;
pub use crate::retention::{RETENTION_APP, RetentionOptions, RetentionPolicy, RetentionReport};
pub use crate::session::busy::WhenBusy;
pub use crate::session::claim::WhenClaimed;
pub use crate::session::decision_reply::DecisionReceipt;
pub use crate::session::event_hub::InvocationEvent;
pub use crate::session::inbox::WaitingMessage;
pub use crate::session::invocation::{Invocation, InvocationResult};
pub use crate::session_recall::SessionRecall;
pub use crate::upgrade::{CheckedRun, UpgradeCheck, UpgradeCounts, UpgradeStatus, WhenChanged};
