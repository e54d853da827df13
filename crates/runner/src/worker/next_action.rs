//! Decides a worker's next action in a session: a pure function of the request and the session's status.

use stepfold_session_scopes::TakeOver;

use crate::session::claim::{ClaimHolder, WhenClaimed};
use crate::session::inbox::MessageKind;

/// The remaining goal of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvocationGoal {
    /// To begin with a message that is not stored yet.
    Begin,
    /// To take its message from the inbox, after earlier ones.
    TakeInbox,
    /// To take the first message of the inbox, whichever it is.
    TakeLeft,
    /// To continue the last run.
    Resume,
    /// To cancel the last run.
    Abandon,
    /// Nothing more: its run is done.
    Nothing,
}

impl InvocationGoal {
    /// Whether its message is in the inbox.
    pub(crate) fn is_in_inbox(self) -> bool {
        matches!(self, InvocationGoal::TakeInbox | InvocationGoal::TakeLeft)
    }
}

/// The status of the last run of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastRunStatus {
    /// No run, or one that has ended.
    Ended,
    /// It has not ended, and does not wait for decisions.
    Interrupted,
    /// It waits for decisions about these requests.
    Waits(Vec<String>),
    /// The agent cannot read its record.
    Unreadable,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Begin a turn with the message.
    Begin,
    /// Put the message into the inbox: something comes before it.
    Store,
    /// Begin a turn with the first message of the inbox.
    Take,
    /// Claim the session, and look again.
    Claim {
        /// Whether to take over another worker's claim.
        take_over: TakeOver,
    },
    /// Wait for the worker that holds the claim, and look again.
    Wait,
    /// Complete the interrupted run, before anything new begins.
    Recover,
    /// Continue the last run, as requested.
    Resume,
    /// Cancel the last run.
    Abandon,
    /// Repair the conversation after a run whose record is unreadable.
    Repair,
    /// Look again: the message does not wait, and no run was seen to take it.
    LookAgain,
    /// Refuse: these requests need decisions first.
    Refuse(Vec<String>),
    /// Refuse: another worker holds the claim.
    RefuseClaimed,
    /// Refuse: there is no run to resume or to abandon.
    NothingToResume,
    /// Nothing.
    End,
}

/// The status of the session.
#[derive(Clone, Debug)]
pub(crate) struct SessionStatus {
    /// The last run.
    pub(crate) last: LastRunStatus,
    /// The kind of the first entry in the inbox.
    pub(crate) first: Option<MessageKind>,
    /// The holder of the claim.
    pub(crate) holder: ClaimHolder,
}

/// Decides the next action. The claim comes first: only its holder may touch the run.
pub(crate) fn next(goal: InvocationGoal, status: SessionStatus, when_claimed: WhenClaimed) -> NextAction {
    let next = match (goal, status.holder, when_claimed) {
        (_, ClaimHolder::Nobody | ClaimHolder::Us, _) => of_run(goal, status.last, status.first),
        (_, ClaimHolder::Dead(token), _) => NextAction::Claim { take_over: TakeOver::Token(token) },
        (_, ClaimHolder::Other, WhenClaimed::TakeOver) => NextAction::Claim { take_over: TakeOver::Always },
        (_, ClaimHolder::Other, WhenClaimed::Refuse) => NextAction::RefuseClaimed,
        (InvocationGoal::Begin, ClaimHolder::Other, WhenClaimed::Wait { .. }) => NextAction::Store,
        (_, ClaimHolder::Other, WhenClaimed::Wait { .. }) => NextAction::Wait,
    };
    match next {
        // A turn that begins claims the session with its first commit; a resumed run has earlier commits.
        NextAction::Recover | NextAction::Resume | NextAction::Abandon
            if status.holder == ClaimHolder::Nobody =>
        {
            NextAction::Claim { take_over: TakeOver::Never }
        }
        next => next,
    }
}

/// Decides the next action when no other worker is running.
fn of_run(goal: InvocationGoal, last: LastRunStatus, first: Option<MessageKind>) -> NextAction {
    match (goal, last) {
        // Messages that were accepted before a crash wait for the next worker.
        (
            InvocationGoal::Resume | InvocationGoal::TakeInbox | InvocationGoal::TakeLeft,
            LastRunStatus::Ended,
        ) if first.is_some() => NextAction::Take,
        (InvocationGoal::Resume | InvocationGoal::Abandon, LastRunStatus::Ended) => {
            NextAction::NothingToResume
        }
        (InvocationGoal::Resume, _) => NextAction::Resume,
        (InvocationGoal::Abandon, LastRunStatus::Unreadable) => NextAction::Repair,
        (InvocationGoal::Abandon, _) => NextAction::Abandon,
        (
            InvocationGoal::Begin | InvocationGoal::TakeInbox | InvocationGoal::TakeLeft,
            LastRunStatus::Waits(pending),
        ) => NextAction::Refuse(pending),
        (InvocationGoal::Begin, LastRunStatus::Ended) if first.is_none() => NextAction::Begin,
        (InvocationGoal::Begin, _) => NextAction::Store,
        (
            InvocationGoal::TakeInbox | InvocationGoal::TakeLeft,
            LastRunStatus::Interrupted | LastRunStatus::Unreadable,
        ) => NextAction::Recover,
        (InvocationGoal::TakeInbox, LastRunStatus::Ended) => NextAction::LookAgain,
        (InvocationGoal::TakeLeft, LastRunStatus::Ended) | (InvocationGoal::Nothing, _) => NextAction::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: WhenClaimed = WhenClaimed::Wait { at_most: std::time::Duration::from_secs(1) };

    fn next(goal: InvocationGoal, last: LastRunStatus, first: Option<MessageKind>) -> NextAction {
        super::next(goal, SessionStatus { last, first, holder: ClaimHolder::Us }, WAIT)
    }

    #[test]
    fn a_message_begins_at_once_only_where_nothing_comes_before_it() {
        assert_eq!(next(InvocationGoal::Begin, LastRunStatus::Ended, None), NextAction::Begin);
        for first in [MessageKind::Message, MessageKind::Steer] {
            assert_eq!(next(InvocationGoal::Begin, LastRunStatus::Ended, Some(first)), NextAction::Store);
            assert_eq!(next(InvocationGoal::TakeInbox, LastRunStatus::Ended, Some(first)), NextAction::Take);
            assert_eq!(
                next(InvocationGoal::TakeInbox, LastRunStatus::Interrupted, Some(first)),
                NextAction::Recover
            );
        }
        assert_eq!(next(InvocationGoal::Begin, LastRunStatus::Interrupted, None), NextAction::Store);
    }

    #[test]
    fn nothing_is_taken_while_a_decision_is_pending() {
        let waits = || LastRunStatus::Waits(vec!["c1".to_owned()]);
        for first in [None, Some(MessageKind::Message), Some(MessageKind::Steer)] {
            for goal in [InvocationGoal::Begin, InvocationGoal::TakeInbox] {
                assert_eq!(next(goal, waits(), first), NextAction::Refuse(vec!["c1".to_owned()]));
            }
            assert_eq!(next(InvocationGoal::Resume, waits(), first), NextAction::Resume);
            assert_eq!(next(InvocationGoal::Abandon, waits(), first), NextAction::Abandon);
        }
    }

    #[test]
    fn what_was_left_is_taken_once_nothing_comes_before_it() {
        assert_eq!(
            next(InvocationGoal::TakeLeft, LastRunStatus::Ended, Some(MessageKind::Message)),
            NextAction::Take
        );
        assert_eq!(
            next(InvocationGoal::TakeLeft, LastRunStatus::Interrupted, Some(MessageKind::Message)),
            NextAction::Recover
        );
        assert_eq!(next(InvocationGoal::TakeLeft, LastRunStatus::Ended, None), NextAction::End);
    }

    #[test]
    fn to_resume_takes_what_waits() {
        assert_eq!(
            next(InvocationGoal::Resume, LastRunStatus::Ended, Some(MessageKind::Message)),
            NextAction::Take
        );
        assert_eq!(next(InvocationGoal::Resume, LastRunStatus::Ended, None), NextAction::NothingToResume);
        assert_eq!(
            next(InvocationGoal::Abandon, LastRunStatus::Ended, Some(MessageKind::Message)),
            NextAction::NothingToResume
        );
    }

    #[test]
    fn the_run_of_another_worker_is_not_touched_but_to_take_it_over() {
        for goal in [
            InvocationGoal::Begin,
            InvocationGoal::TakeInbox,
            InvocationGoal::Resume,
            InvocationGoal::Abandon,
        ] {
            for last in [
                LastRunStatus::Ended,
                LastRunStatus::Interrupted,
                LastRunStatus::Waits(vec!["c1".to_owned()]),
                LastRunStatus::Unreadable,
            ] {
                let next = |when| {
                    super::next(
                        goal,
                        SessionStatus { last: last.clone(), first: None, holder: ClaimHolder::Other },
                        when,
                    )
                };
                assert_eq!(next(WhenClaimed::Refuse), NextAction::RefuseClaimed);
                assert_eq!(next(WhenClaimed::TakeOver), NextAction::Claim { take_over: TakeOver::Always });
                assert_eq!(
                    next(WAIT),
                    if goal == InvocationGoal::Begin { NextAction::Store } else { NextAction::Wait }
                );
            }
        }
    }

    #[test]
    fn only_a_session_of_a_dead_worker_is_taken_over_at_once() {
        for goal in [
            InvocationGoal::Begin,
            InvocationGoal::TakeInbox,
            InvocationGoal::Resume,
            InvocationGoal::Abandon,
        ] {
            for when in [WAIT, WhenClaimed::Refuse, WhenClaimed::TakeOver] {
                let status =
                    SessionStatus { last: LastRunStatus::Ended, first: None, holder: ClaimHolder::Dead(7) };
                assert_eq!(
                    super::next(goal, status, when),
                    NextAction::Claim { take_over: TakeOver::Token(7) }
                );
            }
        }
    }

    #[test]
    fn a_run_continues_only_under_a_claim() {
        for goal in [InvocationGoal::TakeInbox, InvocationGoal::Resume, InvocationGoal::Abandon] {
            let status =
                SessionStatus { last: LastRunStatus::Interrupted, first: None, holder: ClaimHolder::Nobody };
            assert_eq!(super::next(goal, status, WAIT), NextAction::Claim { take_over: TakeOver::Never });
        }
        let status = SessionStatus { last: LastRunStatus::Ended, first: None, holder: ClaimHolder::Nobody };
        assert_eq!(super::next(InvocationGoal::Begin, status, WAIT), NextAction::Begin);
    }
}
