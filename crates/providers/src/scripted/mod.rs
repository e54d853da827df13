//! A model with scripted replies that checks its requests.
//!
//! In order: a [`Scripted`] model is made from [`ScriptedReply`]s, which are made from text in the
//! [notation](stepfold_state_core::chat::notation), from messages, or from errors. Its requests can be
//! inspected, and each is checked before it is answered; see [`Scripted`] for the rules.

mod check;
mod model;
mod reply;
mod request_text;

pub use self::model::{BrokenRule, Scripted};
pub use self::reply::ScriptedReply;
