//! The forks of sessions, and labels on their versions.

use deadpool_postgres::Object;
use tokio::try_join;

use super::rows::SessionRow;
use super::statements::{
    ADD_LABEL, DROP_LABEL, FIND_LABEL, FORGET_FORK, FORGET_FORKS, FORGET_LABELS, LOCK_SESSION, PRUNE_LABELS,
    READ_FORKS, READ_LABELS, READ_SESSION,
};
use super::transaction::{execute, query};
use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::rows::{from_db, to_db};
use crate::store::{ForkInfo, LabelVersion};
use crate::time::Timestamp;

pub(super) async fn forks(connection: &Object, key: &SessionKey) -> Result<Vec<ForkInfo>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, forks) = try_join!(biased; ask(READ_SESSION), ask(READ_FORKS))?;
    SessionRow::of(&row, key)?;
    let fork = |row: &tokio_postgres::Row| {
        let (version, created) = (from_db(row.get(1)), Timestamp::from_micros(row.get(2)));
        Ok(ForkInfo { id: SessionId::new(row.get::<_, &str>(0))?, version, created })
    };
    forks.iter().map(fork).collect()
}

pub(super) async fn labels(connection: &Object, key: &SessionKey) -> Result<Vec<(Label, u64)>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, labels) = try_join!(biased; ask(READ_SESSION), ask(READ_LABELS))?;
    SessionRow::of(&row, key)?;
    labels.iter().map(|row| Ok((Label::new(row.get::<_, &str>(0))?, from_db(row.get(1))))).collect()
}

/// Sets a label, inside a transaction.
pub(super) async fn set_label(
    connection: &Object,
    request: &LabelVersion,
) -> Result<Option<u64>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let row = query(connection, LOCK_SESSION, &[&app, &user, &id]).await?;
    let row = SessionRow::of(&row, key)?;
    request.check_version(row.oldest, row.version)?;
    let (number, label) = (row.number, request.label.as_str());
    let found = query(connection, FIND_LABEL, &[&number, &label]).await?;
    let (before, count): (Option<i64>, i64) =
        found.first().map(|row| (row.get(0), row.get(1))).unwrap_or_default();
    request.check_count(before.is_none(), usize::try_from(count).unwrap_or(usize::MAX))?;
    match request.version.map(to_db) {
        Some(version) => execute(connection, ADD_LABEL, &[&number, &label, &version]).await?,
        None => execute(connection, DROP_LABEL, &[&number, &label]).await?,
    };
    Ok(before.map(from_db))
}

/// Forgets a session that is deleted: its labels, its forks, and that it is one.
pub(super) async fn forget(connection: &Object, number: i64) -> Result<(), SessionError> {
    for sql in [FORGET_FORK, FORGET_FORKS, FORGET_LABELS] {
        execute(connection, sql, &[&number]).await?;
    }
    Ok(())
}

/// Forgets the labels of versions before this one.
pub(super) async fn prune_labels(connection: &Object, number: i64, oldest: u64) -> Result<(), SessionError> {
    execute(connection, PRUNE_LABELS, &[&number, &to_db(oldest)]).await.map(drop)
}
