//! Statements that both databases read, and the port that runs them.
//!
//! In a statement, parameters appear in the order of their numbers: SQLite numbers `$1` by its first appearance.

use std::future::Future;

use crate::error::SessionError;

/// A statement in the SQL that both databases read.
#[derive(Clone, Copy)]
pub(crate) struct SharedSql(pub(super) &'static str);

impl SharedSql {
    pub(crate) const fn text(self) -> &'static str {
        self.0
    }
}

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub(crate) enum SqlValue<'a> {
    Int(i64),
    OptionalInt(Option<i64>),
    Text(&'a str),
    OptionalText(Option<&'a str>),
    Bytes(&'a [u8]),
}

/// A row of an answer: its texts, its numbers and its bytes. Each statement returns columns of a kind in this order.
pub(crate) struct SqlRow {
    pub(crate) texts: Vec<String>,
    pub(crate) ints: Vec<Option<i64>>,
    pub(crate) blobs: Vec<Vec<u8>>,
}

impl SqlRow {
    pub(crate) fn text(&self, column: usize) -> Result<&str, SessionError> {
        let missing = || SessionError::damaged("row of an answer", format!("text {column} is missing"));
        self.texts.get(column).map(String::as_str).ok_or_else(missing)
    }

    pub(crate) fn int(&self, column: usize) -> Result<i64, SessionError> {
        let missing = || SessionError::damaged("row of an answer", format!("number {column} is missing"));
        self.ints.get(column).copied().flatten().ok_or_else(missing)
    }
}

/// A change of the row with a key, and the columns that are read of it afterwards.
#[derive(Clone, Copy)]
pub(crate) struct RowChange {
    /// Both in one statement.
    pub(crate) returning: SharedSql,
    // NOTE: SQLite pays more for the table in which it collects such an answer than for another statement.
    #[cfg(feature = "sqlite")]
    pub(crate) change: SharedSql,
    /// The columns, by the key.
    #[cfg(feature = "sqlite")]
    pub(crate) read: SharedSql,
    /// The place of the key among the parameters of the change.
    #[cfg(feature = "sqlite")]
    pub(crate) key: usize,
}

/// Runs a statement inside the transaction of an operation: both databases implement it, operations call it.
pub(crate) trait RunSql {
    fn rows(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send;

    /// Runs a statement without an answer; returns the number of rows that it has changed.
    fn changed(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<u64, SessionError>> + Send;

    /// Changes a row; returns nothing if none is changed.
    fn change(
        &mut self,
        change: RowChange,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        self.rows(change.returning, values)
    }
}
