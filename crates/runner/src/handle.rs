//! A session, as an application holds it.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Agent, ApprovalRequest, Decision, Decisions, Input, Outcome, Run};
use stepfold_session_scopes::{
    Author, EventId, EventRange, ForkSession, GetSession, InvocationId, RewindSession, Session, SessionId,
    SessionKey, SessionStore,
};
use stepfold_state_core::chat::{Message, Role};
use stepfold_tools::CancellationToken;
use tokio::sync::{mpsc, watch};

use crate::error::RunnerError;
use crate::history::History;
use crate::hub::Hub;
use crate::invocation::{Ended, Invocation};
use crate::runner::{Busy, Runner};
use crate::slot::{Current, Slot};
use crate::turn::{Order, Turn};

/// Messages that may wait to join a run.
const INBOX: usize = 64;

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
        self.send(input)?.outcome().await
    }

    /// Starts a turn in a task of its own. If the agent is at work in the session, what happens is as the
    /// runner was [told](Busy); a message that joins that work gives the invocation that it joined.
    ///
    /// A run that was cut off, by a crash for instance, is brought to its end first.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] when the message is refused.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn send(&self, input: impl Into<Input>) -> Result<Invocation, RunnerError> {
        let input = input.into();
        // What joins a run is what users say, and nothing else.
        let said = input.user_messages();
        // Whoever takes the last messages of a run holds the same lock: nobody joins behind its back.
        let mut at_work = self.slot.current();
        let waiting = self.slot.waiting.load(Ordering::SeqCst);
        match (self.runner.0.busy, &*at_work, said) {
            (Busy::Refuse, current, _) if current.is_some() || waiting > 0 => {
                return Err(self.busy("an invocation is at work"));
            }
            (Busy::Steer, Some(current), Some(messages)) => {
                if let Some(joined) = join(current, &messages) {
                    return Ok(joined);
                }
            }
            (Busy::Interrupt, Some(current), _) => current.cancellation.cancel(),
            _ => {}
        }
        self.start(&mut at_work, Order::Begin(Box::new(input)))
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
        Resume { session: self.clone(), decisions: Decisions::new(), with_changed_agent: false }
    }

    /// Gives up a run that waits or was cut off: its open calls are answered as cancelled, and the session can
    /// be used at once.
    ///
    /// # Errors
    /// [`RunnerError::NothingToResume`], or when the store fails.
    pub async fn abandon(&self) -> Ended {
        let started = self.start(&mut self.slot.current(), Order::Abandon)?;
        started.outcome().await
    }

    /// Cancels what is at work in the session in this process, if anything is.
    pub fn cancel(&self) {
        if let Some(current) = self.current() {
            current.cancellation.cancel();
        }
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
        let (history, session) = self.turn().read().await?;
        if history.has_ended() {
            return Ok(Vec::new());
        }
        let run = self.run_of(&history, &session)?;
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
        let session = self.read(EventRange::None).await?;
        let request = RewindSession {
            key: self.slot.key.clone(),
            expected: session.version.into(),
            to,
            event: EventId::new(format!("{name}.0")).map_err(failed)?,
            invocation: InvocationId::new(name).map_err(failed)?,
            author: Author::new("user").map_err(failed)?,
            at: self.runner.0.clock.now(),
        };
        Ok(self.runner.0.store.rewind(request).await.map_err(failed)?.version)
    }

    /// Goes through every run of the session with another agent, asking neither its model nor its tools: where
    /// would it have gone another way?
    ///
    /// The runs are taken from where each of them began, with the session's own values as they were. What others had
    /// written to `app:` and `user:` keys by then is not recorded: a run goes the same way if it does with what the
    /// session itself wrote to them, or with the values of today. Gives the number of runs that go the same way:
    /// all of them.
    ///
    /// # Errors
    /// [`RunnerError::Diverged`] for the first run that goes another way.
    pub async fn replay(&self, agent: &Agent) -> Result<usize, RunnerError> {
        crate::replay::replay(&self.turn(), agent).await
    }

    fn current(&self) -> Option<Current> {
        self.slot.current().clone()
    }

    fn turn(&self) -> Turn {
        Turn { runner: Arc::clone(&self.runner.0), slot: Arc::clone(&self.slot) }
    }

    fn failed(&self, error: stepfold_session_scopes::SessionError) -> RunnerError {
        RunnerError::store(&self.slot.key, error)
    }

    fn busy(&self, reason: &'static str) -> RunnerError {
        RunnerError::Busy { key: Box::new(self.slot.key.clone()), reason }
    }

    /// Starts the task of an invocation, which is at work from now on, or waits.
    fn start(&self, at_work: &mut Option<Current>, order: Order) -> Result<Invocation, RunnerError> {
        let waits = at_work.is_some() || self.slot.waiting.load(Ordering::SeqCst) > 0;
        let waiting = match waits {
            false => None,
            true => Some(
                Waiting::enter(&self.slot, self.runner.0.max_waiting)
                    .ok_or_else(|| self.busy("too many messages wait already"))?,
            ),
        };
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        let (hub, cancellation) = (Hub::new(), CancellationToken::new());
        let (sender, ended) = watch::channel(None);
        let (inbox, messages) = mpsc::channel(INBOX);
        let key = self.slot.key.clone();
        let invocation = Invocation::new(id.clone(), key, Arc::clone(&hub), ended, cancellation.clone());
        let current = Current { invocation: invocation.clone(), cancellation, inbox };
        if !waits {
            *at_work = Some(current.clone());
        }
        let turn = self.turn();
        tokio::spawn(async move {
            let _end = EndOfHub(Arc::clone(&hub));
            let outcome = turn.take(order, id, current, messages, hub, waiting).await;
            sender.send_replace(Some(outcome));
        });
        Ok(invocation)
    }
}

/// Tells the subscribers that nothing more comes, also after a panic.
struct EndOfHub(Arc<Hub>);

impl Drop for EndOfHub {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Whoever waits counts.
pub(crate) struct Waiting(Arc<Slot>);

impl Waiting {
    fn enter(slot: &Arc<Slot>, limit: usize) -> Option<Self> {
        let waiting = slot.waiting.fetch_add(1, Ordering::SeqCst);
        let entered = Waiting(Arc::clone(slot));
        (waiting < limit).then_some(entered)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The messages join what is at work, if there is room for all of them.
fn join(current: &Current, messages: &[Message]) -> Option<Invocation> {
    // Whoever cancelled it and then says something wants an answer, which it would not give any more.
    if current.cancellation.is_cancelled() {
        return None;
    }
    let permits = current.inbox.try_reserve_many(messages.len()).ok()?;
    permits.zip(messages).for_each(|(permit, message)| permit.send(message.clone()));
    Some(current.invocation.clone())
}

/// Goes on with a run; awaiting it does so. See [`SessionHandle::resume`].
#[must_use = "nothing is resumed until it is awaited or started"]
#[derive(Debug)]
pub struct Resume {
    session: SessionHandle,
    decisions: Decisions,
    with_changed_agent: bool,
}

impl Resume {
    /// With a decision about a pending call, by the id of the request. All decisions are one commit.
    pub fn decide(mut self, id: impl Into<String>, decision: Decision) -> Self {
        self.decisions = self.decisions.decide(id, decision);
        self
    }

    /// With decisions about pending calls.
    pub fn decide_all(mut self, decisions: impl Into<Decisions>) -> Self {
        self.decisions = self.decisions.and(decisions);
        self
    }

    /// Although the agent is another one than when the run began.
    pub fn with_changed_agent(mut self) -> Self {
        self.with_changed_agent = true;
        self
    }

    /// Starts it in a task of its own.
    ///
    /// # Errors
    /// [`RunnerError::Busy`] when too many wait already.
    pub fn start(self) -> Result<Invocation, RunnerError> {
        let Resume { session, decisions, with_changed_agent } = self;
        let order = Order::Resume { decisions, with_changed_agent };
        session.start(&mut session.slot.current(), order)
    }
}

impl IntoFuture for Resume {
    type Output = Ended;
    type IntoFuture = BoxFuture<'static, Result<Arc<Outcome>, RunnerError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start()?.outcome().await })
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("key", &self.slot.key).finish_non_exhaustive()
    }
}

/// What users say in an input that does nothing else.
pub(crate) trait UserMessages {
    /// The messages, if the input is nothing but messages of users.
    fn user_messages(&self) -> Option<Vec<Message>>;
}

impl UserMessages for Input {
    fn user_messages(&self) -> Option<Vec<Message>> {
        let messages = self.only_messages()?;
        let are_users = messages.iter().all(|message| message.role() == Role::User);
        (are_users && !messages.is_empty())
            .then(|| messages.iter().map(|message| (**message).clone()).collect())
    }
}
