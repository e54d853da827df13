//! The fold: an event changes where the run is. Nothing is decided here that is not in the event, but for
//! what comes next.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_state_core::chat::{Message, Transcript, Usage};
use stepfold_state_core::state::Delta;
use stepfold_tools::{CallFailure, CallStatus};

use super::call_ids::CallIds;
use super::edited::after_edit;
use super::event::{Event, EventKind, Fate, OutputFate};
use super::feed::{broken_off_call, hooked_outcome};
use super::machine::{Approved, Phase, Run};
use super::prompt::{Prompt, view_of};
use super::recorded::AnsweredItem;
use super::requests::{Asker, decided_outcome};
use super::task::shown_in;
use super::work::{
    HookPending, Item, ItemOutcome, ItemState, Items, Plan, Spent, Work, WorkOutcome, is_asked,
};
use crate::agent::{HookPoint, HookVerdict};
use crate::approval::{AskReason, Decision, Question};
use crate::error::FeedError;
use crate::exit::Exit;

/// On which values events are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folding {
    /// On those that they were made on.
    Live,
    /// On those that there are by now, which have what the events of the run itself write.
    CatchUp,
}

impl Run {
    /// Folds an event into the run: one that [`feed`](Run::feed) made, or one of a record.
    ///
    /// # Errors
    /// [`FeedError`] when the event does not fit where the run is; nothing is changed then.
    #[expect(clippy::needless_pass_by_value, reason = "an event is committed once")]
    pub fn commit(&mut self, event: Event) -> Result<(), FeedError> {
        self.follow(&event)
    }

    /// [Commits](Run::commit) an event that its host keeps: to tell others of it, or for a second run that follows this
    /// one.
    ///
    /// # Errors
    /// As [`commit`](Run::commit).
    pub fn follow(&mut self, event: &Event) -> Result<(), FeedError> {
        self.commit_as(event, Folding::Live)
    }

    fn commit_as(&mut self, event: &Event, folding: Folding) -> Result<(), FeedError> {
        self.check_place(event)?;
        let outcomes = event.whole_outcomes()?;
        let unknown = self.unknown_by(&event.kind);
        let unknown_inside = self.commit_inner(event, folding)?;
        let (usage, calls_inside) = spent_by(&event.kind);
        let model = if usage == Usage::default() { None } else { self.model_asked(&event.kind) };
        // The message whose calls are open, before the end of the step appends their results.
        let reply = self.transcript().last().cloned();
        if folding == Folding::Live && self.tally.events > 0 {
            event.restore_shared(&mut self.state);
        }
        match folding {
            Folding::Live => event.fold(&mut self.state)?,
            Folding::CatchUp => event.fold_messages(&mut self.state),
        }
        self.tally.events += 1;
        // A record may say any number: the step after it can be counted.
        self.tally.steps = event.step.min(u64::MAX - 1);
        self.tally.elapsed = event.elapsed.max(self.tally.elapsed);
        self.note_ids(event);
        self.note_decisions(&event.kind);
        self.note_edit(event, folding);
        self.count_calls(&event.kind, calls_inside, &outcomes);
        self.unknown.extend(unknown.into_iter().chain(unknown_inside));
        match (&event.kind, folding) {
            (_, Folding::CatchUp) => self.is_lost = true,
            (EventKind::Started { .. }, Folding::Live) => self.is_lost = false,
            _ => {}
        }
        self.is_taken_up = folding == Folding::CatchUp;
        let phase = std::mem::replace(&mut self.phase, Phase::Opening);
        let phase = self.phase_after(event, phase, reply.as_deref(), outcomes);
        self.count_usage(usage, model);
        self.phase = match phase {
            Phase::Working(mut work) => match &event.step_end {
                Some(end) => {
                    work.mark_unmerged(end);
                    self.tally.repeats = end.repeats;
                    self.after_step(work)
                }
                None => Phase::Working(work),
            },
            phase => phase,
        };
        self.advance();
        // What the model is shown grows between steps, when every call has its result.
        if let Phase::Asking { .. } = &self.phase {
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
        self.commit_as(&event, Folding::CatchUp)
    }

    /// Whether the event can happen where the run is.
    fn check_place(&self, event: &Event) -> Result<(), FeedError> {
        let fits = match (&event.kind, &self.phase) {
            (EventKind::Began { .. }, Phase::Fresh(_))
            | (EventKind::Summarized { .. }, Phase::Condensing { .. })
            | (EventKind::Steered, Phase::Asking { .. }) => true,
            // That the conversation was too long is told by all of it.
            (EventKind::Summarized { .. }, Phase::Asking { .. }) => self.tally.is_pruned,
            (EventKind::Hooked { point, .. }, phase) => match (point, phase) {
                (HookPoint::BeforeTool, Phase::Working(work)) => {
                    work.calls().is_some_and(|calls| !calls.is_hooked)
                }
                (point, phase) => matches!(
                    (point, phase),
                    (HookPoint::BeforeRun, Phase::Opening)
                        | (HookPoint::BeforeModel, Phase::Asking { is_hooked: false, .. })
                        | (HookPoint::OnExit, Phase::Leaving(_))
                        | (HookPoint::AfterRun, Phase::Closing(_))
                ),
            },
            (EventKind::Replied { fates, .. }, Phase::Asking { is_hooked: true, .. }) => {
                let calls = event.messages.first().map_or(0, |reply| reply.tool_calls().count());
                !event.messages.is_empty() && fates.iter().all(|(place, _)| *place < calls) && is_asked(fates)
            }
            (EventKind::Edited { results, arguments, .. }, _) => {
                self.may_be_edited() && self.has_results(results) && self.are_ahead(arguments)
            }
            (kind, Phase::Working(work)) => fits_work(work, kind),
            (EventKind::Cancelled | EventKind::TimedOut, phase) => {
                !matches!(phase, Phase::Fresh(_) | Phase::Done(_) | Phase::Closing(_))
            }
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(FeedError::Misplaced { event: event.name(), need: self.decide().to_string() }),
        }
    }

    /// The phase that the event itself leads to, before it is asked what comes after a step. The event fits.
    fn phase_after(
        &mut self,
        event: &Event,
        phase: Phase,
        reply: Option<&Message>,
        outcomes: Vec<ItemOutcome>,
    ) -> Phase {
        match (&event.kind, phase) {
            (EventKind::Began { id, instructions, shown, messages_before, .. }, _) => {
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
                let earlier = self.shown_before.take().filter(|_| event.rewrite.is_none());
                let followed = earlier
                    .filter(|_| self.agent.config().window.is_none())
                    .and_then(|earlier| Prompt::following(*earlier, instructions.as_deref(), &view, &log));
                match followed {
                    Some(prompt) => self.prompt = prompt,
                    None => self.show(instructions.clone(), view, &log),
                }
                Phase::Opening
            }
            (EventKind::Summarized { summary: Some(summary), .. }, _) => {
                self.summary = Some(summary.of_end(self.transcript().len()));
                Phase::Condensing { gave_up: false }
            }
            (EventKind::Summarized { summary: None, .. }, _) => Phase::Condensing { gave_up: true },
            (EventKind::Steered, Phase::Asking { last, .. }) => Phase::Asking { is_hooked: false, last },
            (EventKind::Hooked { verdict, answers, writes, .. }, Phase::Working(work)) => {
                Phase::Working(after_tool_hooks(work, reply, verdict, answers, writes))
            }
            (EventKind::Hooked { verdict, .. }, phase) => self.after_hooks(verdict, phase),
            (EventKind::Replied { finish_reason, fates, output, .. }, Phase::Asking { last, .. }) => {
                self.tally.finish_reason = Some(finish_reason.clone());
                self.after_reply(event, (fates, outcomes), output.as_ref(), last)
            }
            (EventKind::Decided { decisions, key_prefix, .. }, Phase::Working(work)) => {
                let asker = self.asker_of(key_prefix.as_deref());
                Phase::Working(self.after_decisions(work, reply, decisions, &asker))
            }
            (EventKind::Edited { .. }, phase) => after_edit(event, phase, reply),
            (EventKind::Planned { exit: Some(exit), .. }, Phase::Working(_)) => Phase::Leaving(exit.clone()),
            (EventKind::Answered(_), Phase::Working(work)) => Phase::Working(after_outcomes(work, outcomes)),
            (kind, Phase::Working(work)) => after_work(work, reply, kind),
            (EventKind::Cancelled, _) => Phase::Closing(Exit::Cancelled),
            (EventKind::TimedOut, Phase::Leaving(exit)) => Phase::Closing(exit),
            (EventKind::TimedOut, _) => Phase::Leaving(Exit::MaxTime),
            (_, phase) => phase,
        }
    }

    pub(super) fn show(&mut self, instructions: Option<String>, view: stepfold_trim::View, log: &Transcript) {
        let window = self.agent.config().window.as_ref();
        self.prompt = Prompt::new(instructions, view, window, log, self.tally.turn_start);
    }

    fn after_hooks(&self, verdict: &HookVerdict, phase: Phase) -> Phase {
        match (phase, verdict) {
            (Phase::Closing(exit), _) => Phase::Done(exit),
            (_, HookVerdict::Stop(reason)) => Phase::Closing(Exit::Hook(reason.clone())),
            (Phase::Opening, _) => self.after_opening(),
            (Phase::Asking { last, .. }, _) => Phase::Asking { is_hooked: true, last },
            (Phase::Leaving(exit), HookVerdict::GoOn) if !exit.is_limit() && self.planner().is_none() => {
                self.ask_again()
            }
            (Phase::Leaving(exit), _) => Phase::Closing(exit),
            (phase, _) => phase,
        }
    }

    /// What comes first: the model, or the nodes of a graph.
    fn after_opening(&self) -> Phase {
        match self.planner() {
            Some(_) => Phase::Working(Work::of_walk()),
            None => Phase::Condensing { gave_up: false },
        }
    }

    /// Asks the model again, if the limits allow it.
    fn ask_again(&self) -> Phase {
        match self.limit() {
            Some(limit) => Phase::Closing(limit),
            None => Phase::Asking { is_hooked: false, last: None },
        }
    }

    fn after_reply(
        &mut self,
        event: &Event,
        (fates, answered): (&[(usize, Fate)], Vec<ItemOutcome>),
        output: Option<&OutputFate>,
        last: Option<Exit>,
    ) -> Phase {
        // An output that was there and did not end the run, because a hook continued, no longer counts.
        self.tally.output = None;
        match output {
            Some(OutputFate::Valid(value)) => self.tally.output = Some(value.clone()),
            Some(OutputFate::Invalid { .. }) => self.tally.output_faults += 1,
            None => {}
        }
        let calls = event.messages.first().map_or(0, |reply| reply.tool_calls().count());
        if calls == 0 {
            let has_text = event.messages.first().is_some_and(|reply| !reply.text().is_empty());
            return self.after_text(has_text, output, last);
        }
        let mut spent = self.spent();
        // That of the reply itself is counted next.
        spent.tokens += spent_by(&event.kind).0.total_tokens();
        let mut work = Work::of_calls(calls, last, spent);
        work.meet(fates);
        Phase::Working(after_outcomes(work, answered))
    }

    /// Where a reply without calls leads.
    fn after_text(&self, has_text: bool, output: Option<&OutputFate>, last: Option<Exit>) -> Phase {
        let finish = self.tally.finish_reason.as_ref();
        if let Some(exit) = last {
            return Phase::Leaving(exit);
        }
        if let Some(exit) = finish.and_then(Exit::of_finish) {
            return Phase::Leaving(exit);
        }
        match output {
            Some(OutputFate::Valid(_)) => return Phase::Leaving(Exit::Output),
            Some(OutputFate::Invalid { again: false, .. }) => return Phase::Leaving(Exit::InvalidOutput),
            Some(OutputFate::Invalid { again: true, .. }) => {
                return Phase::Asking { is_hooked: false, last: None };
            }
            None => {}
        }
        // If an output is due, blank text does not count as an answer.
        if has_text && self.agent.output_spec().is_none() {
            Phase::Leaving(Exit::Text)
        } else if self.agent.has_no_tools() && self.agent.output_spec().is_none() {
            Phase::Leaving(Exit::NoTools)
        } else {
            // An empty reply is not an exit: the model is asked again, within the limits.
            self.limited().unwrap_or(Phase::Asking { is_hooked: false, last: None })
        }
    }

    fn after_decisions(
        &mut self,
        mut work: Work,
        reply: Option<&Message>,
        decisions: &[(String, Decision)],
        asker: &Asker,
    ) -> Work {
        let calls = work.items.len();
        let shown = |place: usize, item: &Item| shown_in(reply, calls, place, Some(item));
        let items = &work.items;
        let decided = asker.decided(items, |place| shown(place, &items[place]), decisions);
        let was_hooked = work.was_hooked();
        let mut approved = Vec::new();
        work.items.change_all(|items| {
            for (place, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.is_done()) {
                let call = shown(place, item);
                let Some(decision) = decided[place] else {
                    let inner = asker.decided_inside(item, &call.id, decisions);
                    item.decisions.extend(inner);
                    continue;
                };
                if let Some(outcome) = decided_outcome(item, &call, decision) {
                    item.finish(outcome);
                    continue;
                }
                item.agree(decision, was_hooked);
                if item.planned.is_none() {
                    approved.push(Approved::of(&item.as_run(&call), &item.inputs));
                }
            }
        });
        let are_hooked = work.items.iter().all(|item| !item.is_unhooked);
        if let Plan::Calls(calls) = &mut work.plan {
            calls.is_hooked &= are_hooked;
        }
        self.approved.extend(approved);
        work
    }

    /// Where the end of a step leads.
    fn after_step(&self, work: Work) -> Phase {
        let Plan::Calls(calls) = &work.plan else { return Phase::Working(work) };
        match (&calls.last, &calls.stop) {
            (Some(Exit::Cancelled), _) => return Phase::Closing(Exit::Cancelled),
            (_, Some(reason)) => return Phase::Closing(Exit::Hook(reason.clone())),
            (Some(exit), None) => return Phase::Leaving(exit.clone()),
            (None, None) => {}
        }
        if let Some(exit) = self.tally.finish_reason.as_ref().and_then(Exit::of_finish) {
            return Phase::Leaving(exit);
        }
        if self.tally.output.is_some() && self.agent.output_spec().is_some() {
            return Phase::Leaving(Exit::Output);
        }
        if let Some(tool) = self.exit_tool(&work.items) {
            return Phase::Leaving(Exit::Tool(tool));
        }
        if self.is_output_hopeless() {
            return Phase::Leaving(Exit::InvalidOutput);
        }
        if self.agent.has_no_tools() {
            return Phase::Leaving(Exit::NoTools);
        }
        let guard = self.agent.config().repeat_guard;
        if guard.is_some_and(|guard| self.tally.repeats >= guard.stop) {
            return Phase::Leaving(Exit::RepeatedCalls);
        }
        self.limited().unwrap_or(Phase::Asking { is_hooked: false, last: None })
    }

    fn is_output_hopeless(&self) -> bool {
        let spec = self.agent.output_spec();
        spec.is_some_and(|spec| self.tally.output_faults > spec.output.repairs)
    }

    /// The exit tool that was called, unless one failed. All calls of the reply are looked at; what was
    /// rejected was not called.
    fn exit_tool(&self, items: &Items) -> Option<String> {
        let exits = &self.agent.config().exit_tools;
        let mut called = None;
        for outcome in items.iter().filter_map(|item| item.outcome()?.call()) {
            let is_rejected = outcome.status == CallStatus::Failed(CallFailure::Rejected);
            if is_rejected || !exits.iter().any(|exit| exit == outcome.tool()) {
                continue;
            }
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

    /// What counts for the limits.
    pub(super) fn spent(&self) -> Spent {
        let tally = &self.tally;
        Spent {
            calls: tally.calls.iter().map(|(_, calls)| calls).sum::<u64>() + tally.calls_inside,
            tokens: tally.usage.total_tokens(),
            elapsed: tally.elapsed,
        }
    }

    /// Where a limit leads, if one is reached: to the end, or to one last answer.
    fn limited(&self) -> Option<Phase> {
        let limit = self.limit()?;
        Some(match self.agent.config().final_answer && limit != Exit::MaxTime {
            true => Phase::Asking { is_hooked: false, last: Some(limit) },
            false => Phase::Leaving(limit),
        })
    }

    /// Goes past every phase in which there is nothing to do.
    fn advance(&mut self) {
        loop {
            let next = match &self.phase {
                Phase::Opening if !self.has_hook(HookPoint::BeforeRun) => self.after_opening(),
                Phase::Condensing { gave_up }
                    if *gave_up || self.tally.is_pruned || self.summary_plan().is_none() =>
                {
                    self.show_condensed(*gave_up);
                    Phase::Asking { is_hooked: false, last: None }
                }
                Phase::Asking { is_hooked: false, last } if !self.has_hook(HookPoint::BeforeModel) => {
                    Phase::Asking { is_hooked: true, last: last.clone() }
                }
                Phase::Leaving(exit) if !self.has_hook(HookPoint::OnExit) => Phase::Closing(exit.clone()),
                Phase::Closing(exit) if !self.has_hook(HookPoint::AfterRun) => Phase::Done(exit.clone()),
                _ => return,
            };
            self.phase = next;
        }
    }

    /// With summaries: what they let through; where one could not be made, what the trim lets through.
    fn show_condensed(&mut self, gave_up: bool) {
        let config = self.agent.config();
        if config.summarize.is_none() {
            return;
        }
        let log = self.state.messages().clone();
        let view = view_of(&log, None, self.summary.as_ref());
        let view = if gave_up { config.trim.narrow(&view, &log) } else { view };
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.show(instructions, view, &log);
    }

    fn note_ids(&mut self, event: &Event) {
        let is_new = matches!(event.kind, EventKind::Began { .. }) && self.known_good == 0;
        if event.rewrite.is_some() || is_new {
            self.call_ids = CallIds::of(self.state.messages());
            if event.rewrite.is_some() && !matches!(event.kind, EventKind::Began { .. }) {
                self.show_rewritten();
            }
            return;
        }
        let calls = event.messages.iter().flat_map(|message| message.tool_calls());
        calls.for_each(|call| self.call_ids.insert(&call.id));
    }

    /// After a hook rewrote the log: what the policies show of the new one.
    fn show_rewritten(&mut self) {
        let log = self.state.messages().clone();
        self.tally.turn_start = log.turn_start(log.len()).unwrap_or(0);
        self.summary = None;
        let view = self.agent.config().trim.view(&log);
        let instructions = self.prompt.instructions().map(str::to_owned);
        self.show(instructions, view, &log);
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

    /// The model that used the tokens of an event.
    fn model_asked(&self, kind: &EventKind) -> Option<Arc<str>> {
        let name = match kind {
            EventKind::Replied { model: Some(model), .. } => model,
            EventKind::Replied { .. } | EventKind::Summarized { .. } => self.agent().model().id(),
            EventKind::Inner { place, event } => {
                return self.item(*place)?.child()?.model_asked(&event.kind);
            }
            _ => return None,
        };
        Some(self.tally.usage_by_model.known(name).map_or_else(|| Arc::from(name), Arc::clone))
    }

    fn count_usage(&mut self, usage: Usage, model: Option<Arc<str>>) {
        // As it comes, so that it counts as well when the run inside fails or is stopped.
        self.tally.usage += usage;
        if let Some(model) = model {
            *self.tally.usage_by_model.entry(model) += usage;
        }
    }
}

/// Whether an event that is about the items of a step can happen there.
fn fits_work(work: &Work, kind: &EventKind) -> bool {
    let is_open = |place: &usize| work.items.get(*place).is_some_and(|item| !item.is_done());
    match kind {
        EventKind::Asked { fates } => work.may_ask(fates),
        EventKind::Started { places } | EventKind::Interrupted { places, .. } => places.iter().all(is_open),
        EventKind::Inner { place, .. } | EventKind::Asks { place, .. } => is_open(place),
        EventKind::Answered(items) => {
            let is_of_plan = |item: &AnsweredItem| item.outcome.is_call() == work.calls().is_some();
            are_different(items) && items.iter().all(|item| is_of_plan(item) && is_open(&item.place))
        }
        EventKind::Planned { .. } => work.walk().is_some() && work.items.open() == 0,
        EventKind::Decided { .. } | EventKind::Cancelled | EventKind::TimedOut => true,
        _ => false,
    }
}

/// Whether each is about another place. Those of an event that this version made are in order.
fn are_different(items: &[AnsweredItem]) -> bool {
    let mut places = BTreeSet::new();
    items.is_sorted_by(|one, next| one.place < next.place)
        || items.iter().all(|item| places.insert(item.place))
}

/// The calls after the hooks before them.
fn after_tool_hooks(
    mut work: Work,
    reply: Option<&Message>,
    verdict: &HookVerdict,
    answers: &[(usize, String)],
    writes: &[(usize, Delta)],
) -> Work {
    for (place, delta) in writes {
        work.items.change(*place, |item| item.writes.extend(delta.clone()));
    }
    if let Plan::Calls(calls) = &mut work.plan {
        calls.is_hooked = true;
        if let HookVerdict::Stop(reason) = verdict {
            calls.stop = Some(reason.clone());
        }
    }
    let calls = work.items.len();
    work.items.change_all(|items| {
        for (place, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.is_done()) {
            item.is_unhooked = false;
            if let Some(outcome) =
                hooked_outcome(place, &shown_in(reply, calls, place, Some(item)), verdict, answers)
            {
                item.finish(outcome);
            }
        }
    });
    work
}

/// The items with these outcomes.
fn after_outcomes(mut work: Work, outcomes: Vec<ItemOutcome>) -> Work {
    for ItemOutcome { place, outcome, stop, pending_hook } in outcomes {
        work.items.change(place, |item| match (outcome, pending_hook) {
            (WorkOutcome::Call(outcome), Some(hook)) => {
                item.child = None;
                item.state = ItemState::HookPending(Box::new(HookPending { outcome, hook }));
            }
            (outcome, _) => item.finish(outcome),
        });
        if let Plan::Calls(calls) = &mut work.plan {
            calls.stop = calls.stop.take().or(stop);
        }
    }
    work
}

/// Where an event leads that is about items only.
fn after_work(mut work: Work, reply: Option<&Message>, kind: &EventKind) -> Phase {
    let calls = work.items.len();
    match kind {
        EventKind::Planned { branches, deferred, arrived, .. } => {
            let items = branches.iter().cloned().map(|planned| Item::new(Some(planned), ItemState::Ready));
            work.items = items.collect::<Vec<_>>().into();
            if let Plan::Branches(walk) = &mut work.plan {
                walk.count(branches);
                walk.has_begun = true;
                walk.deferred.clone_from(deferred);
                walk.arrived.clone_from(arrived);
            }
        }
        EventKind::Started { places } => {
            for place in places {
                work.items.change(*place, |item| item.state = ItemState::Started);
            }
        }
        EventKind::Asked { fates } => work.meet(fates),
        EventKind::Asks { place, requests } => {
            work.items.change(*place, |item| item.asks_within(requests));
        }
        EventKind::Interrupted { places, asks, inputs_from_state } => {
            for place in places {
                let inputs = inputs_from_state.iter().find(|(at, _)| at == place).map(|(_, inputs)| inputs);
                work.items.change(*place, |item| {
                    if *asks {
                        let inputs = inputs.cloned().unwrap_or_default();
                        item.ask(Question::new(AskReason::MayHaveHappened, inputs));
                    } else {
                        let call = shown_in(reply, calls, *place, Some(item));
                        item.finish(WorkOutcome::unknown(item.planned.as_ref(), &call));
                    }
                });
            }
        }
        EventKind::Cancelled | EventKind::TimedOut => {
            let is_cancelled = *kind == EventKind::Cancelled;
            let exit = if is_cancelled { Exit::Cancelled } else { Exit::MaxTime };
            match &mut work.plan {
                Plan::Branches(_) if is_cancelled => return Phase::Closing(exit),
                Plan::Branches(_) => return Phase::Leaving(exit),
                Plan::Calls(calls) => calls.last = Some(exit),
            }
            work.items.change_all(|items| {
                for (place, item) in items.iter_mut().enumerate().filter(|(_, item)| !item.is_done()) {
                    let call = shown_in(reply, calls, place, Some(item));
                    item.finish(broken_off_call(item, &call, is_cancelled));
                }
            });
        }
        _ => {}
    }
    Phase::Working(work)
}

/// What an event of a run inside adds to what the run around it has used, and to the calls that count for its limits.
fn spent_by(kind: &EventKind) -> (Usage, u64) {
    match kind {
        EventKind::Replied { usage, .. } | EventKind::Summarized { usage, .. } => (*usage, 0),
        EventKind::Answered(items) => {
            // One that a hook has still to see is answered once more.
            let is_counted = |item: &&AnsweredItem| item.outcome.is_call() && item.pending_hook.is_none();
            (Usage::default(), items.iter().filter(is_counted).count() as u64)
        }
        EventKind::Inner { event, .. } => spent_by(&event.kind),
        _ => (Usage::default(), 0),
    }
}
