//! Budgets in PostgreSQL: runs the statements of [`rows::budgets`](crate::rows::budgets).

use tokio::try_join;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connection::Object;
use super::rows::PostgresSessionRow;
use super::statements::{KEEP_SESSION, SqlStatement};
use super::transaction::{IdleTimeout, PooledTransaction, begin, commit, in_transaction, query};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::budgets;
use crate::rows::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::store::{
    BudgetBalance, ListSpend, ReadBudgets, ReserveSpend, SettleOpen, SettleSpend, SpendRecord,
};

pub(super) struct BudgetRows<'a>(pub(super) &'a Object);

impl RunSql for BudgetRows<'_> {
    async fn rows(&mut self, sql: SharedSql, values: &[SqlValue<'_>]) -> Result<Vec<SqlRow>, SessionError> {
        let given: Vec<&(dyn ToSql + Sync)> = values.iter().map(parameter).collect();
        let rows = query(self.0, SqlStatement::of_both(sql), &given).await?;
        Ok(rows.iter().map(read).collect())
    }
}

fn parameter<'a>(value: &'a SqlValue<'_>) -> &'a (dyn ToSql + Sync) {
    match value {
        SqlValue::Int(number) => number,
        SqlValue::OptionalInt(number) => number,
        SqlValue::Text(text) => text,
        SqlValue::OptionalText(text) => text,
        SqlValue::Bytes(bytes) => bytes,
    }
}

fn read(row: &Row) -> SqlRow {
    let (mut texts, mut ints, mut blobs) = (Vec::new(), Vec::new(), Vec::new());
    for (index, column) in row.columns().iter().enumerate() {
        match *column.type_() {
            Type::TEXT => texts.push(row.get(index)),
            Type::BYTEA => blobs.push(row.get(index)),
            _ => ints.push(row.get(index)),
        }
    }
    SqlRow { texts, ints, blobs }
}

pub(super) async fn reserve(
    connection: Object,
    idle: &IdleTimeout,
    request: &ReserveSpend,
) -> Result<Vec<BudgetBalance>, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        check_claim(inside, request).await?;
        budgets::reserve(&mut BudgetRows(inside), request).await
    })
}

/// Rejects a reservation of a deleted session, since an erased user would be in the list of spend again, and of a claim that is
/// lost: only the worker that has the session settles what is left. A deletion or a new claim waits for the transaction.
async fn check_claim(connection: &Object, request: &ReserveSpend) -> Result<(), SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let row = PostgresSessionRow::of(&query(connection, KEEP_SESSION, &[&app, &user, &id]).await?, key)?;
    request.token.map_or(Ok(()), |token| row.work.fence.check(key, token))
}

pub(super) async fn settle(
    connection: Object,
    idle: &IdleTimeout,
    request: &SettleSpend,
) -> Result<bool, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| settle_all(inside, std::slice::from_ref(request))
        .await)
}

/// Ends reservations inside of a transaction; returns whether one of them was open.
pub(super) async fn settle_all(connection: &Object, requests: &[SettleSpend]) -> Result<bool, SessionError> {
    let mut is_open = false;
    for request in requests {
        is_open |= budgets::settle(&mut BudgetRows(connection), request).await?;
    }
    Ok(is_open)
}

/// Settles what is open in a session that is rewound or deleted, inside of that transaction.
pub(super) async fn settle_left(connection: &Object, key: &SessionKey) -> Result<(), SessionError> {
    budgets::settle_open(&mut BudgetRows(connection), &SettleOpen::new(key.clone())).await.map(drop)
}

pub(super) async fn settle_open(
    connection: Object,
    idle: &IdleTimeout,
    request: &SettleOpen,
) -> Result<u64, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        budgets::settle_open(&mut BudgetRows(inside), request).await
    })
}

pub(super) async fn balances(
    connection: Object,
    request: &ReadBudgets,
) -> Result<Vec<BudgetBalance>, SessionError> {
    budgets::balances(&mut BudgetRows(&connection), request).await
}

pub(super) async fn list(connection: Object, request: &ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
    budgets::list(&mut BudgetRows(&connection), request).await
}
