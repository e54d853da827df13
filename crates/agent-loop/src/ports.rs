//! The run's ports: the elapsed time, and unique run ids.
//!
//! Both are ports, so that a test or a replay can set them. The defaults are the only place of this crate
//! that uses the system.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Returns the time since a fixed moment. It never decreases.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use stepfold_agent_loop::Clock;
///
/// /// Time stands still.
/// struct Still;
///
/// impl Clock for Still {
///     fn now(&self) -> Duration {
///         Duration::ZERO
///     }
/// }
/// ```
pub trait Clock: Send + Sync {
    /// The time that has passed.
    fn now(&self) -> Duration;

    /// The time of day, for [deadlines](stepfold_tools::Deadline). By default that of the system.
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn time_of_day(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The clock of the tokio runtime, which tests can stop and move on.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock(tokio::time::Instant);

impl TokioClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        TokioClock(tokio::time::Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Names runs. A name must never come twice: the idempotency keys of calls begin with it.
pub trait Ids: Send + Sync {
    /// A name for a run.
    fn next(&self) -> String;

    /// A salt for the digest of an event's content, in a runner: random bytes by default, which the store makes (`None`).
    /// Salts that repeat or can be guessed are for tests: with them, erased content can be found by trying.
    fn salt(&self) -> Option<[u8; 16]> {
        None
    }
}

/// Random names, as UUIDs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomIds;

impl Ids for RandomIds {
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn next(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}

macro_rules! forward {
    ($($pointer:ident),+) => {$(
        impl<T: Clock + ?Sized> Clock for $pointer<T> {
            fn now(&self) -> Duration {
                (**self).now()
            }

            fn time_of_day(&self) -> SystemTime {
                (**self).time_of_day()
            }
        }

        impl<T: Ids + ?Sized> Ids for $pointer<T> {
            fn next(&self) -> String {
                (**self).next()
            }

            fn salt(&self) -> Option<[u8; 16]> {
                (**self).salt()
            }
        }
    )+};
}

forward!(Arc, Box);
