//! The rows of a stream that no history has any more, and the items of lists that are still needed of those.

#[cfg(any(test, feature = "sqlite"))]
use super::values::ListExtent;

/// The most sessions with rows of a stream whose lists are read to find the items that none of them needs. While there are
/// more, all items stay.
pub(crate) const MAX_SEARCHED_SHARERS: usize = 100;

/// The most events of these sessions, and of those that they were forked from, that are read for it.
pub(crate) const MAX_SEARCHED_EVENTS: u64 = 100_000;

/// A session whose history has rows of a stream: those after `after` up to `upto`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSharer {
    /// The session's number.
    pub(crate) number: i64,
    pub(crate) after: u64,
    pub(crate) upto: u64,
    /// The oldest version that the session can go back to.
    pub(crate) oldest: u64,
}

#[cfg(feature = "postgres")]
impl StreamSharer {
    /// The first and the last version whose states the session can go back to, and are those of rows of the stream; `None` if
    /// there is none.
    pub(crate) fn states(&self) -> Option<(u64, u64)> {
        let first = self.after.max(self.oldest);
        (first <= self.upto).then_some((first, self.upto))
    }

    /// Whether its history had the row of a version, before retention.
    pub(crate) fn contains(&self, version: u64) -> bool {
        // NOTE: no segment contains version 0, whose rows are the initial state, and only the oldest segment has such rows.
        version == 0 || self.after < version && version <= self.upto
    }
}

/// The use of a stream's rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamUsage {
    /// The highest version that a history has. Rows of later ones can go as wholes.
    pub(crate) upto: u64,
    /// The ranges of versions up to `upto`, from the first to the last of each, whose events no history has. Items that
    /// they added to lists may still be needed.
    pub(crate) gaps: Vec<(u64, u64)>,
}

impl StreamUsage {
    /// The use by these sessions; `None` if there is none.
    pub(crate) fn of(sharers: &[StreamSharer]) -> Option<Self> {
        let upto = sharers.iter().map(|sharer| sharer.upto).max()?;
        let mut used: Vec<(u64, u64)> =
            sharers.iter().map(|sharer| (sharer.after.max(sharer.oldest), sharer.upto)).collect();
        used.retain(|(after, upto)| after < upto);
        used.sort_unstable();
        let (mut gaps, mut first) = (Vec::new(), 0);
        for (after, upto) in used {
            if first <= after {
                gaps.push((first, after));
            }
            first = first.max(upto.saturating_add(1));
        }
        if first <= upto {
            gaps.push((first, upto));
        }
        Some(StreamUsage { upto, gaps })
    }
}

/// The places of a list whose items are not found yet.
#[cfg(any(test, feature = "sqlite"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingItems {
    /// The first place of each range, and the one after its last: in order, and apart.
    ranges: Vec<(u64, u64)>,
}

#[cfg(any(test, feature = "sqlite"))]
impl MissingItems {
    /// All places of a list.
    pub(crate) fn of(extent: ListExtent) -> Self {
        let mut missing = MissingItems::default();
        missing
            .add(&MissingItems { ranges: vec![(extent.start, extent.start.saturating_add(extent.length))] });
        missing
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the item of a place is missing.
    pub(crate) fn contains(&self, place: u64) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..*to).contains(&place))
    }

    /// Removes the places of so many items from `place` on.
    pub(crate) fn remove(&mut self, place: u64, length: u64) {
        if length == 0 {
            return;
        }
        let end = place.saturating_add(length);
        let parts =
            self.ranges.iter().flat_map(|(from, to)| [(*from, (*to).min(place)), ((*from).max(end), *to)]);
        self.ranges = parts.filter(|(from, to)| from < to).collect();
    }

    /// Adds places; returns whether one of them is new.
    pub(crate) fn add(&mut self, more: &MissingItems) -> bool {
        let mut all: Vec<(u64, u64)> = self.ranges.iter().chain(&more.ranges).copied().collect();
        all.retain(|(from, to)| from < to);
        all.sort_unstable();
        all.dedup_by(|(from, to), (_, end)| {
            let meets = *from <= *end;
            if meets {
                *end = (*end).max(*to);
            }
            meets
        });
        let is_new = all != self.ranges;
        self.ranges = all;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn sharer() -> impl Strategy<Value = StreamSharer> {
        (0..12_u64, 0..12_u64, 0..12_u64).prop_map(|(after, more, oldest)| StreamSharer {
            number: 1,
            after,
            upto: after + more,
            oldest,
        })
    }

    proptest! {
        /// Gaps are the versions that no history has.
        #[test]
        fn gaps_are_what_no_history_has(sharers in proptest::collection::vec(sharer(), 0..5)) {
            let usage = StreamUsage::of(&sharers);
            prop_assert_eq!(usage.is_some(), !sharers.is_empty());
            let Some(StreamUsage { upto, gaps }) = usage else { return Ok(()) };
            let has = |version: &u64| {
                sharers.iter().any(|it| it.after < *version && *version <= it.upto && *version > it.oldest)
            };
            let expected: Vec<u64> = (0..=upto).filter(|version| !has(version)).collect();
            prop_assert_eq!(gaps.iter().flat_map(|(from, to)| *from..=*to).collect::<Vec<_>>(), expected);
        }

        /// Ranges are a set of places.
        #[test]
        fn missing_items_are_a_set(
            steps in proptest::collection::vec((any::<bool>(), 0..20_u64, 0..6_u64), 0..20),
        ) {
            let (mut ranges, mut places) = (MissingItems::default(), BTreeSet::new());
            for (is_added, place, length) in steps {
                let of = place..place + length;
                if is_added {
                    let is_new = of.map(|place| places.insert(place)).filter(|is_new| *is_new).count() > 0;
                    let more = MissingItems::of(ListExtent { generation: 0, start: place, length });
                    prop_assert_eq!(ranges.add(&more), is_new);
                } else {
                    ranges.remove(place, length);
                    places.retain(|place| !of.contains(place));
                }
                let found = ranges.ranges.iter().flat_map(|(from, to)| *from..*to);
                prop_assert_eq!(found.collect::<Vec<_>>(), places.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.is_empty(), places.is_empty());
                prop_assert!((0..30).all(|place| ranges.contains(place) == places.contains(&place)));
            }
        }
    }
}
