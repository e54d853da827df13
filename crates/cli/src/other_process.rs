//! Another process that is at work in a session: who it is, and what it left when it was killed.

use std::time::Duration;

use stepfold::agent_loop::{EventKind, RunEvent};
use stepfold::prelude::*;
use stepfold::runner::{Seen, SystemClock, WallClock as _};
use stepfold::session_scopes::{
    Claim, EventRange, GetSession, InvocationId, Session, SessionError, SessionStore as _,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::context::CommandContext;

/// How often it is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Another process that holds the claim on a session.
pub(crate) struct OtherProcess {
    pub(crate) claim: Claim,
    /// The version of the session when it was looked at last.
    version: u64,
    /// The run that the process is at work on, as it was then.
    run: Option<Run>,
}

impl OtherProcess {
    /// The process that is at work in the session, if it is another one.
    pub(crate) async fn in_session(context: &CommandContext, session: &SessionHandle) -> Option<Self> {
        let read_head = read_head(context, session).await.ok()?;
        let claim = context.runner.other_worker(&read_head)?.clone();
        Some(OtherProcess { claim, version: read_head.version, run: unfinished_run(session).await })
    }

    /// When to [poll](Self::look) again.
    pub(crate) fn polls() -> Interval {
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        polls
    }

    /// Follows what the process does, so that it is known what it was doing if it is killed.
    pub(crate) async fn poll(&mut self, context: &CommandContext, session: &SessionHandle) {
        let Ok(Session { claim: Some(claim), version, .. }) = read_head(context, session).await else {
            return;
        };
        if claim.owner == self.claim.owner && version != self.version {
            (self.version, self.run) = (version, unfinished_run(session).await);
        }
    }

    /// The session as the process has left it to this invocation of another one.
    pub(crate) async fn session_left(
        &self,
        context: &CommandContext,
        session: &SessionHandle,
        invocation: &InvocationId,
    ) -> Result<Session, SessionError> {
        let get = GetSession::new(session.key().clone());
        let stored = context.runner.store().get(get.clone().without_state()).await?;
        // A run that continues keeps its own invocation: what it left does not change after that.
        let began = stored.events.iter().find(|committed| committed.event.invocation == *invocation);
        let version = began.map_or(self.version, |began| began.version - 1);
        context.runner.store().get(get.events(EventRange::None).at_version(version)).await
    }

    /// The run that the process has left unfinished, if an invocation that begins with this event resumes it.
    pub(crate) fn into_run(self, first: &Seen) -> Option<Run> {
        match first {
            Seen::Event { event: RunEvent::Committed(event), .. }
                if matches!(event.kind, EventKind::Began { .. }) =>
            {
                None
            }
            _ => self.run,
        }
    }
}

/// The last run, if it has not ended. The command that continues it reports what cannot be read.
pub(crate) async fn unfinished_run(session: &SessionHandle) -> Option<Run> {
    session.unfinished().await.ok().flatten()
}

/// The session with neither its events nor its state.
async fn read_head(context: &CommandContext, session: &SessionHandle) -> Result<Session, SessionError> {
    let get = GetSession::new(session.key().clone()).events(EventRange::None).without_state();
    context.runner.store().get(get.now(SystemClock.now())).await
}
