//! The live stream of a session: server-sent events that a client can resume.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use serde_json::json;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::{EventRange, GetSession, SessionKey, SessionStore as _};
use tokio::sync::watch;

use super::channel::{At, Channel, Channels};
use super::frame::{Position, encode};
use super::metrics::CountedStream;
use super::problem::Problem;
use super::rows::{EventRow, RequestRow};

/// The number of commits that are read from the store at once.
const PAGE: usize = 64;

/// Comments that keep proxies from closing an idle stream.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// What a stream is opened with.
pub(super) struct Opening {
    /// The last event that the client has, if it connects again.
    pub(super) last: Option<Position>,
    /// The version after which commits are told; the newest one by default.
    pub(super) after: Option<u64>,
    pub(super) keep_alive: Duration,
    /// Becomes true when the server stops.
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) place: CountedStream,
}

/// Opens a stream. It ends with its reader, and stops nothing else.
pub(super) async fn open(
    channels: &Channels,
    runner: &Runner,
    session: &SessionHandle,
    opening: Opening,
) -> Result<Body, Problem> {
    let (channel, changes) = channels.of(runner, session).await?;
    let mut reader = Reader {
        key: session.key().clone(),
        runner: runner.clone(),
        number: 0,
        version: 0,
        until: 0,
        queue: VecDeque::new(),
        is_over: false,
        channel,
        changes,
        keep_alive: opening.keep_alive,
        stopping: opening.stopping,
        _place: opening.place,
    };
    reader.begin(session, opening.last, opening.after).await?;
    Ok(Body::from_stream(reader.into_stream()))
}

/// One reader: its place, and what it is sent next.
struct Reader {
    key: SessionKey,
    runner: Runner,
    channel: Arc<Channel>,
    changes: watch::Receiver<u64>,
    /// The number of the next event of the channel.
    number: u64,
    /// The version of the newest commit that was sent.
    version: u64,
    /// Commits up to this version are read from the store, before the next event of the channel.
    until: u64,
    queue: VecDeque<Bytes>,
    is_over: bool,
    keep_alive: Duration,
    stopping: watch::Receiver<bool>,
    _place: CountedStream,
}

impl Reader {
    async fn begin(
        &mut self,
        session: &SessionHandle,
        last: Option<Position>,
        after: Option<u64>,
    ) -> Result<(), Problem> {
        self.queue.push_back(Bytes::from_static(b"retry: 1000\n\n"));
        let here = last.as_ref().filter(|last| last.epoch == self.channel.epoch);
        let kept = here.and_then(|last| self.channel.after(last.number?));
        let start = kept.unwrap_or_else(|| self.channel.start());
        let mut known = last.as_ref().map(|last| last.version).or(after).unwrap_or(start.version);
        // This process may not have followed yet what the client has of another one. A version that never was is that of a
        // session which was deleted and created again.
        if known > start.version && known > session.read(EventRange::None).await?.version {
            known = start.version;
        }
        (self.number, self.version, self.until) = (start.number, known, start.version);
        match (&last, kept) {
            (Some(_), Some(_)) => {}
            (Some(_), None) => self.reset("connected again: unfinished text before this is gone"),
            (None, _) => {
                let pending = session.pending().await?;
                let requests: Vec<RequestRow> = pending.iter().map(RequestRow::of).collect();
                let hello = json!({
                    "session": self.key.id.as_str(),
                    "version": self.version,
                    "running": self.channel.running(),
                    "pending": requests,
                });
                let id = self.id();
                self.queue.push_back(encode(Some((id.0, &self.channel.epoch, id.1)), "hello", &hello));
            }
        }
        Ok(())
    }

    /// The place before the next event of the channel.
    fn id(&self) -> (u64, Option<u64>) {
        (self.version, self.number.checked_sub(1))
    }

    fn reset(&mut self, why: &str) {
        let data = json!({"after_version": self.version, "why": why});
        self.queue.push_back(encode(None, "reset", &data));
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
            if self.version < self.until {
                self.read_store().await;
                continue;
            }
            self.changes.mark_unchanged();
            match self.channel.at(self.number) {
                At::Event(frame) => {
                    self.number += 1;
                    let is_new = if frame.is_commit {
                        frame.version > self.version
                    } else {
                        // What was written before a commit that was sent is part of it.
                        frame.version >= self.version
                    };
                    if is_new {
                        self.version = self.version.max(frame.version);
                        return Some(frame.bytes);
                    }
                }
                At::Missed => {
                    let start = self.channel.start();
                    (self.number, self.until) = (start.number, start.version);
                    self.reset("too slow: unfinished text before this is gone");
                }
                At::NotYet => self.wait().await,
                At::End(reason) => self.bye(reason),
            }
        }
    }

    /// Reads the next commits that were missed.
    async fn read_store(&mut self) {
        let page = EventRange::Page { after: self.version, limit: PAGE };
        let get = GetSession::new(self.key.clone()).events(page).without_state();
        let session = match self.runner.store().get(get).await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "commits for a live stream could not be read");
                return self.bye("failed");
            }
        };
        // What retention has deleted cannot be told.
        if session.events.is_empty() {
            self.version = self.until;
        }
        for committed in session.events.iter().filter(|committed| committed.version <= self.until) {
            self.version = committed.version;
            let (version, number) = self.id();
            let row = EventRow::of(committed, session.visible.contains(committed.version));
            self.queue.push_back(encode(Some((version, &self.channel.epoch, number)), "committed", &row));
        }
        if session.events.last().is_some_and(|committed| committed.version > self.until) {
            self.version = self.until;
        }
    }

    /// Waits for what comes next.
    async fn wait(&mut self) {
        let over = tokio::select! {
            biased;
            _ = self.stopping.wait_for(|stopping| *stopping) => Some("shutdown"),
            changed = self.changes.changed() => changed.is_err().then_some("failed"),
            () = tokio::time::sleep(self.keep_alive) => return self.queue.push_back(KEEP_ALIVE),
        };
        if let Some(reason) = over {
            self.bye(reason);
        }
    }

    fn bye(&mut self, reason: &str) {
        self.is_over = true;
        self.queue.push_back(encode(None, "bye", &json!({"reason": reason, "retry_ms": 2_000})));
    }
}
