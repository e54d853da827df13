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

use crate::runner::Busy;

/// The handling of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It begins a turn.
    Message,
    /// It joins the current run, or begins a turn with others of its kind.
    Steer,
}

impl Kind {
    /// Only messages of users join a run.
    pub(crate) fn of(input: &Input, busy: Busy) -> Self {
        let is_said_by_users = input.only_messages().is_some_and(|messages| {
            !messages.is_empty() && messages.iter().all(|message| message.role() == Role::User)
        });
        if busy == Busy::Steer && is_said_by_users { Kind::Steer } else { Kind::Message }
    }

    pub(crate) fn stored(self) -> InboxKind {
        match self {
            Kind::Message => InboxKind::Message,
            Kind::Steer => InboxKind::Steer,
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
pub(crate) struct Entry {
    pub(crate) position: u64,
    pub(crate) kind: Kind,
    /// The id of the invocation that it begins, and its idempotency key.
    pub(crate) id: InvocationId,
    /// Its content; none if it is large: then it is read when it is taken.
    pub(crate) input: Option<Input>,
}

/// The bytes of a content that is kept while it waits. Others stay in the store: an inbox may hold gigabytes.
pub(crate) const KEPT: usize = 4_096;

impl Entry {
    fn read(stored: InboxEntry, kind: Kind) -> Result<Self, SessionError> {
        let (position, id) = (stored.position, InvocationId::new(stored.idempotency_key.as_str())?);
        let input = if stored.has_body { Some(input_of(stored)?) } else { None };
        Ok(Entry { position, kind, id, input })
    }

    /// Whether it joins a run, or a turn of others.
    fn joins(&self, cancelled: &[InvocationId]) -> bool {
        self.kind == Kind::Steer && !cancelled.contains(&self.id)
    }

    /// One that this process has stored. A message for the current run is taken soon.
    pub(crate) fn accepted(position: u64, kind: Kind, id: InvocationId, input: Input) -> Self {
        let is_kept = kind == Kind::Steer || input.to_json().is_some_and(|body| is_small(&body));
        Entry { position, kind, id, input: is_kept.then_some(input) }
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

    takes(body, &mut { KEPT })
}

/// A request to cancel a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cancel {
    pub(crate) position: u64,
    /// The invocation of the run; unknown in requests that earlier versions made, which are about the one at work.
    run: Option<InvocationId>,
}

impl Cancel {
    /// The field of the stored body.
    const RUN: &str = "run";

    /// The body of a request that is stored.
    pub(crate) fn body(run: &InvocationId) -> serde_json::Value {
        serde_json::json!({ Cancel::RUN: run.as_str() })
    }

    fn read(stored: &InboxEntry) -> Self {
        let run = stored.body[Cancel::RUN].as_str().and_then(|run| InvocationId::new(run).ok());
        Cancel { position: stored.position, run }
    }

    /// Whether the run of this invocation is to be cancelled.
    pub(crate) fn is_about(&self, invocation: &InvocationId) -> bool {
        self.run.as_ref().is_none_or(|run| run == invocation)
    }
}

/// The known entries of the inbox.
#[derive(Default)]
pub(crate) struct Mail(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By position.
    entries: Vec<Entry>,
    /// The session's life: positions of another one mean nothing in it.
    life: Option<LifeId>,
    cancels: Vec<Cancel>,
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

impl Mail {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, for a store without inboxes.
    pub(crate) fn keep(&self, kind: Kind, id: InvocationId, input: Input) {
        let mut known = self.known();
        known.is_local = true;
        known.newest += 1;
        known.seen_to = known.newest;
        let position = known.newest;
        known.entries.push(Entry { position, kind, id, input: Some(input) });
    }

    /// The session was read, after the mark. What is known of an earlier life of it is forgotten, with the mark: positions
    /// begin again in a session that was deleted and created again.
    pub(crate) fn in_life(&self, life: &LifeId, mark: Mark) -> Mark {
        let mut known = self.known();
        let is_other = known.life.as_ref().is_some_and(|known| known != life) && !known.is_local;
        if is_other {
            *known = Known::default();
        }
        known.life.get_or_insert_with(|| life.clone());
        if is_other { Mark { seen_to: 0, newest: 0 } } else { mark }
    }

    /// This process stored an entry, which no process had stored before.
    pub(crate) fn accepted(&self, entry: Entry) {
        let mut known = self.known();
        known.newest = known.newest.max(entry.position);
        if entry.position == known.seen_to + 1 {
            known.seen_to = entry.position;
            known.entries.push(entry);
        }
    }

    /// The store reported the newest waiting entry.
    pub(crate) fn heard_of(&self, newest: u64) {
        let mut known = self.known();
        known.newest = known.newest.max(newest);
    }

    /// Whether unknown entries wait.
    pub(crate) fn is_stale(&self) -> bool {
        let known = self.known();
        known.newest > known.seen_to
    }

    /// A mark of the current knowledge, before reading the store.
    pub(crate) fn mark(&self) -> Mark {
        let known = self.known();
        Mark { seen_to: known.seen_to, newest: known.newest }
    }

    /// The inbox was empty when it was read, after the mark.
    pub(crate) fn is_empty_up_to(&self, mark: Mark) {
        let mut known = self.known();
        if !known.is_local {
            known.entries.retain(|entry| entry.position > mark.seen_to);
            known.cancels.clear();
            known.seen_to = known.seen_to.max(mark.newest);
        }
    }

    /// All entries of the inbox when it was read, after the mark.
    pub(crate) fn replace(&self, stored: Vec<InboxEntry>, mark: Mark) -> Result<(), SessionError> {
        let mut known = self.known();
        if known.is_local {
            return Ok(());
        }
        // Entries accepted since the mark may be newer than those that were read.
        let is_newer = |position: u64| position > mark.seen_to;
        let waits = |position: u64| stored.iter().any(|other| other.position == position);
        known.entries.retain(|entry| is_newer(entry.position) || waits(entry.position));
        known.cancels.clear();
        // Entries that were reported before and are missing were taken by another worker.
        known.seen_to = known.seen_to.max(mark.newest);
        for entry in stored {
            let position = entry.position;
            known.newest = known.newest.max(position);
            known.seen_to = known.seen_to.max(position);
            let is_known = known.entries.iter().any(|other| other.position == position);
            match entry.kind {
                InboxKind::Cancel => known.cancels.push(Cancel::read(&entry)),
                _ if is_known || position <= known.taken_to => {}
                InboxKind::Steer => known.entries.push(Entry::read(entry, Kind::Steer)?),
                _ => known.entries.push(Entry::read(entry, Kind::Message)?),
            }
        }
        known.entries.sort_by_key(|entry| entry.position);
        Ok(())
    }

    /// The positions of messages for the current run whose contents are not known.
    pub(crate) fn joining_without_input(&self) -> Vec<u64> {
        let known = self.known();
        let joins = known.entries.iter().filter(|entry| entry.kind == Kind::Steer && entry.input.is_none());
        joins.map(|entry| entry.position).collect()
    }

    /// The contents of entries, which were read.
    pub(crate) fn fill(&self, stored: Vec<InboxEntry>) -> Result<(), SessionError> {
        let mut known = self.known();
        for stored in stored {
            let entry = known.entries.iter_mut().find(|entry| entry.position == stored.position);
            if let Some(entry) = entry.filter(|entry| entry.input.is_none()) {
                entry.input = Some(input_of(stored)?);
            }
        }
        Ok(())
    }

    /// Discards the entries: another worker has the session.
    pub(crate) fn forget(&self) {
        let mut known = self.known();
        if !known.is_local {
            *known = Known::default();
        }
    }

    /// The kind of the first entry.
    pub(crate) fn first(&self) -> Option<Kind> {
        self.known().entries.first().map(|entry| entry.kind)
    }

    /// The entries that begin the next turn: a message alone, or all that would have joined a run.
    pub(crate) fn front(&self, cancelled: &[InvocationId]) -> Vec<Entry> {
        let known = self.known();
        let steered = known.entries.iter().take_while(|entry| entry.joins(cancelled)).count();
        known.entries.iter().take(steered.max(1)).cloned().collect()
    }

    /// The entry of this invocation, if it is known to wait.
    pub(crate) fn entry(&self, id: &InvocationId) -> Option<Entry> {
        self.known().entries.iter().find(|entry| entry.id == *id).cloned()
    }

    /// Whether no entry is known to wait.
    pub(crate) fn is_empty(&self) -> bool {
        let known = self.known();
        known.entries.is_empty() && known.newest <= known.seen_to
    }

    /// Whether no entries wait except the first ones, this many.
    pub(crate) fn is_empty_but_for(&self, first: usize) -> bool {
        let known = self.known();
        known.entries.len() <= first && known.newest <= known.seen_to
    }

    /// The positions of these entries in the store.
    pub(crate) fn stored(&self, entries: &[Entry]) -> Vec<u64> {
        match self.known().is_local {
            true => Vec::new(),
            false => entries.iter().map(|entry| entry.position).collect(),
        }
    }

    /// Another run reads from the beginning.
    pub(crate) fn read_again(&self) {
        self.known().read_to = 0;
    }

    /// The messages that join a run, if there are unread ones. A message that begins a turn delays those
    /// after it. A cancelled run reads none, since it would not answer them.
    ///
    /// `is_taken`: messages that the record has are not said again. Their keys were forgotten by the store.
    pub(crate) fn read_unless(
        &self,
        cancellation: &CancellationToken,
        cancelled: &[InvocationId],
        is_taken: impl Fn(&InvocationId) -> bool,
    ) -> Option<Vec<Message>> {
        if cancellation.is_cancelled() {
            return None;
        }
        let mut known = self.known();
        let read_to = known.read_to;
        let known = &mut *known;
        for taken in known.entries.extract_if(.., |entry| entry.position > read_to && is_taken(&entry.id)) {
            known.dropped.push(taken.position);
        }
        let entry = known.entries.iter().find(|entry| entry.position > read_to)?;
        if !entry.joins(cancelled) {
            return None;
        }
        let messages = entry.input.as_ref()?.only_messages().unwrap_or_default();
        let messages = messages.iter().map(|message| (**message).clone()).collect();
        known.read_to = entry.position;
        Some(messages)
    }

    /// The entries that a run has read.
    pub(crate) fn entries_read(&self) -> Vec<Entry> {
        let known = self.known();
        known.entries.iter().take_while(|entry| entry.position <= known.read_to).cloned().collect()
    }

    /// The entries up to this one are taken: an event has their messages.
    pub(crate) fn taken(&self, position: u64) {
        let mut known = self.known();
        known.taken_to = known.taken_to.max(position);
        known.entries.retain(|entry| entry.position > position);
    }

    /// An entry was removed from the store without being taken.
    pub(crate) fn withdrawn(&self, position: u64) {
        self.known().entries.retain(|entry| entry.position != position);
    }

    /// The entries that an event has taken, by the record.
    pub(crate) fn known_to(&self, is_taken: impl Fn(&InvocationId) -> bool) -> Vec<Entry> {
        self.known().entries.iter().filter(|entry| is_taken(&entry.id)).cloned().collect()
    }

    /// The positions of messages that were found in the record meanwhile.
    pub(crate) fn take_dropped(&self) -> Vec<u64> {
        std::mem::take(&mut self.known().dropped)
    }

    /// The cancellation requests; each is executed once.
    pub(crate) fn take_cancels(&self) -> Vec<Cancel> {
        std::mem::take(&mut self.known().cancels)
    }
}

/// The state of knowledge at the beginning of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    seen_to: u64,
    newest: u64,
}
