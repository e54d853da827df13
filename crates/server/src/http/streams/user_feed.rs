//! The live stream of all sessions of a user: which have changed, and how each is now.
//!
//! An event has the newest status of its session, not each change: a client that misses some has nothing to catch up with.
//! A stream begins with the sessions that were written last, so that one that connects again is as new as one that never
//! left.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use serde_json::json;
use stepfold_runner::{Remedy, SessionChange};
use stepfold_session_scopes::{LifeId, ListSessions, Session, SessionKey, SessionStore as _, UserId};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::permit::StreamPermit;
use super::sse::{KEEP_ALIVE, RETRY, bye, encode};
use crate::http::app::App;
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::SMALL_BYTES;
use crate::http::phase::{ServerPhase, reaches};
use crate::http::rows::overview::{OverviewDepth, RunsOf, overviews};
use crate::http::rows::session_status::Status;

/// The number of sessions of each app that a stream begins with, and that are listed when another process may have changed
/// some.
const NEWEST: usize = 100;

/// The shortest time between two lists.
const BETWEEN_LISTS: Duration = Duration::from_secs(1);

/// A session that changed.
#[derive(Serialize)]
struct ChangedRow<'a> {
    app: &'a str,
    id: &'a str,
    version: u64,
    status: Status,
}

/// The feeds of users, for all their streams: what changes is looked up once, however many streams are told of it.
#[derive(Default)]
pub(in crate::http) struct UserFeeds(Mutex<HashMap<UserId, Arc<UserFeed>>>);

/// The events for all streams of a user.
struct UserFeed {
    state: Mutex<FeedState>,
    frames: broadcast::Sender<Bytes>,
    /// Whether the sessions were listed once.
    is_listed: watch::Sender<bool>,
}

#[derive(Default)]
struct FeedState {
    /// The newest event of each session that a stream begins with, by its place in the order of events.
    newest: BTreeMap<u64, (SessionKey, Bytes)>,
    places: HashMap<SessionKey, u64>,
    count: u64,
}

/// The number of events that are kept for a stream that does not read; one that misses some begins again.
const MAX_EVENTS: usize = 256;

impl UserFeeds {
    /// The feed of a user. The first of its streams starts it, and it ends after the last one.
    async fn reader_of(self: &Arc<Self>, apps: &BTreeMap<String, Arc<App>>, user: &UserId) -> FeedReader {
        let (feed, reader, is_new) = {
            let mut feeds = self.lock();
            let is_new = !feeds.contains_key(user);
            let feed = Arc::clone(feeds.entry(user.clone()).or_insert_with(|| Arc::new(UserFeed::new())));
            // Under the lock, so that it does not end before it has its reader.
            let reader = feed.frames.subscribe();
            (feed, reader, is_new)
        };
        if is_new {
            let source = FeedSource::begin(apps, user, Arc::clone(&feed)).await;
            tokio::spawn(source.follow(Arc::clone(self)));
        }
        let mut is_listed = feed.is_listed.subscribe();
        // A feed that has ended lists no sessions.
        let _ = is_listed.wait_for(|is_listed| *is_listed).await;
        FeedReader { feed, frames: reader }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<UserId, Arc<UserFeed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the feed of a user, if it has no readers.
    fn end_if_unread(&self, user: &UserId, feed: &UserFeed) -> bool {
        let mut feeds = self.lock();
        let is_over = feed.frames.receiver_count() == 0;
        if is_over {
            feeds.remove(user);
        }
        is_over
    }
}

impl UserFeed {
    fn new() -> Self {
        let (frames, is_listed) = (broadcast::Sender::new(MAX_EVENTS), watch::Sender::new(false));
        UserFeed { state: Mutex::default(), frames, is_listed }
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, key: &SessionKey, bytes: Bytes) {
        let mut state = self.lock();
        state.remove(key);
        state.count += 1;
        let place = state.count;
        state.places.insert(key.clone(), place);
        state.newest.insert(place, (key.clone(), bytes.clone()));
        // It fails without readers, which get the newest event when they begin.
        let _ = self.frames.send(bytes);
    }

    fn remove(&self, key: &SessionKey) {
        self.lock().remove(key);
    }
}

impl FeedState {
    fn remove(&mut self, key: &SessionKey) {
        if let Some(place) = self.places.remove(key) {
            self.newest.remove(&place);
        }
    }
}

/// A reader of a feed.
struct FeedReader {
    feed: Arc<UserFeed>,
    frames: broadcast::Receiver<Bytes>,
}

impl FeedReader {
    /// The newest event of each session; those after them are next.
    fn begin(&mut self) -> Vec<Bytes> {
        let state = self.feed.lock();
        self.frames = self.feed.frames.subscribe();
        state.newest.values().map(|(_, bytes)| bytes.clone()).collect()
    }

    /// The next events; `None` if the feed has ended.
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        match self.frames.recv().await {
            Ok(bytes) => Some(vec![bytes]),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(self.begin()),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Opens the stream.
pub(in crate::http) async fn open(
    feeds: &Arc<UserFeeds>,
    apps: &BTreeMap<String, Arc<App>>,
    user: &UserId,
    permit: StreamPermit,
) -> Result<Body, Problem> {
    let mut reader = feeds.reader_of(apps, user).await;
    let hello = encode(None, "hello", &json!({"apps": apps.keys().collect::<Vec<_>>()}));
    let mut queue = VecDeque::from([RETRY, hello]);
    queue.extend(reader.begin());
    Ok(Body::from_stream(UserStream { reader, queue, is_over: false, permit }.into_stream()))
}

/// A stream.
struct UserStream {
    reader: FeedReader,
    queue: VecDeque<Bytes>,
    is_over: bool,
    permit: StreamPermit,
}

impl UserStream {
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
        let next = tokio::select! {
            biased;
            () = reaches(&mut self.permit.phase, ServerPhase::Stopping) => None,
            next = self.reader.next() => next,
            () = tokio::time::sleep(self.permit.keep_alive) => Some(vec![KEEP_ALIVE]),
        };
        if let Some(next) = next {
            self.queue.extend(next);
        } else {
            self.is_over = true;
            self.queue.push_back(bye("shutdown"));
        }
    }
}

/// Looks up the changes for a feed.
struct FeedSource {
    feed: Arc<UserFeed>,
    apps: Vec<Arc<App>>,
    user: UserId,
    changes: SelectAll<BoxStream<'static, (Arc<App>, SessionChange)>>,
    /// The newest sessions, as they were sent.
    sent: HashMap<SessionKey, ListedState>,
    /// When the newest sessions are listed, and when they were listed last.
    next_list: Option<Instant>,
    last_list: Option<Instant>,
}

/// The facts of a listed session that its status depends on.
#[derive(PartialEq, Eq)]
struct ListedState {
    life: LifeId,
    version: u64,
    is_claimed: bool,
}

impl ListedState {
    fn of(session: &Session) -> Self {
        let is_claimed = session.claim.is_some();
        ListedState { life: session.life.clone(), version: session.version, is_claimed }
    }
}

impl FeedSource {
    async fn begin(apps: &BTreeMap<String, Arc<App>>, user: &UserId, feed: Arc<UserFeed>) -> Self {
        let mut changes = SelectAll::new();
        for app in apps.values() {
            let app = Arc::clone(app);
            // Before they are listed, so that none is missed.
            let of_app = app.runner().watch(user).await;
            changes.push(of_app.map(move |change| (Arc::clone(&app), change)).boxed());
        }
        let apps = apps.values().cloned().collect();
        let (sent, next_list, user) = (HashMap::new(), Some(Instant::now()), user.clone());
        FeedSource { feed, apps, user, changes, sent, next_list, last_list: None }
    }

    /// Follows what changes, until no stream reads it any more.
    async fn follow(mut self, feeds: Arc<UserFeeds>) {
        loop {
            let next_list = self.next_list;
            let due = async {
                match next_list {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let feed = Arc::clone(&self.feed);
            tokio::select! {
                biased;
                () = feed.frames.closed() => {
                    if feeds.end_if_unread(&self.user, &self.feed) {
                        return;
                    }
                }
                () = due => {
                    self.list_newest().await;
                    self.feed.is_listed.send_replace(true);
                }
                Some((app, change)) = self.changes.next() => self.apply_change(&app, change).await,
            }
        }
    }

    async fn apply_change(&mut self, app: &App, change: SessionChange) {
        match change {
            // NOTE: A running session needs no read of the store: its status cannot be another one.
            SessionChange::Changed { key, version, is_running: true } => {
                self.push(&key, version, Status::Running);
            }
            SessionChange::Changed { key, .. } => self.send_statuses(app, vec![key]).await,
            _ => self.schedule_list(),
        }
    }

    fn schedule_list(&mut self) {
        let now = Instant::now();
        self.next_list = Some(self.last_list.map_or(now, |listed| now.max(listed + BETWEEN_LISTS)));
    }

    /// Sends the newest sessions that changed since they were sent, the oldest of them first; and those that left the list.
    async fn list_newest(&mut self) {
        (self.next_list, self.last_list) = (None, Some(Instant::now()));
        for app in self.apps.clone() {
            let Ok(request) = ListSessions::new(app.name(), self.user.as_str()) else { continue };
            let page = match app.runner().store().list(request.limit(NEWEST)).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "sessions for a live stream could not be listed");
                    self.schedule_list();
                    continue;
                }
            };
            let is_changed =
                |session: &&Session| self.sent.get(&session.key) != Some(&ListedState::of(session));
            let changed: Vec<SessionKey> =
                page.sessions.iter().rev().filter(is_changed).map(|session| session.key.clone()).collect();
            self.send_statuses(&app, changed).await;
            let listed: HashSet<&SessionKey> = page.sessions.iter().map(|session| &session.key).collect();
            let is_left = |key: &&SessionKey| key.app.as_str() == app.name() && !listed.contains(key);
            let left: Vec<SessionKey> = self.sent.keys().filter(is_left).cloned().collect();
            self.send_statuses(&app, left.clone()).await;
            for key in left {
                // It was deleted, or others were written later.
                self.sent.remove(&key);
                self.feed.remove(&key);
            }
        }
    }

    /// Sends the status of sessions, in this order: read at once, or by themselves if their commits are large.
    async fn send_statuses(&mut self, app: &App, keys: Vec<SessionKey>) {
        let ids = keys.iter().map(|key| key.id.clone()).collect();
        let depth = OverviewDepth { first: 0, bytes: SMALL_BYTES, runs: RunsOf::Stopped };
        // NOTE: A session that cannot be read fails all: each is read by itself then, and the other ones are sent.
        let found = overviews(app, &self.user, ids, depth).await.unwrap_or_default();
        let mut found = found.into_iter();
        for key in keys {
            match found.next().flatten() {
                Some(overview) => self.send_stored(&key, &overview.stored, overview.status()),
                None => self.send_status(app, &key).await,
            }
        }
    }

    fn send_stored(&mut self, key: &SessionKey, stored: &Session, status: Status) {
        self.push(key, stored.version, status);
        self.sent.insert(key.clone(), ListedState::of(stored));
    }

    /// Sends the status of a session. If the store fails, it is retried.
    async fn send_status(&mut self, app: &App, key: &SessionKey) {
        let found = app.runner().find_session(key.user.as_str(), key.id.as_str()).await;
        let status = match found {
            Ok(Some(session)) => Status::of(&session).await.map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match status {
            Ok(Some((stored, status))) => self.send_stored(key, &stored, status),
            Ok(None) => self.send_deleted(key),
            // NOTE: It was deleted between the two reads.
            Err(error) if error.is_session_not_found() => self.send_deleted(key),
            Err(error) => {
                tracing::warn!(%error, "a session for a live stream could not be read");
                self.sent.remove(key);
                if error.remedy() == Remedy::Retry {
                    self.schedule_list();
                }
            }
        }
    }

    fn send_deleted(&mut self, key: &SessionKey) {
        self.sent.remove(key);
        self.push(key, 0, Status::Deleted);
        self.feed.remove(key);
    }

    fn push(&mut self, key: &SessionKey, version: u64, status: Status) {
        let row = ChangedRow { app: key.app.as_str(), id: key.id.as_str(), version, status };
        // NOTE: No id: the event says how a session is now, and a stream that connects again begins with the newest
        // sessions anyway (docs/decisions/server.md).
        self.feed.push(key, encode(None, "session", &row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> SessionKey {
        SessionKey::new("app", "ada", id).unwrap()
    }

    fn texts(all: &[Bytes]) -> Vec<String> {
        all.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
    }

    /// One that comes late, or does not read for long, is told the newest of each session, in the order of changes, and
    /// then all that follows.
    #[tokio::test]
    async fn a_reader_has_the_newest_of_each_session_and_all_that_follows() {
        let feed = Arc::new(UserFeed::new());
        let reader = || FeedReader { feed: Arc::clone(&feed), frames: feed.frames.subscribe() };
        let mut slow = reader();
        for number in 0..MAX_EVENTS + 10 {
            feed.push(&key(["a", "b", "c"][number % 3]), Bytes::from(number.to_string()));
        }
        feed.push(&key("d"), Bytes::from_static(b"deleted"));
        feed.remove(&key("d"));
        let newest: Vec<String> =
            (MAX_EVENTS + 7..MAX_EVENTS + 10).map(|number| number.to_string()).collect();
        assert_eq!(texts(&slow.next().await.unwrap()), newest);
        let mut late = reader();
        assert_eq!(texts(&late.begin()), newest);
        feed.push(&key("a"), Bytes::from_static(b"more"));
        for reader in [&mut slow, &mut late] {
            assert_eq!(texts(&reader.next().await.unwrap()), ["more"]);
        }
        assert_eq!(texts(&reader().begin())[2], "more");
    }
}
