//! The calls of the last reply, until all of them are answered.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use stepfold_state_core::chat::{Message, Part, ToolCall, ToolContent, ToolResult, Transcript};
use stepfold_state_core::state::{Delta, State};
use stepfold_tools::{Failure, Outcome, Status, settle};

use super::event::{Fate, StepEnd, is_zero};
use super::exit::Exit;
use crate::approval::{ApprovalRequest, AskReason, Decision, modification};

/// The calls of a reply that is the last message of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) calls: Calls,
    /// Whether the hooks before tools ran.
    #[serde(default)]
    pub(crate) is_hooked: bool,
    /// Why a hook wants the run to end after this step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<String>,
    /// The exit that follows in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Exit>,
}

/// The calls in the order of the reply, and how many of them are how far. A reply may have thousands of calls, and each of
/// their events asks for that.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Calls {
    calls: Vec<Call>,
    counts: Counts,
}

/// How many calls are how far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    asked: usize,
    waiting: usize,
    started: usize,
    hook_pending: usize,
    open: usize,
}

impl Counts {
    fn add(&mut self, call: &Call) {
        self.asked += usize::from(call.is_asked());
        self.waiting += usize::from(call.waits());
        self.started += usize::from(call.state == CallState::Started);
        self.hook_pending += usize::from(call.is_hook_pending());
        self.open += usize::from(!call.is_done());
    }

    fn take(&mut self, call: &Call) {
        self.asked -= usize::from(call.is_asked());
        self.waiting -= usize::from(call.waits());
        self.started -= usize::from(call.state == CallState::Started);
        self.hook_pending -= usize::from(call.is_hook_pending());
        self.open -= usize::from(!call.is_done());
    }
}

impl From<Vec<Call>> for Calls {
    fn from(calls: Vec<Call>) -> Self {
        let mut counts = Counts::default();
        for call in &calls {
            counts.add(call);
        }
        Calls { calls, counts }
    }
}

impl Serialize for Calls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.calls.serialize(serializer)
    }
}

/// Refuses a call that is decided with one that nobody decides about: whoever has the calls relies on it.
impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let calls = Vec::<Call>::deserialize(deserializer)?;
        let is_asked_before = |place: usize, first: usize| {
            first < place && calls.get(first).is_some_and(|call| matches!(call.state, CallState::Asking(_)))
        };
        for (place, call) in calls.iter().enumerate() {
            if let CallState::Same(first) = call.state
                && !is_asked_before(place, first)
            {
                let fault = format!(
                    "invalid `same` of call {place}: expected the place of an earlier call that waits for a decision, \
                     found {first}"
                );
                return Err(D::Error::custom(fault));
            }
        }
        Ok(calls.into())
    }
}

impl Deref for Calls {
    type Target = [Call];

    fn deref(&self) -> &[Call] {
        &self.calls
    }
}

impl Calls {
    /// Changes the call at a place, if there is one. O(1).
    pub(crate) fn change(&mut self, place: usize, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.calls.get_mut(place) {
            self.counts.take(call);
            change(call);
            self.counts.add(call);
        }
    }

    /// Changes any of them. O(calls).
    pub(crate) fn change_all(&mut self, change: impl FnOnce(&mut [Call])) {
        let mut calls = std::mem::take(&mut self.calls);
        change(&mut calls);
        *self = calls.into();
    }

    /// Whether somebody has to decide about a call itself.
    pub(crate) fn are_asked_about(&self) -> bool {
        self.counts.asked > 0
    }

    /// Whether somebody has to decide about one, or about what is inside of one.
    pub(crate) fn wait(&self) -> bool {
        self.counts.waiting > 0
    }

    /// Whether one was started that must not run twice, and has no outcome.
    pub(crate) fn are_started(&self) -> bool {
        self.counts.started > 0
    }

    /// Whether a hook has still to see the outcome of one.
    pub(crate) fn are_hooks_pending(&self) -> bool {
        self.counts.hook_pending > 0
    }

    /// How many have no outcome.
    pub(crate) fn open(&self) -> usize {
        self.counts.open
    }
}

/// One call, by its place in the reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The arguments that somebody put in place of the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) modified: Option<Value>,
    /// Writes of hooks before the call.
    #[serde(default, skip_serializing_if = "Delta::is_empty")]
    pub(crate) writes: Delta,
    /// How often somebody was asked about it before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) round: u32,
    /// Whether its arguments were changed after the hooks before tools had seen it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_unhooked: bool,
    pub(crate) state: CallState,
}

/// How far a call is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallState {
    /// Somebody has to decide.
    Asking(AskReason),
    /// Somebody has to decide about the equal call at this place, and so about this one. That one waits as well.
    Same(usize),
    /// It may run.
    Ready,
    /// It must not run twice, and was started.
    Started,
    /// An agent that waits for decisions about its own calls.
    Suspended(Box<Suspended>),
    /// It ran, and a hook that has to see its outcome failed.
    HookPending(Box<HookPending>),
    /// It has its outcome.
    Done(Arc<Outcome>),
}

/// An outcome that a hook has still to see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HookPending {
    /// As the hooks before it left it.
    pub(crate) outcome: Outcome,
    /// The place of the hook among those after tools.
    pub(crate) hook: usize,
}

/// An agent that is a tool, and waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Suspended {
    /// Its run, stored.
    pub(crate) child: Value,
    /// What it asks, under its own ids.
    pub(crate) requests: Vec<ApprovalRequest>,
    /// What was decided so far, under its own ids.
    #[serde(default)]
    pub(crate) decisions: Vec<(String, Decision)>,
}

impl Batch {
    /// The calls that do not simply run get their fates.
    pub(crate) fn meet(&mut self, fates: &[(usize, Fate)]) {
        for (place, fate) in fates {
            let state = match fate {
                Fate::Ask(reason) => CallState::Asking(*reason),
                Fate::Same(first) => CallState::Same(*first),
                Fate::Answer(outcome) => done(outcome.clone()),
            };
            self.calls.change(*place, |call| call.state = state);
        }
    }

    /// Whether the hooks before tools have seen all calls, or all but those that were changed since.
    pub(crate) fn was_hooked(&self) -> bool {
        self.is_hooked || self.calls.iter().any(|call| call.is_unhooked)
    }

    /// Whether these are calls that nobody was asked about, and that somebody may be asked about now.
    pub(crate) fn may_ask(&self, fates: &[(usize, Fate)]) -> bool {
        let is_question = |fate: &Fate| matches!(fate, Fate::Ask(AskReason::Rule) | Fate::Same(_));
        let is_open = |(place, fate): &(usize, Fate)| is_question(fate) && self.is_unasked(*place);
        !fates.is_empty() && fates.iter().all(is_open) && is_asked(fates)
    }

    /// Whether the call may run, and nobody was asked about it.
    pub(crate) fn is_unasked(&self, place: usize) -> bool {
        self.calls
            .get(place)
            .is_some_and(|call| call.state == CallState::Ready && call.round == 0 && call.modified.is_none())
    }
}

/// Whether each call that is decided with another one has that one before it, which is asked about.
pub(crate) fn is_asked(fates: &[(usize, Fate)]) -> bool {
    let mut asked = BTreeSet::new();
    fates.iter().all(|(place, fate)| match fate {
        Fate::Ask(_) => asked.insert(*place),
        Fate::Same(first) => first < place && asked.contains(first),
        Fate::Answer(_) => true,
    })
}

pub(crate) fn done(outcome: Outcome) -> CallState {
    CallState::Done(Arc::new(outcome))
}

impl Call {
    pub(crate) fn new(state: CallState) -> Self {
        Call { modified: None, writes: Delta::new(), round: 0, is_unhooked: false, state }
    }

    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            CallState::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, CallState::Done(_))
    }

    /// Whether somebody has to decide about the call itself.
    fn is_asked(&self) -> bool {
        matches!(self.state, CallState::Asking(_) | CallState::Same(_))
    }

    /// The outcome that a hook has still to see, if there is one.
    pub(crate) fn hook_pending(&self) -> Option<&HookPending> {
        match &self.state {
            CallState::HookPending(pending) => Some(pending),
            _ => None,
        }
    }

    pub(crate) fn is_hook_pending(&self) -> bool {
        self.hook_pending().is_some()
    }

    /// Puts other arguments in place of the model's. Hooks that have seen the call have to see it again, and what they
    /// wrote was for the call as it was.
    fn modify(&mut self, arguments: &Value, is_hooked: bool) {
        self.modified = Some(arguments.clone());
        if is_hooked {
            self.is_unhooked = true;
            self.writes = Delta::new();
        }
    }

    /// Lets the call run as a decision says that does not reject it.
    pub(crate) fn agree(&mut self, decision: &Decision, is_hooked: bool) {
        if let Decision::Modify { arguments } = decision {
            self.modify(arguments, is_hooked);
        }
        self.state = CallState::Ready;
        self.round += 1;
    }

    /// Whether somebody still has to decide.
    pub(crate) fn waits(&self) -> bool {
        match &self.state {
            CallState::Asking(_) | CallState::Same(_) => true,
            CallState::Suspended(suspended) => suspended.open().next().is_some(),
            _ => false,
        }
    }

    /// The call as it is run.
    pub(crate) fn as_run(&self, call: &ToolCall) -> ToolCall {
        match &self.modified {
            None => call.clone(),
            Some(arguments) => ToolCall::new(&*call.id, &*call.name, arguments.clone()),
        }
    }

    /// The outcome as it is kept: with the writes of hooks before it, and with what the model has to know of
    /// arguments that were changed.
    pub(crate) fn completed(&self, call: &ToolCall, mut outcome: Outcome) -> Outcome {
        if !self.writes.is_empty() && outcome.succeeded() {
            outcome.delta = self.writes.iter().cloned().chain(outcome.delta).collect();
        }
        if self.modified.is_some() {
            let note = modification(&self.as_run(call).arguments);
            outcome.result = with_note(&outcome.result, &note);
        }
        outcome
    }
}

/// An outcome of a call that the loop did not let run.
pub(crate) fn not_run(call: &ToolCall, why: &str) -> Outcome {
    let text = format!("tool '{}' was not run: {why}", call.name);
    Outcome::without_result(call, Status::Failed(Failure::NotRun), text)
}

/// The result with a note for the model behind it.
pub(crate) fn with_note(result: &ToolResult, note: &str) -> ToolResult {
    let content = match result.content() {
        ToolContent::Error(text) => ToolContent::Error(format!("{text}\n{note}")),
        ToolContent::Value(_) => {
            ToolContent::Parts(vec![Part::text(result.text().into_owned()), Part::text(format!("\n{note}"))])
        }
        ToolContent::Parts(parts) => {
            ToolContent::Parts(parts.iter().cloned().chain([Part::text(format!("\n{note}"))]).collect())
        }
    };
    ToolResult::new(result.call_id(), result.name(), content)
}

/// The end of a step: the results as messages, the writes as one delta, in call order.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) delta: Delta,
    pub(crate) step_end: StepEnd,
}

/// What the model reads when it repeats itself.
const REPEATED: &str = "[You have made exactly these calls several times in a row, with exactly these results. \
                        Calling them again will not help: change the arguments, try something else, or answer.]";

/// Closes a step whose calls have these outcomes, in call order. `log` ends with the reply.
pub(crate) fn close(
    state: &State,
    log: &Transcript,
    mut outcomes: Vec<Outcome>,
    repeats: Repeats,
) -> Closing {
    let unmerged = match outcomes.iter().all(|outcome| outcome.delta.is_empty()) {
        true => Vec::new(),
        // A scratch state: the event carries the writes, and committing it folds them.
        false => settle(&mut state.clone(), &mut outcomes),
    };
    let times = repeats.counted(log, &outcomes);
    if repeats.warn_at.is_some_and(|warn| times >= warn) {
        for outcome in &mut outcomes {
            outcome.result = with_note(&outcome.result, REPEATED);
        }
    }
    let mut closing = Closing {
        step_end: StepEnd { unmerged, repeats: times, ..StepEnd::default() },
        ..Closing::default()
    };
    for outcome in outcomes {
        closing.delta.extend(outcome.delta);
        closing.messages.push(Message::tool(outcome.result).into());
    }
    closing
}

/// How often the step before was repeated, and from when on the model is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repeats {
    pub(crate) before: u32,
    pub(crate) warn_at: Option<u32>,
}

impl Repeats {
    /// How often in a row, this step included, the model has made these calls with these results. The step
    /// before is at the end of the log, before the reply.
    fn counted(self, log: &Transcript, outcomes: &[Outcome]) -> u32 {
        let Some(_) = self.warn_at else { return 0 };
        let same = || {
            let reply = log.len().checked_sub(1)?;
            let previous = reply.checked_sub(outcomes.len() + 1)?;
            let calls = log.get(reply)?.tool_calls();
            let mut earlier = log.get(previous)?.tool_calls();
            let are_same_calls = calls.clone().all(|call| {
                earlier
                    .next()
                    .is_some_and(|earlier| earlier.name == call.name && earlier.arguments == call.arguments)
            });
            let are_same = are_same_calls
                && earlier.next().is_none()
                && outcomes.iter().zip(log.iter_from(previous + 1)).all(|(outcome, message)| {
                    message.tool_result().is_some_and(|earlier| is_same_result(earlier, &outcome.result))
                });
            are_same.then_some(())
        };
        match same() {
            Some(()) => self.before.max(1).saturating_add(1),
            None => 1,
        }
    }
}

fn is_same_result(earlier: &ToolResult, new: &ToolResult) -> bool {
    earlier.content() == new.content() || earlier.content() == with_note(new, REPEATED).content()
}
