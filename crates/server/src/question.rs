//! The requests that clients decide about.

use stepfold_agent_loop::ApprovalRequest;

/// The requests that a person can decide: not those for outcomes that come later.
pub(crate) fn of_persons(pending: &[ApprovalRequest]) -> impl Iterator<Item = &ApprovalRequest> {
    pending.iter().filter(|request| !request.is_later())
}
