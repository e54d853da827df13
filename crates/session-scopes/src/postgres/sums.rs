//! The checksums of the rows of values.
//!
//! The row of a session's key is copied with its content into forks, and back when the session is rewound. So
//! the checksum of the row covers only its content, and the combined checksums in the seals of events cover
//! key, version and content.

use std::collections::HashMap;

use tokio_postgres::Row;

use crate::digest::ChecksumEncoder;
use crate::error::SessionError;
use crate::rows::values::ListExtent;

/// The checksum of the content of the row of a session's key: a value, or a list with the combined checksums of the rows
/// of its items.
pub(super) fn of_content(
    key: &str,
    schema: i64,
    value: Option<&str>,
    list: Option<(ListExtent, i64)>,
) -> i64 {
    let mut check = ChecksumEncoder::new("content of stepfold_cells");
    check.text(key).int(schema).optional_text(value);
    if let Some((ListExtent { generation, start, length }, items)) = list {
        let [generation, start, length] = [generation, start, length].map(crate::rows::lineage::to_db);
        check.int(generation).int(start).int(length).int(items);
    }
    check.sum()
}

/// The part of a row in the combined checksums of a session's values.
pub(super) fn of_cell(key: &str, version: i64, content: i64) -> i64 {
    ChecksumEncoder::new("stepfold_cells").text(key).int(version).int(content).sum()
}

/// The checksum of a row of items of a session's list.
pub(super) fn of_items(
    (stream, version): (i64, i64),
    key: &str,
    (generation, place): (i64, i64),
    items: &str,
) -> i64 {
    let mut check = ChecksumEncoder::new("stepfold_items");
    check.int(stream).int(version).text(key).int(generation).int(place).text(items).sum()
}

/// The combined checksums of rows of a session's keys: `key, version, checksum`.
pub(super) fn combined(rows: &[Row]) -> i64 {
    rows.iter().fold(0, |sum, row| sum ^ of_cell(row.get(0), row.get(1), row.get(2)))
}

/// The combined checksums of rows of a shared scope's keys: `key, version, checksum`.
pub(super) fn combined_shared(rows: &[Row]) -> i64 {
    rows.iter().fold(0, |sum, row| sum ^ row.get::<_, i64>(2))
}

/// Rejects values that are incomplete or of another version, by their combined checksums.
pub(super) fn compare_cells(found: i64, cells: i64) -> Result<(), SessionError> {
    if found == cells {
        return Ok(());
    }
    Err(SessionError::damaged("values of a session", "a key is missing or has another version"))
}

/// The combined checksums of rows by their keys.
pub(super) fn by_key<'k>(rows: impl Iterator<Item = (&'k str, i64)>) -> HashMap<&'k str, i64> {
    let mut sums = HashMap::new();
    for (key, sum) in rows {
        *sums.entry(key).or_default() ^= sum;
    }
    sums
}
