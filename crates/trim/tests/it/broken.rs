//! Malformed histories: trimming never panics and adds no fault. Repair them first to get a well-formed view.

use expect_test::expect;
use proptest::prelude::*;
use stepfold_state_core::chat::{Transcript, TranscriptFault};
use stepfold_trim::{Trim, Window};

use crate::{check, histories, shown};

fn faults(log: &Transcript) -> Vec<TranscriptFault> {
    log.check().err().map(|faults| faults.iter().cloned().collect()).unwrap_or_default()
}

proptest! {
    /// Every fault of the view is a fault of the log, at the same message.
    #[test]
    fn no_fault_is_added(log in histories::damaged(), trim in histories::trim()) {
        let view = trim.view(&log);
        let indexes: Vec<usize> = view.kept().indexes().collect();
        let of_log = faults(&log);
        for mut fault in faults(view.transcript()) {
            fault.message = indexes[fault.message];
            prop_assert!(of_log.contains(&fault), "{} shows {}", view, fault);
        }
    }

    #[test]
    fn the_rest_holds_as_well(log in histories::damaged(), trim in histories::trim()) {
        let view = trim.view(&log);
        prop_assert!((0..histories::lead(&log)).all(|index| view.kept().contains(index)));
        prop_assert!(histories::last_user(&log).is_none_or(|index| view.kept().contains(index)));
        prop_assert!(log.is_empty() || !view.transcript().is_empty());
        prop_assert!(trim.view(view.transcript()).is_whole());
    }

    #[test]
    fn a_window_does_not_panic_either(log in histories::damaged(), limit in 0..200_usize) {
        let turn = Window::new(limit).begin(Trim::none().view(&log), &log);
        let of_log = faults(&log);
        let indexes: Vec<usize> = turn.view().kept().indexes().collect();
        for mut fault in faults(turn.transcript()) {
            fault.message = indexes[fault.message];
            prop_assert!(of_log.contains(&fault));
        }
    }

    #[test]
    fn repaired_first_it_is_well_formed(log in histories::damaged(), trim in histories::trim()) {
        let repaired = log.repair().transcript;
        prop_assert_eq!(trim.view(&repaired).transcript().check(), Ok(()));
    }
}

const CUT_OFF: &str = "\
user:      one
assistant: > c1 search()   > c2 fetch()
tool c1:   1
user:      two
tool c9 fetch: 9
assistant: > c3 search()
";

/// The call without an answer and the answer without a call stay as they are ...
#[test]
fn a_broken_history_is_cut_but_not_mended() {
    let log: Transcript = CUT_OFF.parse().unwrap();
    expect![[r#"
        # 3 of 6 messages (3..6); keep_last(2) left out 3: the window is extended back to the user message that opens its turn
        user:      two
        tool c9 fetch: 9
        assistant: > c3 search()
    "#]].assert_eq(&shown(&Trim::keep_last(2).view(&log)));
}

/// ... unless it is repaired first.
#[test]
fn repair_comes_first() {
    let repaired = CUT_OFF.parse::<Transcript>().unwrap().repair().transcript;
    check(
        Trim::keep_last(2),
        &repaired.to_string(),
        expect![[r#"
        # 3 of 7 messages (4..7); keep_last(2) left out 4: the window is extended back to the user message that opens its turn
        user:      two
        assistant: > c3 search()
        tool c3!:  interrupted: no result of this call was recorded; whether it took effect is unknown
    "#]],
    );
}
