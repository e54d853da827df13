//! Errors of trimming: invalid stored ranges, and blank summaries. A conversation is never one.

use thiserror::Error;

/// Why stored ranges or a summary were refused.
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
