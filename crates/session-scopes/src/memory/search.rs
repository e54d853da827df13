//! The indexes of searches in memory, in the form in which databases store them.

use std::future::{Future, ready};

use super::{MemoryInner, MemoryStore};
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};
use crate::search::{IndexHead, IndexPart, NewBlock, SearchIndex};

/// The index of a session.
#[derive(Debug, Default)]
pub(super) struct MemoryIndex {
    generation: i64,
    /// Whether it was [begun](SearchIndex::begin); before, it only stands for its session.
    is_begun: bool,
    /// The blocks, in order.
    blocks: Vec<NewBlock>,
}

impl MemoryIndex {
    fn parts(&self, is_wanted: impl Fn(&NewBlock, usize) -> bool) -> Vec<IndexPart> {
        let parts = self
            .blocks
            .iter()
            .flat_map(|block| block.parts.iter().enumerate().map(move |(shard, body)| (block, shard, body)));
        let wanted = parts.filter(|(block, shard, _)| is_wanted(block, *shard));
        let part = |(block, shard, body): (&NewBlock, usize, &Vec<u8>)| IndexPart {
            after: block.after,
            last: block.last,
            shard,
            body: body.as_slice().into(),
        };
        wanted.map(part).collect()
    }
}

impl SearchIndex for MemoryStore {
    fn head(
        &self,
        key: &SessionKey,
        life: &LifeId,
        shards: &[usize],
    ) -> impl Future<Output = Result<IndexHead, SessionError>> + Send {
        let mut inner = self.lock();
        let Some((.., entry)) = inner.entry(key).ok().filter(|(.., entry)| entry.work.life == *life) else {
            return ready(Ok(IndexHead::default()));
        };
        let head = IndexHead {
            number: entry.number,
            oldest: entry.oldest,
            generation: None,
            ..IndexHead::default()
        };
        let number = entry.number;
        let index = inner.indexes.entry(number).or_default();
        if !index.is_begun {
            return ready(Ok(head));
        }
        let head = IndexHead { generation: Some(index.generation), ..head };
        ready(Ok(head.with_parts(index.parts(|_, shard| shards.contains(&shard)))))
    }

    fn begin(&self, number: i64) -> impl Future<Output = Result<Option<i64>, SessionError>> + Send {
        let mut inner = self.lock();
        // Without one, the session was deleted since its head was read.
        ready(Ok(inner.indexes.get_mut(&number).map(|index| {
            index.is_begun = true;
            index.generation
        })))
    }

    fn block(
        &self,
        number: i64,
        after: u64,
    ) -> impl Future<Output = Result<Vec<IndexPart>, SessionError>> + Send {
        let inner = self.lock();
        let parts = inner.indexes.get(&number).map(|index| index.parts(|block, _| block.after == after));
        ready(Ok(parts.unwrap_or_default()))
    }

    fn put(&self, block: NewBlock) -> impl Future<Output = Result<bool, SessionError>> + Send {
        let mut inner = self.lock();
        // NOTE: retention, erasures and deletions remove what was indexed, and `known` then differs; but where nothing was,
        // the generation does.
        let Some(index) = inner.indexes.get_mut(&block.number) else { return ready(Ok(false)) };
        if (index.generation, index.blocks.last().map(|last| last.last)) != (block.generation, block.known) {
            return ready(Ok(false));
        }
        index.blocks.retain(|kept| block.kept.is_some_and(|last| kept.last <= last));
        index.blocks.push(block);
        ready(Ok(true))
    }

    fn forget(&self, number: i64) -> impl Future<Output = Result<(), SessionError>> + Send {
        self.lock().forget_index(number);
        ready(Ok(()))
    }
}

impl MemoryInner {
    /// Deletes the blocks of a session whose content has changed.
    pub(super) fn forget_index(&mut self, number: i64) {
        if let Some(index) = self.indexes.get_mut(&number) {
            index.generation += 1;
            index.blocks.clear();
        }
    }
}
