//! The description of an unfinished run, shown when another process resumes it.

use std::fmt;

use serde::Serialize;
use stepfold::prelude::*;
use stepfold::state_core::chat::Role;

use super::{ActiveBranches, short};

/// The characters of the question that are shown.
const QUESTION: usize = 80;

/// A run that was interrupted or waits: its question, its step, its open calls.
#[derive(Debug, Serialize)]
pub(crate) struct UnfinishedRun {
    question: String,
    /// The step that is not finished, from 1.
    step: u64,
    /// The calls, or the branches of a graph, that have no outcome.
    open: Vec<String>,
    /// The ids of its pending requests.
    waits: Vec<String>,
    #[serde(skip)]
    is_graph: bool,
}

impl UnfinishedRun {
    pub(crate) fn of(run: &Run, is_graph: bool) -> Self {
        let said: Vec<_> = run.transcript().iter().collect();
        let question = said.iter().rev().find(|message| message.role() == Role::User);
        let question = question.map(|question| short(&question.text())).unwrap_or_default();
        let active = ActiveBranches::of(run.branches().cloned().collect());
        let branches = run.open_branches().into_iter().map(|branch| active.label(branch.place));
        let calls = run
            .open_calls()
            .into_iter()
            .map(|(_, open)| open.to_string().trim_start_matches("> ").to_owned());
        let open: Vec<String> = calls.chain(branches).collect();
        // NOTE: A step with open calls is counted already, since its reply is stored.
        let step = if run.open_calls().is_empty() { run.steps() + 1 } else { run.steps() };
        let waits = run.pending().into_iter().map(|request| request.id).collect();
        UnfinishedRun { question, step, open, waits, is_graph }
    }
}

impl fmt::Display for UnfinishedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let question: String = self.question.chars().take(QUESTION).collect();
        let more = if question.len() < self.question.len() { " ..." } else { "" };
        if !question.is_empty() {
            write!(f, "\"{question}{more}\", ")?;
        }
        let step = self.step;
        match (self.waits.is_empty(), self.open.is_empty()) {
            (false, _) => {
                write!(f, "which waits in step {step} for a decision about {}", self.waits.join(", "))
            }
            (true, false) => write!(f, "interrupted in step {step} with {} open", self.open.join(", ")),
            (true, true) if self.is_graph => write!(f, "interrupted in step {step}"),
            (true, true) => write!(f, "interrupted in step {step} before the model had answered"),
        }
    }
}
