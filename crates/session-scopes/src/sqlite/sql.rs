//! Statements that both databases read, in SQLite: they run without waiting.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::rows::sql::{RowChange, SharedSql, SqlRow, SqlValue};

impl ToSql for SqlValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            SqlValue::Int(number) | SqlValue::OptionalInt(Some(number)) => {
                ToSqlOutput::Owned(Value::Integer(*number))
            }
            SqlValue::Text(text) | SqlValue::OptionalText(Some(text)) => {
                ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
            }
            SqlValue::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            SqlValue::OptionalInt(None) | SqlValue::OptionalText(None) => ToSqlOutput::Owned(Value::Null),
        })
    }
}

pub(super) fn rows(
    connection: &Connection,
    sql: SharedSql,
    values: &[SqlValue<'_>],
) -> rusqlite::Result<Vec<SqlRow>> {
    let mut statement = connection.prepare_cached(sql.text())?;
    let columns = statement.column_count();
    let mut rows = statement.query(params_from_iter(values))?;
    let mut read = Vec::new();
    while let Some(row) = rows.next()? {
        let mut found = SqlRow { texts: Vec::new(), ints: Vec::new(), blobs: Vec::new() };
        for column in 0..columns {
            match row.get_ref(column)? {
                ValueRef::Text(_) => found.texts.push(row.get(column)?),
                ValueRef::Blob(_) => found.blobs.push(row.get(column)?),
                _ => found.ints.push(row.get(column)?),
            }
        }
        read.push(found);
    }
    Ok(read)
}

/// Runs a statement without an answer; returns the number of rows that it has changed.
pub(super) fn changed(
    connection: &Connection,
    sql: SharedSql,
    values: &[SqlValue<'_>],
) -> rusqlite::Result<u64> {
    let changed = connection.prepare_cached(sql.text())?.execute(params_from_iter(values))?;
    Ok(changed as u64)
}

/// Changes a row and reads it, by two statements: nothing can come in between.
pub(super) fn change(
    connection: &Connection,
    change: RowChange,
    values: &[SqlValue<'_>],
) -> rusqlite::Result<Vec<SqlRow>> {
    match changed(connection, change.change, values)? {
        0 => Ok(Vec::new()),
        _ => rows(connection, change.read, &[values[change.key]]),
    }
}

/// The result of operations whose statements do not wait.
pub(super) fn at_once<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("statements of SQLite never wait"),
    }
}
