//! What all dialects make sure of about the tool calls of a reply: ids that differ, and a choice that was
//! followed.

use stepfold_state_core::chat::{FinishReason, ToolChoice};

/// An id for one more call of a reply: the server's, unless there is none or another call has it.
pub(crate) fn unique_id<'a>(
    taken: &(impl ExactSizeIterator<Item = &'a str> + Clone),
    id: Option<&str>,
) -> String {
    let is_free = |id: &str| taken.clone().all(|other| other != id);
    let given = id.filter(|id| !id.is_empty() && is_free(id)).map(str::to_owned);
    // Of one more number than there are calls, one is free.
    let mut fresh = (0..=taken.len()).map(|number| format!("call_{number}"));
    given.or_else(|| fresh.find(|id| is_free(id))).unwrap_or_default()
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
