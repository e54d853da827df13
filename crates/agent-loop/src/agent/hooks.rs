//! Hooks: functions of the application at six points of a run.
//!
//! A hook reads a snapshot and returns an action; it changes nothing by itself. The actions of all hooks of a
//! point are committed as one event, so a resumed run does not call them again and a replay does not need
//! them.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{Message, ToolCall, ToolContent, Transcript, Usage};
use stepfold_state_core::state::{Delta, State, WriteKey};
use stepfold_tools::CallOutcome;

use crate::exit::Exit;

/// The point of a run at which a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HookPoint {
    /// Once, before the first step.
    BeforeRun,
    /// Before each request to the model.
    BeforeModel,
    /// Before each call that is about to run, in call order, before any call of the reply has run.
    BeforeTool,
    /// After each call that ran, before its outcome is committed.
    ///
    /// A call has happened when a hook fails: its outcome is committed as the hooks before left it, as one that a hook
    /// has [still to see](crate::Run::pending_hooks), and the run fails. Resumed, it begins with that hook; before it has
    /// run, the outcome is neither shown to the model nor told as [finished](crate::RunEvent::ToolFinished). So a hook
    /// that redacts never lets anything through to the model, but the record may hold what it would have redacted: to
    /// keep a secret out of the record as well, redact in the tool itself.
    AfterTool,
    /// When the run is about to end. A hook can make it continue instead.
    OnExit,
    /// Once, at the end.
    AfterRun,
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HookPoint::BeforeRun => "before the run",
            HookPoint::BeforeModel => "before the model",
            HookPoint::BeforeTool => "before a tool",
            HookPoint::AfterTool => "after a tool",
            HookPoint::OnExit => "at the exit",
            HookPoint::AfterRun => "after the run",
        })
    }
}

/// The input of a hook.
#[doc(alias("middleware", "callback"))]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookContext {
    /// The current point of the run.
    pub point: HookPoint,
    /// The state and the conversation. It never changes.
    pub state: State,
    /// The number of steps so far.
    pub steps: u64,
    /// The tokens used so far.
    pub usage: Usage,
    /// The call, before and after a tool.
    pub call: Option<ToolCall>,
    /// Its outcome, after a tool.
    pub outcome: Option<CallOutcome>,
    /// The exit, for hooks on exit and after the run.
    pub exit: Option<Exit>,
}

/// The action that a hook returns.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit, HookAction, HookContext};
/// use stepfold_state_core::state::Schema;
///
/// let agent = Agent::builder(Script::parse("assistant: 3\nassistant: area 3")?)
///     .schema(Schema::builder().key::<u64>("asked").build()?)
///     .before_model(|context: HookContext| async move {
///         HookAction::proceed().write(&context, "asked", context.steps + 1)
///     })
///     // Not an answer yet: ask again.
///     .on_exit(|context: HookContext| async move {
///         let is_sentence = context.state.messages().last().is_some_and(|last| last.text().contains(' '));
///         Ok(if is_sentence { HookAction::proceed() } else { HookAction::continue_run() })
///     })
///     .build()?;
/// let outcome = agent.run("which area has most stalls?").await?;
/// assert_eq!((outcome.text(), outcome.exit()), ("area 3".into(), &Exit::Text));
/// assert_eq!(outcome.state().get("asked").unwrap(), serde_json::json!(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[doc(alias("middleware", "guardrail"))]
#[derive(Clone, Debug, Default)]
#[must_use = "an action does nothing until the hook returns it"]
pub struct HookAction {
    pub(crate) delta: Delta,
    pub(crate) rewrite: Option<Transcript>,
    pub(crate) messages: Vec<Message>,
    pub(crate) verdict: HookVerdict,
    pub(crate) answer: Option<String>,
    pub(crate) result: Option<ToolContent>,
}

impl HookAction {
    /// Continues without a change.
    pub fn proceed() -> Self {
        HookAction::default()
    }

    /// Ends the run, for this reason. Calls that have not run are answered as not run.
    pub fn stop(reason: impl Into<String>) -> Self {
        HookAction { verdict: HookVerdict::Stop(reason.into()), ..HookAction::default() }
    }

    /// Continues the run with another request; on exit only. A limit or a cancellation cannot be overruled.
    pub fn continue_run() -> Self {
        HookAction { verdict: HookVerdict::GoOn, ..HookAction::default() }
    }

    /// Adds a write with the key's own handler. Before and after a tool, the write is folded with those of
    /// the call, at the end of the step; elsewhere immediately.
    ///
    /// A write before a tool is dropped unless the call succeeds, also if its outcome is unknown after a crash: hooks after
    /// a tool are not called then. A write after a tool is kept if the call has failed.
    ///
    /// # Errors
    /// When the value does not fit the schema.
    pub fn write<V, K: WriteKey<V>>(
        mut self,
        context: &HookContext,
        key: K,
        value: V,
    ) -> Result<Self, HookError> {
        self.delta.push(context.state.schema().write(key, value)?);
        Ok(self)
    }

    /// Adds writes.
    pub fn with_delta(mut self, delta: Delta) -> Self {
        self.delta.extend(delta);
        self
    }

    /// Appends a message. Not before or after a tool, where the step is open.
    pub fn with_message(mut self, message: Message) -> Self {
        self.messages.push(message);
        self
    }

    /// Replaces the conversation, and repairs it if necessary. Not allowed before or after a tool, where the
    /// step is open.
    pub fn with_rewrite(mut self, transcript: Transcript) -> Self {
        self.rewrite = Some(transcript);
        self
    }

    /// Before a tool: the call does not run, and the model reads this instead.
    pub fn with_answer(mut self, text: impl Into<String>) -> Self {
        self.answer = Some(text.into());
        self
    }

    /// After a tool: the model reads this instead of the result.
    pub fn with_result(mut self, content: ToolContent) -> Self {
        self.result = Some(content);
        self
    }
}

/// The combined decision of the hooks of a point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HookVerdict {
    /// Continues without a change.
    #[default]
    Proceed,
    /// The run ends, for this reason.
    Stop(String),
    /// The run continues with another request. Only on exit, and not at a limit.
    GoOn,
}

impl HookVerdict {
    /// Whether the action changes nothing.
    pub const fn is_proceed(&self) -> bool {
        matches!(self, HookVerdict::Proceed)
    }
}

/// An error of a hook: any error. It ends the run, which stays resumable.
pub struct HookError(Box<dyn Error + Send + Sync>);

impl HookError {
    /// An error with this message.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        HookError(error.into())
    }

    pub(crate) fn into_source(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for HookError {
    fn from(error: E) -> Self {
        HookError(Box::new(error))
    }
}

impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of a hook.
pub type HookResult = Result<HookAction, HookError>;

type HookFunction = Arc<dyn Fn(HookContext) -> BoxFuture<'static, HookResult> + Send + Sync>;

/// The hooks of an agent, in the order in which they were added.
#[derive(Clone, Default)]
pub(crate) struct HookList(Vec<(HookPoint, HookFunction)>);

impl HookList {
    pub(crate) fn add<F, Fut>(&mut self, point: HookPoint, hook: F)
    where
        F: Fn(HookContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HookResult> + Send + 'static,
    {
        self.0.push((point, Arc::new(move |context| Box::pin(hook(context)))));
    }

    pub(crate) fn has(&self, point: HookPoint) -> bool {
        self.0.iter().any(|(at, _)| *at == point)
    }

    /// The points of the hooks, in their order.
    pub(crate) fn points(&self) -> Vec<HookPoint> {
        self.0.iter().map(|(point, _)| *point).collect()
    }

    pub(crate) fn at(&self, point: HookPoint) -> impl Iterator<Item = &HookFunction> {
        self.0.iter().filter(move |(at, _)| *at == point).map(|(_, hook)| hook)
    }
}

impl fmt::Debug for HookList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(point, _)| point)).finish()
    }
}
