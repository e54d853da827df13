//! Errors of trimming: invalid stored ranges, and blank summaries. Trimming a conversation never fails.

use thiserror::Error;

/// Errors of stored ranges and of summaries.
///
/// # Examples
/// ```
/// use stepfold_trim::{Kept, TrimError};
///
/// let error = Kept::try_from(vec![(5, 9), (0, 1)]).unwrap_err();
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
}
