//! Calls that are answered from elsewhere, in place of the functions of their tools: from a record, for example.

use futures_util::future::BoxFuture;
use stepfold_state_core::chat::{ToolCall, ToolResult};
use stepfold_state_core::state::State;
use stepfold_tools::{CallOutcome, Resources, Tool};

use super::RunDriver;
use super::step::StepExecution;
use crate::run::{Event, Run, RunAnswer};
use crate::run_error::RunFault;

/// Answers the calls of a run in place of the functions of its tools: see [`RunBuilder::answer_calls_with`].
///
/// The driver asks where a function would start: the arguments are valid, approvals are given, calls that must not run
/// twice are marked, and calls that wait for others have seen their writes. So the run makes the events that it would
/// have made with its tools. Hooks run as in any run. Nodes of graphs have no answers: such a run stops.
///
/// [`RunBuilder::answer_calls_with`]: crate::RunBuilder::answer_calls_with
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, CallAnswer, RunFault, StartingCall};
/// use stepfold_state_core::chat::ToolResult;
/// use stepfold_tools::{CallOutcome, CallStatus, Effect, Tool, ToolError};
///
/// async fn pay() -> Result<String, ToolError> {
///     unreachable!("no function starts")
/// }
/// let pay = Tool::new("pay", "Pays a bill.", pay).effect(Effect::AtMostOnce).build()?;
/// # let model = Script::parse("assistant: > c1 pay()\nassistant: done\nassistant: > c1 pay()")?;
/// let agent = Agent::builder(model).tools([pay]).build()?;
///
/// let recorded = |starting: &StartingCall| {
///     let result = ToolResult::value(&starting.call.id, &starting.call.name, "paid");
///     Some(CallAnswer::new(CallOutcome::new(CallStatus::Succeeded, result)))
/// };
/// let outcome = agent.run("pay the bill").answer_calls_with(recorded).await?;
/// assert_eq!(outcome.text(), "done");
///
/// let error = agent.run("pay it").answer_calls_with(|_: &StartingCall| None).await.unwrap_err();
/// assert!(matches!(error.fault(), RunFault::Unanswered { tool, .. } if tool == "pay"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub trait CallAnswers: Send {
    /// The answer to a call that would start now; `None` if there is none: then the run stops with
    /// [`RunFault::Unanswered`].
    fn answer<'a>(&'a mut self, call: &'a StartingCall) -> BoxFuture<'a, Option<CallAnswer>>;
}

/// A function that answers without waiting.
impl<F: FnMut(&StartingCall) -> Option<CallAnswer> + Send> CallAnswers for F {
    fn answer<'a>(&'a mut self, call: &'a StartingCall) -> BoxFuture<'a, Option<CallAnswer>> {
        Box::pin(std::future::ready(self(call)))
    }
}

/// A call whose function would start now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StartingCall {
    /// The number of the step: of the reply with the call.
    pub step: u64,
    /// The index of the call in its reply.
    pub place: usize,
    /// The call, with the arguments that it runs with, without those from the state.
    pub call: ToolCall,
    /// Its tool.
    pub tool: Tool,
    /// The state that it sees: with the writes of the calls of its reply that it waited for.
    pub state: State,
    /// The resources of the agent.
    pub resources: Resources,
}

/// The answer to a call in place of its function.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallAnswer {
    /// The outcome, with its writes. Its result is given the id of the call.
    pub outcome: CallOutcome,
    /// The events of the run inside of the call, of an agent that is a tool. They are committed before the outcome, if they
    /// fit the agent; otherwise the outcome alone is.
    pub inner: Vec<Event>,
}

impl CallAnswer {
    /// An answer without a run inside.
    pub const fn new(outcome: CallOutcome) -> Self {
        CallAnswer { outcome, inner: Vec::new() }
    }

    /// Adds the events of the run inside of the call.
    #[must_use]
    pub fn with_inner(mut self, events: Vec<Event>) -> Self {
        self.inner = events;
        self
    }
}

impl RunDriver<'_> {
    /// Answers the calls that are about to start.
    pub(super) async fn answer_calls(
        &mut self,
        run: &mut Run,
        execution: &mut StepExecution<'_>,
        places: &[usize],
    ) {
        for place in places {
            let answer =
                match (execution.functions.starting_call(run, *place), &mut self.options.call_answers) {
                    (Some(call), Some(answers)) => {
                        answers.answer(&call).await.map(|answer| answer.of(&call.call))
                    }
                    _ => None,
                };
            let Some(CallAnswer { outcome, inner }) = answer else {
                execution.failure.record::<()>(Err(unanswered(run, *place)));
                execution.functions.hold(*place);
                continue;
            };
            if fit(run, *place, &inner) {
                for event in inner {
                    let answer = RunAnswer::Inner { place: *place, event: Box::new(event) };
                    execution.failure.record(self.commit(run, answer).await);
                }
            }
            if execution.failure.is_refusal() {
                return;
            }
            execution.functions.conclude(*place, outcome);
        }
    }
}

impl CallAnswer {
    /// The answer under the id of this call.
    fn of(mut self, call: &ToolCall) -> Self {
        let content = self.outcome.result.content().clone();
        self.outcome.result = ToolResult::new(&call.id, &call.name, content);
        self
    }
}

/// Whether the run inside of a call can have made these events.
fn fit(run: &Run, place: usize, events: &[Event]) -> bool {
    let mut run = run.clone();
    events.iter().all(|event| {
        let answer = RunAnswer::Inner { place, event: Box::new(event.clone()) };
        let made = run.feed(answer, run.elapsed());
        made.is_ok_and(|made| run.follow(&made).is_ok())
    })
}

fn unanswered(run: &Run, place: usize) -> RunFault {
    let task = run.task(place);
    let tool = task.as_ref().map(|task| task.name().to_owned()).unwrap_or_default();
    RunFault::Unanswered { tool, id: task.map(|task| task.label()).unwrap_or_default() }
}
