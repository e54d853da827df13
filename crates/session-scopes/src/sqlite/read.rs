//! The operations that change nothing, each inside one read transaction: what they see is of one moment.

use rusqlite::params;

use super::cells::{find_scope, session_values, shared_values};
use super::error::failed;
use super::history::{History, SESSION_COLUMNS, SessionRow};
use super::threads::Desk;
use crate::error::SessionError;
use crate::ids::{AppId, SessionId, SessionKey, UserId};
use crate::scope::ByScope;
use crate::session::{Session, Values, Visible};
use crate::store::{Cursor, EventRange, GetSession, ListSessions, ScopeKey, SessionPage};
use crate::time::Timestamp;

pub(super) fn get(desk: &mut Desk, request: &GetSession) -> Result<Session, SessionError> {
    let row = SessionRow::get(&desk.connection, &request.key)?;
    session(desk, row, request.key.clone(), request.events, request.state)
}

/// A session, as much of it as is asked for.
fn session(
    desk: &mut Desk,
    row: SessionRow,
    key: SessionKey,
    events: EventRange,
    state: bool,
) -> Result<Session, SessionError> {
    let (number, oldest) = (row.number, row.oldest);
    if !state && events == EventRange::None {
        let visible = Visible::at(row.version, &History::rewinds_of(&desk.connection, number)?);
        return row.session(key, visible);
    }
    let history = History::read(&desk.connection, number)?;
    let visible = Visible::at(row.version, &history.rewinds);
    let values = if state {
        Some(ByScope {
            app: shared(desk, &key.app, None)?,
            user: shared(desk, &key.app, Some(&key.user))?,
            session: session_values(desk, number, &history, &visible)?,
        })
    } else {
        None
    };
    let events = history.events(&desk.connection, oldest, events)?;
    Ok(Session { values, events, ..row.session(key, visible)? })
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
    let mut rows: Vec<(SessionRow, String)> = {
        let query = format!(
            "SELECT {SESSION_COLUMNS}, id FROM stepfold_sessions WHERE app = ?1 AND user = ?2 \
             AND (updated, number) < (?3, ?4) ORDER BY updated DESC, number DESC LIMIT ?5"
        );
        let mut query = desk.connection.prepare_cached(&query).map_err(failed)?;
        let bounds =
            params![request.app.as_str(), request.user.as_str(), updated.as_micros(), number, limit + 1];
        let rows = query.query_map(bounds, |row| Ok((SessionRow::read(row)?, row.get(7)?)));
        rows.and_then(Iterator::collect).map_err(failed)?
    };
    let is_last = rows.len() <= request.limit;
    rows.truncate(request.limit);
    let next = rows.last().filter(|_| !is_last).map(|(row, _)| Cursor::behind(row.updated, row.number));
    let sessions = rows.into_iter().map(|(row, id)| {
        let id = SessionId::new(id)?;
        let key = SessionKey { app: request.app.clone(), user: request.user.clone(), id };
        session(desk, row, key, request.events, request.state)
    });
    Ok(SessionPage { sessions: sessions.collect::<Result<_, _>>()?, next })
}
