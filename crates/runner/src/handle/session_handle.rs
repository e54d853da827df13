//! A session handle, for applications.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use stepfold_agent_loop::{Edit, Input};
use stepfold_session_scopes::{EventRange, InvocationId, Session, SessionError, SessionKey, TakeOver};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::access::session_access::SessionAccess;
use crate::budget::OutsideRequests;
use crate::core::runner_core::{Runner, RunnerCore};
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::edits::EditSession;
use crate::handle::resume::ResumeRun;
use crate::handle::run_as::RunAs;
use crate::session::acceptance::AcceptanceReply;
use crate::session::busy::WhenBusy;
use crate::session::cache::SessionCache;
use crate::session::claim::{ClaimHolder, ClaimWait, WhenClaimed};
use crate::session::command::{RunOptions, WorkerCommand};
use crate::session::inbox::MessageKind;
use crate::session::invocation::{Invocation, InvocationResult};
use crate::session::local_session::LocalSession;
use crate::session::queue::{CurrentInvocation, InvocationTicket, QueuePlace, WorkerJob};
use crate::worker::session_worker::SessionWorker;
use crate::worker::session_worker::WorkerGuard;

/// A session of the runner's store. Cloning is cheap; all handles of a session in a process work together.
#[doc(alias("thread", "conversation", "memory"))]
#[derive(Clone)]
pub struct SessionHandle {
    pub(super) runner: Runner,
    pub(super) local: Arc<LocalSession>,
    pub(super) busy: WhenBusy,
}

impl SessionHandle {
    pub(crate) fn new(runner: Runner, local: Arc<LocalSession>) -> Self {
        SessionHandle { busy: runner.0.busy, runner, local }
    }

    /// The address of the session.
    pub fn key(&self) -> &SessionKey {
        &self.local.key
    }

    /// The runner of the session.
    pub const fn runner(&self) -> &Runner {
        &self.runner
    }

    /// A handle of this session whose messages are handled in this way when the session is busy, instead of as
    /// [the runner](crate::RunnerBuilder::when_busy) has it.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::{WhenBusy, Runner};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3 it is")?;
    /// let agent = Agent::builder(model).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    /// let first = session.send("count the stalls").await?;
    /// // PruneBound the next request to the model, if that run is still at work.
    /// session.when_busy(WhenBusy::Steer).send("only those of area 3").await?;
    /// assert_eq!(first.await?.text(), "area 3 it is");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn when_busy(&self, busy: WhenBusy) -> SessionHandle {
        SessionHandle { busy, ..self.clone() }
    }

    /// Has requests to models that no run of this session sends, such as those of an evaluation, count in the budgets and rate limits
    /// of the runner, as those of a run of the session. `None` for a runner without any.
    ///
    /// Requests that a killed process has left open are settled at their estimates first; so are those of another process that uses the
    /// same session for this at the moment.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Store`].
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Exit, Pause};
    /// use stepfold_runner::session_scopes::MemoryStore;
    /// use stepfold_runner::{Budget, Runner};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3\nassistant: area 7")?).build()?;
    /// let budget = Budget::requests("trial", 1);
    /// let runner = Runner::builder(agent.clone(), MemoryStore::new()).budget(budget).build();
    /// let session = runner.session("ada", "experiments").await?;
    /// let requests = session.outside_requests().await?.expect("a budget");
    /// assert_eq!(agent.run("which area?").meter_with(requests.meter()?).await?.text(), "area 3");
    /// let outcome = agent.run("and then?").meter_with(requests.meter()?).await?;
    /// assert!(matches!(outcome.exit(), Exit::Paused(Pause::Budget(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn outside_requests(&self) -> Result<Option<OutsideRequests>, RunnerError> {
        let requests = OutsideRequests::of(&self.runner.0, &self.local).await;
        requests.map_err(|error| RunnerError::store(&self.local.key, error))
    }

    /// Runs a turn and waits for its outcome: [`send`](SessionHandle::send), awaited.
    ///
    /// # Errors
    /// [`RunnerError`].
    pub async fn run(&self, input: impl Into<Input>) -> InvocationResult {
        self.send(input).await?.outcome().await
    }

    /// Accepts a message, and starts a task in which the agent processes it. Returns when the message is
    /// stored: for an idle session as the first event of its run, for a busy one in the inbox of the session,
    /// from which the next run takes it, in this process or another. After an error the message is not
    /// accepted.
    ///
    /// The messages of a session are taken in the order in which `send` returned. If the agent is running in
    /// the session, [`WhenBusy`] decides; the outcome of a message that joins that run is the outcome of the run. A
    /// run that was interrupted, by a crash for example, is completed first.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Busy`] when the message is refused; [`RunnerErrorKind::Pending`] when decisions are
    /// required first; [`RunnerErrorKind::CannotWait`] for an input with its own state that would have to wait;
    /// and when the store fails.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn send(&self, input: impl Into<Input>) -> Result<Invocation, RunnerError> {
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        self.send_as(id, input.into()).await
    }

    /// Accepts a message as [`send`](SessionHandle::send) does, once for each idempotency key: sent again with the same
    /// key and content, even from another process and after it was processed, it returns the same invocation, which
    /// reports the outcome of the run that took the message, from the record; [`WhenBusy`] says how long a key is known. A
    /// repeat is never new: nothing runs, is queued, interrupted or refused because of it.
    ///
    /// It costs one more commit than `send`.
    ///
    /// # Errors
    /// As `send`; [`RunnerErrorKind::Store`] with [`IdempotencyKeyReused`](SessionError::IdempotencyKeyReused) when the key
    /// was used with another message, or to steer and now not, and with [`Unsupported`](SessionError::Unsupported) by a
    /// store without inboxes.
    pub async fn send_once(
        &self,
        key: impl Into<Arc<str>>,
        input: impl Into<Input>,
    ) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let id = InvocationId::new(key).map_err(|error| self.failed(error))?;
        let input = input.into();
        if self.busy == WhenBusy::Refuse && self.local.is_busy() && !self.is_known(&id).await? {
            return Err(self.busy("an invocation is running"));
        }
        // A repeat needs no place.
        let waiting = match self.queue_place() {
            Ok(waiting) => Some(waiting),
            Err(_) if self.is_known(&id).await? => None,
            Err(full) => return Err(full),
        };
        let _queued = self.local.senders.enter().await;
        // The run that is current when the message is accepted, not the one that takes it.
        let at_work = self.local.queue().run();
        let kind = MessageKind::of(&input, self.busy);
        let is_repeat = self.access().enqueue_stored(kind, id.clone(), input).await?;
        if let Some(invocation) = self.local.queue().find(&id) {
            return Ok(invocation);
        }
        if is_repeat && let Some(recorded) = self.access().answer_of_ended_run(&id).await? {
            return Ok(Invocation::ended(id, self.local.key.clone(), recorded));
        }
        // The inbox may have forgotten the key; the record has not.
        if self.busy == WhenBusy::Interrupt
            && !is_repeat
            && self.access().find_taking_event(&id).await?.is_none()
        {
            self.interrupt(at_work).await;
        }
        let ticket = InvocationTicket::new(&self.local.key, id, waiting);
        let invocation = ticket.current.invocation.clone();
        self.start(WorkerJob { command: WorkerCommand::TakeInbox, ticket }, IfWorkerRuns::WaitInInbox);
        Ok(invocation)
    }

    /// The version of the session with the event that took a message; `None` while none has. The cost does not depend
    /// on the length of the record.
    ///
    /// # Errors
    /// When the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: hello\nassistant: bye")?).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    /// session.run("hi").await?;
    /// let second = session.send_once("m2", "that is all").await?;
    /// second.outcome().await?;
    /// assert_eq!(session.taken_at(second.id()).await?, Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn taken_at(&self, message: &InvocationId) -> Result<Option<u64>, RunnerError> {
        Ok(self.access().find_taking_event(message).await?.map(|event| event.version))
    }

    /// Whether a message with this key was accepted before.
    async fn is_known(&self, id: &InvocationId) -> Result<bool, RunnerError> {
        // In this order: a message that is taken in between is in the record.
        let waits =
            self.local.queue().find(id).is_some() || self.inbox().await?.iter().any(|it| it.id == *id);
        Ok(waits || self.access().read().await?.0.taker(id).is_some())
    }

    /// Runs a turn under an idempotency key, and reports the result. Any worker may call it any number of times
    /// with the same key, also concurrently and after crashes: it begins the run, continues with it, or reports the result.
    /// The run begins once.
    ///
    /// The key belongs to the history of the session. It is found there for as long as the events of its run are kept:
    /// in a fork that has them too, and after a rewind that hid them or the run's end: the report is that of the end, and
    /// if there was none, the message is [`Withdrawn`](RunnerErrorKind::Withdrawn). Another input with it is refused; with
    /// [decisions](RunAs::decide_all), an empty input stands for that of the run.
    ///
    /// Earlier messages and an interrupted run come first. [`RunnerError::remedy`] says whether repeating helps
    /// after an error. Dropping the future stops nothing.
    ///
    /// # Errors
    /// [`RunnerError`]: [`Pending`](RunnerErrorKind::Pending) while an earlier run waits for decisions;
    /// [`Store`](RunnerErrorKind::Store) with [`IdempotencyKeyReused`](SessionError::IdempotencyKeyReused) for another input;
    /// [`Decision`](RunnerErrorKind::Decision) for decisions that do not fit;
    /// [`Store`](RunnerErrorKind::Store) with [`Unsupported`](SessionError::Unsupported) by a store without inboxes.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    /// use std::time::Duration;
    /// use stepfold_agent_loop::{Agent, Decision};
    /// use stepfold_runner::{Remedy, RunStatus, Runner, SessionHandle};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    ///
    /// // A handler of an engine: called again and again, in whatever process.
    /// let slice = |session: &SessionHandle| {
    ///     session.run_as("request-7", "pay the bill").stop_after(Duration::from_secs(60))
    /// };
    /// let RunStatus::Waiting(requests) = slice(&session).await?.status else { panic!("pay is asked about") };
    ///
    /// let decisions = [(requests[0].id.clone(), Decision::Approve)];
    /// let report = slice(&session).decide_all(decisions.clone()).await?;
    /// assert!(report.status.is_finished());
    /// assert_eq!(report.text, "done");
    /// // The answer was lost: the same again.
    /// assert_eq!(slice(&session).decide_all(decisions).await?, report);
    ///
    /// let error = session.run_as("request-7", "pay it").decide("c9", Decision::Approve).await.unwrap_err();
    /// assert_eq!(error.remedy(), Remedy::Never);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn run_as(&self, idempotency_key: impl Into<Arc<str>>, input: impl Into<Input>) -> RunAs {
        RunAs::new(self.clone(), idempotency_key.into(), input.into())
    }

    /// Starts a run under a key, with its message if it was not taken before.
    pub(crate) async fn start_as(
        &self,
        id: &InvocationId,
        input: Option<Input>,
        options: RunOptions,
    ) -> Result<Invocation, RunnerError> {
        let waiting = self.queue_place()?;
        let _queued = self.local.senders.enter().await;
        if let Some(input) = input {
            self.access().enqueue_stored(MessageKind::Message, id.clone(), input).await?;
        }
        let ticket = InvocationTicket::new(&self.local.key, id.clone(), Some(waiting));
        let invocation = ticket.current.invocation.clone();
        self.start(WorkerJob { command: WorkerCommand::RunAs(options), ticket }, IfWorkerRuns::Wait);
        Ok(invocation)
    }

    pub(crate) fn withdrawn(&self) -> RunnerError {
        self.error(RunnerErrorKind::Withdrawn)
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.runner.0.clock.sleep(time).await;
    }

    async fn send_as(&self, id: InvocationId, input: Input) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let waiting = self.local.is_busy().then(|| self.place_if_allowed()).transpose()?;
        // The position in the queue is taken here, not when a task is first polled.
        let queued = self.local.senders.enter().await;
        let ticket = InvocationTicket::new(&self.local.key, id.clone(), waiting);
        let invocation = ticket.current.invocation.clone();
        let (acceptance, accepted) = AcceptanceReply::new(queued);
        let command = WorkerCommand::Begin { input: Box::new(input), busy: self.busy, acceptance };
        // NOTE: a message for an idle session does not go through the inbox: the first event of its run stores it,
        // without a commit of its own.
        let Some(WorkerJob { command, mut ticket }) =
            self.start(WorkerJob { command, ticket }, IfWorkerRuns::GiveBack)
        else {
            return accepted.await.unwrap_or_else(|_| Err(invocation.panicked())).map(|()| invocation);
        };
        let WorkerCommand::Begin { input, acceptance: _queued, .. } = command else {
            unreachable!("the order created above")
        };
        if !ticket.has_place() {
            ticket.set_place(self.place_if_allowed()?);
        }
        let at_work = self.local.queue().run();
        self.access().enqueue(MessageKind::of(&input, self.busy), id, *input).await?;
        if self.busy == WhenBusy::Interrupt {
            self.interrupt(at_work).await;
        }
        self.start(WorkerJob { command: WorkerCommand::TakeInbox, ticket }, IfWorkerRuns::WaitInInbox);
        Ok(invocation)
    }

    /// Takes a position among the messages that wait for a busy session.
    fn place_if_allowed(&self) -> Result<QueuePlace, RunnerError> {
        match self.busy {
            WhenBusy::Refuse => Err(self.busy("an invocation is running")),
            WhenBusy::Interrupt | WhenBusy::Wait | WhenBusy::Steer => self.queue_place(),
        }
    }

    fn queue_place(&self) -> Result<QueuePlace, RunnerError> {
        self.local
            .take_place(self.runner.0.max_waiting)
            .ok_or_else(|| self.busy("too many messages are waiting"))
    }

    /// Continues a run that waits for decisions, was interrupted or failed. Awaiting the result starts it.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
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
    #[doc(alias("continue", "Command"))]
    pub fn resume(&self) -> ResumeRun {
        ResumeRun::new(self.clone())
    }

    /// The invocation that runs in this process, if any.
    pub fn running(&self) -> Option<Invocation> {
        self.current().map(|current| current.invocation)
    }

    /// The invocation that drives a run in this process, if any: of those that [run](SessionHandle::running), not one
    /// that still waits or reads.
    pub fn driving(&self) -> Option<Invocation> {
        self.local.queue().driving().cloned()
    }

    /// Edits the session from outside when awaited: values of the state and, where a run is paused, results of its calls.
    /// Nothing is run.
    ///
    /// With an open run (it waits for decisions, was interrupted, suspended or failed, also in a
    /// [fork](SessionHandle::fork) at such a version) the edit is an event of its record, which a replay makes again; a
    /// call that was approved with other values is asked about again. Without one, only values can be changed. If
    /// another worker is running in the session, [`WhenClaimed`] decides.
    ///
    /// Under an [idempotency key](Edit::with_idempotency_key) the same edit may be sent any number of times, by any
    /// process: it is made once, however long ago that was.
    ///
    /// An edited run that waits for no decision is work that is left: where a worker [recovers](Runner::recover), that
    /// one continues it at once, a fork [with an edit](SessionHandle::fork_with) as well. A fork without one waits
    /// until it is resumed.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Edit`] with the reason; [`RunnerErrorKind::Conflict`] with both versions when the session is not at the
    /// [expected one](EditSession::expected_version); [`RunnerErrorKind::Busy`] while the agent is running here;
    /// [`RunnerErrorKind::Claimed`] while another worker is; [`RunnerErrorKind::AgentChanged`]; when the store fails.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    /// use stepfold_agent_loop::state_core::state::Schema;
    /// use stepfold_agent_loop::{Agent, Decision, Edit};
    /// use stepfold_runner::Runner;
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # async fn look() -> Result<u32, ToolError> { Ok(3) }
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let look = Tool::new("look", "Reads the bill.", look).build()?;
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// # let model = Script::parse("assistant: > c1 look()\nassistant: > c2 pay()\nassistant: done")?;
    /// let schema = Schema::builder().key::<String>("account").build()?;
    /// let agent = Agent::builder(model).schema(schema).tools([look, pay]).build()?;
    /// let session = Runner::builder(agent, MemoryStore::new()).build().session("ada", "s1").await?;
    /// let waiting = session.run("pay the bill").await?;
    ///
    /// let edit = Edit::new().set("account", "A-1").result("c1", 5).by("ada");
    /// let receipt = session.edit(edit).await?;
    /// assert!(receipt.is_of_run);
    /// let done = session.resume().decide(&*waiting.pending()[0].id, Decision::Approve).await?;
    /// assert_eq!(done.transcript().get(2).unwrap().tool_result().unwrap().text(), "5");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("update_state", "set_state", "write"))]
    pub fn edit(&self, edit: Edit) -> EditSession {
        EditSession::new(self.clone(), edit)
    }

    /// The gate, for a change between runs. A caller that reads the session holds it for a moment, which is waited for;
    /// a run is not. The first in the queue has it first, so that a run that begins later waits for the change.
    pub(crate) async fn lock_between_runs(&self) -> Result<OwnedMutexGuard<SessionCache>, RunnerError> {
        let mut queued = pin!(Arc::clone(&self.local.cache).lock_owned());
        if let Poll::Ready(cache) = poll_fn(|context| Poll::Ready(queued.as_mut().poll(context))).await {
            return Ok(cache);
        }
        if self.local.queue().has_worker() {
            return Err(self.busy("an invocation is running"));
        }
        Ok(queued.await)
    }

    /// Waits until no other worker is running in the session, at most as long as configured. Returns the
    /// session, and which claims may be taken over: one left by this worker or a dead one, or any.
    pub(crate) async fn wait_until_free(&self) -> Result<(Session, TakeOver), RunnerError> {
        let (core, mut waited) = (&self.runner.0, ClaimWait::default());
        loop {
            let session = self.read_events(EventRange::None).await?;
            let Some(claim) = &session.claim else { return Ok((session, TakeOver::Never)) };
            let take_over = TakeOver::Token(claim.token);
            match self.holder(&session) {
                ClaimHolder::Free | ClaimHolder::Us | ClaimHolder::Dead(_) => {
                    return Ok((session, take_over));
                }
                ClaimHolder::Other if core.claims.when_claimed == WhenClaimed::TakeOver => {
                    return Ok((session, TakeOver::Always));
                }
                ClaimHolder::Other if waited.pause(&core.claims, &*core.clock).await => {}
                ClaimHolder::Other => {
                    let (owner, expires) = (claim.owner.clone(), claim.expires);
                    let is_accepted = false;
                    return Err(self.error(RunnerErrorKind::Claimed { owner, expires, is_accepted }));
                }
            }
        }
    }

    pub(crate) fn holder(&self, session: &Session) -> ClaimHolder {
        self.runner.0.claims.holder(session.claim.as_ref(), &self.local.claim)
    }

    fn current(&self) -> Option<CurrentInvocation> {
        self.local.queue().current.clone()
    }

    pub(crate) fn access(&self) -> SessionAccess {
        SessionAccess::new(Arc::clone(&self.runner.0), Arc::clone(&self.local))
    }

    pub(crate) fn failed(&self, error: SessionError) -> RunnerError {
        RunnerError::store(&self.local.key, error)
    }

    /// Rejects requests after a shutdown.
    pub(crate) fn check_open(&self) -> Result<(), RunnerError> {
        match self.runner.0.shutdown.is_closed() {
            true => Err(self.error(RunnerErrorKind::ShutDown { is_accepted: false })),
            false => Ok(()),
        }
    }

    pub(crate) fn core(&self) -> &RunnerCore {
        &self.runner.0
    }

    pub(crate) fn busy(&self, reason: &'static str) -> RunnerError {
        self.error(RunnerErrorKind::Busy { reason })
    }

    pub(crate) fn error(&self, kind: RunnerErrorKind) -> RunnerError {
        RunnerError::new(&self.local.key, kind)
    }

    /// Starts a worker with a job, if none is running. Otherwise the job waits, or is returned.
    fn start(&self, job: WorkerJob, otherwise: IfWorkerRuns) -> Option<WorkerJob> {
        // Outside of a runtime it panics before anything has begun.
        let runtime = Handle::current();
        let job = {
            let mut queue = self.local.queue();
            match (queue.has_worker(), otherwise) {
                (true, IfWorkerRuns::GiveBack) => return Some(job),
                (true, IfWorkerRuns::WaitInInbox) => return queue.push_message(job.ticket),
                (true, IfWorkerRuns::Wait) => return queue.push_command(job),
                (false, _) => queue.begin(job),
            }
        };
        let worker = WorkerGuard::of(&self.local);
        runtime.spawn(SessionWorker::new(self.access()).work(job, worker, self.runner.0.shutdown.enter()));
        None
    }

    /// Starts a job that is not stored: its caller is present.
    pub(crate) fn start_command(&self, command: WorkerCommand) -> Result<Invocation, RunnerError> {
        self.check_open()?;
        let waiting = self.local.is_busy().then(|| self.queue_place()).transpose()?;
        let id = InvocationId::new(self.runner.0.ids.next()).map_err(|error| self.failed(error))?;
        let mut ticket = InvocationTicket::new(&self.local.key, id, waiting);
        if let WorkerCommand::Resume { decision_reply, .. } = &command {
            ticket.current.invocation.set_receipt(decision_reply.stored_receipt());
        }
        let invocation = ticket.current.invocation.clone();
        self.start(WorkerJob { command, ticket }, IfWorkerRuns::Wait);
        Ok(invocation)
    }
}

/// The handling of a job while a worker is running.
#[derive(Clone, Copy)]
enum IfWorkerRuns {
    GiveBack,
    Wait,
    WaitInInbox,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHandle").field("key", &self.local.key).finish_non_exhaustive()
    }
}
