//! Search in the list of sessions.

use rusqlite::{Connection, params};

use super::error::failed;
use super::history::{SqliteHistory, SqliteSessionRow};
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::event::{CommittedEvent, FIRST, ListEntry};
use crate::ids::SessionKey;
use crate::keys::sealer::ContentKey;
use crate::store::{EventRange, GetSession};

/// The list entry of a session according to its events. Sealed messages are not in it.
fn entry_from_events(
    (connection, content): (&Connection, ContentKey<'_>),
    key: &SessionKey,
    row: &SqliteSessionRow,
) -> Result<ListEntry, SessionError> {
    let history = SqliteHistory::read(connection, row)?;
    let visible = history.visible(connection, row, row.version)?;
    let read = |content, events| {
        let request = GetSession { hidden: false, ..GetSession::new(key.clone()).events(events) };
        history.events((connection, content), row, &request.event_ranges(&visible, row.version), events)
    };
    let is_unfinished = match read(content, EventRange::Last(1)) {
        Ok(newest) => newest.last().is_some_and(|newest| newest.event.is_unfinished()),
        // NOTE: retention works without the key of the user: what is stored stays.
        Err(SessionError::Sealed { .. }) => stored_entry(connection, key, row)?.is_unfinished,
        Err(error) => return Err(error),
    };
    let listed_by = |first: &[CommittedEvent]| ListEntry::of(key, first, is_unfinished);
    // NOTE: most sessions begin with the message, so one event is read first.
    let listed = listed_by(&read(ContentKey::Unopened, EventRange::Page { after: 0, limit: 1 })?);
    match listed.has_message() {
        true => Ok(listed),
        false => Ok(listed_by(&read(ContentKey::Unopened, EventRange::Page { after: 0, limit: FIRST })?)),
    }
}

fn write(
    connection: &Connection,
    key: &SessionKey,
    row: &SqliteSessionRow,
    listed: &ListEntry,
) -> Result<(), SessionError> {
    let (app, user, updated) = (key.app.as_str(), key.user.as_str(), row.updated.as_micros());
    connection
        .prepare_cached(
            "UPDATE stepfold_recent SET unfinished = ?5, searched = ?6 \
             WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
        )
        .and_then(|mut update| {
            update.execute(params![app, user, updated, row.number, listed.is_unfinished, listed.searched])
        })
        .map(drop)
        .map_err(failed("write"))
}

/// Updates a session's list entry from its events, after a change that shows or hides earlier ones.
pub(super) fn update_entry(sqlite: &SqliteConnection, key: &SessionKey) -> Result<(), SessionError> {
    let connection = &sqlite.connection;
    let row = SqliteSessionRow::get(connection, key)?;
    write(connection, key, &row, &entry_from_events((connection, sqlite.key()), key, &row)?)
}

/// Updates the entries of all sessions, which were stored before they could be searched.
pub(super) fn update_all_entries(connection: &Connection) -> Result<(), SessionError> {
    let failed = failed("list sessions");
    let mut query = connection.prepare("SELECT app, user, id FROM stepfold_sessions").map_err(&failed)?;
    let mut rows = query.query([]).map_err(&failed)?;
    while let Some(row) = rows.next().map_err(&failed)? {
        let read = || Ok::<_, rusqlite::Error>((row.get(0)?, row.get(1)?, row.get(2)?));
        // NOTE: a damaged session must not stop an upgrade of the file; its readers report the damage.
        let Ok((app, user, id)) = read() else { continue };
        let (app, user, id): (String, String, String) = (app, user, id);
        let Ok(key) = SessionKey::new(app, user, id) else { continue };
        let Ok(row) = SqliteSessionRow::get(connection, &key) else { continue };
        let content = ContentKey::Missing;
        let listed = entry_from_events((connection, content), &key, &row);
        let listed = listed.unwrap_or_else(|_| ListEntry::unknown(&key));
        write(connection, &key, &row, &listed)?;
    }
    Ok(())
}

/// Compares a session's list entry with its events.
pub(super) fn verify(
    connection: &Connection,
    key: &SessionKey,
    row: &SqliteSessionRow,
) -> Result<(), SessionError> {
    let stored = stored_entry(connection, key, row)?;
    // NOTE: without a key, so that the mark of an unfinished run of a sealed event is as it is stored.
    entry_from_events((connection, ContentKey::Missing), key, row)?.check(&stored, key)
}

fn stored_entry(
    connection: &Connection,
    key: &SessionKey,
    row: &SqliteSessionRow,
) -> Result<ListEntry, SessionError> {
    let read = |row: &rusqlite::Row<'_>| Ok(ListEntry { is_unfinished: row.get(0)?, searched: row.get(1)? });
    let place = params![key.app.as_str(), key.user.as_str(), row.updated.as_micros(), row.number];
    connection
        .prepare_cached(
            "SELECT unfinished, searched FROM stepfold_recent \
             WHERE app = ?1 AND user = ?2 AND updated = ?3 AND number = ?4",
        )
        .and_then(|mut query| query.query_row(place, read))
        .map_err(failed("list sessions"))
}
