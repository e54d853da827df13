//! What a worker does next in a session: a pure function of what is wanted and of how the session is.

use stepfold_session_scopes::TakeOver;

use crate::claim::{Holder, WhenClaimed};
use crate::inbox::Kind;

/// What an invocation still wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// To begin with a message that is not stored yet.
    Begin,
    /// To take its message from the inbox, after those that came before it.
    TakeInbox,
    /// To take what stands first in the inbox, whose message that may be.
    TakeLeft,
    /// To go on with the last run.
    Resume,
    /// To give the last run up.
    Abandon,
    /// Nothing: it has had its run.
    Nothing,
}

impl Wants {
    /// Whether what it is about stands in the inbox.
    pub(crate) fn is_in_inbox(self) -> bool {
        matches!(self, Wants::TakeInbox | Wants::TakeLeft)
    }
}

/// How the last run of a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// There is none, or it has ended.
    Ended,
    /// It did not end, and nobody has to decide about anything.
    Interrupted,
    /// It waits for decisions about these requests.
    Waits(Vec<String>),
    /// The agent cannot read its record.
    Unreadable,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Begin a turn with the message.
    Begin,
    /// Put the message into the inbox: something comes before it.
    Store,
    /// Begin a turn with what stands first in the inbox.
    Take,
    /// Claim the session, and look again.
    Claim {
        /// Also if another worker holds the claim.
        take_over: TakeOver,
    },
    /// Wait for the worker that holds the claim, and look again.
    Wait,
    /// Bring the interrupted run to its end, before anything new begins.
    Recover,
    /// Go on with the last run, as was asked for.
    Resume,
    /// Cancel the last run.
    Abandon,
    /// Repair the conversation that a run left which nobody can read.
    Repair,
    /// Give the outcome of the run that took the message.
    IsTaken,
    /// Refuse: these requests have to be decided about first.
    Refuse(Vec<String>),
    /// Refuse: another worker holds the claim.
    RefuseClaimed,
    /// Refuse: there is no run to resume or to abandon.
    NothingToResume,
    /// Nothing.
    End,
}

/// How the session is.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The last run.
    pub(crate) last: Last,
    /// The kind of what stands first in the inbox.
    pub(crate) first: Option<Kind>,
    /// Who holds the claim.
    pub(crate) holder: Holder,
}

/// Decides what is next. The claim comes first, since who does not hold it must not touch the run of whoever does.
pub(crate) fn next(wants: Wants, seen: Seen, when_claimed: WhenClaimed) -> Next {
    let next = match (wants, seen.holder, when_claimed) {
        (Wants::Nothing, ..) | (_, Holder::Nobody | Holder::Us, _) => of_run(wants, seen.last, seen.first),
        (_, Holder::Dead(token), _) => Next::Claim { take_over: TakeOver::Token(token) },
        (_, Holder::Other, WhenClaimed::TakeOver) => Next::Claim { take_over: TakeOver::Always },
        (_, Holder::Other, WhenClaimed::Refuse) => Next::RefuseClaimed,
        (Wants::Begin, Holder::Other, WhenClaimed::Wait { .. }) => Next::Store,
        (_, Holder::Other, WhenClaimed::Wait { .. }) => Next::Wait,
    };
    match next {
        // A turn that begins claims the session with its first commit; a run that goes on has made its own.
        Next::Recover | Next::Resume | Next::Abandon if seen.holder == Holder::Nobody => {
            Next::Claim { take_over: TakeOver::Never }
        }
        next => next,
    }
}

/// Decides what is next where no other worker is at work.
fn of_run(wants: Wants, last: Last, first: Option<Kind>) -> Next {
    match (wants, last) {
        // What was accepted before a process died waits for whoever comes.
        (Wants::Resume | Wants::TakeInbox | Wants::TakeLeft, Last::Ended) if first.is_some() => Next::Take,
        (Wants::Resume | Wants::Abandon, Last::Ended) => Next::NothingToResume,
        (Wants::Resume, _) => Next::Resume,
        (Wants::Abandon, Last::Unreadable) => Next::Repair,
        (Wants::Abandon, _) => Next::Abandon,
        (Wants::Begin | Wants::TakeInbox | Wants::TakeLeft, Last::Waits(pending)) => Next::Refuse(pending),
        (Wants::Begin, Last::Ended) if first.is_none() => Next::Begin,
        (Wants::Begin, _) => Next::Store,
        (Wants::TakeInbox | Wants::TakeLeft, Last::Interrupted | Last::Unreadable) => Next::Recover,
        (Wants::TakeInbox, Last::Ended) => Next::IsTaken,
        // What was to join the run, and came too late.
        (Wants::Nothing, Last::Ended) if first == Some(Kind::Steer) => Next::Take,
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
    fn nothing_is_taken_while_somebody_has_to_decide() {
        let waits = || Last::Waits(vec!["c1".to_owned()]);
        for first in [None, Some(Kind::Message), Some(Kind::Steer)] {
            for wants in [Wants::Begin, Wants::TakeInbox] {
                assert_eq!(next(wants, waits(), first), Next::Refuse(vec!["c1".to_owned()]));
            }
            assert_eq!(next(Wants::Nothing, waits(), first), Next::End);
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
    fn what_came_too_late_to_join_a_run_is_next_in_the_same_invocation() {
        assert_eq!(next(Wants::Nothing, Last::Ended, Some(Kind::Steer)), Next::Take);
        assert_eq!(next(Wants::Nothing, Last::Ended, Some(Kind::Message)), Next::End);
        assert_eq!(next(Wants::Nothing, Last::Interrupted, Some(Kind::Steer)), Next::End);
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
    fn a_session_of_a_dead_worker_is_taken_over_at_once_and_from_nobody_else() {
        for wants in [Wants::Begin, Wants::TakeInbox, Wants::Resume, Wants::Abandon] {
            for when in [WAIT, WhenClaimed::Refuse, WhenClaimed::TakeOver] {
                let seen = Seen { last: Last::Ended, first: None, holder: Holder::Dead(7) };
                assert_eq!(super::next(wants, seen, when), Next::Claim { take_over: TakeOver::Token(7) });
            }
        }
    }

    #[test]
    fn a_run_goes_on_only_under_a_claim() {
        for wants in [Wants::TakeInbox, Wants::Resume, Wants::Abandon] {
            let seen = Seen { last: Last::Interrupted, first: None, holder: Holder::Nobody };
            assert_eq!(super::next(wants, seen, WAIT), Next::Claim { take_over: TakeOver::Never });
        }
        let seen = Seen { last: Last::Ended, first: None, holder: Holder::Nobody };
        assert_eq!(super::next(Wants::Begin, seen, WAIT), Next::Begin);
    }
}
