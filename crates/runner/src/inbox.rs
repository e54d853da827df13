//! What waits in the inbox of a session: messages that were accepted, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Input;
use stepfold_session_scopes::InvocationId;
use stepfold_state_core::chat::Message;

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It begins a turn.
    Message,
    /// It joins the run that is at work, or begins a turn with others of its kind.
    Steer,
}

/// A message that waits.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) position: u64,
    pub(crate) kind: Kind,
    /// The name of the invocation that it begins.
    pub(crate) id: InvocationId,
    pub(crate) input: Input,
}

/// The entries of the inbox that are known in this process.
#[derive(Default)]
pub(crate) struct Mail(Mutex<Known>);

#[derive(Default)]
struct Known {
    entries: VecDeque<Entry>,
    /// How many of them a run has read. It takes them with the commit that has their messages.
    read: usize,
    last: u64,
}

impl Mail {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, kind: Kind, id: InvocationId, input: Input) {
        let mut known = self.known();
        known.last += 1;
        let position = known.last;
        known.entries.push_back(Entry { position, kind, id, input });
    }

    /// The entries that a turn begins with: a message by itself, or all that would have joined a run.
    pub(crate) fn front(&self) -> Vec<Entry> {
        let known = self.known();
        let steered = known.entries.iter().take_while(|entry| entry.kind == Kind::Steer).count();
        known.entries.iter().take(steered.max(1)).cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known().entries.is_empty()
    }

    /// Another run reads from the beginning.
    pub(crate) fn read_again(&self) {
        self.known().read = 0;
    }

    /// The messages that join a run, if some came that it has not read. One that begins a turn holds up those
    /// that came after it.
    pub(crate) fn read(&self) -> Option<Vec<Message>> {
        let mut known = self.known();
        let entry = known.entries.get(known.read).filter(|entry| entry.kind == Kind::Steer)?;
        let messages = entry.input.only_messages().unwrap_or_default();
        let messages = messages.iter().map(|message| (**message).clone()).collect();
        known.read += 1;
        Some(messages)
    }

    /// The positions of the entries that a run has read.
    pub(crate) fn positions_read(&self) -> Vec<u64> {
        let known = self.known();
        known.entries.iter().take(known.read).map(|entry| entry.position).collect()
    }

    /// These entries are taken: an event has their messages.
    pub(crate) fn taken(&self, positions: &[u64]) {
        let mut known = self.known();
        let read = known.entries.iter().take(known.read).filter(|entry| positions.contains(&entry.position));
        known.read -= read.count();
        known.entries.retain(|entry| !positions.contains(&entry.position));
    }
}
