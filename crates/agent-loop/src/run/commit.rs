//! The fold: an event changes where the run is. Nothing is decided here that is not in the event, but for
//! what comes next.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepfold_state_core::chat::{Message, ToolCall, Transcript, Usage};
use stepfold_state_core::state::Delta;
use stepfold_tools::{Failure, Status};

use super::batch::{Batch, Call, CallState, Calls, HookPending, Suspended, done, is_asked};
use super::call_ids::CallIds;
use super::decide::{Asker, inner_decisions};
use super::event::{Event, EventKind, Fate, HookVerdict, OutputFate};
use super::exit::Exit;
use super::feed::{broken_off_outcome, decided_outcome, hooked_outcome, outcome_unknown};
use super::machine::{Approved, Phase, Run};
use super::prompt::{Prompt, view_of};
use crate::agent::HookPoint;
use crate::approval::{AskReason, Decision};
use crate::error::FeedError;

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
    pub fn commit(&mut self, event: Event) -> Result<(), FeedError> {
        self.commit_as(event, Folding::Live)
    }

    fn commit_as(&mut self, event: Event, folding: Folding) -> Result<(), FeedError> {
        self.check_place(&event)?;
        let unknown = self.unknown_by(&event.kind);
        let is_counted = self.was_answered(&event.kind);
        let unknown_inside = self.commit_inner(&event, folding)?;
        // The message whose calls are open, before the end of the step appends their results.
        let reply = self.transcript().last().cloned();
        if folding == Folding::Live && self.tally.events > 0 {
            event.restore_shared(&mut self.state);
        }
        event.fold(&mut self.state)?;
        self.tally.events += 1;
        self.tally.steps = event.step;
        self.tally.elapsed = event.elapsed.max(self.tally.elapsed);
        self.note_ids(&event);
        self.note_decisions(&event.kind);
        self.unknown.extend(unknown.into_iter().chain(unknown_inside));
        let phase = std::mem::replace(&mut self.phase, Phase::Opening);
        let phase = self.phase_after(&event, phase, reply.as_deref());
        let step_end = event.step_end;
        self.is_taken_up = folding == Folding::CatchUp;
        self.count(event.kind, is_counted);
        self.phase = match (phase, step_end) {
            (Phase::Calling(mut batch), Some(end)) => {
                self.tally.repeats = end.repeats;
                mark_unmerged(&mut batch, &end.unmerged);
                self.after_step(&batch)
            }
            (phase, _) => phase,
        };
        self.advance();
        // What the model is shown grows between steps, when every call has its result.
        if let Phase::Asking { .. } = &self.phase {
            self.prompt.grow(self.state.messages());
        }
        Ok(())
    }

    /// Folds an event of a record into a run whose state has the event's writes already, because whoever
    /// keeps the state has merged them: only messages are appended.
    ///
    /// # Errors
    /// As [`commit`](Run::commit).
    pub fn catch_up(&mut self, mut event: Event) -> Result<(), FeedError> {
        event.delta = Delta::new();
        self.commit_as(event, Folding::CatchUp)
    }

    /// Whether the event can happen where the run is.
    fn check_place(&self, event: &Event) -> Result<(), FeedError> {
        let calls = match &self.phase {
            Phase::Calling(batch) => batch.calls.len(),
            _ => 0,
        };
        let are_calls = |places: &[usize]| places.iter().all(|place| *place < calls);
        let fits = match (&event.kind, &self.phase) {
            (EventKind::Began { .. }, Phase::Fresh(_))
            | (EventKind::Summarized { .. }, Phase::Condensing { .. })
            | (EventKind::Steered, Phase::Asking { .. })
            | (EventKind::Decided { .. }, Phase::Calling(_)) => true,
            // That the conversation was too long is told by all of it.
            (EventKind::Summarized { .. }, Phase::Asking { .. }) => self.tally.is_pruned,
            (EventKind::Hooked { point, .. }, phase) => matches!(
                (point, phase),
                (HookPoint::BeforeRun, Phase::Opening)
                    | (HookPoint::BeforeModel, Phase::Asking { is_hooked: false, .. })
                    | (HookPoint::BeforeTool, Phase::Calling(Batch { is_hooked: false, .. }))
                    | (HookPoint::OnExit, Phase::Leaving(_))
                    | (HookPoint::AfterRun, Phase::Closing(_))
            ),
            (EventKind::Replied { fates, .. }, Phase::Asking { is_hooked: true, .. }) => {
                let calls = event.messages.first().map_or(0, |reply| reply.tool_calls().count());
                !event.messages.is_empty() && fates.iter().all(|(place, _)| *place < calls) && is_asked(fates)
            }
            (EventKind::Asked { fates }, Phase::Calling(batch)) => batch.may_ask(fates),
            (EventKind::Started { calls } | EventKind::Interrupted { calls, .. }, Phase::Calling(_)) => {
                are_calls(calls)
            }
            (EventKind::Answered { call, .. } | EventKind::Suspended { call, .. }, Phase::Calling(batch)) => {
                batch.calls.get(*call).is_some_and(|call| !call.is_done())
            }
            (_, Phase::Walking(walk)) => Run::fits_walk(walk, event),
            (EventKind::Cancelled | EventKind::TimedOut, phase) => {
                !matches!(phase, Phase::Fresh(_) | Phase::Done(_) | Phase::Closing(_))
            }
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(FeedError::Misplaced { event: event.name(), need: format!("{:?}", self.decide()) }),
        }
    }

    /// The phase that the event itself leads to, before it is asked what comes after a step. The event fits.
    fn phase_after(&mut self, event: &Event, phase: Phase, reply: Option<&Message>) -> Phase {
        match (&event.kind, phase) {
            (EventKind::Began { id, instructions, shown, messages_before, .. }, _) => {
                if *self.id != **id {
                    self.id = id.as_str().into();
                }
                let log = self.state.messages().clone();
                self.tally.turn_start = log.turn_start(log.len()).unwrap_or(0);
                let pruned = match &event.rewrite {
                    Some(_) => 0,
                    None => (messages_before + event.messages.len()).saturating_sub(log.len()),
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
            (EventKind::Hooked { verdict, answers, writes, .. }, Phase::Calling(batch)) => {
                Phase::Calling(after_tool_hooks(batch, reply, verdict, answers, writes))
            }
            (EventKind::Hooked { verdict, .. }, phase) => self.after_hooks(verdict, phase),
            (EventKind::Replied { finish_reason, fates, output, .. }, Phase::Asking { last, .. }) => {
                self.tally.finish_reason = Some(finish_reason.clone());
                self.after_reply(event, fates, output.as_ref(), last)
            }
            (EventKind::Decided { decisions, key_prefix, .. }, Phase::Calling(batch)) => {
                let asker = self.asker_of(key_prefix.as_deref());
                Phase::Calling(self.after_decisions(batch, reply, decisions, &asker))
            }
            (_, Phase::Walking(walk)) => self.after_walk(event, walk),
            (kind, Phase::Calling(batch)) => Phase::Calling(after_calls(batch, reply, kind)),
            (EventKind::Cancelled, _) => Phase::Closing(Exit::Cancelled),
            (EventKind::TimedOut, Phase::Leaving(exit)) => Phase::Closing(exit),
            (EventKind::TimedOut, _) => Phase::Leaving(Exit::MaxTime),
            (_, phase) => phase,
        }
    }

    fn show(&mut self, instructions: Option<String>, view: stepfold_trim::View, log: &Transcript) {
        let window = self.agent.config().window.as_ref();
        self.prompt = Prompt::new(instructions, view, window, log, self.tally.turn_start);
    }

    fn after_hooks(&self, verdict: &HookVerdict, phase: Phase) -> Phase {
        match (phase, verdict) {
            (Phase::Closing(exit), _) => Phase::Done(exit),
            (_, HookVerdict::Stop(reason)) => Phase::Closing(Exit::Hook(reason.clone())),
            (Phase::Opening, _) => self.after_opening(),
            (Phase::Asking { last, .. }, _) => Phase::Asking { is_hooked: true, last },
            (Phase::Leaving(exit), HookVerdict::GoOn) if !exit.is_limit() && self.shape().is_none() => {
                self.ask_again()
            }
            (Phase::Leaving(exit), _) => Phase::Closing(exit),
            (phase, _) => phase,
        }
    }

    /// What comes first: the model, or the nodes of a graph.
    fn after_opening(&self) -> Phase {
        match self.shape() {
            Some(_) => Phase::Walking(Box::default()),
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
        fates: &[(usize, Fate)],
        output: Option<&OutputFate>,
        last: Option<Exit>,
    ) -> Phase {
        // An output that was there and did not end the run, because a hook went on, is none any more.
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
        let mut batch =
            Batch { calls: vec![Call::new(CallState::Ready); calls].into(), last, ..Batch::default() };
        batch.meet(fates);
        Phase::Calling(batch)
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
        // With an output to give, blank text is none.
        if has_text && self.agent.output_spec().is_none() {
            Phase::Leaving(Exit::Text)
        } else if self.agent.has_no_tools() && self.agent.output_spec().is_none() {
            Phase::Leaving(Exit::NoTools)
        } else {
            // An empty reply is no exit: the model is asked again, within the limits.
            self.limited().unwrap_or(Phase::Asking { is_hooked: false, last: None })
        }
    }

    fn after_decisions(
        &mut self,
        mut batch: Batch,
        reply: Option<&Message>,
        decisions: &[(String, Decision)],
        asker: &Asker,
    ) -> Batch {
        let mut approved = Vec::new();
        let decided = asker.decided(&batch.calls, calls_of(reply), decisions);
        let was_hooked = batch.was_hooked();
        batch.calls.change_all(|calls| {
            for (place, (call, tool_call)) in calls.iter_mut().zip(calls_of(reply)).enumerate() {
                if let CallState::Suspended(suspended) = &call.state {
                    let id = |inner: &str| asker.id_inside(place, call, tool_call, inner);
                    let inner = inner_decisions(&suspended.requests, decisions, id);
                    if let CallState::Suspended(suspended) = &mut call.state {
                        suspended.decisions.extend(inner);
                    }
                    continue;
                }
                let Some(Some(decision)) = decided.get(place) else { continue };
                if let Some(outcome) = decided_outcome(call, tool_call, decision) {
                    call.state = done(outcome);
                    continue;
                }
                call.agree(decision, was_hooked);
                approved.push(Approved::of(&call.as_run(tool_call)));
            }
        });
        batch.is_hooked &= batch.calls.iter().all(|call| !call.is_unhooked);
        self.approved.extend(approved);
        batch
    }

    /// Where the end of a step leads.
    fn after_step(&self, batch: &Batch) -> Phase {
        match (&batch.last, &batch.stop) {
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
        if let Some(tool) = self.exit_tool(batch) {
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
    fn exit_tool(&self, batch: &Batch) -> Option<String> {
        let exits = &self.agent.config().exit_tools;
        let mut called = None;
        for outcome in batch.calls.iter().filter_map(Call::outcome) {
            let is_rejected = outcome.status == Status::Failed(Failure::Rejected);
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
        let (limits, tally) = (self.agent.limits(), &self.tally);
        let calls: u64 = tally.calls.values().sum();
        let reached = [
            (tally.steps >= limits.steps, Exit::MaxSteps),
            (limits.tool_calls.is_some_and(|limit| calls >= limit), Exit::MaxToolCalls),
            (limits.tokens.is_some_and(|limit| tally.usage.total_tokens() >= limit), Exit::MaxTokens),
            (limits.time.is_some_and(|limit| tally.elapsed >= limit), Exit::MaxTime),
        ];
        reached.into_iter().find(|(is_reached, _)| *is_reached).map(|(_, exit)| exit)
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

    /// Whether the event is the second answer of a call, after a hook that had failed.
    fn was_answered(&self, kind: &EventKind) -> bool {
        match (kind, &self.phase) {
            (EventKind::Answered { call, .. }, Phase::Calling(batch)) => {
                batch.calls.get(*call).is_some_and(Call::is_hook_pending)
            }
            _ => false,
        }
    }

    fn count(&mut self, kind: EventKind, is_counted: bool) {
        match kind {
            EventKind::Replied { usage, .. } | EventKind::Summarized { usage, .. } => {
                self.tally.usage += usage;
            }
            EventKind::NodeAnswered { usage, .. } => self.tally.usage += usage,
            // As it comes, so that it counts as well when the agent fails or is stopped.
            EventKind::Inner { event, .. } => self.tally.usage += usage_of(&event.kind),
            EventKind::Answered { usage, .. } if is_counted => self.tally.usage += usage,
            EventKind::Answered { outcome, usage, .. } => {
                self.tally.usage += usage;
                if let Some(calls) = self.tally.calls.get_mut(outcome.tool()) {
                    *calls += 1;
                } else {
                    self.tally.calls.insert(Arc::from(outcome.tool()), 1);
                }
            }
            _ => {}
        }
    }
}

/// What an event of a node's agent adds to what was used.
fn usage_of(kind: &EventKind) -> Usage {
    match kind {
        EventKind::Replied { usage, .. }
        | EventKind::Summarized { usage, .. }
        | EventKind::NodeAnswered { usage, .. }
        | EventKind::Answered { usage, .. } => *usage,
        EventKind::Inner { event, .. } => usage_of(&event.kind),
        _ => Usage::default(),
    }
}

/// The open calls.
fn calls_of(reply: Option<&Message>) -> impl Iterator<Item = &ToolCall> {
    reply.into_iter().flat_map(Message::tool_calls)
}

/// The calls after the hooks before them.
fn after_tool_hooks(
    mut batch: Batch,
    reply: Option<&Message>,
    verdict: &HookVerdict,
    answers: &[(usize, String)],
    writes: &[(usize, Delta)],
) -> Batch {
    batch.is_hooked = true;
    for (place, delta) in writes {
        batch.calls.change(*place, |call| call.writes.extend(delta.clone()));
    }
    if let HookVerdict::Stop(reason) = verdict {
        batch.stop = Some(reason.clone());
    }
    change_open(&mut batch.calls, reply, |place, call, tool_call| {
        call.is_unhooked = false;
        if let Some(outcome) = hooked_outcome(place, tool_call, verdict, answers) {
            call.state = done(outcome);
        }
    });
    batch
}

/// Changes the calls that have no outcome.
fn change_open(
    calls: &mut Calls,
    reply: Option<&Message>,
    mut change: impl FnMut(usize, &mut Call, &ToolCall),
) {
    calls.change_all(|calls| {
        let open = calls.iter_mut().zip(calls_of(reply)).enumerate();
        for (place, (call, tool_call)) in open.filter(|(_, (call, _))| !call.is_done()) {
            change(place, call, tool_call);
        }
    });
}

/// The calls after an event that is about calls only.
fn after_calls(mut batch: Batch, reply: Option<&Message>, kind: &EventKind) -> Batch {
    match kind {
        EventKind::Started { calls } => {
            for place in calls {
                batch.calls.change(*place, |call| {
                    if !call.is_done() {
                        call.state = CallState::Started;
                    }
                });
            }
        }
        EventKind::Asked { fates } => batch.meet(fates),
        EventKind::Answered { call, outcome, stop, pending_hook, .. } => {
            let state = match pending_hook {
                None => done(outcome.clone()),
                Some(hook) => {
                    let pending = HookPending { outcome: outcome.clone(), hook: *hook };
                    CallState::HookPending(Box::new(pending))
                }
            };
            batch.calls.change(*call, |call| call.state = state);
            batch.stop = batch.stop.or_else(|| stop.clone());
        }
        EventKind::Suspended { call, child, requests } => {
            let suspended =
                Suspended { child: child.clone(), requests: requests.clone(), decisions: Vec::new() };
            batch.calls.change(*call, |call| call.state = CallState::Suspended(Box::new(suspended)));
        }
        EventKind::Interrupted { calls, asks } => {
            let interrupted: BTreeSet<usize> = calls.iter().copied().collect();
            change_open(&mut batch.calls, reply, |place, call, tool_call| {
                if interrupted.contains(&place) {
                    call.state = match asks {
                        true => CallState::Asking(AskReason::MayHaveHappened),
                        false => done(outcome_unknown(tool_call)),
                    };
                }
            });
        }
        EventKind::Cancelled | EventKind::TimedOut => {
            let is_cancelled = *kind == EventKind::Cancelled;
            change_open(&mut batch.calls, reply, |_, call, tool_call| {
                call.state = done(broken_off_outcome(call, tool_call, is_cancelled));
            });
            batch.last = Some(if is_cancelled { Exit::Cancelled } else { Exit::MaxTime });
        }
        _ => {}
    }
    batch
}

fn mark_unmerged(batch: &mut Batch, unmerged: &[usize]) {
    for place in unmerged {
        batch.calls.change(*place, |call| {
            if let CallState::Done(outcome) = &mut call.state {
                Arc::make_mut(outcome).status = Status::Failed(Failure::Merge);
            }
        });
    }
}
