//! Search in the messages of sessions: one algorithm for all stores, over an index that it builds when it is used.
//!
//! A store keeps for a session [blocks](block) of its index, each over the events of a range of versions. A search reads the
//! blocks, and scans the events after them; if these have enough messages, it writes the next block. So an append never
//! pays for the index, sessions that are never searched have none, and a store without an index answers the same, slower.
//! Blocks are merged as they grow: a session has few, whatever the number of its searches.
//!
//! Events are read for the index [without their digests](SearchIndex::add_events), which would cost more than all the rest.
//! Messages that a search finds are read as a whole, and checked.
//!
//! An index has hashes of words and no text. It has the events that a rewind has hidden, since another rewind may show them
//! again; a search leaves out what is not visible. Retention and erasure delete the blocks of a session, a fork has blocks
//! of its own.

pub(crate) mod block;
mod index;
mod rank;

use std::borrow::Cow;
use std::future::Future;

use stepfold_state_core::chat::Role;
use stepfold_state_core::searched_text;

use self::block::Block;
pub(crate) use self::index::{BlockInfo, IndexHead, IndexPart, NewBlock, NoIndex, SearchIndex};
use self::rank::{Ranking, SessionMatches};
use crate::error::{ErrorKind, SessionError};
use crate::event::CommittedEvent;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::event::texts_of_body;
use crate::session::Session;
use crate::store::{
    EventRange, FoundMessage, GetSession, ListSessions, MAX_FOUND_MESSAGES, MAX_SEARCHED_SESSIONS,
    SearchSessions, SessionStore,
};

/// The words of a query; further ones are ignored.
const MAX_QUERY_WORDS: usize = 32;
/// The events that are read at once.
pub(crate) const PAGE: usize = 512;
/// From this size on, events that are not indexed are.
const MIN_INDEXED: usize = 64;
/// Fewer events are not indexed.
const MIN_EVENTS: u64 = 16;
/// From this size on, a block is full. It ends with an event, and is never merged with others.
const FULL_BLOCK: usize = 1_024;
/// So many blocks of one tier become one of the next: a message is written once for each tier.
const MERGED: usize = 4;
/// The sessions that are listed at once.
const SESSIONS: usize = 100;

/// As [`SessionStore::search`], with an index.
pub(crate) async fn search(
    store: &(impl SessionStore + ?Sized),
    index: &impl SearchIndex,
    request: SearchSessions,
) -> Result<Vec<FoundMessage>, SessionError> {
    let words = block::hashes_of(&request.query, MAX_QUERY_WORDS);
    let mut found = Vec::new();
    if let Some(id) = &request.session {
        let get = GetSession::new(request.key(id)).events(EventRange::None).without_state();
        let session = store.get(get).await?;
        if !words.is_empty() && request.except.as_ref() != Some(id) {
            found.push(matches(store, index, session, &words).await?);
        }
    } else if !words.is_empty() {
        found = matches_of_user(store, index, &request, &words).await?;
    }
    read_best(store, &request, Ranking::new(&found, words.len())).await
}

async fn matches_of_user(
    store: &(impl SessionStore + ?Sized),
    index: &impl SearchIndex,
    request: &SearchSessions,
    words: &[u64],
) -> Result<Vec<SessionMatches>, SessionError> {
    let mut found = Vec::new();
    let mut list = ListSessions::new(request.app.as_str(), request.user.as_str())?.limit(SESSIONS);
    loop {
        let page = store.list(list.clone()).await?;
        for session in page.sessions {
            if found.len() == MAX_SEARCHED_SESSIONS {
                return Ok(found);
            }
            if request.except.as_ref() == Some(&session.key.id) {
                continue;
            }
            match matches(store, index, session, words).await {
                // NOTE: deleted since it was listed.
                Err(SessionError::NotFound { .. }) => {}
                // One that cannot be read does not hide the others.
                Err(error) if is_damaged(&error) => {
                    tracing::warn!(%error, "a session cannot be read, and is not searched");
                }
                session => found.push(session?),
            }
        }
        match page.next {
            Some(next) => list = list.after(Some(next)),
            None => return Ok(found),
        }
    }
}

fn is_damaged(error: &SessionError) -> bool {
    matches!(error.kind(), ErrorKind::Broken | ErrorKind::Incompatible)
}

/// The messages of a session that have some of these words.
async fn matches(
    store: &(impl SessionStore + ?Sized),
    index: &impl SearchIndex,
    session: Session,
    words: &[u64],
) -> Result<SessionMatches, SessionError> {
    let shards = block::shards_of(words);
    let mut head = index.head(&session.key, &session.life, &shards).await?;
    let mut matches = SessionMatches::new(&session, words.len());
    if matches.add_index(&head, &shards, words).is_none() {
        // NOTE: a damaged index is as none: it is built again.
        tracing::warn!(session = %session.key, "the search index of a session is damaged; it is built again");
        index.forget(head.number).await?;
        head = IndexHead { blocks: Vec::new(), parts: Vec::new(), ..head };
        matches = SessionMatches::new(&session, words.len());
    }
    let after = head.last().unwrap_or(session.oldest);
    if head.is_new() && session.version.saturating_sub(after) >= MIN_EVENTS {
        // NOTE: before the events are read: an erasure in between then changes the generation, and is noticed.
        head.generation = write(index.begin(head.number).await).flatten();
    }
    scan(store, index, &session, head, words, &mut matches).await?;
    Ok(matches)
}

/// Adds the messages that are not indexed, and indexes them if they are many.
async fn scan(
    store: &(impl SessionStore + ?Sized),
    index: &impl SearchIndex,
    session: &Session,
    mut head: IndexHead,
    words: &[u64],
    matches: &mut SessionMatches,
) -> Result<(), SessionError> {
    let mut block = Block::beginning_after(head.last().unwrap_or(session.oldest));
    while block.last < session.version {
        let before = block.last;
        block = index.add_events(head.number, block, session.version).await?;
        if block.last == before && !add_checked(store, session, &mut block).await? {
            // NOTE: retention has deleted them since the session was read.
            block.sort();
            matches.add_block(&block, words);
            return Ok(());
        }
        if block.is_full() || block.last >= session.version {
            block.sort();
            matches.add_block(&block, words);
            head = add(index, head, &block).await;
            block = Block::beginning_after(block.last);
        }
    }
    Ok(())
}

/// Adds some of the events that follow, each checked; returns whether there are any.
async fn add_checked(
    store: &(impl SessionStore + ?Sized),
    session: &Session,
    block: &mut Block,
) -> Result<bool, SessionError> {
    let left = usize::try_from(session.version - block.last).unwrap_or(PAGE);
    let page = EventRange::Page { after: block.last, limit: PAGE.min(left) };
    let read = store.get(GetSession::new(session.key.clone()).events(page).without_state()).await?;
    if read.life != session.life {
        return Err(SessionError::not_found(&session.key));
    }
    for committed in read.events.iter().take_while(|committed| committed.version <= session.version) {
        if block.is_full() {
            break;
        }
        add_event(block, committed);
    }
    Ok(!read.events.is_empty())
}

/// Adds a block to an index, merged with blocks before it. After a failure there is no index to add to.
async fn add(index: &impl SearchIndex, head: IndexHead, block: &Block) -> IndexHead {
    let is_worth = block.size() >= MIN_INDEXED || block.last - block.after >= PAGE as u64;
    let Some(generation) = head.generation.filter(|_| is_worth) else {
        return IndexHead { generation: None, ..head };
    };
    let added = match merged(index, &head, block).await {
        Ok((kept, block)) => {
            let new = NewBlock {
                number: head.number,
                generation,
                oldest: head.oldest,
                known: head.last(),
                kept: kept.last().map(|kept| kept.last),
                after: block.after,
                last: block.last,
                parts: block.parts(),
            };
            let info = BlockInfo { after: block.after, last: block.last, size: block.size() };
            write(index.put(new).await).filter(|is_put| *is_put).map(|_| [kept, vec![info]].concat())
        }
        Err(error) => write(Err(error)),
    };
    match added {
        Some(blocks) => IndexHead { blocks, ..head },
        None => IndexHead { generation: None, ..head },
    }
}

/// The blocks that stay, and the new one with those before it that it is merged with.
async fn merged(
    index: &impl SearchIndex,
    head: &IndexHead,
    block: &Block,
) -> Result<(Vec<BlockInfo>, Block), SessionError> {
    let (mut kept, mut merged) = (head.blocks.clone(), block.clone());
    loop {
        let count = merged_with(&kept, merged.size());
        let mut wholes = Vec::new();
        for before in kept.split_off(kept.len() - count) {
            let parts = index.block(head.number, before.after).await?;
            let bodies: Vec<&[u8]> = parts.iter().map(|part| &*part.body).collect();
            match Block::of_parts(before.after, before.last, &bodies) {
                Some(whole) => wholes.push(whole),
                None => return Ok((head.blocks.clone(), block.clone())),
            }
        }
        let mut wholes = wholes.into_iter();
        let Some(mut first) = wholes.next() else { return Ok((kept, merged)) };
        wholes.chain([merged]).for_each(|next| first.append(&next));
        first.sort();
        merged = first;
    }
}

/// With how many of the last of some blocks one of this size is merged: as soon as there are enough of its tier.
fn merged_with(blocks: &[BlockInfo], size: usize) -> usize {
    let is_mergeable = |before: &&BlockInfo| before.size < FULL_BLOCK && tier(before.size) <= tier(size);
    let count = blocks.iter().rev().take_while(is_mergeable).count();
    if count + 1 >= MERGED { count } else { 0 }
}

/// The tier of a block of this size, with sizes of four times the one below.
fn tier(size: usize) -> u32 {
    (size / MIN_INDEXED).checked_ilog(MERGED).map_or(0, |tier| tier)
}

/// The result of a write to an index. A failed one fails no search: what is not indexed is scanned.
fn write<T>(written: Result<T, SessionError>) -> Option<T> {
    written.inspect_err(|error| tracing::debug!(%error, "messages are not indexed")).ok()
}

/// Adds the messages of an event, except for instructions.
fn add_event(block: &mut Block, committed: &CommittedEvent) {
    let messages = committed.event.messages.iter();
    add_texts(block, committed.version, messages.map(|message| (message.role(), searched_text(message))));
}

/// As [`add_event`], of the stored body of the event that follows the last one; returns whether it can be read.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn add_body(block: &mut Block, version: u64, body: &str) -> bool {
    let Some(texts) = texts_of_body(body).filter(|_| version == block.last + 1) else { return false };
    add_texts(block, version, texts.into_iter().map(|message| (message.role, message.text)));
    true
}

fn add_texts<'a>(block: &mut Block, version: u64, texts: impl Iterator<Item = (Role, Cow<'a, str>)>) {
    block.begin_event(version);
    for (place, (role, text)) in texts.enumerate() {
        if role != Role::System {
            block.add_message(place, &text);
        }
    }
}

/// Reads the best messages, and leaves out those that are not wanted.
async fn read_best(
    store: &(impl SessionStore + ?Sized),
    request: &SearchSessions,
    ranking: Ranking<'_>,
) -> Result<Vec<FoundMessage>, SessionError> {
    let limit = request.limit.min(MAX_FOUND_MESSAGES);
    let mut found = Vec::new();
    for ranked in ranking.best_first() {
        if found.len() >= limit {
            break;
        }
        let (key, version) = (request.key(ranked.session), ranked.version);
        let page = EventRange::Page { after: version - 1, limit: 1 };
        let read = match store.get(GetSession::new(key).events(page).without_state()).await {
            // NOTE: deleted or pruned since it was ranked.
            Err(SessionError::NotFound { .. }) => continue,
            Err(error) if request.session.is_none() && is_damaged(&error) => {
                tracing::warn!(%error, "a message cannot be read, and is not found");
                continue;
            }
            read => read?,
        };
        let committed = read.visible_events().find(|committed| committed.version == version);
        let Some((event, message)) = committed
            .filter(|_| read.life == *ranked.life)
            .and_then(|committed| Some((&committed.event, committed.event.messages.get(ranked.place)?)))
        else {
            continue;
        };
        let is_ignored = |name: &str| request.ignored_tools.iter().any(|ignored| **ignored == *name);
        if message.tool_result().is_some_and(|result| is_ignored(result.name())) {
            continue;
        }
        found.push(FoundMessage {
            session: ranked.session.clone(),
            version,
            place: ranked.place,
            at: event.at,
            score: ranked.score,
            message: message.clone(),
        });
    }
    Ok(found)
}

/// As [`SessionStore::search`], without an index.
pub(crate) fn scan_all<S: SessionStore + ?Sized>(
    store: &S,
    request: SearchSessions,
) -> impl Future<Output = Result<Vec<FoundMessage>, SessionError>> + Send {
    search(store, &NoIndex, request)
}
