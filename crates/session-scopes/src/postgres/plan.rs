//! From writes to statements: what is there is read once, what changes is decided by pure functions, and
//! the changes of all keys of a scope travel as arrays, so that their number does not count.

use std::collections::HashMap;

use deadpool_postgres::Object;
use serde_json::Value;
use stepfold_state_core::state::Write;
use tokio::try_join;
use tokio_postgres::Row;

use super::rows::{HeadRow, History, Items, Schemas, heads, session_items, shared_items};
use super::statements::{
    ADD_ITEMS, ADD_REMOVED, DELETE_CELLS, DELETE_SHARED, DROP_SHARED_ITEMS, FIND_ITEMS, FIND_SHARED_ITEMS,
    FORGET_REMOVED, KEEP_PAST, MOVE_SCOPE, PUT_CELLS, PUT_SHARED, PUT_SHARED_ITEMS, READ_LINEAGE,
    READ_REWINDS,
};
use super::transaction::{Given, Sent, execute, query};
use crate::error::SessionError;
use crate::ids::{AppId, SessionKey, UserId};
use crate::rows::{Change, Extent, Found, Head, Plan, Planner, by_key, to_db};
use crate::session::Visible;
use crate::store::REMEMBERED_REMOVALS;

/// The generation of a shared list that begins anew. What is stored has generation 0.
pub(super) const ANEW: u64 = 1;

/// The keys that are written, in the form that statements take.
pub(super) fn keys(writes: &[&Write]) -> Vec<String> {
    by_key(writes).into_iter().map(|(key, _)| key.to_owned()).collect()
}

/// Where the items of a list come from, should they be needed.
pub(super) enum Source<'a> {
    /// The session, and its version.
    Session(&'a SessionKey, u64),
    /// The scope of an app, or of a user.
    Shared(&'a AppId, Option<&'a UserId>),
}

impl Source<'_> {
    async fn items(
        &self,
        connection: &Object,
        heads: &[HeadRow],
        keys: &[String],
    ) -> Result<Items, SessionError> {
        match self {
            Source::Session(key, version) => {
                let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
                let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
                let items = async { query(connection, FIND_ITEMS, &[&app, &user, &id, &keys]).await };
                let (lineage, rewinds, items) =
                    try_join!(biased; ask(READ_LINEAGE), ask(READ_REWINDS), items)?;
                let history = History::read(&lineage, &rewinds);
                let visible = Visible::at(*version, &history.rewinds);
                let wanted: Vec<HeadRow> = heads
                    .iter()
                    .filter(|row| keys.contains(&row.key))
                    .map(|row| HeadRow { key: row.key.clone(), schema: row.schema, head: row.head.clone() })
                    .collect();
                session_items(&wanted, &items, &history, &visible)
            }
            Source::Shared(app, user) => {
                let (app, user) = (app.as_str(), user.map_or("", UserId::as_str));
                shared_items(&query(connection, FIND_SHARED_ITEMS, &[&app, &user, &keys]).await?)
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
    let heads = heads(rows)?;
    let mut found = HashMap::new();
    for row in &heads {
        let schema = schemas.text(connection, row.schema).await?;
        found.insert(row.key.as_str(), Found { head: row.head.clone(), schema });
    }
    let mut changes = Changes::default();
    let mut waiting = Vec::new();
    for (key, writes) in by_key(writes) {
        match planner.plan(found.get(key), None, &writes)? {
            Plan::Change(change) => changes.add(key, found.get(key), change),
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
        if let Plan::Change(change) = planner.plan(found.get(key), Some(list), &writes)? {
            changes.add(key, found.get(key), change);
        }
    }
    Ok(changes)
}

/// What changes in a scope, as columns.
#[derive(Default)]
pub(super) struct Changes {
    /// Keys that had a row before.
    past: Vec<String>,
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
    fn add(&mut self, key: &str, found: Option<&Found>, change: Change) {
        if change == Change::Nothing {
            return;
        }
        if let Some(found) = found {
            self.past.push(key.to_owned());
            if let Head::List(before) = &found.head {
                let kept = match &change {
                    Change::List(extent, _) if extent.generation != ANEW => to_db(extent.start),
                    _ => i64::MAX,
                };
                // To look for items that are not there takes a look at all of them.
                if kept > to_db(before.start) {
                    self.shrunk.0.push(key.to_owned());
                    self.shrunk.1.push(kept);
                }
            }
        }
        match change {
            Change::Nothing => {}
            Change::Remove => self.removed.push(key.to_owned()),
            Change::Json(value) => self.put.add(key, Some(value.to_string()), None),
            Change::List(extent, rows) => {
                self.put.add(key, None, Some(extent));
                for (place, items) in rows {
                    self.items.keys.push(key.to_owned());
                    self.items.generations.push(to_db(extent.generation));
                    self.items.places.push(to_db(place));
                    self.items.items.push(items);
                }
            }
        }
    }

    /// The statements that write the values of a session, which then are those of `version`.
    pub(super) fn into_session<'a>(
        self,
        connection: &'a Object,
        stream: i64,
        version: u64,
        schema: i64,
    ) -> Vec<Sent<'a>> {
        let version = to_db(version);
        let Changes { past, removed, put, items, .. } = self;
        let mut sent: Vec<Sent<'a>> = Vec::new();
        if !past.is_empty() {
            sent.push(Box::pin(
                async move { execute(connection, KEEP_PAST, &[&stream, &version, &past]).await },
            ));
        }
        if !removed.is_empty() {
            sent.push(Box::pin(async move { execute(connection, DELETE_CELLS, &[&stream, &removed]).await }));
        }
        if !put.keys.is_empty() {
            sent.push(Box::pin(async move {
                let Put { keys, values, generations, starts, lengths } = &put;
                let given: Given<'_> =
                    &[&stream, &version, &schema, keys, values, generations, starts, lengths];
                execute(connection, PUT_CELLS, given).await
            }));
        }
        if !items.keys.is_empty() {
            sent.push(Box::pin(async move {
                let ItemColumns { keys, generations, places, items } = items;
                let items: Vec<String> =
                    items.into_iter().map(|items| Value::Array(items).to_string()).collect();
                execute(connection, ADD_ITEMS, &[&stream, &version, &keys, &generations, &places, &items])
                    .await
            }));
        }
        sent
    }

    /// The statements that write the values of a shared scope.
    pub(super) fn into_scope<'a>(
        self,
        connection: &'a Object,
        (scope, version): (i64, i64),
        schema: i64,
    ) -> Vec<Sent<'a>> {
        let Changes { removed, put, items, shrunk, .. } = self;
        let starts: HashMap<String, i64> =
            put.keys.iter().cloned().zip(put.starts.iter().map(|start| start.unwrap_or_default())).collect();
        let mut sent: Vec<Sent<'a>> = Vec::new();
        if !shrunk.0.is_empty() {
            sent.push(Box::pin(async move {
                execute(connection, DROP_SHARED_ITEMS, &[&scope, &shrunk.0, &shrunk.1]).await
            }));
        }
        sent.push(Box::pin(async move { execute(connection, MOVE_SCOPE, &[&scope, &version]).await }));
        if !removed.is_empty() {
            let gone = removed.clone();
            sent.push(Box::pin(async move { execute(connection, DELETE_SHARED, &[&scope, &gone]).await }));
            sent.push(Box::pin(async move {
                execute(connection, ADD_REMOVED, &[&scope, &removed, &version]).await
            }));
            sent.push(Box::pin(async move {
                let kept = to_db(REMEMBERED_REMOVALS as u64);
                execute(connection, FORGET_REMOVED, &[&scope, &kept]).await
            }));
        }
        if !put.keys.is_empty() {
            sent.push(Box::pin(async move {
                let Put { keys, values, starts, lengths, .. } = &put;
                let given: Given<'_> = &[&scope, &schema, keys, values, starts, lengths, &version];
                execute(connection, PUT_SHARED, given).await
            }));
        }
        let (keys, places, items) = items.one_by_one(&starts);
        if !keys.is_empty() {
            sent.push(Box::pin(async move {
                execute(connection, PUT_SHARED_ITEMS, &[&scope, &keys, &places, &items]).await
            }));
        }
        sent
    }
}

impl ItemColumns {
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
    fn add(&mut self, key: &str, value: Option<String>, extent: Option<Extent>) {
        self.keys.push(key.to_owned());
        self.values.push(value);
        self.generations.push(extent.map(|extent| to_db(extent.generation)));
        self.starts.push(extent.map(|extent| to_db(extent.start)));
        self.lengths.push(extent.map(|extent| to_db(extent.length)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The statement that drops items reads all items of the scope.
    #[test]
    fn a_shared_list_that_only_grows_drops_no_items() {
        let extent = |start, length| Extent { generation: 0, start, length };
        let before = Found { head: Head::List(extent(3, 10)), schema: "{}".into() };
        let dropped = |change| {
            let mut changes = Changes::default();
            changes.add("user:log", Some(&before), change);
            changes.shrunk.1
        };
        let grown = |start| Change::List(extent(start, 11), vec![(13, vec![json!("item")])]);
        assert!(dropped(grown(3)).is_empty());
        assert_eq!(dropped(grown(4)), vec![4_i64]);
        let anew = Change::List(Extent { generation: ANEW, start: 0, length: 0 }, Vec::new());
        assert_eq!(dropped(anew), vec![i64::MAX]);
        assert_eq!(dropped(Change::Remove), vec![i64::MAX]);
    }
}
