//! The messages of a conversation that a model is shown, and why. The conversation itself is unchanged.

use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::{Message, Role, Transcript};

use crate::cleared;
use crate::kept::MessageRanges;

/// The part of a log that is sent to a model.
///
/// [`transcript`](View::transcript) goes into the request. [`kept`](View::kept) has the indexes of its
/// messages in the log, and [`cleared`](View::cleared) those of results that are shown as one line. They are all that has
/// to be stored to restore the view with [`View::of`]. If nothing is dropped or cleared, the transcript is the log's own,
/// shared ([`ptr_eq`](Transcript::ptr_eq)).
///
/// # Examples
/// ```
/// use stepfold_trim::{Trim, View};
/// use stepfold_state_core::chat::Transcript;
///
/// let log: Transcript = "\
/// system:    be brief
/// user:      one
/// assistant: 1
/// user:      two
/// assistant: 2
/// ".parse()?;
/// let view = Trim::keep_last(2).view(&log);
/// assert_eq!(view.transcript().to_string(), "\
/// system:    be brief
/// user:      two
/// assistant: 2
/// ");
/// assert_eq!(view.dropped(), 2);
/// assert_eq!(
///     view.to_string(),
///     "3 of 5 messages (0..1, 3..5); keep_last(2) left out 2: the window opens with a user message",
/// );
/// assert_eq!(View::of(&log, view.kept().clone()).transcript(), view.transcript());
/// # Ok::<(), stepfold_state_core::chat::NotationError>(())
/// ```
#[derive(Clone, Debug)]
pub struct View {
    transcript: Transcript,
    kept: MessageRanges,
    /// The kept messages that are results, shown as one line each.
    cleared: MessageRanges,
    /// The length of the log when it was last examined.
    log_length: usize,
    /// The tool that reads cleared results.
    reader: Option<Arc<str>>,
    /// The summary of dropped messages, after the leading system messages.
    summary: Option<Arc<Message>>,
    reasons: Vec<TrimReason>,
}

impl View {
    /// The whole log, shared.
    pub fn whole(log: &Transcript) -> Self {
        View::assemble(log, MessageRanges::first(log.len()), None, Vec::new())
    }

    /// The messages of `log` that an earlier view kept, as far as they exist. It has no
    /// [reasons](View::reasons): those are not stored.
    pub fn of(log: &Transcript, kept: MessageRanges) -> Self {
        View::assemble(log, kept, None, Vec::new())
    }

    /// The messages of `log` in `kept`, with the summary of those that it replaces, and the reasons why
    /// others are dropped. For a host that stored these parts of a view.
    pub fn assemble(
        log: &Transcript,
        kept: MessageRanges,
        summary: Option<Arc<Message>>,
        reasons: Vec<TrimReason>,
    ) -> Self {
        let reaches_past_log = kept.ranges().last().is_some_and(|last| last.end > log.len());
        let kept = if reaches_past_log { kept.cut_to(log.len()) } else { kept };
        View::showing(log, kept, MessageRanges::default(), None, summary, reasons)
    }

    /// The same view with the results at these indexes of `log` as one line each, as far as they are
    /// [kept](View::kept); other results are shown in full.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{Trim, View};
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let text = "stall ".repeat(100);
    /// let log: Transcript = format!("user: go\nassistant: > c1 f()\ntool c1: {text}\nassistant: done").parse()?;
    /// let view = Trim::clear_results(0, 50).view(&log);
    /// assert_eq!(view.cleared().to_string(), "2..3");
    /// let restored = View::of(&log, view.kept().clone()).with_cleared(&log, view.cleared());
    /// assert_eq!(restored.transcript(), view.transcript());
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[must_use]
    pub fn with_cleared(self, log: &Transcript, cleared: &MessageRanges) -> Self {
        if *cleared == self.cleared {
            return self;
        }
        let cleared = cleared.within(&self.kept);
        View::showing(log, self.kept, cleared, self.reader, self.summary, self.reasons)
    }

    /// The same view, in which the line of a cleared result names the tool that reads it, by the id of its call:
    /// `recall_read`, for an agent that has it.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let text = "stall ".repeat(100);
    /// let log: Transcript = format!("user: go\nassistant: > c1 f()\ntool c1: {text}\nassistant: done").parse()?;
    /// let view = Trim::clear_results(0, 50).view(&log).with_reader(&log, "recall_read");
    /// assert_eq!(
    ///     view.transcript().get(2).unwrap().tool_result().unwrap().text(),
    ///     r#"[The result of f, 599 bytes, is no longer shown: recall_read(call_id="c1") reads it.]"#,
    /// );
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[must_use]
    pub fn with_reader(mut self, log: &Transcript, tool: impl Into<Arc<str>>) -> Self {
        let reader = Some(tool.into());
        if self.cleared.is_empty() {
            self.reader = reader;
            return self;
        }
        View::showing(log, self.kept, self.cleared, reader, self.summary, self.reasons)
    }

    /// The tool that reads cleared results, if their lines name one.
    pub fn reader(&self) -> Option<&str> {
        self.reader.as_deref()
    }

    fn showing(
        log: &Transcript,
        kept: MessageRanges,
        cleared: MessageRanges,
        reader: Option<Arc<str>>,
        summary: Option<Arc<Message>>,
        reasons: Vec<TrimReason>,
    ) -> Self {
        let shown = cleared::shown(log, &kept, &cleared, reader.as_deref());
        let transcript = match &summary {
            None => shown,
            Some(summary) => {
                let lead = leading_kept(log, &kept);
                let (before, after) = (shown.iter().take(lead), shown.iter_from(lead));
                before.chain([summary]).chain(after).cloned().collect()
            }
        };
        View { transcript, kept, cleared, log_length: log.len(), reader, summary, reasons }
    }

    /// The messages that are sent to the model.
    pub const fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// The messages that are sent to the model.
    pub fn into_transcript(self) -> Transcript {
        self.transcript
    }

    /// The indexes of the messages in the log. A summary is not among them.
    pub const fn kept(&self) -> &MessageRanges {
        &self.kept
    }

    /// The indexes in the log of results that are shown as one line.
    pub const fn cleared(&self) -> &MessageRanges {
        &self.cleared
    }

    /// The indexes of the messages that are shown as they are.
    pub fn shown_in_full(&self) -> MessageRanges {
        self.kept.without(&self.cleared)
    }

    /// The number of dropped messages.
    pub fn dropped(&self) -> usize {
        self.log_length - self.kept.len()
    }

    /// Whether nothing is dropped or cleared.
    pub fn is_whole(&self) -> bool {
        self.kept.is_first(self.log_length) && self.cleared.is_empty()
    }

    /// The message of the [`Summary`](crate::Summary), if the view has one.
    pub const fn summary(&self) -> Option<&Arc<Message>> {
        self.summary.as_ref()
    }

    /// The policies that dropped something, and their rules, in order.
    pub fn reasons(&self) -> &[TrimReason] {
        &self.reasons
    }

    /// Extends the view by the log's new messages: the transcript keeps its prefix, byte for byte. O(new
    /// messages).
    ///
    /// If the log is shorter than before, it is a different log: the view then shows the kept messages that
    /// still exist.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::Trim;
    /// use stepfold_state_core::chat::{Message, Transcript};
    ///
    /// let mut log: Transcript = "user: one\nassistant: 1\nuser: two".parse()?;
    /// let view = Trim::keep_last(1).view(&log);
    /// log.push(Message::assistant("2"));
    /// assert_eq!(view.grown(&log).transcript().to_string(), "user:      two\nassistant: 2\n");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[must_use]
    pub fn grown(mut self, log: &Transcript) -> Self {
        self.grow(log);
        self
    }

    /// Extends the view in place; see [`grown`](View::grown).
    pub fn grow(&mut self, log: &Transcript) {
        if log.len() < self.log_length {
            let (kept, cleared) = (std::mem::take(&mut self.kept), std::mem::take(&mut self.cleared));
            let reasons = std::mem::take(&mut self.reasons);
            let cleared = cleared.cut_to(log.len());
            *self = View::showing(
                log,
                kept.cut_to(log.len()),
                cleared,
                self.reader.take(),
                self.summary.take(),
                reasons,
            );
            return;
        }
        // NOTE: Shares the log, so that nothing is copied.
        if self.is_whole() && self.summary.is_none() {
            self.transcript = log.clone();
        } else {
            self.transcript.extend(log.iter_from(self.log_length).cloned());
        }
        self.kept.push(self.log_length..log.len());
        self.log_length = log.len();
    }

    /// The length of the log when it was last examined.
    pub(crate) const fn log_length(&self) -> usize {
        self.log_length
    }

    /// A smaller view: the messages of the log in `kept`, results in `cleared` as a line, with additional reasons.
    pub(crate) fn narrowed(
        &self,
        log: &Transcript,
        kept: MessageRanges,
        cleared: MessageRanges,
        more: Vec<TrimReason>,
    ) -> Self {
        let mut reasons = self.reasons.clone();
        for reason in more {
            match reasons.last_mut() {
                // NOTE: A long turn shrinks repeatedly for one reason.
                Some(last) if last.why == reason.why && last.policy == reason.policy => {
                    last.dropped += reason.dropped;
                    last.cleared += reason.cleared;
                }
                _ => reasons.push(reason),
            }
        }
        View::showing(log, kept, cleared, self.reader.clone(), self.summary.clone(), reasons)
    }
}

/// The number of leading system messages.
pub(crate) fn leading_systems(transcript: &Transcript) -> usize {
    transcript.iter().take_while(|message| message.role() == Role::System).count()
}

/// The number of kept leading system messages.
pub(crate) fn leading_kept(log: &Transcript, kept: &MessageRanges) -> usize {
    let lead = leading_systems(log);
    kept.indexes().take_while(|index| *index < lead).count()
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} messages ({})", self.kept.len(), self.log_length, self.kept)?;
        if self.summary.is_some() {
            f.write_str(" and a summary")?;
        }
        match self.cleared.len() {
            0 => {}
            1 => f.write_str(", 1 result cleared")?,
            results => write!(f, ", {results} results cleared")?,
        }
        self.reasons.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

/// The messages that one policy dropped, by number, and its rule.
///
/// # Examples
/// ```
/// use stepfold_trim::{Trim, TrimRule};
/// use stepfold_state_core::chat::Transcript;
///
/// let log: Transcript = "user: one\nassistant: 1\nuser: two\nassistant: 2".parse()?;
/// let view = Trim::keep_last(1).view(&log);
/// let [reason] = view.reasons() else { panic!("one policy, one reason") };
/// assert_eq!((reason.dropped, reason.why), (2, TrimRule::BackToUser));
/// assert_eq!(&*reason.policy, "keep_last(1)");
/// # Ok::<(), stepfold_state_core::chat::NotationError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimReason {
    /// The policy, in its printed form.
    pub policy: Arc<str>,
    /// The number of messages it dropped.
    pub dropped: usize,
    /// The number of results it cleared: they are shown as one line each.
    pub cleared: usize,
    /// The rule that applied.
    pub why: TrimRule,
}

impl fmt::Display for TrimReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cleared {
            0 => write!(f, "{} left out {}: {}", self.policy, self.dropped, self.why),
            cleared => write!(f, "{} cleared {cleared}: {}", self.policy, self.why),
        }
    }
}

/// The rule by which a view was trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrimRule {
    /// The last n messages open with a user message.
    OpensWithUser,
    /// The last n messages do not; the window is extended back to the user message that opens the turn.
    BackToUser,
    /// No user message precedes the last n messages; the window begins at the first one among them.
    ForwardToUser,
    /// There is no user message; the window is the last whole steps.
    WholeSteps,
    /// As many whole turns as fit.
    WholeTurns,
    /// The last turn alone does not fit; it is shown whole.
    LastTurn,
    /// The last turn alone does not fit; it is cut to its user message and its last steps.
    InsideTurn,
    /// The model's context window would have overflowed within a turn.
    Overflow,
    /// Large results of older steps are shown as one line each.
    OldResults,
}

impl fmt::Display for TrimRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrimRule::OpensWithUser => "the window opens with a user message",
            TrimRule::BackToUser => "the window is extended back to the user message that opens its turn",
            TrimRule::ForwardToUser => {
                "no user message precedes the window, so it begins at the first one in it"
            }
            TrimRule::WholeSteps => "without a user message, the window is the last whole steps",
            TrimRule::WholeTurns => "the last turns that fit are shown",
            TrimRule::LastTurn => "the last turn does not fit and is shown whole",
            TrimRule::InsideTurn => {
                "the last turn does not fit, so its user message and its last steps are shown"
            }
            TrimRule::Overflow => "the model's context window would have overflowed within the turn",
            TrimRule::OldResults => "large results of older steps are shown as one line each",
        })
    }
}
