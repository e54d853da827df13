//! The rows of labels and of forks, verified for damage and completeness.

use super::lineage::{from_db, to_db};
use super::seal::{self, SessionRecord};
use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::store::{ForkInfo, LabelVersion};
use crate::time::Timestamp;

/// The row of a label.
pub(crate) struct StoredLabel {
    pub(crate) label: String,
    pub(crate) version: i64,
    pub(crate) checksum: i64,
}

impl StoredLabel {
    fn new(number: i64, label: &Label, version: u64) -> Self {
        let (label, version) = (label.to_string(), to_db(version));
        let checksum = seal::of_label(number, &label, version);
        StoredLabel { label, version, checksum }
    }

    /// Rejects a row that differs from the one written for the session with this number.
    pub(crate) fn check(&self, number: i64) -> Result<(), SessionError> {
        let found = seal::of_label(number, &self.label, self.version);
        seal::compare(found, self.checksum, || format!("label \"{}\"", self.label))
    }
}

/// The change that setting or removing a label makes to a session's rows, computed without a database.
pub(crate) struct LabelChange {
    /// The version that the label named before.
    pub(crate) before: Option<u64>,
    /// The new row of the label; `None` if it is removed.
    pub(crate) put: Option<StoredLabel>,
    /// The change of the combined checksums of the session's labels.
    pub(crate) sums: i64,
}

impl LabelChange {
    /// The change that a request makes, given the row of its label and the number of labels.
    pub(crate) fn of(
        request: &LabelVersion,
        number: i64,
        before: Option<&StoredLabel>,
        count: i64,
    ) -> Result<Self, SessionError> {
        before.map_or(Ok(()), |before| before.check(number))?;
        request.check_count(before.is_none(), usize::try_from(count).unwrap_or(usize::MAX))?;
        let put = request.version.map(|version| StoredLabel::new(number, &request.label, version));
        let sum = |row: Option<&StoredLabel>| row.map_or(0, |row| row.checksum);
        let (before_sum, sums) = (sum(before), sum(put.as_ref()));
        Ok(LabelChange { before: before.map(|row| from_db(row.version)), sums: before_sum ^ sums, put })
    }
}

/// The checksum of the row of a new fork.
pub(crate) fn fork_sum(parent: &SessionRecord, fork: &SessionRecord, id: &SessionId) -> i64 {
    let version = fork.parent().1.unwrap_or_default();
    seal::of_fork(parent.number, fork.number, id.as_str(), version, fork.created.as_micros())
}

/// The row of a fork, with data of the fork's own session row.
pub(crate) struct StoredFork {
    pub(crate) number: i64,
    pub(crate) id: String,
    pub(crate) version: i64,
    pub(crate) created: i64,
    pub(crate) checksum: i64,
}

impl StoredFork {
    fn check(&self, parent: i64) -> Result<(), SessionError> {
        let StoredFork { number, id, version, created, checksum } = self;
        let found = seal::of_fork(parent, *number, id, *version, *created);
        seal::compare(found, *checksum, || format!("fork \"{id}\""))
    }
}

/// The labels of a session.
pub(crate) fn labels(
    rows: Vec<StoredLabel>,
    record: &SessionRecord,
    key: &SessionKey,
) -> Result<Vec<(Label, u64)>, SessionError> {
    rows.iter().try_for_each(|row| row.check(record.number))?;
    check_all(rows.iter().map(|row| row.checksum), record.branches.labels, || {
        format!("list of labels of {key}")
    })?;
    rows.into_iter().map(|row| Ok((Label::new(row.label)?, from_db(row.version)))).collect()
}

/// The forks of a session.
pub(crate) fn forks(
    rows: Vec<StoredFork>,
    record: &SessionRecord,
    key: &SessionKey,
) -> Result<Vec<ForkInfo>, SessionError> {
    rows.iter().try_for_each(|row| row.check(record.number))?;
    check_all(rows.iter().map(|row| row.checksum), record.branches.forks, || {
        format!("list of forks of {key}")
    })?;
    let fork = |row: StoredFork| {
        let (version, created) = (from_db(row.version), Timestamp::from_micros(row.created));
        Ok(ForkInfo { id: SessionId::new(row.id)?, version, created })
    };
    rows.into_iter().map(fork).collect()
}

/// Rejects rows that are incomplete or outdated, by their combined checksums.
fn check_all(
    checksums: impl Iterator<Item = i64>,
    all: i64,
    what: impl FnOnce() -> String,
) -> Result<(), SessionError> {
    if checksums.fold(0, |sum, checksum| sum ^ checksum) == all {
        return Ok(());
    }
    Err(SessionError::damaged(what(), "an entry is missing or outdated"))
}
