//! Policies by name, and the stored form of ranges.

use std::sync::Arc;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stepfold_trim::{MessageRanges, Pins, TokenCounter, Trim};

use crate::histories;

fn check(trim: Trim, name: Expect) {
    name.assert_eq(&trim.to_string());
}

#[test]
fn every_policy_by_name() {
    check(Trim::none(), expect!["none"]);
    check(Trim::keep_last(100), expect!["keep_last(100)"]);
    let pins = Pins::up_to(80).results_of(["run_sql"]);
    check(Trim::keep_last(20).with_pins(pins), expect!["keep_last(20, up to 80 pins: user, run_sql)"]);
    let pins = Pins::up_to(80).without_users();
    check(Trim::keep_last(20).with_pins(pins), expect!["keep_last(20, no pins)"]);
    check(
        Trim::max_tokens(8_000).then(Trim::cap_messages(50)),
        expect!["max_tokens(8000) then cap_messages(50)"],
    );
    check(Trim::cap_tokens(8_000).counted_by(histories::ones()), expect!["cap_tokens(8000, by ones)"]);
}

#[test]
fn ranges_are_refused_unless_in_order() {
    let read = |stored: &str| serde_json::from_str::<MessageRanges>(stored);
    assert_eq!(read("[[0, 1], [18, 120]]").unwrap().ranges(), [0..1, 18..120]);
    assert!(read("[]").unwrap().is_empty());
    for wrong in ["[[3, 3]]", "[[4, 3]]", "[[0, 3], [3, 4]]", "[[5, 6], [0, 1]]"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_counter_can_be_shared_boxed_and_borrowed() {
    fn is_counter(counter: impl TokenCounter) -> String {
        counter.name().to_owned()
    }
    let shared: Arc<dyn TokenCounter> = Arc::new(histories::ones());
    let boxed: Box<dyn TokenCounter> = Box::new(Arc::clone(&shared));
    assert_eq!([is_counter(&*shared), is_counter(boxed), is_counter(&shared)], ["ones", "ones", "ones"]);
}

proptest! {
    #[test]
    fn ranges_survive_json_and_count_their_indexes(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        let stored = serde_json::to_string(view.kept()).unwrap();
        prop_assert_eq!(&serde_json::from_str::<MessageRanges>(&stored).unwrap(), view.kept());
        let indexes: Vec<usize> = view.kept().indexes().collect();
        prop_assert_eq!(indexes.len(), view.kept().len());
        prop_assert!((0..=log.len()).all(|index| view.kept().contains(index) == indexes.contains(&index)));
    }
}
