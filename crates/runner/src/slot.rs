//! One session in this process: what is known of it, and what is at work in it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Run;
use stepfold_session_scopes::{SessionKey, Timestamp};
use stepfold_state_core::chat::Message;
use stepfold_tools::CancellationToken;
use tokio::sync::mpsc;

use crate::history::History;
use crate::invocation::Invocation;

pub(crate) struct Slot {
    pub(crate) key: SessionKey,
    /// Whoever holds it is at work.
    pub(crate) gate: Arc<tokio::sync::Mutex<Known>>,
    /// What is at work, for those who come meanwhile.
    current: Mutex<Option<Current>>,
    pub(crate) waiting: AtomicUsize,
}

/// What is known of a session, so that a turn reads only what is new.
#[derive(Default)]
pub(crate) struct Known {
    /// None until it was read, and after anything that makes it doubtful.
    pub(crate) history: Option<Arc<History>>,
    /// The last run as it stopped in this process. It has its `temp:` values, and knows the conversation.
    pub(crate) stopped: Option<Left>,
    /// What was said to a run and is not stored yet: if that run does not take it, the next one does.
    pub(crate) left_over: LeftOver,
}

/// A run as it stopped in this process, and the session as it left it.
pub(crate) struct Left {
    pub(crate) run: Box<Run>,
    version: u64,
    created: Option<Timestamp>,
}

impl Left {
    pub(crate) fn new(run: Run, version: u64, created: Option<Timestamp>) -> Self {
        Left { run: Box::new(run), version, created }
    }

    /// Whether the session is as the run has left it.
    pub(crate) fn is_last_of(&self, history: &History) -> bool {
        self.version == history.version && self.created == history.created
    }
}

/// What was said and is not stored yet, in order. A run reads from it, and only a commit takes from it.
#[derive(Clone, Default)]
pub(crate) struct LeftOver(Arc<Mutex<Unstored>>);

#[derive(Default)]
struct Unstored {
    messages: VecDeque<Message>,
    /// How many of them a run has read.
    read: usize,
}

impl LeftOver {
    fn lock(&self) -> MutexGuard<'_, Unstored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, message: Message) {
        self.lock().messages.push_back(message);
    }

    /// The next message that the run has not read.
    pub(crate) fn read(&self) -> Option<Message> {
        let mut unstored = self.lock();
        let message = unstored.messages.get(unstored.read).cloned()?;
        unstored.read += 1;
        Some(message)
    }

    /// These many messages are stored.
    pub(crate) fn stored(&self, messages: usize) {
        let mut unstored = self.lock();
        let messages = messages.min(unstored.messages.len());
        unstored.messages.drain(..messages);
        unstored.read = unstored.read.saturating_sub(messages);
    }

    /// Another run reads from the beginning.
    pub(crate) fn read_again(&self) {
        self.lock().read = 0;
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Message> {
        self.lock().messages.iter().cloned().collect()
    }
}

/// An invocation that is at work.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) invocation: Invocation,
    pub(crate) cancellation: CancellationToken,
    pub(crate) inbox: mpsc::Sender<Message>,
}

impl Slot {
    pub(crate) fn new(key: SessionKey) -> Self {
        Slot { key, gate: Arc::default(), current: Mutex::new(None), waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
