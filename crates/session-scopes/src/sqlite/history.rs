//! The rows of a session's history: its own, and those that it shares with its origin.

use std::num::NonZero;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::sync::mpsc::{self, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, Rows, params};

use super::changes::read_scopes;
use super::claims;
use super::error::failed;
use super::seal::{self, EventSeal, SealedState, SessionSeal};
use crate::digest::{ContentDigest, ContentForm, Digest};
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event, RecentTexts};
use crate::ids::{EventId, SessionKey};
use crate::keys::sealer::{ContentKey, Place, StoredBody};
use crate::memory_size;
use crate::rows::chain::{EventChain, missing_event, pieces};
use crate::rows::lineage::{HistorySegment, from_db, to_db};
use crate::rows::rewinds::{RewindChain, RewindRow};
use crate::rows::seal::{SessionRecord, row_number, version_of};
use crate::rows::shared::SharedScopes;
use crate::rows::work::WorkState;
use crate::scope::ScopeVersions;
use crate::session::{RewindMark, Session, VisibleVersions};
use crate::store::{EventRange, page_of};
use crate::time::Timestamp;

/// The row of a session, and of its newest event.
#[derive(Debug)]
pub(super) struct SqliteSessionRow {
    pub(super) record: SessionRecord,
    pub(super) work: WorkState,
}

impl Deref for SqliteSessionRow {
    type Target = SessionRecord;

    fn deref(&self) -> &SessionRecord {
        &self.record
    }
}

/// The columns of a session, as `s`, that [`SqliteSessionRow::read`] expects after the first seven.
macro_rules! work_columns {
    () => {
        "s.life, s.claims, s.claim_owner, s.claim_expires, s.inbox, s.inbox_last, s.waiting, s.work"
    };
}
pub(super) use work_columns;

/// A query for the row of the session ?1, ?2, ?3 and of its newest event, in the form of
/// [`SqliteSessionRow::read_newest`], with more columns of other tables.
macro_rules! session_query {
    ($columns:literal, $tables:literal) => {
        concat!(
            "SELECT s.number, s.version, s.oldest, s.created, s.updated, s.parent_id, s.parent_version, ",
            work_columns!(),
            ", s.seal, e.number, e.at, e.seal",
            $columns,
            " FROM stepfold_sessions s LEFT JOIN stepfold_events e ON e.number = \
             (SELECT n.number FROM stepfold_events n WHERE n.number > s.number << 32 \
             AND n.number < (s.number + 1) << 32 ORDER BY n.number DESC LIMIT 1)",
            $tables,
            " WHERE s.app = ?1 AND s.user = ?2 AND s.id = ?3",
        )
    };
}

impl SqliteSessionRow {
    /// Reads `number, version, oldest, created, updated, parent_id, parent_version`, the [`work_columns`]
    /// and the seal, and checks that they are those of the key.
    pub(super) fn read(row: &Row<'_>, key: &SessionKey) -> rusqlite::Result<Result<Self, SessionError>> {
        let parent: Option<String> = row.get(5)?;
        let parent_version: Option<i64> = row.get(6)?;
        let seal: SessionSeal = row.get(15)?;
        let (work, sum) = claims::read(row)?;
        let record = SessionRecord {
            number: row.get(0)?,
            version: from_db(row.get(1)?),
            oldest: from_db(row.get(2)?),
            created: Timestamp::from_micros(row.get(3)?),
            updated: Timestamp::from_micros(row.get(4)?),
            parent: parent.zip(parent_version.map(from_db)),
            life: row.get(7)?,
            state: seal.state,
            anchor: seal.anchor,
            lineage: seal.lineage,
            branches: seal.branches,
        };
        Ok(record.opened(seal, key).and_then(|record| {
            work.check(record.number, sum, key)?;
            Ok(SqliteSessionRow { record, work })
        }))
    }

    /// Sets the version and the time of its newest event from its list entry. The state at that version stays unknown.
    pub(super) fn at(mut self, version: u64, updated: Timestamp) -> Self {
        (self.record.version, self.record.updated) = (version, updated);
        self
    }

    /// The row of a session, with the version and the time of its newest event.
    pub(super) fn find(connection: &Connection, key: &SessionKey) -> Result<Option<Self>, SessionError> {
        let failed = failed("find a session");
        let mut query = connection.prepare_cached(session_query!("", "")).map_err(failed)?;
        let parts = params![key.app.as_str(), key.user.as_str(), key.id.as_str()];
        let read = |row: &Row<'_>| SqliteSessionRow::read_newest(row, key);
        query.query_row(parts, read).optional().map_err(failed)?.transpose()
    }

    /// Reads what a [`session_query`] begins with.
    fn read_newest(row: &Row<'_>, key: &SessionKey) -> rusqlite::Result<Result<Self, SessionError>> {
        let newest: Option<i64> = row.get(16)?;
        let (found, newest) = match (SqliteSessionRow::read(row, key)?, newest) {
            // NOTE: an append does not write the session's row: version, time and state are those of the newest event,
            // unless retention has deleted it.
            (Ok(found), Some(newest)) if version_of(newest) > found.version => (found, newest),
            (found, _) => return Ok(found),
        };
        let (at, seal): (i64, Option<EventSeal>) = (row.get(17)?, row.get(18)?);
        let missing = || SessionError::damaged(format!("session {key}"), "missing seal of its newest event");
        let state = seal.ok_or_else(missing).and_then(|seal| seal.open(newest, at));
        let (version, updated) = (version_of(newest), Timestamp::from_micros(at));
        Ok(state.map(|state| SqliteSessionRow {
            record: SessionRecord { version, updated, state, ..found.record },
            work: found.work,
        }))
    }

    /// The row of an existing session.
    pub(super) fn get(connection: &Connection, key: &SessionKey) -> Result<Self, SessionError> {
        SqliteSessionRow::find(connection, key)?.ok_or_else(|| SessionError::not_found(key))
    }

    /// Checks that the list of sessions has the same newest event: no other check detects a missing one.
    pub(super) fn check_newest(&self, connection: &Connection, key: &SessionKey) -> Result<(), SessionError> {
        let failed = failed("find a session");
        let (app, user, updated) = (key.app.as_str(), key.user.as_str(), self.updated.as_micros());
        let found: Option<(i64, i64)> = connection
            .prepare_cached(
                "SELECT version, checksum FROM stepfold_recent \
                 WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
            )
            .and_then(|mut query| {
                let parts = params![app, user, updated, self.number];
                query.query_row(parts, |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(failed)?;
        let Some((version, checksum)) = found.filter(|(version, _)| from_db(*version) == self.version) else {
            // NOTE: a lost newest event leaves a session that looks whole at the version before; only the list entry shows
            // that it is missing.
            return Err(not_newest(key, self.version));
        };
        let sum = seal::of_recent(app, user, updated, self.number, version);
        seal::compare(sum, checksum, || format!("list entry of session {key}"))
    }

    /// The session without values and events.
    pub(super) fn session(
        self,
        key: SessionKey,
        visible: VisibleVersions,
        now: Option<Timestamp>,
        scopes: ScopeVersions,
    ) -> Result<Session, SessionError> {
        self.record.session(key, visible, (self.work.fence.as_of(now), self.work.inbox), scopes)
    }
}

/// The rows that an operation on a session begins with, read by one statement.
pub(super) struct OpenedSession {
    pub(super) row: SqliteSessionRow,
    /// The scopes that it shares.
    pub(super) scopes: SharedScopes,
    /// The number of the requested event's row.
    pub(super) event: Option<i64>,
}

/// The unary plus removes the column's affinity: with it SQLite would not use the index over the expression, and scan all
/// events.
const OPENED: &str = session_query!(
    ", a.scope, a.version, a.known, a.seal, u.scope, u.version, u.known, u.seal, \
     (SELECT i.number FROM stepfold_events i WHERE i.number >> 32 = +s.number AND i.id = ?4)",
    " LEFT JOIN stepfold_scopes a ON a.app = ?1 AND a.user = '' \
     LEFT JOIN stepfold_scopes u ON u.app = ?1 AND u.user = ?2"
);

impl OpenedSession {
    /// Reads an existing session, and one of its events if an id is given.
    pub(super) fn read(
        connection: &Connection,
        key: &SessionKey,
        event: Option<&EventId>,
    ) -> Result<Self, SessionError> {
        let failed = failed("find a session");
        let mut query = connection.prepare_cached(OPENED).map_err(failed)?;
        let parts = params![key.app.as_str(), key.user.as_str(), key.id.as_str(), event.map(EventId::as_str)];
        let read = |row: &Row<'_>| {
            let (found, scopes) = (SqliteSessionRow::read_newest(row, key)?, read_scopes(row, 19, key)?);
            let event = row.get(27)?;
            Ok(found.and_then(|row| Ok(OpenedSession { row, scopes: scopes?, event })))
        };
        let found = query.query_row(parts, read).optional().map_err(failed)?;
        found.unwrap_or_else(|| Err(SessionError::not_found(key)))
    }
}

/// The error for a newest event that differs from the one in the list of sessions.
pub(super) fn not_newest(key: &SessionKey, version: u64) -> SessionError {
    let why = format!("missing in the list of sessions at version {version}, its newest event");
    SessionError::damaged(format!("session {key}"), why)
}

impl HistorySegment {
    /// The rows of events of this segment after a version: those above the first number, up to the second.
    pub(super) fn rows_after(&self, version: u64) -> (i64, i64) {
        self.rows_between(version, u64::MAX)
    }

    /// As [`rows_after`](Self::rows_after), up to a version.
    pub(super) fn rows_between(&self, version: u64, upto: u64) -> (i64, i64) {
        (row_number(self.stream, version.max(self.after)), row_number(self.stream, self.upto.min(upto)))
    }
}

/// The history of a session.
#[derive(Debug)]
pub(super) struct SqliteHistory {
    /// Newest first.
    pub(super) lineage: Vec<HistorySegment>,
}

impl SqliteHistory {
    /// The history of a session, checked against its row.
    pub(super) fn read(connection: &Connection, row: &SqliteSessionRow) -> Result<Self, SessionError> {
        SqliteHistory::of(connection, &row.record)
    }

    /// The history of a session, checked against its record.
    pub(super) fn of(connection: &Connection, record: &SessionRecord) -> Result<Self, SessionError> {
        Ok(SqliteHistory { lineage: lineage_of(connection, record)? })
    }

    /// The visible versions at a version.
    pub(super) fn visible(
        &self,
        connection: &Connection,
        row: &SqliteSessionRow,
        version: u64,
    ) -> Result<VisibleVersions, SessionError> {
        let newest = self.rewound(connection, row, version)?;
        visible_at(connection, row.number, version, newest)
    }

    /// The newest rewind up to a version; 0 if there is none.
    pub(super) fn rewound(
        &self,
        connection: &Connection,
        row: &SqliteSessionRow,
        version: u64,
    ) -> Result<u64, SessionError> {
        match version {
            _ if version == row.version => Ok(row.state.rewound),
            // NOTE: retention has deleted the event whose seal names the newest rewind, so its rows are searched.
            _ if version == row.oldest => rewinds_at(connection, row.number, version).map(|all| all.newest()),
            _ => Ok(self.state(connection, version)?.rewound),
        }
    }

    /// The digest of the history up to a version.
    pub(super) fn digest(
        &self,
        connection: &Connection,
        row: &SqliteSessionRow,
        version: u64,
    ) -> Result<Digest, SessionError> {
        if version == row.oldest {
            return Ok(row.anchor);
        }
        if version == row.version {
            return Ok(row.state.head);
        }
        Ok(self.state(connection, version)?.head)
    }

    /// The state after an event that retention has not deleted.
    pub(super) fn state(&self, connection: &Connection, version: u64) -> Result<SealedState, SessionError> {
        let failed = failed("read an event");
        let number = self.row_of(version);
        let found: Option<(i64, Option<EventSeal>)> = connection
            .prepare_cached("SELECT at, seal FROM stepfold_events WHERE number = ?1")
            .and_then(|mut query| query.query_row([number], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(failed)?;
        match (number, found) {
            (Some(number), Some((at, Some(seal)))) => seal.open(number, at),
            _ => Err(missing_event(version)),
        }
    }

    /// The number of the row of an event.
    pub(super) fn row_of(&self, version: u64) -> Option<i64> {
        let segment = self.lineage.iter().find(|segment| segment.contains(version))?;
        Some(row_number(segment.stream, version))
    }

    /// The rows of events after a version, of some ranges of versions, newest first: those above the first number of each,
    /// up to the second.
    fn rows(&self, after: u64, ranges: &[(u64, u64)]) -> impl Iterator<Item = (i64, i64)> {
        let rows = ranges.iter().rev().flat_map(move |(first, last)| {
            let after = after.max(first.saturating_sub(1));
            self.lineage.iter().map(move |segment| segment.rows_between(after, *last))
        });
        rows.filter(|(from, to)| from < to)
    }

    /// Events of the history, of these ranges of versions, in order: each checked, none left out.
    pub(super) fn events(
        &self,
        (connection, content): (&Connection, ContentKey<'_>),
        row: &SqliteSessionRow,
        ranges: &[(u64, u64)],
        range: EventRange,
    ) -> Result<Vec<CommittedEvent>, SessionError> {
        let oldest = row.oldest;
        let (after, left) = match range {
            EventRange::None => return Ok(Vec::new()),
            EventRange::All => (oldest, u64::MAX),
            EventRange::Last(count) => (oldest, count as u64),
            EventRange::AfterVersion(version) => (version.max(oldest), u64::MAX),
            EventRange::Page { after, limit } => {
                let page = page_of(ranges, after.max(oldest), limit);
                return self.events((connection, content), row, &page, EventRange::All);
            }
            EventRange::Since(time) => (self.last_before(connection, (oldest, ranges), time)?, u64::MAX),
        };
        let mut events = Vec::new();
        for piece in pieces(ranges, after, left) {
            self.read_chain((connection, content), row, piece, &mut events)?;
        }
        events.reverse();
        Ok(events)
    }

    /// Adds the events after a version, up to another, newest first: a chain that is checked at both ends.
    fn read_chain(
        &self,
        (connection, content): (&Connection, ContentKey<'_>),
        row: &SqliteSessionRow,
        (after, last): (u64, u64),
        events: &mut Vec<CommittedEvent>,
    ) -> Result<(), SessionError> {
        let expected = self.digest(connection, row, last)?;
        let mut chain = EventChain::ending(last, expected);
        for segment in &self.lineage {
            let rows = segment.rows_between(after, last);
            segment_events((connection, content), rows, &mut chain, events)?;
        }
        chain.end(after, self.digest(connection, row, after)?)
    }

    /// The sizes of the oldest events after a version, up to a number, with their versions. A body is read only for its
    /// size in memory.
    pub(super) fn sizes(
        &self,
        (connection, content): (&Connection, ContentKey<'_>),
        (after, limit): (u64, usize),
        in_memory: bool,
    ) -> Result<Vec<(u64, u64)>, SessionError> {
        let failed = failed("read sizes of events");
        // NOTE: the number of bytes needs no page of the body; the number of values in it needs all of them.
        let columns = if in_memory { "number, body, id" } else { "number, octet_length(body)" };
        let mut query = connection
            .prepare_cached(&format!(
                "SELECT {columns} FROM stepfold_events WHERE number > ?1 AND number <= ?2 ORDER BY number LIMIT ?3"
            ))
            .map_err(failed)?;
        let size = |row: &Row<'_>| match row.get_ref(1)? {
            ValueRef::Text(text) => {
                let (text, id) = (String::from_utf8_lossy(text), row.get_ref(2)?.as_str()?);
                Ok(content.open(Place::event(id), &text).map(|text| memory_size::of_body(&text)))
            }
            _ => row.get(1).map(|bytes| Ok(content.opened_bytes(from_db(bytes)))),
        };
        let mut sizes = Vec::new();
        for segment in self.lineage.iter().rev() {
            let (from, to) = segment.rows_after(after);
            if from < to {
                let left = to_db((limit - sizes.len()) as u64);
                let rows = query.query_map([from, to, left], |row| Ok((version_of(row.get(0)?), size(row)?)));
                for row in rows.map_err(failed)? {
                    let (version, size) = row.map_err(failed)?;
                    sizes.push((version, size?));
                }
            }
        }
        Ok(sizes)
    }

    /// Calls `each` with the body of each of the session's own events after a version, in order: each checked, none
    /// omitted.
    pub(super) fn bodies(
        &self,
        (connection, content): (&Connection, ContentKey<'_>),
        row: &SqliteSessionRow,
        after: u64,
        mut each: impl FnMut(&str) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let failed = failed("read writes of events");
        let mut query = connection
            .prepare_cached(
                "SELECT number, id, at, body, seal FROM stepfold_events WHERE number > ?1 AND number <= ?2 \
                 ORDER BY number",
            )
            .map_err(failed)?;
        let (mut version, mut digest) = (after, self.digest(connection, row, after)?);
        let bounds = [row_number(row.number, after), row_number(row.number, row.version)];
        let mut rows = query.query(bounds).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let read = || -> rusqlite::Result<(i64, String, i64, EventSeal)> {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?))
            };
            let (number, id, at, seal) = read().map_err(failed)?;
            let body = row.get_ref(3).map_err(failed)?;
            let body = body.as_str().map_err(|error| failed(error.into()))?;
            version += 1;
            if version_of(number) != version {
                return Err(missing_event(version));
            }
            digest =
                ContentDigest::new(version, &id, Timestamp::from_micros(at), body, seal.form).after(digest);
            if digest != seal.state.head {
                let what = format!("event of version {version}");
                return Err(SessionError::damaged(what, "digest mismatch"));
            }
            each(&content.open(Place::event(&id), body)?)?;
        }
        if version == row.version { Ok(()) } else { Err(missing_event(version + 1)) }
    }

    /// The version of the newest event that is older than `time`, of those of these ranges of versions.
    fn last_before(
        &self,
        connection: &Connection,
        (oldest, ranges): (u64, &[(u64, u64)]),
        time: Timestamp,
    ) -> Result<u64, SessionError> {
        let failed = failed("find events by their time");
        let mut query = connection
            .prepare_cached(
                "SELECT number FROM stepfold_events WHERE number > ?1 AND number <= ?2 AND at < ?3 \
                 ORDER BY number DESC LIMIT 1",
            )
            .map_err(failed)?;
        for (from, to) in self.rows(oldest, ranges) {
            let bounds = params![from, to, time.as_micros()];
            let found: Option<i64> = query.query_row(bounds, |row| row.get(0)).optional().map_err(failed)?;
            if let Some(number) = found {
                return Ok(version_of(number));
            }
        }
        Ok(oldest)
    }
}

fn lineage_of(connection: &Connection, row: &SessionRecord) -> Result<Vec<HistorySegment>, SessionError> {
    let lineage = segments_of(connection, row.number)?;
    seal::compare(seal::of_lineage(&lineage), row.lineage, || "history of a session".to_owned())?;
    Ok(lineage)
}

/// The segments of the history of a session, newest first, not checked.
pub(super) fn segments_of(connection: &Connection, number: i64) -> Result<Vec<HistorySegment>, SessionError> {
    let failed = failed("read the history of a session");
    let mut query = connection
        .prepare_cached(
            "SELECT stream, after, upto FROM stepfold_lineage WHERE number = ?1 ORDER BY after DESC, upto DESC",
        )
        .map_err(failed)?;
    let segments = query.query_map([number], |row| {
        Ok(HistorySegment { stream: row.get(0)?, after: from_db(row.get(1)?), upto: from_db(row.get(2)?) })
    });
    segments.and_then(Iterator::collect).map_err(failed)
}

/// The visible versions of a session at a version, given the newest rewind up to it.
pub(super) fn visible_at(
    connection: &Connection,
    number: i64,
    version: u64,
    newest: u64,
) -> Result<VisibleVersions, SessionError> {
    if newest == 0 {
        return Ok(VisibleVersions::at(version, &[]));
    }
    let rewinds = rewinds_at(connection, number, version)?.counting(newest)?;
    Ok(VisibleVersions::at(version, &rewinds))
}

/// The visible rewinds of a session at a version, and the newest one of each segment of its history.
fn rewinds_at(connection: &Connection, number: i64, version: u64) -> Result<RewindChain, SessionError> {
    read_rewinds(
        connection,
        "WITH RECURSIVE w (stream, version, target, previous, visible, checksum) AS ( \
         SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum \
         FROM stepfold_lineage l CROSS JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = \
         (SELECT MAX(n.version) FROM stepfold_rewinds n \
         WHERE n.stream = l.stream AND n.version > l.after AND n.version <= MIN(l.upto, ?2)) \
         WHERE l.number = ?1 UNION \
         SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum FROM w \
         CROSS JOIN stepfold_lineage l ON l.number = ?1 AND w.visible > l.after AND w.visible <= l.upto \
         CROSS JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = w.visible) \
         SELECT stream, version, target, previous, visible, checksum FROM w",
        &[&number, &to_db(version)],
    )
}

/// All rewinds of a session.
pub(super) fn all_rewinds(connection: &Connection, number: i64) -> Result<RewindChain, SessionError> {
    read_rewinds(
        connection,
        "SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum \
         FROM stepfold_lineage l CROSS JOIN stepfold_rewinds r \
         ON r.stream = l.stream AND r.version > l.after AND r.version <= l.upto WHERE l.number = ?1",
        &[&number],
    )
}

fn read_rewinds(
    connection: &Connection,
    query: &str,
    given: &[&dyn rusqlite::ToSql],
) -> Result<RewindChain, SessionError> {
    let failed = failed("read the history of a session");
    let mut query = connection.prepare_cached(query).map_err(failed)?;
    let rows = query.query_map(given, read_rewind);
    rows.and_then(Iterator::collect).map_err(failed)
}

/// Reads `stream, version, target, previous, visible, checksum`.
pub(super) fn read_rewind(row: &Row<'_>) -> rusqlite::Result<RewindRow> {
    Ok(RewindRow {
        stream: row.get(0)?,
        rewound: RewindMark { version: from_db(row.get(1)?), to: from_db(row.get(2)?) },
        previous: from_db(row.get(3)?),
        visible: from_db(row.get(4)?),
        checksum: row.get(5)?,
    })
}

/// Adds the events of some rows, newest first.
fn segment_events(
    (connection, content): (&Connection, ContentKey<'_>),
    (from, to): (i64, i64),
    chain: &mut EventChain,
    events: &mut Vec<CommittedEvent>,
) -> Result<(), SessionError> {
    let failed = failed("read events");
    let mut query = connection
        .prepare_cached(
            "SELECT number, id, at, body, seal FROM stepfold_events WHERE number > ?1 AND number <= ?2 \
             ORDER BY number DESC",
        )
        .map_err(failed)?;
    let mut rows = query.query([from, to]).map_err(failed)?;
    // NOTE: the numbers of a session's events have no gaps, so their difference is the number of rows.
    if usize::try_from(to - from).is_ok_and(|rows| rows >= PARALLEL_ROWS) {
        return read_in_parallel(&mut rows, content, chain, events);
    }
    let mut recent = RecentTexts::default();
    while let Some(row) = rows.next().map_err(failed)? {
        let row = BorrowedEventRow::read(row).map_err(failed)?;
        row.open(&mut recent, content, None).add_to(chain, events)?;
    }
    Ok(())
}

/// The row of an event.
struct BorrowedEventRow<'a> {
    version: u64,
    id: &'a str,
    at: Timestamp,
    body: &'a str,
    /// The digest of the history up to the event.
    head: Digest,
    form: ContentForm,
}

impl<'a> BorrowedEventRow<'a> {
    /// Reads `number, id, at, body, seal`.
    fn read(row: &'a Row<'_>) -> rusqlite::Result<Self> {
        let (number, at): (i64, i64) = (row.get(0)?, row.get(2)?);
        let (id, body) = (row.get_ref(1)?.as_str()?, row.get_ref(3)?.as_str()?);
        let seal: EventSeal = row.get(4)?;
        let (version, at) = (version_of(number), Timestamp::from_micros(at));
        Ok(BorrowedEventRow { version, id, at, body, head: seal.state.head, form: seal.form })
    }

    /// `before`: the digest of the history before it, if it is known.
    fn open(
        &self,
        recent: &mut RecentTexts,
        content_key: ContentKey<'_>,
        before: Option<Digest>,
    ) -> OpenedEvent {
        let body = StoredBody::parse(self.body);
        let content = ContentDigest::of((self.version, self.id, self.at), &body, self.form);
        let content = before.map_or(content, |before| content.expecting(before));
        let body = content_key.open_body(self.id, body);
        let event = EventId::new(self.id)
            .and_then(|id| Event::from_body_sharing(recent, id, self.at, &body?))
            .map(Arc::new);
        OpenedEvent { version: self.version, head: self.head, content, event }
    }
}

/// An event that was read, before its place in the chain is checked.
struct OpenedEvent {
    version: u64,
    head: Digest,
    content: ContentDigest,
    event: Result<Arc<Event>, SessionError>,
}

impl OpenedEvent {
    fn add_to(self, chain: &mut EventChain, events: &mut Vec<CommittedEvent>) -> Result<(), SessionError> {
        chain.add(self.version, self.content, self.head)?;
        events.push(CommittedEvent { version: self.version, event: self.event? });
        Ok(())
    }
}

/// The number of rows from which several threads read a history. Most of the time goes into JSON and digests; below this
/// number a thread costs more than it saves.
const PARALLEL_ROWS: usize = 1_024;

/// The threads that read a long history, this one included.
const PARALLEL_THREADS: usize = 4;

/// The bytes of the texts of a batch.
const BATCH_BYTES: usize = 32 * 1024;

/// Adds the events of many rows, newest first: this thread reads the rows, and others open them meanwhile.
fn read_in_parallel(
    rows: &mut Rows<'_>,
    content: ContentKey<'_>,
    chain: &mut EventChain,
    events: &mut Vec<CommittedEvent>,
) -> Result<(), SessionError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(PARALLEL_THREADS);
    // NOTE: threads of their own, not those of tools that compute: a tool that computes for a minute must not delay reading
    // a session (docs/decisions/sessions.md).
    let (sender, receiver) = mpsc::sync_channel::<(usize, RowBatch)>(threads);
    let receiver = Mutex::new(receiver);
    let next = || receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let open_all = || -> Vec<(usize, Vec<OpenedEvent>)> {
        std::iter::from_fn(next).map(|(place, batch)| (place, batch.open(content))).collect()
    };
    let mut opened = Vec::new();
    let read = thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, open_all).ok()).collect();
        let mut read = Ok(());
        for place in 0.. {
            let mut batch = RowBatch::default();
            read = batch.fill(rows);
            let is_last = read.is_err() || !batch.is_full();
            // NOTE: a full channel means that the other threads are busy; this one opens the batch, which also bounds the
            // memory of batches in flight.
            if let Err(TrySendError::Full((place, batch)) | TrySendError::Disconnected((place, batch))) =
                sender.try_send((place, batch))
            {
                opened.push((place, batch.open(content)));
            }
            if is_last {
                break;
            }
        }
        drop(sender);
        opened.extend(open_all());
        for other in others {
            opened.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        read
    });
    // NOTE: the chain is checked at the end and in order, with the same errors as in a short history.
    opened.sort_unstable_by_key(|(place, _)| *place);
    opened.into_iter().flat_map(|(_, batch)| batch).try_for_each(|event| event.add_to(chain, events))?;
    // NOTE: reported after the chain of the newer events is checked, so that long and short histories give the same error.
    read.map_err(failed("read events"))
}

/// Rows that one thread opens.
#[derive(Default)]
struct RowBatch {
    rows: Vec<BatchedRow>,
    /// The ids and bodies.
    texts: String,
}

/// A row, with the ends of its texts.
struct BatchedRow {
    version: u64,
    id: usize,
    at: Timestamp,
    body: usize,
    head: Digest,
    form: ContentForm,
}

impl RowBatch {
    /// Adds rows until it is full.
    fn fill(&mut self, rows: &mut Rows<'_>) -> rusqlite::Result<()> {
        self.texts.reserve(BATCH_BYTES + BATCH_BYTES / 4);
        while !self.is_full()
            && let Some(row) = rows.next()?
        {
            let BorrowedEventRow { version, id, at, body, head, form } = BorrowedEventRow::read(row)?;
            self.texts.push_str(id);
            let id = self.texts.len();
            self.texts.push_str(body);
            self.rows.push(BatchedRow { version, id, at, body: self.texts.len(), head, form });
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.texts.len() >= BATCH_BYTES
    }

    fn open(&self, content: ContentKey<'_>) -> Vec<OpenedEvent> {
        let (mut recent, mut start) = (RecentTexts::default(), 0);
        // NOTE: rows are newest first, so the next row has the digest of the history before this event.
        let before = self.rows.iter().skip(1).map(|row| Some(row.head)).chain([None]);
        let open = |(row, before): (&BatchedRow, _)| {
            let (id, body) = (&self.texts[start..row.id], &self.texts[row.id..row.body]);
            start = row.body;
            let &BatchedRow { version, at, head, form, .. } = row;
            BorrowedEventRow { version, id, at, body, head, form }.open(&mut recent, content, before)
        };
        self.rows.iter().zip(before).map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::SqliteStore;

    /// One that was read by a scan would cost more with each event.
    #[test]
    fn a_session_and_an_event_are_found_by_indexes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {OPENED}")).unwrap();
        let steps = query.query_map(["app", "user", "s", "e"], |row| row.get(3)).unwrap();
        let steps: Vec<String> = steps.collect::<Result<_, _>>().unwrap();
        assert!(steps.len() > 4 && steps.iter().all(|step| !step.starts_with("SCAN")), "{steps:?}");
    }
}
