//! Lists across users.

use rusqlite::params;

use super::error::failed;
use super::threads::SqliteConnection;
use crate::error::SessionError;
use crate::ids::{SessionId, SessionKey, UserId};
use crate::rows::lineage::from_db;
use crate::store::{ListUnattended, ListUsers, ScanSessions, ScannedPage, ScannedSession, Unattended};
use crate::time::Timestamp;

pub(super) fn users(sqlite: &mut SqliteConnection, request: &ListUsers) -> Result<Vec<UserId>, SessionError> {
    let failed = failed("list users");
    // Each user costs one look-up in the index, however many sessions it has.
    let mut query = sqlite
        .connection
        .prepare_cached(
            "WITH RECURSIVE u (user) AS ( \
             SELECT MIN(user) FROM stepfold_sessions WHERE app = ?1 AND user > ?2 UNION ALL \
             SELECT (SELECT MIN(s.user) FROM stepfold_sessions s WHERE s.app = ?1 AND s.user > u.user) \
             FROM u WHERE u.user IS NOT NULL) \
             SELECT user FROM u WHERE user IS NOT NULL LIMIT ?3",
        )
        .map_err(failed)?;
    let after = request.after.as_ref().map_or("", UserId::as_str);
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
    let rows = query.query_map(params![request.app.as_str(), after, limit], |row| row.get::<_, String>(0));
    let rows: Vec<String> = rows.and_then(Iterator::collect).map_err(failed)?;
    rows.into_iter().map(UserId::new).collect()
}

/// NOTE: nothing is checked against its checksum here: what acts on a session reads it before.
pub(super) fn scan(
    sqlite: &mut SqliteConnection,
    request: &ScanSessions,
) -> Result<ScannedPage, SessionError> {
    let failed = failed("scan sessions");
    let (user, updated, number) = request.begins_after()?;
    let mut query = sqlite
        .connection
        .prepare_cached(
            "SELECT r.user, s.id, r.version, s.oldest, s.created, r.updated, r.unfinished, s.inbox, r.number, \
             CASE WHEN ?6 THEN (SELECT e.at FROM stepfold_lineage l JOIN stepfold_events e \
             ON e.number = (l.stream << 32) + s.oldest + 1 \
             WHERE l.number = s.number AND l.after <= s.oldest AND l.upto > s.oldest AND e.id IS NOT NULL) END \
             FROM stepfold_recent r JOIN stepfold_sessions s ON s.number = r.number \
             WHERE r.app = ?1 AND (r.user, r.updated, r.number) > (?2, ?3, ?4) \
             ORDER BY r.user, r.updated, r.number LIMIT ?5",
        )
        .map_err(failed)?;
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX).saturating_add(1);
    let bounds =
        params![request.app.as_str(), user, updated.as_micros(), number, limit, request.with_first_event];
    let mut rows = query.query(bounds).map_err(failed)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        found.push(scanned(row, request).map_err(failed)??);
    }
    Ok(ScannedPage::cut(found, request.limit))
}

fn scanned(
    row: &rusqlite::Row<'_>,
    request: &ScanSessions,
) -> rusqlite::Result<Result<(ScannedSession, i64), SessionError>> {
    let (user, id): (String, String) = (row.get(0)?, row.get(1)?);
    let (version, oldest, inbox) = (from_db(row.get(2)?), from_db(row.get(3)?), from_db(row.get(7)?));
    let (created, updated) = (Timestamp::from_micros(row.get(4)?), Timestamp::from_micros(row.get(5)?));
    let (is_unfinished, number) = (row.get(6)?, row.get(8)?);
    let first_event = row.get::<_, Option<i64>>(9)?.map(Timestamp::from_micros);
    let key = UserId::new(user)
        .and_then(|user| Ok(SessionKey { app: request.app.clone(), user, id: SessionId::new(id)? }));
    let session =
        |key| ScannedSession { key, version, oldest, created, updated, first_event, is_unfinished, inbox };
    Ok(key.map(|key| (session(key), number)))
}

/// The user, the id, since when, the inbox, the number; whether a claim has expired, and whether it is due.
type UnattendedRow = (String, String, i64, i64, i64, (Option<String>, bool));

pub(super) fn unattended(
    sqlite: &mut SqliteConnection,
    request: &ListUnattended,
) -> Result<Vec<Unattended>, SessionError> {
    let failed = failed("list unattended sessions");
    let (since, number) = request.begins_after()?;
    let mut query = sqlite
        .connection
        .prepare_cached(
            // NOTE: the casts let a damaged row not fail the whole list: it is listed if it has a key, and its reader
            // reports the damage. A released claim with work left has a negative expiry: see `store/claims.rs`.
            "SELECT user, id, CAST(CASE WHEN claim_expires < 0 THEN ~claim_expires ELSE COALESCE(claim_expires, updated) END \
             AS INTEGER) AS since, CAST(inbox AS INTEGER), number, \
             CASE typeof(claim_owner) WHEN 'blob' THEN hex(claim_owner) ELSE CAST(claim_owner AS TEXT) END, \
             claim_owner IS NULL AND claim_expires IS NOT NULL \
             FROM stepfold_sessions WHERE app = ?1 AND (claim_expires IS NOT NULL OR inbox > 0) \
             AND typeof(user) = 'text' AND typeof(id) = 'text' \
             AND (claim_expires IS NULL OR claim_expires <= ?2 OR (?6 AND claim_owner IS NOT NULL)) \
             AND (since, number) > (?3, ?4) ORDER BY since, number LIMIT ?5",
        )
        .map_err(failed)?;
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
    let (app, now, with_claimed) = (request.app.as_str(), request.now.as_micros(), request.with_claimed);
    let bounds = params![app, now, since.as_micros(), number, limit, with_claimed];
    let rows = query.query_map(bounds, |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
            (row.get(5)?, row.get(6)?),
        ))
    });
    let rows: Vec<UnattendedRow> = rows.and_then(Iterator::collect).map_err(failed)?;
    let read = |(user, id, since, inbox, number, (owner, is_due)): UnattendedRow| {
        let key = SessionKey { app: request.app.clone(), user: UserId::new(user)?, id: SessionId::new(id)? };
        let is = (owner.is_some(), is_due);
        let session = Unattended::new(key, Timestamp::from_micros(since), is, from_db(inbox), number);
        Ok::<_, SessionError>(session.with_owner(owner))
    };
    // NOTE: a session with damaged ids has no key under which a worker could claim it; verification reports it.
    Ok(rows.into_iter().filter_map(|row| read(row).ok()).collect())
}
