//! What the runner reads of the world: what time it is. Names come from the loop's
//! [`Ids`](stepfold_agent_loop::Ids).

use std::time::SystemTime;

use stepfold_session_scopes::Timestamp;

/// Says what time it is, for the events of a session. Nothing is ordered by it.
pub trait WallClock: Send + Sync {
    /// The time.
    fn now(&self) -> Timestamp;
}

/// The clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}
