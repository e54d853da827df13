//! Claims on sessions, and what an append does about claim and inbox. Both are columns of the session's row, which
//! is written only if they change.

use super::history::SessionRow;
use super::inbox;
use super::threads::Desk;
use super::write::run;
use crate::error::SessionError;
use crate::store::{Asked, Claim, ClaimSession, Fence, Receipt, ReleaseClaim, RenewClaim, Renewed};

/// The receipt of an append that was made before.
pub(super) fn repeated(row: &SessionRow, asked: Asked<'_>, receipt: Receipt) -> Receipt {
    Receipt { claim: row.fence.of_asker(asked.claim), inbox: row.inbox, ..receipt }
}

/// The claim as an append leaves it, if nothing speaks against it.
pub(super) fn check(desk: &Desk, row: &SessionRow, asked: Asked<'_>) -> Result<Fence, SessionError> {
    let fence = row.fence.after(asked.key, asked.claim, asked.at)?;
    inbox::check(desk, row.number, asked)?;
    Ok(fence)
}

/// Leaves claim and inbox so, once the event is committed.
pub(super) fn commit(
    desk: &Desk,
    row: &SessionRow,
    asked: Asked<'_>,
    fence: &Fence,
    receipt: Receipt,
) -> Result<Receipt, SessionError> {
    put(desk, row, fence)?;
    let has_taken = !inbox::take(desk, row.number, asked.taken)?.is_empty();
    let inbox = if has_taken { inbox::put_newest(desk, row.number)? } else { row.inbox };
    Ok(Receipt { claim: fence.of_asker(asked.claim), inbox, ..receipt })
}

/// Writes the claim, if it is another one.
fn put(desk: &Desk, row: &SessionRow, fence: &Fence) -> Result<(), SessionError> {
    if row.fence == *fence {
        return Ok(());
    }
    let owner = fence.holder.as_ref().map(|(owner, _)| owner.as_str());
    let expires = fence.holder.as_ref().map(|(_, expires)| expires.as_micros());
    run(
        desk,
        "UPDATE stepfold_sessions SET claims = ?2, claim_owner = ?3, claim_expires = ?4 WHERE number = ?1",
        &[&row.number, &fence.claims(row.number), &owner, &expires],
    )
    .map(drop)
}

pub(super) fn claim(desk: &mut Desk, request: &ClaimSession) -> Result<Claim, SessionError> {
    let ClaimSession { key, owner, duration, at, take_over } = request;
    let row = SessionRow::get(&desk.connection, key)?;
    let fence = row.fence.taken(key, owner, *duration, *take_over, *at)?;
    put(desk, &row, &fence)?;
    fence.held(key)
}

pub(super) fn renew(desk: &mut Desk, request: &RenewClaim) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, at } = request;
    let row = SessionRow::get(&desk.connection, key)?;
    let fence = row.fence.renewed(key, *token, *duration, *at)?;
    put(desk, &row, &fence)?;
    Ok(Renewed { claim: fence.held(key)?, inbox: row.inbox })
}

pub(super) fn release(desk: &mut Desk, request: &ReleaseClaim) -> Result<(), SessionError> {
    let ReleaseClaim { key, token } = request;
    match SessionRow::find(&desk.connection, key)? {
        Some(row) => row.fence.released(key, *token).map_or(Ok(()), |fence| put(desk, &row, &fence)),
        None => Ok(()),
    }
}
