//! Calls that need an approval, and their values from the state.
//!
//! An approval is for the values that were shown: it is requested again if another call of the reply, or another
//! session, has changed what the state adds to the call.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use stepfold_state_core::chat::ToolCall;
use stepfold_state_core::state::State;
use stepfold_tools::{Approval, Tool};

use super::event::{CallDisposition, ListedTool, ShownTool};
use super::machine::{ApprovedCall, Run, RunNeed, RunPhase};
use super::step::StepItem;
use crate::approval::{ApprovalQuestion, AskReason};
use crate::state_input::{StateInput, state_inputs};

/// Whether a call needs an approval, from the mildest rule to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ApprovalNeed {
    No,
    /// Once for all equal calls.
    Once,
    Always,
}

/// The difference of a listed tool that has asked something, of which no text of before is known.
const OTHER_THAN_ASKED: &str =
    "the tool is listed otherwise than when it asked, and gets the answer if the call is approved";

/// The questions about the calls of one reply.
#[derive(Debug, Default)]
pub(super) struct ReplyQuestions {
    /// The calls that need one approval for all equal calls, each with its place.
    once: BTreeMap<ApprovedCall, usize>,
}

impl ReplyQuestions {
    /// The fate of the next call, if it needs a decision.
    fn fate(
        &mut self,
        place: usize,
        call: ApprovedCall,
        asks: ApprovalNeed,
        question: ApprovalQuestion,
    ) -> Option<CallDisposition> {
        match asks {
            ApprovalNeed::No => return None,
            ApprovalNeed::Always => {}
            ApprovalNeed::Once => match self.once.entry(call) {
                Entry::Occupied(first) => return Some(CallDisposition::Same(*first.get())),
                Entry::Vacant(first) => drop(first.insert(place)),
            },
        }
        Some(CallDisposition::Ask(question))
    }
}

impl Run {
    /// The fate of a call that needs an approval by the tool's rule or the agent's; the stricter one applies. A call
    /// that cannot run needs none; a rule that panics requires one. The state is the one that the call sees.
    pub(super) fn fate(
        &self,
        asking: &mut ReplyQuestions,
        place: usize,
        call: &ToolCall,
        seen: impl FnOnce() -> State,
    ) -> Option<CallDisposition> {
        let tool = self.tools()?.get(&call.name)?;
        let rules = [tool.approval(), &self.agent.config().approval];
        if rules.iter().all(|rule| matches!(rule, Approval::Never)) {
            return None;
        }
        let arguments = call.arguments.as_object()?;
        tool.check_arguments(arguments).ok()?;
        let inputs = if has_inputs(tool) { state_inputs(tool, call, &seen()) } else { Vec::new() };
        let definition = self.definition_of(tool);
        let approved = ApprovedCall::of(call, &inputs, definition, dependency_of(tool));
        let asks = |rule: &Approval| match rule {
            Approval::Never => ApprovalNeed::No,
            Approval::Once if self.approved.contains(&approved) => ApprovalNeed::No,
            // NOTE: Two equal calls of one reply must not get two decisions; with any other rule each is asked about by
            // itself.
            Approval::Once => ApprovalNeed::Once,
            Approval::When(predicate) => {
                // NOTE: A rule that panics asks: the alternative is a call without approval.
                let picks = std::panic::AssertUnwindSafe(|| predicate(arguments));
                match std::panic::catch_unwind(picks).unwrap_or(true) {
                    true => ApprovalNeed::Always,
                    false => ApprovalNeed::No,
                }
            }
            // `Always`, and whatever a later version knows.
            _ => ApprovalNeed::Always,
        };
        let asks = rules.into_iter().map(asks).max().unwrap_or(ApprovalNeed::Always);
        let question = self.question_about(tool, ApprovalQuestion::new(AskReason::Rule, inputs));
        asking.fate(place, approved, asks, question)
    }

    /// The digest of a tool that is listed at each step, as an approver is shown it.
    fn definition_of(&self, tool: &Tool) -> Option<String> {
        let is_listed = self.agent.static_tool(tool.name()).is_none();
        is_listed.then(|| crate::agent::digest_of_definition(tool))
    }

    /// A question with its tool as an approver is shown it.
    fn question_about(&self, tool: &Tool, question: ApprovalQuestion) -> ApprovalQuestion {
        let definition = self.definition_of(tool);
        let parameters = definition.as_ref().map(|_| tool.parameters().clone());
        question.about(definition, change_of(tool)).with_parameters(parameters)
    }

    /// The same about a call whose tool was shown before.
    fn question_about_shown(
        &self,
        item: &StepItem,
        tool: &Tool,
        question: ApprovalQuestion,
    ) -> ApprovalQuestion {
        let definition = self.definition_beside(item, tool);
        ApprovalQuestion { definition, ..self.question_about(tool, question) }
    }

    /// The digest of a tool, to be compared with the one that was shown.
    fn definition_beside(&self, item: &StepItem, tool: &Tool) -> Option<String> {
        // Earlier versions recorded the digests of all tools of an agent that lists some.
        let digest = || item.definition.as_ref().map(|_| crate::agent::digest_of_definition(tool));
        self.definition_of(tool).or_else(digest)
    }

    /// Whether a tool is another one than that of the call as it was shown: with another definition, or of another server.
    fn is_other_tool(&self, item: &StepItem, tool: &Tool) -> bool {
        item.is_of_other_server(dependency_of(tool).as_ref())
            || item.is_of_other(self.definition_beside(item, tool).as_deref())
    }

    /// The tool of a call as it is listed now; `None` for a tool that the agent has itself, and an unknown one.
    pub(super) fn listed_tool(&self, place: usize, name: &str) -> Option<ListedTool> {
        let tool = self.tool(name)?;
        let (definition, dependency) = (self.definition_of(tool)?, dependency_of(tool));
        Some(ListedTool { place, definition, effect: tool.effect(), dependency })
    }

    /// The tools of the calls at these places, as an approver is shown them.
    pub(super) fn shown_at(&self, places: &[usize]) -> Vec<ShownTool> {
        let shown = |place: &usize| {
            let tool = self.tool(&self.call_at(*place)?.name)?;
            let (definition, change) = (self.definition_of(tool)?, change_of(tool));
            let (parameters, dependency) = (Some(tool.parameters().clone()), dependency_of(tool));
            Some(ShownTool { place: *place, definition, change, parameters, dependency })
        };
        places.iter().filter_map(shown).collect()
    }

    /// Calls that have not started and need an approval now: the rule of the agent or of a dynamic toolset has changed
    /// since the reply, or they were approved with other
    /// [values from the state](crate::ApprovalRequest::inputs_from_state) than they would run with. Empty unless the run
    /// [needs](RunNeed::Calls) its calls.
    ///
    /// A host that continues a run checks this before it runs calls, and again before a call that waited for the writes of
    /// others. It answers with [`RunAnswer::Ask`](crate::RunAnswer::Ask) if there are any.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Approval, Tool, ToolError};
    /// use std::time::Duration;
    /// use stepfold_agent_loop::{Agent, RunAnswer, Breakpoint, RunNeed, Run};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: done")?;
    /// let pay = |approval| Tool::new("pay", "Pays a bill.", pay).approval(approval).build();
    /// let agent = Agent::builder(model).tools([pay(Approval::Never)?]).build()?;
    /// let stopped = agent.run("pay the bill").break_at(Breakpoint::tool("pay")).await?;
    ///
    /// // The agent that continues has another rule.
    /// let strict = agent.to_builder().approval(Approval::Always).build()?;
    /// let (mut run, _) = Run::load_changed(&strict, &stopped.run().to_json())?;
    /// run.commit(run.feed(RunAnswer::Upgrade, Duration::ZERO)?)?;
    /// let asked = run.feed(RunAnswer::Ask(run.calls_to_ask()), Duration::ZERO)?;
    /// run.commit(asked)?;
    /// assert!(matches!(run.decide(), RunNeed::Approval));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn calls_to_ask(&self) -> Vec<(usize, CallDisposition)> {
        let (RunPhase::Working(step), RunNeed::Calls) = (&self.phase, self.decide()) else {
            return Vec::new();
        };
        self.to_ask(0..step.items.len(), self.seen_by())
    }

    /// The calls, of these that are about to start, that take values from the state.
    pub(crate) fn starting_to_ask(
        &self,
        places: &[usize],
        seen_by: impl Fn(usize) -> State,
    ) -> Vec<(usize, CallDisposition)> {
        let has_inputs = |place: &usize| {
            let (item, tool) =
                (self.item(*place), self.call_at(*place).and_then(|call| self.tool(&call.name)));
            item.is_some_and(|item| !item.inputs.is_empty()) || tool.is_some_and(has_inputs)
        };
        self.to_ask(places.iter().copied().filter(has_inputs), seen_by)
    }

    fn to_ask(
        &self,
        places: impl Iterator<Item = usize>,
        seen_by: impl Fn(usize) -> State,
    ) -> Vec<(usize, CallDisposition)> {
        let mut asking = ReplyQuestions::default();
        let fates = places.filter_map(|place| {
            let (item, call) = (self.item(place)?, self.call_at(place)?);
            let fate = if item.is_unasked() {
                let by_rule = self.fate(&mut asking, place, &item.as_run(call), || seen_by(place));
                by_rule.or_else(|| self.answered_by_other(place))
            } else {
                let inputs = self.inputs_of_approved(place, || seen_by(place));
                // NOTE: The values are known for certain only when the call starts: another call of the reply, or
                // another session, may write the key after the question. A server may change its tool.
                let tool = self.tool(&call.name);
                let is_other = tool.is_some_and(|tool| self.is_other_tool(item, tool));
                let others = inputs.filter(|inputs| *inputs != item.inputs || is_other);
                others.map(|inputs| {
                    let question = ApprovalQuestion::new(item.reason_to_ask(), inputs);
                    CallDisposition::Ask(match tool {
                        Some(tool) => self.question_about_shown(item, tool, question),
                        None => question,
                    })
                })
            };
            Some((place, fate?))
        });
        fates.collect()
    }

    /// The question about a call whose tool has asked something, if the answer would go to another tool: a server lists another
    /// one by now.
    fn answered_by_other(&self, place: usize) -> Option<CallDisposition> {
        let (item, call) = (self.item(place)?, self.call_at(place)?);
        let tool = self.tool(&call.name)?;
        // A call that cannot run needs no answer.
        tool.check_arguments(item.as_run(call).arguments.as_object()?).ok()?;
        let is_other = item.has_answers() && self.is_other_tool(item, tool);
        let question = || {
            let inputs = self.inputs_of(place, || self.seen_by()(place)).unwrap_or_default();
            let question =
                self.question_about_shown(item, tool, ApprovalQuestion::new(AskReason::Rule, inputs));
            let change = question.change.or_else(|| Some(OTHER_THAN_ASKED.into()));
            ApprovalQuestion { change, ..question }
        };
        is_other.then(|| CallDisposition::Ask(question()))
    }

    /// The values that the state adds to an approved call that has not begun; `None` if its tool is unknown.
    pub(super) fn inputs_of_approved(
        &self,
        place: usize,
        seen: impl FnOnce() -> State,
    ) -> Option<Vec<StateInput>> {
        self.item(place).filter(|item| item.is_approved())?;
        self.inputs_of(place, seen)
    }

    /// The values that the state adds to a call; `None` if its tool is unknown.
    fn inputs_of(&self, place: usize, seen: impl FnOnce() -> State) -> Option<Vec<StateInput>> {
        let (item, call) = (self.item(place)?, self.call_at(place)?);
        let tool = self.tools()?.get(&call.name)?;
        Some(match has_inputs(tool) {
            true => state_inputs(tool, &item.as_run(call), &seen()),
            false => Vec::new(),
        })
    }

    /// The values that the state adds now to the calls at these places, without calls that it adds none to.
    pub(crate) fn inputs_at(&self, places: &[usize]) -> Vec<(usize, Vec<StateInput>)> {
        let seen_by = self.seen_by();
        let inputs = places.iter().map(|place| (*place, self.inputs_of(*place, || seen_by(*place))));
        let inputs = inputs.map(|(place, inputs)| (place, inputs.unwrap_or_default()));
        inputs.filter(|(_, inputs)| !inputs.is_empty()).collect()
    }

    /// The state that each call of the open step sees, from the outcomes known so far.
    pub(super) fn seen_by(&self) -> impl Fn(usize) -> State {
        let order = OnceCell::new();
        move |place| {
            let order = order.get_or_init(|| self.calls_in_order());
            order.as_ref().map_or_else(|| self.state.clone(), |calls| calls.state_seen_by(place))
        }
    }
}

fn dependency_of(tool: &Tool) -> Option<String> {
    tool.listing().and_then(|listing| listing.dependency.clone())
}

fn change_of(tool: &Tool) -> Option<String> {
    tool.listing().and_then(|listing| listing.change.clone())
}

fn has_inputs(tool: &Tool) -> bool {
    tool.input_keys().next().is_some()
}
