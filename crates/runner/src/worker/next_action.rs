//! Decides the next action of an invocation: a pure function of its goal and of the session's status.
//!
//! # Transitions
//!
//! The [driver](crate::worker::driver) reads the session, takes the action, and decides again, until the goal is `Nothing`
//! or an action is an error. The claim comes first: only its holder may touch the run.
//!
//! | holder of the claim | when claimed | goal | action |
//! |---|---|---|---|
//! | `Free`, `Us` | any | any | by the next table |
//! | `Dead` | any | any | `Claim` |
//! | `Other` | `TakeOver` | any | `Claim` |
//! | `Other` | `Refuse` | any | `RefuseClaimed` |
//! | `Other` | `Wait` | `Begin` | `Store` |
//! | `Other` | `Wait` | any other | `Wait` |
//!
//! The status of the last run decides, and whether messages are in the inbox. In place of `Recover`, `Resume` and
//! `Abandon` the action is `Claim` as long as no worker holds the claim.
//!
//! | goal | `Ended`, inbox empty | `Ended`, messages in the inbox | `Interrupted` | `Waits` | `Unreadable` |
//! |---|---|---|---|---|---|
//! | `Begin` | `Begin` | `Store` | `Store` | `Refuse` | `Store` |
//! | `TakeInbox` | `LookAgain` | `Take` | `Recover` | `Refuse` | `Recover` |
//! | `TakeLeft` | `End` | `Take` | `Recover` | `Refuse` | `Recover` |
//! | `Resume` | `NothingToResume` | `Take` | `Resume` | `Resume` | `Resume` |
//! | `Abandon` | `NothingToResume` | `NothingToResume` | `Abandon` | `Abandon` | `Repair` |
//! | `Nothing` | `End` | `End` | `End` | `End` | `End` |
//!
//! The goal after an action:
//!
//! | action | next goal |
//! |---|---|
//! | `Begin` | `Nothing`; `Begin` again if another worker was faster |
//! | `Store` | `TakeInbox` |
//! | `Take` | `Nothing`; the same goal if the message of the invocation was not among the taken ones, or another worker was faster |
//! | `Claim`, `Wait`, `LookAgain`, `Recover` | the same goal |
//! | `Resume`, `Abandon`, `Repair`, `End` | `Nothing` |
//! | `Refuse`, `RefuseClaimed`, `NothingToResume` | none: the invocation ends with an error, unless the record has its outcome |

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
    /// Claim the session, and decide again.
    Claim {
        /// Whether to take over another worker's claim.
        take_over: TakeOver,
    },
    /// Wait for the worker that holds the claim, and decide again.
    Wait,
    /// Complete the interrupted run, before anything new begins.
    Recover,
    /// Continue the last run, as requested.
    Resume,
    /// Cancel the last run.
    Abandon,
    /// Repair the conversation after a run whose record is unreadable.
    Repair,
    /// Decide again: the message does not wait, and no run was seen to take it.
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
pub(crate) fn next_action(
    goal: InvocationGoal,
    status: SessionStatus,
    when_claimed: WhenClaimed,
) -> NextAction {
    let next = match (goal, status.holder, when_claimed) {
        (_, ClaimHolder::Free | ClaimHolder::Us, _) => of_run(goal, status.last, status.first),
        (_, ClaimHolder::Dead(token), _) => NextAction::Claim { take_over: TakeOver::Token(token) },
        (_, ClaimHolder::Other, WhenClaimed::TakeOver) => NextAction::Claim { take_over: TakeOver::Always },
        (_, ClaimHolder::Other, WhenClaimed::Refuse) => NextAction::RefuseClaimed,
        (InvocationGoal::Begin, ClaimHolder::Other, WhenClaimed::Wait { .. }) => NextAction::Store,
        (_, ClaimHolder::Other, WhenClaimed::Wait { .. }) => NextAction::Wait,
    };
    match next {
        // A turn that begins claims the session with its first commit; a resumed run has earlier commits.
        NextAction::Recover | NextAction::Resume | NextAction::Abandon
            if status.holder == ClaimHolder::Free =>
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
        super::next_action(goal, SessionStatus { last, first, holder: ClaimHolder::Us }, WAIT)
    }

    /// The rows of the table with this head, without their backticks.
    fn table(head: &str) -> Vec<Vec<String>> {
        let lines = include_str!("next_action.rs").lines().map(|line| line.trim_start_matches("//! "));
        let rows = lines.skip_while(|line| !line.starts_with(head)).skip(2);
        let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.replace('`', "")).collect();
        let row = |row: &str| -> Vec<String> { cells(row) };
        let trim = |cells: Vec<String>| cells.iter().map(|cell| cell.trim().to_owned()).collect();
        rows.take_while(|line| line.starts_with('|')).map(row).map(trim).collect()
    }

    /// The name of a variant.
    fn name(variant: &impl std::fmt::Debug) -> String {
        format!("{variant:?}").chars().take_while(char::is_ascii_alphanumeric).collect()
    }

    const GOALS: [InvocationGoal; 6] = [
        InvocationGoal::Begin,
        InvocationGoal::TakeInbox,
        InvocationGoal::TakeLeft,
        InvocationGoal::Resume,
        InvocationGoal::Abandon,
        InvocationGoal::Nothing,
    ];

    #[test]
    fn the_table_of_goals_is_that_of_the_code() {
        let columns = || {
            let (empty, message) = (None, Some(MessageKind::Message));
            [
                (LastRunStatus::Ended, empty),
                (LastRunStatus::Ended, message),
                (LastRunStatus::Interrupted, message),
                (LastRunStatus::Waits(vec!["c1".to_owned()]), message),
                (LastRunStatus::Unreadable, message),
            ]
        };
        let rows = table("| goal | `Ended`");
        assert_eq!(rows.len(), GOALS.len());
        for (goal, row) in GOALS.into_iter().zip(rows) {
            let actions = columns().map(|(last, first)| name(&next(goal, last, first)));
            assert_eq!(row[0], name(&goal));
            assert_eq!(row[1..], actions, "{goal:?}");
        }
    }

    #[test]
    fn the_table_of_holders_is_that_of_the_code() {
        let claims = [ClaimHolder::Dead(7), ClaimHolder::Other];
        let rows = table("| holder of the claim");
        for holder in claims {
            for when in [WAIT, WhenClaimed::Refuse, WhenClaimed::TakeOver] {
                for goal in GOALS {
                    let is_row = |row: &&Vec<String>| {
                        row[0] == name(&holder)
                            && (row[1] == "any" || row[1] == name(&when))
                            && (row[2].starts_with("any") || row[2] == name(&goal))
                    };
                    let row = rows.iter().find(is_row).unwrap();
                    let status = SessionStatus { last: LastRunStatus::Ended, first: None, holder };
                    let action = super::next_action(goal, status, when);
                    assert_eq!(name(&action), row[3], "{holder:?}, {when:?}, {goal:?}");
                }
            }
        }
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
                    super::next_action(
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
                    super::next_action(goal, status, when),
                    NextAction::Claim { take_over: TakeOver::Token(7) }
                );
            }
        }
    }

    #[test]
    fn a_run_continues_only_under_a_claim() {
        for goal in [InvocationGoal::TakeInbox, InvocationGoal::Resume, InvocationGoal::Abandon] {
            let status =
                SessionStatus { last: LastRunStatus::Interrupted, first: None, holder: ClaimHolder::Free };
            assert_eq!(
                super::next_action(goal, status, WAIT),
                NextAction::Claim { take_over: TakeOver::Never }
            );
        }
        let status = SessionStatus { last: LastRunStatus::Ended, first: None, holder: ClaimHolder::Free };
        assert_eq!(super::next_action(InvocationGoal::Begin, status, WAIT), NextAction::Begin);
    }
}
