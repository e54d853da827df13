//! Decides a worker's next action in a session: a pure function of the request and the session's status.

use stepfold_session_scopes::TakeOver;

use crate::claim::{Holder, WhenClaimed};
use crate::inbox::Kind;

/// The remaining goal of an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
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

impl Wants {
    /// Whether its message is in the inbox.
    pub(crate) fn is_in_inbox(self) -> bool {
        matches!(self, Wants::TakeInbox | Wants::TakeLeft)
    }
}

/// The status of the last run of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last {
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
pub(crate) enum Next {
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
pub(crate) struct Seen {
    /// The last run.
    pub(crate) last: Last,
    /// The kind of the first entry in the inbox.
    pub(crate) first: Option<Kind>,
    /// The holder of the claim.
    pub(crate) holder: Holder,
}

/// Decides the next action. The claim comes first: only its holder may touch the run.
pub(crate) fn next(wants: Wants, seen: Seen, when_claimed: WhenClaimed) -> Next {
    let next = match (wants, seen.holder, when_claimed) {
        (_, Holder::Nobody | Holder::Us, _) => of_run(wants, seen.last, seen.first),
        (_, Holder::Dead(token), _) => Next::Claim { take_over: TakeOver::Token(token) },
        (_, Holder::Other, WhenClaimed::TakeOver) => Next::Claim { take_over: TakeOver::Always },
        (_, Holder::Other, WhenClaimed::Refuse) => Next::RefuseClaimed,
        (Wants::Begin, Holder::Other, WhenClaimed::Wait { .. }) => Next::Store,
        (_, Holder::Other, WhenClaimed::Wait { .. }) => Next::Wait,
    };
    match next {
        // A turn that begins claims the session with its first commit; a resumed run has earlier commits.
        Next::Recover | Next::Resume | Next::Abandon if seen.holder == Holder::Nobody => {
            Next::Claim { take_over: TakeOver::Never }
        }
        next => next,
    }
}

/// Decides the next action when no other worker is running.
fn of_run(wants: Wants, last: Last, first: Option<Kind>) -> Next {
    match (wants, last) {
        // Messages that were accepted before a crash wait for the next worker.
        (Wants::Resume | Wants::TakeInbox | Wants::TakeLeft, Last::Ended) if first.is_some() => Next::Take,
        (Wants::Resume | Wants::Abandon, Last::Ended) => Next::NothingToResume,
        (Wants::Resume, _) => Next::Resume,
        (Wants::Abandon, Last::Unreadable) => Next::Repair,
        (Wants::Abandon, _) => Next::Abandon,
        (Wants::Begin | Wants::TakeInbox | Wants::TakeLeft, Last::Waits(pending)) => Next::Refuse(pending),
        (Wants::Begin, Last::Ended) if first.is_none() => Next::Begin,
        (Wants::Begin, _) => Next::Store,
        (Wants::TakeInbox | Wants::TakeLeft, Last::Interrupted | Last::Unreadable) => Next::Recover,
        (Wants::TakeInbox, Last::Ended) => Next::LookAgain,
        (Wants::TakeLeft, Last::Ended) | (Wants::Nothing, _) => Next::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: WhenClaimed = WhenClaimed::Wait { at_most: std::time::Duration::from_secs(1) };

    fn next(wants: Wants, last: Last, first: Option<Kind>) -> Next {
        super::next(wants, Seen { last, first, holder: Holder::Us }, WAIT)
    }

    #[test]
    fn a_message_begins_at_once_only_where_nothing_comes_before_it() {
        assert_eq!(next(Wants::Begin, Last::Ended, None), Next::Begin);
        for first in [Kind::Message, Kind::Steer] {
            assert_eq!(next(Wants::Begin, Last::Ended, Some(first)), Next::Store);
            assert_eq!(next(Wants::TakeInbox, Last::Ended, Some(first)), Next::Take);
            assert_eq!(next(Wants::TakeInbox, Last::Interrupted, Some(first)), Next::Recover);
        }
        assert_eq!(next(Wants::Begin, Last::Interrupted, None), Next::Store);
    }

    #[test]
    fn nothing_is_taken_while_a_decision_is_pending() {
        let waits = || Last::Waits(vec!["c1".to_owned()]);
        for first in [None, Some(Kind::Message), Some(Kind::Steer)] {
            for wants in [Wants::Begin, Wants::TakeInbox] {
                assert_eq!(next(wants, waits(), first), Next::Refuse(vec!["c1".to_owned()]));
            }
            assert_eq!(next(Wants::Resume, waits(), first), Next::Resume);
            assert_eq!(next(Wants::Abandon, waits(), first), Next::Abandon);
        }
    }

    #[test]
    fn what_was_left_is_taken_once_nothing_comes_before_it() {
        assert_eq!(next(Wants::TakeLeft, Last::Ended, Some(Kind::Message)), Next::Take);
        assert_eq!(next(Wants::TakeLeft, Last::Interrupted, Some(Kind::Message)), Next::Recover);
        assert_eq!(next(Wants::TakeLeft, Last::Ended, None), Next::End);
    }

    #[test]
    fn to_resume_takes_what_waits() {
        assert_eq!(next(Wants::Resume, Last::Ended, Some(Kind::Message)), Next::Take);
        assert_eq!(next(Wants::Resume, Last::Ended, None), Next::NothingToResume);
        assert_eq!(next(Wants::Abandon, Last::Ended, Some(Kind::Message)), Next::NothingToResume);
    }

    #[test]
    fn the_run_of_another_worker_is_not_touched_but_to_take_it_over() {
        for wants in [Wants::Begin, Wants::TakeInbox, Wants::Resume, Wants::Abandon] {
            for last in [Last::Ended, Last::Interrupted, Last::Waits(vec!["c1".to_owned()]), Last::Unreadable]
            {
                let next = |when| {
                    super::next(wants, Seen { last: last.clone(), first: None, holder: Holder::Other }, when)
                };
                assert_eq!(next(WhenClaimed::Refuse), Next::RefuseClaimed);
                assert_eq!(next(WhenClaimed::TakeOver), Next::Claim { take_over: TakeOver::Always });
                assert_eq!(next(WAIT), if wants == Wants::Begin { Next::Store } else { Next::Wait });
            }
        }
    }

    #[test]
    fn only_a_session_of_a_dead_worker_is_taken_over_at_once() {
        for wants in [Wants::Begin, Wants::TakeInbox, Wants::Resume, Wants::Abandon] {
            for when in [WAIT, WhenClaimed::Refuse, WhenClaimed::TakeOver] {
                let seen = Seen { last: Last::Ended, first: None, holder: Holder::Dead(7) };
                assert_eq!(super::next(wants, seen, when), Next::Claim { take_over: TakeOver::Token(7) });
            }
        }
    }

    #[test]
    fn a_run_continues_only_under_a_claim() {
        for wants in [Wants::TakeInbox, Wants::Resume, Wants::Abandon] {
            let seen = Seen { last: Last::Interrupted, first: None, holder: Holder::Nobody };
            assert_eq!(super::next(wants, seen, WAIT), Next::Claim { take_over: TakeOver::Never });
        }
        let seen = Seen { last: Last::Ended, first: None, holder: Holder::Nobody };
        assert_eq!(super::next(Wants::Begin, seen, WAIT), Next::Begin);
    }
}
