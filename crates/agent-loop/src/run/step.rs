//! The work of a step: its items, until all of them have their outcome. The items are the calls of the last reply, or the
//! branches that a plan gives; what is inside of one, if anything is, is a run of its own.
//!
//! # Transitions
//!
//! The states of an item: each row is an answer that changes the state, with the states that follow. Items begin as
//! `Ready`, or as the reply's fates say, and end as `Done`.
//!
//! | state | answer | next state |
//! |---|---|---|
//! | `Asking` | `Decisions` | `Ready`, `Done` |
//! | `Asking` | `Asks` | `Ready` |
//! | `Asking` | `Cancelled` | `Done` |
//! | `Asking` | `TimedOut` | `Done` |
//! | `Same` | `Decisions` | `Ready`, `Done` |
//! | `Same` | `Cancelled` | `Done` |
//! | `Same` | `TimedOut` | `Done` |
//! | `Ready` | `Ask` | `Asking`, `Same` |
//! | `Ready` | `Hooked` | `Done` |
//! | `Ready` | `Started` | `Started` |
//! | `Ready` | `Interrupted` | `Asking`, `Done` |
//! | `Ready` | `Outcomes` | `HookPending`, `Done` |
//! | `Ready` | `Cancelled` | `Done` |
//! | `Ready` | `TimedOut` | `Done` |
//! | `Started` | `Hooked` | `Done` |
//! | `Started` | `Asks` | `Ready` |
//! | `Started` | `Outcomes` | `HookPending`, `Done` |
//! | `Started` | `Interrupted` | `Asking`, `Done` |
//! | `Started` | `Cancelled` | `Done` |
//! | `Started` | `TimedOut` | `Done` |
//! | `HookPending` | `Asks` | `Ready` |
//! | `HookPending` | `Outcomes` | `Done` |
//! | `HookPending` | `Cancelled` | `Done` |
//! | `HookPending` | `TimedOut` | `Done` |
//!
//! An item with a run inside is `Ready` until it is `Done`: that run has its own phase. The machine takes `Asks` of every
//! item that is not done; the driver gives it of `Ready` and `Started` ones only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepfold_state_core::chat::{Arguments, Content, Message, ToolCall};
use stepfold_state_core::state::Delta;
use stepfold_tools::{AnsweredRequest, CallFailure, CallOutcome, CallStatus, Effect};

use super::event::{CallDisposition, Event, ListedTool, StepEnd, is_default};
use super::machine::Run;
use crate::approval::{ApprovalQuestion, ApprovalRequest, AskReason, Decision, modification_note};
use crate::exit::Exit;
use crate::planned::{EndedBranch, JoinArrivals, NodeOutcome, NodeStatus, PlanPosition, PlannedBranch};
use crate::redact::KeptCall;
use crate::state_input::{StateInput, retain_open};

/// The open step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenStep {
    #[serde(default)]
    pub(crate) items: ItemList,
    pub(crate) plan: StepPlan,
}

/// The source of the items, with the other data of the step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepPlan {
    /// They are the calls of the reply that is the last message of the log.
    Calls(CallStep),
    /// They are the branches of a superstep.
    Branches(SuperstepWalk),
}

/// The data of a step of calls beside its items.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CallStep {
    /// The message that has them.
    #[serde(skip)]
    pub(crate) reply: Option<Arc<Message>>,
    /// Whether the hooks before tools ran.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_hooked: bool,
    /// Whether the agent has changed since the reply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_upgraded: bool,
    /// Whether its calls could start at some time: no call starts before all approvals of the reply are there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) was_runnable: bool,
    /// Why a hook wants the run to end after this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<String>,
    /// The exit that follows in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Exit>,
    /// The amounts that the run had used when the step began: the runs inside have the rest of its limits.
    pub(crate) spent: SpentBudget,
}

/// The amounts that count for the limits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SpentBudget {
    pub(crate) calls: u64,
    pub(crate) tokens: u64,
    #[serde(with = "super::event::micros", rename = "elapsed_us")]
    pub(crate) elapsed: Duration,
}

/// The position of a walk through supersteps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SuperstepWalk {
    pub(crate) has_begun: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) deferred: Vec<PlannedBranch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) arrived: Vec<JoinArrivals>,
    /// The number of supersteps in which each node had branches.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) executions: BTreeMap<String, u64>,
}

/// The items in their order, and the number of those in each condition. A reply may have thousands of calls, and each
/// of their events needs these numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemList {
    items: Vec<StepItem>,
    counts: [usize; 6],
}

/// A condition of items; the step counts the items that meet it.
#[derive(Clone, Copy)]
pub(crate) enum ItemCondition {
    /// A decision about the item itself is required.
    Asked,
    /// A decision about the item, or inside of it, is required.
    Waiting,
    /// It may run.
    Runnable,
    /// It was started, must not run twice, and has no outcome.
    Started,
    /// A hook has still to see its outcome.
    HookPending,
    /// It has no outcome.
    Open,
}

/// Whether an item is each of what is [counted](ItemCondition).
fn counted(item: &StepItem) -> [bool; 6] {
    let waits = item.waits();
    let is_runnable = !waits && matches!(item.state, ItemState::Ready);
    [item.is_asked(), waits, is_runnable, item.is_started(), item.hook_pending().is_some(), !item.is_done()]
}

impl From<Vec<StepItem>> for ItemList {
    fn from(items: Vec<StepItem>) -> Self {
        let mut counts = [0; 6];
        for (count, is_one) in items.iter().flat_map(|item| std::iter::zip(0.., counted(item))) {
            counts[count] += usize::from(is_one);
        }
        ItemList { items, counts }
    }
}

impl Serialize for ItemList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(serializer)
    }
}

/// Rejects a call whose decision refers to a call without one: the machine relies on it.
impl<'de> Deserialize<'de> for ItemList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items = Vec::<StepItem>::deserialize(deserializer)?;
        let is_asked_before = |place: usize, first: usize| {
            first < place && items.get(first).is_some_and(|item| matches!(item.state, ItemState::Asking(_)))
        };
        for (place, item) in items.iter().enumerate() {
            if let ItemState::Same(first) = item.state
                && !is_asked_before(place, first)
            {
                let fault = format!(
                    "invalid `same` of call {place}: expected the place of an earlier call that waits for a decision, \
                     found {first}"
                );
                return Err(D::Error::custom(fault));
            }
        }
        Ok(items.into())
    }
}

impl Deref for ItemList {
    type Target = [StepItem];

    fn deref(&self) -> &[StepItem] {
        &self.items
    }
}

impl ItemList {
    /// Changes the item at a place, if there is one. O(1).
    pub(crate) fn change<T>(&mut self, place: usize, change: impl FnOnce(&mut StepItem) -> T) -> Option<T> {
        let item = self.items.get_mut(place)?;
        let before = counted(item);
        let changed = change(item);
        for (count, (was, is)) in self.counts.iter_mut().zip(std::iter::zip(before, counted(item))) {
            *count = *count + usize::from(is) - usize::from(was);
        }
        Some(changed)
    }

    /// Changes any of them. O(items).
    pub(crate) fn change_all(&mut self, change: impl FnOnce(&mut [StepItem])) {
        let mut items = std::mem::take(&mut self.items);
        change(&mut items);
        *self = items.into();
    }

    /// The number of items that meet a condition.
    pub(crate) const fn count(&self, counted: ItemCondition) -> usize {
        self.counts[counted as usize]
    }

    /// Whether one is that.
    pub(crate) const fn any(&self, counted: ItemCondition) -> bool {
        self.count(counted) > 0
    }
}

/// One item, by its place.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the item")]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StepItem {
    /// The branch. A call stands in the reply.
    #[serde(flatten)]
    pub(crate) planned: Option<PlannedBranch>,
    /// The modified arguments, in place of the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) modified: Option<Value>,
    /// Writes of hooks before the call.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub(crate) writes: Delta,
    /// The number of earlier requests about it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) round: u32,
    /// The values that the state adds to the call, as the last request for its approval showed them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "inputs_from_state")]
    pub(crate) inputs: Vec<StateInput>,
    /// The digest of its tool, where tools are listed at each step: as the last request for its approval showed it, or as it was
    /// listed with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<String>,
    /// The effect of its tool as it was listed with the reply, until it is known whether it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listed_effect: Option<Effect>,
    /// Whether it has not begun: this host has committed a decision that it waited for.
    #[serde(skip)]
    pub(crate) is_ahead_here: bool,
    /// The dependency of the agent that listed its tool with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dependency: Option<String>,
    /// The difference of its tool from the one that was approved before, as the last request showed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) change: Option<String>,
    /// The JSON Schema of its arguments, as the last request for its approval showed its tool, where tools are listed at each step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<Value>,
    /// Whether it was started before, and may have had its effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) may_have_happened: bool,
    /// Whether it was marked as started before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) was_started: bool,
    /// Whether its arguments were changed after the hooks before tools had seen it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unhooked: bool,
    /// The requests of its last execution, and answered ones of earlier executions; or those of the run inside, where its
    /// agent is not known before the tools of the step are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) asked: Vec<ApprovalRequest>,
    /// The decisions about these and about requests inside, under the ids within the item.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decisions: Vec<(String, Decision)>,
    /// The run inside of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<Box<InnerRun>>,
    /// Whether its arguments, or answers to its questions, are not what was given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_redacted: bool,
    /// The originals, in the process that was given them.
    #[serde(skip)]
    pub(crate) kept: Option<Arc<KeptCall>>,
    pub(crate) state: ItemState,
}

/// The state of an item. One with a run inside is ready, and that run has its own phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemState {
    /// A decision is required.
    Asking(AskReason),
    /// A decision about the equal call at this index is required, and so about this one. That one waits as
    /// well.
    Same(usize),
    /// It may run.
    #[default]
    Ready,
    /// It must not run twice, and was started.
    Started,
    /// It ran, and a hook that has to see its outcome failed.
    HookPending(Box<UnseenOutcome>),
    /// It has its outcome.
    Done(Arc<WorkOutcome>),
}

/// The outcome of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WorkOutcome {
    /// The outcome of a call.
    #[serde(rename = "outcome")]
    Call(CallOutcome),
    /// The outcome of a branch.
    #[serde(rename = "node")]
    Node(NodeOutcome),
}

impl From<CallOutcome> for WorkOutcome {
    fn from(outcome: CallOutcome) -> Self {
        WorkOutcome::Call(outcome)
    }
}

impl From<NodeOutcome> for WorkOutcome {
    fn from(outcome: NodeOutcome) -> Self {
        WorkOutcome::Node(outcome)
    }
}

impl WorkOutcome {
    /// The outcome of a call.
    pub const fn call(&self) -> Option<&CallOutcome> {
        match self {
            WorkOutcome::Call(outcome) => Some(outcome),
            WorkOutcome::Node(_) => None,
        }
    }

    pub(crate) fn into_call(self) -> Option<CallOutcome> {
        match self {
            WorkOutcome::Call(outcome) => Some(outcome),
            WorkOutcome::Node(_) => None,
        }
    }

    /// The outcome of a branch.
    pub const fn node(&self) -> Option<&NodeOutcome> {
        match self {
            WorkOutcome::Node(outcome) => Some(outcome),
            WorkOutcome::Call(_) => None,
        }
    }

    /// The writes of the item.
    pub const fn delta(&self) -> &Delta {
        match self {
            WorkOutcome::Call(outcome) => &outcome.delta,
            WorkOutcome::Node(outcome) => &outcome.delta,
        }
    }

    pub(crate) const fn delta_mut(&mut self) -> &mut Delta {
        match self {
            WorkOutcome::Call(outcome) => &mut outcome.delta,
            WorkOutcome::Node(outcome) => &mut outcome.delta,
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        match self {
            WorkOutcome::Call(outcome) => outcome.status == CallStatus::Unknown,
            WorkOutcome::Node(outcome) => outcome.status == NodeStatus::Unknown,
        }
    }
}

/// The outcome of the item at a place.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ItemOutcome {
    /// The place of the call or branch.
    pub place: usize,
    /// Its outcome.
    pub outcome: WorkOutcome,
    /// Why a hook wants the run to end after this step.
    pub stop: Option<String>,
    /// The first hook after tools that failed, by its place among them, and has still to see the outcome. The call
    /// is answered once more when it has: see [`Run::pending_hooks`].
    pub pending_hook: Option<usize>,
}

impl ItemOutcome {
    /// An outcome that all hooks have seen.
    pub fn new(place: usize, outcome: impl Into<WorkOutcome>) -> Self {
        ItemOutcome { place, outcome: outcome.into(), stop: None, pending_hook: None }
    }
}

/// An outcome that a hook has still to see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct UnseenOutcome {
    /// As the hooks before it left it.
    pub(crate) outcome: CallOutcome,
    /// The place of the hook among those after tools.
    pub(crate) hook: usize,
}

/// The run inside of an item. Its events are events of the run around it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct InnerRun {
    pub(crate) run: InnerRunState,
    /// Events that are still to be folded, when its agent is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Event>,
    /// Its writes to shared keys.
    #[serde(skip_serializing_if = "Delta::is_empty")]
    pub(crate) writes: Delta,
    /// All of its messages, whatever its hooks make of its conversation.
    #[serde(rename = "said", skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<Arc<Message>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum InnerRunState {
    /// Before its first event.
    #[default]
    Unknown,
    /// As it was loaded, until its agent is known.
    Stored(Value),
    #[serde(skip_deserializing, serialize_with = "as_loaded")]
    Run(Box<Run>),
}

/// Serialises a run as one whose agent is not known yet: by the order of the value's keys.
fn as_loaded<S: Serializer>(run: &Run, serializer: S) -> Result<S::Ok, S::Error> {
    serde_json::to_value(run).map_err(S::Error::custom)?.serialize(serializer)
}

impl InnerRun {
    pub(crate) fn run(&self) -> Option<&Run> {
        match &self.run {
            InnerRunState::Run(run) => Some(run),
            _ => None,
        }
    }

    pub(super) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.run {
            InnerRunState::Run(run) => Some(run),
            _ => None,
        }
    }
}

impl OpenStep {
    /// The calls of a reply.
    pub(crate) fn of_calls(reply: Arc<Message>, last: Option<Exit>, spent: SpentBudget) -> Self {
        let items = vec![StepItem::default(); reply.tool_calls().count()].into();
        OpenStep {
            items,
            plan: StepPlan::Calls(CallStep { reply: Some(reply), last, spent, ..CallStep::default() }),
        }
    }

    /// A walk that has not begun.
    pub(crate) fn of_walk() -> Self {
        OpenStep { items: ItemList::default(), plan: StepPlan::Branches(SuperstepWalk::default()) }
    }

    pub(crate) const fn calls(&self) -> Option<&CallStep> {
        match &self.plan {
            StepPlan::Calls(calls) => Some(calls),
            StepPlan::Branches(_) => None,
        }
    }

    pub(crate) const fn walk(&self) -> Option<&SuperstepWalk> {
        match &self.plan {
            StepPlan::Branches(walk) => Some(walk),
            StepPlan::Calls(_) => None,
        }
    }

    /// The message that has the calls.
    pub(crate) fn reply(&self) -> Option<&Arc<Message>> {
        self.calls()?.reply.as_ref()
    }

    /// The items of a reply, each with its call.
    pub(crate) fn with_calls(&self) -> impl Iterator<Item = (usize, &StepItem, &ToolCall)> {
        let calls = self.reply().into_iter().flat_map(|reply| reply.tool_calls());
        self.items.iter().zip(calls).enumerate().map(|(place, (item, call))| (place, item, call))
    }

    /// The call at a place.
    pub(crate) fn call(&self, place: usize) -> Option<&ToolCall> {
        let reply = self.reply()?;
        let parts = reply.parts();
        // In most replies the calls come last, one after the other: they are as many as the parts from the first.
        let first = parts.iter().position(|part| matches!(part.content, Content::ToolCall(_)))?;
        if self.items.len() != parts.len() - first {
            return reply.tool_calls().nth(place);
        }
        match &parts.get(first + place)?.content {
            Content::ToolCall(call) => Some(call),
            _ => None,
        }
    }

    /// The item at a place as a call: as it runs, or, of a branch, what a request about it shows.
    pub(crate) fn shown(&self, place: usize) -> ToolCall {
        let item = self.items.get(place);
        if let Some(planned) = item.and_then(|item| item.planned.as_ref()) {
            return planned.as_call(place);
        }
        match self.call(place).zip(item) {
            Some((call, item)) => item.as_run(call),
            // No event fits that names another place.
            None => ToolCall::new("", "", Arguments::default()),
        }
    }

    /// The outcome of an item that had started when the process died.
    pub(super) fn unknown_outcome(&self, place: usize) -> WorkOutcome {
        let (call, is_call) = (self.shown(place), self.calls().is_some());
        let what = if is_call { "tool" } else { "node" };
        let was_started = self.items.get(place).is_some_and(StepItem::was_started);
        let started = if was_started { "had started" } else { "may have started" };
        let text = format!(
            "{what} '{}' {started} when the process was interrupted: its outcome is unknown, and it was not run again",
            call.name,
        );
        match is_call {
            true => CallOutcome::without_result(&call, CallStatus::Unknown, text).into(),
            false => NodeOutcome::failed(NodeStatus::Unknown, text, 1).into(),
        }
    }

    /// Applies the fates of calls that do not simply run. Answered ones have their outcomes from the event.
    pub(crate) fn apply_fates(&mut self, fates: &[(usize, CallDisposition)]) {
        for (place, fate) in fates {
            let first = match fate {
                CallDisposition::Same(first) => {
                    let first = self.items.get(*first);
                    first.map(|item| (item.inputs.clone(), item.definition.clone(), item.parameters.clone()))
                }
                _ => None,
            };
            self.items.change(*place, |item| match fate {
                CallDisposition::Ask(question) => item.ask(question.clone()),
                CallDisposition::Same(first_place) => {
                    // NOTE: One decision covers both calls, so both were approved with the values that the first
                    // request showed.
                    (item.inputs, item.definition, item.parameters) = first.unwrap_or_default();
                    item.state = ItemState::Same(*first_place);
                }
                CallDisposition::Answer(_) => {}
            });
        }
    }

    /// Whether the hooks before tools have seen all calls, or all but those that were changed since.
    pub(crate) fn was_hooked(&self) -> bool {
        self.calls().is_some_and(|calls| calls.is_hooked) || self.items.iter().any(|item| item.is_unhooked)
    }

    /// Notes that calls can start, if no approval is missing.
    pub(crate) fn note_runnable(&mut self) {
        let is_asked = self.items.any(ItemCondition::Asked);
        if let StepPlan::Calls(calls) = &mut self.plan {
            calls.was_runnable |= !is_asked;
        }
    }

    /// Whether an item may have begun, on any host.
    pub(crate) fn was_runnable(&self) -> bool {
        self.calls().is_none_or(|calls| calls.was_runnable)
    }

    /// The tools of the calls, as they were listed last.
    pub(crate) fn note_listed(&mut self, listed: &[ListedTool]) {
        for tool in listed {
            self.items.change(tool.place, |item| {
                item.definition = Some(tool.definition.clone());
                item.listed_effect = Some(tool.effect);
                item.dependency.clone_from(&tool.dependency);
            });
        }
    }

    /// Whether these calls may be put up for approval now: none was requested before, or it was granted for other values
    /// from the state.
    pub(crate) fn may_ask(&self, fates: &[(usize, CallDisposition)], listed: &[ListedTool]) -> bool {
        let is_open = |(place, fate): &(usize, CallDisposition)| match fate {
            CallDisposition::Ask(question) => {
                let tool = listed.iter().find(|tool| tool.place == *place);
                self.items.get(*place).is_some_and(|item| item.may_be_asked(question, tool))
            }
            CallDisposition::Same(_) => self.items.get(*place).is_some_and(StepItem::is_unasked),
            CallDisposition::Answer(_) => false,
        };
        self.calls().is_some() && !fates.is_empty() && fates.iter().all(is_open) && is_asked(fates)
    }

    /// The places of what must not run twice, was started, and has no outcome.
    pub(crate) fn started(&self) -> Vec<usize> {
        let started = self.items.iter().enumerate().filter(|(_, item)| item.is_started());
        started.map(|(place, _)| place).collect()
    }

    /// The superstep that has ended.
    pub(crate) fn ended(&self) -> Vec<EndedBranch<'_>> {
        self.items.iter().filter_map(StepItem::ended).collect()
    }

    /// Marks items whose writes could not be merged as failed.
    pub(crate) fn mark_unmerged(&mut self, end: &StepEnd) {
        for (number, place) in end.unmerged.iter().enumerate() {
            let error = end.merge_errors.get(number).map(String::as_str).unwrap_or_default();
            self.items.change(*place, |item| {
                let ItemState::Done(outcome) = &mut item.state else { return };
                match Arc::make_mut(outcome) {
                    WorkOutcome::Call(outcome) => outcome.status = CallStatus::Failed(CallFailure::Merge),
                    WorkOutcome::Node(outcome) => {
                        *outcome = NodeOutcome::failed(NodeStatus::Unmerged, error, outcome.tries);
                    }
                }
            });
        }
    }
}

impl SuperstepWalk {
    pub(crate) fn position(&self) -> PlanPosition<'_> {
        PlanPosition {
            has_begun: self.has_begun,
            deferred: &self.deferred,
            arrived: &self.arrived,
            executions: &self.executions,
        }
    }

    /// One more superstep of each of these nodes.
    pub(crate) fn count(&mut self, branches: &[PlannedBranch]) {
        let mut last: Option<&str> = None;
        for planned in branches {
            // NOTE: Executions count supersteps, not branches: the limit is there to end loops, and a fan-out over
            // fifty tasks is one round of work.
            // Branches of one node stand together.
            if last != Some(&planned.node) {
                match self.executions.get_mut(&planned.node) {
                    Some(executions) => *executions += 1,
                    None => drop(self.executions.insert(planned.node.clone(), 1)),
                }
            }
            last = Some(&planned.node);
        }
    }
}

/// Whether each call that is decided with another one has that one before it, which is asked about.
pub(crate) fn is_asked(fates: &[(usize, CallDisposition)]) -> bool {
    let mut asked = BTreeSet::new();
    fates.iter().all(|(place, fate)| match fate {
        CallDisposition::Ask(_) => asked.insert(*place),
        CallDisposition::Same(first) => first < place && asked.contains(first),
        CallDisposition::Answer(_) => true,
    })
}

impl StepItem {
    pub(crate) fn outcome(&self) -> Option<&Arc<WorkOutcome>> {
        match &self.state {
            ItemState::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.state, ItemState::Done(_))
    }

    pub(crate) const fn is_started(&self) -> bool {
        matches!(self.state, ItemState::Started)
    }

    /// Whether the record says that it has started at some time.
    pub(crate) const fn was_started(&self) -> bool {
        self.was_started || self.is_started()
    }

    /// Requests a decision about the item itself.
    pub(crate) fn ask(&mut self, question: ApprovalQuestion) {
        if question.reason == AskReason::MayHaveHappened {
            (self.may_have_happened, self.listed_effect) = (true, None);
            self.was_started |= self.is_started();
        }
        self.state = ItemState::Asking(question.reason);
        self.inputs = question.inputs_from_state;
        self.definition = question.definition.or_else(|| self.definition.take());
        self.change = question.change;
        self.parameters = question.parameters;
    }

    /// Whether it may run and has not begun.
    fn is_ahead(&self) -> bool {
        matches!(self.state, ItemState::Ready) && self.child.is_none()
    }

    /// Whether a host may have begun it without a mark, since its tool was repeatable then.
    pub(crate) fn may_have_begun(&self) -> bool {
        self.may_run()
            && self.child.is_none()
            && self.listed_effect.is_some_and(|effect| effect != Effect::AtMostOnce)
    }

    /// Whether it may run, has not begun, and no approval was requested.
    pub(crate) fn is_unasked(&self) -> bool {
        self.is_ahead() && self.round == 0
    }

    /// Whether it was approved and has not begun.
    pub(crate) fn is_approved(&self) -> bool {
        self.is_ahead() && self.round > 0
    }

    fn may_be_asked(&self, question: &ApprovalQuestion, tool: Option<&ListedTool>) -> bool {
        let dependency = tool.and_then(|tool| tool.dependency.as_ref());
        let is_other = question.inputs_from_state != self.inputs
            || self.is_of_other(question.definition.as_deref())
            || self.is_of_other_server(dependency);
        (self.is_unasked() || self.is_approved() && is_other) && question.reason == self.reason_to_ask()
    }

    /// Whether its tool was shown as another one than this. Records of earlier versions do not say how it was shown.
    pub(crate) fn is_of_other(&self, definition: Option<&str>) -> bool {
        matches!((self.definition.as_deref(), definition), (Some(shown), Some(now)) if shown != now)
    }

    /// Whether its tool was listed by another server than this.
    pub(crate) fn is_of_other_server(&self, dependency: Option<&String>) -> bool {
        self.dependency.is_some() && self.dependency.as_ref() != dependency
    }

    /// The reason of a request for its approval.
    pub(crate) const fn reason_to_ask(&self) -> AskReason {
        if self.may_have_happened { AskReason::MayHaveHappened } else { AskReason::Rule }
    }

    /// The reason why a decision about the item itself is required, if it is.
    pub(crate) const fn asks(&self) -> Option<AskReason> {
        match self.state {
            ItemState::Asking(reason) => Some(reason),
            ItemState::Same(_) => Some(AskReason::Rule),
            _ => None,
        }
    }

    /// Whether its approval is requested: by a rule, after a crash, or by the function of its node.
    pub(crate) fn is_asking(&self) -> bool {
        let is_of_node = self.planned.is_some() && self.child.is_none();
        matches!(self.state, ItemState::Asking(_)) || is_of_node && !self.open_requests().is_empty()
    }

    /// Whether a decision about the item itself is required.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asks().is_some()
    }

    /// The outcome that a hook has still to see, if there is one.
    pub(crate) fn hook_pending(&self) -> Option<&UnseenOutcome> {
        match &self.state {
            ItemState::HookPending(pending) => Some(pending),
            _ => None,
        }
    }

    /// The run inside, if it has begun and its agent is known.
    pub(crate) fn child(&self) -> Option<&Run> {
        self.child.as_ref()?.run()
    }

    /// Replaces the requests within the item. Answered questions of a tool, and outcomes that came later, stay: the tool
    /// gets them with their answers each time it runs.
    pub(crate) fn asks_within(&mut self, requests: &[ApprovalRequest]) {
        let is_answered = |request: &ApprovalRequest| {
            request.reason.is_of_running() && self.decisions.iter().any(|(id, _)| *id == request.id)
        };
        self.asked.retain(is_answered);
        self.asked.extend(requests.iter().cloned());
        // It asked before it did anything.
        self.state = ItemState::Ready;
    }

    /// Whether a question of its tool was answered.
    pub(crate) fn has_answers(&self) -> bool {
        let is_answered = |request: &ApprovalRequest| self.decisions.iter().any(|(id, _)| *id == request.id);
        self.asked.iter().any(|request| request.reason.is_of_running() && is_answered(request))
    }

    /// The questions of a tool that were answered.
    pub(crate) fn answered(&self) -> Vec<AnsweredRequest> {
        let decision =
            |id: &str| self.decisions.iter().find(|(decided, _)| decided == id).map(|(_, decision)| decision);
        let asked = self.asked.iter().filter(|request| request.reason.is_of_running());
        let answered = asked.filter_map(|request| {
            let decision = decision(&request.id)?;
            let (kept, given) = self.originals_of(&request.id);
            Some(kept.unwrap_or(request).answered(given.unwrap_or(decision)))
        });
        answered.collect()
    }

    /// The originals of a request and of the decision about it.
    fn originals_of(&self, id: &str) -> (Option<&ApprovalRequest>, Option<&Decision>) {
        let Some(kept) = &self.kept else { return (None, None) };
        let decision = kept.decisions.iter().rev().find(|(decided, _)| decided == id);
        (kept.asked.iter().find(|request| request.id == id), decision.map(|(_, decision)| decision))
    }

    /// The decisions about requests inside of it, as they were given.
    pub(crate) fn given_decisions(&self) -> Vec<(String, Decision)> {
        let given = self.decisions.iter().map(|(id, decision)| {
            let (_, original) = self.originals_of(id);
            (id.clone(), original.unwrap_or(decision).clone())
        });
        given.collect()
    }

    /// Adds originals.
    pub(crate) fn keep(&mut self, more: KeptCall) {
        let mut kept = self.kept.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        kept.arguments = more.arguments.or(kept.arguments);
        kept.decisions.extend(more.decisions);
        kept.asked.extend(more.asked);
        self.kept = Some(Arc::new(kept));
    }

    /// The call as it is executed, with its original arguments.
    pub(crate) fn as_executed(&self, call: &ToolCall) -> ToolCall {
        match self.kept.as_ref().and_then(|kept| kept.arguments.as_ref()) {
            None => self.as_run(call),
            Some(arguments) => ToolCall::new(&*call.id, &*call.name, arguments.clone()),
        }
    }

    /// The undecided requests within the item, by the ids there.
    pub(crate) fn open_requests(&self) -> Vec<ApprovalRequest> {
        if self.child.is_none() && self.asked.is_empty() {
            return Vec::new();
        }
        let is_open = |request: &ApprovalRequest| self.decisions.iter().all(|(id, _)| *id != request.id);
        let asked = match self.child() {
            Some(child) => child.pending(),
            None => self.asked.clone(),
        };
        asked.into_iter().filter(is_open).collect()
    }

    /// Whether a decision about the item, or inside of it, is still required.
    pub(crate) fn waits(&self) -> bool {
        self.is_asked() || (!self.is_done() && !self.open_requests().is_empty())
    }

    pub(crate) fn may_run(&self) -> bool {
        matches!(self.state, ItemState::Ready) && !self.waits()
    }

    /// The item has its outcome, and needs nothing more.
    pub(crate) fn finish(&mut self, outcome: impl Into<WorkOutcome>) {
        // NOTE: Shared, since the outcome is also in its event and in the message that ends the step: a large result is
        // copied nowhere.
        self.state = ItemState::Done(Arc::new(outcome.into()));
        self.child = None;
        self.asked = Vec::new();
        self.decisions = Vec::new();
        self.kept = None;
    }

    /// Puts other arguments in place of the model's. Hooks that have seen the call have to see it again, and what they
    /// wrote was for the call as it was.
    pub(crate) fn modify(&mut self, arguments: &Value, is_hooked: bool) {
        self.modified = Some(arguments.clone());
        (self.is_redacted, self.kept) = (false, None);
        retain_open(&mut self.inputs, arguments);
        if is_hooked {
            self.is_unhooked = true;
            self.writes = Delta::new();
        }
    }

    /// Lets the item run as a decision says that does not reject it.
    pub(crate) fn allow(&mut self, decision: &Decision, is_hooked: bool) {
        if let Decision::Modify { arguments } = decision {
            self.modify(arguments, is_hooked);
        }
        self.state = ItemState::Ready;
        self.round += 1;
    }

    /// The call as it is run.
    pub(crate) fn as_run(&self, call: &ToolCall) -> ToolCall {
        match &self.modified {
            None => call.clone(),
            Some(arguments) => ToolCall::new(&*call.id, &*call.name, arguments.clone()),
        }
    }

    /// The outcome of a call as it is kept: with the writes of hooks before it, and with what the model has to know of
    /// arguments that were changed.
    pub(crate) fn completed(&self, call: &ToolCall, mut outcome: CallOutcome) -> CallOutcome {
        // NOTE: A hook that counts payments must not count one that failed, or whose outcome is unknown.
        if !self.writes.is_empty() && outcome.succeeded() {
            outcome.delta = self.writes.iter().cloned().chain(outcome.delta).collect();
        }
        // NOTE: The model's message keeps the original arguments, since providers sign reasoning beside calls and cache
        // equal prefixes. So the result mentions the change.
        if self.modified.is_some() {
            let note = modification_note(&self.as_run(call).arguments);
            outcome.result = super::step_end::with_note(&outcome.result, &note);
        }
        outcome
    }

    fn ended(&self) -> Option<EndedBranch<'_>> {
        let (outcome, planned) = (self.outcome()?.node()?, self.planned.as_ref()?);
        Some(EndedBranch {
            node: &planned.node,
            item: planned.item.as_ref(),
            error: outcome.error.as_deref(),
            goto: &outcome.goto,
        })
    }
}
