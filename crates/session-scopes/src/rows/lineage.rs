//! The segments that a session's history consists of, and the form of versions in database columns.

/// A number as databases keep it. Ours stay far below the limit.
pub(crate) fn to_db(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number as databases keep it.
pub(crate) fn from_db(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A part of a session's history: the events after `after` up to `upto`, stored with the session `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistorySegment {
    pub(crate) stream: i64,
    pub(crate) after: u64,
    pub(crate) upto: u64,
}

impl HistorySegment {
    /// The end of an open history.
    pub(crate) const OPEN: u64 = i64::MAX as u64;

    pub(crate) fn contains(&self, version: u64) -> bool {
        self.after < version && version <= self.upto
    }
}

/// The lineage of a fork at a version: the shared segments and its own, newest first.
pub(crate) fn forked(lineage: &[HistorySegment], number: i64, version: u64) -> Vec<HistorySegment> {
    let oldest = lineage.last().map(|segment| segment.stream);
    let own = HistorySegment { stream: number, after: version, upto: HistorySegment::OPEN };
    // NOTE: the oldest segment stays even if none of its events is shared: the rows of the initial state are in it.
    let shared = lineage.iter().filter(|part| part.after < version || Some(part.stream) == oldest);
    let shared = shared.map(|part| HistorySegment { upto: part.upto.min(version), ..*part });
    let mut forked: Vec<HistorySegment> = std::iter::once(own).chain(shared).collect();
    forked.sort_by_key(|segment| std::cmp::Reverse((segment.after, segment.upto)));
    forked
}

/// Whether a history, given newest segment first, has the row of this stream and version.
#[cfg(feature = "postgres")]
pub(crate) fn in_lineage(lineage: &[HistorySegment], stream: i64, version: u64) -> bool {
    // NOTE: no segment contains version 0, whose rows are the initial state in the oldest segment.
    let oldest = lineage.last();
    lineage.iter().any(|segment| segment.stream == stream && segment.contains(version))
        || version == 0 && oldest.is_some_and(|oldest| oldest.stream == stream)
}
