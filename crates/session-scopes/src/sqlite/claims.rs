//! Claims on sessions, and what an append does about claim and inbox. Both are columns of the session's row, which
//! is written only if they change.

use std::sync::Arc;

use rusqlite::Row;
use rusqlite::types::Type;

use super::history::SessionRow;
use super::inbox;
use super::threads::Desk;
use super::write::run;
use crate::digest::Check;
use crate::error::SessionError;
use crate::ids::WorkerId;
use crate::rows::{from_db, to_db};
use crate::store::{Asked, Claim, ClaimSession, Fence, Receipt, ReleaseClaim, RenewClaim, Renewed};
use crate::time::Timestamp;

/// What a session's row tells of its claim and its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) fence: Fence,
    /// The position of the newest entry that waits in the inbox; 0 if none does.
    pub(super) inbox: u64,
    /// The newest position that was ever given.
    pub(super) last: u64,
    /// The checksums of the entries that wait, each in exclusive or with the others: one that is gone is missed.
    pub(super) waiting: i64,
}

impl Work {
    /// That of a new session.
    pub(super) fn new(number: i64) -> Self {
        Work { fence: Fence::stored(number, 0, None), inbox: 0, last: 0, waiting: 0 }
    }

    /// Reads it from a row that begins as [`SessionRow::read`] says, and the checksum that it should have.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Self, i64)> {
        let fence = Fence::stored(row.get(0)?, row.get(8)?, holder(row)?);
        let (inbox, last) = (from_db(row.get(11)?), from_db(row.get(12)?));
        Ok((Work { fence, inbox, last, waiting: row.get(13)? }, row.get(14)?))
    }

    /// Its checksum, in the session with this number.
    pub(super) fn checksum(&self, number: i64) -> i64 {
        let (owner, expires) = self.holder();
        let mut check = Check::new("work of stepfold_sessions");
        check.int(number).int(self.fence.claims(number)).optional_text(owner).optional_int(expires);
        check.int(to_db(self.inbox)).int(to_db(self.last)).int(self.waiting).sum()
    }

    fn holder(&self) -> (Option<&str>, Option<i64>) {
        let holder = self.fence.holder.as_ref();
        (holder.map(|(owner, _)| owner.as_str()), holder.map(|(_, expires)| expires.as_micros()))
    }

    /// Leaves it so, if it is not what the row has.
    pub(super) fn put(&self, desk: &Desk, row: &SessionRow) -> Result<(), SessionError> {
        if row.work == *self {
            return Ok(());
        }
        let (owner, expires) = self.holder();
        run(
            desk,
            "UPDATE stepfold_sessions SET claims = ?2, claim_owner = ?3, claim_expires = ?4, inbox = ?5, \
             inbox_last = ?6, waiting = ?7, work = ?8 WHERE number = ?1",
            &[
                &row.number,
                &self.fence.claims(row.number),
                &owner,
                &expires,
                &to_db(self.inbox),
                &to_db(self.last),
                &self.waiting,
                &self.checksum(row.number),
            ],
        )
        .map(drop)
    }
}

/// The holder of a claim. An owner that is stored has the form of one.
fn holder(row: &Row<'_>) -> rusqlite::Result<Option<(WorkerId, Timestamp)>> {
    let Some(owner) = row.get::<_, Option<Arc<str>>>(9)? else { return Ok(None) };
    let invalid = |error| rusqlite::Error::FromSqlConversionFailure(9, Type::Text, Box::new(error));
    Ok(Some((WorkerId::new(owner).map_err(invalid)?, Timestamp::from_micros(row.get(10)?))))
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
    work.put(desk, row)?;
    Ok(Receipt { claim: work.fence.of_asker(asked.claim), inbox: work.inbox, ..receipt })
}

/// Leaves the claim so.
fn put(desk: &Desk, row: &SessionRow, fence: &Fence) -> Result<(), SessionError> {
    Work { fence: fence.clone(), ..row.work.clone() }.put(desk, row)
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

pub(super) fn release(desk: &mut Desk, request: &ReleaseClaim) -> Result<(), SessionError> {
    let ReleaseClaim { key, token } = request;
    match SessionRow::find(&desk.connection, key)? {
        Some(row) => row.work.fence.released(key, *token).map_or(Ok(()), |fence| put(desk, &row, &fence)),
        None => Ok(()),
    }
}
