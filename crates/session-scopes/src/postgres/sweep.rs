//! Deletes rows that no session's history contains any more, and no others.

use std::collections::{BTreeSet, HashMap};

use tokio_postgres::Row;

use super::connection::Object;
use super::statements::{
    DELETE_ITEMS, ITEMS_BETWEEN, LISTS_OF, REWINDS_OF, SHARERS, SWEEP_CELLS, SWEEP_EVENTS, SWEEP_ITEMS,
    SWEEP_PAST, SWEEP_REWINDS, SWEEP_TAGS,
};
use super::transaction::{execute, query};
use crate::error::SessionError;
use crate::rows::leftovers::{MAX_SEARCHED_EVENTS, MAX_SEARCHED_SHARERS, StreamSharer, StreamUsage};
use crate::rows::lineage::{from_db, to_db};
use crate::session::{RewindMark, VisibleVersions};

/// Deletes the rows of a stream that no session's history has any more.
pub(super) async fn sweep(connection: &Object, stream: i64) -> Result<(), SessionError> {
    let rows = query(connection, SHARERS, &[&stream]).await?;
    let sharer = |row: &Row| StreamSharer {
        number: row.get(0),
        after: from_db(row.get(1)),
        upto: from_db(row.get(2)),
        oldest: from_db(row.get(3)),
    };
    let sharers: Vec<StreamSharer> = rows.iter().map(sharer).collect();
    let usage = StreamUsage::of(&sharers);
    let upto = usage.as_ref().map_or(-1, |usage| to_db(usage.upto));
    let gaps = usage.as_ref().map(|usage| usage.gaps.clone()).unwrap_or_default();
    let rest = (usage.map_or(0, |usage| usage.upto.saturating_add(1)), u64::MAX);
    let (firsts, lasts) = in_db(gaps.iter().copied().chain([rest]));
    for sql in [SWEEP_EVENTS, SWEEP_TAGS] {
        execute(connection, sql, &[&stream, &firsts, &lasts]).await?;
    }
    let (firsts, lasts) = in_db(sharers.iter().filter_map(StreamSharer::states));
    for sql in [SWEEP_CELLS, SWEEP_PAST] {
        execute(connection, sql, &[&stream, &firsts, &lasts]).await?;
    }
    for sql in [SWEEP_ITEMS, SWEEP_REWINDS] {
        execute(connection, sql, &[&stream, &upto]).await?;
    }
    if gaps.is_empty() || sharers.len() > MAX_SEARCHED_SHARERS {
        return Ok(());
    }
    sweep_items(connection, stream, &sharers, in_db(gaps.into_iter())).await
}

/// Ranges of versions as two arrays.
fn in_db(ranges: impl Iterator<Item = (u64, u64)>) -> (Vec<i64>, Vec<i64>) {
    ranges.map(|(first, last)| (to_db(first), to_db(last))).unzip()
}

/// One row more than are read.
const MOST_ROWS: i64 = MAX_SEARCHED_EVENTS.cast_signed() + 1;

fn is_too_many(rows: &[Row]) -> bool {
    rows.len() as u64 > MAX_SEARCHED_EVENTS
}

/// A row of items in the stream.
struct ItemRow<'r> {
    key: &'r str,
    generation: i64,
    version: i64,
    place: i64,
}

impl<'r> ItemRow<'r> {
    fn read(row: &'r Row) -> Self {
        ItemRow { key: row.get(0), generation: row.get(1), version: row.get(2), place: row.get(3) }
    }
}

/// Deletes items that were added by events of these versions, which no history has, and that no list has any more: it was
/// replaced, or went with a rewind, before all versions that its sessions can go back to.
async fn sweep_items(
    connection: &Object,
    stream: i64,
    sharers: &[StreamSharer],
    (firsts, lasts): (Vec<i64>, Vec<i64>),
) -> Result<(), SessionError> {
    let rows = query(connection, ITEMS_BETWEEN, &[&stream, &firsts, &lasts, &MOST_ROWS]).await?;
    let items: Vec<ItemRow<'_>> = rows.iter().map(ItemRow::read).collect();
    // NOTE: too many to read: all items stay, until a retention or deletion among fewer.
    if items.is_empty() || is_too_many(&rows) {
        return Ok(());
    }
    let keys: BTreeSet<&str> = items.iter().map(|item| item.key).collect();
    let written = ListVersions::read(connection, sharers, keys.into_iter().collect()).await?;
    let Some(written) = written else { return Ok(()) };
    let lost: Vec<&ItemRow<'_>> = items.iter().filter(|item| !written.have(item)).collect();
    let keys: Vec<&str> = lost.iter().map(|item| item.key).collect();
    let of = |field: fn(&ItemRow<'_>) -> i64| -> Vec<i64> { lost.iter().map(|item| field(item)).collect() };
    let (generations, versions) = (of(|item| item.generation), of(|item| item.version));
    let places = of(|item| item.place);
    execute(connection, DELETE_ITEMS, &[&stream, &keys, &generations, &versions, &places]).await.map(drop)
}

/// The versions at which lists were written, of which sessions can go back to a state.
struct ListVersions<'s> {
    sharers: &'s [StreamSharer],
    /// By key and generation: each with its session, and its versions in order.
    lists: HashMap<(String, i64), BTreeSet<(i64, i64)>>,
    rewinds: HashMap<i64, Vec<RewindMark>>,
}

impl<'s> ListVersions<'s> {
    /// `None` if they are too many.
    async fn read(
        connection: &Object,
        sharers: &'s [StreamSharer],
        keys: Vec<&str>,
    ) -> Result<Option<Self>, SessionError> {
        let numbers: Vec<i64> = sharers.iter().map(|sharer| sharer.number).collect();
        let mut lists: HashMap<_, BTreeSet<_>> = HashMap::new();
        let rows = query(connection, LISTS_OF, &[&numbers, &keys, &MOST_ROWS]).await?;
        if is_too_many(&rows) {
            return Ok(None);
        }
        for row in &rows {
            let (session, version) = (row.get(0), row.get(3));
            lists.entry((row.get(1), row.get(2))).or_default().insert((session, version));
        }
        let mut rewinds: HashMap<_, Vec<RewindMark>> = HashMap::new();
        let rows = query(connection, REWINDS_OF, &[&numbers, &MOST_ROWS]).await?;
        if is_too_many(&rows) {
            return Ok(None);
        }
        for row in &rows {
            let mark = RewindMark { version: from_db(row.get(1)), to: from_db(row.get(2)) };
            rewinds.entry(row.get(0)).or_default().push(mark);
        }
        // NOTE: not by the server, which would read all of them to sort them.
        for marks in rewinds.values_mut() {
            marks.sort_unstable_by_key(|mark| mark.version);
        }
        Ok(Some(ListVersions { sharers, lists, rewinds }))
    }

    /// Whether a list has an item: the event that added it is in the session's history, and visible.
    fn have(&self, item: &ItemRow<'_>) -> bool {
        let Some(lists) = self.lists.get(&(item.key.to_owned(), item.generation)) else { return false };
        let version = from_db(item.version);
        let has = |sharer: &StreamSharer| {
            let rewinds = self.rewinds.get(&sharer.number).map(Vec::as_slice).unwrap_or_default();
            let since = (sharer.number, item.version)..=(sharer.number, i64::MAX);
            let mut versions = lists.range(since).rev();
            sharer.contains(version)
                && versions.any(|(_, at)| VisibleVersions::at(from_db(*at), rewinds).contains(version))
        };
        self.sharers.iter().any(has)
    }
}
