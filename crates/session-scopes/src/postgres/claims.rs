//! Claims on sessions, and what an append does about claim and inbox. They are decided under the lock of the
//! session's row, by the server's clock.

use deadpool_postgres::Object;
use tokio::try_join;
use tokio_postgres::Row;

use super::inbox::{self, Waiting};
use super::rows::SessionRow;
use super::statements::{LOCK_SESSION, PUT_CLAIM};
use super::transaction::{Given, Sent, Transaction, begin, commit, execute, in_transaction, query};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::to_db;
use crate::store::{
    AppendClaim, Asked, Claim, ClaimSession, Fence, Receipt, ReleaseClaim, RenewClaim, Renewed,
};
use crate::time::micros;

/// A claim that an append writes under, or releases, as [`APPEND_PLAIN`](super::statements::APPEND_PLAIN) takes it.
#[derive(Clone, Copy, Default)]
pub(super) struct PlainClaim {
    pub(super) token: Option<i64>,
    /// For how long it is to hold from now on; none: it is released.
    pub(super) duration: Option<i64>,
}

impl PlainClaim {
    /// What the statement does itself; none if it is to be looked at more closely.
    pub(super) fn of(asked: Asked<'_>) -> Option<Self> {
        // So that adding it to the time does not overflow.
        const LONGEST: i64 = i64::MAX / 4;
        match asked.claim {
            _ if !asked.taken.is_empty() => None,
            None => Some(PlainClaim::default()),
            Some(AppendClaim::Hold { token, duration }) => {
                let duration = Some(micros(*duration).min(LONGEST));
                Some(PlainClaim { token: Some(to_db(*token)), duration })
            }
            Some(AppendClaim::Release { token }) => {
                Some(PlainClaim { token: Some(to_db(*token)), duration: None })
            }
            Some(AppendClaim::Take { .. } | AppendClaim::Once { .. }) => None,
        }
    }
}

/// The receipt of an append that was made before.
pub(super) fn repeated(row: &SessionRow, asked: Asked<'_>, receipt: Receipt) -> Receipt {
    Receipt { claim: row.fence.of_asker(asked.claim), inbox: row.inbox, ..receipt }
}

/// What an append leaves of claim and inbox.
pub(super) struct Left<'a> {
    asked: Asked<'a>,
    number: i64,
    fence: Fence,
    is_changed: bool,
    inbox: u64,
}

/// What an append leaves of claim and inbox, if nothing speaks against it.
pub(super) fn check<'a>(
    row: &SessionRow,
    asked: Asked<'a>,
    waiting: &Waiting,
) -> Result<Left<'a>, SessionError> {
    let fence = row.fence.after(asked.key, asked.claim, row.now)?;
    waiting.check(asked)?;
    let inbox = if asked.taken.is_empty() { row.inbox } else { waiting.newest_left };
    Ok(Left { asked, number: row.number, is_changed: fence != row.fence, fence, inbox })
}

impl Left<'_> {
    /// The statements that leave it so.
    pub(super) fn statements<'c>(&self, connection: &'c Object) -> Vec<Sent<'c>> {
        let mut sent: Vec<Sent<'c>> = Vec::new();
        if self.is_changed {
            sent.push(put(connection, self.number, self.fence.clone()));
        }
        if !self.asked.taken.is_empty() {
            sent.extend(inbox::take(connection, self.number, self.asked.taken));
        }
        sent
    }

    pub(super) fn receipt(&self, receipt: Receipt) -> Receipt {
        Receipt { claim: self.fence.of_asker(self.asked.claim), inbox: self.inbox, ..receipt }
    }
}

fn put(connection: &Object, number: i64, fence: Fence) -> Sent<'_> {
    Box::pin(async move {
        let owner = fence.holder.as_ref().map(|(owner, _)| owner.as_str());
        let expires = fence.holder.as_ref().map(|(_, expires)| expires.as_micros());
        execute(connection, PUT_CLAIM, &[&number, &fence.claims(number), &owner, &expires]).await
    })
}

/// The row of a session, if there is one, locked.
pub(super) async fn lock(connection: &Object, key: &SessionKey) -> Result<Vec<Row>, SessionError> {
    let given: Given<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str()];
    query(connection, LOCK_SESSION, given).await
}

pub(super) async fn claim(connection: Object, request: &ClaimSession) -> Result<Claim, SessionError> {
    let ClaimSession { key, owner, duration, take_over, .. } = request;
    in_transaction!(connection, |inside| {
        let row = SessionRow::of(&lock(inside, key).await?, key)?;
        let fence = row.fence.taken(key, owner, *duration, *take_over, row.now)?;
        put(inside, row.number, fence.clone()).await?;
        fence.held(key)
    })
}

pub(super) async fn renew(connection: Object, request: &RenewClaim) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, .. } = request;
    in_transaction!(connection, |inside| {
        let row = SessionRow::of(&lock(inside, key).await?, key)?;
        let fence = row.fence.renewed(key, *token, *duration, row.now)?;
        put(inside, row.number, fence.clone()).await?;
        Ok(Renewed { claim: fence.held(key)?, inbox: row.inbox })
    })
}

pub(super) async fn release(connection: Object, request: &ReleaseClaim) -> Result<(), SessionError> {
    let ReleaseClaim { key, token } = request;
    in_transaction!(connection, |inside| {
        let found = lock(inside, key).await?;
        if let Some(row) = found.first().map(|row| SessionRow::read(row, key)).transpose()?
            && let Ok(fence) = row.fence.released(key, *token)
        {
            put(inside, row.number, fence).await?;
        }
        Ok(())
    })
}
