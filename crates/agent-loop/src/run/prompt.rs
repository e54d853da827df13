//! The prompt of the model: the instructions, and the part of the log that the policies let through.
//!
//! Kept from step to step, so that a request costs what is new in it. Only [`MessageRanges`] of it is stored; the
//! rest is made again from the log.

use std::sync::Arc;

use stepfold_state_core::chat::{Message, Transcript};
use stepfold_trim::{MessageRanges, Summary, TurnView, View};

use crate::agent::Agent;

#[derive(Clone, Debug)]
pub(crate) struct ModelPrompt {
    instructions: Option<String>,
    shown: PromptView,
    /// The instructions and what is shown.
    transcript: Transcript,
}

#[derive(Clone, Debug)]
enum PromptView {
    Plain(View),
    Windowed(TurnView),
}

impl PromptView {
    fn view(&self) -> &View {
        match self {
            PromptView::Plain(view) => view,
            PromptView::Windowed(turn) => turn.view(),
        }
    }
}

impl ModelPrompt {
    pub(crate) fn empty() -> Self {
        let log = Transcript::new();
        ModelPrompt { instructions: None, shown: PromptView::Plain(View::whole(&log)), transcript: log }
    }

    /// Shows `view` of the log, within the agent's window; the turn began at `turn_start`.
    pub(crate) fn new(
        agent: &Agent,
        instructions: Option<String>,
        view: View,
        log: &Transcript,
        turn_start: usize,
    ) -> Self {
        let (window, reader) = (agent.config().window.as_ref(), agent.reader());
        let view = match reader {
            Some(tool) => view.with_reader(log, tool),
            None => view,
        };
        let shown = match window {
            None => PromptView::Plain(view.grown(log)),
            Some(window) => PromptView::Windowed(window.resume(view, log, turn_start)),
        };
        let mut prompt = ModelPrompt { instructions, shown, transcript: Transcript::new() };
        prompt.rebuild();
        prompt
    }

    /// Shows the whole log: what an earlier run showed of it, and what it has gained since. O(what is new).
    ///
    /// None unless that run showed all that there was, under the same instructions.
    pub(crate) fn following(
        earlier: ModelPrompt,
        instructions: Option<&str>,
        view: &View,
        log: &Transcript,
    ) -> Option<Self> {
        let is_plain = |view: &View| view.is_whole() && view.summary().is_none();
        let PromptView::Plain(before) = &earlier.shown else { return None };
        // NOTE: Only then is the new prompt the old one with messages appended; a provider's cache goes by equal
        // prefixes.
        let follows = is_plain(before) && is_plain(view) && earlier.instructions.as_deref() == instructions;
        if !follows {
            return None;
        }
        let mut prompt = earlier;
        prompt.grow(log);
        Some(prompt)
    }

    /// The same with what the log has gained since. O(what is new), unless the window has to shrink.
    pub(crate) fn grow(&mut self, log: &Transcript) {
        let before = self.shown.view().transcript().len();
        let left_out = |view: &View| (view.dropped(), view.cleared().len());
        let dropped = left_out(self.shown.view());
        match &mut self.shown {
            PromptView::Plain(view) => view.grow(log),
            PromptView::Windowed(turn) => turn.grow(log),
        }
        let view = self.shown.view();
        if left_out(view) != dropped || view.transcript().len() < before {
            self.rebuild();
        } else if self.instructions.is_none() {
            self.transcript = view.transcript().clone();
        } else {
            self.transcript.extend(view.transcript().iter_from(before).cloned());
        }
    }

    /// Shows the same log under other instructions.
    pub(crate) fn set_instructions(&mut self, instructions: Option<String>) {
        self.instructions = instructions;
        self.rebuild();
    }

    fn rebuild(&mut self) {
        let view = self.shown.view().transcript();
        self.transcript = match &self.instructions {
            None => view.clone(),
            Some(text) => {
                let mut transcript = Transcript::new().with(Message::system(text.as_str()));
                transcript.extend(view.iter().cloned());
                transcript
            }
        };
    }

    pub(crate) fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    pub(crate) fn instructions(&self) -> Option<&str> {
        self.instructions.as_deref()
    }

    pub(crate) fn view(&self) -> &View {
        self.shown.view()
    }
}

/// The view of a log, with its kept messages and its summary.
pub(crate) fn view_of(log: &Transcript, kept: Option<&MessageRanges>, summary: Option<&Summary>) -> View {
    match (kept, summary) {
        (_, Some(summary)) => summary.view(log),
        (Some(kept), None) => View::of(log, kept.clone()),
        (None, None) => View::whole(log),
    }
}

/// The view of a log that shows `kept`, results in `cleared` as a line, and the summary.
pub(super) fn restored_view(
    log: &Transcript,
    kept: MessageRanges,
    cleared: &MessageRanges,
    summary: Option<&Summary>,
) -> View {
    let summary = summary.map(|summary| Arc::new(summary.message()));
    View::assemble(log, kept, summary, Vec::new()).with_cleared(log, cleared)
}

/// The first messages of a log.
pub(super) fn first_messages(log: &Transcript, messages: usize) -> Transcript {
    match messages >= log.len() {
        true => log.clone(),
        false => log.iter().take(messages).cloned().collect(),
    }
}
