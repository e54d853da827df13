//! The recorded turn beside the candidate's, line by line: where do they part?

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_agent_loop::{Event, EventKind};
use stepfold_state_core::chat::{Message, Role};
use stepfold_state_core::{canonical_json, shortened};

/// The lines of a timeline that are kept.
const MAX_LINES: usize = 400;

/// Two timelines as lines for people: messages, calls, results and writes. Long lines are shortened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Timelines {
    /// The recorded turn; empty for a written case.
    pub recorded: Vec<String>,
    /// The turn of the candidate.
    pub made: Vec<String>,
    /// The index of the first line in which they differ; the length of both if they do not.
    pub differs_at: usize,
}

impl Timelines {
    /// The timelines of these events.
    pub(crate) fn of<'a>(
        recorded: impl Iterator<Item = &'a Event>,
        made: impl Iterator<Item = &'a Event>,
    ) -> Self {
        let (recorded, made) = (lines_of(recorded), lines_of(made));
        let differs_at = recorded.iter().zip(&made).take_while(|(left, right)| left == right).count();
        Timelines { recorded, made, differs_at }
    }
}

fn lines_of<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<String> {
    events.flat_map(lines_of_event).take(MAX_LINES).collect()
}

fn lines_of_event(event: &Event) -> Vec<String> {
    let event = match &event.kind {
        EventKind::Inner { event: inner, .. } => {
            return lines_of_event(inner).into_iter().map(|line| format!("  {line}")).collect();
        }
        _ => event,
    };
    let mut lines: Vec<String> =
        event.messages.iter().flat_map(|message| lines_of_message(message)).collect();
    if let EventKind::Asked { .. } = event.kind {
        lines.push("waits for a decision".to_owned());
    }
    lines.extend(event.delta.iter().map(|write| {
        let value = write.value().map_or_else(|| "removed".to_owned(), canonical_json);
        shortened(&format!("{} = {value}", write.key()))
    }));
    lines
}

fn lines_of_message(message: &Message) -> Vec<String> {
    let role = match message.role() {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        _ => "system",
    };
    if let Some(result) = message.tool_result() {
        return vec![shortened(&format!("tool: {}", result.text()))];
    }
    let text = message.text();
    let said = (!text.is_empty()).then(|| shortened(&format!("{role}: {text}")));
    let calls = message.tool_calls().map(|call| {
        let arguments = call.arguments.as_object().cloned().map_or(Value::Null, Value::Object);
        shortened(&format!("{role}: > {}({})", call.name, canonical_json(&arguments)))
    });
    said.into_iter().chain(calls).collect()
}
