//! Statements that travel together.
//!
//! The driver sends a statement when its future is first polled and does not wait for the previous one. So
//! statements that are polled in order, including `BEGIN` and `COMMIT`, share one round trip. A statement that the
//! connection has not prepared is sent as a text: preparing it first would take a round trip, in which later statements
//! would overtake it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::Object;
use super::error::failed;
use super::pooler;
use super::statements::SqlStatement;
use crate::error::SessionError;

/// The parameters of a statement.
pub(super) type SqlParameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A connection in a transaction. If it is dropped before [`end`](PooledTransaction::end), the connection is
/// closed, and the server rolls back.
pub(super) struct PooledTransaction {
    connection: Option<Object>,
}

impl Drop for PooledTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // NOTE: taken out of the pool: a connection with an open transaction or unread answers must not be reused.
            drop(Object::take(connection));
        }
    }
}

impl PooledTransaction {
    pub(super) fn new(connection: Object) -> Self {
        PooledTransaction { connection: Some(connection) }
    }

    /// The connection, to run statements on.
    pub(super) fn connection(&self) -> Result<&Object, SessionError> {
        let ended = || SessionError::Store { what: "continue", source: "the transaction has ended".into() };
        self.connection.as_ref().ok_or_else(ended)
    }

    /// Returns the connection to the pool, after a successful `COMMIT`.
    pub(super) fn end(mut self) {
        self.connection.take();
    }

    /// The connection, after a `COMMIT` that succeeded.
    pub(super) fn into_connection(mut self) -> Result<Object, SessionError> {
        let ended = || SessionError::Store { what: "continue", source: "the transaction has ended".into() };
        self.connection.take().ok_or_else(ended)
    }

    /// Rolls back, and returns the error.
    pub(super) async fn roll_back<T>(mut self, error: SessionError) -> Result<T, SessionError> {
        if self.connection()?.batch_execute("ROLLBACK").await.is_ok() {
            self.connection.take();
        }
        Err(error)
    }
}

/// The time that a transaction may wait for its worker, given the worker's claims. A worker that is frozen in a
/// transaction keeps the rows locked until its connection is closed, and the worker that takes over needs them when the
/// claim has expired.
#[derive(Debug)]
pub(super) struct IdleTimeout {
    /// The setting of each connection.
    usual: Duration,
    /// A third of the shortest requested claim, in milliseconds.
    shortest: AtomicU64,
    /// The settings of each transaction, where a pooler lets connections of the server have none of ours.
    local: String,
}

impl IdleTimeout {
    /// The lower bound: with less, a worker on a busy machine would lose transactions without need.
    const LEAST: Duration = Duration::from_millis(50);

    pub(super) fn new(usual: Duration, local: String) -> Self {
        IdleTimeout { usual, shortest: AtomicU64::new(u64::MAX), local }
    }

    /// The settings of a transaction that waits for its worker as long as usual.
    pub(super) fn usual(&self) -> String {
        self.local.clone()
    }

    /// The settings of a transaction, given the duration of the claim that is requested in it.
    pub(super) fn limit(&self, claim: Option<Duration>) -> String {
        let idle = self.idle(claim).map_or_else(String::new, |idle| {
            format!("; SET LOCAL idle_in_transaction_session_timeout = {}", idle.as_millis())
        });
        self.usual() + &idle
    }

    /// The time that it may wait, if that is not the usual time.
    fn idle(&self, claim: Option<Duration>) -> Option<Duration> {
        // NOTE: no worker continues under a claim that expires immediately, so its duration does not count.
        let asked = claim.filter(|claim| !claim.is_zero()).map_or(u64::MAX, |claim| {
            u64::try_from((claim / 3).max(IdleTimeout::LEAST).as_millis()).unwrap_or(u64::MAX)
        });
        let shortest = Duration::from_millis(self.shortest.fetch_min(asked, Ordering::Relaxed).min(asked));
        (shortest < self.usual).then_some(shortest)
    }
}

/// Runs `$body` in a transaction with these [settings](IdleTimeout); commits its value, and rolls back after an error.
macro_rules! in_transaction {
    ($connection:expr, $settings:expr, |$inside:ident| $body:expr) => {{
        let transaction = PooledTransaction::new($connection);
        let result = {
            let $inside = transaction.connection()?;
            let body = async { $body };
            // NOTE: `biased` polls in this order, so `BEGIN` is sent first; the statements after it do not wait for its
            // answer.
            match try_join!(biased; begin($inside, $settings), body) {
                Ok(((), done)) => commit($inside).await.map(|()| done),
                Err(error) => Err(error),
            }
        };
        match result {
            Ok(done) => {
                transaction.end();
                Ok(done)
            }
            Err(error) => transaction.roll_back(error).await,
        }
    }};
}
pub(super) use in_transaction;

/// Begins a transaction that writes, with these [settings](IdleTimeout): each statement sees what was committed before it.
pub(super) async fn begin(connection: &Object, settings: String) -> Result<(), SessionError> {
    // NOTE: named explicitly: a database whose default is `serializable` would make writers of one value fail.
    let begin = String::from("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE") + &settings;
    connection.batch_execute(&begin).await.map_err(failed("begin"))
}

/// Begins a transaction that reads: all statements see one moment.
pub(super) async fn begin_reading(connection: &Object) -> Result<(), SessionError> {
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    connection.batch_execute(begin).await.map_err(failed("begin"))
}

/// Commits. In an aborted transaction this rolls back without an error: the errors are those of earlier statements.
pub(super) async fn commit(connection: &Object) -> Result<(), SessionError> {
    connection.batch_execute("COMMIT").await.map_err(failed("commit"))
}

/// Waits for a server's answer for at most this time: a frozen server does not enforce its own timeouts.
pub(super) async fn with_timeout<T>(
    answer_timeout: Duration,
    answers: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    timeout(answer_timeout, answers).await.unwrap_or_else(|_| {
        let source = format!("the server has not answered for {answer_timeout:?}").into();
        Err(SessionError::Unavailable { what: "read or write", source })
    })
}

/// Runs a statement for its rows.
pub(super) async fn query(
    connection: &Object,
    sql: SqlStatement,
    given: SqlParameters<'_>,
) -> Result<Vec<Row>, SessionError> {
    let failed = failed("read or write");
    match connection.prepared(sql) {
        Some(statement) => connection.query(&statement, given).await.map_err(failed),
        None => connection.query_typed(sql.text(), &pooler::typed(given)?).await.map_err(failed),
    }
}

/// Runs a statement for the number of rows that it changed.
pub(super) async fn execute(
    connection: &Object,
    sql: SqlStatement,
    given: SqlParameters<'_>,
) -> Result<u64, SessionError> {
    let failed = failed("write");
    match connection.prepared(sql) {
        Some(statement) => connection.execute(&statement, given).await.map_err(failed),
        None => connection.execute_typed(sql.text(), &pooler::typed(given)?).await.map_err(failed),
    }
}

/// A statement that is on its way.
pub(super) type SentStatement<'a> = Pin<Box<dyn Future<Output = Result<u64, SessionError>> + Send + 'a>>;

/// Runs statements in this order, in one round trip. The first error is the result, once all have ended.
pub(super) async fn in_order(mut statements: Vec<SentStatement<'_>>) -> Result<Vec<u64>, SessionError> {
    let mut results: Vec<Option<Result<u64, SessionError>>> = statements.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (statement, result) in statements.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = statement.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        // NOTE: waits for all, even after an error: unread answers would end up with the next user of the connection.
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
