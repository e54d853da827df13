//! The redaction of a run in its driver: of what is committed, and of what observers are told beside it.

use stepfold_tools::InputRequest;

use super::RunDriver;
use crate::decisions::Decisions;
use crate::exit::Exit;
use crate::observe::{Observer, RunEvent};
use crate::redact::{
    ContentRedactor, KeptOriginals, Redact, ReplyRedaction, RunRedaction, redact_question, redacted_answer,
};
use crate::run::{Event, Run, RunAnswer};
use crate::run_error::RunFault;

/// The redaction of a run, and of the reply that streams in.
#[derive(Clone, Default)]
pub(super) struct DriverRedaction(Option<RunRedaction>);

impl DriverRedaction {
    pub(super) const fn new(redaction: RunRedaction) -> Self {
        DriverRedaction(Some(redaction))
    }

    /// The decisions as the record has them.
    pub(super) fn redacted_decisions(&self, decisions: &Decisions) -> Decisions {
        match self.rules() {
            Some(rules) => decisions.clone().redacted(rules),
            None => decisions.clone(),
        }
    }

    fn rules(&self) -> Option<&dyn Redact> {
        self.0.as_ref().map(|redaction| &*redaction.redact)
    }
}

impl RunDriver<'_> {
    /// The event of an answer, with the originals of replaced parts.
    pub(super) fn event_of(
        &self,
        run: &Run,
        answer: RunAnswer,
    ) -> Result<(Box<Event>, KeptOriginals), RunFault> {
        let elapsed = self.elapsed();
        let made = match &self.options.redaction.0 {
            None => run.feed(answer, elapsed).map(|event| (event, KeptOriginals::default())),
            Some(redaction) => redacted_answer(run, answer, elapsed, redaction),
        };
        made.map(|(event, kept)| (Box::new(event), kept)).map_err(RunFault::from)
    }

    /// Notifies observers of an event that is not committed, without sensitive parts.
    pub(super) async fn notify_redacted(&mut self, event: RunEvent) -> Result<(), RunFault> {
        let shown = match self.options.redaction.rules() {
            None => Some(event),
            Some(rules) => self.reply.show(rules, event).map(|event| without_sensitive_parts(rules, event)),
        };
        match shown {
            Some(event) => self.options.observers.observe(&event).await.map_err(RunFault::Observer),
            None => Ok(()),
        }
    }

    /// Shows the rest of a reply that was held back.
    pub(super) async fn show_rest(&mut self) -> Result<(), RunFault> {
        let Some(rules) = self.options.redaction.rules() else { return Ok(()) };
        for event in self.reply.finish(rules) {
            self.options.observers.observe(&event).await.map_err(RunFault::Observer)?;
        }
        Ok(())
    }

    /// Drops the rest of a reply that was not completed.
    pub(super) fn drop_rest(&mut self) {
        self.reply = ReplyRedaction::default();
    }

    /// The questions of a tool without sensitive parts.
    pub(super) fn redacted_questions(&self, mut questions: Vec<InputRequest>) -> Vec<InputRequest> {
        if let Some(rules) = self.options.redaction.rules() {
            for question in &mut questions {
                redact_question(&mut ContentRedactor::new(rules), question);
            }
        }
        questions
    }
}

/// An event for observers. Those of inner runs come without sensitive parts, and so do requests.
fn without_sensitive_parts(rules: &dyn Redact, mut event: RunEvent) -> RunEvent {
    let mut redactor = ContentRedactor::new(rules);
    match &mut event {
        RunEvent::ToolStarted { arguments: text, .. }
        | RunEvent::ServerToolUsed { arguments: text, .. }
        | RunEvent::ToolFinished { text, .. }
        | RunEvent::NodeFinished { error: Some(text), .. }
        | RunEvent::Trimmed(text)
        | RunEvent::Ended(Exit::Hook(text) | Exit::NodeFailed { error: text, .. }) => {
            redactor.string(text);
        }
        RunEvent::ToolProgress { report: value, .. } | RunEvent::Output { value, .. } => {
            redactor.value(value);
        }
        _ => {}
    }
    event
}
