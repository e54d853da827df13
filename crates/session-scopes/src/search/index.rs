//! The port by which a search reads and writes the index of a session.

use std::future::{Future, ready};

use super::block::{Block, size_of_block};
use crate::error::SessionError;
use crate::ids::{LifeId, SessionKey};

/// The known extent of a session's index, and the parts that a search needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexHead {
    /// The number of the session.
    pub(crate) number: i64,
    /// Changes when an erasure makes an index invalid that is being built; `None` if the session has none.
    pub(crate) generation: Option<i64>,
    /// The oldest version of the session.
    pub(crate) oldest: u64,
    /// Its blocks, in order.
    pub(crate) blocks: Vec<BlockInfo>,
    /// The requested parts of these, in the order of blocks and shards.
    pub(crate) parts: Vec<IndexPart>,
}

impl IndexHead {
    /// The version up to which events are indexed.
    pub(crate) fn last(&self) -> Option<u64> {
        self.blocks.last().map(|block| block.last)
    }

    /// Whether an index can be begun.
    pub(crate) fn is_new(&self) -> bool {
        self.generation.is_none() && self.blocks.is_empty()
    }

    /// The head with these parts, and with the blocks that the parts of messages are of.
    pub(crate) fn with_parts(mut self, parts: Vec<IndexPart>) -> Self {
        let of_messages = parts.iter().filter(|part| part.shard == 0);
        self.blocks = of_messages
            .map(|part| BlockInfo { after: part.after, last: part.last, size: size_of_block(&part.body) })
            .collect();
        self.parts = parts;
        self
    }
}

/// A block of an index: the events after a version, up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockInfo {
    pub(crate) after: u64,
    pub(crate) last: u64,
    /// Its size in messages, longer ones counted by their words.
    pub(crate) size: usize,
}

/// A part of a block.
#[derive(Clone, Debug)]
pub(crate) struct IndexPart {
    pub(crate) after: u64,
    pub(crate) last: u64,
    pub(crate) shard: usize,
    /// Empty if its checksum does not fit, which no part of messages is.
    pub(crate) body: Box<[u8]>,
}

/// A block to be stored, unless the index has changed meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct NewBlock {
    pub(crate) number: i64,
    pub(crate) generation: i64,
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(dead_code, reason = "in memory, retention changes the generation")
    )]
    pub(crate) oldest: u64,
    /// The last version of the blocks that are there.
    pub(crate) known: Option<u64>,
    /// The last version of those that stay. The others are replaced.
    pub(crate) kept: Option<u64>,
    pub(crate) after: u64,
    pub(crate) last: u64,
    pub(crate) parts: Vec<Vec<u8>>,
}

/// The indexes of a store. Implemented by stores, called by [`search`](super::search).
pub(crate) trait SearchIndex: Send + Sync {
    /// The index of a session of this incarnation, with these parts of each block. Of a session that is gone, none.
    fn head(
        &self,
        key: &SessionKey,
        life: &LifeId,
        shards: &[usize],
    ) -> impl Future<Output = Result<IndexHead, SessionError>> + Send;

    /// Begins an index, and returns its generation; `None` if the session is gone.
    fn begin(&self, number: i64) -> impl Future<Output = Result<Option<i64>, SessionError>> + Send;

    /// All parts of the block after a version, in order.
    fn block(
        &self,
        number: i64,
        after: u64,
    ) -> impl Future<Output = Result<Vec<IndexPart>, SessionError>> + Send;

    /// Stores a block, and returns whether it is stored: it is not if the session, its oldest version, the generation or
    /// the last block is another by now.
    fn put(&self, block: NewBlock) -> impl Future<Output = Result<bool, SessionError>> + Send;

    /// Adds the events after the last one of a block, up to a version, until the block is full; as many as can be read
    /// without the checks of [`SessionStore::get`](crate::SessionStore::get), and none that lacks its predecessor. None by
    /// default: events in memory have no form that is read faster.
    fn add_events(
        &self,
        number: i64,
        block: Block,
        last: u64,
    ) -> impl Future<Output = Result<Block, SessionError>> + Send {
        let (_, _) = (number, last);
        ready(Ok(block))
    }

    /// Deletes the blocks of a session.
    fn forget(&self, number: i64) -> impl Future<Output = Result<(), SessionError>> + Send;
}

/// No index: all is scanned.
pub(crate) struct NoIndex;

impl SearchIndex for NoIndex {
    fn head(
        &self,
        _: &SessionKey,
        _: &LifeId,
        _: &[usize],
    ) -> impl Future<Output = Result<IndexHead, SessionError>> + Send {
        ready(Ok(IndexHead::default()))
    }

    fn begin(&self, _: i64) -> impl Future<Output = Result<Option<i64>, SessionError>> + Send {
        ready(Ok(None))
    }

    fn block(&self, _: i64, _: u64) -> impl Future<Output = Result<Vec<IndexPart>, SessionError>> + Send {
        ready(Ok(Vec::new()))
    }

    fn put(&self, _: NewBlock) -> impl Future<Output = Result<bool, SessionError>> + Send {
        ready(Ok(false))
    }

    fn forget(&self, _: i64) -> impl Future<Output = Result<(), SessionError>> + Send {
        ready(Ok(()))
    }
}
