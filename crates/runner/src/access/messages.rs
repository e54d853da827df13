//! The inbox of a session in the store: messages are added, read and removed, and requests to cancel a run.

use stepfold_agent_loop::Input;
use stepfold_session_scopes::{
    DequeueInput, EnqueueInput, Enqueued, ErrorKind, IdempotencyKey, InboxEntry, InboxKind, InvocationId,
    ReadInbox, SessionError, SessionStore,
};
use stepfold_tools::CancellationToken;

use crate::access::backoff::retried;
use crate::access::session_access::SessionAccess;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::session::inbox::{CancelRequest, InboxMessage, MAX_CACHED_BYTES, MessageKind, input_of};

impl SessionAccess {
    /// Stores a message that has to wait. Without inboxes in the store, only this process has it. Returns whether it was
    /// stored before.
    pub(crate) async fn enqueue(
        &self,
        kind: MessageKind,
        id: InvocationId,
        input: Input,
    ) -> Result<bool, RunnerError> {
        match self.enqueue_stored(kind, id.clone(), input.clone()).await {
            Err(RunnerError { kind: RunnerErrorKind::Store { source, .. }, .. })
                if source.kind() == ErrorKind::Unsupported =>
            {
                self.local.inbox.add_local(kind, id, input);
                Ok(false)
            }
            stored => stored,
        }
    }

    /// Stores a message in the inbox of the store. Returns whether it was stored before: a repeat is never new, and may
    /// have been taken.
    pub(crate) async fn enqueue_stored(
        &self,
        kind: MessageKind,
        id: InvocationId,
        input: Input,
    ) -> Result<bool, RunnerError> {
        let Some(body) = self.runner.redacted_input(&input).to_json() else {
            return Err(RunnerError::new(&self.local.key, RunnerErrorKind::CannotWait));
        };
        let Enqueued { position, is_repeat, .. } = self.put(kind.stored(), id.as_str(), body).await?;
        match is_repeat {
            true => self.local.inbox.note_newest(position),
            false => self.local.inbox.add_accepted(InboxMessage::accepted(position, kind, id, input)),
        }
        self.local.inbox_changed.notify_one();
        Ok(is_repeat)
    }

    /// Removes a message from the inbox; returns whether it was there.
    pub(crate) async fn dequeue(&self, entry: &InboxMessage) -> Result<bool, SessionError> {
        let inbox = &self.local.inbox;
        if inbox.stored_positions(std::slice::from_ref(entry)).is_empty() {
            inbox.remove(entry.position);
            return Ok(true);
        }
        let request = DequeueInput::new(self.local.key.clone(), [entry.position]);
        let dropped = self.runner.store.dequeue(request).await?;
        inbox.remove(entry.position);
        Ok(!dropped.is_empty())
    }

    /// Requests the cancellation of a run that another worker has. Returns the position of the request.
    pub(crate) async fn enqueue_cancel(&self, run: &InvocationId) -> Result<u64, RunnerError> {
        let id = self.runner.ids.next();
        Ok(self.put(InboxKind::Cancel, &id, CancelRequest::body(run)).await?.position)
    }

    /// The same for a message that interrupts it and is accepted, whatever becomes of this.
    pub(crate) async fn interrupt_elsewhere(&self, run: &InvocationId) {
        if let Err(error) = self.enqueue_cancel(run).await {
            tracing::warn!(session = %self.local.key, %error, "the run of another worker could not be interrupted");
        }
    }

    async fn put(&self, kind: InboxKind, id: &str, body: serde_json::Value) -> Result<Enqueued, RunnerError> {
        let failed = |error| RunnerError::store(&self.local.key, error);
        let (key, at) = (self.local.key.clone(), self.runner.clock.now());
        let idempotency_key = IdempotencyKey::new(id).map_err(failed)?;
        let request = EnqueueInput::new(key, kind, idempotency_key, body, at);
        retried(|| self.runner.store.enqueue(request.clone())).await.map_err(failed)
    }
}

impl SessionAccess {
    /// Reads the waiting entries of the inbox, and large contents of those only that the current run takes.
    pub(crate) async fn read_inbox(&self) -> Result<(), SessionError> {
        let inbox = &self.local.inbox;
        let mark = inbox.mark();
        let heads = ReadInbox::new(self.local.key.clone()).without_bodies_over(MAX_CACHED_BYTES);
        inbox.replace(self.runner.store.inbox(heads).await?, mark)?;
        match inbox.joining_without_content() {
            joining if joining.is_empty() => Ok(()),
            joining => inbox.fill(self.contents(joining).await?),
        }
    }

    /// Entries with their contents.
    async fn contents(&self, positions: Vec<u64>) -> Result<Vec<InboxEntry>, SessionError> {
        self.runner.store.inbox(ReadInbox::new(self.local.key.clone()).only(positions)).await
    }

    /// These entries, whose contents are read now if they are not known.
    pub(crate) async fn with_inputs(
        &self,
        entries: Vec<InboxMessage>,
    ) -> Result<Vec<InboxMessage>, SessionError> {
        let missing = entries.iter().filter(|entry| entry.input.is_none());
        let missing: Vec<u64> = missing.map(|entry| entry.position).collect();
        if missing.is_empty() {
            return Ok(entries);
        }
        let mut stored = self.contents(missing).await?;
        let fill = |mut entry: InboxMessage| {
            if entry.input.is_none() {
                let place = stored.iter().position(|stored| stored.position == entry.position);
                // Another worker has taken it, or it was withdrawn.
                let gone = || SessionError::NotWaiting {
                    key: Box::new(self.local.key.clone()),
                    position: entry.position,
                };
                entry.input = Some(input_of(stored.swap_remove(place.ok_or_else(gone)?))?);
            }
            Ok(entry)
        };
        entries.into_iter().map(fill).collect()
    }

    /// Applies requests to cancel the run. A request is removed only after the cancellation, since one that stays in
    /// the store is executed again. Requests about other runs came too late, and are removed as well.
    pub(crate) async fn apply_cancellations(&self, run: Option<(&InvocationId, &CancellationToken)>) {
        let (cancels, dropped) = (self.local.inbox.drain_cancels(), self.local.inbox.drain_dropped());
        if cancels.is_empty() && dropped.is_empty() {
            return;
        }
        if let Some((run, cancellation)) = run
            && cancels.iter().any(|cancel| cancel.is_about(run))
        {
            cancellation.cancel();
        }
        let positions = cancels.iter().map(|cancel| cancel.position).chain(dropped);
        let mut request = DequeueInput::new(self.local.key.clone(), positions);
        request.token = self.local.claim.token();
        // The next reader finds one that could not be removed.
        let _ = self.runner.store.dequeue(request).await;
    }
}
