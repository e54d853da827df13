//! Repairs malformed conversations, after an interruption or a faulty writer.
//!
//! Nothing is guessed: a call without a recorded result is answered by an error that says so, because its
//! effect may have happened. Well-formed messages are unchanged, keep their order and share memory.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::call_ids::fresh_call_id;
use super::check::{OpenCall, OpenCalls, ResultMatch, may_hold};
use super::{Content, Message, Part, Role, ToolCall, ToolResult, Transcript};

/// The result text of a call without a result, for the model.
pub const INTERRUPTED: &str =
    "interrupted: no result of this call was recorded; whether it took effect is unknown";

/// A repaired conversation, and its repairs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedTranscript {
    /// The conversation; it passes [`check`](Transcript::check).
    pub transcript: Transcript,
    /// The repairs, in the order of their messages. Empty if the conversation was well-formed.
    pub repairs: Vec<Repair>,
}

impl RepairedTranscript {
    /// A well-formed conversation, which needs no repairs.
    pub const fn unchanged(transcript: Transcript) -> Self {
        RepairedTranscript { transcript, repairs: Vec::new() }
    }
}

/// A repair of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The index of the message in the original conversation.
    pub message: usize,
    /// The original id of the tool call, if the repair concerns one.
    pub call_id: Option<String>,
    /// The kind of repair.
    pub kind: RepairKind,
}

/// The kinds of repairs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairKind {
    /// A call without a result was answered by the error [`INTERRUPTED`].
    Answered,
    /// A late result was moved after its call.
    Moved,
    /// A result without a call was dropped.
    OrphanDropped,
    /// A second result of a call was dropped.
    DuplicateDropped,
    /// A call, or the result of one, was given this id, because its own was empty or not unique.
    IdSet(String),
    /// A result was given the name of the called tool.
    NameSet(String),
    /// A result in a message of another role was moved into its own tool message.
    Extracted,
    /// A part that the message cannot hold was dropped; the name of its kind.
    PartDropped(String),
    /// An empty message was dropped.
    MessageDropped,
    /// A tool message with several results was split.
    Split,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}", self.message)?;
        if let Some(call_id) = &self.call_id {
            write!(f, ", call `{call_id}`")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl fmt::Display for RepairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepairKind::Answered => f.write_str("answered as interrupted"),
            RepairKind::Moved => f.write_str("moved the late result after its call"),
            RepairKind::OrphanDropped => f.write_str("dropped a result without a call"),
            RepairKind::DuplicateDropped => f.write_str("dropped a second result"),
            RepairKind::IdSet(id) => write!(f, "set the call id to `{id}`"),
            RepairKind::NameSet(name) => write!(f, "set the tool name to `{name}`"),
            RepairKind::Extracted => f.write_str("moved a misplaced result into a tool message"),
            RepairKind::PartDropped(kind) => write!(f, "dropped a misplaced `{kind}` part"),
            RepairKind::MessageDropped => f.write_str("dropped an empty message"),
            RepairKind::Split => f.write_str("split a tool message with several results"),
        }
    }
}

impl Transcript {
    /// Returns a well-formed version of the conversation, and the repairs.
    ///
    /// A conversation that passes [`check`](Transcript::check) is returned unchanged, at the cost of the
    /// check. Repairing is idempotent. Well-formed messages are kept, in their order.
    ///
    /// A result belongs to the nearest earlier message with a call of its id. If that call is already
    /// answered, the result is dropped, even if an earlier message has an open call with the same id: a
    /// misplaced result would be worse than a missing one. A result in a user message, where some providers
    /// put them, counts as a result.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let broken: Transcript = "\
    /// user:      which area has most stalls?
    /// assistant: > c1 search(q=\"stalls\")   > c2 fetch(id=7)
    /// user:      hello?
    /// tool c1:   [3, 4]
    /// ".parse()?;
    /// let repaired = broken.repair();
    /// assert_eq!(repaired.transcript.to_string(), "\
    /// user:      which area has most stalls?
    /// assistant: > c1 search(q=\"stalls\")   > c2 fetch(id=7)
    /// tool c1:   [3, 4]
    /// tool c2!:  interrupted: no result of this call was recorded; whether it took effect is unknown
    /// user:      hello?
    /// ");
    /// assert_eq!(repaired.repairs[0].to_string(), "message 1, call `c2`: answered as interrupted");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn repair(&self) -> RepairedTranscript {
        if self.check().is_ok() {
            return RepairedTranscript { transcript: self.clone(), repairs: Vec::new() };
        }
        let mut repairer = TranscriptRepairer::default();
        for (index, message) in self.iter().enumerate() {
            repairer.message(index, message);
        }
        repairer.finish()
    }
}

/// The pass over a malformed conversation.
#[derive(Default)]
struct TranscriptRepairer<'a> {
    blocks: Vec<MessageBlock<'a>>,
    /// The newest block with a call of this id.
    block_of: HashMap<&'a str, usize>,
    repairs: Vec<Repair>,
}

/// A message that stays in place, and the results of its calls.
struct MessageBlock<'a> {
    /// The original index.
    index: usize,
    message: Arc<Message>,
    calls: OpenCalls<'a>,
    /// The current ids of the calls, if any was changed.
    ids: Option<Vec<String>>,
    results: Vec<Arc<Message>>,
}

impl<'a> TranscriptRepairer<'a> {
    fn message(&mut self, index: usize, original: &'a Arc<Message>) {
        let is_assistant = original.role() == Role::Assistant;
        if !is_assistant {
            self.extract_results(index, original);
        }
        if let Some(message) = self.without_misplaced_parts(index, original) {
            match message.role() {
                Role::Tool => self.results(index, &message),
                Role::Assistant if message.has_tool_calls() => {
                    self.open_step(index, original, message);
                }
                _ => self.keep(index, message, OpenCalls::default(), None),
            }
        }
        // A result in the same message may answer the call.
        if is_assistant {
            self.extract_results(index, original);
        }
    }

    /// Moves the results in a message that cannot hold them to their calls.
    fn extract_results(&mut self, index: usize, message: &Message) {
        if message.role() == Role::Tool {
            return;
        }
        for part in message.parts() {
            if let Content::ToolResult(result) = &part.content {
                self.report(index, Some(result.call_id()), RepairKind::Extracted);
                let single = Message::from_parts(Role::Tool, vec![part.clone()]);
                self.result(index, &Arc::new(single));
            }
        }
    }

    /// The message without misplaced parts; `None` if nothing is left.
    fn without_misplaced_parts(&mut self, index: usize, message: &Arc<Message>) -> Option<Arc<Message>> {
        let belongs = |part: &&Part| may_hold(message.role(), &part.content);
        let kept = message.parts().iter().filter(belongs).count();
        for part in message.parts().iter().filter(|part| !belongs(part)) {
            // NOTE: Misplaced results are moved to their calls, not dropped.
            if !matches!(part.content, Content::ToolResult(_)) {
                let kind = RepairKind::PartDropped(part.content.kind().to_owned());
                self.report(index, None, kind);
            }
        }
        let is_missing_result = message.role() == Role::Tool && message.tool_result().is_none();
        // NOTE: A message without parts was empty before, and is well-formed.
        if is_missing_result || kept == 0 && !message.parts().is_empty() {
            self.report(index, None, RepairKind::MessageDropped);
            return None;
        }
        if kept == message.parts().len() {
            return Some(Arc::clone(message));
        }
        let parts = message.parts().iter().filter(belongs).cloned().collect();
        Some(rebuilt(message, parts))
    }

    /// Opens the calls of an assistant message, with unique ids.
    fn open_step(&mut self, index: usize, original: &'a Message, message: Arc<Message>) {
        let mut calls = OpenCalls::default();
        calls.open(original.tool_calls());
        for call in &calls.calls {
            // NOTE: The newest call with an id gets the result: servers number calls from zero in each reply.
            self.block_of.insert(call.id, self.blocks.len());
        }
        if !calls.calls.iter().any(needs_id) {
            self.keep(index, message, calls, None);
            return;
        }
        let ids = fresh_ids(&calls.calls);
        for (call, id) in calls.calls.iter().zip(&ids) {
            if call.id != id {
                self.report(index, Some(call.id), RepairKind::IdSet(id.clone()));
            }
        }
        let mut next_id = ids.iter();
        let parts = message.parts().iter().cloned().map(|mut part| {
            if let Content::ToolCall(ToolCall { id, .. }) = &mut part.content
                && let Some(next_id) = next_id.next()
            {
                id.clone_from(next_id);
            }
            part
        });
        let message = rebuilt(&message, parts.collect());
        self.keep(index, message, calls, Some(ids));
    }

    fn keep(&mut self, index: usize, message: Arc<Message>, calls: OpenCalls<'a>, ids: Option<Vec<String>>) {
        self.blocks.push(MessageBlock { index, message, calls, ids, results: Vec::new() });
    }

    /// Moves each result of a tool message to its call.
    fn results(&mut self, index: usize, message: &Arc<Message>) {
        let is_result = |part: &&Part| matches!(part.content, Content::ToolResult(_));
        let count = message.parts().iter().filter(is_result).count();
        if count == 1 {
            self.result(index, message);
            return;
        }
        self.report(index, None, RepairKind::Split);
        // Other parts stay with the first result.
        let others = message.parts().iter().filter(|part| !is_result(part));
        for (position, result) in message.parts().iter().filter(is_result).enumerate() {
            let mut parts = vec![result.clone()];
            let single = if position == 0 {
                parts.extend(others.clone().cloned());
                rebuilt(message, parts)
            } else {
                Arc::new(Message::from_parts(Role::Tool, parts))
            };
            self.result(index, &single);
        }
    }

    /// Moves a tool message with one result to its call, or drops it.
    fn result(&mut self, index: usize, message: &Arc<Message>) {
        let Some(result) = message.tool_result() else {
            return;
        };
        let call_id = Some(result.call_id());
        let Some(&at) = self.block_of.get(result.call_id()) else {
            self.report(index, call_id, RepairKind::OrphanDropped);
            return;
        };
        let is_late = at + 1 < self.blocks.len();
        let block = &mut self.blocks[at];
        let ResultMatch::Call { position, name } = block.calls.answer(result.call_id()) else {
            self.report(index, call_id, RepairKind::DuplicateDropped);
            return;
        };
        let id = match &block.ids {
            Some(ids) => ids[position].as_str(),
            None => result.call_id(),
        };
        let mut done = Vec::new();
        if id != result.call_id() {
            done.push(RepairKind::IdSet(id.to_owned()));
        }
        if name != result.name() {
            done.push(RepairKind::NameSet(name.to_owned()));
        }
        block.results.push(match done.as_slice() {
            [] => Arc::clone(message),
            _ => readdressed(message, id, name),
        });
        if is_late {
            done.push(RepairKind::Moved);
        }
        for kind in done {
            self.report(index, call_id, kind);
        }
    }

    /// Answers the open calls, and concatenates the blocks.
    fn finish(mut self) -> RepairedTranscript {
        let mut transcript = Transcript::new();
        for block in std::mem::take(&mut self.blocks) {
            transcript.push(block.message);
            transcript.extend(block.results);
            for (position, call) in block.calls.calls.iter().enumerate() {
                if call.is_answered {
                    continue;
                }
                let id = match &block.ids {
                    Some(ids) => &ids[position],
                    None => call.id,
                };
                self.report(block.index, Some(call.id), RepairKind::Answered);
                transcript.push(Message::tool(ToolResult::error(id, call.name, INTERRUPTED)));
            }
        }
        // NOTE: Unanswered calls are reported last.
        self.repairs.sort_by_key(|repair| repair.message);
        RepairedTranscript { transcript, repairs: self.repairs }
    }

    fn report(&mut self, message: usize, call_id: Option<&str>, kind: RepairKind) {
        self.repairs.push(Repair { message, call_id: call_id.map(str::to_owned), kind });
    }
}

fn needs_id(call: &OpenCall<'_>) -> bool {
    call.id.is_empty() || call.is_duplicate
}

/// An id for each call: its own if possible, otherwise one made from it and the position of the call.
fn fresh_ids(calls: &[OpenCall<'_>]) -> Vec<String> {
    let mut taken: HashSet<String> = calls.iter().map(|call| call.id.to_owned()).collect();
    let fresh = |(position, call): (usize, &OpenCall<'_>)| {
        if !needs_id(call) {
            return call.id.to_owned();
        }
        let id = fresh_call_id(call.id, position + 1, |id| !taken.contains(id));
        taken.insert(id.clone());
        id
    };
    calls.iter().enumerate().map(fresh).collect()
}

/// The message with other parts.
fn rebuilt(message: &Message, parts: Vec<Part>) -> Arc<Message> {
    Arc::new(Message::from_parts(message.role(), parts).with_extras(message.extras().clone()))
}

/// The tool message with another call id and tool name.
fn readdressed(message: &Message, call_id: &str, name: &str) -> Arc<Message> {
    let parts = message.parts().iter().cloned().map(|mut part| {
        if let Content::ToolResult(result) = &mut part.content {
            *result = result.readdressed(call_id, name);
        }
        part
    });
    rebuilt(message, parts.collect())
}
