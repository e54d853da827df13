//! Making a conversation well-formed again, whatever an interruption or a careless writer left behind.
//!
//! Nothing is guessed: a call without a recorded result is answered by an error that says so, because its
//! effect may have happened. What was well-formed stays as it was, in its order, and shares its memory.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::call_ids::fresh_call_id;
use super::check::{Answer, OpenCall, OpenCalls, may_hold};
use super::{Content, Message, Part, Role, ToolCall, ToolResult, Transcript};

/// What the model reads as the result of a call that has none.
pub const INTERRUPTED: &str =
    "interrupted: no result of this call was recorded; whether it took effect is unknown";

/// A well-formed conversation, and what was done to make it so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The conversation; it passes [`check`](Transcript::check).
    pub transcript: Transcript,
    /// What was done, in the order of the messages it was done to. Empty if nothing was wrong.
    pub repairs: Vec<Repair>,
}

/// One thing that was done to a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The index of the message it was done to, in the conversation as it was before.
    pub message: usize,
    /// The tool call it is about, under the id it had before, if it is about one.
    pub call_id: Option<String>,
    /// What was done.
    pub kind: RepairKind,
}

/// What can be done to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairKind {
    /// A call without a result was answered by an error: [`INTERRUPTED`].
    Answered,
    /// A result that came late was moved behind its call.
    Moved,
    /// A result that answers no call was dropped.
    OrphanDropped,
    /// A result for a call that has one already was dropped.
    DuplicateDropped,
    /// A call, or the result of one, was given this id, because its own was empty or not unique.
    IdSet(String),
    /// A result was given the name of the tool that was called.
    NameSet(String),
    /// A result in a message of another role was given a tool message of its own.
    Extracted,
    /// A part that the message cannot hold was dropped; the name of its kind.
    PartDropped(String),
    /// A message of which nothing was left was dropped.
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
            RepairKind::Moved => f.write_str("moved the late result behind its call"),
            RepairKind::OrphanDropped => f.write_str("dropped a result without a call"),
            RepairKind::DuplicateDropped => f.write_str("dropped a second result"),
            RepairKind::IdSet(id) => write!(f, "set the call id to `{id}`"),
            RepairKind::NameSet(name) => write!(f, "set the tool name to `{name}`"),
            RepairKind::Extracted => f.write_str("made a tool message of a misplaced result"),
            RepairKind::PartDropped(kind) => write!(f, "dropped a misplaced `{kind}` part"),
            RepairKind::MessageDropped => f.write_str("dropped a message of which nothing was left"),
            RepairKind::Split => f.write_str("split a tool message with several results"),
        }
    }
}

impl Transcript {
    /// A well-formed conversation that says the same, and what had to be done for it.
    ///
    /// A conversation that passes [`check`](Transcript::check) is returned as it is, at the price of the
    /// check. Repairing twice does nothing more than repairing once. Messages that were well-formed are
    /// kept, in their order.
    ///
    /// A result belongs to the nearest earlier message that has a call of its id. If that call is
    /// answered already, the result is dropped, even if a message still further back has an open call of
    /// the same id: a result in the wrong place would be worse than none. A result in a user message,
    /// where some providers keep them, is a result too.
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
    pub fn repair(&self) -> Repaired {
        if self.check().is_ok() {
            return Repaired { transcript: self.clone(), repairs: Vec::new() };
        }
        let mut repairer = Repairer::default();
        for (index, message) in self.iter().enumerate() {
            repairer.message(index, message);
        }
        repairer.finish()
    }
}

/// The walk over a broken conversation.
#[derive(Default)]
struct Repairer<'a> {
    blocks: Vec<Block<'a>>,
    /// The newest block that has a call of this id.
    block_of: HashMap<&'a str, usize>,
    repairs: Vec<Repair>,
}

/// A message that stays where it is, and the results that were found for its calls.
struct Block<'a> {
    /// The index it had.
    index: usize,
    message: Arc<Message>,
    calls: OpenCalls<'a>,
    /// The ids that the calls have now, if any of them had to change.
    ids: Option<Vec<String>>,
    results: Vec<Arc<Message>>,
}

impl<'a> Repairer<'a> {
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
        // A result beside a call may well answer it.
        if is_assistant {
            self.extract_results(index, original);
        }
    }

    /// Puts the results in a message that cannot hold them behind their calls, if they have any.
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

    /// The message with only such parts as it can hold; none if that leaves nothing to keep.
    fn without_misplaced_parts(&mut self, index: usize, message: &Arc<Message>) -> Option<Arc<Message>> {
        let belongs = |part: &&Part| may_hold(message.role(), &part.content);
        let kept = message.parts().iter().filter(belongs).count();
        for part in message.parts().iter().filter(|part| !belongs(part)) {
            if !matches!(part.content, Content::ToolResult(_)) {
                let kind = RepairKind::PartDropped(part.content.kind().to_owned());
                self.report(index, None, kind);
            }
        }
        let is_missing_result = message.role() == Role::Tool && message.tool_result().is_none();
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

    /// Opens the calls of an assistant message, which get ids that can be told apart.
    fn open_step(&mut self, index: usize, original: &'a Message, message: Arc<Message>) {
        let mut calls = OpenCalls::default();
        calls.open(original.tool_calls());
        for call in &calls.calls {
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
        self.blocks.push(Block { index, message, calls, ids, results: Vec::new() });
    }

    /// Puts each result of a tool message behind its call.
    fn results(&mut self, index: usize, message: &Arc<Message>) {
        let is_result = |part: &&Part| matches!(part.content, Content::ToolResult(_));
        let count = message.parts().iter().filter(is_result).count();
        if count == 1 {
            self.result(index, message);
            return;
        }
        self.report(index, None, RepairKind::Split);
        // Whatever else the message has stays with its first result.
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

    /// Puts a tool message with one result behind its call, or drops it.
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
        let Answer::To { position, name } = block.calls.answer(result.call_id()) else {
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

    /// Answers what is still open, and puts everything in a row.
    fn finish(mut self) -> Repaired {
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
        self.repairs.sort_by_key(|repair| repair.message);
        Repaired { transcript, repairs: self.repairs }
    }

    fn report(&mut self, message: usize, call_id: Option<&str>, kind: RepairKind) {
        self.repairs.push(Repair { message, call_id: call_id.map(str::to_owned), kind });
    }
}

fn needs_id(call: &OpenCall<'_>) -> bool {
    call.id.is_empty() || call.is_duplicate
}

/// An id for each call: its own if it can stay, else one made of it and of the position of the call.
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
