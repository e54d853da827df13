//! Sessions as lists show them: how each is and how it began. However many they are, the store is asked once, and once
//! more about those with an unfinished run.

use std::collections::HashMap;

use stepfold_runner::{RunnerError, SessionHandle};
use stepfold_session_scopes::{CommittedEvent, OutlineSessions, Session, SessionId, SessionOutline, UserId};

use super::session_status::{LastRun, Status, is_running};
use crate::http::app::App;

/// The newest commits of a session in which a run is unfinished: most runs have begun among them.
const OF_RUN: usize = 16;

/// A session with its newest commits.
pub(in crate::http) struct Overview {
    pub(in crate::http) session: SessionHandle,
    pub(in crate::http) stored: Session,
    /// The commits from its beginning.
    pub(in crate::http) first: Vec<CommittedEvent>,
    pub(in crate::http) forks: Option<usize>,
    pub(in crate::http) run: LastRun,
}

impl Overview {
    pub(in crate::http) fn status(&self) -> Status {
        Status::decide(&self.session, &self.stored, &self.run)
    }
}

/// The sessions whose last run is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RunsOf {
    All,
    /// Not those that are running: their status is known without it.
    Stopped,
}

/// How much is read of sessions.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct OverviewDepth {
    /// The commits from the beginning of each.
    pub(in crate::http) first: usize,
    /// Limits the memory of the commits that are read at once.
    pub(in crate::http) bytes: u64,
    pub(in crate::http) runs: RunsOf,
}

/// Sessions of a user; `None` for one that is not there, or whose commits do not fit.
pub(in crate::http) async fn overviews(
    app: &App,
    user: &UserId,
    ids: Vec<SessionId>,
    depth: OverviewDepth,
) -> Result<Vec<Option<Overview>>, RunnerError> {
    let Some(id) = ids.first() else { return Ok(Vec::new()) };
    let key = app.runner().key(user.as_str(), id.as_str())?;
    let outlines = |ids| OutlineSessions::new(key.app.clone(), user.clone(), ids).max_bytes(depth.bytes);
    let found = app.runner().outlines(outlines(ids).first(depth.first)).await?;
    let found: Vec<Option<OutlinedSession>> = found
        .into_iter()
        .map(|outline| outline.map(|outline| OutlinedSession::of(outline, depth.runs)).transpose())
        .collect::<Result<_, _>>()?;
    let open: Vec<SessionId> = found.iter().flatten().filter_map(OutlinedSession::open).collect();
    let longer = app.runner().outlines(outlines(open).newest(OF_RUN)).await?;
    let longer = longer.into_iter().flatten().map(|(_, outline)| outline.session);
    let mut longer: HashMap<SessionId, Session> =
        longer.map(|session| (session.key.id.clone(), session)).collect();
    let mut overviews = Vec::with_capacity(found.len());
    for outlined in found {
        overviews.push(match outlined {
            Some(found) => found.overview(&mut longer).await?,
            None => None,
        });
    }
    Ok(overviews)
}

/// A session of which the newest commit is read, and its last run if that one tells it.
struct OutlinedSession {
    session: SessionHandle,
    outline: SessionOutline,
    run: Option<LastRun>,
}

impl OutlinedSession {
    fn of((session, outline): (SessionHandle, SessionOutline), runs: RunsOf) -> Result<Self, RunnerError> {
        let run = match runs {
            RunsOf::Stopped if is_running(&session, &outline.session) => Some(LastRun::Ended),
            _ => LastRun::within(&session, &outline.session)?,
        };
        Ok(OutlinedSession { session, outline, run })
    }

    /// Its id, if more commits are needed.
    fn open(&self) -> Option<SessionId> {
        self.run.is_none().then(|| self.session.key().id.clone())
    }

    /// With its last run: from more of its commits, or else read by itself.
    async fn overview(
        self,
        longer: &mut HashMap<SessionId, Session>,
    ) -> Result<Option<Overview>, RunnerError> {
        let OutlinedSession { session, outline, mut run } = self;
        let SessionOutline { session: mut stored, first, forks, .. } = outline;
        if run.is_none()
            && let Some(longer) = longer.remove(&session.key().id)
        {
            run = LastRun::within(&session, &longer)?;
            stored = longer;
        }
        let run = match run {
            Some(run) => run,
            None => match LastRun::of(&session).await {
                // It was deleted meanwhile.
                Err(error) if error.is_session_not_found() => return Ok(None),
                run => run?,
            },
        };
        Ok(Some(Overview { session, stored, first, forks, run }))
    }
}
