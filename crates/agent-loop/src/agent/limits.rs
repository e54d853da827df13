//! The bounds of a run.

use std::time::Duration;

use stepfold_state_core::chat::MAX_REPLY_BYTES;
use stepfold_state_core::state::Fault;

/// How much a run may take. Each limit but [`reply_bytes`](RunLimits::reply_bytes) ends the run with an exit of its
/// own, never with an error.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::RunLimits;
///
/// let limits = RunLimits::default().with_steps(20).with_tokens(50_000).with_time(Duration::from_secs(120));
/// assert_eq!((limits.steps, limits.calls_per_reply), (20, 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunLimits {
    /// Steps: model calls, or in a graph supersteps; 100 unless said.
    pub steps: u64,
    /// Calls of one reply; 64 unless said. Calls beyond it are answered, not run.
    pub calls_per_reply: usize,
    /// Tool calls in all. Calls beyond it are answered, not run.
    pub tool_calls: Option<u64>,
    /// Tokens read and written, as the provider counts them. Looked at after each step.
    pub tokens: Option<u64>,
    /// Time, pauses left out. Model and tools are stopped when it is up.
    pub time: Option<Duration>,
    /// [Bytes](stepfold_state_core::chat::ReplyBuilder::bytes) of one reply;
    /// [32 MiB](stepfold_state_core::chat::MAX_REPLY_BYTES) by default. Nothing more is read of a longer one. It is
    /// the one limit that fails the run, since a reply that was cut is no answer: with a model error of kind
    /// [`ReplyTooLarge`](stepfold_state_core::chat::ModelErrorKind::ReplyTooLarge), which has what had come.
    pub reply_bytes: usize,
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
        }
    }
}

impl RunLimits {
    /// The same with another number of steps.
    #[must_use]
    pub const fn with_steps(mut self, steps: u64) -> Self {
        self.steps = steps;
        self
    }

    /// The same with another number of calls of one reply.
    #[must_use]
    pub const fn with_calls_per_reply(mut self, calls: usize) -> Self {
        self.calls_per_reply = calls;
        self
    }

    /// The same with this number of tool calls in all.
    #[must_use]
    pub const fn with_tool_calls(mut self, calls: u64) -> Self {
        self.tool_calls = Some(calls);
        self
    }

    /// The same with this number of tokens.
    #[must_use]
    pub const fn with_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// The same with this time.
    #[must_use]
    pub const fn with_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// The same with another number of bytes of one reply.
    #[must_use]
    pub const fn with_reply_bytes(mut self, bytes: usize) -> Self {
        self.reply_bytes = bytes;
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
        }
    }

    pub(crate) fn faults(&self) -> Vec<Fault> {
        let zero = [
            ("steps", self.steps == 0, "the model could never be asked"),
            ("calls_per_reply", self.calls_per_reply == 0, "no call could ever run"),
            ("tool_calls", self.tool_calls == Some(0), "no call could ever run; leave the tools out instead"),
            ("tokens", self.tokens == Some(0), "the model could never be asked"),
            ("reply_bytes", self.reply_bytes == 0, "no reply could ever be read"),
            ("time", self.time == Some(Duration::ZERO), "nothing could ever happen"),
        ];
        let fault = |(name, _, why)| Fault::new(format!("limits.{name}"), format!("is zero: {why}"));
        zero.into_iter().filter(|(_, is_zero, _)| *is_zero).map(fault).collect()
    }
}

/// What happens when the model makes the same calls again and again.
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
    /// From this many times in a row on, the results tell the model so; 4 unless said.
    pub warn: u32,
    /// At this many times in a row the run ends; 8 unless said.
    pub stop: u32,
}

impl Default for RepeatGuard {
    fn default() -> Self {
        RepeatGuard { warn: 4, stop: 8 }
    }
}

impl RepeatGuard {
    /// The same, telling the model from this many times on.
    #[must_use]
    pub const fn warn_at(mut self, times: u32) -> Self {
        self.warn = times;
        self
    }

    /// The same, ending the run at this many times.
    #[must_use]
    pub const fn stop_at(mut self, times: u32) -> Self {
        self.stop = times;
        self
    }

    pub(crate) fn fault(self) -> Option<Fault> {
        (self.warn < 2 || self.stop < 2).then(|| {
            Fault::new("repeat_guard", "counts from 2: a call that was made once has not been repeated")
        })
    }
}
