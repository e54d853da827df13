//! Search in the messages of sessions: one algorithm for all stores, over an index that it builds when it is used.
//!
//! A store keeps for a session [blocks](block) of its index, each over the events of a range of versions. A search reads the
//! blocks, and scans the events after them; if these have enough messages, it writes the next block. So an append never
//! pays for the index, sessions that are never searched have none, and a store without an index answers the same, slower.
//! Blocks are merged as they grow: a session has few, whatever the number of its searches.
//!
//! An index has hashes of words and no text. It has the events that a rewind has hidden, since another rewind may show them
//! again; a search leaves out what is not visible. Retention and erasure delete the blocks of a session, a fork has blocks
//! of its own.

pub(crate) mod block;
mod index;
mod rank;

use std::future::Future;

use stepfold_state_core::chat::Role;
use stepfold_state_core::{for_each_search_word, searched_text};

use self::block::{Block, word_hash};
pub(crate) use self::index::{BlockInfo, IndexHead, IndexPart, NewBlock, NoIndex, SearchIndex};
use self::rank::{Ranking, SessionMatches};
use crate::error::{ErrorKind, SessionError};
use crate::event::CommittedEvent;
use crate::session::Session;
use crate::store::{
    EventRange, FoundMessage, GetSession, ListSessions, MAX_FOUND_MESSAGES, MAX_SEARCHED_SESSIONS,
    SearchSessions, SessionStore,
};

/// The words of a query; further ones are ignored.
const MAX_QUERY_WORDS: usize = 32;
/// The events that are read at once.
const PAGE: usize = 512;
/// From this number of messages on, those that are not indexed are.
const MIN_INDEXED: usize = 64;
/// Fewer events are not indexed.
const MIN_EVENTS: u64 = 16;
/// A new block with so many messages is full.
const FULL_BLOCK: usize = 512;
/// The messages of an event that are searched.
const MAX_OF_EVENT: usize = block::MAX_MESSAGES - LARGEST_MERGED;
/// The most messages of a block that is merged from others.
const LARGEST_MERGED: usize = 1_024;
/// The sessions that are listed at once.
const SESSIONS: usize = 100;

/// As [`SessionStore::search`], with an index.
pub(crate) async fn search(
    store: &(impl SessionStore + ?Sized),
    index: &impl SearchIndex,
    request: SearchSessions,
) -> Result<Vec<FoundMessage>, SessionError> {
    let words = query_words(&request.query);
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

/// The hashes of the words of a query, each once.
fn query_words(query: &str) -> Vec<u64> {
    let mut words = Vec::new();
    for_each_search_word(query, |word| {
        let hash = word_hash(word);
        if words.len() < MAX_QUERY_WORDS && !words.contains(&hash) {
            words.push(hash);
        }
    });
    words
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
    let mut after = head.last().unwrap_or(session.oldest);
    let mut block = Block::beginning_after(after);
    while after < session.version {
        let limit = PAGE.min(usize::try_from(session.version - after).unwrap_or(PAGE));
        let get = GetSession::new(session.key.clone()).events(EventRange::Page { after, limit });
        let read = store.get(get.without_state()).await?;
        if read.life != session.life {
            return Err(SessionError::not_found(&session.key));
        }
        if read.events.is_empty() {
            // NOTE: retention has deleted them since the session was read.
            matches.add_block(&block, words);
            return Ok(());
        }
        for committed in &read.events {
            add_event(&mut block, committed);
            after = committed.version;
            if block.messages() >= FULL_BLOCK || after >= session.version {
                matches.add_block(&block, words);
                head = add(index, head, &block).await;
                block = Block::beginning_after(after);
            }
        }
    }
    Ok(())
}

/// Adds a block to an index, merged with the blocks before that are no larger. After a failure there is no index to add to.
async fn add(index: &impl SearchIndex, head: IndexHead, block: &Block) -> IndexHead {
    let is_worth = block.messages() >= MIN_INDEXED || block.last - block.after >= PAGE as u64;
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
            let info = BlockInfo { after: block.after, last: block.last, messages: block.messages() };
            write(index.put(new).await).filter(|is_put| *is_put).map(|_| [kept, vec![info]].concat())
        }
        Err(error) => write(Err(error)),
    };
    match added {
        Some(blocks) => IndexHead { blocks, ..head },
        None => IndexHead { generation: None, ..head },
    }
}

/// The blocks that stay, and the new one with those before it that are no larger.
async fn merged(
    index: &impl SearchIndex,
    head: &IndexHead,
    block: &Block,
) -> Result<(Vec<BlockInfo>, Block), SessionError> {
    let (mut kept, mut merged) = (head.blocks.clone(), block.clone());
    while let Some(before) = kept.last().copied().filter(|before| {
        before.messages <= merged.messages() && before.messages + merged.messages() <= LARGEST_MERGED
    }) {
        let parts = index.block(head.number, before.after).await?;
        let bodies: Vec<&[u8]> = parts.iter().map(|part| &*part.body).collect();
        let Some(mut whole) = Block::of_parts(before.after, before.last, &bodies) else { break };
        whole.append(&merged);
        merged = whole;
        kept.pop();
    }
    Ok((kept, merged))
}

/// The result of a write to an index. A failed one fails no search: what is not indexed is scanned.
fn write<T>(written: Result<T, SessionError>) -> Option<T> {
    written.inspect_err(|error| tracing::debug!(%error, "messages are not indexed")).ok()
}

/// Adds the messages of an event, except for instructions.
fn add_event(block: &mut Block, committed: &CommittedEvent) {
    block.begin_event(committed.version);
    for (place, message) in committed.event.messages.iter().take(MAX_OF_EVENT).enumerate() {
        if message.role() != Role::System {
            block.add_message(place, &searched_text(message));
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
