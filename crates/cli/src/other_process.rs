//! Another process that runs in the session: its claim, and the run that it leaves if it is killed.

use std::time::Duration;

use stepfold::agent_loop::{EventKind, RunEvent};
use stepfold::prelude::*;
use stepfold::runner::{InvocationEvent, SystemClock, WallClock as _};
use stepfold::session_scopes::{
    Claim, EventRange, GetSession, InvocationId, Session, SessionError, SessionStore as _,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::context::CommandContext;

/// The interval between two reads of its session.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Replaces the names of workers in a text, such as `process-17-8471-00e1-x9`, by `process 17`.
pub(crate) fn with_short_workers(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let end = word.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
        let id = word.strip_prefix("process-").and_then(|rest| Some(rest.split_once('-')?.0));
        match id.filter(|id| !id.is_empty() && id.bytes().all(|digit| digit.is_ascii_digit())) {
            Some(id) => format!("process {id}{end}"),
            None => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Another process that holds the claim on a session.
pub(crate) struct OtherProcess {
    pub(crate) claim: Claim,
    /// The version of the session at the last read.
    version: u64,
    /// The process's run, as of that version.
    run: Option<Run>,
}

impl OtherProcess {
    /// The process that holds the claim on the session, if it is another one.
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

    /// Reads the run of the process again, so that its state is known if the process is killed.
    pub(crate) async fn poll(&mut self, context: &CommandContext, session: &SessionHandle) {
        let Ok(Session { claim: Some(claim), version, .. }) = read_head(context, session).await else {
            return;
        };
        if claim.owner == self.claim.owner && version != self.version {
            (self.version, self.run) = (version, unfinished_run(session).await);
        }
    }

    /// The session as the other process left it when this invocation took over.
    pub(crate) async fn session_left(
        &self,
        context: &CommandContext,
        session: &SessionHandle,
        invocation: &InvocationId,
    ) -> Result<Session, SessionError> {
        let get = GetSession::new(session.key().clone());
        let stored = context.runner.store().get(get.clone().without_state()).await?;
        // NOTE: A resumed run keeps its invocation: then no event begins this one, and the last version that was read
        // holds.
        let began = stored.events.iter().find(|committed| committed.event.invocation == *invocation);
        let version = began.map_or(self.version, |began| began.version - 1);
        context.runner.store().get(get.events(EventRange::None).at_version(version)).await
    }

    /// The run that the process left unfinished, if the invocation with this first event resumes it.
    pub(crate) fn into_run(self, first: &InvocationEvent) -> Option<Run> {
        match first {
            InvocationEvent::Event { event: RunEvent::Committed(event), .. }
                if matches!(event.kind, EventKind::Began { .. }) =>
            {
                None
            }
            _ => self.run,
        }
    }
}

/// The last run, if it has not ended. Errors are left to the command that resumes it.
pub(crate) async fn unfinished_run(session: &SessionHandle) -> Option<Run> {
    session.unfinished().await.ok().flatten()
}

/// The session with neither its events nor its state.
async fn read_head(context: &CommandContext, session: &SessionHandle) -> Result<Session, SessionError> {
    let get = GetSession::new(session.key().clone()).events(EventRange::None).without_state();
    context.runner.store().get(get.now(SystemClock.now())).await
}

#[cfg(test)]
mod tests {
    use super::with_short_workers;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(with_short_workers(text), expected);
    }

    #[test]
    fn workers_are_named_by_their_processes() {
        let worker = "process-17-8471-00e1c0ffee00e1c0-x9Yz01";
        check(&format!("claimed by {worker} until 9; wait"), "claimed by process 17 until 9; wait");
        check(&format!("{worker}; wait"), "process 17; wait");
        check("of worker-7, process-x-1, a process", "of worker-7, process-x-1, a process");
    }
}
