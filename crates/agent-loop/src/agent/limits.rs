//! The bounds of a run.

use std::time::Duration;

use serde::Serialize;
use stepfold_state_core::chat::MAX_REPLY_BYTES;
use stepfold_state_core::state::Issue;

/// Limits of a run. Each limit except [`reply_bytes`](RunLimits::reply_bytes) ends the run with its own exit,
/// never with an error.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::RunLimits;
///
/// let limits = RunLimits::default().with_steps(20).with_tokens(50_000).with_time(Duration::from_secs(120));
/// assert_eq!((limits.steps, limits.calls_per_reply), (20, 64));
/// ```
#[doc(alias("recursion_limit", "max_turns", "max_steps"))]
// Its form is what fingerprints have a digest of. A limit that is added later must be left out of it while it has its
// default, so that the runs that were stored before know their agent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RunLimits {
    /// Steps: model calls, or in a graph supersteps; 100 by default.
    pub steps: u64,
    /// Calls of one reply; 64 by default. Further calls are answered, not run.
    pub calls_per_reply: usize,
    /// Tool calls in all. Calls beyond it are answered, not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Tokens read and written, as the provider counts them. Looked at after each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The maximum duration, without pauses. When it is exceeded, the model and the tools are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Duration>,
    /// [Bytes](stepfold_state_core::chat::ReplyBuilder::bytes) of one reply; [32
    /// MiB](stepfold_state_core::chat::MAX_REPLY_BYTES) by default. Nothing beyond is read. This limit fails
    /// the run, since a truncated reply is not an answer: with a model error of kind
    /// [`ReplyTooLarge`](stepfold_state_core::chat::ModelErrorKind::ReplyTooLarge) and the partial reply.
    #[serde(skip_serializing_if = "is_max_reply_bytes")]
    pub reply_bytes: usize,
    /// The number of times in a row that the model is asked again after a reply without text and calls, where the agent
    /// has tools or an output; 3 by default. The next empty reply ends the run with
    /// [`Exit::EmptyReply`](crate::Exit::EmptyReply).
    #[serde(skip_serializing_if = "is_default_of_empty_replies")]
    pub empty_replies: u32,
}

/// The default of [`RunLimits::empty_replies`].
const EMPTY_REPLIES: u32 = 3;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_default_of_empty_replies(replies: &u32) -> bool {
    *replies == EMPTY_REPLIES
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_max_reply_bytes(bytes: &usize) -> bool {
    *bytes == MAX_REPLY_BYTES
}

impl Default for RunLimits {
    fn default() -> Self {
        RunLimits {
            steps: 100,
            calls_per_reply: 64,
            tool_calls: None,
            tokens: None,
            time: None,
            reply_bytes: MAX_REPLY_BYTES,
            empty_replies: EMPTY_REPLIES,
        }
    }
}

impl RunLimits {
    /// Sets the number of steps.
    #[must_use]
    pub const fn with_steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// Sets the number of calls of one reply.
    #[must_use]
    pub const fn with_calls_per_reply(mut self, calls: usize) -> Self {
        self.calls_per_reply = calls;
        self
    }

    /// Sets the total number of tool calls.
    #[must_use]
    pub const fn with_tool_calls(mut self, calls: u64) -> Self {
        self.tool_calls = Some(calls);
        self
    }

    /// Sets the number of tokens.
    #[must_use]
    pub const fn with_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Sets the time.
    #[must_use]
    pub const fn with_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the number of bytes of one reply.
    #[must_use]
    pub const fn with_reply_bytes(mut self, bytes: usize) -> Self {
        self.reply_bytes = bytes;
        self
    }

    /// Sets how often in a row the model is asked again after an empty reply.
    #[must_use]
    pub const fn with_empty_replies(mut self, replies: u32) -> Self {
        self.empty_replies = replies;
        self
    }

    /// The stricter of both, limit by limit.
    #[must_use]
    pub fn within(self, other: &RunLimits) -> Self {
        fn less<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        RunLimits {
            steps: self.steps.min(other.steps),
            calls_per_reply: self.calls_per_reply.min(other.calls_per_reply),
            tool_calls: less(self.tool_calls, other.tool_calls),
            tokens: less(self.tokens, other.tokens),
            time: less(self.time, other.time),
            reply_bytes: self.reply_bytes.min(other.reply_bytes),
            empty_replies: self.empty_replies.min(other.empty_replies),
        }
    }

    pub(crate) fn faults(&self) -> Vec<Issue> {
        let zero = [
            ("steps", self.steps == 0, "the model could not be called"),
            ("calls_per_reply", self.calls_per_reply == 0, "no call could run"),
            ("tool_calls", self.tool_calls == Some(0), "no call could run; remove the tools instead"),
            ("tokens", self.tokens == Some(0), "the model could not be called"),
            ("reply_bytes", self.reply_bytes == 0, "no reply could be read"),
            ("time", self.time == Some(Duration::ZERO), "nothing could run"),
        ];
        let fault = |(name, _, why)| Issue::new(format!("limits.{name}"), format!("must be positive: {why}"));
        zero.into_iter().filter(|(_, is_zero, _)| *is_zero).map(fault).collect()
    }
}

/// The handling of repeated equal calls.
///
/// Steps in a row count whose calls have the same tools and arguments, in the same order, *and* the same
/// results: a tool that is polled until something changes is not stopped while it changes.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::RepeatGuard;
///
/// // Tell the model at the third time, end the run at the sixth.
/// let guard = RepeatGuard::default().warn_at(3).stop_at(6);
/// assert_eq!((guard.warn, guard.stop), (3, 6));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepeatGuard {
    /// The number of repetitions from which the results warn the model; 4 by default.
    pub warn: u32,
    /// The number of repetitions that ends the run; 8 by default.
    pub stop: u32,
}

impl Default for RepeatGuard {
    fn default() -> Self {
        RepeatGuard { warn: 4, stop: 8 }
    }
}

impl RepeatGuard {
    /// Sets the number of repetitions of the warning.
    #[must_use]
    pub const fn warn_at(mut self, times: u32) -> Self {
        self.warn = times;
        self
    }

    /// Sets the number of repetitions that ends the run.
    #[must_use]
    pub const fn stop_at(mut self, times: u32) -> Self {
        self.stop = times;
        self
    }

    pub(crate) fn fault(self) -> Option<Issue> {
        (self.warn < 2 || self.stop < 2)
            .then(|| Issue::new("repeat_guard", "must be at least 2: a single call is not a repetition"))
    }
}
