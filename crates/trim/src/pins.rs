//! Pins: older messages that a window of the last messages shows as well.

use std::fmt;

use stepfold_state_core::chat::{Message, Role};

/// Older messages that [`Trim::with_pins`](crate::Trim::with_pins) shows: the last user messages, and the last steps
/// with a result of one of the named tools. A step is whole: the calls, and the results of all calls of that reply.
///
/// Pinned messages begin with a user message, since models reject a conversation that begins with a call: the
/// user message that opens the oldest pinned step's turn is shown too, and counts. If it does not fit or does
/// not exist, that step is dropped.
///
/// Pinned user messages may be adjacent. That is well-formed, and hosted models accept it; some chat
/// templates of local models require a reply between any two.
///
/// # Examples
/// ```
/// use stepfold_trim::Pins;
///
/// assert_eq!(Pins::up_to(80).results_of(["run_sql"]).to_string(), "up to 80 pins: user, run_sql");
/// assert_eq!(Pins::up_to(9).results_of(["a"]).without_users().to_string(), "up to 9 pins: a");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    pub(crate) messages: usize,
    users: bool,
    tools: Vec<String>,
}

impl Pins {
    /// Pins user messages, at most `messages` of them. The first step that does not fit ends the selection,
    /// so pins are always the newest of their kind.
    pub const fn up_to(messages: usize) -> Self {
        Pins { messages, users: true, tools: Vec::new() }
    }

    /// Also pins steps in which one of these tools answered, within the same limit.
    #[must_use]
    pub fn results_of<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.tools.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Pins no user messages, except the one that the oldest pinned step needs.
    #[must_use]
    pub const fn without_users(mut self) -> Self {
        self.users = false;
        self
    }

    /// Whether the block of these messages is pinned.
    pub(crate) fn includes<'a>(&self, mut block: impl Iterator<Item = &'a Message>) -> bool {
        let is_pinned = |message: &Message| match message.role() {
            Role::User => self.users,
            Role::Tool => (message.tool_result())
                .is_some_and(|result| self.tools.iter().any(|tool| tool == result.name())),
            _ => false,
        };
        block.any(is_pinned)
    }
}

impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.users.then_some("user");
        let names: Vec<_> = users.into_iter().chain(self.tools.iter().map(String::as_str)).collect();
        match names.as_slice() {
            [] => f.write_str("no pins"),
            names => write!(f, "up to {} pins: {}", self.messages, names.join(", ")),
        }
    }
}
