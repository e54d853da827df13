//! From an answer to the event that is stored: the answer is redacted first, or, where the run decides by its content, the event.

use std::sync::Arc;
use std::time::Duration;

use stepfold_state_core::chat::{Arguments, Message};
use stepfold_tools::{CallOutcome, InputRequest};

use super::originals::KeptOriginals;
use super::{ContentRedactor, ModelView, RedactionNote, RunRedaction};
use crate::agent::HookVerdict;
use crate::approval::{ApprovalRequest, Decision};
use crate::error::FeedError;
use crate::planned::NodeOutcome;
use crate::run::{
    CallDisposition, Event, EventKind, HookReport, ItemOutcome, OutputDisposition, RecordedCall, Run,
    RunAnswer, WorkOutcome,
};

/// The event of an answer without sensitive parts, and their originals.
pub(crate) fn redacted_answer(
    run: &Run,
    answer: RunAnswer,
    elapsed: Duration,
    redaction: &RunRedaction,
) -> Result<(Event, KeptOriginals), FeedError> {
    let mut answering = Answering {
        redactor: ContentRedactor::new(&*redaction.redact),
        kept: KeptOriginals::default(),
        calls: Vec::new(),
    };
    let mut event = answering.event(run, answer, elapsed)?;
    let Answering { redactor, mut kept, mut calls } = answering;
    let parts = redactor.into_counts();
    if redaction.view == ModelView::Redacted {
        (kept.messages, kept.results) = (Vec::new(), Vec::new());
    }
    if !parts.is_empty() {
        calls.sort_unstable();
        calls.dedup();
        event.redacted = Some(RedactionNote { parts, calls });
    }
    Ok((event, kept))
}

struct Answering<'a> {
    redactor: ContentRedactor<'a>,
    kept: KeptOriginals,
    /// The places of calls of which something was replaced that they need to run.
    calls: Vec<usize>,
}

impl Answering<'_> {
    fn event(&mut self, run: &Run, answer: RunAnswer, elapsed: Duration) -> Result<Event, FeedError> {
        let answer = match answer {
            RunAnswer::Begin => return self.begun(run, elapsed),
            // NOTE: Whether a call needs an approval depends on its arguments, so the run is given them as they are.
            RunAnswer::Reply(_) => {
                let mut event = run.feed(answer, elapsed)?;
                self.reply(&mut event);
                return Ok(event);
            }
            RunAnswer::Decisions(_) | RunAnswer::Edit(_) => {
                let mut event = run.feed(answer, elapsed)?;
                self.given_from_outside(run, &mut event);
                return Ok(event);
            }
            RunAnswer::Steer(messages) => return self.steered(run, messages, elapsed),
            RunAnswer::Hooked(mut report) => {
                self.report(&mut report);
                RunAnswer::Hooked(report)
            }
            RunAnswer::Summary(summary) => RunAnswer::Summary(match summary {
                Ok((mut text, usage)) => {
                    self.redactor.string(&mut text);
                    Ok((text, usage))
                }
                Err((mut text, usage)) => {
                    self.redactor.string(&mut text);
                    Err((text, usage))
                }
            }),
            RunAnswer::Outcomes(mut outcomes) => {
                for outcome in &mut outcomes {
                    self.outcome(outcome);
                }
                RunAnswer::Outcomes(outcomes)
            }
            RunAnswer::Asks { place, mut requests } => {
                for request in &mut requests {
                    self.request(place, request);
                }
                RunAnswer::Asks { place, requests }
            }
            RunAnswer::Ask(mut fates) => {
                for (_, fate) in &mut fates {
                    self.fate(fate);
                }
                RunAnswer::Ask(fates)
            }
            answer => answer,
        };
        run.feed(answer, elapsed)
    }

    fn begun(&mut self, run: &Run, elapsed: Duration) -> Result<Event, FeedError> {
        let Some((originals, messages, delta)) = run.beginning() else {
            return run.feed(RunAnswer::Begin, elapsed);
        };
        let (mut messages, mut delta) = (messages, delta);
        let is_changed = self.redactor.messages(&mut messages) | self.redactor.delta(&mut delta);
        if !is_changed {
            return run.feed(RunAnswer::Begin, elapsed);
        }
        self.kept.pair(&messages, &originals);
        run.with_beginning(messages, delta).feed(RunAnswer::Begin, elapsed)
    }

    fn steered(&mut self, run: &Run, messages: Vec<Message>, elapsed: Duration) -> Result<Event, FeedError> {
        let originals: Vec<Arc<Message>> = messages.into_iter().map(Arc::new).collect();
        let mut messages = originals.clone();
        self.redactor.messages(&mut messages);
        let messages = messages.into_iter().map(|message| (*message).clone()).collect();
        let event = run.feed(RunAnswer::Steer(messages), elapsed)?;
        self.kept.pair(&event.messages, &originals);
        Ok(event)
    }

    fn reply(&mut self, event: &mut Event) {
        let originals = event.messages.clone();
        self.redactor.messages(&mut event.messages);
        self.redactor.delta(&mut event.delta);
        self.kept.pair(&event.messages, &originals);
        let calls = |messages: &[Arc<Message>]| {
            let calls = messages.first().into_iter().flat_map(|reply| reply.tool_calls());
            calls.map(|call| call.arguments.clone()).collect::<Vec<Arguments>>()
        };
        let pairs = calls(&event.messages).into_iter().zip(calls(&originals)).enumerate();
        for (place, (stored, original)) in pairs {
            if stored != original {
                self.keep_arguments(place, original);
            }
        }
        let EventKind::Replied { fates, output, .. } = &mut event.kind else { return };
        for (_, fate) in fates {
            self.fate(fate);
        }
        match output {
            Some(OutputDisposition::Valid(value)) => {
                self.redactor.value(value);
            }
            Some(OutputDisposition::Invalid { faults, .. }) => {
                self.redactor.string(faults);
            }
            None => {}
        }
    }

    fn fate(&mut self, fate: &mut CallDisposition) {
        if let CallDisposition::Answer(outcome) = fate {
            self.recorded_call(outcome);
        }
    }

    fn recorded_call(&mut self, outcome: &mut RecordedCall) {
        if let Some(result) = &mut outcome.result {
            self.redactor.result(result);
        }
        self.redactor.delta(&mut outcome.delta);
    }

    fn keep_arguments(&mut self, place: usize, arguments: Arguments) {
        self.calls.push(place);
        self.kept.calls.entry(place).or_default().arguments = Some(arguments);
    }

    /// Decisions and edits: the run has checked the new arguments as they are.
    fn given_from_outside(&mut self, run: &Run, event: &mut Event) {
        let decided = run.decided_places(&event.kind);
        self.redactor.messages(&mut event.messages);
        self.redactor.delta(&mut event.delta);
        match &mut event.kind {
            EventKind::Decided { decisions, .. } => {
                for (id, decision) in decisions {
                    let original = decision.clone();
                    if !self.redactor.decision(decision) {
                        continue;
                    }
                    for (place, inside) in decided
                        .iter()
                        .filter(|(_, _, of)| of == id)
                        .map(|(place, inside, _)| (*place, inside))
                    {
                        self.keep_decision(place, inside.as_deref(), &original);
                    }
                }
            }
            EventKind::Edited { results, arguments, .. } => {
                for result in results {
                    self.redactor.result(result);
                }
                for (id, arguments) in arguments {
                    let original = arguments.clone();
                    if self.redactor.value(arguments)
                        && let Some(place) = run.place_of_call(id)
                    {
                        self.keep_arguments(place, Arguments::from(original));
                    }
                }
            }
            _ => {}
        }
    }

    fn keep_decision(&mut self, place: usize, inside: Option<&str>, original: &Decision) {
        match (inside, original) {
            (None, Decision::Modify { arguments }) => {
                self.keep_arguments(place, Arguments::from(arguments.clone()));
            }
            // The reason of a rejection is for the model.
            (None, _) | (Some(_), Decision::Reject { .. }) => {}
            (Some(id), _) => {
                self.calls.push(place);
                self.kept.calls.entry(place).or_default().decisions.push((id.to_owned(), original.clone()));
            }
        }
    }

    fn report(&mut self, report: &mut HookReport) {
        self.redactor.delta(&mut report.delta);
        if let Some(rewrite) = &mut report.rewrite {
            self.redactor.transcript(rewrite);
        }
        let originals = report.messages.clone();
        self.redactor.messages(&mut report.messages);
        self.kept.pair(&report.messages, &originals);
        if let HookVerdict::Stop(reason) = &mut report.verdict {
            self.redactor.string(reason);
        }
        for (_, text) in &mut report.answers {
            self.redactor.string(text);
        }
        for (_, delta) in &mut report.writes {
            self.redactor.delta(delta);
        }
    }

    fn outcome(&mut self, item: &mut ItemOutcome) {
        if let Some(stop) = &mut item.stop {
            self.redactor.string(stop);
        }
        match &mut item.outcome {
            WorkOutcome::Call(CallOutcome { result, delta, .. }) => {
                let original = result.clone();
                if self.redactor.result(result) {
                    self.kept.results.push(original);
                }
                self.redactor.delta(delta);
            }
            WorkOutcome::Node(outcome) => self.node(outcome),
        }
    }

    fn node(&mut self, outcome: &mut NodeOutcome) {
        self.redactor.optional(&mut outcome.error);
        self.redactor.delta(&mut outcome.delta);
        let originals = outcome.messages.clone();
        self.redactor.messages(&mut outcome.messages);
        self.kept.pair(&outcome.messages, &originals);
        for output in &mut outcome.outputs {
            self.redactor.value(output);
        }
        for item in outcome.goto.iter_mut().filter_map(|branch| branch.item.as_mut()) {
            self.redactor.value(item);
        }
    }

    /// A request of a tool, a node, or a run inside.
    fn request(&mut self, place: usize, request: &mut ApprovalRequest) {
        let original = request.clone();
        let mut is_changed = self.redactor.optional(&mut request.message);
        is_changed |= self.redactor.arguments(&mut request.call.arguments);
        is_changed |= request.state.as_mut().is_some_and(|state| self.redactor.value(state));
        if is_changed {
            request.is_redacted = true;
            self.calls.push(place);
            self.kept.calls.entry(place).or_default().asked.push(original);
        }
    }
}

/// Replaces the sensitive parts of a tool's question, before it has an id: a digest of it tells nothing of them.
pub(crate) fn redact_question(redactor: &mut ContentRedactor<'_>, question: &mut InputRequest) {
    redactor.string(&mut question.message);
    redactor.value(&mut question.details);
}
