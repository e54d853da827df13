//! From answers to events. Nothing changes here: what an answer would do is computed, to be committed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{Message, Repaired, Reply, Role, ToolCall, ToolResult, Transcript, Usage};
use stepfold_state_core::state::{Delta, Schema, State, Template, ValueRef};
use stepfold_tools::{Approval, Failure, Outcome, Status, with_unique_call_ids};

use super::batch::{Batch, Call, CallState, Repeats, close, not_run};
use super::commit::Folding;
use super::event::{Event, EventKind, Fate, HookVerdict, OutputFate};
use super::exit::Exit;
use super::machine::{Approved, Need, Phase, Run};
use super::walk::{Branch, NodeOutcome};
use crate::agent::{HookPoint, OUTPUT_TOOL, OutputMode, OutputSpec, recovered};
use crate::approval::{ApprovalRequest, AskReason, Decision, rejection};
use crate::decisions::Decisions;
use crate::error::{FeedError, StartError};
use stepfold_trim::{Summary, SummaryPlan};

/// The prefix of keys whose values no record keeps.
const TEMPORARY: &str = "temp:";

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
    /// Calls that were to run unasked when the reply came [have to be asked about](Run::calls_to_ask) by now.
    Ask(Vec<(usize, Fate)>),
    /// Calls that must not run twice are about to start; by their places.
    Started(Vec<usize>),
    /// A call has its outcome.
    Outcome {
        /// Its place in the reply.
        call: usize,
        /// Its outcome.
        outcome: Outcome,
        /// What it cost, if it asked a model.
        usage: Usage,
        /// Why a hook wants the run to end after this step.
        stop: Option<String>,
        /// The first hook after tools that failed, by its place among them, and has still to see the outcome. The call
        /// is answered once more when it has: see [`Run::pending_hooks`].
        pending_hook: Option<usize>,
    },
    /// A call is an agent that waits for decisions about its own calls.
    Suspended {
        /// Its place in the reply.
        call: usize,
        /// Its run, as it is stored.
        child: Value,
        /// What it asks.
        requests: Vec<ApprovalRequest>,
    },
    /// The next superstep of a graph, which the machine finds by itself.
    Plan,
    /// An agent that is a node has made a commit of its own.
    Inner {
        /// The place of the branch.
        branch: usize,
        /// What it commits.
        event: Box<Event>,
    },
    /// A branch has its outcome.
    Node {
        /// Its place.
        branch: usize,
        /// Its outcome.
        outcome: NodeOutcome,
        /// What it cost, if it asked a model, without what came as [`Answer::Inner`]: that is counted already.
        usage: Usage,
    },
    /// The function of a branch asks somebody to decide.
    NodeAsks {
        /// Its place.
        branch: usize,
        /// What it asks, under ids within the branch.
        requests: Vec<ApprovalRequest>,
    },
    /// Calls had started when the process died.
    Interrupted,
    /// Whoever wanted the run does not want it any more. Taken at any time before the end.
    Cancelled,
    /// The time of the run is up. Taken at any time before the end.
    TimedOut,
}

impl Answer {
    const fn name(&self) -> &'static str {
        match self {
            Answer::Begin => "begin",
            Answer::Hooked(_) => "the report of hooks",
            Answer::Summary(_) => "a summary",
            Answer::Steer(_) => "a message",
            Answer::Reply(_) => "a reply",
            Answer::Decisions(_) => "decisions",
            Answer::Ask(_) => "calls to ask about",
            Answer::Started(_) => "started calls",
            Answer::Outcome { .. } => "an outcome",
            Answer::Suspended { .. } => "a suspended call",
            Answer::Plan => "a superstep",
            Answer::Inner { .. } => "a commit of a node's agent",
            Answer::Node { .. } => "the outcome of a node",
            Answer::NodeAsks { .. } => "what a node asks",
            Answer::Interrupted => "interrupted calls",
            Answer::Cancelled => "a cancellation",
            Answer::TimedOut => "a time-out",
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
    /// What becomes of the run.
    pub verdict: HookVerdict,
    /// Before tools: calls that do not run, and what the model reads.
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
            (Answer::Decisions(decisions), Phase::Calling(batch)) => self.decided(batch, decisions, elapsed),
            (Answer::Ask(fates), Phase::Calling(batch)) => match batch.may_ask(&fates) {
                true => Ok(new(EventKind::Asked { fates })),
                false => Err(self.not_needed("calls to ask about")),
            },
            (Answer::Started(calls), Phase::Calling(batch)) => match self.may_start(batch, &calls) {
                true => Ok(new(EventKind::Started { calls })),
                false => Err(self.not_needed("started calls")),
            },
            (Answer::Outcome { call, outcome, usage, stop, pending_hook }, Phase::Calling(batch)) => {
                let kind = EventKind::Answered { call, outcome, usage, stop, pending_hook };
                self.answered(batch, call, Event::new(self.tally.steps, elapsed, kind))
            }
            (Answer::Suspended { call, child, requests }, Phase::Calling(batch)) => {
                match batch.calls.get(call) {
                    Some(open) if !open.is_done() => Ok(new(EventKind::Suspended { call, child, requests })),
                    _ => Err(FeedError::NoSuchCall { call }),
                }
            }
            (Answer::Interrupted, Phase::Calling(batch)) => self.interrupted(batch, elapsed),
            (Answer::Plan, Phase::Walking(walk)) => self.planned(walk, elapsed),
            (Answer::Inner { branch, event }, Phase::Walking(walk)) => {
                self.inner(walk, branch, *event, elapsed)
            }
            (Answer::Node { branch, outcome, usage }, Phase::Walking(walk)) => {
                self.node_answered(walk, branch, outcome, usage, elapsed)
            }
            (Answer::NodeAsks { branch, requests }, Phase::Walking(walk)) => {
                self.node_asks(walk, branch, requests, elapsed)
            }
            (Answer::Decisions(decisions), Phase::Walking(walk)) => {
                self.nodes_decided(walk, decisions, elapsed)
            }
            (Answer::Started(calls), Phase::Walking(walk)) => match Run::may_start_nodes(walk, &calls) {
                true => Ok(new(EventKind::Started { calls })),
                false => Err(self.not_needed("started branches")),
            },
            (Answer::Interrupted, Phase::Walking(walk)) => self.nodes_interrupted(walk, elapsed),
            (Answer::Cancelled, phase) => self.broken_off(phase, EventKind::Cancelled, elapsed),
            (Answer::TimedOut, phase) => self.broken_off(phase, EventKind::TimedOut, elapsed),
            (answer, _) => Err(self.not_needed(answer.name())),
        }
    }

    pub(super) fn not_needed(&self, answer: &'static str) -> FeedError {
        FeedError::NotNeeded { answer, need: format!("{:?}", self.decide()) }
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
            return Repaired { transcript: log, repairs: Vec::new() };
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

    /// The next event as a record may have it that outlives the run: the instructions, also those of agents that are
    /// nodes, without the values of `temp:` keys. Writes to such keys are left: see
    /// [`retain_writes`](Event::retain_writes).
    pub fn lasting(&self, event: &Event) -> Event {
        let mut lasting = event.clone();
        match &mut lasting.kind {
            EventKind::Began { instructions, .. } => {
                if let Some(stored) = self.lasting_instructions() {
                    *instructions = Some(stored);
                }
            }
            EventKind::Inner { branch, event } => {
                let new = match self.branch(*branch).and_then(Branch::child) {
                    None => {
                        self.new_child(*branch, event, Folding::Live).ok().map(|child| child.lasting(event))
                    }
                    Some(child) => Some(child.lasting(event)),
                };
                if let Some(new) = new {
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
        let Phase::Calling(batch) = phase else {
            event.messages = well_formed(report.messages);
            event.rewrite = rewrite;
            return Ok(event);
        };
        if rewrite.is_some() || !report.messages.is_empty() || !event.delta.is_empty() {
            return Err(FeedError::StepIsOpen);
        }
        self.closing_if_done(&mut event, batch, |place, call| {
            hooked_outcome(place, call, &report.verdict, &report.answers)
        });
        Ok(event)
    }

    /// The reply with unique call ids, and what becomes of its calls.
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
        let kind = EventKind::Replied {
            finish_reason: reply.finish_reason,
            usage: reply.usage,
            id: reply.id,
            model: reply.model,
            fates: fates.clone(),
            tools: self.digest_of_offer(),
            output: output.clone(),
        };
        let mut event = Event::new(self.tally.steps + 1, elapsed, kind);
        event.messages.push(Arc::clone(&message));
        let answered: Vec<Outcome> = fates
            .into_iter()
            .filter_map(|(_, fate)| match fate {
                Fate::Answer(outcome) => Some(outcome),
                Fate::Ask(_) | Fate::Same(_) => None,
            })
            .collect();
        if message.has_tool_calls() && answered.len() == message.tool_calls().count() {
            let log = self.transcript().clone().with(Arc::clone(&message));
            self.close_with(&mut event, &log, answered);
        }
        if let (Some(OutputFate::Invalid { faults, again: true }), false) =
            (&output, message.has_tool_calls())
            && let Some(spec) = self.agent.output_spec()
        {
            event.messages.push(Message::user(spec.complaint(faults)).into());
        }
        Ok(event)
    }

    /// A digest of the tools that were asked for at this step; none of those that never change.
    fn digest_of_offer(&self) -> Option<String> {
        let offer = self.offer.as_ref().filter(|_| self.agent.static_offer().is_none());
        offer.map(crate::agent::digest_of_offer)
    }

    /// What becomes of the calls of a reply that do not simply run, and of an output among them.
    fn fates(
        &self,
        reply: &Message,
        cut: Option<&Exit>,
        is_last: bool,
    ) -> (Vec<(usize, Fate)>, Option<OutputFate>) {
        let limits = self.agent.limits();
        let ran: u64 = self.tally.calls.values().sum();
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
                fates.push((place, Fate::Answer(not_run(call, &why))));
            } else if let Some((outcome, fate)) = self.output_of_call(call) {
                fates.push((place, Fate::Answer(outcome)));
                output = output.filter(|known| matches!(known, OutputFate::Valid(_))).or(Some(fate));
            } else {
                running += 1;
                fates.extend(asking.fate(place, call, self.has_to_ask(call)).map(|fate| (place, fate)));
            }
        }
        (fates, output)
    }

    /// Whether somebody has to agree, by the tool's rule and the agent's: the stricter one holds. What cannot run needs
    /// no agreement; a rule that panics fails closed.
    fn has_to_ask(&self, call: &ToolCall) -> Asks {
        let Some(tool) = self.tools().and_then(|tools| tools.get(&call.name)) else { return Asks::No };
        let rules = [tool.approval(), &self.agent.config().approval];
        if rules.iter().all(|rule| matches!(rule, Approval::Never)) {
            return Asks::No;
        }
        let Some(arguments) = call.arguments.as_object() else { return Asks::No };
        if tool.check_arguments(arguments).is_err() {
            return Asks::No;
        }
        let asks = |rule: &Approval| match rule {
            Approval::Never => Asks::No,
            Approval::Once if self.was_approved(call) => Asks::No,
            Approval::Once => Asks::Once,
            Approval::When(predicate) => {
                let picks = std::panic::AssertUnwindSafe(|| predicate(arguments));
                match std::panic::catch_unwind(picks).unwrap_or(true) {
                    true => Asks::Always,
                    false => Asks::No,
                }
            }
            // `Always`, and whatever a later version knows.
            _ => Asks::Always,
        };
        rules.into_iter().map(asks).max().unwrap_or(Asks::Always)
    }

    /// The calls that were to run unasked when the reply came, have not started, and whose tools want approval by now:
    /// those of a dynamic toolset may have changed since, and the agent as well. Empty unless the run [needs](Need::Calls)
    /// its calls.
    ///
    /// A host that goes on with a run looks here before it runs calls, and answers with [`Answer::Ask`] if there are any.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use stepfold_agent_loop::test_kit::Script;
    /// # use stepfold_tools::{Approval, Tool, ToolError};
    /// use std::time::Duration;
    /// use stepfold_agent_loop::{Agent, Answer, Breakpoint, Need, Run};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let pay = |approval| Tool::new("pay", "Pays a bill.", pay).approval(approval).build();
    /// let agent = Agent::builder(model).tools([pay(Approval::Never)?]).build()?;
    /// let stopped = agent.run("pay the bill").break_at(Breakpoint::tool("pay")).await?;
    ///
    /// // Whoever goes on has another rule.
    /// let strict = agent.to_builder().approval(Approval::Always).build()?;
    /// let (mut run, _) = Run::load_changed(&strict, &stopped.run().to_json())?;
    /// let asked = run.feed(Answer::Ask(run.calls_to_ask()), Duration::ZERO)?;
    /// run.commit(asked)?;
    /// assert!(matches!(run.decide(), Need::Approval));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn calls_to_ask(&self) -> Vec<(usize, Fate)> {
        let (Phase::Calling(batch), Need::Calls) = (&self.phase, self.decide()) else { return Vec::new() };
        let mut asking = Asking::default();
        let unasked = self.calls().enumerate().filter(|(place, _)| batch.is_unasked(*place));
        unasked
            .filter_map(|(place, call)| Some((place, asking.fate(place, call, self.has_to_ask(call))?)))
            .collect()
    }

    fn was_approved(&self, call: &ToolCall) -> bool {
        self.approved.contains(&Approved::of(call))
    }

    /// If the call gives the output: its outcome, and what became of the output.
    fn output_of_call(&self, call: &ToolCall) -> Option<(Outcome, OutputFate)> {
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
                let outcome = Outcome { status: Status::Succeeded, result, delta: Delta::new(), tries: 1 };
                (outcome, OutputFate::Valid(value))
            }
            Err(faults) => {
                let status = Status::Failed(Failure::InvalidArguments);
                let outcome = Outcome::without_result(call, status, spec.complaint(&faults));
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
        let steps_left = self.tally.steps + 1 < self.agent.limits().steps;
        steps_left && spec.is_some_and(|spec| self.tally.output_faults < spec.output.repairs)
    }

    /// The event of an answered call, with the end of the step if it is the last one. An outcome that a hook has still
    /// to see does not end the step.
    fn answered(&self, batch: &Batch, place: usize, mut event: Event) -> Result<Event, FeedError> {
        // What waits for a decision has not run.
        if batch.calls.get(place).is_none_or(|call| call.is_done() || call.waits()) {
            return Err(FeedError::NoSuchCall { call: place });
        }
        if let EventKind::Answered { outcome, pending_hook: None, .. } = &event.kind {
            let mut answer = Some(outcome.clone());
            self.closing_if_done(&mut event, batch, |at, _| answer.take_if(|_| at == place));
        }
        Ok(event)
    }

    /// Whether these calls may start. Others may be under way: a call starts when those that it waits for
    /// have their outcome.
    fn may_start(&self, batch: &Batch, calls: &[usize]) -> bool {
        let is_decided = !batch.calls.are_asked_about();
        let is_hooked = batch.is_hooked || !self.has_hook(HookPoint::BeforeTool);
        let is_ready = |call: &Call| match call.state {
            CallState::Ready => true,
            CallState::Suspended(_) => !call.waits(),
            _ => false,
        };
        is_decided && is_hooked && calls.iter().all(|place| batch.calls.get(*place).is_some_and(is_ready))
    }

    fn interrupted(&self, batch: &Batch, elapsed: Duration) -> Result<Event, FeedError> {
        let is_started = |call: &Call| call.state == CallState::Started;
        let started = batch.calls.iter().enumerate().filter(|(_, call)| is_started(call));
        let calls: Vec<usize> = started.map(|(place, _)| place).collect();
        if calls.is_empty() {
            return Err(self.not_needed("interrupted calls"));
        }
        let asks = self.agent.config().ask_when_uncertain;
        let kind = EventKind::Interrupted { calls: calls.clone(), asks };
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        if !asks {
            self.closing_if_done(&mut event, batch, |place, call| {
                calls.contains(&place).then(|| outcome_unknown(call))
            });
        }
        Ok(event)
    }

    /// The run ends here: what is open is answered.
    fn broken_off(&self, phase: &Phase, kind: EventKind, elapsed: Duration) -> Result<Event, FeedError> {
        if matches!(phase, Phase::Fresh(_) | Phase::Done(_) | Phase::Closing(_)) {
            return Err(self.not_needed("an early end"));
        }
        let is_cancelled = kind == EventKind::Cancelled;
        let mut event = Event::new(self.tally.steps, elapsed, kind);
        match phase {
            Phase::Calling(batch) => self.closing_if_done(&mut event, batch, |place, call| {
                Some(broken_off_outcome(&batch.calls[place], call, is_cancelled))
            }),
            Phase::Walking(walk) => self.nodes_broken_off(walk, &mut event)?,
            _ => {}
        }
        Ok(event)
    }

    /// Puts the end of the step into the event, if every call of the batch has its outcome: one that it has
    /// already, or the one that `new` gives it.
    pub(super) fn closing_if_done(
        &self,
        event: &mut Event,
        batch: &Batch,
        mut new: impl FnMut(usize, &ToolCall) -> Option<Outcome>,
    ) {
        if batch.calls.open() > 1 && matches!(event.kind, EventKind::Answered { .. }) {
            return;
        }
        let mut outcomes = Vec::with_capacity(batch.calls.len());
        for (place, (call, tool_call)) in batch.calls.iter().zip(self.calls()).enumerate() {
            match call.outcome().cloned().or_else(|| new(place, tool_call)) {
                Some(outcome) => outcomes.push(call.completed(tool_call, outcome)),
                None => return,
            }
        }
        self.close_with(event, self.transcript(), outcomes);
    }

    /// `log` ends with the reply.
    fn close_with(&self, event: &mut Event, log: &Transcript, outcomes: Vec<Outcome>) {
        let guard = self.agent.config().repeat_guard;
        let repeats = Repeats { before: self.tally.repeats, warn_at: guard.map(|guard| guard.warn) };
        let closing = close(&self.state, log, outcomes, repeats);
        event.messages.extend(closing.messages);
        event.delta.extend(closing.delta);
        event.step_end = Some(closing.step_end);
    }
}

/// Whether somebody has to agree to a call, from the mildest to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asks {
    No,
    /// Once for all equal calls.
    Once,
    Always,
}

/// The questions about the calls of one reply.
#[derive(Debug, Default)]
struct Asking {
    /// The calls that are asked about once, each with its place.
    once: BTreeMap<Approved, usize>,
}

impl Asking {
    /// What becomes of the next call, if somebody has to decide about it.
    fn fate(&mut self, place: usize, call: &ToolCall, asks: Asks) -> Option<Fate> {
        match asks {
            Asks::No => return None,
            Asks::Always => {}
            Asks::Once => match self.once.entry(Approved::of(call)) {
                Entry::Occupied(first) => return Some(Fate::Same(*first.get())),
                Entry::Vacant(first) => drop(first.insert(place)),
            },
        }
        Some(Fate::Ask(AskReason::Rule))
    }
}

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

/// The outcome that a decision gives a call at once: if it was rejected.
pub(super) fn decided_outcome(call: &Call, tool_call: &ToolCall, decision: &Decision) -> Option<Outcome> {
    let asked = match &call.state {
        CallState::Asking(asked) => *asked,
        CallState::Same(_) => AskReason::Rule,
        _ => return None,
    };
    match decision {
        Decision::Reject { .. } if !asked.is_rule() => Some(outcome_unknown(tool_call)),
        Decision::Reject { reason } => {
            let text = rejection(&tool_call.name, reason);
            Some(Outcome::without_result(tool_call, Status::Failed(Failure::Rejected), text))
        }
        _ => None,
    }
}

/// The outcome that hooks before tools give a call at once: if it does not run.
pub(super) fn hooked_outcome(
    place: usize,
    call: &ToolCall,
    verdict: &HookVerdict,
    answers: &[(usize, String)],
) -> Option<Outcome> {
    if let Some((_, text)) = answers.iter().find(|(answered, _)| *answered == place) {
        return Some(Outcome::without_result(call, Status::Failed(Failure::NotRun), text));
    }
    match verdict {
        HookVerdict::Stop(reason) => Some(not_run(call, &format!("a hook ended the run: {reason}"))),
        _ => None,
    }
}

/// What is known of a call that had started when the process died.
pub(super) fn outcome_unknown(call: &ToolCall) -> Outcome {
    let text = format!(
        "tool '{}' had started when the process was interrupted: its outcome is unknown, and it was not run again",
        call.name,
    );
    Outcome::without_result(call, Status::Unknown, text)
}

/// An outcome that the model must not be shown, because a hook that has to see it first has not. What the call wrote
/// stays: it has happened.
fn withheld(call: &ToolCall, outcome: &Outcome) -> Outcome {
    let text = format!(
        "tool '{}' ran, and its result is withheld: the run ended before a hook had seen it",
        call.name
    );
    Outcome { result: ToolResult::error(&*call.id, &*call.name, text), ..outcome.clone() }
}

pub(super) fn broken_off_outcome(call: &Call, tool_call: &ToolCall, is_cancelled: bool) -> Outcome {
    let why = if is_cancelled { "the run was cancelled" } else { "the time of the run was up" };
    match &call.state {
        CallState::Started => outcome_unknown(tool_call),
        CallState::HookPending(pending) => withheld(tool_call, &pending.outcome),
        CallState::Suspended(_) => {
            let text = format!("tool '{}' was stopped while it waited: {why}", tool_call.name);
            Outcome::without_result(tool_call, Status::Cancelled, text)
        }
        _ => {
            let text = format!("tool '{}' was not started: {why}", tool_call.name);
            Outcome::without_result(tool_call, Status::NotStarted, text)
        }
    }
}
