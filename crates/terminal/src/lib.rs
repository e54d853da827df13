//! Shows runs of agents at a terminal: answers, calls, state changes, approvals.
//!
//! In the facade: `stepfold::terminal` (feature `terminal`). A program that depends on `stepfold` writes this path
//! where the examples here have `stepfold_terminal`.
//!
//! A [`Printer`] shows an invocation on standard output to its end:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use stepfold_agent_loop::Agent;
//! use stepfold_providers::Scripted;
//! use stepfold_runner::Runner;
//! use stepfold_session_scopes::MemoryStore;
//! use stepfold_terminal::Printer;
//!
//! let agent = Agent::builder(Scripted::conversation("assistant: It is **open**.")?).build()?;
//! let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "monday").await?;
//! Printer::new().follow(&session.send("is it open?").await?).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! A [`RunView`] decides what is shown. It is pure: an event in, lines out. Its parts can be used alone:
//! streamed [`Markdown`], [`CallLines`] in a line each, [`changes`] of the state, an [`approval`] with the complete
//! request, values in [`brief`]. They all return [`StyledText`], which contains no control sequences of its input.
//!
//! There are two [forms](DisplayForm): lines of a terminal, wrapped to its width, and lines of a log, for a pipe or a
//! file, which have no escape sequences and no times. Colors are the 16 of the terminal's theme.
//!
//! # What is absent
//!
//! Input is not read. Output is lines that scroll: there are no windows and no mouse.
#![doc = include_str!("../docs/limits.md")]

mod approval;
mod brief;
mod calls;
mod changes;
mod fields;
mod form;
mod markdown;
mod print;
mod quantities;
mod steps;
mod text;
mod view;

pub use self::approval::{approval, folded_approval};
pub use self::brief::brief;
pub use self::calls::CallLines;
pub use self::changes::{change_line, changes};
pub use self::form::DisplayForm;
pub use self::markdown::Markdown;
pub use self::print::{Color, Printer, on_this_line, stderr_form, stdout_form};
pub use self::text::{StyledText, TextStyle};
pub use self::view::{RunView, ViewItem, describe_unfinished};
