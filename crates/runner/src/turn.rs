//! The work of one invocation: wait for the session, read what is new, bring to its end what was interrupted, run,
//! and take what was said meanwhile. What comes next is decided in [`next`].

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use stepfold_agent_loop::{Decisions, Input, Outcome, Run, RunError, RunFault};
use stepfold_session_scopes::{EventRange, GetSession, InvocationId, Session, SessionError, SessionStore};
use stepfold_state_core::chat::Message;
use tokio::sync::OwnedMutexGuard;

use crate::accept::Acceptance;
use crate::error::RunnerError;
use crate::history::{History, run_prefix};
use crate::hub::Publish;
use crate::inbox::{Entry, Kind};
use crate::invocation::Ended;
use crate::journal::Journal;
use crate::next::{Last, Next, Wants, next};
use crate::runner::Inner;
use crate::slot::{Job, Known, Left, Slot, Ticket};

/// What an invocation is to do.
pub(crate) enum Order {
    /// A new turn, with a message that is stored by its first event.
    Begin { input: Box<Input>, acceptance: Acceptance },
    /// A new turn, with a message that stands in the inbox.
    TakeInbox,
    /// Go on with the last run.
    Resume { decisions: Decisions, with_changed_agent: bool },
    /// Cancel the last run.
    Abandon,
}

/// A runner and one of its sessions.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) runner: Arc<Inner>,
    pub(crate) slot: Arc<Slot>,
}

/// What the events of a session add up to, and the session with its values.
pub(crate) type Read = (Arc<History>, Session);

/// A run that has not ended, its invocation, and how many of its events are stored.
struct Stopped {
    run: Run,
    invocation: InvocationId,
    place: u64,
}

/// The session as a worker has looked at it.
struct Seen {
    read: Read,
    stopped: Option<Stopped>,
}

impl Turn {
    /// One invocation after the other, until nothing waits any more in this process.
    pub(crate) async fn work(self, first: Job) {
        let mut worker = Worker { slot: Arc::clone(&self.slot), is_at_work: true };
        let mut job = Some(first);
        while let Some(Job { order, mut ticket }) = job.take() {
            let taken = AssertUnwindSafe(self.clone().take(order, &mut ticket)).catch_unwind().await;
            let ended = taken.ok();
            job = self.next_job(ended.as_ref());
            worker.is_at_work = job.is_some();
            ticket.end(ended);
        }
    }

    /// What waits in this process; and what was left in the inbox, unless the last invocation failed: who sends
    /// next has it tried again.
    fn next_job(&self, ended: Option<&Ended>) -> Option<Job> {
        let goes_on = matches!(ended, Some(Ok(outcome)) if !outcome.exit().is_resumable());
        let left_in_inbox = || {
            let id = (goes_on && !self.slot.mail.is_empty()).then(|| self.runner.ids.next());
            let ticket = Ticket::new(&self.slot.key, InvocationId::new(id?).ok()?, None);
            Some(Job { order: Order::TakeInbox, ticket })
        };
        self.slot.desk().next(left_in_inbox)
    }

    async fn take(self, order: Order, ticket: &mut Ticket) -> Ended {
        let known = Arc::clone(&self.slot.gate).lock_owned().await;
        ticket.begins();
        let mut work = Work {
            turn: self,
            known,
            ticket,
            wants: Wants::Nothing,
            input: None,
            acceptance: None,
            decisions: Decisions::new(),
            with_changed_agent: false,
        };
        work.wants = match order {
            Order::Begin { input, acceptance } => {
                (work.input, work.acceptance) = (Some(*input), Some(acceptance));
                Wants::Begin
            }
            Order::TakeInbox => Wants::TakeInbox,
            Order::Resume { decisions, with_changed_agent } => {
                (work.decisions, work.with_changed_agent) = (decisions, with_changed_agent);
                Wants::Resume
            }
            Order::Abandon => Wants::Abandon,
        };
        let ended = work.run_to_end().await;
        // A message that was accepted stays so, whatever came of its run.
        work.accept(ended.as_ref().map(drop).map_err(Clone::clone));
        ended
    }

    /// Stores a message that has to wait.
    #[expect(clippy::unused_async, reason = "stores have an inbox soon")]
    pub(crate) async fn enqueue(
        &self,
        kind: Kind,
        id: InvocationId,
        input: Input,
    ) -> Result<(), RunnerError> {
        if input.to_json().is_none() {
            return Err(RunnerError::CannotWait { key: Box::new(self.slot.key.clone()) });
        }
        self.slot.mail.put(kind, id, input);
        Ok(())
    }

    /// The session with what is new since `known`, and the history with it.
    async fn read_since(&self, known: Option<Arc<History>>) -> Result<Read, RunnerError> {
        let failed = |error: SessionError| RunnerError::store(&self.slot.key, error);
        let since =
            known.as_ref().map_or(EventRange::All, |history| EventRange::AfterVersion(history.version));
        let get = GetSession::new(self.slot.key.clone());
        let session = self.runner.store.get(get.clone().events(since)).await.map_err(failed)?;
        // Nobody else has it, but for one who looks at it just now.
        let mut history = known.map(Arc::unwrap_or_clone).unwrap_or_default();
        // A rewind hides what was folded already.
        let is_rewound = session.events.iter().any(|event| event.event.actions.rewound_to().is_some());
        let is_another = since != EventRange::All && !history.is_of(&session);
        let session = match (is_rewound || is_another) && since != EventRange::All {
            true => {
                history = History::default();
                self.runner.store.get(get.events(EventRange::All)).await.map_err(failed)?
            }
            false => session,
        };
        history.extend(&session)?;
        Ok((Arc::new(history), session))
    }

    /// The whole session, read anew.
    pub(crate) async fn read(&self) -> Result<Read, RunnerError> {
        self.read_since(None).await
    }
}

/// Marks the worker of a session as gone when its runtime ends under it.
struct Worker {
    slot: Arc<Slot>,
    is_at_work: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_at_work {
            self.slot.desk().is_left();
        }
    }
}

/// An invocation at work.
struct Work<'a> {
    turn: Turn,
    known: OwnedMutexGuard<Known>,
    ticket: &'a Ticket,
    wants: Wants,
    /// The message that is not stored yet.
    input: Option<Input>,
    acceptance: Option<Acceptance>,
    decisions: Decisions,
    with_changed_agent: bool,
}

impl Work<'_> {
    /// The control flow of an invocation.
    async fn run_to_end(&mut self) -> Ended {
        let mut outcome = None;
        loop {
            let (seen, last) = self.look(outcome.as_ref()).await?;
            let first = self.turn.slot.mail.front();
            let is_steered = first.first().map(|entry| entry.kind);
            let wants = std::mem::replace(&mut self.wants, Wants::Nothing);
            outcome = match (next(wants, last, is_steered), seen) {
                (Next::Begin, Some(seen)) => {
                    let input = self.input.take().unwrap_or_default();
                    let id = self.ticket.current.invocation.id().clone();
                    Some(self.turn(seen.read, input, &id, Vec::new()).await?)
                }
                (Next::Store, _) => {
                    self.store().await?;
                    self.wants = Wants::TakeInbox;
                    None
                }
                (Next::Take, seen) => {
                    if wants == Wants::TakeInbox && !self.is_own(&first) {
                        self.wants = Wants::TakeInbox;
                    }
                    Some(self.take_entries(seen, first).await?)
                }
                (Next::Recover, Some(Seen { stopped: Some(stopped), .. })) => {
                    self.wants = wants;
                    Some(self.drive(stopped, Vec::new()).await?)
                }
                (Next::Resume | Next::Abandon, Some(Seen { stopped: Some(stopped), .. })) => {
                    if wants == Wants::Abandon {
                        self.ticket.current.cancellation.cancel();
                    }
                    self.check_decisions(&stopped.run)?;
                    Some(self.drive(stopped, Vec::new()).await?)
                }
                (Next::Repair, Some(seen)) => {
                    self.ticket.current.cancellation.cancel();
                    let id = self.new_invocation()?;
                    Some(self.turn(seen.read, Input::new(), &id, Vec::new()).await?)
                }
                (Next::IsTaken, Some(seen)) => return self.outcome_of_last_run(&seen.read).await,
                (Next::Refuse(pending), _) => return Err(self.pending(pending, wants)),
                (Next::NothingToResume, _) => return Err(self.nothing_to_resume()),
                (Next::End, _) => match outcome {
                    Some(outcome) if !self.turn.slot.desk().take_joined() => return Ok(outcome),
                    outcome => outcome,
                },
                (next, None | Some(_)) => unreachable!("{next:?} needs the session as it was read"),
            };
        }
    }

    /// How the session is. After a run of its own the invocation knows it without reading.
    async fn look(&mut self, outcome: Option<&Arc<Outcome>>) -> Result<(Option<Seen>, Last), RunnerError> {
        if let (Wants::Nothing, Some(outcome)) = (self.wants, outcome) {
            return Ok((None, if outcome.exit().is_resumable() { Last::Interrupted } else { Last::Ended }));
        }
        let read = self.catch_up().await?;
        let with_changed_agent = self.with_changed_agent || self.wants == Wants::Abandon;
        let (stopped, last) = match self.last_run(&read, with_changed_agent) {
            // This agent cannot read the record. A run that begins and is cancelled at once comes after it, and
            // repairs what it has left open.
            Err(RunnerError::Recover { .. }) if self.wants == Wants::Abandon => (None, Last::Unreadable),
            Err(error) => return Err(error),
            Ok(None) => (None, Last::Ended),
            Ok(Some(stopped)) => {
                let pending: Vec<String> =
                    stopped.run.pending().into_iter().map(|request| request.id).collect();
                let last = if pending.is_empty() { Last::Interrupted } else { Last::Waits(pending) };
                (Some(stopped), last)
            }
        };
        Ok((Some(Seen { read, stopped }), last))
    }

    fn new_invocation(&self) -> Result<InvocationId, RunnerError> {
        InvocationId::new(self.turn.runner.ids.next()).map_err(|error| self.failed(error))
    }

    /// Tells whoever sent the message, if that is not done.
    fn accept(&mut self, accepted: Result<(), RunnerError>) {
        if let Some(acceptance) = self.acceptance.take() {
            acceptance.tell(accepted);
        }
    }

    /// Puts the message into the inbox, since something comes before it.
    async fn store(&mut self) -> Result<(), RunnerError> {
        let input = self.input.take().unwrap_or_default();
        let id = self.ticket.current.invocation.id().clone();
        self.turn.enqueue(Kind::Message, id, input).await?;
        self.accept(Ok(()));
        Ok(())
    }

    fn is_own(&self, entries: &[Entry]) -> bool {
        entries.iter().any(|entry| entry.id == *self.ticket.current.invocation.id())
    }

    /// A turn that begins with these entries of the inbox.
    async fn take_entries(&mut self, seen: Option<Seen>, entries: Vec<Entry>) -> Ended {
        let read = match seen {
            Some(seen) => seen.read,
            None => self.catch_up().await?,
        };
        let positions = entries.iter().map(|entry| entry.position).collect();
        let id = match entries.as_slice() {
            [entry] if entry.kind == Kind::Message => entry.id.clone(),
            _ => self.new_invocation()?,
        };
        let input = joined(entries);
        self.turn(read, input, &id, positions).await
    }

    /// A turn that begins with this, which stood in the inbox at these positions.
    async fn turn(&mut self, read: Read, input: Input, id: &InvocationId, positions: Vec<u64>) -> Ended {
        let (history, session) = read;
        let state = history.state(&session, &self.turn.runner.schema)?;
        // The run that has left the conversation as it is now, if it was one of this process.
        let left_by = self.known.stopped.as_ref().map(|left| &*left.run);
        let input = input.on_state(state, left_by).with_summary(history.summary.clone());
        let key = &self.turn.slot.key;
        let prefix = run_prefix(key, Some(&session.life), id);
        let run = Run::new(&self.turn.runner.agent, input, prefix)
            .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
        self.drive(Stopped { run, invocation: id.clone(), place: 0 }, positions).await
    }

    fn nothing_to_resume(&self) -> RunnerError {
        RunnerError::NothingToResume { key: Box::new(self.turn.slot.key.clone()) }
    }

    /// A decision is about a call that is stored. It must not lie in wait for one that the model makes later.
    fn check_decisions(&self, run: &Run) -> Result<(), RunnerError> {
        let refused = |error| RunnerError::decision(&self.turn.slot.key, error);
        run.check_decisions(&self.decisions).map_err(refused)
    }

    fn pending(&self, pending: Vec<String>, wants: Wants) -> RunnerError {
        let is_accepted = wants == Wants::TakeInbox;
        RunnerError::Pending { key: Box::new(self.turn.slot.key.clone()), pending, is_accepted }
    }

    fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.turn.slot.key, error)
    }

    /// Reads what is new.
    async fn catch_up(&mut self) -> Result<Read, RunnerError> {
        let known = self.known.history.take();
        let (history, session) = self.turn.read_since(known).await?;
        // Somebody else went on with it, or made it anew.
        self.known.stopped.take_if(|left| !left.is_last_of(&history));
        self.known.history = Some(Arc::clone(&history));
        Ok((history, session))
    }

    /// The outcome of the last run, which has ended.
    async fn outcome_of_last_run(&self, (history, session): &Read) -> Ended {
        let (agent, key) = (&self.turn.runner.agent, &self.turn.slot.key);
        let state = history.state(session, &self.turn.runner.schema)?;
        let run = history.last_run(agent, state, key)?.ok_or_else(|| self.nothing_to_resume())?;
        run.resume().await.map(Arc::new).map_err(|error| self.run_failed(error))
    }

    /// The last run if it has not ended.
    fn last_run(
        &self,
        (history, session): &Read,
        with_changed_agent: bool,
    ) -> Result<Option<Stopped>, RunnerError> {
        let Some(last) = history.last.as_ref().filter(|_| !history.has_ended()) else { return Ok(None) };
        let changes = history.changes(&self.turn.runner.agent);
        if !changes.is_empty() && !with_changed_agent {
            return Err(RunnerError::AgentChanged { key: Box::new(self.turn.slot.key.clone()), changes });
        }
        // It stays known: whoever is refused now must not cost the next one its `temp:` values.
        let run = if let Some(left) = &self.known.stopped {
            Some((*left.run).clone())
        } else {
            let (agent, key) = (&self.turn.runner.agent, &self.turn.slot.key);
            let state = history.state(session, &self.turn.runner.schema)?;
            history.last_run(agent, state, key)?
        };
        let run = run.filter(|run| run.exit().is_none());
        let (invocation, place) = (last.invocation.clone(), last.events.len() as u64);
        Ok(run.map(|run| Stopped { run, invocation, place }))
    }

    /// Runs, with every commit stored before anything else happens.
    async fn drive(&mut self, from: Stopped, positions: Vec<u64>) -> Ended {
        let Stopped { run, invocation, place } = from;
        let inner = &self.turn.runner;
        let mail = &self.turn.slot.mail;
        mail.read_again();
        let history = self.known.history.as_ref();
        let (version, life) = history.map_or((0, None), |history| (history.version, history.life.clone()));
        // Several workers may resume one invocation. If they made the same event, the store would take the
        // second for the first one repeated, and both would believe that the call is theirs to start.
        let attempt = (place > 0).then(|| inner.ids.next());
        let mut journal = Journal {
            store: inner.store.clone(),
            slot: Arc::clone(&self.turn.slot),
            schema: inner.schema.clone(),
            clock: Arc::clone(&inner.clock),
            agent: inner.agent.clone(),
            invocation,
            version,
            place,
            attempt,
            ahead: run.clone(),
            begins_with: positions,
            acceptance: self.acceptance.clone(),
        };
        let mut said = Vec::new().into_iter();
        let ended = run
            .resume()
            .observe(&mut journal)
            .observe(Publish(Arc::clone(&self.ticket.hub)))
            .observe(inner.observers.of(&self.turn.slot.key))
            .cancel_with(self.ticket.current.cancellation.clone())
            .inbox_with(|| next_message(&mut said, || mail.read()))
            .decide_all(std::mem::take(&mut self.decisions))
            .await;
        match ended {
            Ok(outcome) => {
                self.known.stopped = Some(Left::new(outcome.run().clone(), journal.version, life));
                Ok(Arc::new(outcome))
            }
            Err(error) => {
                self.known.stopped = None;
                Err(self.run_failed(error))
            }
        }
    }

    /// An observer that failed is the store.
    fn run_failed(&self, error: RunError) -> RunnerError {
        let key = &self.turn.slot.key;
        match error.fault() {
            RunFault::Observer(source) if source.is::<SessionError>() => match error.into_fault() {
                RunFault::Observer(source) => match source.downcast::<SessionError>() {
                    Ok(source) => RunnerError::store(key, *source),
                    Err(source) => {
                        RunnerError::store(key, SessionError::Store { what: "append an event", source })
                    }
                },
                fault => unreachable!("the fault is the one that was looked at, not {fault}"),
            },
            RunFault::Decision(refused) => RunnerError::decision(key, refused.clone()),
            _ => RunnerError::Run { key: Box::new(key.clone()), source: Arc::new(error) },
        }
    }
}

/// The next message of what was read, or of what is read then.
fn next_message(
    said: &mut std::vec::IntoIter<Message>,
    mut read: impl FnMut() -> Option<Vec<Message>>,
) -> Option<Message> {
    loop {
        match said.next() {
            Some(message) => return Some(message),
            None => *said = read()?.into_iter(),
        }
    }
}

/// The input of a turn that begins with these entries: of one message, or of all that would have joined a run.
fn joined(entries: Vec<Entry>) -> Input {
    let mut entries = entries.into_iter().map(|entry| entry.input);
    let first = entries.next().unwrap_or_default();
    let others = entries.flat_map(|input| input.only_messages().unwrap_or_default().to_vec());
    others.fold(first, |input, message| input.with_message((*message).clone()))
}
