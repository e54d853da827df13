//! What happens in one session, told to any number of readers, each at its own pace.
//!
//! One task for each session that has readers: it follows the session's commits, whichever process makes them, and the
//! unfinished text of the run in this process. Events are encoded once. Readers that are too slow lose their place, and
//! read the commits that they missed from the store.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde::Serialize;
use serde_json::{Value, json};
use stepfold_agent_loop::{ApprovalRequest, Exit, Pause, RunEvent};
use stepfold_runner::{Invocation, Remedy, Runner, RunnerError, Seen, SessionChange, SessionHandle, failure};
use stepfold_session_scopes::{CommittedEvent, EventRange, LifeId, SessionKey};
use stepfold_state_core::chat::Prices;
use tokio::sync::watch;
use tokio::time::Sleep;

use super::sse::{LiveFrame, encode, new_epoch};
use crate::http::guard::problem::Problem;
use crate::http::loading::page_plan::newest;
use crate::http::rows::pricing::AppPricing;
use crate::http::rows::row_builder::{BEFORE, RowBuilder};
use crate::http::rows::{self, EventRow, RequestRow};

/// Bounds what is kept of a session for readers that are slow or connect again: events, and their bytes.
const KEPT: usize = 512;

const KEPT_BYTES: usize = 256 << 10;

/// How long a session is followed without readers: a browser that connects again finds its place.
const LINGER: Duration = Duration::from_secs(10);

/// The first and the longest pause before a failed read of the store is retried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// The sessions that have readers.
#[derive(Clone, Default)]
pub(in crate::http) struct LiveChannels {
    open: Arc<Mutex<HashMap<SessionKey, Arc<LiveChannel>>>>,
    /// What replies cost, by app.
    pricing: Arc<HashMap<String, Arc<AppPricing>>>,
}

/// One of them.
pub(in crate::http) struct LiveChannel {
    /// Which one of the channels that a session had in any process.
    pub(in crate::http) epoch: String,
    /// The life of the session: one that was created again after its deletion has another channel.
    pub(in crate::http) life: LifeId,
    /// The version before its first event.
    began: u64,
    kept: Mutex<EventBuffer>,
    next: watch::Sender<u64>,
}

#[derive(Default)]
struct EventBuffer {
    /// The number of the first kept event.
    first: u64,
    frames: VecDeque<LiveFrame>,
    bytes: usize,
    /// The version of the newest commit.
    version: u64,
    /// The number of the event after it.
    after_commit: u64,
    running: Option<String>,
    /// Nothing follows, for this reason.
    ended: Option<&'static str>,
}

/// The data of the event that says that a run has ended, if this commit is its last.
pub(in crate::http) fn end_of(row: &EventRow) -> Option<Value> {
    row.exit.as_ref()?;
    Some(json!({"version": row.version, "invocation": row.invocation, "exit": row.exit}))
}

/// What is at a place.
pub(in crate::http) enum BufferLookup {
    Event(LiveFrame),
    /// The place is no longer kept.
    Missed,
    NotYet,
    End(&'static str),
}

/// Where a reader begins: the next event, and the version before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct StartPosition {
    pub(in crate::http) number: u64,
    pub(in crate::http) version: u64,
}

impl LiveChannels {
    pub(in crate::http) fn new(pricing: impl IntoIterator<Item = (String, Arc<AppPricing>)>) -> Self {
        LiveChannels { open: Arc::default(), pricing: Arc::new(pricing.into_iter().collect()) }
    }

    /// What replies cost in the app of a runner.
    pub(in crate::http) fn pricing(&self, runner: &Runner, key: &SessionKey) -> Arc<AppPricing> {
        let known = self.pricing.get(key.app.as_str()).map(Arc::clone);
        known.unwrap_or_else(|| Arc::new(AppPricing::new(runner.agent().clone(), Prices::new())))
    }

    /// The channel of a session: an existing one, or a new one.
    pub(in crate::http) async fn of(
        &self,
        runner: &Runner,
        session: &SessionHandle,
    ) -> Result<(Arc<LiveChannel>, watch::Receiver<u64>), Problem> {
        let key = session.key().clone();
        let found = self.open().get(&key).map(subscribe);
        // Another process may have deleted the session and created it again, and its channel may not know yet.
        if let Some(found) = found
            && found.0.life == session.read_events(EventRange::None).await?.life
        {
            return Ok(found);
        }
        let stored = session.read_events(EventRange::None).await?;
        let version = stored.version;
        let range = newest(runner, &key, (version, BEFORE)).await;
        // Those of a session that was deleted meanwhile name nothing here.
        let before = session.read_events(range).await?;
        let before = if before.life == stored.life { before.events } else { Vec::new() };
        let mut open = self.open();
        if let Some(found) = open.get(&key).filter(|channel| channel.life == stored.life) {
            return Ok(subscribe(found));
        }
        let channel = Arc::new(LiveChannel {
            epoch: new_epoch(&stored.life),
            life: stored.life.clone(),
            began: version,
            kept: Mutex::new(EventBuffer { version, ..EventBuffer::default() }),
            next: watch::Sender::new(0),
        });
        let subscribed = subscribe(&channel);
        open.insert(key.clone(), Arc::clone(&channel));
        drop(open);
        let pricing = self.pricing(runner, session.key());
        let pump =
            ChannelDriver::new(runner, session.clone(), Arc::clone(&channel), (version, &before), &pricing);
        let open = ChannelGuard { channels: self.clone(), key, channel };
        tokio::spawn(pump.run(open));
        Ok(subscribed)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<LiveChannel>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn subscribe(channel: &Arc<LiveChannel>) -> (Arc<LiveChannel>, watch::Receiver<u64>) {
    (Arc::clone(channel), channel.next.subscribe())
}

/// The place of a channel among the open ones. It is released when this is dropped, also by a panic: the next reader gets a
/// new channel.
struct ChannelGuard {
    channels: LiveChannels,
    key: SessionKey,
    channel: Arc<LiveChannel>,
}

impl ChannelGuard {
    /// Closes the channel if it has no readers.
    fn close_unread(&self) -> bool {
        let mut open = self.channels.open();
        let is_unread = self.channel.next.receiver_count() == 0;
        if is_unread {
            self.remove(&mut open);
        }
        is_unread
    }

    /// Another one may have its place by now.
    fn remove(&self, open: &mut HashMap<SessionKey, Arc<LiveChannel>>) {
        if open.get(&self.key).is_some_and(|channel| Arc::ptr_eq(channel, &self.channel)) {
            open.remove(&self.key);
        }
    }
}

impl Drop for ChannelGuard {
    fn drop(&mut self) {
        // After a panic, readers would wait for ever.
        self.channel.end("failed");
        self.remove(&mut self.channels.open());
    }
}

impl LiveChannel {
    fn kept(&self) -> MutexGuard<'_, EventBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a new reader begins: with the unfinished text after the newest commit.
    pub(in crate::http) fn start(&self) -> StartPosition {
        let kept = self.kept();
        StartPosition { number: kept.after_commit.max(kept.first), version: kept.version }
    }

    /// Where a reader continues that has read the event with this number, or none, if that is still kept.
    pub(in crate::http) fn after(&self, number: Option<u64>) -> Option<StartPosition> {
        let kept = self.kept();
        let Some(number) = number else {
            return (kept.first == 0).then_some(StartPosition { number: 0, version: self.began });
        };
        let place = usize::try_from(number.checked_sub(kept.first)?).ok()?;
        let read = kept.frames.get(place)?;
        Some(StartPosition { number: number + 1, version: read.version })
    }

    pub(in crate::http) fn at(&self, number: u64) -> BufferLookup {
        let kept = self.kept();
        let Some(place) = number.checked_sub(kept.first) else { return BufferLookup::Missed };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        match (kept.frames.get(place), kept.ended) {
            (Some(frame), _) => BufferLookup::Event(frame.clone()),
            (None, Some(reason)) => BufferLookup::End(reason),
            (None, None) => BufferLookup::NotYet,
        }
    }

    /// The invocation that runs in this process.
    pub(in crate::http) fn running(&self) -> Option<String> {
        self.kept().running.clone()
    }

    fn push(&self, event: &str, is_commit: bool, version: u64, data: &impl Serialize) {
        let mut kept = self.kept();
        let number = kept.first + kept.frames.len() as u64;
        if is_commit {
            (kept.version, kept.after_commit) = (version, number + 1);
        }
        let bytes = encode(Some((kept.version, &self.epoch, Some(number))), event, data);
        kept.bytes += bytes.len();
        let version = kept.version;
        kept.frames.push_back(LiveFrame { version, is_commit, is_end: event == "ended", bytes });
        while kept.frames.len() > KEPT || (kept.bytes > KEPT_BYTES && kept.frames.len() > 1) {
            let dropped = kept.frames.pop_front().map_or(0, |frame| frame.bytes.len());
            kept.bytes -= dropped;
            kept.first += 1;
        }
        drop(kept);
        self.next.send_replace(number + 1);
    }

    fn end(&self, reason: &'static str) {
        self.kept().ended.get_or_insert(reason);
        self.next.send_modify(|_| ());
    }
}

/// Follows a session for its channel.
struct ChannelDriver {
    runner: Runner,
    session: SessionHandle,
    channel: Arc<LiveChannel>,
    changes: BoxStream<'static, SessionChange>,
    rows: RowBuilder,
    run: Option<BoxStream<'static, Seen>>,
    /// The run in this process, until its end or pause is reported to readers.
    untold: Option<Invocation>,
    /// An event of the run that comes after a commit which was not followed yet.
    held: Option<(u64, RunEvent)>,
    told: u64,
}

impl ChannelDriver {
    fn new(
        runner: &Runner,
        session: SessionHandle,
        channel: Arc<LiveChannel>,
        (told, before): (u64, &[CommittedEvent]),
        pricing: &Arc<AppPricing>,
    ) -> Self {
        let mut rows = RowBuilder::new(pricing);
        for event in before {
            drop(rows.row(event, true));
        }
        let changes = runner.watch_session(session.key()).boxed();
        let mut pump = ChannelDriver {
            runner: runner.clone(),
            session,
            channel,
            changes,
            rows,
            run: None,
            untold: None,
            held: None,
            told,
        };
        pump.attach();
        pump
    }

    async fn run(mut self, open: ChannelGuard) {
        let channel = Arc::clone(&self.channel);
        let mut commits = commits(&self.runner, self.session.key().clone(), channel.life.clone(), self.told);
        let mut unread = None;
        loop {
            tokio::select! {
                biased;
                seen = next_of(&mut self.run), if self.held.is_none() => self.saw(seen).await,
                commit = commits.next() => match commit {
                    Some(Ok(commit)) => {
                        self.committed(&commit);
                        self.release().await;
                        self.attach();
                        if self.run.is_none() {
                            self.tell_requests().await;
                        }
                    }
                    Some(Err(error)) => {
                        let is_gone = Problem::from(error).status() == http::StatusCode::NOT_FOUND;
                        self.channel.end(if is_gone { "deleted" } else { "failed" });
                        break;
                    }
                    None => break,
                },
                Some(_) = self.changes.next() => self.attach(),
                () = channel.next.closed(), if unread.is_none() => {
                    unread = Some(Box::pin(tokio::time::sleep(LINGER)));
                }
                () = until(&mut unread) => {
                    if open.close_unread() {
                        return;
                    }
                    unread = None;
                }
            }
        }
    }

    /// Tells a commit, and the end of a run that it is.
    fn committed(&mut self, commit: &CommittedEvent) {
        self.told = commit.version;
        let row = self.rows.row(commit, true);
        self.channel.push("committed", true, commit.version, &row);
        if let Some(end) = end_of(&row) {
            self.untold = None;
            self.channel.push("ended", false, self.told, &end);
        }
        if let Some(cause) = failure(&commit.event) {
            self.untold = None;
            let failed = json!({"version": row.version, "invocation": row.invocation, "cause": cause});
            self.channel.push("failed", false, self.told, &failed);
        }
    }

    /// Begins to listen to the run in this process, if there is another one than before.
    fn attach(&mut self) {
        if self.run.is_some() {
            return;
        }
        let running = self.session.running();
        let id = running.as_ref().map(|running| running.id().to_string());
        let is_new = {
            let mut kept = self.channel.kept();
            let is_new = id.is_some() && kept.running != id;
            kept.running.clone_from(&id);
            is_new
        };
        if let Some(running) = running.filter(|_| is_new) {
            self.channel.push("running", false, self.told, &json!({"invocation": running.id().as_str()}));
            self.run = Some(running.subscribe(0).boxed());
            self.untold = Some(running);
        }
    }

    async fn saw(&mut self, seen: Option<Seen>) {
        match seen {
            Some(Seen::Event { version, event, .. }) if version > self.told => {
                self.held = Some((version, event));
            }
            Some(Seen::Event { version, event, .. }) if version == self.told => self.tell(&event).await,
            // The commit that followed has all of it; or it is no longer kept.
            Some(_) => {}
            None => {
                self.run = None;
                self.attach();
                if self.run.is_none()
                    && let Some(stopped) = self.untold.take()
                {
                    self.tell_stopped(&stopped).await;
                }
            }
        }
    }

    /// Tells what was held back, if the commit before it is told.
    async fn release(&mut self) {
        if let Some((version, event)) = self.held.take_if(|(version, _)| *version <= self.told)
            && version == self.told
        {
            self.tell(&event).await;
        }
    }

    async fn tell(&mut self, event: &RunEvent) {
        if let Some((name, data)) = told(event, Vec::new()) {
            self.untold.take_if(|_| name == "paused");
            self.channel.push(name, false, self.told, &data);
        }
        if *event == RunEvent::Ended(Exit::Paused(Pause::Approval)) {
            self.tell_requests().await;
        }
    }

    /// Reports an invocation that stopped without a commit: the requests that refused decisions left, or its failure.
    async fn tell_stopped(&mut self, stopped: &Invocation) {
        if !self.tell_requests().await
            && let Err(error) = stopped.outcome().await
        {
            let id = stopped.id().as_str();
            let failed = json!({"version": self.told, "invocation": id, "cause": error.to_string()});
            self.channel.push("failed", false, self.told, &failed);
        }
    }

    /// Reports the pending requests, if any, after the newest reported commit. Returns whether readers know them, or get them
    /// after a later commit.
    async fn tell_requests(&mut self) -> bool {
        let (pending, newest) = match pending(self.session.clone()).await {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "pending requests could not be read");
                return false;
            }
        };
        // Those of a later commit are told after it.
        if !pending.is_empty() && newest == self.told {
            let requests: Vec<RequestRow> = pending.iter().map(RequestRow::of).collect();
            let waiting = json!({"version": self.told, "requests": requests});
            self.channel.push("waiting", false, self.told, &waiting);
        }
        !pending.is_empty() || newest != self.told
    }
}

/// The requests of a session that wait for decisions, and its version.
async fn pending(session: SessionHandle) -> Result<(Vec<ApprovalRequest>, u64), RunnerError> {
    let pending = session.pending().await?;
    Ok((pending, session.read_events(EventRange::None).await?.version))
}

/// The end of a time that has begun.
async fn until(time: &mut Option<Pin<Box<Sleep>>>) {
    match time {
        Some(time) => time.await,
        None => std::future::pending().await,
    }
}

/// The commits of a session after a version, as long as it has this life. Failed reads of the store are retried; readers wait
/// meanwhile.
fn commits(
    runner: &Runner,
    key: SessionKey,
    life: LifeId,
    after: u64,
) -> BoxStream<'static, Result<CommittedEvent, RunnerError>> {
    let follow = {
        let runner = runner.clone();
        move |after| runner.follow_life(key.clone(), life.clone(), after)
    };
    let start = (follow(after), after, PAUSES.0);
    let commits = futures_util::stream::unfold((follow, start), |(follow, place)| async move {
        let (mut commits, mut after, mut pause) = place;
        loop {
            match commits.next().await? {
                Err(error) if error.remedy() == Remedy::Retry => {
                    tracing::warn!(%error, "commits for live streams could not be read");
                    tokio::time::sleep(pause).await;
                    (commits, pause) = (follow(after), (pause * 2).min(PAUSES.1));
                }
                next => {
                    after = next.as_ref().map_or(after, |commit| commit.version);
                    return Some((next, (follow, (commits, after, PAUSES.0))));
                }
            }
        }
    });
    commits.boxed()
}

/// The next event of a run; never without one.
async fn next_of(run: &mut Option<BoxStream<'static, Seen>>) -> Option<Seen> {
    match run {
        Some(run) => run.next().await,
        None => std::future::pending().await,
    }
}

/// What readers are told of an event of a run; commits are told from the store. What happens in a run inside has the path of
/// calls and nodes to it, the outermost first.
fn told(event: &RunEvent, mut path: Vec<Value>) -> Option<(&'static str, Value)> {
    let (name, mut data) = match event {
        RunEvent::Inner { name, id, is_node, place, event } => {
            let kind = if *is_node { "node" } else { "tool" };
            path.push(json!({"call_id": id, "name": name, "kind": kind, "place": place}));
            return told(event, path);
        }
        RunEvent::Asking { step, model, .. } => ("asking", json!({"step": step, "model": model})),
        RunEvent::Text(text) => ("text", json!({"delta": text})),
        RunEvent::Reasoning(text) => ("reasoning", json!({"delta": text})),
        RunEvent::ToolCallDelta { index, call_id, tool, arguments } => {
            ("call", json!({"index": index, "call_id": call_id, "tool": tool, "delta": arguments}))
        }
        RunEvent::ToolStarted { call_id, tool, arguments } => {
            ("tool_started", json!({"call_id": call_id, "tool": tool, "arguments": arguments}))
        }
        RunEvent::ToolProgress { call_id, report } => {
            ("progress", json!({"call_id": call_id, "report": report}))
        }
        RunEvent::ToolFinished { call_id, tool, status, text } => {
            ("tool_finished", json!({"call_id": call_id, "tool": tool, "status": status, "text": text}))
        }
        RunEvent::NodeStarted { node, branch } => ("node_started", json!({"node": node, "branch": branch})),
        RunEvent::NodeFinished { node, branch, error, .. } => {
            ("node_finished", json!({"node": node, "branch": branch, "error": error}))
        }
        RunEvent::Output { node, branch, kind, value } => {
            ("output", json!({"node": node, "branch": branch, "kind": kind, "value": value}))
        }
        RunEvent::Ended(exit @ Exit::Paused(_)) if path.is_empty() => {
            ("paused", json!({"exit": rows::exit(exit)}))
        }
        _ => return None,
    };
    if !path.is_empty() {
        data["path"] = Value::Array(path);
    }
    Some((name, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> LiveChannel {
        let (kept, next) = (Mutex::default(), watch::Sender::new(0));
        let life = LifeId::new("l").unwrap();
        LiveChannel { epoch: "e".to_owned(), life, began: 0, kept, next }
    }

    /// Readers that are slow or absent hold nothing: what is kept is bounded by number and by bytes, and counted.
    #[test]
    fn what_is_kept_for_slow_readers_is_bounded() {
        for (length, events) in [(10, 10_000), (1_000, 10_000), (1 << 20, 10)] {
            let channel = channel();
            let _absent = channel.next.subscribe();
            for version in 0..events {
                channel.push("text", false, version, &json!({"delta": "x".repeat(length)}));
                let kept = channel.kept();
                let bytes: usize = kept.frames.iter().map(|frame| frame.bytes.len()).sum();
                assert_eq!(bytes, kept.bytes);
                assert!(kept.frames.len() <= KEPT);
                // One that is larger than all that is kept is still told.
                assert!(bytes <= KEPT_BYTES || kept.frames.len() == 1, "{bytes} bytes");
            }
            assert!(matches!(channel.at(0), BufferLookup::Missed));
            assert!(matches!(channel.at(events - 1), BufferLookup::Event(_)));
            assert!(matches!(channel.at(events), BufferLookup::NotYet));
        }
    }
}
