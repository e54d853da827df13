//! The redaction of a runner: of what it stores beside the events of runs.

use std::sync::Arc;

use serde_json::Value;
use stepfold_agent_loop::{
    ContentRedactor, Decision, Decisions, Edit, Event, FeedError, Input, ModelView, Redact, Run, RunAnswer,
    RunBuilder,
};

use crate::core::runner_core::RunnerCore;

/// The rules, and what models are shown.
pub(crate) struct SessionRedaction {
    pub(crate) redact: Arc<dyn Redact>,
    pub(crate) view: ModelView,
}

impl RunnerCore {
    fn rules(&self) -> Option<&dyn Redact> {
        self.redaction.as_ref().map(|redaction| &*redaction.redact)
    }

    /// An input as it may be stored.
    pub(crate) fn redacted_input(&self, input: &Input) -> Input {
        match self.rules() {
            Some(rules) => input.clone().redacted(rules),
            None => input.clone(),
        }
    }

    /// Decisions as a record has them.
    pub(crate) fn redacted_decisions(&self, decisions: &Decisions) -> Decisions {
        match self.rules() {
            Some(rules) => decisions.clone().redacted(rules),
            None => decisions.clone(),
        }
    }

    /// A decision as a record has it.
    pub(crate) fn redacted_decision(&self, decision: Decision) -> Decision {
        match self.rules() {
            Some(rules) => decision.redacted(rules),
            None => decision,
        }
    }

    /// An edit as a record has it.
    pub(crate) fn redacted_edit(&self, edit: &Edit) -> Edit {
        match self.rules() {
            Some(rules) => edit.clone().redacted(rules),
            None => edit.clone(),
        }
    }

    pub(crate) fn redacted_values(&self, mut values: Value) -> Value {
        if let Some(rules) = self.rules() {
            ContentRedactor::new(rules).value(&mut values);
        }
        values
    }

    /// A text for a record or a log.
    pub(crate) fn redacted_text(&self, text: String) -> String {
        match self.rules() {
            Some(rules) => stepfold_agent_loop::redacted(rules, &text),
            None => text,
        }
    }

    /// A run that is redacted, if the runner redacts.
    pub(crate) fn redacting<'a>(&self, run: RunBuilder<'a>) -> RunBuilder<'a> {
        match &self.redaction {
            Some(redaction) => run.redact_with(Arc::clone(&redaction.redact), redaction.view),
            None => run,
        }
    }

    /// The event that an answer makes of a run that is not driven here.
    pub(crate) fn feed(&self, run: &Run, answer: RunAnswer) -> Result<Event, FeedError> {
        match &self.redaction {
            Some(redaction) => run.feed_redacted(answer, run.elapsed(), &redaction.redact),
            None => run.feed(answer, run.elapsed()),
        }
    }
}
