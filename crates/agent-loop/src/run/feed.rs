//! Computes the event of an answer. Nothing changes here: the event is to be committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::ErrorChain;
use stepfold_state_core::chat::{
    Message, RepairedTranscript, Reply, Role, ToolCall, Transcript, Usage, with_unique_call_ids,
};
use stepfold_state_core::state::{Delta, Schema, State, Template, ValueRef};
use stepfold_tools::{CallFailure, CallOutcome, CallStatus};

use super::approval_rules::ReplyQuestions;
use super::event::{CallDisposition, Event, EventKind, OutputDisposition, StepEnd};
use super::machine::{Run, RunNeed, RunPhase};
use super::rescue::RefusedSize;
use super::step::{ItemCondition, ItemOutcome, OpenStep, StepItem, WorkOutcome};
use super::step_end::not_run;
use super::taken_ids::TakenIds;
use crate::agent::{HookPoint, HookVerdict, OUTPUT_TOOL, OutputMode, OutputSpec, recovered};
use crate::approval::ApprovalRequest;
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::error::{FeedError, StartError};
use crate::exit::Exit;
use crate::planned::{NextSuperstep, NodeOutcome, NodeStatus, PlannedBranch};
use crate::state_input::TEMPORARY;

/// A placeholder for an unknown value. No text that people write contains it.
const HOLE: &str = "\u{0}unknown\u{0}";

/// An answer of a host to a run that [needs](RunNeed) something.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunAnswer {
    /// Begin.
    Begin,
    /// The combined actions of the hooks of a point.
    Hooked(HookReport),
    /// The text of a summary, or why there is none, and what it cost.
    Summary(Result<(String, Usage), (String, Usage)>),
    /// The provider refused the request as too long: it takes so many tokens, and the request has so many, if it said so.
    /// Taken where [`Run::rescue`] gives it.
    TooLong {
        /// The number of tokens that fit.
        limit: Option<u64>,
        /// The number of tokens of the request.
        used: Option<u64>,
        /// The tokens of the tools in it, as [`Run::rescue`] counts them.
        tools: usize,
    },
    /// The agent is another one from here on. Taken where the run [needs](RunNeed::Upgrade) it.
    Upgrade,
    /// Messages of the user that arrived during the run. Taken whenever the model is to be asked.
    Steer(Vec<Message>),
    /// The model's reply.
    Reply(Reply),
    /// Decisions about pending requests. They may be some of those needed.
    Decisions(Decisions),
    /// Values or results are changed from outside. Taken after the beginning and before the end, whatever the run needs.
    Edit(Edit),
    /// Calls that [need an approval](Run::calls_to_ask) now.
    Ask(Vec<(usize, CallDisposition)>),
    /// Calls or branches that must not run twice are about to start; by their places.
    Started(Vec<usize>),
    /// A run inside of a call or a branch has made a commit of its own.
    Inner {
        /// The place of the call or branch.
        place: usize,
        /// The event that it commits.
        event: Box<Event>,
    },
    /// A call or a branch requests a decision.
    Asks {
        /// Its place.
        place: usize,
        /// The requests, under ids within it.
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

impl RunAnswer {
    /// The outcome of a call or a branch, which all hooks have seen.
    pub fn outcome(place: usize, outcome: impl Into<WorkOutcome>) -> Self {
        RunAnswer::Outcomes(vec![ItemOutcome::new(place, outcome)])
    }
}

/// The combined actions of the hooks of one point.
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
    /// A report of hooks that returned no action.
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

/// A repaired conversation, and the new messages after it: they are found, and shown, as those of their event. If the repair
/// has changed them too, they are within the conversation.
fn split_from_new(log: Transcript, new: &[Arc<Message>]) -> (Option<Transcript>, Vec<Arc<Message>>) {
    let before = log.len().saturating_sub(new.len());
    if log.iter_from(before).eq(new) {
        (Some(log.iter().take(before).cloned().collect()), new.to_vec())
    } else {
        (Some(log), Vec::new())
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
    pub fn feed(&self, answer: RunAnswer, elapsed: Duration) -> Result<Event, FeedError> {
        // NOTE: An answer becomes an event first, and only its commit changes the run: a store that fails leaves the
        // run as it was, and a replay is nothing but commits. See docs/decisions/loop.md.
        self.with_step_end(self.event_of(answer, elapsed)?)
    }

    /// The event of an interruption as another host has recorded it, which knew the tools of that moment: of all items that had
    /// started, and of those at these places that may have begun.
    pub(crate) fn feed_interrupted(&self, recorded: &[usize], elapsed: Duration) -> Result<Event, FeedError> {
        let may_have_begun = |place: &usize| self.item(*place).is_some_and(StepItem::may_have_begun);
        let kind = self.interrupted(recorded.iter().copied().filter(may_have_begun));
        self.with_step_end(Event::new(self.tally.steps, elapsed, kind))
    }

    /// The event, with the end of the step if it brings it about.
    fn with_step_end(&self, mut event: Event) -> Result<Event, FeedError> {
        self.check_place(&event)?;
        if let Some(step) = self.open_step() {
            let given = self.implied_outcomes(&event.kind, &self.item_decisions(&event.kind));
            if !given.is_empty() {
                self.close_if_done(&mut event, step, &given)?;
            }
        }
        if event.shared.is_empty() {
            event.shared = self.shared_values_now();
        }
        Ok(event)
    }

    /// The event, without the end of a step that it may bring about. Whether it may happen now is checked afterwards.
    fn event_of(&self, answer: RunAnswer, elapsed: Duration) -> Result<Event, FeedError> {
        let kind = match answer {
            RunAnswer::Begin => return self.begun(elapsed),
            RunAnswer::Hooked(report) => return self.hooked(report, elapsed),
            RunAnswer::Reply(reply) => return self.replied(reply, elapsed),
            RunAnswer::Edit(edit) => return self.edited(&edit, elapsed),
            RunAnswer::Plan => return self.planned(elapsed),
            RunAnswer::Outcomes(outcomes) => return self.answered(outcomes, elapsed),
            RunAnswer::Steer(messages) => {
                let messages = well_formed(messages.into_iter().map(Arc::new).collect());
                return Ok(Event { messages, ..Event::new(self.tally.steps, elapsed, EventKind::Steered) });
            }
            RunAnswer::Summary(text) => self.summarized(text)?,
            RunAnswer::TooLong { limit, used, tools } => {
                let size = RefusedSize { limit, used, tools };
                self.narrowed(size).ok_or_else(|| self.not_needed("narrowed"))?
            }
            RunAnswer::Upgrade => self.upgraded()?,
            RunAnswer::Decisions(decisions) => self.decisions(decisions)?,
            RunAnswer::Interrupted => self.interrupted(self.may_repeat()),
            RunAnswer::Ask(fates) => self.asked(fates),
            // NOTE: A hook before tools can refuse a call, so none may be marked as started before all hooks have seen
            // it.
            RunAnswer::Started(places) if self.are_hooked() => EventKind::Started { places },
            RunAnswer::Started(_) => return Err(self.not_needed("started")),
            RunAnswer::Inner { place, event } => EventKind::Inner { place, event },
            RunAnswer::Asks { place, requests } => EventKind::Asks { place, requests },
            RunAnswer::Cancelled => EventKind::Cancelled,
            RunAnswer::TimedOut => EventKind::TimedOut,
        };
        Ok(Event::new(self.tally.steps, elapsed, kind))
    }

    pub(super) fn not_needed(&self, event: &'static str) -> FeedError {
        FeedError::NotNeeded { event, need: self.decide().to_string() }
    }

    /// The event of the beginning. The instructions are rendered on the state with the inputs; the log is repaired if
    /// necessary.
    fn begun(&self, elapsed: Duration) -> Result<Event, FeedError> {
        let RunPhase::Fresh(fresh) = &self.phase else { return Err(self.not_needed("began")) };
        let mut state = self.state.clone();
        if !fresh.delta.is_empty() {
            state.apply(&fresh.delta)?;
        }
        let config = self.agent.config();
        // NOTE: Rendered once and stored with the run, not in the log: they belong to the agent, and another one may
        // continue with the conversation.
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
            cleared: shown.as_ref().map(|view| view.cleared().clone()).unwrap_or_default(),
            shown: shown.map(|view| view.kept().clone()),
            tools: self.agent.tools_digest().map(str::to_owned),
            messages_before: self.transcript().len(),
        };
        let mut event = Event::new(0, elapsed, kind);
        event.shared = self.shared_values();
        event.delta = fresh.delta.clone();
        if is_repaired {
            (event.rewrite, event.messages) = split_from_new(log, &fresh.messages);
        } else {
            event.messages.clone_from(&fresh.messages);
        }
        Ok(event)
    }

    /// The log with the new messages, repaired if necessary. The part that is known to be well-formed is not checked
    /// again.
    fn repaired(&self, log: Transcript, new: &[Arc<Message>]) -> RepairedTranscript {
        // NOTE: To look at the new messages only keeps the cost of a turn independent of the length of the
        // conversation.
        let is_known = self.cache.messages > 0 && self.cache.messages + new.len() == log.len();
        if is_known && new.iter().cloned().collect::<Transcript>().check().is_ok() {
            return RepairedTranscript::unchanged(log);
        }
        log.repair()
    }

    pub(super) fn instructions_on<E>(
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

    /// The next event as a record may have it that outlives the run: the instructions, also those of runs inside, without
    /// the values of `temp:` keys. Writes to such keys are left: see [`retain_writes`](Event::retain_writes).
    pub fn lasting(&self, event: &Event) -> Event {
        let mut lasting = event.clone();
        match &mut lasting.kind {
            EventKind::Began { instructions, .. } => {
                if let Some(stored) = self.lasting_instructions() {
                    *instructions = Some(stored);
                }
            }
            EventKind::Upgraded { instructions: Some(instructions), .. } => {
                *instructions = self.instructions_that_last(&self.state).unwrap_or_default();
            }
            EventKind::Inner { place, event } => {
                if let Some(new) = self.lasting_inner_event(*place, event) {
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
        let RunPhase::Fresh(fresh) = &self.phase else { return None };
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
        let RunPhase::Fresh(fresh) = &self.phase else { return false };
        let mut state = self.state.clone();
        if state.apply(&fresh.delta).is_err() {
            return false;
        }
        let rendered = self.instructions_without(&state, is_unknown);
        rendered.is_some_and(|rendered| has_in_order(text, rendered.split(HOLE)))
    }

    /// The instructions with the name of its key in place of each value that does not last, or with nothing if it may
    /// be absent.
    fn instructions_that_last(&self, state: &State) -> Option<String> {
        self.instructions_without(state, &|_| false)
    }

    /// The same with a placeholder for each value that is unknown.
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

    fn hooked(&self, report: HookReport, elapsed: Duration) -> Result<Event, FeedError> {
        let HookReport { point, delta, rewrite, messages, verdict, answers, writes } = report;
        if !matches!(self.decide(), RunNeed::Hook(needed) if needed == point) {
            return Err(self.not_needed("hooked"));
        }
        let is_open = self.open_step().is_some();
        // NOTE: The results of the calls come next in the conversation; a message between a call and its result is
        // malformed.
        if is_open && (rewrite.is_some() || !messages.is_empty() || !delta.is_empty()) {
            return Err(FeedError::StepIsOpen);
        }
        let kind = EventKind::Hooked { point, verdict, answers, writes };
        // NOTE: A hook may drop a call and keep its result, and servers refuse such a conversation at every later
        // request.
        let rewrite = rewrite.map(|transcript| transcript.repair().transcript);
        let messages = well_formed(messages);
        Ok(Event { rewrite, messages, delta, ..Event::new(self.tally.steps, elapsed, kind) })
    }

    fn summarized(&self, text: Result<(String, Usage), (String, Usage)>) -> Result<EventKind, FeedError> {
        let plan = self.summary_plan().ok_or_else(|| self.not_needed("summarized"))?;
        let (text, usage) = match text {
            Ok((text, usage)) => (Ok(text), usage),
            Err((error, usage)) => (Err(error), usage),
        };
        let finished = text.and_then(|text| plan.finish(text).map_err(|error| error.to_string()));
        let (summary, error) = match finished {
            Ok(summary) => (Some(summary), None),
            Err(error) => (None, Some(error)),
        };
        Ok(EventKind::Summarized { summary, error, usage })
    }

    /// The reply with unique call ids, and the fate of its calls.
    fn replied(&self, reply: Reply, elapsed: Duration) -> Result<Event, FeedError> {
        let is_last = self.is_last_answer();
        if reply.message.role() != Role::Assistant {
            return Err(FeedError::NoReply { role: reply.message.role().as_str() });
        }
        let config = self.agent.config();
        let message = match (config.recover_leaked_calls, self.tools()) {
            (true, Some(tools)) if !is_last => recovered(&reply.message, tools).unwrap_or(reply.message),
            _ => reply.message,
        };
        let message = Arc::new(with_unique_call_ids(message, self.cache.call_ids.len(), |id| {
            self.cache.call_ids.contains(id)
        }));
        let cut = Exit::of_finish(&reply.finish_reason);
        let (fates, mut output) = self.fates(&message, cut.as_ref(), is_last);
        if !message.has_tool_calls() {
            output = self.output_of_text(&message.text(), is_last, cut.is_some());
        }
        let fault_message = match (&output, self.agent.output_spec()) {
            (Some(OutputDisposition::Invalid { faults, again: true }), Some(spec))
                if !message.has_tool_calls() =>
            {
                Some(Message::user(spec.fault_message(faults)).into())
            }
            _ => None,
        };
        let is_empty = cut.is_none() && !is_last && output.is_none() && self.is_empty(&message);
        // NOTE: The mark is part of the event: the limit may be another one when the record is read, and older records
        // continue after empty replies.
        let gives_up = is_empty && self.tally.empty_replies >= self.limits().empty_replies;
        let kind = EventKind::Replied {
            finish_reason: reply.finish_reason,
            usage: reply.usage,
            id: reply.id,
            model: reply.model,
            fates,
            tools: self.digest_of_offer(),
            listed: Vec::new(),
            output,
            gives_up,
        };
        let mut event = Event::new(self.tally.steps + 1, elapsed, kind);
        event.messages.push(Arc::clone(&message));
        self.note_listed_tools(&mut event);
        let answered = event.outcomes();
        if message.has_tool_calls() && answered.len() == message.tool_calls().count() {
            let log = self.transcript().clone().with(Arc::clone(&message));
            let outcomes = answered.into_iter().filter_map(|answered| answered.outcome.into_call());
            self.close_calls(&mut event, &log, outcomes.collect());
            event.trim_fates();
        }
        event.messages.extend(fault_message);
        Ok(event)
    }

    /// Whether a reply has neither text nor calls, so that the model is asked again. Where an output is due, text
    /// counts only as an output.
    fn is_empty(&self, reply: &Message) -> bool {
        let wants_output = self.agent.output_spec().is_some();
        let says_nothing = reply.text().is_empty() && !self.agent.has_no_tools();
        !reply.has_tool_calls() && (wants_output || says_nothing)
    }

    /// A digest of the tools that were asked for at this step; none of those that never change.
    fn digest_of_offer(&self) -> Option<String> {
        let offer = self.offer.as_ref().filter(|_| self.agent.static_offer().is_none());
        offer.map(crate::agent::digest_of_offer)
    }

    /// Records the tools of the calls that can run, where tools are listed at each step.
    fn note_listed_tools(&self, event: &mut Event) {
        if self.agent.static_offer().is_some() {
            return;
        }
        let answered: Vec<usize> = event.outcomes().iter().map(|outcome| outcome.place).collect();
        let calls = event.messages.first().into_iter().flat_map(|reply| reply.tool_calls()).enumerate();
        let open = calls.filter(|(place, _)| !answered.contains(place));
        let listed = |(place, call): (usize, &ToolCall)| {
            let listed = self.listed_tool(place, &call.name)?;
            let arguments = call.arguments.as_object()?;
            self.tool(&call.name)?.check_arguments(arguments).is_ok().then_some(listed)
        };
        let tools = open.filter_map(listed).collect();
        if let EventKind::Replied { listed, .. } = &mut event.kind {
            *listed = tools;
        }
    }

    /// The fates of the calls of a reply that do not simply run, and of an output among them.
    fn fates(
        &self,
        reply: &Message,
        cut: Option<&Exit>,
        is_last: bool,
    ) -> (Vec<(usize, CallDisposition)>, Option<OutputDisposition>) {
        let limits = self.limits();
        let ran = self.spent().calls;
        let left = limits.tool_calls.map_or(u64::MAX, |limit| limit.saturating_sub(ran));
        let (mut fates, mut output, mut running) = (Vec::new(), None, 0_u64);
        let mut asking = ReplyQuestions::default();
        for (place, call) in reply.tool_calls().enumerate() {
            // NOTE: The arguments of a call in a truncated reply may be truncated as well, and truncated arguments can
            // be valid JSON: none of these calls runs.
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
                fates.push((place, CallDisposition::Answer(not_run(call, &why).into())));
            } else if let Some((outcome, fate)) = self.output_of_call(call) {
                fates.push((place, CallDisposition::Answer(outcome.into())));
                output = output.filter(|known| matches!(known, OutputDisposition::Valid(_))).or(Some(fate));
            } else {
                running += 1;
                let fate = self.fate(&mut asking, place, call, || self.state.clone());
                fates.extend(fate.map(|fate| (place, fate)));
            }
        }
        (fates, output)
    }

    /// If the call gives the output: its outcome, and the fate of the output.
    fn output_of_call(&self, call: &ToolCall) -> Option<(CallOutcome, OutputDisposition)> {
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
                (CallOutcome::new(CallStatus::Succeeded, result), OutputDisposition::Valid(value))
            }
            Err(faults) => {
                let status = CallStatus::Failed(CallFailure::InvalidArguments);
                let outcome = CallOutcome::without_result(call, status, spec.fault_message(&faults));
                let again = self.may_repair_output();
                (outcome, OutputDisposition::Invalid { faults, again })
            }
        })
    }

    fn output_of_text(&self, text: &str, is_last: bool, is_cut: bool) -> Option<OutputDisposition> {
        let spec = self.agent.output_spec()?;
        if text.trim().is_empty() || is_cut {
            return None;
        }
        Some(match spec.of_text(text) {
            Ok(value) => OutputDisposition::Valid(value),
            Err(faults) => OutputDisposition::Invalid { faults, again: !is_last && self.may_repair_output() },
        })
    }

    fn may_repair_output(&self) -> bool {
        let spec = self.agent.output_spec();
        let steps_left = self.tally.steps + 1 < self.limits().steps;
        steps_left && spec.is_some_and(|spec| self.tally.output_faults < spec.output.repairs)
    }

    /// The next superstep.
    fn planned(&self, elapsed: Duration) -> Result<Event, FeedError> {
        let step = self.open_step().filter(|step| !step.items.any(ItemCondition::Open));
        let (Some(planner), Some(step), Some(walk)) = (self.planner(), step, self.walk()) else {
            return Err(self.not_needed("planned"));
        };
        let mut next = planner.next(walk.position(), &step.ended(), &self.state)?;
        if next.exit.is_none()
            && let Some(limit) = self.limit()
        {
            next = NextSuperstep { routes: next.routes, ..NextSuperstep::exit(limit) };
        }
        let step = self.tally.steps + u64::from(next.exit.is_none());
        let delta = planner.writes(walk.position(), &next, &self.state).map_err(FeedError::Plan)?;
        let NextSuperstep { branches, deferred, arrived, routes, exit } = next;
        let kind = EventKind::Planned { branches, deferred, arrived, routes, exit };
        Ok(Event { delta, ..Event::new(step, elapsed, kind) })
    }

    /// The event of answered items, with the end of the step if they are the last ones. An outcome that a hook has still
    /// to see does not end the step.
    fn answered(&self, mut outcomes: Vec<ItemOutcome>, elapsed: Duration) -> Result<Event, FeedError> {
        // NOTE: `close_if_done` walks the items and these side by side, so both must be in the same order.
        outcomes.sort_by_key(|outcome| outcome.place);
        let mut event = Event::new(self.tally.steps, elapsed, EventKind::Answered(Vec::new()));
        let mut merged = None;
        if let Some(step) = self.open_step()
            && outcomes.iter().all(|outcome| outcome.pending_hook.is_none())
            && step.items.count(ItemCondition::Open) == outcomes.len()
        {
            merged = self.close_if_done(&mut event, step, &outcomes)?;
        }
        let merged = merged.unwrap_or_default();
        let items = outcomes.into_iter().map(|outcome| event.recorded(outcome, &merged)).collect();
        event.kind = EventKind::Answered(items);
        Ok(event)
    }

    /// Calls that need an approval, with their tools as they are listed now.
    fn asked(&self, fates: Vec<(usize, CallDisposition)>) -> EventKind {
        let listed =
            fates.iter().filter_map(|(place, _)| self.listed_tool(*place, &self.call_at(*place)?.name));
        EventKind::Asked { listed: listed.collect(), fates }
    }

    /// Whether calls may start, as far as hooks before them are concerned.
    fn are_hooked(&self) -> bool {
        let calls = self.open_step().and_then(OpenStep::calls);
        calls.is_none_or(|calls| calls.is_hooked || !self.has_hook(HookPoint::BeforeTool))
    }

    /// The interruption of the items that had started, and of these that may have begun.
    fn interrupted(&self, may_have_begun: impl Iterator<Item = usize>) -> EventKind {
        let mut places = self.open_step().map(OpenStep::started).unwrap_or_default();
        places.extend(may_have_begun);
        places.sort_unstable();
        let asks = self.agent.config().ask_when_uncertain;
        let (inputs_from_state, shown) = match asks {
            true => (self.inputs_at(&places), self.shown_at(&places)),
            false => Default::default(),
        };
        EventKind::Interrupted { places, asks, inputs_from_state, shown }
    }

    /// Puts the end of the step into the event, if every item has its outcome: one that it has already, or one of these,
    /// which are in the order of the items. What the end appends differs: results as messages, or what the plan says that
    /// a branch writes. Gives the writes of each item among those of the event then: the index of the first, and their
    /// number.
    fn close_if_done(
        &self,
        event: &mut Event,
        step: &OpenStep,
        new: &[ItemOutcome],
    ) -> Result<Option<WriteRanges>, FeedError> {
        let mut new = new.iter().peekable();
        let mut outcome = |place, item: &StepItem| {
            let given = new.next_if(|new| new.place == place).map(|new| new.outcome.clone());
            given.or_else(|| Some((**item.outcome()?).clone()))
        };
        if step.walk().is_some() {
            let items = step.items.iter().enumerate();
            let outcomes: Option<Vec<_>> = items.map(|(place, item)| outcome(place, item)).collect();
            return outcomes.map(|outcomes| self.close_superstep(event, step, &outcomes)).transpose();
        }
        // NOTE: The event of the last outcome carries the results and the merged writes of the whole step, so that a
        // store commits state, messages and version at once, never half a step.
        let completed = |(place, item, call): (usize, &StepItem, &ToolCall)| {
            Some(item.completed(call, outcome(place, item)?.into_call()?))
        };
        let outcomes: Option<Vec<_>> = step.with_calls().map(completed).collect();
        Ok(outcomes.map(|outcomes| self.close_calls(event, self.transcript(), outcomes)))
    }

    /// The end of a superstep: the writes of all branches as one delta, in their order.
    fn close_superstep(
        &self,
        event: &mut Event,
        step: &OpenStep,
        outcomes: &[WorkOutcome],
    ) -> Result<WriteRanges, FeedError> {
        // NOTE: All branches saw one snapshot, and are merged in the order of declaration: merging each as it ends
        // would make the state depend on which was faster.
        let Some(planner) = self.planner() else { return Ok(WriteRanges::new()) };
        let mut ranges = WriteRanges::with_capacity(outcomes.len());
        let mut state = self.state.clone();
        let mut end = StepEnd::default();
        let mut ids = TakenIds::new(&self.cache.call_ids);
        let branches: Vec<&PlannedBranch> =
            step.items.iter().filter_map(|item| item.planned.as_ref()).collect();
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
}

/// The writes of each item among those of an event: the index of the first, and their number.
pub(super) type WriteRanges = Vec<(usize, usize)>;

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

/// Repairs messages that are appended between steps, if necessary: the log before them is well-formed, and so it is
/// with them.
pub(super) fn well_formed(messages: Vec<Arc<Message>>) -> Vec<Arc<Message>> {
    if messages.is_empty() {
        return messages;
    }
    let mut appended = Transcript::new();
    appended.extend(messages);
    appended.repair().transcript.iter().cloned().collect()
}
