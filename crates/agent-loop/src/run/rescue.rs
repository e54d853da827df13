//! The rescue of a request that the provider refused as too long: the model is shown less, and is asked again.
//!
//! The sizes that the provider reported are in the record, and what is shown follows from them and the conversation, so
//! a replay shows the same.

use std::cmp::Reverse;

use stepfold_state_core::chat::{ChatRequest, Message, ModelErrorKind};
use stepfold_trim::{ApproximateTokens, MessageRanges, SummaryPlan, TokenCounter, TurnView, Window};

use super::event::EventKind;
use super::feed::RunAnswer;
use super::machine::{Run, RunPhase};
use super::prompt::restored_view;

/// The number of times that a request is narrowed.
const MOST_RESCUES: u32 = 2;

/// The share of the size that the provider takes which the narrowed request has.
// NOTE: As a window shrinks: well below the limit, so that the next steps fit, and share their prefix with this request.
const SHARE: (u64, u64) = (7, 10);

/// The share that is left where the provider reports no size, and of each further rescue.
const FURTHER_SHARE: (u64, u64) = (2, 3);

/// The sizes of a request that was refused.
#[derive(Clone, Copy)]
pub(super) struct RefusedSize {
    /// The tokens that fit, as the provider reported them.
    pub(super) limit: Option<u64>,
    /// The tokens of the request, as the provider reported them.
    pub(super) used: Option<u64>,
    /// The tokens of the tools in it, by our counter.
    pub(super) tools: usize,
}

impl Run {
    /// The answer that continues after this error of a model: [`RunAnswer::TooLong`], if the provider refused the request
    /// as too long and the model can be shown less; `None` otherwise, after two such answers for one request too.
    ///
    /// For a host that asks models itself. The view is narrowed to seven tenths of what the provider takes, by the sizes
    /// that it reported: results of older steps become one line each, then old turns and old steps of this turn are left
    /// out, as a [`Window`] does, and at last the newest results become lines. An agent that
    /// [summarizes](crate::AgentBuilder::summarize) makes a summary first. The conversation keeps everything.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Input, Run, RunAnswer};
    /// use stepfold_state_core::chat::{ModelErrorKind, Transcript};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let log: Transcript = format!("user: {0}\nassistant: {0}", "stall ".repeat(500)).parse()?;
    /// let input = Input::from(log).say("which area has most stalls?");
    /// let mut run = Run::new(&agent, input, "run-1")?;
    /// run.commit(run.feed(RunAnswer::Begin, Duration::ZERO)?)?;
    /// assert_eq!(run.request().messages.len(), 3);
    ///
    /// let refused = ModelErrorKind::TooLong { limit: Some(800), used: Some(1_010) };
    /// let answer = run.rescue(&refused).expect("the first turn can be left out");
    /// run.commit(run.feed(answer, Duration::ZERO)?)?;
    /// assert_eq!(run.request().messages.len(), 1);
    /// assert_eq!(run.transcript().len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rescue(&self, error: &ModelErrorKind) -> Option<RunAnswer> {
        let ModelErrorKind::TooLong { limit, used } = *error else { return None };
        let specs = self.offer.iter().flat_map(|offer| offer.specs.iter());
        let tools = specs.map(ApproximateTokens::of_tool).fold(0, usize::saturating_add);
        let size = RefusedSize { limit, used, tools };
        self.narrowed(size).map(|_| RunAnswer::TooLong { limit, used, tools })
    }

    /// Whether the request may be narrowed once more.
    pub(super) fn may_be_rescued(&self) -> bool {
        self.tally.rescues < MOST_RESCUES
    }

    /// The event that narrows the request; `None` if nothing more can be left out.
    pub(super) fn narrowed(&self, size: RefusedSize) -> Option<EventKind> {
        let RunPhase::Asking { is_hooked: true, last } = &self.phase else { return None };
        if !self.may_be_rescued() {
            return None;
        }
        let summarizes = self.tally.rescues == 0
            && last.is_none()
            && !self.tally.is_pruned
            && self.rescuing_plan().is_some();
        let (log, view) = (self.transcript(), self.prompt.view());
        let turn = self.fitted(size);
        let is_same = turn.view().kept() == view.kept() && turn.view().cleared() == view.cleared();
        if is_same && !summarizes {
            return None;
        }
        Some(EventKind::Narrowed {
            limit: size.limit,
            used: size.used,
            tools: size.tools,
            shown: turn.view().kept().clone(),
            cleared: turn.view().cleared().clone(),
            messages: log.len(),
            summarizes,
        })
    }

    /// The view of a narrowed request.
    fn fitted(&self, size: RefusedSize) -> TurnView {
        let config = self.agent.config();
        let base = config.window.clone().unwrap_or_else(|| Window::new(usize::MAX));
        let pins = base.pins().or(config.trim.pins()).cloned();
        let base = pins.into_iter().fold(base.clear_results(1), Window::with_pins);
        let (log, view) = (self.transcript(), self.prompt.view());
        let of = |window: &Window| window.resume(view.clone(), log, self.tally.turn_start);
        let shown = of(&base.clone().with_limit(usize::MAX)).tokens();
        // NOTE: The tools are not in the record, and a replay may not know them: their size is.
        let instructions = self.prompt.instructions().map_or(0, ApproximateTokens::of_text);
        let rest = instructions.saturating_add(size.tools);
        let goal = goal(size, shown.saturating_add(rest), self.tally.rescues);
        let window = base.with_limit(goal.saturating_sub(rest)).shrink_to_percent(100);
        let turn = of(&window);
        match turn.fits() {
            true => turn,
            // NOTE: A newest result that is too long for any request would end the run for good; its line says so to the
            // model, which can ask for less.
            false => window.clear_results(0).resume(turn.view().clone(), log, self.tally.turn_start),
        }
    }

    /// The plan of a summary of all that the agent's policy does not keep, whether it is time for one or not.
    pub(super) fn rescuing_plan(&self) -> Option<SummaryPlan> {
        let summarize = self.agent.config().summarize.as_ref()?;
        summarize.clone().at_once().plan(self.transcript(), self.summary.as_ref())
    }

    /// Shows what an event of a record says.
    pub(super) fn show_narrowed(&mut self, shown: &MessageRanges, cleared: &MessageRanges, messages: usize) {
        let log = self.state.messages().clone();
        let pruned = messages.saturating_sub(log.len());
        let (kept, cleared) = (shown.without_first(pruned), cleared.without_first(pruned));
        let view = restored_view(&log, kept, &cleared, self.summary.as_ref());
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.set_prompt(instructions, view, &log);
    }
}

/// The tokens that the request may have, by our counter, which counted `counted`.
fn goal(size: RefusedSize, counted: usize, rescues: u32) -> usize {
    let counted = counted as u64;
    let first = match (size.limit, size.used) {
        // NOTE: Our counter and the provider's differ; their ratio is known from the request that was refused.
        (Some(limit), Some(used)) if used > limit => {
            let in_ours = u128::from(counted) * u128::from(limit) / u128::from(used);
            share(u64::try_from(in_ours).unwrap_or(counted), SHARE)
        }
        (Some(limit), _) => share(limit, SHARE).min(share(counted, FURTHER_SHARE)),
        (None, _) => share(counted, FURTHER_SHARE),
    };
    let goal = (0..rescues).fold(first, |goal, _| share(goal, FURTHER_SHARE));
    usize::try_from(goal).unwrap_or(usize::MAX)
}

fn share(of: u64, (part, whole): (u64, u64)) -> u64 {
    of / whole * part + of % whole * part / whole
}

/// The heaviest parts of a request, in words: the tools, the instructions, and the largest messages.
pub(crate) fn heaviest_parts(request: &ChatRequest) -> String {
    let tools: usize = request.tools.iter().map(ApproximateTokens::of_tool).sum();
    let count = |message: &Message| ApproximateTokens.count(message);
    let mut messages: Vec<(usize, String)> =
        request.messages.iter().map(|message| (count(message), name_of(message))).collect();
    let in_messages: usize = messages.iter().map(|(tokens, _)| tokens).sum();
    messages.sort_by_key(|(tokens, _)| Reverse(*tokens));
    let largest: Vec<String> =
        messages.iter().take(3).map(|(tokens, name)| format!("{name} {tokens}")).collect();
    let (all, largest) = (tools.saturating_add(in_messages), largest.join(", "));
    format!(
        "the request has about {all} tokens: {tools} of tools, {in_messages} of messages, of these {largest}"
    )
}

fn name_of(message: &Message) -> String {
    match message.tool_result() {
        Some(result) => format!("the result {} of {}", result.call_id(), result.name()),
        None => format!("a message of the {}", message.role().as_str()),
    }
}
