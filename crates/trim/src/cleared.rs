//! Old results of tools, each shown as one line.
//!
//! An agent that reads forty files has the first one in each later request, though its last steps no longer depend on
//! it. The calls stay, so the model knows what it has read and can ask again.

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::{Content, Message, Role, ToolContent, ToolResult, Transcript};

use crate::approximate::ApproximateTokens;
use crate::kept::MessageRanges;
use crate::pins::Pins;
use crate::tokens::TokenCounter;

/// The rule by which results are cleared: those of older steps, if they are large.
#[derive(Clone)]
pub(crate) struct ClearedResults {
    /// The newest steps with calls, whose results stay.
    pub(crate) newest_steps: usize,
    /// A result of at most so many tokens stays.
    pub(crate) above_tokens: usize,
    pub(crate) counter: Arc<dyn TokenCounter>,
    /// Results that these name stay.
    pub(crate) pins: Option<Pins>,
}

impl ClearedResults {
    pub(crate) fn new(newest_steps: usize, above_tokens: usize) -> Self {
        ClearedResults { newest_steps, above_tokens, counter: Arc::new(ApproximateTokens), pins: None }
    }

    /// The places of the results to clear in what is shown; `None` if there are none.
    pub(crate) fn places(&self, shown: &Transcript) -> Option<MessageRanges> {
        let mut newer_steps = 0;
        let mut places = Vec::new();
        for (place, message) in (0..shown.len()).zip(shown.iter()).rev() {
            match message.role() {
                Role::Tool if newer_steps >= self.newest_steps && self.clears(message) => places.push(place),
                Role::Assistant if message.has_tool_calls() => newer_steps += 1,
                _ => {}
            }
        }
        let places: MessageRanges = places.into_iter().rev().map(|place| place..place + 1).collect();
        (!places.is_empty()).then_some(places)
    }

    /// Whether the result is worth clearing. Never a line that stands for a cleared one: it saves less than half of that.
    fn clears(&self, message: &Message) -> bool {
        let is_pinned =
            |result: &ToolResult| self.pins.as_ref().is_some_and(|pins| pins.names(result.name()));
        if message.tool_result().is_none_or(is_pinned) {
            return false;
        }
        let tokens = self.counter.count(message);
        let least = || self.counter.count(&line(message, None)).saturating_mul(2);
        tokens > self.above_tokens && tokens >= least()
    }
}

impl fmt::Display for ClearedResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clear_results({} steps, {} tokens", self.newest_steps, self.above_tokens)?;
        match self.counter.name() {
            ApproximateTokens::NAME => {}
            counter => write!(f, ", by {counter}")?,
        }
        match &self.pins {
            Some(pins) => write!(f, ", but {pins})"),
            None => f.write_str(")"),
        }
    }
}

/// The message that stands for a cleared result: of the same call, and an error if that was one. It names the tool that
/// reads the result, if there is one.
pub(crate) fn line(message: &Message, reader: Option<&str>) -> Message {
    let Some(result) = message.tool_result() else { return message.clone() };
    let (tool, id, size) = (result.name(), result.call_id(), size_of(result));
    let text = match reader {
        None => format!("[The result of {tool} ({id}), {size}, is no longer shown.]"),
        Some(reader) => {
            let id = serde_json::Value::from(id);
            format!("[The result of {tool}, {size}, is no longer shown: {reader}(call_id={id}) reads it.]")
        }
    };
    let content = match result.content() {
        ToolContent::Error(_) => ToolContent::Error(text),
        _ => ToolContent::Value(text.into()),
    };
    Message::tool(ToolResult::new(result.call_id(), result.name(), content))
}

/// The size of a result as a person reads it: of its text, and the number of its images and files.
fn size_of(result: &ToolResult) -> String {
    let bytes = match result.text().len() {
        bytes @ ..1_000 => format!("{bytes} bytes"),
        bytes => format!("{} kB", bytes / 1_000),
    };
    let ToolContent::Parts(parts) = result.content() else { return bytes };
    match parts.iter().filter(|part| !matches!(part.content, Content::Text(_))).count() {
        0 => bytes,
        1 => format!("{bytes} and an attachment"),
        attachments => format!("{bytes} and {attachments} attachments"),
    }
}

/// The messages of a log in `kept`, those in `cleared` as a line. Shares the log if that is all of it.
pub(crate) fn shown(
    log: &Transcript,
    kept: &MessageRanges,
    cleared: &MessageRanges,
    reader: Option<&str>,
) -> Transcript {
    if cleared.is_empty() {
        return kept.of(log);
    }
    kept.indexes().filter_map(|index| message(log, index, cleared, reader)).collect()
}

/// The message of a log at `index`, as a line if it is in `cleared`.
pub(crate) fn message(
    log: &Transcript,
    index: usize,
    cleared: &MessageRanges,
    reader: Option<&str>,
) -> Option<Arc<Message>> {
    let message = log.get(index)?;
    Some(match cleared.contains(index) {
        true => Arc::new(line(message, reader)),
        false => Arc::clone(message),
    })
}
