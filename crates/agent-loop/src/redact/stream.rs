//! The redaction of a streamed reply: text is shown when no further text can turn it into a sensitive part.

use std::collections::BTreeMap;

use stepfold_state_core::chat::Arguments;

use super::{ContentRedactor, Redact, finders, replacement};
use crate::observe::RunEvent;

/// A reply as it streams in.
#[derive(Default)]
pub(crate) struct ReplyRedaction {
    text: HeldText,
    reasoning: HeldText,
    /// The calls by their indexes. Their arguments are shown when they are complete: an escape in them may hide a part.
    calls: BTreeMap<usize, Vec<HeldCall>>,
}

#[derive(Default)]
struct HeldCall {
    id: Option<String>,
    arguments: String,
}

/// Text of which the end is held back.
#[derive(Default)]
struct HeldText {
    /// The character before the held text, and the held text.
    window: String,
    /// The bytes of that character.
    context: usize,
    /// The bytes of held text from which on it is looked at again.
    looked_at_from: usize,
}

/// The bytes of held text that are looked at with each piece of a reply. Longer ones, such as a line without an end, are looked at when
/// half as many have come, or a reply in small pieces would take the square of its length.
const LOOKED_AT_EACH_TIME: usize = 4 * 1024;

impl ReplyRedaction {
    /// The event to show in place of one of the reply.
    pub(crate) fn show(&mut self, redact: &dyn Redact, event: RunEvent) -> Option<RunEvent> {
        match event {
            RunEvent::Text(text) => self.text.push(redact, &text).map(RunEvent::Text),
            RunEvent::Reasoning(text) => self.reasoning.push(redact, &text).map(RunEvent::Reasoning),
            RunEvent::ToolCallDelta { index, call_id, tool, arguments } => {
                let calls = self.calls.entry(index).or_default();
                let is_other = |held: &HeldCall| call_id.is_some() && held.id.is_some() && held.id != call_id;
                if calls.last().is_none_or(is_other) {
                    calls.push(HeldCall::default());
                }
                if let Some(held) = calls.last_mut() {
                    held.arguments.push_str(&arguments);
                    held.id = held.id.take().or_else(|| call_id.clone());
                }
                let is_head = call_id.is_some() || tool.is_some();
                is_head.then(|| RunEvent::ToolCallDelta { index, call_id, tool, arguments: String::new() })
            }
            event => Some(event),
        }
    }

    /// The held rest of a complete reply, or of an attempt that another one follows.
    pub(crate) fn finish(&mut self, redact: &dyn Redact) -> Vec<RunEvent> {
        let ReplyRedaction { mut text, mut reasoning, calls } = std::mem::take(self);
        let mut events = Vec::new();
        events.extend(reasoning.finish(redact).map(RunEvent::Reasoning));
        events.extend(text.finish(redact).map(RunEvent::Text));
        for (index, calls) in calls {
            let held = calls.into_iter().filter(|call| !call.arguments.is_empty());
            events.extend(held.map(|HeldCall { id, arguments }| {
                let mut given = Arguments::parse(arguments.clone());
                let is_changed = ContentRedactor::new(redact).arguments(&mut given);
                let arguments = if is_changed { given.to_text().into_owned() } else { arguments };
                RunEvent::ToolCallDelta { index, call_id: id, tool: None, arguments }
            }));
        }
        events
    }
}

impl HeldText {
    fn push(&mut self, redact: &dyn Redact, more: &str) -> Option<String> {
        self.window.push_str(more);
        if self.window.len() < self.looked_at_from {
            return None;
        }
        let shown = self.show(redact);
        let held = self.window.len();
        self.looked_at_from = if held > LOOKED_AT_EACH_TIME { held + held / 2 } else { 0 };
        shown
    }

    /// The text that no further text can turn into a part.
    fn show(&mut self, redact: &dyn Redact) -> Option<String> {
        let parts = redact.find(&self.window);
        let mut end = redact.open_end(&self.window).max(self.context).min(self.window.len());
        while !self.window.is_char_boundary(end) {
            end -= 1;
        }
        loop {
            let before = end;
            // A part is shown as a whole.
            let spanning = parts.iter().find(|part| part.range.start < end && end < part.range.end);
            end = spanning.map_or(end, |part| part.range.start);
            // An escaped character is held back with what follows it: it tells where a word begins.
            end = finders::before_escape(self.window.as_bytes(), end).unwrap_or(end).max(self.context);
            if end == before {
                break;
            }
        }
        self.take(redact, end)
    }

    fn finish(&mut self, redact: &dyn Redact) -> Option<String> {
        self.take(redact, self.window.len())
    }

    /// The text up to a place, which no part spans.
    fn take(&mut self, redact: &dyn Redact, end: usize) -> Option<String> {
        if end <= self.context {
            return None;
        }
        let mut shown = String::new();
        let mut after = self.context;
        for part in redact.find(&self.window) {
            if part.range.start >= after && part.range.end <= end {
                shown.push_str(&self.window[after..part.range.start]);
                shown.push_str(&replacement(&part.rule));
                after = part.range.end;
            }
        }
        shown.push_str(&self.window[after..end]);
        let before = self.window[..end].char_indices().next_back().map_or(end, |(start, _)| start);
        self.context = end - before;
        self.window.drain(..before);
        Some(shown)
    }
}
