//! The rewinds of a session as databases keep them.
//!
//! A rewind before the target of a later one is hidden, and need not be read. So each row has the version of
//! the previous visible one, and the seals of events that of the newest: a reader follows them, and detects a
//! missing row.

use std::collections::BTreeMap;

use super::lineage::to_db;
use super::seal::compare;
use crate::digest::ChecksumEncoder;
use crate::error::SessionError;
use crate::session::RewindMark;

/// The row of a rewind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RewindRow {
    /// The session whose event it is.
    pub(crate) stream: i64,
    pub(crate) rewound: RewindMark,
    /// The version of the previous rewind; 0 if there is none.
    pub(crate) previous: u64,
    /// The version of the newest rewind at or before this one's target: the next visible one. 0 if there is
    /// none.
    pub(crate) visible: u64,
    pub(crate) checksum: i64,
}

impl RewindRow {
    pub(crate) fn new(stream: i64, rewound: RewindMark, previous: u64, visible: u64) -> Self {
        let row = RewindRow { stream, rewound, previous, visible, checksum: 0 };
        RewindRow { checksum: row.sum(), ..row }
    }

    fn sum(&self) -> i64 {
        let RewindRow { stream, rewound: RewindMark { version, to }, previous, visible, checksum: _ } = *self;
        let mut check = ChecksumEncoder::new("stepfold_rewinds");
        check.int(stream).int(to_db(version)).int(to_db(to)).int(to_db(previous)).int(to_db(visible)).sum()
    }
}

/// Rows of rewinds by their versions.
#[derive(Default)]
pub(crate) struct RewindChain(BTreeMap<u64, RewindRow>);

impl FromIterator<RewindRow> for RewindChain {
    fn from_iter<I: IntoIterator<Item = RewindRow>>(rows: I) -> Self {
        RewindChain(rows.into_iter().map(|row| (row.rewound.version, row)).collect())
    }
}

impl RewindChain {
    /// The version of the newest one; 0 if there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(version, _)| *version)
    }

    /// The rewinds that count where `newest` is the newest one, in order.
    pub(crate) fn counting(self, newest: u64) -> Result<Vec<RewindMark>, SessionError> {
        let mut rewinds = self.follow_chain(newest, |row| row.visible)?;
        rewinds.reverse();
        Ok(rewinds)
    }

    /// Checks all rewinds of a history whose newest one this is.
    pub(crate) fn check_all(self, newest: u64) -> Result<(), SessionError> {
        self.follow_chain(newest, |row| row.previous).map(drop)
    }

    fn follow_chain(
        mut self,
        mut next: u64,
        follow: impl Fn(&RewindRow) -> u64,
    ) -> Result<Vec<RewindMark>, SessionError> {
        let mut follow_chain = Vec::new();
        while next > 0 {
            // NOTE: removed while it is followed, so that damaged rows which refer to each other in a circle end in an
            // error, not in a loop.
            let row = self
                .0
                .remove(&next)
                .ok_or_else(|| SessionError::damaged("history of a session", "missing rewind"))?;
            compare(row.sum(), row.checksum, || "rewind of a session".to_owned())?;
            follow_chain.push(row.rewound);
            next = follow(&row);
        }
        Ok(follow_chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rewinds, the second to before the first, and a third.
    fn rows() -> [RewindRow; 3] {
        let rewound = |version, to| RewindMark { version, to };
        [
            RewindRow::new(1, rewound(5, 3), 0, 0),
            RewindRow::new(1, rewound(8, 2), 5, 0),
            RewindRow::new(1, rewound(12, 9), 8, 8),
        ]
    }

    fn versions(rewinds: &[RewindMark]) -> Vec<u64> {
        rewinds.iter().map(|rewound| rewound.version).collect()
    }

    #[test]
    fn what_does_not_count_is_not_needed() {
        let all = || rows().into_iter().collect::<RewindChain>();
        assert_eq!(versions(&all().counting(12).unwrap()), [8, 12]);
        assert_eq!(versions(&all().counting(5).unwrap()), [5]);
        assert_eq!(versions(&all().counting(0).unwrap()), Vec::<u64>::new());
        let counting = || rows().into_iter().skip(1).collect::<RewindChain>();
        assert_eq!(versions(&counting().counting(12).unwrap()), [8, 12]);
        assert_eq!(counting().newest(), 12);
        assert!(all().check_all(12).is_ok());
    }

    #[test]
    fn what_is_missing_or_changed_is_noticed() {
        for lost in [8, 12] {
            let left: RewindChain = rows().into_iter().filter(|row| row.rewound.version != lost).collect();
            assert!(left.counting(12).is_err(), "{lost}");
        }
        let first_lost: RewindChain = rows().into_iter().skip(1).collect();
        assert!(first_lost.check_all(12).is_err());
        let changed = |change: fn(&mut RewindRow)| {
            let mut rows = rows();
            change(&mut rows[1]);
            rows.into_iter().collect::<RewindChain>().counting(12)
        };
        assert!(changed(|row| row.rewound.to = 4).is_err());
        assert!(changed(|row| row.visible = 5).is_err());
        // A circle ends as well.
        assert!(changed(|row| *row = RewindRow::new(1, row.rewound, 5, 12)).is_err());
    }
}
