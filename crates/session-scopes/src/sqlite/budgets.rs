//! Budgets in a SQLite file: runs the statements of [`rows::budgets`](crate::rows::budgets).

use std::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use super::error::failed;
use super::history::SqliteSessionRow;
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::rows::budgets;
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::store::{
    BudgetBalance, ListSpend, ReadBudgets, ReserveSpend, SettleOpen, SettleSpend, SpendRecord,
};

struct BudgetRows<'a>(&'a Connection);

impl RunSql for BudgetRows<'_> {
    fn rows(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        ready(rows(self.0, sql, values).map_err(failed("read or write a budget")))
    }
}

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

/// The result of operations whose statements do not wait.
pub(super) fn at_once<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("statements of SQLite never wait"),
    }
}

pub(super) fn reserve(
    sqlite: &mut SqliteConnection,
    request: &ReserveSpend,
) -> Result<Vec<BudgetBalance>, SessionError> {
    check_claim(&sqlite.connection, request)?;
    at_once(budgets::reserve(&mut BudgetRows(&sqlite.connection), request))
}

/// Rejects a reservation of a deleted session, since an erased user would be in the list of spend again, and of a claim that is
/// lost: only the worker that has the session settles what is left.
fn check_claim(connection: &Connection, request: &ReserveSpend) -> Result<(), SessionError> {
    let row = SqliteSessionRow::get(connection, &request.key)?;
    request.token.map_or(Ok(()), |token| row.work.fence.check(&request.key, token))
}

pub(super) fn settle(sqlite: &mut SqliteConnection, request: &SettleSpend) -> Result<bool, SessionError> {
    at_once(budgets::settle(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn settle_open(sqlite: &mut SqliteConnection, request: &SettleOpen) -> Result<u64, SessionError> {
    at_once(budgets::settle_open(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn balances(
    sqlite: &mut SqliteConnection,
    request: &ReadBudgets,
) -> Result<Vec<BudgetBalance>, SessionError> {
    at_once(budgets::balances(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn list(
    sqlite: &mut SqliteConnection,
    request: &ListSpend,
) -> Result<Vec<SpendRecord>, SessionError> {
    at_once(budgets::list(&mut BudgetRows(&sqlite.connection), request))
}
