//! The ranking of messages (BM25), from integers alone: all stores compute the same scores in the same order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use stepfold_state_core::Bm25;

use super::block::{Block, IndexedMessage, find_in_part, read_messages};
use super::index::IndexHead;
use crate::ids::{LifeId, SessionId};
use crate::session::{Session, VisibleVersions};

/// The visible messages of a session, and which words they have.
#[derive(Debug)]
pub(super) struct SessionMatches {
    id: SessionId,
    life: LifeId,
    oldest: u64,
    version: u64,
    visible: VisibleVersions,
    messages: Vec<IndexedMessage>,
    /// The messages that have each word, and the counts there.
    hits: Vec<Vec<(usize, u64)>>,
}

impl SessionMatches {
    pub(super) fn new(session: &Session, words: usize) -> Self {
        SessionMatches {
            id: session.key.id.clone(),
            life: session.life.clone(),
            oldest: session.oldest,
            version: session.version,
            visible: session.visible.clone(),
            messages: Vec::new(),
            hits: vec![Vec::new(); words],
        }
    }

    /// Adds the visible messages of a block; returns the number of each here.
    fn add_messages(&mut self, messages: &[IndexedMessage]) -> Vec<Option<usize>> {
        let add = |message: &IndexedMessage| {
            let is_here = self.oldest < message.version && message.version <= self.version;
            (is_here && self.visible.contains(message.version)).then(|| {
                self.messages.push(*message);
                self.messages.len() - 1
            })
        };
        messages.iter().map(add).collect()
    }

    fn add_hit(&mut self, word: usize, message: Option<usize>, count: u64) {
        if let Some(message) = message {
            self.hits[word].push((message, count));
        }
    }

    pub(super) fn add_block(&mut self, block: &Block, words: &[u64]) {
        let numbers = self.add_messages(block.all_messages());
        block.find(words, |word, message, count| self.add_hit(word, numbers[message], count));
    }

    /// Adds the indexed messages; `None` if the index is damaged.
    pub(super) fn add_index(&mut self, head: &IndexHead, shards: &[usize], words: &[u64]) -> Option<()> {
        let mut parts = head.parts.iter();
        // NOTE: retention may have deleted more since the session was read.
        let mut after = self.oldest.max(head.oldest);
        for (place, block) in head.blocks.iter().enumerate() {
            // NOTE: the first block begins where retention has left off, or before it; the others where their last one ends.
            if block.after > after || (place > 0 && block.after != after) {
                return None;
            }
            after = block.last;
            let mut numbers = Vec::new();
            for shard in shards {
                let part = parts.next()?;
                if (part.after, part.last, part.shard) != (block.after, block.last, *shard) {
                    return None;
                }
                if *shard == 0 {
                    numbers = self.add_messages(&read_messages(part.after, part.last, &part.body)?);
                    continue;
                }
                let add = |word, message: usize, count| self.add_hit(word, numbers[message], count);
                find_in_part(&part.body, words, numbers.len(), add)?;
            }
        }
        parts.next().is_none().then_some(())
    }
}

/// A message with its score.
#[derive(Debug)]
pub(super) struct RankedMessage<'a> {
    pub(super) session: &'a SessionId,
    pub(super) life: &'a LifeId,
    pub(super) version: u64,
    pub(super) place: usize,
    pub(super) score: f64,
    /// The place of its session, the one that was written last first.
    order: usize,
}

/// The messages of some sessions by their scores.
pub(super) struct Ranking<'a>(BinaryHeap<RankedMessage<'a>>);

impl<'a> Ranking<'a> {
    pub(super) fn new(sessions: &'a [SessionMatches], words: usize) -> Self {
        let messages: u64 = sessions.iter().map(|session| session.messages.len() as u64).sum();
        let lengths = sessions.iter().flat_map(|session| &session.messages).map(|message| message.length);
        let bm25 = Bm25::new(messages, lengths.sum());
        let with = |word: usize| sessions.iter().map(|session| session.hits[word].len() as u64).sum();
        let weight = |word: usize| bm25.weight(with(word));
        let weights: Vec<f64> = (0..words).map(weight).collect();
        let mut ranked = Vec::new();
        for (order, session) in sessions.iter().enumerate() {
            let mut scores = vec![0.0; session.messages.len()];
            // NOTE: the words of each message are added in the order of the query: floats have no other sum of the same bits.
            for (weight, hits) in weights.iter().zip(&session.hits) {
                for (message, count) in hits {
                    scores[*message] += bm25.score(*weight, *count, session.messages[*message].length);
                }
            }
            let of = |(message, score): (&IndexedMessage, f64)| RankedMessage {
                session: &session.id,
                life: &session.life,
                version: message.version,
                place: usize::try_from(message.place).unwrap_or(usize::MAX),
                score,
                order,
            };
            let with_score = session.messages.iter().zip(scores).filter(|(_, score)| *score > 0.0);
            ranked.extend(with_score.map(of));
        }
        Ranking(ranked.into())
    }

    /// The messages, best first.
    pub(super) fn best_first(mut self) -> impl Iterator<Item = RankedMessage<'a>> {
        std::iter::from_fn(move || self.0.pop())
    }
}

impl Ord for RankedMessage<'_> {
    /// Of equal scores the newer one is better, so that a search gives the same again.
    fn cmp(&self, other: &Self) -> Ordering {
        let newer = || (self.version, self.place).cmp(&(other.version, other.place));
        self.score.total_cmp(&other.score).then_with(|| other.order.cmp(&self.order)).then_with(newer)
    }
}

impl PartialOrd for RankedMessage<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RankedMessage<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for RankedMessage<'_> {}
