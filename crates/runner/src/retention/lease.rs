//! The lease of retention: of all processes, one makes a pass over an application at a time.
//!
//! It is the claim on a session of an application of its own, whose newest event has the place where the next pass begins.

use std::sync::Arc;

use stepfold_session_scopes::{
    AppendClaim, AppendEvent, Author, ClaimSession, CreateSession, ErrorKind, Event, EventId, EventRange,
    Expected, GetSession, InvocationId, PruneBound, PruneSession, ReleaseClaim, RenewClaim, SessionCursor,
    SessionError, SessionKey, SessionSchema, SessionStore, Timestamp, WorkerId, bounded_id,
};
use tokio::time::Instant;

use crate::core::runner_core::RunnerCore;

/// The application of the sessions whose claims are the leases of [retention](crate::Runner::retain): one for each
/// application. No other runner may have this name.
pub const RETENTION_APP: &str = "stepfold.retention";

/// The metadata of an event with the place where the next pass begins.
const CURSOR: &str = "cursor";

/// The lease of a pass.
pub(super) struct RetentionLease {
    core: Arc<RunnerCore>,
    key: SessionKey,
    token: u64,
    renewed: Instant,
    /// The place where the last pass stopped, if it did not reach the end.
    pub(super) cursor: Option<SessionCursor>,
    /// The end of the last pass, if there was one.
    pub(super) last: Option<Timestamp>,
}

impl RetentionLease {
    /// Takes the lease; `None` while another worker has it.
    pub(super) async fn take(core: &Arc<RunnerCore>) -> Result<Option<Self>, SessionError> {
        let key = SessionKey::new(RETENTION_APP, bounded_id(format!("app {}", core.app)), "pass")?;
        // NOTE: a name for each pass, since two of one worker would share a claim.
        let owner = WorkerId::new(core.ids.next())?;
        let claim = || ClaimSession::new(key.clone(), owner.clone(), core.claims.duration, core.clock.now());
        let claimed = match core.store.claim(claim()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let create = CreateSession::with_key(key.clone(), &schema(), core.clock.now());
                match core.store.create(create).await {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => core.store.claim(claim()).await,
                }
            }
            claimed => claimed,
        };
        let token = match claimed {
            Ok(claim) => claim.token,
            Err(error) if error.kind() == ErrorKind::Claimed => return Ok(None),
            Err(error) => return Err(error),
        };
        let get = GetSession::new(key.clone()).events(EventRange::Last(1)).without_state();
        let session = core.store.get(get).await?;
        let newest = session.events.last();
        let cursor = newest.and_then(|newest| newest.event.metadata.read::<String>(CURSOR));
        Ok(Some(RetentionLease {
            core: Arc::clone(core),
            key,
            token,
            renewed: Instant::now(),
            cursor: cursor.map(SessionCursor::new),
            last: newest.map(|newest| newest.event.at),
        }))
    }

    /// Renews the claim when a third of its duration has passed. An error if another worker has the lease.
    pub(super) async fn keep(&mut self) -> Result<(), SessionError> {
        let duration = self.core.claims.duration;
        if self.renewed.elapsed() < duration / 3 {
            return Ok(());
        }
        let renew = RenewClaim::new(self.key.clone(), self.token, duration, self.core.clock.now());
        self.core.store.renew(renew).await?;
        self.renewed = Instant::now();
        Ok(())
    }

    /// Gives the lease back after a pass, with the place where the next one begins.
    pub(super) async fn end(self, next: Option<&SessionCursor>) -> Result<(), SessionError> {
        let (core, name) = (&self.core, self.core.ids.next());
        let (id, invocation) = (EventId::new(format!("{name}.0"))?, InvocationId::new(name)?);
        let event = Event::new(id, invocation, Author::new("retention")?, core.clock.now());
        let event = next.into_iter().fold(event, |event, next| event.with_metadata(CURSOR, next.as_str()));
        let append = AppendEvent::new(self.key.clone(), Expected::Any, event, &schema());
        let append = append.with_claim(AppendClaim::Release { token: self.token });
        let version = core.store.append(append).await?.version;
        let prune = PruneSession::new(self.key, PruneBound::Version(version - 1));
        core.store.prune(prune).await.map(drop)
    }

    /// Gives the lease back after a pass that failed.
    pub(super) async fn release(self) {
        // It expires otherwise.
        let _ = self.core.store.release(ReleaseClaim::new(self.key, self.token)).await;
    }
}

fn schema() -> SessionSchema {
    SessionSchema::new(stepfold_state_core::state::Schema::default())
}
