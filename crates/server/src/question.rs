//! What a request asks, as text for a person.

use stepfold_agent_loop::{ApprovalRequest, AskReason};

/// The question of a request.
pub(crate) fn question(request: &ApprovalRequest) -> String {
    let (tool, arguments) = (&request.call.name, request.call.arguments.to_text());
    match (&request.message, request.reason) {
        (Some(message), _) => format!("{tool} asks: {message} {arguments}"),
        (None, AskReason::MayHaveHappened) => {
            format!("Run {tool} with {arguments} again? It had started before, and may have had its effect.")
        }
        (None, _) => format!("Run {tool} with {arguments}?"),
    }
}

/// The requests that a person can decide: not those for outcomes that come later.
pub(crate) fn of_persons(pending: &[ApprovalRequest]) -> impl Iterator<Item = &ApprovalRequest> {
    pending.iter().filter(|request| !request.is_later())
}
