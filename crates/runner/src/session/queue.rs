//! The queue of a session in this process: the running invocation, and those that wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stepfold_session_scopes::{InvocationId, SessionKey};
use stepfold_tools::CancellationToken;
use tokio::sync::watch;

use crate::session::command::WorkerCommand;
use crate::session::event_hub::EventHub;
use crate::session::invocation::{Invocation, InvocationResult};

/// The running invocation, and the queue.
#[derive(Default)]
pub(crate) struct SessionQueue {
    /// The running invocation.
    pub(crate) current: Option<CurrentInvocation>,
    /// The run that it drives or is about to drive; created on first use.
    run: Option<ActiveRun>,
    /// Whether another worker runs in the session: the running invocation waits for it.
    is_elsewhere: bool,
    /// Whether a worker is running. There is never a second one.
    has_worker: bool,
    /// Jobs of this process that are not stored: to resume, to abandon.
    commands: VecDeque<WorkerJob>,
    /// Messages of this process in the inbox.
    accepted: VecDeque<InvocationTicket>,
    /// Messages of this process that the run has taken: its outcome is theirs.
    joined: Vec<InvocationTicket>,
}

/// A command to the worker, and its invocation.
pub(crate) struct WorkerJob {
    pub(crate) command: WorkerCommand,
    pub(crate) ticket: InvocationTicket,
}

/// An invocation, from the worker's side.
pub(crate) struct InvocationTicket {
    pub(crate) current: CurrentInvocation,
    pub(crate) hub: Arc<EventHub>,
    ended: watch::Sender<Option<InvocationResult>>,
    waiting: Option<QueuePlace>,
}

/// A running invocation.
#[derive(Clone)]
pub(crate) struct CurrentInvocation {
    pub(crate) invocation: Invocation,
    pub(crate) cancellation: CancellationToken,
}

/// The run that an invocation drives. A cancellation of the run is not one of the invocation, whose message may still
/// wait; and one of the invocation is not one of a run that comes before its own.
#[derive(Clone, Default)]
pub(crate) struct ActiveRun {
    cancellation: CancellationToken,
    /// Whether it is driven, and not only about to be.
    is_driven: bool,
    /// Whether it ended as cancelled, once it has ended.
    ended: Arc<watch::Sender<Option<bool>>>,
}

impl SessionQueue {
    pub(crate) fn has_worker(&self) -> bool {
        self.has_worker
    }

    /// A worker begins this job.
    pub(crate) fn begin(&mut self, job: WorkerJob) -> WorkerJob {
        self.set_current(Some(&job.ticket));
        job
    }

    fn set_current(&mut self, ticket: Option<&InvocationTicket>) {
        self.has_worker = ticket.is_some();
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
    pub(crate) fn start_run(&mut self) -> ActiveRun {
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

    /// Sets whether another worker runs in the session.
    pub(crate) fn set_elsewhere(&mut self, is_elsewhere: bool) {
        self.is_elsewhere = is_elsewhere;
    }

    /// The run has ended, or stopped. What the invocation drives next is another one. Returns the invocations whose
    /// messages it has taken.
    pub(crate) fn run_has_ended(&mut self, is_cancelled: bool) -> Vec<InvocationTicket> {
        self.end_run(is_cancelled);
        std::mem::take(&mut self.joined)
    }

    /// Notifies callers that wait for the end of the run, also of one that was never driven.
    fn end_run(&mut self, is_cancelled: bool) {
        if let Some(run) = self.run.take() {
            run.ended.send_replace(Some(is_cancelled));
        }
    }

    /// The run has taken these messages.
    pub(crate) fn join_messages(&mut self, ids: &[InvocationId]) {
        let is_taken = |current: &CurrentInvocation| ids.contains(current.invocation.id());
        let (mut taken, accepted): (Vec<_>, _) =
            self.accepted.drain(..).partition(|ticket| is_taken(&ticket.current));
        self.accepted = accepted.into();
        let at_work = self.current.as_ref().filter(|current| is_taken(current));
        if self.current.is_some() {
            let run = self.run.get_or_insert_default();
            for current in taken.iter().map(|ticket| &ticket.current).chain(at_work) {
                current.invocation.join_run(&run.cancellation);
            }
        }
        taken.iter_mut().for_each(InvocationTicket::leave_queue);
        self.joined.append(&mut taken);
    }

    /// The hubs of the invocations whose messages the run has taken.
    pub(crate) fn joined_hubs(&self) -> Vec<Arc<EventHub>> {
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
    pub(crate) fn push_command(&mut self, job: WorkerJob) -> Option<WorkerJob> {
        self.commands.push_back(job);
        None
    }

    /// Queues the invocation of a message in the inbox.
    pub(crate) fn push_message(&mut self, ticket: InvocationTicket) -> Option<WorkerJob> {
        self.accepted.push_back(ticket);
        None
    }

    /// The next job; the worker ends without one.
    pub(crate) fn next(&mut self, otherwise: impl FnOnce() -> Option<WorkerJob>) -> Option<WorkerJob> {
        let of_inbox = |ticket: InvocationTicket| WorkerJob { command: WorkerCommand::TakeInbox, ticket };
        let next = self.commands.pop_front().or_else(|| self.accepted.pop_front().map(of_inbox));
        let next = next.or_else(otherwise);
        self.set_current(next.as_ref().map(|job| &job.ticket));
        next
    }

    /// Whether a job waits in this process.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.commands.is_empty() || !self.accepted.is_empty()
    }

    /// The worker is gone, with its runtime.
    pub(crate) fn reset(&mut self) {
        self.end_run(false);
        *self = SessionQueue::default();
    }
}

impl InvocationTicket {
    pub(crate) fn new(key: &SessionKey, id: InvocationId, waiting: Option<QueuePlace>) -> Self {
        let (hub, cancellation) = (EventHub::new(), CancellationToken::new());
        let (ended, end) = watch::channel(None);
        let invocation = Invocation::new(id, key.clone(), Arc::clone(&hub), end, cancellation.clone());
        InvocationTicket { current: CurrentInvocation { invocation, cancellation }, hub, ended, waiting }
    }

    pub(crate) fn has_place(&self) -> bool {
        self.waiting.is_some()
    }

    pub(crate) fn set_place(&mut self, waiting: QueuePlace) {
        self.waiting = Some(waiting);
    }

    /// Gives up its place among the waiting messages.
    pub(crate) fn leave_queue(&mut self) {
        self.waiting = None;
    }

    /// Sets the result; none after a panic.
    pub(crate) fn end(self, ended: Option<InvocationResult>) {
        if ended.is_some() {
            self.ended.send_replace(ended);
        }
    }
}

/// Ends the streams of the subscribers.
impl Drop for InvocationTicket {
    fn drop(&mut self) {
        self.hub.end();
    }
}

impl ActiveRun {
    pub(crate) fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// A token that is cancelled with the run; and with the invocation, if the run is its own.
    pub(crate) fn token(&self, is_of: Option<&Invocation>) -> CancellationToken {
        if let Some(invocation) = is_of {
            invocation.join_run(&self.cancellation);
        }
        self.cancellation.child_token()
    }

    /// Waits until it has ended, and returns whether it was cancelled: a cancellation may come too late, and an
    /// invocation may end without a run.
    pub(crate) async fn was_cancelled(&self) -> bool {
        let mut ended = self.ended.subscribe();
        ended.wait_for(Option::is_some).await.is_ok_and(|ended| *ended == Some(true))
    }
}

/// Counts a waiting message.
pub(crate) struct QueuePlace(pub(super) Arc<AtomicUsize>);

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// A cancellation holds the run that it has found, so its end is reported explicitly, and not by the drop of the
    /// last owner.
    #[test]
    fn the_end_of_a_run_that_was_never_driven_is_told() {
        let key = SessionKey::new("app", "ada", "s1").unwrap();
        let job = |id| WorkerJob {
            command: WorkerCommand::Abandon,
            ticket: InvocationTicket::new(&key, InvocationId::new(id).unwrap(), None),
        };
        let ends: [fn(&mut SessionQueue); 3] = [
            |queue| drop(queue.next(|| None)),
            |queue| queue.reset(),
            |queue| drop(queue.run_has_ended(false)),
        ];
        for end in ends {
            let mut queue = SessionQueue::default();
            let _job = queue.begin(job("i1"));
            let found = queue.run().unwrap();
            assert_eq!(found.was_cancelled().now_or_never(), None);
            end(&mut queue);
            assert_eq!(found.was_cancelled().now_or_never(), Some(false));
        }
    }
}
