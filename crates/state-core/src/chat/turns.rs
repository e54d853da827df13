//! Turns and steps: where a conversation can be split safely.
//!
//! A turn is a user message and the messages up to the next one. A step is an assistant message and the tool
//! messages directly after it. Both are found by iterating from either end, without an index: reading the
//! last few turns costs only those.

use std::iter::FusedIterator;
use std::ops::Range;
use std::sync::Arc;

use super::{Message, Role, Transcript};

impl Transcript {
    /// The messages before the first user message; all of them, if there is none.
    pub fn preamble(&self) -> Span<'_> {
        let end = self.iter().position(|message| message.role() == Role::User).unwrap_or(self.len());
        self.span(0..end)
    }

    /// The turns, from either end. Other messages are in the [preamble](Transcript::preamble).
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let transcript: Transcript = "\
    /// system:    be brief
    /// user:      hello
    /// assistant: hi
    /// user:      bye
    /// ".parse()?;
    /// let last = transcript.turns().next_back().unwrap();
    /// assert_eq!(last.range(), 3..4);
    /// assert_eq!(transcript.turns().map(|turn| turn.user().text()).collect::<Vec<_>>(), ["hello", "bye"]);
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn turns(&self) -> Turns<'_> {
        Turns(self.span(0..self.len()))
    }

    /// The steps of the whole conversation, from either end.
    pub fn steps(&self) -> Steps<'_> {
        Steps(self.span(0..self.len()))
    }

    /// The start of the turn of the message at `index`; `None` if no user message is at or before it.
    pub fn turn_start(&self, index: usize) -> Option<usize> {
        (0..self.len().min(index.saturating_add(1))).rev().find(|index| self.role(*index) == Some(Role::User))
    }

    /// The start of the step of the message at `index`: for a tool message, the assistant message that it
    /// follows, with only tool messages in between; otherwise `index` itself.
    pub fn step_start(&self, index: usize) -> usize {
        let mut start = index;
        while self.role(start) == Some(Role::Tool) {
            match start.checked_sub(1) {
                Some(before) => start = before,
                // NOTE: Tool messages at the beginning of a conversation belong to no step.
                None => return index,
            }
        }
        match self.role(start) {
            Some(Role::Assistant) => start,
            _ => index,
        }
    }

    /// The messages of `range`, clipped to existing ones.
    pub fn span(&self, range: Range<usize>) -> Span<'_> {
        let end = range.end.min(self.len());
        Span { transcript: self, start: range.start.min(end), end }
    }
}

/// Consecutive messages of a [`Transcript`].
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    transcript: &'a Transcript,
    start: usize,
    end: usize,
}

impl<'a> Span<'a> {
    /// The indexes of the messages.
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The number of messages.
    pub const fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are no messages.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The messages, from either end.
    pub fn messages(
        &self,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Message>> + ExactSizeIterator + use<'a> {
        let messages = self.transcript.as_list();
        self.range().map(move |index| &messages[index])
    }

    /// The steps among the messages, from either end.
    pub const fn steps(&self) -> Steps<'a> {
        Steps(*self)
    }

    /// The first message with `role`.
    fn find(&self, role: Role) -> Option<usize> {
        self.range().find(|index| self.transcript.role(*index) == Some(role))
    }

    /// The last message with `role`.
    fn rfind(&self, role: Role) -> Option<usize> {
        self.range().rev().find(|index| self.transcript.role(*index) == Some(role))
    }
}

/// A user message and all messages up to the next one; see [`Transcript::turns`].
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a>(Span<'a>);

impl<'a> Turn<'a> {
    /// The indexes of the turn's messages.
    pub const fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// The user message.
    pub fn user(&self) -> &'a Arc<Message> {
        &self.0.transcript.as_list()[self.0.start]
    }

    /// All messages of the turn, from either end.
    pub fn messages(
        &self,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Message>> + ExactSizeIterator + use<'a> {
        self.0.messages()
    }

    /// The steps of the turn, from either end.
    pub const fn steps(&self) -> Steps<'a> {
        self.0.steps()
    }
}

/// An assistant message and the tool messages directly after it; see [`Transcript::steps`].
#[derive(Clone, Copy, Debug)]
pub struct Step<'a>(Span<'a>);

impl<'a> Step<'a> {
    /// The indexes of the step's messages.
    pub const fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// The assistant message.
    pub fn reply(&self) -> &'a Arc<Message> {
        &self.0.transcript.as_list()[self.0.start]
    }

    /// The tool messages, from either end.
    pub fn results(&self) -> impl DoubleEndedIterator<Item = &'a Arc<Message>> + ExactSizeIterator + use<'a> {
        let results = Span { start: self.0.start + 1, ..self.0 };
        results.messages()
    }
}

/// Iterates over turns; see [`Transcript::turns`]. A full iteration visits each message once.
#[derive(Clone, Debug)]
pub struct Turns<'a>(Span<'a>);

impl<'a> Iterator for Turns<'a> {
    type Item = Turn<'a>;

    fn next(&mut self) -> Option<Turn<'a>> {
        self.0.start = self.0.find(Role::User).unwrap_or(self.0.end);
        if self.0.is_empty() {
            return None;
        }
        let rest = Span { start: self.0.start + 1, ..self.0 };
        let end = rest.find(Role::User).unwrap_or(rest.end);
        let turn = Turn(Span { end, ..self.0 });
        self.0.start = end;
        Some(turn)
    }
}

impl DoubleEndedIterator for Turns<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let Some(start) = self.0.rfind(Role::User) else {
            self.0.end = self.0.start;
            return None;
        };
        let turn = Turn(Span { start, ..self.0 });
        self.0.end = start;
        Some(turn)
    }
}

impl FusedIterator for Turns<'_> {}

/// Iterates over steps; see [`Transcript::steps`]. A full iteration visits each message twice.
#[derive(Clone, Debug)]
pub struct Steps<'a>(Span<'a>);

impl<'a> Steps<'a> {
    /// The step of the assistant message at `start`.
    fn step(&self, start: usize) -> Step<'a> {
        let is_result = |index: &usize| self.0.transcript.role(*index) == Some(Role::Tool);
        let results = (start + 1..self.0.end).take_while(is_result).count();
        Step(Span { start, end: start + 1 + results, ..self.0 })
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        let Some(start) = self.0.find(Role::Assistant) else {
            self.0.start = self.0.end;
            return None;
        };
        let step = self.step(start);
        self.0.start = step.range().end;
        Some(step)
    }
}

impl DoubleEndedIterator for Steps<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let Some(start) = self.0.rfind(Role::Assistant) else {
            self.0.end = self.0.start;
            return None;
        };
        let step = self.step(start);
        self.0.end = start;
        Some(step)
    }
}

impl FusedIterator for Steps<'_> {}
