//! Checks whether a conversation is well-formed, and locates each fault.
//!
//! One pass, without allocation for messages without tool calls: 10,000 messages take well under a
//! millisecond, so a conversation can be checked before every request.

use std::collections::HashMap;
use std::fmt;

use super::{Content, Message, Role, ToolCall, ToolResult, Transcript};

impl Transcript {
    /// Checks whether the conversation is well-formed.
    ///
    /// Every tool call of an assistant message must be answered exactly once, in any order, by the tool
    /// messages directly after it; each of these must answer a call and name its tool; call ids must be
    /// non-empty and unique within a message (they may repeat in other messages); tool calls must be in
    /// assistant messages; and a tool message must hold one result and nothing else (except parts of an
    /// unknown kind).
    ///
    /// # Errors
    /// [`TranscriptFaults`] lists all faults, in the order of the messages.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let transcript: Transcript = "\
    /// user:      which area has most stalls?
    /// assistant: > c1 search(q=\"stalls\")
    /// user:      hello?
    /// ".parse()?;
    /// let faults = transcript.check().unwrap_err();
    /// assert_eq!(faults.to_string(), "message 1, call `c1`: missing result");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn check(&self) -> Result<(), TranscriptFaults> {
        let mut checker = TranscriptChecker::default();
        for (index, message) in self.iter().enumerate() {
            checker.message(index, message);
        }
        checker.close_step();
        let mut faults = checker.faults;
        if faults.is_empty() {
            return Ok(());
        }
        // NOTE: An unanswered call is only detected at the end of its step.
        faults.sort_by_key(|fault| fault.message);
        Err(TranscriptFaults(faults))
    }
}

/// All faults of a conversation; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptFaults(Vec<TranscriptFault>);

impl TranscriptFaults {
    /// The faults, in the order of the messages.
    pub fn iter(&self) -> std::slice::Iter<'_, TranscriptFault> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a TranscriptFaults {
    type Item = &'a TranscriptFault;
    type IntoIter = std::slice::Iter<'a, TranscriptFault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The number of faults that are printed.
const SHOWN: usize = 10;

impl fmt::Display for TranscriptFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for TranscriptFaults {}

/// A fault of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TranscriptFault {
    /// The index of the message.
    pub message: usize,
    /// The tool call, if the fault concerns one.
    pub call_id: Option<String>,
    /// The kind of fault.
    pub kind: TranscriptFaultKind,
}

impl fmt::Display for TranscriptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}", self.message)?;
        if let Some(call_id) = &self.call_id {
            write!(f, ", call `{call_id}`")?;
        }
        write!(f, ": {}", self.kind)
    }
}

/// The kinds of faults of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TranscriptFaultKind {
    /// A tool call without a result directly after its message.
    Unanswered,
    /// A tool result without a call in its step.
    Orphan,
    /// A second tool result for the same call.
    AnsweredTwice,
    /// A tool call with the id of an earlier call in the same message.
    DuplicateCallId,
    /// A tool call without an id.
    EmptyCallId,
    /// A tool result that names a different tool than its call.
    WrongName {
        /// The tool that was called.
        called: String,
        /// The tool that the result names.
        answered: String,
    },
    /// A part that is not allowed in a message of this role.
    Misplaced {
        /// The kind of the part, as in JSON.
        part: String,
        /// The role of the message.
        role: Role,
    },
    /// A tool message without a result.
    NoResult,
    /// A tool message with several results.
    SeveralResults,
}

impl fmt::Display for TranscriptFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TranscriptFaultKind::Unanswered => f.write_str("missing result"),
            TranscriptFaultKind::Orphan => f.write_str("result without a call"),
            TranscriptFaultKind::AnsweredTwice => f.write_str("duplicate result"),
            TranscriptFaultKind::DuplicateCallId => f.write_str("duplicate call id"),
            TranscriptFaultKind::EmptyCallId => f.write_str("empty call id"),
            TranscriptFaultKind::WrongName { called, answered } => {
                write!(f, "expected a result of `{called}`, found one of `{answered}`")
            }
            TranscriptFaultKind::Misplaced { part, role } => {
                write!(f, "invalid `{part}` part in a {role} message")
            }
            TranscriptFaultKind::NoResult => f.write_str("tool message without a result"),
            TranscriptFaultKind::SeveralResults => f.write_str("tool message with several results"),
        }
    }
}

/// Whether a message of this role may hold this part.
pub(super) const fn may_hold(role: Role, content: &Content) -> bool {
    match content {
        Content::ToolCall(_) => matches!(role, Role::Assistant),
        Content::ToolResult(_) => matches!(role, Role::Tool),
        // NOTE: A kind of part from a newer version is kept as it is: this version cannot judge where it belongs.
        Content::Unknown(_) => true,
        _ => !matches!(role, Role::Tool),
    }
}

/// The pass over a conversation.
#[derive(Default)]
struct TranscriptChecker<'a> {
    /// The index of the assistant message with the open calls.
    step: usize,
    calls: OpenCalls<'a>,
    faults: Vec<TranscriptFault>,
}

impl<'a> TranscriptChecker<'a> {
    fn message(&mut self, index: usize, message: &'a Message) {
        self.parts(index, message);
        if message.role() == Role::Tool {
            self.results(index, message);
            return;
        }
        self.close_step();
        if message.role() == Role::Assistant && message.has_tool_calls() {
            self.open_step(index, message);
        }
    }

    fn parts(&mut self, index: usize, message: &Message) {
        for part in message.parts() {
            if !may_hold(message.role(), &part.content) {
                let kind = TranscriptFaultKind::Misplaced {
                    part: part.content.kind().to_owned(),
                    role: message.role(),
                };
                self.fault(index, None, kind);
            }
        }
    }

    fn open_step(&mut self, index: usize, message: &'a Message) {
        self.step = index;
        self.calls.open(message.tool_calls());
        for position in 0..self.calls.calls.len() {
            let call = &self.calls.calls[position];
            let id = call.id;
            if id.is_empty() {
                self.fault(index, Some(id), TranscriptFaultKind::EmptyCallId);
            } else if call.is_duplicate {
                self.fault(index, Some(id), TranscriptFaultKind::DuplicateCallId);
            }
        }
    }

    fn results(&mut self, index: usize, message: &Message) {
        let results = message.parts().iter().filter_map(|part| match &part.content {
            Content::ToolResult(result) => Some(result),
            _ => None,
        });
        let mut count = 0;
        for result in results {
            count += 1;
            self.result(index, result);
        }
        match count {
            0 => self.fault(index, None, TranscriptFaultKind::NoResult),
            1 => {}
            _ => self.fault(index, None, TranscriptFaultKind::SeveralResults),
        }
    }

    fn result(&mut self, index: usize, result: &ToolResult) {
        let kind = match self.calls.answer(result.call_id()) {
            ResultMatch::Call { name, .. } if name == result.name() => return,
            ResultMatch::Call { name, .. } => {
                TranscriptFaultKind::WrongName { called: name.to_owned(), answered: result.name().to_owned() }
            }
            ResultMatch::AnsweredCall => TranscriptFaultKind::AnsweredTwice,
            ResultMatch::NoCall => TranscriptFaultKind::Orphan,
        };
        self.fault(index, Some(result.call_id()), kind);
    }

    fn close_step(&mut self) {
        for call in &self.calls.calls {
            if !call.is_answered {
                self.faults.push(TranscriptFault {
                    message: self.step,
                    call_id: Some(call.id.to_owned()),
                    kind: TranscriptFaultKind::Unanswered,
                });
            }
        }
        self.calls.clear();
    }

    fn fault(&mut self, message: usize, call_id: Option<&str>, kind: TranscriptFaultKind) {
        self.faults.push(TranscriptFault { message, call_id: call_id.map(str::to_owned), kind });
    }
}

/// The calls of one assistant message, and their answers.
#[derive(Default)]
pub(super) struct OpenCalls<'a> {
    pub(super) calls: Vec<OpenCall<'a>>,
    /// The first unanswered call of each id; `None` if all calls with that id are answered.
    index: HashMap<&'a str, Option<usize>>,
}

pub(super) struct OpenCall<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    pub(super) is_answered: bool,
    /// Whether an earlier call of the message has the same id.
    pub(super) is_duplicate: bool,
    /// The next call of the same id.
    next_of_id: Option<usize>,
}

/// The call that a result answers.
pub(super) enum ResultMatch<'a> {
    /// The call at this position.
    Call { position: usize, name: &'a str },
    /// A call that is already answered.
    AnsweredCall,
    /// No call of the message.
    NoCall,
}

impl<'a> OpenCalls<'a> {
    /// Opens the calls of a message; replaces the calls of the previous one.
    pub(super) fn open(&mut self, calls: impl Iterator<Item = &'a ToolCall>) {
        self.clear();
        self.calls.extend(calls.map(|call| OpenCall {
            id: &call.id,
            name: &call.name,
            is_answered: false,
            is_duplicate: false,
            next_of_id: None,
        }));
        // NOTE: Backwards, so that `index` ends at the first call of each id.
        for position in (0..self.calls.len()).rev() {
            let next = self.index.insert(self.calls[position].id, Some(position)).flatten();
            self.calls[position].next_of_id = next;
            if let Some(next) = next {
                self.calls[next].is_duplicate = true;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.index.clear();
    }

    /// Answers the first open call with this id.
    pub(super) fn answer(&mut self, id: &str) -> ResultMatch<'a> {
        let Some(next) = self.index.get_mut(id) else {
            return ResultMatch::NoCall;
        };
        let Some(position) = *next else {
            return ResultMatch::AnsweredCall;
        };
        let call = &mut self.calls[position];
        *next = call.next_of_id;
        call.is_answered = true;
        ResultMatch::Call { position, name: call.name }
    }
}
