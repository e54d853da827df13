//! An index of the writes and the token usage of a session, which is read once: the cost of a question about the origin of
//! a value depends on the answer, not on the length of the session.
//!
//! A history only grows, so an index is never wrong: it is continued with the commits that are new, of whatever process.
//! The session at a version decides, when it is read, which writes count there.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stepfold_agent_loop::state_core::state::{Delta, Handler, Write};
use stepfold_session_scopes::{
    CommittedEvent, EventRange, GetSession, LifeId, Scope, Session, SessionKey, SessionSchema,
    SessionStore as _,
};

use super::page_plan::{PagePlan, newest, weight_of_value};
use crate::http::app::SessionTarget;
use crate::http::guard::problem::Problem;
use crate::http::rows::row_builder::{BEFORE, ReplyUsage, RowBuilder};
use crate::http::rows::{EventRow, WriterRow};

/// The number of writes and replies of all sessions that are kept: some 30 MB. An index that is larger is used once.
const MAX_ENTRIES: usize = 100_000;

/// The largest write of a shared key, in bytes of memory, whose value is kept to tell whether the current value is its result.
const MAX_SHARED: usize = 64 << 10;

/// The bytes of memory that count as an entry.
const ENTRY_BYTES: usize = 300;

/// The number of commits that are read at once.
const PAGE: usize = 1_000;

/// The indexes of the most recently requested sessions.
#[derive(Default)]
pub(in crate::http) struct WriteIndexes(Mutex<IndexCache>);

#[derive(Default)]
struct IndexCache {
    places: HashMap<SessionKey, CachedIndex>,
    /// Counts uses.
    now: u64,
}

#[derive(Default)]
struct CachedIndex {
    index: Arc<tokio::sync::Mutex<WriteIndex>>,
    size: usize,
    used: u64,
}

impl WriteIndexes {
    /// Reads the index of a session, continued up to the version that was read of it.
    pub(in crate::http) async fn read<T>(
        &self,
        target: &SessionTarget,
        head: &Session,
        read: impl FnOnce(&WriteIndex) -> T,
    ) -> Result<T, Problem> {
        let key = target.session.key();
        let index = self.place(key);
        // Others that ask for the same session wait, and find it read.
        let mut index = index.lock().await;
        index.extend(target, head).await?;
        self.keep(key, index.size());
        Ok(read(&index))
    }

    fn place(&self, key: &SessionKey) -> Arc<tokio::sync::Mutex<WriteIndex>> {
        Arc::clone(&self.cache().places.entry(key.clone()).or_default().index)
    }

    /// Notes that an index was used, and drops the least recently used ones.
    fn keep(&self, key: &SessionKey, size: usize) {
        let mut cache = self.cache();
        cache.now += 1;
        let now = cache.now;
        if let Some(place) = cache.places.get_mut(key) {
            (place.size, place.used) = (size, now);
        }
        while cache.places.values().map(|place| place.size).sum::<usize>() > MAX_ENTRIES {
            let oldest = cache.places.iter().min_by_key(|(_, place)| place.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            cache.places.remove(&oldest);
        }
    }

    fn cache(&self) -> MutexGuard<'_, IndexCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of a commit, with its version.
pub(in crate::http) struct AtVersion<T> {
    pub(in crate::http) version: u64,
    pub(in crate::http) what: T,
}

/// A write of a key.
pub(in crate::http) struct IndexedWrite {
    /// The kind of the commit.
    pub(in crate::http) kind: Arc<str>,
    pub(in crate::http) handler: Option<Arc<str>>,
    pub(in crate::http) by: Option<Box<WriterRow>>,
    /// The write of a key that other sessions share, unless it is larger than [`MAX_SHARED`].
    shared: Option<Write>,
}

/// The writes and the token usage of the commits of a session, by version.
#[derive(Default)]
pub(in crate::http) struct WriteIndex {
    life: Option<LifeId>,
    /// The version up to which commits were read.
    upto: u64,
    keys: HashMap<Arc<str>, Vec<AtVersion<IndexedWrite>>>,
    reply_usage: Vec<AtVersion<ReplyUsage>>,
    /// The memory of the values that are kept, in entries.
    values: usize,
    /// Interned words: kinds, keys and handlers that many writes share.
    words: HashSet<Arc<str>>,
}

impl WriteIndex {
    /// The keys that were ever written.
    pub(in crate::http) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.keys.keys()
    }

    /// The writes of a key that count in a session as it was read, in order.
    pub(in crate::http) fn writes<'a>(
        &'a self,
        key: &str,
        head: &Session,
    ) -> VisibleEntries<'a, IndexedWrite> {
        counted(self.keys.get(key).map_or(&[], Vec::as_slice), head)
    }

    /// Whether the value of a key is the result of these writes, which are all visible ones: always, unless other sessions
    /// share it.
    pub(in crate::http) fn is_origin(
        key: &str,
        writes: &VisibleEntries<'_, IndexedWrite>,
        session: &Session,
        schema: &SessionSchema,
    ) -> bool {
        if Scope::of(key) == Scope::Session {
            return true;
        }
        let is_blind =
            |write: &Write| write.handler().is_none_or(|handler| *handler == Handler::replace_values());
        // From the last write that does not depend on those before it.
        let mut last = Vec::new();
        for entry in writes.iter().rev() {
            let Some(write) = &entry.what.shared else { return false };
            last.push(write);
            if is_blind(write) {
                break;
            }
        }
        session.is_result_of(key, last.into_iter().rev(), schema)
    }

    /// The visible token usage of the models.
    pub(in crate::http) fn reply_usage(&self, head: &Session) -> VisibleEntries<'_, ReplyUsage> {
        counted(&self.reply_usage, head)
    }

    fn size(&self) -> usize {
        self.keys.values().map(Vec::len).sum::<usize>()
            + self.keys.len()
            + self.reply_usage.len()
            + self.values
            + 1
    }

    /// Reads the commits that are new.
    async fn extend(&mut self, target: &SessionTarget, head: &Session) -> Result<(), Problem> {
        if self.life.as_ref() != Some(&head.life) {
            // NOTE: The session was deleted and created again: its versions name other commits now.
            *self = WriteIndex { life: Some(head.life.clone()), ..WriteIndex::default() };
        }
        let mut rows = RowBuilder::new(target.app.pricing());
        // The first new commits may mention items of the commits before them.
        let of = (target.runner(), target.session.key());
        let before = newest(of.0, of.1, (self.upto, BEFORE)).await;
        for committed in commits(target, head, before).await? {
            drop(rows.row(&committed, true));
        }
        let mut known_from = None;
        while self.upto < head.version {
            let page = PagePlan::just_after(of.0, of.1, (self.upto, PAGE)).await?;
            let stored = commits(target, head, page.range).await?;
            for committed in &stored {
                let from = *known_from.get_or_insert(committed.version);
                let rewound = committed.event.actions.rewound_to().filter(|to| (1..from).contains(to));
                if let Some(to) = rewound {
                    // Commits after a rewind may mention items from before its target.
                    rows = RowBuilder::new(target.app.pricing());
                    let before = newest(of.0, of.1, (to, BEFORE)).await;
                    for committed in commits(target, head, before).await? {
                        drop(rows.row(&committed, true));
                    }
                }
                let row = rows.row(committed, true);
                // NOTE: The request may be cancelled at any await, and the next one continues: no entry is added twice.
                if row.version > self.upto {
                    self.upto = row.version;
                    self.add(row, &committed.event.actions.delta, rows.take_reply_usage());
                }
            }
            if stored.is_empty() {
                // Retention has deleted them.
                self.upto = head.version;
            }
            // NOTE: Other requests are served between pages, also with a store that never waits.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Adds the entries of a commit: a row has the writes of its delta, in the same order.
    fn add(&mut self, row: EventRow, delta: &Delta, reply_usage: Option<ReplyUsage>) {
        let EventRow { version, kind, writes, .. } = row;
        for (write, stored) in writes.into_iter().zip(delta.iter()) {
            let (key, kind) = (self.word(&write.key), self.word(&kind));
            let handler = write.handler.map(|handler| self.word(&handler));
            let shared = self.kept(stored);
            let what = IndexedWrite { kind, handler, by: write.by.map(Box::new), shared };
            self.keys.entry(key).or_default().push(AtVersion { version, what });
        }
        self.reply_usage.extend(reply_usage.map(|what| AtVersion { version, what }));
    }

    /// The write of a shared key, if it is not too large.
    fn kept(&mut self, write: &Write) -> Option<Write> {
        let bytes = write.value().map_or(0, weight_of_value);
        let is_kept = Scope::of(write.key()) != Scope::Session && bytes <= MAX_SHARED;
        self.values += if is_kept { bytes / ENTRY_BYTES } else { 0 };
        is_kept.then(|| write.clone())
    }

    fn word(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return Arc::clone(known);
        }
        let word: Arc<str> = Arc::from(word);
        self.words.insert(Arc::clone(&word));
        word
    }
}

/// Commits of the session that was read, without its state.
async fn commits(
    target: &SessionTarget,
    head: &Session,
    range: EventRange,
) -> Result<Vec<CommittedEvent>, Problem> {
    let get = GetSession::new(target.session.key().clone()).events(range).without_state();
    let stored = target.runner().store().get(get).await?;
    // It was deleted meanwhile, and made again.
    if stored.life != head.life {
        return Err(Problem::unknown_session(head.key.id.as_str()));
    }
    Ok(stored.events)
}

/// The entries of visible commits, in order, as slices of all entries.
pub(in crate::http) struct VisibleEntries<'a, T>(Vec<&'a [AtVersion<T>]>);

impl<'a, T> VisibleEntries<'a, T> {
    pub(in crate::http) fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    pub(in crate::http) fn iter(&self) -> impl DoubleEndedIterator<Item = &'a AtVersion<T>> + '_ {
        self.0.iter().flat_map(|part| part.iter())
    }
}

/// The entries that are visible in a session as it was read. The cost depends on its rewinds only.
fn counted<'a, T>(all: &'a [AtVersion<T>], head: &Session) -> VisibleEntries<'a, T> {
    let part = |(first, last): (u64, u64)| {
        let first = first.max(head.oldest + 1);
        let from = all.partition_point(|of| of.version < first);
        let to = all.partition_point(|of| of.version <= last);
        all.get(from..to).unwrap_or_default()
    };
    VisibleEntries(head.visible.ranges().map(part).collect())
}
