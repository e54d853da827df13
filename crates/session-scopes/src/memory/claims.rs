//! Claims and inboxes of sessions in memory.

use super::Inner;
use super::inbox::Inbox;
use super::tenant::Entry;
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::store::{
    AppendClaim, Claim, ClaimSession, DequeueInput, Enqueued, Fence, InboxEntry, PreparedInput, ReadInbox,
    Receipt, ReleaseClaim, RenewClaim, RenewClaims, Renewed,
};
use crate::time::Timestamp;

/// What a session has beside its history: none of it is forked.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) life: LifeId,
    pub(super) fence: Fence,
    pub(super) inbox: Inbox,
}

impl Work {
    pub(super) fn new(life: Option<LifeId>, number: i64) -> Self {
        let life = life.unwrap_or_else(LifeId::random);
        Work { life, fence: Fence::of_new(number), inbox: Inbox::default() }
    }

    /// The receipt of an append that was made before.
    pub(super) fn repeated(&self, receipt: Receipt, asked: Option<&AppendClaim>) -> Receipt {
        Receipt { claim: self.fence.of_asker(asked), inbox: self.inbox.newest(), ..receipt }
    }

    /// What an append does here, if nothing speaks against it.
    pub(super) fn check(
        &self,
        key: &SessionKey,
        asked: Option<&AppendClaim>,
        now: Timestamp,
        taken: &[u64],
    ) -> Result<Fence, SessionError> {
        let fence = self.fence.after(key, asked, now)?;
        self.inbox.check(key, taken)?;
        Ok(fence)
    }

    /// Does it, once the event is committed.
    pub(super) fn commit(
        &mut self,
        fence: Fence,
        taken: &[u64],
        asked: Option<&AppendClaim>,
        receipt: Receipt,
    ) -> Receipt {
        self.fence = fence;
        self.inbox.take(taken);
        self.repeated(receipt, asked)
    }
}

impl Inner {
    fn at_work(&mut self, key: &SessionKey) -> Result<&mut Entry, SessionError> {
        Ok(self.place(key)?.entry)
    }

    pub(super) fn claim(&mut self, request: &ClaimSession) -> Result<Claim, SessionError> {
        let ClaimSession { key, owner, duration, at, take_over } = request;
        let work = &mut self.at_work(key)?.work;
        let fence = work.fence.taken(key, owner, *duration, *take_over, *at)?;
        work.fence = fence;
        work.fence.held(key)
    }

    pub(super) fn renew(&mut self, request: &RenewClaim) -> Result<Renewed, SessionError> {
        let RenewClaim { key, token, duration, at } = request;
        let work = &mut self.at_work(key)?.work;
        work.fence = work.fence.renewed(key, *token, *duration, *at)?;
        Ok(Renewed { claim: work.fence.held(key)?, inbox: work.inbox.newest() })
    }

    pub(super) fn renew_all(&mut self, request: &RenewClaims) -> Vec<Result<Renewed, SessionError>> {
        request.each().map(|request| self.renew(&request)).collect()
    }

    pub(super) fn release(&mut self, request: &ReleaseClaim) {
        if let Ok(entry) = self.at_work(&request.key)
            && let Ok(fence) = entry.work.fence.given_up(request, None)
        {
            entry.work.fence = fence;
        }
    }

    pub(super) fn enqueue(&mut self, prepared: PreparedInput) -> Result<Enqueued, SessionError> {
        let at = prepared.input.at;
        let entry = self.at_work(&prepared.input.key)?;
        let version = entry.version();
        let enqueued = entry.work.inbox.enqueue(prepared)?;
        Ok(Enqueued { claim: entry.work.fence.unexpired(at), version, ..enqueued })
    }

    pub(super) fn inbox(&self, request: &ReadInbox) -> Result<Vec<InboxEntry>, SessionError> {
        let (.., entry) = self.entry(&request.key)?;
        Ok(entry.work.inbox.read(request))
    }

    pub(super) fn dequeue(&mut self, request: &DequeueInput) -> Result<Vec<u64>, SessionError> {
        let work = &mut self.at_work(&request.key)?.work;
        if let Some(token) = request.token {
            work.fence.check(&request.key, token)?;
        }
        Ok(work.inbox.take(&request.positions))
    }
}
