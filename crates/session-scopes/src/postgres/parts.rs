//! Rows of several tables by one statement: one snapshot and one round trip, without a transaction.
//!
//! The statement is a `UNION ALL` of the [parts](Part). Each row begins with the number of its part, and the columns of
//! that part are those of the same type in a common row.

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// The columns of a row, in the order that their reader expects.
pub(super) trait Columns {
    fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T;
}

impl Columns for Row {
    fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        Row::get(self, column)
    }
}

/// A part of the rows, as the statements number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// As `session_columns`.
    Session = 1,
    /// `stream, after, upto, number`.
    Lineage = 2,
    /// `stream, version, target, previous, visible, checksum, number`.
    Rewinds = 3,
    /// `owner, scope, version, known, seal`.
    Scopes = 4,
    /// `version, id, at, body, seal, stream, number`; the body only of those that are requested.
    Events = 5,
    /// `number, id, parent_version, created, checksum, parent`.
    Forks = 6,
    /// `key` of the session's own values that were written since a version.
    ChangedCells = 7,
    /// `owner` of the shared scopes that were written since a version.
    ChangedShared = 8,
    /// `key` and the columns of a session's value.
    Cells = 9,
    /// `key, stream, generation, version, place, items, checksum`.
    Items = 10,
    /// `key`, the columns of a shared value, and `owner`.
    Shared = 11,
    /// `key, place, version, checksum, item, owner`.
    SharedItems = 12,
    /// `version`, 1 if it is the same event, and its body if it is sealed and of the same time.
    Repeated = 13,
    /// `position, checksum, key, digest, kind, body, at`, and the newest position that is left.
    Waiting = 14,
    /// `number, version, work, seal` of the session's row in the snapshot of the statement.
    Seen = 15,
}

impl Part {
    /// The places of its columns in the common row: its number, 13 integers (1 to 13), 4 texts (14 to 17), and bytes (18).
    const fn columns(self) -> &'static [usize] {
        match self {
            Part::Session => &[1, 2, 3, 4, 5, 14, 6, 15, 16, 7, 17, 8, 9, 10, 18, 11, 12, 13],
            Part::Lineage => &[1, 2, 3, 4],
            Part::Rewinds => &[1, 2, 3, 4, 5, 6, 7],
            Part::Scopes => &[14, 1, 2, 3, 18],
            Part::Events => &[1, 14, 2, 15, 18, 3, 4],
            Part::Forks => &[1, 14, 2, 3, 4, 5],
            Part::ChangedCells | Part::ChangedShared => &[14],
            Part::Cells => &[14, 1, 15, 2, 3, 4, 5, 6, 7],
            Part::Items => &[14, 1, 2, 3, 4, 15, 5],
            Part::Shared => &[14, 1, 15, 2, 3, 4, 5, 6, 7, 8, 16],
            Part::SharedItems => &[14, 1, 2, 3, 15, 16],
            Part::Repeated => &[1, 2, 14],
            Part::Waiting => &[1, 2, 14, 18, 15, 16, 3, 4],
            Part::Seen => &[1, 2, 3, 18],
        }
    }
}

/// A row of a part.
#[derive(Clone, Copy)]
pub(super) struct PartRow<'r> {
    row: &'r Row,
    columns: &'static [usize],
}

impl Columns for PartRow<'_> {
    fn get<'a, T: FromSql<'a>>(&'a self, column: usize) -> T {
        Row::get(self.row, self.columns[column])
    }
}

impl<'r> PartRow<'r> {
    /// The columns of a row that are at these places.
    pub(super) const fn new(row: &'r Row, columns: &'static [usize]) -> Self {
        PartRow { row, columns }
    }
}

/// The rows of a part, in the order of the statement.
pub(super) fn rows_of(rows: &[Row], part: Part) -> Vec<PartRow<'_>> {
    let columns = part.columns();
    let of_part = rows.iter().filter(|row| row.get::<_, i32>(0) == part as i32);
    of_part.map(|row| PartRow { row, columns }).collect()
}
