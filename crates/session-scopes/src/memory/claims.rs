//! Claims and inboxes of sessions in memory.

use super::MemoryInner;
use super::app_data::SessionEntry;
use super::inbox::MemoryInbox;
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::store::{
    AppendClaim, Claim, ClaimFence, ClaimSession, DequeueInput, Enqueued, InboxEntry, PreparedInput,
    ReadInbox, Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed,
};
use crate::time::Timestamp;

/// The data of a session beside its history; forks do not copy it.
#[derive(Debug)]
pub(super) struct MemoryWork {
    pub(super) life: LifeId,
    pub(super) fence: ClaimFence,
    pub(super) inbox: MemoryInbox,
}

impl MemoryWork {
    pub(super) fn new(life: Option<LifeId>, number: i64) -> Self {
        let life = life.unwrap_or_else(LifeId::random);
        MemoryWork { life, fence: ClaimFence::for_new_session(number), inbox: MemoryInbox::default() }
    }

    /// The receipt of an append that was made before.
    pub(super) fn repeated(&self, receipt: Receipt, request: Option<&AppendClaim>) -> Receipt {
        Receipt { claim: self.fence.claim_of_requester(request), inbox: self.inbox.newest(), ..receipt }
    }

    /// The claim after an append, if the append is allowed.
    pub(super) fn check(
        &self,
        key: &SessionKey,
        request: Option<&AppendClaim>,
        now: Timestamp,
        taken: &[u64],
    ) -> Result<ClaimFence, SessionError> {
        let fence = self.fence.after(key, request, now)?;
        self.inbox.check(key, taken)?;
        Ok(fence)
    }

    /// Updates claim and inbox, once the event is committed.
    pub(super) fn commit(
        &mut self,
        fence: ClaimFence,
        taken: &[u64],
        request: Option<&AppendClaim>,
        receipt: Receipt,
    ) -> Receipt {
        self.fence = fence;
        self.inbox.take(taken);
        self.repeated(receipt, request)
    }
}

impl MemoryInner {
    fn entry_mut(&mut self, key: &SessionKey) -> Result<&mut SessionEntry, SessionError> {
        Ok(self.place(key)?.entry)
    }

    pub(super) fn claim(&mut self, request: &ClaimSession) -> Result<Claim, SessionError> {
        let ClaimSession { key, owner, duration, at, take_over } = request;
        let work = &mut self.entry_mut(key)?.work;
        let fence = work.fence.claimed(key, owner, *duration, *take_over, *at)?;
        work.fence = fence;
        work.fence.current_claim(key)
    }

    pub(super) fn renew(&mut self, request: &RenewClaim) -> Result<Renewed, SessionError> {
        let RenewClaim { key, token, duration, at } = request;
        let work = &mut self.entry_mut(key)?.work;
        work.fence = work.fence.renewed(key, *token, *duration, *at)?;
        Ok(Renewed { claim: work.fence.current_claim(key)?, inbox: work.inbox.newest() })
    }

    pub(super) fn renew_all(&mut self, request: &RenewClaims) -> Vec<Result<Renewed, SessionError>> {
        request.each().map(|request| self.renew(&request)).collect()
    }

    pub(super) fn release(&mut self, request: &ReleaseClaim) {
        if let Ok(entry) = self.entry_mut(&request.key)
            && let Ok(fence) = entry.work.fence.released_by(request, None)
        {
            entry.work.fence = fence;
        }
    }

    pub(super) fn enqueue(&mut self, prepared: PreparedInput) -> Result<Enqueued, SessionError> {
        let at = prepared.input.at;
        let entry = self.entry_mut(&prepared.input.key)?;
        let version = entry.version();
        let enqueued = entry.work.inbox.enqueue(prepared)?;
        Ok(Enqueued { claim: entry.work.fence.unexpired(at), version, ..enqueued })
    }

    pub(super) fn inbox(&self, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        let (.., entry) = self.entry(&request.key)?;
        Ok(entry.work.inbox.read(request))
    }

    pub(super) fn dequeue(&mut self, request: &DequeueInput) -> Result<Vec<u64>, SessionError> {
        let work = &mut self.entry_mut(&request.key)?.work;
        if let Some(token) = request.token {
            work.fence.check(&request.key, token)?;
        }
        Ok(work.inbox.take(&request.positions))
    }
}
