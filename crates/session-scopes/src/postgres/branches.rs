//! The forks of sessions, and labels on their versions.

use tokio::try_join;
use tokio_postgres::Row;

use super::connection::Object;
use super::parts::Columns;
use super::rows::PostgresSessionRow;
use super::statements::{
    ADD_FORK, ADD_LABEL, COUNT_LABELS, DROP_LABEL, FIND_LABEL, FORGET_FORK, FORGET_FORKS, FORGET_LABELS,
    LOCK_SESSION, PRUNE_LABELS, PUT_SEAL, READ_FORKS, READ_LABELS, READ_SESSION,
};
use super::transaction::{execute, query};
use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::rows::branches::{LabelChange, StoredFork, StoredLabel, fork_sum};
use crate::rows::lineage::to_db;
use crate::rows::seal::SessionRecord;
use crate::store::{ForkInfo, LabelVersion};

pub(super) async fn forks(connection: &Object, key: &SessionKey) -> Result<Vec<ForkInfo>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, forks) = try_join!(biased; ask(READ_SESSION), ask(READ_FORKS))?;
    let row = PostgresSessionRow::of(&row, key)?;
    forks_of(&forks, &row, key)
}

/// The forks of a session, from rows of `number, id, parent_version, created, checksum`.
pub(super) fn forks_of<C: Columns>(
    rows: &[C],
    record: &SessionRecord,
    key: &SessionKey,
) -> Result<Vec<ForkInfo>, SessionError> {
    let read = |row: &C| {
        // NOTE: a session that lost its origin gives the checksum of an impossible version, and so a mismatch.
        let version = row.get::<Option<i64>>(2).unwrap_or(-1);
        let (number, id, created) = (row.get(0), row.get(1), row.get(3));
        StoredFork { number, id, version, created, checksum: row.get(4) }
    };
    crate::rows::branches::forks(rows.iter().map(read).collect(), record, key)
}

pub(super) async fn labels(connection: &Object, key: &SessionKey) -> Result<Vec<(Label, u64)>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
    let (row, labels) = try_join!(biased; ask(READ_SESSION), ask(READ_LABELS))?;
    let row = PostgresSessionRow::of(&row, key)?;
    labels_of(&labels, &row, key)
}

/// The labels of a session, from rows of `label, version, checksum`.
pub(super) fn labels_of(
    rows: &[Row],
    record: &SessionRecord,
    key: &SessionKey,
) -> Result<Vec<(Label, u64)>, SessionError> {
    crate::rows::branches::labels(rows.iter().map(label_row).collect(), record, key)
}

fn label_row(row: &Row) -> StoredLabel {
    StoredLabel { label: row.get(0), version: row.get(1), checksum: row.get(2) }
}

/// Sets a label, inside a transaction.
pub(super) async fn set_label(
    connection: &Object,
    request: &LabelVersion,
) -> Result<Option<u64>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    // NOTE: locked, since the session's seal covers the combined checksums of its labels.
    let row = query(connection, LOCK_SESSION, &[&app, &user, &id]).await?;
    let row = PostgresSessionRow::of(&row, key)?;
    request.check_version(row.oldest, row.version)?;
    let (number, label) = (row.number, request.label.as_str());
    let (found, count) = try_join!(biased;
        async { query(connection, FIND_LABEL, &[&number, &label]).await },
        async { query(connection, COUNT_LABELS, &[&number]).await },
    )?;
    let (before, count) = (found.first().map(label_row), count.first().map_or(0, |row| row.get(0)));
    let change = LabelChange::of(request, number, before.as_ref(), count)?;
    match &change.put {
        Some(StoredLabel { label, version, checksum }) => {
            execute(connection, ADD_LABEL, &[&number, label, version, checksum]).await?
        }
        None => execute(connection, DROP_LABEL, &[&number, &label]).await?,
    };
    if change.sums != 0 {
        put_seal(connection, key, &row.record.with_labels(change.sums)).await?;
    }
    Ok(change.before)
}

async fn put_seal(connection: &Object, key: &SessionKey, record: &SessionRecord) -> Result<(), SessionError> {
    let seal = record.seal(key).to_bytes();
    execute(connection, PUT_SEAL, &[&record.number, &seal]).await.map(drop)
}

/// Stores the row of a fork, which exists as long as the fork and its origin do. The row of `parent` is locked.
pub(super) async fn add_fork(
    connection: &Object,
    from: &SessionKey,
    parent: SessionRecord,
    (fork, id): (&SessionRecord, &SessionId),
) -> Result<(), SessionError> {
    let sum = fork_sum(&parent, fork, id);
    execute(connection, ADD_FORK, &[&parent.number, &fork.number, &sum]).await?;
    put_seal(connection, from, &parent.with_forks(sum)).await
}

/// Deletes a session's labels, forks and its own fork row. No other worker forks or deletes a session of the
/// user meanwhile, so locking the origin after the session cannot deadlock.
pub(super) async fn forget(
    connection: &Object,
    key: &SessionKey,
    record: &SessionRecord,
) -> Result<(), SessionError> {
    if let Some((id, _)) = &record.parent {
        let parent = SessionKey { id: SessionId::new(id.clone())?, ..key.clone() };
        let (app, user, id) = (parent.app.as_str(), parent.user.as_str(), parent.id.as_str());
        let found = query(connection, LOCK_SESSION, &[&app, &user, &id]).await?;
        if let Some(row) = found.first() {
            let found = PostgresSessionRow::read(row, &parent)?.record;
            let gone = query(connection, FORGET_FORK, &[&found.number, &record.number]).await?;
            // NOTE: the origin may have been deleted and its id given to another session, which has no row of this fork.
            if !gone.is_empty() {
                put_seal(connection, &parent, &found.with_forks(combined(&gone))).await?;
            }
        }
    }
    // NOTE: forks of a deleted session stay; only the list of them goes with its row.
    for sql in [FORGET_FORKS, FORGET_LABELS] {
        execute(connection, sql, &[&record.number]).await?;
    }
    Ok(())
}

/// Deletes the labels of versions before this one; returns their combined checksums.
pub(super) async fn prune_labels(connection: &Object, number: i64, oldest: u64) -> Result<i64, SessionError> {
    query(connection, PRUNE_LABELS, &[&number, &to_db(oldest)]).await.map(|gone| combined(&gone))
}

/// The combined checksums of rows.
fn combined(rows: &[Row]) -> i64 {
    rows.iter().fold(0, |sum, row| sum ^ row.get::<_, i64>(0))
}
