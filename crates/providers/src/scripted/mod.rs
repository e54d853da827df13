//! A model that says what it is told to, and checks everything that it is asked.
//!
//! In the order one meets them: a [`Scripted`] model is made from [`ScriptedReply`]s, which are made from
//! text in the [notation](stepfold_state_core::chat::notation), from messages, or from errors. What it was
//! asked can be looked at, and each request is checked before it is answered; see
//! [`Scripted`] for the rules.

mod check;
mod model;
mod reply;
mod show;

pub use self::model::{BrokenRule, Scripted};
pub use self::reply::ScriptedReply;
