//! The inboxes of sessions. Positions are given, and entries taken, under the lock of the session's row.

use std::collections::BTreeSet;

use deadpool_postgres::Object;
use tokio::try_join;
use tokio_postgres::Row;

use super::claims::lock;
use super::rows::SessionRow;
use super::statements::{
    ADD_INPUT, FIND_INPUT, FORGET_TAKEN, LOOK_AT_INBOX, MOVE_INBOX, READ_INBOX, TAKE_INPUTS,
};
use super::transaction::{Given, Sent, Transaction, begin, commit, execute, in_order, in_transaction, query};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::{from_db, inbox_entry, to_db};
use crate::store::{
    Asked, DequeueInput, Enqueued, InboxEntry, MAX_INBOX, PreparedInput, REMEMBERED_INPUTS, ReadInbox,
};
use crate::time::Timestamp;

/// Which of the entries that are asked for wait, and the newest one beside them (0 if there is none).
#[derive(Default)]
pub(super) struct Waiting {
    positions: BTreeSet<u64>,
    pub(super) newest_left: u64,
}

impl Waiting {
    /// Looks for these. The session's row has to be locked.
    pub(super) async fn look(
        connection: &Object,
        key: &SessionKey,
        positions: &[u64],
    ) -> Result<Self, SessionError> {
        if positions.is_empty() {
            return Ok(Waiting::default());
        }
        let asked = to_array(positions);
        let given: Given<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str(), &asked];
        let rows = query(connection, LOOK_AT_INBOX, given).await?;
        Ok(rows.first().map_or_else(Waiting::default, |row| Waiting {
            positions: row.get::<_, Vec<i64>>(0).into_iter().map(from_db).collect(),
            newest_left: from_db(row.get(1)),
        }))
    }

    /// Checks that all entries that an append takes wait, each given once.
    pub(super) fn check(&self, asked: Asked<'_>) -> Result<(), SessionError> {
        let mut left = self.positions.clone();
        match asked.taken.iter().find(|position| !left.remove(*position)) {
            Some(position) => Err(SessionError::not_waiting(asked.key, *position)),
            None => Ok(()),
        }
    }

    /// Those of these that wait, each once.
    fn of(&self, positions: &[u64]) -> Vec<u64> {
        let mut left = self.positions.clone();
        positions.iter().copied().filter(|position| left.remove(position)).collect()
    }
}

fn to_array(positions: &[u64]) -> Vec<i64> {
    positions.iter().map(|position| to_db(*position)).collect()
}

/// The statements that take these entries, all of which wait.
pub(super) fn take<'c>(connection: &'c Object, number: i64, positions: &[u64]) -> [Sent<'c>; 3] {
    let positions = to_array(positions);
    let remembered = to_db(REMEMBERED_INPUTS as u64);
    [
        Box::pin(async move { execute(connection, TAKE_INPUTS, &[&number, &positions]).await }),
        Box::pin(async move { execute(connection, FORGET_TAKEN, &[&number, &remembered]).await }),
        Box::pin(async move { execute(connection, MOVE_INBOX, &[&number]).await }),
    ]
}

pub(super) async fn enqueue(connection: Object, prepared: &PreparedInput) -> Result<Enqueued, SessionError> {
    in_transaction!(connection, |inside| enqueue_inside(inside, prepared).await)
}

async fn enqueue_inside(connection: &Object, prepared: &PreparedInput) -> Result<Enqueued, SessionError> {
    let input = &prepared.input;
    let (key, operation) = (&input.key, input.idempotency_key.as_str());
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let digest = prepared.digest.to_bytes();
    let digest = &digest[..];
    let (row, found) = try_join!(biased;
        lock(connection, key),
        async { query(connection, FIND_INPUT, &[&app, &user, &id, &operation, &digest]).await },
    )?;
    let row = SessionRow::of(&row, key)?;
    let claim = row.fence.unexpired(row.now);
    let enqueued = |position, is_repeat| Enqueued { position, is_repeat, claim, version: row.version };
    let found = found.first().ok_or_else(|| SessionError::not_found(key))?;
    let (waiting, known): (i64, Option<i64>) = (found.get(0), found.get(1));
    match known {
        Some(position) if found.get(2) => return Ok(enqueued(from_db(position), true)),
        Some(_) => return Err(SessionError::input_reused(key, &input.idempotency_key)),
        None if from_db(waiting) >= MAX_INBOX as u64 => return Err(SessionError::inbox_full(key)),
        None => {}
    }
    let (kind, at) = (input.kind.as_str(), input.at.as_micros());
    let given: Given<'_> = &[&row.number, &operation, &digest, &kind, &prepared.body, &at];
    let added = query(connection, ADD_INPUT, given).await?;
    let position = added.first().ok_or_else(|| SessionError::not_found(key))?.get(0);
    Ok(enqueued(from_db(position), false))
}

pub(super) async fn read(connection: Object, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let rows = query(&connection, READ_INBOX, &[&app, &user, &id, &to_db(request.after)]).await?;
    if rows.is_empty() {
        return Err(SessionError::not_found(key));
    }
    let entry = |row: &Row| {
        let position: Option<i64> = row.get(0);
        position.map(|position| {
            let at = Timestamp::from_micros(row.get(4));
            inbox_entry(position, row.get(1), row.get(2), row.get(3), at)
        })
    };
    rows.iter().filter_map(entry).collect()
}

pub(super) async fn dequeue(connection: Object, request: &DequeueInput) -> Result<Vec<u64>, SessionError> {
    let DequeueInput { key, positions, token } = request;
    in_transaction!(connection, |inside| {
        let (row, waiting) = try_join!(biased; lock(inside, key), Waiting::look(inside, key, positions))?;
        let row = SessionRow::of(&row, key)?;
        if let Some(token) = token {
            row.fence.check(key, *token)?;
        }
        let taken = waiting.of(positions);
        if !taken.is_empty() {
            in_order(take(inside, row.number, &taken).into()).await?;
        }
        Ok(taken)
    })
}
