//! The operations that change nothing, each inside one read transaction: what they see is of one moment.

use std::collections::{BTreeSet, HashMap};

use rusqlite::params;

use super::cells::{find_scope, session_values, session_values_of, shared_values, shared_values_of};
use super::changes::{ScopeRow, Scopes, session_keys};
use super::error::failed;
use super::history::{History, SessionRow, work_columns};
use super::threads::Desk;
use crate::error::SessionError;
use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::rows::from_db;
use crate::scope::{ByScope, Scope};
use crate::session::{Rewound, Session, Values, Visible};
use crate::store::{Cursor, EventRange, GetSession, ListSessions, ScopeKey, SessionPage};
use crate::time::Timestamp;

pub(super) fn get(desk: &mut Desk, request: &GetSession) -> Result<Session, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    let scopes = Scopes::read(&desk.connection, &request.key)?;
    session(desk, row, &scopes, request)
}

/// A session, as much of it as is asked for.
fn session(
    desk: &mut Desk,
    row: SessionRow,
    scopes: &Scopes,
    request: &GetSession,
) -> Result<Session, SessionError> {
    let (number, oldest, key, events) = (row.number, row.oldest, request.key.clone(), request.events);
    if !request.state && events == EventRange::None {
        let visible = Visible::at(row.version, &History::rewinds_of(&desk.connection, number)?);
        return row.session(key, visible, request.now, scopes.versions());
    }
    let history = History::read(&desk.connection, number)?;
    let visible = Visible::at(row.version, &history.rewinds);
    let values = request.state.then(|| values(desk, &row, &history, scopes, request)).transpose()?;
    let events = history.events(&desk.connection, oldest, events)?;
    Ok(Session { values, events, ..row.session(key, visible, request.now, scopes.versions())? })
}

fn values(
    desk: &mut Desk,
    row: &SessionRow,
    history: &History,
    scopes: &Scopes,
    request: &GetSession,
) -> Result<ByScope<Values>, SessionError> {
    let changed = match request.since {
        Some(seen) => session_keys(&desk.connection, row, history, seen.version)?,
        None => None,
    };
    let session = match request.looked_up(Scope::Session, changed) {
        Some(keys) => session_values_of(desk, row.number, keys)?,
        None => session_values(desk, row.number)?,
    };
    let seen = request.since.map(|seen| seen.scopes);
    Ok(ByScope {
        app: shared_asked(desk, scopes.app, request, Scope::App, seen.map(|seen| seen.app))?,
        user: shared_asked(desk, scopes.user, request, Scope::User, seen.map(|seen| seen.user))?,
        session,
    })
}

/// Those values of a shared scope that a request asks for.
fn shared_asked(
    desk: &mut Desk,
    row: Option<ScopeRow>,
    request: &GetSession,
    scope: Scope,
    seen: Option<u64>,
) -> Result<Values, SessionError> {
    let changed = match (row, seen) {
        (Some(row), Some(version)) => row.keys(&desk.connection, version)?,
        // Nobody wrote to it.
        (None, Some(0)) => Some(BTreeSet::new()),
        _ => None,
    };
    match (row, request.looked_up(scope, changed)) {
        (Some(row), Some(keys)) => shared_values_of(desk, row.scope, keys),
        (Some(row), None) => shared_values(desk, row.scope),
        (None, Some(keys)) => Ok(Values::of_keys(keys.into_iter().map(|key| (key, None)))),
        (None, None) => Ok(Values::default()),
    }
}

fn shared(desk: &mut Desk, app: &AppId, user: Option<&UserId>) -> Result<Values, SessionError> {
    match find_scope(desk, app, user)? {
        Some(scope) => shared_values(desk, scope),
        None => Ok(Values::default()),
    }
}

pub(super) fn read_scope(desk: &mut Desk, scope: &ScopeKey) -> Result<Values, SessionError> {
    let (app, user) = scope.parts();
    shared(desk, app, user)
}

pub(super) fn list(desk: &mut Desk, request: &ListSessions) -> Result<SessionPage, SessionError> {
    let failed = failed("list sessions");
    let after = request.after.as_ref().map(Cursor::position).transpose()?;
    let (updated, number) = after.unwrap_or((Timestamp::from_micros(i64::MAX), i64::MAX));
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX - 1);
    let mut rows: Vec<(SessionRow, SessionId)> = {
        let mut query = desk
            .connection
            .prepare_cached(concat!(
                "SELECT r.number, r.version, s.oldest, s.created, r.updated, s.parent_id, s.parent_version, ",
                work_columns!(),
                ", s.id \
                 FROM stepfold_recent r CROSS JOIN stepfold_sessions s ON s.number = r.number \
                 WHERE r.app = ?1 AND r.user = ?2 AND (r.updated, r.number) < (?3, ?4) \
                 ORDER BY r.updated DESC, r.number DESC LIMIT ?5",
            ))
            .map_err(failed)?;
        let bounds =
            params![request.app.as_str(), request.user.as_str(), updated.as_micros(), number, limit + 1];
        let rows = query.query_map(bounds, |row| Ok((SessionRow::read(row)?, row.get::<_, String>(12)?)));
        let rows: Vec<_> = rows.and_then(Iterator::collect).map_err(failed)?;
        let with_id = |(row, id): (SessionRow, String)| Ok::<_, SessionError>((row, SessionId::new(id)?));
        rows.into_iter().map(with_id).collect::<Result<_, _>>()?
    };
    let is_last = rows.len() <= request.limit;
    rows.truncate(request.limit);
    let wants_more = request.state || request.events != EventRange::None;
    let oldest = rows.last().map(|(row, _)| (row.updated, row.number));
    let mut rewinds = match oldest {
        Some(oldest) if !wants_more => rewinds_of(desk, request, (updated, number), oldest)?,
        _ => HashMap::new(),
    };
    let next = oldest.filter(|_| !is_last).map(|(updated, number)| Cursor::behind(updated, number));
    let with_id = |id| SessionKey { app: request.app.clone(), user: request.user.clone(), id };
    let scopes = match rows.first() {
        Some((_, id)) => Scopes::read(&desk.connection, &with_id(id.clone()))?,
        None => Scopes::default(),
    };
    let sessions = rows.into_iter().map(|(row, id)| {
        let key = with_id(id);
        if wants_more {
            return session(desk, row, &scopes, &request.get(key));
        }
        let rewinds = rewinds.remove(&row.number).unwrap_or_default();
        let visible = Visible::at(row.version, &rewinds);
        row.session(key, visible, request.now, scopes.versions())
    });
    Ok(SessionPage { sessions: sessions.collect::<Result<_, _>>()?, next })
}

/// The rewinds of all sessions of a page, from its `newest` (which is not on it) to its `oldest`.
fn rewinds_of(
    desk: &Desk,
    request: &ListSessions,
    newest: (Timestamp, i64),
    oldest: (Timestamp, i64),
) -> Result<HashMap<i64, Vec<Rewound>>, SessionError> {
    let failed = failed("list sessions");
    let mut query = desk
        .connection
        .prepare_cached(
            "SELECT l.number, w.version, w.target FROM stepfold_recent r \
             CROSS JOIN stepfold_lineage l ON l.number = r.number CROSS JOIN stepfold_rewinds w \
             ON w.stream = l.stream AND w.version > l.after AND w.version <= l.upto \
             WHERE r.app = ?1 AND r.user = ?2 AND (r.updated, r.number) < (?3, ?4) \
             AND (r.updated, r.number) >= (?5, ?6)",
        )
        .map_err(failed)?;
    let (app, user) = (request.app.as_str(), request.user.as_str());
    let bounds = params![app, user, newest.0.as_micros(), newest.1, oldest.0.as_micros(), oldest.1];
    let mut rows = query.query(bounds).map_err(failed)?;
    let mut found: HashMap<i64, Vec<Rewound>> = HashMap::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let (version, to): (i64, i64) =
            row.get(1).and_then(|version| Ok((version, row.get(2)?))).map_err(failed)?;
        let number: i64 = row.get(0).map_err(failed)?;
        found.entry(number).or_default().push(Rewound { version: from_db(version), to: from_db(to) });
    }
    for rewinds in found.values_mut() {
        rewinds.sort_unstable_by_key(|rewound| rewound.version);
    }
    Ok(found)
}
