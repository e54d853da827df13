//! Claims on sessions, and an append's action on claim and inbox. Decided with the lock of the session's row,
//! by the server's clock.

use std::collections::{HashMap, HashSet};

use tokio::try_join;
use tokio_postgres::Row;

use super::connection::Object;
use super::inbox::{self, WaitingInputs};
use super::rows::PostgresSessionRow;
use super::statements::{FIND_SESSIONS, LOCK_SESSION, LOCK_SESSIONS, PUT_CLAIMS, PUT_WORK};
use super::transaction::{
    IdleTimeout, PooledTransaction, SentStatement, SqlParameters, begin, commit, execute, in_transaction,
    query,
};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::rows::lineage::to_db;
use crate::rows::work::{InputRow, WorkState};
use crate::store::{
    AppendClaim, Claim, ClaimFence, ClaimSession, Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed,
    WorkRequest,
};
use crate::time::micros;

/// A claim that an append writes under, or releases, as [`APPEND_PLAIN`](super::statements::APPEND_PLAIN) takes it.
pub(super) struct PlainClaim {
    pub(super) token: Option<i64>,
    /// For how long it is held, if it is.
    pub(super) duration: Option<i64>,
    /// The checksums of claim and inbox before and after it is released, if it is.
    pub(super) released: Option<(i64, i64)>,
    /// Claim and inbox after the append.
    pub(super) work: WorkState,
}

impl PlainClaim {
    /// The part that the statement does itself, given the known claim and inbox of the session with this
    /// number; `None` if they have to be examined.
    pub(super) fn of(request: WorkRequest<'_>, number: i64, known: WorkState) -> Option<Self> {
        // NOTE: a longer duration would overflow when the statement adds it to the server's time.
        const LONGEST: i64 = i64::MAX / 4;
        let plain = PlainClaim { token: None, duration: None, released: None, work: known };
        match request.claim {
            // NOTE: taking entries needs their rows, and a new claim needs the server's clock; both go through a
            // transaction.
            _ if !request.taken.is_empty() => None,
            None => Some(plain),
            Some(AppendClaim::Hold { token, duration }) => {
                let duration = Some(micros(*duration).min(LONGEST));
                Some(PlainClaim { token: Some(to_db(*token)), duration, ..plain })
            }
            Some(AppendClaim::Release { token }) => {
                let fence = plain.work.fence.released(request.key, *token).ok()?;
                let work = WorkState { fence, ..plain.work.clone() };
                let released = Some((plain.work.checksum(number), work.checksum(number)));
                Some(PlainClaim { token: Some(to_db(*token)), released, duration: None, work })
            }
            Some(AppendClaim::Take { .. } | AppendClaim::Once { .. }) => None,
        }
    }
}

/// The receipt of an append that was made before.
pub(super) fn repeated(row: &PostgresSessionRow, request: WorkRequest<'_>, receipt: Receipt) -> Receipt {
    Receipt { claim: row.work.fence.claim_of_requester(request.claim), inbox: row.work.inbox, ..receipt }
}

/// The claim and inbox after an append.
pub(super) struct WorkUpdate<'a> {
    request: WorkRequest<'a>,
    number: i64,
    taken: Vec<InputRow>,
    pub(super) work: WorkState,
    is_changed: bool,
}

/// The claim and inbox after an append, if it is allowed.
pub(super) fn check<'a>(
    row: &PostgresSessionRow,
    request: WorkRequest<'a>,
    mut waiting: WaitingInputs,
) -> Result<WorkUpdate<'a>, SessionError> {
    let fence = row.work.fence.after(request.key, request.claim, row.now)?;
    let taken = waiting.take_all(request)?;
    let work = waiting.work_after(row, &taken, fence)?;
    Ok(WorkUpdate { request, number: row.number, taken, is_changed: work != row.work, work })
}

impl WorkUpdate<'_> {
    /// Whether claim or inbox are others than before.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The statements that take entries of the inbox.
    pub(super) fn taking<'c>(&self, connection: &'c Object) -> Vec<SentStatement<'c>> {
        match self.taken.is_empty() {
            true => Vec::new(),
            false => Vec::from(inbox::take(connection, self.number, &self.taken)),
        }
    }

    /// The statements that leave it so.
    pub(super) fn statements<'c>(&self, connection: &'c Object) -> Vec<SentStatement<'c>> {
        let mut sent: Vec<SentStatement<'c>> = Vec::new();
        if self.is_changed {
            sent.push(put(connection, self.number, self.work.clone()));
        }
        sent.extend(self.taking(connection));
        sent
    }

    pub(super) fn receipt(&self, receipt: Receipt) -> Receipt {
        Receipt {
            claim: self.work.fence.claim_of_requester(self.request.claim),
            inbox: self.work.inbox,
            ..receipt
        }
    }
}

/// The statement that stores claim and inbox.
pub(super) fn put(connection: &Object, number: i64, work: WorkState) -> SentStatement<'_> {
    Box::pin(async move {
        let ((owner, expires), sum) = (work.fence.columns(), work.checksum(number));
        let (inbox, last) = (to_db(work.inbox), to_db(work.last));
        let given: SqlParameters<'_> =
            &[&number, &work.fence.claims(number), &owner, &expires, &inbox, &last, &work.waiting, &sum];
        execute(connection, PUT_WORK, given).await
    })
}

/// Stores the claim.
async fn put_fence(
    connection: &Object,
    row: &PostgresSessionRow,
    fence: &ClaimFence,
) -> Result<(), SessionError> {
    put(connection, row.number, WorkState { fence: fence.clone(), ..row.work.clone() }).await.map(drop)
}

/// The row of a session, if there is one, locked.
pub(super) async fn lock(connection: &Object, key: &SessionKey) -> Result<Vec<Row>, SessionError> {
    let given: SqlParameters<'_> = &[&key.app.as_str(), &key.user.as_str(), &key.id.as_str()];
    query(connection, LOCK_SESSION, given).await
}

pub(super) async fn claim(
    connection: Object,
    idle: &IdleTimeout,
    request: &ClaimSession,
) -> Result<Claim, SessionError> {
    let ClaimSession { key, owner, duration, take_over, .. } = request;
    in_transaction!(connection, idle.limit(Some(*duration)), |inside| {
        let row = PostgresSessionRow::of(&lock(inside, key).await?, key)?;
        let fence = row.work.fence.claimed(key, owner, *duration, *take_over, row.now)?;
        put_fence(inside, &row, &fence).await?;
        fence.current_claim(key)
    })
}

pub(super) async fn renew(
    connection: Object,
    idle: &IdleTimeout,
    request: &RenewClaim,
) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, .. } = request;
    in_transaction!(connection, idle.limit(Some(*duration)), |inside| {
        let row = PostgresSessionRow::of(&lock(inside, key).await?, key)?;
        let fence = row.work.fence.renewed(key, *token, *duration, row.now)?;
        put_fence(inside, &row, &fence).await?;
        Ok(Renewed { claim: fence.current_claim(key)?, inbox: row.work.inbox })
    })
}

/// The key of a session, as rows contain it.
type SessionName = (String, String, String);

/// Renews claims by two statements: one locks and reads the rows, the other writes those that are still held. Rows that
/// other transactions have locked are not waited for, so this neither delays the other claims nor takes part in a
/// deadlock.
pub(super) async fn renew_all(
    connection: Object,
    idle: &IdleTimeout,
    request: &RenewClaims,
) -> Result<Vec<Result<Renewed, SessionError>>, SessionError> {
    let column = |part: fn(&SessionKey) -> &str| -> Vec<&str> {
        request.claims.iter().map(|(key, _)| part(key)).collect()
    };
    let (apps, owners) = (column(|key| key.app.as_str()), column(|key| key.user.as_str()));
    let ids = column(|key| key.id.as_str());
    let names: SqlParameters<'_> = &[&apps, &owners, &ids];
    in_transaction!(connection, idle.limit(Some(request.duration)), |inside| {
        // NOTE: rows that others have locked are skipped: two heartbeats never wait for each other, and one slow row delays
        // no other claim.
        let locked = query(inside, LOCK_SESSIONS, names).await?;
        let name = |row: &'_ Row| -> SessionName { (row.get(18), row.get(19), row.get(7)) };
        let locked: HashMap<_, &Row> = locked.iter().map(|row| (name(row), row)).collect();
        let is_missing = |(key, _): &(SessionKey, u64)| !locked.contains_key(&named(key));
        let mut skipped: HashSet<SessionName> = HashSet::new();
        if request.claims.iter().any(is_missing) {
            let found = query(inside, FIND_SESSIONS, names).await?;
            skipped.extend(found.iter().map(|row| (row.get(0), row.get(1), row.get(2))));
        }
        let mut put = RenewedColumns::default();
        let renew = |renew: RenewClaim| {
            let name = named(&renew.key);
            match locked.get(&name) {
                Some(row) => renewed(row, &renew, &mut put),
                None if skipped.contains(&name) => Err(is_locked()),
                None => Err(SessionError::not_found(&renew.key)),
            }
        };
        let results = request.each().map(renew).collect();
        if !put.numbers.is_empty() {
            execute(inside, PUT_CLAIMS, &[&put.numbers, &put.expiries, &put.sums]).await?;
        }
        Ok(results)
    })
}

fn named(key: &SessionKey) -> SessionName {
    (key.app.to_string(), key.user.to_string(), key.id.to_string())
}

/// The result for a claim whose row is locked.
fn is_locked() -> SessionError {
    let source = "another transaction has locked the session's row".into();
    SessionError::Unavailable { what: "renew a claim", source }
}

/// The columns of the claims that are renewed.
#[derive(Default)]
struct RenewedColumns {
    numbers: Vec<i64>,
    expiries: Vec<Option<i64>>,
    sums: Vec<i64>,
}

/// Renews the claim on a session with this row.
fn renewed(row: &Row, renew: &RenewClaim, put: &mut RenewedColumns) -> Result<Renewed, SessionError> {
    let RenewClaim { key, token, duration, .. } = renew;
    let row = PostgresSessionRow::read(row, key)?;
    let fence = row.work.fence.renewed(key, *token, *duration, row.now)?;
    let work = WorkState { fence, ..row.work.clone() };
    put.numbers.push(row.number);
    put.expiries.push(work.fence.columns().1);
    put.sums.push(work.checksum(row.number));
    Ok(Renewed { claim: work.fence.current_claim(key)?, inbox: work.inbox })
}

pub(super) async fn release(
    connection: Object,
    idle: &IdleTimeout,
    request: &ReleaseClaim,
) -> Result<(), SessionError> {
    let key = &request.key;
    in_transaction!(connection, idle.limit(None), |inside| {
        let found = lock(inside, key).await?;
        if let Some(row) = found.first().map(|row| PostgresSessionRow::read(row, key)).transpose()?
            && let Ok(fence) = row.work.fence.released_by(request, Some(row.now))
        {
            put_fence(inside, &row, &fence).await?;
        }
        Ok(())
    })
}
