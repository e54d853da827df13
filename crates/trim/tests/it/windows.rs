//! Laws of a turn in progress.

use std::ops::Range;

use proptest::prelude::*;
use stepfold_state_core::chat::{Message, Role, Transcript};
use stepfold_trim::{ApproximateTokens, Summarize, TokenCounter, Trim, TurnView, View, Window};

use crate::histories::{self, lead};

fn tokens(transcript: &Transcript) -> usize {
    transcript.iter().map(|message| ApproximateTokens.count(message)).sum()
}

fn new_messages(before: &TurnView, log: &Transcript) -> Transcript {
    let seen = before.view().kept().ranges().last().map_or(0, |range| range.end);
    log.iter_from(seen).cloned().collect()
}

/// The last step of the turn; empty before the first step.
fn last_step(log: &Transcript, turn_start: usize) -> Range<usize> {
    let step = log.steps().next_back().map(|step| step.range());
    step.filter(|step| step.start >= turn_start).unwrap_or_default()
}

/// The relation between a view and the next one, after the log has grown.
fn check_step(before: &TurnView, after: &TurnView, log: &Transcript, turn_start: usize, window: &Window) {
    assert_eq!(after.tokens(), tokens(after.transcript()));
    assert_eq!(after.transcript().check(), Ok(()));
    let kept = after.view().kept();
    assert!((0..lead(log)).all(|index| kept.contains(index)));
    let is_user = |index: &usize| log.get(*index).unwrap().role() == Role::User;
    assert!((turn_start..log.len()).filter(is_user).all(|index| kept.contains(index)));
    assert!((log.step_start(log.len() - 1)..log.len()).all(|index| kept.contains(index)));
    assert!(last_step(log, turn_start).all(|index| kept.contains(index)));
    let has_dropped = after.view().dropped() > before.view().dropped();
    let has_cleared = after.view().reasons().len() > before.view().reasons().len()
        || after.view().cleared().len() > before.view().cleared().len();
    if has_dropped || has_cleared {
        assert!(before.tokens() + tokens(&new_messages(before, log)) > window.limit());
    } else {
        assert!(after.transcript().starts_with(before.transcript()), "the prefix is stable");
    }
    if !after.fits() || has_dropped && after.tokens() > window.target() {
        // Only what must stay is left: leading system messages, user messages, the last step.
        let last = log.step_start(log.len() - 1);
        let last_step = last_step(log, turn_start);
        let must_stay = |index: usize| {
            index < lead(log)
                || index >= last
                || last_step.contains(&index)
                || (index >= turn_start && is_user(&index))
        };
        assert!(kept.indexes().all(must_stay));
    }
}

proptest! {
    #[test]
    fn a_turn_under_way(
        history in histories::well_formed(),
        trim in histories::trim(),
        steps in prop::collection::vec(
            prop_oneof![8 => histories::step(), 1 => Just(vec![Message::user("wait")]), 1 => histories::system()], 1..30),
        limit in 0..400_usize,
        percent in 0..=100_u8,
        clearing in prop::option::of(0..4_usize),
    ) {
        let window = Window::new(limit).shrink_to_percent(percent);
        let window = clearing.into_iter().fold(window, Window::clear_results);
        let mut log = history.with(Message::user("go"));
        let turn_start = log.len() - 1;
        let mut turn = window.begin(trim.view(&log), &log);
        for step in steps {
            let before = turn.clone();
            log.extend(step);
            turn = turn.grown(&log);
            check_step(&before, &turn, &log, turn_start, &window);
            // Interrupted here, it continues identically.
            let (kept, cleared) = (turn.view().kept().clone(), turn.view().cleared().clone());
            let resumed = window.resume(View::of(&log, kept).with_cleared(&log, &cleared), &log, turn_start);
            prop_assert_eq!(resumed.transcript(), turn.transcript());
            prop_assert_eq!(resumed.tokens(), turn.tokens());
        }
    }

    /// A summary is part of the prefix, and stays in it.
    #[test]
    fn a_summary_stays(history in histories::well_formed(), limit in 0..300_usize) {
        let log = history.with(Message::user("go"));
        if let Some(plan) = Summarize::beyond(Trim::keep_last(3)).plan(&log, None) {
            let summary = plan.finish("so far, so good").unwrap();
            let turn = Window::new(limit).begin(summary.view(&log), &log);
            prop_assert_eq!(&**turn.transcript().get(lead(&log)).unwrap(), &summary.message());
            prop_assert_eq!(turn.transcript().check(), Ok(()));
            prop_assert_eq!(turn.tokens(), tokens(turn.transcript()));
        }
    }
}

/// At 70 percent of a large window, trims are many steps apart.
#[test]
fn it_seldom_shrinks() {
    let window = Window::new(1_000).counted_by(histories::ones());
    let mut log = Transcript::new().with(Message::user("go"));
    let mut turn = window.begin(View::whole(&log), &log);
    let (mut shrunk, mut dropped) = (Vec::new(), 0);
    for step in 0..3_000 {
        log.push(Message::assistant("."));
        turn = turn.grown(&log);
        if turn.view().dropped() > dropped {
            dropped = turn.view().dropped();
            shrunk.push(step);
        }
    }
    assert_eq!(turn.view().reasons().len(), 1);
    assert_eq!(shrunk, [999, 1_300, 1_601, 1_902, 2_203, 2_504, 2_805]);
}

/// An agent that reads pages within one turn: it keeps all its calls, and forgets the oldest pages only.
#[test]
fn results_of_a_long_turn_are_cleared_at_once_and_nothing_is_dropped() {
    let page = "stall ".repeat(300);
    let window = Window::new(5_000).clear_results(2);
    let mut log = Transcript::new().with(Message::user("what do the pages say?"));
    let mut turn = window.begin(View::whole(&log), &log);
    let mut cleared_at = Vec::new();
    for step in 0..60 {
        let text = format!("assistant: > c{step} read(page={step})\ntool c{step}: {page}");
        log.extend(text.parse::<Transcript>().unwrap().iter().cloned());
        let before = turn.view().cleared().len();
        turn = turn.grown(&log);
        assert!(turn.fits() && turn.view().dropped() == 0, "{}", turn.view());
        if turn.view().cleared().len() > before {
            cleared_at.push(step);
        }
    }
    assert_eq!(turn.transcript().len(), 121);
    // Many steps apart, so that the prefix of requests stays the same in between.
    assert!(cleared_at.len() <= 8, "{cleared_at:?}");
}

/// A log that is shorter than before is a different log: no panic, and the existing messages are shown.
#[test]
fn a_log_that_shrank() {
    let log: Transcript = "user: a\nassistant: b\nuser: c\nassistant: d".parse().unwrap();
    let shorter: Transcript = "user: a\nassistant: b\nuser: x".parse().unwrap();
    let turn = Window::new(100).begin(Trim::keep_last(2).view(&log), &log).grown(&shorter);
    assert_eq!(turn.transcript().to_string(), "user:      x\n");
    assert_eq!(turn.tokens(), tokens(turn.transcript()));
}
