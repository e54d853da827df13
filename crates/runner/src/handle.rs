//! A session, as an application holds it.

use std::fmt;
use std::sync::Arc;

use stepfold_agent_loop::{Agent, ApprovalRequest, Input, Run};
use stepfold_session_scopes::{
    Author, EventId, EventRange, ForkSession, GetSession, InvocationId, RewindSession, Session, SessionError,
    SessionId, SessionKey, SessionStore,
};

use crate::accept::Acceptance;
use crate::compare::{Comparison, compare};
use crate::error::RunnerError;
use crate::history::History;
use crate::inbox::Kind;
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
            Busy::Interrupt => self.cancel(),
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
        if session.claim.is_none() {
            return Ok(false);
        }
        self.turn().enqueue_cancel().await?;
        Ok(true)
    }

    /// What is at work in the session in this process.
    pub fn running(&self) -> Option<Invocation> {
        self.current().map(|current| current.invocation)
    }

    /// The calls that somebody has to decide about.
    ///
    /// # Errors
    /// When the store fails, or what it has cannot be read.
    pub async fn pending(&self) -> Result<Vec<ApprovalRequest>, RunnerError> {
        // What was said before the last run is not needed, and not read unless it is known.
        let is_known = self.slot.gate.try_lock().is_ok_and(|known| known.history.is_some());
        let (history, session) =
            if is_known { self.turn().read().await? } else { self.turn().read_end().await? };
        if history.has_ended() {
            return Ok(Vec::new());
        }
        let run = match self.run_of(&history, &session) {
            Err(RunnerError::Recover { .. }) if !is_known => {
                let (history, session) = self.turn().read().await?;
                self.run_of(&history, &session)?
            }
            run => run?,
        };
        Ok(run.map(|run| run.pending()).unwrap_or_default())
    }

    /// The last run as it is stored, if the session had one; it may have ended.
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
    /// sessions stays.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] while the agent is at work here; when there is no such version, another worker was
    /// faster, or the store fails.
    pub async fn rewind(&self, to: u64) -> Result<u64, RunnerError> {
        let Ok(mut known) = self.slot.gate.try_lock() else {
            return Err(self.busy("an invocation is at work"));
        };
        (known.history, known.stopped) = (None, None);
        let name = self.runner.0.ids.next();
        let failed = |error| self.failed(error);
        let get = GetSession::new(self.slot.key.clone()).events(EventRange::None).without_state();
        let session = self.runner.0.store.get(get.now(self.runner.0.clock.now())).await.map_err(failed)?;
        if let Some(claim) = session.claim.filter(|claim| claim.owner != self.runner.0.claims.worker) {
            let (key, owner, expires) = (Box::new(self.slot.key.clone()), claim.owner, claim.expires);
            return Err(RunnerError::Claimed { key, owner, expires, is_accepted: false });
        }
        let request = RewindSession {
            key: self.slot.key.clone(),
            expected: session.version.into(),
            to,
            event: EventId::new(format!("{name}.0")).map_err(failed)?,
            invocation: InvocationId::new(name).map_err(failed)?,
            author: Author::new("user").map_err(failed)?,
            at: self.runner.0.clock.now(),
            claim: None,
            taken: Vec::new(),
        };
        Ok(self.runner.0.store.rewind(request).await.map_err(failed)?.version)
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
    /// [`RunnerError::Diverged`] for the first run that goes another way.
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
        tokio::spawn(self.turn().work(job));
        None
    }

    /// Starts what is not stored: it is asked for by somebody who is there.
    pub(crate) fn order(&self, order: Order) -> Result<Invocation, RunnerError> {
        let waiting = self.slot.is_busy().then(|| self.place_to_wait()).transpose()?;
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        let ticket = Ticket::new(&self.slot.key, id, waiting);
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
