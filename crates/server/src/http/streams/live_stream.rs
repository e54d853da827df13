//! Live streams of sessions: server-sent events that a client can resume. A stream of several sessions has the events of
//! each in turn, exactly as in a stream of its own.
//!
//! # Transitions
//!
//! Each session of a stream is in one of these phases; the first that applies counts.
//!
//! | phase | applies | next event | next phase |
//! |---|---|---|---|
//! | `Queued` | an event is queued | `hello`, `reset` or `ended`, as queued | any |
//! | `Unsent` | commits were read from the store and not sent | `committed`; the last commit of a run queues `ended` | any |
//! | `Behind` | newer commits are in the store | none: a page is read | `Queued`, `Unsent`, `Behind`, or the end |
//! | `Live` | otherwise | that of the channel, or `reset` | `Live`, `Behind` after `reset`, or the end |
//!
//! A page that begins after a gap, which retention left, queues `reset`. A failed read is retried. In `Live`, `reset` says
//! that the next event of the channel is no longer kept.
//!
//! At its end, a stream of one session sends `bye`; a stream of several sends `gone`, and continues with the others.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::select_all;
use serde_json::json;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{
    ErrorKind, EventRange, GetSession, SessionError, SessionKey, SessionStore as _,
};
use tokio::sync::watch;

use super::channel::{BufferLookup, LiveChannel, LiveChannels, end_of};
use super::permit::StreamPermit;
use super::sse::{KEEP_ALIVE, RETRY, StreamPosition, bye, encode, in_many};
use crate::http::guard::limits::MemoryReservation;
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::{PagePlan, reserve_newest};
use crate::http::phase::{ServerPhase, reaches};
use crate::http::rows::pricing::AppPricing;
use crate::http::rows::row_builder::rows;
use crate::http::rows::session_status::LastRun;
use crate::http::rows::{EventRow, RequestRow};

/// The number of commits that are read from the store at once.
const PAGE: usize = 64;

/// The pause before a failed read of the store is retried.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// The stored bytes of the commits that are read at once.
const PAGE_BYTES: u64 = 1 << 20;

/// The pause before a read is retried for which the user had no memory left.
const MEMORY_PAUSE: Duration = Duration::from_millis(200);

/// A session of a stream, and where its reader begins.
pub(in crate::http) struct FollowRequest {
    pub(in crate::http) runner: Runner,
    pub(in crate::http) session: SessionHandle,
    /// The last event that the client has, if it connects again.
    pub(in crate::http) last: Option<StreamPosition>,
    /// The version after which commits are told; the newest one by default.
    pub(in crate::http) after: Option<u64>,
}

/// Opens the stream of a session. It ends with its reader, and stops nothing else.
pub(in crate::http) async fn open(
    channels: &LiveChannels,
    followed: FollowRequest,
    permit: StreamPermit,
) -> Result<Body, Problem> {
    let following = FollowedSession::begin(channels, followed, permit.memory.new_empty()).await?;
    let sessions = vec![StreamMember::Followed(Box::new(following))];
    Ok(LiveReader::new(sessions, false, permit).into_body())
}

/// Opens a stream of several sessions, whose events name the session. A session that does not exist is reported as `gone`.
pub(in crate::http) async fn open_many(
    channels: &LiveChannels,
    all: Vec<Result<FollowRequest, (SessionKey, Option<StreamPosition>)>>,
    permit: StreamPermit,
) -> Result<Body, Problem> {
    let mut sessions = Vec::with_capacity(all.len());
    for followed in all {
        sessions.push(match followed {
            Ok(followed) => {
                let (key, last) = (followed.session.key().clone(), followed.last.clone());
                match FollowedSession::begin(channels, followed, permit.memory.new_empty()).await {
                    Ok(following) => StreamMember::Followed(Box::new(following)),
                    // It was deleted in this moment.
                    Err(problem) if problem.status() == http::StatusCode::NOT_FOUND => {
                        StreamMember::gone(key, last)
                    }
                    Err(problem) => return Err(problem),
                }
            }
            Err((key, last)) => StreamMember::gone(key, last),
        });
    }
    Ok(LiveReader::new(sessions, true, permit).into_body())
}

/// A session of a reader.
enum StreamMember {
    Followed(Box<FollowedSession>),
    Gone {
        key: SessionKey,
        /// The position of its end, for the ids of the others.
        place: StreamPosition,
        /// The reason, until it is sent.
        reason: Option<&'static str>,
    },
}

impl StreamMember {
    fn gone(key: SessionKey, last: Option<StreamPosition>) -> Self {
        // An epoch of no life: if it is created again, it is another session.
        let never = StreamPosition { version: 0, epoch: "none".to_owned(), number: None };
        StreamMember::Gone { key, place: last.unwrap_or(never), reason: Some("deleted") }
    }

    fn key(&self) -> &SessionKey {
        match self {
            StreamMember::Followed(following) => &following.key,
            StreamMember::Gone { key, .. } => key,
        }
    }

    fn position(&self) -> StreamPosition {
        match self {
            StreamMember::Followed(following) => following.position(),
            StreamMember::Gone { place, .. } => place.clone(),
        }
    }

    fn followed(&mut self) -> Option<&mut FollowedSession> {
        match self {
            StreamMember::Followed(following) => Some(following),
            StreamMember::Gone { .. } => None,
        }
    }
}

/// A session that a reader follows: its place in it, and what is told next.
struct FollowedSession {
    key: SessionKey,
    runner: Runner,
    pricing: Arc<AppPricing>,
    channel: Arc<LiveChannel>,
    changes: watch::Receiver<u64>,
    /// The number of the next event of the channel.
    number: u64,
    /// The version of the newest commit that was told.
    version: u64,
    /// Commits up to this version are read from the store, before the next event of the channel.
    read_until: u64,
    /// The commits that were read and not sent.
    unsent: VecDeque<EventRow>,
    /// The event that is sent before all others.
    queued: Option<Bytes>,
    /// The version of the end of a run that was read from the store, and told.
    ended_version: u64,
    /// The last read of the store failed, and is retried soon.
    is_failing: bool,
    /// The memory of the commits that were read, until they are sent.
    memory: MemoryReservation,
    /// The user has no memory left for the next read, which is retried soon.
    is_starved: bool,
}

/// The phase of a session in a stream: see the table of transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowPhase {
    Queued,
    Unsent,
    Behind,
    Live,
}

impl FollowPhase {
    const fn of(has_queued: bool, has_unsent: bool, is_behind: bool) -> Self {
        match (has_queued, has_unsent, is_behind) {
            (true, ..) => FollowPhase::Queued,
            (_, true, _) => FollowPhase::Unsent,
            (.., true) => FollowPhase::Behind,
            _ => FollowPhase::Live,
        }
    }
}

/// The next event of a session.
enum NextEvent {
    Event(Bytes),
    /// Nothing yet.
    NotYet,
    /// Nothing ever, for this reason.
    End(&'static str),
}

impl FollowedSession {
    async fn begin(
        channels: &LiveChannels,
        followed: FollowRequest,
        memory: MemoryReservation,
    ) -> Result<Self, Problem> {
        let FollowRequest { runner, session, last, after } = followed;
        let (channel, changes) = channels.get_or_open(&runner, &session).await?;
        let here = last.as_ref().filter(|last| last.epoch == channel.epoch);
        let kept = here.and_then(|last| channel.position_after(last.number));
        let start = kept.unwrap_or_else(|| channel.newest_position());
        let is_other = last.as_ref().is_some_and(|last| !last.is_of_same_life(&channel.epoch));
        let mut known = match &last {
            Some(_) if is_other => 0,
            Some(last) => last.version,
            None => after.unwrap_or(start.version),
        };
        // Another process may have sent commits that this one has not followed yet.
        if known > start.version && known > session.read_events(EventRange::None).await?.version {
            known = start.version;
        }
        let mut following = FollowedSession {
            key: session.key().clone(),
            pricing: channels.pricing(&runner, session.key()),
            runner,
            channel,
            changes,
            number: start.number,
            version: known,
            read_until: start.version,
            unsent: VecDeque::new(),
            queued: None,
            ended_version: 0,
            is_failing: false,
            memory,
            is_starved: false,
        };
        following.queued = match (&last, kept) {
            (Some(_), Some(_)) => None,
            (Some(_), None) if is_other => Some(following.reset("the session was deleted and created again")),
            (Some(_), None) => Some(following.reset("connected again: unfinished text before this is gone")),
            (None, _) => {
                // NOTE: The pending requests are read from the newest commit, which may be large.
                reserve_newest(&following.memory, &following.runner, &session).await?;
                Some(following.hello(&session).await?)
            }
        };
        Ok(following)
    }

    async fn hello(&self, session: &SessionHandle) -> Result<Bytes, Problem> {
        let run = LastRun::of(session).await?;
        let requests: Vec<RequestRow> = run.pending().iter().map(RequestRow::of).collect();
        let hello = json!({
            "version": self.version,
            "running": self.channel.running(),
            "pending": requests,
        });
        Ok(self.encode("hello", &hello))
    }

    /// An event at the place before the next event of the channel.
    fn encode(&self, event: &str, data: &impl serde::Serialize) -> Bytes {
        encode(Some((self.version, &self.channel.epoch, self.number.checked_sub(1))), event, data)
    }

    fn reset(&self, why: &str) -> Bytes {
        encode(None, "reset", &json!({"after_version": self.version, "why": why}))
    }

    fn position(&self) -> StreamPosition {
        let (epoch, number) = (self.channel.epoch.clone(), self.number.checked_sub(1));
        StreamPosition { version: self.version, epoch, number }
    }

    /// The next event, if it is there.
    async fn next(&mut self) -> NextEvent {
        loop {
            let is_behind = self.version < self.read_until;
            let next = match FollowPhase::of(self.queued.is_some(), !self.unsent.is_empty(), is_behind) {
                FollowPhase::Queued => self.queued.take().map(NextEvent::Event),
                FollowPhase::Unsent => {
                    self.unsent.pop_front().map(|row| NextEvent::Event(self.committed_event(&row)))
                }
                FollowPhase::Behind => self.catch_up().await,
                FollowPhase::Live => self.live_event(),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }

    /// The event of a commit that was read from the store. The end of its run is queued.
    fn committed_event(&mut self, row: &EventRow) -> Bytes {
        self.version = row.version;
        if let Some(end) = end_of(row) {
            self.queued = Some(self.encode("ended", &end));
            self.ended_version = row.version;
        }
        self.encode("committed", row)
    }

    /// Reads a page from the store; `None` if the events of the page are next.
    async fn catch_up(&mut self) -> Option<NextEvent> {
        self.memory.free();
        match self.read_store().await {
            Ok(()) => None,
            Err(None) => {
                self.changes.mark_unchanged();
                Some(NextEvent::NotYet)
            }
            Err(Some(reason)) => Some(NextEvent::End(reason)),
        }
    }

    /// The next event of the channel; `None` for one that the client has.
    fn live_event(&mut self) -> Option<NextEvent> {
        self.memory.free();
        // NOTE: Before the lookup, so that an event that comes after it wakes the stream again.
        self.changes.mark_unchanged();
        match self.channel.lookup(self.number) {
            BufferLookup::Event(frame) => {
                self.number += 1;
                let is_new = if frame.is_commit {
                    frame.version > self.version
                } else {
                    // NOTE: Text that was written before a commit that was sent is part of that commit.
                    frame.version >= self.version
                };
                if !is_new || (frame.is_end && frame.version == self.ended_version) {
                    return None;
                }
                self.version = self.version.max(frame.version);
                Some(NextEvent::Event(frame.bytes))
            }
            BufferLookup::Missed => {
                let start = self.channel.newest_position();
                (self.number, self.read_until) = (start.number, start.version);
                Some(NextEvent::Event(self.reset("too slow: unfinished text before this is gone")))
            }
            BufferLookup::NotYet => Some(NextEvent::NotYet),
            BufferLookup::End(reason) => Some(NextEvent::End(reason)),
        }
    }

    /// Reads the next commits that were missed. An error without a reason is one of the store that is worth a retry.
    async fn read_store(&mut self) -> Result<(), Option<&'static str>> {
        // A commit beyond the limit of its user is sent alone.
        let hold = |weight: usize| {
            self.memory.resize(weight.min(self.memory.limit())).map_err(|_| ReadFailure::NoMemory)
        };
        let page = PagePlan::after(&self.runner, &self.key, (self.version, PAGE), PAGE_BYTES, hold).await;
        self.is_starved = matches!(page, Err(ReadFailure::NoMemory));
        let session = match page {
            Ok(page) => {
                let get = GetSession::new(self.key.clone()).events(page.range).without_state();
                self.runner.store().get(get).await.map(|session| (session, page.limit))
            }
            Err(ReadFailure::NoMemory) => return Err(None),
            Err(ReadFailure::Store(error)) => Err(error),
        };
        self.is_failing = session.as_ref().is_err_and(|error| error.kind() == ErrorKind::Transient);
        let (session, limit) = match session {
            Ok((session, _)) if session.life != self.channel.life => return Err(Some("deleted")),
            Ok(session) => session,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Some("deleted")),
            Err(error) => {
                tracing::warn!(%error, "commits for a live stream could not be read");
                return Err((!self.is_failing).then_some("failed"));
            }
        };
        let rows = rows(&session, self.version, limit, &self.pricing);
        let rows = rows.into_iter().filter(|row| row.version <= self.read_until);
        self.unsent.extend(rows);
        let before = self.unsent.front().map_or(self.read_until, |first| first.version - 1);
        if before > self.version {
            self.version = before;
            self.queued = Some(self.reset("commits up to this version were deleted by retention"));
        }
        Ok(())
    }
}

/// The failure of a read of commits.
enum ReadFailure {
    NoMemory,
    Store(SessionError),
}

impl From<SessionError> for ReadFailure {
    fn from(error: SessionError) -> Self {
        ReadFailure::Store(error)
    }
}

/// A reader of one session, or of several.
struct LiveReader {
    sessions: Vec<StreamMember>,
    is_of_many: bool,
    /// The index of the session that is polled next.
    next_index: usize,
    queue: VecDeque<Bytes>,
    is_over: bool,
    permit: StreamPermit,
}

impl LiveReader {
    fn new(sessions: Vec<StreamMember>, is_of_many: bool, permit: StreamPermit) -> Self {
        let queue = VecDeque::from([RETRY]);
        LiveReader { sessions, is_of_many, next_index: 0, queue, is_over: false, permit }
    }

    fn into_body(self) -> Body {
        Body::from_stream(self.into_stream())
    }

    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures_util::stream::unfold(self, |mut reader| async move {
            let bytes = reader.next().await?;
            Some((Ok(bytes), reader))
        })
    }

    /// The next bytes to send.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.queue.pop_front() {
                return Some(bytes);
            }
            if self.is_over {
                return None;
            }
            if !self.poll_sessions().await {
                self.wait().await;
            }
        }
    }

    /// Takes the next event of the first session that has one; false if none has.
    async fn poll_sessions(&mut self) -> bool {
        for _ in 0..self.sessions.len() {
            // NOTE: Sessions take turns: one with many events must not keep the others from being sent.
            let at = self.next_index % self.sessions.len();
            self.next_index = at + 1;
            let next = match &mut self.sessions[at] {
                StreamMember::Followed(following) => following.next().await,
                StreamMember::Gone { reason, .. } => reason.take().map_or(NextEvent::NotYet, NextEvent::End),
            };
            match next {
                NextEvent::Event(bytes) => {
                    let bytes = if self.is_of_many { self.name_session(at, &bytes) } else { bytes };
                    self.queue.push_back(bytes);
                    return true;
                }
                NextEvent::End(reason) if self.is_of_many => {
                    let session = &self.sessions[at];
                    let (key, place) = (session.key().clone(), session.position());
                    self.sessions[at] = StreamMember::Gone { key, place, reason: None };
                    let gone = encode(None, "gone", &json!({"reason": reason}));
                    self.queue.push_back(self.name_session(at, &gone));
                    return true;
                }
                NextEvent::End(reason) => {
                    self.bye(reason);
                    return true;
                }
                NextEvent::NotYet => {}
            }
        }
        false
    }

    /// An event of a session among others, with the place in all of them.
    fn name_session(&self, at: usize, bytes: &Bytes) -> Bytes {
        // NOTE: The id names a place in each session: a browser sends one id back, and a table of readers in the server
        // would not survive a restart (docs/decisions/server.md).
        let places: Vec<String> =
            self.sessions.iter().map(|session| session.position().to_string()).collect();
        let key = self.sessions[at].key();
        let (app, session) = (json!(key.app.as_str()), json!(key.id.as_str()));
        in_many(bytes, &places.join("~"), &format!("\"app\":{app},\"session\":{session}"))
    }

    /// Waits for what comes next.
    async fn wait(&mut self) {
        let keep_alive = self.permit.keep_alive;
        let open = self.sessions.iter_mut().filter_map(StreamMember::followed);
        let pauses = open.map(|session| match () {
            () if session.is_starved => MEMORY_PAUSE,
            () if session.is_failing => STORE_PAUSE,
            () => keep_alive,
        });
        let pause = pauses.min().unwrap_or(keep_alive).min(keep_alive);
        let open = self.sessions.iter_mut().filter_map(StreamMember::followed);
        let changes: Vec<_> = open.map(|session| Box::pin(session.changes.changed())).collect();
        let next = async {
            match changes.is_empty() {
                true => std::future::pending().await,
                false => select_all(changes).await.0,
            }
        };
        let over = tokio::select! {
            biased;
            () = reaches(&mut self.permit.phase, ServerPhase::Stopping) => Some("shutdown"),
            next = next => next.is_err().then_some("failed"),
            () = tokio::time::sleep(pause) => return self.queue.push_back(KEEP_ALIVE),
        };
        if let Some(reason) = over {
            self.bye(reason);
        }
    }

    fn bye(&mut self, reason: &str) {
        self.is_over = true;
        self.queue.push_back(bye(reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("live_stream.rs");

    /// The rows of the table of transitions.
    fn table() -> impl Iterator<Item = &'static str> {
        SOURCE.lines().filter_map(|line| line.strip_prefix("//! | `"))
    }

    #[test]
    fn the_first_phase_of_the_table_that_applies_counts() {
        let phases: Vec<&str> = table().filter_map(|row| row.split('`').next()).collect();
        for bits in 0..8_u8 {
            let applies = [bits & 1 != 0, bits & 2 != 0, bits & 4 != 0, true];
            let phase = FollowPhase::of(applies[0], applies[1], applies[2]);
            let first = applies.iter().position(|applies| *applies).unwrap();
            assert_eq!(format!("{phase:?}"), phases[first], "{applies:?}");
        }
        assert_eq!(phases.len(), 4);
    }

    /// The table and the line below it name all events that the code makes.
    #[test]
    fn the_table_names_all_events() {
        let (head, code) = SOURCE.split_once("\n\nuse ").unwrap();
        let (code, _) = code.split_once("#[cfg(test)]").unwrap();
        let made = ["encode(\"", "encode(None, \""].into_iter().flat_map(|call| code.split(call).skip(1));
        let made: Vec<&str> = made.filter_map(|text| text.split('"').next()).collect();
        assert_eq!(made.len(), 5);
        for event in made {
            assert!(head.contains(&format!("`{event}`")), "{event}");
        }
    }
}
