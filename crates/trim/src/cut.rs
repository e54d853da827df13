//! The rules of all policies, as functions of a conversation.
//!
//! The unit of trimming is a *block*: a message that is not a tool message, and the tool messages directly
//! after it. In a well-formed conversation that is a step, a user message or a system message. In a malformed
//! one, results without a call stay with the message they follow, so that dropping blocks never assigns a
//! result to the wrong call and never introduces a new fault.

use std::ops::Range;

use stepfold_state_core::chat::{Message, Role, Transcript};

use crate::kept::MessageRanges;
use crate::pins::{PinLimit, Pins};
use crate::tokens::TokenCounter;
use crate::view::{TrimRule, leading_systems};

/// The part of a view that one policy would keep: less than all of it.
pub(crate) struct PolicyCut {
    pub(crate) kept: MessageRanges,
    pub(crate) why: TrimRule,
}

/// The unit in which a conversation is measured.
#[derive(Clone, Copy)]
pub(crate) enum SizeUnit<'a> {
    Messages,
    Tokens(&'a dyn TokenCounter),
}

impl SizeUnit<'_> {
    fn of(self, message: &Message) -> usize {
        match self {
            SizeUnit::Messages => 1,
            SizeUnit::Tokens(counter) => counter.count(message),
        }
    }

    pub(crate) fn of_all<'m>(self, messages: impl IntoIterator<Item = &'m Message>) -> usize {
        messages.into_iter().fold(0, |sum, message| sum.saturating_add(self.of(message)))
    }
}

/// The conversation to trim.
#[derive(Clone, Copy)]
pub(crate) struct TrimInput<'a> {
    transcript: &'a Transcript,
    /// The summary of earlier messages: it counts, but is not in the transcript.
    summary: Option<&'a Message>,
    /// The number of leading system messages. They are kept.
    lead: usize,
}

impl<'a> TrimInput<'a> {
    pub(crate) fn new(transcript: &'a Transcript) -> Self {
        TrimInput { transcript, summary: None, lead: leading_systems(transcript) }
    }

    /// With a summary after the first `lead` messages: system messages after it are not leading.
    pub(crate) fn after_summary(transcript: &'a Transcript, lead: usize, summary: &'a Message) -> Self {
        TrimInput { transcript, summary: Some(summary), lead }
    }

    /// Keeps the last `count` messages after the leading system messages, extended or cut to begin at a turn,
    /// and the pinned older ones; of at most `over` messages, all.
    pub(crate) fn keep_last(self, count: usize, over: usize, pins: Option<&Pins>) -> Option<PolicyCut> {
        if self.len() - self.lead <= count.max(over) {
            return None;
        }
        let earliest = self.len() - count;
        let (window, why) = match self.transcript.turn_start(earliest) {
            Some(user) if user == earliest => (user, TrimRule::OpensWithUser),
            // NOTE: Back to the start of the turn: a model must not read a reply to nothing.
            Some(user) => (user, TrimRule::BackToUser),
            None => match self.first_user(earliest) {
                Some(user) => (user, TrimRule::ForwardToUser),
                None => (self.last_blocks(count, SizeUnit::Messages), TrimRule::WholeSteps),
            },
        };
        let pinned = pins.map_or_else(Vec::new, |pins| self.pinned(window, pins));
        self.cut(pinned.into_iter().rev(), window, why)
    }

    /// Keeps as many of the last turns as fit into `limit`, always including the last one: whole, or, with
    /// `is_hard`, its user message and as many of its last blocks as fit.
    pub(crate) fn at_most(self, limit: usize, measure: SizeUnit<'_>, is_hard: bool) -> Option<PolicyCut> {
        let fits_by_count = matches!(measure, SizeUnit::Messages)
            && self.len() + usize::from(self.summary.is_some()) <= limit;
        if fits_by_count || self.len() == self.lead {
            return None;
        }
        let fixed = measure.of_all(self.messages(0, self.lead).chain(self.summary));
        let room = limit.saturating_sub(fixed);
        if let Some(start) = self.last_turns(room, measure) {
            return self.cut(None, start, TrimRule::WholeTurns);
        }
        match self.transcript.turn_start(self.len()) {
            None => self.cut(None, self.last_blocks(room, measure), TrimRule::WholeSteps),
            Some(user) if is_hard => {
                let room = room.saturating_sub(measure.of_all(self.messages(user, user + 1)));
                let steps = self.fitting_blocks(user + 1, room, measure);
                self.cut(Some(user..user + 1), steps, TrimRule::InsideTurn)
            }
            // NOTE: A turn larger than the limit can be whole or bounded, so there are two policies
            // (docs/decisions/trimming.md).
            Some(user) => self.cut(None, user, TrimRule::LastTurn),
        }
    }

    /// The start of the last turns that fit into `room`; `None` if not even the last one fits. Messages
    /// before the first turn fit only if everything does.
    fn last_turns(self, room: usize, measure: SizeUnit<'_>) -> Option<usize> {
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

    /// The start of the last blocks that fit into `room`, including the last one in any case.
    fn last_blocks(self, room: usize, measure: SizeUnit<'_>) -> usize {
        let last = self.block_start(self.len(), self.lead);
        self.fitting_blocks(self.lead, room, measure).min(last)
    }

    /// The start of the last blocks at or after `floor` that fit into `room`; the end if none fits.
    fn fitting_blocks(self, floor: usize, room: usize, measure: SizeUnit<'_>) -> usize {
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

    /// The last pinned blocks before `window`, within the pins' limit, the last one first; they begin with a
    /// user message, if there is one.
    fn pinned(self, window: usize, pins: &Pins) -> Vec<Range<usize>> {
        let (mut pinned, mut end, mut room) = (Vec::new(), window, pins.limit);
        while end > self.lead && room.is_left() {
            let start = self.block_start(end, self.lead);
            let found = pins.pinned(self.messages(start, end));
            if found > 0 {
                match room.after(end - start, found) {
                    Some(rest) => room = rest,
                    // NOTE: Not skipped: older results would be shown with a hole where the newest one was.
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

    /// Prepends the user message that opens the oldest block's turn, if it exists and fits; removes the block
    /// otherwise. Repeats until the blocks begin with a user message or none is left.
    fn open_with_user(self, pinned: &mut Vec<Range<usize>>, mut room: PinLimit) {
        while let Some(oldest) = pinned.last().cloned() {
            match self.transcript.turn_start(oldest.start) {
                Some(user) if user == oldest.start => break,
                Some(user) if room.has_opening() => {
                    pinned.push(user..user + 1);
                    break;
                }
                _ => {
                    pinned.pop();
                    room = room.without(oldest.len());
                }
            }
        }
    }

    /// The start of the block that ends at `end`, not before `floor`.
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

    /// The leading system messages, these ranges, and all messages from `start`, unless that is everything.
    fn cut(
        self,
        ranges: impl IntoIterator<Item = Range<usize>>,
        start: usize,
        why: TrimRule,
    ) -> Option<PolicyCut> {
        let mut kept = MessageRanges::first(self.lead);
        for range in ranges {
            kept.push(range);
        }
        kept.push(start..self.len());
        (!kept.is_first(self.len())).then_some(PolicyCut { kept, why })
    }
}
