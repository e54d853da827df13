//! Where to cut: the rules of all policies as functions of a conversation.
//!
//! What moves is always a *block*: a message that is no tool message, and the tool messages right behind
//! it. In a well-formed conversation that is a step, a user message or a system message. In a broken one,
//! results without a call stay behind the message that they are behind, so that leaving blocks out never
//! gives a result to the wrong call and never makes a fault that was not there.

use std::ops::Range;

use stepfold_state_core::chat::{Message, Role, Transcript};

use crate::view::leading_systems;
use crate::{Kept, Pins, TokenCounter, Why};

/// What one policy would keep of what is shown: less than all of it.
pub(crate) struct Cut {
    pub(crate) kept: Kept,
    pub(crate) why: Why,
}

/// What a conversation is measured in.
#[derive(Clone, Copy)]
pub(crate) enum Measure<'a> {
    Messages,
    Tokens(&'a dyn TokenCounter),
}

impl Measure<'_> {
    fn of(self, message: &Message) -> usize {
        match self {
            Measure::Messages => 1,
            Measure::Tokens(counter) => counter.count(message),
        }
    }

    pub(crate) fn of_all<'m>(self, messages: impl IntoIterator<Item = &'m Message>) -> usize {
        messages.into_iter().fold(0, |sum, message| sum.saturating_add(self.of(message)))
    }
}

/// A conversation that is to be cut.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    transcript: &'a Transcript,
    /// What stands for earlier messages, and counts, but is not in the transcript.
    summary: Option<&'a Message>,
    /// How many system messages it opens with. They stay.
    lead: usize,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(transcript: &'a Transcript) -> Self {
        Shown { transcript, summary: None, lead: leading_systems(transcript) }
    }

    /// With a summary behind the first `lead` messages: a system message behind it does not lead.
    pub(crate) fn behind(transcript: &'a Transcript, lead: usize, summary: &'a Message) -> Self {
        Shown { transcript, summary: Some(summary), lead }
    }

    /// The last `count` messages behind the leading system messages, made to begin where a turn does; and
    /// what is pinned of what is older.
    pub(crate) fn keep_last(self, count: usize, pins: Option<&Pins>) -> Option<Cut> {
        if self.len() - self.lead <= count {
            return None;
        }
        let earliest = self.len() - count;
        let (window, why) = match self.transcript.turn_start(earliest) {
            Some(user) if user == earliest => (user, Why::OpensWithUser),
            Some(user) => (user, Why::BackToUser),
            None => match self.first_user(earliest) {
                Some(user) => (user, Why::ForwardToUser),
                None => (self.last_blocks(count, Measure::Messages), Why::WholeSteps),
            },
        };
        let pinned = pins.map_or_else(Vec::new, |pins| self.pinned(window, pins));
        self.cut(pinned.into_iter().rev(), window, why)
    }

    /// As many of the last turns as fit into `limit`, the last one in any case: whole, or, with `is_hard`,
    /// its user message and as many of its last blocks as fit.
    pub(crate) fn at_most(self, limit: usize, measure: Measure<'_>, is_hard: bool) -> Option<Cut> {
        let fits_by_count =
            matches!(measure, Measure::Messages) && self.len() + usize::from(self.summary.is_some()) <= limit;
        if fits_by_count || self.len() == self.lead {
            return None;
        }
        let fixed = measure.of_all(self.messages(0, self.lead).chain(self.summary));
        let room = limit.saturating_sub(fixed);
        if let Some(start) = self.last_turns(room, measure) {
            return self.cut(None, start, Why::WholeTurns);
        }
        match self.transcript.turn_start(self.len()) {
            None => self.cut(None, self.last_blocks(room, measure), Why::WholeSteps),
            Some(user) if is_hard => {
                let room = room.saturating_sub(measure.of_all(self.messages(user, user + 1)));
                let steps = self.fitting_blocks(user + 1, room, measure);
                self.cut(Some(user..user + 1), steps, Why::InsideTurn)
            }
            Some(user) => self.cut(None, user, Why::LastTurn),
        }
    }

    /// Where the last turns begin that fit into `room`; none if not even the last one does. What comes
    /// before the first turn fits only if everything does.
    fn last_turns(self, room: usize, measure: Measure<'_>) -> Option<usize> {
        let (mut used, mut start) = (0_usize, None);
        for (index, message) in (self.lead..self.len()).zip(self.transcript.iter_from(self.lead)).rev() {
            used = used.saturating_add(measure.of(message));
            if used > room {
                break;
            }
            if index == self.lead || message.role() == Role::User {
                start = Some(index);
            }
        }
        start
    }

    /// Where the last blocks begin that fit into `room`; the last one does in any case.
    fn last_blocks(self, room: usize, measure: Measure<'_>) -> usize {
        let last = self.block_start(self.len(), self.lead);
        self.fitting_blocks(self.lead, room, measure).min(last)
    }

    /// Where the last blocks at or behind `floor` begin that fit into `room`; the end if none does.
    fn fitting_blocks(self, floor: usize, room: usize, measure: Measure<'_>) -> usize {
        let (mut used, mut start) = (0_usize, self.len());
        while start > floor {
            let block = self.block_start(start, floor);
            used = used.saturating_add(measure.of_all(self.messages(block, start)));
            if used > room {
                break;
            }
            start = block;
        }
        start
    }

    /// The last blocks before `window` that are pinned and together are few enough, the last one first; made to
    /// begin with a user message, if there is one at all.
    fn pinned(self, window: usize, pins: &Pins) -> Vec<Range<usize>> {
        let (mut pinned, mut end, mut room) = (Vec::new(), window, pins.messages);
        while end > self.lead && room > 0 {
            let start = self.block_start(end, self.lead);
            if pins.wants(self.messages(start, end)) {
                match room.checked_sub(end - start) {
                    Some(rest) => room = rest,
                    None => break,
                }
                pinned.push(start..end);
            }
            end = start;
        }
        let opens_with_user =
            |index| self.transcript.get(index).is_some_and(|message| message.role() == Role::User);
        if opens_with_user(window) {
            self.open_with_user(&mut pinned, room);
        }
        pinned
    }

    /// Puts before the oldest of these blocks the user message that opens its turn, if there is one and room
    /// for it, and takes the block away if not: until they begin with a user message, or are none.
    fn open_with_user(self, pinned: &mut Vec<Range<usize>>, mut room: usize) {
        while let Some(oldest) = pinned.last().cloned() {
            match self.transcript.turn_start(oldest.start) {
                Some(user) if user == oldest.start => break,
                Some(user) if room > 0 => {
                    pinned.push(user..user + 1);
                    break;
                }
                _ => {
                    pinned.pop();
                    room += oldest.len();
                }
            }
        }
    }

    /// Where the block begins that ends at `end`, but not before `floor`.
    fn block_start(self, end: usize, floor: usize) -> usize {
        let is_head =
            |index: &usize| self.transcript.get(*index).is_some_and(|message| message.role() != Role::Tool);
        (floor..end).rev().find(is_head).unwrap_or(floor)
    }

    fn first_user(self, from: usize) -> Option<usize> {
        let position = self.transcript.iter_from(from).position(|message| message.role() == Role::User)?;
        Some(from + position)
    }

    fn messages(self, start: usize, end: usize) -> impl Iterator<Item = &'a Message> {
        self.transcript.iter_from(start).take(end - start).map(|message| &**message)
    }

    fn len(self) -> usize {
        self.transcript.len()
    }

    /// The leading system messages, these ranges, and all from `start` on, unless that is everything.
    fn cut(self, ranges: impl IntoIterator<Item = Range<usize>>, start: usize, why: Why) -> Option<Cut> {
        let mut kept = Kept::first(self.lead);
        for range in ranges {
            kept.push(range);
        }
        kept.push(start..self.len());
        (!kept.is_first(self.len())).then_some(Cut { kept, why })
    }
}
