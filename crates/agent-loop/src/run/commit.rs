//! The fold: an event changes the phase of the run. Nothing is decided here that is not in the event, except for the
//! next phase.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_state_core::chat::{Transcript, Usage};
use stepfold_state_core::state::Delta;
use stepfold_tools::{CallFailure, CallStatus};

use super::call_ids::CallIdSet;
use super::edits::after_edit;
use super::event::{CallDisposition, Event, EventKind, FoldMode, ListedTool, OutputDisposition};
use super::machine::{ApprovedCall, Run, RunNeed, RunPhase};
use super::prompt::{ModelPrompt, view_of};
use super::recorded_outcomes::AnsweredItem;
use super::requests::ItemDecision;
use super::step::{
    ItemCondition, ItemList, ItemOutcome, ItemState, OpenStep, SpentBudget, StepItem, StepPlan,
    UnseenOutcome, WorkOutcome, is_asked,
};
use crate::agent::{HookPoint, HookVerdict};
use crate::approval::{ApprovalQuestion, AskReason};
use crate::error::FeedError;
use crate::exit::Exit;
use crate::planned::{JoinArrivals, PlannedBranch};

impl Run {
    /// Folds an event into the run: one that [`feed`](Run::feed) made, or one of a record.
    ///
    /// # Errors
    /// [`FeedError`] when the event does not fit where the run is; nothing is changed then.
    #[expect(clippy::needless_pass_by_value, reason = "an event is committed once")]
    pub fn commit(&mut self, event: Event) -> Result<(), FeedError> {
        self.follow(&event)
    }

    /// [Commits](Run::commit) an event that its host keeps: to publish it, or for a second run that follows this one.
    ///
    /// # Errors
    /// As [`commit`](Run::commit).
    pub fn follow(&mut self, event: &Event) -> Result<(), FeedError> {
        self.commit_as(event, FoldMode::Live)
    }

    fn commit_as(&mut self, event: &Event, folding: FoldMode) -> Result<(), FeedError> {
        if matches!(event.kind, EventKind::Upgraded { .. }) {
            self.continue_unended();
        }
        self.check_recorded_place(event)?;
        let decided = self.item_decisions(&event.kind);
        let mut outcomes = event.whole_outcomes()?;
        outcomes.append(&mut self.implied_outcomes(&event.kind, &decided));
        let unknown = self.new_unknown_calls(&event.kind, &outcomes);
        let unknown_inside = self.commit_inner(event, folding)?;
        let (usage, model, calls_inside) = spent_by(Some(&*self), &event.kind);
        let model = model.map(str::to_owned);
        // NOTE: The store keeps no past of shared scopes, so the event has the values that the run found there:
        // docs/decisions/runner.md.
        if folding == FoldMode::Live && self.tally.events > 0 {
            event.restore_shared(&mut self.state);
        }
        match folding {
            FoldMode::Live => event.fold(&mut self.state)?,
            FoldMode::CatchUp => event.fold_messages(&mut self.state),
        }
        self.tally.events += 1;
        // A record may say any number: the step after it can be counted.
        self.tally.steps = event.step.min(u64::MAX - 1);
        // NOTE: The clock of another host may be behind; the time of a run never decreases.
        self.tally.elapsed = event.elapsed.max(self.tally.elapsed);
        match &event.kind {
            EventKind::Replied { .. } => self.tally.rescues = 0,
            EventKind::Narrowed { .. } => self.tally.rescues = self.tally.rescues.saturating_add(1),
            _ => {}
        }
        self.note_ids(event);
        self.note_decisions(&event.kind);
        self.note_edit(event, folding);
        self.note_upgrade(&event.kind);
        self.count_calls(&event.kind, calls_inside, &outcomes);
        self.unknown.extend(unknown.into_iter().chain(unknown_inside));
        match (&event.kind, folding) {
            (_, FoldMode::CatchUp) => self.is_lost = true,
            // The calls of a new reply have not begun elsewhere.
            (EventKind::Started { .. } | EventKind::Replied { .. }, FoldMode::Live) => self.is_lost = false,
            (EventKind::Decided { .. }, FoldMode::Live) => self.note_ahead(&decided),
            (EventKind::Hooked { point: HookPoint::BeforeTool, .. }, FoldMode::Live) => self.note_hooked(),
            _ => {}
        }
        self.is_taken_up = folding == FoldMode::CatchUp;
        // NOTE: `Opening` is only a placeholder: the old phase is moved out, and nothing fails before the new one is
        // set.
        let phase = std::mem::replace(&mut self.phase, RunPhase::Opening);
        let phase = self.phase_after(event, phase, outcomes, &decided);
        self.count_usage(usage, model);
        self.phase = match phase {
            RunPhase::Working(mut step) => match &event.step_end {
                None => {
                    step.note_runnable();
                    RunPhase::Working(step)
                }
                Some(end) => {
                    step.mark_unmerged(end);
                    self.tally.repeats = end.repeats;
                    self.after_step(step)
                }
            },
            phase => phase,
        };
        self.mark_redacted(event);
        self.advance();
        // What the model is shown grows between steps, when every call has its result.
        if let RunPhase::Asking { .. } = &self.phase {
            self.prompt.grow(self.state.messages());
        }
        Ok(())
    }

    /// Folds an event of a record into a run whose state already has the event's writes, because the owner of
    /// the state has merged them: only messages are appended.
    ///
    /// # Errors
    /// As [`commit`](Run::commit).
    #[expect(clippy::needless_pass_by_value, reason = "an event is committed once")]
    pub fn catch_up(&mut self, event: Event) -> Result<(), FeedError> {
        self.commit_as(&event, FoldMode::CatchUp)
    }

    /// Restores a run that has ended from its record, whatever the agent is today: the events count, even where this
    /// agent would not have produced them, and the run ended with this exit.
    ///
    /// As for [`catch_up`](Run::catch_up), the state already has the writes of the events.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Exit, Input, Outcome, Run, RunEvent};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let mut seen: Vec<RunEvent> = Vec::new();
    /// agent.run("which area has most stalls?").id("run-1").observe(&mut seen).await?;
    /// let events = seen.iter().filter_map(|event| event.committed().cloned());
    ///
    /// // Today's agent would have called a hook first.
    /// let today = Agent::builder(Script::parse("")?)
    ///     .before_run(async |_: stepfold_agent_loop::HookContext| Ok(stepfold_agent_loop::HookAction::proceed()))
    ///     .build()?;
    /// let run = Run::new(&today, Input::new(), "run-1")?.ended_as(events, Exit::Text);
    /// let outcome = Outcome::recorded(run);
    /// assert_eq!((outcome.exit(), &*outcome.text()), (&Exit::Text, "area 3"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn ended_as(mut self, events: impl IntoIterator<Item = Event>, exit: Exit) -> Self {
        let mut is_followed = true;
        for event in events {
            is_followed = is_followed && self.commit_as(&event, FoldMode::CatchUp).is_ok();
            if !is_followed {
                self.fold_unchecked(&event);
            }
        }
        self.phase = RunPhase::Done(exit);
        self
    }

    /// Folds an event that does not fit where the run is: the conversation, and what is counted.
    fn fold_unchecked(&mut self, event: &Event) {
        let (usage, model, calls_inside) = spent_by(Some(&*self), &event.kind);
        let model = model.map(str::to_owned);
        event.fold_messages(&mut self.state);
        let tally = &mut self.tally;
        tally.events += 1;
        tally.steps = event.step.min(u64::MAX - 1);
        tally.elapsed = event.elapsed.max(tally.elapsed);
        match &event.kind {
            EventKind::Replied { finish_reason, output, .. } => {
                tally.finish_reason = Some(finish_reason.clone());
                tally.output = match output {
                    Some(OutputDisposition::Valid(value)) => Some(value.clone()),
                    Some(OutputDisposition::Invalid { .. }) | None => None,
                };
            }
            EventKind::Answered(_) => {
                let outcomes = event.whole_outcomes().unwrap_or_default();
                for outcome in outcomes.iter().filter_map(|answered| answered.outcome.call()) {
                    *tally.calls.entry(outcome.tool()) += 1;
                }
            }
            EventKind::Inner { .. } => tally.calls_inside += calls_inside,
            _ => {}
        }
        self.count_usage(usage, model);
    }

    /// Whether the event can happen where the run is, or where its record says that it was.
    fn check_recorded_place(&mut self, event: &Event) -> Result<(), FeedError> {
        let Err(error) = self.check_place(event) else { return Ok(()) };
        let recorded = self.recorded_phase(&event.kind).filter(|_| self.is_of_other_agent).ok_or(error)?;
        let here = std::mem::replace(&mut self.phase, recorded);
        // Where the other agent was about to end and this one continues, what the hooks did counts, and the end does not.
        let is_of_end =
            matches!(event.kind, EventKind::Hooked { point: HookPoint::OnExit | HookPoint::AfterRun, .. });
        let fits = if is_of_end { Ok(()) } else { self.check_place(event) };
        if fits.is_err() {
            self.phase = here;
        }
        fits
    }

    /// Whether the event can happen where the run is.
    pub(super) fn check_place(&self, event: &Event) -> Result<(), FeedError> {
        let fits = match (&event.kind, &self.phase) {
            (EventKind::Began { .. }, RunPhase::Fresh(_))
            | (EventKind::Summarized { .. }, RunPhase::Condensing { .. })
            | (EventKind::Steered, RunPhase::Asking { .. }) => true,
            // Only the whole conversation shows that it was too long.
            (EventKind::Summarized { .. }, RunPhase::Asking { .. }) => self.tally.is_pruned,
            (EventKind::Hooked { point: HookPoint::BeforeTool, .. }, RunPhase::Working(step)) => {
                step.calls().is_some_and(|calls| !calls.is_hooked)
            }
            (EventKind::Hooked { point, .. }, _) => {
                *point != HookPoint::AfterTool
                    && matches!(self.decide(), RunNeed::Hook(needed) if needed == *point)
            }
            (EventKind::Narrowed { .. }, RunPhase::Asking { is_hooked: true, .. }) => self.may_be_rescued(),
            (EventKind::Replied { fates, .. }, RunPhase::Asking { is_hooked: true, .. }) => {
                let calls = event.messages.first().map_or(0, |reply| reply.tool_calls().count());
                !event.messages.is_empty() && fates.iter().all(|(place, _)| *place < calls) && is_asked(fates)
            }
            (EventKind::Upgraded { .. }, phase) => !matches!(phase, RunPhase::Fresh(_) | RunPhase::Done(_)),
            (EventKind::Edited { results, arguments, .. }, _) => {
                let are_ahead = arguments.iter().all(|(id, _)| self.call_not_begun(id).is_ok());
                self.takes_edits() && self.has_results(results) && are_ahead
            }
            (kind, RunPhase::Working(step)) => step.fits(kind),
            (EventKind::Cancelled | EventKind::TimedOut, phase) => {
                !matches!(phase, RunPhase::Fresh(_) | RunPhase::Done(_) | RunPhase::Closing(_))
            }
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(self.not_needed(event.name())),
        }
    }

    /// The phase that the event itself leads to, before it is asked what comes after a step. The event fits.
    fn phase_after(
        &mut self,
        event: &Event,
        phase: RunPhase,
        outcomes: Vec<ItemOutcome>,
        decided: &[ItemDecision<'_>],
    ) -> RunPhase {
        match (&event.kind, phase) {
            (EventKind::Began { id, instructions, shown, cleared, messages_before, .. }, _) => {
                if *self.id != **id {
                    self.id = id.as_str().into();
                }
                let log = self.state.messages().clone();
                self.tally.turn_start = log.turn_start(log.len()).unwrap_or(0);
                let pruned = match &event.rewrite {
                    Some(_) => 0,
                    None => messages_before.saturating_add(event.messages.len()).saturating_sub(log.len()),
                };
                self.tally.is_pruned = pruned > 0;
                let shown = shown.as_ref().map(|shown| shown.without_first(pruned));
                let view = view_of(&log, shown.as_ref(), self.summary.as_ref());
                let view = view.with_cleared(&log, &cleared.without_first(pruned));
                let earlier = self.cache.prompt.take().filter(|_| event.rewrite.is_none());
                let followed = earlier.filter(|_| self.agent.config().window.is_none()).and_then(|earlier| {
                    ModelPrompt::following(*earlier, instructions.as_deref(), &view, &log)
                });
                match followed {
                    Some(prompt) => self.prompt = prompt,
                    None => self.set_prompt(instructions.clone(), view, &log),
                }
                RunPhase::Opening
            }
            (EventKind::Summarized { summary: Some(summary), .. }, _) => {
                self.summary = Some(summary.of_end(self.transcript().len()));
                RunPhase::condensing()
            }
            (EventKind::Summarized { summary: None, .. }, _) => {
                RunPhase::Condensing { gave_up: true, is_rescue: false }
            }
            (EventKind::Narrowed { shown, cleared, messages, summarizes, .. }, phase) => {
                self.show_narrowed(shown, cleared, *messages);
                if *summarizes { RunPhase::Condensing { gave_up: false, is_rescue: true } } else { phase }
            }
            (EventKind::Steered, RunPhase::Asking { last, .. }) => {
                RunPhase::Asking { is_hooked: false, last }
            }
            (EventKind::Replied { finish_reason, gives_up: true, .. }, _) => {
                self.tally.finish_reason = Some(finish_reason.clone());
                RunPhase::Leaving(Exit::EmptyReply(finish_reason.as_str().to_owned()))
            }
            (
                EventKind::Replied { finish_reason, fates, listed, output, .. },
                RunPhase::Asking { last, .. },
            ) => {
                self.tally.finish_reason = Some(finish_reason.clone());
                self.after_reply(event, (fates, listed, outcomes), output.as_ref(), last)
            }
            (kind, RunPhase::Working(step)) => self.after_work(kind, after_outcomes(step, outcomes), decided),
            (EventKind::Hooked { verdict, .. }, phase) => self.after_hooks(verdict, phase),
            (EventKind::Edited { drops_summary, .. }, phase) => after_edit(*drops_summary, phase),
            // The limits of the new agent may be lower.
            (EventKind::Upgraded { .. }, RunPhase::Asking { last: None, .. }) if self.limit().is_some() => {
                self.ask_within_limits()
            }
            (EventKind::Cancelled, _) => RunPhase::Closing(Exit::Cancelled),
            // NOTE: The exit is decided already, and stays; only the hooks on exit are skipped.
            (EventKind::TimedOut, RunPhase::Leaving(exit)) => RunPhase::Closing(exit),
            (EventKind::TimedOut, _) => RunPhase::Leaving(Exit::MaxTime),
            (_, phase) => phase,
        }
    }

    pub(super) fn set_prompt(
        &mut self,
        instructions: Option<String>,
        view: stepfold_trim::View,
        log: &Transcript,
    ) {
        self.prompt = ModelPrompt::new(&self.agent, instructions, view, log, self.tally.turn_start);
    }

    fn after_hooks(&self, verdict: &HookVerdict, phase: RunPhase) -> RunPhase {
        match (phase, verdict) {
            (RunPhase::Closing(exit), _) => RunPhase::Done(exit),
            (_, HookVerdict::Stop(reason)) => RunPhase::Closing(Exit::Hook(reason.clone())),
            (RunPhase::Opening, _) => self.after_opening(),
            (RunPhase::Asking { last, .. }, _) => RunPhase::Asking { is_hooked: true, last },
            // NOTE: A limit bounds the cost of a run, whatever its hooks want.
            (RunPhase::Leaving(exit), HookVerdict::GoOn) if !exit.is_limit() && self.planner().is_none() => {
                self.ask_model_again()
            }
            (RunPhase::Leaving(exit), _) => RunPhase::Closing(exit),
            (phase, _) => phase,
        }
    }

    /// The first phase of work: the model, or the nodes of a graph.
    fn after_opening(&self) -> RunPhase {
        match self.planner() {
            Some(_) => RunPhase::Working(OpenStep::of_walk()),
            None => RunPhase::condensing(),
        }
    }

    /// Asks the model again, if the limits allow it.
    fn ask_model_again(&self) -> RunPhase {
        match self.limit() {
            // NOTE: Not `Leaving`, which would call the same hooks on exit again, for another exit.
            Some(limit) => RunPhase::Closing(limit),
            None => RunPhase::asking(),
        }
    }

    fn after_reply(
        &mut self,
        event: &Event,
        (fates, listed, answered): (&[(usize, CallDisposition)], &[ListedTool], Vec<ItemOutcome>),
        output: Option<&OutputDisposition>,
        last: Option<Exit>,
    ) -> RunPhase {
        // An output that was there and did not end the run, because a hook continued, no longer counts.
        self.tally.output = None;
        match output {
            Some(OutputDisposition::Valid(value)) => self.tally.output = Some(value.clone()),
            Some(OutputDisposition::Invalid { .. }) => self.tally.output_faults += 1,
            None => {}
        }
        let reply = event.messages.first();
        let Some(reply) = reply.filter(|reply| reply.has_tool_calls()) else {
            let has_text = reply.is_some_and(|reply| !reply.text().is_empty());
            let phase = self.after_text(has_text, output, last);
            let is_empty = output.is_none() && matches!(phase, RunPhase::Asking { .. });
            self.tally.empty_replies = if is_empty { self.tally.empty_replies.saturating_add(1) } else { 0 };
            return phase;
        };
        self.tally.empty_replies = 0;
        let mut spent = self.spent();
        // That of the reply itself is counted next.
        spent.tokens += spent_by(None, &event.kind).0.total_tokens();
        let mut step = OpenStep::of_calls(Arc::clone(reply), last, spent);
        step.note_listed(listed);
        step.apply_fates(fates);
        RunPhase::Working(after_outcomes(step, answered))
    }

    /// The phase after a reply without calls.
    fn after_text(&self, has_text: bool, output: Option<&OutputDisposition>, last: Option<Exit>) -> RunPhase {
        let wants_output = self.agent.output_spec().is_some();
        let exit = last.or_else(|| self.truncation_exit()).or_else(|| match output {
            Some(OutputDisposition::Valid(_)) => Some(Exit::Output),
            Some(OutputDisposition::Invalid { again, .. }) => (!again).then_some(Exit::InvalidOutput),
            // If an output is due, blank text does not count as an answer.
            None if wants_output => None,
            None if has_text => Some(Exit::Text),
            // With tools an empty reply is not an exit: the model is asked again, within the limits.
            None => self.agent.has_no_tools().then_some(Exit::NoTools),
        });
        match (exit, output) {
            (Some(exit), _) => RunPhase::Leaving(exit),
            (None, Some(_)) => RunPhase::asking(),
            (None, None) => self.ask_within_limits(),
        }
    }

    /// The exit that follows if the last reply was cut.
    fn truncation_exit(&self) -> Option<Exit> {
        self.tally.finish_reason.as_ref().and_then(Exit::of_finish)
    }

    /// The phase after an event of the open step; its outcomes are in the items already.
    fn after_work(&mut self, kind: &EventKind, mut step: OpenStep, decided: &[ItemDecision<'_>]) -> RunPhase {
        match kind {
            EventKind::Planned { exit: Some(exit), .. } => return RunPhase::Leaving(exit.clone()),
            EventKind::Planned { branches, deferred, arrived, .. } => {
                step.begin_superstep(branches, deferred, arrived);
            }
            EventKind::Hooked { verdict, writes, .. } => step.apply_hooks(verdict, writes),
            EventKind::Decided { .. } => self.approved.extend(step.apply_decisions(decided)),
            EventKind::Edited { results, arguments, .. } => step.apply_edit(results, arguments),
            EventKind::Asked { fates, listed } => {
                step.note_listed(listed);
                step.apply_fates(fates);
            }
            EventKind::Started { places } => {
                for place in places {
                    step.items.change(*place, |item| item.state = ItemState::Started);
                }
            }
            EventKind::Asks { place, requests } => {
                step.items.change(*place, |item| item.asks_within(requests));
            }
            EventKind::Interrupted { places, asks: true, inputs_from_state, shown } => {
                for place in places {
                    let inputs = inputs_from_state.iter().find(|(at, _)| at == place);
                    let inputs = inputs.map(|(_, inputs)| inputs.clone()).unwrap_or_default();
                    let tool = shown.iter().find(|tool| tool.place == *place);
                    let question = ApprovalQuestion::new(AskReason::MayHaveHappened, inputs);
                    let question = question
                        .about(
                            tool.map(|tool| tool.definition.clone()),
                            tool.and_then(|tool| tool.change.clone()),
                        )
                        .with_parameters(tool.and_then(|tool| tool.parameters.clone()));
                    step.items.change(*place, |item| {
                        item.ask(question);
                        if let Some(tool) = tool {
                            item.dependency.clone_from(&tool.dependency);
                        }
                    });
                }
            }
            EventKind::Cancelled | EventKind::TimedOut => {
                let exit = if *kind == EventKind::Cancelled { Exit::Cancelled } else { Exit::MaxTime };
                match &mut step.plan {
                    // NOTE: Hooks on exit are passed over, since they cannot overrule a cancellation.
                    StepPlan::Branches(_) if exit == Exit::Cancelled => return RunPhase::Closing(exit),
                    StepPlan::Branches(_) => return RunPhase::Leaving(exit),
                    StepPlan::Calls(calls) => calls.last = Some(exit),
                }
            }
            _ => {}
        }
        RunPhase::Working(step)
    }

    /// The phase after the end of a step.
    fn after_step(&self, step: OpenStep) -> RunPhase {
        let StepPlan::Calls(calls) = &step.plan else { return RunPhase::Working(step) };
        match (&calls.last, &calls.stop) {
            (Some(Exit::Cancelled), _) => return RunPhase::Closing(Exit::Cancelled),
            (_, Some(reason)) => return RunPhase::Closing(Exit::Hook(reason.clone())),
            _ => {}
        }
        let (spec, tally, guard) = (self.agent.output_spec(), &self.tally, self.agent.config().repeat_guard);
        let is_hopeless = spec.is_some_and(|spec| tally.output_faults > spec.output.repairs);
        let is_repeated = guard.is_some_and(|guard| tally.repeats >= guard.stop);
        let exit = (calls.last.clone())
            .or_else(|| self.truncation_exit())
            .or_else(|| (tally.output.is_some() && spec.is_some()).then_some(Exit::Output))
            .or_else(|| self.exit_tool(&step.items).map(Exit::Tool))
            .or_else(|| is_hopeless.then_some(Exit::InvalidOutput))
            // An agent that had tools asked for these calls: this one has not replied.
            .or_else(|| (self.agent.has_no_tools() && !calls.is_upgraded).then_some(Exit::NoTools))
            .or_else(|| is_repeated.then_some(Exit::RepeatedCalls));
        exit.map_or_else(|| self.ask_within_limits(), RunPhase::Leaving)
    }

    /// The exit tool that was called, unless one failed. All calls of the reply are looked at; what was
    /// rejected was not called.
    fn exit_tool(&self, items: &ItemList) -> Option<String> {
        let exits = &self.agent.config().exit_tools;
        let mut called = None;
        for outcome in items.iter().filter_map(|item| item.outcome()?.call()) {
            // NOTE: A rejected call was never made, so it neither ends the run nor counts as a failed exit tool.
            let is_rejected = outcome.status == CallStatus::Failed(CallFailure::Rejected);
            if is_rejected || !exits.iter().any(|exit| exit == outcome.tool()) {
                continue;
            }
            // NOTE: The model reads the failure, and may correct the call.
            if !outcome.succeeded() {
                return None;
            }
            called.get_or_insert_with(|| outcome.tool().to_owned());
        }
        called
    }

    /// The limit that is reached, if one is.
    pub(super) fn limit(&self) -> Option<Exit> {
        let (limits, tally) = (self.limits(), &self.tally);
        let calls = self.spent().calls;
        let reached = [
            (tally.steps >= limits.steps, Exit::MaxSteps),
            (limits.tool_calls.is_some_and(|limit| calls >= limit), Exit::MaxToolCalls),
            (limits.tokens.is_some_and(|limit| tally.usage.total_tokens() >= limit), Exit::MaxTokens),
            (limits.time.is_some_and(|limit| tally.elapsed >= limit), Exit::MaxTime),
        ];
        reached.into_iter().find(|(is_reached, _)| *is_reached).map(|(_, exit)| exit)
    }

    /// The amounts that count for the limits.
    pub(super) fn spent(&self) -> SpentBudget {
        let tally = &self.tally;
        SpentBudget {
            calls: tally.calls.iter().map(|(_, calls)| calls).sum::<u64>() + tally.calls_inside,
            tokens: tally.usage.total_tokens(),
            elapsed: tally.elapsed,
        }
    }

    /// Asks the model. Where a limit is reached, ends, or asks for one last answer.
    fn ask_within_limits(&self) -> RunPhase {
        match self.limit() {
            // NOTE: A final answer would take more of the time that is up.
            Some(limit) if limit == Exit::MaxTime || !self.agent.config().final_answer => {
                RunPhase::Leaving(limit)
            }
            last => RunPhase::Asking { is_hooked: false, last },
        }
    }

    /// Passes every phase without work.
    fn advance(&mut self) {
        loop {
            let next = match &self.phase {
                RunPhase::Opening if !self.has_hook(HookPoint::BeforeRun) => self.after_opening(),
                RunPhase::Condensing { gave_up, .. }
                    if *gave_up || self.tally.is_pruned || self.summary_plan().is_none() =>
                {
                    self.show_condensed(*gave_up);
                    RunPhase::asking()
                }
                RunPhase::Asking { is_hooked: false, last } if !self.has_hook(HookPoint::BeforeModel) => {
                    RunPhase::Asking { is_hooked: true, last: last.clone() }
                }
                RunPhase::Leaving(exit) if !self.has_hook(HookPoint::OnExit) => {
                    RunPhase::Closing(exit.clone())
                }
                RunPhase::Closing(exit) if !self.has_hook(HookPoint::AfterRun) => {
                    RunPhase::Done(exit.clone())
                }
                _ => return,
            };
            self.phase = next;
        }
    }

    /// Shows the part that summaries let through; where one could not be made, the part that the trim lets through.
    fn show_condensed(&mut self, gave_up: bool) {
        let config = self.agent.config();
        if config.summarize.is_none() {
            return;
        }
        let log = self.state.messages().clone();
        let view = view_of(&log, None, self.summary.as_ref());
        let view = if gave_up { config.trim.narrow(&view, &log) } else { view };
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.set_prompt(instructions, view, &log);
    }

    fn note_ids(&mut self, event: &Event) {
        let is_new = matches!(event.kind, EventKind::Began { .. }) && self.cache.messages == 0;
        if event.rewrite.is_some() || is_new {
            self.cache.call_ids = CallIdSet::of(self.state.messages());
            if event.rewrite.is_some() && !matches!(event.kind, EventKind::Began { .. }) {
                self.show_rewritten();
            }
            return;
        }
        let calls = event.messages.iter().flat_map(|message| message.tool_calls());
        calls.for_each(|call| self.cache.call_ids.insert(&call.id));
    }

    /// Shows the part of a rewritten log that the policies let through.
    fn show_rewritten(&mut self) {
        let log = self.state.messages().clone();
        self.tally.turn_start = log.turn_start(log.len()).unwrap_or(0);
        self.summary = None;
        let view = self.agent.config().trim.view(&log);
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.set_prompt(instructions, view, &log);
    }

    /// Counts the calls that an event answers, before it changes them. Not those that it answers once more, after a hook
    /// that had failed.
    fn count_calls(&mut self, kind: &EventKind, inside: u64, outcomes: &[ItemOutcome]) {
        match kind {
            EventKind::Answered(_) => {}
            EventKind::Inner { .. } => {
                self.tally.calls_inside += inside;
                return;
            }
            _ => return,
        }
        for answered in outcomes {
            let is_first = self.item(answered.place).is_some_and(|item| item.hook_pending().is_none());
            let Some(outcome) = answered.outcome.call().filter(|_| is_first) else { continue };
            *self.tally.calls.entry(outcome.tool()) += 1;
        }
    }

    fn count_usage(&mut self, usage: Usage, model: Option<String>) {
        // As it comes, so that it counts as well when the run inside fails or is stopped.
        self.tally.usage += usage;
        if let Some(model) = model.filter(|_| usage != Usage::default()) {
            *self.tally.usage_by_model.entry(model) += usage;
        }
    }
}

/// Whether each is about another place. Those of an event that this version made are in order.
fn are_different(items: &[AnsweredItem]) -> bool {
    let mut places = BTreeSet::new();
    items.is_sorted_by(|one, next| one.place < next.place)
        || items.iter().all(|item| places.insert(item.place))
}

impl OpenStep {
    /// Whether an event that is about the items of a step can happen there.
    fn fits(&self, kind: &EventKind) -> bool {
        let item = |place: &usize| self.items.get(*place);
        let may_run = |place: &usize| item(place).is_some_and(StepItem::may_run);
        match kind {
            EventKind::Asked { fates, listed } => self.may_ask(fates, listed),
            EventKind::Started { places } => {
                // No call of a reply runs before all decisions about that reply are there.
                // NOTE: If approved calls ran while others wait, the order of the decisions would determine what a call
                // reads.
                let are_decided = self.calls().is_none() || !self.items.any(ItemCondition::Asked);
                are_decided && places.iter().all(may_run)
            }
            EventKind::Interrupted { places, .. } => {
                let may_be_lost = |item: &StepItem| item.is_started() || item.may_have_begun();
                !places.is_empty() && places.iter().all(|place| item(place).is_some_and(may_be_lost))
            }
            EventKind::Inner { place, .. } => {
                item(place).is_some_and(|item| matches!(item.state, ItemState::Ready))
            }
            EventKind::Asks { place, .. } => item(place).is_some_and(|item| !item.is_done()),
            EventKind::Answered(items) => {
                let may_end = |answered: &AnsweredItem| {
                    answered.outcome.is_call() == self.calls().is_some()
                        && item(&answered.place).is_some_and(|item| !item.is_done() && !item.waits())
                };
                !items.is_empty() && are_different(items) && items.iter().all(may_end)
            }
            EventKind::Planned { .. } => self.walk().is_some() && !self.items.any(ItemCondition::Open),
            EventKind::Decided { .. } | EventKind::Cancelled | EventKind::TimedOut => true,
            _ => false,
        }
    }

    /// A superstep begins.
    fn begin_superstep(
        &mut self,
        branches: &[PlannedBranch],
        deferred: &[PlannedBranch],
        arrived: &[JoinArrivals],
    ) {
        let items = branches
            .iter()
            .cloned()
            .map(|planned| StepItem { planned: Some(planned), ..StepItem::default() });
        self.items = items.collect::<Vec<_>>().into();
        if let StepPlan::Branches(walk) = &mut self.plan {
            walk.count(branches);
            walk.has_begun = true;
            walk.deferred = deferred.to_vec();
            walk.arrived = arrived.to_vec();
        }
    }

    /// The hooks before tools have seen the calls.
    fn apply_hooks(&mut self, verdict: &HookVerdict, writes: &[(usize, Delta)]) {
        for (place, delta) in writes {
            self.items.change(*place, |item| item.writes.extend(delta.clone()));
        }
        if let StepPlan::Calls(calls) = &mut self.plan {
            calls.is_hooked = true;
            if let HookVerdict::Stop(reason) = verdict {
                calls.stop = Some(reason.clone());
            }
        }
        self.items.change_all(|items| items.iter_mut().for_each(|item| item.is_unhooked = false));
    }

    /// Applies decisions to the items that were not rejected. Returns the calls that were approved.
    fn apply_decisions(&mut self, decided: &[ItemDecision<'_>]) -> Vec<ApprovedCall> {
        let was_hooked = self.was_hooked();
        let mut approved = Vec::new();
        for ItemDecision { place, inside, decision } in decided {
            self.items.change(*place, |item| match inside {
                Some(id) => item.decisions.push((id.clone(), (*decision).clone())),
                None if item.is_done() => {}
                None => item.allow(decision, was_hooked),
            });
            let item = self.items.get(*place).filter(|item| inside.is_none() && !item.is_done());
            // An approval holds for the same arguments, and these are not known any more.
            let item = item.filter(|item| !item.is_redacted);
            if let Some((item, call)) = item.zip(self.call(*place)) {
                let (definition, dependency) = (item.definition.clone(), item.dependency.clone());
                approved.push(ApprovedCall::of(&item.as_run(call), &item.inputs, definition, dependency));
            }
        }
        let are_hooked = self.items.iter().all(|item| !item.is_unhooked);
        if let StepPlan::Calls(calls) = &mut self.plan {
            calls.is_hooked &= are_hooked;
        }
        approved
    }
}

/// The items with these outcomes.
fn after_outcomes(mut step: OpenStep, outcomes: Vec<ItemOutcome>) -> OpenStep {
    for ItemOutcome { place, outcome, stop, pending_hook } in outcomes {
        step.items.change(place, |item| match (outcome, pending_hook) {
            (WorkOutcome::Call(outcome), Some(hook)) => {
                item.child = None;
                // NOTE: The call has happened: without its outcome in the record a payment would be made twice. The
                // model is not shown it before the hook has run, so a hook that redacts never fails open.
                item.state = ItemState::HookPending(Box::new(UnseenOutcome { outcome, hook }));
            }
            (outcome, _) => item.finish(outcome),
        });
        if let StepPlan::Calls(calls) = &mut step.plan {
            calls.stop = calls.stop.take().or(stop);
        }
    }
    step
}

/// The tokens that an event adds to a run, the model that used them, and, of a run inside, its calls, which
/// count for limits of the run around it.
fn spent_by<'a>(run: Option<&'a Run>, kind: &'a EventKind) -> (Usage, Option<&'a str>, u64) {
    let own_model = || run.map(|run| run.agent().model().id());
    match kind {
        EventKind::Replied { usage, model, .. } => (*usage, model.as_deref().or_else(own_model), 0),
        EventKind::Summarized { usage, .. } => (*usage, own_model(), 0),
        EventKind::Answered(items) => {
            // One that a hook has still to see is answered once more.
            let is_counted = |item: &&AnsweredItem| item.outcome.is_call() && item.pending_hook.is_none();
            (Usage::default(), None, items.iter().filter(is_counted).count() as u64)
        }
        EventKind::Inner { place, event } => {
            spent_by(run.and_then(|run| run.item(*place)?.child()), &event.kind)
        }
        _ => (Usage::default(), None, 0),
    }
}
