//! Budgets in PostgreSQL: runs the statements of [`rows::budgets`](crate::rows::budgets).

use tokio::try_join;

use super::connection::Object;
use super::rows::PostgresSessionRow;
use super::sql::PostgresRows;
use super::statements::KEEP_SESSION;
use super::tables::of_older_format;
use super::transaction::{IdleTimeout, PooledTransaction, begin, commit, in_transaction, query};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::budgets;
use crate::store::{
    AppendEvent, BudgetBalance, BudgetRaise, ListRaises, ListSpend, RaiseBudgets, ReadBudgets, Receipt,
    ReserveSpend, SettleOpen, SettleSpend, SpendRecord,
};

pub(super) async fn reserve(
    connection: Object,
    idle: &IdleTimeout,
    request: &ReserveSpend,
) -> Result<Vec<BudgetBalance>, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        check_claim(inside, request).await?;
        budgets::reserve(&mut PostgresRows(inside), budgets::POSTGRES, request).await
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
    in_transaction!(connection, idle.usual(), |inside| {
        budgets::settle(&mut PostgresRows(inside), std::slice::from_ref(request)).await
    })
}

/// Settles and reserves inside of the transaction of an append; the receipt has the claim that it leaves.
pub(super) async fn with_append(
    connection: &Object,
    append: &AppendEvent,
    receipt: Receipt,
) -> Result<Receipt, SessionError> {
    let mut rows = PostgresRows(connection);
    let reserved = append.reserved_under(receipt.claim.as_ref());
    let done = budgets::settle_and_reserve(&mut rows, budgets::POSTGRES, &append.settled, reserved);
    Ok(Receipt { reservation: done.await?, ..receipt })
}

/// Settles what is open in a session that is rewound or deleted, at the end of that transaction.
pub(super) async fn settle_left(connection: &Object, key: &SessionKey) -> Result<(), SessionError> {
    budgets::settle_open(&mut PostgresRows(connection), std::slice::from_ref(key)).await.map(drop)
}

pub(super) async fn settle_open(
    connection: Object,
    idle: &IdleTimeout,
    request: &SettleOpen,
) -> Result<u64, SessionError> {
    in_transaction!(connection, idle.usual(), |inside| {
        budgets::settle_open(&mut PostgresRows(inside), std::slice::from_ref(&request.key)).await
    })
}

pub(super) async fn balances(
    connection: Object,
    request: &ReadBudgets,
) -> Result<Vec<BudgetBalance>, SessionError> {
    budgets::balances(&mut PostgresRows(&connection), request).await
}

pub(super) async fn raise(
    connection: Object,
    idle: &IdleTimeout,
    request: &RaiseBudgets,
) -> Result<(), SessionError> {
    in_transaction!(connection, idle.usual(), |inside| budgets::raise(&mut PostgresRows(inside), request)
        .await)
}

pub(super) async fn raises(
    connection: Object,
    request: &ListRaises,
) -> Result<Vec<BudgetRaise>, SessionError> {
    match budgets::raises(&mut PostgresRows(&connection), request).await {
        Err(error) => Err(of_older_format(&**connection, error).await),
        raises => raises,
    }
}

pub(super) async fn list(connection: Object, request: &ListSpend) -> Result<Vec<SpendRecord>, SessionError> {
    budgets::list(&mut PostgresRows(&connection), request).await
}
