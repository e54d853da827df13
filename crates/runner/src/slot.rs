//! One session in this process: its cached data, its running invocation, and the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::{Outcome, Run};
use stepfold_session_scopes::{CommittedEvent, InvocationId, LifeId, Seen, SessionKey};
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
    /// Messages are accepted through it, one at a time, in order of arrival.
    pub(crate) door: Door,
    /// Held by the worker that runs.
    pub(crate) gate: Arc<tokio::sync::Mutex<Known>>,
    /// The known part of the session's inbox.
    pub(crate) mail: Mail,
    /// The claim of this process.
    pub(crate) held: Held,
    /// Notified when the inbox has unknown entries.
    pub(crate) bell: Notify,
    desk: Mutex<Desk>,
    waiting: Arc<AtomicUsize>,
}

/// The cached data of a session, so that a turn reads only new data.
#[derive(Default)]
pub(crate) struct Known {
    /// `None` before the first read, and after anything that may invalidate it.
    pub(crate) history: Option<Arc<History>>,
    /// The last run when it stopped in this process: its values are newer than those of the history, and
    /// include `temp:`.
    pub(crate) stopped: Option<Left>,
    /// Whether the session is kept in memory for the `temp:` values of its run.
    pub(crate) is_kept: bool,
}

impl Known {
    /// Adds what this process has written to what it knows. What cannot be folded is read again.
    pub(crate) fn follow(&mut self, key: &SessionKey, written: &[CommittedEvent]) {
        let Some(history) = &mut self.history else { return };
        if Arc::make_mut(history).follow(key, written).is_err() {
            self.history = None;
        }
    }

    /// The values after the last run of this process.
    pub(crate) fn left(&self) -> Option<Kept> {
        let stopped = self.stopped.as_ref()?;
        Kept::left_by(stopped.run().state(), stopped.seen?)
    }
}

/// A run that stopped in this process, and the session after it.
pub(crate) struct Left {
    outcome: Arc<Outcome>,
    version: u64,
    life: Option<LifeId>,
    /// The versions of the run's values, if known.
    pub(crate) seen: Option<Seen>,
}

impl Left {
    pub(crate) fn new(outcome: Arc<Outcome>, version: u64, life: Option<LifeId>, seen: Option<Seen>) -> Self {
        Left { outcome, version, life, seen }
    }

    pub(crate) fn run(&self) -> &Run {
        self.outcome.run()
    }

    /// Whether the session is unchanged since the run.
    pub(crate) fn is_last_of(&self, history: &History) -> bool {
        self.version == history.version && self.life == history.life
    }
}

/// The running invocation, and the queue.
#[derive(Default)]
pub(crate) struct Desk {
    /// The running invocation.
    pub(crate) current: Option<Current>,
    /// The run that it drives, or is about to; made when it is first asked for.
    run: Option<ActiveRun>,
    /// Whether another worker runs in the session: the running invocation waits for it.
    is_elsewhere: bool,
    /// Whether a worker is running. There is never a second one.
    is_worked: bool,
    /// Jobs of this process that are not stored: to resume, to abandon.
    orders: VecDeque<Job>,
    /// Messages of this process in the inbox.
    accepted: VecDeque<Ticket>,
    /// Messages of this process that the run has taken: its outcome is theirs.
    joined: Vec<Ticket>,
}

/// The run that an invocation drives. A cancellation of the run is not one of the invocation, whose message may still wait;
/// and one of the invocation is not one of a run that comes before its own.
#[derive(Clone, Default)]
pub(crate) struct ActiveRun {
    cancellation: CancellationToken,
    /// Whether it is driven, and not only about to be.
    is_driven: bool,
    /// Whether it ended as cancelled, once it has ended.
    ended: Arc<watch::Sender<Option<bool>>>,
}

impl ActiveRun {
    pub(crate) fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// Is cancelled with the run; and with the invocation, if the run is its own.
    pub(crate) fn token(&self, is_of: Option<&Invocation>) -> CancellationToken {
        if let Some(invocation) = is_of {
            invocation.joins(&self.cancellation);
        }
        self.cancellation.child_token()
    }

    /// Waits until it has ended, and returns whether it was cancelled: a cancellation may come too late, and an invocation may
    /// end without a run.
    pub(crate) async fn was_cancelled(&self) -> bool {
        let mut ended = self.ended.subscribe();
        ended.wait_for(Option::is_some).await.is_ok_and(|ended| *ended == Some(true))
    }
}

/// A running invocation.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) invocation: Invocation,
    pub(crate) cancellation: CancellationToken,
}

/// An invocation, from the worker's side.
pub(crate) struct Ticket {
    pub(crate) current: Current,
    pub(crate) hub: Arc<Hub>,
    ended: watch::Sender<Option<Ended>>,
    waiting: Option<Waiting>,
}

/// A worker's next action, and its invocation.
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

    /// Takes a position in the queue; `None` if it is full.
    pub(crate) fn wait(&self, limit: usize) -> Option<Waiting> {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst);
        let entered = Waiting(Arc::clone(&self.waiting));
        (waiting < limit).then_some(entered)
    }

    /// The number of waiting messages.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
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

    /// A worker begins this job.
    pub(crate) fn begin(&mut self, job: Job) -> Job {
        self.works_on(Some(&job.ticket));
        job
    }

    fn works_on(&mut self, ticket: Option<&Ticket>) {
        self.is_worked = ticket.is_some();
        self.current = ticket.map(|ticket| ticket.current.clone());
        self.end_run(false);
        self.is_elsewhere = false;
        self.joined.clear();
    }

    /// The run of this process that a cancellation cancels.
    pub(crate) fn run(&mut self) -> Option<ActiveRun> {
        (self.current.is_some() && !self.is_elsewhere).then(|| self.run.get_or_insert_default().clone())
    }

    /// The run begins, or continues.
    pub(crate) fn drives(&mut self) -> ActiveRun {
        if self.current.is_some() {
            self.run.get_or_insert_default().is_driven = true;
        }
        self.run().unwrap_or_default()
    }

    /// The invocation that drives a run.
    pub(crate) fn driving(&self) -> Option<&Invocation> {
        let is_driven = self.run.as_ref().is_some_and(|run| run.is_driven);
        self.current.as_ref().filter(|_| is_driven).map(|current| &current.invocation)
    }

    /// The worker has seen who runs in the session.
    pub(crate) fn set_elsewhere(&mut self, is_elsewhere: bool) {
        self.is_elsewhere = is_elsewhere;
    }

    /// The run has ended, or stopped. What the invocation drives next is another one. Returns the invocations whose messages
    /// it has taken.
    pub(crate) fn run_has_ended(&mut self, is_cancelled: bool) -> Vec<Ticket> {
        self.end_run(is_cancelled);
        std::mem::take(&mut self.joined)
    }

    /// Tells those who wait for the end of the run, also of one that was never driven.
    fn end_run(&mut self, is_cancelled: bool) {
        if let Some(run) = self.run.take() {
            run.ended.send_replace(Some(is_cancelled));
        }
    }

    /// The run has taken these messages.
    pub(crate) fn has_taken(&mut self, ids: &[InvocationId]) {
        let is_taken = |current: &Current| ids.contains(current.invocation.id());
        let (mut taken, accepted): (Vec<_>, _) =
            self.accepted.drain(..).partition(|ticket| is_taken(&ticket.current));
        self.accepted = accepted.into();
        let at_work = self.current.as_ref().filter(|current| is_taken(current));
        if self.current.is_some() {
            let run = self.run.get_or_insert_default();
            for current in taken.iter().map(|ticket| &ticket.current).chain(at_work) {
                current.invocation.joins(&run.cancellation);
            }
        }
        taken.iter_mut().for_each(Ticket::begins);
        self.joined.append(&mut taken);
    }

    /// Where those listen whose messages the run has taken.
    pub(crate) fn hubs_joined(&self) -> Vec<Arc<Hub>> {
        self.joined.iter().map(|ticket| Arc::clone(&ticket.hub)).collect()
    }

    /// The invocation of a message, if it waits or runs in this process.
    pub(crate) fn find(&self, id: &InvocationId) -> Option<Invocation> {
        let waiting = self.accepted.iter().chain(&self.joined).map(|ticket| &ticket.current);
        let mut all = self.current.iter().chain(waiting).map(|current| &current.invocation);
        all.find(|invocation| invocation.id() == id).cloned()
    }

    /// The invocations that were cancelled while their messages wait: these join no run of another sender.
    pub(crate) fn cancelled(&self) -> Vec<InvocationId> {
        let waiting = self.current.iter().chain(self.accepted.iter().map(|ticket| &ticket.current));
        let cancelled = waiting.filter(|current| current.cancellation.is_cancelled());
        cancelled.map(|current| current.invocation.id().clone()).collect()
    }

    /// Queues a job that is not stored.
    pub(crate) fn waits(&mut self, job: Job) -> Option<Job> {
        self.orders.push_back(job);
        None
    }

    /// Queues the invocation of a message in the inbox.
    pub(crate) fn waits_in_inbox(&mut self, ticket: Ticket) -> Option<Job> {
        self.accepted.push_back(ticket);
        None
    }

    /// The next job; the worker ends without one.
    pub(crate) fn next(&mut self, otherwise: impl FnOnce() -> Option<Job>) -> Option<Job> {
        let of_inbox = |ticket: Ticket| Job { order: Order::TakeInbox, ticket };
        let next = self.orders.pop_front().or_else(|| self.accepted.pop_front().map(of_inbox));
        let next = next.or_else(otherwise);
        self.works_on(next.as_ref().map(|job| &job.ticket));
        next
    }

    /// Whether a job waits in this process.
    pub(crate) fn has_next(&self) -> bool {
        !self.orders.is_empty() || !self.accepted.is_empty()
    }

    /// The worker is gone, with its runtime.
    pub(crate) fn is_left(&mut self) {
        self.end_run(false);
        *self = Desk::default();
    }
}

impl Ticket {
    pub(crate) fn new(key: &SessionKey, id: InvocationId, waiting: Option<Waiting>) -> Self {
        let (hub, cancellation) = (Hub::new(), CancellationToken::new());
        let (ended, end) = watch::channel(None);
        let invocation = Invocation::new(id, key.clone(), Arc::clone(&hub), end, cancellation.clone());
        Ticket { current: Current { invocation, cancellation }, hub, ended, waiting }
    }

    pub(crate) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = Some(waiting);
    }

    /// It no longer waits.
    pub(crate) fn begins(&mut self) {
        self.waiting = None;
    }

    /// Sets the result; none after a panic.
    pub(crate) fn end(self, ended: Option<Ended>) {
        if ended.is_some() {
            self.ended.send_replace(ended);
        }
    }
}

/// Tells the subscribers that no more events follow.
impl Drop for Ticket {
    fn drop(&mut self) {
        self.hub.end();
    }
}

/// Counts a waiting message.
pub(crate) struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// A cancellation holds the run that it has found: its end is told, and not seen from who else holds it.
    #[test]
    fn the_end_of_a_run_that_was_never_driven_is_told() {
        let key = SessionKey::new("app", "ada", "s1").unwrap();
        let job = |id| Job {
            order: Order::Abandon,
            ticket: Ticket::new(&key, InvocationId::new(id).unwrap(), None),
        };
        let ends: [fn(&mut Desk); 3] =
            [|desk| drop(desk.next(|| None)), |desk| desk.is_left(), |desk| drop(desk.run_has_ended(false))];
        for end in ends {
            let mut desk = Desk::default();
            let _job = desk.begin(job("i1"));
            let found = desk.run().unwrap();
            assert_eq!(found.was_cancelled().now_or_never(), None);
            end(&mut desk);
            assert_eq!(found.was_cancelled().now_or_never(), Some(false));
        }
    }
}
