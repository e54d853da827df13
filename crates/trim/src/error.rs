//! Errors of trimming: invalid stored ranges, and blank summaries. Trimming a conversation never fails.

use thiserror::Error;

/// Errors of stored ranges and of summaries.
///
/// # Examples
/// ```
/// use stepfold_trim::{MessageRanges, TrimError};
///
/// let error = MessageRanges::try_from(vec![(5, 9), (0, 1)]).unwrap_err();
/// assert!(matches!(error, TrimError::Ranges { start: 0, end: 1 }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TrimError {
    /// Stored ranges are empty or out of order.
    #[error(
        "invalid range {start}..{end}: must not be empty, and must begin after the end of the previous range"
    )]
    Ranges {
        /// The start of the range.
        start: usize,
        /// The end of the range, exclusive.
        end: usize,
    },
    /// The model's reply to the summary request is blank.
    #[error("invalid summary of {messages} messages: the reply is blank; call the model again")]
    BlankSummary {
        /// The number of messages the summary should have replaced.
        messages: usize,
    },
    /// The model was stopped in its reply to the summary request, or refused it.
    #[error("invalid summary of {messages} messages: {reason}; the conversation goes on without it")]
    UnfinishedSummary {
        /// The number of messages the summary should have replaced.
        messages: usize,
        /// The reason, from the end of the reply.
        reason: &'static str,
    },
    /// The model's reply to the summary request is longer than a summary may be.
    #[error(
        "summary of {messages} messages too long: expected at most {limit} characters, found {found}; raise \
         `summary_characters`, or ask for a shorter one in the instructions"
    )]
    LongSummary {
        /// The number of messages the summary should have replaced.
        messages: usize,
        /// The maximum number of characters.
        limit: usize,
        /// The number of characters of the reply.
        found: usize,
    },
}
