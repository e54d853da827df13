//! What all dialects make sure of about the tool calls of a reply: ids that differ, and a choice that was
//! followed.

use std::collections::HashSet;

use stepfold_state_core::chat::{FinishReason, ToolChoice};

/// The ids of the calls of a reply.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    taken: HashSet<String>,
    /// No number below it is free any more.
    next: usize,
}

impl CallIds {
    /// Makes the id of the next call: the server's, or a fresh one if it is missing or taken.
    pub(crate) fn unique(&mut self, id: Option<&str>) -> String {
        let given = id.filter(|id| !id.is_empty() && !self.taken.contains(*id)).map(str::to_owned);
        let id = given.unwrap_or_else(|| self.fresh());
        self.taken.insert(id.clone());
        id
    }

    /// The lowest free number. Numbers that were skipped are not checked again.
    fn fresh(&mut self) -> String {
        loop {
            let id = format!("call_{}", self.next);
            self.next += 1;
            if !self.taken.contains(&id) {
                return id;
            }
        }
    }
}

/// How the choice of tools was not followed, if it was not. A reply that was cut or filtered says so itself.
pub(crate) fn ignored<'a>(
    choice: &ToolChoice,
    mut called: impl Iterator<Item = &'a str>,
    reason: &FinishReason,
) -> Option<String> {
    if !matches!(reason, FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other(_)) {
        return None;
    }
    match choice {
        ToolChoice::Required if called.next().is_none() => {
            Some("a tool call was required, and there is none".to_owned())
        }
        ToolChoice::Named(name) if called.all(|other| other != name) => {
            Some(format!("a call of the tool `{name}` was required, and there is none"))
        }
        _ => None,
    }
}
