//! Policies of a tool's calls: their effect, retries, and approval.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The effect of a call outside the process, which determines how an interrupted call is resumed.
#[doc(alias("idempotent", "at_most_once", "durable"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// No effect: the call can run again at any time.
    Pure,
    /// Repeatable: running several times with one idempotency key has the effect of one run.
    Idempotent,
    /// Not repeatable. An interrupted call does not run again.
    #[default]
    AtMostOnce,
}

/// The number of retries of a failed or timed-out call, and the pauses between attempts.
///
/// Pauses double, from the first one up to a minute. There is no jitter: the calls of one run do not need it,
/// and a run stays reproducible.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_tools::Retry;
///
/// let retry = Retry::times(3).after(Duration::from_millis(100));
/// let pauses: Vec<u128> = retry.pauses().map(|pause| pause.as_millis()).collect();
/// assert_eq!(pauses, [100, 200, 400]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    times: usize,
    first_pause: Duration,
}

/// The maximum number of attempts of a call.
const MAX_TIMES: usize = 16;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Retry {
    /// Retries up to this many times after the first attempt, at most 16.
    pub fn times(times: usize) -> Self {
        Retry { times: times.min(MAX_TIMES), first_pause: Duration::from_millis(200) }
    }

    /// Sets the pause before the second attempt; 200 ms by default.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The pauses before the further attempts.
    pub fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        // NOTE: A library, although doubling takes three lines: its bounds are tested.
        ExponentialBuilder::new()
            .with_factor(2.0)
            .with_min_delay(self.first_pause)
            .with_max_delay(LONGEST_PAUSE.max(self.first_pause))
            .with_max_times(self.times)
            .build()
    }
}

/// The approval rule of a call. The loop requests the approval; this crate only defines the rule.
#[doc(alias("interrupt", "human_in_the_loop", "confirmation"))]
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Approval {
    /// No approval.
    #[default]
    Never,
    /// Approval by a person, for every call.
    Always,
    /// Approval by a person, once in a run for the same arguments. It does not apply to other runs or users.
    Once,
    /// Approval by a person, for calls whose arguments match the predicate.
    When(Arc<ApprovalPredicate>),
}

/// Selects the calls that need approval, by their arguments.
pub type ApprovalPredicate = dyn Fn(&Map<String, Value>) -> bool + Send + Sync;

impl Approval {
    /// Requires approval for calls whose arguments match `predicate`.
    pub fn when(predicate: impl Fn(&Map<String, Value>) -> bool + Send + Sync + 'static) -> Self {
        Approval::When(Arc::new(predicate))
    }
}

impl Approval {
    /// The rule in one word: `never`, `always`, `once`, or `when` for a predicate. The word is part of stored fingerprints
    /// of agents, so it stays as it is.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::Approval;
    ///
    /// assert_eq!(Approval::Once.as_str(), "once");
    /// assert_eq!(Approval::when(|arguments| arguments.contains_key("euro")).as_str(), "when");
    /// ```
    pub const fn as_str(&self) -> &'static str {
        match self {
            Approval::Never => "never",
            Approval::Always => "always",
            Approval::Once => "once",
            Approval::When(_) => "when",
        }
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Approval::Never => "Never",
            Approval::Always => "Always",
            Approval::Once => "Once",
            Approval::When(_) => "When",
        })
    }
}
