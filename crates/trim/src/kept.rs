//! The messages of a conversation that are shown, as ranges. The size does not depend on the length of the
//! conversation, so a run can store it instead of the messages.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::Transcript;

use crate::error::TrimError;

/// Ranges of message indexes in a log: in order, none empty, none touching the next.
///
/// JSON is an array of pairs, `[[0, 1], [18, 120]]`, each a start and an exclusive end; other input is
/// rejected.
///
/// # Examples
/// ```
/// use stepfold_trim::MessageRanges;
///
/// let kept: MessageRanges = [0..1, 18..50, 50..120].into_iter().collect();
/// assert_eq!(kept.ranges(), [0..1, 18..120]);
/// assert_eq!((kept.len(), kept.contains(7)), (103, false));
/// assert_eq!(serde_json::to_string(&kept)?, "[[0,1],[18,120]]");
/// assert!(serde_json::from_str::<MessageRanges>("[[5, 9], [0, 1]]").is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(usize, usize)>", into = "Vec<(usize, usize)>")]
pub struct MessageRanges(Vec<Range<usize>>);

impl MessageRanges {
    /// The first `length` messages.
    pub(crate) fn first(length: usize) -> Self {
        let mut kept = MessageRanges::default();
        kept.push(0..length);
        kept
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// The indexes, in order and from either end.
    pub fn indexes(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// The number of messages.
    pub fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Whether no message is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the message at `index` is kept.
    pub fn contains(&self, index: usize) -> bool {
        let after = self.0.partition_point(|range| range.start <= index);
        after.checked_sub(1).is_some_and(|before| self.0[before].contains(&index))
    }

    /// Appends a range that begins at or after the end of the last one; an empty range is ignored.
    pub(crate) fn push(&mut self, range: Range<usize>) {
        match self.0.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Removes the indexes from `length` on.
    pub(crate) fn cut_to(&self, length: usize) -> Self {
        self.0.iter().map(|range| range.start.min(length)..range.end.min(length)).collect()
    }

    /// The same ranges of a log after its first `count` messages were pruned.
    pub fn without_first(&self, count: usize) -> Self {
        let place = |index: usize| index.saturating_sub(count);
        self.0.iter().map(|range| place(range.start)..place(range.end)).collect()
    }

    /// Whether this is the first `length` messages.
    pub(crate) fn is_first(&self, length: usize) -> bool {
        match &*self.0 {
            [] => length == 0,
            [only] => *only == (0..length),
            _ => false,
        }
    }

    /// Applies `inner`, whose indexes count the messages kept here.
    pub(crate) fn compose(&self, inner: &MessageRanges) -> Self {
        let mut composed = MessageRanges::default();
        let mut outer = self.0.iter();
        let mut current = 0..0;
        // How many kept messages are before `current`.
        let mut passed = 0;
        for range in &inner.0 {
            let mut start = range.start;
            while start < range.end {
                while start >= passed + current.len() {
                    passed += current.len();
                    current = match outer.next() {
                        Some(next) => next.clone(),
                        None => return composed,
                    };
                }
                let end = range.end.min(passed + current.len());
                composed.push(current.start + (start - passed)..current.start + (end - passed));
                start = end;
            }
        }
        composed
    }

    /// The indexes kept here or in `other`.
    pub(crate) fn union(&self, other: &MessageRanges) -> Self {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).cloned().collect();
        all.sort_by_key(|range| range.start);
        // Those that overlap are joined.
        all.into_iter().collect()
    }

    /// The indexes kept here and in `other`.
    pub(crate) fn within(&self, other: &MessageRanges) -> Self {
        self.indexes().filter(|index| other.contains(*index)).map(|index| index..index + 1).collect()
    }

    /// The indexes kept here and not in `other`, which is a subset.
    pub(crate) fn without(&self, other: &MessageRanges) -> Self {
        let mut left = MessageRanges::default();
        let mut others = other.0.iter().peekable();
        for range in &self.0 {
            let mut start = range.start;
            while let Some(taken) = others.next_if(|taken| taken.start < range.end) {
                left.push(start..taken.start.max(start));
                start = taken.end.max(start);
            }
            left.push(start..range.end.max(start));
        }
        left
    }

    /// The kept messages of `log`; shares `log` if all are kept.
    pub(crate) fn of(&self, log: &Transcript) -> Transcript {
        if self.is_first(log.len()) {
            return log.clone();
        }
        let mut transcript = Transcript::new();
        for range in &self.0 {
            transcript.extend(log.iter_from(range.start).take(range.len()).cloned());
        }
        transcript
    }
}

impl FromIterator<Range<usize>> for MessageRanges {
    /// Collects ranges in order; a range that touches or overlaps the previous one is joined to it. Ranges
    /// out of order are skipped.
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let mut kept = MessageRanges::default();
        for range in ranges {
            let end = kept.0.last().map_or(0, |last| last.end);
            kept.push(range.start.max(end)..range.end);
        }
        kept
    }
}

impl fmt::Display for MessageRanges {
    /// `0..1, 18..120`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{}..{}", range.start, range.end)?;
        }
        Ok(())
    }
}

impl From<MessageRanges> for Vec<(usize, usize)> {
    fn from(kept: MessageRanges) -> Self {
        kept.0.into_iter().map(|range| (range.start, range.end)).collect()
    }
}

impl TryFrom<Vec<(usize, usize)>> for MessageRanges {
    type Error = TrimError;

    /// # Errors
    /// [`TrimError::Ranges`] if a range is empty, or touches or precedes the one before it.
    fn try_from(pairs: Vec<(usize, usize)>) -> Result<Self, TrimError> {
        let mut end = None;
        for (start, next_end) in &pairs {
            // NOTE: One form for each set of messages, so that equal sets are equal data.
            if start >= next_end || end.is_some_and(|end| end >= *start) {
                return Err(TrimError::Ranges { start: *start, end: *next_end });
            }
            end = Some(*next_end);
        }
        Ok(MessageRanges(pairs.into_iter().map(|(start, end)| start..end).collect()))
    }
}
