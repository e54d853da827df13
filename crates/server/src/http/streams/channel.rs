//! The live channel of a session: its events, for any number of readers, each at its own pace.
//!
//! Each session with readers has one task, the driver. It follows the commits of the session, whichever process makes
//! them, and the unfinished text of the run in this process. Events are encoded once. A reader that is too slow loses
//! its place in the buffer, and reads the commits that it missed from the store.
//!
//! # Transitions
//!
//! | phase | input | events | next phase |
//! |---|---|---|---|
//! | idle: no run here | a commit | `committed`, `ended` or `failed`, `waiting` | idle, or attached |
//! | idle | a run has begun in this process | `running` | attached |
//! | attached: follows that run | its event after the newest sent commit | one of the run; `waiting` | attached |
//! | attached | its event after a later commit | none | deferred |
//! | attached | its event before the newest sent commit, which has it | none | attached |
//! | attached | a commit | `committed`, `ended` or `failed` | attached |
//! | attached | the end of its events | `waiting` or `failed` | idle, or attached to the next run |
//! | deferred: holds one event of the run | the commit before that event | `committed`, and the event | attached |
//! | any | the last reader leaves, and none comes within ten seconds | none | closed |
//! | any | the session is deleted, or the store fails for good | none: readers end | closed |
//!
//! Events of a run: `asking`, `text`, `reasoning`, `call`, `tool_started`, `progress`, `tool_finished`, `node_started`,
//! `node_finished`, `output`, and `paused`. `waiting` has the requests that wait for decisions, if there are any; `ended`
//! and `failed` follow the commit, or the end of the events, that says so.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde::Serialize;
use serde_json::{Value, json};
use stepfold_agent_loop::{ApprovalRequest, Exit, Pause, RunEvent};
use stepfold_runner::{
    Invocation, InvocationEvent, Remedy, Runner, RunnerError, SessionChange, SessionHandle, failure,
};
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
const MAX_EVENTS: usize = 512;

const MAX_BYTES: usize = 256 << 10;

/// The time that a session is followed without readers: a browser that connects again finds its position.
const LINGER: Duration = Duration::from_secs(10);

/// The first and the longest pause before a failed read of the store is retried.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// The sessions that have readers.
#[derive(Clone, Default)]
pub(in crate::http) struct LiveChannels {
    open: Arc<Mutex<HashMap<SessionKey, Arc<LiveChannel>>>>,
    /// The prices of replies, by app.
    pricing: Arc<HashMap<String, Arc<AppPricing>>>,
}

/// The events of one session, for its readers.
pub(in crate::http) struct LiveChannel {
    /// The id of this channel among all channels that the session had, in any process.
    pub(in crate::http) epoch: String,
    /// The life of the session: one that was created again after its deletion has another channel.
    pub(in crate::http) life: LifeId,
    /// The version before its first event.
    base_version: u64,
    buffer: Mutex<EventBuffer>,
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
    /// The reason of the end, after which no event follows.
    ended: Option<&'static str>,
}

/// The data of the event `ended`, if this commit is the last of its run.
pub(in crate::http) fn end_of(row: &EventRow) -> Option<Value> {
    row.exit.as_ref()?;
    Some(json!({"version": row.version, "invocation": row.invocation, "exit": row.exit}))
}

/// The result of a lookup in the buffer.
pub(in crate::http) enum BufferLookup {
    Event(LiveFrame),
    /// The place is no longer kept.
    Missed,
    NotYet,
    End(&'static str),
}

/// The start of a reader: the next event, and the version before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct StartPosition {
    pub(in crate::http) number: u64,
    pub(in crate::http) version: u64,
}

impl LiveChannels {
    pub(in crate::http) fn new(pricing: impl IntoIterator<Item = (String, Arc<AppPricing>)>) -> Self {
        LiveChannels { open: Arc::default(), pricing: Arc::new(pricing.into_iter().collect()) }
    }

    /// The prices of replies in the app of a runner.
    pub(in crate::http) fn pricing(&self, runner: &Runner, key: &SessionKey) -> Arc<AppPricing> {
        let known = self.pricing.get(key.app.as_str()).map(Arc::clone);
        known.unwrap_or_else(|| Arc::new(AppPricing::new(runner.agent().clone(), Prices::new())))
    }

    /// The channel of a session: an existing one, or a new one.
    pub(in crate::http) async fn get_or_open(
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
        // Commits of a session that was deleted meanwhile name no items of this one.
        let before = session.read_events(range).await?;
        let before = if before.life == stored.life { before.events } else { Vec::new() };
        let changes = runner.watch(session.key()).await;
        let mut open = self.open();
        // NOTE: Another request may have opened a channel during the reads.
        if let Some(found) = open.get(&key).filter(|channel| channel.life == stored.life) {
            return Ok(subscribe(found));
        }
        let channel = Arc::new(LiveChannel {
            epoch: new_epoch(&stored.life),
            life: stored.life.clone(),
            base_version: version,
            buffer: Mutex::new(EventBuffer { version, ..EventBuffer::default() }),
            next: watch::Sender::new(0),
        });
        let subscribed = subscribe(&channel);
        open.insert(key.clone(), Arc::clone(&channel));
        drop(open);
        let pricing = self.pricing(runner, session.key());
        let driver = ChannelDriver::new(
            (runner, changes),
            session.clone(),
            Arc::clone(&channel),
            (version, &before),
            &pricing,
        );
        let guard = ChannelGuard { channels: self.clone(), key, channel };
        tokio::spawn(driver.run(guard));
        Ok(subscribed)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<LiveChannel>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn subscribe(channel: &Arc<LiveChannel>) -> (Arc<LiveChannel>, watch::Receiver<u64>) {
    (Arc::clone(channel), channel.next.subscribe())
}

/// The entry of a channel among the open ones. It is released when this is dropped, also by a panic: the next reader
/// gets a new channel.
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

    /// Removes the entry, unless another channel has it by now.
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
    fn buffer(&self) -> MutexGuard<'_, EventBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position of a new reader: the unfinished text after the newest commit.
    pub(in crate::http) fn newest_position(&self) -> StartPosition {
        let buffer = self.buffer();
        StartPosition { number: buffer.after_commit.max(buffer.first), version: buffer.version }
    }

    /// The position of a reader after the event with this number, or before all events; `None` if it is no longer kept.
    pub(in crate::http) fn position_after(&self, number: Option<u64>) -> Option<StartPosition> {
        let buffer = self.buffer();
        let Some(number) = number else {
            return (buffer.first == 0).then_some(StartPosition { number: 0, version: self.base_version });
        };
        let place = usize::try_from(number.checked_sub(buffer.first)?).ok()?;
        let read = buffer.frames.get(place)?;
        Some(StartPosition { number: number + 1, version: read.version })
    }

    pub(in crate::http) fn lookup(&self, number: u64) -> BufferLookup {
        let buffer = self.buffer();
        let Some(place) = number.checked_sub(buffer.first) else { return BufferLookup::Missed };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        match (buffer.frames.get(place), buffer.ended) {
            (Some(frame), _) => BufferLookup::Event(frame.clone()),
            (None, Some(reason)) => BufferLookup::End(reason),
            (None, None) => BufferLookup::NotYet,
        }
    }

    /// The invocation that runs in this process.
    pub(in crate::http) fn running(&self) -> Option<String> {
        self.buffer().running.clone()
    }

    fn push(&self, event: &str, is_commit: bool, version: u64, data: &impl Serialize) {
        let mut buffer = self.buffer();
        let number = buffer.first + buffer.frames.len() as u64;
        if is_commit {
            (buffer.version, buffer.after_commit) = (version, number + 1);
        }
        // NOTE: Encoded once for all readers, with the lock held: the id names the place in the buffer.
        let bytes = encode(Some((buffer.version, &self.epoch, Some(number))), event, data);
        buffer.bytes += bytes.len();
        let version = buffer.version;
        buffer.frames.push_back(LiveFrame { version, is_commit, is_end: event == "ended", bytes });
        // NOTE: The newest event is kept, however large: a reader that waits for it could never get it otherwise.
        while buffer.frames.len() > MAX_EVENTS || (buffer.bytes > MAX_BYTES && buffer.frames.len() > 1) {
            let dropped = buffer.frames.pop_front().map_or(0, |frame| frame.bytes.len());
            buffer.bytes -= dropped;
            buffer.first += 1;
        }
        drop(buffer);
        self.next.send_replace(number + 1);
    }

    fn end(&self, reason: &'static str) {
        self.buffer().ended.get_or_insert(reason);
        self.next.send_modify(|_| ());
    }
}

/// Follows a session for its channel.
// NOTE: One stream of commits for each session, not one of events for each run: commits are in the store, in order,
// whichever process makes them, so that a reader can resume from anywhere (docs/decisions/server.md).
struct ChannelDriver {
    runner: Runner,
    session: SessionHandle,
    channel: Arc<LiveChannel>,
    changes: BoxStream<'static, SessionChange>,
    rows: RowBuilder,
    run: Option<BoxStream<'static, InvocationEvent>>,
    /// The run in this process, until its end or pause is reported to readers.
    unreported: Option<Invocation>,
    /// An event of the run, after a commit that was not sent yet.
    deferred: Option<(u64, RunEvent)>,
    reported: u64,
}

impl ChannelDriver {
    fn new(
        (runner, changes): (&Runner, BoxStream<'static, SessionChange>),
        session: SessionHandle,
        channel: Arc<LiveChannel>,
        (reported, before): (u64, &[CommittedEvent]),
        pricing: &Arc<AppPricing>,
    ) -> Self {
        let mut rows = RowBuilder::new(pricing);
        for event in before {
            drop(rows.row(event, true));
        }
        let mut driver = ChannelDriver {
            runner: runner.clone(),
            session,
            channel,
            changes,
            rows,
            run: None,
            unreported: None,
            deferred: None,
            reported,
        };
        driver.attach_run();
        driver
    }

    async fn run(mut self, guard: ChannelGuard) {
        let channel = Arc::clone(&self.channel);
        let mut commits =
            follow_commits(&self.runner, self.session.key().clone(), channel.life.clone(), self.reported);
        let mut unread = None;
        loop {
            tokio::select! {
                biased;
                // NOTE: An event that comes after an unsent commit is held back, and no further one is taken: the commits
                // of the run come through the store, a little later than its events.
                seen = next_run_event(&mut self.run), if self.deferred.is_none() => self.on_run_event(seen).await,
                commit = commits.next() => match commit {
                    Some(Ok(commit)) => {
                        self.report_commit(&commit);
                        self.report_deferred().await;
                        self.attach_run();
                        if self.run.is_none() {
                            self.report_requests().await;
                        }
                    }
                    Some(Err(error)) => {
                        let is_gone = Problem::from(error).status() == http::StatusCode::NOT_FOUND;
                        self.channel.end(if is_gone { "deleted" } else { "failed" });
                        break;
                    }
                    None => break,
                },
                Some(_) = self.changes.next() => self.attach_run(),
                () = channel.next.closed(), if unread.is_none() => {
                    // NOTE: A browser that reloads leaves for a moment. Its unfinished text would be lost with the channel.
                    unread = Some(Box::pin(tokio::time::sleep(LINGER)));
                }
                () = elapsed(&mut unread) => {
                    if guard.close_unread() {
                        return;
                    }
                    unread = None;
                }
            }
        }
    }

    /// Sends a commit, and the end or the failure of a run that it records.
    fn report_commit(&mut self, commit: &CommittedEvent) {
        self.reported = commit.version;
        let row = self.rows.row(commit, true);
        self.channel.push("committed", true, commit.version, &row);
        if let Some(end) = end_of(&row) {
            self.unreported = None;
            self.channel.push("ended", false, self.reported, &end);
        }
        if let Some(cause) = failure(&commit.event) {
            self.unreported = None;
            let failed = json!({"version": row.version, "invocation": row.invocation, "cause": cause});
            self.channel.push("failed", false, self.reported, &failed);
        }
    }

    /// Subscribes to the run in this process, if it is another one than before.
    fn attach_run(&mut self) {
        if self.run.is_some() {
            return;
        }
        let running = self.session.running();
        let id = running.as_ref().map(|running| running.id().to_string());
        let is_new = {
            let mut buffer = self.channel.buffer();
            let is_new = id.is_some() && buffer.running != id;
            buffer.running.clone_from(&id);
            is_new
        };
        if let Some(running) = running.filter(|_| is_new) {
            self.channel.push("running", false, self.reported, &json!({"invocation": running.id().as_str()}));
            self.run = Some(running.subscribe(0).boxed());
            self.unreported = Some(running);
        }
    }

    async fn on_run_event(&mut self, seen: Option<InvocationEvent>) {
        match seen {
            Some(InvocationEvent::Event { version, event, .. }) if version > self.reported => {
                self.deferred = Some((version, event));
            }
            Some(InvocationEvent::Event { version, event, .. }) if version == self.reported => {
                self.report_event(&event).await;
            }
            // The commit that followed has all of it; or it is no longer kept.
            Some(_) => {}
            None => {
                self.run = None;
                self.attach_run();
                if self.run.is_none()
                    && let Some(stopped) = self.unreported.take()
                {
                    self.report_stopped(&stopped).await;
                }
            }
        }
    }

    /// Sends the deferred event, if the commit before it is sent.
    async fn report_deferred(&mut self) {
        if let Some((version, event)) = self.deferred.take_if(|(version, _)| *version <= self.reported)
            && version == self.reported
        {
            self.report_event(&event).await;
        }
    }

    async fn report_event(&mut self, event: &RunEvent) {
        if let Some((name, data)) = event_data(event, Vec::new()) {
            self.unreported.take_if(|_| name == "paused");
            self.channel.push(name, false, self.reported, &data);
        }
        if *event == RunEvent::Ended(Exit::Paused(Pause::Approval)) {
            self.report_requests().await;
        }
    }

    /// Reports an invocation that stopped without a commit: the requests that refused decisions left, or its failure.
    async fn report_stopped(&mut self, stopped: &Invocation) {
        if !self.report_requests().await
            && let Err(error) = stopped.outcome().await
        {
            let id = stopped.id().as_str();
            let failed = json!({"version": self.reported, "invocation": id, "cause": error.to_string()});
            self.channel.push("failed", false, self.reported, &failed);
        }
    }

    /// Reports the pending requests, if any, after the newest reported commit. Returns whether readers know them, or get
    /// them after a later commit.
    async fn report_requests(&mut self) -> bool {
        let (pending, newest) = match pending(self.session.clone()).await {
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "pending requests could not be read");
                return false;
            }
        };
        // Requests of a later commit are sent after that commit.
        if !pending.is_empty() && newest == self.reported {
            let requests: Vec<RequestRow> = pending.iter().map(RequestRow::of).collect();
            let waiting = json!({"version": self.reported, "requests": requests});
            self.channel.push("waiting", false, self.reported, &waiting);
        }
        !pending.is_empty() || newest != self.reported
    }
}

/// The requests of a session that wait for decisions, and its version.
async fn pending(session: SessionHandle) -> Result<(Vec<ApprovalRequest>, u64), RunnerError> {
    let pending = session.pending().await?;
    Ok((pending, session.read_events(EventRange::None).await?.version))
}

/// Waits for the end of a sleep; without one, for ever.
async fn elapsed(time: &mut Option<Pin<Box<Sleep>>>) {
    match time {
        Some(time) => time.await,
        None => std::future::pending().await,
    }
}

/// The commits of a session after a version, as long as it has this life. Failed reads of the store are retried; readers
/// wait meanwhile.
fn follow_commits(
    runner: &Runner,
    key: SessionKey,
    life: LifeId,
    after: u64,
) -> BoxStream<'static, Result<CommittedEvent, RunnerError>> {
    let follow = {
        let runner = runner.clone();
        move |after| runner.follow((key.clone(), life.clone()), after)
    };
    let start = (follow(after), after, RETRY_PAUSES.0);
    let commits = futures_util::stream::unfold((follow, start), |(follow, place)| async move {
        let (mut commits, mut after, mut pause) = place;
        loop {
            match commits.next().await? {
                Err(error) if error.remedy() == Remedy::Retry => {
                    tracing::warn!(%error, "commits for live streams could not be read");
                    tokio::time::sleep(pause).await;
                    (commits, pause) = (follow(after), (pause * 2).min(RETRY_PAUSES.1));
                }
                next => {
                    after = next.as_ref().map_or(after, |commit| commit.version);
                    return Some((next, (follow, (commits, after, RETRY_PAUSES.0))));
                }
            }
        }
    });
    commits.boxed()
}

/// The next event of a run; without a run, it waits for ever.
async fn next_run_event(run: &mut Option<BoxStream<'static, InvocationEvent>>) -> Option<InvocationEvent> {
    match run {
        Some(run) => run.next().await,
        None => std::future::pending().await,
    }
}

/// The name and the data of an event of a run; commits are sent from the store. An event of a run inside has the path of
/// calls and nodes to it, the outermost first.
fn event_data(event: &RunEvent, mut path: Vec<Value>) -> Option<(&'static str, Value)> {
    let (name, mut data) = match event {
        RunEvent::Inner { name, id, is_node, place, event } => {
            let kind = if *is_node { "node" } else { "tool" };
            path.push(json!({"call_id": id, "name": name, "kind": kind, "place": place}));
            return event_data(event, path);
        }
        RunEvent::Asking { step, model, .. } => ("asking", json!({"step": step, "model": model})),
        RunEvent::Text(text) => ("text", json!({"delta": text})),
        RunEvent::Reasoning(text) => ("reasoning", json!({"delta": text})),
        // NOTE: Fragments, not the arguments so far: these would grow with the square of their length
        // (docs/decisions/server.md).
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
    use std::collections::BTreeSet;

    use super::*;

    fn channel() -> LiveChannel {
        let (buffer, next) = (Mutex::default(), watch::Sender::new(0));
        let life = LifeId::new("l").unwrap();
        LiveChannel { epoch: "e".to_owned(), life, base_version: 0, buffer, next }
    }

    /// Readers that are slow or absent hold nothing: what is kept is bounded by number and by bytes, and counted.
    #[test]
    fn what_is_kept_for_slow_readers_is_bounded() {
        for (length, events) in [(10, 10_000), (1_000, 10_000), (1 << 20, 10)] {
            let channel = channel();
            let _absent = channel.next.subscribe();
            for version in 0..events {
                channel.push("text", false, version, &json!({"delta": "x".repeat(length)}));
                let buffer = channel.buffer();
                let bytes: usize = buffer.frames.iter().map(|frame| frame.bytes.len()).sum();
                assert_eq!(bytes, buffer.bytes);
                assert!(buffer.frames.len() <= MAX_EVENTS);
                // One that is larger than all that is kept is still told.
                assert!(bytes <= MAX_BYTES || buffer.frames.len() == 1, "{bytes} bytes");
            }
            assert!(matches!(channel.lookup(0), BufferLookup::Missed));
            assert!(matches!(channel.lookup(events - 1), BufferLookup::Event(_)));
            assert!(matches!(channel.lookup(events), BufferLookup::NotYet));
        }
    }
    /// The events in the table of transitions are those that the code sends.
    #[test]
    fn the_table_of_transitions_names_all_events() {
        let source = include_str!("channel.rs");
        let (code, _) = source.split_once("#[cfg(test)]").unwrap();
        let name = |text: &str| text.split_once('"').map_or("", |(name, _)| name).to_owned();
        let mut sent: BTreeSet<String> = code.split("channel.push(\"").skip(1).map(name).collect();
        let of_run = code
            .split("(\"")
            .skip(1)
            .filter(|text| text.split('"').nth(1).is_some_and(|rest| rest.starts_with(", json!(")));
        sent.extend(of_run.map(name));
        let (_, table) = code.split_once("//! # Transitions").unwrap();
        let lines = table.lines().take_while(|line| line.starts_with("//!") || line.is_empty());
        let named: BTreeSet<String> =
            lines.flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
        assert_eq!(named, sent);
    }
}
