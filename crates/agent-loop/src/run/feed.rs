//! From answers to events. Nothing changes here: what an answer would do is computed, to be committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{
    Message, Repaired, Reply, Role, ToolCall, ToolResult, Transcript, Usage, with_unique_call_ids,
};
use stepfold_state_core::state::{Delta, Schema, State, Template, ValueRef};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};

use super::asking::Asking;
use super::close::{Repeats, close, not_run};
use super::event::{Event, EventKind, Fate, OutputFate, StepEnd};
use super::machine::{Need, Phase, Run};
use super::taken_ids::TakenIds;
use super::work::{Item, ItemOutcome, ItemState, Work, WorkOutcome};
use crate::agent::{HookPoint, HookVerdict, OUTPUT_TOOL, OutputMode, OutputSpec, recovered};
use crate::approval::ApprovalRequest;
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::error::{FeedError, StartError};
use crate::exit::Exit;
use crate::planned::{Next, NodeOutcome, NodeStatus, Planned};
use crate::state_input::TEMPORARY;
use stepfold_trim::{Summary, SummaryPlan};

/// Stands for a value that is unknown. No text that people write has it.
const HOLE: &str = "\u{0}unknown\u{0}";

/// What a host answers when a run [needs](Need) something.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// Begin.
    Begin,
    /// What the hooks of a point said, all together.
    Hooked(HookReport),
    /// The text of a summary and what it cost, or why there is none.
    Summary(Result<(String, Usage), String>),
    /// The user said something meanwhile. Taken whenever the model is to be asked.
    Steer(Vec<Message>),
    /// The model's reply.
    Reply(Reply),
    /// Decisions about pending requests. They may be some of those needed.
    Decisions(Decisions),
    /// Values or results are changed from outside. Taken after the beginning and before the end, whatever the run needs.
    Edit(Edit),
    /// Calls that [need an approval](Run::calls_to_ask) now.
    Ask(Vec<(usize, Fate)>),
    /// Calls or branches that must not run twice are about to start; by their places.
    Started(Vec<usize>),
    /// A run inside of a call or a branch has made a commit of its own.
    Inner {
        /// The place of the call or branch.
        place: usize,
        /// What it commits.
        event: Box<Event>,
    },
    /// A call or a branch requests a decision.
    Asks {
        /// Its place.
        place: usize,
        /// What it asks, under ids within it.
        requests: Vec<ApprovalRequest>,
    },
    /// Calls or branches have their outcomes: those that ended at the same moment, to be committed at once.
    Outcomes(Vec<ItemOutcome>),
    /// The next superstep of a graph, which the machine finds by itself.
    Plan,
    /// Calls or branches had started when the process died.
    Interrupted,
    /// The run was cancelled. Accepted at any time before the end.
    Cancelled,
    /// The time of the run is up. Taken at any time before the end.
    TimedOut,
}

impl Answer {
    /// The outcome of a call or a branch, which all hooks have seen.
    pub fn outcome(place: usize, outcome: impl Into<WorkOutcome>) -> Self {
        Answer::Outcomes(vec![ItemOutcome::new(place, outcome)])
    }

    const fn name(&self) -> &'static str {
        match self {
            Answer::Begin => "begin",
            Answer::Hooked(_) => "the report of hooks",
            Answer::Summary(_) => "a summary",
            Answer::Steer(_) => "a message",
            Answer::Reply(_) => "a reply",
            Answer::Decisions(_) => "decisions",
            Answer::Edit(_) => "an edit",
            Answer::Ask(_) => "calls to ask about",
            Answer::Started(_) => "started calls",
            Answer::Inner { .. } => "a commit of a run inside",
            Answer::Asks { .. } => "what a call or a node asks",
            Answer::Outcomes(_) => "outcomes",
            Answer::Plan => "a superstep",
            Answer::Interrupted => "interrupted calls",
            Answer::Cancelled => "a cancellation",
            Answer::TimedOut => "a timeout",
        }
    }
}

/// What the hooks of one point said, all together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookReport {
    /// The point.
    pub point: HookPoint,
    /// Writes, folded at once.
    pub delta: Delta,
    /// Another conversation in place of the log.
    pub rewrite: Option<Transcript>,
    /// Messages to append.
    pub messages: Vec<Arc<Message>>,
    /// The further course of the run.
    pub verdict: HookVerdict,
    /// Before tools: calls that do not run, each with its result for the model.
    pub answers: Vec<(usize, String)>,
    /// Before tools: writes that are folded with those of a call.
    pub writes: Vec<(usize, Delta)>,
}

impl HookReport {
    /// Hooks that wanted nothing.
    pub const fn new(point: HookPoint) -> Self {
        HookReport {
            point,
            delta: Delta::new(),
            rewrite: None,
            messages: Vec::new(),
            verdict: HookVerdict::Proceed,
            answers: Vec::new(),
            writes: Vec::new(),
        }
    }
}

/// The state that a run begins with, and what its inputs write to it.
pub(super) fn first_state(
    schema: &Schema,
    state: Option<State>,
    values: Option<Value>,
) -> Result<(State, Delta), StartError> {
    let Some(state) = state else {
        let values = values.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        return Ok((State::with_values(schema, values)?, Delta::new()));
    };
    if state.schema() != schema {
        return Err(StartError::OtherSchema);
    }
    let values = match values {
        None => return Ok((state, Delta::new())),
        Some(Value::Object(values)) => values,
        Some(_) => return Err(StartError::ValuesAreNoObject),
    };
    let writes = values.into_iter().map(|(key, value)| schema.write(key.as_str(), value));
    let delta = writes.collect::<Result<Delta, _>>()?;
    state.clone().apply(&delta)?;
    Ok((state, delta))
}

impl Run {
    /// The event that an answer makes, given how long the run has taken. Nothing is changed: the host stores
    /// the event if it likes, and then [commits](Run::commit) it.
    ///
    /// # Errors
    /// [`FeedError`] when the run does not need this answer, or the answer does not fit: an unknown request, a
    /// second decision, modified arguments that the tool does not accept.
    pub fn feed(&self, answer: Answer, elapsed: Duration) -> Result<Event, FeedError> {
        let mut event = self.event_of(answer, elapsed)?;
        if event.shared.is_empty() {
            event.shared = self.shared_values_now();
        }
        Ok(event)
    }

    fn event_of(&self, answer: Answer, elapsed: Duration) -> Result<Event, FeedError> {
        let new = |kind| Event::new(self.tally.steps, elapsed, kind);
        match (answer, &self.phase) {
            (Answer::Begin, Phase::Fresh(_)) => self.begun(elapsed),
            (Answer::Hooked(report), phase) => self.hooked(report, phase, elapsed),
            (Answer::Summary(text), Phase::Condensing { .. }) => match self.summary_plan() {
                Some(plan) => Ok(summarized(&plan, text, new)),
                None => Err(self.not_needed("a summary")),
            },
            (Answer::Steer(messages), Phase::Asking { .. }) => {
                let messages = well_formed(messages.into_iter().map(Arc::new).collect());
                Ok(Event { messages, ..new(EventKind::Steered) })
            }
            (Answer::Reply(reply), Phase::Asking { is_hooked: true, last }) => {
                self.replied(reply, last.is_some(), elapsed)
            }
            (Answer::Decisions(decisions), Phase::Working(work)) => self.decided(work, decisions, elapsed),
            (Answer::Edit(edit), _) => self.edited(&edit, elapsed),
            (Answer::Plan, Phase::Working(work)) => self.planned(work, elapsed),
            (Answer::Interrupted, Phase::Working(work)) => self.interrupted(work, elapsed),
            (Answer::Outcomes(outcomes), Phase::Working(work)) => self.answered(work, outcomes, elapsed),
            (answer, Phase::Working(work)) if is_about_items(&answer) => {
                let name = answer.name();
                self.about_items(work, answer).map(new).ok_or_else(|| self.not_needed(name))
            }
            (Answer::Cancelled, phase) => self.broken_off(phase, EventKind::Cancelled, elapsed),
            (Answer::TimedOut, phase) => self.broken_off(phase, EventKind::TimedOut, elapsed),
            (answer, _) => Err(self.not_needed(answer.name())),
        }
    }

    pub(super) fn not_needed(&self, answer: &'static str) -> FeedError {
        FeedError::NotNeeded { answer, need: self.decide().to_string() }
    }

    /// The instructions are rendered on the state with the inputs; the log is repaired if it has to be.
    fn begun(&self, elapsed: Duration) -> Result<Event, FeedError> {
        let Phase::Fresh(fresh) = &self.phase else { return Err(self.not_needed("begin")) };
        let mut state = self.state.clone();
        if !fresh.delta.is_empty() {
            state.apply(&fresh.delta)?;
        }
        let config = self.agent.config();
        let instructions = match fresh.is_recorded {
            true => self.instructions_that_last(&state),
            false => self.instructions_on(|template| template.render(&state))?,
        };
        let mut log = state.messages().clone();
        log.extend(fresh.messages.iter().cloned());
        let repaired = self.repaired(log, &fresh.messages);
        let is_repaired = !repaired.repairs.is_empty();
        let log = repaired.transcript;
        let shown = match config.trim.is_none() || config.summarize.is_some() {
            true => None,
            false => Some(config.trim.view(&log)).filter(|view| !view.is_whole()),
        };
        let kind = EventKind::Began {
            id: self.id.to_string(),
            instructions,
            repairs: repaired.repairs.iter().map(ToString::to_string).collect(),
            shown: shown.map(|view| view.kept().clone()),
            tools: self.agent.tools_digest().map(str::to_owned),
            messages_before: self.transcript().len(),
        };
        let mut event = Event::new(0, elapsed, kind);
        event.shared = self.shared_values();
        event.delta = fresh.delta.clone();
        if is_repaired {
            event.rewrite = Some(log);
        } else {
            event.messages.clone_from(&fresh.messages);
        }
        Ok(event)
    }

    /// The log with what is new, repaired if it has to be. What is known to be well-formed is not looked at.
    fn repaired(&self, log: Transcript, new: &[Arc<Message>]) -> Repaired {
        let is_known = self.known_good > 0 && self.known_good + new.len() == log.len();
        if is_known && new.iter().cloned().collect::<Transcript>().check().is_ok() {
            return Repaired::unchanged(log);
        }
        log.repair()
    }

    fn instructions_on<E>(
        &self,
        render: impl FnOnce(&Template) -> Result<String, E>,
    ) -> Result<Option<String>, E> {
        let rendered = self.agent.config().instructions.as_ref().map(render).transpose()?;
        let asked = self.agent.output_spec().and_then(OutputSpec::instructions);
        Ok(match (rendered, asked) {
            (Some(rendered), Some(asked)) => Some(format!("{rendered}\n\n{asked}")),
            (rendered, asked) => rendered.or(asked),
        })
    }

    /// The next event as a record may have it that outlives the run: the instructions, also those of runs inside, without the values of `temp:` keys. Writes to such keys are left: see
    /// [`retain_writes`](Event::retain_writes).
    pub fn lasting(&self, event: &Event) -> Event {
        let mut lasting = event.clone();
        match &mut lasting.kind {
            EventKind::Began { instructions, .. } => {
                if let Some(stored) = self.lasting_instructions() {
                    *instructions = Some(stored);
                }
            }
            EventKind::Inner { place, event } => {
                if let Some(new) = self.lasting_inside(*place, event) {
                    **event = new;
                }
            }
            _ => {}
        }
        lasting
    }

    /// The instructions of a run that has not begun, without the values of `temp:` keys. None if they have no place
    /// for such.
    pub(crate) fn lasting_instructions(&self) -> Option<String> {
        let Phase::Fresh(fresh) = &self.phase else { return None };
        let template = self.agent.config().instructions.as_ref()?;
        if !template.placeholders().any(|(name, _)| name.starts_with(TEMPORARY)) {
            return None;
        }
        let mut state = self.state.clone();
        state.apply(&fresh.delta).ok()?;
        self.instructions_that_last(&state)
    }

    /// Whether a run that has not begun may have these instructions, whatever the unknown keys hold.
    pub(crate) fn may_have_instructions(&self, text: &str, is_unknown: &dyn Fn(&str) -> bool) -> bool {
        let Phase::Fresh(fresh) = &self.phase else { return false };
        let mut state = self.state.clone();
        if state.apply(&fresh.delta).is_err() {
            return false;
        }
        let rendered = self.instructions_without(&state, is_unknown);
        rendered.is_some_and(|rendered| has_in_order(text, rendered.split(HOLE)))
    }

    /// In place of a value that does not last stands the name of its key, or nothing if it may be absent.
    fn instructions_that_last(&self, state: &State) -> Option<String> {
        self.instructions_without(state, &|_| false)
    }

    /// The same with a hole in place of each value that is unknown.
    fn instructions_without(&self, state: &State, is_unknown: &dyn Fn(&str) -> bool) -> Option<String> {
        let stand_in = |(name, is_optional): (&str, bool)| {
            let words = match is_unknown(name) {
                true => HOLE.to_owned(),
                false if name.starts_with(TEMPORARY) && !is_optional => format!("{{{name}}}"),
                false => return None,
            };
            Some((name.to_owned(), Value::String(words)))
        };
        let rendered = self.instructions_on(|template| {
            let named: BTreeMap<String, Value> = template.placeholders().filter_map(stand_in).collect();
            let lookup = |key: &str| match named.get(key) {
                Some(words) => Some(ValueRef::from(words)),
                None if key.starts_with(TEMPORARY) => None,
                None => state.get(key),
            };
            template.render_with(lookup, || state.iter().map(|(key, _)| key).collect())
        });
        rendered.ok().flatten()
    }

    fn hooked(&self, report: HookReport, phase: &Phase, elapsed: Duration) -> Result<Event, FeedError> {
        let Need::Hook(point) = self.decide() else { return Err(self.not_needed("the report of hooks")) };
        if point != report.point {
            return Err(self.not_needed("the report of hooks of another point"));
        }
        if point == HookPoint::AfterTool {
            return Err(self.not_needed("the report of hooks after a tool"));
        }
        let rewrite = report.rewrite.map(|transcript| transcript.repair().transcript);
        let kind = EventKind::Hooked {
            point,
            verdict: report.verdict.clone(),
            answers: report.answers.clone(),
            writes: report.writes,
        };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        event.delta = report.delta;
        let Phase::Working(work) = phase else {
            event.messages = well_formed(report.messages);
            event.rewrite = rewrite;
            return Ok(event);
        };
        if rewrite.is_some() || !report.messages.is_empty() || !event.delta.is_empty() {
            return Err(FeedError::StepIsOpen);
        }
        self.close_if_done(&mut event, work, |place, _| {
            Some(hooked_outcome(place, &self.shown(place), &report.verdict, &report.answers)?.into())
        })?;
        Ok(event)
    }

    /// The reply with unique call ids, and the fate of its calls.
    fn replied(&self, reply: Reply, is_last: bool, elapsed: Duration) -> Result<Event, FeedError> {
        if reply.message.role() != Role::Assistant {
            return Err(FeedError::NoReply { role: reply.message.role().as_str() });
        }
        let config = self.agent.config();
        let message = match (config.recover_leaked_calls, self.tools()) {
            (true, Some(tools)) if !is_last => recovered(&reply.message, tools).unwrap_or(reply.message),
            _ => reply.message,
        };
        let message =
            Arc::new(with_unique_call_ids(message, self.call_ids.len(), |id| self.call_ids.contains(id)));
        let cut = Exit::of_finish(&reply.finish_reason);
        let (fates, mut output) = self.fates(&message, cut.as_ref(), is_last);
        if !message.has_tool_calls() {
            output = self.output_of_text(&message.text(), is_last, cut.is_some());
        }
        let complaint = match (&output, self.agent.output_spec()) {
            (Some(OutputFate::Invalid { faults, again: true }), Some(spec)) if !message.has_tool_calls() => {
                Some(Message::user(spec.complaint(faults)).into())
            }
            _ => None,
        };
        let kind = EventKind::Replied {
            finish_reason: reply.finish_reason,
            usage: reply.usage,
            id: reply.id,
            model: reply.model,
            fates,
            tools: self.digest_of_offer(),
            output,
        };
        let mut event = Event::new(self.tally.steps + 1, elapsed, kind);
        event.messages.push(Arc::clone(&message));
        let answered = event.outcomes();
        if message.has_tool_calls() && answered.len() == message.tool_calls().count() {
            let log = self.transcript().clone().with(Arc::clone(&message));
            let outcomes = answered.into_iter().filter_map(|answered| answered.outcome.into_call());
            self.close_with(&mut event, &log, outcomes.collect());
            event.lean_fates();
        }
        event.messages.extend(complaint);
        Ok(event)
    }

    /// A digest of the tools that were asked for at this step; none of those that never change.
    fn digest_of_offer(&self) -> Option<String> {
        let offer = self.offer.as_ref().filter(|_| self.agent.static_offer().is_none());
        offer.map(crate::agent::digest_of_offer)
    }

    /// The fates of the calls of a reply that do not simply run, and of an output among them.
    fn fates(
        &self,
        reply: &Message,
        cut: Option<&Exit>,
        is_last: bool,
    ) -> (Vec<(usize, Fate)>, Option<OutputFate>) {
        let limits = self.limits();
        let ran = self.spent().calls;
        let left = limits.tool_calls.map_or(u64::MAX, |limit| limit.saturating_sub(ran));
        let (mut fates, mut output, mut running) = (Vec::new(), None, 0_u64);
        let mut asking = Asking::default();
        for (place, call) in reply.tool_calls().enumerate() {
            let why = if let Some(exit) = cut {
                Some(format!("{exit}, so the call may be cut as well"))
            } else if is_last {
                Some("no tool is available any more; answer with what you have".to_owned())
            } else if place >= limits.calls_per_reply {
                Some(format!(
                    "a reply may make {} calls, and this is number {}",
                    limits.calls_per_reply,
                    place + 1
                ))
            } else if running >= left {
                Some(format!("the run may make {} calls, and has", limits.tool_calls.unwrap_or_default()))
            } else {
                None
            };
            if let Some(why) = why {
                fates.push((place, Fate::Answer(not_run(call, &why).into())));
            } else if let Some((outcome, fate)) = self.output_of_call(call) {
                fates.push((place, Fate::Answer(outcome.into())));
                output = output.filter(|known| matches!(known, OutputFate::Valid(_))).or(Some(fate));
            } else {
                running += 1;
                let fate = self.fate(&mut asking, place, call, || self.state.clone());
                fates.extend(fate.map(|fate| (place, fate)));
            }
        }
        (fates, output)
    }

    /// If the call gives the output: its outcome, and the fate of the output.
    fn output_of_call(&self, call: &ToolCall) -> Option<(CallOutcome, OutputFate)> {
        let spec = self.agent.output_spec()?;
        if call.name != OUTPUT_TOOL || spec.mode() != OutputMode::Tool {
            return None;
        }
        let checked = match call.arguments.as_object() {
            Some(arguments) => spec.of_arguments(arguments),
            None => Err(call.arguments.malformed().map_or_else(String::new, |(_, error)| error.to_owned())),
        };
        Some(match checked {
            Ok(value) => {
                let result = stepfold_state_core::chat::ToolResult::value(&*call.id, &*call.name, "accepted");
                (CallOutcome::new(CallStatus::Succeeded, result), OutputFate::Valid(value))
            }
            Err(faults) => {
                let status = CallStatus::Failed(CallFailure::InvalidArguments);
                let outcome = CallOutcome::without_result(call, status, spec.complaint(&faults));
                let again = self.may_repair_output();
                (outcome, OutputFate::Invalid { faults, again })
            }
        })
    }

    fn output_of_text(&self, text: &str, is_last: bool, is_cut: bool) -> Option<OutputFate> {
        let spec = self.agent.output_spec()?;
        if text.trim().is_empty() || is_cut {
            return None;
        }
        Some(match spec.of_text(text) {
            Ok(value) => OutputFate::Valid(value),
            Err(faults) => OutputFate::Invalid { faults, again: !is_last && self.may_repair_output() },
        })
    }

    fn may_repair_output(&self) -> bool {
        let spec = self.agent.output_spec();
        let steps_left = self.tally.steps + 1 < self.limits().steps;
        steps_left && spec.is_some_and(|spec| self.tally.output_faults < spec.output.repairs)
    }

    /// The next superstep.
    fn planned(&self, work: &Work, elapsed: Duration) -> Result<Event, FeedError> {
        let (Some(planner), Some(walk), 0) = (self.planner(), work.walk(), work.items.open()) else {
            return Err(self.not_needed("a superstep"));
        };
        let mut next = planner.next(walk.position(), &work.ended(), &self.state)?;
        if next.exit.is_none()
            && let Some(limit) = self.limit()
        {
            next = Next { routes: next.routes, ..Next::exit(limit) };
        }
        let step = self.tally.steps + u64::from(next.exit.is_none());
        let delta = planner.writes(walk.position(), &next, &self.state).map_err(FeedError::Plan)?;
        let Next { branches, deferred, arrived, routes, exit } = next;
        let kind = EventKind::Planned { branches, deferred, arrived, routes, exit };
        Ok(Event { delta, ..Event::new(step, elapsed, kind) })
    }

    /// What an answer says that only changes how far items are.
    fn about_items(&self, work: &Work, answer: Answer) -> Option<EventKind> {
        let is_open = |place: usize| work.items.get(place).is_some_and(|item| !item.is_done());
        match answer {
            Answer::Ask(fates) => work.may_ask(&fates).then_some(EventKind::Asked { fates }),
            Answer::Started(places) => self.may_start(work, &places).then_some(EventKind::Started { places }),
            Answer::Inner { place, event } => {
                let task = self.task(place)?;
                let is_there = task.planned().is_none() || self.inside(task).is_some();
                let is_ready =
                    work.items.get(place).is_some_and(|item| matches!(item.state, ItemState::Ready));
                (is_there && is_ready).then_some(EventKind::Inner { place, event })
            }
            Answer::Asks { place, requests } => is_open(place).then_some(EventKind::Asks { place, requests }),
            _ => None,
        }
    }

    /// The event of answered items, with the end of the step if they are the last ones. An outcome that a hook has still
    /// to see does not end the step.
    fn answered(
        &self,
        work: &Work,
        mut outcomes: Vec<ItemOutcome>,
        elapsed: Duration,
    ) -> Result<Event, FeedError> {
        outcomes.sort_by_key(|outcome| outcome.place);
        self.check_answered(work, &outcomes)?;
        let mut event = Event::new(self.tally.steps, elapsed, EventKind::Answered(Vec::new()));
        let mut merged = None;
        if outcomes.iter().all(|outcome| outcome.pending_hook.is_none())
            && work.items.open() == outcomes.len()
        {
            let mut answers = outcomes.iter().peekable();
            merged = self.close_if_done(&mut event, work, |place, _| {
                Some(answers.next_if(|answer| answer.place == place)?.outcome.clone())
            })?;
        }
        let merged = merged.unwrap_or_default();
        let items = outcomes.into_iter().map(|outcome| event.recorded(outcome, &merged)).collect();
        event.kind = EventKind::Answered(items);
        Ok(event)
    }

    /// Each is the outcome of an item that has none, and that does not wait for a decision.
    fn check_answered(&self, work: &Work, outcomes: &[ItemOutcome]) -> Result<(), FeedError> {
        let mut last = None;
        for ItemOutcome { place, outcome, .. } in outcomes {
            let is_open = work.items.get(*place).is_some_and(|item| !item.is_done() && !item.waits());
            let is_call = outcome.call().is_some();
            if !is_open || is_call != work.calls().is_some() || last.replace(*place) == Some(*place) {
                return Err(FeedError::NoSuchItem { place: *place });
            }
        }
        match outcomes {
            [] => Err(self.not_needed("no outcome")),
            _ => Ok(()),
        }
    }

    /// Whether these items may start. Others may be under way: a call starts when those that it waits for
    /// have their outcome.
    fn may_start(&self, work: &Work, places: &[usize]) -> bool {
        let is_ready = |place: &usize| work.items.get(*place).is_some_and(Item::may_run);
        let are_hooked = match work.calls() {
            Some(calls) => {
                !work.items.are_asked_about() && (calls.is_hooked || !self.has_hook(HookPoint::BeforeTool))
            }
            None => true,
        };
        are_hooked && places.iter().all(is_ready)
    }

    fn interrupted(&self, work: &Work, elapsed: Duration) -> Result<Event, FeedError> {
        let places = work.started();
        if places.is_empty() {
            return Err(self.not_needed("interrupted calls"));
        }
        let asks = self.agent.config().ask_when_uncertain;
        let inputs_from_state = if asks { self.inputs_at(&places) } else { Vec::new() };
        let kind = EventKind::Interrupted { places: places.clone(), asks, inputs_from_state };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        if !asks {
            self.close_if_done(&mut event, work, |place, item| {
                let is_one = places.contains(&place);
                is_one.then(|| WorkOutcome::unknown(item.planned.as_ref(), &self.shown(place)))
            })?;
        }
        Ok(event)
    }

    /// The run ends here: what is open is answered. What the others did is kept.
    fn broken_off(&self, phase: &Phase, kind: EventKind, elapsed: Duration) -> Result<Event, FeedError> {
        if matches!(phase, Phase::Fresh(_) | Phase::Done(_) | Phase::Closing(_)) {
            return Err(self.not_needed("an early end"));
        }
        let is_cancelled = kind == EventKind::Cancelled;
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        if let Phase::Working(work) = phase
            && work.items.open() > 0
        {
            self.close_if_done(&mut event, work, |place, item| {
                Some(match item.planned {
                    None => broken_off_call(item, &self.shown(place), is_cancelled),
                    Some(_) => self.broken_off_branch(place, item, is_cancelled),
                })
            })?;
        }
        Ok(event)
    }

    fn broken_off_branch(&self, place: usize, item: &Item, is_cancelled: bool) -> WorkOutcome {
        if item.is_started() {
            return WorkOutcome::unknown(item.planned.as_ref(), &self.shown(place));
        }
        let outcome = NodeOutcome::failed(NodeStatus::Cancelled, why_broken_off(is_cancelled), 1);
        let Some((child, planned)) = item.child.as_ref().zip(item.planned.as_ref()) else {
            return outcome.into();
        };
        let Some((run, inside)) = child.run().zip(self.inside_branch(&planned.node)) else {
            return outcome.into();
        };
        // What an agent has said and written until now is kept, with its open calls answered.
        let (mut messages, mut delta) = (child.said.clone(), child.writes.clone());
        if let Ok(last) = run.feed(Answer::Cancelled, run.elapsed()) {
            let schema = self.state.schema();
            delta.extend(last.delta.iter().filter(|write| inside.shares_write(schema, write)).cloned());
            messages.extend(last.messages);
        }
        if !inside.shares_messages(planned) {
            messages.clear();
        }
        NodeOutcome { delta, messages, ..outcome }.into()
    }

    /// Puts the end of the step into the event, if every item has its outcome: one that it has already, or the one that
    /// `new` gives it. What the end appends differs: results as messages, or what the plan says that a branch writes.
    /// Gives the writes of each item among those of the event then: the index of the first, and their number.
    pub(super) fn close_if_done(
        &self,
        event: &mut Event,
        work: &Work,
        mut new: impl FnMut(usize, &Item) -> Option<WorkOutcome>,
    ) -> Result<Option<Merged>, FeedError> {
        let mut outcome =
            |place, item: &Item| item.outcome().map(|done| (**done).clone()).or_else(|| new(place, item));
        let items = work.items.iter().enumerate();
        if work.walk().is_some() {
            let outcomes: Option<Vec<_>> = items.map(|(place, item)| outcome(place, item)).collect();
            return outcomes.map(|outcomes| self.close_superstep(event, work, &outcomes)).transpose();
        }
        let calls = items.zip(self.calls());
        let completed = |((place, item), call): ((usize, &Item), &ToolCall)| {
            Some(item.completed(call, outcome(place, item)?.into_call()?))
        };
        let outcomes: Option<Vec<_>> = calls.map(completed).collect();
        Ok(outcomes.map(|outcomes| self.close_with(event, self.transcript(), outcomes)))
    }

    /// The end of a superstep: the writes of all branches as one delta, in their order.
    fn close_superstep(
        &self,
        event: &mut Event,
        work: &Work,
        outcomes: &[WorkOutcome],
    ) -> Result<Merged, FeedError> {
        let Some(planner) = self.planner() else { return Ok(Merged::new()) };
        let mut ranges = Merged::with_capacity(outcomes.len());
        let mut state = self.state.clone();
        let mut end = StepEnd::default();
        let mut ids = TakenIds::new(&self.call_ids);
        let branches: Vec<&Planned> = work.items.iter().filter_map(|item| item.planned.as_ref()).collect();
        let outcomes = outcomes.iter().filter_map(|outcome| outcome.node());
        for (place, (planned, outcome)) in branches.iter().zip(outcomes).enumerate() {
            let first = event.delta.len();
            match planner.merged(&self.state, &mut state, planned, outcome) {
                Ok(delta) => {
                    event.delta.extend(delta);
                    // A function may say what it likes.
                    event.messages.extend(ids.unique(&well_formed(outcome.messages.clone())));
                }
                Err(error) => {
                    let error = format!("what it wrote cannot be merged: {}", ErrorChain(&*error));
                    let failed = NodeOutcome::failed(NodeStatus::Unmerged, &error, outcome.tries);
                    let merged = planner.merged(&self.state, &mut state, planned, &failed);
                    event.delta.extend(merged.map_err(FeedError::Plan)?);
                    end.unmerged.push(place);
                    end.merge_errors.push(error);
                }
            }
            ranges.push((first, event.delta.len() - first));
        }
        let closed = planner.closed(&state, &branches);
        event.delta.extend(closed.map_err(FeedError::Plan)?);
        event.step_end = Some(end);
        Ok(ranges)
    }

    /// `log` ends with the reply.
    fn close_with(&self, event: &mut Event, log: &Transcript, outcomes: Vec<CallOutcome>) -> Merged {
        let guard = self.agent.config().repeat_guard;
        let repeats = Repeats { before: self.tally.repeats, warn_at: guard.map(|guard| guard.warn) };
        let mut closing = close(&self.state, log, outcomes, repeats);
        match event.messages.is_empty() {
            true => event.messages = closing.messages,
            false => event.messages.append(&mut closing.messages),
        }
        event.delta.extend(closing.delta);
        event.step_end = Some(closing.step_end);
        closing.merged
    }
}

/// The writes of each item among those of an event: the index of the first, and their number.
pub(super) type Merged = Vec<(usize, usize)>;

/// Whether a text is these parts with anything between them.
fn has_in_order<'a>(text: &str, parts: impl Iterator<Item = &'a str>) -> bool {
    let parts: Vec<&str> = parts.collect();
    let [first, between @ .., last] = &*parts else { return parts.first().is_some_and(|part| *part == text) };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in between {
        match rest.find(part) {
            Some(place) => rest = &rest[place + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Messages that are appended between steps, repaired if they have to be: the log before them is well-formed,
/// and so it is with them.
pub(super) fn well_formed(messages: Vec<Arc<Message>>) -> Vec<Arc<Message>> {
    if messages.is_empty() {
        return messages;
    }
    let mut appended = Transcript::new();
    appended.extend(messages);
    appended.repair().transcript.iter().cloned().collect()
}

fn summarized(
    plan: &SummaryPlan,
    text: Result<(String, Usage), String>,
    new: impl Fn(EventKind) -> Event,
) -> Event {
    let (text, usage) = match text {
        Ok((text, usage)) => (Ok(text), usage),
        Err(error) => (Err(error), Usage::default()),
    };
    let finished = text.and_then(|text| plan.finish(text).map_err(|error| error.to_string()));
    let (summary, error): (Option<Summary>, Option<String>) = match finished {
        Ok(summary) => (Some(summary), None),
        Err(error) => (None, Some(error)),
    };
    new(EventKind::Summarized { summary, error, usage })
}

/// The outcome that hooks before tools give a call at once: if it does not run.
pub(super) fn hooked_outcome(
    place: usize,
    call: &ToolCall,
    verdict: &HookVerdict,
    answers: &[(usize, String)],
) -> Option<CallOutcome> {
    if let Some((_, text)) = answers.iter().find(|(answered, _)| *answered == place) {
        return Some(CallOutcome::without_result(call, CallStatus::Failed(CallFailure::NotRun), text));
    }
    match verdict {
        HookVerdict::Stop(reason) => Some(not_run(call, &format!("a hook ended the run: {reason}"))),
        _ => None,
    }
}

/// An outcome that the model must not be shown, because a hook that has to see it first has not. What the call wrote
/// stays: it has happened.
fn withheld(call: &ToolCall, outcome: &CallOutcome) -> CallOutcome {
    let text = format!(
        "tool '{}' ran, and its result is withheld: the run ended before a hook had seen it",
        call.name
    );
    let mut withheld = outcome.clone();
    withheld.result = ToolResult::error(&*call.id, &*call.name, text);
    withheld
}

const fn why_broken_off(is_cancelled: bool) -> &'static str {
    if is_cancelled { "the run was cancelled" } else { "the time of the run was up" }
}

pub(super) fn broken_off_call(item: &Item, call: &ToolCall, is_cancelled: bool) -> WorkOutcome {
    let why = why_broken_off(is_cancelled);
    let outcome = match &item.state {
        ItemState::Started => return WorkOutcome::unknown(None, call),
        ItemState::HookPending(pending) => withheld(call, &pending.outcome),
        _ if item.child.is_some() || !item.asked.is_empty() => {
            let text = format!("tool '{}' was stopped while it waited: {why}", call.name);
            CallOutcome::without_result(call, CallStatus::Cancelled, text)
        }
        _ => {
            let text = format!("tool '{}' not started: {why}", call.name);
            CallOutcome::without_result(call, CallStatus::NotStarted, text)
        }
    };
    outcome.into()
}

/// Whether an answer only changes how far items are.
const fn is_about_items(answer: &Answer) -> bool {
    matches!(answer, Answer::Ask(_) | Answer::Started(_) | Answer::Inner { .. } | Answer::Asks { .. })
}
