//! Budgets in a SQLite file: runs the statements of [`rows::budgets`](crate::rows::budgets).

use std::future::{Future, ready};

use rusqlite::Connection;

use super::claims;
use super::error::failed;
use super::sql::{self, at_once, changed, rows};
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::budgets;
use crate::rows::sql::{RowChange, RunSql, SharedSql, SqlRow, SqlValue};
use crate::store::{
    AppendEvent, BudgetBalance, BudgetRaise, ListRaises, ListSpend, RaiseBudgets, ReadBudgets, Receipt,
    ReserveSpend, SettleSpend, SpendRecord,
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

    fn changed(
        &mut self,
        sql: SharedSql,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<u64, SessionError>> + Send {
        ready(changed(self.0, sql, values).map_err(failed("read or write a budget")))
    }

    fn change(
        &mut self,
        change: RowChange,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SessionError>> + Send {
        ready(sql::change(self.0, change, values).map_err(failed("read or write a budget")))
    }
}

pub(super) fn reserve(
    sqlite: &mut SqliteConnection,
    request: &ReserveSpend,
) -> Result<Vec<BudgetBalance>, SessionError> {
    check_claim(&sqlite.connection, request)?;
    at_once(budgets::reserve(&mut BudgetRows(&sqlite.connection), budgets::SQLITE, request))
}

/// Rejects a reservation of a deleted session, since an erased user would be in the list of spend again, and of a claim that is
/// lost: only the worker that has the session settles what is left.
fn check_claim(connection: &Connection, request: &ReserveSpend) -> Result<(), SessionError> {
    let found = claims::find(connection, &request.key)?;
    let work = found.ok_or_else(|| SessionError::not_found(&request.key))?;
    request.token.map_or(Ok(()), |token| work.fence.check(&request.key, token))
}

pub(super) fn settle(sqlite: &mut SqliteConnection, requests: &[SettleSpend]) -> Result<bool, SessionError> {
    at_once(budgets::settle(&mut BudgetRows(&sqlite.connection), requests))
}

/// Settles and reserves with an append; the receipt has the claim that it leaves.
pub(super) fn with_append(
    sqlite: &SqliteConnection,
    append: &AppendEvent,
    receipt: Receipt,
) -> Result<Receipt, SessionError> {
    if !append.changes_budgets() {
        return Ok(receipt);
    }
    let mut rows = BudgetRows(&sqlite.connection);
    let reserved = append.reserved_under(receipt.claim.as_ref());
    let done = budgets::settle_and_reserve(&mut rows, budgets::SQLITE, &append.settled, reserved);
    Ok(Receipt { reservation: at_once(done)?, ..receipt })
}

pub(super) fn settle_open(sqlite: &mut SqliteConnection, key: &SessionKey) -> Result<u64, SessionError> {
    at_once(budgets::settle_open(&mut BudgetRows(&sqlite.connection), std::slice::from_ref(key)))
}

pub(super) fn balances(
    sqlite: &mut SqliteConnection,
    request: &ReadBudgets,
) -> Result<Vec<BudgetBalance>, SessionError> {
    at_once(budgets::balances(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn raise(sqlite: &mut SqliteConnection, request: &RaiseBudgets) -> Result<(), SessionError> {
    at_once(budgets::raise(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn raises(
    sqlite: &mut SqliteConnection,
    request: &ListRaises,
) -> Result<Vec<BudgetRaise>, SessionError> {
    at_once(budgets::raises(&mut BudgetRows(&sqlite.connection), request))
}

pub(super) fn list(
    sqlite: &mut SqliteConnection,
    request: &ListSpend,
) -> Result<Vec<SpendRecord>, SessionError> {
    at_once(budgets::list(&mut BudgetRows(&sqlite.connection), request))
}
