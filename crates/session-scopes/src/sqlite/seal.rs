//! The seals of a file's rows, as SQLite keeps them.
//!
//! SQLite checks no page, so each row has a checksum. Beside what [all stores](crate::rows::seal) seal, the list of
//! sessions has the version that the newest event must have.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use super::undo_log::ValueRow;
use crate::digest::ChecksumEncoder;
pub(super) use crate::rows::seal::{
    EventSeal, ScopeSeal, SealedState, SessionSeal, compare, of_lineage, of_schema,
};

/// A seal is a blob of its bytes.
macro_rules! as_blob {
    ($($seal:ident),*) => {
        $(impl ToSql for $seal {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.to_bytes().into())
            }
        }

        impl FromSql for $seal {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                $seal::from_bytes(value.as_blob()?).ok_or(FromSqlError::InvalidType)
            }
        })*
    };
}

as_blob!(EventSeal, SessionSeal, ScopeSeal);

/// The checksum of the row of a session's key. Forks copy it with the row, so it does not cover the session.
pub(super) fn of_cell(row: &ValueRow, ladder: Option<&[u8]>) -> i64 {
    let ValueRow { key, version, schema, value, list } = row;
    let mut check = ChecksumEncoder::new("stepfold_cells");
    check.text(key).int(*version).int(*schema).optional_text(value.as_deref());
    if let Some(list) = list {
        check.int(list.generation).int(list.start).int(list.length).optional_int(list.last);
    }
    check.bytes(ladder.unwrap_or_default()).sum()
}

/// The checksum of a row of the list of sessions.
pub(super) fn of_recent(app: &str, user: &str, updated: i64, number: i64, version: i64) -> i64 {
    ChecksumEncoder::new("stepfold_recent").text(app).text(user).int(updated).int(number).int(version).sum()
}

/// The checksum of the undo log of the row with this number.
pub(super) fn of_trail(number: i64, text: &str) -> i64 {
    ChecksumEncoder::new("trail").int(number).text(text).sum()
}
