//! Options of one run, and its start.

use std::future::IntoFuture;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use stepfold_state_core::chat::Message;
use stepfold_tools::CancellationToken;
use tokio::sync::mpsc;

use super::redaction::DriverRedaction;
use super::{CallAnswers, DriverOptions, Metering, RunDriver, drive};
use crate::agent::{Agent, AgentBuilder};
use crate::approval::{Approver, Decision};
use crate::decisions::Decisions;
use crate::exit::{Breakpoint, Exit, Pause};
use crate::meter::RequestMeter;
use crate::observe::{Observer, RunEvent};
use crate::outcome::Outcome;
use crate::ports::{Clock, Ids, RandomIds, TokioClock};
use crate::redact::{ModelView, Redact, RunRedaction};
use crate::run::{Input, Run};
use crate::run_error::{RunError, RunFault};

/// A run that is about to begin or to continue. Awaiting it runs it.
///
/// Dropping the future stops the run where it is: what was committed stays. To stop it and have an outcome,
/// cancel it by its [token](RunBuilder::cancel_with).
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit, RunEvent};
///
/// # let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let mut seen = Vec::new();
/// let outcome = agent
///     .run("which area has most stalls?")
///     .id("session-7/turn-1")
///     .observe(&mut seen)
///     .with(|agent| agent.instructions("Be brief.").max_steps(5))
///     .await?;
/// assert_eq!(outcome.exit(), &Exit::Text);
/// assert_eq!(seen.last(), Some(&RunEvent::Ended(Exit::Text)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a run does nothing until it is awaited"]
pub struct RunBuilder<'a> {
    start: RunOrigin,
    adjusted: Option<AgentBuilder>,
    id: Option<String>,
    key_prefix: Option<String>,
    ids: Box<dyn Ids + 'a>,
    clock: Option<Arc<dyn Clock + 'a>>,
    options: DriverOptions<'a>,
}

enum RunOrigin {
    New { agent: Agent, input: Box<Input> },
    Resumed(Box<Run>),
}

impl Agent {
    /// Prepares a run; awaiting it runs the agent. See [`RunBuilder`] for what can be said about a run.
    pub fn run(&self, input: impl Into<Input>) -> RunBuilder<'_> {
        RunBuilder::new(self, input.into())
    }
}

impl Run {
    /// Prepares to continue with the run; awaiting it does so. A run can be resumed from any position: from a
    /// breakpoint, with decisions, after an error, or from storage.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Breakpoint, Exit, Run};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let stopped = agent.run("which area has most stalls?").break_at(Breakpoint::model()).await?;
    /// let stored = stopped.run().to_json();
    ///
    /// // Next week, in another process:
    /// let outcome = Run::load(&agent, &stored)?.resume().await?;
    /// assert_eq!((outcome.exit(), outcome.text()), (&Exit::Text, "area 3".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn resume<'a>(self) -> RunBuilder<'a> {
        RunBuilder::of(RunOrigin::Resumed(Box::new(self)))
    }
}

impl<'a> RunBuilder<'a> {
    fn new(agent: &Agent, input: Input) -> Self {
        RunBuilder::of(RunOrigin::New { agent: agent.clone(), input: Box::new(input) })
    }

    fn of(start: RunOrigin) -> Self {
        RunBuilder {
            start,
            adjusted: None,
            id: None,
            key_prefix: None,
            ids: Box::new(RandomIds),
            clock: None,
            options: DriverOptions::default(),
        }
    }

    /// Changes the agent for this run: other tools, instructions, limits or model parameters.
    pub fn with(mut self, change: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Self {
        let agent = match &self.start {
            RunOrigin::New { agent, .. } => agent,
            RunOrigin::Resumed(run) => run.agent(),
        };
        let builder = self.adjusted.take().unwrap_or_else(|| agent.to_builder().for_one_run());
        self.adjusted = Some(change(builder));
        self
    }

    /// Sets the id, which no other run may have: the idempotency keys of calls begin with it. A resumed run keeps its
    /// own.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the prefix of idempotency keys, in place of the id: see [`Run::with_key_prefix`].
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Sets the source of ids, for runs without an [id](RunBuilder::id); random by default.
    pub fn ids(mut self, ids: impl Ids + 'a) -> Self {
        self.ids = Box::new(ids);
        self
    }

    /// Sets the clock; that of the tokio runtime by default.
    pub fn clock(mut self, clock: impl Clock + 'a) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Adds an observer, which is notified after those that were added before.
    pub fn observe(mut self, observer: impl Observer + 'a) -> Self {
        self.options.observers.push(Box::new(observer));
        self
    }

    /// Records the run with this observer, which is asked before all others and only about events that are to be
    /// [committed](RunEvent::Committed). An event that it accepts is committed, whatever the others return; one that it
    /// refuses is not, and the others are not notified of it. Without such an observer, each of them can refuse a
    /// commit.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, RunEvent};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let (mut stored, mut shown) = (Vec::<RunEvent>::new(), Vec::<RunEvent>::new());
    /// agent.run("which area?").record_with(&mut stored).observe(&mut shown).await?;
    /// let names = stored.iter().filter_map(RunEvent::committed).map(|event| event.name());
    /// assert_eq!(names.collect::<Vec<_>>(), ["began", "replied"]);
    /// assert!(shown.len() > stored.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn record_with(mut self, recorder: impl Observer + 'a) -> Self {
        self.options.recorder = Some(Box::new(recorder));
        self
    }

    /// Decides about calls while the run waits. Without an approver, and for requests that it leaves open, the run
    /// [pauses](crate::Pause::Approval).
    pub fn approve_with(mut self, approver: impl Approver + 'a) -> Self {
        self.options.approver = Some(Box::new(approver));
        self
    }

    /// Answers every call from here, in place of the functions of the tools: none of them starts, and no node of a graph.
    /// See [`CallAnswers`].
    pub fn answer_calls_with(mut self, answers: impl CallAnswers + 'a) -> Self {
        self.options.call_answers = Some(Box::new(answers));
        self
    }

    /// Decides about a [pending](Outcome::pending) request, by its [id](crate::ApprovalRequest::id).
    ///
    /// The decision holds for what the request showed and for nothing else. It is committed before anything else
    /// happens. One that is [refused](crate::DecisionError) is an error of its own ([`RunFault::Decision`]): nothing is
    /// committed then, and the run waits as before.
    pub fn decide(self, id: impl Into<String>, decision: Decision) -> Self {
        self.decide_all([(id.into(), decision)])
    }

    /// Decides about several pending requests at once: all of the decisions are taken, or none.
    pub fn decide_all(mut self, decisions: impl Into<Decisions>) -> Self {
        self.options.decisions = self.options.decisions.and(decisions);
        self
    }

    /// Stops before the model or a tool.
    pub fn break_at(mut self, breakpoint: Breakpoint) -> Self {
        self.options.breakpoints.push(breakpoint);
        self
    }

    /// Ends when this token is cancelled: with an outcome, whose open calls are answered as cancelled.
    pub fn cancel_with(mut self, token: CancellationToken) -> Self {
        self.options.cancellation = token;
        self
    }

    /// Records that the agent has changed only with something that continues the run: one that waits for decisions, and is given
    /// none, stays as it is recorded. By default it is recorded at once.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Run, RunEvent};
    /// use stepfold_tools::{Approval, Tool, ToolError};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let waiting = agent.run("pay the bill").await?;
    ///
    /// let kinder = agent.to_builder().instructions("Be kind.").build()?;
    /// let (run, _) = Run::load_changed(&kinder, &waiting.run().to_json())?;
    /// let mut seen: Vec<RunEvent> = Vec::new();
    /// run.clone().resume().upgrade_when_continued().observe(&mut seen).await?;
    /// assert!(seen.iter().all(|event| event.committed().is_none()));
    /// run.resume().observe(&mut seen).await?;
    /// assert_eq!(seen.iter().find_map(RunEvent::committed).unwrap().name(), "upgraded");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn upgrade_when_continued(mut self) -> Self {
        self.options.upgrades_late = true;
        self
    }

    /// Pauses at the next boundary of steps when this token is cancelled: [`Pause::Suspended`](crate::Pause::Suspended).
    /// A step is finished first, with all its calls, and at least one is made; of a graph, a superstep.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{CancellationToken, Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Exit, Pause};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).build()?;
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let token = CancellationToken::new();
    /// token.cancel();
    /// let suspended = agent.run("pay the bill").suspend_with(token).await?;
    /// assert_eq!((suspended.exit(), suspended.steps()), (&Exit::Paused(Pause::Suspended), 1));
    ///
    /// let outcome = suspended.into_run().resume().await?;
    /// assert_eq!((outcome.exit(), outcome.text()), (&Exit::Text, "done".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn suspend_with(mut self, token: CancellationToken) -> Self {
        self.options.suspension = token;
        self
    }

    /// Adds messages of the user during the run: each before the next request to the model. Messages that are left when
    /// the run ends stay in the channel.
    pub fn inbox(self, mut messages: mpsc::Receiver<Message>) -> Self {
        self.inbox_with(move || messages.try_recv().ok())
    }

    /// Adds messages from any source: `next` returns a message that is available, and does not wait.
    pub fn inbox_with(mut self, next: impl FnMut() -> Option<Message> + Send + 'a) -> Self {
        self.options.inbox = Some(Box::new(next));
        self
    }

    /// Meters each request to a model, of the runs inside as well: see [`RequestMeter`].
    pub fn meter_with(mut self, meter: Arc<dyn RequestMeter>) -> Self {
        self.options.metering = Metering { meter: Some(meter), place: Vec::new() };
        self
    }

    /// Meters a run inside of another one.
    pub(super) fn metering(mut self, metering: Metering) -> Self {
        self.options.metering = metering;
        self
    }

    /// Redacts the run: sensitive parts of its content are replaced before recorder, observers and subscribers have them. The functions
    /// of tools get arguments as the model has written them, and [`ModelView`] says what the model is shown.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, ModelView, Redaction};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: I will write to ada@example.org.")?).build()?;
    /// let rules = Arc::new(Redaction::all());
    /// let outcome = agent.run("mine is ada@example.org").redact_with(rules, ModelView::Redacted).await?;
    /// assert_eq!(outcome.text(), "I will write to [email].");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn redact_with(mut self, redact: Arc<dyn Redact>, view: ModelView) -> Self {
        self.options.redaction = DriverRedaction::new(RunRedaction { redact, view });
        self
    }

    pub(super) fn redaction(mut self, redaction: DriverRedaction) -> Self {
        self.options.redaction = redaction;
        self
    }

    async fn run(self) -> Result<Outcome, RunError> {
        let RunBuilder { start, adjusted, id, key_prefix, ids, clock, mut options } = self;
        let mut run = begin_run(start, adjusted, || id.unwrap_or_else(|| ids.next()))?;
        // NOTE: Also for a run of this process: a driver that was dropped may have left started calls behind.
        run.take_over();
        if let Some(prefix) = key_prefix {
            run = run.with_key_prefix(prefix);
        }
        // NOTE: Before anything is driven, so that a refused decision leaves the run waiting as it was.
        if let Err(error) = run.check_decisions(&options.decisions) {
            return Err(RunError::new(RunFault::Decision(error), run));
        }
        // A repeat changes nothing.
        if run.has_decided(&options.redaction.redacted_decisions(&options.decisions)) {
            options.decisions = Decisions::new();
        }
        let clock = clock.unwrap_or_else(|| Arc::new(TokioClock::start()));
        let is_inside = !options.metering.place.is_empty();
        let mut driver = RunDriver::new(&run, options, clock);
        match drive(&mut run, &mut driver).await.or_else(|fault| paused(fault, is_inside)) {
            Ok(exit) => {
                if !exit.is_resumable() {
                    run.drop_originals();
                }
                let ended = RunEvent::Ended(exit.clone());
                match driver.notify(|| ended).await {
                    Ok(()) => Ok(Outcome::new(run, exit)),
                    Err(fault) => Err(RunError::new(fault, run)),
                }
            }
            Err(fault) => {
                // The run has failed already; an observer that fails as well cannot add to that.
                let exit = fault.exit(&run);
                let _ = driver.notify(|| RunEvent::Ended(exit)).await;
                Err(RunError::new(fault, run))
            }
        }
    }
}

/// The pause for a budget, of the outermost run: one inside stops with it.
fn paused(fault: RunFault, is_inside: bool) -> Result<Exit, RunFault> {
    match fault {
        RunFault::Budget(budget) if budget.pauses && !is_inside => Ok(Exit::Paused(Pause::Budget(budget))),
        fault => Err(fault),
    }
}

/// The run, begun or resumed, of the agent as it was adjusted.
fn begin_run(
    start: RunOrigin,
    adjusted: Option<AgentBuilder>,
    id: impl FnOnce() -> String,
) -> Result<Run, RunError> {
    let adjusted = adjusted.map(AgentBuilder::build).transpose();
    match (start, adjusted) {
        (RunOrigin::New { agent, .. }, Err(error)) => {
            Err(RunError::new(RunFault::Agent(error), Run::empty(&agent, "not-begun")))
        }
        (RunOrigin::Resumed(run), Err(error)) => Err(RunError::new(RunFault::Agent(error), *run)),
        (RunOrigin::New { agent, input }, Ok(adjusted)) => {
            let agent = adjusted.unwrap_or(agent);
            let id: Arc<str> = id().into();
            Run::new(&agent, *input, Arc::clone(&id))
                .map_err(|error| RunError::new(RunFault::Start(error), Run::empty(&agent, &id)))
        }
        (RunOrigin::Resumed(run), Ok(adjusted)) => Ok(match adjusted {
            Some(agent) => run.with_agent(agent),
            None => *run,
        }),
    }
}

impl<'a> IntoFuture for RunBuilder<'a> {
    type Output = Result<Outcome, RunError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl std::fmt::Debug for RunBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunBuilder").field("id", &self.id).finish_non_exhaustive()
    }
}
