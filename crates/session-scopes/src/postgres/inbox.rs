//! The inboxes of sessions. Positions are given, and entries taken, under the lock of the session's row.

use std::collections::BTreeMap;

use tokio::try_join;
use tokio_postgres::Row;

use super::claims::{lock, put};
use super::connection::Object;
use super::parts::{Columns, PartRow};
use super::rows::PostgresSessionRow;
use super::statements::{
    ADD_INPUT, FIND_INPUT, FORGET_TAKEN, GET_INBOX, LOOK_AT_INBOX, PUT_TAKEN, READ_INBOX, READ_TAKEN,
    TAKE_INPUTS, TAKEN_KEYS,
};
use super::transaction::{
    IdleTimeout, PooledTransaction, SentStatement, SqlParameters, begin, commit, execute, in_order,
    in_transaction, query,
};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::keys::sealer::ContentKey;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::work::{InputRow, TakenRow, WorkState, repeated, stored_bytes};
use crate::store::{
    ClaimFence, DequeueInput, Enqueued, InboxEntry, MAX_INBOX, PreparedInput, REMEMBERED_INPUTS, ReadInbox,
    WorkRequest,
};

/// Replaces the digests of taken entries by none: their keys stay known, and a repeat of one counts as such whatever its
/// content is.
pub(super) async fn forget_digests(connection: &Object, number: i64) -> Result<(), SessionError> {
    for row in query(connection, TAKEN_KEYS, &[&number]).await? {
        let (key, position): (&str, i64) = (row.get(0), row.get(1));
        let checksum = TakenRow::without_digest(number, key, position).checksum;
        execute(connection, PUT_TAKEN, &[&number, &key, &checksum]).await?;
    }
    Ok(())
}

/// The requested entries that wait, and the newest one (0 if there is none).
#[derive(Default)]
pub(super) struct WaitingInputs {
    rows: BTreeMap<u64, InputRow>,
    newest_left: Option<u64>,
}

impl WaitingInputs {
    /// Finds these entries. The session's row must be locked.
    pub(super) async fn find(
        connection: &Object,
        key: &SessionKey,
        positions: &[u64],
    ) -> Result<Self, SessionError> {
        if positions.is_empty() {
            return Ok(WaitingInputs::default());
        }
        let wanted: Vec<i64> = positions.iter().map(|position| to_db(*position)).collect();
        let given: SqlParameters<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str(), &wanted];
        Ok(WaitingInputs::of(&query(connection, LOOK_AT_INBOX, given).await?))
    }

    /// The entries in these rows. The session's row must be locked.
    pub(super) fn of(rows: &[impl Columns]) -> Self {
        // NOTE: each row has the newest entry that stays, since taking the newest one needs to know the next.
        let newest_left = rows.first().map(|row| from_db(row.get(7)));
        let rows = rows.iter().map(|row| (from_db(row.get(0)), input_row(row))).collect();
        WaitingInputs { rows, newest_left }
    }

    /// The entries that an append takes, all of which have to wait, each given once.
    pub(super) fn take_all(&mut self, request: WorkRequest<'_>) -> Result<Vec<InputRow>, SessionError> {
        let row = |position: &u64| {
            self.rows.remove(position).ok_or_else(|| SessionError::not_waiting(request.key, *position))
        };
        request.taken.iter().map(row).collect()
    }

    /// Takes the entries at these positions that wait, each once.
    fn take_waiting(&mut self, positions: &[u64]) -> Vec<InputRow> {
        positions.iter().filter_map(|position| self.rows.remove(position)).collect()
    }

    /// The claim and inbox of a session with this claim after these entries were taken.
    pub(super) fn work_after(
        &self,
        row: &PostgresSessionRow,
        taken: &[InputRow],
        fence: ClaimFence,
    ) -> Result<WorkState, SessionError> {
        taken.iter().try_for_each(|taken| taken.check(row.number))?;
        let waiting = taken.iter().fold(row.work.waiting, |sum, taken| sum ^ taken.checksum);
        let inbox = self.newest_left.filter(|_| !taken.is_empty()).unwrap_or(row.work.inbox);
        Ok(WorkState { fence, inbox, waiting, last: row.work.last })
    }
}

/// Reads `position, checksum, key, digest, kind, body, at`.
fn input_row(row: &impl Columns) -> InputRow {
    InputRow {
        position: row.get(0),
        checksum: row.get(1),
        key: row.get(2),
        digest: row.get(3),
        kind: row.get(4),
        body: row.get(5),
        at: row.get(6),
    }
}

/// The statements that take these entries, all of which wait.
pub(super) fn take<'c>(connection: &'c Object, number: i64, taken: &[InputRow]) -> [SentStatement<'c>; 2] {
    let (positions, sums): (Vec<i64>, Vec<i64>) =
        taken.iter().map(|row| (row.position, row.taken(number).checksum)).unzip();
    let remembered = to_db(REMEMBERED_INPUTS as u64);
    [
        Box::pin(async move { execute(connection, TAKE_INPUTS, &[&number, &positions, &sums]).await }),
        Box::pin(async move { execute(connection, FORGET_TAKEN, &[&number, &remembered]).await }),
    ]
}

pub(super) async fn enqueue(
    connection: Object,
    idle: &IdleTimeout,
    prepared: &PreparedInput,
) -> Result<Enqueued, SessionError> {
    in_transaction!(connection, idle.limit(None), |inside| enqueue_inside(inside, prepared).await)
}

async fn enqueue_inside(connection: &Object, prepared: &PreparedInput) -> Result<Enqueued, SessionError> {
    let input = &prepared.input;
    let (key, named) = (&input.key, input.idempotency_key.as_str());
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (row, found) = try_join!(biased;
        lock(connection, key),
        async { query(connection, FIND_INPUT, &[&app, &user, &id, &named]).await },
    )?;
    let row = PostgresSessionRow::of(&row, key)?;
    let claim = row.work.fence.unexpired(row.now);
    let enqueued = |position, is_repeat| Enqueued { position, is_repeat, claim, version: row.version };
    let found = found.first().ok_or_else(|| SessionError::not_found(key))?;
    if let Some(position) = accepted_position(found, row.number, prepared, connection.key())? {
        return Ok(enqueued(position, true));
    }
    if from_db(found.get(7)) >= MAX_INBOX as u64 {
        return Err(SessionError::inbox_full(key, MAX_INBOX));
    }
    // NOTE: positions are given under the lock of the session's row, so their order is that of acceptance.
    let position = row.work.last + 1;
    let added = InputRow::new(row.number, position, prepared, connection.key())?;
    let waiting = row.work.waiting ^ added.checksum;
    let work = WorkState { inbox: position, last: position, waiting, ..row.work.clone() };
    in_order(vec![add(connection, row.number, added), put(connection, row.number, work)]).await?;
    Ok(enqueued(position, false))
}

/// The position of an entry that was accepted before, from the row found with its idempotency key.
fn accepted_position(
    found: &Row,
    number: i64,
    prepared: &PreparedInput,
    content: ContentKey<'_>,
) -> Result<Option<u64>, SessionError> {
    let Some(position) = found.get(0) else { return Ok(None) };
    if found.get::<_, Option<&str>>(5).is_some() {
        input_row(found).check(number)?;
    } else {
        let (checksum, key, digest) = (found.get(1), found.get(2), found.get(3));
        TakenRow { position, checksum, key, digest }.check(number)?;
    }
    repeated(prepared, content, found.get(3), position).map(Some)
}

fn add(connection: &Object, number: i64, row: InputRow) -> SentStatement<'_> {
    Box::pin(async move {
        let InputRow { position, checksum, key, digest, kind, body, at } = &row;
        let given: SqlParameters<'_> = &[&number, position, checksum, key, digest, kind, body, at];
        execute(connection, ADD_INPUT, given).await
    })
}

/// The columns of an entry in the rows of `GET_INBOX`, after those of the session.
const ENTRY: &[usize] = &[18, 19, 20, 21, 22, 23, 24];

/// The entries after a position; detects missing ones.
pub(super) async fn read(connection: &Object, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
    let key = &request.key;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (content, largest) = (connection.key(), request.max_body_bytes());
    let (after, most) = (to_db(request.after), to_db(stored_bytes(content, largest) as u64));
    let only: Option<Vec<i64>> =
        request.only.as_ref().map(|only| only.iter().map(|position| to_db(*position)).collect());
    let rows = query(connection, GET_INBOX, &[&app, &user, &id, &after, &most, &only]).await?;
    let session = PostgresSessionRow::of(&rows, key)?;
    // NOTE: a session without entries has one row, in which their columns are empty.
    let waiting = rows.iter().filter(|row| row.get::<_, Option<i64>>(ENTRY[0]).is_some());
    let waiting: Vec<PartRow<'_>> = waiting.map(|row| PartRow::new(row, ENTRY)).collect();
    let rows = checked(&waiting, &session, request)?;
    rows.iter().map(|row| row.entry(session.number, content, largest)).collect()
}

/// The requested entries, from the rows of all waiting ones.
fn checked<C: Columns>(
    rows: &[C],
    session: &PostgresSessionRow,
    request: &ReadInbox,
) -> Result<Vec<InputRow>, SessionError> {
    session.work.check_waiting(rows.iter().fold(0, |sum, row| sum ^ row.get::<i64>(1)))?;
    let behind = rows.iter().filter(|row| request.wants(from_db(row.get(0)))).map(input_row);
    behind.map(|row| row.check(session.number).map(|()| row)).collect()
}

/// Verifies the waiting entries and the taken ones.
pub(super) async fn verify(
    connection: &Object,
    key: &SessionKey,
    session: &PostgresSessionRow,
) -> Result<Result<(), SessionError>, SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let every = None::<Vec<i64>>;
    let (waiting, taken) = try_join!(biased;
        async { query(connection, READ_INBOX, &[&app, &user, &id, &0_i64, &i64::MAX, &every]).await },
        async { query(connection, READ_TAKEN, &[&app, &user, &id]).await },
    )?;
    let check_taken = |row: &Row| {
        let (position, checksum, key, digest) = (row.get(0), row.get(1), row.get(2), row.get(3));
        TakenRow { position, checksum, key, digest }.check(session.number)
    };
    Ok(checked(&waiting, session, &ReadInbox::new(key.clone()))
        .and_then(|_| taken.iter().try_for_each(check_taken)))
}

pub(super) async fn dequeue(
    connection: Object,
    idle: &IdleTimeout,
    request: &DequeueInput,
) -> Result<Vec<u64>, SessionError> {
    let DequeueInput { key, positions, token } = request;
    in_transaction!(connection, idle.limit(None), |inside| {
        let (row, mut waiting) =
            try_join!(biased; lock(inside, key), WaitingInputs::find(inside, key, positions))?;
        let row = PostgresSessionRow::of(&row, key)?;
        if let Some(token) = token {
            row.work.fence.check(key, *token)?;
        }
        let taken = waiting.take_waiting(positions);
        if !taken.is_empty() {
            let work = waiting.work_after(&row, &taken, row.work.fence.clone())?;
            let mut sent = vec![put(inside, row.number, work)];
            sent.extend(take(inside, row.number, &taken));
            in_order(sent).await?;
        }
        Ok(taken.iter().map(|row| from_db(row.position)).collect())
    })
}
