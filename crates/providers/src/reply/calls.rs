//! Common checks of the tool calls of a reply, for all dialects: unique ids, and a followed tool choice.

use std::collections::HashSet;

use serde_json::Value;
use stepfold_state_core::chat::{
    Chunk, Extras, FinishReason, LOGPROBS, ModelErrorKind, ToolChoice, fresh_call_id,
};

use super::decoder::ReplyFault;

/// The ids of the calls of a reply.
#[derive(Debug, Default)]
pub(crate) struct ReplyCallIds {
    taken: HashSet<String>,
    calls: usize,
}

impl ReplyCallIds {
    /// Makes the id of the next call: the server's, or a fresh one if it is missing or taken.
    pub(crate) fn unique(&mut self, id: Option<&str>) -> String {
        let is_free = |id: &str| !self.taken.contains(id);
        self.calls += 1;
        let id = match id.unwrap_or_default() {
            given if !given.is_empty() && is_free(given) => given.to_owned(),
            given => fresh_call_id(given, self.calls, is_free),
        };
        self.taken.insert(id.clone());
        id
    }
}

/// The log probabilities of a reply, if there are some.
pub(crate) fn logprobs(tokens: Vec<Value>) -> Option<Chunk> {
    (!tokens.is_empty()).then(|| Chunk::MessageExtras(Extras::from_iter([(LOGPROBS, tokens)])))
}

/// The last chunk of a reply that has all its calls.
///
/// # Errors
/// The choice of tools was not followed.
pub(crate) fn finished<'a>(
    choice: &ToolChoice,
    called: impl Iterator<Item = &'a str>,
    reason: FinishReason,
) -> Result<Chunk, ReplyFault> {
    match ignored(choice, called, &reason) {
        Some(message) => Err(ReplyFault::Kind(ModelErrorKind::ToolChoiceIgnored, message)),
        None => Ok(Chunk::Finished(reason)),
    }
}

/// The violation of the tool choice, if any. Truncated and filtered replies are reported separately.
fn ignored<'a>(
    choice: &ToolChoice,
    mut called: impl Iterator<Item = &'a str>,
    reason: &FinishReason,
) -> Option<String> {
    // NOTE: A truncated or filtered reply may lack its call for another reason.
    if !matches!(reason, FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other(_)) {
        return None;
    }
    match choice {
        ToolChoice::Required if called.next().is_none() => {
            Some("missing tool call: the tool choice requires one".to_owned())
        }
        ToolChoice::Named(name) if called.all(|other| other != name) => {
            Some(format!("missing call of tool `{name}`: the tool choice requires it"))
        }
        _ => None,
    }
}
