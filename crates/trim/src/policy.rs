//! Policies, which select messages before a turn begins. They are data, and they compose.

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::Transcript;

use crate::approximate::ApproximateTokens;
use crate::cleared::{self, ClearedResults};
use crate::cut::{PolicyCut, SizeUnit, TrimInput};
use crate::kept::MessageRanges;
use crate::pins::Pins;
use crate::tokens::TokenCounter;
use crate::view::{TrimReason, TrimRule, View, leading_kept};

/// A trimming policy, applied when a turn begins; see the [crate](crate) for a table.
///
/// A trim is a list of policies. [`then`](Trim::then) joins two lists: each policy sees the result of the
/// previous one, and the list is repeated until no policy drops anything more. So the view satisfies *every*
/// policy, and trimming is idempotent.
///
/// Cloning is cheap; `Display` prints the policies.
///
/// # Guarantees
/// For a history that passes [`check`](Transcript::check), the view passes it too; contains the leading
/// system messages and the last user message; is a part of the log, in its order; and is shared with the log
/// if nothing is dropped. For a malformed history nothing panics and no fault is added: the view has a subset
/// of the log's faults. [Repair](Transcript::repair) it first.
///
/// # Examples
/// ```
/// use stepfold_trim::{Pins, Trim};
///
/// // The last 20 messages, and up to 80 older ones: questions, and the results of two tools; at most
/// // 30,000 tokens in total.
/// let trim = Trim::keep_last(20)
///     .with_pins(Pins::up_to(80).results_of(["generate_sql", "run_sql"]))
///     .then(Trim::cap_tokens(30_000));
/// assert_eq!(
///     trim.to_string(),
///     "keep_last(20, up to 80 pins: user, generate_sql, run_sql) then cap_tokens(30000)",
/// );
/// ```
#[doc(alias("trim_messages", "context_window", "compaction", "history_processor"))]
#[derive(Clone, Default)]
pub struct Trim(pub(crate) Arc<[TrimPolicy]>);

impl Trim {
    /// Shows everything.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::{Message, Transcript};
    ///
    /// let log = Transcript::new().with(Message::user("hello"));
    /// assert!(Trim::none().view(&log).transcript().ptr_eq(&log));
    /// ```
    pub fn none() -> Self {
        Trim::default()
    }

    /// Shows the last `messages` messages, from the start of a turn.
    ///
    /// A log of at most that many messages is shown whole. Otherwise the window is the last `messages`. If it
    /// does not open with a user message, it is extended back to the nearest earlier one, and so shows more.
    /// If there is none, it begins at the first user message inside it; without any user message, it is the
    /// last whole steps, at least one. Leading system messages are always shown and not counted.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::{Message, Transcript};
    ///
    /// let is_question = |index| index == 18 || index == 101;
    /// let message = |index| match is_question(index) {
    ///     true => Message::user("?"),
    ///     false => Message::assistant("."),
    /// };
    /// let log: Transcript = (0..120).map(message).collect();
    /// assert_eq!(Trim::keep_last(100).view(&log).kept().to_string(), "18..120");
    /// ```
    pub fn keep_last(messages: usize) -> Self {
        TrimPolicy::KeepLast { messages, over: 0, pins: None }.into()
    }

    /// Makes each [`keep_last`](Trim::keep_last) of this trim act only on more than `messages` messages, leading system
    /// messages not counted, and then show as many as before. A smaller number than it keeps changes nothing. Other
    /// policies are unchanged.
    ///
    /// So the beginning of the conversation stays the same over many turns, and a provider's prompt cache with it. The
    /// rule of the trimming page of LangGraph's ReAct agents: untouched up to 100 messages, then the last 20.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::{Message, Transcript};
    ///
    /// let trim = Trim::keep_last(20).when_over(100);
    /// let log = |messages| (0..messages).map(|_| Message::user("?")).collect::<Transcript>();
    /// assert!(trim.view(&log(100)).is_whole());
    /// assert_eq!(trim.view(&log(101)).transcript().len(), 20);
    /// ```
    #[must_use]
    pub fn when_over(mut self, messages: usize) -> Self {
        for policy in Arc::make_mut(&mut self.0) {
            if let TrimPolicy::KeepLast { over, .. } = policy {
                *over = messages;
            }
        }
        self
    }

    /// Shows results of more than `above_tokens` tokens as one line each, but those of the newest `newest_steps` steps
    /// with calls. Every message stays, and the calls with their arguments: the model knows what it has asked, and can
    /// ask again.
    ///
    /// A result that is hardly longer than its line stays, and so does one of a tool that
    /// [pins](Trim::with_pins) name. An error stays an error. Within a turn, see
    /// [`Window::clear_results`](crate::Window::clear_results).
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let page = "stall ".repeat(200);
    /// let log: Transcript = format!("\
    /// user:      what do the pages say?
    /// assistant: > c1 read(page=1)
    /// tool c1:   {page}
    /// assistant: > c2 read(page=2)
    /// tool c2:   open
    /// ").parse()?;
    /// let view = Trim::clear_results(1, 100).view(&log);
    /// assert_eq!(view.transcript().to_string(), "\
    /// user:      what do the pages say?
    /// assistant: > c1 read(page=1)
    /// tool c1:   [The result of read (c1), 1 kB, is no longer shown.]
    /// assistant: > c2 read(page=2)
    /// tool c2:   open
    /// ");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[doc(alias("clear_tool_uses", "context editing"))]
    pub fn clear_results(newest_steps: usize, above_tokens: usize) -> Self {
        TrimPolicy::ClearResults(ClearedResults::new(newest_steps, above_tokens)).into()
    }

    /// Shows the last turns that fit into `tokens`, leading system messages included; the last turn always,
    /// and whole. Add [`cap_tokens`](Trim::cap_tokens) to bound that turn too.
    ///
    /// Counts with [`ApproximateTokens`], or with the counter set by [`counted_by`](Trim::counted_by).
    /// Examines the shown turns and one more.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "user: one\nassistant: 1\nuser: two\nassistant: 2".parse()?;
    /// assert_eq!(Trim::max_tokens(15).view(&log).kept().to_string(), "2..4");
    /// assert!(Trim::max_tokens(30).view(&log).is_whole());
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn max_tokens(tokens: usize) -> Self {
        TrimPolicy::MaxTokens { tokens, counter: Arc::new(ApproximateTokens) }.into()
    }

    /// Shows at most `messages` messages: the last turns that fit, or, if the last turn alone does not fit,
    /// its user message and as many of its last steps as fit.
    ///
    /// Leading system messages and that user message are shown whatever their size; without any user message,
    /// the last step is.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "\
    /// user:      count the stalls
    /// assistant: > c1 count(area=1)   > c2 count(area=2)
    /// tool c1:   3
    /// tool c2:   4
    /// assistant: > c3 count(area=3)
    /// tool c3:   5
    /// assistant: 12
    /// ".parse()?;
    /// assert_eq!(Trim::cap_messages(5).view(&log).transcript().to_string(), "\
    /// user:      count the stalls
    /// assistant: > c3 count(area=3)
    /// tool c3:   5
    /// assistant: 12
    /// ");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn cap_messages(messages: usize) -> Self {
        TrimPolicy::CapMessages { messages }.into()
    }

    /// Shows at most `tokens` tokens; otherwise as [`cap_messages`](Trim::cap_messages).
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{Trim, token_counter};
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "user: go\nassistant: > c1 f()\ntool c1: 1\nassistant: done".parse()?;
    /// let each_ten = token_counter("ten", |_| 10);
    /// let view = Trim::cap_tokens(20).counted_by(each_ten).view(&log);
    /// assert_eq!(view.kept().to_string(), "0..1, 3..4");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn cap_tokens(tokens: usize) -> Self {
        TrimPolicy::CapTokens { tokens, counter: Arc::new(ApproximateTokens) }.into()
    }

    /// Makes each [`keep_last`](Trim::keep_last) of this trim also show the pinned messages older than its
    /// window, and each [`clear_results`](Trim::clear_results) leave results of the pinned tools. Other policies are
    /// unchanged.
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
    /// let trim = Trim::keep_last(2).with_pins(Pins::up_to(10).results_of(["run_sql"]));
    /// assert_eq!(trim.view(&log).kept().to_string(), "0..3, 4..6");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "a builder takes what it keeps")]
    pub fn with_pins(mut self, pins: Pins) -> Self {
        for policy in Arc::make_mut(&mut self.0) {
            if let TrimPolicy::KeepLast { pins: kept, .. }
            | TrimPolicy::ClearResults(ClearedResults { pins: kept, .. }) = policy
            {
                *kept = Some(pins.clone());
            }
        }
        self
    }

    /// The pins of this trim, if it has some.
    pub fn pins(&self) -> Option<&Pins> {
        self.0.iter().find_map(|policy| match policy {
            TrimPolicy::KeepLast { pins, .. } | TrimPolicy::ClearResults(ClearedResults { pins, .. }) => {
                pins.as_ref()
            }
            _ => None,
        })
    }

    /// Makes each token policy of this trim count with `counter`.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{Trim, token_counter};
    ///
    /// let quarter = token_counter("quarter", |message| message.text().len().div_ceil(4));
    /// let trim = Trim::keep_last(100).then(Trim::max_tokens(8_000)).counted_by(quarter);
    /// assert_eq!(trim.to_string(), "keep_last(100) then max_tokens(8000, by quarter)");
    /// ```
    #[must_use]
    pub fn counted_by(mut self, counter: impl TokenCounter + 'static) -> Self {
        let chosen: Arc<dyn TokenCounter> = Arc::new(counter);
        for policy in Arc::make_mut(&mut self.0) {
            if let TrimPolicy::MaxTokens { counter, .. }
            | TrimPolicy::CapTokens { counter, .. }
            | TrimPolicy::ClearResults(ClearedResults { counter, .. }) = policy
            {
                *counter = Arc::clone(&chosen);
            }
        }
        self
    }

    /// Applies this trim, then `next` to the result, and repeats until neither drops anything more. So the
    /// view satisfies both. [`Trim::none`] on either side changes nothing.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    ///
    /// let trim = Trim::keep_last(100).then(Trim::max_tokens(8_000)).then(Trim::none());
    /// assert_eq!(trim.to_string(), "keep_last(100) then max_tokens(8000)");
    /// ```
    #[must_use]
    pub fn then(self, next: Trim) -> Self {
        if self.is_none() {
            return next;
        }
        Trim(self.0.iter().chain(next.0.iter()).cloned().collect())
    }

    /// Whether this trim has no policy and so shows everything.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the view of `log`. Call it once, before a turn begins; within a turn the
    /// [`Window`](crate::Window) applies.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "system: be brief\nuser: one\nassistant: 1\nuser: two".parse()?;
    /// let view = Trim::keep_last(1).view(&log);
    /// assert_eq!(view.transcript().to_string(), "system:    be brief\nuser:      two\n");
    /// assert_eq!(log.len(), 4);
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn view(&self, log: &Transcript) -> View {
        self.narrow(&View::whole(log), log)
    }

    /// Applies this trim to an existing view of `log`, [extended](View::grown) if the log has grown. A
    /// summary in the view stays, and counts in tokens and in [`cap_messages`](Trim::cap_messages).
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "user: a\nuser: b\nuser: c\nuser: d".parse()?;
    /// let view = Trim::keep_last(3).view(&log);
    /// assert_eq!(Trim::keep_last(2).narrow(&view, &log).kept().to_string(), "2..4");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn narrow(&self, view: &View, log: &Transcript) -> View {
        let view = view.clone().grown(log);
        let (mut kept, mut cleared) = (view.kept().clone(), view.cleared().clone());
        let mut shown = cleared::shown(log, &kept, &cleared, view.reader());
        let mut reasons = Vec::new();
        // NOTE: In a circle, because idempotent policies in a row are not idempotent: pins of one may leave a window
        // that an earlier one would cut. Each round drops or clears a message, so the loop ends.
        let mut satisfied = 0;
        for policy in self.0.iter().cycle() {
            if satisfied == self.0.len() {
                break;
            }
            let conversation = match view.summary() {
                None => TrimInput::new(&shown),
                Some(summary) => TrimInput::after_summary(&shown, leading_kept(log, &kept), summary),
            };
            let Some(change) = policy.change(conversation, &shown) else {
                satisfied += 1;
                continue;
            };
            let mut reason = TrimReason {
                policy: policy.to_string().into(),
                dropped: 0,
                cleared: 0,
                why: TrimRule::OldResults,
            };
            match change {
                PolicyChange::Cut(cut) => {
                    (reason.dropped, reason.why) = (shown.len() - cut.kept.len(), cut.why);
                    kept = kept.compose(&cut.kept);
                }
                PolicyChange::Clear(places) => {
                    reason.cleared = places.len();
                    cleared = cleared.union(&kept.compose(&places));
                }
            }
            reasons.push(reason);
            shown = cleared::shown(log, &kept, &cleared, view.reader());
            // NOTE: A policy is idempotent on its own result.
            satisfied = 1;
        }
        if reasons.is_empty() {
            return view;
        }
        let cleared = cleared.within(&kept);
        view.narrowed(log, kept, cleared, reasons)
    }
}

impl fmt::Display for Trim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        for (position, policy) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { " then " };
            write!(f, "{separator}{policy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Trim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trim({self})")
    }
}

impl From<TrimPolicy> for Trim {
    fn from(policy: TrimPolicy) -> Self {
        Trim(Arc::new([policy]))
    }
}

/// One policy.
#[derive(Clone)]
pub(crate) enum TrimPolicy {
    /// The last `messages`, of more than `over`.
    KeepLast {
        messages: usize,
        over: usize,
        pins: Option<Pins>,
    },
    MaxTokens {
        tokens: usize,
        counter: Arc<dyn TokenCounter>,
    },
    CapMessages {
        messages: usize,
    },
    CapTokens {
        tokens: usize,
        counter: Arc<dyn TokenCounter>,
    },
    ClearResults(ClearedResults),
}

/// The effect of a policy on the shown messages.
enum PolicyChange {
    /// A part of it stays.
    Cut(PolicyCut),
    /// Results at these places become a line each.
    Clear(MessageRanges),
}

impl TrimPolicy {
    /// The effect of the policy on what is `shown`; `None` if it has none.
    fn change(&self, conversation: TrimInput<'_>, shown: &Transcript) -> Option<PolicyChange> {
        let cut = match self {
            TrimPolicy::ClearResults(rule) => return rule.places(shown).map(PolicyChange::Clear),
            TrimPolicy::KeepLast { messages, over, pins } => {
                conversation.keep_last(*messages, *over, pins.as_ref())
            }
            TrimPolicy::MaxTokens { tokens, counter } => {
                conversation.at_most(*tokens, SizeUnit::Tokens(counter), false)
            }
            TrimPolicy::CapMessages { messages } => conversation.at_most(*messages, SizeUnit::Messages, true),
            TrimPolicy::CapTokens { tokens, counter } => {
                conversation.at_most(*tokens, SizeUnit::Tokens(counter), true)
            }
        };
        cut.map(PolicyChange::Cut)
    }
}

impl fmt::Display for TrimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrimPolicy::KeepLast { messages, over, pins } => {
                write!(f, "keep_last({messages}")?;
                if over > messages {
                    write!(f, " when over {over}")?;
                }
                match pins {
                    Some(pins) => write!(f, ", {pins})"),
                    None => f.write_str(")"),
                }
            }
            TrimPolicy::ClearResults(rule) => write!(f, "{rule}"),
            TrimPolicy::CapMessages { messages } => write!(f, "cap_messages({messages})"),
            TrimPolicy::MaxTokens { tokens, counter } => write_budget(f, "max_tokens", *tokens, counter),
            TrimPolicy::CapTokens { tokens, counter } => write_budget(f, "cap_tokens", *tokens, counter),
        }
    }
}

fn write_budget(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    tokens: usize,
    counter: &dyn TokenCounter,
) -> fmt::Result {
    match counter.name() {
        ApproximateTokens::NAME => write!(f, "{name}({tokens})"),
        counter => write!(f, "{name}({tokens}, by {counter})"),
    }
}
