//! The commands to the worker of a session: one for each way in which an invocation begins.

use stepfold_agent_loop::{Decisions, Input};
use stepfold_tools::CancellationToken;

use crate::session::acceptance::AcceptanceReply;
use crate::session::busy::WhenBusy;
use crate::session::decision_reply::DecisionReply;

/// The task of an invocation.
pub(crate) enum WorkerCommand {
    /// A new turn, with a message that is stored by its first event.
    Begin { input: Box<Input>, busy: WhenBusy, acceptance: AcceptanceReply },
    /// A new turn, with a message in the inbox.
    TakeInbox,
    /// A new turn, with a message left in the inbox: no caller here waits for it.
    TakeLeft,
    /// As [`TakeInbox`](WorkerCommand::TakeInbox), under an idempotency key; or, if it was taken before, what is left
    /// of its run.
    RunAs(RunOptions),
    /// Resume the last run, or take the inbox, unless another worker does.
    Recover,
    /// Resume the last run.
    Resume { decisions: Decisions, with_changed_agent: bool, decision_reply: DecisionReply },
    /// Cancel the last run.
    Abandon,
}

/// The options of a run under an idempotency key.
pub(crate) struct RunOptions {
    pub(crate) decisions: Decisions,
    pub(crate) with_changed_agent: bool,
    pub(crate) suspension: CancellationToken,
}
