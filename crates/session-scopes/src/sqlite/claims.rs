//! Claims on sessions, and what an append does about claim and inbox. Both are columns of the session's row, which
//! is written only if they change.

use std::sync::Arc;

use rusqlite::Row;
use rusqlite::types::Type;

use super::history::SessionRow;
use super::inbox;
use super::threads::Desk;
use super::write::run;
use crate::error::{ErrorKind, SessionError};
use crate::rows::{from_db, to_db};
use crate::store::{
    Asked, Claim, ClaimSession, Fence, Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed,
};
use crate::work::Work;

/// Reads claim and inbox from a row that begins as [`SessionRow::read`] says, and the checksum that they should have.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Work, i64)> {
    let invalid = |error| rusqlite::Error::FromSqlConversionFailure(9, Type::Text, Box::new(error));
    let owner = row.get::<_, Option<Arc<str>>>(9)?;
    let fence = Fence::stored(row.get(0)?, row.get(8)?, owner, row.get(10)?).map_err(invalid)?;
    let (inbox, last) = (from_db(row.get(11)?), from_db(row.get(12)?));
    Ok((Work { fence, inbox, last, waiting: row.get(13)? }, row.get(14)?))
}

/// Leaves claim and inbox so, if that is not what the row has.
pub(super) fn put_work(desk: &Desk, row: &SessionRow, work: &Work) -> Result<(), SessionError> {
    if row.work == *work {
        return Ok(());
    }
    let (owner, expires) = work.fence.columns();
    run(
        desk,
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
pub(super) fn repeated(row: &SessionRow, asked: Asked<'_>, receipt: Receipt) -> Receipt {
    Receipt { claim: row.work.fence.of_asker(asked.claim), inbox: row.work.inbox, ..receipt }
}

/// The claim as an append leaves it, if nothing speaks against it.
pub(super) fn check(desk: &Desk, row: &SessionRow, asked: Asked<'_>) -> Result<Fence, SessionError> {
    let fence = row.work.fence.after(asked.key, asked.claim, asked.at)?;
    inbox::check(desk, row.number, asked)?;
    Ok(fence)
}

/// Leaves claim and inbox so, once the event is committed.
pub(super) fn commit(
    desk: &Desk,
    row: &SessionRow,
    asked: Asked<'_>,
    fence: Fence,
    receipt: Receipt,
) -> Result<Receipt, SessionError> {
    let mut work = Work { fence, ..row.work.clone() };
    inbox::take(desk, row.number, asked.taken, &mut work)?;
    put_work(desk, row, &work)?;
    Ok(Receipt { claim: work.fence.of_asker(asked.claim), inbox: work.inbox, ..receipt })
}

/// Leaves the claim so.
fn put(desk: &Desk, row: &SessionRow, fence: &Fence) -> Result<(), SessionError> {
    put_work(desk, row, &Work { fence: fence.clone(), ..row.work.clone() })
}

pub(super) fn claim(desk: &mut Desk, request: &ClaimSession) -> Result<Claim, SessionError> {
    let ClaimSession { key, owner, duration, at, take_over } = request;
    let row = SessionRow::get(&desk.connection, key)?;
    let fence = row.work.fence.taken(key, owner, *duration, *take_over, *at)?;
    put(desk, &row, &fence)?;
    fence.held(key)
}

pub(super) fn renew(desk: &mut Desk, request: &RenewClaim) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, at } = request;
    let row = SessionRow::get(&desk.connection, key)?;
    let fence = row.work.fence.renewed(key, *token, *duration, *at)?;
    put(desk, &row, &fence)?;
    Ok(Renewed { claim: fence.held(key)?, inbox: row.work.inbox })
}

/// Renews claims in one transaction. One that is lost or damaged changes nothing, and does not take the others along: only
/// a busy or full file fails them all, since it takes the transaction back.
pub(super) fn renew_all(
    desk: &mut Desk,
    request: &RenewClaims,
) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
    let renewed = request.each().map(|request| match renew(desk, &request) {
        Err(error) if error.kind() == ErrorKind::Transient => Err(error),
        result => Ok(result),
    });
    renewed.collect()
}

pub(super) fn release(desk: &mut Desk, request: &ReleaseClaim) -> Result<(), SessionError> {
    match SessionRow::find(&desk.connection, &request.key)? {
        Some(row) => row.work.fence.given_up(request, None).map_or(Ok(()), |fence| put(desk, &row, &fence)),
        None => Ok(()),
    }
}
