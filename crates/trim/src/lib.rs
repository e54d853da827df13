//! What a model is shown of a conversation that has grown long.
//!
//! Trimming is a *view*: the log keeps every message, the model is shown some of them. Compacting the log
//! itself is another thing, and not done here. Everything here is a pure function of a
//! [`Transcript`](stepfold_state_core::chat::Transcript); nothing waits, stores or asks a model.
//!
//! # Which to take
//!
//! | you want | take |
//! |---|---|
//! | everything, because conversations are short | [`Trim::none()`] |
//! | a sound default | [`Trim::keep_last(100)`](Trim::keep_last) |
//! | a short window that still knows what was asked and what certain tools found | [`Trim::keep_last(20)`](Trim::keep_last) [`.with_pins(...)`](Trim::with_pins) |
//! | to fit a model's window, or a budget, by whole turns | [`Trim::max_tokens(n)`](Trim::max_tokens) |
//! | a bound that one huge turn cannot break either | `.then(`[`Trim::cap_tokens(n)`](Trim::cap_tokens)`)` or [`cap_messages`](Trim::cap_messages) |
//! | old messages condensed instead of left out | [`Summarize::beyond(trim)`](Summarize::beyond) |
//! | a turn of a hundred steps that does not overflow the model | [`Window::new(limit)`](Window::new), besides any of these |
//! | exact tokens of your model | [`counted_by(...)`](Trim::counted_by) with your [`TokenCounter`] |
//!
//! How much to keep: a window of ten messages loses the question that the last SQL statement answers, a
//! window of one breaks every tool chain (spec/003 of the project tells the story). Fifty to a hundred
//! messages, or a smaller window with pins, are safe.
//!
//! # When
//!
//! A [`Trim`] is applied once, *before* a turn begins: what comes in during a turn belongs to it, and a
//! trim in the middle could take the user's request away. Within the turn a [`Window`] takes over: it shows
//! the same prefix at every step, so that prompt caches hit, and shrinks only when the model's own
//! window would overflow, then by a good deal at once.
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
//! # What never happens
//!
//! A step is never torn: an assistant message is shown with the results of all its calls, or not at all. So
//! what is shown of a well-formed conversation is
//! [well-formed](stepfold_state_core::chat::Transcript::check). Leading system messages are never left
//! out, and neither is the last user message. A conversation that is not well-formed gets no worse and
//! nothing panics, but [repair](stepfold_state_core::chat::Transcript::repair) it first.
//!
//! # Where this comes from
//!
//! [`Trim::keep_last`] is `trim_messages_simple` of the document on trimming an agent's messages (spec/003 of
//! the project), pins are its `smart_trim_for_sql_workflow`, and the rule to trim before the turn is
//! its as well. What it left open is decided in `docs/decisions.md`, and where we differ stands in
//! `docs/compare.md`. That steps move whole answers a fault that other trimmers have had:
//! <https://github.com/langchain-ai/langchain/issues/33245>, <https://github.com/cline/cline/pull/7225>. That a
//! prompt cache needs an equal prefix: <https://developers.openai.com/api/docs/guides/prompt-caching>.

mod policy;
mod view;

mod approximate;
mod tokens;
mod window;

mod summarize;

mod cut;
mod kept;

mod error;

pub use stepfold_state_core as state_core;

pub use crate::approximate::ApproximateTokens;
pub use crate::error::TrimError;
pub use crate::kept::Kept;
pub use crate::policy::{Pins, Trim};
pub use crate::summarize::{SUMMARY_INSTRUCTIONS, Summarize, Summary, SummaryPlan, SummaryRole};
pub use crate::tokens::{TokenCounter, token_counter};
pub use crate::view::{Reason, View, Why};
pub use crate::window::{TurnView, Window};
