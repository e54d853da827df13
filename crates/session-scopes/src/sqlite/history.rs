//! What a session's rows are: its own, and those that it shares with what it was forked from.

use std::sync::Arc;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::failed;
use super::trail::{row_number, version_of};
use crate::changes::ScopeVersions;
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event};
use crate::ids::{EventId, LifeId, SessionId, SessionKey, WorkerId};
use crate::rows::{Segment, from_db};
use crate::session::{Parent, Rewound, Session, Visible};
use crate::store::{EventRange, Fence};
use crate::time::Timestamp;

/// The row of a session.
#[derive(Debug)]
pub(super) struct SessionRow {
    pub(super) number: i64,
    pub(super) version: u64,
    pub(super) oldest: u64,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    parent: Option<(String, u64)>,
    life: String,
    pub(super) fence: Fence,
    /// The position of the newest entry that waits in the inbox.
    pub(super) inbox: u64,
}

/// The columns of a session, as `s`, that [`SessionRow::read`] expects behind the first seven.
macro_rules! work_columns {
    () => {
        "s.life, s.claims, s.claim_owner, s.claim_expires, s.inbox"
    };
}
pub(super) use work_columns;

impl SessionRow {
    /// Reads `number, version, oldest, created, updated, parent_id, parent_version` and the [`work_columns`].
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let parent: Option<String> = row.get(5)?;
        let parent_version: Option<i64> = row.get(6)?;
        Ok(SessionRow {
            number: row.get(0)?,
            version: from_db(row.get(1)?),
            oldest: from_db(row.get(2)?),
            created: Timestamp::from_micros(row.get(3)?),
            updated: Timestamp::from_micros(row.get(4)?),
            parent: parent.zip(parent_version.map(from_db)),
            life: row.get(7)?,
            fence: Fence::stored(row.get(0)?, row.get(8)?, holder(row)?),
            inbox: from_db(row.get(11)?),
        })
    }

    /// The row of a session, with the version and the time of its newest event.
    pub(super) fn find(connection: &Connection, key: &SessionKey) -> Result<Option<Self>, SessionError> {
        let failed = failed("find a session");
        let mut query = connection
            .prepare_cached(concat!(
                "SELECT s.number, s.version, s.oldest, s.created, s.updated, s.parent_id, s.parent_version, ",
                work_columns!(),
                ", e.number, e.at FROM stepfold_sessions s LEFT JOIN stepfold_events e ON e.number = \
                 (SELECT n.number FROM stepfold_events n WHERE n.number > s.number << 32 \
                 AND n.number < (s.number + 1) << 32 ORDER BY n.number DESC LIMIT 1) \
                 WHERE s.app = ?1 AND s.user = ?2 AND s.id = ?3",
            ))
            .map_err(failed)?;
        let parts = params![key.app.as_str(), key.user.as_str(), key.id.as_str()];
        let read = |row: &Row<'_>| {
            let mut found = SessionRow::read(row)?;
            let newest: Option<i64> = row.get(12)?;
            if let Some(version) = newest.map(version_of).filter(|version| *version > found.version) {
                found.version = version;
                found.updated = Timestamp::from_micros(row.get(13)?);
            }
            Ok(found)
        };
        query.query_row(parts, read).optional().map_err(failed)
    }

    /// The row of a session that has to be there.
    pub(super) fn get(connection: &Connection, key: &SessionKey) -> Result<Self, SessionError> {
        SessionRow::find(connection, key)?.ok_or_else(|| SessionError::not_found(key))
    }

    /// The session without values and events.
    pub(super) fn session(
        self,
        key: SessionKey,
        visible: Visible,
        now: Option<Timestamp>,
        scopes: ScopeVersions,
    ) -> Result<Session, SessionError> {
        let parent = self
            .parent
            .map(|(id, version)| Ok::<_, SessionError>(Parent { id: SessionId::new(id)?, version }));
        Ok(Session {
            key,
            life: LifeId::new(self.life)?,
            version: self.version,
            created: self.created,
            updated: self.updated,
            claim: self.fence.as_of(now),
            inbox: self.inbox,
            parent: parent.transpose()?,
            oldest: self.oldest,
            visible,
            scopes,
            values: None,
            events: Vec::new(),
        })
    }
}

/// The holder of a claim. An owner that is stored has the form of one.
fn holder(row: &Row<'_>) -> rusqlite::Result<Option<(WorkerId, Timestamp)>> {
    let Some(owner) = row.get::<_, Option<Arc<str>>>(9)? else { return Ok(None) };
    let invalid = |error| rusqlite::Error::FromSqlConversionFailure(9, Type::Text, Box::new(error));
    Ok(Some((WorkerId::new(owner).map_err(invalid)?, Timestamp::from_micros(row.get(10)?))))
}

impl Segment {
    /// The rows of events of this part behind a version: those above the first number, up to the second.
    pub(super) fn rows_after(&self, version: u64) -> (i64, i64) {
        (row_number(self.stream, version.max(self.after)), row_number(self.stream, self.upto))
    }
}

/// The history of a session.
#[derive(Debug)]
pub(super) struct History {
    /// Newest first.
    pub(super) lineage: Vec<Segment>,
    pub(super) rewinds: Vec<Rewound>,
}

impl History {
    pub(super) fn read(connection: &Connection, number: i64) -> Result<Self, SessionError> {
        let failed = failed("read the history of a session");
        let mut query = connection
            .prepare_cached(
                "SELECT stream, after, upto FROM stepfold_lineage WHERE number = ?1 ORDER BY after DESC, upto DESC",
            )
            .map_err(failed)?;
        let segments = query.query_map([number], |row| {
            Ok(Segment { stream: row.get(0)?, after: from_db(row.get(1)?), upto: from_db(row.get(2)?) })
        });
        let lineage: Vec<Segment> = segments.and_then(Iterator::collect).map_err(failed)?;
        let mut query = connection
            .prepare_cached("SELECT version, target FROM stepfold_rewinds WHERE stream = ?1 ORDER BY version")
            .map_err(failed)?;
        let mut rewinds = Vec::new();
        for segment in lineage.iter().rev() {
            let rows = query.query_map([segment.stream], |row| {
                Ok(Rewound { version: from_db(row.get(0)?), to: from_db(row.get(1)?) })
            });
            let found: Vec<Rewound> = rows.and_then(Iterator::collect).map_err(failed)?;
            rewinds.extend(found.into_iter().filter(|rewound| segment.contains(rewound.version)));
        }
        Ok(History { lineage, rewinds })
    }

    /// The rewinds of a session, where nothing else of its history is wanted.
    pub(super) fn rewinds_of(connection: &Connection, number: i64) -> Result<Vec<Rewound>, SessionError> {
        let failed = failed("read the history of a session");
        let mut query = connection
            .prepare_cached(
                "SELECT r.version, r.target FROM stepfold_lineage l JOIN stepfold_rewinds r \
                 ON r.stream = l.stream AND r.version > l.after AND r.version <= l.upto \
                 WHERE l.number = ?1 ORDER BY r.version",
            )
            .map_err(failed)?;
        let rows = query.query_map([number], |row| {
            Ok(Rewound { version: from_db(row.get(0)?), to: from_db(row.get(1)?) })
        });
        rows.and_then(Iterator::collect).map_err(failed)
    }

    /// The number of the row of an event.
    pub(super) fn row_of(&self, version: u64) -> Option<i64> {
        let segment = self.lineage.iter().find(|segment| segment.contains(version))?;
        Some(row_number(segment.stream, version))
    }

    /// Events of the history, in order.
    pub(super) fn events(
        &self,
        connection: &Connection,
        oldest: u64,
        range: EventRange,
    ) -> Result<Vec<CommittedEvent>, SessionError> {
        let (after, limit) = match range {
            EventRange::None => return Ok(Vec::new()),
            EventRange::All => (oldest, usize::MAX),
            EventRange::Last(count) => (oldest, count),
            EventRange::AfterVersion(version) => (version.max(oldest), usize::MAX),
            EventRange::Since(time) => (self.last_before(connection, oldest, time)?, usize::MAX),
        };
        let failed = failed("read events");
        let mut query = connection
            .prepare_cached(
                "SELECT number, id, at, body FROM stepfold_events WHERE number > ?1 AND number <= ?2 \
                 ORDER BY number DESC LIMIT ?3",
            )
            .map_err(failed)?;
        let mut events = Vec::new();
        for segment in &self.lineage {
            let left = i64::try_from(limit - events.len()).unwrap_or(i64::MAX);
            let (from, to) = segment.rows_after(after);
            let mut rows = query.query([from, to, left]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let version = version_of(row.get(0).map_err(failed)?);
                let id: Arc<str> = row.get(1).map_err(failed)?;
                let at = Timestamp::from_micros(row.get(2).map_err(failed)?);
                let body = row.get_ref(3).map_err(failed)?;
                let body = body.as_str().map_err(|error| failed(error.into()))?;
                let event = Event::from_body(EventId::new(id)?, at, body)?;
                events.push(CommittedEvent { version, event: event.into() });
            }
        }
        events.reverse();
        Ok(events)
    }

    /// The version of the newest event that is older than `time`.
    fn last_before(
        &self,
        connection: &Connection,
        oldest: u64,
        time: Timestamp,
    ) -> Result<u64, SessionError> {
        let failed = failed("find events by their time");
        let mut query = connection
            .prepare_cached(
                "SELECT number FROM stepfold_events WHERE number > ?1 AND number <= ?2 AND at < ?3 \
                 ORDER BY number DESC LIMIT 1",
            )
            .map_err(failed)?;
        for segment in &self.lineage {
            let (from, to) = segment.rows_after(oldest);
            let bounds = params![from, to, time.as_micros()];
            let found: Option<i64> = query.query_row(bounds, |row| row.get(0)).optional().map_err(failed)?;
            if let Some(number) = found {
                return Ok(version_of(number));
            }
        }
        Ok(oldest)
    }
}
