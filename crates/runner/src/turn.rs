//! The work of one invocation: wait for the session, read what is new, bring to its end what was cut off, run,
//! and take in what was said meanwhile.

use std::sync::Arc;

use stepfold_agent_loop::{Decision, Exit, Input, Outcome, Pause, Run, RunError, RunFault};
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
use crate::slot::{Current, Known, Slot};

/// What an invocation is to do.
pub(crate) enum Order {
    /// A new turn.
    Begin(Box<Input>),
    /// Go on with the last run.
    Resume { decisions: Vec<(String, Decision)>, with_changed_agent: bool },
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
        waiting: Waiting,
    ) -> Ended {
        let known = Arc::clone(&self.slot.gate).lock_owned().await;
        drop(waiting);
        *self.slot.current() = Some(current.clone());
        let slot = Arc::clone(&self.slot);
        let _at_work = AtWork(slot);
        let mut work = Work { turn: self, known, current, inbox, hub };
        let ended = match order {
            Order::Begin(input) => work.begin(*input, id).await,
            Order::Resume { decisions, with_changed_agent } => {
                work.resume(decisions, with_changed_agent).await
            }
            Order::Abandon => work.abandon().await,
        };
        // Whatever came of it, what was said is kept for the next run.
        let slot = Arc::clone(&work.turn.slot);
        let mut current = slot.current();
        work.keep_what_is_said();
        *current = None;
        ended
    }

    /// The session with what is new since `known`, and the history with it.
    async fn read_since(&self, known: Option<History>) -> Result<(History, Session), RunnerError> {
        let failed = |error: SessionError| RunnerError::store(&self.slot.key, error);
        let since =
            known.as_ref().map_or(EventRange::All, |history| EventRange::AfterVersion(history.version));
        let get = GetSession::new(self.slot.key.clone());
        let session = self.runner.store.get(get.clone().events(since)).await.map_err(failed)?;
        let mut history = known.unwrap_or_default();
        // A rewind hides what was folded already.
        let is_rewound = session.events.iter().any(|event| event.event.actions.rewound_to().is_some());
        let session = match is_rewound && since != EventRange::All {
            true => {
                history = History::default();
                self.runner.store.get(get.events(EventRange::All)).await.map_err(failed)?
            }
            false => session,
        };
        history.extend(&session)?;
        Ok((history, session))
    }

    /// The whole session, read anew.
    pub(crate) async fn read(&self) -> Result<(History, Session), RunnerError> {
        self.read_since(None).await
    }
}

/// Nothing is at work any more when this is dropped.
struct AtWork(Arc<Slot>);

impl Drop for AtWork {
    fn drop(&mut self) {
        *self.0.current() = None;
    }
}

impl Work {
    /// A new turn; then one for what was said too late to join it.
    async fn begin(&mut self, input: Input, id: InvocationId) -> Ended {
        self.finish_what_was_cut_off().await?;
        let mut outcome = self.turn(input, &id).await?;
        while let Some(input) = self.said_too_late(&outcome) {
            let id = InvocationId::new(self.turn.runner.ids.next()).map_err(|error| self.failed(error))?;
            outcome = self.turn(input, &id).await?;
        }
        Ok(outcome)
    }

    /// What was said while the run was ending. If the run waits, the next one takes it.
    fn said_too_late(&mut self, outcome: &Outcome) -> Option<Input> {
        let slot = Arc::clone(&self.turn.slot);
        let mut current = slot.current();
        self.keep_what_is_said();
        if self.known.left_over.is_empty() || outcome.exit().is_resumable() {
            // From here on a message starts an invocation of its own.
            *current = None;
            return None;
        }
        Some(Input::from(self.known.left_over.drain(..).collect::<Vec<_>>()))
    }

    fn keep_what_is_said(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            self.known.left_over.push_back(message);
        }
    }

    async fn turn(&mut self, input: Input, id: &InvocationId) -> Ended {
        let (history, session) = self.catch_up().await?;
        let state = history.state(&session, &self.turn.runner.schema)?;
        let input = input.on_state(state).with_summary(history.summary.clone());
        let key = &self.turn.slot.key;
        let run = Run::new(&self.turn.runner.agent, input, run_id(key, id))
            .map_err(|error| RunnerError::Input { key: Box::new(key.clone()), source: Arc::new(error) })?;
        self.drive(run, id.clone(), 0, Vec::new()).await
    }

    async fn resume(&mut self, decisions: Vec<(String, Decision)>, with_changed_agent: bool) -> Ended {
        let Some((run, id, place)) = self.last_run(with_changed_agent).await? else {
            return Err(RunnerError::NothingToResume { key: Box::new(self.turn.slot.key.clone()) });
        };
        self.drive(run, id, place, decisions).await
    }

    async fn abandon(&mut self) -> Ended {
        let Some((run, id, place)) = self.last_run(true).await? else {
            return Err(RunnerError::NothingToResume { key: Box::new(self.turn.slot.key.clone()) });
        };
        self.current.cancellation.cancel();
        self.drive(run, id, place, Vec::new()).await
    }

    /// A crash may have left a run in the middle. It goes on to its end before anything new begins.
    async fn finish_what_was_cut_off(&mut self) -> Result<(), RunnerError> {
        let Some((run, id, place)) = self.last_run(false).await? else { return Ok(()) };
        let pending: Vec<String> = run.pending().into_iter().map(|request| request.id).collect();
        let outcome = match pending.is_empty() {
            true => self.drive(run, id, place, Vec::new()).await?,
            false => return Err(self.pending(pending)),
        };
        match outcome.exit() {
            Exit::Paused(Pause::Approval) => {
                Err(self.pending(outcome.pending().into_iter().map(|request| request.id).collect()))
            }
            _ => Ok(()),
        }
    }

    fn pending(&self, pending: Vec<String>) -> RunnerError {
        RunnerError::Pending { key: Box::new(self.turn.slot.key.clone()), pending }
    }

    fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.turn.slot.key, error)
    }

    /// Reads what is new.
    async fn catch_up(&mut self) -> Result<(History, Session), RunnerError> {
        let known = self.known.history.take();
        let (history, session) = self.turn.read_since(known).await?;
        // Somebody else went on with it.
        self.known.stopped.take_if(|(version, _)| *version != history.version);
        self.known.history = Some(history.clone());
        Ok((history, session))
    }

    /// The last run if it has not ended, its invocation, and how many of its events are stored.
    async fn last_run(
        &mut self,
        with_changed_agent: bool,
    ) -> Result<Option<(Run, InvocationId, u64)>, RunnerError> {
        let (history, session) = self.catch_up().await?;
        let Some(last) = &history.last else { return Ok(None) };
        let place = last.events.len() as u64;
        let run = if let Some((_, run)) = self.known.stopped.take() {
            Some(*run)
        } else {
            let (agent, key) = (&self.turn.runner.agent, &self.turn.slot.key);
            let state = history.state(&session, &self.turn.runner.schema)?;
            history.last_run(agent, state, key)?
        };
        let Some(run) = run.filter(|run| run.exit().is_none()) else { return Ok(None) };
        let changes = history.changes(&self.turn.runner.agent);
        if !changes.is_empty() && !with_changed_agent {
            return Err(RunnerError::AgentChanged { key: Box::new(self.turn.slot.key.clone()), changes });
        }
        Ok(Some((run, last.invocation.clone(), place)))
    }

    /// Runs, with every commit stored before anything else happens.
    async fn drive(
        &mut self,
        run: Run,
        invocation: InvocationId,
        place: u64,
        decisions: Vec<(String, Decision)>,
    ) -> Ended {
        let inner = &self.turn.runner;
        let version = self.known.history.as_ref().map_or(0, |history| history.version);
        // Several workers may resume one invocation. If they made the same event, the store would take the
        // second for the first one repeated, and both would believe that the call is theirs to start.
        let writer = match place {
            0 => invocation.to_string(),
            _ => format!("{invocation}.{}", inner.ids.next()),
        };
        let mut journal = Journal {
            store: inner.store.clone(),
            key: self.turn.slot.key.clone(),
            schema: inner.schema.clone(),
            clock: Arc::clone(&inner.clock),
            agent: inner.agent.clone(),
            invocation,
            writer,
            version,
            place,
            calls: run.transcript().last().map(calls_of).unwrap_or_default(),
        };
        let (left_over, inbox) = (&mut self.known.left_over, &mut self.inbox);
        let ended = run
            .resume()
            .observe(&mut journal)
            .observe(Publish(Arc::clone(&self.hub)))
            .cancel_with(self.current.cancellation.clone())
            .inbox_with(|| left_over.pop_front().or_else(|| inbox.try_recv().ok()))
            .decide_all(decisions)
            .await;
        match ended {
            Ok(outcome) => {
                self.known.stopped = Some((journal.version, Box::new(outcome.run().clone())));
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
            _ => RunnerError::Run { key: Box::new(key.clone()), source: Arc::new(error) },
        }
    }
}

fn calls_of(message: &Arc<Message>) -> Vec<String> {
    message.tool_calls().map(|call| call.id.clone()).collect()
}
