//! Claims on sessions, and what an append does about claim and inbox. Both are columns of the session's row, which
//! is written only if they change.

use std::sync::Arc;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row};

use super::error::failed;
use super::history::{SqliteSessionRow, work_columns};
use super::inbox;
use super::threads::SqliteConnection;
use super::write::execute;
use crate::error::{ErrorKind, SessionError};
use crate::ids::SessionKey;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::work::WorkState;
use crate::store::{
    Claim, ClaimFence, ClaimSession, Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed, WorkRequest,
};

/// Reads claim and inbox, with their stored checksum, from a row in the form of [`SqliteSessionRow::read`].
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(WorkState, i64)> {
    let invalid = |error| rusqlite::Error::FromSqlConversionFailure(9, Type::Text, Box::new(error));
    let owner = row.get::<_, Option<Arc<str>>>(9)?;
    let fence = ClaimFence::stored(row.get(0)?, row.get(8)?, owner, row.get(10)?).map_err(invalid)?;
    let (inbox, last) = (from_db(row.get(11)?), from_db(row.get(12)?));
    Ok((WorkState { fence, inbox, last, waiting: row.get(13)? }, row.get(14)?))
}

/// Claim and inbox of a session, without its newest event.
pub(super) fn find(connection: &Connection, key: &SessionKey) -> Result<Option<WorkState>, SessionError> {
    const WORK: &str = concat!(
        "SELECT s.number, 0, 0, 0, 0, 0, 0, ",
        work_columns!(),
        " FROM stepfold_sessions s WHERE s.app = ?1 AND s.user = ?2 AND s.id = ?3"
    );
    let failed = failed("find a session");
    let mut query = connection.prepare_cached(WORK).map_err(failed)?;
    let parts = [key.app.as_str(), key.user.as_str(), key.id.as_str()];
    let found = query.query_row(parts, |row| Ok((row.get::<_, i64>(0)?, read(row)?)));
    let Some((number, (work, sum))) = found.optional().map_err(failed)? else { return Ok(None) };
    work.check(number, sum, key)?;
    Ok(Some(work))
}

/// Stores claim and inbox, if they differ from the row.
pub(super) fn put_work(
    sqlite: &SqliteConnection,
    row: &SqliteSessionRow,
    work: &WorkState,
) -> Result<(), SessionError> {
    if row.work == *work {
        return Ok(());
    }
    let (owner, expires) = work.fence.columns();
    execute(
        sqlite,
        "UPDATE stepfold_sessions SET claims = ?2, claim_owner = ?3, claim_expires = ?4, inbox = ?5, \
         inbox_last = ?6, waiting = ?7, work = ?8 WHERE number = ?1",
        &[
            &row.number,
            &work.fence.claims(row.number),
            &owner,
            &expires,
            &to_db(work.inbox),
            &to_db(work.last),
            &work.waiting,
            &work.checksum(row.number),
        ],
    )
    .map(drop)
}

/// The receipt of an append that was made before.
pub(super) fn repeated(row: &SqliteSessionRow, request: WorkRequest<'_>, receipt: Receipt) -> Receipt {
    Receipt { claim: row.work.fence.claim_of_requester(request.claim), inbox: row.work.inbox, ..receipt }
}

/// The claim after an append, if the append is allowed.
pub(super) fn check(
    sqlite: &SqliteConnection,
    row: &SqliteSessionRow,
    request: WorkRequest<'_>,
) -> Result<ClaimFence, SessionError> {
    let fence = row.work.fence.after(request.key, request.claim, request.at)?;
    inbox::check(sqlite, row.number, request)?;
    Ok(fence)
}

/// Updates claim and inbox, once the event is committed.
pub(super) fn commit(
    sqlite: &SqliteConnection,
    row: &SqliteSessionRow,
    request: WorkRequest<'_>,
    fence: ClaimFence,
    receipt: Receipt,
) -> Result<Receipt, SessionError> {
    let mut work = WorkState { fence, ..row.work.clone() };
    inbox::take(sqlite, row.number, request.taken, &mut work)?;
    put_work(sqlite, row, &work)?;
    Ok(Receipt { claim: work.fence.claim_of_requester(request.claim), inbox: work.inbox, ..receipt })
}

/// Stores the claim.
fn put(sqlite: &SqliteConnection, row: &SqliteSessionRow, fence: &ClaimFence) -> Result<(), SessionError> {
    put_work(sqlite, row, &WorkState { fence: fence.clone(), ..row.work.clone() })
}

pub(super) fn claim(sqlite: &mut SqliteConnection, request: &ClaimSession) -> Result<Claim, SessionError> {
    let ClaimSession { key, owner, duration, at, take_over } = request;
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    let fence = row.work.fence.claimed(key, owner, *duration, *take_over, *at)?;
    put(sqlite, &row, &fence)?;
    fence.current_claim(key)
}

pub(super) fn renew(sqlite: &mut SqliteConnection, request: &RenewClaim) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, at } = request;
    let row = SqliteSessionRow::get(&sqlite.connection, key)?;
    let fence = row.work.fence.renewed(key, *token, *duration, *at)?;
    put(sqlite, &row, &fence)?;
    Ok(Renewed { claim: fence.current_claim(key)?, inbox: row.work.inbox })
}

/// Renews claims in one transaction. A lost or damaged claim changes nothing and does not fail the others: only a busy or
/// full file fails them all, since it rolls the transaction back.
pub(super) fn renew_all(
    sqlite: &mut SqliteConnection,
    request: &RenewClaims,
) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
    let renewed = request.each().map(|request| match renew(sqlite, &request) {
        Err(error) if error.kind() == ErrorKind::Transient => Err(error),
        result => Ok(result),
    });
    renewed.collect()
}

pub(super) fn release(sqlite: &mut SqliteConnection, request: &ReleaseClaim) -> Result<(), SessionError> {
    match SqliteSessionRow::find(&sqlite.connection, &request.key)? {
        Some(row) => {
            row.work.fence.released_by(request, None).map_or(Ok(()), |fence| put(sqlite, &row, &fence))
        }
        None => Ok(()),
    }
}
