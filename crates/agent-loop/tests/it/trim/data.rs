//! Policies as data: what is stored, what is read, what is refused.

use std::sync::Arc;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_agent_loop::trim::{Kept, Pins, TokenCounter, Trim};

use super::histories;

fn check_stored(trim: Trim, name: Expect, stored: Expect) {
    name.assert_eq(&trim.to_string());
    stored.assert_eq(&serde_json::to_string(&trim).unwrap());
}

/// The stored form of every policy. Changing one of these breaks stored agents.
#[test]
fn every_policy_by_name_and_as_stored() {
    check_stored(Trim::none(), expect!["none"], expect!["[]"]);
    check_stored(
        Trim::keep_last(100),
        expect!["keep_last(100)"],
        expect![[r#"[{"keep_last":{"messages":100}}]"#]],
    );
    let pins = Pins::up_to(80).results_of(["run_sql"]);
    check_stored(
        Trim::keep_last(20).with_pins(pins),
        expect!["keep_last(20, up to 80 pins: user, run_sql)"],
        expect![[
            r#"[{"keep_last":{"messages":20,"pins":{"messages":80,"users":true,"tools":["run_sql"]}}}]"#
        ]],
    );
    let pins = Pins::up_to(80).without_users();
    check_stored(
        Trim::keep_last(20).with_pins(pins),
        expect!["keep_last(20, no pins)"],
        expect![[r#"[{"keep_last":{"messages":20,"pins":{"messages":80,"users":false}}}]"#]],
    );
    check_stored(
        Trim::max_tokens(8_000).then(Trim::cap_messages(50)),
        expect!["max_tokens(8000) then cap_messages(50)"],
        expect![[r#"[{"max_tokens":{"tokens":8000}},{"cap_messages":{"messages":50}}]"#]],
    );
    check_stored(
        Trim::cap_tokens(8_000).counted_by(histories::ones()),
        expect!["cap_tokens(8000, by ones)"],
        expect![[r#"[{"cap_tokens":{"tokens":8000,"counter":"ones"}}]"#]],
    );
}

#[test]
fn what_is_not_a_policy_is_refused() {
    let refused = |stored: Value| Trim::load(&stored, &[]).unwrap_err().to_string();
    expect!["not a trim policy: unknown variant `keep_first`, expected one of `keep_last`, `max_tokens`, `cap_messages`, `cap_tokens`"].assert_eq(&refused(json!([{"keep_first": {"messages": 3}}])));
    expect!["not a trim policy: unknown field `since`, expected `messages` or `pins`"]
        .assert_eq(&refused(json!([{"keep_last": {"messages": 3, "since": 1}}])));
    expect!["not a trim policy: invalid value: integer `-3`, expected usize"]
        .assert_eq(&refused(json!([{"keep_last": {"messages": -3}}])));
    expect!["unknown token counter `gpt`; known: approximate"]
        .assert_eq(&refused(json!([{"cap_tokens": {"tokens": 3, "counter": "gpt"}}])));
    let by_serde = serde_json::from_str::<Trim>(r#"[{"cap_tokens": {"tokens": 3, "counter": "gpt"}}]"#);
    expect!["unknown token counter `gpt`; known: approximate"].assert_eq(&by_serde.unwrap_err().to_string());
}

#[test]
fn ranges_are_refused_unless_in_order() {
    let read = |stored: &str| serde_json::from_str::<Kept>(stored);
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
    fn a_trim_survives_json(trim in histories::trim(), log in histories::well_formed()) {
        let stored = serde_json::to_value(&trim).unwrap();
        let loaded = Trim::load(&stored, &[Arc::new(histories::ones())]).unwrap();
        prop_assert_eq!(&loaded, &trim);
        prop_assert_eq!(loaded.to_string(), trim.to_string());
        let (ours, theirs) = (trim.view(&log), loaded.view(&log));
        prop_assert_eq!(ours.kept(), theirs.kept());
    }

    #[test]
    fn ranges_survive_json_and_count_their_indexes(log in histories::well_formed(), trim in histories::trim()) {
        let view = trim.view(&log);
        let stored = serde_json::to_string(view.kept()).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Kept>(&stored).unwrap(), view.kept());
        let indexes: Vec<usize> = view.kept().indexes().collect();
        prop_assert_eq!(indexes.len(), view.kept().len());
        prop_assert!((0..=log.len()).all(|index| view.kept().contains(index) == indexes.contains(&index)));
    }
}
