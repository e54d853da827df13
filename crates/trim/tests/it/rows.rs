//! Trimming case by case, in the transcript notation.

use expect_test::expect;
use stepfold_state_core::chat::Transcript;
use stepfold_trim::{Pins, Trim, Window};

use crate::{check, histories, shown};

const CONVERSATION: &str = "\
user:      which area has most stalls?
assistant: > c1 generate_sql()
tool c1:   SELECT 1
assistant: > c2 run_sql()   > c3 log()
tool c3:   logged
tool c2:   3
assistant: area 3
user:      and fewest?
assistant: > c4 run_sql()
tool c4:   7
assistant: area 7
user:      thanks
assistant: you are welcome
";

#[test]
fn up_to_n_messages_unchanged() {
    check(
        Trim::keep_last(13),
        CONVERSATION,
        expect![[r#"
        # 13 of 13 messages (0..13)
        user:      which area has most stalls?
        assistant: > c1 generate_sql()
        tool c1:   SELECT 1
        assistant: > c2 run_sql()   > c3 log()
        tool c3:   logged
        tool c2:   3
        assistant: area 3
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        assistant: area 7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
}

#[test]
fn window_that_opens_with_a_user_message() {
    check(
        Trim::keep_last(6),
        CONVERSATION,
        expect![[r#"
        # 6 of 13 messages (7..13); keep_last(6) left out 7: the window opens with a user message
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        assistant: area 7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
}

#[test]
fn window_that_goes_back_to_the_nearest_user_message() {
    check(
        Trim::keep_last(4),
        CONVERSATION,
        expect![[r#"
        # 6 of 13 messages (7..13); keep_last(4) left out 7: the window is extended back to the user message that opens its turn
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        assistant: area 7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
}

#[test]
fn leading_system_messages_are_kept() {
    let log = format!("system: be brief\nsystem: be kind\n{CONVERSATION}system: never mind\nuser: bye\n");
    check(
        Trim::keep_last(3),
        &log,
        expect![[r#"
        # 6 of 17 messages (0..2, 13..17); keep_last(3) left out 11: the window is extended back to the user message that opens its turn
        system:    be brief
        system:    be kind
        user:      thanks
        assistant: you are welcome
        system:    never mind
        user:      bye
    "#]],
    );
    check(
        Trim::cap_messages(1),
        &log,
        expect![[r#"
        # 3 of 17 messages (0..2, 16..17); cap_messages(1) left out 14: the last turn does not fit, so its user message and its last steps are shown
        system:    be brief
        system:    be kind
        user:      bye
    "#]],
    );
}

#[test]
fn no_user_message_before_the_window_falls_forward() {
    let log = "\
system:    be brief
assistant: > c1 search()
tool c1:   1
assistant: ready
user:      hello
assistant: hi
";
    check(
        Trim::keep_last(4),
        log,
        expect![[r#"
        # 3 of 6 messages (0..1, 4..6); keep_last(4) left out 3: no user message precedes the window, so it begins at the first one in it
        system:    be brief
        user:      hello
        assistant: hi
    "#]],
    );
}

#[test]
fn no_user_message_at_all_keeps_whole_steps() {
    let log = "\
assistant: > c1 search()
tool c1:   1
assistant: > c2 search()   > c3 search()
tool c2:   2
tool c3:   3
assistant: done
";
    check(
        Trim::keep_last(5),
        log,
        expect![[r#"
        # 4 of 6 messages (2..6); keep_last(5) left out 2: without a user message, the window is the last whole steps
        assistant: > c2 search()   > c3 search()
        tool c2:   2
        tool c3:   3
        assistant: done
    "#]],
    );
    check(
        Trim::keep_last(3),
        log,
        expect![[r#"
        # 1 of 6 messages (5..6); keep_last(3) left out 5: without a user message, the window is the last whole steps
        assistant: done
    "#]],
    );
    check(
        Trim::max_tokens(0),
        log,
        expect![[r#"
        # 1 of 6 messages (5..6); max_tokens(0) left out 5: without a user message, the window is the last whole steps
        assistant: done
    "#]],
    );
}

const HUGE_TURN: &str = "\
user:      hello
assistant: hi
user:      count the stalls of all areas
assistant: > c1 count(area=1)   > c2 count(area=2)
tool c1:   3
tool c2:   4
assistant: > c3 count(area=3)
tool c3:   5
assistant: > c4 count(area=4)
tool c4:   6
";

#[test]
fn one_huge_turn_is_kept_whole_by_the_window_alone() {
    check(
        Trim::keep_last(2),
        HUGE_TURN,
        expect![[r#"
        # 8 of 10 messages (2..10); keep_last(2) left out 2: the window is extended back to the user message that opens its turn
        user:      count the stalls of all areas
        assistant: > c1 count(area=1)   > c2 count(area=2)
        tool c1:   3
        tool c2:   4
        assistant: > c3 count(area=3)
        tool c3:   5
        assistant: > c4 count(area=4)
        tool c4:   6
    "#]],
    );
    check(
        Trim::max_tokens(20),
        HUGE_TURN,
        expect![[r#"
        # 8 of 10 messages (2..10); max_tokens(20) left out 2: the last turn does not fit and is shown whole
        user:      count the stalls of all areas
        assistant: > c1 count(area=1)   > c2 count(area=2)
        tool c1:   3
        tool c2:   4
        assistant: > c3 count(area=3)
        tool c3:   5
        assistant: > c4 count(area=4)
        tool c4:   6
    "#]],
    );
}

#[test]
fn a_hard_cap_trims_whole_steps_inside_the_turn() {
    check(
        Trim::keep_last(2).then(Trim::cap_messages(6)),
        HUGE_TURN,
        expect![[r#"
        # 5 of 10 messages (2..3, 6..10); keep_last(2) left out 2: the window is extended back to the user message that opens its turn; cap_messages(6) left out 3: the last turn does not fit, so its user message and its last steps are shown
        user:      count the stalls of all areas
        assistant: > c3 count(area=3)
        tool c3:   5
        assistant: > c4 count(area=4)
        tool c4:   6
    "#]],
    );
    // Four have room for one step, and not for a part of the next.
    check(
        Trim::cap_messages(4),
        HUGE_TURN,
        expect![[r#"
        # 3 of 10 messages (2..3, 8..10); cap_messages(4) left out 7: the last turn does not fit, so its user message and its last steps are shown
        user:      count the stalls of all areas
        assistant: > c4 count(area=4)
        tool c4:   6
    "#]],
    );
    check(
        Trim::cap_tokens(6).counted_by(histories::ones()),
        HUGE_TURN,
        expect![[r#"
        # 5 of 10 messages (2..3, 6..10); cap_tokens(6, by ones) left out 5: the last turn does not fit, so its user message and its last steps are shown
        user:      count the stalls of all areas
        assistant: > c3 count(area=3)
        tool c3:   5
        assistant: > c4 count(area=4)
        tool c4:   6
    "#]],
    );
    check(
        Trim::cap_messages(0),
        HUGE_TURN,
        expect![[r#"
        # 1 of 10 messages (2..3); cap_messages(0) left out 9: the last turn does not fit, so its user message and its last steps are shown
        user:      count the stalls of all areas
    "#]],
    );
}

#[test]
fn pins_move_whole_steps() {
    let pins = Pins::up_to(10).results_of(["run_sql"]);
    check(
        Trim::keep_last(2).with_pins(pins),
        CONVERSATION,
        expect![[r#"
        # 9 of 13 messages (0..1, 3..6, 7..10, 11..13); keep_last(2, up to 10 pins: user, run_sql) left out 4: the window opens with a user message
        user:      which area has most stalls?
        assistant: > c2 run_sql()   > c3 log()
        tool c3:   logged
        tool c2:   3
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
    // The newest first: four have room for a step of two messages and a question, not for the step of three.
    let pins = Pins::up_to(4).results_of(["run_sql"]);
    check(
        Trim::keep_last(2).with_pins(pins),
        CONVERSATION,
        expect![[r#"
        # 5 of 13 messages (7..10, 11..13); keep_last(2, up to 4 pins: user, run_sql) left out 8: the window opens with a user message
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
    let pins = Pins::up_to(10).results_of(["generate_sql"]).without_users();
    check(
        Trim::keep_last(2).with_pins(pins),
        CONVERSATION,
        expect![[r#"
        # 5 of 13 messages (0..3, 11..13); keep_last(2, up to 10 pins: generate_sql) left out 8: the window opens with a user message
        user:      which area has most stalls?
        assistant: > c1 generate_sql()
        tool c1:   SELECT 1
        user:      thanks
        assistant: you are welcome
    "#]],
    );
}

#[test]
fn counts_tokens_also() {
    check(
        Trim::max_tokens(60),
        CONVERSATION,
        expect![[r#"
        # 6 of 13 messages (7..13); max_tokens(60) left out 7: the last turns that fit are shown
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        assistant: area 7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
    check(
        Trim::max_tokens(8).counted_by(histories::ones()),
        CONVERSATION,
        expect![[r#"
        # 6 of 13 messages (7..13); max_tokens(8, by ones) left out 7: the last turns that fit are shown
        user:      and fewest?
        assistant: > c4 run_sql()
        tool c4:   7
        assistant: area 7
        user:      thanks
        assistant: you are welcome
    "#]],
    );
}

#[test]
fn trimming_is_a_view() {
    let log: Transcript = CONVERSATION.parse().unwrap();
    let before = log.clone();
    let view = Trim::keep_last(1).view(&log);
    assert_eq!((view.transcript().len(), view.dropped()), (2, 11));
    assert!(log.ptr_eq(&before));
}

#[test]
fn within_a_turn_the_prefix_is_stable_until_the_window_overflows() {
    let mut log: Transcript =
        "system: be brief\nuser: hello\nassistant: hi\nuser: count them".parse().unwrap();
    let window = Window::new(10).shrink_to_percent(60).counted_by(histories::ones());
    let mut turn = window.begin(Trim::keep_last(100).view(&log), &log);
    let mut seen = Vec::new();
    for area in 1..9 {
        let step = format!("assistant: > c{area} count(area={area})\ntool c{area}: {area}");
        log.extend(step.parse::<Transcript>().unwrap().iter().cloned());
        turn = turn.grown(&log);
        seen.push(format!("{} tokens, {}", turn.tokens(), turn.view().kept()));
    }
    expect![[r#"
        6 tokens, 0..6
        8 tokens, 0..8
        10 tokens, 0..10
        6 tokens, 0..1, 3..4, 8..12
        8 tokens, 0..1, 3..4, 8..14
        10 tokens, 0..1, 3..4, 8..16
        6 tokens, 0..1, 3..4, 14..18
        8 tokens, 0..1, 3..4, 14..20"#]]
    .assert_eq(&seen.join("\n"));
    expect![[r#"
        # 8 of 20 messages (0..1, 3..4, 14..20); window(10 tokens, shrinks to 6) left out 12: the model's context window would have overflowed within the turn
        system:    be brief
        user:      count them
        assistant: > c6 count(area=6)
        tool c6:   6
        assistant: > c7 count(area=7)
        tool c7:   7
        assistant: > c8 count(area=8)
        tool c8:   8
    "#]].assert_eq(&shown(turn.view()));
}
