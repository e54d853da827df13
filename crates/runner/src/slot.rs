//! One session in this process: what is known of it, and what is at work in it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Run;
use stepfold_session_scopes::SessionKey;
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
    pub(crate) history: Option<History>,
    /// The last run as it stopped in this process, with the version of the session then: it has its `temp:`
    /// values.
    pub(crate) stopped: Option<(u64, Box<Run>)>,
    /// What was said to a run that did not take it: the next one does.
    pub(crate) left_over: VecDeque<Message>,
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
