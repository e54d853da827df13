//! The inbox of a session: accepted messages that wait, in order.
//!
//! The store has the inbox; this is the part known to this process, always its beginning: an entry is added
//! only when all earlier ones are known.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use stepfold_agent_loop::Input;
use stepfold_session_scopes::{InboxEntry, InboxKind, InvocationId, LifeId, SessionError, Timestamp};
use stepfold_state_core::chat::{Message, Role};
use stepfold_tools::CancellationToken;

use crate::session::busy::WhenBusy;

/// The handling of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// It begins a turn.
    Message,
    /// It joins the current run, or begins a turn with others of its kind.
    Steer,
}

impl MessageKind {
    /// Only messages of users join a run.
    pub(crate) fn of(input: &Input, busy: WhenBusy) -> Self {
        let is_said_by_users = input.only_messages().is_some_and(|messages| {
            !messages.is_empty() && messages.iter().all(|message| message.role() == Role::User)
        });
        if busy == WhenBusy::Steer && is_said_by_users { MessageKind::Steer } else { MessageKind::Message }
    }

    pub(crate) fn stored(self) -> InboxKind {
        match self {
            MessageKind::Message => InboxKind::Message,
            MessageKind::Steer => InboxKind::Steer,
        }
    }
}

/// A message in the [inbox](crate::SessionHandle::inbox) of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitingMessage {
    /// The id of its invocation; the idempotency key, if it was sent with one.
    pub id: InvocationId,
    /// The message.
    pub input: Input,
    /// Whether it joins the current run, if there is one.
    pub joins: bool,
    /// The time of acceptance.
    pub at: Timestamp,
}

impl WaitingMessage {
    pub(crate) fn read(stored: InboxEntry) -> Result<Self, SessionError> {
        let (at, joins) = (stored.at, stored.kind == InboxKind::Steer);
        let id = InvocationId::new(stored.idempotency_key.as_str())?;
        Ok(WaitingMessage { id, input: input_of(stored)?, joins, at })
    }
}

/// A waiting message.
#[derive(Clone, Debug)]
pub(crate) struct InboxMessage {
    pub(crate) position: u64,
    pub(crate) kind: MessageKind,
    /// The id of the invocation that it begins, and its idempotency key.
    pub(crate) id: InvocationId,
    /// Its content; none if it is large: then it is read when it is taken.
    pub(crate) input: Option<Input>,
}

/// The bytes of a content that is kept while it waits. Others stay in the store: an inbox may hold gigabytes.
pub(crate) const MAX_CACHED_BYTES: usize = 4_096;

impl InboxMessage {
    fn read(stored: InboxEntry, kind: MessageKind) -> Result<Self, SessionError> {
        let (position, id) = (stored.position, InvocationId::new(stored.idempotency_key.as_str())?);
        let input = if stored.has_body { Some(input_of(stored)?) } else { None };
        Ok(InboxMessage { position, kind, id, input })
    }

    /// Whether it joins a run, or a turn of others.
    fn joins(&self, cancelled: &[InvocationId]) -> bool {
        self.kind == MessageKind::Steer && !cancelled.contains(&self.id)
    }

    /// One that this process has stored. A message for the current run is taken soon.
    pub(crate) fn accepted(position: u64, kind: MessageKind, id: InvocationId, input: Input) -> Self {
        let is_kept = kind == MessageKind::Steer || input.to_json().is_some_and(|body| is_small(&body));
        InboxMessage { position, kind, id, input: is_kept.then_some(input) }
    }
}

pub(crate) fn input_of(stored: InboxEntry) -> Result<Input, SessionError> {
    Input::from_json(stored.body)
        .map_err(|source| SessionError::Stored { what: format!("inbox entry {}", stored.position), source })
}

fn is_small(body: &Value) -> bool {
    fn takes(value: &Value, left: &mut usize) -> bool {
        let own = value.as_str().map_or(size_of::<u64>(), str::len);
        let Some(rest) = left.checked_sub(own) else { return false };
        *left = rest;
        match value {
            Value::Array(items) => items.iter().all(|item| takes(item, left)),
            Value::Object(fields) => fields.values().all(|value| takes(value, left)),
            _ => true,
        }
    }

    takes(body, &mut { MAX_CACHED_BYTES })
}

/// A request to cancel a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CancelRequest {
    pub(crate) position: u64,
    /// The invocation of the run; unknown in requests that earlier versions made, which are about the current one.
    run: Option<InvocationId>,
}

impl CancelRequest {
    /// The field of the stored body.
    const RUN: &str = "run";

    /// The body of a request that is stored.
    pub(crate) fn body(run: &InvocationId) -> serde_json::Value {
        serde_json::json!({ CancelRequest::RUN: run.as_str() })
    }

    fn read(stored: &InboxEntry) -> Self {
        let run = stored.body[CancelRequest::RUN].as_str().and_then(|run| InvocationId::new(run).ok());
        CancelRequest { position: stored.position, run }
    }

    /// Whether the run of this invocation is to be cancelled.
    pub(crate) fn is_about(&self, invocation: &InvocationId) -> bool {
        self.run.as_ref().is_none_or(|run| run == invocation)
    }
}

/// The known entries of the inbox.
#[derive(Default)]
pub(crate) struct InboxCache(Mutex<InboxContents>);

#[derive(Default)]
struct InboxContents {
    /// By position.
    entries: Vec<InboxMessage>,
    /// The session's life: positions of another one mean nothing in it.
    life: Option<LifeId>,
    cancels: Vec<CancelRequest>,
    /// The positions of messages that the record has, to be removed from the store.
    dropped: Vec<u64>,
    /// The run has read the entries up to this position. It takes them with the commit of their messages.
    read_to: u64,
    /// Everything up to this position was taken.
    taken_to: u64,
    /// All entries up to this position are known.
    seen_to: u64,
    /// The newest reported position.
    newest: u64,
    /// The store has no inboxes: only this process has the entries.
    is_local: bool,
}

impl InboxCache {
    fn contents(&self) -> MutexGuard<'_, InboxContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, for a store without inboxes.
    pub(crate) fn add_local(&self, kind: MessageKind, id: InvocationId, input: Input) {
        let mut contents = self.contents();
        contents.is_local = true;
        contents.newest += 1;
        contents.seen_to = contents.newest;
        let position = contents.newest;
        contents.entries.push(InboxMessage { position, kind, id, input: Some(input) });
    }

    /// The session was read, after the mark. What is known of an earlier life of it is forgotten, with the mark: positions
    /// begin again in a session that was deleted and created again.
    pub(crate) fn enter_life(&self, life: &LifeId, mark: InboxMark) -> InboxMark {
        let mut contents = self.contents();
        let is_other = contents.life.as_ref().is_some_and(|contents| contents != life) && !contents.is_local;
        if is_other {
            *contents = InboxContents::default();
        }
        contents.life.get_or_insert_with(|| life.clone());
        if is_other { InboxMark { seen_to: 0, newest: 0 } } else { mark }
    }

    /// This process stored an entry, which no process had stored before.
    pub(crate) fn add_accepted(&self, entry: InboxMessage) {
        let mut contents = self.contents();
        contents.newest = contents.newest.max(entry.position);
        if entry.position == contents.seen_to + 1 {
            contents.seen_to = entry.position;
            contents.entries.push(entry);
        }
    }

    /// The store reported the newest waiting entry.
    pub(crate) fn note_newest(&self, newest: u64) {
        let mut contents = self.contents();
        contents.newest = contents.newest.max(newest);
    }

    /// Whether unknown entries wait.
    pub(crate) fn is_stale(&self) -> bool {
        let contents = self.contents();
        contents.newest > contents.seen_to
    }

    /// A mark of the current knowledge, before reading the store.
    pub(crate) fn mark(&self) -> InboxMark {
        let contents = self.contents();
        InboxMark { seen_to: contents.seen_to, newest: contents.newest }
    }

    /// The inbox was empty when it was read, after the mark.
    pub(crate) fn is_empty_up_to(&self, mark: InboxMark) {
        let mut contents = self.contents();
        if !contents.is_local {
            contents.entries.retain(|entry| entry.position > mark.seen_to);
            contents.cancels.clear();
            contents.seen_to = contents.seen_to.max(mark.newest);
        }
    }

    /// All entries of the inbox when it was read, after the mark.
    pub(crate) fn replace(&self, stored: Vec<InboxEntry>, mark: InboxMark) -> Result<(), SessionError> {
        let mut contents = self.contents();
        if contents.is_local {
            return Ok(());
        }
        // Entries accepted since the mark may be newer than those that were read.
        let is_newer = |position: u64| position > mark.seen_to;
        let waits = |position: u64| stored.iter().any(|other| other.position == position);
        contents.entries.retain(|entry| is_newer(entry.position) || waits(entry.position));
        contents.cancels.clear();
        // Entries that were reported before and are missing were taken by another worker.
        contents.seen_to = contents.seen_to.max(mark.newest);
        for entry in stored {
            let position = entry.position;
            contents.newest = contents.newest.max(position);
            contents.seen_to = contents.seen_to.max(position);
            let is_known = contents.entries.iter().any(|other| other.position == position);
            match entry.kind {
                InboxKind::Cancel => contents.cancels.push(CancelRequest::read(&entry)),
                _ if is_known || position <= contents.taken_to => {}
                InboxKind::Steer => contents.entries.push(InboxMessage::read(entry, MessageKind::Steer)?),
                _ => contents.entries.push(InboxMessage::read(entry, MessageKind::Message)?),
            }
        }
        contents.entries.sort_by_key(|entry| entry.position);
        Ok(())
    }

    /// The positions of messages for the current run whose contents are not known.
    pub(crate) fn joining_without_content(&self) -> Vec<u64> {
        let contents = self.contents();
        let joins =
            contents.entries.iter().filter(|entry| entry.kind == MessageKind::Steer && entry.input.is_none());
        joins.map(|entry| entry.position).collect()
    }

    /// The contents of entries, which were read.
    pub(crate) fn fill(&self, stored: Vec<InboxEntry>) -> Result<(), SessionError> {
        let mut contents = self.contents();
        for stored in stored {
            let entry = contents.entries.iter_mut().find(|entry| entry.position == stored.position);
            if let Some(entry) = entry.filter(|entry| entry.input.is_none()) {
                entry.input = Some(input_of(stored)?);
            }
        }
        Ok(())
    }

    /// Discards the entries: another worker has the session.
    pub(crate) fn clear(&self) {
        let mut contents = self.contents();
        if !contents.is_local {
            *contents = InboxContents::default();
        }
    }

    /// The kind of the first entry.
    pub(crate) fn first_kind(&self) -> Option<MessageKind> {
        self.contents().entries.first().map(|entry| entry.kind)
    }

    /// The entries that begin the next turn: a message alone, or all that would have joined a run.
    pub(crate) fn next_batch(&self, cancelled: &[InvocationId]) -> Vec<InboxMessage> {
        let contents = self.contents();
        let steered = contents.entries.iter().take_while(|entry| entry.joins(cancelled)).count();
        contents.entries.iter().take(steered.max(1)).cloned().collect()
    }

    /// The entry of this invocation, if it is known to wait.
    pub(crate) fn entry(&self, id: &InvocationId) -> Option<InboxMessage> {
        self.contents().entries.iter().find(|entry| entry.id == *id).cloned()
    }

    /// Whether no entry is known to wait.
    pub(crate) fn is_empty(&self) -> bool {
        let contents = self.contents();
        contents.entries.is_empty() && contents.newest <= contents.seen_to
    }

    /// Whether no entries wait except the first ones, this many.
    pub(crate) fn has_only_first(&self, first: usize) -> bool {
        let contents = self.contents();
        contents.entries.len() <= first && contents.newest <= contents.seen_to
    }

    /// The positions of these entries in the store.
    pub(crate) fn stored_positions(&self, entries: &[InboxMessage]) -> Vec<u64> {
        match self.contents().is_local {
            true => Vec::new(),
            false => entries.iter().map(|entry| entry.position).collect(),
        }
    }

    /// Another run reads from the beginning.
    pub(crate) fn rewind_reader(&self) {
        self.contents().read_to = 0;
    }

    /// The messages that join a run, if there are unread ones. A message that begins a turn delays those
    /// after it. A cancelled run reads none, since it would not answer them.
    ///
    /// `is_taken`: messages that the record has are not said again. Their keys were forgotten by the store.
    pub(crate) fn read_joining(
        &self,
        cancellation: &CancellationToken,
        cancelled: &[InvocationId],
        is_taken: impl Fn(&InvocationId) -> bool,
    ) -> Option<Vec<Message>> {
        if cancellation.is_cancelled() {
            return None;
        }
        let mut contents = self.contents();
        let read_to = contents.read_to;
        let contents = &mut *contents;
        for taken in contents.entries.extract_if(.., |entry| entry.position > read_to && is_taken(&entry.id))
        {
            contents.dropped.push(taken.position);
        }
        let entry = contents.entries.iter().find(|entry| entry.position > read_to)?;
        if !entry.joins(cancelled) {
            return None;
        }
        let messages = entry.input.as_ref()?.only_messages().unwrap_or_default();
        let messages = messages.iter().map(|message| (**message).clone()).collect();
        contents.read_to = entry.position;
        Some(messages)
    }

    /// The entries that a run has read.
    pub(crate) fn read_entries(&self) -> Vec<InboxMessage> {
        let contents = self.contents();
        contents.entries.iter().take_while(|entry| entry.position <= contents.read_to).cloned().collect()
    }

    /// The entries up to this one are taken: an event has their messages.
    pub(crate) fn remove_taken(&self, position: u64) {
        let mut contents = self.contents();
        contents.taken_to = contents.taken_to.max(position);
        contents.entries.retain(|entry| entry.position > position);
    }

    /// An entry was removed from the store without being taken.
    pub(crate) fn remove(&self, position: u64) {
        self.contents().entries.retain(|entry| entry.position != position);
    }

    /// The entries that an event has taken, by the record.
    pub(crate) fn found_in_record(&self, is_taken: impl Fn(&InvocationId) -> bool) -> Vec<InboxMessage> {
        self.contents().entries.iter().filter(|entry| is_taken(&entry.id)).cloned().collect()
    }

    /// The positions of messages that were found in the record meanwhile.
    pub(crate) fn drain_dropped(&self) -> Vec<u64> {
        std::mem::take(&mut self.contents().dropped)
    }

    /// The cancellation requests; each is executed once.
    pub(crate) fn drain_cancels(&self) -> Vec<CancelRequest> {
        std::mem::take(&mut self.contents().cancels)
    }
}

/// The state of knowledge at the beginning of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxMark {
    seen_to: u64,
    newest: u64,
}
