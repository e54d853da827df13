//! What the runner reads of the world: what time it is, and names that no other invocation of a session has.

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use stepfold_agent_loop::Ids;
use stepfold_session_scopes::Timestamp;

/// Says what time it is, for the events and the claims of a session. Nothing is ordered by it, and a store with a clock
/// of its own (PostgreSQL) decides by that one when a claim has expired.
pub trait WallClock: Send + Sync {
    /// The time.
    fn now(&self) -> Timestamp;

    /// Waits, between two heartbeats of a claim and for the claim of another worker. On tokio's timer by default.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
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

/// The digits of names: without those that people take for others.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Random names of 16 letters and digits, which are 80 bits: enough for what has to be unique within a session, and
/// short, since each event has its invocation's name several times.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortIds;

impl Ids for ShortIds {
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn next(&self) -> String {
        let bits = uuid::Uuid::new_v4().as_u128();
        // Of the bits of a UUID the first 48 and the last 62 are random.
        let random = (bits >> 80) << 32 | (bits & 0xffff_ffff);
        (0..16).map(|place| char::from(DIGITS[(random >> (place * 5)) as usize & 31])).collect()
    }
}
