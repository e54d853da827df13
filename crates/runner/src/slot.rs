//! One session in this process: what is known of it, what is at work in it, and what waits for that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::Run;
use stepfold_session_scopes::{InvocationId, LifeId, Seen, SessionKey};
use stepfold_tools::CancellationToken;
use tokio::sync::{Notify, watch};

use crate::accept::Door;
use crate::claim::Held;
use crate::history::History;
use crate::hub::Hub;
use crate::inbox::Mail;
use crate::invocation::{Ended, Invocation};
use crate::kept::Kept;
use crate::turn::Order;

pub(crate) struct Slot {
    pub(crate) key: SessionKey,
    /// Messages are accepted through it, one at a time: who came first is first.
    pub(crate) door: Door,
    /// Whoever holds it is at work.
    pub(crate) gate: Arc<tokio::sync::Mutex<Known>>,
    /// What is known of the session's inbox.
    pub(crate) mail: Mail,
    /// The claim of this process.
    pub(crate) held: Held,
    /// Rings when something stands in the inbox that is not known.
    pub(crate) bell: Notify,
    desk: Mutex<Desk>,
    waiting: Arc<AtomicUsize>,
}

/// What is known of a session, so that a turn reads only what is new.
#[derive(Default)]
pub(crate) struct Known {
    /// None until it was read, and after anything that makes it doubtful.
    pub(crate) history: Option<Arc<History>>,
    /// The values as the last run of this process has left them; they are newer than those of the history.
    pub(crate) left: Option<Kept>,
    /// The last run as it stopped in this process. It has its `temp:` values, and knows the conversation.
    pub(crate) stopped: Option<Left>,
    /// Whether the session is kept in memory for the `temp:` values of its run.
    pub(crate) is_kept: bool,
}

/// A run as it stopped in this process, and the session as it left it.
pub(crate) struct Left {
    pub(crate) run: Box<Run>,
    version: u64,
    life: Option<LifeId>,
    /// The versions that the values of the run are of, if they are known.
    pub(crate) seen: Option<Seen>,
}

impl Left {
    pub(crate) fn new(run: Run, version: u64, life: Option<LifeId>, seen: Option<Seen>) -> Self {
        Left { run: Box::new(run), version, life, seen }
    }

    /// Whether the session is as the run has left it.
    pub(crate) fn is_last_of(&self, history: &History) -> bool {
        self.version == history.version && self.life == history.life
    }
}

/// The invocation that is at work, and those that wait for it.
#[derive(Default)]
pub(crate) struct Desk {
    /// What is at work, for those who come meanwhile.
    pub(crate) current: Option<Current>,
    /// Whether a worker is there. There is never a second one.
    is_worked: bool,
    /// Whether a message has joined what is at work since that was looked at.
    has_joined: bool,
    /// What was asked for in this process and is not stored: to resume, to abandon.
    orders: VecDeque<Job>,
    /// Messages of this process that stand in the inbox.
    accepted: VecDeque<Ticket>,
}

/// An invocation that is at work.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) invocation: Invocation,
    pub(crate) cancellation: CancellationToken,
    /// Cancels its run and nothing else: a later message interrupts it. Its own message stays where it waits.
    pub(crate) interruption: CancellationToken,
}

/// An invocation from the side of the worker.
pub(crate) struct Ticket {
    pub(crate) current: Current,
    pub(crate) hub: Arc<Hub>,
    ended: watch::Sender<Option<Ended>>,
    waiting: Option<Waiting>,
}

/// What a worker does next, and for which invocation.
pub(crate) struct Job {
    pub(crate) order: Order,
    pub(crate) ticket: Ticket,
}

impl Slot {
    pub(crate) fn new(key: SessionKey) -> Self {
        Slot {
            key,
            door: Door::default(),
            gate: Arc::default(),
            mail: Mail::default(),
            held: Held::default(),
            bell: Notify::new(),
            desk: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place among those that wait; none if there are that many already.
    pub(crate) fn wait(&self, limit: usize) -> Option<Waiting> {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst);
        let entered = Waiting(Arc::clone(&self.waiting));
        (waiting < limit).then_some(entered)
    }

    /// Whether a message would have to wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 || self.desk().is_worked
    }
}

impl Desk {
    pub(crate) fn is_worked(&self) -> bool {
        self.is_worked
    }

    /// A worker begins with this job.
    pub(crate) fn begin(&mut self, job: Job) -> Job {
        self.is_worked = true;
        self.current = Some(job.ticket.current.clone());
        job
    }

    /// A job that is not stored waits for the worker.
    pub(crate) fn waits(&mut self, job: Job) -> Option<Job> {
        self.orders.push_back(job);
        None
    }

    /// A message that stands in the inbox has an invocation of its own.
    pub(crate) fn waits_in_inbox(&mut self, ticket: Ticket) -> Option<Job> {
        self.accepted.push_back(ticket);
        None
    }

    /// The invocation that takes a message which joins whatever runs: the last one that waits, or what is at work.
    pub(crate) fn join(&mut self) -> Option<Invocation> {
        if let Some(last) = self.accepted.back() {
            return Some(last.current.invocation.clone());
        }
        let current = self.current.as_ref().filter(|current| !current.cancellation.is_cancelled())?;
        self.has_joined = true;
        Some(current.invocation.clone())
    }

    /// Whether something joined since the last look. If nothing did, a message begins an invocation of its own from
    /// here on.
    pub(crate) fn take_joined(&mut self) -> bool {
        let has_joined = std::mem::take(&mut self.has_joined);
        if !has_joined {
            self.current = None;
        }
        has_joined
    }

    /// The next job; without one the worker goes.
    pub(crate) fn next(&mut self, otherwise: impl FnOnce() -> Option<Job>) -> Option<Job> {
        let of_inbox = |ticket: Ticket| Job { order: Order::TakeInbox, ticket };
        let next = self.orders.pop_front().or_else(|| self.accepted.pop_front().map(of_inbox));
        let next = next.or_else(otherwise);
        self.has_joined = false;
        self.is_worked = next.is_some();
        self.current = next.as_ref().map(|job| job.ticket.current.clone());
        next
    }

    /// Whether something waits for the worker in this process.
    pub(crate) fn has_next(&self) -> bool {
        !self.orders.is_empty() || !self.accepted.is_empty()
    }

    /// The worker is gone, with its runtime.
    pub(crate) fn is_left(&mut self) {
        *self = Desk::default();
    }
}

impl Ticket {
    pub(crate) fn new(key: &SessionKey, id: InvocationId, waiting: Option<Waiting>) -> Self {
        let (hub, cancellation) = (Hub::new(), CancellationToken::new());
        let (ended, end) = watch::channel(None);
        let invocation = Invocation::new(id, key.clone(), Arc::clone(&hub), end, cancellation.clone());
        let interruption = cancellation.child_token();
        Ticket { current: Current { invocation, cancellation, interruption }, hub, ended, waiting }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = Some(waiting);
    }

    /// It waits no more.
    pub(crate) fn begins(&mut self) {
        self.waiting = None;
    }

    /// What came of it; nothing after a panic.
    pub(crate) fn end(self, ended: Option<Ended>) {
        if ended.is_some() {
            self.ended.send_replace(ended);
        }
    }
}

/// Tells the subscribers that nothing more comes.
impl Drop for Ticket {
    fn drop(&mut self) {
        self.hub.end();
    }
}

/// Whoever waits counts.
pub(crate) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
