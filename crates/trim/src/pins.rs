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
    pub(crate) limit: PinLimit,
    users: bool,
    tools: Vec<String>,
}

/// A limit of pins, in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinLimit {
    /// Each message that is shown.
    Shown(usize),
    /// User messages and results of the named tools.
    Pinned(usize),
}

impl PinLimit {
    pub(crate) const fn is_left(self) -> bool {
        let (PinLimit::Shown(room) | PinLimit::Pinned(room)) = self;
        room > 0
    }

    /// The room after a block of so many messages, of which so many are pinned; `None` if it does not fit.
    pub(crate) fn after(self, messages: usize, pinned: usize) -> Option<Self> {
        match self {
            PinLimit::Shown(room) => room.checked_sub(messages).map(PinLimit::Shown),
            // NOTE: A step is whole: the one with the last counted result is shown with its other results.
            PinLimit::Pinned(room) => Some(PinLimit::Pinned(room.saturating_sub(pinned))),
        }
    }

    /// Whether there is room for the user message before the oldest block.
    pub(crate) const fn has_opening(self) -> bool {
        match self {
            PinLimit::Shown(room) => room > 0,
            PinLimit::Pinned(_) => true,
        }
    }

    /// The room once a block of so many messages is removed.
    pub(crate) const fn without(self, messages: usize) -> Self {
        match self {
            PinLimit::Shown(room) => PinLimit::Shown(room + messages),
            PinLimit::Pinned(room) => PinLimit::Pinned(room),
        }
    }
}

impl Pins {
    /// Pins user messages, at most `messages` of them. The first step that does not fit ends the selection,
    /// so pins are always the newest of their kind.
    pub const fn up_to(messages: usize) -> Self {
        Pins { limit: PinLimit::Shown(messages), users: true, tools: Vec::new() }
    }

    /// Pins the last `messages` user messages and results of the named tools, as `smart_trim_for_sql_workflow` counts
    /// them (the trimming page of LangGraph's ReAct agents). The rest of their steps, and the user message that opens the
    /// oldest turn, come on top, so more messages are shown.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{Pins, Trim};
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "\
    /// user:      which area has most stalls?
    /// assistant: > c1 run_sql(q=\"...\")
    /// tool c1:   3
    /// assistant: area 3
    /// user:      thanks
    /// assistant: you are welcome
    /// ".parse()?;
    /// let kept = |pins: Pins| Trim::keep_last(2).with_pins(pins.results_of(["run_sql"])).view(&log).kept().to_string();
    /// assert_eq!(kept(Pins::messages(2)), "0..3, 4..6");
    /// assert_eq!(kept(Pins::up_to(2)), "4..6"); // the call counts as well
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub const fn messages(messages: usize) -> Self {
        Pins { limit: PinLimit::Pinned(messages), users: true, tools: Vec::new() }
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

    /// The number of pinned messages among these.
    pub(crate) fn pinned<'a>(&self, block: impl Iterator<Item = &'a Message>) -> usize {
        let is_pinned = |message: &&Message| match message.role() {
            Role::User => self.users,
            Role::Tool => message.tool_result().is_some_and(|result| self.names(result.name())),
            _ => false,
        };
        block.filter(is_pinned).count()
    }

    /// Whether the results of a tool are pinned.
    pub(crate) fn names(&self, tool: &str) -> bool {
        self.tools.iter().any(|name| name == tool)
    }
}

impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.users.then_some("user");
        let names: Vec<_> = users.into_iter().chain(self.tools.iter().map(String::as_str)).collect();
        match names.as_slice() {
            [] => f.write_str("no pins"),
            names => match self.limit {
                PinLimit::Shown(messages) => write!(f, "up to {messages} pins: {}", names.join(", ")),
                PinLimit::Pinned(messages) => write!(f, "{messages} pinned messages: {}", names.join(", ")),
            },
        }
    }
}
