//! The live stream of all sessions of a user: which have changed, and how each is now.
//!
//! An event is the newest of its session, not each change: who misses some has nothing to catch up with. A stream begins with
//! the sessions that were written last, so that one that connects again is as new as one that never left.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{Stream, StreamExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stepfold_agent_loop::ApprovalRequest;
use stepfold_runner::{Remedy, RunnerError, SessionChange, SessionHandle, failure};
use stepfold_session_scopes::{
    ErrorKind, EventRange, LifeId, ListSessions, Session, SessionKey, SessionStore as _, UserId,
};
use tokio::time::Instant;

use super::frame::encode;
use super::live::{KEEP_ALIVE, Opening, RETRY, bye};
use super::problem::Problem;
use super::serve::{Phase, reaches};
use super::server::App;

/// The number of sessions of each app that a stream begins with, and that are listed when another process may have changed
/// some.
const NEWEST: usize = 100;

/// How often at most they are listed.
const BETWEEN_LISTS: Duration = Duration::from_secs(1);

/// What a session does, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// A worker has it, in any process.
    Running,
    /// Its run waits for decisions.
    Waiting,
    /// Its run was interrupted, and continues when it is resumed or recovered.
    Interrupted,
    /// Its run failed, and continues when it is resumed.
    Failed,
    /// Its last run has ended, or there was none.
    Idle,
    /// Its last run cannot be restored by this agent and this version: abandon it, rewind to before it, or fork from there.
    Invalid,
    /// There is no such session any more.
    Deleted,
}

impl Status {
    /// A session with its newest event, and its status.
    pub(super) async fn of(session: &SessionHandle) -> Result<(Session, Status), RunnerError> {
        let stored = session.read(EventRange::Last(1)).await?;
        let status = match is_running(session, &stored) {
            true => Status::Running,
            false => Status::decide(session, &stored, &LastRun::of(session).await?),
        };
        Ok((stored, status))
    }

    /// The status of a session that was read with its newest event, and whose unfinished run this is.
    pub(super) fn decide(session: &SessionHandle, stored: &Session, run: &LastRun) -> Status {
        let has_failed = stored.events.last().is_some_and(|newest| failure(&newest.event).is_some());
        match run {
            _ if is_running(session, stored) => Status::Running,
            LastRun::Ended => Status::Idle,
            LastRun::Unfinished(pending) if !pending.is_empty() => Status::Waiting,
            LastRun::Unfinished(_) if has_failed => Status::Failed,
            LastRun::Unfinished(_) => Status::Interrupted,
            LastRun::Invalid(_) => Status::Invalid,
        }
    }
}

/// The last run of a session, for those who look at it: a record that cannot be restored hides neither the session nor others.
pub(super) enum LastRun {
    /// It has ended, or there was none.
    Ended,
    /// It has not ended, and waits for these decisions, if any.
    Unfinished(Vec<ApprovalRequest>),
    /// It cannot be restored, for this reason.
    Invalid(String),
}

impl LastRun {
    pub(super) async fn of(session: &SessionHandle) -> Result<Self, RunnerError> {
        match session.unfinished().await {
            Ok(None) => Ok(LastRun::Ended),
            Ok(Some(run)) => Ok(LastRun::Unfinished(run.pending())),
            // What begins a run is of its record as well.
            Err(error) if error.is_invalid_record() || matches!(error, RunnerError::Input { .. }) => {
                Ok(LastRun::Invalid(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// The requests that wait for decisions.
    pub(super) fn pending(&self) -> &[ApprovalRequest] {
        match self {
            LastRun::Unfinished(pending) => pending,
            LastRun::Ended | LastRun::Invalid(_) => &[],
        }
    }
}

fn is_running(session: &SessionHandle, stored: &Session) -> bool {
    session.running().is_some() || stored.claim.is_some()
}

/// A session that changed.
#[derive(Serialize)]
struct ChangedRow<'a> {
    app: &'a str,
    id: &'a str,
    version: u64,
    status: Status,
}

/// Opens the stream.
pub(super) async fn open(
    apps: &BTreeMap<String, Arc<App>>,
    user: &UserId,
    opening: Opening,
) -> Result<Body, Problem> {
    let mut changes = SelectAll::new();
    for app in apps.values() {
        let app = Arc::clone(app);
        // Before they are listed, so that none is missed.
        let of_app = app.runner().watch_user(user).await;
        changes.push(of_app.map(move |change| (Arc::clone(&app), change)).boxed());
    }
    let hello = encode(None, "hello", &json!({"apps": apps.keys().collect::<Vec<_>>()}));
    let apps = apps.values().cloned().collect();
    let queue = VecDeque::from([RETRY, hello]);
    let lists = Some(Instant::now());
    let stream = OfUser {
        apps,
        user: user.clone(),
        changes,
        told: HashMap::new(),
        lists,
        listed: None,
        queue,
        is_over: false,
        opening,
    };
    Ok(Body::from_stream(stream.into_stream()))
}

struct OfUser {
    apps: Vec<Arc<App>>,
    user: UserId,
    changes: SelectAll<BoxStream<'static, (Arc<App>, SessionChange)>>,
    /// The newest sessions, as they were sent.
    told: HashMap<SessionKey, Mark>,
    /// When the newest sessions are listed, and when they were listed last.
    lists: Option<Instant>,
    listed: Option<Instant>,
    queue: VecDeque<Bytes>,
    is_over: bool,
    opening: Opening,
}

/// What the status of a listed session depends on.
#[derive(PartialEq, Eq)]
struct Mark {
    life: LifeId,
    version: u64,
    is_claimed: bool,
}

impl Mark {
    fn of(session: &Session) -> Self {
        let is_claimed = session.claim.is_some();
        Mark { life: session.life.clone(), version: session.version, is_claimed }
    }
}

/// What a stream was woken by.
enum Woken {
    Stopping,
    /// The newest sessions are to be listed.
    Due,
    Changed(Arc<App>, SessionChange),
    Idle,
}

impl OfUser {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures_util::stream::unfold(self, |mut stream| async move {
            loop {
                if let Some(bytes) = stream.queue.pop_front() {
                    return Some((Ok(bytes), stream));
                }
                if stream.is_over {
                    return None;
                }
                stream.wait().await;
            }
        })
    }

    /// Waits for what comes next.
    async fn wait(&mut self) {
        let lists = self.lists;
        let due = async {
            match lists {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let woken = tokio::select! {
            biased;
            () = reaches(&mut self.opening.phase, Phase::Stopping) => Woken::Stopping,
            () = due => Woken::Due,
            Some((app, change)) = self.changes.next() => Woken::Changed(app, change),
            () = tokio::time::sleep(self.opening.keep_alive) => Woken::Idle,
        };
        match woken {
            Woken::Stopping => {
                self.is_over = true;
                self.queue.push_back(bye("shutdown"));
            }
            Woken::Due => self.list().await,
            Woken::Changed(_, SessionChange::Changed { key, version, is_running: true }) => {
                self.push(&key, version, Status::Running);
            }
            Woken::Changed(app, SessionChange::Changed { key, .. }) => self.tell(&app, &key).await,
            Woken::Changed(..) => self.list_soon(),
            Woken::Idle => self.queue.push_back(KEEP_ALIVE),
        }
    }

    fn list_soon(&mut self) {
        let now = Instant::now();
        self.lists = Some(self.listed.map_or(now, |listed| now.max(listed + BETWEEN_LISTS)));
    }

    /// Sends the newest sessions that changed since they were sent, the oldest of them first; and those that left the list.
    async fn list(&mut self) {
        (self.lists, self.listed) = (None, Some(Instant::now()));
        for app in self.apps.clone() {
            let Ok(request) = ListSessions::new(app.name(), self.user.as_str()) else { continue };
            let page = match app.runner().store().list(request.limit(NEWEST)).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "sessions for a live stream could not be listed");
                    self.list_soon();
                    continue;
                }
            };
            for session in page.sessions.iter().rev() {
                if self.told.get(&session.key) != Some(&Mark::of(session)) {
                    self.tell(&app, &session.key).await;
                }
            }
            let listed: HashSet<&SessionKey> = page.sessions.iter().map(|session| &session.key).collect();
            let is_left = |key: &&SessionKey| key.app.as_str() == app.name() && !listed.contains(key);
            let left: Vec<SessionKey> = self.told.keys().filter(is_left).cloned().collect();
            for key in left {
                self.tell(&app, &key).await;
                // It was deleted, or others were written later.
                self.told.remove(&key);
            }
        }
    }

    /// Sends the status of a session. If the store fails, it is retried.
    async fn tell(&mut self, app: &App, key: &SessionKey) {
        let found = app.runner().find_session(key.user.as_str(), key.id.as_str()).await;
        let status = match found {
            Ok(Some(session)) => Status::of(&session).await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match status {
            Ok(Some((stored, status))) => {
                self.push(key, stored.version, status);
                self.told.insert(key.clone(), Mark::of(&stored));
            }
            Ok(None) => self.forget(key),
            Err(RunnerError::Store { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.forget(key);
            }
            Err(error) => {
                tracing::warn!(%error, "a session for a live stream could not be read");
                self.told.remove(key);
                if error.remedy() == Remedy::Retry {
                    self.list_soon();
                }
            }
        }
    }

    fn forget(&mut self, key: &SessionKey) {
        self.told.remove(key);
        self.push(key, 0, Status::Deleted);
    }

    fn push(&mut self, key: &SessionKey, version: u64, status: Status) {
        let row = ChangedRow { app: key.app.as_str(), id: key.id.as_str(), version, status };
        self.queue.push_back(encode(None, "session", &row));
    }
}
