//! The beginning of a conversation in a session whose oldest events may have been pruned.

use std::borrow::Cow;
use std::sync::Arc;

use stepfold_session_scopes::{Event, Session};
use stepfold_state_core::chat::{Message, Role};

use crate::record::events::{begins, rewrite};

/// The beginning of a session's conversation: the first message of a user or of the system. In a pruned
/// session, the messages before it are the rest of a turn, such as results of tools whose calls are gone.
///
/// Retention may have cut into a run: what is left of it has no beginning, and is never continued. Of its steps those
/// count that have their results.
#[derive(Clone, Debug)]
pub(crate) struct ConversationStart {
    is_there: bool,
    /// Whether no run has begun in what was read.
    is_cut: bool,
    /// The last calls of a run without a beginning, with their results so far.
    open: Vec<Arc<Message>>,
}

impl ConversationStart {
    /// The beginning of a session that is read from its oldest event on.
    pub(crate) const fn of(session: &Session) -> Self {
        let is_whole = session.oldest == 0;
        ConversationStart { is_there: is_whole, is_cut: !is_whole, open: Vec::new() }
    }

    /// The messages of the next event that count.
    pub(crate) fn messages<'e>(&mut self, event: &'e Event) -> Cow<'e, [Arc<Message>]> {
        let messages = &event.messages[self.skipped(event)..];
        if begins(event) {
            (self.is_cut, self.open) = (false, Vec::new());
        }
        match self.is_cut {
            false => Cow::Borrowed(messages),
            true => messages.iter().flat_map(|message| self.completed_by(message)).collect(),
        }
    }

    /// The messages that count after this message of a run without a beginning.
    fn completed_by(&mut self, message: &Arc<Message>) -> Vec<Arc<Message>> {
        if message.has_tool_calls() {
            self.open = vec![Arc::clone(message)];
            return Vec::new();
        }
        if message.role() != Role::Tool {
            self.open.clear();
            return vec![Arc::clone(message)];
        }
        let Some(calls) = self.open.first().map(|message| message.tool_calls().count()) else {
            return Vec::new();
        };
        self.open.push(Arc::clone(message));
        if self.open.len() > calls { std::mem::take(&mut self.open) } else { Vec::new() }
    }

    /// The number of messages of the next event before the beginning.
    fn skipped(&mut self, event: &Event) -> usize {
        self.is_there |= rewrite(event).is_some();
        if self.is_there {
            return 0;
        }
        let opens = |message: &Arc<Message>| matches!(message.role(), Role::User | Role::System);
        let first = event.messages.iter().position(opens);
        self.is_there = first.is_some();
        first.unwrap_or(event.messages.len())
    }
}
