//! The rows of labels and of forks, verified for damage and completeness.

use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::rows::from_db;
use crate::seal::{self, SessionRecord};
use crate::store::ForkInfo;
use crate::time::Timestamp;

/// The row of a label.
pub(crate) struct LabelRow {
    pub(crate) label: String,
    pub(crate) version: i64,
    pub(crate) checksum: i64,
}

impl LabelRow {
    /// Rejects a row that differs from the one written for the session with this number.
    pub(crate) fn check(&self, number: i64) -> Result<(), SessionError> {
        let found = seal::of_label(number, &self.label, self.version);
        seal::compare(found, self.checksum, || format!("label \"{}\"", self.label))
    }
}

/// The row of a fork, with data of the fork's own session row.
pub(crate) struct ForkRow {
    pub(crate) number: i64,
    pub(crate) id: String,
    pub(crate) version: i64,
    pub(crate) created: i64,
    pub(crate) checksum: i64,
}

impl ForkRow {
    fn check(&self, parent: i64) -> Result<(), SessionError> {
        let ForkRow { number, id, version, created, checksum } = self;
        let found = seal::of_fork(parent, *number, id, *version, *created);
        seal::compare(found, *checksum, || format!("fork \"{id}\""))
    }
}

/// The labels of a session.
pub(crate) fn labels(
    rows: Vec<LabelRow>,
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
    rows: Vec<ForkRow>,
    record: &SessionRecord,
    key: &SessionKey,
) -> Result<Vec<ForkInfo>, SessionError> {
    rows.iter().try_for_each(|row| row.check(record.number))?;
    check_all(rows.iter().map(|row| row.checksum), record.branches.forks, || {
        format!("list of forks of {key}")
    })?;
    let fork = |row: ForkRow| {
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
