//! Erasure in both databases: the order of its steps, and the statements that both read.

use std::collections::BTreeSet;

use super::budgets::{end_all, move_and_drop, settle_open, with_prefixes};
use super::chain::missing_event;
use super::lineage::{from_db, to_db};
use super::open_erasure;
use super::seal::{EventSeal, SessionRecord, row_number};
use super::sql::{RunSql, SharedSql, SqlRow, SqlValue};
use crate::digest::{ChecksumEncoder, ContentForm};
use crate::error::SessionError;
use crate::event::{Erasure, Event};
use crate::ids::{AppId, Author, ErasureId, EventId, LifeId, ReservationId, SessionKey, UserId};
use crate::keys::sealer::{ContentKey, Place};
use crate::store::{
    ERASED_USER, EraseData, EraseKind, EraseTarget, ErasedData, ErasureRecord, ListErasures, ReservationEnd,
    SettleSpend,
};
use crate::time::Timestamp;

const ADD_RECORD: SharedSql = SharedSql(
    "INSERT INTO stepfold_erasures (id, app, kind, at, author, reason, sessions, events, checksum) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING RETURNING id",
);
const FIND_RECORD: SharedSql = SharedSql("SELECT id FROM stepfold_erasures WHERE id = $1");
const LIST_RECORDS: SharedSql = SharedSql(
    "SELECT id, kind, author, reason, at, sessions, events, checksum FROM stepfold_erasures \
     WHERE app = $1 AND (at > $2 OR at = $2 AND id > $3) AND kind <> 'open' ORDER BY at, id LIMIT $4",
);
const RING: SharedSql = SharedSql("SELECT ring FROM stepfold_meta WHERE ring IS NOT NULL");
const SPEND_OF_USER: SharedSql =
    SharedSql("SELECT id FROM stepfold_spend WHERE app = $1 AND owner = $2 ORDER BY id");
// NOTE: SQLite numbers parameters by their first appearance, so they appear in order.
const FORGET_SPENDER: SharedSql = SharedSql(
    "UPDATE stepfold_spend SET id = $1, owner = $2, session = $2, token = NULL, amounts = '[]' \
     WHERE id = $3 RETURNING id",
);

/// The numbers of a session with its forks, with theirs, and with all that share one of its events: `$1` is its own.
macro_rules! with_forks {
    () => {
        "WITH RECURSIVE d (number) AS (SELECT CAST($1 AS BIGINT) UNION SELECT c.number FROM d \
         JOIN (SELECT stream AS origin, number FROM stepfold_lineage \
         UNION ALL SELECT parent, number FROM stepfold_forks) c ON c.origin = d.number) "
    };
}
pub(crate) use with_forks;

/// The row of an event.
pub(crate) struct EventRow {
    pub(crate) stream: i64,
    pub(crate) version: u64,
    pub(crate) id: String,
    pub(crate) at: i64,
    pub(crate) body: String,
    pub(crate) seal: EventSeal,
}

impl EventRow {
    /// The row without the event's content; `None` if that was erased before.
    fn erased(&self, note: Erasure, content: ContentKey<'_>) -> Result<Option<Self>, SessionError> {
        let EventRow { stream, version, ref id, at, ref body, seal } = *self;
        let time = Timestamp::from_micros(at);
        // NOTE: not by the note: that of an imported event was written by others.
        if matches!(seal.form, ContentForm::Erased { .. }) {
            return Ok(None);
        }
        let event =
            Event::from_body(EventId::new(id.as_str())?, time, &content.open(Place::event(id), body)?)?;
        let left = event.erased(note)?;
        if left == event {
            return Ok(None);
        }
        let left = left.to_body()?;
        let form = seal.form.erased((version, id, time), body, &left);
        let seal = EventSeal::new(row_number(stream, version), at, seal.state, form);
        Ok(Some(EventRow { stream, version, id: id.clone(), at, body: left, seal }))
    }
}

/// The rows that an erasure reads and writes, inside its transaction. Implemented by both databases.
pub(crate) trait EraseRows: RunSql + Send {
    /// The key of the content of the user.
    fn key(&self) -> ContentKey<'_>;

    /// Waits for other operations on the history that a user's sessions share.
    fn lock(&mut self, app: &AppId, user: &UserId) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// The record of a session, which is at rest if `at_rest` is given: no worker has claimed it by then.
    fn session(
        &mut self,
        key: &SessionKey,
        at_rest: Option<Timestamp>,
    ) -> impl Future<Output = Result<SessionRecord, SessionError>> + Send;

    /// The sessions whose histories have rows of a stream, in the order of their creation.
    fn sharing(&mut self, stream: i64) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send;

    /// A session with its forks, with theirs, and with all that share one of its events, in the order of their creation.
    fn with_forks(
        &mut self,
        number: i64,
    ) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send;

    /// The sessions of a user, in the order of their creation.
    fn of_user(
        &mut self,
        app: &AppId,
        user: &UserId,
    ) -> impl Future<Output = Result<Vec<SessionKey>, SessionError>> + Send;

    /// The row of an event of a session's history.
    fn event(
        &mut self,
        record: &SessionRecord,
        version: u64,
    ) -> impl Future<Output = Result<Option<EventRow>, SessionError>> + Send;

    /// Replaces body and seal of an event.
    fn put_event(&mut self, row: &EventRow) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// Removes the digests by which a session knows the content of taken inputs: without a salt, they can be found by trying.
    fn forget_inputs(&mut self, number: i64) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// Updates what the list of sessions tells of one.
    fn update_entry(&mut self, key: &SessionKey) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// Deletes a session, also one that a worker has claimed. Its open reservations may stay.
    fn delete(&mut self, key: &SessionKey) -> impl Future<Output = Result<(), SessionError>> + Send;

    /// The keys of a user's own values, which are deleted unless this is a dry run.
    fn user_keys(
        &mut self,
        app: &AppId,
        user: &UserId,
        is_dry_run: bool,
    ) -> impl Future<Output = Result<Vec<String>, SessionError>> + Send;
}

/// Erases, and adds the record of it.
pub(crate) async fn erase(
    rows: &mut impl EraseRows,
    request: &EraseData,
) -> Result<ErasedData, SessionError> {
    check_ring(rows, request).await?;
    if request.is_dry_run {
        open_erasure::check(rows, request).await?;
        let found = erase_target(rows, request).await?;
        return if is_recorded(rows, request).await? { found.of_repeated(request) } else { Ok(found) };
    }
    let (erased, is_new) = write(rows, request).await?;
    if is_new { Ok(erased) } else { erased.of_repeated(request) }
}

/// Begins the erasure of a user whose key is destroyed before the rows are erased: the id is taken, and nothing is erased yet. The
/// result is that of a repeated request, which ends here.
pub(crate) async fn begin(
    rows: &mut impl EraseRows,
    request: &EraseData,
) -> Result<Option<ErasedData>, SessionError> {
    // NOTE: before the records are read: from here on, no other erasure adds one under the id.
    open_erasure::take(rows, request).await?;
    // NOTE: an erasure that fails on damaged rows must not have destroyed the key.
    let found = erase_target(rows, &request.clone().dry_run()).await?;
    if !is_recorded(rows, request).await? {
        return Ok(None);
    }
    open_erasure::end(rows, request).await?;
    // NOTE: the caller looks for the key: the one of this operation may be of before an erasure that has ended now.
    ErasedData { had_key: false, ..found }.of_repeated(request).map(Some)
}

/// Finishes an erasure that was begun. It is never refused, since its key is destroyed: if the same request has finished meanwhile, it
/// is one with this.
pub(crate) async fn finish(
    rows: &mut impl EraseRows,
    request: &EraseData,
) -> Result<ErasedData, SessionError> {
    write(rows, request).await.map(|(erased, _)| erased)
}

/// Erases, and adds the record; whether its id is new.
async fn write(rows: &mut impl EraseRows, request: &EraseData) -> Result<(ErasedData, bool), SessionError> {
    open_erasure::take(rows, request).await?;
    let erased = erase_target(rows, request).await?;
    let is_new = add_record(rows, request, &erased).await?;
    open_erasure::end(rows, request).await?;
    Ok((erased, is_new))
}

/// Rejects what a store without its ring cannot erase: the key of a user would stay, and with it the content of backups; and
/// content of events is not read. A session is deleted as it is.
async fn check_ring(rows: &mut impl EraseRows, request: &EraseData) -> Result<(), SessionError> {
    let needs_ring = !matches!(request.target, EraseTarget::Session { .. });
    if !needs_ring || rows.key().has_ring() || rows.rows(RING, &[]).await?.is_empty() {
        return Ok(());
    }
    let (app, user) = request.target.owner();
    let why = "the store was opened without its key ring, which the erasure changes or needs; nothing was erased: open it with the ring";
    Err(SessionError::Sealed { what: format!("content of {app}/{user}"), why })
}

async fn erase_target(rows: &mut impl EraseRows, request: &EraseData) -> Result<ErasedData, SessionError> {
    match &request.target {
        EraseTarget::Events { key, versions } => {
            rows.lock(&key.app, &key.user).await?;
            erase_events(rows, request, key, versions).await
        }
        EraseTarget::Session { key } => {
            rows.lock(&key.app, &key.user).await?;
            let record = rows.session(key, None).await?;
            let sessions = rows.with_forks(record.number).await?;
            let erased = erase_sessions(rows, request, sessions).await?;
            if !request.is_dry_run {
                // NOTE: after the last session is locked: a reservation locks its session before its budgets.
                settle_open(rows, &erased.sessions).await?;
            }
            Ok(erased)
        }
        EraseTarget::User { app, user } => {
            rows.lock(app, user).await?;
            erase_user(rows, request, app, user).await
        }
    }
}

async fn erase_events(
    rows: &mut impl EraseRows,
    request: &EraseData,
    key: &SessionKey,
    versions: &BTreeSet<u64>,
) -> Result<ErasedData, SessionError> {
    let record = rows.session(key, Some(request.at)).await?;
    let mut erased = ErasedData { sessions: vec![key.clone()], ..ErasedData::default() };
    let mut streams = BTreeSet::new();
    for version in versions {
        // NOTE: the event of the oldest version itself is gone: a session can go back to the state after it.
        if *version <= record.oldest || *version > record.version {
            return Err(SessionError::no_such_version(key, *version, record.oldest + 1, record.version));
        }
        let row = rows.event(&record, *version).await?.ok_or_else(|| missing_event(*version))?;
        let Some(left) = row.erased(request.note(), rows.key())? else { continue };
        erased.events += 1;
        if !request.is_dry_run {
            rows.put_event(&left).await?;
            streams.insert(left.stream);
        }
    }
    let mut listed = BTreeSet::new();
    for stream in streams {
        listed.extend(rows.sharing(stream).await?);
    }
    for sharer in &listed {
        // NOTE: its row first, since a worker of the sharer writes what is listed at the same time.
        match rows.session(sharer, None).await {
            Ok(record) => {
                rows.update_entry(sharer).await?;
                super::search::forget(rows, record.number).await?;
            }
            Err(SessionError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if erased.events > 0 && !request.is_dry_run {
        rows.forget_inputs(record.number).await?;
    }
    Ok(erased)
}

async fn erase_sessions(
    rows: &mut impl EraseRows,
    request: &EraseData,
    sessions: Vec<SessionKey>,
) -> Result<ErasedData, SessionError> {
    let mut events = 0;
    // NOTE: forks first: a deleted fork changes the row of its origin.
    for key in sessions.iter().rev() {
        let record = rows.session(key, None).await?;
        events += record.version - record.oldest;
        if !request.is_dry_run {
            rows.delete(key).await?;
        }
    }
    Ok(ErasedData { sessions, events, ..ErasedData::default() })
}

async fn erase_user(
    rows: &mut impl EraseRows,
    request: &EraseData,
    app: &AppId,
    user: &UserId,
) -> Result<ErasedData, SessionError> {
    let sessions = rows.of_user(app, user).await?;
    let erased = erase_sessions(rows, request, sessions).await?;
    let user_keys = rows.user_keys(app, user, request.is_dry_run).await?;
    let (spend, budgets) = forget_spender(rows, request, app, user).await?;
    let had_key = rows.key().has_key();
    Ok(ErasedData { user_keys, spend, budgets, had_key, ..erased })
}

/// Takes the name of a user out of the list of spend, whose sums stay, and deletes the user's budgets; returns the numbers of
/// both. Open reservations count as their estimates.
async fn forget_spender(
    rows: &mut impl EraseRows,
    request: &EraseData,
    app: &AppId,
    user: &UserId,
) -> Result<(u64, u64), SessionError> {
    let named =
        rows.rows(SPEND_OF_USER, &[SqlValue::Text(app.as_str()), SqlValue::Text(user.as_str())]).await?;
    if request.is_dry_run {
        let budgets = with_prefixes(rows, &request.budgets).await?;
        return Ok((named.len() as u64, budgets.len() as u64));
    }
    let at_estimate =
        |row: &SqlRow| Ok(SettleSpend::new(ReservationId::new(row.text(0)?)?, ReservationEnd::Estimate));
    let ends: Vec<SettleSpend> = named.iter().map(at_estimate).collect::<Result<_, SessionError>>()?;
    let (_, moved) = end_all(rows, &ends).await?;
    for row in &named {
        let id = row.text(0)?;
        // NOTE: a random one, since the id of a reservation contains the session's key.
        let other = format!("erased {}", LifeId::random());
        let values = [SqlValue::Text(&other), SqlValue::Text(ERASED_USER), SqlValue::Text(id)];
        rows.rows(FORGET_SPENDER, &values).await?;
    }
    // NOTE: budgets last, after all requests in the list of spend.
    Ok((named.len() as u64, move_and_drop(rows, moved, &request.budgets).await?))
}

/// Adds the record of an erasure; whether its id is new.
async fn add_record(
    rows: &mut impl RunSql,
    request: &EraseData,
    erased: &ErasedData,
) -> Result<bool, SessionError> {
    let record = ErasureRecord::of(request, erased);
    let app = request.target.app().as_str();
    let id = stored_id(app, &record.id);
    let values = [
        SqlValue::Text(&id),
        SqlValue::Text(app),
        SqlValue::Text(record.kind.as_str()),
        SqlValue::Int(record.at.as_micros()),
        SqlValue::Text(record.by.as_str()),
        SqlValue::Text(&record.reason),
        SqlValue::Int(to_db(record.sessions)),
        SqlValue::Int(to_db(record.events)),
        SqlValue::Int(checksum(app, &record)),
    ];
    Ok(!rows.rows(ADD_RECORD, &values).await?.is_empty())
}

async fn is_recorded(rows: &mut impl RunSql, request: &EraseData) -> Result<bool, SessionError> {
    let id = stored_id(request.target.app().as_str(), &request.id);
    Ok(!rows.rows(FIND_RECORD, &[SqlValue::Text(&id)]).await?.is_empty())
}

/// A page of the records of an app.
pub(crate) async fn list(
    rows: &mut impl RunSql,
    request: &ListErasures,
) -> Result<Vec<ErasureRecord>, SessionError> {
    let app = request.app.as_str();
    let (at, id) = match &request.after {
        Some((at, id)) => (at.as_micros(), stored_id(app, id)),
        None => (i64::MIN, String::new()),
    };
    let limit = to_db(request.limit as u64);
    let values = [SqlValue::Text(app), SqlValue::Int(at), SqlValue::Text(&id), SqlValue::Int(limit)];
    rows.rows(LIST_RECORDS, &values).await?.iter().map(|row| record(app, row)).collect()
}

/// The text of an id, which is unique within the table. An id has no line breaks.
pub(super) fn stored_id(app: &str, id: &ErasureId) -> String {
    format!("{app}\n{id}")
}

fn record(app: &str, row: &SqlRow) -> Result<ErasureRecord, SessionError> {
    let id = row.text(0)?;
    // NOTE: earlier rows have the id only.
    let id = id.split_once('\n').map_or(id, |(_, id)| id);
    let record = ErasureRecord {
        id: ErasureId::new(id)?,
        kind: EraseKind::stored(row.text(1)?)?,
        by: Author::new(row.text(2)?)?,
        reason: row.text(3)?.to_owned(),
        at: Timestamp::from_micros(row.int(0)?),
        sessions: from_db(row.int(1)?),
        events: from_db(row.int(2)?),
    };
    super::seal::compare(checksum(app, &record), row.int(3)?, || format!("record of erasure {}", record.id))?;
    Ok(record)
}

fn checksum(app: &str, record: &ErasureRecord) -> i64 {
    let ErasureRecord { id, kind, at, by, reason, sessions, events } = record;
    let mut check = ChecksumEncoder::new("stepfold_erasures");
    check.text(id.as_str()).text(app).text(kind.as_str()).int(at.as_micros()).text(by.as_str()).text(reason);
    check.int(to_db(*sessions)).int(to_db(*events)).sum()
}
