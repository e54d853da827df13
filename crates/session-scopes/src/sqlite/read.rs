//! The read operations, each inside one read transaction: all that it reads is of one moment.

use std::collections::HashMap;

use rusqlite::{Row, params};

use super::at_version::PastSession;
use super::changes::{missing_scope, scopes_of, session_keys};
use super::error::failed;
use super::history::{
    OpenedSession, SqliteHistory, SqliteSessionRow, read_rewind, segments_of, visible_at, work_columns,
};
use super::seal;
use super::shared::{self, shared_values, shared_values_of};
use super::threads::SqliteConnection;
use super::values::{session_values, session_values_of};
use crate::error::SessionError;
use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::memory_size::SizeCounter;
use crate::rows::lineage::from_db;
use crate::rows::rewinds::{RewindChain, RewindRow};
use crate::rows::seal::{row_number, version_of};
use crate::rows::shared::{ScopeRow, SharedScopes};
use crate::scope::{ByScope, Scope};
use crate::session::{ScopeValues, Session, VisibleVersions};
use crate::store::{
    EventRange, EventSizes, FindEvent, GetSession, ListSessions, ScopeKey, SessionCursor, SessionPage,
    StateSize,
};
use crate::time::Timestamp;

pub(super) fn get(sqlite: &mut SqliteConnection, request: &GetSession) -> Result<Session, SessionError> {
    let OpenedSession { row, scopes, .. } = OpenedSession::read(&sqlite.connection, &request.key, None)?;
    session(sqlite, row, &scopes, request)
}

pub(super) fn find_event(
    sqlite: &mut SqliteConnection,
    request: &FindEvent,
) -> Result<Option<u64>, SessionError> {
    let opened = OpenedSession::read(&sqlite.connection, &request.key, Some(&request.id))?;
    // NOTE: the row may still exist for a fork, although retention deleted it from this session.
    Ok(opened.event.map(version_of).filter(|version| *version > opened.row.oldest))
}

/// Whether a stream of a session's history has a sealed event. It is asked once for each user who has no key.
pub(super) fn has_sealed_events(
    sqlite: &mut SqliteConnection,
    key: &SessionKey,
) -> Result<bool, SessionError> {
    let failed = failed("find sealed events");
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    for segment in segments_of(&sqlite.connection, row.number)? {
        let range = [row_number(segment.stream, 0), row_number(segment.stream, u64::MAX)];
        let found = sqlite
            .connection
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM stepfold_events WHERE number BETWEEN ?1 AND ?2 AND substr(body, 1, 1) = '~')",
            )
            .and_then(|mut query| query.query_row(range, |row| row.get(0)));
        if found.map_err(failed)? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn event_sizes(
    sqlite: &mut SqliteConnection,
    request: &EventSizes,
) -> Result<Vec<(u64, u64)>, SessionError> {
    let row = SqliteSessionRow::get(&sqlite.connection, &request.key)?;
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let page = (request.after.max(row.oldest), request.limit);
    history.sizes((&sqlite.connection, sqlite.key()), page, request.in_memory)
}

/// The size of the values of a session in memory; once the limit is exceeded, the size counted so far.
pub(super) fn state_size(sqlite: &mut SqliteConnection, request: &StateSize) -> Result<u64, SessionError> {
    let OpenedSession { row, scopes, .. } = OpenedSession::read(&sqlite.connection, &request.key, None)?;
    let version = request.version.unwrap_or(row.version);
    let mut size = SizeCounter { sum: 0, most: request.most };
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let past = PastSession { stream: row.number, cells: row.state.cells, history: &history, version };
    past.add_size(sqlite, &mut size)?;
    for scope in [&scopes.app, &scopes.user] {
        shared::add_size(sqlite, scope, &mut size)?;
    }
    Ok(size.sum)
}

/// The requested parts of a session.
fn session(
    sqlite: &mut SqliteConnection,
    row: SqliteSessionRow,
    scopes: &SharedScopes,
    request: &GetSession,
) -> Result<Session, SessionError> {
    let (key, events) = (request.key.clone(), request.events);
    let version = request.version_in(row.oldest, row.version)?;
    row.check_newest(&sqlite.connection, &key)?;
    if !request.state && events == EventRange::None && version == row.version {
        let visible = visible_at(&sqlite.connection, row.number, version, row.state.rewound)?;
        return row.session(key, visible, request.now, scopes.versions());
    }
    let history = SqliteHistory::read(&sqlite.connection, &row)?;
    let visible = history.visible(&sqlite.connection, &row, version)?;
    let head = Some(history.digest(&sqlite.connection, &row, version)?);
    let values = request.state.then(|| values(sqlite, &row, &history, scopes, request)).transpose()?;
    let ranges = request.event_ranges(&visible, version);
    let events = history.events((&sqlite.connection, sqlite.key()), &row, &ranges, events)?;
    Ok(Session {
        version,
        head,
        values,
        events,
        ..row.session(key, visible, request.now, scopes.versions())?
    })
}

fn values(
    sqlite: &mut SqliteConnection,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
    scopes: &SharedScopes,
    request: &GetSession,
) -> Result<ByScope<ScopeValues>, SessionError> {
    let session = own_values(sqlite, row, history, request)?;
    let seen = request.since.map(|seen| seen.scopes);
    Ok(ByScope {
        app: shared_asked(sqlite, &scopes.app, request, Scope::App, seen.map(|seen| seen.app))?,
        user: shared_asked(sqlite, &scopes.user, request, Scope::User, seen.map(|seen| seen.user))?,
        session,
    })
}

/// The requested ones of its own values.
fn own_values(
    sqlite: &mut SqliteConnection,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
    request: &GetSession,
) -> Result<ScopeValues, SessionError> {
    if let Some(version) = request.version {
        let past = PastSession { stream: row.number, cells: row.state.cells, history, version };
        return past.values(sqlite, request.requested_keys(Scope::Session, None));
    }
    let changed = match request.since {
        Some(seen) => session_keys(sqlite, row, history, seen.version)?,
        None => None,
    };
    match request.requested_keys(Scope::Session, changed) {
        Some(keys) => session_values_of(sqlite, row.number, row.state.cells, keys),
        None => session_values(sqlite, row.number, row.state.cells),
    }
}

/// The requested values of a shared scope.
fn shared_asked(
    sqlite: &mut SqliteConnection,
    row: &ScopeRow,
    request: &GetSession,
    scope: Scope,
    seen: Option<u64>,
) -> Result<ScopeValues, SessionError> {
    let changed = match seen {
        Some(version) => row.keys(&sqlite.connection, version)?,
        None => None,
    };
    let changed_since = changed.as_ref().map(|_| request);
    match request.requested_keys(scope, changed) {
        Some(keys) => shared_values_of(sqlite, (row, scope), keys, changed_since),
        None => shared_values(sqlite, row),
    }
}

pub(super) fn read_scope(
    sqlite: &mut SqliteConnection,
    scope: &ScopeKey,
) -> Result<ScopeValues, SessionError> {
    let (app, user) = scope.parts();
    match ScopeRow::find(&sqlite.connection, app, user)? {
        Some(scope) => shared_values(sqlite, &scope),
        None if has_sessions(sqlite, app, user)? => Err(missing_scope(app, user)),
        None => Ok(ScopeValues::default()),
    }
}

/// Whether there is a session of the app, or of the user.
fn has_sessions(sqlite: &SqliteConnection, app: &AppId, user: Option<&UserId>) -> Result<bool, SessionError> {
    sqlite
        .connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM stepfold_sessions WHERE app = ?1 AND (?2 IS NULL OR user = ?2))",
        )
        .and_then(|mut query| {
            query.query_row([Some(app.as_str()), user.map(UserId::as_str)], |row| row.get(0))
        })
        .map_err(failed("find a session"))
}

pub(super) fn list(
    sqlite: &mut SqliteConnection,
    request: &ListSessions,
) -> Result<SessionPage, SessionError> {
    let failed = failed("list sessions");
    let after = request.after.as_ref().map(SessionCursor::position).transpose()?;
    let (updated, number) = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX - 1);
    let mut rows: Vec<(SqliteSessionRow, SessionId)> = {
        let mut query = sqlite
            .connection
            .prepare_cached(concat!(
                "SELECT s.number, s.version, s.oldest, s.created, s.updated, s.parent_id, s.parent_version, ",
                work_columns!(),
                ", s.seal, s.id, r.updated, r.version, r.checksum, r.number \
                 FROM stepfold_recent r LEFT JOIN stepfold_sessions s ON s.number = r.number \
                 WHERE r.app = ?1 AND r.user = ?2 AND (r.updated, r.number) < (?3, ?4) \
                 AND (NOT ?6 OR r.unfinished) AND instr(r.searched, ?7) > 0 ORDER BY r.updated DESC, r.number DESC LIMIT ?5",
            ))
            .map_err(failed)?;
        let (app, user) = (request.app.as_str(), request.user.as_str());
        let text = request.text.as_deref().unwrap_or_default();
        let bounds = params![app, user, updated.as_micros(), number, limit + 1, request.unfinished, text];
        let rows = query.query_map(bounds, |row| listed(row, request));
        let rows: Vec<_> = rows.and_then(Iterator::collect).map_err(failed)?;
        rows.into_iter().collect::<Result<_, _>>()?
    };
    let is_last = rows.len() <= request.limit;
    rows.truncate(request.limit);
    let wants_more = request.state || request.events != EventRange::None;
    let oldest = rows.last().map(|(row, _)| (row.updated, row.number));
    let mut rewinds = match oldest {
        Some(oldest) if !wants_more => listed_rewinds(sqlite, request, (updated, number), oldest)?,
        _ => HashMap::new(),
    };
    let next = oldest.filter(|_| !is_last).map(|(updated, number)| SessionCursor::after(updated, number));
    let with_id = |id| SessionKey { app: request.app.clone(), user: request.user.clone(), id };
    if rows.is_empty() {
        return Ok(SessionPage { sessions: Vec::new(), next: None });
    }
    let scopes = scopes_of(&sqlite.connection, &request.app, &request.user)?;
    let sessions = rows.into_iter().map(|(row, id)| {
        let key = with_id(id);
        if wants_more {
            let row = SqliteSessionRow::get(&sqlite.connection, &key)?;
            return session(sqlite, row, &scopes, &request.get(key));
        }
        let rewinds = rewinds.remove(&row.number).unwrap_or_default();
        let newest = rewinds.newest();
        let visible = VisibleVersions::at(row.version, &rewinds.counting(newest)?);
        // NOTE: `None`, since a row of the list does not contain the digest of the newest event.
        Ok(Session { head: None, ..row.session(key, visible, request.now, scopes.versions())? })
    });
    Ok(SessionPage { sessions: sessions.collect::<Result<_, _>>()?, next })
}

/// A row of the list: the session, at the version and time of the list entry, and its id.
fn listed(
    row: &Row<'_>,
    request: &ListSessions,
) -> rusqlite::Result<Result<(SqliteSessionRow, SessionId), SessionError>> {
    let (updated, version, checksum, number): (i64, i64, i64, i64) =
        (row.get(17)?, row.get(18)?, row.get(19)?, row.get(20)?);
    let (app, user) = (request.app.as_str(), request.user.as_str());
    let sum = seal::of_recent(app, user, updated, number, version);
    if let Err(error) = seal::compare(sum, checksum, || format!("list of the sessions of {app}/{user}")) {
        return Ok(Err(error));
    }
    let Some(id) = row.get::<_, Option<String>>(16)? else {
        let what = format!("list of the sessions of {app}/{user}");
        return Ok(Err(SessionError::damaged(what, "missing row of a session")));
    };
    let key = match SessionId::new(id) {
        Ok(id) => SessionKey { app: request.app.clone(), user: request.user.clone(), id },
        Err(error) => return Ok(Err(error)),
    };
    let found = SqliteSessionRow::read(row, &key)?;
    Ok(found.map(|found| (found.at(from_db(version), Timestamp::from_micros(updated)), key.id)))
}

/// The rewinds of all sessions of a page that count, from its `newest` (which is not on it) to its `oldest`.
fn listed_rewinds(
    sqlite: &SqliteConnection,
    request: &ListSessions,
    newest: (Timestamp, i64),
    oldest: (Timestamp, i64),
) -> Result<HashMap<i64, RewindChain>, SessionError> {
    let failed = failed("list sessions");
    let mut query = sqlite
        .connection
        .prepare_cached(
            "WITH RECURSIVE w (stream, version, target, previous, visible, checksum, number) AS ( \
             SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, l.number \
             FROM stepfold_recent p CROSS JOIN stepfold_lineage l ON l.number = p.number \
             CROSS JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = \
             (SELECT MAX(n.version) FROM stepfold_rewinds n \
             WHERE n.stream = l.stream AND n.version > l.after AND n.version <= l.upto) \
             WHERE p.app = ?1 AND p.user = ?2 AND (p.updated, p.number) < (?3, ?4) \
             AND (p.updated, p.number) >= (?5, ?6) UNION \
             SELECT r.stream, r.version, r.target, r.previous, r.visible, r.checksum, w.number FROM w \
             CROSS JOIN stepfold_lineage l \
             ON l.number = w.number AND w.visible > l.after AND w.visible <= l.upto \
             CROSS JOIN stepfold_rewinds r ON r.stream = l.stream AND r.version = w.visible) \
             SELECT stream, version, target, previous, visible, checksum, number FROM w",
        )
        .map_err(failed)?;
    let (app, user) = (request.app.as_str(), request.user.as_str());
    let bounds = params![app, user, newest.0.as_micros(), newest.1, oldest.0.as_micros(), oldest.1];
    let mut rows = query.query(bounds).map_err(failed)?;
    let mut found: HashMap<i64, Vec<RewindRow>> = HashMap::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let number: i64 = row.get(6).map_err(failed)?;
        found.entry(number).or_default().push(read_rewind(row).map_err(failed)?);
    }
    Ok(found.into_iter().map(|(number, rows)| (number, rows.into_iter().collect())).collect())
}
