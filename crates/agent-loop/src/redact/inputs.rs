//! Input from outside without its sensitive parts: for hosts that store it before a run takes it, or compare it with a record.

use std::sync::Arc;
use std::time::Duration;

use super::{ContentRedactor, ModelView, Redact, RunRedaction, redacted_answer};
use crate::approval::Decision;
use crate::decisions::Decisions;
use crate::edit::{Edit, ValueEdit};
use crate::error::FeedError;
use crate::run::{Event, Input, Run, RunAnswer};

impl Input {
    /// The input without [sensitive parts](Redact), as its host may store it until a run takes it.
    #[must_use]
    pub fn redacted(mut self, redact: &dyn Redact) -> Self {
        let mut redactor = ContentRedactor::new(redact);
        redactor.messages(&mut self.messages);
        if let Some(values) = &mut self.values {
            redactor.value(values);
        }
        self
    }
}

impl Decision {
    /// The decision without [sensitive parts](Redact), as a record has it.
    #[must_use]
    pub fn redacted(mut self, redact: &dyn Redact) -> Self {
        ContentRedactor::new(redact).decision(&mut self);
        self
    }
}

impl Decisions {
    /// The decisions without [sensitive parts](Redact), as a record has them.
    #[must_use]
    pub fn redacted(mut self, redact: &dyn Redact) -> Self {
        let mut redactor = ContentRedactor::new(redact);
        for (_, decision) in &mut self.decisions {
            redactor.decision(decision);
        }
        self
    }
}

impl Edit {
    /// The edit without [sensitive parts](Redact), as a record has it.
    #[must_use]
    pub fn redacted(mut self, redact: &dyn Redact) -> Self {
        let mut redactor = ContentRedactor::new(redact);
        for edit in &mut self.values {
            if let ValueEdit::Set(_, value) | ValueEdit::Merge(_, value) = edit {
                redactor.value(value);
            }
        }
        for (_, content) in &mut self.results {
            redactor.content(content);
        }
        for (_, arguments) in &mut self.arguments {
            redactor.value(arguments);
        }
        self
    }
}

impl ContentRedactor<'_> {
    pub(crate) fn decision(&mut self, decision: &mut Decision) -> bool {
        match decision {
            Decision::Reject { reason } => self.string(reason),
            Decision::Modify { arguments: value } | Decision::Complete { outcome: value } => {
                self.value(value)
            }
            Decision::Approve | Decision::Expire => false,
        }
    }
}

impl Run {
    /// The event of an answer, as [`feed`](Run::feed) makes it, without [sensitive parts](Redact): for hosts that store the event and
    /// leave the run to others.
    ///
    /// # Errors
    /// As [`feed`](Run::feed).
    pub fn feed_redacted(
        &self,
        answer: RunAnswer,
        elapsed: Duration,
        redact: &Arc<dyn Redact>,
    ) -> Result<Event, FeedError> {
        let redaction = RunRedaction { redact: Arc::clone(redact), view: ModelView::Redacted };
        redacted_answer(self, answer, elapsed, &redaction).map(|(event, _)| event)
    }
}
