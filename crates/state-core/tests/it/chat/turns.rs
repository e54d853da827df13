//! Transcripts as lists, and where their turns and steps are.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use stepfold_state_core::chat::{Message, Role, Step, Transcript, Turn};

use super::arbitrary;

const CONVERSATION: &str = "\
system:    be brief
assistant: hello
user:      look
assistant: > c1 f()   > c2 f()
tool c1:   1
tool c2:   2
assistant: done
user:      thanks
user:      bye
assistant: bye
";

fn conversation() -> Transcript {
    CONVERSATION.parse().unwrap()
}

#[test]
fn turns_from_either_end() {
    let transcript = conversation();
    let turns: Vec<Range<usize>> = transcript.turns().map(|turn| turn.range()).collect();
    assert_eq!(turns, [2..7, 7..8, 8..10]);
    assert_eq!(transcript.preamble().range(), 0..2);
    let last = transcript.turns().next_back().unwrap();
    assert_eq!(last.user().text(), "bye");
    assert_eq!(last.messages().len(), 2);
    assert_eq!(last.messages().next_back().unwrap().text(), "bye");
}

#[test]
fn steps_of_a_turn() {
    let transcript = conversation();
    let steps: Vec<Range<usize>> = transcript.steps().map(|step| step.range()).collect();
    assert_eq!(steps, [1..2, 3..6, 6..7, 9..10]);
    let turn = transcript.turns().next().unwrap();
    let step = turn.steps().next().unwrap();
    assert_eq!(step.reply().tool_calls().count(), 2);
    assert_eq!(step.results().map(|result| result.text()).collect::<Vec<_>>(), ["", ""]);
    assert_eq!(step.results().next_back().unwrap().tool_result().unwrap().call_id(), "c2");
}

#[test]
fn where_a_step_and_a_turn_begin() {
    let transcript = conversation();
    let steps: Vec<usize> = (0..11).map(|index| transcript.step_start(index)).collect();
    assert_eq!(steps, [0, 1, 2, 3, 3, 3, 6, 7, 8, 9, 10]);
    let turns: Vec<_> = (0..10).map(|index| transcript.turn_start(index)).collect();
    assert_eq!(&turns[..4], [None, None, Some(2), Some(2)]);
    assert_eq!(&turns[6..], [Some(2), Some(7), Some(8), Some(8)]);
    let orphans: Transcript = "tool c1: 1\ntool c1: 2".parse().unwrap();
    assert_eq!(orphans.step_start(1), 1);
}

#[test]
fn a_clone_does_not_see_what_is_pushed() {
    let mut transcript = conversation();
    let snapshot = transcript.clone();
    assert!(transcript.ptr_eq(&snapshot));
    transcript.push(Message::user("more"));
    transcript.push(Arc::new(Message::user("and more")));
    assert_eq!((snapshot.len(), transcript.len()), (10, 12));
    assert!(!transcript.ptr_eq(&snapshot));
    assert!(transcript.starts_with(&snapshot));
    assert!(transcript.starts_with(&conversation()));
    assert!(!snapshot.starts_with(&transcript));
    assert!(!transcript.starts_with(&Transcript::new().with(Message::user("else"))));
    assert_eq!(snapshot, conversation());
}

/// Takes from the front and from the back as `ends` says, and puts the items in order.
fn from_both_ends<T>(mut items: impl DoubleEndedIterator<Item = T>, ends: &[bool]) -> Vec<T> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    for end in ends.iter().cycle() {
        let (item, taken) = if *end { (items.next(), &mut front) } else { (items.next_back(), &mut back) };
        match item {
            Some(item) => taken.push(item),
            None => break,
        }
    }
    assert!(items.next().is_none() && items.next_back().is_none());
    front.extend(back.into_iter().rev());
    front
}

proptest! {
    #[test]
    fn turns_and_preamble_are_everything(
        transcript in arbitrary::transcript(),
        ends in prop::collection::vec(any::<bool>(), 1..5),
    ) {
        let turns: Vec<_> = from_both_ends(transcript.turns(), &ends);
        let mut end = transcript.preamble().range().end;
        for turn in &turns {
            prop_assert_eq!(turn.range().start, end);
            prop_assert_eq!(turn.user().role(), Role::User);
            prop_assert_eq!(turn.messages().filter(|message| message.role() == Role::User).count(), 1);
            end = turn.range().end;
        }
        prop_assert_eq!(end, transcript.len());
        let forwards: Vec<_> = transcript.turns().map(|turn| turn.range()).collect();
        prop_assert_eq!(turns.iter().map(Turn::range).collect::<Vec<_>>(), forwards);
    }

    #[test]
    fn steps_hold_every_assistant_message(
        transcript in arbitrary::transcript(),
        ends in prop::collection::vec(any::<bool>(), 1..5),
    ) {
        let steps: Vec<Range<usize>> = from_both_ends(transcript.steps(), &ends).iter().map(Step::range).collect();
        prop_assert_eq!(&steps, &transcript.steps().map(|step| step.range()).collect::<Vec<_>>());
        for (index, message) in transcript.iter().enumerate() {
            let start = transcript.step_start(index);
            let step = steps.iter().find(|step| step.contains(&index));
            prop_assert!(step.is_some() || message.role() != Role::Assistant);
            prop_assert_eq!(start, step.map_or(index, |step| step.start));
        }
    }
}
