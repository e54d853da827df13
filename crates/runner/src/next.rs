//! What a worker does next in a session: a pure function of what is wanted and of how the session is.

use crate::inbox::Kind;

/// What an invocation still wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// To begin with a message that is not stored yet.
    Begin,
    /// To take its message from the inbox, after those that came before it.
    TakeInbox,
    /// To go on with the last run.
    Resume,
    /// To give the last run up.
    Abandon,
    /// Nothing: it has had its run.
    Nothing,
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
    /// Refuse: there is no run to resume or to abandon.
    NothingToResume,
    /// Nothing.
    End,
}

/// Decides what is next. `first` is the kind of what stands first in the inbox.
pub(crate) fn next(wants: Wants, last: Last, first: Option<Kind>) -> Next {
    match (wants, last) {
        // What was accepted before a process died waits for whoever comes.
        (Wants::Resume, Last::Ended) if first.is_some() => Next::Take,
        (Wants::Resume | Wants::Abandon, Last::Ended) => Next::NothingToResume,
        (Wants::Resume, _) => Next::Resume,
        (Wants::Abandon, Last::Unreadable) => Next::Repair,
        (Wants::Abandon, _) => Next::Abandon,
        (Wants::Begin | Wants::TakeInbox, Last::Waits(pending)) => Next::Refuse(pending),
        (Wants::Begin, Last::Ended) if first.is_none() => Next::Begin,
        (Wants::Begin, _) => Next::Store,
        (Wants::TakeInbox, Last::Interrupted | Last::Unreadable) => Next::Recover,
        (Wants::TakeInbox, Last::Ended) => match first {
            Some(_) => Next::Take,
            None => Next::IsTaken,
        },
        // What was to join the run, and came too late.
        (Wants::Nothing, Last::Ended) if first == Some(Kind::Steer) => Next::Take,
        (Wants::Nothing, _) => Next::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
