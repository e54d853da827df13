//! A persistent, append-only list with O(1) clone and push.
//!
//! Clones *share* the free slots after their last item. A push writes the next slot once, through a
//! `OnceLock`; a clone keeps its own length and so never sees it. Only when two clones of one length both
//! push does the second copy a chunk (at most 64 items). So appending to a conversation or a state list costs
//! the same at any length, with snapshots of every earlier version.

use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Items in a full chunk, and chunks in a full node.
const WIDTH: usize = 64;
/// The capacity of the first chunk of a short list; it doubles up to [`WIDTH`].
const FIRST_CAPACITY: usize = 4;

/// A persistent list: [`clone`](Clone::clone) and [`push`](List::push) are O(1), and clones are independent.
///
/// Items are stored in chunks of 64; the chunks of a list of more items, below nodes of 64 chunks. Access by index takes
/// constant time; iteration walks whole chunks. Lists with a common origin share their common chunks.
///
/// # Examples
/// ```
/// use stepfold_state_core::List;
///
/// let mut list: List<i32> = (0..3).collect();
/// let snapshot = list.clone();
/// list.push(3);
/// assert_eq!(list.len(), 4);
/// assert_eq!(snapshot.iter().copied().collect::<Vec<_>>(), [0, 1, 2]);
/// ```
pub struct List<T> {
    chunks: ListChunks<T>,
    /// Items before this index were dropped by [`List::keep_last`]; their chunks still hold them.
    start: usize,
    /// The end of the items, exclusive, counted from the first chunk. Slots from there on may be set by a
    /// clone.
    end: usize,
}

/// Most lists are short, and one allocation is all that they need.
enum ListChunks<T> {
    Empty,
    /// Of a list of at most [`WIDTH`] items.
    One(SharedSlots<T>),
    /// Of a longer list. Every node but the last is full: it has `WIDTH * WIDTH` items.
    Nodes(Arc<Vec<ChunkNode<T>>>),
}

/// At most [`WIDTH`] chunks. Appending a chunk fills the next free slot, like appending an item.
type ChunkNode<T> = SharedSlots<SharedSlots<T>>;

/// Shared write-once slots, filled in order.
// NOTE: `OnceLock` needs no unsafe code. A vector trie would copy a node at each push beside a snapshot
// (docs/decisions/state.md).
struct SharedSlots<T>(Arc<[OnceLock<T>]>);

impl<T> SharedSlots<T> {
    fn with_capacity(capacity: usize) -> Self {
        SharedSlots((0..capacity).map(|_| OnceLock::new()).collect())
    }

    fn capacity(&self) -> usize {
        self.0.len()
    }

    fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The item at `index`, which must be below some list's length.
    #[expect(clippy::expect_used, reason = "slots below a list's length were set before it got that length")]
    fn at(&self, index: usize) -> &T {
        self.0[index].get().expect("a slot below the length is set")
    }

    /// Copies the first `length` items into slots with the given capacity.
    fn copied(&self, length: usize, capacity: usize) -> Self
    where
        T: Clone,
    {
        let copy = SharedSlots::with_capacity(capacity);
        for (slot, item) in copy.0.iter().zip(self.0[..length].iter().filter_map(OnceLock::get)) {
            // NOTE: The copy is not shared yet, so its slots are free.
            let _ = slot.set(item.clone());
        }
        copy
    }
}

impl<T> List<T> {
    /// An empty list. It allocates nothing before the first push.
    pub fn new() -> Self {
        List { chunks: ListChunks::Empty, start: 0, end: 0 }
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at `index`; `None` at or after the end.
    pub fn get(&self, index: usize) -> Option<&T> {
        (index < self.len()).then(|| self.at(self.start + index))
    }

    /// The first item.
    pub fn first(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.len().checked_sub(1).and_then(|last| self.get(last))
    }

    /// All items, in order. The iterator is double-ended and knows its length.
    pub fn iter(&self) -> ListIter<'_, T> {
        ListIter { list: self, front: self.start, back: self.end, chunk: &[] }
    }

    /// The items from `index` on; empty at or after the end. Skipping costs nothing.
    pub fn iter_from(&self, index: usize) -> ListIter<'_, T> {
        let front = self.start.saturating_add(index).min(self.end);
        ListIter { list: self, front, back: self.end, chunk: &[] }
    }

    /// Whether both are the same version of the same list, by pointer. `false` is inconclusive: the items may
    /// still be equal.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        let are_same = match (&self.chunks, &other.chunks) {
            (ListChunks::One(mine), ListChunks::One(theirs)) => mine.ptr_eq(theirs),
            (ListChunks::Nodes(mine), ListChunks::Nodes(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        // NOTE: Empty lists have no chunk to compare.
        are_same && self.start == other.start && self.end == other.end || self.is_empty() && other.is_empty()
    }

    /// Whether `self` begins with all of `earlier`, by shared chunks. `false` is inconclusive.
    pub(crate) fn grew_from(&self, earlier: &Self) -> bool {
        self.start == earlier.start
            && self.end >= earlier.end
            && (earlier.is_empty() || self.shares_chunks_with(earlier))
    }

    fn shares_chunks_with(&self, earlier: &Self) -> bool {
        // NOTE: The chunk of the last item of `earlier` is the newest one that both can share. `set` replaces older
        // chunks, and then rebuilds the path to them, so the nodes are compared as well.
        let last = earlier.end - 1;
        let (ListChunks::Nodes(mine), ListChunks::Nodes(theirs)) = (&self.chunks, &earlier.chunks) else {
            return self.chunk(last).ptr_eq(earlier.chunk(last));
        };
        mine.iter().zip(theirs.iter()).all(|(mine, theirs)| mine.ptr_eq(theirs))
            || (0..=last / (WIDTH * WIDTH)).all(|node| {
                let (mine, theirs) = (&mine[node], &theirs[node]);
                mine.ptr_eq(theirs)
                    || (0..WIDTH)
                        .take_while(|chunk| (node * WIDTH + chunk) * WIDTH <= last)
                        .all(|chunk| mine.at(chunk).ptr_eq(theirs.at(chunk)))
            })
    }

    fn at(&self, position: usize) -> &T {
        self.chunk(position).at(position % WIDTH)
    }

    /// The chunk of a position below the end.
    fn chunk(&self, position: usize) -> &SharedSlots<T> {
        match &self.chunks {
            ListChunks::Empty => unreachable!("an empty list has no position"),
            ListChunks::One(chunk) => chunk,
            ListChunks::Nodes(nodes) => nodes[position / (WIDTH * WIDTH)].at(position / WIDTH % WIDTH),
        }
    }
}

impl<T: Clone> List<T> {
    /// Appends an item. O(1), independent of the length and the number of clones.
    pub fn push(&mut self, item: T) {
        let position = self.end;
        let item = match self.free_slot(position) {
            Some(slot) => match slot.set(item) {
                Ok(()) => {
                    self.end += 1;
                    return;
                }
                // NOTE: A clone of the same length pushed first: the histories diverge here.
                Err(item) => item,
            },
            None => item,
        };
        self.push_in_own_chunk(position, item);
        self.end += 1;
    }

    /// Replaces the item at `index`. Copies one chunk and its path: O(64), at any length.
    ///
    /// Returns whether the item exists.
    pub fn set(&mut self, index: usize, item: T) -> bool {
        if index >= self.len() {
            return false;
        }
        let position = self.start + index;
        let old = self.chunk(position);
        let chunk_start = position / WIDTH * WIDTH;
        let length = (self.end - chunk_start).min(WIDTH);
        // NOTE: A slot is written once, and clones may share it, so an item is replaced in a copy of its chunk.
        let chunk = SharedSlots::with_capacity(old.capacity());
        for (offset, slot) in chunk.0.iter().enumerate().take(length) {
            let kept = if chunk_start + offset == position { item.clone() } else { old.at(offset).clone() };
            let _ = slot.set(kept);
        }
        self.put_chunk(position, chunk);
        true
    }

    /// Drops all but the last `count` items. Amortised O(1) per pushed item.
    ///
    /// Dropped items are freed when they are as many as the kept ones (and at least 64).
    pub fn keep_last(&mut self, count: usize) {
        if self.len() <= count {
            return;
        }
        self.start = self.end - count;
        // NOTE: Rebuilding copies `count` items, and at least as many were dropped before.
        if self.start >= count.max(WIDTH) {
            *self = self.iter().cloned().collect();
        }
    }

    /// Drops all but the first `count` items, and frees the dropped ones. Copies one chunk and its path:
    /// O(64), at any length.
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::List;
    ///
    /// let list: List<i32> = (0..1_000).collect();
    /// let mut branch = list.clone();
    /// branch.truncate(2);
    /// branch.push(7);
    /// assert_eq!(branch.iter().copied().collect::<Vec<_>>(), [0, 1, 7]);
    /// assert_eq!(list.len(), 1_000);
    /// ```
    pub fn truncate(&mut self, count: usize) {
        if self.len() <= count {
            return;
        }
        if count == 0 {
            *self = List::new();
            return;
        }
        self.end = self.start + count;
        let last = self.end - 1;
        let old = self.chunk(last);
        // NOTE: The last chunk is copied: in the shared one the next slot is taken, and dropped items stay in
        // memory.
        let chunk = old.copied(last % WIDTH + 1, old.capacity());
        self.chunks = match &self.chunks {
            ListChunks::Nodes(nodes) if last >= WIDTH => {
                let (node_index, chunk_index) = (last / (WIDTH * WIDTH), last / WIDTH % WIDTH);
                let node = nodes[node_index].copied(chunk_index, nodes[node_index].capacity());
                let _ = node.0[chunk_index].set(chunk);
                ListChunks::Nodes(Arc::new(nodes[..node_index].iter().cloned().chain([node]).collect()))
            }
            _ => ListChunks::One(chunk),
        };
    }

    /// The slot for `position`, if its chunk exists and is large enough. It may be set.
    fn free_slot(&self, position: usize) -> Option<&OnceLock<T>> {
        match &self.chunks {
            ListChunks::Empty => None,
            // The next item begins a second chunk.
            ListChunks::One(_) if position == WIDTH => None,
            ListChunks::One(chunk) => chunk.0.get(position),
            ListChunks::Nodes(nodes) => {
                let node = nodes.get(position / (WIDTH * WIDTH))?;
                node.0.get(position / WIDTH % WIDTH)?.get()?.0.get(position % WIDTH)
            }
        }
    }

    /// Puts the item into an exclusive chunk: a new one, a larger copy, or a copy of one whose slot a clone
    /// has taken. The item is inserted before the chunk is shared: a clone on another thread may then see the
    /// chunk and take a free slot in it.
    fn push_in_own_chunk(&mut self, position: usize, item: T) {
        let offset = position % WIDTH;
        let capacity = capacity_for(offset, position < WIDTH);
        let chunk = match offset {
            0 => SharedSlots::with_capacity(capacity),
            _ => self.chunk(position).copied(offset, capacity),
        };
        let _ = chunk.0[offset].set(item);
        self.put_chunk(position, chunk);
    }

    /// Puts `chunk` at `position`: into the node's free slot, or onto an exclusive path.
    fn put_chunk(&mut self, position: usize, chunk: SharedSlots<T>) {
        let nodes = match &mut self.chunks {
            chunks @ (ListChunks::Empty | ListChunks::One(_)) if position < WIDTH => {
                *chunks = ListChunks::One(chunk);
                return;
            }
            ListChunks::Empty => unreachable!("the first chunk is put first"),
            ListChunks::One(first) => {
                let node = SharedSlots::with_capacity(capacity_for(1, true));
                let _ = (node.0[0].set(first.clone()), node.0[1].set(chunk));
                self.chunks = ListChunks::Nodes(Arc::new(vec![node]));
                return;
            }
            ListChunks::Nodes(nodes) => nodes,
        };
        let (node_index, chunk_index) = (position / (WIDTH * WIDTH), position / WIDTH % WIDTH);
        let capacity = capacity_for(chunk_index, node_index == 0);
        let Some(old) = nodes.get(node_index) else {
            let node = SharedSlots::with_capacity(capacity);
            let _ = node.0[chunk_index].set(chunk);
            // NOTE: Copies the vector of nodes if a clone shares it, once in 4,096 items.
            Arc::make_mut(nodes).push(node);
            return;
        };
        if let Some(slot) = old.0.get(chunk_index)
            && slot.set(chunk.clone()).is_ok()
        {
            return;
        }
        let chunks_in_use = self.end.div_ceil(WIDTH) - node_index * WIDTH;
        // NOTE: At least as large as the node that it replaces: `set` may replace a chunk in the middle.
        let node = SharedSlots::with_capacity(capacity.max(old.capacity()));
        for (index, slot) in node.0.iter().enumerate().take(chunks_in_use.clamp(chunk_index + 1, WIDTH)) {
            let kept = if index == chunk_index { &chunk } else { old.at(index) };
            let _ = slot.set(kept.clone());
        }
        Arc::make_mut(nodes)[node_index] = node;
    }
}

/// The number of slots to allocate for `index`: the first chunk and node grow, the others are full.
fn capacity_for(index: usize, is_first: bool) -> usize {
    if is_first { (index + 1).next_power_of_two().max(FIRST_CAPACITY) } else { WIDTH }
}

/// Borrows the items of a [`List`] in order; see [`List::iter`].
pub struct ListIter<'a, T> {
    list: &'a List<T>,
    front: usize,
    back: usize,
    /// The slots of the current chunk from `front` on.
    chunk: &'a [OnceLock<T>],
}

impl<'a, T> Iterator for ListIter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        if self.front == self.back {
            return None;
        }
        if self.chunk.is_empty() {
            self.chunk = &self.list.chunk(self.front).0[self.front % WIDTH..];
        }
        let (slot, rest) = self.chunk.split_first()?;
        self.chunk = rest;
        self.front += 1;
        slot.get()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.back - self.front;
        (left, Some(left))
    }

    // NOTE: The default would walk over every skipped item.
    fn nth(&mut self, count: usize) -> Option<&'a T> {
        self.front = self.front.saturating_add(count).min(self.back);
        self.chunk = &[];
        self.next()
    }
}

impl<'a, T> DoubleEndedIterator for ListIter<'a, T> {
    fn next_back(&mut self) -> Option<&'a T> {
        if self.front == self.back {
            return None;
        }
        self.back -= 1;
        Some(self.list.at(self.back))
    }
}

impl<T> ExactSizeIterator for ListIter<'_, T> {}
impl<T> FusedIterator for ListIter<'_, T> {}

impl<T> Clone for ListIter<'_, T> {
    fn clone(&self) -> Self {
        ListIter { ..*self }
    }
}

impl<T> fmt::Debug for ListIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("left", &self.len()).finish_non_exhaustive()
    }
}

// NOTE: Not derived: a derive would require `T: Clone`, which sharing does not need.
impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        List { chunks: self.chunks.clone(), start: self.start, end: self.end }
    }
}

impl<T> Clone for ListChunks<T> {
    fn clone(&self) -> Self {
        match self {
            ListChunks::Empty => ListChunks::Empty,
            ListChunks::One(chunk) => ListChunks::One(chunk.clone()),
            ListChunks::Nodes(nodes) => ListChunks::Nodes(Arc::clone(nodes)),
        }
    }
}

impl<T> Clone for SharedSlots<T> {
    fn clone(&self) -> Self {
        SharedSlots(Arc::clone(&self.0))
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && (self.ptr_eq(other) || self.iter().eq(other.iter()))
    }
}

impl<T: Eq> Eq for List<T> {}

impl<T> Index<usize> for List<T> {
    type Output = T;

    /// # Panics
    /// If `index` is at or after the end, as a slice does.
    fn index(&self, index: usize) -> &T {
        assert!(
            index < self.len(),
            "index out of range: the list has {} items, the index is {index}",
            self.len()
        );
        self.at(self.start + index)
    }
}

impl<T: Clone> Extend<T> for List<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.push(item);
        }
    }
}

impl<T: Clone> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = List::new();
        list.extend(items);
        list
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = ListIter<'a, T>;

    fn into_iter(self) -> ListIter<'a, T> {
        self.iter()
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de, T: Deserialize<'de> + Clone> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Clone> Visitor<'de> for ListVisitor<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<List<T>, A::Error> {
                let mut list = List::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(list)
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Operations of a test on a growing family of clones.
    #[derive(Clone, Debug)]
    enum Operation {
        Push(u16),
        PushMany(u8),
        Clone,
        Set(u16),
        KeepLast(u8),
        Truncate(u8),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => any::<u16>().prop_map(Operation::Push),
            2 => any::<u8>().prop_map(Operation::PushMany),
            2 => Just(Operation::Clone),
            1 => any::<u16>().prop_map(Operation::Set),
            1 => any::<u8>().prop_map(Operation::KeepLast),
            1 => any::<u8>().prop_map(Operation::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn every_clone_behaves_as_a_vec_of_its_own(
            operations in prop::collection::vec((any::<prop::sample::Index>(), operation()), 1..60),
        ) {
            let mut family: Vec<(List<u16>, Vec<u16>)> = vec![(List::new(), Vec::new())];
            for (which, operation) in operations {
                let index = which.index(family.len());
                let (list, model) = &mut family[index];
                match operation {
                    Operation::Push(item) => {
                        list.push(item);
                        model.push(item);
                    }
                    Operation::PushMany(count) => {
                        list.extend(0..u16::from(count));
                        model.extend(0..u16::from(count));
                    }
                    Operation::Clone => {
                        let copy = family[index].clone();
                        family.push(copy);
                    }
                    Operation::Set(seed) => {
                        if !model.is_empty() {
                            let at = usize::from(seed) % model.len();
                            prop_assert!(list.set(at, seed));
                            model[at] = seed;
                        }
                    }
                    Operation::KeepLast(count) => {
                        list.keep_last(usize::from(count));
                        model.drain(..model.len().saturating_sub(usize::from(count)));
                    }
                    Operation::Truncate(count) => {
                        list.truncate(usize::from(count));
                        model.truncate(usize::from(count));
                    }
                }
            }
            for (list, model) in &family {
                prop_assert_eq!(list.len(), model.len());
                prop_assert!(list.iter().eq(model.iter()));
                prop_assert!(list.iter().rev().eq(model.iter().rev()));
                for (other, other_model) in &family {
                    prop_assert_eq!(list == other, model == other_model);
                    if list.grew_from(other) {
                        prop_assert!(model.starts_with(other_model));
                    }
                }
            }
        }
    }

    #[test]
    fn crosses_chunks_and_nodes() {
        let mut list = List::new();
        let mut snapshots = Vec::new();
        for item in 0..10_000_usize {
            if item % 1_000 == 999 {
                snapshots.push(list.clone());
            }
            list.push(item);
        }
        assert!(list.iter().copied().eq(0..10_000));
        assert_eq!(list.iter_from(9_990).len(), 10);
        assert_eq!(list.iter_from(4_095).next(), Some(&4_095));
        assert_eq!(list.iter().nth(8_191), Some(&8_191));
        for (index, snapshot) in snapshots.iter().enumerate() {
            assert_eq!(snapshot.len(), index * 1_000 + 999);
            assert!(list.grew_from(snapshot));
        }
    }

    #[test]
    fn two_threads_pushing_to_clones_do_not_meet() {
        let base: List<u32> = (0..100).collect();
        let grown: Vec<List<u32>> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..4_u32)
                .map(|thread| {
                    let mut list = base.clone();
                    scope.spawn(move || {
                        list.extend((0..500).map(|item| thread * 1_000 + item));
                        list
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        for (thread, list) in (0_u32..).zip(&grown) {
            let expected = (0..100).chain((0..500).map(|item| thread * 1_000 + item));
            assert!(list.iter().copied().eq(expected));
        }
    }

    #[test]
    fn two_threads_pushing_where_a_chunk_begins_do_not_meet() {
        for length in [0, 64, 128, 4_096] {
            let base: List<u32> = (0..length).collect();
            for _ in 0..if cfg!(miri) { 2 } else { 2_000 } {
                let start = std::sync::Barrier::new(2);
                let push = |item| {
                    let (mut list, start) = (base.clone(), &start);
                    move || {
                        start.wait();
                        list.push(item);
                        list
                    }
                };
                let (left, right) = std::thread::scope(|scope| {
                    let other = scope.spawn(push(1));
                    let left = push(2)();
                    (left, other.join().unwrap())
                });
                assert_eq!((left.last(), right.last()), (Some(&2), Some(&1)), "at {length} items");
            }
        }
    }

    #[test]
    fn a_truncated_list_keeps_nothing_of_what_it_dropped_and_shares_the_rest() {
        let items: Vec<Arc<usize>> = (0..3 * WIDTH * WIDTH).map(Arc::new).collect();
        let list: List<Arc<usize>> = items.iter().cloned().collect();
        for count in
            [1, WIDTH - 1, WIDTH, WIDTH + 1, WIDTH * WIDTH, WIDTH * WIDTH + 1, 2 * WIDTH * WIDTH + 70]
        {
            let mut branch = list.clone();
            branch.truncate(count);
            branch.push(Arc::new(7));
            assert_eq!(branch.len(), count + 1);
            assert!(branch.iter().take(count).zip(&items).all(|(mine, item)| Arc::ptr_eq(mine, item)));
            // At most the items of one chunk are copied.
            let copied = items.iter().filter(|item| Arc::strong_count(item) > 2).count();
            assert!((1..=WIDTH).contains(&copied), "{copied} were copied at {count}");
            assert!(items[count..].iter().all(|item| Arc::strong_count(item) == 2));
        }
        let mut branch = list.clone();
        drop(list);
        branch.truncate(WIDTH * WIDTH + 1);
        assert!(items[WIDTH * WIDTH + 1..].iter().all(|item| Arc::strong_count(item) == 1));
    }

    #[test]
    fn keep_last_frees_what_it_dropped() {
        let token = Arc::new(());
        let mut list = List::new();
        for _ in 0..10_000 {
            list.push(Arc::clone(&token));
            list.keep_last(10);
        }
        assert_eq!(list.len(), 10);
        assert!(Arc::strong_count(&token) <= 10 + 64 + 1, "{} are alive", Arc::strong_count(&token));
    }
}
