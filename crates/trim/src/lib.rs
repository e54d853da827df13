//! Trims the view that a model has of a long conversation.
//!
//! In the facade: `stepfold::trim`. A program that depends on `stepfold` writes this path in place of `stepfold_trim`
//! in the examples.
//!
//! Trimming is a *view*: the log keeps every message, the model is shown some of them. Compacting the log
//! itself is out of scope. Everything here is a pure function of a
//! [`Transcript`](stepfold_state_core::chat::Transcript); nothing waits, stores or calls a model.
//!
//! # Choosing a policy
//!
//! | need | use |
//! |---|---|
//! | everything, because conversations are short | [`Trim::none()`] |
//! | a sound default | [`Trim::keep_last(100)`](Trim::keep_last) |
//! | a short window that keeps user messages and the results of certain tools |
//! [`Trim::keep_last(20)`](Trim::keep_last) [`.with_pins(...)`](Trim::with_pins) |
//! | to fit a model's window, or a budget, by whole turns | [`Trim::max_tokens(n)`](Trim::max_tokens) |
//! | a hard bound, even for one huge turn | `.then(`[`Trim::cap_tokens(n)`](Trim::cap_tokens)`)` or
//! [`cap_messages`](Trim::cap_messages) |
//! | the calls of old steps without their large results | [`Trim::clear_results(3, 200)`](Trim::clear_results);
//! within a turn [`Window::clear_results`] |
//! | nothing left out until the conversation is much longer than what is kept |
//! [`Trim::keep_last(20)`](Trim::keep_last) [`.when_over(100)`](Trim::when_over) |
//! | old messages condensed instead of left out | [`Summarize::beyond(trim)`](Summarize::beyond) |
//! | a turn of a hundred steps that does not overflow the model | [`Window::new(limit)`](Window::new), with
//! any of these |
//! | exact tokens of your model | [`counted_by(...)`](Trim::counted_by) with your [`TokenCounter`] |
//!
//! A window of ten messages can lose the question that the last SQL statement answers, and a window of one breaks
//! every tool chain. Fifty to a hundred messages, or a smaller window with pins, are safe.
//!
//! # When
//!
//! A [`Trim`] is applied once, *before* a turn begins: messages that arrive during a turn belong to it, and a
//! trim inside a turn could remove the user's request. Within the turn a [`Window`] applies: it shows the
//! same prefix at every step, for prompt caching, and shrinks only when the model's context window would
//! overflow, then by a large share at once.
//!
//! ```
//! use stepfold_trim::{Trim, Window};
//! use stepfold_state_core::chat::{Message, Transcript};
//!
//! let trim = Trim::keep_last(100).then(Trim::cap_tokens(60_000));
//! let window = Window::new(100_000);
//!
//! let mut log = Transcript::new().with(Message::system("be brief")).with(Message::user("hello"));
//! let mut turn = window.begin(trim.view(&log), &log); // once, before the turn
//! assert!(turn.transcript().ptr_eq(&log)); // nothing to leave out: the log itself
//!
//! log.push(Message::assistant("hi")); // a step
//! turn = turn.grown(&log); // before each further request
//! assert_eq!(turn.transcript().len(), 3);
//! ```
//!
//! # Guarantees
//!
//! A step is never split: an assistant message is shown with the results of all its calls, or not at all. So
//! the view of a well-formed conversation is [well-formed](stepfold_state_core::chat::Transcript::check).
//! Leading system messages and the last user message are never dropped. A malformed conversation gets no new
//! faults and nothing panics, but [repair](stepfold_state_core::chat::Transcript::repair) it first.
//!
//! # Prior art
//!
//! [`Trim::keep_last`] corresponds to `trim_messages` of LangGraph's ReAct agents (LangChain 1.x), with pins
//! for selected tools, and runs before the turn. `docs/decisions/trimming.md` explains the choices, `docs/compare.md`
//! the differences. Steps are moved whole because of faults in other trimmers:
//! <https://github.com/langchain-ai/langchain/issues/33245>, <https://github.com/cline/cline/pull/7225>.
//! Prompt caches need an equal prefix: <https://developers.openai.com/api/docs/guides/prompt-caching>.
#![doc = include_str!("../docs/limits.md")]

mod pins;
mod policy;
mod view;

mod approximate;
mod tokens;
mod window;

mod summarize;

mod cleared;
mod cut;
mod kept;

mod error;

pub use stepfold_state_core as state_core;

pub use crate::approximate::ApproximateTokens;
pub use crate::error::TrimError;
pub use crate::kept::MessageRanges;
pub use crate::pins::Pins;
pub use crate::policy::Trim;
pub use crate::summarize::{SUMMARY_INSTRUCTIONS, Summarize, Summary, SummaryPlan, SummaryRole};
pub use crate::tokens::{TokenCounter, token_counter};
pub use crate::view::{TrimReason, TrimRule, View};
pub use crate::window::{TurnView, Window};
