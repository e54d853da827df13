//! The runner's ports: the time, and ids that are unique within a session.

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use stepfold_agent_loop::{Agent, Ids};
use stepfold_session_scopes::{SessionSchema, Timestamp};

/// Provides the time, for the events and the claims of a session. Events are not ordered by it, and a store
/// with its own clock (PostgreSQL) uses that one to expire claims.
pub trait WallClock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// Sleeps, between heartbeats of a claim and while waiting for another worker's claim. Uses tokio's timer
    /// by default.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The agents of earlier versions, for runs that continue with the agent that they began with: see
/// [`WhenChanged::Pinned`](crate::WhenChanged::Pinned).
pub trait AgentArchive: Send + Sync {
    /// Loads the agent, with its schema, whose [fingerprint](Agent::fingerprint) has this [digest](stepfold_agent_loop::Fingerprint::digest).
    ///
    /// Returns `None` if it is unknown: the run is refused with [`PinnedAgent`](crate::RunnerErrorKind::PinnedAgent). The 16 agents that were used last are kept in
    /// memory, and are not asked for again.
    ///
    /// # Errors
    /// When the archive is out of reach, or has an agent that cannot be built, in words for its operator: a program of it is
    /// gone, for example. The run is refused with this error.
    fn load<'a>(&'a self, digest: &'a str) -> BoxFuture<'a, Result<Option<EarlierAgent>, ArchiveError>>;

    /// Keeps an agent of which a run begins, so that later versions of the program can load it. It is called before the first
    /// event of the agent in this process is stored, under every policy, and again if that has failed. Under
    /// [`Pinned`](crate::WhenChanged::Pinned) the event is then not stored.
    ///
    /// # Errors
    /// When the agent could not be kept.
    fn keep<'a>(&'a self, agent: &'a Agent) -> BoxFuture<'a, Result<(), ArchiveError>> {
        let _ = agent;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// An agent of an earlier version of a program, for runs that began with it.
#[derive(Clone, Debug)]
pub struct EarlierAgent {
    pub(crate) agent: Agent,
    pub(crate) schema: SessionSchema,
}

impl EarlierAgent {
    /// With the agent's own schema.
    pub fn new(agent: impl Into<Agent>) -> Self {
        let agent = agent.into();
        let schema = SessionSchema::new(agent.schema().clone());
        EarlierAgent { agent, schema }
    }

    /// Sets the schema with which its sessions are read, with the migrations that it had.
    #[must_use]
    pub fn with_schema(mut self, schema: SessionSchema) -> Self {
        self.schema = schema;
        self
    }

    /// The agent.
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }
}

impl<A: Into<Agent>> From<A> for EarlierAgent {
    fn from(agent: A) -> Self {
        EarlierAgent::new(agent)
    }
}

/// The error of an [archive](AgentArchive).
pub type ArchiveError = Box<dyn std::error::Error + Send + Sync>;

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }
}

/// The digits of ids, without ambiguous letters.
// NOTE: each event stores the name of its invocation twice, so it is short: 80 random bits are enough within a session.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Random ids of 16 letters and digits, that is 80 bits: unique within a session, and short, since each event
/// contains its invocation's id several times.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortIds;

impl Ids for ShortIds {
    #[expect(clippy::disallowed_methods, reason = "this is the port's own default")]
    fn next(&self) -> String {
        let bits = uuid::Uuid::new_v4().as_u128();
        // The first 48 and the last 62 bits of a UUID are random.
        let random = (bits >> 80) << 32 | (bits & 0xffff_ffff);
        (0..16).map(|place| char::from(DIGITS[(random >> (place * 5)) as usize & 31])).collect()
    }
}
