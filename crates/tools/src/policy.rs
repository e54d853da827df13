//! What a tool says about its calls: their effect on the world, retries, and who has to agree.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a call may do to the world, and so what may be done about an interrupted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing: it can run again at will.
    Pure,
    /// The same whether it runs once or several times under one idempotency key.
    Idempotent,
    /// Something that must not be repeated. An interrupted call is not run again.
    #[default]
    AtMostOnce,
}

/// How often, and after what pauses, a call that failed or timed out is tried again.
///
/// Pauses double, from the first one up to a minute. There is no jitter: the calls of one run do not need
/// it, and a run stays reproducible.
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

/// No call is tried more often than this.
const MAX_TIMES: usize = 16;
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Retry {
    /// Up to this many more attempts after the first, at most 16.
    pub fn times(times: usize) -> Self {
        Retry { times: times.min(MAX_TIMES), first_pause: Duration::from_millis(200) }
    }

    /// The pause before the second attempt; 200 ms by default.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.first_pause = pause;
        self
    }

    /// The pauses before each further attempt.
    pub fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        ExponentialBuilder::new()
            .with_factor(2.0)
            .with_min_delay(self.first_pause)
            .with_max_delay(LONGEST_PAUSE.max(self.first_pause))
            .with_max_times(self.times)
            .build()
    }
}

/// Who has to agree before a call runs. The loop asks; this crate only carries the answer's rule.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Approval {
    /// Nobody.
    #[default]
    Never,
    /// A human, for every call.
    Always,
    /// A human, once in a run for the same arguments. Never carried to another run or user.
    Once,
    /// A human, for calls whose arguments the predicate picks.
    When(Arc<ApprovalPredicate>),
}

/// Picks the calls that need approval, by their arguments.
pub type ApprovalPredicate = dyn Fn(&Map<String, Value>) -> bool + Send + Sync;

impl Approval {
    /// A human, for calls whose arguments `predicate` picks.
    pub fn when(predicate: impl Fn(&Map<String, Value>) -> bool + Send + Sync + 'static) -> Self {
        Approval::When(Arc::new(predicate))
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
