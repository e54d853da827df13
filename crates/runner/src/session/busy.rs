//! The handling of messages for a busy session.

/// The handling of a message for a busy session.
///
/// A message is never lost: it is refused with an error, or accepted, and then taken once, in order, or
/// [withdrawn](crate::SessionHandle::withdraw) by its id. Each accepted message has an invocation of its own, which
/// reports to its sender the outcome of the run that took it, by the record alone:
///
/// | | reported to the sender | reported to the sender of the current run | reported to a repeat under its key |
/// |---|---|---|---|
/// | [`Wait`](WhenBusy::Wait) | the outcome of its own run, after those of earlier messages; [`Busy`](crate::RunnerErrorKind::Busy) if too many wait | the outcome of that run, unchanged | the outcome of its own run, at once if that has ended |
/// | [`Refuse`](WhenBusy::Refuse) | [`Busy`](crate::RunnerErrorKind::Busy): nothing is stored | the outcome of that run, unchanged | the same as above: a repeat is not refused |
/// | [`Interrupt`](WhenBusy::Interrupt) | the outcome of its own run; `WhenBusy` if too many wait, and then nothing is cancelled | that its run was [cancelled](crate::agent_loop::Exit::Cancelled), or its end if that came first | the outcome of its own run; it cancels nothing |
/// | [`Steer`](WhenBusy::Steer) | the outcome of the run that took it; if it came too late, of one of its own | the outcome of that run, which answers both | the same as its sender: it joins nothing again |
///
/// Of a run that failed, or waits for decisions, each gets that, and a later repeat gets its end. A repeat is a
/// message with the same key and content, from any process and however late. A key is known for as long as the record
/// of the session has the events of its message, and for the last 1,000 messages of its inbox if a rewind or retention
/// has removed them. Within those 1,000, other content under the key is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenBusy {
    /// Refuses it, if an invocation of this runner is running. [`WhenClaimed`](crate::WhenClaimed) decides if another
    /// worker is.
    Refuse,
    /// Queues it; at most [`max_waiting`](crate::RunnerBuilder::max_waiting) messages wait.
    #[default]
    Wait,
    /// Cancels the current run, in this process or another one, once the message is accepted. Messages that wait stay
    /// accepted, and come before it.
    Interrupt,
    /// Adds it to the current run, before the next request to the model. If the run has ended by then, the
    /// message is next.
    Steer,
}
