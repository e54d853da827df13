//! Evaluates an agent by stored sessions: without the world, and without repeating an effect.
//!
//! In the facade: `stepfold::eval` (feature `eval`).
//!
//! # The tour
//!
//! A [`Case`] is a turn: written by hand, or taken from a stored session, whose record it carries. A candidate is an
//! [`Agent`]. An [`Experiment`] confronts it with the cases of a [`DataSet`] in a [`Mode`], and evaluates each
//! [`Trial`] by [`Expectation`]s and [`Evaluator`]s. The [`Report`] is compared with that of a baseline: [`Comparison`].
//!
//! Would a new prompt have done as well in yesterday's sessions?
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold_agent_loop::{Agent, test_kit::Script};
//! use stepfold_runner::Runner;
//! use stepfold_session_scopes::MemoryStore;
//! use stepfold_tools::{Tool, ToolError};
//! use stepfold_eval::{Case, Comparison, DEFAULT_SEED, DataSet, Experiment, Expectation};
//!
//! # async fn pay() -> Result<&'static str, ToolError> { Ok("paid 12") }
//! # let pay = Tool::new("pay", "Pays a bill.", pay).build()?;
//! # let script = "assistant: > c1 pay()\nassistant: I have paid 12.";
//! # let agent = Agent::builder(Script::parse(script)?).tools([pay]).build()?;
//! # let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
//! # let session = runner.session("ada", "monday").await?;
//! # session.run("pay the bill").await?;
//! // A turn that was made: the bill is paid once and for all.
//! let case = Case::taken_from(&session, None).await?;
//! let case = case.expect(Expectation::TextContains(vec!["12".to_owned()]));
//!
//! // The candidate pays nothing: the record answers its calls.
//! # let candidate = agent.to_builder().model(Script::parse("assistant: > c7 pay()\nassistant: Done.")?);
//! # let agent = agent.to_builder().model(Script::parse(script)?).build()?;
//! let candidate = candidate.instructions("Be brief.").build()?;
//! let baseline = Experiment::new(&agent).run(DataSet::of([case.clone()])).await?;
//! let report = Experiment::new(&candidate).run(DataSet::of([case])).await?;
//!
//! let comparison = Comparison::of(&baseline, &report, DEFAULT_SEED)?;
//! assert_eq!((comparison.wins, comparison.losses), (0, 1));
//! assert_eq!(comparison.lost[0].1, "text_contains: expected `12` in the text, found `Done.`");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Guarantees
//!
//! - No function of a tool is called, except for pure tools that are allowed by name, and except in [`Mode::Live`]. A call
//!   that must not run twice cannot run: in no mode without its name.
//! - A candidate that does in [`Mode::Roll`] as the recorded agent did makes the same events.
//! - A call that the record does not have is never a failure of the candidate: the case [says
//!   nothing](CaseStatus::LeftRecord), and the coverage says so.
//! - The same cases and the same candidate, with a model that answers alike, give the same report byte by byte. Times and
//!   costs are left out unless they are [asked for](Experiment::measured); the seed of a comparison is in it.
//! - A data set is read case by case, and results are kept in a file ([`ReportFile`], [`StoredReport`]) or given away: memory grows
//!   with neither, but for about twenty bytes a case, and at most a hundred in a [`Comparison`].
//!
//! Each result is an event of `tracing`, `gen_ai.evaluation.result` with the evaluator, its score and its explanation, as the
//! [conventions](https://opentelemetry.io/docs/specs/semconv/gen-ai/) of OpenTelemetry have it: a program that exports spans
//! exports them. An explanation may quote the turn.
//!
//! # What is absent
//!
//! There is no network and no process here: an evaluator that is a program needs a [`ProgramRunner`]. Nothing is written to a
//! store but the runs of a [`Judge`]. No graph is evaluated.
#![doc = include_str!("../docs/limits.md")]

mod answers;
mod case;
mod comparison;
mod data_set;
mod data_set_file;
mod error;
mod expectation;
mod experiment;
mod interchange;
mod judge;
mod locked;
mod mode;
mod redaction;
mod replaced_texts;
mod report;
mod report_file;
mod report_text;
mod run_redaction;
mod spending;
mod stored_report;
mod telemetry;
mod timelines;
mod trial;

pub use stepfold_agent_loop::Agent;

pub use crate::case::{Case, CaseSource, Conversation, Record};
pub use crate::comparison::{Comparison, DEFAULT_SEED, Verdict, exact_mcnemar};
pub use crate::data_set::DataSet;
pub use crate::data_set_file::DataSetFile;
pub use crate::error::EvalError;
pub use crate::expectation::{
    CallOrder, CallRule, Evaluator, Expectation, ExpectedCall, ExpectedCalls, Program, ProgramRunner, Score,
};
pub use crate::experiment::Experiment;
pub use crate::interchange::{Converted, DataSetFormat, LeftOut};
pub use crate::judge::{Judge, Rubric};
pub use crate::locked::FileLock;
pub use crate::mode::Mode;
pub use crate::redaction::CaseRedaction;
pub use crate::report::{CaseResult, CaseStatus, Measured, REPORT_FORMAT, Report, ReportHead, Summary};
pub use crate::report_file::ReportFile;
pub use crate::spending::Spending;
pub use crate::stored_report::StoredReport;
pub use crate::timelines::Timelines;
pub use crate::trial::{Trial, TrialCall};
