//! Committed events: each is one atomic change of the conversation and the state.
//!
//! The fundamental law: folding the events of a run over its initial state gives its final state. So every
//! event has its messages and its writes, whatever its kind; the kind gives the reason, and has data that
//! only the machine needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::chat::{FinishReason, Message, ModelErrorKind, ToolResult, Transcript, Usage};
use stepfold_state_core::state::{Delta, State, StateError};
use stepfold_tools::Effect;

use super::recorded_outcomes::{AnsweredItem, RecordedCall};
use super::shared_values::SharedValue;
use crate::agent::AgentChange;
use crate::agent::{HookPoint, HookVerdict};
use crate::approval::{ApprovalQuestion, ApprovalRequest, Decision};
use crate::exit::Exit;
use crate::planned::{JoinArrivals, PlannedBranch, RecordedRoute};
use crate::redact::RedactionNote;
use crate::state_input::StateInput;
use stepfold_trim::{MessageRanges, Summary};

/// The version of the stored form of an [`Event`], of a [`Run`](crate::Run) and of a
/// [`Recording`](crate::Recording).
pub const FORMAT_VERSION: u64 = 1;

/// The newest version that is read. It is that of events and runs with calls that [must not run from the
/// record](RedactionNote::calls): an earlier reader, which does not know that, refuses them.
pub const NEWEST_FORMAT_VERSION: u64 = 2;

/// One commit of a run.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Event, RunEvent};
/// use stepfold_state_core::state::State;
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let mut seen = Vec::new();
/// let outcome = agent.run("which area has most stalls?").observe(&mut seen).await?;
///
/// // Folding the events over the state at the beginning gives the state at the end.
/// let mut state = State::new(agent.schema());
/// let events = seen.iter().filter_map(RunEvent::committed).collect::<Vec<&Event>>();
/// for event in &events {
///     event.fold(&mut state)?;
/// }
/// assert_eq!(&state, outcome.state());
/// assert_eq!(events.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The number of model replies so far, this one included.
    #[serde(default, skip_serializing_if = "is_default")]
    pub step: u64,
    /// The duration of the run so far, without pauses, in whole microseconds.
    #[serde(rename = "us", default, skip_serializing_if = "Duration::is_zero", with = "micros")]
    pub elapsed: Duration,
    /// The conversation that replaces the current one: after a repair, or by a hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<Transcript>,
    /// The messages that are appended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// The writes that are folded into the state.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub delta: Delta,
    /// Present if all calls of the step are answered. The messages then end with their results, and the
    /// writes are those of the step, in call order.
    #[serde(rename = "end", default, skip_serializing_if = "Option::is_none")]
    pub step_end: Option<StepEnd>,
    /// The values of the scopes `app:` and `user:` that the run reads, which others write too: at its start, and when a
    /// graph, or an agent whose tools have inputs from such keys, continues in another process with their current values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shared: BTreeMap<String, SharedValue>,
    /// Present if sensitive parts of the content were [replaced](crate::Redact) before it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted: Option<RedactionNote>,
    /// The kind of the event.
    pub kind: EventKind,
}

/// The end of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepEnd {
    /// The indexes of the calls whose writes could not be merged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmerged: Vec<usize>,
    /// The number of times in a row that the model has made just these calls, with just these results.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: u32,
    /// The error of each unmerged branch, of a graph.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merge_errors: Vec<String>,
}

/// The tool of a call as it was listed when the model made the call.
///
/// A later listing may have another tool of this name: a call that may have run while it was repeatable is
/// [interrupted](EventKind::Interrupted) if it must not run twice by now, and a call whose tool has asked something is asked about
/// again before the answer goes to another tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListedTool {
    /// The place of the call.
    pub place: usize,
    /// A digest of the tool.
    pub definition: String,
    /// The effect of a call of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub effect: Effect,
    /// The dependency of the agent that lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
}

/// The tool of a call as an approver is shown it, where tools are listed at each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShownTool {
    /// The place of the call.
    pub place: usize,
    /// A digest of the tool.
    pub definition: String,
    /// The difference from the tool that was approved before, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// The JSON Schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// The dependency of the agent that lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
}

/// The kind of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The run began: with what the user said, with the inputs as writes, and with the conversation
    /// repaired if it had to be.
    Began {
        /// The id of the run.
        id: String,
        /// The instructions, rendered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
        /// The repairs, in words.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        repairs: Vec<String>,
        /// The messages that the model is shown, if not all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shown: Option<MessageRanges>,
        /// The results among them that it is shown as one line each.
        #[serde(default, skip_serializing_if = "MessageRanges::is_empty")]
        cleared: MessageRanges,
        /// A digest of the tools on offer, and of their bindings to the state.
        /// None where they are asked for at each step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tools: Option<String>,
        /// The number of messages in the conversation before. Where a store has fewer, it was pruned since.
        #[serde(default, skip_serializing_if = "is_default")]
        messages_before: usize,
    },
    /// The hooks of a point ran.
    Hooked {
        /// The point.
        point: HookPoint,
        /// The verdict.
        #[serde(default, skip_serializing_if = "HookVerdict::is_proceed")]
        verdict: HookVerdict,
        /// Calls that do not run, each by its index, and their results for the model.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        answers: Vec<(usize, String)>,
        /// Writes that are folded with those of a call, before them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        writes: Vec<(usize, Delta)>,
    },
    /// A model condensed the beginning of the conversation, or failed to: then the trim decides.
    Summarized {
        /// The summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<Summary>,
        /// The reason of the failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// The usage.
        #[serde(default, skip_serializing_if = "is_default")]
        usage: Usage,
    },
    /// The provider refused the request as too long; the model is shown less from here on, and is asked again.
    Narrowed {
        /// The number of tokens that fit, as the provider reported it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
        /// The number of tokens of the request, as the provider reported it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<u64>,
        /// The tokens of the tools in the request, by an estimate.
        #[serde(default, skip_serializing_if = "is_default")]
        tools: usize,
        /// The messages that the model is shown.
        shown: MessageRanges,
        /// The results among them that it is shown as one line each.
        #[serde(default, skip_serializing_if = "MessageRanges::is_empty")]
        cleared: MessageRanges,
        /// The number of messages in the conversation. Where a store has fewer, it was pruned since.
        messages: usize,
        /// Whether a summary is made first of what the agent's [`Summarize`](stepfold_trim::Summarize) does not keep.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        summarizes: bool,
    },
    /// The agent is another one from here on: the program that continued the run has changed since.
    Upgraded {
        /// The [digest](crate::Fingerprint::digest) of the agent before.
        from: String,
        /// The digest of the agent from here on.
        to: String,
        /// The changes.
        changes: Vec<AgentChange>,
        /// The instructions from here on, rendered, if they have changed; empty if there are none any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
        /// The requests that are asked again because what they are about has changed: each by the place of its call or
        /// branch, inside of others by all places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        asked: Vec<Vec<usize>>,
        /// Calls and branches that may have begun while they were repeatable, and must not run twice from here on, or cannot run any
        /// more: they are [interrupted](EventKind::Interrupted). Each by its place, inside of others by all places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        interrupted: Vec<Vec<usize>>,
    },
    /// A user message joined the running run.
    Steered,
    /// The model replied. None of its calls has run.
    Replied {
        /// The finish reason.
        #[serde(default = "tool_calls", skip_serializing_if = "is_tool_calls")]
        finish_reason: FinishReason,
        /// The usage.
        #[serde(default, skip_serializing_if = "is_default")]
        usage: Usage,
        /// The provider's id of the reply.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The model that answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The fates of its calls, by their places; those that are not here run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        fates: Vec<(usize, CallDisposition)>,
        /// A digest of the tools on offer, as of a beginning, where tools are listed at each step.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tools: Option<String>,
        /// The tools of its calls that can run, where tools are listed at each step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        listed: Vec<ListedTool>,
        /// The fate of the output, if one was requested and the reply gives one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<OutputDisposition>,
        /// Whether the run ends because this reply, and those before it, are empty.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        gives_up: bool,
    },
    /// Decisions about calls were made.
    Decided {
        /// Each decision with the id of its request.
        decisions: Vec<(String, Decision)>,
        /// The author of the decisions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The key under which the same decisions may be sent again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
        /// The prefix of idempotency keys with which the decisions were made, which the ids of the requests
        /// depend on; `None` if it is the id of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_prefix: Option<String>,
    },
    /// Values, results or arguments were changed from outside, while the run was paused. The values are the writes of the
    /// event.
    Edited {
        /// The new results of calls, by their ids. Those of closed steps replace their messages in the conversation, and
        /// those of the open step the outcomes of its calls.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        results: Vec<ToolResult>,
        /// Whether the summary is dropped: a result has changed that it replaces.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        drops_summary: bool,
        /// The new arguments of calls of the open step that have not begun, by their ids.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        arguments: Vec<(String, Value)>,
        /// The author of the edit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The key under which the same edit may be sent again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency_key: Option<String>,
    },
    /// Calls need an approval: the rule has changed since the reply, or they were approved with other values from the
    /// state than they would run with.
    Asked {
        /// Their fates, by their places.
        fates: Vec<(usize, CallDisposition)>,
        /// Their tools, where tools are listed at each step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        listed: Vec<ListedTool>,
    },
    /// Calls or branches that must not run twice are about to start. The marker of [`Effect::AtMostOnce`].
    ///
    /// [`Effect::AtMostOnce`]: stepfold_tools::Effect::AtMostOnce
    Started {
        /// Their places.
        places: Vec<usize>,
    },
    /// A run inside of a call or a branch has made a commit of its own: an agent that is a tool or a node.
    Inner {
        /// The place of the call or branch.
        place: usize,
        /// The event of that run. Its writes and messages are that run's; the state has the shared ones at the end of
        /// the step.
        event: Box<Event>,
    },
    /// A call or a branch waits: its function requests a decision. Also if an agent waits that is a tool of a
    /// dynamic toolset, and so unknown before the toolset is listed.
    Asks {
        /// Its place.
        place: usize,
        /// The requests, under ids within the item.
        requests: Vec<ApprovalRequest>,
    },
    /// Calls or branches have their outcomes: those that ended at the same moment, by their places.
    Answered(Vec<AnsweredItem>),
    /// Calls or branches that must not run twice had started when the process died, or may have started while their tools were
    /// repeatable.
    Interrupted {
        /// Their places.
        places: Vec<usize>,
        /// Whether a decision is requested; otherwise the model is told that the outcome is unknown.
        #[serde(default)]
        asks: bool,
        /// The values that the state adds to the calls whose approval is requested, by their places.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        inputs_from_state: Vec<(usize, Vec<StateInput>)>,
        /// The tools of these calls as they are shown, where tools are listed at each step.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        shown: Vec<ShownTool>,
    },
    /// A superstep of a graph begins, or the graph ends. The writes are the graph's own: counts, the current node.
    Planned {
        /// Its branches, in the order in which they are merged.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        branches: Vec<PlannedBranch>,
        /// Branches that are put off until nothing else is left.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        deferred: Vec<PlannedBranch>,
        /// The nodes that wait at joins that are not complete.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        arrived: Vec<JoinArrivals>,
        /// The choices of routers.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        routes: Vec<RecordedRoute>,
        /// Why the graph ends here, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Exit>,
    },
    /// The run was cancelled; open calls are answered.
    Cancelled,
    /// The time of the run is up; open calls are answered.
    TimedOut,
}

/// The fate of a call that does not simply run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallDisposition {
    /// A decision is required.
    Ask(ApprovalQuestion),
    /// It is decided with the call at this place, an equal one that comes before it: one question for both.
    Same(usize),
    /// It is answered without running.
    Answer(RecordedCall),
}

/// The fate of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputDisposition {
    /// It is valid: this value.
    Valid(Value),
    /// It is not; the model was told, or, with no repair left, the run ends.
    Invalid {
        /// The faults of the output.
        faults: String,
        /// Whether the model is asked again.
        again: bool,
    },
}

/// The values on which events are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoldMode {
    /// On the values that they were made on.
    Live,
    /// On the current values, which already have the writes of the run's own events.
    CatchUp,
}

impl Event {
    /// An event that changes nothing yet.
    pub(crate) fn new(step: u64, elapsed: Duration, kind: EventKind) -> Self {
        // NOTE: Whole microseconds, as in the stored form, so that an event equals the one that is read back. There is
        // no time of day: the host that stores the event knows it.
        let elapsed = Duration::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        Event {
            step,
            elapsed,
            rewrite: None,
            messages: Vec::new(),
            delta: Delta::new(),
            step_end: None,
            shared: BTreeMap::new(),
            redacted: None,
            kind,
        }
    }

    /// The version of the stored form of this event: [`FORMAT_VERSION`], or [`NEWEST_FORMAT_VERSION`] if a part that was replaced is
    /// missing in a call.
    pub fn format_version(&self) -> u64 {
        let lacks_parts = self.redacted.as_ref().is_some_and(|note| !note.calls.is_empty());
        match &self.kind {
            _ if lacks_parts => NEWEST_FORMAT_VERSION,
            EventKind::Inner { event, .. } => event.format_version(),
            _ => FORMAT_VERSION,
        }
    }

    /// Folds the event into a state: the conversation rewritten if it was, the messages appended, the
    /// writes merged. All or nothing.
    ///
    /// # Errors
    /// When a write cannot be merged, because the state is not the one that the event was committed on.
    pub fn fold(&self, state: &mut State) -> Result<(), StateError> {
        if !self.delta.is_empty() {
            state.apply(&self.delta)?;
        }
        self.fold_messages(state);
        Ok(())
    }

    /// Folds the conversation only.
    pub(super) fn fold_messages(&self, state: &mut State) {
        if let Some(transcript) = &self.rewrite {
            state.replace_messages(transcript.clone());
        }
        if !self.edited_results().is_empty() {
            let mut log = state.messages().clone();
            self.replace_results(&mut log);
            state.replace_messages(log);
        }
        for message in &self.messages {
            state.push_message(Arc::clone(message));
        }
    }

    /// The results of calls that an [edit](EventKind::Edited) changes; none of other events.
    pub fn edited_results(&self) -> &[ToolResult] {
        match &self.kind {
            EventKind::Edited { results, .. } => results,
            _ => &[],
        }
    }

    /// Whether the summary of the conversation is dropped, because an edit has changed a message that it summarizes.
    pub const fn drops_summary(&self) -> bool {
        matches!(self.kind, EventKind::Edited { drops_summary: true, .. })
    }

    /// Puts the results of an [edit](EventKind::Edited) in place of those in a conversation, as far as it has them. For a
    /// host that folds the conversation by itself; [`fold`](Event::fold) does it as well.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, RunAnswer, Edit, Input, Run};
    /// use stepfold_state_core::chat::Transcript;
    /// use stepfold_state_core::state::State;
    ///
    /// let agent = Agent::builder(Script::parse("assistant: 12")?).build()?;
    /// let mut log: Transcript = "user: count\nassistant: > c1 count()\ntool c1: 3\nassistant: 3".parse()?;
    /// let mut state = State::new(agent.schema());
    /// state.replace_messages(log.clone());
    /// let mut run = Run::new(&agent, Input::on(state).say("sure?"), "run-1")?;
    /// run.commit(run.feed(RunAnswer::Begin, Duration::ZERO)?)?;
    ///
    /// let edited = run.feed(RunAnswer::Edit(Edit::new().result("c1", 12)), Duration::ZERO)?;
    /// edited.replace_results(&mut log);
    /// assert_eq!(log.get(2).unwrap().tool_result().unwrap().text(), "12");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace_results(&self, log: &mut Transcript) {
        for result in self.edited_results() {
            if let Some(index) = place_of_result(log, result.call_id()) {
                log.replace(index, Message::tool(result.clone()));
            }
        }
    }

    /// Takes the messages and the writes out of the event: for a store that has places of its own for them. What is left
    /// is stored beside them; [`with_content`](Event::with_content) puts them back.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Event, RunEvent};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let mut seen = Vec::new();
    /// agent.run("which area has most stalls?").observe(&mut seen).await?;
    /// for event in seen.iter().filter_map(RunEvent::committed) {
    ///     let mut rest = event.clone();
    ///     let (messages, delta) = rest.take_content();
    ///     let stored = serde_json::to_string(&rest)?;
    ///     let read: Event = serde_json::from_str(&stored)?;
    ///     assert_eq!(&read.with_content(messages, delta), event);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn take_content(&mut self) -> (Vec<Arc<Message>>, Delta) {
        (std::mem::take(&mut self.messages), std::mem::take(&mut self.delta))
    }

    /// Puts back the messages and the writes that [`take_content`](Event::take_content) took.
    #[must_use]
    pub fn with_content(self, messages: Vec<Arc<Message>>, delta: Delta) -> Self {
        Event { messages, delta, ..self }
    }

    /// The name of the [kind](EventKind), in one word, as it is stored.
    pub const fn name(&self) -> &'static str {
        match &self.kind {
            EventKind::Began { .. } => "began",
            EventKind::Hooked { .. } => "hooked",
            EventKind::Summarized { .. } => "summarized",
            EventKind::Narrowed { .. } => "narrowed",
            EventKind::Upgraded { .. } => "upgraded",
            EventKind::Steered => "steered",
            EventKind::Replied { .. } => "replied",
            EventKind::Decided { .. } => "decided",
            EventKind::Edited { .. } => "edited",
            EventKind::Asked { .. } => "asked",
            EventKind::Started { .. } => "started",
            EventKind::Answered(_) => "answered",
            EventKind::Interrupted { .. } => "interrupted",
            EventKind::Planned { .. } => "planned",
            EventKind::Inner { .. } => "inner",
            EventKind::Asks { .. } => "asks",
            EventKind::Cancelled => "cancelled",
            EventKind::TimedOut => "timed_out",
        }
    }
}

impl EventKind {
    /// The changes of an agent that an [upgrade](EventKind::Upgraded) records, in words; `None` of other kinds.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::EventKind;
    ///
    /// let stored = r#"{"upgraded": {"from": "a1", "to": "b2", "changes": [{"part": "instructions", "kind": "changed"}]}}"#;
    /// let kind: EventKind = serde_json::from_str(stored)?;
    /// assert_eq!(kind.upgrade().unwrap(), "agent changed: instructions changed");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn upgrade(&self) -> Option<String> {
        let EventKind::Upgraded { changes, asked, .. } = self else { return None };
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let asked = match asked.len() {
            0 => "",
            1 => "; 1 approval is asked again",
            _ => "; approvals are asked again",
        };
        Some(format!("agent changed: {}{asked}", changes.join("; ")))
    }

    /// Why a request was [narrowed](EventKind::Narrowed), and what it leaves out, in words; `None` of other kinds.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::EventKind;
    ///
    /// let stored = r#"{"narrowed": {"limit": 8000, "used": 9100, "shown": [[4, 9]], "cleared": [[6, 7]], "messages": 9}}"#;
    /// let kind: EventKind = serde_json::from_str(stored)?;
    /// assert_eq!(
    ///     kind.narrowing().unwrap(),
    ///     "conversation too long: expected at most 8000 tokens, found 9100; 4 messages left out, 1 result cleared",
    /// );
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn narrowing(&self) -> Option<String> {
        let EventKind::Narrowed { limit, used, shown, cleared, messages, summarizes, .. } = self else {
            return None;
        };
        let size = ModelErrorKind::TooLong { limit: *limit, used: *used };
        let left_out = counted_parts(messages.saturating_sub(shown.len()), cleared.len());
        let next = if *summarizes { ", and a summary is made" } else { "" };
        Some(format!("{size}; {left_out}{next}"))
    }

    /// The number of messages that a run [began](EventKind::Began) without, and of the results that were cleared, in words; `None`
    /// if there are none, and of other kinds.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::EventKind;
    ///
    /// let stored = r#"{"began": {"id": "r1", "shown": [[4, 9]], "cleared": [[6, 7]]}}"#;
    /// let kind: EventKind = serde_json::from_str(stored)?;
    /// assert_eq!(kind.left_out().unwrap(), "4 messages left out, 1 result cleared");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn left_out(&self) -> Option<String> {
        let EventKind::Began { shown, cleared, .. } = self else { return None };
        let left_out = shown.as_ref().map_or(0, |shown| gaps(shown).len());
        (left_out + cleared.len() > 0).then(|| counted_parts(left_out, cleared.len()))
    }

    /// The view of the conversation from here on, in words, if this event sets it: `messages 0..4 left out, results of c7
    /// cleared`. Calls are named by `log`.
    pub(crate) fn view_in_words(&self, log: &Transcript) -> Option<String> {
        let (shown, cleared) = match self {
            EventKind::Began { shown, cleared, .. } => (shown.as_ref(), cleared),
            EventKind::Narrowed { shown, cleared, .. } => (Some(shown), cleared),
            _ => return None,
        };
        let left_out = shown.map_or_else(MessageRanges::default, gaps);
        let left_out = match left_out.is_empty() {
            true => "no message left out".to_owned(),
            false => format!("messages {left_out} left out"),
        };
        let name = |index: usize| match log.get(index).and_then(|message| message.tool_result()) {
            Some(result) => result.call_id().to_owned(),
            None => format!("message {index}"),
        };
        let mut names: Vec<String> = cleared.indexes().take(NAMED_RESULTS).map(name).collect();
        names.extend(cleared.len().checked_sub(NAMED_RESULTS + 1).map(|more| format!("{} more", more + 1)));
        Some(match names.is_empty() {
            true => left_out,
            false => format!("{left_out}, results of {} cleared", names.join(", ")),
        })
    }
}

/// The parts of a conversation that are not shown, in words.
fn counted_parts(messages: usize, results: usize) -> String {
    let counted =
        |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!("{} left out, {} cleared", counted(messages, "message"), counted(results, "result"))
}

/// The cleared results that are named in a text.
const NAMED_RESULTS: usize = 5;

/// The messages between and before these.
fn gaps(shown: &MessageRanges) -> MessageRanges {
    let ends = std::iter::once(0).chain(shown.ranges().iter().map(|range| range.end));
    ends.zip(shown.ranges()).map(|(end, next)| end..next.start).collect()
}

/// The index of the result of a call in a conversation.
pub(super) fn place_of_result(log: &Transcript, call_id: &str) -> Option<usize> {
    let is_it =
        |message: &Arc<Message>| message.tool_result().is_some_and(|result| result.call_id() == call_id);
    let from_end = log.iter().rev().position(is_it)?;
    Some(log.len() - 1 - from_end)
}

/// Whether a value is the default, which is not stored.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const fn tool_calls() -> FinishReason {
    FinishReason::ToolCalls
}

fn is_tool_calls(reason: &FinishReason) -> bool {
    *reason == FinishReason::ToolCalls
}

/// A duration as whole microseconds.
pub(crate) mod micros {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_micros)
    }
}
