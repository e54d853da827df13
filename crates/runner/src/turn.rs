//! The work of one invocation: wait for the session, read what is new, bring to its end what was cut off, run,
//! and take in what was said meanwhile.

use std::sync::Arc;

use stepfold_agent_loop::{Decisions, Exit, Input, Outcome, Pause, Run, RunError, RunFault};
use stepfold_session_scopes::{EventRange, GetSession, InvocationId, Session, SessionError, SessionStore};
use stepfold_state_core::chat::Message;
use tokio::sync::{OwnedMutexGuard, mpsc};

use crate::error::RunnerError;
use crate::handle::Waiting;
use crate::history::{History, run_id};
use crate::hub::{Hub, Publish};
use crate::invocation::Ended;
use crate::journal::Journal;
use crate::runner::Inner;
use crate::slot::{Current, Known, Left, Slot};

/// What an invocation is to do.
pub(crate) enum Order {
    /// A new turn.
    Begin(Box<Input>),
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

/// An invocation at work.
struct Work {
    turn: Turn,
    known: OwnedMutexGuard<Known>,
    current: Current,
    inbox: mpsc::Receiver<Message>,
    hub: Arc<Hub>,
}

impl Turn {
    pub(crate) async fn take(
        self,
        order: Order,
        id: InvocationId,
        current: Current,
        inbox: mpsc::Receiver<Message>,
        hub: Arc<Hub>,
        waiting: Option<Waiting>,
    ) -> Ended {
        let known = Arc::clone(&self.slot.gate).lock_owned().await;
        {
            let mut at_work = self.slot.current();
            drop(waiting);
            *at_work = Some(current.clone());
        }
        let mut work = Work { turn: self, known, current, inbox, hub };
        match order {
            Order::Begin(input) => work.begin(*input, id).await,
            Order::Resume { decisions, with_changed_agent } => {
                work.resume(decisions, with_changed_agent).await
            }
            Order::Abandon => work.abandon().await,
        }
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

/// What the events of a session add up to, and the session with its values.
pub(crate) type Read = (Arc<History>, Session);

/// A run that has not ended, its invocation, and how many of its events are stored.
struct Stopped {
    run: Run,
    invocation: InvocationId,
    place: u64,
}

/// Whatever came of it, a panic too: what was said is kept for the next run, and this is not at work any
/// more. Only then the next one comes, since the gate is a field.
impl Drop for Work {
    fn drop(&mut self) {
        let slot = Arc::clone(&self.turn.slot);
        let mut at_work = slot.current();
        self.keep_what_is_said();
        at_work.take_if(|current| current.invocation.id() == self.current.invocation.id());
    }
}

impl Work {
    /// A new turn; then one for what was said too late to join it.
    async fn begin(&mut self, input: Input, id: InvocationId) -> Ended {
        let read = self.finish_what_was_cut_off().await?;
        let outcome = self.turn(read, input, &id, 0).await?;
        self.go_on(outcome).await
    }

    /// With what was said too late to join the run, as long as there is such.
    async fn go_on(&mut self, mut outcome: Arc<Outcome>) -> Ended {
        while let Some(said) = self.said_too_late(&outcome) {
            let id = self.new_invocation()?;
            let messages = said.len();
            let read = self.catch_up().await?;
            outcome = self.turn(read, Input::from(said), &id, messages).await?;
        }
        Ok(outcome)
    }

    fn new_invocation(&self) -> Result<InvocationId, RunnerError> {
        InvocationId::new(self.turn.runner.ids.next()).map_err(|error| self.failed(error))
    }

    /// What was said while the run was ending. If the run waits, the next one takes it.
    fn said_too_late(&mut self, outcome: &Outcome) -> Option<Vec<Message>> {
        let slot = Arc::clone(&self.turn.slot);
        let mut current = slot.current();
        self.keep_what_is_said();
        let said = self.known.left_over.all();
        if said.is_empty() || outcome.exit().is_resumable() {
            // From here on a message starts an invocation of its own.
            current.take_if(|current| current.invocation.id() == self.current.invocation.id());
            return None;
        }
        Some(said)
    }

    fn keep_what_is_said(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            self.known.left_over.push(message);
        }
    }

    /// A turn that begins with this, of which some messages had joined a run that did not take them.
    async fn turn(&mut self, read: Read, input: Input, id: &InvocationId, joined: usize) -> Ended {
        let (history, session) = read;
        let state = history.state(&session, &self.turn.runner.schema)?;
        // The run that has left the conversation as it is now, if it was one of this process.
        let left_by = self.known.stopped.as_ref().map(|left| &*left.run);
        let input = input.on_state(state, left_by).with_summary(history.summary.clone());
        let key = &self.turn.slot.key;
        let run = Run::new(&self.turn.runner.agent, input, run_id(key, id))
            .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
        self.drive(Stopped { run, invocation: id.clone(), place: 0 }, joined, Decisions::new()).await
    }

    async fn resume(&mut self, decisions: Decisions, with_changed_agent: bool) -> Ended {
        let read = self.catch_up().await?;
        let stopped = self.last_run(&read, with_changed_agent)?.ok_or_else(|| self.nothing_to_resume())?;
        self.check_decisions(&stopped.run, &decisions)?;
        let outcome = self.drive(stopped, 0, decisions).await?;
        self.go_on(outcome).await
    }

    fn nothing_to_resume(&self) -> RunnerError {
        RunnerError::NothingToResume { key: Box::new(self.turn.slot.key.clone()) }
    }

    /// A decision is about a call that is stored. It must not lie in wait for one that the model makes later.
    fn check_decisions(&self, run: &Run, decisions: &Decisions) -> Result<(), RunnerError> {
        run.check_decisions(decisions).map_err(|error| RunnerError::decision(&self.turn.slot.key, error))
    }

    async fn abandon(&mut self) -> Ended {
        let read = self.catch_up().await?;
        let stopped = match self.last_run(&read, true) {
            Ok(stopped) => stopped.ok_or_else(|| self.nothing_to_resume())?,
            // This agent cannot read the record. A run that begins and is cancelled at once comes behind it, and
            // repairs what it has left open.
            Err(RunnerError::Recover { .. }) => {
                self.current.cancellation.cancel();
                let id = self.new_invocation()?;
                return self.turn(read, Input::new(), &id, 0).await;
            }
            Err(error) => return Err(error),
        };
        self.current.cancellation.cancel();
        self.drive(stopped, 0, Decisions::new()).await
    }

    /// A crash may have left a run in the middle. It goes on to its end before anything new begins. Gives the
    /// session as it is then.
    async fn finish_what_was_cut_off(&mut self) -> Result<Read, RunnerError> {
        let read = self.catch_up().await?;
        let Some(stopped) = self.last_run(&read, false)? else { return Ok(read) };
        drop(read);
        let pending: Vec<String> = stopped.run.pending().into_iter().map(|request| request.id).collect();
        let outcome = match pending.is_empty() {
            true => self.drive(stopped, 0, Decisions::new()).await?,
            false => return Err(self.pending(pending)),
        };
        match outcome.exit() {
            Exit::Paused(Pause::Approval) => {
                Err(self.pending(outcome.pending().into_iter().map(|request| request.id).collect()))
            }
            _ => self.catch_up().await,
        }
    }

    fn pending(&self, pending: Vec<String>) -> RunnerError {
        RunnerError::Pending { key: Box::new(self.turn.slot.key.clone()), pending }
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
    async fn drive(&mut self, from: Stopped, joined: usize, decisions: Decisions) -> Ended {
        let Stopped { run, invocation, place } = from;
        let inner = &self.turn.runner;
        self.known.left_over.read_again();
        let history = self.known.history.as_ref();
        let (version, created) = history.map_or((0, None), |history| (history.version, history.created));
        // Several workers may resume one invocation. If they made the same event, the store would take the
        // second for the first one repeated, and both would believe that the call is theirs to start.
        let attempt = (place > 0).then(|| inner.ids.next());
        let mut journal = Journal {
            store: inner.store.clone(),
            key: self.turn.slot.key.clone(),
            schema: inner.schema.clone(),
            clock: Arc::clone(&inner.clock),
            agent: inner.agent.clone(),
            invocation,
            version,
            place,
            attempt,
            ahead: run.clone(),
            left_over: self.known.left_over.clone(),
            joined,
        };
        let (left_over, inbox) = (&self.known.left_over, &mut self.inbox);
        let ended = run
            .resume()
            .observe(&mut journal)
            .observe(Publish(Arc::clone(&self.hub)))
            .observe(inner.observers.of(&self.turn.slot.key))
            .cancel_with(self.current.cancellation.clone())
            .inbox_with(|| {
                while let Ok(message) = inbox.try_recv() {
                    left_over.push(message);
                }
                left_over.read()
            })
            .decide_all(decisions)
            .await;
        match ended {
            Ok(outcome) => {
                self.known.stopped = Some(Left::new(outcome.run().clone(), journal.version, created));
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
