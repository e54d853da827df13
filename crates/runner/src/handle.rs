//! A session, as an application holds it.

use std::fmt;
use std::sync::Arc;

use stepfold_agent_loop::{Agent, ApprovalRequest, Input, Run};
use stepfold_session_scopes::{
    AppendClaim, Author, DeleteSession, Deleted, DequeueInput, EventId, EventRange, ForkSession, GetSession,
    InboxKind, InvocationId, ReadInbox, RewindSession, Session, SessionError, SessionId, SessionKey,
    SessionStore, TakeOver,
};
use stepfold_state_core::state::State;

use crate::accept::Acceptance;
use crate::claim::{Holder, Waited, WhenClaimed};
use crate::compare::{Comparison, compare};
use crate::decided::RecordedDecision;
use crate::error::RunnerError;
use crate::history::History;
use crate::inbox::{Kind, WaitingMessage};
use crate::invocation::{Ended, Invocation};
use crate::resume::Resume;
use crate::runner::{Busy, Runner};
use crate::slot::{Current, Job, Slot, Ticket, Waiting};
use crate::turn::{Order, Turn};
use crate::work::is_said_by_users;

/// A session of the runner's store. Cloning is cheap; all handles of a session in a process work together.
#[derive(Clone)]
pub struct SessionHandle {
    runner: Runner,
    slot: Arc<Slot>,
}

impl SessionHandle {
    pub(crate) fn new(runner: Runner, slot: Arc<Slot>) -> Self {
        SessionHandle { runner, slot }
    }

    /// The address of the session.
    pub fn key(&self) -> &SessionKey {
        &self.slot.key
    }

    /// Runs a turn and waits for its outcome: [`send`](SessionHandle::send), awaited.
    ///
    /// # Errors
    /// [`RunnerError`].
    pub async fn run(&self, input: impl Into<Input>) -> Ended {
        self.send(input).await?.outcome().await
    }

    /// Accepts a message, and has the agent take it in a task of its own. It returns once the message is stored: for
    /// an idle session that is the first event of its run, for one at work the inbox of the session, from where the
    /// next run takes it, in this process or in another one. After an error the message was not accepted.
    ///
    /// The messages of a session are taken in the order in which `send` returned. If the agent is at work in the
    /// session, what happens is as the runner was [told](Busy); a message that joins that work gives the invocation
    /// that it joined. A run that was interrupted, by a crash for instance, is brought to its end first.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] when the message is refused; [`RunnerError::Pending`] when somebody has to decide first;
    /// [`RunnerError::CannotWait`] for an input with a state of its own that would have to wait; and when the store
    /// fails.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn send(&self, input: impl Into<Input>) -> Result<Invocation, RunnerError> {
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        self.send_as(id, input.into()).await
    }

    /// Accepts a message as [`send`](SessionHandle::send) does, once for each idempotency key: sent again with the same
    /// key and content, also from another process and after it was taken, it gives the same invocation, and nothing is
    /// taken twice. The store remembers the keys of the last 1,000 messages.
    ///
    /// It costs one commit more than `send`.
    ///
    /// # Errors
    /// As `send`; [`RunnerError::Store`] with [`OperationReused`](SessionError::OperationReused) when the key came with
    /// another message, and with [`Unsupported`](SessionError::Unsupported) by a store without inboxes.
    pub async fn send_once(
        &self,
        key: impl Into<Arc<str>>,
        input: impl Into<Input>,
    ) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let id = InvocationId::new(key).map_err(|error| self.failed(error))?;
        let waiting = if self.slot.is_busy() { self.may_wait()? } else { self.place_to_wait()? };
        let _door = self.slot.door.enter().await;
        self.turn().enqueue_stored(Kind::Message, id.clone(), input.into()).await?;
        let ticket = Ticket::new(&self.slot.key, id, Some(waiting));
        let invocation = ticket.current.invocation.clone();
        self.start(Job { order: Order::TakeInbox, ticket }, IfWorked::WaitInInbox);
        Ok(invocation)
    }

    async fn send_as(&self, id: InvocationId, input: Input) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let waiting = self.slot.is_busy().then(|| self.may_wait()).transpose()?;
        // The place in the queue is taken here, and not by a task when it is first polled.
        let door = self.slot.door.enter().await;
        let ticket = Ticket::new(&self.slot.key, id.clone(), waiting);
        let invocation = ticket.current.invocation.clone();
        let (acceptance, accepted) = Acceptance::new(door);
        let order = Order::Begin { input: Box::new(input), acceptance };
        let Some(Job { order, mut ticket }) = self.start(Job { order, ticket }, IfWorked::GiveBack) else {
            return accepted.await.unwrap_or_else(|_| Err(invocation.panicked())).map(|()| invocation);
        };
        let Order::Begin { input, acceptance: _door } = order else { unreachable!("it is the order above") };
        if !ticket.waits() {
            ticket.set_waiting(self.may_wait()?);
        }
        let kind = self.kind_of(&input);
        self.turn().enqueue(kind, id, *input).await?;
        if kind == Kind::Steer
            && let Some(joined) = self.slot.desk().join()
        {
            return Ok(joined);
        }
        self.start(Job { order: Order::TakeInbox, ticket }, IfWorked::WaitInInbox);
        Ok(invocation)
    }

    /// A place among those that wait for a session that is at work.
    fn may_wait(&self) -> Result<Waiting, RunnerError> {
        match self.runner.0.busy {
            Busy::Refuse => return Err(self.busy("an invocation is at work")),
            Busy::Interrupt => self.interrupt(),
            Busy::Wait | Busy::Steer => {}
        }
        self.place_to_wait()
    }

    fn place_to_wait(&self) -> Result<Waiting, RunnerError> {
        self.slot.wait(self.runner.0.max_waiting).ok_or_else(|| self.busy("too many messages wait already"))
    }

    /// What becomes of an input that finds the session at work. What joins a run is what users say, and nothing else;
    /// whoever cancelled it and then says something wants an answer, which it would not give any more.
    fn kind_of(&self, input: &Input) -> Kind {
        let is_cancelled = self.current().is_some_and(|current| current.cancellation.is_cancelled());
        match self.runner.0.busy {
            Busy::Steer if is_said_by_users(input) && !is_cancelled => Kind::Steer,
            _ => Kind::Message,
        }
    }

    /// Goes on with a run that waits for decisions, or that was cut off or failed. Awaiting the result does so.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// # use stepfold_tools::{Approval, Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Decision, Exit};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let runner = Runner::builder(agent, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    ///
    /// session.run("pay the bill").await?;
    /// // Next week, in another process:
    /// let request = session.pending().await?.remove(0);
    /// assert_eq!(request.call.name, "pay");
    /// let outcome = session.resume().decide(request.id, Decision::Approve).await?;
    /// assert_eq!((outcome.exit(), outcome.text()), (&Exit::Text, "done".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn resume(&self) -> Resume {
        Resume::new(self.clone())
    }

    /// Gives up a run that waits or was cut off: its open calls are answered as cancelled, and the session can
    /// be used at once.
    ///
    /// # Errors
    /// [`RunnerError::NothingToResume`], or when the store fails.
    pub async fn abandon(&self) -> Ended {
        self.order(Order::Abandon)?.outcome().await
    }

    /// Cancels what is at work in the session in this process, if anything is.
    pub fn cancel(&self) {
        if let Some(current) = self.current() {
            current.cancellation.cancel();
        }
    }

    /// Cancels what runs in this process, and not what waits for another worker: that was accepted.
    fn interrupt(&self) {
        if let Some(current) = self.current() {
            current.interruption.cancel();
        }
    }

    /// Cancels what is at work in the session, in this process or in another one, which hears of it with its next commit
    /// or heartbeat. Gives whether anything was at work.
    ///
    /// # Errors
    /// When the store fails, or has no inboxes and another worker is at work.
    pub async fn cancel_everywhere(&self) -> Result<bool, RunnerError> {
        if let Some(current) = self.current() {
            current.cancellation.cancel();
            return Ok(true);
        }
        let now = self.runner.0.clock.now();
        let get = GetSession::new(self.slot.key.clone()).events(EventRange::None).without_state().now(now);
        let session = self.runner.0.store.get(get).await.map_err(|error| self.failed(error))?;
        if self.holder(&session) != Holder::Other {
            return Ok(false);
        }
        self.turn().enqueue_cancel().await?;
        Ok(true)
    }

    /// What is at work in the session in this process.
    pub fn running(&self) -> Option<Invocation> {
        self.current().map(|current| current.invocation)
    }

    /// The calls that somebody has to decide about. It reads as little as [`unfinished`](SessionHandle::unfinished).
    ///
    /// # Errors
    /// When the store fails, or what it has cannot be read.
    pub async fn pending(&self) -> Result<Vec<ApprovalRequest>, RunnerError> {
        Ok(self.unfinished().await?.map(|run| run.pending()).unwrap_or_default())
    }

    /// The last run, if it has not ended: to see what it waits for, or where it was interrupted.
    ///
    /// It reads the events of that run, and no values: in a process that has not worked on the session the run has neither
    /// the conversation before it nor the state. [`last_run`](SessionHandle::last_run) has both.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn unfinished(&self) -> Result<Option<Run>, RunnerError> {
        let is_known = self.slot.gate.try_lock().is_ok_and(|known| known.history.is_some());
        let (history, session) =
            if is_known { self.turn().read().await? } else { self.turn().read_end().await? };
        if history.has_ended() {
            return Ok(None);
        }
        let run = match self.run_of(&history, &session) {
            // What came before it was needed.
            Err(RunnerError::Recover { .. } | RunnerError::Input { .. }) if !is_known => {
                self.last_run().await?
            }
            run => run?,
        };
        Ok(run.filter(|run| run.exit().is_none()))
    }

    /// The state as it is stored, with the conversation. What this process knows of it is not read again.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn state(&self) -> Result<State, RunnerError> {
        let (history, session) = self.turn().read().await?;
        history.state(&session, &self.runner.0.schema)
    }

    /// The decisions in the newest 4,096 events of the record, the newest first: about what, by whom and when.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn decisions(&self) -> Result<Vec<RecordedDecision>, RunnerError> {
        self.turn().recorded_decisions().await
    }

    /// The messages in the inbox, in the order in which they were accepted: they wait for a run that is at work, waits for
    /// decisions, was interrupted or failed.
    ///
    /// # Errors
    /// When the store fails, or has no inboxes.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::{Runner, RunnerError};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// // A model that has no reply: the run fails, and can be resumed.
    /// let runner = Runner::builder(Agent::builder(Script::parse("")?).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("first").await.unwrap_err();
    /// let error = session.run("second").await.unwrap_err();
    /// let RunnerError::EarlierRunFailed { message, times: 2, .. } = error else { panic!("{error}") };
    ///
    /// let waiting = session.inbox().await?;
    /// assert_eq!((waiting.len(), &waiting[0].id), (1, &message));
    /// assert!(session.withdraw(&message).await?);
    /// assert!(session.inbox().await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn inbox(&self) -> Result<Vec<WaitingMessage>, RunnerError> {
        let entries = self.runner.0.store.inbox(ReadInbox::new(self.slot.key.clone())).await;
        let entries = entries.map_err(|error| self.failed(error))?;
        let messages = entries.into_iter().filter(|entry| entry.kind != InboxKind::Cancel);
        messages.map(|entry| WaitingMessage::read(entry).map_err(|error| self.failed(error))).collect()
    }

    /// Takes a message back that waits in the inbox, by the [id](Invocation::id) of its invocation. False if it does not
    /// wait: it was taken, or withdrawn before.
    ///
    /// # Errors
    /// As [`inbox`](SessionHandle::inbox).
    pub async fn withdraw(&self, message: &InvocationId) -> Result<bool, RunnerError> {
        let key = &self.slot.key;
        let entries = self.runner.0.store.inbox(ReadInbox::new(key.clone())).await;
        let entries = entries.map_err(|error| self.failed(error))?;
        let Some(entry) = entries.iter().find(|entry| entry.idempotency_key.as_str() == message.as_str())
        else {
            return Ok(false);
        };
        let request = DequeueInput::new(key.clone(), [entry.position]);
        let dropped = self.runner.0.store.dequeue(request).await.map_err(|error| self.failed(error))?;
        self.slot.mail.withdrawn(entry.position);
        // Its invocation may wait for another worker.
        self.slot.bell.notify_one();
        Ok(!dropped.is_empty())
    }

    /// The last run as it is stored, if the session had one; it may have ended. The first time in a process it reads the
    /// whole session.
    ///
    /// # Errors
    /// As [`pending`](SessionHandle::pending).
    pub async fn last_run(&self) -> Result<Option<Run>, RunnerError> {
        let (history, session) = self.turn().read().await?;
        self.run_of(&history, &session)
    }

    fn run_of(&self, history: &History, session: &Session) -> Result<Option<Run>, RunnerError> {
        let state = history.state(session, &self.runner.0.schema)?;
        history.last_run(&self.runner.0.agent, state, &self.slot.key)
    }

    /// The session as it is stored, with these of its events.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn read(&self, events: EventRange) -> Result<Session, RunnerError> {
        let get = GetSession::new(self.slot.key.clone()).events(events);
        self.runner.0.store.get(get).await.map_err(|error| self.failed(error))
    }

    /// Another session that shares the history of this one up to a version; the newest if none. What the agent
    /// does there has effects of its own: no idempotency key is shared.
    ///
    /// # Errors
    /// When the id is in use, there is no such version, or the store fails.
    pub async fn fork(&self, id: impl Into<Arc<str>>, version: Option<u64>) -> Result<Self, RunnerError> {
        let id = SessionId::new(id).map_err(|error| self.failed(error))?;
        let mut request = ForkSession::new(self.slot.key.clone(), self.runner.0.clock.now()).with_id(id);
        request.version = version;
        let forked = self.runner.0.store.fork(request).await.map_err(|error| self.failed(error))?;
        Ok(self.runner.handle(forked.key))
    }

    /// Goes back to a version, by an event that says so: nothing is erased, and what was shared with other
    /// sessions stays. While another worker is at work in the session, what happens is as the runner was
    /// [told](WhenClaimed).
    ///
    /// # Errors
    /// [`RunnerError::Busy`] while the agent is at work here; [`RunnerError::Claimed`] while another worker is; when there
    /// is no such version, another worker was faster, or the store fails.
    pub async fn rewind(&self, to: u64) -> Result<u64, RunnerError> {
        let Ok(mut known) = self.slot.gate.try_lock() else {
            return Err(self.busy("an invocation is at work"));
        };
        (known.history, known.stopped) = (None, None);
        let (session, take_over) = self.until_free().await?;
        let name = self.runner.0.ids.next();
        let failed = |error| self.failed(error);
        let request = RewindSession {
            key: self.slot.key.clone(),
            expected: session.version.into(),
            to,
            event: EventId::new(format!("{name}.0")).map_err(failed)?,
            invocation: InvocationId::new(name).map_err(failed)?,
            author: Author::new("user").map_err(failed)?,
            at: self.runner.0.clock.now(),
            claim: Some(AppendClaim::Once { take_over }),
            taken: Vec::new(),
        };
        Ok(self.runner.0.store.rewind(request).await.map_err(failed)?.version)
    }

    /// Deletes the session, and the values of its user (`user:`) too if that is asked for. Forks of it stay whole. While
    /// another worker is at work in the session, what happens is as the runner was [told](WhenClaimed); one that it is
    /// taken from loses what it does.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] while the agent is at work here; [`RunnerError::Claimed`] while another worker is; when the
    /// session is not there, or the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// assert_eq!(session.delete(false).await?.events, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn delete(&self, with_user_state: bool) -> Result<Deleted, RunnerError> {
        let Ok(mut known) = self.slot.gate.try_lock() else {
            return Err(self.busy("an invocation is at work"));
        };
        let (_, take_over) = self.until_free().await?;
        let mut request = DeleteSession::new(self.slot.key.clone()).now(self.runner.0.clock.now());
        (request.user_state, request.take_over) = (with_user_state, take_over);
        let deleted = self.runner.0.store.delete(request).await.map_err(|error| self.failed(error))?;
        (known.history, known.left, known.stopped) = (None, None, None);
        self.slot.mail.forget();
        self.slot.held.take();
        Ok(deleted)
    }

    /// Waits until no other worker is at work in the session, for as long as the runner was told to. Gives the session,
    /// and which claim is not in the way: one that is left of this worker or of a dead one, or any.
    async fn until_free(&self) -> Result<(Session, TakeOver), RunnerError> {
        let (inner, mut waited) = (&self.runner.0, Waited::default());
        loop {
            let get = GetSession::new(self.slot.key.clone()).events(EventRange::None).without_state();
            let session = inner.store.get(get.now(inner.clock.now())).await;
            let session = session.map_err(|error| self.failed(error))?;
            let Some(claim) = &session.claim else { return Ok((session, TakeOver::Never)) };
            let take_over = TakeOver::Token(claim.token);
            match self.holder(&session) {
                Holder::Nobody | Holder::Us | Holder::Dead(_) => return Ok((session, take_over)),
                Holder::Other if inner.claims.when_claimed == WhenClaimed::TakeOver => {
                    return Ok((session, TakeOver::Always));
                }
                Holder::Other if waited.a_while(inner).await => {}
                Holder::Other => {
                    let (key, owner) = (Box::new(self.slot.key.clone()), claim.owner.clone());
                    return Err(RunnerError::Claimed {
                        key,
                        owner,
                        expires: claim.expires,
                        is_accepted: false,
                    });
                }
            }
        }
    }

    fn holder(&self, session: &Session) -> Holder {
        self.runner.0.claims.holder(session.claim.as_ref(), &self.slot.held)
    }

    /// Goes through every run of the session with another agent, asking neither its model nor its tools: where
    /// would it have gone another way?
    ///
    /// The runs are taken from where each of them began, with the session's own values as they were, and with what it
    /// found under `app:` and `user:` keys, which is in its record. A run goes the same way if a live one would have made
    /// the same events, given the recorded replies and outcomes, and would have offered the same tools. A toolset that is
    /// asked for its tools at each step is asked for them; those of agents inside are not. Of a pruned session, the runs
    /// are gone through whose beginning is still there; what they were shown of a conversation that is gone is taken from
    /// the record. Gives the number of runs that go the same way: all of them.
    ///
    /// # Errors
    /// [`RunnerError::Diverged`] for the first run that diverged.
    pub async fn replay(&self, agent: &Agent) -> Result<usize, RunnerError> {
        crate::replay::replay(&self.turn(), agent).await
    }

    /// Compares the session with another one, a fork of it for instance: which version both have, which events only one
    /// has, where they first part, and what that has changed in the state. See [`Comparison`].
    ///
    /// # Errors
    /// When the store fails, or what it has cannot be read.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3\nassistant: area 7")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("which area has most stalls?").await?;
    /// let fork = session.fork("s2", Some(0)).await?;
    /// fork.run("which area has fewest?").await?;
    ///
    /// let comparison = session.compare(&fork).await?;
    /// assert_eq!((comparison.common, comparison.left.len(), comparison.right.len()), (0, 2, 2));
    /// let first = comparison.first.expect("they differ");
    /// assert!(first.to_string().contains("which area has fewest?"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn compare(&self, other: &SessionHandle) -> Result<Comparison, RunnerError> {
        let (left, right) = (self.read(EventRange::All).await?, other.read(EventRange::All).await?);
        compare(&left, &right, &self.runner.0.schema)
    }

    fn current(&self) -> Option<Current> {
        self.slot.desk().current.clone()
    }

    fn turn(&self) -> Turn {
        Turn { runner: Arc::clone(&self.runner.0), slot: Arc::clone(&self.slot) }
    }

    fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.slot.key, error)
    }

    /// Refuses what comes after the runner was shut down.
    fn check_open(&self) -> Result<(), RunnerError> {
        let key = || Box::new(self.slot.key.clone());
        match self.runner.0.closing.is_closed() {
            true => Err(RunnerError::ShutDown { key: key(), is_accepted: false }),
            false => Ok(()),
        }
    }

    fn busy(&self, reason: &'static str) -> RunnerError {
        RunnerError::Busy { key: Box::new(self.slot.key.clone()), reason }
    }

    /// Has a worker begin with a job, if none is there. Else the job waits, or is given back.
    fn start(&self, job: Job, otherwise: IfWorked) -> Option<Job> {
        let job = {
            let mut desk = self.slot.desk();
            match (desk.is_worked(), otherwise) {
                (true, IfWorked::GiveBack) => return Some(job),
                (true, IfWorked::WaitInInbox) => return desk.waits_in_inbox(job.ticket),
                (true, IfWorked::Wait) => return desk.waits(job),
                (false, _) => desk.begin(job),
            }
        };
        tokio::spawn(self.turn().work(job, self.runner.0.closing.enter()));
        None
    }

    /// Starts what is not stored: it is asked for by somebody who is there.
    pub(crate) fn order(&self, order: Order) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let waiting = self.slot.is_busy().then(|| self.place_to_wait()).transpose()?;
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        let mut ticket = Ticket::new(&self.slot.key, id, waiting);
        if let Order::Resume { receipts, .. } = &order {
            ticket.current.invocation.give_receipts(receipts.clone());
        }
        let invocation = ticket.current.invocation.clone();
        self.start(Job { order, ticket }, IfWorked::Wait);
        Ok(invocation)
    }
}

/// What becomes of a job while a worker is there.
#[derive(Clone, Copy)]
enum IfWorked {
    GiveBack,
    Wait,
    WaitInInbox,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("key", &self.slot.key).finish_non_exhaustive()
    }
}
