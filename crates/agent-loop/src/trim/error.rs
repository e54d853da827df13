//! What can be wrong with trimming: never a conversation, only a policy or a range that was stored, and
//! a summary that says nothing.

use thiserror::Error;

/// Why a policy or a summary was refused.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::trim::{Trim, TrimError};
///
/// let error = Trim::load(&json!([{"keep_first": {"messages": 3}}]), &[]).unwrap_err();
/// assert!(matches!(error, TrimError::NotAPolicy { .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrimError {
    /// A stored policy names a token counter that the reader was not given.
    #[error("unknown token counter `{name}`; known: {known}")]
    UnknownCounter {
        /// The name in the policy.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A stored policy is not one.
    #[error("not a trim policy: {reason}")]
    NotAPolicy {
        /// What the reader of the JSON found.
        reason: String,
    },
    /// Stored ranges are empty or out of order.
    #[error("the range {start}..{end} is empty, or begins before the one ahead of it has ended")]
    Ranges {
        /// Where the range begins.
        start: usize,
        /// One past its end.
        end: usize,
    },
    /// A model answered the request for a summary with nothing.
    #[error("the summary of {messages} messages is blank")]
    BlankSummary {
        /// How many messages it should have replaced.
        messages: usize,
    },
}
