//! The run of an agent as a state machine that can be stopped, stored, resumed and replayed.
//!
//! In the facade: `stepfold::agent_loop`. A program that depends on `stepfold` writes this path where the examples here
//! have
//! `stepfold_agent_loop`.
//!
//! # The tour
//!
//! An [`Agent`] is the fixed part of runs: a model, tools, instructions, the schema of the state, and exit
//! rules. [`Agent::run`] runs it on an [`Input`]; the result is an [`Outcome`], which names its [`Exit`].
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold_agent_loop::test_kit::Script;
//! use serde_json::json;
//! use stepfold_agent_loop::{Agent, Exit, Input};
//! use stepfold_state_core::state::Schema;
//! use stepfold_tools::{Args, Tool, ToolError};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Count {
//!     area: u64,
//! }
//!
//! async fn count(Args(count): Args<Count>) -> Result<serde_json::Value, ToolError> {
//!     Ok(json!({"stalls": count.area * 4}))
//! }
//!
//! # let model = Script::parse("\
//! # assistant: > c1 count(area=3)   > c2 count(area=7)
//! # assistant: 40 stalls
//! # ")?;
//! let agent = Agent::builder(model)
//!     .instructions("You count stalls for {user_name}.")
//!     .schema(Schema::builder().key::<String>("user_name").key::<Vec<u64>>("counted").build()?)
//!     .tools([Tool::new("count", "Counts the stalls of an area.", count)
//!         .output_to_state("counted", "stalls")
//!         .build()?])
//!     .max_steps(10)
//!     .build()?;
//!
//! let input = Input::from("how many stalls have areas 3 and 7?").with_values(json!({"user_name": "Ada"}));
//! let outcome = agent.run(input).await?;
//!
//! assert_eq!(outcome.exit(), &Exit::Text);
//! assert_eq!(outcome.state().get("counted").unwrap(), json!([12, 28]));
//! assert_eq!(outcome.transcript().to_string(), r#"user:      how many stalls have areas 3 and 7?
//! assistant: > c1 count(area=3)   > c2 count(area=7)
//! tool c1:   {"stalls": 12}
//! tool c2:   {"stalls": 28}
//! assistant: 40 stalls
//! "#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! The layer below is the [`Run`]: a state machine without side effects. It returns what it [needs](RunNeed),
//! takes [answers](RunAnswer), and makes an [`Event`] of each; only committing an event changes it. The driver
//! behind [`Agent::run`] is one host of that machine, and its control flow fits on a screen. An [`Observer`]
//! is notified of every event before its commit, and stops the run if it fails.
//!
//! A pause is an answer that comes later. So a run that waits ([`Pause`]) is an outcome like any other: it contains
//! a [`Run`], which is stored with [`Run::to_json`], [loaded](Run::load) in any process, and
//! [resumed](Run::resume), any number of times.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold_agent_loop::test_kit::Script;
//! use stepfold_tools::{Tool, ToolError};
//! use stepfold_agent_loop::{Agent, Decision, Exit, Pause, Run};
//! use stepfold_tools::Approval;
//!
//! # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
//! # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
//! let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
//! let agent = Agent::builder(model).tools([pay]).build()?;
//!
//! let outcome = agent.run("pay the bill").await?;
//! assert_eq!(outcome.exit(), &Exit::Paused(Pause::Approval));
//! assert_eq!(outcome.pending()[0].call.name, "pay");
//! let stored = outcome.run().to_json();
//!
//! // Next week, in another process:
//! let run = Run::load(&agent, &stored)?;
//! let request = run.pending().remove(0);
//! let outcome = run.resume().decide(request.id, Decision::Approve).await?;
//! assert_eq!(outcome.text(), "done");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! Further topics: [`RunLimits`], [hooks](HookAction), [`Output`] for values
//! instead of text, [`Trim`](trim::Trim) for long conversations, [agents as tools](AgentTool), [`plan`] for workflows
//! (graphs are in `stepfold-graph`), [`Traces`], [`Recording`] for replays, and with the feature `test-kit` a scripted
//! model (the simulator that stops a run everywhere is in `stepfold-exam`).
//!
//! # Guarantees
//!
//! - Folding the events of a run over its initial state gives its final state.
//! - A run that is stopped anywhere, stored, loaded and resumed ends with the same state and the same conversation.
//! - No malformed conversation reaches a model, whatever was cancelled, rejected, truncated or trimmed: it is
//!   repaired when a run begins, and every call is answered before the next request.
//! - A call that must not run twice is marked in the record before it starts. If the process dies, it does
//!   not run again: the model sees that its outcome is unknown, or an approver decides.
//! - A step costs the same after ten thousand steps as after one.
//! - Everything is bounded: steps, calls of a reply, repairs, repeated calls, nesting.
//!
//! # What is absent
//!
//! This crate stores nothing except requested snapshots; the runner connects sessions and the loop. Its only
//! model is that of the test kit. Clock and ids are ports: [`Clock`], [`Ids`].
//!
//! # Prior art
//!
//! The loop, its exit rules, errors as messages, breakpoints and snapshots are those of Haystack 2.31's
//! Agent, trimming before a turn that of LangGraph's ReAct agents. `docs/compare.md` lists the differences,
//! `docs/decisions/loop.md` the reasons.
#![doc = include_str!("../docs/limits.md")]

mod agent;
mod approval;
mod decisions;
mod digest;
mod driver;
mod edit;
mod error;
mod exit;
mod last_words;
mod meter;
mod observe;
mod outcome;
mod planned;
mod ports;
mod redact;
mod replay;
mod request_text;
mod run;
mod run_error;
mod state_input;
mod stored_form;
#[cfg(feature = "test-kit")]
pub mod test_kit;

pub mod plan {
    #![doc = include_str!("plan.md")]

    pub use crate::agent::{BranchAgent, BranchEnd, Emitter, EndedAgent, NotBegun, Planner};
    pub use crate::planned::{
        AttemptPolicy, END, EndedBranch, NextSuperstep, OpenBranch, PlanError, PlanPosition, START,
    };
}

pub use stepfold_state_core as state_core;
pub use stepfold_tools as tools;
pub use stepfold_trim as trim;

pub use crate::agent::{
    Agent, AgentBuilder, AgentChange, AgentTool, ChangeKind, Fingerprint, HookAction, HookContext, HookError,
    HookPoint, HookResult, HookVerdict, OUTPUT_TOOL, Output, OutputMode, RepeatGuard, RunLimits,
};
pub use crate::approval::{ApprovalQuestion, ApprovalRequest, Approver, AskReason, Decision};
pub use crate::decisions::{DecisionError, Decisions};
pub use crate::driver::{CallAnswer, CallAnswers, RunBuilder, RunStream, StartingCall};
pub use crate::edit::{Edit, EditError, ValueEdit};
pub use crate::error::{AgentError, FeedError, StartError};
pub use crate::exit::{Breakpoint, Exit, Pause};
pub use crate::meter::{BudgetUnit, ExhaustedBudget, MeterError, MeteredRequest, RequestEnd, RequestMeter};
pub use crate::observe::{DynObserver, EventRefused, Observer, ObserverError, RunEvent, Traces};
pub use crate::outcome::{Outcome, OutputError};
pub use crate::planned::{JoinArrivals, NodeOutcome, NodeStatus, PlannedBranch, RecordedRoute};
pub use crate::ports::{Clock, Ids, RandomIds, TokioClock};
pub use crate::redact::{
    ContentRedactor, ModelView, Redact, Redaction, RedactionError, RedactionNote, SensitiveData,
    SensitivePart, redacted,
};
pub use crate::replay::{Difference, Divergence, Recording};
pub use crate::run::{
    AgentUpgrade, AnsweredItem, CallDisposition, Event, EventKind, FORMAT_VERSION, HookReport, Input,
    ItemOutcome, ListedTool, LoadError, NEWEST_FORMAT_VERSION, OutputDisposition, PendingHook, RecordedCall,
    RecordedOutcome, Run, RunAnswer, RunNeed, SharedValue, ShownTool, StepEnd, TouchedWork, UnknownCall,
    WorkOutcome,
};
pub use crate::run_error::{RunError, RunFault};
pub use crate::state_input::{StateInput, StateValue};
