//! From writes to statements: current rows are read once, changes are computed by pure functions, and the
//! changes of all keys of a scope are sent as arrays, so their number does not matter.

use std::collections::HashMap;

use deadpool_postgres::Object;
use serde_json::Value;
use stepfold_state_core::state::Write;
use tokio::try_join;
use tokio_postgres::Row;

use super::rows::{HeadRow, History, Items, RowsOf, Schemas, ScopeRow, heads, session_lists, shared_lists};
use super::statements::{
    ADD_ITEMS, ADD_REMOVED, DELETE_CELLS, DELETE_SHARED, DROP_SHARED_ITEMS, FIND_ITEMS, FIND_SHARED_ITEMS,
    FORGET_REMOVED, KEEP_PAST, MOVE_SCOPE, PUT_CELLS, PUT_SHARED, PUT_SHARED_ITEMS, READ_LINEAGE,
    READ_REWINDS,
};
use super::sums;
use super::transaction::{Given, Sent, execute, query};
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::rows::{Change, Extent, Found, Head, Plan, Planner, by_key, from_db, to_db};
use crate::seal::{self, SessionRecord};
use crate::store::REMEMBERED_REMOVALS;

/// The generation of a shared list that begins anew. What is stored has generation 0.
pub(super) const ANEW: u64 = 1;

/// The keys that are written, in the form that statements take.
pub(super) fn keys(writes: &[&Write]) -> Vec<String> {
    by_key(writes).into_iter().map(|(key, _)| key.to_owned()).collect()
}

/// Where the items of a list come from, should they be needed.
pub(super) enum Source<'a> {
    /// The session.
    Session(&'a SessionKey, &'a SessionRecord),
    /// The scope of an app, or of a user, and its number.
    Shared(&'a AppId, Option<&'a UserId>, i64),
}

impl Source<'_> {
    /// Whose rows are read.
    pub(super) fn rows_of(&self) -> RowsOf {
        match self {
            Source::Session(..) => RowsOf::Session,
            Source::Shared(_, _, scope) => RowsOf::Shared(*scope),
        }
    }

    async fn items(
        &self,
        connection: &Object,
        heads: &[HeadRow],
        keys: &[String],
    ) -> Result<Items, SessionError> {
        match self {
            Source::Session(key, record) => {
                let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
                let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
                let items = async { query(connection, FIND_ITEMS, &[&app, &user, &id, &keys]).await };
                let rewinds = async { query(connection, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await };
                let (lineage, rewinds, items) = try_join!(biased; ask(READ_LINEAGE), rewinds, items)?;
                let history = History::read(&lineage, &rewinds, record, None)?;
                let lists = session_lists(heads, &items, &history);
                let wanted = lists.into_iter().filter(|(head, _)| keys.contains(&head.key));
                wanted.map(|(head, list)| Ok((head.key.clone(), list?))).collect()
            }
            Source::Shared(app, user, scope) => {
                let (app, user) = (app.as_str(), user.map_or("", UserId::as_str));
                let items = query(connection, FIND_SHARED_ITEMS, &[&app, &user, &keys]).await?;
                let lists = shared_lists(heads, &items, *scope);
                let wanted = lists.into_iter().filter(|(head, _)| keys.contains(&head.key));
                wanted.map(|(head, list)| Ok((head.key.clone(), list?))).collect()
            }
        }
    }
}

/// Folds writes into what the rows of their keys hold.
pub(super) async fn plan(
    connection: &Object,
    schemas: &Schemas,
    planner: &Planner<'_>,
    rows: &[Row],
    writes: &[&Write],
    source: Source<'_>,
) -> Result<Changes, SessionError> {
    let heads = heads(rows, source.rows_of())?;
    let mut found = HashMap::new();
    for row in &heads {
        let schema = schemas.text(connection, row.schema).await?;
        found.insert(row.key.as_str(), (Found { head: row.head.clone(), schema }, row));
    }
    let known = |key: &str| found.get(key).map(|(found, _)| found);
    let row = |key: &str| found.get(key).map(|(_, row)| *row);
    let mut changes = Changes::default();
    let mut waiting = Vec::new();
    for (key, writes) in by_key(writes) {
        match planner.plan(known(key), None, &writes)? {
            Plan::Change(change) => changes.add(key, row(key), change),
            Plan::NeedsItems => waiting.push((key, writes)),
        }
    }
    if waiting.is_empty() {
        return Ok(changes);
    }
    let keys: Vec<String> = waiting.iter().map(|(key, _)| (*key).to_owned()).collect();
    let mut items = source.items(connection, &heads, &keys).await?;
    for (key, writes) in waiting {
        let list = items.remove(key).unwrap_or_default();
        if let Plan::Change(change) = planner.plan(known(key), Some(list), &writes)? {
            changes.add(key, row(key), change);
        }
    }
    Ok(changes)
}

/// The place of the first item that a shared list keeps, if a change takes any from it.
fn first_kept(before: Extent, change: &Change) -> Option<i64> {
    let kept = match change {
        Change::List(extent, _) if extent.generation != ANEW => extent.start,
        _ => return Some(i64::MAX),
    };
    // The statement that drops items reads all items of the scope.
    (kept > before.start).then(|| to_db(kept))
}

/// What changes in a scope, as columns.
#[derive(Default)]
pub(super) struct Changes {
    /// Keys that had a row before, each with its version and checksum.
    past: Vec<(String, i64, i64)>,
    removed: Vec<String>,
    put: Put,
    items: ItemColumns,
    /// Shared lists that lose items: those before a place.
    shrunk: (Vec<String>, Vec<i64>),
}

#[derive(Default)]
struct Put {
    keys: Vec<String>,
    values: Vec<Option<String>>,
    generations: Vec<Option<i64>>,
    starts: Vec<Option<i64>>,
    lengths: Vec<Option<i64>>,
    /// The combined checksums of the rows of items that a list has already.
    items: Vec<Option<i64>>,
    /// Of lists that are only appended to: the version of their last other change.
    changed: Vec<Option<i64>>,
}

#[derive(Default)]
struct ItemColumns {
    keys: Vec<String>,
    generations: Vec<i64>,
    places: Vec<i64>,
    /// As arrays of items, and where each begins.
    items: Vec<Vec<Value>>,
}

impl Changes {
    fn add(&mut self, key: &str, found: Option<&HeadRow>, change: Change) {
        if change == Change::Nothing {
            return;
        }
        if let Some(found) = found {
            self.past.push((key.to_owned(), found.version, found.checksum));
            if let Head::List(before) = &found.head
                && let Some(kept) = first_kept(*before, &change)
            {
                self.shrunk.0.push(key.to_owned());
                self.shrunk.1.push(kept);
            }
        }
        let before = found.and_then(|found| Some((found.extent()?, found.changed)));
        let changed = before.filter(|(before, _)| change.only_appends(*before)).map(|(_, changed)| changed);
        match change {
            Change::Nothing => {}
            Change::Remove => self.removed.push(key.to_owned()),
            Change::Json(value) => self.put.add(key, Some(value.to_string()), None, None),
            Change::List(extent, rows) => {
                let is_same = |found: &&HeadRow| matches!(&found.head, Head::List(had) if had.generation == extent.generation);
                let items = found.filter(is_same).map_or(0, |found| found.items);
                self.put.add(key, None, Some((extent, items)), changed);
                for (place, items) in rows {
                    self.items.keys.push(key.to_owned());
                    self.items.generations.push(to_db(extent.generation));
                    self.items.places.push(to_db(place));
                    self.items.items.push(items);
                }
            }
        }
    }

    /// The statements that write the values of a session, which then are those of `version`; and what its combined
    /// checksums change by.
    pub(super) fn into_session<'a>(
        self,
        connection: &'a Object,
        stream: i64,
        version: u64,
        schema: i64,
    ) -> (Vec<Sent<'a>>, i64) {
        let version = to_db(version);
        let Changes { past, removed, put, items, .. } = self;
        let gone =
            past.iter().fold(0, |sum, (key, version, content)| sum ^ sums::of_cell(key, *version, *content));
        let past: Vec<String> = past.into_iter().map(|(key, ..)| key).collect();
        let items = items.summed(stream, version);
        let put = put.summed(schema, &items);
        let cells = put.contents.iter().zip(&put.put.keys);
        let cells = cells.fold(gone, |sum, (content, key)| sum ^ sums::of_cell(key, version, *content));
        let mut sent: Vec<Sent<'a>> = Vec::new();
        if !past.is_empty() {
            sent.push(Box::pin(
                async move { execute(connection, KEEP_PAST, &[&stream, &version, &past]).await },
            ));
        }
        if !removed.is_empty() {
            sent.push(Box::pin(async move { execute(connection, DELETE_CELLS, &[&stream, &removed]).await }));
        }
        if !put.put.keys.is_empty() {
            sent.push(Box::pin(async move { put.execute(connection, [stream, version, schema]).await }));
        }
        if !items.keys.is_empty() {
            sent.push(Box::pin(async move {
                let ItemTexts { keys, generations, places, items, sums } = &items;
                let given: Given<'_> = &[&stream, &version, keys, generations, places, items, sums];
                execute(connection, ADD_ITEMS, given).await
            }));
        }
        (sent, cells)
    }

    /// The statements that write the values of a shared scope, which gets its next version.
    pub(super) async fn into_scope<'a>(
        self,
        connection: &'a Object,
        (app, owner): (&str, &str),
        mut row: ScopeRow,
        schema: i64,
    ) -> Result<Vec<Sent<'a>>, SessionError> {
        let Changes { past, removed, put, items, shrunk } = self;
        row.version += 1;
        let (scope, version) = (row.scope, to_db(row.version));
        let starts: HashMap<String, i64> =
            put.keys.iter().cloned().zip(put.starts.iter().map(|start| start.unwrap_or_default())).collect();
        let changed: Vec<i64> = put.changed.iter().map(|changed| changed.unwrap_or(version)).collect();
        let put_sums = put.shared(scope, (version, &changed), schema);
        let gone = past.iter().map(|(_, _, checksum)| checksum);
        row.cells = gone.chain(&put_sums).fold(row.cells, |cells, sum| cells ^ sum);
        if !removed.is_empty() {
            row.known = row.known.max(remember_removed(connection, scope, &removed, version).await?);
        }
        let seal = row.seal(app, owner).to_bytes();
        let known = to_db(row.known);
        let mut sent: Vec<Sent<'a>> = Vec::new();
        if !shrunk.0.is_empty() {
            sent.push(Box::pin(async move {
                execute(connection, DROP_SHARED_ITEMS, &[&scope, &shrunk.0, &shrunk.1]).await
            }));
        }
        sent.push(Box::pin(async move {
            execute(connection, MOVE_SCOPE, &[&scope, &version, &known, &seal]).await
        }));
        if !removed.is_empty() {
            sent.push(Box::pin(async move { execute(connection, DELETE_SHARED, &[&scope, &removed]).await }));
        }
        if !put.keys.is_empty() {
            sent.push(Box::pin(async move {
                let Put { keys, values, starts, lengths, .. } = &put;
                let given: Given<'_> =
                    &[&scope, &schema, keys, values, starts, lengths, &version, &changed, &put_sums];
                execute(connection, PUT_SHARED, given).await
            }));
        }
        let (keys, places, items) = items.one_by_one(&starts);
        if !keys.is_empty() {
            sent.push(Box::pin(async move {
                let sum = |row: usize| {
                    let place = (places[row], version);
                    seal::of_item(scope, &keys[row], place, &items[row])
                };
                let sums: Vec<i64> = (0..keys.len()).map(sum).collect();
                execute(connection, PUT_SHARED_ITEMS, &[&scope, &keys, &places, &items, &sums, &version])
                    .await
            }));
        }
        Ok(sent)
    }
}

/// Rows of items of a session's lists, as they are stored.
struct ItemTexts {
    keys: Vec<String>,
    generations: Vec<i64>,
    places: Vec<i64>,
    items: Vec<String>,
    sums: Vec<i64>,
}

/// Rows of a session's values, with what is stored of their lists' items, and the checksums of their contents.
struct SummedPut {
    put: Put,
    items: Vec<Option<i64>>,
    contents: Vec<i64>,
}

impl SummedPut {
    async fn execute(
        &self,
        connection: &Object,
        [stream, version, schema]: [i64; 3],
    ) -> Result<u64, SessionError> {
        let SummedPut { put: Put { keys, values, generations, starts, lengths, .. }, items, contents } = self;
        let given: Given<'_> =
            &[&stream, &version, &schema, keys, values, generations, starts, lengths, items, contents];
        execute(connection, PUT_CELLS, given).await
    }
}

/// Remembers which keys a write to a scope removes; the version up to which removals are forgotten by that.
async fn remember_removed(
    connection: &Object,
    scope: i64,
    removed: &[String],
    version: i64,
) -> Result<u64, SessionError> {
    let kept = to_db(REMEMBERED_REMOVALS as u64);
    let (_, forgotten) = try_join!(biased;
        async { execute(connection, ADD_REMOVED, &[&scope, &removed, &version]).await },
        async { query(connection, FORGET_REMOVED, &[&scope, &kept]).await },
    )?;
    Ok(forgotten.first().map_or(0, |row| from_db(row.get(0))))
}

impl ItemColumns {
    fn summed(self, stream: i64, version: i64) -> ItemTexts {
        let ItemColumns { keys, generations, places, items } = self;
        let items: Vec<String> = items.into_iter().map(|items| Value::Array(items).to_string()).collect();
        let sum = |row: usize| {
            let place = (generations[row], places[row]);
            sums::of_items((stream, version), &keys[row], place, &items[row])
        };
        let sums = (0..keys.len()).map(sum).collect();
        ItemTexts { keys, generations, places, items, sums }
    }

    /// One row an item, without those that a list has lost already: a statement may write each row once.
    fn one_by_one(self, starts: &HashMap<String, i64>) -> (Vec<String>, Vec<i64>, Vec<String>) {
        let mut columns = (Vec::new(), Vec::new(), Vec::new());
        for ((key, place), items) in self.keys.into_iter().zip(self.places).zip(self.items) {
            let start = starts.get(&key).copied().unwrap_or_default();
            for (place, item) in (place..).zip(items).filter(|(place, _)| *place >= start) {
                columns.0.push(key.clone());
                columns.1.push(place);
                columns.2.push(item.to_string());
            }
        }
        columns
    }
}

impl Put {
    fn add(&mut self, key: &str, value: Option<String>, list: Option<(Extent, i64)>, changed: Option<i64>) {
        self.keys.push(key.to_owned());
        self.values.push(value);
        let number = |of: fn(Extent) -> u64| list.map(|(extent, _)| to_db(of(extent)));
        self.generations.push(number(|extent| extent.generation));
        self.starts.push(number(|extent| extent.start));
        self.lengths.push(number(|extent| extent.length));
        self.items.push(list.map(|(_, items)| items));
        self.changed.push(changed);
    }

    fn summed(self, schema: i64, added: &ItemTexts) -> SummedPut {
        let added = sums::by_key(added.keys.iter().map(String::as_str).zip(added.sums.iter().copied()));
        let with = |(key, items): (&String, &Option<i64>)| {
            items.map(|items| items ^ added.get(key.as_str()).copied().unwrap_or_default())
        };
        let items: Vec<Option<i64>> = self.keys.iter().zip(&self.items).map(with).collect();
        let contents = self.contents(schema, &items);
        SummedPut { put: self, items, contents }
    }

    fn extent(&self, row: usize) -> Option<Extent> {
        let (generation, start) = self.generations[row].zip(self.starts[row])?;
        let length = from_db(self.lengths[row]?);
        Some(Extent { generation: from_db(generation), start: from_db(start), length })
    }

    /// The checksums of the contents of a session's rows.
    fn contents(&self, schema: i64, items: &[Option<i64>]) -> Vec<i64> {
        let content = |row: usize| {
            let list = self.extent(row).zip(items[row]);
            sums::of_content(&self.keys[row], schema, self.values[row].as_deref(), list)
        };
        (0..self.keys.len()).map(content).collect()
    }

    /// The checksums of the rows of a shared scope.
    fn shared(&self, scope: i64, (version, changed): (i64, &[i64]), schema: i64) -> Vec<i64> {
        let sum = |row: usize| {
            let (versions, list) = ((version, changed[row]), self.starts[row].zip(self.lengths[row]));
            seal::of_shared(scope, &self.keys[row], versions, schema, self.values[row].as_deref(), list)
        };
        (0..self.keys.len()).map(sum).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shared_list_that_only_grows_drops_no_items() {
        let extent = |start, length| Extent { generation: 0, start, length };
        let dropped = |change| first_kept(extent(3, 10), &change);
        let grown = |start| Change::List(extent(start, 11), vec![(13, vec![json!("item")])]);
        assert_eq!(dropped(grown(3)), None);
        assert_eq!(dropped(grown(4)), Some(4));
        let anew = Change::List(Extent { generation: ANEW, start: 0, length: 0 }, Vec::new());
        assert_eq!([dropped(anew), dropped(Change::Remove)], [Some(i64::MAX); 2]);
    }
}
