//! Lists across users.

use super::connection::Object;
use super::statements::{LIST_UNATTENDED, LIST_USERS, SCAN_SESSIONS};
use super::transaction::{SqlParameters, query};
use crate::error::SessionError;
use crate::ids::{SessionId, SessionKey, UserId};
use crate::rows::lineage::from_db;
use crate::store::{ListUnattended, ListUsers, ScanSessions, ScannedPage, ScannedSession, Unattended};
use crate::time::Timestamp;

pub(super) async fn users(connection: Object, request: &ListUsers) -> Result<Vec<UserId>, SessionError> {
    let after = request.after.as_ref().map_or("", UserId::as_str);
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
    let given: SqlParameters<'_> = &[&request.app.as_str(), &after, &limit];
    let rows = query(&connection, LIST_USERS, given).await?;
    rows.iter().map(|row| UserId::new(row.get::<_, String>(0))).collect()
}

/// NOTE: nothing is checked against its checksum here: what acts on a session reads it before.
pub(super) async fn scan(connection: Object, request: &ScanSessions) -> Result<ScannedPage, SessionError> {
    let (user, updated, number) = request.begins_after()?;
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX).saturating_add(1);
    let given: SqlParameters<'_> =
        &[&request.app.as_str(), &user, &updated.as_micros(), &number, &limit, &request.with_first_event];
    let rows = query(&connection, SCAN_SESSIONS, given).await?;
    let read = |row: &tokio_postgres::Row| {
        let (user, id) = (UserId::new(row.get::<_, String>(0))?, SessionId::new(row.get::<_, String>(1))?);
        let session = ScannedSession {
            key: SessionKey { app: request.app.clone(), user, id },
            version: from_db(row.get(2)),
            oldest: from_db(row.get(3)),
            created: Timestamp::from_micros(row.get(4)),
            updated: Timestamp::from_micros(row.get(5)),
            first_event: row.get::<_, Option<i64>>(9).map(Timestamp::from_micros),
            is_unfinished: row.get(6),
            inbox: from_db(row.get(7)),
        };
        Ok::<_, SessionError>((session, row.get(8)))
    };
    let found = rows.iter().map(read).collect::<Result<_, _>>()?;
    Ok(ScannedPage::cut(found, request.limit))
}

pub(super) async fn unattended(
    connection: Object,
    request: &ListUnattended,
) -> Result<Vec<Unattended>, SessionError> {
    let (since, number) = request.begins_after()?;
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX);
    let now = request.now.as_micros();
    let given: SqlParameters<'_> =
        &[&request.app.as_str(), &since.as_micros(), &number, &limit, &now, &request.with_claimed];
    let rows = query(&connection, LIST_UNATTENDED, given).await?;
    let read = |row: &tokio_postgres::Row| {
        let (user, id) = (UserId::new(row.get::<_, String>(0))?, SessionId::new(row.get::<_, String>(1))?);
        let key = SessionKey { app: request.app.clone(), user, id };
        let since = Timestamp::from_micros(row.get(2));
        let owner = row.get::<_, Option<String>>(5);
        let is = (owner.is_some(), row.get(6));
        Ok::<_, SessionError>(
            Unattended::new(key, since, is, from_db(row.get(3)), row.get(4)).with_owner(owner),
        )
    };
    // NOTE: a session with damaged ids has no key under which a worker could claim it; verification reports it.
    Ok(rows.iter().filter_map(|row| read(row).ok()).collect())
}
