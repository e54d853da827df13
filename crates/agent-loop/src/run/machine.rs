//! A run, and its next need: a pure function of its phase.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepfold_state_core::chat::{
    Arguments, ChatRequest, FinishReason, Message, Role, ToolCall, ToolChoice, Transcript, Usage,
};
use stepfold_state_core::state::State;
use stepfold_tools::{AnsweredRequest, CallOutcome, Effect, Tool, Tools};

use super::event::{Event, EventKind, is_default};
use super::input::{ConversationCache, Input};
use super::name_map::NameMap;
use super::prompt::ModelPrompt;
use super::requests::ItemDecision;
use super::step::{ItemCondition, ItemState, OpenStep, StepItem, StepPlan, SuperstepWalk};
use super::step_task::StepTask;
use super::unknown_calls::UnknownCall;
use super::upgrade::PendingUpgrade;
use crate::agent::{Agent, HookPoint, OfferedTools, Planner, RunLimits};
use crate::approval::nested_path;
use crate::decisions::SettledDecision;
use crate::error::StartError;
use crate::exit::{Breakpoint, Exit};
use crate::planned::{OpenBranch, PlannedBranch};
use crate::redact::Originals;
use crate::state_input::{StateInput, canonical_inputs};
use stepfold_trim::{Summary, SummaryPlan, View};

/// A run of an agent at any point: a state machine that returns what it needs and takes the answers.
///
/// It waits for nothing, reads no clock, and touches nothing outside itself, so any host can drive it: the
/// driver of this crate ([`Agent::run`](crate::Agent::run)), a durable engine, a simulator, a test without
/// a runtime. It serialises at every point, and [`Run::load`] has it continue.
///
/// # Examples
/// A host of one's own:
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::{Agent, RunAnswer, RunNeed, Run};
/// use stepfold_state_core::chat::{Chunk, FinishReason, Message, Reply, ReplyBuilder};
///
/// use stepfold_agent_loop::test_kit::Script;
/// # let model = Script::parse("")?;
/// let agent = Agent::builder(model).build()?;
/// let mut run = Run::new(&agent, "which area has most stalls?", "run-1")?;
/// loop {
///     let answer = match run.decide() {
///         RunNeed::Begin => RunAnswer::Begin,
///         RunNeed::Model => {
///             // Ask a model with `run.request()`; here the answer is written down.
///             let mut reply = ReplyBuilder::new();
///             reply.push(Chunk::Text("area 3".to_owned()));
///             reply.push(Chunk::Finished(FinishReason::Stop));
///             RunAnswer::Reply(reply.finish()?)
///         }
///         RunNeed::Nothing(exit) => break println!("{exit}"),
///         need => unreachable!("{need:?}: this agent has no tools, hooks or summaries"),
///     };
///     let event = run.feed(answer, Duration::ZERO)?;
///     // A durable host stores the event here, before anything else happens.
///     run.commit(event)?;
/// }
/// assert_eq!(run.transcript().last().unwrap().text(), "area 3");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Run {
    pub(super) agent: Agent,
    /// The name that the record has, also where another session continues with it.
    pub(super) id: Arc<str>,
    /// The prefix of the current process's idempotency keys. Never read from a record.
    pub(super) key_prefix: Arc<str>,
    /// The number of runs around it.
    pub(super) depth: usize,
    /// The remaining limits of the run around it.
    pub(super) bounds: Option<RunLimits>,
    pub(super) state: State,
    pub(super) phase: RunPhase,
    pub(super) tally: RunTally,
    pub(super) summary: Option<Summary>,
    /// Calls that were approved once, for agreement that holds for the same arguments.
    pub(super) approved: Vec<ApprovedCall>,
    /// The decisions that requests have, by their ids.
    pub(super) decided: BTreeMap<String, SettledDecision>,
    /// The calls that were answered with "outcome unknown".
    pub(super) unknown: Vec<UnknownCall>,
    pub(super) prompt: ModelPrompt,
    /// Known facts about the conversation: the ids of all calls in it; of the part before the run began,
    /// how much is well-formed, and, until it begins, what was shown of it.
    pub(super) cache: ConversationCache,
    /// The tools of this step.
    pub(super) offer: Option<OfferedTools>,
    /// Whether it was caught up with a record, on the values that there are by now, and has committed nothing since.
    pub(super) is_taken_up: bool,
    /// Whether another process started the running items.
    pub(super) is_lost: bool,
    /// Whether the next events were recorded with another agent.
    pub(super) is_of_other_agent: bool,
    /// The change of the agent that is to be recorded next.
    pub(super) upgrade: Option<Box<PendingUpgrade>>,
    /// The originals of replaced messages, where the model is shown them. Never stored.
    pub(super) originals: Option<Arc<Originals>>,
}

/// The phase of a run. [`super`] has the table of transitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunPhase {
    /// Nothing is committed.
    Fresh(Box<RunBeginning>),
    /// Hooks before the run.
    Opening,
    /// The beginning of the conversation may need a summary.
    Condensing {
        /// It was tried and did not work.
        #[serde(default)]
        gave_up: bool,
        /// The request was too long: it needs one, whatever the agent waits for otherwise.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_rescue: bool,
    },
    /// The model is to be asked.
    Asking {
        /// The hooks before it ran.
        is_hooked: bool,
        /// It is the last time, without tools, because of this exit.
        last: Option<Exit>,
    },
    /// A step is open, or a plan is to say what comes next.
    Working(OpenStep),
    /// Hooks on exit.
    Leaving(Exit),
    /// Hooks after the run.
    Closing(Exit),
    /// All is done.
    Done(Exit),
}

impl RunPhase {
    /// The beginning of the conversation may need a summary.
    pub(super) const fn condensing() -> Self {
        RunPhase::Condensing { gave_up: false, is_rescue: false }
    }

    /// The model is asked next, after the hooks.
    pub(super) const fn asking() -> Self {
        RunPhase::Asking { is_hooked: false, last: None }
    }
}

/// The beginning of a run, before it is committed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunBeginning {
    pub(crate) messages: Vec<Arc<Message>>,
    #[serde(default)]
    pub(crate) delta: stepfold_state_core::state::Delta,
    /// It was recorded, without what does not last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_recorded: bool,
}

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunTally {
    /// Events that were committed.
    pub(crate) events: u64,
    pub(crate) steps: u64,
    pub(crate) usage: Usage,
    /// The usage by model, that of the runs inside included.
    #[serde(skip_serializing_if = "NameMap::is_empty")]
    pub(crate) usage_by_model: NameMap<Usage>,
    /// Calls by tool, those answered without running left out.
    pub(crate) calls: NameMap<u64>,
    /// Calls of the runs inside. They count for the limits.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) calls_inside: u64,
    #[serde(with = "super::event::micros", rename = "elapsed_us")]
    pub(crate) elapsed: Duration,
    pub(crate) output_faults: u32,
    pub(crate) repeats: u32,
    /// The replies in a row after which the model was asked again because they are empty.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) empty_replies: u32,
    /// The times in a row that the request was narrowed because the provider refused it as too long.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) rescues: u32,
    /// The index in the log at which the turn of this run begins.
    pub(crate) turn_start: usize,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) output: Option<serde_json::Value>,
    /// The number of events when a breakpoint stopped the run, so that it continues from there.
    pub(crate) stopped_at: Option<u64>,
    /// Whether the beginning of the conversation is gone that the run began on: it was pruned since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_pruned: bool,
}

/// A call that was approved, for [`Approval::Once`](stepfold_tools::Approval::Once).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ApprovedCall {
    pub(crate) tool: String,
    /// As [canonical JSON](stepfold_state_core::canonical_json).
    pub(crate) arguments: String,
    /// The values that the state added, in the same form.
    #[serde(default, skip_serializing_if = "String::is_empty", rename = "inputs_from_state")]
    pub(crate) inputs: String,
    /// The digest of the tool as it was shown, where tools are listed at each step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<String>,
    /// The dependency of the agent that lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dependency: Option<String>,
}

impl ApprovedCall {
    pub(super) fn of(
        call: &ToolCall,
        inputs: &[StateInput],
        definition: Option<String>,
        dependency: Option<String>,
    ) -> Self {
        let arguments = match call.arguments.as_object() {
            // NOTE: Equal calls must not get two decisions because their arguments are in another order.
            Some(arguments) => stepfold_state_core::canonical_object(arguments),
            None => call.arguments.to_text().into_owned(),
        };
        let (tool, inputs) = (call.name.clone(), canonical_inputs(inputs));
        ApprovedCall { tool, arguments, inputs, definition, dependency }
    }
}

/// The need of a run: the input with which it continues.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunNeed {
    /// The start: [`RunAnswer::Begin`](crate::RunAnswer::Begin).
    Begin,
    /// The record that the agent is another one from here on: [`RunAnswer::Upgrade`](crate::RunAnswer::Upgrade). Only of a run
    /// that was recorded with another agent.
    Upgrade,
    /// The hooks of this point: [`RunAnswer::Hooked`](crate::RunAnswer::Hooked). After a tool, those that failed before:
    /// [`RunAnswer::Outcomes`](crate::RunAnswer::Outcomes) for each of [`Run::pending_hooks`].
    Hook(HookPoint),
    /// A summary of the beginning of the conversation: [`RunAnswer::Summary`](crate::RunAnswer::Summary).
    Summary(Box<SummaryPlan>),
    /// The model, with [`Run::request`]: [`RunAnswer::Reply`](crate::RunAnswer::Reply).
    Model,
    /// The report that calls or nodes which must not run twice were interrupted:
    /// [`RunAnswer::Interrupted`](crate::RunAnswer::Interrupted). Only of a run that was loaded, or [taken
    /// over](Run::take_over): items that a host has started itself are under way.
    Interrupted,
    /// Decisions about [`Run::pending`]: [`RunAnswer::Decisions`](crate::RunAnswer::Decisions).
    Approval,
    /// The outcomes of [`Run::open_calls`]: [`RunAnswer::Outcomes`](crate::RunAnswer::Outcomes) for each.
    Calls,
    /// The next superstep of a graph: [`RunAnswer::Plan`](crate::RunAnswer::Plan).
    Superstep,
    /// The outcomes of [`Run::open_branches`]: [`RunAnswer::Outcomes`](crate::RunAnswer::Outcomes) for each, and what
    /// the agents among them commit as [`RunAnswer::Inner`](crate::RunAnswer::Inner).
    Nodes,
    /// Nothing more: the run has ended.
    Nothing(Exit),
}

impl fmt::Display for RunNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunNeed::Begin => f.write_str("its beginning"),
            RunNeed::Upgrade => f.write_str("the record of a changed agent"),
            RunNeed::Hook(point) => write!(f, "its hooks {point}"),
            RunNeed::Summary(_) => f.write_str("a summary"),
            RunNeed::Model => f.write_str("a reply of the model"),
            RunNeed::Interrupted => f.write_str("the report of interrupted calls"),
            RunNeed::Approval => f.write_str("decisions about approvals"),
            RunNeed::Calls => f.write_str("outcomes of calls"),
            RunNeed::Superstep => f.write_str("the next superstep"),
            RunNeed::Nodes => f.write_str("outcomes of nodes"),
            RunNeed::Nothing(exit) => write!(f, "nothing more, since {exit}"),
        }
    }
}

/// An outcome that a hook after tools has still to see.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PendingHook {
    /// The place of the call in the reply.
    pub place: usize,
    /// The call, as it ran.
    pub call: ToolCall,
    /// Its outcome, as the hooks before left it.
    pub outcome: CallOutcome,
    /// The place of the first hook, among those after tools, that is still to run.
    pub hook: usize,
}

impl Run {
    /// A run that has not begun. No other run may have the id: the idempotency keys of its calls begin with it, unless
    /// it is given [another prefix](Run::with_key_prefix) for them.
    ///
    /// # Errors
    /// [`StartError`] when the input does not fit the schema: an unknown key, a value of another type, a state
    /// of another schema; or when a message of the user or the system has no parts.
    pub fn new(agent: &Agent, input: impl Into<Input>, id: impl Into<Arc<str>>) -> Result<Self, StartError> {
        let input = input.into();
        let id = id.into();
        input.check_messages()?;
        let (state, delta) = super::feed::first_state(agent.schema(), input.state, input.values)?;
        let delta = input.delta.unwrap_or(delta);
        let cache = input.cache.filter(|cache| cache.messages == state.messages().len()).unwrap_or_default();
        let fresh = RunBeginning { messages: input.messages, delta, is_recorded: input.is_recorded };
        let run = Run::at(agent, id, state, RunPhase::Fresh(Box::new(fresh)));
        Ok(Run { summary: input.summary, cache, ..run })
    }

    /// A run that never began.
    pub(crate) fn empty(agent: &Agent, id: &str) -> Self {
        Run::at(agent, id.into(), State::new(agent.schema()), RunPhase::Fresh(Box::default()))
    }

    /// A run in this phase that has counted, decided and shown nothing.
    pub(super) fn at(agent: &Agent, id: Arc<str>, state: State, phase: RunPhase) -> Self {
        Run {
            agent: agent.clone(),
            key_prefix: Arc::clone(&id),
            id,
            depth: 0,
            bounds: None,
            state,
            phase,
            tally: RunTally::default(),
            summary: None,
            approved: Vec::new(),
            decided: BTreeMap::new(),
            unknown: Vec::new(),
            prompt: ModelPrompt::empty(),
            cache: ConversationCache::default(),
            offer: agent.static_offer().cloned(),
            is_taken_up: false,
            is_lost: false,
            is_of_other_agent: false,
            upgrade: None,
            originals: None,
        }
    }

    /// The same run with other idempotency keys: those of its calls, of its nodes, and of the agents inside begin with
    /// this. For a host that continues with the record of another run, as a fork of a session does, or that goes back in
    /// its own: what it does has effects of its own.
    ///
    /// Its requests have other ids as well, so that a decision given to the one run does not count for the other.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Run};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let run = Run::new(&agent, "which area has most stalls?", "run-1")?;
    /// assert_eq!(run.key_prefix(), "run-1");
    /// let fork = run.clone().with_key_prefix("fork-7");
    /// assert_eq!((fork.id(), fork.key_prefix()), ("run-1", "fork-7"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_key_prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.set_key_prefix(prefix.into());
        self
    }

    pub(super) fn set_key_prefix(&mut self, prefix: Arc<str>) {
        self.key_prefix = prefix;
        self.rebind_inner_runs();
    }

    /// Takes the run over from another host, or from another time: started items are not under way any more, so that
    /// the run [needs](RunNeed::Interrupted) the report of their interruption. For a host that has folded a record event
    /// by event; a run that is [loaded](Run::load) or [resumed](Run::resume) is taken over.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, RunNeed, Run, RunEvent};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).build()?;
    /// # let agent = Agent::builder(Script::parse("assistant: > c1 pay()\nassistant: paid")?).tools([pay]).build()?;
    /// let mut stored = Vec::new();
    /// let mut run = Run::new(&agent, "pay the bill", "run-1")?;
    /// run.clone().resume().observe(&mut stored).await?;
    /// for event in stored.iter().filter_map(RunEvent::committed) {
    ///     run.commit(event.clone())?;
    ///     if event.name() == "started" {
    ///         break;
    ///     }
    /// }
    /// // For a host that has just started the call:
    /// assert!(matches!(run.decide(), RunNeed::Calls));
    /// // For one that finds this record:
    /// run.take_over();
    /// assert!(matches!(run.decide(), RunNeed::Interrupted));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn take_over(&mut self) {
        self.is_lost = true;
        if let RunPhase::Working(step) = &mut self.phase {
            step.items.change_all(|items| items.iter_mut().for_each(|item| item.is_ahead_here = false));
        }
    }

    /// The same run of another agent, which has the same schema.
    pub(crate) fn with_agent(mut self, agent: Agent) -> Self {
        self.offer = agent.static_offer().cloned();
        self.agent = agent;
        self
    }

    /// The next need of the run. Pure: it is the same until an event is committed.
    pub fn decide(&self) -> RunNeed {
        match &self.phase {
            RunPhase::Fresh(_) | RunPhase::Done(_) => self.decide_in_phase(),
            _ if self.upgrade.is_some() => RunNeed::Upgrade,
            _ => self.decide_in_phase(),
        }
    }

    /// Whether an upgrade changes nothing yet: the run waits for decisions before it as after it.
    pub(crate) fn waits_beside_upgrade(&self) -> bool {
        self.upgrade.is_some() && matches!(self.decide_in_phase(), RunNeed::Approval)
    }

    /// The need of the phase, whichever agent is recorded.
    fn decide_in_phase(&self) -> RunNeed {
        match &self.phase {
            RunPhase::Fresh(_) => RunNeed::Begin,
            RunPhase::Done(exit) => RunNeed::Nothing(exit.clone()),
            RunPhase::Opening => RunNeed::Hook(HookPoint::BeforeRun),
            RunPhase::Condensing { .. } => match self.summary_plan() {
                Some(plan) => RunNeed::Summary(Box::new(plan)),
                None => RunNeed::Model,
            },
            RunPhase::Asking { is_hooked: false, .. } => RunNeed::Hook(HookPoint::BeforeModel),
            RunPhase::Asking { .. } => RunNeed::Model,
            RunPhase::Working(step) => self.needed_by(step),
            RunPhase::Leaving(_) => RunNeed::Hook(HookPoint::OnExit),
            RunPhase::Closing(_) => RunNeed::Hook(HookPoint::AfterRun),
        }
    }

    fn needed_by(&self, step: &OpenStep) -> RunNeed {
        let items = &step.items;
        if items.any(ItemCondition::HookPending) {
            // Before anything else can end the step.
            return RunNeed::Hook(HookPoint::AfterTool);
        }
        // NOTE: Only of a run that was loaded or taken over: items that this host has started itself are under way.
        if items.any(ItemCondition::Started) && self.is_lost {
            return RunNeed::Interrupted;
        }
        match &step.plan {
            // No call of a reply runs before all decisions about that reply are there.
            StepPlan::Calls(_) if items.any(ItemCondition::Waiting) => RunNeed::Approval,
            _ if self.may_repeat().next().is_some() => RunNeed::Interrupted,
            StepPlan::Calls(calls) if !calls.is_hooked && self.has_hook(HookPoint::BeforeTool) => {
                RunNeed::Hook(HookPoint::BeforeTool)
            }
            StepPlan::Calls(_) => RunNeed::Calls,
            StepPlan::Branches(_) if !items.any(ItemCondition::Open) => RunNeed::Superstep,
            StepPlan::Branches(_)
                if items.any(ItemCondition::Runnable) || items.any(ItemCondition::Started) =>
            {
                RunNeed::Nodes
            }
            StepPlan::Branches(_) => RunNeed::Approval,
        }
    }

    /// The items that another host may have begun while they were repeatable, and that must not run twice now, or cannot run any
    /// more.
    pub(super) fn may_repeat(&self) -> impl Iterator<Item = usize> {
        let step = self.open_step().filter(|step| self.is_lost && step.was_runnable());
        let items = step.map(|step| &*step.items).unwrap_or_default();
        let may_have_begun = |item: &StepItem| item.may_have_begun() && !item.is_ahead_here;
        let may_have_begun = items.iter().enumerate().filter(move |(_, item)| may_have_begun(item));
        may_have_begun
            .filter(|(place, item)| self.must_not_repeat(*place, item.listed_effect))
            .map(|(place, _)| place)
    }

    /// Whether an item that had this effect when it may have begun must not be started again: it must not run twice now. Or it
    /// cannot run any more, and may have had its effect.
    pub(super) fn must_not_repeat(&self, place: usize, effect: Option<Effect>) -> bool {
        match effect {
            None | Some(Effect::AtMostOnce) => false,
            Some(Effect::Pure) => self.must_mark(place),
            Some(Effect::Idempotent) => self.must_mark(place) || self.is_impossible(place),
        }
    }

    /// Whether a call of the open step cannot run: its tool is gone, or does not take its arguments, or these are not known any more.
    fn is_impossible(&self, place: usize) -> bool {
        let (Some(item), Some(call)) = (self.item(place), self.call_at(place)) else { return false };
        if item.is_lost() {
            return true;
        }
        match self.tool(&call.name) {
            Some(tool) => {
                let call = item.as_executed(call);
                call.arguments.as_object().is_none_or(|given| tool.check_arguments(given).is_err())
            }
            // It may be listed.
            None => self.offer.is_some(),
        }
    }

    /// Says of items that they have not begun, before decisions are folded: those whose tools have asked, and all of a reply whose
    /// calls could not start yet.
    pub(super) fn note_ahead(&mut self, decided: &[ItemDecision<'_>]) {
        let RunPhase::Working(step) = &mut self.phase else { return };
        let was_runnable = step.was_runnable();
        let is_ahead = |place: usize, item: &StepItem| {
            let mut answers = decided.iter().filter(|decision| decision.place == place);
            let is_answered = answers.any(|decision| decision.inside.is_some()) && item.child.is_none();
            !was_runnable || is_answered
        };
        step.items.change_all(|items| {
            for (place, item) in items.iter_mut().enumerate() {
                item.is_ahead_here |= is_ahead(place, item);
            }
        });
    }

    /// The same before the first hooks before tools are folded: no call starts before them.
    pub(super) fn note_hooked(&mut self) {
        let RunPhase::Working(step) = &mut self.phase else { return };
        if step.calls().is_some_and(|calls| !calls.is_upgraded) && !step.was_hooked() {
            step.items.change_all(|items| items.iter_mut().for_each(|item| item.is_ahead_here = true));
        }
    }

    pub(super) fn has_hook(&self, point: HookPoint) -> bool {
        self.agent.config().hooks.has(point)
    }

    pub(super) fn summary_plan(&self) -> Option<SummaryPlan> {
        let summarize = self.agent.config().summarize.as_ref()?;
        match &self.phase {
            RunPhase::Condensing { is_rescue: true, .. } => self.rescuing_plan(),
            _ => summarize.plan(self.transcript(), self.summary.as_ref()),
        }
    }

    /// The next request to the model.
    ///
    /// The conversation is what the agent's policies show of it, the instructions first; within a turn it only
    /// grows, so that providers can keep what they computed for it.
    pub fn request(&self) -> ChatRequest {
        let config = self.agent.config();
        let specs = self.offer.as_ref().map(|offer| Arc::clone(&offer.specs)).unwrap_or_default();
        let mut request = ChatRequest::new(self.prompt.transcript().clone())
            .with_tools(specs)
            .with_params(config.params.clone());
        // NOTE: The tools stay in the request: the provider's cache begins with them, and some providers refuse a
        // history with calls of undefined tools (docs/decisions/loop.md).
        if self.is_last_answer() {
            request.tool_choice = ToolChoice::None;
        }
        request.response_format =
            self.agent.output_spec().and_then(crate::agent::OutputSpec::response_format);
        request.model.clone_from(&config.model_name);
        request
    }

    /// Whether the model is to answer with what it has, without tools.
    pub(super) const fn is_last_answer(&self) -> bool {
        matches!(&self.phase, RunPhase::Asking { last: Some(_), .. })
    }

    /// Whether the model is asked next: at once, or after hooks or a summary. Never of a graph.
    pub fn asks_model(&self) -> bool {
        match &self.phase {
            RunPhase::Asking { .. } | RunPhase::Condensing { .. } => true,
            RunPhase::Opening => self.planner().is_none(),
            _ => false,
        }
    }

    /// The tools of this step, which a host resolves when they are not [the same at every
    /// step](stepfold_tools::Toolset::is_static).
    pub fn offer_tools(&mut self, tools: Tools) {
        self.offer = Some(OfferedTools::new(tools, self.agent.output_spec()));
        // Changes of tools that are listed again need no decision.
        let _ = self.attach_agents();
    }

    /// Whether the tools of a call that waits for a decision, or will after an interruption, are not known, also one inside of
    /// an item.
    pub(crate) fn lacks_tools(&self) -> bool {
        let Some(step) = self.open_step() else { return false };
        let will_ask = self.agent.config().ask_when_uncertain && !step.started().is_empty();
        let are_needed = step.calls().is_some() && (will_ask || step.items.any(ItemCondition::Waiting));
        (self.offer.is_none() && are_needed) || self.child_lacking_tools().is_some()
    }

    /// Offers tools to a run inside, which [lacks](Run::lacks_tools) them.
    pub(crate) fn child_lacking_tools(&self) -> Option<(usize, &Run)> {
        self.children().find(|(_, child)| child.lacks_tools())
    }

    /// The tools of this step; none of a dynamic set that was not [offered](Run::offer_tools).
    pub fn tools(&self) -> Option<&Tools> {
        self.offer.as_ref().map(|offer| &offer.tools)
    }

    pub(crate) fn open_step(&self) -> Option<&OpenStep> {
        match &self.phase {
            RunPhase::Working(step) => Some(step),
            _ => None,
        }
    }

    /// The items of an open step of calls, each with its call.
    pub(super) fn open_calls_with_items(&self) -> impl Iterator<Item = (usize, &StepItem, &ToolCall)> {
        self.open_step().into_iter().flat_map(OpenStep::with_calls)
    }

    /// The calls to run, each with its index in the reply, with modified arguments. Empty unless the run
    /// [needs](RunNeed::Calls) them.
    pub fn open_calls(&self) -> Vec<(usize, ToolCall)> {
        let open = self.open_calls_with_items();
        open.filter(|(_, item, _)| !item.is_done() && item.hook_pending().is_none())
            .map(|(place, item, call)| (place, item.as_run(call)))
            .collect()
    }

    /// The calls that the hooks before tools have to see: all that are to run, or those that were changed since the hooks
    /// have seen them.
    pub(crate) fn calls_to_hook(&self) -> Vec<(usize, ToolCall)> {
        let was_hooked = self.open_step().is_some_and(OpenStep::was_hooked);
        let is_new = |place: usize| self.item(place).is_some_and(|item| item.is_unhooked);
        self.open_calls().into_iter().filter(|(place, _)| !was_hooked || is_new(*place)).collect()
    }

    /// The outcomes of the open step that a hook after tools has still to see, because it failed when it was shown them.
    /// They are recorded, so that their calls do not run again; the model is shown them when the hook has run.
    pub fn pending_hooks(&self) -> Vec<PendingHook> {
        let pending = self.open_calls_with_items().filter_map(|(place, item, call)| {
            let pending = item.hook_pending()?;
            let outcome = pending.outcome.clone();
            Some(PendingHook { place, call: item.as_run(call), outcome, hook: pending.hook })
        });
        pending.collect()
    }

    /// The outcomes of the calls of the open step that have one, in call order.
    pub fn finished_calls(&self) -> Vec<Option<CallOutcome>> {
        self.open_calls_with_items().map(|(place, ..)| self.finished_call(place)).collect()
    }

    /// Whether a call of the open step has its outcome.
    pub(crate) fn has_finished_calls(&self) -> bool {
        self.open_step().is_some_and(|step| step.items.count(ItemCondition::Open) < step.items.len())
    }

    /// The calls of the open step that asked the user and were answered, by their places.
    pub(crate) fn answered_calls(&self) -> Vec<(usize, Vec<AnsweredRequest>)> {
        let calls = self.open_calls_with_items().map(|(place, item, _)| (place, item.answered()));
        calls.filter(|(_, answered)| !answered.is_empty()).collect()
    }

    /// The outcome of a call of the open step, with what hooks wrote, if it has one.
    pub(crate) fn finished_call(&self, place: usize) -> Option<CallOutcome> {
        let item = self.item(place)?;
        Some(item.completed(self.call_at(place)?, item.outcome()?.call()?.clone()))
    }

    /// The branches of the superstep that are to run. Empty unless the run [needs](RunNeed::Nodes) them.
    pub fn open_branches(&self) -> Vec<OpenBranch> {
        self.open_tasks().filter(|task| task.planned().is_some()).map(|task| task.branch()).collect()
    }

    /// The items that may run.
    pub(crate) fn open_tasks(&self) -> impl Iterator<Item = StepTask<'_>> {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        let open = items.iter().enumerate().filter(|(_, item)| item.may_run());
        open.map(|(place, item)| StepTask::new(self, place, item))
    }

    /// All branches of the superstep, in the order in which they are merged: a branch is known by its place. Empty
    /// unless the run is that of a graph, within a superstep.
    pub fn branches(&self) -> impl Iterator<Item = &PlannedBranch> {
        let items = self.open_step().map(|step| &*step.items).unwrap_or_default();
        items.iter().filter_map(|item| item.planned.as_ref())
    }

    pub(crate) fn planner(&self) -> Option<&Arc<dyn Planner>> {
        self.agent.config().planner.as_ref()
    }

    pub(crate) fn walk(&self) -> Option<&SuperstepWalk> {
        self.open_step()?.walk()
    }

    /// The number of supersteps in which a node had branches.
    pub(super) fn execution(&self, node: &str) -> u64 {
        self.walk().and_then(|walk| walk.executions.get(node).copied()).unwrap_or(0)
    }

    /// Whether no branch of the superstep has an outcome, has asked, or has begun a run of its agent.
    fn is_superstep_untouched(&self) -> bool {
        let is_untouched = |item: &StepItem| {
            matches!(item.state, ItemState::Ready) && item.asked.is_empty() && item.child.is_none()
        };
        self.open_step().is_some_and(|step| step.items.iter().all(is_untouched))
    }

    /// The work that an event starts and that must not run twice, by the ids of the calls, and of the branches of a
    /// graph. The event is the next one.
    pub fn starts(&self, event: &Event) -> Vec<String> {
        match &event.kind {
            EventKind::Started { places } => {
                places.iter().filter_map(|place| Some(self.task(*place)?.label())).collect()
            }
            EventKind::Inner { place, event } => {
                let Some(task) = self.task(*place) else { return Vec::new() };
                let child = self.item(*place).and_then(StepItem::child);
                let started = child.map(|child| child.starts(event)).unwrap_or_default();
                started.iter().map(|id| nested_path(&task.label(), id)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The call of the open step at a place of the reply.
    pub(super) fn call_at(&self, place: usize) -> Option<&ToolCall> {
        self.open_step()?.call(place)
    }

    /// The item at a place as a call: as it runs, or, of a branch, what a request about it shows.
    pub(crate) fn shown(&self, place: usize) -> ToolCall {
        self.open_step().map_or_else(|| ToolCall::new("", "", Arguments::default()), |step| step.shown(place))
    }

    /// The tool of a name: of this step, or one that the agent has at every step.
    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        match &self.offer {
            Some(offer) => offer.tools.get(name),
            None => self.agent.static_tool(name),
        }
    }

    /// The beginning of the idempotency keys of this step's calls.
    pub fn key_scope(&self) -> String {
        format!("{}/{}", self.key_prefix, self.tally.steps)
    }

    /// The beginning of the run's idempotency keys: by default its id, see [`with_key_prefix`](Run::with_key_prefix).
    pub fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// All calls of the open step, as they run.
    pub(crate) fn calls_as_run(&self) -> Vec<ToolCall> {
        self.open_calls_with_items().map(|(_, item, call)| item.as_run(call)).collect()
    }

    /// All calls of the open step, with the arguments that their functions get.
    pub(crate) fn calls_to_execute(&self) -> Vec<ToolCall> {
        self.open_calls_with_items().map(|(_, item, call)| item.as_executed(call)).collect()
    }

    /// The places of the calls of the open step whose arguments a person has given.
    pub(crate) fn modified_calls(&self) -> impl Iterator<Item = usize> {
        self.open_calls_with_items().filter(|(_, item, _)| item.modified.is_some()).map(|(place, ..)| place)
    }

    /// Whether an item that starts must be marked: its tool or its node says that it must not run twice. What is inside of
    /// one is marked there.
    pub(crate) fn must_mark(&self, place: usize) -> bool {
        let Some(task) = self.task(place) else { return false };
        let effect = match task.planned() {
            Some(planned) => self.planner().and_then(|planner| planner.effect(&planned.node)),
            None => self.tool(task.name()).filter(|tool| !tool.is_hosted()).map(Tool::effect),
        };
        effect == Some(Effect::AtMostOnce)
    }

    /// The limits of the run: those of its agent, and the remaining ones of the run around it.
    pub(crate) fn limits(&self) -> RunLimits {
        let limits = self.agent.limits().clone();
        match &self.bounds {
            Some(bounds) => limits.within(bounds),
            None => limits,
        }
    }

    /// The first of these breakpoints that the run is at, if it has not stopped here already.
    pub fn breakpoint<'b>(&self, breakpoints: &'b [Breakpoint]) -> Option<&'b Breakpoint> {
        if breakpoints.is_empty() || self.tally.stopped_at == Some(self.tally.events) {
            return None;
        }
        // NOTE: Visits count over the whole run, so a run that is resumed elsewhere stops at the same places.
        let is_here = |breakpoint: &&Breakpoint| match (&self.decide(), &breakpoint.tool) {
            (RunNeed::Nodes, _) if !self.is_superstep_untouched() => false,
            (RunNeed::Nodes, _) => self.open_tasks().any(|task| {
                let execution = task.execution();
                breakpoint.node.as_deref() == Some(task.name()) && breakpoint.is_visit(execution..=execution)
            }),
            (RunNeed::Model, None) if breakpoint.node.is_none() => {
                breakpoint.is_visit(self.tally.steps + 1..=self.tally.steps + 1)
            }
            (RunNeed::Calls, Some(tool)) => {
                let open = self.open_calls().iter().filter(|(_, call)| call.name == *tool).count() as u64;
                let before = self.tally.calls.get(tool).copied().unwrap_or(0);
                open > 0 && breakpoint.is_visit(before + 1..=before + open)
            }
            _ => false,
        };
        breakpoints.iter().find(is_here)
    }

    /// Notes that a breakpoint stopped the run here, so that it continues from here when it is resumed.
    pub fn stop_here(&mut self) {
        self.tally.stopped_at = Some(self.tally.events);
    }

    /// The run inside of the item at a place of the open step: of an agent that is a tool or a node, once it has begun.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
    /// # let payer = Script::parse("assistant: > c1 pay()")?;
    /// let payer = Agent::builder(payer).name("payer").tools([pay]).build()?;
    /// # let model = Script::parse("assistant: > c1 settle(task=\"the bill\")")?;
    /// let agent = Agent::builder(model).tool(payer.as_tool("settle", "Settles a bill.")).build()?;
    /// let outcome = agent.run("settle the bill").await?;
    /// let inside = outcome.run().inside_of(0).expect("it waits for an approval");
    /// assert_eq!((inside.agent().name(), inside.steps()), ("payer", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn inside_of(&self, place: usize) -> Option<&Run> {
        self.item(place)?.child()
    }

    /// Whether the beginning of the conversation was pruned after the run started. The view that the model had of it
    /// is lost.
    pub fn is_pruned(&self) -> bool {
        self.tally.is_pruned
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The id that the run was given, or that its record has.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The state, with the conversation.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The complete conversation, without trimming.
    pub fn transcript(&self) -> &Transcript {
        self.state.messages()
    }

    /// The view of the log that is sent to the model.
    pub fn view(&self) -> &View {
        self.prompt.view()
    }

    /// The instructions, rendered when the run began.
    pub fn instructions(&self) -> Option<&str> {
        self.prompt.instructions()
    }

    /// The number of model replies; of a graph, that of supersteps.
    pub fn steps(&self) -> u64 {
        self.tally.steps
    }

    /// The number of events that were committed.
    pub fn events(&self) -> u64 {
        self.tally.events
    }

    /// The tokens used.
    pub fn usage(&self) -> Usage {
        self.tally.usage
    }

    /// The tokens used by model: by the name that the provider reported, or the id of the agent's model.
    pub fn usage_by_model(&self) -> impl Iterator<Item = (&str, Usage)> {
        self.tally.usage_by_model.iter().map(|(model, usage)| (model, *usage))
    }

    /// The number of calls by tool, without those that the loop answered itself.
    pub fn calls_by_tool(&self) -> impl Iterator<Item = (&str, u64)> {
        self.tally.calls.iter().map(|(tool, calls)| (tool, *calls))
    }

    /// The duration of the run so far, without pauses.
    pub fn elapsed(&self) -> Duration {
        self.tally.elapsed
    }

    /// Why the last reply ended, if there was one.
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        self.tally.finish_reason.as_ref()
    }

    /// The summary of the beginning of the conversation.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// The valid output, if one was asked for and is there.
    pub fn output(&self) -> Option<&serde_json::Value> {
        self.tally.output.as_ref()
    }

    /// Why the run ended, if it has.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.phase {
            RunPhase::Done(exit) => Some(exit),
            _ => None,
        }
    }

    /// Why the run is about to end.
    pub(crate) fn pending_exit(&self) -> Option<&Exit> {
        match &self.phase {
            RunPhase::Leaving(exit) | RunPhase::Closing(exit) | RunPhase::Done(exit) => Some(exit),
            _ => None,
        }
    }

    /// The last reply of the model in this run.
    pub fn reply(&self) -> Option<&Arc<Message>> {
        let of_this_run = self.tally.turn_start..self.transcript().len();
        let mut messages = of_this_run.rev().filter_map(|index| self.transcript().get(index));
        if self.tally.steps == 0 {
            return None;
        }
        messages.find(|message| message.role() == Role::Assistant)
    }

    /// The text of the last reply; empty if there is no reply.
    pub fn text(&self) -> Cow<'_, str> {
        self.reply().map(|reply| reply.text()).unwrap_or_default()
    }

    /// The last words of the run, for its caller: the text of the last reply; where that has none, the result of the exit
    /// tool that ended the run, if it says something; else none. See [`Exit::last_words`].
    pub fn last_words(&self) -> Option<String> {
        let messages = self.transcript().iter_from(self.tally.turn_start);
        self.exit().unwrap_or(&Exit::Failed).last_words_of(&self.agent, messages)
    }

    /// A digest of the state and the conversation. Two runs with the same digest ended the same: a replay
    /// is checked by it. O(the state).
    pub fn digest(&self) -> String {
        crate::digest::of(&self.state)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("id", &self.id)
            .field("agent", &self.agent.name())
            .field("steps", &self.tally.steps)
            .field("messages", &self.transcript().len())
            .field("needs", &self.decide())
            .finish_non_exhaustive()
    }
}
